/* generation_index.h - all generations of a run, as their directories and manifests tell: listing,
 * opening the newest and retention begin with it. */
#ifndef KEEL_CKPT_GENERATION_INDEX_H
#define KEEL_CKPT_GENERATION_INDEX_H

#include "manifest.h"
#include <keel/disk.h>

enum keel_generation_state {
    KEEL_GENERATION_COMMITTED,
    KEEL_GENERATION_DAMAGED,    /* its manifest is there, and cannot be read or belongs elsewhere */
    KEEL_GENERATION_UNCOMMITTED /* on its way, a leftover, or half removed */
};

struct keel_generation_entry {
    struct keel_snapshot_info info; /* step and attempt in any state, the rest when committed */
    enum keel_generation_state state;
    uint64_t file_bytes; /* of the shards, when committed: with what lies between and behind the chunks */
    /* Which snapshots its deltas refer to: by its manifest, else by the headers that can be read. */
    struct keel_generation *bases; /* owned by the list */
    uint32_t base_count;
    bool newer;         /* damaged as far as this program can tell: its manifest is of a newer version */
    bool bases_unknown; /* it is of a newer version, or unreadable: it may need any */
    bool whole; /* not committed, and no shard of it is known to be bad: perhaps its manifest was lost */
    struct stat manifest, directory; /* of a committed one, as they were before it was looked at */
    bool swept;                      /* nothing in its directory was changed since temporary files went */
};

struct keel_generation_index {
    struct keel_generation_entry *at; /* owned; newest first: by step, then attempt */
    size_t count, capacity;
    uint64_t since_ns; /* by the wall clock: when looking began */
};

/* Look at all of them; `retains`: for retention, also for the bases of those that are not committed, in their
 * shards; but of committed ones only the newest KEEL_GENERATIONS_FRESH are read each time, others when their
 * manifest is another file than at the time before (keel_generation_index_keep), so that what a commit reads
 * does not grow with the number of snapshots that stay. Free with keel_generation_index_fini. AUTH, DENIED,
 * and a shortage: what may or can not be read is no damage, and no older one its stand-in. */
enum { KEEL_GENERATIONS_FRESH = 8 };
enum keel_status keel_generation_index_scan(struct keel_store *store, bool retains,
                                            struct keel_generation_index *out);
/* Retention went through them: the store takes them over, for the next scan. */
void keel_generation_index_keep(struct keel_store *store, struct keel_generation_index *generations);
struct keel_generation_counts {
    uint32_t committed, damaged, newer, uncommitted; /* newer ones are among the damaged */
};
struct keel_generation_counts keel_generation_index_count(const struct keel_generation_index *index);
void keel_generation_index_fini(struct keel_generation_index *generations);

#endif
