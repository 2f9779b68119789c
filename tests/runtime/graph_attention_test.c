/* graph_attention_test.c - attention and rotary positions as rows of the table: gradients against finite
 * differences in double, and what is refused when a graph is built. */
#include "op_gradient.h"

enum { BATCH = 2, TOKENS = 4, HEADS = 2, HEAD_WIDTH = 4, WIDTH = HEADS * HEAD_WIDTH };
static const float base = 20;

/* out[b][t][h][:] of one token to `keys` keys that are `step` apart; scores have a bias, -INFINITY: not seen.
 */
static void attend(const double *q, const double *k, int step, int keys, const double *bias, double *out)
{
    const double *v = k + WIDTH;
    double p[TOKENS], sum = 0;
    for (int j = 0; j < keys; j++) {
        double s = 0;
        for (int d = 0; d < HEAD_WIDTH; d++)
            s += q[d] * k[j * step + d];
        p[j] = exp(s / sqrt(HEAD_WIDTH) + bias[j]);
        sum += p[j];
    }
    for (int d = 0; d < HEAD_WIDTH; d++) {
        out[d] = 0;
        for (int j = 0; j < keys; j++)
            out[d] += p[j] / sum * v[j * step + d];
    }
}

struct mask {
    bool bidirectional;
    int window;
    double slope[HEADS];
    const int32_t *segments;
};
static void attention(const double *qkv, const struct mask *mask, double *y)
{
    for (int row = 0; row < BATCH * TOKENS; row++)
        for (int h = 0; h < HEADS; h++) {
            const int i = row % TOKENS, first = row - i;
            const double *q = qkv + (ptrdiff_t)row * 3 * WIDTH + (ptrdiff_t)h * HEAD_WIDTH;
            double bias[TOKENS];
            for (int j = 0; j < TOKENS; j++)
                bias[j] = (j > i && !mask->bidirectional) ||
                                  (mask->window > 0 && abs(i - j) >= mask->window) ||
                                  (mask->segments != NULL && mask->segments[row] != mask->segments[first + j])
                              ? -INFINITY
                              : -mask->slope[h] * abs(i - j);
            attend(q, q - (ptrdiff_t)i * 3 * WIDTH + WIDTH, 3 * WIDTH, TOKENS, bias,
                   y + (ptrdiff_t)row * WIDTH + (ptrdiff_t)h * HEAD_WIDTH);
        }
}

static void turn(const double *x, double *y)
{
    for (int e = 0; e < BATCH * TOKENS * 3 * WIDTH; e += 2) {
        const int token = e / (3 * WIDTH) % TOKENS;
        double angle = token * pow((double)base, -(double)(e % HEAD_WIDTH) / HEAD_WIDTH);
        if (e % (3 * WIDTH) >= 2 * WIDTH)
            angle = 0;
        y[e] = x[e] * cos(angle) - x[e + 1] * sin(angle);
        y[e + 1] = x[e] * sin(angle) + x[e + 1] * cos(angle);
    }
}

static keel_value build_causal(struct keel_graph *graph, const keel_value *p, keel_value ids,
                               keel_value input)
{
    (void)ids, (void)input;
    return keel_graph_attention(graph, p[0], &(struct keel_attention_spec){.heads = HEADS});
}
static void causal(const struct op_operands *o, double *y)
{
    attention(o->param[0], &(struct mask){.bidirectional = false}, y);
}

static keel_value build_bidirectional(struct keel_graph *graph, const keel_value *p, keel_value ids,
                                      keel_value input)
{
    (void)ids, (void)input;
    return keel_graph_attention(graph, p[0],
                                &(struct keel_attention_spec){.heads = HEADS, .bidirectional = true});
}
static void bidirectional(const struct op_operands *o, double *y)
{
    attention(o->param[0], &(struct mask){.bidirectional = true}, y);
}

static keel_value build_window(struct keel_graph *graph, const keel_value *p, keel_value ids,
                               keel_value input)
{
    (void)ids, (void)input;
    return keel_graph_attention(graph, p[0],
                                &(struct keel_attention_spec){.heads = HEADS, .window = 2, .alibi = true});
}
static void window(const struct op_operands *o, double *y)
{
    attention(o->param[0], &(struct mask){.window = 2, .slope = {0x1p-4, 0x1p-8}}, y);
}

static keel_value build_segments(struct keel_graph *graph, const keel_value *p, keel_value ids,
                                 keel_value input)
{
    (void)input;
    return keel_graph_attention(
        graph, p[0], &(struct keel_attention_spec){.heads = HEADS, .bidirectional = true, .segments = ids});
}
static void segments(const struct op_operands *o, double *y)
{
    attention(o->param[0], &(struct mask){.bidirectional = true, .segments = o->ids}, y);
}

enum { KEYS = 3 };
static keel_value build_cross(struct keel_graph *graph, const keel_value *p, keel_value ids, keel_value input)
{
    (void)ids, (void)input;
    return keel_graph_cross_attention(graph, p[0], p[1], &(struct keel_cross_attention_spec){.heads = HEADS});
}
static void cross(const struct op_operands *o, double *y)
{
    static const double none[KEYS];
    for (ptrdiff_t row = 0; row < BATCH * TOKENS; row++)
        for (ptrdiff_t h = 0; h < HEADS; h++) {
            const ptrdiff_t at = row * WIDTH + h * HEAD_WIDTH;
            attend(o->param[0] + at, o->param[1] + row / TOKENS * KEYS * 2 * WIDTH + h * HEAD_WIDTH,
                   2 * WIDTH, KEYS, none, y + at);
        }
}

static keel_value build_rotary(struct keel_graph *graph, const keel_value *p, keel_value ids,
                               keel_value input)
{
    (void)ids, (void)input;
    return keel_graph_rotary(graph, p[0], HEADS, base);
}
static void rotary(const struct op_operands *o, double *y)
{
    turn(o->param[0], y);
}

/* As models have them: the turned values go into attention, and what is turned is used once more. */
static keel_value build_both(struct keel_graph *graph, const keel_value *p, keel_value ids, keel_value input)
{
    (void)ids, (void)input;
    keel_value sum = keel_graph_add(graph, keel_graph_rotary(graph, p[0], HEADS, base), p[0]);
    return build_causal(graph, (const keel_value[]){sum}, 0, 0);
}
static void both(const struct op_operands *o, double *y)
{
    double x[BATCH * TOKENS * 3 * WIDTH];
    turn(o->param[0], x);
    for (int e = 0; e < BATCH * TOKENS * 3 * WIDTH; e++)
        x[e] += o->param[0][e];
    attention(x, &(struct mask){.bidirectional = false}, y);
}

/* Heads of queries that share what HEADS heads of keys and values hold: rows of SHARERS, HEADS and HEADS. */
enum { SHARERS = 3 * HEADS, GROUPED_WIDTH = (SHARERS + 2 * HEADS) * HEAD_WIDTH };
static void grouped_attention(const double *qkv, bool turned, double *y)
{
    static const double none[TOKENS];
    static double x[BATCH * TOKENS * GROUPED_WIDTH];
    for (int e = 0; e < BATCH * TOKENS * GROUPED_WIDTH; e += 2) {
        const bool turns = turned && e % GROUPED_WIDTH < (SHARERS + HEADS) * HEAD_WIDTH;
        const double angle =
            turns ? e / GROUPED_WIDTH % TOKENS * pow((double)base, -(double)(e % HEAD_WIDTH) / HEAD_WIDTH)
                  : 0;
        x[e] = qkv[e] * cos(angle) - qkv[e + 1] * sin(angle);
        x[e + 1] = qkv[e] * sin(angle) + qkv[e + 1] * cos(angle);
    }
    for (ptrdiff_t row = 0; row < BATCH * TOKENS; row++)
        for (ptrdiff_t h = 0; h < SHARERS; h++) {
            const double *of = x + row / TOKENS * TOKENS * GROUPED_WIDTH + SHARERS * HEAD_WIDTH;
            attend(x + row * GROUPED_WIDTH + h * HEAD_WIDTH, of + h / 3 * HEAD_WIDTH, GROUPED_WIDTH,
                   (int)(row % TOKENS) + 1, none, y + (row * SHARERS + h) * HEAD_WIDTH);
        }
}
static keel_value build_grouped(struct keel_graph *graph, const keel_value *p, keel_value ids,
                                keel_value input)
{
    (void)ids, (void)input;
    return keel_graph_attention(graph, p[0],
                                &(struct keel_attention_spec){.heads = SHARERS, .kv_heads = HEADS});
}
static void grouped(const struct op_operands *o, double *y)
{
    grouped_attention(o->param[0], false, y);
}
static keel_value build_turned(struct keel_graph *graph, const keel_value *p, keel_value ids,
                               keel_value input)
{
    const keel_value x =
        keel_graph_grouped_rotary(graph, p[0], SHARERS, HEADS, &(struct keel_rotary_turn){.base = base});
    return build_grouped(graph, &x, ids, input);
}
static void grouped_turned(const struct op_operands *o, double *y)
{
    grouped_attention(o->param[0], true, y);
}
/* What is turned is read by another as well: its gradient is turned back beside. */
static keel_value build_turned_twice(struct keel_graph *graph, const keel_value *p, keel_value ids,
                                     keel_value input)
{
    (void)ids, (void)input;
    const keel_value x =
        keel_graph_grouped_rotary(graph, p[0], SHARERS, HEADS, &(struct keel_rotary_turn){.base = base});
    const keel_value y = build_grouped(graph, &x, 0, 0);
    return keel_graph_add(graph, y, keel_graph_slice(graph, x, 2, 0, SHARERS * HEAD_WIDTH));
}
static void turned_twice(const struct op_operands *o, double *y)
{
    grouped_attention(o->param[0], true, y);
    for (int row = 0; row < BATCH * TOKENS; row++)
        for (int d = 0; d < SHARERS * HEAD_WIDTH; d += 2) {
            const double *x = o->param[0] + (ptrdiff_t)row * GROUPED_WIDTH + d;
            const double angle = row % TOKENS * pow((double)base, -(double)(d % HEAD_WIDTH) / HEAD_WIDTH);
            y[row * SHARERS * HEAD_WIDTH + d] += x[0] * cos(angle) - x[1] * sin(angle);
            y[row * SHARERS * HEAD_WIDTH + d + 1] += x[0] * sin(angle) + x[1] * cos(angle);
        }
}

#define QKV                                                                                                  \
    {                                                                                                        \
        {                                                                                                    \
            3,                                                                                               \
            {                                                                                                \
                BATCH, TOKENS, 3 * WIDTH                                                                     \
            }                                                                                                \
        }                                                                                                    \
    }
static const struct op_case table[] = {
    {.name = "attention",
     .params = QKV,
     .results = BATCH * TOKENS * WIDTH,
     .build = build_causal,
     .forward = causal},
    {.name = "bidirectional attention",
     .params = QKV,
     .results = BATCH * TOKENS * WIDTH,
     .build = build_bidirectional,
     .forward = bidirectional},
    {.name = "attention in a window, with ALiBi",
     .params = QKV,
     .results = BATCH * TOKENS * WIDTH,
     .build = build_window,
     .forward = window},
    {.name = "attention in segments",
     .params = QKV,
     .ids = {2, {BATCH, TOKENS}},
     .ids_below = 2,
     .results = BATCH * TOKENS * WIDTH,
     .build = build_segments,
     .forward = segments},
    {.name = "cross-attention",
     .params = {{3, {BATCH, TOKENS, WIDTH}}, {3, {BATCH, KEYS, 2 * WIDTH}}},
     .results = BATCH * TOKENS * WIDTH,
     .build = build_cross,
     .forward = cross},
    {.name = "rotary",
     .params = QKV,
     .results = BATCH * TOKENS * 3 * WIDTH,
     .build = build_rotary,
     .forward = rotary},
    {.name = "attention of rotary",
     .params = QKV,
     .results = BATCH * TOKENS * WIDTH,
     .build = build_both,
     .forward = both},
    {.name = "grouped attention",
     .params = {{3, {BATCH, TOKENS, GROUPED_WIDTH}}},
     .results = BATCH * TOKENS * SHARERS * HEAD_WIDTH,
     .build = build_grouped,
     .forward = grouped},
    {.name = "grouped attention of rotary",
     .params = {{3, {BATCH, TOKENS, GROUPED_WIDTH}}},
     .results = BATCH * TOKENS * SHARERS * HEAD_WIDTH,
     .build = build_turned,
     .forward = grouped_turned},
    {.name = "grouped attention of rotary that another reads too",
     .params = {{3, {BATCH, TOKENS, GROUPED_WIDTH}}},
     .results = BATCH * TOKENS * SHARERS * HEAD_WIDTH,
     .build = build_turned_twice,
     .forward = turned_twice},
};

START_TEST(the_gradient_of_an_operation_equals_finite_differences)
{
    op_gradient_case(&table[_i], 1e-6);
}
END_TEST

START_TEST(what_makes_no_sense_is_refused_by_name_and_shape)
{
    static const struct {
        struct keel_shape shape;
        uint32_t heads;
        float base;
        const char *words[3];
    } wrong[] = {
        {{3, {2, 3, 12}}, 4, 10, {"rotary", "[2,3,12]", "even width"}}, /* heads of 1 */
        {{3, {2, 3, 12}}, 0, 10, {"rotary", "[2,3,12]", "0 heads"}},
        {{3, {2, 3, 18}}, 4, 10, {"rotary", "[2,3,18]", "4 heads"}},
        {{3, {1, 1, 1548}}, 2, 10, {"rotary", "[1,1,1548]", "at most 256"}}, /* heads of 258 */
        {{3, {2, 3, 13}}, 1, 10, {"rotary", "[2,3,13]", "no multiple of 3"}},
        {{3, {2, 3, 12}}, 2, 1, {"rotary", "[2,3,12]", "base 1 "}},
        {{3, {2, 3, 12}}, 2, NAN, {"rotary", "[2,3,12]", "base nan"}},
        {{2, {2, 12}}, 2, 10, {"rotary", "[2,12]", "rotary"}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct keel_graph *graph = NULL;
        ck_ok(keel_graph_create(&graph));
        keel_graph_rotary(graph, keel_graph_input(graph, "qkv", KEEL_F32, wrong[i].shape), wrong[i].heads,
                          wrong[i].base);
        ck_status(keel_graph_status(graph), KEEL_INVALID);
        for (size_t w = 0; w < 3; w++)
            ck_assert_msg(strstr(keel_detail(), wrong[i].words[w]) != NULL, "\"%s\" lacks %s", keel_detail(),
                          wrong[i].words[w]);
        keel_graph_destroy(graph);
    }
}
END_TEST

/* It sees the tokens before it alone: what it would make of others is no row of all tokens. */
START_TEST(attention_that_sees_more_is_refused_where_the_newest_token_is_alone)
{
    static const char *const says[] = {"attention: in both directions in a graph of the newest token",
                                       "attention: segments in a graph of the newest token"};
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    keel_graph_decode(graph, 2, 16);
    const keel_value qkv = keel_graph_input(graph, "qkv", KEEL_F32, (struct keel_shape){3, {2, 1, 24}}),
                     ids = keel_graph_input(graph, "ids", KEEL_I32, (struct keel_shape){2, {2, 1}});
    const struct keel_attention_spec specs[] = {{.heads = 2, .bidirectional = true},
                                                {.heads = 2, .segments = ids}};
    keel_graph_attention(graph, qkv, &specs[_i]);
    ck_status(keel_graph_status(graph), KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), says[_i]) != NULL, "%s", keel_detail());
    keel_graph_destroy(graph);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, the_gradient_of_an_operation_equals_finite_differences, 0,
                        sizeof table / sizeof *table);
    tcase_add_test(tc, what_makes_no_sense_is_refused_by_name_and_shape);
    tcase_add_loop_test(tc, attention_that_sees_more_is_refused_where_the_newest_token_is_alone, 0, 2);
}
KEEL_TEST_MAIN("graph_attention", cases, 60)
