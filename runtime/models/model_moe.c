/* model_moe.c - a GPT whose every second perceptron is a choice of experts (Fedus et al. 2022, "Switch
 * Transformers").
 *
 * A router gives each token probabilities over the experts; the token goes to the likeliest one, and what
 * comes back is weighted by its probability, so that the router learns. An expert takes at most `capacity`
 * times its fair share; tokens beyond go on past it. A loss spreads tokens over experts. Weights of router
 * and experts begin as normal(0, sqrt(0.1 / inputs)), as they found stable. */
#include "model_parts.h"

#include <math.h>

struct experts {
    const struct keel_moe_config *config;
};

static float deviation_of(uint64_t inputs)
{
    return sqrtf(0.1F / (float)inputs);
}

/* One of the two products of all experts: x is sorted by expert. */
static keel_value product(struct keel_graph *graph, const char *prefix, uint32_t experts, keel_value x,
                          keel_value offsets, uint64_t in, uint64_t out)
{
    struct keel_shape weights = {3, {experts, in, out}}, biases = {2, {experts, out}};
    keel_value weight =
        keel_part_matrix(graph, keel_part_name("%s.weight", prefix).text, weights, deviation_of(in));
    keel_value bias = keel_graph_param(
        graph, &(struct keel_param_spec){.name = keel_part_name("%s.bias", prefix).text, .shape = biases});
    return keel_graph_expert_linear(graph, x, weight, bias, offsets);
}

/* Places of an expert: rounded up, and no more than there are tokens. */
static uint32_t places_of(const struct keel_moe_config *config, uint64_t rows)
{
    const uint64_t most = rows < UINT32_MAX ? rows : UINT32_MAX;
    const float places = ceilf(config->capacity * (float)rows / (float)config->experts);
    return places < (float)most ? (uint32_t)places : (uint32_t)most;
}

bool keel_moe_keeps_first(const struct keel_moe_config *config)
{
    return places_of(config, (uint64_t)config->gpt.batch * config->gpt.block) >= config->gpt.block;
}

/* Odd blocks have experts. In a graph that decodes nobody is dropped, which keel_moe_keeps_first is about. */
static keel_value mlp(void *context, struct keel_graph *graph, uint32_t number, keel_value x)
{
    const struct keel_moe_config *config = ((const struct experts *)context)->config;
    if (number % 2 == 0)
        return 0;
    const uint64_t width = config->gpt.width;
    const uint64_t rows = (uint64_t)config->gpt.batch * keel_part_tokens(graph, config->gpt.block);
    const uint32_t places = keel_part_decodes(graph) ? (uint32_t)rows : places_of(config, rows);
    const struct keel_shape flat = {2, {rows, width}}, whole = keel_graph_shape(graph, x);
    x = keel_graph_reshape(graph, x, flat);
    keel_value scores = keel_part_linear(
        graph, keel_part_name("h.%u.moe.router", number).text, x,
        &(struct keel_part_linear){.in = width, .out = config->experts, .deviation = deviation_of(width)});
    keel_value probabilities = keel_graph_softmax(graph, scores);
    keel_value weight, choice, sorted, offsets, place;
    keel_graph_top_k(graph, probabilities, 1, &weight, &choice);
    keel_graph_balance_loss(graph, probabilities, choice, config->balance);
    keel_graph_dispatch(graph, x, choice, config->experts, places, &sorted, &offsets, &place);
    keel_value y = product(graph, keel_part_name("h.%u.moe.c_fc", number).text, config->experts, sorted,
                           offsets, width, 4 * width);
    y = product(graph, keel_part_name("h.%u.moe.c_proj", number).text, config->experts,
                keel_graph_activation(graph, y, KEEL_GELU), offsets, 4 * width, width);
    return keel_graph_reshape(graph, keel_graph_combine(graph, y, place, weight), whole);
}

/* Every second block has experts: one block alone would have none. */
static enum keel_status check_config(const struct keel_moe_config *config)
{
    const struct keel_part_size sizes[] = {{"model.layers", config->gpt.layers, 2, KEEL_MODEL_LAYERS_MAX},
                                           {"model.experts", config->experts, 2, UINT32_MAX}};
    KEEL_TRY(keel_part_check("moe", sizes, sizeof sizes / sizeof sizes[0]));
    if (config->capacity > 0.0F && config->capacity <= (float)KEEL_MOE_CAPACITY_MAX)
        return KEEL_OK;
    return keel_fail(KEEL_INVALID, "moe: model.capacity = %g is out of range: above 0, %d at most",
                     (double)config->capacity, KEEL_MOE_CAPACITY_MAX);
}

enum keel_status keel_model_moe(struct keel_graph *graph, const struct keel_moe_config *config)
{
    KEEL_TRY(keel_part_keep(graph, check_config(config)));
    struct experts experts = {.config = config};
    return keel_gpt_build(graph, &config->gpt,
                          &(struct keel_part_variant){.name = "moe", .mlp = mlp, .context = &experts});
}
