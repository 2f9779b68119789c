/* run_output_files.c - opens what a run writes about itself: for a new life, for one who takes a run over,
 * and to see how it ended. */
#include "drill.h"
#include "run_asks.h"
#include "run_fields.h"
#include "run_led.h"
#include "run_locks.h"
#include "run_look.h"
#include "run_output_state.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- open and close ------------------------------------------------------------------------------------ */

static enum keel_status open_files(struct keel_output *output)
{
    char path[FILE_NAME_BYTES];
    struct stat last;
    KEEL_TRY(keel_path_join(path, output->directory, "metrics.jsonl"));
    if (stat(path, &last) == 0) { /* its last line was written when the last step was committed */
        uint64_t written_ns = (uint64_t)last.st_mtim.tv_sec * KEEL_NS_PER_S + (uint64_t)last.st_mtim.tv_nsec;
        uint64_t now_ns = keel_wall_ns();
        output->down_ns = now_ns > written_ns ? now_ns - written_ns : 0;
    }
    KEEL_TRY(keel_jsonl_open(path, NULL, NULL, &output->metrics));
    KEEL_TRY(keel_output_read_metrics(output));
    KEEL_TRY(keel_path_join(path, output->directory, "events.jsonl"));
    return keel_jsonl_open(path, NULL, NULL, &output->events);
}

static enum keel_status open_output(const char *directory, const struct keel_job *job, int lock_fd,
                                    struct keel_output **out)
{
    struct keel_output *output;
    KEEL_TRY(keel_alloc(1, sizeof *output, &output));
    output->job = job;
    output->lock_fd = lock_fd;
    output->moves = keel_job_holders(job) > 1;
    output->started_ns = keel_now_ns();
    output->last_drill_ns = keel_drill_last_ns(directory);
    keel_loss_past_begin(&output->past, job->patience, job->min_delta);
    snprintf(output->directory, sizeof output->directory, "%s", directory);
    enum keel_status status = open_files(output);
    if (status != KEEL_OK)
        keel_output_close(output);
    else
        *out = output;
    return status;
}

enum keel_status keel_output_open(const char *directory, const struct keel_job *job, const char *resume,
                                  struct keel_output **out)
{
    struct keel_output *output;
    KEEL_TRY(open_output(directory, job, 0, &output));
    output->terminal = isatty(STDOUT_FILENO) != 0;
    output->steps_before = keel_output_last_step(output);
    char model[160];
    keel_job_describe(job, model, sizeof model);
    keel_output_event(output, "start",
                      json_pack("{s:I, s:s, s:s, s:i, s:i, s:f}", "next_step",
                                (json_int_t)keel_output_next_step(output), "resume",
                                resume != NULL ? resume : "auto", "model", model, "ranks", (int)job->ranks,
                                "spares", (int)job->spares, "down_s", keel_seconds_of(output->down_ns)));
    keel_output_tell_lacking(output, keel_output_last_step(output), false);
    *out = output;
    return KEEL_OK;
}

/* ---- taking over --------------------------------------------------------------------------------------- */

/* What went wrong so far decides how the run ends. */
static void take_past_trouble(struct keel_output *output, const char *event, uint64_t step,
                              const json_t *line)
{
    const char *status = json_string_value(json_object_get(line, "status"));
    const char *detail = json_string_value(json_object_get(line, "detail"));
    if (strcmp(event, "bits-differ") == 0 || strcmp(event, "ranks-differ") == 0)
        output->mismatches++;
    if (strcmp(event, "ranks-differ") == 0 ||
        (strcmp(event, "worker-failed") == 0 && status != NULL && strcmp(status, "MISMATCH") == 0))
        keel_output_doubt(output, step);
    if (strcmp(event, "went-back") == 0) {
        output->mismatches = output->disputed_step = 0;
        output->disputes++;
    }
    if (strcmp(event, "rank-outvoted") == 0) {
        output->mismatches -= output->disputed_step == step && output->mismatches > 0 ? 1 : 0;
        output->disputed_step = output->disputed_step == step ? 0 : output->disputed_step;
        output->outvoted_step = step;
    }
    if (strcmp(event, "snapshot-failed") == 0) {
        output->snapshot_status = keel_output_find_status(status);
        snprintf(output->snapshot_failure, sizeof output->snapshot_failure, "%s",
                 detail != NULL ? detail : event);
    }
}

/* The life that is taken over begins: what is behind it counts no more. */
static void take_past_start(struct keel_output *output, const json_t *line, uint64_t then_ns)
{
    const json_int_t next = json_integer_value(json_object_get(line, "next_step"));
    output->started_ns = then_ns;
    output->past_down_ns = (uint64_t)(json_number_value(json_object_get(line, "down_s")) * 1e9);
    output->steps_before = next > 0 ? (uint64_t)next - 1 : 0;
    output->first_step = output->view_ns = output->resumed_ns = output->went_back.step = 0;
    output->mismatches = output->disputed_step = output->outvoted_step = output->last_snapshot = 0;
    output->disputes = 0;
    output->snapshot_status = KEEL_OK;
    memset(&output->past_drained, 0, sizeof output->past_drained);
}

static uint64_t hex_of(const json_t *line, const char *key)
{
    const char *text = json_string_value(json_object_get(line, key));
    return text != NULL ? strtoull(text, NULL, 16) : 0;
}

/* What it went back from, and how far it is behind that. */
static void take_past_return(struct keel_output *output, const char *event, uint64_t step, const json_t *line)
{
    if (strcmp(event, "loss-spike") == 0)
        output->past_spike = (struct keel_seen_step){
            .step = step, .digest = hex_of(line, "digest"), .loss_bits = (uint32_t)hex_of(line, "loss_bits")};
    if (strcmp(event, "steps-withdrawn") == 0 && step == output->past_spike.step)
        output->went_back = output->past_spike;
    if (strcmp(event, "steps-withdrawn") == 0 && step <= output->steps_before)
        output->steps_before = step - 1;
    if (strcmp(event, "loss-spike-gone") == 0)
        output->went_back.step = 0;
    if (strcmp(event, "restarted") == 0)
        output->steps_before = 0;
}

static void take_past_drain(struct keel_output *output, const char *event, const json_t *line)
{
    const json_int_t node = json_integer_value(json_object_get(line, "node"));
    if (node < 1 || node >= KEEL_NODES_MAX)
        return;
    if (strcmp(event, "drained") == 0)
        keel_bitset_add(&output->past_drained, (uint32_t)node);
    if (strcmp(event, "drain-over") == 0)
        keel_bitset_remove(&output->past_drained, (uint32_t)node);
}

void keel_output_drain(void *context, uint16_t node, enum keel_drain_news news, uint16_t ranks,
                       uint16_t fewest)
{
    static const char *const names[] = {"drained", "drain-waits", "drain-over", "drain-waits"};
    struct keel_output *output = context;
    char detail[KEEL_DRAIN_TEXT_BYTES];
    const bool told = keel_bitset_has(&output->past_drained, node);
    keel_bitset_remove(&output->past_drained, node);
    if (told && news == KEEL_DRAIN_LEFT)
        return;
    keel_drain_text(node, news, ranks, fewest, detail);
    keel_output_event(context, names[news], json_pack("{s:i, s:s}", "node", (int)node, "detail", detail));
    keel_output_say(context, "%s", detail);
}

static void take_past_note(struct keel_output *output, const json_t *line)
{
    const json_int_t node = json_integer_value(json_object_get(line, "node"));
    if (json_object_get(line, "local") == NULL || node < 1 || node >= KEEL_NODES_MAX)
        return;
    json_decref(output->past_notes[node]);
    output->past_notes[node] = json_incref((json_t *)line);
}

static enum keel_status take_past_event(void *context, const json_t *line, uint64_t number)
{
    struct keel_output *output = context;
    const char *event = json_string_value(json_object_get(line, "event"));
    const uint64_t step = (uint64_t)json_integer_value(json_object_get(line, "step"));
    const uint64_t then_ns = (uint64_t)json_integer_value(json_object_get(line, "monotonic_ns"));
    keel_output_show_life(output, number);
    if (event == NULL)
        return KEEL_OK;
    take_past_note(output, line);
    if (strcmp(event, "start") == 0) {
        take_past_start(output, line, then_ns);
    } else if (strcmp(event, "view") == 0) {
        output->last_drill_ns = then_ns; /* later ones are not accounted for */
        output->view_ns = output->view_ns != 0 ? output->view_ns : then_ns;
    } else if (strcmp(event, "resumed") == 0) {
        output->first_step = step + 1;
        output->resumed_ns = then_ns;
    } else if (strcmp(event, "board") == 0) {
        keel_output_take_place(output, (uint16_t)json_integer_value(json_object_get(line, "node")),
                               (uint8_t)json_integer_value(json_object_get(line, "local")), line);
    } else if (strcmp(event, "snapshot") == 0) {
        output->last_snapshot = output->told_step = step;
        output->told_attempt = (uint64_t)json_integer_value(json_object_get(line, "attempt"));
        output->snapshot_status = KEEL_OK;
    } else {
        take_past_trouble(output, event, step, line);
        take_past_return(output, event, step, line);
        take_past_drain(output, event, line);
    }
    return KEEL_OK;
}

/* Where the newest life of the run begins; 0: that is not among the last 64 MiB, so that all is to be read.
 */
static uint64_t find_start(const char *path)
{
    struct keel_jsonl_place place = {.begin = 0};
    json_t *line;
    const bool found =
        keel_jsonl_find_back(path, UINT64_MAX, "\"event\":\"start\"", &line, &place) == KEEL_OK;
    json_decref(line);
    return found ? place.begin : 0;
}

/* Of the lives before, what counts in the newest one too. */
static void take_last_before(struct keel_output *output, const char *path, uint64_t start, const char *with)
{
    struct keel_jsonl_place place;
    json_t *line = NULL;
    if (start > 0 && keel_jsonl_find_back(path, start, with, &line, &place) == KEEL_OK)
        (void)take_past_event(output, line, 0);
    json_decref(line);
}

/* From that place on; lines that are no JSON are passed over. */
static enum keel_status read_events(const char *path, uint64_t from,
                                    enum keel_status (*take)(void *, const json_t *, uint64_t), void *context)
{
    struct keel_jsonl_reader reader;
    const char *text;
    size_t bytes;
    json_error_t error;
    KEEL_TRY(keel_jsonl_begin(&reader, path, from));
    enum keel_status status;
    while ((status = keel_jsonl_next(&reader, &text, &bytes)) == KEEL_OK && text != NULL) {
        json_t *line = json_loadb(text, bytes, 0, &error);
        if (line != NULL)
            status = take(context, line, reader.number);
        json_decref(line);
        if (status != KEEL_OK)
            break;
    }
    keel_jsonl_end(&reader);
    return status;
}

static enum keel_status take_past_view(void *context, const json_t *line, uint64_t number)
{
    uint64_t *newest = context;
    const char *event = json_string_value(json_object_get(line, "event"));
    const json_int_t view = json_integer_value(json_object_get(line, "view"));
    const json_int_t most = (json_int_t)1 << 48; /* out of reach by counting */
    (void)number;
    if (event != NULL && strcmp(event, "view") == 0 && view > 0 && view < most && (uint64_t)view > *newest)
        *newest = (uint64_t)view;
    return KEEL_OK;
}

enum keel_status keel_output_past_epoch(const struct keel_output *output, uint64_t *out)
{
    char path[FILE_NAME_BYTES];
    uint64_t skipped;
    *out = 0;
    KEEL_TRY(keel_path_join(path, output->directory, "events.jsonl"));
    return keel_jsonl_read(path, take_past_view, out, &skipped);
}

/* One that was on file before the last that agents may still tell of has ended its life. */
static enum keel_status find_spike(struct keel_output *output, uint64_t first_step,
                                   const struct keel_line **out)
{
    const uint64_t last = keel_output_last_step(output);
    const uint64_t near = last > KEEL_RECORDS_MAX ? last - KEEL_RECORDS_MAX : 1;
    const uint64_t from = first_step > near ? first_step : near;
    KEEL_TRY(keel_output_reach(output, from));
    *out = keel_output_judge_again(output, from);
    return KEEL_OK;
}

static enum keel_status read_past(struct keel_output *output, uint64_t first_step)
{
    char path[FILE_NAME_BYTES];
    KEEL_TRY(keel_path_join(path, output->directory, "events.jsonl"));
    const uint64_t start = find_start(path);
    take_last_before(output, path, start, "\"event\":\"snapshot\"");
    if (output->job->spike != KEEL_SPIKE_WARN)
        take_last_before(output, path, start, "\"event\":\"loss-spike\"");
    KEEL_TRY(read_events(path, start, take_past_event, output));
    if (output->job->spike == KEEL_SPIKE_WARN)
        return KEEL_OK;
    const struct keel_line *found;
    KEEL_TRY(find_spike(output, first_step, &found));
    if (found == NULL)
        return KEEL_OK;
    output->spiked = found->seen;
    atomic_store(&output->refused_step, found->seen.step);
    return KEEL_OK;
}

enum keel_status keel_output_take_over(const char *directory, const struct keel_job *job, uint64_t heard_ns,
                                       uint64_t first_step, int lock_fd, struct keel_output **out)
{
    struct keel_output *output;
    KEEL_TRY(open_output(directory, job, lock_fd, &output));
    const enum keel_status status = read_past(output, first_step);
    if (status != KEEL_OK) {
        keel_output_close(output);
        return status;
    }
    (void)keel_output_find_lacking(output, &output->told); /* who led before has told these */
    output->heard_ns = heard_ns;
    output->commit_ns = keel_now_ns() - output->down_ns; /* of the last line */
    output->down_ns = output->past_down_ns;
    output->first_step = output->first_step > 0 ? output->first_step : first_step;
    keel_output_say(output, "process %ld takes the run over behind step %" PRIu64 ": keel job attach %s",
                    (long)getpid(), keel_output_last_step(output), directory);
    output->quiet = isatty(STDOUT_FILENO) != 0;
    *out = output;
    return KEEL_OK;
}

/* ---- other hosts lead ---------------------------------------------------------------------------------- */

enum keel_status keel_output_lead(const char *directory, const struct keel_job *job, uint64_t heard_ns,
                                  struct keel_output **out)
{
    KEEL_TRY(open_output(directory, job, 0, out));
    (*out)->heard_ns = heard_ns;
    (*out)->commit_ns = keel_now_ns();
    (*out)->others_led = (*out)->apart = true;
    return KEEL_OK;
}

/* The files are other ones now: what was open is closed once they are. */
static enum keel_status open_again(struct keel_output *output)
{
    struct keel_jsonl *metrics = output->metrics, *events = output->events;
    output->others_led = false; /* what they have is there now */
    output->metrics = output->events = NULL;
    const enum keel_status status = open_files(output);
    if (status != KEEL_OK) {
        keel_jsonl_close(output->metrics);
        output->metrics = metrics;
        output->events = events;
        return status;
    }
    keel_jsonl_close(metrics);
    keel_jsonl_close(events);
    return KEEL_OK;
}

/* What a node that led ended the run for is in its lines. */
static enum keel_status take_led_spike(struct keel_output *output, uint64_t first_step)
{
    const struct keel_line *found;
    if (output->job->spike == KEEL_SPIKE_WARN || output->spiked.step != 0)
        return KEEL_OK;
    KEEL_TRY(find_spike(output, first_step, &found));
    if (found != NULL)
        output->spiked = found->seen;
    return KEEL_OK;
}

enum keel_status keel_output_take_led(struct keel_output *output, const char *store, uint64_t first_step)
{
    bool taken;
    uint64_t differing;
    keel_output_write_held(output, UINT64_MAX);
    KEEL_TRY(keel_jsonl_sync(output->metrics));
    KEEL_TRY(keel_jsonl_sync(output->events));
    enum keel_status status = keel_led_take(output->directory, store, &taken, &differing);
    output->mismatches += differing;
    if (taken) {
        enum keel_status opened = open_again(output);
        if (opened == KEEL_OK)
            opened = take_led_spike(output, first_step);
        status = status == KEEL_OK ? opened : status;
    }
    const struct keel_seen_step *last = &keel_output_last(output)->seen;
    if (last->step > output->newest.step) {
        output->newest.step = last->step;
        output->newest.loss_bits = last->loss_bits;
        output->newest.digest = last->digest;
    }
    output->apart = output->apart && status != KEEL_OK;
    if (status == KEEL_OK)
        keel_output_tell_lacking(output, last->step, false);
    return status;
}

/* ---- closing ------------------------------------------------------------------------------------------- */

void keel_output_close(struct keel_output *output)
{
    if (output == NULL)
        return;
    keel_output_write_held(output, UINT64_MAX);
    keel_jsonl_close(output->metrics);
    keel_jsonl_close(output->events);
    keel_output_forgive(output);
    for (uint32_t node = 0; node < KEEL_NODES_MAX; node++) {
        keel_free(output->places[node]);
        json_decref(output->past_notes[node]);
    }
    keel_free(output->held);
    keel_free(output->carriers);
    keel_free(output->seen);
    keel_step_ranges_free(&output->base_lacks);
    keel_step_ranges_free(&output->told);
    keel_free(output);
}

/* Did the newest life that there are events of end well? */
static enum keel_status take_old_event(void *context, const json_t *line, uint64_t number)
{
    bool *well = context;
    const char *event = json_string_value(json_object_get(line, "event"));
    const char *status = json_string_value(json_object_get(line, "status"));
    (void)number;
    if (event != NULL && strcmp(event, "end") == 0)
        *well = status != NULL && strcmp(status, keel_status_name(KEEL_OK)) == 0;
    return KEEL_OK;
}

enum keel_status keel_output_read_end(const char *directory, struct keel_metric_file *out)
{
    char path[FILE_NAME_BYTES];
    bool well = false;
    KEEL_TRY(keel_path_join(path, directory, "events.jsonl"));
    KEEL_TRY(read_events(path, find_start(path), take_old_event, &well));
    KEEL_TRY(well ? KEEL_OK : keel_fail(KEEL_NOT_FOUND, "%s: no run ended well there", directory));
    KEEL_TRY(keel_metric_look(directory, out));
    if (out->last.seen.step > 0 && !out->damaged)
        return KEEL_OK;
    keel_step_ranges_free(&out->lacks);
    return keel_fail(KEEL_NOT_FOUND, "%s: its lines are not whole", directory);
}

/* ---- the end ------------------------------------------------------------------------------------------- */

enum keel_status keel_output_tell_unsaved(const struct keel_output *output, uint64_t kept_step, bool hangs)
{
    const uint64_t last = keel_output_last_step(output);
    char why[KEEL_DETAIL_BYTES];
    if (last <= kept_step)
        return KEEL_OK;
    if (hangs)
        return keel_fail(KEEL_TIMEOUT,
                         KEEL_RUN_UNSAVED
                         ", which did not come in time: the store of snapshots hangs, or a step is longer "
                         "than six timeouts; bring the store back, and the same command computes steps "
                         "%" PRIu64 " to %" PRIu64 " again",
                         kept_step + 1, last);
    const bool failed = keel_output_snapshot_failure(output) != KEEL_OK;
    snprintf(why, sizeof why, "%.300s",
             failed ? keel_detail() : "it was ended at once, or a rank was lost, or left, as it stopped");
    return keel_fail(KEEL_INTERRUPTED,
                     KEEL_RUN_UNSAVED ": %s; the same command computes steps %" PRIu64 " to %" PRIu64
                                      " again",
                     why, kept_step + 1, last);
}
