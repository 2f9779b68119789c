/* elementwise.cl - operations where element i of the result depends on element i of the arguments.
 *
 *     add        y = a + b
 *     multiply   y = a * b
 *     bias       y = x + bias, that of its column
 *     gelu       y = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))     (canon_gelu)
 *     gelu_grad  dx = dy * gelu'(x)                                      (canon_gelu_slope)
 *     fill       y = value
 *     copy       y = x, bit by bit
 *
 * Shapes: flat arrays of `count`. A work-item takes `block` consecutive elements, a multiple of 16;
 * block is the one tunable and changes no bit, since there is no sum. */

__kernel void keel_add(__global const float *a, __global const float *b, __global float *y, ulong count,
                       uint block)
{
    CANON_ELEMENTS(vstore16(vload16(0, a + i) + vload16(0, b + i), 0, y + i), y[i] = a[i] + b[i])
}

__kernel void keel_multiply(__global const float *a, __global const float *b, __global float *y, ulong count,
                            uint block)
{
    CANON_ELEMENTS(vstore16(vload16(0, a + i) * vload16(0, b + i), 0, y + i), y[i] = a[i] * b[i])
}

/* The bias of a column, which goes on to the next one. */
CANON_INLINE float bias_of(__global const float *bias, uint n, uint *column)
{
    const float b = bias[*column];
    *column = *column + 1 == n ? 0 : *column + 1;
    return b;
}
CANON_INLINE float16 bias_of_16(__global const float *bias, uint n, uint *column)
{
    if (n - *column >= 16) {
        const float16 b = vload16(0, bias + *column);
        *column = n - *column == 16 ? 0 : *column + 16;
        return b;
    }
    float lanes[16]; /* of the end of a row and what follows */
    for (uint l = 0; l < 16; l++)
        lanes[l] = bias_of(bias, n, column);
    return vload16(0, lanes);
}

__kernel void keel_bias(__global const float *x, __global const float *bias, __global float *y, ulong count,
                        uint n, uint block)
{
    uint column = (uint)((ulong)get_global_id(0) * block % n);
    CANON_ELEMENTS(vstore16(vload16(0, x + i) + bias_of_16(bias, n, &column), 0, y + i),
                   y[i] = x[i] + bias_of(bias, n, &column))
}

__kernel void keel_gelu(__global const float *x, __global float *y, ulong count, uint block)
{
    CANON_ELEMENTS(vstore16(canon_gelu_x16(vload16(0, x + i)), 0, y + i), y[i] = canon_gelu(x[i]))
}

__kernel void keel_gelu_grad(__global const float *x, __global const float *dy, __global float *dx,
                             ulong count, uint block)
{
    CANON_ELEMENTS(vstore16(vload16(0, dy + i) * canon_gelu_slope_x16(vload16(0, x + i)), 0, dx + i),
                   dx[i] = dy[i] * canon_gelu_slope(x[i]))
}

__kernel void keel_fill(__global float *y, ulong count, float value, uint block)
{
    CANON_ELEMENTS(vstore16((float16)(value), 0, y + i), y[i] = value)
}

__kernel void keel_copy(__global const uint *x, __global uint *y, ulong count, uint block)
{
    CANON_ELEMENTS(vstore16(vload16(0, x + i), 0, y + i), y[i] = x[i])
}
