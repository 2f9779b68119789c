/* onnx_layers.c - products, norms, softmax, sums over dimensions. */
#include "onnx_build.h"

#include <math.h>
#include <string.h>

/* ---- products ------------------------------------------------------------------------------------------ */

/* x times a weight of two dimensions, [k, n], or [n, k] where it is read transposed. */
static enum keel_status by_weight(struct build *build, struct value *x, struct value *w, keel_value bias)
{
    keel_value at, weights;
    uint64_t size[KEEL_ONNX_DIMS_MAX];
    KEEL_TRY(keel_onnx_weight(build, w, "weight", &weights));
    if (x->dims < 2 || x->size[x->dims - 1] != w->size[0])
        return keel_onnx_refuse_node(build, "a row of %llu by a weight of %llu rows",
                                     (unsigned long long)(x->dims > 0 ? x->size[x->dims - 1] : 0),
                                     (unsigned long long)w->size[0]);
    KEEL_TRY(keel_onnx_plain(build, x, &at));
    memcpy(size, x->size, sizeof size);
    size[x->dims - 1] = w->size[1];
    if (!w->transposed)
        return keel_onnx_give_reshaped(build, keel_graph_linear(build->graph, at, weights, bias), x->dims,
                                       size);
    at = keel_graph_linear_transposed_bias(build->graph, at, weights, bias);
    return keel_onnx_give_reshaped(build, at, x->dims, size);
}

/* Two activations; leading dimensions that one lacks, or has 1 of, are repeated. */
static enum keel_status by_activation(struct build *build, struct value *a, struct value *b)
{
    struct value *const both[2] = {a, b};
    struct keel_shape shape[2];
    keel_value at[2];
    uint64_t size[KEEL_ONNX_DIMS_MAX];
    const uint32_t dims = a->dims > b->dims ? a->dims : b->dims;
    if (a->dims < 2 || b->dims < 2 || dims > KEEL_DIMS_MAX || a->size[a->dims - 1] != b->size[b->dims - 2])
        return keel_onnx_refuse_node(
            build, "a product of %u by %u dimensions; 2 to 4 are covered, with as many columns as rows",
            a->dims, b->dims);
    for (uint32_t i = 0; i + 2 < dims; i++) {
        const uint32_t right = dims - 1 - i;
        const uint64_t of_a = right < a->dims ? a->size[a->dims - 1 - right] : 1,
                       of_b = right < b->dims ? b->size[b->dims - 1 - right] : 1;
        if (of_a != of_b && of_a != 1 && of_b != 1)
            return keel_onnx_refuse_node(build, "batches of %llu and %llu", (unsigned long long)of_a,
                                         (unsigned long long)of_b);
        size[i] = of_a == 1 ? of_b : of_a;
    }
    size[dims - 2] = a->size[a->dims - 2];
    size[dims - 1] = b->size[b->dims - 1];
    for (uint32_t i = 0; i < 2; i++) {
        shape[i] = (struct keel_shape){.dims = dims};
        memcpy(shape[i].size, size, dims * sizeof *size);
        shape[i].size[dims - 2] = both[i]->size[both[i]->dims - 2];
        shape[i].size[dims - 1] = both[i]->size[both[i]->dims - 1];
        KEEL_TRY(keel_onnx_plain(build, both[i], &at[i]));
        at[i] = keel_graph_expand(build->graph, at[i], shape[i]);
    }
    return keel_onnx_give(build, keel_graph_matmul(build->graph, at[0], at[1]), dims, size, false);
}

static enum keel_status build_matmul(struct build *build)
{
    struct value *a, *b;
    KEEL_TRY(keel_onnx_operand(build, 0, &a));
    KEEL_TRY(keel_onnx_operand(build, 1, &b));
    return b->kind == VALUE_INITIALIZER && b->dims == 2 ? by_weight(build, a, b, 0)
                                                        : by_activation(build, a, b);
}

static enum keel_status build_gemm(struct build *build)
{
    struct value *x, *w, *c, turned;
    keel_value bias = 0;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    KEEL_TRY(keel_onnx_operand(build, 1, &w));
    if (keel_onnx_integer_attribute(build, "transA", 0) != 0 ||
        keel_onnx_real_attribute(build, "alpha", 1.0F) != 1.0F ||
        (keel_onnx_has_operand(build, 2) && keel_onnx_real_attribute(build, "beta", 1.0F) != 1.0F) ||
        x->dims != 2 || w->dims != 2)
        return keel_onnx_refuse_node(build,
                                     "transA, alpha or beta other than 1, or more than two dimensions");
    if (keel_onnx_has_operand(build, 2)) {
        KEEL_TRY(keel_onnx_operand(build, 2, &c));
        if (c->dims != 1)
            return keel_onnx_refuse_node(build, "a bias of %u dimensions; one is covered", c->dims);
        KEEL_TRY(keel_onnx_weight(build, c, "bias", &bias));
    }
    if (w->kind != VALUE_INITIALIZER)
        return keel_onnx_refuse_node(build, "its weight must be an initializer of the file");
    turned = *w;
    if (keel_onnx_integer_attribute(build, "transB", 0) != 0) {
        turned.transposed = !w->transposed;
        turned.size[0] = w->size[1];
        turned.size[1] = w->size[0];
    }
    return by_weight(build, x, &turned, bias);
}

/* ---- norms and softmax --------------------------------------------------------------------------------- */

static enum keel_status build_layernorm(struct build *build)
{
    struct value *x, *part;
    keel_value at, gamma, beta = 0;
    uint32_t axis;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    KEEL_TRY(keel_onnx_axis_of(build, keel_onnx_integer_attribute(build, "axis", -1), x->dims, &axis));
    if (axis != x->dims - 1)
        return keel_onnx_refuse_node(build, "axis %u of %u dimensions; the last is covered", axis, x->dims);
    KEEL_TRY(keel_onnx_operand(build, 1, &part));
    KEEL_TRY(keel_onnx_weight(build, part, "scale", &gamma));
    if (keel_onnx_has_operand(build, 2)) {
        KEEL_TRY(keel_onnx_operand(build, 2, &part));
        KEEL_TRY(keel_onnx_weight(build, part, "bias", &beta));
    }
    KEEL_TRY(keel_onnx_plain(build, x, &at));
    return keel_onnx_give(build,
                          keel_graph_layernorm_epsilon(build->graph, at, gamma, beta,
                                                       keel_onnx_real_attribute(build, "epsilon", 1e-5F)),
                          x->dims, x->size, false);
}

static enum keel_status build_softmax(struct build *build)
{
    struct value *x;
    keel_value at;
    uint32_t axis;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    KEEL_TRY(keel_onnx_axis_of(build, keel_onnx_integer_attribute(build, "axis", -1), x->dims, &axis));
    if (axis != x->dims - 1)
        return keel_onnx_refuse_node(build, "axis %u of %u dimensions; the last is covered", axis, x->dims);
    if (keel_onnx_place_of_dim(x, axis) == KEEL_DIMS_MAX)
        return keel_onnx_refuse_node(build, "rows of 1 in more than four dimensions");
    KEEL_TRY(keel_onnx_plain(build, x, &at));
    return keel_onnx_give(build, keel_graph_softmax(build->graph, at), x->dims, x->size, false);
}

/* ---- sums over dimensions ------------------------------------------------------------------------------ */

/* The axes as bits: of the attribute, or of operand 1; all where neither is. */
static enum keel_status axes_to_reduce(struct build *build, const struct value *x, uint32_t *out)
{
    const struct keel_onnx_attribute *list = keel_onnx_attribute(build, "axes");
    int64_t axes[KEEL_ONNX_DIMS_MAX] = {0};
    uint32_t count = 0;
    if (list != NULL && list->list_count > KEEL_ONNX_DIMS_MAX)
        return keel_onnx_refuse_node(build, "%u axes of %u dimensions", list->list_count, x->dims);
    if (list != NULL)
        for (; count < list->list_count; count++)
            axes[count] = list->list[count];
    else if (keel_onnx_has_operand(build, 1))
        KEEL_TRY(keel_onnx_integers(build, 1, axes, KEEL_ONNX_DIMS_MAX, &count));
    if (count == 0 && keel_onnx_integer_attribute(build, "noop_with_empty_axes", 0) != 0)
        return keel_onnx_refuse_node(build, "noop_with_empty_axes without axes is not covered");
    *out = (1U << x->dims) - 1;
    return count == 0 ? KEEL_OK : keel_onnx_axes_of(build, axes, count, x->dims, out);
}

static enum keel_status reduce(struct build *build, enum keel_reduce_kind kind)
{
    struct value *x;
    uint64_t size[KEEL_ONNX_DIMS_MAX];
    uint32_t axes = 0, dims = 0;
    keel_value at;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    KEEL_TRY(axes_to_reduce(build, x, &axes));
    const bool keep = keel_onnx_integer_attribute(build, "keepdims", 1) != 0;
    for (uint32_t i = 0; i < x->dims; i++)
        if ((axes >> i & 1) == 0 || keep)
            size[dims++] = (axes >> i & 1) != 0 ? 1 : x->size[i];
    if (x->kind == VALUE_GRAPH && x->nhwc && axes == 12 && kind == KEEL_REDUCE_MEAN)
        return keel_onnx_give_reshaped(build, keel_graph_global_avg_pool(build->graph, x->at), dims, size);
    KEEL_TRY(keel_onnx_plain(build, x, &at));
    for (uint32_t end = x->dims; end > 0;) { /* runs of neighbours, from the right */
        uint32_t begin = end, first = KEEL_DIMS_MAX, count = 0;
        while (begin > 0 && (axes >> (begin - 1) & 1) != 0)
            begin--;
        for (uint32_t i = begin; i < end; i++) {
            const uint32_t place = keel_onnx_place_of_dim(x, i);
            first = place < first ? place : first;
            count += place != KEEL_DIMS_MAX;
        }
        if (count > 0)
            at = keel_graph_reduce(build->graph, at, kind, first, count);
        end = begin == end ? end - 1 : begin;
    }
    return keel_onnx_give_reshaped(build, at, dims, size);
}

static enum keel_status build_mean(struct build *build)
{
    return reduce(build, KEEL_REDUCE_MEAN);
}
static enum keel_status build_sum(struct build *build)
{
    return reduce(build, KEEL_REDUCE_SUM);
}
static enum keel_status build_largest(struct build *build)
{
    return reduce(build, KEEL_REDUCE_MAXIMUM);
}

/* ---- attention (opset 23) ------------------------------------------------------------------------------ */

/* Queries, keys or values as [batch, tokens, heads * width], of those or of [batch, heads, tokens, width]. */
static enum keel_status heads_side_by_side(struct build *build, uint32_t index, uint32_t heads,
                                           keel_value *out, struct keel_shape *shape)
{
    static const uint32_t tokens_first[] = {0, 2, 1, 3};
    struct value *x;
    KEEL_TRY(keel_onnx_operand(build, index, &x));
    if (x->dims != 3 && (x->dims != 4 || x->size[1] != heads))
        return keel_onnx_refuse_node(build, "operand %u of %u dimensions; 3, or 4 with %u heads, are covered",
                                     index, x->dims, heads);
    KEEL_TRY(keel_onnx_plain(build, x, out));
    *shape = (struct keel_shape){3, {x->size[0], x->size[1], x->size[2]}};
    if (x->dims == 3)
        return KEEL_OK;
    *shape = (struct keel_shape){3, {x->size[0], x->size[2], heads * x->size[3]}};
    *out = keel_graph_reshape(build->graph, keel_graph_permute(build->graph, *out, tokens_first), *shape);
    return keel_graph_status(build->graph);
}

/* Back to how the operands lay. */
static enum keel_status give_attended(struct build *build, keel_value at, uint32_t dims, uint32_t heads)
{
    static const uint32_t heads_first[] = {0, 2, 1, 3};
    const struct keel_shape lies = keel_graph_shape(build->graph, at);
    const uint64_t width = lies.size[2] / heads;
    if (dims == 3)
        return keel_onnx_give(build, at, 3, lies.size, false);
    at = keel_graph_reshape(build->graph, at,
                            (struct keel_shape){4, {lies.size[0], lies.size[1], heads, width}});
    const uint64_t size[4] = {lies.size[0], heads, lies.size[1], width};
    return keel_onnx_give(build, keel_graph_permute(build->graph, at, heads_first), 4, size, false);
}

/* What the operator may say beside its operands: the usual scale, no mask, no cache. */
static enum keel_status check_attention(struct build *build, uint64_t head_width)
{
    const float usual = 1.0F / sqrtf((float)head_width);
    bool more = build->node->out_count > 1;
    for (uint32_t i = 3; i < build->node->in_count; i++)
        more = more || keel_onnx_has_operand(build, i);
    if (more)
        return keel_onnx_refuse_node(build, "a mask or a cache; is_causal is covered");
    if (keel_onnx_real_attribute(build, "softcap", 0.0F) != 0.0F ||
        fabsf(keel_onnx_real_attribute(build, "scale", usual) - usual) > 1e-6F * usual)
        return keel_onnx_refuse_node(build, "softcap, or a scale that is not 1 / sqrt(%llu)",
                                     (unsigned long long)head_width);
    return KEEL_OK;
}

/* Heads of queries, or of keys and values: an attribute where operands have three dimensions, or `missing`.
 */
static enum keel_status find_heads(struct build *build, uint32_t index, const char *attribute,
                                   uint32_t missing, uint32_t *out)
{
    struct value *x;
    KEEL_TRY(keel_onnx_operand(build, index, &x));
    const int64_t heads =
        keel_onnx_integer_attribute(build, attribute, x->dims == 4 ? (int64_t)x->size[1] : missing);
    if (heads < 1 || heads > INT32_MAX)
        return keel_onnx_refuse_node(build, "%s = %lld", attribute, (long long)heads);
    *out = (uint32_t)heads;
    return KEEL_OK;
}

static enum keel_status build_attention(struct build *build)
{
    struct value *q;
    keel_value part[3] = {0};
    struct keel_shape shape[3] = {0};
    uint32_t heads = 1, kv_heads = 1;
    KEEL_TRY(keel_onnx_operand(build, 0, &q));
    KEEL_TRY(find_heads(build, 0, "q_num_heads", 0, &heads));
    KEEL_TRY(find_heads(build, 1, "kv_num_heads", heads, &kv_heads));
    if (heads % kv_heads != 0)
        return keel_onnx_refuse_node(build, "%u heads of keys for %u of queries", kv_heads, heads);
    const bool causal = keel_onnx_integer_attribute(build, "is_causal", 0) != 0;
    for (uint32_t i = 0; i < 3; i++)
        KEEL_TRY(heads_side_by_side(build, i, i == 0 ? heads : kv_heads, &part[i], &shape[i]));
    const uint64_t width = shape[0].size[2] / heads, tokens = shape[0].size[1], keys = shape[1].size[1];
    if (shape[1].size[2] != width * kv_heads || shape[2].size[2] != width * kv_heads)
        return keel_onnx_refuse_node(build, "heads of values, or of keys, that are of another width");
    KEEL_TRY(check_attention(build, width));
    if ((causal || heads != kv_heads) && tokens != keys)
        return keel_onnx_refuse_node(build, "%s with %llu queries and %llu keys",
                                     causal ? "is_causal" : "fewer heads of keys", (unsigned long long)tokens,
                                     (unsigned long long)keys);
    keel_value at;
    if (causal || heads != kv_heads)
        at = keel_graph_attention(
            build->graph, keel_graph_concat(build->graph, part, 3, 2),
            &(struct keel_attention_spec){.heads = heads, .kv_heads = kv_heads, .bidirectional = !causal});
    else
        at =
            keel_graph_cross_attention(build->graph, part[0], keel_graph_concat(build->graph, part + 1, 2, 2),
                                       &(struct keel_cross_attention_spec){.heads = heads});
    return give_attended(build, at, q->dims, heads);
}

const struct keel_onnx_operator keel_onnx_layers[] = {
    {"Attention", build_attention}, {"Gemm", build_gemm},         {"LayerNormalization", build_layernorm},
    {"MatMul", build_matmul},       {"ReduceMax", build_largest}, {"ReduceMean", build_mean},
    {"ReduceSum", build_sum},       {"Softmax", build_softmax},   {NULL, NULL},
};
