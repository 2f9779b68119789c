/* conv_tiles.cl - convolution and its gradients as products of matrices that are never unfolded: the rules, and the
 * bits, are those of conv.cl.
 *
 *     forward      rows are output pixels, columns outputs, k goes over taps and channels
 *     grad_data    rows are pixels of one remainder by the stride, columns channels, k goes over the taps that
 *                  meet that remainder, and outputs
 *     grad_weight  rows are taps and channels, columns outputs, k goes over output pixels
 *
 * A group is one work-item. It makes row_block x 64 sums in local memory. For each DEPTH of k it copies a panel of
 * 64 columns, and what its rows see: in NHWC the taps across a window lie side by side, so rows are copied in long
 * runs, with zeros for the padding. 6 rows by 64 columns of sums then lie in registers. Between depths the sums
 * are stored and loaded as the floats that they are: each is one chain, whatever DEPTH and row_block.
 *
 * 64 columns, for channels come in 64s: 6 x 4 vectors of sums, 4 of the panel. Sizes: DEPTH and rows follow the
 * device's local memory (KEEL_LARGE_LOCAL) and change no bit. Tolerance against the host: none, equal bits. */

#ifdef KEEL_LARGE_LOCAL
enum { DEPTH = 128, ROWS_MAX = 192, WEIGHT_ROWS_MAX = 96 };
#else
enum { DEPTH = 32, ROWS_MAX = 48, WEIGHT_ROWS_MAX = 48 };
#endif
enum { TILE_ROWS = 6, TILE_COLUMNS = 64, BLOCK_STRIDE = DEPTH + 16 };
#define INLINE static inline __attribute__((always_inline))

#define GEOMETRY                                                                                             \
    uint batch, uint height, uint width, uint channels, uint out_channels, uint kernel_h, uint kernel_w,     \
        uint stride_h, uint stride_w, uint pad_h, uint pad_w, uint dilation_h, uint dilation_w, uint groups, \
        uint out_h, uint out_w
struct conv {
    uint batch, height, width, channels, out_channels, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w,
        dilation_h, dilation_w, groups, out_h, out_w;
    uint in, out; /* channels and outputs of a group */
};
#define CONV                                                                                                 \
    {                                                                                                        \
        batch, height, width, channels, out_channels, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w,  \
            dilation_h, dilation_w, groups, out_h, out_w, channels / groups, out_channels / groups           \
    }

/* ---- tiles ---- */

#define COLUMNS_1(X, r) X(r, 0)
#define COLUMNS_2(X, r) X(r, 0) X(r, 1)
#define COLUMNS_3(X, r) X(r, 0) X(r, 1) X(r, 2)
#define COLUMNS_4(X, r) X(r, 0) X(r, 1) X(r, 2) X(r, 3)
#define EACH_ROW(F, V, X)                                                                                    \
    F(COLUMNS_##V, X, 0)                                                                                     \
    F(COLUMNS_##V, X, 1) F(COLUMNS_##V, X, 2) F(COLUMNS_##V, X, 3) F(COLUMNS_##V, X, 4) F(COLUMNS_##V, X, 5)
#define WHOLE_ROW(C, X, r) C(X, r)
#define FED_ROW(C, X, r)                                                                                     \
    {                                                                                                        \
        const float16 a = (float16)(block[r * step_i]);                                                      \
        C(X, r)                                                                                              \
    }
#define LOAD(r, v)  const float16 b##v = vload16(v, panel);
#define BEGIN(r, v) float16 s##r##v = first ? (float16)(0.0f) : vload16(4 * r + v, sums);
#define STEP(r, v)  s##r##v = fma(a, b##v, s##r##v);
#define END(r, v)   vstore16(s##r##v, 4 * r + v, sums);
#define TILE(V)                                                                                              \
    INLINE void tile_##V(__local const float *block, const uint step_i, const uint step_p,                   \
                         __local const float *panel, uint depth, bool first, __local float *sums)            \
    {                                                                                                        \
        EACH_ROW(WHOLE_ROW, V, BEGIN)                                                                        \
        for (uint p = 0; p < depth; p++) {                                                                   \
            COLUMNS_##V(LOAD, 0)                                                                             \
            EACH_ROW(FED_ROW, V, STEP)                                                                       \
            panel += TILE_COLUMNS;                                                                           \
            block += step_p;                                                                                 \
        }                                                                                                    \
        EACH_ROW(WHOLE_ROW, V, END)                                                                          \
    }
#if KEEL_BY_LANE < 2
TILE(1)
TILE(2)
TILE(3)
TILE(4)
#endif

/* sums (6 rows of 64): s = fma(block[r * step_i + p * step_p], panel[p][j], s), p ascending; from +0 if `first`. */
INLINE void multiply(__local const float *block, const uint step_i, const uint step_p,
                     __local const float *panel, uint columns, uint depth, bool first, __local float *sums)
{
#if KEEL_BY_LANE >= 2
    for (uint at = 0; at < TILE_ROWS * 4; at++) {
        __local const float *a = block + at / 4 * step_i;
        float16 s = first ? (float16)(0.0f) : vload16(at, sums);
        for (uint p = 0; p < depth && at % 4 * 16 < columns; p++)
            s = canon_wide_fma((float16)(a[p * step_p]), vload16(4 * p + at % 4, panel), s);
        vstore16(s, at, sums);
    }
#else
    if (columns > 48)
        tile_4(block, step_i, step_p, panel, depth, first, sums);
    else if (columns > 32)
        tile_3(block, step_i, step_p, panel, depth, first, sums);
    else if (columns > 16)
        tile_2(block, step_i, step_p, panel, depth, first, sums);
    else
        tile_1(block, step_i, step_p, panel, depth, first, sums);
#endif
}

/* ---- panels ---- */

/* `columns` of each of `depth` rows, `row` floats apart; zeros up to a multiple of 16. */
static void panel_rows(__global const float *b, uint row, uint columns, uint depth, __local float *panel)
{
    for (uint p = 0; p < depth; p++) {
        for (uint j = 0; j < columns; j += 16)
            vstore16(canon_load(b + j, columns - j), 0, panel + j);
        b += row;
        panel += TILE_COLUMNS;
    }
}

#define INTERLEAVE(x, y, h)                                                                                  \
    (float16)(x.h.s0, y.h.s0, x.h.s1, y.h.s1, x.h.s2, y.h.s2, x.h.s3, y.h.s3, x.h.s4, y.h.s4, x.h.s5,        \
              y.h.s5, x.h.s6, y.h.s6, x.h.s7, y.h.s7)
#define EACH_16(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)

/* Four rounds of shuffles: rows i and i + 8 give 2i and 2i + 1. */
INLINE void transpose(__global const float *b, ulong row, __local float *panel)
{
    float16 v[16], t[16];
#define LOAD_ROW(r) v[r] = vload16(0, b + r * row);
    EACH_16(LOAD_ROW)
#define SHUFFLE_8(to, from)                                                                                  \
    SHUFFLE_1(to, from, 0)                                                                                   \
    SHUFFLE_1(to, from, 1)                                                                                   \
    SHUFFLE_1(to, from, 2)                                                                                   \
    SHUFFLE_1(to, from, 3)                                                                                   \
    SHUFFLE_1(to, from, 4) SHUFFLE_1(to, from, 5) SHUFFLE_1(to, from, 6) SHUFFLE_1(to, from, 7)
#define SHUFFLE_1(to, from, i)                                                                               \
    to[2 * i] = INTERLEAVE(from[i], from[i + 8], lo);                                                        \
    to[2 * i + 1] = INTERLEAVE(from[i], from[i + 8], hi);
    SHUFFLE_8(t, v)
    SHUFFLE_8(v, t)
    SHUFFLE_8(t, v)
    SHUFFLE_8(v, t)
#define STORE_ROW(r) vstore16(v[r], 0, panel + r * TILE_COLUMNS);
    EACH_16(STORE_ROW)
}

/* The same of a matrix that lies the other way: column j at b + j * row. */
static void panel_columns(__global const float *b, ulong row, uint columns, uint depth, __local float *panel)
{
    for (uint j = 0; j < columns; j += 16) {
        const uint wide = min(columns - j, 16u);
        uint p = 0;
        if (KEEL_BY_LANE < 2 && wide == 16)
            for (; p + 16 <= depth; p += 16)
                transpose(b + j * row + p, row, panel + p * TILE_COLUMNS + j);
        for (; p < depth; p++)
            for (uint l = 0; l < 16; l++)
                panel[p * TILE_COLUMNS + j + l] = l < wide ? b[(j + l) * row + p] : 0.0f;
    }
}

/* ---- what rows see ---- */

INLINE void copy(__global const float *from, uint n, __local float *to)
{
    uint i = 0;
    for (; i + 16 <= n; i += 16)
        vstore16(vload16(0, from + i), 0, to + i);
    for (; i < n; i++)
        to[i] = from[i];
}
INLINE void zero(uint n, __local float *to)
{
    uint i = 0;
    for (; i + 16 <= n; i += 16)
        vstore16((float16)(0.0f), 0, to + i);
    for (; i < n; i++)
        to[i] = 0.0f;
}

/* An output pixel, or one of dx, counted in its phase. */
struct pixel {
    uint b, p, q;
};
INLINE struct pixel pixel_of(uint row, uint high, uint wide)
{
    const struct pixel at = {row / wide / high, row / wide % high, row % wide};
    return at;
}
INLINE struct pixel next_pixel(struct pixel at, uint high, uint wide)
{
    at.q++;
    if (at.q == wide) {
        at.q = 0;
        at.p++;
    }
    if (at.p == high) {
        at.p = 0;
        at.b++;
    }
    return at;
}

/* Of all that an output pixel sees, taps and channels in order, `depth` values from number `from`. Taps of one row
 * of the window are one run where they are neighbours. */
static void gather(__global const float *x, struct conv g, struct pixel at, uint group, uint from, uint depth,
                   __local float *to)
{
    const bool merged = g.groups == 1 && g.dilation_w == 1;
    const uint run = merged ? g.kernel_w * g.channels : g.in, taps = merged ? 1 : g.kernel_w;
    const uint across = merged ? g.kernel_w : 1;
    uint number = from / run, skip = from % run;
    while (depth > 0) {
        const uint n = min(run - skip, depth), u = at.p * g.stride_h + number / taps * g.dilation_h - g.pad_h;
        const int left = (int)(at.q * g.stride_w + number % taps * g.dilation_w) - (int)g.pad_w;
        /* taps [low, high) of the run lie in the image */
        uint low = (uint)clamp(-left, 0, (int)across), high = (uint)clamp((int)g.width - left, 0, (int)across);
        low = clamp(low * g.in, skip, skip + n);
        high = u < g.height ? clamp(high * g.in, low, skip + n) : low;
        const long first = (((long)at.b * g.height + u) * g.width + left) * g.channels + group * g.in;
        zero(low - skip, to);
        copy(x + (first + low), high - low, to + (low - skip));
        zero(skip + n - high, to + (high - skip));
        to += n;
        depth -= n;
        skip = 0;
        number++;
    }
}

/* Of the taps along one axis, those that meet a remainder: first, first + step, ..., `count` of them. */
struct meeting {
    uint first, step, count;
};
INLINE struct meeting meeting_of(uint remainder, uint pad, uint stride, uint dilation, uint taps)
{
    struct meeting m = {0, 1, 0};
    while (m.first < taps && (remainder + pad + m.first * dilation * (stride - 1)) % stride != 0)
        m.first++;
    while (m.step * dilation % stride != 0)
        m.step++;
    m.count = m.first < taps ? (taps - 1 - m.first) / m.step + 1 : 0;
    return m;
}

/* The same of what reaches a pixel of dx: `tap` and `o` are where to begin; u and v the pixel, padding added. */
static void gather_back(__global const float *dy, struct conv g, struct meeting down, struct meeting across, uint b,
                        uint u, uint v, uint group, uint from, uint depth, __local float *to)
{
    uint number = from / g.out, skip = from % g.out;
    while (depth > 0) {
        const uint n = min(g.out - skip, depth);
        const uint i = (down.first + number / across.count * down.step) * g.dilation_h;
        const uint j = (across.first + number % across.count * across.step) * g.dilation_w;
        const uint p = (u - i) / g.stride_h, q = (v - j) / g.stride_w;
        if (u >= i && v >= j && p < g.out_h && q < g.out_w)
            copy(dy + (((ulong)b * g.out_h + p) * g.out_w + q) * g.out_channels + group * g.out + skip, n, to);
        else
            zero(n, to);
        to += n;
        depth -= n;
        skip = 0;
        number++;
    }
}

/* ---- kernels ---- */

__kernel void keel_conv2d_tiles(__global const float *x, __global const float *w, __global const float *bias,
                                __global float *y, GEOMETRY, uint has_bias, uint row_block)
{
    __local float panel[DEPTH * TILE_COLUMNS];
    __local float sums[ROWS_MAX * TILE_COLUMNS];
    __local float block[TILE_ROWS * BLOCK_STRIDE];
    const struct conv g = CONV;
    const uint strips = (g.out + TILE_COLUMNS - 1) / TILE_COLUMNS, group = get_group_id(0) / strips;
    const uint first = get_group_id(0) % strips * TILE_COLUMNS, columns = min(g.out - first, (uint)TILE_COLUMNS);
    const uint o = group * g.out + first, row = get_group_id(1) * row_block;
    const uint rows = min(row_block, batch * out_h * out_w - row), k = kernel_h * kernel_w * g.in;
    for (uint p = 0; p < k; p += DEPTH) {
        const uint depth = min((uint)DEPTH, k - p);
        panel_rows(w + (ulong)p * out_channels + o, out_channels, columns, depth, panel);
        struct pixel at = pixel_of(row, out_h, out_w);
        for (uint r = 0; r < rows; r += TILE_ROWS) {
            for (uint t = 0; t < TILE_ROWS; t++) {
                gather(x, g, at, group, p, depth, block + t * BLOCK_STRIDE);
                at = r + t + 1 < rows ? next_pixel(at, out_h, out_w) : at;
            }
            multiply(block, BLOCK_STRIDE, 1, panel, columns, depth, p == 0, sums + r * TILE_COLUMNS);
        }
    }
    y += (ulong)row * out_channels + o;
    for (uint r = 0; r < rows; r++)
        for (uint j = 0; j < columns; j += 16) {
            float16 s = canon_plus_zero_x16(vload16(0, sums + r * TILE_COLUMNS + j));
            if (has_bias)
                s = s + canon_load(bias + o + j, columns - j);
            canon_store(s, y + (ulong)r * out_channels + j, columns - j);
        }
}

__kernel void keel_conv2d_grad_data_tiles(__global const float *dy, __global const float *w,
                                          __global const float *unused, __global float *dx, GEOMETRY,
                                          uint has_bias, uint row_block)
{
    __local float panel[DEPTH * TILE_COLUMNS];
    __local float sums[ROWS_MAX * TILE_COLUMNS];
    __local float block[TILE_ROWS * BLOCK_STRIDE];
    const struct conv g = CONV;
    const uint strips = (g.in + TILE_COLUMNS - 1) / TILE_COLUMNS, group = get_group_id(0) / strips;
    const uint first = get_group_id(0) % strips * TILE_COLUMNS, columns = min(g.in - first, (uint)TILE_COLUMNS);
    const uint lefts = min(stride_w, width);
    const uint top = get_group_id(2) / lefts, left = get_group_id(2) % lefts;
    const uint high = (height - top - 1) / stride_h + 1, wide = (width - left - 1) / stride_w + 1;
    const uint row = get_group_id(1) * row_block, all = batch * high * wide;
    if (row >= all)
        return;
    const struct meeting down = meeting_of(top, pad_h, stride_h, dilation_h, kernel_h);
    const struct meeting across = meeting_of(left, pad_w, stride_w, dilation_w, kernel_w);
    const uint rows = min(row_block, all - row), k = down.count * across.count * g.out;
    for (uint p = 0; p < k; p += DEPTH) {
        const uint depth = min((uint)DEPTH, k - p);
        for (uint d = 0; d < depth;) {
            const uint number = (p + d) / g.out, skip = (p + d) % g.out, n = min(g.out - skip, depth - d);
            const uint i = down.first + number / across.count * down.step;
            const uint j = across.first + number % across.count * across.step;
            panel_columns(w + ((ulong)(i * kernel_w + j) * g.in + first) * out_channels + group * g.out + skip,
                          out_channels, columns, n, panel + d * TILE_COLUMNS);
            d += n;
        }
        struct pixel at = pixel_of(row, high, wide);
        for (uint r = 0; r < rows; r += TILE_ROWS) {
            for (uint t = 0; t < TILE_ROWS; t++) {
                gather_back(dy, g, down, across, at.b, top + at.p * stride_h + pad_h,
                            left + at.q * stride_w + pad_w, group, p, depth, block + t * BLOCK_STRIDE);
                at = r + t + 1 < rows ? next_pixel(at, high, wide) : at;
            }
            multiply(block, BLOCK_STRIDE, 1, panel, columns, depth, p == 0, sums + r * TILE_COLUMNS);
        }
    }
    struct pixel at = pixel_of(row, high, wide);
    for (uint r = 0; r < rows; r++) {
        const ulong to = ((ulong)at.b * height + top + at.p * stride_h) * width + left + at.q * stride_w;
        for (uint j = 0; j < columns; j += 16) {
            const float16 s = k == 0 ? (float16)(0.0f) : vload16(0, sums + r * TILE_COLUMNS + j);
            canon_store(canon_plus_zero_x16(s), dx + to * channels + group * g.in + first + j, columns - j);
        }
        at = next_pixel(at, high, wide);
    }
}

__kernel void keel_conv2d_grad_weight_tiles(__global const float *x, __global const float *dy,
                                            __global const float *unused, __global float *dw, GEOMETRY,
                                            uint has_bias, uint row_block)
{
    __local float panel[DEPTH * TILE_COLUMNS];
    __local float sums[WEIGHT_ROWS_MAX * TILE_COLUMNS];
    __local float block[DEPTH * WEIGHT_ROWS_MAX];
    const struct conv g = CONV;
    const uint strips = (g.out + TILE_COLUMNS - 1) / TILE_COLUMNS, group = get_group_id(0) / strips;
    const uint first = get_group_id(0) % strips * TILE_COLUMNS, columns = min(g.out - first, (uint)TILE_COLUMNS);
    const uint o = group * g.out + first, row = get_group_id(1) * row_block;
    const uint rows = min(row_block, kernel_h * kernel_w * g.in - row), k = batch * out_h * out_w;
    struct pixel at = {0, 0, 0};
    for (uint p = 0; p < k; p += DEPTH) {
        const uint depth = min((uint)DEPTH, k - p);
        panel_rows(dy + (ulong)p * out_channels + o, out_channels, columns, depth, panel);
        for (uint d = 0; d < depth; d++) {
            gather(x, g, at, group, row, rows, block + d * WEIGHT_ROWS_MAX);
            for (uint r = rows; r % TILE_ROWS != 0; r++)
                block[d * WEIGHT_ROWS_MAX + r] = 0.0f;
            at = next_pixel(at, out_h, out_w);
        }
        for (uint r = 0; r < rows; r += TILE_ROWS)
            multiply(block + r, 1, WEIGHT_ROWS_MAX, panel, columns, depth, p == 0, sums + r * TILE_COLUMNS);
    }
    dw += (ulong)row * out_channels + o;
    for (uint r = 0; r < rows; r++)
        for (uint j = 0; j < columns; j += 16) {
            __global float *to = dw + (ulong)r * out_channels + j;
            const float16 s = canon_plus_zero_x16(vload16(0, sums + r * TILE_COLUMNS + j));
            canon_store(canon_load(to, columns - j) + s, to, columns - j);
        }
}
