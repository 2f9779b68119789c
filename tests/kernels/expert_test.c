/* expert_test.c - mixture of experts: same bits everywhere, each row with its expert, who is full turns away
 * the last, gradients that are the finite differences. */
#include <keel/table_ops.h>

#include "op_fixture.h"

struct shape {
    uint32_t rows, n, k, experts, capacity;
};
static const struct shape shapes[] = {{1, 1, 1, 1, 1},    {67, 5, 1, 4, 13},     {131, 130, 2, 5, 131},
                                      {97, 3, 3, 301, 2}, {2111, 16, 2, 8, 300}, {50, 7, 2, 70000, 1}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Two in three choose one of the first two experts; some choose none that there is. The caller frees. */
static int32_t *some_choices(const struct shape *s)
{
    const struct keel_control control = {.seed_lo = 5};
    int32_t *choice = malloc((size_t)s->rows * s->k * sizeof *choice);
    ck_assert_ptr_nonnull(choice);
    for (uint32_t i = 0; i < s->rows * s->k; i++) {
        const uint32_t word = keel_random_u32(&control, 1, i);
        choice[i] = (int32_t)((word % 3 != 0 ? (word >> 8) % 2 : word >> 8) % (s->experts + 2)) - 1;
    }
    return choice;
}

/* Rows to their experts, there and back with weights, and all gradients. */
static void moe_body(struct rig *rig, const void *shape)
{
    const struct shape *s = shape;
    const uint64_t cells = (uint64_t)s->rows * s->n, choices = (uint64_t)s->rows * s->k;
    const uint32_t places = keel_dispatch_rows(s->rows, s->k, s->experts, s->capacity);
    const uint64_t sorted_bytes = (uint64_t)places * s->n * 4;
    int32_t *choice = some_choices(s);
    struct keel_dispatch go = {
        .rows = s->rows, .n = s->n, .k = s->k, .experts = s->experts, .capacity = s->capacity};
    go.choice = rig_bytes(rig, choice, choices * 4);
    go.x = rig_random(rig, cells, 1, -1.0f, 1.0f);
    go.sorted = rig_random(rig, (uint64_t)places * s->n, 8, -1.0f, 1.0f);
    go.offsets = rig_bytes(rig, NULL, (s->experts + 1) * 4);
    go.place = rig_bytes(rig, NULL, choices * 4);
    go.workspace = rig_bytes(rig, NULL, keel_dispatch_workspace_bytes(&go));
    struct keel_embedding_bag combine = {
        .bags = s->rows, .size = s->k, .rows = places, .n = s->n, .ids = go.place, .table = go.sorted};
    combine.weights = rig_random(rig, choices, 2, -1.0f, 1.0f);
    combine.y = rig_bytes(rig, NULL, cells * 4);
    struct keel_combine_grad grad = {.rows = s->rows, .n = s->n, .k = s->k, .places = places, .y = go.sorted};
    grad.place = go.place;
    grad.weights = combine.weights;
    grad.dout = rig_random(rig, cells, 3, -1.0f, 1.0f);
    grad.dy = rig_random(rig, (uint64_t)places * s->n, 9, -1.0f, 1.0f);
    grad.dweights = rig_bytes(rig, NULL, choices * 4);
    grad.workspace = rig_bytes(rig, NULL, places * 4);
    struct keel_expert_bias_grad bias = {.rows = places, .n = s->n, .experts = s->experts, .x = grad.dy};
    bias.offsets = go.offsets;
    bias.out = rig_random(rig, (uint64_t)s->experts * s->n, 4, -1.0f, 1.0f);
    struct keel_embedding_bag back = combine; /* the gradient of dispatch */
    back.table = grad.dy;
    back.weights = NULL;
    back.y = rig_bytes(rig, NULL, cells * 4);
    ck_ok(keel_op_dispatch(rig->kernels, &go, &rig->list));
    ck_ok(keel_op_embedding_bag(rig->kernels, &combine, &rig->list));
    ck_ok(keel_op_combine_grad(rig->kernels, &grad, &rig->list));
    ck_ok(keel_op_embedding_bag(rig->kernels, &back, &rig->list));
    ck_ok(keel_op_expert_bias_grad(rig->kernels, &bias, &rig->list));
    rig_run(rig);
    rig_result(rig, go.sorted, sorted_bytes);
    rig_result(rig, go.offsets, (s->experts + 1) * 4);
    rig_result(rig, go.place, choices * 4);
    rig_result(rig, combine.y, cells * 4);
    rig_result(rig, grad.dy, sorted_bytes);
    rig_result(rig, grad.dweights, choices * 4);
    rig_result(rig, back.y, cells * 4);
    rig_result(rig, bias.out, (uint64_t)s->experts * s->n * 4);
    free(choice);
}

START_TEST(experts_give_the_same_bits)
{
    for (int i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        char name[64];
        snprintf(name, sizeof name, "expert %ux%u-%u of %u by %u", s->rows, s->n, s->k, s->experts,
                 s->capacity);
        same_bits((enum rig_kind)_i, name, moe_body, s);
    }
}
END_TEST

/* Where a plain loop over the choices in their order puts each; fills offsets, returns place (heap). */
static int32_t *plain_places(const struct shape *s, const int32_t *choice, int32_t *offsets)
{
    const uint32_t count = s->rows * s->k;
    int32_t *place = malloc(count * sizeof *place), next = 0;
    ck_assert_ptr_nonnull(place);
    for (uint32_t i = 0; i < count; i++)
        place[i] = -1;
    for (uint32_t e = 0; e < s->experts; e++) {
        offsets[e] = next;
        for (uint32_t i = 0; i < count; i++) {
            if (choice[i] == (int32_t)e && next - offsets[e] < (int32_t)s->capacity)
                place[i] = next++;
        }
    }
    offsets[s->experts] = next;
    return place;
}

START_TEST(each_row_goes_to_its_expert_in_order_until_that_is_full)
{
    for (int t = 0; t < SHAPES; t++) {
        const struct shape *s = &shapes[t];
        const uint32_t n = s->n, places = keel_dispatch_rows(s->rows, s->k, s->experts, s->capacity);
        struct rig *rig = rig_shared(RIG_HOST);
        moe_body(rig, s);
        const float *sorted = rig->results[0];
        int32_t *choice = some_choices(s), *offsets = malloc((s->experts + 1) * sizeof *offsets);
        ck_assert_ptr_nonnull(offsets);
        int32_t *place = plain_places(s, choice, offsets);
        float *x = random_floats((uint64_t)s->rows * n, 1, -1.0f, 1.0f);
        ck_assert_mem_eq(rig->results[1], offsets, (s->experts + 1) * sizeof *offsets);
        ck_assert_mem_eq(rig->results[2], place, (size_t)s->rows * s->k * sizeof *place);
        for (uint32_t i = 0; i < s->rows * s->k; i++)
            ck_assert(place[i] < 0 ||
                      memcmp(sorted + (size_t)place[i] * n, x + (size_t)(i / s->k) * n, n * 4) == 0);
        for (size_t i = (size_t)offsets[s->experts] * n; i < (size_t)places * n; i++)
            ck_assert(sorted[i] == 0.0f);
        free(choice);
        free(offsets);
        free(place);
        free(x);
    }
}
END_TEST

START_TEST(combining_and_all_gradients_are_near_the_truth)
{
    for (int t = 0; t < SHAPES; t++) {
        const struct shape *s = &shapes[t];
        const size_t n = s->n, cells = s->rows * n, choices = (size_t)s->rows * s->k;
        const size_t places = keel_dispatch_rows(s->rows, s->k, s->experts, s->capacity);
        struct rig *rig = rig_shared(RIG_HOST);
        moe_body(rig, s);
        const int32_t *place = rig->results[2];
        float *x = random_floats(cells, 1, -1.0f, 1.0f), *w = random_floats(choices, 2, -1.0f, 1.0f);
        float *dout = random_floats(cells, 3, -1.0f, 1.0f);
        double *out = calloc(cells, 8), *dy = calloc(places * n, 8), *dw = calloc(choices, 8);
        double *dx = calloc(cells, 8), *bias = calloc(s->experts * n, 8);
        float *old = random_floats(s->experts * n, 4, -1.0f, 1.0f);
        int32_t *choice = some_choices(s);
        ck_assert(out != NULL && dy != NULL && dw != NULL && dx != NULL && bias != NULL);
        for (size_t i = 0; i < s->experts * n; i++)
            bias[i] = (double)old[i];
        for (size_t i = 0; i < choices; i++) {
            const size_t row = i / s->k * n;
            for (size_t c = 0; c < n && place[i] >= 0; c++) { /* the experts leave each row as it is */
                out[row + c] += (double)w[i] * (double)x[row + c];
                dw[i] += (double)x[row + c] * (double)dout[row + c];
                dy[(size_t)place[i] * n + c] = (double)w[i] * (double)dout[row + c];
                dx[row + c] += (double)w[i] * (double)dout[row + c];
                bias[(size_t)choice[i] * n + c] += (double)w[i] * (double)dout[row + c];
            }
        }
        ck_assert_double_le(relative_error(rig->results[3], out, cells), 1e-6);
        ck_assert_double_le(relative_error(rig->results[4], dy, places * n), 1e-6);
        ck_assert_double_le(relative_error(rig->results[5], dw, choices), 1e-6);
        ck_assert_double_le(relative_error(rig->results[6], dx, cells), 1e-6);
        ck_assert_double_le(relative_error(rig->results[7], bias, s->experts * n), 1e-6);
        free(x), free(w), free(dout), free(out), free(dy), free(dw), free(dx);
        free(bias), free(old), free(choice);
    }
}
END_TEST

/* ---- balance ---- */

static void balance_body(struct rig *rig, const void *shape)
{
    const struct shape *s = shape;
    const uint64_t cells = (uint64_t)s->rows * s->experts;
    int32_t *choice = some_choices(s);
    struct keel_balance_loss op = {.rows = s->rows, .experts = s->experts, .k = s->k, .scale = 0.01f};
    op.probabilities = rig_random(rig, cells, 1, 0.0f, 1.0f);
    op.choice = rig_bytes(rig, choice, (uint64_t)s->rows * s->k * 4);
    op.loss = rig_random(rig, 1, 2, 0.5f, 1.0f);
    op.scratch = rig_bytes(rig, NULL, 2 * (uint64_t)s->experts * 4);
    op.dprobabilities = rig_bytes(rig, NULL, cells * 4);
    const float grown = 0x1.8p15f; /* as a scale of 2^15 looks halfway to the next */
    struct keel_balance_loss scaled = op;
    scaled.loss_scale = rig_bytes(rig, &grown, sizeof grown);
    scaled.loss = rig_random(rig, 1, 2, 0.5f, 1.0f);
    scaled.dprobabilities = rig_bytes(rig, NULL, cells * 4);
    struct keel_balance_loss alone = op;
    alone.dprobabilities = NULL;
    alone.loss = rig_random(rig, 1, 2, 0.5f, 1.0f);
    ck_ok(keel_op_balance_loss(rig->kernels, &op, &rig->list));
    ck_ok(keel_op_balance_loss(rig->kernels, &alone, &rig->list));
    ck_ok(keel_op_balance_loss(rig->kernels, &scaled, &rig->list));
    rig_run(rig);
    rig_result(rig, op.loss, 4);
    rig_result(rig, op.dprobabilities, cells * 4);
    ck_assert_mem_eq(rig_result(rig, alone.loss, 4), rig->results[0], 4);
    ck_assert_mem_eq(rig_result(rig, scaled.loss, 4), rig->results[0], 4);
    const float *plain = rig->results[1], *larger = rig_result(rig, scaled.dprobabilities, cells * 4);
    for (uint64_t i = 0; i < cells; i++)
        ck_assert(larger[i] == plain[i] * 0x1p15f);
    free(choice);
}

static const struct shape balanced[] = {
    {1, 1, 1, 1, 1}, {67, 1, 1, 5, 1}, {131, 1, 2, 19, 1}, {515, 1, 2, 64, 1}};

START_TEST(the_balance_loss_gives_the_same_bits)
{
    for (int i = 0; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "balance %ux%u-%u", balanced[i].rows, balanced[i].experts, balanced[i].k);
        same_bits((enum rig_kind)_i, name, balance_body, &balanced[i]);
    }
}
END_TEST

/* 0.01 * experts * sum of f P, as the paper has it. */
static double balance(const double *p, const int32_t *choice, const struct shape *s)
{
    double sum = 0;
    for (uint32_t e = 0; e < s->experts; e++) {
        double taken = 0, column = 0;
        for (uint32_t r = 0; r < s->rows; r++)
            column += p[r * s->experts + e] / s->rows;
        for (uint32_t i = 0; i < s->rows * s->k; i++)
            taken += choice[i] == (int32_t)e;
        sum += taken / (s->rows * s->k) * column;
    }
    return (double)0.01f * s->experts * sum;
}

START_TEST(the_balance_loss_and_its_gradient_are_near_the_truth)
{
    const struct shape *s = &balanced[1];
    enum { CELLS = 67 * 5 };
    struct rig *rig = rig_shared(RIG_HOST);
    balance_body(rig, s);
    float *values = random_floats(CELLS, 1, 0.0f, 1.0f), *before = random_floats(1, 2, 0.5f, 1.0f);
    int32_t *choice = some_choices(s);
    double p[CELLS], slope[CELLS];
    for (int i = 0; i < CELLS; i++)
        p[i] = (double)values[i];
    const double want = (double)*before + balance(p, choice, s);
    ck_assert_double_le(relative_error(rig->results[0], &want, 1), 1e-6);
    for (int i = 0; i < CELLS; i++) {
        double at[4];
        for (int k = 0; k < 4; k++) {
            const double kept = p[i];
            p[i] += (double[]){2, 1, -1, -2}[k];
            at[k] = balance(p, choice, s);
            p[i] = kept;
        }
        slope[i] = (8 * (at[1] - at[2]) - (at[0] - at[3])) / 12;
    }
    ck_assert_double_le(relative_error(rig->results[1], slope, CELLS), 1e-6);
    free(values);
    free(before);
    free(choice);
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
    struct keel_dispatch go = {.rows = 4, .n = 2, .k = 1, .experts = 2, .x = small, .choice = small};
    refused(keel_op_dispatch(rig->kernels, &go, &rig->list),
            "dispatch: rows [4, 2], 1 choices of 2 experts with room for 0");
    go.capacity = 4;
    go.sorted = go.offsets = go.place = go.workspace = small;
    refused(keel_op_dispatch(rig->kernels, &go, &rig->list), "dispatch: workspace holds 32 bytes");
    go.n = 3;
    refused(keel_op_dispatch(rig->kernels, &go, &rig->list), "dispatch: x holds 32 bytes, needs 48");
    struct keel_combine_grad grad = {.rows = 4, .n = 2, .k = 1};
    refused(keel_op_combine_grad(rig->kernels, &grad, &rig->list),
            "combine_grad: rows [4, 2], 1 choices of 0 places");
    struct keel_expert_bias_grad bias = {.rows = 4, .n = 2, .x = small, .offsets = small, .out = small};
    refused(keel_op_expert_bias_grad(rig->kernels, &bias, &rig->list),
            "expert_bias_grad: rows [4, 2] of 0 experts");
    struct keel_balance_loss loss = {.rows = 4, .experts = 3, .k = 1, .probabilities = small};
    refused(keel_op_balance_loss(rig->kernels, &loss, &rig->list),
            "balance_loss: probabilities holds 32 bytes");
    loss.rows = 0;
    refused(keel_op_balance_loss(rig->kernels, &loss, &rig->list), "balance_loss: probabilities [0, 3]");
    ck_assert_uint_eq(rig->list.count, 0);
}
END_TEST

/* Turns a bit in one of three words; which bit goes round with `turn`. */
static void damage(struct rig *rig, struct keel_buffer *buffer, uint32_t words, uint32_t turn)
{
    rig->result_count = 0;
    uint32_t *data = rig_result(rig, buffer, (uint64_t)words * 4);
    for (uint32_t i = turn % 3; i < words; i += 3)
        data[i] ^= 1U << ((i + turn) % 32);
    ck_ok(keel_queue_write(rig->queue, buffer, 0, data, (uint64_t)words * 4, NULL, NULL));
    ck_ok(keel_queue_finish(rig->queue, keel_deadline_after_ns(RIG_LIMIT_S * KEEL_NS_PER_S)));
    free(data);
    rig->result_count = 0;
}

/* Keys, positions, counts, offsets: all that one launch leaves for the next. */
START_TEST(flipped_bits_between_launches_lead_nowhere_outside)
{
    const struct shape s = {131, 17, 2, 5, 131};
    struct rig *rig = rig_shared((enum rig_kind)_i);
    int32_t *choice = some_choices(&s);
    const uint32_t count = s.rows * s.k, places = keel_dispatch_rows(s.rows, s.k, s.experts, s.capacity);
    struct keel_dispatch go = {
        .rows = s.rows, .n = s.n, .k = s.k, .experts = s.experts, .capacity = s.capacity};
    go.choice = rig_bytes(rig, choice, count * 4);
    go.x = rig_random(rig, s.rows * s.n, 1, -1.0f, 1.0f);
    go.sorted = rig_bytes(rig, NULL, places * s.n * 4);
    go.offsets = rig_bytes(rig, NULL, (s.experts + 1) * 4);
    go.place = rig_bytes(rig, NULL, count * 4);
    go.workspace = rig_bytes(rig, NULL, keel_dispatch_workspace_bytes(&go));
    struct keel_scatter_add add = {
        .rows = s.experts, .n = s.n, .count = count, .per = s.k, .ids = go.choice, .x = go.x};
    add.table = rig_bytes(rig, NULL, s.experts * s.n * 4);
    add.workspace = go.workspace;
    struct keel_expert_bias_grad bias = {.rows = places, .n = s.n, .experts = s.experts, .x = go.sorted};
    bias.offsets = go.offsets;
    bias.out = rig_bytes(rig, NULL, s.experts * s.n * 4);
    ck_ok(keel_op_dispatch(rig->kernels, &go, &rig->list));
    ck_ok(keel_op_expert_bias_grad(rig->kernels, &bias, &rig->list));
    ck_ok(keel_op_scatter_add(rig->kernels, &add, &rig->list));
    struct keel_launch *all = rig->list.items;
    const uint32_t launches = rig->list.count;
    for (uint32_t turn = 0; turn < 8; turn++) {
        for (uint32_t i = 0; i < launches; i++) {
            rig->list.items = all + i;
            rig->list.count = 1;
            rig_run(rig);
            damage(rig, go.workspace, (uint32_t)(keel_dispatch_workspace_bytes(&go) / 4), turn);
            damage(rig, go.offsets, s.experts + 1, turn);
        }
        rig->list.items = all;
        rig->list.count = launches;
        int32_t *place = rig_result(rig, go.place, count * 4);
        for (uint32_t i = 0; i < count; i++)
            ck_assert(place[i] >= -1 && place[i] < (int32_t)places);
        free(place);
        rig->result_count = 0;
    }
    ck_assert_mem_eq(rig_result(rig, go.choice, count * 4), choice, count * 4);
    free(choice);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, flipped_bits_between_launches_lead_nowhere_outside, 0, RIG_HOST + 1);
    tcase_add_loop_test(tc, experts_give_the_same_bits, 0, RIG_DEVICES);
    tcase_add_test(tc, each_row_goes_to_its_expert_in_order_until_that_is_full);
    tcase_add_test(tc, combining_and_all_gradients_are_near_the_truth);
    tcase_add_loop_test(tc, the_balance_loss_gives_the_same_bits, 0, RIG_DEVICES);
    tcase_add_test(tc, the_balance_loss_and_its_gradient_are_near_the_truth);
    tcase_add_test(tc, wrong_descriptors_are_refused_by_name);
}

KEEL_TEST_MAIN("expert", cases, RIG_LIMIT_S)
