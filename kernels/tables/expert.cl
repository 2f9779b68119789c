/* expert.cl - mixture of experts: who takes which row, and what balance costs.
 *
 *     expert_offsets  offsets_(e+1) = offsets_e + min(choices of e, capacity)
 *     expert_place    place[position] = offsets_e + rank within the expert, -1 from `capacity` on;
 *                     its inverse source[place] = position, -1 behind the last
 *     expert_invert   source[place[position]] = position, after all were set to -1
 *     expert_bias     out_e += sum of the rows [offsets_e, offsets_(e+1)) of x, ascending from +0
 *     expert_dots     dweights[r, j] = sum(y[place[r, j], :] * dout[r, :]); 0 where there is no place
 *     balance_sums    n_e = choices of e; s_e = sum of probabilities[r, e], r ascending from +0
 *     balance_loss    loss = loss + a * t, t = the chain fma((float)n_e, s_e, t) over e from +0
 *     balance_grad    dprobabilities[r, e] = a * (float)n_e; with loss_scale, a times its power of two
 *
 * Shapes: choice, place [rows, k] int32, `count` of them; keys and positions [count] as keel_sort leaves
 * them in `work`; probabilities [rows, experts]. Sums of expert_dots are the tree of canon_tree.h. No
 * tunables. */

#define ROWS(row, count)                                                                                     \
    const ulong first = (ulong)get_global_id(0) * item_rows;                                                 \
    const ulong last = min(first + item_rows, (ulong)(count));                                               \
    for (ulong row = first; row < last; row++)

/* The first of sorted keys that is not below `key`. */
static inline uint lower_bound(__global const uint *keys, uint count, uint key)
{
    uint low = 0, high = count;
    while (low < high) {
        const uint middle = low + (high - low) / 2;
        if (keys[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* One work-item. */
__kernel void keel_expert_offsets(__global const uint *work, __global int *offsets, uint count, uint experts,
                                  uint capacity)
{
    if (get_global_id(0) != 0)
        return;
    uint total = 0, start = 0;
    offsets[0] = 0;
    for (uint e = 0; e < experts; e++) {
        const uint end = lower_bound(work, count, e + 1);
        total += min(end - start, capacity);
        offsets[e + 1] = (int)total;
        start = end;
    }
}

/* source begins at word source_from of work, and has `places` words. */
__kernel void keel_expert_place(__global uint *work, __global const int *offsets, __global int *place,
                                uint count, uint experts, uint capacity, ulong source_from, uint places,
                                uint item_rows)
{
    __global const uint *keys = work, *positions = work + count;
    __global int *source = (__global int *)work + source_from;
    ROWS(i, count)
    {
        const uint e = keys[i], rank = e < experts ? (uint)i - lower_bound(keys, count, e) : capacity;
        const uint at = rank < capacity ? (uint)offsets[e] + rank : places;
        if (positions[i] < count)
            place[positions[i]] = at < places ? (int)at : -1;
        if (at < places)
            source[at] = (int)positions[i];
        if (i < places && (int)i >= offsets[experts])
            source[i] = -1;
    }
}

/* `clear`: all are set to -1. */
__kernel void keel_expert_invert(__global const int *place, __global int *source, uint count, uint places,
                                 uint clear, uint item_rows)
{
    ROWS(i, clear ? places : count)
    {
        if (clear)
            source[i] = -1;
        else if ((uint)place[i] < places)
            source[place[i]] = (int)i;
    }
}

/* A work-item has an expert and 64 columns. */
__kernel void keel_expert_bias(__global const float *x, __global const int *offsets, __global float *out,
                               uint rows, uint n, uint experts, uint column_blocks)
{
    const uint item = get_global_id(0), e = item / column_blocks, column = item % column_blocks * 64;
    if (e >= experts)
        return;
    const uint end = min((uint)offsets[e + 1], rows), left = n - column,
               vectors = min((left + 15) / 16, (uint)4);
    float16 s[4];
    for (uint v = 0; v < 4; v++)
        s[v] = (float16)(0.0f);
    for (uint row = (uint)offsets[e]; row < end; row++) {
        for (uint v = 0; v < vectors; v++)
            s[v] += canon_load(x + (ulong)row * n + column + 16 * v, left - 16 * v);
    }
    __global float *to = out + (ulong)e * n + column;
    for (uint v = 0; v < vectors; v++)
        canon_store(canon_load(to + 16 * v, left - 16 * v) + s[v], to + 16 * v, left - 16 * v);
}

__kernel void keel_expert_dots(__global const float *y, __global const int *place, __global const float *dout,
                               __global float *dweights, uint rows, uint n, uint k, uint places,
                               uint item_rows)
{
    ROWS(row, rows)
    {
        __global const float *g = dout + row * n;
        for (uint j = 0; j < k; j++) {
            const uint at = (uint)place[row * k + j];
            __global const float *from = y + (at < places ? (ulong)at * n : 0);
            float16 lanes = (float16)(0.0f);
            for (uint c = 0; c < n && at < places; c += 16)
                lanes += canon_load(from + c, n - c) * canon_load(g + c, n - c);
            dweights[row * k + j] = canon_fold(lanes);
        }
    }
}

/* A work-item has 16 experts. sums: n_e as floats, then s_e. */
__kernel void keel_balance_sums(__global const float *probabilities, __global const int *choice,
                                __global float *sums, uint rows, uint experts, uint k)
{
    const uint e = get_global_id(0) * 16;
    if (e >= experts)
        return;
    const int16 mine = (int)e + (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    float16 s = (float16)(0.0f);
    int16 missed = (int16)(0); /* by 0 or 1: Oclgrind 21.10 extends what its optimiser makes of -1 by zeros */
    for (ulong row = 0; row < rows; row++) {
        s += canon_load(probabilities + row * experts + e, experts - e);
        for (uint j = 0; j < k; j++)
            missed += convert_int16(min(as_uint16(mine ^ (int16)(choice[row * k + j])), (uint16)(1)));
    }
    canon_store(convert_float16((int16)(rows * k) - missed), sums + e, experts - e);
    canon_store(s, sums + experts + e, experts - e);
}

/* One work-item. */
__kernel void keel_balance_loss(__global const float *sums, __global float *loss, uint experts, float a)
{
    if (get_global_id(0) != 0)
        return;
    float t = 0.0f;
    for (uint e = 0; e < experts; e++)
        t = fma(sums[e], sums[experts + e], t);
    loss[0] = loss[0] + a * t;
}

__kernel void keel_balance_grad(__global const float *sums, __global float *dprobabilities, uint rows,
                                uint experts, float a, __global const float *loss_scale, uint has_scale,
                                uint item_rows)
{
    if (has_scale)
        a = a * canon_power_of_two(loss_scale[0]);
    ROWS(row, rows)
    {
        for (uint e = 0; e < experts; e += 16)
            canon_store(canon_load(sums + e, experts - e) * a, dprobabilities + row * experts + e,
                        experts - e);
    }
}
