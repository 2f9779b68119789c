/* run_locks.h - files of a run's directory that say who lives, by locks that the kernel drops with the last
 * process that has them (flock): no process is taken for a live one after its end, nor the other way round.
 *
 *   run.lock      something of the run lives: the one who leads and every agent of this host share it
 *   leader.lock   who leads has it, alone
 *   agent-N.lock  the agent of node N has it
 *
 * Each holds a line: the process; in the latter two its incarnation and the run's number behind it. Blocks
 * for a moment; any thread. */
#ifndef KEEL_RUN_LOCKS_H
#define KEEL_RUN_LOCKS_H

#include <keel/process.h>

struct keel_lock_words {
    long pid;
    uint32_t incarnation;
    uint64_t run; /* 0: none yet */
};

enum keel_status keel_lock_agent_path(const char *directory, uint16_t node, char out[KEEL_PATH_BYTES]);

/* Take it, making the file: the descriptor is the caller's, and processes that inherit it share the lock.
 * BUSY: another has it. Who only looks has it for a moment too: so it is tried for 50 ms when `patient`. */
enum keel_status keel_lock_take(const char *path, bool patient, int *out_fd);

/* Of a lock that came with its descriptor: make it this process's own where locks are not shared so (NFS).
 * BUSY: a third one has it. */
enum keel_status keel_lock_claim(int fd, const char *path);

/* Who holds a lock looks now and then whether it is still there by its name: a file that somebody removed
 * says nothing to others. If so it is made anew, taken and written, on the same descriptor; processes that
 * shared the lock have no part in the new one. BUSY: another has taken it since. */
enum keel_status keel_lock_keep(int fd, const struct keel_lock_words *words, const char *path);

/* What it says, into an open file; and out of one that may not be there. False: no process; the rest is told
 * all the same, as far as it is there. */
enum keel_status keel_lock_write(int fd, const struct keel_lock_words *words, const char *path);
bool keel_lock_read(const char *path, struct keel_lock_words *out);

/* A sign of life of who has it and cannot be heard yet; and whether there was one, or another line, since
 * *last_ns, which becomes that of the newest. */
void keel_lock_touch(int fd);
bool keel_lock_touched(const char *path, uint64_t *last_ns);

/* The process that it names, which has it: NOT_FOUND when nobody has it; BUSY when it does not say yet who;
 * UNSUPPORTED when the one that it names has not, as far as it can be seen from here: it is on another host,
 * or another user's. */
enum keel_status keel_lock_find(const char *path, struct keel_process *out);

#endif
