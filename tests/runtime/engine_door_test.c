/* engine_door_test.c - what an engine promises of graphs that are no transformer: inputs of any number and
 * type, several losses, statistics. */
#include "harness.h"
#include "ir.h"

#include <keel/clock.h>
#include <keel/engine.h>
#include <keel/models.h>
#include <math.h>
#include <string.h>

enum { ROWS = 3, WIDTH = 4 };

struct rig {
    struct keel_device *device;
    struct keel_kernels *kernels;
    struct keel_engine *engine;
};

static uint64_t soon(void)
{
    return keel_deadline_after_ns(60 * KEEL_NS_PER_S);
}

/* y = x w against targets, normalized between the two if asked for; two statistics declared before and after
 * w, which nothing adds to without the norm. */
static struct keel_graph *small_graph(bool normalized)
{
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    keel_value x = keel_graph_input(graph, "x", KEEL_F32, (struct keel_shape){2, {ROWS, WIDTH}});
    keel_value classes = keel_graph_input(graph, "classes", KEEL_I32, (struct keel_shape){1, {ROWS}});
    keel_value wanted = keel_graph_input(graph, "wanted", KEEL_F32, (struct keel_shape){2, {ROWS, 2}});
    keel_value mean = keel_graph_param(
        graph,
        &(struct keel_param_spec){.name = "mean", .shape = {1, {2}}, .statistic = true, .momentum = 0.25F});
    keel_value w = keel_graph_param(
        graph, &(struct keel_param_spec){.name = "w", .shape = {2, {WIDTH, 2}}, .deviation = 0.5F});
    keel_value variance = keel_graph_param(
        graph, &(struct keel_param_spec){
                   .name = "variance", .shape = {1, {2}}, .fill = 1.0F, .statistic = true, .momentum = 0.5F});
    keel_value y = keel_graph_linear(graph, x, w, 0);
    if (normalized) {
        const struct keel_param_spec gamma = {.name = "gamma", .shape = {1, {2}}, .fill = 1.0F};
        const struct keel_param_spec beta = {.name = "beta", .shape = {1, {2}}};
        y = keel_graph_batch_norm(graph, y, keel_graph_param(graph, &gamma), keel_graph_param(graph, &beta),
                                  mean, variance);
    }
    keel_graph_mse(graph, y, wanted);
    keel_graph_cross_entropy(graph, y, classes);
    ck_ok(keel_graph_status(graph));
    return graph;
}

static void open_graph(struct rig *rig, struct keel_engine_config options, struct keel_graph *graph)
{
    ck_ok(keel_device_open("host", NULL, &rig->device));
    ck_ok(keel_kernels_create(rig->device, &rig->kernels));
    options.device = rig->device;
    options.kernels = rig->kernels;
    options.graph = graph;
    options.training = true;
    ck_ok(keel_engine_create(&options, &rig->engine));
    ck_ok(keel_engine_initialize(rig->engine, 7));
    keel_graph_destroy(graph);
}
static void open_rig(struct rig *rig, struct keel_engine_config options)
{
    open_graph(rig, options, small_graph(false));
}

static void close_rig(struct rig *rig)
{
    keel_engine_destroy(rig->engine);
    keel_kernels_destroy(rig->kernels);
    ck_assert_uint_eq(keel_device_stats(rig->device).live_bytes, 0);
    keel_device_close(rig->device);
}

static void read_flat(struct rig *rig, enum keel_engine_flat which, uint32_t param, float *out)
{
    const struct keel_tile *p = keel_engine_tile(rig->engine, param);
    ck_ok(keel_queue_read(keel_engine_queue(rig->engine), keel_engine_flat(rig->engine, which), p->offset * 4,
                          out, p->count * 4, NULL, NULL));
    ck_ok(keel_queue_finish(keel_engine_queue(rig->engine), soon()));
}

static float loss_of(struct rig *rig, const void *const *inputs)
{
    struct keel_engine_batch batch = {.inputs = inputs, .seed = 1};
    float loss;
    ck_ok(keel_engine_eval(rig->engine, &batch, soon(), &loss));
    return loss;
}

static const float some_x[ROWS][WIDTH] = {{1, 2, 3, 4}, {-1, 0.5F, 0, 2}, {0.25F, -3, 1, 1}};
static const int32_t some_classes[ROWS] = {1, 0, 1};
static const float some_wanted[ROWS][2] = {{1, 0}, {0, 1}, {1, 1}};

START_TEST(inputs_are_told_and_fed_in_the_order_of_their_declaration)
{
    struct rig rig;
    open_rig(&rig, (struct keel_engine_config){.slot_wait_ns = 0});
    ck_assert_uint_eq(keel_engine_input_count(rig.engine), 3);
    static const struct {
        const char *name;
        enum keel_dtype dtype;
        uint64_t bytes;
    } wanted[3] = {{"x", KEEL_F32, 48}, {"classes", KEEL_I32, 12}, {"wanted", KEEL_F32, 24}};
    for (uint32_t i = 0; i < 3; i++) {
        const struct keel_engine_input *input = keel_engine_input(rig.engine, i);
        ck_assert_str_eq(input->name, wanted[i].name);
        ck_assert_uint_eq(input->dtype, wanted[i].dtype);
        ck_assert_uint_eq(input->bytes, wanted[i].bytes);
    }
    float w[WIDTH][2];
    float logits[ROWS][2];
    read_flat(&rig, KEEL_FLAT_WEIGHTS, 1, &w[0][0]);
    const void *inputs[3] = {some_x, some_classes, some_wanted};
    struct keel_engine_batch batch = {.inputs = inputs, .seed = 1};
    ck_ok(keel_engine_output(rig.engine, &batch, 0, ROWS, soon(), logits));
    double square = 0.0, entropy = 0.0;
    for (int r = 0; r < ROWS; r++) {
        double y[2] = {0.0, 0.0};
        for (int n = 0; n < 2; n++) {
            for (int k = 0; k < WIDTH; k++)
                y[n] += (double)some_x[r][k] * (double)w[k][n];
            ck_assert_double_eq_tol((double)logits[r][n], y[n], 1e-6);
            square += (y[n] - (double)some_wanted[r][n]) * (y[n] - (double)some_wanted[r][n]) / (2 * ROWS);
        }
        entropy += (log(exp(y[0]) + exp(y[1])) - y[some_classes[r]]) / ROWS;
    }
    ck_assert_double_eq_tol((double)loss_of(&rig, inputs), square + entropy, 1e-5);
    close_rig(&rig);
}
END_TEST

START_TEST(an_input_that_is_absent_is_zeros)
{
    struct rig rig;
    static const float zeros[ROWS][WIDTH];
    open_rig(&rig, (struct keel_engine_config){.slot_wait_ns = 0});
    const void *zero[3] = {zeros, some_classes, some_wanted};
    const void *absent[3] = {NULL, some_classes, some_wanted};
    loss_of(&rig, (const void *[]){some_x, some_classes, some_wanted});
    float loss = loss_of(&rig, zero);
    ck_assert(loss_of(&rig, absent) == loss);
    close_rig(&rig);
}
END_TEST

START_TEST(statistics_lie_last_are_in_no_norm_and_follow_their_mean)
{
    struct rig rig;
    open_graph(&rig, (struct keel_engine_config){.slot_wait_ns = 0}, small_graph(true));
    const struct keel_engine_param *mean = keel_engine_param(rig.engine, 0);
    const struct keel_engine_param *w = keel_engine_param(rig.engine, 1);
    const struct keel_engine_param *variance = keel_engine_param(rig.engine, 2);
    ck_assert(mean->statistic && !w->statistic && variance->statistic);
    for (uint32_t i = 3; i < 5; i++)
        ck_assert(keel_engine_tile(rig.engine, i)->offset < keel_engine_tile(rig.engine, 0)->offset);
    ck_assert(keel_engine_tile(rig.engine, 1)->offset < keel_engine_tile(rig.engine, 0)->offset);
    ck_assert(keel_engine_tile(rig.engine, 1)->offset < keel_engine_tile(rig.engine, 2)->offset);
    struct keel_engine_facts facts;
    keel_engine_facts(rig.engine, &facts);
    ck_assert_uint_eq(facts.parameters, 2 * WIDTH + 4);

    const float seen[2][2] = {{1, -2}, {9, 8}};
    struct keel_engine_batch batch = {.inputs = (const void *[]){some_x, some_classes, some_wanted}};
    struct keel_queue *queue = keel_engine_queue(rig.engine);
    struct keel_buffer *gradients = keel_engine_flat(rig.engine, KEEL_FLAT_GRADIENTS);
    ck_ok(keel_engine_zero(rig.engine));
    ck_ok(keel_engine_microbatch(rig.engine, &batch));
    ck_ok(keel_queue_write(queue, gradients, keel_engine_tile(rig.engine, 0)->offset * 4, seen[0],
                           sizeof seen[0], NULL, NULL));
    ck_ok(keel_queue_write(queue, gradients, keel_engine_tile(rig.engine, 2)->offset * 4, seen[1],
                           sizeof seen[1], NULL, NULL));
    float gradient[2 * WIDTH];
    double squares = 0.0;
    for (uint32_t p = 1; p < 5; p += p == 1 ? 2 : 1) { /* all but the statistics */
        read_flat(&rig, KEEL_FLAT_GRADIENTS, p, gradient);
        for (uint64_t i = 0; i < keel_engine_param(rig.engine, p)->count; i++)
            squares += (double)gradient[i] * (double)gradient[i];
    }
    struct keel_engine_update update = {
        .learning_rate = 1e-2F,
        .settings = {.beta1 = 0.9F, .beta2 = 0.95F, .epsilon = 1e-8F, .weight_decay = 0.1F}};
    struct keel_engine_updated updated;
    ck_ok(keel_engine_update(rig.engine, &update, soon(), &updated));
    ck_assert_double_eq_tol((double)updated.grad_norm, sqrt(squares), 1e-6);
    float after[2][2];
    read_flat(&rig, KEEL_FLAT_WEIGHTS, 0, after[0]);
    read_flat(&rig, KEEL_FLAT_WEIGHTS, 2, after[1]);
    for (int i = 0; i < 2; i++) {
        ck_assert(after[0][i] == 0.25F * seen[0][i]);
        ck_assert(after[1][i] == 1.0F + 0.5F * (seen[1][i] - 1.0F));
    }
    close_rig(&rig);
}
END_TEST

START_TEST(gradients_and_losses_are_means_over_the_microbatches_of_the_step)
{
    struct rig one, two;
    open_rig(&one, (struct keel_engine_config){.microbatches = 1});
    open_rig(&two, (struct keel_engine_config){.microbatches = 2});
    float gradient[2][2 * WIDTH];
    float loss[2];
    struct keel_engine_batch batch = {.inputs = (const void *[]){some_x, some_classes, some_wanted}};
    for (int i = 0; i < 2; i++) {
        struct rig *rig = i == 0 ? &one : &two;
        ck_ok(keel_engine_zero(rig->engine));
        for (int m = 0; m < (i == 0 ? 1 : 2); m++)
            ck_ok(keel_engine_microbatch(rig->engine, &batch));
        ck_ok(keel_queue_read(keel_engine_queue(rig->engine), keel_engine_loss(rig->engine), 0, &loss[i], 4,
                              NULL, NULL));
        read_flat(rig, KEEL_FLAT_GRADIENTS, 1, gradient[i]);
    }
    ck_assert_double_eq_tol((double)loss[0], (double)loss[1], 1e-6);
    for (int e = 0; e < 2 * WIDTH; e++)
        ck_assert(gradient[0][e] == gradient[1][e]); /* halves, added up: exact */
    close_rig(&one);
    close_rig(&two);
}
END_TEST

/* The graph has keys and values that a node keeps: it is evaluated, token after token, and not trained. */
START_TEST(what_is_for_evaluation_alone_is_not_trained)
{
    struct keel_device *device = NULL;
    struct keel_kernels *kernels = NULL;
    struct keel_graph *graph = NULL;
    struct keel_engine *engine = NULL;
    const struct keel_gpt_config gpt = {
        .layers = 1, .heads = 2, .width = 8, .block = 4, .vocab = 5, .batch = 1, .tied = true};
    ck_ok(keel_device_open("host", NULL, &device));
    ck_ok(keel_kernels_create(device, &kernels));
    ck_ok(keel_graph_create(&graph));
    keel_graph_decode(graph, gpt.batch, gpt.block);
    ck_ok(keel_model_gpt(graph, &gpt));
    struct keel_engine_config config = {
        .device = device, .kernels = kernels, .graph = graph, .training = true};
    ck_status(keel_engine_create(&config, &engine), KEEL_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "attention_decode: is for graphs that are evaluated"));
    config.training = false;
    ck_ok(keel_engine_create(&config, &engine));
    ck_assert_uint_eq(keel_engine_input_count(engine), 3);
    /* Tokens of prompts go by the same weights, keys and values, and by no others. */
    struct keel_engine *prompter = NULL;
    struct keel_graph *rows = NULL;
    struct keel_gpt_config block = gpt;
    for (uint32_t sequences = 1; sequences <= 2; sequences++) {
        ck_ok(keel_graph_create(&rows));
        block.batch = 3;
        keel_graph_decode_rows(rows, block.batch, sequences, gpt.block);
        ck_ok(keel_model_gpt(rows, &block));
        config.graph = rows;
        config.weights_of = engine;
        config.only_keeps = true;
        ck_status(keel_engine_create(&config, &prompter), sequences == 1 ? KEEL_OK : KEEL_INVALID);
        keel_graph_destroy(rows);
        if (sequences == 1)
            ck_assert_ptr_eq(keel_engine_flat(prompter, KEEL_FLAT_WEIGHTS),
                             keel_engine_flat(engine, KEEL_FLAT_WEIGHTS));
        else
            ck_assert_ptr_nonnull(strstr(keel_detail(), "has other parameters"));
        if (sequences == 1) { /* whose logits nobody asks for: they are not computed */
            struct keel_engine_facts all, kept;
            keel_engine_facts(engine, &all);
            keel_engine_facts(prompter, &kept);
            ck_assert_uint_lt(kept.commands_eval + 6, all.commands_eval);
            ck_assert_uint_eq(keel_engine_output_shape(prompter).dims, 0);
        }
        if (sequences == 1)
            keel_engine_destroy(prompter);
    }
    config.graph = graph;
    config.training = true;
    ck_status(keel_engine_create(&config, &prompter), KEEL_INVALID);
    config.weights_of = NULL;
    ck_status(keel_engine_create(&config, &prompter), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "what only keeps keys and values is not trained"));
    keel_engine_destroy(engine);
    keel_graph_destroy(graph);
    keel_kernels_destroy(kernels);
    keel_device_close(device);
}
END_TEST

START_TEST(weights_in_few_bits_are_not_trained_and_take_their_words)
{
    struct keel_device *device = NULL;
    struct keel_kernels *kernels = NULL;
    struct keel_graph *graph = NULL;
    struct keel_engine *engine = NULL;
    const struct keel_gpt_config gpt = {
        .layers = 1, .heads = 2, .width = 32, .block = 4, .vocab = 5, .batch = 1, .tied = true};
    ck_ok(keel_device_open("host", NULL, &device));
    ck_ok(keel_kernels_create(device, &kernels));
    ck_ok(keel_graph_create(&graph));
    ck_ok(keel_model_gpt(graph, &gpt));
    uint32_t changed = 0, param = 0;
    for (uint32_t i = 0; i < graph->param_count; i++) {
        bool done;
        ck_ok(keel_pass_quantise(graph, i, 4, 32, &done));
        changed += done;
        if (strcmp(graph->params[i].name, "h.0.mlp.c_fc.weight") == 0)
            param = i;
    }
    ck_assert_uint_eq(changed, 4); /* the table of words is read by the embedding too */
    struct keel_engine_config config = {
        .device = device, .kernels = kernels, .graph = graph, .training = true};
    ck_status(keel_engine_create(&config, &engine), KEEL_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "linear_quantised: is for graphs that are evaluated"));
    config.training = false;
    ck_ok(keel_engine_create(&config, &engine));
    ck_assert_uint_eq(keel_engine_param(engine, param)->count, 128 * (1 + 32 / 8)); /* of 32 x 128 */
    keel_engine_destroy(engine);
    config.only_keeps = true;
    ck_status(keel_engine_create(&config, &engine), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "the graph keeps no keys and values"));
    keel_graph_destroy(graph);
    keel_kernels_destroy(kernels);
    keel_device_close(device);
}
END_TEST

START_TEST(a_graph_without_anything_to_train_or_to_read_is_refused)
{
    struct keel_device *device = NULL;
    struct keel_kernels *kernels = NULL;
    struct keel_graph *graph = NULL;
    struct keel_engine *engine = NULL;
    ck_ok(keel_device_open("host", NULL, &device));
    ck_ok(keel_kernels_create(device, &kernels));
    ck_ok(keel_graph_create(&graph));
    keel_value x = keel_graph_input(graph, "x", KEEL_F32, (struct keel_shape){1, {4}});
    keel_value y = keel_graph_activation(graph, x, KEEL_TANH);
    keel_graph_mse(graph, y, x);
    struct keel_engine_config config = {
        .device = device, .kernels = kernels, .graph = graph, .training = true};
    ck_status(keel_engine_create(&config, &engine), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "no parameter to train"));
    config.storage = KEEL_I32;
    ck_status(keel_engine_create(&config, &engine), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "storage 3 is none: KEEL_F32, KEEL_BF16 or KEEL_F16"));
    config.storage = KEEL_F16;
    config.loss_scale = 3.0F;
    ck_status(keel_engine_create(&config, &engine), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "a loss scale of 3: a power of two"));
    config.loss_scale = NAN;
    ck_status(keel_engine_create(&config, &engine), KEEL_INVALID);
    config.loss_scale = 0.0F;
    config.optimizer = KEEL_OPTIMIZER_COUNT;
    ck_status(keel_engine_create(&config, &engine), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "there is no optimizer 5"));
    keel_graph_output(graph, x);
    ck_status(keel_graph_status(graph), KEEL_INVALID);
    keel_graph_destroy(graph);
    keel_kernels_destroy(kernels);
    keel_device_close(device);
}
END_TEST

START_TEST(a_statistic_needs_a_momentum_and_nothing_of_a_trained_parameter)
{
    static const struct keel_param_spec bad[] = {
        {.name = "s", .shape = {1, {4}}, .statistic = true},
        {.name = "s", .shape = {1, {4}}, .statistic = true, .momentum = 1.5F},
        {.name = "s", .shape = {1, {4}}, .statistic = true, .momentum = 0.1F, .decay = true},
        {.name = "s", .shape = {1, {4}}, .statistic = true, .momentum = 0.1F, .deviation = 1.0F},
        {.name = "s", .shape = {1, {4}}, .momentum = 0.1F},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct keel_graph *graph = NULL;
        ck_ok(keel_graph_create(&graph));
        ck_assert_uint_eq(keel_graph_param(graph, &bad[i]), 0);
        ck_status(keel_graph_status(graph), KEEL_INVALID);
        keel_graph_destroy(graph);
    }
}
END_TEST

START_TEST(a_model_that_does_not_fit_is_told_with_its_largest_tensors_and_what_to_change)
{
    struct keel_device *device = NULL;
    struct keel_kernels *kernels = NULL;
    struct keel_graph *graph = NULL;
    struct keel_engine *engine = NULL;
    const struct keel_gpt_config gpt = {
        .layers = 1, .heads = 64, .width = 16384, .block = 8, .vocab = 1 << 22, .batch = 1, .tied = true};
    ck_ok(keel_device_open("host", NULL, &device));
    ck_ok(keel_kernels_create(device, &kernels));
    ck_ok(keel_graph_create(&graph));
    ck_ok(keel_model_gpt(graph, &gpt));
    struct keel_engine_config config = {
        .device = device, .kernels = kernels, .graph = graph, .training = true};
    ck_status(keel_engine_create(&config, &engine), KEEL_NO_MEMORY);
    static const char *const says[] = {"the largest are wte.weight [4194304,16384] of 262144 MiB, ",
                                       "take a smaller train.batch", "a buffer of "};
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        ck_assert_msg(strstr(keel_detail(), says[i]) != NULL, "\"%s\" lacks \"%s\"", keel_detail(), says[i]);
    keel_graph_destroy(graph);
    keel_kernels_destroy(kernels);
    ck_assert_uint_eq(keel_device_stats(device).live_bytes, 0);
    keel_device_close(device);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_model_that_does_not_fit_is_told_with_its_largest_tensors_and_what_to_change);
    tcase_add_test(tc, inputs_are_told_and_fed_in_the_order_of_their_declaration);
    tcase_add_test(tc, an_input_that_is_absent_is_zeros);
    tcase_add_test(tc, statistics_lie_last_are_in_no_norm_and_follow_their_mean);
    tcase_add_test(tc, gradients_and_losses_are_means_over_the_microbatches_of_the_step);
    tcase_add_test(tc, weights_in_few_bits_are_not_trained_and_take_their_words);
    tcase_add_test(tc, a_graph_without_anything_to_train_or_to_read_is_refused);
    tcase_add_test(tc, what_is_for_evaluation_alone_is_not_trained);
    tcase_add_test(tc, a_statistic_needs_a_momentum_and_nothing_of_a_trained_parameter);
}
KEEL_TEST_MAIN("engine_door", cases, 60)
