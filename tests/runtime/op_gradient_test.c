/* op_gradient_test.c - gradients of the dense family, row by row, against finite differences in double. */
#include "op_gradient.h"

enum { ROWS = 5, WIDTH = 7, OUT = 3 };

/* ---- products ---- */

static keel_value build_linear(struct keel_graph *graph, const keel_value *p, keel_value ids,
                               keel_value input)
{
    (void)ids, (void)input;
    return keel_graph_linear(graph, keel_graph_activation(graph, p[0], KEEL_TANH), p[1], p[2]);
}

static void linear(const struct op_operands *o, double *y)
{
    for (int r = 0; r < ROWS; r++)
        for (int n = 0; n < OUT; n++) {
            double sum = o->param[2][n];
            for (int k = 0; k < WIDTH; k++)
                sum += tanh(o->param[0][r * WIDTH + k]) * o->param[1][k * OUT + n];
            y[r * OUT + n] = sum;
        }
}

/* What is added behind the product, and a GELU behind that: only one of them goes into the product. */
static keel_value build_linear_more(struct keel_graph *graph, const keel_value *p, keel_value ids,
                                    keel_value input)
{
    return keel_graph_activation(graph, keel_graph_add(graph, build_linear(graph, p, ids, input), p[3]),
                                 KEEL_GELU);
}

static void linear_more(const struct op_operands *o, double *y)
{
    linear(o, y);
    for (int i = 0; i < ROWS * OUT; i++) {
        double a = y[i] + o->param[3][i];
        y[i] = 0.5 * a * (1.0 + tanh(sqrt(2.0 / M_PI) * (a + 0.044715 * a * a * a)));
    }
}

static keel_value build_linear_transposed(struct keel_graph *graph, const keel_value *p, keel_value ids,
                                          keel_value input)
{
    (void)ids, (void)input;
    return keel_graph_linear_transposed(graph, p[0], p[1]);
}

static void linear_transposed(const struct op_operands *o, double *y)
{
    for (int r = 0; r < ROWS; r++)
        for (int n = 0; n < OUT; n++) {
            y[r * OUT + n] = 0.0;
            for (int k = 0; k < WIDTH; k++)
                y[r * OUT + n] += o->param[0][r * WIDTH + k] * o->param[1][n * WIDTH + k];
        }
}

/* ---- norms ---- */

static keel_value build_layernorm(struct keel_graph *graph, const keel_value *p, keel_value ids,
                                  keel_value input)
{
    (void)ids, (void)input;
    return keel_graph_layernorm(graph, p[0], p[1], p[2]);
}

static void norm_row(const double *x, const double *gamma, const double *beta, double mean, double *y)
{
    double square = 0.0;
    for (int i = 0; i < WIDTH; i++)
        square += (x[i] - mean) * (x[i] - mean) / WIDTH;
    for (int i = 0; i < WIDTH; i++)
        y[i] = (x[i] - mean) / sqrt(square + 1e-5) * gamma[i] + (beta == NULL ? 0.0 : beta[i]);
}

static void layernorm(const struct op_operands *o, double *y)
{
    for (int r = 0; r < ROWS; r++) {
        const double *x = o->param[0] + (size_t)r * WIDTH;
        double mean = 0.0;
        for (int i = 0; i < WIDTH; i++)
            mean += x[i] / WIDTH;
        norm_row(x, o->param[1], o->param[2], mean, y + (size_t)r * WIDTH);
    }
}

static keel_value build_rms_norm(struct keel_graph *graph, const keel_value *p, keel_value ids,
                                 keel_value input)
{
    (void)ids, (void)input;
    return keel_graph_add(graph, keel_graph_rms_norm(graph, p[0], p[1]), p[0]);
}

static void rms_norm(const struct op_operands *o, double *y)
{
    for (int r = 0; r < ROWS; r++) {
        const double *x = o->param[0] + (size_t)r * WIDTH;
        norm_row(x, o->param[1], NULL, 0.0, y + (size_t)r * WIDTH);
        for (int i = 0; i < WIDTH; i++)
            y[r * WIDTH + i] += x[i];
    }
}

/* ---- element-wise ---- */

#define ELEMENTWISE(name, built, value)                                                                      \
    static keel_value build_##name(struct keel_graph *graph, const keel_value *p, keel_value ids,            \
                                   keel_value input)                                                         \
    {                                                                                                        \
        (void)ids, (void)input;                                                                              \
        return built;                                                                                        \
    }                                                                                                        \
    static void name(const struct op_operands *o, double *y)                                                 \
    {                                                                                                        \
        for (int i = 0; i < ROWS * WIDTH; i++) {                                                             \
            const double a = o->param[0][i], b = o->param[1] == NULL ? 0.0 : o->param[1][i];                 \
            (void)b;                                                                                         \
            y[i] = value;                                                                                    \
        }                                                                                                    \
    }

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

/* 0, or 1 / (1 - rate) where element i is kept. */
static double mask(const struct op_operands *o, uint32_t stream, int i, float rate)
{
    bool kept = keel_random_uniform(&o->control, stream, (uint64_t)i) >= rate;
    return kept ? 1.0 / (1.0 - (double)rate) : 0.0;
}

ELEMENTWISE(gelu, keel_graph_activation(graph, p[0], KEEL_GELU),
            0.5 * a * (1.0 + tanh(sqrt(2.0 / M_PI) * (a + 0.044715 * a * a * a))))
ELEMENTWISE(relu, keel_graph_activation(graph, p[0], KEEL_RELU), fmax(a, 0.0))
ELEMENTWISE(relu_of_relu,
            keel_graph_activation(graph, keel_graph_activation(graph, p[0], KEEL_RELU), KEEL_RELU),
            fmax(a, 0.0))
ELEMENTWISE(tanh_, keel_graph_activation(graph, p[0], KEEL_TANH), tanh(a))
ELEMENTWISE(sigmoid_, keel_graph_activation(graph, p[0], KEEL_SIGMOID), sigmoid(a))
ELEMENTWISE(silu, keel_graph_activation(graph, p[0], KEEL_SILU), a *sigmoid(a))
ELEMENTWISE(swiglu, keel_graph_swiglu(graph, p[0], p[1]), a *sigmoid(a) * b)
ELEMENTWISE(swiglu_of_itself, keel_graph_swiglu(graph, p[0], p[0]), a *sigmoid(a) * a)
ELEMENTWISE(add, keel_graph_add(graph, p[0], p[1]), a + b)
ELEMENTWISE(add_to_itself, keel_graph_add(graph, p[0], p[0]), a + a)
ELEMENTWISE(dropout, keel_graph_add(graph, p[1], keel_graph_dropout(graph, p[0], 0.25F)),
            a *mask(o, 1U << 16, i, 0.25F) + b)

/* ---- losses ---- */

static keel_value build_cross_entropy(struct keel_graph *graph, const keel_value *p, keel_value ids,
                                      keel_value input)
{
    (void)input;
    return keel_graph_cross_entropy(graph, p[0], ids);
}

static void cross_entropy(const struct op_operands *o, double *loss)
{
    loss[0] = 0.0;
    for (int r = 0; r < ROWS; r++) {
        double total = 0.0;
        for (int v = 0; v < WIDTH; v++)
            total += exp(o->param[0][r * WIDTH + v]);
        loss[0] += (log(total) - o->param[0][r * WIDTH + o->ids[r]]) / ROWS;
    }
}

static keel_value build_bce(struct keel_graph *graph, const keel_value *p, keel_value ids, keel_value input)
{
    (void)ids;
    return keel_graph_bce(graph, p[0], input);
}

static void bce(const struct op_operands *o, double *loss)
{
    loss[0] = 0.0;
    for (int i = 0; i < ROWS; i++) {
        double x = o->param[0][i], t = o->input[i];
        loss[0] += (log(1.0 + exp(x)) - x * t) / ROWS;
    }
}

/* Two losses over unlike rows add up. */
static keel_value build_two(struct keel_graph *graph, const keel_value *p, keel_value ids, keel_value input)
{
    keel_graph_mse(graph, keel_graph_activation(graph, p[1], KEEL_TANH), input);
    return keel_graph_cross_entropy(graph, p[0], ids);
}

static void two(const struct op_operands *o, double *loss)
{
    double sum;
    cross_entropy(o, &sum);
    for (int i = 0; i < ROWS; i++)
        sum += (tanh(o->param[1][i]) - o->input[i]) * (tanh(o->param[1][i]) - o->input[i]) / ROWS;
    loss[0] = sum;
}

#define SHAPE(...)                                                                                           \
    {                                                                                                        \
        .dims = sizeof((uint64_t[]){__VA_ARGS__}) / 8, .size = { __VA_ARGS__ }                               \
    }
#define ONE(function)                                                                                        \
    {                                                                                                        \
        .name = #function, .params = {SHAPE(ROWS, WIDTH)}, .results = ROWS * WIDTH,                          \
        .build = build_##function, .forward = function                                                       \
    }
#define BOTH(function)                                                                                       \
    {                                                                                                        \
        .name = #function, .params = {SHAPE(ROWS, WIDTH), SHAPE(ROWS, WIDTH)}, .results = ROWS * WIDTH,      \
        .build = build_##function, .forward = function                                                       \
    }

static const struct op_case table[] = {
    {.name = "linear",
     .params = {SHAPE(ROWS, WIDTH), SHAPE(WIDTH, OUT), SHAPE(OUT)},
     .results = ROWS * OUT,
     .build = build_linear,
     .forward = linear},
    {.name = "linear, an addition, gelu",
     .params = {SHAPE(ROWS, WIDTH), SHAPE(WIDTH, OUT), SHAPE(OUT), SHAPE(ROWS, OUT)},
     .results = ROWS * OUT,
     .build = build_linear_more,
     .forward = linear_more},
    {.name = "linear_transposed",
     .params = {SHAPE(ROWS, WIDTH), SHAPE(OUT, WIDTH)},
     .results = ROWS * OUT,
     .build = build_linear_transposed,
     .forward = linear_transposed},
    {.name = "layernorm",
     .params = {SHAPE(ROWS, WIDTH), SHAPE(WIDTH), SHAPE(WIDTH)},
     .results = ROWS * WIDTH,
     .build = build_layernorm,
     .forward = layernorm},
    {.name = "rms_norm and what by-passes it",
     .params = {SHAPE(ROWS, WIDTH), SHAPE(WIDTH)},
     .results = ROWS * WIDTH,
     .build = build_rms_norm,
     .forward = rms_norm},
    ONE(gelu),
    ONE(relu),
    ONE(relu_of_relu),
    ONE(tanh_),
    ONE(sigmoid_),
    ONE(silu),
    BOTH(swiglu),
    ONE(swiglu_of_itself),
    BOTH(add),
    ONE(add_to_itself),
    BOTH(dropout),
    {.name = "cross_entropy",
     .params = {SHAPE(ROWS, WIDTH)},
     .ids = SHAPE(ROWS),
     .ids_below = WIDTH,
     .is_loss = true,
     .build = build_cross_entropy,
     .forward = cross_entropy},
    {.name = "bce",
     .params = {SHAPE(ROWS)},
     .input = SHAPE(ROWS),
     .is_loss = true,
     .build = build_bce,
     .forward = bce},
    {.name = "two losses",
     .params = {SHAPE(ROWS, WIDTH), SHAPE(ROWS)},
     .ids = SHAPE(ROWS),
     .ids_below = WIDTH,
     .input = SHAPE(ROWS),
     .is_loss = true,
     .build = build_two,
     .forward = two},
};

START_TEST(the_gradient_of_an_operation_equals_finite_differences)
{
    op_gradient_case(&table[_i], 1e-6);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, the_gradient_of_an_operation_equals_finite_differences, 0,
                        sizeof table / sizeof *table);
}
KEEL_TEST_MAIN("op_gradient", cases, 60)
