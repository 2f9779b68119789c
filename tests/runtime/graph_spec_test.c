/* graph_spec_test.c - the algebra of specs: what is unsound is refused with operation, index and specs named,
 * what is sound is taken, and what the check takes is true: a brute-force oracle computes the node slice by
 * slice and puts the results together. */
#include "harness.h"

#include "emit.h"
#include "spec.h"

#include <keel/clock.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { VALUES_MAX = KEEL_NODE_IN_MAX + KEEL_NODE_OUT_MAX, SLICES_MAX = 3, ELEMENTS_MAX = 512 };
static const uint64_t seed = 2026;

/* A node: operands "f4,6:s1 i4:r -", then accumulators behind '+', then what is claimed of results behind
 * '>'. Specs: r replicated, p partial, b partial bits, s1 split, s0-1 of several dimensions, with o3 (outer),
 * u2 (unit), l2 (lead). */
struct spec_case {
    uint32_t op;
    const char *text;
    const char *says;                  /* of a refusal; NULL: it is sound */
    struct keel_attributes attributes; /* of the operation */
};

static const struct spec_case unsound[] = {
    {.op = KEEL_OP_ACTIVATION,
     .text = "f4,6:p > p",
     .says = "activation(v1: partial): it takes no partial sum"},
    {.op = KEEL_OP_DROPOUT, .text = "f4,6:p - > p", .says = "dropout(v1: partial): it takes no partial sum"},
    {.op = KEEL_OP_MULTIPLY,
     .text = "f4,6:p f4,6:p > p",
     .says = "multiply(v1: partial, v2: partial): it takes no partial sum"},
    {.op = KEEL_OP_ADD,
     .text = "f4,6:p f4,6:r > p",
     .says = "add(v1: partial, v2: replicated): it takes no partial sum"},
    {.op = KEEL_OP_ADD, .text = "f4,6:p f4,6:p > p", .says = "it takes no partial sum"},
    {.op = KEEL_OP_LINEAR,
     .text = "f4,6:p f6,8:r - > p",
     .says = "linear(v1: partial, v2: replicated): it takes no partial sum"},
    {.op = KEEL_OP_LINEAR,
     .text = "f4,6:s0 f6,8:s1 - > s0",
     .says = "index * may not be split, as it is in v1"},
    {.op = KEEL_OP_LINEAR,
     .text = "f4,6:s1 f6,8:s1 - > s1",
     .says = "index k is split, so v2 must be split(0)"},
    {.op = KEEL_OP_LINEAR,
     .text = "f4,6:s1 f6,8:r - > p",
     .says = "index k is split, so v2 must be split(0)"},
    {.op = KEEL_OP_LINEAR,
     .text = "f4,18:s1u2 f18,8:s0u3 - > p",
     .says = "index k is split, so v2 must be split(0, unit 2)"},
    {.op = KEEL_OP_LINEAR,
     .text = "f4,6:s1 f6,8:s0 f8:r > p",
     .says = "partial sum over index k, to which each slice would add v3"},
    {.op = KEEL_OP_LINEAR, .text = "f4,6:s1 f6,8:s0 - > r", .says = "is replicated, and must be partial"},
    {.op = KEEL_OP_LINEAR_DX, .text = "f4,8:s1 f6,8:s1 > s1", .says = "is split(1), and must be partial"},
    {.op = KEEL_OP_LINEAR_DW,
     .text = "f4,6:s0 f4,8:s0 + f6,8:p > p",
     .says = "linear_dw(v1: split(0), v2: split(0)): index *"},
    {.op = KEEL_OP_SOFTMAX,
     .text = "f4,6:s1 > s1",
     .says = "softmax(v1: split(1)): index n may not be split, as it is in v1: gather it first"},
    {.op = KEEL_OP_LAYERNORM,
     .text = "f4,6:s1 f6:s0 f6:s0 > s1 r r",
     .says = "layernorm(v1: split(1), v2: split(0), v3: split(0))"},
    {.op = KEEL_OP_CUMSUM, .text = "f4,6:s1 > s1", .says = "cumsum(v1: split(1)): index n may not be split"},
    {.op = KEEL_OP_BROADCAST,
     .text = "f4,6:s1 f6:s0 > s1",
     .says = "broadcast(v1: split(1), v2: split(0)): of operands of any shape none may be split"},
    {.op = KEEL_OP_REDUCE,
     .text = "f4,6:s0 > s0",
     .says = "of operands of any shape none may be split",
     .attributes = {.reduce = {KEEL_REDUCE_SUM, 1, 1}}},
    {.op = KEEL_OP_REDUCE,
     .text = "f4,6:p > p",
     .says = "reduce(v1: partial): it takes no partial sum",
     .attributes = {.reduce = {KEEL_REDUCE_SUM, 1, 1}}},
    {.op = KEEL_OP_EXPAND,
     .text = "f1,6:s1 > s1",
     .says = "of operands of any shape none may be split",
     .attributes = {.shape = {2, {4, 6}}}},
    {.op = KEEL_OP_MATMUL, .text = "f4,3,6:s2 f4,6,6:s1 > p", .says = "index k may not be split"},
    {.op = KEEL_OP_SCALE,
     .text = "f4,6:p > p",
     .says = "scale(v1: partial): it takes no partial sum",
     .attributes = {.scale = {0.5F, 0.0F}}},
    {.op = KEEL_OP_TOP_K,
     .text = "f4,6:s1 > s1 s1",
     .says = "index n may not be split",
     .attributes = {.top_k.k = 3}},
    {.op = KEEL_OP_RESHAPE,
     .text = "f4,6:s0 > s0",
     .says = "does not stay together",
     .attributes = {.shape = {2, {6, 4}}}},
    {.op = KEEL_OP_RESHAPE,
     .text = "f4,6:s1 > s1",
     .says = "must be split(0-1, outer 4)",
     .attributes = {.shape = {2, {6, 4}}}},
    {.op = KEEL_OP_RESHAPE,
     .text = "f2,3,8:s1 > s0",
     .says = "must be split(0, outer 2)",
     .attributes = {.shape = {2, {6, 8}}}},
    {.op = KEEL_OP_RESHAPE,
     .text = "f2,3,8:s0-1 > r",
     .says = "is replicated, and must be split(0)",
     .attributes = {.shape = {2, {6, 8}}}},
    {.op = KEEL_OP_SLICE,
     .text = "f4,6:s1 > s1",
     .says = "does not stay together",
     .attributes = {.slice = {.axis = 1, .from = 1, .count = 4}}},
    {.op = KEEL_OP_PERMUTE,
     .text = "f4,2,6:s0-1 > s0-1",
     .says = "does not stay together",
     .attributes = {.order = {1, 0, 2}}},
    {.op = KEEL_OP_CONCAT,
     .text = "f4,6:s0 f4,6:r > s0",
     .says = "its operands must lie alike",
     .attributes = {.slice.axis = 1}},
    {.op = KEEL_OP_ATTENTION,
     .text = "f2,3,24:s2 > s2 s1",
     .says = "index w: the 3 parts must be split alike",
     .attributes = {.attention.heads = 4}},
    {.op = KEEL_OP_ATTENTION,
     .text = "f2,3,24:s2o3 > s2 s1",
     .says = "index w: whole heads only, of 2",
     .attributes = {.attention.heads = 4}},
    {.op = KEEL_OP_CROSS_ATTENTION,
     .text = "f2,3,8:s2u2 f2,5,16:s2u2 - - > s2u2 s1",
     .says = "index w is split, so v2 must be split(2, outer 2, unit 2)",
     .attributes = {.attention.heads = 4}},
    {.op = KEEL_OP_ATTENTION,
     .text = "f2,3,24:s1 > s1 s2",
     .says = "index t may not be split",
     .attributes = {.attention.heads = 4}},
    {.op = KEEL_OP_ATTENTION,
     .text = "f2,3,24:s0-1 > s0-1 r",
     .says = "several dimensions split as one are no index",
     .attributes = {.attention.heads = 4}},
    {.op = KEEL_OP_GROUPED_ATTENTION,
     .text = "f2,3,48:s2o2u4 > s2 s1",
     .says = "index u: whole groups of heads only, of 2",
     .attributes = {.attention = {.heads = 12, .kv_heads = 6}}},
    {.op = KEEL_OP_GROUPED_ATTENTION,
     .text = "f2,3,48:s2o3u2l3 > s2u4 s1u2",
     .says = "none of as many units",
     .attributes = {.attention = {.heads = 12, .kv_heads = 6}}},
    {.op = KEEL_OP_GROUPED_ATTENTION,
     .text = "f2,3,48:s2o3u2 > s2u4 s1u2",
     .says = "index u: whole groups of heads only, of 2",
     .attributes = {.attention = {.heads = 12, .kv_heads = 6}}},
    {.op = KEEL_OP_GROUPED_ATTENTION,
     .text = "f2,3,48:s2o3u2l2 > s2u2 s1u2",
     .says = "must be split(2, unit 4)",
     .attributes = {.attention = {.heads = 12, .kv_heads = 6}}},
    {.op = KEEL_OP_HEADS_JOIN,
     .text = "f2,3,24:s2u2 f2,3,12:s2u2 f2,3,12:s2u2 > s2o3u2l2",
     .says = "index W: whole groups of heads only, of 2",
     .attributes = {.joined = {.heads = 12, .kv_heads = 6}}},
    {.op = KEEL_OP_HEADS_JOIN,
     .text = "f2,3,24:s2u4 f2,3,12:s2u2 f2,3,12:r > s2o3u2l2",
     .says = "index H is split, so v3 must be split(2, unit 2)",
     .attributes = {.joined = {.heads = 12, .kv_heads = 6}}},
    {.op = KEEL_OP_HEADS_PART,
     .text = "f2,3,48:s2o3u2l2 > s2u4",
     .says = "must be split(2, unit 2)",
     .attributes = {.joined = {.heads = 12, .kv_heads = 6, .part = 1}}},
    {.op = KEEL_OP_PAIR_HALVES,
     .text = "f2,3,12:s2u2 > s2u2",
     .says = "index W: whole groups of heads only, of 1",
     .attributes = {.joined = {3, 3, 0}}},
    {.op = KEEL_OP_ACTIVATION, .text = "f4,48:s1o3u2l2 > s1o3u2l2", .says = "parts that are not alike"},
};

static const struct spec_case sound[] = {
    {.op = KEEL_OP_LINEAR, .text = "f4,6:r f6,12:s1o3u2 f12:s0o3u2 > s1o3u2"},
    {.op = KEEL_OP_LINEAR, .text = "f2,3,6:r f6,8:s1 f8:s0 > s2"},
    {.op = KEEL_OP_LINEAR, .text = "f2,3,6:s2 f6,8:s0 - > p"},
    {.op = KEEL_OP_LINEAR_DX, .text = "f4,8:s1 f6,8:s1 > p"},
    {.op = KEEL_OP_LINEAR_DX, .text = "f4,8:r f6,8:s0 > s1"},
    {.op = KEEL_OP_LINEAR_DW, .text = "f4,6:r f4,8:s1 + f6,8:s1 > s1"},
    {.op = KEEL_OP_LINEAR_TRANSPOSED, .text = "f4,6:r f8,6:s0 > s1"},
    {.op = KEEL_OP_TRANSPOSED_DX, .text = "f4,8:s1 f8,6:s0 > p"},
    {.op = KEEL_OP_BIAS_GRAD, .text = "f2,3,6:s0-1 + f6:p > p"},
    {.op = KEEL_OP_BIAS_GRAD, .text = "f2,3,6:s2 + f6:s0 > s0"},
    {.op = KEEL_OP_LAYERNORM, .text = "f2,3,6:s0-1 f6:r f6:r > s0-1 s0-1 s0-1"},
    {.op = KEEL_OP_LAYERNORM_GRAD, .text = "f4,6:s0 f6:r f4:s0 f4:s0 f4,6:s0 - + f6:p f6:p > s0 p p"},
    {.op = KEEL_OP_ACTIVATION, .text = "f4,6:s1 > s1"},
    {.op = KEEL_OP_ATTENTION, .text = "f2,3,24:s2o3u2 > s2u2 s1", .attributes = {.attention.heads = 4}},
    {.op = KEEL_OP_ATTENTION_GRAD,
     .text = "f2,3,24:s2o3u2 f2,3,8:s2u2 f2,4,3,2:s1 f2,3,8:s2u2 > s2o3u2",
     .attributes = {.attention.heads = 4}},
    {.op = KEEL_OP_GROUPED_ATTENTION,
     .text = "f2,3,24:s2o3u2l2 - > s2u4 s1u2",
     .attributes = {.attention = {.heads = 6, .kv_heads = 3}}},
    {.op = KEEL_OP_GROUPED_ATTENTION_GRAD,
     .text = "f2,3,24:s2o3u2l2 f2,3,12:s2u4 f2,6,3,2:s1u2 f2,3,12:s2u4 - > s2o3u2l2",
     .attributes = {.attention = {.heads = 6, .kv_heads = 3}}},
    {.op = KEEL_OP_HEADS_JOIN,
     .text = "f6,4:s1u2 f6,4:s1u2 f6,4:s1u2 > s1o3u2",
     .attributes = {.joined = {.heads = 2, .kv_heads = 2}}},
    {.op = KEEL_OP_HEADS_JOIN,
     .text = "f2,3,8:s0-1 f2,3,4:s0-1 f2,3,4:s0-1 > s0-1",
     .attributes = {.joined = {.heads = 4, .kv_heads = 2}}},
    {.op = KEEL_OP_PAIR_HALVES, .text = "f2,3,12:s2u4 > s2u4", .attributes = {.joined = {3, 3, 0}}},
    {.op = KEEL_OP_PAIR_HALVES, .text = "f2,3,12:s0-1 > s0-1", .attributes = {.joined = {3, 3, 1}}},
    {.op = KEEL_OP_CROSS_ATTENTION,
     .text = "f2,3,8:s2u2 f2,5,16:s2o2u2 - - > s2u2 s1",
     .attributes = {.attention = {.heads = 4, .bidirectional = true}}},
    {.op = KEEL_OP_CROSS_ATTENTION_GRAD,
     .text = "f2,3,8:s2u2 f2,5,16:s2o2u2 f2,3,8:s2u2 f2,4,3,2:s1 f2,3,8:s2u2 i2,3:r i2,5:r > s2u2 s2o2u2",
     .attributes = {.attention = {.heads = 4, .bidirectional = true}}},
    {.op = KEEL_OP_EMBEDDING, .text = "i2,3:r f8,6:s0 - > b"},
    {.op = KEEL_OP_EMBEDDING_GRAD, .text = "i2,3:r f2,3,6:r + f8,6:s0 f3,6:r > s0 r"},
    {.op = KEEL_OP_CROSS_ENTROPY, .text = "f4,6:s1 i4:r + f1:r > r s1", .attributes = {.loss.weight = 1}},
    {.op = KEEL_OP_RESHAPE, .text = "f2,3,8:s0-1 > s0", .attributes = {.shape = {2, {6, 8}}}},
    {.op = KEEL_OP_RESHAPE, .text = "f2,3,8:p > p", .attributes = {.shape = {2, {6, 8}}}},
    {.op = KEEL_OP_SLICE, .text = "f4,6:p > p", .attributes = {.slice = {.axis = 1, .from = 1, .count = 4}}},
    {.op = KEEL_OP_PERMUTE, .text = "f4,2,6:s2 > s0", .attributes = {.order = {2, 0, 1}}},
    {.op = KEEL_OP_SOFTMAX, .text = "f4,6:s0 > s0"},
    {.op = KEEL_OP_RESHARD, .text = "f4,6:p > s0"},
    {.op = KEEL_OP_RESHARD, .text = "f4,6:b > r"},
    {.op = KEEL_OP_RESHARD, .text = "f4,6:s0 > r"},
};

/* ---- a case as a graph ---- */

static uint32_t read_number(const char **text)
{
    char *end;
    const unsigned long number = strtoul(*text, &end, 10);
    *text = end;
    return (uint32_t)number;
}

static struct keel_axis_spec read_spec(const char **text)
{
    static const char letters[] = "rspb";
    struct keel_axis_spec spec = {.kind = (uint8_t)(strchr(letters, *(*text)++) - letters)};
    if (spec.kind != KEEL_SPLIT)
        return spec;
    spec = (struct keel_axis_spec){.kind = KEEL_SPLIT, .dims = 1, .outer = 1, .unit = 1};
    spec.dim = (uint8_t)read_number(text);
    while (**text != '\0' && strchr("-oul", **text) != NULL) {
        const char what = *(*text)++;
        const uint32_t number = read_number(text);
        if (what == '-')
            spec.dims = (uint8_t)(number - spec.dim + 1);
        else if (what == 'o')
            spec.outer = (uint8_t)number;
        else if (what == 'l')
            spec.lead = number;
        else
            spec.unit = number;
    }
    return spec;
}

static keel_value read_operand(struct keel_graph *graph, const char **text)
{
    char name[8];
    const char kind = *(*text)++;
    if (kind == '-')
        return 0;
    struct keel_shape shape = {.dims = 0};
    do {
        shape.size[shape.dims++] = read_number(text);
    } while (*(*text)++ == ',');
    snprintf(name, sizeof name, "v%u", graph->value_count);
    const keel_value value =
        keel_graph_value(graph, name, kind == 'i' ? KEEL_I32 : KEEL_F32, KEEL_VALUE_TEMP, shape, 0);
    ck_ok(keel_graph_status(graph));
    graph->values[value].spec.axis[KEEL_AXIS_TENSOR] = read_spec(text);
    return value;
}

static struct keel_graph *read_case(const struct spec_case *of)
{
    struct keel_graph *graph = NULL;
    const char *text = of->text;
    struct keel_node_request request = {.op = of->op, .attributes = of->attributes};
    ck_ok(keel_graph_create(&graph));
    graph->differentiated = true; /* as passes make them: weights need not be parameters */
    uint32_t ins = 0, outs = 0;
    const uint32_t accumulated = keel_op_results(of->op).accumulated;
    for (; *text != '\0' && *text != '+' && *text != '>'; text += *text == ' ')
        request.in[ins++] = read_operand(graph, &text);
    text += *text == '+' ? 2 : 0;
    for (; *text != '\0' && *text != '>'; text += *text == ' ') {
        while ((accumulated >> outs & 1U) == 0)
            outs++;
        request.into[outs++] = read_operand(graph, &text);
    }
    request.outputs = of->op == KEEL_OP_CROSS_ENTROPY ? 2 : 0;
    keel_graph_node(graph, &request);
    ck_ok(keel_graph_status(graph));
    text += 2;
    for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++) {
        const keel_value out = graph->nodes[0].out[i];
        if (out == 0)
            continue;
        graph->values[out].spec.axis[KEEL_AXIS_TENSOR] = read_spec(&text);
        text += *text == ' ';
    }
    if (of->op == KEEL_OP_RESHARD)
        graph->nodes[0].attributes.layout = graph->values[graph->nodes[0].out[0]].spec;
    return graph;
}

START_TEST(what_is_unsound_is_refused_with_operation_index_and_specs)
{
    const uint32_t slices = 3;
    for (size_t i = 0; i < sizeof unsound / sizeof *unsound; i++) {
        struct keel_graph *graph = read_case(&unsound[i]);
        const enum keel_status status = keel_pass_check(graph, &slices);
        ck_assert_msg(status == KEEL_INVALID, "%s of %s was taken", keel_op_row(unsound[i].op)->name,
                      unsound[i].text);
        ck_assert_msg(strstr(keel_detail(), unsound[i].says) != NULL, "\"%s\" lacks \"%s\"", keel_detail(),
                      unsound[i].says);
        keel_graph_destroy(graph);
    }
}
END_TEST

START_TEST(what_is_sound_is_taken)
{
    const uint32_t slices = 2;
    for (size_t i = 0; i < sizeof sound / sizeof *sound; i++) {
        struct keel_graph *graph = read_case(&sound[i]);
        ck_ok(keel_pass_check(graph, &slices));
        keel_graph_destroy(graph);
    }
}
END_TEST

/* ---- the oracle: one node, computed by its kernels ---- */

static struct keel_device *device;
static struct keel_kernels *kernels;

struct tensor {
    struct keel_shape shape;
    enum keel_dtype dtype;
    union {
        float f[ELEMENTS_MAX];
        int32_t i[ELEMENTS_MAX];
    };
};

/* Operands, then results; dims 0: absent. */
struct problem {
    uint32_t op;
    struct keel_attributes attributes;
    struct tensor value[VALUES_MAX];
};

/* The launches of the graph's one node. */
static void launch(struct keel_emit *emit, struct keel_queue *queue)
{
    struct keel_launch_list list = {.items = NULL};
    struct keel_parts parts = {.count = 0};
    const struct keel_ir_node *node = &emit->graph->nodes[0];
    emit->parts = &parts;
    emit->measure = true;
    ck_ok(keel_op_row(node->op)->emit(emit, node));
    ck_ok(keel_buffer_create(device, emit->workspace_bytes + 64, &emit->workspace));
    emit->measure = false;
    emit->list = &list;
    ck_ok(keel_op_row(node->op)->emit(emit, node));
    ck_ok(keel_launch_list_run(&list, queue));
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(60 * KEEL_NS_PER_S)));
    keel_launch_list_fini(&list);
    keel_parts_fini(&parts);
    keel_buffer_destroy(emit->workspace);
}

static void compute(struct problem *problem)
{
    struct keel_graph *graph = NULL;
    struct keel_queue *queue = NULL;
    struct keel_buffer *buffers[VALUES_MAX + 1] = {NULL}, *control = NULL;
    struct keel_place places[VALUES_MAX + 1] = {{.offset = 0}};
    struct keel_ir_node node = {.op = problem->op, .attributes = problem->attributes};
    ck_ok(keel_graph_create(&graph));
    ck_ok(keel_queue_create(device, &queue));
    ck_ok(keel_buffer_create(device, 64, &control));
    for (uint32_t i = 0; i < VALUES_MAX; i++) {
        const struct tensor *t = &problem->value[i];
        if (t->shape.dims == 0)
            continue;
        const keel_value v = keel_graph_value(graph, "v", t->dtype, KEEL_VALUE_TEMP, t->shape, 0);
        *(i < KEEL_NODE_IN_MAX ? &node.in[i] : &node.out[i - KEEL_NODE_IN_MAX]) = v;
        ck_ok(keel_buffer_create(device, sizeof t->f, &buffers[v]));
        ck_ok(keel_queue_write(queue, buffers[v], 0, t->f, sizeof t->f, NULL, NULL));
        places[v].whole = buffers[v];
    }
    ck_ok(keel_graph_append(graph, &node));
    struct keel_emit emit = {.graph = graph,
                             .kernels = kernels,
                             .buffer = buffers,
                             .place = places,
                             .control = control,
                             .microbatches = 1};
    launch(&emit, queue);
    for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++) {
        struct tensor *t = &problem->value[KEEL_NODE_IN_MAX + i];
        if (node.out[i] != 0)
            ck_ok(keel_queue_read(queue, buffers[node.out[i]], 0, t->f, sizeof t->f, NULL, NULL));
    }
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(60 * KEEL_NS_PER_S)));
    for (uint32_t v = 1; v < graph->value_count; v++)
        keel_buffer_destroy(buffers[v]);
    keel_buffer_destroy(control);
    keel_queue_destroy(queue);
    keel_graph_destroy(graph);
}

/* ---- the oracle: slices ---- */

static uint64_t volume(const struct keel_shape *shape, uint32_t from, uint32_t to)
{
    uint64_t count = 1;
    for (uint32_t i = from; i < to; i++)
        count *= shape->size[i];
    return count;
}

/* The part of slice `s`, cut out of `whole` into `part`, or put back. */
static void move_part(struct tensor *whole, struct tensor *part, const struct keel_axis_spec *spec,
                      uint32_t s, uint32_t of, bool back)
{
    const struct keel_shape *shape = &whole->shape;
    const uint64_t before = volume(shape, 0, spec->dim),
                   behind = volume(shape, spec->dim + spec->dims, shape->dims);
    const uint64_t lead = spec->lead > 0 ? spec->lead : 1, each = (spec->outer + lead - 1) * spec->unit;
    const uint64_t units = volume(shape, spec->dim, spec->dim + spec->dims) / each;
    const uint64_t begin = s * units / of, end = (s + 1) * units / of;
    uint64_t at = 0, first = 0;
    for (uint64_t a = 0; a < before * spec->outer; a++) {
        const uint64_t inner = spec->unit * behind * (a % spec->outer == 0 ? lead : 1);
        for (uint64_t e = begin * inner; e < end * inner; e++, at++) {
            float *w = &whole->f[first + e];
            *(back ? w : &part->f[at]) = *(back ? &part->f[at] : w);
        }
        first += units * inner;
    }
    part->dtype = whole->dtype;
    part->shape = (struct keel_shape){.dims = shape->dims - spec->dims + 1};
    for (uint32_t i = 0; i < part->shape.dims; i++)
        part->shape.size[i] = shape->size[i <= spec->dim ? i : i + spec->dims - 1];
    part->shape.size[spec->dim] = each * (end - begin);
}

/* What slice `s` of `of` has of an operand. */
static void cut(struct tensor *whole, struct tensor *part, const struct keel_axis_spec *spec, uint32_t s,
                uint32_t of)
{
    const struct keel_control draw = {.seed_lo = 5};
    *part = *whole;
    if (spec->kind == KEEL_SPLIT)
        move_part(whole, part, spec, s, of, false);
    for (uint64_t e = 0; keel_is_partial(spec) && e < keel_shape_count(&whole->shape); e++) {
        const uint32_t owner = keel_random_u32(&draw, 1, e) % of;
        const float other = spec->kind == KEEL_PARTIAL ? (float)(s + e % 3) : 0.0F;
        float rest = 0.0F;
        for (uint32_t k = 0; k < of; k++)
            rest += k == owner || spec->kind == KEEL_PARTIAL_BITS ? 0.0F : (float)(k + e % 3);
        part->f[e] = s == owner ? whole->f[e] - rest : other;
    }
}

/* The attributes of a slice's node: fewer heads, smaller shapes, dimensions that became one. */
static void localize(const struct keel_graph *graph, struct problem *part, uint32_t s, uint32_t of)
{
    const struct keel_ir_node *node = &graph->nodes[0];
    const struct keel_axis_spec *x = &graph->values[node->in[0]].spec.axis[0];
    const bool attends = node->op >= KEEL_OP_ATTENTION && node->op <= KEEL_OP_CROSS_ATTENTION_GRAD;
    const uint64_t was = graph->values[node->in[0]].shape.size[graph->values[node->in[0]].shape.dims - 1];
    const uint64_t is = part->value[0].shape.size[part->value[0].shape.dims - 1];
    if (attends || node->op == KEEL_OP_ROTARY)
        part->attributes.attention.heads = (uint32_t)(node->attributes.attention.heads * is / was);
    if (node->op == KEEL_OP_GROUPED_ATTENTION || node->op == KEEL_OP_GROUPED_ATTENTION_GRAD) {
        part->attributes.attention.heads = (uint32_t)(node->attributes.attention.heads * is / was);
        part->attributes.attention.kv_heads = (uint32_t)(node->attributes.attention.kv_heads * is / was);
    }
    if (node->op == KEEL_OP_PAIR_HALVES)
        part->attributes.joined.heads = (uint32_t)(node->attributes.joined.heads * is / was);
    if (node->op == KEEL_OP_GROUPED_ROTARY) {
        part->attributes.rotary.heads = (uint32_t)(node->attributes.rotary.heads * is / was);
        part->attributes.rotary.kv_heads = (uint32_t)(node->attributes.rotary.kv_heads * is / was);
    }
    if (node->op == KEEL_OP_RESHAPE)
        part->attributes.shape = part->value[KEEL_NODE_IN_MAX].shape;
    if ((node->op == KEEL_OP_SLICE || node->op == KEEL_OP_SLICE_GRAD || node->op == KEEL_OP_CONCAT) &&
        x->kind == KEEL_SPLIT && node->attributes.slice.axis > x->dim)
        part->attributes.slice.axis -= x->dims - 1U;
    const keel_value table = node->op == KEEL_OP_EMBEDDING        ? node->in[1]
                             : node->op == KEEL_OP_EMBEDDING_GRAD ? node->out[0]
                                                                  : 0;
    const struct keel_axis_spec *rows = &graph->values[table].spec.axis[0];
    if (table != 0 && rows->kind == KEEL_SPLIT &&
        rows->dim == 0) /* numbers count from the owner's first row */
        for (uint64_t e = 0; e < keel_shape_count(&part->value[0].shape); e++)
            part->value[0].i[e] -= (int32_t)(s * graph->values[table].shape.size[0] / of);
}

static keel_value value_at(const struct keel_ir_node *node, uint32_t i)
{
    return i < KEEL_NODE_IN_MAX ? node->in[i] : node->out[i - KEEL_NODE_IN_MAX];
}

static bool near(const struct tensor *a, const struct tensor *b)
{
    bool same = true;
    for (uint64_t e = 0; e < keel_shape_count(&a->shape); e++)
        same = same && (a->dtype == KEEL_I32 ? a->i[e] == b->i[e]
                                             : fabsf(a->f[e] - b->f[e]) <= 1e-3F * (1.0F + fabsf(b->f[e])));
    return same;
}

/* Whether what the slices have of a result is what its spec says. `made` has the parts. */
static bool holds(struct tensor *truth, struct problem *made, uint32_t at, const struct keel_axis_spec *spec,
                  uint32_t of)
{
    static struct tensor whole, part;
    whole = *truth;
    memset(whole.f, 0, sizeof whole.f);
    bool alike = true;
    for (uint32_t s = 0; s < of; s++) {
        part = made[s].value[at];
        if (spec->kind == KEEL_SPLIT)
            move_part(&whole, &part, spec, s, of, true);
        for (uint64_t e = 0; keel_is_partial(spec) && e < keel_shape_count(&whole.shape); e++)
            whole.f[e] += part.f[e];
        alike = alike && (spec->kind != KEEL_REPLICATED || near(&part, truth));
    }
    return alike && (spec->kind == KEEL_REPLICATED || near(&whole, truth));
}

/* Computes the whole, then the slices: true if all results are as claimed. */
static bool is_true(const struct keel_graph *graph, uint32_t of)
{
    static struct problem whole, parts[SLICES_MAX];
    const struct keel_ir_node *node = &graph->nodes[0];
    const struct keel_control draw = {.seed_lo = 9};
    whole = (struct problem){.op = node->op, .attributes = node->attributes};
    for (uint32_t i = 0; i < VALUES_MAX; i++) {
        const struct keel_ir_value *v = &graph->values[value_at(node, i)];
        struct tensor *t = &whole.value[i];
        *t = (struct tensor){.shape = value_at(node, i) == 0 ? (struct keel_shape){.dims = 0} : v->shape,
                             .dtype = v->dtype};
        ck_assert_uint_le(keel_shape_count(&t->shape), ELEMENTS_MAX);
        for (uint64_t e = 0; i < KEEL_NODE_IN_MAX && t->shape.dims > 0 && e < keel_shape_count(&t->shape);
             e++) {
            if (t->dtype == KEEL_I32)
                t->i[e] = (int32_t)(keel_random_u32(&draw, i, e) % 3);
            else
                t->f[e] = (float)(keel_random_u32(&draw, i, e) % 9) - 3.0F;
        }
    }
    for (uint32_t s = 0; s < of; s++) {
        parts[s] = whole;
        for (uint32_t i = 0; i < VALUES_MAX; i++)
            if (value_at(node, i) != 0)
                cut(&whole.value[i], &parts[s].value[i], &graph->values[value_at(node, i)].spec.axis[0], s,
                    of);
        for (uint32_t i = KEEL_NODE_IN_MAX; i < VALUES_MAX; i++)
            memset(parts[s].value[i].f, 0, sizeof parts[s].value[i].f);
        localize(graph, &parts[s], s, of);
        compute(&parts[s]);
    }
    compute(&whole);
    bool good = true;
    for (uint32_t i = KEEL_NODE_IN_MAX; i < VALUES_MAX; i++)
        if (value_at(node, i) != 0)
            good =
                good && holds(&whole.value[i], parts, i, &graph->values[value_at(node, i)].spec.axis[0], of);
    return good;
}

/* ---- random specs ---- */

/* Nodes whose specs are drawn. Not cross_entropy, which is whole by collectives of its own, nor dropout,
 * which draws by element. */
static const struct spec_case drawn[] = {
    {.op = KEEL_OP_LINEAR, .text = "f4,6:r f6,12:r f12:r > r"},
    {.op = KEEL_OP_LINEAR, .text = "f2,3,6:r f6,12:r - > r"},
    {.op = KEEL_OP_LINEAR_DX, .text = "f2,3,12:r f6,12:r > r"},
    {.op = KEEL_OP_LINEAR_DW, .text = "f4,6:r f4,12:r + f6,12:r > r"},
    {.op = KEEL_OP_LINEAR_TRANSPOSED, .text = "f4,6:r f12,6:r > r"},
    {.op = KEEL_OP_TRANSPOSED_DX, .text = "f4,12:r f12,6:r > r"},
    {.op = KEEL_OP_TRANSPOSED_DW, .text = "f4,6:r f4,12:r + f12,6:r > r"},
    {.op = KEEL_OP_BIAS_GRAD, .text = "f2,3,6:r + f6:r > r"},
    {.op = KEEL_OP_LAYERNORM, .text = "f2,3,6:r f6:r f6:r > r r r"},
    {.op = KEEL_OP_LAYERNORM_GRAD, .text = "f4,6:r f6:r f4:r f4:r f4,6:r f4,6:r + f6:r f6:r > r r r"},
    {.op = KEEL_OP_RMS_NORM, .text = "f4,6:r f6:r > r r"},
    {.op = KEEL_OP_ACTIVATION, .text = "f2,3,6:r > r"},
    {.op = KEEL_OP_ADD, .text = "f2,3,6:r f2,3,6:r > r"},
    {.op = KEEL_OP_MULTIPLY, .text = "f4,6:r f4,6:r > r"},
    {.op = KEEL_OP_SWIGLU, .text = "f4,6:r f4,6:r > r"},
    {.op = KEEL_OP_ACCUMULATE, .text = "f4,6:r + f4,6:r > r"},
    {.op = KEEL_OP_ATTENTION, .text = "f2,3,24:r > r r", .attributes = {.attention.heads = 4}},
    {.op = KEEL_OP_CROSS_ATTENTION,
     .text = "f2,3,8:r f2,5,16:r i2,3:r i2,5:r > r r",
     .attributes = {.attention = {.heads = 4, .bidirectional = true}}},
    {.op = KEEL_OP_ROTARY, .text = "f2,3,24:r > r", .attributes = {.rotary = {.heads = 4, .base = 100}}},
    {.op = KEEL_OP_GROUPED_ATTENTION,
     .text = "f2,3,24:r i2,3:r > r r",
     .attributes = {.attention = {.heads = 6, .kv_heads = 3}}},
    {.op = KEEL_OP_GROUPED_ROTARY,
     .text = "f2,3,24:r > r",
     .attributes = {.rotary = {.heads = 6, .kv_heads = 3, .base = 100}}},
    {.op = KEEL_OP_HEADS_JOIN,
     .text = "f2,3,12:r f2,3,6:r f2,3,6:r > r",
     .attributes = {.joined = {.heads = 6, .kv_heads = 3}}},
    {.op = KEEL_OP_HEADS_PART,
     .text = "f2,3,24:r > r",
     .attributes = {.joined = {.heads = 6, .kv_heads = 3, .part = 2}}},
    {.op = KEEL_OP_PAIR_HALVES, .text = "f2,3,6:r > r", .attributes = {.joined = {3, 3, 0}}},
    {.op = KEEL_OP_PAIR_HALVES, .text = "f2,3,16:r > r", .attributes = {.joined = {4, 4, 1}}},
    {.op = KEEL_OP_EMBEDDING, .text = "i2,3:r f8,6:r f3,6:r > r"},
    {.op = KEEL_OP_EMBEDDING, .text = "i2,3:r f8,6:r - > r"},
    {.op = KEEL_OP_EMBEDDING_GRAD, .text = "i2,3:r f2,3,6:r + f8,6:r f3,6:r > r r"},
    {.op = KEEL_OP_GATHER, .text = "i4:r f5,6:r > r"},
    {.op = KEEL_OP_PAIRWISE_DOT, .text = "f4,3,6:r > r"},
    {.op = KEEL_OP_SOFTMAX, .text = "f2,3,6:r > r"},
    {.op = KEEL_OP_SOFTMAX_GRAD, .text = "f4,6:r f4,6:r > r"},
    {.op = KEEL_OP_TOP_K, .text = "f4,6:r > r r", .attributes = {.top_k.k = 3}},
    {.op = KEEL_OP_CUMSUM, .text = "f4,6:r > r"},
    {.op = KEEL_OP_RESHAPE, .text = "f2,3,8:r > r", .attributes = {.shape = {2, {6, 8}}}},
    {.op = KEEL_OP_RESHAPE, .text = "f6,8:r > r", .attributes = {.shape = {4, {2, 3, 2, 4}}}},
    {.op = KEEL_OP_SLICE,
     .text = "f4,3,6:r > r",
     .attributes = {.slice = {.axis = 1, .from = 1, .count = 2}}},
    {.op = KEEL_OP_SLICE_GRAD,
     .text = "f4,2,6:r > r",
     .attributes = {.slice = {.axis = 1, .from = 1, .count = 3}}},
    {.op = KEEL_OP_CONCAT, .text = "f4,3,6:r f4,2,6:r > r", .attributes = {.slice.axis = 1}},
    {.op = KEEL_OP_PERMUTE, .text = "f4,3,6:r > r", .attributes = {.order = {2, 0, 1}}},
    {.op = KEEL_OP_BINARY, .text = "f4,6:r f4,6:r > r", .attributes = {.binary.kind = KEEL_SUBTRACT}},
    {.op = KEEL_OP_BINARY_GRAD,
     .text = "f4,6:r f4,6:r f4,6:r > r",
     .attributes = {.binary = {KEEL_MULTIPLY, KEEL_BINARY_SLOPE_A}}},
    {.op = KEEL_OP_SCALE, .text = "f2,3,6:r > r", .attributes = {.scale = {0.5F, 1.0F}}},
    {.op = KEEL_OP_MATMUL, .text = "f4,3,2:r f4,2,6:r > r"},
    {.op = KEEL_OP_MATMUL_DA, .text = "f4,3,6:r f4,2,6:r > r"},
    {.op = KEEL_OP_MATMUL_DB, .text = "f4,3,2:r f4,3,6:r > r"},
};

static uint32_t draw_below(uint64_t *number, uint32_t below)
{
    const struct keel_control draw = {.seed_lo = (uint32_t)seed};
    return keel_random_u32(&draw, 0, (*number)++) % below;
}

/* Any spec that a shape can have, with slices that are not empty; sound or not where it stands. */
static struct keel_axis_spec draw_spec(uint64_t *number, const struct keel_ir_value *value, bool flatten,
                                       uint32_t of)
{
    static const uint8_t outers[] = {1, 1, 3};
    static const uint32_t units[] = {1, 2};
    const uint32_t kind = draw_below(number, 8);
    if (kind < 2 || value->shape.dims == 0)
        return (struct keel_axis_spec){.kind = KEEL_REPLICATED};
    if (kind == 2 && value->dtype == KEEL_F32)
        return (struct keel_axis_spec){.kind = draw_below(number, 3) == 0 ? KEEL_PARTIAL_BITS : KEEL_PARTIAL};
    struct keel_axis_spec spec = {.kind = KEEL_SPLIT,
                                  .dim = (uint8_t)draw_below(number, value->shape.dims),
                                  .dims = 1,
                                  .outer = outers[draw_below(number, 3)],
                                  .unit = units[draw_below(number, 2)]};
    if (spec.outer == 3 && spec.unit == 2 && spec.dim + 1U == value->shape.dims)
        spec.lead = draw_below(number, 2) * 2; /* as of groups of two heads */
    if (flatten && spec.lead == 0 && spec.dim + 2U <= value->shape.dims && draw_below(number, 2) == 0)
        spec.dims = 2;
    if (keel_axis_spec_resolve(value, &spec) == KEEL_OK && keel_axis_spec_units(&value->shape, &spec) >= of)
        return spec;
    return (struct keel_axis_spec){.kind = KEEL_REPLICATED};
}

/* All operands as one of them wants: else too little is sound. */
static void draw_alike(struct keel_graph *graph, uint64_t *number)
{
    const struct keel_ir_node *node = &graph->nodes[0];
    struct keel_rule rule;
    char why[KEEL_SPEC_TEXT_BYTES];
    keel_rule_read(node->op, &rule);
    const uint32_t at = draw_below(number, rule.in_count + rule.out_count);
    const keel_value from = at < rule.in_count ? node->in[at] : node->out[at - rule.in_count];
    const struct keel_rule_operand *operand =
        at < rule.in_count ? &rule.in[at] : &rule.out[at - rule.in_count];
    const struct keel_axis_spec spec = graph->values[from].spec.axis[0];
    if (from == 0 || operand->any || keel_op_row(node->op)->move != NULL || spec.kind != KEEL_SPLIT)
        return;
    const struct keel_split_index index = keel_split_index(graph, node, operand, from, &spec, why);
    for (uint32_t i = 0; index.letter != '\0' && i < rule.in_count; i++)
        if (node->in[i] != 0)
            graph->values[node->in[i]].spec.axis[0] =
                keel_split_of(graph, node, &rule.in[i], node->in[i], &index);
}

/* Each by itself, or as another wants, with one in three spoilt; the results as the algebra makes them of
 * that, or not. */
static void draw_specs(struct keel_graph *graph, uint64_t *number, uint32_t of)
{
    const struct keel_ir_node *node = &graph->nodes[0];
    struct keel_axis_spec made[KEEL_NODE_OUT_MAX];
    const bool flatten = node->op != KEEL_OP_PERMUTE;
    for (keel_value v = 1; v < graph->value_count; v++)
        graph->values[v].spec.axis[0] = draw_spec(number, &graph->values[v], flatten, of);
    if (draw_below(number, 3) > 0)
        draw_alike(graph, number);
    const keel_value spoilt = 1 + draw_below(number, graph->value_count - 1);
    if (draw_below(number, 3) == 0)
        graph->values[spoilt].spec.axis[0] = draw_spec(number, &graph->values[spoilt], flatten, of);
    if (draw_below(number, 4) == 0 || keel_spec_infer(graph, node, KEEL_AXIS_TENSOR, made) != KEEL_OK)
        return;
    for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++)
        graph->values[node->out[i]].spec.axis[0] = made[i];
}

START_TEST(what_the_check_takes_is_true)
{
    const uint32_t tries = 400;
    uint64_t number = 0;
    uint32_t taken = 0, cases = 0;
    ck_ok(keel_device_open("host", NULL, &device));
    ck_ok(keel_kernels_create(device, &kernels));
    for (size_t i = 0; i < sizeof drawn / sizeof *drawn; i++) {
        uint32_t split = 0;
        struct keel_graph *graph = read_case(&drawn[i]);
        for (uint32_t t = 0; t < tries; t++, cases++) {
            const uint32_t of = 2 + draw_below(&number, 2);
            bool whole = true;
            draw_specs(graph, &number, of);
            for (keel_value v = 1; v < graph->value_count; v++)
                whole = whole && graph->values[v].spec.axis[0].kind == KEEL_REPLICATED;
            if (whole || keel_pass_check(graph, &of) != KEEL_OK)
                continue;
            split++;
            ck_assert_msg(is_true(graph, of), "%s of %s, try %u: the check takes what is false",
                          keel_op_row(drawn[i].op)->name, drawn[i].text, t);
        }
        ck_assert_msg(split > 0, "%s of %s: nothing was taken", keel_op_row(drawn[i].op)->name,
                      drawn[i].text);
        taken += split;
        keel_graph_destroy(graph);
    }
    printf("note: %u of %u drawn nodes were taken, all true\n", taken, cases);
    keel_kernels_destroy(kernels);
    keel_device_close(device);
}
END_TEST

/* The oracle sees what is false: the specs of the table of unsound cases that an evaluator can run. */
START_TEST(the_oracle_finds_false_claims)
{
    static const struct spec_case lies[] = {
        {.op = KEEL_OP_LINEAR, .text = "f4,6:s1 f6,8:s0 f8:r > p"},
        {.op = KEEL_OP_LINEAR, .text = "f4,6:s1 f6,8:s0 - > r"},
        {.op = KEEL_OP_ACTIVATION, .text = "f4,6:p > p", .attributes = {.activation = KEEL_GELU}},
        {.op = KEEL_OP_MULTIPLY, .text = "f4,6:p f4,6:p > p"},
        {.op = KEEL_OP_ADD, .text = "f4,6:p f4,6:r > p"},
        {.op = KEEL_OP_SOFTMAX, .text = "f4,6:s1 > s1"},
        {.op = KEEL_OP_CUMSUM, .text = "f4,6:s1 > s1"},
        {.op = KEEL_OP_BIAS_GRAD, .text = "f4,6:s0 + f6:r > r"},
        {.op = KEEL_OP_EMBEDDING, .text = "i2,3:r f8,6:s0 f3,6:r > b"},
        {.op = KEEL_OP_ROTARY,
         .text = "f2,3,24:s2 > s2",
         .attributes = {.rotary = {.heads = 4, .base = 100}}},
    };
    ck_ok(keel_device_open("host", NULL, &device));
    ck_ok(keel_kernels_create(device, &kernels));
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct keel_graph *graph = read_case(&lies[i]);
        const uint32_t of = 2;
        ck_status(keel_pass_check(graph, &of), KEEL_INVALID);
        ck_assert_msg(!is_true(graph, of), "%s of %s passes for true", keel_op_row(lies[i].op)->name,
                      lies[i].text);
        keel_graph_destroy(graph);
    }
    keel_kernels_destroy(kernels);
    keel_device_close(device);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, what_is_unsound_is_refused_with_operation_index_and_specs);
    tcase_add_test(tc, what_is_sound_is_taken);
    tcase_add_test(tc, what_the_check_takes_is_true);
    tcase_add_test(tc, the_oracle_finds_false_claims);
}

KEEL_TEST_MAIN("graph_spec", cases, 120)
