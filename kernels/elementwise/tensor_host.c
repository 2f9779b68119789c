/* tensor_host.c - tensor.cl in C: the reference, and what the host device runs. */
#include <keel/tensor_ops.h>

#include "canon.h"
#include "kernels_internal.h"

extern const struct keel_packed_text keel_cl_tensor;

static inline float binary_of(uint32_t number, float a, float b, float dy)
{
    switch (number) {
#define CASES(kind, name, value, slope_a, slope_b, ...)                                                      \
    case KEEL_BINARY_RESULTS *kind + KEEL_BINARY_VALUE:                                                      \
        return value;                                                                                        \
    case KEEL_BINARY_RESULTS *kind + KEEL_BINARY_SLOPE_A:                                                    \
        return slope_a;                                                                                      \
    case KEEL_BINARY_RESULTS *kind + KEEL_BINARY_SLOPE_B:                                                    \
        return slope_b;
        KEEL_BINARY_TABLE(CASES) /* NOLINT(bugprone-branch-clone): rows may have equal slopes */
    default:
        return dy;
    }
}

KEEL_HOST_KERNEL static void host_binary(KEEL_HOST_ARGUMENTS)
{
    const float *a = arguments[0], *b = arguments[1], *dy = arguments[2];
    float *y = arguments[3];
    const uint32_t number = u32_at(arguments, 4), n1 = u32_at(arguments, 6), n2 = u32_at(arguments, 7),
                   n3 = u32_at(arguments, 8);
    for (uint32_t i = 0, count = u32_at(arguments, 5); i < count; i++) {
        const uint32_t place[KEEL_TENSOR_DIMS] = {i / n3 / n2 / n1, i / n3 / n2 % n1, i / n3 % n2, i % n3};
        uint32_t in_a = 0, in_b = 0;
        for (int d = 0; d < KEEL_TENSOR_DIMS; d++) {
            in_a += place[d] * u32_at(arguments, 9 + d);
            in_b += place[d] * u32_at(arguments, 13 + d);
        }
        y[i] = binary_of(number, a[in_a], b[in_b], number % KEEL_BINARY_RESULTS != 0 ? dy[i] : 0.0F);
    }
}

static float larger(float m, float x)
{
    return x > m || x != x ? (m != m ? m : x) : m;
}

static float finish(float result, uint32_t n, uint32_t kind)
{
    return kind == KEEL_REDUCE_MEAN ? canon_divide(result, (float)n) : result;
}

/* n elements, each `step` behind the one before. */
static float reduce_one(const float *x, uint32_t n, uint64_t step, uint32_t kind)
{
    float s = x[0];
    for (uint32_t j = 1; j < n; j++)
        s = kind == KEEL_REDUCE_MAXIMUM ? larger(s, x[j * step]) : s + x[j * step];
    return s;
}

static void host_reduce_rows(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0];
    float *y = arguments[1];
    const uint32_t n = u32_at(arguments, 3), kind = u32_at(arguments, 4);
    for (uint64_t row = 0, rows = u32_at(arguments, 2); row < rows; row++) {
        const float *from = x + row * n;
        y[row] = finish(kind == KEEL_REDUCE_MAXIMUM ? reduce_one(from, n, 1, kind) : canon_sum_run(from, n),
                        n, kind);
    }
}

static void host_reduce_columns(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0];
    float *y = arguments[1];
    const uint32_t n = u32_at(arguments, 3), inner = u32_at(arguments, 4), kind = u32_at(arguments, 5);
    for (uint64_t o = 0, outer = u32_at(arguments, 2); o < outer; o++)
        for (uint64_t i = 0; i < inner; i++)
            y[o * inner + i] = finish(reduce_one(x + o * n * inner + i, n, inner, kind), n, kind);
}

KEEL_HOST_KERNEL static void host_scale(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0];
    float *y = arguments[1];
    const float factor = f32_at(arguments, 3), addend = f32_at(arguments, 4);
    for (uint64_t i = 0, count = u64_at(arguments, 2); i < count; i++)
        y[i] = canon_fma(x[i], factor, addend);
}

static const struct keel_module_kernel tensor_kernels[] = {
    {"keel_binary", host_binary},
    {"keel_reduce_rows", host_reduce_rows},
    {"keel_reduce_columns", host_reduce_columns},
    {"keel_scale", host_scale},
};

const struct keel_module keel_module_tensor = KEEL_MODULE("tensor", keel_cl_tensor, tensor_kernels);
