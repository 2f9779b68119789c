/* layernorm_test.c - layer normalisation, its gradient and the gradient of a bias. */
#include "op_fixture.h"

struct shape {
    uint32_t rows, n;
    bool beta, residual, rms;
};
static const struct shape shapes[] = {
    {1, 1, true, false, false},    {1, 17, false, true, false},  {7, 16, true, true, false},
    {13, 31, false, false, false}, {37, 257, true, true, false}, {256, 768, true, true, false},
    {5, 33, false, false, true},   {37, 257, false, true, true}, {256, 768, true, true, true}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };
static const float EPSILON = 1e-5f;

struct tensors {
    struct keel_layernorm forward;
    struct keel_layernorm_grad grad;
};

static struct tensors build(struct rig *rig, const struct shape *s)
{
    const uint64_t count = (uint64_t)s->rows * s->n;
    struct tensors t = {0};
    t.forward = (struct keel_layernorm){
        .rows = s->rows,
        .n = s->n,
        .epsilon = EPSILON,
        .x = rig_random(rig, count, 1, -3.0f, 4.0f),
        .gamma = rig_random(rig, s->n, 2, 0.5f, 1.5f),
        .beta = s->beta ? rig_random(rig, s->n, 3, -1.0f, 1.0f) : NULL,
        .y = rig_bytes(rig, NULL, count * 4),
        .mean = s->rms ? NULL : rig_bytes(rig, NULL, s->rows * 4),
        .rstd = rig_bytes(rig, NULL, s->rows * 4),
    };
    t.grad = (struct keel_layernorm_grad){
        .rows = s->rows,
        .n = s->n,
        .x = t.forward.x,
        .gamma = t.forward.gamma,
        .mean = t.forward.mean,
        .rstd = t.forward.rstd,
        .dy = rig_random(rig, count, 4, -1.0f, 1.0f),
        .residual = s->residual ? rig_random(rig, count, 5, -1.0f, 1.0f) : NULL,
        .dgamma = rig_random(rig, s->n, 6, -1.0f, 1.0f),
        .dbeta = s->beta ? rig_random(rig, s->n, 7, -1.0f, 1.0f) : NULL,
    };
    t.grad.dx = s->residual ? t.grad.residual : rig_bytes(rig, NULL, count * 4);
    ck_ok(keel_op_layernorm(rig->kernels, &t.forward, &rig->list));
    ck_ok(keel_op_layernorm_grad(rig->kernels, &t.grad, &rig->list));
    rig_run(rig);
    return t;
}

static void layernorm_body(struct rig *rig, const void *shape)
{
    const struct shape *s = shape;
    const uint64_t count = (uint64_t)s->rows * s->n;
    struct tensors t = build(rig, s);
    rig_result(rig, t.forward.y, count * 4);
    if (!s->rms)
        rig_result(rig, t.forward.mean, s->rows * 4);
    rig_result(rig, t.forward.rstd, s->rows * 4);
    rig_result(rig, t.grad.dx, count * 4);
    rig_result(rig, t.grad.dgamma, s->n * 4);
    if (s->beta)
        rig_result(rig, t.grad.dbeta, s->n * 4);
}

static void bias_body(struct rig *rig, const void *shape)
{
    const struct shape *s = shape;
    struct keel_bias_grad op = {.rows = s->rows,
                                .n = s->n,
                                .x = rig_random(rig, (uint64_t)s->rows * s->n, 8, -1.0f, 1.0f),
                                .out = rig_random(rig, s->n, 9, -1.0f, 1.0f)};
    ck_ok(keel_op_bias_grad(rig->kernels, &op, &rig->list));
    rig_run(rig);
    rig_result(rig, op.out, s->n * 4);
}

static void on_all_shapes(enum rig_kind kind, const char *op, op_body body)
{
    for (int i = 0; i < SHAPES; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s %ux%u%s", op, shapes[i].rows, shapes[i].n,
                 shapes[i].rms ? " rms" : "");
        same_bits(kind, name, body, &shapes[i]);
    }
}

START_TEST(layernorm_and_its_gradient_give_the_same_bits)
{
    on_all_shapes((enum rig_kind)_i, "layernorm", layernorm_body);
}
END_TEST
START_TEST(bias_grad_gives_the_same_bits)
{
    on_all_shapes((enum rig_kind)_i, "bias_grad", bias_body);
}
END_TEST

/* The formulas in double. t is scratch of n; y may be NULL. */
static void truth_forward(bool rms, const double *x, const double *gamma, const double *beta, uint32_t n,
                          double *t, double *y, double *rstd)
{
    double mean = 0, var = 0;
    for (uint32_t i = 0; i < n; i++)
        mean += rms ? 0 : x[i] / n;
    for (uint32_t i = 0; i < n; i++)
        var += (x[i] - mean) * (x[i] - mean) / n;
    *rstd = 1.0 / sqrt(var + (double)EPSILON);
    for (uint32_t i = 0; i < n; i++) {
        t[i] = (x[i] - mean) * *rstd;
        y[i] = t[i] * gamma[i] + beta[i];
    }
}
static void truth_backward(bool rms, const double *gamma, const double *t, double rstd, const double *dy,
                           uint32_t n, double *dx)
{
    double a = 0, b = 0;
    for (uint32_t i = 0; i < n; i++) {
        a += rms ? 0 : dy[i] * gamma[i] / n;
        b += dy[i] * gamma[i] * t[i] / n;
    }
    for (uint32_t i = 0; i < n; i++)
        dx[i] = rstd * (dy[i] * gamma[i] - a - t[i] * b);
}

enum { N = 33, ROWS = 5 };

static void to_double(double *out, const float *in, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        out[i] = (double)in[i];
}

START_TEST(the_gradient_formula_is_the_finite_difference)
{
    float *rx = random_floats(N, 1, -3.0f, 4.0f), *rg = random_floats(N, 2, 0.5f, 1.5f),
          *rd = random_floats(N, 4, -1.0f, 1.0f);
    double x[N], gamma[N], dy[N], beta[N] = {0}, t[N], y[N], dx[N], rstd;
    to_double(x, rx, N);
    to_double(gamma, rg, N);
    to_double(dy, rd, N);
    truth_forward(_i != 0, x, gamma, beta, N, t, y, &rstd);
    truth_backward(_i != 0, gamma, t, rstd, dy, N, dx);
    double largest = 0;
    for (int i = 0; i < N; i++)
        largest = fmax(largest, fabs(dx[i]));
    for (int i = 0; i < N; i++) {
        double loss[2] = {0, 0}, h = 1e-5, old = x[i];
        for (int side = 0; side < 2; side++) {
            x[i] = old + (side == 0 ? -h : h);
            truth_forward(_i != 0, x, gamma, beta, N, t, y, &rstd);
            for (int k = 0; k < N; k++)
                loss[side] += y[k] * dy[k];
        }
        x[i] = old;
        ck_assert_double_le(fabs((loss[1] - loss[0]) / (2 * h) - dx[i]), 1e-6 * largest);
    }
    free(rx);
    free(rg);
    free(rd);
}
END_TEST

/* Float kernels against the formulas: 2e-6 of the largest value, about 16 roundings. */
START_TEST(layernorm_and_its_gradient_are_near_the_truth)
{
    const struct shape s = {ROWS, N, true, false, _i != 0};
    struct rig *rig = rig_shared(RIG_HOST);
    struct tensors op = build(rig, &s);
    const float *fx = rig_result(rig, op.forward.x, sizeof(float) * ROWS * N);
    const float *fgamma = rig_result(rig, op.forward.gamma, sizeof(float) * N);
    const float *fbeta = rig_result(rig, op.forward.beta, sizeof(float) * N);
    const float *fdy = rig_result(rig, op.grad.dy, sizeof(float) * ROWS * N);
    const float *fy = rig_result(rig, op.forward.y, sizeof(float) * ROWS * N);
    const float *fdx = rig_result(rig, op.grad.dx, sizeof(float) * ROWS * N);
    const float *fdgamma = rig_result(rig, op.grad.dgamma, sizeof(float) * N);
    const float *fdbeta = rig_result(rig, op.grad.dbeta, sizeof(float) * N);
    double x[ROWS * N], gamma[N], beta[N], dy[ROWS * N], y[ROWS * N], dx[ROWS * N], t[N], dgamma[N], dbeta[N];
    float *old_dgamma = random_floats(N, 6, -1.0f, 1.0f), *old_dbeta = random_floats(N, 7, -1.0f, 1.0f);
    to_double(x, fx, ROWS * N);
    to_double(gamma, fgamma, N);
    to_double(beta, fbeta, N);
    to_double(dy, fdy, ROWS * N);
    to_double(dgamma, old_dgamma, N);
    to_double(dbeta, old_dbeta, N);
    for (int row = 0; row < ROWS; row++) {
        double rstd;
        truth_forward(_i != 0, x + row * N, gamma, beta, N, t, y + row * N, &rstd);
        truth_backward(_i != 0, gamma, t, rstd, dy + row * N, N, dx + row * N);
        for (int i = 0; i < N; i++) {
            dgamma[i] += dy[row * N + i] * t[i];
            dbeta[i] += dy[row * N + i];
        }
    }
    ck_assert_double_le(relative_error(fy, y, ROWS * N), 2e-6);
    ck_assert_double_le(relative_error(fdx, dx, ROWS * N), 2e-6);
    ck_assert_double_le(relative_error(fdgamma, dgamma, N), 2e-6);
    ck_assert_double_le(relative_error(fdbeta, dbeta, N), 2e-6);
    free(old_dgamma);
    free(old_dbeta);
}
END_TEST

START_TEST(bias_grad_adds_the_column_sums)
{
    const struct shape s = {ROWS, N, false, false, false};
    struct rig *rig = rig_shared(RIG_HOST);
    bias_body(rig, &s);
    float *x = random_floats(ROWS * N, 8, -1.0f, 1.0f), *out = random_floats(N, 9, -1.0f, 1.0f);
    double want[N];
    for (int i = 0; i < N; i++) {
        want[i] = (double)out[i];
        for (int row = 0; row < ROWS; row++)
            want[i] += (double)x[row * N + i];
    }
    ck_assert_double_le(relative_error(rig->results[0], want, N), 5e-7);
    free(x);
    free(out);
}
END_TEST

/* Slices 2 to 4 of five, of 23 and of 20 rows, by hand: each begins at its own row, and is added to a row of
 * its own. */
enum { SLICED_ROWS = 14, SLICED_N = 83, SLICED_COUNT = 3 };
static const struct keel_slices three_of_five = {2, SLICED_COUNT, 5, 23, 1};
static const uint32_t slice_ends[SLICED_COUNT + 1] = {0, 13 - 9, 18 - 9, 23 - 9};

START_TEST(each_slice_of_the_rows_has_a_sum_of_its_own)
{
    struct rig *rig = rig_shared((enum rig_kind)_i);
    const struct shape s = {SLICED_ROWS, SLICED_N, true, true, false};
    struct tensors t = build(rig, &s);
    struct keel_layernorm_grad grad = t.grad;
    struct keel_bias_grad bias = {
        .rows = SLICED_ROWS, .n = SLICED_N, .row_slices = three_of_five, .x = t.grad.dy};
    keel_launch_list_fini(&rig->list);
    grad.row_slices = three_of_five;
    grad.dx = rig_bytes(rig, NULL, sizeof(float) * SLICED_ROWS * SLICED_N);
    grad.residual = NULL;
    bias.out = rig_random(rig, SLICED_COUNT * SLICED_N, 10, -1.0f, 1.0f);
    grad.dgamma = rig_random(rig, SLICED_COUNT * SLICED_N, 11, -1.0f, 1.0f);
    grad.dbeta = rig_random(rig, SLICED_COUNT * SLICED_N, 12, -1.0f, 1.0f);
    ck_ok(keel_op_layernorm_grad(rig->kernels, &grad, &rig->list));
    ck_ok(keel_op_bias_grad(rig->kernels, &bias, &rig->list));
    rig_run(rig);
    const uint64_t bytes = sizeof(float) * SLICED_ROWS * SLICED_N,
                   sums = sizeof(float) * SLICED_COUNT * SLICED_N;
    const float *x = rig_result(rig, grad.x, bytes), *dy = rig_result(rig, grad.dy, bytes);
    const float *mean = rig_result(rig, grad.mean, sizeof(float) * SLICED_ROWS);
    const float *rstd = rig_result(rig, grad.rstd, sizeof(float) * SLICED_ROWS);
    const float *out = rig_result(rig, bias.out, sums), *dgamma = rig_result(rig, grad.dgamma, sums);
    const float *dbeta = rig_result(rig, grad.dbeta, sums);
    for (uint32_t seed = 10; seed <= 12; seed++) {
        float *want = random_floats(SLICED_COUNT * SLICED_N, seed, -1.0f, 1.0f);
        for (uint32_t slice = 0; slice < SLICED_COUNT; slice++)
            for (uint32_t c = 0; c < SLICED_N; c++) {
                float sum = 0.0f;
                for (uint32_t row = slice_ends[slice]; row < slice_ends[slice + 1]; row++) {
                    const float d = dy[row * SLICED_N + c];
                    const float t_of_x = (x[row * SLICED_N + c] - mean[row]) * rstd[row];
                    sum = seed == 11                              ? fmaf(d, t_of_x, sum)
                          : row > slice_ends[slice] || seed == 12 ? sum + d
                                                                  : d;
                }
                want[slice * SLICED_N + c] += sum;
            }
        ck_assert_mem_eq(seed == 10 ? out : seed == 11 ? dgamma : dbeta, want, sums);
        free(want);
    }
}
END_TEST

START_TEST(slices_that_the_rows_have_not_are_refused)
{
    struct rig *rig = rig_shared(RIG_HOST);
    struct keel_bias_grad op = {.rows = 14, .n = 3, .row_slices = three_of_five};
    op.x = rig_bytes(rig, NULL, 4 * 14 * 3);
    op.out = rig_bytes(rig, NULL, 4 * 2 * 3); /* of two slices */
    ck_status(keel_op_bias_grad(rig->kernels, &op, &rig->list), KEEL_INVALID);
    op.out = rig_bytes(rig, NULL, 4 * 3 * 3);
    ck_ok(keel_op_bias_grad(rig->kernels, &op, &rig->list));
    op.rows = 13;
    ck_status(keel_op_bias_grad(rig->kernels, &op, &rig->list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "bias_grad: rows: "));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, each_slice_of_the_rows_has_a_sum_of_its_own, 0, RIG_HOST + 1);
    tcase_add_test(tc, slices_that_the_rows_have_not_are_refused);
    tcase_add_loop_test(tc, layernorm_and_its_gradient_give_the_same_bits, 0, RIG_DEVICES);
    tcase_add_loop_test(tc, bias_grad_gives_the_same_bits, 0, RIG_DEVICES);
    tcase_add_loop_test(tc, the_gradient_formula_is_the_finite_difference, 0, 2); /* 1: RMS norm */
    tcase_add_loop_test(tc, layernorm_and_its_gradient_are_near_the_truth, 0, 2); /* 1: RMS norm */
    tcase_add_test(tc, bias_grad_adds_the_column_sums);
}

KEEL_TEST_MAIN("layernorm", cases, RIG_LIMIT_S)
