/* attention.c - causal self-attention and its gradient: checks, and descriptors to launches. The
 * arithmetic is in attention.cl. */
#include "kernels_internal.h"

#include <keel/attention_ops.h>

enum {
    LANES = 16,           /* queries, or keys, of a group */
    WIDTH_MAX_SMALL = 64, /* WIDTH_MAX of attention.cl where local memory is small, */
    WIDTH_MAX_LARGE = 256 /* and where it is not */
};

static enum keel_status check_shape(const struct keel_kernels *kernels, const struct keel_attention *op)
{
    if (op->batch == 0 || op->tokens == 0 || op->heads == 0 || op->head_width == 0)
        return keel_fail(KEEL_INVALID, "attention: batch %u, %u tokens, %u heads of %u: nothing to compute",
                         op->batch, op->tokens, op->heads, op->head_width);
    uint32_t width_max =
        keel_device_large_local(keel_kernels_info(kernels)) ? WIDTH_MAX_LARGE : WIDTH_MAX_SMALL;
    if (op->head_width > width_max)
        return keel_fail(KEEL_LIMIT, "attention: heads of %u, at most %u on this device: use more heads",
                         op->head_width, width_max);
    if (!(op->dropout_rate >= 0.0F && op->dropout_rate < 1.0F))
        return keel_fail(KEEL_INVALID, "attention: dropout rate %g is not in [0, 1)",
                         (double)op->dropout_rate);
    uint64_t rows = (uint64_t)op->batch * op->heads * op->tokens;
    if (op->dropout_rate > 0.0F && rows > KEEL_RANDOM_ELEMENTS_MAX / op->tokens)
        return keel_fail(KEEL_LIMIT, "attention: %llu rows of %u: over 2^34 probabilities to draw",
                         (unsigned long long)rows, op->tokens);
    return KEEL_OK;
}

static uint64_t tokens_bytes(const struct keel_attention *op)
{
    return (uint64_t)op->batch * op->tokens * op->heads * op->head_width * sizeof(float);
}

/* Two floats for each row of probabilities. */
static uint64_t rows_bytes(const struct keel_attention *op)
{
    return (uint64_t)op->batch * op->heads * op->tokens * 2 * sizeof(float);
}

static enum keel_status check_forward(const struct keel_kernels *kernels, const struct keel_attention *op)
{
    KEEL_TRY(check_shape(kernels, op));
    KEEL_TRY(keel_check_buffer("attention", "qkv", op->qkv, 3 * tokens_bytes(op)));
    KEEL_TRY(keel_check_buffer("attention", "out", op->out, tokens_bytes(op)));
    KEEL_TRY(keel_check_buffer("attention", "stats", op->stats, rows_bytes(op)));
    if (op->dropout_rate > 0.0F)
        KEEL_TRY(keel_check_buffer("attention", "control", op->control, sizeof(struct keel_control)));
    return KEEL_OK;
}

static struct keel_range block_range(const struct keel_attention *op)
{
    uint32_t blocks = op->tokens / LANES + (op->tokens % LANES != 0);
    return (struct keel_range){.global = {blocks, op->heads, op->batch}, .local = {1, 1, 1}};
}

/* The scalars that all three kernels end with. */
enum { SCALAR_COUNT = 7 };
static void set_scalars(const struct keel_attention *op, struct keel_arg args[SCALAR_COUNT])
{
    args[0] = keel_arg_u32(op->tokens);
    args[1] = keel_arg_u32(op->heads);
    args[2] = keel_arg_u32(op->head_width);
    args[3] = keel_arg_f32(keel_canon_divide(1.0F, keel_canon_sqrt((float)op->head_width)));
    args[4] = keel_arg_f32(op->dropout_rate);
    args[5] = keel_arg_f32(keel_canon_divide(1.0F, 1.0F - op->dropout_rate));
    args[6] = keel_arg_u32(op->stream);
}

/* Not read where there is no dropout. */
static struct keel_arg control_arg(const struct keel_attention *op)
{
    return keel_arg_buffer(op->dropout_rate > 0.0F ? op->control : op->stats);
}

uint64_t keel_attention_workspace_bytes(const struct keel_kernels *kernels, const struct keel_attention *op)
{
    (void)kernels;
    (void)op;
    return 0; /* scores live in local memory, a block at a time */
}

enum keel_status keel_op_attention(struct keel_kernels *kernels, const struct keel_attention *op,
                                   struct keel_launch_list *list)
{
    KEEL_TRY(check_forward(kernels, op));
    struct keel_arg args[4 + SCALAR_COUNT] = {
        keel_arg_buffer(op->qkv),
        keel_arg_buffer(op->out),
        keel_arg_buffer(op->stats),
        control_arg(op),
    };
    set_scalars(op, args + 4);
    struct keel_range range = block_range(op);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_attention, "keel_attention", &range, args,
                               KEEL_ARG_COUNT(args));
}

uint64_t keel_attention_grad_workspace_bytes(const struct keel_kernels *kernels,
                                             const struct keel_attention_grad *op)
{
    (void)kernels;
    return rows_bytes(&op->forward); /* 1 / sum, and dout . out, of each row */
}

enum keel_status keel_op_attention_grad(struct keel_kernels *kernels, const struct keel_attention_grad *op,
                                        struct keel_launch_list *list)
{
    const struct keel_attention *forward = &op->forward;
    KEEL_TRY(check_forward(kernels, forward));
    KEEL_TRY(keel_check_buffer("attention_grad", "dout", op->dout, tokens_bytes(forward)));
    KEEL_TRY(keel_check_buffer("attention_grad", "dqkv", op->dqkv, 3 * tokens_bytes(forward)));
    KEEL_TRY(keel_check_buffer("attention_grad", "workspace", forward->workspace, rows_bytes(forward)));
    struct keel_range range = block_range(forward);
    struct keel_arg query_args[7 + SCALAR_COUNT] = {
        keel_arg_buffer(forward->qkv),       keel_arg_buffer(forward->out),
        keel_arg_buffer(forward->stats),     control_arg(forward),
        keel_arg_buffer(op->dout),           keel_arg_buffer(op->dqkv),
        keel_arg_buffer(forward->workspace),
    };
    set_scalars(forward, query_args + 7);
    KEEL_TRY(keel_kernels_launch(kernels, list, KEEL_MODULE_attention, "keel_attention_grad_query", &range,
                                 query_args, KEEL_ARG_COUNT(query_args)));
    struct keel_arg key_args[6 + SCALAR_COUNT] = {
        keel_arg_buffer(forward->qkv), keel_arg_buffer(forward->stats),     control_arg(forward),
        keel_arg_buffer(op->dout),     keel_arg_buffer(forward->workspace), keel_arg_buffer(op->dqkv),
    };
    set_scalars(forward, key_args + 6);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_attention, "keel_attention_grad_key", &range,
                               key_args, KEEL_ARG_COUNT(key_args));
}
