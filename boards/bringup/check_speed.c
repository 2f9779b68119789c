/* check_speed.c - level 5: how fast the board is, against the limits of its file; `keel board bench` too.
 *
 * Each figure is the median of repeats; figures that can disturb each other are measured in turns. A repeat
 * lasts at least some milliseconds, so that what the clock and the scheduler add is small beside it. Sizes
 * are stated with the figure; rates are of 10^9 a second. What the counts mean is as clpeak has it: a copy
 * counts its bytes once, memory bandwidth counts what is read and what is written, a product 2mnk. */
#include "check_steps.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>

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
    STREAM_BYTES_MANY = 256 << 20,
    GEMM_SIDE = 1024,
    GEMM_SIDE_QUICK = 512,
    GEMM_SIDE_MANY = 4096 /* where lanes are many: enough for all units */
};
#define REPEAT_NS (10 * KEEL_NS_PER_MS) /* a sample repeats its work until this long */

struct speed {
    struct keel_check_run *run;
    struct keel_buffer *buffers[4];
    uint8_t *host;
    uint64_t bytes;
    struct keel_launch chain, stream; /* of the peaks */
};

/* One thing that is measured: `act` enqueues it once; a sample is seconds of one. */
struct subject {
    const char *figure, *unit;
    enum keel_better better;
    double amount; /* value = amount / seconds (more is better), or seconds * amount (less is) */
    enum keel_status (*act)(const struct speed *speed);
    double samples[KEEL_CHECK_SAMPLES_MAX];
    uint32_t times; /* acts in a sample */
};

/* Seconds of `times` acts, finished. Negative after a verdict. */
static double sample(const struct speed *speed, const struct subject *subject, uint32_t times)
{
    enum keel_status status = KEEL_OK;
    uint64_t begun_ns = keel_now_ns();
    for (uint32_t i = 0; i < times && status == KEEL_OK; i++)
        status = subject->act(speed);
    if (status == KEEL_OK)
        status = keel_queue_finish(speed->run->on.queue, speed->run->deadline_ns);
    uint64_t took_ns = keel_now_ns() - begun_ns;
    return keel_check_ok(speed->run, status, subject->figure) ? (double)took_ns / 1e9 : -1;
}

/* How many acts make a sample long enough: doubled until it is. The seconds of such a sample; negative after
 * a verdict. */
static double settle(const struct speed *speed, struct subject *subject)
{
    for (subject->times = 1;; subject->times *= 2) {
        double seconds = sample(speed, subject, subject->times);
        if (seconds < 0 || seconds * 1e9 >= (double)REPEAT_NS || subject->times >= TIMES_MAX)
            return seconds;
    }
}

static void measure(const struct speed *speed, struct subject *subjects, uint32_t count)
{
    uint32_t rounds = speed->run->options->quick ? ROUNDS_QUICK : ROUNDS;
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

/* The size of copies: what the option says, less on a board that is small. */
static uint64_t copy_bytes(const struct keel_check_run *run)
{
    uint64_t bytes = run->options->quick ? COPY_BYTES_QUICK : COPY_BYTES;
    while (bytes > 4096 && (bytes > run->on.info->max_buffer_bytes || bytes > run->on.info->memory_bytes / 8))
        bytes /= 2;
    return bytes;
}

/* The size of what kernels stream: where lanes are many, more than caches of tens of MiB hold. */
static uint64_t stream_bytes(const struct keel_check_run *run)
{
    uint64_t bytes = keel_device_many_lanes(run->on.info) ? STREAM_BYTES_MANY : copy_bytes(run);
    while (bytes > copy_bytes(run) &&
           (bytes > run->on.info->max_buffer_bytes || bytes > run->on.info->memory_bytes / 8))
        bytes /= 2;
    return bytes;
}

/* With so many buffers of so many bytes. */
static bool begin(struct speed *speed, struct keel_check_run *run, uint32_t count, uint64_t bytes)
{
    *speed = (struct speed){.run = run, .bytes = bytes};
    for (uint32_t i = 0; i < count; i++)
        if (!keel_check_able(run, keel_check_new_buffer(run, bytes, &speed->buffers[i]),
                             "memory to measure with"))
            return false;
    return true;
}

/* ---- what is measured ---- */

static enum keel_status act_list(const struct speed *speed)
{
    return keel_launch_list_run(&speed->run->lists[0], speed->run->on.queue);
}

static enum keel_status act_write(const struct speed *speed)
{
    return keel_queue_write(speed->run->on.queue, speed->buffers[0], 0, speed->host, speed->bytes, NULL,
                            NULL);
}

static enum keel_status act_read(const struct speed *speed)
{
    return keel_queue_read(speed->run->on.queue, speed->buffers[1], 0, speed->host, speed->bytes, NULL, NULL);
}

static enum keel_status act_copy(const struct speed *speed)
{
    return keel_queue_copy(speed->run->on.queue, speed->buffers[0], 0, speed->buffers[1], 0, speed->bytes,
                           NULL, NULL);
}

/* A launch of one work-item's worth, in long rows: what a kernel costs before it computes anything. */
static void launch(struct keel_check_run *run)
{
    struct speed speed;
    struct subject subject = {"launch_us", "us", KEEL_BETTER_LESS, 1e6 / LAUNCHES, act_list, {0}, 0};
    if (!begin(&speed, run, 1, 4096))
        return;
    const struct keel_fill fill = {.count = 1, .value = 1, .y = speed.buffers[0]};
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < LAUNCHES && status == KEEL_OK; i++)
        status = keel_op_fill(run->on.kernels, &fill, &run->lists[0]);
    if (keel_check_ok(run, status, "a launch"))
        measure(&speed, &subject, 1);
}

static void copies(struct keel_check_run *run)
{
    struct speed speed;
    if (!begin(&speed, run, 2, copy_bytes(run)) ||
        !keel_check_able(run, keel_check_new_memory(run, speed.bytes, &speed.host), "host memory"))
        return;
    const double amount = (double)speed.bytes / 1e9;
    struct subject subjects[] = {{"write_gbs", "GB/s", KEEL_BETTER_MORE, amount, act_write, {0}, 0},
                                 {"read_gbs", "GB/s", KEEL_BETTER_MORE, amount, act_read, {0}, 0},
                                 {"copy_gbs", "GB/s", KEEL_BETTER_MORE, amount, act_copy, {0}, 0}};
    keel_check_note(run, "copies of %" PRIu64 " KiB", speed.bytes >> 10);
    measure(&speed, subjects, 3);
}

/* y = a + b on floats: two streams read, one written. */
static void memory(struct keel_check_run *run)
{
    struct speed speed;
    if (!begin(&speed, run, 3, stream_bytes(run)))
        return;
    const struct keel_add add = {
        .count = speed.bytes / 4, .a = speed.buffers[0], .b = speed.buffers[1], .y = speed.buffers[2]};
    struct subject subject = {"memory_gbs", "GB/s", KEEL_BETTER_MORE, 3 * (double)speed.bytes / 1e9, act_list,
                              {0},          0};
    keel_check_note(run, "three arrays of %" PRIu64 " KiB", speed.bytes >> 10);
    if (keel_check_ok(run, keel_op_add(run->on.kernels, &add, &run->lists[0]), "add"))
        measure(&speed, &subject, 1);
}

static void gemm(struct keel_check_run *run)
{
    struct speed speed;
    const bool host = run->on.info->kind == KEEL_DEVICE_HOST;
    uint32_t side = keel_device_many_lanes(run->on.info) ? GEMM_SIDE_MANY
                    : run->options->quick || host        ? GEMM_SIDE_QUICK
                                                         : GEMM_SIDE;
    while (side > 64 && 16 * (uint64_t)side * side > run->on.info->memory_bytes / 2)
        side /= 2;
    if (!begin(&speed, run, 3, (uint64_t)side * side * 4))
        return;
    const struct keel_gemm op = keel_device_fixture_square(side, speed.buffers);
    struct subject subject = {
        "gemm_gflops", "GFLOP/s", KEEL_BETTER_MORE, 2.0 * side * side * side / 1e9, act_list, {0}, 0};
    keel_check_note(run, "float32 product of %" PRIu32 " by %" PRIu32, side, side);
    if (keel_check_ok(run, keel_op_gemm(run->on.kernels, &op, &run->lists[0]), "gemm"))
        measure(&speed, &subject, 1);
}

/* ---- what a plain kernel reaches: clpeak's counts, with chains that do not wait for each other ---- */

enum {
    CHAIN_ITEMS = 256,       /* of a compute unit, on a processor */
    CHAIN_ITEMS_WIDE = 4096, /* and elsewhere */
    CHAIN_ITEMS_MANY = 8192, /* where lanes are many: then a chain is of floats and not of vectors */
    CHAIN_STEPS = 512,
    CHAINS = 8,
    CHAIN_WIDTH = 16,
    READ_STEPS = 16,
    READ_WIDTH = 16, /* and where lanes are many */
    READ_WIDTH_MANY = 4
};

static const struct keel_module_kernel peak_kernels[] = {{.name = "peak_chain", .host = NULL},
                                                         {.name = "peak_read", .host = NULL}};
static const struct keel_module peak_module = {
    .name = "peak",
    .source = "__kernel void peak_chain(__global float *out, float m) {\n"
              "  CHAIN c = (CHAIN)((float)get_global_id(0)), k = (CHAIN)(m);\n"
              "  CHAIN s = c, t = c + 1.0f, u = c + 2.0f, v = c + 3.0f;\n"
              "  CHAIN w = c + 4.0f, x = c + 5.0f, y = c + 6.0f, z = c + 7.0f;\n"
              "  for (int i = 0; i < 512; i++) {\n"
              "    s = fma(s, k, c); t = fma(t, k, c); u = fma(u, k, c); v = fma(v, k, c);\n"
              "    w = fma(w, k, c); x = fma(x, k, c); y = fma(y, k, c); z = fma(z, k, c);\n"
              "  }\n"
              "  s = (s + t) + (u + v) + (w + x) + (y + z);\n"
              "  float f = 0; for (uint l = 0; l < sizeof(s) / 4; l++) f += ((float *)&s)[l];\n"
              "  out[get_global_id(0)] = f;\n"
              "}\n"
              "__kernel void peak_read(__global const READ *in, __global float *out) {\n"
              "  READ s = (READ)(0.0f); size_t at = get_group_id(0) * get_local_size(0) * 16 + "
              "get_local_id(0);\n"
              "  for (int i = 0; i < 16; i++) { s += in[at]; at += get_local_size(0); }\n"
              "  float f = 0; for (uint l = 0; l < sizeof(s) / 4; l++) f += ((float *)&s)[l];\n"
              "  out[get_global_id(0)] = f;\n"
              "}\n",
    .kernels = peak_kernels,
    .kernel_count = 2};

static enum keel_status act_peak(const struct speed *speed, const struct keel_launch *peak)
{
    return keel_queue_launch(speed->run->on.queue, peak->kernel, peak->args, peak->arg_count, &peak->range,
                             NULL, NULL);
}

static enum keel_status act_chain(const struct speed *speed)
{
    return act_peak(speed, &speed->chain);
}

static enum keel_status act_stream(const struct speed *speed)
{
    return act_peak(speed, &speed->stream);
}

static struct keel_range items(const struct keel_device_info *info, uint64_t count)
{
    size_t local = keel_device_many_lanes(info) ? 256 : info->kind == KEEL_DEVICE_CPU ? 1 : 64;
    while (local > 1 && local > keel_device_line_items(info))
        local /= 2;
    return (struct keel_range){.global = {keel_size(count / local * local), 1, 1}, .local = {local, 1, 1}};
}

static size_t chain_items(const struct keel_device_info *info)
{
    const size_t units = info->compute_units < 256 ? info->compute_units : 256;
    return units * (keel_device_many_lanes(info)    ? CHAIN_ITEMS_MANY
                    : info->kind == KEEL_DEVICE_CPU ? CHAIN_ITEMS
                                                    : CHAIN_ITEMS_WIDE);
}

static void measure_peaks(struct speed *speed, struct keel_buffer *out)
{
    const struct keel_device_info *info = speed->run->on.info;
    const bool many = keel_device_many_lanes(info);
    const uint64_t item_bytes = sizeof(float) * READ_STEPS * (many ? READ_WIDTH_MANY : READ_WIDTH);
    const struct keel_arg to = {.kind = KEEL_ARG_BUFFER, .as.buffer = out};
    speed->chain.range = items(info, chain_items(info));
    speed->chain.args[0] = to;
    speed->chain.args[1] = (struct keel_arg){.kind = KEEL_ARG_F32, .as.f32 = 0.5f};
    speed->stream.range = items(info, speed->bytes / item_bytes);
    speed->stream.args[0] = (struct keel_arg){.kind = KEEL_ARG_BUFFER, .as.buffer = speed->buffers[0]};
    speed->stream.args[1] = to;
    speed->chain.arg_count = speed->stream.arg_count = 2;
    const double flops =
        2.0 * CHAINS * (many ? 1 : CHAIN_WIDTH) * CHAIN_STEPS * (double)speed->chain.range.global[0];
    const double bytes = (double)item_bytes * (double)speed->stream.range.global[0];
    struct subject subjects[] = {
        {"peak_gflops", "GFLOP/s", KEEL_BETTER_MORE, flops / 1e9, act_chain, {0}, 0},
        {"peak_read_gbs", "GB/s", KEEL_BETTER_MORE, bytes / 1e9, act_stream, {0}, 0}};
    measure(speed, subjects, 2);
}

static void peaks(struct keel_check_run *run)
{
    struct speed speed;
    struct keel_kernel *kernels[2];
    struct keel_buffer *out;
    if ((run->on.info->code_forms & KEEL_CODE_SOURCE) == 0) {
        keel_check_note(run, "no peaks: the board does not compile");
        return;
    }
    const char *options = keel_device_many_lanes(run->on.info) ? "-DCHAIN=float -DREAD=float4"
                                                               : "-DCHAIN=float16 -DREAD=float16";
    if (begin(&speed, run, 1, stream_bytes(run)) &&
        keel_check_able(run,
                        keel_check_new_buffer(run, speed.bytes / 64 + chain_items(run->on.info) * 4, &out),
                        "memory to measure with") &&
        keel_check_ok(run, keel_check_new_kernels(run, &peak_module, options, kernels), "plain kernels")) {
        speed.chain.kernel = kernels[0];
        speed.stream.kernel = kernels[1];
        measure_peaks(&speed, out);
    }
}

#define KERNELS KEEL_OPENS_KERNELS
const struct keel_check keel_checks_speed[] = {
    {"5.1", "launch", "a launch costs no more than the board file allows", "2.1", 120, KERNELS, launch},
    {"5.2", "copies", "host and device exchange bytes as fast as the board file asks", "0.2", 120,
     KEEL_OPENS_QUEUE, copies},
    {"5.3", "bandwidth", "kernels move memory; the rate is for the record", "2.1", 120, KERNELS, memory},
    {"5.4", "gemm", "products are as fast as the board file asks", "2.1", 180, KERNELS, gemm},
    {"5.5", "peaks", "what plain kernels reach, to compare with; for the record, where the board compiles",
     "2.1", 120, KEEL_OPENS_QUEUE, peaks},
    {.id = NULL}};
