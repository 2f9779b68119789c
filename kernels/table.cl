/* table.cl - rows of tables that are chosen by number, and dot products of pairs of rows.
 *
 *     gather         y[i, :] = (w[ids_i] *) x[ids_i / per, :]; zeros where ids_i is outside [0, limit)
 *     bag            y[b, :] = sum of table[ids_(b, j), :], j ascending, s from +0; with weights
 *                    fma(w_(b, j), table row, s)
 *     sort           ids with their positions, ascending, equal ids in the order of their positions
 *     scatter_add    table[id, :] += sum of x[position / per, :], positions ascending, s from +0
 *     pairwise       y[b, pair(i, j)] = chain of fma(x_i, x_j, s) over n, from +0;
 *                    pair(i, j) = i (i - 1) / 2 + j
 *     pairwise_grad  dx[b, i, :] = chain of fma(dy_pair(i, j), x_j, s), j ascending without i, from +0
 *
 * Shapes: x, y, table rows of n; ids and positions int32. An id outside [0, limit) reads and writes nothing.
 * A work-item takes item_rows rows of what it writes; no bit depends on it. */

#define ROWS(row, count)                                                                                     \
    const ulong first = (ulong)get_global_id(0) * item_rows;                                                 \
    const ulong last = min(first + item_rows, (ulong)(count));                                               \
    for (ulong row = first; row < last; row++)

enum { VECTORS = 8 }; /* of 16 columns each, in registers at a time */

__kernel void keel_gather(__global const int *ids, __global const float *w, __global const float *x,
                          __global float *y, ulong ids_from, uint count, uint n, uint limit, uint per,
                          uint has_weights, uint item_rows)
{
    ROWS(i, count)
    {
        __global float *to = y + i * n;
        const uint id = (uint)ids[ids_from + i];
        const bool there = id < limit;
        __global const float *from = x + (there ? (ulong)(id / per) * n : 0);
        const float weight = there && has_weights ? w[id] : 1.0f;
        for (uint c = 0; c < n; c += 16) {
            if (!there)
                canon_store((float16)(0.0f), to + c, n - c);
            else if (has_weights)
                canon_store(canon_load(from + c, n - c) * weight, to + c, n - c);
            else
                canon_store(canon_load(from + c, n - c), to + c, n - c);
        }
    }
}

__kernel void keel_bag(__global const int *ids, __global const float *w, __global const float *table,
                       __global float *y, uint bags, uint size, uint limit, uint n, uint has_weights,
                       uint item_rows)
{
    ROWS(bag, bags)
    {
        for (uint column = 0; column < n; column += 16 * VECTORS) {
            const uint left = n - column, vectors = min((left + 15) / 16, (uint)VECTORS);
            float16 s[VECTORS];
            for (uint v = 0; v < VECTORS; v++)
                s[v] = (float16)(0.0f);
            for (uint j = 0; j < size; j++) {
                const uint id = (uint)ids[bag * size + j];
                if (id >= limit)
                    continue;
                __global const float *from = table + (ulong)id * n + column;
                const float weight = has_weights ? w[bag * size + j] : 1.0f;
                for (uint v = 0; v < vectors; v++) {
                    const float16 row = canon_load(from + 16 * v, left - 16 * v);
                    s[v] = has_weights ? fma((float16)(weight), row, s[v]) : s[v] + row;
                }
            }
            for (uint v = 0; v < vectors; v++)
                canon_store(s[v], y + bag * n + column + 16 * v, left - 16 * v);
        }
    }
}

/* ---- sorting: stable, by 8 bits of the id at a time, the lowest first; an id that is out of range counts as
 * `limit`. `work` is keys and positions [count] each, once more the same, counts [256, blocks]: a pass reads
 * one pair (the first pass: the ids) and writes the other. A work-item takes SORT_BLOCK ids; one running sum
 * over counts gives where each block puts its first id of each digit. ---- */

enum { SORT_BLOCK = 2048 };

static inline uint sort_key(__global const int *ids, __global const uint *work, ulong from, ulong i,
                            uint limit, uint first_pass)
{
    return first_pass ? min((uint)ids[i], limit) : work[from + i];
}

__kernel void keel_sort_count(__global const int *ids, __global uint *work, uint count, uint limit,
                              uint shift, uint blocks, ulong from, uint first_pass)
{
    const uint block = get_global_id(0);
    if (block >= blocks)
        return;
    uint bins[256];
    for (uint d = 0; d < 256; d++)
        bins[d] = 0;
    const uint end = block + 1 < blocks ? (block + 1) * SORT_BLOCK : count;
    for (uint i = block * SORT_BLOCK; i < end; i++)
        bins[sort_key(ids, work, from, i, limit, first_pass) >> shift & 255u]++;
    __global uint *counts = work + 4 * (ulong)count;
    for (uint d = 0; d < 256; d++)
        counts[d * blocks + block] = bins[d];
}

/* One work-item: what stands before each count. */
__kernel void keel_sort_scan(__global uint *work, uint count, uint blocks)
{
    if (get_global_id(0) != 0)
        return;
    __global uint *counts = work + 4 * (ulong)count;
    uint before = 0;
    for (uint d = 0; d < 256; d++) {
        for (uint b = 0; b < blocks; b++) {
            const uint here = counts[d * blocks + b];
            counts[d * blocks + b] = before;
            before += here;
        }
    }
}

__kernel void keel_sort_place(__global const int *ids, __global uint *work, uint count, uint limit,
                              uint shift, uint blocks, ulong from, uint first_pass)
{
    const uint block = get_global_id(0);
    if (block >= blocks)
        return;
    const ulong size = count, to = from == 0 ? 2 * size : 0;
    uint next[256];
    for (uint d = 0; d < 256; d++)
        next[d] = work[4 * size + d * blocks + block];
    const uint end = block + 1 < blocks ? (block + 1) * SORT_BLOCK : count;
    for (uint i = block * SORT_BLOCK; i < end; i++) {
        const uint key = sort_key(ids, work, from, i, limit, first_pass);
        const ulong at = to + next[key >> shift & 255u]++;
        work[at] = key;
        work[at + size] = first_pass ? i : work[from + size + i];
    }
}

/* A work-item has 32 places of the sorted list and 128 columns: it does the rows whose first position lies
 * there, to their ends. */
__kernel void keel_scatter_add(__global const uint *work, __global const float *x, __global float *table,
                               uint count, uint limit, uint per, uint n, uint column_blocks)
{
    __global const uint *keys = work, *positions = work + count;
    const uint item = get_global_id(0), column = item % column_blocks * (16 * VECTORS);
    const uint left = n - column, vectors = min((left + 15) / 16, (uint)VECTORS);
    const ulong end = min(((ulong)(item / column_blocks) + 1) * 32, (ulong)count);
    for (ulong i = (ulong)(item / column_blocks) * 32; i < end; i++) {
        const uint key = keys[i];
        if (key >= limit || (i > 0 && keys[i - 1] == key))
            continue;
        float16 s[VECTORS];
        for (uint v = 0; v < VECTORS; v++)
            s[v] = (float16)(0.0f);
        for (ulong j = i; j < count && keys[j] == key; j++) {
            __global const float *from = x + (ulong)(positions[j] / per) * n + column;
            for (uint v = 0; v < vectors; v++)
                s[v] += canon_load(from + 16 * v, left - 16 * v);
        }
        __global float *to = table + (ulong)key * n + column;
        for (uint v = 0; v < vectors; v++)
            canon_store(canon_load(to + 16 * v, left - 16 * v) + s[v], to + 16 * v, left - 16 * v);
    }
}

/* ---- pairs ---- */

/* Element c of sixteen rows from row j on; the last row again where there are no more. */
static inline float16 sixteen_rows(__global const float *x, uint j, uint f, uint n, uint c)
{
    float lanes[16];
    for (uint l = 0; l < 16; l++)
        lanes[l] = x[(ulong)min(j + l, f - 1) * n + c];
    return vload16(0, lanes);
}

/* Eight rows i from `low` on against sixteen columns j. */
static inline void pair_block(__global const float *x, __global float *y, uint low, uint j, uint f, uint n)
{
    float16 s[8];
    for (uint l = 0; l < 8; l++)
        s[l] = (float16)(0.0f);
    for (uint c = 0; c < n; c++) {
        const float16 other = sixteen_rows(x, j, f, n, c);
        for (uint l = 0; l < 8; l++)
            s[l] = fma((float16)(x[(ulong)min(low + l, f - 1) * n + c]), other, s[l]);
    }
    for (uint i = max(low, j + 1); i < min(low + 8, f); i++)
        canon_store(s[i - low], y + (ulong)i * (i - 1) / 2 + j, i - j);
}

__kernel void keel_pairwise(__global const float *x, __global float *y, uint batch, uint f, uint n,
                            uint item_rows)
{
    ROWS(sample, batch)
    {
        for (uint j = 0; j + 1 < f; j += 16) {
            for (uint low = j; low < f; low += 8)
                pair_block(x + sample * f * n, y + sample * ((ulong)f * (f - 1) / 2), low, j, f, n);
        }
    }
}

static inline ulong pair_of(ulong a, ulong b)
{
    return a > b ? a * (a - 1) / 2 + b : b * (b - 1) / 2 + a;
}

__kernel void keel_pairwise_grad(__global const float *x, __global const float *dy, __global float *dx,
                                 uint batch, uint f, uint n, uint item_rows)
{
    ROWS(sample, batch)
    {
        __global const float *from = x + sample * f * n, *g = dy + sample * ((ulong)f * (f - 1) / 2);
        for (uint i = 0; i < f; i++) {
            __global float *to = dx + (sample * f + i) * n;
            for (uint column = 0; column < n; column += 64) {
                const uint left = n - column, vectors = min((left + 15) / 16, (uint)4);
                float16 s[4];
                for (uint v = 0; v < 4; v++)
                    s[v] = (float16)(0.0f);
                for (uint j = 0; j < f; j++) {
                    if (j == i)
                        continue;
                    const float16 slope = (float16)(g[pair_of(i, j)]);
                    __global const float *row = from + (ulong)j * n + column;
                    for (uint v = 0; v < vectors; v++)
                        s[v] = fma(slope, canon_load(row + 16 * v, left - 16 * v), s[v]);
                }
                for (uint v = 0; v < vectors; v++)
                    canon_store(s[v], to + column + 16 * v, left - 16 * v);
            }
        }
    }
}
