/* model_parts.h - what the models have in common: parameters by name, and layers of two or three of them. */
#ifndef KEEL_MODEL_PARTS_H
#define KEEL_MODEL_PARTS_H

#include <keel/models.h>

/* A name by printf's rules, cut at KEEL_VALUE_NAME_BYTES. */
struct keel_part_name {
    char text[KEEL_VALUE_NAME_BYTES];
};
struct keel_part_name keel_part_name(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Weights that decay: normal(0, deviation). */
keel_value keel_part_matrix(struct keel_graph *graph, const char *name, struct keel_shape shape,
                            float deviation);
/* A vector that does not: all `fill`. */
keel_value keel_part_vector(struct keel_graph *graph, const char *name, uint64_t size, float fill);

/* PREFIX.weight and, with `bias`, PREFIX.bias, each of `width`; epsilon 0: 1e-5. */
keel_value keel_part_layernorm(struct keel_graph *graph, const char *prefix, keel_value x, uint64_t width,
                               bool bias, float epsilon);
/* PREFIX.weight [in, out] and, with `bias`, PREFIX.bias. */
struct keel_part_linear {
    uint64_t in, out;
    float deviation;
    bool bias;
};
keel_value keel_part_linear(struct keel_graph *graph, const char *prefix, keel_value x,
                            const struct keel_part_linear *sizes);

/* Self-attention in both directions whose query, key and value are layers of their own: PREFIX.query, .key
 * and .value of x [batch, tokens, width], each split by heads. Returns what the heads give, [batch, tokens,
 * width]. */
struct keel_part_attention {
    uint64_t batch, tokens, width;
    uint32_t heads;
    float dropout;
};
keel_value keel_part_attention(struct keel_graph *graph, const char *prefix, keel_value x,
                               const struct keel_part_attention *sizes);

/* Parameters so far. Weights from elsewhere may lack those from number `first` on: they begin as drawn then.
 */
uint32_t keel_part_count(const struct keel_graph *graph);
void keel_part_may_lack(struct keel_graph *graph, uint32_t first);

/* How a model of images ends: cross-entropy of logits [batch, classes]. `mixed`: with an input "mix" [batch,
 * classes], 1 at the label less the soft label (data_augment.c). Cross-entropy is linear in the labels, so
 * that it and the product of logits and mix are that of the soft ones. */
void keel_part_classify(struct keel_graph *graph, keel_value logits, keel_value labels, bool mixed);

/* Tensor parallelism as Megatron has it (Shoeybi et al. 2019, Korthikanti et al. 2022): a value by dimension
 * `dim`, in `outer` parts side by side of units that stay together; or by rows, between the regions that are
 * so split. */
void keel_part_split(struct keel_graph *graph, keel_value value, uint32_t dim, uint32_t outer, uint64_t unit);
void keel_part_split_rows(struct keel_graph *graph, keel_value value);

/* A size that a model is made of. */
struct keel_part_size {
    const char *key; /* as a job file has it */
    uint64_t value, least, most;
};
/* INVALID names the first that is out of its range, with its value and what is allowed. */
enum keel_status keel_part_check(const char *model, const struct keel_part_size *sizes, uint32_t count);
/* INVALID: the width does not divide into heads. */
enum keel_status keel_part_check_heads(const char *model, uint32_t width, uint32_t heads);
/* Keep what a model refused as the status of the graph, and return it. */
enum keel_status keel_part_keep(struct keel_graph *graph, enum keel_status status);

/* The deviation that the GPT and BERT papers use. */
#define KEEL_PART_DEVIATION 0.02F

/* Tokens of a sequence that a graph is of, of a model that sees `block`: 1 in one that decodes. */
uint32_t keel_part_tokens(const struct keel_graph *graph, uint32_t block);
bool keel_part_decodes(const struct keel_graph *graph);

/* ---- model_moe.c ---- */

/* Whether an expert has places for all tokens of a batch's first sequence, whatever the others choose: then
 * none of that is dropped, and each token is computed as if it were alone. */
bool keel_moe_keeps_first(const struct keel_moe_config *config);

/* ---- model_gpt.c, model_llama.c ---- */

/* A model of text whose perceptron of a block may be another: `mlp` gets the normed values [batch, tokens,
 * width] of block `number` and returns what is added; NULL is for the model's own, as of a GPT a return of 0.
 */
struct keel_part_variant {
    const char *name; /* for messages */
    keel_value (*mlp)(void *context, struct keel_graph *graph, uint32_t number, keel_value x);
    void *context;
};
enum keel_status keel_gpt_build(struct keel_graph *graph, const struct keel_gpt_config *config,
                                const struct keel_part_variant *variant);
enum keel_status keel_llama_build(struct keel_graph *graph, const struct keel_llama_config *config,
                                  const struct keel_part_variant *variant);

#endif
