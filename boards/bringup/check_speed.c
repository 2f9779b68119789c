/* check_speed.c - level 5: how fast the board is, against the limits of its file; `keel board bench` too.
 *
 * Each figure is the median of repeats; figures that can disturb each other are measured in turns. A repeat
 * lasts at least some milliseconds, so that what the clock and the scheduler add is small beside it. Sizes
 * are stated with the figure; rates are of 10^9 a second. What the counts mean is as clpeak has it: a copy
 * counts its bytes once, memory bandwidth counts what is read and what is written, a product 2mnk. */
#include "check_tables.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

enum {
    ROUNDS = 31,
    ROUNDS_QUICK = 7,
    ROUNDS_LEAST = 3,
    WARM_ROUNDS = 1,
    MEASURE_S = 30, /* of all rounds together */
    TIMES_MAX = 1 << 20,
    LAUNCHES = 500,
    COPY_BYTES = 32 << 20,
    COPY_BYTES_QUICK = 8 << 20,
    GEMM_SIDE = 1024,
    GEMM_SIDE_QUICK = 512
};
#define REPEAT_NS (10 * KEEL_NS_PER_MS) /* a sample repeats its work until this long */

/* One thing that is measured: `act` enqueues it once; a sample is seconds of one. */
struct subject {
    const char *figure, *unit;
    enum keel_better better;
    double amount; /* value = amount / seconds (more is better), or seconds * amount (less is) */
    enum keel_status (*act)(void *context);
    void *context;
    double samples[KEEL_CHECK_SAMPLES_MAX];
    uint32_t times; /* acts in a sample */
};

struct speed {
    struct keel_check_run *run;
    struct keel_device *device;
    struct keel_kernels *kernels;
    struct keel_queue *queue;
    struct keel_buffer *buffers[4];
    struct keel_launch_list list;
    uint8_t *host;
    uint64_t bytes;
};

static uint32_t rounds_of(const struct speed *speed)
{
    return keel_check_options(speed->run)->quick ? ROUNDS_QUICK : ROUNDS;
}

/* Seconds of `times` acts, finished. Negative after a verdict. */
static double sample(struct speed *speed, const struct subject *subject, uint32_t times)
{
    enum keel_status status = KEEL_OK;
    uint64_t begun_ns = keel_now_ns();
    for (uint32_t i = 0; i < times && status == KEEL_OK; i++)
        status = subject->act(subject->context);
    if (status == KEEL_OK)
        status = keel_queue_finish(speed->queue, keel_check_deadline_ns(speed->run));
    uint64_t took_ns = keel_now_ns() - begun_ns;
    return keel_check_ok(speed->run, status, subject->figure) ? (double)took_ns / 1e9 : -1;
}

/* How many acts make a sample long enough: doubled until it is. The seconds of such a sample; negative after
 * a verdict. */
static double settle(struct speed *speed, struct subject *subject)
{
    for (subject->times = 1;; subject->times *= 2) {
        double seconds = sample(speed, subject, subject->times);
        if (seconds < 0 || seconds * 1e9 >= (double)REPEAT_NS || subject->times >= TIMES_MAX)
            return seconds;
    }
}

static void measure(struct speed *speed, struct subject *subjects, uint32_t count)
{
    uint32_t rounds = rounds_of(speed);
    double round_s = 0;
    for (uint32_t s = 0; s < count; s++) {
        double sample_s = settle(speed, &subjects[s]);
        if (sample_s < 0)
            return;
        round_s += sample_s;
    }
    while (rounds > ROUNDS_LEAST && (WARM_ROUNDS + rounds) * round_s > MEASURE_S)
        rounds--; /* a simulator, say: few repeats are better than none */
    for (uint32_t round = 0; round < WARM_ROUNDS + rounds; round++)
        for (uint32_t s = 0; s < count; s++) {
            struct subject *subject = &subjects[s];
            keel_check_progress(speed->run, round, WARM_ROUNDS + rounds, subject->figure);
            double seconds = sample(speed, subject, subject->times) / subject->times;
            if (seconds < 0)
                return;
            if (round >= WARM_ROUNDS)
                subject->samples[round - WARM_ROUNDS] = subject->better == KEEL_BETTER_LESS
                                                            ? seconds * subject->amount
                                                            : subject->amount / seconds;
        }
    for (uint32_t s = 0; s < count; s++)
        keel_check_figure(speed->run, subjects[s].figure, subjects[s].unit, subjects[s].better,
                          subjects[s].samples, rounds);
}

/* ---- set-up ---- */

static bool add_buffer(struct speed *speed, uint32_t index, uint64_t bytes)
{
    return keel_check_able(speed->run, keel_buffer_create(speed->device, bytes, &speed->buffers[index]),
                           "memory to measure with");
}

/* The size of copies: what the option says, less on a board that is small. */
static uint64_t copy_bytes(const struct speed *speed)
{
    uint64_t bytes = keel_check_options(speed->run)->quick ? COPY_BYTES_QUICK : COPY_BYTES;
    const struct keel_device_info *info = keel_device_info(speed->device);
    while (bytes > 4096 && (bytes > info->max_buffer_bytes || bytes > info->memory_bytes / 8))
        bytes /= 2;
    return bytes;
}

static bool speed_begin(struct speed *speed, struct keel_check_run *run, bool with_kernels)
{
    *speed = (struct speed){.run = run, .device = keel_check_device(run)};
    if (speed->device == NULL ||
        !keel_check_ok(run, keel_queue_create(speed->device, &speed->queue), "a queue"))
        return false;
    speed->bytes = copy_bytes(speed);
    if (with_kernels)
        speed->kernels = keel_check_kernels(run);
    return !with_kernels || speed->kernels != NULL;
}

static void speed_end(struct speed *speed)
{
    keel_launch_list_fini(&speed->list);
    if (speed->queue != NULL)
        keel_queue_destroy(speed->queue);
    for (uint32_t i = 0; i < sizeof speed->buffers / sizeof speed->buffers[0]; i++)
        if (speed->buffers[i] != NULL)
            keel_buffer_destroy(speed->buffers[i]);
    keel_free(speed->host);
}

/* ---- what is measured ---- */

static enum keel_status act_list(void *context)
{
    struct speed *speed = context;
    return keel_launch_list_run(&speed->list, speed->queue);
}

static enum keel_status act_write(void *context)
{
    struct speed *speed = context;
    return keel_queue_write(speed->queue, speed->buffers[0], 0, speed->host, speed->bytes, NULL, NULL);
}

static enum keel_status act_read(void *context)
{
    struct speed *speed = context;
    return keel_queue_read(speed->queue, speed->buffers[1], 0, speed->host, speed->bytes, NULL, NULL);
}

static enum keel_status act_copy(void *context)
{
    struct speed *speed = context;
    return keel_queue_copy(speed->queue, speed->buffers[0], 0, speed->buffers[1], 0, speed->bytes, NULL,
                           NULL);
}

/* A launch of one work-item's worth, in long rows: what a kernel costs before it computes anything. */
static void launch(struct keel_check_run *run)
{
    struct speed speed;
    if (speed_begin(&speed, run, true) && add_buffer(&speed, 0, 4096)) {
        struct keel_fill fill = {.count = 1, .value = 1, .y = speed.buffers[0]};
        enum keel_status status = KEEL_OK;
        for (uint32_t i = 0; i < LAUNCHES && status == KEEL_OK; i++)
            status = keel_op_fill(speed.kernels, &fill, &speed.list);
        struct subject subject = {.figure = "launch_us",
                                  .unit = "us",
                                  .better = KEEL_BETTER_LESS,
                                  .amount = 1e6 / LAUNCHES,
                                  .act = act_list,
                                  .context = &speed};
        if (keel_check_ok(run, status, "a launch"))
            measure(&speed, &subject, 1);
    }
    speed_end(&speed);
}

static void copies(struct keel_check_run *run)
{
    struct speed speed;
    if (speed_begin(&speed, run, false) && add_buffer(&speed, 0, speed.bytes) &&
        add_buffer(&speed, 1, speed.bytes) &&
        keel_check_able(run, keel_alloc_aligned(KEEL_PAGE_BYTES, speed.bytes, &speed.host), "host memory")) {
        double amount = (double)speed.bytes / 1e9;
        struct subject subjects[] = {
            {.figure = "write_gbs", .unit = "GB/s", .amount = amount, .act = act_write, .context = &speed},
            {.figure = "read_gbs", .unit = "GB/s", .amount = amount, .act = act_read, .context = &speed},
            {.figure = "copy_gbs", .unit = "GB/s", .amount = amount, .act = act_copy, .context = &speed}};
        keel_check_note(run, "copies of %" PRIu64 " KiB", speed.bytes >> 10);
        measure(&speed, subjects, 3);
    }
    speed_end(&speed);
}

/* y = a + b on floats: two streams read, one written. */
static void memory(struct keel_check_run *run)
{
    struct speed speed;
    if (speed_begin(&speed, run, true) && add_buffer(&speed, 0, speed.bytes) &&
        add_buffer(&speed, 1, speed.bytes) && add_buffer(&speed, 2, speed.bytes)) {
        struct keel_add add = {
            .count = speed.bytes / 4, .a = speed.buffers[0], .b = speed.buffers[1], .y = speed.buffers[2]};
        struct subject subject = {.figure = "memory_gbs",
                                  .unit = "GB/s",
                                  .amount = 3 * (double)speed.bytes / 1e9,
                                  .act = act_list,
                                  .context = &speed};
        keel_check_note(run, "three arrays of %" PRIu64 " KiB", speed.bytes >> 10);
        if (keel_check_ok(run, keel_op_add(speed.kernels, &add, &speed.list), "add"))
            measure(&speed, &subject, 1);
    }
    speed_end(&speed);
}

static void gemm(struct keel_check_run *run)
{
    struct speed speed;
    if (speed_begin(&speed, run, true)) {
        bool host = keel_device_info(speed.device)->kind == KEEL_DEVICE_HOST;
        uint32_t side = keel_check_options(run)->quick || host ? GEMM_SIDE_QUICK : GEMM_SIDE;
        while (side > 64 && 16 * (uint64_t)side * side > keel_device_info(speed.device)->memory_bytes / 2)
            side /= 2;
        uint64_t bytes = (uint64_t)side * side * 4;
        struct keel_gemm op = {
            .m = side, .n = side, .k = side, .batch = 1, .lda = side, .ldb = side, .ldc = side};
        if (add_buffer(&speed, 0, bytes) && add_buffer(&speed, 1, bytes) && add_buffer(&speed, 2, bytes)) {
            op.a = speed.buffers[0];
            op.b = speed.buffers[1];
            op.c = speed.buffers[2];
            struct subject subject = {.figure = "gemm_gflops",
                                      .unit = "GFLOP/s",
                                      .amount = 2.0 * side * side * side / 1e9,
                                      .act = act_list,
                                      .context = &speed};
            keel_check_note(run, "float32 product of %" PRIu32 " by %" PRIu32, side, side);
            if (keel_check_ok(run, keel_op_gemm(speed.kernels, &op, &speed.list), "gemm"))
                measure(&speed, &subject, 1);
        }
    }
    speed_end(&speed);
}

/* ---- what a plain kernel reaches: clpeak's counts, with chains that do not wait for each other ---- */

enum {
    CHAIN_ITEMS = 256,
    CHAIN_ITEMS_WIDE = 4096,
    /* of a compute unit */ CHAIN_STEPS = 512,
    CHAINS = 8,
    CHAIN_WIDTH = 16,
    READ_STEPS = 16
};

static const struct keel_module_kernel peak_kernels[] = {{.name = "peak_chain", .host = NULL},
                                                         {.name = "peak_read", .host = NULL}};
static const struct keel_module peak_module = {
    .name = "peak",
    .source = "__kernel void peak_chain(__global float *out, float m) {\n"
              "  float16 c = (float16)((float)get_global_id(0)), k = (float16)(m);\n"
              "  float16 s = c, t = c + 1.0f, u = c + 2.0f, v = c + 3.0f;\n"
              "  float16 w = c + 4.0f, x = c + 5.0f, y = c + 6.0f, z = c + 7.0f;\n"
              "  for (int i = 0; i < 512; i++) {\n"
              "    s = fma(s, k, c); t = fma(t, k, c); u = fma(u, k, c); v = fma(v, k, c);\n"
              "    w = fma(w, k, c); x = fma(x, k, c); y = fma(y, k, c); z = fma(z, k, c);\n"
              "  }\n"
              "  s = (s + t) + (u + v) + (w + x) + (y + z);\n"
              "  float8 e = s.lo + s.hi; float4 f = e.lo + e.hi;\n"
              "  out[get_global_id(0)] = f.x + f.y + f.z + f.w;\n"
              "}\n"
              "__kernel void peak_read(__global const float16 *in, __global float *out) {\n"
              "  float16 s = (float16)(0.0f); size_t at = get_group_id(0) * get_local_size(0) * 16 + "
              "get_local_id(0);\n"
              "  for (int i = 0; i < 16; i++) { s += in[at]; at += get_local_size(0); }\n"
              "  float8 e = s.lo + s.hi; float4 f = e.lo + e.hi;\n"
              "  out[get_global_id(0)] = f.x + f.y + f.z + f.w;\n"
              "}\n",
    .kernels = peak_kernels,
    .kernel_count = 2};

struct peak {
    struct speed *speed;
    struct keel_kernel *kernel;
    struct keel_arg args[2];
    struct keel_range range;
};

static enum keel_status act_peak(void *context)
{
    struct peak *peak = context;
    return keel_queue_launch(peak->speed->queue, peak->kernel, peak->args, 2, &peak->range, NULL, NULL);
}

static struct keel_range items(const struct speed *speed, uint64_t count)
{
    size_t local =
        keel_device_info(speed->device)->kind == KEEL_DEVICE_CPU ? 1 : 64; /* a vector is wide enough */
    while (local > 1 && local > keel_device_info(speed->device)->max_group_items)
        local /= 2;
    return (struct keel_range){.global = {keel_size(count / local * local), 1, 1}, .local = {local, 1, 1}};
}

static size_t chain_items(const struct speed *speed)
{
    const struct keel_device_info *info = keel_device_info(speed->device);
    size_t units = info->compute_units < 256 ? info->compute_units : 256;
    return units * (info->kind == KEEL_DEVICE_CPU ? CHAIN_ITEMS : CHAIN_ITEMS_WIDE);
}

static void measure_peaks(struct speed *speed, struct keel_kernel *chain, struct keel_kernel *read)
{
    struct peak compute = {.speed = speed,
                           .kernel = chain,
                           .args = {{.kind = KEEL_ARG_BUFFER, .as.buffer = speed->buffers[1]},
                                    {.kind = KEEL_ARG_F32, .as.f32 = 0.5f}},
                           .range = items(speed, chain_items(speed))};
    struct peak stream = {.speed = speed,
                          .kernel = read,
                          .args = {{.kind = KEEL_ARG_BUFFER, .as.buffer = speed->buffers[0]},
                                   {.kind = KEEL_ARG_BUFFER, .as.buffer = speed->buffers[1]}},
                          .range = items(speed, speed->bytes / 64 / READ_STEPS)};
    double flops = 2.0 * CHAINS * CHAIN_WIDTH * CHAIN_STEPS * (double)compute.range.global[0];
    double bytes = 64.0 * READ_STEPS * (double)stream.range.global[0];
    struct subject subjects[] = {{.figure = "peak_gflops",
                                  .unit = "GFLOP/s",
                                  .amount = flops / 1e9,
                                  .act = act_peak,
                                  .context = &compute},
                                 {.figure = "peak_read_gbs",
                                  .unit = "GB/s",
                                  .amount = bytes / 1e9,
                                  .act = act_peak,
                                  .context = &stream}};
    measure(speed, subjects, 2);
}

static void peaks(struct keel_check_run *run)
{
    struct speed speed;
    struct keel_program *program = NULL;
    struct keel_kernel *chain = NULL, *read = NULL;
    if (speed_begin(&speed, run, false)) {
        if ((keel_device_info(speed.device)->code_forms & KEEL_CODE_SOURCE) == 0)
            keel_check_note(run, "no peaks: the board does not compile");
        else if (add_buffer(&speed, 0, speed.bytes) &&
                 add_buffer(&speed, 1, speed.bytes / 64 + chain_items(&speed) * 4) &&
                 keel_check_ok(run, keel_program_create(speed.device, &peak_module, "", &program),
                               "plain kernels") &&
                 keel_check_ok(run, keel_kernel_create(program, "peak_chain", &chain), "a plain kernel") &&
                 keel_check_ok(run, keel_kernel_create(program, "peak_read", &read), "a plain kernel"))
            measure_peaks(&speed, chain, read);
    }
    if (chain != NULL)
        keel_kernel_destroy(chain);
    if (read != NULL)
        keel_kernel_destroy(read);
    if (program != NULL)
        keel_program_destroy(program);
    speed_end(&speed);
}

const struct keel_check keel_checks_speed[] = {
    {"5.1", "launch", "a launch costs no more than the board file allows", "2.1", 120, false, launch},
    {"5.2", "copies", "host and device exchange bytes as fast as the board file asks", "0.2", 120, false,
     copies},
    {"5.3", "bandwidth", "kernels move memory; the rate is for the record", "2.1", 120, false, memory},
    {"5.4", "gemm", "products are as fast as the board file asks", "2.1", 180, false, gemm},
    {"5.5", "peaks", "what plain kernels reach, to compare with; for the record, where the board compiles",
     "2.1", 120, false, peaks},
    {.id = NULL}};
