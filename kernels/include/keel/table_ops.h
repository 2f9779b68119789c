/* table_ops.h - operations on rows that are chosen by number: gather, scatter-add, embedding bag, pairwise
 * dot; and mixtures of experts: dispatch, combine, balance loss.
 *
 * Conventions as in keel/kernels.h: descriptors, borrowed buffers, launches appended to a list, canonical
 * bits. Indices (ids, choices, places) are int32 data, which a descriptor cannot check. An index outside its
 * range is an absent row: it reads and writes nothing; -1 is the usual value. Whoever loads the data
 * validates it. Every size is 1 or more; INVALID names the operation and the shapes: correct the descriptor.
 */
#ifndef KEEL_TABLE_OPS_H
#define KEEL_TABLE_OPS_H

#include <keel/api.h>
#include <keel/kernels.h>

KEEL_API_BEGIN

/* y[i, :] = x[ids[i], :], zeros where the id is outside [0, rows). */
struct keel_gather {
    uint32_t rows, n; /* of x */
    uint32_t count;   /* of ids */
    struct keel_buffer *ids, *x, *y;
};
enum keel_status keel_op_gather(struct keel_kernels *, const struct keel_gather *, struct keel_launch_list *);

/* table[ids[i], :] += x[i / per, :] over all i: for each row of the table that occurs s = +0, s = s + x row,
 * i ascending, then table = table + s; other rows are not touched. The ids are sorted first, stably, by 8
 * bits in three launches: a few passes over 8 bytes an id, so that any number of ids and repeats costs little
 * more than reading x. The gradient of gather (per 1) and of a bag (per = ids in it). */
struct keel_scatter_add {
    uint32_t rows, n; /* of the table */
    uint32_t count;   /* of ids; a multiple of per */
    uint32_t per;
    struct keel_buffer *ids, *x, *table;
    struct keel_buffer *workspace; /* keel_sort_workspace_bytes(count) */
};
uint64_t keel_sort_workspace_bytes(uint32_t count);
enum keel_status keel_op_scatter_add(struct keel_kernels *, const struct keel_scatter_add *,
                                     struct keel_launch_list *);

/* y[b, :] = sum over j ascending of table[ids[b, j], :], s = +0, s = s + row; ids outside [0, rows) are
 * absent. With weights [bags, size]: s = fma(weight, row, s). The gradient to the table: keel_op_scatter_add
 * with per = size. */
struct keel_embedding_bag {
    uint32_t bags, size; /* of ids */
    uint32_t rows, n;    /* of the table */
    struct keel_buffer *ids, *table, *y;
    struct keel_buffer *weights; /* or NULL */
};
enum keel_status keel_op_embedding_bag(struct keel_kernels *, const struct keel_embedding_bag *,
                                       struct keel_launch_list *);

/* Dot products of each pair of the f rows of a sample (Naumov et al. 2019, DLRM): x is [batch, f, n], y
 * [batch, f (f - 1) / 2], the pairs (1, 0), (2, 0), (2, 1), (3, 0) ...; each is the sum of the rounded
 * products in the tree. f is 2 or more. */
struct keel_pairwise_dot {
    uint32_t batch, f, n;
    struct keel_buffer *x, *y;
};
enum keel_status keel_op_pairwise_dot(struct keel_kernels *, const struct keel_pairwise_dot *,
                                      struct keel_launch_list *);
/* dx[b, i, :] = the chain of fma(dy of the pair, x[b, j, :], s) from +0 over j ascending, j not i. */
struct keel_pairwise_dot_grad {
    uint32_t batch, f, n;
    struct keel_buffer *x, *dy, *dx;
};
enum keel_status keel_op_pairwise_dot_grad(struct keel_kernels *, const struct keel_pairwise_dot_grad *,
                                           struct keel_launch_list *);

/* ---- mixture of experts (Shazeer et al. 2017; Fedus et al. 2021) ---- */

enum { KEEL_EXPERTS_MAX = 1 << 20 }; /* of one layer */

/* The rows of x [rows, n], each copied once for each of its k choices and sorted by expert: within an expert
 * by row, then by the number of the choice. An expert takes its first `capacity`; the others, and choices
 * outside [0, experts), are dropped. Three results:
 *
 *     offsets [experts + 1]  the rows of expert e are [offsets[e], offsets[e + 1]) of sorted
 *     place [rows, k]        where the copy lies, -1 where it was dropped
 *     sorted                 keel_dispatch_rows rows of n: those behind offsets[experts] are zeros
 *
 * The gradient to x: keel_op_embedding_bag with ids = place, table = dsorted, bags = rows, size = k. */
struct keel_dispatch {
    uint32_t rows, n, k, experts, capacity;
    struct keel_buffer *x, *choice;
    struct keel_buffer *sorted, *offsets, *place;
    struct keel_buffer *workspace; /* keel_dispatch_workspace_bytes */
};
uint32_t keel_dispatch_rows(uint32_t rows, uint32_t k, uint32_t experts, uint32_t capacity);
uint64_t keel_dispatch_workspace_bytes(const struct keel_dispatch *op);
enum keel_status keel_op_dispatch(struct keel_kernels *, const struct keel_dispatch *,
                                  struct keel_launch_list *);

/* The gradient of the biases [experts, n] of layers that experts have (keel_op_gemm_grouped does their
 * products): out[e, :] += the sum of x's rows [offsets[e], offsets[e + 1]), ascending: s = +0, s = s + row,
 * out = out + s. Offsets as a dispatch leaves them; what lies beyond `rows` is not read. */
struct keel_expert_bias_grad {
    uint32_t rows, n, experts;
    struct keel_buffer *x, *offsets, *out;
};
enum keel_status keel_op_expert_bias_grad(struct keel_kernels *, const struct keel_expert_bias_grad *,
                                          struct keel_launch_list *);

/* Combine is keel_op_embedding_bag with ids = place, table = y [places, n], weights [rows, k]: out[r, :] =
 * the chain over the choices ascending. Its gradients, from dout [rows, n]:
 *
 *     dweights[r, j]      = y[place] . dout[r], the products' sum in the tree; 0 where it was dropped
 *     dy[place[r, j], :]  = weights[r, j] * dout[r, :]; zeros where nothing lies
 *
 * Places are those of a dispatch: no two alike. */
struct keel_combine_grad {
    uint32_t rows, n, k, places;
    struct keel_buffer *y, *place, *weights, *dout;
    struct keel_buffer *dy, *dweights; /* overwritten */
    struct keel_buffer *workspace;     /* 4 bytes for each of `places` */
};
enum keel_status keel_op_combine_grad(struct keel_kernels *, const struct keel_combine_grad *,
                                      struct keel_launch_list *);

/* Balance of experts: loss[0] += scale * experts * (sum over e of f_e P_e), f_e the share of all choices that
 * took expert e, P_e the mean of probabilities [rows, experts] over the rows. In bits: n_e the choices, s_e =
 * the column's sum, rows ascending; t = the chain fma((float)n_e, s_e, t) over e; a = scale * experts / (rows
 * * rows * k), rounded once; loss = loss + a * t. dprobabilities[r, e] = a * (float)n_e, when not NULL
 * (choices have no slope). */
struct keel_balance_loss {
    uint32_t rows, experts, k;
    float scale;
    struct keel_buffer *probabilities, *choice, *loss, *dprobabilities;
    struct keel_buffer *scratch;    /* 2 * experts floats */
    struct keel_buffer *loss_scale; /* of dprobabilities, as in keel_cross_entropy */
};
enum keel_status keel_op_balance_loss(struct keel_kernels *, const struct keel_balance_loss *,
                                      struct keel_launch_list *);

KEEL_API_END

#endif
