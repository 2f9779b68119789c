/* roofline_image.h - rows of roofline_bench.c for images: convolution, batch norm, pools.
 *
 * A part of that program, on its pool of buffers. rows: images, n: pixels down and across, k: channels, as
 * they are in ResNet (conv_bench has all of its layers). Batch norm is counted with the second reading of x,
 * and of dy: no result can be written before the last pixel was seen. Of 4 images of 56 x 56 a cache serves
 * it; `once` is without it. */
#ifndef KEEL_BENCH_ROOFLINE_IMAGE_H
#define KEEL_BENCH_ROOFLINE_IMAGE_H

#include <keel/image_ops.h>

/* `bytes` and `ops` of an element of the image. */
static struct work image_work(enum stream stream, const struct row *row, double bytes, double ops)
{
    struct work work = moves(stream, row, bytes, ops);
    work.bytes *= (double)row->n * (double)row->k;
    work.ops *= (double)row->n * (double)row->k;
    return work;
}

static struct keel_conv_shape conv_shape(const struct row *row)
{
    return (struct keel_conv_shape){.batch = (uint32_t)row->rows,
                                    .height = (uint32_t)row->n,
                                    .width = (uint32_t)row->n,
                                    .channels = (uint32_t)row->k,
                                    .out_channels = (uint32_t)row->k,
                                    .kernel = {3, 3},
                                    .stride = {1, 1},
                                    .pad = {1, 1},
                                    .dilation = {1, 1},
                                    .groups = 1};
}
static enum keel_status build_conv(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    const struct keel_conv2d op = {.shape = conv_shape(row), .x = pool[1], .weight = pool[2], .y = pool[0]};
    *work = image_work(STREAM_COPY, row, 8, 9 * (double)row->k);
    return keel_op_conv2d(kernels, &op, list);
}
static enum keel_status build_conv_data(const struct row *row, struct keel_launch_list *list,
                                        struct work *work)
{
    const struct keel_conv2d_grad_data op = {
        .shape = conv_shape(row), .dy = pool[1], .weight = pool[2], .dx = pool[0]};
    *work = image_work(STREAM_COPY, row, 8, 9 * (double)row->k);
    return keel_op_conv2d_grad_data(kernels, &op, list);
}
static enum keel_status build_conv_weight(const struct row *row, struct keel_launch_list *list,
                                          struct work *work)
{
    const struct keel_conv2d_grad_weight op = {
        .shape = conv_shape(row), .x = pool[1], .dy = pool[2], .dweight = pool[0]};
    *work = image_work(STREAM_READ, row, 8, 9 * (double)row->k);
    return keel_op_conv2d_grad_weight(kernels, &op, list);
}

static enum keel_status build_batch_norm(const struct row *row, struct keel_launch_list *list,
                                         struct work *work)
{
    const struct keel_batch_norm op = {.rows = (uint32_t)(row->rows * row->n * row->n),
                                       .n = (uint32_t)row->k,
                                       .epsilon = 1e-5f,
                                       .x = pool[1],
                                       .gamma = small[0],
                                       .beta = small[1],
                                       .y = pool[0],
                                       .mean = small[2],
                                       .rstd = small[3],
                                       .scratch = pool[4]};
    *work = image_work(STREAM_COPY, row, 12, 6);
    work->once_bytes = 8.0 / 12 * work->bytes;
    return keel_op_batch_norm(kernels, &op, list);
}
static enum keel_status build_batch_norm_grad(const struct row *row, struct keel_launch_list *list,
                                              struct work *work)
{
    const struct keel_batch_norm_grad op = {.rows = (uint32_t)(row->rows * row->n * row->n),
                                            .n = (uint32_t)row->k,
                                            .x = pool[1],
                                            .gamma = small[0],
                                            .mean = small[2],
                                            .rstd = small[3],
                                            .dy = pool[0],
                                            .dx = pool[0],
                                            .dgamma = pool[2],
                                            .dbeta = pool[3],
                                            .scratch = pool[4]};
    *work = image_work(STREAM_COPY, row, 20, 12);
    work->once_bytes = 12.0 / 20 * work->bytes;
    return keel_op_batch_norm_grad(kernels, &op, list);
}

/* 3 x 3 with stride 2, as ResNet's; averages are of 2 x 2. */
static struct keel_pool_shape pool_shape(const struct row *row, uint32_t kernel)
{
    return (struct keel_pool_shape){.batch = (uint32_t)row->rows,
                                    .height = (uint32_t)row->n,
                                    .width = (uint32_t)row->n,
                                    .channels = (uint32_t)row->k,
                                    .kernel = {kernel, kernel},
                                    .stride = {2, 2},
                                    .pad = {kernel / 3, kernel / 3}};
}
static enum keel_status build_max_pool(const struct row *row, struct keel_launch_list *list,
                                       struct work *work)
{
    const struct keel_max_pool op = {
        .shape = pool_shape(row, 3), .x = pool[1], .y = pool[0], .taps = integers[0]};
    *work = image_work(STREAM_COPY, row, 4 + 8.0 / 4, 3 * 9.0 / 4);
    return keel_op_max_pool(kernels, &op, list);
}
/* Of the taps that the pool itself found. */
static enum keel_status build_max_pool_grad(const struct row *row, struct keel_launch_list *list,
                                            struct work *work)
{
    const struct keel_max_pool_grad op = {
        .shape = pool_shape(row, 3), .dy = pool[1], .taps = integers[0], .dx = pool[0]};
    struct keel_launch_list before = {0};
    enum keel_status status = build_max_pool(row, &before, work);
    if (status == KEEL_OK)
        status = keel_launch_list_run(&before, queue);
    if (status == KEEL_OK)
        status = keel_queue_finish(queue, keel_deadline_after_ns(60 * KEEL_NS_PER_S));
    keel_launch_list_fini(&before);
    KEEL_TRY(status);
    *work = image_work(STREAM_COPY, row, 4 + 8.0 / 4, 2 * 9.0 / 4);
    return keel_op_max_pool_grad(kernels, &op, list);
}
static enum keel_status build_avg_pool(const struct row *row, struct keel_launch_list *list,
                                       struct work *work)
{
    const struct keel_avg_pool op = {.shape = pool_shape(row, 2), .x = pool[1], .y = pool[0]};
    *work = image_work(STREAM_COPY, row, 4 + 4.0 / 4, 5.0 / 4);
    return keel_op_avg_pool(kernels, &op, list);
}
static enum keel_status build_avg_pool_grad(const struct row *row, struct keel_launch_list *list,
                                            struct work *work)
{
    const struct keel_avg_pool_grad op = {.shape = pool_shape(row, 2), .dy = pool[1], .dx = pool[0]};
    *work = image_work(STREAM_COPY, row, 4 + 4.0 / 4, 2);
    return keel_op_avg_pool_grad(kernels, &op, list);
}
static enum keel_status build_global_pool(const struct row *row, struct keel_launch_list *list,
                                          struct work *work)
{
    const struct keel_global_avg_pool op = {.batch = (uint32_t)row->rows,
                                            .pixels = (uint32_t)(row->n * row->n),
                                            .channels = (uint32_t)row->k,
                                            .x = pool[1],
                                            .y = pool[0]};
    *work = image_work(STREAM_READ, row, 4, 1);
    return keel_op_global_avg_pool(kernels, &op, list);
}

#define ROOFLINE_IMAGE                                                                                       \
    {"conv 3x3", build_conv, 4, 56, 64}, {"conv 3x3", build_conv, 4, 14, 256},                               \
        {"conv 3x3 to data", build_conv_data, 4, 56, 64}, {"conv 3x3 to data", build_conv_data, 4, 14, 256}, \
        {"conv 3x3 to weights", build_conv_weight, 4, 56, 64},                                               \
        {"conv 3x3 to weights", build_conv_weight, 4, 14, 256}, {"batch_norm", build_batch_norm, 4, 56, 64}, \
        {"batch_norm", build_batch_norm, 16, 112, 64},                                                       \
        {"batch_norm_grad", build_batch_norm_grad, 4, 56, 64},                                               \
        {"batch_norm_grad", build_batch_norm_grad, 16, 112, 64}, {"max_pool", build_max_pool, 16, 112, 64},  \
        {"max_pool_grad", build_max_pool_grad, 16, 112, 64}, {"avg_pool", build_avg_pool, 16, 112, 64},      \
        {"avg_pool_grad", build_avg_pool_grad, 16, 112, 64},                                                 \
    {                                                                                                        \
        "global_pool", build_global_pool, 16, 112, 64                                                        \
    }

#endif
