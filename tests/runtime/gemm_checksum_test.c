/* gemm_checksum_test.c - a product's result that changes in memory is noticed before a gradient is believed.
 */
#include "engine_internal.h"
#include "engine_rig.h"

static const struct keel_gpt_config tiny = {
    .layers = 2, .heads = 4, .width = 32, .block = 16, .vocab = 61, .batch = 2, .bias = true, .tied = true};

static void open_rig(struct engine_rig *rig, const char *selector, struct keel_engine_config kind)
{
    engine_rig_open(rig, selector, tiny, kind);
    for (uint32_t b = 0; kind.weight_windows && b < keel_engine_bucket_count(rig->engine); b++)
        ck_ok(keel_engine_draw(rig->engine, b, 1));
    if (!kind.weight_windows)
        ck_ok(keel_engine_initialize(rig->engine, 1));
}

static uint64_t train(struct engine_rig *rig, uint32_t steps)
{
    struct tokens tokens;
    struct keel_engine_updated updated = {0};
    for (uint32_t step = 0; step < steps; step++) {
        ck_ok(keel_engine_zero(rig->engine));
        for (uint32_t m = 0; m < 3; m++) {
            fill_tokens(rig, m, &tokens);
            struct keel_engine_batch batch = batch_of(&tokens, step, m);
            ck_ok(keel_engine_microbatch(rig->engine, &batch));
        }
        ck_ok(keel_engine_settle(rig->engine, soon()));
        struct keel_engine_update update = {
            .learning_rate = 1e-3F,
            .step = step,
            .settings = {.beta1 = 0.9F, .beta2 = 0.99F, .epsilon = 1e-8F, .max_norm = 1}};
        ck_ok(keel_engine_update(rig->engine, &update, soon(), &updated));
    }
    return updated.digest;
}

START_TEST(checking_changes_no_bit_and_accuses_nobody)
{
    static const char *const selectors[] = {"host", "pocl:0"};
    for (size_t i = 0; i < 2; i++) {
        uint64_t digest[2];
        for (int check = 0; check < 2; check++) {
            struct engine_rig rig;
            open_rig(&rig, selectors[i],
                     (struct keel_engine_config){.training = true, .check_products = check != 0});
            digest[check] = train(&rig, 4);
            engine_rig_close(&rig);
        }
        ck_assert_uint_eq(digest[0], digest[1]);
    }
}
END_TEST

/* One bit of a product's result turns over as soon as it is there. */
static void flip(struct keel_queue *queue, const struct keel_launch *product, uint32_t which)
{
    struct keel_buffer *c = product->args[2].as.buffer;
    uint64_t words = (uint64_t)product->args[5].as.u32 * product->args[6].as.u32;
    uint64_t at = which * UINT64_C(0x9e3779b97f4a7c15) % words * sizeof(uint32_t);
    uint32_t word;
    ck_ok(keel_queue_read(queue, c, at, &word, sizeof word, NULL, NULL));
    ck_ok(keel_queue_finish(queue, soon()));
    word ^= UINT32_C(1) << which % 32;
    ck_ok(keel_queue_write(queue, c, at, &word, sizeof word, NULL, NULL));
    ck_ok(keel_queue_finish(queue, soon()));
}

static bool is_product(const char *kernel)
{
    return strcmp(kernel, "keel_gemm") == 0 || strcmp(kernel, "keel_gemm_sliced") == 0;
}

/* The train program launch by launch; the result of product number `wanted` is hurt. How many there are. */
static uint32_t run_with_flip(struct engine_rig *rig, uint32_t wanted)
{
    struct keel_engine *engine = rig->engine;
    uint32_t products = 0;
    for (uint32_t l = 0; l < engine->train.list_count; l++)
        for (uint32_t i = 0; i < engine->train.lists[l].count; i++) {
            const struct keel_launch *launch = &engine->train.lists[l].items[i];
            ck_ok(keel_queue_launch(engine->queue, launch->kernel, launch->args, launch->arg_count,
                                    &launch->range, NULL, NULL));
            if (is_product(keel_kernel_name(launch->kernel)) && products++ == wanted)
                flip(engine->queue, launch, wanted);
        }
    return products;
}

/* An engine with all; one with two slices of four, which are two nodes of their tree, so that a sum over
 * slices is two products; one whose gradients and weights lie in windows. Nothing is exchanged, nor gathered:
 * what stands there is as good as any other. */
static const struct keel_engine_config kinds[] = {
    {.training = true, .check_products = true},
    {.training = true, .check_products = true, .tensor = 4, .tensor_first = 1, .tensor_count = 2},
    {.training = true,
     .check_products = true,
     .bucket_bytes = 4096,
     .in_pieces = true,
     .windows = true,
     .weight_windows = true}};

START_TEST(a_flipped_bit_of_any_product_is_noticed_before_the_gradients_are_believed)
{
    uint32_t products = 1;
    for (uint32_t wanted = 0; wanted < products; wanted++) {
        struct engine_rig rig;
        struct tokens tokens;
        open_rig(&rig, _i == 0 ? "pocl:0" : "host", kinds[_i]);
        fill_tokens(&rig, 0, &tokens);
        struct keel_engine_batch batch = batch_of(&tokens, 0, 0);
        ck_ok(keel_engine_zero(rig.engine));
        ck_ok(keel_engine_feed(rig.engine, &batch));
        run_with_flip(&rig, UINT32_MAX); /* nothing is wrong yet */
        ck_ok(keel_engine_settle(rig.engine, soon()));
        products = run_with_flip(&rig, wanted);
        ck_assert_uint_eq(products, rig.engine->checks.count);
        ck_status(keel_engine_settle(rig.engine, soon()), KEEL_CORRUPT);
        ck_assert_msg(strstr(keel_detail(), "has changed in memory since it was computed, in 1 tiles") !=
                          NULL,
                      "%s", keel_detail());
        engine_rig_close(&rig);
    }
    ck_assert_uint_ge(products, 24); /* two layers: four products forward, each with two gradients */
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, checking_changes_no_bit_and_accuses_nobody);
    tcase_add_loop_test(tc, a_flipped_bit_of_any_product_is_noticed_before_the_gradients_are_believed, 0,
                        (int)(sizeof kinds / sizeof kinds[0]));
}

KEEL_TEST_MAIN("product check", cases, 120)
