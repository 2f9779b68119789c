/* run_lives.c - see run_lives.h. */
#include "run_lives.h"
#include "jsonl.h"
#include "remote_leader.h"
#include "report.h"
#include "run_look.h"
#include "slow_watch.h"
#include "succession.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/command.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- snapshots that are there -------------------------------------------------------------------------- */

enum { LISTED_MAX = 256, LIVES_MAX = 3 };
#define NO_STEP UINT64_MAX

enum keel_status keel_run_store_root(const struct keel_run *run, char out[KEEL_PATH_BYTES])
{
    if (run->job.snapshot_store[0] == '\0')
        return keel_path_join(out, run->directory, "ckpt");
    memcpy(out, run->job.snapshot_store, KEEL_PATH_BYTES);
    return KEEL_OK;
}

enum keel_status keel_run_open_store(const struct keel_run *run, struct keel_store **out)
{
    char root[KEEL_PATH_BYTES];
    *out = NULL;
    KEEL_TRY(keel_run_store_root(run, root));
    struct keel_store_config config = {
        .root = root, .run = run->job.name, .read_only = true, .key_file = keel_job_key_file(&run->job)};
    struct keel_slow_watch watch = {.path = root, .by_signal = !run->takes_over};
    keel_slow_begin(&watch);
    const enum keel_status status = keel_path_exists(root) ? keel_store_open(&config, out) : KEEL_OK;
    keel_slow_end(&watch);
    return status == KEEL_NOT_FOUND ? KEEL_OK : status;
}

/* Will workers take it? Every chunk is read only when it lies behind the metrics: records of steps before
 * the first one are not delivered, and none that is missing there may be passed over. */
static bool is_whole(struct keel_store *store, const struct keel_snapshot_info *info, uint64_t on_record)
{
    struct keel_snapshot *snapshot;
    uint32_t damaged;
    if (keel_snapshot_open(store, info->step, info->attempt, &snapshot) != KEEL_OK)
        return false;
    bool whole = info->step <= on_record || keel_snapshot_verify(snapshot, NULL, NULL, &damaged) == KEEL_OK;
    keel_snapshot_close(snapshot);
    return whole;
}

/* The step of the newest committed snapshot that is whole, NO_STEP when there is none; metrics go to
 * on_record.
 */
static uint64_t newest_whole(struct keel_store *store, uint64_t on_record)
{
    struct keel_snapshot_info list[LISTED_MAX];
    uint32_t count = 0, damaged = 0;
    if (keel_store_list(store, list, LISTED_MAX, &count, &damaged) != KEEL_OK)
        return NO_STEP;
    if (damaged > 0)
        keel_log(KEEL_LOG_WARN, "%u snapshots are passed over: their manifests are damaged", damaged);
    for (uint32_t i = 0; i < count; i++)
        if (is_whole(store, &list[i], on_record))
            return list[i].step;
    return NO_STEP;
}

static bool has_text(const json_t *line, const char *key, const char *text)
{
    const char *its = json_string_value(json_object_get(line, key));
    return its != NULL && strcmp(its, text) == 0;
}

/* The step of the newest snapshot since the run was last begun at step 1. */
static enum keel_status see_snapshot(void *context, const json_t *line, uint64_t number)
{
    uint64_t *step = context;
    (void)number;
    if (has_text(line, "event", "start") && has_text(line, "resume", "none"))
        *step = NO_STEP;
    const uint64_t its = (uint64_t)json_integer_value(json_object_get(line, "step"));
    const bool resumed = has_text(line, "event", "resumed"); /* who was to tell of it died first */
    if (has_text(line, "event", "snapshot") || (resumed && (*step == NO_STEP || its > *step)))
        *step = its;
    return KEEL_OK;
}

/* The newest that this run tells of; NO_STEP: none. */
static enum keel_status last_told(const struct keel_run *run, uint64_t *out)
{
    char path[KEEL_PATH_BYTES];
    uint64_t skipped;
    *out = NO_STEP;
    KEEL_TRY(keel_path_join(path, run->directory, "events.jsonl"));
    return keel_path_exists(path) ? keel_jsonl_read(path, see_snapshot, out, &skipped) : KEEL_OK;
}

/* A run that committed snapshots and finds none begins anew only when it is told to: they may be mended, or
 * lie elsewhere. */
static enum keel_status refuse_to_begin_anew(const struct keel_run *run, struct keel_store *store)
{
    struct keel_snapshot_info newest;
    uint64_t step = NO_STEP;
    uint32_t count = 0, damaged = 0;
    if (store != NULL)
        KEEL_TRY(keel_store_list(store, &newest, 1, &count, &damaged));
    if (count > 0) /* the workers look at these, and name what is wrong */
        return KEEL_OK;
    if (damaged > 0)
        return keel_fail(KEEL_CORRUPT,
                         "%.300s: the manifests of all %" PRIu32
                         " snapshots are damaged; mend them with keel ckpt repair, or "
                         "give --resume none to begin at step 1",
                         run->directory, damaged);
    enum keel_status status = last_told(run, &step);
    if (status != KEEL_OK || step == NO_STEP)
        return status;
    return keel_fail(
        KEEL_CORRUPT,
        "%.300s: this run committed a snapshot of step %" PRIu64
        ", and none is there now: bring them back, or mend them with keel ckpt repair --from a copy, or "
        "give --resume none to begin at step 1",
        run->directory, step);
}

/* The first step that this life of the run commits. NOT_FOUND, CORRUPT: not the snapshot that was asked for.
 */
static enum keel_status find_first_step(const struct keel_run *run, const char *resume, uint64_t on_record,
                                        uint64_t *out)
{
    struct keel_store *store;
    *out = 1;
    if (resume != NULL && strcmp(resume, "none") == 0)
        return KEEL_OK;
    bool newest = resume == NULL || strcmp(resume, "auto") == 0;
    uint64_t step = newest ? 0 : strtoull(resume, NULL, 10);
    KEEL_TRY(keel_run_open_store(run, &store));
    enum keel_status status = KEEL_OK;
    struct keel_snapshot *asked = NULL;
    if (newest) {
        step = store != NULL ? newest_whole(store, on_record) : NO_STEP;
        status = step == NO_STEP ? refuse_to_begin_anew(run, store) : KEEL_OK;
        step = step == NO_STEP ? 0 : step;
    } else
        status = store == NULL ? keel_fail(KEEL_NOT_FOUND, "%s holds no snapshots", run->directory)
                               : keel_snapshot_open(store, step, 0, &asked);
    keel_snapshot_close(asked);
    keel_store_close(store);
    if (status != KEEL_OK && newest)
        return status;
    if (status != KEEL_OK) {
        char why[KEEL_DETAIL_BYTES];
        snprintf(why, sizeof why, "%.200s", keel_detail());
        return keel_fail(status, "--resume %s: %s (keel ckpt ls %s/ckpt lists what there is)", resume, why,
                         run->directory);
    }
    *out = step + 1;
    return KEEL_OK;
}

/* snapshot.local: what nodes have they say themselves, once they are there. They are told how far the run
 * came, so that they take nothing that is newer, and what was committed, so that they do not begin anew where
 * that is gone: as --resume auto:RECORDS[:COMMITTED]. */
static enum keel_status find_first_local_step(const struct keel_run *run, const char *resume,
                                              uint64_t on_record, uint64_t *out, char words[64])
{
    struct keel_store *store;
    uint64_t told, stored;
    const bool newest = resume == NULL || strcmp(resume, "auto") == 0;
    snprintf(words, 64, "%s", newest ? "auto" : resume);
    *out = newest || strcmp(resume, "none") == 0 ? 1 : strtoull(resume, NULL, 10) + 1;
    if (!newest)
        return KEEL_OK;
    KEEL_TRY(last_told(run, &told));
    KEEL_TRY(keel_run_open_store(run, &store));
    stored = store != NULL ? newest_whole(store, on_record) : NO_STEP;
    keel_store_close(store);
    /* In the store, too, what is newer than the records was committed by nodes; where there are none it
     * counts. */
    const uint64_t known = told != NO_STEP && told > on_record ? told : on_record;
    if (stored != NO_STEP && (known == 0 || stored <= known) && (told == NO_STEP || stored > told))
        told = stored;
    if (told == NO_STEP) {
        snprintf(words, 64, "auto:%" PRIu64, on_record);
        return KEEL_OK;
    }
    *out = told + 1;
    snprintf(words, 64, "auto:%" PRIu64 ":%" PRIu64, on_record > told ? on_record : told, told);
    return KEEL_OK;
}

/* Is the end of the run, of that step, durable? It is when it was to be: snapshot.every = 0 asks for nothing.
 * Snapshots up to the step on_record are looked at, those behind it are read. */
bool keel_run_end_is_kept(const struct keel_run *run, uint64_t on_record, uint64_t end_step)
{
    struct keel_store *store;
    uint64_t told;
    if (run->job.snapshot_every == 0)
        return true;
    if (keel_job_has_local_snapshots(&run->job)) /* on all nodes, by their word */
        return run->job.steps == 0 ||
               (last_told(run, &told) == KEEL_OK && told != NO_STEP && told >= end_step);
    if (keel_run_open_store(run, &store) != KEEL_OK || store == NULL)
        return false;
    uint64_t step = newest_whole(store, on_record);
    keel_store_close(store);
    return run->job.steps == 0 || (step != NO_STEP && step >= end_step); /* 0: nothing is trained */
}

void keel_run_show_sample(const struct keel_run *run)
{
    char path[KEEL_PATH_BYTES], *text;
    size_t bytes;
    if (run->job.sample_tokens == 0 || keel_path_join(path, run->directory, "sample.txt") != KEEL_OK ||
        keel_file_read(path, 1 << 24, &text, &bytes) != KEEL_OK)
        return;
    printf("--- %u tokens from the trained model ---\n%s\n---\n", run->job.sample_tokens, text);
    keel_free(text);
}

/* ---- the run ------------------------------------------------------------------------------------------- */

/* From which step on it computes. `words` are for what workers are told of it. */
static enum keel_status begin_life(const struct keel_run *run, struct keel_output *output,
                                   struct keel_launch_config *config, char words[64])
{
    const uint64_t on_record = keel_output_next_step(output) - 1;
    if (keel_job_has_local_snapshots(&run->job)) {
        KEEL_TRY(find_first_local_step(run, config->resume, on_record, &config->first_step, words));
        config->resume = words;
    } else
        KEEL_TRY(find_first_step(run, config->resume, on_record, &config->first_step));
    return keel_output_resume(output, config->first_step);
}

static bool is_early(const struct keel_run *run, const struct keel_output *output)
{
    return keel_output_end_step(output) < run->job.steps;
}

/* Where another led at the end of this life, or before. Is one still there, from whom this host is cut off,
 * they stay with it. */
static enum keel_status take_led(const struct keel_run *run, struct keel_output *output, uint64_t first_step)
{
    struct keel_remote_leader leader;
    char root[KEEL_PATH_BYTES], why[KEEL_DETAIL_BYTES];
    snprintf(why, sizeof why, "%s", keel_detail());
    if (keel_job_holders(&run->job) > 1) {
        KEEL_TRY(keel_run_store_root(run, root));
        if (!keel_remote_leader_lives(root, run->job.timeout_s, &leader))
            KEEL_TRY(keel_output_take_led(output, root, first_step));
    }
    keel_detail_set(why); /* of how the life ended */
    return KEEL_OK;
}

/* A stop was heard. OK: all that was committed is in a snapshot, or the job has none. */
static enum keel_status tell_unsaved(const struct keel_run *run, const struct keel_output *output, bool hangs)
{
    uint64_t told;
    if (run->job.snapshot_every == 0 || last_told(run, &told) != KEEL_OK)
        return KEEL_OK;
    return keel_output_tell_unsaved(output, told == NO_STEP ? 0 : told, hangs);
}

/* One life. DONE is said when all steps are: whoever dies behind that takes his share of the last snapshot
 * with him, and *again says that it is to be made once more. */
static enum keel_status live(struct keel_run *run, struct keel_output *output, const char *resume,
                             bool *again)
{
    bool signalled = false, unsaved = false;
    run->left = false;
    char words[64];
    struct keel_launch_config config = {.job = &run->job,
                                        .job_path = run->job_copy,
                                        .directory = run->directory,
                                        .identity = run->identity,
                                        .plans = run->plans.numbers,
                                        .passed_on = run->passed_on,
                                        .passed_on_count = run->passed_on_count,
                                        .resume = resume,
                                        .locks = run->locks,
                                        .report = keel_output_report(output),
                                        .left = &run->left,
                                        .signalled = &signalled,
                                        .unsaved = &unsaved};
    *again = false;
    const bool goes_on = resume == NULL || strcmp(resume, "auto") == 0;
    if (!run->takes_over && goes_on && is_early(run, output) &&
        keel_run_end_is_kept(run, 0, keel_output_end_step(output)))
        return KEEL_OK;
    if (run->takes_over) {
        config.take_over = &run->take_over;
        config.first_step = run->first_step;
        config.kept_step = keel_output_last_snapshot(output);
    } else {
        KEEL_TRY(begin_life(run, output, &config, words));
        if (keel_job_holders(&run->job) >
            1) /* views of nodes that led, of which the launcher's host has heard only so */
            KEEL_TRY(keel_output_past_epoch(output, &config.past_epoch));
    }
    enum keel_status status = keel_launch(&config);
    run->takes_over = false; /* another life is one of our own */
    if (run->left)
        return status;
    if (!unsaved) /* else the store may hang, and they are taken by the next */
        KEEL_TRY(take_led(run, output, config.first_step));
    enum keel_status spiked = keel_output_spike(output, again);
    if (*again && signalled) {
        *again = false;
        return keel_fail(KEEL_INTERRUPTED,
                         "stopped after the loss had exploded; the same command goes back to the "
                         "snapshot before");
    }
    KEEL_TRY(spiked);
    if (status == KEEL_INTERRUPTED && !signalled && is_early(run, output))
        status = KEEL_OK;
    if (status == KEEL_INTERRUPTED && signalled)
        KEEL_TRY(tell_unsaved(run, output, unsaved));
    const bool differ = status == KEEL_MISMATCH || (status == KEEL_OK && keel_output_mismatches(output) > 0);
    if (differ && !signalled && keel_output_dispute(output)) {
        *again = true;
        return status == KEEL_OK ? KEEL_MISMATCH : status;
    }
    KEEL_TRY(status);
    if (keel_output_mismatches(output) > 0)
        return keel_fail(KEEL_MISMATCH, "%" PRIu64 " steps came with different bits; see %s/events.jsonl",
                         keel_output_mismatches(output), run->directory);
    KEEL_TRY(keel_output_settle(output));
    if (keel_run_end_is_kept(run, keel_output_end_step(output), keel_output_end_step(output)))
        return KEEL_OK;
    enum keel_status failure = keel_output_snapshot_failure(output);
    bool machine = failure == KEEL_NO_MEMORY || failure == KEEL_NO_SPACE || failure == KEEL_DENIED;
    *again = failure == KEEL_OK;
    return keel_fail(*again    ? KEEL_INTERRUPTED
                     : machine ? failure
                               : KEEL_IO,
                     "all steps are done, but their end is not kept: %s; the same command makes it again",
                     *again ? "the last snapshot was lost with its node" : keel_detail());
}

static enum keel_status run_lives(struct keel_run *run, struct keel_output *output)
{
    bool again;
    enum keel_status status = live(run, output, run->resume, &again);
    for (uint32_t lives = 1; again && lives < LIVES_MAX; lives++) {
        if (status != KEEL_DIVERGED && status != KEEL_MISMATCH)
            keel_output_tell_end_again(output);
        status = live(run, output, "auto", &again);
    }
    return status;
}

/* Who led before may have been killed between a commit and its event. */
static void tell_kept(const struct keel_run *run, struct keel_output *output)
{
    struct keel_store *store;
    struct keel_snapshot_info list[LISTED_MAX];
    uint32_t count = 0;
    if (!keel_job_takes_snapshots(&run->job) || keel_job_has_local_snapshots(&run->job) ||
        keel_run_open_store(run, &store) != KEEL_OK || store == NULL)
        return;
    if (keel_store_list(store, list, LISTED_MAX, &count, NULL) != KEEL_OK)
        count = 0;
    while (count-- > 0) /* the newest comes first in the list */
        keel_output_found_snapshot(output, list[count].step, list[count].attempt);
    keel_store_close(store);
}

enum keel_status keel_run_job(struct keel_run *run)
{
    struct keel_output *output;
    const bool quiet = run->takes_over && isatty(STDOUT_FILENO) != 0; /* others use it now */
    if (run->takes_over) {
        KEEL_TRY(keel_output_take_over(run->directory, &run->job, run->heard_ns, run->first_step,
                                       run->locks.leader_fd, &output));
    } else {
        KEEL_TRY(keel_output_open(run->directory, &run->job, run->resume, &output));
        keel_output_tell_plans(output, &run->plans);
    }
    if (run->takes_over)
        tell_kept(run, output);
    enum keel_status status = run_lives(run, output);
    if (run->left) { /* nothing ended: another may lead */
        keel_output_close(output);
        return status;
    }
    char detail[KEEL_DETAIL_BYTES];
    snprintf(detail, sizeof detail, "%s", status == KEEL_OK ? "" : keel_detail());
    keel_output_finish(output, status, detail);
    keel_output_close(output);
    enum keel_status written = keel_report_write(run->directory);
    if (written == KEEL_NOT_FOUND && run->job.steps == 0)
        ; /* no step, nothing to draw */
    else if (written != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "no report: %s", keel_detail());
    else if (!quiet)
        printf("report: %s/report.html\n", run->directory);
    if (status != KEEL_OK)
        keel_detail_set(detail);
    else if (!quiet)
        keel_run_show_sample(run);
    return status;
}

/* ---- taking over --------------------------------------------------------------------------------------- */

enum lead_option { LEAD_RUN, LEAD_ENDED, LEAD_PASSED_ON };

struct lead {
    struct keel_run run;
    uint64_t incarnation;
};

static enum keel_status take_lead_option(void *own, const struct keel_command_option *option, char *value)
{
    struct lead *lead = own;
    switch ((enum lead_option)option->offset) {
    case LEAD_RUN:
        lead->run.take_over.run = strtoull(value, NULL, 16);
        return KEEL_OK;
    case LEAD_ENDED:
        lead->run.take_over.ended = true;
        for (int status = 0; status < KEEL_STATUS_COUNT; status++)
            if (strcmp(value, keel_status_name((enum keel_status)status)) == 0)
                lead->run.take_over.status = (enum keel_status)status;
        return KEEL_OK;
    case LEAD_PASSED_ON:
        break;
    }
    return keel_run_pass_on(&lead->run, option->name, value);
}

#define INTO_LEAD(field) offsetof(struct lead, field)
static const struct keel_command_option lead_options[] = {
    {"--run", "HEX", KEEL_COMMAND_CALL, LEAD_RUN, NULL},
    {"--incarnation", "I", KEEL_COMMAND_COUNT, INTO_LEAD(incarnation), NULL},
    {"--heard", "NS", KEEL_COMMAND_COUNT, INTO_LEAD(run.heard_ns), NULL},
    {"--ended", "STATUS", KEEL_COMMAND_CALL, LEAD_ENDED, NULL},
    {"--detail", "TEXT", KEEL_COMMAND_TEXT, INTO_LEAD(run.take_over.detail), NULL},
    {"--resume", "WHAT", KEEL_COMMAND_TEXT, INTO_LEAD(run.resume), NULL},
    {"--drill", "SPEC", KEEL_COMMAND_CALL, LEAD_PASSED_ON, NULL},
    {"--dump-graph", "DIR", KEEL_COMMAND_CALL, LEAD_PASSED_ON, NULL},
    {"--passes-off", "LIST", KEEL_COMMAND_CALL, LEAD_PASSED_ON, NULL},
    {"--trace-device", "DIR", KEEL_COMMAND_CALL, LEAD_PASSED_ON, NULL},
    {.name = NULL},
};

/* All that `keel run` left in the directory. The locks and the socket came from the agent that started this.
 */
static enum keel_status prepare_lead(struct lead *lead, const char *directory)
{
    struct keel_run *run = &lead->run;
    char path[KEEL_PATH_BYTES], *identity;
    size_t bytes;
    run->takes_over = true;
    run->take_over.incarnation = (uint32_t)lead->incarnation;
    run->take_over.socket = KEEL_LEAD_SOCKET_FD;
    run->locks = (struct keel_launch_locks){.run_fd = KEEL_LEAD_RUN_FD, .leader_fd = KEEL_LEAD_LEADER_FD};
    snprintf(run->directory, sizeof run->directory, "%s", directory);
    KEEL_TRY(keel_path_join(run->job_copy, directory, "job.conf"));
    KEEL_TRY(keel_job_load(run->job_copy, NULL, 0, &run->job));
    KEEL_TRY(keel_path_join(path, directory, "identity"));
    KEEL_TRY(keel_file_read(path, KEEL_IDENTITY_BYTES, &identity, &bytes));
    snprintf(run->identity, sizeof run->identity, "%s", identity);
    keel_free(identity);
    uint64_t past_epoch; /* where agents may lead, nobody takes over here */
    return keel_launch_read_state(directory, run->job.ranks, &run->first_step, &past_epoch,
                                  run->plans.numbers);
}

int keel_lead_main(int argc, char **argv)
{
    struct lead *lead;
    if (keel_alloc(1, sizeof *lead, &lead) != KEEL_OK)
        return keel_status_exit_code(KEEL_NO_MEMORY);
    keel_log_set_name("leader");
    signal(SIGHUP, SIG_IGN);  /* it has no terminal, */
    signal(SIGTTOU, SIG_IGN); /* and may write to one that others use now */
    keel_launch_hold_signals();
    struct keel_command_words words = {
        .options = lead_options, .own = lead, .take = take_lead_option, .operands_max = 1};
    enum keel_status status = keel_command_read(&words, argc, argv);
    if (status == KEEL_OK && (words.operand_count == 0 || lead->run.take_over.run == 0))
        status = keel_fail(KEEL_INVALID, "is started by keel agent alone");
    if (status == KEEL_OK)
        status = prepare_lead(lead, words.operands[0]);
    if (status == KEEL_OK)
        status = keel_run_job(&lead->run);
    if (status != KEEL_OK)
        fprintf(stderr, "keel lead: %s: %s\n", keel_status_text(status), keel_detail());
    keel_free(lead);
    return keel_status_exit_code(status);
}
