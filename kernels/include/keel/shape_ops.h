/* shape_ops.h - operations that move elements, and those along the last dimension: concatenate, slice,
 * permute, multiply; softmax, top-k, argmax, cumulative sum.
 *
 * Conventions as in keel/kernels.h: descriptors, borrowed buffers, launches appended to a list, canonical
 * bits. What is moved is moved bit by bit, so float32 and int32 alike. Every size is 1 or more. INVALID names
 * the operation and the shapes, and leaves the list as it was: correct the descriptor. */
#ifndef KEEL_SHAPE_OPS_H
#define KEEL_SHAPE_OPS_H

#include <keel/api.h>
#include <keel/kernels.h>

KEEL_API_BEGIN

enum { KEEL_CONCAT_MAX = 64, KEEL_BOX_DIMS = 4 };

/* y[outer, sum of sizes, inner] = the parts one after the other along the middle dimension; part i is [outer,
 * sizes[i], inner]. Its gradient: a slice of dy for each part. */
struct keel_concat {
    uint64_t outer, inner;
    uint32_t parts;
    const uint64_t *sizes;            /* `parts` of them; read during the call only */
    struct keel_buffer *const *input; /* as many */
    struct keel_buffer *y;
};
enum keel_status keel_op_concat(struct keel_kernels *, const struct keel_concat *, struct keel_launch_list *);

/* y[outer, count, inner] = x[outer, from .. from + count, inner], x being [outer, size, inner]. The gradient
 * writes all of x's place: y in [from, from + count), zeros elsewhere. */
struct keel_slice {
    uint64_t outer, size, inner, from, count;
    struct keel_buffer *x, *y;
};
enum keel_status keel_op_slice(struct keel_kernels *, const struct keel_slice *, struct keel_launch_list *);
/* x is written (the gradient of the whole), y is read. */
enum keel_status keel_op_slice_grad(struct keel_kernels *, const struct keel_slice *,
                                    struct keel_launch_list *);

/* Dimension i of y is dimension order[i] of x. The gradient is the permutation back: order[order[i]] = i. */
struct keel_permute {
    uint32_t dims;                /* 1 .. KEEL_BOX_DIMS */
    uint64_t size[KEEL_BOX_DIMS]; /* of x */
    uint32_t order[KEEL_BOX_DIMS];
    struct keel_buffer *x, *y;
};
enum keel_status keel_op_permute(struct keel_kernels *, const struct keel_permute *,
                                 struct keel_launch_list *);

/* y = a * b, element by element; y may alias either. Gradients: the same with dy for one of them. */
struct keel_multiply {
    uint64_t count;
    struct keel_buffer *a, *b, *y;
};
enum keel_status keel_op_multiply(struct keel_kernels *, const struct keel_multiply *,
                                  struct keel_launch_list *);

/* Each row of n by itself: y_j = e_j * (1 / s), e_j = exp(x_j - max), s the sum of e in the tree. y may alias
 * x. A row with a NaN, or of nothing but -inf, becomes NaN. */
struct keel_softmax {
    uint32_t rows, n;
    struct keel_buffer *x, *y;
};
enum keel_status keel_op_softmax(struct keel_kernels *, const struct keel_softmax *,
                                 struct keel_launch_list *);
/* dx_j = y_j * (dy_j - d), d the sum of the products y_i * dy_i in the tree. dx may alias dy. */
struct keel_softmax_grad {
    uint32_t rows, n;
    struct keel_buffer *y, *dy, *dx;
};
enum keel_status keel_op_softmax_grad(struct keel_kernels *, const struct keel_softmax_grad *,
                                      struct keel_launch_list *);

/* The k largest of each row of n, largest first: indices [rows, k] int32, values [rows, k] (NULL: not
 * wanted). Of equal values the lower index comes first; -0 equals +0; a NaN counts as above all numbers, and
 * every NaN as equal, so that what is wrong in a row shows in its result. k <= n. argmax is k = 1. */
struct keel_top_k {
    uint32_t rows, n, k;
    struct keel_buffer *x, *values, *indices;
};
enum keel_status keel_op_top_k(struct keel_kernels *, const struct keel_top_k *, struct keel_launch_list *);
/* dx [rows, n] = zeros, then dx[r, indices[r, j]] += dvalues[r, j], j ascending. An index outside [0, n) is
 * passed over. */
struct keel_top_k_grad {
    uint32_t rows, n, k;
    struct keel_buffer *indices, *dvalues, *dx;
};
enum keel_status keel_op_top_k_grad(struct keel_kernels *, const struct keel_top_k_grad *,
                                    struct keel_launch_list *);

/* y_j = y_(j-1) + x_j along each row, one chain of additions: y_0 = x_0. `reverse`: from the last to the
 * first, y_j = y_(j+1) + x_j, which is the gradient. y may alias x. */
struct keel_cumsum {
    uint32_t rows, n;
    bool reverse;
    struct keel_buffer *x, *y;
};
enum keel_status keel_op_cumsum(struct keel_kernels *, const struct keel_cumsum *, struct keel_launch_list *);

KEEL_API_END

#endif
