/* save_encode.c - chunks out of the arena, encoded side by side, then appended to the stream in order (so the
 * file does not depend on the number of threads); whoever appended the last one appends index and footer. */
#include "chunk_seal.h"
#include "codec.h"
#include "save.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

enum {
    DELTA_MARGIN = 32
}; /* a delta saves a 32nd of the raw bytes, or planes, which need no base, are taken */

/* A drain thread's own buffers, on the heap. */
struct drain {
    struct keel_save *save;
    bool in_background;
    uint8_t *memory; /* owned: `stored` with room for a seal around it */
    uint8_t *stored; /* of the codec */
    uint8_t *scratch;
};

/* A chunk encoded: what goes into the file, and into the index. */
struct coded {
    struct keel_format_chunk entry;
    const uint8_t *bytes; /* entry.stored_bytes of them: in the thread's buffer, or in the arena */
    uint64_t nonfinite;
    struct keel_chunk_note note;
};

/* ---- taking turns -------------------------------------------------------------------------------------- */

/* The next captured chunk to encode; false when none will come. In the background nothing is encoded before a
 * whole arena is captured: it would take memory's time from the capture, for which somebody may wait. */
static enum keel_status take_chunk(struct drain *drain, uint32_t *out_chunk, bool *out_more)
{
    struct keel_save *save = drain->save;
    keel_mutex_lock(&save->lock);
    uint32_t enough = save->background && save->whole ? save->chunk_count : 0;
    while (!save->stopping && !(drain->in_background && save->hurried) && save->taken < save->chunk_count &&
           (save->taken == save->captured || save->captured < enough))
        keel_cond_wait(&save->moved, &save->lock, KEEL_NEVER);
    bool stopping = save->stopping;
    *out_more = save->taken < save->captured && !(drain->in_background && save->hurried);
    if (!stopping && *out_more)
        *out_chunk = save->taken++;
    keel_mutex_unlock(&save->lock);
    return stopping ? keel_save_interrupted() : KEEL_OK;
}

/* Until `chunks` are captured: only of a whole arena, where that needs no drain to go on. */
static enum keel_status wait_captured(struct keel_save *save, uint64_t chunks)
{
    keel_mutex_lock(&save->lock);
    while (!save->stopping && save->captured < chunks)
        keel_cond_wait(&save->moved, &save->lock, KEEL_NEVER);
    bool stopping = save->stopping;
    keel_mutex_unlock(&save->lock);
    return stopping ? keel_save_interrupted() : KEEL_OK;
}

static enum keel_status wait_turn(struct keel_save *save, uint32_t chunk)
{
    keel_mutex_lock(&save->lock);
    while (!save->stopping && save->placed != chunk)
        keel_cond_wait(&save->moved, &save->lock, KEEL_NEVER);
    bool stopping = save->stopping;
    keel_mutex_unlock(&save->lock);
    return stopping ? keel_save_interrupted() : KEEL_OK;
}

/* The chunk is in the stream, and its place in the ring is free again. */
static void end_turn(struct keel_save *save, uint32_t chunk)
{
    keel_mutex_lock(&save->lock);
    save->placed++;
    save->jobs[chunk].released = true;
    while (save->tail < save->captured && save->jobs[save->tail].released)
        save->tail++;
    keel_cond_broadcast(&save->moved);
    keel_mutex_unlock(&save->lock);
}

/* ---- encoding ------------------------------------------------------------------------------------------ */

/* Is the chunk the rounding of its master? A ring's chunks were compared while they were captured. */
static enum keel_status see_same(struct keel_save *save, const struct keel_save_job *job, bool *out)
{
    *out = job->same;
    if (save->same_as == NULL || !save->whole || save->same_as[job->record] == KEEL_SAME_AS_NONE)
        return KEEL_OK;
    const struct keel_format_record *record = &save->records[job->record];
    const struct keel_format_record *master = &save->records[save->same_as[job->record]];
    enum keel_ckpt_dtype copy_dtype = (enum keel_ckpt_dtype)record->dtype;
    enum keel_ckpt_dtype master_dtype = (enum keel_ckpt_dtype)master->dtype;
    uint64_t size = keel_ckpt_dtype_bytes(copy_dtype), master_size = keel_ckpt_dtype_bytes(master_dtype);
    uint64_t from = job->raw_offset / size * master_size, count = job->raw_bytes / size;
    uint64_t last = (from + count * master_size - 1) / master->chunk_bytes;
    KEEL_TRY(wait_captured(save, master->first_chunk + last + 1));
    const uint8_t *masters = save->arena + save->jobs[master->first_chunk].arena_at + from;
    *out = keel_codec_rounds_same(copy_dtype, master_dtype, save->arena + job->arena_at, masters,
                                  keel_size(count));
    return KEEL_OK;
}

/* The same chunk of the base, if deltas may refer to it. */
static const struct keel_format_chunk *base_entry(const struct keel_save *save, uint32_t chunk)
{
    if (save->codec != KEEL_CODEC_DELTA)
        return NULL;
    const struct keel_format_chunk *entry = &keel_format_chunks(save->base->index, save->record_count)[chunk];
    return entry->codec == KEEL_CODEC_SAME ? NULL : entry;
}

/* As a delta, if that is clearly smaller than the planes were when last tried. */
static bool encode_delta(struct drain *drain, uint32_t chunk, uint32_t width, const uint8_t *raw,
                         struct coded *out)
{
    const struct keel_save *save = drain->save;
    const struct keel_base *base = save->base;
    const struct keel_format_chunk *under = base_entry(save, chunk);
    if (under == NULL)
        return false;
    uint32_t raw_bytes = out->entry.raw_bytes, planes_bytes = base->notes[chunk].planes_bytes;
    const uint8_t *base_raw = base->workspace.data + KEEL_STREAM_MEMORY_BYTES + save->jobs[chunk].arena_at;
    enum keel_codec codec;
    uint32_t bytes = keel_codec_encode(KEEL_CODEC_DELTA, width, raw, base_raw, raw_bytes, drain->stored,
                                       drain->scratch, &codec);
    uint32_t limit = planes_bytes > 0 ? planes_bytes : raw_bytes;
    if (codec != KEEL_CODEC_DELTA || bytes + raw_bytes / DELTA_MARGIN > limit)
        return false;
    out->note.planes_bytes = planes_bytes;
    out->entry.codec = KEEL_CODEC_DELTA;
    out->entry.stored_bytes = bytes;
    out->entry.base_check = base->notes[chunk].raw_check;
    out->entry.base_rank = save->header.rank;
    out->entry.base_chunk = chunk;
    out->entry.chain = under->chain + 1;
    return true;
}

static void encode_bytes(struct drain *drain, uint32_t chunk, const uint8_t *raw, struct coded *out)
{
    struct keel_save *save = drain->save;
    const struct keel_save_job *job = &save->jobs[chunk];
    uint32_t width = keel_ckpt_dtype_bytes((enum keel_ckpt_dtype)save->records[job->record].dtype);
    out->bytes = raw;
    out->entry.codec = KEEL_CODEC_RAW;
    out->entry.stored_bytes = job->raw_bytes;
    if (save->codec == KEEL_CODEC_RAW)
        return;
    if (!encode_delta(drain, chunk, width, raw, out)) {
        enum keel_codec codec;
        out->entry.stored_bytes = keel_codec_encode(KEEL_CODEC_PLANES, width, raw, NULL, job->raw_bytes,
                                                    drain->stored, drain->scratch, &codec);
        out->entry.codec = codec;
        out->note.planes_bytes = out->entry.stored_bytes;
    }
    if (out->entry.codec != KEEL_CODEC_RAW)
        out->bytes = drain->stored;
}

/* In the thread's buffer. A chunk that stores nothing is vouched for by its master. */
static void seal_chunk(struct drain *drain, uint32_t chunk, struct coded *coded)
{
    const struct keel_save *save = drain->save;
    if (coded->entry.codec == KEEL_CODEC_SAME) {
        coded->entry.raw_check = 0;
        return;
    }
    if (coded->bytes != drain->stored)
        memcpy(drain->stored, coded->bytes, coded->entry.stored_bytes);
    keel_chunk_seal(save->store->key, &save->header, chunk, &coded->entry, drain->memory);
    coded->bytes = drain->memory;
}

static enum keel_status encode_chunk(struct drain *drain, uint32_t chunk, struct coded *out)
{
    struct keel_save *save = drain->save;
    const struct keel_save_job *job = &save->jobs[chunk];
    const uint8_t *raw = save->arena + job->arena_at;
    bool same;
    *out = (struct coded){.bytes = raw, .entry = {.raw_bytes = job->raw_bytes}};
    out->entry.raw_check = keel_format_check(raw, job->raw_bytes);
    out->note.raw_check = out->entry.raw_check;
    out->nonfinite =
        keel_codec_nonfinite((enum keel_ckpt_dtype)save->records[job->record].dtype, raw, job->raw_bytes);
    KEEL_TRY(see_same(save, job, &same));
    if (same)
        out->entry.codec = KEEL_CODEC_SAME;
    else
        encode_bytes(drain, chunk, raw, out);
    if (save->store->key != NULL)
        seal_chunk(drain, chunk, out);
    out->entry.stored_check = out->entry.codec == KEEL_CODEC_RAW && out->bytes == raw
                                  ? out->entry.raw_check
                                  : keel_format_check(out->bytes, out->entry.stored_bytes);
    return KEEL_OK;
}

/* ---- appending ----------------------------------------------------------------------------------------- */

/* In turn: to the stream, and into the index. */
static enum keel_status append_chunk(struct keel_save *save, uint32_t chunk, struct coded *coded)
{
    struct keel_format_record *record = &save->records[save->jobs[chunk].record];
    bool same = coded->entry.codec == KEEL_CODEC_SAME;
    KEEL_ASSERT(save->placed == chunk && chunk < save->chunk_count);
    KEEL_ASSERT(save->stream.appended % KEEL_FORMAT_BLOCK_BYTES == 0);
    KEEL_ASSERT(same == (coded->entry.stored_bytes == 0));
    KEEL_ASSERT(coded->entry.stored_bytes <= coded->entry.raw_bytes + KEEL_FORMAT_SEAL_BYTES);
    KEEL_ASSERT((coded->entry.chain > 0) == (coded->entry.codec == KEEL_CODEC_DELTA));
    if (!same)
        coded->entry.file_offset = save->stream.appended;
    if (same)
        record->same_record = save->same_as[save->jobs[chunk].record] + 1;
    record->nonfinite += coded->nonfinite;
    save->any_delta = save->any_delta || coded->entry.codec == KEEL_CODEC_DELTA;
    save->chunks[chunk] = coded->entry;
    if (save->notes != NULL)
        save->notes[chunk] = coded->note;
    KEEL_TRY(keel_save_stream_append(&save->stream, coded->bytes, coded->entry.stored_bytes,
                                     coded->entry.raw_bytes));
    return keel_save_stream_pad(&save->stream, 0);
}

static enum keel_status drain_chunk(struct drain *drain, uint32_t chunk)
{
    struct coded coded;
    KEEL_TRY(encode_chunk(drain, chunk, &coded));
    KEEL_TRY(wait_turn(drain->save, chunk));
    KEEL_TRY(append_chunk(drain->save, chunk, &coded));
    end_turn(drain->save, chunk);
    return KEEL_OK;
}

/* What goes into the file is what readers take, by the same checks that they make. */
static void assert_readable(const struct keel_save *save, const struct keel_format_footer *footer)
{
    struct keel_format_footer again;
    KEEL_ASSERT(keel_format_footer_open((const uint8_t *)footer, save->path, &again) == KEEL_OK);
    KEEL_ASSERT(keel_format_ends_match(&save->header, footer, footer->file_bytes, save->path) == KEEL_OK);
    KEEL_ASSERT(keel_format_index_check(save->index, &save->header, footer, save->path) == KEEL_OK);
}

/* Index and footer, by exactly one thread, after the last chunk. */
static enum keel_status append_tail(struct keel_save *save)
{
    keel_mutex_lock(&save->lock);
    bool mine = save->placed == save->chunk_count && !save->tail_claimed;
    if (mine)
        save->tail_claimed = true;
    keel_mutex_unlock(&save->lock);
    if (!mine)
        return KEEL_OK;
    struct keel_format_footer footer = {.version = save->header.version,
                                        .index_offset = save->stream.appended,
                                        .index_bytes = save->index_bytes,
                                        .record_count = save->record_count,
                                        .chunk_count = save->chunk_count,
                                        .header_check = save->header.check};
    for (uint32_t i = 0; i < save->chunk_count; i++) {
        footer.raw_bytes += save->chunks[i].raw_bytes;
        footer.stored_bytes += save->chunks[i].stored_bytes;
    }
    keel_format_digest(save->index, save->index_bytes, footer.index_digest);
    footer.file_bytes =
        keel_round_up(footer.index_offset + footer.index_bytes + sizeof footer, KEEL_FORMAT_BLOCK_BYTES);
    keel_format_footer_seal(&footer);
    if (save->store->key != NULL) {
        keel_shard_mac(save->store->key, &save->header, save->index, &footer);
        keel_format_footer_seal(&footer);
    }
    assert_readable(save, &footer);
    KEEL_TRY(keel_save_stream_append(&save->stream, save->index, save->index_bytes, 0));
    KEEL_TRY(keel_save_stream_pad(&save->stream, sizeof footer));
    KEEL_TRY(keel_save_stream_append(&save->stream, &footer, sizeof footer, 0));
    KEEL_ASSERT(save->stream.appended == footer.file_bytes);
    save->summary.record_count = footer.record_count;
    save->summary.file_bytes = footer.file_bytes;
    save->summary.raw_bytes = footer.raw_bytes;
    save->summary.stored_bytes = footer.stored_bytes;
    memcpy(save->summary.index_digest, footer.index_digest, sizeof footer.index_digest);
    keel_save_stream_end(&save->stream);
    return KEEL_OK;
}

static enum keel_status drain_all(struct drain *drain)
{
    for (;;) {
        uint32_t chunk = 0;
        bool more;
        KEEL_TRY(take_chunk(drain, &chunk, &more));
        if (!more)
            return append_tail(drain->save);
        KEEL_TRY(drain_chunk(drain, chunk));
    }
}

enum keel_status keel_save_drain(struct keel_save *save, bool in_background)
{
    struct drain drain = {.save = save, .in_background = in_background};
    uint64_t room = KEEL_FORMAT_CHUNK_BYTES + KEEL_CODEC_SLACK_BYTES;
    enum keel_status status = keel_alloc(room + KEEL_FORMAT_SEAL_BYTES, 1, &drain.memory);
    if (status == KEEL_OK) {
        drain.stored = drain.memory + KEEL_SEAL_FRONT_BYTES;
        status = keel_alloc(room, 1, &drain.scratch);
    }
    if (status == KEEL_OK)
        status = drain_all(&drain);
    keel_free(drain.memory);
    keel_free(drain.scratch);
    return status;
}
