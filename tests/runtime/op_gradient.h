/* op_gradient.h - the gradients of one operation, as the graph makes them, against finite differences in
 * double.
 *
 * A case says how its graph is written and gives a plain double forward of the same operation. Operands that
 * are differentiated are parameters; others are inputs. The loss is the mean square of the result's distance
 * from fixed random targets, or the operation's own. Each element of each parameter is differentiated by the
 * five-point formula on the plain forward; the engine runs on the host reference. */
#ifndef KEEL_TESTS_OP_GRADIENT_H
#define KEEL_TESTS_OP_GRADIENT_H

#include "harness.h"

#include <keel/clock.h>
#include <keel/engine.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { OP_OPERANDS_MAX = 6, OP_RESULT_MAX = 8192 };

/* What forward and build find; params and inputs are numbered apart. */
struct op_operands {
    double *param[OP_OPERANDS_MAX];
    const int32_t *ids;          /* of the int32 input, if there is one */
    const double *input;         /* of the float input, if there is one */
    struct keel_control control; /* of the microbatch: for dropout */
};

struct op_case {
    const char *name;
    struct keel_shape params[OP_OPERANDS_MAX]; /* ends where dims is 0 */
    struct keel_shape ids;                     /* int32 input: values in [0, ids_below) */
    uint32_t ids_below;
    struct keel_shape input; /* float input: values in [0, 1) */
    float spread;            /* parameters in [-spread, spread); 0: 1 */
    float offset;            /* ... plus this */
    bool is_loss;            /* build returns a loss, forward writes its value */
    uint32_t results;        /* elements that forward writes */
    keel_value (*build)(struct keel_graph *, const keel_value *params, keel_value ids, keel_value input);
    void (*forward)(const struct op_operands *, double *result);
};

struct op_run {
    const struct op_case *of;
    struct keel_engine *engine;
    struct op_operands operands;
    float *targets, *input;
    int32_t *ids;
    double *input_double;
    uint64_t counts[OP_OPERANDS_MAX];
    uint32_t params;
};

static uint64_t op_count(const struct keel_shape *shape)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < shape->dims; i++)
        count *= shape->size[i];
    return count;
}

static void *op_calloc(uint64_t count, size_t bytes)
{
    void *block = calloc(count == 0 ? 1 : count, bytes);
    ck_assert_ptr_nonnull(block);
    return block;
}

static double op_loss(const struct op_run *run)
{
    static double result[OP_RESULT_MAX];
    run->of->forward(&run->operands, result);
    if (run->of->is_loss)
        return result[0];
    double sum = 0.0;
    for (uint32_t i = 0; i < run->of->results; i++)
        sum += (result[i] - (double)run->targets[i]) * (result[i] - (double)run->targets[i]);
    return sum / run->of->results;
}

/* d loss / d element, by the five-point formula: an error of order h^4. */
static double op_difference(const struct op_run *run, double *element)
{
    static const double h = 1e-3, step[4] = {-2.0, -1.0, 1.0, 2.0}, factor[4] = {1.0, -8.0, 8.0, -1.0};
    const double at = *element;
    double sum = 0.0;
    for (int i = 0; i < 4; i++) {
        *element = at + step[i] * h;
        sum += factor[i] * op_loss(run);
    }
    *element = at;
    return sum / (12.0 * h);
}

/* The graph of a case: parameters "p0", "p1", ..., then ids, the input and the targets. */
static struct keel_graph *op_graph(struct op_run *run)
{
    const struct op_case *of = run->of;
    struct keel_graph *graph = NULL;
    keel_value params[OP_OPERANDS_MAX] = {0};
    ck_ok(keel_graph_create(&graph));
    for (run->params = 0; run->params < OP_OPERANDS_MAX && of->params[run->params].dims != 0; run->params++) {
        char name[8];
        snprintf(name, sizeof name, "p%u", run->params);
        params[run->params] = keel_graph_param(
            graph, &(struct keel_param_spec){.name = name, .shape = of->params[run->params]});
    }
    keel_value ids = of->ids.dims == 0 ? 0 : keel_graph_input(graph, "ids", KEEL_I32, of->ids);
    keel_value input = of->input.dims == 0 ? 0 : keel_graph_input(graph, "input", KEEL_F32, of->input);
    keel_value result = of->build(graph, params, ids, input);
    ck_ok(keel_graph_status(graph));
    if (!of->is_loss) {
        struct keel_shape shape = keel_graph_shape(graph, result);
        ck_assert_uint_eq(op_count(&shape), of->results);
        ck_assert_uint_le(of->results, OP_RESULT_MAX);
        keel_graph_mse(graph, result, keel_graph_input(graph, "targets", KEEL_F32, shape));
    }
    ck_ok(keel_graph_status(graph));
    return graph;
}

/* Random numbers for everything, and the parameters into the engine. */
static void op_fill(struct op_run *run)
{
    const struct op_case *of = run->of;
    const struct keel_control draw = {.seed_lo = 77};
    float spread = of->spread > 0.0F ? of->spread : 1.0F;
    for (uint32_t p = 0; p < run->params; p++) {
        const struct keel_engine_param *param = keel_engine_param(run->engine, p);
        float *values = op_calloc(param->count, sizeof *values);
        run->counts[p] = param->count;
        run->operands.param[p] = op_calloc(param->count, sizeof(double));
        for (uint64_t e = 0; e < param->count; e++) {
            values[e] = (2.0F * keel_random_uniform(&draw, p, e) - 1.0F) * spread + of->offset;
            run->operands.param[p][e] = (double)values[e];
        }
        struct keel_queue *queue = keel_engine_queue(run->engine);
        ck_ok(keel_queue_write(queue, keel_engine_flat(run->engine, KEEL_FLAT_WEIGHTS),
                               keel_engine_tile(run->engine, p)->offset * 4, values, param->count * 4, NULL,
                               NULL));
        ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(60 * KEEL_NS_PER_S)));
        free(values);
    }
    uint64_t ids = op_count(&of->ids), inputs = op_count(&of->input);
    run->ids = op_calloc(ids, sizeof *run->ids);
    run->input = op_calloc(inputs, sizeof *run->input);
    run->input_double = op_calloc(inputs, sizeof *run->input_double);
    run->targets = op_calloc(of->results, sizeof *run->targets);
    for (uint64_t i = 0; i < ids && of->ids_below != 0; i++)
        run->ids[i] = (int32_t)(keel_random_u32(&draw, 90, i) % of->ids_below);
    for (uint64_t i = 0; i < inputs; i++)
        run->input_double[i] = (double)(run->input[i] = keel_random_uniform(&draw, 91, i));
    for (uint64_t i = 0; i < of->results; i++)
        run->targets[i] = 2.0F * keel_random_uniform(&draw, 92, i) - 1.0F;
    run->operands.ids = run->ids;
    run->operands.input = run->input_double;
    run->operands.control = (struct keel_control){.seed_lo = 42, .step = 3, .microbatch = 2};
}

/* One microbatch: the gradients of all parameters, and the loss. */
static void op_backward(struct op_run *run)
{
    const void *inputs[3];
    uint32_t count = 0;
    if (run->of->ids.dims != 0)
        inputs[count++] = run->ids;
    if (run->of->input.dims != 0)
        inputs[count++] = run->input;
    if (!run->of->is_loss)
        inputs[count++] = run->targets;
    ck_assert_uint_eq(keel_engine_input_count(run->engine), count);
    struct keel_engine_batch batch = {.inputs = inputs, .seed = 42, .step = 3, .microbatch = 2};
    struct keel_queue *queue = keel_engine_queue(run->engine);
    float loss = 0.0F;
    ck_ok(keel_engine_zero(run->engine));
    ck_ok(keel_engine_microbatch(run->engine, &batch));
    ck_ok(keel_queue_read(queue, keel_engine_loss(run->engine), 0, &loss, sizeof loss, NULL, NULL));
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(60 * KEEL_NS_PER_S)));
    double truth = op_loss(run);
    ck_assert_msg(fabs((double)loss - truth) <= 1e-6 * fmax(fabs(truth), 1.0),
                  "%s: loss %.9g, in double %.9g", run->of->name, (double)loss, truth);
}

/* The largest error of a parameter's gradient, relative to its largest element. */
static double op_compare(struct op_run *run, uint32_t p, double tolerance)
{
    const struct keel_engine_param *param = keel_engine_param(run->engine, p);
    struct keel_queue *queue = keel_engine_queue(run->engine);
    float *made = op_calloc(param->count, sizeof *made);
    double *truth = op_calloc(param->count, sizeof *truth);
    ck_ok(keel_queue_read(queue, keel_engine_flat(run->engine, KEEL_FLAT_GRADIENTS),
                          keel_engine_tile(run->engine, p)->offset * 4, made, param->count * 4, NULL, NULL));
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(60 * KEEL_NS_PER_S)));
    double largest = 0.0, worst = 0.0;
    for (uint64_t e = 0; e < param->count; e++) {
        truth[e] = op_difference(run, &run->operands.param[p][e]);
        largest = fmax(largest, fabs(truth[e]));
    }
    ck_assert_msg(largest > 0.0, "%s: p%u has no gradient", run->of->name, p);
    for (uint64_t e = 0; e < param->count; e++) {
        double error = fabs((double)made[e] - truth[e]) / largest;
        ck_assert_msg(error <= tolerance,
                      "%s: p%u[%llu]: gradient %.9g, by differences %.9g, error %.2g of %.3g", run->of->name,
                      p, (unsigned long long)e, (double)made[e], truth[e], error, largest);
        worst = fmax(worst, error);
    }
    free(made);
    free(truth);
    return worst;
}

static void op_gradient_case(const struct op_case *of, double tolerance)
{
    struct op_run run = {.of = of};
    struct keel_device *device = NULL;
    struct keel_kernels *kernels = NULL;
    ck_ok(keel_device_open("host", NULL, &device));
    ck_ok(keel_kernels_create(device, &kernels));
    struct keel_graph *graph = op_graph(&run);
    struct keel_engine_config config = {
        .device = device, .kernels = kernels, .graph = graph, .training = true};
    ck_ok(keel_engine_create(&config, &run.engine));
    keel_graph_destroy(graph);
    op_fill(&run);
    op_backward(&run);
    double worst = 0.0;
    for (uint32_t p = 0; p < run.params; p++)
        worst = fmax(worst, op_compare(&run, p, tolerance));
    printf("note: %-24s largest error of a gradient %.2g\n", of->name, worst);
    for (uint32_t p = 0; p < run.params; p++)
        free(run.operands.param[p]);
    free(run.targets);
    free(run.input);
    free(run.input_double);
    free(run.ids);
    keel_engine_destroy(run.engine);
    keel_kernels_destroy(kernels);
    keel_device_close(device);
}

#endif
