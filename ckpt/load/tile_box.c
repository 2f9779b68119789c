/* tile_box.c - which pieces make up a box, and where nothing does.
 *
 * The box is cut in two again and again, along faces of the pieces that reach into it, until each part lies
 * in one piece whole, or in none: then it is a hole. A cut is made in the dimension that has the fewest faces
 * left (or through no piece at all), at the median of its faces, so that n pieces of any sensible layout take
 * n log n steps, whatever replicas there are. Parts and their candidates wait on a stack. */
#include "snapshot.h"
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FACES_MAX = 63 };
/* Candidates looked at, all parts together: minutes away from any layout that somebody made on purpose. */
static const uint64_t work_max = UINT64_C(1) << 29;

struct part {
    struct keel_box box;
    size_t first, count; /* its candidates; those of the topmost part end the list */
};

struct candidate {
    uint32_t piece, shard;
};

struct cover {
    const struct keel_snapshot *snapshot;
    const struct keel_tensor *tensor;
    struct part *parts;      /* owned, a stack */
    uint32_t *candidates;    /* owned, of all parts; each is an index into the two below */
    struct candidate *found; /* owned */
    uint64_t *edges;         /* owned; close together, as they are looked at again and again */
    size_t part_count, part_capacity, candidate_count, candidate_capacity;
    size_t piece_count, piece_capacity, edge_capacity;
    uint64_t work;
};

/* Begin and end, in each dimension, of a candidate. */
static const uint64_t *edges_of(const struct cover *cover, uint32_t candidate)
{
    uint32_t dims = cover->tensor->dims; /* without any there are no edges, nor memory for them */
    return dims > 0 ? cover->edges + (size_t)candidate * 2 * dims : NULL;
}

static enum keel_status hole(const struct cover *cover, const struct keel_box *box)
{
    char at[KEEL_TENSOR_DIMS_MAX * 24] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < cover->tensor->dims; i++)
        used += (size_t)snprintf(at + used, sizeof at - used, "%s%llu", i > 0 ? "," : "",
                                 (unsigned long long)box->offset[i]);
    return keel_fail(KEEL_CORRUPT, "%s: tensor %s: no shard holds its part at [%s]; use another snapshot",
                     cover->snapshot->place.path, cover->tensor->name, at);
}

/* ---- candidates ---------------------------------------------------------------------------------------- */

static bool is_without(const struct keel_piece_chain *without, uint32_t piece)
{
    for (; without != NULL; without = without->next)
        if (without->piece == piece)
            return true;
    return false;
}

static enum keel_status add_candidate(struct cover *cover, struct candidate candidate,
                                      const struct keel_box *held)
{
    size_t number = cover->piece_count, dims = cover->tensor->dims;
    KEEL_TRY(keel_grow(&cover->found, &cover->piece_capacity, number + 1, sizeof *cover->found));
    KEEL_TRY(keel_grow(&cover->edges, &cover->edge_capacity, (number + 1) * 2 * dims, sizeof *cover->edges));
    KEEL_TRY(
        keel_grow(&cover->candidates, &cover->candidate_capacity, number + 1, sizeof *cover->candidates));
    for (size_t d = 0; d < dims; d++) {
        cover->edges[(number * dims + d) * 2] = held->offset[d];
        cover->edges[(number * dims + d) * 2 + 1] = held->offset[d] + held->extent[d];
    }
    cover->candidates[number] = (uint32_t)number;
    cover->found[number] = candidate;
    cover->piece_count = cover->candidate_count = number + 1;
    return KEEL_OK;
}

/* The pieces that share an element with the box. */
static enum keel_status find_candidates(struct cover *cover, const struct keel_box *box,
                                        const struct keel_piece_chain *without)
{
    const struct keel_tensor *tensor = cover->tensor;
    uint32_t dims = tensor->dims, axis = tensor->axis, end = tensor->first_piece + tensor->piece_count;
    uint32_t piece = dims > 0 ? keel_snapshot_first_reaching(cover->snapshot, tensor, box->offset[axis])
                              : tensor->first_piece;
    for (; piece < end; piece++) {
        struct keel_merged_piece held;
        struct keel_box both;
        KEEL_TRY(keel_snapshot_piece(cover->snapshot, tensor, piece, &held));
        if (dims > 0 && held.box.offset[axis] >= box->offset[axis] + box->extent[axis])
            break;
        if (keel_box_intersect(&held.box, box, dims, &both) && !is_without(without, piece))
            KEEL_TRY(add_candidate(cover, (struct candidate){piece, held.shard}, &held.box));
    }
    return KEEL_OK;
}

static bool contains(const struct cover *cover, uint32_t candidate, const struct keel_box *box)
{
    const uint64_t *edges = edges_of(cover, candidate);
    for (uint32_t d = 0; d < cover->tensor->dims; d++)
        if (edges[2 * d] > box->offset[d] || edges[2 * d + 1] < box->offset[d] + box->extent[d])
            return false;
    return true;
}

/* Of the candidates that hold the whole part, the one whose shard comes first in an order that is another for
 * each tensor. */
static uint32_t holder(const struct cover *cover, const struct part *part)
{
    uint32_t best = KEEL_PIECE_NONE;
    uint64_t best_order = UINT64_MAX;
    for (size_t i = part->first; i < part->first + part->count; i++) {
        if (!contains(cover, cover->candidates[i], &part->box))
            continue;
        const struct candidate *candidate = &cover->found[cover->candidates[i]];
        uint32_t key[2] = {cover->tensor->first_piece, candidate->shard};
        uint64_t order = keel_format_check(key, sizeof key);
        if (best == KEEL_PIECE_NONE || order < best_order) {
            best = candidate->piece;
            best_order = order;
        }
    }
    return best;
}

/* ---- cutting ------------------------------------------------------------------------------------------- */

struct cut {
    uint32_t dim;
    uint64_t at; /* the first position behind it; 0: no face in this dimension */
    uint64_t faces, crossing;
};

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Median of some of the faces in one dimension that lie inside the part, and how many pieces it goes through.
 */
static struct cut find_cut(const struct cover *cover, const struct part *part, uint32_t dim)
{
    struct cut cut = {.dim = dim};
    uint64_t sample[FACES_MAX], low = part->box.offset[dim], high = low + part->box.extent[dim];
    size_t sampled = 0, stride = 1; /* a power of two */
    while (part->count * 2 > FACES_MAX * stride)
        stride *= 2;
    for (size_t i = 0; i < part->count; i++) {
        const uint64_t *faces = edges_of(cover, cover->candidates[part->first + i]) + 2 * (size_t)dim;
        for (int f = 0; f < 2; f++)
            if (faces[f] > low && faces[f] < high && (cut.faces++ & (stride - 1)) == 0)
                sample[sampled++] = faces[f];
    }
    if (sampled == 0)
        return cut;
    qsort(sample, sampled, sizeof *sample, compare_u64);
    cut.at = sample[sampled / 2];
    for (size_t i = 0; i < part->count; i++) {
        const uint64_t *faces = edges_of(cover, cover->candidates[part->first + i]) + 2 * (size_t)dim;
        cut.crossing += faces[0] < cut.at && faces[1] > cut.at;
    }
    return cut;
}

/* A part that no candidate holds whole, but that some reach into, has a face inside in some dimension. */
static struct cut best_cut(const struct cover *cover, const struct part *part)
{
    struct cut best = {0};
    for (uint32_t d = 0; d < cover->tensor->dims; d++) {
        struct cut cut = find_cut(cover, part, d);
        bool clean = cut.crossing == 0, best_clean = best.crossing == 0;
        if (cut.faces == 0)
            continue;
        if (best.faces == 0 || (clean && !best_clean) || (clean == best_clean && cut.faces < best.faces))
            best = cut;
    }
    KEEL_ASSERT(best.faces > 0);
    return best;
}

/* Replace the topmost part by its two halves, each with those candidates that reach into it. */
static enum keel_status split(struct cover *cover)
{
    struct part low = cover->parts[cover->part_count - 1], high = low;
    struct cut cut = best_cut(cover, &low);
    KEEL_TRY(keel_grow(&cover->parts, &cover->part_capacity, cover->part_count + 1, sizeof *cover->parts));
    KEEL_TRY(keel_grow(&cover->candidates, &cover->candidate_capacity, low.first + 2 * low.count,
                       sizeof *cover->candidates));
    low.box.extent[cut.dim] = cut.at - low.box.offset[cut.dim];
    high.box.offset[cut.dim] = cut.at;
    high.box.extent[cut.dim] -= low.box.extent[cut.dim];
    uint32_t *list = cover->candidates + low.first, *behind = list + low.count;
    size_t low_count = 0, high_count = 0;
    for (size_t i = 0; i < low.count; i++) {
        const uint64_t *faces = edges_of(cover, list[i]) + 2 * (size_t)cut.dim;
        uint32_t candidate = list[i];
        if (faces[0] < cut.at)
            behind[low_count++] = candidate;
        if (faces[1] > cut.at)
            list[high_count++] = candidate;
    }
    memmove(list + high_count, behind, low_count * sizeof *list);
    high.count = high_count;
    low.first += high_count;
    low.count = low_count;
    cover->parts[cover->part_count - 1] = high;
    cover->parts[cover->part_count++] = low;
    cover->candidate_count = low.first + low.count;
    return KEEL_OK;
}

static enum keel_status cover_all(struct cover *cover,
                                  enum keel_status (*visit)(void *context, uint32_t piece,
                                                            const struct keel_box *part),
                                  void *context)
{
    while (cover->part_count > 0) {
        struct part *part = &cover->parts[cover->part_count - 1];
        if (part->count == 0)
            return hole(cover, &part->box);
        cover->work += part->count;
        if (cover->work > work_max)
            return keel_fail(KEEL_LIMIT, "%s: tensor %s: its pieces are too scattered to be put together",
                             cover->snapshot->place.path, cover->tensor->name);
        uint32_t piece = holder(cover, part);
        if (piece == KEEL_PIECE_NONE) {
            KEEL_TRY(split(cover));
            continue;
        }
        if (visit != NULL)
            KEEL_TRY(visit(context, piece, &part->box));
        cover->candidate_count = part->first;
        cover->part_count--;
    }
    return KEEL_OK;
}

enum keel_status keel_snapshot_cover(const struct keel_snapshot *snapshot, const struct keel_tensor *tensor,
                                     const struct keel_box *box, const struct keel_piece_chain *without,
                                     enum keel_status (*visit)(void *context, uint32_t piece,
                                                               const struct keel_box *part),
                                     void *context)
{
    struct cover cover = {.snapshot = snapshot, .tensor = tensor};
    if (keel_box_empty(box, tensor->dims))
        return KEEL_OK;
    enum keel_status status = find_candidates(&cover, box, without);
    if (status == KEEL_OK)
        status = keel_grow(&cover.parts, &cover.part_capacity, 1, sizeof *cover.parts);
    if (status == KEEL_OK) {
        cover.parts[cover.part_count++] = (struct part){*box, 0, cover.candidate_count};
        status = cover_all(&cover, visit, context);
    }
    keel_free(cover.parts);
    keel_free(cover.candidates);
    keel_free(cover.found);
    keel_free(cover.edges);
    return status;
}
