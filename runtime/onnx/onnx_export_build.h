/* onnx_export_build.h - what the two files of the exporter share: names of values, constants and nodes. */
#ifndef KEEL_ONNX_EXPORT_BUILD_H
#define KEEL_ONNX_EXPORT_BUILD_H

#include "ir.h"
#include "onnx_export.h"
#include "onnx_file.h"
#include "onnx_write.h"
#include "ops.h"

struct keel_onnx_name {
    char text[KEEL_VALUE_NAME_BYTES];
};

/* What the file calls a value of the graph. */
struct place {
    struct keel_onnx_name name;
    bool made;
    bool image; /* four dimensions lie as [n, c, h, w]; in the graph they are [n, h, w, c] */
};

struct export
{
    const struct keel_onnx_export *how;
    const struct keel_graph *graph;
    const struct keel_ir_node *node; /* at work */
    struct keel_onnx_writer writer;
    struct place *place; /* by value; owned */
    keel_value input;
    uint32_t fresh, nodes;
};

struct attribute {
    const char *name;
    enum { INTEGER, REAL, TEXT, LIST } kind;
    int64_t integer;
    float real;
    const char *text;
    const int64_t *list;
    uint32_t count;
};
#define NAMES(...)      ((const char *const[]){__VA_ARGS__, NULL})
#define ATTRIBUTES(...) ((const struct attribute[]){__VA_ARGS__, {.name = NULL}})
#define ONE_INTEGER(key, value)                                                                              \
    {                                                                                                        \
        .name = (key), .kind = INTEGER, .integer = (value)                                                   \
    }
#define ONE_REAL(key, value)                                                                                 \
    {                                                                                                        \
        .name = (key), .kind = REAL, .real = (value)                                                         \
    }
#define ONE_TEXT(key, value)                                                                                 \
    {                                                                                                        \
        .name = (key), .kind = TEXT, .text = (value)                                                         \
    }
#define INTEGERS(key, values, number)                                                                        \
    {                                                                                                        \
        .name = (key), .kind = LIST, .list = (values), .count = (number)                                     \
    }

struct keel_onnx_name keel_onnx_name(const char *format, ...) __attribute__((format(printf, 1, 2)));
struct keel_onnx_name keel_onnx_fresh(struct export *export); /* one that nothing has yet */

/* A node; names end with NULL; attributes with one without a name, or are NULL. */
void keel_onnx_node(struct export *export, const char *operation, const char *const *in,
                    const char *const *out, const struct attribute *attributes);
/* Constants: of floats, one float, a list of integers. */
void keel_onnx_floats(struct export *export, const char *name, uint32_t dims, const uint64_t *size,
                      const float *values);
struct keel_onnx_name keel_onnx_number(struct export *export, float value);
struct keel_onnx_name keel_onnx_list(struct export *export, const int64_t *list, uint32_t count);

/* An operand as the graph has it, or with four dimensions as [n, c, h, w] (a weight of a convolution: [out,
 * in, h, w]). UNSUPPORTED: an input that the file has not. */
enum keel_status keel_onnx_plain_name(struct export *export, keel_value value, struct keel_onnx_name *out);
enum keel_status keel_onnx_image_name(struct export *export, keel_value value, struct keel_onnx_name *out);
/* The name of a result that the caller's node makes. */
struct keel_onnx_name keel_onnx_make(struct export *export, keel_value value, bool image);

/* UNSUPPORTED, with the operation's name before `what`. */
enum keel_status keel_onnx_export_refuse(const struct export *export, const char *what);

/* The operators of export->node. (onnx_export_nodes.c) */
enum keel_status keel_onnx_export_node(struct export *export);

#endif
