/* snapshot.h - inside of an open snapshot: what it consists of (snapshot.c), the table of tensors that spans
 * its shards (tensor_table.c), or their merged index (snapshot_index.c), which pieces make up a box
 * (tile_box.c), and the snapshots under its deltas (snapshot_base.c). Reading is in chunk_batch.h and
 * load_plan.h. */
#ifndef KEEL_CKPT_SNAPSHOT_H
#define KEEL_CKPT_SNAPSHOT_H

#include "box.h"
#include "handle.h"
#include "manifest.h"
#include "merged_index.h"
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
    uint32_t dtype, dims;
    const char *name; /* of its first record, or in the merged index, as is the shape */
    const uint64_t *shape;
};

/* A merged index, of which parts are read when they are asked for. */
struct keel_merged {
    int fd;
    char path[KEEL_PATH_BYTES];
    struct keel_merged_header header;
    uint8_t *directory; /* owned; tensors and blocks point into it */
    const struct keel_merged_tensor *tensors;
    const struct keel_merged_block *blocks;
    uint8_t **parts; /* owned, by block; under the snapshot's lock till read, then constant */
};

/* A snapshot that deltas need. */
struct keel_snapshot_base {
    struct keel_generation generation;
    struct keel_step_place place;
    struct keel_manifest manifest;
    struct keel_shard *shards; /* one per rank; under the snapshot's lock till loaded, then constant */
};

struct keel_snapshot {
    uint32_t handle;
    struct keel_step_place place;
    struct keel_manifest manifest;
    /* One per rank, under `lock` till loaded, then constant. Without index and records: not in this store,
     * or, with a merged index, not asked for yet. */
    struct keel_shard *shards;
    uint32_t missing_count;      /* that are not in this store */
    struct keel_merged *merged;  /* owned; NULL: all indexes are loaded */
    struct keel_snapshot *whole; /* owned: the same with all indexes, once it was needed; under `lock` */
    struct keel_piece *pieces;   /* without a merged index */
    struct keel_tensor *tensors;
    uint32_t piece_count, tensor_count;
    struct keel_snapshot_base *bases; /* those of its deltas, theirs, and so on */
    uint32_t base_count;
    uint32_t chain;                       /* the most bases under a chunk, once they are open */
    const struct keel_snapshot *bases_of; /* whose bases, and chain, are meant; NULL: these */
    struct keel_mutex *lock;              /* owned */
};

/* ALL: every shard's index. HERE: of those in this store, as the others lie in other ones. PART: by the
 * merged index, where there is one, each when it is asked for. */
enum keel_open_how { KEEL_OPEN_ALL, KEEL_OPEN_HERE, KEEL_OPEN_PART };

/* Load the manifest's shards, see that they belong together, and build the table of tensors. Takes over
 * place and manifest, also when it fails. Its deltas cannot be read before its bases are open. */
enum keel_status keel_snapshot_assemble(struct keel_step_place *place, struct keel_manifest *manifest,
                                        enum keel_open_how how, struct keel_snapshot **out);

/* ---- merged index (snapshot_index.c) ------------------------------------------------------------------- */

/* Into snapshot->merged and tensors, where there is one that fits: else they stay NULL, which is no error.
 * NO_MEMORY. */
enum keel_status keel_merged_open(struct keel_snapshot *snapshot);
void keel_merged_close(struct keel_merged *merged);
/* The file, of a snapshot with all indexes, on the heap. */
enum keel_status keel_merged_make(const struct keel_snapshot *snapshot, uint8_t **out, size_t *out_bytes);
/* Whether there is such a file in the snapshot's directory, of these bytes. */
bool keel_merged_is(const struct keel_snapshot *snapshot, const uint8_t *wanted, size_t bytes);
/* Into the snapshot's directory, where its indexes are large enough and it is not there already. The snapshot
 * is whole without it: what fails is told in the log alone. */
void keel_merged_write(const struct keel_snapshot *snapshot);
/* The same snapshot with all indexes, which lives as long as this one. CORRUPT, MISMATCH: of a shard. Any
 * thread. */
enum keel_status keel_snapshot_whole(struct keel_snapshot *snapshot, struct keel_snapshot **out);

/* It has been needed, or there is no merged index. */
bool keel_snapshot_is_whole(const struct keel_snapshot *snapshot);

/* A piece of a tensor: where it is, and its box. Any thread; CORRUPT of a merged index. */
enum keel_status keel_snapshot_piece(const struct keel_snapshot *snapshot, const struct keel_tensor *tensor,
                                     uint32_t piece, struct keel_merged_piece *out);
/* A piece before which none reaches behind `from` along the tensor's axis. */
uint32_t keel_snapshot_first_reaching(const struct keel_snapshot *snapshot, const struct keel_tensor *tensor,
                                      uint64_t from);
/* The piece's shard has its index from now on, in which the record is that piece. CORRUPT, MISMATCH. */
enum keel_status keel_snapshot_need(struct keel_snapshot *snapshot, const struct keel_tensor *tensor,
                                    const struct keel_merged_piece *piece);

/* ---- tensors ------------------------------------------------------------------------------------------- */

/* Fill pieces and tensors. CORRUPT when shards disagree about a tensor. */
enum keel_status keel_tensor_table_build(struct keel_snapshot *snapshot);
/* NULL when there is none of that name. */
const struct keel_tensor *keel_tensor_find(const struct keel_snapshot *snapshot, const char *name);
struct keel_box keel_record_box(const struct keel_format_record *record);
/* Where all indexes are loaded. */
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
/* Most bases under a chunk. */
uint32_t keel_snapshot_longest_chain(const struct keel_snapshot *snapshot);

/* The base of a chunk of codec delta, its index checked: as many raw bytes, and one base fewer under it.
 * CORRUPT without the place of the delta. Any thread. */
enum keel_status keel_snapshot_base_of(struct keel_snapshot *snapshot, struct keel_chunk_place delta,
                                       struct keel_chunk_place *out);

#endif
