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
enum { KEEL_MODEL_PLUGIN_VERSION = 1 };
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
    KEEL_PLUGIN_DATA_COUNT
};

/* What a graph is to be built for. */
struct keel_plugin_task {
    uint32_t batch, block; /* samples; tokens of each: 1 where samples are not of tokens */
    uint32_t classes;      /* or the vocabulary; 0: no such thing */
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
};

/* The one name that a plug-in defines for Keel. */
extern const struct keel_model_plugin keel_model_plugin;

KEEL_API_END

#endif
