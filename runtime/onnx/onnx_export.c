/* onnx_export.c - see onnx_export.h: the walk, names, and what the file says around its nodes. Nodes of the
 * graph become operators in onnx_export_nodes.c. */
#include "onnx_export_build.h"

#include <keel/memory.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Fields of the messages (github.com/onnx/onnx, onnx.proto). */
enum {
    MODEL_IR_VERSION = 1,
    MODEL_PRODUCER = 2,
    MODEL_GRAPH = 7,
    MODEL_OPSET = 8,
    OPSET_VERSION = 2,
    GRAPH_NODE = 1,
    GRAPH_NAME = 2,
    GRAPH_INITIALIZER = 5,
    GRAPH_INPUT = 11,
    GRAPH_OUTPUT = 12,
    NODE_INPUT = 1,
    NODE_OUTPUT = 2,
    NODE_OPERATOR = 4,
    NODE_ATTRIBUTE = 5,
    ATTRIBUTE_NAME = 1,
    ATTRIBUTE_REAL = 2,
    ATTRIBUTE_INTEGER = 3,
    ATTRIBUTE_TEXT = 4,
    ATTRIBUTE_LIST = 8,
    ATTRIBUTE_TYPE = 20,
    TENSOR_DIMS = 1,
    TENSOR_TYPE = 2,
    TENSOR_NAME = 8,
    TENSOR_BYTES = 9,
    PORT_NAME = 1,
    PORT_TYPE = 2,
    TYPE_TENSOR = 1,
    TENSOR_ELEMENT = 1,
    TENSOR_SHAPE = 2,
    SHAPE_DIM = 1,
    DIM_SIZE = 1,
    DIM_NAME = 2
};
enum { IR_VERSION = 10, OPSET = 23 };

/* ---- names --------------------------------------------------------------------------------------------- */

struct keel_onnx_name keel_onnx_name(const char *format, ...)
{
    struct keel_onnx_name name;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name.text, sizeof name.text, format, arguments);
    va_end(arguments);
    return name;
}

struct keel_onnx_name keel_onnx_fresh(struct export *export)
{
    return keel_onnx_name("t%u", export->fresh++);
}

enum keel_status keel_onnx_export_refuse(const struct export *export, const char *what)
{
    const struct keel_op *row = keel_op_row(export->node->op);
    return keel_fail(KEEL_UNSUPPORTED, "%s: the model's operation %s%s", export->how->name, row->name, what);
}

/* ---- initializers -------------------------------------------------------------------------------------- */

static uint8_t *begin_tensor(struct export *export, const char *name, enum keel_onnx_type type, uint32_t dims,
                             const uint64_t *size, uint32_t element_bytes, uint64_t *begun)
{
    int64_t list[KEEL_DIMS_MAX];
    uint64_t count = 1;
    for (uint32_t d = 0; d < dims; d++) {
        list[d] = (int64_t)size[d];
        count *= size[d];
    }
    *begun = keel_onnx_begin(&export->writer, GRAPH_INITIALIZER);
    if (dims > 0)
        keel_onnx_put_list(&export->writer, TENSOR_DIMS, list, dims);
    keel_onnx_put_integer(&export->writer, TENSOR_TYPE, type);
    keel_onnx_put_text(&export->writer, TENSOR_NAME, name);
    return keel_onnx_put_room(&export->writer, TENSOR_BYTES, count * element_bytes);
}

void keel_onnx_floats(struct export *export, const char *name, uint32_t dims, const uint64_t *size,
                      const float *values)
{
    uint64_t begun, count = 1;
    for (uint32_t d = 0; d < dims; d++)
        count *= size[d];
    uint8_t *at = begin_tensor(export, name, KEEL_ONNX_FLOAT, dims, size, sizeof *values, &begun);
    for (uint64_t i = 0; at != NULL && i < count; i++) {
        uint32_t word;
        memcpy(&word, &values[i], sizeof word);
        for (uint32_t b = 0; b < sizeof word; b++)
            at[i * sizeof word + b] = (uint8_t)(word >> 8 * b);
    }
    keel_onnx_end(&export->writer, begun);
}

struct keel_onnx_name keel_onnx_number(struct export *export, float value)
{
    const struct keel_onnx_name name = keel_onnx_fresh(export);
    keel_onnx_floats(export, name.text, 0, NULL, &value);
    return name;
}

struct keel_onnx_name keel_onnx_list(struct export *export, const int64_t *list, uint32_t count)
{
    const struct keel_onnx_name name = keel_onnx_fresh(export);
    const uint64_t size = count;
    uint64_t begun;
    uint8_t *at = begin_tensor(export, name.text, KEEL_ONNX_INT64, 1, &size, sizeof *list, &begun);
    for (uint32_t i = 0; at != NULL && i < count; i++)
        for (uint32_t b = 0; b < sizeof *list; b++)
            at[i * sizeof *list + b] = (uint8_t)((uint64_t)list[i] >> 8 * b);
    keel_onnx_end(&export->writer, begun);
    return name;
}

/* [height, width, in, out] to [out, in, height, width]. */
static void turn(const float *x, const struct keel_shape *shape, float *out)
{
    const uint64_t area = shape->size[0] * shape->size[1], inputs = shape->size[2], outputs = shape->size[3];
    for (uint64_t o = 0; o < outputs; o++)
        for (uint64_t i = 0; i < inputs; i++)
            for (uint64_t p = 0; p < area; p++)
                out[(o * inputs + i) * area + p] = x[(p * inputs + i) * outputs + o];
}

static enum keel_status write_param(struct export *export, const struct keel_ir_param *param, bool turned)
{
    struct keel_shape shape = export->graph->values[param->value].shape;
    const size_t count = keel_size(keel_shape_count(&shape));
    float *values = NULL, *other = NULL;
    enum keel_status status = keel_alloc(count, sizeof *values, &values);
    if (status == KEEL_OK && turned)
        status = keel_alloc(count, sizeof *other, &other);
    if (status == KEEL_OK)
        status = export->how->read(export->how->context, param->name, values);
    if (status == KEEL_OK && turned) {
        turn(values, &shape, other);
        shape = (struct keel_shape){4, {shape.size[3], shape.size[2], shape.size[0], shape.size[1]}};
    }
    if (status == KEEL_OK)
        keel_onnx_floats(export, param->name, shape.dims, shape.size, turned ? other : values);
    keel_free(values);
    keel_free(other);
    return status;
}

/* Written where it is used first. */
static enum keel_status param_name(struct export *export, keel_value value, bool turned,
                                   struct keel_onnx_name *out)
{
    struct place *place = &export->place[value];
    const struct keel_ir_param *param = &export->graph->params[export->graph->values[value].param];
    if (!place->made)
        KEEL_TRY(write_param(export, param, turned));
    else if (place->image != turned)
        return keel_onnx_export_refuse(export, " has a weight that a convolution has too: not covered");
    place->made = true;
    place->image = turned;
    *out = keel_onnx_name("%s", param->name);
    return KEEL_OK;
}

/* ---- values -------------------------------------------------------------------------------------------- */

static void turn_images(struct export *export, struct place *place, bool to_image)
{
    static const int64_t to_nchw[] = {0, 3, 1, 2}, to_nhwc[] = {0, 2, 3, 1};
    const struct keel_onnx_name from = place->name;
    place->name = keel_onnx_fresh(export);
    place->image = to_image;
    keel_onnx_node(export, "Transpose", NAMES(from.text), NAMES(place->name.text),
                   ATTRIBUTES(INTEGERS("perm", to_image ? to_nchw : to_nhwc, 4)));
}

static enum keel_status find(struct export *export, keel_value value, bool image, struct keel_onnx_name *out)
{
    struct place *place = &export->place[value];
    const struct keel_ir_value *of = &export->graph->values[value];
    if (of->kind == KEEL_VALUE_PARAM)
        return param_name(export, value, image, out);
    if (!place->made) {
        char what[2 * KEEL_VALUE_NAME_BYTES];
        snprintf(what, sizeof what, " reads %s: one input is covered", of->name);
        return keel_onnx_export_refuse(export, what);
    }
    if (of->shape.dims == 4 && place->image != image)
        turn_images(export, place, image);
    *out = place->name;
    return KEEL_OK;
}

enum keel_status keel_onnx_plain_name(struct export *export, keel_value value, struct keel_onnx_name *out)
{
    return find(export, value, false, out);
}

enum keel_status keel_onnx_image_name(struct export *export, keel_value value, struct keel_onnx_name *out)
{
    return find(export, value, true, out);
}

struct keel_onnx_name keel_onnx_make(struct export *export, keel_value value, bool image)
{
    struct place *place = &export->place[value];
    place->name = value == export->graph->output ? keel_onnx_name("logits") : keel_onnx_name("v%u", value);
    place->made = true;
    place->image = image;
    return place->name;
}

/* ---- nodes --------------------------------------------------------------------------------------------- */

static void put_attribute(struct keel_onnx_writer *writer, const struct attribute *attribute)
{
    static const uint32_t types[] = {[INTEGER] = 2, [REAL] = 1, [TEXT] = 3, [LIST] = 7};
    const uint64_t begun = keel_onnx_begin(writer, NODE_ATTRIBUTE);
    keel_onnx_put_text(writer, ATTRIBUTE_NAME, attribute->name);
    if (attribute->kind == INTEGER)
        keel_onnx_put_integer(writer, ATTRIBUTE_INTEGER, (uint64_t)attribute->integer);
    else if (attribute->kind == REAL)
        keel_onnx_put_real(writer, ATTRIBUTE_REAL, attribute->real);
    else if (attribute->kind == TEXT)
        keel_onnx_put_text(writer, ATTRIBUTE_TEXT, attribute->text);
    for (uint32_t i = 0; attribute->kind == LIST && i < attribute->count; i++)
        keel_onnx_put_integer(writer, ATTRIBUTE_LIST, (uint64_t)attribute->list[i]);
    keel_onnx_put_integer(writer, ATTRIBUTE_TYPE, types[attribute->kind]);
    keel_onnx_end(writer, begun);
}

void keel_onnx_node(struct export *export, const char *operation, const char *const *in,
                    const char *const *out, const struct attribute *attributes)
{
    struct keel_onnx_writer *writer = &export->writer;
    const uint64_t begun = keel_onnx_begin(writer, GRAPH_NODE);
    for (; *in != NULL; in++)
        keel_onnx_put_text(writer, NODE_INPUT, *in);
    for (; *out != NULL; out++)
        keel_onnx_put_text(writer, NODE_OUTPUT, *out);
    keel_onnx_put_text(writer, NODE_OPERATOR, operation);
    for (; attributes != NULL && attributes->name != NULL; attributes++)
        put_attribute(writer, attributes);
    keel_onnx_end(writer, begun);
    export->nodes++;
}

/* ---- around them --------------------------------------------------------------------------------------- */

static void put_port(struct export *export, uint32_t field, const char *name, enum keel_onnx_type type,
                     uint32_t dims, const uint64_t *size)
{
    struct keel_onnx_writer *writer = &export->writer;
    const uint64_t port = keel_onnx_begin(writer, field);
    keel_onnx_put_text(writer, PORT_NAME, name);
    const uint64_t of_type = keel_onnx_begin(writer, PORT_TYPE);
    const uint64_t tensor = keel_onnx_begin(writer, TYPE_TENSOR);
    keel_onnx_put_integer(writer, TENSOR_ELEMENT, type);
    const uint64_t shape = keel_onnx_begin(writer, TENSOR_SHAPE);
    for (uint32_t d = 0; d < dims; d++) {
        const uint64_t dim = keel_onnx_begin(writer, SHAPE_DIM);
        if (d == 0)
            keel_onnx_put_text(writer, DIM_NAME, "batch");
        else
            keel_onnx_put_integer(writer, DIM_SIZE, size[d]);
        keel_onnx_end(writer, dim);
    }
    keel_onnx_end(writer, shape);
    keel_onnx_end(writer, tensor);
    keel_onnx_end(writer, of_type);
    keel_onnx_end(writer, port);
}

static enum keel_status put_input(struct export *export)
{
    const struct keel_graph *graph = export->graph;
    keel_value input = 1;
    while (input < graph->value_count && graph->values[input].kind != KEEL_VALUE_INPUT)
        input++;
    KEEL_ASSERT(input < graph->value_count);
    const struct keel_ir_value *of = &graph->values[input];
    const bool image = of->shape.dims == 4, ids = of->dtype == KEEL_I32;
    const uint64_t *lies = of->shape.size;
    const uint64_t nchw[] = {lies[0], lies[3], lies[1], lies[2]};
    export->input = input;
    export->place[input] =
        (struct place){.name = keel_onnx_name("%s", of->name), .made = true, .image = image};
    put_port(export, GRAPH_INPUT, of->name, ids ? KEEL_ONNX_INT64 : KEEL_ONNX_FLOAT, of->shape.dims,
             image ? nchw : lies);
    return KEEL_OK;
}

static enum keel_status put_graph(struct export *export)
{
    const struct keel_graph *graph = export->graph;
    const struct keel_shape logits = keel_graph_shape(graph, graph->output);
    const uint64_t *lies = logits.size, nchw[] = {lies[0], lies[3], lies[1], lies[2]};
    keel_onnx_put_text(&export->writer, GRAPH_NAME, export->how->name);
    KEEL_TRY(put_input(export));
    for (uint32_t n = 0; n < graph->node_count; n++) {
        export->node = &graph->nodes[n];
        KEEL_TRY(keel_onnx_export_node(export));
        KEEL_TRY(export->writer.status);
        if (export->place[graph->output].made)
            break; /* what is behind are losses */
    }
    if (!export->place[graph->output].made || strcmp(export->place[graph->output].name.text, "logits") != 0)
        return keel_fail(KEEL_UNSUPPORTED, "%s: no operation makes the model's output", export->how->name);
    put_port(export, GRAPH_OUTPUT, "logits", KEEL_ONNX_FLOAT, logits.dims,
             export->place[graph->output].image ? nchw : lies);
    return export->writer.status;
}

static enum keel_status put_model(struct export *export)
{
    struct keel_onnx_writer *writer = &export->writer;
    keel_onnx_put_integer(writer, MODEL_IR_VERSION, IR_VERSION);
    keel_onnx_put_text(writer, MODEL_PRODUCER, "keel");
    const uint64_t opset = keel_onnx_begin(writer, MODEL_OPSET);
    keel_onnx_put_integer(writer, OPSET_VERSION, OPSET);
    keel_onnx_end(writer, opset);
    const uint64_t graph = keel_onnx_begin(writer, MODEL_GRAPH);
    KEEL_TRY(put_graph(export));
    keel_onnx_end(writer, graph);
    return writer->status;
}

enum keel_status keel_onnx_export(const struct keel_onnx_export *how, uint8_t **out, uint64_t *out_bytes,
                                  uint32_t *out_nodes)
{
    struct export export = {.how = how, .graph = how->graph};
    KEEL_ASSERT(how->graph->output != 0);
    enum keel_status status = keel_alloc(how->graph->value_count, sizeof *export.place, &export.place);
    if (status == KEEL_OK)
        status = put_model(&export);
    keel_free(export.place);
    if (status != KEEL_OK) {
        keel_free(export.writer.bytes);
        return status;
    }
    *out = export.writer.bytes;
    *out_bytes = export.writer.count;
    *out_nodes = export.nodes;
    return KEEL_OK;
}
