/* table_test.c - gather, scatter-add, embedding bags, pairwise dot: same bits everywhere, near the truth; ids
 * that are out of range touch nothing. */
#include <keel/table_ops.h>

#include "op_fixture.h"

/* Ids in [-2, rows + 1], one in two from the first eight. The caller frees. */
static int32_t *some_ids(uint64_t count, uint32_t rows)
{
    const struct keel_control control = {.seed_lo = 11};
    int32_t *ids = malloc(count * sizeof *ids);
    ck_assert_ptr_nonnull(ids);
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t word = keel_random_u32(&control, 1, i);
        ids[i] = (int32_t)(((word & 1U) != 0 ? word >> 8 : (word >> 8) % 8) % (rows + 4)) - 2;
    }
    return ids;
}

static bool valid(int32_t id, uint32_t rows)
{
    return id >= 0 && (uint32_t)id < rows;
}

/* ---- gather, scatter-add, bags: ids [bags, size], table [rows, n] ---- */

struct shape {
    uint32_t bags, size, rows, n;
};
static const struct shape shapes[] = {{1, 1, 1, 1},     {17, 1, 3, 5},      {7, 3, 11, 130},
                                      {131, 5, 300, 1}, {4099, 1, 5003, 3}, {1201, 7, 70001, 16}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void table_body(struct rig *rig, const void *shape)
{
    const struct shape *s = shape;
    const uint32_t count = s->bags * s->size;
    const uint64_t cells = (uint64_t)s->rows * s->n, out = (uint64_t)s->bags * s->n;
    int32_t *ids = some_ids(count, s->rows);
    struct keel_gather take = {
        .rows = s->rows, .n = s->n, .count = count, .ids = rig_bytes(rig, ids, count * 4)};
    take.x = rig_random(rig, cells, 1, -1.0f, 1.0f);
    take.y = rig_bytes(rig, NULL, (uint64_t)count * s->n * 4);
    struct keel_embedding_bag bag = {
        .bags = s->bags, .size = s->size, .rows = s->rows, .n = s->n, .ids = take.ids, .table = take.x};
    bag.y = rig_bytes(rig, NULL, out * 4);
    struct keel_embedding_bag weighed = bag;
    weighed.weights = rig_random(rig, count, 2, -1.0f, 1.0f);
    weighed.y = rig_bytes(rig, NULL, out * 4);
    struct keel_scatter_add add = {
        .rows = s->rows, .n = s->n, .count = count, .per = s->size, .ids = take.ids};
    add.x = rig_random(rig, out, 3, -1.0f, 1.0f);
    add.table = rig_random(rig, cells, 4, -1.0f, 1.0f);
    add.workspace = rig_bytes(rig, NULL, keel_sort_workspace_bytes(count));
    ck_ok(keel_op_gather(rig->kernels, &take, &rig->list));
    ck_ok(keel_op_embedding_bag(rig->kernels, &bag, &rig->list));
    ck_ok(keel_op_embedding_bag(rig->kernels, &weighed, &rig->list));
    ck_ok(keel_op_scatter_add(rig->kernels, &add, &rig->list));
    rig_run(rig);
    rig_result(rig, take.y, (uint64_t)count * s->n * 4);
    rig_result(rig, bag.y, out * 4);
    rig_result(rig, weighed.y, out * 4);
    rig_result(rig, add.table, cells * 4);
    free(ids);
}

START_TEST(rows_by_number_give_the_same_bits)
{
    for (int i = 0; i < SHAPES; i++) {
        char name[64];
        snprintf(name, sizeof name, "table %ux%u of %ux%u", shapes[i].bags, shapes[i].size, shapes[i].rows,
                 shapes[i].n);
        same_bits((enum rig_kind)_i, name, table_body, &shapes[i]);
    }
}
END_TEST

/* What shape s must give: gathered rows and bags exactly as the order of the sums says, weighed bags and the
 * table near the truth. */
static void check_table(const struct shape *s)
{
    const uint32_t count = s->bags * s->size;
    const size_t n = s->n, cells = s->rows * n, out = s->bags * n;
    struct rig *rig = rig_shared(RIG_HOST);
    table_body(rig, s);
    const float *taken = rig->results[0], *bag = rig->results[1], *table = rig->results[3];
    int32_t *ids = some_ids(count, s->rows);
    float *x = random_floats(cells, 1, -1.0f, 1.0f), *w = random_floats(count, 2, -1.0f, 1.0f);
    float *dy = random_floats(out, 3, -1.0f, 1.0f), *old = random_floats(cells, 4, -1.0f, 1.0f);
    double *weighed = calloc(out, sizeof *weighed), *want = malloc(cells * sizeof *want);
    float *sum = calloc(out, sizeof *sum);
    bool *used = calloc(s->rows, sizeof *used);
    ck_assert(weighed != NULL && want != NULL && sum != NULL && used != NULL);
    for (size_t i = 0; i < cells; i++)
        want[i] = (double)old[i];
    for (uint32_t i = 0; i < count; i++) {
        for (size_t c = 0; c < n; c++) {
            const size_t to = i / s->size * n + c,
                         from = (size_t)(valid(ids[i], s->rows) ? ids[i] : 0) * n + c;
            ck_assert(taken[i * n + c] == (valid(ids[i], s->rows) ? x[from] : 0.0f));
            if (!valid(ids[i], s->rows))
                continue;
            used[ids[i]] = true;
            sum[to] += x[from];
            weighed[to] += (double)w[i] * (double)x[from];
            want[from] += (double)dy[to];
        }
    }
    ck_assert_mem_eq(bag, sum, out * sizeof *sum);
    ck_assert_double_le(relative_error(rig->results[2], weighed, out), 1e-6);
    ck_assert_double_le(relative_error(table, want, cells), 1e-6);
    for (uint32_t v = 0; v < s->rows; v++)
        ck_assert(used[v] || memcmp(table + v * n, old + v * n, n * sizeof(float)) == 0);
    free(ids), free(x), free(w), free(dy), free(old), free(weighed), free(want), free(sum), free(used);
}

START_TEST(rows_are_those_of_their_numbers_and_rows_that_do_not_occur_keep_their_bits)
{
    for (int i = 0; i < SHAPES; i++)
        check_table(&shapes[i]);
}
END_TEST

/* 1 + 2^-24 - 1: in ascending order of positions the middle is lost, in any other it is not. */
START_TEST(sources_of_one_row_are_added_in_ascending_order)
{
    enum { COUNT = 5000 };
    static int32_t ids[COUNT];
    static float x[COUNT];
    for (int i = 0; i < COUNT; i++)
        ids[i] = i % 3 == 0 ? 7 : i;
    x[0] = 1.0f;
    x[2400] = 0x1p-24f;
    x[4998] = -1.0f;
    const float zeros[COUNT] = {0};
    for (int kind = 0; kind <= RIG_HOST; kind++) {
        struct rig *rig = rig_shared((enum rig_kind)kind);
        struct keel_scatter_add op = {.rows = COUNT, .n = 1, .count = COUNT, .per = 1};
        op.ids = rig_bytes(rig, ids, sizeof ids);
        op.x = rig_bytes(rig, x, sizeof x);
        op.table = rig_bytes(rig, NULL, sizeof x);
        op.workspace = rig_bytes(rig, NULL, keel_sort_workspace_bytes(COUNT));
        ck_ok(keel_op_scatter_add(rig->kernels, &op, &rig->list));
        rig_run(rig);
        ck_assert_mem_eq(rig_result(rig, op.table, sizeof x), zeros, sizeof zeros);
    }
}
END_TEST

/* ---- pairs ---- */

struct pairs {
    uint32_t batch, f, n;
};
static const struct pairs samples[] = {{1, 2, 1}, {3, 7, 67}, {5, 27, 16}, {2, 41, 131}, {67, 3, 5}};
enum { SAMPLES = sizeof samples / sizeof samples[0] };

static void pairs_body(struct rig *rig, const void *shape)
{
    const struct pairs *s = shape;
    const uint64_t cells = (uint64_t)s->batch * s->f * s->n,
                   dots = (uint64_t)s->batch * s->f * (s->f - 1) / 2;
    struct keel_pairwise_dot op = {.batch = s->batch, .f = s->f, .n = s->n};
    op.x = rig_random(rig, cells, 1, -1.0f, 1.0f);
    op.y = rig_bytes(rig, NULL, dots * 4);
    struct keel_pairwise_dot_grad grad = {.batch = s->batch, .f = s->f, .n = s->n, .x = op.x};
    grad.dy = rig_random(rig, dots, 2, -1.0f, 1.0f);
    grad.dx = rig_bytes(rig, NULL, cells * 4);
    ck_ok(keel_op_pairwise_dot(rig->kernels, &op, &rig->list));
    ck_ok(keel_op_pairwise_dot_grad(rig->kernels, &grad, &rig->list));
    rig_run(rig);
    rig_result(rig, op.y, dots * 4);
    rig_result(rig, grad.dx, cells * 4);
}

START_TEST(dots_of_pairs_give_the_same_bits)
{
    for (int i = 0; i < SAMPLES; i++) {
        char name[64];
        snprintf(name, sizeof name, "pairwise %ux%ux%u", samples[i].batch, samples[i].f, samples[i].n);
        same_bits((enum rig_kind)_i, name, pairs_body, &samples[i]);
    }
}
END_TEST

/* dy . y of one sample whose element `moved` is moved by h. */
static double pairs_weighed(double *x, const float *dy, const struct pairs *s, uint32_t moved, double h)
{
    double sum = 0;
    x[moved] += h;
    for (uint32_t i = 1; i < s->f; i++) {
        for (uint32_t j = 0; j < i; j++) {
            double dot = 0;
            for (uint32_t c = 0; c < s->n; c++)
                dot += x[i * s->n + c] * x[j * s->n + c];
            sum += dot * (double)*dy++;
        }
    }
    x[moved] -= h;
    return sum;
}

START_TEST(dots_of_pairs_and_their_gradient_are_near_the_truth)
{
    const struct pairs s = {3, 7, 67};
    enum { N = 7 * 67, CELLS = 3 * N, DOTS = 21 };
    struct rig *rig = rig_shared(RIG_HOST);
    pairs_body(rig, &s);
    float *values = random_floats(CELLS, 1, -1.0f, 1.0f), *dy = random_floats(3 * DOTS, 2, -1.0f, 1.0f);
    static double x[CELLS], y[3 * DOTS], dx[CELLS];
    for (uint32_t i = 0; i < CELLS; i++)
        x[i] = (double)values[i];
    for (uint32_t b = 0; b < 3; b++) {
        double *at = x + (size_t)b * N;
        for (uint32_t i = 1, pair = b * DOTS; i < 7; i++)
            for (uint32_t j = 0; j < i; j++, pair++)
                for (uint32_t c = 0; c < 67; c++)
                    y[pair] += at[i * 67 + c] * at[j * 67 + c];
        for (uint32_t i = 0; i < N; i++) {
            const double h = 0.125;
            const float *g = dy + (size_t)b * DOTS;
            dx[b * N + i] = (8 * (pairs_weighed(at, g, &s, i, h) - pairs_weighed(at, g, &s, i, -h)) -
                             (pairs_weighed(at, g, &s, i, 2 * h) - pairs_weighed(at, g, &s, i, -2 * h))) /
                            (12 * h);
        }
    }
    ck_assert_double_le(relative_error(rig->results[0], y, 3 * DOTS), 1e-6);
    ck_assert_double_le(relative_error(rig->results[1], dx, CELLS), 1e-6);
    free(values);
    free(dy);
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
    struct keel_gather take = {.rows = 4, .n = 2, .count = 5, .ids = small, .x = small, .y = small};
    refused(keel_op_gather(rig->kernels, &take, &rig->list), "gather: y holds 32 bytes, needs 40");
    take.count = 0;
    refused(keel_op_gather(rig->kernels, &take, &rig->list), "gather: 0 of the rows of [4, 2]");
    struct keel_embedding_bag bag = {.bags = 2, .size = 0, .rows = 4, .n = 2};
    refused(keel_op_embedding_bag(rig->kernels, &bag, &rig->list), "embedding_bag: [2, 0] ids, table [4, 2]");
    struct keel_scatter_add add = {.rows = 4, .n = 2, .count = 5, .per = 2};
    refused(keel_op_scatter_add(rig->kernels, &add, &rig->list), "scatter_add: 5 ids, 2 of them to a row");
    add.per = 5;
    add.ids = add.x = add.table = add.workspace = small;
    refused(keel_op_scatter_add(rig->kernels, &add, &rig->list), "scatter_add: workspace holds 32 bytes");
    struct keel_pairwise_dot pairs = {.batch = 4, .f = 1, .n = 2, .x = small, .y = small};
    refused(keel_op_pairwise_dot(rig->kernels, &pairs, &rig->list),
            "pairwise_dot: pairs of the rows of [4, 1, 2]");
    struct keel_pairwise_dot_grad grad = {.batch = 2, .f = 2, .n = 2, .x = small, .dy = small};
    refused(keel_op_pairwise_dot_grad(rig->kernels, &grad, &rig->list),
            "pairwise_dot_grad: no buffer for dx");
    ck_assert_uint_eq(rig->list.count, 0);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, rows_by_number_give_the_same_bits, 0, RIG_DEVICES);
    tcase_add_test(tc, rows_are_those_of_their_numbers_and_rows_that_do_not_occur_keep_their_bits);
    tcase_add_test(tc, sources_of_one_row_are_added_in_ascending_order);
    tcase_add_loop_test(tc, dots_of_pairs_give_the_same_bits, 0, RIG_DEVICES);
    tcase_add_test(tc, dots_of_pairs_and_their_gradient_are_near_the_truth);
    tcase_add_test(tc, wrong_descriptors_are_refused_by_name);
}

KEEL_TEST_MAIN("table", cases, RIG_LIMIT_S)
