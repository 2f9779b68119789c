/* gemm.c - the matrix product: checks, and how C is cut into groups. The arithmetic is in gemm.cl. */
#include "clblast.h"
#include "gemm_internal.h"
#include "kernels_internal.h"
#include "planes_internal.h"

enum { CHECK_TILES = 64 /* tiles that a work-item checks: 96 KiB */ };

/* What a group makes of C, at most. */
struct cut {
    uint32_t rows, columns;
    uint32_t shape; /* gemm_strips.h: strips; gemm_lanes.h: which shape */
    uint32_t depth; /* of k at a time, where k has slices */
    uint32_t items; /* to a group */
};

/* What a cut costs for each of k, in products: groups are alike and each unit makes as many as the busiest;
 * a group multiplies its block, and copies its rows and its columns at COPY products an element. */
enum { COPY = 24 };
static uint64_t cut_cost(const struct cut *cut, uint64_t groups, uint32_t units)
{
    const uint64_t rows = cut->rows, columns = cut->columns;
    return (groups + units - 1) / units * (rows * columns + COPY * (rows + columns));
}

/* Sums that lie beside each other, of one place in C: those of a slice, and of the nodes that wait for it. */
static uint32_t sums_of(const struct keel_slices *slices)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < slices->count; i++) {
        uint32_t waiting = 0;
        for (uint32_t done = i; done > 0; done &= done - 1)
            waiting++;
        most = waiting > most ? waiting : most;
    }
    return most + 1;
}

/* Whether a group of a product of slices has room for its panel, its blocks and its sums (gemm.cl). */
static bool fits(const struct keel_kernels *kernels, const struct cut *cut, uint32_t sums)
{
    const bool large = keel_device_local_size(keel_kernels_info(kernels)) == KEEL_LOCAL_LARGE;
    const uint32_t packed = large || cut->rows < GEMM_PACKED_ROWS ? cut->rows : GEMM_PACKED_ROWS;
    const uint64_t panel = KEEL_BYTES(cut->depth, GEMM_TILE_COLUMNS);
    const uint64_t blocks = KEEL_BYTES(packed / GEMM_TILE_ROWS, 8 * cut->depth + 16);
    return panel + blocks + KEEL_BYTES(sums, cut->rows, cut->columns) <=
           keel_gemm_arena_floats(keel_kernels_info(kernels), kernels->tuned);
}

/* The cheapest of all even cuts, at one depth; rows 0: none fits. Rows come in sixteens, as they are copied.
 */
static struct cut cheapest_cut(const struct keel_kernels *kernels, const struct keel_gemm *op, uint32_t depth)
{
    const uint32_t units = keel_kernels_info(kernels)->compute_units;
    const uint32_t rows_max = keel_kernels_setting(kernels, KEEL_TUNABLE_GEMM_ROWS);
    const uint32_t strips_max = keel_kernels_setting(kernels, KEEL_TUNABLE_GEMM_STRIPS);
    const uint32_t strips_all = divide_up(op->n, GEMM_TILE_COLUMNS), sums = sums_of(&op->k_slices);
    struct cut best = {0};
    uint64_t best_cost = UINT64_MAX;
    for (uint32_t rows = rows_max; rows >= 16; rows -= 16)
        for (uint32_t strips = 1; strips <= strips_max; strips++) {
            const uint64_t down = divide_up(op->m, rows), across = divide_up(strips_all, strips);
            const struct cut cut = {rows, strips * GEMM_TILE_COLUMNS, strips, depth, 1};
            const uint64_t cost = cut_cost(&cut, down * across * op->batch, units);
            if (cost < best_cost && (op->k_slices.count == 0 || fits(kernels, &cut, sums))) {
                best = cut;
                best_cost = cost;
            }
        }
    return best;
}

/* Sums of slices that wait take room: where local memory is small, what is copied at a time gets less, and at
 * last so do the rows. The smallest arena holds 8 rows of 64 slices (tests/kernels/gemm_test.c). */
static struct cut choose_strips(const struct keel_kernels *kernels, const struct keel_gemm *op)
{
    enum { LEAST_DEPTH = 16 };
    const uint32_t deepest = keel_kernels_setting(kernels, KEEL_TUNABLE_GEMM_DEPTH);
    for (uint32_t depth = deepest; depth >= LEAST_DEPTH; depth /= 2) {
        const struct cut cut = cheapest_cut(kernels, op, depth);
        if (cut.rows > 0)
            return cut;
    }
    return (struct cut){GEMM_TILE_ROWS, GEMM_TILE_COLUMNS, 1, LEAST_DEPTH, 1};
}

/* The cheapest of the shapes; slices take the one that has registers for them. */
static struct cut choose_lanes(const struct keel_kernels *kernels, const struct keel_gemm *op)
{
    const uint32_t units = keel_kernels_info(kernels)->compute_units;
    struct cut best = {0};
    uint64_t best_cost = UINT64_MAX;
    const bool sliced = op->k_slices.count > 0;
    for (uint32_t i = sliced ? KEEL_GEMM_SHAPE_SLICED : 0;
         i < (sliced ? KEEL_GEMM_SHAPES : KEEL_GEMM_SHAPE_SLICED); i++) {
        const struct keel_gemm_shape shape = keel_gemm_shape(kernels->tuned, i);
        const struct cut cut = {shape.rows, shape.columns, i, 0, shape.items};
        const uint64_t down = divide_up(op->m, cut.rows), across = divide_up(op->n, cut.columns);
        const uint64_t cost = cut_cost(&cut, down * across * op->batch, units);
        if (cost < best_cost) {
            best = cut;
            best_cost = cost;
        }
    }
    KEEL_ASSERT(best.rows > 0); /* there is a shape for every product */
    return best;
}

/* Of a product of few rows B is nearly all that is read: a group has columns side by side, of which it reads
 * long stretches, and each unit a group. Its sums lie where those of many rows would (gemm_few.h). */
static struct cut choose_few(const struct keel_kernels *kernels, const struct keel_gemm *op)
{
    enum { STRIPS = 8 };
    const uint32_t units = keel_kernels_info(kernels)->compute_units;
    const uint32_t room = keel_kernels_setting(kernels, KEEL_TUNABLE_GEMM_ROWS) / GEMM_TILE_ROWS *
                          keel_kernels_setting(kernels, KEEL_TUNABLE_GEMM_STRIPS);
    const uint32_t each = divide_up(divide_up(op->n, GEMM_TILE_COLUMNS), units > 0 ? units : 1);
    const uint32_t most = room < STRIPS ? room : STRIPS, strips = each < most ? each : most;
    return (struct cut){GEMM_TILE_ROWS, strips * GEMM_TILE_COLUMNS, strips, 0, 1};
}

static struct cut choose_cut(const struct keel_kernels *kernels, const struct keel_gemm *op)
{
    if (keel_kernels_setting(kernels, KEEL_TUNABLE_GEMM_ITEMS) > 1)
        return choose_lanes(kernels, op);
    if (op->m <= GEMM_TILE_ROWS && op->k_slices.count == 0 &&
        keel_kernels_setting(kernels, KEEL_TUNABLE_BY_LANE) < 2)
        return choose_few(kernels, op);
    return choose_strips(kernels, op);
}

static uint32_t type_bytes(enum keel_dtype type)
{
    return type == KEEL_F32 ? 4 : 2;
}

/* Bytes from the first element of a matrix to the last of the last of `count`. */
static uint64_t span_bytes(uint64_t count, uint64_t rows, uint32_t columns, uint32_t leading, uint64_t stride,
                           enum keel_dtype type)
{
    const uint64_t last = keel_plus(KEEL_BYTES(count - 1, stride), KEEL_BYTES(rows - 1, leading));
    return KEEL_BYTES(keel_plus(last, columns), type_bytes(type));
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
    if (op->chain && op->k_slices.count > 0)
        return keel_fail(KEEL_INVALID, "gemm: %u x %u x %u: a chain over pieces of k has no slices of k",
                         op->m, op->n, op->k);
    if (op->fresh && !op->accumulate)
        return keel_fail(KEEL_INVALID,
                         "gemm: %u x %u x %u: fresh says of accumulate that C counts as zero: set both",
                         op->m, op->n, op->k);
    if (op->residual != NULL && (op->pre != NULL || op->accumulate))
        return keel_fail(KEEL_INVALID, "gemm: %u x %u x %u: a residual goes with neither pre nor accumulate",
                         op->m, op->n, op->k);
    if (op->a_type > KEEL_F16 || op->b_type > KEEL_F16 || op->c_type > KEEL_F16)
        return keel_fail(KEEL_INVALID,
                         "gemm: %u x %u x %u: types %d, %d, %d: f32, bf16 and f16 are multiplied", op->m,
                         op->n, op->k, (int)op->a_type, (int)op->b_type, (int)op->c_type);
    return keel_check_slices("gemm", "k", &op->k_slices, op->k, true);
}

/* `count` of C lie behind each other, or side by side in the same rows: no element is in two. */
static enum keel_status check_places(const struct keel_gemm *op, uint64_t count)
{
    const uint64_t high = keel_plus(KEEL_BYTES(op->m - UINT64_C(1), op->ldc), op->n);
    const uint64_t wide = keel_plus(KEEL_BYTES(count - 1, op->stride_c), op->n);
    if (count == 1 || op->stride_c >= high || (op->stride_c >= op->n && wide <= op->ldc))
        return KEEL_OK;
    return keel_fail(KEEL_INVALID, "gemm: %u x %u with rows of %u: %llu of them overlap at a stride of %llu",
                     op->m, op->n, op->ldc, (unsigned long long)count, (unsigned long long)op->stride_c);
}

uint64_t keel_gemm_checksum_bytes(const struct keel_gemm *op)
{
    return KEEL_BYTES(divide_up(op->m, GEMM_TILE_ROWS), divide_up(op->n, GEMM_TILE_COLUMNS), op->batch,
                      sizeof(uint32_t));
}

uint64_t keel_gemm_planes_bytes(const struct keel_kernels *kernels, const struct keel_gemm *op)
{
    const uint32_t digits = keel_planes_digits(kernels);
    return digits > 0 ? keel_planes_bytes(op, digits) : 0;
}

/* Of a plain product, or of one of groups: then there are as many of B, with a bias each, or of C. */
static enum keel_status check_operands(const char *name, const struct keel_gemm *op, uint64_t planes,
                                       uint32_t groups, bool over_k, struct keel_buffer *offsets)
{
    const uint64_t a_count = groups == 0 ? op->batch : 1, b_count = groups == 0 || over_k ? a_count : groups;
    const uint64_t c_count = groups == 0 || !over_k ? a_count : groups;
    const uint64_t a = span_bytes(a_count, op->transpose_a ? op->k : op->m, op->transpose_a ? op->m : op->k,
                                  op->lda, op->stride_a, op->a_type);
    const uint64_t b = span_bytes(b_count, op->transpose_b ? op->n : op->k, op->transpose_b ? op->k : op->n,
                                  op->ldb, op->stride_b, op->b_type);
    const uint64_t c = span_bytes(c_count, op->m, op->n, op->ldc, op->stride_c, op->c_type);
    KEEL_TRY(check_places(op, c_count));
    return KEEL_CHECK_OPERANDS(
        name, {"A", op->a, a, KEEL_READ}, {"B", op->b, b, KEEL_READ},
        {"C", op->c, c, KEEL_WRITTEN | KEEL_IN_PLACE},
        {"bias", op->bias, KEEL_BYTES(groups == 0 ? 1 : groups, op->n, sizeof(float)), KEEL_OPTIONAL},
        {"residual", op->residual, c, KEEL_IN_PLACE | KEEL_OPTIONAL},
        {"pre", op->pre, c, KEEL_WRITTEN | KEEL_OPTIONAL},
        {"checksums", op->checksums, keel_gemm_checksum_bytes(op), KEEL_WRITTEN | KEEL_OPTIONAL},
        {"planes", op->planes, planes, KEEL_WRITTEN | KEEL_OPTIONAL},
        {"offsets", offsets, KEEL_BYTES(groups + UINT64_C(1), sizeof(int32_t)),
         groups == 0 ? KEEL_OPTIONAL : KEEL_READ});
}

static uint32_t flags_of(const struct keel_gemm *op)
{
    return (op->transpose_a ? GEMM_TRANSPOSE_A : 0U) | (op->transpose_b ? GEMM_TRANSPOSE_B : 0U) |
           (op->accumulate ? GEMM_ACCUMULATE : 0U) | (op->fresh ? GEMM_FRESH : 0U) |
           (op->bias != NULL ? GEMM_BIAS : 0U) | (op->pre != NULL ? GEMM_PRE : 0U) |
           (op->checksums != NULL ? GEMM_CHECKSUM : 0U) | (op->chain ? GEMM_CHAIN : 0U) |
           (op->residual != NULL ? GEMM_RESIDUAL : 0U) | (uint32_t)op->a_type << GEMM_A_TYPE_AT |
           (uint32_t)op->b_type << GEMM_B_TYPE_AT | (uint32_t)op->c_type << GEMM_C_TYPE_AT;
}

/* Many work-items add to a tile's checksum; one work-item makes it. */
static enum keel_status clear_checksums(struct keel_kernels *kernels, const struct keel_gemm *op,
                                        struct keel_launch_list *list)
{
    const struct keel_fill fill = {.count = keel_gemm_checksum_bytes(op) / sizeof(float), .y = op->checksums};
    return keel_op_fill(kernels, &fill, list);
}

/* What a flag or groups do not ask for is not read: C stands for it. groups are 0 for a plain product. */
static enum keel_status launch(struct keel_kernels *kernels, const struct keel_gemm *op,
                               const struct cut *cut, const uint64_t groups_down_batch[2],
                               uint32_t more_flags, uint32_t groups, struct keel_buffer *offsets,
                               struct keel_launch_list *list)
{
    struct keel_buffer *pre = op->residual != NULL ? op->residual : op->pre; /* never both */
    const struct keel_range range = {
        .global = {keel_size(KEEL_BYTES(divide_up(op->n, cut->columns), cut->items)),
                   keel_size(groups_down_batch[0]), keel_size(groups_down_batch[1])},
        .local = {cut->items, 1, 1},
    };
    if (op->checksums != NULL && cut->items > 1)
        KEEL_TRY(clear_checksums(kernels, op, list));
    const bool small = cut->items > 1 && cut->shape == KEEL_GEMM_SHAPE_SMALL;
    const char *name = op->k_slices.count > 0 ? "keel_gemm_sliced" : small ? "keel_gemm_small" : "keel_gemm";
    return keel_kernels_launch(
        kernels, list, KEEL_MODULE_gemm, name, &range,
        KEEL_ARGS(keel_arg_buffer(op->a), keel_arg_buffer(op->b), keel_arg_buffer(op->c),
                  keel_arg_either(op->bias, op->c), keel_arg_either(pre, op->c), keel_arg_u32(op->m),
                  keel_arg_u32(op->n), keel_arg_u32(op->k), keel_arg_u32(op->lda), keel_arg_u32(op->ldb),
                  keel_arg_u32(op->ldc), keel_arg_u32(flags_of(op) | more_flags), keel_arg_u32(cut->rows),
                  keel_arg_u64(op->stride_a), keel_arg_u64(op->stride_b), keel_arg_u64(op->stride_c),
                  keel_arg_either(op->checksums, op->c), keel_arg_u32(cut->shape),
                  keel_arg_either(offsets, op->c), keel_arg_u32(groups),
                  keel_arg_u32(keel_pack_slices(&op->k_slices)), keel_arg_u32(op->k_slices.units),
                  keel_arg_u32(op->k_slices.unit), keel_arg_u32(cut->depth)));
}

enum keel_status keel_op_gemm(struct keel_kernels *kernels, const struct keel_gemm *op,
                              struct keel_launch_list *list)
{
    KEEL_TRY(check_shape(op));
    KEEL_TRY(check_operands("gemm", op, keel_gemm_planes_bytes(kernels, op), 0, false, NULL));
    if (op->planes != NULL && keel_planes_digits(kernels) > 0) {
        if (op->checksums != NULL && kernels->planes.items > 1)
            KEEL_TRY(clear_checksums(kernels, op, list));
        return keel_planes_append(kernels, op, flags_of(op), list);
    }
    const struct keel_clblast *clblast = keel_kernels_clblast(kernels);
    if (keel_clblast_takes(clblast, op))
        return keel_clblast_append(clblast, kernels, op, list);
    const struct cut cut = choose_cut(kernels, op);
    return launch(kernels, op, &cut, (uint64_t[]){divide_up(op->m, cut.rows), op->batch}, 0, 0, NULL, list);
}

enum keel_status keel_op_gemm_grouped(struct keel_kernels *kernels, const struct keel_gemm_grouped *op,
                                      struct keel_launch_list *list)
{
    struct keel_gemm one = op->product; /* as large as a group is, where all are alike */
    KEEL_TRY(check_shape(&op->product));
    if (op->groups == 0 || op->product.batch != 1 || op->product.checksums != NULL || op->product.fresh ||
        op->product.k_slices.count > 0 ||
        (op->over_k && (!op->product.transpose_a || op->product.transpose_b)))
        return keel_fail(
            KEEL_INVALID,
            "gemm_grouped: %u groups of %u x %u x %u, batch %u: wants groups, batch 1, no checksums, "
            "nothing fresh, no slices, and rows of A and B as stored where k is cut",
            op->groups, one.m, one.n, one.k, one.batch);
    KEEL_TRY(check_operands("gemm_grouped", &op->product, 0, op->groups, op->over_k, op->offsets));
    one.batch = op->groups;
    if (!op->over_k)
        one.m = divide_up(one.m, op->groups);
    const struct cut cut = choose_cut(kernels, &one);
    /* Each group, and who belongs to none, may leave one block of rows unfilled. */
    const uint64_t down = divide_up(op->product.m, cut.rows);
    const uint64_t range[2] = {op->over_k ? down : down + op->groups, op->over_k ? op->groups : 1};
    return launch(kernels, &op->product, &cut, range, op->over_k ? GEMM_OVER_K : 0, op->groups, op->offsets,
                  list);
}

enum keel_status keel_op_gemm_check(struct keel_kernels *kernels, const struct keel_gemm_check *op,
                                    struct keel_launch_list *list)
{
    const struct keel_gemm *product = op->product;
    KEEL_TRY(check_shape(product));
    KEEL_TRY(check_places(product, product->batch));
    const uint64_t c_bytes =
        span_bytes(product->batch, product->m, product->n, product->ldc, product->stride_c, product->c_type);
    KEEL_TRY(KEEL_CHECK_OPERANDS(
        "gemm_check", {"A", product->a, 0, KEEL_OPTIONAL}, {"B", product->b, 0, KEEL_OPTIONAL},
        {"bias", product->bias, 0, KEEL_OPTIONAL}, {"pre", product->pre, 0, KEEL_OPTIONAL},
        {"residual", product->residual, 0, KEEL_OPTIONAL}, {"C", product->c, c_bytes, KEEL_READ},
        {"checksums", product->checksums, keel_gemm_checksum_bytes(product), KEEL_READ},
        {"report", op->report, (op->report_index + UINT64_C(1)) * KEEL_GEMM_REPORT_BYTES, KEEL_WRITTEN}));
    uint32_t across = divide_up(product->n, GEMM_TILE_COLUMNS);
    const struct keel_range range = {
        .global = {divide_up(across, CHECK_TILES), divide_up(product->m, GEMM_TILE_ROWS), product->batch},
        .local = {1, 1, 1},
    };
    return keel_kernels_launch(
        kernels, list, KEEL_MODULE_gemm, "keel_gemm_check", &range,
        KEEL_ARGS(keel_arg_buffer(product->c), keel_arg_buffer(product->checksums),
                  keel_arg_buffer(op->report), keel_arg_u32(product->m), keel_arg_u32(product->n),
                  keel_arg_u32(product->ldc), keel_arg_u32(CHECK_TILES), keel_arg_u64(product->stride_c),
                  keel_arg_u32(op->report_index), keel_arg_u32((uint32_t)product->c_type)));
}
