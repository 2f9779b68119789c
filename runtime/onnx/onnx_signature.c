/* onnx_signature.c - what ONNX says of an operator before its numbers matter: how many operands and results
 * it has, of which element types, and which attributes. A node that breaks that is refused by its name,
 * whatever its builder reads of it. Source: Operators.md of github.com/onnx/onnx, opsets 13 to 28. */
#include "onnx_build.h"

#include <string.h>

/* Operands and results are a letter each: F float, N a number, M another number, I int32 or int64, L int64,
 * B bool, A anything, X anything else; those of one letter N, I or A are of one type. `?` behind it: may be
 * absent; `*`: one or more. A result `=` has the type that its builder gives it.
 * Attributes are NAME=TYPE, with `!` where one must be there: i, f, s, t, p an integer, float, text, tensor,
 * sparse tensor, and I, F, S lists of them. Of several rows of an operator the last one counts whose opset
 * the file has. */
static const struct signature {
    const char *name;
    uint32_t since;
    const char *in, *out, *attributes;
} signatures[] = {
    {"Abs", 13, "N", "N", ""},
    {"Add", 13, "NN", "N", ""},
    {"Attention", 23, "FFFX?F?F?", "FF?F?F?",
     "is_causal=i kv_num_heads=i q_num_heads=i qk_matmul_output_mode=i scale=f softcap=f "
     "softmax_precision=i"},
    {"Attention", 24, "FFFX?F?F?L?", "FF?F?F?",
     "is_causal=i kv_num_heads=i q_num_heads=i qk_matmul_output_mode=i scale=f softcap=f "
     "softmax_precision=i"},
    {"AveragePool", 13, "F", "F",
     "auto_pad=s ceil_mode=i count_include_pad=i kernel_shape=I! pads=I strides=I"},
    {"AveragePool", 19, "F", "F",
     "auto_pad=s ceil_mode=i count_include_pad=i dilations=I kernel_shape=I! pads=I strides=I"},
    {"BatchNormalization", 13, "FFFFF", "FF?F?F?F?", "epsilon=f momentum=f"},
    {"BatchNormalization", 14, "FFFFF", "FF?F?", "epsilon=f momentum=f training_mode=i"},
    {"Cast", 13, "A", "=", "to=i!"},
    {"Cast", 19, "A", "=", "saturate=i to=i!"},
    {"Cast", 24, "A", "=", "round_mode=s saturate=i to=i!"},
    {"Clip", 13, "NN?N?", "N", ""},
    {"Concat", 13, "A*", "A", "axis=i!"},
    {"Constant", 13, "", "=",
     "sparse_value=p value=t value_float=f value_floats=F value_int=i value_ints=I value_string=s "
     "value_strings=S"},
    {"ConstantOfShape", 13, "L", "=", "value=t"},
    {"Conv", 13, "FFF?", "F", "auto_pad=s dilations=I group=i kernel_shape=I pads=I strides=I"},
    {"ConvTranspose", 13, "FFF?", "F",
     "auto_pad=s dilations=I group=i kernel_shape=I output_padding=I output_shape=I pads=I strides=I"},
    {"Div", 13, "NN", "N", ""},
    {"Dropout", 13, "FF?B?", "FB?", "seed=i"},
    {"Elu", 13, "F", "F", "alpha=f"},
    {"Equal", 13, "AA", "B", ""},
    {"Erf", 13, "F", "F", ""},
    {"Exp", 13, "F", "F", ""},
    {"Expand", 13, "AL", "A", ""},
    {"Flatten", 13, "A", "A", "axis=i"},
    {"Gather", 13, "AI", "A", "axis=i"},
    {"GatherElements", 13, "AI", "A", "axis=i"},
    {"Gelu", 20, "F", "F", "approximate=s"},
    {"Gemm", 13, "NNN?", "N", "alpha=f beta=f transA=i transB=i"},
    {"GlobalAveragePool", 13, "F", "F", ""},
    {"Greater", 13, "NN", "B", ""},
    {"GroupNormalization", 18, "FFF", "F", "epsilon=f num_groups=i!"},
    {"GroupNormalization", 21, "FFF", "F", "epsilon=f num_groups=i! stash_type=i"},
    {"HardSwish", 14, "F", "F", ""},
    {"Identity", 13, "A", "A", ""},
    {"InstanceNormalization", 13, "FFF", "F", "epsilon=f"},
    {"LayerNormalization", 17, "FFF?", "FF?F?", "axis=i epsilon=f stash_type=i"},
    {"Less", 13, "NN", "B", ""},
    {"Log", 13, "F", "F", ""},
    {"MatMul", 13, "NN", "N", ""},
    {"Max", 13, "N*", "N", ""},
    {"MaxPool", 13, "F", "FL?",
     "auto_pad=s ceil_mode=i dilations=I kernel_shape=I! pads=I storage_order=i strides=I"},
    {"Min", 13, "N*", "N", ""},
    {"Mod", 13, "NN", "N", "fmod=i"},
    {"Mul", 13, "NN", "N", ""},
    {"Neg", 13, "N", "N", ""},
    {"Pow", 13, "NM", "N", ""},
    {"Range", 13, "NNN", "N", ""},
    {"Range", 27, "NNN", "N", "stash_type=i"},
    {"Reciprocal", 13, "F", "F", ""},
    {"ReduceMax", 13, "N", "N", "axes=I keepdims=i"},
    {"ReduceMax", 18, "NL?", "N", "keepdims=i noop_with_empty_axes=i"},
    {"ReduceMean", 13, "N", "N", "axes=I keepdims=i"},
    {"ReduceMean", 18, "NL?", "N", "keepdims=i noop_with_empty_axes=i"},
    {"ReduceSum", 13, "NL?", "N", "keepdims=i noop_with_empty_axes=i"},
    {"Relu", 13, "F", "F", ""},
    {"Reshape", 13, "AL", "A", ""},
    {"Reshape", 14, "AL", "A", "allowzero=i"},
    {"Resize", 13, "AF?F?L?", "A",
     "coordinate_transformation_mode=s cubic_coeff_a=f exclude_outside=i extrapolation_value=f mode=s "
     "nearest_mode=s"},
    {"Resize", 18, "AF?F?L?", "A",
     "antialias=i axes=I coordinate_transformation_mode=s cubic_coeff_a=f exclude_outside=i "
     "extrapolation_value=f keep_aspect_ratio_policy=s mode=s nearest_mode=s"},
    {"Shape", 13, "A", "L", ""},
    {"Shape", 15, "A", "L", "end=i start=i"},
    {"Sigmoid", 13, "F", "F", ""},
    {"Slice", 13, "AIII?I?", "A", ""},
    {"Softmax", 13, "F", "F", "axis=i"},
    {"Softplus", 13, "F", "F", ""},
    {"Split", 13, "AL?", "A*", "axis=i"},
    {"Split", 18, "AL?", "A*", "axis=i num_outputs=i"},
    {"Sqrt", 13, "F", "F", ""},
    {"Squeeze", 13, "AL?", "A", ""},
    {"Sub", 13, "NN", "N", ""},
    {"Tanh", 13, "F", "F", ""},
    {"Transpose", 13, "A", "A", "perm=I"},
    {"Unsqueeze", 13, "AL", "A", ""},
    {"Where", 13, "BAA", "A", ""},
};
enum { SIGNATURES = sizeof signatures / sizeof signatures[0] };

static enum keel_status find_signature(const struct build *build, const struct signature **out)
{
    const struct signature *newer = NULL, *found = NULL;
    for (uint32_t i = 0; i < SIGNATURES; i++) {
        if (!keel_onnx_text_is(build->node->operation, signatures[i].name))
            continue;
        if (signatures[i].since <= build->from->opset)
            found = &signatures[i];
        else if (newer == NULL)
            newer = &signatures[i];
    }
    KEEL_ASSERT(found != NULL || newer != NULL); /* keel_onnx_check knows its name */
    *out = found;
    return found != NULL ? KEEL_OK
                         : keel_onnx_refuse_node(build, "is of opset %u and later, the file is of %llu",
                                                 newer->since, (unsigned long long)build->from->opset);
}

static bool same_text(struct keel_onnx_text a, struct keel_onnx_text b)
{
    return a.bytes == b.bytes && memcmp(a.at, b.at, a.bytes) == 0;
}

static int shown(struct keel_onnx_text text)
{
    return (int)(text.bytes < 80 ? text.bytes : 80);
}

/* ---- operands and results ------------------------------------------------------------------------------ */

/* The letter at place `index`, with what stands behind it; '\0': there is no such place. */
static char letter_at(const char *letters, uint32_t index, char *out_how)
{
    for (; *letters != '\0'; letters++) {
        const bool marked = letters[1] == '?' || letters[1] == '*';
        *out_how = marked ? letters[1] : '\0';
        if (index == 0 || letters[1] == '*')
            return *letters;
        index--;
        letters += marked;
    }
    *out_how = '?';
    return '\0';
}

static const char *name_of_type(uint32_t type)
{
    return type == KEEL_ONNX_FLOAT   ? "float"
           : type == KEEL_ONNX_INT32 ? "int32"
           : type == KEEL_ONNX_INT64 ? "int64"
           : type == KEEL_ONNX_BOOL  ? "bool"
                                     : "another type";
}

static bool letter_takes(char letter, uint32_t type)
{
    switch (letter) {
    case 'F':
        return type == KEEL_ONNX_FLOAT;
    case 'L':
        return type == KEEL_ONNX_INT64;
    case 'B':
        return type == KEEL_ONNX_BOOL;
    case 'I':
        return type == KEEL_ONNX_INT32 || type == KEEL_ONNX_INT64;
    case 'N':
    case 'M':
        return type != KEEL_ONNX_BOOL;
    default:
        return true;
    }
}

static const char *words_of(char letter)
{
    return letter == 'F'   ? "float"
           : letter == 'L' ? "int64"
           : letter == 'B' ? "bool"
           : letter == 'I' ? "int32 or int64"
                           : "numbers";
}

/* The type that operands of a letter share: of N, I and A. */
struct shared {
    uint32_t type[3];
};

static uint32_t *shared_of(struct shared *shared, char letter)
{
    return letter == 'N'   ? &shared->type[0]
           : letter == 'I' ? &shared->type[1]
           : letter == 'A' ? &shared->type[2]
                           : NULL;
}

static enum keel_status check_type(struct build *build, uint32_t index, char letter, struct shared *shared)
{
    const uint32_t type = keel_onnx_find_value(build, build->node->in[index])->type;
    uint32_t *same = shared_of(shared, letter);
    if (!letter_takes(letter, type))
        return keel_onnx_refuse_node(build, "operand %u has elements of %s, %s are wanted", index,
                                     name_of_type(type), words_of(letter));
    if (same != NULL && *same != 0 && *same != type)
        return keel_onnx_refuse_node(build, "operand %u has elements of %s, another one of %s", index,
                                     name_of_type(type), name_of_type(*same));
    if (same != NULL)
        *same = type;
    return KEEL_OK;
}

static enum keel_status check_operands(struct build *build, const struct signature *of, struct shared *shared)
{
    for (uint32_t i = 0;; i++) {
        char how;
        const char letter = letter_at(of->in, i, &how);
        const bool listed = i < build->node->in_count;
        if (letter == '\0' && listed)
            return keel_onnx_refuse_node(build, "%u operands; it has %u at most", build->node->in_count, i);
        if (letter == '\0' || (how == '*' && i > 0 && !listed))
            return KEEL_OK;
        if (keel_onnx_has_operand(build, i))
            KEEL_TRY(check_type(build, i, letter, shared));
        else if (how != '?')
            return keel_onnx_refuse_node(build, "operand %u is missing", i);
    }
}

static enum keel_status check_results(struct build *build, const struct signature *of)
{
    char how;
    if (build->node->out[0].bytes == 0)
        return keel_onnx_refuse_node(build, "its result has no name");
    for (uint32_t i = 0; i < build->node->out_count; i++) {
        const struct keel_onnx_text name = build->node->out[i];
        if (letter_at(of->out, i, &how) == '\0')
            return keel_onnx_refuse_node(build, "%u results; it has %u at most", build->node->out_count, i);
        for (uint32_t j = 0; j < i && name.bytes > 0; j++)
            if (same_text(build->node->out[j], name))
                return keel_onnx_refuse_node(build, "its result %.*s comes twice", shown(name), name.at);
    }
    return KEEL_OK;
}

static void set_types(struct build *build, const struct signature *of, struct shared *shared)
{
    for (uint32_t i = 0; i < build->node->out_count; i++) {
        char how;
        const char letter = letter_at(of->out, i, &how);
        const uint32_t *same = shared_of(shared, letter);
        struct value *value = keel_onnx_find_value(build, build->node->out[i]);
        if (letter != '=')
            value->type = same != NULL    ? *same
                          : letter == 'L' ? KEEL_ONNX_INT64
                          : letter == 'B' ? KEEL_ONNX_BOOL
                                          : KEEL_ONNX_FLOAT;
    }
}

/* ---- attributes ---------------------------------------------------------------------------------------- */

/* What an AttributeProto calls the types. */
static const struct {
    char letter;
    uint32_t type;
    const char *words;
} kinds[] = {{'f', 1, "a float"},  {'i', 2, "an integer"},      {'s', 3, "a text"},
             {'t', 4, "a tensor"}, {'F', 6, "floats"},          {'I', 7, "a list of integers"},
             {'S', 8, "texts"},    {'p', 11, "a sparse tensor"}};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static enum keel_status check_kind(const struct build *build, const struct keel_onnx_attribute *attribute,
                                   char letter)
{
    for (uint32_t i = 0; i < KINDS; i++)
        if (kinds[i].letter == letter && kinds[i].type != attribute->type)
            return keel_onnx_refuse_node(build, "%.*s is not %s", (int)attribute->name.bytes,
                                         attribute->name.at, kinds[i].words);
    return KEEL_OK;
}

/* Of those that the operator has: NAME=TYPE, NULL behind the last one. */
static const char *next_word(const char *at, size_t *out_name_bytes)
{
    at += strspn(at, " ");
    *out_name_bytes = strcspn(at, "=");
    return *at != '\0' ? at : NULL;
}

static enum keel_status check_one(const struct build *build, uint32_t index, const struct signature *of)
{
    const struct keel_onnx_attribute *attribute = &build->node->attribute[index];
    const struct keel_onnx_text name = attribute->name;
    size_t bytes;
    for (uint32_t i = 0; i < index; i++)
        if (same_text(build->node->attribute[i].name, name))
            return keel_onnx_refuse_node(build, "has the attribute %.*s twice", shown(name), name.at);
    for (const char *at = of->attributes; (at = next_word(at, &bytes)) != NULL; at += strcspn(at, " "))
        if (same_text((struct keel_onnx_text){at, bytes}, name))
            return check_kind(build, attribute, at[bytes + 1]);
    return keel_onnx_refuse_node(build, "has no attribute %.*s in opset %llu", shown(name), name.at,
                                 (unsigned long long)build->from->opset);
}

static enum keel_status check_attributes(const struct build *build, const struct signature *of)
{
    size_t bytes;
    for (uint32_t i = 0; i < build->node->attribute_count; i++)
        KEEL_TRY(check_one(build, i, of));
    for (const char *at = of->attributes; (at = next_word(at, &bytes)) != NULL; at += strcspn(at, " ")) {
        bool there = at[bytes + 2] != '!';
        for (uint32_t i = 0; i < build->node->attribute_count; i++)
            there = there || same_text(build->node->attribute[i].name, (struct keel_onnx_text){at, bytes});
        if (!there)
            return keel_onnx_refuse_node(build, "its attribute %.*s is missing", (int)bytes, at);
    }
    return KEEL_OK;
}

enum keel_status keel_onnx_check_node(struct build *build)
{
    const struct signature *of = NULL;
    struct shared shared = {{0}};
    KEEL_TRY(find_signature(build, &of));
    KEEL_TRY(check_operands(build, of, &shared));
    KEEL_TRY(check_results(build, of));
    KEEL_TRY(check_attributes(build, of));
    set_types(build, of, &shared);
    return KEEL_OK;
}
