/* snapshot_verify.c - every chunk of every shard read and checked, and every tensor seen to be whole. Of a
 * rounded copy's chunks, which store nothing, the check of their bytes against their master's rounding. And
 * of each record whether as many elements are NaN or infinite as it says. */
#include "chunk_batch.h"
#include "codec.h"
#include <keel/disk.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

struct verify {
    void (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes);
    void (*damaged_each)(void *context, const struct keel_damage *damage);
    void *context;
    uint64_t done_bytes, total_bytes;
    uint32_t damaged;
    enum keel_status first;
    char first_detail[KEEL_DETAIL_BYTES];
    struct keel_batch_reader reader;
    const struct keel_shard *shard;
    uint64_t *nonfinite; /* owned; counted, of each record of the shard; NOT_KNOWN: not all of it was seen */
    uint32_t chunks[KEEL_BATCH_CHUNKS_MAX];
};
#define NOT_KNOWN UINT64_MAX

/* Damage is counted; what makes further reading pointless (no memory, no descriptor) is returned. */
static enum keel_status note(struct verify *verify, const struct keel_damage *damage)
{
    enum keel_status status = damage->status;
    if (status != KEEL_CORRUPT && status != KEEL_FORGED && status != KEEL_IO)
        return status;
    if (verify->damaged_each != NULL)
        verify->damaged_each(verify->context, damage);
    verify->damaged++;
    if (verify->first == KEEL_OK) {
        verify->first = status;
        snprintf(verify->first_detail, sizeof verify->first_detail, "%s", keel_detail());
    }
    return KEEL_OK;
}

static enum keel_status note_chunk(struct verify *verify, enum keel_status status, uint32_t chunk)
{
    const struct keel_format_record *record = keel_shard_record_of(verify->shard, chunk);
    return note(verify, &(struct keel_damage){.status = status,
                                              .shard = verify->shard,
                                              .record = record,
                                              .chunk = (uint32_t)(chunk - record->first_chunk)});
}

/* What a chunk decodes to; NULL: it cannot be had. */
static void count_nonfinite(struct verify *verify, uint32_t chunk, const uint8_t *raw)
{
    const struct keel_format_record *record = keel_shard_record_of(verify->shard, chunk);
    uint64_t *count = &verify->nonfinite[record - verify->shard->records];
    if (raw == NULL || *count == NOT_KNOWN)
        *count = NOT_KNOWN;
    else
        *count += keel_codec_nonfinite((enum keel_ckpt_dtype)record->dtype, raw,
                                       verify->shard->chunks[chunk].raw_bytes);
}

static void step(struct verify *verify, uint32_t chunk)
{
    verify->done_bytes += verify->shard->chunks[chunk].raw_bytes;
    if (verify->progress != NULL)
        verify->progress(verify->context, verify->done_bytes, verify->total_bytes);
}

/* ---- stored chunks ------------------------------------------------------------------------------------- */

static enum keel_status see_chunk(void *context, uint32_t index, enum keel_status status, const uint8_t *raw)
{
    struct verify *verify = context;
    step(verify, verify->chunks[index]);
    count_nonfinite(verify, verify->chunks[index], verify->reader.stored_only ? NULL : raw);
    return note_chunk(verify, status, verify->chunks[index]);
}

static enum keel_status verify_stored(struct verify *verify)
{
    const struct keel_shard *shard = verify->shard;
    uint32_t next = 0, total = shard->footer.chunk_count;
    while (next < total) {
        uint32_t count = 0;
        for (; next < total && count < KEEL_BATCH_CHUNKS_MAX; next++)
            if (shard->chunks[next].codec != KEEL_CODEC_SAME)
                verify->chunks[count++] = next;
        if (count == 0)
            break;
        uint32_t fit = keel_batch_fit(shard, verify->chunks, count);
        next = fit < count ? verify->chunks[fit] : next;
        KEEL_TRY(keel_batch_read(&verify->reader, shard, verify->chunks, fit, see_chunk, verify));
    }
    return KEEL_OK;
}

/* ---- rounded copies ------------------------------------------------------------------------------------ */

/* Elements [from, to) of a copy, put together from its master's chunks. */
struct rounding {
    const struct keel_format_record *copy, *master;
    uint64_t from, to, chunk_elements; /* of the master */
    uint32_t first_chunk;              /* read now */
    uint8_t *raw;                      /* a chunk of the copy */
};

static enum keel_status round_chunk(void *context, uint32_t index, enum keel_status status,
                                    const uint8_t *raw)
{
    struct rounding *rounding = context;
    enum keel_ckpt_dtype copy = (enum keel_ckpt_dtype)rounding->copy->dtype;
    enum keel_ckpt_dtype master = (enum keel_ckpt_dtype)rounding->master->dtype;
    uint64_t begin =
        (rounding->first_chunk + index - rounding->master->first_chunk) * rounding->chunk_elements;
    uint64_t end = begin + rounding->chunk_elements;
    uint64_t from = begin > rounding->from ? begin : rounding->from,
             to = end < rounding->to ? end : rounding->to;
    if (status != KEEL_OK)
        return status;
    keel_codec_round(copy, master, raw + (from - begin) * keel_ckpt_dtype_bytes(master), keel_size(to - from),
                     rounding->raw + (from - rounding->from) * keel_ckpt_dtype_bytes(copy));
    return KEEL_OK;
}

static enum keel_status verify_same(struct verify *verify, struct rounding *rounding, uint32_t number)
{
    const struct keel_format_record *copy = rounding->copy, *master = rounding->master;
    const struct keel_format_chunk *chunk = &verify->shard->chunks[copy->first_chunk + number];
    uint32_t size = keel_ckpt_dtype_bytes((enum keel_ckpt_dtype)copy->dtype);
    rounding->from = number * (uint64_t)(copy->chunk_bytes / size);
    rounding->to = rounding->from + chunk->raw_bytes / size;
    rounding->chunk_elements =
        master->chunk_bytes / keel_ckpt_dtype_bytes((enum keel_ckpt_dtype)master->dtype);
    uint64_t first = rounding->from / rounding->chunk_elements;
    uint64_t behind = (rounding->to - 1) / rounding->chunk_elements + 1;
    while (first < behind) {
        uint32_t count = 0;
        rounding->first_chunk = (uint32_t)(master->first_chunk + first);
        for (; first + count < behind && count < KEEL_BATCH_CHUNKS_MAX; count++)
            verify->chunks[count] = rounding->first_chunk + count;
        count = keel_batch_fit(verify->shard, verify->chunks, count);
        KEEL_TRY(
            keel_batch_read(&verify->reader, verify->shard, verify->chunks, count, round_chunk, rounding));
        first += count;
    }
    if ((verify->shard->header.flags & KEEL_HEADER_SEALED) != 0 || /* it has no check; its master vouches */
        keel_format_check(rounding->raw, chunk->raw_bytes) == chunk->raw_check)
        return KEEL_OK;
    char path[KEEL_PATH_BYTES];
    KEEL_TRY(keel_shard_path(verify->shard, path));
    return keel_fail(KEEL_CORRUPT,
                     "%s: tensor %s, chunk %u of %u: is not the rounding of %s; use another snapshot", path,
                     copy->name, number, copy->chunk_count, master->name);
}

static enum keel_status verify_copies(struct verify *verify)
{
    const struct keel_shard *shard = verify->shard;
    struct rounding rounding = {0};
    KEEL_TRY(keel_alloc(KEEL_FORMAT_CHUNK_BYTES, 1, &rounding.raw));
    enum keel_status status = KEEL_OK;
    for (uint32_t r = 0; r < shard->footer.record_count && status == KEEL_OK; r++) {
        rounding.copy = &shard->records[r];
        if (rounding.copy->same_record == 0)
            continue;
        rounding.master = &shard->records[rounding.copy->same_record - 1];
        for (uint32_t c = 0; c < rounding.copy->chunk_count && status == KEEL_OK; c++) {
            uint32_t chunk = (uint32_t)rounding.copy->first_chunk + c;
            if (shard->chunks[chunk].codec != KEEL_CODEC_SAME)
                continue;
            enum keel_status same = verify->reader.stored_only ? KEEL_OK : verify_same(verify, &rounding, c);
            bool seen = same == KEEL_OK && !verify->reader.stored_only;
            status = note_chunk(verify, same, chunk);
            count_nonfinite(verify, chunk, seen ? rounding.raw : NULL);
            step(verify, chunk);
        }
    }
    keel_free(rounding.raw);
    return status;
}

/* ---- all ----------------------------------------------------------------------------------------------- */

static enum keel_status check_counts(struct verify *verify)
{
    char path[KEEL_PATH_BYTES];
    KEEL_TRY(keel_shard_path(verify->shard, path));
    for (uint32_t r = 0; r < verify->shard->footer.record_count; r++) {
        const struct keel_format_record *record = &verify->shard->records[r];
        uint64_t counted = verify->nonfinite[r];
        if (counted == NOT_KNOWN || counted == record->nonfinite)
            continue;
        struct keel_damage damage = {.shard = verify->shard, .record = record, .chunk = KEEL_DAMAGE_RECORD};
        damage.status =
            keel_fail(KEEL_CORRUPT,
                      "%s: tensor %s: %llu elements are NaN or infinite, and its record says %llu; "
                      "use another snapshot",
                      path, record->name, (unsigned long long)counted, (unsigned long long)record->nonfinite);
        KEEL_TRY(note(verify, &damage));
    }
    return KEEL_OK;
}

static enum keel_status verify_shard(struct verify *verify, const struct keel_shard *shard)
{
    verify->shard = shard;
    KEEL_TRY(keel_alloc(shard->footer.record_count, sizeof *verify->nonfinite, &verify->nonfinite));
    enum keel_status status = verify_stored(verify);
    if (status == KEEL_OK)
        status = verify_copies(verify);
    if (status == KEEL_OK)
        status = check_counts(verify);
    keel_free(verify->nonfinite);
    return status;
}

static enum keel_status verify_all(const struct keel_snapshot *snapshot, struct verify *verify)
{
    KEEL_ASSERT(snapshot->missing_count == 0);
    for (uint32_t i = 0; i < snapshot->manifest.info.shard_count; i++)
        KEEL_TRY(verify_shard(verify, &snapshot->shards[i]));
    for (uint32_t i = 0; i < snapshot->tensor_count; i++) {
        struct keel_region whole;
        KEEL_TRY(keel_snapshot_tensor(snapshot, i, &whole));
        struct keel_box box = keel_box_of(&whole);
        struct keel_damage damage = {
            .status = keel_snapshot_cover(snapshot, &snapshot->tensors[i], &box, NULL, NULL, NULL),
            .record = keel_snapshot_record(snapshot, snapshot->tensors[i].first_piece)};
        KEEL_TRY(note(verify, &damage));
    }
    return KEEL_OK;
}

/* The merged index, if there is one, is what the shards make it. */
static enum keel_status verify_merged(const struct keel_snapshot *snapshot, struct verify *verify)
{
    uint8_t *wanted;
    size_t bytes;
    struct stat info;
    struct keel_damage damage = {.chunk = KEEL_DAMAGE_RECORD};
    if (snapshot->manifest.info.sealed ||
        keel_disk_stat(snapshot->place.fd, KEEL_MERGED_NAME, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return KEEL_OK;
    KEEL_TRY(keel_merged_make(snapshot, &wanted, &bytes));
    const bool same = keel_merged_is(snapshot, wanted, bytes);
    keel_free(wanted);
    if (!same)
        damage.status = keel_fail(
            KEEL_CORRUPT, "%s/%s: is not what the shards say; remove it, which costs nothing but time",
            snapshot->place.path, KEEL_MERGED_NAME);
    return note(verify, &damage);
}

enum keel_status keel_snapshot_verify_each(struct keel_snapshot *snapshot,
                                           void (*progress)(void *context, uint64_t done_bytes,
                                                            uint64_t total_bytes),
                                           void (*damaged)(void *context, const struct keel_damage *damage),
                                           void *context, uint32_t *out_damaged)
{
    struct verify *verify;
    KEEL_ASSERT(snapshot != NULL && snapshot->handle == KEEL_HANDLE_OPEN);
    enum keel_status status = keel_snapshot_whole(snapshot, &snapshot);
    if (status == KEEL_CORRUPT && out_damaged != NULL)
        *out_damaged = 1;
    KEEL_TRY(status);
    KEEL_TRY(keel_alloc(1, sizeof *verify, &verify));
    *verify = (struct verify){.progress = progress,
                              .damaged_each = damaged,
                              .context = context,
                              .total_bytes = snapshot->manifest.info.raw_bytes};
    status =
        keel_batch_reader_init(&verify->reader, snapshot, true, KEEL_BATCH_BYTES_MAX, KEEL_BATCH_CHUNKS_MAX);
    if (status == KEEL_OK) {
        verify->reader.stored_only = snapshot->manifest.info.sealed && snapshot->place.key == NULL;
        status = verify_all(snapshot, verify);
        if (status == KEEL_OK)
            status = verify_merged(snapshot, verify);
        keel_batch_reader_fini(&verify->reader);
    }
    if (status == KEEL_OK) {
        if (out_damaged != NULL)
            *out_damaged = verify->damaged;
        if (verify->damaged > 0) {
            keel_detail_set(verify->first_detail);
            status = verify->first == KEEL_IO ? KEEL_CORRUPT : verify->first;
        }
    }
    keel_free(verify);
    return status;
}

enum keel_status keel_snapshot_verify(struct keel_snapshot *snapshot,
                                      void (*progress)(void *context, uint64_t done_bytes,
                                                       uint64_t total_bytes),
                                      void *context, uint32_t *out_damaged)
{
    return keel_snapshot_verify_each(snapshot, progress, NULL, context, out_damaged);
}
