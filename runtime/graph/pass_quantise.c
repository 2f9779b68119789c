/* pass_quantise.c - linear layers whose weights have few bits: for graphs that are evaluated. */
#include "ops.h"

#include <keel/kernels.h>

/* The linear layer that all who read a parameter are; KEEL_OP_NONE: nobody reads it, or something else does.
 */
static uint32_t product_of(const struct keel_graph *graph, keel_value weight)
{
    uint32_t found = KEEL_OP_NONE;
    for (uint32_t n = 0; n < graph->node_count; n++) {
        const struct keel_ir_node *node = &graph->nodes[n];
        for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++) {
            if (node->in[i] != weight)
                continue;
            if ((node->op != KEEL_OP_LINEAR && node->op != KEEL_OP_LINEAR_TRANSPOSED) || i != 1 ||
                (found != KEEL_OP_NONE && found != node->op))
                return KEEL_OP_NONE;
            found = node->op;
        }
    }
    return found;
}

enum keel_status keel_pass_quantise(struct keel_graph *graph, uint32_t param, uint32_t bits, uint32_t group,
                                    bool *out)
{
    struct keel_ir_param *of = &graph->params[param];
    struct keel_shape *shape = &graph->values[of->value].shape;
    const uint32_t product = of->statistic ? KEEL_OP_NONE : product_of(graph, of->value);
    const bool down = product == KEEL_OP_LINEAR_TRANSPOSED;
    *out = product != KEEL_OP_NONE;
    if (!*out)
        return KEEL_OK;
    const struct keel_gemm_quantised like = {.n = (uint32_t)shape->size[down ? 0 : 1],
                                             .k = (uint32_t)shape->size[down ? 1 : 0],
                                             .bits = bits,
                                             .group = group};
    uint64_t words;
    KEEL_TRY(keel_quantised_words(&like, &words));
    for (uint32_t n = 0; n < graph->node_count; n++) {
        struct keel_ir_node *node = &graph->nodes[n];
        if (node->in[1] != of->value)
            continue;
        node->op = KEEL_OP_LINEAR_QUANTISED;
        node->attributes.quantised.outputs = like.n;
        node->attributes.quantised.bits = bits;
        node->attributes.quantised.group = group;
    }
    *shape = (struct keel_shape){1, {words}};
    of->deviation = of->fill = 0.0F;
    of->values = NULL;
    of->decay = false;
    of->frozen = true;
    return KEEL_OK;
}
