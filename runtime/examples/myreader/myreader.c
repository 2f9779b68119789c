/* myreader.c - a model and data of one's own for `keel run`: points of a plane in lines of "x,y,class", and a
 * perceptron that tells their classes. To be copied; then make, and keel run myreader.conf. What a plug-in
 * and its reader may say and call: keel/model_plugin.h and keel/graph.h. */
#include <keel/model_plugin.h>
#include <stdio.h>
#include <stdlib.h>

struct settings { /* what [model] of the job says */
    uint32_t hidden;
};
static const struct keel_ini_key keys[] = {
    {"model", "hidden", KEEL_INI_U32, offsetof(struct settings, hidden), sizeof(uint32_t), "32", 1, 4096,
     NULL, 0, "units of the hidden layer"},
};

struct points { /* those of the last tenth of the file are to validate with */
    uint64_t train, count;
    struct point {
        float at[2];
        int class;
    } * points;
};

static enum keel_status open_points(const void *settings, const char *path, struct keel_plugin_samples *out)
{
    struct points *p = calloc(1, sizeof *p);
    FILE *file = fopen(path, "r");
    struct point line;
    (void)settings;
    out->own = p; /* close gets it, whatever comes */
    if (p == NULL || file == NULL)
        return keel_fail(KEEL_NOT_FOUND,
                         "data.path = %s: cannot be opened; name a file of lines of x,y,class", path);
    while (fscanf(file, "%f,%f,%d\n", &line.at[0], &line.at[1], &line.class) == 3) {
        p->points = realloc(p->points, (p->count + 1) * sizeof line);
        p->points[p->count++] = line;
    }
    const int ended = feof(file);
    fclose(file);
    if (!ended)
        return keel_fail(KEEL_INVALID, "%s: line %llu is no x,y,class", path,
                         (unsigned long long)p->count + 1);
    p->train = p->count - p->count / 10;
    *out =
        (struct keel_plugin_samples){.train_count = p->train,
                                     .val_count = p->count - p->train,
                                     .classes = 2,
                                     .input_count = 2,
                                     .inputs = {{"points", KEEL_F32, 1, {2}}, {"classes", KEEL_I32, 0, {0}}},
                                     .own = p};
    return KEEL_OK;
}

static enum keel_status fill(const void *own, const struct keel_plugin_sample *sample, void *const *places)
{
    const struct points *p = own;
    const struct point *point = &p->points[sample->item + (sample->validation ? p->train : 0)];
    ((float *)places[0])[0] = point->at[0];
    ((float *)places[0])[1] = point->at[1];
    *(int32_t *)places[1] = point->class;
    return KEEL_OK;
}

static void close_points(void *own)
{
    if (own != NULL)
        free(((struct points *)own)->points);
    free(own);
}

static keel_value layer(struct keel_graph *g, const char *weight, const char *bias, keel_value x, uint64_t in,
                        uint64_t out)
{
    const struct keel_param_spec w = {
        .name = weight, .shape = {2, {in, out}}, .deviation = 0.5F, .decay = true};
    const struct keel_param_spec b = {.name = bias, .shape = {1, {out}}};
    return keel_graph_linear(g, x, keel_graph_param(g, &w), keel_graph_param(g, &b));
}

static enum keel_status build(struct keel_graph *g, const void *own, const struct keel_plugin_task *task)
{
    const uint64_t hidden = ((const struct settings *)own)->hidden;
    keel_value x = layer(g, "first.weight", "first.bias", task->inputs[0], 2, hidden);
    x = keel_graph_activation(g, x, KEEL_GELU);
    keel_graph_cross_entropy(g, layer(g, "last.weight", "last.bias", x, hidden, task->classes),
                             task->inputs[1]);
    return keel_graph_status(g);
}

static const struct keel_plugin_reader reader = {.open = open_points, .fill = fill, .close = close_points};
const struct keel_model_plugin keel_model_plugin = {.version = KEEL_MODEL_PLUGIN_VERSION,
                                                    .data = KEEL_PLUGIN_OWN,
                                                    .key_count = sizeof keys / sizeof keys[0],
                                                    .settings_bytes = sizeof(struct settings),
                                                    .keys = keys,
                                                    .build = build,
                                                    .reader = &reader};
