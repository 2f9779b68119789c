/* rig.c - a board, its kernels, a queue, and golden operations on them. */
#include "rig.h"
#include <keel/health.h>

enum keel_status keel_rig_open(const char *board, struct keel_rig *out)
{
    struct keel_rig rig = {0};
    enum keel_status status = keel_board_open(board, NULL, &rig.board);
    if (status == KEEL_OK) {
        rig.device = keel_board_device(rig.board);
        status = keel_kernels_create_with(rig.device, keel_board_kernels(rig.board), &rig.kernels);
    }
    if (status == KEEL_OK)
        status = keel_queue_create(rig.device, &rig.queue);
    if (status != KEEL_OK) {
        keel_rig_close(&rig);
        rig = (struct keel_rig){0};
    }
    *out = rig;
    return status;
}

bool keel_rig_is_left(struct keel_device *device)
{
    struct keel_health_report report;
    keel_device_health(device, &report);
    return report.health == KEEL_HEALTH_SUSPECT || report.health == KEEL_HEALTH_HUNG ||
           report.health == KEEL_HEALTH_LOST;
}

void keel_rig_close(struct keel_rig *rig)
{
    if (rig->device != NULL && keel_rig_is_left(rig->device))
        *rig = (struct keel_rig){0};
    if (rig->queue != NULL)
        keel_queue_destroy(rig->queue);
    keel_kernels_destroy(rig->kernels);
    keel_board_close(rig->board);
    *rig = (struct keel_rig){0};
}

enum keel_status keel_rig_renew(struct keel_rig *rig)
{
    keel_queue_destroy(rig->queue);
    rig->queue = NULL;
    return keel_queue_create(rig->device, &rig->queue);
}

enum keel_status keel_rig_golden(struct keel_rig *rig, uint32_t index, uint64_t deadline_ns)
{
    struct keel_golden golden = keel_golden_get(index);
    struct keel_golden_result result = {0};
    char what[256];
    KEEL_TRY(keel_golden_run(rig->kernels, rig->queue, index, deadline_ns, &result));
    if (result.matches && result.intact)
        return KEEL_OK;
    keel_golden_describe(&result, what, sizeof what);
    return keel_fail(KEEL_MISMATCH, "%s %s", golden.name, what);
}

enum keel_status keel_rig_goldens(struct keel_rig *rig, uint64_t deadline_ns)
{
    for (uint32_t i = 0; i < keel_golden_count(); i++)
        KEEL_TRY(keel_rig_golden(rig, i, deadline_ns));
    return KEEL_OK;
}
