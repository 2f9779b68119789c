/* conv.c - convolution and its gradients: checks, and which kernel does it. The kernels are in conv.cl; those
 * of one tap, no padding and stride 1 are products of matrices, and go to keel_op_gemm; native ones of 3 x 3
 * may go to winograd.c. */
#include "kernels_internal.h"
#include "winograd_internal.h"

#include <keel/image_ops.h>

enum { PIXELS_MAX = INT32_MAX };

static uint64_t padded(const struct keel_conv_shape *s, int axis)
{
    return (axis == 0 ? s->height : s->width) + 2 * (uint64_t)s->pad[axis];
}
static uint64_t reach(const struct keel_conv_shape *s, int axis)
{
    return (uint64_t)s->dilation[axis] * (s->kernel[axis] - 1) + 1;
}

uint32_t keel_conv_out(const struct keel_conv_shape *shape, int axis)
{
    return (uint32_t)((padded(shape, axis) - reach(shape, axis)) / shape->stride[axis]) + 1;
}

const char *keel_conv_fault(const struct keel_conv_shape *s)
{
    if (s->batch == 0 || s->height == 0 || s->width == 0 || s->channels == 0 || s->out_channels == 0 ||
        s->kernel[0] == 0 || s->kernel[1] == 0)
        return "nothing to compute";
    if (s->stride[0] == 0 || s->stride[1] == 0 || s->dilation[0] == 0 || s->dilation[1] == 0)
        return "strides and dilations are 1 or more";
    if (s->groups == 0 || s->channels % s->groups != 0 || s->out_channels % s->groups != 0)
        return "the groups do not divide the channels";
    if (s->stride[0] > PIXELS_MAX || s->stride[1] > PIXELS_MAX)
        return "a stride of more than 2^31";
    if (padded(s, 0) > PIXELS_MAX || padded(s, 1) > PIXELS_MAX ||
        padded(s, 0) * padded(s, 1) > PIXELS_MAX / s->batch)
        return "more than 2^31 pixels";
    if ((uint64_t)s->kernel[0] * s->kernel[1] > PIXELS_MAX / s->channels)
        return "more than 2^31 weights to an output";
    if (reach(s, 0) > padded(s, 0) || reach(s, 1) > padded(s, 1))
        return "the kernel is larger than the padded image";
    return NULL;
}

static enum keel_status refuse(const char *op, const struct keel_conv_shape *s, const char *why)
{
    return keel_fail(
        KEEL_INVALID,
        "%s: [%u, %u, %u, %u] by [%u, %u, %u / %u, %u], stride %u x %u, padding %u x %u, dilation "
        "%u x %u: %s",
        op, s->batch, s->height, s->width, s->channels, s->kernel[0], s->kernel[1], s->channels, s->groups,
        s->out_channels, s->stride[0], s->stride[1], s->pad[0], s->pad[1], s->dilation[0], s->dilation[1],
        why);
}

static enum keel_status check(const char *op, const struct keel_conv_shape *s)
{
    const char *fault = keel_conv_fault(s);
    return fault == NULL ? KEEL_OK : refuse(op, s, fault);
}

static uint64_t in_bytes(const struct keel_conv_shape *s)
{
    return KEEL_BYTES(s->batch, s->height, s->width, s->channels, sizeof(float));
}
static uint32_t out_pixels(const struct keel_conv_shape *s)
{
    return s->batch * keel_conv_out(s, 0) * keel_conv_out(s, 1);
}
static uint64_t out_bytes(const struct keel_conv_shape *s)
{
    return KEEL_BYTES(out_pixels(s), s->out_channels, sizeof(float));
}
static uint32_t weight_rows(const struct keel_conv_shape *s)
{
    return s->kernel[0] * s->kernel[1] * (s->channels / s->groups);
}
static uint64_t weight_bytes(const struct keel_conv_shape *s)
{
    return KEEL_BYTES(weight_rows(s), s->out_channels, sizeof(float));
}

bool keel_conv_is_product(const struct keel_conv_shape *s)
{
    return s->kernel[0] == 1 && s->kernel[1] == 1 && s->stride[0] == 1 && s->stride[1] == 1 &&
           s->pad[0] == 0 && s->pad[1] == 0 && s->groups == 1;
}

static enum keel_status append_product(struct keel_kernels *kernels, struct keel_gemm gemm,
                                       struct keel_launch_list *list)
{
    gemm.batch = 1;
    gemm.lda = gemm.transpose_a ? gemm.m : gemm.k;
    gemm.ldb = gemm.transpose_b ? gemm.k : gemm.n;
    gemm.ldc = gemm.n;
    return keel_op_gemm(kernels, &gemm, list);
}

enum { CONV_ARGS = 21 };
/* The arguments of all kernels: a, b and `bias` are read, c is written. */
static void fill_args(struct keel_arg args[CONV_ARGS + 1], const struct keel_conv_shape *s,
                      struct keel_buffer *a, struct keel_buffer *b, struct keel_buffer *bias,
                      struct keel_buffer *c)
{
    const uint32_t geometry[] = {
        s->batch,           s->height,      s->width,       s->channels,  s->out_channels,
        s->kernel[0],       s->kernel[1],   s->stride[0],   s->stride[1], s->pad[0],
        s->pad[1],          s->dilation[0], s->dilation[1], s->groups,    keel_conv_out(s, 0),
        keel_conv_out(s, 1)};
    args[0] = keel_arg_buffer(a);
    args[1] = keel_arg_buffer(b);
    args[2] = keel_arg_either(bias, a);
    args[3] = keel_arg_buffer(c);
    for (int i = 0; i < 16; i++)
        args[4 + i] = keel_arg_u32(geometry[i]);
    args[20] = keel_arg_u32(bias != NULL);
}

/* `rows` by lanes of `columns`. */
static enum keel_status launch_plain(struct keel_kernels *kernels, struct keel_launch_list *list,
                                     const char *name, uint32_t rows, uint32_t columns,
                                     const struct keel_arg *args)
{
    struct keel_range range = keel_kernels_range(kernels, rows);
    range.global[1] = divide_up(columns, KEEL_LANES);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_conv, name, &range, args, CONV_ARGS);
}

/* As in conv_tiles.cl: sums of a group, and what is multiplied at once. PANEL_COST: copying the panel of a
 * depth takes as long as multiplying it by so many rows. */
enum { TILE_ROWS = 6, TILE_COLUMNS = 64, NARROW = 8, PANEL_COST = 6 };
struct tiles {
    const char *name;
    uint32_t columns; /* of a group of channels */
    uint32_t rows, layers;
    uint32_t rows_max[KEEL_LOCAL_SIZES]; /* of a group of work, by the size of local memory */
};

/* How long the compute unit with the most groups of `block` rows works, in rows: a driver that gives out
 * groups ahead of time (PoCL) gives each unit its share of equal ones, and what is over to some. */
static uint64_t longest(const struct keel_kernels *kernels, const struct tiles *tiles, uint32_t strips,
                        uint32_t block)
{
    const uint64_t groups = (uint64_t)divide_up(tiles->rows, block) * strips * tiles->layers;
    const uint32_t units = keel_kernels_info(kernels)->compute_units;
    return (groups + units - 1) / units * (block + PANEL_COST);
}

/* Rows to a group of work: blocks of equal length, such that all compute units end together. */
static uint32_t choose_row_block(const struct keel_kernels *kernels, const struct tiles *tiles,
                                 uint32_t strips)
{
    const uint32_t rows_max = tiles->rows_max[keel_device_local_size(keel_kernels_info(kernels))];
    uint32_t best = rows_max;
    uint64_t best_rows = UINT64_MAX;
    for (uint32_t block = rows_max; block >= TILE_ROWS; block -= TILE_ROWS) {
        const uint64_t rows = longest(kernels, tiles, strips, block);
        if (rows < best_rows) {
            best = block;
            best_rows = rows;
        }
    }
    return best;
}

static enum keel_status launch_tiles(struct keel_kernels *kernels, struct keel_launch_list *list,
                                     const struct keel_conv_shape *s, const struct tiles *tiles,
                                     struct keel_arg args[CONV_ARGS + 1])
{
    const uint32_t strips = divide_up(tiles->columns, TILE_COLUMNS) * s->groups;
    const uint32_t row_block = choose_row_block(kernels, tiles, strips);
    args[CONV_ARGS] = keel_arg_u32(row_block);
    /* Layers, which differ in work, next to each other. */
    const struct keel_range range = {.global = {tiles->layers, strips, divide_up(tiles->rows, row_block)},
                                     .local = {1, 1, 1}};
    return keel_kernels_launch(kernels, list, KEEL_MODULE_conv_tiles, tiles->name, &range, args,
                               CONV_ARGS + 1);
}

/* Tiles would be empty for the most part where groups have few channels: those go by lanes. */
static bool is_narrow(const struct keel_conv_shape *s)
{
    return s->groups > 1 && (s->channels / s->groups < NARROW || s->out_channels / s->groups < NARROW);
}

enum keel_status keel_op_conv2d(struct keel_kernels *kernels, const struct keel_conv2d *op,
                                struct keel_launch_list *list)
{
    const struct keel_conv_shape *s = &op->shape;
    KEEL_TRY(check("conv2d", s));
    KEEL_TRY(KEEL_CHECK_OPERANDS(
        "conv2d", {"x", op->x, in_bytes(s), KEEL_READ}, {"weight", op->weight, weight_bytes(s), KEEL_READ},
        {"bias", op->bias, KEEL_BYTES(s->out_channels, sizeof(float)), KEEL_OPTIONAL},
        {"y", op->y, out_bytes(s), KEEL_WRITTEN}));
    if (keel_conv_is_product(s))
        return append_product(kernels,
                              (struct keel_gemm){.m = out_pixels(s),
                                                 .n = s->out_channels,
                                                 .k = s->channels,
                                                 .a = op->x,
                                                 .b = op->weight,
                                                 .c = op->y,
                                                 .bias = op->bias},
                              list);
    if (keel_conv_workspace_bytes(kernels, s, false).weights > 0)
        return keel_winograd_append(kernels, s, false, op->x, op->weight, op->bias, op->y, &op->workspace,
                                    list);
    struct keel_arg args[CONV_ARGS + 1];
    fill_args(args, s, op->x, op->weight, op->bias, op->y);
    if (is_narrow(s))
        return launch_plain(kernels, list, "keel_conv2d_plain", s->batch * keel_conv_out(s, 0),
                            s->out_channels, args);
    const struct tiles tiles = {
        "keel_conv2d_tiles", s->out_channels / s->groups, out_pixels(s), 1, {24, 48, 384}};
    return launch_tiles(kernels, list, s, &tiles, args);
}

enum keel_status keel_op_conv2d_grad_data(struct keel_kernels *kernels,
                                          const struct keel_conv2d_grad_data *op,
                                          struct keel_launch_list *list)
{
    const struct keel_conv_shape *s = &op->shape;
    KEEL_TRY(check("conv2d_grad_data", s));
    KEEL_TRY(KEEL_CHECK_OPERANDS("conv2d_grad_data", {"dy", op->dy, out_bytes(s), KEEL_READ},
                                 {"weight", op->weight, weight_bytes(s), KEEL_READ},
                                 {"dx", op->dx, in_bytes(s), KEEL_WRITTEN}));
    if (keel_conv_is_product(s))
        return append_product(kernels,
                              (struct keel_gemm){.m = out_pixels(s),
                                                 .n = s->channels,
                                                 .k = s->out_channels,
                                                 .transpose_b = true,
                                                 .a = op->dy,
                                                 .b = op->weight,
                                                 .c = op->dx},
                              list);
    if (keel_conv_workspace_bytes(kernels, s, true).weights > 0)
        return keel_winograd_append(kernels, s, true, op->dy, op->weight, NULL, op->dx, &op->workspace, list);
    struct keel_arg args[CONV_ARGS + 1];
    fill_args(args, s, op->dy, op->weight, NULL, op->dx);
    if (is_narrow(s))
        return launch_plain(kernels, list, "keel_conv2d_grad_data_plain", s->batch * s->height, s->channels,
                            args);
    const uint32_t pixels = s->batch * divide_up(s->height, s->stride[0]) * divide_up(s->width, s->stride[1]);
    const uint32_t down = s->stride[0] < s->height ? s->stride[0] : s->height;
    const uint32_t across = s->stride[1] < s->width ? s->stride[1] : s->width;
    const struct tiles tiles = {
        "keel_conv2d_grad_data_tiles", s->channels / s->groups, pixels, down * across, {24, 48, 384}};
    return launch_tiles(kernels, list, s, &tiles, args);
}

enum keel_status keel_op_conv2d_grad_weight(struct keel_kernels *kernels,
                                            const struct keel_conv2d_grad_weight *op,
                                            struct keel_launch_list *list)
{
    const struct keel_conv_shape *s = &op->shape;
    KEEL_TRY(check("conv2d_grad_weight", s));
    KEEL_TRY(KEEL_CHECK_OPERANDS("conv2d_grad_weight", {"x", op->x, in_bytes(s), KEEL_READ},
                                 {"dy", op->dy, out_bytes(s), KEEL_READ},
                                 {"dweight", op->dweight, weight_bytes(s), KEEL_WRITTEN}));
    if (keel_conv_is_product(s))
        return append_product(kernels,
                              (struct keel_gemm){.m = s->channels,
                                                 .n = s->out_channels,
                                                 .k = out_pixels(s),
                                                 .transpose_a = true,
                                                 .accumulate = true,
                                                 .a = op->x,
                                                 .b = op->dy,
                                                 .c = op->dweight},
                              list);
    struct keel_arg args[CONV_ARGS + 1];
    fill_args(args, s, op->x, op->dy, NULL, op->dweight);
    if (is_narrow(s))
        return launch_plain(kernels, list, "keel_conv2d_grad_weight_plain", weight_rows(s), s->out_channels,
                            args);
    const struct tiles tiles = {
        "keel_conv2d_grad_weight_tiles", s->out_channels / s->groups, weight_rows(s), 1, {24, 48, 192}};
    return launch_tiles(kernels, list, s, &tiles, args);
}

enum keel_status keel_op_conv2d_unfold(struct keel_kernels *kernels, const struct keel_conv2d_unfold *op,
                                       struct keel_launch_list *list)
{
    const struct keel_conv_shape *s = &op->shape;
    KEEL_TRY(check("conv2d_unfold", s));
    const uint32_t pixels = op->back ? s->batch * s->height * s->width : out_pixels(s);
    const uint32_t taps = s->kernel[0] * s->kernel[1], line = op->back ? s->out_channels : s->channels;
    const uint64_t count = KEEL_BYTES(op->rows, taps, line);
    if (op->rows == 0 || op->first >= pixels || op->rows > pixels - op->first)
        return keel_fail(KEEL_INVALID, "conv2d_unfold: %u rows from %u on of %u", op->rows, op->first,
                         pixels);
    KEEL_TRY(KEEL_CHECK_OPERANDS("conv2d_unfold",
                                 {"x", op->x, op->back ? out_bytes(s) : in_bytes(s), KEEL_READ},
                                 {"to", op->to, KEEL_BYTES(count, sizeof(float)), KEEL_WRITTEN}));
    struct keel_arg args[CONV_ARGS + 4];
    fill_args(args, s, op->x, op->x, NULL, op->to);
    args[CONV_ARGS - 1] = keel_arg_u32(op->back);
    args[CONV_ARGS] = keel_arg_u32(op->first);
    args[CONV_ARGS + 1] = keel_arg_u32(op->rows);
    args[CONV_ARGS + 2] = keel_arg_u64(count);
    args[CONV_ARGS + 3] = keel_arg_u32(keel_kernels_item_elements(kernels));
    return keel_kernels_launch_flat(kernels, list, KEEL_MODULE_conv, "keel_conv2d_unfold", count, args,
                                    KEEL_ARG_COUNT(args));
}

bool keel_conv2d_unfolds(const struct keel_kernels *kernels, const struct keel_conv_shape *shape)
{
    const struct keel_gemm one = {.m = 1, .n = 1, .k = 1, .batch = 1};
    return keel_gemm_planes_bytes(kernels, &one) > 0 && !is_narrow(shape);
}
