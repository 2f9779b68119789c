/* drill.c - parse, remember and fire drills. */
#include "drill.h"
#include "jsonl.h"
#include "run_locks.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/disk.h>
#include <keel/file.h>
#include <keel/limits.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DURATION_MS_MAX = 3600 * 1000, SLOW_MS = 500, FULL_MS = 1000, NAMED_MS = 2000, AGENT_ENDS_MS = 5000 };

/* ---- the language -------------------------------------------------------------------------------------- */

static const char *const actions[KEEL_DRILL_ACTION_COUNT] = {"kill", "stop", "slow", "disk-full",
                                                             "flip", "sick", "hang", "wipe"};
static const char *const phases[KEEL_AT_COUNT] = {"forward", "gather",   "reduce",  "commit", "spread",
                                                  "eval",    "snapshot", "capture", "text"};
/* What spoils a board comes before the forward pass. */
static const char *const flip_phases[KEEL_AT_COUNT] = {
    [KEEL_AT_FORWARD] = "forward", [KEEL_AT_REDUCE] = "reduce", [KEEL_AT_COMMIT] = "commit"};
static const char *const hang_phases[KEEL_AT_COUNT] = {
    [KEEL_AT_FORWARD] = "forward", [KEEL_AT_CAPTURE] = "capture"};

enum {
    KILL = 1 << KEEL_DRILL_KILL,
    SLOW = 1 << KEEL_DRILL_SLOW,
    FULL = 1 << KEEL_DRILL_DISK_FULL,
    FLIP = 1 << KEEL_DRILL_FLIP,
    SICK = 1 << KEEL_DRILL_SICK,
    HANG = 1 << KEEL_DRILL_HANG,
    WIPE = 1 << KEEL_DRILL_WIPE,
    OTHERS = ~(FLIP | SICK | HANG)
};
#define OF(field) offsetof(struct keel_drill, field)
#define LAST      (UINT32_MAX - 1)

/* Targets by enum keel_drill_target. */
static const struct keel_fault_key keys[] = {
    {"rank", KEEL_FAULT_NUMBER, OF(number), (uint64_t)~WIPE, 0, 0, 0, LAST, NULL},
    {"node", KEEL_FAULT_NUMBER, OF(number), KILL | WIPE, 0, 0, 0, LAST, NULL},
    {"all", KEEL_FAULT_ALONE, 0, KILL, 0, 0, 0, 0, NULL},
    {"step", KEEL_FAULT_NUMBER, OF(step), KEEL_FAULT_ALL, KEEL_FAULT_ALL, 0, 0, LAST, NULL},
    {"ms", KEEL_FAULT_NUMBER, OF(ms), SLOW | FULL, 0, 0, 1, DURATION_MS_MAX, NULL},
    {"steps", KEEL_FAULT_NUMBER, OF(step_count), SLOW, 0, 0, 1, LAST, NULL},
    {"at", KEEL_FAULT_NAME, OF(phase), (uint64_t)OTHERS, 0, 0, 0, KEEL_AT_COUNT, phases},
    {"at", KEEL_FAULT_NAME, OF(phase), FLIP, 0, 0, 0, KEEL_AT_COUNT, flip_phases},
    {"at", KEEL_FAULT_NAME, OF(phase), HANG, 0, 0, 0, KEEL_AT_COUNT, hang_phases},
    {"at", KEEL_FAULT_NAME, OF(phase), SICK, 0, 0, 0, KEEL_AT_FORWARD + 1, phases}};

static const struct keel_drill blank = {.phase = KEEL_AT_COUNT, .step_count = 1};
static const struct keel_fault_language language = {
    actions, keys,        KEEL_DRILL_ACTION_COUNT, sizeof keys / sizeof keys[0], KEEL_DRILL_ALL + 1,
    &blank,  sizeof blank};

static enum keel_status wrong(const char *text, const char *why)
{
    return keel_fail(KEEL_INVALID,
                     "--drill %s: %s; examples: kill:rank=2,step=30  kill:node=1,step=30,at=reduce  "
                     "kill:all,step=200  stop:rank=0,step=9  slow:rank=1,step=9,ms=500,steps=3  "
                     "disk-full:rank=0,step=50  flip:rank=1,step=9  sick:rank=1,step=9  hang:rank=1,step=9  "
                     "wipe:node=2,step=30",
                     text, why);
}

/* Whether a string of JSON can hold the text as it is. */
static bool stands_in_json(const char *text)
{
    while (*text >= ' ' && *text <= '~' && *text != '"' && *text != '\\')
        text++;
    return *text == '\0';
}

enum keel_status keel_drill_parse(const char *text, struct keel_drill *out)
{
    struct keel_drill drill;
    uint32_t count = 0;
    char why[KEEL_FAULT_WHY_BYTES] = "nothing is said";
    if (strlen(text) >= sizeof drill.text || !stands_in_json(text))
        return wrong("...", "too long, or with characters that do not belong");
    if (!keel_faults_read(&language, text, &drill, 1, &count, why) || count == 0)
        return wrong(text, why);
    const bool full = drill.head.kind == KEEL_DRILL_DISK_FULL;
    snprintf(drill.text, sizeof drill.text, "%s", text);
    if (drill.phase == KEEL_AT_COUNT)
        drill.phase = full ? KEEL_AT_SNAPSHOT : KEEL_AT_FORWARD;
    if (drill.ms == 0)
        drill.ms = full ? FULL_MS : SLOW_MS;
    *out = drill;
    return KEEL_OK;
}

/* ---- the file of what fired ---------------------------------------------------------------------------- */

static enum keel_status log_path(const char *directory, char out[KEEL_PATH_BYTES])
{
    return keel_path_join(out, directory, "drills.jsonl");
}

/* What the file of fired drills says. */
struct fired {
    const char *drill; /* looked for; NULL: none */
    bool found;
    uint64_t last_ns; /* of the newest that took a rank out of the run */
};

static enum keel_status see_firing(void *context, const json_t *line, uint64_t number)
{
    struct fired *fired = context;
    const char *drill = json_string_value(json_object_get(line, "drill"));
    if (drill == NULL)
        return keel_fail(KEEL_CORRUPT, "drills.jsonl:%" PRIu64 ": not a drill that fired; move the file away",
                         number);
    fired->found = fired->found || (fired->drill != NULL && strcmp(drill, fired->drill) == 0);
    if (strncmp(drill, "kill:", 5) == 0 || strncmp(drill, "stop:", 5) == 0 ||
        strncmp(drill, "sick:", 5) == 0 || strncmp(drill, "hang:", 5) == 0 || strncmp(drill, "wipe:", 5) == 0)
        fired->last_ns = (uint64_t)json_integer_value(json_object_get(line, "monotonic_ns"));
    return KEEL_OK;
}

static enum keel_status read_log(const char *directory, struct fired *fired)
{
    char path[KEEL_PATH_BYTES];
    KEEL_TRY(log_path(directory, path));
    return keel_path_exists(path) ? keel_jsonl_read(path, see_firing, fired, NULL) : KEEL_OK;
}

enum keel_status keel_drill_check_log(const char *directory)
{
    char path[KEEL_PATH_BYTES];
    struct keel_jsonl *file;
    struct fired fired = {0};
    KEEL_TRY(log_path(directory, path));
    if (!keel_path_exists(path))
        return KEEL_OK;
    KEEL_TRY(keel_jsonl_open(path, see_firing, &fired, &file));
    keel_jsonl_close(file);
    return KEEL_OK;
}

uint64_t keel_drill_last_ns(const char *directory)
{
    struct fired fired = {0};
    (void)read_log(directory, &fired);
    return fired.last_ns;
}

/* One that was just started says who it is when it has read its job; left alive, it would lead the run on. */
static enum keel_status find_holder(const char *lock, struct keel_process *out)
{
    const uint64_t until_ns = keel_deadline_after_ns(NAMED_MS * KEEL_NS_PER_MS);
    enum keel_status status;
    while ((status = keel_lock_find(lock, out)) == KEEL_BUSY && keel_remaining_ns(until_ns) > 0)
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
    return status;
}

/* All agents and who leads the run. Who leads does nothing meanwhile, or it would start agents again, and
 * ends last: then the locks of the run are free, and whoever waited for it can begin another. This worker's
 * agent takes the worker along, so a child sees to the rest; it has no other threads, and calls nothing but
 * the kernel. */
static void kill_all(const char *directory)
{
    char lock[KEEL_PATH_BYTES];
    struct keel_process leader, agents[KEEL_NODES_MAX];
    uint32_t count = 0;
    const pid_t own = getppid();
    kill(own, SIGSTOP);
    const bool led =
        keel_path_join(lock, directory, "run.lock") == KEEL_OK && find_holder(lock, &leader) == KEEL_OK;
    if (led)
        (void)keel_process_signal(&leader, SIGSTOP);
    for (uint32_t node = 1; node < KEEL_NODES_MAX; node++)
        if (keel_lock_agent_path(directory, (uint16_t)node, lock) == KEEL_OK &&
            find_holder(lock, &agents[count]) == KEEL_OK)
            count++;
    const pid_t child = fork();
    if (child > 0)
        for (;;)
            pause();
    if (child < 0 && led)
        (void)keel_process_signal(&leader, SIGKILL);
    for (uint32_t i = 0; i < count; i++)
        (void)keel_process_signal(&agents[i], SIGKILL);
    kill(own, SIGKILL);
    for (uint32_t i = 0; i < count; i++)
        (void)poll(&(struct pollfd){.fd = agents[i].pidfd, .events = POLLIN}, 1, AGENT_ENDS_MS);
    if (led)
        (void)keel_process_signal(&leader, SIGKILL);
    _exit(0);
}

/* ---- a disk that is full ------------------------------------------------------------------------------- */

static _Atomic uint64_t full_until_ns;
static _Thread_local bool notes; /* this thread writes down what fires, for which there is room */

static bool is_full(void)
{
    if (notes || keel_now_ns() >= atomic_load(&full_until_ns))
        return false;
    errno = ENOSPC;
    return true;
}

static ssize_t full_write(int fd, const void *data, size_t bytes)
{
    return is_full() ? -1 : keel_disk_posix.write(fd, data, bytes);
}

static ssize_t full_pwrite(int fd, const void *data, size_t bytes, uint64_t offset)
{
    return is_full() ? -1 : keel_disk_posix.pwrite(fd, data, bytes, offset);
}

static int full_open(int at, const char *path, int flags, unsigned mode)
{
    return (flags & O_CREAT) != 0 && is_full() ? -1 : keel_disk_posix.open(at, path, flags, mode);
}

void keel_drill_prepare(const struct keel_drill_plan *plan)
{
    static struct keel_disk_ops ops;
    for (uint32_t i = 0; i < plan->count; i++) {
        if (plan->drills[i].head.kind != KEEL_DRILL_DISK_FULL)
            continue;
        ops = keel_disk_posix;
        ops.open = full_open;
        ops.write = full_write;
        ops.pwrite = full_pwrite;
        keel_disk_use(&ops);
    }
}

/* ---- firing -------------------------------------------------------------------------------------------- */

static bool is_due(const struct keel_drill *drill, const struct keel_drill_place *place)
{
    if (place->step < drill->step || place->step - drill->step >= drill->step_count ||
        drill->phase != place->phase)
        return false;
    switch (drill->head.target) {
    case KEEL_DRILL_RANK:
        return drill->number == place->rank;
    case KEEL_DRILL_NODE:
        return drill->number == place->node;
    default:
        return place->leader;
    }
}

/* For the first time, and durably noted before it happens. */
static bool may_fire(const struct keel_drill *drill, const char *directory)
{
    char path[KEEL_PATH_BYTES], line[256];
    struct fired fired = {.drill = drill->text};
    int length = snprintf(line, sizeof line,
                          "{\"drill\":\"%s\",\"monotonic_ns\":%" PRIu64 ",\"wall_ns\":%" PRIu64 "}\n",
                          drill->text, keel_now_ns(), keel_wall_ns());
    enum keel_status status = read_log(directory, &fired);
    if (status == KEEL_OK && fired.found)
        return false;
    if (status == KEEL_OK)
        status = log_path(directory, path);
    notes = true;
    if (status == KEEL_OK)
        status = keel_file_append(path, line, (size_t)length, true);
    notes = false;
    if (status != KEEL_OK) {
        keel_log(KEEL_LOG_ERROR, "drill %s is not fired: %s", drill->text, keel_detail());
        return false;
    }
    keel_log(KEEL_LOG_INFO, "drill %s", drill->text);
    return true;
}

static void end_processes(const struct keel_drill *drill, const char *directory)
{
    if (drill->head.target == KEEL_DRILL_ALL)
        kill_all(directory);
    if (drill->head.target == KEEL_DRILL_NODE)
        kill(getppid(), SIGKILL);
    kill(getpid(), drill->head.kind == KEEL_DRILL_STOP ? SIGSTOP : SIGKILL);
}

static void fire(const struct keel_drill_plan *plan, const struct keel_drill *drill)
{
    switch (drill->head.kind) {
    case KEEL_DRILL_SLOW:
        keel_sleep_until_ns(keel_deadline_after_ns(drill->ms * KEEL_NS_PER_MS));
        break;
    case KEEL_DRILL_DISK_FULL:
        atomic_store(&full_until_ns, keel_now_ns() + drill->ms * KEEL_NS_PER_MS);
        break;
    case KEEL_DRILL_FLIP:
        plan->flip(plan->context, drill->phase);
        break;
    case KEEL_DRILL_SICK:
        plan->spoil(plan->context, "flip:read=*");
        break;
    case KEEL_DRILL_HANG:
        plan->spoil(plan->context, drill->phase == KEEL_AT_CAPTURE ? "hang:read=1" : "hang:any=*");
        break;
    case KEEL_DRILL_WIPE:
        plan->wipe(plan->context);
        end_processes(drill, plan->directory);
        break;
    default:
        end_processes(drill, plan->directory);
    }
}

void keel_drill_fire(struct keel_drill_plan *plan, const struct keel_drill_place *place)
{
    for (uint32_t i = 0; i < plan->count; i++) {
        const struct keel_drill *drill = &plan->drills[i];
        if (!is_due(drill, place))
            continue;
        bool begun = (atomic_load(&plan->begun) >> i & 1) != 0;
        if (begun ? place->step == drill->step : !may_fire(drill, plan->directory))
            continue;
        atomic_fetch_or(&plan->begun, UINT64_C(1) << i);
        fire(plan, drill);
    }
}
