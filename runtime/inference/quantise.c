/* quantise.c - see quantise.h. */
#include "quantise.h"
#include "ops.h"

#include <float.h>
#include <keel/kernels.h>
#include <keel/memory.h>
#include <math.h>
#include <string.h>

enum keel_status keel_quantise_read(const char *word, struct keel_quantise *out)
{
    static const struct {
        const char *word;
        struct keel_quantise how;
    } words[] = {{"int8", {8, 0}},       {"int8:32", {8, 32}},   {"int8:64", {8, 64}},
                 {"int8:128", {8, 128}}, {"int4", {4, 32}},      {"int4:32", {4, 32}},
                 {"int4:64", {4, 64}},   {"int4:128", {4, 128}}, {"int4:all", {4, 0}}};
    *out = (struct keel_quantise){.bits = 0};
    if (word == NULL)
        return KEEL_OK;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(words[i].word, word) == 0) {
            *out = words[i].how;
            return KEEL_OK;
        }
    return keel_fail(KEEL_INVALID,
                     "--weights %.40s: int8 (a scale for each output) or int4 (for each 32 inputs of it) is "
                     "wanted, or with :32, :64 or :128 inputs that share a scale; int4:all for each output",
                     word);
}

/* ---- which parameters ---------------------------------------------------------------------------------- */

/* What a node that reads a parameter as operand `in` multiplies by it; false: it does something else. */
static bool matrix_of(const struct keel_ir_node *node, uint32_t in, const struct keel_shape *shape,
                      struct keel_matrix *out)
{
    const uint32_t dims = shape->dims;
    *out = (struct keel_matrix){.copies = 1, .inputs = 1, .outputs = shape->size[dims - 1], .across = true};
    if (in != 1 || dims < 2)
        return false;
    switch (node->op) {
    case KEEL_OP_LINEAR:
    case KEEL_OP_CONV2D:
        for (uint32_t d = 0; d + 1 < dims; d++)
            out->inputs *= shape->size[d];
        return true;
    case KEEL_OP_EXPERT_LINEAR:
        out->copies = shape->size[0];
        out->inputs = shape->size[1];
        return true;
    case KEEL_OP_EXPERT_TRANSPOSED:
        *out = (struct keel_matrix){
            .copies = shape->size[0], .inputs = shape->size[2], .outputs = shape->size[1]};
        return true;
    case KEEL_OP_LINEAR_TRANSPOSED:
        *out = (struct keel_matrix){.copies = 1, .inputs = shape->size[1], .outputs = shape->size[0]};
        return true;
    default:
        return false;
    }
}

static keel_value value_of(const struct keel_graph *graph, const char *param)
{
    for (uint32_t i = 0; i < graph->param_count; i++)
        if (strcmp(graph->params[i].name, param) == 0)
            return graph->params[i].statistic ? 0 : graph->params[i].value;
    return 0;
}

bool keel_quantise_finds(const struct keel_graph *graph, const char *param, struct keel_matrix *out)
{
    const keel_value value = value_of(graph, param);
    uint32_t uses = 0;
    for (uint32_t n = 0; n < graph->node_count && value != 0; n++)
        for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++)
            if (graph->nodes[n].in[i] == value) {
                if (!matrix_of(&graph->nodes[n], i, &graph->values[value].shape, out))
                    return false;
                uses++;
            }
    return uses > 0;
}

/* ---- their numbers ------------------------------------------------------------------------------------- */

uint64_t keel_quantise_groups(const struct keel_quantise *how, const struct keel_matrix *matrix)
{
    return how->group == 0 ? 1 : (matrix->inputs + how->group - 1) / how->group;
}

static float scale_of(const struct keel_quantise *how, const float *w, uint64_t step, uint64_t count)
{
    float most = 0.0F;
    for (uint64_t i = 0; i < count; i++)
        most = fabsf(w[i * step]) > most ? fabsf(w[i * step]) : most;
    const float scale = most / (how->bits == 8 ? 127.0F : 7.0F);
    return scale >= FLT_MIN ? scale : 0.0F; /* then all of them are 0 */
}

static enum keel_status check_finite(const float *weights, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (!isfinite(weights[i]))
            return keel_fail(KEEL_INVALID, "element %llu of it is no finite number", (unsigned long long)i);
    return KEEL_OK;
}

/* A group from input `first` on of output `line`, counted over all copies. */
struct group {
    uint64_t at, step, count; /* of the weights */
    uint64_t number;          /* of the first integer */
};

static struct group group_of(const struct keel_quantise *how, const struct keel_matrix *m, uint64_t line,
                             uint64_t index)
{
    const uint64_t size = how->group == 0 ? m->inputs : how->group, first = index * size;
    const uint64_t copy = line / m->outputs, output = line % m->outputs;
    return (struct group){.at = m->across ? (copy * m->inputs + first) * m->outputs + output
                                          : line * m->inputs + first,
                          .step = m->across ? m->outputs : 1,
                          .count = m->inputs - first < size ? m->inputs - first : size,
                          .number = line * m->inputs + first};
}

/* Integers and scales to out and out_scales, or with NULL for them what they stand for to `rounded`. */
static enum keel_status each_group(const struct keel_quantise *how, const struct keel_matrix *matrix,
                                   const float *weights, int8_t *out, float *out_scales, float *rounded)
{
    const uint64_t groups = keel_quantise_groups(how, matrix), lines = matrix->copies * matrix->outputs;
    KEEL_TRY(check_finite(weights, lines * matrix->inputs));
    for (uint64_t line = 0; line < lines; line++)
        for (uint64_t g = 0; g < groups; g++) {
            const struct group group = group_of(how, matrix, line, g);
            const float *w = weights + group.at, scale = scale_of(how, w, group.step, group.count);
            if (out != NULL)
                out_scales[line * groups + g] = scale;
            for (uint64_t i = 0; i < group.count; i++) {
                const int8_t q = scale > 0.0F ? (int8_t)rintf(w[i * group.step] / scale) : 0;
                if (out != NULL)
                    out[group.number + i] = q;
                else
                    rounded[group.at + i * group.step] = (float)q * scale;
            }
        }
    return KEEL_OK;
}

enum keel_status keel_quantise(const struct keel_quantise *how, const struct keel_matrix *matrix,
                               const float *weights, int8_t *out, float *out_scales)
{
    KEEL_ASSERT(out != NULL && out_scales != NULL);
    return each_group(how, matrix, weights, out, out_scales, NULL);
}

enum keel_status keel_quantise_round(const struct keel_quantise *how, const struct keel_matrix *matrix,
                                     float *weights)
{
    return each_group(how, matrix, weights, NULL, NULL, weights);
}

enum keel_status keel_quantise_pack(const struct keel_quantise *how, const struct keel_matrix *matrix,
                                    const float *weights, uint32_t *out)
{
    const struct keel_gemm_quantised like = {.n = (uint32_t)matrix->outputs,
                                             .k = (uint32_t)matrix->inputs,
                                             .bits = how->bits,
                                             .group = how->group};
    int8_t *integers = NULL;
    float *scales = NULL;
    KEEL_ASSERT(matrix->copies == 1);
    enum keel_status status = keel_alloc(keel_size(matrix->outputs * matrix->inputs), 1, &integers);
    if (status == KEEL_OK)
        status = keel_alloc(keel_size(matrix->outputs * keel_quantise_groups(how, matrix)), sizeof *scales,
                            &scales);
    if (status == KEEL_OK)
        status = keel_quantise(how, matrix, weights, integers, scales);
    if (status == KEEL_OK)
        keel_quantised_pack(&like, integers, scales, out);
    keel_free(integers);
    keel_free(scales);
    return status;
}
