/* activation_table.h - the functions of one value that have a gradient, one row each. C and OpenCL C read it:
 * to add a function, write a row here and its two functions in kernels/common/canon_math.h
 * (kernels/README.md).
 *
 *     kind         of struct keel_activation
 *     name         in messages and dumps
 *     kernel       y = f(x), and f
 *     gradient     dx = g(v, dy), and g; v is x or, where `of` is KEEL_GRADIENT_OF_Y, x or y alike */
#ifndef KEEL_ACTIVATION_TABLE_H
#define KEEL_ACTIVATION_TABLE_H

#define KEEL_ACTIVATION_TABLE(X)                                                                             \
    X(KEEL_RELU, "relu", keel_relu, canon_relu, keel_relu_grad, canon_relu_grad, KEEL_GRADIENT_OF_Y)         \
    X(KEEL_TANH, "tanh", keel_tanh, canon_tanh, keel_tanh_grad, canon_tanh_grad, KEEL_GRADIENT_OF_X)         \
    X(KEEL_SIGMOID, "sigmoid", keel_sigmoid, canon_sigmoid, keel_sigmoid_grad, canon_sigmoid_grad,           \
      KEEL_GRADIENT_OF_X)                                                                                    \
    X(KEEL_SILU, "silu", keel_silu, canon_silu, keel_silu_grad, canon_silu_grad, KEEL_GRADIENT_OF_X)         \
    X(KEEL_GELU, "gelu", keel_gelu, canon_gelu, keel_gelu_grad, canon_gelu_grad, KEEL_GRADIENT_OF_X)

#endif
