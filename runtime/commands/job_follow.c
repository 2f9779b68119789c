/* job_follow.c - see job_follow.h. */
#include "job_follow.h"

#include "launcher.h"
#include "run_look.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK_BYTES = 256 << 10 };
static const uint64_t look_ns = KEEL_NS_PER_S;
static const uint64_t pause_ns = 10 * KEEL_NS_PER_S; /* between lines that tell of steps */

/* A file of lines, from where it was read last. */
struct tail {
    char path[KEEL_PATH_BYTES];
    uint64_t at;
};

struct follow {
    struct tail events, metrics;
    char *chunk;
    uint64_t step, steps, told_ns;
    double loss;
    bool quiet, terminal;
};

static uint64_t bytes_of(const char *path)
{
    struct stat seen;
    return stat(path, &seen) == 0 ? (uint64_t)seen.st_size : 0;
}

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
static void take_event(struct follow *follow, const json_t *line)
{
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

static void take_metric(struct follow *follow, const json_t *line)
{
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

/* What came since, as far as it is whole lines. */
static enum keel_status read_on(struct follow *follow, struct tail *tail,
                                void (*take)(struct follow *follow, const json_t *line))
{
    const uint64_t whole = bytes_of(tail->path);
    tail->at = tail->at > whole ? whole : tail->at; /* lines were withdrawn */
    if (tail->at == whole)
        return KEEL_OK;
    const int fd = open(tail->path, O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd >= 0 ? pread(fd, follow->chunk, CHUNK_BYTES, (off_t)tail->at) : -1;
    const int error = errno;
    if (fd >= 0)
        close(fd);
    if (got < 0)
        return keel_fail_errno(error, "%s: cannot be read", tail->path);
    follow->chunk[got] = '\0';
    char *line = follow->chunk;
    for (char *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        json_error_t why;
        *end = '\0';
        json_t *object = json_loads(line, 0, &why);
        if (json_is_object(object))
            take(follow, object);
        json_decref(object);
    }
    const uint64_t used = (uint64_t)(line - follow->chunk);
    tail->at += used > 0 || got < CHUNK_BYTES ? used : (uint64_t)got; /* no line is so long */
    return KEEL_OK;
}

static enum keel_status follow_to_end(struct follow *follow, const char *directory)
{
    struct keel_process process = {.pidfd = -1};
    enum keel_status found = keel_run_find(directory, &process); /* on another host there is none */
    enum keel_status status = KEEL_OK;
    while (status == KEEL_OK) {
        const bool held = keel_launch_is_locked(directory); /* before: what it says as it ends is told too */
        status = read_on(follow, &follow->events, take_event);
        if (status == KEEL_OK)
            status = read_on(follow, &follow->metrics, take_metric);
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
    enum keel_status status = keel_alloc(1, CHUNK_BYTES + 1, &follow->chunk);
    if (status == KEEL_OK)
        status = keel_path_join(follow->events.path, directory, "events.jsonl");
    if (status == KEEL_OK)
        status = keel_path_join(follow->metrics.path, directory, "metrics.jsonl");
    follow->events.at = bytes_of(follow->events.path);
    follow->metrics.at = bytes_of(follow->metrics.path);
    if (status == KEEL_OK)
        status = follow_to_end(follow, directory);
    keel_free(follow->chunk);
    keel_free(follow);
    return status;
}
