/* net_cmd_tune.c - `keel net tune`: its command line, its host, the table, JSON and the file of costs. */
#include "costs.h"
#include "net_tune.h"

#include <inttypes.h>
#include <keel/memory.h>
#include <string.h>

struct own {
    struct keel_net_rendezvous rendezvous; /* first */
    const char *operations, *out;
    uint64_t min_bytes, max_bytes, factor, rounds;
};

struct tuning {
    const struct keel_command *cmd;
    struct keel_net_tune_row *rows; /* KEEL_NET_BENCH_ROWS; `cases` of them are there */
    uint32_t world, cases, near_before, near_after;
    double worst_before, worst_after;
    bool found;
    struct keel_cost_model costs;
};

/* ---- the command line ---- */

static enum keel_status plan_of(const struct keel_command *cmd, struct keel_net_tune_plan *out)
{
    const struct own *own = keel_command_own(cmd);
    *out = (struct keel_net_tune_plan){.min_bytes = own->min_bytes,
                                       .max_bytes = own->max_bytes,
                                       .factor = own->factor,
                                       .rounds = own->rounds};
    bool known = keel_net_bench_operations(own->operations, out->kinds, &out->kind_count);
    for (uint32_t k = 0; k < out->kind_count; k++)
        known = known && out->kinds[k] != KEEL_SEND;
    if (!known)
        return keel_command_wrong_value(cmd, "--op");
    KEEL_TRY(keel_net_bench_sizes(cmd, own->min_bytes, own->max_bytes, own->factor));
    if (own->rounds == 0 || own->rounds > KEEL_NET_TUNE_ROUNDS_MAX)
        return keel_command_wrong_value(cmd, "--rounds");
    return KEEL_OK;
}

/* ---- rows ---- */

static double ratio_of(const struct keel_net_tune_row *row, uint32_t taken)
{
    return (double)row->median_ns[taken] / (double)(row->median_ns[row->fastest] + 1);
}

static void print_row(const struct keel_net_tune_row *row, double before, double after)
{
    printf("%-14s %-6s %12" PRIu64 "  %-9s %10.1f  %-9s %5.2f  %-9s %5.2f\n", keel_collective_name(row->kind),
           keel_order_name(row->order), row->bytes, keel_algorithm_name(row->fastest),
           (double)row->median_ns[row->fastest] / 1e3, keel_algorithm_name(row->taken_before), before,
           keel_algorithm_name(row->taken_after), after);
    fflush(stdout);
}

static void json_row(struct keel_json *json, const struct keel_net_tune_row *row)
{
    keel_json_open(json, NULL, '{');
    keel_json_text(json, "operation", keel_collective_name(row->kind));
    keel_json_text(json, "order", keel_order_name(row->order));
    keel_json_number(json, "bytes", row->bytes);
    keel_json_text(json, "fastest", keel_algorithm_name(row->fastest));
    keel_json_text(json, "auto", keel_algorithm_name(row->taken_before));
    keel_json_text(json, "auto_tuned", keel_algorithm_name(row->taken_after));
    keel_json_open(json, "median_us", '{');
    for (uint32_t k = 0; k < KEEL_ALGORITHM_COUNT; k++)
        if (row->median_ns[k] > 0)
            keel_json_real(json, keel_algorithm_name(k), (double)row->median_ns[k] / 1e3, 3);
    keel_json_close(json, '}');
    keel_json_close(json, '}');
}

/* ---- hearing rank 0 ---- */

static void met(void *context, uint32_t world)
{
    struct tuning *tuning = context;
    tuning->world = world;
    if (tuning->cmd->json)
        return;
    printf("%-14s %-6s %12s  %-20s  %-15s  %-15s\n", "operation", "order", "bytes", "fastest, us",
           "AUTO, x fastest", "tuned, x fastest");
    fflush(stdout);
}

static bool take_row(struct tuning *tuning, const struct keel_net_tune_row *row)
{
    if (tuning->cases == KEEL_NET_BENCH_ROWS || row->kind >= KEEL_COLLECTIVE_COUNT ||
        row->fastest >= KEEL_ALGORITHM_COUNT || row->taken_before >= KEEL_ALGORITHM_COUNT ||
        row->taken_after >= KEEL_ALGORITHM_COUNT)
        return false;
    double before = ratio_of(row, row->taken_before), after = ratio_of(row, row->taken_after);
    tuning->rows[tuning->cases++] = *row;
    tuning->near_before += before <= 1.15;
    tuning->near_after += after <= 1.15;
    tuning->worst_before = before > tuning->worst_before ? before : tuning->worst_before;
    tuning->worst_after = after > tuning->worst_after ? after : tuning->worst_after;
    if (!tuning->cmd->json)
        print_row(row, before, after);
    return true;
}

static bool frame(void *context, uint32_t rank, uint32_t kind, const uint8_t *payload, uint32_t bytes)
{
    struct tuning *tuning = context;
    struct keel_net_tune_row row;
    if (rank == 0 && kind == KEEL_NET_TUNE_COSTS && bytes == sizeof tuning->costs) {
        memcpy(&tuning->costs, payload, sizeof tuning->costs);
        tuning->found = true;
        return true;
    }
    if (rank != 0 || kind != KEEL_NET_TUNE_ROW || bytes != sizeof row)
        return false;
    memcpy(&row, payload, sizeof row);
    return take_row(tuning, &row);
}

/* ---- the command ---- */

static enum keel_status rank_work(struct keel_net_rank *rank)
{
    struct keel_net_tune_plan plan;
    KEEL_TRY(plan_of(rank->cmd, &plan));
    return keel_net_tune_rank(rank, &plan);
}

static enum keel_status write_file(const struct tuning *tuning, const struct own *own)
{
    char remark[256];
    snprintf(remark, sizeof remark,
             "costs that keel net tune found for %" PRIu32 " ranks over %s: of %" PRIu32 " cases %" PRIu32
             " within 15%% of the fastest algorithm, the worst %.2f x",
             tuning->world, own->rendezvous.carrier, tuning->cases, tuning->near_after, tuning->worst_after);
    return keel_costs_write(own->out, &tuning->costs, remark);
}

static void print_json(struct tuning *tuning, enum keel_status status)
{
    struct keel_json json = keel_command_json(stdout);
    keel_json_open(&json, "rows", '[');
    for (uint32_t k = 0; k < tuning->cases; k++)
        json_row(&json, &tuning->rows[k]);
    keel_json_close(&json, ']');
    keel_json_text(&json, "status", keel_status_name(status));
    keel_json_number(&json, "ranks", tuning->world);
    keel_json_open(&json, "costs", '{');
    for (uint32_t k = 0; k < KEEL_COSTS && tuning->found; k++)
        keel_json_number(&json, keel_costs_name(k), *keel_costs_figure(&tuning->costs, k));
    keel_json_close(&json, '}');
    keel_command_json_end(&json);
}

static int host(const struct keel_command *cmd, struct tuning *tuning)
{
    const struct own *own = keel_command_own(cmd);
    struct keel_net_work work = {.rank = rank_work, .frame = frame, .met = met, .context = tuning};
    enum keel_status status = KEEL_OK;
    int code = 0;
    if (!keel_net_rendezvous_run(cmd, &own->rendezvous, &work, &code, &status))
        return code;
    if (status == KEEL_OK && own->out != NULL) {
        status = write_file(tuning, own);
        if (status != KEEL_OK)
            keel_net_report(status);
    }
    if (cmd->json)
        print_json(tuning, status);
    else if (status == KEEL_OK)
        printf("AUTO is within 15%% of the fastest in %" PRIu32 " of %" PRIu32
               " cases, at worst %.2f x; tuned: "
               "%" PRIu32 ", %.2f x\n",
               tuning->near_before, tuning->cases, tuning->worst_before, tuning->near_after,
               tuning->worst_after);
    return keel_status_exit_code(status);
}

static int run(const struct keel_command *cmd)
{
    const struct own *own = keel_command_own(cmd);
    struct keel_net_tune_plan plan;
    struct tuning tuning = {.cmd = cmd};
    enum keel_status status = plan_of(cmd, &plan);
    if (status == KEEL_OK)
        status = keel_net_rendezvous_can(&own->rendezvous, own->max_bytes, own->out);
    if (status == KEEL_OK)
        status = keel_alloc(KEEL_NET_BENCH_ROWS, sizeof *tuning.rows, &tuning.rows);
    int code = status == KEEL_OK ? host(cmd, &tuning) : keel_net_report(status);
    keel_free(tuning.rows);
    return code;
}

static void begin(void *context)
{
    struct own *own = context;
    *own = (struct own){.operations = KEEL_NET_OPERATIONS,
                        .min_bytes = 8,
                        .max_bytes = UINT64_C(16) << 20,
                        .factor = 8,
                        .rounds = 11};
    keel_net_rendezvous_begin(&own->rendezvous);
}

static const struct keel_command_option options[] = {
    {"--out", "FILE", KEEL_COMMAND_TEXT, offsetof(struct own, out),
     "write the figures there, for --costs and jobs"},
    {"--op", "LIST", KEEL_COMMAND_TEXT, offsetof(struct own, operations),
     KEEL_NET_OPERATIONS ",barrier; without it all but barrier"},
    {"--min", "BYTES", KEEL_COMMAND_BYTES, offsetof(struct own, min_bytes),
     "smallest size, from 1 to --max; without it 8"},
    {"--max", "BYTES", KEEL_COMMAND_BYTES, offsetof(struct own, max_bytes),
     "largest size, up to 1024G; without it 16M"},
    {"--factor", "F", KEEL_COMMAND_COUNT, offsetof(struct own, factor),
     "from one size to the next, 2 or more; without it 8"},
    {"--rounds", "N", KEEL_COMMAND_COUNT, offsetof(struct own, rounds),
     "turns of each algorithm, 1 to 31; without it 11"},
    KEEL_NET_RENDEZVOUS_OPTIONS(struct own, rendezvous),
    {.name = NULL}};

const struct keel_command_kind keel_net_tune = {
    .name = "tune",
    .operands = "",
    .summary = "measure what messages cost here, so that the best algorithm is chosen",
    .details =
        "Runs every operation by every algorithm, by turns, and looks for the figures of the cost model by\n"
        "which the automatic choice (AUTO) comes nearest to the fastest. A line for each operation, order "
        "and\n"
        "size: the fastest, what AUTO takes with the figures it has (--costs, or those built in) and with\n"
        "those found, and how many times as long as the fastest that took. Medians of all turns.\n",
    .examples =
        "  keel net tune --out costs.conf\n"
        "  keel net tune --hosts nodes.txt --join 10.0.0.1:0 --key shared/net.key --out shared/costs.conf\n"
        "  keel net bench --costs costs.conf\n",
    .options = options,
    .begin = begin,
    .run = run};
