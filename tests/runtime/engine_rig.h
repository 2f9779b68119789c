/* engine_rig.h - a GPT on one device, and microbatches for it: for the tests of the engine. */
#ifndef KEEL_TESTS_ENGINE_RIG_H
#define KEEL_TESTS_ENGINE_RIG_H

#include "harness.h"

#include <keel/clock.h>
#include <keel/engine.h>
#include <keel/memory.h>
#include <keel/models.h>
#include <string.h>

static uint64_t soon(void)
{
    return keel_deadline_after_ns(60 * KEEL_NS_PER_S);
}

/* One device with one engine; `config` is what the engine was made of. */
struct engine_rig {
    struct keel_device *device;
    struct keel_kernels *kernels;
    struct keel_engine *engine;
    struct keel_gpt_config gpt;
    uint32_t rows; /* tokens of a microbatch */
};

/* `options` gives training, passes_off, ...; the rest is filled in. Its graph, if it has one, is another
 * model of gpt's vocabulary, batch and block. */
static void engine_rig_open(struct engine_rig *rig, const char *selector, struct keel_gpt_config gpt,
                            struct keel_engine_config options)
{
    *rig = (struct engine_rig){.gpt = gpt, .rows = gpt.batch * gpt.block};
    ck_ok(keel_device_open(selector, NULL, &rig->device));
    ck_ok(keel_kernels_create(rig->device, &rig->kernels));
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    ck_ok(keel_model_gpt(graph, &gpt));
    options.device = rig->device;
    options.kernels = rig->kernels;
    options.graph = options.graph != NULL ? options.graph : graph;
    ck_ok(keel_engine_create(&options, &rig->engine));
    keel_graph_destroy(graph);
}

static void engine_rig_close(struct engine_rig *rig)
{
    keel_engine_destroy(rig->engine);
    keel_kernels_destroy(rig->kernels);
    ck_assert_uint_eq(keel_device_stats(rig->device).live_bytes, 0);
    keel_device_close(rig->device);
}

/* Ids and targets of a microbatch: a fixed pattern of `number`. */
enum { TOKENS_MAX = 4096 };
struct tokens {
    int32_t ids[TOKENS_MAX], targets[TOKENS_MAX];
    const void *inputs[2]; /* both, as the engine takes them */
};
static void fill_tokens(const struct engine_rig *rig, uint32_t number, struct tokens *out)
{
    ck_assert_uint_le(rig->rows, TOKENS_MAX);
    out->inputs[0] = out->ids;
    out->inputs[1] = out->targets;
    for (uint32_t i = 0; i < rig->rows; i++) {
        out->ids[i] = (int32_t)((i * 7 + number * 13 + i * i) % rig->gpt.vocab);
        out->targets[i] = (int32_t)((i * 5 + number * 3 + 1) % rig->gpt.vocab);
    }
}

static struct keel_engine_batch batch_of(const struct tokens *tokens, uint32_t step, uint32_t microbatch)
{
    return (struct keel_engine_batch){
        .inputs = tokens->inputs, .seed = 42, .step = step, .microbatch = microbatch};
}

static void read_floats(struct engine_rig *rig, struct keel_buffer *buffer, uint64_t first, float *out,
                        uint64_t count)
{
    struct keel_queue *queue = keel_engine_queue(rig->engine);
    ck_ok(keel_queue_read(queue, buffer, first * sizeof(float), out, count * sizeof(float), NULL, NULL));
    ck_ok(keel_queue_finish(queue, soon()));
}

static inline float read_loss(struct engine_rig *rig)
{
    float loss;
    read_floats(rig, keel_engine_loss(rig->engine), 0, &loss, 1);
    return loss;
}

#endif
