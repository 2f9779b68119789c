/* drill.c - parse, remember and fire drills. */
#include "drill.h"
#include "jsonl.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/disk.h>
#include <keel/file.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DURATION_MS_MAX = 3600 * 1000, SLOW_MS = 500, FULL_MS = 1000 };

static const char *const action_names[KEEL_DRILL_ACTION_COUNT] = {"kill", "stop", "slow", "disk-full",
                                                                  "flip", "sick", "hang"};
static const char *const phase_names[KEEL_AT_COUNT] = {"forward", "reduce", "commit", "snapshot", "capture"};

static enum keel_status wrong(const char *text, const char *why)
{
    return keel_fail(KEEL_INVALID,
                     "--drill %s: %s; examples: kill:rank=2,step=30  kill:node=1,step=30,at=reduce  "
                     "kill:all,step=200  stop:rank=0,step=9  slow:rank=1,step=9,ms=500,steps=3  "
                     "disk-full:rank=0,step=50  flip:rank=1,step=9  sick:rank=1,step=9  hang:rank=1,step=9 "
                     "(at: forward, reduce, "
                     "commit, snapshot, capture)",
                     text, why);
}

static bool parse_number(const char *text, uint64_t *out)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    *out = strtoull(text, &end, 10);
    return *end == '\0' && *out < UINT32_MAX;
}

enum { GIVEN_TARGET = 1, GIVEN_STEP = 2, GIVEN_PHASE = 4, GIVEN_MS = 8, GIVEN_STEPS = 16 };

/* The key of a field as a bit, 0 for none; the target has three. */
static unsigned find_field(const char *name)
{
    static const struct {
        const char *name;
        unsigned bit;
    } fields[] = {{"all", GIVEN_TARGET}, {"rank", GIVEN_TARGET}, {"node", GIVEN_TARGET}, {"step", GIVEN_STEP},
                  {"at", GIVEN_PHASE},   {"ms", GIVEN_MS},       {"steps", GIVEN_STEPS}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (strcmp(name, fields[i].name) == 0)
            return fields[i].bit;
    return 0;
}

static enum keel_status parse_phase(const char *whole, const char *value, struct keel_drill *drill)
{
    for (uint32_t i = 0; i < KEEL_AT_COUNT; i++) {
        if (strcmp(value, phase_names[i]) == 0) {
            drill->phase = (enum keel_drill_phase)i;
            return KEEL_OK;
        }
    }
    return wrong(whole, "unknown phase");
}

static enum keel_status parse_field(const char *whole, char *field, struct keel_drill *drill, unsigned *given)
{
    uint64_t number = 0;
    bool all = strcmp(field, "all") == 0;
    char *value = strchr(field, '=');
    if (value == NULL && !all)
        return wrong(whole, "key=value is wanted");
    if (value != NULL)
        *value++ = '\0';
    unsigned bit = find_field(field);
    if (bit == 0 || (value != NULL) == (strcmp(field, "all") == 0))
        return wrong(whole, "unknown key");
    if ((*given & bit) != 0)
        return wrong(whole, "one target and one value of each key are wanted");
    *given |= bit;
    if (bit == GIVEN_PHASE)
        return parse_phase(whole, value, drill);
    if (all) {
        drill->target = KEEL_DRILL_ALL;
        return KEEL_OK;
    }
    if (!parse_number(value, &number))
        return wrong(whole, "a number is wanted");
    bool fits =
        drill->action == KEEL_DRILL_SLOW || (drill->action == KEEL_DRILL_DISK_FULL && bit == GIVEN_MS);
    if ((bit & (GIVEN_MS | GIVEN_STEPS)) != 0 &&
        (!fits || number == 0 || (bit == GIVEN_MS && number > DURATION_MS_MAX)))
        return wrong(whole, "ms (1 to 3600000) is for slow and disk-full, steps for slow");
    if (bit == GIVEN_STEP)
        drill->step = number;
    else if (bit == GIVEN_MS)
        drill->duration_ns = number * KEEL_NS_PER_MS;
    else if (bit == GIVEN_STEPS)
        drill->step_count = number;
    else {
        drill->target = field[0] == 'r' ? KEEL_DRILL_RANK : KEEL_DRILL_NODE;
        drill->number = (uint32_t)number;
    }
    return KEEL_OK;
}

static enum keel_status parse_action(const char *whole, const char *name, struct keel_drill *drill)
{
    uint32_t action = 0;
    while (action < KEEL_DRILL_ACTION_COUNT && strcmp(name, action_names[action]) != 0)
        action++;
    if (action == KEEL_DRILL_ACTION_COUNT)
        return wrong(whole, "the action is kill, stop, slow, disk-full, flip, sick or hang");
    drill->action = (enum keel_drill_action)action;
    if (drill->action == KEEL_DRILL_DISK_FULL)
        drill->phase = KEEL_AT_SNAPSHOT;
    drill->duration_ns = (drill->action == KEEL_DRILL_SLOW ? SLOW_MS : FULL_MS) * KEEL_NS_PER_MS;
    return KEEL_OK;
}

enum keel_status keel_drill_parse(const char *text, struct keel_drill *out)
{
    struct keel_drill drill = {.phase = KEEL_AT_FORWARD, .step_count = 1};
    char copy[KEEL_DRILL_TEXT_BYTES];
    if (strlen(text) >= sizeof copy || strpbrk(text, "\"\\\n") != NULL)
        return wrong("...", "too long, or with characters that do not belong");
    snprintf(copy, sizeof copy, "%s", text);
    snprintf(drill.text, sizeof drill.text, "%s", text);
    char *colon = strchr(copy, ':');
    if (colon == NULL)
        return wrong(text, "action:fields is wanted");
    *colon = '\0';
    KEEL_TRY(parse_action(text, copy, &drill));
    unsigned given = 0;
    char *rest = colon + 1;
    for (char *field; (field = strsep(&rest, ",")) != NULL;)
        KEEL_TRY(parse_field(text, field, &drill, &given));
    if ((given & GIVEN_TARGET) == 0 || (given & GIVEN_STEP) == 0)
        return wrong(text, "a target (rank, node or all) and a step are wanted");
    if (drill.action != KEEL_DRILL_KILL && drill.target != KEEL_DRILL_RANK)
        return wrong(text, "only kill takes a node or all; the others take a rank");
    bool flips = drill.action == KEEL_DRILL_FLIP, hangs = drill.action == KEEL_DRILL_HANG;
    bool else_at = (flips && drill.phase == KEEL_AT_COMMIT) || (hangs && drill.phase == KEEL_AT_CAPTURE);
    if ((flips || hangs || drill.action == KEEL_DRILL_SICK) && drill.phase != KEEL_AT_FORWARD && !else_at)
        return wrong(text,
                     "what spoils a board comes before the forward pass, or a flip at=commit, or a hang "
                     "at=capture");
    *out = drill;
    return KEEL_OK;
}

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
        strncmp(drill, "sick:", 5) == 0 || strncmp(drill, "hang:", 5) == 0)
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

/* The pid that holds DIR/run.lock: the launcher. 0 when unknown. */
static pid_t launcher_pid(const char *directory)
{
    char path[KEEL_PATH_BYTES], *text;
    size_t bytes;
    if (keel_path_join(path, directory, "run.lock") != KEEL_OK ||
        keel_file_read(path, 64, &text, &bytes) != KEEL_OK)
        return 0;
    long pid = strtol(text, NULL, 10);
    keel_free(text);
    return (pid_t)pid;
}

/* ---- a disk that is full ------------------------------------------------------------------------------- */

static _Atomic uint64_t full_until_ns;

static bool is_full(void)
{
    if (keel_now_ns() >= atomic_load(&full_until_ns))
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
        if (plan->drills[i].action != KEEL_DRILL_DISK_FULL)
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
    switch (drill->target) {
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
    if (status != KEEL_OK || log_path(directory, path) != KEEL_OK ||
        keel_file_append(path, line, (size_t)length, true) != KEEL_OK) {
        keel_log(KEEL_LOG_ERROR, "drill %s is not fired: %s", drill->text, keel_detail());
        return false;
    }
    keel_log(KEEL_LOG_INFO, "drill %s", drill->text);
    return true;
}

static void end_processes(const struct keel_drill *drill, const char *directory)
{
    pid_t launcher = drill->target == KEEL_DRILL_ALL ? launcher_pid(directory) : 0;
    if (launcher > 1)
        kill(launcher, SIGKILL);
    if (drill->target == KEEL_DRILL_NODE)
        kill(getppid(), SIGKILL);
    kill(getpid(), drill->action == KEEL_DRILL_STOP ? SIGSTOP : SIGKILL);
}

static void fire(const struct keel_drill_plan *plan, const struct keel_drill *drill)
{
    switch (drill->action) {
    case KEEL_DRILL_SLOW:
        keel_sleep_until_ns(keel_deadline_after_ns(drill->duration_ns));
        break;
    case KEEL_DRILL_DISK_FULL:
        atomic_store(&full_until_ns, keel_now_ns() + drill->duration_ns);
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
