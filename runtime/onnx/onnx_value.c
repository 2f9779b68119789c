/* onnx_value.c - what names of an .onnx file stand for while its graph is built. */
#include "ir.h"
#include "onnx_build.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- names --------------------------------------------------------------------------------------------- */

static uint32_t hash_of(struct keel_onnx_text name)
{
    uint32_t hash = 2166136261U; /* FNV-1a (Fowler, Noll and Vo) */
    for (size_t i = 0; i < name.bytes; i++)
        hash = (hash ^ (uint8_t)name.at[i]) * 16777619U;
    return hash;
}

/* The value of a name, which is made where there is none: there is room for all that the file has. */
struct value *keel_onnx_find_value(struct build *build, struct keel_onnx_text name)
{
    uint32_t slot = hash_of(name) & build->slot_mask;
    while (build->slots[slot] != 0) {
        struct value *value = &build->values[build->slots[slot] - 1];
        if (value->name.bytes == name.bytes && memcmp(value->name.at, name.at, name.bytes) == 0)
            return value;
        slot = (slot + 1) & build->slot_mask;
    }
    struct value *value = &build->values[build->value_count++];
    value->name = name;
    build->slots[slot] = build->value_count;
    return value;
}

static int printed(struct keel_onnx_text text)
{
    return (int)(text.bytes < 80 ? text.bytes : 80);
}

enum keel_status keel_onnx_refuse_node(const struct build *build, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const struct keel_onnx_node *node = build->node;
    const struct keel_onnx_text name =
        node->name.bytes > 0 || node->out_count == 0 ? node->name : node->out[0];
    return keel_fail(KEEL_INVALID, "%s: node %.*s (%.*s): %s", build->from->path, printed(name), name.at,
                     printed(node->operation), node->operation.at, text);
}

bool keel_onnx_has_operand(const struct build *build, uint32_t index)
{
    return index < build->node->in_count && build->node->in[index].bytes > 0;
}

enum keel_status keel_onnx_operand(struct build *build, uint32_t index, struct value **out)
{
    if (!keel_onnx_has_operand(build, index))
        return keel_onnx_refuse_node(build, "operand %u is missing", index);
    *out = keel_onnx_find_value(build, build->node->in[index]);
    return (*out)->kind != VALUE_NONE ? KEEL_OK
                                      : keel_onnx_refuse_node(build, "nothing has made operand %u", index);
}

struct value *keel_onnx_result(struct build *build)
{
    return keel_onnx_find_value(build, build->node->out[0]);
}

/* ---- shapes -------------------------------------------------------------------------------------------- */

uint64_t keel_onnx_count_of_value(const struct value *value)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < value->dims; i++)
        count *= value->size[i];
    return count;
}

bool keel_onnx_same_size(const struct value *a, const struct value *b)
{
    return a->dims == b->dims && memcmp(a->size, b->size, a->dims * sizeof *a->size) == 0;
}

enum keel_status keel_onnx_shape_of_value(const struct build *build, const struct value *value,
                                          struct keel_shape *out)
{
    *out = (struct keel_shape){.dims = 0};
    for (uint32_t i = 0; i < value->dims; i++) {
        if (value->dims > KEEL_DIMS_MAX && value->size[i] == 1)
            continue;
        if (out->dims == KEEL_DIMS_MAX)
            return keel_onnx_refuse_node(
                build, "a value of %u dimensions; more than four, those of 1 aside, are not covered",
                value->dims);
        out->size[out->dims++] = value->size[i];
    }
    if (out->dims == 0)
        *out = (struct keel_shape){1, {1}};
    return KEEL_OK;
}

uint32_t keel_onnx_place_of_dim(const struct value *value, uint32_t dim)
{
    uint32_t place = 0;
    if (value->dims <= KEEL_DIMS_MAX)
        return dim;
    for (uint32_t i = 0; i < dim; i++)
        place += value->size[i] != 1;
    return value->size[dim] == 1 ? (uint32_t)KEEL_DIMS_MAX : place;
}

static bool shapes_equal(const struct keel_shape *a, const struct keel_shape *b)
{
    return a->dims == b->dims && memcmp(a->size, b->size, a->dims * sizeof *a->size) == 0;
}

/* ---- parameters and constants -------------------------------------------------------------------------- */

static enum keel_status name_of(const struct build *build, struct keel_onnx_text name,
                                char out[KEEL_VALUE_NAME_BYTES])
{
    if (name.bytes == 0 || name.bytes >= KEEL_VALUE_NAME_BYTES || memchr(name.at, '\0', name.bytes) != NULL)
        return keel_onnx_refuse_node(build, "the name %.*s has no 1 to %d bytes", printed(name), name.at,
                                     KEEL_VALUE_NAME_BYTES - 1);
    memcpy(out, name.at, name.bytes);
    out[name.bytes] = '\0';
    return KEEL_OK;
}

static enum keel_status add_param(struct build *build, struct value *value,
                                  const struct keel_param_spec *like, bool kept, keel_value *out)
{
    char name[KEEL_VALUE_NAME_BYTES];
    struct keel_param_spec spec = *like;
    if (kept &&
        (value->name.bytes == 0 || value->name.bytes >= sizeof name)) /* nobody asks for it by its name */
        snprintf(name, sizeof name, "constant.%u", build->graph->param_count);
    else
        KEEL_TRY(name_of(build, value->name, name));
    spec.name = name;
    *out = keel_graph_param(build->graph, &spec);
    KEEL_TRY(keel_graph_status(build->graph));
    build->graph->params[build->graph->param_count - 1].kept = kept;
    value->param = *out;
    return KEEL_OK;
}

/* Numbers beyond all weights: what hides scores from a softmax. */
static bool is_mask(const struct keel_onnx_tensor *tensor)
{
    for (uint64_t i = 0; i < tensor->count; i++) {
        float x;
        memcpy(&x, tensor->bytes + 4 * i, sizeof x);
        if (!(fabsf(x) < 1e30F))
            return true;
    }
    return false;
}

/* Snapshots hold nothing infinite; beside any score the largest float is as good. */
static float clamp(float x)
{
    return x > 3.4028235e38F ? 3.4028235e38F : x < -3.4028235e38F ? -3.4028235e38F : x;
}

/* A copy of a mask's numbers without infinities. */
static enum keel_status copy_mask(struct build *build, const struct keel_onnx_tensor *tensor, float **out)
{
    *out = keel_onnx_file_alloc(build->file, tensor->count, sizeof **out);
    if (*out == NULL)
        return keel_fail(KEEL_NO_MEMORY, "%s: no memory for a mask", build->from->path);
    for (uint64_t i = 0; i < tensor->count; i++) {
        float x;
        memcpy(&x, tensor->bytes + 4 * i, sizeof x);
        if (isnan(x))
            return keel_onnx_refuse_node(build, "%.*s holds what is no number", printed(tensor->name),
                                         tensor->name.at);
        (*out)[i] = clamp(x);
    }
    return KEEL_OK;
}

/* The initializer in its own order; `shape` has its elements. */
static enum keel_status own_param(struct build *build, struct value *value, const struct keel_shape *shape,
                                  keel_value *out)
{
    const bool mask = value->param == 0 && is_mask(value->tensor);
    if (value->param != 0 && value->turned)
        return keel_onnx_refuse_node(build, "%.*s is a weight of a convolution, and something else here",
                                     printed(value->name), value->name.at);
    *out = value->param;
    if (value->param != 0)
        return KEEL_OK;
    struct keel_param_spec spec = {
        .shape = *shape, .values = value->tensor->bytes, .decay = !mask && shape->dims > 1};
    if (mask) {
        float *copy;
        KEEL_TRY(copy_mask(build, value->tensor, &copy));
        spec.values = copy;
        spec.statistic = true;
        spec.momentum = 1.0F;
    }
    return add_param(build, value, &spec, mask, out);
}

static enum keel_status need_initializer(struct build *build, const struct value *value, const char *what)
{
    return value->kind == VALUE_INITIALIZER
               ? KEEL_OK
               : keel_onnx_refuse_node(
                     build, "its %s must be an initializer of the file with more than one number", what);
}

enum keel_status keel_onnx_weight(struct build *build, struct value *value, const char *what, keel_value *out)
{
    struct keel_shape shape;
    KEEL_TRY(need_initializer(build, value, what));
    struct value as_stored = *value;
    if (value->transposed) {
        as_stored.size[0] = value->size[1];
        as_stored.size[1] = value->size[0];
    }
    KEEL_TRY(keel_onnx_shape_of_value(build, &as_stored, &shape));
    struct value *owner = keel_onnx_find_value(build, value->tensor->name);
    return own_param(build, owner, &shape, out);
}

enum keel_status keel_onnx_turned_weight(struct build *build, struct value *value, const uint32_t order[4],
                                         keel_value *out)
{
    KEEL_TRY(need_initializer(build, value, "weight"));
    struct value *owner = keel_onnx_find_value(build, value->tensor->name);
    struct keel_onnx_tensor *tensor = (struct keel_onnx_tensor *)(uintptr_t)value->tensor;
    struct keel_shape shape = {.dims = 4};
    uint64_t step[4] = {0}, ahead = 1;
    if (owner->param != 0 && !owner->turned)
        return keel_onnx_refuse_node(build,
                                     "%.*s is a weight of a convolution here, and something else before",
                                     printed(value->name), value->name.at);
    for (uint32_t i = 4; i-- > 0;) {
        for (uint32_t j = 0; j < 4; j++)
            step[j] = order[j] == i ? ahead : step[j];
        ahead *= value->size[i];
    }
    for (uint32_t i = 0; i < 4; i++)
        shape.size[i] = value->size[order[i]];
    if (tensor->turned == NULL) {
        tensor->turned = keel_onnx_file_alloc(build->file, tensor->count, sizeof *tensor->turned);
        if (tensor->turned == NULL)
            return keel_fail(KEEL_NO_MEMORY, "%s: no memory to turn a weight", build->from->path);
        for (uint64_t i = 0; i < tensor->count; i++) {
            uint64_t rest = i, at = 0;
            for (uint32_t d = 4; d-- > 0; rest /= shape.size[d])
                at += rest % shape.size[d] * step[d];
            memcpy(&tensor->turned[i], tensor->bytes + 4 * at, sizeof(float));
        }
    }
    *out = owner->param;
    owner->turned = true;
    if (owner->param != 0)
        return KEEL_OK;
    return add_param(build, owner,
                     &(struct keel_param_spec){.shape = shape, .values = tensor->turned, .decay = true},
                     false, out);
}

enum keel_status keel_onnx_statistic(struct build *build, struct value *value, float momentum,
                                     keel_value *out)
{
    struct keel_shape shape;
    KEEL_TRY(need_initializer(build, value, "running mean or variance"));
    KEEL_TRY(keel_onnx_shape_of_value(build, value, &shape));
    struct value *owner = keel_onnx_find_value(build, value->tensor->name);
    if (owner->param != 0)
        return keel_onnx_refuse_node(
            build,
            "%.*s is the statistic of more than one node: export without sharing equal "
            "initializers (torch: optimize=False, or from trained weights)",
            printed(value->name), value->name.at);
    return add_param(
        build, owner,
        &(struct keel_param_spec){
            .shape = shape, .values = value->tensor->bytes, .statistic = true, .momentum = momentum},
        false, out);
}

enum keel_status keel_onnx_constant(struct build *build, struct keel_onnx_text name,
                                    const struct value *value, keel_value *out)
{
    struct keel_shape shape;
    struct value *owner = keel_onnx_find_value(build, name);
    const uint64_t count = keel_onnx_count_of_value(value);
    KEEL_TRY(keel_onnx_shape_of_value(build, value, &shape));
    *out = owner->param;
    if (owner->param != 0)
        return KEEL_OK;
    float *numbers = keel_onnx_file_alloc(build->file, count, sizeof *numbers);
    if (numbers == NULL)
        return keel_fail(KEEL_NO_MEMORY, "%s: no memory for a constant", build->from->path);
    for (uint64_t i = 0; i < count; i++)
        numbers[i] = clamp((float)value->number[i]);
    return add_param(
        build, owner,
        &(struct keel_param_spec){.shape = shape, .values = numbers, .statistic = true, .momentum = 1.0F},
        true, out);
}

/* ---- values of the graph ------------------------------------------------------------------------------- */

static enum keel_status plain_initializer(struct build *build, struct value *value, keel_value *out)
{
    static const uint32_t swapped[] = {1, 0};
    struct keel_shape shape;
    KEEL_TRY(keel_onnx_weight(build, value, "operand", out));
    if (value->transposed)
        *out = keel_graph_permute(build->graph, *out, swapped);
    KEEL_TRY(keel_onnx_shape_of_value(build, value, &shape));
    const struct keel_shape lies = keel_graph_shape(build->graph, *out);
    if (!shapes_equal(&shape, &lies))
        *out = keel_graph_reshape(build->graph, *out, shape);
    return keel_graph_status(build->graph);
}

enum keel_status keel_onnx_plain(struct build *build, struct value *value, keel_value *out)
{
    static const uint32_t to_nchw[] = {0, 3, 1, 2};
    struct keel_shape shape;
    if (value->kind == VALUE_NUMBERS)
        return keel_onnx_constant(build, value->name, value, out);
    if (value->kind == VALUE_INITIALIZER)
        return plain_initializer(build, value, out);
    if (value->nhwc && value->size[2] * value->size[3] > 1 && value->size[1] > 1)
        value->at = keel_graph_permute(build->graph, value->at, to_nchw);
    value->nhwc = false;
    KEEL_TRY(keel_onnx_shape_of_value(build, value, &shape));
    const struct keel_shape lies = keel_graph_shape(build->graph, value->at);
    if (!shapes_equal(&shape, &lies))
        value->at = keel_graph_reshape(build->graph, value->at, shape);
    *out = value->at;
    return keel_graph_status(build->graph);
}

enum keel_status keel_onnx_give(struct build *build, keel_value at, uint32_t dims, const uint64_t *size,
                                bool nhwc)
{
    struct value *out = keel_onnx_result(build);
    if (keel_graph_status(build->graph) != KEEL_OK)
        return keel_onnx_refuse_node(build, "%s", keel_detail());
    out->kind = VALUE_GRAPH;
    out->at = at;
    out->nhwc = nhwc;
    out->dims = dims;
    memmove(out->size, size, dims * sizeof *size);
    return KEEL_OK;
}

enum keel_status keel_onnx_give_reshaped(struct build *build, keel_value at, uint32_t dims,
                                         const uint64_t *size)
{
    struct keel_shape shape;
    struct value as = {.dims = dims};
    memcpy(as.size, size, dims * sizeof *size);
    KEEL_TRY(keel_onnx_shape_of_value(build, &as, &shape));
    const struct keel_shape lies = keel_graph_shape(build->graph, at);
    if (at != 0 && !shapes_equal(&shape, &lies))
        at = keel_graph_reshape(build->graph, at, shape);
    return keel_onnx_give(build, at, dims, size, false);
}

double *keel_onnx_give_numbers(struct build *build, uint32_t dims, const uint64_t *size)
{
    struct value *out = keel_onnx_result(build);
    struct value as = {.dims = dims};
    uint64_t most = 1; /* sizes of 0 aside: nothing that is made of these sizes wraps around */
    memcpy(as.size, size, dims * sizeof *size);
    for (uint32_t i = 0; i < dims; i++) {
        if (size[i] > KEEL_ONNX_NUMBERS_MAX / most)
            return NULL;
        most *= size[i] == 0 ? 1 : size[i];
    }
    const uint64_t count = keel_onnx_count_of_value(&as);
    build->numbers += count;
    double *number = build->numbers > KEEL_ONNX_FOLDED_MAX
                         ? NULL
                         : keel_onnx_file_alloc(build->file, count == 0 ? 1 : count, sizeof *number);
    if (number == NULL)
        return NULL;
    out->kind = VALUE_NUMBERS;
    out->number = number;
    out->dims = dims;
    memcpy(out->size, as.size, sizeof out->size);
    return number;
}

void keel_onnx_give_same(struct build *build, const struct value *value)
{
    struct value *out = keel_onnx_result(build);
    const struct keel_onnx_text name = out->name;
    *out = *value;
    out->name = name;
    out->param = 0;
}

bool keel_onnx_is_constant(const struct build *build, const struct value *value)
{
    const struct keel_onnx_tensor *of = build->from->tensor;
    return value->kind == VALUE_INITIALIZER && value->tensor->bytes != NULL &&
           !(value->tensor >= of && value->tensor < of + build->from->tensor_count);
}

bool keel_onnx_is_number(const struct value *value, double *out)
{
    if (value->kind != VALUE_NUMBERS || keel_onnx_count_of_value(value) != 1)
        return false;
    *out = value->number[0];
    return true;
}

enum keel_status keel_onnx_integers(struct build *build, uint32_t index, int64_t *out, uint32_t most,
                                    uint32_t *out_count)
{
    struct value *value = NULL;
    KEEL_TRY(keel_onnx_operand(build, index, &value));
    KEEL_ASSERT(value != NULL);
    const uint64_t count = value->kind == VALUE_NUMBERS ? keel_onnx_count_of_value(value) : 0;
    if (value->kind != VALUE_NUMBERS || count > most || value->dims > 1)
        return keel_onnx_refuse_node(
            build, "operand %u must be known when the graph is read, a list of %u integers at most", index,
            most);
    for (uint64_t i = 0; i < count; i++) {
        const double x = value->number[i];
        if (isnan(x))
            return keel_onnx_refuse_node(build, "operand %u holds what is no number", index);
        out[i] = x >= 9e18 ? INT64_MAX : x <= -9e18 ? INT64_MIN : (int64_t)x;
    }
    *out_count = (uint32_t)count;
    return KEEL_OK;
}

/* ---- attributes ---------------------------------------------------------------------------------------- */

const struct keel_onnx_attribute *keel_onnx_attribute(const struct build *build, const char *name)
{
    for (uint32_t i = 0; i < build->node->attribute_count; i++)
        if (keel_onnx_text_is(build->node->attribute[i].name, name))
            return &build->node->attribute[i];
    return NULL;
}

int64_t keel_onnx_integer_attribute(const struct build *build, const char *name, int64_t otherwise)
{
    const struct keel_onnx_attribute *found = keel_onnx_attribute(build, name);
    return found != NULL ? found->integer : otherwise;
}

float keel_onnx_real_attribute(const struct build *build, const char *name, float otherwise)
{
    const struct keel_onnx_attribute *found = keel_onnx_attribute(build, name);
    return found != NULL ? found->real : otherwise;
}

enum keel_status keel_onnx_axis_of(const struct build *build, int64_t axis, uint32_t dims, uint32_t *out)
{
    const int64_t place = axis < 0 ? axis + dims : axis;
    if (place < 0 || place >= (int64_t)dims)
        return keel_onnx_refuse_node(build, "axis %lld of %u dimensions", (long long)axis, dims);
    *out = (uint32_t)place;
    return KEEL_OK;
}

enum keel_status keel_onnx_axes_of(const struct build *build, const int64_t *axes, uint32_t count,
                                   uint32_t dims, uint32_t *out)
{
    *out = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t axis = 0;
        KEEL_TRY(keel_onnx_axis_of(build, axes[i], dims, &axis));
        if ((*out >> axis & 1) != 0)
            return keel_onnx_refuse_node(build, "names axis %u twice", axis);
        *out |= 1U << axis;
    }
    return KEEL_OK;
}
