/* elementwise_test.c - add, bias, GELU, fill and copy: same bits everywhere, and near the truth. */
#include "op_fixture.h"

static const uint64_t counts[] = {1, 15, 16, 17, 4095, 4097, 12289, 786432};
enum { COUNTS = sizeof counts / sizeof counts[0] };

static void add_body(struct rig *rig, const void *shape)
{
    uint64_t count = *(const uint64_t *)shape;
    struct keel_add op = {.count = count,
                          .a = rig_random(rig, count, 1, -2.0f, 2.0f),
                          .b = rig_random(rig, count, 2, -2.0f, 2.0f),
                          .y = rig_bytes(rig, NULL, count * 4)};
    ck_ok(keel_op_add(rig->kernels, &op, &rig->list));
    rig_run(rig);
    rig_result(rig, op.y, count * 4);
}

/* Rows of 1, of a vector, and of what is no multiple of one: as many as there is room for. */
static void bias_body(struct rig *rig, const void *shape)
{
    static const uint32_t widths[] = {1, 7, 16, 19, 67};
    uint64_t count = *(const uint64_t *)shape;
    for (int w = 0; w < 5; w++) {
        struct keel_bias op = {.rows = 1 + count / 8 / widths[w], .n = widths[w]};
        const uint64_t elements = op.rows * op.n;
        float *x = random_floats(elements, 8, -2.0f, 2.0f), *bias = random_floats(op.n, 9, -2.0f, 2.0f);
        op.x = rig_bytes(rig, x, elements * 4);
        op.y = op.x; /* in place */
        op.bias = rig_bytes(rig, bias, op.n * 4);
        ck_ok(keel_op_bias(rig->kernels, &op, &rig->list));
        rig_run(rig);
        keel_launch_list_fini(&rig->list);
        const float *y = rig_result(rig, op.y, elements * 4);
        for (uint64_t i = 0; i < elements; i++)
            ck_assert(y[i] == x[i] + bias[i % op.n]);
        free(x);
        free(bias);
    }
}

static void gelu_body(struct rig *rig, const void *shape)
{
    uint64_t count = *(const uint64_t *)shape;
    struct keel_buffer *x = rig_random(rig, count, 3, -12.0f, 12.0f);
    struct keel_activation op = {
        .count = count, .kind = KEEL_GELU, .x = x, .y = rig_bytes(rig, NULL, count * 4)};
    struct keel_activation_grad grad = {
        .count = count, .kind = KEEL_GELU, .x = x, .dy = rig_random(rig, count, 4, -1.0f, 1.0f)};
    grad.dx = grad.dy; /* in place */
    ck_ok(keel_op_activation(rig->kernels, &op, &rig->list));
    ck_ok(keel_op_activation_grad(rig->kernels, &grad, &rig->list));
    rig_run(rig);
    rig_result(rig, op.y, count * 4);
    rig_result(rig, grad.dx, count * 4);
}

static void move_body(struct rig *rig, const void *shape)
{
    uint64_t count = *(const uint64_t *)shape;
    struct keel_fill fill = {.count = count, .value = 0.1f, .y = rig_bytes(rig, NULL, count * 4)};
    struct keel_copy copy = {
        .count = count, .x = rig_random(rig, count, 5, -1.0f, 1.0f), .y = rig_bytes(rig, NULL, count * 4)};
    ck_ok(keel_op_fill(rig->kernels, &fill, &rig->list));
    ck_ok(keel_op_copy(rig->kernels, &copy, &rig->list));
    rig_run(rig);
    rig_result(rig, fill.y, count * 4);
    rig_result(rig, copy.y, count * 4);
}

static void on_all_counts(enum rig_kind kind, const char *op, op_body body)
{
    for (int c = 0; c < COUNTS; c++) {
        char name[64];
        snprintf(name, sizeof name, "%s %llu", op, (unsigned long long)counts[c]);
        same_bits(kind, name, body, &counts[c]);
    }
}

START_TEST(add_gives_the_same_bits)
{
    on_all_counts((enum rig_kind)_i, "add", add_body);
}
END_TEST
START_TEST(bias_adds_that_of_its_column)
{
    for (int c = 0; c < COUNTS; c++)
        equal_bits((enum rig_kind)_i, "bias", bias_body, &counts[c]);
}
END_TEST
START_TEST(gelu_gives_the_same_bits)
{
    on_all_counts((enum rig_kind)_i, "gelu", gelu_body);
}
END_TEST
START_TEST(fill_and_copy_give_the_same_bits)
{
    on_all_counts((enum rig_kind)_i, "move", move_body);
}
END_TEST

static double gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double gelu_slope(double x)
{
    double c = sqrt(2.0 / M_PI), t = tanh(c * (x + 0.044715 * x * x * x));
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * 0.044715 * x * x);
}

START_TEST(gelu_slope_is_the_finite_difference)
{
    for (double x = -6.0; x <= 6.0; x += 0.01) {
        double h = 1e-4;
        double difference =
            (8 * (gelu(x + h) - gelu(x - h)) - (gelu(x + 2 * h) - gelu(x - 2 * h))) / (12 * h);
        ck_assert_double_le(fabs(difference - gelu_slope(x)), 1e-6 * fmax(1e-2, fabs(gelu_slope(x))));
    }
}
END_TEST

START_TEST(gelu_and_its_gradient_are_near_the_truth)
{
    enum { COUNT = 5000 };
    struct rig rig;
    rig_open(&rig, RIG_HOST);
    float *x = random_floats(COUNT, 6, -8.0f, 8.0f), *dy = random_floats(COUNT, 7, -1.0f, 1.0f);
    struct keel_activation op = {.count = COUNT,
                                 .kind = KEEL_GELU,
                                 .x = rig_bytes(&rig, x, COUNT * 4),
                                 .y = rig_bytes(&rig, NULL, COUNT * 4)};
    struct keel_activation_grad grad = {.count = COUNT,
                                        .kind = KEEL_GELU,
                                        .x = op.x,
                                        .dy = rig_bytes(&rig, dy, COUNT * 4),
                                        .dx = rig_bytes(&rig, NULL, COUNT * 4)};
    ck_ok(keel_op_activation(rig.kernels, &op, &rig.list));
    ck_ok(keel_op_activation_grad(rig.kernels, &grad, &rig.list));
    rig_run(&rig);
    const float *y = rig_result(&rig, op.y, COUNT * 4), *dx = rig_result(&rig, grad.dx, COUNT * 4);
    for (int i = 0; i < COUNT; i++) {
        double v = (double)x[i];
        ck_assert_double_le(fabs((double)y[i] - gelu(v)), 3e-7 * fmax(1.0, fabs(v)));
        ck_assert_double_le(fabs((double)dx[i] - (double)dy[i] * gelu_slope(v)), 5e-7);
    }
    free(x);
    free(dy);
    rig_close(&rig);
}
END_TEST

START_TEST(a_bias_of_more_rows_than_memory_is_refused)
{
    struct rig rig;
    rig_open(&rig, RIG_HOST);
    struct keel_buffer *x = rig_bytes(&rig, NULL, 64);
    const struct keel_bias op = {.rows = UINT64_C(1) << 62, .n = 4, .x = x, .bias = x, .y = x};
    ck_status(keel_op_bias(rig.kernels, &op, &rig.list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "4611686018427387904 rows of 4"));
    rig_close(&rig);
}
END_TEST

START_TEST(a_short_buffer_is_refused_by_name)
{
    struct rig rig;
    rig_open(&rig, RIG_HOST);
    struct keel_add op = {.count = 8, .a = rig_bytes(&rig, NULL, 32), .b = rig_bytes(&rig, NULL, 28)};
    op.y = op.a;
    ck_status(keel_op_add(rig.kernels, &op, &rig.list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "add: b holds 28 bytes, needs 32"));
    ck_assert_uint_eq(rig.list.count, 0);
    rig_close(&rig);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, add_gives_the_same_bits, 0, RIG_DEVICES);
    tcase_add_loop_test(tc, bias_adds_that_of_its_column, 0, RIG_DEVICES);
    tcase_add_loop_test(tc, gelu_gives_the_same_bits, 0, RIG_DEVICES);
    tcase_add_loop_test(tc, fill_and_copy_give_the_same_bits, 0, RIG_DEVICES);
    tcase_add_test(tc, gelu_slope_is_the_finite_difference);
    tcase_add_test(tc, gelu_and_its_gradient_are_near_the_truth);
    tcase_add_test(tc, a_short_buffer_is_refused_by_name);
    tcase_add_test(tc, a_bias_of_more_rows_than_memory_is_refused);
}

KEEL_TEST_MAIN("elementwise", cases, RIG_LIMIT_S)
