/* hf_config.h - the config.json that programs of Hugging Face read beside a model's weights
 * (from_pretrained). */
#ifndef KEEL_HF_CONFIG_H
#define KEEL_HF_CONFIG_H

#include "data.h"
#include <stdio.h>

/* Of a llama, mixtral, bert, vit or gpt, whose weights keel ckpt export writes under the names that are
 * wanted there (with --names mixtral, bert, torch, gpt2). UNSUPPORTED: another model, or one that is none of
 * theirs (a gpt without biases). */
enum keel_status keel_hf_config_print(const struct keel_job *job, const struct keel_data *data, FILE *out);

#endif
