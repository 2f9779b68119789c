/* sdc_check.c - golden operations in turn, and what becomes of a board that fails one. */
#include "sdc_check.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/golden.h>
#include <keel/health.h>
#include <keel/memory.h>
#include <keel/quarantine.h>
#include <stdio.h>

struct keel_sdc_check {
    struct keel_sdc_check_config config;
    struct keel_queue *queue; /* owned */
    uint32_t next;            /* golden operation */
    struct keel_sdc_check_cost cost;
};

enum { APART = 7 }; /* neighbouring workers begin so many operations apart */

enum keel_status keel_sdc_check_create(const struct keel_sdc_check_config *config,
                                       struct keel_sdc_check **out)
{
    struct keel_sdc_check *screen;
    KEEL_TRY(keel_alloc(1, sizeof *screen, &screen));
    screen->config = *config;
    screen->next =
        (config->node + config->local) * APART % keel_golden_count(keel_kernels_class(config->kernels));
    enum keel_status status = keel_queue_create(config->device, &screen->queue);
    if (status != KEEL_OK) {
        keel_free(screen);
        return status;
    }
    *out = screen;
    return KEEL_OK;
}

void keel_sdc_check_destroy(struct keel_sdc_check *screen)
{
    if (screen == NULL)
        return;
    keel_queue_destroy(screen->queue);
    keel_free(screen);
}

/* `again`: where a finding of memory leaves the board on probation, its worker may begin again. */
static enum keel_status quarantine(const struct keel_sdc_check_config *config, enum keel_quarantine_kind kind,
                                   const char *where, const char *evidence, bool again)
{
    const struct keel_device_info *info = keel_device_info(config->device);
    const bool faulty = keel_device_has_faults(config->device), drill = faulty || (again && config->drill);
    const struct keel_quarantine_finding finding = {
        .kind = kind, .where = where, .evidence = evidence, .directory = drill ? config->directory : NULL};
    struct keel_quarantine record;
    if (!again)
        (void)keel_device_report(config->device, KEEL_HEALTH_QUARANTINED,
                                 evidence); /* or it is lost already */
    if (keel_quarantine_add(info, &finding, &record) != KEEL_OK) {
        char why[KEEL_DETAIL_BYTES];
        snprintf(why, sizeof why, "%s", keel_detail());
        return keel_fail(KEEL_CORRUPT,
                         "board %s computes wrong bits: %s. It could not be quarantined (%s): "
                         "take it out of cluster.device",
                         info->selector, evidence, why);
    }
    if (again && !faulty && record.kind == KEEL_QUARANTINE_MEMORY &&
        record.findings < KEEL_QUARANTINE_MEMORY_FINDINGS)
        return keel_fail(KEEL_DEVICE_LOST,
                         "board %s: %s. Finding %" PRIu32
                         " of %d that quarantine it: it is used again when it has passed all golden "
                         "operations",
                         info->selector, evidence, record.findings, KEEL_QUARANTINE_MEMORY_FINDINGS);
    if (faulty)
        return keel_fail(KEEL_CORRUPT,
                         "board %s computes wrong bits: %s. Faults were put in on purpose: it is left out of "
                         "this run alone (%s)",
                         info->selector, evidence, record.path);
    return keel_fail(
        KEEL_CORRUPT, "board %s computes wrong bits: %s. It is quarantined (%s)%s; see keel board list",
        info->selector, evidence, record.path,
        record.identity[0] == '\0' ? ", with all that are alike: its driver tells no identity" : "");
}

static enum keel_status run_case(struct keel_sdc_check *screen, uint32_t index, const char *where)
{
    struct keel_golden golden = keel_golden_get(keel_kernels_class(screen->config.kernels), index);
    struct keel_golden_result result = {0};
    char evidence[KEEL_QUARANTINE_EVIDENCE_BYTES], what[256];
    uint64_t deadline_ns = keel_deadline_after_ns(screen->config.limit_ns);
    keel_hang_enter(screen->config.hangs, KEEL_HANG_SCREEN, keel_now_ns());
    enum keel_status status =
        keel_golden_run(screen->config.kernels, screen->queue, index, deadline_ns, &result);
    keel_hang_leave(screen->config.hangs, KEEL_HANG_SCREEN, keel_now_ns());
    if (status == KEEL_TIMEOUT)
        return keel_fail(KEEL_DEVICE_LOST, "golden operation %s did not end in time", golden.name);
    KEEL_TRY(status);
    if (result.matches && result.intact)
        return KEEL_OK;
    keel_golden_describe(&result, what, sizeof what);
    snprintf(evidence, sizeof evidence, "golden operation %s %s", golden.name, what);
    return quarantine(&screen->config, KEEL_QUARANTINE_WRONG_BITS, where, evidence, false);
}

enum keel_status keel_sdc_check_admit(struct keel_sdc_check *screen)
{
    char where[KEEL_QUARANTINE_WHERE_BYTES];
    snprintf(where, sizeof where, "run %s, worker %" PRIu32 ".%" PRIu32 ", before its first step",
             screen->config.run, screen->config.node, screen->config.local);
    for (uint32_t i = 0; i < keel_golden_count(keel_kernels_class(screen->config.kernels)); i++)
        KEEL_TRY(run_case(screen, i, where));
    keel_hang_trust(screen->config.hangs, KEEL_HANG_SCREEN); /* each was compiled, and ran */
    return KEEL_OK;
}

static void place_of(const struct keel_sdc_check_config *config, uint64_t step,
                     char out[KEEL_QUARANTINE_WHERE_BYTES])
{
    snprintf(out, KEEL_QUARANTINE_WHERE_BYTES, "run %s, worker %" PRIu32 ".%" PRIu32 ", step %" PRIu64,
             config->run, config->node, config->local, step);
}

enum keel_status keel_sdc_check_quarantine(const struct keel_sdc_check_config *config, uint64_t step,
                                           const char *evidence)
{
    char where[KEEL_QUARANTINE_WHERE_BYTES];
    place_of(config, step, where);
    return quarantine(config, KEEL_QUARANTINE_MEMORY, where, evidence, false);
}

enum keel_status keel_sdc_check_outvoted(const struct keel_sdc_check_config *config, uint64_t step,
                                         const char *evidence)
{
    char where[KEEL_QUARANTINE_WHERE_BYTES];
    place_of(config, step, where);
    return quarantine(config, KEEL_QUARANTINE_MEMORY, where, evidence, true);
}

enum keel_status keel_sdc_check_step(struct keel_sdc_check *screen, uint64_t step)
{
    char where[KEEL_QUARANTINE_WHERE_BYTES];
    uint64_t since_ns = keel_now_ns();
    place_of(&screen->config, step, where);
    enum keel_status status = run_case(screen, screen->next, where);
    screen->next = (screen->next + 1) % keel_golden_count(keel_kernels_class(screen->config.kernels));
    screen->cost.operations++;
    screen->cost.spent_ns += keel_now_ns() - since_ns;
    return status;
}

struct keel_sdc_check_cost keel_sdc_check_cost(const struct keel_sdc_check *screen)
{
    return screen->cost;
}
