#include "golden_internal.h"
#include "harness.h"

#include <inttypes.h>
#include <keel/clock.h>
#include <stdio.h>
#include <string.h>

#define LIMIT_NS (60 * KEEL_NS_PER_S)

struct rig {
    struct keel_device *device;
    struct keel_kernels *kernels;
    struct keel_queue *queue;
};

static struct rig rig_open(const char *selector)
{
    struct rig rig;
    ck_ok(keel_device_open(selector, NULL, &rig.device));
    ck_ok(keel_kernels_create(rig.device, &rig.kernels));
    ck_ok(keel_queue_create(rig.device, &rig.queue));
    return rig;
}

static void rig_close(struct rig *rig)
{
    keel_queue_destroy(rig->queue);
    keel_kernels_destroy(rig->kernels);
    ck_assert_uint_eq(keel_device_stats(rig->device).live_bytes, 0);
    keel_device_close(rig->device);
}

static struct keel_golden_result run(struct rig *rig, uint32_t index)
{
    struct keel_golden_result result;
    ck_ok(keel_golden_run(rig->kernels, rig->queue, index, keel_deadline_after_ns(LIMIT_NS), &result));
    return result;
}

/* Every case of one device, and how many were wrong, each named. */
static void all_cases(const char *selector)
{
    struct rig rig = rig_open(selector);
    int wrong = 0;
    for (uint32_t i = 0; i < keel_golden_count(); i++) {
        const struct keel_golden golden = keel_golden_get(i);
        const struct keel_golden_result result = run(&rig, i);
        if (!result.matches)
            printf("%s: %s: 0x%016" PRIx64 ", expected 0x%016" PRIx64 "\n", selector, golden.name,
                   result.hash, result.expected);
        if (!result.intact)
            printf("%s: %s: %s was hit at %" PRId64 "\n", selector, golden.name, result.hit_buffer,
                   result.hit_offset_bytes);
        wrong += !result.matches || !result.intact;
    }
    rig_close(&rig);
    fflush(stdout);
    ck_assert_int_eq(wrong, 0);
}

START_TEST(the_table_holds_the_hashes_of_the_host)
{
    all_cases("host");
}
END_TEST

START_TEST(threads_of_pocl_give_the_hashes_of_the_table)
{
    all_cases("pocl");
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, the_table_holds_the_hashes_of_the_host);
    tcase_add_test(tc, threads_of_pocl_give_the_hashes_of_the_table);
}

KEEL_TEST_MAIN("golden", cases, 120)
