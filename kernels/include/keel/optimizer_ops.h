/* optimizer_ops.h - what turns gradients into weights: the norm, one update for all optimizers, loss scale.
 *
 * All parameters lie in flat buffers of one layout (weights, gradients, moments), each beginning at a
 * multiple of KEEL_UPDATE_PAGE elements; what lies between them is never touched. One launch updates all of
 * them: it reads gradient, moments and weight once, and writes moments, weight, 16-bit copy and digest in the
 * same pass. Arithmetic, errors, ownership and threads as in keel/kernels.h. */
#ifndef KEEL_OPTIMIZER_OPS_H
#define KEEL_OPTIMIZER_OPS_H

#include <assert.h>
#include <keel/api.h>
#include <keel/kernels.h>

KEEL_API_BEGIN

/* The scale of a loss whose gradients are kept in 16 bits (Micikevicius et al. 2018, "Mixed Precision
 * Training"). `state` is one float: the scale is the power of two at or below it, the rest counts good steps.
 * After a norm: a step whose norm is not finite halves the scale, to 1 at least, and any other adds one
 * 2048th, so that 2048 good steps double it, to 2^24 at most. Integer arithmetic on its bits. */
struct keel_loss_scale {
    struct keel_buffer *state, *norm;
};
enum keel_status keel_op_loss_scale(struct keel_kernels *, const struct keel_loss_scale *,
                                    struct keel_launch_list *);

/* What is done with a parameter. */
enum keel_tensor_kind {
    KEEL_TENSOR_PLAIN,     /* trained, without weight decay and trust ratio: biases, norms */
    KEEL_TENSOR_DECAY,     /* trained */
    KEEL_TENSOR_STATISTIC, /* w += factor * (grad - w): grad is a mean over the batch, neither scaled nor
                              clipped; moments untouched */
    KEEL_TENSOR_KEPT,      /* stays as it is */
    KEEL_TENSOR_KIND_COUNT
};

/* One parameter, in C and in OpenCL C. */
enum { KEEL_UPDATE_PAGE = 1024 };
struct keel_update_tensor {
    uint64_t offset;        /* in elements of the flat buffers: a multiple of KEEL_UPDATE_PAGE */
    uint64_t count;         /* elements, at least 1 */
    uint64_t first_element; /* its place in the digest, as in keel_digest */
    uint32_t kind;          /* enum keel_tensor_kind */
    float factor;           /* of the learning rate, 1 but for groups of its own; of a statistic: momentum */
    uint32_t tile;          /* its place in the tree of the norm: parameters by number, then slices of each */
    uint32_t page;          /* of keel_norm_tiles, where row is above 0: that of its first sum */
    uint64_t row, stride;   /* 0, or of a box: in keel_update its number in the digest is that of keel_digest;
                               in   keel_norm_tiles element i lies at offset + i / row * stride + i % row */
};
static_assert(sizeof(struct keel_update_tensor) == 56, "56 bytes for kernels too");

/* Which tensor each page of the flat buffers belongs to: `pages` has keel_update_page_count(count) words.
 * INVALID names a tensor that is empty, begins within a page, overlaps another or does not fit. */
uint64_t keel_update_page_count(uint64_t count);
enum keel_status keel_update_find_pages(const struct keel_update_tensor *tensors, uint32_t tensor_count,
                                        uint64_t count, uint32_t *pages);

/* The norm of a gradient, in two stages, so that nothing but the model decides its bits: no layout, no order
 * of buckets, no rank that holds a tensor.
 *
 * keel_op_norm_tiles: tiles[t.tile] = sum of the squares of tensor t: of each page by itself in the order of
 * canon_tree.h, then of its pages, ascending, in the same tree. 0 for a statistic and for what is kept. Other
 * tiles stay as they are. So a rank sums the tensors that it holds, and where each tile has one such rank and
 * 0 on all others, the sum over ranks of `tiles` is exact in any order.
 *
 * Tiles that are boxes of what lies in one piece (columns of a matrix, say) have a table of their own, in
 * which `tensors` begin anywhere and have row and stride: keel_norm_find_pages numbers their pages, each of a
 * tile's own elements in their own order. The sums have the bits of those of a copy of the tile in one piece.
 *
 * In two halves, where ranks hold pages of a tensor: without `tiles` only the squares of pages are summed,
 * into scratch, which is `page_count` floats; without `x` they are there already, of all pages. */
struct keel_norm_tiles {
    uint64_t count;      /* elements of the flat buffers, gaps included */
    uint64_t held_count; /* of x, as in keel_update */
    uint64_t page_count; /* keel_norm_page_count, or 0 for tensors that are no boxes */
    uint32_t tensor_count, tile_count;
    struct keel_buffer *x, *tensors, *pages; /* as in keel_update; x may be NULL */
    struct keel_buffer *scratch, *tiles;     /* tiles: tile_count floats, or NULL */
};
uint64_t keel_norm_tiles_scratch_bytes(uint64_t count);
/* The pages of boxes of a flat buffer of `count` elements: sets `page` of each, and pages[p], of which there
 * are keel_norm_page_count, to the number of the box that page p is of. Scratch is a float for each page. row
 * 0 becomes one row. INVALID names a box that is empty or does not fit. */
uint64_t keel_norm_page_count(const struct keel_update_tensor *tensors, uint32_t tensor_count);
enum keel_status keel_norm_find_pages(struct keel_update_tensor *tensors, uint32_t tensor_count,
                                      uint64_t count, uint32_t *pages);
enum keel_status keel_op_norm_tiles(struct keel_kernels *, const struct keel_norm_tiles *,
                                    struct keel_launch_list *);

/* keel_op_norm: norm[0] = sqrt(sum of all tiles, ascending, in the same tree). Then norm[1] = factor that
 * clips to control.max_norm: 1 when max_norm is 0 or norm <= max_norm, else max_norm / norm. A NaN or Inf
 * norm gives factor 0 in norm[1], so that the caller can refuse the step. With `loss_scale` the gradient is
 * taken to be that many times too large: norm[0] is that of gradient / scale, norm[1] clips and unscales in
 * one, norm[2] = scale. */
struct keel_norm {
    uint32_t tile_count;
    struct keel_buffer *tiles;                    /* read alone */
    struct keel_buffer *scratch, *norm, *control; /* norm: 2 floats, 3 with loss_scale */
    struct keel_buffer *loss_scale;               /* as in keel_loss_scale, or NULL */
};
uint64_t keel_norm_scratch_bytes(uint32_t tile_count);
enum keel_status keel_op_norm(struct keel_kernels *, const struct keel_norm *, struct keel_launch_list *);

/* With g = grad * norm[1] (norm[1] 0: the step was refused, weights and moments stay), d =
 * control.weight_decay for KEEL_TENSOR_DECAY, else 0, and rate = control.learning_rate * factor: ADAMW  m =
 * b1 m + (1-b1) g; v = b2 v + (1-b2) g g; u = m / bias1 / (sqrt(v / bias2) + epsilon); w -= rate (u + d w)
 * Loshchilov and Hutter 2019 ADAM   g += d w; then as ADAMW with no decay                        Kingma and
 * Ba 2015 SGD    g += d w; m = momentum m + g; w -= rate m; with nesterov w -= rate (g + momentum m)
 * Sutskever et al. 2013 LARS   r = trust |w| / (|g| + d |w|); g += d w; m = momentum m + rate r g; w -= m You
 * et al. 2017 LAMB   u as ADAMW; s = u + d w; w -= rate |w| / |s| s               You et al. 2020 The ratios
 * of LARS and LAMB are by tensor, norms in the fixed tree; 1 where a norm is 0 and for KEEL_TENSOR_PLAIN, as
 * in the authors' programs. SGD and LARS need no v. Exact order: optimizer.cl.
 *
 * digest[0] = the digest of all tensors after the update, as keel_op_digest adds it up. half: the new weights
 * in half_type (KEEL_BF16, KEEL_F16), in the same layout; gaps are not written. scratch must be zero before
 * the first run, and belongs to this operation from then on. */
enum keel_optimizer {
    KEEL_OPTIMIZER_ADAMW,
    KEEL_OPTIMIZER_ADAM,
    KEEL_OPTIMIZER_SGD,
    KEEL_OPTIMIZER_LARS,
    KEEL_OPTIMIZER_LAMB,
    KEEL_OPTIMIZER_COUNT
};
/* What the optimizers take besides the learning rate. Steps of a run have the same. */
struct keel_update_settings {
    float beta1, beta2, epsilon; /* Adam, AdamW, LAMB */
    float momentum;              /* SGD, LARS */
    float trust;                 /* LARS */
    float weight_decay;          /* of KEEL_TENSOR_DECAY */
    float max_norm;              /* that gradients are clipped to; 0: none */
};
/* The control block of an update: `step` counts from 0. */
struct keel_control keel_update_control(const struct keel_update_settings *settings, float learning_rate,
                                        uint32_t step);
/* Whether it has a second moment. */
bool keel_optimizer_has_v(enum keel_optimizer optimizer);
struct keel_update {
    enum keel_optimizer optimizer;
    bool nesterov;       /* SGD */
    uint64_t count;      /* elements of the flat buffers, gaps included */
    uint64_t held_count; /* of which grad, m and v have so many: tensors beyond are kept; 0: count */
    uint32_t tensor_count;
    struct keel_buffer *w, *grad, *m, *v; /* v may be NULL where it is not needed */
    struct keel_buffer *norm, *control;
    struct keel_buffer *tensors,
        *pages;               /* tensor_count keel_update_tensor; the words of keel_update_find_pages */
    struct keel_buffer *half; /* or NULL */
    enum keel_dtype half_type;
    struct keel_buffer *digest, *scratch;
};
uint64_t keel_update_scratch_bytes(const struct keel_update *op);
enum keel_status keel_op_update(struct keel_kernels *, const struct keel_update *, struct keel_launch_list *);

KEEL_API_END

#endif
