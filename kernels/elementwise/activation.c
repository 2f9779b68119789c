/* activation.c - functions of one value and their gradients: descriptors to launches. The kernels are in
 * activation.cl. */
#include "kernels_internal.h"

static const struct activation {
    const char *op, *grad, *kernel, *grad_kernel;
} activations[KEEL_ACTIVATION_COUNT] = {
    [KEEL_RELU] = {"relu", "relu_grad", "keel_relu", "keel_relu_grad"},
    [KEEL_TANH] = {"tanh", "tanh_grad", "keel_tanh", "keel_tanh_grad"},
    [KEEL_SIGMOID] = {"sigmoid", "sigmoid_grad", "keel_sigmoid", "keel_sigmoid_grad"},
    [KEEL_SILU] = {"silu", "silu_grad", "keel_silu", "keel_silu_grad"},
};

/* NULL, and the failure described, when there is none of this number. */
static const struct activation *find(enum keel_activation_kind kind)
{
    if ((unsigned)kind < KEEL_ACTIVATION_COUNT)
        return &activations[kind];
    keel_fail(KEEL_INVALID, "activation: no function has number %u", (unsigned)kind);
    return NULL;
}

enum keel_status keel_op_activation(struct keel_kernels *kernels, const struct keel_activation *op,
                                    struct keel_launch_list *list)
{
    const struct activation *of = find(op->kind);
    if (of == NULL)
        return KEEL_INVALID;
    KEEL_TRY(KEEL_APART(of->op, {"x", op->x, KEEL_IN_PLACE}, {"y", op->y, KEEL_WRITTEN | KEEL_IN_PLACE}));
    KEEL_TRY(keel_check_buffer(of->op, "x", op->x, KEEL_BYTES(op->count, sizeof(float))));
    KEEL_TRY(keel_check_buffer(of->op, "y", op->y, KEEL_BYTES(op->count, sizeof(float))));
    const struct keel_arg args[] = {
        keel_arg_buffer(op->x),
        keel_arg_buffer(op->y),
        keel_arg_u64(op->count),
        keel_arg_u32(keel_kernels_item_elements(kernels)),
    };
    return keel_kernels_launch_flat(kernels, list, KEEL_MODULE_activation, of->kernel, op->count, args,
                                    KEEL_ARG_COUNT(args));
}

enum keel_status keel_op_activation_grad(struct keel_kernels *kernels, const struct keel_activation_grad *op,
                                         struct keel_launch_list *list)
{
    const struct activation *of = find(op->kind);
    if (of == NULL)
        return KEEL_INVALID;
    KEEL_TRY(KEEL_APART(of->grad, {"x", op->x, KEEL_READ}, {"dy", op->dy, KEEL_IN_PLACE},
                        {"dx", op->dx, KEEL_WRITTEN | KEEL_IN_PLACE}));
    KEEL_TRY(keel_check_buffer(of->grad, "x", op->x, KEEL_BYTES(op->count, sizeof(float))));
    KEEL_TRY(keel_check_buffer(of->grad, "dy", op->dy, KEEL_BYTES(op->count, sizeof(float))));
    KEEL_TRY(keel_check_buffer(of->grad, "dx", op->dx, KEEL_BYTES(op->count, sizeof(float))));
    const struct keel_arg args[] = {
        keel_arg_buffer(op->x),
        keel_arg_buffer(op->dy),
        keel_arg_buffer(op->dx),
        keel_arg_u64(op->count),
        keel_arg_u32(keel_kernels_item_elements(kernels)),
    };
    return keel_kernels_launch_flat(kernels, list, KEEL_MODULE_activation, of->grad_kernel, op->count, args,
                                    KEEL_ARG_COUNT(args));
}

enum keel_status keel_op_swiglu(struct keel_kernels *kernels, const struct keel_swiglu *op,
                                struct keel_launch_list *list)
{
    KEEL_TRY(KEEL_APART("swiglu", {"a", op->a, KEEL_IN_PLACE}, {"b", op->b, KEEL_IN_PLACE},
                        {"y", op->y, KEEL_WRITTEN | KEEL_IN_PLACE}));
    KEEL_TRY(keel_check_buffer("swiglu", "a", op->a, KEEL_BYTES(op->count, sizeof(float))));
    KEEL_TRY(keel_check_buffer("swiglu", "b", op->b, KEEL_BYTES(op->count, sizeof(float))));
    KEEL_TRY(keel_check_buffer("swiglu", "y", op->y, KEEL_BYTES(op->count, sizeof(float))));
    const struct keel_arg args[] = {
        keel_arg_buffer(op->a),
        keel_arg_buffer(op->b),
        keel_arg_buffer(op->y),
        keel_arg_u64(op->count),
        keel_arg_u32(keel_kernels_item_elements(kernels)),
    };
    return keel_kernels_launch_flat(kernels, list, KEEL_MODULE_activation, "keel_swiglu", op->count, args,
                                    KEEL_ARG_COUNT(args));
}

enum keel_status keel_op_swiglu_grad(struct keel_kernels *kernels, const struct keel_swiglu_grad *op,
                                     struct keel_launch_list *list)
{
    const struct {
        const char *name;
        struct keel_buffer *buffer;
    } operands[] = {{"a", op->a}, {"b", op->b}, {"dy", op->dy}, {"da", op->da}, {"db", op->db}};
    KEEL_TRY(KEEL_APART("swiglu_grad", {"a", op->a, KEEL_IN_PLACE}, {"b", op->b, KEEL_IN_PLACE},
                        {"dy", op->dy, KEEL_IN_PLACE}, {"da", op->da, KEEL_WRITTEN | KEEL_IN_PLACE},
                        {"db", op->db, KEEL_WRITTEN | KEEL_IN_PLACE}));
    for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++)
        KEEL_TRY(keel_check_buffer("swiglu_grad", operands[i].name, operands[i].buffer,
                                   KEEL_BYTES(op->count, sizeof(float))));
    const struct keel_arg args[] = {
        keel_arg_buffer(op->a),
        keel_arg_buffer(op->b),
        keel_arg_buffer(op->dy),
        keel_arg_buffer(op->da),
        keel_arg_buffer(op->db),
        keel_arg_u64(op->count),
        keel_arg_u32(keel_kernels_item_elements(kernels)),
    };
    return keel_kernels_launch_flat(kernels, list, KEEL_MODULE_activation, "keel_swiglu_grad", op->count,
                                    args, KEEL_ARG_COUNT(args));
}
