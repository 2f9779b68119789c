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

static void print_operators(bool as_json)
{
    if (!as_json) {
        for (uint32_t i = 0; keel_onnx_operator(i) != NULL; i++)
            printf("%s\n", keel_onnx_operator(i));
        return;
    }
    struct keel_json json = keel_command_json(stdout);
    keel_json_open(&json, "operators", '[');
    for (uint32_t i = 0; keel_onnx_operator(i) != NULL; i++)
        keel_json_text(&json, NULL, keel_onnx_operator(i));
    keel_json_close(&json, ']');
    keel_command_json_end(&json);
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

/* What is known of a model. */
struct found {
    uint64_t trained, numbers; /* parameters, and their elements */
    uint64_t classes;          /* or tokens of the vocabulary */
};

static struct found look_at(const struct keel_graph *graph)
{
    const struct keel_shape output = keel_graph_shape(graph, graph->output);
    struct found found = {.classes = output.size[output.dims - 1]};
    for (uint32_t i = 0; i < graph->param_count; i++) {
        if (graph->params[i].statistic)
            continue;
        found.trained++;
        found.numbers += keel_shape_count(&graph->values[graph->params[i].value].shape);
    }
    return found;
}

static void print_json(const struct keel_graph *graph, const struct keel_onnx_graph *from,
                       const struct keel_plugin_task *task, enum keel_plugin_data data)
{
    const struct found found = look_at(graph);
    struct keel_json json = keel_command_json(stdout);
    keel_json_text(&json, "file", from->path);
    keel_json_number(&json, "opset", from->opset);
    keel_json_number(&json, "nodes", from->node_count);
    keel_json_number(&json, "parameters", found.trained);
    keel_json_number(&json, "numbers", found.numbers);
    keel_json_text(&json, "data", data == KEEL_PLUGIN_IMAGES ? "images" : "text");
    keel_json_number(&json, data == KEEL_PLUGIN_IMAGES ? "classes" : "vocab", found.classes);
    if (data == KEEL_PLUGIN_TEXT)
        keel_json_number(&json, "block", task->block);
    keel_json_number(&json, "batch", task->batch);
    keel_command_json_end(&json);
}

/* A job file, with what is known of the model in its first lines. */
static void print_job(const struct keel_graph *graph, const struct keel_onnx_graph *from,
                      const struct keel_plugin_task *task, enum keel_plugin_data data)
{
    const struct found found = look_at(graph);
    const uint64_t trained = found.trained, count = found.numbers, classes = found.classes;
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
        printf("block = %u\n", task->block);
    printf("vocab = %" PRIu64
           "\n\n[data]\n# path = what it is trained on (man keel-run)\n\n[train]\nsteps = 100\n"
           "batch = %u\n",
           classes, task->batch);
}

static enum keel_status import(struct keel_onnx_file *file, struct keel_graph *graph, uint64_t batch,
                               bool as_json)
{
    const struct keel_onnx_graph *from = keel_onnx_file_graph(file);
    const struct keel_onnx_port *in = NULL;
    struct keel_plugin_task task = {.batch = 0};
    enum keel_plugin_data data = KEEL_PLUGIN_TEXT;
    KEEL_TRY(keel_onnx_check(from, &data));
    KEEL_TRY(keel_onnx_find_input(from, &in));
    KEEL_TRY(make_task(graph, from, in, data, batch, &task));
    KEEL_TRY(keel_onnx_build(file, graph, &task));
    if (look_at(graph).trained == 0)
        return keel_fail(KEEL_INVALID,
                         "%s: has no parameter to train: those are its initializers of more than one float; "
                         "export it with its weights in it",
                         from->path);
    if (as_json)
        print_json(graph, from, &task, data);
    else
        print_job(graph, from, &task, data);
    return keel_command_printed();
}

static int run(const struct keel_command *command)
{
    const struct own *own = keel_command_own(command);
    struct keel_onnx_file *file = NULL;
    struct keel_graph *graph = NULL;
    if (own->operators && command->operand_count > 0)
        return keel_command_wrong_use(command->set, "--operators lists those of any file: leave out ",
                                      command->operands[0]);
    if (own->operators) {
        print_operators(command->json);
        const enum keel_status printed = keel_command_printed();
        return printed == KEEL_OK ? 0 : keel_command_report(command->set, printed);
    }
    enum keel_status status = command->operand_count == 1
                                  ? keel_onnx_file_open(command->operands[0], &file)
                                  : keel_fail(KEEL_INVALID, "name an .onnx file, or give --operators");
    if (status == KEEL_OK)
        status = keel_graph_create(&graph);
    if (status == KEEL_OK)
        status = import(file, graph, own->batch, command->json);
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
