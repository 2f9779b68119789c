/* ops.h - the table of operations: one row each, from which shapes, FLOPs, bytes, sharding, gradients and
 * launches follow.
 *
 * An index rule is "operand,operand->result,result", each a row of dimensions:
 *   k      a letter: one dimension; equal letters have equal sizes
 *   H      an upper-case letter: a size that the row's `letters` works out from the attributes; a result that
 *          is to have none of a dimension gives it the size 0
 *   3w     three times the size of w        2      just two (when no letter follows)
 *   *      all leading dimensions, however many (at the front)
 *   ~      any shape: `letters` checks it
 * `#` before an operand or a result: int32, else floats. `+` before a result: an accumulator, given by the
 * caller and added to. `?` after either: may be absent. */
#ifndef KEEL_RUNTIME_OPS_H
#define KEEL_RUNTIME_OPS_H

#include "ir.h"

/* Rows of the table, by family: each family's builder functions, gradients and launches are in one file. */
enum keel_op_id {
    KEEL_OP_NONE,

    KEEL_OP_LINEAR, /* graph_dense.c */
    KEEL_OP_LINEAR_DX,
    KEEL_OP_LINEAR_DW,
    KEEL_OP_LINEAR_TRANSPOSED,
    KEEL_OP_TRANSPOSED_DX,
    KEEL_OP_TRANSPOSED_DW,
    KEEL_OP_BIAS_GRAD,
    KEEL_OP_LAYERNORM,
    KEEL_OP_LAYERNORM_GRAD,
    KEEL_OP_RMS_NORM,
    KEEL_OP_RMS_NORM_GRAD,
    KEEL_OP_GELU,
    KEEL_OP_GELU_GRAD,
    KEEL_OP_ACTIVATION,
    KEEL_OP_ACTIVATION_GRAD,
    KEEL_OP_SWIGLU,
    KEEL_OP_SWIGLU_GRAD,
    KEEL_OP_DROPOUT,
    KEEL_OP_ADD,
    KEEL_OP_ACCUMULATE,

    KEEL_OP_CROSS_ENTROPY, /* graph_loss.c */
    KEEL_OP_LINEAR_CROSS_ENTROPY,
    KEEL_OP_BCE,
    KEEL_OP_MSE,

    KEEL_OP_ATTENTION, /* graph_attention.c */
    KEEL_OP_ATTENTION_GRAD,
    KEEL_OP_ROTARY, /* its own gradient, turning back */

    KEEL_OP_EMBEDDING, /* graph_table.c */
    KEEL_OP_EMBEDDING_GRAD,
    KEEL_OP_EMBEDDING_BAG,
    KEEL_OP_BAG_GRAD,
    KEEL_OP_GATHER,
    KEEL_OP_SCATTER_ADD,
    KEEL_OP_GATHER_GRAD,
    KEEL_OP_PAIRWISE_DOT,
    KEEL_OP_PAIRWISE_DOT_GRAD,

    KEEL_OP_RESHAPE, /* graph_shape.c */
    KEEL_OP_CONCAT,
    KEEL_OP_SLICE,
    KEEL_OP_SLICE_GRAD,
    KEEL_OP_PERMUTE,
    KEEL_OP_MULTIPLY,

    KEEL_OP_SOFTMAX, /* graph_row.c */
    KEEL_OP_SOFTMAX_GRAD,
    KEEL_OP_TOP_K,
    KEEL_OP_TOP_K_GRAD,
    KEEL_OP_ARGMAX,
    KEEL_OP_CUMSUM,

    KEEL_OP_DISPATCH, /* graph_expert.c */
    KEEL_OP_EXPERT_LINEAR,
    KEEL_OP_EXPERT_DX,
    KEEL_OP_EXPERT_DW,
    KEEL_OP_EXPERT_BIAS_GRAD,
    KEEL_OP_COMBINE,
    KEEL_OP_COMBINE_GRAD,
    KEEL_OP_BALANCE_LOSS,

    KEEL_OP_CONV2D, /* graph_image.c */
    KEEL_OP_CONV2D_DX,
    KEEL_OP_CONV2D_DW,
    KEEL_OP_BATCH_NORM,
    KEEL_OP_BATCH_NORM_EVAL,
    KEEL_OP_BATCH_NORM_GRAD,
    KEEL_OP_MAX_POOL,
    KEEL_OP_MAX_POOL_GRAD,
    KEEL_OP_AVG_POOL,
    KEEL_OP_AVG_POOL_GRAD,
    KEEL_OP_GLOBAL_AVG_POOL,
    KEEL_OP_GLOBAL_AVG_POOL_GRAD,

    KEEL_OP_CAST, /* pass_amp.c */

    KEEL_OP_COUNT
};

struct keel_autodiff; /* autodiff.h */
struct keel_emit;     /* emit.h */

enum { KEEL_INFER = 128 };

struct keel_op {
    const char *name;
    const char *rule;
    const char *work; /* FLOPs as a product of the rule's letters ("4bttw"), or NULL: 2 x all letters when
                         the rule contracts two operands, else 0 */
    const char
        *in_place; /* pairs "result operand" of digits: may share memory, first choice first; NULL: none */
    /* Gives the upper-case letters of the rule their sizes, from the attributes, the operands and the sizes
     * of the other letters (which are known by now), and checks what the rule cannot say. False: what is
     * wrong stands in `why`; the caller puts the operation's name and shapes before it. NULL: nothing to do.
     */
    bool (*letters)(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                    char *why, size_t why_bytes);
    /* The attributes as text for the dump (" heads=4"); NULL: there are none, but dropout. */
    void (*describe)(const struct keel_ir_node *, char *text, size_t text_bytes);
    const char *half;   /* digits of the operands that the kernel of a backward product reads in 16 bits, and
                           has so with 16-bit storage (pass_amp.c); NULL: none */
    const char *params; /* digits of the operands of a model's node that must be trained parameters, if they
                           are there: their gradients are accumulators of the kernel; NULL: none */
    bool scaled;        /* a loss: its gradient is multiplied by emit->loss_scale */
    void (*grad)(struct keel_autodiff *, const struct keel_ir_node *);
    enum keel_status (*emit)(struct keel_emit *, const struct keel_ir_node *);
};
const struct keel_op *keel_op_row(uint32_t op);

/* Check the operands of `node` (inputs and accumulators) against the rule and give the shapes and specs of
 * results. INVALID names the operation, the shapes and the index that disagrees. */
enum keel_status keel_op_infer(const struct keel_graph *graph, const struct keel_ir_node *node,
                               struct keel_shape shapes[KEEL_NODE_OUT_MAX],
                               struct keel_spec specs[KEEL_NODE_OUT_MAX]);

/* Results that the rule has, those that may be absent, that are accumulators, that are int32: bit sets. */
struct keel_op_results {
    uint32_t all, optional, accumulated, integer;
};
struct keel_op_results keel_op_results(uint32_t op);

/* Multiply-adds counted as two; bytes read and written if each operand is touched once. */
uint64_t keel_op_flops(const struct keel_graph *graph, const struct keel_ir_node *node);
uint64_t keel_op_bytes(const struct keel_graph *graph, const struct keel_ir_node *node);
uint64_t keel_graph_flops(const struct keel_graph *graph);

/* ---- graph_dense.c ------------------------------------------------------------------------------------- */
/* Whether a dropout rate is in [0, 1); else false, and `why` says so. */
bool keel_check_rate(float rate, char *why, size_t why_bytes);
bool keel_infer_dropout(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                        char *why, size_t why_bytes);
bool keel_infer_activation(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                           char *why, size_t why_bytes);
void keel_grad_linear(struct keel_autodiff *, const struct keel_ir_node *);
void keel_grad_linear_transposed(struct keel_autodiff *, const struct keel_ir_node *);
void keel_grad_layernorm(struct keel_autodiff *, const struct keel_ir_node *);
void keel_grad_rms_norm(struct keel_autodiff *, const struct keel_ir_node *);
void keel_describe_activation(const struct keel_ir_node *, char *text, size_t text_bytes);
void keel_grad_activation(struct keel_autodiff *, const struct keel_ir_node *);
void keel_grad_swiglu(struct keel_autodiff *, const struct keel_ir_node *);
void keel_grad_gelu(struct keel_autodiff *, const struct keel_ir_node *);
void keel_grad_dropout(struct keel_autodiff *, const struct keel_ir_node *);
void keel_grad_add(struct keel_autodiff *, const struct keel_ir_node *);
enum keel_status keel_emit_linear(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_linear_dx(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_linear_dw(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_linear_transposed(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_transposed_dx(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_transposed_dw(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_bias_grad(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_layernorm(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_layernorm_grad(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_rms_norm(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_rms_norm_grad(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_activation(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_activation_grad(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_swiglu(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_swiglu_grad(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_gelu(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_gelu_grad(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_dropout(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_add(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_accumulate(struct keel_emit *, const struct keel_ir_node *);

/* ---- graph_loss.c -------------------------------------------------------------------------------------- */
enum { KEEL_LOSS_CHUNK_ROWS = 1024 }; /* of linear_cross_entropy: rows of logits that are there at a time */
void keel_grad_loss(struct keel_autodiff *, const struct keel_ir_node *);
void keel_describe_loss(const struct keel_ir_node *, char *text, size_t text_bytes);
enum keel_status keel_emit_cross_entropy(struct keel_emit *, const struct keel_ir_node *);
bool keel_infer_linear_cross_entropy(const struct keel_graph *, const struct keel_ir_node *,
                                     uint64_t size[KEEL_INFER], char *why, size_t why_bytes);
enum keel_status keel_emit_linear_cross_entropy(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_loss(struct keel_emit *, const struct keel_ir_node *);

/* ---- graph_attention.c --------------------------------------------------------------------------------- */
bool keel_infer_attention(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                          char *why, size_t why_bytes);
void keel_describe_attention(const struct keel_ir_node *, char *text, size_t text_bytes);
void keel_grad_attention(struct keel_autodiff *, const struct keel_ir_node *);
enum keel_status keel_emit_attention(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_attention_grad(struct keel_emit *, const struct keel_ir_node *);
bool keel_infer_rotary(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                       char *why, size_t why_bytes);
void keel_describe_rotary(const struct keel_ir_node *, char *text, size_t text_bytes);
void keel_grad_rotary(struct keel_autodiff *, const struct keel_ir_node *);
enum keel_status keel_emit_rotary(struct keel_emit *, const struct keel_ir_node *);

/* ---- graph_table.c ------------------------------------------------------------------------------------- */
void keel_grad_embedding(struct keel_autodiff *, const struct keel_ir_node *);
enum keel_status keel_emit_embedding(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_embedding_grad(struct keel_emit *, const struct keel_ir_node *);
bool keel_infer_numbers(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                        char *why, size_t why_bytes);
bool keel_infer_pairs(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                      char *why, size_t why_bytes);
void keel_grad_rows(struct keel_autodiff *, const struct keel_ir_node *);
void keel_grad_pairwise_dot(struct keel_autodiff *, const struct keel_ir_node *);
enum keel_status keel_emit_embedding_bag(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_gather(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_scatter_add(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_pairwise_dot(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_pairwise_dot_grad(struct keel_emit *, const struct keel_ir_node *);

/* ---- graph_shape.c ------------------------------------------------------------------------------------- */
bool keel_infer_reshape(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                        char *why, size_t why_bytes);
bool keel_infer_concat(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                       char *why, size_t why_bytes);
bool keel_infer_slice(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                      char *why, size_t why_bytes);
bool keel_infer_slice_grad(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                           char *why, size_t why_bytes);
bool keel_infer_permute(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                        char *why, size_t why_bytes);
void keel_describe_concat(const struct keel_ir_node *, char *text, size_t text_bytes);
void keel_describe_slice(const struct keel_ir_node *, char *text, size_t text_bytes);
void keel_describe_permute(const struct keel_ir_node *, char *text, size_t text_bytes);
void keel_grad_reshape(struct keel_autodiff *, const struct keel_ir_node *);
void keel_grad_concat(struct keel_autodiff *, const struct keel_ir_node *);
void keel_grad_slice(struct keel_autodiff *, const struct keel_ir_node *);
void keel_grad_permute(struct keel_autodiff *, const struct keel_ir_node *);
void keel_grad_multiply(struct keel_autodiff *, const struct keel_ir_node *);
enum keel_status keel_emit_reshape(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_concat(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_slice(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_permute(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_multiply(struct keel_emit *, const struct keel_ir_node *);

/* ---- graph_row.c --------------------------------------------------------------------------------------- */
bool keel_infer_top_k(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                      char *why, size_t why_bytes);
bool keel_infer_top_k_grad(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                           char *why, size_t why_bytes);
void keel_describe_top_k(const struct keel_ir_node *, char *text, size_t text_bytes);
void keel_describe_cumsum(const struct keel_ir_node *, char *text, size_t text_bytes);
void keel_grad_softmax(struct keel_autodiff *, const struct keel_ir_node *);
void keel_grad_top_k(struct keel_autodiff *, const struct keel_ir_node *);
void keel_grad_cumsum(struct keel_autodiff *, const struct keel_ir_node *);
enum keel_status keel_emit_softmax(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_softmax_grad(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_top_k(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_top_k_grad(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_cumsum(struct keel_emit *, const struct keel_ir_node *);

/* ---- graph_expert.c ------------------------------------------------------------------------------------ */
bool keel_infer_dispatch(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                         char *why, size_t why_bytes);
void keel_describe_dispatch(const struct keel_ir_node *, char *text, size_t text_bytes);
void keel_grad_dispatch(struct keel_autodiff *, const struct keel_ir_node *);
bool keel_infer_balance_loss(const struct keel_graph *, const struct keel_ir_node *,
                             uint64_t size[KEEL_INFER], char *why, size_t why_bytes);
bool keel_infer_expert(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                       char *why, size_t why_bytes);
void keel_grad_expert_linear(struct keel_autodiff *, const struct keel_ir_node *);
enum keel_status keel_emit_expert_linear(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_expert_dx(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_expert_dw(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_expert_bias_grad(struct keel_emit *, const struct keel_ir_node *);
void keel_grad_combine(struct keel_autodiff *, const struct keel_ir_node *);
enum keel_status keel_emit_dispatch(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_combine(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_combine_grad(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_balance_loss(struct keel_emit *, const struct keel_ir_node *);

/* ---- graph_image.c ------------------------------------------------------------------------------------- */
bool keel_infer_conv2d(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                       char *why, size_t why_bytes);
bool keel_infer_batch_norm(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                           char *why, size_t why_bytes);
bool keel_infer_pool(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                     char *why, size_t why_bytes);
bool keel_infer_global_pool(const struct keel_graph *, const struct keel_ir_node *, uint64_t size[KEEL_INFER],
                            char *why, size_t why_bytes);
void keel_describe_conv2d(const struct keel_ir_node *, char *text, size_t text_bytes);
void keel_describe_batch_norm(const struct keel_ir_node *, char *text, size_t text_bytes);
void keel_describe_pool(const struct keel_ir_node *, char *text, size_t text_bytes);
void keel_grad_conv2d(struct keel_autodiff *, const struct keel_ir_node *);
void keel_grad_batch_norm(struct keel_autodiff *, const struct keel_ir_node *);
void keel_grad_max_pool(struct keel_autodiff *, const struct keel_ir_node *);
void keel_grad_avg_pool(struct keel_autodiff *, const struct keel_ir_node *);
void keel_grad_global_avg_pool(struct keel_autodiff *, const struct keel_ir_node *);
enum keel_status keel_emit_conv2d(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_conv2d_dx(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_conv2d_dw(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_batch_norm(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_batch_norm_eval(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_batch_norm_grad(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_max_pool(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_max_pool_grad(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_avg_pool(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_avg_pool_grad(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_global_avg_pool(struct keel_emit *, const struct keel_ir_node *);
enum keel_status keel_emit_global_avg_pool_grad(struct keel_emit *, const struct keel_ir_node *);

/* ---- pass_amp.c ---------------------------------------------------------------------------------------- */
enum keel_status keel_emit_cast(struct keel_emit *, const struct keel_ir_node *);

#endif
