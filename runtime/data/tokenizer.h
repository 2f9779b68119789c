/* tokenizer.h - byte-level byte-pair encoding (Sennrich et al. 2016), as GPT-2 has it (Radford et al. 2019).
 *
 * A text is cut into pieces by GPT-2's expression: contractions, and runs of letters, of numbers, of other
 * signs, each with a blank in front, and white space. Of a piece each byte is a token; then the pair whose
 * merge stands first in the list is merged, the first of equals, until none is left. Ids are those of the
 * tokenizers library of Hugging Face.
 *
 * Read from vocab.json and merges.txt, or from tokenizer.json of that library, with its added tokens, which
 * stand for themselves wherever they are in a text. What is not GPT-2's (other pre-tokenizers, normalizers,
 * options of the model) is refused by name. A tokenizer is constant once it is read; any thread. */
#ifndef KEEL_TOKENIZER_H
#define KEEL_TOKENIZER_H

#include <keel/file.h>

struct keel_tokenizer;

/* `files`: "tokenizer.json", or "vocab.json,merges.txt". NOT_FOUND; CORRUPT, no JSON, and INVALID name file
 * and place. */
enum keel_status keel_tokenizer_open(const char *files, struct keel_tokenizer **out);
/* The same of texts in memory, which are not changed; `merges` NULL: `json` is that of a tokenizer.json. The
 * names are for messages. */
struct keel_tokenizer_source {
    const char *json, *json_name;
    size_t json_bytes;
    const char *merges, *merges_name;
    size_t merges_bytes;
};
enum keel_status keel_tokenizer_parse(const struct keel_tokenizer_source *source,
                                      struct keel_tokenizer **out);
void keel_tokenizer_close(struct keel_tokenizer *tokenizer);

uint32_t keel_tokenizer_vocab(const struct keel_tokenizer *tokenizer);  /* the highest id, and one */
uint64_t keel_tokenizer_digest(const struct keel_tokenizer *tokenizer); /* XXH3-64 of the files */
/* The id of a byte alone. */
uint32_t keel_tokenizer_byte(const struct keel_tokenizer *tokenizer, uint8_t byte);
/* The bytes that an id stands for, which may be part of a character; 0 bytes: there is no such id. */
const char *keel_tokenizer_text(const struct keel_tokenizer *tokenizer, uint32_t id, size_t *out_bytes);

/* Encodes texts, one thread at a time; borrows the tokenizer. */
struct keel_encoder;
enum keel_status keel_encoder_create(const struct keel_tokenizer *tokenizer, struct keel_encoder **out);
void keel_encoder_destroy(struct keel_encoder *encoder);

/* The ids of as much of a text as does not depend on what comes behind `bytes` (all, with at_end): the next
 * call begins at *out_used, with more. *out_ids are the encoder's until its next call. INVALID: the text is
 * no UTF-8 at *out_used, which the caller says. NO_MEMORY. */
enum keel_status keel_encoder_run(struct keel_encoder *encoder, const char *text, size_t bytes, bool at_end,
                                  size_t *out_used, const uint32_t **out_ids, size_t *out_count);

#endif
