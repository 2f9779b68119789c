/* tensor_ops.h - tensors of unlike shapes element by element, and sums, means and maxima over dimensions.
 *
 * Conventions as in keel/kernels.h: descriptors, borrowed buffers, launches appended to a list, canonical
 * bits. Every size is 1 or more, and a tensor has at most 2^32 - 1 elements. INVALID names the operation and
 * what is wrong, and leaves the list as it was: correct the descriptor. */
#ifndef KEEL_TENSOR_OPS_H
#define KEEL_TENSOR_OPS_H

#include <keel/api.h>
#include <keel/binary_table.h>
#include <keel/kernels.h>

KEEL_API_BEGIN

enum { KEEL_TENSOR_DIMS = 4 };

enum keel_binary_kind {
#define KEEL_BINARY_KIND(kind, ...) kind,
    KEEL_BINARY_TABLE(KEEL_BINARY_KIND)
#undef KEEL_BINARY_KIND
        KEEL_BINARY_COUNT
};
/* Its name, as "divide"; NULL: there is none of this number. Any thread. */
const char *keel_binary_name(enum keel_binary_kind kind);

/* y = f(a, b) of a row of keel/binary_table.h, y being [size[0], ..., size[3]]. An operand lies in order of
 * its own dimensions: those whose bit (1 << i) is set in a_dims or b_dims; along others its elements are used
 * again (broadcasting as NumPy's). `of` asks for the value, or for the slope along an operand times dy, which
 * has y's shape: the caller sums it over the dimensions that the operand has not. y is apart from all. */
enum keel_binary_result { KEEL_BINARY_VALUE, KEEL_BINARY_SLOPE_A, KEEL_BINARY_SLOPE_B, KEEL_BINARY_RESULTS };
struct keel_binary {
    enum keel_binary_kind kind;
    enum keel_binary_result of;
    uint64_t size[KEEL_TENSOR_DIMS];
    uint32_t a_dims, b_dims;
    struct keel_buffer *a, *b, *dy, *y; /* dy: NULL of the value */
};
enum keel_status keel_op_binary(struct keel_kernels *, const struct keel_binary *, struct keel_launch_list *);

/* y[outer, inner] of x[outer, n, inner]: the sum, the mean (the sum divided by n, rounded rightly), or the
 * largest, where a NaN is above all. Order: where inner is 1, a row's sum is the tree of canon_tree.h; else a
 * chain over n, ascending, begun with the first. */
enum keel_reduce_kind { KEEL_REDUCE_SUM, KEEL_REDUCE_MEAN, KEEL_REDUCE_MAXIMUM, KEEL_REDUCE_COUNT };
struct keel_reduce {
    enum keel_reduce_kind kind;
    uint64_t outer, n, inner;
    struct keel_buffer *x, *y;
};
enum keel_status keel_op_reduce(struct keel_kernels *, const struct keel_reduce *, struct keel_launch_list *);

/* y = fma(x, factor, addend); y may be x. Its gradient: the same of dy with an addend of 0. */
struct keel_scale {
    uint64_t count;
    float factor, addend; /* finite */
    struct keel_buffer *x, *y;
};
enum keel_status keel_op_scale(struct keel_kernels *, const struct keel_scale *, struct keel_launch_list *);

KEEL_API_END

#endif
