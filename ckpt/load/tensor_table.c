/* tensor_table.c - the tensors of a snapshot, and the pieces of each, from the records of all of its shards.
 *
 * Thousands of ranks that save the same thousand tensors make millions of records. So names are compared once
 * per tensor, not once per record: records find their tensor by hash, tensors are sorted by name, and the
 * pieces of each by offset, which most often they are already. */
#include "snapshot.h"
#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>

struct name_slot {
    const char *name; /* NULL: free */
    uint64_t hash;
    uint32_t tensor;
};

struct table {
    struct keel_snapshot *snapshot;
    struct name_slot *slots; /* owned; a power of two, at most half of them used */
    size_t slot_count;
    uint32_t *tensor_of; /* owned; of each record, in the order of shards and records */
    struct named {
        const char *name;
        uint32_t number, piece_count, first_piece;
    } * named;         /* owned; in order of appearance, then of names */
    uint32_t *rank_of; /* owned; a tensor's place among the sorted names */
};

const struct keel_format_record *keel_snapshot_record(const struct keel_snapshot *snapshot, uint32_t piece)
{
    const struct keel_piece *p = &snapshot->pieces[piece];
    return &snapshot->shards[p->shard].records[p->record];
}

struct keel_box keel_record_box(const struct keel_format_record *record)
{
    struct keel_box box;
    memcpy(box.offset, record->offset, sizeof box.offset);
    memcpy(box.extent, record->extent, sizeof box.extent);
    return box;
}

const struct keel_tensor *keel_tensor_find(const struct keel_snapshot *snapshot, const char *name)
{
    uint32_t low = 0, high = snapshot->tensor_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct keel_tensor *tensor = &snapshot->tensors[middle];
        int order = strcmp(name, tensor->name);
        if (order == 0)
            return tensor;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* ---- names --------------------------------------------------------------------------------------------- */

static enum keel_status grow_slots(struct table *table)
{
    size_t count = table->slot_count > 0 ? table->slot_count * 2 : 1024;
    struct name_slot *slots;
    KEEL_TRY(keel_alloc(count, sizeof *slots, &slots));
    for (size_t i = 0; i < table->slot_count; i++) {
        if (table->slots[i].name == NULL)
            continue;
        size_t at = keel_size(table->slots[i].hash & (count - 1));
        while (slots[at].name != NULL)
            at = (at + 1) & (count - 1);
        slots[at] = table->slots[i];
    }
    keel_free(table->slots);
    table->slots = slots;
    table->slot_count = count;
    return KEEL_OK;
}

static enum keel_status find_or_add(struct table *table, const char *name, uint32_t *out_tensor)
{
    uint32_t *tensor_count = &table->snapshot->tensor_count;
    if (2 * (size_t)*tensor_count >= table->slot_count)
        KEEL_TRY(grow_slots(table));
    uint64_t hash = keel_format_check(name, strlen(name));
    size_t at = keel_size(hash & (table->slot_count - 1));
    while (table->slots[at].name != NULL &&
           (table->slots[at].hash != hash || strcmp(table->slots[at].name, name) != 0))
        at = (at + 1) & (table->slot_count - 1);
    if (table->slots[at].name == NULL) {
        table->slots[at] = (struct name_slot){name, hash, *tensor_count};
        table->named[*tensor_count] = (struct named){.name = name, .number = *tensor_count};
        ++*tensor_count;
    }
    *out_tensor = table->slots[at].tensor;
    table->named[*out_tensor].piece_count++;
    return KEEL_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

/* ---- pieces -------------------------------------------------------------------------------------------- */

/* Of one tensor. */
static int compare_pieces(const void *a, const void *b, void *context)
{
    const struct keel_snapshot *snapshot = context;
    const struct keel_piece *x = a, *y = b;
    const struct keel_format_record *p = &snapshot->shards[x->shard].records[x->record];
    const struct keel_format_record *q = &snapshot->shards[y->shard].records[y->record];
    int order = 0;
    for (uint32_t i = 0; i < KEEL_TENSOR_DIMS_MAX && order == 0; i++)
        order = keel_compare_u64(p->offset[i], q->offset[i]);
    if (order == 0)
        order = keel_compare_u64(x->shard, y->shard);
    return order != 0 ? order : keel_compare_u64(x->record, y->record);
}

static void place_pieces(struct table *table)
{
    struct keel_snapshot *snapshot = table->snapshot;
    size_t number = 0;
    for (uint32_t s = 0; s < snapshot->manifest.info.shard_count; s++)
        for (uint32_t r = 0; r < snapshot->shards[s].footer.record_count; r++) {
            struct named *tensor = &table->named[table->rank_of[table->tensor_of[number++]]];
            snapshot->pieces[tensor->first_piece++] = (struct keel_piece){.shard = s, .record = r};
        }
}

static void sort_pieces(struct keel_snapshot *snapshot, const struct keel_tensor *tensor)
{
    struct keel_piece *pieces = &snapshot->pieces[tensor->first_piece];
    for (uint32_t i = 1; i < tensor->piece_count; i++)
        if (compare_pieces(&pieces[i - 1], &pieces[i], snapshot) > 0) {
            qsort_r(pieces, tensor->piece_count, sizeof *pieces, compare_pieces, snapshot);
            break;
        }
}

/* Sorted pieces: do they belong together; and what tile_box.c wants to know. */
static enum keel_status join_pieces(struct keel_snapshot *snapshot, struct keel_tensor *tensor)
{
    const struct keel_format_record *first = keel_snapshot_record(snapshot, tensor->first_piece);
    uint32_t end = tensor->first_piece + tensor->piece_count, axis = first->dims;
    for (uint32_t i = tensor->first_piece + 1; i < end; i++) {
        const struct keel_format_record *record = keel_snapshot_record(snapshot, i);
        if (first->dtype != record->dtype || first->dims != record->dims ||
            memcmp(first->shape, record->shape, sizeof record->shape) != 0)
            return keel_fail(KEEL_CORRUPT,
                             "%s: tensor %s: ranks %u and %u saved it with different shapes or dtypes; "
                             "use another snapshot",
                             snapshot->place.path, record->name, snapshot->pieces[tensor->first_piece].shard,
                             snapshot->pieces[i].shard);
        for (uint32_t d = 0; d < axis; d++)
            if (record->offset[d] != first->offset[d])
                axis = d;
    }
    tensor->axis = axis < first->dims ? axis : 0;
    tensor->dtype = first->dtype;
    tensor->dims = first->dims;
    tensor->name = first->name;
    tensor->shape = first->shape;
    uint64_t reach = 0;
    for (uint32_t i = tensor->first_piece; i < end; i++) {
        const struct keel_format_record *record = keel_snapshot_record(snapshot, i);
        uint64_t behind = record->offset[tensor->axis] + record->extent[tensor->axis];
        reach = behind > reach ? behind : reach;
        snapshot->pieces[i].reach = reach;
    }
    return KEEL_OK;
}

/* ---- build --------------------------------------------------------------------------------------------- */

static enum keel_status build(struct table *table, uint32_t record_count)
{
    struct keel_snapshot *snapshot = table->snapshot;
    KEEL_TRY(keel_alloc(record_count, sizeof *table->tensor_of, &table->tensor_of));
    KEEL_TRY(keel_alloc(record_count, sizeof *table->named, &table->named));
    size_t number = 0;
    for (uint32_t s = 0; s < snapshot->manifest.info.shard_count; s++)
        for (uint32_t r = 0; r < snapshot->shards[s].footer.record_count; r++)
            KEEL_TRY(find_or_add(table, snapshot->shards[s].records[r].name, &table->tensor_of[number++]));
    uint32_t count = snapshot->tensor_count, first_piece = 0;
    KEEL_TRY(keel_alloc(count, sizeof *table->rank_of, &table->rank_of));
    KEEL_TRY(keel_alloc(count, sizeof *snapshot->tensors, &snapshot->tensors));
    KEEL_TRY(keel_alloc(record_count, sizeof *snapshot->pieces, &snapshot->pieces));
    snapshot->piece_count = record_count;
    if (count > 0)
        qsort(table->named, count, sizeof *table->named, compare_names);
    for (uint32_t i = 0; i < count; i++) {
        struct named *tensor = &table->named[i];
        table->rank_of[tensor->number] = i;
        tensor->first_piece = first_piece;
        snapshot->tensors[i] =
            (struct keel_tensor){.first_piece = first_piece, .piece_count = tensor->piece_count};
        first_piece += tensor->piece_count;
    }
    place_pieces(table);
    for (uint32_t i = 0; i < count; i++) {
        sort_pieces(snapshot, &snapshot->tensors[i]);
        KEEL_TRY(join_pieces(snapshot, &snapshot->tensors[i]));
    }
    return KEEL_OK;
}

enum keel_status keel_tensor_table_build(struct keel_snapshot *snapshot)
{
    struct table table = {.snapshot = snapshot};
    uint64_t count = 0;
    for (uint32_t s = 0; s < snapshot->manifest.info.shard_count; s++)
        count += snapshot->shards[s].footer.record_count;
    if (count >= KEEL_PIECE_NONE)
        return keel_fail(KEEL_LIMIT, "%s: more than %u records", snapshot->place.path, KEEL_PIECE_NONE - 1);
    enum keel_status status = build(&table, (uint32_t)count);
    keel_free(table.slots);
    keel_free(table.tensor_of);
    keel_free(table.named);
    keel_free(table.rank_of);
    return status;
}
