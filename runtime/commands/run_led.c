/* run_led.c - see run_led.h. */
#include "run_led.h"

#include "jsonl.h"
#include "remote_leader.h"
#include "run_output.h"
#include <errno.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- an agent that leads ------------------------------------------------------------------------------- */

static enum keel_status open_led(const char *folder, const struct keel_job *job, uint64_t heard_ns,
                                 struct keel_launch_report *out)
{
    struct keel_output *output;
    KEEL_TRY(keel_output_lead(folder, job, heard_ns, &output));
    *out = keel_output_report(output);
    return KEEL_OK;
}

static enum keel_status close_led(void *context, bool ended, uint64_t kept_step, enum keel_status status,
                                  char detail[KEEL_DETAIL_BYTES])
{
    struct keel_output *output = context;
    const enum keel_status was = status;
    keel_detail_set(detail);
    status = ended ? keel_output_led_end(output, status) : status;
    if (ended && status == KEEL_OK && keel_output_mismatches(output) > 0)
        status = keel_fail(KEEL_MISMATCH, "steps came with different bits");
    if (ended && status == KEEL_INTERRUPTED && kept_step != UINT64_MAX)
        (void)keel_output_tell_unsaved(output, kept_step, false);
    if (ended && (status == was || status != KEEL_OK))
        snprintf(detail, KEEL_DETAIL_BYTES, "%s", keel_detail());
    if (ended)
        keel_output_finish(output, status, status == KEEL_OK ? "" : detail);
    keel_output_close(output);
    return status;
}

int keel_led_agent_main(int argc, char **argv)
{
    static const struct keel_agent_output output = {.open = open_led, .close = close_led};
    return keel_agent_main(&output, argc, argv);
}

/* ---- taking lines in ----------------------------------------------------------------------------------- */

struct led_lines {
    json_t **at;
    uint64_t count, capacity;
};

struct taking {
    const char *directory, *store;
    struct led_lines lines; /* events that came from the folder at hand before */
    uint64_t next;          /* of them */
    json_int_t first_ns;    /* wall_ns of the folder's first event */
    struct keel_jsonl *events;
    int node; /* whose folder it is */
    bool taken;
    uint64_t differing;
};

static enum keel_status keep_line(void *context, const json_t *line, uint64_t number)
{
    struct led_lines *lines = context;
    (void)number;
    if (lines->count == lines->capacity) {
        const uint64_t more = lines->capacity * 2 + 1024;
        KEEL_TRY(keel_realloc(&lines->at, lines->capacity, more, sizeof(json_t *)));
        lines->capacity = more;
    }
    lines->at[lines->count] = json_deep_copy(line);
    return lines->at[lines->count++] != NULL ? KEEL_OK : keel_fail(KEEL_NO_MEMORY, "a line of metrics.jsonl");
}

static void forget(struct led_lines *lines)
{
    while (lines->count > 0)
        json_decref(lines->at[--lines->count]);
    keel_free(lines->at);
    *lines = (struct led_lines){.count = 0};
}

/* ---- lines of steps ---- */

/* One of two files whose lines ascend by step. */
struct led_side {
    struct keel_jsonl_reader reader;
    const char *text;
    size_t bytes;
    uint64_t step; /* of the line at hand; UINT64_MAX: there is none any more */
    bool marks;    /* it says where it stands */
};

/* The file that both become. */
struct led_merged {
    FILE *file;
    uint64_t bytes, step;
    struct keel_step_ranges lacks;
};

static enum keel_status advance(struct led_side *side)
{
    json_error_t error;
    side->step = UINT64_MAX;
    KEEL_TRY(keel_jsonl_next(&side->reader, &side->text, &side->bytes));
    if (side->text == NULL)
        return KEEL_OK;
    json_t *line = json_loadb(side->text, side->bytes, 0, &error);
    const json_int_t step = json_integer_value(json_object_get(line, "step"));
    side->marks = json_object_get(line, "past") != NULL || json_object_get(line, "lacks") != NULL;
    json_decref(line);
    if (step < 1)
        return keel_fail(KEEL_CORRUPT,
                         "%s: the line that ends at byte %" PRIu64 " is no metric; move the file away",
                         side->reader.path, side->reader.end);
    side->step = (uint64_t)step;
    return KEEL_OK;
}

/* A file that is not there has none. */
static enum keel_status begin_side(struct led_side *side, const char *path)
{
    *side = (struct led_side){.reader = {.fd = -1}, .step = UINT64_MAX};
    if (!keel_path_exists(path))
        return KEEL_OK;
    KEEL_TRY(keel_jsonl_begin(&side->reader, path, 0));
    return advance(side);
}

static bool same_text(const json_t *a, const json_t *b, const char *key)
{
    const char *one = json_string_value(json_object_get(a, key)),
               *other = json_string_value(json_object_get(b, key));
    return one != NULL && other != NULL && strcmp(one, other) == 0;
}

/* Takes the reference of `fields`. */
static void write_event(const struct taking *taking, const char *event, json_t *fields)
{
    json_t *line = json_pack("{s:s, s:I, s:I}", "event", event, "monotonic_ns", (json_int_t)keel_now_ns(),
                             "wall_ns", (json_int_t)keel_wall_ns());
    if (line != NULL && fields != NULL)
        json_object_update(line, fields);
    json_decref(fields);
    keel_jsonl_write(taking->events, line);
}

/* Both have it: the same bits, or one of them is not the run's. */
static void compare(struct taking *taking, const struct led_side *here, const struct led_side *there)
{
    json_error_t error;
    json_t *one = json_loadb(here->text, here->bytes, 0, &error),
           *other = json_loadb(there->text, there->bytes, 0, &error);
    const bool same = same_text(one, other, "digest") && same_text(one, other, "loss_bits");
    json_decref(one);
    json_decref(other);
    if (same)
        return;
    taking->differing++;
    write_event(taking, "bits-differ",
                json_pack("{s:I, s:s}", "step", (json_int_t)here->step, "detail",
                          "the launcher and a node that led have other bits"));
}

/* A mark stands elsewhere now, and other steps lack. */
static char *marked_again(const struct led_side *side, const struct led_merged *merged)
{
    json_error_t error;
    json_t *line = json_loadb(side->text, side->bytes, 0, &error);
    keel_metric_mark(line, merged->bytes, &merged->lacks);
    char *text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(line);
    return text;
}

static enum keel_status put_line(struct led_merged *merged, const struct led_side *side)
{
    KEEL_TRY(keel_metric_skip(&merged->lacks, merged->step, side->step));
    char *again = side->marks ? marked_again(side, merged) : NULL;
    if (side->marks && again == NULL)
        return keel_fail(KEEL_NO_MEMORY, "a line of metrics.jsonl");
    const char *text = again != NULL ? again : side->text;
    const size_t bytes = again != NULL ? strlen(again) : side->bytes;
    const bool put = fwrite(text, 1, bytes, merged->file) == bytes && fputc('\n', merged->file) != EOF;
    const int error = errno;
    free(again); /* Jansson's own allocation */
    merged->step = side->step;
    merged->bytes += bytes + 1;
    return put ? KEEL_OK : keel_fail_errno(error, "metrics.jsonl: cannot be written");
}

/* That of the directory, where both have one. */
static enum keel_status merge_sides(struct taking *taking, struct led_side *here, struct led_side *there,
                                    struct led_merged *merged)
{
    while (here->step != UINT64_MAX || there->step != UINT64_MAX) {
        const bool both = here->step == there->step;
        struct led_side *first = here->step <= there->step ? here : there;
        if (both)
            compare(taking, here, there);
        KEEL_TRY(put_line(merged, first));
        KEEL_TRY(advance(first));
        if (both)
            KEEL_TRY(advance(there));
    }
    return KEEL_OK;
}

static enum keel_status put_in_place(FILE *out, const char *from, const char *path, enum keel_status status)
{
    if (status == KEEL_OK && (fflush(out) != 0 || fsync(fileno(out)) != 0))
        status = keel_fail_errno(errno, "%s: cannot be written", from);
    if (fclose(out) != 0 && status == KEEL_OK)
        status = keel_fail_errno(errno, "%s: cannot be written", from);
    if (status == KEEL_OK && rename(from, path) != 0)
        status = keel_fail_errno(errno, "%s: cannot be replaced", path);
    if (status != KEEL_OK)
        unlink(from);
    return status;
}

/* Into another file that takes its place, in as much memory as a line has. */
static enum keel_status merge_into(struct taking *taking, const char *path, struct led_side *here,
                                   struct led_side *there)
{
    char merged[KEEL_PATH_BYTES];
    if (snprintf(merged, sizeof merged, "%s.%ld.0.tmp", path, (long)getpid()) >= (int)sizeof merged)
        return keel_fail(KEEL_LIMIT, "%s: too long a path", path);
    FILE *out = fopen(merged, "w");
    if (out == NULL)
        return keel_fail_errno(errno, "%s: cannot be made", merged);
    struct led_merged both = {.file = out};
    const enum keel_status status = put_in_place(out, merged, path, merge_sides(taking, here, there, &both));
    keel_step_ranges_free(&both.lacks);
    KEEL_TRY(status);
    return keel_sync_path(taking->directory);
}

static enum keel_status merge_metrics(struct taking *taking, const char *folder)
{
    char path[KEEL_PATH_BYTES], from[KEEL_PATH_BYTES];
    struct led_side here, there;
    KEEL_TRY(keel_path_join(from, folder, "metrics.jsonl"));
    KEEL_TRY(keel_path_join(path, taking->directory, "metrics.jsonl"));
    enum keel_status status = begin_side(&there, from);
    if (status == KEEL_OK && there.step != UINT64_MAX) {
        status = begin_side(&here, path);
        if (status == KEEL_OK)
            status = merge_into(taking, path, &here, &there);
        keel_jsonl_end(&here.reader);
    }
    keel_jsonl_end(&there.reader);
    return status;
}

/* ---- events ---- */

static json_int_t wall_ns_of(const json_t *line)
{
    return json_integer_value(json_object_get(line, "wall_ns"));
}

/* What lacks in one file may be in another: told when all are taken in. */
static bool is_hole(const json_t *line)
{
    const char *event = json_string_value(json_object_get(line, "event"));
    return event != NULL && strcmp(event, "metrics-hole") == 0;
}

static enum keel_status see_first_event(void *context, const json_t *line, uint64_t number)
{
    struct taking *taking = context;
    taking->first_ns = number == 1 ? wall_ns_of(line) : taking->first_ns;
    return KEEL_OK;
}

static enum keel_status keep_taken_event(void *context, const json_t *line, uint64_t number)
{
    struct taking *taking = context;
    const json_t *node = json_object_get(line, "led_by");
    return json_is_integer(node) && json_integer_value(node) == taking->node &&
                   wall_ns_of(line) >= taking->first_ns && !is_hole(line)
               ? keep_line(&taking->lines, line, number)
               : KEEL_OK;
}

/* Those that are there already, since who took them was killed before the folder was gone, are passed over.
 */
static enum keel_status copy_event(void *context, const json_t *line, uint64_t number)
{
    struct taking *taking = context;
    (void)number;
    if (is_hole(line))
        return KEEL_OK;
    json_t *event = json_deep_copy(line);
    json_object_set_new(event, "led_by", json_integer(taking->node));
    if (taking->next < taking->lines.count && json_equal(taking->lines.at[taking->next], event)) {
        taking->next++;
        json_decref(event);
        return KEEL_OK;
    }
    keel_jsonl_write(taking->events, event);
    return KEEL_OK;
}

static enum keel_status copy_events(struct taking *taking, const char *folder)
{
    char from[KEEL_PATH_BYTES], to[KEEL_PATH_BYTES];
    uint64_t skipped;
    KEEL_TRY(keel_path_join(from, folder, "events.jsonl"));
    KEEL_TRY(keel_path_join(to, taking->directory, "events.jsonl"));
    taking->next = 0;
    taking->first_ns = 0;
    enum keel_status status = keel_jsonl_read(from, see_first_event, taking, &skipped);
    if (status == KEEL_OK)
        status = keel_jsonl_read(to, keep_taken_event, taking, &skipped);
    if (status == KEEL_OK)
        status = keel_jsonl_read(from, copy_event, taking, &skipped);
    forget(&taking->lines);
    KEEL_TRY(status == KEEL_NOT_FOUND ? KEEL_OK : status);
    return keel_jsonl_sync(taking->events);
}

static enum keel_status take_folder(struct taking *taking, const char *folder)
{
    enum keel_status status = merge_metrics(taking, folder);
    if (status == KEEL_OK)
        status = copy_events(taking, folder);
    taking->taken = taking->taken || status == KEEL_OK;
    return status == KEEL_OK ? keel_remove_tree(folder) : status;
}

static enum keel_status see_entry(void *context, const char *name)
{
    struct taking *taking = context;
    char folder[KEEL_PATH_BYTES];
    const char *node = strchr(name, '-');
    if (node == NULL) /* leader */
        return KEEL_OK;
    taking->node = atoi(node + 1);
    KEEL_TRY(keel_remote_leader_path(taking->store, name, folder));
    return take_folder(taking, folder);
}

/* The text that the job asked for came by the store. */
static void take_sample(const struct taking *taking)
{
    char from[KEEL_PATH_BYTES], to[KEEL_PATH_BYTES];
    if (keel_path_join(from, taking->store, "sample.txt") == KEEL_OK &&
        keel_path_join(to, taking->directory, "sample.txt") == KEEL_OK && rename(from, to) != 0 &&
        errno != ENOENT)
        keel_log(KEEL_LOG_WARN, "%s: cannot be moved to %s: %s", from, to, strerror(errno));
}

enum keel_status keel_led_take(const char *directory, const char *store, bool *out_taken,
                               uint64_t *out_differing)
{
    struct taking taking = {.directory = directory, .store = store};
    char all[KEEL_PATH_BYTES], events[KEEL_PATH_BYTES];
    *out_taken = false;
    *out_differing = 0;
    KEEL_TRY(keel_path_join(all, store, KEEL_REMOTE_LEADER_FOLDER));
    if (!keel_path_exists(all))
        return KEEL_OK;
    KEEL_TRY(keel_path_join(events, directory, "events.jsonl"));
    KEEL_TRY(keel_jsonl_open(events, NULL, NULL, &taking.events));
    enum keel_status status = keel_dir_list(all, see_entry, &taking);
    keel_jsonl_close(taking.events);
    if (status == KEEL_OK && taking.taken)
        take_sample(&taking);
    *out_taken = taking.taken;
    *out_differing = taking.differing;
    return status;
}
