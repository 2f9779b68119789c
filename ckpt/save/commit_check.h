/* commit_check.h - what a commit refuses, though every shard is sound by itself. */
#ifndef KEEL_CKPT_COMMIT_CHECK_H
#define KEEL_CKPT_COMMIT_CHECK_H

#include "snapshot.h"

/* Every tensor is covered; every delta chunk has its base, in a snapshot that is committed; no tensor holds
 * NaN or infinity, unless allowed. Of a commit of shards that lie elsewhere those that are here are looked
 * at. Fills the manifest's bases. CORRUPT, DIVERGED; UNSUPPORTED: deltas, of which some lie elsewhere. */
enum keel_status keel_commit_check(struct keel_store *store, struct keel_snapshot *snapshot,
                                   const struct keel_commit *commit);

#endif
