/* delta_base.h - the raw state of a rank's last capture, held by its store, for the deltas of the next save.
 *
 * A save whose arena was whole leaves all of it here instead of its memory alone. The next one of that rank
 * takes it: it is used if that snapshot is committed by then, and the regions are the same; its memory is
 * used in any case. So a rank holds at most one. */
#ifndef KEEL_CKPT_SAVE_BASE_H
#define KEEL_CKPT_SAVE_BASE_H

#include "format.h"
#include "store.h"

/* What is known of a chunk beyond its entry (which may be sealed). */
struct keel_chunk_note {
    uint64_t raw_check;
    uint32_t planes_bytes; /* its size as planes, when it was last tried; 0: never */
    uint32_t zero;
};

struct keel_base {
    struct keel_base *next; /* of the store's list, under its lock */
    uint64_t step, attempt;
    uint32_t rank, generation; /* how many bases are under that snapshot */
    uint32_t record_count;
    uint8_t *index;                  /* owned; as in its shard */
    struct keel_chunk_note *notes;   /* owned; per chunk */
    struct keel_workspace workspace; /* owned */
};

/* The rank's, out of the list; NULL. */
struct keel_base *keel_base_take(struct keel_store *store, uint32_t rank);
/* Give one to the store; another one of that rank goes. */
void keel_base_hold(struct keel_store *store, struct keel_base *base);
/* Back to the store, unused; goes when the rank has got another one meanwhile. NULL is fine. */
void keel_base_return(struct keel_store *store, struct keel_base *base);
/* May chunks of `index` (whose records are set) refer to it? Its snapshot is committed, the records are the
 * same, and its chain is shorter than chain_max. */
bool keel_base_fits(const struct keel_base *base, const struct keel_store *store, const uint8_t *index,
                    uint32_t record_count, uint32_t chain_max);
/* Its memory to the store. NULL is fine. */
void keel_base_drop(struct keel_store *store, struct keel_base *base);
/* All of them, when the store closes. */
void keel_base_drop_all(struct keel_store *store);

#endif
