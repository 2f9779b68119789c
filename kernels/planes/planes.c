/* planes.c - products of prepared operands, of the exact classes and of bf16: how long the planes are, and
 * the launches. The arithmetic is in planes.cl. */
#include "planes_internal.h"
#include "planes_math.h"
#include "product_end.h"

#include <stdio.h>
#include <string.h>

enum {
    ROWS_MOST = 256, /* of C to a group of one work-item */
    UNITS_LOCAL_BYTES = 40960,
    LANES_ROWS = 32, /* planes_lanes.h */
    LANES_COLUMNS = 64,
    UNITS_COLUMNS = 128, /* exact8_mma.h */
    UNITS_ROWS_2 = 128,
    UNITS_ROWS_3 = 64
};

struct keel_planes_way keel_planes_way(const struct keel_device_info *info, enum keel_class numerics,
                                       const uint32_t values[KEEL_TUNABLE_COUNT])
{
    enum { LANES_ITEMS = 64, UNITS_ITEMS = 256 };
    const bool bf16 = numerics == KEEL_CLASS_BF16;
    const uint32_t has = info->dots & (bf16 ? KEEL_DOT_BF16 : ~(uint32_t)KEEL_DOT_BF16);
    if (values[KEEL_TUNABLE_GEMM_ITEMS] == 1)
        return (struct keel_planes_way){1, has & (KEEL_DOT_VNNI | KEEL_DOT_BF16)};
    if (bf16)
        return (struct keel_planes_way){LANES_ITEMS, 0};
    if ((has & KEEL_DOT_MMA) && keel_device_line_items(info) >= UNITS_ITEMS &&
        info->local_bytes >= UNITS_LOCAL_BYTES)
        return (struct keel_planes_way){UNITS_ITEMS, KEEL_DOT_MMA};
    return (struct keel_planes_way){LANES_ITEMS, has & KEEL_DOT_DP4A ? KEEL_DOT_DP4A : has & KEEL_DOT_KHR};
}

void keel_planes_build_options(const struct keel_kernels *kernels, char out[KEEL_BUILD_OPTIONS_BYTES])
{
    keel_tunables_build_options(&kernels->info, KEEL_MODULE_planes, kernels->tuned, out);
    const size_t length = strlen(out);
    snprintf(out + length, KEEL_BUILD_OPTIONS_BYTES - length,
             "%s-DKEEL_PLANES_DIGITS=%u -DKEEL_PLANES_ITEMS=%u -DKEEL_PLANES_DOT=%u", length > 0 ? " " : "",
             keel_planes_digits(kernels), kernels->planes.items, kernels->planes.dot);
}

static struct planes_k k_of(const struct keel_gemm *op, uint32_t digits)
{
    return (struct planes_k){op->k, keel_pack_slices(&op->k_slices), op->k_slices.units, op->k_slices.unit,
                             planes_per_word(digits)};
}

/* Blocks of k, and their words. */
static uint32_t count_blocks(const struct keel_gemm *op, uint32_t digits, uint32_t *words)
{
    const struct planes_k k = k_of(op, digits);
    struct planes_block b = planes_first(&k);
    uint32_t count = 0;
    for (; b.length > 0; planes_next(&k, &b))
        count++;
    *words = b.word;
    return count;
}

uint64_t keel_planes_bytes(const struct keel_gemm *op, uint32_t digits)
{
    uint32_t words;
    const uint32_t blocks = count_blocks(op, digits, &words), exponents = digits > 1 ? blocks : 0;
    const uint64_t lines = (uint64_t)planes_lines(op->m) + planes_lines(op->n);
    return KEEL_BYTES(sizeof(uint32_t), op->batch, lines, keel_plus(exponents, KEEL_BYTES(digits, words)));
}

struct operand {
    struct keel_buffer *x;
    uint32_t lines, row;
    uint64_t stride, exponents_at, digits_at;
    bool down, unit;
    enum keel_dtype type;
};

static enum keel_status cut(struct keel_kernels *kernels, const struct keel_gemm *op,
                            const struct operand *of, uint32_t blocks, uint32_t words,
                            struct keel_launch_list *list)
{
    const uint32_t items = kernels->planes.items;
    const struct keel_range range = {
        .global = {keel_size(KEEL_BYTES(divide_up(of->lines, PLANES_LINES), items)), blocks, op->batch},
        .local = {items, 1, 1}};
    const uint32_t flags =
        (of->down ? PLANES_DOWN : 0U) | (uint32_t)of->type << PLANES_TYPE_AT | (of->unit ? PLANES_UNIT : 0U);
    const struct planes_k k = k_of(op, keel_planes_digits(kernels));
    return keel_kernels_launch(
        kernels, list, KEEL_MODULE_planes, "keel_planes_cut", &range,
        KEEL_ARGS(keel_arg_buffer(of->x), keel_arg_buffer(op->planes), keel_arg_u32(of->lines),
                  keel_arg_u32(k.size), keel_arg_u32(of->row), keel_arg_u64(of->stride), keel_arg_u32(flags),
                  keel_arg_u32(k.slices), keel_arg_u32(k.units), keel_arg_u32(k.unit), keel_arg_u32(blocks),
                  keel_arg_u32(words), keel_arg_u32(keel_planes_digits(kernels)),
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
    const uint32_t items = kernels->planes.items, digits = keel_planes_digits(kernels);
    const bool units = kernels->planes.dot == KEEL_DOT_MMA;
    uint32_t rows = units ? (digits == 2 ? UNITS_ROWS_2 : UNITS_ROWS_3) : LANES_ROWS, strips = 0;
    uint32_t columns = units ? UNITS_COLUMNS : LANES_COLUMNS;
    if (items == 1) {
        choose_strips(kernels, op, &rows, &strips);
        columns = strips * GEMM_TILE_COLUMNS;
    }
    const struct keel_range range = {.global = {keel_size(KEEL_BYTES(divide_up(op->n, columns), items)),
                                                divide_up(op->m, rows), op->batch},
                                     .local = {items, 1, 1}};
    const struct planes_k k = k_of(op, digits);
    return keel_kernels_launch(
        kernels, list, KEEL_MODULE_planes, k.slices != 0 ? "keel_planes_sliced" : "keel_planes", &range,
        KEEL_ARGS(keel_arg_buffer(op->planes), keel_arg_buffer(op->c), keel_arg_either(op->bias, op->c),
                  keel_arg_either(op->residual != NULL ? op->residual : op->pre, op->c),
                  keel_arg_either(op->checksums, op->c), keel_arg_u32(op->m), keel_arg_u32(op->n),
                  keel_arg_u32(k.size), keel_arg_u32(op->ldc), keel_arg_u32(flags),
                  keel_arg_u64(op->stride_c), keel_arg_u32(k.slices), keel_arg_u32(k.units),
                  keel_arg_u32(k.unit), keel_arg_u32(blocks), keel_arg_u32(words), keel_arg_u32(digits),
                  keel_arg_u32(rows), keel_arg_u32(strips)));
}

enum keel_status keel_planes_append(struct keel_kernels *kernels, const struct keel_gemm *op, uint32_t flags,
                                    struct keel_launch_list *list)
{
    uint32_t words;
    const uint32_t digits = keel_planes_digits(kernels), blocks = count_blocks(op, digits, &words);
    const struct planes_layout l = planes_layout(op->m, op->n, op->batch, blocks, words, digits);
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
                              .unit = op->b_unit,
                              .type = op->b_type};
    KEEL_ASSERT(digits > 0 && KEEL_BYTES(l.end, sizeof(uint32_t)) == keel_planes_bytes(op, digits));
    KEEL_TRY(cut(kernels, op, &a, blocks, words, list));
    KEEL_TRY(cut(kernels, op, &b, blocks, words, list));
    return multiply(kernels, op, flags, blocks, words, list);
}
