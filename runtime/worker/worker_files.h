/* worker_files.h - files of snapshots from a node's directory to another's, over the group of the view.
 *
 * All ranks are given the same list and know from it who sends what to whom, as with moves of state
 * (worker_moves.c). A file is verified where it lies, and again where it is written: nothing of one that is
 * damaged, or for which there is no room, becomes visible. Private to worker*.c. */
#ifndef KEEL_WORKER_FILES_H
#define KEEL_WORKER_FILES_H

#include <keel/ckpt_tier.h>
#include <keel/transport.h>

struct keel_file_move {
    struct keel_object object;
    uint16_t from, to; /* ranks of the group */
    bool arrived;      /* out, of a file that comes here: it is in this node's directory now */
};

/* What is lent to operations: after one that failed, until the group is closed. Zero it first; used by one
 * thread at a time. */
struct keel_file_mover {
    struct keel_group *group;
    struct keel_tier *tier; /* of this node's directory; both borrowed */
    void *memory;           /* owned */
    uint64_t nothing;       /* the length of what ends a link */
};

/* Numbers of calls below this one are of what goes on beside the steps, those from it on of restarts. */
enum { KEEL_CALLS_OF_GUARDS = 1 << 20 };

/* Make them all; `call` is a number below twice that that no other call of this group has. Blocks until those
 * that this rank has a part in are over: OK although some did not arrive, of which keel_detail() tells the
 * last; else as keel_operation_wait. */
enum keel_status keel_file_mover_run(struct keel_file_mover *mover, struct keel_file_move *moves,
                                     uint32_t count, uint64_t call);
void keel_file_mover_fini(struct keel_file_mover *mover);

/* Messages to another rank and back, for a tier that it serves (keel_tier_serve) or is served: waits as long
 * as the group lasts, and for 8 million messages each way. Both ranks make one with the same call and
 * number; a rank uses one at a time of those with the same mover. */
enum { KEEL_FILE_LINKS_MAX = 2047 }; /* numbers of a call are below it */
struct keel_file_link {
    struct keel_file_mover *mover;
    uint64_t call, sent, received;
    uint32_t number, peer;
    bool ended; /* the other said so */
};
enum keel_status keel_file_link_open(struct keel_file_link *link, struct keel_tier_link *out);
/* To the other it is as if this rank were gone. Also of one whose opening failed, for which the other waits.
 */
enum keel_status keel_file_link_end(struct keel_file_link *link);

/* All ranks' `bytes` at `mine`, which are lent as above, into `all`. Alone (no group): a copy. */
enum keel_status keel_file_mover_gather(struct keel_file_mover *mover, const void *mine, size_t bytes,
                                        void *all, uint64_t call, uint32_t number);
/* The same where ranks have so many bytes each: `bytes` of all of them. */
enum keel_status keel_file_mover_gather_some(struct keel_file_mover *mover, const void *mine,
                                             const uint64_t *bytes, uint32_t ranks, void *all, uint64_t call,
                                             uint32_t number);

#endif
