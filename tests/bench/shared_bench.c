/* shared_bench.c - what shared memory gives ranks of one host, against memcpy of the same minute.
 *
 * Four processes. The ceiling of an all-reduce, as in transport_race_bench.c: every rank must read its slice
 * of all n parts and write its sum (1 + 1/n of the length), and copy the others' (2(n-1)/n, read and
 * written), while a memcpy of that length in every rank at once moves twice the length. Rounds of ours and of
 * memcpy alternate; figures are medians. One JSON object a line. */
#include <keel/clock.h>
#include <keel/transport.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, ROUNDS = 9, PINGS = 1000, BYTES = 64 << 20 };

struct rank {
    uint32_t rank;
    struct keel_endpoint *endpoint;
    struct keel_group *group;
    struct keel_address addresses[RANKS];
    uint64_t sequence;
    uint8_t *part, *result;             /* regions */
    uint8_t *plain_part, *plain_result; /* of the heap */
};

static void die(const char *what)
{
    fprintf(stderr, "shared_bench: %s: %s\n", what, keel_detail());
    exit(1);
}

static void run(struct rank *me, struct keel_collective what)
{
    what.sequence = me->sequence++;
    if (keel_group_run(me->group, &what, keel_deadline_after_ns(60 * KEEL_NS_PER_S)) != KEEL_OK)
        die(keel_collective_name(what.kind));
}

static void barrier(struct rank *me)
{
    run(me, (struct keel_collective){.kind = KEEL_BARRIER});
}

static void reduce(struct rank *me, const uint8_t *part, uint8_t *result, uint64_t bytes)
{
    const void *parts[1] = {part};
    run(me, (struct keel_collective){.kind = KEEL_ALL_REDUCE,
                                     .element = KEEL_ELEMENT_F32,
                                     .count = bytes / sizeof(float),
                                     .parts = parts,
                                     .part_count = 1,
                                     .result = result});
}

/* Between ranks 0 and 1; the sequence goes on for all. */
static void pass(struct rank *me, uint32_t from, const uint8_t *part, uint8_t *result, uint64_t bytes)
{
    const void *parts[1] = {part};
    struct keel_collective what = {.kind = me->rank == from ? KEEL_SEND : KEEL_RECEIVE,
                                   .element = KEEL_ELEMENT_U8,
                                   .root = 1 - me->rank,
                                   .count = bytes,
                                   .parts = parts,
                                   .part_count = me->rank == from ? 1 : 0,
                                   .result = me->rank == from ? NULL : result};
    run(me, what);
}

/* ---- figures ------------------------------------------------------------------------------------------- */

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof *values, by_value);
    return values[ROUNDS / 2];
}

static void print(const char *figure, const char *unit, double value, const char *peer, double peer_value,
                  double goal)
{
    double ratio = strcmp(unit, "us") == 0 ? peer_value / value : value / peer_value;
    printf("{\"room\":\"transport\",\"figure\":\"%s\",\"value\":%.3f,\"unit\":\"%s\",", figure, value, unit);
    if (peer == NULL)
        printf("\"peer\":null,\"peer_value\":null,\"ratio\":null,\"goal\":null,\"met\":null}\n");
    else if (goal > 0)
        printf("\"peer\":\"%s\",\"peer_value\":%.3f,\"ratio\":%.2f,\"goal\":%.2f,\"met\":%s}\n", peer,
               peer_value, ratio, goal, ratio >= goal ? "true" : "false");
    else
        printf("\"peer\":\"%s\",\"peer_value\":%.3f,\"ratio\":%.2f,\"goal\":null,\"met\":null}\n", peer,
               peer_value, ratio);
    fflush(stdout);
}

/* Seconds of one memcpy of so many bytes while all ranks do one. */
static double copy_all(struct rank *me, uint64_t bytes, uint32_t repeats)
{
    barrier(me);
    uint64_t start = keel_now_ns();
    for (uint32_t k = 0; k < repeats; k++)
        memcpy(me->plain_result, me->plain_part, bytes);
    barrier(me);
    return (double)(keel_now_ns() - start) / 1e9 / repeats;
}

static double reduce_all(struct rank *me, const uint8_t *part, uint8_t *result, uint64_t bytes,
                         uint32_t repeats)
{
    barrier(me);
    uint64_t start = keel_now_ns();
    for (uint32_t k = 0; k < repeats; k++)
        reduce(me, part, result, bytes);
    barrier(me);
    return (double)(keel_now_ns() - start) / 1e9 / repeats;
}

static void bandwidth(struct rank *me)
{
    static const struct {
        const char *in_place, *copied;
        uint64_t bytes;
        uint32_t repeats;
        double goal;
    } sizes[] = {{"exact all-reduce in shared memory, 4 ranks, 64 KiB, bus",
                  "the same from heap memory, 64 KiB, bus", 64 << 10, 200, 0},
                 {"exact all-reduce in shared memory, 4 ranks, 1 MiB, bus",
                  "the same from heap memory, 1 MiB, bus", 1 << 20, 20, 0},
                 {"exact all-reduce in shared memory, 4 ranks, 16 MiB, bus",
                  "the same from heap memory, 16 MiB, bus", 16 << 20, 3, 0},
                 {"exact all-reduce in shared memory, 4 ranks, 64 MiB, bus",
                  "the same from heap memory, 64 MiB, bus", BYTES, 1, 0.6}};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        double ours[ROUNDS], heap[ROUNDS], peer[ROUNDS];
        reduce(me, me->part, me->result, sizes[k].bytes);
        reduce(me, me->plain_part, me->plain_result, sizes[k].bytes);
        for (int round = 0; round < ROUNDS; round++) {
            ours[round] = reduce_all(me, me->part, me->result, sizes[k].bytes, sizes[k].repeats);
            peer[round] = copy_all(me, sizes[k].bytes, sizes[k].repeats);
            heap[round] = reduce_all(me, me->plain_part, me->plain_result, sizes[k].bytes, sizes[k].repeats);
        }
        double bus = (double)sizes[k].bytes * 2 * (RANKS - 1) / RANKS / 1e9;
        double moved = 1 + 1.0 / RANKS + 2.0 * (RANKS - 1) / RANKS;
        double ceiling = bus / (median(peer) * moved / 2);
        if (me->rank != 0)
            continue;
        print(sizes[k].in_place, "GB/s", bus / median(ours), "memcpy ceiling", ceiling, sizes[k].goal);
        print(sizes[k].copied, "GB/s", bus / median(heap), "memcpy ceiling", ceiling, 0);
    }
}

static void stream(struct rank *me)
{
    double lent[ROUNDS], copied[ROUNDS], peer[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        barrier(me);
        if (me->rank < 2) {
            uint64_t start = keel_now_ns();
            pass(me, 0, me->part, me->result, BYTES);
            lent[round] = (double)(keel_now_ns() - start) / 1e9;
            start = keel_now_ns();
            pass(me, 0, me->plain_part, me->plain_result, BYTES);
            copied[round] = (double)(keel_now_ns() - start) / 1e9;
            start = keel_now_ns();
            memcpy(me->plain_result, me->plain_part, BYTES);
            peer[round] = (double)(keel_now_ns() - start) / 1e9;
        } else {
            me->sequence += 2;
        }
        barrier(me);
    }
    if (me->rank != 1)
        return;
    print("one rank sends another 64 MiB of a region", "GB/s", BYTES / median(lent) / 1e9, "memcpy",
          BYTES / median(peer) / 1e9, 0);
    print("one rank sends another 64 MiB of heap memory", "GB/s", BYTES / median(copied) / 1e9, "memcpy",
          BYTES / median(peer) / 1e9, 0);
}

static void latency(struct rank *me)
{
    double trip[ROUNDS], sum[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        barrier(me);
        uint64_t start = keel_now_ns();
        for (uint32_t k = 0; k < PINGS && me->rank < 2; k++) {
            pass(me, 0, me->part, me->result, 8);
            pass(me, 1, me->part, me->result, 8);
        }
        if (me->rank >= 2)
            me->sequence += 2 * (uint64_t)PINGS;
        trip[round] = (double)(keel_now_ns() - start) / 1e3 / PINGS;
        barrier(me);
        start = keel_now_ns();
        for (uint32_t k = 0; k < PINGS; k++)
            reduce(me, me->part, me->result, 8);
        sum[round] = (double)(keel_now_ns() - start) / 1e3 / PINGS;
    }
    if (me->rank != 0)
        return;
    print("8 bytes there and back in shared memory", "us", median(trip), NULL, 0, 0);
    print("exact all-reduce in shared memory, 4 ranks, 8 bytes", "us", median(sum), NULL, 0, 0);
}

/* ---- ranks --------------------------------------------------------------------------------------------- */

static void prepare(struct rank *me)
{
    me->plain_part = malloc(BYTES);
    me->plain_result = malloc(BYTES);
    if (me->plain_part == NULL || me->plain_result == NULL ||
        keel_transport_alloc(BYTES, &me->part) != KEEL_OK ||
        keel_transport_alloc(BYTES, &me->result) != KEEL_OK)
        die("memory");
    memset(me->part, 0, BYTES);
    memset(me->result, 0, BYTES);
    memset(me->plain_part, 0, BYTES);
    memset(me->plain_result, 0, BYTES);
}

static int run_rank(struct rank *me, int to_parent, int from_parent)
{
    static const uint16_t shard_rank[RANKS] = {0, 1, 2, 3};
    struct keel_endpoint_config config = {.key = NULL};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (keel_endpoint_open(&config, &me->endpoint) != KEEL_OK)
        die("endpoint");
    keel_endpoint_address(me->endpoint, &me->addresses[me->rank]);
    if (write(to_parent, &me->addresses[me->rank], sizeof me->addresses[0]) < 0 ||
        read(from_parent, me->addresses, sizeof me->addresses) != (ssize_t)sizeof me->addresses)
        die("addresses");
    struct keel_group_config group = {.epoch = 1,
                                      .rank = me->rank,
                                      .rank_count = RANKS,
                                      .addresses = me->addresses,
                                      .shard_count = RANKS,
                                      .shard_rank = shard_rank};
    if (keel_group_open(me->endpoint, &group, &me->group) != KEEL_OK)
        die("group");
    prepare(me);
    bandwidth(me);
    stream(me);
    latency(me);
    barrier(me);
    keel_group_close(me->group);
    keel_endpoint_close(me->endpoint);
    keel_transport_free(me->part);
    keel_transport_free(me->result);
    free(me->plain_part);
    free(me->plain_result);
    return 0;
}

int main(void)
{
    int up[RANKS][2], down[RANKS][2], failed = 0;
    pid_t pids[RANKS];
    struct keel_address addresses[RANKS];
    for (uint32_t r = 0; r < RANKS; r++) {
        if (pipe(up[r]) != 0 || pipe(down[r]) != 0)
            die("pipes");
        pids[r] = fork();
        if (pids[r] == 0) {
            struct rank me = {.rank = r};
            exit(run_rank(&me, up[r][1], down[r][0]));
        }
    }
    for (uint32_t r = 0; r < RANKS; r++)
        if (read(up[r][0], &addresses[r], sizeof addresses[r]) != (ssize_t)sizeof addresses[r])
            die("a rank's address");
    for (uint32_t r = 0; r < RANKS; r++)
        if (write(down[r][1], addresses, sizeof addresses) != (ssize_t)sizeof addresses)
            die("addresses");
    for (uint32_t r = 0; r < RANKS; r++) {
        int status = 0;
        failed |= waitpid(pids[r], &status, 0) != pids[r] || status != 0;
    }
    return failed;
}
