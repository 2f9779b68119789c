/* model_mixtral.c - a Llama whose perceptrons are a choice of experts (Jiang et al. 2024, "Mixtral of
 * Experts"), with the names of Hugging Face's MixtralForCausalLM, but that w1, w2 and w3 of all experts of a
 * layer are a tensor each, [experts, out, in], which `keel ckpt export --names mixtral` takes apart.
 *
 * A router scores the experts for each token; it goes to the `top_k` likeliest ones, each a SwiGLU, and what
 * comes back is weighted by the softmax of their scores alone. No token is dropped, so a token is computed as
 * if it were alone. A loss spreads tokens over experts (keel_graph_balance_loss), in each layer. */
#include "model_parts.h"

#include <math.h>
#include <stdio.h>

struct experts {
    const struct keel_mixtral_config *config;
    uint64_t hidden;
};

static keel_value weight_of(const struct experts *experts, struct keel_graph *graph, uint32_t number,
                            const char *name, uint64_t out, uint64_t in, float deviation)
{
    const struct keel_shape shape = {3, {experts->config->experts, out, in}};
    const struct keel_part_name whole =
        keel_part_name("model.layers.%u.block_sparse_moe.experts.%s.weight", number, name);
    return keel_part_matrix(graph, whole.text, shape, deviation);
}

/* The router's scores of rows x, and the experts that each goes to with their weights. */
static keel_value choose(const struct keel_mixtral_config *config, struct keel_graph *graph, uint32_t number,
                         keel_value x, keel_value *choice)
{
    const struct keel_shape shape = {2, {config->experts, config->llama.width}};
    const struct keel_part_name name = keel_part_name("model.layers.%u.block_sparse_moe.gate.weight", number);
    keel_value values, scores = keel_graph_linear_transposed(
                           graph, x, keel_part_matrix(graph, name.text, shape, KEEL_PART_DEVIATION));
    keel_graph_top_k(graph, scores, config->top_k, &values, choice);
    keel_graph_balance_loss(graph, keel_graph_softmax(graph, scores), *choice, config->balance);
    return keel_graph_softmax(graph, values);
}

static keel_value mlp(void *context, struct keel_graph *graph, uint32_t number, keel_value x)
{
    const struct experts *experts = context;
    const struct keel_llama_config *llama = &experts->config->llama;
    const uint64_t width = llama->width, hidden = experts->hidden;
    const uint64_t rows = (uint64_t)llama->batch * keel_part_tokens(graph, llama->block);
    const float residual = KEEL_PART_DEVIATION / sqrtf(2.0F * (float)llama->layers);
    const struct keel_shape whole = keel_graph_shape(graph, x);
    keel_value choice, sorted, offsets, place;
    x = keel_graph_reshape(graph, x, (struct keel_shape){2, {rows, width}});
    const keel_value weights = choose(experts->config, graph, number, x, &choice);
    keel_graph_dispatch(graph, x, choice, experts->config->experts, (uint32_t)rows, &sorted, &offsets,
                        &place);
    keel_value w1 = weight_of(experts, graph, number, "w1", hidden, width, KEEL_PART_DEVIATION);
    keel_value w2 = weight_of(experts, graph, number, "w2", width, hidden, residual);
    keel_value w3 = weight_of(experts, graph, number, "w3", hidden, width, KEEL_PART_DEVIATION);
    keel_value gate = keel_graph_expert_linear_transposed(graph, sorted, w1, offsets);
    keel_value up = keel_graph_expert_linear_transposed(graph, sorted, w3, offsets);
    keel_value y =
        keel_graph_expert_linear_transposed(graph, keel_graph_swiglu(graph, gate, up), w2, offsets);
    return keel_graph_reshape(graph, keel_graph_combine(graph, y, place, weights), whole);
}

enum keel_status keel_model_mixtral(struct keel_graph *graph, const struct keel_mixtral_config *config)
{
    const uint32_t most = config->experts < KEEL_MIXTRAL_TOP_MAX ? config->experts : KEEL_MIXTRAL_TOP_MAX;
    const struct keel_part_size sizes[] = {{"model.experts", config->experts, 2, UINT32_MAX},
                                           {"model.top_k", config->top_k, 1, most}};
    KEEL_TRY(keel_part_keep(graph, keel_part_check("mixtral", sizes, sizeof sizes / sizeof sizes[0])));
    struct experts experts = {.config = config, .hidden = keel_llama_hidden(&config->llama)};
    return keel_llama_build(graph, &config->llama,
                            &(struct keel_part_variant){.name = "mixtral", .mlp = mlp, .context = &experts});
}
