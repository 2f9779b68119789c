/* graph_loss.c - losses: builder functions, gradients, launches.
 *
 * Each loss of a graph has an accumulator of its own, and is a mean over its own rows, times its weight; the
 * loss of the graph is their sum, by order. The first of cross-entropy and its like also says what the
 * model's output is. */
#include "autodiff.h"
#include "emit.h"

#include <keel/memory.h>
#include <stdio.h>

/* ---- builder ------------------------------------------------------------------------------------------- */

keel_value keel_graph_add_loss(struct keel_graph *graph, struct keel_node_request *request)
{
    const uint32_t part = graph->loss_count;
    char name[KEEL_VALUE_NAME_BYTES];
    snprintf(name, sizeof name, part == 0 ? "loss" : "loss.%u", part);
    const keel_value loss = keel_graph_value(graph, name, KEEL_F32, KEEL_VALUE_LOSS,
                                             (struct keel_shape){.dims = 1, .size = {1}}, 0);
    request->into[0] = loss;
    keel_graph_node(graph, request);
    if (graph->status != KEEL_OK)
        return 0;
    graph->values[loss].part = graph->loss_count++;
    graph->loss = graph->loss == 0 ? loss : graph->loss;
    return loss;
}

/* A loss of weight 1 by which the output goes. */
static keel_value output_loss(struct keel_graph *graph, uint32_t op, keel_value x, keel_value targets)
{
    if (graph->output == 0)
        graph->output = x;
    return keel_graph_add_loss(
        graph, &(struct keel_node_request){.op = op, .in = {x, targets}, .attributes.loss.weight = 1.0F});
}

keel_value keel_graph_cross_entropy(struct keel_graph *graph, keel_value logits, keel_value targets)
{
    return output_loss(graph, KEEL_OP_CROSS_ENTROPY, logits, targets);
}

keel_value keel_graph_bce(struct keel_graph *graph, keel_value logits, keel_value targets)
{
    return output_loss(graph, KEEL_OP_BCE, logits, targets);
}

keel_value keel_graph_mse(struct keel_graph *graph, keel_value x, keel_value targets)
{
    return output_loss(graph, KEEL_OP_MSE, x, targets);
}

keel_value keel_graph_product_loss(struct keel_graph *graph, keel_value x, keel_value factors, float weight)
{
    return keel_graph_add_loss(graph, &(struct keel_node_request){.op = KEEL_OP_PRODUCT_LOSS,
                                                                  .in = {x, factors},
                                                                  .attributes.loss.weight = weight});
}

/* ---- gradients ----------------------------------------------------------------------------------------- */

/* The forward node makes it, for operand 0 alone. */
void keel_grad_loss(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    struct keel_graph *graph = autodiff->graph;
    const struct keel_ir_value *targets = &graph->values[node->in[1]];
    if (wanted(autodiff, node->in[1]) && targets->dtype == KEEL_F32) {
        keel_graph_refuse(graph, keel_fail(KEEL_UNSUPPORTED,
                                           "%s: the targets, %s, have a trained parameter behind them, and "
                                           "targets must not be trained; give them as an input",
                                           keel_op_row(node->op)->name, targets->name));
        return;
    }
    keel_value gradient = keel_gradient_from_forward(autodiff, 1);
    if (gradient != 0)
        keel_gradient_add(autodiff, node->in[0], gradient);
}

/* ---- launches ------------------------------------------------------------------------------------------ */

void keel_describe_loss(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    const int used = snprintf(text, text_bytes, " weight=%g", (double)node->attributes.loss.weight);
    if (node->attributes.loss.smoothing > 0.0F && used > 0 && (size_t)used < text_bytes)
        snprintf(text + used, text_bytes - (size_t)used, " smoothing=%g",
                 (double)node->attributes.loss.smoothing);
}

static enum keel_status emit_cross_entropy(struct keel_emit *emit, const struct keel_ir_node *node)
{
    uint32_t rows = rows_of(emit, node->in[0]);
    struct keel_cross_entropy op = {.rows = rows,
                                    .vocab = width_of(emit, node->in[0]),
                                    .smoothing = node->attributes.loss.smoothing,
                                    .vocab_slices = node->attributes.slices,
                                    .scale = scale_of_loss(emit, node, rows),
                                    .logits = buffer_of(emit, node->in[0]),
                                    .targets = buffer_of(emit, node->in[1]),
                                    .row_loss = emit->workspace,
                                    .loss = buffer_of(emit, node->out[0]),
                                    .dlogits = buffer_of(emit, node->out[1]),
                                    .loss_scale = emit->loss_scale};
    need_workspace(emit, rows * sizeof(float));
    return emit->measure ? KEEL_OK : keel_op_cross_entropy(emit->kernels, &op, emit->list);
}

/* The columns of all slices. */
static uint32_t vocab_of(const struct keel_ir_node *node)
{
    return node->attributes.slices.units * node->attributes.slices.unit;
}

static enum keel_status emit_cross_entropy_max(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_cross_entropy_max op = {.rows = rows_of(emit, node->in[0]),
                                              .columns = width_of(emit, node->in[0]),
                                              .first_column = (uint32_t)node->attributes.place.first,
                                              .vocab = vocab_of(node),
                                              .logits = buffer_of(emit, node->in[0]),
                                              .targets = buffer_of(emit, node->in[1]),
                                              .maxima = buffer_of(emit, node->out[0]),
                                              .target_bits = buffer_of(emit, node->out[1])};
    return emit->measure ? KEEL_OK : keel_op_cross_entropy_max(emit->kernels, &op, emit->list);
}

static enum keel_status emit_cross_entropy_part(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_slices *slices = &node->attributes.slices;
    struct keel_buffer *logits = buffer_of(emit, node->in[0]), *kept = buffer_of(emit, node->out[1]);
    const uint32_t first = keel_slice_begin(slices->units, slices->of, slices->first),
                   end = keel_slice_begin(slices->units, slices->of, slices->first + slices->count);
    const struct keel_copy copy = {.count = count_of(emit, node->in[0]), .x = logits, .y = kept};
    const struct keel_cross_entropy_part op = {.rows = rows_of(emit, node->in[0]),
                                               .columns = width_of(emit, node->in[0]),
                                               .at = first * slices->unit -
                                                     (uint32_t)node->attributes.place.first,
                                               .count = (end - first) * slices->unit,
                                               .vocab_slices = *slices,
                                               .logits = kept != NULL ? kept : logits,
                                               .maxima = buffer_of(emit, node->in[1]),
                                               .sums = buffer_of(emit, node->out[0]),
                                               .exponentials = kept};
    if (emit->measure)
        return KEEL_OK;
    if (kept != NULL && kept != logits)
        KEEL_TRY(keel_op_copy(emit->kernels, &copy, emit->list));
    return keel_op_cross_entropy_part(emit->kernels, &op, emit->list);
}

static enum keel_status emit_cross_entropy_end(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const uint32_t rows = (uint32_t)count_of(emit, node->in[0]);
    struct keel_buffer *exponentials = buffer_of(emit, node->in[4]), *dlogits = buffer_of(emit, node->out[1]);
    const struct keel_cross_entropy_end op = {.rows = rows,
                                              .columns = (uint32_t)node->attributes.place.row,
                                              .first_column = (uint32_t)node->attributes.place.first,
                                              .vocab = vocab_of(node),
                                              .scale = scale_of_loss(emit, node, rows),
                                              .maxima = buffer_of(emit, node->in[0]),
                                              .sums = buffer_of(emit, node->in[1]),
                                              .target_bits = buffer_of(emit, node->in[2]),
                                              .targets = buffer_of(emit, node->in[3]),
                                              .row_loss = emit->workspace,
                                              .loss = buffer_of(emit, node->out[0]),
                                              .dlogits = dlogits,
                                              .loss_scale = emit->loss_scale};
    need_workspace(emit, rows * sizeof(float));
    if (emit->measure)
        return KEEL_OK;
    if (dlogits != NULL && dlogits != exponentials) {
        const struct keel_copy copy = {.count = count_of(emit, node->in[4]), .x = exponentials, .y = dlogits};
        KEEL_TRY(keel_op_copy(emit->kernels, &copy, emit->list));
    }
    return keel_op_cross_entropy_end(emit->kernels, &op, emit->list);
}

/* What linear_cross_entropy needs beside its operands, in floats: each region begins at a part. */
struct regions {
    uint64_t gradient; /* of the table, as the chain over the rows stands; at 0; of none that is frozen */
    uint64_t logits;   /* of a chunk, begins here */
    uint64_t row_loss; /* of all rows, begins here */
    uint64_t end;
};

static struct regions find_regions(const struct keel_ir_node *node, uint64_t rows, uint64_t n, uint64_t k)
{
    const uint64_t align = KEEL_PART_ALIGN / sizeof(float);
    struct regions regions = {.gradient = 0};
    regions.logits = node->out[1] != 0 ? keel_round_up(n * k, align) : 0;
    regions.row_loss = keel_round_up(regions.logits + KEEL_LOSS_CHUNK_ROWS * n, align);
    regions.end = regions.row_loss + rows;
    return regions;
}

static bool infer_linear_cross_entropy(struct keel_infer *infer)
{
    uint64_t *size = infer->size;
    uint64_t rows = keel_shape_count(&infer->graph->values[infer->node->in[0]].shape) / size['k'];
    size['S'] = find_regions(infer->node, rows, size['n'], size['k']).end;
    size['G'] = 2U + (infer->node->out[1] != 0 ? 2U : 0U) + (infer->node->out[3] != 0 ? 2U : 0U);
    if (size['S'] <= UINT32_MAX)
        return true;
    return keel_infer_refuse(infer, "more than 2^32 - 1 elements of scratch");
}

/* One chunk of rows: logits, their losses and gradient, and what the gradient gives to table and x. */
static enum keel_status emit_chunk(struct keel_emit *emit, const struct keel_ir_node *node, uint32_t first,
                                   uint32_t rows)
{
    uint32_t k = width_of(emit, node->in[0]);
    uint32_t n = rows_of(emit, node->in[1]);
    struct regions regions = find_regions(node, rows_of(emit, node->in[0]), n, k);
    uint64_t row_bytes = k * sizeof(float);
    struct keel_buffer *x = NULL, *targets = NULL, *logits = NULL, *row_loss = NULL, *sum = NULL, *dx = NULL;
    if (!emit->measure) {
        KEEL_TRY(keel_emit_part(emit, node->in[0], first * row_bytes, rows * row_bytes, &x));
        KEEL_TRY(keel_emit_part(emit, node->in[2], first * sizeof(float), rows * sizeof(float), &targets));
        if (node->out[1] != 0)
            KEEL_TRY(keel_emit_part(emit, node->out[2], 0, (uint64_t)n * row_bytes, &sum));
        KEEL_TRY(keel_emit_part(emit, node->out[2], regions.logits * sizeof(float),
                                (uint64_t)rows * n * sizeof(float), &logits));
        KEEL_TRY(keel_emit_part(emit, node->out[2], (regions.row_loss + first) * sizeof(float),
                                rows * sizeof(float), &row_loss));
        if (node->out[3] != 0)
            KEEL_TRY(keel_emit_part(emit, node->out[3], first * row_bytes, rows * row_bytes, &dx));
    }
    struct keel_gemm forward = {.m = rows,
                                .n = n,
                                .k = k,
                                .lda = k,
                                .ldb = k,
                                .transpose_b = true,
                                .a = x,
                                .b = buffer_of(emit, node->in[1]),
                                .c = logits};
    struct keel_cross_entropy loss = {.rows = rows,
                                      .vocab = n,
                                      .smoothing = node->attributes.loss.smoothing,
                                      .vocab_slices = node->attributes.slices,
                                      .scale = scale_of_loss(emit, node, rows_of(emit, node->in[0])),
                                      .logits = logits,
                                      .targets = targets,
                                      .row_loss = row_loss,
                                      .dlogits = logits,
                                      .loss_scale = emit->loss_scale};
    struct keel_gemm weights = {.m = n,
                                .n = k,
                                .k = rows,
                                .lda = n,
                                .ldb = k,
                                .transpose_a = true,
                                .chain = first > 0,
                                .a = logits,
                                .b = x,
                                .c = sum};
    struct keel_gemm back = {.m = rows,
                             .n = k,
                             .k = n,
                             .k_slices = node->attributes.slices,
                             .lda = n,
                             .ldb = k,
                             .a = logits,
                             .b = buffer_of(emit, node->in[1]),
                             .c = dx};
    KEEL_TRY(keel_emit_product(emit, &forward));
    if (!emit->measure)
        KEEL_TRY(keel_op_cross_entropy(emit->kernels, &loss, emit->list));
    if (node->out[1] != 0)
        KEEL_TRY(keel_emit_product(emit, &weights));
    return node->out[3] != 0 ? keel_emit_product(emit, &back) : KEEL_OK;
}

static enum keel_status emit_linear_cross_entropy(struct keel_emit *emit, const struct keel_ir_node *node)
{
    uint32_t rows = rows_of(emit, node->in[0]);
    uint32_t n = rows_of(emit, node->in[1]);
    uint32_t k = width_of(emit, node->in[0]);
    KEEL_ASSERT(emit->checks == NULL); /* one product a node is what they can tell */
    for (uint32_t first = 0; first < rows; first += KEEL_LOSS_CHUNK_ROWS) {
        uint32_t left = rows - first;
        KEEL_TRY(emit_chunk(emit, node, first, left < KEEL_LOSS_CHUNK_ROWS ? left : KEEL_LOSS_CHUNK_ROWS));
    }
    if (emit->measure)
        return KEEL_OK;
    struct keel_buffer *gradient = buffer_of(emit, node->out[1]);
    struct keel_cross_entropy_sum sum = {
        .rows = rows, .scale = scale_of_loss(emit, node, rows), .loss = buffer_of(emit, node->out[0])};
    struct keel_add add = {.count = (uint64_t)n * k, .a = gradient, .y = gradient};
    KEEL_TRY(keel_emit_part(emit, node->out[2], find_regions(node, rows, n, k).row_loss * sizeof(float),
                            rows * sizeof(float), &sum.row_loss));
    KEEL_TRY(keel_op_cross_entropy_sum(emit->kernels, &sum, emit->list));
    if (gradient == NULL)
        return KEEL_OK;
    KEEL_TRY(keel_emit_part(emit, node->out[2], 0, add.count * sizeof(float), &add.b));
    return keel_op_add(emit->kernels, &add, emit->list);
}

static enum keel_status emit_loss(struct keel_emit *emit, const struct keel_ir_node *node)
{
    uint64_t count = count_of(emit, node->in[0]);
    struct keel_loss op = {.count = count,
                           .kind = node->op == KEEL_OP_BCE   ? KEEL_LOSS_BCE
                                   : node->op == KEEL_OP_MSE ? KEEL_LOSS_MSE
                                                             : KEEL_LOSS_PRODUCT,
                           .scale = scale_of_loss(emit, node, count),
                           .x = buffer_of(emit, node->in[0]),
                           .targets = buffer_of(emit, node->in[1]),
                           .scratch = emit->workspace,
                           .loss = buffer_of(emit, node->out[0]),
                           .dx = buffer_of(emit, node->out[1]),
                           .loss_scale = emit->loss_scale};
    need_workspace(emit, keel_loss_scratch_bytes(count));
    return emit->measure ? KEEL_OK : keel_op_loss(emit->kernels, &op, emit->list);
}

/* ---- the table: results are the loss, and the gradient of operand 0 if asked for ---- */

enum { FIRST = KEEL_OP_CROSS_ENTROPY, LAST = KEEL_OP_CROSS_ENTROPY_END };
static const struct keel_op rows[LAST - FIRST + 1] = {
    [KEEL_OP_CROSS_ENTROPY - FIRST] = {.name = "cross_entropy",
                                       .rule = "*v,#*->+1,*v?",
                                       .split = "v!",
                                       .in_place = "10",
                                       .describe = keel_describe_loss,
                                       .grad = keel_grad_loss,
                                       .scaled = true,
                                       .emit = emit_cross_entropy},
    /* linear_transposed, cross_entropy and both gradients, some rows at a time, so that never all logits are
     * there; made by keel_pass_fuse. Operands: x, table, targets. Results: loss, gradient of the table,
     * scratch, gradient of x. */
    [KEEL_OP_LINEAR_CROSS_ENTROPY - FIRST] = {.name = "linear_cross_entropy",
                                              .rule = "*k,nk,#*->+1,+nk?,S,*k?",
                                              .flops = "G*nk", /* products that there are, times two */
                                              .infer_dims = infer_linear_cross_entropy,
                                              .describe = keel_describe_loss,
                                              .scaled = true,
                                              .emit = emit_linear_cross_entropy},
    [KEEL_OP_BCE - FIRST] = {.name = "bce",
                             .rule = "*,*->+1,*?",
                             .in_place = "10",
                             .describe = keel_describe_loss,
                             .grad = keel_grad_loss,
                             .scaled = true,
                             .emit = emit_loss},
    [KEEL_OP_MSE - FIRST] = {.name = "mse",
                             .rule = "*,*->+1,*?",
                             .in_place = "10",
                             .describe = keel_describe_loss,
                             .grad = keel_grad_loss,
                             .scaled = true,
                             .emit = emit_loss},
    [KEEL_OP_PRODUCT_LOSS - FIRST] = {.name = "product_loss",
                                      .rule = "*,*->+1,*?",
                                      .in_place = "10",
                                      .describe = keel_describe_loss,
                                      .grad = keel_grad_loss,
                                      .scaled = true,
                                      .emit = emit_loss},
    /* cross_entropy of a rank that has some columns of the logits, between whose three steps ranks exchange
     * (keel/kernels.h). Operands: logits, targets; results: maxima, bits of the targets' logits. */
    [KEEL_OP_CROSS_ENTROPY_MAX -
        FIRST] = {.name = "cross_entropy_max", .rule = "*v,#*->*,#*", .emit = emit_cross_entropy_max},
    /* Of one node of the tree over slices. Operands: logits, of which columns of earlier nodes are
     * exponentials, and maxima; results: sums, and the logits with these exponentials too. */
    [KEEL_OP_CROSS_ENTROPY_PART - FIRST] = {.name = "cross_entropy_part",
                                            .rule = "*v,*->*,*v?",
                                            .in_place = "10",
                                            .emit = emit_cross_entropy_part},
    /* Operands: maxima, sums, bits, targets, exponentials. */
    [KEEL_OP_CROSS_ENTROPY_END - FIRST] = {.name = "cross_entropy_end",
                                           .rule = "*,*,#*,#*,*v?->+1,*v?",
                                           .in_place = "14",
                                           .describe = keel_describe_loss,
                                           .scaled = true,
                                           .emit = emit_cross_entropy_end},
};

const struct keel_op_family keel_ops_loss = {FIRST, LAST, rows};
