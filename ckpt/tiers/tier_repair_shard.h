/* tier_repair_shard.h - making one shard whole again from whatever holds parts of it. */
#ifndef KEEL_CKPT_TIER_REPAIR_SHARD_H
#define KEEL_CKPT_TIER_REPAIR_SHARD_H

#include "manifest.h"
#include "tier.h"

enum { KEEL_REPAIR_SHARD_TIERS_MAX = 4 * KEEL_TIER_SOURCES_MAX }; /* erasure sets included */

struct keel_repair_shard {
    struct keel_store *store;                             /* borrowed */
    struct keel_tier *self;                               /* the store as a tier; borrowed */
    struct keel_tier *tiers[KEEL_REPAIR_SHARD_TIERS_MAX]; /* where else to look, nearest first; borrowed */
    uint32_t tier_count;
    const struct keel_manifest *manifest; /* borrowed */
    struct keel_snapshot *snapshot;       /* owned; the store's, for replicas; NULL until needed */
    bool snapshot_tried;
    bool dry_run;
};
void keel_repair_shard_fini(struct keel_repair_shard *shard_repair);

/* Open in that tier, check all of it, and that it is the manifest's. */
enum keel_status keel_repair_shard_check(const struct keel_repair_shard *shard_repair, struct keel_tier *tier,
                                         uint32_t rank);
/* Put the shard of that rank, which is missing or damaged, into the store. `out_from` says what it was made
 * of. CORRUPT names what is lost. */
enum keel_status keel_repair_shard_run(struct keel_repair_shard *shard_repair, uint32_t rank,
                                       char out_from[KEEL_DETAIL_BYTES]);

#endif
