/* serve_request.c - see serve_request.h. */
#include "serve_request.h"
#include <jansson.h>
#include <keel/memory.h>
#include <string.h>

/* What the keys fill in. */
struct reading {
    const char *model;
    struct keel_serve_request *out;
};

static enum keel_status wants(const char *key, const char *what)
{
    return keel_fail(KEEL_INVALID, "%s: %s is wanted", key, what);
}

static enum keel_status read_prompt(struct reading *reading, const json_t *value)
{
    struct keel_serve_request *out = reading->out;
    if (!json_is_string(value))
        return wants("prompt", "a text");
    out->prompt_bytes = json_string_length(value);
    KEEL_TRY(keel_alloc(out->prompt_bytes + 1, 1, &out->prompt));
    memcpy(out->prompt, json_string_value(value), out->prompt_bytes);
    return KEEL_OK;
}

static enum keel_status read_whole(const char *key, const json_t *value, json_int_t least, json_int_t most,
                                   json_int_t *out)
{
    *out = json_integer_value(value);
    if (json_is_integer(value) && *out >= least && *out <= most)
        return KEEL_OK;
    return keel_fail(KEEL_INVALID,
                     "%s: a whole number from %" JSON_INTEGER_FORMAT " to %" JSON_INTEGER_FORMAT " is wanted",
                     key, least, most);
}

static enum keel_status read_tokens(struct reading *reading, const json_t *value)
{
    json_int_t number;
    KEEL_TRY(read_whole("max_tokens", value, 1, INT32_MAX, &number));
    reading->out->tokens = (uint32_t)number;
    return KEEL_OK;
}

static enum keel_status read_top_k(struct reading *reading, const json_t *value)
{
    json_int_t number;
    KEEL_TRY(read_whole("top_k", value, 0, UINT32_MAX, &number));
    reading->out->sampling.top_k = (uint32_t)number;
    return KEEL_OK;
}

static enum keel_status read_seed(struct reading *reading, const json_t *value)
{
    json_int_t number;
    KEEL_TRY(read_whole("seed", value, 0, INT64_MAX, &number));
    reading->out->sampling.seed = (uint64_t)number;
    return KEEL_OK;
}

static enum keel_status read_temperature(struct reading *reading, const json_t *value)
{
    if (!json_is_number(value))
        return wants("temperature", "a number");
    reading->out->sampling.temperature = (float)json_number_value(value);
    return KEEL_OK;
}

static enum keel_status read_top_p(struct reading *reading, const json_t *value)
{
    if (!json_is_number(value))
        return wants("top_p", "a number");
    reading->out->sampling.top_p = (float)json_number_value(value);
    return KEEL_OK;
}

static enum keel_status add_stop(struct keel_serve_request *out, const json_t *value)
{
    if (!json_is_string(value))
        return wants("stop", "a text, or a list of texts,");
    if (out->stop_count == KEEL_STOPS_MAX)
        return keel_fail(KEEL_INVALID, "stop: more than %d texts", KEEL_STOPS_MAX);
    return keel_strdup(json_string_value(value), &out->stops[out->stop_count++]);
}

/* A text, or several; null is none, as without the key. */
static enum keel_status read_stop(struct reading *reading, const json_t *value)
{
    struct keel_serve_request *out = reading->out;
    if (json_is_null(value))
        return KEEL_OK;
    if (!json_is_array(value))
        KEEL_TRY(add_stop(out, value));
    for (size_t i = 0; i < json_array_size(value); i++)
        KEEL_TRY(add_stop(out, json_array_get(value, i)));
    const struct keel_stops stops = {(const char *const *)out->stops, out->stop_count};
    if (keel_stops_check(&stops) == KEEL_OK)
        return KEEL_OK;
    char why[KEEL_DETAIL_BYTES];
    snprintf(why, sizeof why, "%.400s", keel_detail());
    return keel_fail(KEEL_INVALID, "stop: %s", why);
}

static enum keel_status read_stream(struct reading *reading, const json_t *value)
{
    if (!json_is_boolean(value))
        return wants("stream", "true or false");
    reading->out->stream = json_is_true(value);
    return KEEL_OK;
}

static enum keel_status read_model(struct reading *reading, const json_t *value)
{
    if (json_is_string(value) && strcmp(json_string_value(value), reading->model) == 0)
        return KEEL_OK;
    return keel_fail(KEEL_INVALID, "model: %s is served here, and nothing else", reading->model);
}

static const struct key {
    const char *name;
    enum keel_status (*read)(struct reading *reading, const json_t *value);
} keys[] = {
    {"prompt", read_prompt}, {"max_tokens", read_tokens}, {"temperature", read_temperature},
    {"top_k", read_top_k},   {"top_p", read_top_p},       {"seed", read_seed},
    {"stop", read_stop},     {"stream", read_stream},     {"model", read_model},
};
enum { KEY_COUNT = sizeof keys / sizeof keys[0] };

static enum keel_status read_keys(struct reading *reading, const json_t *object)
{
    const char *name;
    const json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        size_t k = 0;
        while (k < KEY_COUNT && strcmp(keys[k].name, name) != 0)
            k++;
        if (k == KEY_COUNT)
            return keel_fail(KEEL_INVALID,
                             "unknown key %.40s; there are prompt, max_tokens, temperature, top_k, top_p, "
                             "seed, stop, stream and model",
                             name);
        KEEL_TRY(keys[k].read(reading, value));
    }
    return keel_sampling_check(&reading->out->sampling);
}

enum keel_status keel_serve_request_read(const char *text, size_t bytes, const char *model, uint64_t seed,
                                         struct keel_serve_request *out)
{
    json_error_t error;
    struct reading reading = {.model = model, .out = out};
    *out = (struct keel_serve_request){
        .tokens = KEEL_SERVE_TOKENS_DEFAULT,
        .sampling = {.temperature = KEEL_TEMPERATURE, .top_p = 1.0F, .seed = seed}};
    if (bytes == 0)
        return keel_fail(KEEL_INVALID, "no JSON: the request has no body; {} is the least");
    json_t *object = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (object == NULL)
        return keel_fail(KEEL_INVALID, "no JSON: %.100s (line %d, column %d)", error.text, error.line,
                         error.column);
    enum keel_status status =
        json_is_object(object) ? read_keys(&reading, object) : keel_fail(KEEL_INVALID, "no JSON object");
    json_decref(object);
    if (status == KEEL_OK && out->prompt == NULL)
        status = keel_alloc(1, 1, &out->prompt);
    if (status != KEEL_OK)
        keel_serve_request_free(out);
    return status;
}

void keel_serve_request_free(struct keel_serve_request *request)
{
    keel_free(request->prompt);
    request->prompt = NULL;
    for (uint32_t i = 0; i < KEEL_STOPS_MAX; i++)
        keel_free(request->stops[i]);
    memset(request->stops, 0, sizeof request->stops);
}
