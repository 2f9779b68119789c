/* ops.c - the table of operations, one row each.
 *
 * Owns nothing else: what follows from an index rule is in ops_rule.c; what a row's functions do, in the file
 * of its family. */
#include "ops.h"

static const struct keel_op table[KEEL_OP_COUNT] = {
    [KEEL_OP_NONE] = {.name = "none", .rule = "->"},

    /* ---- graph_dense.c ---- */
    /* The second result is the input of GELU, kept for backward; only keel_pass_fuse asks for it. */
    [KEEL_OP_LINEAR] = {.name = "linear",
                        .rule = "*k,kn,n?->*n,*n?",
                        .grad = keel_grad_linear,
                        .emit = keel_emit_linear},
    [KEEL_OP_LINEAR_DX] = {.name = "linear_dx", .rule = "*n,kn->*k", .emit = keel_emit_linear_dx},
    [KEEL_OP_LINEAR_DW] = {.name = "linear_dw", .rule = "*k,*n->+kn", .emit = keel_emit_linear_dw},
    [KEEL_OP_LINEAR_TRANSPOSED] = {.name = "linear_transposed",
                                   .rule = "*k,nk->*n",
                                   .grad = keel_grad_linear_transposed,
                                   .emit = keel_emit_linear_transposed},
    [KEEL_OP_TRANSPOSED_DX] = {.name = "transposed_dx", .rule = "*n,nk->*k", .emit = keel_emit_transposed_dx},
    [KEEL_OP_TRANSPOSED_DW] = {.name = "transposed_dw",
                               .rule = "*k,*n->+nk",
                               .emit = keel_emit_transposed_dw},
    [KEEL_OP_BIAS_GRAD] = {.name = "bias_grad", .rule = "*n->+n", .emit = keel_emit_bias_grad},
    /* Results: y, mean, 1 / deviation. */
    [KEEL_OP_LAYERNORM] = {.name = "layernorm",
                           .rule = "*n,n,n?->*n,*,*",
                           .grad = keel_grad_layernorm,
                           .emit = keel_emit_layernorm},
    /* Operands: x, gamma, mean, 1 / deviation, dy, the gradient that by-passes the norm. */
    [KEEL_OP_LAYERNORM_GRAD] = {.name = "layernorm_grad",
                                .rule = "*n,n,*,*,*n,*n?->*n,+n,+n?",
                                .in_place = "05",
                                .emit = keel_emit_layernorm_grad},
    /* Results: y, 1 / root of the mean square. */
    [KEEL_OP_RMS_NORM] = {.name = "rms_norm",
                          .rule = "*n,n->*n,*",
                          .grad = keel_grad_rms_norm,
                          .emit = keel_emit_rms_norm},
    /* Operands: x, gamma, 1 / root of the mean square, dy, the gradient that by-passes the norm. */
    [KEEL_OP_RMS_NORM_GRAD] = {.name = "rms_norm_grad",
                               .rule = "*n,n,*,*n,*n?->*n,+n",
                               .in_place = "04",
                               .emit = keel_emit_rms_norm_grad},
    [KEEL_OP_GELU] = {.name = "gelu", .rule = "*->*", .grad = keel_grad_gelu, .emit = keel_emit_gelu},
    [KEEL_OP_GELU_GRAD] = {.name = "gelu_grad",
                           .rule = "*,*->*",
                           .in_place = "01",
                           .emit = keel_emit_gelu_grad},
    [KEEL_OP_ACTIVATION] = {.name = "activation",
                            .rule = "*->*",
                            .in_place = "00",
                            .describe = keel_describe_activation,
                            .grad = keel_grad_activation,
                            .emit = keel_emit_activation},
    /* Operands: x (of ReLU: y, which says as much), dy. */
    [KEEL_OP_ACTIVATION_GRAD] = {.name = "activation_grad",
                                 .rule = "*,*->*",
                                 .in_place = "01",
                                 .describe = keel_describe_activation,
                                 .emit = keel_emit_activation_grad},
    [KEEL_OP_SWIGLU] = {.name = "swiglu",
                        .rule = "*,*->*",
                        .in_place = "0001",
                        .grad = keel_grad_swiglu,
                        .emit = keel_emit_swiglu},
    /* Operands: a, b, dy; results: da, db. */
    [KEEL_OP_SWIGLU_GRAD] = {.name = "swiglu_grad",
                             .rule = "*,*,*->*,*",
                             .in_place = "00021112",
                             .emit = keel_emit_swiglu_grad},
    /* Operands: x, and what the result is added to. */
    [KEEL_OP_DROPOUT] = {.name = "dropout",
                         .rule = "*,*?->*",
                         .in_place = "0001",
                         .grad = keel_grad_dropout,
                         .emit = keel_emit_dropout},
    [KEEL_OP_ADD] =
        {.name = "add", .rule = "*,*->*", .in_place = "0001", .grad = keel_grad_add, .emit = keel_emit_add},
    /* Into the gradient of a parameter. */
    [KEEL_OP_ACCUMULATE] = {.name = "accumulate", .rule = "*->+*", .emit = keel_emit_accumulate},

    /* ---- graph_loss.c: results are the loss, and the gradient of operand 0 if asked for ---- */
    [KEEL_OP_CROSS_ENTROPY] = {.name = "cross_entropy",
                               .rule = "*v,#*->+1,*v?",
                               .in_place = "10",
                               .describe = keel_describe_loss,
                               .grad = keel_grad_loss,
                               .emit = keel_emit_cross_entropy},
    /* linear_transposed, cross_entropy and both gradients, some rows at a time, so that never all logits are
     * there; made by keel_pass_fuse. Operands: x, table, targets. Results: loss, gradient of the table,
     * scratch, gradient of x. */
    [KEEL_OP_LINEAR_CROSS_ENTROPY] = {.name = "linear_cross_entropy",
                                      .rule = "*k,nk,#*->+1,+nk,S,*k?",
                                      .work = "6*nk",
                                      .letters = keel_letters_linear_cross_entropy,
                                      .describe = keel_describe_loss,
                                      .emit = keel_emit_linear_cross_entropy},
    [KEEL_OP_BCE] = {.name = "bce",
                     .rule = "*,*->+1,*?",
                     .in_place = "10",
                     .describe = keel_describe_loss,
                     .grad = keel_grad_loss,
                     .emit = keel_emit_loss},
    [KEEL_OP_MSE] = {.name = "mse",
                     .rule = "*,*->+1,*?",
                     .in_place = "10",
                     .describe = keel_describe_loss,
                     .grad = keel_grad_loss,
                     .emit = keel_emit_loss},

    /* ---- graph_attention.c ---- */
    /* Results: out, row maximum and sum. Scores and mixing are a product each, of t x t over w. */
    [KEEL_OP_ATTENTION] = {.name = "attention",
                           .rule = "bt3w->btw,bHt2",
                           .work = "4bttw",
                           .letters = keel_letters_attention,
                           .describe = keel_describe_attention,
                           .grad = keel_grad_attention,
                           .emit = keel_emit_attention},
    /* Operands: qkv, out, row maximum and sum, dout. Four products; the recomputed one is not counted. */
    [KEEL_OP_ATTENTION_GRAD] = {.name = "attention_grad",
                                .rule = "bt3w,btw,bHt2,btw->bt3w",
                                .work = "8bttw",
                                .letters = keel_letters_attention,
                                .describe = keel_describe_attention,
                                .emit = keel_emit_attention_grad},

    /* ---- graph_table.c ---- */
    [KEEL_OP_EMBEDDING] = {.name = "embedding",
                           .rule = "#bt,vn,tn?->btn",
                           .grad = keel_grad_embedding,
                           .emit = keel_emit_embedding},
    [KEEL_OP_EMBEDDING_GRAD] = {.name = "embedding_grad",
                                .rule = "#bt,btn->+vn,+tn?",
                                .emit = keel_emit_embedding_grad},

    /* ---- graph_image.c: images of b, h x w pixels, c channels; i x j taps of d channels to o outputs ----
     */
    [KEEL_OP_CONV2D] = {.name = "conv2d",
                        .rule = "bhwc,ijdo,o?->bPQo",
                        .work = "2bPQijdo",
                        .letters = keel_letters_conv2d,
                        .describe = keel_describe_conv2d,
                        .grad = keel_grad_conv2d,
                        .emit = keel_emit_conv2d},
    [KEEL_OP_CONV2D_DX] = {.name = "conv2d_dx",
                           .rule = "bPQo,ijdo->bHWC",
                           .work = "2bPQijdo",
                           .letters = keel_letters_conv2d,
                           .describe = keel_describe_conv2d,
                           .emit = keel_emit_conv2d_dx},
    [KEEL_OP_CONV2D_DW] = {.name = "conv2d_dw",
                           .rule = "bhwc,bPQo->+ijdo",
                           .work = "2bPQijdo",
                           .letters = keel_letters_conv2d,
                           .describe = keel_describe_conv2d,
                           .emit = keel_emit_conv2d_dw},
    /* Operands: x, gamma, beta, running mean and variance, what is added to the result; results: y, mean, 1 /
       deviation, and what the statistics get. */
    [KEEL_OP_BATCH_NORM] = {.name = "batch_norm",
                            .rule = "*n,n,n,n,n,*n?->*n,n,n,+n?,+n?",
                            .in_place = "0005",
                            .letters = keel_letters_batch_norm,
                            .describe = keel_describe_batch_norm,
                            .grad = keel_grad_batch_norm,
                            .emit = keel_emit_batch_norm},
    [KEEL_OP_BATCH_NORM_EVAL] = {.name = "batch_norm_eval",
                                 .rule = "*n,n,n,n,n,*n?->*n",
                                 .in_place = "0005",
                                 .letters = keel_letters_batch_norm,
                                 .describe = keel_describe_batch_norm,
                                 .emit = keel_emit_batch_norm_eval},
    /* Operands: x, gamma, mean, 1 / deviation, dy, the y of ReLU; results: dx, dgamma, dbeta, dy where ReLU
       lets it through. */
    [KEEL_OP_BATCH_NORM_GRAD] = {.name = "batch_norm_grad",
                                 .rule = "*n,n,n,n,*n,*n?->*n,+n,+n,*n?",
                                 .in_place = "0034",
                                 .emit = keel_emit_batch_norm_grad},
    /* Results: the largest, and the number of its tap. */
    [KEEL_OP_MAX_POOL] = {.name = "max_pool",
                          .rule = "bhwc->bPQc,#bPQc",
                          .letters = keel_letters_pool,
                          .describe = keel_describe_pool,
                          .grad = keel_grad_max_pool,
                          .emit = keel_emit_max_pool},
    [KEEL_OP_MAX_POOL_GRAD] = {.name = "max_pool_grad",
                               .rule = "bPQc,#bPQc->bHWc",
                               .letters = keel_letters_pool,
                               .describe = keel_describe_pool,
                               .emit = keel_emit_max_pool_grad},
    [KEEL_OP_AVG_POOL] = {.name = "avg_pool",
                          .rule = "bhwc->bPQc",
                          .letters = keel_letters_pool,
                          .describe = keel_describe_pool,
                          .grad = keel_grad_avg_pool,
                          .emit = keel_emit_avg_pool},
    [KEEL_OP_AVG_POOL_GRAD] = {.name = "avg_pool_grad",
                               .rule = "bPQc->bHWc",
                               .letters = keel_letters_pool,
                               .describe = keel_describe_pool,
                               .emit = keel_emit_avg_pool_grad},
    [KEEL_OP_GLOBAL_AVG_POOL] = {.name = "global_avg_pool",
                                 .rule = "bhwc->bc",
                                 .letters = keel_letters_global_pool,
                                 .grad = keel_grad_global_avg_pool,
                                 .emit = keel_emit_global_avg_pool},
    [KEEL_OP_GLOBAL_AVG_POOL_GRAD] = {.name = "global_avg_pool_grad",
                                      .rule = "bc->bHWc",
                                      .letters = keel_letters_global_pool,
                                      .emit = keel_emit_global_avg_pool_grad},
};

const struct keel_op *keel_op_row(uint32_t op)
{
    KEEL_ASSERT(op < KEEL_OP_COUNT);
    return &table[op];
}
