/* status_test.c - statuses, details, clocks, log lines: what every caller leans on. */
#include "harness.h"
#include <errno.h>
#include <fcntl.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/text.h>
#include <keel/thread.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

START_TEST(every_status_has_name_text_and_exit_code)
{
    for (int i = 0; i < KEEL_STATUS_COUNT; i++) {
        enum keel_status status = (enum keel_status)i;
        ck_assert_str_ne(keel_status_name(status), "UNKNOWN");
        ck_assert_str_ne(keel_status_text(status), "");
        ck_assert_int_ge(keel_status_exit_code(status), 0);
        ck_assert_int_le(keel_status_exit_code(status), 5);
        ck_assert_int_eq(keel_status_exit_code(status) == 0, status == KEEL_OK);
        ck_assert_int_eq(keel_status_next(status) == KEEL_NEXT_NOTHING, status == KEEL_OK);
    }
    ck_assert_str_eq(keel_status_name((enum keel_status)KEEL_STATUS_COUNT), "UNKNOWN");
    ck_assert_str_eq(keel_status_name((enum keel_status) - 1), "UNKNOWN");
    ck_assert_int_eq(keel_status_exit_code((enum keel_status)9999), 1);
}
END_TEST

START_TEST(a_failure_keeps_its_detail)
{
    ck_status(keel_fail(KEEL_CORRUPT, "%s: chunk %d", "a.keel", 7), KEEL_CORRUPT);
    ck_assert_str_eq(keel_detail(), "a.keel: chunk 7");
    ck_status(keel_fail(KEEL_IO, "again: %s", keel_detail()), KEEL_IO); /* the old detail inside the new */
    ck_assert_str_eq(keel_detail(), "again: a.keel: chunk 7");
    keel_detail_set(keel_detail() + strlen("again: "));
    ck_assert_str_eq(keel_detail(), "a.keel: chunk 7");
}
END_TEST

START_TEST(a_long_detail_is_cut_and_errno_is_not)
{
    char text[3 * KEEL_DETAIL_BYTES];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    ck_status(keel_fail(KEEL_IO, "%s", text), KEEL_IO);
    ck_assert_uint_eq(strlen(keel_detail()), KEEL_DETAIL_BYTES - 1);
    ck_status(keel_fail_errno(ENOSPC, "%s", text), KEEL_NO_SPACE);
    ck_assert_ptr_nonnull(strstr(keel_detail(), strerror(ENOSPC)));
    keel_detail_set(text);
    ck_assert_uint_eq(strlen(keel_detail()), KEEL_DETAIL_BYTES - 1);
}
END_TEST

START_TEST(errno_chooses_the_status)
{
    static const struct {
        int error_number;
        enum keel_status status;
    } rows[] = {{ENOENT, KEEL_NOT_FOUND}, {EACCES, KEEL_DENIED},    {EPERM, KEEL_DENIED},
                {EROFS, KEEL_DENIED},     {ENOSPC, KEEL_NO_SPACE},  {EDQUOT, KEEL_NO_SPACE},
                {EFBIG, KEEL_NO_SPACE},   {ENOMEM, KEEL_NO_MEMORY}, {EINTR, KEEL_INTERRUPTED},
                {EIO, KEEL_IO},           {EPIPE, KEEL_IO}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        ck_status(keel_fail_errno(rows[i].error_number, "it"), rows[i].status);
}
END_TEST

static void *fail_elsewhere(void *unused)
{
    (void)unused;
    (void)keel_fail(KEEL_IO, "of another thread");
    return NULL;
}

START_TEST(details_are_of_one_thread)
{
    struct keel_thread thread;
    (void)keel_fail(KEEL_IO, "of this thread");
    ck_ok(keel_thread_create(&thread, "other", fail_elsewhere, NULL));
    keel_thread_join(&thread);
    ck_assert_str_eq(keel_detail(), "of this thread");
}
END_TEST

START_TEST(a_false_assertion_aborts)
{
    int null_fd = open("/dev/null", O_WRONLY);
    dup2(null_fd, 2);         /* the message is not for the test's reader */
    signal(SIGABRT, SIG_DFL); /* a library that we are linked with may have put a handler */
    KEEL_ASSERT(1 + 1 == 3);
}
END_TEST

START_TEST(deadlines_saturate_and_never_go_back)
{
    uint64_t before_ns = keel_now_ns();
    ck_assert_uint_le(before_ns, keel_now_ns());
    ck_assert_uint_eq(keel_deadline_after_ns(UINT64_MAX), KEEL_NEVER);
    ck_assert_uint_eq(keel_deadline_after_ns(UINT64_MAX - 1), KEEL_NEVER);
    ck_assert_uint_eq(keel_remaining_ns(before_ns), 0);
    ck_assert_uint_gt(keel_remaining_ns(KEEL_NEVER), KEEL_NS_PER_S);
    ck_assert_int_eq(keel_remaining_poll_ms(KEEL_NEVER), -1);
    ck_assert_int_eq(keel_remaining_poll_ms(before_ns), 0);
    ck_assert_int_eq(keel_remaining_poll_ms(KEEL_NEVER - 1), INT_MAX);
    ck_assert_int_ge(keel_remaining_poll_ms(keel_deadline_after_ns(KEEL_NS_PER_S)), 1);
    uint64_t deadline_ns = keel_deadline_after_ns(2 * KEEL_NS_PER_MS);
    keel_sleep_until_ns(deadline_ns);
    ck_assert_uint_ge(keel_now_ns(), deadline_ns);
    ck_assert_uint_gt(keel_wall_ns(), UINT64_C(1600000000) * KEEL_NS_PER_S);
}
END_TEST

/* What keel_log writes, by a pipe in place of stderr. */
static void logged(enum keel_log_level level, const char *text, char *out, size_t out_bytes)
{
    int ends[2], saved = dup(2);
    ck_assert(pipe2(ends, O_NONBLOCK) == 0 && saved >= 0 && dup2(ends[1], 2) == 2);
    keel_log(level, "%s", text);
    dup2(saved, 2);
    ssize_t got = read(ends[0], out, out_bytes - 1);
    out[got > 0 ? got : 0] = '\0';
    close(saved);
    close(ends[0]);
    close(ends[1]);
}

START_TEST(a_log_line_names_who_speaks_and_ends_with_one_newline)
{
    static char text[5000], line[6000];
    keel_log_set_level(KEEL_LOG_INFO);
    keel_log_set_name("rank 3");
    logged(KEEL_LOG_INFO, "hello", line, sizeof line);
    ck_assert_ptr_nonnull(strstr(line, "rank 3"));
    ck_assert_ptr_nonnull(strstr(line, "info: hello\n"));
    logged(KEEL_LOG_DEBUG, "too quiet", line, sizeof line);
    ck_assert_str_eq(line, "");
    memset(text, 'y', sizeof text - 1);
    logged(KEEL_LOG_ERROR, text, line, sizeof line);
    ck_assert_uint_gt(strlen(line), 1000);
    ck_assert_ptr_eq(strchr(line, '\n'), line + strlen(line) - 1);
}
END_TEST

START_TEST(the_environment_sets_the_log_level)
{
    setenv("KEEL_LOG", "debug", 1);
    ck_assert_int_eq(keel_log_get_level(), KEEL_LOG_DEBUG);
}
END_TEST

START_TEST(an_unknown_log_level_means_warn)
{
    setenv("KEEL_LOG", "loud", 1);
    ck_assert_int_eq(keel_log_get_level(), KEEL_LOG_WARN);
}
END_TEST

/* Names of files are any bytes; JSON and terminals take UTF-8. */
START_TEST(a_detail_is_utf8_whatever_it_names)
{
    size_t wrong;
    (void)keel_fail(KEEL_NOT_FOUND, "%s is not there", "a\xff\xc3\xa4\xc3(\xed\xa0\x80\xe2\x82");
    ck_assert_str_eq(keel_detail(), "a?\xc3\xa4?(????? is not there");
    ck_assert(keel_utf8_valid(keel_detail(), strlen(keel_detail()), &wrong));
    char long_name[KEEL_DETAIL_BYTES + 1];
    for (size_t i = 0; i + 1 < sizeof long_name; i += 2) /* is cut within a sequence */
        memcpy(long_name + i, "\xc3\xa4", 2);
    long_name[sizeof long_name - 1] = 0;
    keel_detail_set(long_name);
    ck_assert(keel_utf8_valid(keel_detail(), strlen(keel_detail()), &wrong));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_detail_is_utf8_whatever_it_names);
    tcase_add_test(tc, every_status_has_name_text_and_exit_code);
    tcase_add_test(tc, a_failure_keeps_its_detail);
    tcase_add_test(tc, a_long_detail_is_cut_and_errno_is_not);
    tcase_add_test(tc, errno_chooses_the_status);
    tcase_add_test(tc, details_are_of_one_thread);
    tcase_add_test_raise_signal(tc, a_false_assertion_aborts, SIGABRT);
    tcase_add_test(tc, deadlines_saturate_and_never_go_back);
    tcase_add_test(tc, a_log_line_names_who_speaks_and_ends_with_one_newline);
    tcase_add_test(tc, the_environment_sets_the_log_level);
    tcase_add_test(tc, an_unknown_log_level_means_warn);
}

KEEL_TEST_MAIN("status", cases, 30)
