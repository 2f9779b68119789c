/* layer_plan.c - EMULATED_FAULTS, read: which fault is due at which call. Its words are in layer.c's head.
 *
 * keel/fault.h has the grammar. Pure but for the files of `once` and `until`. */
#include "layer.h"
#include <fcntl.h>
#include <unistd.h>

#define OF(field) offsetof(struct layer_fault, field)
#define MEMORY    ((uint64_t)(1 << ACTION_STUCK | 1 << ACTION_ALIAS))

#define ACTION_TEXT(name, text) text,
static const char *const actions[] = {LAYER_ACTIONS(ACTION_TEXT)};
#define CALL_ROW(name, text)                                                                                 \
    {text, KEEL_FAULT_WHEN, OF(when), CALL_##name == CALL_MEMORY ? MEMORY : ~MEMORY, 0, 0, 0, 0, NULL},
#define KEY_ROW(name, text)                                                                                  \
    {text, KEEL_FAULT_NUMBER, OF(value[KEY_##name]), KEEL_FAULT_ALL, 0, 0, 0, UINT64_MAX, NULL},
static const struct keel_fault_key keys[] = {
    LAYER_CALLS(CALL_ROW) LAYER_KEYS(KEY_ROW){"kernel", KEEL_FAULT_TEXT, OF(kernel), KEEL_FAULT_ALL, 0, 0, 0,
                                              LAYER_NAME_BYTES, NULL},
    {"add", KEEL_FAULT_TEXT, OF(add), KEEL_FAULT_ALL, 0, 0, 0, LAYER_NAME_BYTES, NULL},
    {"once", KEEL_FAULT_TEXT, OF(once), KEEL_FAULT_ALL, 0, 0, 0, LAYER_PATH_BYTES, NULL},
    {"until", KEEL_FAULT_TEXT, OF(until), KEEL_FAULT_ALL, 0, 0, 0, LAYER_PATH_BYTES, NULL}};
_Static_assert(sizeof keys / sizeof keys[0] <= 64, "a bit each");

const char *layer_action_name(enum layer_action action)
{
    return actions[action];
}

const char *layer_call_name(enum layer_call call)
{
    return keys[call].name;
}

/* What went on in another process: `until` holds from the first call on, `once` was enough. */
static void look_back(struct layer_fault *fault)
{
    if (fault->once[0] != '\0' && access(fault->once, F_OK) == 0)
        fault->when.first = UINT64_MAX;
    if (fault->until[0] != '\0' && access(fault->until, F_OK) == 0)
        fault->when.first = fault->when.every = 1;
}

bool layer_plan_parse(const char *text, struct layer_plan *out, char wrong[KEEL_FAULT_WHY_BYTES])
{
    struct layer_fault blank = {.head = {0}};
    for (int i = 0; i < KEY_COUNT; i++)
        blank.value[i] = LAYER_UNSET;
    const struct keel_fault_language language = {
        actions, keys, ACTION_COUNT, sizeof keys / sizeof keys[0], CALL_COUNT, &blank, sizeof blank};
    *out = (struct layer_plan){.count = 0};
    if (!keel_faults_read(&language, text, out->faults, LAYER_FAULTS_MAX, &out->count, wrong))
        return false;
    for (uint32_t i = 0; i < out->count; i++) {
        struct layer_fault *fault = &out->faults[i];
        look_back(fault);
        out->has_memory_defects |= fault->head.target == CALL_MEMORY;
        out->drops_unmaps |= fault->head.kind == ACTION_DROP && fault->head.target == CALL_UNMAP;
        out->counts_commands |=
            fault->value[KEY_DEPTH] != LAYER_UNSET || fault->value[KEY_BUSY] != LAYER_UNSET;
    }
    return true;
}

/* True for who made the file: of several processes that come at one time, one. */
static bool leave_mark(const char *path)
{
    if (path[0] == '\0')
        return false;
    int mark = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (mark >= 0)
        close(mark);
    return mark >= 0;
}

bool layer_fault_due(struct layer_fault *fault)
{
    bool due = keel_fault_is_due(&fault->when);
    if (due) {
        (void)leave_mark(fault->until);
        if (fault->once[0] != '\0') {
            fault->when.first = UINT64_MAX; /* once in all processes */
            due = leave_mark(fault->once);
        }
        if (fault->until[0] != '\0')
            fault->when.every = 1;
    }
    return due;
}
