/* snapshot.h - inside of an open snapshot, for snapshot.c (what it consists of), snapshot_read.c (reading
 * it) and commit.c (which opens what it is about to commit in the same way as a reader will). */
#ifndef KEEL_CKPT_SNAPSHOT_H
#define KEEL_CKPT_SNAPSHOT_H

#include "box.h"
#include "manifest.h"
#include "shard.h"

/* One record of one shard; all of a snapshot are sorted by name, then offset, shard and record. */
struct keel_piece {
    uint32_t shard, record;
};

struct keel_tensor {
    uint32_t first_piece, piece_count;
};

struct keel_snapshot {
    struct keel_step_place place;
    struct keel_manifest manifest;
    struct keel_shard *shards; /* one per rank */
    struct keel_piece *pieces;
    struct keel_tensor *tensors;
    uint32_t piece_count, tensor_count;
};

/* Load the manifest's shards, see that they belong together, and build the table of tensors. Takes over
 * place and manifest, also when it fails. */
enum keel_status keel_snapshot_assemble(struct keel_step_place *place, struct keel_manifest *manifest,
                                        struct keel_snapshot **out);

const struct keel_format_record *keel_snapshot_record(const struct keel_snapshot *snapshot, uint32_t piece);

/* Call `visit` for disjoint boxes that make up `box` exactly, each with a piece that holds it whole.
 * CORRUPT when the pieces do not cover the box. `visit` may be NULL. */
enum keel_status keel_snapshot_cover(
    const struct keel_snapshot *snapshot, const struct keel_tensor *tensor, const struct keel_box *box,
    enum keel_status (*visit)(void *context, uint32_t piece, const struct keel_box *part), void *context);

#endif
