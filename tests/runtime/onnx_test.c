/* onnx_test.c - models from .onnx files: the logits of those that tests/golden/onnx has, which PyTorch
 * computed; first weights are the file's; what is malformed, cut, cyclic or not covered is refused by node
 * and operator.
 *
 * KEEL_ONNX_FILE, _INPUT and _LOGITS compare another model: the file, its input and its output as PyTorch
 * wrote them (tests/golden/onnx/export.py), images as [n, c, h, w]. */
#include "harness.h"

#include "onnx.h"

#include <keel/clock.h>
#include <keel/engine.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LIMIT_NS (600 * KEEL_NS_PER_S)

struct sample {
    char *input, *logits;
    size_t input_bytes, logits_bytes;
};

static struct sample read_sample(const char *input, const char *logits)
{
    struct sample sample;
    ck_ok(keel_file_read(input, UINT64_C(1) << 32, &sample.input, &sample.input_bytes));
    ck_ok(keel_file_read(logits, UINT64_C(1) << 32, &sample.logits, &sample.logits_bytes));
    return sample;
}

/* Images of the file as the data bring them. */
static void to_nhwc(const float *x, const struct keel_shape *lies, float *out)
{
    const uint64_t n = lies->size[0], h = lies->size[1], w = lies->size[2], c = lies->size[3];
    for (uint64_t i = 0; i < n * h * w * c; i++) {
        const uint64_t channel = i % c, column = i / c % w, row = i / c / w % h, image = i / c / w / h;
        out[i] = x[((image * c + channel) * h + row) * w + column];
    }
}

/* The inputs as data declare them, from what the file says of its own. */
static struct keel_plugin_task make_task(struct keel_graph *graph, const struct keel_onnx_graph *of,
                                         enum keel_plugin_data data, uint32_t batch)
{
    const uint64_t *size = of->in[0].size;
    struct keel_plugin_task task = {.batch = batch, .block = 1, .input_count = 2};
    if (data == KEEL_PLUGIN_IMAGES) {
        task.inputs[0] = keel_graph_input(graph, "images", KEEL_F32,
                                          (struct keel_shape){4, {batch, size[2], size[3], size[1]}});
        task.inputs[1] = keel_graph_input(graph, "labels", KEEL_I32, (struct keel_shape){1, {batch}});
    } else {
        task.block = (uint32_t)size[1];
        task.inputs[0] = keel_graph_input(graph, "ids", KEEL_I32, (struct keel_shape){2, {batch, size[1]}});
        task.inputs[1] =
            keel_graph_input(graph, "targets", KEEL_I32, (struct keel_shape){2, {batch, size[1]}});
    }
    return task;
}

/* What the engine makes of the sample, against what is wanted: the largest difference over the largest logit.
 */
static double difference(const char *path, const char *device_name, const struct sample *sample)
{
    struct keel_onnx_file *file;
    struct keel_graph *graph;
    struct keel_device *device;
    struct keel_kernels *kernels;
    struct keel_engine *engine;
    enum keel_plugin_data data;
    ck_ok(keel_onnx_file_open(path, &file));
    const struct keel_onnx_graph *of = keel_onnx_file_graph(file);
    ck_ok(keel_onnx_check(of, &data));
    ck_ok(keel_graph_create(&graph));
    const struct keel_plugin_task task = make_task(graph, of, data, (uint32_t)of->in[0].size[0]);
    ck_ok(keel_onnx_build(file, graph, &task));
    ck_ok(keel_device_open(device_name, NULL, &device));
    ck_ok(keel_kernels_create(device, &kernels));
    const struct keel_engine_config config = {
        .device = device, .kernels = kernels, .graph = graph, .training = false};
    ck_ok(keel_engine_create(&config, &engine));
    ck_ok(keel_engine_initialize(engine, 1));

    const struct keel_shape in = keel_graph_shape(graph, task.inputs[0]),
                            targets = keel_graph_shape(graph, task.inputs[1]);
    uint64_t count = 1, target_count = 1;
    for (uint32_t i = 0; i < in.dims; i++)
        count *= in.size[i];
    for (uint32_t i = 0; i < targets.dims; i++)
        target_count *= targets.size[i];
    float *input = calloc(count, sizeof *input);
    int32_t *zeros = calloc(target_count, sizeof *zeros);
    ck_assert(input != NULL && zeros != NULL);
    if (data == KEEL_PLUGIN_IMAGES) {
        ck_assert_uint_eq(sample->input_bytes, count * sizeof(float));
        to_nhwc((const float *)(void *)sample->input, &in, input);
    } else {
        ck_assert_uint_eq(sample->input_bytes, count * sizeof(int64_t));
        for (uint64_t i = 0; i < count; i++) {
            int64_t id;
            memcpy(&id, sample->input + i * sizeof id, sizeof id);
            ((int32_t *)(void *)input)[i] = (int32_t)id;
        }
    }
    const void *inputs[] = {input, zeros};
    const struct keel_engine_batch batch = {.inputs = inputs, .seed = 1, .step = 1};
    const uint64_t logit_count = sample->logits_bytes / sizeof(float);
    const struct keel_shape out = keel_engine_output_shape(engine);
    float *logits = calloc(logit_count, sizeof *logits);
    ck_assert_ptr_nonnull(logits);
    ck_assert_uint_eq(logit_count % out.size[out.dims - 1], 0);
    ck_ok(keel_engine_output(engine, &batch, 0, (uint32_t)(logit_count / out.size[out.dims - 1]),
                             keel_deadline_after_ns(LIMIT_NS), logits));
    double largest = 0.0, worst = 0.0;
    for (uint64_t i = 0; i < logit_count; i++) {
        float wanted;
        memcpy(&wanted, sample->logits + i * sizeof wanted, sizeof wanted);
        largest = fmax(largest, fabs((double)wanted));
        worst = fmax(worst, fabs((double)wanted - (double)logits[i]));
    }
    free(logits);
    free(input);
    free(zeros);
    keel_engine_destroy(engine);
    keel_graph_destroy(graph);
    keel_kernels_destroy(kernels);
    keel_device_close(device);
    keel_onnx_file_close(file);
    return worst / largest;
}

static const char *const models[] = {"text", "images", "larger"}, *const devices[] = {"host", "pocl"};
enum { MODELS = 3, DEVICES = 2 };

static void path_of(const char *name, const char *ending, char out[128])
{
    snprintf(out, 128, "tests/golden/onnx/%s.%s", name, ending);
}

START_TEST(models_have_the_logits_that_pytorch_computed)
{
    char path[128], input[128], logits[128];
    const char *name = models[_i / DEVICES];
    path_of(name, "onnx", path);
    path_of(name, "input", input);
    path_of(name, "logits", logits);
    struct sample sample = read_sample(input, logits);
    const double worst = difference(path, devices[_i % DEVICES], &sample);
    printf("note: %s on %s: logits differ by %.2g of the largest\n", name, devices[_i % DEVICES], worst);
    ck_assert_double_le(worst, 1e-5);
    keel_free(sample.input);
    keel_free(sample.logits);
}
END_TEST

START_TEST(another_model_has_its_logits)
{
    const char *path = getenv("KEEL_ONNX_FILE"), *input = getenv("KEEL_ONNX_INPUT"),
               *logits = getenv("KEEL_ONNX_LOGITS");
    if (path == NULL || input == NULL || logits == NULL)
        return;
    struct sample sample = read_sample(input, logits);
    const double worst = difference(path, "host", &sample);
    printf("note: %s: logits differ by %.2g of the largest\n", path, worst);
    ck_assert_double_le(worst, 1e-5);
    keel_free(sample.input);
    keel_free(sample.logits);
}
END_TEST

/* ---- what is refused ---- */

/* Read, judged and built from bytes, for two samples. */
static enum keel_status read_model(const void *bytes, size_t count)
{
    struct keel_onnx_file *file = NULL;
    struct keel_graph *graph = NULL;
    enum keel_plugin_data data;
    enum keel_status status = keel_onnx_file_read("m.onnx", bytes, count, false, &file);
    if (status != KEEL_OK)
        return status;
    status = keel_onnx_check(keel_onnx_file_graph(file), &data);
    if (status == KEEL_OK) {
        ck_ok(keel_graph_create(&graph));
        const struct keel_plugin_task task = make_task(graph, keel_onnx_file_graph(file), data, 2);
        status = keel_graph_status(graph);
        if (status == KEEL_OK)
            status = keel_onnx_build(file, graph, &task);
        keel_graph_destroy(graph);
    }
    keel_onnx_file_close(file);
    return status;
}

static void refused(const void *bytes, size_t count, const char *why)
{
    const enum keel_status status = read_model(bytes, count);
    ck_assert_msg(status == KEEL_INVALID || status == KEEL_LIMIT || status == KEEL_CORRUPT, "%s: %s", why,
                  keel_status_name(status));
    ck_assert_msg(strstr(keel_detail(), why) != NULL, "\"%s\" lacks \"%s\"", keel_detail(), why);
    ck_assert_msg(strncmp(keel_detail(), "m.onnx: ", 8) == 0, "%s", keel_detail());
}

START_TEST(a_model_that_is_cut_anywhere_is_refused)
{
    char path[128], *bytes;
    size_t count;
    path_of("images", "onnx", path);
    ck_ok(keel_file_read(path, 1 << 20, &bytes, &count));
    ck_ok(read_model(bytes, count));
    for (size_t cut = 0; cut < count; cut += 1 + cut / 64) {
        char *part = malloc(cut + 1); /* of its own size, so that who reads beyond it is seen */
        ck_assert_ptr_nonnull(part);
        memcpy(part, bytes, cut);
        const enum keel_status status = read_model(part, cut);
        ck_assert(status == KEEL_CORRUPT ||
                  status == KEEL_INVALID); /* the latter: of what is there a part is missing */
        free(part);
    }
    keel_free(bytes);
}
END_TEST

/* Bytes changed at random: read or refused, and nothing else. */
START_TEST(changed_bytes_do_no_harm)
{
    const struct keel_control control = {.seed_lo = 99};
    char path[128], *bytes;
    size_t count;
    uint32_t taken = 0;
    path_of(models[_i], "onnx", path);
    ck_ok(keel_file_read(path, 1 << 20, &bytes, &count));
    for (uint32_t t = 0; t < 3000; t++) {
        const size_t at = keel_random_u32(&control, 1, t) % (count < 5000 ? count : 5000);
        const char was = bytes[at];
        bytes[at] = (char)keel_random_u32(&control, 2, t);
        taken += read_model(bytes, count) == KEEL_OK;
        bytes[at] = was;
    }
    printf("note: %u of 3000 were taken\n", taken);
    keel_free(bytes);
}
END_TEST

/* A message being written: fields of bytes and of integers. */
struct message {
    uint8_t at[4096];
    size_t count;
};

static void put_varint(struct message *m, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        m->at[m->count++] = (uint8_t)(value | 0x80);
    m->at[m->count++] = (uint8_t)value;
    ck_assert_uint_lt(m->count, sizeof m->at - 16);
}

static void put_integer(struct message *m, uint32_t number, uint64_t value)
{
    put_varint(m, (uint64_t)number << 3);
    put_varint(m, value);
}

static void put_bytes(struct message *m, uint32_t number, const void *bytes, size_t count)
{
    put_varint(m, (uint64_t)number << 3 | 2);
    put_varint(m, count);
    ck_assert_uint_lt(m->count + count, sizeof m->at);
    memcpy(m->at + m->count, bytes, count);
    m->count += count;
}

static void put_text(struct message *m, uint32_t number, const char *text)
{
    put_bytes(m, number, text, strlen(text));
}

static void put_message(struct message *m, uint32_t number, const struct message *part)
{
    put_bytes(m, number, part->at, part->count);
}

/* operands and results: names by spaces, of which two in a row leave one out; attributes: integers */
struct attribute {
    const char *name; /* NULL: behind the last */
    uint64_t value;
};
static void put_node_of(struct message *graph, const char *name, const char *operation, const char *in,
                        const char *out, const struct attribute *attributes)
{
    struct message node = {.count = 0};
    const char *const lists[] = {in, out};
    for (uint32_t l = 0; l < 2; l++)
        for (const char *at = lists[l]; *at != '\0';) {
            const size_t length = strcspn(at, " ");
            put_bytes(&node, l + 1, at, length);
            at += length + (at[length] == ' ');
        }
    put_text(&node, 3, name);
    put_text(&node, 4, operation);
    for (; attributes != NULL && attributes->name != NULL; attributes++) {
        struct message part = {.count = 0};
        put_text(&part, 1, attributes->name);
        put_integer(&part, 3, attributes->value);
        put_integer(&part, 20, 2);
        put_message(&node, 5, &part);
    }
    put_message(graph, 1, &node);
}
static void put_node_with(struct message *graph, const char *name, const char *operation, const char *in,
                          const char *out, const char *attribute, uint64_t value)
{
    put_node_of(graph, name, operation, in, out, (const struct attribute[]){{attribute, value}, {NULL, 0}});
}

static void put_node(struct message *graph, const char *name, const char *operation, const char *in,
                     const char *out)
{
    put_node_with(graph, name, operation, in, out, NULL, 0);
}

static void put_port(struct message *graph, uint32_t number, const char *name, uint32_t type, uint32_t dims,
                     const uint64_t *size)
{
    struct message port = {.count = 0}, kind = {.count = 0}, tensor = {.count = 0}, shape = {.count = 0};
    for (uint32_t i = 0; i < dims; i++) {
        struct message dim = {.count = 0};
        put_integer(&dim, 1, size[i]);
        put_message(&shape, 1, &dim);
    }
    put_integer(&tensor, 1, type);
    put_message(&tensor, 2, &shape);
    put_message(&kind, 1, &tensor);
    put_text(&port, 1, name);
    put_message(&port, 2, &kind);
    put_message(graph, number, &port);
}

/* `external`: the name of a file with its numbers, or NULL */
static void put_tensor(struct message *graph, const char *name, uint32_t type, uint32_t dims,
                       const uint64_t *size, const void *raw, size_t bytes, const char *external)
{
    struct message tensor = {.count = 0}, entry = {.count = 0};
    for (uint32_t i = 0; i < dims; i++)
        put_integer(&tensor, 1, size[i]);
    put_integer(&tensor, 2, type);
    put_text(&tensor, 8, name);
    if (raw != NULL)
        put_bytes(&tensor, 9, raw, bytes);
    if (external != NULL) {
        put_text(&entry, 1, "location");
        put_text(&entry, 2, external);
        put_message(&tensor, 13, &entry);
    }
    put_message(graph, 5, &tensor);
}

static const uint64_t ids_shape[] = {2, 3}, table_shape[] = {5, 4};
static const float table[20] = {1, 2, 3};

/* ids to logits by these nodes; `opset` 0: none is said */
static void whole_model(const struct message *nodes, uint64_t opset, struct message *out)
{
    struct message graph = *nodes, set = {.count = 0};
    put_port(&graph, 11, "ids", KEEL_ONNX_INT64, 2, ids_shape);
    put_port(&graph, 12, "logits", KEEL_ONNX_FLOAT, 0, NULL);
    out->count = 0;
    put_message(out, 7, &graph);
    put_integer(&set, 2, opset);
    if (opset != 0)
        put_message(out, 8, &set);
}

static void refuse_nodes(const struct message *nodes, const char *why)
{
    struct message model;
    whole_model(nodes, 24, &model);
    refused(model.at, model.count, why);
}

START_TEST(what_is_not_covered_is_refused_by_node_and_operator)
{
    static const struct {
        const char *name, *operation, *in, *why;
    } last[] = {
        {"turn", "GridSample", "x", "node turn (GridSample): this operator of ONNX is not covered"},
        {"last", "Softmax", "", "node last (Softmax): operand 0 is missing"},
        {"last", "Conv", "x table", "node last (Conv): 3 dimensions; images [n, c, h, w] are covered"},
        {"last", "ConvTranspose", "x table", "node last (ConvTranspose): 3 dimensions; images [n, c, h, w]"},
        {"last", "Resize", "x", "node last (Resize): 3 dimensions; images [n, c, h, w] are covered"},
        {"last", "GroupNormalization", "x table table",
         "node last (GroupNormalization): its attribute num_groups is missing"},
        {"last", "InstanceNormalization", "x table table",
         "node last (InstanceNormalization): a scale of 20 numbers; one for each of 3 channels is covered"},
        {"last", "MatMul", "x x", "node last (MatMul): a product of 3 by 3 dimensions"},
        {"last", "Attention", "x x x", "node last (Attention): q_num_heads = 0"},
        {"last", "Reshape", "x ids", "operand 1 must be known when the graph is read"},
        {"last", "Relu", "table", "its output has 2 dimensions, scores of classes for the data have 3"},
    };
    struct message model, nodes, good = {.count = 0};
    put_tensor(&good, "table", KEEL_ONNX_FLOAT, 2, table_shape, table, sizeof table, NULL);
    put_node(&good, "rows", "Gather", "table ids", "x");
    nodes = good;
    put_node(&nodes, "last", "Identity", "x", "logits");
    whole_model(&nodes, 17, &model);
    ck_ok(read_model(model.at, model.count));
    whole_model(&nodes, 0, &model);
    refused(model.at, model.count, "is of opset 0, from 13 on");
    refused("", 0, "is no ONNX model, or cut off");
    refuse_nodes(&good, "no node makes its output logits");
    for (size_t i = 0; i < sizeof last / sizeof last[0]; i++) {
        nodes = good;
        put_node(&nodes, last[i].name, last[i].operation, last[i].in, "logits");
        refuse_nodes(&nodes, last[i].why);
    }
    nodes = good; /* operand 6 of opset 24 says how many keys there are */
    put_node_of(&nodes, "last", "Attention", "x x x    ids", "logits",
                (const struct attribute[]){{"q_num_heads", 2}, {NULL, 0}});
    refuse_nodes(&nodes, "node last (Attention): a mask or a cache");
    nodes = good; /* a and b are made of one another */
    put_node(&nodes, "first", "Add", "x b", "a");
    put_node(&nodes, "second", "Relu", "a", "b");
    put_node(&nodes, "last", "Identity", "b", "logits");
    refuse_nodes(&nodes, "node first (Add): operand b is made by no node before it: the graph is cyclic");
    nodes = good;
    put_node(&nodes, "again", "Relu", "x", "x");
    refuse_nodes(&nodes, "node again (Relu): its result x is made already");
}
END_TEST

/* What a message makes of a sample, within `most` of the largest logit. */
static void has_logits(const struct message *model, const void *input, size_t input_bytes,
                       const float *logits, size_t count, double most)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/keel-onnx-%d.onnx", (int)getpid());
    ck_ok(keel_file_replace(path, model->at, model->count, 0600));
    const struct sample sample = {(char *)(uintptr_t)input, (char *)(uintptr_t)logits, input_bytes,
                                  count * sizeof *logits};
    const double worst = difference(path, "host", &sample);
    unlink(path);
    ck_assert_double_le(worst, most);
}

/* ---- attention as one node ---- */

/* Rows of the table attend to one another, as queries, keys and values alike; with `shared` both heads have
 * the keys and values of the first. */
static void attend_true(const int64_t *ids, const float *rows, bool causal, bool shared, float *out)
{
    for (int i = 0; i < 6; i++)
        for (int h = 0; h < 2; h++) {
            const long kv = shared ? 0 : h * 2L;
            const float *q = rows + ids[i] * 4 + h * 2L;
            double p[3], sum = 0.0;
            for (int j = 0; j < 3; j++) {
                const float *k = rows + ids[i / 3 * 3 + j] * 4 + kv;
                p[j] = causal && j > i % 3
                           ? 0.0
                           : exp(((double)q[0] * (double)k[0] + (double)q[1] * (double)k[1]) / sqrt(2));
                sum += p[j];
            }
            for (int d = 0; d < 2; d++) {
                double o = 0.0;
                for (int j = 0; j < 3; j++)
                    o += p[j] / sum * (double)rows[ids[i / 3 * 3 + j] * 4 + kv + d];
                out[i * 4 + h * 2 + d] = (float)o;
            }
        }
}

START_TEST(attention_as_one_node_has_its_logits)
{
    static const int64_t ids[6] = {0, 3, 1, 4, 4, 2};
    const bool causal = _i % 2 == 1, shared = _i > 1;
    const struct attribute attributes[] = {
        {"q_num_heads", 2}, {"kv_num_heads", shared ? 1 : 2}, {"is_causal", causal}, {NULL, 0}};
    static const uint64_t half_shape[] = {4, 2};
    static const float halves[] = {1, 0, 0, 1, 0, 0, 0, 0};
    float rows[20], logits[24];
    for (int i = 0; i < 20; i++)
        rows[i] = (float)(i * 7 % 11 - 5) / 4;
    struct message model, nodes = {.count = 0};
    put_tensor(&nodes, "table", KEEL_ONNX_FLOAT, 2, table_shape, rows, sizeof rows, NULL);
    put_node(&nodes, "rows", "Gather", "table ids", "x");
    put_tensor(&nodes, "half", KEEL_ONNX_FLOAT, 2, half_shape, halves, sizeof halves, NULL);
    put_node(&nodes, "first", "MatMul", "x half", "y");
    put_node_of(&nodes, "last", "Attention", shared ? "x y y" : "x x x", "logits", attributes);
    whole_model(&nodes, 23, &model);
    attend_true(ids, rows, causal, shared, logits);
    has_logits(&model, ids, sizeof ids, logits, 24, 1e-6);
}
END_TEST

/* Three tokens as channels of four: in one group, and each alone. */
START_TEST(group_normalization_has_its_logits)
{
    static const int64_t ids[6] = {0, 3, 1, 4, 4, 2};
    static const float scale[3] = {0.5F, -2.0F, 1.25F}, bias[3] = {0.25F, 0.0F, -1.0F};
    static const uint64_t three = 3;
    const int groups = _i == 0 ? 1 : 3, n = 12 / groups;
    float rows[20], x[24], logits[24];
    for (int i = 0; i < 20; i++)
        rows[i] = (float)(i * 7 % 11 - 5) / 4;
    for (int i = 0; i < 24; i++)
        x[i] = rows[ids[i / 4] * 4 + i % 4];
    for (int i = 0; i < 24; i++) {
        const float *first = x + i / n * n;
        double mean = 0, square = 0;
        for (int k = 0; k < n; k++)
            mean += (double)first[k] / n;
        for (int k = 0; k < n; k++)
            square += pow((double)first[k] - mean, 2) / n;
        logits[i] = (float)(((double)x[i] - mean) / sqrt(square + 1e-5) * (double)scale[i / 4 % 3] +
                            (double)bias[i / 4 % 3]);
    }
    struct message model, nodes = {.count = 0};
    put_tensor(&nodes, "table", KEEL_ONNX_FLOAT, 2, table_shape, rows, sizeof rows, NULL);
    put_tensor(&nodes, "scale", KEEL_ONNX_FLOAT, 1, &three, scale, sizeof scale, NULL);
    put_tensor(&nodes, "bias", KEEL_ONNX_FLOAT, 1, &three, bias, sizeof bias, NULL);
    put_node(&nodes, "rows", "Gather", "table ids", "x");
    put_node_with(&nodes, "last", "GroupNormalization", "x scale bias", "logits", "num_groups",
                  (uint64_t)groups);
    whole_model(&nodes, 21, &model);
    has_logits(&model, ids, sizeof ids, logits, 24, 1e-6);
}
END_TEST

static void put_integers(struct message *graph, const char *name, uint64_t count, const int64_t *values)
{
    put_tensor(graph, name, KEEL_ONNX_INT64, 1, &count, values, count * sizeof *values, NULL);
}

/* ---- what is known when the graph is read ---- */

static const int64_t some_ids[6] = {0, 3, 1, 4, 4, 2};

/* A table whose rows the ids name. */
static void put_rows(struct message *nodes, float rows[20])
{
    for (int i = 0; i < 20; i++)
        rows[i] = (float)(i * 7 % 11 - 5) / 4;
    put_tensor(nodes, "table", KEEL_ONNX_FLOAT, 2, table_shape, rows, 20 * sizeof *rows, NULL);
    put_node(nodes, "rows", "Gather", "table ids", "x");
}

/* Numbers of a Constant node that lie transposed are read so, when they are multiplied beforehand. */
START_TEST(a_constant_that_is_transposed_has_its_numbers)
{
    static const uint64_t shape[] = {2, 4}, one = 1;
    static const float numbers[] = {1, 2, 3, 4, 5, 6, 7, 8}, half = 0.5F;
    float rows[20], logits[12];
    struct message model, nodes = {.count = 0}, value = {.count = 0}, node = {.count = 0};
    put_rows(&nodes, rows);
    put_tensor(&nodes, "half", KEEL_ONNX_FLOAT, 1, &one, &half, sizeof half, NULL);
    put_text(&value, 1, "value");
    put_tensor(&value, "", KEEL_ONNX_FLOAT, 2, shape, numbers, sizeof numbers, NULL); /* t is field 5, too */
    put_integer(&value, 20, 4);
    put_text(&node, 2, "numbers");
    put_text(&node, 4, "Constant");
    put_message(&node, 5, &value);
    put_message(&nodes, 1, &node);
    put_node(&nodes, "turn", "Transpose", "numbers", "turned");
    put_node(&nodes, "scale", "Mul", "turned half", "scaled");
    put_node(&nodes, "last", "MatMul", "x scaled", "logits");
    whole_model(&nodes, 17, &model);
    for (int i = 0; i < 12; i++) {
        logits[i] = 0.0F;
        for (int k = 0; k < 4; k++)
            logits[i] += rows[some_ids[i / 2] * 4 + k] * half * numbers[i % 2 * 4 + k];
    }
    has_logits(&model, some_ids, sizeof some_ids, logits, 12, 1e-6);
}
END_TEST

/* Integers that a comparison of floats chose are divided as integers: 5 / 2 * 2 - 1 columns are 3. */
START_TEST(what_a_comparison_chose_is_divided_as_what_it_is)
{
    static const int64_t one = 1, two = 2, five = 5, zero = 0;
    static const uint64_t once = 1;
    static const float low = 0.5F, high = 1.5F;
    float rows[20], logits[18];
    struct message model, nodes = {.count = 0};
    put_rows(&nodes, rows);
    put_tensor(&nodes, "low", KEEL_ONNX_FLOAT, 1, &once, &low, sizeof low, NULL);
    put_tensor(&nodes, "high", KEEL_ONNX_FLOAT, 1, &once, &high, sizeof high, NULL);
    put_integers(&nodes, "one", 1, &one);
    put_integers(&nodes, "two", 1, &two);
    put_integers(&nodes, "five", 1, &five);
    put_integers(&nodes, "zero", 1, &zero);
    put_node(&nodes, "a", "Less", "low high", "less");
    put_node(&nodes, "b", "Where", "less five zero", "chosen");
    put_node(&nodes, "c", "Div", "chosen two", "half");
    put_node(&nodes, "d", "Mul", "half two", "whole");
    put_node(&nodes, "e", "Sub", "whole one", "end");
    put_node(&nodes, "last", "Slice", "x zero end two", "logits");
    whole_model(&nodes, 17, &model);
    for (int i = 0; i < 18; i++)
        logits[i] = rows[some_ids[i / 3] * 4 + i % 3];
    has_logits(&model, some_ids, sizeof some_ids, logits, 18, 1e-6);
}
END_TEST

/* A shape of no dimensions, as exporters write what becomes one number. */
START_TEST(a_list_without_integers_is_a_shape)
{
    float rows[20], logits[24], mean = 0.0F;
    struct message model, nodes = {.count = 0};
    put_rows(&nodes, rows);
    put_integers(&nodes, "none", 0, NULL);
    put_node(&nodes, "mean", "ReduceMean", "x", "mean");
    put_node(&nodes, "one", "Reshape", "mean none", "number");
    put_node(&nodes, "last", "Add", "x number", "logits");
    whole_model(&nodes, 17, &model);
    for (int i = 0; i < 24; i++)
        mean += rows[some_ids[i / 4] * 4 + i % 4] / 24;
    for (int i = 0; i < 24; i++)
        logits[i] = rows[some_ids[i / 4] * 4 + i % 4] + mean;
    has_logits(&model, some_ids, sizeof some_ids, logits, 24, 1e-6);
    put_node_with(&nodes, "pick", "Gather", "x none", "more", "axis", 1);
    refuse_nodes(&nodes, "node pick (Gather): known indices must be one");
}
END_TEST

/* Images that a model makes floats of, as they are; and "ai.onnx" is the domain of operators, as "" is. */
START_TEST(images_may_be_cast_to_floats_and_the_domain_be_named)
{
    static const uint64_t image[] = {2, 1, 2, 2}, classes[] = {2, 4};
    static const float pixels[8] = {1, -2, 3, 0, 5, 4, -1, 2};
    struct message model = {.count = 0}, graph = {.count = 0}, set = {.count = 0};
    put_node_with(&graph, "float", "Cast", "images", "x", "to", KEEL_ONNX_FLOAT);
    put_node(&graph, "last", "Flatten", "x", "logits");
    put_port(&graph, 11, "images", KEEL_ONNX_FLOAT, 4, image);
    put_port(&graph, 12, "logits", KEEL_ONNX_FLOAT, 2, classes);
    put_tensor(&graph, "unused", KEEL_ONNX_FLOAT, 2, classes, pixels, sizeof pixels, NULL);
    put_message(&model, 7, &graph);
    put_text(&set, 1, "ai.onnx");
    put_integer(&set, 2, 17);
    put_message(&model, 8, &set);
    ck_ok(read_model(model.at, model.count));
}
END_TEST

START_TEST(a_stride_of_nothing_is_refused)
{
    struct message nodes = {.count = 0}, strides = {.count = 0}, kernel = {.count = 0}, node = {.count = 0};
    float rows[20];
    put_rows(&nodes, rows);
    put_text(&strides, 1, "strides");
    put_integer(&strides, 8, 0);
    put_integer(&strides, 8, 1);
    put_integer(&strides, 20, 7);
    put_text(&kernel, 1, "kernel_shape");
    put_integer(&kernel, 8, 1);
    put_integer(&kernel, 8, 1);
    put_integer(&kernel, 20, 7);
    put_text(&node, 1, "x");
    put_text(&node, 2, "logits");
    put_text(&node, 3, "pool");
    put_text(&node, 4, "MaxPool");
    put_message(&node, 5, &strides);
    put_message(&node, 5, &kernel);
    put_message(&nodes, 1, &node);
    refuse_nodes(&nodes, "node pool (MaxPool): strides of 0, from 1 on they are covered");
}
END_TEST

/* Of operands that are known when the graph is read: sizes whose product wraps around 64 bits, what is no
 * number, steps behind axes that are left out, types that are not read, operands that lack. */
START_TEST(numbers_that_are_known_are_refused_where_they_would_be_others)
{
    static const int64_t huge[] = {65536, 65536, 65536, 65536}, counted[] = {0, 1, 2, 3}, from = 0, to = 4,
                         two = 2, ones[] = {2, 3, 2, 2, 1};
    static const uint64_t one = 1;
    static const float nothing = NAN, half = 0.5F;
    static const struct {
        const char *operation, *in, *attribute;
        uint64_t value;
        const char *why;
    } rows[] = {
        {"ConstantOfShape", "huge", NULL, 0, "node last (ConstantOfShape): is not covered for operands"},
        {"Reshape", "x cast", NULL, 0, "node last (Reshape): operand 1 holds what is no number"},
        {"Slice", "counted from to  two", NULL, 0, "node last (Slice): is not covered for operands"},
        {"Cast", "half", "to", 11, "node last (Cast): is not covered for operands"},
        {"Sub", " half", NULL, 0, "node last (Sub): operand 0 is missing"},
        {"Add", "half", NULL, 0, "node last (Add): operand 1 is missing"},
        {"Reshape", "x counted", "allowzero", 1, "node last (Reshape): allowzero"},
        {"Mod", "half half", "fmod", 1, "node last (Mod): is not covered for operands"},
        {"Softmax", "five", NULL, 0, "node last (Softmax): rows of 1 in more than four dimensions"},
        {"ReduceSum", "x", "noop_with_empty_axes", 1, "node last (ReduceSum): noop_with_empty_axes"},
    };
    struct message nodes, good = {.count = 0};
    put_tensor(&good, "table", KEEL_ONNX_FLOAT, 2, table_shape, table, sizeof table, NULL);
    put_integers(&good, "huge", 4, huge);
    put_integers(&good, "counted", 4, counted);
    put_integers(&good, "from", 1, &from);
    put_integers(&good, "to", 1, &to);
    put_integers(&good, "two", 1, &two);
    put_integers(&good, "ones", 5, ones);
    put_tensor(&good, "nothing", KEEL_ONNX_FLOAT, 1, &one, &nothing, sizeof nothing, NULL);
    put_tensor(&good, "half", KEEL_ONNX_FLOAT, 1, &one, &half, sizeof half, NULL);
    put_node(&good, "rows", "Gather", "table ids", "x");
    put_node(&good, "more", "Reshape", "x ones", "five");
    put_node_with(&good, "floor", "Cast", "nothing", "cast", "to", KEEL_ONNX_INT64);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        nodes = good;
        put_node_with(&nodes, "last", rows[i].operation, rows[i].in, "y", rows[i].attribute, rows[i].value);
        put_node_with(&nodes, "copied", "Concat", "y", "logits", "axis", 1);
        refuse_nodes(&nodes, rows[i].why);
    }
}
END_TEST

/* ---- what ONNX does not allow ---- */

/* Attributes by their texts, blanks between them: NAME:INTEGER, NAME=INTEGER,INTEGER,..., NAME~TEXT. */
static void put_attributes(struct message *node, const char *text)
{
    while (*text != '\0') {
        struct message part = {.count = 0};
        const size_t name = strcspn(text, ":=~"), bytes = strcspn(text, " ");
        const char kind = text[name];
        put_bytes(&part, 1, text, name);
        if (kind == '~')
            put_bytes(&part, 4, text + name + 1, bytes - name - 1);
        for (const char *at = text + name; kind != '~' && at < text + bytes; at += strcspn(at + 1, ", ") + 1)
            put_integer(&part, kind == ':' ? 3 : 8, (uint64_t)strtoll(at + 1, NULL, 10));
        put_integer(&part, 20, kind == '~' ? 3 : kind == ':' ? 2 : 7);
        put_message(node, 5, &part);
        text += bytes + (text[bytes] == ' ');
    }
}

static const struct {
    const char *operation, *in, *out, *attributes, *why;
} invalid[] = {
    {"Transpose", "x", "y", "perm=0,-1,1", "its order names dimension -1 of 3"},
    {"Transpose", "x", "y", "perm=0,1,1", "its order names a dimension twice"},
    {"Transpose", "x", "y", "perm=0,1", "an order of 2 for 3 dimensions"},
    {"Transpose", "x", "y", "perm:1", "perm is not a list of integers"},
    {"Squeeze", "i minus", "y", "", "names axis 1 twice"},
    {"Squeeze", "i nine", "y", "", "axis 9 of 4 dimensions"},
    {"Unsqueeze", "x ones", "y", "", "names axis 1 twice"},
    {"Slice", "x zeros ones ones", "y", "", "names axis 1 twice"},
    {"Slice", "x zeros nine", "y", "", "starts, ends, axes and steps are not as many"},
    {"Slice", "six zero nine one", "y", "", "is not covered for operands"},
    {"ReduceSum", "x ones", "y", "", "names axis 1 twice"},
    {"ReduceMean", "x nine", "y", "", "axis 9 of 3 dimensions"},
    {"ReduceMax", "x", "y", "axes=1", "has no attribute axes in opset 24"},
    {"Concat", "x x", "y", "", "its attribute axis is missing"},
    {"Concat", "x x", "y", "axis:3", "axis 3 of 3 dimensions"},
    {"Concat", "x  x", "y", "axis:1", "operand 1 is missing"},
    {"Concat", "x table", "y", "axis:0", "part 1 is of another shape"},
    {"Concat", "six cube", "y", "axis:1", "is not covered for operands"},
    {"Concat", "cube cuboid", "y", "axis:1", "is not covered for operands"},
    {"Reshape", "x both", "y", "", "size -1 of dimension 1"},
    {"Reshape", "x table", "y", "", "operand 1 has elements of float, int64 are wanted"},
    {"Gather", "x nine", "y", "axis:1", "known indices must be one"},
    {"Gather", "six nine", "y", "", "is not covered for operands"},
    {"Split", "x ones", "y z", "axis:1", "its parts have 2 of 3"},
    {"Split", "x ones", "y y", "axis:2", "its result y comes twice"},
    {"Conv", "i w", "y", "kernel_shape=2,3", "kernel_shape is not that of its weight, 3 x 3"},
    {"Conv", "i w", "y", "strides=1", "strides of 1 numbers; two are covered"},
    {"Conv", "i w", "y", "pads=0,0", "pads that are not four numbers"},
    {"Conv", "i w", "y", "auto_pad~", "auto_pad; give pads instead"},
    {"Conv", "i w", "y", "auto_pad~VALID pads=0,0,0,0", "auto_pad; give pads instead"},
    {"Resize", "i   four", "y", "mode~", "a mode that does not repeat pixels"},
    {"Resize", "i  scales four", "y", "mode~nearest", "scales or sizes, one of them"},
    {"ConstantOfShape", "both", "y", "", "is not covered for operands"},
    {"Add", "x ids", "y", "", "operand 1 has elements of int64, another one of float"},
    {"Where", "x x x", "y", "", "operand 0 has elements of float, bool are wanted"},
    {"Relu", "ids", "y", "", "operand 0 has elements of int64, float are wanted"},
    {"Relu", "x x", "y", "", "2 operands; it has 1 at most"},
    {"Relu", "x", "y z", "", "2 results; it has 1 at most"},
    {"Relu", "x", " z", "", "its result has no name"},
    {"Relu", "x", "y", "slope:1", "has no attribute slope in opset 24"},
    {"Softmax", "x", "y", "axis:2 axis:2", "has the attribute axis twice"},
    {"Softmax", "x", "y", "axis=2", "axis is not an integer"},
};
enum { INVALID = sizeof invalid / sizeof invalid[0] };

START_TEST(what_onnx_does_not_allow_is_refused_by_node_and_operator)
{
    static const int64_t ones[] = {1, 1}, minus[] = {1, -3}, zeros[] = {0, 0}, both[] = {-1, -1},
                         four[] = {2, 1, 6, 8}, six[] = {1, 2, 3, 4, 5, 6}, shape[] = {2, 1, 3, 4}, nine = 9;
    static const uint64_t w_shape[] = {2, 1, 3, 3}, cube[] = {2, 1, 3}, cuboid[] = {3, 1, 2}, number = 4;
    static const float w[18] = {1, 2}, scales[] = {1, 1, 2, 2};
    struct message nodes = {.count = 0}, node = {.count = 0};
    char why[160];
    float rows[20];
    put_rows(&nodes, rows);
    put_integers(&nodes, "ones", 2, ones);
    put_integers(&nodes, "one", 1, ones);
    put_integers(&nodes, "minus", 2, minus);
    put_integers(&nodes, "zeros", 2, zeros);
    put_integers(&nodes, "zero", 1, zeros);
    put_integers(&nodes, "both", 2, both);
    put_integers(&nodes, "four", 4, four);
    put_integers(&nodes, "six", 6, six);
    put_integers(&nodes, "nine", 1, &nine);
    put_integers(&nodes, "shape", 4, shape);
    put_tensor(&nodes, "cube", KEEL_ONNX_INT64, 3, cube, six, sizeof six, NULL);
    put_tensor(&nodes, "cuboid", KEEL_ONNX_INT64, 3, cuboid, six, sizeof six, NULL);
    put_tensor(&nodes, "w", KEEL_ONNX_FLOAT, 4, w_shape, w, sizeof w, NULL);
    put_tensor(&nodes, "scales", KEEL_ONNX_FLOAT, 1, &number, scales, sizeof scales, NULL);
    put_node(&nodes, "image", "Reshape", "x shape", "i");
    for (uint32_t l = 0; l < 2; l++)
        for (const char *at = l == 0 ? invalid[_i].in : invalid[_i].out; *at != '\0';) {
            const size_t length = strcspn(at, " ");
            put_bytes(&node, l + 1, at, length);
            at += length + (at[length] == ' ');
        }
    put_text(&node, 3, "probe");
    put_text(&node, 4, invalid[_i].operation);
    put_attributes(&node, invalid[_i].attributes);
    put_message(&nodes, 1, &node);
    put_node(&nodes, "last", "Identity", "x", "logits"); /* whether or not a result is read */
    snprintf(why, sizeof why, "node probe (%s): %s", invalid[_i].operation, invalid[_i].why);
    refuse_nodes(&nodes, why);
}
END_TEST

/* Without an operand or an attribute none can do anything; one without a signature would end the process. */
START_TEST(every_operator_has_a_signature)
{
    for (uint32_t i = 0; keel_onnx_operator(i) != NULL; i++) {
        struct message model, nodes = {.count = 0};
        float rows[20];
        put_rows(&nodes, rows);
        put_node(&nodes, "bare", keel_onnx_operator(i), "", "y");
        put_node(&nodes, "last", "Identity", "x", "logits");
        whole_model(&nodes, 24, &model);
        refused(model.at, model.count, "node bare (");
        whole_model(&nodes, 13, &model);
        refused(model.at, model.count, "node bare (");
    }
}
END_TEST

START_TEST(tensors_that_lie_are_refused)
{
    static const uint64_t huge[] = {UINT64_C(1) << 50, 4}, wrong[] = {5, 5},
                          many[] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const struct {
        uint32_t type, dims;
        const uint64_t *size;
        const char *why;
    } rows[] = {
        {KEEL_ONNX_FLOAT, 2, huge, "a tensor of more than 2^40 elements"},
        {KEEL_ONNX_FLOAT, 2, wrong, "table has 80 bytes of numbers, its shape wants 100"},
        {KEEL_ONNX_FLOAT, 9, many, "a tensor of more than 8 dimensions"},
        {KEEL_ONNX_INT64, 2, wrong, "table has 10 integers, its shape wants 25"},
        {10, 2, table_shape, "table is of element type 10: float32, int32, int64 and bool are read"},
    };
    struct message nodes = {.count = 0};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        nodes.count = 0;
        put_tensor(&nodes, "table", rows[i].type, rows[i].dims, rows[i].size, table, sizeof table, NULL);
        refuse_nodes(&nodes, rows[i].why);
    }
    nodes.count = 0;
    put_tensor(&nodes, "table", KEEL_ONNX_FLOAT, 2, table_shape, table, sizeof table, NULL);
    put_tensor(&nodes, "table", KEEL_ONNX_FLOAT, 2, table_shape, table, sizeof table, NULL);
    refuse_nodes(&nodes, "two initializers are named table");
}
END_TEST

/* In a folder of its own: a file beside the model is read, none elsewhere, and it must be long enough. */
START_TEST(weights_beside_the_file_are_read_and_no_others)
{
    static const char *const places[] = {"weights", "../weights", "/etc/passwd", ".hidden", "a/b"};
    char folder[] = "/tmp/keel-onnx-XXXXXX", path[64], weights[64];
    struct keel_onnx_file *file;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/m.onnx", folder);
    snprintf(weights, sizeof weights, "%s/weights", folder);
    ck_ok(keel_file_replace(weights, table, sizeof table, 0600));
    for (size_t i = sizeof places / sizeof places[0]; i-- > 0;) { /* the good one stays */
        struct message model, nodes = {.count = 0};
        put_tensor(&nodes, "table", KEEL_ONNX_FLOAT, 2, table_shape, NULL, 0, places[i]);
        whole_model(&nodes, 17, &model);
        ck_ok(keel_file_replace(path, model.at, model.count, 0600));
        if (i > 0) {
            ck_status(keel_onnx_file_open(path, &file), KEEL_INVALID);
            ck_assert_ptr_nonnull(strstr(keel_detail(), "only files in its own folder"));
        }
    }
    ck_ok(keel_onnx_file_open(path, &file));
    ck_assert_int_eq(memcmp(keel_onnx_file_graph(file)->tensor[0].bytes, table, sizeof table), 0);
    keel_onnx_file_close(file);
    ck_ok(keel_file_replace(weights, table, sizeof table - 1, 0600));
    ck_status(keel_onnx_file_open(path, &file), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "table has no 80 bytes from 0 on in"));
    ck_status(keel_onnx_file_open(folder, &file), KEEL_INVALID);
    ck_status(keel_onnx_file_open("/nowhere/m.onnx", &file), KEEL_NOT_FOUND);
    ck_ok(keel_remove_tree(folder));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, models_have_the_logits_that_pytorch_computed, 0, MODELS * DEVICES);
    tcase_add_test(tc, a_model_that_is_cut_anywhere_is_refused);
    tcase_add_loop_test(tc, changed_bytes_do_no_harm, 0, MODELS);
    tcase_add_test(tc, what_is_not_covered_is_refused_by_node_and_operator);
    tcase_add_loop_test(tc, attention_as_one_node_has_its_logits, 0, 4);
    tcase_add_loop_test(tc, group_normalization_has_its_logits, 0, 2);
    tcase_add_test(tc, a_constant_that_is_transposed_has_its_numbers);
    tcase_add_test(tc, what_a_comparison_chose_is_divided_as_what_it_is);
    tcase_add_test(tc, a_list_without_integers_is_a_shape);
    tcase_add_test(tc, images_may_be_cast_to_floats_and_the_domain_be_named);
    tcase_add_test(tc, a_stride_of_nothing_is_refused);
    tcase_add_test(tc, numbers_that_are_known_are_refused_where_they_would_be_others);
    tcase_add_loop_test(tc, what_onnx_does_not_allow_is_refused_by_node_and_operator, 0, INVALID);
    tcase_add_test(tc, every_operator_has_a_signature);
    tcase_add_test(tc, tensors_that_lie_are_refused);
    tcase_add_test(tc, weights_beside_the_file_are_read_and_no_others);
    tcase_add_test(tc, another_model_has_its_logits);
}

KEEL_TEST_MAIN("onnx", cases, 600)
