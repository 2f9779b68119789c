/* tokenizer.c - encoding: see tokenizer.h. */
#include "tokenizer_internal.h"
#include "unicode.h"
#include <keel/memory.h>
#include <string.h>
#include <xxhash.h>

enum { CACHE_SLOTS = 1 << 14, CACHE_BYTES = 24, CACHE_IDS = 8, CHARACTER_BYTES = 4 };

/* A token of a piece while its neighbours are merged. */
struct symbol {
    uint32_t id;
    int32_t before, behind; /* -1: none */
    bool gone;              /* merged into the one before */
};
struct candidate {
    uint32_t rank, at, merged;
};
/* A short piece that was encoded before. */
struct cached {
    uint8_t bytes, count; /* 0 bytes: nothing */
    char text[CACHE_BYTES];
    uint32_t ids[CACHE_IDS];
};
struct keel_encoder {
    const struct keel_tokenizer *tokenizer;
    uint32_t *ids; /* owned, as all of these */
    size_t count, capacity;
    struct symbol *symbols;
    size_t symbol_capacity;
    struct candidate *heap; /* the least rank, then the first place, on top */
    size_t heap_count, heap_capacity;
    struct cached *cache;
};

uint32_t keel_tokenizer_vocab(const struct keel_tokenizer *tokenizer)
{
    return tokenizer->vocab;
}

uint64_t keel_tokenizer_digest(const struct keel_tokenizer *tokenizer)
{
    return tokenizer->digest;
}

uint32_t keel_tokenizer_byte(const struct keel_tokenizer *tokenizer, uint8_t byte)
{
    return tokenizer->byte_token[byte];
}

const char *keel_tokenizer_text(const struct keel_tokenizer *tokenizer, uint32_t id, size_t *out_bytes)
{
    *out_bytes = id < tokenizer->vocab ? tokenizer->tokens[id].bytes : 0;
    return *out_bytes > 0 ? tokenizer->texts + tokenizer->tokens[id].offset : "";
}

enum keel_status keel_encoder_create(const struct keel_tokenizer *tokenizer, struct keel_encoder **out)
{
    struct keel_encoder *encoder;
    KEEL_TRY(keel_alloc(1, sizeof *encoder, &encoder));
    encoder->tokenizer = tokenizer;
    enum keel_status status = keel_alloc(CACHE_SLOTS, sizeof *encoder->cache, &encoder->cache);
    if (status == KEEL_OK)
        *out = encoder;
    else
        keel_free(encoder);
    return status;
}

void keel_encoder_destroy(struct keel_encoder *encoder)
{
    if (encoder == NULL)
        return;
    keel_free(encoder->ids);
    keel_free(encoder->symbols);
    keel_free(encoder->heap);
    keel_free(encoder->cache);
    keel_free(encoder);
}

/* ---- merges -------------------------------------------------------------------------------------------- */

static bool is_before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push(struct keel_encoder *encoder, struct candidate candidate)
{
    size_t at = encoder->heap_count++;
    for (; at > 0 && is_before(&candidate, &encoder->heap[(at - 1) / 2]); at = (at - 1) / 2)
        encoder->heap[at] = encoder->heap[(at - 1) / 2];
    encoder->heap[at] = candidate;
}

static struct candidate pop(struct keel_encoder *encoder)
{
    const struct candidate top = encoder->heap[0], last = encoder->heap[--encoder->heap_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < encoder->heap_count && is_before(&encoder->heap[child + 1], &encoder->heap[child]))
            child++;
        if (child >= encoder->heap_count || !is_before(&encoder->heap[child], &last))
            break;
        encoder->heap[at] = encoder->heap[child];
        at = child;
    }
    encoder->heap[at] = last;
    return top;
}

/* The symbol at `at` and the one behind it, if they merge. */
static void consider(struct keel_encoder *encoder, int32_t at)
{
    if (at < 0 || encoder->symbols[at].behind < 0)
        return;
    const struct keel_merge *merge = keel_merge_find(encoder->tokenizer, encoder->symbols[at].id,
                                                     encoder->symbols[encoder->symbols[at].behind].id);
    if (merge->left != KEEL_NO_TOKEN)
        push(encoder, (struct candidate){merge->rank, (uint32_t)at, merge->merged});
}

static void merge_all(struct keel_encoder *encoder)
{
    struct symbol *symbols = encoder->symbols;
    while (encoder->heap_count > 0) {
        const struct candidate next = pop(encoder);
        struct symbol *left = &symbols[next.at];
        if (left->gone || left->behind < 0)
            continue;
        struct symbol *right = &symbols[left->behind];
        const struct keel_merge *merge = keel_merge_find(encoder->tokenizer, left->id, right->id);
        if (merge->left == KEEL_NO_TOKEN || merge->merged != next.merged) /* another pair by now */
            continue;
        left->id = next.merged;
        left->behind = right->behind;
        right->gone = true;
        if (left->behind >= 0)
            symbols[left->behind].before = (int32_t)next.at;
        consider(encoder, left->before);
        consider(encoder, (int32_t)next.at);
    }
}

static enum keel_status append(struct keel_encoder *encoder, uint32_t id)
{
    KEEL_TRY(keel_grow(&encoder->ids, &encoder->capacity, encoder->count + 1, sizeof *encoder->ids));
    encoder->ids[encoder->count++] = id;
    return KEEL_OK;
}

static enum keel_status merge_piece(struct keel_encoder *encoder, const uint8_t *piece, size_t bytes)
{
    KEEL_TRY(keel_grow(&encoder->symbols, &encoder->symbol_capacity, bytes, sizeof *encoder->symbols));
    KEEL_TRY(keel_grow(&encoder->heap, &encoder->heap_capacity, 3 * bytes, sizeof *encoder->heap));
    for (size_t b = 0; b < bytes; b++)
        encoder->symbols[b] = (struct symbol){.id = encoder->tokenizer->byte_token[piece[b]],
                                              .before = (int32_t)b - 1,
                                              .behind = b + 1 < bytes ? (int32_t)b + 1 : -1};
    encoder->heap_count = 0;
    for (size_t b = 0; b < bytes; b++)
        consider(encoder, (int32_t)b);
    merge_all(encoder);
    for (int32_t s = 0; s >= 0; s = encoder->symbols[s].behind)
        KEEL_TRY(append(encoder, encoder->symbols[s].id));
    return KEEL_OK;
}

static enum keel_status encode_piece(struct keel_encoder *encoder, const uint8_t *piece, size_t bytes)
{
    if (bytes > CACHE_BYTES)
        return merge_piece(encoder, piece, bytes);
    struct cached *cached = &encoder->cache[XXH3_64bits(piece, bytes) % CACHE_SLOTS];
    const size_t first = encoder->count;
    if (cached->bytes == bytes && memcmp(cached->text, piece, bytes) == 0) {
        for (uint8_t i = 0; i < cached->count; i++)
            KEEL_TRY(append(encoder, cached->ids[i]));
        return KEEL_OK;
    }
    KEEL_TRY(merge_piece(encoder, piece, bytes));
    const size_t count = encoder->count - first;
    if (count > CACHE_IDS)
        return KEEL_OK;
    cached->bytes = (uint8_t)bytes;
    cached->count = (uint8_t)count;
    memcpy(cached->text, piece, bytes);
    memcpy(cached->ids, encoder->ids + first, count * sizeof *cached->ids);
    return KEEL_OK;
}

/* ---- pieces -------------------------------------------------------------------------------------------- */

/* Characters of one class: where they end, and where the last one begins. bad: what stands there is no UTF-8.
 */
struct span {
    size_t end, last;
    bool bad;
};

static struct span read_run(const uint8_t *text, size_t at, size_t end, enum keel_unicode_class class)
{
    struct span span = {at, at, false};
    while (span.end < end) {
        uint32_t point;
        const uint32_t bytes = keel_utf8_read(text + span.end, end - span.end, &point);
        span.bad = bytes == 0;
        if (bytes == 0 || keel_unicode_class_of(point) != class)
            break;
        span.last = span.end;
        span.end += bytes;
    }
    return span;
}

/* 's, 't, 're, 've, 'm, 'll or 'd: its bytes, or 0. */
static size_t contraction(const uint8_t *text, size_t bytes)
{
    static const char *const ends[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    for (size_t i = 0; bytes > 1 && text[0] == '\'' && i < sizeof ends / sizeof ends[0]; i++) {
        const size_t length = strlen(ends[i]);
        if (bytes > length && memcmp(text + 1, ends[i], length) == 0)
            return length + 1;
    }
    return 0;
}

/* The piece at `at`: where it ends. `at` itself: the text is no UTF-8 there. By GPT-2's expression,
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t end_of_piece(const uint8_t *text, size_t at, size_t end)
{
    uint32_t point;
    const size_t shortened = contraction(text + at, end - at);
    if (shortened > 0)
        return at + shortened;
    size_t begin = at + (text[at] == ' ' && at + 1 < end ? 1 : 0);
    if (keel_utf8_read(text + begin, end - begin, &point) == 0)
        return begin; /* the blank alone, or nothing */
    const enum keel_unicode_class class = keel_unicode_class_of(point);
    if (class != KEEL_UNICODE_SPACE)
        return read_run(text, begin, end, class).end;
    const struct span run = read_run(text, at, end, KEEL_UNICODE_SPACE);
    return run.end == end || run.bad || run.last == at ? run.end : run.last;
}

/* The longest added token of a kind that stands at `at`: its id and bytes, or KEEL_NO_TOKEN. */
static uint32_t added_at(const struct keel_tokenizer *t, bool behind, const uint8_t *at, size_t bytes,
                         size_t *out_bytes)
{
    uint32_t found = KEEL_NO_TOKEN;
    *out_bytes = 0;
    for (size_t i = 0; t->begins_added[at[0]] && i < t->added_count; i++) {
        const struct keel_token_text *text = &t->tokens[t->added[i].id];
        if (t->added[i].behind == behind && text->bytes > *out_bytes && text->bytes <= bytes &&
            memcmp(t->texts + text->offset, at, text->bytes) == 0) {
            found = t->added[i].id;
            *out_bytes = text->bytes;
        }
    }
    return found;
}

/* Where the next added token of a kind begins, or the end. */
static size_t next_added(const struct keel_tokenizer *t, bool behind, const uint8_t *text, size_t at,
                         size_t end)
{
    size_t bytes;
    while (at < end &&
           (!t->begins_added[text[at]] || added_at(t, behind, text + at, end - at, &bytes) == KEEL_NO_TOKEN))
        at++;
    return at;
}

enum keel_status keel_encoder_run(struct keel_encoder *encoder, const char *text, size_t bytes, bool at_end,
                                  size_t *out_used, const uint32_t **out_ids, size_t *out_count)
{
    const struct keel_tokenizer *t = encoder->tokenizer;
    const uint8_t *all = (const uint8_t *)text;
    /* What begins before this place is not changed by what comes behind. */
    const size_t margin = t->longest_added > CHARACTER_BYTES ? t->longest_added : CHARACTER_BYTES;
    /* The next that is found in the text as it is; and in front of that the next of the others. */
    size_t at = 0, first = next_added(t, false, all, 0, bytes), added = next_added(t, true, all, 0, first);
    enum keel_status status = KEEL_OK;
    KEEL_ASSERT(bytes <= INT32_MAX);
    encoder->count = 0;
    while (at < bytes && status == KEEL_OK) {
        size_t end;
        if (at == added) {
            const bool behind = at < first;
            const uint32_t id = added_at(t, behind, all + at, (behind ? first : bytes) - at, &end);
            /* A longer one may stand here, or one that comes first begin in it. */
            if (!at_end && bytes - at < t->longest_added + (behind ? end : 0))
                break;
            status = append(encoder, id);
            at += end;
            first = behind ? first : next_added(t, false, all, at, bytes);
            added = next_added(t, true, all, at, first);
            continue;
        }
        end = end_of_piece(all, at, added);
        if (!at_end && (end + margin > bytes))
            break;
        if (end == at)
            status = KEEL_INVALID; /* the caller knows where it is */
        else
            status = encode_piece(encoder, all + at, end - at);
        at = end;
    }
    *out_used = at;
    *out_ids = encoder->ids;
    *out_count = encoder->count;
    return status;
}
