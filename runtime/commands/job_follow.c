/* job_follow.c - see job_follow.h. */
#include "job_follow.h"

#include "launcher.h"
#include "run_look.h"
#include "run_tail.h"
#include <inttypes.h>
#include <jansson.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const uint64_t look_ns = KEEL_NS_PER_S;
static const uint64_t pause_ns = 10 * KEEL_NS_PER_S; /* between lines that tell of steps */

struct follow {
    struct keel_run_tail events, metrics;
    uint64_t step, steps, told_ns;
    double loss;
    bool quiet, terminal;
};

/* ---- lines for people ---------------------------------------------------------------------------------- */

static uint64_t number_of(const json_t *line, const char *key)
{
    const json_int_t number = json_integer_value(json_object_get(line, key));
    return number > 0 ? (uint64_t)number : 0;
}

static const char *text_of(const json_t *line, const char *key)
{
    const char *text = json_string_value(json_object_get(line, key));
    return text != NULL ? text : "";
}

static void print_time(const struct follow *follow, const json_t *line)
{
    const time_t when = (time_t)(number_of(line, "wall_ns") / KEEL_NS_PER_S);
    struct tm local;
    char text[16] = "";
    if (localtime_r(&when, &local) != NULL)
        (void)strftime(text, sizeof text, "%H:%M:%S", &local);
    printf("%s[%s] ", follow->terminal ? "\r\033[K" : "", text);
}

static void print_snapshot(const json_t *line)
{
    const bool fine = strcmp(text_of(line, "status"), "OK") == 0;
    printf("snapshot of step %" PRIu64 "%s%s\n", number_of(line, "step"),
           fine ? "" : " failed: ", fine ? "" : text_of(line, "detail"));
}

/* Of what has no words here, those that it brings: an event without any is for programs. */
static void take_event(void *context, const json_t *line)
{
    struct follow *follow = context;
    const char *event = text_of(line, "event"), *detail = text_of(line, "detail");
    const bool view = strcmp(event, "view") == 0, snapshot = strcmp(event, "snapshot") == 0;
    const bool recovery = strcmp(event, "recovery") == 0, left = strcmp(event, "agent-exit") == 0;
    if (follow->quiet || strcmp(event, "end") == 0 ||
        !(view || snapshot || recovery || left || detail[0] != '\0'))
        return;
    print_time(follow, line);
    if (view)
        printf("view %" PRIu64 ": %zu ranks, %zu spares (%s)\n", number_of(line, "view"),
               json_array_size(json_object_get(line, "ranks")),
               json_array_size(json_object_get(line, "spares")), text_of(line, "cause"));
    else if (snapshot)
        print_snapshot(line);
    else if (recovery)
        printf("back at step %" PRIu64 " after %.2f s (%s)\n", number_of(line, "step"),
               json_number_value(json_object_get(line, "total_s")), text_of(line, "cause"));
    else if (left)
        printf("node %" PRIu64 " ended (%s %" PRIu64 ")\n", number_of(line, "node"), text_of(line, "how"),
               number_of(line, "code"));
    else
        printf("%s: %s\n", event, detail);
}

static void take_metric(void *context, const json_t *line)
{
    struct follow *follow = context;
    follow->step = number_of(line, "step");
    follow->loss = json_number_value(json_object_get(line, "loss"));
}

static void print_step(struct follow *follow)
{
    if (follow->quiet || follow->step == 0 || (!follow->terminal && keel_remaining_ns(follow->told_ns) > 0))
        return;
    follow->told_ns = keel_deadline_after_ns(pause_ns);
    printf("%sstep %" PRIu64 " of %" PRIu64 ", loss %.4f%s", follow->terminal ? "\r\033[K" : "", follow->step,
           follow->steps, follow->loss, follow->terminal ? "" : "\n");
}

/* ---- following ----------------------------------------------------------------------------------------- */

/* Where who leads writes. A node of another host has files of its own, which are read from their beginning.
 */
static enum keel_status turn_to(struct follow *follow, const char *directory, bool anew)
{
    char events[KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_join(events, directory, "events.jsonl"));
    if (strcmp(events, follow->events.path) == 0)
        return KEEL_OK;
    keel_run_tail_close(&follow->events);
    keel_run_tail_close(&follow->metrics);
    KEEL_TRY(keel_run_tail_open(&follow->events, directory, "events.jsonl"));
    KEEL_TRY(keel_run_tail_open(&follow->metrics, directory, "metrics.jsonl"));
    if (anew)
        follow->events.at = follow->metrics.at = 0;
    return KEEL_OK;
}

static enum keel_status follow_to_end(struct follow *follow, const char *directory)
{
    struct keel_run_led led = {.folder = ""};
    struct keel_process process = {.pidfd = -1};
    enum keel_status found = keel_run_find(directory, &process); /* on another host there is none */
    enum keel_status status = KEEL_OK;
    while (status == KEEL_OK) {
        /* Before: what it says as it ends is told too. */
        const bool elsewhere = keel_run_is_led(directory, &led), here = keel_launch_is_locked(directory),
                   held = elsewhere || here || keel_run_waits_for_leader(directory);
        if (elsewhere || here)
            status = turn_to(follow, elsewhere ? led.folder : directory, elsewhere);
        if (status == KEEL_OK)
            status = keel_run_tail_read(&follow->events, take_event, follow);
        if (status == KEEL_OK)
            status = keel_run_tail_read(&follow->metrics, take_metric, follow);
        print_step(follow);
        (void)fflush(stdout);
        if (!held)
            break;
        struct pollfd ends = {.fd = found == KEEL_OK ? process.pidfd : -1, .events = POLLIN};
        if (poll(&ends, 1, (int)(look_ns / KEEL_NS_PER_MS)) > 0 && found == KEEL_OK) {
            keel_process_close(&process); /* another may lead now */
            found = keel_run_find(directory, &process);
        }
    }
    if (process.pidfd >= 0)
        keel_process_close(&process);
    if (follow->terminal && !follow->quiet)
        printf("\n");
    return status;
}

enum keel_status keel_job_follow(const char *directory, bool quiet)
{
    struct follow *follow;
    struct keel_run_look look;
    KEEL_TRY(keel_run_look_at(directory, &look));
    KEEL_TRY(keel_alloc(1, sizeof *follow, &follow));
    follow->quiet = quiet;
    follow->terminal = isatty(STDOUT_FILENO) == 1;
    follow->steps = look.steps;
    enum keel_status status = turn_to(follow, directory, false);
    if (status == KEEL_OK)
        status = follow_to_end(follow, directory);
    keel_run_tail_close(&follow->events);
    keel_run_tail_close(&follow->metrics);
    keel_free(follow);
    return status;
}
