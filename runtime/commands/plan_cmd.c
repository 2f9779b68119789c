/* plan_cmd.c - `keel plan JOB`: what a step of the job will be, without a device: parameters and tiles,
 * memory, buckets, who carries which shards, collectives, and each rank's tape; and the plans that there are
 * for so many ranks, with what they take (plan_axes.c).
 *
 * The graph passes and the layout are those of a run (keel/engine.h, plan_only), on the null device: an
 * accelerator, so with all fusions. The tape is that of a step that is begun with nothing held, by the first
 * plan: a rank is a seat of it, and each place along the tensor axis has an engine of its own. */
#include "plan_cmd.h"
#include "axes.h"
#include "data.h"
#include "hf_config.h"
#include "model.h"
#include "plan_axes.h"
#include "plugin_try.h"
#include "tape.h"
#include "trainer.h"
#include "view.h"
#include <inttypes.h>
#include <keel/command.h>
#include <keel/engine.h>
#include <keel/memory.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct own {
    const char *ranks, *memory;
    struct keel_command_texts set;
    bool dump, config_json;
};

/* What the seats of a place have. */
struct place {
    struct keel_engine *engine;
    struct keel_tape_segment *segments; /* NULL: each is a piece */
    uint32_t segment_count;
    uint64_t *piece_bytes; /* of each bucket, of the loss and of the records */
};

struct plan {
    struct keel_job job;
    struct keel_data *data;
    struct keel_device *device;
    struct keel_engine *engine;
    struct keel_engine_facts facts;
    struct keel_compression compression;
    bool compressed;                          /* gradients are: by that */
    uint16_t shard_position[KEEL_SHARDS_MAX]; /* along data; without slices that is the rank */
    uint64_t *piece_bytes;                    /* of each bucket, of the loss and of the records; owned */
    struct keel_partial_sums held;            /* none */
    struct keel_tape tape;
    struct place places[KEEL_SLICES_MAX]; /* owned; of the tapes' ranks */
    struct keel_plan_axes axes;
};

/* ---- making it ----------------------------------------------------------------------------------------- */

/* "--ranks cluster.ranks=4": an option as an override that says where it is from. */
static enum keel_status make_override(const char *option, const char *key, const char *value, char out[64])
{
    const int length = snprintf(out, 64, "%s %s=%s", option, key, value);
    if (length < 0 || length >= 64)
        return keel_fail(KEEL_INVALID, "%s %.60s: a number is wanted", option, value);
    return KEEL_OK;
}

/* Tapes of all ranks are made, and simulated together: of so many. */
enum { TAPES_MAX = 512 };

/* Ranks of a plan, where they are too many for that; else 0. */
static uint32_t many_ranks(const char *text)
{
    const size_t digits = text != NULL ? strspn(text, "0123456789") : 0;
    const unsigned long ranks =
        digits > 0 && digits < 9 && text[digits] == '\0' ? strtoul(text, NULL, 10) : 0;
    return ranks > TAPES_MAX && ranks <= KEEL_PLAN_SEATS_MAX ? (uint32_t)ranks : 0;
}

static enum keel_status load_job(const struct own *own, const char *path, struct keel_job *out)
{
    const char *overrides[KEEL_COMMAND_TEXTS_MAX + 2];
    char ranks[64], memory[64];
    uint32_t count = 0;
    for (; count < own->set.count; count++)
        overrides[count] = own->set.at[count];
    if (own->ranks != NULL && many_ranks(own->ranks) == 0) {
        KEEL_TRY(make_override("--ranks", "cluster.ranks", own->ranks, ranks));
        overrides[count++] = ranks;
    }
    if (own->memory != NULL) {
        KEEL_TRY(make_override("--memory", "parallel.memory", own->memory, memory));
        overrides[count++] = memory;
    }
    KEEL_TRY(keel_plugin_try_load(path, overrides, count));
    return keel_job_load(path, overrides, count, out);
}

static enum keel_status make_axes(struct plan *plan, uint32_t many)
{
    struct keel_graph *graph;
    KEEL_TRY(keel_graph_create(&graph));
    enum keel_status status = keel_model_build(graph, &plan->job, plan->data);
    if (status == KEEL_OK)
        status = keel_plan_axes_make(&plan->job, plan->data, graph, plan->device, plan->engine,
                                     many != 0 ? many : plan->job.ranks, &plan->axes);
    keel_graph_destroy(graph);
    return status;
}

/* Whether these are the job's ranks: then there are tapes. */
static bool has_tapes(const struct plan *plan)
{
    return plan->axes.seats == plan->job.ranks;
}

/* Data positions: without slices also ranks beyond them, which carry no shard. */
static uint32_t positions_of(const struct plan *plan)
{
    const struct keel_job_plan *chosen = keel_plan_chosen(&plan->axes);
    return chosen->tensor > 1 ? chosen->data : plan->job.ranks;
}

static uint32_t tape_ranks(const struct plan *plan)
{
    return positions_of(plan) * keel_plan_chosen(&plan->axes)->tensor;
}

/* Whether its sums are those of all ranks, and not of owners. */
static bool sums_all(const struct plan *plan)
{
    const struct keel_job_plan *chosen = keel_plan_chosen(&plan->axes);
    return has_tapes(plan) && chosen->zero == 0 && chosen->tensor == 1;
}

static enum keel_status fill_pieces(const struct plan *plan, const struct keel_engine *engine, uint64_t **out)
{
    const uint32_t buckets = keel_engine_bucket_count(engine);
    KEEL_TRY(keel_alloc(buckets + 2, sizeof **out, out));
    if (plan->compressed)
        KEEL_TRY(keel_trainer_count_compressed(engine, &plan->compression, *out));
    for (uint32_t b = 0; b < buckets; b++)
        (*out)[b] = plan->compressed ? (*out)[b] * KEEL_COMPRESSED_BYTES
                                     : keel_engine_bucket(engine, b)->count * sizeof(float);
    (*out)[buckets] = sizeof(float);
    (*out)[buckets + 1] = sizeof(struct keel_record_fold);
    return KEEL_OK;
}

/* The engine of a place, as a worker with the keys of the plan builds it. */
static enum keel_status make_place(const struct plan *plan, uint32_t number, struct place *out)
{
    const struct keel_job_plan *chosen = keel_plan_chosen(&plan->axes);
    const struct keel_plan_seat seat = keel_plan_seat(&plan->axes.model, chosen, number);
    struct keel_job job = plan->job;
    struct keel_engine_config config = {.device = plan->device, .plan_only = true};
    job.parallel.tensor = chosen->tensor;
    job.parallel.zero = KEEL_ZERO_NONE + chosen->zero;
    if (chosen->tensor > 1) {
        config.tensor_first = seat.first_slice;
        config.tensor_count = seat.slice_count;
    }
    KEEL_TRY(keel_trainer_build_engine(&job, plan->data, config, &out->engine));
    if (chosen->tensor > 1 || chosen->zero == 3)
        KEEL_TRY(keel_trainer_list_segments(out->engine, &out->segments, &out->segment_count));
    return fill_pieces(plan, out->engine, &out->piece_bytes);
}

static enum keel_status make_places(struct plan *plan)
{
    const struct keel_job_plan *chosen = keel_plan_chosen(&plan->axes);
    const uint32_t shards = plan->job.shards;
    for (uint32_t s = 0; s < shards; s++)
        plan->shard_position[s] =
            (uint16_t)(chosen->tensor > 1 ? keel_axes_position(shards, chosen->data, s)
                                          : keel_view_first_place(s, shards, plan->job.ranks));
    for (uint32_t place = 0; place < chosen->tensor && has_tapes(plan); place++)
        KEEL_TRY(make_place(plan, place, &plan->places[place]));
    return KEEL_OK;
}

static enum keel_status make(struct plan *plan, uint32_t many)
{
    KEEL_TRY(keel_data_open(&plan->job, &plan->data));
    KEEL_TRY(keel_device_open("null", NULL, &plan->device));
    const struct keel_engine_config config = {.device = plan->device, .plan_only = true};
    KEEL_TRY(keel_trainer_build_engine(&plan->job, plan->data, config, &plan->engine));
    keel_engine_facts(plan->engine, &plan->facts);
    plan->compressed = keel_job_compression(&plan->job, &plan->compression);
    KEEL_TRY(fill_pieces(plan, plan->engine, &plan->piece_bytes));
    plan->held.shard_count = plan->job.shards;
    KEEL_TRY(make_axes(plan, many));
    keel_model_tell(&plan->job);
    return make_places(plan);
}

static void unmake(struct plan *plan)
{
    keel_tape_fini(&plan->tape);
    keel_plan_axes_fini(&plan->axes);
    keel_free(plan->piece_bytes);
    for (uint32_t place = 0; place < KEEL_SLICES_MAX; place++) {
        keel_engine_destroy(plan->places[place].engine);
        keel_free(plan->places[place].segments);
        keel_free(plan->places[place].piece_bytes);
    }
    keel_engine_destroy(plan->engine);
    if (plan->device != NULL)
        keel_device_close(plan->device);
    keel_data_close(plan->data);
}

/* Rounds of gathers: microbatches of the position that has most shards, which lie side by side. */
static uint32_t count_rounds(const struct plan *plan)
{
    uint32_t most = 1, shards = 0;
    for (uint32_t s = 0; s < plan->job.shards; s++) {
        shards = s > 0 && plan->shard_position[s] == plan->shard_position[s - 1] ? shards + 1 : 1;
        most = shards > most ? shards : most;
    }
    return most * plan->job.microbatches;
}

static const struct place *place_of(const struct plan *plan, uint32_t rank)
{
    return &plan->places[rank % keel_plan_chosen(&plan->axes)->tensor];
}

static uint32_t position_of(const struct plan *plan, uint32_t rank)
{
    return rank / keel_plan_chosen(&plan->axes)->tensor;
}

static struct keel_tape_config config_of(const struct plan *plan, uint32_t rank)
{
    const struct keel_job_plan *chosen = keel_plan_chosen(&plan->axes);
    const struct place *place = place_of(plan, rank);
    struct keel_tape_config config = {.bucket_count = keel_engine_bucket_count(place->engine),
                                      .microbatches = plan->job.microbatches,
                                      .shard_count = plan->job.shards,
                                      .shard_position = plan->shard_position,
                                      .position = position_of(plan, rank),
                                      .grouped = positions_of(plan) > 1 || chosen->zero > 0,
                                      .in_pieces = chosen->zero > 0,
                                      .shadowed = keel_plan_copies(chosen) > 0,
                                      .compressed = plan->compressed,
                                      .sharing = chosen->tensor > 1,
                                      .waits = keel_engine_window_waits(place->engine),
                                      .segments = place->segments,
                                      .segment_count = place->segment_count,
                                      .held = &plan->held};
    config.gathers = keel_engine_gathers(place->engine, false, &config.gather_count);
    config.rounds = config.gathers != NULL ? count_rounds(plan) : 0;
    return config;
}

static bool fills_slot(const struct keel_action *action)
{
    return action->kind == KEEL_ACTION_STORE || action->kind == KEEL_ACTION_REDUCE ||
           action->kind == KEEL_ACTION_ENCODE;
}

/* The rank's tape into plan->tape; how many slots beside the gradient buffer it needs. */
static enum keel_status make_tape(struct plan *plan, uint32_t rank, uint32_t *out_slots)
{
    const struct keel_tape_config config = config_of(plan, rank);
    int slots = 0;
    KEEL_TRY(keel_tape_reserve(&plan->tape, keel_tape_bound(&config)));
    keel_tape_make(&plan->tape, &config);
    for (uint32_t i = 0; i < plan->tape.count; i++)
        if (fills_slot(&plan->tape.actions[i]) && plan->tape.actions[i].slot >= slots)
            slots = plan->tape.actions[i].slot + 1;
    *out_slots = (uint32_t)slots;
    return keel_tape_check(&plan->tape, &config);
}

static uint64_t flat_bytes(const struct plan *plan)
{
    return keel_engine_flat_count(plan->engine) * sizeof(float);
}

/* Of what is summed over shards: without what is frozen, unless that has owners. */
static uint64_t summed_bytes(const struct keel_engine *engine)
{
    const struct keel_engine_bucket *last = keel_engine_bucket(engine, keel_engine_bucket_count(engine) - 1);
    return (last->offset + last->count) * sizeof(float);
}

static uint64_t optimizer_bytes(const struct plan *plan)
{
    return summed_bytes(plan->engine) * (keel_job_state_parts(&plan->job) - 1);
}

/* Of all ranks but those alone: what one of them gives to, or gets of, the sums of a step. */
static uint64_t reduced_bytes(const struct plan *plan)
{
    uint64_t bytes = 0;
    for (uint32_t piece = 0; piece <= keel_engine_bucket_count(plan->engine); piece++)
        bytes += plan->piece_bytes[piece];
    return bytes;
}

/* What its slots take: a node is all buckets. */
static uint64_t node_bytes(const struct plan *plan, uint32_t rank, uint32_t slots)
{
    return slots * (plan->compressed ? reduced_bytes(plan) - sizeof(float)
                                     : summed_bytes(place_of(plan, rank)->engine));
}

/* "f32", or what gradients are compressed to. */
static const char *element_of(const struct plan *plan)
{
    return keel_element_name(plan->compressed ? plan->compression.element : KEEL_ELEMENT_F32);
}

/* ---- text ---------------------------------------------------------------------------------------------- */

static void print_bytes(const char *what, uint64_t bytes)
{
    printf("  %-12s %12" PRIu64 " bytes  %9.2f MiB\n", what, bytes, (double)bytes / 1048576.0);
}

static void print_tiles(const struct plan *plan)
{
    printf("\ntiles: parameter, elements, pages of %d from page\n", (int)KEEL_FLAT_ALIGN);
    for (uint32_t i = 0; i < keel_engine_tile_count(plan->engine); i++) {
        const struct keel_tile *tile = keel_engine_tile(plan->engine, i);
        const struct keel_engine_param *param = keel_engine_param(plan->engine, tile->param);
        printf("  %4" PRIu32 ".%" PRIu32 "  %-40s %10" PRIu64 " %8" PRIu64 " %8" PRIu64 "%s\n", tile->param,
               tile->slice, param->name, tile->count, tile->page_count, tile->first_page,
               param->statistic ? "  statistic"
               : param->frozen  ? "  frozen"
                                : "");
    }
}

static void print_shards(const struct plan *plan, uint32_t rank)
{
    for (uint32_t s = 0; s < plan->job.shards; s++)
        if (plan->shard_position[s] == position_of(plan, rank))
            printf(" %" PRIu32, s);
}

static enum keel_status print_ranks(struct plan *plan, bool dump)
{
    uint32_t slots;
    printf("\nranks\n");
    for (uint32_t rank = 0; rank < tape_ranks(plan); rank++) {
        KEEL_TRY(make_tape(plan, rank, &slots));
        printf("  %" PRIu32 ": shards", rank);
        print_shards(plan, rank);
        printf("; %" PRIu32 " actions, %" PRIu32
               " parts of each sum, %.2f MiB for nodes that wait and sums\n",
               plan->tape.count, plan->tape.part_count, (double)node_bytes(plan, rank, slots) / 1048576.0);
        if (dump)
            keel_tape_print(&plan->tape, place_of(plan, rank)->piece_bytes, stdout);
    }
    return KEEL_OK;
}

static void print_sums(const struct plan *plan)
{
    const uint32_t buckets = keel_engine_bucket_count(plan->engine);
    printf("\ncollectives of a step\n");
    if (plan->job.ranks > 1)
        printf("  %" PRIu32 " all-reduces of %" PRIu64
               " bytes together (gradients %s, as %s), 1 all-gather of "
               "%" PRIu64 " bytes\n",
               buckets + 1, reduced_bytes(plan), plan->job.gradients, element_of(plan),
               plan->piece_bytes[buckets + 1]);
    else
        printf("  none: one rank carries all shards\n");
}

/* What was listed stays; NO_MEMORY if nothing of it fits. */
static enum keel_status check_fit(const struct plan *plan)
{
    struct keel_job_plan chosen;
    return keel_plan_choose(&plan->axes.model, &plan->axes.asked, plan->axes.seats, &chosen);
}

static enum keel_status print_text(struct plan *plan, bool dump)
{
    char model[128];
    const uint32_t buckets = keel_engine_bucket_count(plan->engine);
    keel_job_describe(&plan->job, model, sizeof model);
    printf("job %s: %s\n%" PRIu64 " trained parameters in %" PRIu32 " tiles; a step is %" PRIu32
           " shards of %" PRIu32 " microbatches of %" PRIu32 " samples\n",
           plan->job.name, model, plan->facts.parameters, keel_engine_tile_count(plan->engine),
           plan->job.shards, plan->job.microbatches, plan->job.batch);
    printf("\nmemory of a device that has all of it\n");
    print_bytes("weights", flat_bytes(plan));
    print_bytes("gradients", summed_bytes(plan->engine));
    print_bytes("accumulators", plan->facts.accumulator_bytes);
    print_bytes("optimizer", optimizer_bytes(plan));
    print_bytes("activations", plan->facts.activation_bytes);
    print_tiles(plan);
    printf("\nbuckets, as the backward pass finishes them%s\n",
           plan->compressed ? ", and as they are compressed" : "");
    for (uint32_t b = 0; b < buckets; b++)
        printf("  %4" PRIu32 " %12" PRIu64 " bytes\n", b, plan->piece_bytes[b]);
    keel_plan_axes_print(&plan->axes);
    if (!has_tapes(plan))
        return check_fit(plan);
    if (sums_all(plan))
        print_sums(plan);
    KEEL_TRY(print_ranks(plan, dump));
    return check_fit(plan);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static void put_tiles(const struct plan *plan, struct keel_json *json)
{
    keel_json_open(json, "tiles", '[');
    for (uint32_t i = 0; i < keel_engine_tile_count(plan->engine); i++) {
        const struct keel_tile *tile = keel_engine_tile(plan->engine, i);
        const struct keel_engine_param *param = keel_engine_param(plan->engine, tile->param);
        keel_json_open(json, NULL, '{');
        keel_json_text(json, "name", param->name);
        keel_json_number(json, "parameter", tile->param);
        keel_json_number(json, "slice", tile->slice);
        keel_json_open(json, "shape", '[');
        for (uint32_t d = 0; d < param->dims; d++)
            keel_json_number(json, NULL, param->shape[d]);
        keel_json_close(json, ']');
        keel_json_number(json, "offset", tile->offset);
        keel_json_number(json, "elements", tile->count);
        keel_json_number(json, "first_page", tile->first_page);
        keel_json_number(json, "pages", tile->page_count);
        keel_json_bool(json, "statistic", param->statistic);
        keel_json_bool(json, "frozen", param->frozen);
        keel_json_close(json, '}');
    }
    keel_json_close(json, ']');
}

static void put_collective(struct keel_json *json, const char *kind, const char *element, uint64_t count,
                           uint64_t bytes)
{
    keel_json_open(json, NULL, '{');
    keel_json_text(json, "kind", kind);
    keel_json_text(json, "element", element);
    keel_json_number(json, "count", count);
    keel_json_number(json, "bytes", bytes);
    keel_json_close(json, '}');
}

static enum keel_status put_ranks(struct plan *plan, bool dump, struct keel_json *json)
{
    enum keel_status status = KEEL_OK;
    uint32_t slots;
    keel_json_open(json, "ranks", '[');
    for (uint32_t rank = 0; rank < tape_ranks(plan) && status == KEEL_OK; rank++) {
        status = make_tape(plan, rank, &slots);
        if (status != KEEL_OK)
            break;
        keel_json_open(json, NULL, '{');
        keel_json_number(json, "rank", rank);
        keel_json_open(json, "shards", '[');
        for (uint32_t s = 0; s < plan->job.shards; s++)
            if (plan->shard_position[s] == position_of(plan, rank))
                keel_json_number(json, NULL, s);
        keel_json_close(json, ']');
        keel_json_number(json, "actions", plan->tape.count);
        keel_json_number(json, "parts", plan->tape.part_count);
        keel_json_number(json, "node_bytes", node_bytes(plan, rank, slots));
        if (dump)
            keel_tape_print_json(&plan->tape, place_of(plan, rank)->piece_bytes, json, "tape");
        keel_json_close(json, '}');
    }
    keel_json_close(json, ']');
    return status;
}

static enum keel_status print_json(struct plan *plan, bool dump)
{
    const uint32_t buckets = keel_engine_bucket_count(plan->engine);
    struct keel_json json = keel_command_json(stdout);
    keel_json_text(&json, "job", plan->job.name);
    keel_json_number(&json, "parameters", plan->facts.parameters);
    keel_json_number(&json, "shards", plan->job.shards);
    keel_json_number(&json, "tensor", plan->job.tensor);
    keel_json_number(&json, "run_ranks_max", KEEL_MEMBERS_MAX);
    keel_json_number(&json, "microbatches", plan->job.microbatches);
    keel_json_open(&json, "memory_bytes", '{');
    keel_json_number(&json, "weights", flat_bytes(plan));
    keel_json_number(&json, "gradients", summed_bytes(plan->engine));
    keel_json_number(&json, "accumulators", plan->facts.accumulator_bytes);
    keel_json_number(&json, "optimizer", optimizer_bytes(plan));
    keel_json_number(&json, "activations", plan->facts.activation_bytes);
    keel_json_close(&json, '}');
    put_tiles(plan, &json);
    keel_json_open(&json, "bucket_bytes", '[');
    for (uint32_t b = 0; b < buckets; b++)
        keel_json_number(&json, NULL, plan->piece_bytes[b]);
    keel_json_close(&json, ']');
    keel_json_open(&json, "collectives", '[');
    if (sums_all(plan) && plan->job.ranks > 1) {
        put_collective(&json, "all-reduce", element_of(plan), buckets + 1, reduced_bytes(plan));
        put_collective(&json, "all-gather", keel_element_name(KEEL_ELEMENT_U8), 1,
                       plan->piece_bytes[buckets + 1]);
    }
    keel_json_close(&json, ']');
    enum keel_status status = keel_plan_axes_print_json(&plan->axes, &json);
    if (status == KEEL_OK && has_tapes(plan))
        status = put_ranks(plan, dump, &json);
    if (status == KEEL_OK)
        status = check_fit(plan);
    keel_command_note(status);
    keel_command_json_end(&json);
    return status;
}

/* ---- the command --------------------------------------------------------------------------------------- */

/* Of the model alone: the data say how many tokens it has. */
static enum keel_status print_config(const struct keel_job *job)
{
    struct keel_data *data;
    KEEL_TRY(keel_data_open_to_use(job, &(struct keel_data_use){.val_path = NULL}, &data));
    const enum keel_status status = keel_hf_config_print(job, data, stdout);
    keel_data_close(data);
    return status;
}

/* Behind all that is printed, which is long. */
static void tell_limit(uint32_t ranks)
{
    if (ranks <= KEEL_MEMBERS_MAX)
        return;
    fflush(stdout);
    fprintf(stderr,
            "keel plan: %" PRIu32 " ranks are a plan alone: a run has %d at most, and keel run refuses more "
            "(cluster.ranks)\n",
            ranks, KEEL_MEMBERS_MAX);
}

static int run(const struct keel_command *command)
{
    const struct own *own = keel_command_own(command);
    struct plan *plan;
    enum keel_status status = keel_alloc(1, sizeof *plan, &plan);
    if (status != KEEL_OK)
        return keel_command_report(command->set, status);
    status = load_job(own, command->operands[0], &plan->job);
    if (status == KEEL_OK && own->config_json)
        status = print_config(&plan->job);
    else if (status == KEEL_OK)
        status = make(plan, many_ranks(own->ranks));
    if (status == KEEL_OK && !own->config_json)
        status = command->json ? print_json(plan, own->dump) : print_text(plan, own->dump);
    if (status == KEEL_OK && !own->config_json)
        tell_limit(plan->axes.seats);
    int code = status == KEEL_OK ? 0 : keel_command_report(command->set, status);
    unmake(plan);
    keel_free(plan);
    return code;
}

static const struct keel_command_option options[] = {
    {"--ranks", "N", KEEL_COMMAND_TEXT, offsetof(struct own, ranks),
     "ranks that share the job (cluster.ranks); of a plan alone, also more than a run can have, which is "
     "4096"},
    {"--memory", "BYTES", KEEL_COMMAND_TEXT, offsetof(struct own, memory),
     "that a rank may use (parallel.memory): plans that do not fit say what they lack"},
    {"--set", "section.key=value", KEEL_COMMAND_TEXTS, offsetof(struct own, set),
     "override any key of the job file; may be repeated"},
    {"--config-json", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, config_json),
     "instead of all that the config.json that Hugging Face's programs want beside exported weights"},
    {"--dump", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, dump), "each rank's actions too, one a line"},
    {.name = NULL}};

static const struct keel_command_kind plan_kind = {
    .name = "plan",
    .operands = "JOB.conf",
    .operands_min = 1,
    .operands_max = 1,
    .summary = "say what a step of a job will be: memory, tiles, sums, and each rank's actions",
    .details =
        "Reads the job and its data, and opens no device: the graph is compiled as for an accelerator.\n"
        "Plans are all that parallel.data, tensor and zero allow for so many ranks; seats of the first are\n"
        "listed, and what is exchanged by it; and the plan of a run for each number of its ranks that are "
        "left,\n"
        "with the number by which its views name it. Actions are those of the first plan, where a run can\n"
        "have so many ranks; with slices rank i is seat i.\n"
        "CPUs leave out fusions that do not pay there, so their activations differ a little.\n"
        "Accumulators hold the gradients of later uses of a parameter, such as of a tied table.\n"
        "A piece is a bucket of gradients; behind the buckets come the loss and the ranks' records.\n",
    .examples = "  keel plan demo.conf --ranks 4\n"
                "  keel plan demo.conf --ranks 2 --dump\n"
                "  keel plan my.conf --ranks 64 --memory 16000000000\n"
                "  keel plan my.conf --set model.width=1024 --json | jq .memory_bytes\n"
                "  keel plan runs/llama-demo/job.conf --config-json >hf/config.json\n",
    .options = options,
    .run = run};
static const struct keel_command_kind *const kinds[] = {&plan_kind};
static const struct keel_command_set set = {.name = "keel", .kinds = kinds, .kind_count = 1};

int keel_plan_main(int argc, char **argv)
{
    return keel_command_main(&set, argc + 1,
                             argv - 1); /* main's own words, of which ours begins with "plan" */
}
