/* metric_lines.c - see metric_lines.h. */
#include "metric_lines.h"

#include <inttypes.h>
#include <keel/bits.h>
#include <keel/clock.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

static const char mark_text[] = "\"lacks\":[";

/* ---- lines --------------------------------------------------------------------------------------------- */

/* Losses are in so many digits that they come back the same; null is no number. */
bool keel_metric_read(const json_t *line, struct keel_line *out)
{
    const char *loss = json_string_value(json_object_get(line, "loss_bits"));
    const char *digest = json_string_value(json_object_get(line, "digest"));
    const json_int_t step = json_integer_value(json_object_get(line, "step"));
    const json_int_t tokens = json_integer_value(json_object_get(line, "tokens"));
    const json_t *val_loss = json_object_get(line, "val_loss");
    if (loss == NULL || digest == NULL || step < 1 || (uint64_t)step > UINT32_MAX || tokens < 0 ||
        tokens % step != 0)
        return false;
    const float value = json_is_real(val_loss) ? (float)json_real_value(val_loss) : NAN;
    *out = (struct keel_line){.seen = {.step = (uint64_t)step,
                                       .digest = strtoull(digest, NULL, 16),
                                       .loss_bits = (uint32_t)strtoul(loss, NULL, 16)},
                              .val_loss_bits = keel_bits_of(value),
                              .has_val_loss = val_loss != NULL,
                              .a_step = (uint64_t)(tokens / step)};
    return true;
}

bool keel_metric_follows(const struct keel_line *line, const struct keel_line *before)
{
    return line->seen.step > before->seen.step &&
           (line->a_step == 0 || before->a_step == 0 || line->a_step == before->a_step);
}

enum keel_status keel_metric_skip(struct keel_step_ranges *lacks, uint64_t before, uint64_t step)
{
    return step > before + 1 ? keel_step_ranges_add(lacks, before + 1, step - 1) : KEEL_OK;
}

/* ---- marks --------------------------------------------------------------------------------------------- */

void keel_metric_mark(json_t *line, uint64_t at, const struct keel_step_ranges *lacks)
{
    json_t *list = json_array();
    for (uint64_t i = 0; i < lacks->count; i++)
        json_array_append_new(
            list, json_pack("[I, I]", (json_int_t)lacks->at[i].first, (json_int_t)lacks->at[i].last));
    json_object_set_new(line, "at", json_integer((json_int_t)at));
    json_object_set_new(line, "lacks", list);
}

void keel_metric_unmark(json_t *line)
{
    json_object_del(line, "at");
    json_object_del(line, "lacks");
}

static bool take_ranges(const json_t *list, uint64_t before, struct keel_step_ranges *out)
{
    size_t i;
    const json_t *range;
    uint64_t next = 1;
    json_array_foreach(list, i, range)
    {
        const json_int_t first = json_integer_value(json_array_get(range, 0));
        const json_int_t last = json_integer_value(json_array_get(range, 1));
        if (first < 1 || (uint64_t)first < next || last < first || (uint64_t)last >= before ||
            keel_step_ranges_add(out, (uint64_t)first, (uint64_t)last) != KEEL_OK)
            return false;
        next = (uint64_t)last + 1;
    }
    return json_is_array(list);
}

bool keel_metric_mark_before(const char *path, struct keel_jsonl_place *place, json_t **line,
                             struct keel_line *out, struct keel_step_ranges *lacks)
{
    while (place->begin > 0 && keel_jsonl_find_back(path, place->begin, mark_text, line, place) == KEEL_OK) {
        const json_t *at = json_object_get(*line, "at");
        if (json_is_integer(at) && (uint64_t)json_integer_value(at) == place->begin &&
            keel_metric_read(*line, out) &&
            take_ranges(json_object_get(*line, "lacks"), out->seen.step, lacks)) {
            out->end = place->end;
            return true;
        }
        json_decref(*line);
        *line = NULL;
        keel_step_ranges_free(lacks);
    }
    return false;
}

/* ---- a file from outside ------------------------------------------------------------------------------- */

static void take_last(struct keel_metric_file *file, const json_t *line, const struct keel_line *read)
{
    file->last = *read;
    file->loss = json_number_value(json_object_get(line, "loss"));
    file->seconds = json_number_value(json_object_get(line, "seconds"));
}

static enum keel_status take_text(struct keel_metric_file *file, const struct keel_jsonl_reader *reader,
                                  const char *text, size_t bytes)
{
    json_error_t error;
    struct keel_line read;
    json_t *line = json_loadb(text, bytes, 0, &error);
    const bool fine = keel_metric_read(line, &read) && keel_metric_follows(&read, &file->last);
    enum keel_status status = KEEL_OK;
    if (fine) {
        status = keel_metric_skip(&file->lacks, file->last.seen.step, read.seen.step);
        take_last(file, line, &read);
    } else {
        file->damaged = true;
        file->damaged_at = reader->end - bytes - 1;
    }
    json_decref(line);
    return status;
}

static enum keel_status look(const char *path, struct keel_metric_file *file)
{
    struct keel_jsonl_place place = {.begin = UINT64_MAX};
    struct keel_jsonl_reader reader;
    struct keel_line mark;
    json_t *line;
    const char *text;
    size_t bytes;
    if (keel_metric_mark_before(path, &place, &line, &mark, &file->lacks)) {
        take_last(file, line, &mark);
        json_decref(line);
    }
    KEEL_TRY(keel_jsonl_begin(&reader, path, file->last.end));
    enum keel_status status;
    while ((status = keel_jsonl_next(&reader, &text, &bytes)) == KEEL_OK && text != NULL && !file->damaged &&
           (status = take_text(file, &reader, text, bytes)) == KEEL_OK)
        ;
    keel_jsonl_end(&reader);
    return status;
}

enum keel_status keel_metric_look(const char *directory, struct keel_metric_file *out)
{
    char path[KEEL_PATH_BYTES];
    struct stat seen;
    *out = (struct keel_metric_file){.age_s = 0};
    KEEL_TRY(keel_path_join(path, directory, "metrics.jsonl"));
    if (stat(path, &seen) != 0)
        return KEEL_OK;
    const uint64_t then_ns = (uint64_t)seen.st_mtim.tv_sec * KEEL_NS_PER_S + (uint64_t)seen.st_mtim.tv_nsec;
    const uint64_t now_ns = keel_wall_ns();
    out->age_s = now_ns > then_ns ? (double)(now_ns - then_ns) / (double)KEEL_NS_PER_S : 0;
    const enum keel_status status = look(path, out);
    if (status == KEEL_OK)
        return KEEL_OK;
    keel_step_ranges_free(&out->lacks);
    return status == KEEL_NOT_FOUND ? KEEL_OK : status; /* it went meanwhile */
}

json_t *keel_metric_hole_event(uint64_t first, uint64_t last)
{
    char detail[160];
    if (first == last)
        snprintf(detail, sizeof detail, "metrics.jsonl lacks step %" PRIu64 ", which was done", first);
    else
        snprintf(detail, sizeof detail,
                 "metrics.jsonl lacks steps %" PRIu64 " to %" PRIu64 ", which were done", first, last);
    return json_pack("{s:I, s:I, s:s}", "first", (json_int_t)first, "last", (json_int_t)last, "detail",
                     detail);
}
