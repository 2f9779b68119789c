/* exact8.c - products as sums of integers: how long the planes are, and the launches. The arithmetic is in
 * exact8.cl. */
#include "exact8_internal.h"
#include "exact8_math.h"
#include "product_end.h"

#include <stdio.h>
#include <string.h>

enum {
    ROWS_MOST = 256, /* of C to a group of one work-item */
    UNITS_LOCAL_BYTES = 40960,
    LANES_ROWS = 32, /* exact8_lanes.h */
    LANES_COLUMNS = 64,
    UNITS_COLUMNS = 128, /* exact8_mma.h */
    UNITS_ROWS_2 = 128,
    UNITS_ROWS_3 = 64
};

uint32_t keel_exact8_digits(const struct keel_kernels *kernels)
{
    return kernels->numerics == KEEL_EXACT8X2 ? 2 : kernels->numerics == KEEL_EXACT8X3 ? 3 : 0;
}

struct keel_exact8_way keel_exact8_way(const struct keel_device_info *info,
                                       const uint32_t values[KEEL_TUNABLE_COUNT])
{
    enum { LANES_ITEMS = 64, UNITS_ITEMS = 256 };
    const uint32_t has = info->byte_dots;
    if (values[KEEL_TUNABLE_GEMM_ITEMS] == 1)
        return (struct keel_exact8_way){1, has & KEEL_DOT_VNNI};
    if ((has & KEEL_DOT_MMA) && info->max_group_items >= UNITS_ITEMS &&
        info->local_bytes >= UNITS_LOCAL_BYTES)
        return (struct keel_exact8_way){UNITS_ITEMS, KEEL_DOT_MMA};
    return (struct keel_exact8_way){LANES_ITEMS, has & KEEL_DOT_DP4A ? KEEL_DOT_DP4A : has & KEEL_DOT_KHR};
}

void keel_exact8_build_options(const struct keel_kernels *kernels, char out[KEEL_BUILD_OPTIONS_BYTES])
{
    keel_tunables_build_options(&kernels->info, KEEL_MODULE_exact8, kernels->tuned, out);
    const size_t length = strlen(out);
    snprintf(out + length, KEEL_BUILD_OPTIONS_BYTES - length,
             "%s-DKEEL_EXACT8_DIGITS=%u -DKEEL_EXACT8_ITEMS=%u -DKEEL_EXACT8_DOT=%u", length > 0 ? " " : "",
             keel_exact8_digits(kernels), kernels->exact8.items, kernels->exact8.dot);
}

static struct exact8_k k_of(const struct keel_gemm *op)
{
    return (struct exact8_k){op->k, keel_pack_slices(&op->k_slices), op->k_slices.units, op->k_slices.unit};
}

/* Blocks of k, and their words. */
static uint32_t count_blocks(const struct keel_gemm *op, uint32_t *words)
{
    const struct exact8_k k = k_of(op);
    struct exact8_block b = exact8_first(&k);
    uint32_t count = 0;
    for (; b.length > 0; exact8_next(&k, &b))
        count++;
    *words = b.word;
    return count;
}

uint64_t keel_exact8_bytes(const struct keel_gemm *op, uint32_t digits)
{
    uint32_t words;
    const uint32_t blocks = count_blocks(op, &words);
    const uint64_t lines = (uint64_t)exact8_lines(op->m) + exact8_lines(op->n);
    return KEEL_BYTES(sizeof(uint32_t), op->batch, lines, keel_plus(blocks, KEEL_BYTES(digits, words)));
}

struct operand {
    struct keel_buffer *x;
    uint32_t lines, row;
    uint64_t stride, exponents_at, digits_at;
    bool down;
    enum keel_dtype type;
};

static enum keel_status cut(struct keel_kernels *kernels, const struct keel_gemm *op,
                            const struct operand *of, uint32_t blocks, uint32_t words,
                            struct keel_launch_list *list)
{
    const uint32_t items = kernels->exact8.items;
    const struct keel_range range = {
        .global = {keel_size(KEEL_BYTES(divide_up(of->lines, EXACT8_LINES), items)), blocks, op->batch},
        .local = {items, 1, 1}};
    const uint32_t flags = (of->down ? EXACT8_DOWN : 0U) | (uint32_t)of->type << EXACT8_TYPE_AT;
    const struct exact8_k k = k_of(op);
    return keel_kernels_launch(
        kernels, list, KEEL_MODULE_exact8, "keel_exact8_cut", &range,
        KEEL_ARGS(keel_arg_buffer(of->x), keel_arg_buffer(op->planes), keel_arg_u32(of->lines),
                  keel_arg_u32(k.size), keel_arg_u32(of->row), keel_arg_u64(of->stride), keel_arg_u32(flags),
                  keel_arg_u32(k.slices), keel_arg_u32(k.units), keel_arg_u32(k.unit), keel_arg_u32(blocks),
                  keel_arg_u32(words), keel_arg_u32(keel_exact8_digits(kernels)),
                  keel_arg_u64(of->exponents_at), keel_arg_u64(of->digits_at)));
}

/* Rows of C and strips of 48 columns to a group of one work-item: as many as leave each unit some groups. */
static void choose_strips(const struct keel_kernels *kernels, const struct keel_gemm *op, uint32_t *rows,
                          uint32_t *strips)
{
    const uint32_t units = keel_kernels_info(kernels)->compute_units;
    const uint64_t across = divide_up(op->n, GEMM_TILE_COLUMNS);
    *rows = ROWS_MOST;
    *strips = 1;
    while (*rows > GEMM_TILE_ROWS && across * op->batch * divide_up(op->m, *rows) < 4 * (uint64_t)units)
        *rows /= 2;
}

static enum keel_status multiply(struct keel_kernels *kernels, const struct keel_gemm *op, uint32_t flags,
                                 uint32_t blocks, uint32_t words, struct keel_launch_list *list)
{
    const uint32_t items = kernels->exact8.items, digits = keel_exact8_digits(kernels);
    const bool units = kernels->exact8.dot == KEEL_DOT_MMA;
    uint32_t rows = units ? (digits == 2 ? UNITS_ROWS_2 : UNITS_ROWS_3) : LANES_ROWS, strips = 0;
    uint32_t columns = units ? UNITS_COLUMNS : LANES_COLUMNS;
    if (items == 1) {
        choose_strips(kernels, op, &rows, &strips);
        columns = strips * GEMM_TILE_COLUMNS;
    }
    const struct keel_range range = {.global = {keel_size(KEEL_BYTES(divide_up(op->n, columns), items)),
                                                divide_up(op->m, rows), op->batch},
                                     .local = {items, 1, 1}};
    const struct exact8_k k = k_of(op);
    return keel_kernels_launch(
        kernels, list, KEEL_MODULE_exact8, k.slices != 0 ? "keel_exact8_sliced" : "keel_exact8", &range,
        KEEL_ARGS(keel_arg_buffer(op->planes), keel_arg_buffer(op->c), keel_arg_either(op->bias, op->c),
                  keel_arg_either(op->residual != NULL ? op->residual : op->pre, op->c),
                  keel_arg_either(op->checksums, op->c), keel_arg_u32(op->m), keel_arg_u32(op->n),
                  keel_arg_u32(k.size), keel_arg_u32(op->ldc), keel_arg_u32(flags),
                  keel_arg_u64(op->stride_c), keel_arg_u32(k.slices), keel_arg_u32(k.units),
                  keel_arg_u32(k.unit), keel_arg_u32(blocks), keel_arg_u32(words), keel_arg_u32(digits),
                  keel_arg_u32(rows), keel_arg_u32(strips)));
}

enum keel_status keel_exact8_append(struct keel_kernels *kernels, const struct keel_gemm *op, uint32_t flags,
                                    struct keel_launch_list *list)
{
    uint32_t words;
    const uint32_t blocks = count_blocks(op, &words), digits = keel_exact8_digits(kernels);
    const struct exact8_layout l = exact8_layout(op->m, op->n, op->batch, blocks, words, digits);
    const struct operand a = {.x = op->a,
                              .lines = op->m,
                              .row = op->lda,
                              .stride = op->stride_a,
                              .exponents_at = 0,
                              .digits_at = l.a_digits,
                              .down = !op->transpose_a,
                              .type = op->a_type};
    const struct operand b = {.x = op->b,
                              .lines = op->n,
                              .row = op->ldb,
                              .stride = op->stride_b,
                              .exponents_at = l.b_exponents,
                              .digits_at = l.b_digits,
                              .down = op->transpose_b,
                              .type = op->b_type};
    KEEL_ASSERT(digits > 0 && KEEL_BYTES(l.end, sizeof(uint32_t)) == keel_exact8_bytes(op, digits));
    KEEL_TRY(cut(kernels, op, &a, blocks, words, list));
    KEEL_TRY(cut(kernels, op, &b, blocks, words, list));
    return multiply(kernels, op, flags, blocks, words, list);
}
