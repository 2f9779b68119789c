/* gemm_host.c - gemm.cl in C: the reference, and what the host device runs.
 *
 * Simple, and blocked enough to be of use: 64 x 64 sums at a time, B copied so that the inner loop runs
 * over neighbours. The chain of an element is that of gemm.cl: k strictly ascending from zero. */
#include "gemm_internal.h"
#include "kernels_internal.h"
#include <string.h>

extern const struct keel_packed_text keel_cl_gemm;

enum { BLOCK_ROWS = 64, BLOCK_COLUMNS = 64, BLOCK_DEPTH = 64 };

struct host_gemm {
    const void *a, *b;
    const float *bias;
    void *c, *pre;
    uint32_t m, n, k, ldc, flags, a_type, b_type, c_type;
    uint64_t a_at, b_at, c_at;                             /* the first element of each */
    uint64_t a_step_i, a_step_p, b_step_p, b_step_j;       /* elements from one to the next of op(A), op(B) */
    uint32_t slice_count, slice_ends[KEEL_SLICES_MAX + 1]; /* of k; the first is 0 */
};

/* Columns past the end are zero. */
static void copy_panel(const struct host_gemm *g, uint32_t p0, uint32_t depth, uint32_t j0, uint32_t columns,
                       float panel[BLOCK_DEPTH][BLOCK_COLUMNS])
{
    for (uint32_t p = 0; p < depth; p++)
        for (uint32_t j = 0; j < BLOCK_COLUMNS; j++)
            panel[p][j] =
                j < columns
                    ? product_get(g->b, g->b_at + (p0 + p) * g->b_step_p + (j0 + j) * g->b_step_j, g->b_type)
                    : 0.0F;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

typedef float block_sums[BLOCK_ROWS][BLOCK_COLUMNS];

/* The chains over k from `begin` to `end`. */
KEEL_HOST_KERNEL static void add_products(const struct host_gemm *g, uint32_t i0, uint32_t j0, uint32_t begin,
                                          uint32_t end, block_sums sums)
{
    float panel[BLOCK_DEPTH][BLOCK_COLUMNS];
    uint32_t rows = smaller(BLOCK_ROWS, g->m - i0), columns = smaller(BLOCK_COLUMNS, g->n - j0);
    for (uint32_t p0 = begin; p0 < end; p0 += BLOCK_DEPTH) {
        uint32_t depth = smaller(BLOCK_DEPTH, end - p0);
        copy_panel(g, p0, depth, j0, columns, panel);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t p = 0; p < depth; p++) {
                float x =
                    product_get(g->a, g->a_at + (i0 + i) * g->a_step_i + (p0 + p) * g->a_step_p, g->a_type);
                for (uint32_t j = 0; j < BLOCK_COLUMNS; j++)
                    sums[i][j] = fmaf(x, panel[p][j], sums[i][j]);
            }
    }
}

/* Sums of slices [first, first + count) of the call: the left part is the largest power of two that is less.
 */
static void add_slices(const struct host_gemm *g, uint32_t i0, uint32_t j0, uint32_t first, uint32_t count,
                       block_sums sums)
{
    if (count == 1) {
        add_products(g, i0, j0, g->slice_ends[first], g->slice_ends[first + 1], sums);
        return;
    }
    block_sums right = {{0}};
    uint32_t left = 1;
    while (2 * left < count)
        left *= 2;
    add_slices(g, i0, j0, first, left, sums);
    add_slices(g, i0, j0, first + left, count - left, right);
    for (uint32_t i = 0; i < BLOCK_ROWS; i++)
        for (uint32_t j = 0; j < BLOCK_COLUMNS; j++)
            sums[i][j] = sums[i][j] + right[i][j];
}

static void multiply_block(const struct host_gemm *g, uint32_t i0, uint32_t j0)
{
    block_sums sums = {{0}};
    uint32_t rows = smaller(BLOCK_ROWS, g->m - i0), columns = smaller(BLOCK_COLUMNS, g->n - j0);
    if (g->flags & GEMM_CHAIN)
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t j = 0; j < columns; j++)
                sums[i][j] = product_get(g->c, g->c_at + (uint64_t)(i0 + i) * g->ldc + j0 + j, g->c_type);
    if (g->slice_count > 0)
        add_slices(g, i0, j0, 0, g->slice_count, sums);
    else
        add_products(g, i0, j0, 0, g->k, sums);
    const struct product_end end = {g->c, g->pre, g->bias, g->c_type, g->flags};
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t j = 0; j < columns; j++)
            product_finish(&end, g->c_at + (uint64_t)(i0 + i) * g->ldc + j0 + j, j0 + j, sums[i][j]);
}

static void multiply(const struct host_gemm *g)
{
    if (g->k == 0 && (g->flags & GEMM_ACCUMULATE))
        return;
    for (uint32_t i = 0; i < g->m; i += BLOCK_ROWS)
        for (uint32_t j = 0; j < g->n; j += BLOCK_COLUMNS)
            multiply_block(g, i, j);
}

/* The rows of group `group` of `groups`, cut at `end`; those of nobody for group = groups. */
static uint32_t group_rows(const int32_t *offsets, uint32_t groups, uint32_t group, uint32_t end,
                           uint32_t *first)
{
    *first = offsets[group] > 0 ? smaller((uint32_t)offsets[group], end) : 0;
    uint32_t last = end;
    if (group < groups)
        last = offsets[group + 1] > 0 ? smaller((uint32_t)offsets[group + 1], end) : 0;
    return last > *first ? last - *first : 0;
}

static void multiply_groups(const struct host_gemm *all, const int32_t *offsets, uint32_t groups,
                            uint64_t stride_b, uint64_t stride_c)
{
    const bool over_k = all->flags & GEMM_OVER_K;
    for (uint32_t group = 0; group < groups + !over_k; group++) {
        struct host_gemm g = *all;
        uint32_t first, rows = group_rows(offsets, groups, group, over_k ? all->k : all->m, &first);
        g.bias += (uint64_t)group * g.n;
        if (over_k) {
            g.k = rows;
            g.a_at = first * g.a_step_p;
            g.b_at = first * g.b_step_p;
            g.c_at = group * stride_c;
        } else {
            g.m = rows;
            g.a_at = first * g.a_step_i;
            g.b_at = group * stride_b;
            g.c_at = (uint64_t)first * g.ldc;
            if (group == groups) {
                g.k = 0;
                g.flags &= ~(uint32_t)(GEMM_BIAS | GEMM_RESIDUAL);
            }
        }
        multiply(&g);
    }
}

static void read_slices(struct host_gemm *g, uint32_t slices, uint32_t units, uint32_t unit)
{
    g->slice_count = slices & 255;
    for (uint32_t i = 0; slices != 0 && i <= g->slice_count; i++)
        g->slice_ends[i] = canon_slice_begin(slices, units, unit, i);
}

static struct host_gemm host_gemm_read(void *const *arguments)
{
    uint32_t lda = u32_at(arguments, 8), ldb = u32_at(arguments, 9);
    uint32_t flags = u32_at(arguments, 11);
    return (struct host_gemm){
        .a = arguments[0],
        .b = arguments[1],
        .c = arguments[2],
        .bias = arguments[3],
        .pre = arguments[4],
        .m = u32_at(arguments, 5),
        .n = u32_at(arguments, 6),
        .k = u32_at(arguments, 7),
        .ldc = u32_at(arguments, 10),
        .flags = flags,
        .a_type = flags >> GEMM_A_TYPE_AT & GEMM_TYPE_MASK,
        .b_type = flags >> GEMM_B_TYPE_AT & GEMM_TYPE_MASK,
        .c_type = flags >> GEMM_C_TYPE_AT & GEMM_TYPE_MASK,
        .a_step_i = flags & GEMM_TRANSPOSE_A ? 1 : lda,
        .a_step_p = flags & GEMM_TRANSPOSE_A ? lda : 1,
        .b_step_p = flags & GEMM_TRANSPOSE_B ? 1 : ldb,
        .b_step_j = flags & GEMM_TRANSPOSE_B ? ldb : 1,
    };
}

static void host_gemm(KEEL_HOST_ARGUMENTS)
{
    struct host_gemm g = host_gemm_read(arguments);
    uint32_t *checksums = arguments[16], groups = u32_at(arguments, 19);
    read_slices(&g, u32_at(arguments, 20), u32_at(arguments, 21), u32_at(arguments, 22));
    if (groups > 0) {
        multiply_groups(&g, arguments[18], groups, u64_at(arguments, 14), u64_at(arguments, 15));
        return;
    }
    for (uint64_t batch = 0; batch < range->global[2]; batch++) {
        g.a_at = batch * u64_at(arguments, 13);
        g.b_at = batch * u64_at(arguments, 14);
        g.c_at = batch * u64_at(arguments, 15);
        multiply(&g);
        if (g.flags & GEMM_CHECKSUM)
            for (uint32_t i = 0; i < g.m; i += GEMM_TILE_ROWS)
                for (uint32_t j = 0; j < g.n; j += GEMM_TILE_COLUMNS)
                    *checksums++ = product_checksum(g.c, g.c_at, g.c_type, g.m, g.n, g.ldc, i, j);
    }
}

static void host_gemm_check(KEEL_HOST_ARGUMENTS)
{
    const uint32_t *checksums = arguments[1];
    uint32_t *report = (uint32_t *)arguments[2] + 2 * (uint64_t)u32_at(arguments, 8);
    uint32_t m = u32_at(arguments, 3), n = u32_at(arguments, 4), ldc = u32_at(arguments, 5), number = 0;
    for (uint64_t batch = 0; batch < range->global[2]; batch++)
        for (uint32_t i = 0; i < m; i += GEMM_TILE_ROWS)
            for (uint32_t j = 0; j < n; j += GEMM_TILE_COLUMNS, number++)
                if (product_checksum(arguments[0], batch * u64_at(arguments, 7), u32_at(arguments, 9), m, n,
                                     ldc, i, j) != checksums[number]) {
                    report[0]++;
                    report[1] = smaller(report[1], number);
                }
}

static const struct keel_module_kernel gemm_kernels[] = {{"keel_gemm", host_gemm},
                                                         {"keel_gemm_small", host_gemm},
                                                         {"keel_gemm_sliced", host_gemm},
                                                         {"keel_gemm_check", host_gemm_check}};

const struct keel_module keel_module_gemm = KEEL_MODULE("gemm", keel_cl_gemm, gemm_kernels);
