/* onnx_shapes.c - operators that move elements or change shapes. */
#include "onnx_build.h"

#include <string.h>

/* ---- constants ----------------------------------------------------------------------------------------- */

/* A tensor of the file: integers, one number or none are known; other floats wait for who reads them. */
enum keel_status keel_onnx_take_tensor(struct build *build, struct value *out,
                                       const struct keel_onnx_tensor *tensor)
{
    out->type = tensor->type;
    out->dims = tensor->dims;
    memcpy(out->size, tensor->size, sizeof out->size);
    if (tensor->type == KEEL_ONNX_FLOAT && tensor->count > 1) {
        out->kind = VALUE_INITIALIZER;
        out->tensor = tensor;
        return KEEL_OK;
    }
    double *number =
        keel_onnx_file_alloc(build->file, tensor->count == 0 ? 1 : tensor->count, sizeof *number);
    if (number == NULL)
        return keel_fail(KEEL_NO_MEMORY, "%s: no memory for a constant", build->from->path);
    for (uint64_t i = 0; i < tensor->count; i++) {
        float x = 0.0F;
        if (tensor->type == KEEL_ONNX_FLOAT)
            memcpy(&x, tensor->bytes, sizeof x);
        number[i] = tensor->type == KEEL_ONNX_FLOAT ? (double)x : (double)tensor->number[i];
    }
    out->kind = VALUE_NUMBERS;
    out->number = number;
    return KEEL_OK;
}

static enum keel_status build_constant(struct build *build)
{
    const struct keel_onnx_attribute *of = build->node->attribute_count == 1 ? build->node->attribute : NULL;
    if (of != NULL && of->tensor != NULL) {
        struct keel_onnx_tensor *tensor = (struct keel_onnx_tensor *)(uintptr_t)of->tensor;
        tensor->name = build->node->out[0];
        return keel_onnx_take_tensor(build, keel_onnx_result(build), tensor);
    }
    if (of == NULL ||
        (!keel_onnx_text_is(of->name, "value_int") && !keel_onnx_text_is(of->name, "value_float") &&
         !keel_onnx_text_is(of->name, "value_ints")))
        return keel_onnx_refuse_node(build, "a constant that is no tensor, integer or float");
    const bool list = keel_onnx_text_is(of->name, "value_ints"); /* which may be empty */
    const uint64_t size = of->list_count;
    double *number = keel_onnx_give_numbers(build, list, &size);
    if (number == NULL)
        return keel_onnx_refuse_node(build, "no memory for its numbers");
    keel_onnx_result(build)->type =
        keel_onnx_text_is(of->name, "value_float") ? KEEL_ONNX_FLOAT : KEEL_ONNX_INT64;
    for (uint32_t i = 0; list && i < of->list_count; i++)
        number[i] = (double)of->list[i];
    if (!list)
        number[0] = keel_onnx_text_is(of->name, "value_int") ? (double)of->integer : (double)of->real;
    return KEEL_OK;
}

static enum keel_status build_same(struct build *build)
{
    struct value *x;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    keel_onnx_give_same(build, x);
    return KEEL_OK;
}

/* Floats stay floats, and integers that the graph has are 32 bits wide whatever they are called. */
static enum keel_status build_cast(struct build *build)
{
    const int64_t to = keel_onnx_integer_attribute(build, "to", 0);
    struct value *x;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    const bool to_integer = to == KEEL_ONNX_INT32 || to == KEEL_ONNX_INT64;
    const bool ids = x->at != 0 && x->at == build->task->inputs[0] && x->dims == 2;
    if (ids ? to_integer : to == KEEL_ONNX_FLOAT) {
        keel_onnx_give_same(build, x);
        keel_onnx_result(build)->type = (uint32_t)to;
        return KEEL_OK;
    }
    return keel_onnx_refuse_node(build, "to element type %lld of what the graph computes", (long long)to);
}

static enum keel_status build_dropout(struct build *build)
{
    struct value *x, *ratio;
    keel_value at = 0;
    double rate = 0.5, training = 0.0;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    if (keel_onnx_has_operand(build, 2)) {
        KEEL_TRY(keel_onnx_operand(build, 2, &ratio));
        if (ratio->dims != 0 || !keel_onnx_is_number(ratio, &training))
            return keel_onnx_refuse_node(build, "whether it trains must be known, and have no dimensions");
    }
    if (keel_onnx_has_operand(build, 1)) {
        KEEL_TRY(keel_onnx_operand(build, 1, &ratio));
        if (ratio->dims != 0 || !keel_onnx_is_number(ratio, &rate) || !(rate >= 0.0 && rate < 1.0))
            return keel_onnx_refuse_node(build, "its ratio must be one number without dimensions, in [0, 1)");
    }
    if (training == 0.0)
        return build_same(build);
    KEEL_TRY(keel_onnx_plain(build, x, &at));
    return keel_onnx_give(build, keel_graph_dropout(build->graph, at, (float)rate), x->dims, x->size, false);
}

static enum keel_status build_shape(struct build *build)
{
    struct value *x;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    const uint64_t dims = x->dims;
    if (keel_onnx_attribute(build, "start") != NULL || keel_onnx_attribute(build, "end") != NULL)
        if (keel_onnx_integer_attribute(build, "start", 0) != 0 || keel_onnx_attribute(build, "end") != NULL)
            return keel_onnx_refuse_node(build, "start and end are not covered");
    double *number = keel_onnx_give_numbers(build, 1, &dims);
    for (uint32_t i = 0; number != NULL && i < dims; i++)
        number[i] = (double)x->size[i];
    return number != NULL ? KEEL_OK : keel_onnx_refuse_node(build, "no memory for its numbers");
}

/* ---- reshape ------------------------------------------------------------------------------------------- */

/* `x` with other sizes of as many elements; numbers stay numbers. */
static enum keel_status reshaped(struct build *build, struct value *x, uint32_t dims, const uint64_t *size)
{
    struct value as = {.dims = dims};
    keel_value at = 0;
    memcpy(as.size, size, dims * sizeof *size);
    if (keel_onnx_count_of_value(&as) != keel_onnx_count_of_value(x))
        return keel_onnx_refuse_node(build, "%llu elements do not fit the shape",
                                     (unsigned long long)keel_onnx_count_of_value(x));
    if (x->kind == VALUE_NUMBERS) {
        keel_onnx_give_same(build, x);
        keel_onnx_result(build)->dims = dims;
        memcpy(keel_onnx_result(build)->size, as.size, sizeof as.size);
        return KEEL_OK;
    }
    KEEL_TRY(keel_onnx_plain(build, x, &at));
    return keel_onnx_give_reshaped(build, at, dims, as.size);
}

static enum keel_status build_reshape(struct build *build)
{
    struct value *x;
    int64_t wanted[KEEL_ONNX_DIMS_MAX];
    uint64_t size[KEEL_ONNX_DIMS_MAX], known = 1;
    uint32_t dims, open = KEEL_ONNX_DIMS_MAX;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    KEEL_TRY(keel_onnx_integers(build, 1, wanted, KEEL_ONNX_DIMS_MAX, &dims));
    for (uint32_t i = 0; i < dims; i++) {
        if (wanted[i] == -1 && open == KEEL_ONNX_DIMS_MAX) {
            open = i;
            continue;
        }
        if (wanted[i] < 0 || (wanted[i] == 0 && i >= x->dims))
            return keel_onnx_refuse_node(build, "size %lld of dimension %u", (long long)wanted[i], i);
        if (wanted[i] == 0 && keel_onnx_integer_attribute(build, "allowzero", 0) != 0)
            return keel_onnx_refuse_node(build, "allowzero: dimensions without elements are not covered");
        size[i] = wanted[i] == 0 ? x->size[i] : (uint64_t)wanted[i];
        if (size[i] != 0 && known > (UINT64_C(1) << 40) / size[i])
            return keel_onnx_refuse_node(build, "a shape of more than 2^40 elements");
        known *= size[i];
    }
    if (open < KEEL_ONNX_DIMS_MAX) {
        if (known == 0 || keel_onnx_count_of_value(x) % known != 0)
            return keel_onnx_refuse_node(build, "%llu elements do not fit the shape",
                                         (unsigned long long)keel_onnx_count_of_value(x));
        size[open] = keel_onnx_count_of_value(x) / known;
    }
    return reshaped(build, x, dims, size);
}

static enum keel_status build_flatten(struct build *build)
{
    struct value *x;
    uint64_t size[2] = {1, 1};
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    int64_t axis = keel_onnx_integer_attribute(build, "axis", 1);
    axis += axis < 0 ? x->dims : 0;
    if (axis < 0 || axis > (int64_t)x->dims)
        return keel_onnx_refuse_node(build, "axis %lld of %u dimensions", (long long)axis, x->dims);
    for (uint32_t i = 0; i < x->dims; i++)
        size[(int64_t)i < axis ? 0 : 1] *= x->size[i];
    return reshaped(build, x, 2, size);
}

/* Which dimensions operand 1 names, of `dims`, as bits. */
static enum keel_status axes_of(struct build *build, uint32_t dims, uint32_t *out)
{
    int64_t axes[KEEL_ONNX_DIMS_MAX];
    uint32_t count;
    KEEL_TRY(keel_onnx_integers(build, 1, axes, KEEL_ONNX_DIMS_MAX, &count));
    return keel_onnx_axes_of(build, axes, count, dims, out);
}

static enum keel_status build_squeeze(struct build *build)
{
    struct value *x;
    uint64_t size[KEEL_ONNX_DIMS_MAX];
    uint32_t axes = 0, dims = 0;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    for (uint32_t i = 0; i < x->dims; i++)
        axes |= x->size[i] == 1 ? 1U << i : 0;
    if (keel_onnx_has_operand(build, 1))
        KEEL_TRY(axes_of(build, x->dims, &axes));
    for (uint32_t i = 0; i < x->dims; i++)
        if ((axes >> i & 1) == 0)
            size[dims++] = x->size[i];
    return reshaped(build, x, dims, size);
}

static enum keel_status build_unsqueeze(struct build *build)
{
    struct value *x;
    int64_t unused[KEEL_ONNX_DIMS_MAX];
    uint64_t size[KEEL_ONNX_DIMS_MAX];
    uint32_t axes, more, from = 0;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    KEEL_TRY(keel_onnx_integers(build, 1, unused, KEEL_ONNX_DIMS_MAX, &more));
    if (x->dims + more > KEEL_ONNX_DIMS_MAX)
        return keel_onnx_refuse_node(build, "%u dimensions; at most %d are covered", x->dims + more,
                                     KEEL_ONNX_DIMS_MAX);
    KEEL_TRY(axes_of(build, x->dims + more, &axes));
    for (uint32_t i = 0; i < x->dims + more; i++) {
        const bool is_new = (axes >> i & 1) != 0;
        size[i] = is_new ? 1 : x->size[from++];
    }
    return reshaped(build, x, x->dims + more, size);
}

/* ---- transpose ----------------------------------------------------------------------------------------- */

static enum keel_status build_transpose(struct build *build)
{
    struct value *x;
    const struct keel_onnx_attribute *perm = keel_onnx_attribute(build, "perm");
    uint64_t size[KEEL_ONNX_DIMS_MAX];
    uint32_t order[KEEL_DIMS_MAX] = {0}, from[KEEL_ONNX_DIMS_MAX] = {0}, seen = 0, places = 0;
    keel_value at = 0;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    if (perm != NULL && perm->list_count != x->dims)
        return keel_onnx_refuse_node(build, "an order of %u for %u dimensions", perm->list_count, x->dims);
    for (uint32_t i = 0; i < x->dims; i++) {
        const int64_t place = perm != NULL ? perm->list[i] : (int64_t)(x->dims - 1 - i);
        if (place < 0 || place >= (int64_t)x->dims) /* counted from the front alone */
            return keel_onnx_refuse_node(build, "its order names dimension %lld of %u", (long long)place,
                                         x->dims);
        from[i] = (uint32_t)place;
        seen |= 1U << from[i];
        size[i] = x->size[from[i]];
    }
    if (seen != (1U << x->dims) - 1)
        return keel_onnx_refuse_node(build, "its order names a dimension twice");
    if (x->kind == VALUE_INITIALIZER && x->dims == 2 && from[0] == 1) { /* who multiplies by it reads it so */
        const bool transposed = !x->transposed;
        keel_onnx_give_same(build, x);
        keel_onnx_result(build)->transposed = transposed;
        memcpy(keel_onnx_result(build)->size, size, 2 * sizeof *size);
        return KEEL_OK;
    }
    KEEL_TRY(keel_onnx_plain(build, x, &at));
    bool moved = false;
    for (uint32_t i = 0; i < x->dims; i++) {
        const uint32_t place = keel_onnx_place_of_dim(x, from[i]);
        if (place == KEEL_DIMS_MAX)
            continue;
        moved = moved || place != places;
        order[places++] = place;
    }
    if (moved)
        at = keel_graph_permute(build->graph, at, order);
    return keel_onnx_give_reshaped(build, at, x->dims, size);
}

/* ---- parts --------------------------------------------------------------------------------------------- */

/* [from, from + count) of dimension `axis` of a value; the dimension goes where `drop`. */
static enum keel_status part_of(struct build *build, struct value *x, uint32_t axis, uint64_t from,
                                uint64_t count, bool drop, struct value *out)
{
    keel_value at = 0;
    const uint32_t place = keel_onnx_place_of_dim(x, axis);
    KEEL_TRY(keel_onnx_plain(build, x, &at));
    if (count < x->size[axis])
        at = keel_graph_slice(build->graph, at, place, from, count);
    *out = (struct value){.kind = VALUE_GRAPH, .at = at};
    for (uint32_t i = 0; i < x->dims; i++)
        if (i != axis || !drop)
            out->size[out->dims++] = i == axis ? count : x->size[i];
    return keel_graph_status(build->graph);
}

static enum keel_status build_slice(struct build *build)
{
    struct value *x, part;
    int64_t begin[KEEL_ONNX_DIMS_MAX], end[KEEL_ONNX_DIMS_MAX], axes[KEEL_ONNX_DIMS_MAX],
        steps[KEEL_ONNX_DIMS_MAX];
    uint32_t count, ends, named = 0, stepped = 0, axis, all;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    KEEL_TRY(keel_onnx_integers(build, 1, begin, KEEL_ONNX_DIMS_MAX, &count));
    KEEL_TRY(keel_onnx_integers(build, 2, end, KEEL_ONNX_DIMS_MAX, &ends));
    if (keel_onnx_has_operand(build, 3))
        KEEL_TRY(keel_onnx_integers(build, 3, axes, KEEL_ONNX_DIMS_MAX, &named));
    if (keel_onnx_has_operand(build, 4))
        KEEL_TRY(keel_onnx_integers(build, 4, steps, KEEL_ONNX_DIMS_MAX, &stepped));
    if (ends != count || (named != 0 && named != count) || (stepped != 0 && stepped != count))
        return keel_onnx_refuse_node(build, "starts, ends, axes and steps are not as many");
    for (uint32_t i = 0; i < count && named == 0; i++)
        axes[i] = i;
    KEEL_TRY(keel_onnx_axes_of(build, axes, count, x->dims, &all));
    part = *x;
    for (uint32_t i = 0; i < count; i++) {
        struct value whole = part;
        KEEL_TRY(keel_onnx_axis_of(build, axes[i], x->dims, &axis));
        const int64_t size = (int64_t)whole.size[axis];
        int64_t from = begin[i] < 0 ? begin[i] + size : begin[i], to = end[i] < 0 ? end[i] + size : end[i];
        from = from < 0 ? 0 : from > size ? size : from;
        to = to < 0 ? 0 : to > size ? size : to;
        if ((stepped != 0 && steps[i] != 1) || to <= from)
            return keel_onnx_refuse_node(
                build, "from %lld to %lld of %lld; steps of 1 and at least one element are covered",
                (long long)from, (long long)to, (long long)size);
        KEEL_TRY(part_of(build, &whole, axis, (uint64_t)from, (uint64_t)(to - from), false, &part));
    }
    if (count == 0)
        return build_same(build);
    return keel_onnx_give_reshaped(build, part.at, part.dims, part.size);
}

/* Equal parts are asked for by the number of results; from opset 18 on num_outputs says it once more, and the
 * last part may be less. */
static enum keel_status check_split(const struct build *build, uint64_t size)
{
    const struct keel_onnx_attribute *told = keel_onnx_attribute(build, "num_outputs");
    const uint32_t count = build->node->out_count;
    const bool sized = keel_onnx_has_operand(build, 1);
    if (told != NULL ? sized || told->integer != (int64_t)count : !sized && build->from->opset >= 18)
        return keel_onnx_refuse_node(build, "sizes or num_outputs, one of them and as many as its %u results",
                                     count);
    if (!sized && told == NULL && size % count != 0)
        return keel_onnx_refuse_node(build, "%llu in %u equal parts", (unsigned long long)size, count);
    return KEEL_OK;
}

/* Equal parts, or those that operand 1 names; a result each. */
static enum keel_status build_split(struct build *build)
{
    struct value *x, part;
    int64_t sizes[KEEL_ONNX_PORTS_MAX];
    uint32_t count = build->node->out_count, named, axis;
    uint64_t from = 0;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    KEEL_TRY(keel_onnx_axis_of(build, keel_onnx_integer_attribute(build, "axis", 0), x->dims, &axis));
    KEEL_TRY(check_split(build, x->size[axis]));
    const uint64_t size = x->size[axis], equal = count == 0 ? 0 : (size + count - 1) / count;
    for (uint32_t i = 0; i < count; i++)
        sizes[i] = (int64_t)(equal < size - i * equal || i * equal > size ? equal : size - i * equal);
    if (keel_onnx_has_operand(build, 1)) {
        KEEL_TRY(keel_onnx_integers(build, 1, sizes, KEEL_ONNX_PORTS_MAX, &named));
        count = named == count ? count : 0;
    }
    if (count == 0)
        return keel_onnx_refuse_node(build, "sizes and results are not as many");
    for (uint32_t i = 0; i < count; i++) {
        if (sizes[i] <= 0 || (uint64_t)sizes[i] > size - from)
            return keel_onnx_refuse_node(build, "part %u has %lld of %llu", i, (long long)sizes[i],
                                         (unsigned long long)size);
        KEEL_TRY(part_of(build, x, axis, from, (uint64_t)sizes[i], false, &part));
        from += (uint64_t)sizes[i];
        struct value *out = keel_onnx_find_value(build, build->node->out[i]);
        const struct keel_onnx_text name = out->name;
        *out = part;
        out->name = name;
        out->type = x->type;
    }
    return from == size ? KEEL_OK
                        : keel_onnx_refuse_node(build, "its parts have %llu of %llu",
                                                (unsigned long long)from, (unsigned long long)size);
}

static enum keel_status build_concat(struct build *build)
{
    struct value *first, *x;
    keel_value part[KEEL_ONNX_PORTS_MAX];
    struct value whole;
    uint32_t axis;
    KEEL_TRY(keel_onnx_operand(build, 0, &first));
    KEEL_TRY(keel_onnx_axis_of(build, keel_onnx_integer_attribute(build, "axis", 0), first->dims, &axis));
    whole = *first;
    whole.size[axis] = 0;
    for (uint32_t i = 0; i < build->node->in_count; i++) {
        KEEL_TRY(keel_onnx_operand(build, i, &x));
        struct value like = *x;
        if (like.dims == first->dims)
            like.size[axis] = first->size[axis];
        if (!keel_onnx_same_size(&like, first))
            return keel_onnx_refuse_node(build, "part %u is of another shape", i);
        if (keel_onnx_place_of_dim(x, axis) == KEEL_DIMS_MAX)
            return keel_onnx_refuse_node(build, "parts of 1 along an axis of more than four dimensions");
        KEEL_TRY(keel_onnx_plain(build, x, &part[i]));
        whole.size[axis] += x->size[axis];
    }
    return keel_onnx_give_reshaped(
        build,
        keel_graph_concat(build->graph, part, build->node->in_count, keel_onnx_place_of_dim(first, axis)),
        whole.dims, whole.size);
}

static enum keel_status build_expand(struct build *build)
{
    struct value *x, whole = {.dims = 0};
    int64_t wanted[KEEL_ONNX_DIMS_MAX];
    struct keel_shape shape;
    uint32_t dims;
    keel_value at = 0;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    KEEL_TRY(keel_onnx_integers(build, 1, wanted, KEEL_ONNX_DIMS_MAX, &dims));
    whole.dims = dims > x->dims ? dims : x->dims;
    for (uint32_t i = 0; i < whole.dims; i++) {
        const uint64_t of_x = i < x->dims ? x->size[x->dims - 1 - i] : 1;
        const int64_t other = i < dims ? wanted[dims - 1 - i] : 1;
        if (other <= 0 || other > INT32_MAX || (of_x != 1 && other != 1 && (uint64_t)other != of_x))
            return keel_onnx_refuse_node(build, "%llu to %lld", (unsigned long long)of_x, (long long)other);
        whole.size[whole.dims - 1 - i] = of_x == 1 ? (uint64_t)other : of_x;
    }
    if (whole.dims > KEEL_DIMS_MAX)
        return keel_onnx_refuse_node(build, "%u dimensions; four are covered", whole.dims);
    KEEL_TRY(keel_onnx_shape_of_value(build, &whole, &shape));
    KEEL_TRY(keel_onnx_plain(build, x, &at));
    return keel_onnx_give(build, keel_graph_expand(build->graph, at, shape), whole.dims, whole.size, false);
}

/* ---- gather -------------------------------------------------------------------------------------------- */

/* Rows of a table by ids that the data bring. */
static enum keel_status embed(struct build *build, struct value *table, const struct value *ids)
{
    keel_value weights;
    uint64_t size[KEEL_ONNX_DIMS_MAX];
    KEEL_TRY(keel_onnx_weight(build, table, "table", &weights));
    if (table->transposed || table->dims != 2 || ids->dims != 2)
        return keel_onnx_refuse_node(build,
                                     "rows of a table [rows, width] by ids [batch, tokens] are covered");
    memcpy(size, ids->size, 2 * sizeof *size);
    size[2] = table->size[1];
    return keel_onnx_give(build, keel_graph_embedding(build->graph, ids->at, weights, 0), 3, size, false);
}

/* Known indices: one, a run, or one repeated; along an axis that they take the place of. */
static enum keel_status build_gather(struct build *build)
{
    struct value *x, *ids, part;
    uint32_t axis;
    uint64_t size[KEEL_ONNX_DIMS_MAX], count;
    bool run = true, repeated = true;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    KEEL_TRY(keel_onnx_operand(build, 1, &ids));
    KEEL_TRY(keel_onnx_axis_of(build, keel_onnx_integer_attribute(build, "axis", 0), x->dims, &axis));
    if (ids->kind == VALUE_GRAPH && axis == 0)
        return embed(build, x, ids);
    if (ids->kind != VALUE_NUMBERS)
        return keel_onnx_refuse_node(build,
                                     "indices that are computed are covered for rows of a table alone");
    count = keel_onnx_count_of_value(ids);
    const double first = ids->number[0] < 0 ? ids->number[0] + (double)x->size[axis] : ids->number[0];
    for (uint64_t i = 0; i < count; i++) {
        const double at = ids->number[i] < 0 ? ids->number[i] + (double)x->size[axis] : ids->number[i];
        run = run && at == first + (double)i;
        repeated = repeated && at == first;
    }
    if (count == 0 || (!run && !repeated) || first < 0 ||
        first + (run ? (double)count : 1.0) > (double)x->size[axis] ||
        x->dims + ids->dims - 1 > KEEL_ONNX_DIMS_MAX)
        return keel_onnx_refuse_node(build, "known indices must be one, a run or one repeated, below %llu",
                                     (unsigned long long)x->size[axis]);
    KEEL_TRY(part_of(build, x, axis, (uint64_t)first, run ? count : 1, ids->dims == 0, &part));
    uint32_t dims = 0;
    for (uint32_t i = 0; i < axis; i++)
        size[dims++] = x->size[i];
    for (uint32_t i = 0; i < ids->dims; i++)
        size[dims++] = run ? ids->size[i] : 1;
    for (uint32_t i = axis + 1; i < x->dims; i++)
        size[dims++] = x->size[i];
    KEEL_TRY(keel_onnx_give_reshaped(build, part.at, dims, size));
    if (run)
        return KEEL_OK;
    struct keel_shape shape;
    struct value whole = *keel_onnx_result(build);
    for (uint32_t i = 0; i < ids->dims; i++)
        whole.size[axis + i] = ids->size[i];
    if (dims > KEEL_DIMS_MAX)
        return keel_onnx_refuse_node(build, "one index repeated in more than four dimensions");
    KEEL_TRY(keel_onnx_shape_of_value(build, &whole, &shape));
    return keel_onnx_give(build, keel_graph_expand(build->graph, whole.at, shape), dims, whole.size, false);
}

const struct keel_onnx_operator keel_onnx_shapes[] = {
    {"Cast", build_cast},           {"Concat", build_concat},
    {"Constant", build_constant},   {"Dropout", build_dropout},
    {"Expand", build_expand},       {"Flatten", build_flatten},
    {"Gather", build_gather},       {"Identity", build_same},
    {"Reshape", build_reshape},     {"Shape", build_shape},
    {"Slice", build_slice},         {"Split", build_split},
    {"Squeeze", build_squeeze},     {"Transpose", build_transpose},
    {"Unsqueeze", build_unsqueeze}, {NULL, NULL},
};
