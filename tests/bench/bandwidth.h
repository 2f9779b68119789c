/* bandwidth.h - what a device's memory can do at best: plain kernels that only read and write.
 *
 * The yardstick for operations that memory limits, with the mix of streams of the operation and over as
 * many bytes, so that both find them in the same cache, or in none; measured in the same rounds, on the same
 * device. */
#ifndef KEEL_BENCH_BANDWIDTH_H
#define KEEL_BENCH_BANDWIDTH_H

#include <keel/clock.h>
#include <keel/device.h>
#include <time.h>

/* Bytes that a float of the run moves: read and fill 4, copy 8, triad 12 (two read, one written), scale 8 and
 * axpy 12 (what is written was read, so no line is fetched to be overwritten). */
enum stream { STREAM_READ, STREAM_FILL, STREAM_COPY, STREAM_TRIAD, STREAM_SCALE, STREAM_AXPY, STREAM_COUNT };
static const char *const stream_names[STREAM_COUNT] = {"read", "fill", "copy", "triad", "scale", "axpy"};
static const uint32_t stream_bytes[STREAM_COUNT] = {4, 4, 8, 12, 8, 12};

enum { STREAM_BLOCK = 8192 }; /* floats of a work-item */

static const char stream_source[] =
    "#define RUN ulong i = get_global_id(0) * 8192UL; const ulong end = min(i + 8192UL, count);\n"
    "__kernel void stream_read(__global float *y, __global const float *a, __global const float *b, ulong "
    "count) {\n"
    "RUN float16 s = 0, t = 0, u = 0, v = 0;\n"
    "for (; i + 64 <= end; i += 64) { s += vload16(0, a + i); t += vload16(1, a + i);\n"
    "    u += vload16(2, a + i); v += vload16(3, a + i); }\n"
    "s = (s + t) + (u + v);\n"
    "float8 f = s.lo + s.hi; if (f.s0 + f.s1 == 12345.678f) y[0] = f.s2 + f.s3 + f.s4 + f.s5 + f.s6 + f.s7; "
    "}\n"
    "#define STREAM(name, value) __kernel void stream_##name(__global float *y, __global const float *a, \\\n"
    "    __global const float *b, ulong count) { RUN for (; i + 16 <= end; i += 16) vstore16(value, 0, y + "
    "i); }\n"
    "STREAM(fill, (float16)(0.5f))\n"
    "STREAM(copy, vload16(0, a + i))\n"
    "STREAM(triad, fma((float16)(0.5f), vload16(0, b + i), vload16(0, a + i)))\n"
    "STREAM(scale, vload16(0, y + i) * 0.999f)\n"
    "STREAM(axpy, fma((float16)(0.001f), vload16(0, a + i), vload16(0, y + i)))\n";

/* The host device is not measured so. */
static void stream_nothing(void *const *arguments, const struct keel_range *range)
{
    (void)arguments;
    (void)range;
}
static const struct keel_module_kernel stream_kernels[] = {
    {"stream_read", stream_nothing},  {"stream_fill", stream_nothing},  {"stream_copy", stream_nothing},
    {"stream_triad", stream_nothing}, {"stream_scale", stream_nothing}, {"stream_axpy", stream_nothing}};
static const struct keel_module stream_module = {
    .name = "streams", .source = stream_source, .kernels = stream_kernels, .kernel_count = STREAM_COUNT};

struct stream_bench {
    struct keel_program *program;
    struct keel_kernel *kernels[STREAM_COUNT];
    struct keel_queue *queue; /* borrowed */
};

static void stream_close(struct stream_bench *bench)
{
    for (uint32_t i = 0; i < STREAM_COUNT; i++)
        if (bench->kernels[i] != NULL)
            keel_kernel_destroy(bench->kernels[i]);
    if (bench->program != NULL)
        keel_program_destroy(bench->program);
}

/* On failure, and in the end, stream_close. */
static enum keel_status stream_open(struct keel_device *device, struct keel_queue *queue,
                                    struct stream_bench *bench)
{
    *bench = (struct stream_bench){.queue = queue};
    KEEL_TRY(keel_program_create(device, &stream_module, "", &bench->program));
    for (uint32_t i = 0; i < STREAM_COUNT; i++)
        KEEL_TRY(keel_kernel_create(bench->program, stream_kernels[i].name, &bench->kernels[i]));
    return KEEL_OK;
}

/* Enqueue one run over `count` floats of each buffer, which moves count * stream_bytes. */
static enum keel_status stream_launch(const struct stream_bench *bench, enum stream stream, uint64_t count,
                                      struct keel_buffer *const buffers[3])
{
    struct keel_range range = {.global = {(count + STREAM_BLOCK - 1) / STREAM_BLOCK, 1, 1},
                               .local = {1, 1, 1}};
    struct keel_arg args[] = {{.kind = KEEL_ARG_BUFFER, .as.buffer = buffers[0]},
                              {.kind = KEEL_ARG_BUFFER, .as.buffer = buffers[1]},
                              {.kind = KEEL_ARG_BUFFER, .as.buffer = buffers[2]},
                              {.kind = KEEL_ARG_U64, .as.u64 = count}};
    return keel_queue_launch(bench->queue, bench->kernels[stream], args, 4, &range, NULL, NULL);
}

#endif
