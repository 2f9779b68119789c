/* graph_tensor.c - tensors of unlike shapes element by element, sums over dimensions, products of two
 * activations: builder functions, gradients, launches. */
#include "autodiff.h"
#include "emit.h"

#include <inttypes.h>
#include <keel/tensor_ops.h>
#include <stdio.h>

_Static_assert((int)KEEL_DIMS_MAX == (int)KEEL_TENSOR_DIMS, "shapes of the kernels");

static const struct keel_shape *operand_shape(const struct keel_graph *graph, keel_value value)
{
    return &graph->values[value].shape;
}

static bool same_shape(const struct keel_shape *a, const struct keel_shape *b)
{
    bool same = a->dims == b->dims;
    for (uint32_t i = 0; same && i < a->dims; i++)
        same = a->size[i] == b->size[i];
    return same;
}

/* Dimension i from the right; 1 in front of the first. */
static uint64_t size_from_right(const struct keel_shape *shape, uint32_t i)
{
    return i < shape->dims ? shape->size[shape->dims - 1 - i] : 1;
}

/* The sizes of a result whose rule is ABCD. */
static bool set_result(struct keel_infer *infer, const struct keel_shape *shape)
{
    for (uint32_t i = 0; i < shape->dims; i++)
        infer->size['A' + i] = shape->size[i];
    return true;
}

/* Of a result, the dimensions that an operand has, in the order of the kernel: bit i is dimension i of four.
 */
static uint32_t dims_of(const struct keel_shape *operand, const struct keel_shape *result)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < KEEL_DIMS_MAX; i++)
        if (size_from_right(operand, i) == size_from_right(result, i))
            bits |= 1U << (KEEL_DIMS_MAX - 1 - i);
    return bits;
}

/* ---- functions of two values --------------------------------------------------------------------------- */

keel_value keel_graph_binary(struct keel_graph *graph, keel_value a, keel_value b, enum keel_binary_kind kind)
{
    const struct keel_shape of_a = keel_graph_shape(graph, a), of_b = keel_graph_shape(graph, b);
    return KEEL_NODE(graph, .op = same_shape(&of_a, &of_b) ? KEEL_OP_BINARY : KEEL_OP_BROADCAST, .in = {a, b},
                     .attributes.binary.kind = kind);
}

keel_value keel_graph_where(struct keel_graph *graph, keel_value condition, keel_value a, keel_value b)
{
    return keel_graph_binary(graph, keel_graph_binary(graph, condition, a, KEEL_WHERE),
                             keel_graph_binary(graph, condition, b, KEEL_WHERE_NOT), KEEL_ADD);
}

static bool infer_binary(struct keel_infer *infer)
{
    const enum keel_binary_kind kind = infer->node->attributes.binary.kind;
    return keel_binary_name(kind) != NULL || keel_infer_refuse(infer, "there is no kind %u", (unsigned)kind);
}

static bool infer_broadcast(struct keel_infer *infer)
{
    const struct keel_ir_node *node = infer->node;
    const struct keel_shape *a = operand_shape(infer->graph, node->in[0]),
                            *b = operand_shape(infer->graph, node->in[1]);
    struct keel_shape y = {.dims = a->dims > b->dims ? a->dims : b->dims};
    for (uint32_t i = 0; i < y.dims; i++) {
        const uint64_t of_a = size_from_right(a, i), of_b = size_from_right(b, i);
        if (of_a != of_b && of_a != 1 && of_b != 1)
            return keel_infer_refuse(infer, "dimension %u from the right is %" PRIu64 " and %" PRIu64, i,
                                     of_a, of_b);
        y.size[y.dims - 1 - i] = of_a > of_b ? of_a : of_b;
    }
    return infer_binary(infer) && set_result(infer, &y);
}

/* A slope has the shape of dy. */
static bool infer_broadcast_grad(struct keel_infer *infer)
{
    return set_result(infer, operand_shape(infer->graph, infer->node->in[2]));
}

static void describe_binary(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    static const char *const of[KEEL_BINARY_RESULTS] = {"", " slope=a", " slope=b"};
    snprintf(text, text_bytes, " kind=%s%s", keel_binary_name(node->attributes.binary.kind),
             of[node->attributes.binary.of]);
}

static enum keel_status emit_binary(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_shape *y = shape_of(emit, node->out[0]);
    struct keel_binary op = {.kind = node->attributes.binary.kind,
                             .of = node->attributes.binary.of,
                             .a_dims = dims_of(shape_of(emit, node->in[0]), y),
                             .b_dims = dims_of(shape_of(emit, node->in[1]), y),
                             .a = buffer_of(emit, node->in[0]),
                             .b = buffer_of(emit, node->in[1]),
                             .dy = buffer_of(emit, node->in[2]),
                             .y = buffer_of(emit, node->out[0])};
    for (uint32_t i = 0; i < KEEL_DIMS_MAX; i++)
        op.size[KEEL_DIMS_MAX - 1 - i] = size_from_right(y, i);
    return emit->measure ? KEEL_OK : keel_op_binary(emit->kernels, &op, emit->list);
}

/* ---- expand -------------------------------------------------------------------------------------------- */

keel_value keel_graph_expand(struct keel_graph *graph, keel_value x, struct keel_shape shape)
{
    const struct keel_shape from = keel_graph_shape(graph, x);
    return same_shape(&from, &shape) && x != 0
               ? x
               : KEEL_NODE(graph, .op = KEEL_OP_EXPAND, .in = {x}, .attributes.shape = shape);
}

static bool infer_expand(struct keel_infer *infer)
{
    const struct keel_shape *x = operand_shape(infer->graph, infer->node->in[0]),
                            *y = &infer->node->attributes.shape;
    bool fits = x->dims <= y->dims && y->dims <= KEEL_DIMS_MAX;
    for (uint32_t i = 0; fits && i < y->dims; i++)
        fits = size_from_right(y, i) != 0 &&
               (size_from_right(x, i) == size_from_right(y, i) || size_from_right(x, i) == 1);
    if (fits)
        return set_result(infer, y);
    return keel_infer_refuse(
        infer, "it cannot be repeated to [%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "] of %u dimensions",
        y->size[0], y->size[1], y->size[2], y->size[3], y->dims);
}

static enum keel_status emit_expand(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_ir_node first = *node;
    first.in[1] = node->in[0];
    first.attributes = (struct keel_attributes){.binary.kind = KEEL_FIRST};
    return emit_binary(emit, &first);
}

/* ---- sums over dimensions ------------------------------------------------------------------------------ */

keel_value keel_graph_reduce(struct keel_graph *graph, keel_value x, enum keel_reduce_kind kind, uint32_t dim,
                             uint32_t dims)
{
    return KEEL_NODE(graph, .op = KEEL_OP_REDUCE, .in = {x},
                     .attributes.reduce = {.kind = kind, .dim = dim, .dims = dims});
}

/* A result of no dimensions would be nothing that others take: of all of them it has one, of size 1. */
static bool infer_reduce(struct keel_infer *infer)
{
    const struct keel_shape *x = operand_shape(infer->graph, infer->node->in[0]);
    const uint32_t dim = infer->node->attributes.reduce.dim, dims = infer->node->attributes.reduce.dims;
    struct keel_shape y = {.dims = 0};
    if ((unsigned)infer->node->attributes.reduce.kind >= KEEL_REDUCE_COUNT)
        return keel_infer_refuse(infer, "there is no kind %u", (unsigned)infer->node->attributes.reduce.kind);
    if (dims == 0 || dim >= x->dims || dims > x->dims - dim)
        return keel_infer_refuse(infer, "there are no %u dimensions from %u on", dims, dim);
    for (uint32_t i = 0; i < x->dims; i++)
        if (i < dim || i >= dim + dims)
            y.size[y.dims++] = x->size[i];
    if (y.dims == 0)
        y = (struct keel_shape){.dims = 1, .size = {1}};
    return set_result(infer, &y);
}

static void describe_reduce(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    static const char *const names[KEEL_REDUCE_COUNT] = {"sum", "mean", "maximum"};
    snprintf(text, text_bytes, " kind=%s dim=%u dims=%u", names[node->attributes.reduce.kind],
             node->attributes.reduce.dim, node->attributes.reduce.dims);
}

/* The elements of x's dimensions [from, to). */
static uint64_t volume(const struct keel_shape *x, uint32_t from, uint32_t to)
{
    uint64_t count = 1;
    for (uint32_t i = from; i < to; i++)
        count *= x->size[i];
    return count;
}

static enum keel_status emit_reduce(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_shape *x = shape_of(emit, node->in[0]);
    const uint32_t dim = node->attributes.reduce.dim, end = dim + node->attributes.reduce.dims;
    const struct keel_reduce op = {.kind = node->attributes.reduce.kind,
                                   .outer = volume(x, 0, dim),
                                   .n = volume(x, dim, end),
                                   .inner = volume(x, end, x->dims),
                                   .x = buffer_of(emit, node->in[0]),
                                   .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_reduce(emit->kernels, &op, emit->list);
}

/* ---- gradients of these -------------------------------------------------------------------------------- */

/* x, which has the shape that an operand of `to` was repeated to, summed back: runs of dimensions that it has
 * not are one sum each, from the right. */
static keel_value sum_back(struct keel_graph *graph, keel_value x, const struct keel_shape *to)
{
    const struct keel_shape from = keel_graph_shape(graph, x);
    for (uint32_t end = from.dims; end > 0;) {
        uint32_t begin = end;
        while (begin > 0 && size_from_right(to, from.dims - begin) != from.size[begin - 1])
            begin--;
        if (begin == end) {
            end--;
            continue;
        }
        x = keel_graph_reduce(graph, x, KEEL_REDUCE_SUM, begin, end - begin);
        end = begin;
    }
    const struct keel_shape made = keel_graph_shape(graph, x);
    return same_shape(&made, to) ? x : keel_graph_reshape(graph, x, *to);
}

/* The slope along operand `at` times dy; of a sum that is dy itself. */
static keel_value slope(struct keel_graph *graph, const struct keel_ir_node *node, uint32_t at, keel_value dy)
{
    const enum keel_binary_kind kind = node->attributes.binary.kind;
    if (kind == KEEL_ADD || (kind == KEEL_SUBTRACT && at == 0) || (kind == KEEL_FIRST && at == 0))
        return dy;
    return KEEL_NODE(
        graph, .op = node->op == KEEL_OP_BINARY ? KEEL_OP_BINARY_GRAD : KEEL_OP_BROADCAST_GRAD,
        .in = {node->in[0], node->in[1], dy},
        .attributes.binary = {.kind = kind, .of = at == 0 ? KEEL_BINARY_SLOPE_A : KEEL_BINARY_SLOPE_B});
}

/* Where the function is flat along an operand there is nothing to hand on. */
static bool is_flat(enum keel_binary_kind kind, uint32_t at)
{
    return kind == KEEL_EQUAL || kind == KEEL_LESS ||
           (at == 0 && (kind == KEEL_WHERE || kind == KEEL_WHERE_NOT)) || (at == 1 && kind == KEEL_FIRST);
}

static void grad_binary(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    const keel_value dy = arrived(autodiff, node->out[0]);
    for (uint32_t at = 0; at < 2; at++) {
        const keel_value operand = node->in[at];
        if (!wanted(autodiff, operand) || is_flat(node->attributes.binary.kind, at))
            continue;
        const struct keel_shape to = *operand_shape(autodiff->graph, operand);
        keel_gradient_add(autodiff, operand,
                          sum_back(autodiff->graph, slope(autodiff->graph, node, at, dy), &to));
    }
}

static void grad_expand(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    const struct keel_shape to = *operand_shape(autodiff->graph, node->in[0]);
    if (wanted(autodiff, node->in[0]))
        keel_gradient_add(autodiff, node->in[0],
                          sum_back(autodiff->graph, arrived(autodiff, node->out[0]), &to));
}

/* A value that lost dimensions, with sizes of 1 in their place. */
static keel_value with_ones(struct keel_graph *graph, keel_value y, const struct keel_shape *x, uint32_t dim,
                            uint32_t dims)
{
    struct keel_shape ones = *x;
    for (uint32_t i = dim; i < dim + dims; i++)
        ones.size[i] = 1;
    return keel_graph_reshape(graph, y, ones);
}

/* Of the largest each of equals has its share, so that what arrives is handed on whole. */
static keel_value maximum_gradient(struct keel_graph *graph, const struct keel_ir_node *node,
                                   const struct keel_shape *x, keel_value dy)
{
    const uint32_t dim = node->attributes.reduce.dim, dims = node->attributes.reduce.dims;
    const keel_value y = with_ones(graph, node->out[0], x, dim, dims);
    const keel_value chosen = keel_graph_binary(graph, node->in[0], y, KEEL_EQUAL);
    const keel_value count = keel_graph_reduce(graph, chosen, KEEL_REDUCE_SUM, dim, dims);
    const keel_value share = keel_graph_binary(graph, dy, count, KEEL_DIVIDE);
    return keel_graph_binary(graph, chosen, with_ones(graph, share, x, dim, dims), KEEL_WHERE);
}

static void grad_reduce(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    struct keel_graph *graph = autodiff->graph;
    const struct keel_shape x = *operand_shape(graph, node->in[0]);
    const uint32_t dim = node->attributes.reduce.dim, dims = node->attributes.reduce.dims;
    keel_value dy = arrived(autodiff, node->out[0]);
    if (!wanted(autodiff, node->in[0]))
        return;
    if (node->attributes.reduce.kind == KEEL_REDUCE_MAXIMUM) {
        keel_gradient_add(autodiff, node->in[0], maximum_gradient(graph, node, &x, dy));
        return;
    }
    if (node->attributes.reduce.kind == KEEL_REDUCE_MEAN)
        dy = keel_graph_scale(graph, dy, (float)(1.0 / (double)volume(&x, dim, dim + dims)), 0.0F);
    keel_gradient_add(autodiff, node->in[0],
                      keel_graph_expand(graph, with_ones(graph, dy, &x, dim, dims), x));
}

/* ---- scale --------------------------------------------------------------------------------------------- */

keel_value keel_graph_scale(struct keel_graph *graph, keel_value x, float factor, float addend)
{
    return KEEL_NODE(graph, .op = KEEL_OP_SCALE, .in = {x}, .attributes.scale = {factor, addend});
}

static bool infer_scale(struct keel_infer *infer)
{
    const float factor = infer->node->attributes.scale.factor, addend = infer->node->attributes.scale.addend;
    /* what is finite is less than twice the largest in either direction, which no NaN is */
    const bool finite = factor >= -3.4028235e38F && factor <= 3.4028235e38F && addend >= -3.4028235e38F &&
                        addend <= 3.4028235e38F;
    return finite ||
           keel_infer_refuse(infer, "times %g plus %g is nothing finite", (double)factor, (double)addend);
}

static void describe_scale(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, " factor=%g addend=%g", (double)node->attributes.scale.factor,
             (double)node->attributes.scale.addend);
}

static void grad_scale(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    if (wanted(autodiff, node->in[0]))
        keel_gradient_add(autodiff, node->in[0],
                          keel_graph_scale(autodiff->graph, arrived(autodiff, node->out[0]),
                                           node->attributes.scale.factor, 0.0F));
}

static enum keel_status emit_scale(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_scale op = {.count = count_of(emit, node->in[0]),
                                  .factor = node->attributes.scale.factor,
                                  .addend = node->attributes.scale.addend,
                                  .x = buffer_of(emit, node->in[0]),
                                  .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_scale(emit->kernels, &op, emit->list);
}

/* ---- products of two activations ----------------------------------------------------------------------- */

keel_value keel_graph_matmul(struct keel_graph *graph, keel_value a, keel_value b)
{
    return KEEL_NODE(graph, .op = KEEL_OP_MATMUL, .in = {a, b});
}

static void grad_matmul(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    const keel_value a = node->in[0], b = node->in[1], dy = arrived(autodiff, node->out[0]);
    if (wanted(autodiff, a))
        KEEL_GRADIENT(autodiff, a, .op = KEEL_OP_MATMUL_DA, .in = {dy, b});
    if (wanted(autodiff, b))
        KEEL_GRADIENT(autodiff, b, .op = KEEL_OP_MATMUL_DB, .in = {a, dy});
}

/* [m, k] times [k, n]; of DA [m, n] times [k, n] transposed; of DB [m, k] transposed times [m, n]. */
static enum keel_status emit_matmul(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_shape *a = shape_of(emit, node->in[0]), *b = shape_of(emit, node->in[1]),
                            *c = shape_of(emit, node->out[0]);
    struct keel_gemm op = {.transpose_a = node->op == KEEL_OP_MATMUL_DB,
                           .transpose_b = node->op == KEEL_OP_MATMUL_DA,
                           .batch = (uint32_t)volume(c, 0, c->dims - 2),
                           .lda = width_of(emit, node->in[0]),
                           .ldb = width_of(emit, node->in[1]),
                           .ldc = width_of(emit, node->out[0]),
                           .a = buffer_of(emit, node->in[0]),
                           .b = buffer_of(emit, node->in[1]),
                           .c = buffer_of(emit, node->out[0])};
    op.m = (uint32_t)c->size[c->dims - 2];
    op.n = op.ldc;
    op.k = (uint32_t)(op.transpose_a ? a->size[a->dims - 2] : a->size[a->dims - 1]);
    op.stride_a = volume(a, a->dims - 2, a->dims);
    op.stride_b = volume(b, b->dims - 2, b->dims);
    op.stride_c = volume(c, c->dims - 2, c->dims);
    const uint64_t planes = keel_gemm_planes_bytes(emit->kernels, &op);
    need_workspace(emit, planes);
    op.planes = planes > 0 ? emit->workspace : NULL;
    return emit->measure ? KEEL_OK : keel_op_gemm(emit->kernels, &op, emit->list);
}

/* ---- the table ----------------------------------------------------------------------------------------- */

enum { FIRST = KEEL_OP_BINARY, LAST = KEEL_OP_MATMUL_DB };
static const struct keel_op rows[LAST - FIRST + 1] = {
    [KEEL_OP_BINARY - FIRST] = {.name = "binary",
                                .rule = "*,*->*",
                                .split = "*",
                                .infer_dims = infer_binary,
                                .describe = describe_binary,
                                .grad = grad_binary,
                                .emit = emit_binary},
    /* Operands: a, b, dy. */
    [KEEL_OP_BINARY_GRAD - FIRST] = {.name = "binary_grad",
                                     .rule = "*,*,*->*",
                                     .split = "*",
                                     .describe = describe_binary,
                                     .emit = emit_binary},
    /* Of unlike shapes: whole operands only. */
    [KEEL_OP_BROADCAST - FIRST] = {.name = "broadcast",
                                   .rule = "~,~->ABCD",
                                   .infer_dims = infer_broadcast,
                                   .describe = describe_binary,
                                   .grad = grad_binary,
                                   .emit = emit_binary},
    [KEEL_OP_BROADCAST_GRAD - FIRST] = {.name = "broadcast_grad",
                                        .rule = "~,~,~->ABCD",
                                        .infer_dims = infer_broadcast_grad,
                                        .describe = describe_binary,
                                        .emit = emit_binary},
    [KEEL_OP_EXPAND - FIRST] = {.name = "expand",
                                .rule = "~->ABCD",
                                .infer_dims = infer_expand,
                                .grad = grad_expand,
                                .emit = emit_expand},
    [KEEL_OP_REDUCE - FIRST] = {.name = "reduce",
                                .rule = "~->ABCD",
                                .infer_dims = infer_reduce,
                                .describe = describe_reduce,
                                .grad = grad_reduce,
                                .emit = emit_reduce},
    [KEEL_OP_SCALE - FIRST] = {.name = "scale",
                               .rule = "*->*",
                               .split = "*",
                               .in_place = "00",
                               .infer_dims = infer_scale,
                               .describe = describe_scale,
                               .grad = grad_scale,
                               .emit = emit_scale},
    [KEEL_OP_MATMUL - FIRST] =
        {.name = "matmul", .rule = "*mk,*kn->*mn", .split = "*", .grad = grad_matmul, .emit = emit_matmul},
    [KEEL_OP_MATMUL_DA -
        FIRST] = {.name = "matmul_da", .rule = "*mn,*kn->*mk", .split = "*", .emit = emit_matmul},
    [KEEL_OP_MATMUL_DB -
        FIRST] = {.name = "matmul_db", .rule = "*mk,*mn->*kn", .split = "*", .emit = emit_matmul},
};

const struct keel_op_family keel_ops_tensor = {FIRST, LAST, rows};
