/* compressed_bench.c - what fewer bytes buy: a lossy all-reduce of 16 MiB against the plain one, in time and
 * bytes.
 *
 * Four processes on loopback over TCP (no shared memory), rounds of all ways in turn, figures are medians;
 * the peer is the plain all-reduce, native order, of the same minute. Bytes are counted by the endpoints, all
 * ranks together. Loopback has no wire: its bytes cost processor time, which the encoding costs too, so what
 * is saved here is the least that a network saves. One JSON object a line. */
#include <keel/clock.h>
#include <keel/transport_compressed.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, ROUNDS = 7, FLOATS = 4 << 20, WAYS = KEEL_COMPRESSED_FORMAT_COUNT + 1, PLAIN = WAYS - 1 };

struct rank {
    uint32_t rank;
    struct keel_endpoint *endpoint;
    struct keel_group *group;
    struct keel_address addresses[RANKS];
    uint64_t sequence;
    struct keel_compressed *leans[KEEL_COMPRESSED_FORMAT_COUNT];
    float *part, *result;
};

static void die(const char *what)
{
    fprintf(stderr, "compressed_bench: %s: %s\n", what, keel_detail());
    exit(1);
}

static uint64_t soon(void)
{
    return keel_deadline_after_ns(60 * KEEL_NS_PER_S);
}

static void collective(struct rank *me, enum keel_collective_kind kind, enum keel_element element,
                       const void *part, void *result, uint64_t count)
{
    const void *parts[] = {part};
    struct keel_collective what = {.kind = kind,
                                   .sequence = me->sequence++,
                                   .element = element,
                                   .order = KEEL_ORDER_NATIVE,
                                   .count = count,
                                   .parts = parts,
                                   .part_count = part != NULL,
                                   .result = result};
    if (keel_group_run(me->group, &what, soon()) != KEEL_OK)
        die(keel_collective_name(kind));
}

static void reduce(struct rank *me, uint32_t way)
{
    if (way == PLAIN) {
        collective(me, KEEL_ALL_REDUCE, KEEL_ELEMENT_F32, me->part, me->result, FLOATS);
        return;
    }
    if (keel_compressed_run(me->leans[way], me->group, me->sequence, me->part, me->result, soon()) != KEEL_OK)
        die("compressed all-reduce");
    me->sequence += 2;
}

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* All ranks' bytes of one more call. */
static uint64_t count_bytes(struct rank *me, uint32_t way)
{
    struct keel_transport_stats before, after;
    uint64_t all[RANKS], total = 0;
    collective(me, KEEL_BARRIER, KEEL_ELEMENT_U8, NULL, NULL, 0);
    keel_sleep_until_ns(keel_deadline_after_ns(10 * KEEL_NS_PER_MS));
    keel_endpoint_stats(me->endpoint, &before);
    reduce(me, way);
    keel_endpoint_stats(me->endpoint, &after);
    uint64_t mine = after.bytes_sent - before.bytes_sent;
    collective(me, KEEL_ALL_GATHER, KEEL_ELEMENT_I64, &mine, all, 1);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        total += all[rank];
    return total;
}

static void print(const char *way, const char *what, const char *unit, double value, double plain)
{
    printf("{\"room\":\"transport\",\"figure\":\"16 MiB all-reduce over tcp, 4 ranks, %s: %s\","
           "\"value\":%.2f,\"unit\":\"%s\",\"peer\":\"plain fp32\",\"peer_value\":%.2f,\"ratio\":%.2f,"
           "\"goal\":null,\"met\":null}\n",
           way, what, value, unit, plain, plain / value);
    fflush(stdout);
}

static void measure(struct rank *me)
{
    double ms[WAYS][ROUNDS], mib[WAYS];
    for (uint32_t way = 0; way < WAYS; way++)
        mib[way] = (double)count_bytes(me, way) / (1 << 20);
    for (uint32_t turn = 0; turn < ROUNDS * WAYS; turn++) {
        collective(me, KEEL_BARRIER, KEEL_ELEMENT_U8, NULL, NULL, 0);
        uint64_t start = keel_now_ns();
        reduce(me, turn % WAYS);
        ms[turn % WAYS][turn / WAYS] = (double)(keel_now_ns() - start) / 1e6;
    }
    for (uint32_t way = 0; way < WAYS; way++)
        qsort(ms[way], ROUNDS, sizeof ms[way][0], by_value);
    for (uint32_t way = 0; way < PLAIN && me->rank == 0; way++) {
        const char *name = way == KEEL_COMPRESSED_TOP_K
                               ? "top 1%"
                               : keel_compressed_format_name((enum keel_compressed_format)way);
        print(name, "time", "ms", ms[way][ROUNDS / 2], ms[PLAIN][ROUNDS / 2]);
        print(name, "bytes of all ranks", "MiB", mib[way], mib[PLAIN]);
    }
}

static void prepare(struct rank *me)
{
    me->part = calloc(FLOATS, sizeof *me->part);
    me->result = calloc(FLOATS, sizeof *me->result);
    if (me->part == NULL || me->result == NULL)
        die("memory");
    uint32_t noise = me->rank + 1;
    for (uint64_t i = 0; i < FLOATS; i++) {
        noise = noise * 1664525 + 1013904223;
        me->part[i] = ((float)(noise >> 8) / (1 << 23) - 1) * (float)(1 + i % 97);
    }
    for (uint32_t format = 0; format < KEEL_COMPRESSED_FORMAT_COUNT; format++) {
        struct keel_compressed_config config = {.rank = me->rank,
                                                .rank_count = RANKS,
                                                .format = (enum keel_compressed_format)format,
                                                .count = FLOATS,
                                                .keep = format == KEEL_COMPRESSED_TOP_K ? FLOATS / 100 : 0};
        if (keel_compressed_create(&config, &me->leans[format]) != KEEL_OK)
            die("compressed object");
    }
}

static int run_rank(struct rank *me, int to_parent, int from_parent)
{
    static const uint16_t shard_rank[RANKS] = {0, 1, 2, 3};
    const struct keel_endpoint_config config = {.fabric_only = true};
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
    measure(me);
    keel_group_close(me->group);
    for (uint32_t format = 0; format < KEEL_COMPRESSED_FORMAT_COUNT; format++)
        keel_compressed_free(me->leans[format]);
    keel_endpoint_close(me->endpoint);
    free(me->part);
    free(me->result);
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
            struct rank me = {.rank = r, .sequence = 1};
            exit(run_rank(&me, up[r][1], down[r][0]));
        }
    }
    for (uint32_t r = 0; r < RANKS; r++)
        if (read(up[r][0], &addresses[r], sizeof addresses[r]) != (ssize_t)sizeof addresses[r])
            die("a rank did not start");
    for (uint32_t r = 0; r < RANKS; r++)
        if (write(down[r][1], addresses, sizeof addresses) < 0)
            die("addresses");
    for (uint32_t r = 0; r < RANKS; r++) {
        int status = 0;
        waitpid(pids[r], &status, 0);
        failed = failed || status != 0;
    }
    return failed;
}
