/* cross_entropy.cl - mean cross-entropy of softmax(logits) and its gradient.
 *
 * For each row: m = max(x); e_j = exp(x_j - m); s = sum(e)
 *     row_loss = (log(s) + m) - x_target
 *     dlogits_j = (e_j * (1 / s) - onehot_j) * scale
 *     loss[0] = loss[0] + scale * sum(row_loss)
 * with dlogits_j times the power of two of loss_scale, where there is one (optimizer_ops.h)
 *
 * Shapes: logits, dlogits [rows, vocab], may be one buffer; targets, row_loss [rows]. Sums are the tree
 * of canon_tree.h; the sum over rows is that of a whole tensor, its levels kept in row_loss. One
 * work-item takes a row and goes over it three times, the last two out of the cache of a core: maximum;
 * exponentials, kept in dlogits, and their sum; scaling. No tunables. */

/* max of a run; NaN are passed over here and come back through the sum. */
static inline float row_max(__global const float *x, uint n)
{
    float16 m = (float16)(x[0]);
    uint i = 0;
    for (; i + 16 <= n; i += 16) {
        float16 v = vload16(0, x + i);
        m = v > m ? v : m;
    }
    float r = canon_fold_max(m);
    for (; i < n; i++)
        r = x[i] > r ? x[i] : r;
    return r;
}

__kernel void keel_cross_entropy(__global const float *logits, __global const int *targets,
                                 __global float *row_loss, __global float *dlogits, uint rows, uint vocab,
                                 float scale, uint has_gradient, __global const float *loss_scale,
                                 uint has_scale)
{
    const uint row = get_global_id(0);
    if (row >= rows)
        return;
    __global const float *x = logits + (ulong)row * vocab;
    __global float *d = dlogits + (ulong)row * vocab;
    const int target = targets[row];
    const float at_target = x[target], m = row_max(x, vocab);
    float16 lanes = (float16)(0.0f);
    for (uint i = 0; i < vocab; i += 16) {
        const uint left = vocab - i;
        float16 e = canon_exp_x16(canon_load(x + i, left) - m);
        if (left < 16)
            e = canon_mask(e, left);
        lanes += e;
        if (has_gradient)
            canon_store(e, d + i, left);
    }
    const float s = canon_fold(lanes);
    row_loss[row] = (canon_log(s) + m) - at_target;
    if (!has_gradient)
        return;
    const float share = canon_divide(1.0f, s);
    if (has_scale)
        scale = scale * canon_power_of_two(loss_scale[0]);
    const float e_target = d[target];
    for (uint i = 0; i < vocab; i += 16)
        canon_store((canon_load(d + i, vocab - i) * share) * scale, d + i, vocab - i);
    d[target] = (e_target * share - 1.0f) * scale;
}

/* One work-item: the tree over row_loss, in place level by level (block b lies behind what is read). */
__kernel void keel_cross_entropy_loss(__global float *row_loss, __global float *loss, uint rows, float scale)
{
    if (get_global_id(0) != 0)
        return;
    do {
        uint blocks = 0;
        for (uint start = 0; start < rows; start += min(rows - start, (uint)4096))
            row_loss[blocks++] = canon_sum_run(row_loss + start, min(rows - start, (uint)4096));
        rows = blocks;
    } while (rows > 1);
    loss[0] = loss[0] + scale * row_loss[0];
}
