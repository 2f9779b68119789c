/* graph_shape.c - reshape, concatenate, slice, permute, multiply: builder functions, gradients, launches. */
#include "autodiff.h"
#include "emit.h"

#include <inttypes.h>
#include <keel/shape_ops.h>
#include <stdio.h>
#include <string.h>

/* The sizes of a result whose rule is ABCD; missing dimensions are 0. */
static bool set_result(struct keel_infer *infer, const struct keel_shape *shape)
{
    for (uint32_t i = 0; i < shape->dims; i++)
        infer->size['A' + i] = shape->size[i];
    return true;
}

static const struct keel_shape *operand_shape(const struct keel_graph *graph, keel_value value)
{
    return &graph->values[value].shape;
}

/* The product of dimensions [from, to). */
static uint64_t volume(const struct keel_shape *shape, uint32_t from, uint32_t to)
{
    uint64_t count = 1;
    for (uint32_t i = from; i < to; i++)
        count *= shape->size[i];
    return count;
}

/* A gradient that is one node of dy, with attributes. */
static void gradient_node(struct keel_autodiff *autodiff, const struct keel_ir_node *node, uint32_t op,
                          const struct keel_attributes *attributes)
{
    KEEL_GRADIENT(autodiff, node->in[0], .op = op, .in = {arrived(autodiff, node->out[0])},
                  .attributes = *attributes);
}

/* ---- reshape ------------------------------------------------------------------------------------------- */

keel_value keel_graph_reshape(struct keel_graph *graph, keel_value x, struct keel_shape shape)
{
    return KEEL_NODE(graph, .op = KEEL_OP_RESHAPE, .in = {x}, .attributes.shape = shape);
}

static bool infer_reshape(struct keel_infer *infer)
{
    const struct keel_ir_node *node = infer->node;
    const struct keel_shape *x = operand_shape(infer->graph, node->in[0]), *y = &node->attributes.shape;
    bool fits = y->dims <= KEEL_DIMS_MAX;
    uint64_t left = keel_shape_count(x); /* of the elements, once each size has divided them */
    for (uint32_t i = 0; fits && i < y->dims; i++) {
        fits = y->size[i] != 0 && left % y->size[i] == 0;
        left = fits ? left / y->size[i] : left;
    }
    if (fits && left == 1)
        return set_result(infer, y);
    return keel_infer_refuse(infer,
                             "%" PRIu64 " elements do not fit [%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64
                             "] of %u dimensions",
                             keel_shape_count(x), y->size[0], y->size[1], y->size[2], y->size[3], y->dims);
}

/* The dimensions that are split must be, together, as many dimensions of the result, with as much in front of
 * them; or what is beside one another in them becomes a dimension in front of them, or was one: [.., 3 w] of
 * outer 3 is [.., 3, w]. */
static bool move_reshape(const struct keel_graph *graph, const struct keel_ir_node *node,
                         struct keel_axis_spec *split)
{
    const struct keel_shape *x = operand_shape(graph, node->in[0]), *y = operand_shape(graph, node->out[0]);
    const uint64_t before = volume(x, 0, split->dim),
                   within = volume(x, split->dim, split->dim + split->dims), outer = split->outer;
    for (uint32_t first = y->dims; first-- > 0;)
        for (uint32_t end = first + 1; end <= y->dims; end++) {
            const uint64_t front = volume(y, 0, first), inside = volume(y, first, end);
            const bool apart = front == before * outer && inside * outer == within,
                       joined = outer == 1 && before == front * (inside / within) && inside % within == 0 &&
                                inside / within <= UINT8_MAX;
            if (!(front == before && inside == within) && !apart && !joined)
                continue;
            split->dim = (uint8_t)first;
            split->dims = (uint8_t)(end - first);
            split->outer = (uint8_t)(apart ? 1 : joined ? inside / within : outer);
            return true;
        }
    return false;
}

static void grad_reshape(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    const struct keel_attributes back = {.shape = autodiff->graph->values[node->in[0]].shape};
    gradient_node(autodiff, node, KEEL_OP_RESHAPE, &back);
}

/* Nothing to do where the result took the operand's place. */
static enum keel_status emit_reshape(struct keel_emit *emit, const struct keel_ir_node *node)
{
    if (emit->measure)
        return KEEL_OK;
    const struct keel_place *x = &emit->place[node->in[0]], *y = &emit->place[node->out[0]];
    if (x->whole == y->whole && x->offset == y->offset)
        return KEEL_OK;
    struct keel_copy op = {.count = count_of(emit, node->in[0]),
                           .x = buffer_of(emit, node->in[0]),
                           .y = buffer_of(emit, node->out[0])};
    return keel_op_copy(emit->kernels, &op, emit->list);
}

/* ---- concatenate and slice ----------------------------------------------------------------------------- */

/* More parts than a node has operands are joined in groups, and the groups joined again. */
keel_value keel_graph_concat(struct keel_graph *graph, const keel_value *parts, uint32_t count, uint32_t axis)
{
    keel_value joined[KEEL_CONCAT_MAX];
    KEEL_ASSERT(parts != NULL || count == 0);
    if (count == 0 || count > KEEL_CONCAT_MAX) {
        keel_graph_refuse(graph, keel_fail(KEEL_INVALID, "concat: %u parts; 1 to %d can be joined", count,
                                           KEEL_CONCAT_MAX));
        return 0;
    }
    for (uint32_t i = 0; i < count; i++)
        if (parts[i] == 0)
            keel_graph_refuse(graph, keel_fail(KEEL_INVALID, "concat: part %u of %u is missing", i, count));
    uint32_t groups = 0;
    for (uint32_t at = 0; at < count; at += KEEL_NODE_IN_MAX) {
        struct keel_node_request request = {.op = KEEL_OP_CONCAT, .attributes.slice.axis = axis};
        for (uint32_t i = 0; i < KEEL_NODE_IN_MAX && at + i < count; i++)
            request.in[i] = parts[at + i];
        joined[groups++] = keel_graph_node(graph, &request);
    }
    return groups == 1 ? joined[0] : keel_graph_concat(graph, joined, groups, axis);
}

static bool infer_concat(struct keel_infer *infer)
{
    const struct keel_ir_node *node = infer->node;
    struct keel_shape whole = *operand_shape(infer->graph, node->in[0]);
    const uint32_t axis = node->attributes.slice.axis;
    bool fits = axis < whole.dims;
    for (uint32_t i = 1; fits && i < KEEL_NODE_IN_MAX && node->in[i] != 0; i++) {
        const struct keel_shape *part = operand_shape(infer->graph, node->in[i]);
        fits = part->dims == whole.dims;
        for (uint32_t d = 0; fits && d < whole.dims; d++)
            fits = d == axis || part->size[d] == whole.size[d];
        whole.size[axis] += fits ? part->size[axis] : 0;
    }
    if (!fits)
        return keel_infer_refuse(infer, "the parts must be alike but for dimension %u", axis);
    return set_result(infer, &whole);
}

static void describe_concat(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, " axis=%u", node->attributes.slice.axis);
}

/* To each part its slice. */
static void grad_concat(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    struct keel_attributes part = node->attributes;
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX && node->in[i] != 0; i++) {
        part.slice.count = autodiff->graph->values[node->in[i]].shape.size[part.slice.axis];
        if (wanted(autodiff, node->in[i]))
            KEEL_GRADIENT(autodiff, node->in[i], .op = KEEL_OP_SLICE, .in = {arrived(autodiff, node->out[0])},
                          .attributes = part);
        part.slice.from += part.slice.count;
    }
}

static enum keel_status emit_concat(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const uint32_t axis = node->attributes.slice.axis;
    const struct keel_shape *y = shape_of(emit, node->out[0]);
    uint64_t sizes[KEEL_NODE_IN_MAX];
    struct keel_buffer *input[KEEL_NODE_IN_MAX];
    struct keel_concat op = {.outer = volume(y, 0, axis),
                             .inner = volume(y, axis + 1, y->dims),
                             .sizes = sizes,
                             .input = input,
                             .y = buffer_of(emit, node->out[0])};
    for (; op.parts < KEEL_NODE_IN_MAX && node->in[op.parts] != 0; op.parts++) {
        sizes[op.parts] = shape_of(emit, node->in[op.parts])->size[axis];
        input[op.parts] = buffer_of(emit, node->in[op.parts]);
    }
    return emit->measure ? KEEL_OK : keel_op_concat(emit->kernels, &op, emit->list);
}

/* Of concat, slice and its gradient: along the axis nothing may be split. */
static bool move_along(const struct keel_graph *graph, const struct keel_ir_node *node,
                       struct keel_axis_spec *split)
{
    (void)graph;
    const uint32_t axis = node->attributes.slice.axis;
    return axis < split->dim || axis >= (uint32_t)split->dim + split->dims;
}

keel_value keel_graph_slice(struct keel_graph *graph, keel_value x, uint32_t axis, uint64_t from,
                            uint64_t count)
{
    return KEEL_NODE(graph, .op = KEEL_OP_SLICE, .in = {x},
                     .attributes.slice = {.axis = axis, .from = from, .count = count});
}

static bool infer_slice(struct keel_infer *infer)
{
    const struct keel_ir_node *node = infer->node;
    struct keel_shape part = *operand_shape(infer->graph, node->in[0]);
    const uint32_t axis = node->attributes.slice.axis;
    const uint64_t from = node->attributes.slice.from, count = node->attributes.slice.count;
    if (axis >= part.dims || count == 0 || from > part.size[axis] || count > part.size[axis] - from)
        return keel_infer_refuse(infer, "there are no %" PRIu64 " from %" PRIu64 " on in dimension %u", count,
                                 from, axis);
    part.size[axis] = count;
    return set_result(infer, &part);
}

/* Here `count` is the size of the whole. */
static bool infer_slice_grad(struct keel_infer *infer)
{
    const struct keel_ir_node *node = infer->node;
    struct keel_shape whole = *operand_shape(infer->graph, node->in[0]);
    whole.size[node->attributes.slice.axis] = node->attributes.slice.count;
    return set_result(infer, &whole);
}

static void describe_slice(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, " axis=%u from=%" PRIu64, node->attributes.slice.axis,
             node->attributes.slice.from);
}

static void grad_slice(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    struct keel_attributes back = node->attributes;
    back.slice.count = autodiff->graph->values[node->in[0]].shape.size[back.slice.axis];
    gradient_node(autodiff, node, KEEL_OP_SLICE_GRAD, &back);
}

static enum keel_status emit_slice(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const bool back = node->op == KEEL_OP_SLICE_GRAD;
    const uint32_t axis = node->attributes.slice.axis;
    const keel_value x = back ? node->out[0] : node->in[0], y = back ? node->in[0] : node->out[0];
    const struct keel_shape *whole = shape_of(emit, x);
    const struct keel_slice op = {.outer = volume(whole, 0, axis),
                                  .size = whole->size[axis],
                                  .inner = volume(whole, axis + 1, whole->dims),
                                  .from = node->attributes.slice.from,
                                  .count = shape_of(emit, y)->size[axis],
                                  .x = buffer_of(emit, x),
                                  .y = buffer_of(emit, y)};
    if (emit->measure)
        return KEEL_OK;
    return (back ? keel_op_slice_grad : keel_op_slice)(emit->kernels, &op, emit->list);
}

/* ---- permute ------------------------------------------------------------------------------------------- */

keel_value keel_graph_permute(struct keel_graph *graph, keel_value x, const uint32_t *order)
{
    struct keel_node_request request = {.op = KEEL_OP_PERMUTE, .in = {x}};
    KEEL_ASSERT(order != NULL);
    memcpy(request.attributes.order, order, keel_graph_shape(graph, x).dims * sizeof *order);
    return keel_graph_node(graph, &request);
}

static bool infer_permute(struct keel_infer *infer)
{
    const struct keel_ir_node *node = infer->node;
    const struct keel_shape *x = operand_shape(infer->graph, node->in[0]);
    const uint32_t *order = node->attributes.order;
    struct keel_shape y = {.dims = x->dims};
    uint32_t seen = 0;
    for (uint32_t i = 0; i < x->dims; i++) {
        seen |= order[i] < x->dims ? 1U << order[i] : 0;
        y.size[i] = order[i] < x->dims ? x->size[order[i]] : 0;
    }
    if (x->dims == 0 || seen != (1U << x->dims) - 1)
        return keel_infer_refuse(infer, "{%u,%u,%u,%u} is no order of %u dimensions", order[0], order[1],
                                 order[2], order[3], x->dims);
    return set_result(infer, &y);
}

static void describe_permute(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    const uint32_t *order = node->attributes.order;
    snprintf(text, text_bytes, " order=%u,%u,%u,%u", order[0], order[1], order[2], order[3]);
}

/* What is split together must stay together, in order. */
static bool move_permute(const struct keel_graph *graph, const struct keel_ir_node *node,
                         struct keel_axis_spec *split)
{
    const uint32_t dims = operand_shape(graph, node->in[0])->dims, *order = node->attributes.order;
    uint32_t first = 0;
    while (order[first] != split->dim)
        first++;
    bool together = first + split->dims <= dims;
    for (uint32_t i = 0; together && i < split->dims; i++)
        together = order[first + i] == split->dim + i;
    split->dim = (uint8_t)first;
    return together;
}

static void grad_permute(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    struct keel_attributes back = {.rate = 0.0F};
    for (uint32_t i = 0; i < autodiff->graph->values[node->in[0]].shape.dims; i++)
        back.order[node->attributes.order[i]] = i;
    gradient_node(autodiff, node, KEEL_OP_PERMUTE, &back);
}

static enum keel_status emit_permute(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_shape *x = shape_of(emit, node->in[0]);
    struct keel_permute op = {
        .dims = x->dims, .x = buffer_of(emit, node->in[0]), .y = buffer_of(emit, node->out[0])};
    for (uint32_t i = 0; i < x->dims; i++) {
        op.size[i] = x->size[i];
        op.order[i] = node->attributes.order[i];
    }
    return emit->measure ? KEEL_OK : keel_op_permute(emit->kernels, &op, emit->list);
}

/* ---- multiply ------------------------------------------------------------------------------------------ */

keel_value keel_graph_multiply(struct keel_graph *graph, keel_value a, keel_value b)
{
    return KEEL_NODE(graph, .op = KEEL_OP_MULTIPLY, .in = {a, b});
}

static void grad_multiply(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    for (uint32_t i = 0; i < 2; i++) {
        if (wanted(autodiff, node->in[i]))
            keel_gradient_add(
                autodiff, node->in[i],
                keel_graph_multiply(autodiff->graph, arrived(autodiff, node->out[0]), node->in[1 - i]));
    }
}

static enum keel_status emit_multiply(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_multiply op = {.count = count_of(emit, node->in[0]),
                                     .a = buffer_of(emit, node->in[0]),
                                     .b = buffer_of(emit, node->in[1]),
                                     .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_multiply(emit->kernels, &op, emit->list);
}

/* ---- the table ---- */

enum { FIRST = KEEL_OP_RESHAPE, LAST = KEEL_OP_MULTIPLY };
static const struct keel_op rows[LAST - FIRST + 1] = {
    [KEEL_OP_RESHAPE - FIRST] = {.name = "reshape",
                                 .rule = "~->ABCD",
                                 .move = move_reshape,
                                 .in_place = "00",
                                 .infer_dims = infer_reshape,
                                 .grad = grad_reshape,
                                 .emit = emit_reshape},
    [KEEL_OP_CONCAT - FIRST] = {.name = "concat",
                                .rule = "~,~?,~?,~?,~?,~?,~?,~?->ABCD",
                                .move = move_along,
                                .infer_dims = infer_concat,
                                .describe = describe_concat,
                                .grad = grad_concat,
                                .emit = emit_concat},
    [KEEL_OP_SLICE - FIRST] = {.name = "slice",
                               .rule = "~->ABCD",
                               .move = move_along,
                               .infer_dims = infer_slice,
                               .describe = describe_slice,
                               .grad = grad_slice,
                               .emit = emit_slice},
    [KEEL_OP_SLICE_GRAD - FIRST] = {.name = "slice_grad",
                                    .rule = "~->ABCD",
                                    .move = move_along,
                                    .infer_dims = infer_slice_grad,
                                    .describe = describe_slice,
                                    .emit = emit_slice},
    [KEEL_OP_PERMUTE - FIRST] = {.name = "permute",
                                 .rule = "~->ABCD",
                                 .move = move_permute,
                                 .infer_dims = infer_permute,
                                 .describe = describe_permute,
                                 .grad = grad_permute,
                                 .emit = emit_permute},
    [KEEL_OP_MULTIPLY - FIRST] = {.name = "multiply",
                                  .rule = "*,*->*",
                                  .split = "*",
                                  .in_place = "0001",
                                  .grad = grad_multiply,
                                  .emit = emit_multiply},
};

const struct keel_op_family keel_ops_shape = {FIRST, LAST, rows};
