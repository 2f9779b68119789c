/* onnx_fuzz.c - an .onnx file: refused, or a graph with a loss whose nodes were all judged. Never read beyond
 * its end. */
#include "fuzz.h"
#include "ir.h"
#include "onnx.h"

/* For two samples of the sizes that the file has, where it has any. */
static struct keel_plugin_task make_task(struct keel_graph *graph, const struct keel_onnx_port *in,
                                         enum keel_plugin_data data)
{
    struct keel_plugin_task task = {.batch = 2, .block = 1, .input_count = 2};
    const struct keel_shape images = {4, {2, in->size[2], in->size[3], in->size[1]}},
                            tokens = {2, {2, in->size[1]}};
    const bool is_image = data == KEEL_PLUGIN_IMAGES;
    task.block = is_image ? 1 : (uint32_t)in->size[1];
    task.inputs[0] =
        keel_graph_input(graph, "in", is_image ? KEEL_F32 : KEEL_I32, is_image ? images : tokens);
    task.inputs[1] =
        keel_graph_input(graph, "targets", KEEL_I32, is_image ? (struct keel_shape){1, {2}} : tokens);
    return task;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct keel_onnx_file *file;
    struct keel_graph *graph;
    const struct keel_onnx_port *in;
    enum keel_plugin_data kind;
    char digest[KEEL_ONNX_DIGEST_BYTES];
    if (keel_onnx_file_read("model.onnx", data, bytes, false, &file) != KEEL_OK)
        return 0;
    keel_onnx_file_digest(file, digest);
    KEEL_ASSERT(strlen(digest) == KEEL_ONNX_DIGEST_BYTES - 1);
    const struct keel_onnx_graph *of = keel_onnx_file_graph(file);
    if (keel_onnx_check(of, &kind) == KEEL_OK && keel_onnx_find_input(of, &in) == KEEL_OK &&
        keel_graph_create(&graph) == KEEL_OK) {
        const struct keel_plugin_task task = make_task(graph, in, kind);
        if (keel_graph_status(graph) == KEEL_OK && keel_onnx_build(file, graph, &task) == KEEL_OK)
            KEEL_ASSERT(graph->loss != 0 && keel_graph_status(graph) == KEEL_OK);
        keel_graph_destroy(graph);
    }
    keel_onnx_file_close(file);
    return 0;
}
