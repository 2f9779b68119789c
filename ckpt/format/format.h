/* format.h - the shard file, version 1, as bytes: what lies where, and what makes it valid.
 *
 * Owns the little-endian structs, their limits and the checks that need nothing but the bytes.
 * README.md specifies the same for strangers; the two change together. Left to others: files
 * (shard.c, save.c), coding of chunks (codec.c), the manifest (manifest.c).
 *
 *   0        header block, 4096 bytes (256 used)
 *   4096     chunks in the order of their table, each at the next multiple of 4096, zeros between them
 *   index    at a multiple of 4096: records, then chunk entries, then fewer than 4096 zeros
 *   end-128  footer; the file's size is a multiple of 4096
 *
 * Rules of every version: magic, version and block size are the first 16 bytes of header and footer, and
 * their checks stay where they are, so that damage and a newer version can be told apart. A reserved field
 * that is not zero, and a codec that is not known, are a newer version's. */
#ifndef KEEL_CKPT_FORMAT_H
#define KEEL_CKPT_FORMAT_H

#include <keel/ckpt.h>
#include <stddef.h>

enum {
    KEEL_FORMAT_VERSION = 1,      /* of shards whose types, names and chunks are those of version 1, */
    KEEL_FORMAT_VERSION_WIDE = 2, /* and of the others */
    KEEL_FORMAT_BLOCK_BYTES = 4096,
    KEEL_FORMAT_CHUNK_BYTES_MIN = 1 << 16,   /* in version 2, */
    KEEL_FORMAT_CHUNK_BYTES_MIN_1 = 1 << 18, /* and in version 1 */
    KEEL_FORMAT_CHUNK_BYTES = 1 << 20,       /* of the writer; the largest that readers take */
    KEEL_FORMAT_RECORDS_MAX = 1 << 20,
    KEEL_FORMAT_CHUNKS_MAX = 1 << 24,
    KEEL_FORMAT_CHAIN_MAX = 16,  /* bases under a delta chunk */
    KEEL_FORMAT_SEAL_BYTES = 32, /* what sealing adds to a chunk: two checks of 8, a tag of 16 */
    KEEL_DIGEST_BYTES = 16
};

enum { KEEL_HEADER_BASE = 1, KEEL_HEADER_SEALED = 2 }; /* flags */

struct keel_format_header {
    char magic[8]; /* KEELSHRD */
    uint32_t version;
    uint32_t header_bytes; /* 4096 */
    uint64_t step;
    uint64_t attempt;
    uint32_t rank;
    uint32_t rank_count;
    char run[KEEL_RUN_NAME_BYTES]; /* padded with NUL, at least one */
    uint32_t flags;                /* KEEL_HEADER_* */
    uint32_t zero;
    uint64_t base_step,
        base_attempt;      /* with KEEL_HEADER_BASE: the snapshot that delta chunks refer to; else 0 */
    uint8_t salt[32];      /* with KEEL_HEADER_SEALED: random, of this file's key; else 0 */
    uint8_t key_check[16]; /* with KEEL_HEADER_SEALED: tells a wrong key; else 0 */
    uint8_t reserved[72];
    uint64_t check; /* XXH3-64 of the whole block, this field taken as zero */
};
_Static_assert(sizeof(struct keel_format_header) == 256, "header");
_Static_assert(offsetof(struct keel_format_header, version) == 8, "header.version");
_Static_assert(offsetof(struct keel_format_header, header_bytes) == 12, "header.header_bytes");
_Static_assert(offsetof(struct keel_format_header, step) == 16, "header.step");
_Static_assert(offsetof(struct keel_format_header, attempt) == 24, "header.attempt");
_Static_assert(offsetof(struct keel_format_header, rank) == 32, "header.rank");
_Static_assert(offsetof(struct keel_format_header, rank_count) == 36, "header.rank_count");
_Static_assert(offsetof(struct keel_format_header, run) == 40, "header.run");
_Static_assert(offsetof(struct keel_format_header, flags) == 104, "header.flags");
_Static_assert(offsetof(struct keel_format_header, base_step) == 112, "header.base_step");
_Static_assert(offsetof(struct keel_format_header, base_attempt) == 120, "header.base_attempt");
_Static_assert(offsetof(struct keel_format_header, salt) == 128, "header.salt");
_Static_assert(offsetof(struct keel_format_header, key_check) == 160, "header.key_check");
_Static_assert(offsetof(struct keel_format_header, reserved) == 176, "header.reserved");
_Static_assert(offsetof(struct keel_format_header, check) == 248, "header.check");

/* One region of one tensor. Its dense row-major bytes are cut into chunks of chunk_bytes (the last one may
 * be shorter): entries first_chunk .. first_chunk + chunk_count of the shard's chunk table. */
struct keel_format_record {
    char name[KEEL_TENSOR_NAME_BYTES]; /* padded with NUL, at least one */
    uint32_t dtype;
    uint32_t dims;
    uint64_t shape[KEEL_TENSOR_DIMS_MAX]; /* zero from dims on, as are offset and extent */
    uint64_t offset[KEEL_TENSOR_DIMS_MAX];
    uint64_t extent[KEEL_TENSOR_DIMS_MAX];
    uint64_t raw_bytes;
    uint64_t first_chunk;
    uint32_t chunk_count;
    uint32_t chunk_bytes;
    uint32_t same_record; /* 0, or 1 + the number of the record in this shard whose rounding this one is */
    uint32_t zero;
    uint64_t nonfinite; /* elements that are NaN or infinite */
    uint8_t reserved[16];
};
_Static_assert(sizeof(struct keel_format_record) == 384, "record");
_Static_assert(offsetof(struct keel_format_record, dtype) == 128, "record.dtype");
_Static_assert(offsetof(struct keel_format_record, dims) == 132, "record.dims");
_Static_assert(offsetof(struct keel_format_record, shape) == 136, "record.shape");
_Static_assert(offsetof(struct keel_format_record, offset) == 200, "record.offset");
_Static_assert(offsetof(struct keel_format_record, extent) == 264, "record.extent");
_Static_assert(offsetof(struct keel_format_record, raw_bytes) == 328, "record.raw_bytes");
_Static_assert(offsetof(struct keel_format_record, first_chunk) == 336, "record.first_chunk");
_Static_assert(offsetof(struct keel_format_record, chunk_count) == 344, "record.chunk_count");
_Static_assert(offsetof(struct keel_format_record, chunk_bytes) == 348, "record.chunk_bytes");
_Static_assert(offsetof(struct keel_format_record, same_record) == 352, "record.same_record");
_Static_assert(offsetof(struct keel_format_record, nonfinite) == 360, "record.nonfinite");
_Static_assert(offsetof(struct keel_format_record, reserved) == 368, "record.reserved");

/* The base of a delta chunk is chunk base_chunk of the chunk table of rank base_rank's shard in the header's
 * base snapshot, and has as many raw bytes. In a sealed shard raw_check and base_check are in the chunk's
 * seal, zero here (both tell something about what is secret), also of chunks that store nothing. */
struct keel_format_chunk {
    uint64_t
        file_offset; /* the next multiple of 4096 behind those before; zero when nothing is stored (same) */
    uint32_t raw_bytes;
    uint32_t stored_bytes;
    uint32_t codec;        /* enum keel_codec */
    uint32_t flags;        /* KEEL_CHUNK_* */
    uint64_t raw_check;    /* XXH3-64 of the raw bytes */
    uint64_t stored_check; /* XXH3-64 of the stored bytes */
    uint64_t base_check;   /* delta: the base's raw_check; else 0 */
    uint32_t base_rank;    /* delta; else 0 */
    uint32_t base_chunk;   /* delta; else 0 */
    uint32_t chain;        /* delta: bases under it, 1 .. KEEL_FORMAT_CHAIN_MAX; else 0 */
    uint32_t zero;
};
enum { KEEL_CHUNK_SEALED = 1 }; /* flags */
_Static_assert(sizeof(struct keel_format_chunk) == 64, "chunk");
_Static_assert(offsetof(struct keel_format_chunk, raw_bytes) == 8, "chunk.raw_bytes");
_Static_assert(offsetof(struct keel_format_chunk, stored_bytes) == 12, "chunk.stored_bytes");
_Static_assert(offsetof(struct keel_format_chunk, codec) == 16, "chunk.codec");
_Static_assert(offsetof(struct keel_format_chunk, flags) == 20, "chunk.flags");
_Static_assert(offsetof(struct keel_format_chunk, raw_check) == 24, "chunk.raw_check");
_Static_assert(offsetof(struct keel_format_chunk, stored_check) == 32, "chunk.stored_check");
_Static_assert(offsetof(struct keel_format_chunk, base_check) == 40, "chunk.base_check");
_Static_assert(offsetof(struct keel_format_chunk, base_rank) == 48, "chunk.base_rank");
_Static_assert(offsetof(struct keel_format_chunk, base_chunk) == 52, "chunk.base_chunk");
_Static_assert(offsetof(struct keel_format_chunk, chain) == 56, "chunk.chain");

struct keel_format_footer {
    char magic[8]; /* KEELFOOT */
    uint32_t version;
    uint32_t footer_bytes; /* 128 */
    uint64_t index_offset; /* a multiple of 4096 */
    uint64_t index_bytes;  /* records x 384 + chunks x 64 */
    uint32_t record_count;
    uint32_t chunk_count;
    uint64_t raw_bytes;    /* sum over the chunks */
    uint64_t stored_bytes; /* sum over the chunks, without the zeros between them */
    uint64_t file_bytes;
    uint8_t index_digest[KEEL_DIGEST_BYTES]; /* XXH3-128 of the index, in its canonical (big-endian) form */
    uint64_t header_check;                   /* the header's */
    uint8_t mac[32]; /* sealed: keyed over header, index and the 88 bytes before it; else 0 */
    uint64_t check;  /* XXH3-64 of the 120 bytes before it */
};
_Static_assert(sizeof(struct keel_format_footer) == 128, "footer");
_Static_assert(offsetof(struct keel_format_footer, version) == 8, "footer.version");
_Static_assert(offsetof(struct keel_format_footer, footer_bytes) == 12, "footer.footer_bytes");
_Static_assert(offsetof(struct keel_format_footer, index_offset) == 16, "footer.index_offset");
_Static_assert(offsetof(struct keel_format_footer, index_bytes) == 24, "footer.index_bytes");
_Static_assert(offsetof(struct keel_format_footer, record_count) == 32, "footer.record_count");
_Static_assert(offsetof(struct keel_format_footer, chunk_count) == 36, "footer.chunk_count");
_Static_assert(offsetof(struct keel_format_footer, raw_bytes) == 40, "footer.raw_bytes");
_Static_assert(offsetof(struct keel_format_footer, stored_bytes) == 48, "footer.stored_bytes");
_Static_assert(offsetof(struct keel_format_footer, file_bytes) == 56, "footer.file_bytes");
_Static_assert(offsetof(struct keel_format_footer, index_digest) == 64, "footer.index_digest");
_Static_assert(offsetof(struct keel_format_footer, header_check) == 80, "footer.header_check");
_Static_assert(offsetof(struct keel_format_footer, mac) == 88, "footer.mac");
_Static_assert(offsetof(struct keel_format_footer, check) == 120, "footer.check");

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the structs of format.h are written as they are: a little-endian host is needed"
#endif

static inline int keel_compare_u64(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

/* "f32", "bf16" ...; "?" for what is no dtype. */
const char *keel_ckpt_dtype_name(uint32_t dtype);

/* Checksums. `label` of the checkers below is the file's path, for the message. */
uint64_t keel_format_check(const void *data, uint64_t bytes);
void keel_format_digest(const void *data, uint64_t bytes, uint8_t out[KEEL_DIGEST_BYTES]);
bool keel_format_all_zero(const void *data, uint64_t bytes);

/* Fill magic, sizes and check, and the version where it is 0; the other fields are the caller's. `block` is
 * 4096 bytes. */
void keel_format_header_seal(const struct keel_format_header *header, uint8_t *block);
void keel_format_footer_seal(struct keel_format_footer *footer);

/* CORRUPT or VERSION, with the next move. */
enum keel_status keel_format_header_open(const uint8_t *block, const char *label,
                                         struct keel_format_header *out);
enum keel_status keel_format_footer_open(const uint8_t *bytes, const char *label,
                                         struct keel_format_footer *out);
/* CORRUPT unless they are of one file of that size: the footer speaks of this header, and has no mac if that
 * is not sealed. */
enum keel_status keel_format_ends_match(const struct keel_format_header *header,
                                        const struct keel_format_footer *footer, uint64_t file_bytes,
                                        const char *label);
/* The whole index against header and footer: every field of every record and chunk within its bounds, so that
 * whoever reads it afterwards need not check again. `index` is 8-byte aligned. */
enum keel_status keel_format_index_check(const uint8_t *index, const struct keel_format_header *header,
                                         const struct keel_format_footer *footer, const char *label);
/* The size of a rounded copy's elements tells its master's: may records of these dtypes be copy and master?
 */
bool keel_format_rounds(uint32_t copy_dtype, uint32_t master_dtype);
static inline const struct keel_format_record *keel_format_records(const uint8_t *index)
{
    return (const struct keel_format_record *)(const void *)index;
}
static inline const struct keel_format_chunk *keel_format_chunks(const uint8_t *index, uint32_t record_count)
{
    return (const struct keel_format_chunk *)(const void *)(index +
                                                            record_count * sizeof(struct keel_format_record));
}
/* Of an index that was checked: the record that has that chunk, which is one of them. */
const struct keel_format_record *keel_format_record_of(const struct keel_format_record *records,
                                                       uint32_t record_count, uint32_t chunk);

/* UTF-8 of 1 to 127 bytes without control characters: names go into messages, JSON and terminals. */
bool keel_tensor_name_valid(const char *name);
/* Of each chunk but the last, as our writer cuts it: of a part of a tensor an eighth, down to the smallest,
 * as another plan wants parts of that; a power of two, so that those of copies and masters fall together. */
uint32_t keel_region_chunk_bytes(const struct keel_region *region);
/* The version of shards that such a region needs, by type and name. */
uint32_t keel_region_version(const struct keel_region *region);
/* A region that makes sense: name, dtype, dims, box inside the shape, no overflow. INVALID. */
enum keel_status keel_region_check(const struct keel_region *region);
/* [A-Za-z0-9._-], 1 .. 63 characters, not beginning with a dot. */
bool keel_run_name_valid(const char *run);
void keel_record_region(const struct keel_format_record *record, struct keel_region *out);

#endif
