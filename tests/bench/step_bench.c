/* step_bench.c - how long a whole training step takes, and what share of the device's peak that is.
 *
 * One JSON object a line. A step is: zero, one microbatch, norm, clip, AdamW, digest. Device: the first
 * argument, else "auto". The share counts 6 FLOPs a parameter and token (forward, backward) over the FMA
 * rate measured on the same device in the same run; optimizer and attention count as overhead. */
#include "fma_peak.h"

#include <keel/engine.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_MAX = 64 };

struct shape {
    const char *name;
    struct keel_gpt_config gpt;
    uint32_t steps; /* timed */
    double goal;    /* share of peak; 0: none */
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
     40,
     0.0},
    {"gpt2-124m",
     {.layers = 12,
      .heads = 12,
      .width = 768,
      .block = 64,
      .batch = 4,
      .vocab = 50257,
      .bias = true,
      .tied = true},
     5,
     0.15},
};

static uint64_t soon(void)
{
    return keel_deadline_after_ns(300 * KEEL_NS_PER_S);
}

static void print_figure(const char *shape, const char *figure, double value, const char *unit, double goal)
{
    printf("{\"room\":\"runtime\",\"figure\":\"%s %s\",\"value\":%.6g,\"unit\":\"%s\",\"peer\":null,"
           "\"peer_value\":null,\"ratio\":null,",
           shape, figure, value, unit);
    if (goal > 0.0)
        printf("\"goal\":%.6g,\"met\":%s}\n", goal, value >= goal ? "true" : "false");
    else
        printf("\"goal\":null,\"met\":null}\n");
    fflush(stdout);
}

static int compare_times(const void *a, const void *b)
{
    const uint64_t *x = a;
    const uint64_t *y = b;
    return *x < *y ? -1 : *x > *y;
}

static enum keel_status step(struct keel_engine *engine, const int32_t *tokens, uint32_t number)
{
    struct keel_engine_batch batch = {.ids = tokens, .targets = tokens + 1, .seed = 1, .step = number};
    struct keel_engine_update update = {.learning_rate = 1e-4F,
                                        .beta1 = 0.9F,
                                        .beta2 = 0.95F,
                                        .epsilon = 1e-8F,
                                        .weight_decay = 0.1F,
                                        .clip = 1.0F,
                                        .step = number};
    struct keel_engine_updated updated;
    KEEL_TRY(keel_engine_zero(engine));
    KEEL_TRY(keel_engine_microbatch(engine, &batch, NULL, NULL));
    return keel_engine_update(engine, &update, soon(), &updated);
}

static enum keel_status time_steps(struct keel_engine *engine, const struct shape *shape, double peak)
{
    uint32_t rows = shape->gpt.batch * shape->gpt.block;
    struct keel_engine_facts facts;
    uint64_t ns[STEPS_MAX];
    int32_t *tokens = NULL;
    KEEL_TRY(keel_alloc((size_t)rows + 1, sizeof *tokens, (void *)&tokens));
    for (uint32_t i = 0; i <= rows; i++)
        tokens[i] = (int32_t)(((uint64_t)i * 7919 + 13) % shape->gpt.vocab);
    enum keel_status status = step(engine, tokens, 0); /* compiles for its sizes */
    for (uint32_t i = 0; i < shape->steps && status == KEEL_OK; i++) {
        uint64_t since = keel_now_ns();
        status = step(engine, tokens, i + 1);
        ns[i] = keel_now_ns() - since;
    }
    keel_free(tokens);
    KEEL_TRY(status);
    qsort(ns, shape->steps, sizeof *ns, compare_times);
    double seconds = (double)ns[shape->steps / 2] * 1e-9;
    keel_engine_facts(engine, &facts);
    print_figure(shape->name, "step", seconds * 1e3, "ms", 0.0);
    print_figure(shape->name, "throughput", rows / seconds, "tokens/s", 0.0);
    if (peak > 0.0)
        print_figure(shape->name, "share of FMA peak", 6.0 * (double)facts.parameters * rows / seconds / peak,
                     "", shape->goal);
    print_figure(shape->name, "device memory", (double)facts.planned_peak_bytes / 1048576.0, "MiB", 0.0);
    print_figure(shape->name, "arena", (double)facts.activation_bytes / 1048576.0, "MiB", 0.0);
    return KEEL_OK;
}

static enum keel_status bench(struct keel_device *device, struct keel_kernels *kernels,
                              const struct shape *shape, double peak)
{
    struct keel_graph *graph = NULL;
    struct keel_engine *engine = NULL;
    KEEL_TRY(keel_graph_create(&graph));
    struct keel_engine_config config = {.device = device,
                                        .kernels = kernels,
                                        .graph = graph,
                                        .loss_scale = 1.0F / (float)(shape->gpt.batch * shape->gpt.block),
                                        .training = true};
    enum keel_status status = keel_model_gpt(graph, &shape->gpt);
    if (status == KEEL_OK)
        status = keel_engine_create(&config, &engine);
    keel_graph_destroy(graph);
    uint64_t since = keel_now_ns();
    if (status == KEEL_OK)
        status = keel_engine_initialize(engine, 1);
    if (status == KEEL_OK) {
        print_figure(shape->name, "initial weights", (double)(keel_now_ns() - since) * 1e-9, "s", 0.0);
        status = time_steps(engine, shape, peak);
    }
    keel_engine_destroy(engine);
    return status;
}

/* step_bench [DEVICE [SHAPE]] */
int main(int argc, char **argv)
{
    struct keel_device *device = NULL;
    struct keel_kernels *kernels = NULL;
    double peak = 0.0;
    enum keel_status status = keel_device_open(argc > 1 ? argv[1] : "auto", NULL, &device);
    if (status == KEEL_OK)
        status = fma_peak(device, &peak);
    if (status == KEEL_OK)
        status = keel_kernels_create(device, &kernels);
    if (status == KEEL_OK && peak > 0.0)
        print_figure("device", "FMA peak", peak * 1e-9, "GFLOP/s", 0.0);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && status == KEEL_OK; i++)
        if (argc < 3 || strcmp(argv[2], shapes[i].name) == 0)
            status = bench(device, kernels, &shapes[i], peak);
    if (status != KEEL_OK)
        fprintf(stderr, "step_bench: %s: %s\n", keel_status_text(status), keel_detail());
    if (kernels != NULL)
        keel_kernels_destroy(kernels);
    if (device != NULL)
        keel_device_close(device);
    return keel_status_exit_code(status);
}
