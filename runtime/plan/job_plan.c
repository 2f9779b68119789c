/* job_plan.c - plans: what each seat has and needs, which plans there are for so many seats, and which is
 * best.
 */
#include "plan_internal.h"
#include <inttypes.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ELEMENT_BYTES = 4, ZERO_STAGES = 4 };

const char *keel_plan_bytes_name(enum keel_plan_bytes kind)
{
    static const char *const names[KEEL_BYTES_KINDS] = {"weights", "gradients", "optimizer", "activations",
                                                        "workspace"};
    return names[kind];
}

const char *keel_exchange_name(enum keel_exchange_kind kind)
{
    static const char *const names[KEEL_EXCHANGE_KINDS] = {"all-reduce", "reduce-scatter", "all-gather"};
    return names[kind];
}

/* ---- seats --------------------------------------------------------------------------------------------- */

/* As keel_view_first_place lays shards out: the first one whose place is not below the position. */
static uint32_t first_shard(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                            uint32_t position)
{
    return (uint32_t)(((uint64_t)position * model->shards + plan->data - 1) / plan->data);
}

struct keel_plan_seat keel_plan_seat(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                                     uint32_t seat)
{
    KEEL_ASSERT(seat < plan->seats);
    struct keel_plan_seat out = {.position = seat / plan->tensor, .place = seat % plan->tensor};
    out.first_slice = keel_slice_begin(model->tensor, plan->tensor, out.place);
    out.slice_count = keel_slice_begin(model->tensor, plan->tensor, out.place + 1) - out.first_slice;
    out.first_shard = first_shard(model, plan, out.position);
    out.shard_count = first_shard(model, plan, out.position + 1) - out.first_shard;
    return out;
}

/* Columns of a row that slices before `slice` have. */
uint64_t keel_plan_column(const struct keel_plan_model *model, const struct keel_plan_param *param,
                          uint32_t slice)
{
    return keel_slice_begin(param->units, model->tensor, slice) * param->unit;
}

/* Columns of a row of the seat's box. */
uint64_t keel_plan_columns(const struct keel_plan_model *model, const struct keel_plan_param *param,
                           const struct keel_plan_seat *seat)
{
    if (param->units == 0)
        return param->count / param->rows;
    return keel_plan_column(model, param, seat->first_slice + seat->slice_count) -
           keel_plan_column(model, param, seat->first_slice);
}

/* Pages that the seat's box of a parameter takes in each flat buffer. */
uint64_t keel_plan_pages(const struct keel_plan_model *model, uint32_t param,
                         const struct keel_plan_seat *seat)
{
    const struct keel_plan_param *p = &model->params[param];
    return (p->rows * keel_plan_columns(model, p, seat) + KEEL_FLAT_ALIGN - 1) / KEEL_FLAT_ALIGN;
}

uint32_t keel_plan_bucket_end(const struct keel_plan_model *model, uint32_t first)
{
    uint32_t end = first + 1;
    while (end < model->param_count &&
           model->params[model->order[end]].bucket == model->params[model->order[first]].bucket)
        end++;
    return end;
}

/* ---- shares -------------------------------------------------------------------------------------------- */

/* So many times `count` elements are whole pages: a power of two. */
static uint64_t times_to_page(uint64_t count)
{
    const uint64_t shared = count & (~count + 1); /* the largest power of two that divides it */
    return shared == 0 || shared >= KEEL_FLAT_ALIGN ? 1 : KEEL_FLAT_ALIGN / shared;
}

/* So many elements of the seat's box, or a multiple, are whole pages of the norm of each of its slices: as
 * keel_engine_share has it. */
static uint64_t atom(const struct keel_plan_model *model, const struct keel_plan_param *param,
                     const struct keel_plan_seat *seat)
{
    uint64_t rows = 1, at = 0;
    bool are_runs = param->rows == 1;
    if (param->units == 0 || model->tensor == 1)
        return KEEL_FLAT_ALIGN;
    for (uint32_t s = seat->first_slice; s < seat->first_slice + seat->slice_count; s++) {
        const uint64_t row = keel_plan_column(model, param, s + 1) - keel_plan_column(model, param, s);
        const uint64_t need = times_to_page(row);
        are_runs = are_runs && at % KEEL_FLAT_ALIGN == 0;
        rows = need > rows ? need : rows;
        at += row;
    }
    return are_runs ? KEEL_FLAT_ALIGN : rows * at * times_to_page(rows * at);
}

/* The seat's box of a parameter in a bucket: its elements, with the gap behind them, and where it may be cut.
 */
struct box {
    uint64_t count, room, atom;
};

static struct box box_of(const struct keel_plan_model *model, uint32_t param,
                         const struct keel_plan_seat *seat)
{
    const struct keel_plan_param *p = &model->params[param];
    return (struct box){.count = p->rows * keel_plan_columns(model, p, seat),
                        .room = keel_plan_pages(model, param, seat) * KEEL_FLAT_ALIGN,
                        .atom = atom(model, p, seat)};
}

/* Where a share would begin in a bucket of `count` elements, and where it does, of a box that has this place.
 */
static uint64_t wanted_begin(uint64_t count, uint32_t of, uint32_t number)
{
    return count / KEEL_FLAT_ALIGN * number / of * KEEL_FLAT_ALIGN;
}

static uint64_t begin_within(const struct box *box, uint64_t wanted)
{
    const uint64_t within = wanted < box->count ? wanted : box->count - 1; /* gaps go with what is before */
    KEEL_ASSERT(box->count > 0 && box->atom > 0);
    return within / box->atom * box->atom;
}

uint64_t keel_plan_share_begin(const struct keel_plan_model *model, const struct keel_plan_seat *seat,
                               uint32_t first, uint32_t of, uint32_t number)
{
    const uint32_t end = keel_plan_bucket_end(model, first);
    uint64_t count = 0, at = 0;
    for (uint32_t i = first; i < end; i++)
        count += keel_plan_pages(model, model->order[i], seat) * KEEL_FLAT_ALIGN;
    if (number == of)
        return count;
    const uint64_t wanted = wanted_begin(count, of, number);
    for (uint32_t i = first;; i++) {
        const struct box box = box_of(model, model->order[i], seat);
        if (wanted < at + box.room)
            return at + begin_within(&box, wanted - at);
        at += box.room;
    }
}

/* Buckets that are cut alike, whatever the seat: from number `first` of the order on, `times` of them. */
struct like {
    uint32_t first, times;
};
enum { LIKES_MAX = 32 };

static bool are_alike(const struct keel_plan_param *a, const struct keel_plan_param *b)
{
    return a->rows == b->rows && a->unit == b->unit && a->units == b->units && a->count == b->count;
}

/* Whether the bucket [first, end) of the order is cut as that which begins with number `other`, before it. */
static bool is_cut_alike(const struct keel_plan_model *model, uint32_t other, uint32_t first, uint32_t end)
{
    uint32_t i = first;
    while (i < end &&
           are_alike(&model->params[model->order[i]], &model->params[model->order[other + i - first]]))
        i++;
    return i == end && keel_plan_bucket_end(model, other) == other + end - first;
}

/* Adds to out what each of n positions owns of buckets that are cut alike. */
static void share_out_likes(const struct keel_plan_model *model, const struct keel_plan_seat *seat,
                            uint32_t n, const struct like *like, uint64_t out[KEEL_SHARDS_MAX])
{
    const uint32_t end = keel_plan_bucket_end(model, like->first);
    const uint64_t count = keel_plan_share_begin(model, seat, like->first, n, n);
    uint64_t at = 0, before = 0;
    uint32_t number = 1;
    for (uint32_t i = like->first; i < end; i++) {
        const struct box box = box_of(model, model->order[i], seat);
        for (uint64_t wanted; number < n && (wanted = wanted_begin(count, n, number)) < at + box.room;
             number++) {
            const uint64_t begin = at + begin_within(&box, wanted - at);
            out[number - 1] += (begin - before) * like->times;
            before = begin;
        }
        at += box.room;
    }
    out[n - 1] += (count - before) * like->times;
}

/* Elements of the flat buffer that each of n positions owns. A model has few kinds of buckets: its layers are
 * alike. */
static void share_out(const struct keel_plan_model *model, const struct keel_plan_seat *seat, uint32_t n,
                      uint64_t out[KEEL_SHARDS_MAX])
{
    struct like likes[LIKES_MAX];
    uint32_t kinds = 0;
    memset(out, 0, KEEL_SHARDS_MAX * sizeof *out);
    for (uint32_t i = 0, end; i < model->param_count; i = end) {
        uint32_t kind = 0;
        end = keel_plan_bucket_end(model, i);
        while (kind < kinds && !is_cut_alike(model, likes[kind].first, i, end))
            kind++;
        if (kind < kinds)
            likes[kind].times++;
        else if (kinds < LIKES_MAX)
            likes[kinds++] = (struct like){i, 1};
        else
            share_out_likes(model, seat, n, &(struct like){i, 1}, out);
    }
    for (uint32_t kind = 0; kind < kinds; kind++)
        share_out_likes(model, seat, n, &likes[kind], out);
}

/* Elements of the flat buffer, those that are not frozen; what position `owner` of n has of all. */
struct layout {
    uint64_t whole, moved, owned;
};

static struct layout lay_out(const struct keel_plan_model *model, const struct keel_plan_seat *seat,
                             uint32_t n, uint32_t owner)
{
    struct layout layout = {0, 0, 0};
    for (uint32_t i = 0; i < model->param_count; i = keel_plan_bucket_end(model, i)) {
        const uint64_t count = keel_plan_share_begin(model, seat, i, n, n);
        layout.whole += count;
        layout.moved += model->params[model->order[i]].frozen ? 0 : count;
        layout.owned += keel_plan_share_begin(model, seat, i, n, owner + 1) -
                        keel_plan_share_begin(model, seat, i, n, owner);
    }
    return layout;
}

/* ---- bytes --------------------------------------------------------------------------------------------- */

uint32_t keel_plan_copies(const struct keel_job_plan *plan)
{
    if (plan->zero == 0 || plan->data == 1)
        return 0;
    return plan->group < plan->data ? plan->data / plan->group - 1 : plan->holders - 1;
}

/* The positions as owners; without nodes where no two of them are on one. */
static struct keel_owners_map map_of(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                                     uint32_t node[KEEL_SHARDS_MAX])
{
    const bool apart = model->per_node <= plan->tensor;
    for (uint32_t p = 0; p < plan->data && !apart; p++)
        node[p] = p * plan->tensor / model->per_node;
    return (struct keel_owners_map){
        .count = plan->data, .group = plan->group, .holders = plan->holders, .node = apart ? NULL : node};
}

bool keel_plan_shadows(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                       uint32_t position, uint32_t owner)
{
    uint32_t node[KEEL_SHARDS_MAX];
    if (position == owner || keel_plan_copies(plan) == 0)
        return false;
    const struct keel_owners_map map = map_of(model, plan, node);
    return keel_has_share(&map, position, owner);
}

/* Maximal complete subtrees of shards [first, end), as partial_sums.c keeps them. */
static uint32_t count_nodes(uint32_t shards, uint32_t first, uint32_t end)
{
    uint32_t count = 0, next;
    for (uint32_t at = first; at < end; at = next, count++) {
        next = at + 1;
        for (uint32_t size = 2; at % size == 0 && next < shards; size *= 2) {
            const uint32_t after = at + size < shards ? at + size : shards;
            if (after > end)
                break;
            next = after;
        }
    }
    return count;
}

/* Buffers beside the gradients in which nodes of a seat's shards wait, as a tape has them (tape.c): all that
 * is held while a shard is computed. `apart`: what is computed goes to one, too, but of the last shard, which
 * goes to its owners. Else the sum of all ranks, where nobody owns it, needs a place where no node lies. */
static uint32_t count_slots(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                            const struct keel_plan_seat *seat, bool apart)
{
    const uint32_t first = seat->first_shard, end = first + seat->shard_count;
    uint32_t most = 0;
    if (model->compressed) /* on the host */
        return 0;
    if (plan->zero == 0 && plan->data > 1)
        most = count_nodes(model->shards, first, end);
    for (uint32_t s = first; s + 1 < end; s++) {
        const uint32_t held =
            apart ? count_nodes(model->shards, first, s) + 1 : count_nodes(model->shards, first, s + 1);
        most = held > most ? held : most;
    }
    return most;
}

void keel_plan_seat_bytes(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                          const struct keel_plan_shares *shares, const struct keel_plan_seat *seat,
                          uint64_t out[KEEL_BYTES_KINDS])
{
    const uint64_t whole = shares->whole, moved = plan->zero > 0 ? whole : shares->moved;
    const uint64_t held = shares->held[seat->position]; /* of what is divided */
    const struct keel_plan_cut *cut = &model->cuts[seat->slice_count];
    /* Microbatches of a shard are added one after the other: the sum of several is whole on its rank. */
    const bool windows = plan->zero >= 2 && model->microbatches == 1;
    out[KEEL_BYTES_WEIGHTS] = plan->zero >= 3 ? held : whole;
    out[KEEL_BYTES_GRADIENTS] = windows ? held : moved;
    out[KEEL_BYTES_OPTIMIZER] =
        (plan->zero >= 1 ? held : moved) * (1U + (model->has_v ? 1U : 0U) + (model->has_ema ? 1U : 0U));
    out[KEEL_BYTES_ACTIVATIONS] = cut->activation_bytes;
    out[KEEL_BYTES_WORKSPACE] = cut->accumulator_bytes + count_slots(model, plan, seat, windows) * moved;
    if (plan->zero == 0)
        return;
    /* What is held has a place for its sum, and one for its weights, which go from there to all. What is
     * computed bucket by bucket lies in windows. */
    out[KEEL_BYTES_WORKSPACE] += windows ? cut->window_bytes : held;
    out[KEEL_BYTES_WORKSPACE] += plan->zero < 3 ? held : cut->weight_window_bytes;
}

void keel_plan_shares(const struct keel_plan_model *model, const struct keel_job_plan *plan, uint32_t place,
                      struct keel_plan_shares *out)
{
    uint32_t node[KEEL_SHARDS_MAX];
    const struct keel_plan_seat seat = keel_plan_seat(model, plan, place);
    const struct keel_owners_map map = map_of(model, plan, node);
    const bool copied = keel_plan_copies(plan) > 0, grouped = plan->group < plan->data;
    out->whole = out->moved = 0;
    for (uint32_t i = 0; i < model->param_count; i++) {
        const uint64_t bytes = keel_plan_pages(model, i, &seat) * KEEL_FLAT_ALIGN * ELEMENT_BYTES;
        out->whole += bytes;
        out->moved += model->params[i].frozen ? 0 : bytes;
    }
    if (plan->zero > 0)
        share_out(model, &seat, plan->data, out->owned);
    for (uint32_t p = 0; p < plan->data; p++)
        out->held[p] = out->owned[p] = plan->zero > 0 ? out->owned[p] * ELEMENT_BYTES : out->whole;
    for (uint32_t p = 0; p < plan->data && copied && !grouped; p++)
        out->held[keel_second_holder(p, plan->data, map.node)] += out->owned[p];
    for (uint32_t p = 0; p < plan->data && copied && grouped; p++)
        for (uint32_t q = p % plan->group; q < plan->data; q += plan->group)
            out->held[p] += q != p ? out->owned[q] : 0;
}

static uint64_t total_of(const uint64_t bytes[KEEL_BYTES_KINDS])
{
    uint64_t total = 0;
    for (int kind = 0; kind < KEEL_BYTES_KINDS; kind++)
        total += bytes[kind];
    return total;
}

/* Of a tensor place: the position that has most, unless the plan has one with more. */
static void take_largest(const struct keel_plan_model *model, uint32_t place,
                         const struct keel_plan_shares *shares, struct keel_job_plan *plan)
{
    struct keel_plan_seat seat = keel_plan_seat(model, plan, place);
    uint64_t bytes[KEEL_BYTES_KINDS];
    for (uint32_t p = 0; p < plan->data; p++) {
        seat.position = p;
        seat.shard_count = first_shard(model, plan, p + 1) - seat.first_shard;
        keel_plan_seat_bytes(model, plan, shares, &seat, bytes);
        if (total_of(bytes) > plan->total_bytes)
            memcpy(plan->bytes, bytes, sizeof bytes);
        plan->total_bytes = total_of(plan->bytes);
        seat.first_shard += seat.shard_count;
    }
}

/* Whether `units` are cut into slices of the same widths for both. */
static bool is_cut_the_same(const struct keel_plan_model *model, uint32_t units,
                            const struct keel_plan_seat *a, const struct keel_plan_seat *b)
{
    bool same = a->slice_count == b->slice_count;
    for (uint32_t s = 0; s < a->slice_count && same; s++) {
        const uint32_t one = a->first_slice + s, other = b->first_slice + s;
        same =
            keel_slice_begin(units, model->tensor, one + 1) - keel_slice_begin(units, model->tensor, one) ==
            keel_slice_begin(units, model->tensor, other + 1) - keel_slice_begin(units, model->tensor, other);
    }
    return same;
}

/* Whether a tensor place has slices as wide as the one before has, of all parameters: then it takes as much.
 */
static bool is_like_before(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                           uint32_t place)
{
    const struct keel_plan_seat seat = keel_plan_seat(model, plan, place),
                                before = keel_plan_seat(model, plan, place == 0 ? 0 : place - 1);
    bool alike = place > 0 && seat.slice_count == before.slice_count;
    uint32_t seen = 0; /* units that are */
    for (uint32_t i = 0; i < model->param_count && alike; i++) {
        alike =
            model->params[i].units == seen || is_cut_the_same(model, model->params[i].units, &seat, &before);
        seen = model->params[i].units;
    }
    return alike;
}

/* Of plans that differ in zero alone, the last of which divides most: who holds what is the same in all. */
static void fill(const struct keel_plan_model *model, struct keel_job_plan *plans, uint32_t count)
{
    const struct keel_job_plan *most = &plans[count - 1];
    for (uint32_t place = 0; place < most->tensor; place++) {
        struct keel_plan_shares shares;
        if (is_like_before(model, most, place))
            continue;
        keel_plan_shares(model, most, place, &shares);
        for (uint32_t i = 0; i < count; i++)
            take_largest(model, place, &shares, &plans[i]);
    }
}

static struct keel_job_plan axes_of(uint32_t data, uint32_t tensor, uint32_t zero, uint32_t holders,
                                    uint32_t group)
{
    return (struct keel_job_plan){.seats = data * tensor,
                                  .data = data,
                                  .tensor = tensor,
                                  .zero = zero,
                                  .holders = data > 1 ? holders : 1,
                                  .group = zero > 0 ? keel_zero_group(data, group) : data};
}

void keel_plan_make(const struct keel_plan_model *model, uint32_t data, uint32_t tensor, uint32_t zero,
                    uint32_t holders, uint32_t group, struct keel_job_plan *out)
{
    *out = axes_of(data, tensor, zero, holders, group);
    fill(model, out, 1);
}

/* ---- which plans there are ----------------------------------------------------------------------------- */

static int compare_numbers(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int compare_plans(const void *a, const void *b)
{
    const struct keel_job_plan *x = a, *y = b;
    if (x->fits != y->fits)
        return x->fits ? -1 : 1;
    if (!x->fits && x->total_bytes != y->total_bytes)
        return compare_numbers(x->total_bytes, y->total_bytes); /* the nearest first */
    if (x->seats != y->seats)
        return compare_numbers(y->seats, x->seats);
    return x->tensor != y->tensor ? compare_numbers(x->tensor, y->tensor) : compare_numbers(x->zero, y->zero);
}

/* What the keys leave open of `zero`: from, and to. */
static void zero_range(const struct keel_plan_model *model, const struct keel_parallel *asked, uint32_t data,
                       uint32_t *from, uint32_t *to)
{
    *from = asked->zero != KEEL_ZERO_CHOSEN ? asked->zero - KEEL_ZERO_NONE : 0;
    *to = asked->zero != KEEL_ZERO_CHOSEN ? *from : data > 1 ? model->zero_most : 0;
}

/* All plans with these axes, at `out`: how many. */
static uint32_t put_plans(const struct keel_plan_model *model, const struct keel_parallel *asked,
                          uint32_t data, uint32_t tensor, struct keel_job_plan *out)
{
    uint32_t from, to, count = 0;
    zero_range(model, asked, data, &from, &to);
    for (uint32_t zero = from; zero <= to; zero++)
        out[count++] = axes_of(data, tensor, zero, asked->holders, asked->zero_group);
    fill(model, out, count);
    for (uint32_t i = 0; i < count; i++)
        out[i].fits = asked->memory_bytes == 0 || out[i].total_bytes <= asked->memory_bytes;
    return count;
}

/* Whether there is an engine for each of so many places. */
static bool can_be_cut(const struct keel_plan_model *model, uint32_t places)
{
    return !model->cuts[model->tensor / places].refused &&
           !model->cuts[(model->tensor + places - 1) / places].refused;
}

enum keel_status keel_plan_list(const struct keel_plan_model *model, const struct keel_parallel *asked,
                                uint32_t seats, struct keel_job_plan **out, uint32_t *out_count)
{
    struct keel_job_plan *plans;
    uint32_t count = 0;
    KEEL_TRY(keel_alloc((uint64_t)ZERO_STAGES * model->tensor, sizeof *plans, &plans));
    for (uint32_t tensor = 1; tensor <= model->tensor; tensor++) {
        const uint32_t most = seats / tensor < model->shards ? seats / tensor : model->shards;
        if ((asked->tensor != 0 && asked->tensor != tensor) || most == 0 || asked->data > most ||
            !can_be_cut(model, tensor))
            continue;
        count += put_plans(model, asked, asked->data != 0 ? asked->data : most, tensor, &plans[count]);
    }
    for (uint32_t i = 0; i < count; i++)
        plans[i].spares = seats - plans[i].seats;
    if (count > 0)
        qsort(plans, count, sizeof *plans, compare_plans);
    *out = plans;
    *out_count = count;
    return KEEL_OK;
}

void keel_plan_describe_bytes(const struct keel_job_plan *plan, char *out, size_t bytes)
{
    size_t used = 0;
    for (uint32_t kind = 0; kind < KEEL_BYTES_KINDS && used < bytes; kind++)
        used += (size_t)snprintf(out + used, bytes - used, "%s%s %" PRIu64, kind == 0 ? "" : ", ",
                                 keel_plan_bytes_name((enum keel_plan_bytes)kind), plan->bytes[kind]);
}

void keel_plan_name_nearest(const struct keel_plan_model *model, const struct keel_parallel *asked,
                            uint32_t ranks, char *out, size_t bytes)
{
    const struct keel_parallel any = {
        .holders = asked->holders, .memory_bytes = asked->memory_bytes, .bucket_bytes = asked->bucket_bytes};
    struct keel_job_plan plan = {.seats = 0};
    const uint32_t fewest = keel_plan_fewest_seats(model, &any);
    if (fewest == 0 || keel_plan_choose(model, &any, fewest > ranks ? fewest : ranks, &plan) != KEEL_OK)
        snprintf(out, bytes, "no plan fits, of any number of ranks");
    else
        snprintf(out, bytes,
                 "%" PRIu32 " with parallel.tensor = %" PRIu32 " and parallel.zero = %" PRIu32 " fit",
                 plan.seats, plan.tensor, plan.zero);
}

static enum keel_status refuse_memory(const struct keel_plan_model *model, const struct keel_parallel *asked,
                                      const struct keel_job_plan *nearest)
{
    char kinds[160], other[96],
        enough[144] = "no number of ranks does: give more, or a smaller model or batch";
    if (asked->data != 0 || asked->tensor != 0 || asked->zero != KEEL_ZERO_CHOSEN) {
        keel_plan_name_nearest(model, asked, nearest->seats + nearest->spares, other, sizeof other);
        snprintf(enough, sizeof enough, "no number of ranks does so; %s", other);
    }
    const uint32_t fewest = keel_plan_fewest_seats(model, asked);
    struct keel_job_plan fits = {.seats = 0};
    if (fewest > 0 && keel_plan_choose(model, asked, fewest, &fits) == KEEL_OK)
        snprintf(enough, sizeof enough, "%u ranks do, with tensor %u and zero %u", fewest, fits.tensor,
                 fits.zero);
    keel_plan_describe_bytes(nearest, kinds, sizeof kinds);
    return keel_fail(KEEL_NO_MEMORY,
                     "no plan of %u ranks fits %" PRIu64
                     " bytes a rank; the nearest, data %u, tensor %u, zero %u, "
                     "needs %" PRIu64 ": %s; %s",
                     nearest->seats + nearest->spares, asked->memory_bytes, nearest->data, nearest->tensor,
                     nearest->zero, nearest->total_bytes, kinds, enough);
}

enum keel_status keel_plan_choose(const struct keel_plan_model *model, const struct keel_parallel *asked,
                                  uint32_t seats, struct keel_job_plan *out)
{
    struct keel_job_plan *plans;
    uint32_t count;
    KEEL_TRY(keel_plan_list(model, asked, seats, &plans, &count));
    enum keel_status status = KEEL_OK;
    if (count == 0)
        status =
            keel_fail(KEEL_INVALID, "%u ranks are fewer than parallel.data = %u times parallel.tensor = %u",
                      seats, asked->data, asked->tensor);
    else if (!plans[0].fits)
        status = refuse_memory(model, asked, &plans[0]);
    else
        *out = plans[0];
    keel_free(plans);
    return status;
}

static bool any_fits(const struct keel_plan_model *model, const struct keel_parallel *asked, uint32_t data,
                     uint32_t tensor)
{
    struct keel_job_plan plans[ZERO_STAGES];
    const uint32_t count = put_plans(model, asked, data, tensor, plans);
    for (uint32_t i = 0; i < count; i++)
        if (plans[i].fits)
            return true;
    return false;
}

/* The fewest data positions with which one fits; 0: none. From two on, more of them never need more, but for
 * nodes that wait, of which there are fewest where each has one shard: without these the least is found by
 * halves. */
static uint32_t fewest_positions(const struct keel_plan_model *model, const struct keel_parallel *asked,
                                 uint32_t tensor)
{
    uint32_t low = 2, high = model->shards;
    struct keel_plan_model bare = *model;
    bare.compressed = true;
    if (asked->data != 0)
        return any_fits(model, asked, asked->data, tensor) ? asked->data : 0;
    if (any_fits(model, asked, 1, tensor))
        return 1;
    if (high < low || !any_fits(model, asked, high, tensor))
        return 0;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (any_fits(&bare, asked, middle, tensor))
            high = middle;
        else
            low = middle + 1;
    }
    while (!any_fits(model, asked, low, tensor))
        low++;
    return low;
}

uint32_t keel_plan_fewest_seats(const struct keel_plan_model *model, const struct keel_parallel *asked)
{
    uint32_t fewest = 0;
    for (uint32_t tensor = 1; tensor <= model->tensor; tensor++) {
        const bool may = (asked->tensor == 0 || asked->tensor == tensor) && can_be_cut(model, tensor);
        const uint32_t data = may ? fewest_positions(model, asked, tensor) : 0;
        if (data > 0 && (fewest == 0 || data * tensor < fewest))
            fewest = data * tensor;
    }
    return fewest;
}

/* ---- traffic ------------------------------------------------------------------------------------------- */

static void add_exchange(struct keel_plan_exchange *to, uint64_t count, uint64_t bytes)
{
    to->count += count;
    to->bytes += bytes;
}

/* Of compressed gradients: blocks are cut within what a slice has of a parameter. */
static uint64_t compressed_bytes(const struct keel_plan_model *model, const struct keel_plan_seat *seat)
{
    uint64_t elements = 0;
    for (uint32_t i = 0; i < model->param_count; i++) {
        const struct keel_plan_param *param = &model->params[i];
        for (uint32_t s = 0; !param->frozen && s < (param->units > 0 ? seat->slice_count : 1); s++) {
            const struct keel_plan_seat one = {.first_slice = seat->first_slice + s, .slice_count = 1};
            elements += keel_compressed_count(&model->compression,
                                              param->rows * keel_plan_columns(model, param, &one));
        }
    }
    return elements * KEEL_COMPRESSED_BYTES;
}

void keel_plan_traffic(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                       struct keel_plan_traffic *out)
{
    const struct keel_plan_seat seat = keel_plan_seat(model, plan, 0);
    const struct layout own = lay_out(model, &seat, plan->data, plan->data - 1);
    const uint64_t bytes = own.whole * ELEMENT_BYTES, buckets = model->owned_buckets;
    const uint64_t microbatches =
        (uint64_t)model->microbatches * ((model->shards + plan->data - 1) / plan->data);
    *out = (struct keel_plan_traffic){.shadow_bytes = keel_plan_copies(plan) * own.owned * ELEMENT_BYTES};
    for (int kind = 0; plan->tensor > 1 && kind < KEEL_EXCHANGE_KINDS; kind++)
        add_exchange(&out->tensor[kind], model->exchanges[kind].count * microbatches,
                     model->exchanges[kind].bytes * microbatches);
    if (plan->data == 1)
        return;
    if (plan->zero == 0) {
        add_exchange(&out->data[KEEL_EXCHANGE_ALL_REDUCE], model->bucket_count,
                     model->compressed ? compressed_bytes(model, &seat) : own.moved * ELEMENT_BYTES);
        return;
    }
    add_exchange(&out->data[KEEL_EXCHANGE_REDUCE_SCATTER], buckets, bytes);
    /* Weights: after the update; or before they are read, forward and backward. A group gathers a bucket in
     * stripes, one for each group; where each position has all shares there is nothing to gather. */
    const struct keel_plan_cut *cut = &model->cuts[seat.slice_count];
    const uint64_t stripes = plan->data / plan->group;
    if (plan->group == 1)
        return;
    if (plan->zero < 3)
        add_exchange(&out->data[KEEL_EXCHANGE_ALL_GATHER], buckets * stripes, bytes);
    else
        add_exchange(&out->data[KEEL_EXCHANGE_ALL_GATHER], cut->gather_count * microbatches * stripes,
                     cut->gathered_bytes * microbatches);
}
