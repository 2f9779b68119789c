/* gpt2_names.h - the tensors of GPT-2, as the published weights call and lay them out.
 *
 * Keel's own GPT (runtime/models/model_gpt.c) took over both, so nothing is renamed or transposed: matrices
 * are [in, out] (the Conv1D of the Hugging Face programs), tables [rows, width]. What differs from file to
 * file is the prefix "transformer.", buffers that are no parameters, and whether the output layer, which is
 * the embedding table again, is written a second time. */
#ifndef KEEL_CKPT_GPT2_NAMES_H
#define KEEL_CKPT_GPT2_NAMES_H

#include <keel/ckpt.h>

#define KEEL_GPT2_PREFIX "transformer."
#define KEEL_GPT2_HEAD   "lm_head.weight"
#define KEEL_GPT2_TABLE  "wte.weight"

enum { KEEL_GPT2_LAYERS_MAX = 1024 };

enum keel_gpt2_kind {
    KEEL_GPT2_PARAMETER,
    KEEL_GPT2_BUFFER,  /* the causal mask: a constant, of no use */
    KEEL_GPT2_STRANGER /* no name of GPT-2 */
};

/* What a set of tensors says of its model. Begin with zeros. */
struct keel_gpt2 {
    uint64_t extents[4];                     /* vocabulary, positions, width; 0: not seen yet */
    uint32_t layers;                         /* the highest that was seen, and one */
    uint32_t seen[KEEL_GPT2_LAYERS_MAX + 1]; /* bits of the parameters of each layer; last: of the model */
};

/* Take a name, with or without the prefix. *out_name: as Keel calls it, points into `name`. */
enum keel_gpt2_kind keel_gpt2_name(const char *name, const char **out_name);

/* A parameter (as Keel calls it) joins the set. MISMATCH: its shape does not fit the others'. LIMIT. */
enum keel_status keel_gpt2_add(struct keel_gpt2 *model, const char *name, uint32_t dims,
                               const uint64_t *shape);
/* Is it a whole model? NOT_FOUND names what is missing. Biases may be missing if all are. */
enum keel_status keel_gpt2_check(const struct keel_gpt2 *model);

#endif
