/* row.cl - operations along the last dimension: softmax, top-k, cumulative sum.
 *
 *     softmax       m = max(x); e_j = exp(x_j - m); s = sum(e); y_j = e_j * (1 / s)
 *     softmax_grad  d = sum(y_j * dy_j); dx_j = y_j * (dy_j - d)
 *     top_k         the k largest, largest first, of equal ones the lower index first
 *     top_k_grad    dx = 0; dx[indices_j] += dvalues_j, j ascending
 *     cumsum        y_j = y_(j-1) + x_j; reverse: y_j = y_(j+1) + x_j
 *
 * Shapes: x, y, dx, dy [rows, n]; values, indices [rows, k]. Sums are the tree of canon_tree.h, but for
 * cumsum, a chain. A work-item takes item_rows rows, so that short rows share what a group costs; no bit
 * depends on it. */

#define ROWS(row)                                                                                            \
    const ulong first = (ulong)get_global_id(0) * item_rows;                                                 \
    const ulong last = min(first + item_rows, (ulong)rows);                                                  \
    for (ulong row = first; row < last; row++)

/* max of a run; NaN are passed over here and come back through the sum. */
static inline float row_max(__global const float *x, uint n)
{
    float16 a = (float16)(x[0]), b = a, c = a, d = a;
    uint i = 0;
    for (; i + 64 <= n; i += 64) {
        a = vload16(0, x + i) > a ? vload16(0, x + i) : a;
        b = vload16(1, x + i) > b ? vload16(1, x + i) : b;
        c = vload16(2, x + i) > c ? vload16(2, x + i) : c;
        d = vload16(3, x + i) > d ? vload16(3, x + i) : d;
    }
    b = b > a ? b : a;
    d = d > c ? d : c;
    d = d > b ? d : b;
    for (; i + 16 <= n; i += 16)
        d = vload16(0, x + i) > d ? vload16(0, x + i) : d;
    float r = canon_fold_max(d);
    for (; i < n; i++)
        r = x[i] > r ? x[i] : r;
    return r;
}

/* Integers in the order of the floats: -0 is +0, and every NaN is above all. */
static inline int order_of(float x)
{
    const uint bits = as_uint(x);
    const int size = (int)(bits & 0x7fffffffu);
    return size > 0x7f800000 ? 0x7fffffff : bits >> 31 ? -size : size;
}
static inline int16 order_of_x16(float16 x)
{
    const int16 bits = as_int16(x), size = bits & (int16)(0x7fffffff);
    return select(select(size, -size, bits < 0), (int16)(0x7fffffff), size > (int16)(0x7f800000));
}

#if KEEL_BY_LANE == 0
/* Rows shorter than a vector go sixteen at a time, a row to a lane: v[j] is element j of all. */
#define SHORT      (n < 16)
#define EACH_OF(n) _Pragma("unroll") for (uint j = 0; j < 16; j++) if (j < n)
static inline void load_rows(__global const float *x, uint n, float16 *v)
{
    float lanes[16 * 16];
    for (uint l = 0; l < 16; l++)
        for (uint j = 0; j < n; j++)
            lanes[16 * j + l] = x[l * n + j];
    for (uint j = 0; j < 16; j++)
        v[j] = j < n ? vload16(j, lanes) : (float16)(0.0f);
}
static inline void store_rows(const float16 *v, __global float *y, uint n)
{
    float lanes[16 * 16];
    for (uint j = 0; j < n; j++)
        vstore16(v[j], j, lanes);
    for (uint l = 0; l < 16; l++)
        for (uint j = 0; j < n; j++)
            y[l * n + j] = lanes[16 * j + l];
}
/* The tree of canon_tree.h, for sixteen rows. */
static inline float16 sum_rows(const float16 *v)
{
    float16 s[16];
    for (uint j = 0; j < 16; j++)
        s[j] = v[j];
    _Pragma("unroll") for (uint span = 8; span > 0; span /= 2)
        for (uint j = 0; j < span; j++)
            s[j] = s[j] + s[j + span];
    return s[0];
}
static void softmax_short(__global const float *x, __global float *y, uint n)
{
    float16 v[16];
    load_rows(x, n, v);
    float16 m = v[0];
    EACH_OF(n) m = v[j] > m ? v[j] : m;
    EACH_OF(n) v[j] = canon_exp_below(v[j] - m);
    const float16 share = canon_divide((float16)(1.0f), sum_rows(v));
    EACH_OF(n) v[j] = v[j] * share;
    store_rows(v, y, n);
}
static void softmax_grad_short(__global const float *y, __global const float *dy, __global float *dx, uint n)
{
    float16 p[16], g[16], products[16];
    load_rows(y, n, p);
    load_rows(dy, n, g);
    for (uint j = 0; j < 16; j++)
        products[j] = j < n ? (float16)(0.0f) + p[j] * g[j] : (float16)(0.0f);
    const float16 d = sum_rows(products);
    EACH_OF(n) p[j] = p[j] * (g[j] - d);
    store_rows(p, dx, n);
}
static void top_k_short(__global const float *x, __global float *values, __global int *indices, uint n, uint k,
                        uint has_values)
{
    float16 v[16];
    int16 keys[16], places[16];
    int lanes[16 * 16];
    load_rows(x, n, v);
    for (uint t = 0; t < k; t++)
        keys[t] = (int16)(INT_MIN); /* below all */
    for (uint j = 0; j < n; j++) {
        int16 key = order_of_x16(v[j]), place = (int16)((int)j), moves = (int16)(0);
        for (uint t = 0; t < k; t++) { /* the first that is less moves up, and all behind it */
            const int16 old_key = keys[t], old_place = places[t];
            moves |= key > old_key;
            keys[t] = select(old_key, key, moves);
            places[t] = select(old_place, place, moves);
            key = select(key, old_key, moves);
            place = select(place, old_place, moves);
        }
    }
    for (uint t = 0; t < k; t++)
        vstore16(places[t], t, lanes);
    for (uint l = 0; l < 16; l++)
        for (uint t = 0; t < k; t++) {
            indices[l * k + t] = lanes[16 * t + l];
            if (has_values)
                values[l * k + t] = x[l * n + lanes[16 * t + l]];
        }
}
#else
#define SHORT false
static void softmax_short(__global const float *x, __global float *y, uint n)
{
}
static void softmax_grad_short(__global const float *y, __global const float *dy, __global float *dx, uint n)
{
}
static void top_k_short(__global const float *x, __global float *values, __global int *indices, uint n, uint k,
                        uint has_values)
{
}
#endif

/* The exponentials of a row go to y, and their sum is returned. The row that lies `ahead` is asked for. */
static inline float exponentials(__global const float *x, __global float *y, uint n, float m, ulong ahead)
{
    float16 lanes = (float16)(0.0f);
    uint i = 0;
    for (; i + 16 <= n; i += 16) {
        CANON_FETCH(x + ahead + i);
        const float16 e = canon_exp_below(vload16(0, x + i) - m);
        lanes += e;
        vstore16(e, 0, y + i);
    }
    if (i < n) {
        const float16 e = canon_mask(canon_exp_below(canon_load(x + i, n - i) - m), n - i);
        lanes += e;
        canon_store(e, y + i, n - i);
    }
    return canon_fold(lanes);
}

__kernel void keel_softmax(__global const float *x, __global float *y, uint rows, uint n, uint item_rows)
{
    ROWS(row)
    {
        __global const float *from = x + row * n;
        __global float *to = y + row * n;
        if (SHORT && row + 16 <= last) {
            softmax_short(from, to, n);
            row += 15;
            continue;
        }
        const float sum = exponentials(from, to, n, row_max(from, n), row + 1 < rows ? n : 0);
        const float share = canon_divide(1.0f, sum);
        uint i = 0;
        for (; i + 16 <= n; i += 16)
            vstore16(vload16(0, to + i) * share, 0, to + i);
        if (i < n)
            canon_store(canon_load(to + i, n - i) * share, to + i, n - i);
    }
}

__kernel void keel_softmax_grad(__global const float *y, __global const float *dy, __global float *dx,
                                uint rows, uint n, uint item_rows)
{
    ROWS(row)
    {
        __global const float *p = y + row * n, *g = dy + row * n;
        __global float *to = dx + row * n;
        if (SHORT && row + 16 <= last) {
            softmax_grad_short(p, g, to, n);
            row += 15;
            continue;
        }
        float16 lanes = (float16)(0.0f);
        for (uint i = 0; i < n; i += 16)
            lanes += canon_load(p + i, n - i) * canon_load(g + i, n - i);
        const float d = canon_fold(lanes);
        for (uint i = 0; i < n; i += 16)
            canon_store(canon_load(p + i, n - i) * (canon_load(g + i, n - i) - d), to + i, n - i);
    }
}

/* Whether one of 64 is above what the best begin with. */
static inline int any_above(__global const float *x, int least)
{
    const int16 a = order_of_x16(vload16(0, x)) > (int16)(least);
    const int16 b = order_of_x16(vload16(1, x)) > (int16)(least);
    const int16 c = order_of_x16(vload16(2, x)) > (int16)(least);
    const int16 d = order_of_x16(vload16(3, x)) > (int16)(least);
    return any((a | b) | (c | d));
}

/* Element `at` of a row, as its place in the order; `at` was read from memory, where a bit may have flipped. */
static inline int order_at(__global const float *x, int at, uint n)
{
    return order_of(x[min((uint)at, n - 1)]);
}

/* Puts j where it belongs among the `filled` best so far, and drops the last of k when they are full. */
static inline uint insert(__global const float *x, uint n, __global int *best, uint filled, uint k, uint j)
{
    const int key = order_of(x[j]);
    uint at = filled < k ? filled : k - 1;
    for (; at > 0 && order_at(x, best[at - 1], n) < key; at--)
        best[at] = best[at - 1];
    best[at] = (int)j;
    return filled < k ? filled + 1 : k;
}

/* The k best of a row, which lie in memory while they are found. */
static void top_k_many(__global const float *x, __global int *best, uint n, uint k)
{
    uint filled = 0;
    int least = 0; /* of the best, once there are k */
    for (uint i = 0; i < n; i += 64) {
        if (filled == k && i + 64 <= n && !any_above(x + i, least))
            continue;
        for (uint j = i; j < min(i + 64, n); j++) {
            if (filled == k && order_of(x[j]) <= least)
                continue;
            filled = insert(x, n, best, filled, k, j);
            least = order_at(x, best[filled - 1], n);
        }
    }
}

/* The same where they are few enough to lie near, with what they are compared by. */
enum { FEW = 16 };
static void top_k_few(__global const float *x, __global int *best, uint n, uint k)
{
    int keys[FEW], places[FEW];
    uint filled = 0;
    for (uint i = 0; i < n; i += 64) {
        if (filled == k && i + 64 <= n && !any_above(x + i, keys[k - 1]))
            continue;
        for (uint j = i; j < min(i + 64, n); j++) {
            const int key = order_of(x[j]);
            if (filled == k && key <= keys[k - 1])
                continue;
            uint at = filled < k ? filled++ : k - 1;
            for (; at > 0 && keys[at - 1] < key; at--) {
                keys[at] = keys[at - 1];
                places[at] = places[at - 1];
            }
            keys[at] = key;
            places[at] = (int)j;
        }
    }
    for (uint t = 0; t < k; t++)
        best[t] = places[t];
}

__kernel void keel_top_k(__global const float *x, __global float *values, __global int *indices, uint rows,
                         uint n, uint k, uint has_values, uint item_rows)
{
    ROWS(row)
    {
        __global const float *from = x + row * n;
        __global int *best = indices + row * k;
        if (SHORT && row + 16 <= last) {
            top_k_short(from, values + row * k, best, n, k, has_values);
            row += 15;
            continue;
        }
        if (k <= FEW)
            top_k_few(from, best, n, k);
        else
            top_k_many(from, best, n, k);
        for (uint j = 0; has_values && j < k; j++)
            values[row * k + j] = from[min((uint)best[j], n - 1)];
    }
}

__kernel void keel_top_k_grad(__global const int *indices, __global const float *dvalues, __global float *dx,
                              uint rows, uint n, uint k, uint item_rows)
{
    ROWS(row)
    {
        __global float *to = dx + row * n;
        for (uint i = 0; i < n; i += 16)
            canon_store((float16)(0.0f), to + i, n - i);
        for (uint j = 0; j < k; j++) {
            const int at = indices[row * k + j];
            if ((uint)at < n)
                to[at] = to[at] + dvalues[row * k + j];
        }
    }
}

__kernel void keel_cumsum(__global const float *x, __global float *y, uint rows, uint n, uint reverse,
                          uint item_rows)
{
    ROWS(row)
    {
        const ulong from = row * n + (reverse ? n - 1 : 0);
        const long step = reverse ? -1 : 1;
        float s = x[from];
        y[from] = s;
        for (uint i = 1; i < n; i++) {
            const ulong at = from + (ulong)(step * (long)i);
            s = s + x[at];
            y[at] = s;
        }
    }
}
