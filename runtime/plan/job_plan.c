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

uint64_t keel_plan_share_begin(uint64_t count, uint32_t of, uint32_t number)
{
    return count * number / of;
}

struct keel_plan_seat keel_plan_seat(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                                     uint32_t seat)
{
    KEEL_ASSERT(seat < plan->seats);
    struct keel_plan_seat out = {.position = seat / plan->tensor, .place = seat % plan->tensor};
    out.first_slice = keel_slice_begin(model->tensor, plan->tensor, out.place);
    out.slice_count = keel_slice_begin(model->tensor, plan->tensor, out.place + 1) - out.first_slice;
    /* As keel_view_first_place lays shards out: the first one whose place is not below the position. */
    const uint64_t s = model->shards, n = plan->data;
    out.first_shard = (uint32_t)((out.position * s + n - 1) / n);
    out.shard_count = (uint32_t)(((out.position + 1) * s + n - 1) / n) - out.first_shard;
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

/* Pages of the flat buffer; what position `owner` of n has of them. */
struct layout {
    uint64_t pages, owned;
};

static void add_bucket(struct layout *layout, uint64_t pages, uint32_t n, uint32_t owner)
{
    layout->pages += pages;
    layout->owned += keel_plan_share_begin(pages, n, owner + 1) - keel_plan_share_begin(pages, n, owner);
}

static struct layout lay_out(const struct keel_plan_model *model, const struct keel_plan_seat *seat,
                             uint32_t n, uint32_t owner)
{
    struct layout layout = {0, 0};
    uint64_t pages = 0;
    for (uint32_t i = 0; i < model->param_count; i++) {
        const uint32_t param = model->order[i];
        pages += keel_plan_pages(model, param, seat);
        if (i + 1 < model->param_count &&
            model->params[model->order[i + 1]].bucket == model->params[param].bucket)
            continue;
        add_bucket(&layout, pages, n, owner);
        pages = 0;
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

bool keel_plan_shadows(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                       uint32_t position, uint32_t owner)
{
    uint32_t node[KEEL_SHARDS_MAX];
    if (position == owner || keel_plan_copies(plan) == 0)
        return false;
    if (plan->group < plan->data)
        return position % plan->group == owner % plan->group;
    if (model->per_node <= plan->tensor) /* no two of them on one node */
        return (owner + 1) % plan->data == position;
    for (uint32_t p = 0; p < plan->data; p++)
        node[p] = p * plan->tensor / model->per_node;
    return keel_second_holder(owner, plan->data, node) == position;
}

/* `whole`, `held`: bytes of all elements of the seat, and of those that it holds of what is divided. */
static void count_bytes(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                        const struct keel_plan_seat *seat, uint64_t whole, uint64_t held,
                        uint64_t out[KEEL_BYTES_KINDS])
{
    /* Microbatches of a shard are added one after the other: the sum of several is whole on its rank. */
    const bool windows = plan->zero >= 2 && model->microbatches == 1;
    out[KEEL_BYTES_WEIGHTS] = plan->zero >= 3 ? held : whole;
    out[KEEL_BYTES_GRADIENTS] = windows ? held : whole;
    out[KEEL_BYTES_OPTIMIZER] = (plan->zero >= 1 ? held : whole) * (model->has_v ? 2 : 1);
    out[KEEL_BYTES_ACTIVATIONS] = model->cuts[seat->slice_count].activation_bytes;
    out[KEEL_BYTES_WORKSPACE] = model->cuts[seat->slice_count].accumulator_bytes;
    if (plan->data == 1 && plan->zero == 0)
        return;
    /* The place of a sum: no retained node is written. What is held has one, and one for its weights, which
     * go from there to all. What is computed bucket by bucket lies in windows. */
    if (plan->zero == 0)
        out[KEEL_BYTES_WORKSPACE] += whole;
    else
        out[KEEL_BYTES_WORKSPACE] += windows ? model->cuts[seat->slice_count].window_bytes : held;
    if (plan->zero == 1 || plan->zero == 2)
        out[KEEL_BYTES_WORKSPACE] += held;
    if (plan->zero >= 3)
        out[KEEL_BYTES_WORKSPACE] += model->cuts[seat->slice_count].weight_window_bytes;
}

void keel_plan_seat_bytes(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                          uint32_t seat, uint64_t out[KEEL_BYTES_KINDS])
{
    const struct keel_plan_seat of = keel_plan_seat(model, plan, seat);
    const struct layout own = lay_out(model, &of, plan->data, of.position);
    uint64_t held = own.owned;
    for (uint32_t owner = 0; owner < plan->data; owner++)
        if (keel_plan_shadows(model, plan, of.position, owner))
            held += lay_out(model, &of, plan->data, owner).owned;
    const uint64_t page = (uint64_t)KEEL_FLAT_ALIGN * ELEMENT_BYTES;
    count_bytes(model, plan, &of, own.pages * page, held * page, out);
}

static uint64_t total_of(const uint64_t bytes[KEEL_BYTES_KINDS])
{
    uint64_t total = 0;
    for (int kind = 0; kind < KEEL_BYTES_KINDS; kind++)
        total += bytes[kind];
    return total;
}

/* The seat that has most: of the tensor places the one with most, which the last position is as well as any,
 * since floors leave it the larger shares. */
void keel_plan_make(const struct keel_plan_model *model, uint32_t data, uint32_t tensor, uint32_t zero,
                    uint32_t holders, uint32_t group, struct keel_job_plan *out)
{
    uint64_t bytes[KEEL_BYTES_KINDS];
    *out = (struct keel_job_plan){.seats = data * tensor,
                                  .data = data,
                                  .tensor = tensor,
                                  .zero = zero,
                                  .holders = data > 1 ? holders : 1,
                                  .group = zero > 0 ? keel_zero_group(data, group) : data};
    for (uint32_t place = 0; place < tensor; place++) {
        keel_plan_seat_bytes(model, out, (data - 1) * tensor + place, bytes);
        if (total_of(bytes) > out->total_bytes)
            memcpy(out->bytes, bytes, sizeof bytes);
        out->total_bytes = total_of(out->bytes);
    }
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
    for (uint32_t zero = from; zero <= to; zero++) {
        struct keel_job_plan *plan = &out[count++];
        keel_plan_make(model, data, tensor, zero, asked->holders, asked->zero_group, plan);
        plan->fits = asked->memory_bytes == 0 || plan->total_bytes <= asked->memory_bytes;
    }
    return count;
}

enum keel_status keel_plan_list(const struct keel_plan_model *model, const struct keel_parallel *asked,
                                uint32_t seats, struct keel_job_plan **out, uint32_t *out_count)
{
    struct keel_job_plan *plans;
    uint32_t count = 0;
    KEEL_TRY(keel_alloc((uint64_t)ZERO_STAGES * model->tensor, sizeof *plans, &plans));
    for (uint32_t tensor = 1; tensor <= model->tensor; tensor++) {
        const uint32_t most = seats / tensor < model->shards ? seats / tensor : model->shards;
        if ((asked->tensor != 0 && asked->tensor != tensor) || most == 0 || asked->data > most)
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

static enum keel_status refuse_memory(const struct keel_plan_model *model, const struct keel_parallel *asked,
                                      const struct keel_job_plan *nearest)
{
    char kinds[160], enough[112] = "no number of ranks does: give more, or a smaller model or batch";
    if (asked->data != 0 || asked->tensor != 0 || asked->zero != KEEL_ZERO_CHOSEN)
        snprintf(enough, sizeof enough,
                 "no number of ranks does so: leave parallel.data, tensor and zero open, or give more");
    const uint32_t fewest = keel_plan_fewest_seats(model, asked);
    if (fewest > 0)
        snprintf(enough, sizeof enough, "%u ranks do", fewest);
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

/* The fewest data positions with which one fits; 0: none. From two on, more of them never need more. */
static uint32_t fewest_positions(const struct keel_plan_model *model, const struct keel_parallel *asked,
                                 uint32_t tensor)
{
    uint32_t low = 2, high = model->shards;
    if (asked->data != 0)
        return any_fits(model, asked, asked->data, tensor) ? asked->data : 0;
    if (any_fits(model, asked, 1, tensor))
        return 1;
    if (high < low || !any_fits(model, asked, high, tensor))
        return 0;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (any_fits(model, asked, middle, tensor))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

uint32_t keel_plan_fewest_seats(const struct keel_plan_model *model, const struct keel_parallel *asked)
{
    uint32_t fewest = 0;
    for (uint32_t tensor = 1; tensor <= model->tensor; tensor++) {
        const uint32_t data =
            asked->tensor == 0 || asked->tensor == tensor ? fewest_positions(model, asked, tensor) : 0;
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

void keel_plan_traffic(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                       struct keel_plan_traffic *out)
{
    const uint64_t page = (uint64_t)KEEL_FLAT_ALIGN * ELEMENT_BYTES;
    const struct keel_plan_seat seat = keel_plan_seat(model, plan, 0);
    const struct layout own = lay_out(model, &seat, plan->data, plan->data - 1);
    const uint64_t bytes = own.pages * page, buckets = model->bucket_count;
    const uint64_t microbatches =
        (uint64_t)model->microbatches * ((model->shards + plan->data - 1) / plan->data);
    *out = (struct keel_plan_traffic){.shadow_bytes = keel_plan_copies(plan) * own.owned * page};
    for (int kind = 0; plan->tensor > 1 && kind < KEEL_EXCHANGE_KINDS; kind++)
        add_exchange(&out->tensor[kind], model->exchanges[kind].count * microbatches,
                     model->exchanges[kind].bytes * microbatches);
    if (plan->data == 1)
        return;
    if (plan->zero == 0) {
        add_exchange(&out->data[KEEL_EXCHANGE_ALL_REDUCE], buckets, bytes);
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
