/* plan_axes.c - the plans of a job as text and as JSON. */
#include "plan_axes.h"
#include "run_plan.h"
#include "trainer.h"
#include <inttypes.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdio.h>

enum { NEIGHBOURS = 4 /* on each side, that a lost seat is healed from */, LADDER_ALL = 8, SEATS_TOLD = 8 };

/* ---- making it ----------------------------------------------------------------------------------------- */

/* Who can have what the last seat had: the same place of positions nearby, or of the same number in groups
 * nearby; and where there are no other positions, the other places. */
static uint32_t find_neighbours(const struct keel_job_plan *plan, uint32_t out[2 * NEIGHBOURS])
{
    const uint32_t apart = plan->group < plan->data ? plan->group : 1;
    const uint32_t lost = plan->seats - 1, step = plan->data > 1 ? plan->tensor * apart : 1;
    const uint32_t others = plan->data > 1 ? plan->data / apart - 1 : plan->tensor - 1;
    uint32_t count = 0;
    for (uint32_t i = 1; i <= NEIGHBOURS && count < others; i++) {
        out[count++] = (lost + i * step) % plan->seats;
        if (count < others)
            out[count++] = (lost + plan->seats - i * step) % plan->seats;
    }
    return count;
}

/* What a seat of the plan has, by another number. */
static enum keel_status put_seat(const struct keel_plan_axes *axes, uint32_t plan_seat, uint32_t seat,
                                 struct keel_holdings *list)
{
    struct keel_extents what = {.at = NULL};
    KEEL_TRY(keel_plan_holding(&axes->model, keel_plan_chosen(axes), plan_seat, &what));
    return keel_holdings_put(list, &what, &seat, 1);
}

/* The state of the last seat, from its neighbours to a newcomer. */
static enum keel_status find_loss(struct keel_plan_axes *axes)
{
    struct keel_holdings have = {.at = NULL}, need = {.at = NULL};
    uint32_t seats[2 * NEIGHBOURS];
    struct keel_moves moves = {.moves = NULL};
    const struct keel_job_plan *plan = keel_plan_chosen(axes);
    const uint32_t count = find_neighbours(plan, seats);
    enum keel_status status = put_seat(axes, plan->seats - 1, count, &need);
    for (uint32_t i = 0; i < count && status == KEEL_OK; i++)
        status = put_seat(axes, seats[i], i, &have);
    if (status == KEEL_OK)
        status = keel_moves_find(&have, &need, count + 1, KEEL_SEAT_NONE, &moves);
    axes->loss.bytes = moves.elements * sizeof(float);
    axes->loss.holders = moves.senders;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t sent = keel_moves_sent(&moves, i) * sizeof(float);
        axes->loss.most_bytes = sent > axes->loss.most_bytes ? sent : axes->loss.most_bytes;
    }
    for (size_t i = 0; i < moves.missing_count; i++)
        axes->loss.missing_bytes += moves.missing[i].what.count * sizeof(float);
    keel_moves_fini(&moves);
    keel_holdings_fini(&have);
    keel_holdings_fini(&need);
    return status;
}

/* What the last seat writes into a snapshot, or reads of one. */
static enum keel_status count_snapshot(const struct keel_plan_axes *axes, bool writes, uint64_t *out_bytes)
{
    const struct keel_job_plan *plan = keel_plan_chosen(axes);
    struct keel_plan_region *regions;
    uint32_t count;
    KEEL_TRY(keel_plan_regions(&axes->model, plan, plan->seats - 1, writes, &regions, &count));
    for (uint32_t i = 0; i < count; i++)
        *out_bytes += keel_region_bytes(&regions[i].box);
    keel_free(regions);
    return KEEL_OK;
}

/* What activations take of a device that has so many slices, the last ones. */
static enum keel_status read_cut(const struct keel_job *job, const struct keel_data *data,
                                 struct keel_device *device, uint32_t count, struct keel_plan_model *model)
{
    struct keel_engine *engine;
    const struct keel_engine_config config = {
        .device = device, .plan_only = true, .tensor_first = job->tensor - count, .tensor_count = count};
    KEEL_TRY(keel_trainer_build_engine(job, data, config, &engine));
    keel_plan_model_cut(model, count, engine);
    keel_engine_destroy(engine);
    return KEEL_OK;
}

enum keel_status keel_plan_read_cuts(const struct keel_job *job, const struct keel_data *data,
                                     struct keel_device *device, uint32_t places,
                                     struct keel_plan_model *model)
{
    for (uint32_t count = 1; count < job->tensor; count++) {
        const enum keel_status status =
            keel_plan_has_cut(model, places, count) ? read_cut(job, data, device, count, model) : KEEL_OK;
        const bool cannot = status == KEEL_INVALID || status == KEEL_UNSUPPORTED;
        if (!cannot || job->parallel.tensor != 0)
            KEEL_TRY(status);
        if (cannot)
            keel_log(KEEL_LOG_WARN,
                     "plans where a rank has %u of the job.tensor = %u slices are left out: %s", count,
                     job->tensor, keel_detail());
        model->cuts[count].refused = cannot;
    }
    return KEEL_OK;
}

enum keel_status keel_plan_axes_make(const struct keel_job *job, const struct keel_data *data,
                                     const struct keel_graph *graph, struct keel_device *device,
                                     const struct keel_engine *engine, uint32_t seats,
                                     struct keel_plan_axes *out)
{
    *out = (struct keel_plan_axes){.asked = job->parallel, .seats = seats};
    if (job->parallel.data != 0 || job->parallel.tensor != 0 || job->parallel.zero_group != 0)
        KEEL_TRY(keel_job_check_ranks(job, seats));
    KEEL_TRY(keel_plan_model_make(job, graph, engine, &out->model));
    KEEL_TRY(keel_plan_read_cuts(job, data, device, job->tensor, &out->model));
    struct keel_job as_run = *job;
    if (seats <= KEEL_MEMBERS_MAX)
        keel_run_plan_settle(&out->model, keel_plan_layout(engine), seats, &as_run, &out->run);
    KEEL_TRY(keel_plan_list(&out->model, &out->asked, seats, &out->plans, &out->plan_count));
    if (out->plan_count == 0)
        return keel_fail(KEEL_INVALID,
                         "--ranks %u: more than parallel.data = %u (0: up to job.shards = %u) positions of "
                         "parallel.tensor = %u ranks are wanted",
                         seats, out->asked.data, job->shards, out->asked.tensor);
    out->fewest = keel_plan_fewest_seats(&out->model, &out->asked);
    KEEL_TRY(count_snapshot(out, true, &out->written_bytes));
    KEEL_TRY(count_snapshot(out, false, &out->read_bytes));
    return find_loss(out);
}

void keel_plan_axes_fini(struct keel_plan_axes *axes)
{
    keel_plan_model_fini(&axes->model);
    keel_free(axes->plans);
    axes->plans = NULL;
}

/* ---- text ---------------------------------------------------------------------------------------------- */

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

static void print_plan(const struct keel_plan_axes *axes, const struct keel_job_plan *plan)
{
    printf("  %5" PRIu32 " %5" PRIu32 " %6" PRIu32 " %5" PRIu32 " %5" PRIu32 " %7" PRIu32 " %6" PRIu32,
           plan->seats, plan->data, plan->tensor, plan->zero, plan->group, plan->holders, plan->spares);
    for (int kind = 0; kind < KEEL_BYTES_KINDS; kind++)
        printf(" %11.2f", mib(plan->bytes[kind]));
    printf(" %11.2f", mib(plan->total_bytes));
    if (!plan->fits)
        printf("  %.2f more than fits", mib(plan->total_bytes - axes->asked.memory_bytes));
    printf("\n");
}

static void print_head(void)
{
    printf("  ranks  data tensor  zero group holders spares");
    for (int kind = 0; kind < KEEL_BYTES_KINDS; kind++)
        printf(" %11s", keel_plan_bytes_name((enum keel_plan_bytes)kind));
    printf(" %11s\n", "MiB");
}

/* With fewer seats, down to the fewest: all of a few, else one less and halves. */
static uint32_t next_seats(uint32_t all, uint32_t fewest, uint32_t seats)
{
    if (seats <= fewest)
        return 0;
    const uint32_t next = all <= LADDER_ALL || seats == all ? seats - 1 : seats / 2;
    return next > fewest ? next : fewest;
}

/* More ranks than a run can have: by the best plan of each number. */
static void print_fewer(const struct keel_plan_axes *axes)
{
    struct keel_job_plan plan;
    if (axes->fewest == 0 || axes->fewest >= axes->seats || axes->asked.data != 0)
        return;
    printf("\nwith fewer ranks (%" PRIu32 " are the fewest that fit)\n", axes->fewest);
    print_head();
    for (uint32_t n = next_seats(axes->seats, axes->fewest, axes->seats); n > 0;
         n = next_seats(axes->seats, axes->fewest, n))
        if (keel_plan_choose(&axes->model, &axes->asked, n, &plan) == KEEL_OK)
            print_plan(axes, &plan);
}

static void print_run(const struct keel_plan_axes *axes)
{
    const struct keel_plan_table *run = &axes->run;
    char fit[160];
    keel_plan_table_describe(run, fit, sizeof fit);
    printf("\nin a run, by the ranks that are left: it goes on with %s\n", run->fewest > 0 ? fit : "none");
    printf("   left              plan");
    print_head();
    for (uint32_t n = run->ranks; n > 0; n = next_seats(run->ranks, run->fewest > 0 ? run->fewest : 1, n)) {
        printf("  %5" PRIu32 "  ", n);
        if (run->numbers[n] != 0)
            printf("%016" PRIx64, run->numbers[n]);
        else
            printf("%16s", "none");
        print_plan(axes, &run->plans[n]);
    }
}

static void print_exchanges(const char *over, const struct keel_plan_exchange *exchanges)
{
    for (int kind = 0; kind < KEEL_EXCHANGE_KINDS; kind++)
        if (exchanges[kind].count > 0)
            printf("  over %-6s %6" PRIu64 " %-14s %16" PRIu64 " bytes together\n", over,
                   exchanges[kind].count, keel_exchange_name((enum keel_exchange_kind)kind),
                   exchanges[kind].bytes);
}

static void print_seats(const struct keel_plan_axes *axes)
{
    const struct keel_job_plan *plan = keel_plan_chosen(axes);
    for (uint32_t i = 0; i < plan->seats; i++) {
        if (i == SEATS_TOLD - 1 && plan->seats > SEATS_TOLD) {
            printf("  ...\n");
            i = plan->seats - 1;
        }
        const struct keel_plan_seat seat = keel_plan_seat(&axes->model, plan, i);
        printf("  %5" PRIu32 ": slices %" PRIu32 " to %" PRIu32 ", shards %" PRIu32 " to %" PRIu32 "\n", i,
               seat.first_slice, seat.first_slice + seat.slice_count - 1, seat.first_shard,
               seat.first_shard + seat.shard_count - 1);
    }
}

void keel_plan_axes_print(const struct keel_plan_axes *axes)
{
    const struct keel_job_plan *plan = keel_plan_chosen(axes);
    struct keel_plan_traffic traffic;
    printf("\nplans of %" PRIu32 " ranks, the best first; MiB of the rank that has most\n", axes->seats);
    print_head();
    for (uint32_t i = 0; i < axes->plan_count; i++)
        print_plan(axes, &axes->plans[i]);
    if (axes->run.ranks > 0)
        print_run(axes);
    else
        print_fewer(axes);
    printf("\nseats of the first: data %" PRIu32 ", tensor %" PRIu32 "\n", plan->data, plan->tensor);
    print_seats(axes);
    printf("\nexchanged in a step, by each rank\n");
    keel_plan_traffic(&axes->model, plan, &traffic);
    print_exchanges("data", traffic.data);
    print_exchanges("tensor", traffic.tensor);
    if (traffic.shadow_bytes > 0)
        printf("  to who has copies %32" PRIu64 " bytes\n", traffic.shadow_bytes);
    printf("\na snapshot: the rank that has most writes %" PRIu64 " bytes of it, and resumes from %" PRIu64
           "\n",
           axes->written_bytes, axes->read_bytes);
    printf("\nwhen a rank is lost: %" PRIu64 " bytes from %" PRIu32 " others, %" PRIu64 " from one at most",
           axes->loss.bytes, axes->loss.holders, axes->loss.most_bytes);
    if (axes->loss.missing_bytes > 0)
        printf("; %" PRIu64 " bytes are nowhere else, so all go back to the newest snapshot",
               axes->loss.missing_bytes);
    printf("\n");
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static void put_plan_fields(const struct keel_job_plan *plan, struct keel_json *json)
{
    keel_json_number(json, "ranks", plan->seats);
    keel_json_number(json, "spares", plan->spares);
    keel_json_number(json, "data", plan->data);
    keel_json_number(json, "tensor", plan->tensor);
    keel_json_number(json, "zero", plan->zero);
    keel_json_number(json, "holders", plan->holders);
    keel_json_number(json, "zero_group", plan->group);
    keel_json_open(json, "bytes", '{');
    for (int kind = 0; kind < KEEL_BYTES_KINDS; kind++)
        keel_json_number(json, keel_plan_bytes_name((enum keel_plan_bytes)kind), plan->bytes[kind]);
    keel_json_close(json, '}');
    keel_json_number(json, "total_bytes", plan->total_bytes);
    keel_json_bool(json, "fits", plan->fits);
}

static void put_plan(const struct keel_job_plan *plan, struct keel_json *json)
{
    keel_json_open(json, NULL, '{');
    put_plan_fields(plan, json);
    keel_json_close(json, '}');
}

/* Of all numbers of ranks, the most first; without a number where the plan does not fit. */
static void put_run(const struct keel_plan_axes *axes, struct keel_json *json)
{
    char number[20];
    keel_json_open(json, "run", '[');
    for (uint32_t n = axes->run.ranks; n > 0; n--) {
        keel_json_open(json, NULL, '{');
        keel_json_number(json, "left", n);
        if (axes->run.numbers[n] != 0) {
            snprintf(number, sizeof number, "%016" PRIx64, axes->run.numbers[n]);
            keel_json_text(json, "plan", number);
        }
        put_plan_fields(&axes->run.plans[n], json);
        keel_json_close(json, '}');
    }
    keel_json_close(json, ']');
}

static void put_exchanges(struct keel_json *json, const char *over, const struct keel_plan_exchange *from)
{
    for (int kind = 0; kind < KEEL_EXCHANGE_KINDS; kind++) {
        if (from[kind].count == 0)
            continue;
        keel_json_open(json, NULL, '{');
        keel_json_text(json, "axis", over);
        keel_json_text(json, "kind", keel_exchange_name((enum keel_exchange_kind)kind));
        keel_json_number(json, "count", from[kind].count);
        keel_json_number(json, "bytes", from[kind].bytes);
        keel_json_close(json, '}');
    }
}

/* owned_bytes, held_bytes: of one flat buffer, where it is divided. */
static enum keel_status put_seats(const struct keel_plan_axes *axes, struct keel_json *json)
{
    const struct keel_job_plan *plan = keel_plan_chosen(axes);
    struct keel_plan_shares *shares;
    KEEL_TRY(keel_alloc(plan->tensor, sizeof *shares, &shares));
    for (uint32_t place = 0; place < plan->tensor; place++)
        keel_plan_shares(&axes->model, plan, place, &shares[place]);
    keel_json_open(json, "seats", '[');
    for (uint32_t i = 0; i < plan->seats; i++) {
        const struct keel_plan_seat seat = keel_plan_seat(&axes->model, plan, i);
        keel_json_open(json, NULL, '{');
        keel_json_number(json, "position", seat.position);
        keel_json_number(json, "place", seat.place);
        keel_json_number(json, "first_slice", seat.first_slice);
        keel_json_number(json, "slices", seat.slice_count);
        keel_json_number(json, "first_shard", seat.first_shard);
        keel_json_number(json, "shards", seat.shard_count);
        keel_json_number(json, "flat_bytes", shares[seat.place].whole);
        keel_json_number(json, "owned_bytes", shares[seat.place].owned[seat.position]);
        keel_json_number(json, "held_bytes", shares[seat.place].held[seat.position]);
        keel_json_close(json, '}');
    }
    keel_json_close(json, ']');
    keel_free(shares);
    return KEEL_OK;
}

enum keel_status keel_plan_axes_print_json(const struct keel_plan_axes *axes, struct keel_json *json)
{
    struct keel_plan_traffic traffic;
    keel_json_open(json, "plans", '[');
    for (uint32_t i = 0; i < axes->plan_count; i++)
        put_plan(&axes->plans[i], json);
    keel_json_close(json, ']');
    keel_json_number(json, "fewest_ranks", axes->fewest);
    put_run(axes, json);
    KEEL_TRY(put_seats(axes, json));
    keel_plan_traffic(&axes->model, keel_plan_chosen(axes), &traffic);
    keel_json_open(json, "exchanges", '[');
    put_exchanges(json, "data", traffic.data);
    put_exchanges(json, "tensor", traffic.tensor);
    keel_json_close(json, ']');
    keel_json_number(json, "shadow_bytes", traffic.shadow_bytes);
    keel_json_open(json, "snapshot", '{');
    keel_json_number(json, "written_bytes", axes->written_bytes);
    keel_json_number(json, "read_bytes", axes->read_bytes);
    keel_json_close(json, '}');
    keel_json_open(json, "loss_of_a_rank", '{');
    keel_json_number(json, "bytes", axes->loss.bytes);
    keel_json_number(json, "holders", axes->loss.holders);
    keel_json_number(json, "most_bytes", axes->loss.most_bytes);
    keel_json_number(json, "missing_bytes", axes->loss.missing_bytes);
    keel_json_close(json, '}');
    return KEEL_OK;
}
