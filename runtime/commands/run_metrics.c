/* run_metrics.c - the lines of metrics.jsonl, as far as they are needed: the newest, and those of steps that
 * are computed again.
 *
 * Owns `seen`, the lines behind `base`, and the lines that are held. How many there are before does not
 * matter: what is to be known of their losses (loss_past.h), and which steps lack, is in some of them, the
 * marks (metric_lines.h), and the file is read from one of those on, the last or an earlier one
 * (keel_output_reach). A file without is read from its beginning, once. */
#include "run_fields.h"
#include "run_locks.h"
#include "run_output_state.h"
#include <inttypes.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LINES_A_TOUCH = 1024, /* some milliseconds */
    LINES_KEPT = 4096     /* at least, where so many were read or written; at most twice as many */
};

/* ---- the newest lines ---------------------------------------------------------------------------------- */

const struct keel_line *keel_output_last(const struct keel_output *output)
{
    return output->seen_count > 0 ? &output->seen[output->seen_count - 1] : &output->base;
}

uint64_t keel_output_last_step(const struct keel_output *output)
{
    return keel_output_last(output)->seen.step;
}

static const struct keel_line *last_written_line(const struct keel_output *output)
{
    return output->lines > 0 ? &output->seen[output->lines - 1] : &output->base;
}

uint64_t keel_output_last_written(const struct keel_output *output)
{
    return last_written_line(output)->seen.step;
}

static struct keel_step_loss loss_of(const struct keel_line *line)
{
    return (struct keel_step_loss){.step = line->seen.step,
                                   .loss_bits = line->seen.loss_bits,
                                   .val_loss_bits = line->val_loss_bits,
                                   .has_val_loss = line->has_val_loss};
}

bool keel_output_judge(struct keel_output *output, const struct keel_line *line)
{
    const struct keel_step_loss loss = loss_of(line);
    const bool spikes = keel_loss_past_add(&output->past, &loss);
    atomic_store(&output->end_step, output->past.early.end_step);
    return spikes;
}

const struct keel_line *keel_output_judge_again(struct keel_output *output, uint64_t from)
{
    const struct keel_line *found = NULL;
    output->past = output->base_past;
    for (uint64_t i = 0; i < output->seen_count; i++) {
        const struct keel_step_loss loss = loss_of(&output->seen[i]);
        if (keel_loss_past_add(&output->past, &loss) && loss.step >= from && found == NULL)
            found = &output->seen[i];
    }
    atomic_store(&output->end_step, output->past.early.end_step);
    return found;
}

/* Behind the lines in the file, before those that are held. */
enum keel_status keel_output_remember(struct keel_output *output, const struct keel_line *line)
{
    KEEL_ASSERT(line->seen.step > keel_output_last_written(output));
    KEEL_ASSERT(output->lines == output->seen_count ||
                line->seen.step < output->seen[output->lines].seen.step);
    if (output->seen_count == output->seen_capacity) {
        uint64_t more = output->seen_capacity * 2 + 1024;
        KEEL_TRY(keel_realloc(&output->seen, output->seen_capacity, more, sizeof *output->seen));
        output->seen_capacity = more;
    }
    struct keel_line *at = &output->seen[output->lines++];
    memmove(at + 1, at, keel_size(output->seen_count++ + 1 - output->lines) * sizeof *at);
    *at = *line;
    return KEEL_OK;
}

void keel_output_trim(struct keel_output *output, uint64_t step)
{
    if (output->lines <= (uint64_t)2 * LINES_KEPT || output->seen[LINES_KEPT].seen.step >= step)
        return;
    uint64_t before = output->base.seen.step;
    for (uint64_t i = 0; i < LINES_KEPT; before = output->seen[i++].seen.step)
        if (keel_metric_skip(&output->base_lacks, before, output->seen[i].seen.step) != KEEL_OK)
            return; /* nothing is forgotten */
    for (uint64_t i = 0; i < LINES_KEPT; i++) {
        const struct keel_step_loss loss = loss_of(&output->seen[i]);
        (void)keel_loss_past_add(&output->base_past, &loss);
    }
    output->base = output->seen[LINES_KEPT - 1];
    output->seen_count -= LINES_KEPT;
    output->lines -= LINES_KEPT;
    memmove(output->seen, output->seen + LINES_KEPT, keel_size(output->seen_count) * sizeof *output->seen);
}

enum keel_status keel_output_find_lacking(const struct keel_output *output, struct keel_step_ranges *out)
{
    uint64_t before = output->base.seen.step;
    enum keel_status status = keel_step_ranges_copy(&output->base_lacks, out);
    for (uint64_t i = 0; i < output->seen_count && status == KEEL_OK; before = output->seen[i++].seen.step)
        status = keel_metric_skip(out, before, output->seen[i].seen.step);
    if (status != KEEL_OK)
        keel_step_ranges_free(out);
    return status;
}

void keel_output_learn(void *context, const uint8_t *data, uint32_t bytes)
{
    struct keel_output *output = context;
    const struct keel_early_stop *rule = &output->past.early;
    struct keel_loss_past past;
    struct keel_step_ranges lacks = {.at = NULL};
    output->others_led = true;
    keel_output_write_held(output, UINT64_MAX);
    if (!keel_loss_past_read(data, bytes, rule->patience, rule->min_delta, &past) ||
        past.step <= output->past.step || keel_output_find_lacking(output, &lacks) != KEEL_OK)
        return;
    keel_step_ranges_free(&output->base_lacks);
    output->base_lacks = lacks;
    output->base = *keel_output_last(output);
    output->base_past = output->past = past;
    output->seen_count = output->lines = 0;
    atomic_store(&output->end_step, past.early.end_step);
}

/* Does an end or a spike hang on a step between these that is not known? */
static bool matters(const struct keel_job *job, uint64_t before, uint64_t behind)
{
    const uint64_t every = job->eval_every;
    const bool evaluated = every > 0 && (behind - 1) / every > before / every;
    return job->spike != KEEL_SPIKE_WARN || (job->patience > 0 && evaluated);
}

void keel_output_miss(struct keel_output *output, uint64_t step)
{
    struct keel_loss_past *past = &output->past;
    if (!output->others_led || step <= past->step + 1 || past->lacks)
        return;
    past->lacks = output->base_past.lacks = true;
    if (!matters(output->job, past->step, step))
        return;
    char detail[160];
    snprintf(detail, sizeof detail,
             "who leads now does not know the losses of steps %" PRIu64 " to %" PRIu64
             ": train.spike and train.patience go without them",
             past->step + 1, step - 1);
    keel_output_event(output, "losses-unknown",
                      json_pack("{s:I, s:I, s:s}", "first", (json_int_t)past->step + 1, "last",
                                (json_int_t)step - 1, "detail", detail));
    keel_output_say(output, "%s", detail);
}

uint64_t keel_output_past(void *context, uint8_t *out, uint32_t *bytes)
{
    const struct keel_output *output = context;
    _Static_assert((int)KEEL_LOSS_PAST_BYTES <= (int)KEEL_PAST_BYTES_MAX, "it fits into a message");
    if (output->past.step == 0)
        return 0;
    keel_loss_past_write(&output->past, out);
    *bytes = KEEL_LOSS_PAST_BYTES;
    return output->past.step;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

void keel_output_show_life(const struct keel_output *output, uint64_t number)
{
    if (output->lock_fd > 0 && number % LINES_A_TOUCH == 0)
        keel_lock_touch(output->lock_fd);
}

static bool mark_of(const struct keel_output *output, const json_t *line, struct keel_loss_past *out)
{
    const char *text = json_string_value(json_object_get(line, "past"));
    const struct keel_early_stop *rule = &output->past.early;
    return text != NULL && keel_loss_past_parse(text, rule->patience, rule->min_delta, out) &&
           json_integer_value(json_object_get(line, "step")) == (json_int_t)out->step;
}

/* The last mark that knows the losses, of a step before `from`; none, and the file begins there. */
static void find_base(struct keel_output *output, const char *path, uint64_t from)
{
    struct keel_jsonl_place place = {.begin = UINT64_MAX};
    struct keel_step_ranges lacks = {.at = NULL};
    struct keel_loss_past past;
    struct keel_line mark;
    json_t *line;
    bool found = false, fits = true;
    output->base = (struct keel_line){.end = 0};
    keel_loss_past_begin(&output->base_past, output->past.early.patience, output->past.early.min_delta);
    while (!found && fits && keel_metric_mark_before(path, &place, &line, &mark, &lacks)) {
        const bool knows = json_object_get(line, "past") != NULL;
        fits = !knows || mark_of(output, line, &past);
        found = knows && fits && mark.seen.step < from;
        json_decref(line);
        if (!found)
            keel_step_ranges_free(&lacks);
    }
    if (!found)
        return;
    output->base = mark;
    output->base_lacks = lacks;
    output->base_past = past;
}

static enum keel_status take_text(struct keel_output *output, const struct keel_jsonl_reader *reader,
                                  const char *text, size_t bytes)
{
    json_error_t error;
    struct keel_line line;
    struct keel_loss_past past;
    json_t *object = json_loadb(text, bytes, 0, &error);
    const bool fine = keel_metric_read(object, &line) && keel_metric_follows(&line, keel_output_last(output));
    if (fine && mark_of(output, object, &past))
        output->mark_end = reader->end;
    json_decref(object);
    line.end = reader->end;
    keel_output_show_life(output, reader->number);
    if (!fine)
        return keel_fail(KEEL_CORRUPT, KEEL_METRIC_DAMAGED, output->directory, reader->end - bytes - 1,
                         reader->end - bytes - 1);
    KEEL_TRY(keel_output_remember(output, &line));
    (void)keel_output_judge(output, &line);
    return KEEL_OK;
}

/* What is known of the lines of the file. */
struct known {
    struct keel_line base;
    struct keel_loss_past base_past, past;
    struct keel_step_ranges base_lacks;
    struct keel_line *seen;
    uint64_t seen_count, seen_capacity, lines, mark_end;
};

/* What is known from here on; what was, at *out. */
static void know(struct keel_output *output, const struct known *is, struct known *out)
{
    *out = (struct known){.base = output->base,
                          .base_past = output->base_past,
                          .past = output->past,
                          .base_lacks = output->base_lacks,
                          .seen = output->seen,
                          .seen_count = output->seen_count,
                          .seen_capacity = output->seen_capacity,
                          .lines = output->lines,
                          .mark_end = output->mark_end};
    output->base = is->base;
    output->base_past = is->base_past;
    output->past = is->past;
    output->base_lacks = is->base_lacks;
    output->seen = is->seen;
    output->seen_count = is->seen_count;
    output->seen_capacity = is->seen_capacity;
    output->lines = is->lines;
    output->mark_end = is->mark_end;
}

static enum keel_status read_from_base(struct keel_output *output, const char *path, uint64_t from)
{
    struct keel_jsonl_reader reader;
    const char *text;
    size_t bytes;
    find_base(output, path, from);
    output->past = output->base_past;
    output->mark_end = output->base.end;
    KEEL_TRY(keel_jsonl_begin(&reader, path, output->base.end));
    enum keel_status status;
    while ((status = keel_jsonl_next(&reader, &text, &bytes)) == KEEL_OK && text != NULL &&
           (status = take_text(output, &reader, text, bytes)) == KEEL_OK)
        keel_output_trim(output, from);
    keel_jsonl_end(&reader);
    output->past.lacks |= output->others_led; /* and have the lines between */
    output->base_past.lacks |= output->others_led;
    return status;
}

/* The lines from step `from` on are among those that are kept then. An error leaves all as it was. */
static enum keel_status load(struct keel_output *output, uint64_t from)
{
    char path[FILE_NAME_BYTES];
    KEEL_TRY(keel_path_join(path, output->directory, "metrics.jsonl"));
    struct known was, nothing = {.past = output->past}; /* whose rule holds */
    know(output, &nothing, &was);
    const enum keel_status status = read_from_base(output, path, from);
    if (status != KEEL_OK)
        know(output, &was, &nothing);
    struct known *old = status == KEEL_OK ? &was : &nothing;
    keel_step_ranges_free(&old->base_lacks);
    keel_free(old->seen);
    atomic_store(&output->end_step, output->past.early.end_step);
    return status;
}

enum keel_status keel_output_read_metrics(struct keel_output *output)
{
    return load(output, UINT64_MAX);
}

enum keel_status keel_output_reach(struct keel_output *output, uint64_t step)
{
    if (output->base.seen.step < step || output->base.seen.step == 0 ||
        output->held_next < output->held_count) /* those begin behind the base, and so does what is asked */
        return KEEL_OK;
    KEEL_TRY(keel_jsonl_sync(output->metrics));
    return load(output, step);
}

static int compare_step(const void *step, const void *line)
{
    const uint64_t wanted = *(const uint64_t *)step, its = ((const struct keel_line *)line)->seen.step;
    return (wanted > its) - (wanted < its);
}

const struct keel_seen_step *keel_output_find(struct keel_output *output, uint64_t step)
{
    if (step <= keel_output_last_step(output) && keel_output_reach(output, step) != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "step %" PRIu64 " cannot be compared with its line: %s", step, keel_detail());
    const struct keel_line *found = output->seen_count == 0
                                        ? NULL
                                        : bsearch(&step, output->seen, keel_size(output->seen_count),
                                                  sizeof output->seen[0], compare_step);
    return found != NULL ? &found->seen : NULL;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static bool mark(const struct keel_output *output, json_t *line, uint64_t at)
{
    char text[KEEL_LOSS_PAST_TEXT];
    struct keel_step_ranges lacks = {.at = NULL};
    if (keel_output_find_lacking(output, &lacks) != KEEL_OK)
        return false;
    keel_metric_mark(line, at, &lacks);
    keel_step_ranges_free(&lacks);
    /* Of lines that are judged in another order than they have in the file there is none. */
    if (!output->past.lacks && output->past.step == keel_output_last_step(output)) {
        keel_loss_past_print(&output->past, text);
        json_object_set_new(line, "past", json_string(text));
    }
    return true;
}

void keel_output_put(struct keel_output *output, json_t *line, bool is_new)
{
    KEEL_ASSERT(output->lines > 0);
    struct keel_line *last = &output->seen[output->lines - 1];
    const uint64_t at = keel_jsonl_bytes(output->metrics);
    const bool marks = is_new && line != NULL && output->lines == output->seen_count &&
                       at >= output->mark_end + KEEL_METRIC_MARK_BYTES && mark(output, line, at);
    keel_jsonl_write(output->metrics, line);
    last->end = keel_jsonl_bytes(output->metrics);
    output->mark_end = marks ? last->end : output->mark_end;
}

/* Lines that are held, up to that step. Behind the last of them all are judged in their order. */
void keel_output_write_held(struct keel_output *output, uint64_t step)
{
    KEEL_ASSERT(output->seen_count - output->lines == output->held_count - output->held_next);
    const bool some = output->lines < output->seen_count;
    while (output->lines < output->seen_count && output->seen[output->lines].seen.step <= step) {
        keel_jsonl_write(output->metrics, output->held[output->held_next++]);
        output->seen[output->lines++].end = keel_jsonl_bytes(output->metrics);
    }
    if (some && output->lines == output->seen_count)
        (void)keel_output_judge_again(output, UINT64_MAX);
}

/* The first line behind a step, from `first_step` on, that has none; seen_count when there is no such hole.
 */
static uint64_t line_behind_hole(const struct keel_output *output, uint64_t first_step)
{
    uint64_t line = 0, next = first_step;
    while (line < output->seen_count && output->seen[line].seen.step <= next) {
        const uint64_t step = output->seen[line].seen.step;
        next = step >= next ? step + 1 : next;
        line++;
    }
    return line;
}

static void forget_held(struct keel_output *output, uint64_t keep)
{
    while (output->held_count - output->held_next > keep)
        json_decref(output->held[--output->held_count]);
}

/* All lines of the file from that place on. What they say of the losses before is no longer so. */
static enum keel_status hold_lines(struct keel_output *output, const char *path, uint64_t from)
{
    struct keel_jsonl_reader reader;
    const char *text;
    size_t bytes;
    json_error_t error;
    KEEL_TRY(keel_jsonl_begin(&reader, path, from));
    enum keel_status status;
    while ((status = keel_jsonl_next(&reader, &text, &bytes)) == KEEL_OK && text != NULL) {
        json_t *line = json_loadb(text, bytes, 0, &error);
        if (line == NULL || output->held_count == output->seen_count - output->lines) {
            json_decref(line);
            status = keel_fail(KEEL_CORRUPT, "%s: was changed meanwhile, or there is no memory for it", path);
            break;
        }
        json_object_del(line, "past");
        keel_metric_unmark(line);
        output->held[output->held_count++] = line;
    }
    keel_jsonl_end(&reader);
    return status;
}

enum keel_status keel_output_fill_holes(struct keel_output *output, uint64_t first_step)
{
    char path[FILE_NAME_BYTES];
    keel_output_write_held(output, UINT64_MAX);
    KEEL_TRY(keel_output_reach(output, first_step));
    const uint64_t line = line_behind_hole(output, first_step);
    if (line == output->seen_count)
        return KEEL_OK;
    keel_free(output->held);
    output->held = NULL;
    output->held_next = output->held_count = 0;
    KEEL_TRY(keel_alloc(keel_size(output->seen_count - line), sizeof(json_t *), &output->held));
    KEEL_TRY(keel_path_join(path, output->directory, "metrics.jsonl"));
    KEEL_TRY(keel_jsonl_sync(output->metrics));
    output->lines = line;
    const uint64_t end = last_written_line(output)->end;
    enum keel_status status = hold_lines(output, path, end);
    if (status == KEEL_OK)
        status = keel_jsonl_cut(output->metrics, end);
    if (status != KEEL_OK) { /* all are in the file still */
        forget_held(output, 0);
        output->lines = output->seen_count;
        return status;
    }
    output->mark_end = output->mark_end > end ? end : output->mark_end;
    return KEEL_OK;
}

enum keel_status keel_output_cut(struct keel_output *output, uint64_t step)
{
    uint64_t keep = 0;
    KEEL_TRY(keel_output_reach(output, step));
    while (keep < output->seen_count && output->seen[keep].seen.step < step)
        keep++;
    if (keep < output->lines) {
        const uint64_t end = keep > 0 ? output->seen[keep - 1].end : output->base.end;
        KEEL_TRY(keel_jsonl_cut(output->metrics, end));
        output->lines = keep;
        output->mark_end = output->mark_end > end ? end : output->mark_end;
    }
    forget_held(output, keep - output->lines);
    output->seen_count = keep;
    (void)keel_output_judge_again(output, UINT64_MAX);
    return KEEL_OK;
}
