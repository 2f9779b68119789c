/* gemm_tile.h - panels, row blocks and tiles: what kernels that multiply matrices are made of (OpenCL C only;
 * kernels_CL_NAME in sources.mk puts it, behind canon_half.h, before NAME.cl).
 *
 * A group makes strips of C, 48 columns wide. For some depth of k it copies rows of op(A) to blocks in local
 * memory, 8 rows to a block, each k of a block 8 floats side by side (tile_pack_a), and 48 columns of op(B)
 * to a panel, 48 floats for each k (tile_pack_b). tile_multiply then adds a block times a panel to 8 x 48
 * sums in local memory; after the last panel tile_finish turns them into C. Who has other matrices than
 * these, say the pixels that a convolution's window meets, fills blocks or panels of the same form. An
 * element of C is one chain of fma, k ascending: sums are stored and loaded as the floats that they are, so
 * panels of any depth give the same bits.
 *
 * Owns the arithmetic and the checksums of tiles. Leaves to others: which rows and columns, and local memory.
 * Types: enum keel_dtype, fp32 or one of the 16-bit formats, which become floats while they are copied. */

enum { TILE_ROWS = 8, TILE_COLUMNS = 48 };
/* What tile_finish does with the sums, in `flags`. */
enum { ACCUMULATE = 4, BIAS = 8, PRE = 16, RESIDUAL = 128, FRESH = 32768 };
/* Whether strips of so many columns go by vectors; else they go as those of fewer than 48 do. */
#define WHOLE(columns) (KEEL_BY_LANE < 2 && (columns) == TILE_COLUMNS)

/* ---- copies, k by k ---- */

/* Four vectors of two 4 x 4 blocks, side by side, are transposed block by block: two shuffles for each, none
 * from block to block, so that no register holds indices. */
#define LOW(x, y)        (float8)(x.s0, y.s0, x.s1, y.s1, x.s4, y.s4, x.s5, y.s5)
#define HIGH(x, y)       (float8)(x.s2, y.s2, x.s3, y.s3, x.s6, y.s6, x.s7, y.s7)
#define LOW_PAIRS(x, y)  (float8)(x.s01, y.s01, x.s45, y.s45)
#define HIGH_PAIRS(x, y) (float8)(x.s23, y.s23, x.s67, y.s67)

/* Eight floats in one store, as canon_vector.h does it for sixteen. */
#if KEEL_BY_LANE == 0
typedef float8 tile_float8 __attribute__((aligned(4)));
#define STORE_8(v, p) (*(__local tile_float8 *)(p) = (v))
#else
#define STORE_8(v, p) vstore8(v, 0, p)
#endif

#define GET_FLOATS(x, at, type) vload16(0, (__global const float *)(x) + (at))

/* Four elements of each of rows 0, 4, 1 and 5. */
#define FOURS(from, row)                                                                                     \
    (vload4(0, from), vload4(0, (from) + 4 * (row)), vload4(0, (from) + (row)), vload4(0, (from) + 5 * (row)))
static inline float16 fours_floats(__global const void *x, ulong at, ulong row, uint type)
{
    __global const float *from = (__global const float *)x + at;
    (void)type;
    return (float16)FOURS(from, row);
}
static inline float16 fours_halves(__global const void *x, ulong at, ulong row, uint type)
{
    __global const ushort *from = (__global const ushort *)x + at;
    return canon_widen_x16(convert_uint16((ushort16)FOURS(from, row)), type);
}

/* Sixteen columns for each of `depth` k: the first eight to lo, the others to hi, `step` floats apart.
 * Element (k, j) of x lies at at + k * row + j (across), or at + j * row + k (down: 8 rows are
 * transposed in registers, four k at a time). Once for floats, for a test of the type between their loads
 * cost more than the copy. */
#define PACK_ACROSS(name, GET)                                                                               \
    CANON_INLINE void name(__global const void *x, ulong at, uint row, uint type, uint depth,                \
                           __local float *lo, __local float *hi, uint step)                                  \
    {                                                                                                        \
        for (uint p = 0; p < depth; p++) {                                                                   \
            const float16 v = GET(x, at, type);                                                              \
            STORE_8(v.lo, lo);                                                                               \
            STORE_8(v.hi, hi);                                                                               \
            at += row;                                                                                       \
            lo += step;                                                                                      \
            hi += step;                                                                                      \
        }                                                                                                    \
    }
PACK_ACROSS(pack_across, canon_get_x16)
PACK_ACROSS(pack_across_floats, GET_FLOATS)

/* The k that 4 does not divide. */
CANON_INLINE void pack_down_rest(__global const void *x, ulong at, uint row, uint type, uint from, uint depth,
                                 __local float *lo, __local float *hi, uint step)
{
    for (uint p = from; p < depth; p++)
        for (uint j = 0; j < 8; j++) {
            lo[p * step + j] = canon_get(x, at + (ulong)j * row + p, type);
            hi[p * step + j] = canon_get(x, at + (ulong)(j + 8) * row + p, type);
        }
}
#define PACK_DOWN(name, GET)                                                                                 \
    CANON_INLINE void name##_8(__global const void *x, ulong at, ulong row, uint type, uint depth,           \
                               __local float *to, uint step)                                                 \
    {                                                                                                        \
        for (uint p = 0; p + 4 <= depth; p += 4, at += 4, to += 4 * step) {                                  \
            const float16 v01 = GET(x, at, row, type), v23 = GET(x, at + 2 * row, row, type);                \
            const float8 w0 = LOW(v01.lo, v01.hi), w1 = LOW(v23.lo, v23.hi);                                 \
            const float8 w2 = HIGH(v01.lo, v01.hi), w3 = HIGH(v23.lo, v23.hi);                               \
            STORE_8(LOW_PAIRS(w0, w1), to);                                                                  \
            STORE_8(HIGH_PAIRS(w0, w1), to + step);                                                          \
            STORE_8(LOW_PAIRS(w2, w3), to + 2 * step);                                                       \
            STORE_8(HIGH_PAIRS(w2, w3), to + 3 * step);                                                      \
        }                                                                                                    \
    }                                                                                                        \
    CANON_INLINE void name(__global const void *x, ulong at, uint row, uint type, uint depth,                \
                           __local float *lo, __local float *hi, uint step)                                  \
    {                                                                                                        \
        name##_8(x, at, row, type, depth, lo, step);                                                         \
        name##_8(x, at + 8 * (ulong)row, row, type, depth, hi, step);                                        \
        pack_down_rest(x, at, row, type, depth & ~3u, depth, lo, hi, step);                                  \
    }
PACK_DOWN(pack_down, fours_halves)
PACK_DOWN(pack_down_floats, fours_floats)

/* `columns` of 16; what is missing is zero, and goes nowhere where hi is the end of all. */
CANON_INLINE void pack_some(__global const void *x, ulong at, ulong step_k, ulong step_j, uint type,
                            uint columns, uint depth, __local float *lo, __local float *hi, uint step)
{
    const uint wide = columns > 8 ? 16 : 8;
    for (uint p = 0; p < depth; p++)
        for (uint j = 0; j < wide; j++) {
            __local float *to = j < 8 ? lo + j : hi + j - 8;
            to[p * step] = j < columns ? canon_get(x, at + p * step_k + j * step_j, type) : 0.0f;
        }
}

CANON_INLINE void pack_16(__global const void *x, ulong at, uint row, bool down, uint type, uint columns,
                          uint depth, __local float *lo, __local float *hi, uint step)
{
    if (KEEL_BY_LANE >= 1 || columns < 16)
        pack_some(x, at, down ? 1 : row, down ? row : 1, type, columns, depth, lo, hi, step);
    else if (type != CANON_F32)
        down ? pack_down(x, at, row, type, depth, lo, hi, step)
             : pack_across(x, at, row, type, depth, lo, hi, step);
    else if (down)
        pack_down_floats(x, at, row, type, depth, lo, hi, step);
    else
        pack_across_floats(x, at, row, type, depth, lo, hi, step);
}

/* `rows` of op(A) to blocks that begin block_floats apart; a multiple of 16 goes fast. Rows that lack to a
 * whole block are zero. Element (k, i) lies at at + k * row + i, or, `down`, at at + i * row + k. */
CANON_INLINE void tile_pack_a(__global const void *a, ulong at, uint row, bool down, uint type, uint rows,
                              uint depth, __local float *blocks, uint block_floats)
{
    for (uint r = 0; r < rows; r += 16) {
        __local float *to = blocks + r / TILE_ROWS * block_floats;
        pack_16(a, at + (down ? (ulong)r * row : r), row, down, type, min(rows - r, 16u), depth, to,
                to + block_floats, TILE_ROWS);
    }
}

/* `columns` of op(B), at most 48, to a panel; those that lack are zero. Element (k, j) lies as in
 * tile_pack_a. */
CANON_INLINE void tile_pack_b(__global const void *b, ulong at, uint row, bool down, uint type, uint columns,
                              uint depth, __local float *panel)
{
    for (uint j = 0; j < TILE_COLUMNS; j += 16) {
        if (j < columns)
            pack_16(b, at + (down ? (ulong)j * row : j), row, down, type, min(columns - j, 16u), depth,
                    panel + j, panel + j + 8, TILE_COLUMNS);
        const uint filled = j >= columns ? 0 : columns - j <= 8 ? 8 : 16;
        for (uint p = 0; p < depth && filled < 16; p++)
            for (uint l = filled; l < 16; l++)
                panel[p * TILE_COLUMNS + j + l] = 0.0f;
    }
}

/* ---- what is wanted soon ---- */

/* Lines of far memory that are asked for while tiles are multiplied: a rectangle of `rows` rows, row_bytes
 * apart, of `lines` lines of 64 bytes, in stretches of 8 rows of one line. One line for four k: a core has
 * buffers for some sixteen that are under way, and needs them for its nearer caches too. All zero: nothing.
 * A hint to processors that know one; it changes no bit. */
enum { TILE_STRETCH = 32, STRETCH_ROWS = TILE_STRETCH / 4 };
struct tile_fetch {
    __global const char *from; /* of the next stretch */
    ulong row_bytes;
    uint rows, lines; /* still to ask for: whole rows of lines, from column `line` on */
    uint line;
};

static struct tile_fetch tile_fetch_begin(__global const void *x, ulong at, uint row, uint type, uint rows,
                                          uint columns)
{
    const uint bytes = type == CANON_F32 ? 4 : 2;
    return (struct tile_fetch){(__global const char *)x + at * bytes, (ulong)row * bytes, rows,
                               (columns * bytes + 126) / 64, 0};
}

/* What is asked for first, next and last. */
struct tile_soon {
    struct tile_fetch c, b, a;
};

/* Where the next stretch begins; where nothing is left, what is near already, again and again. */
CANON_INLINE __global const char *fetch_next(struct tile_soon *soon, ulong *step, __local const float *near)
{
    struct tile_fetch *f = soon->c.rows > 0 ? &soon->c : soon->b.rows > 0 ? &soon->b : &soon->a;
    *step = 0;
    if (f->rows == 0)
        return (__global const char *)(size_t)near;
    __global const char *from = f->from + f->line * 64;
    *step = f->row_bytes;
    if (++f->line == f->lines) {
        f->line = 0;
        f->from += STRETCH_ROWS * f->row_bytes;
        f->rows -= min(f->rows, (uint)STRETCH_ROWS);
    }
    return from;
}

/* ---- tiles ---- */

#define EACH_TILE_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define ROW_BEGIN(r)                                                                                         \
    float16 s##r##0 = first ? zero : vload16(3 * r, sums);                                                   \
    float16 s##r##1 = first ? zero : vload16(3 * r + 1, sums);                                               \
    float16 s##r##2 = first ? zero : vload16(3 * r + 2, sums);
#define ROW_FMA(r)                                                                                           \
    {                                                                                                        \
        float16 x = (float16)(rows[r + row]);                                                                \
        s##r##0 = fma(x, b0, s##r##0);                                                                       \
        s##r##1 = fma(x, b1, s##r##1);                                                                       \
        s##r##2 = fma(x, b2, s##r##2);                                                                       \
    }
#define TILE_STEP(p)                                                                                         \
    {                                                                                                        \
        const uint row = (p)*TILE_ROWS;                                                                      \
        float16 b0 = vload16(3 * (p), panel), b1 = vload16(3 * (p) + 1, panel),                              \
                b2 = vload16(3 * (p) + 2, panel);                                                            \
        EACH_TILE_ROW(ROW_FMA)                                                                               \
    }
#define ROW_END(r)                                                                                           \
    vstore16(s##r##0, 3 * r, sums);                                                                          \
    vstore16(s##r##1, 3 * r + 1, sums);                                                                      \
    vstore16(s##r##2, 3 * r + 2, sums);

/* Registers for 24 vectors of sums are those of AVX-512 and of wider machines. With the 16 registers of 8
 * floats that AVX2 has the sums would lie on the stack: a tile in parts of 4 x 16 takes 0.63 of the processor
 * time there (README.md). Same chains, same bits. */
#if defined(__x86_64__) && !defined(__AVX512F__) && KEEL_BY_LANE < 2
#define TILE_IN_PARTS 1
#else
#define TILE_IN_PARTS 0
#endif
#if TILE_IN_PARTS
#define PART_BEGIN(r) float16 s##r = first ? (float16)(0.0f) : vload16(3 * r, sums);
#define PART_FMA(r)   s##r = fma((float16)(rows[r]), b, s##r);
#define PART_END(r)   vstore16(s##r, 3 * r, sums);
#define EACH_PART(X)  X(0) X(1) X(2) X(3)
CANON_INLINE void multiply_part(__local const float *rows, __local const float *panel, uint depth, bool first,
                                __local float *sums)
{
    EACH_PART(PART_BEGIN)
    for (uint p = 0; p < depth; p++, rows += TILE_ROWS, panel += TILE_COLUMNS) {
        const float16 b = vload16(0, panel);
        EACH_PART(PART_FMA)
    }
    EACH_PART(PART_END)
}
#endif

/* sums (8 x 48): s = fma(rows[8 p + r], panel[48 p + j], s), p ascending to depth - 1. `first`: sums begin
 * at +0 instead of what lies there. Meanwhile lines of `soon` are asked for. */
CANON_INLINE void tile_multiply(__local const float *rows, __local const float *panel, uint depth, bool first,
                                __local float *sums, struct tile_soon *soon)
{
#if KEEL_BY_LANE >= 2
    for (uint at = 0; at < TILE_ROWS * 3; at++) {
        float16 s = first ? (float16)(0.0f) : vload16(at, sums);
        for (uint p = 0; p < depth; p++)
            s = canon_wide_fma((float16)(rows[p * TILE_ROWS + at / 3]), vload16(3 * p + at % 3, panel), s);
        vstore16(s, at, sums);
    }
#elif TILE_IN_PARTS
    (void)soon;
    for (uint at = 0; at < 6; at++) /* of 4 rows and 16 columns each */
        multiply_part(rows + at / 3 * 4, panel + at % 3 * 16, depth, first,
                      sums + at / 3 * 4 * TILE_COLUMNS + at % 3 * 16);
#else
    float16 zero = (float16)(0.0f);
    EACH_TILE_ROW(ROW_BEGIN)
    for (uint p = 0; p < depth;) {
        const uint stop = min(p + TILE_STRETCH, depth);
        ulong step;
        __global const char *line = fetch_next(soon, &step, panel);
        for (; p + 4 <= stop; p += 4) {
            CANON_FETCH(line);
            line += step;
            TILE_STEP(0)
            TILE_STEP(1)
            TILE_STEP(2)
            TILE_STEP(3)
            panel += 4 * TILE_COLUMNS;
            rows += 4 * TILE_ROWS;
        }
        for (; p < stop; p++) {
            TILE_STEP(0)
            panel += TILE_COLUMNS;
            rows += TILE_ROWS;
        }
    }
    EACH_TILE_ROW(ROW_END)
#endif
}

/* Sums that begin with C, at c[at], not zero; what lies outside of it repeats its last row and column. */
CANON_INLINE void tile_begin(__global const void *c, ulong at, uint type, uint rows, uint columns, uint ldc,
                             __local float *sums)
{
    for (uint r = 0; r < TILE_ROWS; r++)
        for (uint j = 0; j < TILE_COLUMNS; j++)
            sums[r * TILE_COLUMNS + j] =
                canon_get(c, at + (ulong)min(r, rows - 1) * ldc + min(j, columns - 1), type);
}

/* The checksum of a tile of 8 x 48 elements: down each column h = rotate(h, 5) + bits, from 0; then the sum
 * over columns j of h_j (2j + 1), all modulo 2^32. Each step is a bijection of h, and so is a product with an
 * odd number: whatever changes in one column of a tile, by any number of bits, changes the checksum. */
enum { CHECKSUM_TURN = 5 };

static uint16 checksum_weights(uint v)
{
    return (uint16)(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31) + (uint16)(32 * v);
}

static uint checksum_fold(uint16 h0, uint16 h1, uint16 h2)
{
    uint16 h = h0 * checksum_weights(0) + h1 * checksum_weights(1) + h2 * checksum_weights(2);
#if KEEL_BY_LANE >= 1
    uint lanes[16], sum = 0;
    vstore16(h, 0, lanes);
    for (int l = 0; l < 16; l++)
        sum += lanes[l];
    return sum;
#else
    uint8 a = h.lo + h.hi;
    uint4 b = a.lo + a.hi;
    return b.x + b.y + b.z + b.w;
#endif
}

/* What becomes of sums: C at c[at], of `type` like pre (which is the residual with RESIDUAL); the bias at
 * this column. */
struct tile_end {
    __global void *c, *pre;
    __global const float *bias;
    uint type, ldc, flags;
};

CANON_INLINE uint16 finish_16(__local const float *sums, const struct tile_end *to, ulong at, uint j)
{
    float16 s = vload16(0, sums);
    if (to->flags & BIAS)
        s = s + vload16(0, to->bias + j);
    if (to->flags & ACCUMULATE)
        s = to->flags & FRESH ? canon_plus_zero(s) : canon_get_x16(to->c, at, to->type) + s;
    if (to->flags & RESIDUAL)
        s = canon_get_x16(to->pre, at, to->type) + s;
    if (to->flags & PRE) {
        canon_put_x16(s, to->pre, at, to->type);
        s = canon_gelu(to->type == CANON_F32 ? s : canon_get_x16(to->pre, at, to->type));
    }
    return canon_put_x16(s, to->c, at, to->type);
}

static inline uint finish_1(float s, const struct tile_end *to, ulong at, uint j)
{
    if (to->flags & BIAS)
        s = s + to->bias[j];
    if (to->flags & ACCUMULATE)
        s = to->flags & FRESH ? canon_plus_zero(s) : canon_get(to->c, at, to->type) + s;
    if (to->flags & RESIDUAL)
        s = canon_get(to->pre, at, to->type) + s;
    if (to->flags & PRE) {
        canon_put(s, to->pre, at, to->type);
        s = canon_gelu(canon_get(to->pre, at, to->type));
    }
    return canon_put(s, to->c, at, to->type);
}

/* Up to 8 rows of up to 48 columns; returns the tile's checksum. */
CANON_INLINE uint tile_finish(__local const float *sums, uint rows, uint columns, const struct tile_end *to,
                              ulong at)
{
    const uint vectors = KEEL_BY_LANE < 2 ? columns / 16 : 0;
    uint sum = 0;
    if (vectors > 0) {
        uint16 h[3] = {(uint16)(0), (uint16)(0), (uint16)(0)};
        for (uint r = 0; r < rows; r++)
            _Pragma("unroll") for (uint v = 0; v < 3; v++) if (v < vectors) h[v] =
                rotate(h[v], (uint16)(CHECKSUM_TURN)) +
                finish_16(sums + r * TILE_COLUMNS + 16 * v, to, at + (ulong)r * to->ldc + 16 * v, 16 * v);
        sum = checksum_fold(h[0], h[1], h[2]);
    }
    for (uint j = 16 * vectors; j < columns; j++) {
        uint h = 0;
        for (uint r = 0; r < rows; r++)
            h = rotate(h, (uint)CHECKSUM_TURN) +
                finish_1(sums[r * TILE_COLUMNS + j], to, at + (ulong)r * to->ldc + j, j);
        sum += h * (2 * j + 1);
    }
    return sum;
}
