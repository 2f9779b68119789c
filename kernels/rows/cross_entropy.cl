/* cross_entropy.cl - mean cross-entropy of softmax(logits) and its gradient.
 *
 * For each row: m = max(x); e_j = exp(x_j - m); s = sum(e)
 *     row_loss = (log(s) + m) - x_target
 *     dlogits_j = (e_j * (1 / s) - onehot_j) * scale
 *     loss[0] = loss[0] + scale * sum(row_loss)
 * With label smoothing t, hit = 1 - t and uniform = t / vocab (Szegedy et al. 2016), the target is mixed with all:
 *     row_loss = (log(s) + m) - (uniform * sum(x) + hit * x_target), by fma; sum(x) is a run
 *     dlogits_j = ((e_j * (1 / s) - uniform) - hit * onehot_j) * scale, hit + uniform rounded first at the target
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
 * is computed and a third leaves a core's cache. Rows to a work-item change no bit. Where lanes are many a group has a
 * row, one stage after the other; the kernels of the three steps have sixteen work-items a row (canon_row.h). */

struct stages {
    __global const float *fresh;   /* its maximum is looked for; NaN are passed over and come back by the sum */
    __global const float *x;       /* its exponentials go to e */
    __global float *e, *d;         /* d, the e of the turn before, is scaled */
    float m, share, scale, uniform;
};
enum { AHEAD = 512 }; /* prefetchers stop at the end of a page, and there are many in a row */

/* Columns [i, i + 16), of which `left` are there: 16 but in the last. Which of the three stages there are: */
CANON_INLINE void advance(const struct stages *s, uint i, const uint left, bool look, bool raise, bool keep,
                          bool scaling, row_real *largest, row_real *lanes)
{
    if (look) {
        CANON_FETCH(s->fresh + i + AHEAD);
        const row_real v = row_load(s->fresh + i, left);
        const row_real there = left < 16 ? row_first(v, *largest, left) : v;
        *largest = there > *largest ? there : *largest;
    }
    if (raise) {
        row_real e = canon_exp_below(row_load(s->x + i, left) - s->m);
        e = left < 16 ? row_mask(e, left) : e;
        *lanes += e;
        if (keep)
            row_store(e, s->e + i, left);
    }
    if (scaling)
        row_store((row_load(s->d + i, left) * s->share - s->uniform) * s->scale, s->d + i, left);
}

CANON_INLINE void sweep(const struct stages *s, uint vocab, bool look, bool raise, bool keep, bool scaling,
                        row_real *largest, row_real *lanes)
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

/* What of the logits is to be large: the target's, mixed with all of the row. */
static inline float meant(float at_target, float total, float hit, float uniform)
{
    return uniform > 0.0f ? fma(uniform, total, hit * at_target) : at_target;
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

#if KEEL_ROW_ITEMS > 1
enum { CHUNK_EACH = 4 /* exponentials of a work-item that wait to be added at once */ };

/* The largest of a row, for all of the group: NaN are passed over, but for the first element. */
CANON_INLINE float group_largest(__global const float *x, uint vocab, __local float *folds)
{
    const uint id = get_local_id(0), size = get_local_size(0);
    float largest = x[0];
    ROW_UNROLL for (uint i = id; i < vocab; i += size) largest = x[i] > largest ? x[i] : largest;
    folds[id] = largest;
    for (uint span = size / 2; span > 0; span /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (id < span)
            folds[id] = folds[id + span] > folds[id] ? folds[id + span] : folds[id];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return folds[0];
}

/* The sum of e over `columns` from `begin` on, in the sixteen lanes of the first work-items, while all compute what
 * comes next: chunks take turns in the halves of `chunks`. */
CANON_INLINE float group_exponentials(__global const float *x, __global float *e, uint columns, float m, bool keep,
                                      __local float *chunks, __local float *folds)
{
    const uint id = get_local_id(0), chunk = CHUNK_EACH * get_local_size(0);
    float lane = 0.0f;
    __local float *half_of = chunks;
    for (uint begin = 0; begin < columns; begin += chunk) {
        _Pragma("unroll") for (uint c = 0; c < CHUNK_EACH; c++)
        {
            const uint at = c * get_local_size(0) + id;
            float v = 0.0f;
            if (begin + at < columns) {
                v = canon_exp_below(x[begin + at] - m);
                if (keep)
                    e[begin + at] = v;
            }
            half_of[at] = v;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (id < 16)
            ROW_UNROLL for (uint i = id; i < chunk; i += 16) lane += half_of[i];
        half_of = half_of == chunks ? chunks + CHUNK_EACH * ROW_GROUP : chunks;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    folds[id] = lane;
    barrier(CLK_LOCAL_MEM_FENCE);
    return canon_fold(*(__local const float16 *)folds);
}

__kernel void keel_cross_entropy(__global const float *logits, __global const int *targets,
                                 __global float *row_loss, __global float *dlogits, uint rows, uint vocab,
                                 float scale, uint has_gradient, __global const float *loss_scale,
                                 uint has_scale, uint slices, uint units, uint unit, uint rows_per_item, float hit,
                                 float uniform)
{
    ROW_FOLDS(folds);
    __local float chunks[2 * CHUNK_EACH * ROW_GROUP];
    const uint row = get_group_id(0), count = slices == 0 ? 1 : slices & 255, target = (uint)targets[row];
    __global const float *x = logits + (ulong)row * vocab;
    __global float *d = dlogits + (ulong)row * vocab;
    const float total = uniform > 0.0f ? row_sum_run(x, vocab, folds) : 0.0f;
    const float at_target = meant(target < vocab ? x[target] : NAN, total, hit, uniform);
    const float m = group_largest(x, vocab, folds);
    struct canon_waiting sums = {.count = 0};
    for (uint i = 0; i < count; i++) {
        const uint begin = slices == 0 ? 0 : canon_slice_begin(slices, units, unit, i);
        const uint columns = (slices == 0 ? vocab : canon_slice_begin(slices, units, unit, i + 1)) - begin;
        canon_give(&sums, group_exponentials(x + begin, d + begin, columns, m, has_gradient, chunks, folds));
    }
    const float sum = canon_take(&sums);
    if (get_local_id(0) == 0)
        row_loss[row] = (canon_log(sum) + m) - at_target;
    if (!has_gradient)
        return;
    barrier(CLK_GLOBAL_MEM_FENCE); /* what others of the group have stored */
    const float share = canon_divide(1.0f, target < vocab ? sum : NAN);
    const float by = has_scale ? scale * canon_power_of_two(loss_scale[0]) : scale;
    ROW_UNROLL for (uint i = get_local_id(0); i < vocab; i += get_local_size(0)) d[i] =
        (d[i] * share - (i == target ? hit + uniform : uniform)) * by;
}
#else
__kernel void keel_cross_entropy(__global const float *logits, __global const int *targets,
                                 __global float *row_loss, __global float *dlogits, uint rows, uint vocab,
                                 float scale, uint has_gradient, __global const float *loss_scale,
                                 uint has_scale, uint slices, uint units, uint unit, uint rows_per_item, float hit,
                                 float uniform)
{
    const uint count = slices == 0 ? 1 : slices & 255;
    const uint first = get_global_id(0) * rows_per_item, end = min(first + rows_per_item, rows);
    if (first >= rows)
        return;
    struct stages s = {.scale = has_scale ? scale * canon_power_of_two(loss_scale[0]) : scale, .uniform = uniform};
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
            next_at_target = meant((uint)targets[row] < vocab ? s.fresh[targets[row]] : NAN,
                                   uniform > 0.0f ? canon_sum_run(s.fresh, vocab) : 0.0f, hit, uniform);
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
            s.d[scaled_target] = (e_target * s.share - (hit + uniform)) * s.scale;
        if (raise) {
            const float sum = canon_take(&sums);
            row_loss[row - 1] = (canon_log(sum) + s.m) - at_target;
            s.share = canon_divide(1.0f, (uint)targets[row - 1] < vocab ? sum : NAN);
        }
        s.m = canon_fold_max(largest);
        at_target = next_at_target;
    }
}
#endif

/* The rows of a work-item, or the one that it shares: which is there, or has no columns, for it meets the barriers. */
#if KEEL_ROW_ITEMS > 1
#define EACH_ROW                                                                                             \
    const bool there = ROW_NUMBER < rows;                                                                    \
    (void)rows_per_item;                                                                                     \
    for (uint row = min((uint)ROW_NUMBER, rows - 1), end = row + 1; row < end; row++)
#else
#define EACH_ROW                                                                                             \
    const bool there = true;                                                                                 \
    const uint first = get_global_id(0) * rows_per_item, end = min(first + rows_per_item, rows);             \
    for (uint row = first; row < end; row++)
#endif

/* logits, of `columns` a row, are columns [first_column, first_column + columns) of the vocabulary. */
__kernel void keel_cross_entropy_max(__global const float *logits, __global const int *targets,
                                     __global float *maxima, __global int *target_bits, uint rows, uint columns,
                                     uint first_column, uint rows_per_item)
{
    ROW_FOLDS(folds);
    EACH_ROW
    {
        struct stages s = {.fresh = logits + (ulong)row * columns};
        const uint target = (uint)targets[row] - first_column;
        row_real lanes = (row_real)(0.0f), largest = (row_real)(s.fresh[0]);
        sweep(&s, there ? columns : 0, true, false, false, false, &largest, &lanes);
        const float most = row_fold_max(largest, folds);
        if (there && ROW_LEADS) {
            maxima[row] = most;
            target_bits[row] = target < columns ? as_int(s.fresh[target]) : 0;
        }
    }
}

/* Columns from `at` on, those of the slices. */
__kernel void keel_cross_entropy_part(__global const float *logits, __global const float *maxima,
                                      __global float *sums, __global float *exponentials, uint rows, uint columns,
                                      uint at, uint slices, uint units, uint unit, uint keep, uint rows_per_item)
{
    ROW_FOLDS(folds);
    EACH_ROW
    {
        const ulong from = (ulong)row * columns + at;
        const struct stages all = {.x = logits + from, .e = exponentials + from, .m = maxima[row]};
        struct canon_waiting waiting = {.count = 0};
        for (uint i = 0; i < (slices & 255); i++) {
            const uint begin = canon_slice_begin(slices, units, unit, i);
            const uint size = there ? canon_slice_begin(slices, units, unit, i + 1) - begin : 0;
            const struct stages s = stages_from(&all, begin);
            row_real lanes = (row_real)(0.0f), largest;
            sweep(&s, size, false, true, keep, false, &largest, &lanes);
            canon_give(&waiting, row_fold(lanes, folds));
        }
        const float sum = canon_take(&waiting);
        if (there && ROW_LEADS)
            sums[row] = sum;
    }
}

/* dlogits are the exponentials at first. */
__kernel void keel_cross_entropy_end(__global const float *maxima, __global const float *sums,
                                     __global const int *target_bits, __global const int *targets,
                                     __global float *row_loss, __global float *dlogits, uint rows, uint columns,
                                     uint first_column, uint vocab, float scale, uint has_gradient,
                                     __global const float *loss_scale, uint has_scale, uint rows_per_item)
{
    struct stages s = {.scale = has_scale ? scale * canon_power_of_two(loss_scale[0]) : scale};
    EACH_ROW
    {
        if (!there)
            return;
        const bool known = (uint)targets[row] < vocab;
        const uint target = (uint)targets[row] - first_column;
        if (ROW_LEADS)
            row_loss[row] = (canon_log(sums[row]) + maxima[row]) - (known ? as_float(target_bits[row]) : NAN);
        if (!has_gradient)
            continue;
        const bool own = known && target < columns && ROW_OWNS(target);
        row_real lanes = (row_real)(0.0f), largest;
        s.d = dlogits + (ulong)row * columns;
        s.share = canon_divide(1.0f, known ? sums[row] : NAN);
        const float e_target = own ? s.d[target] : 0.0f;
        sweep(&s, columns, false, false, false, true, &largest, &lanes);
        if (own)
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
