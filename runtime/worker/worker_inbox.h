/* worker_inbox.h - a thread that receives the agent's messages while the main thread computes.
 *
 * It keeps the newest view, revokes the group of the older epoch as soon as a newer view arrives, sends
 * heartbeats with the progress counter, and ends the process when the agent has ended. Locks: `mutex` guards
 * all fields below it. */
#ifndef KEEL_WORKER_INBOX_H
#define KEEL_WORKER_INBOX_H

#include "membership.h"
#include "worker_link.h"
#include <keel/thread.h>
#include <stdatomic.h>

struct keel_inbox {
    int fd;
    struct keel_times times;     /* of the run */
    void (*beat)(void *context); /* called with each beat, by the inbox's thread */
    void *context;
    atomic_uint_fast64_t progress; /* counts what moves in this worker */
    struct keel_thread thread;
    struct keel_mutex mutex;
    struct keel_cond changed;
    struct keel_view view;    /* newest */
    struct keel_group *group; /* in use by the main thread, of `group_epoch`; NULL for none */
    uint64_t group_epoch;
    bool stop;               /* the agent asked for an orderly end */
    uint64_t stop_revoke_ns; /* when a step that still hangs on others is given up after that */
    bool closing;            /* the main thread ends the inbox */
    bool ends_together;      /* ranks that are to stop do one step more, and take a snapshot in their view */
};

/* *inbox is zeroed: it has room for the largest view, and is not cleared here. `times` is copied. */
enum keel_status keel_inbox_start(struct keel_inbox *inbox, int fd, const struct keel_times *times,
                                  void (*beat)(void *context), void *context);
/* Ends the thread at once; nothing can be heard through the link any more, while words to the agent still go.
 */
void keel_inbox_end(struct keel_inbox *inbox);

/* Wait for a view newer than `epoch`, or for stop. TIMEOUT. */
enum keel_status keel_inbox_wait(struct keel_inbox *inbox, uint64_t epoch, uint64_t deadline_ns,
                                 struct keel_view *out, bool *stop);
bool keel_inbox_stopping(struct keel_inbox *inbox);
/* From now on a stop leaves three timeouts before the group is revoked, for what ranks do together then. */
void keel_inbox_end_together(struct keel_inbox *inbox);
/* Has a view newer than `epoch` arrived? */
bool keel_inbox_newer(struct keel_inbox *inbox, uint64_t epoch);

/* The group to be revoked by newer views; NULL to take it back before it is closed. If a newer view is
 * already here the group is revoked at once. */
void keel_inbox_guard(struct keel_inbox *inbox, struct keel_group *group, uint64_t epoch);

/* Send to the agent; a lost agent ends the process elsewhere, so nothing is returned. Any thread. Blocks
 * while an agent that is stopped leaves no room in the link: `silence` at most with beats, accusations and
 * notes, `join_wait`, as long as the launcher waits for an agent, with what nobody would say again (READY,
 * STEP, SHARD, DONE, FAILED). */
void keel_inbox_say(struct keel_inbox *inbox, const struct keel_link_message *message);
/* The same of any message for `silence` at most: for the thread of the inbox, which must hear new views, and
 * for a process that is about to end. */
void keel_inbox_say_briefly(struct keel_inbox *inbox, const struct keel_link_message *message);

#endif
