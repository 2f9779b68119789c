/* engine_test.c - the compiled step: same bits everywhere, and what the door promises. */
#include "engine_rig.h"
#include "malloc_count.h"

#include <keel/file.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { STEPS = 5 };

static const struct keel_gpt_config tiny_gpt = {
    .layers = 2, .heads = 2, .width = 16, .block = 8, .vocab = 11, .batch = 3, .bias = true, .tied = true};

static const struct keel_engine_update usual_update = {
    .learning_rate = 1e-2F,
    .settings = {.beta1 = 0.9F, .beta2 = 0.95F, .epsilon = 1e-8F, .weight_decay = 0.1F, .max_norm = 1.0F}};

/* What a step says of itself. */
struct step_result {
    float loss, grad_norm;
    uint64_t digest;
};

/* A whole step of two microbatches. */
static struct step_result run_step(struct engine_rig *rig, uint32_t step)
{
    static struct tokens tokens;
    struct step_result result;
    ck_ok(keel_engine_zero(rig->engine));
    for (uint32_t m = 0; m < 2; m++) {
        fill_tokens(rig, step * 2 + m, &tokens);
        struct keel_engine_batch batch = batch_of(&tokens, step, m);
        ck_ok(keel_engine_microbatch(rig->engine, &batch));
    }
    result.loss = read_loss(rig);
    struct keel_engine_update update = usual_update;
    struct keel_engine_updated updated;
    update.step = step;
    ck_ok(keel_engine_update(rig->engine, &update, soon(), &updated));
    result.grad_norm = updated.grad_norm;
    result.digest = updated.digest;
    return result;
}

static struct keel_gpt_config with_dropout(struct keel_gpt_config gpt)
{
    gpt.dropout = 0.2F;
    return gpt;
}

/* ---- same bits ----------------------------------------------------------------------------------------- */

/* Five whole steps from the same seed. */
static void trace(const char *selector, struct keel_gpt_config gpt, const char *passes_off,
                  struct step_result *out)
{
    struct engine_rig rig;
    memset(out, 0, STEPS * sizeof *out);
    engine_rig_open(
        &rig, selector, gpt,
        (struct keel_engine_config){.training = true, .passes_off = passes_off, .microbatches = 2});
    ck_ok(keel_engine_initialize(rig.engine, 1234));
    for (uint32_t step = 0; step < STEPS; step++)
        out[step] = run_step(&rig, step);
    engine_rig_close(&rig);
}

static void expect_same(const struct step_result *a, const struct step_result *b, const char *what)
{
    for (uint32_t i = 0; i < STEPS; i++) {
        ck_assert_msg(memcmp(&a[i].loss, &b[i].loss, sizeof(float)) == 0, "%s: loss of step %u: %.9g, %.9g",
                      what, i, (double)a[i].loss, (double)b[i].loss);
        ck_assert_msg(memcmp(&a[i].grad_norm, &b[i].grad_norm, sizeof(float)) == 0,
                      "%s: norm of step %u: %.9g, %.9g", what, i, (double)a[i].grad_norm,
                      (double)b[i].grad_norm);
        ck_assert_msg(a[i].digest == b[i].digest, "%s: digest of step %u", what, i);
    }
    ck_assert(a[0].digest != a[1].digest && a[STEPS - 2].digest != a[STEPS - 1].digest);
}

static void expect_host_bits(const char *selector, const char *what)
{
    struct keel_gpt_config shapes[5];
    for (int i = 0; i < 4; i++) {
        shapes[i] = (i & 1) != 0 ? with_dropout(tiny_gpt) : tiny_gpt;
        shapes[i].tied = shapes[i].bias = (i & 2) == 0;
    }
    /* Nothing a multiple of the width of a vector. */
    shapes[4] = (struct keel_gpt_config){.layers = 1,
                                         .heads = 3,
                                         .width = 21,
                                         .block = 5,
                                         .vocab = 13,
                                         .batch = 2,
                                         .dropout = 0.3F,
                                         .bias = true};
    for (int i = 0; i < 5; i++) {
        struct step_result host[STEPS];
        struct step_result device[STEPS];
        trace("host", shapes[i], NULL, host);
        trace(selector, shapes[i], NULL, device);
        expect_same(host, device, what);
    }
}

/* Each test is a process of its own, so the driver reads these settings afresh. */
START_TEST(five_steps_have_the_host_s_bits_on_all_threads_of_pocl)
{
    setenv("POCL_DEVICES", "pthread", 1);
    expect_host_bits("pocl", "pocl, all threads");
}
END_TEST

START_TEST(five_steps_have_the_host_s_bits_on_one_thread_of_pocl)
{
    setenv("POCL_DEVICES", "pthread", 1);
    setenv("POCL_MAX_PTHREAD_COUNT", "1", 1);
    expect_host_bits("pocl", "pocl, one thread");
}
END_TEST

START_TEST(five_steps_have_the_host_s_bits_on_pocl_basic)
{
    setenv("POCL_DEVICES", "basic", 1);
    expect_host_bits("pocl", "pocl, basic");
}
END_TEST

START_TEST(switching_passes_off_leaves_the_bits)
{
    static const char *const off[] = {"fuse", "plan-memory", "fuse,plan-memory", "fuse-residual",
                                      "fuse-gelu,fuse-norm,fuse-dropout"};
    setenv("POCL_DEVICES", "pthread", 1);
    for (int dropout = 0; dropout < 2; dropout++) {
        struct keel_gpt_config gpt = dropout != 0 ? with_dropout(tiny_gpt) : tiny_gpt;
        struct step_result all[STEPS];
        struct step_result fewer[STEPS];
        trace("host", gpt, "", all);
        trace("pocl", gpt, "", fewer);
        expect_same(all, fewer, "all passes");
        trace("pocl", gpt, NULL, fewer);
        expect_same(all, fewer, "those that pay");
        for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
            trace("host", gpt, off[i], fewer);
            expect_same(all, fewer, off[i]);
            trace("pocl", gpt, off[i], fewer);
            expect_same(all, fewer, off[i]);
        }
    }
}
END_TEST

/* Models that hand an operation one value twice, and make known what a fused operation would swallow: each
 * has a result [ROWS, WIDTH]. */
enum twice {
    NORM_AND_ITS_OPERAND,
    RMS_AND_ITS_OPERAND,
    PRODUCT_AND_ITS_OPERAND,
    GATE_OF_ITSELF,
    SQUARE,
    DOUBLE,
    OUTPUT_OF_A_PRODUCT,
    TWICES
};
enum { ROWS = 3, WIDTH = 5 };
static keel_value weights(struct keel_graph *graph, const char *name, uint32_t dims)
{
    return keel_graph_param(graph, &(struct keel_param_spec){.name = name,
                                                             .shape = {dims, {WIDTH, dims > 1 ? WIDTH : 0}},
                                                             .deviation = 0.5F});
}
static keel_value read_twice(struct keel_graph *graph, enum twice which, keel_value x)
{
    keel_value y;
    switch (which) {
    case NORM_AND_ITS_OPERAND:
        return keel_graph_add(graph, x, keel_graph_layernorm(graph, x, weights(graph, "gamma", 1), 0));
    case RMS_AND_ITS_OPERAND:
        return keel_graph_add(graph, keel_graph_rms_norm(graph, x, weights(graph, "gamma", 1)), x);
    case PRODUCT_AND_ITS_OPERAND:
        return keel_graph_add(graph, keel_graph_linear(graph, x, weights(graph, "w", 2), 0), x);
    case GATE_OF_ITSELF:
        return keel_graph_swiglu(graph, x, x);
    case SQUARE:
        return keel_graph_multiply(graph, x, x);
    case DOUBLE:
        return keel_graph_add(graph, x, x);
    case OUTPUT_OF_A_PRODUCT:
    case TWICES:
    default:
        y = keel_graph_linear(graph, x, weights(graph, "w", 2), 0);
        keel_graph_output(graph, y);
        return keel_graph_add(graph, y, x);
    }
}

/* Loss, norm and output of a step of one of them. */
struct twice_result {
    float loss, norm, eval, output[ROWS * WIDTH];
};
static void train_twice(enum twice which, const char *passes_off, struct twice_result *out)
{
    struct engine_rig rig = {.engine = NULL};
    struct keel_graph *graph;
    const struct keel_shape shape = {2, {ROWS, WIDTH}};
    float x[ROWS * WIDTH], target[ROWS * WIDTH];
    for (uint32_t i = 0; i < ROWS * WIDTH; i++) {
        x[i] = (float)(i * 7 % 11) / 8.0F - 0.5F;
        target[i] = (float)(i * 5 % 13) / 8.0F;
    }
    const void *const inputs[] = {x, target};
    const struct keel_engine_batch batch = {.inputs = inputs, .seed = 42};
    ck_ok(keel_device_open("host", NULL, &rig.device));
    ck_ok(keel_kernels_create(rig.device, &rig.kernels));
    ck_ok(keel_graph_create(&graph));
    keel_value first = keel_graph_input(graph, "x", KEEL_F32, shape);
    keel_value goal = keel_graph_input(graph, "goal", KEEL_F32, shape);
    keel_value y = read_twice(graph, which, keel_graph_linear(graph, first, weights(graph, "in", 2), 0));
    if (which != OUTPUT_OF_A_PRODUCT)
        keel_graph_output(graph, y);
    keel_graph_mse(graph, y, goal);
    const struct keel_engine_config config = {.device = rig.device,
                                              .kernels = rig.kernels,
                                              .graph = graph,
                                              .training = true,
                                              .microbatches = 1,
                                              .passes_off = passes_off};
    ck_assert_msg(keel_engine_create(&config, &rig.engine) == KEEL_OK, "model %d without %s: %s", which,
                  passes_off, keel_detail());
    keel_graph_destroy(graph);
    ck_ok(keel_engine_initialize(rig.engine, 42));
    ck_ok(keel_engine_output(rig.engine, &batch, 0, ROWS, soon(), out->output));
    ck_ok(keel_engine_eval(rig.engine, &batch, soon(), &out->eval));
    ck_ok(keel_engine_zero(rig.engine));
    ck_ok(keel_engine_microbatch(rig.engine, &batch));
    const struct keel_engine_update update = {.settings = {.beta1 = 0.9F, .beta2 = 0.99F, .epsilon = 1e-8F},
                                              .learning_rate = 1e-2F};
    struct keel_engine_updated updated;
    ck_ok(keel_engine_update(rig.engine, &update, soon(), &updated));
    out->norm = updated.grad_norm;
    read_floats(&rig, keel_engine_loss(rig.engine), 0, &out->loss, 1);
    engine_rig_close(&rig);
}

START_TEST(a_value_that_a_node_reads_twice_stays_until_it_is_read)
{
    struct twice_result all, none;
    train_twice((enum twice)_i, "fuse,plan-memory", &none);
    train_twice((enum twice)_i, "", &all);
    ck_assert_msg(memcmp(&all, &none, sizeof all) == 0, "model %d: loss %g, norm %g; by itself %g, %g", _i,
                  (double)all.loss, (double)all.norm, (double)none.loss, (double)none.norm);
    ck_assert(none.norm > 0.0F && none.output[0] != 0.0F);
}
END_TEST

/* 2,100 rows: two chunks of logits and a rest, of two microbatches that add to the same gradient. */
START_TEST(logits_taken_in_chunks_of_rows_leave_the_bits_and_take_less_memory)
{
    struct keel_gpt_config gpt = {
        .layers = 1, .heads = 2, .width = 18, .block = 140, .vocab = 501, .batch = 15, .dropout = 0.2F};
    setenv("POCL_DEVICES", "pthread", 1);
    for (int tied = 0; tied < 2; tied++) {
        gpt.tied = tied != 0;
        struct engine_rig rig;
        uint64_t bytes[2];
        for (int i = 0; i < 2; i++) {
            struct keel_engine_facts facts;
            engine_rig_open(
                &rig, "host", gpt,
                (struct keel_engine_config){.training = true, .passes_off = i == 0 ? NULL : "fuse"});
            keel_engine_facts(rig.engine, &facts);
            bytes[i] = facts.activation_bytes;
            engine_rig_close(&rig);
        }
        ck_assert_uint_lt(bytes[0] + UINT64_C(900) * gpt.vocab * sizeof(float), bytes[1]);
        struct step_result whole[STEPS];
        struct step_result chunks[STEPS];
        trace("pocl", gpt, "fuse", whole);
        trace("pocl", gpt, NULL, chunks);
        expect_same(whole, chunks, "chunks");
        if (tied != 0)
            trace("host", gpt, NULL, chunks);
        expect_same(whole, chunks, "chunks on the host");
    }
}
END_TEST

/* ---- learning ------------------------------------------------------------------------------------------ */

START_TEST(the_first_loss_is_the_logarithm_of_the_vocabulary)
{
    struct engine_rig rig;
    struct keel_gpt_config gpt = tiny_gpt;
    gpt.vocab = 97;
    engine_rig_open(&rig, "host", gpt, (struct keel_engine_config){.training = false});
    ck_ok(keel_engine_initialize(rig.engine, 7));
    static struct tokens tokens;
    fill_tokens(&rig, 0, &tokens);
    struct keel_engine_batch batch = batch_of(&tokens, 0, 0);
    float loss;
    ck_ok(keel_engine_eval(rig.engine, &batch, soon(), &loss));
    /* Logits deviate by 0.02 sqrt(16) = 0.08; over 24 tokens the mean does by 0.016: three of that. */
    ck_assert_float_eq_tol(loss, logf(97.0F), 0.05F);
    engine_rig_close(&rig);
}
END_TEST

START_TEST(first_weights_are_the_generator_s_numbers_however_many_threads_draw)
{
    struct engine_rig rig;
    struct keel_gpt_config gpt = tiny_gpt;
    gpt.vocab = 9001; /* large enough to be split */
    engine_rig_open(&rig, "host", gpt, (struct keel_engine_config){.training = false});
    ck_ok(keel_engine_initialize(rig.engine, UINT64_C(0x700000003)));
    struct keel_control control = {.seed_lo = 3, .seed_hi = 7};
    for (uint32_t i = 0; i < keel_engine_param_count(rig.engine); i++) {
        const struct keel_engine_param *param = keel_engine_param(rig.engine, i);
        bool projection = strstr(param->name, "c_proj") != NULL;
        float deviation = projection ? 0.02F / sqrtf(4.0F) : 0.02F;
        float *values = calloc(param->count, sizeof *values);
        ck_assert_ptr_nonnull(values);
        read_floats(&rig, keel_engine_flat(rig.engine, KEEL_FLAT_WEIGHTS),
                    keel_engine_tile(rig.engine, i)->offset, values, param->count);
        for (uint64_t e = 0; e < param->count; e++) {
            float expected = strstr(param->name, "ln_") != NULL && strstr(param->name, "weight") != NULL;
            if (param->decay) /* matrices */
                expected = keel_random_normal(&control, i, e) * deviation;
            ck_assert_msg(values[e] == expected, "%s[%llu] is %g, not %g", param->name, (unsigned long long)e,
                          (double)values[e], (double)expected);
        }
        free(values);
    }
    engine_rig_close(&rig);
}
END_TEST

START_TEST(a_tiny_batch_is_learnt_by_heart)
{
    struct engine_rig rig;
    setenv("POCL_DEVICES", "pthread", 1);
    engine_rig_open(&rig, "pocl", tiny_gpt, (struct keel_engine_config){.training = true});
    ck_ok(keel_engine_initialize(rig.engine, 7));
    static struct tokens tokens;
    fill_tokens(&rig, 0, &tokens);
    float first = 0.0F;
    float loss = 0.0F;
    for (uint32_t step = 0; step < 60; step++) {
        struct keel_engine_batch batch = batch_of(&tokens, step, 0);
        struct keel_engine_update update = usual_update;
        struct keel_engine_updated updated;
        update.step = step;
        ck_ok(keel_engine_zero(rig.engine));
        ck_ok(keel_engine_microbatch(rig.engine, &batch));
        loss = read_loss(&rig);
        first = step == 0 ? loss : first;
        ck_ok(keel_engine_update(rig.engine, &update, soon(), &updated));
    }
    ck_assert_float_eq_tol(first, logf(11.0F), 0.05F);
    ck_assert_float_lt(loss, 0.3F);
    engine_rig_close(&rig);
}
END_TEST

START_TEST(dropout_depends_on_step_and_microbatch_alone)
{
    struct engine_rig rig;
    engine_rig_open(&rig, "host", with_dropout(tiny_gpt), (struct keel_engine_config){.training = true});
    ck_ok(keel_engine_initialize(rig.engine, 7));
    static struct tokens tokens;
    fill_tokens(&rig, 0, &tokens);
    struct keel_engine_batch batches[4] = {batch_of(&tokens, 3, 5), batch_of(&tokens, 3, 5),
                                           batch_of(&tokens, 3, 6), batch_of(&tokens, 4, 5)};
    float loss[4];
    for (int i = 0; i < 4; i++) {
        ck_ok(keel_engine_zero(rig.engine));
        ck_ok(keel_engine_microbatch(rig.engine, &batches[i]));
        loss[i] = read_loss(&rig);
    }
    ck_assert(loss[0] == loss[1]);
    ck_assert(loss[0] != loss[2] && loss[0] != loss[3] && loss[2] != loss[3]);
    engine_rig_close(&rig);
}
END_TEST

/* ---- memory -------------------------------------------------------------------------------------------- */

START_TEST(the_planned_peak_is_the_observed_peak)
{
    static const char *const selectors[] = {"host", "pocl"};
    setenv("POCL_DEVICES", "pthread", 1);
    for (int i = 0; i < 4; i++) {
        struct engine_rig rig;
        struct keel_engine_facts facts;
        engine_rig_open(&rig, selectors[i % 2], tiny_gpt, (struct keel_engine_config){.training = i < 2});
        ck_ok(keel_engine_initialize(rig.engine, 7));
        if (i < 2)
            run_step(&rig, 0);
        keel_engine_facts(rig.engine, &facts);
        ck_assert_uint_eq(facts.planned_peak_bytes, keel_device_stats(rig.device).peak_bytes);
        ck_assert_uint_lt(facts.activation_bytes, facts.planned_peak_bytes);
        engine_rig_close(&rig);
    }
}
END_TEST

/* One of each call. */
static void run_everything(struct engine_rig *rig, uint32_t step)
{
    static struct tokens tokens;
    static float logits[11];
    float loss;
    uint64_t digest;
    run_step(rig, step);
    fill_tokens(rig, 0, &tokens);
    struct keel_engine_batch batch = batch_of(&tokens, 0, 0);
    ck_ok(keel_engine_eval(rig->engine, &batch, soon(), &loss));
    ck_ok(keel_engine_output(rig->engine, &batch, 1, 1, soon(), logits));
    ck_ok(keel_engine_digest(rig->engine, soon(), &digest));
}

START_TEST(nothing_is_allocated_after_the_first_replay)
{
    static const char *const selectors[] = {"host", "pocl"};
    setenv("POCL_DEVICES", "pthread", 1);
    for (int i = 0; i < 2; i++) {
        struct engine_rig rig;
        engine_rig_open(&rig, selectors[i], with_dropout(tiny_gpt),
                        (struct keel_engine_config){.training = true});
        ck_ok(keel_engine_initialize(rig.engine, 7));
        run_everything(&rig, 0);
        uint64_t host = keel_memory_stats().allocations;
        uint64_t device = keel_device_stats(rig.device).allocations;
        for (uint32_t step = 1; step < 2 * KEEL_ENGINE_SLOTS; step++)
            run_everything(&rig, step);
        ck_assert_uint_eq(keel_memory_stats().allocations, host);
        ck_assert_uint_eq(keel_device_stats(rig.device).allocations, device);
        engine_rig_close(&rig);
    }
}
END_TEST

/* A step of training without a word to the harness, which allocates. */
static enum keel_status quiet_step(struct engine_rig *rig, const struct tokens *tokens, uint32_t step)
{
    struct keel_engine_updated updated;
    struct keel_engine_update update = usual_update;
    update.step = step;
    KEEL_TRY(keel_engine_zero(rig->engine));
    for (uint32_t m = 0; m < 2; m++) {
        struct keel_engine_batch batch = batch_of(tokens, step, m);
        KEEL_TRY(keel_engine_microbatch(rig->engine, &batch));
    }
    return keel_engine_update(rig->engine, &update, soon(), &updated);
}

/* Not by Keel and not by the C library for Keel: what the driver does is its own. */
START_TEST(a_step_calls_malloc_nowhere)
{
    static const char *const selectors[] = {"host", "pocl:0", "pocl:1"};
    static struct tokens tokens;
    setenv("POCL_DEVICES", "basic pthread", 1);
    for (int i = 0; i < 3; i++) {
        struct engine_rig rig;
        engine_rig_open(&rig, selectors[i], with_dropout(tiny_gpt),
                        (struct keel_engine_config){.training = true});
        ck_ok(keel_engine_initialize(rig.engine, 7));
        fill_tokens(&rig, 0, &tokens);
        for (uint32_t step = 0; step < KEEL_ENGINE_SLOTS; step++)
            ck_ok(quiet_step(&rig, &tokens, step));
        malloc_count_begin();
        enum keel_status status = KEEL_OK;
        for (uint32_t step = 0; step < 8 && status == KEEL_OK; step++)
            status = quiet_step(&rig, &tokens, KEEL_ENGINE_SLOTS + step);
        uint64_t calls = malloc_count_end();
        ck_ok(status);
        ck_assert_msg(calls == 0, "%s: %llu calls in 8 steps", selectors[i], (unsigned long long)calls);
        engine_rig_close(&rig);
    }
}
END_TEST

START_TEST(more_microbatches_than_slots_may_be_enqueued_at_once)
{
    struct engine_rig rig;
    setenv("POCL_DEVICES", "pthread", 1);
    engine_rig_open(&rig, "pocl", tiny_gpt, (struct keel_engine_config){.training = true});
    ck_ok(keel_engine_initialize(rig.engine, 7));
    static struct tokens tokens;
    fill_tokens(&rig, 0, &tokens);
    ck_ok(keel_engine_zero(rig.engine));
    struct keel_engine_batch batch = batch_of(&tokens, 0, 0);
    ck_ok(keel_engine_microbatch(rig.engine, &batch));
    float one = read_loss(&rig);
    ck_ok(keel_engine_zero(rig.engine));
    enum { MANY = 3 * KEEL_ENGINE_SLOTS };
    float sum = 0.0F;
    for (uint32_t i = 0; i < MANY; i++) {
        ck_ok(keel_engine_microbatch(rig.engine, &batch));
        sum += one; /* left to right, as the accumulator */
    }
    ck_assert(read_loss(&rig) == sum);
    engine_rig_close(&rig);
}
END_TEST

START_TEST(a_full_ring_times_out_and_the_microbatch_can_be_tried_again)
{
    enum { BALLAST_BYTES = 64 << 20, COPIES = 48 };
    struct engine_rig rig;
    setenv("POCL_DEVICES", "pthread", 1);
    engine_rig_open(&rig, "pocl", tiny_gpt,
                    (struct keel_engine_config){.training = true, .slot_wait_ns = KEEL_NS_PER_MS});
    ck_ok(keel_engine_initialize(rig.engine, 7));
    static struct tokens tokens;
    fill_tokens(&rig, 0, &tokens);
    struct keel_engine_batch batch = batch_of(&tokens, 0, 0);
    ck_ok(keel_engine_zero(rig.engine));
    ck_ok(keel_engine_microbatch(rig.engine, &batch));
    float one = read_loss(&rig);

    /* Work that keeps the queue for a second or so: the slots behind it are not read meanwhile. */
    struct keel_buffer *ballast = NULL;
    ck_ok(keel_buffer_create(rig.device, 2 * BALLAST_BYTES, &ballast));
    for (int i = 0; i < COPIES; i++)
        ck_ok(keel_queue_copy(keel_engine_queue(rig.engine), ballast, 0, ballast, BALLAST_BYTES,
                              BALLAST_BYTES, NULL, NULL));
    ck_ok(keel_engine_zero(rig.engine));
    float sum = 0.0F;
    for (uint32_t i = 0; i < KEEL_ENGINE_SLOTS; i++) {
        ck_ok(keel_engine_microbatch(rig.engine, &batch));
        sum += one;
    }
    ck_status(keel_engine_microbatch(rig.engine, &batch), KEEL_TIMEOUT);
    ck_ok(keel_queue_finish(keel_engine_queue(rig.engine), soon()));
    ck_assert(read_loss(&rig) == sum); /* the refused one left nothing behind */
    ck_ok(keel_engine_microbatch(rig.engine, &batch));
    ck_assert(read_loss(&rig) == sum + one);
    keel_buffer_destroy(ballast);
    engine_rig_close(&rig);
}
END_TEST

/* ---- flat buffers and buckets -------------------------------------------------------------------------- */

START_TEST(buckets_cover_all_and_are_final_when_they_are_said_to_be)
{
    struct engine_rig rig;
    setenv("POCL_DEVICES", "pthread", 1);
    engine_rig_open(&rig, "pocl", tiny_gpt,
                    (struct keel_engine_config){.training = true, .bucket_bytes = 3 * 4096});
    ck_ok(keel_engine_initialize(rig.engine, 7));
    uint64_t flat = keel_engine_flat_count(rig.engine);
    uint64_t covered = 0;
    uint32_t buckets = keel_engine_bucket_count(rig.engine);
    ck_assert_uint_gt(buckets, 4);
    for (uint32_t b = 0; b < buckets; b++) {
        ck_assert_uint_eq(keel_engine_bucket(rig.engine, b)->offset, covered);
        covered += keel_engine_bucket(rig.engine, b)->count;
    }
    ck_assert_uint_eq(covered, flat);

    static struct tokens tokens;
    fill_tokens(&rig, 0, &tokens);
    struct keel_buffer *copy; /* of the gradients, bucket by bucket as they become final */
    ck_ok(keel_buffer_create(rig.device, flat * sizeof(float), &copy));
    ck_ok(keel_engine_zero(rig.engine));
    struct keel_engine_batch batch = batch_of(&tokens, 0, 0);
    ck_ok(keel_engine_feed(rig.engine, &batch));
    for (uint32_t b = 0; b <= buckets; b++) {
        ck_ok(keel_engine_segment(rig.engine, b));
        if (b == buckets)
            break;
        const struct keel_engine_bucket *range = keel_engine_bucket(rig.engine, b);
        ck_ok(keel_queue_copy(keel_engine_queue(rig.engine),
                              keel_engine_flat(rig.engine, KEEL_FLAT_GRADIENTS), range->offset * 4, copy,
                              range->offset * 4, range->count * 4, NULL, NULL));
    }
    float *said = calloc(flat, sizeof *said);
    float *final = calloc(flat, sizeof *final);
    ck_assert(said != NULL && final != NULL);
    read_floats(&rig, copy, 0, said, flat);
    read_floats(&rig, keel_engine_flat(rig.engine, KEEL_FLAT_GRADIENTS), 0, final, flat);
    ck_assert_int_eq(memcmp(said, final, flat * sizeof *final), 0);
    for (uint32_t i = 0; i < keel_engine_param_count(rig.engine); i++) {
        const struct keel_engine_param *param = keel_engine_param(rig.engine, i);
        float largest = 0.0F;
        for (uint64_t e = 0; e < param->count; e++)
            largest = fmaxf(largest, fabsf(final[keel_engine_tile(rig.engine, i)->offset + e]));
        ck_assert_msg(largest > 0.0F, "%s has no gradient", param->name);
    }
    free(said);
    free(final);
    keel_buffer_destroy(copy);
    engine_rig_close(&rig);
}
END_TEST

START_TEST(a_deep_model_has_no_more_buckets_than_a_group_can_sum_at_once)
{
    struct engine_rig rig;
    struct keel_gpt_config deep = tiny_gpt;
    deep.layers = 40;
    engine_rig_open(&rig, "host", deep, (struct keel_engine_config){.training = true, .bucket_bytes = 4096});
    ck_assert_uint_gt(keel_engine_param_count(rig.engine), 2 * KEEL_ENGINE_BUCKETS_MAX);
    uint32_t buckets = keel_engine_bucket_count(rig.engine);
    ck_assert_uint_le(buckets, KEEL_ENGINE_BUCKETS_MAX);
    ck_assert_uint_gt(buckets, KEEL_ENGINE_BUCKETS_MAX / 4);
    const struct keel_engine_bucket *last = keel_engine_bucket(rig.engine, buckets - 1);
    ck_assert_uint_eq(last->offset + last->count, keel_engine_flat_count(rig.engine));
    engine_rig_close(&rig);
}
END_TEST

/* Else gradients of one microbatch would be overwritten by those of the other. No plan has it:
 * keel_tape_check sees to the order of every tape that is run. */
START_TEST(microbatches_that_are_interleaved_are_an_error_of_the_program)
{
    struct engine_rig rig;
    engine_rig_open(&rig, "host", tiny_gpt,
                    (struct keel_engine_config){.training = true, .bucket_bytes = 3 * 4096});
    ck_ok(keel_engine_initialize(rig.engine, 7));
    static struct tokens tokens;
    fill_tokens(&rig, 0, &tokens);
    ck_ok(keel_engine_zero(rig.engine));
    for (uint32_t m = 0; m < 2; m++) {
        struct keel_engine_batch batch = batch_of(&tokens, 0, m);
        ck_ok(keel_engine_feed(rig.engine, &batch));
        ck_ok(keel_engine_segment(rig.engine, 0));
    }
    (void)keel_engine_segment(rig.engine, 2);
}
END_TEST

START_TEST(gaps_between_parameters_stay_zero)
{
    struct engine_rig rig;
    engine_rig_open(&rig, "host", tiny_gpt, (struct keel_engine_config){.training = true, .average = 0.5F});
    ck_ok(keel_engine_initialize(rig.engine, 7));
    run_step(&rig, 0);
    run_step(&rig, 1);
    uint64_t flat = keel_engine_flat_count(rig.engine);
    float *values = calloc(flat, sizeof *values);
    bool *used = calloc(flat, sizeof *used);
    ck_assert(values != NULL && used != NULL);
    for (uint32_t i = 0; i < keel_engine_param_count(rig.engine); i++) {
        const struct keel_engine_param *param = keel_engine_param(rig.engine, i);
        ck_assert_uint_eq(keel_engine_tile(rig.engine, i)->offset % KEEL_FLAT_ALIGN, 0);
        for (uint64_t e = 0; e < param->count; e++) {
            ck_assert(!used[keel_engine_tile(rig.engine, i)->offset + e]);
            used[keel_engine_tile(rig.engine, i)->offset + e] = true;
        }
    }
    for (int f = 0; f < KEEL_FLAT_COUNT; f++) {
        read_floats(&rig, keel_engine_flat(rig.engine, (enum keel_engine_flat)f), 0, values, flat);
        for (uint64_t e = 0; e < flat; e++)
            ck_assert(used[e] || (values[e] == 0.0F && !signbit(values[e])));
    }
    free(values);
    free(used);
    engine_rig_close(&rig);
}
END_TEST

START_TEST(the_digest_is_that_of_the_weights_by_parameter_and_index)
{
    struct engine_rig rig;
    setenv("POCL_DEVICES", "pthread", 1);
    engine_rig_open(&rig, "pocl", tiny_gpt, (struct keel_engine_config){.training = true});
    ck_ok(keel_engine_initialize(rig.engine, 7));
    uint64_t updated = run_step(&rig, 0).digest;
    uint64_t expected = 0;
    for (uint32_t i = 0; i < keel_engine_param_count(rig.engine); i++) {
        const struct keel_engine_param *param = keel_engine_param(rig.engine, i);
        float *values = calloc(param->count, sizeof *values);
        ck_assert_ptr_nonnull(values);
        read_floats(&rig, keel_engine_flat(rig.engine, KEEL_FLAT_WEIGHTS),
                    keel_engine_tile(rig.engine, i)->offset, values, param->count);
        expected += keel_digest_host(values, param->count, (uint64_t)i << 40);
        free(values);
    }
    uint64_t digest;
    ck_ok(keel_engine_digest(rig.engine, soon(), &digest));
    ck_assert_uint_eq(digest, expected);
    ck_assert_uint_eq(updated, expected);
    engine_rig_close(&rig);
}
END_TEST

/* ---- looking, and refusing ----------------------------------------------------------------------------- */

START_TEST(eval_is_training_s_loss_without_dropout_and_the_softmax_of_the_logits)
{
    struct engine_rig train;
    struct engine_rig eval;
    engine_rig_open(&train, "host", tiny_gpt, (struct keel_engine_config){.training = true});
    engine_rig_open(&eval, "host", with_dropout(tiny_gpt), (struct keel_engine_config){.training = false});
    ck_ok(keel_engine_initialize(train.engine, 7));
    ck_ok(keel_engine_initialize(eval.engine, 7));
    static struct tokens tokens;
    fill_tokens(&train, 4, &tokens);
    struct keel_engine_batch batch = batch_of(&tokens, 0, 0);
    ck_ok(keel_engine_zero(train.engine));
    ck_ok(keel_engine_microbatch(train.engine, &batch));
    float loss;
    float own;
    ck_ok(keel_engine_eval(eval.engine, &batch, soon(), &loss));
    ck_ok(keel_engine_eval(train.engine, &batch, soon(), &own));
    ck_assert(loss == own && loss == read_loss(&train)); /* eval leaves the accumulator alone */

    float logits[3 * 8 * 11];
    double sum = 0.0;
    ck_ok(keel_engine_output(eval.engine, &batch, 0, 20, soon(), logits));
    tokens.inputs[1] = NULL; /* sampling has none */
    ck_ok(keel_engine_output(eval.engine, &batch, 20, 4, soon(), logits + 20 * 11));
    for (uint32_t row = 0; row < 24; row++) {
        double total = 0.0;
        for (uint32_t v = 0; v < 11; v++)
            total += exp((double)logits[row * 11 + v]);
        sum += log(total) - (double)logits[row * 11 + (uint32_t)tokens.targets[row]];
    }
    ck_assert_double_eq_tol((double)loss, sum / 24.0, 1e-5);
    ck_status(keel_engine_output(eval.engine, &batch, 20, 5, soon(), logits), KEEL_INVALID);
    engine_rig_close(&train);
    engine_rig_close(&eval);
}
END_TEST

START_TEST(a_norm_that_is_not_finite_changes_nothing)
{
    static const char *const selectors[] = {"host", "pocl"};
    setenv("POCL_DEVICES", "pthread", 1);
    for (int i = 0; i < 4; i++) {
        struct engine_rig rig;
        engine_rig_open(&rig, selectors[i % 2], tiny_gpt, (struct keel_engine_config){.training = true});
        ck_ok(keel_engine_initialize(rig.engine, 7));
        run_step(&rig, 0);
        uint64_t before;
        uint64_t after;
        ck_ok(keel_engine_digest(rig.engine, soon(), &before));
        float bad = i < 2 ? NAN : INFINITY;
        ck_ok(keel_queue_write(
            keel_engine_queue(rig.engine), keel_engine_flat(rig.engine, KEEL_FLAT_GRADIENTS),
            keel_engine_tile(rig.engine, 3)->offset * sizeof bad, &bad, sizeof bad, NULL, NULL));
        struct keel_engine_updated updated = {.digest = 99};
        struct keel_engine_update update = usual_update;
        update.step = 1;
        ck_status(keel_engine_update(rig.engine, &update, soon(), &updated), KEEL_DIVERGED);
        ck_assert_ptr_nonnull(strstr(keel_detail(), "lower train.lr"));
        ck_assert_uint_eq(updated.digest, 99);
        ck_ok(keel_engine_digest(rig.engine, soon(), &after));
        ck_assert_uint_eq(after, before);
        /* m and v are whole too: the next step is what it would have been. */
        struct step_result next = run_step(&rig, 1);
        ck_assert(isfinite(next.loss) && isfinite(next.grad_norm));
        engine_rig_close(&rig);
    }
}
END_TEST

START_TEST(weight_decay_may_change_between_updates)
{
    struct engine_rig rig;
    engine_rig_open(&rig, "host", tiny_gpt, (struct keel_engine_config){.training = true});
    uint64_t digests[2];
    for (int i = 0; i < 2; i++) {
        ck_ok(keel_engine_initialize(rig.engine, 7));
        run_step(&rig, 0);
        struct keel_engine_update update = usual_update;
        struct keel_engine_updated updated;
        update.settings.weight_decay = i == 0 ? 0.1F : 0.2F;
        update.step = 1;
        ck_ok(keel_engine_update(rig.engine, &update, soon(), &updated));
        digests[i] = updated.digest;
    }
    ck_assert_uint_ne(digests[0], digests[1]);
    engine_rig_close(&rig);
}
END_TEST

START_TEST(what_cannot_be_compiled_is_refused_with_a_reason)
{
    struct keel_device *device = NULL;
    struct keel_kernels *kernels = NULL;
    ck_ok(keel_device_open("host", NULL, &device));
    ck_ok(keel_kernels_create(device, &kernels));
    struct keel_graph *good = NULL;
    struct keel_graph *no_loss = NULL;
    ck_ok(keel_graph_create(&good));
    ck_ok(keel_model_gpt(good, &tiny_gpt));
    ck_ok(keel_graph_create(&no_loss));
    keel_graph_input(no_loss, "ids", KEEL_I32, (struct keel_shape){1, {4}});
    keel_graph_input(no_loss, "targets", KEEL_I32, (struct keel_shape){1, {4}});
    struct keel_engine_config config = {
        .device = device, .kernels = kernels, .graph = no_loss, .training = true};
    struct keel_engine *engine = NULL;
    uint64_t live = keel_memory_stats().live_bytes;
    ck_status(keel_engine_create(&config, &engine), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "no loss"));
    config.graph = good;
    config.passes_off = "fuse,fast";
    ck_status(keel_engine_create(&config, &engine), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "fast is no pass"));
    ck_assert_ptr_null(engine);
    ck_assert_uint_eq(keel_memory_stats().live_bytes, live);
    keel_graph_destroy(good);
    keel_graph_destroy(no_loss);
    keel_kernels_destroy(kernels);
    keel_device_close(device);
}
END_TEST

START_TEST(each_pass_leaves_its_graph_in_the_dump_directory)
{
    static const char *const names[] = {"train-0-build.txt",    "train-1-autodiff.txt",
                                        "train-2-fuse.txt",     "train-3-plan-memory.txt",
                                        "eval-1-inference.txt", "eval-3-plan-memory.txt"};
    char directory[] = "/tmp/keel-dump-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(directory));
    struct engine_rig rig;
    engine_rig_open(&rig, "host", with_dropout(tiny_gpt),
                    (struct keel_engine_config){.training = true, .dump_directory = directory});
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[KEEL_PATH_BYTES];
        char *text = NULL;
        size_t bytes;
        ck_ok(keel_path_join(path, directory, names[i]));
        ck_ok(keel_file_read(path, 1 << 20, &text, &bytes));
        ck_assert_ptr_nonnull(strstr(text, "attention("));
        ck_assert((strstr(text, "layernorm_grad(") != NULL) == (i >= 1 && i <= 3));
        ck_assert((strstr(text, " in place") != NULL) == (i == 3 || i == 5));
        keel_free(text);
    }
    engine_rig_close(&rig);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, five_steps_have_the_host_s_bits_on_all_threads_of_pocl);
    tcase_add_test(tc, five_steps_have_the_host_s_bits_on_one_thread_of_pocl);
    tcase_add_test(tc, five_steps_have_the_host_s_bits_on_pocl_basic);
    tcase_add_test(tc, switching_passes_off_leaves_the_bits);
    tcase_add_loop_test(tc, a_value_that_a_node_reads_twice_stays_until_it_is_read, 0, TWICES);
    tcase_add_test(tc, logits_taken_in_chunks_of_rows_leave_the_bits_and_take_less_memory);
    tcase_add_test(tc, the_first_loss_is_the_logarithm_of_the_vocabulary);
    tcase_add_test(tc, first_weights_are_the_generator_s_numbers_however_many_threads_draw);
    tcase_add_test(tc, a_tiny_batch_is_learnt_by_heart);
    tcase_add_test(tc, dropout_depends_on_step_and_microbatch_alone);
    tcase_add_test(tc, the_planned_peak_is_the_observed_peak);
    tcase_add_test(tc, nothing_is_allocated_after_the_first_replay);
    tcase_add_test(tc, a_step_calls_malloc_nowhere);
    tcase_add_test(tc, more_microbatches_than_slots_may_be_enqueued_at_once);
    tcase_add_test(tc, a_full_ring_times_out_and_the_microbatch_can_be_tried_again);
    tcase_add_test(tc, buckets_cover_all_and_are_final_when_they_are_said_to_be);
    tcase_add_test(tc, a_deep_model_has_no_more_buckets_than_a_group_can_sum_at_once);
    tcase_add_test_raise_signal(tc, microbatches_that_are_interleaved_are_an_error_of_the_program, SIGABRT);
    tcase_add_test(tc, gaps_between_parameters_stay_zero);
    tcase_add_test(tc, the_digest_is_that_of_the_weights_by_parameter_and_index);
    tcase_add_test(tc, eval_is_training_s_loss_without_dropout_and_the_softmax_of_the_logits);
    tcase_add_test(tc, a_norm_that_is_not_finite_changes_nothing);
    tcase_add_test(tc, weight_decay_may_change_between_updates);
    tcase_add_test(tc, what_cannot_be_compiled_is_refused_with_a_reason);
    tcase_add_test(tc, each_pass_leaves_its_graph_in_the_dump_directory);
}
KEEL_TEST_MAIN("engine", cases, 240)
