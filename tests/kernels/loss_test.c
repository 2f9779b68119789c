/* loss_test.c - binary cross-entropy and squared error: same bits everywhere, near the truth, and their
 * gradients are the finite differences. */
#include "op_fixture.h"

static const uint64_t counts[] = {1, 17, 4096, 4097, 70001};
enum { COUNTS = sizeof counts / sizeof counts[0] };

static struct keel_loss build(struct rig *rig, uint64_t count, int kind, bool gradient)
{
    struct keel_loss op = {.count = count,
                           .kind = (enum keel_loss_kind)kind,
                           .scale = 1.0f / (float)count,
                           .x = rig_random(rig, count, 1, -9.0f, 9.0f),
                           .targets = rig_random(rig, count, 2, 0.0f, 1.0f),
                           .scratch = rig_bytes(rig, NULL, keel_loss_scratch_bytes(count)),
                           .loss = rig_random(rig, 1, 3, 0.5f, 1.0f),
                           .dx = gradient ? rig_bytes(rig, NULL, count * 4) : NULL};
    ck_ok(keel_op_loss(rig->kernels, &op, &rig->list));
    rig_run(rig);
    keel_launch_list_fini(&rig->list); /* run once: it adds to the loss */
    return op;
}

static void bodies(struct rig *rig, uint64_t count, int first, int last)
{
    for (int kind = first; kind <= last; kind++) {
        struct keel_loss with = build(rig, count, kind, true), without = build(rig, count, kind, false);
        const float *a = rig_result(rig, with.loss, 4), *b = rig_result(rig, without.loss, 4);
        ck_assert_mem_eq(a, b, 4);
        rig_result(rig, with.dx, count * 4);
    }
}

static void loss_body(struct rig *rig, const void *shape)
{
    bodies(rig, *(const uint64_t *)shape, KEEL_LOSS_BCE, KEEL_LOSS_MSE);
}

static void product_body(struct rig *rig, const void *shape)
{
    bodies(rig, *(const uint64_t *)shape, KEEL_LOSS_PRODUCT, KEEL_LOSS_PRODUCT);
}

START_TEST(losses_give_the_same_bits)
{
    for (int c = 0; c < COUNTS; c++) {
        char name[64];
        snprintf(name, sizeof name, "loss %llu", (unsigned long long)counts[c]);
        same_bits((enum rig_kind)_i, name, loss_body, &counts[c]);
        snprintf(name, sizeof name, "product loss %llu", (unsigned long long)counts[c]);
        same_bits((enum rig_kind)_i, name, product_body, &counts[c]);
    }
}
END_TEST

static double truth(int kind, double x, double t)
{
    if (kind == KEEL_LOSS_MSE)
        return (x - t) * (x - t);
    if (kind == KEEL_LOSS_PRODUCT)
        return x * t;
    return fmax(x, 0) - x * t + log1p(exp(-fabs(x)));
}

START_TEST(values_and_gradients_are_near_the_truth)
{
    enum { COUNT = 5000 };
    float *x = random_floats(COUNT, 1, -9.0f, 9.0f), *t = random_floats(COUNT, 2, 0.0f, 1.0f);
    float *before = random_floats(1, 3, 0.5f, 1.0f);
    for (int kind = 0; kind < KEEL_LOSS_COUNT; kind++) {
        struct rig *rig = rig_shared(RIG_HOST);
        struct keel_loss op = build(rig, COUNT, kind, true);
        const float *loss = rig_result(rig, op.loss, 4), *dx = rig_result(rig, op.dx, COUNT * 4);
        double sum = (double)*before, largest = kind == KEEL_LOSS_MSE ? 20 : 1;
        for (int i = 0; i < COUNT; i++) {
            double u = (double)x[i], v = (double)t[i], h = 1e-5;
            double slope = (truth(kind, u + h, v) - truth(kind, u - h, v)) / (2 * h);
            sum += truth(kind, u, v) / COUNT;
            ck_assert_double_le(fabs((double)dx[i] * COUNT - slope), 1e-6 * largest);
        }
        ck_assert_double_le(fabs((double)*loss - sum), 1e-6 * sum);
    }
    free(x);
    free(t);
    free(before);
}
END_TEST

START_TEST(wrong_descriptors_are_refused_by_name)
{
    struct rig *rig = rig_shared(RIG_HOST);
    struct keel_loss op = {.count = 8,
                           .x = rig_bytes(rig, NULL, 32),
                           .targets = rig_bytes(rig, NULL, 32),
                           .scratch = rig_bytes(rig, NULL, 32),
                           .loss = rig_bytes(rig, NULL, 32)};
    ck_ok(keel_op_loss(rig->kernels, &op, &rig->list));
    keel_launch_list_fini(&rig->list);
    op.count = 0;
    ck_status(keel_op_loss(rig->kernels, &op, &rig->list), KEEL_INVALID);
    op.count = 9;
    ck_status(keel_op_loss(rig->kernels, &op, &rig->list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "bce: x holds 32 bytes, needs 36"));
    op.kind = KEEL_LOSS_COUNT;
    ck_status(keel_op_loss(rig->kernels, &op, &rig->list), KEEL_INVALID);
    ck_assert_uint_eq(rig->list.count, 0);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, losses_give_the_same_bits, 0, RIG_DEVICES);
    tcase_add_test(tc, values_and_gradients_are_near_the_truth);
    tcase_add_test(tc, wrong_descriptors_are_refused_by_name);
}

KEEL_TEST_MAIN("loss", cases, RIG_LIMIT_S)
