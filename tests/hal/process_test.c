/* process_test.c - children: what they inherit, how they end, and that they never outlive us.
 *
 * The program is its own child: with arguments it plays the part that they name. */
#include "harness.h"
#include <errno.h>
#include <fcntl.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT_NS (60 * KEEL_NS_PER_S)
static char self[KEEL_PATH_BYTES];

static void spawn(const char *part, const char *word, const int *fds, uint32_t fd_count, int log_fd,
                  struct keel_process *out)
{
    char parts[2][64];
    snprintf(parts[0], sizeof parts[0], "%s", part);
    snprintf(parts[1], sizeof parts[1], "%s", word);
    char *argv[] = {self, parts[0], parts[1], NULL};
    ck_ok(keel_process_spawn(argv, fds, fd_count, log_fd, out));
}

static struct keel_process_end end_of(struct keel_process *process)
{
    struct keel_process_end end = {.code = -1};
    ck_ok(keel_process_wait(process, keel_deadline_after_ns(LIMIT_NS), &end));
    keel_process_close(process);
    return end;
}

/* ---- the parts that children play ---- */

/* Exit code: how many descriptors from 3 up are open. */
static int count_fds(void)
{
    int count = 0;
    for (int fd = 3; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* Say the descriptor's number on each descriptor that was kept. */
static int write_fds(int count)
{
    for (int fd = 3; fd < 3 + count; fd++) {
        char digit = (char)('0' + fd);
        if (write(fd, &digit, 1) != 1)
            return 1;
    }
    return 0;
}

/* A child that makes a grandchild, tells its pid on descriptor 3, and sleeps. */
static int be_a_parent(void)
{
    char *argv[] = {self, (char[]){"sleep"}, (char[]){"60"}, NULL};
    struct keel_process grandchild;
    if (keel_process_spawn(argv, NULL, 0, -1, &grandchild) != KEEL_OK)
        return 1;
    if (write(3, &grandchild.pid, sizeof grandchild.pid) != (ssize_t)sizeof grandchild.pid)
        return 1;
    keel_sleep_until_ns(keel_deadline_after_ns(LIMIT_NS));
    return 0;
}

/* A child that starts another apart, tells its pid on descriptor 3, and ends. */
static int be_gone(void)
{
    char *argv[] = {self, (char[]){"sleep"}, (char[]){"60"}, NULL};
    struct keel_process other;
    if (keel_process_spawn_apart(argv, NULL, 0, false, &other) != KEEL_OK)
        return 1;
    return write(3, &other.pid, sizeof other.pid) == (ssize_t)sizeof other.pid ? 0 : 1;
}

/* Exit code 0 when signals are as a new program expects them. */
static int check_signals(void)
{
    sigset_t mask;
    struct sigaction action;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    if (sigismember(&mask, SIGTERM) || sigismember(&mask, SIGUSR1))
        return 1;
    return sigaction(SIGPIPE, NULL, &action) == 0 && action.sa_handler == SIG_DFL ? 0 : 2;
}

/* Work that is interrupted and has something to undo: 0 when it was told. */
static int be_interrupted(void)
{
    keel_process_begin();
    keel_process_hold_interrupts(true);
    if (write(3, "r", 1) != 1)
        return 1;
    const uint64_t limit_ns = keel_deadline_after_ns(LIMIT_NS); /* the same request is one for a second */
    while (!keel_process_interrupted() && keel_remaining_ns(limit_ns) > 0)
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
    if (write(3, "i", 1) != 1 || raise(SIGINT) != 0) /* the same request once more */
        return 1;
    return keel_process_interrupted() ? 0 : 2;
}

/* Something that has nothing to undo, or that does not come to its end. */
static int be_ended(bool hold)
{
    keel_process_begin();
    keel_process_hold_interrupts(hold);
    if (write(3, "r", 1) != 1)
        return 1;
    keel_sleep_until_ns(keel_deadline_after_ns(LIMIT_NS));
    return 0;
}

static int be_told_to_ignore(void)
{
    signal(SIGHUP, SIG_IGN);
    keel_process_begin();
    return raise(SIGHUP) == 0 && !keel_process_interrupted() ? 0 : 1;
}

static int play(const char *part, const char *word)
{
    if (strcmp(part, "exit") == 0)
        return atoi(word);
    if (strcmp(part, "sleep") == 0)
        keel_sleep_until_ns(keel_deadline_after_ns((uint64_t)atoi(word) * KEEL_NS_PER_S));
    if (strcmp(part, "count") == 0)
        return count_fds();
    if (strcmp(part, "write") == 0)
        return write_fds(atoi(word));
    if (strcmp(part, "parent") == 0)
        return be_a_parent();
    if (strcmp(part, "gone") == 0)
        return be_gone();
    if (strcmp(part, "signals") == 0)
        return check_signals();
    if (strcmp(part, "interrupted") == 0)
        return be_interrupted();
    if (strcmp(part, "ended") == 0)
        return be_ended(strcmp(word, "held") == 0);
    if (strcmp(part, "ignore") == 0)
        return be_told_to_ignore();
    if (strcmp(part, "print") == 0)
        return printf("%s\n", word) < 0 || fprintf(stderr, "%s\n", word) < 0;
    if (strcmp(part, "stdin") == 0)
        return getchar() == EOF ? 0 : 1;
    return 0;
}

/* ---- the claims ---- */

START_TEST(an_exit_code_arrives)
{
    struct keel_process process;
    spawn("exit", "42", NULL, 0, -1, &process);
    struct keel_process_end end = end_of(&process);
    ck_assert(!end.signaled);
    ck_assert_int_eq(end.code, 42);
    ck_assert_int_eq(process.pidfd, -1);
}
END_TEST

START_TEST(a_wait_keeps_its_deadline_and_a_signal_ends_the_child)
{
    struct keel_process process;
    struct keel_process_end end;
    spawn("sleep", "60", NULL, 0, -1, &process);
    uint64_t deadline_ns = keel_deadline_after_ns(20 * KEEL_NS_PER_MS);
    ck_status(keel_process_wait(&process, deadline_ns, &end), KEEL_TIMEOUT);
    ck_assert_uint_ge(keel_now_ns(), deadline_ns);
    ck_status(keel_process_wait(&process, 0, &end), KEEL_TIMEOUT);
    struct pollfd poller = {.fd = process.pidfd, .events = POLLIN};
    ck_assert_int_eq(poll(&poller, 1, 0), 0);
    ck_ok(keel_process_signal(&process, SIGKILL));
    ck_assert_int_eq(poll(&poller, 1, 60000), 1); /* readable once it has ended */
    ck_ok(keel_process_wait(&process, keel_deadline_after_ns(LIMIT_NS), &end));
    ck_assert(end.signaled);
    ck_assert_int_eq(end.code, SIGKILL);
    ck_status(keel_process_signal(&process, SIGTERM), KEEL_NOT_FOUND);
    keel_process_close(&process);
}
END_TEST

START_TEST(a_run_to_the_end_gives_the_code_and_the_end_of_what_was_said)
{
    const char *const argv[] = {"/bin/sh", "-c", "echo a longer line; echo last >&2; exit 7", NULL};
    struct keel_process_end end = {.code = -1};
    char said[8];
    int log = memfd_create("log", MFD_CLOEXEC);
    ck_assert_int_ge(log, 0);
    ck_ok(keel_process_run(argv, NULL, 0, log, keel_deadline_after_ns(LIMIT_NS), &end));
    keel_read_tail(log, said, sizeof said);
    ck_assert_str_eq(said, "e\nlast\n");
    ck_status(keel_process_succeeded(&end, "it"), KEEL_IO);
    ck_assert_str_eq(keel_detail(), "`it` ended with code 7");
    end.code = 0;
    ck_ok(keel_process_succeeded(&end, "it"));
    close(log);
    keel_read_tail(log, said, sizeof said);
    ck_assert_str_eq(said, "");
}
END_TEST

START_TEST(a_run_beyond_its_deadline_is_killed)
{
    const char *const argv[] = {"/bin/sh", "-c", "exec sleep 1000", NULL};
    struct keel_process_end end = {.code = -1};
    ck_status(keel_process_run(argv, NULL, 0, -1, keel_deadline_after_ns(20 * KEEL_NS_PER_MS), &end),
              KEEL_TIMEOUT);
    ck_assert(end.signaled && end.code == SIGKILL);
}
END_TEST

START_TEST(kept_descriptors_become_3_and_up_in_order)
{
    int ends[3][2], kept[3];
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(pipe2(ends[i], O_CLOEXEC), 0);
        kept[2 - i] = ends[i][1]; /* backwards, so that targets and sources cross */
    }
    struct keel_process process;
    spawn("write", "3", kept, 3, -1, &process);
    ck_assert_int_eq(end_of(&process).code, 0);
    for (int i = 0; i < 3; i++) {
        char digit = 0;
        ck_assert_int_eq(read(ends[i][0], &digit, 1), 1);
        ck_assert_int_eq(digit, '0' + 3 + (2 - i));
        close(ends[i][0]);
        close(ends[i][1]);
    }
}
END_TEST

START_TEST(other_descriptors_are_closed)
{
    int leaky = open("/dev/null", O_RDONLY); /* not close-on-exec */
    int high = fcntl(leaky, F_DUPFD, 700);
    ck_assert(leaky >= 0 && high >= 700);
    struct keel_process process;
    spawn("count", "", NULL, 0, -1, &process);
    ck_assert_int_eq(end_of(&process).code, 0);
    spawn("count", "", &high, 1, -1, &process);
    ck_assert_int_eq(end_of(&process).code, 1);
    close(high);
    close(leaky);
}
END_TEST

START_TEST(output_goes_to_the_log_and_input_is_empty)
{
    char path[] = "/tmp/keel-process-XXXXXX", *text = NULL;
    size_t bytes = 0;
    int log_fd = mkstemp(path);
    ck_assert_int_ge(log_fd, 0);
    struct keel_process process;
    spawn("print", "spoken", NULL, 0, log_fd, &process);
    ck_assert_int_eq(end_of(&process).code, 0);
    ck_ok(keel_file_read(path, 4096, &text, &bytes));
    ck_assert_str_eq(text, "spoken\nspoken\n"); /* stdout and stderr */
    keel_free(text);
    close(log_fd);
    unlink(path);
    spawn("stdin", "", NULL, 0, -1, &process);
    ck_assert_int_eq(end_of(&process).code, 0);
}
END_TEST

START_TEST(a_child_starts_with_its_own_signals)
{
    sigset_t some;
    sigemptyset(&some);
    sigaddset(&some, SIGTERM);
    sigaddset(&some, SIGUSR1);
    sigprocmask(SIG_BLOCK, &some, NULL);
    signal(SIGPIPE, SIG_IGN);
    struct keel_process process;
    spawn("signals", "", NULL, 0, -1, &process);
    ck_assert_int_eq(end_of(&process).code, 0);
    sigset_t now;
    sigprocmask(SIG_BLOCK, NULL, &now); /* and ours are as they were */
    ck_assert_int_eq(sigismember(&now, SIGTERM), 1);
    ck_assert_int_eq(sigismember(&now, SIGINT), 0);
    /* Started apart and held, those that ask to end wait for it; no others do. */
    char *argv[] = {self, (char[]){"signals"}, (char[]){""}, NULL};
    ck_assert_int_eq(keel_process_spawn_apart(argv, NULL, 0, true, &process), KEEL_OK);
    ck_assert_int_eq(end_of(&process).code, 1);
}
END_TEST

START_TEST(what_cannot_be_executed_is_an_error_here)
{
    struct keel_process process = {.pid = -1, .pidfd = -1};
    char *missing[] = {(char[]){"/no/such/program"}, NULL};
    ck_status(keel_process_spawn(missing, NULL, 0, -1, &process), KEEL_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "/no/such/program"));
    char *not_executable[] = {(char[]){"/etc/passwd"}, NULL};
    ck_status(keel_process_spawn(not_executable, NULL, 0, -1, &process), KEEL_DENIED);
    int closed_fd = 900;
    char *good[] = {self, (char[]){"exit"}, (char[]){"0"}, NULL};
    ck_status(keel_process_spawn(good, &closed_fd, 1, -1, &process), KEEL_IO);
    ck_assert_int_eq(process.pid, -1);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1); /* no child is left unreaped */
    ck_assert_int_eq(errno, ECHILD);
}
END_TEST

START_TEST(a_child_dies_with_its_parent)
{
    int ends[2];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    struct keel_process parent;
    spawn("parent", "", &ends[1], 1, -1, &parent);
    pid_t grandchild = 0;
    ck_assert_int_eq(read(ends[0], &grandchild, sizeof grandchild), sizeof grandchild);
    int pidfd = (int)syscall(SYS_pidfd_open, grandchild, 0);
    ck_assert_int_ge(pidfd, 0);
    struct pollfd poller = {.fd = pidfd, .events = POLLIN};
    ck_assert_int_eq(poll(&poller, 1, 0), 0); /* it lives */
    ck_ok(keel_process_signal(&parent, SIGKILL));
    ck_assert_int_eq(poll(&poller, 1, 60000), 1);
    ck_assert(end_of(&parent).signaled);
    close(pidfd);
    close(ends[0]);
    close(ends[1]);
}
END_TEST

/* A child that says on a pipe how far it is. */
static void spawn_with_pipe(const char *part, const char *word, struct keel_process *out, int *out_fd)
{
    int ends[2];
    char byte;
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    spawn(part, word, &ends[1], 1, -1, out);
    close(ends[1]);
    ck_assert_int_eq(read(ends[0], &byte, 1), 1);
    *out_fd = ends[0];
}

START_TEST(one_that_is_started_apart_lives_on_and_is_watched_by_others)
{
    int ends[2];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    struct keel_process parent, other;
    struct keel_process_end end;
    pid_t pid = 0;
    spawn("gone", "", &ends[1], 1, -1, &parent);
    ck_assert_int_eq(end_of(&parent).code, 0);
    ck_assert_int_eq(read(ends[0], &pid, sizeof pid), sizeof pid);
    ck_ok(keel_process_find(pid, &other));
    ck_status(keel_process_wait(&other, keel_now_ns(), &end), KEEL_TIMEOUT); /* it lives */
    ck_ok(keel_process_signal(&other, SIGKILL));
    ck_assert_int_eq(end_of(&other).code, KEEL_PROCESS_CODE_UNKNOWN); /* no child of ours */
    close(ends[0]);
    close(ends[1]);
}
END_TEST

START_TEST(an_interrupt_ends_with_the_code_for_it)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        struct keel_process child;
        int fd;
        spawn_with_pipe("ended", "", &child, &fd);
        ck_ok(keel_process_signal(&child, signals[i]));
        struct keel_process_end end = end_of(&child);
        ck_assert(!end.signaled);
        ck_assert_int_eq(end.code, keel_status_exit_code(KEEL_INTERRUPTED));
        close(fd);
    }
}
END_TEST

START_TEST(held_the_first_interrupt_is_noted_and_a_later_one_ends)
{
    struct keel_process child;
    int fd;
    spawn_with_pipe("interrupted", "", &child, &fd);
    ck_ok(keel_process_signal(&child, SIGTERM));
    struct keel_process_end end = end_of(&child);
    ck_assert(!end.signaled);
    ck_assert_int_eq(end.code, 0);
    close(fd);

    spawn_with_pipe("ended", "held", &child, &fd);
    ck_ok(keel_process_signal(&child, SIGTERM));
    const uint64_t apart_ns = 1200 * KEEL_NS_PER_MS;
    ck_status(keel_process_wait(&child, keel_deadline_after_ns(apart_ns), &end), KEEL_TIMEOUT);
    enum keel_status status = KEEL_TIMEOUT; /* on a busy machine two may reach it at once, as one */
    for (int i = 0; i < 10 && status == KEEL_TIMEOUT; i++) {
        ck_ok(keel_process_signal(&child, SIGTERM));
        status = keel_process_wait(&child, keel_deadline_after_ns(apart_ns), &end);
    }
    ck_assert_int_eq(status, KEEL_OK);
    keel_process_close(&child);
    ck_assert(!end.signaled);
    ck_assert_int_eq(end.code, keel_status_exit_code(KEEL_INTERRUPTED));
    close(fd);
}
END_TEST

START_TEST(what_is_ignored_stays_so)
{
    struct keel_process child;
    spawn("ignore", "", NULL, 0, -1, &child);
    struct keel_process_end end = end_of(&child);
    ck_assert(!end.signaled);
    ck_assert_int_eq(end.code, 0);
}
END_TEST

START_TEST(the_own_path_is_executable_and_is_not_cut)
{
    char small[4];
    ck_assert_int_eq(access(self, X_OK), 0);
    ck_status(keel_self_path(small, sizeof small), KEEL_LIMIT);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, an_exit_code_arrives);
    tcase_add_test(tc, a_wait_keeps_its_deadline_and_a_signal_ends_the_child);
    tcase_add_test(tc, a_run_to_the_end_gives_the_code_and_the_end_of_what_was_said);
    tcase_add_test(tc, a_run_beyond_its_deadline_is_killed);
    tcase_add_test(tc, kept_descriptors_become_3_and_up_in_order);
    tcase_add_test(tc, other_descriptors_are_closed);
    tcase_add_test(tc, output_goes_to_the_log_and_input_is_empty);
    tcase_add_test(tc, a_child_starts_with_its_own_signals);
    tcase_add_test(tc, what_cannot_be_executed_is_an_error_here);
    tcase_add_test(tc, a_child_dies_with_its_parent);
    tcase_add_test(tc, one_that_is_started_apart_lives_on_and_is_watched_by_others);
    tcase_add_test(tc, an_interrupt_ends_with_the_code_for_it);
    tcase_add_test(tc, held_the_first_interrupt_is_noted_and_a_later_one_ends);
    tcase_add_test(tc, what_is_ignored_stays_so);
    tcase_add_test(tc, the_own_path_is_executable_and_is_not_cut);
}

int main(int argc, char **argv)
{
    if (keel_self_path(self, sizeof self) != KEEL_OK)
        return EXIT_FAILURE;
    if (argc > 1)
        return play(argv[1], argc > 2 ? argv[2] : "");
    Suite *suite = suite_create("process");
    TCase *tcase = tcase_create("process");
    tcase_set_timeout(tcase, 60);
    cases(tcase);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
