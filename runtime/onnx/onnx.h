/* onnx.h - a model from an .onnx file, as a graph.
 *
 * What is read: inference or training graphs of the default domain, opset 13 on, of the operators that
 * keel_onnx_operator lists, with static shapes but for the batch. One input: images [n, c, h, w] of floats,
 * whose output is [n, classes], or ids [n, tokens] of integers, whose output is [n, tokens, vocabulary]; the
 * loss is the mean cross-entropy. Initializers of floats are trained parameters with their names and begin
 * with the file's numbers; not those of one element, nor the statistics of batch norms, nor those with
 * numbers beyond 1e30: masks, whose infinities become the largest floats. Weights of convolutions lie as [h,
 * w, in / groups, out], all others as in the file. */
#ifndef KEEL_ONNX_H
#define KEEL_ONNX_H

#include "onnx_file.h"

#include <keel/model_plugin.h>

/* What the model reads, by its input. INVALID, by name: operators that are not covered, with their nodes; a
 * node that reads what none before it makes; inputs and outputs of other kinds. */
enum keel_status keel_onnx_check(const struct keel_onnx_graph *graph, enum keel_plugin_data *out);

/* The input that is no initializer. INVALID: none, several, or no output. */
enum keel_status keel_onnx_find_input(const struct keel_onnx_graph *graph, const struct keel_onnx_port **out);

/* Add the model and its loss to the graph. The file stays open as long as the graph, and what is made from
 * it, is used: first weights lie there. INVALID, by node and operator, what its operands and attributes ask
 * for and is not covered. One thread at a time. */
enum keel_status keel_onnx_build(struct keel_onnx_file *file, struct keel_graph *graph,
                                 const struct keel_plugin_task *task);

/* The operators that are covered; NULL behind the last. */
const char *keel_onnx_operator(uint32_t index);

#endif
