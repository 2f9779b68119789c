/* slow_watch.h - says so when a disk or its server does not answer as a run begins.
 *
 * Until the first step nobody counts beats, and a call into a file system that hangs returns when that does.
 * So a thread waits beside it, and after KEEL_SLOW_S says once which directory it is and what to do; and when
 * it answers after all. A process that holds its signals back for an orderly end, and has begun nothing yet,
 * may have the thread end it at once by one of them. */
#ifndef KEEL_SLOW_WATCH_H
#define KEEL_SLOW_WATCH_H

#include <keel/thread.h>

enum { KEEL_SLOW_S = 10 };

struct keel_slow_watch {
    const char *path; /* borrowed, as the next */
    const char *move; /* what a person can do; NULL: bring it back, or end the command and give another */
    /* On the thread; NULL: it goes to the log, as a warning. */
    void (*tell)(void *context, const char *text);
    void *context;
    bool by_signal; /* a signal that waits ends the process, INTERRUPTED: nothing is begun that must end */
    /* Private. */
    struct keel_thread thread;
    struct keel_mutex lock; /* guards the next two */
    struct keel_cond moved;
    bool over, runs;
    uint64_t begin_ns;
};

/* From here to the end one call into `path` may take long. Without a thread nothing is said. */
void keel_slow_begin(struct keel_slow_watch *watch);
void keel_slow_end(struct keel_slow_watch *watch);

#endif
