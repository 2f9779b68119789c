/* inference.h - a trained model on one device, without optimizer, gradients or other ranks: evaluated, and
 * asked for the next token. The engine evaluates as that of a run does, to the bit, whatever plan the weights
 * of the snapshot were trained by.
 *
 * One thread at a time. */
#ifndef KEEL_INFERENCE_H
#define KEEL_INFERENCE_H

#include "generate.h"
#include "quantise.h"
#include "score.h"
#include <keel/ckpt.h>
#include <keel/device.h>
#include <keel/engine.h>

struct keel_inference;

struct keel_inference_config {
    const struct keel_job *job;                 /* borrowed; train.batch is that of the data */
    const struct keel_data *data;               /* borrowed */
    struct keel_device *device;                 /* borrowed */
    const struct keel_kernels_options *kernels; /* of the board; NULL: defaults; borrowed for the call */
    uint64_t stall_ns;                          /* a device that makes no progress for so long is an error */
    uint32_t decode;      /* texts at once whose keys and values are kept, where the model can
                             (keel_inference_decodes); 0: of none */
    uint32_t prompt_rows; /* tokens of prompts that are kept at once (keel_inference_keep); 0: none are */
    bool averages;        /* of a job with train.ema: what is loaded are those of the weights */
    struct keel_quantise
        quantise;     /* bits 0: weights are floats. Else those of products are what few bits stand
                         for: linear layers have them as they are, and read as many bytes; those of
                         convolutions and experts, of job.tensor above 1 and of other numerics than
                         canonical are floats, rounded. The bits of results are the same */
    bool only_decode; /* and no text becomes longer than model.block, nor are there scores: nothing else is
                         made */
};
/* Tokens of prompts at once: at most KEEL_PROMPT_ROWS where other texts wait for a launch, and MAX where none
 * does; from LEAST on they are worth a launch of many rows. */
enum { KEEL_PROMPT_LEAST = 4, KEEL_PROMPT_ROWS = 32, KEEL_PROMPT_ROWS_MAX = 128 };
/* For so many tokens in the fewest launches, which are alike; 0: they are not worth one. */
uint32_t keel_prompt_rows(uint64_t tokens);
/* Whether it can: the bits of text are the same. */
bool keel_inference_decodes(const struct keel_job *job, const struct keel_data *data);
/* Errors: of keel_engine_create and of the model. Blocks: kernels may be compiled. */
enum keel_status keel_inference_create(const struct keel_inference_config *config,
                                       struct keel_inference **out);
void keel_inference_destroy(struct keel_inference *inference);

/* The weights of a snapshot, in few bits if config.quantise says so. Errors: as of keel_weights_load. Blocks.
 */
enum keel_status keel_inference_load(struct keel_inference *inference, struct keel_snapshot *snapshot,
                                     const struct keel_load_config *config);

/* A weight, in the order of the engine's parameters; false: it is of no model. *matrix: what
 * keel_quantise_finds says, copies 0 where it finds nothing. */
uint32_t keel_inference_weight_count(const struct keel_inference *inference);
bool keel_inference_weight(const struct keel_inference *inference, uint32_t index,
                           const struct keel_engine_param **out, struct keel_matrix *out_matrix);
/* All of it, from the device: of one that is in few bits its words. Blocks. */
enum keel_status keel_inference_read_weight(struct keel_inference *inference, uint32_t index, float *out);

/* Over so many batches of the data's validation samples, evenly spread. `right_of` and `count_of` as of
 * struct keel_scoring. `keep`: gets all logits of each batch, also where there is no accuracy; NULL: nobody
 * wants them. `progress` may be NULL. Blocks. */
struct keel_inference_scoring {
    uint32_t batches;
    uint64_t *right_of, *count_of;
    enum keel_status (*keep)(void *context, const float *logits, uint64_t count);
    void (*progress)(void *context, uint32_t done);
    void *context;
};
enum keel_status keel_inference_score(struct keel_inference *inference,
                                      const struct keel_inference_scoring *how, struct keel_scores *out);

/* Text of a model whose samples are tokens and whose output is a row of logits for each. `generation` says
 * all but data, block, vocab and predict; `context` is that of `write`. Blocks. */
enum keel_status keel_inference_generate(struct keel_inference *inference,
                                         const struct keel_generator *generation);

/* Token by token, for several texts (struct keel_writing): each of config.decode has one more token, at its
 * position from 0 on; a position below 0: none. The caller has had those before it computed, in their order.
 * `out`: a row of keel_inference_logits for each, until the next call. The row of a text is the same whatever
 * the others are. Blocks. */
enum keel_status keel_inference_decode(struct keel_inference *inference, const int32_t *tokens,
                                       const int32_t *positions, const float **out);
/* Keep keys and values of config.prompt_rows tokens at once, each of any text of config.decode: `slots` says
 * of which. A position below 0: none. In a text they stand in their order, and the caller has had those
 * before them computed. The same bits as one by one. Blocks. */
enum keel_status keel_inference_keep(struct keel_inference *inference, const int32_t *tokens,
                                     const int32_t *positions, const int32_t *slots);
/* The logits behind the last of `length` tokens, of a model that does not decode. Blocks. */
enum keel_status keel_inference_predict(struct keel_inference *inference, const int32_t *window,
                                        uint32_t length, const float **out);
uint32_t keel_inference_logits(const struct keel_inference *inference); /* of a token */

#endif
