/* accumulators_test.c - each use of a parameter and each loss has a sum of its own over the microbatches of a
 * shard, and the sums are added up at the shard's end, in the order of the model: shown against models in
 * which the uses are parameters of their own, and the losses alone. Bit for bit. */
#include "engine_rig.h"

enum { SHARD = 3, LIMIT_S = 300, FLOATS_MAX = 1 << 16, WITH_MSE = 1, WITH_BCE = 2, ROWS = 8, WIDTH = 24 };
static const char *const selectors[] = {"host", "pocl"};
static const struct keel_gpt_config small_gpt = {
    .layers = 2, .heads = 2, .width = 16, .block = 8, .vocab = 45, .batch = 3, .bias = true};

static uint32_t find(struct engine_rig *rig, const char *name)
{
    uint32_t found = 0;
    while (strcmp(keel_engine_param(rig->engine, found)->name, name) != 0)
        found++;
    return found;
}

/* The floats of a parameter in a flat buffer; how many. */
static uint64_t param_floats(struct engine_rig *rig, enum keel_engine_flat which, const char *name,
                             float *out)
{
    const struct keel_tile *tile = keel_engine_tile(rig->engine, find(rig, name));
    ck_assert_uint_le(tile->count, FLOATS_MAX);
    read_floats(rig, keel_engine_flat(rig->engine, which), tile->offset, out, tile->count);
    return tile->count;
}

static void put(struct engine_rig *rig, const char *name, const float *data)
{
    const struct keel_tile *tile = keel_engine_tile(rig->engine, find(rig, name));
    struct keel_queue *queue = keel_engine_queue(rig->engine);
    ck_ok(keel_queue_write(queue, keel_engine_flat(rig->engine, KEEL_FLAT_WEIGHTS), tile->offset * 4, data,
                           tile->count * 4, NULL, NULL));
    ck_ok(keel_queue_finish(queue, soon()));
}

/* Microbatches `from` to before `to`, as one shard. */
static void run_shard(struct engine_rig *rig, uint32_t from, uint32_t to)
{
    static struct tokens tokens;
    for (uint32_t m = from; m < to; m++) {
        fill_tokens(rig, m, &tokens);
        struct keel_engine_batch batch = batch_of(&tokens, 0, m);
        batch.more = m + 1 < to;
        ck_ok(keel_engine_microbatch(rig->engine, &batch));
    }
}

static void open_gpt(struct engine_rig *rig, const char *selector, bool tied)
{
    struct keel_gpt_config gpt = small_gpt;
    gpt.tied = tied;
    engine_rig_open(rig, selector, gpt, (struct keel_engine_config){.training = true, .microbatches = SHARD});
    ck_ok(keel_engine_initialize(rig->engine, 7));
}

/* The weights of the tied model are those of the other, in which the output product has its own. */
static void copy_weights(struct engine_rig *tied, struct engine_rig *untied)
{
    static float data[FLOATS_MAX];
    for (uint32_t i = 0; i < keel_engine_param_count(tied->engine); i++) {
        const char *name = keel_engine_param(tied->engine, i)->name;
        param_floats(tied, KEEL_FLAT_WEIGHTS, name, data);
        put(untied, name, data);
        if (strcmp(name, "wte.weight") == 0)
            put(untied, "lm_head.weight", data);
    }
}

START_TEST(uses_of_a_tied_weight_are_summed_apart_and_added_once_a_shard)
{
    static float got[FLOATS_MAX], first[FLOATS_MAX], second[FLOATS_MAX];
    struct engine_rig tied, untied;
    open_gpt(&tied, selectors[_i], true);
    open_gpt(&untied, selectors[_i], false);
    copy_weights(&tied, &untied);
    ck_ok(keel_engine_zero(tied.engine));
    ck_ok(keel_engine_zero(untied.engine));
    run_shard(&tied, 0, SHARD);
    run_shard(&untied, 0, SHARD);
    for (uint32_t i = 0; i < keel_engine_param_count(tied.engine); i++) {
        const char *name = keel_engine_param(tied.engine, i)->name;
        uint64_t count = param_floats(&tied, KEEL_FLAT_GRADIENTS, name, got);
        param_floats(&untied, KEEL_FLAT_GRADIENTS, name, first);
        if (strcmp(name, "wte.weight") == 0) {
            param_floats(&untied, KEEL_FLAT_GRADIENTS, "lm_head.weight", second);
            for (uint64_t e = 0; e < count; e++)
                first[e] = first[e] + second[e];
        }
        ck_assert_msg(memcmp(got, first, count * sizeof *got) == 0, "the gradient of %s", name);
    }
    engine_rig_close(&untied);
    engine_rig_close(&tied);
}
END_TEST

/* What is left of the shard before is not added again; and zero takes up a shard that was given up. */
START_TEST(a_shard_that_follows_begins_with_empty_accumulators)
{
    static float got[FLOATS_MAX], wanted[FLOATS_MAX], second[FLOATS_MAX];
    static struct tokens tokens;
    struct engine_rig tied, untied;
    open_gpt(&tied, selectors[_i], true);
    open_gpt(&untied, selectors[_i], false);
    copy_weights(&tied, &untied);
    ck_ok(keel_engine_zero(tied.engine));
    fill_tokens(&tied, 5, &tokens);
    struct keel_engine_batch batch = batch_of(&tokens, 0, 0);
    batch.more = true;
    ck_ok(keel_engine_microbatch(tied.engine, &batch));
    ck_ok(keel_engine_zero(tied.engine));
    run_shard(&tied, 0, 1);
    run_shard(&tied, 0, 1);
    ck_ok(keel_engine_zero(untied.engine));
    run_shard(&untied, 0, 1);
    const uint64_t count = param_floats(&untied, KEEL_FLAT_GRADIENTS, "wte.weight", wanted);
    param_floats(&untied, KEEL_FLAT_GRADIENTS, "lm_head.weight", second);
    for (uint64_t e = 0; e < count; e++) {
        const float once = wanted[e] + second[e];
        wanted[e] = once + wanted[e] + second[e];
    }
    param_floats(&tied, KEEL_FLAT_GRADIENTS, "wte.weight", got);
    ck_assert_mem_eq(got, wanted, count * sizeof *got);
    engine_rig_close(&untied);
    engine_rig_close(&tied);
}
END_TEST

START_TEST(one_more_gradient_of_the_tied_weight_is_planned)
{
    struct keel_engine_facts tied, untied;
    struct engine_rig rig;
    const uint64_t table = 45 * 16, page = KEEL_FLAT_ALIGN;
    open_gpt(&rig, "host", true);
    keel_engine_facts(rig.engine, &tied);
    ck_assert_uint_eq(keel_device_stats(rig.device).live_bytes, tied.planned_peak_bytes);
    engine_rig_close(&rig);
    open_gpt(&rig, "host", false);
    keel_engine_facts(rig.engine, &untied);
    engine_rig_close(&rig);
    ck_assert_uint_eq(untied.parameters - tied.parameters, table);
    /* untied: weights, gradients, two moments; a row of the tables, a tile and a sum of it, a page number */
    const uint64_t apart = 4 * page * sizeof(float);
    ck_assert_uint_ge(untied.planned_peak_bytes - tied.planned_peak_bytes, apart - page * sizeof(float));
    ck_assert_uint_lt(untied.planned_peak_bytes - tied.planned_peak_bytes, apart);
}
END_TEST

/* ---- losses -------------------------------------------------------------------------------------------- */

static void open_losses(struct engine_rig *rig, const char *selector, uint32_t which)
{
    struct keel_graph *graph;
    *rig = (struct engine_rig){.rows = ROWS};
    ck_ok(keel_device_open(selector, NULL, &rig->device));
    ck_ok(keel_kernels_create(rig->device, &rig->kernels));
    ck_ok(keel_graph_create(&graph));
    const struct keel_shape shape = {2, {ROWS, WIDTH}};
    keel_value x = keel_graph_input(graph, "x", KEEL_F32, shape);
    keel_value wanted = keel_graph_input(graph, "wanted", KEEL_F32, shape);
    keel_value y = keel_graph_linear(
        graph, x,
        keel_graph_param(
            graph, &(struct keel_param_spec){.name = "w", .shape = {2, {WIDTH, WIDTH}}, .deviation = 0.5F}),
        0);
    if ((which & WITH_MSE) != 0)
        keel_graph_mse(graph, y, wanted);
    if ((which & WITH_BCE) != 0)
        keel_graph_bce(graph, y, wanted);
    ck_ok(keel_graph_status(graph));
    ck_ok(keel_engine_create(&(struct keel_engine_config){.device = rig->device,
                                                          .kernels = rig->kernels,
                                                          .graph = graph,
                                                          .training = true,
                                                          .microbatches = SHARD},
                             &rig->engine));
    keel_graph_destroy(graph);
    ck_ok(keel_engine_initialize(rig->engine, 7));
}

static void fill_rows(uint32_t number, float x[2][ROWS * WIDTH])
{
    for (uint32_t i = 0; i < ROWS * WIDTH; i++) {
        x[0][i] = (float)((i * 37 + number * 11) % 101) / 101.0F - 0.5F;
        x[1][i] = (float)((i * 53 + number * 7) % 89) / 89.0F;
    }
}

/* The loss of a shard, and of one batch by itself. */
static void losses_of(const char *selector, uint32_t which, float out[2])
{
    static float x[2][ROWS * WIDTH];
    const void *inputs[] = {x[0], x[1]};
    struct engine_rig rig;
    struct keel_engine_batch batch = {.inputs = inputs, .seed = 1};
    open_losses(&rig, selector, which);
    for (int again = 0; again < 2; again++) { /* what the first left is gone */
        ck_ok(keel_engine_zero(rig.engine));
        for (uint32_t m = 0; m < SHARD; m++) {
            fill_rows(m, x);
            batch.microbatch = m;
            batch.more = m + 1 < SHARD;
            ck_ok(keel_engine_microbatch(rig.engine, &batch));
        }
        ck_ok(keel_engine_eval(rig.engine, &batch, soon(), &out[1]));
    }
    out[0] = read_loss(&rig);
    engine_rig_close(&rig);
}

START_TEST(losses_are_summed_apart_and_added_in_their_order)
{
    float both[2], mse[2], bce[2];
    losses_of(selectors[_i], WITH_MSE | WITH_BCE, both);
    losses_of(selectors[_i], WITH_MSE, mse);
    losses_of(selectors[_i], WITH_BCE, bce);
    for (int i = 0; i < 2; i++) {
        const float sum = mse[i] + bce[i];
        ck_assert(mse[i] > 0.0F && bce[i] > 0.0F);
        ck_assert_msg(memcmp(&both[i], &sum, sizeof sum) == 0, "%d: %.9g, but %.9g", i, (double)both[i],
                      (double)sum);
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, uses_of_a_tied_weight_are_summed_apart_and_added_once_a_shard, 0, 2);
    tcase_add_loop_test(tc, a_shard_that_follows_begins_with_empty_accumulators, 0, 2);
    tcase_add_test(tc, one_more_gradient_of_the_tied_weight_is_planned);
    tcase_add_loop_test(tc, losses_are_summed_apart_and_added_in_their_order, 0, 2);
}

KEEL_TEST_MAIN("accumulators", cases, LIMIT_S)
