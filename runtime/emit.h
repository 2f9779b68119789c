/* emit.h - what the emit rows of the operations work with (pass_emit.c). */
#ifndef KEEL_RUNTIME_EMIT_H
#define KEEL_RUNTIME_EMIT_H

#include "ir.h"
#include "product_check.h"

struct keel_emit {
    const struct keel_graph *graph;
    struct keel_kernels *kernels;
    struct keel_buffer *const *buffer; /* by value: where it lies */
    struct keel_buffer *control;
    struct keel_buffer *workspace;
    float scale;                        /* of the loss */
    bool measure;                       /* only find workspace_bytes, append nothing */
    uint64_t workspace_bytes;           /* the most that a node needs */
    struct keel_launch_list *list;      /* where launches go */
    struct keel_product_checks *checks; /* of the products, or NULL */
    uint32_t node;                      /* number of the one that is emitted */
};

/* Append the launches of one node. */
enum keel_status keel_emit_node(struct keel_emit *emit, const struct keel_ir_node *node);

#endif
