/* image_ops.h - operations on images: convolution, batch norm, pools, and their gradients.
 *
 * Images are [batch, height, width, channels] (NHWC), float32, dense. As in kernels.h: each descriptor says
 * in which order it adds, its function appends launches to a list, buffers are borrowed and outlive the list,
 * nothing is thread-safe per keel_kernels. Errors: INVALID with the operation's name and the shapes, for the
 * caller to correct; NO_MEMORY. */
#ifndef KEEL_IMAGE_OPS_H
#define KEEL_IMAGE_OPS_H

#include <keel/api.h>
#include <keel/kernels.h>

KEEL_API_BEGIN

/* ---- convolution --------------------------------------------------------------------------------------- */

/* [0] is down (height), [1] is across (width). Weights are [kernel[0], kernel[1], channels / groups,
 * out_channels]: outputs g * out_channels / groups and on see the channels g * channels / groups and on. */
struct keel_conv_shape {
    uint32_t batch, height, width, channels, out_channels;
    uint32_t kernel[2], stride[2], pad[2], dilation[2]; /* all but pad at least 1 */
    uint32_t groups;
};
/* Height (axis 0) or width (axis 1) of the output: (size + 2 pad - dilation (kernel - 1) - 1) / stride + 1,
 * of a shape without fault. */
uint32_t keel_conv_out(const struct keel_conv_shape *shape, int axis);
/* Why a shape is invalid, in words, or NULL if it is valid: nothing to compute, a stride, dilation or number
 * of groups of 0, groups that do not divide the channels, a kernel larger than the padded image, more than
 * 2^31 pixels. Any thread. */
const char *keel_conv_fault(const struct keel_conv_shape *shape);
/* Whether it is a product of matrices as it is, pixels by channels: one tap that meets every pixel, no
 * groups. */
bool keel_conv_is_product(const struct keel_conv_shape *shape);

/* What native kernels (KEEL_NATIVE) need for a convolution of 3 x 3 and stride 1, where
 * Winograd's F(4 x 4, 3 x 3) is faster (Lavin and Gray 2016: 36 multiplications for 16 outputs instead of
 * 144): forward, or with `back` for the gradient to data. All 0: none, and the canonical order is taken. The
 * sizes do not grow with the batch. The caller provides buffers of at least these sizes; all operations of
 * one queue may share them, since it runs them in order.
 *
 * Tolerance: of values of like size, no element differs from the canonical one by more than 2^-19 sqrt(n) of
 * the largest, n the channels that are summed (out_channels with `back`): a chain of n roundings, which
 * wander as sqrt(n), times what the output's transform amplifies. Measured: half of it. The same bits on each
 * device that takes it; which devices and shapes do is no promise. */
struct keel_conv_workspace_bytes {
    uint64_t weights, tiles, products;
};
struct keel_conv_workspace {
    struct keel_buffer *weights, *tiles, *products;
};
struct keel_conv_workspace_bytes keel_conv_workspace_bytes(const struct keel_kernels *,
                                                           const struct keel_conv_shape *, bool back);

/* y[b, p, q, o] = sum of x[b, p stride + i dilation - pad, q ..., c] w[i, j, c, o] + bias[o]: s = fma(x, w,
 * s) over i, j, c of the group ascending, from +0, where pixels of the padding count as x = 0; then s = s + 0
 * and y = s + bias, bias NULL: y = s. (One tap, stride 1, no padding, one group: the product of keel_op_gemm,
 * without + 0; so for the gradients.) The implicit product of matrices of Chellapilla et al. 2006: nothing is
 * unfolded in memory. */
struct keel_conv2d {
    struct keel_conv_shape shape;
    struct keel_buffer *x, *weight, *bias, *y;
    struct keel_conv_workspace workspace;
};
enum keel_status keel_op_conv2d(struct keel_kernels *, const struct keel_conv2d *, struct keel_launch_list *);

/* dx, overwritten: s = fma(dy, w, s) from +0 over i, j, o of the group ascending. Only the taps i, j with
 * (pixel + pad - tap dilation) a multiple of the stride are in the sum; of those, where the position lies
 * outside of dy, dy counts as 0; then dx = s + 0. */
struct keel_conv2d_grad_data {
    struct keel_conv_shape shape;
    struct keel_buffer *dy, *weight, *dx;
    struct keel_conv_workspace workspace;
};
enum keel_status keel_op_conv2d_grad_data(struct keel_kernels *, const struct keel_conv2d_grad_data *,
                                          struct keel_launch_list *);

/* dweight += s: s = fma(x, dy, s) over batch, p, q ascending from +0, pixels of the padding with x = 0; then
 * dweight = dweight + (s + 0). The gradient of the bias is keel_op_bias_grad of batch p q rows. */
struct keel_conv2d_grad_weight {
    struct keel_conv_shape shape;
    struct keel_buffer *x, *dy, *dweight;
};
enum keel_status keel_op_conv2d_grad_weight(struct keel_kernels *, const struct keel_conv2d_grad_weight *,
                                            struct keel_launch_list *);

/* The matrix whose product with the weights a convolution is (Chellapilla et al. 2006), some rows at a time:
 * to[g, r, (i, j), c] of [groups, rows, taps, channels of the group] is what tap (i, j) of output pixel first
 * + r sees, pixels being counted through all images, or +0 in the padding. back: what pixel first + r of the
 * image gets by tap (i, j) from dy, which is x here: [.., taps, outputs of the group], or +0 where the tap
 * does not meet the stride, or leads outside. For products of another class than canonical (README.md).
 * INVALID: rows that there are not. */
struct keel_conv2d_unfold {
    struct keel_conv_shape shape;
    bool back;
    uint32_t first, rows;
    struct keel_buffer *x, *to;
};
enum keel_status keel_op_conv2d_unfold(struct keel_kernels *, const struct keel_conv2d_unfold *,
                                       struct keel_launch_list *);
/* Whether a convolution of these kernels' class is products of unfolded rows: that of a class with planes, in
 * one group, or in groups of eight channels and outputs at least; others are canonical in every class. */
bool keel_conv2d_unfolds(const struct keel_kernels *, const struct keel_conv_shape *);

/* ---- batch norm (Ioffe and Szegedy 2015) --------------------------------------------------------------- */

/* Sums down a channel go by blocks of KEEL_NORM_ROWS rows: within a block rows ascend from +0, then the sums
 * of blocks ascend from +0. Of each block the sum s and, about its own mean s / rows, the sum q of squares
 * (fma); then (Chan, Golub, LeVeque 1983) mean = sum(s) / n, and the squares about it are the sum over blocks
 * of fma(rows d, d, q) with d = s / rows - mean. Variance: that / n; unbiased: that / max(n - 1, 1). */
enum { KEEL_NORM_ROWS = 64 };

/* Training form: t = (x - mean) * rstd with rstd = 1 / sqrt(variance + epsilon), z = fma(t, gamma, beta);
 * z = z + residual, when there is one; y = z <= 0 ? 0 : z, with relu: as the separate operations round.
 * `rows` is batch * height * width, n the channels; mean, rstd [n] are kept for the gradient. y may alias x
 * or residual. Statistics, when not NULL: running_mean[n] += mean * scale, running_variance[n] += unbiased *
 * scale. */
struct keel_batch_norm {
    uint32_t rows, n;
    float epsilon, scale;
    bool relu;
    struct keel_buffer *x, *gamma, *beta, *residual, *y, *mean, *rstd;
    struct keel_buffer *running_mean, *running_variance; /* both or neither */
    struct keel_buffer *scratch;                         /* keel_batch_norm_scratch_bytes(rows, n) */
};
uint64_t keel_batch_norm_scratch_bytes(uint32_t rows, uint32_t n);
enum keel_status keel_op_batch_norm(struct keel_kernels *, const struct keel_batch_norm *,
                                    struct keel_launch_list *);

/* The form after training: mean and variance are given ([n] each), rstd = 1 / sqrt(variance + epsilon); the
 * rest as above. y may alias x or residual. */
struct keel_batch_norm_eval {
    uint32_t rows, n;
    float epsilon;
    bool relu;
    struct keel_buffer *x, *gamma, *beta, *residual, *y, *mean, *variance;
};
enum keel_status keel_op_batch_norm_eval(struct keel_kernels *, const struct keel_batch_norm_eval *,
                                         struct keel_launch_list *);

/* Of the training form. g = dy, or with relu_y (the y of a form with relu) 0 where not relu_y > 0. a =
 * sum(g), b = sum of fma(g, t, s), by blocks; dbeta += a, dgamma += b; dx = fma(-t, b / n, g - a / n) *
 * (gamma * rstd).
 * dx may alias dy. */
struct keel_batch_norm_grad {
    uint32_t rows, n;
    struct keel_buffer *x, *gamma, *mean, *rstd, *dy, *relu_y, *dx, *dgamma, *dbeta;
    struct keel_buffer *scratch; /* keel_batch_norm_scratch_bytes(rows, n) */
};
enum keel_status keel_op_batch_norm_grad(struct keel_kernels *, const struct keel_batch_norm_grad *,
                                         struct keel_launch_list *);

/* ---- pools --------------------------------------------------------------------------------------------- */

struct keel_pool_shape {
    uint32_t batch, height, width, channels;
    uint32_t kernel[2], stride[2], pad[2]; /* pad less than kernel: each window meets the image */
};
/* As keel_conv_out and keel_conv_fault. */
uint32_t keel_pool_out(const struct keel_pool_shape *shape, int axis);
const char *keel_pool_fault(const struct keel_pool_shape *shape);

/* The largest of each window, padding left out, NaN larger than all; of equals the first in order (down, then
 * across) counts. taps[b, p, q, c] (int32) becomes its number i * kernel[1] + j, for the gradient. */
struct keel_max_pool {
    struct keel_pool_shape shape;
    struct keel_buffer *x, *y, *taps;
};
enum keel_status keel_op_max_pool(struct keel_kernels *, const struct keel_max_pool *,
                                  struct keel_launch_list *);
/* dx, overwritten: the sum from +0 of dy over the windows, p then q ascending, whose largest the pixel is. */
struct keel_max_pool_grad {
    struct keel_pool_shape shape;
    struct keel_buffer *dy, *taps, *dx;
};
enum keel_status keel_op_max_pool_grad(struct keel_kernels *, const struct keel_max_pool_grad *,
                                       struct keel_launch_list *);

/* The sum of each window, i then j ascending from +0, over kernel[0] kernel[1]: the padding is in the count
 * (count_include_pad of PyTorch), not in the sum. */
struct keel_avg_pool {
    struct keel_pool_shape shape;
    struct keel_buffer *x, *y;
};
enum keel_status keel_op_avg_pool(struct keel_kernels *, const struct keel_avg_pool *,
                                  struct keel_launch_list *);
/* dx, overwritten: the sum from +0 of dy over the windows of the pixel, p then q ascending, over the count.
 */
struct keel_avg_pool_grad {
    struct keel_pool_shape shape;
    struct keel_buffer *dy, *dx;
};
enum keel_status keel_op_avg_pool_grad(struct keel_kernels *, const struct keel_avg_pool_grad *,
                                       struct keel_launch_list *);

/* y[b, c] = the sum of x[b, :, c] over `pixels` rows, ascending from +0, over pixels; dx[b, :, c] = dy[b, c]
 * / pixels. */
struct keel_global_avg_pool {
    uint32_t batch, pixels, channels;
    struct keel_buffer *x, *y;
};
enum keel_status keel_op_global_avg_pool(struct keel_kernels *, const struct keel_global_avg_pool *,
                                         struct keel_launch_list *);
struct keel_global_avg_pool_grad {
    uint32_t batch, pixels, channels;
    struct keel_buffer *dy, *dx;
};
enum keel_status keel_op_global_avg_pool_grad(struct keel_kernels *, const struct keel_global_avg_pool_grad *,
                                              struct keel_launch_list *);

KEEL_API_END

#endif
