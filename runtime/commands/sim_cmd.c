/* sim_cmd.c - `keel sim JOB`: what failures will cost a run, by an event-level model (goodput.h): goodput
 * over seeds, lost seconds by cause, and which snapshot intervals, spares and tiers pay.
 *
 * All choices are tried with the same failures, so that what differs is the choice. */
#include "sim_cmd.h"
#include "data.h"
#include "plugin_try.h"
#include "sim_print.h"
#include "trainer.h"
#include <inttypes.h>
#include <keel/command.h>
#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>

enum { SEEDS = 100, SEEDS_MAX = 10000, TRIED = 25, NODES_MAX = 1 << 20, DAYS = 30, DAYS_MAX = 3650 };

struct own {
    const char *failures, *costs, *days, *tiers, *write_failures, *svg, *spares;
    uint64_t nodes, boards, fewest, seeds, seed;
    bool quick;
    struct keel_command_texts set, cost;
};
_Static_assert(sizeof(struct own) <= KEEL_COMMAND_OWN_BYTES, "a command's own struct");

struct sim {
    const struct own *own;
    struct keel_job job;
    struct keel_sim_costs costs;
    struct keel_sim_cluster cluster;
    struct keel_failures source;
    struct keel_failures *drawn; /* of each seed; owned */
    uint64_t *work_ns;           /* of tried seeds; owned */
    struct keel_sim_findings found;
};

/* ---- reading ------------------------------------------------------------------------------------------- */

static enum keel_status read_tiers(const char *text, uint32_t *out)
{
    char words[128], *next = NULL;
    if (strcmp(text, "none") == 0)
        return KEEL_OK;
    if (snprintf(words, sizeof words, "%s", text) >= (int)sizeof words)
        return keel_fail(KEEL_INVALID, "--tiers %.60s: too long", text);
    for (char *word = strtok_r(words, ",", &next); word != NULL; word = strtok_r(NULL, ",", &next)) {
        uint32_t tier = 0;
        while (tier < KEEL_GOODPUT_TIER_COUNT &&
               strcmp(word, keel_goodput_tier_word((enum keel_goodput_tier)tier)) != 0)
            tier++;
        if (tier == KEEL_GOODPUT_TIER_COUNT)
            return keel_fail(KEEL_INVALID,
                             "--tiers %.60s: `%.30s` is none; local, partner, erasure, store, or none, are",
                             text, word);
        *out |= UINT32_C(1) << tier;
    }
    return *out != 0 ? KEEL_OK
                     : keel_fail(KEEL_INVALID,
                                 "--tiers %.60s: names no tier; some of local, partner, erasure, store, or "
                                 "none, are wanted",
                                 text);
}

static enum keel_status read_days(const char *text, uint64_t *out_ns)
{
    const enum keel_status status = keel_failure_time(text, KEEL_FAILURE_DAY_NS, out_ns);
    if (status != KEEL_OK || *out_ns == 0 || *out_ns > DAYS_MAX * KEEL_FAILURE_DAY_NS)
        return keel_fail(KEEL_INVALID,
                         "--days %.60s: days are wanted, up to %d, or a time with its unit, as 36h", text,
                         DAYS_MAX);
    return KEEL_OK;
}

static enum keel_status read_spares(const char *text, uint32_t *out)
{
    char *end;
    const unsigned long value = strtoul(text, &end, 10);
    if (strspn(text, "0123456789") == 0 || *end != '\0' || value > NODES_MAX)
        return keel_fail(KEEL_INVALID, "--spares %.60s: a whole number from 0 to %d is wanted", text,
                         NODES_MAX);
    *out = (uint32_t)value;
    return KEEL_OK;
}

static enum keel_status read_cluster(struct sim *sim)
{
    const struct own *own = sim->own;
    struct keel_sim_cluster *cluster = &sim->cluster;
    const uint32_t job_nodes = sim->job.nodes > 0 ? sim->job.nodes : sim->job.ranks;
    if (own->nodes > NODES_MAX || own->boards > 64 || own->seeds > SEEDS_MAX)
        return keel_fail(KEEL_INVALID, "--nodes, --boards, --seeds: at most %d, 64 and %d", NODES_MAX,
                         SEEDS_MAX);
    cluster->nodes = own->nodes > 0 ? (uint32_t)own->nodes : job_nodes;
    cluster->boards = own->boards > 0 ? (uint32_t)own->boards : sim->job.ranks / job_nodes;
    cluster->fewest = own->fewest > 0 && own->fewest <= UINT32_MAX ? (uint32_t)own->fewest : 1;
    cluster->spares = sim->job.spares;
    if (own->fewest > cluster->nodes)
        return keel_fail(KEEL_INVALID, "--fewest %" PRIu64 ": the run has %u nodes", own->fewest,
                         cluster->nodes);
    if (own->spares != NULL)
        KEEL_TRY(read_spares(own->spares, &cluster->spares));
    KEEL_TRY(read_days(own->days, &cluster->duration_ns));
    if (own->tiers != NULL)
        return read_tiers(own->tiers, &cluster->tiers);
    cluster->tiers = keel_sim_job_tiers(&sim->job);
    return KEEL_OK;
}

/* Weights and what the optimizer keeps of them, by the job's model; reads its data. */
static enum keel_status count_state(const struct keel_job *job, uint64_t *out_bytes)
{
    struct keel_data *data;
    struct keel_device *device = NULL;
    struct keel_engine *engine = NULL;
    struct keel_engine_facts facts;
    KEEL_TRY(keel_data_open(job, &data));
    enum keel_status status = keel_device_open("null", NULL, &device);
    if (status == KEEL_OK)
        status = keel_trainer_build_engine(
            job, data, (struct keel_engine_config){.device = device, .plan_only = true}, &engine);
    if (status == KEEL_OK) {
        keel_engine_facts(engine, &facts);
        *out_bytes = facts.parameters * keel_job_state_parts(job) * sizeof(float);
    }
    keel_engine_destroy(engine);
    if (device != NULL)
        keel_device_close(device);
    keel_data_close(data);
    return status;
}

static enum keel_status load(struct sim *sim, const char *path)
{
    const struct own *own = sim->own;
    struct keel_sim_findings *found = &sim->found;
    KEEL_TRY(keel_plugin_try_load(path, own->set.at, own->set.count));
    KEEL_TRY(keel_job_load(path, own->set.at, own->set.count, &sim->job));
    KEEL_TRY(keel_sim_costs_load(own->costs, own->cost.at, own->cost.count, &sim->costs));
    KEEL_TRY(read_cluster(sim));
    KEEL_TRY(keel_failures_read(own->failures, sim->cluster.nodes, &sim->source));
    found->state_bytes = sim->costs.state_bytes;
    if (found->state_bytes == 0)
        KEEL_TRY(count_state(&sim->job, &found->state_bytes));
    found->job = sim->job.name;
    found->failures = own->failures;
    found->boards = sim->cluster.boards;
    found->first_seed = own->seed;
    found->seed_count = sim->source.rate_count > 0 ? (uint32_t)own->seeds : 1; /* a trace is one */
    found->tried_seeds = found->seed_count < TRIED ? found->seed_count : TRIED;
    return keel_sim_model_make(&sim->job, &sim->costs, &sim->cluster, found->state_bytes, &found->model);
}

/* ---- running ------------------------------------------------------------------------------------------- */

/* For qsort, which hands nothing over: the runs that are sorted. */
static _Thread_local const struct keel_goodput *sorted;

static int by_work(const void *a, const void *b)
{
    const uint32_t one = *(const uint32_t *)a, other = *(const uint32_t *)b;
    const uint64_t one_ns = sorted[one].ns[KEEL_GOODPUT_WORK], other_ns = sorted[other].ns[KEEL_GOODPUT_WORK];
    if (one_ns != other_ns)
        return one_ns < other_ns ? -1 : 1;
    return one < other ? -1 : 1;
}

static enum keel_status run_seeds(struct sim *sim)
{
    struct keel_sim_findings *found = &sim->found;
    KEEL_TRY(keel_alloc(found->seed_count, sizeof *sim->drawn, &sim->drawn));
    KEEL_TRY(keel_alloc(found->seed_count, sizeof *sim->work_ns, &sim->work_ns));
    KEEL_TRY(keel_alloc(found->seed_count, sizeof *found->runs, &found->runs));
    KEEL_TRY(keel_alloc(found->seed_count, sizeof *found->by_goodput, &found->by_goodput));
    for (uint32_t i = 0; i < found->seed_count; i++) {
        KEEL_TRY(keel_failures_draw(&sim->source, found->model.nodes, found->model.duration_ns,
                                    found->first_seed + i, &sim->drawn[i]));
        KEEL_TRY(keel_goodput_run(&found->model, &sim->drawn[i], &found->runs[i]));
        found->by_goodput[i] = i;
    }
    sorted = found->runs;
    qsort(found->by_goodput, found->seed_count, sizeof found->by_goodput[0], by_work);
    return KEEL_OK;
}

static int by_number(const void *a, const void *b)
{
    const uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;
    return one < other ? -1 : one > other;
}

static enum keel_status try_model(struct sim *sim, const struct keel_goodput_model *model,
                                  struct keel_sim_choices *choices, const char *label, double value)
{
    struct keel_sim_choice *choice = &choices->at[choices->count];
    const uint32_t count = sim->found.tried_seeds;
    double sum = 0;
    KEEL_ASSERT(choices->count < KEEL_SIM_CHOICES_MAX);
    for (uint32_t i = 0; i < count; i++) {
        struct keel_goodput run;
        KEEL_TRY(keel_goodput_run(model, &sim->drawn[i], &run));
        sim->work_ns[i] = run.ns[KEEL_GOODPUT_WORK];
        sum += (double)run.ns[KEEL_GOODPUT_WORK];
    }
    qsort(sim->work_ns, count, sizeof sim->work_ns[0], by_number);
    const uint32_t twentieth = (count + 19) / 20 - 1;
    const double wall_ns = (double)model->duration_ns;
    *choice = (struct keel_sim_choice){
        .value = value, .mean = sum / count / wall_ns, .low = (double)sim->work_ns[twentieth] / wall_ns};
    snprintf(choice->label, sizeof choice->label, "%s", label);
    choices->count++;
    return KEEL_OK;
}

/* Of those within `slack` of the best mean the first, or the last. */
static void mark_best(struct keel_sim_choices *choices, double slack, bool last)
{
    struct keel_sim_choice *best = NULL;
    double most = 0;
    for (uint32_t i = 0; i < choices->count; i++)
        most = choices->at[i].mean > most ? choices->at[i].mean : most;
    for (uint32_t i = 0; i < choices->count; i++)
        if (choices->at[i].mean >= most - slack && (best == NULL || last))
            best = &choices->at[i];
    if (best != NULL)
        best->best = true;
}

/* Of the tiers that are used, from `first` to before `end`, together. */
static enum keel_status try_intervals(struct sim *sim, uint32_t first, uint32_t end,
                                      struct keel_sim_choices *choices)
{
    static const struct {
        const char *label;
        double s;
    } intervals[] = {{"30 s", 30},    {"1 min", 60},    {"2 min", 120},   {"5 min", 300},
                     {"10 min", 600}, {"20 min", 1200}, {"30 min", 1800}, {"1 h", 3600},
                     {"2 h", 7200},   {"4 h", 14400},   {"8 h", 28800},   {"1 day", 86400}};
    struct keel_goodput_model model = sim->found.model;
    for (size_t i = 0; i < sizeof intervals / sizeof intervals[0]; i++) {
        uint64_t least = UINT64_MAX; /* what cannot be so short is longer */
        bool differs = choices->count == 0;
        for (uint32_t tier = first; tier < end; tier++) {
            uint64_t *every = &model.tiers[tier].every_steps;
            const uint64_t steps =
                keel_sim_interval_steps(&model, (enum keel_goodput_tier)tier, intervals[i].s);
            if (*every == 0)
                continue;
            differs = differs || steps != *every;
            least = steps < least ? steps : least;
            *every = steps;
        }
        const double taken_s = (double)least * (double)model.step_ns / 1e9;
        if (!differs || taken_s > (double)model.duration_ns / 2e9)
            continue;
        KEEL_TRY(try_model(sim, &model, choices, intervals[i].label, taken_s));
    }
    mark_best(choices, 1e-5, true); /* the longest costs least */
    return KEEL_OK;
}

static enum keel_status try_spares(struct sim *sim)
{
    static const uint32_t counts[] = {0, 1, 2, 4, 8, 16, 32, 64, 128};
    struct keel_goodput_model model = sim->found.model;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0] && counts[i] <= model.nodes; i++) {
        char label[KEEL_SIM_LABEL_BYTES];
        snprintf(label, sizeof label, "%u", counts[i]);
        model.spares = counts[i];
        KEEL_TRY(try_model(sim, &model, &sim->found.spares, label, counts[i]));
    }
    mark_best(&sim->found.spares, 1e-4, false); /* more that bring less are too many */
    return KEEL_OK;
}

static enum keel_status try_tiers(struct sim *sim)
{
    static const struct {
        const char *label;
        uint32_t tiers;
    } sets[] = {{"none", 0},
                {"store", 8},
                {"local, store", 9},
                {"local, erasure, store", 13},
                {"local, partner, store", 11},
                {"all four", 15}};
    struct keel_sim_cluster cluster = sim->cluster;
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        struct keel_goodput_model model;
        cluster.tiers = sets[i].tiers;
        if (keel_sim_check_tiers(&sim->job, &cluster) != KEEL_OK) /* so few nodes do not make them up */
            continue;
        KEEL_TRY(keel_sim_model_make(&sim->job, &sim->costs, &cluster, sim->found.state_bytes, &model));
        KEEL_TRY(try_model(sim, &model, &sim->found.tiers, sets[i].label, sets[i].tiers));
    }
    mark_best(&sim->found.tiers, 1e-5, false); /* sets are in the order of what they take */
    return KEEL_OK;
}

static enum keel_status search(struct sim *sim)
{
    if (sim->own->quick)
        return KEEL_OK;
    KEEL_TRY(try_intervals(sim, 0, KEEL_GOODPUT_TIER_STORE, &sim->found.near_intervals));
    KEEL_TRY(
        try_intervals(sim, KEEL_GOODPUT_TIER_STORE, KEEL_GOODPUT_TIER_COUNT, &sim->found.store_intervals));
    KEEL_TRY(try_spares(sim));
    return try_tiers(sim);
}

/* ---- telling ------------------------------------------------------------------------------------------- */

static void put_svg(const struct sim *sim, FILE *out)
{
    keel_sim_print_svg(&sim->found, out);
}

static void put_failures(const struct sim *sim, FILE *out)
{
    keel_failures_write(&sim->drawn[0], out);
}

static enum keel_status write_file(const struct sim *sim, const char *path,
                                   void (*put)(const struct sim *sim, FILE *out))
{
    char *text = NULL;
    size_t bytes = 0;
    if (path == NULL)
        return KEEL_OK;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL)
        return keel_fail(KEEL_NO_MEMORY, "%s: no memory for its text", path);
    put(sim, out);
    const bool whole = ferror(out) == 0;
    const enum keel_status status = fclose(out) != 0 || !whole
                                        ? keel_fail(KEEL_NO_MEMORY, "%s: no memory for its text", path)
                                        : keel_command_write_file(path, text, bytes);
    free(text);
    return status;
}

static enum keel_status simulate(struct sim *sim, const char *path)
{
    const struct own *own = sim->own;
    if (own->write_failures != NULL)
        KEEL_TRY(keel_command_may_write(own->write_failures));
    if (own->svg != NULL)
        KEEL_TRY(keel_command_may_write(own->svg));
    KEEL_TRY(load(sim, path));
    KEEL_TRY(run_seeds(sim));
    KEEL_TRY(search(sim));
    KEEL_TRY(write_file(sim, own->write_failures, put_failures));
    return write_file(sim, own->svg, put_svg);
}

static void unmake(struct sim *sim)
{
    for (uint32_t i = 0; i < sim->found.seed_count && sim->drawn != NULL; i++)
        keel_failures_fini(&sim->drawn[i]);
    keel_failures_fini(&sim->source);
    keel_free(sim->drawn);
    keel_free(sim->work_ns);
    keel_free(sim->found.runs);
    keel_free(sim->found.by_goodput);
}

static int run(const struct keel_command *command)
{
    struct sim *sim;
    enum keel_status status = keel_alloc(1, sizeof *sim, &sim);
    if (status != KEEL_OK)
        return keel_command_report(command->set, status);
    sim->own = keel_command_own(command);
    status = simulate(sim, command->operands[0]);
    if (status == KEEL_OK && command->json) {
        struct keel_json json = keel_command_json(stdout);
        keel_sim_print_json(&sim->found, &json);
        keel_command_json_end(&json);
    } else if (status == KEEL_OK) {
        keel_sim_print_text(&sim->found, stdout);
    }
    const int code = status == KEEL_OK ? 0 : keel_command_report(command->set, status);
    unmake(sim);
    keel_free(sim);
    return code;
}

static void begin(void *own)
{
    *(struct own *)own = (struct own){.failures = "llama3", .days = "30", .seeds = SEEDS, .seed = 1};
}

static const struct keel_command_option options[] = {
    {"--nodes", "N", KEEL_COMMAND_POSITIVE, offsetof(struct own, nodes),
     "of the run; default: those of the job"},
    {"--boards", "N", KEEL_COMMAND_POSITIVE, offsetof(struct own, boards),
     "of a node, a rank each; default: as in the job"},
    {"--days", "N", KEEL_COMMAND_TEXT, offsetof(struct own, days),
     "to simulate, or a time as 36h; default 30"},
    {"--failures", "WHAT", KEEL_COMMAND_TEXT, offsetof(struct own, failures),
     "llama3 (default), lanl, gray; failures per 1,000 node-days as a number; or a file of failures or "
     "rates"},
    {"--spares", "N", KEEL_COMMAND_TEXT, offsetof(struct own, spares),
     "nodes that wait to take a place; default: cluster.spares"},
    {"--fewest", "N", KEEL_COMMAND_POSITIVE, offsetof(struct own, fewest),
     "nodes with which the run can go on; default 1"},
    {"--tiers", "LIST", KEEL_COMMAND_TEXT, offsetof(struct own, tiers),
     "of local,partner,erasure,store those that snapshots go to, or none; default: those of the job"},
    {"--costs", "FILE", KEEL_COMMAND_TEXT, offsetof(struct own, costs),
     "settings of what things cost, measured"},
    {"--cost", "section.key=value", KEEL_COMMAND_TEXTS, offsetof(struct own, cost),
     "override one of them; may be repeated"},
    {"--seeds", "N", KEEL_COMMAND_POSITIVE, offsetof(struct own, seeds), "runs to simulate; default 100"},
    {"--seed", "N", KEEL_COMMAND_COUNT, offsetof(struct own, seed), "of the first of them; default 1"},
    {"--quick", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, quick),
     "try no other intervals, spares and tiers"},
    {"--write-failures", "FILE", KEEL_COMMAND_TEXT, offsetof(struct own, write_failures),
     "the failures of the first seed, as --failures reads them"},
    {"--svg", "FILE", KEEL_COMMAND_TEXT, offsetof(struct own, svg), "a picture: lost time by cause and seed"},
    {"--set", "section.key=value", KEEL_COMMAND_TEXTS, offsetof(struct own, set),
     "override any key of the job file; may be repeated"},
    {.name = NULL}};

static const struct keel_command_kind sim_kind = {
    .name = "sim",
    .operands = "JOB.conf",
    .operands_min = 1,
    .operands_max = 1,
    .summary = "say what failures will cost a run: goodput, lost seconds by cause, intervals, spares, tiers",
    .details =
        "An event-level model: a failure costs what was measured of real ones (--costs; defaults are of one\n"
        "small machine), and every nanosecond has one cause. Nothing is run. The state is counted of the\n"
        "job's model, which reads its data, unless --cost run.state_bytes gives it.\n"
        "Lines of a file of failures: TIME NODE[-NODE] KIND REPAIR [factor=F], in order of time; or\n"
        "rate R KIND REPAIR [mean=REPAIR] [nodes=N] [shape=K] [factor=F], R per 1,000 node-days.\n"
        "keel-sim(1) has the kinds, and the keys of costs.\n",
    .examples =
        "  keel sim job.conf --nodes 4096 --boards 8 --days 54 --failures llama3 --spares 16\n"
        "  keel sim job.conf --nodes 64 --failures my.failures --svg lost.svg\n"
        "  keel sim job.conf --nodes 512 --failures 3.8 --tiers local,partner,store --json | jq .goodput\n"
        "  keel sim job.conf --cost run.step_s=2 --cost run.state_bytes=1500000000000 --spares 4\n",
    .options = options,
    .begin = begin,
    .run = run};
static const struct keel_command_kind *const kinds[] = {&sim_kind};
static const struct keel_command_set set = {.name = "keel", .kinds = kinds, .kind_count = 1};

int keel_sim_main(int argc, char **argv)
{
    return keel_command_main(&set, argc + 1,
                             argv - 1); /* main's own words, of which ours begins with "sim" */
}
