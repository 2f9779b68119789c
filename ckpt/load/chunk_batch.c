/* chunk_batch.c - from files to raw bytes, a batch of chunks at a time.
 *
 * A batch is worked off level by level: first the bottom of the longest chain, at the end the chunks
 * themselves. On each level, chunks that lie behind each other in a file are read at once; each is then
 * decoded over its base, in its slot's place. A chunk that fails goes to the sink at once and takes no other
 * with it: when a read of several fails, each is read by itself.
 *
 * Nothing is believed before its check has been seen: stored bytes first, then the raw ones, and for a base
 * that it is the one that the delta was made from. */
#include "chunk_batch.h"
#include "chunk_seal.h"
#include "codec.h"
#include <errno.h>
#include <keel/disk.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

enum { LEVELS = KEEL_FORMAT_CHAIN_MAX + 1 };

struct keel_batch_slot {
    struct keel_chunk_place chain[LEVELS]; /* the chunk, its base, ... */
    uint32_t depth;                        /* bases under it */
    uint32_t raw_at;
    uint64_t raw_check; /* of what was decoded last */
    bool failed;
};

struct batch {
    struct keel_batch_reader *reader;
    enum keel_status (*sink)(void *context, uint32_t index, enum keel_status status, const uint8_t *raw);
    void *context;
};

static const struct keel_format_chunk *entry_of(const struct keel_chunk_place *place)
{
    return &place->shard->chunks[place->chunk];
}

static uint64_t padded_bytes(const struct keel_format_chunk *chunk)
{
    return keel_round_up(chunk->stored_bytes, KEEL_FORMAT_BLOCK_BYTES);
}

/* ---- reader -------------------------------------------------------------------------------------------- */

uint64_t keel_batch_room(const struct keel_format_chunk *chunk)
{
    return keel_round_up(chunk->raw_bytes + KEEL_FORMAT_SEAL_BYTES, KEEL_FORMAT_BLOCK_BYTES);
}

enum keel_status keel_batch_reader_init(struct keel_batch_reader *reader, struct keel_snapshot *snapshot,
                                        bool direct, uint64_t room_bytes, uint64_t chunk_count)
{
    const struct keel_snapshot *based = snapshot->bases_of != NULL ? snapshot->bases_of : snapshot;
    struct keel_batch_reader fresh = {
        .snapshot = snapshot,
        .file_count = 2 * (based->chain + 1),
        .direct = direct,
        .room_bytes = room_bytes < KEEL_BATCH_BYTES_MAX ? room_bytes : KEEL_BATCH_BYTES_MAX,
        .slot_count = (uint32_t)(chunk_count < KEEL_BATCH_CHUNKS_MAX ? chunk_count : KEEL_BATCH_CHUNKS_MAX)};
    uint64_t scratch =
        fresh.room_bytes < KEEL_FORMAT_CHUNK_BYTES ? fresh.room_bytes : KEEL_FORMAT_CHUNK_BYTES;
    uint8_t *memory; /* not touched before it is used, as memory allocated with alignment would be */
    KEEL_TRY(keel_alloc(3 * (uint64_t)KEEL_PAGE_BYTES + 2 * fresh.room_bytes + scratch, 1, &memory));
    enum keel_status status = keel_alloc(fresh.slot_count, sizeof *fresh.slots, &fresh.slots);
    if (status != KEEL_OK) {
        keel_free(memory);
        return status;
    }
    fresh.memory = memory;
    fresh.stored = memory + (-(uintptr_t)memory % KEEL_PAGE_BYTES);
    fresh.raw = fresh.stored + fresh.room_bytes + KEEL_PAGE_BYTES; /* decoders may look a little further */
    fresh.scratch = fresh.raw + fresh.room_bytes;
    *reader = fresh;
    return KEEL_OK;
}

static void close_file(struct keel_batch_file *file)
{
    if (file->shard != NULL)
        keel_disk_close(file->fd);
    *file = (struct keel_batch_file){0};
}

void keel_batch_reader_fini(struct keel_batch_reader *reader)
{
    for (uint32_t i = 0; i < reader->file_count; i++)
        close_file(&reader->files[i]);
    keel_free(reader->slots);
    keel_free(reader->memory);
}

static enum keel_status open_file(struct keel_batch_reader *reader, const struct keel_shard *shard,
                                  struct keel_batch_file **out)
{
    for (uint32_t i = 0; i < reader->file_count; i++)
        if (reader->files[i].shard == shard) {
            *out = &reader->files[i];
            return KEEL_OK;
        }
    struct keel_batch_file *file = &reader->files[reader->next_file];
    int fd;
    KEEL_TRY(keel_shard_open(shard, &fd));
    close_file(file);
    *file = (struct keel_batch_file){.shard = shard, .fd = fd};
    if (reader->direct)
        file->direct = keel_disk_set_direct(file->fd, true);
    reader->next_file = (reader->next_file + 1) % reader->file_count;
    *out = file;
    return KEEL_OK;
}

/* Whole blocks, into `stored`. What direct I/O does not take is tried again through the page cache. */
static enum keel_status read_blocks(struct keel_batch_reader *reader, const struct keel_shard *shard,
                                    uint64_t offset, uint64_t bytes)
{
    char path[KEEL_PATH_BYTES];
    struct keel_batch_file *file;
    KEEL_ASSERT(bytes <= reader->room_bytes);
    KEEL_TRY(keel_shard_path(shard, path));
    KEEL_TRY(open_file(reader, shard, &file));
    enum keel_status status = keel_pread_all(file->fd, reader->stored, bytes, offset, path);
    if (status != KEEL_OK && file->direct) {
        file->direct = keel_disk_set_direct(file->fd, false);
        status = keel_pread_all(file->fd, reader->stored, bytes, offset, path);
    }
    if (status == KEEL_OK)
        reader->read_bytes += bytes;
    return status;
}

/* ---- decoding ------------------------------------------------------------------------------------------ */

/* What lies at `stored` as the slot's chunk of this level: afterwards *out_raw are its raw bytes, in the
 * slot's place or, for a raw chunk, where they were stored. */
static enum keel_status decode(struct keel_batch_reader *reader, struct keel_batch_slot *slot, uint32_t level,
                               uint8_t *stored, const uint8_t **out_raw)
{
    const struct keel_chunk_place *place = &slot->chain[level];
    struct keel_format_chunk chunk = *entry_of(place);
    const struct keel_format_record *record = keel_shard_record_of(place->shard, place->chunk);
    uint32_t element_bytes = keel_ckpt_dtype_bytes((enum keel_ckpt_dtype)record->dtype);
    uint8_t *raw = reader->raw + slot->raw_at;
    if (keel_format_check(stored, chunk.stored_bytes) != chunk.stored_check)
        return keel_fail(KEEL_CORRUPT, "its stored bytes are damaged");
    if (!keel_format_all_zero(stored + chunk.stored_bytes, padded_bytes(&chunk) - chunk.stored_bytes))
        return keel_fail(KEEL_CORRUPT, "the zeros behind it are damaged");
    if (reader->stored_only) {
        *out_raw = stored;
        return KEEL_OK;
    }
    const uint8_t *bytes;
    KEEL_TRY(keel_chunk_open(place->shard->place->key, &place->shard->header, place->chunk, &chunk, stored,
                             &bytes));
    if (chunk.codec == KEEL_CODEC_DELTA && chunk.base_check != slot->raw_check)
        return keel_fail(KEEL_CORRUPT, "its base holds other bytes than those that it was made from");
    if (chunk.codec == KEEL_CODEC_RAW && level == 0) {
        *out_raw = bytes;
    } else {
        KEEL_TRY(keel_codec_decode((enum keel_codec)chunk.codec, element_bytes, bytes, chunk.stored_bytes,
                                   raw, raw, chunk.raw_bytes, reader->scratch));
        *out_raw = raw;
    }
    bool seen = bytes == stored && chunk.codec == KEEL_CODEC_RAW && chunk.raw_check == chunk.stored_check;
    if (!seen && keel_format_check(*out_raw, chunk.raw_bytes) != chunk.raw_check)
        return keel_fail(KEEL_CORRUPT, "its decoded bytes are not those that were saved");
    slot->raw_check = chunk.raw_check;
    return KEEL_OK;
}

/* Tell the sink, with file, tensor and chunk, and where the base lies when that was what failed. */
static enum keel_status fail_slot(struct batch *batch, uint32_t index, uint32_t level,
                                  enum keel_status status)
{
    struct keel_batch_slot *slot = &batch->reader->slots[index];
    const struct keel_chunk_place *place = &slot->chain[0];
    const struct keel_format_record *record = keel_shard_record_of(place->shard, place->chunk);
    char path[KEEL_PATH_BYTES], reason[KEEL_DETAIL_BYTES], base[128] = "";
    slot->failed = true;
    snprintf(reason, sizeof reason, "%s", keel_detail());
    if (level > 0)
        snprintf(base, sizeof base, "its base, %s rank %u chunk %u: ", slot->chain[level].shard->place->name,
                 slot->chain[level].shard->header.rank, slot->chain[level].chunk);
    KEEL_TRY(keel_shard_path(place->shard, path));
    const char *why = reason;
    if (strncmp(reason, path, strlen(path)) == 0 && reason[strlen(path)] == ':')
        why = reason + strlen(path) + strspn(reason + strlen(path), ": ");
    bool advised = status == KEEL_AUTH || keel_is_shortage(status) || /* another would need as much */
                   strstr(why, "; use another") != NULL;
    keel_fail(status, "%s: tensor %s, chunk %llu of %u: %s%s%s", path, record->name,
              (unsigned long long)(place->chunk - record->first_chunk), record->chunk_count, base, why,
              advised ? "" : "; use another snapshot");
    return batch->sink(batch->context, index, status, NULL);
}

static enum keel_status finish_slot(struct batch *batch, uint32_t index, uint32_t level, uint8_t *stored)
{
    const uint8_t *raw = NULL;
    enum keel_status status = decode(batch->reader, &batch->reader->slots[index], level, stored, &raw);
    if (status != KEEL_OK)
        return fail_slot(batch, index, level, status);
    return level == 0 ? batch->sink(batch->context, index, KEEL_OK, raw) : KEEL_OK;
}

/* ---- levels -------------------------------------------------------------------------------------------- */

static bool in_level(const struct keel_batch_slot *slot, uint32_t level)
{
    return slot->depth >= level && !slot->failed;
}

/* Slots [from, to) of the level lie behind each other from `offset` on, `bytes` in all. */
static enum keel_status read_run(struct batch *batch, uint32_t level, uint32_t from, uint32_t to,
                                 uint64_t offset, uint64_t bytes)
{
    struct keel_batch_reader *reader = batch->reader;
    struct keel_batch_slot *slots = reader->slots;
    bool one = padded_bytes(entry_of(&slots[from].chain[level])) == bytes;
    enum keel_status status = read_blocks(reader, slots[from].chain[level].shard, offset, bytes);
    if (status != KEEL_OK && one)
        return fail_slot(batch, from, level, status);
    uint64_t at = 0;
    for (uint32_t i = from; i < to; i++) {
        if (!in_level(&slots[i], level))
            continue;
        uint64_t padded = padded_bytes(entry_of(&slots[i].chain[level]));
        if (status == KEEL_OK)
            KEEL_TRY(finish_slot(batch, i, level, reader->stored + at));
        else
            KEEL_TRY(read_run(batch, level, i, i + 1, offset + at, padded));
        at += padded;
    }
    return KEEL_OK;
}

static enum keel_status read_level(struct batch *batch, uint32_t level, uint32_t count)
{
    struct keel_batch_slot *slots = batch->reader->slots;
    uint32_t first = 0;
    while (first < count) {
        if (!in_level(&slots[first], level)) {
            first++;
            continue;
        }
        const struct keel_shard *shard = slots[first].chain[level].shard;
        uint64_t offset = entry_of(&slots[first].chain[level])->file_offset, bytes = 0;
        uint32_t behind = first;
        for (; behind < count; behind++) {
            const struct keel_chunk_place *place = &slots[behind].chain[level];
            if (!in_level(&slots[behind], level))
                continue;
            uint64_t padded = padded_bytes(entry_of(place));
            if (place->shard != shard || entry_of(place)->file_offset != offset + bytes ||
                bytes + padded > batch->reader->room_bytes)
                break;
            bytes += padded;
        }
        KEEL_TRY(read_run(batch, level, first, behind, offset, bytes));
        first = behind;
    }
    return KEEL_OK;
}

/* The chunks under the slot's, down to one that stands alone. */
static enum keel_status follow_chain(struct keel_batch_reader *reader, struct keel_batch_slot *slot)
{
    while (!reader->stored_only && entry_of(&slot->chain[slot->depth])->codec == KEEL_CODEC_DELTA) {
        KEEL_ASSERT(slot->depth < KEEL_FORMAT_CHAIN_MAX); /* as the chain falls */
        KEEL_TRY(
            keel_snapshot_base_of(reader->snapshot, slot->chain[slot->depth], &slot->chain[slot->depth + 1]));
        slot->depth++;
        reader->base_bytes += entry_of(&slot->chain[slot->depth])->stored_bytes;
    }
    return KEEL_OK;
}

uint32_t keel_batch_fit(const struct keel_shard *shard, const uint32_t *chunks, uint32_t count)
{
    uint64_t raw = 0, stored = 0;
    for (uint32_t i = 0; i < count && i < KEEL_BATCH_CHUNKS_MAX; i++) {
        const struct keel_format_chunk *chunk = &shard->chunks[chunks[i]];
        raw += keel_round_up(chunk->raw_bytes, KEEL_CACHE_LINE_BYTES);
        stored += padded_bytes(chunk);
        if (i > 0 && (raw > KEEL_BATCH_BYTES_MAX || stored > KEEL_BATCH_BYTES_MAX))
            return i;
    }
    return count < KEEL_BATCH_CHUNKS_MAX ? count : KEEL_BATCH_CHUNKS_MAX;
}

enum keel_status keel_batch_read(struct keel_batch_reader *reader, const struct keel_shard *shard,
                                 const uint32_t *chunks, uint32_t count,
                                 enum keel_status (*sink)(void *context, uint32_t index,
                                                          enum keel_status status, const uint8_t *raw),
                                 void *context)
{
    struct batch batch = {reader, sink, context};
    uint32_t raw_at = 0, deepest = 0;
    KEEL_ASSERT(count <= reader->slot_count);
    for (uint32_t i = 0; i < count; i++) {
        struct keel_batch_slot *slot = &reader->slots[i];
        const struct keel_format_chunk *chunk = &shard->chunks[chunks[i]];
        KEEL_ASSERT(chunk->codec != KEEL_CODEC_SAME);
        slot->chain[0] = (struct keel_chunk_place){shard, chunks[i]};
        slot->depth = 0;
        slot->failed = false;
        slot->raw_at = raw_at;
        raw_at += (uint32_t)keel_round_up(chunk->raw_bytes, KEEL_CACHE_LINE_BYTES);
        KEEL_ASSERT(raw_at <= reader->room_bytes);
        enum keel_status status = follow_chain(reader, slot);
        if (status != KEEL_OK)
            KEEL_TRY(fail_slot(&batch, i, 0, status));
        if (slot->depth > deepest && !slot->failed)
            deepest = slot->depth;
    }
    for (uint32_t level = deepest + 1; level-- > 0;)
        KEEL_TRY(read_level(&batch, level, count));
    return KEEL_OK;
}
