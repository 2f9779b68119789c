/* thread_test.c - threads, and waits that end at their deadline. */
#include "harness.h"
#include <keel/clock.h>
#include <keel/thread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct shared {
    struct keel_mutex mutex; /* guards what follows */
    struct keel_cond cond;
    uint64_t count;
    bool go;
};

static struct shared shared;

static void set_up(void)
{
    memset(&shared, 0, sizeof shared);
    keel_mutex_init(&shared.mutex);
    keel_cond_init(&shared.cond);
}

static void tear_down(void)
{
    keel_cond_fini(&shared.cond);
    keel_mutex_fini(&shared.mutex);
}

static void *count_up(void *unused)
{
    (void)unused;
    for (int i = 0; i < 20000; i++) {
        keel_mutex_lock(&shared.mutex);
        shared.count++;
        keel_mutex_unlock(&shared.mutex);
    }
    return NULL;
}

START_TEST(a_mutex_lets_one_in)
{
    struct keel_thread threads[4];
    for (int i = 0; i < 4; i++)
        ck_ok(keel_thread_create(&threads[i], "count", count_up, NULL));
    for (int i = 0; i < 4; i++)
        keel_thread_join(&threads[i]);
    ck_assert_uint_eq(shared.count, 80000);
}
END_TEST

START_TEST(a_wait_ends_at_its_deadline)
{
    uint64_t deadline_ns = keel_deadline_after_ns(20 * KEEL_NS_PER_MS);
    keel_mutex_lock(&shared.mutex);
    while (keel_cond_wait(&shared.cond, &shared.mutex, deadline_ns)) {
    }
    ck_assert_uint_ge(keel_now_ns(), deadline_ns);
    ck_assert(!keel_cond_wait(&shared.cond, &shared.mutex, 0)); /* a deadline long past */
    keel_mutex_unlock(&shared.mutex);
}
END_TEST

static void *wait_for_go(void *deadline_ns)
{
    keel_mutex_lock(&shared.mutex);
    while (!shared.go && keel_cond_wait(&shared.cond, &shared.mutex, *(uint64_t *)deadline_ns)) {
    }
    shared.count += shared.go;
    keel_mutex_unlock(&shared.mutex);
    return NULL;
}

START_TEST(a_broadcast_wakes_all)
{
    struct keel_thread threads[3];
    uint64_t deadlines[3] = {KEEL_NEVER, keel_deadline_after_ns(60 * KEEL_NS_PER_S), KEEL_NEVER};
    for (int i = 0; i < 3; i++)
        ck_ok(keel_thread_create(&threads[i], "wait", wait_for_go, &deadlines[i]));
    keel_mutex_lock(&shared.mutex);
    shared.go = true;
    keel_cond_broadcast(&shared.cond);
    keel_mutex_unlock(&shared.mutex);
    for (int i = 0; i < 3; i++)
        keel_thread_join(&threads[i]);
    ck_assert_uint_eq(shared.count, 3);
}
END_TEST

static void *look_around(void *name)
{
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    shared.count = (uint64_t)sigismember(&mask, SIGTERM) + (uint64_t)sigismember(&mask, SIGINT);
    pthread_getname_np(pthread_self(), name, 16);
    return NULL;
}

START_TEST(a_thread_blocks_signals_and_the_creator_does_not)
{
    struct keel_thread thread;
    char name[16];
    sigset_t mask;
    ck_ok(keel_thread_create(&thread, "look", look_around, name));
    keel_thread_join(&thread);
    ck_assert_uint_eq(shared.count, 2);
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    ck_assert_int_eq(sigismember(&mask, SIGTERM), 0);
}
END_TEST

static void *sleep_until_go(void *unused)
{
    uint64_t deadline_ns = keel_deadline_after_ns(60 * KEEL_NS_PER_S);
    (void)unused;
    return wait_for_go(&deadline_ns);
}

START_TEST(a_thread_bears_its_name_cut_to_fit)
{
    struct keel_thread thread;
    char name[16];
    ck_ok(keel_thread_create(&thread, "a-name-that-is-too-long", sleep_until_go, NULL));
    ck_assert_int_eq(pthread_getname_np(thread.native, name, sizeof name), 0);
    ck_assert_str_eq(name, "a-name-that-is-");
    keel_mutex_lock(&shared.mutex);
    shared.go = true;
    keel_cond_signal(&shared.cond);
    keel_mutex_unlock(&shared.mutex);
    keel_thread_join(&thread);
}
END_TEST

START_TEST(the_cpu_count_follows_the_affinity)
{
    cpu_set_t all, one;
    ck_assert_uint_ge(keel_cpu_count(), 1);
    ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    ck_assert_uint_eq(keel_cpu_count(), 1);
}
END_TEST

static void *go_to_background(void *out)
{
    keel_thread_to_background();
    *(int *)out = sched_getscheduler(0);
    return NULL;
}

START_TEST(a_thread_goes_to_the_background_alone)
{
    struct keel_thread thread;
    int policy = -1;
    ck_ok(keel_thread_create(&thread, "background", go_to_background, &policy));
    keel_thread_join(&thread);
    ck_assert_int_eq(policy, SCHED_IDLE);
    ck_assert_int_eq(sched_getscheduler(0), SCHED_OTHER);
}
END_TEST

/* As the system says it: for ordinary threads since Linux 6.12, zero before. */
static uint64_t slice_ns(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } now = {0};
    ck_assert_int_eq(syscall(SYS_sched_getattr, 0, &now, sizeof now, 0), 0);
    return now.runtime;
}

static void *take_short_slices(void *out)
{
    keel_thread_slice(200000);
    *(uint64_t *)out = slice_ns();
    return NULL;
}

START_TEST(a_thread_asks_for_short_slices_alone)
{
    struct keel_thread thread;
    uint64_t before = slice_ns(), asked = 0;
    ck_ok(keel_thread_create(&thread, "slice", take_short_slices, &asked));
    keel_thread_join(&thread);
    ck_assert_uint_eq(asked, before != 0 ? 200000 : 0);
    ck_assert_uint_eq(slice_ns(), before);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, a_mutex_lets_one_in);
    tcase_add_test(tc, a_wait_ends_at_its_deadline);
    tcase_add_test(tc, a_broadcast_wakes_all);
    tcase_add_test(tc, a_thread_blocks_signals_and_the_creator_does_not);
    tcase_add_test(tc, a_thread_bears_its_name_cut_to_fit);
    tcase_add_test(tc, the_cpu_count_follows_the_affinity);
    tcase_add_test(tc, a_thread_goes_to_the_background_alone);
    tcase_add_test(tc, a_thread_asks_for_short_slices_alone);
}

KEEL_TEST_MAIN("thread", cases, 60)
