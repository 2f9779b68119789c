/* seats_test.c - plans against what they are by definition: bytes against the formulas, holdings element by
 * element, choices against all that there are, collectives of a layer against Megatron's. */
#include "harness.h"
#include "job_plan.h"
#include "view.h"
#include <inttypes.h>
#include <keel/memory.h>
#include <keel/models.h>
#include <string.h>

enum { PARAMS_MAX = 6, ELEMENTS_MAX = 9000, SEATS_MAX = 48 };

static uint32_t random_state;
static uint32_t next_random(uint32_t below)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(random_state >> 8) * below) >> 24);
}

static struct keel_plan_param params[PARAMS_MAX];
static uint32_t order[PARAMS_MAX];
static struct keel_plan_cut cuts[KEEL_SLICES_MAX + 1]; /* more slices take more */

/* A model of random parameters: whole ones, and some that are cut along rows or columns. */
static struct keel_plan_model draw_model(void)
{
    struct keel_plan_model model = {.shards = 1 + next_random(8),
                                    .tensor = 1 + next_random(6),
                                    .microbatches = 1,
                                    .has_v = next_random(2) == 1,
                                    .has_ema = next_random(2) == 1,
                                    .zero_most = 3,
                                    .params = params,
                                    .order = order,
                                    .param_count = 1 + next_random(PARAMS_MAX),
                                    .cuts = cuts};
    for (uint32_t count = 1; count <= model.tensor; count++)
        cuts[count] =
            (struct keel_plan_cut){.activation_bytes = cuts[count - 1].activation_bytes + next_random(20000),
                                   .accumulator_bytes = 4096 * count,
                                   .window_bytes = 1024 * count};
    for (uint32_t i = 0; i < model.param_count; i++) {
        const uint32_t lead = 1 + next_random(3), outer = 1 + next_random(3);
        const uint32_t each = 1 + next_random(3), tail = 1 + next_random(4);
        const uint32_t units = model.tensor + next_random(60);
        const bool whole = next_random(3) == 0;
        params[i] = (struct keel_plan_param){.rows = whole ? 1 : lead * outer,
                                             .unit = whole ? 0 : each * tail,
                                             .units = whole ? 0 : units,
                                             .count = (uint64_t)lead * outer * units * each * tail,
                                             .statistic = next_random(5) == 0,
                                             .name = "p",
                                             .dims = 3,
                                             .split_dim = 1,
                                             .outer = outer,
                                             .shape = {lead, outer * units * each, tail}};
        order[i] = i;
        if (i > 0) {
            const uint32_t other = next_random(i + 1);
            order[i] = order[other];
            order[other] = i;
        }
    }
    for (uint32_t i = 0; i < model.param_count; i++) {
        model.bucket_count += i == 0 || next_random(2) == 0;
        params[order[i]].bucket = model.bucket_count - 1;
    }
    return model;
}

static struct keel_job_plan draw_plan(const struct keel_plan_model *model)
{
    struct keel_job_plan plan;
    keel_plan_make(model, 1 + next_random(model->shards), 1 + next_random(model->tensor), next_random(4),
                   1 + next_random(2), next_random(model->shards), &plan);
    return plan;
}

/* ---- holdings ------------------------------------------------------------------------------------------ */

/* The column with which a slice begins, by its definition. */
static uint64_t begin_of(const struct keel_plan_model *model, const struct keel_plan_param *p, uint32_t slice)
{
    return (uint64_t)slice * p->units / model->tensor * p->unit;
}

/* Where element `column` of a row is: its slice, and its number in the tile. */
static uint32_t tile_of(const struct keel_plan_model *model, const struct keel_plan_param *p, uint64_t row,
                        uint64_t column, uint64_t *out_number)
{
    uint32_t slice = 0;
    if (p->units == 0) {
        *out_number = row * p->count / p->rows + column;
        return 0;
    }
    while (begin_of(model, p, slice + 1) <= column)
        slice++;
    const uint64_t begin = begin_of(model, p, slice);
    *out_number = row * (begin_of(model, p, slice + 1) - begin) + column - begin;
    return slice;
}

/* Columns [*from, *to) of each row that a seat has. */
static void columns_of(const struct keel_plan_model *model, const struct keel_plan_param *p, uint32_t tensor,
                       uint32_t place, uint64_t *from, uint64_t *to)
{
    *from = p->units == 0 ? 0 : begin_of(model, p, place * model->tensor / tensor);
    *to = p->units == 0 ? p->count / p->rows : begin_of(model, p, (place + 1) * model->tensor / tensor);
}

static uint64_t pages_of(const struct keel_plan_model *model, const struct keel_plan_param *p,
                         uint32_t tensor, uint32_t place)
{
    uint64_t from, to;
    columns_of(model, p, tensor, place, &from, &to);
    return (p->rows * (to - from) + 1023) / 1024;
}

/* Whether element e of what a place has of a parameter begins a page, and one of each of its slices. */
static bool may_begin(const struct keel_plan_model *model, const struct keel_plan_param *p, uint32_t tensor,
                      uint32_t place, uint64_t e)
{
    uint64_t from, to;
    bool runs = p->rows == 1, rows = true;
    columns_of(model, p, tensor, place, &from, &to);
    for (uint32_t s = place * model->tensor / tensor; s < (place + 1) * model->tensor / tensor; s++) {
        runs = runs && (begin_of(model, p, s) - from) % 1024 == 0;
        rows = rows && (e / (to - from) * (begin_of(model, p, s + 1) - begin_of(model, p, s))) % 1024 == 0;
    }
    return e % 1024 == 0 && (p->units == 0 || model->tensor == 1 || runs || (e % (to - from) == 0 && rows));
}

/* Where the share of each position begins in a bucket of the place's flat buffer: the last element that may,
 * up to page floor(k P / n). */
static void shares_of(const struct keel_plan_model *model, const struct keel_job_plan *plan, uint32_t place,
                      uint32_t bucket, uint64_t begin[SEATS_MAX + 1])
{
    uint64_t at = 0, pages = 0, from, to;
    for (uint32_t i = 0; i < model->param_count; i++)
        pages += params[i].bucket == bucket ? pages_of(model, &params[i], plan->tensor, place) : 0;
    for (uint32_t i = 0; i < model->param_count; i++) {
        const struct keel_plan_param *p = &params[order[i]];
        if (p->bucket != bucket)
            continue;
        columns_of(model, p, plan->tensor, place, &from, &to);
        const uint64_t count = p->rows * (to - from), room = pages_of(model, p, plan->tensor, place) * 1024;
        for (uint32_t k = 0; k < plan->data; k++) {
            const uint64_t wanted = k * pages / plan->data * 1024;
            if (wanted < at || wanted >= at + room)
                continue;
            uint64_t e = wanted - at < count ? wanted - at : count - 1;
            while (!may_begin(model, p, plan->tensor, place, e))
                e--;
            begin[k] = at + e;
        }
        at += room;
    }
    begin[plan->data] = at;
}

/* What a seat should have of a part: a flag for each element of each tile of each parameter. */
typedef uint8_t flags[PARAMS_MAX][6][ELEMENTS_MAX];

static void expect_part(const struct keel_plan_model *model, const struct keel_job_plan *plan, uint32_t seat,
                        bool divided, bool weights, flags out)
{
    const uint32_t position = seat / plan->tensor, place = seat % plan->tensor;
    for (uint32_t i = 0; i < model->param_count; i++) {
        const struct keel_plan_param *p = &params[order[i]];
        if (p->statistic && !weights)
            continue;
        uint64_t before = 0, from, to, number, begin[SEATS_MAX + 1];
        for (uint32_t j = 0; j < i; j++)
            before += params[order[j]].bucket == p->bucket
                          ? 1024 * pages_of(model, &params[order[j]], plan->tensor, place)
                          : 0;
        columns_of(model, p, plan->tensor, place, &from, &to);
        shares_of(model, plan, place, p->bucket, begin);
        for (uint64_t e = 0; e < p->rows * (to - from); e++) {
            uint32_t owner = 0;
            while (begin[owner + 1] <= before + e)
                owner++;
            const bool copies = plan->group < plan->data;
            const bool shadow = copies ? owner % plan->group == position % plan->group
                                       : plan->holders == 2 && (owner + 1) % plan->data == position;
            const uint32_t slice = tile_of(model, p, e / (to - from), from + e % (to - from), &number);
            out[order[i]][slice][number] = !divided || owner == position || shadow;
        }
    }
}

static void check_holding(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                          uint32_t seat)
{
    static flags wanted[KEEL_PLAN_PARTS], got[KEEL_PLAN_PARTS];
    struct keel_extents extents;
    uint32_t twice = 0;
    memset(wanted, 0, sizeof wanted);
    memset(got, 0, sizeof got);
    for (uint32_t part = 0; part < KEEL_PLAN_PARTS; part++)
        if ((part != KEEL_PLAN_V || model->has_v) && (part != KEEL_PLAN_EMA || model->has_ema))
            expect_part(model, plan, seat, plan->zero >= (part == KEEL_PLAN_WEIGHTS ? 3u : 1u),
                        part == KEEL_PLAN_WEIGHTS, wanted[part]);
    ck_ok(keel_plan_holding(model, plan, seat, &extents));
    for (size_t i = 0; i < extents.count; i++) {
        const struct keel_extent *what = &extents.at[i];
        for (uint64_t e = what->first; e < what->first + what->count; e++)
            twice += got[what->part][what->param][what->slice][e]++ != 0;
    }
    keel_free(extents.at);
    ck_assert_uint_eq(twice, 0);
    ck_assert(memcmp(got, wanted, sizeof got) == 0);
}

START_TEST(a_seat_holds_its_slices_and_the_pages_that_it_owns_or_shadows)
{
    for (uint32_t seed = 1; seed <= 150; seed++) {
        random_state = seed;
        const struct keel_plan_model model = draw_model();
        const struct keel_job_plan plan = draw_plan(&model);
        ck_assert_uint_le(plan.seats, SEATS_MAX);
        check_holding(&model, &plan, next_random(plan.seats));
        check_holding(&model, &plan, plan.seats - 1);
    }
}
END_TEST

static void hold_all(const struct keel_plan_model *model, const struct keel_job_plan *plan, uint32_t lost,
                     struct keel_holdings *out)
{
    for (uint32_t seat = 0; seat < plan->seats; seat++) {
        struct keel_extents extents;
        if (seat == lost)
            continue;
        ck_ok(keel_plan_holding(model, plan, seat, &extents));
        ck_ok(keel_holdings_put(out, &extents, &seat, 1));
    }
}

START_TEST(any_plan_becomes_any_other_and_one_loss_with_two_holders_loses_nothing)
{
    for (uint32_t seed = 500; seed < 650; seed++) {
        random_state = seed;
        const struct keel_plan_model model = draw_model();
        struct keel_job_plan from = draw_plan(&model), to = draw_plan(&model);
        const bool survives =
            from.data > 1 && (from.zero == 0 || from.holders == 2 || from.group < from.data);
        const uint32_t lost = survives ? next_random(from.seats) : SEATS_MAX;
        struct keel_holdings have = {.at = NULL}, need = {.at = NULL};
        struct keel_moves moves;
        hold_all(&model, &from, lost, &have);
        hold_all(&model, &to, SEATS_MAX, &need);
        ck_ok(keel_moves_find(&have, &need, SEATS_MAX, KEEL_SEAT_NONE, &moves));
        ck_assert_uint_eq(moves.missing_count, 0);
        keel_moves_fini(&moves);
        keel_holdings_fini(&have);
        keel_holdings_fini(&need);
    }
}
END_TEST

/* ---- snapshots ----------------------------------------------------------------------------------------- */

/* The element's number in the whole parameter, by where it lies in the seat's box. */
static uint64_t number_of(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                          uint32_t seat, const struct keel_plan_param *p, uint64_t in_box)
{
    uint64_t from, to;
    columns_of(model, p, plan->tensor, seat % plan->tensor, &from, &to);
    return in_box / (to - from) * (p->count / p->rows) + from + in_box % (to - from);
}

/* Element e of a region: its number in the whole parameter. */
static uint64_t number_in_region(const struct keel_region *box, uint64_t e)
{
    uint64_t number = 0, stride = 1;
    for (uint32_t d = box->dims; d-- > 0;) {
        number += (box->offset[d] + e % box->extent[d]) * stride;
        e /= box->extent[d];
        stride *= box->shape[d];
    }
    return number;
}

/* Marks what the regions of a seat have: every element lies in the box where its number says. Bytes. */
static uint64_t mark_regions(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                             uint32_t seat, bool writes,
                             uint8_t marks[KEEL_PLAN_PARTS][PARAMS_MAX][ELEMENTS_MAX])
{
    struct keel_plan_region *regions;
    uint32_t count, wrong = 0;
    uint64_t bytes = 0;
    ck_ok(keel_plan_regions(model, plan, seat, writes, &regions, &count));
    for (uint32_t i = 0; i < count; i++) {
        const struct keel_plan_region *r = &regions[i];
        const uint64_t elements = keel_region_bytes(&r->box) / sizeof(float);
        for (uint64_t e = 0; e < elements; e++) {
            const uint64_t at = r->first + (r->row == 0 ? e : e / r->row * r->stride + e % r->row);
            const uint64_t number = number_in_region(&r->box, e);
            wrong += number != number_of(model, plan, seat, &params[r->param], at) ||
                     number >= params[r->param].count || marks[r->part][r->param][number]++ != 0;
        }
        bytes += keel_region_bytes(&r->box);
    }
    ck_assert_uint_eq(wrong, 0);
    keel_free(regions);
    return bytes;
}

static bool is_kept(const struct keel_plan_model *model, uint32_t part, uint32_t param)
{
    const bool has = part == KEEL_PLAN_V ? model->has_v : part != KEEL_PLAN_EMA || model->has_ema;
    return part == KEEL_PLAN_WEIGHTS || (!params[param].statistic && has);
}

START_TEST(a_snapshot_has_everything_once_whoever_writes_it_and_anybody_reads_what_he_holds)
{
    static uint8_t marks[KEEL_PLAN_PARTS][PARAMS_MAX][ELEMENTS_MAX];
    for (uint32_t seed = 2000; seed < 2200; seed++) {
        random_state = seed;
        const struct keel_plan_model model = draw_model();
        const struct keel_job_plan from = draw_plan(&model), to = draw_plan(&model);
        uint32_t wrong = 0;
        memset(marks, 0, sizeof marks);
        for (uint32_t seat = 0; seat < from.seats; seat++)
            mark_regions(&model, &from, seat, true, marks);
        for (uint32_t part = 0; part < KEEL_PLAN_PARTS; part++)
            for (uint32_t i = 0; i < model.param_count; i++)
                for (uint64_t e = 0; e < params[i].count; e++)
                    wrong += marks[part][i][e] != is_kept(&model, part, i);
        ck_assert_uint_eq(wrong, 0);
        const uint32_t reader = next_random(to.seats);
        struct keel_extents extents;
        uint64_t held = 0;
        memset(marks, 0, sizeof marks);
        ck_ok(keel_plan_holding(&model, &to, reader, &extents));
        for (size_t i = 0; i < extents.count; i++)
            held += extents.at[i].count * sizeof(float);
        keel_free(extents.at);
        ck_assert_uint_eq(mark_regions(&model, &to, reader, false, marks), held);
    }
}
END_TEST

/* ---- bytes --------------------------------------------------------------------------------------------- */

static void seat_bytes(const struct keel_plan_model *model, const struct keel_job_plan *plan, uint32_t seat,
                       uint64_t out[KEEL_BYTES_KINDS])
{
    struct keel_plan_shares shares;
    const struct keel_plan_seat of = keel_plan_seat(model, plan, seat);
    keel_plan_shares(model, plan, of.place, &shares);
    keel_plan_seat_bytes(model, plan, &shares, &of, out);
}

START_TEST(bytes_of_state_are_those_of_the_zero_papers_formulas)
{
    enum { N = 8, PAGES = 16 * N };
    struct keel_plan_param one[2] = {{.rows = 1, .count = PAGES * 1024, .bucket = 0},
                                     {.rows = 1, .count = PAGES * 1024, .bucket = 1}};
    uint32_t in_order[2] = {0, 1};
    struct keel_plan_cut none[2] = {{.window_bytes = 0}, {.window_bytes = 512, .weight_window_bytes = 768}};
    struct keel_plan_model model = {.shards = N,
                                    .tensor = 1,
                                    .microbatches = 1,
                                    .has_v = true,
                                    .zero_most = 3,
                                    .params = one,
                                    .order = in_order,
                                    .cuts = none,
                                    .param_count = 2,
                                    .bucket_count = 2};
    const uint64_t p = 2 * PAGES * 1024;
    for (uint32_t i = 0; i < 10; i++) {
        const uint32_t group = N >> (i % 5 < 2 ? 0 : i % 5 - 1); /* all, or 4, 2 and 1 */
        const uint32_t holders = i % 5 == 0 ? 1 : 2;
        const uint64_t part = group < N ? p / group : holders * p / N; /* elements of what is divided */
        const uint64_t ema = i < 5 ? 0 : 4; /* bytes of an average, which is divided as moments are */
        const uint64_t wanted[] = {(16 + ema) * p, 8 * p + (8 + ema) * part, 4 * p + (12 + ema) * part,
                                   (16 + ema) * part};
        model.has_ema = ema > 0;
        for (uint32_t zero = 0; zero < 4; zero++)
            for (uint32_t seat = 0; seat < N; seat++) {
                uint64_t bytes[KEEL_BYTES_KINDS];
                struct keel_job_plan plan;
                keel_plan_make(&model, N, 1, zero, holders, group, &plan);
                seat_bytes(&model, &plan, seat, bytes);
                ck_assert_uint_eq(bytes[KEEL_BYTES_WEIGHTS] + bytes[KEEL_BYTES_GRADIENTS] +
                                      bytes[KEEL_BYTES_OPTIMIZER],
                                  wanted[zero]);
                if (zero == 2)
                    ck_assert_uint_eq(bytes[KEEL_BYTES_WORKSPACE], none[1].window_bytes + 4 * part);
                if (zero == 3)
                    ck_assert_uint_eq(bytes[KEEL_BYTES_WORKSPACE],
                                      none[1].window_bytes + none[1].weight_window_bytes);
            }
    }
}
END_TEST

START_TEST(a_plans_bytes_are_those_of_the_seat_that_has_most)
{
    for (uint32_t seed = 1; seed <= 300; seed++) {
        random_state = seed;
        const struct keel_plan_model model = draw_model();
        const struct keel_job_plan plan = draw_plan(&model);
        uint64_t most = 0, bytes[KEEL_BYTES_KINDS];
        for (uint32_t seat = 0; seat < plan.seats; seat++) {
            uint64_t total = 0;
            seat_bytes(&model, &plan, seat, bytes);
            for (int kind = 0; kind < KEEL_BYTES_KINDS; kind++)
                total += bytes[kind];
            most = total > most ? total : most;
        }
        ck_assert_msg(most == plan.total_bytes, "seed %u: %" PRIu64 " of %" PRIu64, seed, plan.total_bytes,
                      most);
    }
}
END_TEST

/* ---- choices ------------------------------------------------------------------------------------------- */

START_TEST(what_fits_with_fewest_seats_is_found_as_by_trying_all)
{
    uint32_t found = 0, none = 0;
    for (uint32_t seed = 1; seed <= 150; seed++) {
        random_state = seed;
        const struct keel_plan_model model = draw_model();
        struct keel_parallel asked = {.holders = 1 + next_random(2)};
        struct keel_job_plan plan, whole;
        keel_plan_make(&model, 1, 1, 0, 1, 0, &whole);
        asked.memory_bytes = 1 + whole.total_bytes * next_random(120) / 100;
        const uint32_t fewest = keel_plan_fewest_seats(&model, &asked);
        uint32_t least = 0;
        for (uint32_t n = model.shards * model.tensor; n > 0; n--)
            if (keel_plan_choose(&model, &asked, n, &plan) == KEEL_OK) {
                ck_assert(plan.total_bytes <= asked.memory_bytes && plan.seats + plan.spares == n);
                least = n;
            }
        ck_assert_uint_eq(least, fewest);
        *(fewest > 0 ? &found : &none) += 1;
    }
    ck_assert(found > 20 && none > 5);
}
END_TEST

START_TEST(keys_bind_the_choice_and_what_does_not_fit_is_told_by_kind)
{
    random_state = 4;
    struct keel_plan_model model = draw_model();
    model.shards = 6;
    model.tensor = 4;
    params[0] = (struct keel_plan_param){.rows = 1, .unit = 8, .units = 500, .count = 4000};
    model.param_count = model.bucket_count = 1;
    params[0].bucket = order[0] = 0;
    struct keel_parallel asked = {.data = 3, .tensor = 2, .zero = KEEL_ZERO_GRADIENTS, .holders = 1};
    struct keel_job_plan plan;
    ck_ok(keel_plan_choose(&model, &asked, 7, &plan));
    ck_assert(plan.data == 3 && plan.tensor == 2 && plan.zero == 2 && plan.holders == 1 && plan.spares == 1);
    ck_status(keel_plan_choose(&model, &asked, 5, &plan), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "5 ranks are fewer than parallel.data = 3"));
    asked.memory_bytes = 100;
    ck_status(keel_plan_choose(&model, &asked, 6, &plan), KEEL_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "the nearest, data 3, tensor 2, zero 2, needs"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "gradients"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "no number of ranks does"));
    asked = (struct keel_parallel){.holders = 2};
    ck_ok(keel_plan_choose(&model, &asked, 6, &plan));
    ck_assert(plan.data == 6 && plan.tensor == 1 && plan.zero == 0);
    ck_ok(keel_plan_choose(&model, &asked, 13, &plan)); /* more than shards: slices take them */
    ck_assert(plan.data == 6 && plan.tensor == 2 && plan.spares == 1);
}
END_TEST

/* ---- a model ------------------------------------------------------------------------------------------- */

static struct keel_engine *engine_of(uint32_t layers, struct keel_device *device, uint32_t first,
                                     uint32_t count, struct keel_graph **out_graph)
{
    const struct keel_gpt_config gpt = {
        .layers = layers, .heads = 4, .width = 32, .block = 12, .vocab = 50, .batch = 3, .bias = true};
    struct keel_engine *engine;
    ck_ok(keel_graph_create(out_graph));
    ck_ok(keel_model_gpt(*out_graph, &gpt));
    const struct keel_engine_config config = {.device = device,
                                              .graph = *out_graph,
                                              .tensor = 4,
                                              .tensor_first = first,
                                              .tensor_count = count,
                                              .training = true,
                                              .plan_only = true};
    ck_ok(keel_engine_create(&config, &engine));
    return engine;
}

/* What a GPT exchanges over four slices. */
static struct keel_plan_model model_of(uint32_t layers, struct keel_device *device)
{
    const struct keel_job job = {.shards = 2, .tensor = 4, .microbatches = 3, .ranks = 8, .nodes = 4};
    struct keel_graph *graph;
    struct keel_engine *engine;
    struct keel_plan_model model;
    engine = engine_of(layers, device, 0, 4, &graph);
    ck_ok(keel_plan_model_make(&job, graph, engine, &model));
    keel_engine_destroy(engine);
    keel_graph_destroy(graph);
    return model;
}

START_TEST(a_layer_costs_four_sums_and_four_gathers_of_batch_tokens_width)
{
    struct keel_device *device;
    ck_ok(keel_device_open("null", NULL, &device));
    struct keel_plan_model two = model_of(2, device), three = model_of(3, device);
    const uint64_t tokens = 3 * 12 * 32 * sizeof(float);
    for (int kind = 0; kind < KEEL_EXCHANGE_KINDS; kind++) {
        const uint64_t wanted = kind == KEEL_EXCHANGE_ALL_REDUCE ? 0 : 4;
        ck_assert_uint_eq(three.exchanges[kind].count - two.exchanges[kind].count, wanted);
        ck_assert_uint_eq(three.exchanges[kind].bytes - two.exchanges[kind].bytes, wanted * tokens);
    }
    keel_plan_model_fini(&two);
    keel_plan_model_fini(&three);
    keel_device_close(device);
}
END_TEST

/* By a seat with as many shards as any. */
START_TEST(a_step_exchanges_what_all_its_microbatches_do)
{
    struct keel_device *device;
    ck_ok(keel_device_open("null", NULL, &device));
    struct keel_plan_model model = model_of(2, device);
    ck_assert_uint_eq(model.per_node, 2);
    for (uint32_t data = 1; data <= 2; data++) {
        struct keel_job_plan plan;
        struct keel_plan_traffic traffic;
        keel_plan_make(&model, data, 2, 0, 2, 0, &plan);
        keel_plan_traffic(&model, &plan, &traffic);
        for (int kind = 0; kind < KEEL_EXCHANGE_KINDS; kind++) {
            ck_assert_uint_eq(traffic.tensor[kind].count, model.exchanges[kind].count * 3 * 2 / data);
            ck_assert_uint_eq(traffic.tensor[kind].bytes, model.exchanges[kind].bytes * 3 * 2 / data);
        }
    }
    keel_plan_model_fini(&model);
    keel_device_close(device);
}
END_TEST

/* As a view lays them out: each shard is one position's. */
START_TEST(shards_of_seats_are_those_of_a_view)
{
    struct keel_plan_cut cut[2] = {{.activation_bytes = 0}};
    struct keel_plan_model model = {.tensor = 1, .cuts = cut};
    for (model.shards = 1; model.shards <= 40; model.shards++)
        for (uint32_t data = 1; data <= model.shards; data++) {
            struct keel_job_plan plan;
            uint32_t next = 0;
            keel_plan_make(&model, data, 1, 0, 1, 0, &plan);
            for (uint32_t p = 0; p < data; p++) {
                const struct keel_plan_seat seat = keel_plan_seat(&model, &plan, p);
                ck_assert_uint_eq(seat.first_shard, next);
                for (; next < seat.first_shard + seat.shard_count; next++)
                    ck_assert_uint_eq(keel_view_first_place(next, model.shards, data), p);
            }
            ck_assert_uint_eq(next, model.shards);
        }
}
END_TEST

/* A fourth of the weights and what is not split: norms, positions, biases behind a sum. */
START_TEST(seats_of_a_gpt_have_their_slices_of_what_is_split)
{
    struct keel_device *device;
    struct keel_job_plan plan;
    uint64_t elements = 0, wanted = 0;
    ck_ok(keel_device_open("null", NULL, &device));
    struct keel_plan_model model = model_of(2, device);
    keel_plan_make(&model, 2, 4, 0, 2, 0, &plan);
    for (uint32_t seat = 0; seat < 4; seat++) {
        struct keel_extents extents;
        ck_ok(keel_plan_holding(&model, &plan, seat, &extents));
        for (size_t i = 0; i < extents.count; i++)
            elements += extents.at[i].part == KEEL_PLAN_WEIGHTS ? extents.at[i].count : 0;
        keel_free(extents.at);
    }
    for (uint32_t i = 0; i < model.param_count; i++)
        wanted += model.params[i].count * (model.params[i].units == 0 ? 4 : 1);
    ck_assert_uint_eq(elements, wanted);
    keel_plan_model_fini(&model);
    keel_device_close(device);
}
END_TEST

START_TEST(weights_of_a_seat_are_as_large_as_those_of_its_engine)
{
    struct keel_device *device;
    ck_ok(keel_device_open("null", NULL, &device));
    struct keel_plan_model model = model_of(2, device);
    model.cuts[1] = model.cuts[2] = model.cuts[4];
    for (uint32_t tensor = 1; tensor <= 4; tensor++)
        for (uint32_t place = 0; place < tensor; place++) {
            struct keel_job_plan plan;
            struct keel_graph *graph;
            uint64_t bytes[KEEL_BYTES_KINDS];
            keel_plan_make(&model, 2, tensor, 0, 2, 0, &plan);
            seat_bytes(&model, &plan, place, bytes);
            const struct keel_plan_seat seat = keel_plan_seat(&model, &plan, place);
            struct keel_engine *engine = engine_of(2, device, seat.first_slice, seat.slice_count, &graph);
            ck_assert_uint_eq(bytes[KEEL_BYTES_WEIGHTS], keel_engine_flat_count(engine) * sizeof(float));
            keel_engine_destroy(engine);
            keel_graph_destroy(graph);
        }
    keel_plan_model_fini(&model);
    keel_device_close(device);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_seat_holds_its_slices_and_the_pages_that_it_owns_or_shadows);
    tcase_add_test(tc, any_plan_becomes_any_other_and_one_loss_with_two_holders_loses_nothing);
    tcase_add_test(tc, a_snapshot_has_everything_once_whoever_writes_it_and_anybody_reads_what_he_holds);
    tcase_add_test(tc, bytes_of_state_are_those_of_the_zero_papers_formulas);
    tcase_add_test(tc, a_plans_bytes_are_those_of_the_seat_that_has_most);
    tcase_add_test(tc, what_fits_with_fewest_seats_is_found_as_by_trying_all);
    tcase_add_test(tc, keys_bind_the_choice_and_what_does_not_fit_is_told_by_kind);
    tcase_add_test(tc, a_layer_costs_four_sums_and_four_gathers_of_batch_tokens_width);
    tcase_add_test(tc, a_step_exchanges_what_all_its_microbatches_do);
    tcase_add_test(tc, shards_of_seats_are_those_of_a_view);
    tcase_add_test(tc, weights_of_a_seat_are_as_large_as_those_of_its_engine);
    tcase_add_test(tc, seats_of_a_gpt_have_their_slices_of_what_is_split);
}

KEEL_TEST_MAIN("seats", cases, 120)
