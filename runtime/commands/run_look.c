/* run_look.c - see run_look.h. */
#include "run_look.h"

#include "jsonl.h"
#include "launcher.h"
#include "run_locks.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <keel/clock.h>
#include <keel/job.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { METRICS_TAIL_BYTES = 256 << 10, EVENTS_TAIL_BYTES = 4 << 20 };

const char *keel_run_state_name(enum keel_run_state state)
{
    static const char *const names[] = {"running", "done", "stopped", "failed", "killed"};
    return names[state];
}

/* ---- the ends of files --------------------------------------------------------------------------------- */

/* The last `bytes` of a file at most, ended by a zero: *out is the caller's. A file that is not there is
 * empty. */
static enum keel_status read_tail(const char *path, uint64_t bytes, char **out, struct stat *seen)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    memset(seen, 0, sizeof *seen);
    if (fd < 0 && errno == ENOENT)
        return keel_alloc(1, 1, out);
    if (fd < 0 || fstat(fd, seen) != 0) {
        const int error = errno;
        if (fd >= 0)
            close(fd);
        return keel_fail_errno(error, "%s: cannot be read", path);
    }
    const uint64_t whole = (uint64_t)seen->st_size, wanted = whole < bytes ? whole : bytes;
    enum keel_status status = keel_alloc(keel_size(wanted) + 1, 1, out);
    const ssize_t got =
        status == KEEL_OK ? pread(fd, *out, keel_size(wanted), (off_t)(whole - wanted)) : (ssize_t)wanted;
    if (got < 0) {
        status = keel_fail_errno(errno, "%s: cannot be read", path);
        keel_free(*out);
    } else if (status == KEEL_OK) {
        (*out)[got] = '\0';
    }
    close(fd);
    return status;
}

/* Each whole line of them that is an object, in order: the first may be cut, and the last may still be
 * written. */
static enum keel_status read_lines(const char *path, uint64_t bytes,
                                   void (*take)(struct keel_run_look *look, const json_t *line),
                                   struct keel_run_look *look, struct stat *seen)
{
    char *text = NULL;
    const enum keel_status status = read_tail(path, bytes, &text, seen);
    if (status != KEEL_OK || text == NULL)
        return status;
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        json_error_t error;
        *end = '\0';
        json_t *object = json_loads(line, 0, &error);
        if (json_is_object(object))
            take(look, object);
        json_decref(object);
    }
    keel_free(text);
    return KEEL_OK;
}

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

static void take_metric(struct keel_run_look *look, const json_t *line)
{
    look->step = number_of(line, "step");
    look->loss = json_number_value(json_object_get(line, "loss"));
    look->step_s = json_number_value(json_object_get(line, "seconds"));
}

static enum keel_status status_named(const char *name)
{
    for (int status = 0; status < KEEL_STATUS_COUNT; status++)
        if (strcmp(name, keel_status_name((enum keel_status)status)) == 0)
            return (enum keel_status)status;
    return KEEL_INTERNAL;
}

static void take_event(struct keel_run_look *look, const json_t *line)
{
    const char *event = text_of(line, "event");
    if (strcmp(event, "start") == 0) {
        look->state = KEEL_RUN_KILLED;
        look->view = look->ranks = look->spares = 0;
        look->snapshot = strcmp(text_of(line, "resume"), "none") == 0 ? 0 : look->snapshot;
    } else if (strcmp(event, "view") == 0) {
        look->view = number_of(line, "view");
        look->ranks = json_array_size(json_object_get(line, "ranks"));
        look->spares = json_array_size(json_object_get(line, "spares"));
    } else if (strcmp(event, "snapshot") == 0 && strcmp(text_of(line, "status"), "OK") == 0) {
        look->snapshot = number_of(line, "step");
    } else if (strcmp(event, "end") == 0) {
        look->status = status_named(text_of(line, "status"));
        look->state = look->status == KEEL_OK            ? KEEL_RUN_DONE
                      : look->status == KEEL_INTERRUPTED ? KEEL_RUN_STOPPED
                                                         : KEEL_RUN_FAILED;
        snprintf(look->detail, sizeof look->detail, "%s", text_of(line, "detail"));
    }
}

/* Of the lines before the tail, which a run of months has left behind: its view and its newest snapshot. */
static enum keel_status see_event(void *context, const json_t *line, uint64_t number)
{
    (void)number;
    take_event(context, line);
    return KEEL_OK;
}

static enum keel_status look_at_events(const char *path, struct keel_run_look *out, struct stat *seen)
{
    uint64_t skipped;
    KEEL_TRY(read_lines(path, EVENTS_TAIL_BYTES, take_event, out, seen));
    if (seen->st_size <= EVENTS_TAIL_BYTES || (out->view != 0 && out->snapshot != 0))
        return KEEL_OK;
    out->snapshot = 0;
    out->state = KEEL_RUN_KILLED;
    return keel_jsonl_read(path, see_event, out, &skipped);
}

/* ---- who holds it -------------------------------------------------------------------------------------- */

/* One leads until another does in its place: so long it is asked again. */
static const uint64_t replace_ns = KEEL_NS_PER_S;
static const uint64_t ask_ns = 20 * KEEL_NS_PER_MS;

/* The process that the lock names is not there: it has ended, and is being replaced, or is on another host.
 */
static bool is_away(const char *lock)
{
    struct keel_lock_words words;
    return !keel_lock_read(lock, &words) || keel_process_look_at((pid_t)words.pid).life == KEEL_PROCESS_DEAD;
}

enum keel_status keel_run_find(const char *directory, struct keel_process *out)
{
    char lock[KEEL_PATH_BYTES];
    const uint64_t until_ns = keel_deadline_after_ns(replace_ns);
    KEEL_TRY(keel_path_join(lock, directory, "run.lock"));
    enum keel_status status;
    while ((status = keel_lock_find(lock, out)) != KEEL_OK && status != KEEL_NOT_FOUND && is_away(lock) &&
           keel_remaining_ns(until_ns) > 0)
        keel_sleep_until_ns(keel_deadline_after_ns(ask_ns));
    return status == KEEL_NOT_FOUND ? keel_fail(status, "%s: no run goes on there", directory) : status;
}

/* ---- the look ------------------------------------------------------------------------------------------ */

static enum keel_status look_at_files(const char *directory, struct keel_run_look *out)
{
    char path[KEEL_PATH_BYTES];
    struct stat events, metrics;
    if (keel_path_is_file(directory))
        return keel_fail(KEEL_INVALID, "%s: is a file; give the directory of a run (keel run --out)",
                         directory);
    KEEL_TRY(keel_path_join(path, directory, "events.jsonl"));
    out->state = KEEL_RUN_KILLED;
    KEEL_TRY(look_at_events(path, out, &events));
    if (events.st_size == 0)
        return keel_fail(KEEL_NOT_FOUND,
                         "%s: no run began there; give the directory of a run (keel run --out)", directory);
    KEEL_TRY(keel_path_join(path, directory, "metrics.jsonl"));
    KEEL_TRY(read_lines(path, METRICS_TAIL_BYTES, take_metric, out, &metrics));
    const uint64_t now_ns = keel_wall_ns();
    const uint64_t then_ns =
        (uint64_t)metrics.st_mtim.tv_sec * KEEL_NS_PER_S + (uint64_t)metrics.st_mtim.tv_nsec;
    out->age_s = now_ns > then_ns ? (double)(now_ns - then_ns) / (double)KEEL_NS_PER_S : 0;
    return KEEL_OK;
}

/* Where the snapshots of a run are that others may lead. */
static bool find_store(const char *directory, char store[KEEL_PATH_BYTES], double *timeout_s)
{
    char path[KEEL_PATH_BYTES];
    struct keel_job *job;
    if (keel_path_join(path, directory, "job.conf") != KEEL_OK || !keel_path_exists(path) ||
        keel_alloc(1, sizeof *job, &job) != KEEL_OK)
        return false;
    bool moves = keel_job_load(path, NULL, 0, job) == KEEL_OK && job->holders > 1;
    if (moves && job->snapshot_store[0] != '\0')
        memcpy(store, job->snapshot_store, sizeof job->snapshot_store);
    else
        moves = moves && keel_path_join(store, directory, "ckpt") == KEEL_OK;
    *timeout_s = job->timeout_s;
    keel_free(job);
    return moves;
}

bool keel_run_is_led(const char *directory, struct keel_run_led *out)
{
    double timeout_s;
    return find_store(directory, out->store, &timeout_s) &&
           keel_remote_leader_lives(out->store, timeout_s, &out->leader) &&
           keel_remote_leader_path(out->store, out->leader.folder, out->folder) == KEEL_OK;
}

static enum keel_status see_folder(void *context, const char *name)
{
    char *last = context; /* names begin with the time, and come in order */
    if (strchr(name, '-') != NULL && strlen(name) < KEEL_PATH_BYTES)
        memcpy(last, name, strlen(name) + 1);
    return KEEL_OK;
}

/* Of nodes that led and do not any more: the folder of the last, which `keel run` has not taken in yet. */
static bool was_led(const char *directory, char folder[KEEL_PATH_BYTES])
{
    char store[KEEL_PATH_BYTES], all[KEEL_PATH_BYTES], last[KEEL_PATH_BYTES] = "";
    double timeout_s;
    return find_store(directory, store, &timeout_s) &&
           keel_path_join(all, store, KEEL_REMOTE_LEADER_FOLDER) == KEEL_OK && keel_path_exists(all) &&
           keel_dir_list(all, see_folder, last) == KEEL_OK && last[0] != '\0' &&
           keel_path_join(folder, all, last) == KEEL_OK;
}

/* Its lines are the newest; of what it has not told yet those of the directory are. */
static void look_at_led(const char *folder, struct keel_run_look *look)
{
    struct keel_run_look its = {.step = 0};
    if (look_at_files(folder, &its) != KEEL_OK)
        return;
    look->state = its.state;
    look->status = its.status;
    memcpy(look->detail, its.detail, sizeof look->detail);
    if (its.step > look->step) {
        look->step = its.step;
        look->loss = its.loss;
        look->step_s = its.step_s;
        look->age_s = its.age_s;
    }
    if (its.view > look->view) {
        look->view = its.view;
        look->ranks = its.ranks;
        look->spares = its.spares;
    }
    look->snapshot = its.snapshot > look->snapshot ? its.snapshot : look->snapshot;
}

enum keel_status keel_run_look_at(const char *directory, struct keel_run_look *out)
{
    struct keel_run_look look = {.step = 0};
    struct keel_run_led led = {.folder = ""};
    struct keel_job *job;
    char path[KEEL_PATH_BYTES];
    struct keel_lock_words words;
    /* Who holds it is asked before and after: a run that ends meanwhile has said so. */
    bool held = keel_launch_is_locked(directory);
    KEEL_TRY(look_at_files(directory, &look));
    held = held && keel_launch_is_locked(directory);
    if (held) {
        KEEL_TRY(keel_path_join(path, directory, "run.lock"));
        if (keel_lock_read(path, &words))
            look.pid = (uint64_t)words.pid;
        look.state = KEEL_RUN_GOES_ON;
    }
    if (keel_run_is_led(directory, &led)) {
        look_at_led(led.folder, &look);
        look.state = KEEL_RUN_GOES_ON;
        look.pid = (uint64_t)led.leader.pid;
        snprintf(look.host, sizeof look.host, "%s", led.leader.host);
    } else if (!held && was_led(directory, led.folder)) {
        look_at_led(led.folder, &look);
    }
    KEEL_TRY(keel_path_join(path, directory, "job.conf"));
    KEEL_TRY(keel_alloc(1, sizeof *job, &job));
    const enum keel_status status = keel_job_load(path, NULL, 0, job);
    look.steps = status == KEEL_OK ? job->steps : 0;
    keel_free(job);
    KEEL_TRY(status);
    *out = look;
    return KEEL_OK;
}
