/* device_fixture.c - a board, its kernels, a queue, and golden operations on them. */
#include "device_fixture.h"
#include <keel/health.h>

enum keel_status keel_device_fixture_open(const char *board, struct keel_device_fixture *out)
{
    struct keel_device_fixture fixture = {0};
    enum keel_status status = keel_board_open(board, NULL, &fixture.board);
    if (status == KEEL_OK) {
        fixture.device = keel_board_device(fixture.board);
        fixture.info = keel_device_info(fixture.device);
        status =
            keel_kernels_create_with(fixture.device, keel_board_kernels(fixture.board), &fixture.kernels);
    }
    if (status == KEEL_OK)
        status = keel_queue_create(fixture.device, &fixture.queue);
    if (status != KEEL_OK) {
        keel_device_fixture_close(&fixture);
        fixture = (struct keel_device_fixture){0};
    }
    *out = fixture;
    return status;
}

bool keel_device_fixture_is_left(struct keel_device *device)
{
    struct keel_health_report report;
    keel_device_health(device, &report);
    return report.health == KEEL_HEALTH_SUSPECT || report.health == KEEL_HEALTH_HUNG ||
           report.health == KEEL_HEALTH_LOST;
}

void keel_device_fixture_close(struct keel_device_fixture *fixture)
{
    if (fixture->device != NULL && keel_device_fixture_is_left(fixture->device))
        *fixture = (struct keel_device_fixture){0};
    keel_queue_destroy(fixture->queue);
    keel_kernels_destroy(fixture->kernels);
    keel_board_close(fixture->board);
    *fixture = (struct keel_device_fixture){0};
}

enum keel_status keel_device_fixture_renew(struct keel_device_fixture *fixture)
{
    keel_queue_destroy(fixture->queue);
    fixture->queue = NULL;
    return keel_queue_create(fixture->device, &fixture->queue);
}

enum keel_status keel_device_fixture_golden(struct keel_device_fixture *fixture, uint32_t index,
                                            uint64_t deadline_ns)
{
    struct keel_golden golden = keel_golden_get(keel_kernels_class(fixture->kernels), index);
    struct keel_golden_result result = {0};
    char what[256];
    KEEL_TRY(keel_golden_run(fixture->kernels, fixture->queue, index, deadline_ns, &result));
    if (result.matches && result.intact)
        return KEEL_OK;
    keel_golden_describe(&result, what, sizeof what);
    return keel_fail(KEEL_MISMATCH, "%s %s", golden.name, what);
}

enum keel_status keel_device_fixture_goldens(struct keel_device_fixture *fixture, uint64_t deadline_ns)
{
    for (uint32_t i = 0; i < keel_golden_count(keel_kernels_class(fixture->kernels)); i++)
        KEEL_TRY(keel_device_fixture_golden(fixture, i, deadline_ns));
    return KEEL_OK;
}

struct keel_gemm keel_device_fixture_square(uint32_t side, struct keel_buffer *const buffers[3])
{
    return (struct keel_gemm){.m = side,
                              .n = side,
                              .k = side,
                              .batch = 1,
                              .lda = side,
                              .ldb = side,
                              .ldc = side,
                              .a = buffers[0],
                              .b = buffers[1],
                              .c = buffers[2]};
}
