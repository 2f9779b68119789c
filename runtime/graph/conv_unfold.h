/* conv_unfold.h - convolutions as products of unfolded rows, in classes of numerics whose products have
 * planes (keel_conv2d_unfolds; kernels/README.md, "Classes of numerics"). For the emit functions of
 * graph_image.c. */
#ifndef KEEL_RUNTIME_CONV_UNFOLD_H
#define KEEL_RUNTIME_CONV_UNFOLD_H

#include "emit.h"

#include <keel/image_ops.h>

/* What keel_op_conv2d, keel_op_conv2d_grad_data and keel_op_conv2d_grad_weight make, as products; the values
 * are those of the descriptor's x and y, dy and dx, x and dy. Measure, or append. Errors: those of the
 * operations. */
enum keel_status keel_emit_unfolded(struct keel_emit *emit, const struct keel_conv2d *op, keel_value x,
                                    keel_value y);
enum keel_status keel_emit_unfolded_data(struct keel_emit *emit, const struct keel_conv2d_grad_data *op,
                                         keel_value dy, keel_value dx);
enum keel_status keel_emit_unfolded_weight(struct keel_emit *emit, const struct keel_conv2d_grad_weight *op,
                                           keel_value x, keel_value dy);

#endif
