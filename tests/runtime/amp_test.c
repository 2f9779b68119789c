/* amp_test.c - storage in 16 bits: what is rounded, what it saves, and what happens when a gradient
 * overflows. */
#include "engine_rig.h"

#include <math.h>
#include <stdio.h>

enum { STEPS = 4 };

static const struct keel_gpt_config small_gpt = {.layers = 3,
                                                 .heads = 2,
                                                 .width = 16,
                                                 .block = 8,
                                                 .vocab = 11,
                                                 .batch = 3,
                                                 .dropout = 0.1F,
                                                 .bias = true,
                                                 .tied = true};

static const struct keel_engine_update usual_update = {
    .learning_rate = 1e-2F,
    .settings = {.beta1 = 0.9F, .beta2 = 0.95F, .epsilon = 1e-8F, .weight_decay = 0.1F, .max_norm = 1.0F}};

static float compute_gradients(struct engine_rig *rig, uint32_t step)
{
    static struct tokens tokens;
    ck_ok(keel_engine_zero(rig->engine));
    for (uint32_t m = 0; m < 2; m++) {
        fill_tokens(rig, m, &tokens);
        struct keel_engine_batch batch = batch_of(&tokens, step, m);
        ck_ok(keel_engine_microbatch(rig->engine, &batch));
    }
    return read_loss(rig);
}

static struct keel_engine_updated update_weights(struct engine_rig *rig, uint32_t step)
{
    struct keel_engine_update update = usual_update;
    struct keel_engine_updated updated;
    update.step = step;
    ck_ok(keel_engine_update(rig->engine, &update, soon(), &updated));
    return updated;
}

/* ---- what is rounded ---- */

static float *gradients_of(enum keel_dtype storage, float unscale, float *out_loss, uint64_t *out_count)
{
    struct engine_rig rig;
    engine_rig_open(&rig, "host", small_gpt,
                    (struct keel_engine_config){.training = true,
                                                .storage = storage,
                                                .loss_scale = storage == KEEL_F16 ? 1.0F / unscale : 0.0F,
                                                .microbatches = 2});
    ck_ok(keel_engine_initialize(rig.engine, 7));
    *out_loss = compute_gradients(&rig, 0);
    *out_count = keel_engine_flat_count(rig.engine);
    float *gradients;
    ck_ok(keel_alloc(*out_count, sizeof *gradients, &gradients));
    read_floats(&rig, keel_engine_flat(rig.engine, KEEL_FLAT_GRADIENTS), 0, gradients, *out_count);
    for (uint64_t i = 0; i < *out_count; i++)
        gradients[i] *= unscale;
    engine_rig_close(&rig);
    return gradients;
}

/* A format has 8 or 11 bits: each element that was rounded is off by 2^-9 or 2^-12 of itself, and sums of
 * them by no more than that of the largest. */
START_TEST(gradients_are_rounded_in_storage_and_the_loss_is_not)
{
    static const struct {
        enum keel_dtype storage;
        float unscale;
        double bound;
    } formats[] = {{KEEL_BF16, 1.0F, 0x1p-6}, {KEEL_F16, 0x1p-16F, 0x1p-9}};
    float loss, rounded_loss;
    uint64_t count, rounded_count;
    float *exact = gradients_of(KEEL_F32, 1.0F, &loss, &count);
    float *rounded = gradients_of(formats[_i].storage, formats[_i].unscale, &rounded_loss, &rounded_count);
    ck_assert(rounded_loss == loss);
    ck_assert_uint_ge(rounded_count, count);
    double largest = 0.0, worst = 0.0;
    for (uint64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs((double)exact[i]));
        worst = fmax(worst, fabs((double)rounded[i] - (double)exact[i]));
    }
    printf("note: %s: largest error of a gradient: %.1e of the largest\n",
           formats[_i].storage == KEEL_BF16 ? "bf16" : "f16", worst / largest);
    ck_assert_double_gt(worst, 0.0);
    ck_assert_double_lt(worst / largest, formats[_i].bound);
    keel_free(exact);
    keel_free(rounded);
}
END_TEST

/* ---- same bits ---- */

static void trace(const char *selector, enum keel_dtype storage, const char *passes_off,
                  uint64_t digests[STEPS])
{
    struct engine_rig rig;
    engine_rig_open(&rig, selector, small_gpt,
                    (struct keel_engine_config){
                        .training = true, .storage = storage, .passes_off = passes_off, .microbatches = 2});
    ck_ok(keel_engine_initialize(rig.engine, 7));
    for (uint32_t step = 0; step < STEPS; step++) {
        compute_gradients(&rig, step);
        digests[step] = update_weights(&rig, step).digest;
    }
    uint64_t digest;
    ck_ok(keel_engine_digest(rig.engine, soon(), &digest));
    ck_assert_uint_eq(digest, digests[STEPS - 1]);
    engine_rig_close(&rig);
}

START_TEST(storage_in_16_bits_has_the_same_bits_on_every_device_and_with_passes_left_out)
{
    const enum keel_dtype storage = _i == 0 ? KEEL_BF16 : KEEL_F16;
    static const char *const off[] = {"fuse", "plan-memory", "fuse-loss", "fuse,plan-memory"};
    uint64_t host[STEPS], other[STEPS], f32[STEPS];
    trace("host", storage, "", host);
    trace("host", KEEL_F32, NULL, f32);
    ck_assert_uint_ne(host[STEPS - 1], f32[STEPS - 1]);
    trace("pocl", storage, NULL, other);
    ck_assert_mem_eq(host, other, sizeof host);
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        trace("host", storage, off[i], other);
        ck_assert_msg(memcmp(host, other, sizeof host) == 0, "without %s the bits differ", off[i]);
    }
}
END_TEST

/* ---- memory ---- */

START_TEST(activations_that_wait_take_little_more_than_half_the_memory)
{
    struct keel_gpt_config gpt = small_gpt;
    gpt.layers = 12;
    gpt.width = 64;
    gpt.block = 64;
    struct keel_engine_facts facts[2];
    for (int half = 0; half < 2; half++) {
        struct engine_rig rig;
        engine_rig_open(
            &rig, "host", gpt,
            (struct keel_engine_config){.training = true, .storage = half != 0 ? KEEL_BF16 : KEEL_F32});
        keel_engine_facts(rig.engine, &facts[half]);
        engine_rig_close(&rig);
    }
    double share = (double)facts[1].activation_bytes / (double)facts[0].activation_bytes;
    printf("note: %.0f KiB of activations become %.0f: %.2f\n", (double)facts[0].activation_bytes / 1024,
           (double)facts[1].activation_bytes / 1024, share);
    ck_assert_double_lt(share, 0.6);
}
END_TEST

/* ---- overflow ---- */

static uint64_t scale_place(struct engine_rig *rig)
{
    uint32_t last = keel_engine_param_count(rig->engine) - 1;
    const struct keel_engine_param *param = keel_engine_param(rig->engine, last);
    ck_assert_str_eq(param->name, "loss_scale");
    return keel_engine_tile(rig->engine, last)->offset;
}

static void write_scale(struct engine_rig *rig, float scale)
{
    struct keel_queue *queue = keel_engine_queue(rig->engine);
    ck_ok(keel_queue_write(queue, keel_engine_flat(rig->engine, KEEL_FLAT_WEIGHTS), scale_place(rig) * 4,
                           &scale, 4, NULL, NULL));
    ck_ok(keel_queue_finish(queue, soon()));
}

static float *read_weights(struct engine_rig *rig)
{
    float *weights;
    ck_ok(keel_alloc(keel_engine_flat_count(rig->engine), sizeof *weights, &weights));
    read_floats(rig, keel_engine_flat(rig->engine, KEEL_FLAT_WEIGHTS), 0, weights, scale_place(rig) + 1);
    return weights;
}

/* It begins at 2^24, where the gradients of this model do not fit in f16: steps are skipped, each halving the
 * scale, until they do; and then they are the gradients that they are at any scale. */
START_TEST(an_overflow_skips_the_step_and_halves_the_scale)
{
    struct engine_rig rig;
    engine_rig_open(&rig, "host", small_gpt,
                    (struct keel_engine_config){.training = true, .storage = KEEL_F16, .microbatches = 2});
    ck_ok(keel_engine_initialize(rig.engine, 7));
    float *before = read_weights(&rig), scale = 0x1p24F;
    uint32_t skipped = 0;
    struct keel_engine_updated updated;
    for (uint32_t step = 0;; step++) {
        compute_gradients(&rig, step);
        updated = update_weights(&rig, step);
        ck_assert(updated.loss_scale == scale);
        float *after = read_weights(&rig);
        const uint64_t place = scale_place(&rig);
        if (!updated.skipped) {
            ck_assert(memcmp(before, after, place * sizeof *after) != 0);
            keel_free(after);
            break;
        }
        ck_assert_mem_eq(before, after, place * sizeof *after);
        scale *= 0.5F;
        ck_assert(after[place] == scale && !isfinite(updated.grad_norm));
        uint64_t digest;
        ck_ok(keel_engine_digest(rig.engine, soon(), &digest));
        ck_assert_uint_eq(digest, updated.digest);
        keel_free(after);
        ck_assert_uint_lt(++skipped, 16);
    }
    printf("note: %u steps skipped\n", skipped);
    ck_assert_uint_ge(skipped, 1);
    ck_assert(isfinite(updated.grad_norm) && updated.grad_norm < 100.0F);
    keel_free(before);
    engine_rig_close(&rig);
}
END_TEST

/* No scale helps where the loss is not finite, where the scale is one, or where it was given. */
START_TEST(what_no_scale_helps_has_diverged)
{
    static const struct {
        float fixed, at;
        bool never;
        const char *advice;
    } rows[] = {{0x1p24F, 0.0F, false, "use train.storage = bf16 or a smaller train.loss_scale"},
                {0.0F, 0x1p24F, true, "no weight was trained yet: look for very large numbers in data.path"},
                {0.0F, 1.0F, false, "exceeds what f16 holds (65504): use train.storage = bf16"}};
    struct engine_rig rig;
    engine_rig_open(
        &rig, "host", small_gpt,
        (struct keel_engine_config){
            .training = true, .storage = KEEL_F16, .loss_scale = rows[_i].fixed, .microbatches = 2});
    ck_ok(keel_engine_initialize(rig.engine, 7));
    if (rows[_i].at > 0.0F)
        write_scale(&rig, rows[_i].at);
    compute_gradients(&rig, 0);
    const float infinite = INFINITY;
    struct keel_queue *queue = keel_engine_queue(rig.engine);
    ck_ok(keel_queue_write(queue, keel_engine_flat(rig.engine, KEEL_FLAT_GRADIENTS), 0, &infinite, 4, NULL,
                           NULL));
    ck_ok(keel_queue_finish(queue, soon()));
    struct keel_engine_update update = usual_update;
    update.never_skip = rows[_i].never;
    struct keel_engine_updated updated;
    float *before = read_weights(&rig);
    ck_status(keel_engine_update(rig.engine, &update, soon(), &updated), KEEL_DIVERGED);
    ck_assert_msg(strstr(keel_detail(), rows[_i].advice) != NULL, "\"%s\" lacks \"%s\"", keel_detail(),
                  rows[_i].advice);
    float *after = read_weights(&rig);
    ck_assert_mem_eq(before, after, (scale_place(&rig) + 1) * sizeof *after);
    keel_free(before);
    keel_free(after);
    engine_rig_close(&rig);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, gradients_are_rounded_in_storage_and_the_loss_is_not, 0, 2);
    tcase_add_loop_test(tc, storage_in_16_bits_has_the_same_bits_on_every_device_and_with_passes_left_out, 0,
                        2);
    tcase_add_test(tc, activations_that_wait_take_little_more_than_half_the_memory);
    tcase_add_test(tc, an_overflow_skips_the_step_and_halves_the_scale);
    tcase_add_loop_test(tc, what_no_scale_helps_has_diverged, 0, 3);
}

KEEL_TEST_MAIN("amp", cases, 120)
