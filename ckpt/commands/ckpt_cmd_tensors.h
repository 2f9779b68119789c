/* ckpt_cmd_tensors.h - what export, import, diff and show share: the words of their options, which tensors
 * are meant, and how shapes are written. */
#ifndef KEEL_CKPT_CMD_TENSORS_H
#define KEEL_CKPT_CMD_TENSORS_H

#include "ckpt_subcommand.h"
#include "format.h"

/* The optimizer's tensors in a snapshot of `keel run` (runtime/worker/trainer_state.c): PREFIX and the
 * weight's name. */
#define KEEL_CMD_ADAM_M     "adam.m/"
#define KEEL_CMD_ADAM_V     "adam.v/"
#define KEEL_CMD_EMA        "ema/"
#define KEEL_CMD_LOSS_SCALE "loss_scale" /* of a run with storage of f16 */

enum keel_cmd_names {
    KEEL_CMD_NAMES_KEEL,
    KEEL_CMD_NAMES_GPT2,
    KEEL_CMD_NAMES_TORCH,
    KEEL_CMD_NAMES_BERT,
    KEEL_CMD_NAMES_MIXTRAL
};

/* INVALID says what is wanted. `word` is NULL where the option was not given: the first, or 0. */
enum keel_status keel_cmd_parse_names(const char *word, enum keel_cmd_names *out);
/* Whether a tensor of these names lies the other way round in the files (torch_layout.h). */
bool keel_cmd_turns(enum keel_cmd_names names, const char *name, uint32_t dims);
/* f32, bf16 or f16; 0 for NULL: as they are. */
enum keel_status keel_cmd_parse_float(const char *word, uint32_t *out_dtype);
/* 5GB, 500MB (thousands), 4GiB, 512MiB (1024), 4096 (bytes). */
enum keel_status keel_cmd_parse_size(const char *word, uint64_t *out_bytes);

/* A moment, an average of a weight, or the scale of a loss: what training keeps and no model has. */
bool keel_cmd_is_optimizers(const char *name);
/* Does --only mean this tensor? "weights": all but those; else what begins so; NULL: all. */
bool keel_cmd_selects(const char *only, const char *name);

json_t *keel_cmd_shape_json(const uint64_t *shape, uint32_t dims);
/* "37 x 24" in brackets. */
void keel_cmd_format_shape(const struct keel_region *tensor, char *out, size_t room);

#endif
