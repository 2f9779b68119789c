/* roofline_product.h - rows of roofline_bench.c for matrix products and attention.
 *
 * A part of that program, on its pool of buffers. */
#ifndef KEEL_BENCH_ROOFLINE_PRODUCT_H
#define KEEL_BENCH_ROOFLINE_PRODUCT_H

#include <keel/attention_ops.h>

enum { HEADS = 12, HEAD_WIDTH = 64 };

static enum keel_status build_gemm(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    const double m = (double)row->rows, n = (double)row->n, k = (double)row->k;
    struct keel_gemm op = {.m = (uint32_t)row->rows, .n = (uint32_t)row->n, .k = (uint32_t)row->k};
    op.batch = 1, op.lda = op.k, op.ldb = op.ldc = op.n;
    op.a = pool[1], op.b = pool[2], op.c = pool[0];
    *work = (struct work){.stream = STREAM_COPY, .bytes = 4 * (m * k + k * n + m * n), .ops = m * n * k};
    return keel_op_gemm(kernels, &op, list);
}

/* Of few rows: the second operand is what is read, from memory. */
static enum keel_status append_few(const struct row *row, bool turned, struct keel_launch_list *list,
                                   struct work *work)
{
    const double m = (double)row->rows, n = (double)row->n, k = (double)row->k;
    struct keel_gemm op = {.m = (uint32_t)row->rows,
                           .n = (uint32_t)row->n,
                           .k = (uint32_t)row->k,
                           .batch = 1,
                           .transpose_b = turned};
    op.lda = op.k, op.ldb = turned ? op.k : op.n, op.ldc = op.n;
    op.a = pool[1], op.b = pool[2], op.c = pool[0];
    *work = (struct work){.stream = STREAM_READ, .bytes = 4 * (m * k + k * n + m * n), .ops = m * n * k};
    return keel_op_gemm(kernels, &op, list);
}
static enum keel_status build_few(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    return append_few(row, false, list, work);
}
static enum keel_status build_few_turned(const struct row *row, struct keel_launch_list *list,
                                         struct work *work)
{
    return append_few(row, true, list, work);
}

/* The same by weights in few bits, of which a scale for each 32 inputs, or for all. */
static enum keel_status append_quantised(const struct row *row, uint32_t bits, uint32_t group,
                                         struct keel_launch_list *list, struct work *work)
{
    const double m = (double)row->rows, n = (double)row->n, k = (double)row->k;
    const struct keel_gemm_quantised op = {.m = (uint32_t)row->rows,
                                           .n = (uint32_t)row->n,
                                           .k = (uint32_t)row->k,
                                           .bits = bits,
                                           .group = group,
                                           .a = pool[1],
                                           .weights = pool[2],
                                           .c = pool[0],
                                           .workspace = pool[3]};
    uint64_t words;
    KEEL_TRY(keel_quantised_words(&op, &words));
    *work =
        (struct work){.stream = STREAM_READ, .bytes = 4 * (m * k + (double)words + m * n), .ops = m * n * k};
    return keel_op_gemm_quantised(kernels, &op, list);
}
static enum keel_status build_int4(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    return append_quantised(row, 4, 32, list, work);
}
static enum keel_status build_int8(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    return append_quantised(row, 8, 0, list, work);
}

/* rows: tokens of each of four texts. Of the products only what the causal mask leaves, and no exponential;
 * each operand once, of which there are so many of the width of all heads. */
static struct work attention_work(const struct row *row, int operands, int products)
{
    const double tokens = (double)row->rows, pairs = 4.0 * HEADS * tokens * (tokens + 1) / 2;
    return (struct work){.stream = STREAM_COPY,
                         .bytes = 4 * tokens * HEADS * HEAD_WIDTH * 4 * operands,
                         .ops = pairs * products * HEAD_WIDTH};
}

static enum keel_status build_attention(const struct row *row, struct keel_launch_list *list,
                                        struct work *work)
{
    struct keel_attention op = {
        .batch = 4, .tokens = (uint32_t)row->rows, .heads = HEADS, .head_width = HEAD_WIDTH};
    op.qkv = pool[1], op.out = pool[0], op.stats = pool[2];
    op.workspace = pool[3];
    *work = attention_work(row, 4, 2);
    return keel_op_attention(kernels, &op, list);
}
static enum keel_status build_attention_grad(const struct row *row, struct keel_launch_list *list,
                                             struct work *work)
{
    struct keel_attention_grad op = {.forward = {.batch = 4, .tokens = (uint32_t)row->rows, .heads = HEADS}};
    op.forward.head_width = HEAD_WIDTH;
    op.forward.qkv = pool[1], op.forward.out = pool[0], op.forward.stats = pool[2];
    op.forward.workspace = pool[3], op.dout = pool[0], op.dqkv = pool[4];
    *work = attention_work(row, 8, 5);
    return keel_op_attention_grad(kernels, &op, list);
}

#define ROOFLINE_PRODUCT                                                                                     \
    BOTH("gemm", build_gemm, HIDDEN, WIDTH), {"gemm few", build_few, 1, 4 * HIDDEN, HIDDEN},                 \
        {"gemm few", build_few, 4, 4 * HIDDEN, HIDDEN}, {"gemm few", build_few, 8, 4 * HIDDEN, HIDDEN},      \
        {"gemm int4", build_int4, 1, 4 * HIDDEN, HIDDEN}, {"gemm int4", build_int4, 4, 4 * HIDDEN, HIDDEN},  \
        {"gemm int4", build_int4, 256, HIDDEN, WIDTH}, {"gemm int8", build_int8, 1, 4 * HIDDEN, HIDDEN},     \
        {"gemm int8", build_int8, 4, 4 * HIDDEN, HIDDEN},                                                    \
        {"gemm few, turned", build_few_turned, 1, VOCAB, WIDTH},                                             \
        {"gemm few, turned", build_few_turned, 4, VOCAB, WIDTH},                                             \
        {"gemm few, turned", build_few_turned, 8, VOCAB, WIDTH},                                             \
        {"attention 4 x", build_attention, 64, 0, 0}, {"attention 4 x", build_attention, 1024, 0, 0},        \
        {"attention_grad 4 x", build_attention_grad, 64, 0, 0},                                              \
    {                                                                                                        \
        "attention_grad 4 x", build_attention_grad, 1024, 0, 0                                               \
    }

#endif
