/* status.h - how every call in Keel says that it failed, and what to do next.
 *
 * Owns the table of statuses and the thread's detail string. Operating errors
 * (a disk, a peer, a device, a user's file) are returned as a status; programmer
 * errors assert, in release builds too. The function that decides an error
 * describes it once with keel_fail(); callers pass the status on unchanged. */
#ifndef KEEL_STATUS_H
#define KEEL_STATUS_H

#include <keel/api.h>

KEEL_API_BEGIN

/* What a caller should do next. */
enum keel_next {
    KEEL_NEXT_NOTHING, /* it worked */
    KEEL_NEXT_RETRY,   /* the same call may work later */
    KEEL_NEXT_RESTART, /* rebuild the object (group, device, worker), then go on */
    KEEL_NEXT_FIX,     /* a person must change input, configuration or machine */
    KEEL_NEXT_FATAL    /* a bug or a lost invariant: stop and report */
};

/* X(name, value, next, exit code, text). Values are stable: they go over the wire and into files.
 * Exit codes: 0 done, 1 failed, 2 wrong use, 3 could not run here, 4 data is damaged,
 * 5 interrupted but resumable. */
#define KEEL_STATUS_TABLE(X)                                                                                 \
    X(OK, 0, NOTHING, 0, "done")                                                                             \
    X(INVALID, 1, FIX, 2, "an argument or a setting is wrong")                                               \
    X(NOT_FOUND, 2, FIX, 3, "something that was named is not there")                                         \
    X(UNSUPPORTED, 3, FIX, 3, "this machine or build cannot do it")                                          \
    X(DENIED, 4, FIX, 3, "permission denied")                                                                \
    X(NO_MEMORY, 5, FIX, 3, "not enough memory")                                                             \
    X(NO_SPACE, 6, FIX, 1, "no space left on the disk")                                                      \
    X(IO, 7, RETRY, 1, "input or output failed")                                                             \
    X(CORRUPT, 8, FIX, 4, "data is damaged")                                                                 \
    X(VERSION, 9, FIX, 4, "data is of a version that this program cannot read")                              \
    X(TIMEOUT, 10, RETRY, 1, "the deadline passed")                                                          \
    X(PEER_LOST, 11, RESTART, 5, "a peer is gone")                                                           \
    X(REVOKED, 12, RESTART, 5, "the epoch of this operation is over")                                        \
    X(AUTH, 13, FIX, 3, "the key that proves who belongs is missing or wrong")                               \
    X(BUSY, 14, RETRY, 1, "in use by somebody else")                                                         \
    X(INTERRUPTED, 15, RETRY, 5, "interrupted; the same command goes on from here")                          \
    X(DEVICE_LOST, 16, RESTART, 1, "the device failed")                                                      \
    X(LIMIT, 17, FIX, 2, "a stated limit would be passed")                                                   \
    X(MISMATCH, 18, FIX, 4, "two things that must agree do not")                                             \
    X(INTERNAL, 19, FATAL, 1, "an invariant of Keel does not hold; please report it")                        \
    X(DIVERGED, 20, FIX, 1, "the training diverges")                                                         \
    X(FORGED, 21, FIX, 4, "data was altered by somebody without the key")                                    \
    X(EXHAUSTED, 22, FIX, 3, "a limit of this machine or of its user is used up")

enum keel_status {
#define KEEL_STATUS_ENUM(name, value, next, code, text) KEEL_##name = (value),
    KEEL_STATUS_TABLE(KEEL_STATUS_ENUM)
#undef KEEL_STATUS_ENUM
        KEEL_STATUS_COUNT
};

/* Name ("PEER_LOST"), text and advice of a status; any value is accepted. Static strings. Any thread. */
const char *keel_status_name(enum keel_status status);
const char *keel_status_text(enum keel_status status);
enum keel_next keel_status_next(enum keel_status status);

/* The process exit code for a status (README.md, "Make, and exit codes"). */
int keel_status_exit_code(enum keel_status status);

/* Decide an error: stores "what and where, and the next move" as this thread's detail string
 * (truncated to KEEL_DETAIL_BYTES) and returns `status`, so that one can write
 *     return keel_fail(KEEL_NOT_FOUND, "%s: no such data file; set data.path", path);
 * Never allocates, never fails. `status` must not be KEEL_OK. */
enum keel_status keel_fail(enum keel_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Like keel_fail, with the text of errno appended and the status chosen from it
 * (ENOENT/ENOTDIR/ESRCH/ELOOP -> NOT_FOUND, EACCES/EPERM/EROFS -> DENIED, ENOSPC/EDQUOT/EFBIG -> NO_SPACE,
 * ENOMEM -> NO_MEMORY, EINTR -> INTERRUPTED, ENAMETOOLONG -> LIMIT, else IO). */
enum keel_status keel_fail_errno(int error_number, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* This thread's newest detail, in UTF-8 whatever it names; "" when none. Valid until the thread's next
 * keel_fail. */
const char *keel_detail(void);

/* Replace this thread's detail with that of another thread or process (copied). */
void keel_detail_set(const char *new_detail);

enum { KEEL_DETAIL_BYTES = 512 };

/* A programmer's error: prints file, line and expression, then aborts; never compiled out. */
#define KEEL_ASSERT(expression) ((expression) ? (void)0 : keel_assert_failed(#expression, __FILE__, __LINE__))
KEEL_NORETURN void keel_assert_failed(const char *expression, const char *file, int line);

/* Return early with the status of a call that failed. */
#define KEEL_TRY(call)                                                                                       \
    do {                                                                                                     \
        enum keel_status keel_try_status_ = (call);                                                          \
        if (keel_try_status_ != KEEL_OK)                                                                     \
            return keel_try_status_;                                                                         \
    } while (0)

KEEL_API_END

#endif
