/* stop_guard_test.c - a loop that was told to end, and stands still, is given up; whoever takes the signal.
 */
#include "harness.h"
#include "stop_guard.h"

#include <keel/clock.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int signal_fd, given_up_fd;
static struct keel_stop_guard guard;

/* Of a run it ends the process. */
static void give_up(void *context, uint64_t still_ns)
{
    ck_assert(context == &guard && still_ns >= guard.still_ns);
    ck_assert_int_eq(eventfd_write(given_up_fd, 1), 0);
}

static void begin(void)
{
    signal_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    given_up_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ck_assert(signal_fd >= 0 && given_up_fd >= 0);
    guard = (struct keel_stop_guard){
        .signal_fd = signal_fd, .still_ns = KEEL_NS_PER_S / 10, .give_up = give_up, .context = &guard};
    keel_stop_guard_begin(&guard);
}

static void end(void)
{
    keel_stop_guard_end(&guard);
    close(signal_fd);
    close(given_up_fd);
}

static bool is_given_up(int timeout_ms)
{
    struct pollfd ready = {.fd = given_up_fd, .events = POLLIN};
    return poll(&ready, 1, timeout_ms) > 0;
}

START_TEST(a_signal_that_waits_ends_a_loop_that_stands_still)
{
    begin();
    ck_assert_int_eq(eventfd_write(signal_fd, 1), 0);
    ck_assert(is_given_up(-1));
    end();
}
END_TEST

/* The thread sleeps, and never sees the signal wait: the loop took it, and stands still after that. */
START_TEST(a_signal_that_was_taken_ends_a_loop_that_stands_still_after_it)
{
    begin();
    ck_assert(!is_given_up(50));
    keel_stop_guard_take(&guard);
    ck_assert(is_given_up(-1));
    end();
}
END_TEST

START_TEST(a_loop_that_turns_is_left_alone_and_so_is_one_that_nobody_told_to_end)
{
    begin();
    ck_assert(!is_given_up(300));              /* it does not turn, but no signal came */
    atomic_store(&guard.turn, UINT64_MAX / 2); /* later than any machine's load; and before it is taken */
    keel_stop_guard_take(&guard);
    ck_assert(!is_given_up(2000));
    end();
}
END_TEST

START_TEST(a_guard_that_does_not_run_hears_of_signals_too)
{
    struct keel_stop_guard none = {.signal_fd = -1};
    keel_stop_guard_take(&none);
    keel_stop_guard_end(&none);
    ck_assert(atomic_load(&none.taken));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_signal_that_waits_ends_a_loop_that_stands_still);
    tcase_add_test(tc, a_signal_that_was_taken_ends_a_loop_that_stands_still_after_it);
    tcase_add_test(tc, a_loop_that_turns_is_left_alone_and_so_is_one_that_nobody_told_to_end);
    tcase_add_test(tc, a_guard_that_does_not_run_hears_of_signals_too);
}

KEEL_TEST_MAIN("stop_guard", cases, 120)
