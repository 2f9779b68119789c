/* commit_check.h - what a commit refuses, though every shard is sound by itself. */
#ifndef KEEL_CKPT_COMMIT_CHECK_H
#define KEEL_CKPT_COMMIT_CHECK_H

#include "snapshot.h"

/* Every tensor is covered; every delta chunk has its base, in a snapshot that is committed; no tensor holds
 * NaN or infinity, unless allowed. Fills the manifest's bases. CORRUPT, DIVERGED. */
enum keel_status keel_commit_check(struct keel_store *store, struct keel_snapshot *snapshot,
                                   bool allow_nonfinite);

#endif
