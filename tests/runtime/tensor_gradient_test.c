/* tensor_gradient_test.c - gradients of tensors of unlike shapes, sums over dimensions and products of two
 * activations, against finite differences in double. */
#include "op_gradient.h"

enum { B = 2, C = 3, T = 4, K = 5 };

#define SHAPE(...)                                                                                           \
    {                                                                                                        \
        .dims = sizeof((uint64_t[]){__VA_ARGS__}) / 8, .size = { __VA_ARGS__ }                               \
    }
#define SHAPE_OF(...) ((struct keel_shape)SHAPE(__VA_ARGS__))
#define BUILD(name, built)                                                                                   \
    static keel_value build_##name(struct keel_graph *graph, const keel_value *p, keel_value ids,            \
                                   keel_value input)                                                         \
    {                                                                                                        \
        (void)ids, (void)input, (void)p;                                                                     \
        return built;                                                                                        \
    }
#define P(number, index) o->param[number][index]

/* [2,3,4] with [3,1]: both gradients, of which the second is summed over the first and the last dimension. */
#define COLUMN(name, kind, value)                                                                            \
    BUILD(name, keel_graph_binary(graph, p[0], p[1], kind))                                                  \
    static void name(const struct op_operands *o, double *y)                                                 \
    {                                                                                                        \
        for (int i = 0; i < B * C * T; i++) {                                                                \
            const double a = P(0, i), b = P(1, i / T % C);                                                   \
            y[i] = value;                                                                                    \
        }                                                                                                    \
    }
COLUMN(add, KEEL_ADD, a + b)
COLUMN(subtract, KEEL_SUBTRACT, a - b)
COLUMN(multiply, KEEL_MULTIPLY, a *b)
COLUMN(divide, KEEL_DIVIDE, a / b)
COLUMN(power, KEEL_POWER, pow(a, b))
COLUMN(maximum, KEEL_MAXIMUM, fmax(a, b))
COLUMN(minimum, KEEL_MINIMUM, fmin(a, b))

/* Each operand lacks something: [3,4] and [2,1,1], the result [2,3,4]. */
BUILD(outer,
      keel_graph_binary(graph, p[0], keel_graph_binary(graph, p[1], p[1], KEEL_MULTIPLY), KEEL_SUBTRACT))
static void outer(const struct op_operands *o, double *y)
{
    for (int i = 0; i < B * C * T; i++)
        y[i] = P(0, i % (C * T)) - P(1, i / (C * T)) * P(1, i / (C * T));
}

BUILD(where, keel_graph_where(graph, keel_graph_binary(graph, p[0], p[1], KEEL_LESS), p[0], p[1]))
static void where(const struct op_operands *o, double *y)
{
    for (int i = 0; i < B * C * T; i++)
        y[i] = fmin(P(0, i), P(1, i / T % C));
}

BUILD(expand, keel_graph_expand(graph, p[0], SHAPE_OF(B, C, T)))
static void expand(const struct op_operands *o, double *y)
{
    for (int i = 0; i < B * C * T; i++)
        y[i] = P(0, i / T % C);
}

BUILD(scale, keel_graph_scale(graph, p[0], -1.5F, 0.25F))
static void scale(const struct op_operands *o, double *y)
{
    for (int i = 0; i < B * C * T; i++)
        y[i] = P(0, i) * -1.5 + 0.25;
}

BUILD(sum_middle, keel_graph_reduce(graph, p[0], KEEL_REDUCE_SUM, 1, 1))
static void sum_middle(const struct op_operands *o, double *y)
{
    for (int i = 0; i < B * T; i++)
        y[i] = 0;
    for (int i = 0; i < B * C * T; i++)
        y[i / (C * T) * T + i % T] += P(0, i);
}

BUILD(mean_last, keel_graph_reduce(graph, p[0], KEEL_REDUCE_MEAN, 1, 2))
static void mean_last(const struct op_operands *o, double *y)
{
    for (int b = 0; b < B; b++) {
        y[b] = 0;
        for (int i = 0; i < C * T; i++)
            y[b] += P(0, b * C * T + i) / (C * T);
    }
}

BUILD(mean_all, keel_graph_reduce(graph, p[0], KEEL_REDUCE_MEAN, 0, 3))
static void mean_all(const struct op_operands *o, double *y)
{
    y[0] = 0;
    for (int i = 0; i < B * C * T; i++)
        y[0] += P(0, i) / (B * C * T);
}

BUILD(maximum_over, keel_graph_reduce(graph, p[0], KEEL_REDUCE_MAXIMUM, 1, 1))
static void maximum_over(const struct op_operands *o, double *y)
{
    for (int i = 0; i < B * T; i++) {
        const double *x = &P(0, i / T * C * T + i % T);
        y[i] = fmax(x[0], fmax(x[T], x[2 * T]));
    }
}

BUILD(matmul, keel_graph_matmul(graph, p[0], p[1]))
static void matmul(const struct op_operands *o, double *y)
{
    for (int b = 0; b < B; b++)
        for (int i = 0; i < C * T; i++) {
            y[b * C * T + i] = 0;
            for (int k = 0; k < K; k++)
                y[b * C * T + i] += P(0, (b * C + i / T) * K + k) * P(1, (b * K + k) * T + i % T);
        }
}

/* Softmax attention of one head by these alone, as models from elsewhere write it. */
BUILD(attention,
      keel_graph_matmul(
          graph,
          keel_graph_softmax(graph, keel_graph_scale(graph, keel_graph_matmul(graph, p[0], p[1]), 0.5F, 0)),
          p[2]))
static void attention(const struct op_operands *o, double *y)
{
    for (int b = 0; b < B; b++)
        for (int i = 0; i < C; i++) {
            double score[T], total = 0;
            for (int t = 0; t < T; t++) {
                score[t] = 0;
                for (int k = 0; k < K; k++)
                    score[t] += 0.5 * P(0, (b * C + i) * K + k) * P(1, (b * K + k) * T + t);
                total += score[t] = exp(score[t]);
            }
            for (int k = 0; k < K; k++) {
                y[(b * C + i) * K + k] = 0;
                for (int t = 0; t < T; t++)
                    y[(b * C + i) * K + k] += score[t] / total * P(2, (b * T + t) * K + k);
            }
        }
}

BUILD(layernorm_epsilon, keel_graph_layernorm_epsilon(graph, p[0], p[1], 0, 0.5F))
static void layernorm_epsilon(const struct op_operands *o, double *y)
{
    for (int r = 0; r < B * C; r++) {
        double mean = 0, square = 0;
        for (int i = 0; i < T; i++)
            mean += P(0, r * T + i) / T;
        for (int i = 0; i < T; i++)
            square += (P(0, r * T + i) - mean) * (P(0, r * T + i) - mean) / T;
        for (int i = 0; i < T; i++)
            y[r * T + i] = (P(0, r * T + i) - mean) / sqrt(square + 0.5) * P(1, i);
    }
}

#define CASE(function, count, ...)                                                                           \
    {                                                                                                        \
        .name = #function, .params = {__VA_ARGS__}, .results = count, .build = build_##function,             \
        .forward = function                                                                                  \
    }
#define BOX   SHAPE(B, C, T)
#define ABOVE .spread = 0.5F, .offset = 1.5F
static const struct op_case table[] = {
    CASE(add, B *C *T, BOX, SHAPE(C, 1)),
    CASE(subtract, B *C *T, BOX, SHAPE(C, 1)),
    CASE(multiply, B *C *T, BOX, SHAPE(C, 1)),
    {.name = "divide",
     .params = {BOX, SHAPE(C, 1)},
     ABOVE,
     .results = B * C * T,
     .build = build_divide,
     .forward = divide},
    {.name = "power",
     .params = {BOX, SHAPE(C, 1)},
     ABOVE,
     .results = B * C * T,
     .build = build_power,
     .forward = power},
    CASE(maximum, B *C *T, BOX, SHAPE(C, 1)),
    CASE(minimum, B *C *T, BOX, SHAPE(C, 1)),
    CASE(outer, B *C *T, SHAPE(C, T), SHAPE(B, 1, 1)),
    CASE(where, B *C *T, BOX, SHAPE(C, 1)),
    CASE(expand, B *C *T, SHAPE(C, 1)),
    CASE(scale, B *C *T, BOX),
    CASE(sum_middle, B *T, BOX),
    CASE(mean_last, B, BOX),
    CASE(mean_all, 1, BOX),
    CASE(maximum_over, B *T, BOX),
    CASE(matmul, B *C *T, SHAPE(B, C, K), SHAPE(B, K, T)),
    CASE(attention, B *C *K, SHAPE(B, C, K), SHAPE(B, K, T), SHAPE(B, T, K)),
    CASE(layernorm_epsilon, B *C *T, BOX, SHAPE(T)),
};

START_TEST(the_gradient_of_an_operation_equals_finite_differences)
{
    op_gradient_case(&table[_i], 1e-6);
}
END_TEST

/* Of equals each has its share of what arrives. */
START_TEST(the_gradient_of_the_largest_is_shared)
{
    struct keel_graph *graph;
    ck_ok(keel_graph_create(&graph));
    keel_value x =
        keel_graph_param(graph, &(struct keel_param_spec){.name = "x", .shape = SHAPE(1, 4), .fill = 2.0F});
    keel_value y = keel_graph_reduce(graph, x, KEEL_REDUCE_MAXIMUM, 1, 1);
    keel_graph_mse(graph, y, keel_graph_input(graph, "targets", KEEL_F32, SHAPE_OF(1)));
    struct keel_device *device = NULL;
    struct keel_kernels *kernels = NULL;
    struct keel_engine *engine = NULL;
    ck_ok(keel_device_open("host", NULL, &device));
    ck_ok(keel_kernels_create(device, &kernels));
    const struct keel_engine_config config = {
        .device = device, .kernels = kernels, .graph = graph, .training = true};
    ck_ok(keel_engine_create(&config, &engine));
    ck_ok(keel_engine_initialize(engine, 1));
    const float target = 0.0F;
    const void *inputs[] = {&target};
    float made[4];
    ck_ok(keel_engine_zero(engine));
    ck_ok(
        keel_engine_microbatch(engine, &(struct keel_engine_batch){.inputs = inputs, .seed = 1, .step = 1}));
    ck_ok(keel_queue_read(keel_engine_queue(engine), keel_engine_flat(engine, KEEL_FLAT_GRADIENTS),
                          keel_engine_tile(engine, 0)->offset * 4, made, sizeof made, NULL, NULL));
    ck_ok(keel_queue_finish(keel_engine_queue(engine), keel_deadline_after_ns(60 * KEEL_NS_PER_S)));
    for (int i = 0; i < 4; i++)
        ck_assert_msg(made[i] == 1.0F, "%g of 4", (double)made[i]); /* 2 (2 - 0) shared by four */
    keel_engine_destroy(engine);
    keel_graph_destroy(graph);
    keel_kernels_destroy(kernels);
    keel_device_close(device);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, the_gradient_of_an_operation_equals_finite_differences, 0,
                        sizeof table / sizeof *table);
    tcase_add_test(tc, the_gradient_of_the_largest_is_shared);
}
KEEL_TEST_MAIN("tensor_gradient", cases, 60)
