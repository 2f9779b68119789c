/* run_cmd.c - the command line of `keel run`, and what is checked before any process starts. */
#include "run_cmd.h"
#include "data.h"
#include "drill.h"
#include "encode_text.h"
#include "job_follow.h"
#include "jsonl.h"
#include "model.h"
#include "plugin_try.h"
#include "remote_leader.h"
#include "report.h"
#include "run_led.h"
#include "run_lives.h"
#include "run_look.h"
#include "run_plan.h"
#include "slow_watch.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/command.h>
#include <keel/engine.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <keel/transport.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Options that this file takes; those of the first are written as overrides. */
enum taken { RANKS, NODES, SPARES, SAMPLE, SET = KEEL_RUN_MADE_COUNT, DRILL, RESUME, PASSES_OFF, PASSED_ON };
static const uint64_t leader_look_ns = 100 * KEEL_NS_PER_MS;
_Static_assert((int)SAMPLE + 1 == (int)KEEL_RUN_MADE_COUNT, "those that make overrides come first");

/* ---- arguments ----------------------------------------------------------------------------------------- */

static enum keel_status add_override(struct keel_run *run, const char *text)
{
    if (run->override_count == KEEL_RUN_OVERRIDES_MAX)
        return keel_fail(KEEL_LIMIT, "more than %d --set", KEEL_RUN_OVERRIDES_MAX);
    run->overrides[run->override_count++] = text;
    return KEEL_OK;
}

/* An option that is given again replaces what it said before. */
static enum keel_status make_override(struct keel_run *run, const struct keel_command_option *option,
                                      const char *value)
{
    static const char *const keys[KEEL_RUN_MADE_COUNT] = {"cluster.ranks", "cluster.nodes", "cluster.spares",
                                                          "train.sample"};
    char *text = run->made[option->offset];
    bool before = text[0] != '\0';
    int length = snprintf(text, sizeof run->made[0], "%s %s=%s", option->name, keys[option->offset], value);
    if (length < 0 || (size_t)length >= sizeof run->made[0])
        return keel_fail(KEEL_INVALID, "%s: a number is wanted, not %.100s", option->name, value);
    return before ? KEEL_OK : add_override(run, text);
}

static enum keel_status add_drill(struct keel_run *run, const char *text)
{
    struct keel_drill checked;
    KEEL_TRY(keel_drill_parse(text, &checked));
    if (run->drill_count == KEEL_DRILLS_MAX)
        return keel_fail(KEEL_LIMIT, "more than %d --drill", KEEL_DRILLS_MAX);
    run->drills[run->drill_count++] = text;
    return KEEL_OK;
}

static enum keel_status take_resume(struct keel_run *run, const char *text)
{
    size_t digits = strspn(text, "0123456789");
    bool number = digits > 0 && digits < 20 && text[digits] == '\0';
    if (!number && strcmp(text, "auto") != 0 && strcmp(text, "none") != 0)
        return keel_fail(KEEL_INVALID, "--resume %s: auto, none or a step is wanted", text);
    run->resume = text;
    return KEEL_OK;
}

enum keel_status keel_run_pass_on(struct keel_run *run, const char *name, const char *value)
{
    if (run->passed_on_count + 2 > KEEL_PASSED_BY_USER_MAX)
        return keel_fail(KEEL_LIMIT, "%s: more than %d options for workers", name,
                         KEEL_PASSED_BY_USER_MAX / 2);
    run->passed_on[run->passed_on_count++] = name;
    run->passed_on[run->passed_on_count++] = value;
    return KEEL_OK;
}

static enum keel_status take_option(void *own, const struct keel_command_option *option, char *value)
{
    struct keel_run *run = own;
    switch ((enum taken)option->offset) {
    case RANKS:
    case NODES:
    case SPARES:
    case SAMPLE:
        return make_override(run, option, value);
    case SET:
        return add_override(run, value);
    case RESUME:
        return take_resume(run, value);
    case DRILL:
        KEEL_TRY(add_drill(run, value));
        break;
    case PASSES_OFF:
        KEEL_TRY(keel_engine_check_passes(value));
        break;
    case PASSED_ON:
        if (value[0] == '\0')
            return keel_fail(KEEL_INVALID, "%s: a directory is wanted", option->name);
        break;
    }
    return keel_run_pass_on(run, option->name, value); /* workers take these as they are */
}

#define INTO(field) offsetof(struct keel_run, field)
static const struct keel_command_option options[] = {
    {"--ranks", "N", KEEL_COMMAND_CALL, RANKS, "workers that carry the job's shards (cluster.ranks)"},
    {"--nodes", "N", KEEL_COMMAND_CALL, NODES, "nodes that the ranks are spread over; default: one per rank"},
    {"--spares", "N", KEEL_COMMAND_CALL, SPARES, "warm spare nodes that take over from dead ones"},
    {"--set", "section.key=value", KEEL_COMMAND_CALL, SET,
     "override any key of the job file; may be repeated"},
    {"--out", "DIR", KEEL_COMMAND_TEXT, INTO(out),
     "metrics.jsonl, events.jsonl, report.html, ckpt/; default runs/NAME"},
    {"--drill", "SPEC", KEEL_COMMAND_CALL, DRILL,
     "inject a fault, once in the life of DIR; may be repeated:\n"
     "kill:rank=2,step=30  kill:node=1,step=30,at=reduce  kill:all,step=200\n"
     "stop:rank=0,step=9 (it is silent)  slow:rank=1,step=9,ms=500,steps=3\n"
     "disk-full:rank=0,step=50,ms=1000 (of its snapshot)\n"
     "at= of these: forward, gather, reduce, commit, spread, eval, snapshot, capture; text (step: the last)\n"
     "flip:rank=1,step=9 (a bit of its weights; at=reduce: of a moment, at=commit: of its loss)\n"
     "sick:rank=1,step=9 (its board computes wrongly)\n"
     "hang:rank=1,step=9 (its board answers nothing; at=capture: one copy)\n"
     "wipe:node=2,step=30 (its directory under snapshot.local goes, and the node is killed)"},
    {"--resume", "auto|none|STEP", KEEL_COMMAND_CALL, RESUME,
     "newest snapshot (default), from the beginning, or that of a step"},
    {"--prepare", NULL, KEEL_COMMAND_FLAG, INTO(prepare_only),
     "make DIR and an empty store in it, for keel ckpt import, look at all of the data (every image, every "
     "token of files), and end"},
    {"--sample", "N", KEEL_COMMAND_CALL, SAMPLE, "generate N tokens of text at the end (DIR/sample.txt)"},
    {"--dump-graph", "DIR", KEEL_COMMAND_CALL, PASSED_ON,
     "each worker writes its graph after each pass into DIR/NODE.LOCAL"},
    {"--passes-off", "LIST", KEEL_COMMAND_CALL, PASSES_OFF,
     "leave out passes over the graph, with commas between: the bits stay the same;\n"
     "\"\": none, not even those that do not pay on the device"},
    {"--trace-device", "DIR", KEEL_COMMAND_CALL, PASSED_ON,
     "each worker writes the last commands of its device into DIR/NODE.LOCAL.json,\n"
     "for Perfetto"},
    {.name = NULL},
};

static void print_help(void)
{
    puts("usage: keel run JOB.conf [options]\n"
         "\n"
         "Train the job on ranks of this machine, or of others (cluster.launch); the same command\n"
         "goes on where it was interrupted.\n");
    keel_command_print_options(stdout, options);
    puts("\n"
         "examples:\n"
         "  keel run demo.conf --ranks 4\n"
         "  keel run demo.conf --ranks 4 --drill kill:node=2,step=60,at=reduce --out runs/drilled\n"
         "  keel run my.conf --set data.path=book.txt --set train.steps=1000 --sample 300\n"
         "  keel run my.conf --ranks 4 --set cluster.launch=ssh --set cluster.hosts=h1,h2,h3,h4\n"
         "\n"
         "jobs that come with Keel: runtime/jobs of its sources, PREFIX/share/keel/jobs where it is "
         "installed\n"
         "\n"
         "exit codes: 0 done, 1 failed, 2 wrong use, 3 could not run here, 4 data is damaged or does not "
         "fit,\n"
         "            5 interrupted but resumable\n"
         "\n"
         "keys of a job file (default; range or choices):");
    keel_job_print_keys(stdout);
}

static enum keel_status parse_arguments(struct keel_run *run, int argc, char **argv, bool *help)
{
    struct keel_command_words words = {
        .options = options, .own = run, .take = take_option, .operands_max = 1};
    enum keel_status status = keel_command_read(&words, argc, argv);
    *help = words.help;
    if (status == KEEL_OK && !words.help && words.operand_count == 0)
        status = keel_fail(KEEL_INVALID, "one job file is wanted");
    if (status != KEEL_OK) {
        char why[KEEL_DETAIL_BYTES];
        snprintf(why, sizeof why, "%.400s", keel_detail());
        return keel_fail(status, "%s; see keel run --help", why);
    }
    run->job_path = words.operands[0];
    return KEEL_OK;
}

/* ---- a run that is over -------------------------------------------------------------------------------- */

static bool is_of_this_job(const struct keel_run *run)
{
    char path[KEEL_PATH_BYTES], *there;
    size_t bytes;
    if (keel_path_join(path, run->directory, "identity") != KEEL_OK ||
        keel_file_read(path, KEEL_IDENTITY_BYTES, &there, &bytes) != KEEL_OK)
        return false;
    bool same = strcmp(there, run->identity) == 0;
    keel_free(there);
    return same;
}

static bool is_there(const struct keel_run *run, const char *name)
{
    char path[KEEL_PATH_BYTES];
    return keel_path_join(path, run->directory, name) == KEEL_OK && keel_path_exists(path);
}

/* The text that the job asks for is that which lies there. */
static bool sample_is_there(const struct keel_run *run)
{
    char path[KEEL_PATH_BYTES];
    struct keel_job there;
    if (run->job.sample_tokens == 0)
        return true;
    return is_there(run, "sample.txt") && keel_path_join(path, run->directory, "job.conf") == KEEL_OK &&
           keel_job_load(path, NULL, 0, &there) == KEEL_OK && there.sample_tokens == run->job.sample_tokens;
}

/* Is all that the command asks for in the directory, whole? Reads, writes nothing. Whatever is in doubt is
 * left to a run, which mends it or says what is wrong. */
static bool is_over(struct keel_run *run)
{
    bool asks_for_the_end = run->job.steps > 0 && run->drill_count == 0 && !run->prepare_only &&
                            (run->resume == NULL || strcmp(run->resume, "auto") == 0);
    if (!asks_for_the_end || !is_of_this_job(run) ||
        (run->locks.run_fd < 0 && keel_launch_is_locked(run->directory)))
        return false;
    keel_step_ranges_free(&run->end.lacks);
    return keel_output_read_end(run->directory, &run->end) == KEEL_OK &&
           run->end.last.seen.step >= run->job.steps && is_there(run, "report.html") &&
           sample_is_there(run) && keel_run_end_is_kept(run, 0, run->job.steps);
}

/* ---- before anything starts ---------------------------------------------------------------------------- */

static enum keel_status check_drills(const struct keel_run *run)
{
    uint32_t nodes = run->job.nodes != 0 ? run->job.nodes : run->job.ranks;
    for (uint32_t i = 0; i < run->drill_count; i++) {
        struct keel_drill drill;
        KEEL_TRY(keel_drill_parse(run->drills[i], &drill));
        if (drill.head.target == KEEL_DRILL_RANK && drill.number >= run->job.ranks)
            return keel_fail(KEEL_INVALID, "--drill %s: the ranks are 0 to %u", run->drills[i],
                             run->job.ranks - 1);
        if (drill.head.target == KEEL_DRILL_NODE &&
            (drill.number < 1 || drill.number > nodes + run->job.spares))
            return keel_fail(KEEL_INVALID, "--drill %s: the nodes are 1 to %u", run->drills[i],
                             nodes + run->job.spares);
        if (drill.head.target == KEEL_DRILL_ALL && run->job.launch != KEEL_LAUNCH_LOCAL)
            return keel_fail(
                KEEL_INVALID,
                "--drill %s: workers on other hosts (cluster.launch) cannot kill the launcher; do it "
                "yourself, by the number in DIR/run.lock",
                run->drills[i]);
        if (drill.head.kind == KEEL_DRILL_WIPE && !keel_job_has_local_snapshots(&run->job))
            return keel_fail(KEEL_INVALID,
                             "--drill %s: wipes what a node keeps by itself: give snapshot.local = DIR",
                             run->drills[i]);
        if (drill.head.kind == KEEL_DRILL_FLIP && run->job.ranks < 2)
            return keel_fail(KEEL_INVALID, "--drill %s: is found by comparing ranks; give --ranks 2 or more",
                             run->drills[i]);
        if (drill.step < 1 || drill.step > run->job.steps)
            return keel_fail(KEEL_INVALID, "--drill %s: the steps are 1 to %" PRIu64, run->drills[i],
                             run->job.steps);
    }
    return KEEL_OK;
}

/* What there is to train on, and to validate with: what is odd in it may be meant. */
static void tell_data(const struct keel_job *job, const struct keel_data *data)
{
    const uint64_t train = keel_data_train_samples(data), val = keel_data_val_samples(data);
    const uint32_t vocab = keel_data_vocab(data), absent = keel_data_absent_classes(data);
    const bool text = strcmp(keel_job_unit(job), "tokens") == 0;
    printf("data: %" PRIu64 " samples to train on, %" PRIu64 " to validate with", train,
           val == KEEL_DATA_DRAWN ? (uint64_t)job->eval_batches * job->batch : val);
    if (vocab > 0)
        printf(", %u %s", vocab, text ? "different tokens" : "classes");
    printf("\n");
    if (keel_data_form(data)[0] != '\0')
        printf("data: %s\n", keel_data_form(data));
    if (absent > 0)
        keel_log(
            KEEL_LOG_WARN,
            "%u of the %u classes have no image to train on: when a label is wrong, say how many classes "
            "there are (model.vocab), and it is found",
            absent, vocab);
    if (text && job->vocab >= vocab + 256)
        keel_log(
            KEEL_LOG_WARN,
            "model.vocab = %u, but the data have %u different tokens: weights that come from elsewhere were "
            "trained with another vocabulary, which data.vocab = bpe:FILES names",
            job->vocab, vocab);
    if (val == 0 && job->eval_every > 0) {
        char kept[KEEL_PATH_BYTES + 96], block[48] = "no sample";
        if (text)
            snprintf(block, sizeof block, "no whole block (model.block = %u)", job->block);
        if (job->val_path[0] != '\0')
            snprintf(kept, sizeof kept, "data.val_path = %s has", job->val_path);
        else
            snprintf(kept, sizeof kept, "nothing is kept to validate with: data.val_fraction = %g leaves %s",
                     (double)job->val_fraction, job->path);
        keel_log(KEEL_LOG_WARN, "train.eval_every = %" PRIu64 ", but %s %s; no validation loss will be told",
                 job->eval_every, kept, block);
    }
}

/* The text that a job trains on which names none, where Keel is installed. */
static void find_installed_text(struct keel_job *job)
{
    char installed[KEEL_PATH_BYTES];
    if (strcmp(job->path, KEEL_JOB_TEXT) == 0 && !keel_path_exists(job->path) &&
        keel_installed_path(installed, "data/english.txt") == KEEL_OK && keel_path_exists(installed))
        memcpy(job->path, installed, sizeof job->path);
}

/* What a run goes on from may be asked for in another directory. Of a pattern, which names no file, the
 * folder is made absolute. */
static void make_absolute(char path[KEEL_PATH_BYTES])
{
    char folder[KEEL_PATH_BYTES], joined[KEEL_PATH_BYTES];
    const char *slash = strrchr(path, '/');
    const bool whole = keel_path_exists(path);
    if (!whole && (strpbrk(path, "*?[") == NULL || keel_path_parent(folder, path) != KEEL_OK))
        return; /* what is not there is told as it was given */
    char *absolute = realpath(whole ? path : folder, NULL);
    if (absolute != NULL && strlen(absolute) < sizeof folder &&
        (whole || keel_path_join(joined, absolute, slash == NULL ? path : slash + 1) == KEEL_OK))
        snprintf(path, KEEL_PATH_BYTES, "%s", whole ? absolute : joined);
    free(absolute); /* realpath's own allocation */
}

/* The files of data.vocab = bpe:..., as make_absolute does. */
static void make_tokenizer_absolute(struct keel_job *job)
{
    const char *files;
    char first[KEEL_PATH_BYTES], second[KEEL_PATH_BYTES] = "", joined[2 * KEEL_PATH_BYTES + 8];
    if (keel_job_vocab(job, &files) != KEEL_VOCAB_BPE)
        return;
    const size_t length = strcspn(files, ",");
    snprintf(first, sizeof first, "%.*s", (int)length, files);
    if (files[length] == ',')
        snprintf(second, sizeof second, "%s", files + length + 1);
    make_absolute(first);
    make_absolute(second);
    const int bytes =
        snprintf(joined, sizeof joined, "bpe:%s%s%s", first, files[length] == ',' ? "," : "", second);
    if (bytes > 0 && (size_t)bytes < sizeof job->vocabulary)
        memcpy(job->vocabulary, joined, (size_t)bytes + 1);
}

/* Temporary files of a process that was killed between writing and renaming: NAME.PID.NUMBER.tmp. */
static enum keel_status sweep_one(void *context, const char *name)
{
    static const char suffix[] = ".tmp";
    const struct keel_run *run = context;
    size_t length = strlen(name), digits = sizeof suffix - 1;
    if (length < digits || strcmp(name + length - digits, suffix) != 0)
        return KEEL_OK;
    for (int number = 0; number < 2; number++) {
        size_t before = digits;
        while (digits < length && name[length - digits - 1] >= '0' && name[length - digits - 1] <= '9')
            digits++;
        if (digits == before || digits + 1 >= length || name[length - digits - 1] != '.')
            return KEEL_OK;
        digits++;
    }
    char path[KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_join(path, run->directory, name));
    unlink(path); /* one that stays harms nobody */
    return KEEL_OK;
}

/* Before anything in the directory is written. */
static enum keel_status hold_directory(void *context)
{
    struct keel_run *run = context;
    if (run->locks.run_fd >= 0)
        return KEEL_OK;
    enum keel_status made = keel_mkdir_all(run->directory);
    if (made != KEEL_OK)
        return keel_fail(made, "--out: %s; give another --out", keel_detail());
    KEEL_TRY(keel_launch_lock(run->directory, &run->locks));
    return keel_dir_list(run->directory, sweep_one, run);
}

static void tell_encoding(void *context, const char *path, uint64_t done_bytes, uint64_t bytes)
{
    (void)context;
    printf("data: %s: %" PRIu64 " of %" PRIu64 " MB encoded (%.0f%%)\n", path, done_bytes / 1000000,
           bytes / 1000000, 100.0 * (double)done_bytes / (double)bytes);
    fflush(stdout);
}

/* A run that goes on without its launcher is watched until it is over. */
static enum keel_status follow_led(const struct keel_run *run, const char *store)
{
    struct keel_remote_leader leader;
    if (keel_run_waits_for_leader(run->directory))
        printf("%s: its launcher was killed just now: waits until a node leads, or none does\n",
               run->directory);
    fflush(stdout);
    while (!keel_remote_leader_lives(store, run->job.timeout_s, &leader) &&
           keel_run_waits_for_leader(run->directory))
        keel_sleep_until_ns(keel_deadline_after_ns(leader_look_ns));
    while (keel_remote_leader_lives(store, run->job.timeout_s, &leader)) {
        printf("%s: the run goes on without its launcher, led by node %u on %s (process %ld), "
               "which lets agents in at %s: this command follows it to its end, an interrupt ends it alone; "
               "keel job "
               "stop ends the run\n",
               run->directory, leader.node, leader.host, leader.pid, leader.place);
        KEEL_TRY(keel_job_follow(run->directory, false));
    }
    return KEEL_OK;
}

/* Nodes of other hosts led this run after its launcher had ended (cluster.holders): what they wrote comes
 * here. */
static enum keel_status take_led(struct keel_run *run)
{
    char store[KEEL_PATH_BYTES], lines[KEEL_PATH_BYTES];
    struct keel_remote_leader leader;
    bool taken;
    uint64_t differing;
    KEEL_TRY(keel_run_store_root(run, store));
    KEEL_TRY(keel_path_join(lines, store, KEEL_REMOTE_LEADER_FOLDER));
    struct keel_slow_watch watch = {.path = store};
    keel_slow_begin(&watch);
    const bool nobody_led =
        !keel_path_exists(store) || (keel_job_holders(&run->job) == 1 && !keel_path_exists(lines));
    keel_slow_end(&watch);
    if (nobody_led)
        return KEEL_OK;
    if (!keel_launch_is_locked(run->directory)) /* else it is refused */
        KEEL_TRY(follow_led(run, store));
    KEEL_TRY(hold_directory(run));
    if (keel_remote_leader_lives(store, run->job.timeout_s, &leader)) /* its lines are not whole */
        return keel_fail(KEEL_BUSY,
                         "%s: node %u on %s has begun to lead the run; the same command follows it",
                         run->directory, leader.node, leader.host);
    KEEL_TRY(keel_led_take(run->directory, store, &taken, &differing));
    if (differing > 0)
        return keel_fail(KEEL_MISMATCH, "%" PRIu64 " steps came with different bits; see %s/events.jsonl",
                         differing, run->directory);
    if (taken && keel_report_write(run->directory) != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "no report: %s", keel_detail());
    return KEEL_OK;
}

static void tell_checking(void *context, uint64_t done, uint64_t of, const char *unit)
{
    (void)context;
    printf("data: %" PRIu64 " of %" PRIu64 " %s checked (%.0f%%)\n", done, of, unit,
           100.0 * (double)done / (double)of);
    fflush(stdout);
}

static void tell_wrong(void *context, const char *detail)
{
    (void)context;
    printf("data: %s\n", detail);
}

/* Read the data once here: a missing or short file is told before processes start. */
static enum keel_status check_data(struct keel_run *run)
{
    const struct keel_encode_config encode = {
        .directory = run->directory, .make = hold_directory, .progress = tell_encoding, .context = run};
    find_installed_text(&run->job);
    make_absolute(run->job.path);
    make_absolute(run->job.val_path);
    make_absolute(run->job.plugin_path);
    make_tokenizer_absolute(&run->job);
    if (keel_job_has_text_to_encode(&run->job))
        KEEL_TRY(keel_job_encode_text(&run->job, &encode));
    /* A plug-in reads its data, and builds its graph, in another process first. */
    if (keel_job_plugin(&run->job) != NULL)
        KEEL_TRY(keel_plugin_try_graph(&run->job));
    struct keel_data *data;
    KEEL_TRY(keel_data_open(&run->job, &data));
    run->data_digest = keel_data_digest(data);
    keel_job_identity(&run->job, run->data_digest, run->identity);
    /* Every worker builds the model; what makes none, or does not fit, is told before processes start. */
    enum keel_status status = keel_run_plan_make(&run->job, data, &run->plans);
    run->over = status == KEEL_OK && is_over(run);
    const struct keel_data_watch watch = {.progress = tell_checking, .wrong = tell_wrong};
    if (status == KEEL_OK && run->prepare_only)
        status = keel_data_check(data, &watch);
    else if (status == KEEL_OK && !run->over) {
        tell_data(&run->job, data);
        keel_model_tell(&run->job);
    }
    keel_data_close(data);
    return status;
}

static enum keel_status damaged_identity(const struct keel_run *run)
{
    return keel_fail(
        KEEL_CORRUPT,
        "%.300s/identity: is damaged; remove it to have it made anew (the snapshots name their job too)",
        run->directory);
}

/* Whether the newest snapshot bears this identity. */
static bool snapshots_are_of(const struct keel_run *run, const char *identity)
{
    struct keel_store *store;
    struct keel_snapshot_info newest;
    uint32_t count = 0;
    if (keel_run_open_store(run, &store) != KEEL_OK || store == NULL)
        return false;
    bool same = keel_store_list(store, &newest, 1, &count, NULL) == KEEL_OK && count > 0 &&
                strcmp(newest.identity, identity) == 0;
    keel_store_close(store);
    return same;
}

/* Its bits end where the program's changed. */
static enum keel_status refuse_arithmetic(const struct keel_run *run, bool has_weights)
{
    if (!has_weights)
        return keel_fail(
            KEEL_MISMATCH,
            "%.200s was begun by a Keel of another version of the arithmetic, and has no snapshot of it "
            "(or DIR/identity is damaged); give another --out",
            run->directory);
    return keel_fail(
        KEEL_MISMATCH,
        "%.200s holds a run of another version of Keel's arithmetic, which cannot go on to the bit; "
        "its weights can begin a new one: keel ckpt export DIR W.safetensors --only weights; keel run "
        "JOB --out NEW --prepare; keel ckpt import W.safetensors NEW --for-training; keel run JOB "
        "--out NEW",
        run->directory);
}

/* By which keys the run in the directory, of identity `old`, is another. */
static enum keel_status refuse_other(const struct keel_run *run, const char *old)
{
    if (!keel_job_is_arithmetic(old) && snapshots_are_of(run, old))
        return refuse_arithmetic(run, true);
    if (keel_job_is_older_class(&run->job, run->data_digest, old))
        return keel_fail(KEEL_MISMATCH,
                         "%.200s holds a run of when fewer products were of the class job.numerics = %s (not "
                         "those of attention, or "
                         "of convolutions), which cannot go on to the bit; its weights can begin a new one: "
                         "keel ckpt export DIR "
                         "W.safetensors --only weights; keel run JOB --out NEW --prepare; keel ckpt import "
                         "W.safetensors NEW "
                         "--for-training; keel run JOB --out NEW",
                         run->directory, keel_class_name((enum keel_class)run->job.numerics));
    char path[KEEL_PATH_BYTES], why[KEEL_DETAIL_BYTES - 128], move[64] = "give the job as it was";
    struct keel_job there;
    uint32_t count = 0;
    KEEL_TRY(keel_path_join(path, run->directory, "job.conf"));
    if (keel_job_load(path, NULL, 0, &there) != KEEL_OK)
        snprintf(why, sizeof why, "what differs cannot be said: %.200s", keel_detail());
    else if ((count = keel_job_difference(&there, &run->job, why, sizeof why)) > 0)
        ;
    else if (snapshots_are_of(run, run->identity))
        return damaged_identity(run);
    else if (!keel_job_is_arithmetic(old))
        return refuse_arithmetic(run, false);
    else
        snprintf(why, sizeof why,
                 "the contents of data.path%s differ, %.120s there and %.120s here (or DIR/identity is "
                 "damaged)",
                 keel_job_plugin(&run->job) != NULL ? ", or the plug-in," : "", there.path, run->job.path);
    if (count == 1 &&
        there.decay_steps != run->job.decay_steps) /* which follows train.steps, unless it is set */
        snprintf(move, sizeof move, "to train longer set train.decay_steps = %" PRIu64, there.decay_steps);
    if (count > 0 && (there.shards != run->job.shards || there.tensor != run->job.tensor))
        snprintf(move, sizeof move, "give the job as it was (--ranks and parallel.* may be others)");
    return keel_fail(KEEL_MISMATCH, "%.100s holds a run of another job: %s; %s, or give another --out",
                     run->directory, why, move);
}

/* A directory belongs to one job for ever. */
static enum keel_status check_identity(const struct keel_run *run)
{
    char path[KEEL_PATH_BYTES], *old = NULL;
    size_t bytes;
    KEEL_TRY(keel_path_join(path, run->directory, "identity"));
    if (!keel_path_exists(path))
        return keel_file_replace(path, run->identity, strlen(run->identity), 0666);
    enum keel_status status = keel_file_read(path, KEEL_IDENTITY_BYTES, &old, &bytes);
    if (status != KEEL_OK && status != KEEL_LIMIT)
        return status;
    bool whole =
        status == KEEL_OK && bytes == KEEL_IDENTITY_BYTES - 1 && strspn(old, "0123456789abcdef") == bytes;
    if (!whole)
        status = damaged_identity(run);
    else if (strcmp(old, run->identity) != 0)
        status = refuse_other(run, old);
    if (old != NULL)
        keel_free(old);
    return status;
}

static enum keel_status write_job(struct keel_run *run)
{
    char *text = NULL;
    size_t bytes = 0;
    KEEL_TRY(keel_path_join(run->job_copy, run->directory, "job.conf"));
    FILE *memory = open_memstream(&text, &bytes);
    if (memory == NULL)
        return keel_fail(KEEL_NO_MEMORY, "no memory for the job file");
    enum keel_status status = keel_job_write(&run->job, memory);
    fclose(memory);
    if (status == KEEL_OK)
        status = keel_file_replace(run->job_copy, text, bytes, 0666);
    free(text); /* open_memstream's own allocation */
    return status;
}

/* train.steps = 0 evaluates only: the schedule stays that of the run in the directory. */
static void keep_schedule(struct keel_run *run)
{
    char path[KEEL_PATH_BYTES];
    struct keel_job there;
    if (run->job.steps == 0 && keel_path_join(path, run->directory, "job.conf") == KEEL_OK &&
        keel_path_exists(path) && keel_job_load(path, NULL, 0, &there) == KEEL_OK)
        run->job.decay_steps = there.decay_steps;
}

/* A name that begins with a dash gets ./ in front, since agents are given it as an argument. */
static enum keel_status name_directory(struct keel_run *run)
{
    const char *name = run->out != NULL ? run->out : run->job.name;
    if (name[0] == '\0')
        return keel_fail(KEEL_INVALID, "--out: a directory is wanted");
    KEEL_TRY(keel_path_join(run->directory, run->out == NULL ? "runs" : name[0] == '-' ? "." : "", name));
    if (run->out != NULL && keel_path_is_file(run->directory))
        return keel_fail(KEEL_INVALID, "--out %s: is a file; give a directory", run->out);
    return KEEL_OK;
}

/* One of [snapshot]'s directories, which agents are told by its whole path. Other hosts have theirs. */
static enum keel_status make_directory(const struct keel_run *run, const char *key,
                                       char path[KEEL_PATH_BYTES])
{
    char probe[KEEL_PATH_BYTES];
    if (path[0] == '\0' || run->job.launch != KEEL_LAUNCH_LOCAL)
        return KEEL_OK;
    struct keel_slow_watch watch = {.path = path, .by_signal = true};
    keel_slow_begin(&watch);
    enum keel_status status = keel_mkdir_all(path);
    if (status == KEEL_OK && (status = keel_path_join(probe, path, ".writable")) == KEEL_OK)
        status = keel_file_replace(probe, "", 0, 0666);
    keel_slow_end(&watch);
    if (status != KEEL_OK) {
        char why[KEEL_DETAIL_BYTES];
        snprintf(why, sizeof why, "%.300s", keel_detail());
        return keel_fail(status, "snapshot.%s = %.150s: %s; give a directory that can be written", key, path,
                         why);
    }
    unlink(probe);
    make_absolute(path);
    return KEEL_OK;
}

static enum keel_status prepare(struct keel_run *run)
{
    KEEL_TRY(keel_plugin_try_load(run->job_path, run->overrides, run->override_count));
    KEEL_TRY(keel_job_load(run->job_path, run->overrides, run->override_count, &run->job));
    KEEL_TRY(keel_job_check_ranks(&run->job, run->job.ranks));
    KEEL_TRY(check_drills(run));
    KEEL_TRY(name_directory(run));
    keep_schedule(run);
    KEEL_TRY(take_led(run));
    const bool held = run->locks.run_fd < 0 && keel_launch_is_locked(run->directory);
    KEEL_TRY(check_data(run));
    if (run->over)
        return KEEL_OK;
    struct keel_cost_model costs; /* each worker reads them itself: better said here, and once */
    if (run->job.network_costs[0] != '\0')
        KEEL_TRY(keel_costs_read(run->job.network_costs, &costs));
    if (keel_job_key_file(&run->job) != NULL)
        KEEL_TRY(keel_key_check(keel_job_key_file(&run->job)));
    KEEL_TRY(hold_directory(run));    /* before anything there is touched */
    run->over = held && is_over(run); /* who held it may have ended meanwhile, and well */
    if (run->over)
        return KEEL_OK;
    keel_launch_hold_signals();
    KEEL_TRY(make_directory(run, "local", run->job.snapshot_local));
    KEEL_TRY(make_directory(run, "store", run->job.snapshot_store));
    if (run->drill_count > 0)
        KEEL_TRY(keel_drill_check_log(run->directory));
    KEEL_TRY(check_identity(run));
    return write_job(run);
}

static enum keel_status tell_over(const struct keel_run *run)
{
    char text[256], lacks[KEEL_STEP_RANGES_TEXT];
    keel_output_end_text(&run->end.last.seen, false, text, sizeof text);
    printf("%s; report: %s/report.html\n", text, run->directory);
    if (run->end.lacks.count > 0) {
        keel_step_ranges_text(&run->end.lacks, lacks);
        printf(KEEL_METRIC_LACKING "\n", run->directory, lacks);
    }
    keel_run_show_sample(run);
    return KEEL_OK;
}

/* A directory that snapshots can be imported into before the first step. */
static enum keel_status prepare_store(const struct keel_run *run)
{
    char root[KEEL_PATH_BYTES];
    struct keel_store *store;
    KEEL_TRY(keel_path_join(root, run->directory, "ckpt"));
    struct keel_store_config config = {.root = root, .run = run->job.name, .create = true};
    KEEL_TRY(keel_store_open(&config, &store));
    keel_store_close(store);
    printf("prepared: %s\n", run->directory);
    return KEEL_OK;
}

static enum keel_status carry_out(struct keel_run *run)
{
    if (run->over)
        return tell_over(run);
    return run->prepare_only ? prepare_store(run) : keel_run_job(run);
}

int keel_run_main(int argc, char **argv)
{
    struct keel_run *run;
    bool help = false;
    keel_process_heed_interrupts(); /* also who watches, as who leads does (launcher.h) */
    if (keel_alloc(1, sizeof *run, &run) != KEEL_OK)
        return keel_status_exit_code(KEEL_NO_MEMORY);
    run->locks = (struct keel_launch_locks){.run_fd = -1, .leader_fd = -1};
    enum keel_status status = parse_arguments(run, argc, argv, &help);
    if (help)
        print_help();
    else if (status == KEEL_OK)
        status = prepare(run);
    if (!help && status == KEEL_OK)
        status = carry_out(run);
    if (status != KEEL_OK)
        fprintf(stderr, "keel run: %s: %s\n", keel_status_text(status), keel_detail());
    keel_launch_unlock(&run->locks);
    keel_step_ranges_free(&run->end.lacks);
    keel_free(run);
    return keel_status_exit_code(status);
}
