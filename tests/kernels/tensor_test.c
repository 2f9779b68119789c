/* tensor_test.c - tensors of unlike shapes, sums over dimensions, scaling: random descriptors near sums in
 * double, and the same bits on every device. KEEL_TENSOR_DESCRIPTORS=n draws n of each instead of a few (2000
 * takes a minute), KEEL_TENSOR_SEED another run. */
#include <keel/tensor_ops.h>

#include "op_fixture.h"

enum { DIMS = KEEL_TENSOR_DIMS, FEW = 40, ELEMENTS_MAX = 6000 };

static uint32_t number_of(const char *name, uint32_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

/* The next random number below `below`; *state begins at any. */
static uint32_t draw(uint64_t *state, uint32_t below)
{
    const struct keel_control control = {.seed_lo = 4711};
    return keel_random_u32(&control, 5, (*state)++) % below;
}

/* Odd sizes, some of them 1, so that edges, tails and joined dimensions all occur. */
static uint64_t draw_size(uint64_t *state)
{
    static const uint32_t sizes[] = {1, 1, 2, 3, 5, 7, 16, 17, 33, 67};
    return sizes[draw(state, sizeof sizes / sizeof sizes[0])];
}

static uint64_t product(const uint64_t size[DIMS], uint32_t dims)
{
    uint64_t count = 1;
    for (int d = 0; d < DIMS; d++)
        count *= (dims >> d & 1) != 0 ? size[d] : 1;
    return count;
}

/* ---- functions of two values ---- */

#define TRUTH(kind, name, value, slope_a, slope_b, truth, ...)                                               \
    static double name##_truth(double a, double b)                                                           \
    {                                                                                                        \
        (void)b;                                                                                             \
        return truth;                                                                                        \
    }
KEEL_BINARY_TABLE(TRUTH)
static const struct function {
    double (*truth)(double, double);
    float low_a, low_b;
    bool smooth;
} functions[KEEL_BINARY_COUNT] = {
#define FUNCTION(kind, name, value, slope_a, slope_b, truth, low_a, low_b, smooth, ...)                      \
    [kind] = {name##_truth, low_a, low_b, smooth},
    KEEL_BINARY_TABLE(FUNCTION)};

static struct keel_binary draw_binary(uint64_t *state, uint32_t kind)
{
    struct keel_binary op = {.kind = (enum keel_binary_kind)kind};
    do {
        for (int d = 0; d < DIMS; d++)
            op.size[d] = draw_size(state);
    } while (product(op.size, 15) > ELEMENTS_MAX);
    op.a_dims = draw(state, 3) == 0 ? 15 : draw(state, 16);
    op.b_dims = draw(state, 3) == 0 ? 15 : draw(state, 16);
    return op;
}

/* Value and both slopes; results 0 to 2. */
static void binary_body(struct rig *rig, const void *shape)
{
    struct keel_binary op = *(const struct keel_binary *)shape;
    const uint64_t count = product(op.size, 15);
    op.a = rig_random(rig, product(op.size, op.a_dims), 1, functions[op.kind].low_a, 4.0F);
    op.b = rig_random(rig, product(op.size, op.b_dims), 2, functions[op.kind].low_b, 4.0F);
    op.dy = rig_random(rig, count, 3, -1.0F, 1.0F);
    struct keel_buffer *results[KEEL_BINARY_RESULTS];
    for (uint32_t of = 0; of < KEEL_BINARY_RESULTS; of++) {
        op.of = (enum keel_binary_result)of;
        op.y = results[of] = rig_bytes(rig, NULL, count * 4);
        ck_ok(keel_op_binary(rig->kernels, &op, &rig->list));
    }
    rig_run(rig);
    for (uint32_t of = 0; of < KEEL_BINARY_RESULTS; of++)
        rig_result(rig, results[of], count * 4);
}

/* The element of an operand for element i of the result. */
static uint64_t place_in(const struct keel_binary *op, uint32_t dims, uint64_t i)
{
    uint64_t place = 0, step = 1;
    for (int d = DIMS - 1; d >= 0; d--) {
        place += (dims >> d & 1) != 0 ? i % op->size[d] * step : 0;
        step *= (dims >> d & 1) != 0 ? op->size[d] : 1;
        i /= op->size[d];
    }
    return place;
}

static void near_truth(const struct rig *rig, const struct keel_binary *op)
{
    const struct function *f = &functions[op->kind];
    const uint64_t count = product(op->size, 15);
    float *a = random_floats(product(op->size, op->a_dims), 1, f->low_a, 4.0F),
          *b = random_floats(product(op->size, op->b_dims), 2, f->low_b, 4.0F),
          *dy = random_floats(count, 3, -1.0F, 1.0F);
    const float *y = rig->results[0], *da = rig->results[1], *db = rig->results[2];
    for (uint64_t i = 0; i < count; i++) {
        const double u = (double)a[place_in(op, op->a_dims, i)], v = (double)b[place_in(op, op->b_dims, i)],
                     g = (double)dy[i], h = 1e-4, truth = f->truth(u, v);
        ck_assert_msg(fabs((double)y[i] - truth) <= 2e-6 * fmax(1.0, fabs(truth)), "%s(%g, %g) is %g, not %g",
                      keel_binary_name(op->kind), u, v, (double)y[i], truth);
        if (!f->smooth)
            continue;
        const double to_a = (f->truth(u + h, v) - f->truth(u - h, v)) / (2 * h) * g,
                     to_b = (f->truth(u, v + h) - f->truth(u, v - h)) / (2 * h) * g;
        ck_assert_msg(fabs((double)da[i] - to_a) <= 1e-5 * fmax(1.0, fabs(to_a)) &&
                          fabs((double)db[i] - to_b) <= 1e-5 * fmax(1.0, fabs(to_b)),
                      "slopes of %s(%g, %g) times %g are %g and %g, not %g and %g",
                      keel_binary_name(op->kind), u, v, g, (double)da[i], (double)db[i], to_a, to_b);
    }
    free(a);
    free(b);
    free(dy);
}

START_TEST(random_shapes_of_each_function_are_right_and_equal_everywhere)
{
    uint64_t state = number_of("KEEL_TENSOR_SEED", 1);
    const uint32_t tries = number_of("KEEL_TENSOR_DESCRIPTORS", FEW);
    for (uint32_t kind = 0; kind < KEEL_BINARY_COUNT; kind++)
        for (uint32_t i = 0; i < tries; i++) {
            const struct keel_binary op = draw_binary(&state, kind);
            char name[96];
            snprintf(name, sizeof name, "%s [%u,%u,%u,%u] of %u and %u", keel_binary_name(op.kind),
                     (unsigned)op.size[0], (unsigned)op.size[1], (unsigned)op.size[2], (unsigned)op.size[3],
                     op.a_dims, op.b_dims);
            equal_bits((enum rig_kind)_i, name, binary_body, &op);
            near_truth(rig_kept(RIG_HOST), &op);
        }
}
END_TEST

enum { STEPS = 6 };

static void check_steps(enum keel_binary_kind kind, enum keel_binary_result of, const float a[STEPS],
                        const float b[STEPS], const float wanted[STEPS])
{
    static const float dy[STEPS] = {10, 20, 30, 40, 50, 60};
    struct rig *rig = rig_shared(RIG_PTHREAD);
    const struct keel_binary op = {.kind = kind,
                                   .of = of,
                                   .size = {1, 1, 1, STEPS},
                                   .a_dims = 15,
                                   .b_dims = 15,
                                   .a = rig_bytes(rig, a, sizeof dy),
                                   .b = rig_bytes(rig, b, sizeof dy),
                                   .dy = rig_bytes(rig, dy, sizeof dy),
                                   .y = rig_bytes(rig, NULL, sizeof dy)};
    ck_ok(keel_op_binary(rig->kernels, &op, &rig->list));
    rig_run(rig);
    const float *y = rig_result(rig, op.y, sizeof dy);
    for (int i = 0; i < STEPS; i++)
        ck_assert_msg(isnan(wanted[i]) ? isnan(y[i])
                                       : !(y[i] < wanted[i]) && !(y[i] > wanted[i]) && !isnan(y[i]),
                      "%s, result %d of %g and %g is %g, not %g", keel_binary_name(kind), (int)of,
                      (double)a[i], (double)b[i], (double)y[i], (double)wanted[i]);
}

/* Ties, steps, NaN: what finite differences do not see. */
START_TEST(steps_have_the_slopes_that_the_table_says)
{
    static const float a[STEPS] = {1, 2, 3, NAN, 0, -0.0F}, b[STEPS] = {2, 2, 2, 2, NAN, 5};
    static const struct {
        enum keel_binary_kind kind;
        enum keel_binary_result of;
        float wanted[STEPS];
    } rows[] = {
        {KEEL_MAXIMUM, KEEL_BINARY_VALUE, {2, 2, 3, NAN, NAN, 5}},
        {KEEL_MAXIMUM, KEEL_BINARY_SLOPE_A, {0, 20, 30, 40, 0, 0}},
        {KEEL_MAXIMUM, KEEL_BINARY_SLOPE_B, {10, 0, 0, 0, 50, 60}},
        {KEEL_MINIMUM, KEEL_BINARY_VALUE, {1, 2, 2, NAN, NAN, 0}},
        {KEEL_MINIMUM, KEEL_BINARY_SLOPE_A, {10, 20, 0, 40, 0, 60}},
        {KEEL_EQUAL, KEEL_BINARY_VALUE, {0, 1, 0, 0, 0, 0}},
        {KEEL_LESS, KEEL_BINARY_VALUE, {1, 0, 0, 0, 0, 1}},
        {KEEL_WHERE, KEEL_BINARY_VALUE, {2, 2, 2, 2, 0, 0}},
        {KEEL_WHERE, KEEL_BINARY_SLOPE_B, {10, 20, 30, 40, 0, 0}},
        {KEEL_WHERE_NOT, KEEL_BINARY_VALUE, {0, 0, 0, 0, NAN, 5}},
        {KEEL_WHERE_NOT, KEEL_BINARY_SLOPE_B, {0, 0, 0, 0, 50, 60}},
        {KEEL_WHERE, KEEL_BINARY_SLOPE_A, {0, 0, 0, 0, 0, 0}},
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
        check_steps(rows[r].kind, rows[r].of, a, b, rows[r].wanted);
}
END_TEST

/* Of what is below 0 too, where b is whole: exact where products are. */
START_TEST(powers_are_numbers_where_there_is_one)
{
    static const struct {
        enum keel_binary_result of;
        float a[STEPS], b[STEPS], wanted[STEPS];
    } rows[] = {
        {KEEL_BINARY_VALUE,
         {-2, -2, -3, 0, -0.5F, -2},
         {4, 3, -2, 0, -1, 0.5F},
         {16, -8, 1.0F / 9, 1, -2, NAN}},
        {KEEL_BINARY_VALUE,
         {0, -0.0F, 0, 3, -0.25F, NAN},
         {-2, -3, 5, 15, 63, 0},
         {INFINITY, -INFINITY, 0, 14348907, -0x1p-126F, 1}},
        {KEEL_BINARY_VALUE, /* the sign of -0 is that of an odd b alone */
         {-0.0F, -0.0F, -0.0F, -0.0F, -1, -1},
         {-0.5F, -1.5F, -65, -66, 8388609, 0x1p24F},
         {INFINITY, INFINITY, -INFINITY, INFINITY, -1, 1}},
        {KEEL_BINARY_SLOPE_A,
         {-2, -2, -3, 0, -0.5F, -2},
         {4, 3, -2, 0, -1, 0.5F},
         {-320, 240, 30 * (-2 * (-1.0F / 27)), 0, -200, NAN}},
        {KEEL_BINARY_SLOPE_B, {-2, 1, 0, 0, 1, 0}, {4, 3, 2, 0, -1, 0.5F}, {NAN, 0, 0, 0, 0, 0}},
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
        check_steps(KEEL_POWER, rows[r].of, rows[r].a, rows[r].b, rows[r].wanted);
}
END_TEST

/* ---- sums over dimensions ---- */

static struct keel_reduce draw_reduce(uint64_t *state, uint32_t kind)
{
    struct keel_reduce op = {.kind = (enum keel_reduce_kind)kind};
    do {
        op.outer = draw_size(state);
        op.n = draw(state, 4) == 0 ? 1 + draw(state, 3000) : draw_size(state);
        op.inner = draw(state, 3) == 0 ? 1 : draw_size(state);
    } while (op.outer * op.n * op.inner > ELEMENTS_MAX || op.n == 4096);
    return op;
}

static void reduce_body(struct rig *rig, const void *shape)
{
    struct keel_reduce op = *(const struct keel_reduce *)shape;
    op.x = rig_random(rig, op.outer * op.n * op.inner, 4, -1.0F, 1.0F);
    op.y = rig_bytes(rig, NULL, op.outer * op.inner * 4);
    ck_ok(keel_op_reduce(rig->kernels, &op, &rig->list));
    rig_run(rig);
    rig_result(rig, op.y, op.outer * op.inner * 4);
}

static double reduced(const struct keel_reduce *op, const float *x, uint64_t o, uint64_t i)
{
    double sum = 0.0, largest = -INFINITY;
    for (uint64_t j = 0; j < op->n; j++) {
        const double v = (double)x[(o * op->n + j) * op->inner + i];
        sum += v;
        largest = fmax(largest, v);
    }
    return op->kind == KEEL_REDUCE_MAXIMUM ? largest
           : op->kind == KEEL_REDUCE_MEAN  ? sum / (double)op->n
                                           : sum;
}

START_TEST(random_sums_are_right_and_equal_everywhere)
{
    uint64_t state = 1000 + number_of("KEEL_TENSOR_SEED", 1);
    const uint32_t tries = number_of("KEEL_TENSOR_DESCRIPTORS", FEW);
    for (uint32_t kind = 0; kind < KEEL_REDUCE_COUNT; kind++)
        for (uint32_t t = 0; t < tries; t++) {
            const struct keel_reduce op = draw_reduce(&state, kind);
            char name[96];
            snprintf(name, sizeof name, "reduce %u of [%u,%u,%u]", kind, (unsigned)op.outer, (unsigned)op.n,
                     (unsigned)op.inner);
            equal_bits((enum rig_kind)_i, name, reduce_body, &op);
            float *x = random_floats(op.outer * op.n * op.inner, 4, -1.0F, 1.0F);
            const float *y = rig_kept(RIG_HOST)->results[0];
            for (uint64_t o = 0; o < op.outer; o++)
                for (uint64_t i = 0; i < op.inner; i++) {
                    const double truth = reduced(&op, x, o, i), made = (double)y[o * op.inner + i];
                    ck_assert_msg(fabs(made - truth) <= 6e-8 * (double)(op.n + 1), "%s: %g, not %g", name,
                                  made, truth);
                }
            free(x);
        }
}
END_TEST

START_TEST(a_nan_is_the_largest)
{
    static const float x[] = {1, NAN, 3, 2, 5, -INFINITY};
    struct rig *rig = rig_shared(RIG_PTHREAD);
    struct keel_reduce op = {.kind = KEEL_REDUCE_MAXIMUM, .outer = 2, .n = 3, .inner = 1};
    op.x = rig_bytes(rig, x, sizeof x);
    op.y = rig_bytes(rig, NULL, 8);
    ck_ok(keel_op_reduce(rig->kernels, &op, &rig->list));
    struct keel_reduce down = {.kind = KEEL_REDUCE_MAXIMUM, .outer = 1, .n = 2, .inner = 3, .x = op.x};
    down.y = rig_bytes(rig, NULL, 12);
    ck_ok(keel_op_reduce(rig->kernels, &down, &rig->list));
    rig_run(rig);
    const float *y = rig_result(rig, op.y, 8), *z = rig_result(rig, down.y, 12);
    ck_assert(isnan(y[0]) && y[1] == 5.0F && z[0] == 2.0F && isnan(z[1]) && z[2] == 3.0F);
}
END_TEST

/* ---- scaling ---- */

static void scale_body(struct rig *rig, const void *shape)
{
    struct keel_scale op = {.count = *(const uint64_t *)shape, .factor = -0.7F, .addend = 3.5F};
    op.x = op.y = rig_random(rig, op.count, 6, -4.0F, 4.0F);
    ck_ok(keel_op_scale(rig->kernels, &op, &rig->list));
    rig_run(rig);
    rig_result(rig, op.y, op.count * 4);
}

START_TEST(scaling_rounds_once)
{
    static const uint64_t counts[] = {1, 17, 4097, 20011};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        equal_bits((enum rig_kind)_i, "scale", scale_body, &counts[c]);
        float *x = random_floats(counts[c], 6, -4.0F, 4.0F);
        const float *y = rig_kept(RIG_HOST)->results[0];
        for (uint64_t i = 0; i < counts[c]; i++)
            ck_assert(y[i] == fmaf(x[i], -0.7F, 3.5F));
        free(x);
    }
}
END_TEST

static void refused(enum keel_status status, const char *why)
{
    ck_status(status, KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), why) != NULL, "%s", keel_detail());
}

START_TEST(wrong_descriptors_are_refused_by_name)
{
    struct rig rig;
    rig_open(&rig, RIG_HOST);
    struct keel_buffer *small = rig_bytes(&rig, NULL, 28), *other = rig_bytes(&rig, NULL, 32);
    struct keel_binary op = {.kind = KEEL_DIVIDE,
                             .size = {1, 1, 2, 4},
                             .a_dims = 15,
                             .b_dims = 8,
                             .a = small,
                             .b = small,
                             .y = other};
    refused(keel_op_binary(rig.kernels, &op, &rig.list), "divide: a holds 28 bytes, needs 32");
    op.a = other;
    refused(keel_op_binary(rig.kernels, &op, &rig.list), "divide: y overlaps a");
    op.a_dims = 16;
    refused(keel_op_binary(rig.kernels, &op, &rig.list), "operands of other dimensions");
    op.a_dims = 15;
    op.size[1] = UINT64_C(1) << 40;
    refused(keel_op_binary(rig.kernels, &op, &rig.list), "2^32 elements or more");
    op.kind = KEEL_BINARY_COUNT;
    refused(keel_op_binary(rig.kernels, &op, &rig.list), "no function has number");
    struct keel_reduce sum = {.outer = 2, .n = 0, .inner = 1, .x = small, .y = other};
    refused(keel_op_reduce(rig.kernels, &sum, &rig.list), "no elements");
    sum.n = 4;
    refused(keel_op_reduce(rig.kernels, &sum, &rig.list), "reduce: x holds 28 bytes, needs 32");
    const struct keel_scale by = {.count = 4, .factor = INFINITY, .x = small, .y = small};
    refused(keel_op_scale(rig.kernels, &by, &rig.list), "scale: factor is inf");
    ck_assert_uint_eq(rig.list.count, 0);
    rig_close(&rig);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, random_shapes_of_each_function_are_right_and_equal_everywhere, 0, RIG_DEVICES);
    tcase_add_test(tc, steps_have_the_slopes_that_the_table_says);
    tcase_add_test(tc, powers_are_numbers_where_there_is_one);
    tcase_add_loop_test(tc, random_sums_are_right_and_equal_everywhere, 0, RIG_DEVICES);
    tcase_add_test(tc, a_nan_is_the_largest);
    tcase_add_loop_test(tc, scaling_rounds_once, 0, RIG_DEVICES);
    tcase_add_test(tc, wrong_descriptors_are_refused_by_name);
}

KEEL_TEST_MAIN("tensor", cases, RIG_LIMIT_S)
