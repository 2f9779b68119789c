/* planes_host.c - planes.cl in C: the reference, and what the host device runs. Simple: a row and 16 columns
 * of C at a time, as the planes have them. */
#include "bf16_math.h"
#include "exact8_math.h"
#include "planes_internal.h"
#include "product_end.h"

extern const struct keel_packed_text keel_cl_planes;

EXACT8_DIGITS(uint32_t, int32_t, (uint32_t), (int32_t), )
EXACT8_VALUE(float, uint32_t, int32_t, canon_as_bits, (uint32_t), (int32_t), canon_as_real, (float), fmaf, )
#define ALWAYS(condition) (condition)
BF16_MATH(float, uint32_t, canon_as_bits, canon_as_real, fmaf, ALWAYS, canon_to_bf16, )

/* ---- operands to digits, or to bf16 ---- */

struct source {
    const void *x;
    uint64_t at, line_step, k_step; /* elements */
    uint32_t type, lines;
    bool unit;
};

static uint32_t bits_of(const struct source *s, uint32_t line, uint32_t p)
{
    return line < s->lines
               ? canon_as_bits(product_get(s->x, s->at + line * s->line_step + p * s->k_step, s->type))
               : 0;
}

/* A block of k of one of 16 lines: its exponent, and words 16 apart of each digit, which are `step` apart. */
static int32_t cut_line(const struct source *s, uint32_t line, const struct planes_block *b, uint32_t digits,
                        uint32_t *to, uint64_t step)
{
    uint32_t most = 0;
    for (uint32_t p = 0; p < b->length; p++) {
        const uint32_t a = bits_of(s, line, b->first + p) & 0x7fffffffU;
        most = a > most ? a : most;
    }
    const int32_t e = exact8_exponent_of(most, s->unit);
    const uint32_t words = planes_words(b->length, planes_per_word(digits));
    for (uint32_t w = 0; w < words; w++, to += PLANES_LINES) {
        for (uint32_t d = 0; d < digits; d++)
            to[d * step] = 0;
        for (uint32_t c = 0; c < 4 && 4 * w + c < b->length; c++) {
            int32_t q = exact8_integer(bits_of(s, line, b->first + 4 * w + c), e, digits);
            for (uint32_t d = digits; d-- > 1;)
                to[d * step] |= ((uint32_t)exact8_digit(&q) & 255U) << 8 * c;
            to[0] |= ((uint32_t)q & 255U) << 8 * c;
        }
    }
    return e;
}

static void cut_line_bf16(const struct source *s, uint32_t line, const struct planes_block *b, uint32_t *to)
{
    for (uint32_t p = 0; p < b->length; p += 2, to += PLANES_LINES)
        *to = bf16_bits(bits_of(s, line, b->first + p)) |
              (p + 1 < b->length ? bf16_bits(bits_of(s, line, b->first + p + 1)) << 16 : 0);
}

static void host_planes_cut(KEEL_HOST_ARGUMENTS)
{
    uint32_t *planes = arguments[1];
    const uint32_t lines = u32_at(arguments, 2), row = u32_at(arguments, 4), flags = u32_at(arguments, 6);
    const uint32_t blocks = u32_at(arguments, 10), words = u32_at(arguments, 11),
                   digits = u32_at(arguments, 12);
    const uint32_t all = planes_lines(lines), batches = (uint32_t)range->global[2];
    const bool down = flags & PLANES_DOWN;
    const struct planes_k k = {u32_at(arguments, 3), u32_at(arguments, 7), u32_at(arguments, 8),
                               u32_at(arguments, 9), planes_per_word(digits)};
    for (uint32_t batch = 0; batch < batches; batch++)
        for (uint32_t line = 0; line < all; line++) {
            const struct source s = {.x = arguments[0],
                                     .at = batch * u64_at(arguments, 5),
                                     .line_step = down ? row : 1,
                                     .k_step = down ? 1 : row,
                                     .type = flags >> PLANES_TYPE_AT & PLANES_TYPE_MASK,
                                     .lines = lines,
                                     .unit = flags & PLANES_UNIT};
            struct planes_block b = planes_first(&k);
            for (uint32_t number = 0; number < blocks; number++, planes_next(&k, &b)) {
                const uint64_t block = (uint64_t)batch * blocks + number;
                const uint64_t line_block =
                    ((uint64_t)batch * all + line / PLANES_LINES * PLANES_LINES) * words +
                    (uint64_t)b.word * PLANES_LINES + line % PLANES_LINES;
                uint32_t *to = planes + u64_at(arguments, 14) + line_block;
                if (digits == 1)
                    cut_line_bf16(&s, line, &b, to);
                else
                    planes[u64_at(arguments, 13) + block * all + line] =
                        (uint32_t)cut_line(&s, line, &b, digits, to, (uint64_t)batches * all * words);
            }
        }
}

/* ---- the product ---- */

struct product {
    struct planes_layout l;
    struct planes_k k;
    const uint32_t *planes;
    const void *c;
    uint32_t batch, blocks, digits, type;
};
typedef float line_values[PLANES_LINES];

/* Sums of a block, level by level, of row i and 16 columns. */
static void add_digits(const uint32_t *a, const uint32_t *b, uint32_t words, int32_t sums[PLANES_LINES])
{
    for (uint32_t w = 0; w < words; w++, a += PLANES_LINES, b += PLANES_LINES)
        for (uint32_t c = 0; c < 4; c++) {
            const int8_t x = (int8_t)(*a >> 8 * c);
            for (uint32_t j = 0; j < PLANES_LINES; j++)
                sums[j] += x * (int8_t)(b[j] >> 8 * c);
        }
}

/* Words of block `b`, of row i and of 16 columns from j0 on. */
static const uint32_t *row_words(const struct product *g, const struct planes_block *b, uint32_t i)
{
    return g->planes + g->l.a_digits + (uint64_t)b->word * PLANES_LINES +
           ((uint64_t)g->batch * g->l.a_lines + i / PLANES_LINES * PLANES_LINES) * g->l.words +
           i % PLANES_LINES;
}
static const uint32_t *column_words(const struct product *g, const struct planes_block *b, uint32_t j0)
{
    return g->planes + g->l.b_digits + (uint64_t)b->word * PLANES_LINES +
           ((uint64_t)g->batch * g->l.b_lines + j0) * g->l.words;
}

static void block_values(const struct product *g, const struct planes_block *b, uint32_t number, uint32_t i,
                         uint32_t j0, line_values out)
{
    const uint64_t block = (uint64_t)g->batch * g->blocks + number;
    const uint32_t words = planes_words(b->length, g->k.per_word);
    const uint32_t *a = row_words(g, b, i), *bs = column_words(g, b, j0);
    int32_t sums[EXACT8_DIGITS_MAX][PLANES_LINES] = {{0}};
    KEEL_ASSERT(g->digits > 0 && g->digits <= EXACT8_DIGITS_MAX);
    for (uint32_t x = 0; x < g->digits; x++)
        for (uint32_t y = 0; x + y < g->digits; y++)
            add_digits(a + x * g->l.a_step, bs + y * g->l.b_step, words, sums[x + y]);
    const int32_t ea = (int32_t)g->planes[block * g->l.a_lines + i] - 8 * (int32_t)g->digits - 6;
    for (uint32_t j = 0; j < PLANES_LINES; j++) {
        float v = exact8_float(sums[g->digits - 1][j]);
        for (uint32_t level = g->digits - 1; level-- > 0;)
            v = fmaf(exact8_float(sums[level][j]), (float)(1U << 8 * (g->digits - 1 - level)), v);
        out[j] = exact8_scale(v, ea + (int32_t)g->planes[g->l.b_exponents + block * g->l.b_lines + j0 + j]);
    }
}

static void add_line(line_values to, const line_values x)
{
    for (uint32_t j = 0; j < PLANES_LINES; j++)
        to[j] = to[j] + x[j];
}

/* What block `b` adds to the sums of row i and 16 columns, of which it is the first or not. */
static void add_block(const struct product *g, const struct planes_block *b, uint32_t number, uint32_t i,
                      uint32_t j0, bool first, line_values sums)
{
    line_values values = {0};
    if (g->digits > 1) {
        block_values(g, b, number, i, j0, first ? sums : values);
        if (!first)
            add_line(sums, values);
        return;
    }
    const uint32_t *a = row_words(g, b, i), *bs = column_words(g, b, j0);
    for (uint32_t j = 0; j < PLANES_LINES; j++)
        sums[j] = first ? 0 : bf16_begin(sums[j]);
    for (uint32_t w = 0; w < (b->length + 1) / 2; w++, a += PLANES_LINES, bs += PLANES_LINES)
        for (uint32_t j = 0; j < PLANES_LINES; j++)
            sums[j] = bf16_pair(sums[j], *a, bs[j]);
}

/* The sums of slices [first, first + count) of the call: the left part is the largest power of two that is
 * less. `b` and `number` are the first block's, and become that behind the last. With `chained` a single
 * slice begins with what lies in sums. */
static void add_slices(const struct product *g, struct planes_block *b, uint32_t *number, uint32_t i,
                       uint32_t j0, uint32_t count, bool chained, line_values sums)
{
    line_values values = {0};
    if (count <= 1) {
        const uint32_t end = b->end;
        for (bool first = !chained; b->length > 0 && b->end == end; planes_next(&g->k, b), first = false)
            add_block(g, b, (*number)++, i, j0, first, sums);
        return;
    }
    uint32_t left = 1;
    while (2 * left < count)
        left *= 2;
    add_slices(g, b, number, i, j0, left, false, sums);
    add_slices(g, b, number, i, j0, count - left, false, values);
    add_line(sums, values);
}

static void multiply(const struct product *g, const struct product_end *end, uint64_t c_at, uint32_t m,
                     uint32_t n, uint32_t ldc)
{
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j0 = 0; j0 < n; j0 += PLANES_LINES) {
            const uint64_t at = c_at + (uint64_t)i * ldc + j0;
            const uint32_t columns = n - j0 < PLANES_LINES ? n - j0 : PLANES_LINES;
            line_values sums = {0};
            for (uint32_t j = 0; (end->flags & GEMM_CHAIN) && j < columns; j++)
                sums[j] = product_get(end->c, at + j, end->type);
            struct planes_block b = planes_first(&g->k);
            uint32_t number = 0;
            add_slices(g, &b, &number, i, j0, g->k.slices & 255, end->flags & GEMM_CHAIN, sums);
            for (uint32_t j = 0; j < columns; j++)
                product_finish(end, at + j, j0 + j, sums[j]);
        }
}

static void host_planes(KEEL_HOST_ARGUMENTS)
{
    uint32_t *checksums = arguments[4];
    const uint32_t m = u32_at(arguments, 5), n = u32_at(arguments, 6), ldc = u32_at(arguments, 8);
    const uint32_t blocks = u32_at(arguments, 14), words = u32_at(arguments, 15),
                   digits = u32_at(arguments, 16);
    const uint32_t batches = (uint32_t)range->global[2], flags = u32_at(arguments, 9);
    const struct product_end end = {.c = arguments[1],
                                    .pre = arguments[3],
                                    .bias = arguments[2],
                                    .type = flags >> GEMM_C_TYPE_AT & GEMM_TYPE_MASK,
                                    .flags = flags};
    struct product g = {.l = planes_layout(m, n, batches, blocks, words, digits),
                        .k = {u32_at(arguments, 7), u32_at(arguments, 11), u32_at(arguments, 12),
                              u32_at(arguments, 13), planes_per_word(digits)},
                        .planes = arguments[0],
                        .blocks = blocks,
                        .digits = digits};
    for (; g.batch < batches; g.batch++) {
        const uint64_t at = g.batch * u64_at(arguments, 10);
        multiply(&g, &end, at, m, n, ldc);
        for (uint32_t i = 0; (flags & GEMM_CHECKSUM) && i < m; i += GEMM_TILE_ROWS)
            for (uint32_t j = 0; j < n; j += GEMM_TILE_COLUMNS)
                *checksums++ = product_checksum(end.c, at, end.type, m, n, ldc, i, j);
    }
}

static const struct keel_module_kernel planes_kernels[] = {
    {"keel_planes_cut", host_planes_cut}, {"keel_planes", host_planes}, {"keel_planes_sliced", host_planes}};

const struct keel_module keel_module_planes = KEEL_MODULE("planes", keel_cl_planes, planes_kernels);
