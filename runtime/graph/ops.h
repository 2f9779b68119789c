/* ops.h - the table of operations: one row each, from which shapes, FLOPs, bytes, sharding, gradients and
 * launches follow.
 *
 * An index rule is "operand,operand->result,result", each a row of dimensions:
 *   k      a letter: one dimension; equal letters have equal sizes
 *   H      an upper-case letter: a size that the row's infer_dims works out; a result that is to have none
 *          of a dimension gives it the size 0
 *   3w     three times the size of w        2      just two (when no letter follows)
 *   *      all leading dimensions, however many (at the front)
 *   ~      any shape: infer_dims checks it
 * `#` before an operand or a result: int32, else floats. `+` before a result: an accumulator, given by the
 * caller and added to. `?` after either: may be absent. */
#ifndef KEEL_RUNTIME_OPS_H
#define KEEL_RUNTIME_OPS_H

#include "ir.h"

/* Operations by family: its builder functions, gradients, launches and rows are in one file. */
enum keel_op_id {
    KEEL_OP_NONE,

    KEEL_OP_LINEAR, /* graph_dense.c */
    KEEL_OP_LINEAR_DX,
    KEEL_OP_LINEAR_DW,
    KEEL_OP_LINEAR_TRANSPOSED,
    KEEL_OP_TRANSPOSED_DX,
    KEEL_OP_TRANSPOSED_DW,
    KEEL_OP_LINEAR_QUANTISED,
    KEEL_OP_BIAS_GRAD,
    KEEL_OP_LAYERNORM,
    KEEL_OP_LAYERNORM_GRAD,
    KEEL_OP_RMS_NORM,
    KEEL_OP_RMS_NORM_GRAD,
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
    KEEL_OP_PRODUCT_LOSS,
    KEEL_OP_CROSS_ENTROPY_MAX,
    KEEL_OP_CROSS_ENTROPY_PART,
    KEEL_OP_CROSS_ENTROPY_END,

    KEEL_OP_ATTENTION, /* graph_attention.c */
    KEEL_OP_ATTENTION_GRAD,
    KEEL_OP_CROSS_ATTENTION,
    KEEL_OP_CROSS_ATTENTION_GRAD,
    KEEL_OP_ROTARY, /* its own gradient, turning back */
    KEEL_OP_GROUPED_ATTENTION,
    KEEL_OP_GROUPED_ATTENTION_GRAD,
    KEEL_OP_GROUPED_ROTARY, /* likewise */
    KEEL_OP_PAIR_HALVES,
    KEEL_OP_HEADS_JOIN,
    KEEL_OP_HEADS_PART,
    KEEL_OP_ATTENTION_DECODE,

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
    KEEL_OP_CUMSUM,

    KEEL_OP_DISPATCH, /* graph_expert.c */
    KEEL_OP_EXPERT_LINEAR,
    KEEL_OP_EXPERT_TRANSPOSED,
    KEEL_OP_EXPERT_DX,
    KEEL_OP_EXPERT_DW,
    KEEL_OP_EXPERT_BIAS_GRAD,
    KEEL_OP_COMBINE,
    KEEL_OP_COMBINE_GRAD,
    KEEL_OP_BALANCE_LOSS,

    KEEL_OP_CONV2D, /* graph_image.c */
    KEEL_OP_CONV2D_DX,
    KEEL_OP_CONV2D_DW,
    KEEL_OP_CONV2D_TRANSPOSED,
    KEEL_OP_BATCH_NORM,
    KEEL_OP_BATCH_NORM_EVAL,
    KEEL_OP_BATCH_NORM_GRAD,
    KEEL_OP_MAX_POOL,
    KEEL_OP_MAX_POOL_GRAD,
    KEEL_OP_AVG_POOL,
    KEEL_OP_AVG_POOL_GRAD,
    KEEL_OP_GLOBAL_AVG_POOL,
    KEEL_OP_GLOBAL_AVG_POOL_GRAD,

    KEEL_OP_BINARY, /* graph_tensor.c */
    KEEL_OP_BINARY_GRAD,
    KEEL_OP_BROADCAST,
    KEEL_OP_BROADCAST_GRAD,
    KEEL_OP_EXPAND,
    KEEL_OP_REDUCE,
    KEEL_OP_SCALE,
    KEEL_OP_MATMUL,
    KEEL_OP_MATMUL_DA,
    KEEL_OP_MATMUL_DB,

    KEEL_OP_CAST, /* pass_amp.c */

    KEEL_OP_RESHARD, /* graph_shard.c */
    KEEL_OP_ADD_BIAS,
    KEEL_OP_ADD_POSITIONS,
    KEEL_OP_REPACK,
    KEEL_OP_RUN,
    KEEL_OP_EXCHANGE,

    KEEL_OP_COUNT
};

struct keel_autodiff; /* autodiff.h */
struct keel_emit;     /* emit.h */

enum { KEEL_INFER = 128 };

/* What a row's infer_dims works with: it gives the upper-case letters of the rule their sizes, from the
 * attributes, the operands and the sizes of the other letters (which are known by now), and checks what the
 * rule cannot say. Where something is wrong it returns keel_infer_refuse(infer, ...); the caller puts the
 * operation's name and shapes before that text. */
struct keel_infer {
    const struct keel_graph *graph;
    const struct keel_ir_node *node;
    uint64_t size[KEEL_INFER]; /* by letter */
    char why[160];
};
/* False, with the reason in infer->why. */
bool keel_infer_refuse(struct keel_infer *infer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

struct keel_op {
    const char *name;
    const char *rule;
    const char *flops; /* FLOPs as a product of the rule's letters ("4bttw"), or NULL: 2 x all letters when
                          the rule contracts two operands, else 0 */
    const char
        *in_place; /* pairs "result operand" of digits: may share memory, first choice first; NULL: none */
    bool (*infer_dims)(struct keel_infer *); /* NULL: the rule says it all */
    /* The attributes as text for the dump (" heads=4"); NULL: there are none, but dropout. */
    void (*describe)(const struct keel_ir_node *, char *text, size_t text_bytes);
    const char *half;   /* digits of the operands that the kernel of a backward product reads in 16 bits, and
                           has so with 16-bit storage (pass_amp.c); NULL: none */
    const char *params; /* digits of the operands of a model's node that must be trained parameters, if they
                           are there: their gradients are accumulators of the kernel; NULL: none */
    const char *split;  /* indices that may be split over a mesh axis, '*' among them; NULL: none. A mark
                           behind one says more:
                             /  in whole heads; H, where it stands, goes along. H/: in groups of heads that
                                share keys, by which all letters of heads go
                             !  what is summed over it is made whole within the operation
                             0  each slice has zeros where another owns the element: what is summed over it
                                is joined by adding bits */
    bool (*move)(const struct keel_graph *, const struct keel_ir_node *, struct keel_axis_spec *split);
    /* of an operation that only moves elements, and so takes what is partial: how a
       split of its operands becomes that of the result; false: it does not */
    bool begins; /* with emit->fresh result 0, an accumulator, is overwritten with +0 + what is added */
    bool scaled; /* a loss: its gradient is multiplied by emit->loss_scale */
    const char *instead; /* of an operation for evaluation alone, which hands no gradient on: what is trained;
                            NULL: it may be in a graph that is trained */
    void (*grad)(struct keel_autodiff *, const struct keel_ir_node *);
    enum keel_status (*emit)(struct keel_emit *, const struct keel_ir_node *);
};

/* The rows of one family, which stand at the end of its file: those of operations `first` to `last`. */
struct keel_op_family {
    uint32_t first, last;
    const struct keel_op *rows;
};
extern const struct keel_op_family keel_ops_dense, keel_ops_loss, keel_ops_attention, keel_ops_table,
    keel_ops_shape, keel_ops_row, keel_ops_expert, keel_ops_image, keel_ops_tensor, keel_ops_amp,
    keel_ops_shard;
const struct keel_op *keel_op_row(uint32_t op);

/* Check the operands of `node` (inputs and accumulators) against the rule and give the shapes of
 * results. INVALID names the operation, the shapes and the index that disagrees. */
enum keel_status keel_op_infer(const struct keel_graph *graph, const struct keel_ir_node *node,
                               struct keel_shape shapes[KEEL_NODE_OUT_MAX]);

/* Results that the rule has, those that may be absent, that are accumulators, that are int32: bit sets. */
struct keel_op_results {
    uint32_t all, optional, accumulated, integer;
};
struct keel_op_results keel_op_results(uint32_t op);

/* Multiply-adds counted as two; bytes read and written if each operand is touched once. */
uint64_t keel_op_flops(const struct keel_graph *graph, const struct keel_ir_node *node);
uint64_t keel_op_bytes(const struct keel_graph *graph, const struct keel_ir_node *node);
uint64_t keel_graph_flops(const struct keel_graph *graph);

/* ---- what families share ----------------------------------------------------------------------------- */

/* Whether the node's dropout rate is in [0, 1); else refused. (graph_dense.c) */
bool keel_check_rate(struct keel_infer *infer);
/* Of every loss. (graph_loss.c) */
enum { KEEL_LOSS_CHUNK_ROWS = 1024 }; /* of linear_cross_entropy: rows of logits that are there at a time */
void keel_grad_loss(struct keel_autodiff *, const struct keel_ir_node *);
void keel_describe_loss(const struct keel_ir_node *, char *text, size_t text_bytes);

#endif
