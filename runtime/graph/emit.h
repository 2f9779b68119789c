/* emit.h - what the emit functions of the operations use: nodes become launches through the public headers of
 * kernels.
 *
 * An emit function fills the kernel's descriptor from the node's shapes, which were checked when the node was
 * added. While `measure` is set it only says how much workspace it needs. */
#ifndef KEEL_RUNTIME_EMIT_H
#define KEEL_RUNTIME_EMIT_H

#include "gemm_checksum.h"
#include "ir.h"

/* Where a value lies: in a buffer that is no slice. */
struct keel_place {
    struct keel_buffer *whole;
    uint64_t offset;
};

/* Slices that launches use beside the values' own; owned by the program. */
struct keel_parts {
    struct keel_buffer **items;
    uint32_t count, capacity;
};

struct keel_emit {
    const struct keel_graph *graph;
    struct keel_kernels *kernels;
    struct keel_buffer *const *buffer; /* by value: where it lies */
    const struct keel_place *place;    /* by value */
    struct keel_parts *parts;
    struct keel_buffer *control;
    struct keel_buffer *workspace;
    struct keel_buffer *loss_scale;     /* multiplies the gradients of losses (keel_cross_entropy), or NULL */
    uint32_t microbatches;              /* of the whole step: the mean is over all of them */
    bool fresh;                         /* operations that can (begins, ops.h) overwrite their accumulators */
    bool measure;                       /* only find workspace_bytes, append nothing */
    uint64_t workspace_bytes;           /* the most that a node needs */
    struct keel_launch_list *list;      /* where launches go */
    struct keel_gemm_checksums *checks; /* of the products, or NULL */
    uint32_t node;                      /* number of the one that is emitted */
};

/* NULL for an absent value. */
static inline struct keel_buffer *buffer_of(const struct keel_emit *emit, keel_value value)
{
    return value == 0 ? NULL : emit->buffer[value];
}

static inline const struct keel_shape *shape_of(const struct keel_emit *emit, keel_value value)
{
    return &emit->graph->values[value].shape;
}

static inline enum keel_dtype type_of(const struct keel_emit *emit, keel_value value)
{
    return emit->graph->values[value].dtype;
}

static inline uint64_t count_of(const struct keel_emit *emit, keel_value value)
{
    return keel_shape_count(shape_of(emit, value));
}

/* The last dimension, and how many rows of it there are. */
static inline uint32_t width_of(const struct keel_emit *emit, keel_value value)
{
    const struct keel_shape *shape = shape_of(emit, value);
    return (uint32_t)shape->size[shape->dims - 1];
}
static inline uint32_t rows_of(const struct keel_emit *emit, keel_value value)
{
    return (uint32_t)(count_of(emit, value) / width_of(emit, value));
}

/* `bytes` of a value from `offset` on, which is a multiple of KEEL_PART_ALIGN, as a buffer of their own; not
 * while measuring. (emit.c) */
enum { KEEL_PART_ALIGN = 4096 };
enum keel_status keel_emit_part(struct keel_emit *emit, keel_value value, uint64_t offset, uint64_t bytes,
                                struct keel_buffer **out);
/* The same of emit->workspace. */
enum keel_status keel_emit_workspace_part(struct keel_emit *emit, uint64_t offset, uint64_t bytes,
                                          struct keel_buffer **out);
/* `bytes` of a buffer from `offset` on, as a buffer that `parts` owns. */
enum keel_status keel_parts_slice(struct keel_parts *parts, struct keel_buffer *whole, uint64_t offset,
                                  uint64_t bytes, struct keel_buffer **out);
void keel_parts_fini(struct keel_parts *parts);

/* Memory for one node's launches, shared by all nodes in order: emit->workspace. */
static inline void need_workspace(struct keel_emit *emit, uint64_t bytes)
{
    if (bytes > emit->workspace_bytes)
        emit->workspace_bytes = bytes;
}

/* 1 / microbatches of the step: what a mean over the step takes of this microbatch's. */
static inline float share_of_step(const struct keel_emit *emit)
{
    return (float)(1.0 / emit->microbatches);
}

/* By what a loss over `rows` rows is multiplied, so that the sum over the step is the weighted mean. */
static inline float scale_of_loss(const struct keel_emit *emit, const struct keel_ir_node *node,
                                  uint64_t rows)
{
    return (float)((double)node->attributes.loss.weight / ((double)rows * emit->microbatches));
}

/* A product: fills in batch, ldc, the workspace and the checksums; or measures. (graph_dense.c) */
enum keel_status keel_emit_product(struct keel_emit *emit, struct keel_gemm *gemm);

#endif
