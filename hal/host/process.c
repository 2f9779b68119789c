/* process.c - fork and exec with inherited descriptors, death with the parent, pidfds.
 *
 * Between fork and exec only async-signal-safe calls are made: the parent may have threads. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char self_link[] = "/proc/self/exe";
#define REAP_LIMIT_NS (10 * KEEL_NS_PER_S)
enum { FIRST_KEPT_FD = 3, KEEP_FDS_MAX = 16, PARKED_FD = FIRST_KEPT_FD + KEEP_FDS_MAX };

/* Close first..last. close_range is of Linux 5.9; before that, one by one. */
static void close_between(unsigned first, unsigned last)
{
    if (syscall(SYS_close_range, first, last, 0) == 0)
        return;
    struct rlimit limit = {.rlim_cur = 1024};
    getrlimit(RLIMIT_NOFILE, &limit);
    for (unsigned fd = first; fd <= last && fd < limit.rlim_cur; fd++)
        close((int)fd);
}

/* Signals as a new program expects them. All are blocked until their handlers, which are the parent's,
 * are gone; those that ask to end stay so when `held`. */
static void reset_signals(bool held)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_DFL;
    for (int signal_number = 1; signal_number < NSIG; signal_number++)
        sigaction(signal_number, &action, NULL); /* fails for SIGKILL, SIGSTOP and the C library's own */
    sigset_t blocked;
    sigemptyset(&blocked);
    if (held) {
        sigaddset(&blocked, SIGINT);
        sigaddset(&blocked, SIGTERM);
        sigaddset(&blocked, SIGHUP);
    }
    sigprocmask(SIG_SETMASK, &blocked, NULL);
}

/* Standard input from nowhere; output to log_fd when there is one. */
static bool place_standard(int log_fd)
{
    if (log_fd >= 0 && (dup2(log_fd, 1) != 1 || dup2(log_fd, 2) != 2))
        return false;
    int null_fd = open("/dev/null", O_RDONLY);
    return null_fd >= 0 && dup2(null_fd, 0) == 0;
}

/* A copy of the descriptor above all targets. What lies beyond `ulimit -n` is refused by EINVAL. */
static int park(int fd, int command)
{
    int parked = fcntl(fd, command, PARKED_FD);
    if (parked < 0 && errno == EINVAL)
        errno = EMFILE;
    return parked;
}

/* Descriptors to 3 and up; the rest closed, but for `report`. */
static bool place_kept(const int *keep_fds, uint32_t count, int report)
{
    int parked[KEEP_FDS_MAX]; /* above all targets, so that no dup2 hits one still needed */
    for (uint32_t i = 0; i < count; i++) {
        parked[i] = park(keep_fds[i], F_DUPFD);
        if (parked[i] < 0)
            return false;
    }
    for (uint32_t i = 0; i < count; i++)
        if (dup2(parked[i], FIRST_KEPT_FD + (int)i) < 0)
            return false;
    close_between(FIRST_KEPT_FD + count, (unsigned)report - 1);
    close_between((unsigned)report + 1, ~0U);
    return true;
}

/* In the child, all signals blocked. Reports errno on `report_fd` when exec fails. */
static _Noreturn void become(const char *file, char *const argv[], const int *keep_fds, uint32_t count,
                             int log_fd, int report_fd, pid_t parent, bool held)
{
    if (parent != 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (parent != 0 && getppid() != parent) /* it died before the line above */
        _exit(127);
    reset_signals(held);
    int report = park(report_fd, F_DUPFD_CLOEXEC);
    if (report >= 0 && place_standard(log_fd) && place_kept(keep_fds, count, report))
        execv(file, argv);
    int error = errno;
    ssize_t ignored = write(report >= 0 ? report : report_fd, &error, sizeof error);
    (void)ignored;
    _exit(127);
}

static pid_t wait_retry(pid_t pid, int *code)
{
    pid_t got;
    do
        got = waitpid(pid, code, 0);
    while (got < 0 && errno == EINTR);
    return got;
}

/* 0 when exec worked (the pipe closed without a word), else the child's errno. */
static int read_report(int fd)
{
    int error = 0;
    ssize_t got;
    do
        got = read(fd, &error, sizeof error);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof error ? error : 0;
}

/* The descriptor by which the process is watched from now on. A child that cannot be watched is ended. */
static enum keel_status watch(pid_t pid, const char *name, struct keel_process *out)
{
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0) {
        int error = errno;
        kill(pid, SIGKILL);
        wait_retry(pid, NULL);
        return keel_fail_errno(error, "%s: pidfd_open (Linux 5.3 or newer is needed)", name);
    }
    *out = (struct keel_process){.pid = pid, .pidfd = pidfd};
    return KEEL_OK;
}

/* This very program, also where its file was replaced or removed since it began, as an upgrade does: a run's
 * processes are of one release. */
static const char *file_of(const char *path)
{
    char self[KEEL_PATH_BYTES];
    return keel_self_path(self, sizeof self) == KEEL_OK && strcmp(self, path) == 0 ? self_link : path;
}

/* `parent`: with whom it dies; 0: with nobody. */
static enum keel_status spawn(char *const argv[], const int *keep_fds, uint32_t keep_fd_count, int log_fd,
                              pid_t parent, bool held, struct keel_process *out)
{
    KEEL_ASSERT(keep_fd_count <= KEEP_FDS_MAX);
    const char *file = file_of(argv[0]);
    int report[2];
    if (pipe2(report, O_CLOEXEC) != 0)
        return keel_fail_errno(errno, "%s: cannot be started", argv[0]);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = fork();
    int fork_error = errno;
    if (pid == 0)
        become(file, argv, keep_fds, keep_fd_count, log_fd, report[1], parent, held);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(report[1]);
    int exec_error = pid > 0 ? read_report(report[0]) : 0;
    close(report[0]);
    if (pid < 0 && fork_error == EAGAIN) /* of the user, of the container (pids.max), or of the machine */
        return keel_fail(KEEL_EXHAUSTED,
                         "%s: cannot be started: no further process is allowed; raise the limit (ulimit -u)",
                         argv[0]);
    if (pid < 0)
        return keel_fail_errno(fork_error, "%s: cannot be started", argv[0]);
    if (exec_error != 0) {
        wait_retry(pid, NULL);
        return keel_fail_errno(exec_error, "%s: cannot be started", argv[0]);
    }
    return watch(pid, argv[0], out);
}

enum keel_status keel_process_spawn(char *const argv[], const int *keep_fds, uint32_t keep_fd_count,
                                    int log_fd, struct keel_process *out)
{
    return spawn(argv, keep_fds, keep_fd_count, log_fd, getpid(), false, out);
}

enum keel_status keel_process_spawn_apart(char *const argv[], const int *keep_fds, uint32_t keep_fd_count,
                                          bool held, struct keel_process *out)
{
    return spawn(argv, keep_fds, keep_fd_count, -1, 0, held, out);
}

enum keel_status keel_process_has_stack(uint64_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= bytes)
        return KEEL_OK;
    return keel_fail(KEEL_EXHAUSTED,
                     "%" PRIu64 " KiB of stack are allowed, and %" PRIu64
                     " are needed; raise the limit (ulimit -s)",
                     (uint64_t)limit.rlim_cur / 1024, bytes / 1024);
}

enum keel_status keel_process_find(pid_t pid, struct keel_process *out)
{
    const int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0)
        return keel_fail_errno(errno, "process %ld: cannot be watched", (long)pid);
    *out = (struct keel_process){.pid = pid, .pidfd = pidfd};
    return KEEL_OK;
}

enum keel_status keel_process_signal(const struct keel_process *process, int signal_number)
{
    if (syscall(SYS_pidfd_send_signal, process->pidfd, signal_number, NULL, 0) != 0)
        return keel_fail_errno(errno, "process %d: cannot be signalled", (int)process->pid);
    return KEEL_OK;
}

enum keel_status keel_process_wait(struct keel_process *process, uint64_t deadline_ns,
                                   struct keel_process_end *out)
{
    KEEL_ASSERT(process->pidfd >= 0);
    struct pollfd poller = {.fd = process->pidfd, .events = POLLIN};
    int ready;
    do
        ready = poll(&poller, 1, keel_remaining_poll_ms(deadline_ns));
    while ((ready < 0 && errno == EINTR) || (ready == 0 && keel_remaining_ns(deadline_ns) > 0));
    if (ready == 0)
        return keel_fail(KEEL_TIMEOUT, "process %d has not ended", (int)process->pid);
    if (ready < 0)
        return keel_fail_errno(errno, "process %d: cannot be watched", (int)process->pid);
    int code;
    const pid_t waited = wait_retry(process->pid, &code);
    if (waited < 0 && errno == ECHILD) {
        *out = (struct keel_process_end){.code = KEEL_PROCESS_CODE_UNKNOWN};
        return KEEL_OK;
    }
    if (waited != process->pid)
        return keel_fail_errno(errno, "process %d: cannot be waited for", (int)process->pid);
    out->signaled = WIFSIGNALED(code);
    out->code = out->signaled ? WTERMSIG(code) : WEXITSTATUS(code);
    return KEEL_OK;
}

void keel_process_close(struct keel_process *process)
{
    if (process->pidfd >= 0)
        close(process->pidfd);
    process->pidfd = -1;
}

void keel_process_kill(struct keel_process *process)
{
    struct keel_process_end end;
    (void)keel_process_signal(process, SIGKILL); /* fails where it has ended, which is as well */
    (void)keel_process_wait(process, keel_deadline_after_ns(REAP_LIMIT_NS), &end);
    keel_process_close(process);
}

enum keel_status keel_process_run(const char *const argv[], const int *keep_fds, uint32_t keep_fd_count,
                                  int log_fd, uint64_t deadline_ns, struct keel_process_end *out)
{
    struct keel_process process = {.pidfd = -1};
    KEEL_TRY(keel_process_spawn((char *const *)argv, keep_fds, keep_fd_count, log_fd, &process));
    enum keel_status status = keel_process_wait(&process, deadline_ns, out);
    if (status == KEEL_TIMEOUT && keel_process_signal(&process, SIGKILL) == KEEL_OK) {
        *out = (struct keel_process_end){.signaled = true, .code = SIGKILL}; /* where nobody can end it */
        (void)keel_process_wait(&process, keel_deadline_after_ns(REAP_LIMIT_NS), out);
        status = keel_fail(KEEL_TIMEOUT, "%s did not end in time; it was killed", argv[0]);
    }
    keel_process_close(&process);
    return status;
}

enum keel_status keel_process_succeeded(const struct keel_process_end *end, const char *what)
{
    if (!end->signaled && end->code == 0)
        return KEEL_OK;
    return keel_fail(KEEL_IO, "`%s` ended with %s %d", what, end->signaled ? "signal" : "code", end->code);
}

enum keel_status keel_self_path(char *out, uint64_t out_bytes)
{
    static const char gone[] = " (deleted)"; /* what proc(5) adds */
    ssize_t length = readlink(self_link, out, keel_size(out_bytes - 1));
    if (length < 0)
        return keel_fail_errno(errno, "%s: cannot be read", self_link);
    if ((uint64_t)length == out_bytes - 1) /* perhaps cut short */
        return keel_fail(KEEL_LIMIT, "%s: path of %llu bytes or more", self_link,
                         (unsigned long long)(out_bytes - 1));
    out[length] = '\0';
    char *end = out + length - (ssize_t)(sizeof gone - 1);
    if (end > out && strcmp(end, gone) == 0)
        *end = '\0';
    return KEEL_OK;
}

enum keel_status keel_installed_path(char out[KEEL_PATH_BYTES], const char *name)
{
    char path[KEEL_PATH_BYTES], shared[KEEL_PATH_BYTES];
    KEEL_TRY(keel_self_path(path, sizeof path));
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            return keel_fail(KEEL_NOT_FOUND, "%s: is in no bin/", path);
        *slash = '\0';
    }
    KEEL_TRY(keel_path_join(shared, path, "share/keel"));
    return keel_path_join(out, shared, name);
}

/* The name in /proc/PID/stat may hold anything: fields are counted from behind its last parenthesis, after
 * which the state is the first and the start time the twentieth. */
struct keel_process_look keel_process_look_at(pid_t pid)
{
    char path[64], text[1024];
    struct keel_process_look look = {.life = KEEL_PROCESS_DEAD};
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (length <= 0)
        return look;
    text[length] = '\0';
    const char *at = strrchr(text, ')');
    if (at == NULL || at[1] != ' ')
        return look;
    char state = at[2];
    for (int field = 0; field < 20 && at != NULL; field++)
        at = strchr(at + 1, ' ');
    if (at == NULL)
        return look;
    look.start_ticks = strtoull(at + 1, NULL, 10);
    if (state == 'T' || state == 't')
        look.life = KEEL_PROCESS_STOPPED;
    else if (state != 'Z' && state != 'X')
        look.life = KEEL_PROCESS_RUNS;
    return look;
}

/* ---- this process ---- */

/* timeout(1) and service managers signal a process and then its group: that is one request. */
enum { SAME_REQUEST_NS = KEEL_NS_PER_S };
static atomic_bool interrupts_held, interrupts_as_json;
static atomic_uint_least64_t interrupted_ns; /* when the first one was noted; 0: none was */

/* In a signal handler: only calls that are safe there. */
static void on_interrupt(int signal_number)
{
    static const char text[] = "keel: interrupted\n";
    static const char object[] =
        "{\"error\":{\"status\":\"INTERRUPTED\",\"detail\":\"ended by a signal\"},\"exit\":5}\n";
    (void)signal_number;
    uint64_t now_ns = keel_now_ns(), none = 0;
    if (atomic_load(&interrupts_held) &&
        (atomic_compare_exchange_strong(&interrupted_ns, &none, now_ns) || now_ns - none < SAME_REQUEST_NS))
        return;
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    if (atomic_load(&interrupts_as_json))
        (void)!write(STDOUT_FILENO, object, sizeof object - 1);
    _exit(keel_status_exit_code(KEEL_INTERRUPTED));
}

bool keel_process_hold_interrupts(bool hold)
{
    return atomic_exchange(&interrupts_held, hold);
}

void keel_process_tell_interrupts_as_json(bool json)
{
    atomic_store(&interrupts_as_json, json);
}

bool keel_process_interrupted(void)
{
    return atomic_load(&interrupted_ns) != 0;
}

static bool is_ignored(int signal_number)
{
    struct sigaction action;
    return sigaction(signal_number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

static void take_interrupt(int signal_number)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    action.sa_flags = SA_RESTART;
    sigaction(signal_number, &action, NULL);
}

static void take_interrupts(void)
{
    static const int interrupts[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof interrupts / sizeof interrupts[0]; i++)
        if (!is_ignored(interrupts[i]))
            take_interrupt(interrupts[i]);
}

void keel_process_heed_interrupts(void)
{
    take_interrupt(SIGINT);
    take_interrupt(SIGTERM);
}

void keel_process_begin(void)
{
    static const int taken[] = {
        SIGABRT,
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        SIGSEGV,
        SIGBUS,
        SIGILL
#endif
    };
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        if (!is_ignored(taken[i]))
            signal(taken[i], SIG_DFL);
    take_interrupts();
    int fd = 0;
    while (fd >= 0 && fd <= STDERR_FILENO)
        fd = open("/dev/null", O_RDWR);
    if (fd > STDERR_FILENO)
        close(fd);
}
