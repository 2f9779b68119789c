/* table.cl - rows of tables that are chosen by number, and dot products of pairs of rows.
 *
 *     gather         y[i, :] = (w[ids_i] *) x[ids_i / per, :]; zeros where ids_i is outside [0, limit)
 *     bag            y[b, :] = sum of table[ids_(b, j), :], j ascending, s from +0; with weights
 *                    fma(w_(b, j), table row, s)
 *     sort           ids with their positions, ascending, equal ids in the order of their positions
 *     scatter_add    table[id, :] += sum of x[position / per, :], positions ascending, s from +0
 *     pairwise       y[b, pair(i, j)] = sum over n of x_i * x_j; pair(i, j) = i (i - 1) / 2 + j
 *     pairwise_grad  dx[b, i, :] = chain of fma(dy_pair(i, j), x_j, s), j ascending without i, from +0
 *
 * Shapes: x, y, table rows of n; ids and positions int32. An id outside [0, limit) reads and writes nothing.
 * Sums over n are the tree of canon_tree.h. A work-item takes item_rows rows of what it writes; no bit
 * depends on it. */

#define ROWS(row, count)                                                                                     \
    const ulong first = (ulong)get_global_id(0) * item_rows;                                                 \
    const ulong last = min(first + item_rows, (ulong)(count));                                               \
    for (ulong row = first; row < last; row++)

enum { VECTORS = 4, COLUMNS = 16 * VECTORS }; /* in registers at a time */
/* Loops over them have a fixed length, or they would not be in registers; `left` columns are there. */
#define EACH_VECTOR(v, left)                                                                                 \
    for (uint v = 0; v < VECTORS; v++)                                                                       \
        if (16 * v < (left))

/* s += row, or s = fma(weight, row, s). */
static inline void add_row(float16 s[VECTORS], __global const float *row, uint left)
{
    if (left >= COLUMNS) {
        for (uint v = 0; v < VECTORS; v++)
            s[v] += vload16(v, row);
    } else {
        EACH_VECTOR(v, left)
        s[v] += canon_load(row + 16 * v, left - 16 * v);
    }
}
static inline void add_times(float16 s[VECTORS], float weight, __global const float *row, uint left)
{
    if (left >= COLUMNS) {
        for (uint v = 0; v < VECTORS; v++)
            s[v] = fma((float16)(weight), vload16(v, row), s[v]);
    } else {
        EACH_VECTOR(v, left)
        s[v] = fma((float16)(weight), canon_load(row + 16 * v, left - 16 * v), s[v]);
    }
}

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
        for (uint column = 0; column < n; column += COLUMNS) {
            const uint left = n - column;
            float16 s[VECTORS];
            for (uint v = 0; v < VECTORS; v++)
                s[v] = (float16)(0.0f);
            for (uint j = 0; j < size; j++) {
                const uint id = (uint)ids[bag * size + j];
                if (id >= limit)
                    continue;
                __global const float *from = table + (ulong)id * n + column;
                if (has_weights)
                    add_times(s, w[bag * size + j], from, left);
                else
                    add_row(s, from, left);
            }
            EACH_VECTOR(v, left)
            canon_store(s[v], y + bag * n + column + 16 * v, left - 16 * v);
        }
    }
}

/* ---- sorting ------------------------------------------------------------------------------------------- */

/* Stable, by 8 bits of the id at a time, the lowest first; an id that is out of range counts as `limit`.
 * `work` is keys and positions [count] each, once more the same, counts [256, blocks]: a pass reads
 * one pair (the first pass: the ids) and writes the other. A work-item takes SORT_BLOCK ids; one running sum
 * over counts gives where each block puts its first id of each digit. */

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
        const uint place = next[key >> shift & 255u]++;
        if (place >= count)
            continue;
        const ulong at = to + place;
        work[at] = key;
        work[at + size] = first_pass ? i : work[from + size + i];
    }
}

/* A work-item has 32 places of the sorted list and COLUMNS columns: it does the rows whose first position
 * lies there, to their ends. */
__kernel void keel_scatter_add(__global const uint *work, __global const float *x, __global float *table,
                               uint count, uint limit, uint per, uint n, uint column_blocks)
{
    __global const uint *keys = work, *positions = work + count;
    const uint item = get_global_id(0), column = item % column_blocks * COLUMNS, left = n - column;
    const ulong end = min(((ulong)(item / column_blocks) + 1) * 32, (ulong)count);
    for (ulong i = (ulong)(item / column_blocks) * 32; i < end; i++) {
        const uint key = keys[i];
        if (key >= limit || (i > 0 && keys[i - 1] == key))
            continue;
        float16 s[VECTORS];
        for (uint v = 0; v < VECTORS; v++)
            s[v] = (float16)(0.0f);
        for (ulong j = i; j < count && keys[j] == key; j++) {
            if (positions[j] < count)
                add_row(s, x + (ulong)(positions[j] / per) * n + column, left);
        }
        __global float *to = table + (ulong)key * n + column;
        EACH_VECTOR(v, left)
        canon_store(canon_load(to + 16 * v, left - 16 * v) + s[v], to + 16 * v, left - 16 * v);
    }
}

/* ---- pairs ---- */

__kernel void keel_pairwise(__global const float *x, __global float *y, uint batch, uint f, uint n,
                            uint item_rows)
{
    ROWS(sample, batch)
    {
        __global const float *from = x + sample * f * n;
        __global float *to = y + sample * ((ulong)f * (f - 1) / 2);
        for (uint i = 1; i < f; i++) {
            for (uint j = 0; j < i; j++) {
                float16 lanes = (float16)(0.0f);
                for (uint c = 0; c < n; c += 16)
                    lanes += canon_load(from + (ulong)i * n + c, n - c) *
                             canon_load(from + (ulong)j * n + c, n - c);
                *to++ = canon_fold(lanes);
            }
        }
    }
}

static inline uint pair_of(uint a, uint b)
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
            for (uint column = 0; column < n; column += COLUMNS) {
                const uint left = n - column;
                float16 s[VECTORS];
                for (uint v = 0; v < VECTORS; v++)
                    s[v] = (float16)(0.0f);
                for (uint j = 0; j < f; j++) {
                    if (j != i)
                        add_times(s, g[pair_of(i, j)], from + (ulong)j * n + column, left);
                }
                __global float *to = dx + (sample * f + i) * n + column;
                EACH_VECTOR(v, left)
                canon_store(s[v], to + 16 * v, left - 16 * v);
            }
        }
    }
}
