/* cross_entropy_test.c - loss and gradient of a softmax, at small vocabularies and at that of GPT-2. */
#include "op_fixture.h"

struct shape {
    uint32_t rows, vocab;
    bool gradient, in_place;
    float smoothing;
};
static const struct shape shapes[] = {{1, 1, true, false, 0},     {3, 17, true, true, 0},
                                      {37, 1009, true, false, 0}, {37, 1009, false, false, 0},
                                      {9, 50257, true, true, 0},  {4099, 5, true, false, 0}};
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
        .smoothing = s->smoothing,
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
    const double smoothing = _i == 0 ? 0.0 : 0.3;
    const struct shape s = {ROWS, VOCAB, true, false, (float)smoothing};
    struct rig *rig = rig_shared(RIG_HOST);
    cross_entropy_body(rig, &s);
    const float *loss = rig->results[0], *dlogits = rig->results[1];
    float *logits = random_floats(ROWS * VOCAB, 1, -6.0f, 6.0f);
    int32_t *targets = random_targets(ROWS, VOCAB);
    double want = 0.0, x[VOCAB], d[VOCAB];
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < VOCAB; i++)
            x[i] = (double)logits[row * VOCAB + i];
        want += (1.0 - smoothing) * true_loss(x, VOCAB, targets[row]);
        true_gradient(x, VOCAB, targets[row], d);
        d[targets[row]] += smoothing;
        for (int i = 0; i < VOCAB; i++) {
            want += smoothing / VOCAB * true_loss(x, VOCAB, i);
            d[i] = (d[i] - smoothing / VOCAB) * (double)SCALE;
        }
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

/* ---- slices of the vocabulary ---- */

/* 1,009 columns in seven slices, by hand; rows of ranks begin with slices 0, 3 and 6, whose nodes are 0-1, 2,
 * 3, 4-5 and 6. */
enum { SLICES = 7, RANKS = 3, NODES = 5 };
static const struct keel_slices all_of_seven = {0, SLICES, SLICES, VOCAB, 1};
static const uint32_t seventh[SLICES + 1] = {0, 144, 288, 432, 576, 720, 864, VOCAB};
static const uint32_t rank_slices[RANKS + 1] = {0, 3, 6, SLICES};
static const uint32_t node_slices[NODES + 1] = {0, 2, 3, 4, 6, SLICES};

static float sum_of_slice(const float *x, uint32_t count, float m)
{
    float lanes[16] = {0};
    for (uint32_t i = 0; i < count; i++)
        lanes[i % 16] += keel_canon_exp(x[i] - m);
    for (uint32_t span = 8; span > 0; span /= 2)
        for (uint32_t l = 0; l < span; l++)
            lanes[l] += lanes[l + span];
    return lanes[0];
}

/* ((0 + 1) + (2 + 3)) + ((4 + 5) + 6) */
START_TEST(slices_of_the_vocabulary_are_summed_in_the_tree)
{
    struct rig *rig = rig_shared((enum rig_kind)_i);
    float *logits = random_floats(ROWS * VOCAB, 1, -6.0f, 6.0f);
    int32_t *targets = random_targets(ROWS, VOCAB);
    struct keel_cross_entropy op = {
        .rows = ROWS, .vocab = VOCAB, .vocab_slices = all_of_seven, .scale = SCALE};
    op.logits = rig_bytes(rig, logits, sizeof(float) * ROWS * VOCAB);
    op.targets = rig_bytes(rig, targets, sizeof *targets * ROWS);
    op.row_loss = rig_bytes(rig, NULL, sizeof(float) * ROWS);
    op.dlogits = rig_bytes(rig, NULL, sizeof(float) * ROWS * VOCAB);
    ck_ok(keel_op_cross_entropy(rig->kernels, &op, &rig->list));
    rig_run(rig);
    const float *dlogits = rig_result(rig, op.dlogits, sizeof(float) * ROWS * VOCAB);
    for (int row = 0; row < ROWS; row++) {
        const float *x = logits + row * VOCAB, *d = dlogits + row * VOCAB;
        float m = x[0], s[SLICES];
        for (int i = 0; i < VOCAB; i++)
            m = x[i] > m ? x[i] : m;
        for (int i = 0; i < SLICES; i++)
            s[i] = sum_of_slice(x + seventh[i], seventh[i + 1] - seventh[i], m);
        const float sum = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + s[6]);
        const float share = keel_canon_divide(1.0f, sum);
        for (int i = 0; i < VOCAB; i++) {
            const float e = keel_canon_exp(x[i] - m) * share;
            ck_assert(d[i] == (i == targets[row] ? (e - 1.0f) * SCALE : e * SCALE));
        }
    }
    free(logits);
    free(targets);
}
END_TEST

/* The columns of a rank, of all logits. */
static struct keel_buffer *columns_of(struct rig *rig, const float *logits, uint32_t first, uint32_t columns)
{
    float *own = malloc(sizeof *own * ROWS * columns);
    ck_assert_ptr_nonnull(own);
    for (uint32_t row = 0; row < ROWS; row++)
        memcpy(own + row * columns, logits + row * VOCAB + first, sizeof *own * columns);
    struct keel_buffer *buffer = rig_bytes(rig, own, sizeof *own * ROWS * columns);
    free(own);
    return buffer;
}

static void run_now(struct rig *rig)
{
    rig_run(rig);
    keel_launch_list_fini(&rig->list);
}

/* What a result holds, without keeping it. */
static void read_into(struct rig *rig, struct keel_buffer *buffer, void *out, uint64_t bytes)
{
    memcpy(out, rig_result(rig, buffer, bytes), bytes);
    free(rig->results[--rig->result_count]);
}

struct split { /* of three ranks */
    struct keel_buffer *logits[RANKS], *targets;
    float maxima[ROWS], sums[ROWS];
    uint32_t bits[ROWS];
};

static void largest_of_ranks(struct rig *rig, struct split *split)
{
    for (int rank = 0; rank < RANKS; rank++) {
        const uint32_t first = seventh[rank_slices[rank]], end = seventh[rank_slices[rank + 1]];
        struct keel_cross_entropy_max op = {
            .rows = ROWS, .columns = end - first, .first_column = first, .vocab = VOCAB};
        float maxima[ROWS];
        uint32_t bits[ROWS];
        op.logits = split->logits[rank];
        op.targets = split->targets;
        op.maxima = rig_bytes(rig, NULL, sizeof maxima);
        op.target_bits = rig_bytes(rig, NULL, sizeof bits);
        ck_ok(keel_op_cross_entropy_max(rig->kernels, &op, &rig->list));
        run_now(rig);
        read_into(rig, op.maxima, maxima, sizeof maxima);
        read_into(rig, op.target_bits, bits, sizeof bits);
        for (int row = 0; row < ROWS; row++) {
            split->maxima[row] =
                rank == 0 || maxima[row] > split->maxima[row] ? maxima[row] : split->maxima[row];
            split->bits[row] = rank == 0 ? bits[row] : split->bits[row] + bits[row];
        }
    }
}

/* Nodes 0-1, 2, 3, 4-5, 6; the logits become exponentials. */
static void sums_of_ranks(struct rig *rig, struct split *split)
{
    float sums[NODES][ROWS];
    struct keel_buffer *maxima = rig_bytes(rig, split->maxima, sizeof split->maxima);
    for (int node = 0, rank = 0; node < NODES; node++) {
        const uint32_t first = node_slices[node], end = node_slices[node + 1];
        rank += first == rank_slices[rank + 1];
        const uint32_t from = seventh[rank_slices[rank]];
        struct keel_cross_entropy_part op = {.rows = ROWS,
                                             .columns = seventh[rank_slices[rank + 1]] - from,
                                             .at = seventh[first] - from,
                                             .count = seventh[end] - seventh[first],
                                             .vocab_slices = {first, end - first, SLICES, VOCAB, 1}};
        op.logits = op.exponentials = split->logits[rank];
        op.maxima = maxima;
        op.sums = rig_bytes(rig, NULL, sizeof sums[0]);
        ck_ok(keel_op_cross_entropy_part(rig->kernels, &op, &rig->list));
        run_now(rig);
        read_into(rig, op.sums, sums[node], sizeof sums[0]);
    }
    for (int row = 0; row < ROWS; row++)
        split->sums[row] = (sums[0][row] + (sums[1][row] + sums[2][row])) + (sums[3][row] + sums[4][row]);
}

START_TEST(ranks_with_slices_have_the_bits_of_one_with_all)
{
    struct rig *rig = rig_shared((enum rig_kind)_i);
    float *logits = random_floats(ROWS * VOCAB, 1, -6.0f, 6.0f);
    int32_t *targets = random_targets(ROWS, VOCAB);
    static struct split split;
    targets[3] = 288; /* the last rank's neighbour's first, and its own last */
    targets[4] = 863;
    targets[5] = -1;
    targets[6] = VOCAB;
    struct keel_cross_entropy whole = {
        .rows = ROWS, .vocab = VOCAB, .vocab_slices = all_of_seven, .scale = SCALE};
    whole.logits = whole.dlogits = rig_bytes(rig, logits, sizeof(float) * ROWS * VOCAB);
    whole.targets = split.targets = rig_bytes(rig, targets, sizeof *targets * ROWS);
    whole.row_loss = rig_bytes(rig, NULL, sizeof(float) * ROWS);
    ck_ok(keel_op_cross_entropy(rig->kernels, &whole, &rig->list));
    run_now(rig);
    const float *wanted = rig_result(rig, whole.dlogits, sizeof(float) * ROWS * VOCAB);
    const float *losses = rig_result(rig, whole.row_loss, sizeof(float) * ROWS);
    for (int rank = 0; rank < RANKS; rank++) {
        const uint32_t first = seventh[rank_slices[rank]];
        split.logits[rank] = columns_of(rig, logits, first, seventh[rank_slices[rank + 1]] - first);
    }
    largest_of_ranks(rig, &split);
    sums_of_ranks(rig, &split);
    struct keel_cross_entropy_end op = {
        .rows = ROWS, .vocab = VOCAB, .scale = SCALE, .targets = split.targets};
    op.maxima = rig_bytes(rig, split.maxima, sizeof split.maxima);
    op.sums = rig_bytes(rig, split.sums, sizeof split.sums);
    op.target_bits = rig_bytes(rig, split.bits, sizeof split.bits);
    op.row_loss = rig_bytes(rig, NULL, sizeof(float) * ROWS);
    for (int rank = 0; rank < RANKS; rank++) {
        op.first_column = seventh[rank_slices[rank]];
        op.columns = seventh[rank_slices[rank + 1]] - op.first_column;
        op.dlogits = split.logits[rank];
        ck_ok(keel_op_cross_entropy_end(rig->kernels, &op, &rig->list));
        run_now(rig);
        float *d = malloc(sizeof *d * ROWS * op.columns), loss[ROWS];
        ck_assert_ptr_nonnull(d);
        read_into(rig, op.dlogits, d, sizeof *d * ROWS * op.columns);
        read_into(rig, op.row_loss, loss, sizeof loss);
        for (uint32_t row = 0; row < ROWS; row++) {
            const float *want = wanted + row * VOCAB + op.first_column;
            for (uint32_t c = 0; c < op.columns; c++)
                ck_assert(row == 5 || row == 6 ? isnan(d[row * op.columns + c]) && isnan(want[c])
                                               : memcmp(&d[row * op.columns + c], &want[c], sizeof *d) == 0);
            ck_assert(row == 5 || row == 6 ? isnan(loss[row]) && isnan(losses[row])
                                           : memcmp(&loss[row], &losses[row], sizeof *d) == 0);
        }
        free(d);
    }
    free(logits);
    free(targets);
}
END_TEST

START_TEST(columns_that_are_none_of_the_vocabulary_are_refused)
{
    struct rig *rig = rig_shared(RIG_HOST);
    struct keel_buffer *b[8];
    for (int i = 0; i < 8; i++)
        b[i] = rig_bytes(rig, NULL, 4096);
    const struct keel_cross_entropy_max max = {4, 9, 2, 10, b[0], b[1], b[2], b[3]};
    ck_status(keel_op_cross_entropy_max(rig->kernels, &max, &rig->list), KEEL_INVALID);
    struct keel_cross_entropy_part part = {.rows = 4, .columns = 9, .at = 3, .count = 6};
    part.logits = b[0];
    part.maxima = b[1];
    part.sums = b[2];
    ck_status(keel_op_cross_entropy_part(rig->kernels, &part, &rig->list), KEEL_INVALID); /* no slices */
    part.vocab_slices = (struct keel_slices){1, 2, 4, 12, 1};
    ck_status(keel_op_cross_entropy_part(rig->kernels, &part, &rig->list), KEEL_INVALID); /* no node */
    part.vocab_slices.first = 2;
    ck_ok(keel_op_cross_entropy_part(rig->kernels, &part, &rig->list));
    part.at = 4;
    ck_status(keel_op_cross_entropy_part(rig->kernels, &part, &rig->list), KEEL_INVALID);
    const struct keel_cross_entropy_end end = {4,    9,    2,    10,   1.0f, b[0], b[1],
                                               b[2], b[3], b[4], b[5], b[6], NULL};
    ck_status(keel_op_cross_entropy_end(rig->kernels, &end, &rig->list), KEEL_INVALID);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, slices_of_the_vocabulary_are_summed_in_the_tree, 0, RIG_HOST + 1);
    tcase_add_loop_test(tc, ranks_with_slices_have_the_bits_of_one_with_all, 0, RIG_HOST + 1);
    tcase_add_test(tc, columns_that_are_none_of_the_vocabulary_are_refused);
    tcase_add_loop_test(tc, a_target_out_of_range_makes_its_row_nan_and_no_other, 0, RIG_HOST + 1);
    tcase_add_loop_test(tc, cross_entropy_gives_the_same_bits, 0, RIG_DEVICES);
    tcase_add_test(tc, the_gradient_formula_is_the_finite_difference);
    tcase_add_loop_test(tc, cross_entropy_is_near_the_truth, 0, 2);
    tcase_add_loop_test(tc, a_loss_without_a_gradient_leaves_its_logits_alone, 0, RIG_HOST + 1);
    tcase_add_test(tc, a_nan_among_the_logits_reaches_the_loss);
}

KEEL_TEST_MAIN("cross_entropy", cases, RIG_LIMIT_S)
