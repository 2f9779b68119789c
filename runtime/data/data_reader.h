/* data_reader.h - what a reader gives and gets behind data.h. */
#ifndef KEEL_DATA_READER_H
#define KEEL_DATA_READER_H

#include "data.h"
#include "image_file.h"

enum { KEEL_BYTES_MAX_LOG2 = 34 }; /* of one file */

/* One sample of the run. */
struct keel_sample {
    uint64_t item;   /* below train_count, or below val_count */
    uint64_t number; /* of the run: what is drawn for it is drawn by this */
    bool validation; /* nothing but what the task itself wants is drawn */
};

/* A check that goes on: of so many pieces, each of which is told as it is done. */
struct keel_data_checking {
    const struct keel_data_watch *watch;
    const char *unit;
    uint64_t done, of, wrong; /* pieces; and of these */
    uint64_t told_ns;
    enum keel_status first; /* of those that are wrong */
    char detail[256];       /* its own */
};
/* Of the next `count` pieces: `status` and its detail. What reading gives is passed on, what is wrong with
 * the data is noted. */
enum keel_status keel_data_checked(struct keel_data_checking *check, uint64_t count, enum keel_status status);

struct keel_reader {
    /* Fill in data's counts, inputs, vocab, digest and `own`; on failure close is called. */
    enum keel_status (*open)(struct keel_data *data, const struct keel_job *job);
    void (*close)(struct keel_data *data);
    /* Write the sample into place `slot` of the batch. What is in memory cannot fail; files can: MISMATCH,
     * they changed since open; INVALID, what could not be known at open. */
    enum keel_status (*fill)(const struct keel_data *data, const struct keel_sample *sample, uint32_t slot,
                             void *const *inputs);
    /* As keel_data_check, of all that open did not look at; NULL: it looked at all. */
    enum keel_status (*check)(const struct keel_data *data, struct keel_data_checking *check);
    /* The bytes that a token stands for, and the token that generated text goes on from; NULL: samples are
     * not of tokens. `scratch`: for a text that is nowhere else. */
    const char *(*text_of)(const struct keel_data *data, uint32_t token, char scratch[KEEL_TOKEN_TEXT_BYTES],
                           size_t *out_bytes);
    uint32_t (*first_token)(const struct keel_data *data);
    /* The tokens of a text, as keel_data_encode; NULL likewise. */
    enum keel_status (*encode)(const struct keel_data *data, const char *text, size_t bytes, int32_t **out,
                               size_t *out_count);
    /* Whether a row of logits is right; NULL: there is no such thing as accuracy. */
    bool (*is_right)(void *const *inputs, uint32_t row, const float *logits, uint32_t classes);
    uint32_t (*class_of)(void *const *inputs, uint32_t row); /* where there is */
};

struct keel_data {
    const struct keel_reader *reader;
    const struct keel_data_use *use; /* for open alone; NULL: to train on */
    bool whole;                      /* the digest is of all that the job reads */
    uint64_t seed, digest;
    uint64_t train_count, val_count; /* samples that there are */
    char form[128];                  /* of token files: how they were understood; else empty */
    uint32_t batch, vocab, absent_classes, sample_tokens;
    uint32_t input_count;
    struct keel_data_input inputs[KEEL_DATA_INPUTS_MAX];
    void *own; /* the reader's */
};

/* Which reader makes the samples of which kind of model: a row each, and nothing else names a reader. */
#define KEEL_READERS(X)                                                                                      \
    X(KEEL_MODEL_GPT, keel_text_reader)                                                                      \
    X(KEEL_MODEL_RESNET, keel_image_reader)                                                                  \
    X(KEEL_MODEL_BERT, keel_masked_reader)                                                                   \
    X(KEEL_MODEL_MOE, keel_text_reader)                                                                      \
    X(KEEL_MODEL_LLAMA, keel_text_reader)                                                                    \
    X(KEEL_MODEL_DLRM, keel_teacher_reader)                                                                  \
    X(KEEL_MODEL_VIT, keel_image_reader)                                                                     \
    X(KEEL_MODEL_MIXTRAL, keel_text_reader)                                                                  \
    X(KEEL_MODEL_ALEXNET, keel_image_reader)                                                                 \
    X(KEEL_MODEL_PLUGIN, keel_plugin_data_reader)
/* The same kinds of samples, where data.format names logs of clicks, or folders of images. */
extern const struct keel_reader keel_click_reader, keel_folder_reader;
#define KEEL_READER_DECLARED(kind, reader) extern const struct keel_reader reader;
KEEL_READERS(KEEL_READER_DECLARED)

/* Declare the next input: its shape gets the batch, times `per_sample` rows, in front. */
void keel_data_add_input(struct keel_data *data, const char *name, enum keel_dtype dtype, uint32_t per_sample,
                         uint32_t dims, const uint64_t *sizes);

/* 64 bits by a key, a number and an index: SplitMix64's finalizer over a counter (Steele et al. 2014). */
uint64_t keel_data_draw(uint64_t key, uint64_t number, uint64_t index);
/* Below `count`, from 32 of them (Lemire's multiplication; the bias is below count / 2^32). */
uint32_t keel_data_below(uint64_t draw, uint32_t count);

/* What readers of clicks share (data_teacher.c): numbers, rows of ids and labels as inputs; INVALID: more
 * rows than ids count; and whether a click was foreseen. */
enum keel_status keel_click_check_rows(const struct keel_job *job);
void keel_click_declare(struct keel_data *data, const struct keel_job *job);
bool keel_click_is_right(void *const *inputs, uint32_t row, const float *logits, uint32_t classes);
uint32_t keel_click_class_of(void *const *inputs, uint32_t row);

/* ---- data_augment.c: what is drawn for an image that is trained on, by the number of its sample ---- */

struct keel_augment {
    bool flip;
    uint32_t shift;
    float crop, mixup, smoothing;
    uint32_t classes;
};
/* Of a job whose classes are known. */
struct keel_augment keel_augment_of(const struct keel_job *job, uint32_t classes);

/* How an image is seen: moved, and mirrored then. `key`: of keel_image_key, for crops too. */
struct keel_image_view {
    bool mirrored;
    int32_t down, right;
    uint64_t key; /* 0: as it is to validate with */
};
/* A rectangle of an image: pixels, and where it begins in parts of `size` to the pixel (image_file.h). */
struct keel_image_box keel_image_crop(const struct keel_augment *augment, const struct keel_image_view *view,
                                      uint32_t width, uint32_t height, uint32_t size);

/* The images that a sample is made of: its own and, where `share` of it is below 1, another. */
struct keel_image_parts {
    uint64_t item[2];
    struct keel_image_view view[2];
    float share;
};
struct keel_image_parts keel_image_draw(const struct keel_data *data, const struct keel_sample *sample,
                                        const struct keel_augment *augment);

/* Inputs "images", of these sizes, "labels" and, with mixup, "mix". */
void keel_image_declare(struct keel_data *data, const struct keel_augment *augment, const uint64_t sizes[3]);
/* Fill place `slot` of them: `copy` writes image `item` as it is seen, `elements` floats; `label`: its class.
 */
struct keel_image_source {
    void *context;
    enum keel_status (*copy)(void *context, uint64_t item, const struct keel_image_view *view, float *out);
    int32_t (*label)(void *context, uint64_t item);
    uint64_t elements;
};
enum keel_status keel_image_fill(const struct keel_augment *augment, const struct keel_image_parts *parts,
                                 const struct keel_image_source *source, uint32_t slot, void *const *inputs);

/* What readers of images share (data_images.c). */
bool keel_image_is_right(void *const *inputs, uint32_t row, const float *logits, uint32_t classes);
uint32_t keel_image_class_of(void *const *inputs, uint32_t row);

/* Where a logit is the highest, the first of equals. */
uint32_t keel_data_highest(const float *logits, uint32_t classes);

#endif
