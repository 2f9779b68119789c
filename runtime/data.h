/* data.h - text in, token batches out, by number.
 *
 * The loader has no state: sample g of the run is a keyed permutation of the window numbers, so step,
 * microbatch and seed say all, on any rank, after any resume. Read-only after open; any thread. */
#ifndef KEEL_DATA_H
#define KEEL_DATA_H

#include <keel/job.h>

struct keel_data;

/* Load job->path whole. NOT_FOUND; INVALID when the text is too short for the block, or empty. */
enum keel_status keel_data_open(const struct keel_job *job, struct keel_data **out);
void keel_data_close(struct keel_data *data);

uint32_t keel_data_vocab(const struct keel_data *data);
uint64_t keel_data_digest(const struct keel_data *data); /* XXH3-64 of the file */
uint64_t keel_data_train_tokens(const struct keel_data *data);

/* Microbatch number `microbatch` of step `step`: ids and targets of [batch, block]. The samples of a
 * step are numbered through all microbatches of all shards (`per_step`). */
void keel_data_train_batch(const struct keel_data *data, uint64_t step, uint32_t microbatch,
                           uint32_t per_step, int32_t *ids, int32_t *targets);

/* Batch `index` of `count` validation batches, evenly spread; always the same. False when the job keeps
 * no validation text long enough. */
bool keel_data_val_batch(const struct keel_data *data, uint32_t index, uint32_t count, int32_t *ids,
                         int32_t *targets);

/* Byte of a token, and token of a byte (0 when the byte does not occur). */
uint8_t keel_data_byte(const struct keel_data *data, uint32_t token);
uint32_t keel_data_token(const struct keel_data *data, uint8_t byte);

/* Position of `index` in a keyed permutation of [0, count): a balanced Feistel network on the next power
 * of four, cycle-walking (Black and Rogaway 2002). */
uint64_t keel_permute(uint64_t index, uint64_t count, uint64_t key);

#endif
