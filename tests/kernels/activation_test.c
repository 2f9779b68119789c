/* activation_test.c - the functions of keel/activation_table.h, and SwiGLU: same bits everywhere, near the
 * truth, and their gradients are the finite differences. */
#include "op_fixture.h"

/* What the rows say: a function in double, corners, and what it makes of -inf, -200, -0, 0, 200 and inf,
 * where that is a number. */
enum { EXTREMES = 6, CORNERS = 2 };
#define UNPACK(...) __VA_ARGS__
#define TRUTH(kind, name, value, slope, of, truth, ...)                                                      \
    static double name##_truth(double x)                                                                     \
    {                                                                                                        \
        return truth;                                                                                        \
    }
KEEL_ACTIVATION_TABLE(TRUTH)
static const struct function {
    double (*truth)(double);
    float low, high;
    double corners[CORNERS];
    float limits[EXTREMES];
} functions[KEEL_ACTIVATION_COUNT] = {
#define FUNCTION(kind, name, value, slope, of, truth, low, high, corners, limits, ...)                       \
    [kind] = {                                                                                               \
        name##_truth, (low) < 0 ? (low)*1.125F : (low), (high)*1.125F, {UNPACK corners}, {UNPACK limits}},
    KEEL_ACTIVATION_TABLE(FUNCTION)};

static double truth(int kind, double x)
{
    return functions[kind].truth(x);
}

static bool is_corner(int kind, double x)
{
    bool near = false;
    for (int i = 0; i < CORNERS; i++)
        near = near || fabs(x - functions[kind].corners[i]) <= 0.01;
    return near;
}

static const uint64_t counts[] = {1, 16, 17, 4097, 65536};
enum { COUNTS = sizeof counts / sizeof counts[0] };

/* The first four, whose golden lines these are; golden_test.c has all, on every stack. */
static void activation_body(struct rig *rig, const void *shape)
{
    uint64_t count = *(const uint64_t *)shape;
    struct keel_buffer *x = rig_random(rig, count, 3, -12.0f, 12.0f);
    for (int kind = KEEL_RELU; kind <= KEEL_SILU; kind++) {
        struct keel_activation op = {.count = count, .kind = (enum keel_activation_kind)kind, .x = x};
        struct keel_activation_grad grad = {
            .count = count, .kind = op.kind, .x = x, .dy = rig_random(rig, count, 4, -1.0f, 1.0f)};
        op.y = rig_bytes(rig, NULL, count * 4);
        grad.dx = grad.dy; /* in place */
        ck_ok(keel_op_activation(rig->kernels, &op, &rig->list));
        ck_ok(keel_op_activation_grad(rig->kernels, &grad, &rig->list));
        rig_run(rig);
        rig_result(rig, op.y, count * 4);
        rig_result(rig, grad.dx, count * 4);
    }
}

static void swiglu_body(struct rig *rig, const void *shape)
{
    uint64_t count = *(const uint64_t *)shape;
    struct keel_swiglu op = {.count = count,
                             .a = rig_random(rig, count, 5, -12.0f, 12.0f),
                             .b = rig_random(rig, count, 6, -2.0f, 2.0f),
                             .y = rig_bytes(rig, NULL, count * 4)};
    struct keel_swiglu_grad grad = {
        .count = count, .a = op.a, .b = op.b, .dy = rig_random(rig, count, 7, -1.0f, 1.0f)};
    grad.da = grad.dy; /* in place */
    grad.db = rig_bytes(rig, NULL, count * 4);
    ck_ok(keel_op_swiglu(rig->kernels, &op, &rig->list));
    ck_ok(keel_op_swiglu_grad(rig->kernels, &grad, &rig->list));
    rig_run(rig);
    rig_result(rig, op.y, count * 4);
    rig_result(rig, grad.da, count * 4);
    rig_result(rig, grad.db, count * 4);
}

static void on_all_counts(enum rig_kind kind, const char *op, op_body body)
{
    for (int c = 0; c < COUNTS; c++) {
        char name[64];
        snprintf(name, sizeof name, "%s %llu", op, (unsigned long long)counts[c]);
        same_bits(kind, name, body, &counts[c]);
    }
}

START_TEST(activations_give_the_same_bits)
{
    on_all_counts((enum rig_kind)_i, "activation", activation_body);
}
END_TEST
/* Each by itself, in place, in lines that are no multiple of anything. */
static void one_body(struct rig *rig, const void *shape)
{
    enum { COUNT = 4097 };
    const int kind = *(const int *)shape;
    const struct function *of = &functions[kind];
    struct keel_activation op = {.count = COUNT, .kind = (enum keel_activation_kind)kind};
    struct keel_activation_grad grad = {.count = COUNT, .kind = op.kind};
    grad.x = rig_random(rig, COUNT, 31, of->low, of->high);
    grad.dy = grad.dx = rig_random(rig, COUNT, 32, -1.0F, 1.0F);
    op.x = op.y = rig_random(rig, COUNT, 31, of->low, of->high);
    ck_ok(keel_op_activation(rig->kernels, &op, &rig->list));
    ck_ok(keel_op_activation_grad(rig->kernels, &grad, &rig->list));
    rig_run(rig);
    rig_result(rig, op.y, COUNT * 4);
    rig_result(rig, grad.dx, COUNT * 4);
}

START_TEST(each_row_gives_the_same_bits)
{
    for (int kind = 0; kind < KEEL_ACTIVATION_COUNT; kind++)
        equal_bits((enum rig_kind)_i, keel_activation_name((enum keel_activation_kind)kind), one_body, &kind);
}
END_TEST

START_TEST(swiglu_gives_the_same_bits)
{
    on_all_counts((enum rig_kind)_i, "swiglu", swiglu_body);
}
END_TEST

/* Fourth order: exact to 1e-9 here; nobody looks near a corner. */
static double difference(int kind, double x)
{
    double h = 1e-3;
    return (8 * (truth(kind, x + h) - truth(kind, x - h)) -
            (truth(kind, x + 2 * h) - truth(kind, x - 2 * h))) /
           (12 * h);
}

START_TEST(values_and_slopes_are_near_the_truth)
{
    enum { COUNT = 5000 };
    float *dy = random_floats(COUNT, 9, -1.0f, 1.0f);
    for (int kind = 0; kind < KEEL_ACTIVATION_COUNT; kind++) {
        float *x = random_floats(COUNT, 8, functions[kind].low, functions[kind].high);
        struct rig rig;
        rig_open(&rig, RIG_HOST);
        struct keel_activation op = {.count = COUNT,
                                     .kind = (enum keel_activation_kind)kind,
                                     .x = rig_bytes(&rig, x, COUNT * 4),
                                     .y = rig_bytes(&rig, NULL, COUNT * 4)};
        struct keel_activation_grad grad = {.count = COUNT,
                                            .kind = op.kind,
                                            .x = op.x,
                                            .dy = rig_bytes(&rig, dy, COUNT * 4),
                                            .dx = rig_bytes(&rig, NULL, COUNT * 4)};
        ck_ok(keel_op_activation(rig.kernels, &op, &rig.list));
        ck_ok(keel_op_activation_grad(rig.kernels, &grad, &rig.list));
        rig_run(&rig);
        const float *y = rig_result(&rig, op.y, COUNT * 4), *dx = rig_result(&rig, grad.dx, COUNT * 4);
        for (int i = 0; i < COUNT; i++) {
            const double v = (double)x[i], value = truth(kind, v), slope = difference(kind, v);
            ck_assert_double_le(fabs((double)y[i] - value), 3e-7 * fmax(1.0, fabs(value)));
            if (!is_corner(kind, v))
                ck_assert_msg(fabs((double)dx[i] - (double)dy[i] * slope) <= 1e-6 * fmax(1.0, fabs(slope)),
                              "function %d at %g: %g, wanted %g", kind, v, (double)dx[i],
                              (double)dy[i] * slope);
        }
        rig_close(&rig);
        free(x);
    }
    free(dy);
}
END_TEST

START_TEST(swiglu_s_gradients_are_the_finite_differences)
{
    enum { COUNT = 2000 };
    struct rig rig;
    rig_open(&rig, RIG_HOST);
    float *a = random_floats(COUNT, 10, -9.0f, 9.0f), *b = random_floats(COUNT, 11, -2.0f, 2.0f),
          *dy = random_floats(COUNT, 12, -1.0f, 1.0f);
    struct keel_swiglu_grad grad = {.count = COUNT,
                                    .a = rig_bytes(&rig, a, COUNT * 4),
                                    .b = rig_bytes(&rig, b, COUNT * 4),
                                    .dy = rig_bytes(&rig, dy, COUNT * 4),
                                    .da = rig_bytes(&rig, NULL, COUNT * 4),
                                    .db = rig_bytes(&rig, NULL, COUNT * 4)};
    ck_ok(keel_op_swiglu_grad(rig.kernels, &grad, &rig.list));
    rig_run(&rig);
    const float *da = rig_result(&rig, grad.da, COUNT * 4), *db = rig_result(&rig, grad.db, COUNT * 4);
    for (int i = 0; i < COUNT; i++) {
        double u = (double)a[i], v = (double)b[i], g = (double)dy[i];
        ck_assert_double_le(fabs((double)da[i] - g * v * difference(KEEL_SILU, u)), 2e-6);
        ck_assert_double_le(fabs((double)db[i] - g * truth(KEEL_SILU, u)), 3e-6);
    }
    free(a);
    free(b);
    free(dy);
    rig_close(&rig);
}
END_TEST

/* What is far out, infinite or no number stays what the function makes of it. */
START_TEST(extremes_have_their_limits)
{
    static const float x[EXTREMES + 1] = {-INFINITY, -200, -0.0F, 0, 200, INFINITY, NAN};
    for (int kind = 0; kind < KEEL_ACTIVATION_COUNT; kind++) {
        struct rig rig;
        rig_open(&rig, RIG_PTHREAD);
        struct keel_activation op = {.count = EXTREMES + 1,
                                     .kind = (enum keel_activation_kind)kind,
                                     .x = rig_bytes(&rig, x, sizeof x),
                                     .y = rig_bytes(&rig, NULL, sizeof x)};
        ck_ok(keel_op_activation(rig.kernels, &op, &rig.list));
        rig_run(&rig);
        const float *y = rig_result(&rig, op.y, sizeof x), *wanted = functions[kind].limits;
        for (int i = 0; i < EXTREMES; i++)
            ck_assert_msg(isnan(wanted[i]) ? isnan(y[i]) : !(y[i] < wanted[i]) && !(y[i] > wanted[i]),
                          "function %d of %g is %g", kind, (double)x[i], (double)y[i]);
        ck_assert(isnan(y[EXTREMES]));
        rig_close(&rig);
    }
}
END_TEST

START_TEST(wrong_descriptors_are_refused_by_name)
{
    struct rig rig;
    rig_open(&rig, RIG_HOST);
    struct keel_activation op = {.count = 8, .kind = KEEL_SILU, .x = rig_bytes(&rig, NULL, 28)};
    op.y = op.x;
    ck_status(keel_op_activation(rig.kernels, &op, &rig.list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "silu: x holds 28 bytes, needs 32"));
    op.kind = KEEL_ACTIVATION_COUNT;
    ck_status(keel_op_activation(rig.kernels, &op, &rig.list), KEEL_INVALID);
    struct keel_swiglu_grad grad = {.count = 7, .a = op.x, .b = op.x, .dy = op.x, .da = op.x};
    ck_status(keel_op_swiglu_grad(rig.kernels, &grad, &rig.list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "swiglu_grad: no buffer for db"));
    ck_assert_uint_eq(rig.list.count, 0);
    rig_close(&rig);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, activations_give_the_same_bits, 0, RIG_DEVICES);
    tcase_add_loop_test(tc, each_row_gives_the_same_bits, 0, RIG_DEVICES);
    tcase_add_loop_test(tc, swiglu_gives_the_same_bits, 0, RIG_DEVICES);
    tcase_add_test(tc, values_and_slopes_are_near_the_truth);
    tcase_add_test(tc, swiglu_s_gradients_are_the_finite_differences);
    tcase_add_test(tc, extremes_have_their_limits);
    tcase_add_test(tc, wrong_descriptors_are_refused_by_name);
}

KEEL_TEST_MAIN("activation", cases, RIG_LIMIT_S)
