/* trained.c - see trained.h. */
#include "trained.h"
#include "plugin_try.h"
#include "worker_internal.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/quarantine.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TRIES_MAX = 16, METER_NS = 100000000 };

/* ---- what an operand names ----------------------------------------------------------------------------- */

/* "step-12.3" */
static bool parse_step(const char *name, uint64_t *step, uint64_t *attempt)
{
    char again[64];
    if (sscanf(name, "step-%" SCNu64 ".%" SCNu64, step, attempt) != 2)
        return false;
    snprintf(again, sizeof again, "step-%" PRIu64 ".%" PRIu64, *step, *attempt);
    return strcmp(name, again) == 0;
}

/* --step */
static enum keel_status read_step(const char *text, struct keel_trained *out)
{
    char name[64];
    out->newest = text == NULL;
    if (text == NULL)
        return KEEL_OK;
    const int length = snprintf(name, sizeof name, "step-%s.0", text);
    return length >= 0 && (size_t)length < sizeof name && parse_step(name, &out->step, &out->attempt)
               ? KEEL_OK
               : keel_fail(KEEL_INVALID, "--step %.40s: a whole number is wanted", text);
}

static enum keel_status see_step(void *context, const char *name)
{
    uint64_t step, attempt;
    if (parse_step(name, &step, &attempt))
        *(bool *)context = true;
    return KEEL_OK;
}

static enum keel_status absolute(const char *path, char out[KEEL_PATH_BYTES])
{
    char *real = realpath(path, NULL);
    const size_t bytes = real != NULL ? strlen(real) + 1 : 0;
    if (bytes > 0 && bytes <= KEEL_PATH_BYTES)
        memcpy(out, real, bytes);
    free(real); /* realpath's own allocation */
    if (bytes == 0)
        return keel_fail(KEEL_NOT_FOUND,
                         "%s: is not there; name a job file, the directory of a run, or a snapshot", path);
    return bytes <= KEEL_PATH_BYTES
               ? KEEL_OK
               : keel_fail(KEEL_LIMIT, "%s: path longer than %d bytes", path, KEEL_PATH_BYTES - 1);
}

/* Where things lie: the store, the run in it, and the job of the run. */
struct place {
    char root[KEEL_PATH_BYTES], home[KEEL_PATH_BYTES]; /* home: of the keel run, if it is one */
    char run[KEEL_JOB_NAME_BYTES];                     /* "": as the job is called */
};

static enum keel_status take_last(const char *path, char parent[KEEL_PATH_BYTES], char *name, size_t room)
{
    const char *slash = strrchr(path, '/');
    KEEL_TRY(keel_path_parent(parent, path));
    const int length = snprintf(name, room, "%s", slash != NULL ? slash + 1 : path);
    return length >= 0 && (size_t)length < room
               ? KEEL_OK
               : keel_fail(KEEL_INVALID, "%s: is no directory of a run's snapshots", path);
}

/* A directory that is called step-N.A is a snapshot, one that holds such is a run, one with a job.conf or
 * ckpt/ that of a keel run, and any other a store. */
static enum keel_status find_place(struct keel_trained *trained, const char *path, struct place *out)
{
    char real[KEEL_PATH_BYTES], inside[KEEL_PATH_BYTES], name[KEEL_PATH_BYTES];
    bool is_run = false;
    KEEL_TRY(absolute(path, real));
    KEEL_TRY(take_last(real, inside, name, sizeof name));
    uint64_t step, attempt;
    if (parse_step(name, &step, &attempt)) {
        if (!trained->newest && trained->step != step)
            return keel_fail(KEEL_INVALID, "%s: is not of step %" PRIu64, path, trained->step);
        trained->newest = false;
        trained->step = step;
        trained->attempt = attempt;
        memcpy(real, inside, sizeof real);
        is_run = true;
    } else {
        KEEL_TRY(keel_dir_list(real, see_step, &is_run));
    }
    if (is_run) {
        KEEL_TRY(take_last(real, out->root, out->run, sizeof out->run));
        return keel_path_parent(out->home, out->root);
    }
    KEEL_TRY(keel_path_join(inside, real, "ckpt"));
    if (!keel_path_exists(inside)) {
        KEEL_TRY(keel_path_join(name, real, "job.conf"));
        if (!keel_path_exists(name)) {
            memcpy(out->root, real, sizeof real);
            return keel_path_parent(out->home, real);
        }
    }
    memcpy(out->root, inside, sizeof inside);
    memcpy(out->home, real, sizeof real);
    return KEEL_OK;
}

static enum keel_status load_job(const struct keel_trained_options *options, const char *path,
                                 struct keel_job *out)
{
    KEEL_TRY(keel_plugin_try_load(path, options->set.at, options->set.count));
    return keel_job_load(path, options->set.at, options->set.count, out);
}

/* What the job file says of the model beside what the directory's does: the directory's counts. */
static void tell_difference(const struct keel_trained *trained, const struct keel_job *given)
{
    char why[KEEL_DETAIL_BYTES];
    struct keel_job there = trained->job;
    there.decay_steps = given->decay_steps; /* which follow train.steps, and matter to no trained weight */
    if (keel_job_difference(&there, given, why, sizeof why) > 0)
        keel_log(KEEL_LOG_WARN, "%s holds a run of another job, which is taken: %s", trained->directory, why);
}

/* The directory of the run that a job file names. */
static enum keel_status find_directory(const struct keel_trained_options *options, const char *path,
                                       const struct keel_job *job, char out[KEEL_PATH_BYTES])
{
    KEEL_TRY(keel_path_join(out, options->out != NULL ? "" : "runs",
                            options->out != NULL ? options->out : job->name));
    if (keel_path_exists(out))
        return KEEL_OK;
    return keel_fail(KEEL_NOT_FOUND,
                     "%s: no run of %s is there; begin it with keel run, or name its directory", out, path);
}

static enum keel_status open_store(struct keel_trained *trained, const struct place *place)
{
    const struct keel_store_config config = {.root = place->root,
                                             .run = place->run[0] != '\0' ? place->run : trained->job.name,
                                             .read_only = true,
                                             .key_file = keel_job_key_file(&trained->job)};
    const enum keel_status status =
        keel_path_exists(place->root) ? keel_store_open(&config, &trained->store) : KEEL_NOT_FOUND;
    if (status != KEEL_NOT_FOUND)
        return status;
    return keel_fail(status,
                     "%s: holds no snapshots of %s; keel run takes them (snapshot.every), or keel ckpt "
                     "import makes one of weights",
                     trained->directory, config.run);
}

/* The run's own directory has none where its nodes keep them. */
static enum keel_status tell_nodes(const struct keel_trained *trained)
{
    const struct keel_job *job = &trained->job;
    return keel_fail(
        KEEL_NOT_FOUND,
        "%s: its nodes keep the snapshots (snapshot.local); name a directory that has all shards, %s "
        "or one of %s/node-N, and --job %s/job.conf",
        trained->directory, job->snapshot_store[0] != '\0' ? job->snapshot_store : "a store",
        job->snapshot_local, trained->directory);
}

static enum keel_status find_in(const struct keel_trained_options *options, const char *path,
                                struct keel_trained *trained)
{
    struct place place = {.root = ""};
    char conf[KEEL_PATH_BYTES];
    snprintf(trained->directory, sizeof trained->directory, "%s", path);
    KEEL_TRY(find_place(trained, path, &place));
    KEEL_TRY(keel_path_join(conf, place.home, "job.conf"));
    if (options->job == NULL && !keel_path_exists(conf))
        return keel_fail(
            KEEL_NOT_FOUND,
            "%s: no job.conf lies beside these snapshots, which says what model they are of; name "
            "the job's file by --job",
            path);
    KEEL_TRY(load_job(options, options->job != NULL ? options->job : conf, &trained->job));
    const enum keel_status status = open_store(trained, &place);
    return status == KEEL_NOT_FOUND && options->job == NULL && keel_job_has_local_snapshots(&trained->job)
               ? tell_nodes(trained)
               : status;
}

enum keel_status keel_trained_find(const struct keel_trained_options *options, const char *path,
                                   struct keel_trained *out)
{
    struct keel_job given;
    char directory[KEEL_PATH_BYTES];
    *out = (struct keel_trained){.newest = false};
    KEEL_TRY(read_step(options->step, out));
    KEEL_TRY(keel_quantise_read(options->weights, &out->quantise));
    if (!keel_path_is_file(path))
        return options->out == NULL
                   ? find_in(options, path, out)
                   : keel_fail(KEEL_INVALID, "--out: goes with a job file, and %s is none", path);
    if (options->job != NULL)
        return keel_fail(KEEL_INVALID, "--job: %s is a job file already; name snapshots, or leave it out",
                         path);
    KEEL_TRY(load_job(options, path, &given));
    KEEL_TRY(find_directory(options, path, &given, directory));
    KEEL_TRY(find_in(options, directory, out));
    tell_difference(out, &given);
    return KEEL_OK;
}

static enum keel_status check_model(const struct keel_job *job)
{
    const enum keel_model_kind kind = keel_job_data_kind(job);
    if (kind == KEEL_MODEL_GPT || kind == KEEL_MODEL_MOE || kind == KEEL_MODEL_LLAMA ||
        kind == KEEL_MODEL_MIXTRAL)
        return KEEL_OK;
    return keel_fail(KEEL_INVALID,
                     "job %s: its model predicts no next token: keel eval says what it is worth", job->name);
}

/* A row of the logits of GPT, Llama or Mixtral depends on its own sequence alone, so that one is computed and
 * not a batch, or as many as have a token for each of job.tensor slices; moe's experts have places for the
 * tokens of a batch, and of a plug-in nothing is known. */
static void choose_batch(struct keel_job *job)
{
    if (job->kind == KEEL_MODEL_GPT || job->kind == KEEL_MODEL_LLAMA || job->kind == KEEL_MODEL_MIXTRAL)
        job->batch = (job->tensor + job->block - 1) / job->block;
}

enum keel_status keel_trained_find_text(const struct keel_trained_options *options, const char *path,
                                        struct keel_trained *out, char identity[KEEL_IDENTITY_BYTES])
{
    const struct keel_data_use use = {.val_path = NULL};
    identity[0] = '\0';
    KEEL_TRY(keel_trained_find(options, path, out));
    KEEL_TRY(check_model(&out->job));
    const struct keel_job whole = out->job;
    choose_batch(&out->job);
    KEEL_TRY(keel_data_open_to_use(&out->job, &use, &out->data));
    if (keel_data_is_whole(out->data))
        keel_job_identity(&whole, keel_data_digest(out->data), identity);
    return KEEL_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static enum keel_status open_device(struct keel_trained *trained, const struct keel_trained_options *options)
{
    const struct keel_board_options board = {.threads = keel_cpu_count()};
    char selector[KEEL_SELECTOR_BYTES];
    bool probation;
    keel_job_device(&trained->job, 1, 0, selector);
    KEEL_TRY(keel_board_open(options->device != NULL ? options->device : selector, &board, &trained->board));
    return keel_quarantine_admit(keel_device_info(keel_board_device(trained->board)), &probation);
}

static enum keel_status choose(const struct keel_trained *trained, struct keel_snapshot_info *out)
{
    uint32_t count, damaged;
    *out = (struct keel_snapshot_info){.step = trained->step, .attempt = trained->attempt};
    if (!trained->newest)
        return KEEL_OK;
    KEEL_TRY(keel_store_list(trained->store, out, 1, &count, &damaged));
    if (count == 0 && damaged > 0)
        return keel_fail(KEEL_CORRUPT,
                         "%s: the manifests of all %" PRIu32
                         " snapshots are damaged; mend them with keel ckpt repair",
                         trained->directory, damaged);
    if (count == 0)
        return keel_fail(KEEL_NOT_FOUND, "%s: holds no committed snapshot (snapshot.every)",
                         trained->directory);
    if (damaged > 0)
        keel_log(KEEL_LOG_WARN, "%s: %" PRIu32 " manifests are damaged, perhaps of newer snapshots",
                 trained->directory, damaged);
    return KEEL_OK;
}

static enum keel_status check_identity(const struct keel_trained *trained, const char *identity)
{
    const struct keel_snapshot_info *info = &trained->info;
    if (!keel_job_is_arithmetic(info->identity))
        keel_log(KEEL_LOG_WARN,
                 "step %" PRIu64
                 " was trained by another version of Keel's arithmetic: figures may differ in "
                 "the last bits from those of its run",
                 info->step);
    else if (identity[0] != '\0' &&
             keel_job_is_older_class(&trained->job, keel_data_digest(trained->data), info->identity))
        keel_log(KEEL_LOG_WARN,
                 "step %" PRIu64
                 " was trained when fewer products were of the class job.numerics = %s: figures may "
                 "differ in the last bits from those of its run",
                 info->step, keel_class_name((enum keel_class)trained->job.numerics));
    else if (identity[0] != '\0' && strcmp(identity, info->identity) != 0)
        return keel_fail(KEEL_MISMATCH,
                         "the snapshot of step %" PRIu64
                         " belongs to another job (model, data, seed or training settings differ): give the "
                         "job as it was, and put data.path back",
                         info->step);
    return KEEL_OK;
}

static void see_loading(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    keel_trained_meter_show(context, "MB loaded", done_bytes / 1000000, total_bytes / 1000000);
}

/* A node's directory has its own ranks' shards, copies and parity, and seldom all: after the reason for which
 * it does not open, what would. */
static enum keel_status tell_missing(const struct keel_trained *trained)
{
    char why[KEEL_DETAIL_BYTES];
    struct keel_snapshot *snapshot;
    snprintf(why, sizeof why, "%.300s", keel_detail());
    if (keel_snapshot_open_here(trained->store, trained->info.step, trained->info.attempt, &snapshot) !=
        KEEL_OK)
        return keel_fail(KEEL_CORRUPT, "%s", why);
    const uint32_t missing = keel_snapshot_missing(snapshot), all = keel_snapshot_info(snapshot)->shard_count;
    keel_snapshot_close(snapshot);
    if (missing == 0)
        return keel_fail(KEEL_CORRUPT, "%s", why);
    return keel_fail(
        KEEL_CORRUPT,
        "%s: has %" PRIu32 " of the %" PRIu32 " shards of step %" PRIu64
        ": other nodes keep the rest (snapshot.local), and parity is not read here. Name "
        "%.200s, or bring all into a new one: mkdir -p NEW/%s, then keel ckpt repair NEW --step %" PRIu64
        " --from %s and so on for each node's directory",
        trained->directory, all - missing, all, trained->info.step,
        trained->job.snapshot_store[0] != '\0' ? trained->job.snapshot_store : "a directory that has all",
        trained->job.name, trained->info.step, trained->directory);
}

static enum keel_status load(struct keel_trained *trained, const char *identity)
{
    struct keel_trained_meter meter = keel_trained_meter();
    const struct keel_load_config config = {.progress = see_loading, .context = &meter};
    struct keel_snapshot *snapshot;
    enum keel_status status =
        keel_snapshot_open(trained->store, trained->info.step, trained->info.attempt, &snapshot);
    if (status == KEEL_CORRUPT && keel_job_has_local_snapshots(&trained->job))
        return tell_missing(trained);
    KEEL_TRY(status);
    trained->info = *keel_snapshot_info(snapshot);
    status = check_identity(trained, identity);
    if (status == KEEL_OK && trained->averages && trained->info.step == 0)
        status = keel_fail(KEEL_INVALID, "--ema: the average of the weights begins with the first step, and "
                                         "this snapshot is of step 0");
    if (status == KEEL_OK)
        status = keel_inference_load(trained->inference, snapshot, &config);
    keel_trained_meter_hide(&meter);
    keel_snapshot_close(snapshot);
    return status;
}

/* A run beside lets old snapshots go: of one that was the newest and is not there any more nothing is said.
 */
static bool is_gone(const struct keel_trained *trained)
{
    struct keel_snapshot_info newest;
    uint32_t count;
    return trained->newest && keel_store_list(trained->store, &newest, 1, &count, NULL) == KEEL_OK &&
           count > 0 && (newest.step != trained->info.step || newest.attempt != trained->info.attempt);
}

static enum keel_status load_meant(struct keel_trained *trained, const char *identity)
{
    char why[KEEL_DETAIL_BYTES];
    for (int tried = 1;; tried++) {
        KEEL_TRY(choose(trained, &trained->info));
        const enum keel_status status = load(trained, identity);
        if (status == KEEL_OK)
            return status;
        snprintf(why, sizeof why, "%.400s", keel_detail());
        if (tried < TRIES_MAX && is_gone(trained))
            continue;
        if (status == KEEL_NOT_FOUND)
            return keel_fail(status, "%s; keel ckpt ls %.200s says which there are", why, trained->directory);
        return keel_fail(status, "%s", why);
    }
}

static enum keel_status create_inference(struct keel_trained *trained)
{
    const struct keel_inference_config config = {.job = &trained->job,
                                                 .data = trained->data,
                                                 .device = keel_board_device(trained->board),
                                                 .kernels = keel_board_kernels(trained->board),
                                                 .stall_ns = trained->stall_ns,
                                                 .decode = trained->decode,
                                                 .prompt_rows = trained->prompt_rows,
                                                 .averages = trained->averages,
                                                 .quantise = trained->quantise,
                                                 .only_decode = trained->only_decode};
    return keel_inference_create(&config, &trained->inference);
}

enum keel_status keel_trained_open(struct keel_trained *trained, const struct keel_trained_options *options,
                                   const char *identity)
{
    trained->stall_ns = (uint64_t)(trained->job.timeout_s * 1e9) * KEEL_STALL_TIMEOUTS;
    trained->averages = options->ema;
    if (options->ema && trained->job.ema <= 0.0F)
        return keel_fail(KEEL_INVALID,
                         "--ema: the run keeps no average of its weights (train.ema): leave it out");
    KEEL_TRY(open_device(trained, options));
    KEEL_TRY(create_inference(trained));
    return load_meant(trained, identity);
}

enum keel_status keel_trained_reload(struct keel_trained *trained)
{
    keel_inference_destroy(trained->inference);
    trained->inference = NULL;
    KEEL_TRY(create_inference(trained));
    return load(trained, "");
}

struct keel_trained_quantised keel_trained_quantised(const struct keel_trained *trained)
{
    struct keel_trained_quantised found = {.tensors = 0};
    for (uint32_t i = 0; i < keel_inference_weight_count(trained->inference); i++) {
        const struct keel_engine_param *param;
        struct keel_matrix matrix;
        if (!keel_inference_weight(trained->inference, i, &param, &matrix))
            continue;
        const bool is_one = matrix.copies > 0 && trained->quantise.bits > 0;
        const uint64_t count =
            matrix.copies > 0 ? matrix.copies * matrix.inputs * matrix.outputs : param->count;
        found.of_tensors++;
        found.of_numbers += count;
        found.tensors += is_one;
        found.numbers += is_one ? count : 0;
        found.bytes += param->count * sizeof(float);
        found.of_bytes += count * sizeof(float);
    }
    return found;
}

void keel_trained_close(struct keel_trained *trained)
{
    keel_inference_destroy(trained->inference);
    keel_board_close(trained->board);
    keel_data_close(trained->data);
    if (trained->store != NULL)
        keel_store_close(trained->store);
}

/* ---- progress ------------------------------------------------------------------------------------------ */

struct keel_trained_meter keel_trained_meter(void)
{
    return (struct keel_trained_meter){.shown_ns = keel_now_ns(), .terminal = isatty(STDERR_FILENO) == 1};
}

void keel_trained_meter_show(struct keel_trained_meter *meter, const char *what, uint64_t done, uint64_t of)
{
    const uint64_t now_ns = keel_now_ns();
    if (!meter->terminal || now_ns - meter->shown_ns < METER_NS)
        return;
    meter->shown_ns = now_ns;
    fprintf(stderr, "\r%" PRIu64 " of %" PRIu64 " %s\033[K", done, of, what);
}

void keel_trained_meter_hide(const struct keel_trained_meter *meter)
{
    if (meter->terminal)
        fputs("\r\033[K", stderr);
}
