/* device_fault.h - plans of faults: what keel_device_inject was told, and which fault a command meets.
 *
 * fault_plan.c reads plans and counts commands, with no lock and no device; device_fault.c puts what it says
 * in front of a backend. Private to hal. */
#ifndef KEEL_DEVICE_FAULT_H
#define KEEL_DEVICE_FAULT_H

#include "device_backend.h"
#include <keel/fault.h>

enum keel_fault_what { KEEL_FAULT_ERROR, KEEL_FAULT_HANG, KEEL_FAULT_SLOW, KEEL_FAULT_FLIP, KEEL_FAULT_LOSE };

/* What a fault may be put on: commands by their kind, and these. */
enum { KEEL_FAULT_ON_ANY = KEEL_COMMAND_MARK + 1, KEEL_FAULT_ON_BUFFER, KEEL_FAULT_ON_PROGRAM };

enum { KEEL_FAULTS_MAX = 16, KEEL_FAULT_NAME_BYTES = 64, KEEL_FAULT_LATE_MAX_MS = 600000 };
#define KEEL_FAULT_UNSET UINT64_MAX

struct keel_fault {
    struct keel_fault_head head; /* enum keel_fault_what; what it is put on */
    struct keel_fault_when when;
    uint64_t ms; /* KEEL_FAULT_UNSET where not given, as the next two */
    uint64_t bit, arg;
    char kernel[KEEL_FAULT_NAME_BYTES]; /* "" for any */
};

struct keel_fault_plan {
    uint32_t count;
    struct keel_fault faults[KEEL_FAULTS_MAX];
};

/* All the faults that one command meets. */
struct keel_fault_hit {
    bool error, hang, lose;
    uint64_t late_ns;
    const struct keel_fault *flip; /* in the plan; NULL for none */
    uint64_t number;               /* which of its kind this command was, by the fault that hit */
};

/* The grammar is in keel/health.h. INVALID names the word that is wrong; *out is written only on success. */
enum keel_status keel_fault_plan_read(const char *text, struct keel_fault_plan *out);

/* Count one command, or the making of a buffer or program; `kernel` is NULL but for launches. */
struct keel_fault_hit keel_fault_plan_meet(struct keel_fault_plan *plan, uint32_t on, const char *kernel);

#endif
