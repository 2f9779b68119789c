/* tensor_test.c - one device that holds all slices of the tensor axis: the model is the same but for
 * rounding, and the bits follow from how many slices there are, not from what the passes made of them. */
#include "engine_rig.h"

#include <math.h>
#include <stdio.h>

enum { STEPS = 3, WEIGHTS_MAX = 1 << 16 };

static const struct keel_gpt_config small = {.layers = 2,
                                             .heads = 8,
                                             .width = 32,
                                             .block = 8,
                                             .vocab = 29,
                                             .batch = 3,
                                             .dropout = 0.1F,
                                             .bias = true,
                                             .tied = true};

/* What came of a few steps. */
struct outcome {
    float losses[STEPS], eval;
    uint64_t digest;
    uint64_t count;
    float gradients[WEIGHTS_MAX]; /* of the first step, as they lie in the flat buffer */
};

static void train_graph(struct keel_gpt_config gpt, const struct keel_graph *graph, uint32_t tensor,
                        enum keel_dtype storage, const char *passes_off, struct outcome *out)
{
    struct engine_rig rig;
    static struct tokens tokens;
    const struct keel_update_settings settings = {
        .beta1 = 0.9F, .beta2 = 0.99F, .epsilon = 1e-8F, .max_norm = 1.0F, .weight_decay = 0.1F};
    engine_rig_open(&rig, "host", gpt,
                    (struct keel_engine_config){.graph = graph,
                                                .microbatches = 2,
                                                .tensor = tensor,
                                                .storage = storage,
                                                .training = true,
                                                .passes_off = passes_off});
    ck_ok(keel_engine_initialize(rig.engine, 42));
    out->count = keel_engine_flat_count(rig.engine);
    ck_assert_uint_le(out->count, WEIGHTS_MAX);
    for (uint32_t step = 0; step < STEPS; step++) {
        ck_ok(keel_engine_zero(rig.engine));
        for (uint32_t m = 0; m < 2; m++) {
            fill_tokens(&rig, 2 * step + m, &tokens);
            struct keel_engine_batch batch = batch_of(&tokens, step, m);
            batch.more = m == 0;
            ck_ok(keel_engine_microbatch(rig.engine, &batch));
        }
        read_floats(&rig, keel_engine_loss(rig.engine), 0, &out->losses[step], 1);
        if (step == 0)
            read_floats(&rig, keel_engine_flat(rig.engine, KEEL_FLAT_GRADIENTS), 0, out->gradients,
                        out->count);
        const struct keel_engine_update update = {.settings = settings, .learning_rate = 1e-2F, .step = step};
        struct keel_engine_updated updated;
        ck_ok(keel_engine_update(rig.engine, &update, soon(), &updated));
        out->digest = updated.digest;
    }
    const struct keel_engine_batch batch = batch_of(&tokens, STEPS, 0);
    ck_ok(keel_engine_eval(rig.engine, &batch, soon(), &out->eval));
    struct keel_engine_facts facts;
    keel_engine_facts(rig.engine, &facts);
    ck_assert_uint_eq(facts.planned_peak_bytes, keel_device_stats(rig.device).peak_bytes);
    engine_rig_close(&rig);
}

static void train(struct keel_gpt_config gpt, uint32_t tensor, enum keel_dtype storage,
                  const char *passes_off, struct outcome *out)
{
    train_graph(gpt, NULL, tensor, storage, passes_off, out);
}

static struct outcome one, many, other;

/* The largest difference of gradients, relative to the largest of all. */
static double difference(const struct outcome *a, const struct outcome *b)
{
    double largest = 0.0, worst = 0.0;
    ck_assert_uint_eq(a->count, b->count);
    for (uint64_t i = 0; i < a->count; i++) {
        largest = fmax(largest, fabs((double)b->gradients[i]));
        worst = fmax(worst, fabs((double)a->gradients[i] - (double)b->gradients[i]));
    }
    return worst / largest;
}

START_TEST(slices_change_rounding_alone)
{
    static const uint32_t counts[] = {2, 3, 5, 8};
    train(small, 1, KEEL_F32, NULL, &one);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        train(small, counts[i], KEEL_F32, NULL, &many);
        const double worst = difference(&many, &one);
        printf("note: tensor %u: gradients differ by %.2g, the last loss, %.9g, by %.2g\n", counts[i], worst,
               (double)many.losses[STEPS - 1],
               fabs((double)many.losses[STEPS - 1] - (double)one.losses[STEPS - 1]));
        ck_assert_double_le(worst, 2e-6);
        ck_assert_double_le(fabs((double)many.losses[0] - (double)one.losses[0]), 1e-6);
        ck_assert_double_le(fabs((double)many.eval - (double)one.eval), 1e-3);
        ck_assert_msg(many.digest != one.digest, "tensor %u has the bits of one slice: nothing was split",
                      counts[i]);
    }
}
END_TEST

static keel_value matrix(struct keel_graph *graph, const char *name, uint64_t rows, uint64_t columns)
{
    return keel_graph_param(
        graph, &(struct keel_param_spec){
                   .name = name, .shape = {2, {rows, columns}}, .deviation = 0.1F, .decay = true});
}

/* Ten heads in five groups of two. Of a llama; and by hand, with dropout where q, k and v stand side by side,
 * which is for the whole: each goes there by itself, and back. */
static struct keel_graph *groups_of_heads(bool by_hand)
{
    struct keel_graph *graph = NULL;
    const struct keel_llama_config llama = {.layers = 2,
                                            .heads = 10,
                                            .kv_heads = 5,
                                            .width = 20,
                                            .block = small.block,
                                            .vocab = small.vocab,
                                            .batch = small.batch,
                                            .rope_base = 100.0F,
                                            .tied = true,
                                            .cut_heads = true};
    static const uint64_t columns[] = {20, 10, 10}, units[] = {4, 2, 2};
    const struct keel_shape tokens = {2, {small.batch, small.block}};
    keel_value parts[3];
    ck_ok(keel_graph_create(&graph));
    if (!by_hand) {
        ck_ok(keel_model_llama(graph, &llama));
        return graph;
    }
    keel_value ids = keel_graph_input(graph, "ids", KEEL_I32, tokens),
               targets = keel_graph_input(graph, "targets", KEEL_I32, tokens),
               table = matrix(graph, "table", small.vocab, 20);
    keel_value x = keel_graph_embedding(graph, ids, table, 0);
    for (uint32_t p = 0; p < 3; p++) {
        static const char *const names[] = {"q", "k", "v"};
        parts[p] = keel_graph_linear(graph, x, matrix(graph, names[p], 20, columns[p]), 0);
        keel_graph_shard(graph, parts[p], KEEL_AXIS_TENSOR,
                         (struct keel_axis_spec){.kind = KEEL_SPLIT, .dim = 2, .unit = (uint32_t)units[p]});
    }
    x = keel_graph_dropout(graph, keel_graph_join_heads(graph, parts, 10, 5), 0.2F);
    x = keel_graph_attention(graph, x, &(struct keel_attention_spec){.heads = 10, .kv_heads = 5});
    keel_graph_shard(graph, x, KEEL_AXIS_TENSOR,
                     (struct keel_axis_spec){.kind = KEEL_SPLIT, .dim = 2, .unit = 4});
    x = keel_graph_linear(graph, x, matrix(graph, "out", 20, 20), 0);
    keel_graph_cross_entropy(graph, keel_graph_linear_transposed(graph, x, table), targets);
    ck_ok(keel_graph_status(graph));
    return graph;
}

START_TEST(groups_of_heads_change_rounding_alone)
{
    static const uint32_t counts[] = {2, 3, 5};
    struct keel_graph *graph = groups_of_heads(_i == 1);
    train_graph(small, graph, 1, KEEL_F32, NULL, &one);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        train_graph(small, graph, counts[i], KEEL_F32, NULL, &many);
        ck_assert_double_le(difference(&many, &one), 2e-6);
        ck_assert_double_le(fabs((double)many.losses[0] - (double)one.losses[0]), 1e-6);
        ck_assert_double_le(fabs((double)many.eval - (double)one.eval), 1e-3);
        ck_assert_msg(many.digest != one.digest, "tensor %u has the bits of one slice: nothing was split",
                      counts[i]);
    }
    keel_graph_destroy(graph);
}
END_TEST

/* Whatever is fused, and however what waits is stored, the slices are the same. */
START_TEST(no_pass_changes_the_bits_of_slices)
{
    static const char *const off[] = {"", "fuse", "plan-memory"};
    static const enum keel_dtype storages[] = {KEEL_F32, KEEL_BF16, KEEL_F16};
    for (uint32_t variant = 0; variant < 6; variant++) {
        struct keel_gpt_config gpt = small;
        gpt.tied = variant % 2 == 0;
        gpt.block = variant < 2 ? 8 : 4;
        train(gpt, 3, storages[variant / 2], NULL, &many);
        for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
            train(gpt, 3, storages[variant / 2], off[i], &other);
            ck_assert_uint_eq(other.digest, many.digest);
            ck_assert_mem_eq(other.losses, many.losses, sizeof many.losses);
            ck_assert_mem_eq(&other.eval, &many.eval, sizeof many.eval);
        }
    }
}
END_TEST

/* More rows than a chunk of the fused loss has: it is fused or not with the same bits. */
START_TEST(the_fused_loss_sums_its_slices_alike)
{
    const struct keel_gpt_config wide = {.layers = 1,
                                         .heads = 2,
                                         .width = 8,
                                         .block = 64,
                                         .vocab = 13,
                                         .batch = 17,
                                         .bias = true,
                                         .tied = true};
    train(wide, 2, KEEL_F32, "", &many);
    train(wide, 2, KEEL_F32, "fuse", &other);
    ck_assert_uint_eq(other.digest, many.digest);
    ck_assert_mem_eq(other.losses, many.losses, sizeof many.losses);
}
END_TEST

/* What one device makes of T slices is what the job's bits mean, and other tests hold plans against it alone:
 * so here it is held against what it was. These change with ARITHMETIC_VERSION (job.c), and never else. */
START_TEST(the_bits_of_slices_are_those_of_ever)
{
    static const struct {
        uint32_t tensor, eval;
        uint64_t digest;
    } ever[] = {{1, 0x40553ee3, 0x90599e5b64d5c869},
                {2, 0x40553ee3, 0x0a6e6c1ff53e905e},
                {3, 0x40553ee4, 0xf621ddd64221a2cc},
                {5, 0x40553ee4, 0x577348ebf1f8352e},
                {8, 0x40553ee3, 0x5f09f5ab697ac7b5}};
    for (size_t i = 0; i < sizeof ever / sizeof *ever; i++) {
        uint32_t eval;
        train(small, ever[i].tensor, KEEL_F32, NULL, &many);
        memcpy(&eval, &many.eval, sizeof eval);
        ck_assert_msg(eval == ever[i].eval && many.digest == ever[i].digest,
                      "tensor %u: evaluation 0x%08x, weights 0x%016llx: other bits than ever", ever[i].tensor,
                      eval, (unsigned long long)many.digest);
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, the_bits_of_slices_are_those_of_ever);
    tcase_add_test(tc, slices_change_rounding_alone);
    tcase_add_loop_test(tc, groups_of_heads_change_rounding_alone, 0, 2);
    tcase_add_test(tc, no_pass_changes_the_bits_of_slices);
    tcase_add_test(tc, the_fused_loss_sums_its_slices_alike);
}

KEEL_TEST_MAIN("tensor", cases, 120)
