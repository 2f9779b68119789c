/* wakeup_test.c - who sleeps is woken: the owner of progress for what other threads ask, and the endpoint's
 * own thread for what a caller leaves under way. A wake-up that is lost shows as a wait until the next look
 * for signs of life, up to 50 ms; most of some rounds are looked at, so that a busy machine fails nobody.
 *
 * It runs alone: half of the rounds take as long where many want the processors, who sleep or not. */
#include "group.h"
#include "ranks.h"

#include <keel/memory.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { ROUNDS = 24, BYTES = 2 << 20 };
#define SOON_NS (8 * KEEL_NS_PER_MS)

static void sleep_ms(uint64_t ms)
{
    keel_sleep_until_ns(keel_deadline_after_ns(ms * KEEL_NS_PER_MS));
}

/* ---- a bell for whoever owns progress ---- */

static bool thread_sleeps(struct keel_endpoint *endpoint)
{
    keel_mutex_lock(&endpoint->lock);
    bool sleeps = endpoint->thread_polling;
    keel_mutex_unlock(&endpoint->lock);
    return sleeps;
}

/* A caller owns progress and is about to sleep when another thread asks for something. */
static int two_that_hear_a_bell(struct rank *me)
{
    struct keel_endpoint *endpoint = me->endpoint;
    struct pollfd bell = {.fd = endpoint->wake_fd, .events = POLLIN};
    keel_mutex_lock(&endpoint->lock);
    while (!endpoint->thread_polling || !keel_endpoint_drive(endpoint)) {
        keel_mutex_unlock(&endpoint->lock);
        sleep_ms(1);
        keel_mutex_lock(&endpoint->lock);
    }
    keel_endpoint_wake(endpoint);
    keel_mutex_unlock(&endpoint->lock);
    while (thread_sleeps(endpoint))
        sleep_ms(1);
    sleep_ms(10);
    rank_check(me, poll(&bell, 1, 0) == 1); /* the endpoint's own thread has left it to the owner */
    keel_endpoint_sleep(endpoint, KEEL_NEVER);
    keel_mutex_lock(&endpoint->lock);
    keel_endpoint_undrive(endpoint, false);
    keel_mutex_unlock(&endpoint->lock);
    return 0;
}

START_TEST(a_bell_for_who_owns_progress_is_not_taken_by_another_thread)
{
    struct ranks ranks;
    ranks_start(&ranks, 1, 1, NULL, two_that_hear_a_bell);
    ranks_end(&ranks, -1);
}
END_TEST

/* ---- what is left under way ---- */

/* Look for messages as callers do that have other work, while the endpoint's own thread sleeps, and leave a
 * long operation behind. */
static void leave_one(struct rank *me, struct keel_group *group, uint64_t round, uint8_t *data)
{
    struct keel_collective what = {.kind = KEEL_BARRIER, .sequence = 2 * round + 2};
    struct keel_operation *operation;
    enum keel_status status;
    rank_ok(me, keel_group_begin(group, &what, &operation));
    sleep_ms(5);
    while (!keel_operation_test(operation, &status))
        keel_sleep_until_ns(keel_deadline_after_ns(50 * KEEL_NS_PER_US));
    rank_ok(me, status);
    rank_ok(me, broadcast_begin(group, 2 * round + 1, 0, data, BYTES, &operation));
    sleep_ms(80);
    rank_ok(me, keel_operation_wait(operation, in_seconds(60)));
}

/* How long it takes for who waits for it. */
static uint64_t take_one(struct rank *me, struct keel_group *group, uint64_t round, uint8_t *data)
{
    struct keel_operation *operation;
    sleep_ms(10);
    rank_ok(me, barrier(group, 2 * round + 2, in_seconds(60)));
    uint64_t began_ns = keel_now_ns();
    rank_ok(me, broadcast_begin(group, 2 * round + 1, 0, data, BYTES, &operation));
    rank_ok(me, keel_operation_wait(operation, in_seconds(60)));
    uint64_t took_ns = keel_now_ns() - began_ns;
    sleep_ms(80);
    return took_ns;
}

static int a_rank_that_computes(struct rank *me)
{
    const uint16_t own[] = {0, 1};
    struct keel_group *group = rank_group(me, 1, me->rank_count, own);
    uint32_t soon = 0;
    uint8_t *data;
    rank_ok(me, keel_transport_alloc(BYTES, &data));
    for (uint64_t round = 0; round < ROUNDS; round++)
        if (me->rank == 0)
            leave_one(me, group, round, data);
        else
            soon += take_one(me, group, round, data) < SOON_NS;
    rank_check(me, me->rank == 0 || soon > ROUNDS / 2);
    keel_group_close(group);
    keel_transport_free(data);
    return 0;
}

START_TEST(a_long_operation_goes_on_while_its_caller_computes)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 1, NULL, a_rank_that_computes);
    ranks_end(&ranks, -1);
}
END_TEST

/* ---- what one hears and the others are to know ---- */

enum { EPOCHS = 16, STRANGER = 2 };

/* Rank 1 finds out, by calling it, that the last rank is in another group; rank 0, which only listens to rank
 * 1, learns it from there. When it does, or did not. */
static uint64_t learn(struct keel_group *group, uint64_t until_ns)
{
    uint32_t lost;
    while (!keel_group_lost(group, &lost) && keel_now_ns() < until_ns)
        keel_sleep_until_ns(keel_deadline_after_ns(100 * KEEL_NS_PER_US));
    return keel_now_ns();
}

static int one_that_is_told(struct rank *me)
{
    const uint16_t own[] = {0, 1, 2}, others[] = {0, 2, 1};
    uint64_t *found_ns = (uint64_t *)(uintptr_t)me->seed; /* shared by all: when rank 1 has found out */
    uint32_t soon = 0;
    for (uint64_t epoch = 1; epoch <= EPOCHS; epoch++) {
        struct keel_group *group = rank_group(me, epoch, 3, me->rank == STRANGER ? others : own);
        struct keel_operation *operation;
        uint8_t word = 0;
        rank_say(me, 'o');
        rank_hear(me);
        if (me->rank == 1) {
            rank_ok(me, send_begin(group, 1, 0, &word, 1, &operation));
            rank_ok(me, keel_operation_wait(operation, in_seconds(60)));
            rank_ok(me, send_begin(group, 2, STRANGER, &word, 1, &operation));
            rank_check(me, keel_operation_wait(operation, in_seconds(60)) == KEEL_MISMATCH);
            found_ns[epoch] = keel_now_ns();
        } else if (me->rank == 0) {
            rank_ok(me, receive_begin(group, 1, 1, &word, 1, &operation));
            rank_ok(me, keel_operation_wait(operation, in_seconds(60)));
            uint64_t learned_ns = learn(group, in_seconds(60));
            rank_say(me, 'l');
            rank_hear(me);
            soon += learned_ns < found_ns[epoch] + SOON_NS;
        }
        if (me->rank != 0) {
            rank_say(me, 'l');
            rank_hear(me);
        }
        keel_group_close(group);
    }
    rank_check(me, me->rank != 0 || soon > EPOCHS / 2);
    return 0;
}

START_TEST(what_a_refusal_tells_is_passed_on_at_once)
{
    struct ranks ranks;
    void *shared = mmap(NULL, KEEL_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(shared, MAP_FAILED);
    ranks_start(&ranks, 3, (uintptr_t)shared, NULL, one_that_is_told);
    for (uint32_t turn = 0; turn < 2 * EPOCHS; turn++)
        ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

/* ---- what wakes in vain ---- */

#define WITHOUT_MS  2000
#define PROCESSOR_S 0.1

static double processor_s(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

/* A call waits that this process has no descriptor for. */
static void have_no_descriptor(struct rank *me)
{
    struct rlimit before;
    int next = dup(STDIN_FILENO);
    rank_check(me, next >= 0 && close(next) == 0 && getrlimit(RLIMIT_NOFILE, &before) == 0);
    struct rlimit none = {.rlim_cur = (rlim_t)next, .rlim_max = before.rlim_max};
    rank_check(me, setrlimit(RLIMIT_NOFILE, &none) == 0);
    rank_say(me, 'n');
    double before_s = processor_s();
    sleep_ms(WITHOUT_MS);
    double took_s = processor_s() - before_s;
    rank_check(me, setrlimit(RLIMIT_NOFILE, &before) == 0);
    rank_check(me, took_s < PROCESSOR_S);
}

static int one_without_descriptors(struct rank *me)
{
    const uint16_t own[] = {0, 1};
    struct keel_group *group = rank_group(me, 1, me->rank_count, own);
    if (me->rank == 1)
        have_no_descriptor(me);
    else
        rank_hear(me);
    rank_ok(me, barrier(group, 1, in_seconds(60)));
    keel_group_close(group);
    return 0;
}

START_TEST(who_cannot_take_a_caller_in_does_not_spin)
{
    struct ranks ranks;
    if (_i == 1)
        setenv("KEEL_SHARED_MEMORY", "0", 1);
    ranks_start(&ranks, 2, 1, NULL, one_without_descriptors);
    ranks_listen(&ranks, 1);
    ranks_tell(&ranks, 0, 'g');
    ranks_end(&ranks, -1);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_bell_for_who_owns_progress_is_not_taken_by_another_thread);
    tcase_add_test(tc, a_long_operation_goes_on_while_its_caller_computes);
    tcase_add_test(tc, what_a_refusal_tells_is_passed_on_at_once);
    tcase_add_loop_test(tc, who_cannot_take_a_caller_in_does_not_spin, 0, 2);
}
KEEL_TEST_MAIN("transport wakeup", cases, 60)
