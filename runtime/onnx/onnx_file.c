/* onnx_file.c - see onnx_file.h. Field numbers are those of onnx.proto (github.com/onnx/onnx). */
#include "onnx_file.h"

#include <keel/memory.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

/* A piece of memory that is freed with the file. */
struct block {
    struct block *next;
    uint64_t aligned[];
};

struct mapped {
    char path[KEEL_PATH_BYTES];
    void *bytes;
    uint64_t count;
};

struct keel_onnx_file {
    char path[KEEL_PATH_BYTES];
    struct keel_wire whole;
    struct keel_onnx_graph graph;
    void *own;                                  /* the mapping of `whole`; NULL: the caller's bytes */
    struct mapped maps[KEEL_ONNX_EXTERNAL_MAX]; /* of files beside it */
    uint32_t map_count;
    bool beside; /* those are read */
    struct block *blocks;
};

bool keel_onnx_text_is(struct keel_onnx_text text, const char *word)
{
    return text.bytes == strlen(word) && memcmp(text.at, word, text.bytes) == 0;
}

void *keel_onnx_file_alloc(struct keel_onnx_file *file, uint64_t count, size_t size)
{
    struct block *block;
    const uint64_t bytes = count * size;
    if (count != 0 && bytes / count != size)
        return NULL;
    if (keel_alloc(sizeof *block + bytes, 1, (void *)&block) != KEEL_OK)
        return NULL;
    block->next = file->blocks;
    file->blocks = block;
    return block->aligned;
}

static enum keel_status refuse(const struct keel_onnx_file *file, const char *what)
{
    return keel_fail(KEEL_INVALID, "%s: %s", file->path, what);
}

static enum keel_status broken(const struct keel_onnx_file *file)
{
    return keel_fail(KEEL_CORRUPT, "%s: is no ONNX model, or cut off: export it again", file->path);
}

static struct keel_onnx_text text_of(struct keel_wire bytes)
{
    return (struct keel_onnx_text){(const char *)bytes.at, (size_t)(bytes.end - bytes.at)};
}

/* How many fields of this number a message has, broken ones not counted: they are found when it is read. */
static uint32_t count_fields(struct keel_wire message, uint32_t number)
{
    struct keel_wire_field field;
    uint32_t count = 0;
    while (keel_wire_next(&message, &field) == KEEL_WIRE_FIELD)
        count += field.number == number && field.type == KEEL_WIRE_BYTES;
    return count;
}

/* An array for the fields of a number, of which there are at most `most`. */
static enum keel_status make_array(struct keel_onnx_file *file, struct keel_wire message, uint32_t number,
                                   uint32_t most, size_t size, const char *what, void **out)
{
    const uint32_t count = count_fields(message, number);
    if (count > most)
        return keel_fail(KEEL_LIMIT, "%s: has %u %s, at most %u are read", file->path, count, what, most);
    *out = keel_onnx_file_alloc(file, count == 0 ? 1 : count, size);
    return *out != NULL ? KEEL_OK : keel_fail(KEEL_NO_MEMORY, "%s: no memory for its %s", file->path, what);
}

/* ---- lists of integers --------------------------------------------------------------------------------- */

struct numbers {
    int64_t *at;
    uint64_t count, room;
};

static enum keel_status add_number(struct keel_onnx_file *file, struct numbers *numbers, uint64_t value)
{
    if (numbers->count == KEEL_ONNX_NUMBERS_MAX)
        return refuse(file, "a list of more than 1,048,576 integers");
    if (numbers->count == numbers->room) {
        const uint64_t room = numbers->room == 0 ? 8 : numbers->room * 2;
        int64_t *more = keel_onnx_file_alloc(file, room, sizeof *more);
        if (more == NULL)
            return keel_fail(KEEL_NO_MEMORY, "%s: no memory for a list of integers", file->path);
        if (numbers->count > 0)
            memcpy(more, numbers->at, keel_size(numbers->count * sizeof *more));
        numbers->at = more;
        numbers->room = room;
    }
    numbers->at[numbers->count++] = (int64_t)value;
    return KEEL_OK;
}

/* A repeated integer: one, or many packed. */
static enum keel_status add_numbers(struct keel_onnx_file *file, struct numbers *numbers,
                                    const struct keel_wire_field *field)
{
    struct keel_wire packed = field->bytes;
    uint64_t value;
    if (field->type == KEEL_WIRE_VARINT)
        return add_number(file, numbers, field->value);
    if (field->type != KEEL_WIRE_BYTES)
        return broken(file);
    while (packed.at < packed.end) {
        if (!keel_wire_varint(&packed, &value))
            return broken(file);
        KEEL_TRY(add_number(file, numbers, value));
    }
    return KEEL_OK;
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

/* Where data beside the file lies: location, offset, length. */
struct external {
    struct keel_onnx_text location;
    uint64_t offset, length;
    bool has_length;
};

static bool read_decimal(struct keel_onnx_text text, uint64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < text.bytes; i++) {
        if (text.at[i] < '0' || text.at[i] > '9' || *out > UINT64_MAX / 16)
            return false;
        *out = *out * 10 + (uint64_t)(text.at[i] - '0');
    }
    return text.bytes > 0;
}

static enum keel_status read_external(struct keel_onnx_file *file, struct keel_wire entry,
                                      struct external *out)
{
    struct keel_wire_field field;
    struct keel_onnx_text key = {NULL, 0}, value = {NULL, 0};
    enum keel_wire_result result;
    while ((result = keel_wire_next(&entry, &field)) == KEEL_WIRE_FIELD)
        if (field.type == KEEL_WIRE_BYTES && (field.number == 1 || field.number == 2))
            *(field.number == 1 ? &key : &value) = text_of(field.bytes);
    bool good = result == KEEL_WIRE_END;
    if (good && keel_onnx_text_is(key, "location"))
        out->location = value;
    else if (good && keel_onnx_text_is(key, "offset"))
        good = read_decimal(value, &out->offset);
    else if (good && keel_onnx_text_is(key, "length"))
        good = out->has_length = read_decimal(value, &out->length);
    return good ? KEEL_OK : broken(file);
}

/* A name of a file in the folder of the model, and no way out of it. */
static bool is_beside(struct keel_onnx_text location)
{
    return location.bytes > 0 && location.bytes < 256 && location.at[0] != '.' &&
           memchr(location.at, '/', location.bytes) == NULL &&
           memchr(location.at, '\0', location.bytes) == NULL;
}

static enum keel_status map_beside(struct keel_onnx_file *file, struct keel_onnx_text location,
                                   const struct mapped **out)
{
    char path[KEEL_PATH_BYTES], name[256];
    const char *slash = strrchr(file->path, '/');
    if (!file->beside || !is_beside(location))
        return keel_fail(
            KEEL_INVALID,
            "%s: has weights in \"%.*s\": only files in its own folder, by their names, are read", file->path,
            (int)(location.bytes < 200 ? location.bytes : 200), location.at);
    memcpy(name, location.at, location.bytes);
    name[location.bytes] = '\0';
    if (snprintf(path, sizeof path, "%.*s%s", slash == NULL ? 0 : (int)(slash + 1 - file->path), file->path,
                 name) >= (int)sizeof path)
        return refuse(file, "the path of its weights is too long");
    for (uint32_t i = 0; i < file->map_count; i++)
        if (strcmp(file->maps[i].path, path) == 0) {
            *out = &file->maps[i];
            return KEEL_OK;
        }
    if (file->map_count == KEEL_ONNX_EXTERNAL_MAX)
        return refuse(file, "has weights in more than 64 files");
    struct mapped *map = &file->maps[file->map_count];
    KEEL_TRY(keel_file_map(path, &map->bytes, &map->count));
    memcpy(map->path, path, sizeof path);
    file->map_count++;
    *out = map;
    return KEEL_OK;
}

/* As many bytes as floats of the tensor take, wherever they lie. */
static enum keel_status place_floats(struct keel_onnx_file *file, struct keel_onnx_tensor *tensor,
                                     struct keel_wire bytes, const struct external *external)
{
    const uint64_t wanted = tensor->count * sizeof(float);
    if (external->location.bytes > 0) {
        const struct mapped *map = NULL;
        KEEL_TRY(map_beside(file, external->location, &map));
        KEEL_ASSERT(map != NULL);
        if (external->offset > map->count || wanted > map->count - external->offset ||
            (external->has_length && external->length != wanted))
            return keel_fail(KEEL_CORRUPT, "%s: %.*s has no %llu bytes from %llu on in %s", file->path,
                             (int)(tensor->name.bytes < 200 ? tensor->name.bytes : 200), tensor->name.at,
                             (unsigned long long)wanted, (unsigned long long)external->offset, map->path);
        tensor->bytes = (const uint8_t *)map->bytes + external->offset;
        return KEEL_OK;
    }
    if ((uint64_t)(bytes.end - bytes.at) != wanted)
        return keel_fail(KEEL_INVALID, "%s: %.*s has %llu bytes of numbers, its shape wants %llu", file->path,
                         (int)(tensor->name.bytes < 200 ? tensor->name.bytes : 200), tensor->name.at,
                         (unsigned long long)(bytes.end - bytes.at), (unsigned long long)wanted);
    tensor->bytes = bytes.at;
    return KEEL_OK;
}

/* Integers from raw bytes. */
static enum keel_status place_integers(struct keel_onnx_file *file, struct keel_onnx_tensor *tensor,
                                       struct keel_wire raw, struct numbers *numbers)
{
    const uint32_t width = tensor->type == KEEL_ONNX_INT64 ? 8 : tensor->type == KEEL_ONNX_INT32 ? 4 : 1;
    for (const uint8_t *at = raw.at; at != NULL && at < raw.end; at += width) {
        uint64_t value = 0;
        if ((size_t)(raw.end - at) < width)
            return broken(file);
        for (uint32_t i = 0; i < width; i++)
            value |= (uint64_t)at[i] << (8 * i);
        if (width == 4)
            value = (uint64_t)(int64_t)(int32_t)(uint32_t)value;
        KEEL_TRY(add_number(file, numbers, value));
    }
    if (numbers->count != tensor->count)
        return keel_fail(KEEL_INVALID, "%s: %.*s has %llu integers, its shape wants %llu", file->path,
                         (int)(tensor->name.bytes < 200 ? tensor->name.bytes : 200), tensor->name.at,
                         (unsigned long long)numbers->count, (unsigned long long)tensor->count);
    tensor->number = numbers->at;
    return KEEL_OK;
}

static enum keel_status set_shape(struct keel_onnx_file *file, struct keel_onnx_tensor *tensor,
                                  const struct numbers *dims)
{
    tensor->count = 1;
    tensor->dims = (uint32_t)dims->count;
    if (dims->count > KEEL_ONNX_DIMS_MAX)
        return refuse(file, "a tensor of more than 8 dimensions");
    for (uint32_t i = 0; i < tensor->dims; i++) {
        const int64_t size = dims->at[i];
        if (size < 0 || (size > 0 && tensor->count > (UINT64_C(1) << 40) / (uint64_t)size))
            return refuse(file, "a tensor of more than 2^40 elements, or of a negative size");
        tensor->size[i] = (uint64_t)size;
        tensor->count *= (uint64_t)size;
    }
    return KEEL_OK;
}

/* TensorProto: dims 1, data_type 2, float_data 4, int32_data 5, int64_data 7, name 8, raw_data 9,
 * external_data 13, data_location 14. */
static enum keel_status read_tensor(struct keel_onnx_file *file, struct keel_wire message,
                                    struct keel_onnx_tensor *out)
{
    struct keel_wire_field field;
    struct keel_wire raw = {NULL, NULL}, floats = {NULL, NULL};
    struct numbers dims = {NULL, 0, 0}, numbers = {NULL, 0, 0};
    struct external external = {.length = 0};
    enum keel_wire_result result;
    *out = (struct keel_onnx_tensor){.count = 1};
    while ((result = keel_wire_next(&message, &field)) == KEEL_WIRE_FIELD) {
        const bool bytes = field.type == KEEL_WIRE_BYTES;
        if (field.number == 1)
            KEEL_TRY(add_numbers(file, &dims, &field));
        else if (field.number == 2 && field.type == KEEL_WIRE_VARINT)
            out->type = (uint32_t)field.value;
        else if (field.number == 4 && (!bytes || floats.at != NULL))
            return refuse(file, "has floats one by one; export it with raw or packed data");
        else if (field.number == 4)
            floats = field.bytes;
        else if (field.number == 5 || field.number == 7)
            KEEL_TRY(add_numbers(file, &numbers, &field));
        else if (field.number == 8 && bytes)
            out->name = text_of(field.bytes);
        else if (field.number == 9 && bytes)
            raw = field.bytes;
        else if (field.number == 13 && bytes)
            KEEL_TRY(read_external(file, field.bytes, &external));
    }
    if (result == KEEL_WIRE_BROKEN)
        return broken(file);
    KEEL_TRY(set_shape(file, out, &dims));
    if (out->type == KEEL_ONNX_FLOAT)
        return place_floats(file, out, floats.at != NULL ? floats : raw, &external);
    if (out->type != KEEL_ONNX_INT32 && out->type != KEEL_ONNX_INT64 && out->type != KEEL_ONNX_BOOL)
        return keel_fail(
            KEEL_INVALID, "%s: %.*s is of element type %u: float32, int32, int64 and bool are read",
            file->path, (int)(out->name.bytes < 200 ? out->name.bytes : 200), out->name.at, out->type);
    if (external.location.bytes > 0)
        return refuse(file, "has integers in a file beside it");
    return place_integers(file, out, raw, &numbers);
}

/* ---- nodes --------------------------------------------------------------------------------------------- */

/* AttributeProto: name 1, f 2, i 3, s 4, t 5, floats 7, ints 8, type 20. */
static enum keel_status read_attribute(struct keel_onnx_file *file, struct keel_wire message,
                                       struct keel_onnx_attribute *out)
{
    struct keel_wire_field field;
    struct numbers list = {NULL, 0, 0};
    enum keel_wire_result result;
    *out = (struct keel_onnx_attribute){.integer = 0};
    while ((result = keel_wire_next(&message, &field)) == KEEL_WIRE_FIELD) {
        const bool bytes = field.type == KEEL_WIRE_BYTES;
        if (field.number == 1 && bytes) {
            out->name = text_of(field.bytes);
        } else if (field.number == 2 && field.type == KEEL_WIRE_32) {
            const uint32_t bits = (uint32_t)field.value;
            memcpy(&out->real, &bits, sizeof bits);
        } else if (field.number == 3 && field.type == KEEL_WIRE_VARINT) {
            out->integer = (int64_t)field.value;
        } else if (field.number == 4 && bytes) {
            out->text = text_of(field.bytes);
        } else if (field.number == 5 && bytes) {
            struct keel_onnx_tensor *tensor = keel_onnx_file_alloc(file, 1, sizeof *tensor);
            if (tensor == NULL)
                return keel_fail(KEEL_NO_MEMORY, "%s: no memory for a constant", file->path);
            KEEL_TRY(read_tensor(file, field.bytes, tensor));
            out->tensor = tensor;
        } else if (field.number == 8) {
            KEEL_TRY(add_numbers(file, &list, &field));
        } else if (field.number == 20 && field.type == KEEL_WIRE_VARINT) {
            out->type = (uint32_t)field.value;
        }
    }
    out->list = list.at;
    out->list_count = (uint32_t)list.count;
    return result == KEEL_WIRE_END ? KEEL_OK : broken(file);
}

/* NodeProto: input 1, output 2, name 3, op_type 4, attribute 5, domain 7. */
static enum keel_status read_node(struct keel_onnx_file *file, struct keel_wire message,
                                  struct keel_onnx_node *out)
{
    struct keel_wire_field field;
    struct keel_onnx_text *in, *result_names;
    struct keel_onnx_attribute *attribute;
    enum keel_wire_result result;
    KEEL_TRY(
        make_array(file, message, 1, KEEL_ONNX_PORTS_MAX, sizeof *in, "operands of a node", (void *)&in));
    KEEL_TRY(make_array(file, message, 2, KEEL_ONNX_PORTS_MAX, sizeof *in, "results of a node",
                        (void *)&result_names));
    KEEL_TRY(make_array(file, message, 5, KEEL_ONNX_PORTS_MAX, sizeof *attribute, "attributes of a node",
                        (void *)&attribute));
    *out = (struct keel_onnx_node){.in = in, .out = result_names, .attribute = attribute};
    while ((result = keel_wire_next(&message, &field)) == KEEL_WIRE_FIELD) {
        if (field.type != KEEL_WIRE_BYTES)
            continue;
        if (field.number == 1)
            in[out->in_count++] = text_of(field.bytes);
        else if (field.number == 2)
            result_names[out->out_count++] = text_of(field.bytes);
        else if (field.number == 3)
            out->name = text_of(field.bytes);
        else if (field.number == 4)
            out->operation = text_of(field.bytes);
        else if (field.number == 5)
            KEEL_TRY(read_attribute(file, field.bytes, &attribute[out->attribute_count++]));
        else if (field.number == 7)
            out->domain = text_of(field.bytes);
    }
    return result == KEEL_WIRE_END ? KEEL_OK : broken(file);
}

/* ---- inputs and outputs -------------------------------------------------------------------------------- */

/* The only field `number` of bytes; false: the message is broken. Absent: nothing. */
static bool find_field(struct keel_wire message, uint32_t number, struct keel_wire *out)
{
    struct keel_wire_field field;
    enum keel_wire_result result;
    *out = (struct keel_wire){NULL, NULL};
    while ((result = keel_wire_next(&message, &field)) == KEEL_WIRE_FIELD)
        if (field.number == number && field.type == KEEL_WIRE_BYTES)
            *out = field.bytes;
    return result == KEEL_WIRE_END;
}

/* ValueInfoProto: name 1, type 2 (tensor_type 1 (elem_type 1, shape 2 (dim 1 (dim_value 1)))). */
static enum keel_status read_port(struct keel_onnx_file *file, struct keel_wire message,
                                  struct keel_onnx_port *out)
{
    struct keel_wire name, type, tensor, shape;
    struct keel_wire_field field, size;
    *out = (struct keel_onnx_port){.type = 0};
    if (!find_field(message, 1, &name) || !find_field(message, 2, &type) || !find_field(type, 1, &tensor) ||
        !find_field(tensor, 2, &shape))
        return broken(file);
    out->name = text_of(name);
    while (keel_wire_next(&tensor, &field) == KEEL_WIRE_FIELD)
        if (field.number == 1 && field.type == KEEL_WIRE_VARINT)
            out->type = (uint32_t)field.value;
    enum keel_wire_result result;
    while ((result = keel_wire_next(&shape, &field)) == KEEL_WIRE_FIELD) {
        if (field.number != 1 || field.type != KEEL_WIRE_BYTES)
            continue;
        if (out->dims == KEEL_ONNX_DIMS_MAX)
            return refuse(file, "an input of more than 8 dimensions");
        while ((result = keel_wire_next(&field.bytes, &size)) == KEEL_WIRE_FIELD)
            if (size.number == 1 && size.type == KEEL_WIRE_VARINT)
                out->size[out->dims] = size.value;
        out->dims++;
        if (result == KEEL_WIRE_BROKEN)
            break;
    }
    return result == KEEL_WIRE_END ? KEEL_OK : broken(file);
}

/* GraphProto: node 1, initializer 5, input 11, output 12. */
static enum keel_status read_graph(struct keel_onnx_file *file, struct keel_wire message)
{
    struct keel_onnx_graph *graph = &file->graph;
    struct keel_wire_field field;
    enum keel_wire_result result;
    KEEL_TRY(make_array(file, message, 1, KEEL_ONNX_NODES_MAX, sizeof *graph->node, "nodes",
                        (void *)&graph->node));
    KEEL_TRY(make_array(file, message, 5, KEEL_ONNX_TENSORS_MAX, sizeof *graph->tensor, "initializers",
                        (void *)&graph->tensor));
    KEEL_TRY(make_array(file, message, 11, KEEL_ONNX_TENSORS_MAX, sizeof *graph->in, "inputs",
                        (void *)&graph->in));
    KEEL_TRY(make_array(file, message, 12, KEEL_ONNX_PORTS_MAX, sizeof *graph->out, "outputs",
                        (void *)&graph->out));
    while ((result = keel_wire_next(&message, &field)) == KEEL_WIRE_FIELD) {
        if (field.type != KEEL_WIRE_BYTES)
            continue;
        if (field.number == 1)
            KEEL_TRY(read_node(file, field.bytes, &graph->node[graph->node_count++]));
        else if (field.number == 5)
            KEEL_TRY(read_tensor(file, field.bytes, &graph->tensor[graph->tensor_count++]));
        else if (field.number == 11)
            KEEL_TRY(read_port(file, field.bytes, &graph->in[graph->in_count++]));
        else if (field.number == 12)
            KEEL_TRY(read_port(file, field.bytes, &graph->out[graph->out_count++]));
    }
    return result == KEEL_WIRE_END ? KEEL_OK : broken(file);
}

/* ModelProto: graph 7, opset_import 8 (domain 1, version 2). */
static enum keel_status read_model(struct keel_onnx_file *file)
{
    struct keel_wire message = file->whole, graph = {NULL, NULL};
    struct keel_wire_field field, part;
    enum keel_wire_result result;
    while ((result = keel_wire_next(&message, &field)) == KEEL_WIRE_FIELD) {
        if (field.type != KEEL_WIRE_BYTES)
            continue;
        uint64_t version = 0;
        bool other = false;
        if (field.number == 7)
            graph = field.bytes;
        while (field.number == 8 && keel_wire_next(&field.bytes, &part) == KEEL_WIRE_FIELD) {
            if (part.number == 1 && part.type == KEEL_WIRE_BYTES) /* "" and "ai.onnx" are one domain */
                other = part.bytes.at < part.bytes.end && !keel_onnx_text_is(text_of(part.bytes), "ai.onnx");
            version = part.number == 2 && part.type == KEEL_WIRE_VARINT ? part.value : version;
        }
        if (field.number == 8 && !other)
            file->graph.opset = version;
    }
    if (result == KEEL_WIRE_BROKEN || graph.at == NULL)
        return broken(file);
    if (file->graph.opset < 13)
        return keel_fail(KEEL_INVALID, "%s: is of opset %llu, from 13 on they are read: export it anew",
                         file->path, (unsigned long long)file->graph.opset);
    return read_graph(file, graph);
}

/* ---- open, close --------------------------------------------------------------------------------------- */

enum keel_status keel_onnx_file_read(const char *path, const void *bytes, uint64_t count, bool beside,
                                     struct keel_onnx_file **out)
{
    struct keel_onnx_file *file;
    KEEL_TRY(keel_alloc(1, sizeof *file, (void *)&file));
    enum keel_status status = KEEL_OK;
    if (snprintf(file->path, sizeof file->path, "%s", path) >= (int)sizeof file->path)
        status = keel_fail(KEEL_INVALID, "%.200s...: the path is too long", path);
    file->graph.path = file->path;
    file->beside = beside;
    file->whole = (struct keel_wire){bytes, (const uint8_t *)bytes + keel_size(count)};
    if (status == KEEL_OK)
        status = read_model(file);
    if (status == KEEL_OK)
        *out = file;
    else
        keel_onnx_file_close(file);
    return status;
}

enum keel_status keel_onnx_file_open(const char *path, struct keel_onnx_file **out)
{
    void *bytes;
    uint64_t count;
    KEEL_TRY(keel_file_map(path, &bytes, &count));
    const enum keel_status status = keel_onnx_file_read(path, bytes, count, true, out);
    if (status == KEEL_OK)
        (*out)->own = bytes;
    else
        keel_file_unmap(bytes, count);
    return status;
}

void keel_onnx_file_close(struct keel_onnx_file *file)
{
    if (file == NULL)
        return;
    for (uint32_t i = 0; i < file->map_count; i++)
        keel_file_unmap(file->maps[i].bytes, file->maps[i].count);
    keel_file_unmap(file->own, (uint64_t)(file->whole.end - file->whole.at));
    while (file->blocks != NULL) {
        struct block *next = file->blocks->next;
        keel_free(file->blocks);
        file->blocks = next;
    }
    keel_free(file);
}

struct keel_onnx_graph *keel_onnx_file_graph(struct keel_onnx_file *file)
{
    return &file->graph;
}

void keel_onnx_file_digest(const struct keel_onnx_file *file, char out[KEEL_ONNX_DIGEST_BYTES])
{
    unsigned char hash[(KEEL_ONNX_DIGEST_BYTES - 1) / 2];
    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, sizeof hash);
    crypto_generichash_update(&state, file->whole.at, (size_t)(file->whole.end - file->whole.at));
    for (uint32_t i = 0; i < file->map_count; i++)
        crypto_generichash_update(&state, file->maps[i].bytes, (size_t)file->maps[i].count);
    crypto_generichash_final(&state, hash, sizeof hash);
    sodium_bin2hex(out, KEEL_ONNX_DIGEST_BYTES, hash, sizeof hash);
}
