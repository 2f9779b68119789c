/* tensor.c - tensors of unlike shapes, sums over dimensions, scaling: descriptors to launches. The kernels
 * are in tensor.cl. */
#include <keel/tensor_ops.h>

#include "kernels_internal.h"

enum { DIMS = KEEL_TENSOR_DIMS, LANES = KEEL_LANES };

static const char *const names[KEEL_BINARY_COUNT] = {
#define NAME(kind, name, ...) [kind] = #name,
    KEEL_BINARY_TABLE(NAME)};

const char *keel_binary_name(enum keel_binary_kind kind)
{
    return (unsigned)kind < KEEL_BINARY_COUNT ? names[kind] : NULL;
}

/* The elements of a tensor with those dimensions, and how far it goes along each. */
static uint64_t lay_out(const uint64_t size[DIMS], uint32_t dims, uint32_t steps[DIMS])
{
    uint64_t count = 1;
    for (int d = DIMS - 1; d >= 0; d--) {
        const bool has = (dims >> d & 1) != 0 && size[d] > 1;
        steps[d] = has ? (uint32_t)count : 0;
        count = KEEL_BYTES(count, has ? size[d] : 1);
    }
    return count;
}

/* Neighbours that both operands have, or have not, become one dimension, so that runs are as long as may be;
 * the last takes what there is, so that who is there goes by 1 along it. */
static void join(uint64_t size[DIMS], uint32_t dims[2])
{
    uint64_t joined[DIMS] = {0};
    uint32_t has[DIMS] = {0}, groups = 0; /* bit i of has: operand i */
    for (int d = 0; d < DIMS; d++) {
        const uint32_t both = (dims[0] >> d & 1) | (dims[1] >> d & 1) << 1;
        if (size[d] == 1)
            continue;
        if (groups > 0 && has[groups - 1] == both) {
            joined[groups - 1] *= size[d];
            continue;
        }
        joined[groups] = size[d];
        has[groups++] = both;
    }
    dims[0] = dims[1] = 0;
    for (uint32_t d = 0; d < DIMS; d++) {
        const bool there = d >= DIMS - groups;
        const uint32_t from = there ? d - (DIMS - groups) : 0;
        size[d] = there ? joined[from] : 1;
        for (uint32_t i = 0; i < 2 && there; i++)
            dims[i] |= (has[from] >> i & 1) << d;
    }
}

static enum keel_status check_binary(const struct keel_binary *op, uint64_t *count)
{
    const uint64_t *size = op->size;
    *count = KEEL_BYTES(size[0], size[1], size[2], size[3]);
    if (keel_binary_name(op->kind) == NULL || (unsigned)op->of >= KEEL_BINARY_RESULTS)
        return keel_fail(KEEL_INVALID, "binary: no function has number %u, or no result %u",
                         (unsigned)op->kind, (unsigned)op->of);
    if (*count == 0 || *count > UINT32_MAX || ((op->a_dims | op->b_dims) >> DIMS) != 0)
        return keel_fail(KEEL_INVALID,
                         "%s: a result of [%llu, %llu, %llu, %llu]: none, or 2^32 elements or more, or "
                         "operands of other dimensions",
                         keel_binary_name(op->kind), (unsigned long long)size[0], (unsigned long long)size[1],
                         (unsigned long long)size[2], (unsigned long long)size[3]);
    return KEEL_OK;
}

enum keel_status keel_op_binary(struct keel_kernels *kernels, const struct keel_binary *op,
                                struct keel_launch_list *list)
{
    uint64_t count;
    KEEL_TRY(check_binary(op, &count));
    uint64_t size[DIMS] = {op->size[0], op->size[1], op->size[2], op->size[3]};
    uint32_t dims[2] = {op->a_dims, op->b_dims}, a[DIMS], b[DIMS];
    join(size, dims);
    const uint64_t a_count = lay_out(size, dims[0], a), b_count = lay_out(size, dims[1], b);
    const bool slope = op->of != KEEL_BINARY_VALUE;
    KEEL_TRY(KEEL_CHECK_OPERANDS(keel_binary_name(op->kind),
                                 {"a", op->a, KEEL_BYTES(a_count, sizeof(float)), KEEL_READ},
                                 {"b", op->b, KEEL_BYTES(b_count, sizeof(float)), KEEL_READ},
                                 {"dy", op->dy, slope ? KEEL_BYTES(count, sizeof(float)) : 0,
                                  slope ? KEEL_READ : KEEL_READ | KEEL_OPTIONAL},
                                 {"y", op->y, KEEL_BYTES(count, sizeof(float)), KEEL_WRITTEN}));
    return keel_kernels_launch_flat(
        kernels, list, KEEL_MODULE_tensor, "keel_binary", count,
        KEEL_ARGS(keel_arg_buffer(op->a), keel_arg_buffer(op->b), keel_arg_buffer(slope ? op->dy : op->a),
                  keel_arg_buffer(op->y), keel_arg_u32(KEEL_BINARY_RESULTS * op->kind + op->of),
                  keel_arg_u32((uint32_t)count), keel_arg_u32((uint32_t)size[1]),
                  keel_arg_u32((uint32_t)size[2]), keel_arg_u32((uint32_t)size[3]), keel_arg_u32(a[0]),
                  keel_arg_u32(a[1]), keel_arg_u32(a[2]), keel_arg_u32(a[3]), keel_arg_u32(b[0]),
                  keel_arg_u32(b[1]), keel_arg_u32(b[2]), keel_arg_u32(b[3]),
                  keel_arg_u32(keel_kernels_item_elements(kernels))));
}

enum keel_status keel_op_reduce(struct keel_kernels *kernels, const struct keel_reduce *op,
                                struct keel_launch_list *list)
{
    const uint64_t results = KEEL_BYTES(op->outer, op->inner), count = KEEL_BYTES(results, op->n);
    if ((unsigned)op->kind >= KEEL_REDUCE_COUNT || count == 0 || count > UINT32_MAX)
        return keel_fail(
            KEEL_INVALID,
            "reduce: kind %u over [%llu, %llu, %llu]: no such kind, no elements, or 2^32 or more",
            (unsigned)op->kind, (unsigned long long)op->outer, (unsigned long long)op->n,
            (unsigned long long)op->inner);
    KEEL_TRY(KEEL_CHECK_OPERANDS("reduce", {"x", op->x, KEEL_BYTES(count, sizeof(float)), KEEL_READ},
                                 {"y", op->y, KEEL_BYTES(results, sizeof(float)), KEEL_WRITTEN}));
    if (op->inner == 1) {
        const struct keel_range rows = keel_kernels_rows(kernels, op->outer);
        return keel_kernels_launch(kernels, list, KEEL_MODULE_tensor, "keel_reduce_rows", &rows,
                                   KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_buffer(op->y),
                                             keel_arg_u32((uint32_t)op->outer), keel_arg_u32((uint32_t)op->n),
                                             keel_arg_u32(op->kind)));
    }
    const uint64_t strips = op->outer * ((op->inner - 1) / LANES + 1);
    const struct keel_range range =
        keel_kernels_range(kernels, keel_kernels_share_rows(kernels) ? results : strips);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_tensor, "keel_reduce_columns", &range,
                               KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_buffer(op->y),
                                         keel_arg_u32((uint32_t)op->outer), keel_arg_u32((uint32_t)op->n),
                                         keel_arg_u32((uint32_t)op->inner), keel_arg_u32(op->kind)));
}

enum keel_status keel_op_scale(struct keel_kernels *kernels, const struct keel_scale *op,
                               struct keel_launch_list *list)
{
    const uint64_t bytes = KEEL_BYTES(op->count, sizeof(float));
    KEEL_TRY(keel_check_finite("scale", "factor", op->factor));
    KEEL_TRY(keel_check_finite("scale", "addend", op->addend));
    KEEL_TRY(KEEL_CHECK_OPERANDS("scale", {"x", op->x, bytes, KEEL_IN_PLACE},
                                 {"y", op->y, bytes, KEEL_WRITTEN | KEEL_IN_PLACE}));
    return keel_kernels_launch_flat(kernels, list, KEEL_MODULE_tensor, "keel_scale", op->count,
                                    KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_buffer(op->y),
                                              keel_arg_u64(op->count), keel_arg_f32(op->factor),
                                              keel_arg_f32(op->addend),
                                              keel_arg_u32(keel_kernels_item_elements(kernels))));
}
