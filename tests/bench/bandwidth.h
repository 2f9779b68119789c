/* bandwidth.h - what a device's memory can do at best: plain kernels that only read and write.
 *
 * The yardstick for operations that memory limits, with the mix of streams of the operation and over as
 * many bytes, so that both find them in the same cache, or in none; measured in the same rounds, on the same
 * device. A work-item takes 8,192 floats by vectors of 16; where lanes are many, a group of 256 takes them by
 * vectors of 4, neighbours side by side. */
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

enum { STREAM_BLOCK = 8192, STREAM_GROUP = 256 }; /* floats of a work-item, or of a group */

static const char stream_source[] =
    "#if WIDTH == 16\n"
    "#define AT(i, p) vload16(i, p)\n"
    "#define RUN ulong i = get_global_id(0) * 8192UL; const ulong step = 16, end = min(i + 8192UL, count);\n"
    "#define PUT(v, p) vstore16(v, 0, p)\n"
    "typedef float16 real;\n"
    "#else\n"
    "#define AT(i, p) ((__global const float4 *)(p))[(i) * get_local_size(0)]\n"
    "#define RUN const ulong end = min(get_group_id(0) * 8192UL + 8192UL, count), step = 4 * "
    "get_local_size(0); \\\n"
    "    ulong i = get_group_id(0) * 8192UL + 4 * get_local_id(0);\n"
    "#define PUT(v, p) *(__global float4 *)(p) = (v)\n"
    "typedef float4 real;\n"
    "#endif\n"
    "__kernel void stream_read(__global float *y, __global const float *a, __global const float *b, ulong "
    "count) {\n"
    "RUN real s = 0, t = 0, u = 0, v = 0;\n"
    "for (; i + 3 * step + WIDTH <= end; i += 4 * step) { s += AT(0, a + i); t += AT(1, a + i);\n"
    "    u += AT(2, a + i); v += AT(3, a + i); }\n"
    "s = (s + t) + (u + v);\n"
    "float f = 0; for (int l = 0; l < WIDTH; l++) f += ((float *)&s)[l]; if (f == 12345.678f) y[0] = f; }\n"
    "#define STREAM(name, value) __kernel void stream_##name(__global float *y, __global const float *a, \\\n"
    "    __global const float *b, ulong count) { RUN for (; i + WIDTH <= end; i += step) PUT(value, y + i); "
    "}\n"
    "STREAM(fill, (real)(0.5f))\n"
    "STREAM(copy, AT(0, a + i))\n"
    "STREAM(triad, fma((real)(0.5f), AT(0, b + i), AT(0, a + i)))\n"
    "STREAM(scale, AT(0, y + i) * 0.999f)\n"
    "STREAM(axpy, fma((real)(0.001f), AT(0, a + i), AT(0, y + i)))\n";

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
    size_t group;             /* work-items that take a block */
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
    const struct keel_device_info *info = keel_device_info(device);
    const bool many = keel_device_many_lanes(info);
    *bench = (struct stream_bench){.queue = queue, .group = many ? STREAM_GROUP : 1};
    while (bench->group > 1 && bench->group > keel_device_line_items(info))
        bench->group /= 2;
    KEEL_TRY(keel_program_create(device, &stream_module, many ? "-DWIDTH=4" : "-DWIDTH=16", &bench->program));
    for (uint32_t i = 0; i < STREAM_COUNT; i++)
        KEEL_TRY(keel_kernel_create(bench->program, stream_kernels[i].name, &bench->kernels[i]));
    return KEEL_OK;
}

/* Enqueue one run over `count` floats of each buffer, which moves count * stream_bytes. */
static enum keel_status stream_launch(const struct stream_bench *bench, enum stream stream, uint64_t count,
                                      struct keel_buffer *const buffers[3])
{
    struct keel_range range = {.global = {(count + STREAM_BLOCK - 1) / STREAM_BLOCK * bench->group, 1, 1},
                               .local = {bench->group, 1, 1}};
    struct keel_arg args[] = {{.kind = KEEL_ARG_BUFFER, .as.buffer = buffers[0]},
                              {.kind = KEEL_ARG_BUFFER, .as.buffer = buffers[1]},
                              {.kind = KEEL_ARG_BUFFER, .as.buffer = buffers[2]},
                              {.kind = KEEL_ARG_U64, .as.u64 = count}};
    return keel_queue_launch(bench->queue, bench->kernels[stream], args, 4, &range, NULL, NULL);
}

#endif
