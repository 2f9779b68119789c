/* graph.h - the model as a static graph, written with a small builder.
 *
 * Values are numbered tensors of known shape; nodes are rows of the operation table (ops.c): name, index
 * rule (an einsum-like string from which shapes, FLOPs and bytes are derived), gradient, kernels. Shape
 * errors are found when a node is added, and name the operation and the shapes. The builder keeps the first
 * error and ignores later calls: check keel_graph_status once, at the end. A NULL pointer for a name, spec,
 * order, parts or result is a programming error and asserts. */
#ifndef KEEL_GRAPH_H
#define KEEL_GRAPH_H

#include <keel/api.h>
#include <keel/attention_ops.h>
#include <keel/kernels.h>
#include <keel/status.h>
#include <keel/tensor_ops.h>
#include <stdbool.h>
#include <stdint.h>

KEEL_API_BEGIN

struct keel_graph;
typedef uint32_t keel_value; /* 0 is no value */

enum { KEEL_DIMS_MAX = 4, KEEL_VALUE_NAME_BYTES = 64 };

struct keel_shape {
    uint32_t dims;
    uint64_t size[KEEL_DIMS_MAX];
};

enum keel_status keel_graph_create(struct keel_graph **out);
void keel_graph_destroy(struct keel_graph *graph);
enum keel_status keel_graph_status(const struct keel_graph *graph); /* first error; detail set again */

/* What is fed with each microbatch, in this order: KEEL_I32 (ids, classes) or KEEL_F32. Inputs have a name
 * each, and so have parameters, of 1 to KEEL_VALUE_NAME_BYTES - 1 bytes. */
keel_value keel_graph_input(struct keel_graph *, const char *name, enum keel_dtype, struct keel_shape);

/* A trained tensor: normal(0, deviation) when deviation > 0, else the constant `fill`. Or a statistic (such
 * as a running mean), which has no gradient: operations add the mean over the step to its accumulator, and
 * the update does w += momentum * (mean - w). Statistics are stored after all trained tensors and excluded
 * from the gradient norm; sums, digests and snapshots include them. */
struct keel_param_spec {
    const char *name;
    struct keel_shape shape;
    float deviation, fill;
    bool decay;
    bool statistic;
    float momentum; /* of a statistic: (0, 1]; 0 otherwise */
    /* Or first values: as many floats as the shape has elements, the lowest byte first, aligned or not. They
     * are read when an engine draws its first weights, and must stay until all engines of the graph are gone.
     * NULL: none. */
    const void *values;
};
keel_value keel_graph_param(struct keel_graph *, const struct keel_param_spec *);

/* Operations of a transformer; 0 for an absent bias or beta. Weights, tables, biases, gamma and beta, here
 * and below, are parameters that are trained. */
keel_value keel_graph_embedding(struct keel_graph *, keel_value ids, keel_value table, keel_value positions);
keel_value keel_graph_linear(struct keel_graph *, keel_value x, keel_value weight, keel_value bias);
keel_value keel_graph_linear_transposed(struct keel_graph *, keel_value x, keel_value table); /* x table^T */
keel_value keel_graph_linear_transposed_bias(struct keel_graph *, keel_value x, keel_value table,
                                             keel_value bias);
/* gamma and beta, or beta, may be 0: the row alone, or times gamma. */
keel_value keel_graph_layernorm(struct keel_graph *, keel_value x, keel_value gamma, keel_value beta);
/* The same with another epsilon than 1e-5, in (0, 1). */
keel_value keel_graph_layernorm_epsilon(struct keel_graph *, keel_value x, keel_value gamma, keel_value beta,
                                        float epsilon);
keel_value keel_graph_rms_norm(struct keel_graph *, keel_value x, keel_value gamma);
keel_value keel_graph_activation(struct keel_graph *, keel_value x, enum keel_activation_kind kind);
keel_value keel_graph_swiglu(struct keel_graph *, keel_value a, keel_value b); /* silu(a) * b */
/* Self-attention over qkv [batch, tokens, 3 width]. segments, int32 [batch, tokens], for sequences that are
 * packed into one row, and for padding, whose number no token has: a token sees only those of its number.
 * With fewer heads of keys and values, each for as many of queries in a row (Ainslie et al. 2023), qkv is
 * [batch, tokens, (heads + 2 kv_heads) w], and the result [batch, tokens, heads w]. The bits, those of
 * gradients too, are those of heads of keys and values that are repeated (keel_graph_concat), before
 * keel_graph_grouped_rotary if that made qkv. Over a mesh such heads are split as keel_graph_join_heads has
 * them, else whole. */
struct keel_attention_spec {
    uint32_t heads;
    uint32_t kv_heads;   /* a divisor of heads; 0: as many */
    float dropout;       /* on the probabilities */
    bool bidirectional;  /* else causal: a token sees those before it and itself */
    uint32_t window;     /* of those only the ones less than so far away; 0: all */
    bool alibi;          /* scores fall with the distance (Press, Smith, Lewis 2022) */
    keel_value segments; /* 0: none */
};
keel_value keel_graph_attention(struct keel_graph *, keel_value qkv, const struct keel_attention_spec *);
/* Cross-attention: queries q [batch, tokens, width] see all keys of kv [batch, keys, 2 width], keys and
 * values side by side; with segments [batch, tokens] and key_segments [batch, keys], both or neither, those
 * of their own number, a query without any gives 0. */
struct keel_cross_attention_spec {
    uint32_t heads;
    float dropout;
    keel_value segments, key_segments;
};
keel_value keel_graph_cross_attention(struct keel_graph *, keel_value q, keel_value kv,
                                      const struct keel_cross_attention_spec *);
/* Rotary positions (Su et al. 2021): q and k of qkv [batch, tokens, 3 width] turned by angles that grow with
 * the token; base in (1, 1e9], usually 10,000. Heads must be of an even width, at most 256. */
keel_value keel_graph_rotary(struct keel_graph *, keel_value qkv, uint32_t heads, float base);
/* The same with fewer heads of keys and values, and with angles that may grow more slowly. */
keel_value keel_graph_grouped_rotary(struct keel_graph *, keel_value qkv, uint32_t heads, uint32_t kv_heads,
                                     const struct keel_rotary_turn *);
/* Heads [.., heads w] whose halves are pairs: i of the first half and i of the second become 2i and 2i + 1,
 * as rotary positions turn them. */
keel_value keel_graph_pair_halves(struct keel_graph *, keel_value x, uint32_t heads);
/* q [.., heads w], k and v [.., kv_heads w] side by side, as attention takes them. Split over a mesh by
 * groups of heads, so many that share a head of k and v (q by units of heads / kv_heads w, k and v of w),
 * they stay split: each slice has its groups. */
keel_value keel_graph_join_heads(struct keel_graph *, const keel_value qkv[3], uint32_t heads,
                                 uint32_t kv_heads);
/* From here on the graph is of the newest token alone of each of `batch` sequences (Pope et al. 2022): its
 * values have 1 token where they had all. Causal attention is to it and to those before it, whose keys and
 * values the graph keeps from one evaluation to the next, for at most `tokens` of them, as parameters of no
 * model, so that snapshots need not have them; rotary and learned positions are those of the token. Returns
 * the graph's input "position", int32 [batch, 1], which is to be the first: the token's number, from 0; below
 * 0: none. The bits are those of the row of a graph of all tokens, where no other operation reads more than
 * one token: that is for the caller to know; attention in both directions, or of segments, is refused. For
 * graphs that are evaluated: attention_decode has no gradient.
 */
keel_value keel_graph_decode(struct keel_graph *, uint64_t batch, uint32_t tokens);
/* The same of `rows` tokens of `sequences` of them, several of one perhaps, as those of a prompt: a second
 * input "slot", int32 [rows, 1], which it returns, is the number of a row's sequence. What is kept is that of
 * a graph of keel_graph_decode of so many sequences, and may be shared with it (struct keel_engine_config).
 */
keel_value keel_graph_decode_rows(struct keel_graph *, uint64_t rows, uint64_t sequences, uint32_t tokens);
keel_value keel_graph_dropout(struct keel_graph *, keel_value x, float rate);
keel_value keel_graph_add(struct keel_graph *, keel_value a, keel_value b);

/* Operations on images [batch, height, width, channels]; [0] is down, [1] across. Weights of a convolution
 * are [kernel down, kernel across, channels / groups, outputs]; bias 0: none. */
struct keel_conv2d_spec {
    uint32_t stride[2], pad[2], dilation[2], groups; /* 0 is 1, but of pad */
};
keel_value keel_graph_conv2d(struct keel_graph *, keel_value x, keel_value weight, keel_value bias,
                             const struct keel_conv2d_spec *);
/* Transposed convolution (Zeiler et al. 2010), what takes a convolution's result back to its image: the
 * gradient to data of keel_graph_conv2d with this weight. weight [kernel down, kernel across, outputs /
 * groups, channels of x]. The result is (size - 1) stride + dilation (kernel - 1) + 1 + extra - 2 pad high
 * and wide; extra is below stride. */
struct keel_conv2d_transposed_spec {
    uint32_t stride[2], pad[2], dilation[2], extra[2], groups; /* 0 is 1, but of pad and extra */
};
keel_value keel_graph_conv2d_transposed(struct keel_graph *, keel_value x, keel_value weight, keel_value bias,
                                        const struct keel_conv2d_transposed_spec *);
/* Group norm (Wu and He 2018) of x [batch, ..., channels]: each group of neighbouring channels of an image is
 * normalised by its own mean and variance; then times gamma plus beta, [channels], or 0. With as many groups
 * as channels it is instance norm. epsilon in (0, 1). */
keel_value keel_graph_group_norm(struct keel_graph *, keel_value x, keel_value gamma, keel_value beta,
                                 uint32_t groups, float epsilon);
/* Each pixel factor[0] times down and factor[1] times across (the nearest neighbour). */
keel_value keel_graph_upsample(struct keel_graph *, keel_value x, const uint32_t factor[2]);
/* Over all but the last dimension (Ioffe and Szegedy 2015). running_mean and running_variance are statistics
 * that belong to this batch norm alone; evaluation normalises with them. Where no gradient reaches the node
 * they are not updated. */
keel_value keel_graph_batch_norm(struct keel_graph *, keel_value x, keel_value gamma, keel_value beta,
                                 keel_value running_mean, keel_value running_variance);
struct keel_pool_spec {
    uint32_t kernel[2], stride[2], pad[2]; /* stride 0: as the kernel */
};
keel_value keel_graph_max_pool(struct keel_graph *, keel_value x, const struct keel_pool_spec *);
keel_value keel_graph_avg_pool(struct keel_graph *, keel_value x,
                               const struct keel_pool_spec *);            /* padding counts */
keel_value keel_graph_global_avg_pool(struct keel_graph *, keel_value x); /* [batch, channels] */

/* Moving elements. A reshape is free where x is not used again. concat joins at most 64 parts along `axis`,
 * alike in all other dimensions. permute: dimension i of the result is dimension order[i] of x; one entry for
 * each dimension.
 */
keel_value keel_graph_reshape(struct keel_graph *, keel_value x, struct keel_shape shape);
keel_value keel_graph_concat(struct keel_graph *, const keel_value *parts, uint32_t count, uint32_t axis);
keel_value keel_graph_slice(struct keel_graph *, keel_value x, uint32_t axis, uint64_t from, uint64_t count);
keel_value keel_graph_permute(struct keel_graph *, keel_value x, const uint32_t *order);
keel_value keel_graph_multiply(struct keel_graph *, keel_value a, keel_value b); /* of one shape */

/* Of two values, element by element: rows of keel/binary_table.h. Shapes are aligned at their last
 * dimensions, and a dimension of size 1, or one that is missing in front, is repeated (NumPy's rule); where
 * both are alike they may be split over the mesh, else they are whole. where: a where the condition is not 0,
 * else b. expand: x repeated to a shape. scale: x * factor + addend, rounded once. reduce: over `dims`
 * neighbouring dimensions from `dim` on, which the result has no more; of all of them it is [1]. The gradient
 * of the largest is shared by equals. */
keel_value keel_graph_binary(struct keel_graph *, keel_value a, keel_value b, enum keel_binary_kind kind);
keel_value keel_graph_where(struct keel_graph *, keel_value condition, keel_value a, keel_value b);
keel_value keel_graph_expand(struct keel_graph *, keel_value x, struct keel_shape shape);
keel_value keel_graph_scale(struct keel_graph *, keel_value x, float factor, float addend);
keel_value keel_graph_reduce(struct keel_graph *, keel_value x, enum keel_reduce_kind kind, uint32_t dim,
                             uint32_t dims);
/* a [..., m, k] times b [..., k, n], matrix by matrix; neither need be a parameter. */
keel_value keel_graph_matmul(struct keel_graph *, keel_value a, keel_value b);

/* Along the last dimension. The k largest, largest first, of equal ones the lower index: indices [..., k] are
 * int32 and have no gradient. */
keel_value keel_graph_softmax(struct keel_graph *, keel_value x);
void keel_graph_top_k(struct keel_graph *, keel_value x, uint32_t k, keel_value *values, keel_value *indices);
keel_value keel_graph_cumsum(struct keel_graph *, keel_value x);

/* Rows by number: ids [..., l] of table [v, n] (a parameter) summed to [..., n]; ids [...] of x [r, n] to
 * [..., n]. An index outside the table, such as -1, adds nothing. Gradients touch only the rows that occur.
 */
keel_value keel_graph_embedding_bag(struct keel_graph *, keel_value ids, keel_value table);
keel_value keel_graph_gather(struct keel_graph *, keel_value x, keel_value ids);
/* [b, f, n] to [b, f (f - 1) / 2]: dot products of pairs (Naumov et al. 2019), (1,0), (2,0), (2,1) ... */
keel_value keel_graph_pairwise_dot(struct keel_graph *, keel_value x);

/* Mixture of experts (Shazeer et al. 2017; Fedus et al. 2021). Each row of x [..., w] goes to the k experts
 * of choice [..., k] int32: sorted [min(rows k, experts capacity), w] has expert after expert, each expert's
 * rows in their order and no more than `capacity`, the later ones dropped; those of expert e begin at
 * offsets[e]; place [..., k] says where each went, -1: dropped. combine adds the rows of y [s, n] times
 * weights [..., k] up to [..., n]. The balance loss is weight * experts * sum of (share of choices * mean
 * probability). */
void keel_graph_dispatch(struct keel_graph *, keel_value x, keel_value choice, uint32_t experts,
                         uint32_t capacity, keel_value *sorted, keel_value *offsets, keel_value *place);
/* Each expert's own layer: rows of `sorted` [s, k] by weight [experts, k, n] and bias [experts, n], or 0. */
keel_value keel_graph_expert_linear(struct keel_graph *, keel_value sorted, keel_value weight,
                                    keel_value bias, keel_value offsets);
/* The same of weights [experts, n, k], without bias. */
keel_value keel_graph_expert_linear_transposed(struct keel_graph *, keel_value sorted, keel_value weight,
                                               keel_value offsets);
keel_value keel_graph_combine(struct keel_graph *, keel_value y, keel_value place, keel_value weights);
keel_value keel_graph_balance_loss(struct keel_graph *, keel_value probabilities, keel_value choice,
                                   float weight);

/* Losses. Each is a mean over its rows; all of them add to one scalar, which they return. Targets must not
 * depend on a trained parameter: autodiff refuses them (UNSUPPORTED). The first loss also makes its first
 * operand the graph's output, if none is set. */
keel_value keel_graph_cross_entropy(struct keel_graph *, keel_value logits, keel_value targets);
keel_value keel_graph_bce(struct keel_graph *, keel_value logits, keel_value targets); /* targets: floats */
keel_value keel_graph_mse(struct keel_graph *, keel_value x, keel_value targets);      /* of x's shape */
/* weight times the mean of x * factors, of one shape: a loss whose gradient is known. It makes no output. */
keel_value keel_graph_product_loss(struct keel_graph *, keel_value x, keel_value factors, float weight);

/* The logical mesh that the values of a model may be split over: an axis has as many slices as the job says
 * (job.tensor), which one device may hold all of. How a value lies over an axis:
 *   REPLICATED    every slice has it whole
 *   SPLIT         slice s has the units [s units / slices, (s + 1) units / slices) of a dimension of
 *                 outer x units x unit elements, of each of the `outer` (3, where q, k and v stand side by
 *                 side); unit is what stays together, as a head. `dims` neighbouring dimensions from `dim` on
 *                 count as one; KEEL_SPLIT_ROWS as `dim` is all but the last. 0 is 1 in dims, outer, unit.
 *   PARTIAL       every slice has a summand, and the whole is their sum in the tree over slices
 *   PARTIAL_BITS  the same, and of each element all summands but one are zero: bits are added as int32 */
enum keel_mesh_axis { KEEL_AXIS_TENSOR, KEEL_MESH_AXES };
enum keel_axis_kind { KEEL_REPLICATED, KEEL_SPLIT, KEEL_PARTIAL, KEEL_PARTIAL_BITS };
enum { KEEL_SPLIT_ROWS = 255 };
struct keel_axis_spec {
    uint8_t kind; /* enum keel_axis_kind */
    uint8_t dim, dims, outer;
    uint32_t unit;
    uint32_t lead; /* passes': the first of the parts is so many times as wide as each other, of groups of
                      heads; 0: alike */
};

/* Say how a value lies over an axis; no effect where the axis has one slice, and none on the bits of what
 * differs from the annotation in nothing but who computes it. The rest follows: operands and results of an
 * operation from its index rule, weights from the products that read them, gradients from what they are the
 * gradient of. Parameters too may be annotated. INVALID: no such dimension, or it is no multiple of outer
 * times unit; a partial sum is nothing that a model can ask for; what was annotated otherwise before: say
 * one, and reshard the value where it is read otherwise. */
void keel_graph_shard(struct keel_graph *, keel_value, enum keel_mesh_axis, struct keel_axis_spec);
/* The same value from here on as `to` says: the collective by hand. Its gradient is its operand's. */
keel_value keel_graph_reshard(struct keel_graph *, keel_value, enum keel_mesh_axis, struct keel_axis_spec to);

/* What ranks with slices of a model exchange: values side by side, sums of floats in the tree over slices,
 * sums of bits as int32, the largest. */
enum keel_slices_exchange {
    KEEL_EXCHANGE_NONE,
    KEEL_EXCHANGE_GATHER,
    KEEL_EXCHANGE_SUM,
    KEEL_EXCHANGE_SUM_BITS,
    KEEL_EXCHANGE_MAX
};

/* What keel_engine_output reads: one value, made by an operation. */
void keel_graph_output(struct keel_graph *, keel_value);

struct keel_shape keel_graph_shape(const struct keel_graph *, keel_value);
/* The graph as text, one node a line. */
enum keel_status keel_graph_dump(const struct keel_graph *, const char *path);

KEEL_API_END

#endif
