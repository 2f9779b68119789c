/* generate.h - text from a model that predicts the next token: one token after the other, drawn by the
 * counter-based generator, so that a seed gives the same text wherever the logits have the same bits. One
 * loop, for the text at the end of a run and for keel sample. */
#ifndef KEEL_GENERATE_H
#define KEEL_GENERATE_H

#include "data.h"

#define KEEL_TEMPERATURE 0.8F /* of a run's own text */

/* Which of the likely tokens is taken. Of the logits divided by `temperature` the top_k highest stay, and of
 * these the fewest whose probabilities add up to top_p, as always one does (Fan et al. 2018; Holtzman et al.
 * 2020); of equal ones those with lower numbers. */
struct keel_sampling {
    float temperature; /* 0: the highest logit, of equal ones the first */
    uint32_t top_k;    /* 0: all */
    float top_p;       /* above 0; 1: all */
    uint64_t seed;
};
/* INVALID: a value out of its range. */
enum keel_status keel_sampling_check(const struct keel_sampling *sampling);

/* Texts at whose first appearance a text ends, without it; borrowed. */
enum { KEEL_STOPS_MAX = 4, KEEL_STOP_BYTES_MAX = 1024 };
struct keel_stops {
    const char *const *texts;
    uint32_t count;
};
/* INVALID: more than there may be, or one that is empty or too long. */
enum keel_status keel_stops_check(const struct keel_stops *stops);

/* One of `count` tokens, by a uniform number in [0, 1). The scratch has room for `count` of each. Pure. */
struct keel_token_weight {
    float weight;
    uint32_t token;
};
struct keel_sampling_scratch {
    float *weights;
    struct keel_token_weight *order;
};
uint32_t keel_sampling_draw(const struct keel_sampling *sampling, const float *logits, uint32_t count,
                            float uniform, struct keel_sampling_scratch scratch);

struct keel_generator {
    const struct keel_data *data;
    struct keel_sampling sampling;
    struct keel_stops stops;
    bool *out_stopped;     /* by keel_generate: one of them has ended the text; may be NULL */
    const int32_t *prompt; /* NULL: the token that text goes on from (keel_data_first_token) */
    uint32_t prompt_count, tokens;
    uint32_t block; /* tokens that the model sees at once: the last ones */
    uint32_t vocab; /* logits, of which those that the data have are drawn from */
    /* The logits behind the last of `length` tokens, in memory of the callee; it has the same ones before. */
    enum keel_status (*predict)(void *context, const int32_t *window, uint32_t length, const float **out);
    /* The next token, and text: its own but for an end that a stop may begin with, which comes with a later
     * token. A status other than OK ends it. */
    enum keel_status (*write)(void *context, uint32_t token, const char *text, size_t bytes);
    void *context;
};
/* INVALID: sampling, stops, or a prompt longer than `block`. Errors: of the callbacks; NO_MEMORY. */
enum keel_status keel_generate(const struct keel_generator *generation);

/* The same text token by token, for who computes the logits of several texts at once (keel serve). */
struct keel_writing {
    struct keel_generator of;
    int32_t *tokens; /* owned, as the scratch: prompt, and what was drawn */
    uint32_t count, drawn;
    struct keel_sampling_scratch scratch;
    char *held; /* owned: text that a stop may begin with */
    size_t held_bytes, held_capacity;
    bool stopped;     /* by one of them */
    uint32_t choices; /* tokens that there are: a padded vocabulary has no text behind the rest */
};
/* `predict` is not called, and the prompt is copied. Errors as of keel_generate; keel_writing_end also then.
 */
enum keel_status keel_writing_begin(struct keel_writing *text, const struct keel_generator *generation);
/* The tokens behind which the next logits are wanted. */
const int32_t *keel_writing_window(const struct keel_writing *text, uint32_t *length);
/* Draw the next token from them, and write it. Not of a text that is whole. */
enum keel_status keel_writing_draw(struct keel_writing *text, const float *logits);
bool keel_writing_is_whole(const struct keel_writing *text);
void keel_writing_end(struct keel_writing *text);
/* So many of the bytes are whole characters of UTF-8, or no UTF-8: the rest is the begin of one. */
size_t keel_whole_characters(const char *text, size_t bytes);
/* Bytes that are 0, at which a C text would end, become ones that are no UTF-8: JSON has them as U+FFFD. */
void keel_hide_zeros(char *text, size_t bytes);

#endif
