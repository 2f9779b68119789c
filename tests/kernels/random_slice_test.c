/* random_slice_test.c - a slice of a random tensor, of rows or of columns, of heads or of sequences, draws
 * what the whole tensor draws there: bit for bit, on host and PoCL. */
#include "op_fixture.h"

#include <keel/attention_ops.h>

enum {
    ROWS = 11,
    COLUMNS = 205,
    ALL = ROWS * COLUMNS,
    TOKENS = 70,
    HEADS = 4,
    WIDTH = 8,
    BATCH = 2,
    STREAM = 9
};
static const struct keel_control control = {.seed_lo = 5, .seed_hi = 6, .step = 7, .microbatch = 8};

/* Of a matrix: rows and columns [from, from + count). */
static const struct piece {
    uint32_t row, rows, column, columns;
} pieces[] = {{0, ROWS, 0, COLUMNS}, {3, 5, 0, COLUMNS},     {0, ROWS, 0, 64}, {0, ROWS, 36, 68},
              {2, 7, 37, 131},       {1, 9, COLUMNS - 1, 1}, {4, 1, 100, 105}};
enum { PIECES = sizeof pieces / sizeof pieces[0] };

static struct keel_random_slice slice_of(const struct piece *p)
{
    return (struct keel_random_slice){
        .first = (uint64_t)p->row * COLUMNS + p->column, .row = p->columns, .stride = COLUMNS};
}

/* The piece of a matrix of COLUMNS. */
static uint64_t cut(const struct piece *p, const float *whole, float *out)
{
    for (uint32_t r = 0; r < p->rows; r++)
        memcpy(out + (uint64_t)r * p->columns, whole + (uint64_t)(p->row + r) * COLUMNS + p->column,
               p->columns * sizeof *out);
    return (uint64_t)p->rows * p->columns;
}

static void drop(enum rig_kind kind, const float *x, uint64_t count, struct keel_random_slice slice, float *y)
{
    struct rig *rig = rig_shared(kind);
    struct keel_dropout op = {.count = count, .rate = 0.3f, .stream = STREAM, .slice = slice};
    op.x = op.y = rig_bytes(rig, x, count * sizeof *x);
    op.control = rig_bytes(rig, &control, sizeof control);
    ck_ok(keel_op_dropout(rig->kernels, &op, &rig->list));
    rig_run(rig);
    memcpy(y, rig_result(rig, op.y, count * sizeof *y), count * sizeof *y);
}

START_TEST(a_slice_drops_what_the_whole_drops)
{
    static float x[ALL], whole[ALL], part[ALL], wanted[ALL], got[ALL];
    for (uint32_t i = 0; i < ALL; i++)
        x[i] = 1.0f + (float)i;
    drop((enum rig_kind)_i, x, ALL, (struct keel_random_slice){.first = 0}, whole);
    for (uint32_t i = 0; i < ALL; i++) {
        const bool kept = keel_random_uniform(&control, STREAM, i) >= 0.3f;
        ck_assert((whole[i] != 0.0f) == kept);
    }
    for (int p = 0; p < PIECES; p++) {
        const uint64_t count = cut(&pieces[p], x, part);
        cut(&pieces[p], whole, wanted);
        drop((enum rig_kind)_i, part, count, slice_of(&pieces[p]), got);
        ck_assert_msg(memcmp(got, wanted, count * sizeof *got) == 0, "piece %d", p);
    }
}
END_TEST

static void draw(enum rig_kind kind, uint64_t count, struct keel_random_slice slice, float *y)
{
    struct rig *rig = rig_shared(kind);
    struct keel_normal op = {.count = count, .deviation = 0.02f, .stream = STREAM, .slice = slice};
    op.y = rig_bytes(rig, NULL, count * sizeof *y);
    op.control = rig_bytes(rig, &control, sizeof control);
    ck_ok(keel_op_normal(rig->kernels, &op, &rig->list));
    rig_run(rig);
    memcpy(y, rig_result(rig, op.y, count * sizeof *y), count * sizeof *y);
}

START_TEST(a_slice_of_first_weights_is_that_of_the_whole)
{
    static float whole[ALL], wanted[ALL], got[ALL];
    draw((enum rig_kind)_i, ALL, (struct keel_random_slice){.first = 0}, whole);
    for (uint32_t i = 0; i < ALL; i++)
        ck_assert(whole[i] == keel_random_normal(&control, STREAM, i) * 0.02f);
    for (int p = 0; p < PIECES; p++) {
        const uint64_t count = cut(&pieces[p], whole, wanted);
        draw((enum rig_kind)_i, count, slice_of(&pieces[p]), got);
        ck_assert_msg(memcmp(got, wanted, count * sizeof *got) == 0, "piece %d", p);
    }
}
END_TEST

/* ---- attention ----------------------------------------------------------------------------------------- */

enum { PROBABILITIES = TOKENS * TOKENS, PARTS = 3, QKV = BATCH * TOKENS * PARTS * HEADS * WIDTH };
static const struct heads {
    uint32_t batch, batches, head, heads;
} some[] = {{0, BATCH, 0, HEADS}, {0, BATCH, 1, 2}, {0, BATCH, 3, 1}, {1, 1, 0, HEADS}, {1, 1, 2, 2}};

/* `parts` of rows of heads, [batch, tokens, parts, heads, width]. */
static uint64_t cut_heads(const struct heads *s, uint32_t parts, const float *whole, float *out)
{
    float *to = out;
    for (uint32_t row = 0; row < s->batches * TOKENS * parts; row++, to += (size_t)s->heads * WIDTH)
        memcpy(to, whole + ((size_t)(s->batch * TOKENS * parts + row) * HEADS + s->head) * WIDTH,
               (size_t)s->heads * WIDTH * sizeof *to);
    return (uint64_t)(to - out);
}

/* out and dqkv of those heads. */
static void attend(enum rig_kind kind, const struct heads *s, const float *qkv, const float *dout, float *out,
                   float *dqkv)
{
    static float part[QKV], dpart[QKV];
    const uint64_t count = cut_heads(s, PARTS, qkv, part) * sizeof *qkv;
    const uint64_t out_bytes = cut_heads(s, 1, dout, dpart) * sizeof *dout;
    struct rig *rig = rig_shared(kind);
    struct keel_attention_grad op = {
        .forward = {.batch = s->batches,
                    .tokens = TOKENS,
                    .heads = s->heads,
                    .head_width = WIDTH,
                    .dropout_rate = 0.25f,
                    .stream = STREAM,
                    .slice = {.first = (uint64_t)(s->batch * HEADS + s->head) * PROBABILITIES,
                              .row = (uint64_t)s->heads * PROBABILITIES,
                              .stride = (uint64_t)HEADS * PROBABILITIES},
                    .qkv = rig_bytes(rig, part, count),
                    .out = rig_bytes(rig, NULL, out_bytes),
                    .stats =
                        rig_bytes(rig, NULL, (uint64_t)s->batches * s->heads * TOKENS * 2 * sizeof(float)),
                    .control = rig_bytes(rig, &control, sizeof control)},
        .dout = rig_bytes(rig, dpart, out_bytes),
        .dqkv = rig_bytes(rig, NULL, count)};
    uint64_t work = keel_attention_grad_workspace_bytes(rig->kernels, &op);
    const uint64_t forward = keel_attention_workspace_bytes(rig->kernels, &op.forward);
    work = forward > work ? forward : work;
    op.forward.workspace = rig_bytes(rig, NULL, work > 0 ? work : 4);
    ck_ok(keel_op_attention(rig->kernels, &op.forward, &rig->list));
    ck_ok(keel_op_attention_grad(rig->kernels, &op, &rig->list));
    rig_run(rig);
    memcpy(out, rig_result(rig, op.forward.out, out_bytes), out_bytes);
    memcpy(dqkv, rig_result(rig, op.dqkv, count), count);
}

START_TEST(some_heads_drop_the_probabilities_that_all_heads_drop)
{
    static float out[QKV], dqkv[QKV], part_out[QKV], part_dqkv[QKV], wanted[QKV];
    float *qkv = random_floats(QKV, 1, -1.0f, 1.0f), *dout = random_floats(QKV, 2, -1.0f, 1.0f);
    attend((enum rig_kind)_i, &some[0], qkv, dout, out, dqkv);
    for (size_t s = 1; s < sizeof some / sizeof some[0]; s++) {
        attend((enum rig_kind)_i, &some[s], qkv, dout, part_out, part_dqkv);
        uint64_t count = cut_heads(&some[s], 1, out, wanted);
        ck_assert_msg(memcmp(part_out, wanted, count * sizeof *wanted) == 0, "forward, slice %zu", s);
        count = cut_heads(&some[s], PARTS, dqkv, wanted);
        ck_assert_msg(memcmp(part_dqkv, wanted, count * sizeof *wanted) == 0, "backward, slice %zu", s);
    }
    free(qkv);
    free(dout);
}
END_TEST

/* ---- what is refused ----------------------------------------------------------------------------------- */

START_TEST(a_slice_that_no_tensor_has_is_refused)
{
    static const struct {
        struct keel_random_slice slice;
        enum keel_status wanted;
    } rows[] = {{{0, 4, 3}, KEEL_INVALID},
                {{0, 4, 0}, KEEL_INVALID},
                {{UINT64_MAX, 0, 0}, KEEL_LIMIT},
                {{(UINT64_C(1) << 34) - 7, 0, 0}, KEEL_LIMIT},
                {{0, 4, UINT64_C(1) << 34}, KEEL_LIMIT},
                {{0, 4, UINT64_MAX}, KEEL_LIMIT},
                {{UINT64_MAX - 2, 1, UINT64_MAX}, KEEL_LIMIT},
                {{(UINT64_C(1) << 34) - 8, 0, 0}, KEEL_OK},
                {{(UINT64_C(1) << 34) - 12, 4, 8}, KEEL_OK},
                {{(UINT64_C(1) << 34) - 11, 4, 8}, KEEL_LIMIT}};
    struct rig *rig = rig_shared(RIG_HOST);
    struct keel_buffer *x = rig_bytes(rig, NULL, 64), *set = rig_bytes(rig, &control, sizeof control);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct keel_dropout op = {
            .count = 8, .rate = 0.5f, .slice = rows[i].slice, .x = x, .y = x, .control = set};
        ck_status(keel_op_dropout(rig->kernels, &op, &rig->list), rows[i].wanted);
    }
    const struct keel_normal normal = {
        .count = 8, .slice = {.first = (UINT64_C(1) << 33) - 7}, .y = x, .control = set};
    ck_status(keel_op_normal(rig->kernels, &normal, &rig->list), KEEL_LIMIT);
    struct keel_attention attention = {.batch = 1,
                                       .tokens = 2,
                                       .heads = 1,
                                       .head_width = 1,
                                       .dropout_rate = 0.5f,
                                       .slice = {.row = 6, .stride = 12},
                                       .qkv = x,
                                       .out = rig_bytes(rig, NULL, 8),
                                       .stats = rig_bytes(rig, NULL, 16),
                                       .control = set};
    ck_status(keel_op_attention(rig->kernels, &attention, &rig->list), KEEL_INVALID); /* not whole heads */
    attention.slice = (struct keel_random_slice){.first = UINT64_MAX, .row = 4, .stride = 4};
    ck_status(keel_op_attention(rig->kernels, &attention, &rig->list), KEEL_LIMIT);
    attention.slice.first = 4;
    ck_ok(keel_op_attention(rig->kernels, &attention, &rig->list));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, a_slice_drops_what_the_whole_drops, 0, RIG_DEVICES + 1);
    tcase_add_loop_test(tc, a_slice_of_first_weights_is_that_of_the_whole, 0, RIG_DEVICES + 1);
    tcase_add_loop_test(tc, some_heads_drop_the_probabilities_that_all_heads_drop, 0, RIG_DEVICES + 1);
    tcase_add_test(tc, a_slice_that_no_tensor_has_is_refused);
}

KEEL_TEST_MAIN("random_slice", cases, RIG_LIMIT_S)
