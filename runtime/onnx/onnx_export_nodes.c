/* onnx_export_nodes.c - the operations of a graph as operators of ONNX, a function each, and the table of
 * them at the end. */
#include "onnx_export_build.h"

#include <keel/memory.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const double pi = 3.14159265358979323846;

static const struct keel_shape *shape_of(const struct export *export, keel_value value)
{
    return &export->graph->values[value].shape;
}

static keel_value operand(const struct export *export, uint32_t index)
{
    return export->node->in[index];
}

static keel_value result(const struct export *export)
{
    return export->node->out[0];
}

/* ---- element by element -------------------------------------------------------------------------------- */

/* Whether an operand lies as an image, whose order no function of single elements needs to leave. */
static bool is_image(const struct export *export, keel_value value)
{
    return export->place[value].made && export->place[value].image &&
           export->graph->values[value].kind != KEEL_VALUE_PARAM;
}

static enum keel_status as_it_lies(struct export *export, keel_value value, struct keel_onnx_name *out)
{
    return is_image(export, value) ? keel_onnx_image_name(export, value, out)
                                   : keel_onnx_plain_name(export, value, out);
}

static enum keel_status put_activation(struct export *export)
{
    static const char *const operators[] = {[KEEL_RELU] = "Relu",
                                            [KEEL_TANH] = "Tanh",
                                            [KEEL_SIGMOID] = "Sigmoid",
                                            [KEEL_GELU] = "Gelu",
                                            [KEEL_GELU_ERF] = "Gelu",
                                            [KEEL_SOFTPLUS] = "Softplus",
                                            [KEEL_EXP] = "Exp",
                                            [KEEL_LOG] = "Log",
                                            [KEEL_SQRT] = "Sqrt",
                                            [KEEL_RECIPROCAL] = "Reciprocal",
                                            [KEEL_ABS] = "Abs",
                                            [KEEL_ERF] = "Erf",
                                            [KEEL_HARD_SWISH] = "HardSwish",
                                            [KEEL_ELU] = "Elu"};
    const enum keel_activation_kind kind = export->node->attributes.activation;
    const char *operation = (size_t)kind < sizeof operators / sizeof operators[0] ? operators[kind] : NULL;
    struct keel_onnx_name x;
    KEEL_TRY(as_it_lies(export, operand(export, 0), &x));
    const bool image = is_image(export, operand(export, 0));
    const struct keel_onnx_name y = keel_onnx_make(export, result(export), image);
    if (kind == KEEL_SILU) {
        const struct keel_onnx_name gate = keel_onnx_fresh(export);
        keel_onnx_node(export, "Sigmoid", NAMES(x.text), NAMES(gate.text), NULL);
        keel_onnx_node(export, "Mul", NAMES(x.text, gate.text), NAMES(y.text), NULL);
    } else if (kind == KEEL_SQUARE)
        keel_onnx_node(export, "Mul", NAMES(x.text, x.text), NAMES(y.text), NULL);
    else if (kind == KEEL_RELU6)
        keel_onnx_node(
            export, "Clip",
            NAMES(x.text, keel_onnx_number(export, 0.0F).text, keel_onnx_number(export, 6.0F).text),
            NAMES(y.text), NULL);
    else if (operation == NULL)
        return keel_onnx_export_refuse(export, " is of a function that has no operator");
    else
        keel_onnx_node(export, operation, NAMES(x.text), NAMES(y.text),
                       kind == KEEL_GELU ? ATTRIBUTES(ONE_TEXT("approximate", "tanh")) : NULL);
    return KEEL_OK;
}

/* Of two operands; images stay so where both are. */
static enum keel_status two(struct export *export, const char *operation)
{
    const keel_value a = operand(export, 0), b = operand(export, 1);
    const bool images = is_image(export, a) && is_image(export, b);
    struct keel_onnx_name left, right;
    KEEL_TRY(images ? keel_onnx_image_name(export, a, &left) : keel_onnx_plain_name(export, a, &left));
    KEEL_TRY(images ? keel_onnx_image_name(export, b, &right) : keel_onnx_plain_name(export, b, &right));
    keel_onnx_node(export, operation, NAMES(left.text, right.text),
                   NAMES(keel_onnx_make(export, result(export), images).text), NULL);
    return KEEL_OK;
}

static enum keel_status put_add(struct export *export)
{
    return two(export, "Add");
}

static enum keel_status put_multiply(struct export *export)
{
    return two(export, "Mul");
}

static enum keel_status put_binary(struct export *export)
{
    static const char *const operators[] = {
        [KEEL_ADD] = "Add",   [KEEL_SUBTRACT] = "Sub", [KEEL_MULTIPLY] = "Mul", [KEEL_DIVIDE] = "Div",
        [KEEL_POWER] = "Pow", [KEEL_MAXIMUM] = "Max",  [KEEL_MINIMUM] = "Min"};
    const enum keel_binary_kind kind = export->node->attributes.binary.kind;
    if ((size_t)kind >= sizeof operators / sizeof operators[0] || operators[kind] == NULL)
        return keel_onnx_export_refuse(export, " is of a function that has no operator");
    return two(export, operators[kind]);
}

static enum keel_status put_swiglu(struct export *export)
{
    const struct keel_onnx_name gate = keel_onnx_fresh(export), silu = keel_onnx_fresh(export);
    struct keel_onnx_name a, b;
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 0), &a));
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 1), &b));
    keel_onnx_node(export, "Sigmoid", NAMES(a.text), NAMES(gate.text), NULL);
    keel_onnx_node(export, "Mul", NAMES(a.text, gate.text), NAMES(silu.text), NULL);
    keel_onnx_node(export, "Mul", NAMES(silu.text, b.text),
                   NAMES(keel_onnx_make(export, result(export), false).text), NULL);
    return KEEL_OK;
}

static enum keel_status put_scale(struct export *export)
{
    const float factor = export->node->attributes.scale.factor,
                addend = export->node->attributes.scale.addend;
    const struct keel_onnx_name scaled = keel_onnx_fresh(export);
    struct keel_onnx_name x;
    KEEL_TRY(as_it_lies(export, operand(export, 0), &x));
    const bool image = is_image(export, operand(export, 0));
    keel_onnx_node(export, "Mul", NAMES(x.text, keel_onnx_number(export, factor).text), NAMES(scaled.text),
                   NULL);
    keel_onnx_node(export, "Add", NAMES(scaled.text, keel_onnx_number(export, addend).text),
                   NAMES(keel_onnx_make(export, result(export), image).text), NULL);
    return KEEL_OK;
}

/* The value itself. */
static enum keel_status put_dropout(struct export *export)
{
    const struct place from = export->place[operand(export, 0)];
    if (operand(export, 1) != 0 || !from.made)
        return keel_onnx_export_refuse(export, " is fused with an addition");
    export->place[result(export)] = from;
    return KEEL_OK;
}

/* ---- products and norms -------------------------------------------------------------------------------- */

/* y = x weight, and + bias. */
static void put_product(struct export *export, const struct keel_onnx_name *x,
                        const struct keel_onnx_name *weight, const struct keel_onnx_name *bias,
                        const struct keel_onnx_name *y)
{
    const struct keel_onnx_name product = bias != NULL ? keel_onnx_fresh(export) : *y;
    keel_onnx_node(export, "MatMul", NAMES(x->text, weight->text), NAMES(product.text), NULL);
    if (bias != NULL)
        keel_onnx_node(export, "Add", NAMES(product.text, bias->text), NAMES(y->text), NULL);
}

static enum keel_status put_linear(struct export *export)
{
    const bool biased = operand(export, 2) != 0;
    struct keel_onnx_name x, weight, bias;
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 0), &x));
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 1), &weight));
    if (biased)
        KEEL_TRY(keel_onnx_plain_name(export, operand(export, 2), &bias));
    const struct keel_onnx_name y = keel_onnx_make(export, result(export), false);
    if (biased && shape_of(export, operand(export, 0))->dims == 2) {
        keel_onnx_node(export, "Gemm", NAMES(x.text, weight.text, bias.text), NAMES(y.text), NULL);
        return KEEL_OK;
    }
    put_product(export, &x, &weight, biased ? &bias : NULL, &y);
    return KEEL_OK;
}

static enum keel_status put_linear_transposed(struct export *export)
{
    static const int64_t turned[] = {1, 0};
    const struct keel_onnx_name weight = keel_onnx_fresh(export);
    const bool biased = operand(export, 2) != 0;
    struct keel_onnx_name x, table, bias;
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 0), &x));
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 1), &table));
    if (biased)
        KEEL_TRY(keel_onnx_plain_name(export, operand(export, 2), &bias));
    keel_onnx_node(export, "Transpose", NAMES(table.text), NAMES(weight.text),
                   ATTRIBUTES(INTEGERS("perm", turned, 2)));
    const struct keel_onnx_name y = keel_onnx_make(export, result(export), false);
    put_product(export, &x, &weight, biased ? &bias : NULL, &y);
    return KEEL_OK;
}

static enum keel_status put_matmul(struct export *export)
{
    struct keel_onnx_name a, b;
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 0), &a));
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 1), &b));
    keel_onnx_node(export, "MatMul", NAMES(a.text, b.text),
                   NAMES(keel_onnx_make(export, result(export), false).text), NULL);
    return KEEL_OK;
}

static float epsilon_of(const struct export *export)
{
    const float epsilon = export->node->attributes.epsilon;
    return epsilon > 0.0F ? epsilon : KEEL_NORM_EPSILON;
}

static enum keel_status put_layernorm(struct export *export)
{
    const bool shifted = operand(export, 2) != 0;
    struct keel_onnx_name x, gamma, beta = {""};
    if (operand(export, 1) == 0)
        return keel_onnx_export_refuse(export, " has no gamma, which the operator wants: not covered");
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 0), &x));
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 1), &gamma));
    if (shifted)
        KEEL_TRY(keel_onnx_plain_name(export, operand(export, 2), &beta));
    keel_onnx_node(export, "LayerNormalization", NAMES(x.text, gamma.text, shifted ? beta.text : NULL),
                   NAMES(keel_onnx_make(export, result(export), false).text),
                   ATTRIBUTES(ONE_INTEGER("axis", -1), ONE_REAL("epsilon", epsilon_of(export))));
    return KEEL_OK;
}

/* x gamma / sqrt(mean(x x) + epsilon). */
static enum keel_status put_rms_norm(struct export *export)
{
    static const int64_t last[] = {-1};
    const struct keel_onnx_name square = keel_onnx_fresh(export), mean = keel_onnx_fresh(export),
                                sum = keel_onnx_fresh(export), root = keel_onnx_fresh(export),
                                even = keel_onnx_fresh(export);
    struct keel_onnx_name x, gamma;
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 0), &x));
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 1), &gamma));
    keel_onnx_node(export, "Mul", NAMES(x.text, x.text), NAMES(square.text), NULL);
    keel_onnx_node(export, "ReduceMean", NAMES(square.text, keel_onnx_list(export, last, 1).text),
                   NAMES(mean.text), NULL);
    keel_onnx_node(export, "Add", NAMES(mean.text, keel_onnx_number(export, epsilon_of(export)).text),
                   NAMES(sum.text), NULL);
    keel_onnx_node(export, "Sqrt", NAMES(sum.text), NAMES(root.text), NULL);
    keel_onnx_node(export, "Div", NAMES(x.text, root.text), NAMES(even.text), NULL);
    keel_onnx_node(export, "Mul", NAMES(even.text, gamma.text),
                   NAMES(keel_onnx_make(export, result(export), false).text), NULL);
    return KEEL_OK;
}

static enum keel_status put_softmax(struct export *export)
{
    struct keel_onnx_name x;
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 0), &x));
    keel_onnx_node(export, "Softmax", NAMES(x.text),
                   NAMES(keel_onnx_make(export, result(export), false).text),
                   ATTRIBUTES(ONE_INTEGER("axis", -1)));
    return KEEL_OK;
}

static enum keel_status put_reduce(struct export *export)
{
    static const char *const operators[] = {[KEEL_REDUCE_SUM] = "ReduceSum",
                                            [KEEL_REDUCE_MEAN] = "ReduceMean",
                                            [KEEL_REDUCE_MAXIMUM] = "ReduceMax"};
    int64_t axes[KEEL_DIMS_MAX];
    const struct keel_attributes *attributes = &export->node->attributes;
    struct keel_onnx_name x;
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 0), &x));
    for (uint32_t d = 0; d < attributes->reduce.dims; d++)
        axes[d] = attributes->reduce.dim + d;
    keel_onnx_node(export, operators[attributes->reduce.kind],
                   NAMES(x.text, keel_onnx_list(export, axes, attributes->reduce.dims).text),
                   NAMES(keel_onnx_make(export, result(export), false).text),
                   ATTRIBUTES(ONE_INTEGER("keepdims", 0)));
    return KEEL_OK;
}

/* ---- tables and attention ------------------------------------------------------------------------------ */

static enum keel_status put_embedding(struct export *export)
{
    const bool placed = operand(export, 2) != 0;
    struct keel_onnx_name ids, table, positions;
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 0), &ids));
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 1), &table));
    if (placed)
        KEEL_TRY(keel_onnx_plain_name(export, operand(export, 2), &positions));
    const struct keel_onnx_name y = keel_onnx_make(export, result(export), false);
    const struct keel_onnx_name rows = placed ? keel_onnx_fresh(export) : y;
    keel_onnx_node(export, "Gather", NAMES(table.text, ids.text), NAMES(rows.text), NULL);
    if (placed)
        keel_onnx_node(export, "Add", NAMES(rows.text, positions.text), NAMES(y.text), NULL);
    return KEEL_OK;
}

/* qkv [batch, tokens, (heads + 2 kv_heads) head_width] as three; kv_heads 0: as heads. */
static enum keel_status part_qkv(struct export *export, uint64_t heads, uint64_t kv_heads,
                                 struct keel_onnx_name part[3], uint64_t *head_width)
{
    const struct keel_shape *shape = shape_of(export, operand(export, 0));
    struct keel_onnx_name qkv;
    kv_heads = kv_heads > 0 ? kv_heads : heads;
    KEEL_ASSERT(heads > 0);
    *head_width = shape->size[2] / (heads + 2 * kv_heads);
    const int64_t shared = (int64_t)(kv_heads * *head_width);
    const int64_t sizes[] = {(int64_t)(heads * *head_width), shared, shared};
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 0), &qkv));
    for (uint32_t i = 0; i < 3; i++)
        part[i] = keel_onnx_fresh(export);
    keel_onnx_node(export, "Split", NAMES(qkv.text, keel_onnx_list(export, sizes, 3).text),
                   NAMES(part[0].text, part[1].text, part[2].text), ATTRIBUTES(ONE_INTEGER("axis", 2)));
    return KEEL_OK;
}

static enum keel_status put_attention(struct export *export)
{
    const struct keel_attributes *attributes = &export->node->attributes;
    const uint32_t heads = attributes->attention.heads, kv_heads = attributes->attention.kv_heads;
    struct keel_onnx_name part[3];
    uint64_t width;
    if (operand(export, 1) != 0 || attributes->attention.window != 0 ||
        attributes->attention.alibi_heads != 0)
        return keel_onnx_export_refuse(export, " has segments, a window or ALiBi: not covered");
    KEEL_TRY(part_qkv(export, heads, kv_heads, part, &width));
    keel_onnx_node(export, "Attention", NAMES(part[0].text, part[1].text, part[2].text),
                   NAMES(keel_onnx_make(export, result(export), false).text),
                   ATTRIBUTES(ONE_INTEGER("q_num_heads", heads),
                              ONE_INTEGER("kv_num_heads", kv_heads > 0 ? kv_heads : heads),
                              ONE_INTEGER("is_causal", !attributes->attention.bidirectional)));
    return KEEL_OK;
}

/* By how much pair `pair` of a head turns from one token to the next: slower as keel/attention_ops.h says. */
static double step_of(const struct keel_attributes *attributes, uint64_t head_width, uint64_t pair)
{
    const struct keel_rotary_scaling *scaling = &attributes->rotary.scaling;
    const double step = pow((double)attributes->rotary.base, -2.0 * (double)pair / (double)head_width);
    if (scaling->factor <= 1.0F)
        return step;
    const double slow = 1.0 / (double)scaling->factor, turns = step / (2.0 * pi) * scaling->context;
    if (scaling->context == 0 || turns <= (double)scaling->low)
        return step * slow;
    if (turns >= (double)scaling->high)
        return step;
    const double share = (turns - (double)scaling->low) / ((double)scaling->high - (double)scaling->low);
    return step * (slow + share * (1.0 - slow));
}

/* Cosines and sines [tokens, heads head_width / 2, 1] of all pairs of so many heads. */
static enum keel_status put_angles(struct export *export, uint64_t tokens, uint64_t heads,
                                   uint64_t head_width, struct keel_onnx_name out[2])
{
    const struct keel_attributes *attributes = &export->node->attributes;
    const uint64_t pairs = heads * head_width / 2;
    const uint64_t size[] = {tokens, pairs, 1};
    float *table = NULL;
    KEEL_TRY(keel_alloc(keel_size(tokens * pairs), sizeof *table, &table));
    for (uint32_t which = 0; which < 2; which++) {
        for (uint64_t i = 0; i < tokens * pairs; i++) {
            const uint64_t token = i / pairs;
            const double angle =
                (double)token * step_of(attributes, head_width, i % pairs % (head_width / 2));
            table[i] = (float)(which == 0 ? cos(angle) : sin(angle));
        }
        out[which] = keel_onnx_fresh(export);
        keel_onnx_floats(export, out[which].text, 3, size, table);
    }
    keel_free(table);
    return KEEL_OK;
}

/* [batch, tokens, width] with each pair turned. */
static struct keel_onnx_name put_turn(struct export *export, struct keel_onnx_name x, uint64_t width,
                                      const struct keel_onnx_name angle[2])
{
    const int64_t pairs[] = {0, 0, (int64_t)width / 2, 2}, flat[] = {0, 0, (int64_t)width}, ones[] = {1, 1};
    struct keel_onnx_name paired = keel_onnx_fresh(export), of[2], product[4], turned[2];
    keel_onnx_node(export, "Reshape", NAMES(x.text, keel_onnx_list(export, pairs, 4).text),
                   NAMES(paired.text), NULL);
    for (uint32_t i = 0; i < 2; i++) {
        of[i] = keel_onnx_fresh(export);
        turned[i] = keel_onnx_fresh(export);
    }
    keel_onnx_node(export, "Split", NAMES(paired.text, keel_onnx_list(export, ones, 2).text),
                   NAMES(of[0].text, of[1].text), ATTRIBUTES(ONE_INTEGER("axis", 3)));
    for (uint32_t i = 0; i < 4; i++) { /* even cos, odd sin; even sin, odd cos */
        product[i] = keel_onnx_fresh(export);
        keel_onnx_node(export, "Mul", NAMES(of[i % 2].text, angle[i == 1 || i == 2].text),
                       NAMES(product[i].text), NULL);
    }
    keel_onnx_node(export, "Sub", NAMES(product[0].text, product[1].text), NAMES(turned[0].text), NULL);
    keel_onnx_node(export, "Add", NAMES(product[2].text, product[3].text), NAMES(turned[1].text), NULL);
    const struct keel_onnx_name joined = keel_onnx_fresh(export), y = keel_onnx_fresh(export);
    keel_onnx_node(export, "Concat", NAMES(turned[0].text, turned[1].text), NAMES(joined.text),
                   ATTRIBUTES(ONE_INTEGER("axis", 3)));
    keel_onnx_node(export, "Reshape", NAMES(joined.text, keel_onnx_list(export, flat, 3).text), NAMES(y.text),
                   NULL);
    return y;
}

static enum keel_status put_rotary(struct export *export)
{
    const struct keel_attributes *attributes = &export->node->attributes;
    const uint64_t tokens = shape_of(export, operand(export, 0))->size[1], heads = attributes->rotary.heads;
    const uint64_t kv_heads = attributes->rotary.kv_heads > 0 ? attributes->rotary.kv_heads : heads;
    struct keel_onnx_name part[3], angle[2];
    uint64_t width;
    KEEL_TRY(part_qkv(export, heads, kv_heads, part, &width));
    for (uint32_t i = 0; i < 2; i++) {
        const uint64_t mine = i == 0 ? heads : kv_heads;
        if (i == 0 || kv_heads != heads)
            KEEL_TRY(put_angles(export, tokens, mine, width, angle));
        part[i] = put_turn(export, part[i], mine * width, angle);
    }
    keel_onnx_node(export, "Concat", NAMES(part[0].text, part[1].text, part[2].text),
                   NAMES(keel_onnx_make(export, result(export), false).text),
                   ATTRIBUTES(ONE_INTEGER("axis", 2)));
    return KEEL_OK;
}

/* ---- moving elements ----------------------------------------------------------------------------------- */

/* The dimension in front is the operand's, whatever it is, or what is left over. */
static enum keel_status put_reshape(struct export *export)
{
    const struct keel_shape *x = shape_of(export, operand(export, 0)), *y = shape_of(export, result(export));
    int64_t sizes[KEEL_DIMS_MAX];
    struct keel_onnx_name from;
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 0), &from));
    for (uint32_t d = 0; d < y->dims; d++)
        sizes[d] = d > 0 ? (int64_t)y->size[d] : x->size[0] == y->size[0] ? 0 : -1;
    keel_onnx_node(export, "Reshape", NAMES(from.text, keel_onnx_list(export, sizes, y->dims).text),
                   NAMES(keel_onnx_make(export, result(export), false).text), NULL);
    return KEEL_OK;
}

/* In front as often as there are samples, which the input's shape says. */
static enum keel_status put_expand(struct export *export)
{
    static const int64_t zero[] = {0}, one[] = {1};
    const struct keel_shape *x = shape_of(export, operand(export, 0)), *y = shape_of(export, result(export));
    const bool samples = y->size[0] == KEEL_ONNX_EXPORT_BATCH && (x->dims < y->dims || x->size[0] == 1);
    int64_t sizes[KEEL_DIMS_MAX];
    struct keel_onnx_name from, to;
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 0), &from));
    for (uint32_t d = 0; d < y->dims; d++)
        sizes[d] = (int64_t)y->size[d];
    if (samples) {
        const struct keel_onnx_name shape = keel_onnx_fresh(export), batch = keel_onnx_fresh(export);
        to = keel_onnx_fresh(export);
        keel_onnx_node(export, "Shape", NAMES(export->place[export->input].name.text), NAMES(shape.text),
                       NULL);
        keel_onnx_node(
            export, "Slice",
            NAMES(shape.text, keel_onnx_list(export, zero, 1).text, keel_onnx_list(export, one, 1).text),
            NAMES(batch.text), NULL);
        keel_onnx_node(export, "Concat",
                       NAMES(batch.text, keel_onnx_list(export, sizes + 1, y->dims - 1).text), NAMES(to.text),
                       ATTRIBUTES(ONE_INTEGER("axis", 0)));
    } else
        to = keel_onnx_list(export, sizes, y->dims);
    keel_onnx_node(export, "Expand", NAMES(from.text, to.text),
                   NAMES(keel_onnx_make(export, result(export), false).text), NULL);
    return KEEL_OK;
}

static enum keel_status concat_along(struct export *export, uint32_t axis)
{
    struct keel_onnx_name part[KEEL_NODE_IN_MAX];
    const char *names[KEEL_NODE_IN_MAX + 1] = {NULL};
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX && operand(export, i) != 0; i++) {
        KEEL_TRY(keel_onnx_plain_name(export, operand(export, i), &part[i]));
        names[i] = part[i].text;
    }
    keel_onnx_node(export, "Concat", names, NAMES(keel_onnx_make(export, result(export), false).text),
                   ATTRIBUTES(ONE_INTEGER("axis", axis)));
    return KEEL_OK;
}

static enum keel_status put_concat(struct export *export)
{
    return concat_along(export, export->node->attributes.slice.axis);
}

static enum keel_status put_join(struct export *export)
{
    return concat_along(export, export->graph->values[result(export)].shape.dims - 1);
}

static enum keel_status put_slice(struct export *export)
{
    const uint64_t from = export->node->attributes.slice.from, count = export->node->attributes.slice.count;
    const int64_t begin[] = {(int64_t)from}, end[] = {(int64_t)(from + count)},
                  axis[] = {export->node->attributes.slice.axis};
    struct keel_onnx_name x;
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 0), &x));
    keel_onnx_node(export, "Slice",
                   NAMES(x.text, keel_onnx_list(export, begin, 1).text, keel_onnx_list(export, end, 1).text,
                         keel_onnx_list(export, axis, 1).text),
                   NAMES(keel_onnx_make(export, result(export), false).text), NULL);
    return KEEL_OK;
}

static enum keel_status put_permute(struct export *export)
{
    int64_t order[KEEL_DIMS_MAX];
    const uint32_t dims = shape_of(export, result(export))->dims;
    struct keel_onnx_name x;
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 0), &x));
    for (uint32_t d = 0; d < dims; d++)
        order[d] = export->node->attributes.order[d];
    keel_onnx_node(export, "Transpose", NAMES(x.text),
                   NAMES(keel_onnx_make(export, result(export), false).text),
                   ATTRIBUTES(INTEGERS("perm", order, dims)));
    return KEEL_OK;
}

static enum keel_status put_pairs(struct export *export)
{
    static const int64_t order[] = {0, 2, 1};
    const struct keel_shape *x = shape_of(export, operand(export, 0));
    const uint64_t columns = x->size[x->dims - 1];
    const int64_t apart[] = {-1, 2, (int64_t)(columns / export->node->attributes.joined.heads / 2)};
    const int64_t whole[] = {-1, (int64_t)x->size[x->dims - 2], (int64_t)columns};
    const struct keel_onnx_name halves = keel_onnx_fresh(export), pairs = keel_onnx_fresh(export);
    struct keel_onnx_name from;
    if (x->dims != 3)
        return keel_onnx_export_refuse(export,
                                       " of other than three dimensions has no operator of ONNX here");
    KEEL_TRY(keel_onnx_plain_name(export, operand(export, 0), &from));
    keel_onnx_node(export, "Reshape", NAMES(from.text, keel_onnx_list(export, apart, 3).text),
                   NAMES(halves.text), NULL);
    keel_onnx_node(export, "Transpose", NAMES(halves.text), NAMES(pairs.text),
                   ATTRIBUTES(INTEGERS("perm", order, 3)));
    keel_onnx_node(export, "Reshape", NAMES(pairs.text, keel_onnx_list(export, whole, 3).text),
                   NAMES(keel_onnx_make(export, result(export), false).text), NULL);
    return KEEL_OK;
}

/* ---- images -------------------------------------------------------------------------------------------- */

/* Stride, padding in front and behind, kernel and dilation of the node. */
struct window {
    int64_t kernel[2], stride[2], pad[4], dilation[2];
};

static struct window window_of(const struct export *export)
{
    const struct keel_attributes *attributes = &export->node->attributes;
    struct window window;
    for (uint32_t i = 0; i < 2; i++) {
        window.kernel[i] = attributes->image.kernel[i];
        window.stride[i] = attributes->image.stride[i] > 0 ? attributes->image.stride[i] : 1;
        window.pad[i] = window.pad[i + 2] = attributes->image.pad[i];
        window.dilation[i] = attributes->image.dilation[i] > 0 ? attributes->image.dilation[i] : 1;
    }
    return window;
}

static enum keel_status put_conv2d(struct export *export)
{
    const struct window window = window_of(export);
    const uint32_t groups = export->node->attributes.image.groups;
    const bool biased = operand(export, 2) != 0;
    struct keel_onnx_name x, weight, bias = {""};
    KEEL_TRY(keel_onnx_image_name(export, operand(export, 0), &x));
    KEEL_TRY(keel_onnx_image_name(export, operand(export, 1), &weight));
    if (biased)
        KEEL_TRY(keel_onnx_plain_name(export, operand(export, 2), &bias));
    keel_onnx_node(export, "Conv", NAMES(x.text, weight.text, biased ? bias.text : NULL),
                   NAMES(keel_onnx_make(export, result(export), true).text),
                   ATTRIBUTES(INTEGERS("strides", window.stride, 2), INTEGERS("pads", window.pad, 4),
                              INTEGERS("dilations", window.dilation, 2),
                              ONE_INTEGER("group", groups > 0 ? groups : 1)));
    return KEEL_OK;
}

static enum keel_status put_batch_norm(struct export *export)
{
    const uint32_t dims = shape_of(export, operand(export, 0))->dims;
    const bool image = dims == 4;
    struct keel_onnx_name x, part[4];
    if (dims != 2 && !image) /* the operator's channels are the second dimension */
        return keel_onnx_export_refuse(export, " is of other than two or four dimensions: not covered");
    if (export->node->attributes.relu)
        return keel_onnx_export_refuse(export, " is fused with what is behind it");
    KEEL_TRY(image ? keel_onnx_image_name(export, operand(export, 0), &x)
                   : keel_onnx_plain_name(export, operand(export, 0), &x));
    for (uint32_t i = 0; i < 4; i++)
        KEEL_TRY(keel_onnx_plain_name(export, operand(export, 1 + i), &part[i]));
    keel_onnx_node(export, "BatchNormalization",
                   NAMES(x.text, part[0].text, part[1].text, part[2].text, part[3].text),
                   NAMES(keel_onnx_make(export, result(export), image).text),
                   ATTRIBUTES(ONE_REAL("epsilon", KEEL_NORM_EPSILON)));
    return KEEL_OK;
}

static enum keel_status pool(struct export *export, const char *operation, bool counts)
{
    const struct window window = window_of(export);
    struct keel_onnx_name x;
    KEEL_TRY(keel_onnx_image_name(export, operand(export, 0), &x));
    keel_onnx_node(
        export, operation, NAMES(x.text), NAMES(keel_onnx_make(export, result(export), true).text),
        counts ? ATTRIBUTES(INTEGERS("kernel_shape", window.kernel, 2), INTEGERS("strides", window.stride, 2),
                            INTEGERS("pads", window.pad, 4), ONE_INTEGER("count_include_pad", 1))
               : ATTRIBUTES(INTEGERS("kernel_shape", window.kernel, 2), INTEGERS("strides", window.stride, 2),
                            INTEGERS("pads", window.pad, 4)));
    return KEEL_OK;
}

static enum keel_status put_max_pool(struct export *export)
{
    return pool(export, "MaxPool", false);
}

static enum keel_status put_avg_pool(struct export *export)
{
    return pool(export, "AveragePool", true);
}

static enum keel_status put_global_avg_pool(struct export *export)
{
    const struct keel_onnx_name mean = keel_onnx_fresh(export);
    struct keel_onnx_name x;
    KEEL_TRY(keel_onnx_image_name(export, operand(export, 0), &x));
    keel_onnx_node(export, "GlobalAveragePool", NAMES(x.text), NAMES(mean.text), NULL);
    keel_onnx_node(export, "Flatten", NAMES(mean.text),
                   NAMES(keel_onnx_make(export, result(export), false).text), NULL);
    return KEEL_OK;
}

/* ---- the table ----------------------------------------------------------------------------------------- */

static enum keel_status (*const operators[KEEL_OP_COUNT])(struct export *) = {
    [KEEL_OP_LINEAR] = put_linear,
    [KEEL_OP_LINEAR_TRANSPOSED] = put_linear_transposed,
    [KEEL_OP_LAYERNORM] = put_layernorm,
    [KEEL_OP_RMS_NORM] = put_rms_norm,
    [KEEL_OP_ACTIVATION] = put_activation,
    [KEEL_OP_SWIGLU] = put_swiglu,
    [KEEL_OP_DROPOUT] = put_dropout,
    [KEEL_OP_ADD] = put_add,
    [KEEL_OP_ATTENTION] = put_attention,
    [KEEL_OP_ROTARY] = put_rotary,
    [KEEL_OP_GROUPED_ATTENTION] = put_attention,
    [KEEL_OP_GROUPED_ROTARY] = put_rotary,
    [KEEL_OP_PAIR_HALVES] = put_pairs,
    [KEEL_OP_HEADS_JOIN] = put_join,
    [KEEL_OP_EMBEDDING] = put_embedding,
    [KEEL_OP_RESHAPE] = put_reshape,
    [KEEL_OP_CONCAT] = put_concat,
    [KEEL_OP_SLICE] = put_slice,
    [KEEL_OP_PERMUTE] = put_permute,
    [KEEL_OP_MULTIPLY] = put_multiply,
    [KEEL_OP_SOFTMAX] = put_softmax,
    [KEEL_OP_CONV2D] = put_conv2d,
    [KEEL_OP_BATCH_NORM] = put_batch_norm,
    [KEEL_OP_MAX_POOL] = put_max_pool,
    [KEEL_OP_AVG_POOL] = put_avg_pool,
    [KEEL_OP_GLOBAL_AVG_POOL] = put_global_avg_pool,
    [KEEL_OP_BINARY] = put_binary,
    [KEEL_OP_BROADCAST] = put_binary,
    [KEEL_OP_EXPAND] = put_expand,
    [KEEL_OP_REDUCE] = put_reduce,
    [KEEL_OP_SCALE] = put_scale,
    [KEEL_OP_MATMUL] = put_matmul,
};

enum keel_status keel_onnx_export_node(struct export *export)
{
    if (operators[export->node->op] == NULL)
        return keel_onnx_export_refuse(export, " has no operator of ONNX here");
    return operators[export->node->op](export);
}
