/* batch_norm_test.c - batch norm, its gradient and its form after training: the same bits everywhere, those
 * of the separate operations, near the truth; gradients are the finite differences. */
#include "op_fixture.h"

#include <keel/image_ops.h>

enum { RELU = 1, RESIDUAL = 2, STATISTICS = 4, EVAL = 8 };
struct shape {
    uint32_t rows, n, flags;
};
static const struct shape shapes[] = {{1, 1, STATISTICS},
                                      {2, 17, RELU},
                                      {63, 16, RESIDUAL},
                                      {64, 5, RELU | RESIDUAL},
                                      {131, 83, STATISTICS | RELU | RESIDUAL},
                                      {1000, 64, STATISTICS | RELU},
                                      {77, 130, EVAL | RELU | RESIDUAL},
                                      {5, 3, EVAL}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };
static const float EPSILON = 1e-5f, SCALE = 0.25f;

/* y, then mean, rstd, and the two statistics. */
static const float *forward(struct rig *rig, const struct shape *s, bool relu, bool residual,
                            const float **columns)
{
    const uint64_t count = (uint64_t)s->rows * s->n;
    const bool running = s->flags & STATISTICS;
    struct keel_batch_norm op = {.rows = s->rows,
                                 .n = s->n,
                                 .epsilon = EPSILON,
                                 .scale = SCALE,
                                 .relu = relu,
                                 .x = rig_random(rig, count, 1, -3.0f, 4.0f),
                                 .gamma = rig_random(rig, s->n, 2, 0.5f, 1.5f),
                                 .beta = rig_random(rig, s->n, 3, -1.0f, 1.0f),
                                 .residual = residual ? rig_random(rig, count, 4, -1.0f, 1.0f) : NULL,
                                 .y = rig_bytes(rig, NULL, count * 4),
                                 .mean = rig_random(rig, s->n, 5, -1.0f, 1.0f),
                                 .rstd = rig_random(rig, s->n, 6, 0.25f, 2.0f),
                                 .running_mean = running ? rig_random(rig, s->n, 7, -1.0f, 1.0f) : NULL,
                                 .running_variance = running ? rig_random(rig, s->n, 8, 0.0f, 1.0f) : NULL,
                                 .scratch =
                                     rig_bytes(rig, NULL, keel_batch_norm_scratch_bytes(s->rows, s->n))};
    const struct keel_batch_norm_eval eval = {s->rows, s->n,        EPSILON, relu,    op.x,   op.gamma,
                                              op.beta, op.residual, op.y,    op.mean, op.rstd};
    ck_ok(s->flags & EVAL ? keel_op_batch_norm_eval(rig->kernels, &eval, &rig->list)
                          : keel_op_batch_norm(rig->kernels, &op, &rig->list));
    rig_run(rig);
    keel_launch_list_fini(&rig->list); /* run once: it adds to the statistics */
    struct keel_buffer *of[] = {op.mean, op.rstd, op.running_mean, op.running_variance};
    for (int i = 0; i < 4 && columns != NULL; i++)
        columns[i] = of[i] != NULL ? rig_result(rig, of[i], s->n * 4) : NULL;
    return rig_result(rig, op.y, count * 4);
}

static void forward_body(struct rig *rig, const void *shape)
{
    const struct shape *s = shape;
    const float *columns[4];
    forward(rig, s, s->flags & RELU, s->flags & RESIDUAL, columns);
}

struct grads {
    const float *dx, *dgamma, *dbeta;
};
/* Of a forward pass with given mean and rstd (seeds 5 and 6 where NULL), a y of seed 9, and dy (seed 10). */
static struct grads gradient(struct rig *rig, const struct shape *s, const float *mean, const float *rstd,
                             const float *dy)
{
    const uint64_t count = (uint64_t)s->rows * s->n;
    struct keel_batch_norm_grad op = {
        .rows = s->rows,
        .n = s->n,
        .x = rig_random(rig, count, 1, -3.0f, 4.0f),
        .gamma = rig_random(rig, s->n, 2, 0.5f, 1.5f),
        .mean = mean != NULL ? rig_bytes(rig, mean, s->n * 4) : rig_random(rig, s->n, 5, -1.0f, 1.0f),
        .rstd = rstd != NULL ? rig_bytes(rig, rstd, s->n * 4) : rig_random(rig, s->n, 6, 0.25f, 2.0f),
        .dy = dy != NULL ? rig_bytes(rig, dy, count * 4) : rig_random(rig, count, 10, -1.0f, 1.0f),
        .relu_y = s->flags & RELU ? rig_random(rig, count, 9, -1.0f, 1.0f) : NULL,
        .dx = rig_bytes(rig, NULL, count * 4),
        .dgamma = rig_random(rig, s->n, 11, -1.0f, 1.0f),
        .dbeta = rig_random(rig, s->n, 12, -1.0f, 1.0f),
        .scratch = rig_bytes(rig, NULL, keel_batch_norm_scratch_bytes(s->rows, s->n))};
    ck_ok(keel_op_batch_norm_grad(rig->kernels, &op, &rig->list));
    rig_run(rig);
    keel_launch_list_fini(&rig->list);
    return (struct grads){rig_result(rig, op.dx, count * 4), rig_result(rig, op.dgamma, s->n * 4),
                          rig_result(rig, op.dbeta, s->n * 4)};
}
static void gradient_body(struct rig *rig, const void *shape)
{
    gradient(rig, shape, NULL, NULL, NULL);
}

START_TEST(batch_norm_and_its_gradient_give_the_bits_of_the_host)
{
    for (int i = 0; i < SHAPES; i++) {
        char name[64];
        snprintf(name, sizeof name, "batch_norm %ux%u", shapes[i].rows, shapes[i].n);
        equal_bits((enum rig_kind)_i, name, forward_body, &shapes[i]);
        equal_bits((enum rig_kind)_i, name, gradient_body, &shapes[i]);
    }
}
END_TEST

START_TEST(what_is_fused_rounds_as_the_separate_operations)
{
    for (int i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        const uint64_t count = (uint64_t)s->rows * s->n;
        struct rig *rig = rig_shared(RIG_PTHREAD);
        const float *fused = forward(rig, s, true, true, NULL), *plain = forward(rig, s, false, false, NULL);
        struct keel_buffer *y = rig_bytes(rig, plain, count * 4);
        const struct keel_add add = {
            .count = count, .a = y, .b = rig_random(rig, count, 4, -1.0f, 1.0f), .y = y};
        const struct keel_activation relu = {.count = count, .kind = KEEL_RELU, .x = y, .y = y};
        ck_ok(keel_op_add(rig->kernels, &add, &rig->list));
        ck_ok(keel_op_activation(rig->kernels, &relu, &rig->list));
        rig_run(rig);
        ck_assert_mem_eq(fused, rig_result(rig, y, count * 4), count * 4);
    }
}
END_TEST

enum { ROWS = 150, N = 3 };
struct truth {
    double x[ROWS * N], gamma[N], beta[N], dy[ROWS * N], y[ROWS * N], mean[N], rstd[N], unbiased[N];
};
static void to_double(double *out, uint64_t count, uint32_t seed, float low, float high)
{
    float *from = random_floats(count, seed, low, high);
    for (uint64_t i = 0; i < count; i++)
        out[i] = (double)from[i];
    free(from);
}
static struct truth *truth_new(void)
{
    struct truth *t = calloc(1, sizeof *t);
    ck_assert_ptr_nonnull(t);
    to_double(t->x, ROWS * N, 1, -3.0f, 4.0f);
    to_double(t->gamma, N, 2, 0.5f, 1.5f);
    to_double(t->beta, N, 3, -1.0f, 1.0f);
    to_double(t->dy, ROWS * N, 10, -1.0f, 1.0f);
    return t;
}
static void truth_forward(struct truth *t)
{
    for (int c = 0; c < N; c++) {
        double mean = 0, squares = 0;
        for (int r = 0; r < ROWS; r++)
            mean += t->x[r * N + c] / ROWS;
        for (int r = 0; r < ROWS; r++)
            squares += (t->x[r * N + c] - mean) * (t->x[r * N + c] - mean);
        t->mean[c] = mean;
        t->rstd[c] = 1 / sqrt(squares / ROWS + (double)EPSILON);
        t->unbiased[c] = squares / (ROWS - 1);
        for (int r = 0; r < ROWS; r++)
            t->y[r * N + c] = (t->x[r * N + c] - mean) * t->rstd[c] * t->gamma[c] + t->beta[c];
    }
}

START_TEST(values_and_statistics_are_near_the_truth)
{
    const struct shape s = {ROWS, N, STATISTICS};
    const float *columns[4], *y = forward(rig_shared(RIG_HOST), &s, false, false, columns);
    struct truth *t = truth_new();
    truth_forward(t);
    ck_assert_double_le(relative_error(y, t->y, ROWS * N), 1e-6);
    ck_assert_double_le(relative_error(columns[0], t->mean, N), 1e-6);
    ck_assert_double_le(relative_error(columns[1], t->rstd, N), 1e-6);
    double mean[N], variance[N];
    to_double(mean, N, 7, -1.0f, 1.0f);
    to_double(variance, N, 8, 0.0f, 1.0f);
    for (int c = 0; c < N; c++) {
        mean[c] += t->mean[c] * (double)SCALE;
        variance[c] += t->unbiased[c] * (double)SCALE;
    }
    ck_assert_double_le(relative_error(columns[2], mean, N), 1e-6);
    ck_assert_double_le(relative_error(columns[3], variance, N), 1e-6);
    free(t);
}
END_TEST

/* d(sum y dy) / d(*at), by five points. */
static double slope(struct truth *t, double *at)
{
    static const double weights[] = {1.0 / 12, -8.0 / 12, 0, 8.0 / 12, -1.0 / 12};
    const double old = *at, h = 1e-3;
    double sum = 0;
    for (int step = 0; step < 5; step++) {
        *at = old + (step - 2) * h;
        truth_forward(t);
        for (int i = 0; i < ROWS * N; i++)
            sum += weights[step] * t->y[i] * t->dy[i] / h;
    }
    *at = old;
    return sum;
}

START_TEST(gradients_are_the_finite_differences)
{
    const struct shape s = {ROWS, N, 0};
    const float *columns[4];
    struct rig *rig = rig_shared(RIG_HOST);
    forward(rig, &s, false, false, columns);
    struct grads got = gradient(rig, &s, columns[0], columns[1], NULL);
    struct truth *t = truth_new();
    double dx[ROWS * N], dgamma[N], dbeta[N];
    to_double(dgamma, N, 11, -1.0f, 1.0f);
    to_double(dbeta, N, 12, -1.0f, 1.0f);
    for (int i = 0; i < ROWS * N; i++)
        dx[i] = slope(t, t->x + i);
    for (int c = 0; c < N; c++) {
        dgamma[c] += slope(t, t->gamma + c);
        dbeta[c] += slope(t, t->beta + c);
    }
    ck_assert_double_le(relative_error(got.dx, dx, ROWS * N), 1e-6);
    ck_assert_double_le(relative_error(got.dgamma, dgamma, N), 1e-6);
    ck_assert_double_le(relative_error(got.dbeta, dbeta, N), 1e-6);
    free(t);
}
END_TEST

START_TEST(the_gradient_through_relu_is_that_of_dy_where_y_is_above_0)
{
    const struct shape fused = {67, 5, RELU}, plain = {67, 5, 0};
    const uint64_t count = 67 * 5;
    struct rig *rig = rig_shared(RIG_HOST);
    struct grads with = gradient(rig, &fused, NULL, NULL, NULL);
    float *y = random_floats(count, 9, -1.0f, 1.0f), *dy = random_floats(count, 10, -1.0f, 1.0f);
    int closed = 0;
    for (uint64_t i = 0; i < count; i++) {
        closed += y[i] <= 0;
        dy[i] = y[i] > 0 ? dy[i] : 0;
    }
    struct grads without = gradient(rig, &plain, NULL, NULL, dy);
    ck_assert_int_gt(closed, 50);
    ck_assert_mem_eq(with.dx, without.dx, count * 4);
    ck_assert_mem_eq(with.dgamma, without.dgamma, 5 * 4);
    ck_assert_mem_eq(with.dbeta, without.dbeta, 5 * 4);
    free(y);
    free(dy);
}
END_TEST

START_TEST(wrong_descriptors_are_refused_by_name)
{
    struct rig *rig = rig_shared(RIG_HOST);
    struct keel_buffer *small[8];
    for (int i = 0; i < 8; i++)
        small[i] = rig_bytes(rig, NULL, 64);
    struct keel_batch_norm op = {.rows = 4,
                                 .n = 4,
                                 .epsilon = EPSILON,
                                 .scale = 1,
                                 .x = small[0],
                                 .gamma = small[1],
                                 .beta = small[2],
                                 .y = small[3],
                                 .mean = small[4],
                                 .rstd = small[5],
                                 .scratch = small[7]};
    ck_ok(keel_op_batch_norm(rig->kernels, &op, &rig->list));
    keel_launch_list_fini(&rig->list);
    op.running_mean = small[6];
    ck_status(keel_op_batch_norm(rig->kernels, &op, &rig->list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "batch_norm: no buffer for running_variance"));
    op.rows = 0;
    ck_status(keel_op_batch_norm(rig->kernels, &op, &rig->list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "batch_norm: 0 rows of 4 channels"));
    const struct keel_batch_norm_grad grad = {.rows = 5, .n = 4, .x = small[0]};
    ck_status(keel_op_batch_norm_grad(rig->kernels, &grad, &rig->list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "batch_norm_grad: x holds 64 bytes, needs 80"));
    const struct keel_batch_norm_eval eval = {.rows = 4, .n = 4, .x = small[0]};
    ck_status(keel_op_batch_norm_eval(rig->kernels, &eval, &rig->list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "batch_norm_eval: no buffer for y"));
    ck_assert_uint_eq(rig->list.count, 0);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, batch_norm_and_its_gradient_give_the_bits_of_the_host, 0, RIG_DEVICES);
    tcase_add_test(tc, what_is_fused_rounds_as_the_separate_operations);
    tcase_add_test(tc, values_and_statistics_are_near_the_truth);
    tcase_add_test(tc, gradients_are_the_finite_differences);
    tcase_add_test(tc, the_gradient_through_relu_is_that_of_dy_where_y_is_above_0);
    tcase_add_test(tc, wrong_descriptors_are_refused_by_name);
}

KEEL_TEST_MAIN("batch_norm", cases, RIG_LIMIT_S)
