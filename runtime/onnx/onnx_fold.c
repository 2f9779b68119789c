/* onnx_fold.c - operators whose operands are known when the graph is read: shapes, indices, masks of
 * integers. */
#include "onnx_build.h"

#include <keel/memory.h>
#include <math.h>
#include <string.h>

enum { OPERANDS_MAX = 8 };

struct fold {
    struct build *build;
    const struct value *in[OPERANDS_MAX];
    uint32_t count;
    struct value made[OPERANDS_MAX]; /* of constants: as numbers */
};

/* The element of an operand for element i of a result: sizes of 1, and missing ones in front, are repeated.
 */
static double element(const struct value *x, const struct value *of, uint64_t i)
{
    uint64_t at = 0, step = 1;
    for (uint32_t d = 0; d < of->dims; d++) {
        const uint64_t place = i % of->size[of->dims - 1 - d];
        i /= of->size[of->dims - 1 - d];
        if (d >= x->dims)
            continue;
        at += (x->size[x->dims - 1 - d] == 1 ? 0 : place) * step;
        step *= x->size[x->dims - 1 - d];
    }
    return x->number[at];
}

struct function {
    const char *name;
    double (*of)(const double x[3]);
    uint32_t operands;
};
#define FUNCTION(name, value)                                                                                \
    static double name##_of(const double x[3])                                                               \
    {                                                                                                        \
        return value;                                                                                        \
    }
FUNCTION(add, x[0] + x[1])
FUNCTION(subtract, x[0] - x[1])
FUNCTION(multiply, x[0] * x[1])
FUNCTION(divide, x[0] / x[1])
FUNCTION(equal, x[0] == x[1])
FUNCTION(less, x[0] < x[1])
FUNCTION(greater, x[0] > x[1])
FUNCTION(where, x[0] != 0.0 ? x[1] : x[2])
FUNCTION(modulo, x[0] - floor(x[0] / x[1]) * x[1])
FUNCTION(negative, -x[0])
FUNCTION(root, sqrt(x[0]))
static const struct function functions[] = {
    {"Add", add_of, 2},   {"Div", divide_of, 2},   {"Equal", equal_of, 2},  {"Greater", greater_of, 2},
    {"Less", less_of, 2}, {"Mod", modulo_of, 2},   {"Mul", multiply_of, 2}, {"Neg", negative_of, 1},
    {"Sqrt", root_of, 1}, {"Sub", subtract_of, 2}, {"Where", where_of, 3},
};
enum { FUNCTIONS = sizeof functions / sizeof functions[0] };

/* Element by element, with broadcasting; false: sizes that do not fit. */
static bool elementwise(const struct fold *fold, const struct function *function)
{
    struct value whole = {.dims = 0};
    for (uint32_t i = 0; i < fold->count; i++)
        whole.dims = fold->in[i]->dims > whole.dims ? fold->in[i]->dims : whole.dims;
    for (uint32_t d = 0; d < whole.dims; d++) {
        uint64_t size = 1;
        for (uint32_t i = 0; i < fold->count; i++) {
            const uint64_t own = d < fold->in[i]->dims ? fold->in[i]->size[fold->in[i]->dims - 1 - d] : 1;
            if (own != 1 && size != 1 && own != size)
                return false;
            size = own == 1 ? size : own;
        }
        whole.size[whole.dims - 1 - d] = size;
    }
    double *out = keel_onnx_give_numbers(fold->build, whole.dims, whole.size);
    const bool real = fold->in[0]->type == KEEL_ONNX_FLOAT;
    bool known = out != NULL && !(real && function->of == modulo_of); /* of floats it is fmod's */
    for (uint64_t i = 0; known && i < keel_onnx_count_of_value(&whole); i++) {
        double x[3] = {0.0, 0.0, 0.0};
        for (uint32_t k = 0; k < fold->count; k++)
            x[k] = element(fold->in[k], &whole, i);
        known = x[1] != 0.0 || (function->of != divide_of && function->of != modulo_of);
        out[i] = known ? function->of(x) : 0.0;
        out[i] = function->of == divide_of && !real ? trunc(out[i]) : out[i];
    }
    return known;
}

/* Along an axis: the parts one behind the other. */
static bool concat(const struct fold *fold)
{
    struct value whole = *fold->in[0];
    uint32_t axis;
    if (keel_onnx_axis_of(fold->build, keel_onnx_integer_attribute(fold->build, "axis", 0), whole.dims,
                          &axis) != KEEL_OK)
        return false;
    whole.size[axis] = 0;
    for (uint32_t i = 0; i < fold->count; i++) {
        if (fold->in[i]->dims != whole.dims)
            return false;
        for (uint32_t d = 0; d < whole.dims; d++)
            if (d != axis && fold->in[i]->size[d] != whole.size[d])
                return false;
        whole.size[axis] += fold->in[i]->size[axis];
    }
    uint64_t inner = 1, outer = 1, at = 0;
    for (uint32_t d = 0; d < whole.dims; d++)
        *(d < axis ? &outer : &inner) *= d == axis ? 1 : whole.size[d];
    double *out = keel_onnx_give_numbers(fold->build, whole.dims, whole.size);
    for (uint64_t o = 0; out != NULL && o < outer; o++)
        for (uint32_t i = 0; i < fold->count; i++) {
            const uint64_t run = fold->in[i]->size[axis] * inner;
            memcpy(out + at, fold->in[i]->number + o * run, keel_size(run * sizeof *out));
            at += run;
        }
    return out != NULL;
}

/* Gather and GatherElements along an axis; Slice of the only dimension by steps of 1. */
static bool pick(const struct fold *fold, bool elements)
{
    const struct value *x = fold->in[0], *ids = fold->in[1];
    uint64_t size[KEEL_ONNX_DIMS_MAX], inner = 1, at = 0;
    uint32_t axis, dims = 0;
    if (keel_onnx_axis_of(fold->build, keel_onnx_integer_attribute(fold->build, "axis", 0), x->dims, &axis) !=
            KEEL_OK ||
        x->dims + ids->dims > KEEL_ONNX_DIMS_MAX || (elements && ids->dims != x->dims))
        return false;
    for (uint32_t d = axis + 1; d < x->dims; d++)
        inner *= x->size[d];
    for (uint32_t d = 0; d < x->dims; d++) {
        if (d != axis && elements && ids->size[d] != x->size[d])
            return false;
        if (d == axis)
            for (uint32_t i = elements ? axis : 0; i < (elements ? axis + 1 : ids->dims); i++)
                size[dims++] = ids->size[i];
        else
            size[dims++] = x->size[d];
    }
    double *out = keel_onnx_give_numbers(fold->build, dims, size);
    const struct value *made = keel_onnx_result(fold->build);
    const uint64_t picks = elements ? ids->size[axis] : keel_onnx_count_of_value(ids),
                   count = out != NULL ? keel_onnx_count_of_value(made) : 0;
    for (; at < count; at++) {
        const uint64_t in = at % inner, pick = at / inner % picks, o = at / inner / picks;
        double id = ids->number[elements ? at : pick];
        id += id < 0.0 ? (double)x->size[axis] : 0.0;
        if (!(id >= 0.0 && id < (double)x->size[axis]))
            return false;
        out[at] = x->number[(o * x->size[axis] + (uint64_t)id) * inner + in];
    }
    return out != NULL;
}

static bool slice(const struct fold *fold)
{
    const struct value *x = fold->in[0];
    KEEL_ASSERT(x != NULL);
    int64_t from, to, step = 1, axis;
    uint32_t count;
    if (x->dims != 1 || fold->count < 3 || keel_onnx_integers(fold->build, 1, &from, 1, &count) != KEEL_OK ||
        count != 1 || keel_onnx_integers(fold->build, 2, &to, 1, &count) != KEEL_OK || count != 1 ||
        (keel_onnx_has_operand(fold->build, 4) &&
         (keel_onnx_integers(fold->build, 4, &step, 1, &count) != KEEL_OK || count != 1)) ||
        step != 1)
        return false;
    if (keel_onnx_has_operand(fold->build, 3) &&
        (keel_onnx_integers(fold->build, 3, &axis, 1, &count) != KEEL_OK || count != 1 || axis < -1 ||
         axis > 0))
        return false;
    const int64_t size = (int64_t)x->size[0];
    from = from < 0 ? from + size : from;
    to = to < 0 ? to + size : to > size ? size : to;
    if (from < 0 || from > to)
        return false;
    const uint64_t left = (uint64_t)(to - from);
    double *out = keel_onnx_give_numbers(fold->build, 1, &left);
    if (out != NULL)
        memcpy(out, x->number + from, keel_size(left * sizeof *out));
    return out != NULL;
}

/* A shape that numbers are repeated to, or filled with one. */
static bool fill_shape(const struct fold *fold, bool repeats)
{
    const struct value *wanted = fold->in[repeats ? 1 : 0];
    const struct keel_onnx_attribute *of = keel_onnx_attribute(fold->build, "value");
    struct value whole = {.dims = (uint32_t)keel_onnx_count_of_value(wanted)};
    double with = 0.0;
    float x;
    KEEL_ASSERT(wanted != NULL);
    if (keel_onnx_count_of_value(wanted) > KEEL_ONNX_DIMS_MAX || (repeats && fold->in[0]->dims > whole.dims))
        return false;
    for (uint32_t d = 0; d < whole.dims; d++) {
        const uint32_t right = whole.dims - 1 - d;
        const uint64_t own =
            repeats && right < fold->in[0]->dims ? fold->in[0]->size[fold->in[0]->dims - 1 - right] : 1;
        if (!(wanted->number[d] >= 1.0 && wanted->number[d] <= KEEL_ONNX_NUMBERS_MAX))
            return false;
        whole.size[d] = (uint64_t)wanted->number[d];
        if (own != 1 && whole.size[d] != 1 && own != whole.size[d])
            return false;
        whole.size[d] = whole.size[d] == 1 ? own : whole.size[d];
    }
    if (!repeats)
        keel_onnx_result(fold->build)->type = KEEL_ONNX_FLOAT;
    if (!repeats && of != NULL) {
        if (of->tensor == NULL || of->tensor->count != 1 || of->tensor->dims != 1)
            return false;
        keel_onnx_result(fold->build)->type = of->tensor->type;
        if (of->tensor->type == KEEL_ONNX_FLOAT) {
            memcpy(&x, of->tensor->bytes, sizeof x);
            with = (double)x;
        } else {
            with = (double)of->tensor->number[0];
        }
    }
    double *out = keel_onnx_give_numbers(fold->build, whole.dims, whole.size);
    for (uint64_t i = 0; out != NULL && i < keel_onnx_count_of_value(&whole); i++)
        out[i] = repeats ? element(fold->in[0], &whole, i) : with;
    return out != NULL;
}

static bool fill(const struct fold *fold)
{
    return fill_shape(fold, false);
}
static bool expand(const struct fold *fold)
{
    return fill_shape(fold, true);
}
static bool gather(const struct fold *fold)
{
    return pick(fold, false);
}
static bool gather_elements(const struct fold *fold)
{
    return pick(fold, true);
}

static bool range(const struct fold *fold)
{
    double x[3];
    for (uint32_t i = 0; i < 3; i++)
        if (fold->count != 3 || fold->in[i]->dims != 0 || !keel_onnx_is_number(fold->in[i], &x[i]))
            return false;
    const double steps = x[2] != 0.0 ? ceil((x[1] - x[0]) / x[2]) : -1.0;
    if (!(steps >= 1.0 && steps <= KEEL_ONNX_NUMBERS_MAX))
        return false;
    const uint64_t count = (uint64_t)steps;
    double *out = keel_onnx_give_numbers(fold->build, 1, &count);
    for (uint64_t i = 0; out != NULL && i < count; i++)
        out[i] = x[0] + (double)i * x[2];
    return out != NULL;
}

static bool cast(const struct fold *fold)
{
    const struct value *x = fold->in[0];
    const int64_t to = keel_onnx_integer_attribute(fold->build, "to", 0);
    KEEL_ASSERT(x != NULL);
    keel_onnx_give_same(fold->build, x);
    double *out = keel_onnx_give_numbers(fold->build, x->dims, x->size);
    for (uint64_t i = 0; out != NULL && i < keel_onnx_count_of_value(x); i++)
        out[i] = to == KEEL_ONNX_FLOAT  ? (double)(float)x->number[i]
                 : to == KEEL_ONNX_BOOL ? x->number[i] != 0.0
                                        : trunc(x->number[i]);
    keel_onnx_result(fold->build)->type = (uint32_t)to;
    return out != NULL &&
           (to == KEEL_ONNX_FLOAT || to == KEEL_ONNX_INT32 || to == KEEL_ONNX_INT64 || to == KEEL_ONNX_BOOL);
}

/* ---- the table ----------------------------------------------------------------------------------------- */

/* Operators by name, of so many operands (0: of any number); false: not covered. */
static const struct operation {
    const char *name;
    uint32_t operands;
    bool (*fold)(const struct fold *fold);
} operations[] = {{"Cast", 1, cast},     {"Concat", 0, concat}, {"ConstantOfShape", 1, fill},
                  {"Expand", 2, expand}, {"Gather", 2, gather}, {"GatherElements", 2, gather_elements},
                  {"Range", 3, range},   {"Slice", 0, slice}};
enum { OPERATIONS = sizeof operations / sizeof operations[0] };

/* False: neither a function nor an operation; *out_done is whether it was covered. */
static bool fold_one(const struct fold *fold, bool *out_done)
{
    const struct keel_onnx_text name = fold->build->node->operation;
    for (uint32_t i = 0; i < FUNCTIONS; i++)
        if (keel_onnx_text_is(name, functions[i].name)) {
            *out_done = fold->count == functions[i].operands &&
                        keel_onnx_integer_attribute(fold->build, "fmod", 0) == 0 &&
                        elementwise(fold, &functions[i]);
            return true;
        }
    for (uint32_t i = 0; i < OPERATIONS; i++)
        if (keel_onnx_text_is(name, operations[i].name)) {
            const uint32_t wanted = operations[i].operands;
            *out_done = (wanted == 0 || fold->count == wanted) && operations[i].fold(fold);
            return true;
        }
    return false;
}

/* A few floats of a Constant node, as numbers: factors by which an image grows. NULL: it is no such thing. */
static const struct value *as_numbers(struct fold *fold, const struct value *x)
{
    struct value *made = &fold->made[fold->count];
    if (x->kind == VALUE_NUMBERS)
        return x;
    if (!keel_onnx_is_constant(fold->build, x) || x->tensor->count > KEEL_ONNX_DIMS_MAX)
        return NULL;
    *made = *x;
    made->kind = VALUE_NUMBERS;
    made->number = keel_onnx_file_alloc(fold->build->file, x->tensor->count, sizeof *made->number);
    for (uint64_t i = 0; made->number != NULL && i < x->tensor->count; i++) {
        const uint64_t at = x->transposed ? i % x->size[1] * x->size[0] + i / x->size[1] : i;
        float number;
        memcpy(&number, x->tensor->bytes + sizeof number * at, sizeof number);
        made->number[i] = (double)number;
    }
    return made->number != NULL ? made : NULL;
}

/* The operands, where the graph knows all of them; false: it does not, or one cannot be had (*status). */
static bool find_operands(struct fold *fold, enum keel_status *status)
{
    struct value *x;
    if (fold->build->node->in_count > OPERANDS_MAX)
        return false;
    for (uint32_t i = 0; i < fold->build->node->in_count; i++) {
        if (!keel_onnx_has_operand(fold->build, i))
            continue;
        *status = keel_onnx_operand(fold->build, i, &x);
        const struct value *known = *status == KEEL_OK ? as_numbers(fold, x) : NULL;
        if (known == NULL)
            return false;
        fold->in[fold->count++] = known;
    }
    return fold->count > 0;
}

bool keel_onnx_fold_node(struct build *build, enum keel_status *status)
{
    struct fold fold = {.build = build};
    bool done = false;
    *status = KEEL_OK;
    if (!find_operands(&fold, status))
        return *status != KEEL_OK;
    if (!fold_one(&fold, &done))
        return false;
    if (!done)
        *status =
            keel_onnx_refuse_node(build, "is not covered for operands that are known when the graph is read");
    return true;
}
