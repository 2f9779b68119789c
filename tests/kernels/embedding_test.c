/* embedding_test.c - token and position embedding, and its gradient over ids that come again. */
#include "op_fixture.h"

struct shape {
    uint32_t batch, tokens, width, vocab;
    bool positions;
};
static const struct shape shapes[] = {{1, 1, 1, 1, true},
                                      {1, 17, 5, 3, false},
                                      {3, 7, 130, 11, true},
                                      {5, 31, 129, 1000, true},
                                      {4, 64, 768, 5003, true}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static int32_t *random_ids(const struct shape *s)
{
    const struct keel_control control = {.seed_lo = 11};
    int32_t *ids = malloc((size_t)s->batch * s->tokens * sizeof *ids);
    ck_assert_ptr_nonnull(ids);
    for (uint32_t i = 0; i < s->batch * s->tokens; i++) {
        uint32_t word = keel_random_u32(&control, 1, i); /* one in two from the first eight ids */
        ids[i] = (int32_t)(((word & 1u) != 0 ? word >> 8 : (word >> 8) % 8) % s->vocab);
    }
    return ids;
}

static void embedding_body(struct rig *rig, const void *shape)
{
    const struct shape *s = shape;
    const uint64_t rows = (uint64_t)s->batch * s->tokens, cells = (uint64_t)s->vocab * s->width;
    const uint64_t places = (uint64_t)s->tokens * s->width;
    int32_t *ids = random_ids(s);
    struct keel_embedding op = {.batch = s->batch, .tokens = s->tokens, .width = s->width, .vocab = s->vocab};
    op.ids = rig_bytes(rig, ids, rows * 4);
    op.table = rig_random(rig, cells, 1, -1.0f, 1.0f);
    op.positions = s->positions ? rig_random(rig, places, 2, -1.0f, 1.0f) : NULL;
    op.y = rig_bytes(rig, NULL, rows * s->width * 4);
    struct keel_embedding_grad grad = {
        .batch = s->batch, .tokens = s->tokens, .width = s->width, .vocab = s->vocab, .ids = op.ids};
    grad.dy = rig_random(rig, rows * s->width, 3, -1.0f, 1.0f);
    grad.dtable = rig_random(rig, cells, 4, -1.0f, 1.0f);
    grad.dpositions = s->positions ? rig_random(rig, places, 5, -1.0f, 1.0f) : NULL;
    ck_ok(keel_op_embedding(rig->kernels, &op, &rig->list));
    ck_ok(keel_op_embedding_grad(rig->kernels, &grad, &rig->list));
    rig_run(rig);
    rig_result(rig, op.y, rows * s->width * 4);
    rig_result(rig, grad.dtable, cells * 4);
    if (s->positions)
        rig_result(rig, grad.dpositions, places * 4);
    free(ids);
}

START_TEST(embedding_and_its_gradient_give_the_same_bits)
{
    for (int i = 0; i < SHAPES; i++) {
        char name[64];
        snprintf(name, sizeof name, "embedding %ux%ux%u/%u", shapes[i].batch, shapes[i].tokens,
                 shapes[i].width, shapes[i].vocab);
        same_bits((enum rig_kind)_i, name, embedding_body, &shapes[i]);
    }
}
END_TEST

/* Sums of at most 21 values: 1e-6 of the largest; and rows that do not occur keep their bits. */
START_TEST(embedding_and_its_gradient_are_near_the_truth)
{
    const struct shape s = {3, 7, 130, 11, true};
    enum { ROWS = 21, WIDTH = 130, CELLS = 11 * 130, PLACES = 7 * 130 };
    struct rig *rig = rig_shared(RIG_HOST);
    embedding_body(rig, &s);
    const float *y = rig->results[0], *dtable = rig->results[1], *dpositions = rig->results[2];
    int32_t *ids = random_ids(&s);
    float *table = random_floats(CELLS, 1, -1.0f, 1.0f), *positions = random_floats(PLACES, 2, -1.0f, 1.0f);
    float *dy = random_floats(ROWS * WIDTH, 3, -1.0f, 1.0f), *old = random_floats(CELLS, 4, -1.0f, 1.0f);
    float *old_positions = random_floats(PLACES, 5, -1.0f, 1.0f);
    static double want[CELLS], want_positions[PLACES];
    for (int i = 0; i < CELLS; i++)
        want[i] = (double)old[i];
    for (int i = 0; i < PLACES; i++)
        want_positions[i] = (double)old_positions[i];
    bool used[11] = {false};
    for (int row = 0; row < ROWS; row++) {
        used[ids[row]] = true;
        for (int i = 0; i < WIDTH; i++) {
            ck_assert(y[row * WIDTH + i] == table[ids[row] * WIDTH + i] + positions[row % 7 * WIDTH + i]);
            want[ids[row] * WIDTH + i] += (double)dy[row * WIDTH + i];
            want_positions[row % 7 * WIDTH + i] += (double)dy[row * WIDTH + i];
        }
    }
    ck_assert_double_le(relative_error(dtable, want, CELLS), 1e-6);
    ck_assert_double_le(relative_error(dpositions, want_positions, PLACES), 1e-6);
    for (int v = 0; v < 11; v++)
        ck_assert(used[v] || memcmp(dtable + v * WIDTH, old + v * WIDTH, WIDTH * sizeof(float)) == 0);
    free(ids);
    free(table);
    free(positions);
    free(dy);
    free(old);
    free(old_positions);
}
END_TEST

START_TEST(ids_out_of_range_count_as_zeros_and_add_nothing)
{
    enum { N = 37, ROWS = 6, VOCAB = 11 };
    const int32_t ids[ROWS] = {2, VOCAB, 0, -1, 1 << 30, INT32_MIN};
    struct rig *rig = rig_shared((enum rig_kind)_i);
    struct keel_embedding op = {.batch = 1, .tokens = ROWS, .width = N, .vocab = VOCAB};
    op.ids = rig_bytes(rig, ids, sizeof ids);
    op.table = rig_random(rig, VOCAB * N, 1, 0.5f, 1.0f);
    op.positions = rig_random(rig, ROWS * N, 2, 0.5f, 1.0f);
    op.y = rig_bytes(rig, NULL, ROWS * N * 4);
    struct keel_embedding_grad grad = {.batch = 1, .tokens = ROWS, .width = N, .vocab = VOCAB, .ids = op.ids};
    grad.dy = rig_random(rig, ROWS * N, 3, -1.0f, 1.0f);
    grad.dtable = rig_random(rig, VOCAB * N, 4, -1.0f, 1.0f);
    ck_ok(keel_op_embedding(rig->kernels, &op, &rig->list));
    ck_ok(keel_op_embedding_grad(rig->kernels, &grad, &rig->list));
    rig_run(rig);
    const float *y = rig_result(rig, op.y, ROWS * N * 4), *got = rig_result(rig, grad.dtable, VOCAB * N * 4);
    float *table = random_floats(VOCAB * N, 1, 0.5f, 1.0f),
          *positions = random_floats(ROWS * N, 2, 0.5f, 1.0f);
    float *dy = random_floats(ROWS * N, 3, -1.0f, 1.0f), *want = random_floats(VOCAB * N, 4, -1.0f, 1.0f);
    for (int at = 0; at < ROWS * N; at++) {
        const int row = at / N, c = at % N;
        const bool known = ids[row] >= 0 && ids[row] < VOCAB;
        ck_assert(y[at] == (known ? table[ids[row] * N + c] + positions[at] : positions[at]));
        if (known)
            want[ids[row] * N + c] += dy[at];
    }
    ck_assert_mem_eq(got, want, VOCAB * N * sizeof *want);
    free(table);
    free(positions);
    free(dy);
    free(want);
}
END_TEST

/* A table cut by rows: each part's rows and gradients are those of the whole; where a row is another's there
 * are zero bits, so that -0 survives an addition of bits. */
START_TEST(parts_of_a_table_have_the_bits_of_the_whole)
{
    enum { PARTS = 3, WIDTH = 37, ROWS = 40, VOCAB = 23, CELLS = VOCAB * WIDTH };
    static const uint32_t cuts[PARTS + 1] = {0, 7, 8, VOCAB};
    struct rig *rig = rig_shared((enum rig_kind)_i);
    const struct shape s = {4, 10, WIDTH, VOCAB + 3, false}; /* three ids are nobody's */
    int32_t *ids = random_ids(&s);
    float *table = random_floats(CELLS, 1, -1.0f, 1.0f);
    ids[0] = -1;
    table[ids[1] % VOCAB * WIDTH] = -0.0f;
    const struct keel_embedding whole = {.batch = 4,
                                         .tokens = 10,
                                         .width = WIDTH,
                                         .vocab = VOCAB,
                                         .ids = rig_bytes(rig, ids, ROWS * sizeof *ids),
                                         .table = rig_bytes(rig, table, CELLS * sizeof *table),
                                         .y = rig_bytes(rig, NULL, sizeof(float) * ROWS * WIDTH)};
    const struct keel_embedding_grad grad = {.batch = 4,
                                             .tokens = 10,
                                             .width = WIDTH,
                                             .vocab = VOCAB,
                                             .ids = whole.ids,
                                             .dy = rig_random(rig, ROWS * WIDTH, 3, -1.0f, 1.0f),
                                             .dtable = rig_random(rig, CELLS, 4, -1.0f, 1.0f)};
    ck_ok(keel_op_embedding(rig->kernels, &whole, &rig->list));
    ck_ok(keel_op_embedding_grad(rig->kernels, &grad, &rig->list));
    float *begun = random_floats(CELLS, 4, -1.0f, 1.0f);
    struct keel_buffer *y[PARTS], *dtable[PARTS];
    for (int part = 0; part < PARTS; part++) {
        const uint32_t first = cuts[part], rows = cuts[part + 1] - first;
        struct keel_embedding piece = whole;
        struct keel_embedding_grad piece_grad = grad;
        piece.first = piece_grad.first = first;
        piece.vocab = piece_grad.vocab = rows;
        piece.table = rig_bytes(rig, table + first * WIDTH, sizeof(float) * rows * WIDTH);
        piece.y = y[part] = rig_random(rig, ROWS * WIDTH, 5, -1.0f, 1.0f);
        piece_grad.dtable = dtable[part] =
            rig_bytes(rig, begun + first * WIDTH, sizeof(float) * rows * WIDTH);
        ck_ok(keel_op_embedding(rig->kernels, &piece, &rig->list));
        ck_ok(keel_op_embedding_grad(rig->kernels, &piece_grad, &rig->list));
    }
    rig_run(rig);
    const float *all = rig_result(rig, grad.dtable, CELLS * sizeof(float));
    const uint32_t *wanted = rig_result(rig, whole.y, sizeof(float) * ROWS * WIDTH), *bits[PARTS];
    for (int part = 0; part < PARTS; part++) {
        const uint64_t bytes = sizeof(float) * (cuts[part + 1] - cuts[part]) * WIDTH;
        ck_assert_mem_eq(rig_result(rig, dtable[part], bytes), all + cuts[part] * WIDTH, bytes);
        rig->result_count--;
        free(rig->results[rig->result_count]);
        bits[part] = rig_result(rig, y[part], sizeof(float) * ROWS * WIDTH);
    }
    for (int i = 0; i < ROWS * WIDTH; i++)
        ck_assert_uint_eq(bits[0][i] + bits[1][i] + bits[2][i], wanted[i]);
    free(ids);
    free(table);
    free(begun);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, parts_of_a_table_have_the_bits_of_the_whole, 0, RIG_HOST + 1);
    tcase_add_loop_test(tc, ids_out_of_range_count_as_zeros_and_add_nothing, 0, RIG_HOST + 1);
    tcase_add_loop_test(tc, embedding_and_its_gradient_give_the_same_bits, 0, RIG_DEVICES);
    tcase_add_test(tc, embedding_and_its_gradient_are_near_the_truth);
}

KEEL_TEST_MAIN("embedding", cases, RIG_LIMIT_S)
