/* generate.c - see generate.h. */
#include "generate.h"
#include "data_reader.h"
#include <keel/kernels.h>
#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLE_STREAM = 0x7fffffff };
static const float temperature_most = 1000.0F;

enum keel_status keel_sampling_check(const struct keel_sampling *sampling)
{
    if (!(sampling->temperature >= 0.0F && sampling->temperature <= temperature_most)) /* NaN is neither */
        return keel_fail(KEEL_INVALID, "a temperature of %g: 0, for the likeliest token, to %g are allowed",
                         (double)sampling->temperature, (double)temperature_most);
    if (!(sampling->top_p > 0.0F && sampling->top_p <= 1.0F))
        return keel_fail(KEEL_INVALID, "a top p of %g: above 0, to 1 for all tokens, is allowed",
                         (double)sampling->top_p);
    return KEEL_OK;
}

enum keel_status keel_stops_check(const struct keel_stops *stops)
{
    if (stops->count > KEEL_STOPS_MAX)
        return keel_fail(KEEL_INVALID, "%u texts to stop at: at most %d", stops->count, KEEL_STOPS_MAX);
    for (uint32_t i = 0; i < stops->count; i++) {
        const size_t bytes = strlen(stops->texts[i]);
        if (bytes == 0 || bytes > KEEL_STOP_BYTES_MAX)
            return keel_fail(KEEL_INVALID, "a text to stop at of %zu bytes: 1 to %d are allowed", bytes,
                             KEEL_STOP_BYTES_MAX);
    }
    return KEEL_OK;
}

/* The likeliest first, of equal ones that with the lower number. */
static int compare(const void *a, const void *b)
{
    const struct keel_token_weight *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight > y->weight ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

/* Weights of tokens that are left out become 0. `order`: room for `count`. */
static void leave_out(const struct keel_sampling *sampling, float *weights, uint32_t count,
                      struct keel_token_weight *order)
{
    uint32_t keep = sampling->top_k > 0 && sampling->top_k < count ? sampling->top_k : count;
    float all = 0, seen = 0;
    if (keep == count && sampling->top_p >= 1.0F)
        return;
    for (uint32_t i = 0; i < count; i++)
        order[i] = (struct keel_token_weight){weights[i], i};
    qsort(order, count, sizeof *order, compare);
    for (uint32_t i = 0; i < keep; i++)
        all += order[i].weight;
    for (uint32_t i = 0; i < keep && sampling->top_p < 1.0F; i++) {
        seen += order[i].weight;
        if (seen >= sampling->top_p * all)
            keep = i + 1;
    }
    for (uint32_t i = keep; i < count; i++)
        weights[order[i].token] = 0;
}

uint32_t keel_sampling_draw(const struct keel_sampling *sampling, const float *logits, uint32_t count,
                            float uniform, struct keel_sampling_scratch scratch)
{
    const uint32_t best = keel_data_highest(logits, count);
    float sum = 0;
    if (sampling->temperature == 0.0F)
        return best;
    for (uint32_t i = 0; i < count; i++)
        scratch.weights[i] = keel_canon_exp((logits[i] - logits[best]) / sampling->temperature);
    leave_out(sampling, scratch.weights, count, scratch.order);
    for (uint32_t i = 0; i < count; i++)
        sum += scratch.weights[i];
    float wanted = uniform * sum, seen = 0;
    uint32_t last = best;
    for (uint32_t i = 0; i < count; i++) {
        seen += scratch.weights[i];
        if (wanted < seen)
            return i;
        last = scratch.weights[i] > 0 ? i : last;
    }
    return last;
}

static enum keel_status allocate(struct keel_writing *text)
{
    const struct keel_generator *of = &text->of;
    KEEL_TRY(keel_alloc((size_t)of->prompt_count + of->tokens, sizeof *text->tokens, &text->tokens));
    KEEL_TRY(keel_alloc(text->choices, sizeof *text->scratch.weights, &text->scratch.weights));
    return keel_alloc(text->choices, sizeof *text->scratch.order, &text->scratch.order);
}

enum keel_status keel_writing_begin(struct keel_writing *text, const struct keel_generator *generation)
{
    const uint32_t vocab = keel_data_vocab(generation->data);
    *text = (struct keel_writing){.of = *generation,
                                  .choices = vocab < generation->vocab ? vocab : generation->vocab};
    struct keel_generator *of = &text->of;
    const int32_t first = (int32_t)keel_data_first_token(of->data);
    const int32_t *prompt = of->prompt_count > 0 ? of->prompt : &first;
    of->prompt = NULL; /* copied below */
    of->prompt_count += of->prompt_count == 0;
    KEEL_TRY(keel_sampling_check(&of->sampling));
    KEEL_TRY(keel_stops_check(&of->stops));
    if (of->prompt_count > of->block)
        return keel_fail(
            KEEL_INVALID,
            "the prompt has %u tokens, and the model sees %u at once (model.block): give at most "
            "so many",
            of->prompt_count, of->block);
    KEEL_TRY(allocate(text));
    memcpy(text->tokens, prompt, of->prompt_count * sizeof *text->tokens);
    text->count = of->prompt_count;
    return KEEL_OK;
}

const int32_t *keel_writing_window(const struct keel_writing *text, uint32_t *length)
{
    *length = text->count < text->of.block ? text->count : text->of.block;
    return text->tokens + (text->count - *length);
}

/* Where the stop begins that is whole first, byte by byte, so that it does not matter how tokens cut the
 * text; held_bytes: there is none. */
static size_t find_stop(const struct keel_writing *text)
{
    const struct keel_stops *stops = &text->of.stops;
    size_t found = text->held_bytes, end = SIZE_MAX;
    for (size_t at = 0; at < text->held_bytes; at++)
        for (uint32_t i = 0; i < stops->count; i++) {
            const size_t bytes = strlen(stops->texts[i]);
            if (bytes > text->held_bytes - at || at + bytes >= end ||
                memcmp(text->held + at, stops->texts[i], bytes) != 0)
                continue;
            found = at;
            end = at + bytes;
        }
    return found;
}

/* Where the end of what is held may be the begin of a stop; held_bytes: nowhere. */
static size_t find_begin(const struct keel_writing *text)
{
    const struct keel_stops *stops = &text->of.stops;
    for (size_t at = 0; at < text->held_bytes; at++)
        for (uint32_t i = 0; i < stops->count; i++) {
            const size_t left = text->held_bytes - at;
            if (strlen(stops->texts[i]) > left && memcmp(text->held + at, stops->texts[i], left) == 0)
                return at;
        }
    return text->held_bytes;
}

/* Write a token's text, but for what a stop may begin with. */
static enum keel_status write_held(struct keel_writing *text, uint32_t token, const char *more, size_t bytes)
{
    const struct keel_generator *of = &text->of;
    if (of->stops.count == 0)
        return of->write(of->context, token, more, bytes);
    KEEL_TRY(keel_grow(&text->held, &text->held_capacity, text->held_bytes + bytes + 1, 1));
    memcpy(text->held + text->held_bytes, more, bytes);
    text->held_bytes += bytes;
    size_t out = find_stop(text);
    text->stopped = out < text->held_bytes;
    if (!text->stopped && text->drawn < of->tokens)
        out = find_begin(text);
    const enum keel_status status = of->write(of->context, token, text->held, out);
    text->held_bytes -= out;
    memmove(text->held, text->held + out, text->held_bytes);
    return status;
}

enum keel_status keel_writing_draw(struct keel_writing *text, const float *logits)
{
    const struct keel_generator *of = &text->of;
    const struct keel_control control = {.seed_lo = (uint32_t)of->sampling.seed,
                                         .seed_hi = (uint32_t)(of->sampling.seed >> 32)};
    const float uniform = keel_random_uniform(&control, SAMPLE_STREAM, text->drawn);
    char spelling[KEEL_TOKEN_TEXT_BYTES];
    size_t bytes;
    KEEL_ASSERT(!keel_writing_is_whole(text));
    KEEL_ASSERT(text->tokens != NULL && text->scratch.weights != NULL && text->scratch.order != NULL);
    const uint32_t token = keel_sampling_draw(&of->sampling, logits, text->choices, uniform, text->scratch);
    text->tokens[text->count++] = (int32_t)token;
    text->drawn++;
    const char *written = keel_data_text_of(of->data, token, spelling, &bytes);
    return write_held(text, token, written, bytes);
}

bool keel_writing_is_whole(const struct keel_writing *text)
{
    return text->stopped || text->drawn == text->of.tokens;
}

void keel_writing_end(struct keel_writing *text)
{
    keel_free(text->tokens);
    keel_free(text->scratch.weights);
    keel_free(text->scratch.order);
    keel_free(text->held);
}

size_t keel_whole_characters(const char *text, size_t bytes)
{
    for (size_t back = 1; back <= 3 && back <= bytes; back++) {
        const uint8_t byte = (uint8_t)text[bytes - back];
        const size_t wanted = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
        if ((byte & 0xc0) != 0x80)
            return wanted > back ? bytes - back : bytes;
    }
    return bytes;
}

void keel_hide_zeros(char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (text[i] == '\0')
            text[i] = (char)0xff;
}

enum keel_status keel_generate(const struct keel_generator *generation)
{
    struct keel_writing text;
    uint32_t length;
    const float *logits;
    enum keel_status status = keel_writing_begin(&text, generation);
    while (status == KEEL_OK && !keel_writing_is_whole(&text)) {
        const int32_t *window = keel_writing_window(&text, &length);
        status = generation->predict(generation->context, window, length, &logits);
        if (status == KEEL_OK)
            status = keel_writing_draw(&text, logits);
    }
    if (generation->out_stopped != NULL)
        *generation->out_stopped = text.stopped;
    keel_writing_end(&text);
    return status;
}
