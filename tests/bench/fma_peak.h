/* fma_peak.h - what a device can do at best: float32 fused multiply-adds from registers alone. A work-item
 * has twelve chains, of vectors where it is a processor's, of floats where lanes are many; then groups are of
 * 256, and enough of them to fill each unit.
 *
 * The yardstick for figures given as a share of peak; measured in the same run, on the same device. */
#ifndef KEEL_BENCH_FMA_PEAK_H
#define KEEL_BENCH_FMA_PEAK_H

#include <keel/clock.h>
#include <keel/device.h>

enum { FMA_CHAINS = 12, FMA_LANES = 16, FMA_ROUNDS = 1 << 15, FMA_GROUP = 256, FMA_UNIT_ITEMS = 2048 };

static const char fma_source[] =
    "#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)\n"
    "__kernel void fma_peak(__global float *out, float a, float b, uint rounds) {\n"
    "#define BEGIN(i) REAL s##i = (REAL)((float)get_global_id(0) + i);\n"
    "EACH(BEGIN)\n"
    "_Pragma(\"unroll 8\") for (uint r = 0; r < rounds; r++) {\n"
    "#define STEP(i) s##i = fma(s##i, (REAL)(a), (REAL)(b));\n"
    "EACH(STEP)\n"
    "}\n"
    "REAL s = (REAL)(0.0f);\n"
    "#define END(i) s += s##i;\n"
    "EACH(END)\n"
    "((__global REAL *)out)[get_global_id(0)] = s;\n"
    "}\n";

/* The host device cannot be measured so: it computes nothing here, and its peak is given as 0. */
static void fma_nothing(void *const *arguments, const struct keel_range *range)
{
    (void)arguments;
    (void)range;
}
static const struct keel_module_kernel fma_kernels[] = {{"fma_peak", fma_nothing}};
static const struct keel_module fma_module = {
    .name = "fma_peak", .source = fma_source, .kernels = fma_kernels, .kernel_count = 1};

/* What a measurement needs; made once. */
struct fma_bench {
    struct keel_program *program;
    struct keel_kernel *kernel;
    struct keel_queue *queue;
    struct keel_buffer *out;
    size_t items, group;
    uint32_t lanes; /* of a work-item */
};

static void fma_close(struct fma_bench *bench)
{
    if (bench->queue != NULL)
        keel_queue_destroy(bench->queue);
    if (bench->out != NULL)
        keel_buffer_destroy(bench->out);
    if (bench->kernel != NULL)
        keel_kernel_destroy(bench->kernel);
    if (bench->program != NULL)
        keel_program_destroy(bench->program);
}

/* FLOPs of one measurement. */
static double fma_flops(const struct fma_bench *bench)
{
    return 2.0 * FMA_CHAINS * bench->lanes * FMA_ROUNDS * (double)bench->items;
}

/* FLOP/s now; 0 on the host device. About 20 ms at 1 TFLOP/s. */
static enum keel_status fma_measure(struct fma_bench *bench, double *out_flops)
{
    *out_flops = 0.0;
    if (bench->kernel == NULL)
        return KEEL_OK;
    struct keel_range range = {.global = {bench->items, 1, 1}, .local = {bench->group, 1, 1}};
    struct keel_arg args[] = {{.kind = KEEL_ARG_BUFFER, .as.buffer = bench->out},
                              {.kind = KEEL_ARG_F32, .as.f32 = 0.999F},
                              {.kind = KEEL_ARG_F32, .as.f32 = 0.5F},
                              {.kind = KEEL_ARG_U32, .as.u32 = FMA_ROUNDS}};
    uint64_t since = keel_now_ns();
    KEEL_TRY(keel_queue_launch(bench->queue, bench->kernel, args, 4, &range, NULL, NULL));
    KEEL_TRY(keel_queue_finish(bench->queue, keel_deadline_after_ns(60 * KEEL_NS_PER_S)));
    double seconds = (double)(keel_now_ns() - since) * 1e-9;
    *out_flops = fma_flops(bench) / seconds;
    return KEEL_OK;
}

/* On failure, and in the end, fma_close. */
static enum keel_status fma_open(struct keel_device *device, struct fma_bench *bench)
{
    double compiled;
    const struct keel_device_info *info = keel_device_info(device);
    const bool many = keel_device_many_lanes(info);
    size_t group = many ? FMA_GROUP : 1;
    while (group > 1 && group > keel_device_line_items(info))
        group /= 2;
    *bench = (struct fma_bench){.items = (size_t)info->compute_units * (many ? FMA_UNIT_ITEMS : 8),
                                .group = group,
                                .lanes = many ? 1 : FMA_LANES};
    if (info->kind == KEEL_DEVICE_HOST)
        return KEEL_OK;
    KEEL_TRY(
        keel_program_create(device, &fma_module, many ? "-DREAL=float" : "-DREAL=float16", &bench->program));
    KEEL_TRY(keel_queue_create(device, &bench->queue));
    KEEL_TRY(keel_buffer_create(device, bench->items * bench->lanes * sizeof(float), &bench->out));
    KEEL_TRY(keel_kernel_create(bench->program, "fma_peak", &bench->kernel));
    return fma_measure(bench, &compiled);
}

#endif
