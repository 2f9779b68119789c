/* winograd_bench.c - what the native variant of 3 x 3 convolutions gains over the canonical one.
 *
 * One JSON object a line: the layers of ResNet-18 with stride 1 on 4 and 16 images, forward and the gradient
 * to data. Both on one thread, by its processor time, in turn, ROUNDS times: the median of the ratios of
 * neighbours, so that a busy machine does little harm. A layer where the rule keeps the canonical one is left
 * out. Device: the first argument, else "auto". */
#include <keel/clock.h>
#include <keel/image_ops.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 9, SHORT_NS = 30000000, LIMIT_S = 60, CANONICAL = 0, NATIVE, VARIANTS };

static const uint32_t layers[][2] = {{56, 64}, {28, 128}, {14, 256}, {7, 512}}; /* size, channels */
static const uint32_t batches[] = {4, 16};
static const uint64_t floats = UINT64_C(16) * 56 * 56 * 64;

static struct keel_device *device;
static struct keel_queue *queue;
static struct keel_kernels *kernels[VARIANTS];
static struct keel_buffer *x, *w, *y;

static enum keel_status append(const struct keel_conv_shape *shape, bool back, int variant,
                               const struct keel_conv_workspace *workspace, struct keel_launch_list *list)
{
    if (back)
        return keel_op_conv2d_grad_data(
            kernels[variant],
            &(struct keel_conv2d_grad_data){
                .shape = *shape, .dy = y, .weight = w, .dx = x, .workspace = *workspace},
            list);
    return keel_op_conv2d(
        kernels[variant],
        &(struct keel_conv2d){.shape = *shape, .x = x, .weight = w, .y = y, .workspace = *workspace}, list);
}

static uint64_t processor_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * KEEL_NS_PER_S + (uint64_t)now.tv_nsec;
}

/* Seconds of one run, the mean of a stretch of at least SHORT_NS. */
static enum keel_status time_once(const struct keel_launch_list *list, double *out)
{
    const uint64_t since = processor_ns();
    uint64_t spent = 0;
    uint32_t runs = 0;
    while (spent < SHORT_NS) {
        KEEL_TRY(keel_launch_list_run(list, queue));
        KEEL_TRY(keel_queue_finish(queue, keel_deadline_after_ns(LIMIT_S * KEEL_NS_PER_S)));
        runs++;
        spent = processor_ns() - since;
    }
    *out = (double)spent * 1e-9 / runs;
    return KEEL_OK;
}

static int compare_doubles(const void *a, const void *b)
{
    const double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}

static enum keel_status race(const struct keel_launch_list lists[VARIANTS], const char *name)
{
    double rounds[VARIANTS][ROUNDS], ratios[ROUNDS], unused;
    for (int v = 0; v < VARIANTS; v++)
        KEEL_TRY(time_once(&lists[v], &unused));
    for (int round = 0; round < ROUNDS; round++) {
        for (int v = 0; v < VARIANTS; v++)
            KEEL_TRY(time_once(&lists[v], &rounds[v][round]));
        ratios[round] = rounds[NATIVE][round] / rounds[CANONICAL][round];
    }
    for (int v = 0; v < VARIANTS; v++)
        qsort(rounds[v], ROUNDS, sizeof(double), compare_doubles);
    qsort(ratios, ROUNDS, sizeof(double), compare_doubles);
    printf("{\"room\":\"kernels\",\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"ms\",\"peer\":\"canonical\","
           "\"peer_"
           "value\":%.4g,\"ratio\":%.3f,\"goal\":null,\"met\":null}\n",
           name, rounds[NATIVE][ROUNDS / 2] * 1e3, rounds[CANONICAL][ROUNDS / 2] * 1e3, ratios[ROUNDS / 2]);
    return KEEL_OK;
}

static enum keel_status measure(const struct keel_conv_shape *shape, bool back)
{
    const struct keel_conv_workspace_bytes bytes = keel_conv_workspace_bytes(kernels[NATIVE], shape, back);
    if (bytes.weights == 0)
        return KEEL_OK;
    struct keel_conv_workspace workspace = {0};
    struct keel_launch_list lists[VARIANTS] = {{0}};
    char name[96];
    snprintf(name, sizeof name, "native conv %ux%ux%u by 3x3, batch %u, %s", shape->height, shape->width,
             shape->channels, shape->batch, back ? "data gradient" : "forward");
    enum keel_status status = keel_buffer_create(device, bytes.weights, &workspace.weights);
    if (status == KEEL_OK)
        status = keel_buffer_create(device, bytes.tiles, &workspace.tiles);
    if (status == KEEL_OK)
        status = keel_buffer_create(device, bytes.products, &workspace.products);
    for (int v = 0; v < VARIANTS && status == KEEL_OK; v++)
        status = append(shape, back, v, &workspace, &lists[v]);
    if (status == KEEL_OK)
        status = race(lists, name);
    for (int v = 0; v < VARIANTS; v++)
        keel_launch_list_fini(&lists[v]);
    keel_buffer_destroy(workspace.weights);
    keel_buffer_destroy(workspace.tiles);
    keel_buffer_destroy(workspace.products);
    return status;
}

static enum keel_status fill(struct keel_buffer **out, const float *data)
{
    KEEL_TRY(keel_buffer_create(device, floats * sizeof(float), out));
    KEEL_TRY(keel_queue_write(queue, *out, 0, data, floats * sizeof(float), NULL, NULL));
    return keel_queue_finish(queue, keel_deadline_after_ns(LIMIT_S * KEEL_NS_PER_S));
}

static enum keel_status bench(const char *selector)
{
    float *data = NULL;
    KEEL_TRY(keel_device_open(selector, &(struct keel_device_options){.threads = 1}, &device));
    KEEL_TRY(keel_queue_create(device, &queue));
    for (int v = 0; v < VARIANTS; v++)
        KEEL_TRY(keel_kernels_create_with(
            device, &(struct keel_kernels_options){.numerics = v == NATIVE ? KEEL_NATIVE : KEEL_CANONICAL},
            &kernels[v]));
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, floats * sizeof(float), &data));
    for (uint64_t i = 0; i < floats; i++)
        data[i] = (float)((i * 2654435761U >> 20) % 2048) / 1024.0F - 1.0F;
    KEEL_TRY(fill(&x, data));
    KEEL_TRY(fill(&w, data));
    KEEL_TRY(fill(&y, data));
    for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++)
        for (size_t l = 0; l < sizeof layers / sizeof layers[0]; l++)
            for (int back = 0; back < 2; back++) {
                const uint32_t size = layers[l][0], channels = layers[l][1];
                const struct keel_conv_shape shape = {batches[b], size,   size,   channels, channels,
                                                      {3, 3},     {1, 1}, {1, 1}, {1, 1},   1};
                KEEL_TRY(measure(&shape, back != 0));
            }
    return KEEL_OK;
}

int main(int argc, char **argv)
{
    const enum keel_status status = bench(argc > 1 ? argv[1] : "auto");
    if (status != KEEL_OK)
        fprintf(stderr, "winograd_bench: %s: %s\n", keel_status_name(status), keel_detail());
    return keel_status_exit_code(status);
}
