/* snapshot.h - inside of an open snapshot: what it consists of (snapshot.c), the table of tensors that spans
 * its shards (tensor_table.c), which pieces make up a box (tile_box.c), and the snapshots under its deltas
 * (snapshot_base.c). Reading is in chunk_batch.h and load_plan.h. */
#ifndef KEEL_CKPT_SNAPSHOT_H
#define KEEL_CKPT_SNAPSHOT_H

#include "box.h"
#include "handle.h"
#include "manifest.h"
#include "shard.h"

#define KEEL_PIECE_NONE UINT32_MAX

/* One record of one shard; all of a snapshot are sorted by name, then offset, shard and record. */
struct keel_piece {
    uint32_t shard, record;
    uint64_t reach; /* the furthest end, along the tensor's axis, of this and the tensor's earlier pieces */
};

struct keel_tensor {
    uint32_t first_piece, piece_count;
    uint32_t axis; /* the first dimension in which the pieces' offsets differ; they ascend in it */
};

/* A snapshot that deltas need. */
struct keel_snapshot_base {
    struct keel_generation generation;
    struct keel_step_place place;
    struct keel_manifest manifest;
    struct keel_shard *shards; /* one per rank; under the snapshot's base_lock till loaded, then constant */
};

struct keel_snapshot {
    uint32_t handle;
    struct keel_step_place place;
    struct keel_manifest manifest;
    struct keel_shard *shards; /* one per rank; without index and records: not in this store */
    uint32_t missing_count;    /* of those */
    struct keel_piece *pieces;
    struct keel_tensor *tensors;
    uint32_t piece_count, tensor_count;
    struct keel_snapshot_base *bases; /* those of its deltas, theirs, and so on */
    uint32_t base_count;
    struct keel_mutex base_lock;
};

/* Load the manifest's shards, see that they belong together, and build the table of tensors. Takes over
 * place and manifest, also when it fails. Its deltas cannot be read before its bases are open. `elsewhere`:
 * shards that are not in this store lie in others. */
enum keel_status keel_snapshot_assemble(struct keel_step_place *place, struct keel_manifest *manifest,
                                        bool elsewhere, struct keel_snapshot **out);

/* ---- tensors ------------------------------------------------------------------------------------------- */

/* Fill pieces and tensors. CORRUPT when shards disagree about a tensor. */
enum keel_status keel_tensor_table_build(struct keel_snapshot *snapshot);
/* NULL when there is none of that name. */
const struct keel_tensor *keel_tensor_find(const struct keel_snapshot *snapshot, const char *name);
struct keel_box keel_record_box(const struct keel_format_record *record);
const struct keel_format_record *keel_snapshot_record(const struct keel_snapshot *snapshot, uint32_t piece);

/* ---- elements ------------------------------------------------------------------------------------------ */

/* Elements [first, first + count) of a box of a tensor, dense and row-major, into `out`. Errors as for
 * keel_snapshot_load. */
enum keel_status keel_snapshot_read_elements(struct keel_snapshot *snapshot, const struct keel_region *box,
                                             uint64_t first, uint64_t count, void *out);

/* ---- cover --------------------------------------------------------------------------------------------- */

/* A piece that failed, and those that failed before it for the same elements. */
struct keel_piece_chain {
    uint32_t piece;
    const struct keel_piece_chain *next;
};

/* Call `visit` for disjoint boxes that make up `box` exactly, each with a piece that holds it whole, and that
 * is none of `without` (may be NULL). Where several do, which one is taken depends on tensor and shard alone:
 * boxes beside each other come from the same shard, tensors from different ones. CORRUPT when the pieces do
 * not cover the box; LIMIT when that takes too much work to find. `visit` may be NULL. */
enum keel_status keel_snapshot_cover(const struct keel_snapshot *snapshot, const struct keel_tensor *tensor,
                                     const struct keel_box *box, const struct keel_piece_chain *without,
                                     enum keel_status (*visit)(void *context, uint32_t piece,
                                                               const struct keel_box *part),
                                     void *context);

/* ---- verify -------------------------------------------------------------------------------------------- */

/* One damaged part; keel_detail() says what is wrong with it. */
#define KEEL_DAMAGE_RECORD UINT32_MAX
struct keel_damage {
    enum keel_status status;
    const struct keel_shard *shard;          /* NULL: of a tensor as a whole */
    const struct keel_format_record *record; /* of the tensor */
    uint32_t chunk;                          /* in the record, or KEEL_DAMAGE_RECORD: none of its chunks */
};
/* keel_snapshot_verify, telling each damage (`damaged` may be NULL). */
enum keel_status keel_snapshot_verify_each(struct keel_snapshot *snapshot,
                                           void (*progress)(void *context, uint64_t done_bytes,
                                                            uint64_t total_bytes),
                                           void (*damaged)(void *context, const struct keel_damage *damage),
                                           void *context, uint32_t *out_damaged);

/* ---- bases --------------------------------------------------------------------------------------------- */

/* A chunk of an open snapshot or of one of its bases. */
struct keel_chunk_place {
    const struct keel_shard *shard;
    uint32_t chunk;
};

/* Open what the snapshot's deltas need: manifests at once, shards when they are first read. CORRUPT names a
 * base that is not there. */
enum keel_status keel_snapshot_open_bases(const struct keel_store *store, struct keel_snapshot *snapshot);
void keel_snapshot_close_bases(struct keel_snapshot *snapshot);

/* The base of a chunk of codec delta, its index checked: as many raw bytes, and one base fewer under it.
 * CORRUPT without the place of the delta. Any thread. */
enum keel_status keel_snapshot_base_of(struct keel_snapshot *snapshot, struct keel_chunk_place delta,
                                       struct keel_chunk_place *out);

#endif
