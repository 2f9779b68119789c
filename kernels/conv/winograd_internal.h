/* winograd_internal.h - what conv.c asks of winograd.c, and what the two sides of its kernels share. */
#ifndef KEEL_WINOGRAD_INTERNAL_H
#define KEEL_WINOGRAD_INTERNAL_H

#include <keel/image_ops.h>

enum { WINOGRAD_TILE = 4, WINOGRAD_POSITIONS = 36, WINOGRAD_TILES_TO_ITEM = 4 };

/* y = x by w (+ bias); or, with `back`, dx = dy by the turned w: then x is dy, and y is dx, and the shape is
 * that of the forward convolution. For shapes that keel_conv2d_workspace gives a workspace. INVALID,
 * NO_MEMORY. */
enum keel_status keel_winograd_append(struct keel_kernels *kernels, const struct keel_conv_shape *shape,
                                      bool back, struct keel_buffer *x, struct keel_buffer *weight,
                                      struct keel_buffer *bias, struct keel_buffer *y,
                                      const struct keel_conv_workspace *workspace,
                                      struct keel_launch_list *list);

#endif
