/* device_rig.h - one operation on three devices: the host, PoCL's threads and PoCL's `basic`.
 *
 * For tests that claim equal bits. A test calls rig_open, then for each device puts numbers in with
 * rig_buffer, runs a list with rig_run and takes them out with rig_read; rig_close ends it. */
#ifndef KEEL_TESTS_DEVICE_RIG_H
#define KEEL_TESTS_DEVICE_RIG_H

#include "harness.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/kernels.h>
#include <stdio.h>
#include <string.h>

#define RIG_LIMIT_NS patience_ns(60 * KEEL_NS_PER_S)
enum { RIG_DEVICES = 3, RIG_BUFFERS_MAX = 24, RIG_KERNELS_MAX = 4 };

struct rig_device {
    struct keel_device *device;
    struct keel_kernels *kernels;
    struct keel_queue *queue;
    struct keel_buffer *buffers[RIG_BUFFERS_MAX]; /* freed by rig_clear */
    uint32_t buffer_count;
};
static struct rig_device rig[RIG_DEVICES]; /* [0] is the host */
static const char *const rig_selectors[RIG_DEVICES] = {"host", "pocl:0", "pocl:1"};

static inline void rig_open_class(enum keel_class numerics)
{
    const struct keel_kernels_options options = {.numerics = numerics};
    setenv("POCL_DEVICES", "pthread basic", 1);
    for (int i = 0; i < RIG_DEVICES; i++) {
        ck_ok(keel_device_open(rig_selectors[i], NULL, &rig[i].device));
        ck_ok(keel_kernels_create_with(rig[i].device, &options, &rig[i].kernels));
        ck_ok(keel_queue_create(rig[i].device, &rig[i].queue));
    }
    ck_assert_str_ne(keel_device_info(rig[1].device)->name, keel_device_info(rig[2].device)->name);
}

static inline void rig_open(void)
{
    rig_open_class(KEEL_CANONICAL);
}

/* Frees all buffers of a device. */
static void rig_clear(struct rig_device *on)
{
    for (uint32_t i = 0; i < on->buffer_count; i++)
        keel_buffer_destroy(on->buffers[i]);
    on->buffer_count = 0;
}

static void rig_close(void)
{
    for (int i = 0; i < RIG_DEVICES; i++) {
        rig_clear(&rig[i]);
        keel_queue_destroy(rig[i].queue);
        keel_kernels_destroy(rig[i].kernels);
        ck_assert_uint_eq(keel_device_stats(rig[i].device).live_bytes, 0);
        keel_device_close(rig[i].device);
    }
}

/* A buffer of `bytes` with a copy of data (NULL: zeros). */
static struct keel_buffer *rig_buffer(struct rig_device *on, const void *data, uint64_t bytes)
{
    struct keel_buffer *buffer = NULL;
    ck_assert_uint_lt(on->buffer_count, RIG_BUFFERS_MAX);
    ck_ok(keel_buffer_create(on->device, bytes, &buffer));
    if (data != NULL)
        ck_ok(keel_queue_write(on->queue, buffer, 0, data, bytes, NULL, NULL));
    on->buffers[on->buffer_count++] = buffer;
    return buffer;
}

static void rig_read(struct rig_device *on, struct keel_buffer *buffer, void *data)
{
    ck_ok(keel_queue_read(on->queue, buffer, 0, data, keel_buffer_bytes(buffer), NULL, NULL));
    ck_ok(keel_queue_finish(on->queue, keel_deadline_after_ns(RIG_LIMIT_NS)));
}

/* Runs the list and frees it. */
static void rig_run(struct rig_device *on, struct keel_launch_list *list)
{
    ck_ok(keel_launch_list_run(list, on->queue));
    ck_ok(keel_queue_finish(on->queue, keel_deadline_after_ns(RIG_LIMIT_NS)));
    keel_launch_list_fini(list);
}

/* The kernels of a list as another device builds them, by its options: one with small local memory has "". */
struct rig_small {
    struct keel_program *program;
    struct keel_kernel *kernels[RIG_KERNELS_MAX];
    uint32_t count;
};

static inline struct rig_small rig_small_init(struct rig_device *on, const struct keel_module *module,
                                              const char *options, struct keel_launch_list *list)
{
    struct rig_small small = {.count = list->count};
    ck_assert_uint_le(list->count, RIG_KERNELS_MAX);
    ck_ok(keel_program_create(on->device, module, options, &small.program));
    for (uint32_t i = 0; i < list->count; i++) {
        ck_ok(keel_kernel_create(small.program, keel_kernel_name(list->items[i].kernel), &small.kernels[i]));
        list->items[i].kernel = small.kernels[i];
    }
    return small;
}

static inline void rig_small_fini(struct rig_small *small)
{
    for (uint32_t i = 0; i < small->count; i++)
        keel_kernel_destroy(small->kernels[i]);
    keel_program_destroy(small->program);
}

/* Float i of a series, in (-1, 1), with all bits of the mantissa in use. */
static float rig_number(uint32_t series, uint64_t i)
{
    uint64_t x = (i + 1) * UINT64_C(0x9e3779b97f4a7c15) + series * UINT64_C(0xd1b54a32d192ed03);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    return (float)((int32_t)(uint32_t)x) * 0x1p-31F;
}

static inline float *rig_numbers(uint32_t series, uint64_t count)
{
    float *x = malloc((count + 1) * sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (uint64_t i = 0; i < count; i++)
        x[i] = rig_number(series, i);
    return x;
}

/* Equal bits, or the first difference. */
static inline void rig_same_bits(const char *what, int device, const float *x, const float *host,
                                 uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        ck_assert_msg(memcmp(&x[i], &host[i], sizeof *x) == 0,
                      "%s: element %" PRIu64 " of %" PRIu64 " is %a on %s, %a on host", what, i, count,
                      (double)x[i], rig_selectors[device], (double)host[i]);
}

/* The line "name hash" of tests/golden/gemm_attention.txt must hold: the bits of a release stay. */
static inline void rig_golden(const char *name, const float *x, uint64_t count)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a over words */
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        hash = (hash ^ bits) * UINT64_C(0x100000001b3);
    }
    char wanted[128], line[128];
    snprintf(wanted, sizeof wanted, "%s %016" PRIx64 "\n", name, hash);
    FILE *file = fopen("tests/golden/gemm_attention.txt", "r");
    ck_assert_msg(file != NULL, "run from the top of the tree");
    bool found = false;
    while (!found && fgets(line, sizeof line, file) != NULL)
        found = strcmp(line, wanted) == 0;
    fclose(file);
    ck_assert_msg(found, "not in tests/golden/gemm_attention.txt: %s", wanted);
}

#endif
