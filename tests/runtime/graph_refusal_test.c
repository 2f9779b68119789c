/* graph_refusal_test.c - what makes no sense is refused when the graph is built, with the operation's name
 * and shapes: at least one case for every operation that a model can write. */
#include "harness.h"

#include "ops.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { OPERANDS_MAX = 6, NUMBERS_MAX = 8 };

struct refusal {
    uint32_t op;
    const char *operands; /* "f4,16 i4 p16": floats, int32, a parameter, s a statistic, h f16, b bf16, l a
                             loss, - absent */
    const char *why;      /* stands in the message */
    uint32_t numbers[NUMBERS_MAX]; /* attributes, as `build` takes them */
    float rate;                    /* or base, or weight */
};

static const struct refusal table[] = {
    {KEEL_OP_LINEAR, "f4,16 p17,48 -", "k is 16 and 17", {0}, 0},
    {KEEL_OP_LINEAR, "f4,16 p16,48 p47", "n is 48 and 47", {0}, 0},
    {KEEL_OP_LINEAR, "f16 p16,48,1 -", "has 3 dimensions", {0}, 0},
    {KEEL_OP_LINEAR, "i4,16 p16,48 -", "must be float32", {0}, 0},
    {KEEL_OP_LINEAR, "f4,16 f16,48 -", "v1 must be a parameter", {0}, 0},
    {KEEL_OP_LINEAR, "f4,16 s16,48 -", "v1 is a statistic, and must be a trained parameter", {0}, 0},
    {KEEL_OP_LINEAR, "f4,16 p16,48 f48", "v2 must be a parameter", {0}, 0},
    {KEEL_OP_LINEAR_TRANSPOSED, "f4,16 f48,16", "v1 must be a parameter", {0}, 0},
    {KEEL_OP_LAYERNORM, "f4,16 f16 p16", "v1 must be a parameter", {0}, 0},
    {KEEL_OP_LAYERNORM, "f4,16 p16 f16", "v2 must be a parameter", {0}, 0},
    {KEEL_OP_RMS_NORM, "f4,16 s16", "v1 is a statistic", {0}, 0},
    {KEEL_OP_EMBEDDING, "i2,3 f7,8 -", "v1 must be a parameter", {0}, 0},
    {KEEL_OP_EMBEDDING, "i2,3 p7,8 f3,8", "v2 must be a parameter", {0}, 0},
    {KEEL_OP_EMBEDDING_BAG, "i2,3 f7,8", "v1 must be a parameter", {0}, 0},
    {KEEL_OP_EXPERT_LINEAR, "f8,6 f3,6,5 i4 -", "v1 must be a parameter", {0}, 0},
    {KEEL_OP_EXPERT_LINEAR, "f8,6 p3,6,5 i4 f3,5", "v3 must be a parameter", {0}, 0},
    {KEEL_OP_CONV2D, "f2,8,8,6 f3,3,6,5 -", "v1 must be a parameter", {1, 0, 1}, 0},
    {KEEL_OP_CONV2D, "f2,8,8,6 p3,3,6,5 f5", "v2 must be a parameter", {1, 0, 1}, 0},
    {KEEL_OP_BATCH_NORM, "f4,6 f6 p6 s6 s6", "v1 must be a parameter", {0}, 0},
    {KEEL_OP_BATCH_NORM, "f4,6 p6 s6 s6 s6", "v2 is a statistic", {0}, 0},
    {KEEL_OP_LINEAR_TRANSPOSED, "f4,16 p48,17", "k is 16 and 17", {0}, 0},
    {KEEL_OP_LINEAR_TRANSPOSED, "f4,16 p48,16 p47", "n is 48 and 47", {0}, 0},
    {KEEL_OP_LINEAR_TRANSPOSED, "f4,16 p48,16 f48", "v2 must be a parameter", {0}, 0},
    {KEEL_OP_EXPERT_TRANSPOSED, "f8,6 f3,5,6 i4", "v1 must be a parameter", {0}, 0},
    {KEEL_OP_EXPERT_TRANSPOSED, "f8,6 p3,5,6 i3", "O is 3 and must be 4", {0}, 0},
    {KEEL_OP_EXPERT_TRANSPOSED, "f8,6 p3,5,7 i4", "k is 6 and 7", {0}, 0},
    {KEEL_OP_PRODUCT_LOSS, "f4,6 f4,5", "leading dimensions differ", {0}, 1.0F},
    {KEEL_OP_LINEAR_TRANSPOSED, "f4,16 -", "an operand is missing", {0}, 0},
    {KEEL_OP_LAYERNORM, "f4,16 p15 p16", "n is 16 and 15", {0}, 0},
    {KEEL_OP_LAYERNORM, "f4,16 p16 p15", "n is 16 and 15", {0}, 0},
    {KEEL_OP_LAYERNORM, "f4,16 - p16", "beta without gamma", {0}, 0},
    {KEEL_OP_RMS_NORM, "f4,16 p4,16", "has 2 dimensions", {0}, 0},
    {KEEL_OP_ACTIVATION, "l1", "a loss is no operand", {0}, 0},
    {KEEL_OP_ACTIVATION, "i4,16", "must be float32", {0}, 0},
    {KEEL_OP_ACTIVATION, "h4,16", "must be float32", {0}, 0},
    {KEEL_OP_ACTIVATION, "b4,16", "must be float32", {0}, 0},
    {KEEL_OP_ADD, "f4,16 h4,16", "v1 must be float32", {0}, 0},
    {KEEL_OP_EMBEDDING, "h2,3 p7,8 -", "must be int32", {0}, 0},
    {KEEL_OP_ACTIVATION, "f4,16", "there is no kind 999", {999}, 0},
    {KEEL_OP_RESHARD, "i4,16", "must be float32", {0}, 0},
    {KEEL_OP_SWIGLU, "f4,16 f4,15", "leading dimensions differ", {0}, 0},
    {KEEL_OP_DROPOUT, "f4,16", "not in [0, 1)", {0}, 1.0F},
    {KEEL_OP_DROPOUT, "f4,16", "not in [0, 1)", {0}, -0.5F},
    {KEEL_OP_DROPOUT, "f4,16", "not in [0, 1)", {0}, NAN},
    {KEEL_OP_ADD, "f4,16 f16", "leading dimensions differ", {0}, 0},
    {KEEL_OP_CROSS_ENTROPY, "f4,10 i5", "leading dimensions differ", {0}, 0},
    {KEEL_OP_CROSS_ENTROPY, "f4,10 f4", "must be int32", {0}, 0},
    {KEEL_OP_BCE, "f4 f5", "leading dimensions differ", {0}, 0},
    {KEEL_OP_BCE, "f4 i4", "must be float32", {0}, 0},
    {KEEL_OP_MSE, "f4,1 f4", "leading dimensions differ", {0}, 0},
    {KEEL_OP_ATTENTION, "f2,3,36", "no multiple of the heads, which are 5", {5}, 0},
    {KEEL_OP_ATTENTION, "f2,3,36", "no multiple of the heads, which are 0", {0}, 0},
    {KEEL_OP_ATTENTION, "f2,3,37", "37 is no multiple of 3", {1}, 0},
    {KEEL_OP_ATTENTION, "f3,36", "has 2 dimensions", {1}, 0},
    {KEEL_OP_ATTENTION, "f2,3,36", "not in [0, 1)", {4}, 1.5F},
    {KEEL_OP_ATTENTION, "f2,3,36", "not in [0, 1)", {4}, NAN},
    {KEEL_OP_ATTENTION, "f2,3,771", "heads of 257 columns, at most 256", {1}, 0},
    {KEEL_OP_ATTENTION, "f2,3,768", "which are 257", {257}, 0},
    {KEEL_OP_ATTENTION, "f2,3,36 f2,3", "must be int32", {4}, 0},
    {KEEL_OP_ATTENTION, "f2,3,36 i2,4", "t is 3 and 4", {4}, 0},
    {KEEL_OP_CROSS_ATTENTION, "f2,3,12 f2,5,36 - -", "w is 12 and 18", {3}, 0},
    {KEEL_OP_CROSS_ATTENTION, "f2,3,12 f2,5,24 i2,3 -", "of queries or of keys alone", {3}, 0},
    {KEEL_OP_CROSS_ATTENTION, "f2,3,12 f2,5,24 i2,3 i2,3", "s is 5 and 3", {3}, 0},
    {KEEL_OP_CROSS_ATTENTION, "f2,3,12 f2,5,24", "which are 5", {5}, 0},
    {KEEL_OP_ROTARY, "f2,3,18", "the width 6 in 2 heads", {2}, 10000.0F},
    {KEEL_OP_ROTARY, "f2,3,24", "the base 0.5 is not in", {2}, 0.5F},
    {KEEL_OP_ROTARY, "f2,3,24", "the base 0 is not in", {2}, 0},
    {KEEL_OP_ROTARY, "f2,3,24", "the base nan is not in", {2}, NAN},
    {KEEL_OP_GROUPED_ATTENTION, "f2,3,32 -", "the width 32 is none of 4 heads and twice 3", {4, 0, 3}, 0},
    {KEEL_OP_GROUPED_ATTENTION, "f2,3,33 -", "the width 33 is none of 4 heads and twice 2", {4, 0, 2}, 0},
    {KEEL_OP_GROUPED_ATTENTION, "f2,3,2056 -", "heads of 257 columns, at most 256", {4, 0, 2}, 0},
    {KEEL_OP_GROUPED_ATTENTION, "f2,3,32 -", "a dropout of 1 is not in", {4, 0, 2}, 1.0F},
    {KEEL_OP_GROUPED_ATTENTION, "f2,3,32 i2,4", "t is 3 and 4", {4, 0, 2}, 0},
    {KEEL_OP_GROUPED_ATTENTION, "f2,3,65536 -", "ALiBi of 32768 heads, at most", {32768, 1, 16384}, 0},
    {KEEL_OP_ATTENTION_DECODE, "f2,1,36 i2,1", "the width 36 is none of 5 heads and twice 5", {5, 8, 5}, 0},
    {KEEL_OP_ATTENTION_DECODE, "f2,1,36 i2,1", "is none of 4 heads and twice 3", {4, 8, 3}, 0},
    {KEEL_OP_ATTENTION_DECODE, "f2,1,771 i2,1", "heads of 257 columns", {1, 8, 1}, 0},
    {KEEL_OP_ATTENTION_DECODE, "f2,3,36 i2,3", "3 tokens: it takes one at a time", {4, 8, 4}, 0},
    {KEEL_OP_ATTENTION_DECODE, "f2,1,36 f2,1", "must be int32", {4, 8, 4}, 0},
    {KEEL_OP_ATTENTION_DECODE, "f2,1,36 i3,1", "b is 2 and 3", {4, 8, 4}, 0},
    {KEEL_OP_GROUPED_ROTARY, "f2,1,32 i2,1", "the base 1 is not in", {4, 0, 2}, 1.0F},
    {KEEL_OP_GROUPED_ROTARY, "f2,1,33 i2,1", "the width 33 is none of 4 heads and twice 2", {4, 0, 2}, 10.0F},
    {KEEL_OP_GROUPED_ROTARY,
     "f2,1,40 i2,1",
     "heads of 5 columns, which cannot be turned in pairs",
     {4, 0, 2},
     10.0F},
    {KEEL_OP_GROUPED_ROTARY, "f2,2,32 i2,2", "2 tokens: it takes one at a time", {4, 0, 2}, 10.0F},
    {KEEL_OP_PAIR_HALVES, "f2,3,12", "12 columns are no 4 heads of an even width", {4}, 0},
    {KEEL_OP_PAIR_HALVES, "f2,3,12", "12 columns are no 0 heads", {0}, 0},
    {KEEL_OP_HEADS_JOIN,
     "f2,3,12 f2,3,6 f2,3,6",
     "columns of 12 and 6 are none of 6 heads and 2",
     {6, 0, 2},
     0},
    {KEEL_OP_HEADS_JOIN,
     "f2,3,12 f2,3,8 f2,3,8",
     "columns of 12 and 8 are none of 6 heads and 4",
     {6, 0, 4},
     0},
    {KEEL_OP_HEADS_JOIN, "f2,3,12 f2,3,6 f2,3,4", "V is 6 and 4", {6, 0, 3}, 0},
    {KEEL_OP_HEADS_JOIN, "f2,3,12 f2,4,6 f2,4,6", "leading dimensions differ", {6, 0, 3}, 0},
    {KEEL_OP_EMBEDDING, "f2,3 p7,8 -", "must be int32", {0}, 0},
    {KEEL_OP_EMBEDDING, "i2,3 p7,8 p4,8", "t is 3 and 4", {0}, 0},
    {KEEL_OP_EMBEDDING, "i2,3 p7,8 p3,9", "n is 8 and 9", {0}, 0},
    {KEEL_OP_EMBEDDING_BAG, "f2,3 p7,8", "must be int32", {0}, 0},
    {KEEL_OP_GATHER, "i3 f7,8,9", "has 3 dimensions", {0}, 0},
    {KEEL_OP_PAIRWISE_DOT, "f2,1,4", "there are no pairs of 1 rows", {0}, 0},
    {KEEL_OP_RESHAPE, "f4,6", "24 elements do not fit [5,5", {5, 5}, 0},
    {KEEL_OP_CONCAT, "f4,6 f3,6", "must be alike but for dimension 1", {1}, 0},
    {KEEL_OP_CONCAT, "f4,6 f4,6", "must be alike but for dimension 2", {2}, 0},
    {KEEL_OP_SLICE, "f4,6", "there are no 3 from 4 on in dimension 1", {1, 4, 3}, 0},
    {KEEL_OP_SLICE, "f4,6", "there are no 1 from 0 on in dimension 2", {2, 0, 1}, 0},
    {KEEL_OP_PERMUTE, "f4,6", "is no order of 2 dimensions", {1, 1}, 0},
    {KEEL_OP_MULTIPLY, "f4,6 f4,5", "leading dimensions differ", {0}, 0},
    {KEEL_OP_SOFTMAX, "i4,6", "must be float32", {0}, 0},
    {KEEL_OP_TOP_K, "f4,6", "the largest 7 of a row of 6", {7}, 0},
    {KEEL_OP_TOP_K, "f4,6", "the largest 0 of a row of 6", {0}, 0},
    {KEEL_OP_CUMSUM, "i4,6", "must be float32", {0}, 0},
    {KEEL_OP_DISPATCH, "f4,6 i5,2", "leading dimensions differ", {4, 4}, 0},
    {KEEL_OP_DISPATCH, "f4,6 i4,2", "choices of 0 experts", {0, 4}, 0},
    {KEEL_OP_DISPATCH, "f4,6 i4,2", "choices of 1048577 experts", {1048577, 4}, 0},
    {KEEL_OP_EXPERT_LINEAR, "f8,6 p3,6,5 i3 -", "O is 3 and must be 4", {0}, 0},
    {KEEL_OP_EXPERT_LINEAR, "f8,6 p3,7,5 i4 -", "k is 6 and 7", {0}, 0},
    {KEEL_OP_COMBINE, "f8,6 i4,2 f4,3", "k is 2 and 3", {0}, 0},
    {KEEL_OP_BALANCE_LOSS, "f4,8 i5,2", "leading dimensions differ", {0}, 0},
    {KEEL_OP_BALANCE_LOSS, "f4,8 i4,2", "a loss of weight nan", {0}, NAN},
    {KEEL_OP_BALANCE_LOSS, "f4,8 i4,2", "a loss of weight -1", {0}, -1.0F},
    {KEEL_OP_BALANCE_LOSS, "f4,8 i4,2", "a loss of weight inf", {0}, INFINITY},
    /* stride, padding, groups */
    {KEEL_OP_CONV2D, "f2,8,8,6 p3,3,6,5 -", "24 channels in 4 groups, the image has 6", {1, 0, 4}, 0},
    {KEEL_OP_CONV2D, "f2,8,8,6 p3,3,3,5 -", "the groups do not divide the channels", {1, 0, 2}, 0},
    {KEEL_OP_CONV2D, "f2,8,8,6 p3,3,5,4 -", "5 channels in 1 groups, the image has 6", {1, 0, 1}, 0},
    {KEEL_OP_CONV2D, "f2,2,2,6 p3,3,6,4 -", "stride 1 x 1, padding 0 x 0", {1, 0, 1}, 0},
    {KEEL_OP_CONV2D, "f2,8,8,6 p3,3,6,4 p5", "o is 4 and 5", {1, 0, 1}, 0},
    {KEEL_OP_CONV2D_TRANSPOSED, "f2,8,8,6 f3,3,5,6", "v1 must be a parameter", {1, 0, 1, 0}, 0},
    {KEEL_OP_CONV2D_TRANSPOSED, "f2,8,8,6 p3,3,5,4", "o is 6 and 4", {1, 0, 1, 0}, 0},
    {KEEL_OP_CONV2D_TRANSPOSED, "f2,8,8,6 p3,3,5,6", "the groups do not divide", {1, 0, 4, 0}, 0},
    {KEEL_OP_CONV2D_TRANSPOSED, "f2,8,8,6 p3,3,5,6", "P is 8 and must be 9", {2, 0, 1, 2}, 0},
    {KEEL_OP_CONV2D_TRANSPOSED, "f2,2,2,6 p3,3,5,6", "nothing to compute", {1, 2, 1, 0}, 0},
    {KEEL_OP_BATCH_NORM, "f4,6 p5 p6 s6 s6", "n is 6 and 5", {0}, 0},
    {KEEL_OP_BATCH_NORM, "f4,6 p6 p6 p6 s6", "is no statistic", {0}, 0},
    {KEEL_OP_MAX_POOL, "f2,3,3,6", "windows of 4 x 4", {4, 1, 0}, 0},
    {KEEL_OP_MAX_POOL, "f2,3,3,6", "windows of 0 x 0", {0, 1, 0}, 0},
    {KEEL_OP_AVG_POOL, "f2,3,3,6", "windows of 2 x 2, stride 2 x 2, padding 2 x 2", {2, 2, 2}, 0},
    {KEEL_OP_GLOBAL_AVG_POOL, "f2,3,6", "has 3 dimensions", {0}, 0},
    {KEEL_OP_BINARY, "f4,6 f4,6", "there is no kind 99", {99}, 0},
    {KEEL_OP_BINARY, "i4,6 i4,6", "must be float32", {KEEL_ADD}, 0},
    {KEEL_OP_BROADCAST, "f4,6 f4,5", "dimension 0 from the right is 6 and 5", {KEEL_DIVIDE}, 0},
    {KEEL_OP_BROADCAST, "f4,6 f3,1", "dimension 1 from the right is 4 and 3", {KEEL_ADD}, 0},
    {KEEL_OP_BROADCAST, "f4,6 f6", "there is no kind 77", {77}, 0},
    {KEEL_OP_EXPAND, "f4,6", "it cannot be repeated to [5,6", {5, 6}, 0},
    {KEEL_OP_EXPAND, "f2,4,6", "of 2 dimensions", {4, 6}, 0},
    {KEEL_OP_REDUCE, "f4,6", "there are no 2 dimensions from 1 on", {KEEL_REDUCE_SUM, 1, 2}, 0},
    {KEEL_OP_REDUCE, "f4,6", "there are no 0 dimensions from 1 on", {KEEL_REDUCE_MEAN, 1, 0}, 0},
    {KEEL_OP_REDUCE, "f4,6", "there is no kind 3", {3, 1, 1}, 0},
    {KEEL_OP_SCALE, "f4,6", "times inf plus 1 is nothing finite", {0}, INFINITY},
    {KEEL_OP_SCALE, "f4,6", "times nan plus 1 is nothing finite", {0}, NAN},
    {KEEL_OP_MATMUL, "f2,4,6 f2,5,3", "k is 6 and 5", {0}, 0},
    {KEEL_OP_MATMUL, "f2,4,6 f3,6,3", "leading dimensions differ", {0}, 0},
    {KEEL_OP_MATMUL, "f6 f6,3", "has 1 dimensions", {0}, 0},
};

/* Rows that only passes append. */
static const uint32_t made_by_passes[] = {KEEL_OP_NONE,
                                          KEEL_OP_LINEAR_DX,
                                          KEEL_OP_LINEAR_DW,
                                          KEEL_OP_TRANSPOSED_DX,
                                          KEEL_OP_TRANSPOSED_DW,
                                          KEEL_OP_HEADS_PART,
                                          KEEL_OP_LINEAR_QUANTISED,
                                          KEEL_OP_BIAS_GRAD,
                                          KEEL_OP_ACCUMULATE,
                                          KEEL_OP_LINEAR_CROSS_ENTROPY,
                                          KEEL_OP_SCATTER_ADD,
                                          KEEL_OP_CONV2D_DX,
                                          KEEL_OP_CONV2D_DW,
                                          KEEL_OP_BATCH_NORM_EVAL,
                                          KEEL_OP_CAST,
                                          KEEL_OP_MATMUL_DA,
                                          KEEL_OP_MATMUL_DB,
                                          KEEL_OP_EXPERT_DX,
                                          KEEL_OP_EXPERT_DW,
                                          KEEL_OP_ADD_BIAS,
                                          KEEL_OP_ADD_POSITIONS,
                                          KEEL_OP_REPACK,
                                          KEEL_OP_RUN,
                                          KEEL_OP_EXCHANGE,
                                          KEEL_OP_CROSS_ENTROPY_MAX,
                                          KEEL_OP_CROSS_ENTROPY_PART,
                                          KEEL_OP_CROSS_ENTROPY_END};

static struct keel_shape read_shape(const char **text)
{
    struct keel_shape shape = {.dims = 0};
    while (**text >= '0' && **text <= '9') {
        char *end;
        ck_assert_uint_lt(shape.dims, KEEL_DIMS_MAX);
        shape.size[shape.dims++] = strtoull(*text, &end, 10);
        *text = *end == ',' ? end + 1 : end;
    }
    return shape;
}

/* Operands of the kinds and shapes that the text says. */
static void make_operands(struct keel_graph *graph, const char *text, keel_value *out)
{
    for (uint32_t i = 0; *text != '\0'; i++) {
        ck_assert_uint_lt(i, OPERANDS_MAX);
        char kind = *text++;
        char name[8];
        snprintf(name, sizeof name, "v%u", i);
        struct keel_shape shape = read_shape(&text);
        text += *text == ' ';
        if (kind == 'p')
            out[i] = keel_graph_param(graph, &(struct keel_param_spec){.name = name, .shape = shape});
        else if (kind == 's')
            out[i] = keel_graph_param(
                graph,
                &(struct keel_param_spec){.name = name, .shape = shape, .statistic = true, .momentum = 0.1F});
        else if (kind == 'l')
            out[i] = keel_graph_mse(graph, keel_graph_input(graph, "x", KEEL_F32, shape),
                                    keel_graph_input(graph, "t", KEEL_F32, shape));
        else if (kind == 'h' || kind == 'b') /* as the amp pass makes them */
            out[i] =
                keel_graph_value(graph, name, kind == 'h' ? KEEL_F16 : KEEL_BF16, KEEL_VALUE_TEMP, shape, 0);
        else if (kind != '-')
            out[i] = keel_graph_input(graph, name, kind == 'i' ? KEEL_I32 : KEEL_F32, shape);
    }
    ck_ok(keel_graph_status(graph));
}

/* In a graph whose position is the row's second operand. */
static void decode(struct keel_graph *graph, const struct refusal *row, const keel_value *v)
{
    const uint32_t heads = row->numbers[0], kv_heads = row->numbers[2];
    graph->position = v[1];
    graph->decodes = row->numbers[1];
    if (row->op == KEEL_OP_GROUPED_ROTARY)
        keel_graph_grouped_rotary(graph, v[0], heads, kv_heads,
                                  &(struct keel_rotary_turn){.base = row->rate});
    else
        keel_graph_attention(graph, v[0],
                             &(struct keel_attention_spec){.heads = heads, .kv_heads = kv_heads});
}

static void build_dense(struct keel_graph *graph, const struct refusal *row, const keel_value *v)
{
    if (row->op == KEEL_OP_LINEAR)
        keel_graph_linear(graph, v[0], v[1], v[2]);
    else if (row->op == KEEL_OP_LINEAR_TRANSPOSED)
        keel_graph_linear_transposed_bias(graph, v[0], v[1], v[2]);
    else if (row->op == KEEL_OP_LAYERNORM)
        keel_graph_layernorm(graph, v[0], v[1], v[2]);
    else if (row->op == KEEL_OP_RMS_NORM)
        keel_graph_rms_norm(graph, v[0], v[1]);
    else if (row->op == KEEL_OP_ACTIVATION)
        keel_graph_activation(graph, v[0], (enum keel_activation_kind)row->numbers[0]);
    else if (row->op == KEEL_OP_SWIGLU)
        keel_graph_swiglu(graph, v[0], v[1]);
    else if (row->op == KEEL_OP_DROPOUT)
        keel_graph_dropout(graph, v[0], row->rate);
    else if (row->op == KEEL_OP_ADD)
        keel_graph_add(graph, v[0], v[1]);
    else if (row->op == KEEL_OP_CROSS_ENTROPY)
        keel_graph_cross_entropy(graph, v[0], v[1]);
    else if (row->op == KEEL_OP_BCE)
        keel_graph_bce(graph, v[0], v[1]);
    else if (row->op == KEEL_OP_MSE)
        keel_graph_mse(graph, v[0], v[1]);
    else if (row->op == KEEL_OP_PRODUCT_LOSS)
        keel_graph_product_loss(graph, v[0], v[1], row->rate);
    else if (row->op == KEEL_OP_ATTENTION)
        keel_graph_attention(
            graph, v[0],
            &(struct keel_attention_spec){.heads = row->numbers[0], .dropout = row->rate, .segments = v[1]});
    else if (row->op == KEEL_OP_GROUPED_ATTENTION)
        keel_graph_attention(graph, v[0],
                             &(struct keel_attention_spec){.heads = row->numbers[0],
                                                           .kv_heads = row->numbers[2],
                                                           .dropout = row->rate,
                                                           .alibi = row->numbers[1] > 0,
                                                           .segments = v[1]});
    else if (row->op == KEEL_OP_CROSS_ATTENTION)
        keel_graph_cross_attention(graph, v[0], v[1],
                                   &(struct keel_cross_attention_spec){
                                       .heads = row->numbers[0], .segments = v[2], .key_segments = v[3]});
    else if (row->op == KEEL_OP_ATTENTION_DECODE || row->op == KEEL_OP_GROUPED_ROTARY)
        decode(graph, row, v);
    else if (row->op == KEEL_OP_PAIR_HALVES)
        keel_graph_pair_halves(graph, v[0], row->numbers[0]);
    else if (row->op == KEEL_OP_HEADS_JOIN)
        keel_graph_join_heads(graph, v, row->numbers[0], row->numbers[2]);
    else if (row->op == KEEL_OP_ROTARY)
        keel_graph_rotary(graph, v[0], row->numbers[0], row->rate);
}

static void build_table(struct keel_graph *graph, const struct refusal *row, const keel_value *v)
{
    const uint32_t *n = row->numbers;
    keel_value out[3];
    if (row->op == KEEL_OP_EMBEDDING)
        keel_graph_embedding(graph, v[0], v[1], v[2]);
    else if (row->op == KEEL_OP_EMBEDDING_BAG)
        keel_graph_embedding_bag(graph, v[0], v[1]);
    else if (row->op == KEEL_OP_GATHER)
        keel_graph_gather(graph, v[1], v[0]);
    else if (row->op == KEEL_OP_PAIRWISE_DOT)
        keel_graph_pairwise_dot(graph, v[0]);
    else if (row->op == KEEL_OP_RESHAPE)
        keel_graph_reshape(graph, v[0], (struct keel_shape){2, {n[0], n[1]}});
    else if (row->op == KEEL_OP_CONCAT)
        keel_graph_concat(graph, v, 2, n[0]);
    else if (row->op == KEEL_OP_SLICE)
        keel_graph_slice(graph, v[0], n[0], n[1], n[2]);
    else if (row->op == KEEL_OP_PERMUTE)
        keel_graph_permute(graph, v[0], n);
    else if (row->op == KEEL_OP_MULTIPLY)
        keel_graph_multiply(graph, v[0], v[1]);
    else if (row->op == KEEL_OP_RESHARD)
        keel_graph_reshard(graph, v[0], KEEL_AXIS_TENSOR, (struct keel_axis_spec){.kind = KEEL_REPLICATED});
    else if (row->op == KEEL_OP_SOFTMAX)
        keel_graph_softmax(graph, v[0]);
    else if (row->op == KEEL_OP_TOP_K)
        keel_graph_top_k(graph, v[0], n[0], &out[0], &out[1]);
    else if (row->op == KEEL_OP_CUMSUM)
        keel_graph_cumsum(graph, v[0]);
    else if (row->op == KEEL_OP_DISPATCH)
        keel_graph_dispatch(graph, v[0], v[1], n[0], n[1], &out[0], &out[1], &out[2]);
    else if (row->op == KEEL_OP_EXPERT_LINEAR)
        keel_graph_expert_linear(graph, v[0], v[1], v[3], v[2]);
    else if (row->op == KEEL_OP_EXPERT_TRANSPOSED)
        keel_graph_expert_linear_transposed(graph, v[0], v[1], v[2]);
    else if (row->op == KEEL_OP_COMBINE)
        keel_graph_combine(graph, v[0], v[1], v[2]);
    else if (row->op == KEEL_OP_BALANCE_LOSS)
        keel_graph_balance_loss(graph, v[0], v[1], row->rate);
}

static void build_tensor(struct keel_graph *graph, const struct refusal *row, const keel_value *v)
{
    const uint32_t *n = row->numbers;
    if (row->op == KEEL_OP_BINARY || row->op == KEEL_OP_BROADCAST)
        keel_graph_binary(graph, v[0], v[1], (enum keel_binary_kind)n[0]);
    else if (row->op == KEEL_OP_EXPAND)
        keel_graph_expand(graph, v[0], (struct keel_shape){2, {n[0], n[1]}});
    else if (row->op == KEEL_OP_REDUCE)
        keel_graph_reduce(graph, v[0], (enum keel_reduce_kind)n[0], n[1], n[2]);
    else if (row->op == KEEL_OP_SCALE)
        keel_graph_scale(graph, v[0], row->rate, 1.0F);
    else if (row->op == KEEL_OP_MATMUL)
        keel_graph_matmul(graph, v[0], v[1]);
}

static void build_image(struct keel_graph *graph, const struct refusal *row, const keel_value *v)
{
    const uint32_t *n = row->numbers;
    const struct keel_pool_spec pool = {.kernel = {n[0], n[0]}, .stride = {n[1], n[1]}, .pad = {n[2], n[2]}};
    if (row->op == KEEL_OP_CONV2D)
        keel_graph_conv2d(
            graph, v[0], v[1], v[2],
            &(struct keel_conv2d_spec){.stride = {n[0], n[0]}, .pad = {n[1], n[1]}, .groups = n[2]});
    else if (row->op == KEEL_OP_CONV2D_TRANSPOSED)
        keel_graph_conv2d_transposed(
            graph, v[0], v[1], 0,
            &(struct keel_conv2d_transposed_spec){
                .stride = {n[0], n[0]}, .pad = {n[1], n[1]}, .extra = {n[3], n[3]}, .groups = n[2]});
    else if (row->op == KEEL_OP_BATCH_NORM)
        keel_graph_batch_norm(graph, v[0], v[1], v[2], v[3], v[4]);
    else if (row->op == KEEL_OP_MAX_POOL)
        keel_graph_max_pool(graph, v[0], &pool);
    else if (row->op == KEEL_OP_AVG_POOL)
        keel_graph_avg_pool(graph, v[0], &pool);
    else if (row->op == KEEL_OP_GLOBAL_AVG_POOL)
        keel_graph_global_avg_pool(graph, v[0]);
}

START_TEST(a_value_that_is_not_of_the_graph_is_refused)
{
    struct keel_graph *graph;
    ck_ok(keel_graph_create(&graph));
    keel_value x = keel_graph_input(graph, "x", KEEL_F32, (struct keel_shape){.dims = 2, .size = {4, 16}});
    keel_graph_linear(graph, x, 9999, 0);
    ck_status(keel_graph_status(graph), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "linear([4,16], ?): an operand is missing"));
    keel_graph_destroy(graph);
}
END_TEST

/* The name, then the shapes of all operands, as "linear([4,16], [17,48]": what a reader needs to find it. */
static void expect_message(const struct refusal *row)
{
    char wanted[256];
    const char *text = row->operands;
    int used = snprintf(wanted, sizeof wanted, "%s(", keel_op_row(row->op)->name);
    const char *comma = "";
    while (*text != '\0') {
        bool absent = *text++ == '-';
        struct keel_shape shape = read_shape(&text);
        char one[64];
        keel_shape_print(&shape, one, sizeof one);
        if (!absent)
            used += snprintf(wanted + used, sizeof wanted - (size_t)used, "%s%s", comma, one);
        comma = ", ";
        text += *text == ' ';
    }
    ck_assert_msg(strncmp(keel_detail(), wanted, strlen(wanted)) == 0, "\"%s\" does not begin \"%s\"",
                  keel_detail(), wanted);
    ck_assert_msg(strstr(keel_detail(), row->why) != NULL, "\"%s\" lacks \"%s\"", keel_detail(), row->why);
}

START_TEST(what_makes_no_sense_is_refused_with_name_and_shapes)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct keel_graph *graph = NULL;
        keel_value v[OPERANDS_MAX] = {0};
        ck_ok(keel_graph_create(&graph));
        make_operands(graph, table[i].operands, v);
        build_dense(graph, &table[i], v);
        build_table(graph, &table[i], v);
        build_image(graph, &table[i], v);
        build_tensor(graph, &table[i], v);
        enum keel_status status = keel_graph_status(graph);
        ck_assert_msg(status == KEEL_INVALID, "%s of %s: %s", keel_op_row(table[i].op)->name,
                      table[i].operands, keel_status_name(status));
        expect_message(&table[i]);
        keel_graph_destroy(graph);
    }
}
END_TEST

START_TEST(every_operation_that_a_model_can_write_has_a_refusal)
{
    for (uint32_t op = 0; op < KEEL_OP_COUNT; op++) {
        const char *name = keel_op_row(op)->name;
        size_t length = strlen(name);
        bool found = length > 5 && strcmp(name + length - 5, "_grad") == 0;
        for (size_t i = 0; i < sizeof made_by_passes / sizeof *made_by_passes; i++)
            found = found || made_by_passes[i] == op;
        for (size_t i = 0; i < sizeof table / sizeof *table; i++)
            found = found || table[i].op == op;
        ck_assert_msg(found, "%s is not in the table of refusals", name);
    }
}
END_TEST

START_TEST(empty_and_huge_tensors_are_refused_with_their_shapes)
{
    static const struct {
        struct keel_shape shape;
        const char *text;
    } cases[] = {{{2, {0, 4}}, "batch is [0,4]"},
                 {{0, {0}}, "batch is []"},
                 {{2, {1U << 20, UINT64_C(1) << 21}}, "batch is [1048576,2097152]"},
                 {{1, {UINT64_C(1) << 32}}, "batch is [4294967296]"},
                 {{KEEL_DIMS_MAX + 1, {1, 1, 1, 1}}, "1 to 4 dimensions"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct keel_graph *graph = NULL;
        ck_ok(keel_graph_create(&graph));
        ck_assert_uint_eq(keel_graph_input(graph, "batch", KEEL_F32, cases[i].shape), 0);
        ck_status(keel_graph_status(graph), KEEL_INVALID);
        ck_assert_msg(strstr(keel_detail(), cases[i].text) != NULL, "\"%s\" lacks \"%s\"", keel_detail(),
                      cases[i].text);
        keel_graph_destroy(graph);
    }
}
END_TEST

/* A graph that has an input and a parameter, both called x, before `spec` comes to it. */
static void expect_param_refused(const struct keel_param_spec *spec, const char *says)
{
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    keel_graph_input(graph, "x", KEEL_F32, (struct keel_shape){1, {4}});
    keel_graph_param(graph, &(struct keel_param_spec){.name = "x", .shape = {1, {4}}});
    ck_ok(keel_graph_status(graph));
    ck_assert_uint_eq(keel_graph_param(graph, spec), 0);
    ck_assert_int_ne(keel_graph_status(graph), KEEL_OK);
    ck_assert_msg(strstr(keel_detail(), says) != NULL, "\"%s\" lacks \"%s\"", keel_detail(), says);
    keel_graph_destroy(graph);
}

static const char long_name[] = "a name of as many bytes as there is room for, and not one for the end";

START_TEST(a_parameter_that_cannot_begin_as_it_says_is_refused_by_name)
{
    static const struct {
        struct keel_param_spec spec;
        const char *says;
    } bad[] = {
        {{.name = "w", .shape = {1, {4}}, .deviation = NAN}, "w begins with a deviation of nan"},
        {{.name = "w", .shape = {1, {4}}, .deviation = -0.5F}, "w begins with a deviation of -0.5"},
        {{.name = "w", .shape = {1, {4}}, .deviation = INFINITY}, "w begins with a deviation of inf"},
        {{.name = "w", .shape = {1, {4}}, .fill = INFINITY}, "and a fill of inf"},
        {{.name = "w", .shape = {1, {4}}, .fill = NAN}, "and a fill of nan"},
        {{.name = "w", .shape = {1, {4}}, .momentum = NAN},
         "a trained parameter no momentum; here it is nan"},
        {{.name = "w", .shape = {1, {4}}, .statistic = true, .momentum = NAN}, "here it is nan"},
        {{.name = "w", .shape = {1, {0}}}, "w is [0]"},
        {{.name = "x", .shape = {1, {4}}}, "there are two parameters called x"},
        {{.name = "", .shape = {1, {4}}}, "parameter without a name"},
        {{.name = long_name, .shape = {1, {4}}}, "the name is too long, at most 63 bytes"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_param_refused(&bad[i].spec, bad[i].says);
}
END_TEST

START_TEST(an_input_has_a_name_of_its_own_and_a_type_that_can_be_fed)
{
    static const struct {
        const char *name;
        int dtype;
        const char *says;
    } bad[] = {{"x", KEEL_I32, "there are two inputs called x"},
               {"", KEEL_F32, "input without a name"},
               {long_name, KEEL_F32, "the name is too long"},
               {"y", KEEL_F16, "input y: what is fed is float32 or int32"},
               {"y", 9, "input y: what is fed is float32 or int32"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const struct keel_shape shape = {1, {4}};
        struct keel_graph *graph = NULL;
        ck_ok(keel_graph_create(&graph));
        keel_graph_input(graph, "x", KEEL_F32, shape);
        ck_ok(keel_graph_status(graph));
        ck_assert_uint_eq(keel_graph_input(graph, bad[i].name, (enum keel_dtype)bad[i].dtype, shape), 0);
        ck_assert_int_ne(keel_graph_status(graph), KEEL_OK);
        ck_assert_msg(strstr(keel_detail(), bad[i].says) != NULL, "\"%s\" lacks \"%s\"", keel_detail(),
                      bad[i].says);
        keel_graph_destroy(graph);
    }
}
END_TEST

/* Each ends the process: a NULL is an error of the program. */
START_TEST(a_null_where_something_is_wanted_is_an_error_of_the_program)
{
    const struct keel_shape shape = {4, {2, 2, 2, 6}};
    struct keel_graph *graph = NULL;
    keel_value one = 0;
    ck_ok(keel_graph_create(&graph));
    keel_value x = keel_graph_input(graph, "x", KEEL_F32, shape);
    if (_i == 0)
        keel_graph_input(graph, NULL, KEEL_F32, shape);
    else if (_i == 1)
        keel_graph_param(graph, NULL);
    else if (_i == 2)
        keel_graph_param(graph, &(struct keel_param_spec){.shape = shape});
    else if (_i == 3)
        keel_graph_attention(graph, x, NULL);
    else if (_i == 4)
        keel_graph_conv2d(graph, x, x, 0, NULL);
    else if (_i == 5)
        keel_graph_max_pool(graph, x, NULL);
    else if (_i == 6)
        keel_graph_avg_pool(graph, x, NULL);
    else if (_i == 7)
        keel_graph_concat(graph, NULL, 2, 0);
    else if (_i == 8)
        keel_graph_permute(graph, x, NULL);
    else if (_i == 9)
        keel_graph_top_k(graph, x, 1, &one, NULL);
    else
        keel_graph_dispatch(graph, x, x, 2, 2, &one, NULL, &one);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_parameter_that_cannot_begin_as_it_says_is_refused_by_name);
    tcase_add_test(tc, an_input_has_a_name_of_its_own_and_a_type_that_can_be_fed);
    tcase_add_loop_test_raise_signal(tc, a_null_where_something_is_wanted_is_an_error_of_the_program, SIGABRT,
                                     0, 11);
    tcase_add_test(tc, what_makes_no_sense_is_refused_with_name_and_shapes);
    tcase_add_test(tc, a_value_that_is_not_of_the_graph_is_refused);
    tcase_add_test(tc, every_operation_that_a_model_can_write_has_a_refusal);
    tcase_add_test(tc, empty_and_huge_tensors_are_refused_with_their_shapes);
}
KEEL_TEST_MAIN("graph_refusal", cases, 30)
