/* digest.c - the digest of a tensor: descriptor to launches. The kernels are in digest.cl. */
#include "kernels_internal.h"

uint64_t keel_digest_scratch_bytes(uint64_t count)
{
    return KEEL_BYTES((count + KEEL_BLOCK_ELEMENTS - 1) / KEEL_BLOCK_ELEMENTS, sizeof(uint64_t));
}

enum keel_status keel_op_digest(struct keel_kernels *kernels, const struct keel_digest *op,
                                struct keel_launch_list *list)
{
    struct keel_random_slice numbers = {op->first_element, op->row, op->stride};
    if (op->count == 0)
        return keel_fail(KEEL_INVALID, "digest: no elements");
    KEEL_TRY(keel_check_random("digest", op->count, UINT64_MAX, &numbers));
    KEEL_TRY(
        KEEL_CHECK_OPERANDS("digest", {"x", op->x, KEEL_BYTES(op->count, sizeof(float)), KEEL_READ},
                            {"digest", op->digest, sizeof(uint64_t), KEEL_WRITTEN},
                            {"scratch", op->scratch, keel_digest_scratch_bytes(op->count), KEEL_WRITTEN}));
    uint64_t blocks = keel_digest_scratch_bytes(op->count) / sizeof(uint64_t);
    struct keel_range range = keel_kernels_groups(kernels, blocks);
    KEEL_TRY(keel_kernels_launch(kernels, list, KEEL_MODULE_digest, "keel_digest_blocks", &range,
                                 KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_buffer(op->scratch),
                                           keel_arg_u64(op->count), keel_arg_u64(numbers.first),
                                           keel_arg_u64(numbers.row), keel_arg_u64(numbers.stride))));
    range = keel_kernels_groups(kernels, 1);
    return keel_kernels_launch(
        kernels, list, KEEL_MODULE_digest, "keel_digest_sum", &range,
        KEEL_ARGS(keel_arg_buffer(op->scratch), keel_arg_buffer(op->digest), keel_arg_u64(blocks)));
}
