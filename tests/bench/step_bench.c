/* step_bench.c - how long a whole training step takes, and what share of the device's peak that is.
 *
 * One JSON object a line. A step is: zero, one microbatch, norm, clip, update, digest; the update is AdamW,
 * of ResNet-18 (4 images of 224 x 224) SGD with momentum and no clipping. Device: the first argument, else
 * "auto". The share counts, of a GPT, 6 FLOPs a parameter and token (forward, backward), of ResNet-18 the
 * products of its convolutions, over the FMA rate of the same device, measured before each step; all else
 * counts as overhead. What slices of the tensor axis cost on one device (job.tensor) is told of steps in
 * turn, with and without, as the medians of the pairs' ratios. All figures are medians. */
#include "fma_peak.h"

#include <keel/engine.h>
#include <keel/memory.h>
#include <keel/models.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { STEPS_MAX = 64 };

struct shape {
    const char *name;
    struct keel_gpt_config gpt;
    struct keel_resnet_config resnet; /* where it has stages */
    uint32_t steps;                   /* timed */
    double goal;                      /* share of peak; 0: none */
    uint32_t slices;                  /* 0: none, else all that is told is what they cost */
};
static const struct shape shapes[] = {
    {"demo",
     {.layers = 4,
      .heads = 4,
      .width = 128,
      .block = 64,
      .batch = 4,
      .vocab = 80,
      .bias = true,
      .tied = true},
     .steps = 40},
    {"gpt2-124m",
     {.layers = 12,
      .heads = 12,
      .width = 768,
      .block = 64,
      .batch = 4,
      .vocab = 50257,
      .bias = true,
      .tied = true},
     .steps = 5,
     .goal = 0.15},
    {"gpt2-124m-slices",
     {.layers = 12,
      .heads = 12,
      .width = 768,
      .block = 64,
      .batch = 4,
      .vocab = 50257,
      .bias = true,
      .tied = true},
     .steps = 11,
     .slices = 8},
    {"small-slices",
     {.layers = 4,
      .heads = 8,
      .width = 256,
      .block = 64,
      .batch = 4,
      .vocab = 8192,
      .bias = true,
      .tied = true},
     .steps = 31,
     .slices = 8},
    {"gpt2-124m-1024",
     {.layers = 12,
      .heads = 12,
      .width = 768,
      .block = 1024,
      .batch = 4,
      .vocab = 50257,
      .bias = true,
      .tied = true},
     .steps = 2},
    {"resnet-18",
     .resnet = {.stages = 4,
                .blocks = 2,
                .width = 64,
                .large_stem = true,
                .height = 224,
                .image_width = 224,
                .channels = 3,
                .classes = 1000,
                .batch = 4},
     .steps = 7},
};

static bool processor_time; /* of one thread, which other programs on the machine disturb less */
static double now_s(bool processor)
{
    struct timespec now;
    clock_gettime(processor ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static uint64_t soon(void)
{
    return keel_deadline_after_ns(300 * KEEL_NS_PER_S);
}

/* `most`: the goal is not to be exceeded. */
static void print_goal(const char *shape, const char *figure, double value, const char *unit, double goal,
                       bool most)
{
    printf("{\"room\":\"runtime\",\"figure\":\"%s %s\",\"value\":%.6g,\"unit\":\"%s\",\"peer\":null,"
           "\"peer_value\":null,\"ratio\":null,",
           shape, figure, value, unit);
    if (goal > 0.0)
        printf("\"goal\":%.6g,\"met\":%s}\n", goal,
               (most ? value <= goal : value >= goal) ? "true" : "false");
    else
        printf("\"goal\":null,\"met\":null}\n");
    fflush(stdout);
}

static void print_figure(const char *shape, const char *figure, double value, const char *unit, double goal)
{
    print_goal(shape, figure, value, unit, goal, false);
}

static int compare_doubles(const void *a, const void *b)
{
    const double *x = a;
    const double *y = b;
    return *x < *y ? -1 : *x > *y;
}

static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, compare_doubles);
    return values[count / 2];
}

static bool of_images(const struct shape *shape)
{
    return shape->resnet.stages > 0;
}
/* Tokens, or images. */
static uint32_t samples(const struct shape *shape)
{
    return of_images(shape) ? shape->resnet.batch : shape->gpt.batch * shape->gpt.block;
}

static enum keel_status step(struct keel_engine *engine, const struct shape *shape,
                             const void *const inputs[2], uint32_t number)
{
    struct keel_engine_batch batch = {.inputs = inputs, .seed = 1, .step = number};
    struct keel_engine_update update = {.learning_rate = 1e-4F,
                                        .step = number,
                                        .settings = {.beta1 = 0.9F,
                                                     .beta2 = 0.95F,
                                                     .epsilon = 1e-8F,
                                                     .momentum = 0.9F,
                                                     .weight_decay = of_images(shape) ? 1e-4F : 0.1F,
                                                     .max_norm = of_images(shape) ? 0.0F : 1.0F}};
    struct keel_engine_updated updated;
    KEEL_TRY(keel_engine_zero(engine));
    KEEL_TRY(keel_engine_microbatch(engine, &batch));
    return keel_engine_update(engine, &update, soon(), &updated);
}

struct times {
    double step, processor, peak; /* of a step, by the clock and over all threads; FLOP/s */
};
static enum keel_status time_steps(struct keel_engine *engine, const struct shape *shape,
                                   const void *const inputs[2], struct fma_bench *fma, struct times *out)
{
    double seconds[STEPS_MAX], processor[STEPS_MAX], peak[STEPS_MAX];
    KEEL_TRY(step(engine, shape, inputs, 0)); /* compiles for its sizes */
    for (uint32_t i = 0; i < shape->steps; i++) {
        double since = now_s(processor_time);
        KEEL_TRY(fma_measure(fma, &peak[i]));
        peak[i] = processor_time ? fma_flops(fma) / (now_s(true) - since) : peak[i];
        since = now_s(processor_time);
        const double spent = now_s(true);
        KEEL_TRY(step(engine, shape, inputs, i + 1));
        seconds[i] = now_s(processor_time) - since;
        processor[i] = now_s(true) - spent;
    }
    *out = (struct times){median(seconds, shape->steps), median(processor, shape->steps),
                          median(peak, shape->steps)};
    return KEEL_OK;
}

/* What ranks compare behind each step, in a pass of its own: in a step it reads weights that are at hand. */
static void report_digest(struct keel_engine *engine, const struct shape *shape, const struct times *times)
{
    uint64_t digest;
    double least = 0.0;
    for (int i = 0; i < 3; i++) {
        const double since = now_s(true);
        if (keel_engine_digest(engine, soon(), &digest) != KEEL_OK)
            return;
        const double spent = now_s(true) - since;
        least = i == 0 || spent < least ? spent : least;
    }
    print_figure(shape->name, "processor time of a digest alone", least * 1e3, "ms", 0.0);
    print_goal(shape->name, "the same, of a step", least / times->processor, "", 0.005, true);
}

static void report(struct keel_engine *engine, const struct shape *shape, const struct times *times)
{
    struct keel_engine_facts facts;
    keel_engine_facts(engine, &facts);
    const double flops = of_images(shape) ? (double)facts.flops_per_microbatch
                                          : 6.0 * (double)facts.parameters * samples(shape);
    print_figure(shape->name, "step", times->step * 1e3, "ms", 0.0);
    print_figure(shape->name, "processor time", times->processor * 1e3, "ms", 0.0);
    report_digest(engine, shape, times);
    print_figure(shape->name, "throughput", samples(shape) / times->step,
                 of_images(shape) ? "images/s" : "tokens/s", 0.0);
    if (times->peak > 0.0) {
        print_figure(shape->name, "FMA peak", times->peak * 1e-9, "GFLOP/s", 0.0);
        print_figure(shape->name, "share of FMA peak", flops / times->step / times->peak, "", shape->goal);
    }
    print_figure(shape->name, "device memory", (double)facts.planned_peak_bytes / 1048576.0, "MiB", 0.0);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    print_figure(shape->name, "peak memory", (double)usage.ru_maxrss / 1024.0, "MiB",
                 0.0); /* of the process */
    print_figure(shape->name, "arena", (double)facts.activation_bytes / 1048576.0, "MiB", 0.0);
}

/* Steps of both engines in turn, each first in every other pair: `sliced` over `plain`. */
static enum keel_status time_slices(struct keel_engine *plain, struct keel_engine *sliced,
                                    const struct shape *shape, const void *const inputs[2])
{
    double wall[2], processor[2], wall_ratios[STEPS_MAX], ratios[STEPS_MAX];
    KEEL_TRY(step(plain, shape, inputs, 0)); /* compiles for its sizes */
    KEEL_TRY(step(sliced, shape, inputs, 0));
    for (uint32_t pair = 0; pair < shape->steps; pair++) {
        for (uint32_t turn = 0; turn < 2; turn++) {
            const uint32_t which = (pair + turn) % 2;
            wall[which] = now_s(false);
            processor[which] = now_s(true);
            KEEL_TRY(step(which == 0 ? plain : sliced, shape, inputs, pair + 1));
            wall[which] = now_s(false) - wall[which];
            processor[which] = now_s(true) - processor[which];
        }
        wall_ratios[pair] = wall[1] / wall[0];
        ratios[pair] = processor[1] / processor[0];
    }
    char figure[64];
    snprintf(figure, sizeof figure, "step, %u slices over one piece", shape->slices);
    print_goal(shape->name, figure, median(wall_ratios, shape->steps), "", 1.03, true);
    snprintf(figure, sizeof figure, "processor time, %u slices over one piece", shape->slices);
    print_goal(shape->name, figure, median(ratios, shape->steps), "", 1.03, true);
    return KEEL_OK;
}

/* Random text: one token more than a batch, since targets are the ids one further. Or noise as images, and
 * labels. `sliced`: another engine of the same model, or NULL. */
static enum keel_status time_random_data(struct keel_engine *engine, struct keel_engine *sliced,
                                         const struct shape *shape, struct fma_bench *fma, struct times *out)
{
    const struct keel_resnet_config *resnet = &shape->resnet;
    const uint32_t pixels =
        of_images(shape) ? samples(shape) * resnet->height * resnet->image_width * resnet->channels : 0;
    const uint32_t classes = of_images(shape) ? resnet->classes : shape->gpt.vocab;
    struct keel_control control = {.seed_lo = 1};
    int32_t *numbers = NULL;
    float *images = NULL;
    KEEL_TRY(keel_alloc(samples(shape) + 1, sizeof *numbers, (void *)&numbers));
    enum keel_status status = keel_alloc(pixels + 1, sizeof *images, (void *)&images);
    for (uint32_t i = 0; i <= samples(shape) && status == KEEL_OK; i++)
        numbers[i] = (int32_t)(keel_random_u32(&control, 0, i) % classes);
    for (uint32_t i = 0; i < pixels && status == KEEL_OK; i++)
        images[i] = (float)(keel_random_u32(&control, 1, i) >> 8) * 0x1p-23F - 1.0F;
    const void *const inputs[2] = {of_images(shape) ? (const void *)images : numbers,
                                   of_images(shape) ? numbers : numbers + 1};
    if (status == KEEL_OK)
        status = sliced != NULL ? time_slices(engine, sliced, shape, inputs)
                                : time_steps(engine, shape, inputs, fma, out);
    keel_free(images);
    keel_free(numbers);
    return status;
}

static enum keel_status make(struct keel_device *device, struct keel_kernels *kernels,
                             const struct shape *shape, uint32_t slices, struct keel_engine **out)
{
    struct keel_graph *graph = NULL;
    KEEL_TRY(keel_graph_create(&graph));
    struct keel_engine_config config = {.device = device,
                                        .kernels = kernels,
                                        .graph = graph,
                                        .training = true,
                                        .tensor = slices,
                                        .optimizer =
                                            of_images(shape) ? KEEL_OPTIMIZER_SGD : KEEL_OPTIMIZER_ADAMW};
    enum keel_status status =
        of_images(shape) ? keel_model_resnet(graph, &shape->resnet) : keel_model_gpt(graph, &shape->gpt);
    if (status == KEEL_OK)
        status = keel_engine_create(&config, out);
    keel_graph_destroy(graph);
    return status;
}

static enum keel_status bench(struct keel_device *device, struct keel_kernels *kernels,
                              const struct shape *shape, struct fma_bench *fma)
{
    struct keel_engine *engine = NULL, *sliced = NULL;
    struct times times = {.step = 0.0};
    enum keel_status status = make(device, kernels, shape, 1, &engine);
    uint64_t since = keel_now_ns();
    if (status == KEEL_OK)
        status = keel_engine_initialize(engine, 1);
    if (status == KEEL_OK && shape->slices == 0)
        print_figure(shape->name, "initial weights", (double)(keel_now_ns() - since) * 1e-9, "s", 0.0);
    if (status == KEEL_OK && shape->slices > 0)
        status = make(device, kernels, shape, shape->slices, &sliced);
    if (status == KEEL_OK && sliced != NULL)
        status = keel_engine_initialize(sliced, 1);
    if (status == KEEL_OK)
        status = time_random_data(engine, sliced, shape, fma, &times);
    if (status == KEEL_OK && shape->slices == 0)
        report(engine, shape, &times);
    keel_engine_destroy(sliced);
    keel_engine_destroy(engine);
    return status;
}

/* step_bench [DEVICE [SHAPE [THREADS [native]]]]: with one thread times are the processor's. */
int main(int argc, char **argv)
{
    struct keel_device *device = NULL;
    struct keel_kernels *kernels = NULL;
    struct fma_bench fma = {.kernel = NULL};
    struct keel_device_options options = {.threads = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0};
    const struct keel_kernels_options with = {.numerics =
                                                  argc > 4 ? keel_class_find(argv[4]) : KEEL_CANONICAL};
    processor_time = options.threads == 1;
    enum keel_status status = keel_device_open(argc > 1 ? argv[1] : "auto", &options, &device);
    if (status == KEEL_OK)
        status = fma_open(device, &fma);
    if (status == KEEL_OK)
        status = keel_kernels_create_with(device, &with, &kernels);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && status == KEEL_OK; i++)
        if (argc < 3 || strcmp(argv[2], shapes[i].name) == 0)
            status = bench(device, kernels, &shapes[i], &fma);
    if (status != KEEL_OK)
        fprintf(stderr, "step_bench: %s: %s\n", keel_status_text(status), keel_detail());
    fma_close(&fma);
    if (kernels != NULL)
        keel_kernels_destroy(kernels);
    if (device != NULL)
        keel_device_close(device);
    return keel_status_exit_code(status);
}
