/* worker.c - the life of a worker: set up, say READY, then one view after the other.
 *
 *     set up -> READY -> [ wait for a view -> join it -> run steps ]* -> last snapshot, sample -> DONE
 *
 * A view ends when a newer one arrives (the inbox revokes the group), a peer is lost, or a wait times
 * out; the worker then says whom it misses and waits for the next view. Its process, device context and
 * compiled kernels outlive all views. */
#include "worker.h"
#include "secret.h"
#include "slow_watch.h"
#include "worker_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <keel/board.h>
#include <keel/clock.h>
#include <keel/command.h>
#include <keel/disk.h>
#include <keel/health.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <keel/quarantine.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HOST_NAME_BYTES = 65, TRACED_COMMANDS = 16384 };

/* ---- arguments ----------------------------------------------------------------------------------------- */

static enum keel_status take_resume(struct keel_worker *worker, const char *text)
{
    char *end;
    if (strncmp(text, "auto", 4) == 0 && (text[4] == '\0' || text[4] == ':')) {
        struct keel_worker_tiers *tiers = &worker->tiers;
        worker->resume = KEEL_RESUME_AUTO;
        tiers->has_records = text[4] == ':';
        tiers->records = tiers->has_records ? strtoull(text + 5, &end, 10) : 0;
        if (tiers->has_records && *end == ':') { /* else as an earlier --resume said */
            tiers->has_committed = true;
            tiers->committed = strtoull(end + 1, NULL, 10);
        }
    } else if (strcmp(text, "none") == 0)
        worker->resume = KEEL_RESUME_NONE;
    else {
        worker->resume = KEEL_RESUME_STEP;
        worker->resume_step = strtoull(text, &end, 10);
        if (*text < '0' || *text > '9' || *end != '\0')
            return keel_fail(KEEL_INVALID, "--resume %s: auto, none or a step is wanted", text);
    }
    return KEEL_OK;
}

static enum keel_status add_drill(struct keel_drill_plan *plan, const char *text)
{
    if (plan->count == KEEL_DRILLS_MAX)
        return keel_fail(KEEL_LIMIT, "more than %d drills", KEEL_DRILLS_MAX);
    KEEL_TRY(keel_drill_parse(text, &plan->drills[plan->count]));
    plan->count++;
    return KEEL_OK;
}

enum taken { NODE, LOCAL, INCARNATION, HOSTS, DRILL, RESUME };

static enum keel_status take_option(void *own, const struct keel_command_option *option, char *value)
{
    struct keel_worker *worker = own;
    switch ((enum taken)option->offset) {
    case NODE:
        worker->node = (uint32_t)strtoul(value, NULL, 10);
        break;
    case LOCAL:
        worker->local = (uint32_t)strtoul(value, NULL, 10);
        break;
    case INCARNATION:
        worker->incarnation = (uint32_t)strtoul(value, NULL, 10);
        break;
    case HOSTS:
        worker->host_count = (uint32_t)strtoul(value, NULL, 10);
        break;
    case DRILL:
        return add_drill(&worker->drills, value);
    case RESUME:
        return take_resume(worker, value);
    }
    return KEEL_OK;
}

#define INTO(field) offsetof(struct keel_worker, field)
static const struct keel_command_option worker_options[] = {
    {"--dir", "DIR", KEEL_COMMAND_TEXT, INTO(directory), NULL},
    {"--store", "DIR", KEEL_COMMAND_TEXT, INTO(store_path), NULL},
    {"--address", "ADDRESS", KEEL_COMMAND_TEXT, INTO(address), NULL},
    {"--node", "N", KEEL_COMMAND_CALL, NODE, NULL},
    {"--local", "N", KEEL_COMMAND_CALL, LOCAL, NULL},
    {"--incarnation", "N", KEEL_COMMAND_CALL, INCARNATION, NULL},
    {"--hosts", "N", KEEL_COMMAND_CALL, HOSTS, NULL},
    {"--drill", "SPEC", KEEL_COMMAND_CALL, DRILL, NULL},
    {"--resume", "WHAT", KEEL_COMMAND_CALL, RESUME, NULL},
    {"--dump-graph", "DIR", KEEL_COMMAND_TEXT, INTO(dump_graph), NULL},
    {"--passes-off", "LIST", KEEL_COMMAND_TEXT, INTO(passes_off), NULL},
    {"--trace-device", "DIR", KEEL_COMMAND_TEXT, INTO(trace_device), NULL},
    {.name = NULL},
};

static enum keel_status parse_arguments(struct keel_worker *worker, int argc, char **argv)
{
    struct keel_command_words words = {
        .options = worker_options, .own = worker, .take = take_option, .operands_max = 1};
    KEEL_TRY(keel_command_read(&words, argc, argv));
    if (words.operand_count == 0 || worker->directory == NULL)
        return keel_fail(KEEL_INVALID, "keel worker: is started by an agent; use keel run");
    worker->drills.directory = worker->directory;
    KEEL_TRY(keel_job_load(words.operands[0], NULL, 0, &worker->job));
    /* By --resume a run begins, and this one has begun. Who needs to know how far it came is told so by
     * the agent, behind that. */
    if (worker->incarnation > KEEL_WORKER_FIRST_INCARNATION && !keel_job_has_local_snapshots(&worker->job)) {
        worker->resume = KEEL_RESUME_AUTO;
        worker->tiers.has_records = worker->tiers.has_committed = false;
    }
    return KEEL_OK;
}

/* Send a line for events.jsonl; takes the reference of `note`. */
static void send_note(struct keel_worker *worker, json_t *note)
{
    struct keel_link_message message = {.kind = KEEL_LINK_NOTE};
    size_t bytes =
        note != NULL ? json_dumpb(note, message.as.text, sizeof message.as.text - 1, JSON_COMPACT) : 0;
    json_decref(note);
    if (bytes > 0 && bytes < sizeof message.as.text)
        keel_inbox_say(&worker->inbox, &message);
}

/* ---- set-up -------------------------------------------------------------------------------------------- */

/* Below snapshot.local one directory for each node; what the run's own directory has may be gone on from. */
static enum keel_status open_local_store(struct keel_worker *worker, const char *root)
{
    const struct keel_job *job = &worker->job;
    const char *shared = job->snapshot_store[0] != '\0' ? job->snapshot_store
                         : keel_path_exists(root)       ? root
                                                        : NULL;
    char own[KEEL_PATH_BYTES], name[32];
    snprintf(name, sizeof name, "node-%u", worker->node);
    KEEL_TRY(keel_path_join(own, job->snapshot_local, name));
    const struct keel_store_config config = {
        .root = own, .run = job->name, .create = true, .key_file = keel_job_key_file(job)};
    enum keel_status status = keel_store_open(&config, &worker->store);
    if (status != KEEL_OK) {
        char why[KEEL_DETAIL_BYTES];
        snprintf(why, sizeof why, "%.300s", keel_detail());
        return keel_fail(status,
                         "snapshot.local = %.150s: %s; give a directory that node %u's host can write",
                         job->snapshot_local, why, worker->node);
    }
    return keel_worker_tiers_open(worker, shared);
}

static enum keel_status open_store_at(struct keel_worker *worker, const char *root)
{
    if (keel_job_has_local_snapshots(&worker->job))
        return open_local_store(worker, root);
    if (!keel_job_takes_snapshots(&worker->job) && !keel_path_exists(root))
        return KEEL_OK;
    struct keel_store_config config = {
        .root = root, .run = worker->job.name, .create = true, .key_file = keel_job_key_file(&worker->job)};
    return keel_store_open(&config, &worker->store);
}

static void tell_slow_store(void *context, const char *text)
{
    send_note(context, json_pack("{s:s, s:i, s:s}", "event", "store-slow", "step", 0, "detail", text));
}

static enum keel_status open_store(struct keel_worker *worker)
{
    char root[KEEL_PATH_BYTES];
    if (worker->store_path != NULL)
        snprintf(root, sizeof root, "%s", worker->store_path);
    else
        KEEL_TRY(keel_path_join(root, worker->directory, "ckpt"));
    struct keel_slow_watch watch = {
        .path = keel_job_has_local_snapshots(&worker->job) ? worker->job.snapshot_local : root,
        .move = "bring it back, and this worker begins; or end the run, and give another",
        .tell = tell_slow_store,
        .context = worker};
    keel_slow_begin(&watch);
    const enum keel_status status = open_store_at(worker, root);
    keel_slow_end(&watch);
    return status;
}

/* What was written to DIR before, by this worker or another, may be of an earlier life: it is replaced. */
static void write_trace(struct keel_worker *worker)
{
    char name[32], path[KEEL_PATH_BYTES];
    if (worker->trace_device == NULL || worker->device == NULL)
        return;
    snprintf(name, sizeof name, "%u.%u.json", worker->node, worker->local);
    enum keel_status status = keel_mkdir_all(worker->trace_device);
    if (status == KEEL_OK)
        status = keel_path_join(path, worker->trace_device, name);
    if (status == KEEL_OK)
        status = keel_device_trace_write(worker->device, path);
    if (status != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "--trace-device: %s", keel_detail());
}

/* Workers of this run on this machine, which share its processors evenly. A node that dialed in has it to
 * itself, or to the nodes that cluster.hosts puts there. */
static uint32_t workers_here(const struct keel_worker *worker)
{
    const struct keel_job *job = &worker->job;
    const uint32_t nodes = keel_job_node_count(job), hosts = worker->host_count;
    const uint32_t on_node = job->nodes > 0 ? job->ranks / job->nodes : 1;
    if (worker->address == NULL)
        return job->ranks + job->spares;
    return on_node * (hosts > 0 && hosts < nodes ? (nodes + hosts - 1) / hosts : 1);
}

static enum keel_status open_device(struct keel_worker *worker)
{
    uint32_t processes = workers_here(worker), cpus = keel_cpu_count();
    struct keel_board_options options = {.threads = cpus > processes ? cpus / processes : 1};
    char selector[KEEL_SELECTOR_BYTES];
    keel_job_device(&worker->job, worker->node, worker->local, selector);
    KEEL_TRY(keel_board_open(selector, &options, &worker->board));
    worker->device = keel_board_device(worker->board);
    if (worker->trace_device != NULL)
        KEEL_TRY(keel_device_trace_start(worker->device, TRACED_COMMANDS));
    return keel_quarantine_admit(keel_device_info(worker->device), &worker->probation);
}

struct keel_sdc_check_config keel_worker_screen(struct keel_worker *worker)
{
    bool drill = false;
    for (uint32_t i = 0; i < worker->drills.count; i++)
        drill = drill || worker->drills.drills[i].head.kind == KEEL_DRILL_FLIP;
    return (struct keel_sdc_check_config){.drill = drill,
                                          .device = worker->device,
                                          .kernels = keel_trainer_kernels(worker->trainer),
                                          .run = worker->job.name,
                                          .directory = worker->directory,
                                          .node = worker->node,
                                          .local = worker->local,
                                          .limit_ns = worker->stall_ns,
                                          .hangs = &worker->hangs};
}

/* Every golden operation once, before the board is trusted with anything. Of boards of several kinds that
 * compute other bits than one another, their hashes say which is wrong. */
static enum keel_status open_screen(struct keel_worker *worker)
{
    const bool mixed = strchr(worker->job.device, ',') != NULL;
    if (worker->job.screen_every == 0 && !worker->probation && !mixed)
        return KEEL_OK;
    struct keel_sdc_check_config config = keel_worker_screen(worker);
    KEEL_TRY(keel_sdc_check_create(&config, &worker->screen));
    KEEL_TRY(keel_sdc_check_admit(worker->screen));
    if (!worker->probation)
        return KEEL_OK;
    keel_worker_note(worker, "board-screened", worker->next_step, KEEL_OK,
                     "a number had changed in this board's memory in an earlier run: it passed all golden "
                     "operations");
    if (keel_quarantine_passed(keel_device_info(worker->device)) != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "the next run screens this board again: %s", keel_detail());
    return KEEL_OK;
}

/* What the golden operations between the steps were, and their share of the time. */
static void note_screens(struct keel_worker *worker)
{
    if (worker->job.screen_every == 0 || worker->screen == NULL || worker->stepped_ns == 0)
        return;
    struct keel_sdc_check_cost cost = keel_sdc_check_cost(worker->screen);
    char detail[128];
    snprintf(detail, sizeof detail, "%" PRIu64 " golden operations, %.2f%% of the time of the steps",
             cost.operations, 100.0 * (double)cost.spent_ns / (double)worker->stepped_ns);
    keel_worker_note(worker, "screened", worker->next_step, KEEL_OK, detail);
}

struct keel_endpoint_config keel_worker_fabric(const struct keel_job *job, const uint8_t *key)
{
    return (struct keel_endpoint_config){.key = key, .seal_payload = job->seal_payload};
}

static enum keel_status open_endpoint(struct keel_worker *worker)
{
    struct keel_secret secret;
    uint8_t key[KEEL_SECRET_BYTES];
    if (worker->job.ranks == 1) /* no view has a second active member: there is nobody to talk to */
        return KEEL_OK;
    if (worker->job.network_costs[0] != '\0')
        KEEL_TRY(keel_costs_read(worker->job.network_costs, &worker->costs));
    KEEL_TRY(keel_secret_load(worker->directory, false, &secret));
    keel_secret_derive(&secret, "fabric", key);
    keel_secret_wipe(&secret);
    struct keel_endpoint_config config = keel_worker_fabric(&worker->job, key);
    config.node = worker->address;
    enum keel_status status = keel_endpoint_open(&config, &worker->endpoint);
    explicit_bzero(key, sizeof key);
    return status;
}

/* Those of this worker's place. */
static void take_slices(const struct keel_worker *worker, uint32_t *out_first, uint32_t *out_count)
{
    const struct keel_worker_axes *axes = &worker->axes;
    const uint32_t slices = worker->job.tensor;
    *out_first = keel_axes_slice(slices, axes->tensor, axes->place);
    *out_count = keel_axes_slice(slices, axes->tensor, axes->place + 1) - *out_first;
}

/* Slices that all workers of a number on their node warm up, whatever they have in a view: so their boards
 * can be compared. */
static void guess_place(struct keel_worker *worker, struct keel_trainer_config *config)
{
    struct keel_worker_axes *axes = &worker->axes;
    axes->tensor = keel_axes_tensor(worker->job.ranks, worker->job.parallel.tensor);
    if (axes->tensor == 1)
        return;
    axes->place = worker->local % axes->tensor;
    axes->warm = axes->place + 1;
    take_slices(worker, &config->tensor_first, &config->tensor_count);
}

/* Those that it has in its first view, most likely: of the place that its rank has where all begin, for a
 * newcomer gets the place of who was lost (plan/axes.h). Made here, where nobody waits for it; in a view all
 * would. A spare takes any. */
static enum keel_status take_likely_place(struct keel_worker *worker)
{
    struct keel_worker_axes *axes = &worker->axes;
    const struct keel_job *job = &worker->job;
    const uint32_t on_node = job->nodes > 0 ? job->ranks / job->nodes : 1;
    const uint32_t rank = (worker->node - 1) * on_node + worker->local;
    uint16_t warm[KEEL_MEMBERS_MAX];
    bool stays[KEEL_MEMBERS_MAX];
    uint32_t first, count;
    if (axes->tensor == 1 || rank >= job->ranks)
        return KEEL_OK;
    for (uint32_t r = 0; r < job->ranks; r++)
        warm[r] = (uint16_t)(r % on_node % axes->tensor);
    memset(stays, 0, job->ranks * sizeof stays[0]);
    keel_axes_find(warm, stays, job->ranks, axes->tensor, &axes->map);
    axes->place = axes->map.place[rank];
    take_slices(worker, &first, &count);
    return keel_trainer_cut(worker->trainer, first, count);
}

/* Build the trainer and run it once. Workers that start together would all compile the same kernels: the
 * first one does, and the others come when the driver's cache has them. */
static enum keel_status build_trainer(struct keel_worker *worker)
{
    char path[KEEL_PATH_BYTES], name[32], graphs[KEEL_PATH_BYTES];
    int fd;
    struct keel_trainer_config config = {.job = &worker->job,
                                         .data = worker->data,
                                         .device = worker->device,
                                         .kernels = keel_board_kernels(worker->board),
                                         .passes_off = worker->passes_off,
                                         .stall_ns = worker->stall_ns,
                                         .hangs = &worker->hangs,
                                         .progress = &worker->inbox.progress,
                                         .phase = {.at = keel_worker_drill, .context = worker}};
    guess_place(worker, &config);
    if (worker->dump_graph != NULL) {
        snprintf(name, sizeof name, "%u.%u", worker->node, worker->local);
        KEEL_TRY(keel_path_join(graphs, worker->dump_graph, name));
        config.dump_directory = graphs;
    }
    KEEL_TRY(keel_path_join(path, worker->directory, "kernels.lock"));
    bool first = keel_file_lock(path, false, 0, &fd) == KEEL_OK;
    if (!first) {
        KEEL_TRY(keel_file_lock(path, true, keel_deadline_after_ns(worker->stall_ns), &fd));
        keel_file_unlock(fd);
    }
    enum keel_status status = keel_trainer_create(&config, &worker->trainer);
    if (status == KEEL_OK)
        status = keel_trainer_warm(worker->trainer);
    if (first)
        keel_file_unlock(fd);
    return status == KEEL_OK ? take_likely_place(worker) : status;
}

/* The identity says native, and neither on which type of board nor who computes the products, on which the
 * bits depend: that is written down by whoever begins the run, in DIR/native, and others are refused. Of
 * several that begin at once with unlike boards one is refused here, or by its first update (worker_sync.c).
 */
static enum keel_status settle_native(struct keel_worker *worker)
{
    const struct keel_kernels *kernels = keel_trainer_kernels(worker->trainer);
    char provider[KEEL_PROVIDER_TEXT_BYTES], path[KEEL_PATH_BYTES], *there;
    char mine[KEEL_DEVICE_NAME_BYTES + KEEL_PROVIDER_TEXT_BYTES + 16];
    size_t bytes;
    if (keel_kernels_class(kernels) != KEEL_NATIVE)
        return KEEL_OK;
    keel_kernels_provider(kernels, provider);
    snprintf(mine, sizeof mine, "%s, products by %s", keel_device_info(worker->device)->name, provider);
    KEEL_TRY(keel_path_join(path, worker->directory, "native"));
    if (!keel_path_exists(path))
        KEEL_TRY(keel_file_replace(path, mine, strlen(mine), 0666));
    KEEL_TRY(keel_file_read(path, sizeof mine, &there, &bytes));
    const bool same = strcmp(there, mine) == 0;
    enum keel_status status = KEEL_OK;
    if (!same)
        status = keel_fail(
            KEEL_MISMATCH,
            "job.numerics = native has the same bits on one type of board alone: %.200s has the run of "
            "%.200s, and this is %.200s; give boards of that type (cluster.device), or another --out",
            worker->directory, there, mine);
    keel_free(there);
    if (same)
        keel_worker_note(worker, "native", worker->next_step, KEEL_OK, mine);
    return status;
}

/* Where this rank computes, and what a step costs: so that a report can name the board of a rank that was
 * lost, and say what share of the boards' peak was reached. */
static void note_board(struct keel_worker *worker)
{
    char host[HOST_NAME_BYTES] = "";
    struct keel_engine_facts facts;
    const struct keel_job *job = &worker->job;
    const struct keel_device_info *info = keel_device_info(worker->device);
    const uint64_t per_step = (uint64_t)job->microbatches * job->shards;
    keel_engine_facts(keel_trainer_engine(worker->trainer), &facts);
    if (gethostname(host, sizeof host - 1) != 0)
        host[0] = '\0';
    json_t *note = json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I}", "event", "board", "host", host,
                             "board", info->name, "device", info->selector, "identity", info->identity,
                             "parameters", (json_int_t)facts.parameters, "flops_per_step",
                             (json_int_t)facts.flops_per_microbatch * (json_int_t)per_step, "peak_flops_s",
                             (json_int_t)keel_board_file(worker->board)->peak_flops_s);
    send_note(worker, note);
}

/* Who joins a run that began long ago must read what the others read. */
static enum keel_status check_identity(const struct keel_worker *worker)
{
    char path[KEEL_PATH_BYTES], mine[KEEL_IDENTITY_BYTES], *theirs;
    size_t bytes;
    KEEL_TRY(keel_path_join(path, worker->directory, "identity"));
    KEEL_TRY(keel_file_read(path, KEEL_IDENTITY_BYTES, &theirs, &bytes));
    keel_job_identity(&worker->job, keel_data_digest(worker->data), mine);
    bool same = strcmp(theirs, mine) == 0;
    keel_free(theirs);
    if (!same)
        return keel_fail(KEEL_MISMATCH,
                         "data.path = %s%s%s: is not what the run began with; put it back, then give the "
                         "same command again",
                         worker->job.path, keel_job_plugin(&worker->job) != NULL ? ", or model.kind = " : "",
                         worker->job.plugin_path);
    return KEEL_OK;
}

/* An element of a part of the state that this rank owns. */
static enum keel_status find_own(const struct keel_worker *worker, enum keel_state_part part,
                                 struct keel_state_piece *out)
{
    const bool all = worker->job.parallel.zero <= KEEL_ZERO_NONE;
    struct keel_extents list = {.at = NULL};
    uint32_t count;
    const uint32_t index = keel_worker_index(worker, &count);
    enum keel_status status =
        keel_trainer_share_extents(worker->trainer, all ? 0 : index, all ? 1 : count, 1 << part, &list);
    if (status == KEEL_OK && list.count == 0)
        status = keel_fail(KEEL_NOT_FOUND, "it owns nothing of it");
    if (status == KEEL_OK)
        *out = keel_trainer_piece_of(worker->trainer, &list.at[0]);
    out->count = 1;
    keel_free(list.at);
    return status;
}

/* For drills: memory that is bad, of the board, or of the host where it keeps the loss. Of the mantissa the
 * highest bit, of a moment one of the exponent: no rounding of the update hides it. */
static void flip_bit(void *context, enum keel_drill_phase phase)
{
    struct keel_worker *worker = context;
    struct keel_state_piece one = {.tile = 0, .part = KEEL_STATE_WEIGHTS, .count = 1};
    struct keel_queue *queue = NULL;
    uint32_t bits = 0, bit = UINT32_C(1) << 22;
    if (phase == KEEL_AT_COMMIT) {
        worker->loss_bits ^= bit;
        return;
    }
    enum keel_status status = KEEL_OK;
    if (phase == KEEL_AT_REDUCE) {
        status = find_own(worker, KEEL_STATE_M, &one);
        bit = UINT32_C(1) << 29;
    } else if (keel_worker_gathers(worker)) {
        status = find_own(worker, KEEL_STATE_WEIGHTS, &one);
    }
    if (status == KEEL_OK)
        status = keel_queue_create(worker->device, &queue);
    if (status == KEEL_OK) {
        status = keel_trainer_read_piece(worker->trainer, queue, &one, 0, sizeof bits, &bits);
        keel_queue_destroy(queue);
    }
    bits ^= bit;
    if (status == KEEL_OK)
        status = keel_trainer_write_piece(worker->trainer, &one, 0, sizeof bits, &bits);
    if (status != KEEL_OK)
        keel_log(KEEL_LOG_ERROR, "the drill could not flip a bit: %s", keel_detail());
}

/* For drills: a board that is bad from now on. */
static void spoil_board(void *context, const char *faults)
{
    struct keel_worker *worker = context;
    if (keel_device_inject(worker->device, faults) != KEEL_OK)
        keel_log(KEEL_LOG_ERROR, "the drill could not spoil the board: %s", keel_detail());
}

static enum keel_status move_and_remove(const struct keel_worker *worker)
{
    char name[32], own[KEEL_PATH_BYTES], gone[KEEL_PATH_BYTES];
    snprintf(name, sizeof name, "node-%u", worker->node);
    KEEL_TRY(keel_path_join(own, worker->job.snapshot_local, name));
    snprintf(name, sizeof name, "wiped-%u", worker->node);
    KEEL_TRY(keel_path_join(gone, worker->job.snapshot_local, name));
    KEEL_TRY(keel_remove_tree(gone)); /* of a disk that was wiped before, and could not be removed */
    if (keel_disk_rename(AT_FDCWD, own, AT_FDCWD, gone) != 0)
        return keel_fail_errno(errno, "%s: cannot be renamed", own);
    if (keel_remove_tree(gone) != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "what was wiped stays in %s: %s", gone, keel_detail());
    return KEEL_OK;
}

/* For drills: the disk of this node is another from now on. All of it goes at once: were it removed file by
 * file, one that another thread makes meanwhile would end that, and leave an older snapshot whole. */
static void wipe_node(void *context)
{
    const struct keel_worker *worker = context;
    if (move_and_remove(worker) != KEEL_OK)
        keel_log(KEEL_LOG_ERROR, "the drill could not wipe node %u: %s", worker->node, keel_detail());
}

static enum keel_status set_up(struct keel_worker *worker)
{
    worker->drills.wipe = wipe_node;
    worker->drills.flip = flip_bit;
    worker->drills.spoil = spoil_board;
    worker->drills.context = worker;
    keel_drill_prepare(&worker->drills);
    KEEL_TRY(keel_data_open(&worker->job, &worker->data));
    KEEL_TRY(check_identity(worker));
    KEEL_TRY(open_device(worker));
    KEEL_TRY(build_trainer(worker));
    KEEL_TRY(settle_native(worker));
    note_board(worker);
    KEEL_TRY(open_screen(worker));
    KEEL_TRY(open_store(worker));
    return open_endpoint(worker);
}

static void say_ready(struct keel_worker *worker)
{
    struct keel_link_message message = {.kind = KEEL_LINK_READY};
    if (worker->endpoint != NULL)
        keel_endpoint_address(worker->endpoint, &message.as.address);
    keel_inbox_say(&worker->inbox, &message);
}

void keel_worker_note(struct keel_worker *worker, const char *event, uint64_t step, enum keel_status status,
                      const char *detail)
{
    send_note(worker, json_pack("{s:s, s:I, s:i, s:s, s:s}", "event", event, "step", (json_int_t)step, "rank",
                                (int)worker->rank, "status", keel_status_name(status), "detail", detail));
}

void keel_worker_note_outvoted(struct keel_worker *worker, const struct keel_trainer_vote *vote)
{
    char digest[24], loss[12];
    snprintf(digest, sizeof digest, "%016" PRIx64, vote->digest);
    snprintf(loss, sizeof loss, "%08" PRIx32, vote->loss_bits);
    json_t *note =
        json_pack("{s:s, s:I, s:i, s:s, s:s}", "event", "rank-outvoted", "step", (json_int_t)vote->step,
                  "rank", (int)vote->rank, "digest", digest, "detail", vote->evidence);
    if (note != NULL && vote->has_loss)
        json_object_set_new(note, "loss_bits", json_string(loss));
    send_note(worker, note);
}

void keel_worker_note_memory(struct keel_worker *worker)
{
    struct keel_engine_facts facts;
    keel_engine_facts(keel_trainer_engine(worker->trainer), &facts);
    json_t *note =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "event", "memory", "view",
                  (json_int_t)worker->view.epoch, "planned_bytes", (json_int_t)facts.planned_peak_bytes,
                  "device_bytes", (json_int_t)keel_device_stats(worker->device).live_bytes, "shared_bytes",
                  (json_int_t)keel_trainer_shared_bytes(worker->trainer), "table_bytes",
                  (json_int_t)keel_trainer_table_bytes(worker->trainer), "activation_bytes",
                  (json_int_t)facts.activation_bytes);
    send_note(worker, note);
}

void keel_worker_note_scores(struct keel_worker *worker, const struct keel_scores *scores)
{
    json_t *note = json_pack("{s:s, s:I, s:i}", "event", "evaluated", "step", (json_int_t)worker->next_step,
                             "rank", (int)worker->rank);
    if (note != NULL && scores->has_loss)
        json_object_set_new(note, "val_loss", json_real((double)scores->loss));
    if (note != NULL && scores->has_accuracy)
        json_object_set_new(note, "val_accuracy", json_real((double)scores->accuracy));
    send_note(worker, note);
}

/* ---- lives --------------------------------------------------------------------------------------------- */

/* Is this how a view ends, so that the next one is worth waiting for? */
static bool ends_view(enum keel_status status)
{
    return status == KEEL_REVOKED || status == KEEL_PEER_LOST || status == KEEL_TIMEOUT;
}

/* A peer's messages are changed on their way here: its connection is as good as gone. Other data that is
 * damaged is nobody's loss. */
static bool is_damaged_connection(const struct keel_worker *worker, enum keel_status status)
{
    uint32_t position;
    return status == KEEL_CORRUPT && keel_worker_missed(worker, &position);
}

/* Say who is missed. A deadline that passed while nobody is missed was this worker's own: its device or its
 * disk hangs, and it ends, so that the others can go on without it. */
static enum keel_status accuse(struct keel_worker *worker, enum keel_status status)
{
    uint32_t position;
    bool missed = keel_worker_missed(worker, &position);
    if (status == KEEL_TIMEOUT && !missed) {
        char detail[KEEL_DETAIL_BYTES];
        snprintf(detail, sizeof detail, "%s", keel_detail());
        return keel_fail(KEEL_DEVICE_LOST, "nothing moves here, and no peer is missed: %s", detail);
    }
    if (status == KEEL_REVOKED || !missed)
        return status;
    struct keel_link_message message = {.kind = KEEL_LINK_ACCUSE,
                                        .rank = worker->position_rank[position],
                                        .cause =
                                            status == KEEL_TIMEOUT ? KEEL_CAUSE_STUCK : KEEL_CAUSE_CONNECTION,
                                        .value = worker->view.epoch};
    keel_inbox_say(&worker->inbox, &message);
    return status;
}

/* Whether text takes ranks beside this one, which have weights or slices. */
static bool writes_together(const struct keel_worker *worker)
{
    return keel_worker_gathers(worker) || worker->axes.tensor > 1;
}

/* By position 0; where it takes others all do the same, but ranks of no complete data position, which give
 * weights. */
static enum keel_status write_sample(struct keel_worker *worker)
{
    const struct keel_axes *map = &worker->axes.map;
    if (worker->job.sample_tokens == 0 || !worker->active ||
        (worker->position != 0 && !writes_together(worker)))
        return KEEL_OK;
    if (worker->axes.tensor > 1 && map->index[worker->position] >= map->data)
        return keel_worker_gathers(worker)
                   ? keel_trainer_give_weights(worker->trainer, worker->job.sample_tokens, KEEL_AT_TEXT)
                   : KEEL_OK;
    char path[KEEL_PATH_BYTES], *text;
    size_t bytes;
    KEEL_TRY(keel_trainer_sample(worker->trainer, worker->job.sample_tokens, &text, &bytes));
    /* Of a node with a directory of its own, into the one that the launcher sees. */
    const char *directory = worker->store_path != NULL ? worker->store_path : worker->directory;
    enum keel_status status = keel_path_join(path, directory, "sample.txt");
    if (status == KEEL_OK && worker->position == 0)
        status = keel_file_replace(path, text, bytes, 0666);
    keel_free(text);
    return status;
}

/* Nobody leaves the view before all have written their part of the last snapshot and of the text: who leaves
 * earlier takes along what others wait for, and what they would be healed from. A rank may write for one
 * deadline, and so for each token. */
static enum keel_status end_together(struct keel_worker *worker)
{
    const struct keel_collective all = {.kind = KEEL_BARRIER, .sequence = KEEL_SEQUENCE_END};
    keel_worker_snapshot_poll(worker, true);
    KEEL_TRY(keel_worker_guard_broken(worker));
    keel_worker_guard_drain(worker);
    KEEL_TRY(write_sample(worker));
    if (worker->group == NULL)
        return KEEL_OK;
    const uint64_t patience_ns = worker->stall_ns * (2 + (uint64_t)worker->job.sample_tokens);
    return keel_group_run(worker->group, &all, keel_deadline_after_ns(patience_ns));
}

/* Others have begun the run: should it ever be begun here, then from what they left, however far they came.
 */
static void wait_for_others(struct keel_worker *worker)
{
    worker->resume = KEEL_RESUME_AUTO;
    worker->tiers.has_records = false;
}

/* This rank has begun the run, however that was asked for, and goes back to nothing behind what it saw of it.
 */
static void note_begun(struct keel_worker *worker)
{
    struct keel_worker_tiers *tiers = &worker->tiers;
    if (worker->resume == KEEL_RESUME_AUTO && !tiers->has_records)
        return;
    worker->resume = KEEL_RESUME_AUTO;
    tiers->records =
        tiers->has_records && tiers->records > worker->next_step ? tiers->records : worker->next_step;
    tiers->has_records = true;
}

static enum keel_status live_in_view(struct keel_worker *worker)
{
    enum keel_status status = keel_worker_join_view(worker);
    if (status == KEEL_OK && worker->active)
        note_begun(worker);
    if (worker->committed_ns == 0)
        worker->committed_ns = keel_now_ns(); /* the first step is not charged for set-up */
    if (status == KEEL_OK && worker->active)
        status = keel_worker_run_steps(worker);
    if (status == KEEL_OK && worker->active)
        status = end_together(worker);
    if (is_damaged_connection(worker, status))
        status = KEEL_PEER_LOST;
    if (ends_view(status)) {
        keel_log(KEEL_LOG_INFO, "epoch %" PRIu64 " ends at step %" PRIu64 ": %s", worker->view.epoch,
                 worker->next_step, keel_detail());
        status = accuse(worker, status);
    }
    if (!worker->active)
        wait_for_others(worker);
    enum keel_status left = keel_worker_leave_view(worker);
    return left == KEEL_OK ? status : left;
}

/* Until the job is done or stop is asked for. A spare only waits. */
static enum keel_status live(struct keel_worker *worker)
{
    for (;;) {
        bool stop;
        enum keel_status status;
        do
            status = keel_inbox_wait(&worker->inbox, worker->view.epoch,
                                     keel_deadline_after_ns(worker->stall_ns), &worker->view, &stop);
        while (status == KEEL_TIMEOUT && !worker->active); /* a spare has all the time there is */
        KEEL_TRY(status);
        if (stop)
            return keel_fail(KEEL_INTERRUPTED, "stopped at step %" PRIu64, worker->next_step);
        status = live_in_view(worker);
        if (status == KEEL_OK && worker->active)
            return KEEL_OK;
        if (status == KEEL_INTERRUPTED || keel_inbox_stopping(&worker->inbox))
            return keel_fail(KEEL_INTERRUPTED, "stopped at step %" PRIu64, worker->next_step);
        if (status != KEEL_OK && !ends_view(status))
            return status;
    }
}

/* Of who was stopped: the snapshot of where it was, unless one was begun there; one that was due may have
 * been passed over. */
static void save_stopped(struct keel_worker *worker)
{
    keel_worker_snapshot_poll(worker, true);
    if (worker->tiers.near != NULL) /* they took it in the view that is over, or cannot */
        return;
    if (!worker->active || !worker->has_state || worker->store == NULL || worker->next_step == 0 ||
        worker->next_step == worker->job.steps || worker->job.snapshot_every == 0 ||
        keel_worker_snapshot_has_begun(worker))
        return;
    keel_worker_snapshot_begin(worker, false);
    keel_worker_snapshot_poll(worker, true);
}

static enum keel_status work(struct keel_worker *worker)
{
    KEEL_TRY(set_up(worker));
    say_ready(worker);
    enum keel_status status = live(worker);
    if (status != KEEL_INTERRUPTED)
        return status;
    save_stopped(worker);
    return KEEL_OK;
}

static void tear_down(struct keel_worker *worker)
{
    keel_worker_snapshot_end(worker);
    keel_worker_tiers_close(worker);
    write_trace(worker);
    if (worker->endpoint != NULL)
        keel_endpoint_close(worker->endpoint);
    keel_free(worker->shares.all);
    keel_free(worker->shares.mine);
    keel_free(worker->shares.counts);
    if (worker->store != NULL)
        keel_store_close(worker->store);
    keel_sdc_check_destroy(worker->screen);
    keel_trainer_destroy(worker->trainer);
    keel_board_close(worker->board);
    keel_data_close(worker->data);
}

static struct keel_link_message end_message(enum keel_status status, const char *detail)
{
    struct keel_link_message message = {.kind = status == KEEL_OK ? KEEL_LINK_DONE : KEEL_LINK_FAILED,
                                        .value = (uint64_t)status};
    if (status != KEEL_OK)
        snprintf(message.as.text, sizeof message.as.text, "%s", detail);
    return message;
}

/* On the inbox's thread. The thread that uses the device may be inside the driver for good, so nothing is
 * closed: the process ends, and the others go on without it. */
static void end_if_hung(void *context)
{
    struct keel_worker *worker = context;
    struct keel_hang hang;
    char last[160] = "", detail[KEEL_DETAIL_BYTES];
    if (!keel_hang_watch_tick(&worker->hangs, keel_now_ns(), &hang))
        return;
    if (hang.section != KEEL_HANG_WARM)
        keel_queue_last(keel_engine_queue(keel_trainer_engine(worker->trainer)), last, sizeof last);
    const struct keel_device_info *info = keel_device_info(worker->device);
    snprintf(detail, sizeof detail,
             "board %s (%s) hangs: %s did not come back in %.1f s, the longest before took %.2f s%s%s",
             info->selector, info->name, keel_hang_section_name(hang.section), (double)hang.waited_ns / 1e9,
             (double)hang.longest_ns / 1e9, last[0] != '\0' ? "; last: " : "", last);
    keel_log(KEEL_LOG_ERROR, "%s", detail);
    keel_worker_note(worker, "worker-failed", worker->next_step, KEEL_DEVICE_LOST, detail);
    const struct keel_link_message end = end_message(KEEL_DEVICE_LOST, detail);
    keel_inbox_say_briefly(&worker->inbox, &end); /* peers wait for this process to end */
    _exit(keel_status_exit_code(KEEL_DEVICE_LOST));
}

int keel_worker_main(int argc, char **argv)
{
    keel_link_ignore_signals();
    struct keel_worker *worker;
    if (keel_alloc(1, sizeof *worker, &worker) != KEEL_OK)
        return keel_status_exit_code(KEEL_NO_MEMORY);
    enum keel_status status = parse_arguments(worker, argc, argv);
    if (status != KEEL_OK) {
        fprintf(stderr, "keel: %s\n", keel_detail());
        keel_free(worker);
        return keel_status_exit_code(status);
    }
    char name[32];
    snprintf(name, sizeof name, "worker %u.%u", worker->node, worker->local);
    keel_log_set_name(name);
    struct keel_times times;
    keel_times_derive((uint64_t)(worker->job.timeout_s * 1e9), &times);
    worker->stall_ns = times.silence_ns * KEEL_STALL_TIMEOUTS;
    keel_hang_watch_init(&worker->hangs, times.silence_ns, worker->stall_ns, times.beat_ns, keel_now_ns());
    status = keel_inbox_start(&worker->inbox, KEEL_LINK_FD, &times, end_if_hung, worker);
    if (status == KEEL_OK) {
        status = work(worker);
        char detail[KEEL_DETAIL_BYTES];
        snprintf(detail, sizeof detail, "%s", keel_detail());
        if (status != KEEL_OK)
            keel_worker_note(worker, "worker-failed", worker->next_step, status, detail);
        note_screens(worker);
        tear_down(worker);
        const struct keel_link_message end = end_message(status, detail);
        keel_inbox_say(&worker->inbox, &end);
        keel_inbox_end(&worker->inbox);
    }
    keel_free(worker);
    return keel_status_exit_code(status);
}
