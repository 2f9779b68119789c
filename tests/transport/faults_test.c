/* faults_test.c - ranks that are killed, stopped, cut off, reset and slowed down, at every phase of every
 * operation: no call outlasts its deadline, all survivors learn who it was, and the next epoch computes
 * right.
 *
 * It mostly waits. FAULTS=n makes n faults (of both backends, in proportion), CYCLES=n as many epochs more
 * and less, SEED=n other faults; tests/transport/faults.sh calls it so. */
#include "drill.h"

enum { OVER_TCP = 120, IN_SHARED_MEMORY = 60, CYCLES = 150 };
/* Pools of libfabric grow once to what was ever in flight at a time (some 400 KiB, seen in any of the first
 * thousand cycles, then no more), and keep it. */
enum { RESIDENT_SLACK_BYTES = 640 << 10 };
enum { HEAP_SLACK_BYTES = 256 }; /* the C library rounds the same block up to 16 bytes more, now and then */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { KEEPS_FREED = true }; /* a sanitizer does, to tell of its use */
#else
enum { KEEPS_FREED = false };
#endif

static uint64_t asked(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0' ? strtoull(text, NULL, 10) : otherwise;
}

static void run_drill(struct hosts *hosts, uint64_t count)
{
    static struct drill drill;
    uint64_t seed = asked("SEED", 1);
    drill_start(&drill, hosts, DRILL_RANKS, seed);
    while (drill.done < count)
        drill_round(&drill);
    drill_tell(&drill, seed);
    drill_end(&drill);
    ck_assert_msg(drill.bad == 0, "%llu complaints, seed %llu", (unsigned long long)drill.bad,
                  (unsigned long long)seed);
}

/* CARRIER=tcp or shared: all of them there. */
static uint64_t share(const char *backend, uint64_t of_the_default)
{
    const char *only = getenv("CARRIER");
    uint64_t all = OVER_TCP + IN_SHARED_MEMORY, faults = asked("FAULTS", all);
    if (only != NULL && only[0] != '\0')
        return strcmp(only, backend) == 0 ? faults : 0;
    return faults * of_the_default / all;
}

START_TEST(survivors_of_faults_between_hosts_return_name_who_and_go_on)
{
    static struct hosts hosts;
    if (share("tcp", OVER_TCP) == 0)
        return;
    if (!hosts_start(&hosts, DRILL_RANKS)) {
        printf("note: skipped: faults between hosts: %s\n", hosts.why);
        return;
    }
    if (!hosts.has_netem)
        printf("note: no netem in this kernel: slow links are a bucket of 50 Mbit/s that loses one frame in "
               "twenty\n");
    run_drill(&hosts, share("tcp", OVER_TCP));
}
END_TEST

START_TEST(survivors_of_faults_on_one_host_return_name_who_and_go_on)
{
    if (share("shared", IN_SHARED_MEMORY) > 0)
        run_drill(NULL, share("shared", IN_SHARED_MEMORY));
}
END_TEST

/* ---- shrinking and growing ----------------------------------------------------------------------------- */

static void epoch_of(struct drill *drill, uint32_t members)
{
    drill_members(drill, members, -1);
    drill->order.epoch = ++drill->epoch;
    drill->order.warm = true;
    drill->order.timeout_ns = 20 * KEEL_NS_PER_S;
    drill->order.it =
        (struct keel_net_case){.kind = KEEL_ALL_REDUCE, .order = KEEL_ORDER_EXACT, .count = 3001};
    drill_together(drill, DRILL_OPEN);
}

/* All have closed their groups, and the farewells are over. */
static void count_all(struct drill *drill, struct drill_report *out)
{
    drill_members(drill, drill->count, -1);
    drill_together(drill, DRILL_CLOSE);
    keel_sleep_until_ns(keel_deadline_after_ns(2500 * KEEL_NS_PER_MS));
    drill_together(drill, DRILL_COUNT);
    memcpy(out, drill->report, sizeof drill->report);
}

static void shrink_and_grow(bool over_fabric, uint64_t cycles)
{
    static struct drill drill;
    struct drill_report before[DRILL_RANKS], after[DRILL_RANKS];
    if (over_fabric)
        setenv("KEEL_SHARED_MEMORY", "0", 1);
    drill_start(&drill, NULL, 4, 1);
    for (uint64_t cycle = 0; cycle < 2 * cycles; cycle++) { /* the first half fills pools and caches */
        if (cycle == cycles)
            count_all(&drill, before);
        epoch_of(&drill, 4);
        epoch_of(&drill, 3);
    }
    count_all(&drill, after);
    for (uint32_t slot = 0; slot < 4; slot++) {
        const struct drill_report *was = &before[slot], *is = &after[slot];
        printf("note: process %u, %llu cycles %s: descriptors %u -> %u, threads %u -> %u, memfds %u -> %u, "
               "resident KiB %llu -> %llu, heap bytes %llu -> %llu\n",
               slot, (unsigned long long)cycles, over_fabric ? "over TCP" : "in shared memory",
               was->descriptors, is->descriptors, was->threads, is->threads, was->memfds, is->memfds,
               (unsigned long long)was->resident_bytes >> 10, (unsigned long long)is->resident_bytes >> 10,
               (unsigned long long)was->heap_bytes, (unsigned long long)is->heap_bytes);
        ck_assert_uint_le(is->descriptors, was->descriptors);
        ck_assert_uint_le(is->threads, was->threads);
        ck_assert_uint_le(is->memfds, was->memfds);
        ck_assert_uint_le(is->heap_blocks, was->heap_blocks);
        ck_assert_uint_le(is->heap_bytes, was->heap_bytes + HEAP_SLACK_BYTES);
        if (!KEEPS_FREED)
            ck_assert_uint_le(is->resident_bytes, was->resident_bytes + RESIDENT_SLACK_BYTES);
    }
    ck_assert_uint_eq(drill.bad, 0);
    drill_end(&drill);
}

START_TEST(shrinking_and_growing_leaves_nothing_behind)
{
    shrink_and_grow(_i == 1, asked("CYCLES", CYCLES));
}
END_TEST

static void cases(TCase *tc)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    tcase_set_timeout(tc, (double)asked("FAULTS", 0) + 300);
    tcase_add_test(tc, survivors_of_faults_between_hosts_return_name_who_and_go_on);
    tcase_add_test(tc, survivors_of_faults_on_one_host_return_name_who_and_go_on);
    tcase_add_loop_test(tc, shrinking_and_growing_leaves_nothing_behind, 0, 2);
}
KEEL_TEST_MAIN("transport faults", cases, 300)
