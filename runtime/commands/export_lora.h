/* export_lora.h - adapters (train.lora_rank) on their way out: merged into their weights, or by themselves as
 * PEFT reads them. */
#ifndef KEEL_EXPORT_LORA_H
#define KEEL_EXPORT_LORA_H

#include "inference.h"

/* Whether a parameter is one of an adapter, by its name. */
bool keel_lora_is_adapter(const char *name);
/* Its name in PEFT's files. */
void keel_lora_peft_name(const struct keel_job *job, const char *name, char *out, size_t bytes);

/* Add to a weight, which was read, what its adapter says; nothing where it has none. In float64, rounded
 * once. Errors: NO_MEMORY, and of reading. Blocks. */
enum keel_status keel_lora_merge(struct keel_inference *inference, const struct keel_job *job, uint32_t index,
                                 float *weight);

/* PEFT's adapter_config.json, for adapters of these weights. */
enum keel_status keel_lora_write_config(struct keel_inference *inference, const struct keel_job *job,
                                        const char *path);

#endif
