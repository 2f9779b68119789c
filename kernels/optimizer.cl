/* optimizer.cl - the norm of a gradient, and AdamW (Loshchilov and Hutter 2019).
 *
 * norm:  block_squares  scratch[b] = sum of x^2 over block b of 4096 elements, by fma in 16 lanes
 *        block_sums     the same for a run of sums, without squares, until one is left
 *        norm_finish    norm[0] = sqrt(sum), norm[1] = 1, or max_norm / norm[0] where that is less than
 *                       1, or 0 when norm[0] is not finite
 * adamw, with g the clipped gradient and all in this order:
 *        g = grad * norm[1]
 *        m = flush(fma(beta1, m, (1 - beta1) * g))
 *        v = flush(fma(beta2, v, ((1 - beta2) * g) * g))
 *        u = (m * (1 / bias1)) / (sqrt(v * (1 / bias2)) + epsilon)
 *        w = fma(-learning_rate, fma(weight_decay, w, u), w)
 *     When norm[1] is 0 the step was refused: w, m and v stay as they are.
 * statistic: w = fma(momentum, mean - w, w), unless norm[1] is 0
 *
 * Shapes: flat arrays of `count`. Division and square root are the canonical ones; flush makes denormals
 * zero, so that moments that fade cost no more than others. The tree is that of canon_tree.h. Tunable:
 * block of adamw, elements per work-item (a multiple of 16), changes no bit.
 * control: struct keel_control as floats, 4 learning_rate, 5 beta1, 6 beta2, 7 bias1, 8 bias2,
 * 9 epsilon, 10 max_norm. */

__kernel void keel_block_squares(__global const float *x, __global float *scratch, ulong count)
{
    const ulong start = (ulong)get_global_id(0) * 4096;
    if (start >= count)
        return;
    const uint n = (uint)min(count - start, (ulong)4096);
    x += start;
    float16 s = (float16)(0.0f);
    uint i = 0;
    for (; i + 16 <= n; i += 16) {
        float16 v = vload16(0, x + i);
        s = fma(v, v, s);
    }
    if (i < n) {
        float16 v = canon_load(x + i, n - i);
        s = fma(v, v, s);
    }
    scratch[get_global_id(0)] = canon_fold(s);
}

__kernel void keel_block_sums(__global float *scratch, ulong from, ulong to, ulong count)
{
    const ulong start = (ulong)get_global_id(0) * 4096;
    if (start < count)
        scratch[to + get_global_id(0)] =
            canon_sum_run(scratch + from + start, (uint)min(count - start, (ulong)4096));
}

__kernel void keel_norm_finish(__global const float *scratch, ulong last, __global const float *control,
                               __global float *norm)
{
    if (get_global_id(0) != 0)
        return;
    const float value = canon_sqrt(scratch[last]), max_norm = control[10];
    float factor = max_norm > 0.0f && value > max_norm ? canon_divide(max_norm, value) : 1.0f;
    norm[0] = value;
    norm[1] = (as_uint(value) & 0x7f800000u) == 0x7f800000u ? 0.0f : factor;
}

__kernel void keel_adamw(__global float *w, __global const float *grad, __global float *m, __global float *v,
                         __global const float *norm, __global const float *control, ulong count, uint block,
                         float weight_decay)
{
    const float factor = norm[1];
    const float rate = control[4], beta1 = control[5], beta2 = control[6], epsilon = control[9];
    const float rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
    const float scale1 = canon_divide(1.0f, control[7]), scale2 = canon_divide(1.0f, control[8]);
    ulong i = (ulong)get_global_id(0) * block;
    const ulong end = factor == 0.0f ? i : min(i + block, count);
    for (; i < end; i += 16) {
        const uint n = (uint)min(end - i, (ulong)16);
        float16 g = canon_load(grad + i, n) * factor;
        float16 first = canon_load(m + i, n), second = canon_load(v + i, n), x = canon_load(w + i, n);
        first = canon_flush_x16(fma((float16)(beta1), first, rest1 * g));
        second = canon_flush_x16(fma((float16)(beta2), second, (rest2 * g) * g));
        float16 u = canon_divide_x16(first * scale1, canon_sqrt_x16(second * scale2) + epsilon);
        x = fma((float16)(-rate), fma((float16)(weight_decay), x, u), x);
        canon_store(first, m + i, n);
        canon_store(second, v + i, n);
        canon_store(x, w + i, n);
    }
}

__kernel void keel_statistic(__global float *w, __global const float *mean, __global const float *norm,
                             ulong count, float momentum)
{
    const ulong i = get_global_id(0);
    if (i < count && norm[1] != 0.0f)
        w[i] = fma(momentum, mean[i] - w[i], w[i]);
}
