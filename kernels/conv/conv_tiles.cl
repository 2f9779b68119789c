/* conv_tiles.cl - convolution and its gradients as products of matrices that are never unfolded: the rules, and the
 * bits, are those of conv.cl.
 *
 *     forward      rows are output pixels, columns outputs, k goes over taps and channels
 *     grad_data    rows are pixels of one remainder by the stride, columns channels, k goes over the taps that
 *                  meet that remainder, and outputs
 *     grad_weight  rows are taps and channels, columns outputs, k goes over output pixels
 *
 * A group is one work-item. It makes row_block x 64 sums in local memory. For each DEPTH of k it copies a panel of
 * 64 columns. What its rows see lies in long runs: in NHWC channels, and taps across a window, are side by side. Six
 * rows that lie inside of the image are multiplied where they are; else, and for grad_weight, their runs are copied,
 * with zeros for the padding. 6 rows by 64 columns of sums then lie in registers. Between depths the sums are stored
 * and loaded as the floats that they are: each is one chain, whatever DEPTH and row_block.
 *
 * 64 columns, for channels come in 64s: 6 x 4 vectors of sums, 4 of the panel. Sizes: DEPTH and rows follow the
 * device's local memory (KEEL_LARGE_LOCAL, KEEL_TINY_LOCAL) and change no bit. Tolerance against the host: none, equal bits. */

#ifdef KEEL_LARGE_LOCAL
enum { DEPTH = 128, ROWS_MAX = 384, WEIGHT_ROWS_MAX = 192 };
#elif defined(KEEL_TINY_LOCAL)
enum { DEPTH = 16, ROWS_MAX = 24, WEIGHT_ROWS_MAX = 24 };
#else
enum { DEPTH = 32, ROWS_MAX = 48, WEIGHT_ROWS_MAX = 48 };
#endif
enum { TILE_ROWS = 6, TILE_COLUMNS = 64, BLOCK_STRIDE = DEPTH + 16 };
/* Of rows that are not copied: as many runs, and taps with so many channels are runs of their own, so that fewer
 * of them cross an edge. */
enum { RUNS_FAR = 8, CHANNELS_ALONE = 64 };
#define LINED  __attribute__((aligned(64)))

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
    CANON_INLINE void tile_##V(__local const float *block, const uint step_i, const uint step_p,             \
                               __local const float *panel, uint depth, bool first, __local float *sums)      \
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
CANON_INLINE void multiply(__local const float *block, const uint step_i, const uint step_p,
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
CANON_INLINE void panel_rows(__global const float *b, uint row, uint columns, uint depth, __local float *panel)
{
    for (uint p = 0; p < depth; p++) {
        for (uint j = 0; j < columns; j += 16)
            vstore16(canon_load(b + j, columns - j), 0, panel + j);
        b += row;
        panel += TILE_COLUMNS;
    }
}

CANON_INLINE void transpose(__global const float *b, ulong row, __local float *panel)
{
#if KEEL_BY_LANE == 0
#define PIECE(l, c) vload4(c, b + (l) * row)
#define PUT(m, v)   vstore16(v, 0, panel + (m) * TILE_COLUMNS);
    TURN_TILE(float16)
#endif
}

/* The same of a matrix that lies the other way: column j at b + j * row. */
CANON_INLINE void panel_columns(__global const float *b, ulong row, uint columns, uint depth, __local float *panel)
{
    for (uint j = 0; j < columns; j += 16) {
        const uint wide = min(columns - j, 16u);
        uint p = 0;
        if (KEEL_BY_LANE == 0 && wide == 16)
            for (; p + 16 <= depth; p += 16)
                transpose(b + j * row + p, row, panel + p * TILE_COLUMNS + j);
        for (; p < depth; p++)
            for (uint l = 0; l < 16; l++)
                panel[p * TILE_COLUMNS + j + l] = l < wide ? b[(j + l) * row + p] : 0.0f;
    }
}

/* ---- what rows see ---- */

/* n values; the last sixteen may lie over some that were copied before. */
CANON_INLINE void copy(__global const float *from, uint n, __local float *to)
{
    uint i = 0;
    for (; i + 16 <= n; i += 16)
        vstore16(vload16(0, from + i), 0, to + i);
    if (i < n && n >= 16)
        vstore16(vload16(0, from + n - 16), 0, to + n - 16);
    for (; i < n && n < 16; i++)
        to[i] = from[i];
}
CANON_INLINE void zero(uint n, __local float *to)
{
    for (uint i = 0; i < n; i++)
        to[i] = 0.0f;
}

/* Where a row's window begins, in pixels of an image that may be left at any side: down, across, and as the number
 * of a pixel among all images. */
struct corner {
    int top, left, number;
};

/* Rows `first` to before first + count, of high x wide to an image: each at (p, q) * stride - pad. */
CANON_INLINE void find_corners(uint first, uint count, uint high, uint wide, uint height, uint width, int stride_h,
                         int stride_w, int pad_h, int pad_w, __local struct corner *out)
{
    int b = (int)(first / wide / high), p = (int)(first / wide % high), q = (int)(first % wide);
    for (uint r = 0; r < count; r++) {
        out[r].top = p * stride_h - pad_h;
        out[r].left = q * stride_w - pad_w;
        out[r].number = (b * (int)height + out[r].top) * (int)width + out[r].left;
        q++;
        p += q == (int)wide;
        q = q == (int)wide ? 0 : q;
        b += p == (int)high;
        p = p == (int)high ? 0 : p;
    }
}

/* Images, and some neighbouring taps of a window, each of `each` values `apart` floats from the next: what a row sees
 * of them is a run of taps * each values, of which `n` from number `skip` are wanted. */
struct run {
    int height, width, down, across; /* down and across: the first tap, from the corner */
    uint apart, each, taps, skip, n;
};

CANON_INLINE void copy_clipped(__global const float *x, struct run run, struct corner at, __local float *to)
{
    const int left = at.left + run.across, u = at.top + run.down;
    const uint end = run.skip + run.n;
    uint low = (uint)clamp(-left, 0, (int)run.taps), high = (uint)clamp(run.width - left, 0, (int)run.taps);
    low = clamp(low * run.each, run.skip, end);
    high = u >= 0 && u < run.height ? clamp(high * run.each, low, end) : low;
    zero(low - run.skip, to);
    copy(x + ((long)(at.number + run.down * run.width + run.across) * run.apart + low), high - low,
         to + (low - run.skip));
    zero(end - high, to + (high - run.skip));
}

CANON_INLINE bool is_inside(const struct run run, const struct corner at)
{
    const int left = at.left + run.across, u = at.top + run.down;
    return u >= 0 && u < run.height && left >= 0 && left <= run.width - (int)run.taps;
}
/* Where a run begins, from a corner's pixel. */
CANON_INLINE long ahead_of(const struct run run)
{
    return (long)(run.down * run.width + run.across) * run.apart + run.skip;
}

/* All runs of `count` rows, to rows `stride` floats apart. */
CANON_INLINE void gather(__global const float *x, __local const struct run *runs, uint run_count,
                         __local const struct corner *at, uint count, __local float *to, uint stride)
{
    for (uint i = 0; i < run_count; i++) {
        const struct run run = runs[i];
        const long ahead = ahead_of(run);
        for (uint r = 0; r < count; r++) {
            const struct corner c = at[r];
            if (is_inside(run, c))
                copy(x + ((long)c.number * run.apart + ahead), run.n, to + r * stride);
            else
                copy_clipped(x, run, c, to + r * stride);
        }
        to += run.n;
    }
}

/* As `multiply`, of six rows where they are, all of whose runs lie inside, by a panel of more than 48 columns. */
#define FAR_ROW(C, X, r)                                                                                     \
    {                                                                                                        \
        const float16 a = (float16)(x[row##r + p]);                                                          \
        C(X, r)                                                                                              \
    }
#if KEEL_BY_LANE < 2
CANON_INLINE void multiply_far(__global const float *x, __local const struct run *runs, uint run_count,
                         __local const struct corner *at, __local const float *panel, bool first,
                         __local float *sums)
{
#define ROW_AT(C, X, r) const long row##r = (long)at[r].number * runs[0].apart;
    EACH_ROW(ROW_AT, 4, BEGIN)
    EACH_ROW(WHOLE_ROW, 4, BEGIN)
    for (uint i = 0; i < run_count; i++) {
        long p = ahead_of(runs[i]);
        for (const long end = p + runs[i].n; p < end; p++) {
            COLUMNS_4(LOAD, 0)
            EACH_ROW(FAR_ROW, 4, STEP)
            panel += TILE_COLUMNS;
        }
    }
    EACH_ROW(WHOLE_ROW, 4, END)
}
#endif

/* Up to 6 rows by a panel; those that lack, or cross an edge, go by way of `block`. */
CANON_INLINE void add_rows(__global const float *x, __local const struct run *runs, uint run_count,
                     __local const struct corner *at, uint count, __local float *block,
                     __local const float *panel, uint columns, uint depth, bool first, __local float *sums)
{
#if KEEL_BY_LANE < 2
    bool inside = count == TILE_ROWS && columns > 48 && run_count <= RUNS_FAR;
    for (uint i = 0; i < run_count && inside; i++)
        for (uint r = 0; r < TILE_ROWS; r++)
            inside = inside && is_inside(runs[i], at[r]);
    if (inside) {
        multiply_far(x, runs, run_count, at, panel, first, sums);
        return;
    }
#endif
    gather(x, runs, run_count, at, count, block, BLOCK_STRIDE);
    for (uint t = count; t < TILE_ROWS; t++)
        zero(depth, block + t * BLOCK_STRIDE);
    multiply(block, BLOCK_STRIDE, 1, panel, columns, depth, first, sums);
}

/* Of all that output pixels see, taps and channels in order, the runs of `depth` values from number `from`; returns
 * how many. Taps across are one run where they are neighbours, and have fewer than channels_alone channels. */
CANON_INLINE uint window_runs(struct conv g, uint channels_alone, uint from, uint depth, __local struct run *runs)
{
    const bool merged = g.groups == 1 && g.dilation_w == 1 && g.in < channels_alone;
    const uint taps = merged ? g.kernel_w : 1, whole = taps * g.in, across = merged ? 1 : g.kernel_w;
    uint number = from / whole, skip = from % whole, count = 0;
    while (depth > 0) {
        const uint n = min(whole - skip, depth);
        const struct run run = {(int)g.height,
                                (int)g.width,
                                (int)(number / across * g.dilation_h),
                                (int)(number % across * g.dilation_w),
                                g.channels,
                                g.in,
                                taps,
                                skip,
                                n};
        runs[count++] = run;
        depth -= n;
        skip = 0;
        number++;
    }
    return count;
}

/* Of the taps along one axis, those that meet a remainder: first, first + step, ..., `count` of them. */
struct meeting {
    uint first, step, count;
};
static struct meeting meeting_of(uint remainder, uint pad, uint stride, uint dilation, uint taps)
{
    const uint at = remainder + pad;
    struct meeting m = {0, 1, 0};
    while (m.first < taps &&
           (at > m.first * dilation ? at - m.first * dilation : m.first * dilation - at) % stride != 0)
        m.first++;
    while (m.step < taps && m.step * dilation % stride != 0)
        m.step++;
    m.count = m.first < taps ? (taps - 1 - m.first) / m.step + 1 : 0;
    return m;
}

/* The same of what reaches the pixels of dx of one remainder; and the panel of the weights that take it there. */
CANON_INLINE uint back_runs(struct conv g, uint top, uint left, struct meeting down, struct meeting across, uint from,
                      uint depth, __global const float *w, uint columns, __local struct run *runs,
                      __local float *panel)
{
    uint number = from / g.out, skip = from % g.out, count = 0;
    while (depth > 0) {
        const uint n = min(g.out - skip, depth);
        const uint i = down.first + number / across.count * down.step;
        const uint j = across.first + number % across.count * across.step;
        const struct run run = {(int)g.out_h,
                                (int)g.out_w,
                                ((int)(top + g.pad_h) - (int)(i * g.dilation_h)) / (int)g.stride_h,
                                ((int)(left + g.pad_w) - (int)(j * g.dilation_w)) / (int)g.stride_w,
                                g.out_channels,
                                g.out,
                                1,
                                skip,
                                n};
        runs[count++] = run;
        panel_columns(w + (ulong)(i * g.kernel_w + j) * g.in * g.out_channels + skip, g.out_channels, columns, n,
                      panel);
        panel += n * TILE_COLUMNS;
        depth -= n;
        skip = 0;
        number++;
    }
    return count;
}

/* ---- kernels ---- */

/* A row of sums to where it belongs: all + 0, then the bias; with `old` added to what is there. */
CANON_INLINE void finish(__local const float *sums, uint columns, __global const float *bias, uint has_bias,
                         __global float *to, bool old)
{
    for (uint j = 0; j < columns; j += 16) {
        float16 s = canon_plus_zero(vload16(0, sums + j));
        if (has_bias)
            s = s + canon_load(bias + j, columns - j);
        if (old)
            s = canon_load(to + j, columns - j) + s;
        canon_store(s, to + j, columns - j);
    }
}

__kernel void keel_conv2d_tiles(__global const float *x, __global const float *w, __global const float *bias,
                                __global float *y, GEOMETRY, uint has_bias, uint row_block)
{
    __local float LINED panel[DEPTH * TILE_COLUMNS];
    __local float LINED sums[ROWS_MAX * TILE_COLUMNS];
    __local float LINED block[TILE_ROWS * BLOCK_STRIDE];
    __local struct corner at[ROWS_MAX];
    __local struct run runs[DEPTH];
    const struct conv g = CONV;
    const uint strips = (g.out + TILE_COLUMNS - 1) / TILE_COLUMNS, group = get_group_id(1) / strips;
    const uint first = get_group_id(1) % strips * TILE_COLUMNS, columns = min(g.out - first, (uint)TILE_COLUMNS);
    const uint o = group * g.out + first, row = get_group_id(2) * row_block;
    const uint rows = min(row_block, batch * out_h * out_w - row), k = kernel_h * kernel_w * g.in;
    find_corners(row, rows, out_h, out_w, height, width, (int)stride_h, (int)stride_w, (int)pad_h, (int)pad_w,
                 at);
    for (uint p = 0; p < k; p += DEPTH) {
        const uint depth = min((uint)DEPTH, k - p);
        const uint run_count = window_runs(g, CHANNELS_ALONE, p, depth, runs);
        panel_rows(w + (ulong)p * out_channels + o, out_channels, columns, depth, panel);
        for (uint r = 0; r < rows; r += TILE_ROWS) {
            const uint count = min(rows - r, (uint)TILE_ROWS);
            add_rows(x + group * g.in, runs, run_count, at + r, count, block, panel, columns, depth, p == 0,
                     sums + r * TILE_COLUMNS);
        }
    }
    for (uint r = 0; r < rows; r++)
        finish(sums + r * TILE_COLUMNS, columns, bias + o, has_bias, y + (ulong)(row + r) * out_channels + o,
               false);
}

__kernel void keel_conv2d_grad_data_tiles(__global const float *dy, __global const float *w,
                                          __global const float *unused, __global float *dx, GEOMETRY,
                                          uint has_bias, uint row_block)
{
    __local float LINED panel[DEPTH * TILE_COLUMNS];
    __local float LINED sums[ROWS_MAX * TILE_COLUMNS];
    __local float LINED block[TILE_ROWS * BLOCK_STRIDE];
    __local struct corner at[ROWS_MAX];
    __local struct run runs[DEPTH];
    const struct conv g = CONV;
    const uint strips = (g.in + TILE_COLUMNS - 1) / TILE_COLUMNS, group = get_group_id(1) / strips;
    const uint first = get_group_id(1) % strips * TILE_COLUMNS, columns = min(g.in - first, (uint)TILE_COLUMNS);
    const uint lefts = min(stride_w, width), top = get_group_id(0) / lefts, left = get_group_id(0) % lefts;
    const uint high = (height - top - 1) / stride_h + 1, wide = (width - left - 1) / stride_w + 1;
    const uint row = get_group_id(2) * row_block, all = batch * high * wide;
    if (row >= all)
        return;
    const struct meeting down = meeting_of(top, pad_h, stride_h, dilation_h, kernel_h);
    const struct meeting across = meeting_of(left, pad_w, stride_w, dilation_w, kernel_w);
    const uint rows = min(row_block, all - row), k = down.count * across.count * g.out;
    find_corners(row, rows, high, wide, out_h, out_w, 1, 1, 0, 0, at);
    for (uint p = 0; p < k; p += DEPTH) {
        const uint depth = min((uint)DEPTH, k - p);
        const uint run_count =
            back_runs(g, top, left, down, across, p, depth, w + (ulong)first * out_channels + group * g.out, columns,
                      runs, panel);
        for (uint r = 0; r < rows; r += TILE_ROWS) {
            const uint count = min(rows - r, (uint)TILE_ROWS);
            add_rows(dy + group * g.out, runs, run_count, at + r, count, block, panel, columns, depth, p == 0,
                     sums + r * TILE_COLUMNS);
        }
    }
    find_corners(row, rows, high, wide, height, width, (int)stride_h, (int)stride_w, -(int)top, -(int)left, at);
    for (uint r = 0; r < rows; r++) {
        for (uint j = 0; k == 0 && j < columns; j++)
            sums[r * TILE_COLUMNS + j] = 0.0f;
        finish(sums + r * TILE_COLUMNS, columns, dy, 0, dx + (ulong)at[r].number * channels + group * g.in + first,
               false);
    }
}

__kernel void keel_conv2d_grad_weight_tiles(__global const float *x, __global const float *dy,
                                            __global const float *unused, __global float *dw, GEOMETRY,
                                            uint has_bias, uint row_block)
{
    __local float LINED panel[DEPTH * TILE_COLUMNS];
    __local float LINED sums[WEIGHT_ROWS_MAX * TILE_COLUMNS];
    __local float LINED block[DEPTH * WEIGHT_ROWS_MAX];
    __local struct corner at[DEPTH];
    __local struct run runs[WEIGHT_ROWS_MAX];
    const struct conv g = CONV;
    const uint strips = (g.out + TILE_COLUMNS - 1) / TILE_COLUMNS, group = get_group_id(1) / strips;
    const uint first = get_group_id(1) % strips * TILE_COLUMNS, columns = min(g.out - first, (uint)TILE_COLUMNS);
    const uint o = group * g.out + first, row = get_group_id(2) * row_block;
    const uint rows = min(row_block, kernel_h * kernel_w * g.in - row), k = batch * out_h * out_w;
    const uint run_count = window_runs(g, UINT_MAX, row, rows, runs);
    for (uint p = 0; p < k; p += DEPTH) {
        const uint depth = min((uint)DEPTH, k - p);
        panel_rows(dy + (ulong)p * out_channels + o, out_channels, columns, depth, panel);
        find_corners(p, depth, out_h, out_w, height, width, (int)stride_h, (int)stride_w, (int)pad_h, (int)pad_w,
                     at);
        gather(x + group * g.in, runs, run_count, at, depth, block, WEIGHT_ROWS_MAX);
        for (uint r = rows; r % TILE_ROWS != 0; r++)
            for (uint d = 0; d < depth; d++)
                block[d * WEIGHT_ROWS_MAX + r] = 0.0f;
        for (uint r = 0; r < rows; r += TILE_ROWS)
            multiply(block + r, 1, WEIGHT_ROWS_MAX, panel, columns, depth, p == 0, sums + r * TILE_COLUMNS);
    }
    for (uint r = 0; r < rows; r++)
        finish(sums + r * TILE_COLUMNS, columns, dy, 0, dw + (ulong)(row + r) * out_channels + o, true);
}
