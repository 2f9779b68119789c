/* plan_state.c - what of the state a seat holds, and what it writes into a snapshot: runs of its boxes, told
 * as runs of tiles or as regions of the parameters. */
#include "plan_internal.h"
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

/* ---- runs of boxes ------------------------------------------------------------------------------------- */

/* Elements [from, to) of the seat's box of a parameter. */
struct run {
    uint32_t part, param;
    uint64_t from, to;
};
/* What becomes of runs; and of which seat they are. */
struct visit {
    const struct keel_plan_model *model;
    const struct keel_job_plan *plan;
    struct keel_plan_seat seat;
    enum keel_status (*put)(const struct visit *visit, const struct run *run);
    void *into;
    bool writes; /* runs that the seat writes; else those that it holds */
};

static enum keel_status put_run(const struct visit *visit, uint32_t part, uint32_t param, uint64_t from,
                                uint64_t to)
{
    const struct keel_plan_param *p = &visit->model->params[param];
    const uint64_t all = p->rows * keel_plan_columns(visit->model, p, &visit->seat);
    struct run run = {part, param, from, to < all ? to : all};
    if ((p->statistic || p->frozen) && part != KEEL_PLAN_WEIGHTS)
        return KEEL_OK;
    /* What all tensor places have is written by each in part. */
    if (visit->writes && p->units == 0 && run.from < run.to) {
        const uint64_t count = run.to - run.from, tensor = visit->plan->tensor;
        run.to = run.from + (visit->seat.place + 1) * count / tensor;
        run.from += visit->seat.place * count / tensor;
    }
    return run.from < run.to ? visit->put(visit, &run) : KEEL_OK;
}

/* What position `owner` owns of the seat's flat buffer: its share of each bucket. */
static enum keel_status put_owned(const struct visit *visit, uint32_t owner, uint32_t part)
{
    const struct keel_plan_model *model = visit->model;
    const uint32_t of = visit->plan->data;
    for (uint32_t i = 0, end; i < model->param_count; i = end) {
        const uint64_t first = keel_plan_share_begin(model, &visit->seat, i, of, owner);
        const uint64_t last = keel_plan_share_begin(model, &visit->seat, i, of, owner + 1);
        uint64_t at = 0;
        end = keel_plan_bucket_end(model, i);
        for (uint32_t j = i; j < end; j++) {
            KEEL_TRY(put_run(visit, part, model->order[j], first > at ? first - at : 0,
                             last > at ? last - at : 0));
            at += keel_plan_pages(model, model->order[j], &visit->seat) * KEEL_FLAT_ALIGN;
        }
    }
    return KEEL_OK;
}

static enum keel_status put_part(const struct visit *visit, uint32_t part)
{
    const struct keel_job_plan *plan = visit->plan;
    if (!visit->writes && plan->zero < (part == KEEL_PLAN_WEIGHTS ? 3u : 1u)) {
        for (uint32_t i = 0; i < visit->model->param_count; i++)
            KEEL_TRY(put_run(visit, part, i, 0, UINT64_MAX));
        return KEEL_OK;
    }
    KEEL_TRY(put_owned(visit, visit->seat.position, part));
    for (uint32_t owner = 0; !visit->writes && owner < plan->data; owner++)
        if (keel_plan_shadows(visit->model, plan, visit->seat.position, owner))
            KEEL_TRY(put_owned(visit, owner, part));
    return KEEL_OK;
}

static enum keel_status visit_all(const struct visit *visit)
{
    for (uint32_t part = 0; part < KEEL_PLAN_PARTS; part++)
        if ((part != KEEL_PLAN_V || visit->model->has_v) && (part != KEEL_PLAN_EMA || visit->model->has_ema))
            KEEL_TRY(put_part(visit, part));
    return KEEL_OK;
}

/* ---- as runs of tiles ---------------------------------------------------------------------------------- */

/* Elements [from, to) of the seat's box that are of one slice: they lie together in its tile. */
static enum keel_status put_slice(const struct visit *visit, const struct run *run, uint32_t slice)
{
    const struct keel_plan_model *model = visit->model;
    const struct keel_plan_param *p = &model->params[run->param];
    const uint64_t ends[2] = {run->from, run->to};
    const uint64_t begin =
        keel_plan_column(model, p, slice) - keel_plan_column(model, p, visit->seat.first_slice);
    const uint64_t own = keel_plan_column(model, p, slice + 1) - keel_plan_column(model, p, slice);
    const uint64_t width = keel_plan_columns(model, p, &visit->seat);
    uint64_t before[2]; /* so many of the slice's own */
    for (int i = 0; i < 2; i++) {
        const uint64_t column = ends[i] % width, within = column > begin ? column - begin : 0;
        before[i] = ends[i] / width * own + (within < own ? within : own);
    }
    return keel_extents_put(
        visit->into, &(struct keel_extent){run->part, run->param, slice, before[0], before[1] - before[0]});
}

static enum keel_status put_tiles(const struct visit *visit, const struct run *run)
{
    if (visit->model->params[run->param].units == 0)
        return keel_extents_put(
            visit->into, &(struct keel_extent){run->part, run->param, 0, run->from, run->to - run->from});
    for (uint32_t i = 0; i < visit->seat.slice_count; i++)
        KEEL_TRY(put_slice(visit, run, visit->seat.first_slice + i));
    return KEEL_OK;
}

enum keel_status keel_plan_holding(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                                   uint32_t seat, struct keel_extents *out)
{
    *out = (struct keel_extents){.at = NULL};
    const struct visit visit = {.model = model,
                                .plan = plan,
                                .seat = keel_plan_seat(model, plan, seat),
                                .put = put_tiles,
                                .into = out};
    const enum keel_status status = visit_all(&visit);
    if (status != KEEL_OK) {
        keel_free(out->at);
        *out = (struct keel_extents){.at = NULL};
    }
    return status;
}

/* ---- as regions ---------------------------------------------------------------------------------------- */

struct regions {
    struct keel_plan_region *at;
    size_t count, capacity;
};

/* The seat's box as it lies in memory: the parameter's dimensions, of which the one that is split is two,
 * parts alike (`outer`) and what the seat has of each. A box of all slices is the parameter as it is. */
enum { LOCAL_DIMS_MAX = KEEL_TENSOR_DIMS_MAX + 1 };
struct local {
    uint32_t dims, outer_at; /* outer_at: dims where no dimension is split */
    uint64_t size[LOCAL_DIMS_MAX];
    uint64_t begin, whole; /* of the split dimension: what the seat begins with, and of each part in all */
};

static struct local local_of(const struct visit *visit, const struct keel_plan_param *p)
{
    struct local out = {.dims = 0, .outer_at = UINT32_MAX};
    const bool cut = p->units != 0 && visit->seat.slice_count < visit->model->tensor;
    for (uint32_t d = 0; d < p->dims; d++) {
        if (cut && d == p->split_dim) {
            const uint64_t each = p->shape[d] / p->outer, unit = each / p->units;
            const uint64_t columns = keel_plan_columns(visit->model, p, &visit->seat) / p->unit;
            out.outer_at = out.dims;
            out.size[out.dims++] = p->outer;
            out.size[out.dims++] = columns * unit;
            out.begin = keel_plan_column(visit->model, p, visit->seat.first_slice) / p->unit * unit;
            out.whole = each;
        } else {
            out.size[out.dims++] = p->shape[d];
        }
    }
    return out;
}

static uint64_t stride_of(const struct local *local, uint32_t d)
{
    uint64_t stride = 1;
    for (d++; d < local->dims; d++)
        stride *= local->size[d];
    return stride;
}

/* A rectangle of the local box: [from, from + count) along each of its dimensions. */
struct rectangle {
    uint64_t from[LOCAL_DIMS_MAX], count[LOCAL_DIMS_MAX];
};

/* The rectangle within one of the outer parts, as the parameter's own dimensions say it. */
static void name_region(const struct keel_plan_param *p, const struct local *local, uint32_t part,
                        const struct rectangle *of, struct keel_plan_region *out)
{
    static const char *const prefixes[KEEL_PLAN_PARTS] = {"", "adam.m/", "adam.v/", "ema/"};
    struct keel_region *region = &out->box;
    *region = (struct keel_region){.dtype = KEEL_CKPT_F32, .dims = p->dims};
    snprintf(region->name, sizeof region->name, "%s%s", prefixes[part], p->name);
    for (uint32_t d = 0, l = 0; d < p->dims; d++, l++) {
        uint64_t begin = 0;
        if (l == local->outer_at) {
            begin = of->from[l] * local->whole + local->begin;
            l++;
        }
        region->shape[d] = p->shape[d];
        region->offset[d] = begin + of->from[l];
        region->extent[d] = of->count[l];
    }
}

/* Where a rectangle of one outer part lies in the box: rows behind the part's dimension, or one run. */
static void place_region(const struct local *local, const struct rectangle *of, struct keel_plan_region *out)
{
    bool before = false; /* several along a dimension before the parts: rows are apart */
    out->first = 0;
    for (uint32_t d = 0; d < local->dims; d++) {
        out->first += of->from[d] * stride_of(local, d);
        before |= d < local->outer_at && of->count[d] > 1;
    }
    out->row = out->stride = 0;
    if (!before || local->outer_at == UINT32_MAX || local->size[local->outer_at] == 1)
        return;
    out->row = stride_of(local, local->outer_at);
    out->stride = out->row * local->size[local->outer_at];
}

static enum keel_status put_rectangle(const struct visit *visit, const struct run *run,
                                      const struct local *local, struct rectangle of)
{
    struct regions *into = visit->into;
    const uint32_t at = local->outer_at;
    const uint64_t first = at != UINT32_MAX ? of.from[at] : 0, parts = at != UINT32_MAX ? of.count[at] : 1;
    for (uint64_t i = 0; i < parts; i++) {
        struct keel_plan_region region = {.part = run->part, .param = run->param};
        if (at != UINT32_MAX) {
            of.from[at] = first + i;
            of.count[at] = 1;
        }
        name_region(&visit->model->params[run->param], local, run->part, &of, &region);
        place_region(local, &of, &region);
        KEEL_TRY(keel_grow(&into->at, &into->capacity, into->count + 1, sizeof region));
        into->at[into->count++] = region;
    }
    return KEEL_OK;
}

/* Elements [from, to) of the part of the box that `of` fixes in the dimensions before d: what begins within
 * an index of d, whole indices, what ends within one. */
static enum keel_status cut_run(const struct visit *visit, const struct run *run, const struct local *local,
                                struct rectangle of, uint32_t d, uint64_t from, uint64_t to)
{
    const uint64_t stride = stride_of(local, d), first = (from + stride - 1) / stride, last = to / stride;
    of.count[d] = 1;
    of.from[d] = from / stride;
    if (from % stride != 0) {
        const uint64_t end = to < first * stride ? to : first * stride;
        KEEL_TRY(cut_run(visit, run, local, of, d + 1, from % stride, end - of.from[d] * stride));
    }
    if (first < last) {
        of.from[d] = first;
        of.count[d] = last - first;
        for (uint32_t l = d + 1; l < local->dims; l++) {
            of.from[l] = 0;
            of.count[l] = local->size[l];
        }
        KEEL_TRY(put_rectangle(visit, run, local, of));
    }
    of.count[d] = 1;
    of.from[d] = last;
    return first <= last && to % stride != 0 ? cut_run(visit, run, local, of, d + 1, 0, to % stride)
                                             : KEEL_OK;
}

static enum keel_status put_regions(const struct visit *visit, const struct run *run)
{
    const struct local local = local_of(visit, &visit->model->params[run->param]);
    const struct rectangle all = {.from = {0}};
    return cut_run(visit, run, &local, all, 0, run->from, run->to);
}

enum keel_status keel_plan_regions(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                                   uint32_t seat, bool writes, struct keel_plan_region **out,
                                   uint32_t *out_count)
{
    struct regions regions = {.at = NULL};
    const struct visit visit = {.model = model,
                                .plan = plan,
                                .seat = keel_plan_seat(model, plan, seat),
                                .put = put_regions,
                                .into = &regions,
                                .writes = writes};
    const enum keel_status status = visit_all(&visit);
    if (status != KEEL_OK) {
        keel_free(regions.at);
        return status;
    }
    *out = regions.at;
    *out_count = (uint32_t)regions.count;
    return KEEL_OK;
}
