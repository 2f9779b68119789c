/* save_capture.c - regions into the arena, by one thread or several.
 *
 * A whole arena is filled in pieces of many chunks. A smaller one is a ring: chunk after chunk, each
 * placed behind the newest, waiting for the drain while the ring is full. In a ring a master's chunk may have
 * been overwritten before its rounded copy is captured, so the master is read a second time here to compare
 * them; in a whole arena the drain compares both.
 */
#include "codec.h"
#include "save.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

enum { MASTER_PIECE_BYTES = 256 << 10 };

/* Chunks that are read by one call. */
struct piece {
    uint32_t first, count;
    uint64_t bytes;
};

/* ---- the arena ----------------------------------------------------------------------------------------- */

/* Where `bytes` fit behind the newest chunk of the ring, or UINT64_MAX. Caller holds the lock. */
static uint64_t ring_find(const struct keel_save *save, uint64_t bytes)
{
    if (save->tail == save->claimed)
        return 0;
    uint64_t head = save->arena_head, tail = save->jobs[save->tail].arena_at;
    if (head > tail && save->arena_bytes - head >= bytes)
        return head;
    if (head > tail)
        return tail > bytes ? 0 : UINT64_MAX;
    return tail - head > bytes ? head : UINT64_MAX;
}

/* The next chunk, with a place in the ring. Caller holds the lock. */
static bool claim_in_ring(struct keel_save *save, struct piece *out)
{
    struct keel_save_job *job = &save->jobs[save->claimed];
    uint64_t bytes = keel_round_up(job->raw_bytes, KEEL_SAVE_ALIGNMENT_BYTES), at = ring_find(save, bytes);
    if (at == UINT64_MAX)
        return false;
    KEEL_ASSERT(at + bytes <= save->arena_bytes);
    job->arena_at = at;
    save->arena_head = at + bytes;
    *out = (struct piece){save->claimed, 1, job->raw_bytes};
    return true;
}

/* The next chunks of one record. Caller holds the lock. */
static void claim_whole(const struct keel_save *save, struct piece *out)
{
    *out = (struct piece){.first = save->claimed};
    for (uint32_t i = out->first; i < save->chunk_count && out->bytes < KEEL_SAVE_PIECE_BYTES &&
                                  save->jobs[i].record == save->jobs[out->first].record;
         i++) {
        out->count++;
        out->bytes += save->jobs[i].raw_bytes;
    }
}

/* No chunk is left when out->count is 0. */
static enum keel_status claim(struct keel_save *save, struct piece *out)
{
    *out = (struct piece){0};
    keel_mutex_lock(&save->lock);
    while (!save->stopping && save->claimed < save->chunk_count) {
        if (save->whole)
            claim_whole(save, out);
        if (save->whole || claim_in_ring(save, out))
            break;
        keel_cond_wait(&save->moved, &save->lock, KEEL_NEVER);
    }
    save->claimed += out->count;
    bool stopping = save->stopping;
    keel_mutex_unlock(&save->lock);
    return stopping ? keel_save_interrupted() : KEEL_OK;
}

static void hand_over(struct keel_save *save, const struct piece *piece)
{
    keel_mutex_lock(&save->lock);
    for (uint32_t i = 0; i < piece->count; i++)
        save->jobs[piece->first + i].captured = true;
    while (save->captured < save->claimed && save->jobs[save->captured].captured)
        save->captured++;
    keel_cond_broadcast(&save->moved);
    keel_mutex_unlock(&save->lock);
}

/* ---- copies of masters --------------------------------------------------------------------------------- */

/* Compare a chunk in the ring with its master, which is read in pieces. */
static enum keel_status compare_with_master(struct keel_save *save, struct keel_save_job *job,
                                            uint8_t *scratch)
{
    uint32_t master_record = save->same_as[job->record];
    enum keel_ckpt_dtype copy = (enum keel_ckpt_dtype)save->records[job->record].dtype;
    enum keel_ckpt_dtype master = (enum keel_ckpt_dtype)save->records[master_record].dtype;
    uint64_t copy_bytes = keel_ckpt_dtype_bytes(copy), master_bytes = keel_ckpt_dtype_bytes(master);
    uint64_t first = job->raw_offset / copy_bytes, count = job->raw_bytes / copy_bytes, part;
    const uint8_t *raw = save->arena + job->arena_at;
    bool same = true;
    for (uint64_t at = 0; at < count && same; at += part) {
        part = MASTER_PIECE_BYTES / master_bytes;
        part = part < count - at ? part : count - at;
        KEEL_TRY(save->read(save->context, master_record, (first + at) * master_bytes, part * master_bytes,
                            scratch));
        same = keel_codec_rounds_same(copy, master, raw + at * copy_bytes, scratch, keel_size(part));
    }
    job->same = same;
    return KEEL_OK;
}

static enum keel_status capture_all(struct keel_save *save, uint8_t *scratch)
{
    for (;;) {
        struct piece piece;
        KEEL_TRY(claim(save, &piece));
        if (piece.count == 0)
            return KEEL_OK;
        struct keel_save_job *job = &save->jobs[piece.first];
        KEEL_TRY(save->read(save->context, job->record, job->raw_offset, piece.bytes,
                            save->arena + job->arena_at));
        if (scratch != NULL && save->same_as[job->record] != KEEL_SAME_AS_NONE)
            KEEL_TRY(compare_with_master(save, job, scratch));
        hand_over(save, &piece);
    }
}

enum keel_status keel_save_capture(struct keel_save *save)
{
    uint8_t *scratch = NULL;
    if (save->same_as != NULL && !save->whole)
        KEEL_TRY(keel_alloc(MASTER_PIECE_BYTES, 1, &scratch));
    enum keel_status status = capture_all(save, scratch);
    keel_free(scratch);
    return status;
}
