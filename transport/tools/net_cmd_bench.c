/* net_cmd_bench.c - `keel net bench`: its command line, its host, and the table, CSV and JSON. The ranks'
 * work is net_bench.c, the page net_plot.c. */
#include "net_bench.h"

#include <inttypes.h>
#include <keel/memory.h>
#include <string.h>

struct own {
    struct keel_net_rendezvous rendezvous; /* first */
    const char *operations, *elements, *algorithms, *orders, *reduction, *page;
    uint64_t min_bytes, max_bytes, factor, iterations, warmup;
    bool csv;
};

/* Ranks tell the same rows in the same order, but not at the same time. */
struct pending {
    struct keel_net_bench_case it;
    uint64_t *samples_ns;
    uint64_t sample_count, total_ns, sent_bytes;
    uint32_t ranks;
};
struct measuring {
    const struct keel_command *cmd;
    uint32_t world, row_count;
    struct pending *pending;         /* KEEL_NET_BENCH_ROWS */
    struct keel_net_bench_row *rows; /* as many; finished ones up to row_count */
};

/* ---- the command line ---- */

/* Names with commas between, as numbers below `count`. False: one is unknown. */
static bool parse_list(const char *names, const char *(*name_of)(uint32_t number), uint32_t count,
                       uint32_t *out, uint32_t *out_count)
{
    *out_count = 0;
    while (*names != '\0') {
        size_t length = strcspn(names, ",");
        uint32_t number = 0;
        while (number < count && length > 0 &&
               (strncmp(name_of(number), names, length) != 0 || name_of(number)[length] != '\0'))
            number++;
        if (length == 0 || number == count || *out_count == KEEL_NET_BENCH_LIST)
            return false;
        out[(*out_count)++] = number;
        names += length + (names[length] == ',');
    }
    return *out_count > 0;
}

static const char *collective_name(uint32_t number)
{
    bool varies = number == KEEL_ALL_GATHER_V || number == KEEL_ALL_TO_ALL_V || number == KEEL_RECEIVE;
    return varies ? "" : keel_collective_name(number);
}
static const char *element_name(uint32_t number)
{
    return keel_element_name(number);
}
static const char *algorithm_name(uint32_t number)
{
    return keel_algorithm_name(number);
}
static const char *reduction_name(uint32_t number)
{
    return keel_reduction_name(number);
}
static const char *order_name(uint32_t number)
{
    return keel_order_name(number);
}

/* Lines, at most. */
static uint64_t rows_of(const struct keel_net_bench_plan *plan)
{
    uint64_t sizes = 1;
    for (uint64_t bytes = plan->min_bytes; bytes <= plan->max_bytes / plan->factor; bytes *= plan->factor)
        sizes++;
    return sizes * plan->kind_count * plan->element_count * plan->algorithm_count * plan->order_count;
}

bool keel_net_bench_operations(const char *names, uint32_t kinds[KEEL_NET_BENCH_LIST], uint32_t *out_count)
{
    return parse_list(names, collective_name, KEEL_COLLECTIVE_COUNT, kinds, out_count);
}

static enum keel_status plan_of(const struct keel_command *cmd, struct keel_net_bench_plan *out)
{
    const struct own *own = keel_command_own(cmd);
    uint32_t reductions[KEEL_NET_BENCH_LIST], orders[KEEL_NET_BENCH_LIST], count;
    *out = (struct keel_net_bench_plan){.min_bytes = own->min_bytes,
                                        .max_bytes = own->max_bytes,
                                        .factor = own->factor,
                                        .iterations = own->iterations,
                                        .warmup = own->warmup};
    if (!keel_net_bench_operations(own->operations, out->kinds, &out->kind_count))
        return keel_command_wrong_value(cmd, "--op");
    if (!parse_list(own->elements, element_name, KEEL_ELEMENT_COUNT, out->elements, &out->element_count))
        return keel_command_wrong_value(cmd, "--type");
    if (!parse_list(own->algorithms, algorithm_name, KEEL_ALGORITHM_COUNT, out->algorithms,
                    &out->algorithm_count))
        return keel_command_wrong_value(cmd, "--algorithm");
    if (!parse_list(own->orders, order_name, 2, orders, &out->order_count) || out->order_count > 2)
        return keel_command_wrong_value(cmd, "--order");
    memcpy(out->orders, orders, out->order_count * sizeof orders[0]);
    if (!parse_list(own->reduction, reduction_name, KEEL_REDUCTION_COUNT, reductions, &count) || count != 1)
        return keel_command_wrong_value(cmd, "--reduction");
    out->reduction = reductions[0];
    KEEL_TRY(keel_net_bench_sizes(cmd, own->min_bytes, own->max_bytes, own->factor));
    if (own->iterations > KEEL_NET_BENCH_ITERATIONS)
        return keel_command_wrong_value(cmd, "--iterations");
    if (own->warmup > KEEL_NET_BENCH_ITERATIONS)
        return keel_command_wrong_value(cmd, "--warmup");
    uint64_t rows = rows_of(out);
    if (rows > KEEL_NET_BENCH_ROWS)
        return keel_fail(KEEL_INVALID,
                         "%" PRIu64 " lines, %d at most: ask for fewer operations, elements, orders, "
                         "algorithms or sizes",
                         rows, KEEL_NET_BENCH_ROWS);
    return KEEL_OK;
}

/* ---- rows ---- */

static const char header_text[] =
    "operation,element,order,algorithm,bytes,count,iterations,p50_us,p90_us,p99_us,max_us,mean_us,"
    "algorithm_gbs,bus_gbs,sent_bytes";

static void print_row(const struct keel_command *cmd, const struct keel_net_bench_row *row)
{
    const struct own *own = keel_command_own(cmd);
    const struct keel_net_bench_case *it = &row->it;
    const char *kind = keel_collective_name(it->kind), *element = keel_element_name(it->element);
    const char *order = order_name(it->order), *algorithm = keel_algorithm_name(it->algorithm);
    if (own->csv && it->iterations > 0)
        printf("%s,%s,%s,%s,%" PRIu64 ",%" PRIu64 ",%" PRIu32 ",%.3f,%.3f,%.3f,%.3f,%.3f,%.4f,%.4f,%.0f\n",
               kind, element, order, algorithm, it->bytes, it->count, it->iterations, row->p50_us,
               row->p90_us, row->p99_us, row->max_us, row->mean_us, row->algorithm_gbs, row->bus_gbs,
               row->sent_bytes);
    else if (!own->csv && it->iterations > 0)
        printf("%-14s %-5s %-7s %-9s %12" PRIu64 " %6" PRIu32 " %10.1f %10.1f %10.1f %10.1f %8.3f %8.3f\n",
               kind, element, order, algorithm, it->bytes, it->iterations, row->p50_us, row->p99_us,
               row->max_us, row->mean_us, row->algorithm_gbs, row->bus_gbs);
    else if (!own->csv)
        printf("%-14s %-5s %-7s %-9s cannot do that\n", kind, element, order, algorithm);
    fflush(stdout);
}

static void json_row(struct keel_json *json, const struct keel_net_bench_row *row)
{
    const struct keel_net_bench_case *it = &row->it;
    keel_json_open(json, NULL, '{');
    keel_json_text(json, "operation", keel_collective_name(it->kind));
    keel_json_text(json, "element", keel_element_name(it->element));
    keel_json_text(json, "order", order_name(it->order));
    keel_json_text(json, "algorithm", keel_algorithm_name(it->algorithm));
    keel_json_number(json, "bytes", it->bytes);
    keel_json_number(json, "count", it->count);
    keel_json_number(json, "iterations", it->iterations);
    keel_json_real(json, "p50_us", row->p50_us, 3);
    keel_json_real(json, "p90_us", row->p90_us, 3);
    keel_json_real(json, "p99_us", row->p99_us, 3);
    keel_json_real(json, "max_us", row->max_us, 3);
    keel_json_real(json, "mean_us", row->mean_us, 3);
    keel_json_real(json, "algorithm_gbs", row->algorithm_gbs, 4);
    keel_json_real(json, "bus_gbs", row->bus_gbs, 4);
    keel_json_real(json, "sent_bytes", row->sent_bytes, 0);
    keel_json_close(json, '}');
}

enum keel_status keel_net_bench_sizes(const struct keel_command *cmd, uint64_t min_bytes, uint64_t max_bytes,
                                      uint64_t factor)
{
    if (max_bytes > UINT64_C(1) << 40)
        return keel_command_wrong_value(cmd, "--max");
    if (min_bytes == 0 || min_bytes > max_bytes)
        return keel_command_wrong_value(cmd, "--min");
    return factor < 2 ? keel_command_wrong_value(cmd, "--factor") : KEEL_OK;
}

static void print_json(const struct measuring *measuring, enum keel_status status)
{
    const struct own *own = keel_command_own(measuring->cmd);
    struct keel_json json = keel_command_json(stdout);
    keel_json_text(&json, "status", keel_status_name(status));
    keel_json_number(&json, "ranks", measuring->world);
    keel_json_text(&json, "carrier", own->rendezvous.carrier);
    keel_json_open(&json, "rows", '[');
    for (uint32_t k = 0; k < measuring->row_count; k++)
        if (measuring->rows[k].it.iterations > 0)
            json_row(&json, &measuring->rows[k]);
    keel_json_close(&json, ']');
    keel_command_json_end(&json);
}

/* ---- hearing the ranks ---- */

static void met(void *context, uint32_t world)
{
    struct measuring *measuring = context;
    const struct own *own = keel_command_own(measuring->cmd);
    measuring->world = world;
    if (own->csv)
        puts(header_text);
    else if (!measuring->cmd->json)
        printf("%-14s %-5s %-7s %-9s %12s %6s %10s %10s %10s %10s %8s %8s\n", "operation", "type", "order",
               "algorithm", "bytes", "times", "p50 us", "p99 us", "max us", "mean us", "alg GB/s",
               "bus GB/s");
    fflush(stdout);
}

static void finish(struct measuring *measuring, struct pending *pending)
{
    struct keel_net_bench_row *row = &measuring->rows[measuring->row_count++];
    keel_net_bench_sum_up(&pending->it, measuring->world, pending->samples_ns, pending->sample_count,
                          pending->total_ns, pending->sent_bytes, row);
    keel_free(pending->samples_ns);
    pending->samples_ns = NULL;
    if (!measuring->cmd->json)
        print_row(measuring->cmd, row);
}

static bool frame(void *context, uint32_t rank, uint32_t kind, const uint8_t *payload, uint32_t bytes)
{
    struct measuring *measuring = context;
    struct keel_net_bench_times times;
    (void)rank;
    if (kind != KEEL_NET_BENCH_FRAME || bytes < sizeof times)
        return false;
    memcpy(&times, payload, sizeof times);
    if (times.row >= KEEL_NET_BENCH_ROWS || times.it.iterations > KEEL_NET_BENCH_ITERATIONS ||
        bytes != sizeof times + times.it.iterations * sizeof(uint64_t))
        return false;
    struct pending *pending = &measuring->pending[times.row];
    if (pending->ranks == measuring->world) /* it is complete already */
        return false;
    if (pending->ranks == 0) {
        pending->it = times.it;
        if (keel_alloc((size_t)times.it.iterations * measuring->world, sizeof(uint64_t),
                       &pending->samples_ns) != KEEL_OK)
            return false;
    } else if (memcmp(&pending->it, &times.it, sizeof times.it) != 0) {
        return false;
    }
    memcpy(pending->samples_ns + pending->sample_count, payload + sizeof times,
           times.it.iterations * sizeof(uint64_t));
    pending->sample_count += times.it.iterations;
    pending->total_ns += times.total_ns;
    pending->sent_bytes += times.sent_bytes;
    if (++pending->ranks == measuring->world)
        finish(measuring, pending);
    return true;
}

/* ---- the command ---- */

static enum keel_status rank_work(struct keel_net_rank *rank)
{
    struct keel_net_bench_plan plan;
    KEEL_TRY(plan_of(rank->cmd, &plan));
    return keel_net_bench_rank(rank, &plan);
}

static int host(const struct keel_command *cmd, struct measuring *measuring)
{
    const struct own *own = keel_command_own(cmd);
    struct keel_net_work work = {.rank = rank_work, .frame = frame, .met = met, .context = measuring};
    enum keel_status status = KEEL_OK;
    int code = 0;
    if (!keel_net_rendezvous_run(cmd, &own->rendezvous, &work, &code, &status))
        return code;
    if (own->page != NULL && measuring->row_count > 0) {
        enum keel_status written = keel_net_bench_page(own->page, measuring->rows, measuring->row_count,
                                                       measuring->world, own->rendezvous.carrier);
        if (written != KEEL_OK)
            keel_net_report(written);
        status = status == KEEL_OK ? written : status;
    }
    if (cmd->json)
        print_json(measuring, status);
    return keel_status_exit_code(status);
}

static int run(const struct keel_command *cmd)
{
    struct keel_net_bench_plan plan;
    struct measuring measuring = {.cmd = cmd};
    enum keel_status status = plan_of(cmd, &plan);
    if (status != KEEL_OK)
        return keel_net_report(status);
    if (cmd->json && ((const struct own *)keel_command_own(cmd))->csv)
        return keel_net_wrong_use("--csv or --json, not both", "");
    const struct own *own = keel_command_own(cmd);
    status = keel_net_rendezvous_can(&own->rendezvous, own->max_bytes, own->page);
    if (status == KEEL_OK)
        status = keel_alloc(KEEL_NET_BENCH_ROWS, sizeof *measuring.pending, &measuring.pending);
    if (status == KEEL_OK)
        status = keel_alloc(KEEL_NET_BENCH_ROWS, sizeof *measuring.rows, &measuring.rows);
    int code = status == KEEL_OK ? host(cmd, &measuring) : keel_net_report(status);
    for (uint32_t k = 0; measuring.pending != NULL && k < KEEL_NET_BENCH_ROWS; k++)
        keel_free(measuring.pending[k].samples_ns);
    keel_free(measuring.pending);
    keel_free(measuring.rows);
    return code;
}

static void begin(void *context)
{
    struct own *own = context;
    *own = (struct own){.operations = "all-reduce",
                        .elements = "f32",
                        .algorithms = "auto",
                        .orders = "exact",
                        .reduction = "sum",
                        .min_bytes = 8,
                        .max_bytes = UINT64_C(256) << 20,
                        .factor = 2,
                        .warmup = 5};
    keel_net_rendezvous_begin(&own->rendezvous);
}

static const struct keel_command_option options[] = {
    {"--op", "LIST", KEEL_COMMAND_TEXT, offsetof(struct own, operations),
     KEEL_NET_OPERATIONS ",barrier,send; without it all-reduce"},
    {"--type", "LIST", KEEL_COMMAND_TEXT, offsetof(struct own, elements),
     "f32,f64,f16,bf16,i8,i32,i64,u8; without it f32"},
    {"--reduction", "NAME", KEEL_COMMAND_TEXT, offsetof(struct own, reduction),
     "sum, min, max or average; without it sum"},
    {"--order", "LIST", KEEL_COMMAND_TEXT, offsetof(struct own, orders), "exact,native; without it exact"},
    {"--algorithm", "LIST", KEEL_COMMAND_TEXT, offsetof(struct own, algorithms),
     "auto,flat,direct,ring,tree,halving,bruck,pairwise,two-level,doubling; without it auto"},
    {"--min", "BYTES", KEEL_COMMAND_BYTES, offsetof(struct own, min_bytes),
     "smallest size, from 1 to --max; without it 8"},
    {"--max", "BYTES", KEEL_COMMAND_BYTES, offsetof(struct own, max_bytes),
     "largest size, up to 1024G; without it 256M"},
    {"--factor", "F", KEEL_COMMAND_COUNT, offsetof(struct own, factor),
     "from one size to the next, 2 or more; without it 2"},
    {"--iterations", "N", KEEL_COMMAND_COUNT, offsetof(struct own, iterations),
     "of every size, at most 2000; without it what fits into a third of a second"},
    {"--warmup", "N", KEEL_COMMAND_COUNT, offsetof(struct own, warmup),
     "iterations before, not counted, at most 2000; without it 5"},
    {"--csv", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, csv),
     "print comma-separated values instead of the table"},
    {"--html", "FILE", KEEL_COMMAND_TEXT, offsetof(struct own, page), "write a page with plots, too"},
    KEEL_NET_RENDEZVOUS_OPTIONS(struct own, rendezvous),
    {.name = NULL}};

const struct keel_command_kind keel_net_bench = {
    .name = "bench",
    .operands = "",
    .summary = "measure bandwidth and latency of operations, as nccl-tests count them",
    .details = "A line for each operation, element, order, algorithm and size: percentiles over all "
               "iterations of all\n"
               "ranks, their mean, bytes over the mean (algorithm bandwidth), and bus bandwidth: that, times "
               "2(n-1)/n for\n"
               "all-reduce, (n-1)/n for reduce-scatter, all-gather, all-to-all, gather and scatter, 1 for "
               "the others.\n"
               "Sizes are whole vectors; of gathers, scatters and all-to-all, those of all ranks together.\n"
               "`send` passes a message round: everybody to the next.\n",
    .examples = "  keel net bench --max 64M --html bench.html\n"
                "  keel net bench --op all-reduce,all-gather --order exact,native --carrier tcp --csv\n"
                "  keel net bench --ranks 8 --algorithm ring,halving --min 1M\n",
    .options = options,
    .begin = begin,
    .run = run};
