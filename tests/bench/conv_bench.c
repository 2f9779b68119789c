/* conv_bench.c - what convolutions reach, as a share of the device's FMA peak of the same minutes, and
 * PyTorch beside.
 *
 * One JSON object a line: each distinct convolution of ResNet-18 (He et al. 2016) on 4 images of 224 x 224,
 * forward and both gradients; then all of a step, each as often as the network has it. ROUNDS times: the
 * peak, all of ours, all of the peer (tests/bench/conv_peer.py by ${KEEL_PYTHON:-python3}, where torch is
 * installed); medians. conv_bench [DEVICE [THREADS]]: with one thread times are the processor's. */
#include "fma_peak.h"
#include "peer.h"

#include <keel/image_ops.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 5, BATCH = 4 };
static const double short_s = 0.02;

struct layer {
    uint32_t size, channels, outs, kernel, stride, pad;
    uint32_t times;
};
static const struct layer layers[] = {
    {224, 3, 64, 7, 2, 3, 1},   {56, 64, 64, 3, 1, 1, 4},   {56, 64, 128, 3, 2, 1, 1},
    {56, 64, 128, 1, 2, 0, 1},  {28, 128, 128, 3, 1, 1, 3}, {28, 128, 256, 3, 2, 1, 1},
    {28, 128, 256, 1, 2, 0, 1}, {14, 256, 256, 3, 1, 1, 3}, {14, 256, 512, 3, 2, 1, 1},
    {14, 256, 512, 1, 2, 0, 1}, {7, 512, 512, 3, 1, 1, 3},
};
enum { LAYERS = sizeof layers / sizeof layers[0], FORWARD = 0, DATA, WEIGHT, KINDS };
static const char *const kinds[KINDS] = {"forward", "data gradient", "weight gradient"};
static const uint64_t floats = (uint64_t)BATCH * 112 * 112 * 64;

static struct keel_kernels *kernels;
static struct keel_queue *queue;
static struct keel_buffer *x, *w, *y;
static struct fma_bench yardstick;
static bool processor_time;                                              /* of one thread */
static double peak, seconds[LAYERS][KINDS], peer_seconds[LAYERS][KINDS]; /* medians; of no peer 0 */

static double now_s(void)
{
    struct timespec now;
    clock_gettime(processor_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static struct keel_conv_shape shape_of(const struct layer *l)
{
    return (struct keel_conv_shape){BATCH,
                                    l->size,
                                    l->size,
                                    l->channels,
                                    l->outs,
                                    {l->kernel, l->kernel},
                                    {l->stride, l->stride},
                                    {l->pad, l->pad},
                                    {1, 1},
                                    1};
}

static enum keel_status append(const struct layer *layer, int kind, struct keel_launch_list *list)
{
    const struct keel_conv_shape shape = shape_of(layer);
    if (kind == FORWARD)
        return keel_op_conv2d(kernels, &(struct keel_conv2d){.shape = shape, .x = x, .weight = w, .y = y},
                              list);
    if (kind == DATA)
        return keel_op_conv2d_grad_data(
            kernels, &(struct keel_conv2d_grad_data){.shape = shape, .dy = y, .weight = w, .dx = x}, list);
    return keel_op_conv2d_grad_weight(
        kernels, &(struct keel_conv2d_grad_weight){.shape = shape, .x = x, .dy = y, .dweight = w}, list);
}

static double flops_of(const struct layer *l)
{
    const struct keel_conv_shape shape = shape_of(l);
    return 2.0 * BATCH * keel_conv_out(&shape, 0) * keel_conv_out(&shape, 1) * l->outs * l->channels *
           l->kernel * l->kernel;
}

/* Seconds of one run, the mean of a stretch of at least short_s. */
static enum keel_status time_once(const struct keel_launch_list *list, double *out)
{
    const double since = now_s();
    double spent = 0;
    uint32_t runs = 0;
    while (spent < short_s) {
        KEEL_TRY(keel_launch_list_run(list, queue));
        KEEL_TRY(keel_queue_finish(queue, keel_deadline_after_ns(60 * KEEL_NS_PER_S)));
        runs++;
        spent = now_s() - since;
    }
    *out = spent / runs;
    return KEEL_OK;
}

static int compare_doubles(const void *a, const void *b)
{
    double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}
/* 0 of none. */
static double median(double values[ROUNDS], uint32_t count)
{
    qsort(values, count, sizeof values[0], compare_doubles);
    return count > 0 ? values[count / 2] : 0;
}

static enum keel_status measure_peak(double *out)
{
    const double since = now_s();
    KEEL_TRY(fma_measure(&yardstick, out));
    *out = processor_time && *out > 0 ? fma_flops(&yardstick) / (now_s() - since) : *out;
    return KEEL_OK;
}

/* A line for each layer: BATCH, its sizes, and the seconds of each kind come back. */
static bool ask_peer(uint32_t threads, uint32_t round, double out[LAYERS][KINDS][ROUNDS])
{
    char arguments[512];
    int length = snprintf(arguments, sizeof arguments, "%u %d", threads, BATCH);
    for (int i = 0; i < LAYERS; i++)
        length += snprintf(arguments + length, sizeof arguments - (size_t)length, " %u,%u,%u,%u,%u,%u",
                           layers[i].size, layers[i].channels, layers[i].outs, layers[i].kernel,
                           layers[i].stride, layers[i].pad);
    FILE *pipe = peer_open("conv_peer.py", arguments);
    int found = 0;
    for (int i = 0; i < LAYERS && pipe != NULL; i++)
        for (int kind = 0; kind < KINDS; kind++)
            found += fscanf(pipe, "%lf", &out[i][kind][round]) == 1;
    return pipe != NULL && pclose(pipe) == 0 && found == LAYERS * KINDS;
}

static enum keel_status measure(uint32_t threads)
{
    static double ours[LAYERS][KINDS][ROUNDS], theirs[LAYERS][KINDS][ROUNDS], peaks[ROUNDS];
    struct keel_launch_list lists[LAYERS][KINDS] = {0};
    const bool peer = peer_exists("conv_bench");
    uint32_t peer_rounds = 0; /* that succeeded */
    for (int i = 0; i < LAYERS; i++)
        for (int kind = 0; kind < KINDS; kind++) {
            KEEL_TRY(append(&layers[i], kind, &lists[i][kind]));
            KEEL_TRY(time_once(&lists[i][kind], &ours[i][kind][0])); /* compiles for its sizes */
        }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        KEEL_TRY(measure_peak(&peaks[round]));
        for (int i = 0; i < LAYERS * KINDS; i++)
            KEEL_TRY(time_once(&lists[i / KINDS][i % KINDS], &ours[i / KINDS][i % KINDS][round]));
        if (peer && ask_peer(threads, peer_rounds, theirs))
            peer_rounds++;
        else if (peer)
            fprintf(stderr, "conv_bench: PyTorch failed in round %u of %d\n", round + 1, ROUNDS);
    }
    peak = median(peaks, ROUNDS);
    for (int i = 0; i < LAYERS; i++)
        for (int kind = 0; kind < KINDS; kind++) {
            seconds[i][kind] = median(ours[i][kind], ROUNDS);
            peer_seconds[i][kind] = median(theirs[i][kind], peer_rounds);
            keel_launch_list_fini(&lists[i][kind]);
        }
    return KEEL_OK;
}

/* theirs: 0: none; met: where it is the one that has a goal, not to be slower. */
static void print_line(const char *figure, double value, const char *unit, double theirs, double ratio,
                       bool goal)
{
    printf("{\"room\":\"kernels\",\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",", figure, value, unit);
    if (theirs > 0)
        printf("\"peer\":\"PyTorch\",\"peer_value\":%.4g,\"ratio\":%.3g,", theirs, ratio);
    else
        printf("\"peer\":null,\"peer_value\":null,\"ratio\":null,");
    if (goal && theirs > 0)
        printf("\"goal\":1,\"met\":%s}\n", ratio <= 1 ? "true" : "false");
    else
        printf("\"goal\":null,\"met\":null}\n");
}

static void report_layer(const struct layer *l, int kind, double ours, double theirs)
{
    char figure[160];
    const double rate = flops_of(l) / ours * 1e-9, peer = theirs > 0 ? flops_of(l) / theirs * 1e-9 : 0;
    const int length = snprintf(figure, sizeof figure, "conv %ux%ux%u, %u of %ux%u, stride %u, %s", l->size,
                                l->size, l->channels, l->outs, l->kernel, l->kernel, l->stride, kinds[kind]);
    print_line(figure, rate, "GFLOP/s", peer, rate / peer, false);
    if (peak <= 0) /* the host device has none */
        return;
    snprintf(figure + length, sizeof figure - (size_t)length, ", share of peak");
    print_line(figure, 1e9 * rate / peak, "share", 1e9 * peer / peak, rate / peer, false);
}

static void report(void)
{
    double flops = 0, ours = 0, theirs = 0;
    for (int i = 0; i < LAYERS; i++)
        for (int kind = 0; kind < KINDS; kind++) {
            const struct layer *l = &layers[i];
            report_layer(l, kind, seconds[i][kind], peer_seconds[i][kind]);
            if (i == 0 && kind == DATA)
                continue; /* nobody wants the gradient of the images */
            flops += l->times * flops_of(l);
            ours += l->times * seconds[i][kind];
            theirs += l->times * peer_seconds[i][kind];
        }
    print_line("resnet-18, batch 4, all convolutions of a step", ours * 1e3, "ms", theirs * 1e3,
               ours / theirs, true);
    if (peak > 0)
        print_line("resnet-18, batch 4, all convolutions of a step, share of peak", flops / ours / peak,
                   "share", theirs > 0 ? flops / theirs / peak : 0, theirs / ours, false);
}

static enum keel_status fill(struct keel_device *device, struct keel_buffer **out, float *data)
{
    KEEL_TRY(keel_buffer_create(device, floats * sizeof(float), out));
    KEEL_TRY(keel_queue_write(queue, *out, 0, data, floats * sizeof(float), NULL, NULL));
    return keel_queue_finish(queue, keel_deadline_after_ns(60 * KEEL_NS_PER_S));
}

static enum keel_status bench(struct keel_device *device, uint32_t threads)
{
    float *data = NULL;
    KEEL_TRY(keel_queue_create(device, &queue));
    KEEL_TRY(keel_kernels_create(device, &kernels));
    KEEL_TRY(fma_open(device, &yardstick));
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, floats * sizeof(float), &data));
    for (uint64_t i = 0; i < floats; i++)
        data[i] = (float)((i * 2654435761U >> 20) % 2048) / 1024.0F - 1.0F;
    KEEL_TRY(fill(device, &x, data));
    KEEL_TRY(fill(device, &w, data));
    KEEL_TRY(fill(device, &y, data));
    KEEL_TRY(measure(threads > 0 ? threads : keel_device_info(device)->compute_units));
    report();
    fma_close(&yardstick);
    return KEEL_OK;
}

int main(int argc, char **argv)
{
    struct keel_device *device = NULL;
    const struct keel_device_options options = {.threads =
                                                    argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0};
    processor_time = options.threads == 1;
    enum keel_status status = keel_device_open(argc > 1 ? argv[1] : "auto", &options, &device);
    if (status == KEEL_OK)
        status = bench(device, options.threads);
    if (status != KEEL_OK)
        fprintf(stderr, "conv_bench: %s: %s\n", keel_status_name(status), keel_detail());
    return keel_status_exit_code(status);
}
