/* plans_test.c - ranks that share the tensor slices of a model have the bits of one device with all of them.
 *
 * A case is a random model, T slices and a cut of [0, T) into uneven runs. An engine for each run, on one
 * host device, exchanged here in plain C by the tree over slices, is held against one engine with all slices:
 * the losses, the norms and the digests of the weights of each step, and the loss of an evaluation, bit for
 * bit.
 *
 * KEEL_PLANS_CASES (1,000) and KEEL_PLANS_SECONDS (45): what ends first. KEEL_PLANS_FIRST: the number of the
 * first case, so that one that failed can be had alone. */
#include "harness.h"

#include <keel/clock.h>
#include <keel/engine.h>
#include <keel/memory.h>
#include <keel/models.h>
#include <keel/transport.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLICES = 8, STEPS = 2, MICROBATCHES = 4, INPUTS = 3, INPUT_BYTES = 1 << 14, ELEMENTS = 1 << 15 };

static struct keel_device *device;
static struct keel_kernels *kernels;

static uint64_t soon(void)
{
    return keel_deadline_after_ns(60 * KEEL_NS_PER_S);
}

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
    uint32_t slices, ranks, begin[SLICES + 1]; /* rank r has [begin[r], begin[r + 1]) */
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
    const uint64_t hidden = draw_of(&of->random, of->slices, 2 * SLICES + 5);
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

static keel_value attention(struct writer *writer, keel_value x, uint64_t width)
{
    struct plan_case *of = writer->of;
    const uint64_t inner = (uint64_t)of->heads * 4;
    keel_value y = linear(writer, x, width, 3 * inner);
    split(writer, y, 2, 3, 4);
    if (draw_bool(&of->random))
        y = keel_graph_rotary(writer->graph, y, of->heads, 10000.0F);
    y = keel_graph_attention(writer->graph, y,
                             &(struct keel_attention_spec){.heads = of->heads,
                                                           .dropout = draw_bool(&of->random) ? 0.2F : 0.0F,
                                                           .bidirectional = draw_bool(&of->random)});
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

static struct keel_graph *write_model(struct plan_case *of)
{
    struct keel_graph *graph;
    ck_ok(keel_graph_create(&graph));
    const uint32_t kind = draw_of(&of->random, 0, 5);
    struct keel_gpt_config gpt = gpt_of(of);
    const uint32_t masked = draw_of(&of->random, 1, of->tokens);
    const char *name = kind == 0 ? "gpt" : kind == 1 ? "bert" : kind == 2 ? "moe" : "free";
    if (kind == 0) {
        ck_ok(keel_model_gpt(graph, &gpt));
    } else if (kind == 1) {
        const struct keel_bert_config bert = {gpt.layers, gpt.heads, gpt.width,   gpt.block, gpt.vocab,
                                              gpt.batch,  masked,    gpt.dropout, gpt.bias,  gpt.tied};
        ck_ok(keel_model_bert(graph, &bert));
        of->classes = of->batch * of->tokens < of->classes ? of->batch * of->tokens : of->classes;
    } else if (kind == 2) {
        gpt.layers = 2; /* every second has experts */
        ck_ok(keel_model_moe(
            graph, &(struct keel_moe_config){.gpt = gpt, .experts = 3, .capacity = 1.0F, .balance = 0.01F}));
    } else {
        write_free(&(struct writer){.graph = graph, .of = of});
        ck_ok(keel_graph_status(graph));
    }
    const size_t used = strlen(of->what);
    snprintf(of->what + used, sizeof of->what - used, " %s [%u,%u,%u] heads %u vocab %u", name, of->batch,
             of->tokens, of->width, of->heads, of->vocab);
    return graph;
}

/* ---- engines ------------------------------------------------------------------------------------------- */

struct side {
    struct keel_engine *engines[SLICES];
    uint32_t count;
    const struct plan_case *of;
};

static enum keel_status open_side(struct side *side, const struct plan_case *of,
                                  const struct keel_graph *graph, uint32_t ranks)
{
    *side = (struct side){.of = of};
    for (; side->count < ranks; side->count++) {
        const struct keel_engine_config config = {
            .device = device,
            .kernels = kernels,
            .graph = graph,
            .microbatches = MICROBATCHES,
            .tensor = of->slices,
            .tensor_first = ranks == 1 ? 0 : of->begin[side->count],
            .tensor_count = ranks == 1 ? 0 : of->begin[side->count + 1] - of->begin[side->count],
            .bucket_bytes = 4096,
            .storage = of->storage,
            .passes_off = of->passes_off,
            .training = true};
        KEEL_TRY(keel_engine_create(&config, &side->engines[side->count]));
        ck_ok(keel_engine_initialize(side->engines[side->count], 42));
    }
    return KEEL_OK;
}

static void close_side(struct side *side)
{
    for (uint32_t r = 0; r < side->count; r++)
        keel_engine_destroy(side->engines[r]);
}

static void read_words(struct keel_engine *engine, struct keel_buffer *buffer, void *out, uint64_t count)
{
    ck_ok(keel_queue_read(keel_engine_queue(engine), buffer, 0, out, count * 4, NULL, NULL));
    ck_ok(keel_queue_finish(keel_engine_queue(engine), soon()));
}

/* ---- exchanges, in plain C ----------------------------------------------------------------------------- */

/* Sums of nodes of the tree, as ranks gave them. */
struct tree {
    bool given[SLICES][SLICES]; /* by level and index */
    float *sum[SLICES][SLICES];
};
static float pool[SLICES * SLICES][ELEMENTS], joined[ELEMENTS];
static float own[SLICES][ELEMENTS];

static float join(const struct tree *tree, uint32_t slices, uint32_t level, uint32_t index, uint64_t at)
{
    if (tree->given[level][index])
        return tree->sum[level][index][at];
    ck_assert_msg(level > 0, "slice %u is of no rank's sums", index);
    const float left = join(tree, slices, level - 1, 2 * index, at);
    if ((2 * index + 1) << (level - 1) >= slices)
        return left;
    return left + join(tree, slices, level - 1, 2 * index + 1, at);
}

static void add_sums(const struct side *side, const struct keel_engine_exchange *const *all, uint64_t count)
{
    struct tree tree = {.given = {{false}}};
    uint32_t used = 0, top = 0;
    uint16_t owner[SLICES];
    for (uint32_t r = 0; r < side->count; r++)
        for (uint32_t s = side->of->begin[r]; s < side->of->begin[r + 1]; s++)
            owner[s] = (uint16_t)r;
    for (uint32_t r = 0; r < side->count; r++) {
        struct keel_tree_node nodes[SLICES];
        uint32_t node_count;
        ck_ok(keel_tree_nodes(side->of->slices, owner, r, nodes, SLICES, &node_count));
        ck_assert_uint_eq(node_count, all[r]->part_count);
        for (uint32_t n = 0; n < node_count; n++) {
            tree.given[nodes[n].level][nodes[n].index] = true;
            tree.sum[nodes[n].level][nodes[n].index] = pool[used];
            read_words(side->engines[r], all[r]->parts[n], pool[used++], count);
        }
    }
    while (1U << top < side->of->slices)
        top++;
    for (uint64_t i = 0; i < count; i++)
        joined[i] = join(&tree, side->of->slices, top, 0, i);
}

static void add_bits_or_choose(const struct side *side, const struct keel_engine_exchange *const *all,
                               uint64_t count)
{
    for (uint32_t r = 0; r < side->count; r++) {
        ck_assert_uint_eq(all[r]->part_count, 1);
        read_words(side->engines[r], all[r]->parts[0], own[r], count);
    }
    memcpy(joined, own[0], count * sizeof *joined);
    for (uint32_t r = 1; r < side->count; r++)
        for (uint64_t i = 0; i < count; i++) {
            uint32_t a, b;
            memcpy(&a, &joined[i], sizeof a);
            memcpy(&b, &own[r][i], sizeof b);
            a += b;
            if (all[0]->kind == KEEL_EXCHANGE_SUM_BITS)
                memcpy(&joined[i], &a, sizeof a);
            else
                joined[i] = own[r][i] > joined[i] ? own[r][i] : joined[i];
        }
}

static void run_of(const struct side *side, const struct keel_engine_exchange *exchange, uint32_t rank,
                   uint64_t *first, uint64_t *count)
{
    const uint32_t *begin = side->of->begin;
    *first = keel_engine_exchange_count(exchange, side->of->slices, 0, begin[rank]);
    *count =
        keel_engine_exchange_count(exchange, side->of->slices, begin[rank], begin[rank + 1] - begin[rank]);
}

static void exchange(const struct side *side, const struct keel_engine_exchange *const *all)
{
    uint64_t first, count = (uint64_t)all[0]->units * all[0]->unit;
    ck_assert_uint_le(count, ELEMENTS);
    for (uint32_t r = 0; r < side->count; r++) {
        ck_assert_ptr_nonnull(all[r]);
        ck_assert(all[r]->kind == all[0]->kind && all[r]->scatter == all[0]->scatter &&
                  all[r]->units == all[0]->units && all[r]->unit == all[0]->unit);
    }
    if (all[0]->kind == KEEL_EXCHANGE_SUM)
        add_sums(side, all, count);
    else if (all[0]->kind != KEEL_EXCHANGE_GATHER)
        add_bits_or_choose(side, all, count);
    for (uint32_t r = 0; all[0]->kind == KEEL_EXCHANGE_GATHER && r < side->count; r++) {
        run_of(side, all[r], r, &first, &count);
        read_words(side->engines[r], all[r]->parts[0], joined + first, count);
    }
    for (uint32_t r = 0; r < side->count; r++) {
        struct keel_queue *queue = keel_engine_queue(side->engines[r]);
        first = 0;
        count = (uint64_t)all[0]->units * all[0]->unit;
        if (all[r]->scatter)
            run_of(side, all[r], r, &first, &count);
        ck_ok(keel_queue_write(queue, all[r]->result, 0, joined + first, count * 4, NULL, NULL));
        ck_ok(keel_queue_finish(queue, soon()));
    }
}

/* What all engines exchange now; nothing of one. */
static void exchange_all(const struct side *side,
                         const struct keel_engine_exchange *(*find)(const struct keel_engine *, uint32_t),
                         uint32_t segment)
{
    const struct keel_engine_exchange *all[SLICES];
    uint32_t found = 0;
    for (uint32_t r = 0; r < side->count; r++)
        found += (all[r] = find(side->engines[r], segment)) != NULL ? 1 : 0;
    ck_assert_msg(found == 0 || found == side->count, "segment %u: %u of %u ranks exchange", segment, found,
                  side->count);
    if (found > 0)
        exchange(side, all);
}

/* ---- steps --------------------------------------------------------------------------------------------- */

struct outcome {
    uint32_t losses[STEPS], norms[STEPS], eval;
    uint64_t digests[STEPS];
};

static uint8_t inputs[INPUTS][INPUT_BYTES];
static const void *const batch_inputs[INPUTS] = {inputs[0], inputs[1], inputs[2]};

static void fill_inputs(const struct side *side, uint64_t seed)
{
    const struct keel_engine *engine = side->engines[0];
    ck_assert_uint_le(keel_engine_input_count(engine), INPUTS);
    for (uint32_t i = 0; i < keel_engine_input_count(engine); i++) {
        const struct keel_engine_input *input = keel_engine_input(engine, i);
        ck_assert_uint_le(input->bytes, INPUT_BYTES);
        for (uint64_t e = 0; e < input->bytes / 4; e++) {
            const int32_t id = (int32_t)(draw(&seed) % side->of->classes);
            const float value = (float)(draw(&seed) % 4096) / 2048.0F - 1.0F;
            if (input->dtype == KEEL_I32)
                memcpy(inputs[i] + 4 * e, &id, sizeof id);
            else
                memcpy(inputs[i] + 4 * e, &value, sizeof value);
        }
    }
}

static uint32_t same_loss(const struct side *side)
{
    uint32_t first = 0, bits;
    for (uint32_t r = 0; r < side->count; r++) {
        read_words(side->engines[r], keel_engine_loss(side->engines[r]), &bits, 1);
        ck_assert_msg(r == 0 || bits == first, "%s: rank %u has another loss", side->of->what, r);
        first = bits;
    }
    return first;
}

static void run_microbatch(const struct side *side, uint32_t step, uint32_t microbatch)
{
    const struct keel_engine_batch batch = {.inputs = batch_inputs,
                                            .seed = 42,
                                            .step = step,
                                            .microbatch = microbatch,
                                            .more = microbatch % 2 == 0};
    fill_inputs(side, step * 100 + microbatch + 1);
    for (uint32_t r = 0; r < side->count; r++)
        ck_ok(keel_engine_feed(side->engines[r], &batch));
    const uint32_t segments = keel_engine_segment_count(side->engines[0]);
    for (uint32_t s = 0; s < segments; s++) {
        for (uint32_t r = 0; r < side->count; r++) {
            ck_assert_uint_eq(keel_engine_segment_count(side->engines[r]), segments);
            ck_ok(keel_engine_segment(side->engines[r], s));
        }
        exchange_all(side, keel_engine_exchange, s);
    }
}

static const struct keel_engine_exchange *norm_exchange(const struct keel_engine *engine, uint32_t segment)
{
    (void)segment;
    return keel_engine_norm_exchange(engine);
}

static void update(const struct side *side, uint32_t step, struct outcome *out)
{
    const struct keel_engine_update request = {
        .settings = {.beta1 = 0.9F, .beta2 = 0.99F, .epsilon = 1e-8F, .max_norm = 0.5F, .weight_decay = 0.1F},
        .learning_rate = 1e-2F,
        .step = step};
    uint64_t shared = 0;
    for (uint32_t r = 0; r < side->count; r++)
        ck_ok(keel_engine_norm_begin(side->engines[r], NULL));
    exchange_all(side, norm_exchange, 0);
    out->digests[step] = 0;
    for (uint32_t r = 0; r < side->count; r++) {
        struct keel_engine_updated updated;
        uint32_t bits;
        ck_ok(keel_engine_update(side->engines[r], &request, soon(), &updated));
        memcpy(&bits, &updated.grad_norm, sizeof bits);
        ck_assert_msg(r == 0 || bits == out->norms[step], "%s: rank %u has another norm", side->of->what, r);
        ck_assert_msg(r == 0 || updated.digest_shared == shared,
                      "%s: rank %u has other weights of those that all have", side->of->what, r);
        out->norms[step] = bits;
        shared = updated.digest_shared;
        out->digests[step] += updated.digest - shared;
    }
    out->digests[step] += shared;
}

static uint32_t evaluate(const struct side *side)
{
    const struct keel_engine_batch batch = {.inputs = batch_inputs, .seed = 42, .step = STEPS};
    uint32_t first = 0, bits;
    fill_inputs(side, 7);
    for (uint32_t r = 0; r < side->count; r++)
        ck_ok(keel_engine_eval_begin(side->engines[r], &batch));
    for (uint32_t s = 0; s < keel_engine_eval_segment_count(side->engines[0]); s++) {
        for (uint32_t r = 0; r < side->count; r++)
            ck_ok(keel_engine_eval_segment(side->engines[r], s));
        exchange_all(side, keel_engine_eval_exchange, s);
    }
    for (uint32_t r = 0; r < side->count; r++) {
        float loss;
        ck_ok(keel_engine_eval_end(side->engines[r], soon(), &loss));
        memcpy(&bits, &loss, sizeof bits);
        ck_assert_msg(r == 0 || bits == first, "%s: rank %u evaluates otherwise", side->of->what, r);
        first = bits;
    }
    return first;
}

/* Two shards of two microbatches each step. */
static void train(const struct side *side, struct outcome *out)
{
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t r = 0; r < side->count; r++)
            ck_ok(keel_engine_zero(side->engines[r]));
        for (uint32_t m = 0; m < MICROBATCHES; m++)
            run_microbatch(side, step, m);
        out->losses[step] = same_loss(side);
        update(side, step, out);
    }
    out->eval = evaluate(side);
}

/* ---- cases --------------------------------------------------------------------------------------------- */

/* Cut [0, slices) into 2 to `slices` runs; one slice is one rank. */
static void draw_cut(struct plan_case *of)
{
    bool cut[SLICES] = {false};
    of->ranks = draw_of(&of->random, 2, of->slices);
    for (uint32_t cuts = 1; cuts < of->ranks;) {
        const uint32_t at = draw_of(&of->random, 1, of->slices - 1);
        cuts += cut[at] ? 0 : 1;
        cut[at] = true;
    }
    uint32_t rank = 0;
    for (uint32_t s = 1; s < of->slices; s++)
        if (cut[s])
            of->begin[++rank] = s;
    of->begin[of->ranks] = of->slices;
}

static struct plan_case draw_case(uint64_t number)
{
    static const char *const off[] = {NULL, "", "fuse", "plan-memory"};
    struct plan_case of = {.random = number * 7919 + 13};
    of.slices = draw_of(&of.random, 2, SLICES);
    draw_cut(&of);
    of.batch = draw_of(&of.random, 1, 3);
    of.tokens = draw_of(&of.random, (of.slices + of.batch - 1) / of.batch, SLICES);
    of.heads = draw_of(&of.random, of.slices, SLICES + 2);
    of.width = draw_of(&of.random, of.slices, 2 * SLICES);
    of.vocab = draw_of(&of.random, of.slices, 4 * SLICES + 7);
    of.classes = of.vocab;
    of.storage = draw_of(&of.random, 0, 3) > 0 ? KEEL_F32 : draw_bool(&of.random) ? KEEL_BF16 : KEEL_F16;
    of.passes_off = off[draw_of(&of.random, 0, 3)];
    size_t used = (size_t)snprintf(of.what, sizeof of.what, "case %llu: T %u cut", (unsigned long long)number,
                                   of.slices);
    for (uint32_t r = 1; r < of.ranks; r++)
        used += (size_t)snprintf(of.what + used, sizeof of.what - used, " %u", of.begin[r]);
    snprintf(of.what + used, sizeof of.what - used, " storage %d off %s", (int)of.storage,
             of.passes_off == NULL ? "-" : of.passes_off);
    return of;
}

static void compare(const struct plan_case *of, const struct outcome *one, const struct outcome *many)
{
    for (uint32_t s = 0; s < STEPS; s++) {
        ck_assert_msg(many->losses[s] == one->losses[s], "%s: loss of step %u: %08x, of one device %08x",
                      of->what, s, many->losses[s], one->losses[s]);
        ck_assert_msg(many->norms[s] == one->norms[s], "%s: norm of step %u: %08x, of one device %08x",
                      of->what, s, many->norms[s], one->norms[s]);
        ck_assert_msg(many->digests[s] == one->digests[s], "%s: weights of step %u differ", of->what, s);
    }
    ck_assert_msg(many->eval == one->eval, "%s: evaluation: %08x, of one device %08x", of->what, many->eval,
                  one->eval);
}

/* Whether the model could be cut; a split that is refused says so by name. */
static bool run_case(uint64_t number)
{
    struct plan_case of = draw_case(number);
    struct keel_graph *graph = write_model(&of);
    struct side whole, ranks;
    struct outcome one, many;
    ck_assert_msg(open_side(&whole, &of, graph, 1) == KEEL_OK, "%s: %s", of.what, keel_detail());
    const enum keel_status status = open_side(&ranks, &of, graph, of.ranks);
    ck_assert_msg(status == KEEL_OK || status == KEEL_UNSUPPORTED, "%s: %s", of.what, keel_detail());
    if (status == KEEL_OK) {
        train(&whole, &one);
        train(&ranks, &many);
        compare(&of, &one, &many);
    } else if (getenv("KEEL_PLANS_REFUSED") != NULL) {
        printf("note: %s: %s\n", of.what, keel_detail());
    }
    close_side(&ranks);
    close_side(&whole);
    keel_graph_destroy(graph);
    return status == KEEL_OK;
}

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text == NULL ? otherwise : strtoull(text, NULL, 10);
}

START_TEST(ranks_with_some_slices_have_the_bits_of_all)
{
    const uint64_t wanted = setting("KEEL_PLANS_CASES", 1000), first = setting("KEEL_PLANS_FIRST", 0);
    const uint64_t end_ns = keel_deadline_after_ns(setting("KEEL_PLANS_SECONDS", 45) * KEEL_NS_PER_S);
    uint64_t done = 0, refused = 0;
    ck_ok(keel_device_open("host", NULL, &device));
    ck_ok(keel_kernels_create(device, &kernels));
    for (uint64_t c = 0; c < wanted && (c == 0 || keel_now_ns() < end_ns); c++, done++)
        refused += run_case(first + c) ? 0 : 1;
    printf("note: %llu cases of %llu, of which %llu were refused\n", (unsigned long long)done,
           (unsigned long long)wanted, (unsigned long long)refused);
    ck_assert_uint_eq(keel_device_stats(device).live_bytes, 0);
    keel_kernels_destroy(kernels);
    keel_device_close(device);
}
END_TEST

/* What cannot be had is refused by name: a run of too many nodes, and what only all slices have. */
START_TEST(cuts_that_no_rank_can_have_are_refused)
{
    static const struct {
        uint32_t tensor, first, count;
        bool products, pieces;
        const char *says;
    } refused[] = {{64, 1, 62, false, false, "10 nodes"},
                   {4, 3, 2, false, false, "of 4 tensor slices"},
                   {4, 1, 0, false, false, "0 slices from 1"},
                   {4, 0, 2, true, false, "check_products"},
                   {4, 0, 2, false, true, "parallel.zero"}};
    struct keel_graph *graph;
    struct keel_engine *engine = NULL;
    ck_ok(keel_device_open("host", NULL, &device));
    ck_ok(keel_kernels_create(device, &kernels));
    ck_ok(keel_graph_create(&graph));
    ck_ok(keel_model_gpt(
        graph,
        &(struct keel_gpt_config){
            .layers = 1, .heads = 64, .width = 128, .block = 64, .vocab = 64, .batch = 1, .bias = true}));
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const struct keel_engine_config config = {.device = device,
                                                  .kernels = kernels,
                                                  .graph = graph,
                                                  .tensor = refused[i].tensor,
                                                  .tensor_first = refused[i].first,
                                                  .tensor_count = refused[i].count,
                                                  .check_products = refused[i].products,
                                                  .in_pieces = refused[i].pieces,
                                                  .training = true};
        ck_assert_int_ne(keel_engine_create(&config, &engine), KEEL_OK);
        ck_assert_msg(strstr(keel_detail(), refused[i].says) != NULL, "%s: %s", refused[i].says,
                      keel_detail());
    }
    keel_graph_destroy(graph);
    keel_kernels_destroy(kernels);
    keel_device_close(device);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, cuts_that_no_rank_can_have_are_refused);
    tcase_add_test(tc, ranks_with_some_slices_have_the_bits_of_all);
}

KEEL_TEST_MAIN("plans", cases, 3600)
