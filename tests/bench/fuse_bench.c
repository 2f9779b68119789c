/* fuse_bench.c - what each fusion gains: two engines of one model, one without it, step by step in turn.
 *
 * The models are what a fusion takes in and little else, so that its gain is seen; in a whole model it is a
 * small share. For each: processor time of a step without it over that with it (medians; the time of all
 * threads, so that other programs count less), bytes that the step moves by the index rules, and the arena.
 * The bits are the same: tests/runtime/engine_test.c. fuse_bench [DEVICE [FUSION]]. */
#include <keel/clock.h>
#include <keel/engine.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEPS_MAX = 64, INPUTS_MAX = 2, ROWS = 2048, WIDTH = 768 };

static keel_value param(struct keel_graph *graph, const char *name, struct keel_shape shape)
{
    return keel_graph_param(graph,
                            &(struct keel_param_spec){.name = name, .shape = shape, .deviation = 0.1F});
}

static const struct keel_shape rows_shape = {2, {ROWS, WIDTH}}, width_shape = {1, {WIDTH}};

/* What the pattern is fed with: made by an operation, wanted by parameters, cheap. */
static keel_value made(struct keel_graph *graph, struct keel_shape shape)
{
    keel_value x = param(graph, "x", shape);
    return keel_graph_add(graph, x, x);
}

static void end(struct keel_graph *graph, keel_value y)
{
    keel_graph_mse(graph, y, keel_graph_input(graph, "targets", KEEL_F32, keel_graph_shape(graph, y)));
}

static void build_gelu(struct keel_graph *graph)
{
    keel_value w = param(graph, "w", (struct keel_shape){2, {WIDTH, WIDTH}});
    const keel_value up = keel_graph_linear(graph, made(graph, rows_shape), w, 0);
    end(graph, keel_graph_activation(graph, up, KEEL_GELU));
}

static void build_residual(struct keel_graph *graph)
{
    keel_value w = param(graph, "w", (struct keel_shape){2, {WIDTH, WIDTH}}), x = made(graph, rows_shape);
    end(graph, keel_graph_add(graph, x, keel_graph_linear(graph, x, w, 0)));
}

static void build_norm(struct keel_graph *graph)
{
    keel_value x = made(graph, rows_shape), gamma = param(graph, "gamma", width_shape);
    end(graph, keel_graph_add(graph, x, keel_graph_layernorm(graph, x, gamma, 0)));
}

static void build_dropout(struct keel_graph *graph)
{
    keel_value x = made(graph, rows_shape);
    end(graph, keel_graph_add(graph, x, keel_graph_dropout(graph, x, 0.1F)));
}

/* As a block of a residual network ends. */
static void build_image(struct keel_graph *graph)
{
    static const char *const names[4] = {"gamma", "beta", "mean", "variance"};
    keel_value x = made(graph, (struct keel_shape){4, {8, 32, 32, 192}}), p[4];
    for (int i = 0; i < 4; i++)
        p[i] = keel_graph_param(graph, &(struct keel_param_spec){.name = names[i],
                                                                 .shape = {1, {192}},
                                                                 .fill = 1.0F,
                                                                 .statistic = i >= 2,
                                                                 .momentum = i >= 2 ? 0.1F : 0.0F});
    keel_value y = keel_graph_batch_norm(graph, x, p[0], p[1], p[2], p[3]);
    end(graph, keel_graph_activation(graph, keel_graph_add(graph, y, x), KEEL_RELU));
}

/* Two full chunks and a rest. */
static void build_loss(struct keel_graph *graph)
{
    enum { LOSS_ROWS = 2560, LOSS_WIDTH = 256, VOCAB = 8192 };
    keel_value x = made(graph, (struct keel_shape){2, {LOSS_ROWS, LOSS_WIDTH}});
    keel_value table = param(graph, "table", (struct keel_shape){2, {VOCAB, LOSS_WIDTH}});
    keel_value targets = keel_graph_input(graph, "targets", KEEL_I32, (struct keel_shape){1, {LOSS_ROWS}});
    keel_graph_cross_entropy(graph, keel_graph_linear_transposed(graph, x, table), targets);
}

static const struct fusion {
    const char *name;
    uint32_t steps;
    void (*build)(struct keel_graph *);
} table[] = {
    {"fuse-gelu", 25, build_gelu},       {"fuse-residual", 25, build_residual}, {"fuse-norm", 63, build_norm},
    {"fuse-dropout", 63, build_dropout}, {"fuse-image", 63, build_image},       {"fuse-loss", 9, build_loss},
};

static void print_figure(const char *fusion, const char *figure, double value, const char *unit)
{
    printf("{\"room\":\"runtime\",\"figure\":\"%s: %s\",\"value\":%.6g,\"unit\":\"%s\",\"peer\":null,"
           "\"peer_value\":null,\"ratio\":null,\"goal\":null,\"met\":null}\n",
           fusion, figure, value, unit);
    fflush(stdout);
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

static double processor_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* One microbatch of numbers that are ids and classes, or floats near 0, as the input is. */
static enum keel_status fill_inputs(const struct keel_engine *engine, void **out)
{
    for (uint32_t i = 0; i < keel_engine_input_count(engine); i++) {
        const struct keel_engine_input *input = keel_engine_input(engine, i);
        const struct keel_control control = {.seed_lo = i};
        int32_t *ids = NULL;
        KEEL_TRY(keel_alloc(input->bytes / 4, sizeof *ids, (void *)&ids));
        out[i] = ids;
        float *floats = out[i];
        for (uint64_t e = 0; e < input->bytes / 4; e++)
            if (input->dtype == KEEL_I32)
                ids[e] = (int32_t)(keel_random_u32(&control, 0, e) % 10);
            else
                floats[e] = keel_random_uniform(&control, 0, e) - 0.5F;
    }
    return KEEL_OK;
}

static enum keel_status step(struct keel_engine *engine, void *const *inputs, double *seconds)
{
    struct keel_engine_batch batch = {.inputs = (const void *const *)inputs, .seed = 1};
    double since = processor_seconds();
    KEEL_TRY(keel_engine_zero(engine));
    KEEL_TRY(keel_engine_microbatch(engine, &batch));
    KEEL_TRY(keel_queue_finish(keel_engine_queue(engine), keel_deadline_after_ns(300 * KEEL_NS_PER_S)));
    *seconds = processor_seconds() - since;
    return KEEL_OK;
}

/* engines[0] is without the fusion. */
static enum keel_status race(const struct fusion *fusion, struct keel_engine *const engines[2],
                             void *const *inputs)
{
    double seconds[2][STEPS_MAX];
    double warm;
    for (int i = 0; i < 2; i++) {
        KEEL_TRY(keel_engine_initialize(engines[i], 1));
        KEEL_TRY(step(engines[i], inputs, &warm));
    }
    for (uint32_t s = 0; s < fusion->steps; s++)
        for (uint32_t i = 0; i < 2; i++)
            KEEL_TRY(step(engines[(i + s) % 2], inputs, &seconds[(i + s) % 2][s]));
    struct keel_engine_facts facts[2];
    for (int i = 0; i < 2; i++)
        keel_engine_facts(engines[i], &facts[i]);
    double with = median(seconds[1], fusion->steps);
    print_figure(fusion->name, "processor time of a step with it", with * 1e3, "ms");
    print_figure(fusion->name, "processor time without over with", median(seconds[0], fusion->steps) / with,
                 "");
    print_figure(fusion->name, "moved with it", (double)facts[1].moved_per_microbatch / 1048576.0, "MiB");
    print_figure(fusion->name, "moved without it", (double)facts[0].moved_per_microbatch / 1048576.0, "MiB");
    print_figure(fusion->name, "arena with it", (double)facts[1].activation_bytes / 1048576.0, "MiB");
    print_figure(fusion->name, "arena without it", (double)facts[0].activation_bytes / 1048576.0, "MiB");
    return KEEL_OK;
}

static enum keel_status bench(struct keel_device *device, struct keel_kernels *kernels,
                              const struct fusion *fusion)
{
    struct keel_graph *graph = NULL;
    struct keel_engine *engines[2] = {NULL, NULL};
    void *inputs[INPUTS_MAX] = {NULL};
    KEEL_TRY(keel_graph_create(&graph));
    fusion->build(graph);
    enum keel_status status = keel_graph_status(graph);
    for (int i = 0; i < 2 && status == KEEL_OK; i++) {
        struct keel_engine_config config = {.device = device,
                                            .kernels = kernels,
                                            .graph = graph,
                                            .training = true,
                                            .passes_off = i == 0 ? fusion->name : ""};
        status = keel_engine_create(&config, &engines[i]);
    }
    keel_graph_destroy(graph);
    if (status == KEEL_OK)
        status = fill_inputs(engines[0], inputs);
    if (status == KEEL_OK)
        status = race(fusion, engines, inputs);
    for (uint32_t i = 0; i < INPUTS_MAX; i++)
        keel_free(inputs[i]);
    keel_engine_destroy(engines[0]);
    keel_engine_destroy(engines[1]);
    return status;
}

int main(int argc, char **argv)
{
    struct keel_device *device = NULL;
    struct keel_kernels *kernels = NULL;
    enum keel_status status = keel_device_open(argc > 1 ? argv[1] : "auto", NULL, &device);
    if (status == KEEL_OK)
        status = keel_kernels_create(device, &kernels);
    for (size_t i = 0; i < sizeof table / sizeof *table && status == KEEL_OK; i++)
        if (argc < 3 || strcmp(argv[2], table[i].name) == 0)
            status = bench(device, kernels, &table[i]);
    if (status != KEEL_OK)
        fprintf(stderr, "fuse_bench: %s: %s\n", keel_status_text(status), keel_detail());
    if (kernels != NULL)
        keel_kernels_destroy(kernels);
    if (device != NULL)
        keel_device_close(device);
    return keel_status_exit_code(status);
}
