/* file_moves_test.c - files of snapshots between nodes (worker_files.h): lists that are longer than a
 * message's number, of which each rank passes its own. */
#include "harness.h"
#include "worker_files.h"

#include <keel/clock.h>
#include <keel/memory.h>
#include <keel/thread.h>

/* Two ranks of a group of four: the others are in lists alone. */
enum { RANKS = 4, PLAYED = 2, OF_OTHERS = (1 << 19) + 9, OURS = 11 };

static struct rank {
    struct keel_endpoint *endpoint;
    struct keel_group *group;
    struct keel_file_mover mover;
    struct keel_file_move *moves;
    uint32_t count;
    enum keel_status status;
} played[PLAYED];

static void open_ranks(void)
{
    static const uint16_t shard_rank[] = {0};
    struct keel_address addresses[RANKS];
    for (uint32_t r = 0; r < PLAYED; r++) {
        ck_ok(keel_endpoint_open(&(struct keel_endpoint_config){.provider = NULL}, &played[r].endpoint));
        keel_endpoint_address(played[r].endpoint, &addresses[r]);
    }
    addresses[2] = addresses[3] = addresses[1]; /* nobody calls them */
    for (uint32_t r = 0; r < PLAYED; r++) {
        const struct keel_group_config config = {.epoch = 1,
                                                 .rank = r,
                                                 .rank_count = RANKS,
                                                 .addresses = addresses,
                                                 .shard_count = 1,
                                                 .shard_rank = shard_rank};
        ck_ok(keel_group_open(played[r].endpoint, &config, &played[r].group));
        played[r].mover.group = played[r].group;
        ck_ok(keel_tier_memory_open("run", 1 << 20, "memory", &played[r].mover.tier));
    }
}

static void close_ranks(void)
{
    for (uint32_t r = 0; r < PLAYED; r++) {
        keel_group_revoke(played[r].group);
        keel_group_close(played[r].group);
        keel_tier_end(played[r].mover.tier);
        keel_file_mover_fini(&played[r].mover);
        keel_free(played[r].moves);
    }
    for (uint32_t r = 0; r < PLAYED; r++)
        keel_endpoint_close(played[r].endpoint);
}

static void *run(void *context)
{
    struct rank *rank = context;
    rank->status = keel_file_mover_run(&rank->mover, rank->moves, rank->count, 5);
    return NULL;
}

static struct keel_file_move move_of(uint32_t i, uint16_t from, uint16_t to)
{
    return (struct keel_file_move){
        .object = {.step = 1, .attempt = 1, .kind = KEEL_OBJECT_SHARD, .member = i % 1000},
        .from = from,
        .to = to};
}

/* Ours lie all over the list, both ways, and behind all numbers that a message could have of the list. Nobody
 * has any of the files: that is what is said of each. */
START_TEST(a_list_may_have_more_moves_than_two_ranks_have_numbers)
{
    open_ranks();
    for (uint32_t r = 0; r < PLAYED; r++) {
        struct rank *rank = &played[r];
        rank->count = OF_OTHERS + OURS;
        ck_ok(keel_alloc(rank->count, sizeof *rank->moves, &rank->moves));
        for (uint32_t i = 0; i < rank->count; i++) {
            const bool ours = i < 3 || i + OURS - 3 >= rank->count;
            rank->moves[i] = ours ? move_of(i, i % 2, 1 - i % 2) : move_of(i, 2, 3);
        }
    }
    struct keel_thread threads[PLAYED];
    for (uint32_t r = 0; r < PLAYED; r++)
        ck_ok(keel_thread_create(&threads[r], "rank", run, &played[r]));
    for (uint32_t r = 0; r < PLAYED; r++) {
        keel_thread_join(&threads[r]);
        ck_ok(played[r].status);
    }
    for (uint32_t i = 0; i < played[0].count; i++)
        ck_assert(!played[0].moves[i].arrived && !played[1].moves[i].arrived);
    close_ranks();
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_list_may_have_more_moves_than_two_ranks_have_numbers);
}

KEEL_TEST_MAIN("file_moves", cases, 60)
