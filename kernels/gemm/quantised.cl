/* quantised.cl - C = A W' + bias, where W has few bits.
 *
 *     w' = (float)q * scale                      rounded once; q an integer of 4 or 8 bits
 *     s = fma(a_0, w'_0, 0); s = fma(a_i, w'_i, s), i ascending to k - 1;  s = s + bias[n]  (if there is one)
 *     C = s
 *
 * so C has the bits of gemm.cl's product with the floats w'.
 *
 * Shapes: A m x k, C m x n, bias n. `weights` are words of 32 bits, for sixteen columns after the other: of each
 * `group` of k (the last may be shorter) sixteen scales, and for each 32 / bits of k sixteen words, column by
 * column, whose highest bits are the first of these k. What lacks at the end of k or n is 0. So a work-item
 * reads one stream from its begin to its end, each word once for `block` rows, and unpacks an integer by a shift.
 *
 * A's rows come in blocks of 1, 2, 4, 8 or 16, turned (keel_quantised_turn): [blocks][k][block], rows that lack
 * are 0; blocks of 1 are A as it is. A work-item has a block of rows, and sixteen columns for each of TILES
 * (quantised.c has the same numbers); where lanes are many and narrow (KEEL_ROW_ITEMS), one column. Where
 * vectors are taken apart (KEEL_BY_LANE) it takes its columns one after the other: who launches need not know.
 * Sums are in registers from begin to end. Tolerance against the host: none, equal bits. */

#if KEEL_ROW_ITEMS > 1 || KEEL_BY_LANE >= 2
enum { COLUMNS = 1, TILES_OF_1 = 1, TILES_OF_2 = 1 };
typedef float real_lanes;
typedef uint word_lanes;
#define LANES_GET(p)      (*(p))
#define LANES_PUT(v, p, n) (*(p) = (v))
#define LANES_SCALE(w)    as_float(w)
#define LANES_NUMBER(w, left) convert_float(as_int(w) >> left) /* of its highest bits, with a sign */
#define LANES_BIAS(p, n)  (*(p))
#else
enum { COLUMNS = 16, TILES_OF_1 = 4, TILES_OF_2 = 2 }; /* where rows are few: chains beside each other */
typedef float16 real_lanes;
typedef uint16 word_lanes;
#define LANES_GET(p)       vload16(0, p)
#define LANES_PUT(v, p, n) canon_store(v, p, n)
#define LANES_SCALE(w)     as_float16(w)
#define LANES_NUMBER(w, left) convert_float16(as_int16(w) >> left)
#define LANES_BIAS(p, n)   canon_load(p, n)
#endif

struct product {
    __global const float *a; /* of its block of rows */
    __global const uint *weights;
    __global float *c; /* of its first row and column */
    __global const float *bias;
    uint rows, columns; /* that there are, from its first on */
    uint n, k, bits, group;
    uint tile_words; /* of sixteen columns */
    bool biased;
};

/* What a block of BLOCK rows and TILES times COLUMNS columns comes to. Of columns that lack the last tile's are
 * computed again, and not stored. */
#define PRODUCT(name, BLOCK, TILES)                                                                          \
    CANON_INLINE void name(const struct product *g)                                                          \
    {                                                                                                        \
        real_lanes s[BLOCK * TILES], scale[TILES];                                                           \
        word_lanes q[TILES];                                                                                 \
        ulong tile[TILES];                                                                                   \
        const uint last = (g->columns - 1) / COLUMNS, step = 32 / g->bits, left = 32 - g->bits;              \
        __global const uint *w = g->weights;                                                                 \
        __global const float *a = g->a;                                                                      \
        _Pragma("unroll") for (uint i = 0; i < BLOCK * TILES; i++) s[i] = (real_lanes)(0.0f);                \
        _Pragma("unroll") for (uint t = 0; t < TILES; t++) tile[t] = (ulong)min(t, last) * g->tile_words;    \
        for (uint begin = 0, end; begin < g->k; begin = end) {                                               \
            end = g->k - begin > g->group ? begin + g->group : g->k;                                         \
            _Pragma("unroll") for (uint t = 0; t < TILES; t++) scale[t] =                                    \
                LANES_SCALE(LANES_GET(w + tile[t]));                                                         \
            w += 16;                                                                                         \
            for (uint p = begin; p < end; p += step, w += 16) {                                              \
                _Pragma("unroll") for (uint t = 0; t < TILES; t++) q[t] = LANES_GET(w + tile[t]);            \
                for (uint i = min(step, end - p); i > 0; i--, a += BLOCK)                                    \
                    _Pragma("unroll") for (uint t = 0; t < TILES; t++)                                       \
                    {                                                                                        \
                        const real_lanes b = LANES_NUMBER(q[t], left) * scale[t];                            \
                        q[t] = q[t] << g->bits;                                                              \
                        _Pragma("unroll") for (uint r = 0; r < BLOCK; r++) s[r * TILES + t] =                \
                            fma((real_lanes)(a[r]), b, s[r * TILES + t]);                                    \
                    }                                                                                        \
            }                                                                                                \
        }                                                                                                    \
        _Pragma("unroll") for (uint t = 0; t < TILES; t++) if (t <= last)                                    \
        {                                                                                                    \
            const uint there = g->columns - t * COLUMNS;                                                     \
            _Pragma("unroll") for (uint r = 0; r < BLOCK; r++) if (r < g->rows)                              \
            {                                                                                                \
                real_lanes v = s[r * TILES + t];                                                             \
                if (g->biased)                                                                               \
                    v = v + LANES_BIAS(g->bias + t * COLUMNS, there);                                        \
                LANES_PUT(v, g->c + (ulong)r * g->n + t * COLUMNS, there);                                   \
            }                                                                                                \
        }                                                                                                    \
    }
PRODUCT(product_1, 1, TILES_OF_1)
PRODUCT(product_2, 2, TILES_OF_2)
PRODUCT(product_4, 4, 1)
PRODUCT(product_8, 8, 1)
PRODUCT(product_16, 16, 1)

__kernel void keel_gemm_quantised(__global const float *a, __global const uint *weights, __global float *c,
                                  __global const float *bias, uint m, uint n, uint k, uint bits, uint group,
                                  uint block, uint biased, uint tile_words)
{
    const uint tiles = block == 1 ? TILES_OF_1 : block == 2 ? TILES_OF_2 : 1;
    const uint columns = KEEL_ROW_ITEMS > 1 ? 1 : 16 * (block == 1 ? 4 : block == 2 ? 2 : 1);
    const uint row = get_global_id(1) * block;
    const ulong first = (ulong)get_global_id(0) * columns, end = min(first + columns, (ulong)n);
    for (ulong column = first; column < end; column += tiles * COLUMNS) {
        const struct product g = {.a = a + (ulong)row * k,
                                  .weights = weights + column / 16 * tile_words + column % 16,
                                  .c = c + (ulong)row * n + column,
                                  .bias = bias + column,
                                  .rows = min(block, m - row),
                                  .columns = (uint)min((ulong)tiles * COLUMNS, n - column),
                                  .n = n,
                                  .k = k,
                                  .bits = bits,
                                  .group = group,
                                  .tile_words = tile_words,
                                  .biased = biased};
        if (block == 1)
            product_1(&g);
        else if (block == 2)
            product_2(&g);
        else if (block == 4)
            product_4(&g);
        else if (block == 8)
            product_8(&g);
        else
            product_16(&g);
    }
}

/* turned [blocks][k][block] of A's rows: a work-item has a stretch of `depth` of k of a block. */
__kernel void keel_quantised_turn(__global const float *a, __global float *turned, uint m, uint k, uint block, uint depth)
{
    const uint row = get_global_id(1) * block;
    const ulong begin = (ulong)get_global_id(0) * depth;
    for (ulong i = begin; i < min(begin + depth, (ulong)k); i++)
        for (uint r = 0; r < block; r++)
            turned[(ulong)row * k + i * block + r] = row + r < m ? a[(ulong)(row + r) * k + i] : 0.0f;
}
