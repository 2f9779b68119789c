/* cross_entropy_test.c - loss and gradient of a softmax, at small vocabularies and at that of GPT-2. */
#include "op_fixture.h"

struct shape {
    uint32_t rows, vocab;
    bool gradient, in_place;
};
static const struct shape shapes[] = {{1, 1, true, false},     {3, 17, true, true},
                                      {37, 1009, true, false}, {37, 1009, false, false},
                                      {9, 50257, true, true},  {4099, 5, true, false}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };
static const float SCALE = 0.01f;

static int32_t *random_targets(uint32_t rows, uint32_t vocab)
{
    const struct keel_control control = {.seed_lo = 31};
    int32_t *targets = malloc(rows * sizeof *targets);
    ck_assert_ptr_nonnull(targets);
    for (uint32_t i = 0; i < rows; i++)
        targets[i] = (int32_t)(keel_random_u32(&control, 1, i) % vocab);
    return targets;
}

static void cross_entropy_body(struct rig *rig, const void *shape)
{
    const struct shape *s = shape;
    const uint64_t bytes = (uint64_t)s->rows * s->vocab * 4;
    const float loss = 0.25f;
    int32_t *targets = random_targets(s->rows, s->vocab);
    struct keel_cross_entropy op = {
        .rows = s->rows,
        .vocab = s->vocab,
        .scale = SCALE,
        .logits = rig_random(rig, (uint64_t)s->rows * s->vocab, 1, -6.0f, 6.0f),
        .targets = rig_bytes(rig, targets, s->rows * sizeof *targets),
        .row_loss = rig_bytes(rig, NULL, s->rows * 4),
        .loss = rig_bytes(rig, &loss, 4),
    };
    if (s->gradient)
        op.dlogits = s->in_place ? op.logits : rig_bytes(rig, NULL, bytes);
    ck_ok(keel_op_cross_entropy(rig->kernels, &op, &rig->list));
    rig_run(rig);
    rig_result(rig, op.loss, 4);
    if (s->gradient)
        rig_result(rig, op.dlogits, bytes);
    free(targets);
}

START_TEST(cross_entropy_gives_the_same_bits)
{
    for (int i = 0; i < SHAPES; i++) {
        char name[64];
        snprintf(name, sizeof name, "cross_entropy %ux%u%s", shapes[i].rows, shapes[i].vocab,
                 shapes[i].gradient ? "" : " loss only");
        same_bits((enum rig_kind)_i, name, cross_entropy_body, &shapes[i]);
    }
}
END_TEST

static double true_loss(const double *x, uint32_t vocab, int32_t target)
{
    double m = x[0], s = 0;
    for (uint32_t i = 0; i < vocab; i++)
        m = fmax(m, x[i]);
    for (uint32_t i = 0; i < vocab; i++)
        s += exp(x[i] - m);
    return log(s) + m - x[target];
}
static void true_gradient(const double *x, uint32_t vocab, int32_t target, double *d)
{
    double s = 0;
    for (uint32_t i = 0; i < vocab; i++)
        s += exp(x[i]);
    for (uint32_t i = 0; i < vocab; i++)
        d[i] = exp(x[i]) / s - (i == (uint32_t)target ? 1.0 : 0.0);
}

enum { VOCAB = 1009, ROWS = 37 };

START_TEST(the_gradient_formula_is_the_finite_difference)
{
    float *logits = random_floats(VOCAB, 1, -6.0f, 6.0f);
    double x[VOCAB], d[VOCAB], h = 1e-5;
    for (int i = 0; i < VOCAB; i++)
        x[i] = (double)logits[i];
    true_gradient(x, VOCAB, 5, d);
    for (int i = 0; i < VOCAB; i++) {
        double old = x[i];
        x[i] = old + h;
        double up = true_loss(x, VOCAB, 5);
        x[i] = old - h;
        double down = true_loss(x, VOCAB, 5);
        x[i] = old;
        ck_assert_double_le(fabs((up - down) / (2 * h) - d[i]), 1e-6);
    }
    free(logits);
}
END_TEST

/* Loss to 1e-6 relative; the gradient to 1e-6 of its largest value. */
START_TEST(cross_entropy_is_near_the_truth)
{
    const struct shape s = {ROWS, VOCAB, true, false};
    struct rig *rig = rig_shared(RIG_HOST);
    cross_entropy_body(rig, &s);
    const float *loss = rig->results[0], *dlogits = rig->results[1];
    float *logits = random_floats(ROWS * VOCAB, 1, -6.0f, 6.0f);
    int32_t *targets = random_targets(ROWS, VOCAB);
    double want = 0.0, x[VOCAB], d[VOCAB];
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < VOCAB; i++)
            x[i] = (double)logits[row * VOCAB + i];
        want += true_loss(x, VOCAB, targets[row]);
        true_gradient(x, VOCAB, targets[row], d);
        for (int i = 0; i < VOCAB; i++)
            d[i] *= (double)SCALE;
        ck_assert_double_le(relative_error(dlogits + row * VOCAB, d, VOCAB), 1e-6);
    }
    want = 0.25 + (double)SCALE * want;
    ck_assert_double_le(fabs((double)loss[0] - want), 1e-6 * want);
    free(logits);
    free(targets);
}
END_TEST

/* Five rows and more to a work-item, where its device gives it several. */
START_TEST(a_loss_without_a_gradient_leaves_its_logits_alone)
{
    enum { N = 37 };
    struct rig *rig = rig_shared((enum rig_kind)_i);
    const uint32_t rows = keel_kernels_info(rig->kernels)->compute_units * 4 * 5 + 3;
    const uint64_t count = (uint64_t)rows * N;
    float *logits = random_floats(count, 1, -6.0f, 6.0f);
    int32_t *targets = random_targets(rows, N);
    struct keel_cross_entropy op = {.rows = rows,
                                    .vocab = N,
                                    .scale = SCALE,
                                    .logits = rig_bytes(rig, logits, count * sizeof *logits),
                                    .targets = rig_bytes(rig, targets, rows * sizeof *targets),
                                    .row_loss = rig_bytes(rig, NULL, rows * sizeof(float)),
                                    .loss = rig_bytes(rig, NULL, sizeof(float))};
    ck_ok(keel_op_cross_entropy(rig->kernels, &op, &rig->list));
    rig_run(rig);
    ck_assert_mem_eq(rig_result(rig, op.logits, count * sizeof *logits), logits, count * sizeof *logits);
    ck_assert_float_gt(*(const float *)rig_result(rig, op.loss, sizeof(float)), 0.0f);
    free(logits);
    free(targets);
}
END_TEST

START_TEST(a_nan_among_the_logits_reaches_the_loss)
{
    struct rig *rig = rig_shared(RIG_HOST);
    const float logits[3] = {1.0f, NAN, 2.0f}, zero = 0.0f;
    const int32_t target = 0;
    struct keel_cross_entropy op = {.rows = 1,
                                    .vocab = 3,
                                    .scale = 1.0f,
                                    .logits = rig_bytes(rig, logits, sizeof logits),
                                    .targets = rig_bytes(rig, &target, 4),
                                    .row_loss = rig_bytes(rig, NULL, 4),
                                    .loss = rig_bytes(rig, &zero, 4)};
    ck_ok(keel_op_cross_entropy(rig->kernels, &op, &rig->list));
    rig_run(rig);
    const float *loss = rig_result(rig, op.loss, 4);
    ck_assert(isnan(loss[0]));
}
END_TEST

/* Rows of 19 with targets that are there, 1, 18, 0, and some that are not. */
START_TEST(a_target_out_of_range_makes_its_row_nan_and_no_other)
{
    enum { N = 19, COUNT = 7 };
    const int32_t bad[COUNT] = {1, N, 18, -1, 1 << 30, INT32_MIN, 0}, good[COUNT] = {1, 0, 18, 0, 0, 0, 0};
    struct rig *rig = rig_shared((enum rig_kind)_i);
    const float zero = 0.0f;
    const float *d[2], *loss[2];
    for (int i = 0; i < 2; i++) {
        struct keel_cross_entropy op = {.rows = COUNT, .vocab = N, .scale = 1.0f};
        op.logits = rig_random(rig, COUNT * N, 1, -6.0f, 6.0f);
        op.targets = rig_bytes(rig, i == 0 ? good : bad, sizeof good);
        op.row_loss = rig_bytes(rig, NULL, COUNT * 4);
        op.loss = rig_bytes(rig, &zero, 4);
        op.dlogits = rig_bytes(rig, NULL, COUNT * N * 4);
        ck_ok(keel_op_cross_entropy(rig->kernels, &op, &rig->list));
        rig_run(rig);
        d[i] = rig_result(rig, op.dlogits, COUNT * N * 4);
        loss[i] = rig_result(rig, op.loss, 4);
        keel_launch_list_fini(&rig->list);
    }
    ck_assert(isfinite(loss[0][0]) && isnan(loss[1][0]));
    for (int at = 0; at < COUNT * N; at++) {
        const bool same = bad[at / N] == good[at / N];
        ck_assert(same ? d[0][at] == d[1][at] : isnan(d[1][at]));
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, a_target_out_of_range_makes_its_row_nan_and_no_other, 0, RIG_HOST + 1);
    tcase_add_loop_test(tc, cross_entropy_gives_the_same_bits, 0, RIG_DEVICES);
    tcase_add_test(tc, the_gradient_formula_is_the_finite_difference);
    tcase_add_test(tc, cross_entropy_is_near_the_truth);
    tcase_add_loop_test(tc, a_loss_without_a_gradient_leaves_its_logits_alone, 0, RIG_HOST + 1);
    tcase_add_test(tc, a_nan_among_the_logits_reaches_the_loss);
}

KEEL_TEST_MAIN("cross_entropy", cases, RIG_LIMIT_S)
