/* silence_test.c - peers that say nothing any more are lost to all within the group's silence, whether they
 * are stopped or cut off, whatever is under way; and nobody is lost who only computes, comes late, or has to
 * share his processor.
 *
 * It runs alone: how long a silence convicts nobody depends on what else wants the processors.
 *
 * CROWD=n shares the processors that it may use for n seconds; tests/transport/faults.sh --seconds calls it
 * so. */
#include "drill_rank.h"
#include "group.h"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { RANKS = 4, VICTIM = 2, LONG = 1 << 22, COUNT = 20011, ROUNDS_AN_EPOCH = 40 };
/* Long enough for a machine that has other things to do. */
#define SILENCE_NS (500 * KEEL_NS_PER_MS)

/* What the victim's trouble meets. */
enum moment { SHORT_SUMS, LONG_SUMS, NEVER_CALLED, NOTHING, MOMENTS };

static const uint16_t identity[RANKS] = {0, 1, 2, 3};
static struct hosts hosts;

static void told(void *context, uint32_t rank)
{
    _Atomic uint32_t *lost = context;
    atomic_store(lost, rank + 1);
}

static struct keel_group *open_group(struct rank *me, uint64_t epoch, _Atomic uint32_t *lost)
{
    struct keel_group *group = rank_group(me, epoch, me->rank_count, identity);
    atomic_store(lost, 0);
    keel_group_on_lost(group, told, lost);
    return group;
}

static float *vector(uint64_t count)
{
    float *vector = calloc(count, sizeof *vector);
    if (vector == NULL)
        _exit(3);
    return vector;
}

static enum keel_status sum_of(struct keel_group *group, uint64_t sequence, const float *part, float *result,
                               uint64_t count, uint64_t deadline_ns)
{
    struct keel_operation *operation = NULL;
    enum keel_status status = sum_begin(group, sequence, &part, 1, result, count, &operation);
    return status == KEEL_OK ? keel_operation_wait(operation, deadline_ns) : status;
}

static void nap(uint64_t ns)
{
    keel_sleep_until_ns(keel_deadline_after_ns(ns));
}

/* ---- who is silent is lost ---- */

/* Far beyond any deadline of this test: the silence must end it. */
static int bereaved_body(struct rank *me)
{
    _Atomic uint32_t lost_there;
    uint32_t lost = RANKS;
    uint64_t count = me->seed == LONG_SUMS ? LONG : 16, sequence = 1, deadline = in_seconds(200);
    enum keel_status status = KEEL_OK;
    me->silence_ns = SILENCE_NS;
    struct keel_group *group = open_group(me, 1, &lost_there);
    float *part = vector(count), *result = vector(count);
    if (me->seed != NEVER_CALLED)
        rank_ok(me, sum_of(group, sequence++, part, result, count, deadline));
    rank_say(me, 'r');
    if (me->seed == NEVER_CALLED)
        rank_hear(me);
    if (me->seed == NOTHING)
        while (atomic_load(&lost_there) == 0 && !keel_group_lost(group, &lost) && keel_now_ns() < deadline)
            nap(KEEL_NS_PER_MS);
    while (status == KEEL_OK)
        status = sum_of(group, sequence++, part, result, count, deadline);
    uint64_t now = keel_now_ns();
    if (me->rank == VICTIM) /* cut off, it has lost the others; it is killed soon */
        rank_hear(me);
    rank_check(me, status == KEEL_PEER_LOST);
    rank_check(me, keel_group_lost(group, &lost) && lost == VICTIM);
    rank_check(me, atomic_load(&lost_there) == 0 || atomic_load(&lost_there) == VICTIM + 1);
    ranks_move(me->to_parent, &now, sizeof now, true);
    rank_hear(me);
    keel_group_close(group);
    free(part);
    free(result);
    return 0;
}

static void strike(const struct ranks *ranks, bool cut_off)
{
    if (cut_off)
        ck_assert(hosts_silence(&hosts, VICTIM, true, true));
    else
        kill(ranks->pids[VICTIM], SIGSTOP);
}

static void lose_one(enum moment moment, bool cut_off)
{
    static const char *const names[MOMENTS] = {"short sums", "long sums", "before it was called",
                                               "nothing under way"};
    struct ranks ranks;
    double last_ms = 0;
    ranks_start(&ranks, RANKS, moment, NULL, bereaved_body);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        ranks_listen(&ranks, rank);
    uint64_t struck = keel_now_ns();
    strike(&ranks, cut_off);
    for (uint32_t rank = 0; rank < RANKS && moment == NEVER_CALLED; rank++)
        ranks_tell(&ranks, rank, 'c');
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        uint64_t returned;
        if (rank == VICTIM)
            continue;
        ranks_move(ranks.from_child[rank], &returned, sizeof returned, false);
        double ms = ((double)returned - (double)struck) / 1e6;
        last_ms = ms > last_ms ? ms : last_ms;
    }
    printf("note: %s, %s: the last heard of it after %.0f ms; the silence is %.0f ms\n",
           cut_off ? "cut off" : "stopped", names[moment], last_ms, (double)SILENCE_NS / 1e6);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        if (rank != VICTIM)
            ranks_tell(&ranks, rank, 'c');
    kill(ranks.pids[VICTIM], SIGKILL);
    ranks_end(&ranks, VICTIM);
}

START_TEST(a_stopped_rank_is_lost_to_all_in_its_silence)
{
    lose_one((enum moment)_i, false);
}
END_TEST

static void settle_apart(uint32_t rank, struct keel_endpoint_config *config)
{
    static char node[32];
    if (!hosts_enter(&hosts, rank))
        _exit(2);
    hosts_address(rank, node, sizeof node);
    config->node = node;
    config->fabric_only = true;
}

static bool settle(uint32_t count)
{
    if (!hosts_start(&hosts, count)) {
        printf("note: skipped: ranks on several hosts: %s\n", hosts.why);
        return false;
    }
    ranks_settle = settle_apart;
    return true;
}

START_TEST(a_rank_that_is_cut_off_is_lost_to_all_in_its_silence)
{
    if (settle(RANKS))
        lose_one((enum moment)_i, true);
}
END_TEST

/* ---- without a silence: whom to name at the deadline ---- */

static int deadline_body(struct rank *me)
{
    _Atomic uint32_t lost_there;
    uint32_t lost = RANKS;
    uint64_t sequence = 1;
    enum keel_status status = KEEL_OK;
    float *part = vector(3 * COUNT), *result = vector(COUNT);
    const void *parts[] = {part};
    struct keel_group *group = open_group(me, 1, &lost_there);
    rank_ok(me, barrier(group, sequence++, in_seconds(20)));
    rank_say(me, 'r');
    while (status == KEEL_OK) {
        const struct keel_collective what = {.kind = KEEL_REDUCE_SCATTER,
                                             .sequence = sequence++,
                                             .algorithm = KEEL_ALGORITHM_TREE,
                                             .count = COUNT,
                                             .parts = parts,
                                             .part_count = 1,
                                             .result = result};
        status = keel_group_run(group, &what, keel_deadline_after_ns(450 * KEEL_NS_PER_MS));
    }
    rank_check(me, status == KEEL_TIMEOUT);
    rank_check(me, keel_group_lost(group, &lost) && (me->rank != 0 || lost == VICTIM));
    rank_say(me, 'd');
    rank_hear(me);
    keel_group_close(group);
    free(part);
    free(result);
    return 0;
}

START_TEST(a_rank_that_speaks_and_does_not_hear_is_named_at_the_deadline)
{
    struct ranks ranks;
    if (!settle(3))
        return;
    ranks_start(&ranks, 3, 0, NULL, deadline_body);
    for (uint32_t rank = 0; rank < 3; rank++)
        ranks_listen(&ranks, rank);
    ck_assert(hosts_silence(&hosts, VICTIM, false, true));
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

/* ---- who lives is not lost ---- */

/* One computes, or opens its group late: its endpoint's thread answers for it. */
static int busy_body(struct rank *me)
{
    _Atomic uint32_t lost;
    float part[16] = {0}, result[16];
    bool late = me->seed == 1;
    me->silence_ns = SILENCE_NS;
    if (me->rank == VICTIM && late)
        nap(4 * me->silence_ns);
    struct keel_group *group = open_group(me, 1, &lost);
    rank_ok(me, sum_of(group, 1, part, result, 16, in_seconds(20)));
    uint64_t until = keel_deadline_after_ns(4 * me->silence_ns), spun = 0;
    while (me->rank == VICTIM && keel_now_ns() < until)
        spun++;
    rank_check(me, me->rank != VICTIM || spun > 0);
    rank_ok(me, sum_of(group, 2, part, result, 16, in_seconds(20)));
    rank_check(me, atomic_load(&lost) == 0);
    keel_group_close(group);
    return 0;
}

START_TEST(a_rank_that_computes_or_comes_late_is_not_lost)
{
    struct ranks ranks;
    ranks_start(&ranks, RANKS, (uint64_t)_i, NULL, busy_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* Rank 0 alone judges; it is stopped, and the others go on. */
static int starved_body(struct rank *me)
{
    _Atomic uint32_t lost;
    float part[16] = {0}, result[16];
    me->silence_ns = me->rank == 0 ? SILENCE_NS : 0;
    struct keel_group *group = open_group(me, 1, &lost);
    rank_ok(me, sum_of(group, 1, part, result, 16, in_seconds(20)));
    rank_say(me, 'r');
    for (uint64_t sequence = 2; sequence < 50; sequence++) {
        rank_ok(me, sum_of(group, sequence, part, result, 16, in_seconds(20)));
        nap(10 * KEEL_NS_PER_MS);
    }
    rank_check(me, atomic_load(&lost) == 0);
    rank_say(me, 'd');
    rank_hear(me);
    keel_group_close(group);
    return 0;
}

START_TEST(who_did_not_run_himself_blames_nobody)
{
    struct ranks ranks;
    ranks_start(&ranks, RANKS, 0, NULL, starved_body);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        ranks_listen(&ranks, rank);
    for (uint32_t stops = 0; stops < 2; stops++) {
        nap(30 * KEEL_NS_PER_MS);
        kill(ranks.pids[0], SIGSTOP);
        nap(2 * SILENCE_NS);
        kill(ranks.pids[0], SIGCONT);
    }
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

/* A look is a wakeup; so are the question, its answer, and the other side's question. */
static int idle_body(struct rank *me)
{
    _Atomic uint32_t lost;
    struct rusage before, after;
    float part[16] = {0}, result[16];
    me->silence_ns = SILENCE_NS;
    struct keel_group *group = open_group(me, 1, &lost);
    rank_ok(me, sum_of(group, 1, part, result, 16, in_seconds(20)));
    rank_say(me, 'r');
    rank_hear(me);
    const uint64_t begun_ns = keel_now_ns(), look_ns = me->silence_ns / KEEL_SILENCE_LOOKS;
    getrusage(RUSAGE_SELF, &before);
    nap(5 * me->silence_ns);
    getrusage(RUSAGE_SELF, &after);
    const long wakeups = after.ru_nvcsw - before.ru_nvcsw; /* a nap may take longer */
    const long looks = (long)((keel_now_ns() - begun_ns) / look_ns) + 1;
    if (me->rank == 0)
        printf("note: idle for %ld looks, %u peers: %ld wakeups\n", looks, me->rank_count - 1, wakeups);
    rank_check(me, wakeups <= looks * (1 + 3 * (long)(me->rank_count - 1)));
    rank_check(me, atomic_load(&lost) == 0);
    rank_say(me, 'd');
    rank_hear(me);
    keel_group_close(group);
    return 0;
}

START_TEST(open_connections_cost_a_few_wakeups)
{
    struct ranks ranks;
    ranks_start(&ranks, RANKS, 0, NULL, idle_body);
    ranks_together(&ranks);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

/* All see that rank on a host of its own. Rank 0's calls to it go to a port where nobody answers, or nobody
 * is. */
static int misdirect(struct rank *me, uint32_t rank, bool answers_never)
{
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof where;
    struct keel_address_parts place = keel_place_of(&me->addresses[rank]);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    rank_check(me, bind(fd, (const struct sockaddr *)&where, sizeof where) == 0 &&
                       (!answers_never || listen(fd, 1) == 0) &&
                       getsockname(fd, (struct sockaddr *)&where, &bytes) == 0);
    memset(place.host, 0, sizeof place.host);
    if (me->rank == 0)
        memcpy(place.fabric, &where, sizeof where);
    memcpy(me->addresses[rank].data, &place, sizeof place);
    return fd;
}

/* Ranks that list different addresses refuse each other: these say that they list the same. */
static struct keel_group *open_misdirected(struct rank *me, _Atomic uint32_t *lost)
{
    struct keel_group *group = open_group(me, 1, lost);
    memset(group->members, 1, sizeof group->members);
    return group;
}

/* Rank 1's call reaches rank 0. */
static int unanswered_body(struct rank *me)
{
    _Atomic uint32_t lost;
    float part[16] = {0}, result[16];
    int deaf = misdirect(me, 1, true);
    struct keel_group *group = open_misdirected(me, &lost);
    rank_ok(me, sum_of(group, 1, part, result, 16, in_seconds(10)));
    rank_say(me, 'd');
    rank_hear(me);
    keel_group_close(group);
    close(deaf);
    return 0;
}

START_TEST(a_call_that_is_never_answered_gives_way_to_the_other_sides)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 0, NULL, unanswered_body);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

/* Rank 0 loses rank 2, which begins only then, and hears of it when it calls back; rank 1 talks to rank 2
 * alone.
 */
static int third_body(struct rank *me)
{
    _Atomic uint32_t lost_there;
    uint32_t lost;
    float part[16] = {0}, result[48];
    const void *parts[] = {part};
    enum keel_status status = KEEL_OK;
    int nowhere = misdirect(me, 2, false);
    struct keel_group *group = open_misdirected(me, &lost_there);
    if (me->rank == 2)
        rank_hear(me);
    for (uint64_t sequence = 1; status == KEEL_OK; sequence++) {
        const struct keel_collective gather = {.kind = KEEL_GATHER,
                                               .sequence = sequence,
                                               .algorithm = KEEL_ALGORITHM_FLAT,
                                               .root = 2,
                                               .count = 16,
                                               .parts = parts,
                                               .part_count = 1,
                                               .result = me->rank == 2 ? result : NULL};
        status = keel_group_run(group, &gather, in_seconds(10));
    }
    rank_check(me, status == KEEL_PEER_LOST);
    rank_check(me, keel_group_lost(group, &lost) && lost == (me->rank == 0 ? 2 : 0));
    rank_say(me, 'd');
    rank_hear(me);
    keel_group_close(group);
    close(nowhere);
    return 0;
}

START_TEST(two_that_lost_each_other_tell_the_third)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, 0, NULL, third_body);
    ranks_listen(&ranks, 0);
    ranks_tell(&ranks, 2, 'c');
    ranks_listen(&ranks, 1);
    ranks_listen(&ranks, 2);
    for (uint32_t rank = 0; rank < 3; rank++)
        ranks_tell(&ranks, rank, 'c');
    ranks_end(&ranks, -1);
}
END_TEST

START_TEST(a_silence_that_convicts_the_living_is_refused)
{
    struct keel_endpoint *endpoint;
    struct keel_group *group;
    struct keel_address address;
    const uint16_t shard_rank = 0;
    ck_ok(keel_endpoint_open(&(struct keel_endpoint_config){.fabric_only = true}, &endpoint));
    keel_endpoint_address(endpoint, &address);
    struct keel_group_config config = {.epoch = 1,
                                       .rank_count = 1,
                                       .addresses = &address,
                                       .shard_count = 1,
                                       .shard_rank = &shard_rank,
                                       .silence_ns = 39 * KEEL_NS_PER_MS};
    ck_assert_int_eq(keel_group_open(endpoint, &config, &group), KEEL_INVALID);
    keel_endpoint_close(endpoint);
}
END_TEST

/* ---- a crowd ---- */

/* All draw the same, but for how long each computes or sleeps. */
static void round_of(struct rank *me, struct keel_group *group, uint64_t number, float *part, float *result)
{
    static const uint64_t counts[] = {2, 1000, 30011, 300007};
    uint64_t all = number, own = number * RANKS + me->rank;
    rank_ok(me, sum_of(group, number, part, result, counts[test_random(&all) % 4], in_seconds(600)));
    bool idle = test_random(&all) % 50 == 0, sleeps = test_random(&own) % 2 == 0;
    uint64_t most_ms = idle || test_random(&own) % 50 == 0 ? 3000 : 100;
    uint64_t until = keel_deadline_after_ns(test_random(&own) % most_ms * KEEL_NS_PER_MS);
    if (sleeps)
        keel_sleep_until_ns(until);
    while (keel_now_ns() < until)
        part[0] *= 0.5F;
}

static int crowd_body(struct rank *me)
{
    _Atomic uint32_t lost;
    uint64_t number = 1, until = in_seconds(me->seed);
    float *part = vector(300007), *result = vector(300007);
    uint8_t more = 1;
    me->silence_ns = KEEL_NS_PER_S;
    for (uint64_t epoch = 1; more != 0; epoch++) {
        struct keel_group *group = open_group(me, epoch, &lost);
        for (uint32_t k = 0; k < ROUNDS_AN_EPOCH && more != 0; k++) {
            struct keel_operation *operation = NULL;
            round_of(me, group, number++, part, result);
            more = keel_now_ns() < until;
            rank_ok(me, broadcast_begin(group, number++, 0, &more, 1, &operation));
            rank_ok(me, keel_operation_wait(operation, in_seconds(600)));
        }
        rank_ok(me, barrier(group, number++, in_seconds(600)));
        rank_check(me, atomic_load(&lost) == 0);
        keel_group_close(group);
    }
    if (me->rank == 0)
        printf("note: %llu sums and words, nobody lost\n", (unsigned long long)number - 1);
    free(part);
    free(result);
    return 0;
}

/* Says how crowded it is: when it was last kept from running for longer than ever before. */
static void spin_for_ever(void)
{
    uint64_t longest = 200 * KEEL_NS_PER_MS, last = keel_now_ns();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        uint64_t now = keel_now_ns(), pause = now - last;
        last = now;
        if (pause <= longest)
            continue;
        longest = pause;
        printf("note: a busy loop had to wait %.0f ms for a processor\n", (double)pause / 1e6);
    }
}

/* Four busy loops a processor, beside the ranks. */
START_TEST(nobody_is_lost_where_processors_are_four_times_too_few)
{
    const char *asked = getenv("CROWD");
    pid_t loops[1024];
    cpu_set_t cpus;
    struct ranks ranks;
    if (asked == NULL) { /* one processor will do, and leaves others to other tests */
        CPU_ZERO(&cpus);
        CPU_SET((size_t)sched_getcpu(), &cpus);
        sched_setaffinity(0, sizeof cpus, &cpus);
    }
    ck_assert_int_eq(sched_getaffinity(0, sizeof cpus, &cpus), 0);
    uint32_t count = 4 * (uint32_t)CPU_COUNT(&cpus);
    ck_assert_uint_le(count, 1024);
    for (uint32_t k = 0; k < count; k++) {
        loops[k] = fork();
        if (loops[k] == 0)
            spin_for_ever();
    }
    ranks_start(&ranks, RANKS, asked != NULL ? strtoull(asked, NULL, 10) : 4, NULL, crowd_body);
    ranks_end(&ranks, -1);
    for (uint32_t k = 0; k < count; k++) {
        kill(loops[k], SIGKILL);
        waitpid(loops[k], NULL, 0);
    }
}
END_TEST

/* A rank that stands still for longer than any constant of the transport, while others have more for it than
 * connections take: only the callers' deadlines count, and they are not over. */
static int paused_body(struct rank *me)
{
    enum { FLOATS = 8 << 20 };
    const uint16_t own[2] = {0, 1};
    struct keel_group *group = rank_group(me, 1, 2, own);
    float *mine = calloc(FLOATS, sizeof *mine), *sum = calloc(FLOATS, sizeof *sum);
    const float *parts[] = {mine};
    struct keel_operation *operation;
    rank_ok(me, barrier(group, 1, in_seconds(20)));
    rank_say(me, 'b');
    for (uint64_t sequence = 2; sequence < 6; sequence++) {
        rank_ok(me, sum_begin(group, sequence, parts, 1, sum, FLOATS, &operation));
        rank_ok(me, keel_operation_wait(operation, in_seconds(60)));
    }
    keel_group_close(group);
    free(mine);
    free(sum);
    return 0;
}

START_TEST(a_pause_of_six_seconds_costs_nobody_his_place_while_deadlines_last)
{
    struct ranks ranks;
    setenv("KEEL_SHARED_MEMORY", "0", 1);
    if (_i == 1)
        setenv("KEEL_TEST_PROVIDER", "tcp;ofi_rxm", 1);
    ranks_start(&ranks, 2, 1, NULL, paused_body);
    ck_assert_int_eq(ranks_listen(&ranks, 0), 'b');
    ck_assert_int_eq(ranks_listen(&ranks, 1), 'b');
    kill(ranks.pids[1], SIGSTOP);
    keel_sleep_until_ns(keel_deadline_after_ns(6500 * KEEL_NS_PER_MS));
    kill(ranks.pids[1], SIGCONT);
    ranks_end(&ranks, -1);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, a_pause_of_six_seconds_costs_nobody_his_place_while_deadlines_last, 0, 2);
    const char *asked = getenv("CROWD");
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (asked != NULL) {
        tcase_set_timeout(tc, strtod(asked, NULL) + 300);
        tcase_add_test(tc, nobody_is_lost_where_processors_are_four_times_too_few);
        return;
    }
    tcase_add_test(tc, a_silence_that_convicts_the_living_is_refused);
    tcase_add_loop_test(tc, a_stopped_rank_is_lost_to_all_in_its_silence, 0, MOMENTS);
    tcase_add_loop_test(tc, a_rank_that_is_cut_off_is_lost_to_all_in_its_silence, 0, MOMENTS);
    tcase_add_loop_test(tc, a_rank_that_speaks_and_does_not_hear_is_named_at_the_deadline, 0, 4);
    tcase_add_loop_test(tc, a_rank_that_computes_or_comes_late_is_not_lost, 0, 2);
    tcase_add_test(tc, who_did_not_run_himself_blames_nobody);
    tcase_add_test(tc, open_connections_cost_a_few_wakeups);
    tcase_add_test(tc, a_call_that_is_never_answered_gives_way_to_the_other_sides);
    tcase_add_test(tc, two_that_lost_each_other_tell_the_third);
    tcase_add_test(tc, nobody_is_lost_where_processors_are_four_times_too_few);
}
KEEL_TEST_MAIN("transport silence", cases, 300)
