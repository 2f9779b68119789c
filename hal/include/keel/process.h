/* process.h - child processes, watched by pidfd.
 *
 * A child that keel_process_spawn started is killed by the kernel when its parent thread dies
 * (PR_SET_PDEATHSIG = SIGKILL), so that no worker outlives its agent; spawn from a thread that lives as long
 * as the process. Linux 5.4 or newer. */
#ifndef KEEL_PROCESS_H
#define KEEL_PROCESS_H

#include <keel/api.h>
#include <keel/file.h>
#include <keel/status.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

KEEL_API_BEGIN

struct keel_process {
    pid_t pid;
    int pidfd; /* readable (poll) once the process has ended */
};

/* How it ended: an exit code, or the signal that killed it. */
struct keel_process_end {
    bool signaled;
    int code; /* exit code or signal number */
};
enum { KEEL_PROCESS_CODE_UNKNOWN = -1 }; /* of one that was no child of this process */

/* Start argv[0] (a path; argv ends with NULL). Descriptor keep_fds[i] of this process becomes
 * descriptor 3 + i of the child; all others from 3 up are closed. Standard input is /dev/null;
 * output is shared, or `log_fd` takes both when it is not negative. NOT_FOUND, DENIED, NO_MEMORY. */
enum keel_status keel_process_spawn(char *const argv[], const int *keep_fds, uint32_t keep_fd_count,
                                    int log_fd, struct keel_process *out);

/* The same, of a process that lives on when its parent dies, and that has to end by itself: its output is
 * shared. `held`: INT, TERM and HUP are blocked from its first moment, and wait until it takes them. */
enum keel_status keel_process_spawn_apart(char *const argv[], const int *keep_fds, uint32_t keep_fd_count,
                                          bool held, struct keel_process *out);

/* EXHAUSTED, with the limit's name: the main thread of this process may use less stack than that. */
enum keel_status keel_process_has_stack(uint64_t bytes);

/* One that somebody else started. NOT_FOUND when no process has that number. */
enum keel_status keel_process_find(pid_t pid, struct keel_process *out);

/* Signal through the pidfd: never hits a recycled pid. NOT_FOUND when it has ended. */
enum keel_status keel_process_signal(const struct keel_process *process, int signal_number);

/* Wait until it ends and reap it. TIMEOUT leaves it as it is. */
enum keel_status keel_process_wait(struct keel_process *process, uint64_t deadline_ns,
                                   struct keel_process_end *out);

/* Close the pidfd (after keel_process_wait). */
void keel_process_close(struct keel_process *process);

/* Kill it where it has not ended, reap it within 10 s, and close it. */
void keel_process_kill(struct keel_process *process);

/* Start argv[0] as keel_process_spawn does, and wait until it ends. TIMEOUT: it was killed at the deadline;
 * *out says how it ended then. */
enum keel_status keel_process_run(const char *const argv[], const int *keep_fds, uint32_t keep_fd_count,
                                  int log_fd, uint64_t deadline_ns, struct keel_process_end *out);
/* OK: exit code 0. IO: "`WHAT` ended with code 7", or with a signal. */
enum keel_status keel_process_succeeded(const struct keel_process_end *end, const char *what);

/* Any process, looked at from outside. */
enum keel_process_life { KEEL_PROCESS_RUNS, KEEL_PROCESS_STOPPED, KEEL_PROCESS_DEAD };
struct keel_process_look {
    enum keel_process_life life; /* stopped: by a signal or a debugger; dead: gone, or a zombie */
    uint64_t start_ticks;        /* since the machine started; with the pid it names the process for good */
};
/* A process that is not there is dead, with start_ticks 0. Does not block; any thread. */
struct keel_process_look keel_process_look_at(pid_t pid);

/* First thing in main(). Closed standard descriptors are opened on /dev/null, so that no file opened later
 * receives printed text. Signal handlers that libraries installed before main are removed, so that a crash
 * ends the process by its signal (PSM's handler turns it into exit code 1 and leaves a file in the working
 * directory). INT, TERM and HUP, where they are not ignored, end the process from now on with INTERRUPTED's
 * exit code and a line.
 */
void keel_process_begin(void);

/* INT and TERM end it even where it was started with them ignored, as a script's background jobs are with
 * INT: for commands that say that these end them. */
void keel_process_heed_interrupts(void);

/* While held, the first of these signals only sets a flag, so that work that must be undone can poll
 * keel_process_interrupted. A second signal more than a second later ends the process. The flag is never
 * cleared. Returns whether they were held before. One thread at a time. */
bool keel_process_hold_interrupts(bool hold);
bool keel_process_interrupted(void); /* any thread */
/* Whether the line of an interrupt that ends the process is followed by an error object on the standard
 * output, as keel_command_json_error prints one. Any thread. */
void keel_process_tell_interrupts_as_json(bool json);

/* The path of the running executable (/proc/self/exe), also where that file is no more. A process that is
 * spawned by it is of the same executable, whatever lies there since. */
enum keel_status keel_self_path(char *out, uint64_t out_bytes);
/* share/keel/NAME beside the bin/ that it lies in: where an installed Keel has its boards, jobs and data. */
enum keel_status keel_installed_path(char out[KEEL_PATH_BYTES], const char *name);

KEEL_API_END

#endif
