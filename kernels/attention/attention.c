/* attention.c - self-attention and its gradient: checks, and descriptors to launches. The
 * arithmetic is in attention.cl. */
#include "kernels_internal.h"

#include <keel/attention_ops.h>

enum {
    LANES_SMALL = 16, /* LANES and WIDTH_MAX of attention.cl, */
    LANES_LARGE = 32, /* and where local memory is large */
    WIDTH_MAX_SMALL = 128,
    WIDTH_MAX_LARGE = 256,
    PACKED_PARTS = 2,      /* keys and values, forward; */
    PACKED_PARTS_GRAD = 5, /* and queries, dout and dq, backward */
    UNPACKED_TOKENS = 64,
    WANT_QUERIES = 1, /* for keel_attention_grad */
    WANT_KEYS = 2
};

static bool large_local(const struct keel_kernels *kernels)
{
    return keel_device_local_size(keel_kernels_info(kernels)) == KEEL_LOCAL_LARGE;
}

/* Work-items to a group; many have attention_lanes.h. */
static uint32_t group_items(const struct keel_kernels *kernels)
{
    return keel_kernels_setting(kernels, KEEL_TUNABLE_ATTENTION_ITEMS);
}
static bool many_items(const struct keel_kernels *kernels)
{
    return group_items(kernels) > 1;
}

/* The probabilities of a head lie together. */
static enum keel_status find_slice(const struct keel_attention *op, struct keel_random_slice *out)
{
    const uint64_t head = KEEL_BYTES(op->tokens, op->tokens);
    *out = op->slice;
    if (out->row % head != 0)
        return keel_fail(KEEL_INVALID, "attention: a slice in rows of %llu probabilities, a head has %llu",
                         (unsigned long long)out->row, (unsigned long long)head);
    return keel_check_random("attention", KEEL_BYTES(op->batch, op->heads, head), KEEL_RANDOM_ELEMENTS_MAX,
                             out);
}

static enum keel_status check_shape(const struct keel_kernels *kernels, const struct keel_attention *op)
{
    if (op->batch == 0 || op->tokens == 0 || op->heads == 0 || op->head_width == 0)
        return keel_fail(KEEL_INVALID, "attention: batch %u, %u tokens, %u heads of %u: nothing to compute",
                         op->batch, op->tokens, op->heads, op->head_width);
    const uint32_t width_max =
        many_items(kernels) || large_local(kernels) ? WIDTH_MAX_LARGE : WIDTH_MAX_SMALL;
    if (op->head_width > width_max)
        return keel_fail(KEEL_LIMIT, "attention: heads of %u, at most %u on this device: use more heads",
                         op->head_width, width_max);
    if (!(op->dropout_rate >= 0.0F && op->dropout_rate < 1.0F))
        return keel_fail(KEEL_INVALID, "attention: dropout rate %g is not in [0, 1)",
                         (double)op->dropout_rate);
    struct keel_random_slice slice;
    return op->dropout_rate > 0.0F ? find_slice(op, &slice) : KEEL_OK;
}

static uint64_t tokens_bytes(const struct keel_attention *op)
{
    return KEEL_BYTES(op->batch, op->tokens, op->heads, op->head_width, sizeof(float));
}

/* Two floats for each row of probabilities. */
static uint64_t rows_bytes(const struct keel_attention *op)
{
    return KEEL_BYTES(op->batch, op->heads, op->tokens, 2, sizeof(float));
}

/* Whether there is room to copy the rows of a head together before they are read many times: on any device,
 * so that sizes are known without one. Many work-items read whole lines where they are. */
static bool has_room(const struct keel_attention *op)
{
    return op->heads > 1 && op->tokens > UNPACKED_TOKENS;
}
static bool packed(const struct keel_kernels *kernels, const struct keel_attention *op)
{
    return !many_items(kernels) && has_room(op);
}

static enum keel_status check_forward(const struct keel_kernels *kernels, const struct keel_attention *op)
{
    KEEL_TRY(check_shape(kernels, op));
    const bool drops = op->dropout_rate > 0.0F;
    return KEEL_CHECK_OPERANDS(
        "attention", {"qkv", op->qkv, KEEL_BYTES(3, tokens_bytes(op)), KEEL_READ},
        {"out", op->out, tokens_bytes(op), KEEL_WRITTEN}, {"stats", op->stats, rows_bytes(op), KEEL_WRITTEN},
        {"control", op->control, drops ? sizeof(struct keel_control) : 0, drops ? KEEL_READ : KEEL_OPTIONAL},
        {"workspace", op->workspace, keel_attention_workspace_bytes(kernels, op),
         KEEL_WRITTEN | (has_room(op) ? 0 : KEEL_OPTIONAL)});
}

/* Groups for `blocks` blocks of queries or keys of each head. */
static struct keel_range lanes_range(const struct keel_kernels *kernels, const struct keel_attention *op,
                                     uint32_t blocks)
{
    const uint32_t items = group_items(kernels);
    return (struct keel_range){.global = {keel_size(KEEL_BYTES(blocks, items)), op->heads, op->batch},
                               .local = {items, 1, 1}};
}
/* BLOCK of attention_lanes.h, blocks of tokens, and parts of a head. */
static uint32_t lanes_block(const struct keel_kernels *kernels)
{
    return group_items(kernels) > 64 ? 64 : 32;
}
static uint32_t lanes_blocks(const struct keel_kernels *kernels, const struct keel_attention *op)
{
    return divide_up(op->tokens, lanes_block(kernels)) * divide_up(op->head_width, lanes_block(kernels));
}

/* Blocks of queries, or of keys. */
static struct keel_range block_range(const struct keel_kernels *kernels, const struct keel_attention *op)
{
    if (many_items(kernels))
        return lanes_range(kernels, op, lanes_blocks(kernels, op));
    const uint32_t lanes = large_local(kernels) ? LANES_LARGE : LANES_SMALL;
    const uint32_t blocks = op->tokens / lanes + (op->tokens % lanes != 0);
    return (struct keel_range){.global = {blocks, op->heads, op->batch}, .local = {1, 1, 1}};
}

/* The scalars that the kernels end with. */
enum { SCALAR_COUNT = 12 };
static void set_scalars(const struct keel_kernels *kernels, const struct keel_attention *op,
                        struct keel_arg args[SCALAR_COUNT])
{
    struct keel_random_slice slice = {.row = 1};
    if (op->dropout_rate > 0.0F)
        (void)find_slice(op, &slice); /* which the checks have done */
    args[0] = keel_arg_u32(packed(kernels, op));
    args[1] = keel_arg_u32(op->tokens);
    args[2] = keel_arg_u32(op->heads);
    args[3] = keel_arg_u32(op->head_width);
    args[4] = keel_arg_u32(!op->bidirectional);
    args[5] = keel_arg_f32(keel_canon_divide(1.0F, keel_canon_sqrt((float)op->head_width)));
    args[6] = keel_arg_f32(op->dropout_rate);
    args[7] = keel_arg_f32(keel_canon_divide(1.0F, 1.0F - op->dropout_rate));
    args[8] = keel_arg_u32(op->stream);
    args[9] = keel_arg_u64(slice.first);
    args[10] = keel_arg_u64(slice.row);
    args[11] = keel_arg_u64(slice.stride);
}

/* Not read where there is no dropout. */
static struct keel_arg control_arg(const struct keel_attention *op)
{
    return keel_arg_buffer(op->dropout_rate > 0.0F ? op->control : op->stats);
}

uint64_t keel_attention_workspace_bytes(const struct keel_kernels *kernels, const struct keel_attention *op)
{
    (void)kernels;
    return has_room(op) ? KEEL_BYTES(PACKED_PARTS, tokens_bytes(op)) : 0;
}

/* `count` parts of rows of `parts`, from part `skip`, become parts `first`, ... of the workspace. */
static enum keel_status launch_pack(struct keel_kernels *kernels, const struct keel_attention *op,
                                    struct keel_buffer *from, const uint32_t parts_skip_count_first[4],
                                    struct keel_launch_list *list)
{
    const struct keel_range range = block_range(kernels, op);
    return keel_kernels_launch(
        kernels, list, KEEL_MODULE_attention, "keel_attention_pack", &range,
        KEEL_ARGS(keel_arg_buffer(from), keel_arg_buffer(op->workspace), keel_arg_u32(op->tokens),
                  keel_arg_u32(op->heads), keel_arg_u32(op->head_width),
                  keel_arg_u32(parts_skip_count_first[0]), keel_arg_u32(parts_skip_count_first[1]),
                  keel_arg_u32(parts_skip_count_first[2]), keel_arg_u32(parts_skip_count_first[3])));
}

enum keel_status keel_op_attention(struct keel_kernels *kernels, const struct keel_attention *op,
                                   struct keel_launch_list *list)
{
    KEEL_TRY(check_forward(kernels, op));
    if (packed(kernels, op))
        KEEL_TRY(launch_pack(kernels, op, op->qkv, (const uint32_t[]){3, 1, PACKED_PARTS, 0}, list));
    struct keel_arg args[5 + SCALAR_COUNT] = {
        keel_arg_buffer(op->qkv), keel_arg_buffer(packed(kernels, op) ? op->workspace : op->qkv),
        keel_arg_buffer(op->out), keel_arg_buffer(op->stats),
        control_arg(op),
    };
    set_scalars(kernels, op, args + 5);
    struct keel_range range = block_range(kernels, op);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_attention, "keel_attention", &range, args,
                               KEEL_ARG_COUNT(args));
}

uint64_t keel_attention_grad_workspace_bytes(const struct keel_kernels *kernels,
                                             const struct keel_attention_grad *op)
{
    (void)kernels;
    const struct keel_attention *forward = &op->forward; /* rows: 1 / sum, and dout . out, of each */
    return keel_plus(has_room(forward) ? KEEL_BYTES(PACKED_PARTS_GRAD, tokens_bytes(forward)) : 0,
                     rows_bytes(forward));
}

static enum keel_status launch_rows(struct keel_kernels *kernels, const struct keel_attention_grad *op,
                                    struct keel_launch_list *list)
{
    const struct keel_attention *forward = &op->forward;
    const struct keel_range range =
        many_items(kernels) ? lanes_range(kernels, forward, divide_up(forward->tokens, group_items(kernels)))
                            : block_range(kernels, forward);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_attention, "keel_attention_rows", &range,
                               KEEL_ARGS(keel_arg_buffer(forward->out), keel_arg_buffer(forward->stats),
                                         keel_arg_buffer(op->dout), keel_arg_buffer(forward->workspace),
                                         keel_arg_u32(packed(kernels, forward)),
                                         keel_arg_u32(forward->tokens), keel_arg_u32(forward->heads),
                                         keel_arg_u32(forward->head_width)));
}

/* Whether a group for each head keeps the device as busy, at 5 products a head, as a group for each block of
 * queries and then of keys, at 3 and 4. */
static bool heads_suffice(const struct keel_kernels *kernels, const struct keel_attention *op)
{
    const uint64_t units = keel_kernels_info(kernels)->compute_units,
                   groups = (uint64_t)op->batch * op->heads;
    const uint64_t turns = units == 0 ? groups : (groups + units - 1) / units;
    return 5 * turns * units <= 7 * groups;
}

static enum keel_status launch_grad(struct keel_kernels *kernels, const struct keel_attention_grad *op,
                                    uint32_t want, struct keel_launch_list *list)
{
    const struct keel_attention *forward = &op->forward;
    struct keel_arg args[6 + SCALAR_COUNT + 1] = {
        keel_arg_buffer(forward->qkv), keel_arg_buffer(forward->stats),     control_arg(forward),
        keel_arg_buffer(op->dout),     keel_arg_buffer(forward->workspace), keel_arg_buffer(op->dqkv),
    };
    set_scalars(kernels, forward, args + 6);
    args[6 + SCALAR_COUNT] = keel_arg_u32(want);
    struct keel_range range = block_range(kernels, forward);
    if (many_items(kernels))
        range = lanes_range(kernels, forward, 2 * lanes_blocks(kernels, forward));
    else if (want == (WANT_QUERIES | WANT_KEYS))
        range.global[0] = 1;
    return keel_kernels_launch(kernels, list, KEEL_MODULE_attention, "keel_attention_grad", &range, args,
                               KEEL_ARG_COUNT(args));
}

enum keel_status keel_op_attention_grad(struct keel_kernels *kernels, const struct keel_attention_grad *op,
                                        struct keel_launch_list *list)
{
    const struct keel_attention *forward = &op->forward;
    KEEL_TRY(check_forward(kernels, forward));
    KEEL_TRY(KEEL_CHECK_OPERANDS(
        "attention_grad", {"qkv", forward->qkv, 0, KEEL_READ}, {"out", forward->out, 0, KEEL_READ},
        {"stats", forward->stats, 0, KEEL_READ}, {"control", forward->control, 0, KEEL_OPTIONAL},
        {"dout", op->dout, tokens_bytes(forward), KEEL_READ},
        {"dqkv", op->dqkv, KEEL_BYTES(3, tokens_bytes(forward)), KEEL_WRITTEN},
        {"workspace", forward->workspace, keel_attention_grad_workspace_bytes(kernels, op), KEEL_WRITTEN}));
    KEEL_TRY(launch_rows(kernels, op, list));
    if (packed(kernels, forward)) {
        KEEL_TRY(launch_pack(kernels, forward, forward->qkv, (const uint32_t[]){3, 0, 3, 0}, list));
        KEEL_TRY(launch_pack(kernels, forward, op->dout, (const uint32_t[]){1, 0, 1, 3}, list));
    }
    if (many_items(kernels) || heads_suffice(kernels, forward))
        return launch_grad(kernels, op, WANT_QUERIES | WANT_KEYS, list);
    KEEL_TRY(launch_grad(kernels, op, WANT_QUERIES, list));
    return launch_grad(kernels, op, WANT_KEYS, list);
}
