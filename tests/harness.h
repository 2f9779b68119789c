/* harness.h - what every test program shares: a main around one Check suite. */
#ifndef KEEL_TESTS_HARNESS_H
#define KEEL_TESTS_HARNESS_H

#include <check.h>
#include <keel/status.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>

enum { HARNESS_STACK_BYTES = 64 << 20 };

/* Check writes to a pipe where it is after each assertion that holds: a system call for every element that is
 * compared, a third of the suite's processor time. Here each place of an assertion writes when it is passed
 * first. */
#undef ck_assert_msg
#define ck_assert_msg(expr, ...)                                                                             \
    __extension__({                                                                                          \
        static _Thread_local bool ck_marked_;                                                                \
        if (!(expr))                                                                                         \
            _ck_assert_failed(__FILE__, __LINE__, "Assertion '" #expr "' failed", ##__VA_ARGS__);            \
        if (!ck_marked_)                                                                                     \
            _mark_point(__FILE__, __LINE__);                                                                 \
        ck_marked_ = true;                                                                                   \
    })

/* A status that must be OK; prints the detail when it is not. */
#define ck_ok(call)                                                                                          \
    do {                                                                                                     \
        enum keel_status ck_status_ = (call);                                                                \
        ck_assert_msg(ck_status_ == KEEL_OK, "%s: %s: %s", #call, keel_status_name(ck_status_),              \
                      keel_detail());                                                                        \
    } while (0)
/* A status that must be `wanted`. */
#define ck_status(call, wanted)                                                                              \
    do {                                                                                                     \
        enum keel_status ck_status_ = (call);                                                                \
        ck_assert_msg(ck_status_ == (wanted), "%s: %s, wanted %s: %s", #call, keel_status_name(ck_status_),  \
                      keel_status_name(wanted), keel_detail());                                              \
    } while (0)

/* `make test-long` looks at everything, other targets at one of `thinner` of what is alike. */
static inline uint32_t thinned(uint32_t thinner)
{
    return getenv("KEEL_TEST_LONG") != NULL ? 1 : thinner;
}

/* A limit of a test's own, as many times longer as run.sh says that limits are on a machine that is busy. */
static inline uint64_t patience_ns(uint64_t limit_ns)
{
    const char *times = getenv("CK_TIMEOUT_MULTIPLIER");
    return limit_ns * (times != NULL && atoi(times) > 1 ? (uint64_t)atoi(times) : 1);
}

/* Views with room for all members, which tests have on their stacks. */
static inline void harness_take_stack(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= HARNESS_STACK_BYTES)
        return;
    limit.rlim_cur = limit.rlim_max < HARNESS_STACK_BYTES ? limit.rlim_max : HARNESS_STACK_BYTES;
    (void)setrlimit(RLIMIT_STACK, &limit);
}

/* static void cases(TCase *tc) adds the tests; the limit is for one test. */
#define KEEL_TEST_MAIN(suite_name, cases, limit_s)                                                           \
    int main(void)                                                                                           \
    {                                                                                                        \
        harness_take_stack();                                                                                \
        Suite *suite = suite_create(suite_name);                                                             \
        TCase *tcase = tcase_create(suite_name);                                                             \
        tcase_set_timeout(tcase, limit_s);                                                                   \
        cases(tcase);                                                                                        \
        suite_add_tcase(suite, tcase);                                                                       \
        SRunner *runner = srunner_create(suite);                                                             \
        srunner_run_all(runner, CK_NORMAL);                                                                  \
        int failed = srunner_ntests_failed(runner);                                                          \
        srunner_free(runner);                                                                                \
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;                                                    \
    }

#endif
