/* process.c - fork and exec with inherited descriptors, death with the parent, pidfds.
 *
 * Between fork and exec only async-signal-safe calls are made: the parent may have threads. */
#include <errno.h>
#include <fcntl.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FIRST_KEPT_FD = 3, KEEP_FDS_MAX = 16, PARKED_FD = 200 };

/* In the child: descriptors to 3.., the rest closed; then exec. Reports errno on `report_fd`. */
static _Noreturn void become(char *const argv[], const int *keep_fds, uint32_t count, int log_fd,
                             int report_fd, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int null_fd = open("/dev/null", O_RDONLY);
    bool ok = getppid() == parent && null_fd >= 0 && dup2(null_fd, 0) == 0;
    if (log_fd >= 0)
        ok = ok && dup2(log_fd, 1) == 1 && dup2(log_fd, 2) == 2;
    /* Park all kept descriptors above the targets first, so that no dup2 hits one still needed. */
    int parked[KEEP_FDS_MAX];
    for (uint32_t i = 0; i < count; i++) {
        parked[i] = fcntl(keep_fds[i], F_DUPFD, PARKED_FD);
        ok = ok && parked[i] >= 0;
    }
    int parked_report = fcntl(report_fd, F_DUPFD_CLOEXEC, PARKED_FD);
    for (uint32_t i = 0; i < count; i++)
        ok = ok && dup2(parked[i], FIRST_KEPT_FD + (int)i) >= 0;
    if (ok) {
        unsigned first = FIRST_KEPT_FD + count;
        syscall(SYS_close_range, first, (unsigned)parked_report - 1, 0);
        syscall(SYS_close_range, (unsigned)parked_report + 1, ~0U, 0);
        execv(argv[0], argv);
    }
    int error = errno;
    ssize_t ignored = write(parked_report, &error, sizeof error);
    (void)ignored;
    _exit(127);
}

enum keel_status keel_process_spawn(char *const argv[], const int *keep_fds, uint32_t keep_fd_count,
                                    int log_fd, struct keel_process *out)
{
    KEEL_ASSERT(keep_fd_count <= KEEP_FDS_MAX);
    int report[2];
    if (pipe2(report, O_CLOEXEC) != 0)
        return keel_fail_errno(errno, "%s: cannot be started", argv[0]);
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        become(argv, keep_fds, keep_fd_count, log_fd, report[1], parent);
    int fork_error = errno;
    close(report[1]);
    int exec_error = 0;
    ssize_t got = pid > 0 ? read(report[0], &exec_error, sizeof exec_error) : 0;
    close(report[0]);
    if (pid < 0)
        return keel_fail_errno(fork_error, "%s: cannot be started", argv[0]);
    if (got > 0) {
        waitpid(pid, NULL, 0);
        return keel_fail_errno(exec_error, "%s: cannot be started", argv[0]);
    }
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0) {
        int error = errno;
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        return keel_fail_errno(error, "%s: pidfd_open (Linux 5.3 or newer is needed)", argv[0]);
    }
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
    struct pollfd poller = {.fd = process->pidfd, .events = POLLIN};
    int ready;
    do
        ready = poll(&poller, 1, keel_remaining_poll_ms(deadline_ns));
    while (ready < 0 && errno == EINTR);
    if (ready == 0)
        return keel_fail(KEEL_TIMEOUT, "process %d has not ended", (int)process->pid);
    int code;
    if (waitpid(process->pid, &code, 0) != process->pid)
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

enum keel_status keel_self_path(char *out, uint64_t out_bytes)
{
    ssize_t length = readlink("/proc/self/exe", out, out_bytes - 1);
    if (length < 0)
        return keel_fail_errno(errno, "/proc/self/exe: cannot be read");
    out[length] = '\0';
    return KEEL_OK;
}
