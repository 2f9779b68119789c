/* attention.c - attention and its gradient: checks, and descriptors to launches. The
 * arithmetic is in attention.cl; products of a class have launches of their own (attention_class.c). */
#include "attention_internal.h"
#include "kernels_internal.h"

enum {
    LANES_SMALL = 16, /* LANES and WIDTH_MAX of attention.cl, */
    LANES_LARGE = 32, /* and where local memory is large */
    WIDTH_MAX_SMALL = 128,
    WIDTH_MAX_LARGE = 256,
    UNPACKED_TOKENS = 64,
    TOKENS_MAX = 1 << 30, /* sums of two are an int, in the kernels */
    WANT_QUERIES = 1,     /* for keel_attention_grad */
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

uint32_t keel_attention_kv_heads(const struct keel_attention *op)
{
    return op->kv_heads > 0 ? op->kv_heads : op->heads;
}

/* Keys of a sequence: as many as queries where both come from qkv. */
static uint32_t key_count(const struct keel_attention *op)
{
    return op->kv != NULL ? op->keys : op->tokens;
}

/* The probabilities of a head lie together. */
static enum keel_status find_slice(const struct keel_attention *op, struct keel_random_slice *out)
{
    const uint64_t head = KEEL_BYTES(op->tokens, key_count(op));
    *out = op->slice;
    if (out->row % head != 0)
        return keel_fail(KEEL_INVALID, "attention: a slice in rows of %llu probabilities, a head has %llu",
                         (unsigned long long)out->row, (unsigned long long)head);
    return keel_check_random("attention", KEEL_BYTES(op->batch, op->heads, head), KEEL_RANDOM_ELEMENTS_MAX,
                             out);
}

enum keel_status keel_check_alibi(const char *op, const struct keel_alibi *alibi, uint32_t heads)
{
    if (alibi->heads > KEEL_ALIBI_HEADS_MAX)
        return keel_fail(KEEL_LIMIT, "%s: ALiBi of %u heads, at most %d", op, alibi->heads,
                         KEEL_ALIBI_HEADS_MAX);
    if (alibi->heads > 0 && (alibi->first > alibi->heads || heads > alibi->heads - alibi->first))
        return keel_fail(KEEL_INVALID, "%s: ALiBi of %u heads from head %u on, there are %u", op, heads,
                         alibi->first, alibi->heads);
    return KEEL_OK;
}

static enum keel_status check_mask(const struct keel_attention *op)
{
    const struct keel_alibi *alibi = &op->alibi;
    KEEL_TRY(keel_check_alibi("attention", alibi, op->heads));
    if (op->tokens > TOKENS_MAX || op->keys > TOKENS_MAX)
        return keel_fail(KEEL_LIMIT, "attention: %u tokens and %u keys, at most %d", op->tokens, op->keys,
                         TOKENS_MAX);
    if (op->kv == NULL && (op->keys != 0 || op->key_segments != NULL))
        return keel_fail(KEEL_INVALID, "attention: %u keys or segments of keys, without kv", op->keys);
    if (op->kv != NULL && (op->keys == 0 || !op->bidirectional || op->window != 0 || alibi->heads != 0))
        return keel_fail(KEEL_INVALID,
                         "attention: %u keys of their own%s%s%s: queries see all of them, by no distance",
                         op->keys, op->bidirectional ? "" : ", causal", op->window != 0 ? ", a window" : "",
                         alibi->heads != 0 ? ", ALiBi" : "");
    if (op->kv != NULL && (op->segments == NULL) != (op->key_segments == NULL))
        return keel_fail(KEEL_INVALID, "attention: segments of queries or of keys alone: give both");
    return KEEL_OK;
}

static enum keel_status check_shape(const struct keel_kernels *kernels, const struct keel_attention *op)
{
    if (op->batch == 0 || op->tokens == 0 || op->heads == 0 || op->head_width == 0)
        return keel_fail(KEEL_INVALID, "attention: batch %u, %u tokens, %u heads of %u: nothing to compute",
                         op->batch, op->tokens, op->heads, op->head_width);
    if (op->heads % keel_attention_kv_heads(op) != 0)
        return keel_fail(KEEL_INVALID, "attention: %u heads of keys do not divide %u heads of queries",
                         op->kv_heads, op->heads);
    const uint32_t width_max =
        many_items(kernels) || large_local(kernels) ? WIDTH_MAX_LARGE : WIDTH_MAX_SMALL;
    if (op->head_width > width_max)
        return keel_fail(KEEL_LIMIT, "attention: heads of %u, at most %u on this device: use more heads",
                         op->head_width, width_max);
    if (!(op->dropout_rate >= 0.0F && op->dropout_rate < 1.0F))
        return keel_fail(KEEL_INVALID, "attention: dropout rate %g is not in [0, 1)",
                         (double)op->dropout_rate);
    KEEL_TRY(check_mask(op));
    struct keel_random_slice slice;
    return op->dropout_rate > 0.0F ? find_slice(op, &slice) : KEEL_OK;
}

/* All queries, and all keys: floats of heads side by side. */
static uint64_t tokens_bytes(const struct keel_attention *op)
{
    return KEEL_BYTES(op->batch, op->tokens, op->heads, op->head_width, sizeof(float));
}
static uint64_t keys_bytes(const struct keel_attention *op)
{
    return KEEL_BYTES(op->batch, key_count(op), keel_attention_kv_heads(op), op->head_width, sizeof(float));
}
static uint64_t qkv_bytes(const struct keel_attention *op)
{
    return keel_plus(tokens_bytes(op), op->kv != NULL ? 0 : KEEL_BYTES(2, keys_bytes(op)));
}

/* Two floats for each row of probabilities. */
static uint64_t rows_bytes(const struct keel_attention *op)
{
    return KEEL_BYTES(op->batch, op->heads, op->tokens, 2, sizeof(float));
}

static bool has_shares(const struct keel_attention *op)
{
    return keel_attention_kv_heads(op) != op->heads;
}

/* Whether there is room to copy the rows of a head together before they are read many times: on any device,
 * so that sizes are known without one. Many work-items read whole lines where they are. */
static bool has_room(const struct keel_attention *op)
{
    return op->heads > 1 && (op->tokens > UNPACKED_TOKENS || key_count(op) > UNPACKED_TOKENS);
}
static bool packed(const struct keel_kernels *kernels, const struct keel_attention *op)
{
    return !many_items(kernels) && has_room(op) && !keel_attention_in_class(kernels, op);
}

bool keel_attention_in_class(const struct keel_kernels *kernels, const struct keel_attention *op)
{
    return op->of_class && keel_planes_digits(kernels) > 0;
}

static enum keel_status check_forward(const struct keel_kernels *kernels, const struct keel_attention *op)
{
    KEEL_TRY(check_shape(kernels, op));
    const bool drops = op->dropout_rate > 0.0F;
    return KEEL_CHECK_OPERANDS(
        "attention", {"qkv", op->qkv, qkv_bytes(op), KEEL_READ},
        {"kv", op->kv, KEEL_BYTES(2, keys_bytes(op)), KEEL_OPTIONAL},
        {"out", op->out, tokens_bytes(op), KEEL_WRITTEN}, {"stats", op->stats, rows_bytes(op), KEEL_WRITTEN},
        {"control", op->control, drops ? sizeof(struct keel_control) : 0, drops ? KEEL_READ : KEEL_OPTIONAL},
        {"segments", op->segments, KEEL_BYTES(op->batch, op->tokens, sizeof(int32_t)), KEEL_OPTIONAL},
        {"key_segments", op->key_segments, KEEL_BYTES(op->batch, key_count(op), sizeof(int32_t)),
         KEEL_OPTIONAL},
        {"workspace", op->workspace, keel_attention_workspace_bytes(kernels, op),
         KEEL_WRITTEN | (keel_attention_workspace_bytes(kernels, op) > 0 ? 0 : KEEL_OPTIONAL)});
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
static uint32_t lanes_blocks(const struct keel_kernels *kernels, const struct keel_attention *op,
                             uint32_t rows)
{
    return divide_up(rows, lanes_block(kernels)) * divide_up(op->head_width, lanes_block(kernels));
}

/* Blocks of so many queries, or keys. */
static struct keel_range block_range(const struct keel_kernels *kernels, const struct keel_attention *op,
                                     uint32_t rows)
{
    if (many_items(kernels))
        return lanes_range(kernels, op, lanes_blocks(kernels, op, rows));
    const uint32_t blocks = divide_up(rows, large_local(kernels) ? LANES_LARGE : LANES_SMALL);
    return (struct keel_range){.global = {blocks, op->heads, op->batch}, .local = {1, 1, 1}};
}

/* The operands that the kernels begin with: those that are absent are not read. */
enum { OPERAND_COUNT = 5 };
static void set_operands(const struct keel_attention *op, struct keel_arg args[OPERAND_COUNT])
{
    struct keel_buffer *segments = op->segments != NULL ? op->segments : op->stats;
    args[0] = keel_arg_buffer(op->qkv);
    args[1] = keel_arg_either(op->kv, op->qkv);
    args[2] = keel_arg_buffer(segments);
    args[3] = keel_arg_either(op->key_segments, segments);
    args[4] = keel_arg_buffer(op->dropout_rate > 0.0F ? op->control : op->stats);
}

/* The scalars that they end with. */
void keel_attention_scalars(const struct keel_kernels *kernels, const struct keel_attention *op,
                            struct keel_arg args[KEEL_ATTENTION_SCALARS])
{
    struct keel_random_slice slice = {.row = 1};
    if (op->dropout_rate > 0.0F)
        (void)find_slice(op, &slice); /* which the checks have done */
    args[0] = keel_arg_u32(packed(kernels, op));
    args[1] = keel_arg_u32(op->tokens);
    args[2] = keel_arg_u32(key_count(op));
    args[3] = keel_arg_u32(op->heads);
    args[4] = keel_arg_u32(keel_attention_kv_heads(op));
    args[5] = keel_arg_u32(op->head_width);
    args[6] = keel_arg_u32(op->kv != NULL);
    args[7] = keel_arg_u32(op->bidirectional ? keel_window_reach(op->window, key_count(op)) : 0);
    args[8] = keel_arg_u32(keel_window_reach(op->window, op->tokens));
    args[9] = keel_arg_u32(op->segments != NULL);
    args[10] = keel_arg_u32(op->alibi.heads);
    args[11] = keel_arg_u32(op->alibi.first);
    args[12] = keel_arg_f32(keel_canon_divide(1.0F, keel_canon_sqrt((float)op->head_width)));
    args[13] = keel_arg_f32(op->dropout_rate);
    args[14] = keel_arg_f32(keel_canon_divide(1.0F, 1.0F - op->dropout_rate));
    args[15] = keel_arg_u32(op->stream);
    args[16] = keel_arg_u64(slice.first);
    args[17] = keel_arg_u64(slice.row);
    args[18] = keel_arg_u64(slice.stride);
}

uint64_t keel_attention_workspace_bytes(const struct keel_kernels *kernels, const struct keel_attention *op)
{
    return has_room(op) && !keel_attention_in_class(kernels, op) ? KEEL_BYTES(2, keys_bytes(op)) : 0;
}

/* Parts of rows that are to lie together in the workspace, from byte `at` on: `count` of so many heads,
 * behind `skip` heads, of rows of `row` heads. */
struct pack {
    struct keel_buffer *from;
    uint32_t tokens, row, skip, heads, count;
    uint64_t at;
};
static enum keel_status launch_pack(struct keel_kernels *kernels, const struct keel_attention *op,
                                    const struct pack *pack, struct keel_launch_list *list)
{
    struct keel_range range = block_range(kernels, op, pack->tokens);
    range.global[1] = pack->heads;
    return keel_kernels_launch(
        kernels, list, KEEL_MODULE_attention, "keel_attention_pack", &range,
        KEEL_ARGS(keel_arg_buffer(pack->from), keel_arg_buffer(op->workspace), keel_arg_u32(pack->tokens),
                  keel_arg_u32(pack->heads), keel_arg_u32(op->head_width),
                  keel_arg_u32(pack->row * op->head_width), keel_arg_u32(pack->skip * op->head_width),
                  keel_arg_u32(pack->count), keel_arg_u64(pack->at / sizeof(float))));
}
/* Keys and values, from byte `at` on. */
static enum keel_status pack_keys(struct keel_kernels *kernels, const struct keel_attention *op, uint64_t at,
                                  struct keel_launch_list *list)
{
    const uint32_t heads = keel_attention_kv_heads(op), front = op->kv != NULL ? 0 : op->heads;
    const struct pack pack = {.from = op->kv != NULL ? op->kv : op->qkv,
                              .tokens = key_count(op),
                              .row = front + 2 * heads,
                              .skip = front,
                              .heads = heads,
                              .count = 2,
                              .at = at};
    return launch_pack(kernels, op, &pack, list);
}

enum keel_status keel_op_attention(struct keel_kernels *kernels, const struct keel_attention *op,
                                   struct keel_launch_list *list)
{
    KEEL_TRY(check_forward(kernels, op));
    KEEL_TRY(keel_attention_check_parts(kernels, op, false));
    if (keel_attention_in_class(kernels, op))
        return keel_attention_class_append(kernels, op, list);
    if (packed(kernels, op))
        KEEL_TRY(pack_keys(kernels, op, 0, list));
    enum { OWN = 3 };
    struct keel_arg args[OPERAND_COUNT + OWN + KEEL_ATTENTION_SCALARS];
    set_operands(op, args);
    args[OPERAND_COUNT] = keel_arg_buffer(packed(kernels, op) ? op->workspace : op->qkv);
    args[OPERAND_COUNT + 1] = keel_arg_buffer(op->out);
    args[OPERAND_COUNT + 2] = keel_arg_buffer(op->stats);
    keel_attention_scalars(kernels, op, args + OPERAND_COUNT + OWN);
    const struct keel_range range = block_range(kernels, op, op->tokens);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_attention, "keel_attention", &range, args,
                               KEEL_ARG_COUNT(args));
}

/* Of the gradient's workspace, where rows are packed: queries, keys, values, dout, dq. */
static uint64_t packs_bytes(const struct keel_attention *op)
{
    return keel_plus(KEEL_BYTES(3, tokens_bytes(op)), KEEL_BYTES(2, keys_bytes(op)));
}
/* Behind it, of each row: 1 / sum, and dout . out. */
static uint64_t rows_at(const struct keel_kernels *kernels, const struct keel_attention *op)
{
    return packed(kernels, op) ? packs_bytes(op) / sizeof(float) : 0;
}
/* And where heads share keys and values, the gradients of those that each has alone. */
static uint64_t shares_bytes(const struct keel_attention *op)
{
    return has_shares(op) ? KEEL_BYTES(2, op->batch, key_count(op), op->heads, op->head_width, sizeof(float))
                          : 0;
}
uint64_t keel_attention_shares_at(const struct keel_kernels *kernels, const struct keel_attention *op)
{
    return rows_at(kernels, op) + rows_bytes(op) / sizeof(float);
}

uint64_t keel_attention_grad_workspace_bytes(const struct keel_kernels *kernels,
                                             const struct keel_attention_grad *op)
{
    const bool packs = has_room(&op->forward) && !keel_attention_in_class(kernels, &op->forward);
    return keel_plus(packs ? packs_bytes(&op->forward) : 0,
                     keel_plus(rows_bytes(&op->forward), shares_bytes(&op->forward)));
}

static enum keel_status launch_rows(struct keel_kernels *kernels, const struct keel_attention_grad *op,
                                    struct keel_launch_list *list)
{
    const struct keel_attention *forward = &op->forward;
    const struct keel_range range =
        many_items(kernels) ? lanes_range(kernels, forward, divide_up(forward->tokens, group_items(kernels)))
                            : block_range(kernels, forward, forward->tokens);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_attention, "keel_attention_rows", &range,
                               KEEL_ARGS(keel_arg_buffer(forward->out), keel_arg_buffer(forward->stats),
                                         keel_arg_buffer(op->dout), keel_arg_buffer(forward->workspace),
                                         keel_arg_u64(rows_at(kernels, forward)),
                                         keel_arg_u32(forward->tokens), keel_arg_u32(forward->heads),
                                         keel_arg_u32(forward->head_width)));
}

static enum keel_status launch_packs(struct keel_kernels *kernels, const struct keel_attention_grad *op,
                                     struct keel_launch_list *list)
{
    const struct keel_attention *forward = &op->forward;
    const uint64_t queries = tokens_bytes(forward), keys = keys_bytes(forward);
    const uint32_t tokens = forward->tokens, heads = forward->heads;
    const bool alike = forward->kv == NULL && !has_shares(forward); /* then all three go at once */
    struct pack pack = {forward->qkv, tokens, heads, 0, heads, alike ? 3 : 1, 0};
    if (forward->kv == NULL)
        pack.row += 2 * keel_attention_kv_heads(forward);
    KEEL_TRY(launch_pack(kernels, forward, &pack, list));
    if (!alike)
        KEEL_TRY(pack_keys(kernels, forward, queries, list));
    return launch_pack(kernels, forward,
                       &(struct pack){op->dout, tokens, heads, 0, heads, 1, queries + 2 * keys}, list);
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
    enum { OWN = 5, SCALARS = OPERAND_COUNT + OWN };
    struct keel_arg args[SCALARS + KEEL_ATTENTION_SCALARS + 3];
    set_operands(forward, args);
    args[OPERAND_COUNT] = keel_arg_buffer(forward->stats);
    args[OPERAND_COUNT + 1] = keel_arg_buffer(op->dout);
    args[OPERAND_COUNT + 2] = keel_arg_buffer(forward->workspace);
    args[OPERAND_COUNT + 3] = keel_arg_buffer(op->dqkv);
    args[OPERAND_COUNT + 4] = keel_arg_buffer(has_shares(forward)   ? forward->workspace
                                              : forward->kv != NULL ? op->dkv
                                                                    : op->dqkv);
    keel_attention_scalars(kernels, forward, args + SCALARS);
    args[SCALARS + KEEL_ATTENTION_SCALARS] = keel_arg_u64(rows_at(kernels, forward));
    args[SCALARS + KEEL_ATTENTION_SCALARS + 1] =
        keel_arg_u64(has_shares(forward) ? keel_attention_shares_at(kernels, forward) : 0);
    args[SCALARS + KEEL_ATTENTION_SCALARS + 2] = keel_arg_u32(want);
    const uint32_t tokens = forward->tokens, keys = key_count(forward);
    struct keel_range range = block_range(kernels, forward, want == WANT_KEYS ? keys : tokens);
    if (many_items(kernels))
        range = lanes_range(kernels, forward,
                            lanes_blocks(kernels, forward, tokens) + lanes_blocks(kernels, forward, keys));
    else if (want == (WANT_QUERIES | WANT_KEYS))
        range.global[0] = 1;
    return keel_kernels_launch(kernels, list, KEEL_MODULE_attention, "keel_attention_grad", &range, args,
                               KEEL_ARG_COUNT(args));
}

static enum keel_status launch_grads(struct keel_kernels *kernels, const struct keel_attention_grad *op,
                                     struct keel_launch_list *list)
{
    if (packed(kernels, &op->forward))
        KEEL_TRY(launch_packs(kernels, op, list));
    if (many_items(kernels) || heads_suffice(kernels, &op->forward))
        return launch_grad(kernels, op, WANT_QUERIES | WANT_KEYS, list);
    KEEL_TRY(launch_grad(kernels, op, WANT_QUERIES, list));
    return launch_grad(kernels, op, WANT_KEYS, list);
}

/* What each head has of the gradient of keys and values that it shares, added up. */
static enum keel_status add_shares(struct keel_kernels *kernels, const struct keel_attention_grad *op,
                                   struct keel_launch_list *list)
{
    const struct keel_attention *forward = &op->forward;
    const bool own = forward->kv != NULL;
    const struct keel_rotary_share share = {.batch = forward->batch,
                                            .tokens = key_count(forward),
                                            .heads = forward->heads,
                                            .kv_heads = forward->kv_heads,
                                            .head_width = forward->head_width,
                                            .front = own ? 0 : forward->heads,
                                            .first_head = op->first_head,
                                            .turned = op->turned,
                                            .shares = forward->workspace,
                                            .at = keel_attention_shares_at(kernels, forward),
                                            .y = own ? op->dkv : op->dqkv};
    return keel_rotary_share_append(kernels, &share, list);
}

enum keel_status keel_op_attention_grad(struct keel_kernels *kernels, const struct keel_attention_grad *op,
                                        struct keel_launch_list *list)
{
    const struct keel_attention *forward = &op->forward;
    KEEL_TRY(check_forward(kernels, forward));
    if (op->turned.base != 0.0F && (forward->kv != NULL || !has_shares(forward)))
        return keel_fail(KEEL_INVALID, "attention_grad: turned back are queries and keys of one qkv, which "
                                       "heads share; of others that is keel_op_rotary's");
    if (op->turned.base != 0.0F)
        KEEL_TRY(keel_check_rotary_turn(&op->turned, forward->head_width));
    KEEL_TRY(KEEL_CHECK_OPERANDS(
        "attention_grad", {"qkv", forward->qkv, 0, KEEL_READ}, {"kv", forward->kv, 0, KEEL_OPTIONAL},
        {"out", forward->out, 0, KEEL_READ}, {"stats", forward->stats, 0, KEEL_READ},
        {"control", forward->control, 0, KEEL_OPTIONAL}, {"segments", forward->segments, 0, KEEL_OPTIONAL},
        {"key_segments", forward->key_segments, 0, KEEL_OPTIONAL},
        {"dout", op->dout, tokens_bytes(forward), KEEL_READ},
        {"dqkv", op->dqkv, qkv_bytes(forward), KEEL_WRITTEN},
        {"dkv", op->dkv, KEEL_BYTES(2, keys_bytes(forward)),
         KEEL_WRITTEN | (forward->kv != NULL ? 0 : KEEL_OPTIONAL)},
        {"workspace", forward->workspace, keel_attention_grad_workspace_bytes(kernels, op), KEEL_WRITTEN}));
    KEEL_TRY(keel_attention_check_parts(kernels, forward, true));
    KEEL_TRY(launch_rows(kernels, op, list));
    KEEL_TRY(keel_attention_in_class(kernels, forward) ? keel_attention_class_append_grad(kernels, op, list)
                                                       : launch_grads(kernels, op, list));
    return has_shares(forward) ? add_shares(kernels, op, list) : KEEL_OK;
}
