/* tokenizer_internal.h - what a tokenizer is made of: read by tokenizer_read.c, used by tokenizer.c. */
#ifndef KEEL_TOKENIZER_INTERNAL_H
#define KEEL_TOKENIZER_INTERNAL_H

#include "tokenizer.h"

enum { KEEL_BYTE_VALUES = 256, KEEL_TOKENIZER_VOCAB_MAX = 1 << 20 };
#define KEEL_NO_TOKEN UINT32_MAX

/* Two neighbours that become one, and where it stands in the list. In a hash table with linear probing. */
struct keel_merge {
    uint32_t left, right; /* ids; left KEEL_NO_TOKEN: the place is empty */
    uint32_t rank, merged;
};
struct keel_token_text {
    size_t offset; /* within `texts` */
    uint32_t bytes;
};
/* A token that stands for itself: found in the text as it is, or (`behind`) in what others have left of it.
 */
struct keel_added {
    uint32_t id;
    bool behind;
};
struct keel_tokenizer {
    uint32_t vocab;
    uint64_t digest;
    struct keel_token_text *tokens; /* owned, `vocab` of them */
    char *texts;                    /* owned */
    size_t text_bytes, text_capacity;
    struct keel_merge *merges; /* owned */
    uint32_t merge_mask;       /* places - 1: a power of two less one */
    uint32_t byte_token[KEEL_BYTE_VALUES];
    struct keel_added *added; /* owned */
    size_t added_count, added_capacity;
    size_t longest_added; /* bytes */
    bool begins_added[KEEL_BYTE_VALUES];
};

/* Where the pair is in the table, or the empty place where it would be. */
struct keel_merge *keel_merge_find(const struct keel_tokenizer *tokenizer, uint32_t left, uint32_t right);

#endif
