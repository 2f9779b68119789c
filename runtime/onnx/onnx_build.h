/* onnx_build.h - between the files that turn nodes into operations of the graph. */
#ifndef KEEL_ONNX_BUILD_H
#define KEEL_ONNX_BUILD_H

#include "onnx.h"

enum value_kind {
    VALUE_NONE,        /* nothing made it yet */
    VALUE_NUMBERS,     /* known now: constants, shapes */
    VALUE_INITIALIZER, /* of the file, and nothing in the graph yet */
    VALUE_GRAPH
};

/* A name of the file, and what it stands for. Its shape is ONNX's; in the graph it lies as those sizes if
 * they are at most four, else without those of 1. */
struct value {
    struct keel_onnx_text name;
    enum value_kind kind;
    uint32_t type; /* of its elements: enum keel_onnx_type */
    uint32_t dims;
    uint64_t size[KEEL_ONNX_DIMS_MAX];
    double *number;                        /* of NUMBERS: in order */
    const struct keel_onnx_tensor *tensor; /* of INITIALIZER */
    keel_value at;                         /* of GRAPH */
    keel_value param;                      /* an initializer that is in the graph already */
    bool turned;                           /* ... as a convolution has it */
    bool nhwc;                             /* lies as [n, h, w, c], and is [n, c, h, w] */
    bool transposed;                       /* of an initializer: read as [size[1], size[0]] transposed */
};

struct build {
    struct keel_onnx_file *file;
    const struct keel_onnx_graph *from;
    struct keel_graph *graph;
    const struct keel_plugin_task *task;
    const struct keel_onnx_node *node; /* that is built */
    struct value *values;
    uint32_t *slots; /* hash of names: number of the value + 1 */
    uint32_t value_count, slot_mask;
    uint64_t numbers; /* made while the graph was read: KEEL_ONNX_FOLDED_MAX at most */
};
enum { KEEL_ONNX_FOLDED_MAX = 1 << 24 };

/* ---- names (onnx_value.c) ---- */

struct value *keel_onnx_find_value(struct build *build, struct keel_onnx_text name);
/* INVALID: "PATH: node NAME (Operator): ..." */
enum keel_status keel_onnx_refuse_node(const struct build *build, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Operand `index` of the node, NULL where it is absent; `need`: refused then. */
enum keel_status keel_onnx_operand(struct build *build, uint32_t index, struct value **out);
bool keel_onnx_has_operand(const struct build *build, uint32_t index);
struct value *keel_onnx_result(struct build *build);

/* ---- values ---- */

uint64_t keel_onnx_count_of_value(const struct value *value);
bool keel_onnx_same_size(const struct value *a, const struct value *b);
/* How a value of that shape lies in the graph. INVALID: five dimensions that are not 1. */
enum keel_status keel_onnx_shape_of_value(const struct build *build, const struct value *value,
                                          struct keel_shape *out);
/* Which dimension of it is `dim` of the value; KEEL_DIMS_MAX: it is dropped. */
uint32_t keel_onnx_place_of_dim(const struct value *value, uint32_t dim);

/* The value as one of the graph, in ONNX's order. Initializers become parameters, numbers constants. */
enum keel_status keel_onnx_plain(struct build *build, struct value *value, keel_value *out);
/* An initializer as a trained parameter with its own shape, as weights must be. `what` for the message. */
enum keel_status keel_onnx_weight(struct build *build, struct value *value, const char *what,
                                  keel_value *out);
/* ... in another order: dimension i is `order[i]` of the file. */
enum keel_status keel_onnx_turned_weight(struct build *build, struct value *value, const uint32_t order[4],
                                         keel_value *out);
/* ... a statistic that follows a mean. */
enum keel_status keel_onnx_statistic(struct build *build, struct value *value, float momentum,
                                     keel_value *out);
/* A tensor of numbers that nothing trains. */
enum keel_status keel_onnx_constant(struct build *build, struct keel_onnx_text name,
                                    const struct value *value, keel_value *out);

/* A tensor of the file as a value: one number, or integers, are known; other floats wait for who reads them.
 */
enum keel_status keel_onnx_take_tensor(struct build *build, struct value *out,
                                       const struct keel_onnx_tensor *tensor);

/* Give the result of the node: a value of the graph of that shape, which lies as it does. */
enum keel_status keel_onnx_give(struct build *build, keel_value at, uint32_t dims, const uint64_t *size,
                                bool nhwc);
/* ... reshaped to how such a value lies. */
enum keel_status keel_onnx_give_reshaped(struct build *build, keel_value at, uint32_t dims,
                                         const uint64_t *size);
/* ... of numbers; the caller fills them in. NULL: no memory, or more than KEEL_ONNX_NUMBERS_MAX. */
double *keel_onnx_give_numbers(struct build *build, uint32_t dims, const uint64_t *size);
/* ... the operand itself. */
void keel_onnx_give_same(struct build *build, const struct value *value);

/* All integers of an operand that must be known. */
enum keel_status keel_onnx_integers(struct build *build, uint32_t index, int64_t *out, uint32_t most,
                                    uint32_t *out_count);
/* Floats of a Constant node, and no initializer of the file: nothing that a model trains. */
bool keel_onnx_is_constant(const struct build *build, const struct value *value);
/* A number that is known and the only one of its operand. */
bool keel_onnx_is_number(const struct value *value, double *out);

/* ---- attributes ---- */

const struct keel_onnx_attribute *keel_onnx_attribute(const struct build *build, const char *name);
int64_t keel_onnx_integer_attribute(const struct build *build, const char *name, int64_t otherwise);
float keel_onnx_real_attribute(const struct build *build, const char *name, float otherwise);
/* A dimension, counted from the end where it is negative, below `dims`. */
enum keel_status keel_onnx_axis_of(const struct build *build, int64_t axis, uint32_t dims, uint32_t *out);
/* ... several as bits, none of them twice. */
enum keel_status keel_onnx_axes_of(const struct build *build, const int64_t *axes, uint32_t count,
                                   uint32_t dims, uint32_t *out);

/* ---- operators ---- */

/* The node against what ONNX says of its operator: operands, results, their types, attributes; and its
 * results get their types. INVALID. (onnx_signature.c) */
enum keel_status keel_onnx_check_node(struct build *build);

struct keel_onnx_operator {
    const char *name;
    enum keel_status (*build)(struct build *build);
};
extern const struct keel_onnx_operator keel_onnx_elements[], keel_onnx_shapes[], keel_onnx_layers[],
    keel_onnx_images[];
/* The same of numbers that are known: true where the node was one, and *status says how it went.
 * (onnx_fold.c) */
bool keel_onnx_fold_node(struct build *build, enum keel_status *status);

#endif
