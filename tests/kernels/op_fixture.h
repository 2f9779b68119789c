/* op_fixture.h - what the tests of operations share: the devices, buffers with random data, and the
 * check that an operation gives the same bits on each device and the bits of its golden line.
 *
 * A body builds inputs, runs one operation on a rig and hands in what it wrote. same_bits runs it on the
 * host device and on the device under test. Every test runs in a process of its own (Check forks), so
 * that PoCL, which reads POCL_DEVICES once, can be its threaded or its blocking device. */
#ifndef KEEL_TESTS_OP_FIXTURE_H
#define KEEL_TESTS_OP_FIXTURE_H

#include "harness.h"
#include "kernels_internal.h"

#include <keel/clock.h>
#include <keel/kernels.h>
#include <keel/memory.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* RIG_HOST is the reference; the others are PoCL's devices. RIG_NARROW launches as devices with many narrow
 * lanes are served: groups of 64 work-items, 16 elements each. */
enum rig_kind { RIG_PTHREAD, RIG_BASIC, RIG_NARROW, RIG_DEVICES, RIG_HOST = RIG_DEVICES };
enum { RIG_BUFFERS_MAX = 32, RIG_RESULTS_MAX = 8, RIG_LIMIT_S = 120 };

struct rig {
    struct keel_device *device;
    struct keel_kernels *kernels;
    struct keel_queue *queue;
    struct keel_launch_list list;
    struct keel_buffer *buffers[RIG_BUFFERS_MAX];
    uint32_t buffer_count;
    void *results[RIG_RESULTS_MAX]; /* malloc, what the body handed in */
    size_t result_bytes[RIG_RESULTS_MAX];
    uint32_t result_count;
    bool narrow;
};

static inline void rig_open(struct rig *rig, enum rig_kind kind)
{
    *rig = (struct rig){0};
    if (kind == RIG_BASIC)
        setenv("POCL_DEVICES", "basic", 1);
    ck_ok(keel_device_open(kind == RIG_HOST ? "host" : "pocl", NULL, &rig->device));
    ck_ok(keel_kernels_create(rig->device, &rig->kernels));
    ck_ok(keel_queue_create(rig->device, &rig->queue));
    rig->narrow = kind == RIG_NARROW;
}

static inline void rig_clear(struct rig *rig)
{
    keel_launch_list_fini(&rig->list);
    for (uint32_t i = 0; i < rig->buffer_count; i++)
        keel_buffer_destroy(rig->buffers[i]);
    for (uint32_t i = 0; i < rig->result_count; i++)
        free(rig->results[i]);
    rig->buffer_count = rig->result_count = 0;
}

static inline void rig_close(struct rig *rig)
{
    rig_clear(rig);
    keel_queue_destroy(rig->queue);
    keel_kernels_destroy(rig->kernels);
    keel_device_close(rig->device);
}

/* A buffer with these bytes, or zeros when data is NULL; lives until rig_clear. */
static inline struct keel_buffer *rig_bytes(struct rig *rig, const void *data, uint64_t bytes)
{
    ck_assert_uint_lt(rig->buffer_count, RIG_BUFFERS_MAX);
    struct keel_buffer *buffer;
    ck_ok(keel_buffer_create(rig->device, bytes, &buffer));
    rig->buffers[rig->buffer_count++] = buffer;
    if (data != NULL) {
        ck_ok(keel_queue_write(rig->queue, buffer, 0, data, bytes, NULL, NULL));
        ck_ok(keel_queue_finish(rig->queue, keel_deadline_after_ns(RIG_LIMIT_S * KEEL_NS_PER_S)));
    }
    return buffer;
}

/* `count` random floats in [low, high), the same for the same seed. The caller frees. */
static inline float *random_floats(uint64_t count, uint32_t seed, float low, float high)
{
    const struct keel_control control = {.seed_lo = seed};
    float *data = malloc((count > 0 ? count : 1) * sizeof *data);
    ck_assert_ptr_nonnull(data);
    for (uint64_t i = 0; i < count; i++)
        data[i] = low + (high - low) * keel_random_uniform(&control, 77, i);
    return data;
}
static inline struct keel_buffer *rig_random(struct rig *rig, uint64_t count, uint32_t seed, float low,
                                             float high)
{
    float *data = random_floats(count, seed, low, high);
    struct keel_buffer *buffer = rig_bytes(rig, data, count * sizeof *data);
    free(data);
    return buffer;
}

/* Recut a launch for narrow lanes; a second time changes nothing. Groups that make tiles are one work-item
 * on every device. */
static inline void narrow_launch(struct keel_launch *launch)
{
    const char *name = keel_kernel_name(launch->kernel);
    if (launch->range.local[0] == KEEL_GROUP_ITEMS_MANY || strstr(name, "gemm") || strstr(name, "tiles"))
        return;
    ck_assert_uint_eq(launch->range.local[0], 1);
    for (uint32_t i = 0; i < launch->arg_count; i++) {
        struct keel_arg *arg = &launch->args[i];
        if (arg->kind == KEEL_ARG_U32 && arg->as.u32 == KEEL_ITEM_ELEMENTS_WIDE) {
            arg->as.u32 = KEEL_LANES;
            launch->range.global[0] *= KEEL_ITEM_ELEMENTS_WIDE / KEEL_LANES;
        }
    }
    launch->range.global[0] = keel_round_up(launch->range.global[0], KEEL_GROUP_ITEMS_MANY);
    launch->range.local[0] = KEEL_GROUP_ITEMS_MANY;
}

/* Run what the list holds and wait. */
static inline void rig_run(struct rig *rig)
{
    for (uint32_t i = 0; rig->narrow && i < rig->list.count; i++)
        narrow_launch(&rig->list.items[i]);
    ck_ok(keel_launch_list_run(&rig->list, rig->queue));
    ck_ok(keel_queue_finish(rig->queue, keel_deadline_after_ns(RIG_LIMIT_S * KEEL_NS_PER_S)));
}

/* Read a result back and keep it until rig_clear. */
static inline void *rig_result(struct rig *rig, struct keel_buffer *buffer, uint64_t bytes)
{
    ck_assert_uint_lt(rig->result_count, RIG_RESULTS_MAX);
    void *data = malloc(bytes);
    ck_assert_ptr_nonnull(data);
    ck_ok(keel_queue_read(rig->queue, buffer, 0, data, bytes, NULL, NULL));
    ck_ok(keel_queue_finish(rig->queue, keel_deadline_after_ns(RIG_LIMIT_S * KEEL_NS_PER_S)));
    rig->results[rig->result_count] = data;
    rig->result_bytes[rig->result_count++] = bytes;
    return data;
}

/* The golden line of `name`, in tests/golden/kernels.txt: "name hash". With KEEL_GOLDEN_PRINT set the
 * line is printed instead, for whoever changes an operation on purpose. */
static inline void golden_check(const char *name, uint64_t hash)
{
    if (getenv("KEEL_GOLDEN_PRINT") != NULL) {
        printf("golden: %s %016llx\n", name, (unsigned long long)hash);
        return;
    }
    FILE *file = fopen("tests/golden/kernels.txt", "r");
    ck_assert_msg(file != NULL, "no tests/golden/kernels.txt: run from the top of the tree");
    char line[160], wanted[160];
    snprintf(wanted, sizeof wanted, "%s %016llx\n", name, (unsigned long long)hash);
    bool found = false;
    while (!found && fgets(line, sizeof line, file) != NULL)
        found = strcmp(line, wanted) == 0;
    fclose(file);
    ck_assert_msg(found, "no golden line says: %s", wanted);
}

static inline uint64_t rig_hash(const struct rig *rig)
{
    uint64_t hash = 0, first = 0;
    for (uint32_t i = 0; i < rig->result_count; i++) {
        ck_assert_uint_eq(rig->result_bytes[i] % 4, 0);
        hash += keel_digest_host(rig->results[i], rig->result_bytes[i] / 4, first);
        first += rig->result_bytes[i] / 4;
    }
    return hash;
}

typedef void (*op_body)(struct rig *rig, const void *shape);

/* The rigs of this process, opened once and kept to its end. */
static inline struct rig *rig_kept(enum rig_kind kind)
{
    static struct rig rigs[RIG_DEVICES + 1];
    if (rigs[kind].device == NULL)
        rig_open(&rigs[kind], kind);
    return &rigs[kind];
}
static inline struct rig *rig_shared(enum rig_kind kind)
{
    rig_clear(rig_kept(kind));
    return rig_kept(kind);
}

/* The body gives the same bits on the host and on `kind`; both rigs still hold the results. */
static inline void equal_bits(enum rig_kind kind, const char *name, op_body body, const void *shape)
{
    struct rig *host = rig_shared(RIG_HOST), *device = rig_shared(kind);
    body(host, shape);
    body(device, shape);
    ck_assert_uint_eq(host->result_count, device->result_count);
    ck_assert_uint_gt(host->result_count, 0);
    for (uint32_t r = 0; r < host->result_count; r++) {
        ck_assert_uint_eq(host->result_bytes[r], device->result_bytes[r]);
        const unsigned char *a = host->results[r], *b = device->results[r];
        size_t i = 0;
        while (i < host->result_bytes[r] && a[i] == b[i])
            i++;
        ck_assert_msg(i == host->result_bytes[r], "%s: result %u differs from the host at byte %zu", name, r,
                      i);
    }
}

/* And they are those of its golden line. */
static inline void same_bits(enum rig_kind kind, const char *name, op_body body, const void *shape)
{
    equal_bits(kind, name, body, shape);
    golden_check(name, rig_hash(rig_kept(kind)));
    rig_clear(rig_kept(RIG_HOST));
    rig_clear(rig_kept(kind));
}

/* Largest |value - truth| against the largest |truth|. */
static inline double relative_error(const float *value, const double *truth, uint64_t count)
{
    double worst = 0.0, scale = 0.0;
    for (uint64_t i = 0; i < count; i++) {
        double error = fabs((double)value[i] - truth[i]);
        if (!(error <= worst))
            worst = error;
        scale = fmax(scale, fabs(truth[i]));
    }
    return scale > 0.0 ? worst / scale : worst;
}

#endif
