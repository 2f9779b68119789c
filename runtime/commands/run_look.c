/* run_look.c - see run_look.h. */
#include "run_look.h"

#include "jsonl.h"
#include "launcher.h"
#include "metric_lines.h"
#include "run_locks.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/job.h>
#include <keel/memory.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EVENTS_TAIL_BYTES = 4 << 20 };
enum { LEASE_TIMEOUTS = 4 }; /* so long after who led a node does; five without one end all agents */

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
        look->detail[0] = '\0';
        look->done_step = 0;
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
        if (look->status != KEEL_OK) /* else it is why it ended early, if it did */
            snprintf(look->detail, sizeof look->detail, "%s", text_of(line, "detail"));
        look->done_step = look->status == KEEL_OK ? number_of(line, "step") : 0;
    } else if (strcmp(event, "early-stop") == 0) {
        snprintf(look->detail, sizeof look->detail, "%s", text_of(line, "detail"));
    }
}

struct old_event {
    uint64_t begin; /* in the file */
    json_t *line;   /* NULL: there is none among 64 MiB */
};

static struct old_event find_before(const char *path, uint64_t before, const char *with)
{
    struct keel_jsonl_place place = {.begin = 0};
    struct old_event found = {.line = NULL};
    if (keel_jsonl_find_back(path, before, with, &found.line, &place) == KEEL_OK)
        found.begin = place.begin;
    return found;
}

/* Of the lines before the tail, which a run of months has left behind: its view and its newest snapshot. */
static void take_old_events(const char *path, uint64_t before, struct keel_run_look *look)
{
    const struct old_event start = find_before(path, before, "\"event\":\"start\""),
                           view = find_before(path, before, "\"event\":\"view\""),
                           snapshot = find_before(path, before, "\"event\":\"snapshot\"");
    if (snapshot.begin < start.begin)
        take_event(look, snapshot.line);
    take_event(look, start.line);
    if (view.begin >= start.begin)
        take_event(look, view.line);
    if (snapshot.begin >= start.begin)
        take_event(look, snapshot.line);
    json_decref(start.line);
    json_decref(view.line);
    json_decref(snapshot.line);
}

/* *bytes: of the file; 0: nothing is there. */
static enum keel_status look_at_events(const char *directory, struct keel_run_look *out, uint64_t *bytes)
{
    char path[KEEL_PATH_BYTES];
    struct stat seen;
    KEEL_TRY(keel_path_join(path, directory, "events.jsonl"));
    const struct keel_run_look before = *out;
    KEEL_TRY(read_lines(path, EVENTS_TAIL_BYTES, take_event, out, &seen));
    *bytes = (uint64_t)seen.st_size;
    if (*bytes <= EVENTS_TAIL_BYTES || (out->view != 0 && out->snapshot != 0))
        return KEEL_OK;
    *out = before;
    take_old_events(path, *bytes - EVENTS_TAIL_BYTES, out);
    return read_lines(path, EVENTS_TAIL_BYTES, take_event, out, &seen);
}

/* ---- lines of steps ------------------------------------------------------------------------------------ */

/* Of which steps some metrics.jsonl has a line is taken out of `lacks`. */
static enum keel_status take_metrics(const char *directory, struct keel_run_look *look,
                                     struct keel_step_ranges *lacks)
{
    struct keel_metric_file file;
    struct keel_step_ranges has = {.at = NULL};
    KEEL_TRY(keel_metric_look(directory, &file));
    const uint64_t step = file.last.seen.step;
    if (step > look->line_step) {
        look->line_step = step;
        look->loss = file.loss;
        look->step_s = file.seconds;
        look->age_s = file.age_s;
    }
    if (file.damaged) {
        look->damaged_at = file.damaged_at;
        snprintf(look->damaged, sizeof look->damaged, "%s", directory);
    }
    enum keel_status status = step > 0 ? keel_step_ranges_add(&has, 1, step) : KEEL_OK;
    if (status == KEEL_OK && file.damaged) /* nobody knows what is behind that */
        status = keel_step_ranges_add(&has, step + 1, UINT64_MAX - 1);
    if (status == KEEL_OK)
        status = keel_step_ranges_subtract(&has, &file.lacks);
    if (status == KEEL_OK)
        status = keel_step_ranges_subtract(lacks, &has);
    keel_step_ranges_free(&has);
    keel_step_ranges_free(&file.lacks);
    return status;
}

struct led_lines {
    const char *all;
    struct keel_run_look *look;
    struct keel_step_ranges *lacks;
};

static enum keel_status see_lines(void *context, const char *name)
{
    const struct led_lines *lines = context;
    char folder[KEEL_PATH_BYTES];
    if (strchr(name, '-') == NULL) /* leader */
        return KEEL_OK;
    KEEL_TRY(keel_path_join(folder, lines->all, name));
    return take_metrics(folder, lines->look, lines->lacks);
}

/* Of the directory, after those of nodes that led, which are taken in there meanwhile, and after the events,
 * which follow the lines. */
static enum keel_status look_at_metrics(const char *directory, struct keel_run_look *look)
{
    char store[KEEL_PATH_BYTES], all[KEEL_PATH_BYTES];
    struct keel_step_ranges lacks = {.at = NULL};
    struct led_lines lines = {.all = all, .look = look, .lacks = &lacks};
    enum keel_status status = keel_step_ranges_add(&lacks, 1, UINT64_MAX - 1);
    if (status == KEEL_OK && keel_run_store_of_leaders(directory, store) &&
        keel_path_join(all, store, KEEL_REMOTE_LEADER_FOLDER) == KEEL_OK && keel_path_exists(all))
        status = keel_dir_list(all, see_lines, &lines);
    if (status == KEEL_OK)
        status = take_metrics(directory, look, &lacks);
    look->step = look->line_step > look->snapshot ? look->line_step : look->snapshot;
    look->step = look->done_step > look->step ? look->done_step : look->step;
    if (status == KEEL_OK)
        status = keel_step_ranges_remove(&lacks, look->step + 1, UINT64_MAX);
    if (status == KEEL_OK && lacks.count > 0) {
        look->steps_lacking = keel_step_ranges_total(&lacks);
        keel_step_ranges_text(&lacks, look->lacking);
    }
    keel_step_ranges_free(&lacks);
    return status;
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
    uint64_t bytes;
    if (keel_path_is_file(directory))
        return keel_fail(KEEL_INVALID, "%s: is a file; give the directory of a run (keel run --out)",
                         directory);
    out->state = KEEL_RUN_KILLED;
    KEEL_TRY(look_at_events(directory, out, &bytes));
    if (bytes == 0)
        return keel_fail(KEEL_NOT_FOUND,
                         "%s: no run began there; give the directory of a run (keel run --out)", directory);
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
    bool moves = keel_job_load(path, NULL, 0, job) == KEEL_OK && keel_job_holders(job) > 1;
    if (moves && job->snapshot_store[0] != '\0')
        memcpy(store, job->snapshot_store, sizeof job->snapshot_store);
    else
        moves = moves && keel_path_join(store, directory, "ckpt") == KEEL_OK;
    *timeout_s = job->timeout_s;
    keel_free(job);
    return moves;
}

bool keel_run_store_of_leaders(const char *directory, char store[KEEL_PATH_BYTES])
{
    double timeout_s;
    return find_store(directory, store, &timeout_s);
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

/* The launcher of a run that others may lead touches its lock each beat (launcher_watch.c). */
static bool was_held_just_now(const char *directory)
{
    char path[KEEL_PATH_BYTES];
    struct stat lock;
    double timeout_s;
    if (!find_store(directory, path, &timeout_s) || keel_path_join(path, directory, "run.lock") != KEEL_OK ||
        stat(path, &lock) != 0)
        return false;
    const uint64_t then_ns = (uint64_t)lock.st_mtim.tv_sec * KEEL_NS_PER_S + (uint64_t)lock.st_mtim.tv_nsec;
    const uint64_t now_ns = keel_wall_ns();
    return now_ns < then_ns ||
           (double)(now_ns - then_ns) / (double)KEEL_NS_PER_S < LEASE_TIMEOUTS * timeout_s;
}

bool keel_run_waits_for_leader(const char *directory)
{
    struct keel_run_look look;
    return keel_run_look_at(directory, &look) == KEEL_OK && look.waits;
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
    if (its.view > look->view) {
        look->view = its.view;
        look->ranks = its.ranks;
        look->spares = its.spares;
    }
    look->snapshot = its.snapshot > look->snapshot ? its.snapshot : look->snapshot;
    look->done_step = its.done_step;
}

/* Nobody leads, and the process that run.lock names is no more: agents that were killed share the lock until
 * the kernel is done with them, which a disk that hangs may delay. */
static bool is_left_behind(const char *directory)
{
    char run_path[KEEL_PATH_BYTES], leader_path[KEEL_PATH_BYTES];
    struct keel_lock_words words;
    return keel_path_join(run_path, directory, "run.lock") == KEEL_OK &&
           keel_path_join(leader_path, directory, "leader.lock") == KEEL_OK &&
           !keel_file_is_locked(leader_path) && keel_lock_read(run_path, &words) &&
           kill((pid_t)words.pid, 0) != 0 && errno == ESRCH;
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
    if (held && (look.state == KEEL_RUN_KILLED || !is_left_behind(directory))) {
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
        snprintf(look.place, sizeof look.place, "%s", led.leader.place);
    } else if (!held && was_led(directory, led.folder)) {
        look_at_led(led.folder, &look);
    }
    /* A node that begins to lead has a folder before it says so: nothing of it says yet how it ended. */
    if (look.state == KEEL_RUN_KILLED && was_held_just_now(directory)) {
        look.state = KEEL_RUN_GOES_ON;
        look.waits = true;
    }
    KEEL_TRY(look_at_metrics(directory, &look));
    KEEL_TRY(keel_path_join(path, directory, "job.conf"));
    KEEL_TRY(keel_alloc(1, sizeof *job, &job));
    const enum keel_status status = keel_job_load(path, NULL, 0, job);
    look.steps = status == KEEL_OK ? job->steps : 0;
    keel_free(job);
    KEEL_TRY(status);
    if (look.state == KEEL_RUN_DONE && look.step >= look.steps)
        look.detail[0] = '\0'; /* it went on behind that */
    *out = look;
    return KEEL_OK;
}
