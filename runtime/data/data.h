/* data.h - samples in, batches out, by number.
 *
 * One interface, a reader for each kind of model (data_text.c, data_images.c, data_teacher.c). The loader has
 * no state: sample g of the run is chosen by a keyed permutation of the sample indices, and its random parts
 * (masks, mirrored images) are keyed by g too. So step, microbatch and seed determine a batch, on any rank
 * and after any resume. What validation reads is fixed, and never trained on. Read-only after open; any
 * thread. */
#ifndef KEEL_DATA_H
#define KEEL_DATA_H

#include <keel/graph.h>
#include <keel/job.h>

struct keel_data;

/* Read all that the job's model trains on; of token files, what token_files.h says. NOT_FOUND; INVALID names
 * the file and what is wrong with it: a text shorter than the block, an IDX file that is foreign, cut short
 * or of another count than its labels, a label out of range, a pixel that is no number, a token beyond the
 * vocabulary. */
enum keel_status keel_data_open(const struct keel_job *job, struct keel_data **out);
void keel_data_close(struct keel_data *data);

/* The same for what is done with a trained model; nothing is there to train on then. */
struct keel_data_use {
    const char *val_path; /* samples to validate with are those of this file, or of images of this folder, and
                             not the job's; NULL: none are read. Of tokens beyond the vocabulary, or bytes
                             that the job's text has not, it is INVALID, with the offset. */
    uint32_t val_width;   /* bytes of a token in that file, if it has no header; 0: it is a text */
};
/* Of the job's own data what the vocabulary, or the classes, follow from is read, and no more: of a
 * tokenizer, of data.vocab = byte and of images with model.vocab nothing. UNSUPPORTED: val_path, of data that
 * are drawn. Errors else as of keel_data_open. `use` is borrowed for the call. */
enum keel_status keel_data_open_to_use(const struct keel_job *job, const struct keel_data_use *use,
                                       struct keel_data **out);
/* All of the job's data were read: the digest is that of its identity. */
bool keel_data_is_whole(const struct keel_data *data);

/* Look at what is else looked at when its sample comes: decode every image of folders, compare every token of
 * files with the vocabulary. Progress comes once a second at most, and each file that is wrong is told; all
 * of them are looked at. CORRUPT, MISMATCH, INVALID: the first of these, with how many there are; IO and the
 * like. Data of which nothing is left to look at: OK. Blocks. */
struct keel_data_watch {
    void (*progress)(void *context, uint64_t done, uint64_t of, const char *unit); /* NULL: none */
    void (*wrong)(void *context, const char *detail);
    void *context;
};
enum keel_status keel_data_check(const struct keel_data *data, const struct keel_data_watch *watch);

/* The tensors of a microbatch, in the order in which the model declares them. */
enum { KEEL_DATA_INPUTS_MAX = 4 };
struct keel_data_input {
    const char *name;
    enum keel_dtype dtype;
    struct keel_shape shape; /* of a whole microbatch */
    uint64_t bytes;
};
uint32_t keel_data_input_count(const struct keel_data *data);
const struct keel_data_input *keel_data_input(const struct keel_data *data, uint32_t index);

uint32_t keel_data_vocab(const struct keel_data *data); /* different tokens, or classes; 0: no such thing */
uint64_t keel_data_digest(
    const struct keel_data *data); /* XXH3-64 of the files; of token files, of what token_files.h says */
uint64_t keel_data_train_samples(const struct keel_data *data);
/* 0: nothing to validate with. KEEL_DATA_DRAWN: they are drawn, as many as a validation asks for. */
#define KEEL_DATA_DRAWN UINT32_MAX
uint64_t keel_data_val_samples(const struct keel_data *data);
/* Of keel_data_vocab, those classes that no label for training names. */
uint32_t keel_data_absent_classes(const struct keel_data *data);
uint32_t keel_data_sample_tokens(const struct keel_data *data); /* 1 where a sample is not of tokens */

/* Microbatch number `microbatch` of step `step` into inputs[i], of keel_data_input(i)->bytes. The samples of
 * a step are numbered through all microbatches of all shards (`per_step`). Token files are read here:
 * MISMATCH, one was written to, cut or replaced since open, or an image is damaged; INVALID, a token beyond
 * the vocabulary, with file and offset; what reading gives. */
enum keel_status keel_data_train_batch(const struct keel_data *data, uint64_t step, uint32_t microbatch,
                                       uint32_t per_step, void *const *inputs);

/* Batch `index` of `count` validation batches, evenly spread; always the same. There are samples to validate
 * with. Errors as of keel_data_train_batch. */
enum keel_status keel_data_val_batch(const struct keel_data *data, uint32_t index, uint32_t count,
                                     void *const *inputs);

/* Which of the batch just filled a row of logits (`classes` of them, row `row`) gets right; 1 or 0. Only
 * where keel_data_has_accuracy: one row a sample. */
bool keel_data_has_accuracy(const struct keel_data *data);
bool keel_data_is_right(const struct keel_data *data, void *const *inputs, uint32_t row, const float *logits,
                        uint32_t classes);
/* Likewise: the class of a sample, and how many there are. */
uint32_t keel_data_class_of(const struct keel_data *data, void *const *inputs, uint32_t row);
uint32_t keel_data_class_count(const struct keel_data *data);
/* Of token files how they were understood, in words; else empty. */
const char *keel_data_form(const struct keel_data *data);

/* Of texts and token files: the bytes of a token, in `scratch` or as long as the data are open; of token
 * files without a tokenizer its number and a blank. And the token that generated text goes on from: a line's
 * end, else token 0.
 */
enum { KEEL_TOKEN_TEXT_BYTES = 16 };
const char *keel_data_text_of(const struct keel_data *data, uint32_t token,
                              char scratch[KEEL_TOKEN_TEXT_BYTES], size_t *out_bytes);
uint32_t keel_data_first_token(const struct keel_data *data);
/* The tokens of a text, on the heap: bytes, what a tokenizer makes of it or, of token files without one, the
 * numbers that it has. INVALID names the byte, or number, that is no token, and where it is. NO_MEMORY. */
enum keel_status keel_data_encode(const struct keel_data *data, const char *text, size_t bytes, int32_t **out,
                                  size_t *out_count);

/* Position of `index` in a keyed permutation of [0, count): a balanced Feistel network on the next power
 * of four, cycle-walking (Black and Rogaway 2002). */
uint64_t keel_permute(uint64_t index, uint64_t count, uint64_t key);

#endif
