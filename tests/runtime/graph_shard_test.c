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
        keel_part_layernorm(graph, keel_part_name("h.%u.ln_1", number).text, x, width, config->bias, 0.0F);
    y = linear(model, keel_part_name("h.%u.attn.c_attn", number).text, by_hand(model, y, whole), width,
               3 * width, KEEL_PART_DEVIATION, &qkv);
    y = keel_graph_attention(
        graph, y, &(struct keel_attention_spec){.heads = config->heads, .dropout = config->dropout});
    y = linear(model, keel_part_name("h.%u.attn.c_proj", number).text, y, width, width, residual, NULL);
    x = keel_graph_add(graph, x, keel_graph_dropout(graph, by_hand(model, y, rows), config->dropout));
    y = keel_part_layernorm(graph, keel_part_name("h.%u.ln_2", number).text, x, width, config->bias, 0.0F);
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
    x = keel_part_layernorm(graph, "ln_f", x, config->width, config->bias, 0.0F);
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
                                          .dropout = 0.1F};
    const struct keel_llama_config llama = {.layers = 2,
                                            .heads = 8,
                                            .kv_heads = 4,
                                            .width = 16,
                                            .hidden = 6,
                                            .block = 4,
                                            .vocab = 11,
                                            .batch = 2,
                                            .rope_base = 100,
                                            .tied = tied,
                                            .cut_heads = true};
    const struct keel_moe_config moe = {.gpt = gpt, .experts = 2, .capacity = 1.5F, .balance = 0.01F};
    const struct keel_resnet_config resnet = {.stages = 2,
                                              .blocks = 1,
                                              .width = 4,
                                              .height = 8,
                                              .image_width = 8,
                                              .channels = 3,
                                              .classes = 5,
                                              .batch = 2};
    const struct keel_vit_config vit = {.layers = 2,
                                        .heads = 4,
                                        .width = 16,
                                        .patch = 2,
                                        .height = 4,
                                        .image_width = 6,
                                        .channels = 3,
                                        .classes = 5,
                                        .batch = 2,
                                        .dropout = 0.1F};
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
        ck_ok(keel_model_llama(graph, &llama));
        break;
    case 4:
        ck_ok(keel_model_vit(graph, &vit));
        break;
    case 5:
        ck_ok(keel_model_resnet(graph, &resnet));
        break;
    default:
        ck_ok(keel_model_dlrm(graph, &dlrm));
    }
    return graph;
}

START_TEST(the_annotations_of_every_model_are_sound)
{
    static const char *const names[] = {"gpt", "bert", "moe", "llama", "vit", "resnet", "dlrm"};
    for (uint32_t kind = 0; kind < 14; kind++)
        for (uint32_t slices = 2; slices <= 4; slices++) {
            struct keel_graph *graph = model_of(kind / 2, kind % 2 == 0);
            uint32_t cut = 0;
            ck_ok(keel_pass_autodiff(graph));
            ck_ok(keel_pass_shard(graph, &slices));
            ck_ok(keel_pass_check(graph, &slices));
            for (uint32_t p = 0; p < graph->param_count; p++)
                cut += graph->values[graph->params[p].value].spec.axis[0].kind == KEEL_SPLIT;
            ck_assert_msg((kind < 10) == (cut > 0), "%s: %u parameters are split", names[kind / 2], cut);
            keel_graph_destroy(graph);
        }
}
END_TEST

static const struct keel_axis_spec *spec_of(const struct keel_graph *graph, const char *name)
{
    for (uint32_t p = 0; p < graph->param_count; p++)
        if (strcmp(graph->params[p].name, name) == 0)
            return &graph->values[graph->params[p].value].spec.axis[0];
    ck_abort_msg("no parameter %s", name);
}

/* A slice has some groups of heads: queries, and the head of keys and of values that they share, no others.
 * Nothing of attention is gathered: only what a layer reads is, once for its two halves, as of GPT. */
START_TEST(a_slice_of_a_llama_has_its_heads_of_keys)
{
    const uint32_t slices = 4;
    const struct keel_axis_spec queries = split(0, 1, 4), keys = split(0, 1, 2), out = split(1, 1, 4);
    struct keel_graph *graph = model_of(3, true);
    uint32_t rotaries = 0, gathers = 0;
    ck_ok(keel_pass_autodiff(graph));
    ck_ok(keel_pass_shard(graph, &slices));
    const char *const names[] = {
        "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.o_proj.weight"};
    const struct keel_axis_spec *const wanted[] = {&queries, &keys, &keys, &out};
    for (uint32_t i = 0; i < 4; i++) {
        struct keel_axis_spec spec = *wanted[i];
        spec.dims = 1;
        ck_assert_msg(keel_axis_spec_equal(spec_of(graph, names[i]), &spec), "%s", names[i]);
    }
    for (uint32_t n = 0; n < graph->node_count; n++) {
        const struct keel_ir_node *node = &graph->nodes[n];
        const struct keel_axis_spec *spec = &graph->values[node->in[0]].spec.axis[0];
        const bool tokens = spec->dims == 2;
        gathers += node->op == KEEL_OP_RESHARD && spec->kind == KEEL_SPLIT && !tokens;
        if (node->op != KEEL_OP_GROUPED_ROTARY)
            continue;
        rotaries++;
        ck_assert(spec->kind == KEEL_SPLIT && spec->outer == 3 && spec->unit == 2 && spec->lead == 2);
    }
    ck_assert_uint_eq(rotaries, 2); /* the gradient of attention turns back by itself */
    ck_assert_uint_eq(gathers, 0);
    keel_graph_destroy(graph);
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

/* ---- mutants ---- */

/* How a value could lie otherwise: every kind, every dimension, in one part and in three, by units of 1
 * and 4. */
static uint32_t list_others(const struct keel_ir_value *value, struct keel_axis_spec *out)
{
    const struct keel_axis_spec was = value->spec.axis[0];
    uint32_t count = 0;
    for (uint32_t kind = 0; kind <= KEEL_PARTIAL_BITS; kind++)
        for (uint32_t way = 0; way < (kind == KEEL_SPLIT ? 4 * value->shape.dims : 1); way++) {
            struct keel_axis_spec spec = {.kind = (uint8_t)kind};
            if (kind == KEEL_SPLIT)
                spec = split(way / 4, way % 2 == 0 ? 1 : 3, way % 4 < 2 ? 1 : 4);
            if (keel_axis_spec_resolve(value, &spec) == KEEL_OK && !keel_axis_spec_equal(&spec, &was))
                out[count++] = spec;
        }
    return count;
}

static void refuse(const struct keel_graph *graph, uint32_t slices, const char *what, const char *name,
                   const struct keel_axis_spec *spec)
{
    char text[KEEL_SPEC_TEXT_BYTES];
    keel_axis_spec_print(spec, text);
    ck_assert_msg(keel_pass_check(graph, &slices) == KEEL_INVALID, "%s, %s, %s: taken", what, name, text);
    ck_assert_msg(strchr(keel_detail(), ':') != NULL || strstr(keel_detail(), " is ") != NULL, "\"%s\"",
                  keel_detail());
}

/* What each value says of itself is another, and so is what each reshard makes. */
static uint32_t misstate(struct keel_graph *graph, uint32_t slices)
{
    struct keel_axis_spec others[2 + 4 * KEEL_DIMS_MAX + 1];
    uint32_t tried = 0;
    for (keel_value value = 1; value < graph->value_count; value++) {
        struct keel_ir_value *v = &graph->values[value];
        const struct keel_axis_spec was = v->spec.axis[0];
        const uint32_t count = list_others(v, others);
        for (uint32_t i = 0; i < count; i++, tried++) {
            v->spec.axis[0] = others[i];
            refuse(graph, slices, "a value", v->name, &others[i]);
            for (uint32_t n = 0; n < graph->node_count; n++) {
                struct keel_ir_node *node = &graph->nodes[n];
                if (node->op != KEEL_OP_RESHARD || node->out[0] != value)
                    continue;
                node->attributes.layout.axis[0] = others[i];
                refuse(graph, slices, "a reshard and its value", v->name, &others[i]);
                node->attributes.layout.axis[0] = was;
                tried++;
            }
        }
        v->spec.axis[0] = was;
    }
    return tried;
}

/* Each sum and each gather is left out of the graph: those who read it read what it was made of. Or it is
 * done twice: a sum is whole then, and nothing becomes partial again. */
static uint32_t leave_out(struct keel_graph *graph, uint32_t slices)
{
    uint32_t tried = 0;
    for (uint32_t n = 0; n < graph->node_count; n++) {
        const struct keel_ir_node *reshard = &graph->nodes[n];
        const keel_value from = reshard->in[0], to = reshard->out[0];
        struct keel_graph *mutant = NULL;
        if (reshard->op != KEEL_OP_RESHARD)
            continue;
        ck_ok(keel_graph_copy(graph, &mutant));
        bool read = mutant->output == to;
        for (uint32_t r = n + 1; r < mutant->node_count; r++)
            for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++)
                if (mutant->nodes[r].in[i] == to) {
                    mutant->nodes[r].in[i] = from;
                    read = true;
                }
        if (read)
            refuse(mutant, slices, "left out", graph->values[to].name, &graph->values[to].spec.axis[0]);
        tried += read;
        keel_graph_destroy(mutant);
    }
    return tried;
}

START_TEST(specs_of_every_model_that_lie_are_refused)
{
    uint32_t misstated = 0, left_out = 0;
    for (uint32_t kind = 0; kind < 4; kind++)
        for (uint32_t slices = 2; slices <= 4; slices++) {
            struct keel_graph *graph = model_of(kind, slices % 2 == 0);
            ck_ok(keel_pass_autodiff(graph));
            ck_ok(keel_pass_shard(graph, &slices));
            ck_ok(keel_pass_check(graph, &slices));
            misstated += misstate(graph, slices);
            left_out += leave_out(graph, slices);
            ck_ok(keel_pass_check(graph, &slices));
            keel_graph_destroy(graph);
        }
    printf("note: %u specs were others, %u sums and gathers left out\n", misstated, left_out);
    ck_assert_uint_gt(misstated, 1000);
    ck_assert_uint_gt(left_out, 100);
}
END_TEST

/* No loss tells -0 from 0, so no run would: rows of a table that is split are added as bits. */
START_TEST(rows_of_a_split_table_are_added_as_bits)
{
    for (uint32_t first = 0; first < 3; first++) {
        const struct keel_slice_run cut = {.first = first, .count = 1, .of = 3};
        struct keel_graph *graph = program(NAMED, &small, 3);
        uint32_t of_rows = 0;
        ck_ok(keel_pass_lower(graph, &cut));
        for (uint32_t n = 0; n < graph->node_count; n++)
            for (uint32_t before = 0; before < n && graph->nodes[n].op == KEEL_OP_EXCHANGE; before++)
                if (graph->nodes[before].op == KEEL_OP_EMBEDDING &&
                    graph->nodes[before].out[0] == graph->nodes[n].in[0]) {
                    ck_assert_int_eq(graph->nodes[n].attributes.exchange.kind, KEEL_EXCHANGE_SUM_BITS);
                    of_rows++;
                }
        ck_assert_uint_eq(of_rows, 1);
        keel_graph_destroy(graph);
    }
}
END_TEST

START_TEST(an_annotation_that_contradicts_another_is_refused)
{
    static const struct {
        struct keel_axis_spec first, second;
        const char *says; /* NULL: the same, said again */
    } pairs[] = {
        {{.kind = KEEL_SPLIT, .dim = 1}, {.kind = KEEL_SPLIT, .dim = 1, .outer = 1, .unit = 1}, NULL},
        {{.kind = KEEL_SPLIT, .dim = KEEL_SPLIT_ROWS}, {.kind = KEEL_SPLIT, .dim = 0}, NULL},
        {{.kind = KEEL_SPLIT, .dim = 0},
         {.kind = KEEL_SPLIT, .dim = 1},
         "w is to be split(1), and was to be split(0) already: say one of them"},
        {{.kind = KEEL_SPLIT, .dim = 1},
         {.kind = KEEL_SPLIT, .dim = 1, .outer = 3},
         "w is to be split(1, outer 3), and was to be split(1) already"},
        {{.kind = KEEL_SPLIT, .dim = 1, .unit = 2},
         {.kind = KEEL_SPLIT, .dim = 1, .unit = 3},
         "w is to be split(1, unit 3), and was to be split(1, unit 2) already"},
        {{.kind = KEEL_SPLIT, .dim = 0},
         {.kind = KEEL_REPLICATED},
         "w is to be replicated, and was to be split(0) already"},
        {{.kind = KEEL_REPLICATED}, {.kind = KEEL_SPLIT, .dim = 0}, "and was to be replicated already"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct keel_graph *graph = NULL;
        ck_ok(keel_graph_create(&graph));
        keel_value w = keel_graph_param(
            graph, &(struct keel_param_spec){.name = "w", .shape = {2, {6, 12}}, .deviation = 1.0F});
        keel_graph_shard(graph, w, KEEL_AXIS_TENSOR, pairs[i].first);
        ck_ok(keel_graph_status(graph));
        keel_graph_shard(graph, w, KEEL_AXIS_TENSOR, pairs[i].second);
        ck_status(keel_graph_status(graph), pairs[i].says == NULL ? KEEL_OK : KEEL_INVALID);
        ck_assert_msg(pairs[i].says == NULL || strstr(keel_detail(), pairs[i].says) != NULL,
                      "\"%s\" lacks \"%s\"", keel_detail(), pairs[i].says == NULL ? "" : pairs[i].says);
        keel_graph_destroy(graph);
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, an_annotation_that_contradicts_another_is_refused);
    tcase_add_test(tc, specs_of_every_model_that_lie_are_refused);
    tcase_add_test(tc, rows_of_a_split_table_are_added_as_bits);
    tcase_add_test(tc, the_same_model_three_ways_gives_the_same_program);
    tcase_add_test(tc, a_layer_has_four_sums_and_four_gathers);
    tcase_add_test(tc, the_annotations_of_every_model_are_sound);
    tcase_add_test(tc, a_slice_of_a_llama_has_its_heads_of_keys);
    tcase_add_test(tc, more_slices_than_heads_are_refused_with_what_could_be);
    tcase_add_test(tc, annotations_that_make_no_sense_are_refused);
}

KEEL_TEST_MAIN("graph_shard", cases, 60)
