/* tier_verify.c - is an object of a tier what its name says, and sound in every byte that has a check?
 * Needs no key: chunks are checked as they are stored, not decoded.
 *
 * A copy reads the bytes again after they were verified. So verification leaves the digest of exactly the
 * bytes that it checked in source->info, and the copy compares what it read with that. */
#include "manifest.h"
#include "parity.h"
#include "tier.h"
#include "tier_digest.h"
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

static enum keel_status foreign(const struct keel_tier_source *source, const char *run, uint64_t step,
                                uint64_t attempt)
{
    return keel_fail(KEEL_MISMATCH, "%s: holds a file of %s/step-%llu.%llu; use another copy",
                     keel_source_label(source).text, run, (unsigned long long)step,
                     (unsigned long long)attempt);
}

static enum keel_status damaged(const struct keel_tier_source *source, const char *what)
{
    return keel_fail(KEEL_CORRUPT, "%s: %s; use another copy", keel_source_label(source).text, what);
}

/* ---- shards -------------------------------------------------------------------------------------------- */

enum keel_status keel_frame_load_ends(struct keel_tier_source *source, struct keel_frame *out)
{
    uint8_t block[KEEL_FORMAT_BLOCK_BYTES], end[sizeof(struct keel_format_footer)];
    const struct keel_object *object = &source->info.object;
    struct keel_frame frame = {0};
    const struct keel_label label = keel_source_label(source);
    if (source->info.bytes < sizeof block + sizeof end)
        return damaged(source, "is cut off");
    KEEL_TRY(keel_tier_read(source, 0, block, sizeof block));
    KEEL_TRY(keel_format_header_open(block, label.text, &frame.header));
    KEEL_TRY(keel_tier_read(source, source->info.bytes - sizeof end, end, sizeof end));
    KEEL_TRY(keel_format_footer_open(end, label.text, &frame.footer));
    KEEL_TRY(keel_format_ends_match(&frame.header, &frame.footer, source->info.bytes, label.text));
    if (strcmp(frame.header.run, source->tier->run) != 0 || frame.header.step != object->step ||
        frame.header.attempt != object->attempt || frame.header.rank != object->member)
        return foreign(source, frame.header.run, frame.header.step, frame.header.attempt);
    *out = frame;
    return KEEL_OK;
}

static enum keel_status load_index(struct keel_tier_source *source, struct keel_frame *frame)
{
    const struct keel_format_footer *footer = &frame->footer;
    uint64_t bytes = footer->file_bytes - sizeof *footer - footer->index_offset;
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, bytes, &frame->index));
    KEEL_TRY(keel_tier_read(source, footer->index_offset, frame->index, keel_size(bytes)));
    KEEL_TRY(keel_format_index_check(frame->index, &frame->header, footer, keel_source_label(source).text));
    if (!keel_format_all_zero(frame->index + footer->index_bytes, bytes - footer->index_bytes))
        return damaged(source, "bytes behind its index are damaged");
    return KEEL_OK;
}

enum keel_status keel_frame_load(struct keel_tier_source *source, struct keel_frame *out)
{
    struct keel_frame frame = {0};
    KEEL_TRY(keel_frame_load_ends(source, &frame));
    enum keel_status status = load_index(source, &frame);
    if (status != KEEL_OK) {
        keel_frame_unload(&frame);
        return status;
    }
    *out = frame;
    return KEEL_OK;
}

void keel_frame_unload(struct keel_frame *frame)
{
    keel_free(frame->index);
    frame->index = NULL;
}

/* One chunk as it is stored, with the zeros behind it. `buffer`: the largest chunk, sealed, and a block. */
static enum keel_status check_stored(struct keel_tier_source *source, const struct keel_format_chunk *chunk,
                                     uint8_t *buffer)
{
    size_t padded = keel_size(keel_round_up(chunk->stored_bytes, KEEL_FORMAT_BLOCK_BYTES));
    KEEL_TRY(keel_tier_read(source, chunk->file_offset, buffer, padded));
    if (keel_format_check(buffer, chunk->stored_bytes) != chunk->stored_check)
        return keel_fail(KEEL_CORRUPT, "its stored bytes are damaged");
    if (!keel_format_all_zero(buffer + chunk->stored_bytes, padded - chunk->stored_bytes))
        return keel_fail(KEEL_CORRUPT, "the zeros behind it are damaged");
    return KEEL_OK;
}

/* A shard that is looked through, from its begin to its end: parts follow each other without a gap. */
struct look {
    uint8_t buffer[KEEL_FORMAT_CHUNK_BYTES + 2 * KEEL_FORMAT_BLOCK_BYTES]; /* begins with a page */
    struct keel_digest_stream digest;                                      /* of what has been seen */
    bool wanted;
};

static void note_bytes(struct look *look, const void *data, size_t bytes)
{
    if (look->wanted)
        keel_digest_add(&look->digest, data, bytes);
}

static void note_header(struct look *look, const struct keel_frame *frame, bool wanted)
{
    uint8_t block[KEEL_FORMAT_BLOCK_BYTES];
    keel_digest_begin(&look->digest);
    look->wanted = wanted;
    keel_format_header_seal(&frame->header, block);
    note_bytes(look, block, sizeof block);
}

static void note_end(struct look *look, const struct keel_frame *frame)
{
    const struct keel_format_footer *footer = &frame->footer;
    note_bytes(look, frame->index, keel_size(footer->file_bytes - sizeof *footer - footer->index_offset));
    note_bytes(look, footer, sizeof *footer);
}

static enum keel_status check_chunks(struct keel_tier_source *source, const struct keel_frame *frame,
                                     struct look *look)
{
    const struct keel_format_record *records = keel_format_records(frame->index);
    const struct keel_format_chunk *chunks = keel_format_chunks(frame->index, frame->footer.record_count);
    for (uint32_t r = 0; r < frame->footer.record_count; r++)
        for (uint32_t i = 0; i < records[r].chunk_count; i++) {
            const struct keel_format_chunk *chunk = &chunks[records[r].first_chunk + i];
            enum keel_status status = check_stored(source, chunk, look->buffer);
            if (status == KEEL_OK) {
                note_bytes(look, look->buffer,
                           keel_size(keel_round_up(chunk->stored_bytes, KEEL_FORMAT_BLOCK_BYTES)));
                continue;
            }
            return keel_fail(status, "%s: tensor %s, chunk %u of %u: %s; use another copy",
                             keel_source_label(source).text, records[r].name, i, records[r].chunk_count,
                             keel_detail());
        }
    return KEEL_OK;
}

static enum keel_status verify_shard(struct keel_tier_source *source)
{
    struct keel_frame frame;
    struct look *look = NULL;
    KEEL_TRY(keel_frame_load(source, &frame));
    enum keel_status status = keel_alloc_aligned(KEEL_PAGE_BYTES, sizeof *look, &look);
    if (status == KEEL_OK) {
        note_header(look, &frame, !source->info.digest_known);
        status = check_chunks(source, &frame, look);
        note_end(look, &frame);
    }
    if (status == KEEL_OK && look->wanted) { /* the index was checked: chunks lie in its order */
        keel_digest_end(&look->digest, source->info.digest);
        source->info.digest_known = true;
    }
    keel_free(look);
    keel_frame_unload(&frame);
    return status;
}

/* ---- manifests ----------------------------------------------------------------------------------------- */

/* *text is set, and the caller's, only on OK. */
static enum keel_status read_manifest(struct keel_tier_source *source, struct keel_manifest *out,
                                      char **out_text)
{
    char *text;
    const struct keel_object *object = &source->info.object;
    if (source->info.bytes > KEEL_MANIFEST_BYTES_MAX)
        return damaged(source, "is too large for a manifest");
    KEEL_TRY(keel_alloc(source->info.bytes, 1, &text));
    enum keel_status status = keel_tier_read(source, 0, text, keel_size(source->info.bytes));
    if (status == KEEL_OK)
        status =
            keel_manifest_decode(text, keel_size(source->info.bytes), keel_source_label(source).text, out);
    if (status == KEEL_OK && (strcmp(out->run, source->tier->run) != 0 || out->info.step != object->step ||
                              out->info.attempt != object->attempt)) {
        status = foreign(source, out->run, out->info.step, out->info.attempt);
        keel_manifest_fini(out);
    }
    if (status != KEEL_OK) {
        keel_free(text);
        return status;
    }
    if (!source->info.digest_known) {
        keel_format_digest(text, source->info.bytes, source->info.digest);
        source->info.digest_known = true;
    }
    *out_text = text;
    return KEEL_OK;
}

enum keel_status keel_manifest_from_tier(struct keel_tier *tier, const struct keel_object *object,
                                         struct keel_manifest *out, char **out_text, uint64_t *out_bytes)
{
    struct keel_tier_source *source;
    char *text = NULL;
    KEEL_TRY(keel_tier_open(tier, object, &source));
    enum keel_status status = read_manifest(source, out, &text);
    const uint64_t bytes = source->info.bytes;
    keel_tier_close_source(source);
    KEEL_TRY(status);
    if (out_text == NULL) {
        keel_free(text);
        return KEEL_OK;
    }
    *out_text = text;
    *out_bytes = bytes;
    return KEEL_OK;
}

static enum keel_status verify_manifest(struct keel_tier_source *source)
{
    struct keel_manifest manifest;
    char *text = NULL;
    KEEL_TRY(read_manifest(source, &manifest, &text));
    keel_free(text);
    keel_manifest_fini(&manifest);
    return KEEL_OK;
}

/* ---- all ----------------------------------------------------------------------------------------------- */

enum keel_status keel_source_quick_check(struct keel_tier_source *source)
{
    struct keel_frame frame;
    switch (source->info.object.kind) {
    case KEEL_OBJECT_SHARD:
        return keel_frame_load_ends(source, &frame);
    case KEEL_OBJECT_MANIFEST:
        return verify_manifest(source);
    case KEEL_OBJECT_PARITY:
        return keel_parity_quick_check(source);
    default:
        return keel_fail(KEEL_INVALID, "%s: no such object", source->tier->name);
    }
}

enum keel_status keel_source_verify(struct keel_tier_source *source)
{
    switch (source->info.object.kind) {
    case KEEL_OBJECT_SHARD:
        return verify_shard(source);
    case KEEL_OBJECT_MANIFEST:
        return verify_manifest(source);
    case KEEL_OBJECT_PARITY:
        return keel_parity_verify(source);
    default:
        return keel_fail(KEEL_INVALID, "%s: no such object", source->tier->name);
    }
}

enum keel_status keel_tier_look(struct keel_tier *tier, const struct keel_object *object,
                                struct keel_object_info *out)
{
    struct keel_tier_source *source;
    KEEL_TRY(keel_tier_open(tier, object, &source));
    enum keel_status status = keel_source_verify(source);
    *out = source->info;
    keel_tier_close_source(source);
    return status;
}

enum keel_status keel_tier_verify(struct keel_tier *tier, const struct keel_object *object)
{
    struct keel_object_info info;
    return keel_tier_look(tier, object, &info);
}
