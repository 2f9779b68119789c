/* snapshot.c - opening a snapshot: manifest, shards, and the table of tensors that spans them.
 * Everything is checked here but the chunks, which are checked as they are read. */
#include "snapshot.h"
#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>

/* ---- table of tensors
 * ---------------------------------------------------------------------------------------- */

const struct keel_format_record *keel_snapshot_record(const struct keel_snapshot *snapshot, uint32_t piece)
{
    struct keel_piece p = snapshot->pieces[piece];
    return &snapshot->shards[p.shard].records[p.record];
}

static int compare_u64(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int compare_pieces(const void *a, const void *b, void *context)
{
    const struct keel_snapshot *snapshot = context;
    const struct keel_piece *x = a, *y = b;
    const struct keel_format_record *p = &snapshot->shards[x->shard].records[x->record];
    const struct keel_format_record *q = &snapshot->shards[y->shard].records[y->record];
    int order = strcmp(p->name, q->name);
    for (uint32_t i = 0; i < KEEL_TENSOR_DIMS_MAX && order == 0; i++)
        order = compare_u64(p->offset[i], q->offset[i]);
    if (order == 0)
        order = compare_u64(x->shard, y->shard);
    return order != 0 ? order : compare_u64(x->record, y->record);
}

static enum keel_status list_pieces(struct keel_snapshot *snapshot)
{
    uint64_t count = 0;
    for (uint32_t s = 0; s < snapshot->manifest.info.shard_count; s++)
        count += snapshot->shards[s].footer.record_count;
    if (count > UINT32_MAX)
        return keel_fail(KEEL_LIMIT, "%s: more than %u records", snapshot->place.path, UINT32_MAX);
    KEEL_TRY(keel_alloc(count, sizeof *snapshot->pieces, &snapshot->pieces));
    KEEL_TRY(keel_alloc(count, sizeof *snapshot->tensors, &snapshot->tensors));
    for (uint32_t s = 0; s < snapshot->manifest.info.shard_count; s++)
        for (uint32_t r = 0; r < snapshot->shards[s].footer.record_count; r++)
            snapshot->pieces[snapshot->piece_count++] = (struct keel_piece){s, r};
    if (count > 0)
        qsort_r(snapshot->pieces, count, sizeof *snapshot->pieces, compare_pieces, snapshot);
    return KEEL_OK;
}

static enum keel_status build_table(struct keel_snapshot *snapshot)
{
    KEEL_TRY(list_pieces(snapshot));
    for (uint32_t i = 0; i < snapshot->piece_count; i++) {
        const struct keel_format_record *record = keel_snapshot_record(snapshot, i);
        const struct keel_format_record *before = i > 0 ? keel_snapshot_record(snapshot, i - 1) : NULL;
        if (before == NULL || strcmp(before->name, record->name) != 0)
            snapshot->tensors[snapshot->tensor_count++] = (struct keel_tensor){.first_piece = i};
        else if (before->dtype != record->dtype || before->dims != record->dims ||
                 memcmp(before->shape, record->shape, sizeof record->shape) != 0)
            return keel_fail(
                KEEL_CORRUPT, "%s: tensor %s: ranks %u and %u saved it with different shapes or dtypes",
                snapshot->place.path, record->name, snapshot->pieces[i - 1].shard, snapshot->pieces[i].shard);
        snapshot->tensors[snapshot->tensor_count - 1].piece_count++;
    }
    return KEEL_OK;
}

/* ---- open and close
 * ------------------------------------------------------------------------------------------ */

static enum keel_status load_shards(struct keel_snapshot *snapshot)
{
    const struct keel_manifest *manifest = &snapshot->manifest;
    uint32_t count = manifest->info.shard_count;
    KEEL_TRY(keel_alloc(count, sizeof *snapshot->shards, &snapshot->shards));
    for (uint32_t i = 0; i < count; i++) {
        KEEL_TRY(keel_shard_load(&snapshot->place, i, &snapshot->shards[i]));
        KEEL_TRY(keel_shard_match(&snapshot->shards[i], &snapshot->place, manifest->run, count,
                                  &manifest->shards[i]));
    }
    return KEEL_OK;
}

enum keel_status keel_snapshot_assemble(struct keel_step_place *place, struct keel_manifest *manifest,
                                        struct keel_snapshot **out)
{
    struct keel_snapshot *snapshot;
    enum keel_status status = keel_alloc(1, sizeof *snapshot, &snapshot);
    if (status != KEEL_OK) {
        keel_step_close(place);
        keel_manifest_fini(manifest);
        return status;
    }
    snapshot->place = *place;
    snapshot->manifest = *manifest;
    status = load_shards(snapshot);
    if (status == KEEL_OK)
        status = build_table(snapshot);
    if (status != KEEL_OK) {
        keel_snapshot_close(snapshot);
        return status;
    }
    *out = snapshot;
    return KEEL_OK;
}

enum keel_status keel_snapshot_open(struct keel_store *store, uint64_t step, uint64_t attempt,
                                    struct keel_snapshot **out)
{
    struct keel_step_place place;
    struct keel_manifest manifest;
    if (attempt == 0)
        KEEL_TRY(keel_store_newest_attempt(store, step, &attempt));
    KEEL_TRY(keel_step_open(store, step, attempt, false, &place));
    enum keel_status status = keel_manifest_read(store, &place, &manifest);
    if (status != KEEL_OK) {
        keel_step_close(&place);
        return status;
    }
    return keel_snapshot_assemble(&place, &manifest, out);
}

void keel_snapshot_close(struct keel_snapshot *snapshot)
{
    if (snapshot == NULL)
        return;
    for (uint32_t i = 0; snapshot->shards != NULL && i < snapshot->manifest.info.shard_count; i++)
        keel_shard_unload(&snapshot->shards[i]);
    keel_free(snapshot->shards);
    keel_free(snapshot->pieces);
    keel_free(snapshot->tensors);
    keel_manifest_fini(&snapshot->manifest);
    keel_step_close(&snapshot->place);
    keel_free(snapshot);
}

const struct keel_snapshot_info *keel_snapshot_info(const struct keel_snapshot *snapshot)
{
    return &snapshot->manifest.info;
}

const char *keel_snapshot_metadata(const struct keel_snapshot *snapshot)
{
    return snapshot->manifest.metadata;
}

uint32_t keel_snapshot_tensor_count(const struct keel_snapshot *snapshot)
{
    return snapshot->tensor_count;
}

enum keel_status keel_snapshot_tensor(const struct keel_snapshot *snapshot, uint32_t index,
                                      struct keel_region *out)
{
    if (index >= snapshot->tensor_count)
        return keel_fail(KEEL_NOT_FOUND, "%s: holds %u tensors, number %u is not there", snapshot->place.path,
                         snapshot->tensor_count, index);
    keel_record_region(keel_snapshot_record(snapshot, snapshot->tensors[index].first_piece), out);
    memset(out->offset, 0, sizeof out->offset);
    memcpy(out->extent, out->shape, sizeof out->extent);
    return KEEL_OK;
}
