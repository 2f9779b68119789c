/* quantised.c - the product with weights in few bits: how they are laid out, checks, and descriptor to
 * launches. The arithmetic is in quantised.cl. */
#include "kernels_internal.h"

#include <string.h>

enum { WORD_BITS = 32, BLOCK_MAX = 16 };
/* Of k, to a work-item that turns rows: a stretch; where lanes are many, one, so that neighbours read
 * neighbours. */
enum { TURN_DEPTH = 64, TURN_DEPTH_LANES = 1 };

/* Integers to a word. */
static uint32_t step_of(uint32_t bits)
{
    return WORD_BITS / bits;
}

/* Words of sixteen columns: scales of each group, and words of integers. */
static uint64_t tile_words(uint32_t k, uint32_t bits, uint32_t group)
{
    const uint64_t groups = group == 0 ? 1 : divide_up(k, group);
    return KEEL_BYTES(KEEL_LANES, groups + divide_up(k, step_of(bits)));
}

enum keel_status keel_quantised_words(const struct keel_gemm_quantised *op, uint64_t *out)
{
    if (op->bits != 4 && op->bits != 8)
        return keel_fail(KEEL_INVALID, "gemm_quantised: weights of %u bits: 4 or 8 are known", op->bits);
    if (op->n == 0 || op->k == 0)
        return keel_fail(KEEL_INVALID, "gemm_quantised: weights of %u x %u: nothing to compute", op->k,
                         op->n);
    if (op->group % step_of(op->bits) != 0)
        return keel_fail(KEEL_INVALID,
                         "gemm_quantised: groups of %u: a multiple of %u, or 0 for all, is wanted", op->group,
                         step_of(op->bits));
    const uint64_t words = KEEL_BYTES(divide_up(op->n, KEEL_LANES), tile_words(op->k, op->bits, op->group));
    if (tile_words(op->k, op->bits, op->group) > UINT32_MAX)
        return keel_fail(KEEL_INVALID, "gemm_quantised: columns of %u are too long", op->k);
    *out = words;
    return KEEL_OK;
}

void keel_quantised_pack(const struct keel_gemm_quantised *of, const int8_t *integers, const float *scales,
                         uint32_t *out)
{
    const uint32_t group = of->group == 0 ? of->k : of->group, step = step_of(of->bits);
    const uint32_t groups = divide_up(of->k, group), mask = (1U << of->bits) - 1;
    for (uint64_t tile = 0; tile < of->n; tile += KEEL_LANES)
        for (uint32_t g = 0; g < groups; g++) {
            const uint32_t begin = g * group, end = of->k - begin > group ? begin + group : of->k;
            for (uint64_t j = tile; j < tile + KEEL_LANES; j++, out++) {
                *out = 0;
                if (j < of->n)
                    memcpy(out, &scales[j * groups + g], sizeof *out);
            }
            for (uint32_t p = begin; p < end; p += step)
                for (uint64_t j = tile; j < tile + KEEL_LANES; j++, out++) {
                    *out = 0;
                    for (uint32_t i = 0; i < step && i < end - p && j < of->n; i++)
                        *out |= ((uint32_t)integers[j * of->k + p + i] & mask)
                                << (WORD_BITS - of->bits * (i + 1));
                }
        }
}

/* Rows that go together: A is read so, and each word of W once for so many. */
static uint32_t block_of(uint32_t m)
{
    uint32_t block = 1;
    while (block < m && block < BLOCK_MAX)
        block *= 2;
    return block;
}

uint64_t keel_gemm_quantised_workspace_bytes(const struct keel_gemm_quantised *op)
{
    const uint32_t block = block_of(op->m);
    return block == 1 ? 0 : KEEL_BYTES(divide_up(op->m, block), block, op->k, sizeof(float));
}

static enum keel_status check(const struct keel_gemm_quantised *op)
{
    const uint64_t workspace = keel_gemm_quantised_workspace_bytes(op);
    uint64_t words;
    if (op->m == 0)
        return keel_fail(KEEL_INVALID, "gemm_quantised: 0 rows: nothing to compute");
    KEEL_TRY(keel_quantised_words(op, &words));
    return KEEL_CHECK_OPERANDS(
        "gemm_quantised", {"A", op->a, KEEL_BYTES(op->m, op->k, sizeof(float)), KEEL_READ},
        {"weights", op->weights, KEEL_BYTES(words, sizeof(uint32_t)), KEEL_READ},
        {"bias", op->bias, KEEL_BYTES(op->n, sizeof(float)), KEEL_OPTIONAL},
        {"C", op->c, KEEL_BYTES(op->m, op->n, sizeof(float)), KEEL_WRITTEN},
        {"workspace", op->workspace, workspace, workspace > 0 ? KEEL_WRITTEN : KEEL_WRITTEN | KEEL_OPTIONAL});
}

/* As quantised.cl has them. */
static uint32_t columns_of_item(const struct keel_kernels *kernels, uint32_t block)
{
    if (keel_kernels_share_rows(kernels))
        return 1;
    return KEEL_LANES * (block == 1 ? 4 : block == 2 ? 2 : 1);
}

enum keel_status keel_op_gemm_quantised(struct keel_kernels *kernels, const struct keel_gemm_quantised *op,
                                        struct keel_launch_list *list)
{
    KEEL_TRY(check(op));
    const uint32_t block = block_of(op->m), blocks = divide_up(op->m, block);
    const uint32_t depth = keel_kernels_share_rows(kernels) ? TURN_DEPTH_LANES : TURN_DEPTH;
    struct keel_range turn = keel_kernels_range(kernels, divide_up(op->k, depth));
    struct keel_range range = keel_kernels_range(kernels, divide_up(op->n, columns_of_item(kernels, block)));
    struct keel_buffer *a = block > 1 ? op->workspace : op->a;
    turn.global[1] = range.global[1] = blocks;
    if (block > 1)
        KEEL_TRY(
            keel_kernels_launch(kernels, list, KEEL_MODULE_quantised, "keel_quantised_turn", &turn,
                                KEEL_ARGS(keel_arg_buffer(op->a), keel_arg_buffer(a), keel_arg_u32(op->m),
                                          keel_arg_u32(op->k), keel_arg_u32(block), keel_arg_u32(depth))));
    return keel_kernels_launch(
        kernels, list, KEEL_MODULE_quantised, "keel_gemm_quantised", &range,
        KEEL_ARGS(
            keel_arg_buffer(a), keel_arg_buffer(op->weights), keel_arg_buffer(op->c),
            keel_arg_either(op->bias, op->c), keel_arg_u32(op->m), keel_arg_u32(op->n), keel_arg_u32(op->k),
            keel_arg_u32(op->bits), keel_arg_u32(op->group == 0 ? op->k : op->group), keel_arg_u32(block),
            keel_arg_u32(op->bias != NULL), keel_arg_u32((uint32_t)tile_words(op->k, op->bits, op->group))));
}
