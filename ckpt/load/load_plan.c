/* load_plan.c - see load_plan.h. From boxes to parts (tile_box.c), from parts to chunks, chunks into order.
 */
#include "load_plan.h"
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- uses ---------------------------------------------------------------------------------------------- */

/* A record and its chunks. */
struct piece {
    const struct keel_shard *shard;
    const struct keel_format_record *record;
    uint64_t chunk_elements; /* of each but the last */
    uint64_t elements;
};

static struct piece piece_of(const struct keel_shard *shard, uint32_t record_number)
{
    struct piece piece = {.shard = shard, .record = &shard->records[record_number]};
    uint32_t size = keel_ckpt_dtype_bytes((enum keel_ckpt_dtype)piece.record->dtype);
    piece.chunk_elements = piece.record->chunk_bytes / size;
    piece.elements = piece.record->raw_bytes / size;
    return piece;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static enum keel_status add_use(struct keel_load_plan *plan, const struct keel_load_use *use)
{
    KEEL_TRY(keel_grow(&plan->uses, &plan->use_capacity, plan->use_count + 1, sizeof *plan->uses));
    plan->uses[plan->use_count++] = *use;
    return KEEL_OK;
}

/* Chunk after chunk that holds something of the part; the chunks of a master where the piece's own chunk is
 * its rounding. */
static enum keel_status add_uses(struct keel_load_plan *plan, uint32_t part_number)
{
    const struct keel_load_part *part = &plan->parts[part_number];
    struct piece own = piece_of(&plan->snapshot->shards[part->shard], part->record);
    struct keel_box held = keel_record_box(own.record), box = part->box;
    uint32_t dims = own.record->dims;
    bool all = keel_box_elements(&box, dims) == own.elements;
    uint64_t at = all ? 0 : keel_box_next(&held, &box, dims, 0, NULL);
    while (at != UINT64_MAX) {
        uint64_t number = at / own.chunk_elements;
        uint64_t end = least((number + 1) * own.chunk_elements, own.elements);
        struct keel_load_use use = {.shard = part->shard,
                                    .chunk = (uint32_t)(own.record->first_chunk + number),
                                    .part = part_number,
                                    .copy_chunk = KEEL_USE_STORED};
        if (own.shard->chunks[use.chunk].codec == KEEL_CODEC_SAME) {
            struct piece master = piece_of(own.shard, own.record->same_record - 1);
            uint64_t master_number = at / master.chunk_elements;
            use.chunk = (uint32_t)(master.record->first_chunk + master_number);
            use.copy_chunk = (uint32_t)number;
            end = least(end, (master_number + 1) * master.chunk_elements);
        }
        KEEL_TRY(add_use(plan, &use));
        if (end == own.elements)
            break;
        at = all ? end : keel_box_next(&held, &box, dims, end, NULL);
    }
    return KEEL_OK;
}

void keel_load_use_range(const struct keel_load_plan *plan, const struct keel_load_use *use,
                         uint64_t *out_from, uint64_t *out_to)
{
    const struct keel_shard *shard = &plan->snapshot->shards[use->shard];
    const struct keel_format_record *stored = keel_shard_record_of(shard, use->chunk);
    struct piece own = piece_of(shard, (uint32_t)(stored - shard->records));
    uint64_t from = (use->chunk - own.record->first_chunk) * own.chunk_elements;
    uint64_t to = least(from + own.chunk_elements, own.elements);
    if (use->copy_chunk != KEEL_USE_STORED) {
        struct piece copy = piece_of(shard, plan->parts[use->part].record);
        uint64_t copy_from = use->copy_chunk * copy.chunk_elements;
        from = from > copy_from ? from : copy_from;
        to = least(to, copy_from + copy.chunk_elements);
    }
    *out_from = from;
    *out_to = to;
}

/* ---- order --------------------------------------------------------------------------------------------- */

static int compare_uses(const void *a, const void *b)
{
    const struct keel_load_use *x = a, *y = b;
    uint64_t p = (uint64_t)x->shard << 32 | x->chunk, q = (uint64_t)y->shard << 32 | y->chunk;
    if (p != q)
        return p < q ? -1 : 1;
    return x->part < y->part ? -1 : x->part > y->part;
}

/* Most often they are in order: of whole tensors, in the order in which they were saved. */
static void sort_uses(struct keel_load_plan *plan)
{
    for (size_t i = 1; i < plan->use_count; i++)
        if (compare_uses(&plan->uses[i - 1], &plan->uses[i]) > 0) {
            qsort(plan->uses, plan->use_count, sizeof *plan->uses, compare_uses);
            return;
        }
}

size_t keel_load_plan_uses(const struct keel_load_plan *plan, size_t first)
{
    size_t count = 1;
    while (first + count < plan->use_count && plan->uses[first + count].shard == plan->uses[first].shard &&
           plan->uses[first + count].chunk == plan->uses[first].chunk)
        count++;
    return count;
}

/* ---- parts --------------------------------------------------------------------------------------------- */

struct adding {
    struct keel_load_plan *plan;
    const struct keel_tensor *tensor;
    uint32_t load, failed;
};

static enum keel_status add_part(void *context, uint32_t piece, const struct keel_box *box)
{
    struct adding *adding = context;
    struct keel_load_plan *plan = adding->plan;
    if (plan->part_count >= KEEL_PART_NONE)
        return keel_fail(KEEL_LIMIT, "%s: the boxes fall into too many parts; load fewer at once",
                         plan->snapshot->place.path);
    struct keel_merged_piece at;
    KEEL_TRY(keel_snapshot_piece(plan->snapshot, adding->tensor, piece, &at));
    KEEL_TRY(keel_snapshot_need(plan->snapshot, adding->tensor, &at));
    KEEL_TRY(keel_grow(&plan->parts, &plan->part_capacity, plan->part_count + 1, sizeof *plan->parts));
    plan->parts[plan->part_count] = (struct keel_load_part){.load = adding->load,
                                                            .piece = piece,
                                                            .shard = at.shard,
                                                            .record = at.record,
                                                            .failed = adding->failed,
                                                            .box = *box};
    return add_uses(plan, (uint32_t)plan->part_count++);
}

/* "f32 [3,4]", cut off when it is too long. */
static void describe(uint32_t dtype, uint32_t dims, const uint64_t *shape, char *out, size_t out_bytes)
{
    size_t used = (size_t)snprintf(out, out_bytes, "%s [", keel_ckpt_dtype_name(dtype));
    for (uint32_t i = 0; i < dims && used < out_bytes; i++)
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%llu", i > 0 ? "," : "",
                                 (unsigned long long)shape[i]);
    if (used < out_bytes)
        snprintf(out + used, out_bytes - used, "]");
}

static enum keel_status find_tensor(const struct keel_snapshot *snapshot, const struct keel_region *box,
                                    const struct keel_tensor **out)
{
    KEEL_TRY(keel_region_check(box));
    const struct keel_tensor *tensor = keel_tensor_find(snapshot, box->name);
    if (tensor == NULL)
        return keel_fail(KEEL_NOT_FOUND, "%s: holds no tensor %s; see keel ckpt show for what it holds",
                         snapshot->place.path, box->name);
    if (tensor->dtype != (uint32_t)box->dtype || tensor->dims != box->dims ||
        memcmp(tensor->shape, box->shape, box->dims * sizeof box->shape[0]) != 0) {
        char stored[96], wanted[96];
        describe(tensor->dtype, tensor->dims, tensor->shape, stored, sizeof stored);
        describe((uint32_t)box->dtype, box->dims, box->shape, wanted, sizeof wanted);
        return keel_fail(
            KEEL_MISMATCH,
            "%s: tensor %s is stored as %s, but %s is asked for; use the model that was saved, or another "
            "snapshot",
            snapshot->place.path, box->name, stored, wanted);
    }
    *out = tensor;
    return KEEL_OK;
}

static enum keel_status plan_all(struct keel_load_plan *plan)
{
    for (uint32_t i = 0; i < plan->load_count; i++) {
        const struct keel_region *region = &plan->loads[i].box;
        const struct keel_tensor *tensor = NULL;
        KEEL_TRY(find_tensor(plan->snapshot, region, &tensor));
        struct adding adding = {plan, tensor, i, KEEL_PART_NONE};
        struct keel_box box = keel_box_of(region);
        plan->wanted_bytes += keel_region_bytes(region);
        KEEL_TRY(keel_snapshot_cover(plan->snapshot, tensor, &box, NULL, add_part, &adding));
    }
    sort_uses(plan);
    for (size_t i = 0; i < plan->use_count; i += keel_load_plan_uses(plan, i))
        plan->needed_bytes +=
            plan->snapshot->shards[plan->uses[i].shard].chunks[plan->uses[i].chunk].stored_bytes;
    return KEEL_OK;
}

enum keel_status keel_load_plan_make(struct keel_snapshot *snapshot, const struct keel_load *loads,
                                     uint32_t count, struct keel_load_plan *out)
{
    struct keel_load_plan plan = {.snapshot = snapshot, .loads = loads, .load_count = count};
    enum keel_status status = plan_all(&plan);
    if (status != KEEL_OK) {
        keel_load_plan_fini(&plan);
        return status;
    }
    *out = plan;
    return KEEL_OK;
}

void keel_load_plan_fini(struct keel_load_plan *plan)
{
    keel_free(plan->parts);
    keel_free(plan->uses);
    *plan = (struct keel_load_plan){0};
}

/* ---- again --------------------------------------------------------------------------------------------- */

/* Its piece, and those that failed before it. */
static enum keel_status failed_pieces(const struct keel_load_plan *plan, uint32_t part,
                                      struct keel_piece_chain **out)
{
    size_t count = 0;
    struct keel_piece_chain *chain;
    for (uint32_t p = part; p != KEEL_PART_NONE; p = plan->parts[p].failed)
        count++;
    KEEL_TRY(keel_alloc(count, sizeof *chain, &chain));
    for (size_t i = 0; i < count; i++, part = plan->parts[part].failed)
        chain[i] = (struct keel_piece_chain){plan->parts[part].piece, i + 1 < count ? &chain[i + 1] : NULL};
    *out = chain;
    return KEEL_OK;
}

static enum keel_status replace_use(struct keel_load_plan *plan, const struct keel_load_use *use)
{
    struct keel_load_part part = plan->parts[use->part]; /* parts may move */
    const struct keel_format_record *record = &plan->snapshot->shards[part.shard].records[part.record];
    const struct keel_tensor *tensor = keel_tensor_find(plan->snapshot, record->name);
    struct adding adding = {plan, tensor, part.load, use->part};
    struct keel_box boxes[KEEL_BOX_RANGE_MAX];
    struct keel_piece_chain *without;
    uint64_t from, to;
    struct keel_box held = keel_record_box(record);
    keel_load_use_range(plan, use, &from, &to);
    KEEL_TRY(failed_pieces(plan, use->part, &without));
    uint32_t count = keel_box_range(&held, record->dims, from, to, boxes);
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < count && status == KEEL_OK; i++) {
        struct keel_box lost;
        if (keel_box_intersect(&boxes[i], &part.box, record->dims, &lost))
            status = keel_snapshot_cover(plan->snapshot, tensor, &lost, without, add_part, &adding);
    }
    keel_free(without);
    return status;
}

enum keel_status keel_load_plan_again(struct keel_load_plan *plan, const struct keel_load_use *failed,
                                      size_t count, size_t *out_index)
{
    plan->use_count = 0;
    for (size_t i = 0; i < count; i++) {
        enum keel_status status = replace_use(plan, &failed[i]);
        if (status != KEEL_OK) {
            *out_index = i;
            return status;
        }
    }
    sort_uses(plan);
    return KEEL_OK;
}
