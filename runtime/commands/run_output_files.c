/* run_output_files.c - opens what a run writes about itself: for a new life, for one who takes a run over,
 * and to see how it ended. */
#include "drill.h"
#include "run_fields.h"
#include "run_led.h"
#include "run_locks.h"
#include "run_output_state.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINES_A_TOUCH = 1024 }; /* some milliseconds */

static void show_life(const struct keel_output *output, uint64_t number)
{
    if (output->lock_fd > 0 && number % LINES_A_TOUCH == 0)
        keel_lock_touch(output->lock_fd);
}

static enum keel_status take_old_metric(void *context, const json_t *line, uint64_t number)
{
    struct keel_output *output = context;
    const char *loss = json_string_value(json_object_get(line, "loss_bits"));
    const char *digest = json_string_value(json_object_get(line, "digest"));
    json_int_t step = json_integer_value(json_object_get(line, "step"));
    show_life(output, number);
    if (loss == NULL || digest == NULL || step < 1 || (uint64_t)step > UINT32_MAX ||
        (uint64_t)step <= keel_output_last_step(output))
        return keel_fail(KEEL_CORRUPT,
                         "%s/metrics.jsonl:%" PRIu64
                         ": not a metric of Keel, or out of order; move the file away",
                         output->directory, number);
    struct keel_seen_step seen = {.step = (uint64_t)step,
                                  .digest = strtoull(digest, NULL, 16),
                                  .loss_bits = (uint32_t)strtoul(loss, NULL, 16)};
    const json_t *val_loss = json_object_get(line, "val_loss");
    const uint64_t end_step = atomic_load(&output->end_step);
    if (end_step != 0 && seen.step > end_step) { /* the run went on, without that rule: it begins anew */
        keel_early_stop_withdraw(&output->early, 0);
        atomic_store(&output->end_step, 0);
    }
    if (val_loss != NULL) /* in so many digits that it comes back the same; null is no number */
        (void)keel_output_evaluated(output, seen.step,
                                    json_is_real(val_loss) ? (float)json_real_value(val_loss) : NAN);
    return keel_output_remember(output, seen);
}

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
    KEEL_TRY(keel_jsonl_open(path, take_old_metric, output, &output->metrics));
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
    output->moves = job->holders > 1;
    output->started_ns = keel_now_ns();
    output->last_drill_ns = keel_drill_last_ns(directory);
    output->early = (struct keel_early_stop){.patience = job->patience, .min_delta = job->min_delta};
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
    keel_output_check_seen(output, UINT64_MAX);
    char model[160];
    keel_job_describe(job, model, sizeof model);
    keel_output_event(output, "start",
                      json_pack("{s:I, s:s, s:s, s:i, s:i, s:f}", "next_step",
                                (json_int_t)keel_output_next_step(output), "resume",
                                resume != NULL ? resume : "auto", "model", model, "ranks", (int)job->ranks,
                                "spares", (int)job->spares, "down_s", keel_seconds_of(output->down_ns)));
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
    char detail[160];
    const bool told = keel_bitset_has(&output->past_drained, node);
    keel_bitset_remove(&output->past_drained, node);
    if (told && news == KEEL_DRAIN_LEFT)
        return;
    if (news == KEEL_DRAIN_LEFT)
        snprintf(detail, sizeof detail, "node %u has left the run; keel job add brings it back", node);
    else if (news == KEEL_DRAIN_OVER)
        snprintf(detail, sizeof detail, "node %u is wanted again", node);
    else if (news == KEEL_DRAIN_HOLDS)
        snprintf(detail, sizeof detail,
                 "node %u stays for now: without it %u holders of the view are left, and %u decide "
                 "(cluster.holders)",
                 node, ranks, fewest);
    else
        snprintf(detail, sizeof detail,
                 "node %u stays for now: without it %u ranks are left, and the smallest plan needs %u", node,
                 ranks, fewest);
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
    show_life(output, number);
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

static enum keel_status read_past(struct keel_output *output, uint64_t first_step)
{
    char path[FILE_NAME_BYTES];
    uint64_t skipped;
    KEEL_TRY(keel_path_join(path, output->directory, "events.jsonl"));
    KEEL_TRY(keel_jsonl_read(path, take_past_event, output, &skipped));
    const struct keel_seen_step *found = keel_output_check_seen(output, first_step);
    if (found == NULL || output->job->spike == KEEL_SPIKE_WARN)
        return KEEL_OK;
    output->spiked = *found;
    atomic_store(&output->refused_step, found->step);
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
    return KEEL_OK;
}

/* The files are other ones now: what was open is closed once they are. */
static enum keel_status open_again(struct keel_output *output)
{
    struct keel_jsonl *metrics = output->metrics, *events = output->events;
    output->seen_count = output->lines = 0;
    keel_early_stop_withdraw(&output->early, 0);
    atomic_store(&output->end_step, 0);
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

enum keel_status keel_output_take_led(struct keel_output *output, const char *store)
{
    bool taken;
    uint64_t differing;
    keel_output_write_held(output, UINT64_MAX);
    KEEL_TRY(keel_jsonl_sync(output->metrics));
    KEEL_TRY(keel_jsonl_sync(output->events));
    enum keel_status status = keel_led_take(output->directory, store, &taken, &differing);
    output->mismatches += differing;
    if (taken) {
        const enum keel_status opened = open_again(output);
        status = status == KEEL_OK ? opened : status;
    }
    const struct keel_seen_step *last = output->seen_count > 0 ? &output->seen[output->seen_count - 1] : NULL;
    if (last != NULL && last->step > output->newest.step) {
        output->newest.step = last->step;
        output->newest.loss_bits = last->loss_bits;
        output->newest.digest = last->digest;
    }
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
    for (uint32_t node = 0; node < KEEL_NODES_MAX; node++) {
        keel_free(output->places[node]);
        json_decref(output->past_notes[node]);
    }
    keel_free(output->held);
    keel_early_stop_fini(&output->early);
    keel_free(output->seen);
    keel_free(output);
}

/* Did the newest life that there are events of end well? */
static enum keel_status take_old_event(void *context, const json_t *line, uint64_t number)
{
    bool *well = context;
    const char *event = json_string_value(json_object_get(line, "event"));
    const char *status = json_string_value(json_object_get(line, "status"));
    (void)number;
    if (event != NULL && strcmp(event, "start") == 0)
        *well = false;
    if (event != NULL && strcmp(event, "end") == 0)
        *well = status != NULL && strcmp(status, keel_status_name(KEEL_OK)) == 0;
    return KEEL_OK;
}

static enum keel_status read_end(struct keel_output *output, struct keel_seen_step *out_last)
{
    char path[FILE_NAME_BYTES];
    bool well = false;
    uint64_t skipped;
    KEEL_TRY(keel_path_join(path, output->directory, "events.jsonl"));
    KEEL_TRY(keel_jsonl_read(path, take_old_event, &well, &skipped));
    KEEL_TRY(keel_path_join(path, output->directory, "metrics.jsonl"));
    KEEL_TRY(keel_jsonl_read(path, take_old_metric, output, NULL));
    if (!well || output->seen_count == 0)
        return keel_fail(KEEL_NOT_FOUND, "%s: no run ended well there", output->directory);
    *out_last = output->seen[output->seen_count - 1];
    return KEEL_OK;
}

enum keel_status keel_output_read_end(const char *directory, struct keel_seen_step *out_last)
{
    struct keel_output *output;
    KEEL_TRY(keel_alloc(1, sizeof *output, &output));
    snprintf(output->directory, sizeof output->directory, "%s", directory);
    enum keel_status status = read_end(output, out_last);
    keel_output_close(output);
    return status;
}
