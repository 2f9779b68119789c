/* stop_guard.h - hears a signal where the loop that is to take it stands still.
 *
 * Who leads writes lines and the register's state in its loop: while the run's directory hangs nobody reads
 * what a person asks for. A thread sees that a signal waits, and that the loop does not turn, and ends what
 * there is to end. Private to node/. */
#ifndef KEEL_STOP_GUARD_H
#define KEEL_STOP_GUARD_H

#include <keel/thread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct keel_stop_guard {
    int signal_fd;         /* readable while a signal waits; borrowed */
    uint64_t still_ns;     /* a loop that did not turn for so long stands still */
    _Atomic uint64_t turn; /* keel_now_ns of the loop's last turn, which it says */
    /* On the thread: it stands still, and a signal waits or was taken. Ends the process. */
    void (*give_up)(void *context, uint64_t still_ns);
    void *context;
    /* Private. */
    struct keel_thread thread;
    bool runs;
    int wake_fd;
    _Atomic bool taken, over;
};

/* Without a thread signals wait for the loop. */
void keel_stop_guard_begin(struct keel_stop_guard *guard);
/* The loop took a signal, and is to end: it may stand still after that too. On its thread, also while the
 * guard does not run. */
void keel_stop_guard_take(struct keel_stop_guard *guard);
void keel_stop_guard_end(struct keel_stop_guard *guard);

#endif
