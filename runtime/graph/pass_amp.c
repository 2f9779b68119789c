/* pass_amp.c - amp: store activations kept for the backward pass in 16 bits.
 *
 * All arithmetic is of float32. In 16 bits wait
 *     what the forward pass makes and the backward pass reads, and
 *     gradients that a product of the backward pass reads (the `half` operands of a row),
 * by a cast behind the node that makes the value. Products read it so; others have it read back by a cast
 * before them. In between only the copy needs memory. Rounding happens in the first cast alone, to nearest,
 * ties to even
 * (kernels/common/canon_half.h). All other readers see the value as it was made: the loss is that of float32
 * with the same weights.
 *
 * Never in 16 bits: what a loss makes, and what is read with it (it is read next); statistics of rows (mean,
 * deviation, maximum), which are few. Which values wait is chosen before fuse, of the graph as autodiff left
 * it, so that fusions change no bit; casts are put in after it. They are integer operations, so every device
 * has them. */
#include "emit.h"
#include "ops.h"

#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

#define NOBODY UINT32_MAX

enum {
    STATISTIC_SHARE = 4, /* a value with fewer than a fourth of its node's largest elements is a statistic */
    CLOSE_NODES = 4      /* readers so near to one another share what was read back */
};

static bool is_loss(const struct keel_graph *graph, const struct keel_ir_node *node)
{
    bool found = false;
    for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++)
        found = found || (node->out[i] != 0 && graph->values[node->out[i]].kind == KEEL_VALUE_LOSS);
    return found;
}

/* By value: the node that makes it, or NOBODY. */
static enum keel_status find_makers(const struct keel_graph *graph, uint32_t **out)
{
    KEEL_TRY(keel_alloc(graph->value_count, sizeof **out, (void *)out));
    for (keel_value v = 0; v < graph->value_count; v++)
        (*out)[v] = NOBODY;
    for (uint32_t n = 0; n < graph->node_count; n++)
        for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++)
            if (graph->values[graph->nodes[n].out[i]].kind == KEEL_VALUE_TEMP)
                (*out)[graph->nodes[n].out[i]] = n;
    return KEEL_OK;
}

static bool is_statistic(const struct keel_graph *graph, const struct keel_ir_node *maker, keel_value value)
{
    uint64_t largest = 0;
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX + KEEL_NODE_OUT_MAX; i++) {
        keel_value of = i < KEEL_NODE_IN_MAX ? maker->in[i] : maker->out[i - KEEL_NODE_IN_MAX];
        enum keel_value_kind kind = graph->values[of].kind;
        uint64_t count = keel_shape_count(&graph->values[of].shape);
        if (of != 0 && (kind == KEEL_VALUE_TEMP || kind == KEEL_VALUE_INPUT) && count > largest)
            largest = count;
    }
    return keel_shape_count(&graph->values[value].shape) < largest / STATISTIC_SHARE;
}

/* ---- which values wait, before fuse -------------------------------------------------------------------- */

/* Whether the row wants operand `index` in 16 bits. */
static bool wants_half(const struct keel_ir_node *node, uint32_t index)
{
    const char *half = keel_op_row(node->op)->half;
    return half != NULL && strchr(half, '0' + (int)index) != NULL;
}

/* Operand `index` of a node of the backward pass is read from its 16-bit copy. */
static bool waits(const struct keel_graph *graph, const uint32_t *maker, const struct keel_ir_node *node,
                  uint32_t index)
{
    keel_value value = node->in[index];
    if (value == 0 || maker[value] == NOBODY || graph->values[value].dtype != KEEL_F32)
        return false;
    const struct keel_ir_node *made_by = &graph->nodes[maker[value]];
    return made_by->backward ? wants_half(node, index) : !is_statistic(graph, made_by, value);
}

static bool reads_loss(const struct keel_graph *graph, const uint32_t *maker, const struct keel_ir_node *node)
{
    bool found = false;
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++)
        found = found || (maker[node->in[i]] != NOBODY && is_loss(graph, &graph->nodes[maker[node->in[i]]]));
    return found;
}

static enum keel_status check_scaled(const struct keel_graph *graph)
{
    for (uint32_t n = 0; n < graph->node_count; n++)
        if (is_loss(graph, &graph->nodes[n]) && !keel_op_row(graph->nodes[n].op)->scaled)
            return keel_fail(
                KEEL_UNSUPPORTED,
                "%s: the gradient of this loss takes no scale, without which f16 loses small gradients; "
                "use train.storage = bf16",
                keel_op_row(graph->nodes[n].op)->name);
    return KEEL_OK;
}

enum keel_status keel_pass_amp_choose(struct keel_graph *graph, enum keel_dtype dtype)
{
    uint32_t *maker = NULL;
    if (dtype == KEEL_F16)
        KEEL_TRY(check_scaled(graph));
    KEEL_TRY(find_makers(graph, &maker));
    for (uint32_t n = 0; n < graph->node_count; n++) {
        struct keel_ir_node *node = &graph->nodes[n];
        for (uint32_t i = 0; node->backward && !reads_loss(graph, maker, node) && i < KEEL_NODE_IN_MAX; i++) {
            if (!waits(graph, maker, node, i))
                continue;
            node->from_stash |= 1U << i;
            graph->values[node->in[i]].stashed_half = true;
        }
    }
    keel_free(maker);
    return KEEL_OK;
}

/* ---- casts, after fuse --------------------------------------------------------------------------------- */

/* By value of the graph before the pass. */
struct copies {
    keel_value *half, *wide;  /* its 16-bit copy, or 0; what was read back last, or 0 */
    uint32_t *read;           /* the node that it was read back for last */
    struct keel_ir_node *old; /* the nodes as they were */
    uint32_t count;
    enum keel_dtype dtype;
};

static void copies_fini(struct copies *copies)
{
    keel_free(copies->half);
    keel_free(copies->wide);
    keel_free(copies->read);
    keel_free(copies->old);
}

static enum keel_status copies_init(struct copies *copies, const struct keel_graph *graph,
                                    enum keel_dtype dtype)
{
    *copies = (struct copies){.count = graph->node_count, .dtype = dtype};
    enum keel_status status = keel_alloc(graph->value_count, sizeof *copies->half, (void *)&copies->half);
    if (status == KEEL_OK)
        status = keel_alloc(graph->value_count, sizeof *copies->wide, (void *)&copies->wide);
    if (status == KEEL_OK)
        status = keel_alloc(graph->value_count, sizeof *copies->read, (void *)&copies->read);
    if (status == KEEL_OK)
        status = keel_alloc(graph->node_count, sizeof *copies->old, (void *)&copies->old);
    if (status != KEEL_OK) {
        copies_fini(copies);
        return status;
    }
    memcpy(copies->old, graph->nodes, graph->node_count * sizeof *copies->old);
    return KEEL_OK;
}

/* A value like `like` of another type; its name has a suffix. */
static keel_value twin(struct keel_graph *graph, keel_value like, enum keel_dtype dtype, const char *suffix)
{
    struct keel_ir_value value = graph->values[like];
    char name[KEEL_VALUE_NAME_BYTES];
    snprintf(name, sizeof name, "%.*s%s", (int)(sizeof name - 8), value.name, suffix);
    return keel_graph_value(graph, name, dtype, KEEL_VALUE_TEMP, value.shape, 0);
}

static enum keel_status add_cast(struct keel_graph *graph, keel_value from, keel_value to)
{
    KEEL_TRY(keel_graph_status(graph));
    return keel_graph_append(graph, &(struct keel_ir_node){.op = KEEL_OP_CAST, .in = {from}, .out = {to}});
}

static enum keel_status read_back(struct keel_graph *graph, struct copies *copies, uint32_t number)
{
    struct keel_ir_node *node = &copies->old[number];
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++) {
        keel_value value = node->in[i];
        if ((node->from_stash >> i & 1U) == 0)
            continue;
        if (wants_half(node, i)) {
            node->in[i] = copies->half[value];
            continue;
        }
        if (copies->wide[value] == 0 || number - copies->read[value] > CLOSE_NODES) {
            copies->wide[value] = twin(graph, value, KEEL_F32, ".wide");
            KEEL_TRY(add_cast(graph, copies->half[value], copies->wide[value]));
        }
        copies->read[value] = number;
        node->in[i] = copies->wide[value];
    }
    return KEEL_OK;
}

enum keel_status keel_pass_amp(struct keel_graph *graph, enum keel_dtype dtype)
{
    struct copies copies;
    KEEL_TRY(copies_init(&copies, graph, dtype));
    graph->node_count = 0;
    enum keel_status status = KEEL_OK;
    for (uint32_t n = 0; n < copies.count && status == KEEL_OK; n++) {
        status = read_back(graph, &copies, n);
        if (status == KEEL_OK)
            status = keel_graph_append(graph, &copies.old[n]);
        for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX && status == KEEL_OK; i++) {
            keel_value value = copies.old[n].out[i];
            if (value == 0 || !graph->values[value].stashed_half)
                continue;
            copies.half[value] = twin(graph, value, dtype, ".half");
            status = add_cast(graph, value, copies.half[value]);
        }
    }
    copies_fini(&copies);
    return status;
}

static enum keel_status emit_cast(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_cast op = {.count = count_of(emit, node->in[0]),
                           .from = emit->graph->values[node->in[0]].dtype,
                           .to = emit->graph->values[node->out[0]].dtype,
                           .x = buffer_of(emit, node->in[0]),
                           .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_cast(emit->kernels, &op, emit->list);
}

/* ---- the table ---- */

enum { FIRST = KEEL_OP_CAST, LAST = KEEL_OP_CAST };
static const struct keel_op rows[LAST - FIRST + 1] = {
    [KEEL_OP_CAST - FIRST] = {.name = "cast", .rule = "*->*", .split = "*", .emit = emit_cast},
};

const struct keel_op_family keel_ops_amp = {FIRST, LAST, rows};
