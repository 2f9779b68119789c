/* row_test.c - softmax, top-k, cumulative sum: same bits everywhere, near the truth, gradients that are the
 * finite differences. */
#include <keel/shape_ops.h>

#include "op_fixture.h"

struct shape {
    uint32_t rows, n, k;
};
static const struct shape shapes[] = {{1, 1, 1},     {7, 1, 1},    {5, 67, 5},   {131, 8, 2},  {3, 4099, 9},
                                      {2, 331, 331}, {517, 16, 3}, {40, 13, 13}, {9, 200, 16}, {9, 200, 17}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void rows_body(struct rig *rig, const void *shape)
{
    const struct shape *s = shape;
    const uint64_t count = (uint64_t)s->rows * s->n, bytes = count * 4;
    struct keel_softmax op = {.rows = s->rows, .n = s->n, .x = rig_random(rig, count, 1, -9.0f, 9.0f)};
    op.y = rig_bytes(rig, NULL, bytes);
    struct keel_softmax_grad grad = {.rows = s->rows, .n = s->n, .y = op.y};
    grad.dy = rig_random(rig, count, 2, -1.0f, 1.0f);
    grad.dx = rig_bytes(rig, NULL, bytes);
    struct keel_cumsum sum = {.rows = s->rows, .n = s->n, .x = op.x, .y = rig_bytes(rig, NULL, bytes)};
    struct keel_cumsum back = {.rows = s->rows, .n = s->n, .reverse = true, .x = grad.dy};
    back.y = rig_bytes(rig, NULL, bytes);
    ck_ok(keel_op_softmax(rig->kernels, &op, &rig->list));
    ck_ok(keel_op_softmax_grad(rig->kernels, &grad, &rig->list));
    ck_ok(keel_op_cumsum(rig->kernels, &sum, &rig->list));
    ck_ok(keel_op_cumsum(rig->kernels, &back, &rig->list));
    rig_run(rig);
    rig_result(rig, op.y, bytes);
    rig_result(rig, grad.dx, bytes);
    rig_result(rig, sum.y, bytes);
    rig_result(rig, back.y, bytes);
}

START_TEST(softmax_and_cumulative_sum_give_the_same_bits)
{
    for (int i = 0; i < SHAPES; i++) {
        char name[64];
        snprintf(name, sizeof name, "row %ux%u", shapes[i].rows, shapes[i].n);
        same_bits((enum rig_kind)_i, name, rows_body, &shapes[i]);
    }
}
END_TEST

/* sum_j dy_j softmax(x)_j, and its truth for one x moved by h. */
static double weighed(const float *x, const float *dy, uint32_t n, uint32_t moved, double h)
{
    double s = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        s += exp((double)x[i] + (i == moved ? h : 0));
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] + (i == moved ? h : 0)) / s * (double)dy[i];
    return sum;
}

static double slope(const float *x, const float *dy, uint32_t n, uint32_t i)
{
    const double h = 1e-3, near = weighed(x, dy, n, i, h) - weighed(x, dy, n, i, -h);
    return (8 * near - (weighed(x, dy, n, i, 2 * h) - weighed(x, dy, n, i, -2 * h))) / (12 * h);
}

START_TEST(softmax_and_its_gradient_are_near_the_truth)
{
    const struct shape s = {5, 67, 1};
    enum { COUNT = 5 * 67 };
    struct rig *rig = rig_shared(RIG_HOST);
    rows_body(rig, &s);
    float *x = random_floats(COUNT, 1, -9.0f, 9.0f), *dy = random_floats(COUNT, 2, -1.0f, 1.0f);
    double y[COUNT], dx[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint32_t row = i / 67 * 67;
        double sum = 0;
        for (uint32_t j = 0; j < 67; j++)
            sum += exp((double)x[row + j]);
        y[i] = exp((double)x[i]) / sum;
        dx[i] = slope(x + row, dy + row, 67, i - row);
    }
    ck_assert_double_le(relative_error(rig->results[0], y, COUNT), 1e-6);
    ck_assert_double_le(relative_error(rig->results[1], dx, COUNT), 1e-6);
    free(x);
    free(dy);
}
END_TEST

START_TEST(a_cumulative_sum_is_one_chain_and_its_gradient_the_chain_back)
{
    const struct shape s = {3, 4099, 1};
    struct rig *rig = rig_shared(RIG_HOST);
    rows_body(rig, &s);
    const float *sum = rig->results[2], *back = rig->results[3];
    float *x = random_floats(3 * 4099, 1, -9.0f, 9.0f), *dy = random_floats(3 * 4099, 2, -1.0f, 1.0f);
    for (uint32_t row = 0; row < 3; row++) {
        float chain = 0;
        double truth = 0;
        for (uint32_t i = row * 4099; i < (row + 1) * 4099; i++) {
            chain += x[i];
            truth += (double)x[i];
            ck_assert(sum[i] == chain);
            ck_assert_double_le(fabs((double)sum[i] - truth), 1e-6 * 9 * 4099);
        }
        chain = 0;
        for (uint32_t i = (row + 1) * 4099; i-- > row * 4099;) {
            chain += dy[i];
            ck_assert(back[i] == chain);
        }
    }
    free(x);
    free(dy);
}
END_TEST

/* ---- top-k ---- */

/* Every fifth value is one of three, so that many are equal. */
static float *tied_floats(uint64_t count)
{
    static const float some[3] = {2.0f, -0.0f, 0.0f};
    float *x = random_floats(count, 4, -1.0f, 1.0f);
    for (uint64_t i = 0; i < count; i += 5)
        x[i] = some[i % 3];
    return x;
}

static void top_k_body(struct rig *rig, const void *shape)
{
    const struct shape *s = shape;
    const uint64_t count = (uint64_t)s->rows * s->n, taken = (uint64_t)s->rows * s->k;
    float *x = tied_floats(count);
    struct keel_top_k op = {.rows = s->rows, .n = s->n, .k = s->k, .x = rig_bytes(rig, x, count * 4)};
    op.values = rig_bytes(rig, NULL, taken * 4);
    op.indices = rig_bytes(rig, NULL, taken * 4);
    struct keel_top_k alone = op; /* without values */
    alone.values = NULL;
    alone.indices = rig_bytes(rig, NULL, taken * 4);
    struct keel_top_k_grad grad = {.rows = s->rows, .n = s->n, .k = s->k, .indices = op.indices};
    grad.dvalues = rig_random(rig, taken, 5, -1.0f, 1.0f);
    grad.dx = rig_random(rig, count, 6, -1.0f, 1.0f);
    ck_ok(keel_op_top_k(rig->kernels, &op, &rig->list));
    ck_ok(keel_op_top_k(rig->kernels, &alone, &rig->list));
    ck_ok(keel_op_top_k_grad(rig->kernels, &grad, &rig->list));
    rig_run(rig);
    rig_result(rig, op.values, taken * 4);
    rig_result(rig, op.indices, taken * 4);
    rig_result(rig, grad.dx, count * 4);
    ck_assert_mem_eq(rig_result(rig, alone.indices, taken * 4), rig->results[1], taken * 4);
    free(x);
}

START_TEST(the_largest_of_a_row_give_the_same_bits)
{
    for (int i = 0; i < SHAPES; i++) {
        char name[64];
        snprintf(name, sizeof name, "top_k %ux%u-%u", shapes[i].rows, shapes[i].n, shapes[i].k);
        same_bits((enum rig_kind)_i, name, top_k_body, &shapes[i]);
    }
}
END_TEST

/* Each in turn is the largest that is left, the first of equal ones. */
START_TEST(the_largest_come_first_and_of_equal_ones_the_lower_index)
{
    for (int t = 0; t < SHAPES; t++) {
        const struct shape *s = &shapes[t];
        struct rig *rig = rig_shared(RIG_HOST);
        top_k_body(rig, s);
        const float *values = rig->results[0], *dx = rig->results[2];
        const int32_t *indices = rig->results[1];
        float *x = tied_floats((uint64_t)s->rows * s->n);
        float *dvalues = random_floats((uint64_t)s->rows * s->k, 5, -1.0f, 1.0f);
        bool *taken = calloc(s->n, sizeof *taken);
        ck_assert_ptr_nonnull(taken);
        for (uint32_t r = 0; r < s->rows; r++) {
            const float *row = x + (size_t)r * s->n;
            memset(taken, 0, s->n * sizeof *taken);
            for (uint32_t j = 0; j < s->k; j++) {
                uint32_t best = s->n;
                for (uint32_t i = 0; i < s->n; i++)
                    best = !taken[i] && (best == s->n || row[i] > row[best]) ? i : best;
                taken[best] = true;
                ck_assert_int_eq(indices[r * s->k + j], (int32_t)best);
                ck_assert_mem_eq(&values[r * s->k + j], &row[best], 4);
                ck_assert(dx[(size_t)r * s->n + best] == dvalues[r * s->k + j]);
            }
            for (uint32_t i = 0; i < s->n; i++)
                ck_assert(taken[i] || dx[(size_t)r * s->n + i] == 0.0f);
        }
        free(x);
        free(dvalues);
        free(taken);
    }
}
END_TEST

START_TEST(a_nan_is_above_all_and_infinities_have_their_place)
{
    enum { ROWS = 33, N = 10, K = 9 }; /* rows of so few go sixteen at a time */
    static const float row[N] = {1, -INFINITY, NAN, 3, INFINITY, -NAN, 3, 1e-42f, 0, -1e-42f};
    static const int32_t wanted[K] = {2, 5, 4, 3, 6, 0, 7, 8, 9};
    float x[ROWS * N];
    for (int i = 0; i < ROWS * N; i++)
        x[i] = row[i % N];
    for (int kind = 0; kind <= RIG_HOST; kind++) {
        struct rig *rig = rig_shared((enum rig_kind)kind);
        struct keel_top_k op = {.rows = ROWS, .n = N, .k = K, .x = rig_bytes(rig, x, sizeof x)};
        op.indices = rig_bytes(rig, NULL, sizeof wanted * ROWS);
        op.values = rig_bytes(rig, NULL, sizeof wanted * ROWS);
        ck_ok(keel_op_top_k(rig->kernels, &op, &rig->list));
        rig_run(rig);
        const int32_t *indices = rig_result(rig, op.indices, sizeof wanted * ROWS);
        const uint32_t *values = rig_result(rig, op.values, sizeof wanted * ROWS);
        for (int i = 0; i < ROWS * K; i++) {
            ck_assert_int_eq(indices[i], wanted[i % K]);
            ck_assert_mem_eq(&values[i], &row[wanted[i % K]], 4);
        }
    }
}
END_TEST

static void refused(enum keel_status status, const char *detail)
{
    ck_status(status, KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), detail) != NULL, "%s", keel_detail());
}

START_TEST(wrong_descriptors_are_refused_by_name)
{
    struct rig *rig = rig_shared(RIG_HOST);
    struct keel_buffer *small = rig_bytes(rig, NULL, 32);
    struct keel_softmax soft = {.rows = 3, .n = 3, .x = small, .y = small};
    refused(keel_op_softmax(rig->kernels, &soft, &rig->list), "softmax: x holds 32 bytes, needs 36");
    soft.n = 0;
    refused(keel_op_softmax(rig->kernels, &soft, &rig->list), "softmax: 3 rows of 0");
    struct keel_softmax_grad grad = {.rows = 2, .n = 4, .y = small, .dy = small};
    refused(keel_op_softmax_grad(rig->kernels, &grad, &rig->list), "softmax_grad: no buffer for dx");
    struct keel_top_k top = {.rows = 1, .n = 8, .k = 9, .x = small, .indices = small};
    refused(keel_op_top_k(rig->kernels, &top, &rig->list), "top_k: 9 of rows of 8");
    struct keel_top_k_grad back = {.rows = 1, .n = 8, .indices = small, .dvalues = small, .dx = small};
    refused(keel_op_top_k_grad(rig->kernels, &back, &rig->list), "top_k_grad: 0 of rows of 8");
    struct keel_cumsum sum = {.n = 8, .x = small, .y = small};
    refused(keel_op_cumsum(rig->kernels, &sum, &rig->list), "cumsum: 0 rows of 8");
    ck_assert_uint_eq(rig->list.count, 0);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, softmax_and_cumulative_sum_give_the_same_bits, 0, RIG_DEVICES);
    tcase_add_test(tc, softmax_and_its_gradient_are_near_the_truth);
    tcase_add_test(tc, a_cumulative_sum_is_one_chain_and_its_gradient_the_chain_back);
    tcase_add_loop_test(tc, the_largest_of_a_row_give_the_same_bits, 0, RIG_DEVICES);
    tcase_add_test(tc, the_largest_come_first_and_of_equal_ones_the_lower_index);
    tcase_add_test(tc, a_nan_is_above_all_and_infinities_have_their_place);
    tcase_add_test(tc, wrong_descriptors_are_refused_by_name);
}

KEEL_TEST_MAIN("row", cases, RIG_LIMIT_S)
