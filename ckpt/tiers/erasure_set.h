/* erasure_set.h - inside of an open erasure set, for tier_erasure.c (opening it, reading its files) and
 * erasure_stripe.c (one stripe: what is sound, and computing what is not). */
#ifndef KEEL_CKPT_ERASURE_SET_H
#define KEEL_CKPT_ERASURE_SET_H

#include "erasure_code.h"
#include "parity.h"
#include <keel/thread.h>

enum keel_erasure_trust { KEEL_TRUST_UNKNOWN, KEEL_TRUST_WHOLE, KEEL_TRUST_NONE };

struct keel_erasure_candidate {
    struct keel_tier_source *source; /* owned; NULL: none */
    enum keel_erasure_trust whole;   /* a shard's: does all of it have the digest? */
};

struct keel_erasure_set {
    struct keel_tier tier;
    struct keel_tier *const *tiers; /* borrowed */
    uint32_t tier_count;
    struct keel_parity_header header; /* of member 0 */
    struct keel_parity_shape shape;
    uint64_t set_check;
    bool digests_known;
    struct keel_parity_footer footer; /* of member 0, when digests_known */
    struct keel_erasure_code code;
    struct keel_mutex lock; /* guards all below: */
    struct keel_erasure_candidate shards[KEEL_ERASURE_NODES_MAX][KEEL_TIER_SOURCES_MAX];
    struct keel_erasure_candidate parities[KEEL_ERASURE_NODES_MAX][KEEL_TIER_SOURCES_MAX];
    uint64_t stripe;                   /* the one whose cells are here; UINT64_MAX: none */
    bool have[KEEL_ERASURE_NODES_MAX]; /* its cell of that member is here, and right */
    bool checks_known;
    struct keel_parity_stripe block; /* of any member, when checks_known */
    uint8_t *cells;                  /* owned; one a member */
    uint8_t *piece;                  /* owned; KEEL_TIER_PIECE_BYTES, for digests of whole shards */
};

/* All with the lock held. The place of a member's cell. */
uint8_t *keel_erasure_cell_of(const struct keel_erasure_set *set, uint32_t member);
/* Have the cell of that member in that stripe there, from its files or computed from those of others.
 * CORRUPT. */
enum keel_status keel_erasure_need_cell(struct keel_erasure_set *set, uint64_t stripe, uint32_t member);
/* The block of checks of that stripe, as it is in that member's file. */
enum keel_status keel_erasure_need_block(struct keel_erasure_set *set, uint64_t stripe, uint32_t member,
                                         struct keel_parity_stripe *out);

#endif
