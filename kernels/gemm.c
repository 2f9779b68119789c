/* gemm.c - the matrix product: checks, and how C is cut into groups. The arithmetic is in gemm.cl. */
#include "gemm_internal.h"
#include "kernels_internal.h"

enum {
    ROWS_MIN = 32,   /* rows that a group's copy of B serves at least, whatever the balance */
    CHECK_TILES = 64 /* tiles that a work-item checks: 96 KiB */
};

static uint32_t divide_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

/* Rows of C to a group: as many as fit, but with enough groups for all compute units. */
static uint32_t choose_row_block(const struct keel_kernels *kernels, const struct keel_gemm *op)
{
    uint32_t rows_max = keel_kernels_setting(kernels, KEEL_TUNABLE_GEMM_ROWS);
    uint64_t strips = (uint64_t)divide_up(op->n, GEMM_TILE_COLUMNS) * op->batch;
    uint64_t wanted = (uint64_t)keel_kernels_info(kernels)->compute_units *
                      keel_kernels_setting(kernels, KEEL_TUNABLE_GEMM_BALANCE);
    uint64_t cuts = divide_up(op->m, rows_max);
    uint64_t cuts_max = divide_up(op->m, ROWS_MIN);
    if (strips * cuts < wanted)
        cuts = (wanted + strips - 1) / strips;
    if (cuts > cuts_max)
        cuts = cuts_max;
    uint32_t rows = divide_up(op->m, (uint32_t)cuts);
    return divide_up(rows, GEMM_TILE_ROWS) * GEMM_TILE_ROWS;
}

/* Bytes from the first element of a matrix to the last of the last of the batch. */
static uint64_t span_bytes(const struct keel_gemm *op, uint32_t rows, uint32_t columns, uint32_t leading,
                           uint64_t stride)
{
    if (rows == 0 || columns == 0)
        return 0;
    return ((op->batch - 1) * stride + (uint64_t)(rows - 1) * leading + columns) * sizeof(float);
}

static enum keel_status check_shape(const struct keel_gemm *op)
{
    uint32_t a_columns = op->transpose_a ? op->m : op->k;
    uint32_t b_columns = op->transpose_b ? op->k : op->n;
    if (op->m == 0 || op->n == 0 || op->k == 0 || op->batch == 0)
        return keel_fail(KEEL_INVALID, "gemm: %u x %u x %u, batch %u: nothing to compute", op->m, op->n,
                         op->k, op->batch);
    if (op->lda < a_columns || op->ldb < b_columns || op->ldc < op->n)
        return keel_fail(KEEL_INVALID,
                         "gemm: %u x %u x %u: rows of %u, %u, %u do not fit lda %u, ldb %u, ldc %u", op->m,
                         op->n, op->k, a_columns, b_columns, op->n, op->lda, op->ldb, op->ldc);
    if (op->chain && op->accumulate)
        return keel_fail(KEEL_INVALID, "gemm: %u x %u x %u: chain and accumulate would both add C: take one",
                         op->m, op->n, op->k);
    if (op->residual != NULL && (op->pre != NULL || op->accumulate))
        return keel_fail(KEEL_INVALID, "gemm: %u x %u x %u: a residual goes with neither pre nor accumulate",
                         op->m, op->n, op->k);
    return KEEL_OK;
}

static enum keel_status check_buffers(const struct keel_gemm *op)
{
    uint64_t a = op->transpose_a ? span_bytes(op, op->k, op->m, op->lda, op->stride_a)
                                 : span_bytes(op, op->m, op->k, op->lda, op->stride_a);
    uint64_t b = op->transpose_b ? span_bytes(op, op->n, op->k, op->ldb, op->stride_b)
                                 : span_bytes(op, op->k, op->n, op->ldb, op->stride_b);
    uint64_t c = span_bytes(op, op->m, op->n, op->ldc, op->stride_c);
    KEEL_TRY(keel_check_buffer("gemm", "A", op->a, a));
    KEEL_TRY(keel_check_buffer("gemm", "B", op->b, b));
    KEEL_TRY(keel_check_buffer("gemm", "C", op->c, c));
    if (op->bias != NULL)
        KEEL_TRY(keel_check_buffer("gemm", "bias", op->bias, op->n * sizeof(float)));
    if (op->pre != NULL)
        KEEL_TRY(keel_check_buffer("gemm", "pre", op->pre, c));
    if (op->residual != NULL)
        KEEL_TRY(keel_check_buffer("gemm", "residual", op->residual, c));
    if (op->checksums != NULL)
        KEEL_TRY(keel_check_buffer("gemm", "checksums", op->checksums, keel_gemm_checksum_bytes(op)));
    return KEEL_OK;
}

uint64_t keel_gemm_workspace_bytes(const struct keel_kernels *kernels, const struct keel_gemm *op)
{
    (void)kernels;
    (void)op;
    return 0; /* B is packed in local memory, A is read where it lies */
}

uint64_t keel_gemm_checksum_bytes(const struct keel_gemm *op)
{
    return (uint64_t)divide_up(op->m, GEMM_TILE_ROWS) * divide_up(op->n, GEMM_TILE_COLUMNS) * op->batch *
           sizeof(uint32_t);
}

enum keel_status keel_op_gemm(struct keel_kernels *kernels, const struct keel_gemm *op,
                              struct keel_launch_list *list)
{
    KEEL_TRY(check_shape(op));
    KEEL_TRY(check_buffers(op));
    uint32_t flags = (op->transpose_a ? GEMM_TRANSPOSE_A : 0U) | (op->transpose_b ? GEMM_TRANSPOSE_B : 0U) |
                     (op->accumulate ? GEMM_ACCUMULATE : 0U) | (op->bias != NULL ? GEMM_BIAS : 0U) |
                     (op->pre != NULL ? GEMM_PRE : 0U) | (op->checksums != NULL ? GEMM_CHECKSUM : 0U) |
                     (op->chain ? GEMM_CHAIN : 0U) | (op->residual != NULL ? GEMM_RESIDUAL : 0U);
    struct keel_buffer *pre = op->residual != NULL ? op->residual : op->pre; /* never both */
    uint32_t row_block = choose_row_block(kernels, op);
    const struct keel_arg args[] = {
        keel_arg_buffer(op->a),
        keel_arg_buffer(op->b),
        keel_arg_buffer(op->c),
        keel_arg_buffer(op->bias != NULL ? op->bias : op->c), /* not read without its flag */
        keel_arg_buffer(pre != NULL ? pre : op->c),
        keel_arg_u32(op->m),
        keel_arg_u32(op->n),
        keel_arg_u32(op->k),
        keel_arg_u32(op->lda),
        keel_arg_u32(op->ldb),
        keel_arg_u32(op->ldc),
        keel_arg_u32(flags),
        keel_arg_u32(row_block),
        keel_arg_u64(op->stride_a),
        keel_arg_u64(op->stride_b),
        keel_arg_u64(op->stride_c),
        keel_arg_buffer(op->checksums != NULL ? op->checksums : op->c),
    };
    const struct keel_range range = {
        .global = {divide_up(op->n, GEMM_TILE_COLUMNS), divide_up(op->m, row_block), op->batch},
        .local = {1, 1, 1},
    };
    return keel_kernels_launch(kernels, list, KEEL_MODULE_gemm, "keel_gemm", &range, args,
                               KEEL_ARG_COUNT(args));
}

enum keel_status keel_op_gemm_check(struct keel_kernels *kernels, const struct keel_gemm_check *op,
                                    struct keel_launch_list *list)
{
    const struct keel_gemm *product = op->product;
    KEEL_TRY(check_shape(product));
    KEEL_TRY(keel_check_buffer("gemm_check", "C", product->c,
                               span_bytes(product, product->m, product->n, product->ldc, product->stride_c)));
    KEEL_TRY(
        keel_check_buffer("gemm_check", "checksums", product->checksums, keel_gemm_checksum_bytes(product)));
    KEEL_TRY(keel_check_buffer("gemm_check", "report", op->report,
                               (op->report_index + UINT64_C(1)) * KEEL_GEMM_REPORT_BYTES));
    uint32_t across = divide_up(product->n, GEMM_TILE_COLUMNS);
    const struct keel_arg args[] = {
        keel_arg_buffer(product->c),    keel_arg_buffer(product->checksums),
        keel_arg_buffer(op->report),    keel_arg_u32(product->m),
        keel_arg_u32(product->n),       keel_arg_u32(product->ldc),
        keel_arg_u32(CHECK_TILES),      keel_arg_u64(product->stride_c),
        keel_arg_u32(op->report_index),
    };
    const struct keel_range range = {
        .global = {divide_up(across, CHECK_TILES), divide_up(product->m, GEMM_TILE_ROWS), product->batch},
        .local = {1, 1, 1},
    };
    return keel_kernels_launch(kernels, list, KEEL_MODULE_gemm, "keel_gemm_check", &range, args,
                               KEEL_ARG_COUNT(args));
}
