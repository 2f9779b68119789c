/* tier_repair_shard.c - one shard, whole again, byte for byte as the manifest knows it.
 *
 * First a tier that has it whole. If none has, header, index and footer from one whose are right, and then
 * each chunk from any that has it sound: its checks are in the index, and the index is pinned by the
 * manifest, so parts of several damaged copies make one sound file. A chunk that no copy has may still be
 * computed: where other shards of the snapshot hold the same elements (replicas), they are read and encoded
 * again, and count when they come out as exactly the bytes that were stored. All bytes between are zero by
 * the format. */
#include "tier_repair_shard.h"
#include "codec.h"
#include "snapshot.h"
#include "tier_digest.h"
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>

enum { CHUNK_BUFFER_BYTES = KEEL_FORMAT_CHUNK_BYTES + 2 * KEEL_FORMAT_BLOCK_BYTES };

struct assembly {
    struct keel_repair_shard *shard_repair;
    struct keel_tier_source
        *sources[KEEL_REPAIR_SHARD_TIERS_MAX + 1]; /* owned; the store's own first, if there */
    uint32_t source_count;
    struct keel_frame frame;
    uint8_t *chunk; /* owned; CHUNK_BUFFER_BYTES each */
    uint8_t *raw, *scratch;
    struct keel_tier_sink *sink; /* owned; NULL when nothing is to be written */
    struct keel_digest_stream digest;
    uint64_t written_bytes;
    uint32_t from_copies, from_replicas; /* chunks: of other tiers; computed */
    char denied[KEEL_DETAIL_BYTES];      /* of the first copy that may not be looked at; "": none */
};

void keel_repair_shard_fini(struct keel_repair_shard *shard_repair)
{
    keel_snapshot_close(shard_repair->snapshot);
    shard_repair->snapshot = NULL;
}

static struct keel_object shard_of(const struct keel_repair_shard *shard_repair, uint32_t rank)
{
    return (struct keel_object){.step = shard_repair->manifest->info.step,
                                .attempt = shard_repair->manifest->info.attempt,
                                .kind = KEEL_OBJECT_SHARD,
                                .member = rank};
}

/* MISMATCH when the frame is of another file than the manifest speaks of. */
static enum keel_status match(const struct keel_repair_shard *shard_repair,
                              const struct keel_tier_source *source, const struct keel_frame *frame)
{
    const struct keel_shard_summary *summary = &shard_repair->manifest->shards[frame->header.rank];
    const struct keel_format_footer *footer = &frame->footer;
    if (frame->header.rank_count == shard_repair->manifest->info.shard_count &&
        footer->file_bytes == summary->file_bytes && footer->record_count == summary->record_count &&
        footer->raw_bytes == summary->raw_bytes && footer->stored_bytes == summary->stored_bytes &&
        memcmp(footer->index_digest, summary->index_digest, KEEL_DIGEST_BYTES) == 0)
        return KEEL_OK;
    return keel_fail(KEEL_MISMATCH, "%s: is not the file that the manifest describes; use another copy",
                     keel_source_label(source).text);
}

static enum keel_status check_source(const struct keel_repair_shard *shard_repair,
                                     struct keel_tier_source *source)
{
    struct keel_frame frame;
    KEEL_TRY(keel_frame_load_ends(source, &frame));
    KEEL_TRY(match(shard_repair, source, &frame));
    return keel_source_verify(source);
}

enum keel_status keel_repair_shard_check(const struct keel_repair_shard *shard_repair, struct keel_tier *tier,
                                         uint32_t rank)
{
    const struct keel_object object = shard_of(shard_repair, rank);
    struct keel_tier_source *source;
    KEEL_TRY(keel_tier_open(tier, &object, &source));
    enum keel_status status = check_source(shard_repair, source);
    keel_tier_close_source(source);
    return status;
}

/* ---- a whole copy -------------------------------------------------------------------------------------- */

static enum keel_status copy_whole(const struct keel_repair_shard *shard_repair, struct keel_tier *tier,
                                   uint32_t rank)
{
    const struct keel_object object = shard_of(shard_repair, rank);
    struct keel_tier_source *source;
    KEEL_TRY(keel_tier_open(tier, &object, &source));
    enum keel_status status = check_source(shard_repair, source);
    if (status == KEEL_OK && !shard_repair->dry_run)
        status = keel_source_copy(source, shard_repair->self);
    keel_tier_close_source(source);
    return status;
}

/* ---- replicas ------------------------------------------------------------------------------------------ */

/* Tried once; NULL when it cannot be had. */
static enum keel_status open_snapshot(struct keel_repair_shard *shard_repair, struct keel_snapshot **out)
{
    enum keel_status status = KEEL_OK;
    if (!shard_repair->snapshot_tried)
        status = keel_snapshot_open(shard_repair->store, shard_repair->manifest->info.step,
                                    shard_repair->manifest->info.attempt, &shard_repair->snapshot);
    if (keel_is_shortage(status))
        return status;
    shard_repair->snapshot_tried = true;
    *out = shard_repair->snapshot;
    return KEEL_OK;
}

/* Into assembly->chunk, as it was stored; *out_made false: no replica gives it. Not for deltas and sealed
 * chunks, whose bytes follow from more than their elements. */
static enum keel_status compute_chunk(struct assembly *assembly, const struct keel_format_record *record,
                                      const struct keel_format_chunk *chunk, uint32_t number, bool *out_made)
{
    const uint32_t element_bytes = keel_ckpt_dtype_bytes((enum keel_ckpt_dtype)record->dtype);
    struct keel_snapshot *snapshot = NULL;
    struct keel_region box;
    enum keel_codec codec;
    *out_made = false;
    if ((chunk->flags & KEEL_CHUNK_SEALED) != 0 ||
        (chunk->codec != KEEL_CODEC_RAW && chunk->codec != KEEL_CODEC_PLANES))
        return KEEL_OK;
    KEEL_TRY(open_snapshot(assembly->shard_repair, &snapshot));
    if (snapshot == NULL)
        return KEEL_OK;
    uint64_t first = number * (uint64_t)record->chunk_bytes / element_bytes;
    keel_record_region(record, &box);
    enum keel_status status =
        keel_snapshot_read_elements(snapshot, &box, first, chunk->raw_bytes / element_bytes, assembly->raw);
    if (status != KEEL_OK || keel_format_check(assembly->raw, chunk->raw_bytes) != chunk->raw_check)
        return keel_is_shortage(status) ? status : KEEL_OK;
    uint32_t stored_bytes =
        keel_codec_encode((enum keel_codec)chunk->codec, element_bytes, assembly->raw, NULL, chunk->raw_bytes,
                          assembly->chunk, assembly->scratch, &codec);
    *out_made = stored_bytes == chunk->stored_bytes && (uint32_t)codec == chunk->codec &&
                keel_format_check(assembly->chunk, stored_bytes) == chunk->stored_check;
    return KEEL_OK;
}

/* ---- assembling ---------------------------------------------------------------------------------------- */

static enum keel_status open_sources(struct assembly *assembly, uint32_t rank)
{
    const struct keel_repair_shard *shard_repair = assembly->shard_repair;
    const struct keel_object object = shard_of(shard_repair, rank);
    for (uint32_t i = 0; i <= shard_repair->tier_count; i++) {
        struct keel_tier_source *source;
        enum keel_status status =
            keel_tier_open(i == 0 ? shard_repair->self : shard_repair->tiers[i - 1], &object, &source);
        if (status == KEEL_DENIED && assembly->denied[0] == '\0')
            snprintf(assembly->denied, sizeof assembly->denied, "%s", keel_detail());
        if (keel_is_shortage(status))
            return status;
        if (status != KEEL_OK)
            continue;
        if (source->info.bytes == shard_repair->manifest->shards[rank].file_bytes)
            assembly->sources[assembly->source_count++] = source;
        else
            keel_tier_close_source(source);
    }
    return KEEL_OK;
}

static enum keel_status find_frame(struct assembly *assembly, uint32_t rank)
{
    for (uint32_t i = 0; i < assembly->source_count; i++) {
        enum keel_status status = keel_frame_load(assembly->sources[i], &assembly->frame);
        if (keel_is_shortage(status))
            return status;
        if (status != KEEL_OK)
            continue;
        if (match(assembly->shard_repair, assembly->sources[i], &assembly->frame) == KEEL_OK)
            return KEEL_OK;
        keel_frame_unload(&assembly->frame);
    }
    char name[KEEL_OBJECT_NAME_BYTES];
    const struct keel_object object = shard_of(assembly->shard_repair, rank);
    keel_object_name(&object, name);
    return keel_fail(KEEL_CORRUPT, "%s: no copy has its header, index and footer sound; use another snapshot",
                     name);
}

static enum keel_status put(struct assembly *assembly, const void *data, size_t bytes)
{
    if (assembly->sink == NULL)
        return KEEL_OK;
    keel_digest_add(&assembly->digest, data, bytes);
    assembly->written_bytes += bytes;
    return keel_tier_write(assembly->sink, data, bytes);
}

/* Zeros up to that place in the file. */
static enum keel_status put_zeros(struct assembly *assembly, uint64_t until)
{
    static const uint8_t zeros[KEEL_FORMAT_BLOCK_BYTES];
    if (assembly->sink == NULL)
        return KEEL_OK;
    while (assembly->written_bytes < until) {
        uint64_t left = until - assembly->written_bytes;
        KEEL_TRY(put(assembly, zeros, left < sizeof zeros ? (size_t)left : sizeof zeros));
    }
    return KEEL_OK;
}

/* Into assembly->chunk, from the first that has it sound. */
static bool fetch_chunk(struct assembly *assembly, const struct keel_format_chunk *chunk)
{
    for (uint32_t i = 0; i < assembly->source_count; i++) {
        struct keel_tier_source *source = assembly->sources[i];
        if (keel_tier_read(source, chunk->file_offset, assembly->chunk, chunk->stored_bytes) != KEEL_OK ||
            keel_format_check(assembly->chunk, chunk->stored_bytes) != chunk->stored_check)
            continue;
        assembly->from_copies += source->tier != assembly->shard_repair->self;
        return true;
    }
    return false;
}

static enum keel_status put_chunk(struct assembly *assembly, uint32_t number)
{
    const struct keel_frame *frame = &assembly->frame;
    const struct keel_format_chunk *chunk =
        &keel_format_chunks(frame->index, frame->footer.record_count)[number];
    if (chunk->stored_bytes == 0)
        return KEEL_OK;
    if (!fetch_chunk(assembly, chunk)) {
        const struct keel_format_record *record =
            keel_format_record_of(keel_format_records(frame->index), frame->footer.record_count, number);
        uint32_t of_record = number - (uint32_t)record->first_chunk;
        bool made;
        KEEL_TRY(compute_chunk(assembly, record, chunk, of_record, &made));
        if (!made) {
            char name[KEEL_OBJECT_NAME_BYTES];
            const struct keel_object object = shard_of(assembly->shard_repair, frame->header.rank);
            keel_object_name(&object, name);
            return keel_fail(KEEL_CORRUPT,
                             "%s: tensor %s, chunk %u of %u: no copy of it is sound; use another snapshot",
                             name, record->name, of_record, record->chunk_count);
        }
        assembly->from_replicas++;
    }
    KEEL_TRY(put_zeros(assembly, chunk->file_offset));
    return put(assembly, assembly->chunk, chunk->stored_bytes);
}

static enum keel_status put_all(struct assembly *assembly)
{
    const struct keel_frame *frame = &assembly->frame;
    uint8_t block[KEEL_FORMAT_BLOCK_BYTES];
    keel_digest_begin(&assembly->digest);
    keel_format_header_seal(&frame->header, block);
    KEEL_TRY(put(assembly, block, sizeof block));
    for (uint32_t i = 0; i < frame->footer.chunk_count; i++)
        KEEL_TRY(put_chunk(assembly, i));
    KEEL_TRY(put_zeros(assembly, frame->footer.index_offset));
    KEEL_TRY(put(assembly, frame->index, keel_size(frame->footer.index_bytes)));
    KEEL_TRY(put_zeros(assembly, frame->footer.file_bytes - sizeof frame->footer));
    return put(assembly, &frame->footer, sizeof frame->footer);
}

static enum keel_status assemble(struct assembly *assembly, uint32_t rank)
{
    const struct keel_object object = shard_of(assembly->shard_repair, rank);
    KEEL_TRY(open_sources(assembly, rank));
    KEEL_TRY(find_frame(assembly, rank));
    KEEL_TRY(keel_alloc(3, CHUNK_BUFFER_BYTES, &assembly->chunk));
    assembly->raw = assembly->chunk + CHUNK_BUFFER_BYTES;
    assembly->scratch = assembly->raw + CHUNK_BUFFER_BYTES;
    if (!assembly->shard_repair->dry_run)
        KEEL_TRY(keel_tier_create(assembly->shard_repair->self, &object, assembly->frame.footer.file_bytes,
                                  &assembly->sink));
    KEEL_TRY(put_all(assembly));
    if (assembly->sink == NULL)
        return KEEL_OK;
    uint8_t digest[KEEL_DIGEST_BYTES];
    struct keel_tier_sink *sink = assembly->sink;
    keel_digest_end(&assembly->digest, digest);
    assembly->sink = NULL;
    return keel_tier_commit(sink, digest);
}

enum keel_status keel_repair_shard_run(struct keel_repair_shard *shard_repair, uint32_t rank,
                                       char out_from[KEEL_DETAIL_BYTES])
{
    struct assembly *assembly;
    char parity[KEEL_DETAIL_BYTES] = ""; /* why a set could not compute it */
    for (uint32_t i = 0; i < shard_repair->tier_count; i++) {
        enum keel_status status = copy_whole(shard_repair, shard_repair->tiers[i], rank);
        if (keel_is_shortage(status))
            return status;
        if (status != KEEL_OK && shard_repair->tiers[i]->latency == KEEL_LATENCY_ERASURE)
            snprintf(parity, sizeof parity, "%s", keel_detail());
        if (status != KEEL_OK)
            continue;
        snprintf(out_from, KEEL_DETAIL_BYTES, "from %s", shard_repair->tiers[i]->name);
        return KEEL_OK;
    }
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, sizeof *assembly, &assembly));
    memset(assembly, 0, sizeof *assembly);
    assembly->shard_repair = shard_repair;
    enum keel_status status = assemble(assembly, rank);
    if (status == KEEL_CORRUPT && assembly->denied[0] != '\0') /* it may be sound for who may read it */
        status = keel_fail(KEEL_DENIED, "%s", assembly->denied);
    else if (status == KEEL_CORRUPT && parity[0] != '\0')
        status = keel_fail(status, "%.240s; by parity: %.240s", keel_detail(), parity);
    snprintf(out_from, KEEL_DETAIL_BYTES, "from its own sound chunks, %u of other tiers, %u of replicas",
             assembly->from_copies, assembly->from_replicas);
    keel_tier_abort(assembly->sink);
    for (uint32_t i = 0; i < assembly->source_count; i++)
        keel_tier_close_source(assembly->sources[i]);
    keel_frame_unload(&assembly->frame);
    keel_free(assembly->chunk);
    keel_free(assembly);
    return status;
}
