/* onnx_file.h - an .onnx file as data: nodes, initializers, inputs and outputs of its graph.
 *
 * The file stays mapped, and names and tensors point into it. Nothing of the graph is judged here but what
 * the reader itself relies on: sizes, counts, that a tensor has as many bytes as its shape says. */
#ifndef KEEL_ONNX_FILE_H
#define KEEL_ONNX_FILE_H

#include "onnx_wire.h"

#include <keel/file.h>
#include <keel/status.h>

enum {
    KEEL_ONNX_DIMS_MAX = 8,
    KEEL_ONNX_NODES_MAX = 1 << 16,
    KEEL_ONNX_TENSORS_MAX = 1 << 16,
    KEEL_ONNX_PORTS_MAX = 64,        /* inputs, outputs or attributes of a node, inputs of the graph */
    KEEL_ONNX_NUMBERS_MAX = 1 << 20, /* elements of a tensor of integers, or of an attribute's list */
    KEEL_ONNX_EXTERNAL_MAX = 64      /* files of weights beside the file */
};

/* Bytes of the file, no terminator. */
struct keel_onnx_text {
    const char *at;
    size_t bytes;
};
bool keel_onnx_text_is(struct keel_onnx_text text, const char *word);

/* Element types by their numbers in ONNX. */
enum keel_onnx_type { KEEL_ONNX_FLOAT = 1, KEEL_ONNX_INT32 = 6, KEEL_ONNX_INT64 = 7, KEEL_ONNX_BOOL = 9 };

struct keel_onnx_tensor {
    struct keel_onnx_text name;
    uint32_t type; /* enum keel_onnx_type, or another */
    uint32_t dims;
    uint64_t size[KEEL_ONNX_DIMS_MAX], count;
    const uint8_t *bytes;  /* of FLOAT: count floats, the lowest byte first, anywhere; else NULL */
    const int64_t *number; /* of INT32, INT64 and BOOL: count of them */
    float *turned;         /* the importer's: a copy in another order, freed with the file */
};

struct keel_onnx_attribute {
    struct keel_onnx_text name, text;
    uint32_t type; /* as AttributeProto.AttributeType numbers them; 0: it says none */
    int64_t integer;
    float real;
    const int64_t *list; /* list_count integers */
    uint32_t list_count;
    const struct keel_onnx_tensor *tensor; /* or NULL */
};

struct keel_onnx_node {
    struct keel_onnx_text name, operation, domain;
    const struct keel_onnx_text *in, *out; /* an empty name: absent */
    const struct keel_onnx_attribute *attribute;
    uint32_t in_count, out_count, attribute_count;
};

/* An input or output of the graph; a size of 0 is not known. */
struct keel_onnx_port {
    struct keel_onnx_text name;
    uint32_t type, dims;
    uint64_t size[KEEL_ONNX_DIMS_MAX];
};

struct keel_onnx_file;
/* CORRUPT: not ONNX, or cut, or weights beside it are. INVALID, with the path and the place: beyond the
 * limits above, weights outside of the file's folder, element types that are not read. NOT_FOUND. A file that
 * changes while it is mapped ends the process. */
enum keel_status keel_onnx_file_open(const char *path, struct keel_onnx_file **out);
/* The same of bytes in memory, which must stay; `path` is for messages and, with `beside`, for weights in
 * files beside it. */
enum keel_status keel_onnx_file_read(const char *path, const void *bytes, uint64_t count, bool beside,
                                     struct keel_onnx_file **out);
void keel_onnx_file_close(struct keel_onnx_file *file);

struct keel_onnx_graph {
    const char *path;
    uint64_t opset;
    struct keel_onnx_node *node;
    struct keel_onnx_tensor *tensor;
    struct keel_onnx_port *in, *out;
    uint32_t node_count, tensor_count, in_count, out_count;
};
struct keel_onnx_graph *keel_onnx_file_graph(struct keel_onnx_file *file);

/* Of all bytes, those of files beside it too, in hex. */
enum { KEEL_ONNX_DIGEST_BYTES = 33 };
void keel_onnx_file_digest(const struct keel_onnx_file *file, char out[KEEL_ONNX_DIGEST_BYTES]);

/* Memory that goes with the file; NULL: none is left. */
void *keel_onnx_file_alloc(struct keel_onnx_file *file, uint64_t count, size_t size);

#endif
