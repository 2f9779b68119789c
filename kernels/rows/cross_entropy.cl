/* cross_entropy.cl - mean cross-entropy of softmax(logits) and its gradient.
 *
 * For each row: m = max(x); e_j = exp(x_j - m); s = sum(e)
 *     row_loss = (log(s) + m) - x_target
 *     dlogits_j = (e_j * (1 / s) - onehot_j) * scale
 *     loss[0] = loss[0] + scale * sum(row_loss)
 * with dlogits_j times the power of two of loss_scale, where there is one (optimizer_ops.h)
 *
 * Slices of the vocabulary: s is their sums, each a run of its own, added in the tree over slices. Where several
 * devices have slices each, three kernels do the same in turn, with the bits of the one:
 *     cross_entropy_max   m of a device's columns, and the bits of x_target, 0 where the target is not among them;
 *                         m is then the largest of all devices, x_target the sum of the bits
 *     cross_entropy_part  e of the columns of a node of the tree, and their sum; s is then that of all nodes
 *     cross_entropy_end   row_loss, and dlogits from e
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

static struct stages stages_from(const struct stages *s, uint column)
{
    struct stages at = *s;
    at.fresh += column;
    at.x += column;
    at.e += column;
    at.d += column;
    return at;
}

__kernel void keel_cross_entropy(__global const float *logits, __global const int *targets,
                                 __global float *row_loss, __global float *dlogits, uint rows, uint vocab,
                                 float scale, uint has_gradient, __global const float *loss_scale,
                                 uint has_scale, uint slices, uint units, uint unit, uint rows_per_item)
{
    const uint count = slices == 0 ? 1 : slices & 255;
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
        float16 largest = (float16)(look ? s.fresh[0] : 0.0f);
        struct canon_waiting sums = {.count = 0};
        for (uint i = 0; i < count; i++) {
            const uint begin = slices == 0 ? 0 : canon_slice_begin(slices, units, unit, i);
            const uint columns = (slices == 0 ? vocab : canon_slice_begin(slices, units, unit, i + 1)) - begin;
            const struct stages part = stages_from(&s, begin);
            float16 lanes = (float16)(0.0f);
            if (look && raise && scaling)
                sweep(&part, columns, true, true, true, true, &largest, &lanes);
            else
                sweep(&part, columns, look, raise, has_gradient, scaling, &largest, &lanes);
            canon_give(&sums, canon_fold(lanes));
        }
        if (scaled_target < vocab)
            s.d[scaled_target] = (e_target * s.share - 1.0f) * s.scale;
        if (raise) {
            const float sum = canon_take(&sums);
            row_loss[row - 1] = (canon_log(sum) + s.m) - at_target;
            s.share = canon_divide(1.0f, (uint)targets[row - 1] < vocab ? sum : NAN);
        }
        s.m = canon_fold_max(largest);
        at_target = next_at_target;
    }
}

/* logits, of `columns` a row, are columns [first_column, first_column + columns) of the vocabulary. */
__kernel void keel_cross_entropy_max(__global const float *logits, __global const int *targets,
                                     __global float *maxima, __global int *target_bits, uint rows, uint columns,
                                     uint first_column, uint rows_per_item)
{
    const uint first = get_global_id(0) * rows_per_item, end = min(first + rows_per_item, rows);
    for (uint row = first; row < end; row++) {
        struct stages s = {.fresh = logits + (ulong)row * columns};
        const uint target = (uint)targets[row] - first_column;
        float16 lanes = (float16)(0.0f), largest = (float16)(s.fresh[0]);
        sweep(&s, columns, true, false, false, false, &largest, &lanes);
        maxima[row] = canon_fold_max(largest);
        target_bits[row] = target < columns ? as_int(s.fresh[target]) : 0;
    }
}

/* Columns from `at` on, those of the slices. */
__kernel void keel_cross_entropy_part(__global const float *logits, __global const float *maxima,
                                      __global float *sums, __global float *exponentials, uint rows, uint columns,
                                      uint at, uint slices, uint units, uint unit, uint keep, uint rows_per_item)
{
    const uint first = get_global_id(0) * rows_per_item, end = min(first + rows_per_item, rows);
    for (uint row = first; row < end; row++) {
        const ulong from = (ulong)row * columns + at;
        const struct stages all = {.x = logits + from, .e = exponentials + from, .m = maxima[row]};
        struct canon_waiting waiting = {.count = 0};
        for (uint i = 0; i < (slices & 255); i++) {
            const uint begin = canon_slice_begin(slices, units, unit, i);
            const struct stages s = stages_from(&all, begin);
            float16 lanes = (float16)(0.0f), largest;
            sweep(&s, canon_slice_begin(slices, units, unit, i + 1) - begin, false, true, keep, false, &largest,
                  &lanes);
            canon_give(&waiting, canon_fold(lanes));
        }
        sums[row] = canon_take(&waiting);
    }
}

/* dlogits are the exponentials at first. */
__kernel void keel_cross_entropy_end(__global const float *maxima, __global const float *sums,
                                     __global const int *target_bits, __global const int *targets,
                                     __global float *row_loss, __global float *dlogits, uint rows, uint columns,
                                     uint first_column, uint vocab, float scale, uint has_gradient,
                                     __global const float *loss_scale, uint has_scale, uint rows_per_item)
{
    const uint first = get_global_id(0) * rows_per_item, end = min(first + rows_per_item, rows);
    struct stages s = {.scale = has_scale ? scale * canon_power_of_two(loss_scale[0]) : scale};
    for (uint row = first; row < end; row++) {
        const bool known = (uint)targets[row] < vocab;
        const uint target = (uint)targets[row] - first_column;
        row_loss[row] = (canon_log(sums[row]) + maxima[row]) - (known ? as_float(target_bits[row]) : NAN);
        if (!has_gradient)
            continue;
        float16 lanes = (float16)(0.0f), largest;
        s.d = dlogits + (ulong)row * columns;
        s.share = canon_divide(1.0f, known ? sums[row] : NAN);
        const float e_target = known && target < columns ? s.d[target] : 0.0f;
        sweep(&s, columns, false, false, false, true, &largest, &lanes);
        if (known && target < columns)
            s.d[target] = (e_target * s.share - 1.0f) * s.scale;
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
