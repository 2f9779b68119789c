/* compressed_rows.c - the union of everybody's rows, each summed in rank order.
 *
 * First how many rows each rank has, then indices and values, straight from the caller's memory into place by
 * two collectives at once. The lists, each ascending, are merged through a heap of one row a rank, ordered by
 * (index, rank): so equal rows come in rank order, and their sum has one value. */
#include "combine.h"
#include "tree.h"

#include <assert.h>
#include <keel/memory.h>
#include <keel/transport_compressed.h>
#include <string.h>

/* What each rank says before its rows. */
struct rows_head {
    uint64_t count, rows_max;
    uint32_t width, reduction;
};
static_assert(sizeof(struct rows_head) == 24, "the head has a fixed size on the wire");

struct front {
    uint32_t index, rank;
};

struct keel_rows {
    struct keel_rows_config config;
    struct rows_head own, *heads;        /* heads: rank_count */
    uint64_t *row_counts, *float_counts; /* rank_count */
    uint32_t *indices, *sum_indices;     /* rows_max */
    float *values, *sum_values;          /* rows_max x width */
    uint64_t *at, *ends;                 /* rank_count: of the merge, numbers of rows in indices and values */
    struct front *heap;                  /* rank_count */
    uint32_t heap_count;
};

/* ---- life ---------------------------------------------------------------------------------------------- */

static enum keel_status check_config(const struct keel_rows_config *config)
{
    if (config->rank_count == 0 || config->rank_count > KEEL_GROUP_RANKS_MAX ||
        config->rank >= config->rank_count)
        return keel_fail(KEEL_INVALID, "sum of rows: rank %u of %u: there are 1 to %d ranks", config->rank,
                         config->rank_count, KEEL_GROUP_RANKS_MAX);
    if (config->reduction != KEEL_SUM && config->reduction != KEEL_AVERAGE)
        return keel_fail(KEEL_INVALID, "sum of rows: no %s of rows; take sum or average",
                         keel_reduction_name(config->reduction));
    if (config->width == 0)
        return keel_fail(KEEL_INVALID, "sum of rows: a row has one float at least");
    if (config->rows_max > UINT32_MAX)
        return keel_fail(KEEL_LIMIT, "sum of rows: %llu rows are more than %u",
                         (unsigned long long)config->rows_max, UINT32_MAX);
    return KEEL_OK;
}

static enum keel_status allocate(struct keel_rows *rows)
{
    const struct keel_rows_config *config = &rows->config;
    size_t row_bytes = (size_t)config->width * sizeof(float);
    KEEL_TRY(keel_alloc(config->rank_count, sizeof *rows->heads, &rows->heads));
    KEEL_TRY(keel_alloc(config->rank_count, sizeof *rows->row_counts, &rows->row_counts));
    KEEL_TRY(keel_alloc(config->rank_count, sizeof *rows->float_counts, &rows->float_counts));
    KEEL_TRY(keel_alloc(config->rank_count, sizeof *rows->at, &rows->at));
    KEEL_TRY(keel_alloc(config->rank_count, sizeof *rows->ends, &rows->ends));
    KEEL_TRY(keel_alloc(config->rank_count, sizeof *rows->heap, &rows->heap));
    KEEL_TRY(keel_alloc(config->rows_max, sizeof *rows->indices, &rows->indices));
    KEEL_TRY(keel_alloc(config->rows_max, sizeof *rows->sum_indices, &rows->sum_indices));
    KEEL_TRY(keel_alloc(config->rows_max, row_bytes, &rows->values));
    return keel_alloc(config->rows_max, row_bytes, &rows->sum_values);
}

enum keel_status keel_rows_create(const struct keel_rows_config *config, struct keel_rows **out)
{
    struct keel_rows *rows;
    KEEL_TRY(check_config(config));
    KEEL_TRY(keel_alloc(1, sizeof *rows, &rows));
    rows->config = *config;
    enum keel_status status = allocate(rows);
    if (status != KEEL_OK) {
        keel_rows_free(rows);
        return status;
    }
    *out = rows;
    return KEEL_OK;
}

void keel_rows_free(struct keel_rows *rows)
{
    if (rows == NULL)
        return;
    keel_free(rows->sum_values);
    keel_free(rows->values);
    keel_free(rows->sum_indices);
    keel_free(rows->indices);
    keel_free(rows->heap);
    keel_free(rows->ends);
    keel_free(rows->at);
    keel_free(rows->float_counts);
    keel_free(rows->row_counts);
    keel_free(rows->heads);
    keel_free(rows);
}

/* ---- the merge ----------------------------------------------------------------------------------------- */

static bool before(struct front a, struct front b)
{
    return a.index != b.index ? a.index < b.index : a.rank < b.rank;
}

/* heap[0] may be too late. */
static void sift(struct keel_rows *rows)
{
    struct front moved = rows->heap[0];
    uint32_t place = 0;
    for (uint32_t child = 1; child < rows->heap_count; child = 2 * place + 1) {
        if (child + 1 < rows->heap_count && before(rows->heap[child + 1], rows->heap[child]))
            child++;
        if (before(moved, rows->heap[child]))
            break;
        rows->heap[place] = rows->heap[child];
        place = child;
    }
    rows->heap[place] = moved;
}

static void push(struct keel_rows *rows, struct front front)
{
    uint32_t place = rows->heap_count++;
    for (; place > 0 && before(front, rows->heap[(place - 1) / 2]); place = (place - 1) / 2)
        rows->heap[place] = rows->heap[(place - 1) / 2];
    rows->heap[place] = front;
}

/* The first row of all goes; the next of its rank takes its place. */
static void advance(struct keel_rows *rows)
{
    uint32_t rank = rows->heap[0].rank;
    if (++rows->at[rank] < rows->ends[rank])
        rows->heap[0].index = rows->indices[rows->at[rank]];
    else
        rows->heap[0] = rows->heap[--rows->heap_count];
    sift(rows);
}

static uint64_t merge(struct keel_rows *rows)
{
    static const uint16_t sum[] = {0, 1, KEEL_TREE_ADD};
    uint64_t count = 0, width = rows->config.width, end = 0;
    rows->heap_count = 0;
    for (uint32_t rank = 0; rank < rows->config.rank_count; rank++) {
        rows->at[rank] = end;
        rows->ends[rank] = end += rows->row_counts[rank];
        if (rows->row_counts[rank] > 0)
            push(rows, (struct front){rows->indices[rows->at[rank]], rank});
    }
    for (; rows->heap_count > 0; advance(rows)) {
        uint32_t index = rows->heap[0].index;
        const float *row = rows->values + rows->at[rows->heap[0].rank] * width;
        if (count > 0 && rows->sum_indices[count - 1] == index) {
            float *place = rows->sum_values + (count - 1) * width;
            const void *leaves[] = {place, row};
            keel_combine(KEEL_ELEMENT_F32, KEEL_SUM, leaves, sum, 3, place, width);
            continue;
        }
        rows->sum_indices[count] = index;
        memcpy(rows->sum_values + count * width, row, keel_size(width * sizeof *row));
        count++;
    }
    return count;
}

/* ---- a call -------------------------------------------------------------------------------------------- */

static bool ascends(const uint32_t *indices, uint64_t count)
{
    for (uint64_t k = 1; k < count; k++)
        if (indices[k] <= indices[k - 1])
            return false;
    return true;
}

static enum keel_status check_call(const struct keel_rows *rows, const struct keel_group *group,
                                   uint64_t sequence, const struct keel_row_set *part)
{
    const char *why = NULL;
    if (keel_group_rank(group) != rows->config.rank ||
        keel_group_rank_count(group) != rows->config.rank_count)
        why = "the group has other ranks than the object was made for";
    else if (part->count > 0 && (part->indices == NULL || part->values == NULL))
        why = "indices or values are missing";
    else if (part->count > UINT32_MAX)
        why = "there are more rows than indices";
    else if (!ascends(part->indices, part->count))
        why = "indices must ascend, none twice";
    if (why != NULL)
        return keel_fail(KEEL_INVALID, "sum of rows %llu: %s", (unsigned long long)sequence, why);
    return KEEL_OK;
}

/* How many rows each rank has, once all mean the same; the same answer on every rank. */
static enum keel_status count_rows(struct keel_rows *rows, uint64_t sequence, uint64_t *out_total)
{
    uint64_t total = 0;
    for (uint32_t rank = 0; rank < rows->config.rank_count; rank++) {
        const struct rows_head *head = &rows->heads[rank];
        if (head->width != rows->own.width || head->rows_max != rows->own.rows_max ||
            head->reduction != rows->own.reduction)
            return keel_fail(
                KEEL_MISMATCH,
                "sum of rows %llu: rank %u has width %u, at most %llu rows, %s; rank %u %u, "
                "%llu, %s; give all ranks the same config",
                (unsigned long long)sequence, rank, head->width, (unsigned long long)head->rows_max,
                keel_reduction_name((enum keel_reduction)head->reduction), rows->config.rank, rows->own.width,
                (unsigned long long)rows->own.rows_max, keel_reduction_name(rows->config.reduction));
        rows->row_counts[rank] = head->count;
        rows->float_counts[rank] = head->count * rows->config.width;
        total += head->count <= UINT32_MAX ? head->count : UINT64_C(1) << 32; /* enough to be too many */
    }
    if (total > rows->config.rows_max)
        return keel_fail(KEEL_LIMIT, "sum of rows %llu: %llu rows of all ranks, and room for %llu",
                         (unsigned long long)sequence, (unsigned long long)total,
                         (unsigned long long)rows->config.rows_max);
    *out_total = total;
    return KEEL_OK;
}

static enum keel_status gather(struct keel_group *group, uint64_t sequence, enum keel_element element,
                               const void *part, const uint64_t *counts, void *result,
                               struct keel_operation **out)
{
    const void *parts[] = {part};
    struct keel_collective what = {.kind = KEEL_ALL_GATHER_V,
                                   .sequence = sequence,
                                   .element = element,
                                   .counts_out = counts,
                                   .parts = parts,
                                   .part_count = part != NULL ? 1 : 0,
                                   .result = result};
    return keel_group_begin(group, &what, out);
}

static enum keel_status exchange(struct keel_rows *rows, struct keel_group *group, uint64_t sequence,
                                 const struct keel_row_set *part, uint64_t deadline_ns)
{
    struct keel_operation *indices, *values;
    KEEL_TRY(gather(group, sequence + 1, KEEL_ELEMENT_I32, part->indices, rows->row_counts, rows->indices,
                    &indices));
    KEEL_TRY(gather(group, sequence + 2, KEEL_ELEMENT_F32, part->values, rows->float_counts, rows->values,
                    &values));
    KEEL_TRY(keel_operation_wait(indices, deadline_ns));
    KEEL_TRY(keel_operation_wait(values, deadline_ns));
    uint64_t first = 0;
    for (uint32_t rank = 0; rank < rows->config.rank_count; first += rows->row_counts[rank++])
        if (!ascends(rows->indices + first, rows->row_counts[rank]))
            return keel_fail(KEEL_CORRUPT, "sum of rows %llu: the rows of rank %u do not ascend",
                             (unsigned long long)sequence, rank);
    return KEEL_OK;
}

enum keel_status keel_rows_run(struct keel_rows *rows, struct keel_group *group, uint64_t sequence,
                               const struct keel_row_set *part, struct keel_row_set *out,
                               uint64_t deadline_ns)
{
    const struct keel_rows_config *config = &rows->config;
    const void *parts[] = {&rows->own};
    struct keel_collective what = {.kind = KEEL_ALL_GATHER,
                                   .sequence = sequence,
                                   .element = KEEL_ELEMENT_U8,
                                   .count = sizeof rows->own,
                                   .parts = parts,
                                   .part_count = 1,
                                   .result = rows->heads};
    uint64_t total = 0, count = 0;
    KEEL_TRY(check_call(rows, group, sequence, part));
    rows->own = (struct rows_head){.count = part->count,
                                   .rows_max = config->rows_max,
                                   .width = config->width,
                                   .reduction = (uint32_t)config->reduction};
    KEEL_TRY(keel_group_run(group, &what, deadline_ns));
    KEEL_TRY(count_rows(rows, sequence, &total));
    if (total > 0) {
        KEEL_TRY(exchange(rows, group, sequence, part, deadline_ns));
        count = merge(rows);
    }
    if (config->reduction == KEEL_AVERAGE)
        keel_combine_divide(KEEL_ELEMENT_F32, rows->sum_values, count * config->width, config->rank_count);
    *out = (struct keel_row_set){.count = count, .indices = rows->sum_indices, .values = rows->sum_values};
    return KEEL_OK;
}
