/* grid.c - ranks in rows and columns: sums along both at once, each in a group of its own.
 *
 * An example for libkeel, to be copied from. Four processes open an endpoint each, tell each other its
 * address (through pipes here; a job has its own way), open one group of all, and split it: all ranks take
 * part, those of one colour find each other. The diagonal is made by its members alone.
 *
 *     cc grid.c $(pkg-config --cflags --libs keel) -o grid
 *     ./grid */
#include <keel/clock.h>
#include <keel/transport.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIDE = 2, RANKS = SIDE * SIDE };
#define LIMIT_NS (20 * KEEL_NS_PER_S)

/* One number from each rank of `group`, added up. */
static enum keel_status sum(struct keel_group *group, uint64_t sequence, int32_t mine, int32_t *out)
{
    const void *parts[] = {&mine};
    const struct keel_collective what = {.kind = KEEL_ALL_REDUCE,
                                         .sequence = sequence,
                                         .element = KEEL_ELEMENT_I32,
                                         .count = 1,
                                         .parts = parts,
                                         .part_count = 1,
                                         .result = out};
    return keel_group_run(group, &what, keel_deadline_after_ns(LIMIT_NS));
}

/* Called by the ranks of the diagonal alone. */
static enum keel_status sum_diagonal(struct keel_group *all, int32_t mine, int32_t *out)
{
    uint16_t ranks[SIDE];
    struct keel_group *diagonal;
    for (uint32_t k = 0; k < SIDE; k++)
        ranks[k] = (uint16_t)(k * SIDE + k);
    const struct keel_subgroup what = {.sequence = 3, .rank_count = SIDE, .ranks = ranks};
    KEEL_TRY(keel_group_create(all, &what, &diagonal));
    enum keel_status status = sum(diagonal, 1, mine, out);
    keel_group_close(diagonal);
    return status;
}

static enum keel_status work(struct keel_group *all)
{
    const uint32_t rank = keel_group_rank(all), y = rank / SIDE, x = rank % SIDE;
    struct keel_group *row = NULL, *column = NULL;
    int32_t along = 0, down = 0, across = 0, mine = (int32_t)rank + 1;
    enum keel_status status = keel_group_split(all, 1, y, x, keel_deadline_after_ns(LIMIT_NS), &row);
    if (status == KEEL_OK)
        status = keel_group_split(all, 2, x, y, keel_deadline_after_ns(LIMIT_NS), &column);
    if (status == KEEL_OK)
        status = sum(row, 1, mine, &along);
    if (status == KEEL_OK)
        status = sum(column, 1, mine, &down);
    if (status == KEEL_OK && x == y)
        status = sum_diagonal(all, mine, &across);
    if (status == KEEL_OK)
        printf("rank %u is %u of %u in its row: row %d, column %d, diagonal %d\n", rank, keel_group_rank(row),
               keel_group_rank_count(row), along, down, across);
    if (row != NULL)
        keel_group_close(row);
    if (column != NULL)
        keel_group_close(column);
    return status;
}

/* Every address to everybody: each process writes its own into all pipes and reads all from its own pipe. */
static void meet(int pipes[RANKS][2], uint32_t rank, struct keel_address addresses[RANKS])
{
    struct {
        uint32_t rank;
        struct keel_address address;
    } card = {.rank = rank, .address = addresses[rank]};
    for (uint32_t to = 0; to < RANKS; to++)
        if (write(pipes[to][1], &card, sizeof card) != (ssize_t)sizeof card)
            exit(1);
    for (uint32_t k = 0; k < RANKS; k++) {
        if (read(pipes[rank][0], &card, sizeof card) != (ssize_t)sizeof card)
            exit(1);
        addresses[card.rank] = card.address;
    }
}

static int rank_main(int pipes[RANKS][2], uint32_t rank)
{
    struct keel_address addresses[RANKS];
    const uint16_t shard_rank[RANKS] = {0, 1, 2, 3};
    struct keel_endpoint *endpoint;
    struct keel_group *all;
    enum keel_status status = keel_endpoint_open(&(struct keel_endpoint_config){.provider = NULL}, &endpoint);
    if (status == KEEL_OK) {
        keel_endpoint_address(endpoint, &addresses[rank]);
        meet(pipes, rank, addresses);
        const struct keel_group_config config = {.epoch = 1,
                                                 .rank = rank,
                                                 .rank_count = RANKS,
                                                 .addresses = addresses,
                                                 .shard_count = RANKS,
                                                 .shard_rank = shard_rank};
        status = keel_group_open(endpoint, &config, &all);
        if (status == KEEL_OK) {
            status = work(all);
            keel_group_close(all);
        }
        keel_endpoint_close(endpoint);
    }
    if (status != KEEL_OK)
        fprintf(stderr, "grid: rank %u: %s: %s\n", rank, keel_status_text(status), keel_detail());
    fflush(stdout);
    return keel_status_exit_code(status);
}

int main(void)
{
    int pipes[RANKS][2], failed = 0;
    for (uint32_t rank = 0; rank < RANKS; rank++)
        if (pipe(pipes[rank]) != 0)
            return 1;
    for (uint32_t rank = 0; rank < RANKS; rank++)
        if (fork() == 0)
            _exit(rank_main(pipes, rank));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        int code;
        if (wait(&code) < 0 || code != 0)
            failed = 1;
    }
    return failed;
}
