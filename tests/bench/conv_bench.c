/* conv_bench.c - what convolutions reach, as a share of the device's FMA peak of the same minutes.
 *
 * One JSON object a line: each distinct convolution of ResNet-18 (He et al. 2016) on 4 images of 224 x 224,
 * forward and both gradients; then all of a step, each as often as the network has it. The peak is measured
 * in the same rounds. Device: the first argument, else "auto". Medians of ROUNDS. */
#include "fma_peak.h"

#include <keel/image_ops.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 5, SHORT_NS = 20000000, BATCH = 4 };

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
static double peak, seconds[LAYERS][KINDS];

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

/* Seconds of one run, the mean of a stretch of at least SHORT_NS. */
static enum keel_status time_once(const struct keel_launch_list *list, double *out)
{
    uint64_t since = keel_now_ns(), spent = 0;
    uint32_t runs = 0;
    while (spent < SHORT_NS) {
        KEEL_TRY(keel_launch_list_run(list, queue));
        KEEL_TRY(keel_queue_finish(queue, keel_deadline_after_ns(60 * KEEL_NS_PER_S)));
        runs++;
        spent = keel_now_ns() - since;
    }
    *out = (double)spent * 1e-9 / runs;
    return KEEL_OK;
}

static int compare_doubles(const void *a, const void *b)
{
    double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}

static enum keel_status measure(const struct layer *layer, int kind, double *out)
{
    struct keel_launch_list list = {0};
    double rounds[ROUNDS] = {0}, now = 0;
    enum keel_status status = append(layer, kind, &list);
    for (int round = -1; round < ROUNDS && status == KEEL_OK; round++) {
        status = fma_measure(&yardstick, &now);
        peak = now > peak ? now : peak;
        if (status == KEEL_OK)
            status = time_once(&list, &rounds[round < 0 ? 0 : round]);
    }
    keel_launch_list_fini(&list);
    qsort(rounds, ROUNDS, sizeof rounds[0], compare_doubles);
    *out = rounds[ROUNDS / 2];
    return status;
}

static void print_line(const char *figure, double value, const char *unit)
{
    printf("{\"room\":\"kernels\",\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",\"peer\":null,\"peer_"
           "value\":null,"
           "\"ratio\":null,\"goal\":null,\"met\":null}\n",
           figure, value, unit);
}

static void report(void)
{
    char figure[160];
    double all_flops = 0, all_seconds = 0;
    for (int i = 0; i < LAYERS; i++)
        for (int kind = 0; kind < KINDS; kind++) {
            const struct layer *l = &layers[i];
            const double rate = flops_of(l) / seconds[i][kind];
            const bool counts = i > 0 || kind != DATA; /* nobody wants the gradient of the images */
            all_flops += counts ? l->times * flops_of(l) : 0;
            all_seconds += counts ? l->times * seconds[i][kind] : 0;
            const int length =
                snprintf(figure, sizeof figure, "conv %ux%ux%u, %u of %ux%u, stride %u, %s", l->size, l->size,
                         l->channels, l->outs, l->kernel, l->kernel, l->stride, kinds[kind]);
            if (peak > 0) /* the host device has none */
                snprintf(figure + length, sizeof figure - (size_t)length, ", %.0f%% of peak",
                         100 * rate / peak);
            print_line(figure, rate * 1e-9, "GFLOP/s");
        }
    print_line("resnet-18, batch 4, all convolutions of a step", all_seconds * 1e3, "ms");
    if (peak > 0)
        print_line("resnet-18, batch 4, all convolutions of a step, share of peak",
                   all_flops / all_seconds / peak, "share");
}

static enum keel_status fill(struct keel_device *device, struct keel_buffer **out, float *data)
{
    KEEL_TRY(keel_buffer_create(device, floats * sizeof(float), out));
    KEEL_TRY(keel_queue_write(queue, *out, 0, data, floats * sizeof(float), NULL, NULL));
    return keel_queue_finish(queue, keel_deadline_after_ns(60 * KEEL_NS_PER_S));
}

static enum keel_status bench(struct keel_device *device)
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
    for (int i = 0; i < LAYERS; i++)
        for (int kind = 0; kind < KINDS; kind++)
            KEEL_TRY(measure(&layers[i], kind, &seconds[i][kind]));
    report();
    fma_close(&yardstick);
    return KEEL_OK;
}

int main(int argc, char **argv)
{
    struct keel_device *device = NULL;
    enum keel_status status = keel_device_open(argc > 1 ? argv[1] : "auto", NULL, &device);
    if (status == KEEL_OK)
        status = bench(device);
    if (status != KEEL_OK)
        fprintf(stderr, "conv_bench: %s: %s\n", keel_status_name(status), keel_detail());
    return keel_status_exit_code(status);
}
