/* fault_plan.c - the faults of a device: their tables (keel/fault.h reads by them), and which the next
 * command meets. Pure. */
#include "device_fault.h"
#include <keel/clock.h>
#include <string.h>

static const char *const kinds[] = {"error", "hang", "slow", "flip", "lose"};

enum {
    ERROR = 1 << KEEL_FAULT_ERROR,
    SLOW = 1 << KEEL_FAULT_SLOW,
    FLIP = 1 << KEEL_FAULT_FLIP,
    LAUNCHES = 1 << KEEL_COMMAND_LAUNCH
};
#define UNFLIPPED (~(uint64_t)FLIP)
#define OF(field) offsetof(struct keel_fault, field)

/* Targets by enum keel_command_kind, and what follows it. */
static const struct keel_fault_key keys[] = {
    {"launch", KEEL_FAULT_WHEN, OF(when), KEEL_FAULT_ALL, 0, 0, 0, 0, NULL},
    {"read", KEEL_FAULT_WHEN, OF(when), KEEL_FAULT_ALL, 0, 0, 0, 0, NULL},
    {"write", KEEL_FAULT_WHEN, OF(when), KEEL_FAULT_ALL, 0, 0, 0, 0, NULL},
    {"copy", KEEL_FAULT_WHEN, OF(when), KEEL_FAULT_ALL, 0, 0, 0, 0, NULL},
    {"fill", KEEL_FAULT_WHEN, OF(when), KEEL_FAULT_ALL, 0, 0, 0, 0, NULL},
    {"map", KEEL_FAULT_WHEN, OF(when), UNFLIPPED, 0, 0, 0, 0, NULL},
    {"unmap", KEEL_FAULT_WHEN, OF(when), UNFLIPPED, 0, 0, 0, 0, NULL},
    {"mark", KEEL_FAULT_WHEN, OF(when), 0, 0, 0, 0, 0, NULL}, /* none is put on it */
    {"any", KEEL_FAULT_WHEN, OF(when), UNFLIPPED, 0, 0, 0, 0, NULL},
    {"buffer", KEEL_FAULT_WHEN, OF(when), ERROR, 0, 0, 0, 0, NULL},
    {"program", KEEL_FAULT_WHEN, OF(when), ERROR, 0, 0, 0, 0, NULL},
    {"ms", KEEL_FAULT_NUMBER, OF(ms), SLOW, SLOW, 0, 1, KEEL_FAULT_LATE_MAX_MS, NULL},
    {"bit", KEEL_FAULT_NUMBER, OF(bit), FLIP, 0, 0, 0, KEEL_FAULT_UNSET - 1, NULL},
    {"arg", KEEL_FAULT_NUMBER, OF(arg), FLIP, 0, LAUNCHES, 0, KEEL_ARG_MAX - 1, NULL},
    {"kernel", KEEL_FAULT_TEXT, OF(kernel), KEEL_FAULT_ALL, 0, LAUNCHES, 0, KEEL_FAULT_NAME_BYTES, NULL}};

static const struct keel_fault blank = {
    .ms = KEEL_FAULT_UNSET, .bit = KEEL_FAULT_UNSET, .arg = KEEL_FAULT_UNSET};
static const struct keel_fault_language language = {kinds,
                                                    keys,
                                                    sizeof kinds / sizeof kinds[0],
                                                    sizeof keys / sizeof keys[0],
                                                    KEEL_FAULT_ON_PROGRAM + 1,
                                                    &blank,
                                                    sizeof blank};

enum keel_status keel_fault_plan_read(const char *text, struct keel_fault_plan *out)
{
    struct keel_fault_plan plan = {0};
    char why[KEEL_FAULT_WHY_BYTES];
    if (!keel_faults_read(&language, text, plan.faults, KEEL_FAULTS_MAX, &plan.count, why))
        return keel_fail(KEEL_INVALID, "fault plan: %s; see keel/health.h for the grammar", why);
    *out = plan;
    return KEEL_OK;
}

struct keel_fault_hit keel_fault_plan_meet(struct keel_fault_plan *plan, uint32_t on, const char *kernel)
{
    struct keel_fault_hit hit = {0};
    for (uint32_t i = 0; i < plan->count; i++) {
        struct keel_fault *fault = &plan->faults[i];
        const uint32_t put_on = fault->head.target;
        bool counted = put_on == on || (put_on == KEEL_FAULT_ON_ANY && on <= KEEL_COMMAND_UNMAP);
        if (!counted || (fault->kernel[0] != '\0' && (kernel == NULL || strcmp(fault->kernel, kernel) != 0)))
            continue;
        if (!keel_fault_is_due(&fault->when))
            continue;
        const uint32_t what = fault->head.kind;
        hit.number = fault->when.seen;
        hit.error = hit.error || what == KEEL_FAULT_ERROR;
        hit.lose = hit.lose || what == KEEL_FAULT_LOSE;
        hit.hang = hit.hang || what == KEEL_FAULT_HANG;
        if (what == KEEL_FAULT_SLOW)
            hit.late_ns += fault->ms * KEEL_NS_PER_MS;
        if (what == KEEL_FAULT_FLIP)
            hit.flip = fault;
    }
    return hit;
}
