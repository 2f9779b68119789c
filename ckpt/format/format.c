/* format.c - the bytes of format.h: sealing them, and believing nothing that is read back. */
#include "format.h"
#include "json_scan.h"
#include <keel/memory.h>
#include <keel/text.h>
#include <string.h>
#include <xxhash.h>

static const char header_magic[8] = {'K', 'E', 'E', 'L', 'S', 'H', 'R', 'D'};
static const char footer_magic[8] = {'K', 'E', 'E', 'L', 'F', 'O', 'O', 'T'};

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[] = {[0] = {"?", 0},
              [KEEL_CKPT_F32] = {"f32", 4},
              [KEEL_CKPT_F64] = {"f64", 8},
              [KEEL_CKPT_BF16] = {"bf16", 2},
              [KEEL_CKPT_F16] = {"f16", 2},
              [KEEL_CKPT_I32] = {"i32", 4},
              [KEEL_CKPT_I64] = {"i64", 8},
              [KEEL_CKPT_U8] = {"u8", 1},
              [KEEL_CKPT_BOOL] = {"bool", 1},
              [KEEL_CKPT_I8] = {"i8", 1},
              [KEEL_CKPT_I16] = {"i16", 2},
              [KEEL_CKPT_U16] = {"u16", 2},
              [KEEL_CKPT_U32] = {"u32", 4},
              [KEEL_CKPT_U64] = {"u64", 8},
              [KEEL_CKPT_F8_E5M2] = {"f8_e5m2", 1},
              [KEEL_CKPT_F8_E4M3] = {"f8_e4m3", 1},
              [KEEL_CKPT_F8_E8M0] = {"f8_e8m0", 1},
              [KEEL_CKPT_F8_E4M3FNUZ] = {"f8_e4m3fnuz", 1},
              [KEEL_CKPT_F8_E5M2FNUZ] = {"f8_e5m2fnuz", 1},
              [KEEL_CKPT_C64] = {"c64", 8}};

static uint32_t known_dtype(uint32_t dtype)
{
    return dtype < sizeof dtypes / sizeof dtypes[0] ? dtype : 0;
}

uint32_t keel_ckpt_dtype_bytes(enum keel_ckpt_dtype dtype)
{
    return dtypes[known_dtype((uint32_t)dtype)].bytes;
}

const char *keel_ckpt_dtype_name(uint32_t dtype)
{
    return dtypes[known_dtype(dtype)].name;
}

uint64_t keel_region_bytes(const struct keel_region *region)
{
    KEEL_ASSERT(region != NULL && region->dims <= KEEL_TENSOR_DIMS_MAX);
    uint64_t bytes = keel_ckpt_dtype_bytes(region->dtype);
    for (uint32_t i = 0; i < region->dims; i++)
        bytes *= region->extent[i];
    return bytes;
}

uint64_t keel_format_check(const void *data, uint64_t bytes)
{
    return XXH3_64bits(data, keel_size(bytes));
}

void keel_format_digest(const void *data, uint64_t bytes, uint8_t out[KEEL_DIGEST_BYTES])
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, keel_size(bytes)));
    memcpy(out, canonical.digest, KEEL_DIGEST_BYTES);
}

bool keel_format_all_zero(const void *data, uint64_t bytes)
{
    const uint8_t *at = data;
    uint8_t any = 0;
    for (size_t i = 0; i < bytes; i++)
        any |= at[i];
    return any == 0;
}

/* ---- names and regions ---------------------------------------------------------------------------- */

bool keel_run_name_valid(const char *run)
{
    size_t length = strnlen(run, KEEL_RUN_NAME_BYTES);
    if (length == 0 || length >= KEEL_RUN_NAME_BYTES || run[0] == '.')
        return false;
    return strspn(run, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == length;
}

bool keel_tensor_name_valid(const char *name)
{
    size_t length = strnlen(name, KEEL_TENSOR_NAME_BYTES), wrong;
    if (length == 0 || length >= KEEL_TENSOR_NAME_BYTES || !keel_utf8_valid(name, length, &wrong))
        return false;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)name[i], next = (unsigned char)name[i + 1]; /* at most the NUL */
        if (c < ' ' || c == 0x7f || (c == 0xc2 && next < 0xa0)) /* U+0080 to U+009F are of them, too */
            return false;
    }
    return true;
}

/* Version 1: printable ASCII without space, quote and backslash. */
static bool name_of_version_1(const char *name)
{
    for (; *name != '\0'; name++)
        if (*name <= ' ' || *name > '~' || *name == '"' || *name == '\\')
            return false;
    return true;
}

uint32_t keel_region_version(const struct keel_region *region)
{
    return region->dtype > KEEL_CKPT_U8 || !name_of_version_1(region->name) ? KEEL_FORMAT_VERSION_WIDE
                                                                            : KEEL_FORMAT_VERSION;
}

uint32_t keel_region_chunk_bytes(const struct keel_region *region)
{
    const uint64_t bytes = keel_region_bytes(region);
    uint32_t chunk = KEEL_FORMAT_CHUNK_BYTES;
    if (memcmp(region->extent, region->shape, region->dims * sizeof region->shape[0]) == 0 ||
        bytes <= KEEL_FORMAT_CHUNK_BYTES_MIN)
        return chunk;
    while (chunk > KEEL_FORMAT_CHUNK_BYTES_MIN && chunk > bytes / 8)
        chunk /= 2;
    return chunk;
}

/* Bytes of the whole tensor must fit in 62 bits, so that no later product overflows. */
static bool shape_fits(const struct keel_region *region)
{
    uint64_t room = UINT64_C(1) << 62, bytes = keel_ckpt_dtype_bytes(region->dtype);
    bool empty = false;
    for (uint32_t i = 0; i < region->dims; i++)
        empty = empty || region->shape[i] == 0;
    for (uint32_t i = 0; i < region->dims; i++) {
        uint64_t size = region->shape[i] > 0 ? region->shape[i] : 1;
        if (size > room / bytes)
            return false;
        bytes *= size;
    }
    return empty || bytes <= room;
}

enum keel_status keel_region_check(const struct keel_region *region)
{
    if (!keel_tensor_name_valid(region->name))
        return keel_fail(
            KEEL_INVALID,
            "a tensor's name is empty, longer than %d bytes, no UTF-8, or has control characters",
            KEEL_TENSOR_NAME_BYTES - 1);
    if (keel_ckpt_dtype_bytes(region->dtype) == 0)
        return keel_fail(KEEL_INVALID, "tensor %s: unknown dtype %d", region->name, (int)region->dtype);
    if (region->dims > KEEL_TENSOR_DIMS_MAX)
        return keel_fail(KEEL_INVALID, "tensor %s: %u dimensions, at most %d", region->name, region->dims,
                         KEEL_TENSOR_DIMS_MAX);
    for (uint32_t i = 0; i < region->dims; i++)
        if (region->offset[i] > region->shape[i] || region->extent[i] > region->shape[i] - region->offset[i])
            return keel_fail(KEEL_INVALID, "tensor %s: the box leaves the shape in dimension %u",
                             region->name, i);
    if (!shape_fits(region))
        return keel_fail(KEEL_INVALID, "tensor %s: the shape is too large", region->name);
    return KEEL_OK;
}

void keel_record_region(const struct keel_format_record *record, struct keel_region *out)
{
    *out = (struct keel_region){.dtype = (enum keel_ckpt_dtype)record->dtype, .dims = record->dims};
    memcpy(out->name, record->name, sizeof out->name);
    memcpy(out->shape, record->shape, sizeof out->shape);
    memcpy(out->offset, record->offset, sizeof out->offset);
    memcpy(out->extent, record->extent, sizeof out->extent);
}

/* ---- header and footer ------------------------------------------------------------------------------ */

void keel_format_header_seal(const struct keel_format_header *header, uint8_t *block)
{
    struct keel_format_header sealed = *header;
    memcpy(sealed.magic, header_magic, sizeof sealed.magic);
    if (sealed.version == 0)
        sealed.version = KEEL_FORMAT_VERSION;
    sealed.header_bytes = KEEL_FORMAT_BLOCK_BYTES;
    sealed.check = 0;
    memset(block, 0, KEEL_FORMAT_BLOCK_BYTES);
    memcpy(block, &sealed, sizeof sealed);
    sealed.check = keel_format_check(block, KEEL_FORMAT_BLOCK_BYTES);
    memcpy(block, &sealed, sizeof sealed);
}

void keel_format_footer_seal(struct keel_format_footer *footer)
{
    memcpy(footer->magic, footer_magic, sizeof footer->magic);
    if (footer->version == 0)
        footer->version = KEEL_FORMAT_VERSION;
    footer->footer_bytes = sizeof *footer;
    footer->check = keel_format_check(footer, offsetof(struct keel_format_footer, check));
}

static bool known_version(uint32_t version)
{
    return version == KEEL_FORMAT_VERSION || version == KEEL_FORMAT_VERSION_WIDE;
}

static enum keel_status other_version(const char *label, uint32_t version)
{
    return keel_fail(KEEL_VERSION,
                     "%s: its format is version %u, this program reads %d and %d; use a newer Keel", label,
                     version, KEEL_FORMAT_VERSION, KEEL_FORMAT_VERSION_WIDE);
}

static enum keel_status newer(const char *label, const char *what)
{
    return keel_fail(KEEL_VERSION, "%s: %s; read it with a newer Keel", label, what);
}

static enum keel_status damaged(const char *label, const char *what)
{
    return keel_fail(KEEL_CORRUPT, "%s: %s; use another snapshot or a copy of this file", label, what);
}

/* A name of a file's struct: ended by NUL, and nothing behind it. */
static bool name_padded(const char *name, size_t capacity)
{
    size_t length = strnlen(name, capacity);
    return length < capacity && keel_format_all_zero(name + length, capacity - length);
}

enum keel_status keel_format_header_open(const uint8_t *block, const char *label,
                                         struct keel_format_header *out)
{
    uint8_t copy[KEEL_FORMAT_BLOCK_BYTES];
    memcpy(copy, block, sizeof copy);
    memset(copy + offsetof(struct keel_format_header, check), 0, sizeof(uint64_t));
    struct keel_format_header header;
    memcpy(&header, block, sizeof header);
    if (memcmp(header.magic, header_magic, sizeof header_magic) != 0)
        return damaged(label, "is no Keel shard, or its header is damaged");
    if (header.check != keel_format_check(copy, sizeof copy))
        return damaged(label, "its header is damaged");
    if (!known_version(header.version) || header.header_bytes != KEEL_FORMAT_BLOCK_BYTES)
        return other_version(label, header.version);
    if (!keel_format_all_zero(block + offsetof(struct keel_format_header, reserved),
                              sizeof header.reserved) ||
        !keel_format_all_zero(block + sizeof header, KEEL_FORMAT_BLOCK_BYTES - sizeof header))
        return newer(label, "its header uses fields that version 1 does not have");
    if ((header.flags & ~(uint32_t)(KEEL_HEADER_BASE | KEEL_HEADER_SEALED)) != 0 || header.zero != 0)
        return newer(label, "its header uses flags that version 1 does not have");
    bool based = (header.flags & KEEL_HEADER_BASE) != 0, sealed = (header.flags & KEEL_HEADER_SEALED) != 0;
    if ((!based && (header.base_step != 0 || header.base_attempt != 0)) ||
        (based && header.base_step == header.step && header.base_attempt == header.attempt) ||
        (!sealed && (!keel_format_all_zero(header.salt, sizeof header.salt) ||
                     !keel_format_all_zero(header.key_check, sizeof header.key_check))))
        return damaged(label, "its header contradicts itself");
    if (!name_padded(header.run, sizeof header.run) || !keel_run_name_valid(header.run))
        return damaged(label, "its header holds no valid run name");
    if (header.rank_count == 0 || header.rank_count > KEEL_SNAPSHOT_RANKS_MAX ||
        header.rank >= header.rank_count)
        return damaged(label, "its header holds an impossible rank");
    *out = header;
    return KEEL_OK;
}

enum keel_status keel_format_footer_open(const uint8_t *bytes, const char *label,
                                         struct keel_format_footer *out)
{
    struct keel_format_footer footer;
    memcpy(&footer, bytes, sizeof footer);
    if (memcmp(footer.magic, footer_magic, sizeof footer_magic) != 0)
        return damaged(label, "has no footer: it is cut off, or damaged at its end");
    if (footer.check != keel_format_check(bytes, offsetof(struct keel_format_footer, check)))
        return damaged(label, "its footer is damaged");
    if (!known_version(footer.version) || footer.footer_bytes != sizeof footer)
        return other_version(label, footer.version);
    uint64_t index_bytes = footer.record_count * (uint64_t)sizeof(struct keel_format_record) +
                           footer.chunk_count * (uint64_t)sizeof(struct keel_format_chunk);
    if (footer.record_count > KEEL_FORMAT_RECORDS_MAX || footer.chunk_count > KEEL_FORMAT_CHUNKS_MAX ||
        footer.index_bytes != index_bytes || footer.file_bytes % KEEL_FORMAT_BLOCK_BYTES != 0 ||
        footer.file_bytes < KEEL_FORMAT_BLOCK_BYTES + index_bytes + sizeof footer ||
        footer.index_offset % KEEL_FORMAT_BLOCK_BYTES != 0 || footer.index_offset < KEEL_FORMAT_BLOCK_BYTES ||
        footer.index_offset > footer.file_bytes - index_bytes - sizeof footer ||
        footer.file_bytes - index_bytes - sizeof footer - footer.index_offset >= KEEL_FORMAT_BLOCK_BYTES)
        return damaged(label, "its footer contradicts itself");
    *out = footer;
    return KEEL_OK;
}

enum keel_status keel_format_ends_match(const struct keel_format_header *header,
                                        const struct keel_format_footer *footer, uint64_t file_bytes,
                                        const char *label)
{
    if (footer->version != header->version || footer->file_bytes != file_bytes ||
        footer->header_check != header->check ||
        ((header->flags & KEEL_HEADER_SEALED) == 0 && !keel_format_all_zero(footer->mac, sizeof footer->mac)))
        return damaged(label, "its parts do not belong together");
    return KEEL_OK;
}

/* ---- index -------------------------------------------------------------------------------------------- */

bool keel_format_rounds(uint32_t copy_dtype, uint32_t master_dtype)
{
    bool narrow = copy_dtype == KEEL_CKPT_BF16 || copy_dtype == KEEL_CKPT_F16;
    return (narrow && (master_dtype == KEEL_CKPT_F32 || master_dtype == KEEL_CKPT_F64)) ||
           (copy_dtype == KEEL_CKPT_F32 && master_dtype == KEEL_CKPT_F64);
}

/* A chunk that refers to a base, or does not. */
static bool base_makes_sense(const struct keel_format_chunk *chunk, const struct keel_format_header *header)
{
    if (chunk->codec == KEEL_CODEC_DELTA)
        return (header->flags & KEEL_HEADER_BASE) != 0 && chunk->chain > 0 &&
               chunk->chain <= KEEL_FORMAT_CHAIN_MAX && chunk->base_rank < KEEL_SNAPSHOT_RANKS_MAX &&
               chunk->base_chunk < KEEL_FORMAT_CHUNKS_MAX;
    return chunk->chain == 0 && chunk->base_rank == 0 && chunk->base_chunk == 0 && chunk->base_check == 0;
}

/* What is stored begins at `place`, and is no larger than its codec allows. */
static bool storage_makes_sense(const struct keel_format_chunk *chunk, uint64_t place)
{
    if (chunk->codec == KEEL_CODEC_SAME)
        return chunk->stored_bytes == 0 && chunk->file_offset == 0 && chunk->flags == 0 &&
               chunk->stored_check == keel_format_check(chunk, 0);
    uint32_t seal = (chunk->flags & KEEL_CHUNK_SEALED) != 0 ? KEEL_FORMAT_SEAL_BYTES : 0;
    uint32_t largest = chunk->raw_bytes + seal;
    return chunk->stored_bytes > seal && chunk->stored_bytes <= largest &&
           (chunk->codec != KEEL_CODEC_RAW || chunk->stored_bytes == largest) && chunk->file_offset == place;
}

static enum keel_status check_chunk(const struct keel_format_chunk *chunk,
                                    const struct keel_format_header *header, uint64_t place,
                                    const char *label)
{
    if (chunk->codec >= KEEL_CODEC_COUNT || (chunk->flags & ~(uint32_t)KEEL_CHUNK_SEALED) != 0 ||
        chunk->zero != 0)
        return newer(label, "a chunk uses a codec or fields that version 1 does not have");
    bool sealed = (chunk->flags & KEEL_CHUNK_SEALED) != 0;
    if (chunk->raw_bytes == 0 || chunk->raw_bytes > KEEL_FORMAT_CHUNK_BYTES ||
        !storage_makes_sense(chunk, place) || !base_makes_sense(chunk, header) ||
        (chunk->codec != KEEL_CODEC_SAME && sealed != ((header->flags & KEEL_HEADER_SEALED) != 0)) ||
        ((header->flags & KEEL_HEADER_SEALED) != 0 && (chunk->raw_check != 0 || chunk->base_check != 0)))
        return damaged(label, "a chunk's entry makes no sense");
    return KEEL_OK;
}

/* A record that says to be a rounded copy: of a record of the same box that is no copy itself. Only its
 * chunks may have the codec same. */
static bool same_makes_sense(const struct keel_format_record *records, uint32_t count, uint32_t number,
                             const struct keel_format_chunk *chunks)
{
    const struct keel_format_record *record = &records[number];
    if (record->same_record == 0) {
        for (uint32_t i = 0; i < record->chunk_count; i++)
            if (chunks[record->first_chunk + i].codec == KEEL_CODEC_SAME)
                return false;
        return true;
    }
    if (record->same_record > count)
        return false;
    const struct keel_format_record *master = &records[record->same_record - 1];
    return master->same_record == 0 && keel_format_rounds(record->dtype, master->dtype) &&
           record->dims == master->dims &&
           memcmp(record->offset, master->offset, sizeof master->offset) == 0 &&
           memcmp(record->extent, master->extent, sizeof master->extent) == 0;
}

static bool unused_dims_are_zero(const struct keel_format_record *record)
{
    for (uint32_t i = record->dims; i < KEEL_TENSOR_DIMS_MAX; i++)
        if (record->shape[i] != 0 || record->offset[i] != 0 || record->extent[i] != 0)
            return false;
    return true;
}

/* No more elements are NaN or infinite than there are, and only those of the first four types are counted. */
static bool nonfinite_makes_sense(const struct keel_format_record *record)
{
    bool counted = record->dtype >= KEEL_CKPT_F32 && record->dtype <= KEEL_CKPT_F16;
    uint64_t elements = record->raw_bytes / keel_ckpt_dtype_bytes((enum keel_ckpt_dtype)record->dtype);
    return record->nonfinite <= (counted ? elements : 0);
}

static enum keel_status check_record(const struct keel_format_record *record, uint32_t version,
                                     const struct keel_format_chunk *chunks, uint64_t first_chunk,
                                     uint32_t chunk_count, const char *label)
{
    if (!keel_format_all_zero(record->reserved, sizeof record->reserved) || record->zero != 0)
        return newer(label, "a record uses fields that version 1 does not have");
    struct keel_region region;
    keel_record_region(record, &region);
    if (!name_padded(record->name, sizeof record->name) || keel_region_check(&region) != KEEL_OK ||
        !unused_dims_are_zero(record) || keel_region_version(&region) > version)
        return damaged(label, "a record's region makes no sense");
    uint64_t size = record->chunk_bytes;
    const uint64_t least = version == KEEL_FORMAT_VERSION ? (uint64_t)KEEL_FORMAT_CHUNK_BYTES_MIN_1
                                                          : (uint64_t)KEEL_FORMAT_CHUNK_BYTES_MIN;
    if (record->raw_bytes != keel_region_bytes(&region) || size < least || size > KEEL_FORMAT_CHUNK_BYTES ||
        size % KEEL_FORMAT_BLOCK_BYTES != 0 || record->first_chunk != first_chunk ||
        record->chunk_count > chunk_count - first_chunk ||
        record->chunk_count != record->raw_bytes / size + (record->raw_bytes % size != 0))
        return damaged(label, "a record's chunks make no sense");
    if (!nonfinite_makes_sense(record))
        return damaged(label, "a record's count of NaN and infinite elements makes no sense");
    for (uint32_t i = 0; i < record->chunk_count; i++) {
        uint64_t left = record->raw_bytes - i * size;
        if (chunks[first_chunk + i].raw_bytes != (left < size ? left : size))
            return damaged(label, "a chunk has another size than its record says");
    }
    return KEEL_OK;
}

enum keel_status keel_format_index_check(const uint8_t *index, const struct keel_format_header *header,
                                         const struct keel_format_footer *footer, const char *label)
{
    uint8_t digest[KEEL_DIGEST_BYTES];
    keel_format_digest(index, footer->index_bytes, digest);
    if (memcmp(digest, footer->index_digest, sizeof digest) != 0)
        return damaged(label, "its index is damaged");
    const struct keel_format_record *records = keel_format_records(index);
    const struct keel_format_chunk *chunks = keel_format_chunks(index, footer->record_count);
    uint64_t raw_bytes = 0, stored_bytes = 0, next_chunk = 0, place = KEEL_FORMAT_BLOCK_BYTES;
    for (uint32_t i = 0; i < footer->chunk_count; i++) {
        KEEL_TRY(check_chunk(&chunks[i], header, place, label));
        raw_bytes += chunks[i].raw_bytes;
        stored_bytes += chunks[i].stored_bytes;
        place += keel_round_up(chunks[i].stored_bytes, KEEL_FORMAT_BLOCK_BYTES);
    }
    for (uint32_t i = 0; i < footer->record_count; i++) {
        KEEL_TRY(check_record(&records[i], header->version, chunks, next_chunk, footer->chunk_count, label));
        next_chunk += records[i].chunk_count;
    }
    for (uint32_t i = 0; i < footer->record_count; i++)
        if (!same_makes_sense(records, footer->record_count, i, chunks))
            return damaged(label, "a record refers to one that it cannot be a copy of");
    if (next_chunk != footer->chunk_count || raw_bytes != footer->raw_bytes ||
        stored_bytes != footer->stored_bytes || place != footer->index_offset)
        return damaged(label, "its index and its footer disagree");
    return KEEL_OK;
}

const struct keel_format_record *keel_format_record_of(const struct keel_format_record *records,
                                                       uint32_t record_count, uint32_t chunk)
{
    uint32_t low = 0, high = record_count; /* the last that begins at the chunk or before */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (records[middle].first_chunk <= chunk)
            low = middle;
        else
            high = middle;
    }
    return &records[low];
}
