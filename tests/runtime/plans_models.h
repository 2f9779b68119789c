/* plans_models.h - random models of the graph API and of the model family, small enough to be trained by the
 * thousand, and the plans that they are trained with (plans_test.c). */
#ifndef KEEL_PLANS_MODELS_H
#define KEEL_PLANS_MODELS_H

#include "harness.h"
#include "ir.h"

#include <keel/models.h>
#include <stdio.h>
#include <string.h>

enum { SLICES = 8, POSITIONS = 5 };

/* ---- numbers ------------------------------------------------------------------------------------------- */

/* splitmix64. */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}
static uint32_t draw_of(uint64_t *state, uint32_t least, uint32_t most)
{
    return least + (uint32_t)(draw(state) % (most - least + 1));
}
static bool draw_bool(uint64_t *state)
{
    return draw_of(state, 0, 1) == 1;
}

/* ---- models -------------------------------------------------------------------------------------------- */

/* What a case is. Sizes are such that T slices can be cut. */
struct plan_case {
    uint64_t random;
    uint32_t slices, places, begin[SLICES + 1]; /* place k has slices [begin[k], begin[k + 1]) */
    uint32_t positions;                         /* of the data axis; */
    bool owners;             /*   each owns a share of the optimizer's state of its place */
    uint32_t holders, group; /* of each share; positions that have all together */
    bool gathers;            /*   and of the weights, which others have while they read them, */
    uint32_t ahead;          /*   and so much before */
    bool checked;            /* products have checksums */
    bool freezes;            /* some parameters are not trained */
    bool groups;             /* attention has heads that share keys */
    uint32_t batch, tokens, heads, width, vocab;
    uint32_t classes; /* that ids and targets are below */
    enum keel_dtype storage;
    const char *passes_off;
    char what[160];
};

struct writer {
    struct keel_graph *graph;
    struct plan_case *of;
    uint32_t number; /* of the next parameter */
};

static keel_value param(struct writer *writer, uint32_t dims, uint64_t rows, uint64_t columns, float fill)
{
    char name[32];
    snprintf(name, sizeof name, "p%u", writer->number++);
    struct keel_param_spec spec = {.name = name,
                                   .shape = {.dims = dims, .size = {rows, columns}},
                                   .deviation = dims > 1 ? 0.2F : 0.0F,
                                   .fill = fill,
                                   .decay = dims > 1};
    return keel_graph_param(writer->graph, &spec);
}

static keel_value positions(struct writer *writer)
{
    const struct plan_case *of = writer->of;
    return keel_graph_param(writer->graph, &(struct keel_param_spec){.name = "positions",
                                                                     .shape = {3, {1, of->tokens, of->width}},
                                                                     .deviation = 0.2F});
}

static void split(struct writer *writer, keel_value value, uint8_t dim, uint8_t outer, uint64_t unit)
{
    keel_graph_shard(
        writer->graph, value, KEEL_AXIS_TENSOR,
        (struct keel_axis_spec){.kind = KEEL_SPLIT, .dim = dim, .outer = outer, .unit = (uint32_t)unit});
}

static keel_value linear(struct writer *writer, keel_value x, uint64_t in, uint64_t out)
{
    const bool bias = draw_bool(&writer->of->random);
    keel_value weight = param(writer, 2, in, out, 0.0F);
    return keel_graph_linear(writer->graph, x, weight, bias ? param(writer, 1, out, 0, 0.1F) : 0);
}

/* The same elements there and back: by another shape, in two parts of columns, or with batch and tokens
 * exchanged. */
static keel_value move(struct writer *writer, keel_value x, uint64_t width)
{
    const struct plan_case *of = writer->of;
    static const uint32_t order[] = {1, 0, 2};
    if (draw_bool(&writer->of->random)) {
        x = keel_graph_reshape(writer->graph, x,
                               (struct keel_shape){2, {(uint64_t)of->batch * of->tokens, width}});
        return keel_graph_reshape(writer->graph, x, (struct keel_shape){3, {of->batch, of->tokens, width}});
    }
    if (draw_bool(&writer->of->random)) {
        const keel_value parts[] = {keel_graph_slice(writer->graph, x, 2, 0, 1),
                                    keel_graph_slice(writer->graph, x, 2, 1, width - 1)};
        return keel_graph_concat(writer->graph, parts, 2, 2);
    }
    return keel_graph_permute(writer->graph, keel_graph_permute(writer->graph, x, order), order);
}

/* Columns, something of each element, rows. Now and then the columns are gathered, or the result is by
 * columns. */
static keel_value perceptron(struct writer *writer, keel_value x, uint64_t width)
{
    struct plan_case *of = writer->of;
    const uint64_t hidden = draw_of(&of->random, of->slices > 1 ? of->slices : 2, 2 * SLICES + 5);
    keel_value y = linear(writer, x, width, hidden);
    split(writer, y, 2, 1, 1);
    if (draw_bool(&of->random)) {
        keel_value z = linear(writer, x, width, hidden);
        split(writer, z, 2, 1, 1);
        y = keel_graph_swiglu(writer->graph, y, z);
    } else {
        y = keel_graph_activation(writer->graph, y, draw_bool(&of->random) ? KEEL_GELU : KEEL_RELU);
    }
    if (draw_of(&of->random, 0, 3) == 0)
        y = keel_graph_dropout(writer->graph, y, 0.25F);
    if (draw_of(&of->random, 0, 4) == 0)
        y = move(writer, y, hidden);
    if (draw_of(&of->random, 0, 4) == 0)
        y = keel_graph_reshard(writer->graph, y, KEEL_AXIS_TENSOR,
                               (struct keel_axis_spec){.kind = KEEL_REPLICATED});
    y = linear(writer, y, hidden, width);
    if (draw_of(&of->random, 0, 4) == 0)
        split(writer, y, 2, 1, 1);
    return draw_of(&of->random, 0, 4) == 0 ? move(writer, y, width) : y;
}

/* Beside a product by columns of heads, as model_lora.c has it. */
static keel_value adapted(struct writer *writer, keel_value x, uint64_t in, keel_value y, uint64_t out)
{
    keel_value z = keel_graph_linear_transposed(writer->graph, x, param(writer, 2, 2, in, 0.0F));
    z = keel_graph_linear_transposed(writer->graph, z, param(writer, 2, out, 2, 0.0F));
    split(writer, z, 2, 3, 4);
    y = keel_graph_add(writer->graph, y, z);
    split(writer, y, 2, 3, 4);
    return y;
}

static keel_value attention(struct writer *writer, keel_value x, uint64_t width)
{
    struct plan_case *of = writer->of;
    const uint64_t inner = (uint64_t)of->heads * 4;
    keel_value y = linear(writer, x, width, 3 * inner);
    split(writer, y, 2, 3, 4);
    y = of->freezes ? adapted(writer, x, width, y, 3 * inner) : y;
    if (draw_bool(&of->random))
        y = keel_graph_rotary(writer->graph, y, of->heads, 10000.0F);
    const uint32_t kind = (uint32_t)(of->random >> 13) % 8; /* draws nothing: cases stay what they were */
    y = keel_graph_attention(writer->graph, y,
                             &(struct keel_attention_spec){.heads = of->heads,
                                                           .dropout = draw_bool(&of->random) ? 0.2F : 0.0F,
                                                           .bidirectional = draw_bool(&of->random),
                                                           .window = kind == 1 ? 2 : 0,
                                                           .alibi = kind > 5});
    return linear(writer, y, inner, width);
}

/* Heads that share keys in groups of 1 to 3, by columns of groups; or the columns are whole, and the result
 * is by groups; or what stands side by side is drawn at, which only the whole can be. */
static keel_value grouped(struct writer *writer, keel_value x, uint64_t width)
{
    struct plan_case *of = writer->of;
    const uint32_t kv_heads = of->heads, each = draw_of(&of->random, 1, 3), heads = kv_heads * each;
    const uint32_t kind = draw_of(&of->random, 0, 2);
    const uint64_t inner = (uint64_t)heads * 4;
    const uint64_t columns[] = {inner, (uint64_t)kv_heads * 4, (uint64_t)kv_heads * 4};
    const uint64_t unit[] = {(uint64_t)each * 4, 4, 4};
    keel_value parts[3];
    for (uint32_t p = 0; p < 3; p++) {
        parts[p] = linear(writer, x, width, columns[p]);
        if (kind > 0)
            split(writer, parts[p], 2, 1, unit[p]);
    }
    keel_value y = keel_graph_join_heads(writer->graph, parts, heads, kv_heads);
    if (kind == 1)
        y = keel_graph_dropout(writer->graph, y, 0.2F);
    if (draw_bool(&of->random))
        y = keel_graph_grouped_rotary(writer->graph, y, heads, kv_heads,
                                      &(struct keel_rotary_turn){.base = 100.0F});
    y = keel_graph_attention(writer->graph, y,
                             &(struct keel_attention_spec){.heads = heads,
                                                           .kv_heads = kv_heads,
                                                           .dropout = draw_bool(&of->random) ? 0.2F : 0.0F,
                                                           .bidirectional = draw_bool(&of->random),
                                                           .window = draw_bool(&of->random) ? 2 : 0,
                                                           .alibi = draw_bool(&of->random)});
    if (kind == 0)
        split(writer, y, 2, 1, unit[0]);
    return linear(writer, y, inner, width);
}

static keel_value norm(struct writer *writer, keel_value x, uint64_t width)
{
    keel_value gamma = param(writer, 1, width, 0, 1.0F);
    if (draw_bool(&writer->of->random))
        return keel_graph_rms_norm(writer->graph, x, gamma);
    return keel_graph_layernorm(writer->graph, x, gamma,
                                draw_bool(&writer->of->random) ? param(writer, 1, width, 0, 0.0F) : 0);
}

/* What a block begins with, maybe by rows. */
static keel_value block(struct writer *writer, keel_value x, uint64_t width)
{
    struct plan_case *of = writer->of;
    keel_value y = draw_of(&of->random, 0, 3) > 0 ? norm(writer, x, width) : x;
    y = draw_of(&of->random, 0, 4) == 0 ? move(writer, y, width) : y;
    if (of->groups)
        y = grouped(writer, y, width);
    else
        y = draw_bool(&of->random) ? perceptron(writer, y, width) : attention(writer, y, width);
    if (draw_bool(&of->random))
        y = keel_graph_dropout(writer->graph, y, 0.1F);
    return draw_of(&of->random, 0, 3) > 0 ? keel_graph_add(writer->graph, x, y) : y;
}

static void split_rows(struct writer *writer, keel_value x)
{
    keel_graph_shard(writer->graph, x, KEEL_AXIS_TENSOR,
                     (struct keel_axis_spec){.kind = KEEL_SPLIT, .dim = KEEL_SPLIT_ROWS});
}

/* Tokens or numbers in, blocks, a loss over a vocabulary or over numbers. */
static void write_free(struct writer *writer)
{
    struct plan_case *of = writer->of;
    struct keel_graph *graph = writer->graph;
    const struct keel_shape tokens = {2, {of->batch, of->tokens}};
    const struct keel_shape values = {3, {of->batch, of->tokens, of->width}};
    const bool ids = draw_bool(&of->random), rows = draw_bool(&of->random);
    keel_value table = 0, x;
    if (ids) {
        keel_value in = keel_graph_input(graph, "ids", KEEL_I32, tokens);
        table = param(writer, 2, of->vocab, of->width, 0.0F);
        if (draw_of(&of->random, 0, 3) > 0)
            split(writer, table, 0, 1, 1);
        x = keel_graph_embedding(graph, in, table,
                                 draw_bool(&of->random) ? param(writer, 2, of->tokens, of->width, 0.0F) : 0);
    } else {
        x = linear(writer, keel_graph_input(graph, "x", KEEL_F32, values), of->width, of->width);
    }
    if (rows && of->freezes) /* of one sample it is an add like any other, and so cut with the rows */
        x = keel_graph_binary(graph, x, positions(writer), KEEL_ADD);
    if (rows)
        split_rows(writer, x);
    for (uint32_t blocks = draw_of(&of->random, 1, 3); blocks > 0; blocks--)
        x = block(writer, x, of->width);
    if (draw_of(&of->random, 0, 2) == 0) {
        keel_graph_mse(graph, x, keel_graph_input(graph, "y", KEEL_F32, values));
        return;
    }
    if (table == 0 || draw_bool(&of->random)) {
        table = param(writer, 2, of->vocab, of->width, 0.0F);
        if (draw_of(&of->random, 0, 3) > 0)
            split(writer, table, 0, 1, 1);
    }
    keel_graph_cross_entropy(graph, keel_graph_linear_transposed(graph, x, table),
                             keel_graph_input(graph, "targets", KEEL_I32, tokens));
}

/* Heads are cut, but now and then whole. */
static struct keel_llama_config llama_of(struct plan_case *of)
{
    const uint32_t each = draw_of(&of->random, 1, 3);
    return (struct keel_llama_config){.layers = draw_of(&of->random, 1, 2),
                                      .heads = of->heads * each,
                                      .kv_heads = of->heads,
                                      .width = of->heads * each * 2 * draw_of(&of->random, 1, 2),
                                      .block = of->tokens,
                                      .vocab = of->vocab,
                                      .batch = of->batch,
                                      .hidden = draw_of(&of->random, of->slices, 2 * SLICES),
                                      .rope_base = 100.0F,
                                      .rope_factor = 1.0F,
                                      .tied = draw_bool(&of->random),
                                      .cut_heads = draw_of(&of->random, 0, 3) > 0};
}

static struct keel_gpt_config gpt_of(struct plan_case *of)
{
    return (struct keel_gpt_config){.layers = draw_of(&of->random, 1, 2),
                                    .heads = of->heads,
                                    .width = of->heads * 2,
                                    .block = of->tokens,
                                    .vocab = of->vocab,
                                    .batch = of->batch,
                                    .dropout = draw_bool(&of->random) ? 0.1F : 0.0F,
                                    .bias = draw_bool(&of->random),
                                    .tied = draw_bool(&of->random)};
}

/* About every third parameter, but for the last, with numbers of its own: cases stay what they were. */
static void freeze_some(const struct plan_case *of, struct keel_graph *graph)
{
    uint64_t random = of->random;
    for (uint32_t p = 0; of->freezes && p + 1 < graph->param_count; p++)
        graph->params[p].frozen = !graph->params[p].statistic && draw_of(&random, 0, 2) == 0;
}

static struct keel_graph *write_model(struct plan_case *of)
{
    struct keel_graph *graph;
    ck_ok(keel_graph_create(&graph));
    const uint32_t other = draw_of(&of->random, 0, 5), kind = of->groups ? 5 + other % 2 : other;
    struct keel_gpt_config gpt = gpt_of(of);
    const uint32_t masked = draw_of(&of->random, 1, of->tokens);
    static const char *const names[] = {"gpt", "bert", "moe", "free", "free", "free", "llama"};
    if (kind == 0) {
        ck_ok(keel_model_gpt(graph, &gpt));
    } else if (kind == 1) {
        const struct keel_bert_config bert = {gpt.layers, gpt.heads, gpt.width, gpt.block,  gpt.vocab,
                                              gpt.batch,  masked,    0,         gpt.dropout};
        ck_ok(keel_model_bert(graph, &bert));
        of->classes = of->batch * of->tokens < of->classes ? of->batch * of->tokens : of->classes;
    } else if (kind == 2) {
        gpt.layers = 2; /* every second has experts */
        ck_ok(keel_model_moe(
            graph, &(struct keel_moe_config){.gpt = gpt, .experts = 3, .capacity = 1.0F, .balance = 0.01F}));
    } else if (kind == 6) {
        const struct keel_llama_config llama = llama_of(of);
        ck_ok(keel_model_llama(graph, &llama));
    } else {
        write_free(&(struct writer){.graph = graph, .of = of});
        ck_ok(keel_graph_status(graph));
    }
    freeze_some(of, graph);
    const size_t used = strlen(of->what);
    snprintf(of->what + used, sizeof of->what - used, " %s [%u,%u,%u] heads %u vocab %u", names[kind],
             of->batch, of->tokens, of->width, of->heads, of->vocab);
    return graph;
}

#endif
