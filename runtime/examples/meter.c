/* meter.c - a model of your own, trained on the host device: what a meter will read, from what it measures.
 *
 * An example for libkeel, to be copied from. The model is a function of the graph's builder; gradients,
 * memory and launches follow from it. Here: readings are smoothed, one block with attention over time and a
 * gated layer says how much is added at each time, and the sum of that so far must be the meter. Its hidden
 * layer is cut into two slices of the tensor axis: the bits are those of two devices that hold one each.
 *
 *     cc meter.c $(pkg-config --cflags --libs keel) -o meter
 *     ./meter [STEPS [FILE]]      # FILE: where the graph is written as text */
#include <keel/clock.h>
#include <keel/engine.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    BATCH = 8,
    READINGS = 32,
    TIMES = READINGS / 2,
    WIDTH = 16,
    HEADS = 2,
    HIDDEN = 32,
    SCORED = TIMES / 2
};
enum { SLICES = 2 };
#define LIMIT_NS (60 * KEEL_NS_PER_S)

static float readings[BATCH * READINGS * WIDTH], meter[BATCH * SCORED];

/* ---- the model ----------------------------------------------------------------------------------------- */

static keel_value weight(struct keel_graph *graph, const char *name, uint64_t rows, uint64_t columns)
{
    const struct keel_param_spec spec = {
        .name = name, .shape = {2, {rows, columns}}, .deviation = 0.1F, .decay = true};
    return keel_graph_param(graph, &spec);
}

static keel_value norm(struct keel_graph *graph, keel_value x, const char *name)
{
    const struct keel_param_spec gamma = {.name = name, .shape = {1, {WIDTH}}, .fill = 1.0F};
    return keel_graph_rms_norm(graph, x, keel_graph_param(graph, &gamma));
}

/* Attention over time: a reading sees those before it. */
static keel_value attend(struct keel_graph *graph, keel_value x)
{
    const struct keel_attention_spec spec = {.heads = HEADS};
    keel_value qkv =
        keel_graph_linear(graph, norm(graph, x, "norm1"), weight(graph, "qkv", WIDTH, 3 * WIDTH), 0);
    keel_value seen = keel_graph_attention(graph, keel_graph_rotary(graph, qkv, HEADS, 10000.0F), &spec);
    return keel_graph_add(graph, x, keel_graph_linear(graph, seen, weight(graph, "mix", WIDTH, WIDTH), 0));
}

/* The gated layer; reshard cuts its columns into slices by hand. */
static keel_value feed(struct keel_graph *graph, keel_value x)
{
    const struct keel_axis_spec columns = {.kind = KEEL_SPLIT, .dim = 2};
    keel_value y = norm(graph, x, "norm2");
    keel_value gate = keel_graph_linear(graph, y, weight(graph, "gate", WIDTH, HIDDEN), 0);
    keel_value up = keel_graph_linear(graph, y, weight(graph, "up", WIDTH, HIDDEN), 0);
    keel_value hidden = keel_graph_swiglu(graph, keel_graph_reshard(graph, gate, KEEL_AXIS_TENSOR, columns),
                                          keel_graph_reshard(graph, up, KEEL_AXIS_TENSOR, columns));
    return keel_graph_add(graph, x,
                          keel_graph_linear(graph, hidden, weight(graph, "down", HIDDEN, WIDTH), 0));
}

static struct keel_graph *build(void)
{
    struct keel_graph *graph;
    if (keel_graph_create(&graph) != KEEL_OK)
        exit(1);
    keel_value x =
        keel_graph_input(graph, "readings", KEEL_F32, (struct keel_shape){4, {BATCH, READINGS, 1, WIDTH}});
    keel_value wanted =
        keel_graph_input(graph, "meter", KEEL_F32, (struct keel_shape){3, {BATCH, 1, SCORED}});
    x = keel_graph_avg_pool(graph, x, &(struct keel_pool_spec){.kernel = {2, 1}});
    x = keel_graph_reshape(graph, x, (struct keel_shape){3, {BATCH, TIMES, WIDTH}});
    x = keel_graph_linear(graph, x, weight(graph, "in", WIDTH, WIDTH), 0);
    x = feed(graph, attend(graph, x));
    keel_value added = keel_graph_linear(graph, x, weight(graph, "out", WIDTH, 1), 0);
    added = keel_graph_permute(graph, added, (const uint32_t[]){0, 2, 1}); /* time last: cumsum runs there */
    keel_value sum = keel_graph_cumsum(graph, added);
    keel_value scored = keel_graph_slice(graph, sum, 2, TIMES - SCORED, SCORED);
    keel_graph_mse(graph, scored, wanted);
    keel_graph_output(graph, scored);
    return graph;
}

/* ---- the data, and a step ------------------------------------------------------------------------------ */

/* The meter adds a quarter of the first two of each pair of readings. */
static void draw(uint64_t *state)
{
    for (uint32_t i = 0; i < BATCH * READINGS * WIDTH; i++) {
        *state = *state * UINT64_C(6364136223846793005) + 1;
        readings[i] = (float)(*state >> 40) / 16777216.0F - 0.5F;
    }
    for (uint32_t b = 0; b < BATCH; b++) {
        float sum = 0;
        for (uint32_t t = 0; t < TIMES; t++) {
            const float *pair = readings + ((size_t)b * READINGS + 2 * t) * WIDTH;
            sum += (pair[0] + pair[1] + pair[WIDTH] + pair[WIDTH + 1]) / 4;
            if (t >= TIMES - SCORED)
                meter[b * SCORED + t - (TIMES - SCORED)] = sum;
        }
    }
}

static enum keel_status step(struct keel_engine *engine, uint32_t number, float *loss)
{
    const void *inputs[] = {readings, meter};
    const struct keel_engine_batch batch = {.inputs = inputs, .seed = 1, .step = number};
    const struct keel_engine_update update = {
        .settings = {.beta1 = 0.9F, .beta2 = 0.99F, .epsilon = 1e-8F, .max_norm = 1.0F},
        .learning_rate = 3e-3F,
        .step = number};
    struct keel_engine_updated done;
    KEEL_TRY(keel_engine_zero(engine));
    KEEL_TRY(keel_engine_microbatch(engine, &batch));
    KEEL_TRY(keel_engine_update(engine, &update, keel_deadline_after_ns(LIMIT_NS), &done));
    return keel_engine_eval(engine, &batch, keel_deadline_after_ns(LIMIT_NS), loss);
}

static enum keel_status train(struct keel_engine *engine, uint32_t steps)
{
    uint64_t state = 7, digest;
    float loss = 0;
    KEEL_TRY(keel_engine_initialize(engine, 1));
    for (uint32_t number = 0; number < steps; number++) {
        draw(&state);
        KEEL_TRY(step(engine, number, &loss));
        if (number == 0 || number + 1 == steps)
            printf("step %u: loss %.4f\n", number + 1, (double)loss);
    }
    KEEL_TRY(keel_engine_digest(engine, keel_deadline_after_ns(LIMIT_NS), &digest));
    printf("digest of the weights: %016llx\n", (unsigned long long)digest);
    return KEEL_OK;
}

int main(int argc, char **argv)
{
    const uint32_t steps = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 200;
    struct keel_device *device = NULL;
    struct keel_kernels *kernels = NULL;
    struct keel_engine *engine = NULL;
    struct keel_graph *graph = build();
    enum keel_status status = keel_graph_status(graph);
    if (status == KEEL_OK && argc > 2)
        status = keel_graph_dump(graph, argv[2]);
    if (status == KEEL_OK)
        status = keel_device_open("host", NULL, &device);
    if (status == KEEL_OK)
        status = keel_kernels_create(device, &kernels);
    const struct keel_engine_config config = {
        .device = device, .kernels = kernels, .graph = graph, .tensor = SLICES, .training = true};
    if (status == KEEL_OK)
        status = keel_engine_create(&config, &engine);
    if (status == KEEL_OK)
        status = train(engine, steps);
    if (status != KEEL_OK)
        fprintf(stderr, "meter: %s: %s\n", keel_status_text(status), keel_detail());
    keel_engine_destroy(engine);
    keel_kernels_destroy(kernels);
    if (device != NULL)
        keel_device_close(device);
    keel_graph_destroy(graph);
    printf("blocks of memory left: %llu\n", (unsigned long long)keel_memory_stats().live_blocks);
    return keel_status_exit_code(status);
}
