/* onnx_elements.c - operators element by element: functions of one value and of two, with broadcasting. */
#include "onnx_build.h"

#include <math.h>
#include <string.h>

/* ---- functions of one value ---------------------------------------------------------------------------- */

/* The operand as it lies, and the result like it. */
static enum keel_status unary(struct build *build, enum keel_activation_kind kind)
{
    struct value *x;
    keel_value at;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    if (x->kind == VALUE_GRAPH)
        at = x->at;
    else
        KEEL_TRY(keel_onnx_plain(build, x, &at));
    const bool nhwc = x->kind == VALUE_GRAPH && x->nhwc;
    return keel_onnx_give(build, keel_graph_activation(build->graph, at, kind), x->dims, x->size, nhwc);
}

#define UNARY(name, kind)                                                                                    \
    static enum keel_status build_##name(struct build *build)                                                \
    {                                                                                                        \
        return unary(build, kind);                                                                           \
    }
UNARY(relu, KEEL_RELU)
UNARY(tanh, KEEL_TANH)
UNARY(sigmoid, KEEL_SIGMOID)
UNARY(softplus, KEEL_SOFTPLUS)
UNARY(exp, KEEL_EXP)
UNARY(log, KEEL_LOG)
UNARY(sqrt, KEEL_SQRT)
UNARY(reciprocal, KEEL_RECIPROCAL)
UNARY(abs, KEEL_ABS)
UNARY(erf, KEEL_ERF)
UNARY(hard_swish, KEEL_HARD_SWISH)

static enum keel_status build_elu(struct build *build)
{
    const float alpha = keel_onnx_real_attribute(build, "alpha", 1.0F);
    if (alpha != 1.0F)
        return keel_onnx_refuse_node(build, "alpha = %g; only 1 is covered", (double)alpha);
    return unary(build, KEEL_ELU);
}

static enum keel_status build_gelu(struct build *build)
{
    const struct keel_onnx_attribute *form = keel_onnx_attribute(build, "approximate");
    const bool tanh = form != NULL && keel_onnx_text_is(form->text, "tanh");
    if (form != NULL && !tanh && !keel_onnx_text_is(form->text, "none"))
        return keel_onnx_refuse_node(build, "approximate is neither none nor tanh");
    return unary(build, tanh ? KEEL_GELU : KEEL_GELU_ERF);
}

/* Scaled as it lies. */
static enum keel_status scale(struct build *build, struct value *x, double factor, double addend)
{
    keel_value at;
    if (x->kind == VALUE_GRAPH)
        at = x->at;
    else
        KEEL_TRY(keel_onnx_plain(build, x, &at));
    const bool nhwc = x->kind == VALUE_GRAPH && x->nhwc;
    return keel_onnx_give(build, keel_graph_scale(build->graph, at, (float)factor, (float)addend), x->dims,
                          x->size, nhwc);
}

static enum keel_status build_neg(struct build *build)
{
    struct value *x;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    return scale(build, x, -1.0, 0.0);
}

/* ---- functions of two values --------------------------------------------------------------------------- */

/* The shape of both, by NumPy's rule. */
static enum keel_status broadcast(struct build *build, const struct value *a, const struct value *b,
                                  struct value *out)
{
    *out = (struct value){.dims = a->dims > b->dims ? a->dims : b->dims};
    for (uint32_t i = 0; i < out->dims; i++) {
        const uint64_t of_a = i < a->dims ? a->size[a->dims - 1 - i] : 1,
                       of_b = i < b->dims ? b->size[b->dims - 1 - i] : 1;
        if (of_a != of_b && of_a != 1 && of_b != 1)
            return keel_onnx_refuse_node(build, "operands of %llu and %llu along dimension %u from the right",
                                         (unsigned long long)of_a, (unsigned long long)of_b, i);
        out->size[out->dims - 1 - i] = of_a == 1 ? of_b : of_a;
    }
    return KEEL_OK;
}

/* An operand in the dimensions that the result has in the graph: those that are 1 in it are dropped. */
static enum keel_status aligned(struct build *build, struct value *x, const struct value *whole,
                                keel_value *out)
{
    struct keel_shape shape = {.dims = 0};
    KEEL_TRY(keel_onnx_plain(build, x, out));
    if (whole->dims <= KEEL_DIMS_MAX)
        return KEEL_OK;
    for (uint32_t i = 0; i < whole->dims; i++) {
        const uint32_t from_right = whole->dims - 1 - i;
        if (whole->size[i] == 1)
            continue;
        if (shape.dims == KEEL_DIMS_MAX)
            return keel_onnx_refuse_node(build, "a result of more than four dimensions that are not 1");
        shape.size[shape.dims++] = from_right < x->dims ? x->size[x->dims - 1 - from_right] : 1;
    }
    if (shape.dims == 0)
        shape = (struct keel_shape){1, {1}};
    *out = keel_graph_reshape(build->graph, *out, shape);
    return keel_graph_status(build->graph);
}

static enum keel_status binary_of(struct build *build, struct value *a, struct value *b,
                                  enum keel_binary_kind kind)
{
    struct value whole;
    keel_value u, v;
    KEEL_TRY(broadcast(build, a, b, &whole));
    if (a->kind == VALUE_GRAPH && b->kind == VALUE_GRAPH && a->nhwc && b->nhwc && keel_onnx_same_size(a, b))
        return keel_onnx_give(build, keel_graph_binary(build->graph, a->at, b->at, kind), a->dims, a->size,
                              true);
    KEEL_TRY(aligned(build, a, &whole, &u));
    KEEL_TRY(aligned(build, b, &whole, &v));
    return keel_onnx_give_reshaped(build, keel_graph_binary(build->graph, u, v, kind), whole.dims,
                                   whole.size);
}

static enum keel_status binary(struct build *build, enum keel_binary_kind kind)
{
    struct value *a, *b;
    KEEL_TRY(keel_onnx_operand(build, 0, &a));
    KEEL_TRY(keel_onnx_operand(build, 1, &b));
    return binary_of(build, a, b, kind);
}

/* A number that keeps the other operand's shape. */
static bool scales(const struct value *number, const struct value *other, double *out)
{
    return keel_onnx_is_number(number, out) && number->dims <= other->dims && other->kind != VALUE_NUMBERS;
}

static enum keel_status build_add(struct build *build)
{
    struct value *a, *b;
    double number;
    KEEL_TRY(keel_onnx_operand(build, 0, &a));
    KEEL_TRY(keel_onnx_operand(build, 1, &b));
    if (scales(b, a, &number))
        return scale(build, a, 1.0, number);
    return scales(a, b, &number) ? scale(build, b, 1.0, number) : binary_of(build, a, b, KEEL_ADD);
}

static enum keel_status build_sub(struct build *build)
{
    struct value *a, *b;
    double number;
    KEEL_TRY(keel_onnx_operand(build, 0, &a));
    KEEL_TRY(keel_onnx_operand(build, 1, &b));
    if (scales(b, a, &number))
        return scale(build, a, 1.0, -number);
    return scales(a, b, &number) ? scale(build, b, -1.0, number) : binary_of(build, a, b, KEEL_SUBTRACT);
}

static enum keel_status build_mul(struct build *build)
{
    struct value *a, *b;
    double number;
    KEEL_TRY(keel_onnx_operand(build, 0, &a));
    KEEL_TRY(keel_onnx_operand(build, 1, &b));
    if (scales(b, a, &number))
        return scale(build, a, number, 0.0);
    return scales(a, b, &number) ? scale(build, b, number, 0.0) : binary_of(build, a, b, KEEL_MULTIPLY);
}

/* By a number: by a power of two as well as by its reciprocal; others would round twice. */
static enum keel_status build_div(struct build *build)
{
    struct value *a, *b;
    double number;
    int exponent;
    KEEL_TRY(keel_onnx_operand(build, 0, &a));
    KEEL_TRY(keel_onnx_operand(build, 1, &b));
    if (scales(b, a, &number) && fabs(frexp(number, &exponent)) == 0.5)
        return scale(build, a, 1.0 / number, 0.0);
    return binary_of(build, a, b, KEEL_DIVIDE);
}

static enum keel_status build_max(struct build *build)
{
    return build->node->in_count == 2
               ? binary(build, KEEL_MAXIMUM)
               : keel_onnx_refuse_node(build, "%u operands; two are covered", build->node->in_count);
}
static enum keel_status build_min(struct build *build)
{
    return build->node->in_count == 2
               ? binary(build, KEEL_MINIMUM)
               : keel_onnx_refuse_node(build, "%u operands; two are covered", build->node->in_count);
}
static enum keel_status build_equal(struct build *build)
{
    return binary(build, KEEL_EQUAL);
}
static enum keel_status build_less(struct build *build)
{
    return binary(build, KEEL_LESS);
}
static enum keel_status build_greater(struct build *build)
{
    struct value *a, *b;
    KEEL_TRY(keel_onnx_operand(build, 0, &a));
    KEEL_TRY(keel_onnx_operand(build, 1, &b));
    return binary_of(build, b, a, KEEL_LESS);
}

static enum keel_status build_pow(struct build *build)
{
    struct value *x, *power;
    keel_value at;
    double number;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    KEEL_TRY(keel_onnx_operand(build, 1, &power));
    if (!scales(power, x, &number))
        return binary_of(build, x, power, KEEL_POWER);
    if (number == 2.0)
        return unary(build, KEEL_SQUARE);
    if (number == 0.5)
        return unary(build, KEEL_SQRT);
    if (number == -1.0)
        return unary(build, KEEL_RECIPROCAL);
    if (number != 3.0)
        return binary_of(build, x, power, KEEL_POWER);
    KEEL_TRY(keel_onnx_plain(build, x, &at));
    return keel_onnx_give(build,
                          keel_graph_binary(build->graph, at,
                                            keel_graph_activation(build->graph, at, KEEL_SQUARE),
                                            KEEL_MULTIPLY),
                          x->dims, x->size, false);
}

/* [0, 6], or one bound that is known. */
static enum keel_status build_clip(struct build *build)
{
    struct value *x, *bound[2] = {NULL, NULL};
    double low = -INFINITY, high = INFINITY;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    for (uint32_t i = 0; i < 2; i++)
        if (keel_onnx_has_operand(build, 1 + i)) {
            KEEL_TRY(keel_onnx_operand(build, 1 + i, &bound[i]));
            if (!keel_onnx_is_number(bound[i], i == 0 ? &low : &high))
                return keel_onnx_refuse_node(build, "bounds must be known numbers");
        }
    if (low == 0.0 && high == 6.0)
        return unary(build, KEEL_RELU6);
    if (low == 0.0 && high > 3e38)
        return unary(build, KEEL_RELU);
    return keel_onnx_refuse_node(build, "bounds %g and %g; 0 and 6, and 0 alone are covered", low, high);
}

static enum keel_status build_where(struct build *build)
{
    struct value *condition, *a, *b, both, whole;
    keel_value c, u, v;
    KEEL_TRY(keel_onnx_operand(build, 0, &condition));
    KEEL_TRY(keel_onnx_operand(build, 1, &a));
    KEEL_TRY(keel_onnx_operand(build, 2, &b));
    KEEL_TRY(broadcast(build, a, b, &both));
    KEEL_TRY(broadcast(build, condition, &both, &whole));
    KEEL_TRY(aligned(build, condition, &whole, &c));
    KEEL_TRY(aligned(build, a, &whole, &u));
    KEEL_TRY(aligned(build, b, &whole, &v));
    return keel_onnx_give_reshaped(build, keel_graph_where(build->graph, c, u, v), whole.dims, whole.size);
}

const struct keel_onnx_operator keel_onnx_elements[] = {
    {"Abs", build_abs},
    {"Add", build_add},
    {"Clip", build_clip},
    {"Div", build_div},
    {"Elu", build_elu},
    {"Equal", build_equal},
    {"Erf", build_erf},
    {"Exp", build_exp},
    {"Gelu", build_gelu},
    {"Greater", build_greater},
    {"HardSwish", build_hard_swish},
    {"Less", build_less},
    {"Log", build_log},
    {"Max", build_max},
    {"Min", build_min},
    {"Mul", build_mul},
    {"Neg", build_neg},
    {"Pow", build_pow},
    {"Reciprocal", build_reciprocal},
    {"Relu", build_relu},
    {"Sigmoid", build_sigmoid},
    {"Softplus", build_softplus},
    {"Sqrt", build_sqrt},
    {"Sub", build_sub},
    {"Tanh", build_tanh},
    {"Where", build_where},
    {NULL, NULL},
};
