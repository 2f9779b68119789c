/* run_led.c - see run_led.h. */
#include "run_led.h"

#include "jsonl.h"
#include "remote_leader.h"
#include "run_output.h"
#include <errno.h>
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

static enum keel_status close_led(void *context, bool ended, enum keel_status status, const char *detail)
{
    struct keel_output *output = context;
    const bool differ = ended && status == KEEL_OK && keel_output_mismatches(output) > 0;
    if (differ)
        status = keel_fail(KEEL_MISMATCH, "steps came with different bits");
    if (ended)
        keel_output_finish(output, status, status == KEEL_OK ? "" : differ ? keel_detail() : detail);
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
    struct led_lines lines; /* of the folder at hand, by step */
    uint64_t next;          /* of them */
    FILE *merged;
    struct keel_jsonl *events;
    int node; /* whose folder it is */
    bool taken;
    uint64_t differing;
};

static json_int_t step_of(const json_t *line)
{
    return json_integer_value(json_object_get(line, "step"));
}

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

static void print(struct taking *taking, const json_t *line)
{
    (void)json_dumpf(line, taking->merged, JSON_COMPACT);
    (void)fputc('\n', taking->merged);
}

static bool same_text(const json_t *a, const json_t *b, const char *key)
{
    const char *one = json_string_value(json_object_get(a, key)),
               *other = json_string_value(json_object_get(b, key));
    return one != NULL && other != NULL && strcmp(one, other) == 0;
}

/* Both have it: the same bits, or one of them is not the run's. */
static void compare(struct taking *taking, const json_t *here, const json_t *there)
{
    if (same_text(here, there, "digest") && same_text(here, there, "loss_bits"))
        return;
    taking->differing++;
    keel_jsonl_write(taking->events,
                     json_pack("{s:s, s:I, s:I, s:I, s:s}", "event", "bits-differ", "monotonic_ns",
                               (json_int_t)keel_now_ns(), "wall_ns", (json_int_t)keel_wall_ns(), "step",
                               step_of(here), "detail", "the launcher and a node that led have other bits"));
}

/* Those of the folder that come before this line of the directory, then it. */
static enum keel_status merge_line(void *context, const json_t *line, uint64_t number)
{
    struct taking *taking = context;
    const struct led_lines *lines = &taking->lines;
    (void)number;
    while (taking->next < lines->count && step_of(lines->at[taking->next]) < step_of(line))
        print(taking, lines->at[taking->next++]);
    if (taking->next < lines->count && step_of(lines->at[taking->next]) == step_of(line))
        compare(taking, line, lines->at[taking->next++]);
    print(taking, line);
    return KEEL_OK;
}

static enum keel_status merge_metrics(struct taking *taking, const char *folder)
{
    char path[KEEL_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    KEEL_TRY(keel_path_join(path, folder, "metrics.jsonl"));
    enum keel_status status = keel_jsonl_read(path, keep_line, &taking->lines, NULL);
    if (status == KEEL_NOT_FOUND || (status == KEEL_OK && taking->lines.count == 0))
        return KEEL_OK;
    KEEL_TRY(status);
    KEEL_TRY(keel_path_join(path, taking->directory, "metrics.jsonl"));
    taking->next = 0;
    taking->merged = open_memstream(&text, &bytes);
    if (taking->merged == NULL)
        return keel_fail(KEEL_NO_MEMORY, "no memory for %s", path);
    status = keel_path_exists(path) ? keel_jsonl_read(path, merge_line, taking, NULL) : KEEL_OK;
    while (status == KEEL_OK && taking->next < taking->lines.count)
        print(taking, taking->lines.at[taking->next++]);
    const bool whole = ferror(taking->merged) == 0;
    if (fclose(taking->merged) != 0 || !whole)
        status = status == KEEL_OK ? keel_fail(KEEL_NO_MEMORY, "no memory for %s", path) : status;
    if (status == KEEL_OK)
        status = keel_file_replace(path, text, bytes, 0666);
    free(text); /* open_memstream's own allocation */
    return status;
}

static enum keel_status copy_event(void *context, const json_t *line, uint64_t number)
{
    struct taking *taking = context;
    (void)number;
    json_t *event = json_deep_copy(line);
    json_object_set_new(event, "led_by", json_integer(taking->node));
    keel_jsonl_write(taking->events, event);
    return KEEL_OK;
}

static enum keel_status take_folder(struct taking *taking, const char *folder)
{
    char path[KEEL_PATH_BYTES];
    uint64_t skipped;
    KEEL_TRY(keel_path_join(path, taking->directory, "events.jsonl"));
    KEEL_TRY(keel_jsonl_open(path, NULL, NULL, &taking->events));
    enum keel_status status = merge_metrics(taking, folder);
    forget(&taking->lines);
    if (status == KEEL_OK)
        status = keel_path_join(path, folder, "events.jsonl");
    if (status == KEEL_OK)
        status = keel_jsonl_read(path, copy_event, taking, &skipped);
    status = status == KEEL_NOT_FOUND ? KEEL_OK : status;
    if (status == KEEL_OK)
        status = keel_jsonl_sync(taking->events);
    keel_jsonl_close(taking->events);
    taking->taken = taking->taken || status == KEEL_OK;
    return status == KEEL_OK ? keel_remove_tree(folder) : status;
}

static enum keel_status see_entry(void *context, const char *name)
{
    struct taking *taking = context;
    char folder[KEEL_PATH_BYTES];
    const char *node = strchr(name, '-');
    if (node == NULL) /* leader, stop */
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
    char all[KEEL_PATH_BYTES], stop[KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_join(all, store, KEEL_REMOTE_LEADER_FOLDER));
    enum keel_status status = keel_path_exists(all) ? keel_dir_list(all, see_entry, &taking) : KEEL_OK;
    if (status == KEEL_OK && taking.taken && keel_remote_leader_path(store, "stop", stop) == KEEL_OK) {
        unlink(stop);
        take_sample(&taking);
    }
    *out_taken = taking.taken;
    *out_differing = taking.differing;
    return status;
}
