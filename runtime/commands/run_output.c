/* run_output.c - metrics, events and the terminal, from the launcher's callbacks. */
#include "drill.h"
#include "run_agents.h"
#include "run_bar.h"
#include "run_fields.h"
#include "run_output_state.h"
#include <inttypes.h>
#include <jansson.h>
#include <keel/bits.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- events -------------------------------------------------------------------------------------------- */

/* Write {"event": name, times, fields}; takes the reference of `fields`. */
void keel_output_event(struct keel_output *output, const char *name, json_t *fields)
{
    json_t *line = json_pack("{s:s, s:I, s:I}", "event", name, "monotonic_ns", (json_int_t)keel_now_ns(),
                             "wall_ns", (json_int_t)keel_wall_ns());
    if (line != NULL && fields != NULL)
        json_object_update(line, fields);
    json_decref(fields);
    keel_jsonl_write(output->events, line);
}

/* One line for people: above the bar on a terminal, plain otherwise. */
void keel_output_say(struct keel_output *output, const char *format, ...)
{
    char line[1024];
    va_list arguments;
    if (output->quiet)
        return;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    printf("%s[%8.2f s] %s\n", output->terminal ? "\r\033[K" : "",
           (double)(keel_now_ns() - output->started_ns) / 1e9, line);
    fflush(stdout);
}

/* ---- metrics ------------------------------------------------------------------------------------------- */

static void tell_skipped(struct keel_output *output, const struct keel_step_record *record)
{
    double scale = (double)keel_float_of(record->loss_scale_bits);
    keel_output_event(output, "step-skipped",
                      json_pack("{s:I, s:f}", "step", (json_int_t)record->step, "loss_scale", scale));
    keel_output_say(
        output, "step %" PRIu64 ": a gradient overflowed at loss scale %g: skipped, and the scale is halved",
        record->step, scale);
}

static const struct place *place_of(const struct keel_output *output, const struct keel_member *member)
{
    static const struct place unknown = {.host = ""};
    const struct place *row = output->places[member->node];
    return row != NULL ? &row[member->local] : &unknown;
}

/* The devices of the ranks of the newest view, in their order: [[device, ranks], ...], one for neighbours
 * that have the same, so that a line does not grow with the ranks. */
static json_t *boards_of(const struct keel_output *output)
{
    json_t *boards = json_array();
    for (uint32_t first = 0, next; first < output->members; first = next) {
        const char *device = place_of(output, &output->carriers[first])->device;
        for (next = first + 1; next < output->members &&
                               strcmp(place_of(output, &output->carriers[next])->device, device) == 0;)
            next++;
        json_array_append_new(boards, json_pack("[s, i]", device, (int)(next - first)));
    }
    return boards;
}

static void write_metric(struct keel_output *output, const struct keel_step_record *record, bool is_new)
{
    json_t *line = keel_metric_of(output->job, record);
    if (line != NULL && record->epoch == output->epoch)
        json_object_set_new(line, "boards", boards_of(output));
    keel_output_put(output, line, is_new);
}

static struct keel_line line_of(const struct keel_step_record *record)
{
    return (struct keel_line){
        .seen = {.step = record->step, .digest = record->digest, .loss_bits = record->loss_bits},
        .val_loss_bits = record->val_loss_bits,
        .has_val_loss = record->has_val_loss != 0,
        .a_step = record->step > 0 ? record->tokens / record->step : 0};
}

static void tell_mismatch(struct keel_output *output, uint64_t step, uint32_t loss_a, uint64_t digest_a,
                          uint32_t loss_b, uint64_t digest_b)
{
    output->mismatches++;
    char a[64], b[64];
    snprintf(a, sizeof a, "%08" PRIx32 "/%016" PRIx64, loss_a, digest_a);
    snprintf(b, sizeof b, "%08" PRIx32 "/%016" PRIx64, loss_b, digest_b);
    keel_output_event(output, "bits-differ",
                      json_pack("{s:I, s:s, s:s}", "step", (json_int_t)step, "first", a, "second", b));
    keel_output_say(output,
                    "step %" PRIu64
                    ": the bits differ (loss/digest %s, then %s): this run broke its promise; keep the "
                    "directory and report it",
                    step, a, b);
}

/* One of the ranks holds what is not the run's, and nobody here can tell which: no line from that step on is
 * worth its promise. */
void keel_output_doubt(struct keel_output *output, uint64_t step)
{
    if (step > 0 && (output->disputed_step == 0 || step < output->disputed_step))
        output->disputed_step = step;
}

static void on_mismatch(void *context, const struct keel_step_record *a, const struct keel_step_record *b)
{
    struct keel_output *output = context;
    if (a->step == output->outvoted_step)
        return;
    output->mismatches++;
    char one[24], other[24], loss[12], other_loss[12];
    snprintf(one, sizeof one, "%016" PRIx64, a->digest);
    snprintf(other, sizeof other, "%016" PRIx64, b->digest);
    snprintf(loss, sizeof loss, "%08" PRIx32, a->loss_bits);
    snprintf(other_loss, sizeof other_loss, "%08" PRIx32, b->loss_bits);
    keel_output_event(output, "ranks-differ",
                      json_pack("{s:I, s:s, s:s, s:s, s:s}", "step", (json_int_t)a->step, "weights", one,
                                "other_weights", other, "loss_bits", loss, "other_loss_bits", other_loss));
    keel_output_doubt(output, a->step);
}

static enum keel_status withdraw_from(struct keel_output *output, uint64_t step)
{
    const enum keel_status status = keel_output_cut(output, step);
    if (status != KEEL_OK) {
        keel_output_say(output, "steps from %" PRIu64 " on cannot be withdrawn: %s", step, keel_detail());
        return status;
    }
    keel_output_event(output, "steps-withdrawn", json_pack("{s:I}", "step", (json_int_t)step));
    return KEEL_OK;
}

static uint64_t hex_of(const json_t *note, const char *key)
{
    const char *text = json_string_value(json_object_get(note, key));
    return text != NULL ? strtoull(text, NULL, 16) : 0;
}

/* More than half of the ranks agree about a step, which was the last: what was said of it before counts no
 * more, and if its line is that of the rank that is wrong, theirs takes its place. */
static void outvote(struct keel_output *output, uint64_t step, const json_t *note)
{
    const struct keel_seen_step *old = keel_output_find(output, step);
    struct keel_seen_step right = {.step = step, .digest = hex_of(note, "digest")};
    if (output->disputed_step == step) {
        output->disputed_step = 0;
        output->mismatches--;
    }
    output->outvoted_step = step;
    if (old == NULL || output->newest.step != step)
        return;
    right.loss_bits =
        json_object_get(note, "loss_bits") != NULL ? (uint32_t)hex_of(note, "loss_bits") : old->loss_bits;
    if ((old->digest == right.digest && old->loss_bits == right.loss_bits) ||
        withdraw_from(output, step) != KEEL_OK)
        return;
    output->newest.digest = right.digest;
    output->newest.loss_bits = right.loss_bits;
    const struct keel_line line = line_of(&output->newest);
    if (keel_output_remember(output, &line) == KEEL_OK) {
        (void)keel_output_judge(output, &line);
        write_metric(output, &output->newest, true);
    }
}

static void withdraw_disputed(struct keel_output *output)
{
    if (withdraw_from(output, output->disputed_step) == KEEL_OK)
        keel_output_say(
            output,
            "after step %" PRIu64
            " the ranks held different weights or losses: a memory or a board is bad. That step is "
            "withdrawn; check the boards, and the same command goes on from the snapshot before",
            output->disputed_step);
}

/* ---- a loss that explodes ------------------------------------------------------------------------------ */

/* What was gone back from: did a fault make it, or does it come again? */
static void compare_again(struct keel_output *output, const struct keel_seen_step *seen, bool explodes)
{
    const struct keel_seen_step *before = &output->went_back;
    if (before->step == 0 || before->step != seen->step || explodes)
        return;
    keel_output_event(output, "loss-spike-gone", json_pack("{s:I}", "step", (json_int_t)seen->step));
    keel_output_say(output,
                    "step %" PRIu64
                    ": the loss is %.4f this time: what it was before came from a fault; check the "
                    "boards",
                    seen->step, (double)keel_float_of(seen->loss_bits));
    output->went_back.step = 0;
}

/* Each new step, once. */
static void watch_loss(struct keel_output *output, const struct keel_seen_step *seen, bool explodes)
{
    static const char *const moves[] = {"the run goes on (train.spike = warn)",
                                        "the run ends, at the snapshot before (train.spike = stop)",
                                        "the run goes back to the snapshot before (train.spike = back)"};
    double loss = (double)keel_float_of(seen->loss_bits);
    if (output->spiked.step != 0)
        return;
    compare_again(output, seen, explodes);
    if (!explodes)
        return;
    char loss_bits[12], digest[20];
    snprintf(loss_bits, sizeof loss_bits, "%08" PRIx32, seen->loss_bits);
    snprintf(digest, sizeof digest, "%016" PRIx64, seen->digest);
    keel_output_event(output, "loss-spike",
                      json_pack("{s:I, s:f, s:f, s:s, s:s, s:s}", "step", (json_int_t)seen->step, "loss",
                                loss, "usual", output->past.spike.mean, "detail", moves[output->job->spike],
                                "loss_bits", loss_bits, "digest", digest));
    keel_output_say(output, "step %" PRIu64 ": the loss explodes: %.4f, where %.4f was usual; %s", seen->step,
                    loss, output->past.spike.mean, moves[output->job->spike]);
    if (output->job->spike == KEEL_SPIKE_WARN)
        return;
    output->spiked = *seen;
    atomic_store(&output->refused_step, seen->step); /* before this step's snapshot can be ordered */
}

enum keel_status keel_output_resume(struct keel_output *output, uint64_t first_step)
{
    KEEL_TRY(keel_output_reach(output, first_step));
    const struct keel_line *found =
        output->job->spike == KEEL_SPIKE_WARN ? NULL : keel_output_judge_again(output, first_step);
    output->end_missed = false;
    output->apart = output->moves;
    if (found != NULL) {
        output->went_back = found->seen;
        keel_output_say(output,
                        "step %" PRIu64 ": the loss exploded in the life before: it is computed again",
                        found->seen.step);
        KEEL_TRY(withdraw_from(output, output->went_back.step));
        output->steps_before = keel_output_last_step(output);
    }
    KEEL_TRY(keel_step_ranges_remove(&output->told, first_step, UINT64_MAX)); /* they come again */
    return keel_output_fill_holes(output, first_step);
}

bool keel_output_dispute(struct keel_output *output)
{
    const uint64_t step = output->disputed_step;
    if (step == 0 || output->disputes++ > 0 || withdraw_from(output, step) != KEEL_OK)
        return false;
    output->disputed_step = output->mismatches = 0;
    output->incident.open = false;
    keel_output_event(output, "went-back", json_pack("{s:I}", "step", (json_int_t)step));
    keel_output_say(output,
                    "after step %" PRIu64
                    " as many ranks had the one as the other: a memory or a board is bad, and "
                    "nobody can tell which. All go back to the newest snapshot, once",
                    step);
    return true;
}

/* A run that ends early does when the snapshot of its last step is kept, or cannot be in this life. */
static bool on_stop(void *context)
{
    const struct keel_output *output = context;
    const uint64_t end_step = atomic_load(&output->end_step);
    return output->spiked.step != 0 ||
           (end_step != 0 && (output->last_snapshot >= end_step || output->end_missed));
}

enum keel_status keel_output_led_end(const struct keel_output *output, enum keel_status status)
{
    if (status == KEEL_INTERRUPTED && output->spiked.step != 0)
        return keel_fail(
            KEEL_DIVERGED,
            "the loss exploded at step %" PRIu64
            " to %.4f (train.spike), and who began the run is to begin its next life: where that "
            "launcher or the same command watches, it does so now; else give the same command "
            "(keel run): it goes on from the snapshot before",
            output->spiked.step, (double)keel_float_of(output->spiked.loss_bits));
    return status == KEEL_INTERRUPTED && output->past.early.end_step != 0 ? KEEL_OK : status;
}

enum keel_status keel_output_spike(struct keel_output *output, bool *out_back)
{
    const struct keel_seen_step spiked = output->spiked, before = output->went_back;
    *out_back = false;
    if (spiked.step == 0)
        return KEEL_OK;
    KEEL_TRY(withdraw_from(output, spiked.step));
    bool same = before.step == spiked.step && before.digest == spiked.digest;
    *out_back = output->job->spike == KEEL_SPIKE_BACK && !same;
    output->went_back = spiked;
    output->spiked.step = 0;
    output->incident.open = false;
    atomic_store(&output->refused_step, 0);
    return keel_fail(KEEL_DIVERGED,
                     "the loss exploded at step %" PRIu64 " to %.4f%s; a lower train.lr, a longer warm-up or "
                     "train.clip may help, in another --out; train.spike = warn goes on through it",
                     spiked.step, (double)keel_float_of(spiked.loss_bits),
                     same ? ", twice with the same bits: it is the job's own, no fault's" : "");
}

/* ---- progress ------------------------------------------------------------------------------------------ */

static void draw_bar(const struct keel_output *output)
{
    const struct keel_bar bar = {.step = output->newest.step,
                                 .steps = output->job->steps,
                                 .steps_now = output->steps_now,
                                 .loss = keel_float_of(output->newest.loss_bits),
                                 .samples = output->tokens_now,
                                 .unit = keel_job_unit(output->job),
                                 .seconds = keel_seconds_of(keel_now_ns() - output->first_step_ns),
                                 .snapshot = output->last_snapshot,
                                 .epoch = output->epoch,
                                 .ranks = output->members};
    keel_bar_draw(&bar);
}

static void tell_progress(struct keel_output *output, const struct keel_step_record *record)
{
    char accuracy[32] = "";
    if (record->has_val_accuracy)
        snprintf(accuracy, sizeof accuracy, "  accuracy %.4f",
                 (double)keel_float_of(record->val_accuracy_bits));
    if (record->has_val_loss)
        keel_output_say(output, "step %" PRIu64 "  loss %.4f  validation %.4f%s", record->step,
                        (double)keel_float_of(record->loss_bits),
                        (double)keel_float_of(record->val_loss_bits), accuracy);
    if (output->terminal)
        draw_bar(output);
}

/* ---- incidents ----------------------------------------------------------------------------------------- */

static json_t *lost_list(const struct keel_output *output, const struct keel_incident *incident)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < incident->lost_count && i < KEEL_INCIDENT_LOST_MAX; i++) {
        const struct keel_member *member = &incident->lost[i];
        const struct place *place = place_of(output, member);
        json_array_append_new(list, json_pack("{s:i, s:i, s:i, s:s, s:s}", "rank", (int)member->rank, "node",
                                              (int)member->node, "local", (int)member->local, "host",
                                              place->host, "board", place->board));
    }
    return list;
}

/* "rank 2 (node 3, HOST, BOARD) and 1 more". */
static void name_lost(const struct keel_output *output, const struct keel_incident *incident, char out[256])
{
    const struct keel_member *member = &incident->lost[0];
    const struct place *place = place_of(output, member);
    int length = snprintf(out, 256, "rank %u (node %u%s%s%s%s)", member->rank, member->node,
                          place->host[0] != '\0' ? ", host " : "", place->host,
                          place->board[0] != '\0' ? ", board " : "", place->board);
    if (incident->lost_count > 1 && length > 0 && length < 256)
        snprintf(out + length, 256 - (size_t)length, " and %u more", incident->lost_count - 1);
}

static void close_incident(struct keel_output *output, const struct keel_step_record *record)
{
    struct keel_incident *incident = &output->incident;
    uint64_t part_ns[KEEL_INCIDENT_PART_COUNT], total_ns;
    char words[256], lost[256], healed[64] = "";
    if (!keel_incident_commit(incident, record, output->commit_ns, part_ns, &total_ns))
        return;
    json_t *event = json_pack(
        "{s:I, s:I, s:s, s:i, s:b, s:o, s:f, s:i, s:I, s:i}", "step", (json_int_t)record->step, "view",
        (json_int_t)record->epoch, "cause", keel_cause_name(incident->cause), "lost_ranks",
        (int)incident->lost_count, "injected", incident->injected, "lost", lost_list(output, incident),
        "total_s", keel_seconds_of(total_ns), "redo_microbatches", (int)record->redo_microbatches,
        "heal_bytes", (json_int_t)record->heal_bytes, "heal_ranks", (int)record->heal_ranks);
    keel_put_parts(event, part_ns, words, sizeof words);
    keel_output_event(output, "recovery", event);
    name_lost(output, incident, lost);
    if (record->heal_bytes > 0)
        snprintf(healed, sizeof healed, "; healed: %" PRIu64 " bytes from %" PRIu32 " ranks",
                 record->heal_bytes, record->heal_ranks);
    keel_output_say(output, "step %" PRIu64 " committed %.3f s after the last commit before %s %s: %s%s",
                    record->step, keel_seconds_of(total_ns),
                    incident->cause == KEEL_CAUSE_DRAINED ? "the leave of" : "the loss of", lost, words,
                    healed);
}

/* The first new step after the run was started again: what the interruption cost, from the last commit of the
 * life before. */
static void tell_restart(struct keel_output *output, uint64_t step)
{
    uint64_t next = output->steps_before + 1, now_ns = output->commit_ns;
    uint64_t again = next > output->first_step ? next - output->first_step : 0;
    uint64_t view_ns = output->view_ns != 0 ? output->view_ns : now_ns;
    uint64_t resumed_ns = output->resumed_ns >= view_ns ? output->resumed_ns : view_ns;
    double spent = keel_seconds_of(now_ns - output->started_ns), down = keel_seconds_of(output->down_ns);
    keel_output_event(output, "restarted",
                      json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "step", (json_int_t)step,
                                "snapshot", (json_int_t)(output->first_step - 1), "steps_again",
                                (json_int_t)again, "seconds", spent, "down_s", down, "start_s",
                                keel_seconds_of(view_ns - output->started_ns), "restore_s",
                                keel_seconds_of(resumed_ns - view_ns), "again_s",
                                keel_seconds_of(now_ns - resumed_ns), "total_s", down + spent));
    keel_output_say(output,
                    "step %" PRIu64 " is new again, %.2f s after the start; %" PRIu64 " steps were run twice",
                    step, spent, again);
    output->steps_before = 0;
}

static void tell_hole(struct keel_output *output, const struct keel_step_range *hole)
{
    (void)keel_step_ranges_add(&output->told, hole->first, hole->last);
    keel_output_event(output, "metrics-hole", keel_metric_hole_event(hole->first, hole->last));
}

/* Steps of which whoever leads lost the records: a callback of the launcher. */
static void on_hole(void *context, uint64_t first, uint64_t last)
{
    const struct keel_step_range hole = {first, last};
    tell_hole(context, &hole);
    keel_output_say(context,
                    "steps %" PRIu64 " to %" PRIu64
                    " came faster than their lines could be written: they are lost",
                    first, last);
}

/* Up to that step; without what was told: *news. */
static enum keel_status find_lacking(const struct keel_output *output, uint64_t last,
                                     struct keel_step_ranges *all, struct keel_step_ranges *news)
{
    KEEL_TRY(keel_output_find_lacking(output, all));
    KEEL_TRY(keel_metric_skip(all, keel_output_last_step(output), last + 1));
    KEEL_TRY(keel_step_ranges_remove(all, last + 1, UINT64_MAX));
    KEEL_TRY(keel_step_ranges_copy(all, news));
    return keel_step_ranges_subtract(news, &output->told);
}

/* Who had their records is lost, or the file was cut or removed. */
void keel_output_tell_lacking(struct keel_output *output, uint64_t last, bool at_end)
{
    char text[KEEL_STEP_RANGES_TEXT];
    struct keel_step_ranges all = {.at = NULL}, news = {.at = NULL};
    const bool known = !output->apart && find_lacking(output, last, &all, &news) == KEEL_OK;
    for (uint64_t i = 0; i < news.count && known; i++)
        tell_hole(output, &news.at[i]);
    if (known && (at_end ? all.count : news.count) > 0) {
        keel_step_ranges_text(&all, text);
        keel_output_say(output, KEEL_METRIC_LACKING, output->directory, text);
    }
    keel_step_ranges_free(&all);
    keel_step_ranges_free(&news);
}

/* The line of a step that has none in the file. */
static void tell_step(struct keel_output *output, const struct keel_step_record *record)
{
    const struct keel_line line = line_of(record);
    const bool is_new = record->step > keel_output_last_step(output);
    const uint64_t end_step = atomic_load(&output->end_step);
    const bool behind_hole = record->step > keel_output_last_written(output) + 1;
    if (is_new)
        keel_output_miss(output, record->step);
    if (keel_output_remember(output, &line) == KEEL_OK) {
        if (behind_hole)
            keel_output_tell_lacking(output, record->step, false);
        const bool explodes = is_new && keel_output_judge(output, &line);
        write_metric(output, record, is_new);
        if (end_step == 0 && atomic_load(&output->end_step) != 0)
            keel_output_tell_early(output);
        if (is_new)
            watch_loss(output, &line.seen, explodes);
    }
    if (keel_step_skipped(record))
        tell_skipped(output, record);
    keel_output_trim(output, record->step);
}

static void on_step(void *context, const struct keel_step_record *record)
{
    struct keel_output *output = context;
    const uint64_t end_step = atomic_load(&output->end_step);
    if (record->step == 0 || (end_step != 0 && record->step > end_step))
        return;
    const struct keel_seen_step *old = keel_output_find(output, record->step);
    if (old != NULL && (old->digest != record->digest || old->loss_bits != record->loss_bits))
        tell_mismatch(output, record->step, old->loss_bits, old->digest, record->loss_bits, record->digest);
    keel_output_write_held(output, record->step);
    if (record->step > keel_output_last_written(output))
        tell_step(output, record);
    if (output->steps_now++ == 0) {
        output->first_step_ns = keel_now_ns();
        output->first_step = output->first_step > 0 ? output->first_step : record->step;
    } else {
        output->tokens_now += record->tokens - output->newest.tokens;
    }
    output->newest = *record;
    output->commit_ns = keel_now_ns();
    close_incident(output, record);
    if (output->steps_before > 0 && record->step > output->steps_before)
        tell_restart(output, record->step);
    tell_progress(output, record);
}

static json_t *member_list(const struct keel_view *view, bool spares)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < view->member_count; i++)
        if ((view->members[i].spare != 0) == spares)
            json_array_append_new(list, json_integer(view->members[i].rank));
    return list;
}

static void begin_incident(struct keel_output *output, const struct keel_incident_loss *loss)
{
    uint64_t drill_ns = keel_drill_last_ns(output->directory);
    struct keel_incident_loss full = *loss;
    if (drill_ns > output->last_drill_ns && drill_ns <= loss->evidence_ns)
        full.drill_ns = drill_ns;
    output->last_drill_ns = drill_ns;
    keel_incident_begin(&output->incident, &full);
}

/* What a change of the leader cost: so long nobody could be replaced, and no snapshot committed. */
static void tell_leader(struct keel_output *output)
{
    char detail[64];
    snprintf(detail, sizeof detail, "process %ld leads the run", (long)getpid());
    keel_output_event(output, "leader",
                      json_pack("{s:I, s:I, s:f, s:s}", "process", (json_int_t)getpid(), "step",
                                (json_int_t)keel_output_last_step(output), "seconds",
                                keel_seconds_of(keel_now_ns() - output->heard_ns), "detail", detail));
    output->heard_ns = 0;
}

static void on_view(void *context, const struct keel_view *old_view, const struct keel_view *new_view,
                    enum keel_cause cause, uint64_t alive_ns, uint64_t evidence_ns)
{
    struct keel_output *output = context;
    const struct keel_incident_loss loss = {.old_view = old_view,
                                            .new_view = new_view,
                                            .cause = cause,
                                            .commit_ns = output->commit_ns,
                                            .alive_ns = alive_ns,
                                            .evidence_ns = evidence_ns,
                                            .silence_ns = (uint64_t)(output->job->timeout_s * 1e9),
                                            .now_ns = keel_now_ns()};
    const bool begins = cause == KEEL_CAUSE_START && output->heard_ns == 0;
    if (output->heard_ns != 0)
        tell_leader(output);
    uint32_t lost = cause == KEEL_CAUSE_FINISHED ? 0 /* who has finished has gone, and is not lost */
                                                 : keel_incident_find_lost(old_view, new_view, NULL, NULL);
    if (lost > 0)
        begin_incident(output, &loss);
    else if (output->incident.open)
        keel_incident_view(&output->incident, new_view->epoch, loss.now_ns);
    output->view_ns = output->view_ns != 0 ? output->view_ns : loss.now_ns;
    output->commit_ns = output->commit_ns != 0 ? output->commit_ns : loss.now_ns;
    output->epoch = new_view->epoch;
    output->members = output->spares = 0;
    if (keel_grow(&output->carriers, &output->carrier_capacity, new_view->member_count,
                  sizeof *output->carriers) != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "lines of metrics name no boards: %s", keel_detail());
    for (uint32_t i = 0; i < new_view->member_count; i++)
        if (new_view->members[i].spare)
            output->spares++;
        else if (output->members < output->carrier_capacity)
            output->carriers[output->members++] = new_view->members[i];
    char plan[20];
    snprintf(plan, sizeof plan, "%016" PRIx64, new_view->plan);
    keel_output_event(output, "view",
                      json_pack("{s:I, s:s, s:s, s:i, s:o, s:o}", "view", (json_int_t)new_view->epoch, "plan",
                                plan, "cause", keel_cause_name(cause), "lost_ranks", (int)lost, "ranks",
                                member_list(new_view, false), "spares", member_list(new_view, true)));
    keel_output_say(output, "view %" PRIu64 ": %u ranks, %u spares (%s%s)", new_view->epoch, output->members,
                    output->spares, keel_cause_name(cause),
                    lost > 0 && cause != KEEL_CAUSE_DRAINED ? ", ranks were lost" : "");
    if (begins && (output->members < output->job->ranks || output->spares < output->job->spares))
        keel_output_tell_missing(output, new_view);
    keel_output_forgive(output);
}

static void on_shortage(void *context, uint16_t ranks, uint16_t fewest)
{
    struct keel_output *output = context;
    keel_output_event(output, "ranks-awaited",
                      json_pack("{s:i, s:i}", "ranks", (int)ranks, "fewest", (int)fewest));
    keel_output_say(
        output, "%u of the %u ranks that the smallest plan needs are left: they keep their state and wait",
        ranks, fewest);
}

void keel_output_tell_plans(struct keel_output *output, const struct keel_plan_table *plans)
{
    char text[480];
    keel_plans_describe(plans, text, sizeof text);
    keel_output_event(output, "plans", keel_plans_event(plans));
    keel_output_say(output, "%s", text);
}

/* ---- the rest ------------------------------------------------------------------------------------------ */

void keel_output_take_place(struct keel_output *output, uint16_t node, uint8_t local, const json_t *note)
{
    const char *host = json_string_value(json_object_get(note, "host"));
    const char *board = json_string_value(json_object_get(note, "board"));
    if (node >= KEEL_NODES_MAX || local >= KEEL_WORKERS_PER_NODE || host == NULL || board == NULL)
        return;
    if (output->places[node] == NULL &&
        keel_alloc(KEEL_WORKERS_PER_NODE, sizeof *output->places[0], &output->places[node]) != KEEL_OK)
        return;
    struct place *place = &output->places[node][local];
    snprintf(place->host, sizeof place->host, "%s", host);
    snprintf(place->board, sizeof place->board, "%s", board);
    const char *device = json_string_value(json_object_get(note, "device"));
    snprintf(place->device, sizeof place->device, "%s", device != NULL ? device : "");
}

/* Of train.steps = 0. */
static void tell_scores(struct keel_output *output, uint64_t step, const json_t *note)
{
    const json_t *loss = json_object_get(note, "val_loss"), *accuracy = json_object_get(note, "val_accuracy");
    char more[48] = "";
    if (accuracy != NULL)
        snprintf(more, sizeof more, "  accuracy %.4f", json_number_value(accuracy));
    if (loss != NULL)
        keel_output_say(output, "step %" PRIu64 "  validation %.4f%s", step, json_number_value(loss), more);
    else
        keel_output_say(output, "step %" PRIu64 ": there is nothing to validate with", step);
}

/* By its name; what nobody knows is IO. */
enum keel_status keel_output_find_status(const char *name)
{
    for (int status = KEEL_OK + 1; name != NULL && status < KEEL_STATUS_COUNT; status++)
        if (strcmp(name, keel_status_name((enum keel_status)status)) == 0)
            return (enum keel_status)status;
    return KEEL_IO;
}

static char *text_of(json_t *line)
{
    json_object_del(line, "monotonic_ns");
    json_object_del(line, "wall_ns");
    return json_dumps(line, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(9));
}

/* An agent hands over one note after the other. The last that who led before wrote may not have been
 * acknowledged: then it comes again, before any other of that node. */
static bool is_told(struct keel_output *output, uint16_t node, const json_t *note)
{
    json_t *last = output->past_notes[node], *copy = last != NULL ? json_copy((json_t *)note) : NULL;
    if (last == NULL || copy == NULL)
        return false;
    output->past_notes[node] = NULL;
    char *was = text_of(last), *is = text_of(copy);
    const bool same = was != NULL && is != NULL && strcmp(was, is) == 0;
    free(was); /* Jansson's own allocations */
    free(is);
    json_decref(last);
    json_decref(copy);
    return same;
}

static void on_note(void *context, uint16_t node, uint8_t local, const uint8_t *data, uint32_t bytes)
{
    struct keel_output *output = context;
    json_t *note = json_loadb((const char *)data, bytes, 0, NULL);
    const char *event = json_string_value(json_object_get(note, "event"));
    if (event != NULL) {
        json_object_set_new(note, "node", json_integer(node));
        json_object_set_new(note, "local", json_integer(local));
    }
    if (event == NULL || is_told(output, node, note)) {
        json_decref(note);
        return;
    }
    const char *detail = json_string_value(json_object_get(note, "detail"));
    json_int_t step = json_integer_value(json_object_get(note, "step"));
    const char *status = json_string_value(json_object_get(note, "status"));
    if (strcmp(event, "worker-failed") == 0 && status != NULL && strcmp(status, "MISMATCH") == 0)
        keel_output_doubt(output, (uint64_t)step);
    if (strcmp(event, "worker-failed") == 0 || strcmp(event, "worker-given-up") == 0)
        keel_output_blame(output, node, detail != NULL ? detail : event);
    if (strcmp(event, "rank-outvoted") == 0)
        outvote(output, (uint64_t)step, note);
    if (strcmp(event, "resumed") == 0) {
        output->first_step = (uint64_t)step + 1;
        output->resumed_ns = keel_now_ns();
        keel_incident_resumed(&output->incident, (uint64_t)step, output->resumed_ns);
    }
    if (strcmp(event, "board") == 0)
        keel_output_take_place(output, node, local, note);
    else if (strcmp(event, "evaluated") == 0)
        tell_scores(output, (uint64_t)step, note);
    else if (strcmp(event, "memory") != 0)
        keel_output_say(output, "node %u: %s at step %lld: %s", node, event, (long long)step,
                        detail != NULL ? detail : "");
    if (strcmp(event, "snapshot-failed") == 0) {
        output->snapshot_status = keel_output_find_status(status);
        snprintf(output->snapshot_failure, sizeof output->snapshot_failure, "%s",
                 detail != NULL ? detail : event);
    }
    char name[64];
    snprintf(name, sizeof name, "%s", event);
    keel_output_event(output, name, note);
}

static void on_snapshot(void *context, const struct keel_committed *snapshot)
{
    struct keel_output *output = context;
    bool good = snapshot->status == KEEL_OK;
    const uint64_t end_step = atomic_load(&output->end_step);
    if (end_step != 0 && snapshot->step > end_step) { /* refused: steps that are not kept */
        output->end_missed = true;
        return;
    }
    if (good) {
        output->last_snapshot = output->told_step = snapshot->step;
        output->told_attempt = snapshot->attempt;
    }
    output->snapshot_status = snapshot->status;
    snprintf(output->snapshot_failure, sizeof output->snapshot_failure, "%s", good ? "" : snapshot->detail);
    keel_output_event(output, good ? "snapshot" : "snapshot-failed",
                      json_pack("{s:I, s:I, s:s, s:s}", "step", (json_int_t)snapshot->step, "attempt",
                                (json_int_t)snapshot->attempt, "status", keel_status_name(snapshot->status),
                                "detail", snapshot->detail));
    if (!good)
        keel_output_say(output, "snapshot of step %" PRIu64 " failed; training goes on: %s", snapshot->step,
                        snapshot->detail);
}

void keel_output_found_snapshot(struct keel_output *output, uint64_t step, uint64_t attempt)
{
    const struct keel_committed found = {.step = step, .attempt = attempt};
    if (attempt > output->told_attempt || (attempt == output->told_attempt && step > output->told_step))
        on_snapshot(output, &found);
}

uint64_t keel_output_last_snapshot(const struct keel_output *output)
{
    return output->last_snapshot;
}

static void on_agent_exit(void *context, uint16_t node, uint32_t incarnation,
                          const struct keel_process_end *end)
{
    const bool known = end->signaled || end->code != KEEL_PROCESS_CODE_UNKNOWN;
    keel_output_event(context, "agent-exit",
                      json_pack("{s:i, s:i, s:s, s:i}", "node", (int)node, "incarnation", (int)incarnation,
                                "how",
                                !known          ? "unknown"
                                : end->signaled ? "signal"
                                                : "exit",
                                "code", end->code));
    char how[48] = "its agent ended";
    if (known)
        snprintf(how, sizeof how, "its agent ended (%s %d)", end->signaled ? "signal" : "exit code",
                 end->code);
    keel_output_say(context, "node %u: %s", node, how);
    keel_output_blame(context, node, how);
}

static void on_room(void *context, bool full, const char *detail)
{
    keel_output_event(context, full ? "disk-full" : "disk-room",
                      full ? json_pack("{s:s}", "detail", detail) : NULL);
    if (full)
        keel_output_say(context, "the disk is full: the view cannot change before there is room: %s", detail);
    else
        keel_output_say(context, "the disk has room again: the run goes on");
}

static void on_stranger(void *context, const char *place, const char *reason, uint64_t total)
{
    keel_output_event(
        context, "stranger",
        json_pack("{s:s, s:s, s:I}", "from", place, "reason", reason, "total", (json_int_t)total));
    keel_output_say(context, "dropped a message of a stranger at %s: %s (%" PRIu64 " so far)", place, reason,
                    total);
}

static void on_agent(void *context, const struct keel_gate_news *news)
{
    char text[KEEL_AGENT_TEXT_BYTES];
    keel_output_event(context, keel_agent_news_event(news), keel_agent_news_fields(news));
    if (news->kind == KEEL_GATE_JOINED || news->kind == KEEL_GATE_LEFT)
        keel_output_blame(context, news->node,
                          news->kind == KEEL_GATE_JOINED ? ""
                          : news->status != KEEL_OK      ? news->text
                                                         : "its agent is gone");
    keel_agent_news_text(news, text);
    keel_output_say(context, "%s", text);
}

static void on_tell(void *context, const char *text)
{
    keel_output_say(context, "%s", text);
}

static enum keel_status on_settle(void *context, uint64_t step)
{
    struct keel_output *output = context;
    const uint64_t refused = atomic_load(&output->refused_step), end_step = atomic_load(&output->end_step);
    if (end_step != 0 && step > end_step)
        return keel_fail(KEEL_DIVERGED, "the run ended early, at step %" PRIu64, end_step);
    if (refused != 0 && step >= refused)
        return keel_fail(KEEL_DIVERGED, "the loss exploded: the newest snapshot stays one from before");
    return keel_output_settle(context);
}

struct keel_launch_report keel_output_report(struct keel_output *output)
{
    return (struct keel_launch_report){.context = output,
                                       .step = on_step,
                                       .hole = on_hole,
                                       .mismatch = on_mismatch,
                                       .view = on_view,
                                       .shortage = on_shortage,
                                       .drain = keel_output_drain,
                                       .note = on_note,
                                       .snapshot = on_snapshot,
                                       .agent_exit = on_agent_exit,
                                       .room = on_room,
                                       .stranger = on_stranger,
                                       .agent = on_agent,
                                       .tell = on_tell,
                                       .stop = on_stop,
                                       .past = keel_output_past,
                                       .learn = keel_output_learn,
                                       .settle = on_settle};
}

/* ---- the end ------------------------------------------------------------------------------------------ */

uint64_t keel_output_end_step(const struct keel_output *output)
{
    const uint64_t end_step = atomic_load(&output->end_step);
    return end_step != 0 ? end_step : output->job->steps;
}

uint64_t keel_output_next_step(const struct keel_output *output)
{
    return keel_output_last_step(output) + 1;
}

enum keel_status keel_output_settle(struct keel_output *output)
{
    return keel_jsonl_sync(output->metrics);
}

uint64_t keel_output_mismatches(const struct keel_output *output)
{
    return output->mismatches;
}

void keel_output_tell_end_again(struct keel_output *output)
{
    keel_output_event(output, "end-again", json_pack("{s:I}", "step", (json_int_t)output->newest.step));
    keel_output_say(output, "the snapshot of the last step was lost with its node: it is made again");
}

enum keel_status keel_output_snapshot_failure(const struct keel_output *output)
{
    return output->snapshot_status == KEEL_OK
               ? KEEL_OK
               : keel_fail(output->snapshot_status, "%s", output->snapshot_failure);
}

void keel_output_end_text(const struct keel_seen_step *last, bool early, char *text, size_t bytes)
{
    snprintf(text, bytes,
             "done before: %" PRIu64 " steps, loss %.4f, weights %016" PRIx64 "; for more, raise %s",
             last->step, (double)keel_float_of(last->loss_bits), last->digest,
             early ? "train.patience" : "train.steps (and set train.decay_steps to what train.steps was)");
}

static void tell_done(struct keel_output *output)
{
    const struct keel_step_record *newest = &output->newest;
    if (output->past.early.end_step != 0)
        keel_output_tell_early_done(output);
    if (output->job->steps == 0) {
        keel_output_say(output, "done: evaluated, no step was trained (train.steps = 0)");
    } else if (newest->step > 0) {
        keel_output_say(output, "done: %" PRIu64 " steps, loss %.4f, weights %016" PRIx64, newest->step,
                        (double)keel_float_of(newest->loss_bits), newest->digest);
    } else if (keel_output_last_step(output) >= keel_output_end_step(output)) {
        char text[256];
        keel_output_end_text(&keel_output_last(output)->seen, output->past.early.end_step != 0, text,
                             sizeof text);
        keel_output_say(output, "%s", text);
    } else {
        keel_output_say(output, "done before: the newest snapshot is of the last step, %" PRIu64,
                        keel_output_end_step(output));
    }
}

void keel_output_finish(struct keel_output *output, enum keel_status status, const char *detail)
{
    double elapsed = keel_seconds_of(keel_now_ns() - output->started_ns);
    keel_output_write_held(output, UINT64_MAX);
    if (output->disputed_step > 0)
        withdraw_disputed(output);
    const uint64_t last = status == KEEL_OK ? keel_output_end_step(output) : keel_output_last_step(output);
    keel_output_tell_lacking(output, last, true);
    keel_output_event(output, "end",
                      json_pack("{s:s, s:s, s:f, s:I}", "status", keel_status_name(status), "detail", detail,
                                "seconds", elapsed, "step", (json_int_t)last));
    if (status == KEEL_OK)
        tell_done(output);
    else
        keel_output_say(output, "%s: %s", status == KEEL_INTERRUPTED ? "interrupted" : "failed", detail);
}
