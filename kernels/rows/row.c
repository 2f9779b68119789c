/* row.c - operations along the last dimension: descriptors to launches. The kernels are in row.cl. */
#include <keel/shape_ops.h>

#include "kernels_internal.h"

static enum keel_status check_rows(const char *name, uint32_t rows, uint32_t n)
{
    if (rows == 0 || n == 0 || n > INT32_MAX)
        return keel_fail(KEEL_INVALID, "%s: %u rows of %u", name, rows, n);
    return KEEL_OK;
}

enum keel_status keel_op_softmax(struct keel_kernels *kernels, const struct keel_softmax *op,
                                 struct keel_launch_list *list)
{
    const uint64_t bytes = KEEL_BYTES(op->rows, op->n, sizeof(float));
    KEEL_TRY(check_rows("softmax", op->rows, op->n));
    KEEL_TRY(KEEL_CHECK_OPERANDS("softmax", {"x", op->x, bytes, KEEL_IN_PLACE},
                                 {"y", op->y, bytes, KEEL_WRITTEN | KEEL_IN_PLACE}));
    return keel_kernels_launch_rows(kernels, list, KEEL_MODULE_row, "keel_softmax", op->rows,
                                    KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_buffer(op->y),
                                              keel_arg_u32(op->rows), keel_arg_u32(op->n),
                                              keel_arg_u32(keel_kernels_item_rows(kernels, op->n))));
}

enum keel_status keel_op_softmax_grad(struct keel_kernels *kernels, const struct keel_softmax_grad *op,
                                      struct keel_launch_list *list)
{
    const uint64_t bytes = KEEL_BYTES(op->rows, op->n, sizeof(float));
    KEEL_TRY(check_rows("softmax_grad", op->rows, op->n));
    KEEL_TRY(KEEL_CHECK_OPERANDS("softmax_grad", {"y", op->y, bytes, KEEL_READ},
                                 {"dy", op->dy, bytes, KEEL_IN_PLACE},
                                 {"dx", op->dx, bytes, KEEL_WRITTEN | KEEL_IN_PLACE}));
    return keel_kernels_launch_rows(kernels, list, KEEL_MODULE_row, "keel_softmax_grad", op->rows,
                                    KEEL_ARGS(keel_arg_buffer(op->y), keel_arg_buffer(op->dy),
                                              keel_arg_buffer(op->dx), keel_arg_u32(op->rows),
                                              keel_arg_u32(op->n),
                                              keel_arg_u32(keel_kernels_item_rows(kernels, op->n))));
}

static enum keel_status check_top_k(const char *name, uint32_t rows, uint32_t n, uint32_t k)
{
    KEEL_TRY(check_rows(name, rows, n));
    return k == 0 || k > n ? keel_fail(KEEL_INVALID, "%s: %u of rows of %u", name, k, n) : KEEL_OK;
}

enum keel_status keel_op_top_k(struct keel_kernels *kernels, const struct keel_top_k *op,
                               struct keel_launch_list *list)
{
    const uint64_t taken_bytes = KEEL_BYTES(op->rows, op->k, sizeof(float));
    KEEL_TRY(check_top_k("top_k", op->rows, op->n, op->k));
    KEEL_TRY(KEEL_CHECK_OPERANDS("top_k", {"x", op->x, KEEL_BYTES(op->rows, op->n, sizeof(float)), KEEL_READ},
                                 {"values", op->values, taken_bytes, KEEL_WRITTEN | KEEL_OPTIONAL},
                                 {"indices", op->indices, taken_bytes, KEEL_WRITTEN}));
    return keel_kernels_launch_rows(
        kernels, list, KEEL_MODULE_row, "keel_top_k", op->rows,
        KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_either(op->values, op->indices),
                  keel_arg_buffer(op->indices), keel_arg_u32(op->rows), keel_arg_u32(op->n),
                  keel_arg_u32(op->k), keel_arg_u32(op->values != NULL),
                  keel_arg_u32(keel_kernels_item_rows(kernels, op->n))));
}

enum keel_status keel_op_top_k_grad(struct keel_kernels *kernels, const struct keel_top_k_grad *op,
                                    struct keel_launch_list *list)
{
    const uint64_t taken_bytes = KEEL_BYTES(op->rows, op->k, sizeof(float));
    KEEL_TRY(check_top_k("top_k_grad", op->rows, op->n, op->k));
    KEEL_TRY(KEEL_CHECK_OPERANDS("top_k_grad", {"indices", op->indices, taken_bytes, KEEL_READ},
                                 {"dvalues", op->dvalues, taken_bytes, KEEL_READ},
                                 {"dx", op->dx, KEEL_BYTES(op->rows, op->n, sizeof(float)), KEEL_WRITTEN}));
    return keel_kernels_launch_rows(kernels, list, KEEL_MODULE_row, "keel_top_k_grad", op->rows,
                                    KEEL_ARGS(keel_arg_buffer(op->indices), keel_arg_buffer(op->dvalues),
                                              keel_arg_buffer(op->dx), keel_arg_u32(op->rows),
                                              keel_arg_u32(op->n), keel_arg_u32(op->k),
                                              keel_arg_u32(keel_kernels_item_rows(kernels, op->n))));
}

enum keel_status keel_op_cumsum(struct keel_kernels *kernels, const struct keel_cumsum *op,
                                struct keel_launch_list *list)
{
    const uint64_t bytes = KEEL_BYTES(op->rows, op->n, sizeof(float));
    KEEL_TRY(check_rows("cumsum", op->rows, op->n));
    KEEL_TRY(KEEL_CHECK_OPERANDS("cumsum", {"x", op->x, bytes, KEEL_IN_PLACE},
                                 {"y", op->y, bytes, KEEL_WRITTEN | KEEL_IN_PLACE}));
    return keel_kernels_launch_rows(
        kernels, list, KEEL_MODULE_row, "keel_cumsum", op->rows,
        KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_buffer(op->y), keel_arg_u32(op->rows), keel_arg_u32(op->n),
                  keel_arg_u32(op->reverse), keel_arg_u32(keel_kernels_item_rows(kernels, op->n))));
}
