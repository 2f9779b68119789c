/* onnx_export.h - a model's forward graph with its weights as an .onnx file, by the operators that onnx.h
 * reads (opset 23, whose Attention is one operator).
 *
 * The file's input is the first of the graph, images as [batch, channels, height, width] or ids [batch,
 * tokens] of int64; its output are the logits; the batch is open. Dropout and losses are left out, and norms
 * go by their statistics. Initializers have the names of the parameters, convolutions as [out, in, height,
 * width]. */
#ifndef KEEL_ONNX_EXPORT_H
#define KEEL_ONNX_EXPORT_H

#include <keel/graph.h>

/* Samples that `graph` is built of: a dimension in front that is as large is the batch, and open. */
enum { KEEL_ONNX_EXPORT_BATCH = 2 };

struct keel_onnx_export {
    const struct keel_graph *graph; /* as the model builds it, with its output; borrowed */
    const char *name;               /* of the graph in the file */
    /* All floats of the parameter of that name, as the graph has it. */
    enum keel_status (*read)(void *context, const char *name, float *out);
    void *context;
};
/* The bytes of the file, which the caller frees (keel_free). UNSUPPORTED names an operation that has no
 * operator, or a second input; LIMIT: above 2 GiB. NO_MEMORY, and what `read` returns. Any thread. */
enum keel_status keel_onnx_export(const struct keel_onnx_export *how, uint8_t **out, uint64_t *out_bytes,
                                  uint32_t *out_nodes);

#endif
