/* graph_shard_test.c - the shard pass: three ways to say how a model is split give one program, every model
 * has annotations that hold, and what cannot be split so is refused with what could be. */
#include "harness.h"

#include "model_parts.h"
#include "spec.h"

#include <keel/file.h>
#include <keel/memory.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum way { MANUAL, ANNOTATED, NAMED };
static const struct keel_axis_spec rows = {.kind = KEEL_SPLIT, .dim = KEEL_SPLIT_ROWS},
                                   whole = {.kind = KEEL_REPLICATED};

static struct keel_axis_spec split(uint32_t dim, uint32_t outer, uint32_t unit)
{
    return (struct keel_axis_spec){
        .kind = KEEL_SPLIT, .dim = (uint8_t)dim, .outer = (uint8_t)outer, .unit = unit};
}

struct written {
    struct keel_graph *graph;
    const struct keel_gpt_config *config;
    enum way way;
};

/* By hand: what is read lies so from here on. Annotated: nothing, it follows. */
static keel_value by_hand(const struct written *model, keel_value x, struct keel_axis_spec to)
{
    return model->way == MANUAL ? keel_graph_reshard(model->graph, x, KEEL_AXIS_TENSOR, to) : x;
}

/* A linear layer; by hand the weights are split, annotated its result is. */
static keel_value linear(const struct written *model, const char *prefix, keel_value x, uint64_t in,
                         uint64_t out, float deviation, const struct keel_axis_spec *columns)
{
    struct keel_graph *graph = model->graph;
    keel_value y =
        keel_part_linear(graph, prefix, x,
                         &(struct keel_part_linear){
                             .in = in, .out = out, .deviation = deviation, .bias = model->config->bias});
    ck_ok(keel_graph_status(graph));
    if (columns != NULL && model->way == ANNOTATED)
        keel_graph_shard(graph, y, KEEL_AXIS_TENSOR, split(2, columns->outer, columns->unit));
    if (columns != NULL && model->way == MANUAL)
        keel_graph_shard(graph, graph->nodes[graph->node_count - 1].in[1], KEEL_AXIS_TENSOR, *columns);
    return y;
}

static keel_value block(const struct written *model, uint32_t number, keel_value x)
{
    const struct keel_gpt_config *config = model->config;
    const uint32_t width = config->width, head = width / config->heads;
    const float residual = KEEL_PART_DEVIATION / sqrtf(2.0F * (float)config->layers);
    const struct keel_axis_spec qkv = split(1, 3, head), up = split(1, 1, 1);
    struct keel_graph *graph = model->graph;
    keel_value y =
        keel_part_layernorm(graph, keel_part_name("h.%u.ln_1", number).text, x, width, config->bias);
    y = linear(model, keel_part_name("h.%u.attn.c_attn", number).text, by_hand(model, y, whole), width,
               3 * width, KEEL_PART_DEVIATION, &qkv);
    y = keel_graph_attention(
        graph, y, &(struct keel_attention_spec){.heads = config->heads, .dropout = config->dropout});
    y = linear(model, keel_part_name("h.%u.attn.c_proj", number).text, y, width, width, residual, NULL);
    x = keel_graph_add(graph, x, keel_graph_dropout(graph, by_hand(model, y, rows), config->dropout));
    y = keel_part_layernorm(graph, keel_part_name("h.%u.ln_2", number).text, x, width, config->bias);
    y = linear(model, keel_part_name("h.%u.mlp.c_fc", number).text, by_hand(model, y, whole), width,
               4 * width, KEEL_PART_DEVIATION, &up);
    y = keel_graph_activation(graph, y, KEEL_GELU);
    y = linear(model, keel_part_name("h.%u.mlp.c_proj", number).text, y, 4 * width, width, residual, NULL);
    return keel_graph_add(graph, x, keel_graph_dropout(graph, by_hand(model, y, rows), config->dropout));
}

/* The GPT of model_gpt.c, written out. */
static void write_gpt(const struct written *model)
{
    const struct keel_gpt_config *config = model->config;
    struct keel_graph *graph = model->graph;
    const struct keel_shape tokens = {2, {config->batch, config->block}};
    keel_value ids = keel_graph_input(graph, "ids", KEEL_I32, tokens);
    keel_value targets = keel_graph_input(graph, "targets", KEEL_I32, tokens);
    keel_value table = keel_part_matrix(
        graph, "wte.weight", (struct keel_shape){2, {config->vocab, config->width}}, KEEL_PART_DEVIATION);
    keel_value positions = keel_part_matrix(
        graph, "wpe.weight", (struct keel_shape){2, {config->block, config->width}}, KEEL_PART_DEVIATION);
    keel_graph_shard(graph, table, KEEL_AXIS_TENSOR, split(0, 1, 1));
    keel_value x = keel_graph_embedding(graph, ids, table, positions);
    if (model->way == ANNOTATED)
        keel_graph_shard(graph, x, KEEL_AXIS_TENSOR, rows);
    x = keel_graph_dropout(graph, by_hand(model, x, rows), config->dropout);
    for (uint32_t i = 0; i < config->layers; i++)
        x = block(model, i, x);
    x = keel_part_layernorm(graph, "ln_f", x, config->width, config->bias);
    keel_graph_cross_entropy(graph, keel_graph_linear_transposed(graph, by_hand(model, x, whole), table),
                             targets);
}

static const struct keel_gpt_config small = {.layers = 2,
                                             .heads = 4,
                                             .width = 16,
                                             .block = 4,
                                             .vocab = 11,
                                             .batch = 2,
                                             .dropout = 0.1F,
                                             .bias = true,
                                             .tied = true};

/* The program after the shard pass, checked. */
static struct keel_graph *program(enum way way, const struct keel_gpt_config *config, uint32_t slices)
{
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    if (way == NAMED)
        ck_ok(keel_model_gpt(graph, config));
    else
        write_gpt(&(struct written){.graph = graph, .config = config, .way = way});
    ck_ok(keel_graph_status(graph));
    ck_ok(keel_pass_autodiff(graph));
    ck_ok(keel_pass_shard(graph, &slices));
    ck_ok(keel_pass_check(graph, &slices));
    return graph;
}

static char *text_of(const struct keel_graph *graph)
{
    char path[] = "/tmp/keel-shard-XXXXXX";
    char *text = NULL;
    size_t bytes = 0;
    const int file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    close(file);
    ck_ok(keel_graph_dump(graph, path));
    ck_ok(keel_file_read(path, SIZE_MAX, &text, &bytes));
    unlink(path);
    char *copy = calloc(bytes + 1, 1);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, text, bytes);
    keel_free(text);
    return copy;
}

START_TEST(the_same_model_three_ways_gives_the_same_program)
{
    for (int variant = 0; variant < 4; variant++) {
        struct keel_gpt_config config = small;
        config.dropout = (variant & 1) != 0 ? 0.1F : 0.0F;
        config.bias = (variant & 2) != 0;
        char *text[3];
        for (enum way way = 0; way < 3; way++) {
            struct keel_graph *graph = program(way, &config, 3);
            text[way] = text_of(graph);
            keel_graph_destroy(graph);
        }
        ck_assert_str_eq(text[MANUAL], text[NAMED]);
        ck_assert_str_eq(text[ANNOTATED], text[NAMED]);
        ck_assert_ptr_nonnull(
            strstr(text[NAMED], "h.1.attn.c_attn.weight f32[16,48] spec=(split(1, outer 3, unit 4))"));
        for (int i = 0; i < 3; i++)
            free(text[i]);
    }
}
END_TEST

/* Sums to rows, and rows gathered, of one more layer: together the four all-reduces of a layer (Shoeybi et
 * al. 2019), each as two halves. */
START_TEST(a_layer_has_four_sums_and_four_gathers)
{
    uint32_t sums[2] = {0}, gathers[2] = {0};
    for (uint32_t i = 0; i < 2; i++) {
        struct keel_gpt_config config = small;
        config.layers = 1 + i;
        struct keel_graph *graph = program(NAMED, &config, 2);
        for (uint32_t n = 0; n < graph->node_count; n++) {
            const struct keel_ir_node *node = &graph->nodes[n];
            if (node->op != KEEL_OP_RESHARD)
                continue;
            sums[i] += graph->values[node->in[0]].spec.axis[0].kind == KEEL_PARTIAL;
            gathers[i] += graph->values[node->in[0]].spec.axis[0].kind == KEEL_SPLIT;
        }
        keel_graph_destroy(graph);
    }
    ck_assert_uint_eq(sums[1] - sums[0], 4);
    ck_assert_uint_eq(gathers[1] - gathers[0], 4);
}
END_TEST

/* ---- every model ---- */

static struct keel_graph *model_of(uint32_t kind, bool tied)
{
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    struct keel_gpt_config gpt = small;
    gpt.tied = tied;
    const struct keel_bert_config bert = {.layers = 2,
                                          .heads = 4,
                                          .width = 16,
                                          .block = 4,
                                          .vocab = 11,
                                          .batch = 2,
                                          .masked = 2,
                                          .dropout = 0.1F,
                                          .bias = true,
                                          .tied = tied};
    const struct keel_moe_config moe = {.gpt = gpt, .experts = 2, .capacity = 1.5F, .balance = 0.01F};
    const struct keel_resnet_config resnet = {.stages = 2,
                                              .blocks = 1,
                                              .width = 4,
                                              .height = 8,
                                              .image_width = 8,
                                              .channels = 3,
                                              .classes = 5,
                                              .batch = 2};
    const struct keel_dlrm_config dlrm = {
        .dense = 3, .tables = 2, .bag = 2, .categories = 7, .width = 4, .layers = 1, .batch = 4};
    switch (kind) {
    case 0:
        ck_ok(keel_model_gpt(graph, &gpt));
        break;
    case 1:
        ck_ok(keel_model_bert(graph, &bert));
        break;
    case 2:
        ck_ok(keel_model_moe(graph, &moe));
        break;
    case 3:
        ck_ok(keel_model_resnet(graph, &resnet));
        break;
    default:
        ck_ok(keel_model_dlrm(graph, &dlrm));
    }
    return graph;
}

START_TEST(the_annotations_of_every_model_are_sound)
{
    static const char *const names[] = {"gpt", "bert", "moe", "resnet", "dlrm"};
    for (uint32_t kind = 0; kind < 10; kind++)
        for (uint32_t slices = 2; slices <= 4; slices++) {
            struct keel_graph *graph = model_of(kind / 2, kind % 2 == 0);
            uint32_t cut = 0;
            ck_ok(keel_pass_autodiff(graph));
            ck_ok(keel_pass_shard(graph, &slices));
            ck_ok(keel_pass_check(graph, &slices));
            for (uint32_t p = 0; p < graph->param_count; p++)
                cut += graph->values[graph->params[p].value].spec.axis[0].kind == KEEL_SPLIT;
            ck_assert_msg((kind < 6) == (cut > 0), "%s: %u parameters are split", names[kind / 2], cut);
            keel_graph_destroy(graph);
        }
}
END_TEST

START_TEST(more_slices_than_heads_are_refused_with_what_could_be)
{
    struct keel_graph *graph = model_of(0, true);
    const uint32_t slices = 5;
    ck_ok(keel_pass_autodiff(graph));
    ck_status(keel_pass_shard(graph, &slices), KEEL_INVALID);
    ck_assert_ptr_nonnull(
        strstr(keel_detail(), "job.tensor = 5: h.0.attn.c_attn.weight [16,48] is split(1, outer 3, unit 4)"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "job.tensor can be 1 to 4"));
    keel_graph_destroy(graph);
}
END_TEST

START_TEST(annotations_that_make_no_sense_are_refused)
{
    static const struct {
        struct keel_axis_spec spec;
        const char *says;
    } bad[] = {{{.kind = KEEL_SPLIT, .dim = 2}, "x of shape [4,6] cannot be split(2)"},
               {{.kind = KEEL_SPLIT, .dim = 1, .outer = 4}, "x of shape [4,6] cannot be split(1, outer 4)"},
               {{.kind = KEEL_SPLIT, .dim = 1, .dims = 2}, "cannot be split(1-2)"},
               {{.kind = KEEL_PARTIAL}, "no such value, axis or kind"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct keel_graph *graph = NULL;
        ck_ok(keel_graph_create(&graph));
        keel_value x = keel_graph_input(graph, "x", KEEL_F32, (struct keel_shape){2, {4, 6}});
        keel_graph_shard(graph, x, KEEL_AXIS_TENSOR, bad[i].spec);
        ck_status(keel_graph_status(graph), KEEL_INVALID);
        ck_assert_msg(strstr(keel_detail(), bad[i].says) != NULL, "\"%s\" lacks \"%s\"", keel_detail(),
                      bad[i].says);
        keel_graph_destroy(graph);
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, the_same_model_three_ways_gives_the_same_program);
    tcase_add_test(tc, a_layer_has_four_sums_and_four_gathers);
    tcase_add_test(tc, the_annotations_of_every_model_are_sound);
    tcase_add_test(tc, more_slices_than_heads_are_refused_with_what_could_be);
    tcase_add_test(tc, annotations_that_make_no_sense_are_refused);
}

KEEL_TEST_MAIN("graph_shard", cases, 60)
