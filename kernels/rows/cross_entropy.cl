/* cross_entropy.cl - mean cross-entropy of softmax(logits) and its gradient.
 *
 * For each row: m = max(x); e_j = exp(x_j - m); s = sum(e)
 *     row_loss = (log(s) + m) - x_target
 *     dlogits_j = (e_j * (1 / s) - onehot_j) * scale
 *     loss[0] = loss[0] + scale * sum(row_loss)
 * with dlogits_j times the power of two of loss_scale, where there is one (optimizer_ops.h)
 *
 * A target outside [0, vocab) reads and writes nothing: its row's loss and dlogits become NaN.
 *
 * Shapes: logits, dlogits [rows, vocab], may be one buffer; targets, row_loss [rows]. Sums are the tree
 * of canon_tree.h; the sum over rows is that of a whole tensor, its levels kept in row_loss. A row
 * is gone over three times: maximum; exponentials, kept in dlogits, and their sum; scaling. A work-item takes
 * neighbouring rows, three at once and each at another of these, so that one comes from memory while another
 * is computed and a third leaves a core's cache. Rows to a work-item change no bit. */

struct stages {
    __global const float *fresh;   /* its maximum is looked for; NaN are passed over and come back by the sum */
    __global const float *x;       /* its exponentials go to e */
    __global float *e, *d;         /* d, the e of the turn before, is scaled */
    float m, share, scale;
};
enum { AHEAD = 512 }; /* prefetchers stop at the end of a page, and there are many in a row */

/* Columns [i, i + 16), of which `left` are there: 16 but in the last. Which of the three stages there are: */
CANON_INLINE void advance(const struct stages *s, uint i, const uint left, bool look, bool raise, bool keep,
                          bool scaling, float16 *largest, float16 *lanes)
{
    if (look) {
        CANON_FETCH(s->fresh + i + AHEAD);
        const float16 v = canon_load(s->fresh + i, left);
        const float16 there = left < 16 ? canon_first(v, *largest, left) : v;
        *largest = there > *largest ? there : *largest;
    }
    if (raise) {
        float16 e = canon_exp_below(canon_load(s->x + i, left) - s->m);
        e = left < 16 ? canon_mask(e, left) : e;
        *lanes += e;
        if (keep)
            canon_store(e, s->e + i, left);
    }
    if (scaling)
        canon_store((canon_load(s->d + i, left) * s->share) * s->scale, s->d + i, left);
}

CANON_INLINE void sweep(const struct stages *s, uint vocab, bool look, bool raise, bool keep, bool scaling,
                        float16 *largest, float16 *lanes)
{
    uint i = 0;
    for (; i + CANON_TURN <= vocab; i += CANON_TURN) {
        _Pragma("unroll") for (uint turn = 0; turn < CANON_TURN; turn += 16)
            advance(s, i + turn, 16, look, raise, keep, scaling, largest, lanes);
    }
    for (; i + 16 <= vocab; i += 16)
        advance(s, i, 16, look, raise, keep, scaling, largest, lanes);
    if (i < vocab)
        advance(s, i, vocab - i, look, raise, keep, scaling, largest, lanes);
}

__kernel void keel_cross_entropy(__global const float *logits, __global const int *targets,
                                 __global float *row_loss, __global float *dlogits, uint rows, uint vocab,
                                 float scale, uint has_gradient, __global const float *loss_scale,
                                 uint has_scale, uint rows_per_item)
{
    const uint first = get_global_id(0) * rows_per_item, end = min(first + rows_per_item, rows);
    if (first >= rows)
        return;
    struct stages s = {.scale = has_scale ? scale * canon_power_of_two(loss_scale[0]) : scale};
    float at_target = 0.0f, next_at_target = 0.0f;
    for (uint row = first; row < end + 1 + has_gradient; row++) {
        const bool look = row < end, raise = row > first && row <= end;
        const bool scaling = has_gradient && row > first + 1;
        s.fresh = logits + (ulong)row * vocab;
        s.x = s.fresh - vocab;
        s.d = scaling ? dlogits + (ulong)(row - 2) * vocab : dlogits;
        s.e = raise ? dlogits + (ulong)(row - 1) * vocab : dlogits;
        const uint scaled_target = scaling ? (uint)targets[row - 2] : vocab;
        const float e_target = scaled_target < vocab ? s.d[scaled_target] : 0.0f;
        if (look)
            next_at_target = (uint)targets[row] < vocab ? s.fresh[targets[row]] : NAN;
        float16 lanes = (float16)(0.0f), largest = (float16)(look ? s.fresh[0] : 0.0f);
        if (look && raise && scaling)
            sweep(&s, vocab, true, true, true, true, &largest, &lanes);
        else
            sweep(&s, vocab, look, raise, has_gradient, scaling, &largest, &lanes);
        if (scaled_target < vocab)
            s.d[scaled_target] = (e_target * s.share - 1.0f) * s.scale;
        if (raise) {
            const float sum = canon_fold(lanes);
            row_loss[row - 1] = (canon_log(sum) + s.m) - at_target;
            s.share = canon_divide(1.0f, (uint)targets[row - 1] < vocab ? sum : NAN);
        }
        s.m = canon_fold_max(largest);
        at_target = next_at_target;
    }
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
