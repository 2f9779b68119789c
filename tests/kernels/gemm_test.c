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
    {300, 144, 300, 1, 0}, {2, 331, 31, 1, 0},
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

/* For a device with small local memory: groups of at most 64 rows, other depths of k. */
static struct rig_small use_small_local(struct rig_device *on, struct keel_launch_list *list)
{
    enum { M_ARGUMENT = 5, ROW_BLOCK_ARGUMENT = 12, ROWS = 64 };
    struct keel_launch *launch = &list->items[0];
    launch->args[ROW_BLOCK_ARGUMENT].as.u32 = ROWS;
    launch->range.global[1] = (launch->args[M_ARGUMENT].as.u32 + ROWS - 1) / ROWS;
    return rig_small_init(on, &keel_module_gemm, list);
}

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
    ck_assert_uint_eq(keel_gemm_workspace_bytes(on->kernels, &op), 0);
    ck_ok(keel_op_gemm(on->kernels, &op, &list));
    if (small_local)
        small = use_small_local(on, &list);
    rig_run(on, &list);
    rig_read(on, op.c, c);
    if (p->pre)
        rig_read(on, op.pre, pre);
    else
        memcpy(pre, p->c, p->c_count * sizeof(float));
    if (small_local)
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

/* An element by the words of kernels.h, and in double: before GELU, the sums must have the very bits and
 * lie within (k + 2) rounding errors of the sum of magnitudes. */
static void check_element(const struct product *p, uint64_t batch, uint64_t i, uint64_t j, const float *c,
                          const float *pre)
{
    uint64_t at = batch * p->op.stride_c + i * p->op.ldc + j;
    float s = 0;
    double exact = 0, magnitude = 0;
    for (uint64_t q = 0; q < p->op.k; q++) {
        float x = at_a(p, batch, i, q), y = at_b(p, batch, q, j);
        s = fmaf(x, y, s);
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

START_TEST(wrong_descriptors_are_refused_by_name)
{
    rig_open();
    struct rig_device *on = &rig[1];
    struct keel_launch_list list = {0};
    struct keel_buffer *x = rig_buffer(on, NULL, 100 * sizeof(float));
    struct keel_gemm right = {
        .m = 10, .n = 10, .k = 10, .batch = 1, .lda = 10, .ldb = 10, .ldc = 10, .a = x, .b = x, .c = x};
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
    op.residual = op.c;
    op.accumulate = true;
    ck_status(keel_op_gemm(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.bias = rig_buffer(on, NULL, 9 * sizeof(float));
    ck_status(keel_op_gemm(on->kernels, &op, &list), KEEL_INVALID);
    ck_assert_uint_eq(list.count, 0);
    ck_ok(keel_op_gemm(on->kernels, &right, &list));
    keel_launch_list_fini(&list);
    rig_close();
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, every_shape_has_the_stated_chain_on_every_device);
    tcase_add_test(tc, the_number_of_rows_changes_no_bit);
    tcase_add_test(tc, a_residual_has_the_bits_of_an_addition_behind);
    tcase_add_test(tc, a_chain_over_pieces_of_k_has_the_bits_of_one);
    tcase_add_test(tc, small_local_memory_changes_no_bit);
    tcase_add_test(tc, wrong_descriptors_are_refused_by_name);
}

KEEL_TEST_MAIN("gemm", cases, 120)
