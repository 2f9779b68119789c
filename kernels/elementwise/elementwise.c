/* elementwise.c - activations, SwiGLU, add, multiply, bias, fill, copy: descriptors to launches. The kernels
 * are in elementwise.cl. */
#include <keel/shape_ops.h>

#include "kernels_internal.h"

enum { OPERANDS_MAX = 5 };

/* Check operands of `count` floats each, and launch a kernel that takes them in this order, then the count
 * and the elements of a work-item. */
static enum keel_status launch(struct keel_kernels *kernels, struct keel_launch_list *list, const char *name,
                               const char *kernel, uint64_t count, struct keel_op_operand *operands,
                               uint32_t operand_count)
{
    struct keel_arg args[OPERANDS_MAX + 2];
    KEEL_ASSERT(operand_count <= OPERANDS_MAX);
    for (uint32_t i = 0; i < operand_count; i++) {
        operands[i].bytes = KEEL_BYTES(count, sizeof(float));
        args[i] = keel_arg_buffer(operands[i].buffer);
    }
    KEEL_TRY(keel_check_operands(name, operands, operand_count));
    args[operand_count] = keel_arg_u64(count);
    args[operand_count + 1] = keel_arg_u32(keel_kernels_item_elements(kernels));
    return keel_kernels_launch_flat(kernels, list, KEEL_MODULE_elementwise, kernel, count, args,
                                    operand_count + 2);
}
#define LAUNCH(kernels, list, name, kernel, count, ...)                                                      \
    launch(kernels, list, name, kernel, count, (struct keel_op_operand[]){__VA_ARGS__},                      \
           sizeof((struct keel_op_operand[]){__VA_ARGS__}) / sizeof(struct keel_op_operand))

static const struct activation {
    const char *name, *grad_name, *kernel, *grad_kernel;
    bool of_y;
} activations[KEEL_ACTIVATION_COUNT] = {
#define ROW(kind, name, value, slope, of, ...)                                                               \
    [kind] = {#name, #name "_grad", "keel_" #name, "keel_" #name "_grad", (of) == KEEL_GRADIENT_OF_Y},
    KEEL_ACTIVATION_TABLE(ROW)
#undef ROW
};

const char *keel_activation_name(enum keel_activation_kind kind)
{
    return (unsigned)kind < KEEL_ACTIVATION_COUNT ? activations[kind].name : NULL;
}

bool keel_activation_gradient_of_y(enum keel_activation_kind kind)
{
    KEEL_ASSERT((unsigned)kind < KEEL_ACTIVATION_COUNT);
    return activations[kind].of_y;
}

static enum keel_status check_kind(enum keel_activation_kind kind)
{
    return (unsigned)kind < KEEL_ACTIVATION_COUNT
               ? KEEL_OK
               : keel_fail(KEEL_INVALID, "activation: no function has number %u", (unsigned)kind);
}

enum keel_status keel_op_activation(struct keel_kernels *kernels, const struct keel_activation *op,
                                    struct keel_launch_list *list)
{
    KEEL_TRY(check_kind(op->kind));
    const struct activation *of = &activations[op->kind];
    return LAUNCH(kernels, list, of->name, of->kernel, op->count, {"x", op->x, 0, KEEL_IN_PLACE},
                  {"y", op->y, 0, KEEL_WRITTEN | KEEL_IN_PLACE});
}

enum keel_status keel_op_activation_grad(struct keel_kernels *kernels, const struct keel_activation_grad *op,
                                         struct keel_launch_list *list)
{
    KEEL_TRY(check_kind(op->kind));
    const struct activation *of = &activations[op->kind];
    return LAUNCH(kernels, list, of->grad_name, of->grad_kernel, op->count, {"x", op->x, 0, KEEL_READ},
                  {"dy", op->dy, 0, KEEL_IN_PLACE}, {"dx", op->dx, 0, KEEL_WRITTEN | KEEL_IN_PLACE});
}

enum keel_status keel_op_swiglu(struct keel_kernels *kernels, const struct keel_swiglu *op,
                                struct keel_launch_list *list)
{
    return LAUNCH(kernels, list, "swiglu", "keel_swiglu", op->count, {"a", op->a, 0, KEEL_IN_PLACE},
                  {"b", op->b, 0, KEEL_IN_PLACE}, {"y", op->y, 0, KEEL_WRITTEN | KEEL_IN_PLACE});
}

enum keel_status keel_op_swiglu_grad(struct keel_kernels *kernels, const struct keel_swiglu_grad *op,
                                     struct keel_launch_list *list)
{
    return LAUNCH(kernels, list, "swiglu_grad", "keel_swiglu_grad", op->count, {"a", op->a, 0, KEEL_IN_PLACE},
                  {"b", op->b, 0, KEEL_IN_PLACE}, {"dy", op->dy, 0, KEEL_IN_PLACE},
                  {"da", op->da, 0, KEEL_WRITTEN | KEEL_IN_PLACE},
                  {"db", op->db, 0, KEEL_WRITTEN | KEEL_IN_PLACE});
}

enum keel_status keel_op_add(struct keel_kernels *kernels, const struct keel_add *op,
                             struct keel_launch_list *list)
{
    return LAUNCH(kernels, list, "add", "keel_add", op->count, {"a", op->a, 0, KEEL_IN_PLACE},
                  {"b", op->b, 0, KEEL_IN_PLACE}, {"y", op->y, 0, KEEL_WRITTEN | KEEL_IN_PLACE});
}

enum keel_status keel_op_multiply(struct keel_kernels *kernels, const struct keel_multiply *op,
                                  struct keel_launch_list *list)
{
    if (op->count == 0)
        return keel_fail(KEEL_INVALID, "multiply: no elements");
    return LAUNCH(kernels, list, "multiply", "keel_multiply", op->count, {"a", op->a, 0, KEEL_IN_PLACE},
                  {"b", op->b, 0, KEEL_IN_PLACE}, {"y", op->y, 0, KEEL_WRITTEN | KEEL_IN_PLACE});
}

enum keel_status keel_op_copy(struct keel_kernels *kernels, const struct keel_copy *op,
                              struct keel_launch_list *list)
{
    return LAUNCH(kernels, list, "copy", "keel_copy", op->count, {"x", op->x, 0, KEEL_READ},
                  {"y", op->y, 0, KEEL_WRITTEN});
}

enum keel_status keel_op_bias(struct keel_kernels *kernels, const struct keel_bias *op,
                              struct keel_launch_list *list)
{
    const uint64_t count = KEEL_BYTES(op->rows, op->n), bytes = KEEL_BYTES(count, sizeof(float));
    if (count == 0 || op->rows > UINT64_MAX / sizeof(float) / op->n)
        return keel_fail(KEEL_INVALID, "bias: %llu rows of %u: none, or more than memory has bytes",
                         (unsigned long long)op->rows, op->n);
    KEEL_TRY(KEEL_CHECK_OPERANDS("bias", {"x", op->x, bytes, KEEL_IN_PLACE},
                                 {"bias", op->bias, KEEL_BYTES(op->n, sizeof(float)), KEEL_READ},
                                 {"y", op->y, bytes, KEEL_WRITTEN | KEEL_IN_PLACE}));
    return keel_kernels_launch_flat(kernels, list, KEEL_MODULE_elementwise, "keel_bias", count,
                                    KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_buffer(op->bias),
                                              keel_arg_buffer(op->y), keel_arg_u64(count),
                                              keel_arg_u32(op->n),
                                              keel_arg_u32(keel_kernels_item_elements(kernels))));
}

enum keel_status keel_op_fill(struct keel_kernels *kernels, const struct keel_fill *op,
                              struct keel_launch_list *list)
{
    KEEL_TRY(keel_check_buffer("fill", "y", op->y, KEEL_BYTES(op->count, sizeof(float))));
    return keel_kernels_launch_flat(kernels, list, KEEL_MODULE_elementwise, "keel_fill", op->count,
                                    KEEL_ARGS(keel_arg_buffer(op->y), keel_arg_u64(op->count),
                                              keel_arg_f32(op->value),
                                              keel_arg_u32(keel_kernels_item_elements(kernels))));
}
