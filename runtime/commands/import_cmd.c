/* import_cmd.c - `keel import-model FILE.onnx`: whether the file's graph can be trained here, and a job file
 * to begin with. The job names the file itself (model.kind = FILE.onnx): nothing is converted, so nothing can
 * be out of date. */
#include "import_cmd.h"
#include "ir.h"
#include "onnx.h"

#include <inttypes.h>
#include <keel/command.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct own {
    uint64_t batch; /* 0: not given */
    bool operators;
};

static void print_operators(void)
{
    for (uint32_t i = 0; keel_onnx_operator(i) != NULL; i++)
        printf("%s\n", keel_onnx_operator(i));
}

/* Inputs as the data will declare them, by the sizes that the file has. */
static enum keel_status make_task(struct keel_graph *graph, const struct keel_onnx_graph *from,
                                  const struct keel_onnx_port *in, enum keel_plugin_data data, uint64_t batch,
                                  struct keel_plugin_task *out)
{
    const uint64_t of_file = in->size[0], count = batch != 0 ? batch : of_file != 0 ? of_file : 1;
    for (uint32_t i = 1; i < in->dims; i++)
        if (in->size[i] == 0)
            return keel_fail(KEEL_INVALID, "%s: size %u of its input is open: only the batch may be",
                             from->path, i);
    if (count > UINT16_MAX + 1)
        return keel_fail(KEEL_INVALID, "--batch %" PRIu64 ": at most 65536", count);
    *out = (struct keel_plugin_task){.batch = (uint32_t)count, .block = 1, .input_count = 2};
    if (data == KEEL_PLUGIN_IMAGES) {
        out->inputs[0] =
            keel_graph_input(graph, "images", KEEL_F32,
                             (struct keel_shape){4, {count, in->size[2], in->size[3], in->size[1]}});
        out->inputs[1] = keel_graph_input(graph, "labels", KEEL_I32, (struct keel_shape){1, {count}});
    } else {
        const struct keel_shape tokens = {2, {count, in->size[1]}};
        out->block = (uint32_t)in->size[1];
        out->inputs[0] = keel_graph_input(graph, "ids", KEEL_I32, tokens);
        out->inputs[1] = keel_graph_input(graph, "targets", KEEL_I32, tokens);
    }
    return keel_graph_status(graph);
}

/* A job file, with what is known of the model in its first lines. */
static void print_job(const struct keel_graph *graph, const struct keel_onnx_graph *from,
                      const struct keel_plugin_task *task, enum keel_plugin_data data)
{
    uint64_t trained = 0, count = 0;
    for (uint32_t i = 0; i < graph->param_count; i++) {
        if (graph->params[i].statistic)
            continue;
        trained++;
        count += keel_shape_count(&graph->values[graph->params[i].value].shape);
    }
    const struct keel_shape output = keel_graph_shape(graph, graph->output);
    const uint64_t classes = output.size[output.dims - 1];
    printf("# %s: opset %" PRIu64 ", %u nodes, %" PRIu64 " parameters of %" PRIu64 " numbers in all.\n",
           from->path, from->opset, from->node_count, trained, count);
    if (data == KEEL_PLUGIN_IMAGES)
        printf("# Images of %" PRIu64 " x %" PRIu64 " with %" PRIu64 " channels, %" PRIu64 " classes.\n",
               graph->values[task->inputs[0]].shape.size[1], graph->values[task->inputs[0]].shape.size[2],
               graph->values[task->inputs[0]].shape.size[3], classes);
    else
        printf("# %u tokens at once, of %" PRIu64 ".\n", task->block, classes);
    printf("[job]\nname = imported\n\n[model]\nkind = %s%s\n", strchr(from->path, '/') == NULL ? "./" : "",
           from->path);
    if (data == KEEL_PLUGIN_TEXT)
        printf("block = %u\nvocab = %" PRIu64 "\n", task->block, classes);
    printf("\n[data]\n# path = what it is trained on (man keel-run)\n\n[train]\nsteps = 100\nbatch = %u\n",
           task->batch);
}

static enum keel_status import(struct keel_onnx_file *file, struct keel_graph *graph, uint64_t batch)
{
    const struct keel_onnx_graph *from = keel_onnx_file_graph(file);
    const struct keel_onnx_port *in = NULL;
    struct keel_plugin_task task = {.batch = 0};
    enum keel_plugin_data data = KEEL_PLUGIN_TEXT;
    KEEL_TRY(keel_onnx_check(from, &data));
    KEEL_TRY(keel_onnx_find_input(from, &in));
    KEEL_TRY(make_task(graph, from, in, data, batch, &task));
    KEEL_TRY(keel_onnx_build(file, graph, &task));
    print_job(graph, from, &task, data);
    return KEEL_OK;
}

static int run(const struct keel_command *command)
{
    const struct own *own = keel_command_own(command);
    struct keel_onnx_file *file = NULL;
    struct keel_graph *graph = NULL;
    if (own->operators) {
        print_operators();
        return 0;
    }
    enum keel_status status = command->operand_count == 1
                                  ? keel_onnx_file_open(command->operands[0], &file)
                                  : keel_fail(KEEL_INVALID, "name an .onnx file, or give --operators");
    if (status == KEEL_OK)
        status = keel_graph_create(&graph);
    if (status == KEEL_OK)
        status = import(file, graph, own->batch);
    keel_graph_destroy(graph);
    keel_onnx_file_close(file);
    return status == KEEL_OK ? 0 : keel_command_report(command->set, status);
}

static const struct keel_command_option options[] = {
    {"--batch", "N", KEEL_COMMAND_POSITIVE, offsetof(struct own, batch),
     "samples of a microbatch, where the file leaves it open; default 1"},
    {"--operators", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, operators),
     "list the operators of ONNX that are covered, and end"},
    {.name = NULL}};

static const struct keel_command_kind import_kind = {
    .name = "import-model",
    .operands = "FILE.onnx",
    .operands_min = 0,
    .operands_max = 1,
    .summary = "look whether a model in an .onnx file can be trained, and write a job for it",
    .details =
        "Builds the file's graph as keel run does, and names the node and the operator that is not covered.\n"
        "Else the standard output has a job file to begin with: model.kind = FILE.onnx, whose digest is a "
        "part of\n"
        "the run's identity, and whose weights are the first ones. Nothing is converted.\n",
    .examples = "  keel import-model resnet18.onnx > resnet18.conf\n"
                "  keel run resnet18.conf --set data.path=build/data/fashion\n"
                "  keel import-model --operators\n",
    .options = options,
    .run = run};
static const struct keel_command_kind *const kinds[] = {&import_kind};
static const struct keel_command_set set = {.name = "keel", .kinds = kinds, .kind_count = 1};

int keel_import_main(int argc, char **argv)
{
    return keel_command_main(&set, argc + 1,
                             argv - 1); /* main's own words, of which ours begins with the name */
}
