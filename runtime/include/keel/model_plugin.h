/* model_plugin.h - a model of one's own under `keel run`: model.kind = ./mymodel.so.
 *
 * A plug-in is a shared object that defines `keel_model_plugin`, and calls Keel's public functions without
 * being linked to them: keel itself has them. The launcher and every worker load it by its path; the digest
 * of the file belongs to the run's identity. All that ranks do (shards, healing, snapshots, drills) they do
 * with it as with the models that come with Keel. share/keel/examples/mymodel is a folder to copy. */
#ifndef KEEL_MODEL_PLUGIN_H
#define KEEL_MODEL_PLUGIN_H

#include <keel/api.h>
#include <keel/graph.h>
#include <keel/ini.h>

KEEL_API_BEGIN

/* Raised whenever this header or what it hands over changes, so that a plug-in of another one is refused. */
enum { KEEL_MODEL_PLUGIN_VERSION = 2 };
enum { KEEL_PLUGIN_KEYS_MAX = 32, KEEL_PLUGIN_SETTINGS_BYTES = 4096, KEEL_PLUGIN_INPUTS_MAX = 4 };

/* What the model trains on, and so which keys of [data] a job has, with model.block and model.vocab where
 * there are such. For each: inputs with their shapes, and the output that is wanted, as keel_graph_output or
 * the loss's first operand. */
enum keel_plugin_data {
    /* ids, targets i32 [batch, block]; logits [batch, block, classes] */
    KEEL_PLUGIN_TEXT,
    /* ids i32 [batch, block], positions, targets i32 [batch, masked]; any output */
    KEEL_PLUGIN_MASKED_TEXT,
    /* images f32 [batch, height, width, channels], labels i32 [batch]; logits [batch, classes] */
    KEEL_PLUGIN_IMAGES,
    /* dense f32 [batch, features], ids i32 [batch tables, bag], labels f32 [batch, 1]; [batch, 1] */
    KEEL_PLUGIN_CLICKS,
    /* what the plug-in's own reader says; with classes logits [batch, classes], else any output */
    KEEL_PLUGIN_OWN,
    KEEL_PLUGIN_DATA_COUNT
};

/* ---- a reader of one's own ---- */

/* A tensor of one sample: KEEL_F32 or KEEL_I32, of up to 3 dimensions. A batch has the samples in front. */
struct keel_plugin_input {
    const char *name; /* as long as the reader is open */
    enum keel_dtype dtype;
    uint32_t dims;
    uint64_t size[KEEL_DIMS_MAX - 1];
};
/* What a reader has, once it is open. */
struct keel_plugin_samples {
    uint64_t train_count, val_count; /* at least 1 to train on; 0: none to validate with */
    uint32_t classes; /* input 1 is then the class of a sample, KEEL_I32 without dimensions, and
                         accuracy is counted; 0: no such thing */
    uint64_t digest;  /* of what was read, as far as the reader knows it; or 0 */
    uint32_t input_count;
    struct keel_plugin_input inputs[KEEL_PLUGIN_INPUTS_MAX];
    void *own; /* the reader's */
};
struct keel_plugin_sample {
    uint64_t item;   /* below train_count, or below val_count: which one it is, in an order that Keel draws */
    uint64_t number; /* of the run: what is drawn for it is drawn by this and the seed */
    uint64_t seed;   /* job.seed */
    bool validation; /* of those to validate with, for which nothing is drawn */
};
/* Samples by number, so that any rank has any of them, before a loss or after it. Ranks compare what Keel has
 * seen of it: counts, inputs, digest, and the bytes of samples from its begin to its end. */
struct keel_plugin_reader {
    /* `path` is data.path, of which the reader makes what it likes. A status other than OK, with keel_fail's
     * text, ends the run before it begins. What is in `out` is zero before. */
    enum keel_status (*open)(const void *settings, const char *path, struct keel_plugin_samples *out);
    /* Write all of a sample: its part of input i to places[i]. A function of the sample alone; floats are
     * finite. Called on several threads at once. */
    enum keel_status (*fill)(const void *own, const struct keel_plugin_sample *sample, void *const *places);
    void (*close)(void *own); /* of what open has made, also where it failed */
};

/* What a graph is to be built for. */
struct keel_plugin_task {
    uint32_t batch, block; /* samples; tokens of each: 1 where samples are not of tokens */
    uint32_t tokens;  /* of each that inputs have: all, or 1 in a graph of the newest token (`decodes`) */
    uint32_t classes; /* or the vocabulary; 0: no such thing */
    uint32_t input_count;
    keel_value inputs[KEEL_PLUGIN_INPUTS_MAX]; /* inputs of the graph already */
};

struct keel_model_plugin {
    uint32_t version; /* KEEL_MODEL_PLUGIN_VERSION */
    uint32_t data;    /* enum keel_plugin_data */
    uint32_t key_count, settings_bytes;
    /* Keys of [model], of any type but with mark 0; offset and bytes are in the plug-in's own struct of
     * settings_bytes, KEEL_PLUGIN_SETTINGS_BYTES at most. The bits of a run are taken to depend on each.
     * Names that [model] has already for such data (kind, block, vocab and, for clicks, sizes) are refused.
     */
    const struct keel_ini_key *keys;
    /* Add the forward pass and a loss to the graph. Pure: called in each process, more than once, and must
     * build the same. `settings` holds what the job says. A status other than OK ends the run before it
     * begins, with keel_fail's text; what the graph refuses is found behind it. One thread at a time. */
    enum keel_status (*build)(struct keel_graph *graph, const void *settings,
                              const struct keel_plugin_task *task);
    /* Of text: tokens see those before them by keel_graph_attention alone, positions are those of
     * keel_graph_rotary and keel_graph_embedding, and shapes follow task->tokens. Then keel sample and keel
     * serve build the graph of one token too (keel_graph_decode), and keep keys and values. */
    bool decodes;
    const struct keel_plugin_reader *reader; /* of KEEL_PLUGIN_OWN; else NULL */
};

/* The one name that a plug-in defines for Keel. */
extern const struct keel_model_plugin keel_model_plugin;

KEEL_API_END

#endif
