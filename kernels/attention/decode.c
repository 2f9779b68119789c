/* decode.c - attention of the newest token to keys and values that are kept: checks, and descriptor to
 * launches. The arithmetic is in decode.cl. */
#include "attention_internal.h"
#include "kernels_internal.h"

enum { CLASS_WIDTH_MAX = 256 /* as attention has; one block of k */ };

static enum keel_status check_shape(const struct keel_attention_decode *op)
{
    if (op->batch == 0 || op->heads == 0 || op->head_width == 0 || op->capacity == 0)
        return keel_fail(KEEL_INVALID,
                         "attention_decode: batch %u, %u heads of %u, %u tokens: nothing to compute",
                         op->batch, op->heads, op->head_width, op->capacity);
    if (op->kv_heads == 0 || op->heads % op->kv_heads != 0)
        return keel_fail(KEEL_INVALID, "attention_decode: %u heads of keys and values do not divide %u heads",
                         op->kv_heads, op->heads);
    KEEL_TRY(keel_check_alibi("attention_decode", &op->alibi, op->heads));
    if (op->of_class && op->head_width > CLASS_WIDTH_MAX)
        return keel_fail(KEEL_LIMIT, "attention_decode: heads of %u in a class, at most %d: use more heads",
                         op->head_width, CLASS_WIDTH_MAX);
    if (op->capacity % KEEL_LANES != 0 || op->capacity > INT32_MAX - KEEL_LANES)
        return keel_fail(KEEL_INVALID,
                         "attention_decode: room for %u tokens is no multiple of %d below 2^31: round it up",
                         op->capacity, KEEL_LANES);
    return KEEL_OK;
}

uint64_t keel_attention_decode_workspace_bytes(const struct keel_attention_decode *op)
{
    const uint64_t exponents = op->of_class ? op->capacity : 0;
    return KEEL_BYTES(op->batch, op->heads, op->capacity + KEEL_LANES + exponents, sizeof(float));
}

uint64_t keel_attention_decode_cache_bytes(const struct keel_attention_decode *op)
{
    return KEEL_BYTES(op->slots > 0 ? op->slots : op->batch, 2, op->kv_heads, op->capacity, op->head_width,
                      sizeof(float));
}

static enum keel_status check(const struct keel_attention_decode *op)
{
    const uint64_t bytes = KEEL_BYTES(op->batch, op->heads, op->head_width, sizeof(float));
    const uint64_t shared = KEEL_BYTES(op->batch, op->kv_heads, op->head_width, sizeof(float));
    KEEL_TRY(check_shape(op));
    return KEEL_CHECK_OPERANDS(
        "attention_decode", {"qkv", op->qkv, keel_plus(bytes, KEEL_BYTES(2, shared)), KEEL_READ},
        {"position", op->position, KEEL_BYTES(op->batch, sizeof(int32_t)), KEEL_READ},
        {"slot", op->slot, op->slots > 0 ? KEEL_BYTES(op->batch, sizeof(int32_t)) : 0,
         op->slots > 0 ? KEEL_READ : KEEL_OPTIONAL},
        {"cache", op->cache, keel_attention_decode_cache_bytes(op), KEEL_WRITTEN},
        {"out", op->out, bytes, KEEL_WRITTEN},
        {"workspace", op->workspace, keel_attention_decode_workspace_bytes(op), KEEL_WRITTEN});
}

enum keel_status keel_op_attention_decode(struct keel_kernels *kernels,
                                          const struct keel_attention_decode *op,
                                          struct keel_launch_list *list)
{
    KEEL_TRY(check(op));
    const struct keel_range heads = {.global = {op->heads, op->batch, 1}, .local = {1, 1, 1}};
    const struct keel_range shared = {.global = {op->kv_heads, op->batch, 1}, .local = {1, 1, 1}};
    const struct keel_range keys = {.global = {op->capacity / KEEL_LANES, op->heads, op->batch},
                                    .local = {1, 1, 1}};
    const struct keel_range columns = {
        .global = {op->head_width / KEEL_LANES + (op->head_width % KEEL_LANES != 0), op->heads, op->batch},
        .local = {1, 1, 1}};
    const uint32_t behind = keel_window_reach(op->window, op->capacity);
    const uint32_t digits = op->of_class ? keel_planes_digits(kernels) : 0;
    const float scale = keel_canon_divide(1.0F, keel_canon_sqrt((float)op->head_width));
    KEEL_TRY(keel_kernels_launch(
        kernels, list, KEEL_MODULE_decode, "keel_decode_keep", &shared,
        KEEL_ARGS(keel_arg_buffer(op->qkv), keel_arg_buffer(op->cache), keel_arg_buffer(op->position),
                  keel_arg_either(op->slot, op->position), keel_arg_u32(op->slots), keel_arg_u32(op->heads),
                  keel_arg_u32(op->kv_heads), keel_arg_u32(op->head_width), keel_arg_u32(op->capacity))));
    KEEL_TRY(keel_kernels_launch(
        kernels, list, KEEL_MODULE_decode, "keel_decode_scores", &keys,
        KEEL_ARGS(keel_arg_buffer(op->qkv), keel_arg_buffer(op->cache), keel_arg_buffer(op->workspace),
                  keel_arg_buffer(op->position), keel_arg_either(op->slot, op->position),
                  keel_arg_u32(op->slots), keel_arg_u32(op->heads), keel_arg_u32(op->kv_heads),
                  keel_arg_u32(op->head_width), keel_arg_u32(op->capacity), keel_arg_f32(scale),
                  keel_arg_u32(behind), keel_arg_u32(op->alibi.heads), keel_arg_u32(op->alibi.first),
                  keel_arg_u32(digits))));
    KEEL_TRY(keel_kernels_launch(
        kernels, list, KEEL_MODULE_decode, "keel_decode_weigh", &heads,
        KEEL_ARGS(keel_arg_buffer(op->workspace), keel_arg_buffer(op->cache), keel_arg_buffer(op->position),
                  keel_arg_either(op->slot, op->position), keel_arg_u32(op->slots), keel_arg_u32(op->heads),
                  keel_arg_u32(op->kv_heads), keel_arg_u32(op->head_width), keel_arg_u32(op->capacity),
                  keel_arg_u32(behind), keel_arg_u32(digits))));
    return keel_kernels_launch(kernels, list, KEEL_MODULE_decode, "keel_decode_mix", &columns,
                               KEEL_ARGS(keel_arg_buffer(op->workspace), keel_arg_buffer(op->cache),
                                         keel_arg_buffer(op->out), keel_arg_buffer(op->position),
                                         keel_arg_either(op->slot, op->position), keel_arg_u32(op->slots),
                                         keel_arg_u32(op->heads), keel_arg_u32(op->kv_heads),
                                         keel_arg_u32(op->head_width), keel_arg_u32(op->capacity),
                                         keel_arg_u32(behind), keel_arg_u32(digits)));
}
