/* committer.h - snapshots are committed beside the launcher's loop, never in it.
 *
 * One thread takes orders from a short queue: checks the shards, writes the manifest (keel_store_commit),
 * then lets old snapshots go (keel_store_retain), and removes the shards of attempts that are given up.
 * Results wait until they are taken; an eventfd says that some do. A snapshot that fails is a result like any
 * other. */
#ifndef KEEL_COMMITTER_H
#define KEEL_COMMITTER_H

#include "bitset.h"
#include <keel/ckpt.h>
#include <keel/node.h>

struct keel_committer;

struct keel_committer_config {
    struct keel_store *store; /* borrowed until the committer is closed; NULL: nodes commit into their own
                               * directories (snapshot.local), and what is ordered is told of alone */
    /* Called on the thread first, where the caller must not wait for the store: gives it, to be closed after
     * the committer. What fails there fails every commit. NULL: `store` is what there is. */
    enum keel_status (*open)(void *context, struct keel_store **out);
    const char *identity;            /* of the job, KEEL_IDENTITY_BYTES; copied */
    const char *metadata;            /* JSON object for the manifest; NULL is {}; borrowed likewise */
    struct keel_retention retention; /* what stays */
    bool allow_nonfinite;            /* commit what holds NaN or infinity */
    /* Called on the thread before each commit; what fails there fails the commit. NULL: nothing. */
    enum keel_status (*settle)(void *context, uint64_t step);
    void *context; /* of both */
};

struct keel_committed {
    uint64_t step, attempt;
    enum keel_status status; /* OK: it is durable and found by resume */
    char detail[KEEL_DETAIL_BYTES];
    uint64_t raw_bytes, stored_bytes;
    uint64_t duration_ns; /* of the commit */
    uint32_t removed;     /* older snapshots that went */
};

enum keel_status keel_committer_open(const struct keel_committer_config *config, struct keel_committer **out);

/* Order a commit. Does not block. When four wait already (the disk is slower than the snapshots) this one
 * takes the place of the newest of them, so that the snapshot of a run's last step is never the one that is
 * given up. BUSY: one was given up, and *given_up says which: that one, or this one, where results of the
 * others wait to be taken. */
enum keel_status keel_committer_order(struct keel_committer *committer, uint64_t step, uint64_t attempt,
                                      const struct keel_shard_summary *shards, uint32_t count,
                                      struct keel_committed *given_up);

/* Remove the shards of these ranks of an attempt that nobody orders any more; of one that is
 * committed they stay. Does not block. At most KEEL_DROPS_MAX wait, what is more stays until retention. */
enum { KEEL_DROPS_MAX = 32 };
void keel_committer_drop(struct keel_committer *committer, uint64_t step, uint64_t attempt,
                         const struct keel_bitset *ranks);

/* Readable while results wait. */
int keel_committer_fd(const struct keel_committer *committer);
/* The next result, in the order of the orders; false when there is none. Does not block. */
bool keel_committer_take(struct keel_committer *committer, struct keel_committed *out);
/* Wait until every order has its result and nothing else is under way (the store is open, what was dropped is
 * gone): closing does not wait then. False when the deadline passed. */
bool keel_committer_drain(struct keel_committer *committer, uint64_t deadline_ns);

/* End the thread; orders not begun are dropped. Waits for a commit that is under way. */
void keel_committer_close(struct keel_committer *committer);

#endif
