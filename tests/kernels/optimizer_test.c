/* optimizer_test.c - norm, clipping, AdamW and the digest of what they leave. */
#include "op_fixture.h"

#include <keel/memory.h>

static const uint64_t counts[] = {1, 17, 4096, 4097, 65537, 300007};
enum { COUNTS = sizeof counts / sizeof counts[0] };

static struct keel_control control_of(uint32_t step)
{
    struct keel_control control = {.step = step,
                                   .learning_rate = 1e-2f,
                                   .beta1 = 0.9f,
                                   .beta2 = 0.95f,
                                   .epsilon = 1e-8f,
                                   .max_norm = 1.0f};
    control.bias1 = keel_adam_bias(control.beta1, step + 1);
    control.bias2 = keel_adam_bias(control.beta2, step + 1);
    return control;
}

struct state {
    struct keel_norm norm;
    struct keel_adamw adamw;
};

static struct state build(struct rig *rig, uint64_t count, const struct keel_control *control)
{
    struct state s = {
        .norm = {.count = count,
                 .x = rig_random(rig, count, 1, -0.1f, 0.1f),
                 .scratch = rig_bytes(rig, NULL, keel_norm_scratch_bytes(count)),
                 .norm = rig_bytes(rig, NULL, 8),
                 .control = rig_bytes(rig, control, sizeof *control)},
    };
    s.adamw = (struct keel_adamw){.count = count,
                                  .weight_decay = 0.1f,
                                  .w = rig_random(rig, count, 2, -1.0f, 1.0f),
                                  .grad = s.norm.x,
                                  .m = rig_random(rig, count, 3, -0.1f, 0.1f),
                                  .v = rig_random(rig, count, 4, 0.0f, 0.01f),
                                  .norm = s.norm.norm,
                                  .control = s.norm.control};
    ck_ok(keel_op_norm(rig->kernels, &s.norm, &rig->list));
    ck_ok(keel_op_adamw(rig->kernels, &s.adamw, &rig->list));
    return s;
}

static void adamw_body(struct rig *rig, const void *shape)
{
    uint64_t count = *(const uint64_t *)shape;
    const struct keel_control control = control_of(3);
    struct state s = build(rig, count, &control);
    rig_run(rig);
    rig_run(rig); /* a list is replayed */
    rig_result(rig, s.norm.norm, 8);
    rig_result(rig, s.adamw.w, count * 4);
    rig_result(rig, s.adamw.m, count * 4);
    rig_result(rig, s.adamw.v, count * 4);
}

START_TEST(norm_and_adamw_give_the_same_bits)
{
    for (int c = 0; c < COUNTS; c++) {
        char name[64];
        snprintf(name, sizeof name, "adamw %llu", (unsigned long long)counts[c]);
        same_bits((enum rig_kind)_i, name, adamw_body, &counts[c]);
    }
}
END_TEST

/* Three levels of the tree: more than 4096 * 4096 elements. */
static void big_norm_body(struct rig *rig, const void *shape)
{
    const uint64_t count = *(const uint64_t *)shape;
    const struct keel_control control = control_of(0);
    float *x;
    ck_ok(keel_alloc(count, sizeof *x, &x));
    for (uint64_t i = 0; i < count; i++)
        x[i] = (float)(i % 1021) * 0x1p-10f - 0.5f;
    struct keel_norm op = {.count = count,
                           .x = rig_bytes(rig, x, count * 4),
                           .scratch = rig_bytes(rig, NULL, keel_norm_scratch_bytes(count)),
                           .norm = rig_bytes(rig, NULL, 8),
                           .control = rig_bytes(rig, &control, sizeof control)};
    keel_free(x);
    ck_ok(keel_op_norm(rig->kernels, &op, &rig->list));
    rig_run(rig);
    rig_result(rig, op.norm, 8);
}

START_TEST(a_norm_of_three_levels_gives_the_same_bits)
{
    const uint64_t count = UINT64_C(4096) * 4096 + 5;
    same_bits((enum rig_kind)_i, "norm 16777221", big_norm_body, &count);
}
END_TEST

/* One step in double; floats follow within 4e-7 of values up to 1. */
START_TEST(norm_and_adamw_are_near_the_truth)
{
    enum { COUNT = 5003 };
    struct rig *rig = rig_shared(RIG_HOST);
    const struct keel_control control = control_of(3);
    struct state s = build(rig, COUNT, &control);
    rig_run(rig);
    const float *norm = rig_result(rig, s.norm.norm, 8), *w = rig_result(rig, s.adamw.w, COUNT * 4);
    const float *m = rig_result(rig, s.adamw.m, COUNT * 4), *v = rig_result(rig, s.adamw.v, COUNT * 4);
    float *grad = random_floats(COUNT, 1, -0.1f, 0.1f), *w0 = random_floats(COUNT, 2, -1.0f, 1.0f);
    float *m0 = random_floats(COUNT, 3, -0.1f, 0.1f), *v0 = random_floats(COUNT, 4, 0.0f, 0.01f);
    static double tw[COUNT], tm[COUNT], tv[COUNT];
    double squares = 0.0, b1 = (double)control.beta1, b2 = (double)control.beta2;
    for (int i = 0; i < COUNT; i++)
        squares += (double)grad[i] * (double)grad[i];
    const double clip = 1.0 / sqrt(squares);
    for (int i = 0; i < COUNT; i++) {
        double g = (double)grad[i] * clip;
        tm[i] = b1 * (double)m0[i] + (1 - b1) * g;
        tv[i] = b2 * (double)v0[i] + (1 - b2) * g * g;
        double u = tm[i] / (1 - pow(b1, 4)) / (sqrt(tv[i] / (1 - pow(b2, 4))) + (double)control.epsilon);
        tw[i] = (double)w0[i] -
                (double)control.learning_rate * (u + (double)s.adamw.weight_decay * (double)w0[i]);
    }
    ck_assert_double_le(fabs((double)norm[0] / sqrt(squares) - 1.0), 4e-7);
    ck_assert_double_le(fabs((double)norm[1] / clip - 1.0), 4e-7);
    ck_assert_double_le(relative_error(w, tw, COUNT), 4e-7);
    ck_assert_double_le(relative_error(m, tm, COUNT), 4e-7);
    ck_assert_double_le(relative_error(v, tv, COUNT), 4e-7);
    free(grad);
    free(w0);
    free(m0);
    free(v0);
}
END_TEST

START_TEST(a_statistic_follows_the_mean_and_stays_when_a_step_is_refused)
{
    enum { COUNT = 1003 };
    for (int refused = 0; refused < 2; refused++) {
        struct rig *rig = rig_shared(RIG_HOST);
        const float norm[2] = {1.0f, refused == 0 ? 1.0f : 0.0f};
        struct keel_statistic op = {.count = COUNT,
                                    .momentum = 0.1f,
                                    .w = rig_random(rig, COUNT, 1, -2.0f, 2.0f),
                                    .mean = rig_random(rig, COUNT, 2, -2.0f, 2.0f),
                                    .norm = rig_bytes(rig, norm, sizeof norm)};
        ck_ok(keel_op_statistic(rig->kernels, &op, &rig->list));
        rig_run(rig);
        const float *w = rig_result(rig, op.w, COUNT * 4);
        float *w0 = random_floats(COUNT, 1, -2.0f, 2.0f), *mean = random_floats(COUNT, 2, -2.0f, 2.0f);
        for (int i = 0; i < COUNT; i++) {
            double moved = (double)w0[i] + (double)op.momentum * ((double)mean[i] - (double)w0[i]);
            if (refused == 0)
                ck_assert_double_eq_tol((double)w[i], moved, 2.5e-7);
            else
                ck_assert(w[i] == w0[i]);
        }
        free(w0);
        free(mean);
    }
}
END_TEST

START_TEST(clipping_acts_only_above_the_limit)
{
    const float values[4] = {0.6f, 0.0f, 0.8f, 0.0f};
    const struct {
        float max_norm, factor;
    } rows[] = {{0.0f, 1.0f}, {1.5f, 1.0f}, {0.5f, 0.5f}};
    for (int i = 0; i < 3; i++) {
        struct rig *rig = rig_shared(RIG_HOST);
        struct keel_control control = control_of(0);
        control.max_norm = rows[i].max_norm;
        struct keel_norm op = {.count = 4,
                               .x = rig_bytes(rig, values, sizeof values),
                               .scratch = rig_bytes(rig, NULL, keel_norm_scratch_bytes(4)),
                               .norm = rig_bytes(rig, NULL, 8),
                               .control = rig_bytes(rig, &control, sizeof control)};
        ck_ok(keel_op_norm(rig->kernels, &op, &rig->list));
        rig_run(rig);
        const float *norm = rig_result(rig, op.norm, 8);
        ck_assert_float_eq_tol(norm[0], 1.0f, 1e-6f);
        ck_assert_float_eq_tol(norm[1], rows[i].factor, 1e-6f);
    }
}
END_TEST

START_TEST(a_gradient_that_is_not_finite_changes_no_weight)
{
    const float bad[] = {NAN, INFINITY, 1e30f}; /* the square of the last overflows */
    for (int i = 0; i < 3; i++) {
        struct rig *rig = rig_shared((enum rig_kind)_i);
        const struct keel_control control = control_of(3);
        struct state s = build(rig, 100, &control);
        ck_ok(keel_queue_write(rig->queue, s.norm.x, 40, &bad[i], 4, NULL, NULL));
        rig_run(rig);
        const float *norm = rig_result(rig, s.norm.norm, 8), *w = rig_result(rig, s.adamw.w, 400);
        float *w0 = random_floats(100, 2, -1.0f, 1.0f);
        ck_assert(!isfinite(norm[0]) && norm[1] == 0.0f);
        ck_assert_mem_eq(w, w0, 400);
        free(w0);
    }
}
END_TEST

/* The digest of any split of a tensor is the digest of the whole, on the device and on the host. */
START_TEST(a_digest_does_not_depend_on_the_split)
{
    enum { COUNT = 50021 };
    struct rig *rig = rig_shared((enum rig_kind)_i);
    float *x = random_floats(COUNT, 6, -1.0f, 1.0f);
    const uint64_t whole = keel_digest_host(x, COUNT, 1000);
    const uint64_t cuts[][4] = {{0, COUNT, COUNT, COUNT}, {0, 1, 4097, COUNT}, {0, 20000, 20007, COUNT}};
    for (int c = 0; c < 3; c++) {
        rig_clear(rig);
        struct keel_buffer *digest = rig_bytes(rig, NULL, 8);
        for (int part = 0; part < 3; part++) {
            uint64_t first = cuts[c][part], count = cuts[c][part + 1] - first;
            if (count == 0)
                continue;
            struct keel_digest op = {.count = count,
                                     .first_element = 1000 + first,
                                     .x = rig_bytes(rig, x + first, count * 4),
                                     .digest = digest,
                                     .scratch = rig_bytes(rig, NULL, keel_digest_scratch_bytes(count))};
            ck_ok(keel_op_digest(rig->kernels, &op, &rig->list));
        }
        rig_run(rig);
        const uint64_t *got = rig_result(rig, digest, 8);
        ck_assert_uint_eq(got[0], whole);
    }
    golden_check("digest 50021", whole);
    x[777] = -x[777];
    ck_assert_uint_ne(keel_digest_host(x, COUNT, 1000), whole);
    float swap = x[3];
    x[777] = -x[777], x[3] = x[4], x[4] = swap;
    ck_assert_uint_ne(keel_digest_host(x, COUNT, 1000), whole);
    free(x);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, norm_and_adamw_give_the_same_bits, 0, RIG_DEVICES);
    tcase_add_loop_test(tc, a_norm_of_three_levels_gives_the_same_bits, 0, RIG_DEVICES);
    tcase_add_test(tc, norm_and_adamw_are_near_the_truth);
    tcase_add_test(tc, a_statistic_follows_the_mean_and_stays_when_a_step_is_refused);
    tcase_add_test(tc, clipping_acts_only_above_the_limit);
    tcase_add_loop_test(tc, a_gradient_that_is_not_finite_changes_no_weight, 0, RIG_DEVICES + 1);
    tcase_add_loop_test(tc, a_digest_does_not_depend_on_the_split, 0, RIG_DEVICES + 1);
}

KEEL_TEST_MAIN("optimizer", cases, RIG_LIMIT_S)
