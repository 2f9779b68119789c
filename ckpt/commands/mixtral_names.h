/* mixtral_names.h - the experts of a Mixtral, which Hugging Face's programs have apart and Keel
 * (runtime/models/model_mixtral.c) together: model.layers.L.block_sparse_moe.experts.E.w1.weight [out, in] of
 * each expert E is row E of model.layers.L.block_sparse_moe.experts.w1.weight [experts, out, in]; so w2 and
 * w3. All other tensors have the same names and layouts. */
#ifndef KEEL_CKPT_MIXTRAL_NAMES_H
#define KEEL_CKPT_MIXTRAL_NAMES_H

#include <keel/ckpt.h>
#include <stddef.h>

/* Of one expert: false, or *out_expert is its number. */
bool keel_mixtral_is_expert(const char *name, uint32_t *out_expert);
/* Of all experts of a layer. */
bool keel_mixtral_is_stack(const char *name, uint32_t dims);
/* Either name as that of expert `expert`. False: longer than `bytes`. */
bool keel_mixtral_expert_name(const char *name, uint32_t expert, char *out, size_t bytes);
/* Of one expert as that of all. */
void keel_mixtral_stack_name(const char *name, char out[KEEL_TENSOR_NAME_BYTES]);

#endif
