/* merged_index.h - index.keel as bytes: by tensor, which shards of a snapshot hold which boxes of it, for a
 * reader that opens a few of many shards. Pure. README.md specifies the same for strangers.
 *
 *   0        header block, 4096 bytes (256 used)
 *   4096     directory: a tensor after the other by name, then an entry for each block
 *   behind   blocks, each of pieces of one tensor, by offset, shard and record
 *
 * It follows from the shards, and is pinned to them by their digests; each part has a check, so that one that
 * is damaged is known. What it says of a shard is compared with that shard's own index when that is read: so
 * it need not be sealed, and can lead nobody to other bytes. */
#ifndef KEEL_CKPT_MERGED_INDEX_H
#define KEEL_CKPT_MERGED_INDEX_H

#include "box.h"
#include "format.h"

#define KEEL_MERGED_NAME "index.keel"

enum { KEEL_MERGED_VERSION = 1, KEEL_MERGED_BLOCK_PIECES = 128 };

struct keel_merged_header {
    char magic[8]; /* KEELINDX */
    uint32_t version;
    uint32_t header_bytes; /* 4096 */
    uint64_t step, attempt;
    uint32_t shard_count, tensor_count, block_count, piece_count;
    char run[KEEL_RUN_NAME_BYTES]; /* padded with NUL, at least one */
    uint64_t directory_bytes;      /* tensors x 224 + blocks x 32 */
    uint64_t file_bytes;
    uint8_t directory_digest[KEEL_DIGEST_BYTES]; /* XXH3-128 */
    uint8_t shards_digest[KEEL_DIGEST_BYTES];    /* XXH3-128 of all shards' index digests, by rank */
    uint32_t chain;                              /* most bases under a chunk of the snapshot */
    uint8_t reserved[84];
    uint64_t check; /* XXH3-64 of the whole block, this field taken as zero */
};
_Static_assert(sizeof(struct keel_merged_header) == 256, "merged header");
_Static_assert(offsetof(struct keel_merged_header, shard_count) == 32, "merged.shard_count");
_Static_assert(offsetof(struct keel_merged_header, run) == 48, "merged.run");
_Static_assert(offsetof(struct keel_merged_header, directory_bytes) == 112, "merged.directory_bytes");
_Static_assert(offsetof(struct keel_merged_header, chain) == 160, "merged.chain");
_Static_assert(offsetof(struct keel_merged_header, check) == 248, "merged.check");

struct keel_merged_tensor {
    char name[KEEL_TENSOR_NAME_BYTES]; /* padded with NUL, at least one */
    uint32_t dtype, dims;
    uint64_t shape[KEEL_TENSOR_DIMS_MAX];
    uint32_t first_piece, piece_count; /* of all pieces, counted through */
    uint32_t first_block, block_count;
    uint32_t axis; /* the first dimension in which the pieces' offsets differ, or 0 */
    uint32_t zero;
};
_Static_assert(sizeof(struct keel_merged_tensor) == 224, "merged tensor");
_Static_assert(offsetof(struct keel_merged_tensor, first_piece) == 200, "merged tensor.first_piece");

struct keel_merged_block {
    uint64_t offset; /* in the file */
    uint64_t reach; /* the furthest end, along the tensor's axis, of the tensor's pieces up to this block's */
    uint64_t check; /* XXH3-64 of its bytes */
    uint32_t bytes; /* pieces x (8 + 16 x dims) */
    uint32_t piece_count;
};
_Static_assert(sizeof(struct keel_merged_block) == 32, "merged block");

/* A piece in a block: shard, record there (4 bytes each), then offset and extent (8 each) by dimension. */
struct keel_merged_piece {
    uint32_t shard, record;
    struct keel_box box;
};

/* Where the writer puts it together: tensors in the order of their names, the pieces of each in theirs. */
struct keel_merged_writer {
    struct keel_merged_header header;
    struct keel_merged_tensor *tensors; /* owned, as are the next two */
    struct keel_merged_block *blocks;
    uint8_t *pieces;
    size_t tensor_capacity, block_capacity, piece_capacity, piece_bytes;
};
enum keel_status keel_merged_add_tensor(struct keel_merged_writer *writer, const char *name, uint32_t dtype,
                                        uint32_t dims, const uint64_t *shape, uint32_t axis);
/* Of the tensor that was added last. */
enum keel_status keel_merged_add_piece(struct keel_merged_writer *writer,
                                       const struct keel_merged_piece *piece);
/* The file, on the heap. The header's step, attempt, run, shard_count, shards_digest and chain are the
 * caller's. */
enum keel_status keel_merged_encode(struct keel_merged_writer *writer, uint8_t **out, size_t *out_bytes);
void keel_merged_writer_fini(struct keel_merged_writer *writer);

/* XXH3-128 of that many shards' index digests. */
struct keel_shard_summary;
enum keel_status keel_merged_shards_digest(const struct keel_shard_summary *shards, uint32_t count,
                                           uint8_t out[KEEL_DIGEST_BYTES]);

/* Header and directory, of a file of so many bytes: every field within its bounds, so that whoever reads them
 * afterwards need not check again. CORRUPT, VERSION. `directory` is 8-byte aligned. */
enum keel_status keel_merged_header_open(const uint8_t *block, uint64_t file_bytes, const char *label,
                                         struct keel_merged_header *out);
enum keel_status keel_merged_directory_check(const struct keel_merged_header *header,
                                             const uint8_t *directory, const char *label);
static inline const struct keel_merged_tensor *keel_merged_tensors(const uint8_t *directory)
{
    return (const struct keel_merged_tensor *)(const void *)directory;
}
static inline const struct keel_merged_block *keel_merged_blocks(const struct keel_merged_header *header,
                                                                 const uint8_t *directory)
{
    return (const struct keel_merged_block *)(const void *)(directory +
                                                            header->tensor_count *
                                                                sizeof(struct keel_merged_tensor));
}
/* A block's bytes as they were read: its check, and every piece within tensor and snapshot. */
enum keel_status keel_merged_block_check(const struct keel_merged_header *header,
                                         const struct keel_merged_tensor *tensor,
                                         const struct keel_merged_block *block, const uint8_t *bytes,
                                         const char *label);
/* Piece number `index` of a block that was checked. */
void keel_merged_piece_at(const struct keel_merged_tensor *tensor, const uint8_t *bytes, uint32_t index,
                          struct keel_merged_piece *out);

#endif
