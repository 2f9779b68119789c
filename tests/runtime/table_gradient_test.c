/* table_gradient_test.c - gradients of what moves and picks elements, row by row, against finite differences
 * in double. What is refused is in graph_refusal_test.c. */
#include "op_gradient.h"

enum { ROWS = 6, WIDTH = 5, TABLE = 4, EXPERTS = 3, LAYER = 4, K = 2 };

#define BUILD(name)                                                                                          \
    static keel_value build_##name(struct keel_graph *graph, const keel_value *p, keel_value ids,            \
                                   keel_value input)
#define SHAPE_OF(...)                                                                                        \
    (struct keel_shape)                                                                                      \
    {                                                                                                        \
        .dims = sizeof((uint64_t[]){__VA_ARGS__}) / 8, .size = { __VA_ARGS__ }                               \
    }

/* ---- shapes: of x [6, 5] ---- */

/* A second use of x, so that no gradient is dy itself. */
static keel_value bent(struct keel_graph *graph, keel_value x)
{
    return keel_graph_activation(graph, x, KEEL_TANH);
}

BUILD(reshape)
{
    (void)ids, (void)input;
    keel_value x = keel_graph_reshape(graph, bent(graph, p[0]), SHAPE_OF(2, 3, 5));
    return keel_graph_reshape(graph, keel_graph_multiply(graph, x, x), SHAPE_OF(30));
}
static void reshape(const struct op_operands *o, double *y)
{
    for (int i = 0; i < 30; i++)
        y[i] = tanh(o->param[0][i]) * tanh(o->param[0][i]);
}

/* A parameter alone is copied. */
BUILD(reshape_of_a_parameter)
{
    (void)ids, (void)input;
    return keel_graph_reshape(graph, p[0], SHAPE_OF(5, 6));
}
static void reshape_of_a_parameter(const struct op_operands *o, double *y)
{
    for (int i = 0; i < 30; i++)
        y[i] = o->param[0][i];
}

/* Eleven parts, so in two rounds: rows 0, 1, .. 5, 0, .. 4 of both parameters in turn. */
BUILD(concat)
{
    (void)ids, (void)input;
    keel_value parts[11];
    for (uint32_t i = 0; i < 11; i++)
        parts[i] = keel_graph_slice(graph, p[i % 2], 0, i % ROWS, 1);
    return keel_graph_concat(graph, parts, 11, 0);
}
static void concat(const struct op_operands *o, double *y)
{
    for (int i = 0; i < 11 * WIDTH; i++)
        y[i] = o->param[i / WIDTH % 2][i / WIDTH % ROWS * WIDTH + i % WIDTH];
}

/* [6, 2 + 5 + 2] */
BUILD(concat_of_columns)
{
    (void)ids, (void)input;
    const keel_value cut = keel_graph_slice(graph, bent(graph, p[0]), 1, 2, 2);
    return keel_graph_concat(graph, (keel_value[]){cut, p[1], cut}, 3, 1);
}
static void concat_of_columns(const struct op_operands *o, double *y)
{
    for (int r = 0; r < ROWS; r++) {
        for (int c = 0; c < 9; c++) {
            const int from = c < 2 ? c + 2 : c - 5;
            y[r * 9 + c] =
                c >= 2 && c < 7 ? o->param[1][r * WIDTH + c - 2] : tanh(o->param[0][r * WIDTH + from]);
        }
    }
}

/* [2, 3, 5] -> [5, 2, 3] */
BUILD(permute)
{
    (void)ids, (void)input;
    return keel_graph_permute(graph, bent(graph, p[0]), (uint32_t[]){2, 0, 1});
}
static void permute(const struct op_operands *o, double *y)
{
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 6; j++)
            y[i * 6 + j] = tanh(o->param[0][j * 5 + i]);
}

BUILD(multiply)
{
    (void)ids, (void)input;
    return keel_graph_multiply(graph, keel_graph_multiply(graph, p[0], p[1]), p[0]);
}
static void multiply(const struct op_operands *o, double *y)
{
    for (int i = 0; i < ROWS * WIDTH; i++)
        y[i] = o->param[0][i] * o->param[0][i] * o->param[1][i];
}

/* ---- rows ---- */

static void soft_row(const double *x, int n, double *y)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += exp(x[i]);
    for (int i = 0; i < n; i++)
        y[i] = exp(x[i]) / sum;
}

BUILD(softmax)
{
    (void)ids, (void)input;
    return keel_graph_softmax(graph, bent(graph, p[0]));
}
static void softmax(const struct op_operands *o, double *y)
{
    for (int r = 0; r < ROWS; r++) {
        double x[WIDTH];
        for (int i = 0; i < WIDTH; i++)
            x[i] = tanh(o->param[0][r * WIDTH + i]);
        soft_row(x, WIDTH, y + (size_t)r * WIDTH);
    }
}

/* The k largest of a row, largest first. */
static void largest(const double *x, int n, int k, int *found)
{
    bool taken[16] = {false};
    for (int j = 0; j < k; j++) {
        found[j] = -1;
        for (int i = 0; i < n; i++)
            found[j] = !taken[i] && (found[j] < 0 || x[i] > x[found[j]]) ? i : found[j];
        taken[found[j]] = true;
    }
}

BUILD(top_k)
{
    (void)ids, (void)input;
    keel_value values, indices;
    keel_graph_top_k(graph, p[0], 3, &values, &indices);
    return values;
}
static void top_k(const struct op_operands *o, double *y)
{
    for (int r = 0; r < ROWS; r++) {
        int found[3];
        largest(o->param[0] + (size_t)r * WIDTH, WIDTH, 3, found);
        for (int j = 0; j < 3; j++)
            y[r * 3 + j] = o->param[0][r * WIDTH + found[j]];
    }
}

BUILD(cumsum)
{
    (void)ids, (void)input;
    return keel_graph_cumsum(graph, bent(graph, p[0]));
}
static void cumsum(const struct op_operands *o, double *y)
{
    for (int i = 0; i < ROWS * WIDTH; i++)
        y[i] = tanh(o->param[0][i]) + (i % WIDTH == 0 ? 0 : y[i - 1]);
}

/* ---- tables: ids in [0, 6) of 4 rows, so that some are absent ---- */

static void rows_of_table(const struct op_operands *o, bool curved, double *y)
{
    for (int i = 0; i < ROWS * WIDTH; i++) {
        const int32_t id = o->ids[i / WIDTH];
        const double x = id < TABLE ? o->param[0][id * WIDTH + i % WIDTH] : 0;
        y[i] = curved ? tanh(x) : x;
    }
}
BUILD(gather)
{
    (void)input;
    return keel_graph_gather(graph, p[0], ids);
}
static void gather(const struct op_operands *o, double *y)
{
    rows_of_table(o, false, y);
}
BUILD(gather_of_a_value)
{
    (void)input;
    return keel_graph_gather(graph, bent(graph, p[0]), ids);
}
static void gather_of_a_value(const struct op_operands *o, double *y)
{
    rows_of_table(o, true, y);
}

/* [3, 2] bags of 2: ids [3, 2, 2] */
BUILD(embedding_bag)
{
    (void)input;
    return keel_graph_embedding_bag(graph, ids, p[0]);
}
static void embedding_bag(const struct op_operands *o, double *y)
{
    for (int i = 0; i < 6 * WIDTH; i++) {
        y[i] = 0;
        for (int j = 0; j < 2; j++) {
            const int32_t id = o->ids[i / WIDTH * 2 + j];
            y[i] += id < TABLE ? o->param[0][id * WIDTH + i % WIDTH] : 0;
        }
    }
}

/* [2, 3, 5] */
BUILD(pairwise_dot)
{
    (void)ids, (void)input;
    return keel_graph_pairwise_dot(graph, bent(graph, p[0]));
}
static void pairwise_dot(const struct op_operands *o, double *y)
{
    static const int pairs[3][2] = {{1, 0}, {2, 0}, {2, 1}};
    for (int i = 0; i < 6; i++) {
        y[i] = 0;
        for (int c = 0; c < WIDTH; c++)
            y[i] += tanh(o->param[0][(i / 3 * 3 + pairs[i % 3][0]) * WIDTH + c]) *
                    tanh(o->param[0][(i / 3 * 3 + pairs[i % 3][1]) * WIDTH + c]);
    }
}

/* ---- experts ---- */

/* p0: x [6, 5]; p1: what the router says [6, 3]. The experts take the tanh of their rows; room for 3 each, so
 * that some are dropped. */
static keel_value route(struct keel_graph *graph, const keel_value *p, keel_value *probabilities,
                        keel_value *choice)
{
    keel_value weights, sorted, offsets, place;
    *probabilities = keel_graph_softmax(graph, p[1]);
    keel_graph_top_k(graph, *probabilities, K, &weights, choice);
    keel_graph_dispatch(graph, p[0], *choice, EXPERTS, 3, &sorted, &offsets, &place);
    return keel_graph_combine(graph, bent(graph, sorted), place, weights);
}
static void routed(const struct op_operands *o, double *y, double probabilities[ROWS * EXPERTS],
                   int taken[EXPERTS])
{
    memset(y, 0, ROWS * WIDTH * sizeof *y);
    memset(taken, 0, EXPERTS * sizeof *taken);
    for (int r = 0; r < ROWS; r++) {
        double *p = probabilities + (size_t)r * EXPERTS;
        int found[K];
        soft_row(o->param[1] + (size_t)r * EXPERTS, EXPERTS, p);
        largest(p, EXPERTS, K, found);
        for (int j = 0; j < K; j++) {
            const bool kept = taken[found[j]]++ < 3;
            for (int c = 0; c < WIDTH && kept; c++)
                y[r * WIDTH + c] += p[found[j]] * tanh(o->param[0][r * WIDTH + c]);
        }
    }
}

BUILD(experts)
{
    (void)ids, (void)input;
    keel_value probabilities, choice;
    return route(graph, p, &probabilities, &choice);
}
static void experts(const struct op_operands *o, double *y)
{
    double probabilities[ROWS * EXPERTS];
    int taken[EXPERTS];
    routed(o, y, probabilities, taken);
}

/* p2: a layer of each expert [3, 5, 4], p3: its biases. */
BUILD(expert_layers)
{
    (void)ids, (void)input;
    keel_value weights, choice, sorted, offsets, place;
    keel_graph_top_k(graph, keel_graph_softmax(graph, p[1]), K, &weights, &choice);
    keel_graph_dispatch(graph, bent(graph, p[0]), choice, EXPERTS, 3, &sorted, &offsets, &place);
    keel_value y = keel_graph_expert_linear(graph, sorted, p[2], p[3], offsets);
    return keel_graph_combine(graph, y, place, weights);
}
static void expert_layers(const struct op_operands *o, double *y)
{
    int taken[EXPERTS] = {0};
    memset(y, 0, ROWS * LAYER * sizeof *y);
    for (int r = 0; r < ROWS; r++) {
        double p[EXPERTS];
        int found[K];
        soft_row(o->param[1] + (size_t)r * EXPERTS, EXPERTS, p);
        largest(p, EXPERTS, K, found);
        for (int j = 0; j < K; j++) {
            const int e = found[j];
            const bool kept = taken[e]++ < 3;
            for (int n = 0; n < LAYER && kept; n++) {
                double sum = o->param[3][e * LAYER + n];
                for (int c = 0; c < WIDTH; c++)
                    sum += tanh(o->param[0][r * WIDTH + c]) * o->param[2][(e * WIDTH + c) * LAYER + n];
                y[r * LAYER + n] += p[e] * sum;
            }
        }
    }
}

BUILD(balance_loss)
{
    (void)ids;
    keel_value probabilities, choice;
    keel_graph_mse(graph, route(graph, p, &probabilities, &choice), input);
    return keel_graph_balance_loss(graph, probabilities, choice, 0.5F);
}
static void balance_loss(const struct op_operands *o, double *loss)
{
    double y[ROWS * WIDTH], probabilities[ROWS * EXPERTS];
    int taken[EXPERTS];
    routed(o, y, probabilities, taken);
    loss[0] = 0;
    for (int i = 0; i < ROWS * WIDTH; i++)
        loss[0] += (y[i] - o->input[i]) * (y[i] - o->input[i]) / (ROWS * WIDTH);
    for (int i = 0; i < ROWS * EXPERTS; i++)
        loss[0] += 0.5 * EXPERTS * taken[i % EXPERTS] / (ROWS * K) * probabilities[i] / ROWS;
}

#define SHAPE(...)                                                                                           \
    {                                                                                                        \
        .dims = sizeof((uint64_t[]){__VA_ARGS__}) / 8, .size = { __VA_ARGS__ }                               \
    }
#define CASE(function, count, ...)                                                                           \
    {                                                                                                        \
        .name = #function, .results = (count), .build = build_##function, .forward = function, __VA_ARGS__   \
    }
#define ONE .params = {SHAPE(ROWS, WIDTH)}
#define TWO .params = {SHAPE(ROWS, WIDTH), SHAPE(ROWS, WIDTH)}

static const struct op_case table[] = {
    CASE(reshape, 30, ONE),
    CASE(reshape_of_a_parameter, 30, ONE),
    CASE(concat, 11 * WIDTH, TWO),
    CASE(concat_of_columns, ROWS * 9, TWO),
    CASE(permute, 30, .params = {SHAPE(2, 3, 5)}),
    CASE(multiply, 30, TWO),
    CASE(softmax, 30, ONE),
    CASE(top_k, ROWS * 3, ONE),
    CASE(cumsum, 30, ONE),
    CASE(gather, 30, .params = {SHAPE(TABLE, WIDTH)}, .ids = SHAPE(2, 3), .ids_below = TABLE + 2),
    CASE(gather_of_a_value, 30, .params = {SHAPE(TABLE, WIDTH)}, .ids = SHAPE(2, 3), .ids_below = TABLE + 2),
    CASE(embedding_bag, 30, .params = {SHAPE(TABLE, WIDTH)}, .ids = SHAPE(3, 2, 2), .ids_below = TABLE + 2),
    CASE(pairwise_dot, 6, .params = {SHAPE(2, 3, 5)}),
    CASE(experts, 30, .params = {SHAPE(ROWS, WIDTH), SHAPE(ROWS, EXPERTS)}),
    CASE(expert_layers, ROWS *LAYER,
         .params = {SHAPE(ROWS, WIDTH), SHAPE(ROWS, EXPERTS), SHAPE(EXPERTS, WIDTH, LAYER),
                    SHAPE(EXPERTS, LAYER)}),
    CASE(balance_loss, 1, .params = {SHAPE(ROWS, WIDTH), SHAPE(ROWS, EXPERTS)}, .input = SHAPE(ROWS, WIDTH),
         .is_loss = true),
};

START_TEST(the_gradient_of_an_operation_equals_finite_differences)
{
    op_gradient_case(&table[_i], 1e-6);
}
END_TEST

START_TEST(joining_nothing_or_too_much_is_refused)
{
    for (uint32_t count = 0; count < 66; count += 65) {
        struct keel_graph *graph = NULL;
        ck_ok(keel_graph_create(&graph));
        keel_value parts[65];
        for (uint32_t i = 0; i < 65; i++)
            parts[i] = i == 0 ? keel_graph_input(graph, "x", KEEL_F32, SHAPE_OF(6, 5)) : parts[0];
        ck_assert_uint_eq(keel_graph_concat(graph, parts, count, 0), 0);
        ck_status(keel_graph_status(graph), KEEL_INVALID);
        ck_assert_ptr_nonnull(strstr(keel_detail(), count == 0 ? "concat: 0 parts" : "concat: 65 parts"));
        keel_graph_destroy(graph);
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, the_gradient_of_an_operation_equals_finite_differences, 0,
                        sizeof table / sizeof *table);
    tcase_add_test(tc, joining_nothing_or_too_much_is_refused);
}
KEEL_TEST_MAIN("table_gradient", cases, 60)
