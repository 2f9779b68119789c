/* gemm_test.c - the matrix product: right, in the stated order, with the same bits on every device. */
#include "device_rig.h"
#include "kernels_internal.h"
#include <float.h>
#include <math.h>

struct shape {
    uint32_t m, n, k, batch;
    uint32_t pad; /* added to every leading dimension */
};
enum { ACCUMULATE = 1, BIAS = 2, PRE = 4, FORMS = 8 };

/* Sizes around every edge of the tiling: 8 rows, 16 and 48 columns, 64 and 256 of k and rows. */
static const struct shape shapes[] = {
    {1, 1, 1, 1, 0},       {3, 2, 1, 5, 0},      {1, 75, 128, 1, 0},  {7, 5, 3, 2, 1},
    {8, 48, 16, 1, 0},     {9, 49, 17, 3, 5},    {13, 47, 65, 1, 3},  {64, 128, 128, 1, 0},
    {31, 96, 257, 1, 7},   {67, 97, 101, 2, 11}, {255, 16, 33, 1, 1}, {257, 53, 513, 1, 2},
    {300, 144, 300, 1, 0}, {2, 331, 31, 1, 0},   {1, 500, 130, 1, 0}, {1, 48, 300, 2, 5},
    {5, 1000, 259, 1, 3},  {8, 433, 128, 1, 0},
};

/* One product: its numbers as they are stored. */
struct product {
    struct keel_gemm op; /* without buffers */
    bool bias, pre;
    float *a, *b, *c, *bias_row;
    uint64_t a_count, b_count, c_count;
};

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static struct product product_init(const struct shape *shape, bool transpose_a, bool transpose_b, int form)
{
    struct product p = {.op = {.m = shape->m,
                               .n = shape->n,
                               .k = shape->k,
                               .batch = shape->batch,
                               .transpose_a = transpose_a,
                               .transpose_b = transpose_b,
                               .accumulate = (form & ACCUMULATE) != 0},
                        .bias = (form & BIAS) != 0,
                        .pre = (form & PRE) != 0};
    p.op.lda = (transpose_a ? p.op.m : p.op.k) + shape->pad;
    p.op.ldb = (transpose_b ? p.op.k : p.op.n) + shape->pad;
    p.op.ldc = p.op.n + shape->pad;
    p.op.stride_a = (uint64_t)p.op.lda * (transpose_a ? p.op.k : p.op.m) + shape->pad;
    p.op.stride_b = (uint64_t)p.op.ldb * (transpose_b ? p.op.n : p.op.k) + shape->pad;
    p.op.stride_c = (uint64_t)p.op.ldc * p.op.m + shape->pad;
    p.a_count = larger(1, p.op.stride_a * p.op.batch);
    p.b_count = larger(1, p.op.stride_b * p.op.batch);
    p.c_count = p.op.stride_c * p.op.batch;
    p.a = rig_numbers(1, p.a_count);
    p.b = rig_numbers(2, p.b_count);
    p.c = rig_numbers(3, p.c_count);
    p.bias_row = rig_numbers(4, p.op.n);
    return p;
}

static void product_fini(struct product *p)
{
    free(p->a);
    free(p->b);
    free(p->c);
    free(p->bias_row);
}

/* Of the arguments of keel_gemm. */
enum { M_ARGUMENT = 5, N_ARGUMENT = 6, ROW_BLOCK_ARGUMENT = 12, STRIPS_ARGUMENT = 17 };

/* For a device with small local memory: groups of at most 64 rows, other depths of k. */
static struct rig_small use_small_local(struct rig_device *on, struct keel_launch_list *list)
{
    enum { ROWS = 64 };
    struct keel_launch *launch = &list->items[0];
    launch->args[ROW_BLOCK_ARGUMENT].as.u32 = ROWS;
    launch->args[STRIPS_ARGUMENT].as.u32 = 1;
    launch->range.global[0] = (launch->args[N_ARGUMENT].as.u32 + 47) / 48;
    launch->range.global[1] = (launch->args[M_ARGUMENT].as.u32 + ROWS - 1) / ROWS;
    return rig_small_init(on, &keel_module_gemm, "", list);
}

/* Of another device's gemm.cl, which is built for each product then; empty: as the device's own. */
static char build_options[KEEL_BUILD_OPTIONS_BYTES];

/* Computes on one device; c and pre have c_count. Pre begins as c does, so that gaps compare. */
static void product_run(const struct product *p, struct rig_device *on, bool small_local, float *c,
                        float *pre)
{
    struct keel_gemm op = p->op;
    struct keel_launch_list list = {0};
    struct rig_small small = {0};
    op.a = rig_buffer(on, p->a, p->a_count * sizeof(float));
    op.b = rig_buffer(on, p->b, p->b_count * sizeof(float));
    op.c = rig_buffer(on, p->c, p->c_count * sizeof(float));
    op.bias = p->bias ? rig_buffer(on, p->bias_row, op.n * sizeof(float)) : NULL;
    op.pre = p->pre ? rig_buffer(on, p->c, p->c_count * sizeof(float)) : NULL;
    ck_ok(keel_op_gemm(on->kernels, &op, &list));
    if (small_local)
        small = use_small_local(on, &list);
    else if (build_options[0] != 0)
        small = rig_small_init(on, &keel_module_gemm, build_options, &list);
    rig_run(on, &list);
    rig_read(on, op.c, c);
    if (p->pre)
        rig_read(on, op.pre, pre);
    else
        memcpy(pre, p->c, p->c_count * sizeof(float));
    if (small.program != NULL)
        rig_small_fini(&small);
    rig_clear(on);
}

static float at_a(const struct product *p, uint64_t batch, uint64_t i, uint64_t q)
{
    const float *a = p->a + batch * p->op.stride_a;
    return p->op.transpose_a ? a[q * p->op.lda + i] : a[i * p->op.lda + q];
}

static float at_b(const struct product *p, uint64_t batch, uint64_t q, uint64_t j)
{
    const float *b = p->b + batch * p->op.stride_b;
    return p->op.transpose_b ? b[j * p->op.ldb + q] : b[q * p->op.ldb + j];
}

static double gelu_true(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

/* The sum over k by the words of kernels.h: a chain for each slice, and the slices' sums by pairs of
 * neighbours, again and again; the last goes up alone where it has none. */
static float sum_over_k(const struct product *p, uint64_t batch, uint64_t i, uint64_t j)
{
    const struct keel_slices *cut = &p->op.k_slices;
    float sums[KEEL_SLICES_MAX] = {0};
    uint32_t count = cut->count > 0 ? cut->count : 1;
    uint64_t q = 0;
    for (uint32_t slice = 0; slice < count; slice++) {
        const uint64_t begin = cut->count > 0 ? (uint64_t)cut->first * cut->units / cut->of : 0;
        const uint64_t end =
            cut->count > 0 ? ((uint64_t)(cut->first + slice + 1) * cut->units / cut->of - begin) * cut->unit
                           : p->op.k;
        for (; q < end; q++)
            sums[slice] = fmaf(at_a(p, batch, i, q), at_b(p, batch, q, j), sums[slice]);
    }
    ck_assert_uint_eq(q, p->op.k);
    for (; count > 1; count = (count + 1) / 2)
        for (uint32_t pair = 0; pair < (count + 1) / 2; pair++)
            sums[pair] = 2 * pair + 1 < count ? sums[2 * pair] + sums[2 * pair + 1] : sums[2 * pair];
    return sums[0];
}

/* An element by the words of kernels.h, and in double: before GELU, the sums must have the very bits and
 * lie within (k + 2) rounding errors of the sum of magnitudes. */
static void check_element(const struct product *p, uint64_t batch, uint64_t i, uint64_t j, const float *c,
                          const float *pre)
{
    uint64_t at = batch * p->op.stride_c + i * p->op.ldc + j;
    float s = sum_over_k(p, batch, i, j);
    double exact = 0, magnitude = 0;
    for (uint64_t q = 0; q < p->op.k; q++) {
        float x = at_a(p, batch, i, q), y = at_b(p, batch, q, j);
        exact += (double)x * (double)y;
        magnitude += fabs((double)x * (double)y);
    }
    if (p->bias) {
        s = s + p->bias_row[j];
        exact += (double)p->bias_row[j];
        magnitude += fabs((double)p->bias_row[j]);
    }
    if (p->op.accumulate) {
        s = p->c[at] + s;
        exact += (double)p->c[at];
        magnitude += fabs((double)p->c[at]);
    }
    float before = p->pre ? pre[at] : c[at];
    ck_assert_msg(memcmp(&before, &s, sizeof s) == 0, "%a, wanted %a", (double)before, (double)s);
    ck_assert_double_le(fabs((double)before - exact), (p->op.k + 2) * (double)FLT_EPSILON * magnitude);
    if (p->pre) /* canonical GELU: 4 units in the last place, or that much of its input near zero */
        ck_assert_double_le(fabs((double)c[at] - gelu_true((double)before)),
                            4 * (double)FLT_EPSILON * fabs((double)before));
}

/* All of a small product, a sample of a large one. */
static void check_elements(const struct product *p, const float *c, const float *pre)
{
    uint64_t count = (uint64_t)p->op.batch * p->op.m * p->op.n;
    uint64_t step = count * (p->op.k + 1) > 200000 ? 97 : 1;
    for (uint64_t e = count - 1; e < count; e -= step)
        check_element(p, e / p->op.n / p->op.m, e / p->op.n % p->op.m, e % p->op.n, c, pre);
}

static void check_shape(const struct shape *shape, bool transpose_a, bool transpose_b, int form)
{
    struct product p = product_init(shape, transpose_a, transpose_b, form);
    float *c[RIG_DEVICES], *pre[RIG_DEVICES];
    for (int d = 0; d < RIG_DEVICES; d++) {
        c[d] = rig_numbers(0, p.c_count);
        pre[d] = rig_numbers(0, p.c_count);
        product_run(&p, &rig[d], false, c[d], pre[d]);
    }
    char what[96];
    snprintf(what, sizeof what, "%u x %u x %u, batch %u, transposed %d %d, form %d", shape->m, shape->n,
             shape->k, shape->batch, transpose_a, transpose_b, form);
    check_elements(&p, c[0], pre[0]);
    for (int d = 1; d < RIG_DEVICES; d++) {
        rig_same_bits(what, d, c[d], c[0], p.c_count);
        rig_same_bits(what, d, pre[d], pre[0], p.c_count);
    }
    if (shape->m == 67 && form == (ACCUMULATE | BIAS | PRE)) {
        snprintf(what, sizeof what, "gemm-67x97x101-%d%d", transpose_a, transpose_b);
        rig_golden(what, c[0], p.c_count);
    }
    for (int d = 0; d < RIG_DEVICES; d++) {
        free(c[d]);
        free(pre[d]);
    }
    product_fini(&p);
}

/* Every shape in every layout; the forms take turns, and each shape has the full one. */
START_TEST(every_shape_has_the_stated_chain_on_every_device)
{
    rig_open();
    int turn = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int layout = 0; layout < 4; layout++) {
            check_shape(&shapes[i], layout & 1, layout & 2, turn++ % FORMS);
            check_shape(&shapes[i], layout & 1, layout & 2, FORMS - 1);
        }
    rig_close();
}
END_TEST

/* Splitting rows must not show: a product of all rows equals that of its halves. */
/* Elements of C that the busiest of some units makes, where they are handed groups in order, each time an
 * equal part of those that are left, as PoCL does. */
static uint64_t busiest(const struct keel_launch *launch, uint32_t units)
{
    const uint64_t m = launch->args[M_ARGUMENT].as.u32, n = launch->args[N_ARGUMENT].as.u32;
    const uint64_t rows = launch->args[ROW_BLOCK_ARGUMENT].as.u32;
    const uint64_t columns = UINT64_C(48) * launch->args[STRIPS_ARGUMENT].as.u32;
    const uint64_t across = launch->range.global[0], groups = across * launch->range.global[1];
    uint64_t *made = calloc(units, sizeof *made), most = 0;
    for (uint64_t group = 0; group < groups;) {
        uint32_t least = 0;
        for (uint32_t u = 1; u < units; u++)
            least = made[u] < made[least] ? u : least;
        for (uint64_t end = group + (groups - group + units - 1) / units; group < end; group++) {
            const uint64_t row = group / across * rows, column = group % across * columns;
            made[least] += (m - row < rows ? m - row : rows) * (n - column < columns ? n - column : columns);
        }
    }
    for (uint32_t u = 0; u < units; u++)
        most = larger(most, made[u]);
    free(made);
    return most;
}

/* 256 rows as 240 and 16 left two of four units idle for half of the time. */
START_TEST(no_unit_waits_long_for_another)
{
    static const struct shape large[] = {
        {256, 768, 2304, 1, 0}, {256, 2304, 768, 1, 0}, {256, 3072, 768, 1, 0}, {768, 3072, 256, 1, 0},
        {768, 768, 256, 1, 0},  {1024, 1024, 64, 1, 0}, {4096, 768, 64, 1, 0},  {250, 1000, 64, 1, 0}};
    rig_open();
    struct rig_device *on = &rig[1];
    for (int d = 2; d < RIG_DEVICES; d++)
        on = keel_device_info(rig[d].device)->compute_units > keel_device_info(on->device)->compute_units
                 ? &rig[d]
                 : on;
    const uint32_t units = keel_device_info(on->device)->compute_units;
    struct keel_buffer *buffer = rig_buffer(on, NULL, UINT64_C(4096) * 3072 * sizeof(float));
    struct keel_buffer *result = rig_buffer(on, NULL, UINT64_C(4096) * 3072 * sizeof(float));
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        const struct shape *s = &large[i];
        const struct keel_gemm op = {.m = s->m,
                                     .n = s->n,
                                     .k = s->k,
                                     .batch = 1,
                                     .lda = s->k,
                                     .ldb = s->n,
                                     .ldc = s->n,
                                     .a = buffer,
                                     .b = buffer,
                                     .c = result};
        struct keel_launch_list list = {0};
        ck_ok(keel_op_gemm(on->kernels, &op, &list));
        const double share = (double)s->m * s->n / units / (double)busiest(&list.items[0], units);
        ck_assert_msg(share > 0.75 || units > 8, "%u x %u on %u units: they work %.2f of the time", s->m,
                      s->n, units, share);
        keel_launch_list_fini(&list);
    }
    rig_close();
}
END_TEST

START_TEST(a_driver_that_knows_of_no_units_has_one)
{
    rig_open();
    struct keel_device_info target = *keel_device_info(rig[1].device);
    const struct keel_kernels_options options = {.target = &target};
    struct keel_kernels *kernels = NULL;
    struct keel_launch_list list = {0};
    target.compute_units = 0;
    ck_ok(keel_kernels_create_with(rig[1].device, &options, &kernels));
    struct product p = product_init(&(struct shape){100, 70, 20, 1, 0}, false, false, 0);
    p.op.a = p.op.b = rig_buffer(&rig[1], NULL, UINT64_C(100) * 100 * sizeof(float));
    p.op.c = rig_buffer(&rig[1], NULL, UINT64_C(100) * 100 * sizeof(float));
    ck_ok(keel_op_gemm(kernels, &p.op, &list));
    ck_assert_uint_eq(list.count, 1);
    keel_launch_list_fini(&list);
    product_fini(&p);
    keel_kernels_destroy(kernels);
    rig_close();
}
END_TEST

START_TEST(the_number_of_rows_changes_no_bit)
{
    rig_open();
    struct product p = product_init(&(struct shape){200, 100, 300, 1, 0}, false, true, 0);
    float *whole = rig_numbers(0, p.c_count), *part = rig_numbers(0, p.c_count),
          *pre = rig_numbers(0, p.c_count);
    product_run(&p, &rig[1], false, whole, pre);
    p.op.m = 3;
    product_run(&p, &rig[1], false, part, pre);
    rig_same_bits("3 of 200 rows", 1, part, whole, (uint64_t)3 * p.op.ldc);
    free(whole);
    free(part);
    free(pre);
    product_fini(&p);
    rig_close();
}
END_TEST

/* k in three pieces, each but the first begun at C, is the product of the whole k: bias and GELU with the
 * last. */
/* The residual is another buffer or C itself; numbers of C serve for it. */
START_TEST(a_residual_has_the_bits_of_an_addition_behind)
{
    static const struct shape odd[] = {{1, 1, 1, 1, 0}, {9, 97, 19, 1, 3}, {65, 50, 300, 2, 0}};
    rig_open();
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        for (int d = 0; d < RIG_DEVICES; d++)
            for (int alias = 0; alias < 2; alias++) {
                struct product p = product_init(&odd[i], false, true, BIAS);
                float *plain = rig_numbers(5, p.c_count), *pre = rig_numbers(5, p.c_count);
                float *added = rig_numbers(5, p.c_count);
                product_run(&p, &rig[d], false, plain, pre);
                struct keel_gemm op = p.op;
                struct keel_launch_list list = {0};
                op.a = rig_buffer(&rig[d], p.a, p.a_count * sizeof(float));
                op.b = rig_buffer(&rig[d], p.b, p.b_count * sizeof(float));
                op.c = rig_buffer(&rig[d], p.c, p.c_count * sizeof(float));
                op.bias = rig_buffer(&rig[d], p.bias_row, op.n * sizeof(float));
                op.residual = alias ? op.c : rig_buffer(&rig[d], p.c, p.c_count * sizeof(float));
                ck_ok(keel_op_gemm(rig[d].kernels, &op, &list));
                rig_run(&rig[d], &list);
                rig_read(&rig[d], op.c, added);
                for (uint64_t b = 0; b < op.batch; b++)
                    for (uint64_t r = 0; r < op.m; r++)
                        for (uint64_t c = 0; c < op.n; c++) {
                            uint64_t at = b * op.stride_c + r * op.ldc + c;
                            ck_assert(added[at] == p.c[at] + plain[at]);
                        }
                rig_clear(&rig[d]);
                free(plain);
                free(pre);
                free(added);
                product_fini(&p);
            }
    rig_close();
}
END_TEST

START_TEST(a_chain_over_pieces_of_k_has_the_bits_of_one)
{
    static const uint32_t cuts[] = {0, 1, 260, 300};
    rig_open();
    for (int d = 0; d < RIG_DEVICES; d++) {
        struct product p = product_init(&(struct shape){21, 100, 300, 1, 0}, true, false, BIAS | PRE);
        float *whole = rig_numbers(0, p.c_count), *parts = rig_numbers(0, p.c_count),
              *pre = rig_numbers(0, p.c_count);
        product_run(&p, &rig[d], false, whole, pre);
        for (int i = 0; i < 3; i++) {
            struct product piece = p;
            piece.op.k = cuts[i + 1] - cuts[i];
            piece.op.chain = i > 0;
            piece.bias = piece.pre = i == 2;
            piece.a += cuts[i] * p.op.lda;
            piece.b += cuts[i] * p.op.ldb;
            piece.a_count -= cuts[i] * p.op.lda;
            piece.b_count -= cuts[i] * p.op.ldb;
            product_run(&piece, &rig[d], false, parts, pre);
            memcpy(p.c, parts, p.c_count * sizeof(float));
        }
        rig_same_bits("three pieces of k", d, parts, whole, p.c_count);
        free(whole);
        free(parts);
        free(pre);
        product_fini(&p);
    }
    rig_close();
}
END_TEST

/* C is not read, so that what it had does not matter, and a sum of -0 becomes +0. */
START_TEST(a_fresh_sum_has_the_bits_of_one_that_is_added_to_zeros)
{
    static const struct shape odd[] = {{1, 1, 1, 1, 0}, {9, 97, 19, 2, 0}, {67, 144, 260, 1, 0}};
    rig_open();
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        for (int d = 0; d < RIG_DEVICES; d++) {
            struct product p = product_init(&odd[i], true, false, ACCUMULATE);
            float *wanted = rig_numbers(0, p.c_count), *got = rig_numbers(0, p.c_count),
                  *pre = rig_numbers(0, p.c_count);
            p.a[0] = -0x1p-100F;
            p.b[0] = 0x1p-100F;
            memset(p.c, 0, p.c_count * sizeof(float));
            product_run(&p, &rig[d], false, wanted, pre);
            memset(p.c, 0xff, p.c_count * sizeof(float)); /* NaN */
            p.op.fresh = true;
            product_run(&p, &rig[d], false, got, pre);
            rig_same_bits("fresh", d, got, wanted, p.c_count);
            ck_assert(i > 0 || (got[0] == 0.0F && !signbit(got[0])));
            free(wanted);
            free(got);
            free(pre);
            product_fini(&p);
        }
    rig_close();
}
END_TEST

/* ---- slices of k ---- */

/* One, powers of two, and counts that are none; slices of one unit; parts of a dimension, of which the last
 * has a node that is not full. */
static const struct keel_slices cuts_of_k[] = {
    {0, 1, 1, 7, 3},   {0, 2, 2, 5, 1},   {0, 2, 2, 300, 1}, {0, 3, 3, 7, 5},    {0, 3, 3, 401, 1},
    {0, 4, 4, 301, 1}, {0, 8, 8, 77, 4},  {0, 8, 8, 8, 1},   {0, 7, 7, 100, 3},  {0, 13, 13, 29, 2},
    {4, 4, 8, 83, 3},  {4, 3, 7, 55, 1},  {2, 1, 3, 10, 9},  {0, 64, 64, 90, 1}, {0, 63, 63, 63, 2},
    {4, 1, 5, 21, 1},  {0, 5, 5, 700, 1},
};
enum { CUTS_OF_K = sizeof cuts_of_k / sizeof cuts_of_k[0] };

static struct product sliced_init(uint32_t m, uint32_t n, uint32_t batch, int cut, int layout, int form)
{
    const struct keel_slices *s = &cuts_of_k[cut];
    const uint32_t begin = (uint32_t)((uint64_t)s->first * s->units / s->of),
                   end = (uint32_t)((uint64_t)(s->first + s->count) * s->units / s->of);
    struct product p = product_init(&(struct shape){m, n, (end - begin) * s->unit, batch, batch}, layout & 1,
                                    layout & 2, form);
    p.op.k_slices = *s;
    return p;
}

START_TEST(slices_of_k_are_chains_whose_sums_join_in_the_tree)
{
    static const struct shape sides[] = {{1, 1, 0, 1, 0}, {13, 97, 0, 2, 0}, {300, 144, 0, 1, 0}};
    rig_open();
    for (int cut = 0; cut < CUTS_OF_K; cut++) {
        const struct shape *side = &sides[cut % 3];
        struct product p = sliced_init(side->m, side->n, side->batch, cut, cut % 4, cut % FORMS);
        float *c[RIG_DEVICES], *pre[RIG_DEVICES];
        for (int d = 0; d < RIG_DEVICES; d++) {
            c[d] = rig_numbers(0, p.c_count);
            pre[d] = rig_numbers(0, p.c_count);
            product_run(&p, &rig[d], false, c[d], pre[d]);
        }
        check_elements(&p, c[0], pre[0]);
        for (int d = 0; d < RIG_DEVICES; d++) {
            rig_same_bits("slices of k", d, c[d], c[0], p.c_count);
            rig_same_bits("slices of k, pre", d, pre[d], pre[0], p.c_count);
        }
        for (int d = 0; d < RIG_DEVICES; d++) {
            free(c[d]);
            free(pre[d]);
        }
        product_fini(&p);
    }
    rig_close();
}
END_TEST

/* What is left of local memory for sums that wait, down to the least that there may be. The kernels of a
 * device with so much are made by hand, since those of all modules take long to build. */
START_TEST(slices_of_k_have_room_in_every_local_memory)
{
    static const uint64_t sizes[] = {16384, 32768, 65536, 262144, 524288};
    rig_open();
    struct rig_device *on = &rig[1], own = *on;
    for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++) {
        struct keel_kernels as = *own.kernels;
        as.info.local_bytes = sizes[size];
        ck_ok(keel_tunables_apply(&as.info, NULL, 0, as.tuned));
        keel_tunables_build_options(&as.info, KEEL_MODULE_gemm, as.tuned, build_options);
        on->kernels = &as;
        for (int cut = 0; cut < CUTS_OF_K; cut += 2) {
            struct product p = sliced_init(70, 150, 1, cut, cut % 4, cut % FORMS);
            float *c = rig_numbers(0, p.c_count), *pre = rig_numbers(0, p.c_count);
            product_run(&p, on, false, c, pre);
            check_elements(&p, c, pre);
            free(c);
            free(pre);
            product_fini(&p);
        }
        on->kernels = own.kernels;
        build_options[0] = 0;
    }
    rig_close();
}
END_TEST

/* Node by node, as ranks hold them, and the nodes' sums added: the bits of one call with all slices. */
START_TEST(nodes_of_slices_add_up_to_the_whole)
{
    static const struct keel_slices nodes[] = {{0, 4, 7, 41, 3}, {4, 2, 7, 41, 3}, {6, 1, 7, 41, 3}};
    rig_open();
    for (int d = 0; d < RIG_DEVICES; d++) {
        struct product p = product_init(&(struct shape){21, 100, 123, 1, 0}, true, false, 0);
        float *whole = rig_numbers(0, p.c_count), *pre = rig_numbers(0, p.c_count), *part[3];
        p.op.k_slices = (struct keel_slices){0, 7, 7, 41, 3};
        product_run(&p, &rig[d], false, whole, pre);
        for (int node = 0; node < 3; node++) {
            const uint32_t begin = nodes[node].first * 41 / 7 * 3;
            const uint32_t end = (nodes[node].first + nodes[node].count) * 41 / 7 * 3;
            struct product piece = p;
            piece.op.k_slices = nodes[node];
            piece.op.k = end - begin;
            piece.a += begin * p.op.lda;
            piece.b += begin * p.op.ldb;
            piece.a_count -= begin * p.op.lda;
            piece.b_count -= begin * p.op.ldb;
            part[node] = rig_numbers(0, p.c_count);
            product_run(&piece, &rig[d], false, part[node], pre);
        }
        for (uint64_t i = 0; i < p.c_count; i++)
            part[0][i] = part[0][i] + (part[1][i] + part[2][i]);
        rig_same_bits("nodes of slices", d, part[0], whole, p.c_count);
        for (int node = 0; node < 3; node++)
            free(part[node]);
        free(whole);
        free(pre);
        product_fini(&p);
    }
    rig_close();
}
END_TEST

START_TEST(slices_that_are_none_are_refused_by_name)
{
    static const struct keel_slices wrong[] = {
        {0, 0, 2, 10, 1}, /* none, of two */
        {0, 2, 2, 9, 1},  /* of 9 */
        {0, 1, 2, 10, 1}, /* five of ten */
        {0, 3, 2, 10, 1},
        {2, 1, 2, 10, 1},
        {UINT32_MAX, 2, 2, 10, 1},
        {0, 11, 11, 10, 1}, /* an empty one */
        {0, 2, 2, 10, 0},
        {0, 65, 65, 650, 1},
        {1, 2, 4, 20, 1}, /* from two nodes */
        {0, 3, 4, 14, 1}, /* a part of one */
        {0, 2, 2, UINT32_MAX, UINT32_MAX},
    };
    rig_open();
    struct rig_device *on = &rig[1];
    struct keel_launch_list list = {0};
    struct keel_buffer *x = rig_buffer(on, NULL, 1000 * sizeof(float));
    struct keel_buffer *y = rig_buffer(on, NULL, 1000 * sizeof(float));
    const struct keel_gemm right = {.m = 10,
                                    .n = 10,
                                    .k = 10,
                                    .batch = 1,
                                    .k_slices = {0, 3, 3, 10, 1},
                                    .lda = 10,
                                    .ldb = 10,
                                    .ldc = 10,
                                    .a = x,
                                    .b = x,
                                    .c = y};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct keel_gemm op = right;
        op.k_slices = wrong[i];
        ck_status(keel_op_gemm(on->kernels, &op, &list), KEEL_INVALID);
        ck_assert_ptr_nonnull(strstr(keel_detail(), "gemm: k: "));
    }
    struct keel_gemm op = right;
    op.chain = true;
    ck_status(keel_op_gemm(on->kernels, &op, &list), KEEL_INVALID);
    struct keel_gemm_grouped grouped = {.product = right, .groups = 2, .offsets = x};
    grouped.product.stride_b = 100;
    ck_status(keel_op_gemm_grouped(on->kernels, &grouped, &list), KEEL_INVALID);
    ck_assert_uint_eq(list.count, 0);
    ck_ok(keel_op_gemm(on->kernels, &right, &list));
    keel_launch_list_fini(&list);
    rig_close();
}
END_TEST

START_TEST(small_local_memory_changes_no_bit)
{
    rig_open();
    for (int layout = 0; layout < 4; layout++) {
        struct product p = product_init(&(struct shape){203, 150, 200, 2, 3}, layout & 1, layout & 2,
                                        ACCUMULATE | BIAS | PRE);
        float *c[2], *pre[2];
        for (int small = 0; small < 2; small++) {
            c[small] = rig_numbers(0, p.c_count);
            pre[small] = rig_numbers(0, p.c_count);
            product_run(&p, &rig[1], small != 0, c[small], pre[small]);
        }
        rig_same_bits("C in 32 KiB", 1, c[1], c[0], p.c_count);
        rig_same_bits("pre in 32 KiB", 1, pre[1], pre[0], p.c_count);
        for (int small = 0; small < 2; small++) {
            free(c[small]);
            free(pre[small]);
        }
        product_fini(&p);
    }
    rig_close();
}
END_TEST

/* ---- storage in 16 bits ---- */

/* The same product on floats that the 16 bits hold exactly: equal sums, rounded once at the end. */
struct halves {
    struct keel_buffer *wide, *half;
};

static struct halves halves_of(struct rig_device *on, uint32_t series, uint64_t count, enum keel_dtype type,
                               struct keel_launch_list *list)
{
    float *numbers = rig_numbers(series, count);
    struct halves it = {rig_buffer(on, numbers, count * sizeof(float)), rig_buffer(on, NULL, count * 2)};
    free(numbers);
    ck_ok(keel_op_cast(
        on->kernels,
        &(struct keel_cast){.count = count, .from = KEEL_F32, .to = type, .x = it.wide, .y = it.half}, list));
    ck_ok(keel_op_cast(
        on->kernels,
        &(struct keel_cast){.count = count, .from = type, .to = KEEL_F32, .x = it.half, .y = it.wide}, list));
    return it;
}

/* A product of 16-bit operands against that of their floats, whose result is cast. */
static void check_halves(struct rig_device *on, enum keel_dtype type, bool transpose_a, bool transpose_b,
                         struct keel_slices slices)
{
    enum { M = 37, N = 100, K = 150 };
    struct keel_launch_list list = {0};
    struct halves a = halves_of(on, 1, M * K, type, &list), b = halves_of(on, 2, N * K, type, &list),
                  c = halves_of(on, 3, M * N, type, &list);
    struct keel_buffer *cast = rig_buffer(on, NULL, M * N * 2);
    struct keel_gemm op = {.m = M,
                           .n = N,
                           .k = K,
                           .batch = 1,
                           .transpose_a = transpose_a,
                           .transpose_b = transpose_b,
                           .accumulate = true,
                           .k_slices = slices,
                           .lda = transpose_a ? M : K,
                           .ldb = transpose_b ? K : N,
                           .ldc = N,
                           .a = a.wide,
                           .b = b.wide,
                           .c = c.wide};
    ck_ok(keel_op_gemm(on->kernels, &op, &list));
    op.a_type = op.b_type = op.c_type = type;
    op.a = a.half;
    op.b = b.half;
    op.c = c.half;
    ck_ok(keel_op_gemm(on->kernels, &op, &list));
    ck_ok(keel_op_cast(
        on->kernels,
        &(struct keel_cast){.count = M * N, .from = KEEL_F32, .to = type, .x = c.wide, .y = cast}, &list));
    rig_run(on, &list);
    uint16_t wanted[M * N], found[M * N];
    rig_read(on, cast, wanted);
    rig_read(on, c.half, found);
    for (int i = 0; i < M * N; i++)
        ck_assert_msg(found[i] == wanted[i], "element %d: %04x, wanted %04x", i, found[i], wanted[i]);
    rig_clear(on);
}

START_TEST(sixteen_bits_are_the_floats_they_hold_and_round_once)
{
    rig_open();
    for (int d = 0; d < RIG_DEVICES; d++)
        for (int layout = 0; layout < 4; layout++) {
            const struct keel_slices slices = {0, 5, 5, 150, 1};
            check_halves(&rig[d], KEEL_BF16, layout & 1, layout & 2, (struct keel_slices){0});
            check_halves(&rig[d], KEEL_F16, layout & 1, layout & 2, (struct keel_slices){0});
            check_halves(&rig[d], layout & 1 ? KEEL_BF16 : KEEL_F16, layout & 1, layout & 2, slices);
        }
    rig_close();
}
END_TEST

/* ---- groups ---- */

enum { GROUPS = 5, GROUP_ROWS = 90, GROUP_N = 53, GROUP_K = 37 };
static const int32_t group_offsets[GROUPS + 1] = {0, 40, 40, 41, 80, 83};

/* Element (i, j) of what a group's product is, by the words of kernels.h. */
static float grouped_element(const struct keel_gemm_grouped *op, const float *a, const float *b,
                             uint32_t group, uint32_t i, uint32_t j)
{
    uint32_t begin = (uint32_t)group_offsets[group], rows = (uint32_t)group_offsets[group + 1] - begin;
    float s = 0;
    for (uint32_t p = 0; p < (op->over_k ? rows : GROUP_K); p++) {
        float x = op->over_k ? a[(begin + p) * GROUP_K + i] : a[(begin + i) * GROUP_K + p];
        float y = op->over_k                ? b[(begin + p) * GROUP_N + j]
                  : op->product.transpose_b ? b[(group * GROUP_N + j) * GROUP_K + p]
                                            : b[(group * GROUP_K + p) * GROUP_N + j];
        s = fmaf(x, y, s);
    }
    return s;
}

/* What C must be: all groups, and what belongs to none. */
static void grouped_wanted(const struct keel_gemm_grouped *op, const float *a, const float *b,
                           const float *bias, float *c)
{
    for (uint32_t g = 0; g < GROUPS; g++) {
        uint32_t begin = (uint32_t)group_offsets[g], rows = (uint32_t)group_offsets[g + 1] - begin;
        float *to = c + (op->over_k ? g * GROUP_K : begin) * GROUP_N;
        for (uint32_t i = 0; i < (op->over_k ? GROUP_K : rows); i++)
            for (uint32_t j = 0; j < GROUP_N; j++) {
                float s = grouped_element(op, a, b, g, i, j);
                if (op->product.bias != NULL)
                    s = s + bias[g * GROUP_N + j];
                if (op->product.accumulate && rows > 0)
                    s = to[i * GROUP_N + j] + s;
                if (!op->product.accumulate || rows > 0)
                    to[i * GROUP_N + j] = s;
            }
    }
    if (!op->over_k && !op->product.accumulate)
        for (uint32_t i = (uint32_t)group_offsets[GROUPS]; i < GROUP_ROWS; i++)
            memset(c + i * GROUP_N, 0, GROUP_N * sizeof *c);
}

static void check_grouped(struct rig_device *on, struct keel_gemm_grouped op, bool bias)
{
    const uint64_t a_count = GROUP_ROWS * GROUP_K,
                   b_count = (op.over_k ? GROUP_ROWS : GROUPS * GROUP_K) * GROUP_N,
                   c_count = (op.over_k ? GROUPS * GROUP_K : GROUP_ROWS) * GROUP_N;
    float *a = rig_numbers(1, a_count), *b = rig_numbers(2, b_count), *c = rig_numbers(3, c_count),
          *found = rig_numbers(3, c_count), *bias_row = rig_numbers(4, GROUPS * GROUP_N);
    struct keel_launch_list list = {0};
    struct keel_gemm *one = &op.product;
    one->m = op.over_k ? GROUP_K : GROUP_ROWS;
    one->n = GROUP_N;
    one->k = op.over_k ? GROUP_ROWS : GROUP_K;
    one->batch = 1;
    one->transpose_a = op.over_k;
    one->lda = GROUP_K;
    one->ldb = one->transpose_b ? GROUP_K : GROUP_N;
    one->ldc = GROUP_N;
    one->stride_b = one->stride_c = GROUP_K * GROUP_N;
    one->a = rig_buffer(on, a, a_count * sizeof(float));
    one->b = rig_buffer(on, b, b_count * sizeof(float));
    one->c = rig_buffer(on, c, c_count * sizeof(float));
    one->bias = bias ? rig_buffer(on, bias_row, GROUPS * GROUP_N * sizeof(float)) : NULL;
    op.groups = GROUPS;
    op.offsets = rig_buffer(on, group_offsets, sizeof group_offsets);
    ck_ok(keel_op_gemm_grouped(on->kernels, &op, &list));
    rig_run(on, &list);
    rig_read(on, one->c, found);
    grouped_wanted(&op, a, b, bias_row, c);
    rig_same_bits("grouped", (int)(on - rig), found, c, c_count);
    rig_clear(on);
    free(a);
    free(b);
    free(c);
    free(found);
    free(bias_row);
}

START_TEST(groups_are_products_of_their_rows)
{
    rig_open();
    for (int d = 0; d < RIG_DEVICES; d++) {
        check_grouped(&rig[d], (struct keel_gemm_grouped){0}, true);
        check_grouped(&rig[d], (struct keel_gemm_grouped){.product.transpose_b = true}, false);
        check_grouped(&rig[d], (struct keel_gemm_grouped){.product.accumulate = true}, false);
        check_grouped(&rig[d], (struct keel_gemm_grouped){.over_k = true}, false);
        check_grouped(&rig[d], (struct keel_gemm_grouped){.over_k = true, .product.accumulate = true}, false);
    }
    rig_close();
}
END_TEST

START_TEST(wrong_descriptors_are_refused_by_name)
{
    rig_open();
    struct rig_device *on = &rig[1];
    struct keel_launch_list list = {0};
    struct keel_buffer *x = rig_buffer(on, NULL, 100 * sizeof(float));
    struct keel_buffer *y = rig_buffer(on, NULL, 100 * sizeof(float));
    struct keel_gemm right = {
        .m = 10, .n = 10, .k = 10, .batch = 1, .lda = 10, .ldb = 10, .ldc = 10, .a = x, .b = x, .c = y};
    struct keel_gemm op = right;
    op.lda = 9;
    ck_status(keel_op_gemm(on->kernels, &op, &list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "gemm"));
    op = right;
    op.k = 0;
    ck_status(keel_op_gemm(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.b = NULL;
    ck_status(keel_op_gemm(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.m = 11; /* A and C too small */
    ck_status(keel_op_gemm(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.chain = op.accumulate = true;
    op.m = 10;
    ck_status(keel_op_gemm(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.fresh = true; /* of nothing that is added to */
    ck_status(keel_op_gemm(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.residual = op.c;
    op.accumulate = true;
    ck_status(keel_op_gemm(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.bias = rig_buffer(on, NULL, 9 * sizeof(float));
    ck_status(keel_op_gemm(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.b_type = KEEL_I32;
    ck_status(keel_op_gemm(on->kernels, &op, &list), KEEL_INVALID);
    struct keel_gemm_grouped grouped = {.product = right, .groups = 2, .offsets = x};
    grouped.product.stride_b = 100;
    ck_status(keel_op_gemm_grouped(on->kernels, &grouped, &list), KEEL_INVALID); /* B holds one group */
    grouped.groups = 0;
    ck_status(keel_op_gemm_grouped(on->kernels, &grouped, &list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "gemm_grouped"));
    ck_assert_uint_eq(list.count, 0);
    ck_ok(keel_op_gemm(on->kernels, &right, &list));
    keel_launch_list_fini(&list);
    rig_close();
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, every_shape_has_the_stated_chain_on_every_device);
    tcase_add_test(tc, no_unit_waits_long_for_another);
    tcase_add_test(tc, a_driver_that_knows_of_no_units_has_one);
    tcase_add_test(tc, the_number_of_rows_changes_no_bit);
    tcase_add_test(tc, a_residual_has_the_bits_of_an_addition_behind);
    tcase_add_test(tc, a_chain_over_pieces_of_k_has_the_bits_of_one);
    tcase_add_test(tc, a_fresh_sum_has_the_bits_of_one_that_is_added_to_zeros);
    tcase_add_test(tc, slices_of_k_are_chains_whose_sums_join_in_the_tree);
    tcase_add_test(tc, slices_of_k_have_room_in_every_local_memory);
    tcase_add_test(tc, nodes_of_slices_add_up_to_the_whole);
    tcase_add_test(tc, slices_that_are_none_are_refused_by_name);
    tcase_add_test(tc, small_local_memory_changes_no_bit);
    tcase_add_test(tc, sixteen_bits_are_the_floats_they_hold_and_round_once);
    tcase_add_test(tc, groups_are_products_of_their_rows);
    tcase_add_test(tc, wrong_descriptors_are_refused_by_name);
}

KEEL_TEST_MAIN("gemm", cases, 120)
