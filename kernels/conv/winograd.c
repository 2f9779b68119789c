/* winograd.c - Winograd's F(4 x 4, 3 x 3) for convolutions of 3 x 3 (Lavin and Gray 2016): where it is taken,
 * and its launches. It rounds otherwise than the canonical order: native kernels only. The transforms are in
 * winograd.cl; the products are those of conv_tiles.cl, as a convolution of one tap over tiles in 36 groups.
 *
 * Tiles are taken in chunks, so that what lies between the launches stays in a cache and the workspace does
 * not grow with the batch. */
#include "winograd_internal.h"

#include "kernels_internal.h"

enum { CHUNK_TILES = 72, CHANNELS_MIN = 32, TILES_MIN = 96 };

/* The tiles of the output, or with `back` of dx. */
struct grid {
    uint32_t down, across, tiles, chunk;
};
static struct grid grid_of(const struct keel_conv_shape *s, bool back)
{
    const uint32_t down = divide_up(back ? s->height : keel_conv_out(s, 0), WINOGRAD_TILE);
    const uint32_t across = divide_up(back ? s->width : keel_conv_out(s, 1), WINOGRAD_TILE);
    const uint32_t tiles = s->batch * down * across;
    return (struct grid){down, across, tiles, divide_up(tiles, divide_up(tiles, CHUNK_TILES))};
}

/* The rule, measured (kernels/README.md): enough channels for the transforms to be small beside the products,
 * enough tiles for those of the weights, which are slower where they are turned. */
static bool wins(const struct keel_kernels *kernels, const struct keel_conv_shape *s, bool back)
{
    const enum keel_device_kind kind = keel_kernels_info(kernels)->kind;
    if (keel_kernels_class(kernels) != KEEL_NATIVE || (kind != KEEL_DEVICE_CPU && kind != KEEL_DEVICE_HOST) ||
        keel_kernels_setting(kernels, KEEL_TUNABLE_BY_LANE) != 0 || s->groups != 1)
        return false;
    for (int axis = 0; axis < 2; axis++)
        if (s->kernel[axis] != 3 || s->stride[axis] != 1 || s->dilation[axis] != 1 || s->pad[axis] > 2)
            return false;
    const uint32_t tiles = grid_of(s, back).tiles;
    return s->channels >= CHANNELS_MIN && s->out_channels >= CHANNELS_MIN && tiles >= TILES_MIN &&
           (!back || tiles >= s->out_channels);
}

struct keel_conv_workspace_bytes keel_conv_workspace_bytes(const struct keel_kernels *kernels,
                                                           const struct keel_conv_shape *shape, bool back)
{
    if (keel_conv_fault(shape) != NULL || !wins(kernels, shape, back))
        return (struct keel_conv_workspace_bytes){0, 0, 0};
    const uint64_t each = KEEL_BYTES(WINOGRAD_POSITIONS, sizeof(float)), chunk = grid_of(shape, back).chunk;
    const uint64_t in = KEEL_BYTES(each, chunk, shape->channels),
                   out = KEEL_BYTES(each, chunk, shape->out_channels);
    return (struct keel_conv_workspace_bytes){.weights =
                                                  KEEL_BYTES(each, shape->channels, shape->out_channels),
                                              .tiles = back ? out : in,
                                              .products = back ? in : out};
}

static enum keel_status append_weights(struct keel_kernels *kernels, const struct keel_conv_shape *s,
                                       bool back, struct keel_buffer *weight, struct keel_buffer *u,
                                       struct keel_launch_list *list)
{
    const struct keel_range range = keel_kernels_range(kernels, back ? s->out_channels : s->channels);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_winograd, "keel_winograd_weights", &range,
                               KEEL_ARGS(keel_arg_buffer(weight), keel_arg_buffer(u),
                                         keel_arg_u32(s->channels), keel_arg_u32(s->out_channels),
                                         keel_arg_u32(back)));
}

/* 36 products: what tiles see by the weights of each position. */
static enum keel_status append_products(struct keel_kernels *kernels, const struct keel_conv_shape *s,
                                        bool back, uint32_t tiles,
                                        const struct keel_conv_workspace *workspace,
                                        struct keel_launch_list *list)
{
    const uint32_t in = back ? s->out_channels : s->channels, out = back ? s->channels : s->out_channels;
    return keel_op_conv2d(kernels,
                          &(struct keel_conv2d){.shape = {.batch = 1,
                                                          .height = 1,
                                                          .width = tiles,
                                                          .channels = in * WINOGRAD_POSITIONS,
                                                          .out_channels = out * WINOGRAD_POSITIONS,
                                                          .kernel = {1, 1},
                                                          .stride = {1, 1},
                                                          .dilation = {1, 1},
                                                          .groups = WINOGRAD_POSITIONS},
                                                .x = workspace->tiles,
                                                .weight = workspace->weights,
                                                .y = workspace->products},
                          list);
}

enum keel_status keel_winograd_append(struct keel_kernels *kernels, const struct keel_conv_shape *s,
                                      bool back, struct keel_buffer *x, struct keel_buffer *weight,
                                      struct keel_buffer *bias, struct keel_buffer *y,
                                      const struct keel_conv_workspace *workspace,
                                      struct keel_launch_list *list)
{
    const struct keel_conv_workspace_bytes bytes = keel_conv_workspace_bytes(kernels, s, back);
    const struct grid grid = grid_of(s, back);
    const uint32_t out[2] = {keel_conv_out(s, 0), keel_conv_out(s, 1)}, in[2] = {s->height, s->width};
    const uint32_t *from = back ? out : in, *to = back ? in : out;
    KEEL_TRY(keel_check_buffer("conv2d", "workspace.weights", workspace->weights, bytes.weights));
    KEEL_TRY(keel_check_buffer("conv2d", "workspace.tiles", workspace->tiles, bytes.tiles));
    KEEL_TRY(keel_check_buffer("conv2d", "workspace.products", workspace->products, bytes.products));
    KEEL_TRY(append_weights(kernels, s, back, weight, workspace->weights, list));
    for (uint32_t first = 0; first < grid.tiles; first += grid.chunk) {
        const uint32_t count = grid.tiles - first < grid.chunk ? grid.tiles - first : grid.chunk;
        const struct keel_range range = keel_kernels_range(kernels, divide_up(count, WINOGRAD_TILES_TO_ITEM));
        KEEL_TRY(keel_kernels_launch(kernels, list, KEEL_MODULE_winograd, "keel_winograd_input", &range,
                                     KEEL_ARGS(keel_arg_buffer(x), keel_arg_buffer(workspace->tiles),
                                               keel_arg_u32(first), keel_arg_u32(count),
                                               keel_arg_u32(from[0]), keel_arg_u32(from[1]),
                                               keel_arg_u32(back ? s->out_channels : s->channels),
                                               keel_arg_u32(back ? 2 - s->pad[0] : s->pad[0]),
                                               keel_arg_u32(back ? 2 - s->pad[1] : s->pad[1]),
                                               keel_arg_u32(grid.down), keel_arg_u32(grid.across))));
        KEEL_TRY(append_products(kernels, s, back, count, workspace, list));
        KEEL_TRY(keel_kernels_launch(
            kernels, list, KEEL_MODULE_winograd, "keel_winograd_output", &range,
            KEEL_ARGS(keel_arg_buffer(workspace->products), keel_arg_either(bias, x), keel_arg_buffer(y),
                      keel_arg_u32(first), keel_arg_u32(count), keel_arg_u32(to[0]), keel_arg_u32(to[1]),
                      keel_arg_u32(back ? s->channels : s->out_channels), keel_arg_u32(grid.down),
                      keel_arg_u32(grid.across), keel_arg_u32(bias != NULL))));
    }
    return KEEL_OK;
}
