/* serve_answer.c - see serve_answer.h. */
#include "serve_answer.h"
#include <inttypes.h>
#include <keel/json.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const unsigned codes_of[KEEL_ANSWER_CODES] = {200, 400, 404, 405, 413, 500, 501, 503};

void keel_answer_count(struct keel_answer_codes *codes, unsigned code)
{
    uint32_t i = 0;
    while (i < KEEL_ANSWER_CODES && codes_of[i] != code)
        i++;
    KEEL_ASSERT(i < KEEL_ANSWER_CODES);
    codes->of[i]++;
}

void keel_answer_free(char *text)
{
    free(text); /* of open_memstream */
}

static enum keel_status open_text(char **out, size_t *out_bytes, FILE **file)
{
    *out = NULL;
    *file = open_memstream(out, out_bytes);
    return *file != NULL ? KEEL_OK : keel_fail(KEEL_NO_MEMORY, "no memory for an answer");
}

static enum keel_status close_text(char **out, FILE *file)
{
    const bool failed = ferror(file) != 0;
    if (fclose(file) == 0 && !failed)
        return KEEL_OK;
    free(*out);
    *out = NULL;
    return keel_fail(KEEL_NO_MEMORY, "no memory for an answer");
}

enum keel_status keel_answer_error(unsigned code, const char *why, char **out, size_t *out_bytes)
{
    FILE *file;
    KEEL_TRY(open_text(out, out_bytes, &file));
    struct keel_json json = {.out = file};
    keel_json_open(&json, NULL, '{');
    keel_json_open(&json, "error", '{');
    keel_json_number(&json, "code", code);
    keel_json_text(&json, "message", why);
    keel_json_close(&json, '}');
    keel_json_close(&json, '}');
    fputc('\n', file);
    return close_text(out, file);
}

enum keel_status keel_answer_health(const char *model, uint64_t step, bool draining, char **out,
                                    size_t *out_bytes)
{
    FILE *file;
    KEEL_TRY(open_text(out, out_bytes, &file));
    struct keel_json json = {.out = file};
    keel_json_open(&json, NULL, '{');
    keel_json_text(&json, "status", draining ? "ending" : "ok");
    keel_json_text(&json, "model", model);
    keel_json_number(&json, "step", step);
    keel_json_close(&json, '}');
    fputc('\n', file);
    return close_text(out, file);
}

/* ---- metrics ------------------------------------------------------------------------------------------- */

static void print_counter(FILE *file, const char *name, const char *help, uint64_t value)
{
    fprintf(file, "# HELP keel_serve_%s %s\n# TYPE keel_serve_%s counter\nkeel_serve_%s %" PRIu64 "\n", name,
            help, name, name, value);
}

static void print_gauge(FILE *file, const char *name, const char *help, uint64_t value)
{
    fprintf(file, "# HELP keel_serve_%s %s\n# TYPE keel_serve_%s gauge\nkeel_serve_%s %" PRIu64 "\n", name,
            help, name, name, value);
}

static void print_times(FILE *file, const struct keel_serve_figures *figures)
{
    fputs("# HELP keel_serve_request_seconds From taking a request to the end of its text.\n"
          "# TYPE keel_serve_request_seconds histogram\n",
          file);
    for (uint32_t i = 0; i < KEEL_SERVE_BOUNDS; i++)
        fprintf(file, "keel_serve_request_seconds_bucket{le=\"%g\"} %" PRIu64 "\n", keel_serve_bounds_s[i],
                figures->below[i]);
    fprintf(file,
            "keel_serve_request_seconds_bucket{le=\"+Inf\"} %" PRIu64
            "\nkeel_serve_request_seconds_sum %.6f\nkeel_serve_request_seconds_count %" PRIu64 "\n",
            figures->done, figures->request_s, figures->done);
}

enum keel_status keel_answer_metrics(const struct keel_serve_figures *figures,
                                     const struct keel_answer_codes *codes, uint32_t connections, char **out,
                                     size_t *out_bytes)
{
    FILE *file;
    KEEL_TRY(open_text(out, out_bytes, &file));
    fputs("# HELP keel_serve_answers_total Answers by HTTP status.\n"
          "# TYPE keel_serve_answers_total counter\n",
          file);
    for (uint32_t i = 0; i < KEEL_ANSWER_CODES; i++)
        fprintf(file, "keel_serve_answers_total{code=\"%u\"} %" PRIu64 "\n", codes_of[i], codes->of[i]);
    print_counter(file, "requests_total", "Requests for texts that were taken.", figures->taken);
    print_counter(file, "refused_total", "Requests for which the queue was full.", figures->refused);
    print_counter(file, "done_total", "Texts that were computed to their end.", figures->done);
    print_counter(file, "given_up_total", "Texts whose clients went away.", figures->given_up);
    print_counter(file, "failed_total", "Texts that the device failed at.", figures->failed);
    print_counter(file, "prompt_tokens_total", "Tokens of prompts.", figures->prompt_tokens);
    print_counter(file, "tokens_total", "Tokens that were generated.", figures->tokens);
    print_counter(file, "steps_total", "Steps of the model, each for all texts.", figures->steps);
    fprintf(file,
            "# HELP keel_serve_busy_seconds_total Time in steps.\n"
            "# TYPE keel_serve_busy_seconds_total counter\nkeel_serve_busy_seconds_total %.6f\n",
            figures->busy_s);
    print_gauge(file, "queued", "Requests that wait.", figures->queued);
    print_gauge(file, "active", "Texts that are computed.", figures->active);
    print_gauge(file, "connections", "Connections of clients.", connections);
    print_times(file, figures);
    return close_text(out, file);
}

/* ---- texts --------------------------------------------------------------------------------------------- */

/* Bytes of a ticket's text as a C text. */
static enum keel_status copy_text(struct keel_serve_ticket *ticket, size_t from, size_t bytes, char **out)
{
    KEEL_TRY(keel_alloc(bytes + 1, 1, out));
    keel_serve_ticket_copy(ticket, from, *out, bytes);
    keel_hide_zeros(*out, bytes);
    return KEEL_OK;
}

/* What a completion and an event of one have in common; `end`: NULL, or why the text is whole. */
static void print_choice(struct keel_json *json, const char *model, const char *text, const char *end)
{
    keel_json_text(json, "object", "text_completion");
    keel_json_text(json, "model", model);
    keel_json_open(json, "choices", '[');
    keel_json_open(json, NULL, '{');
    keel_json_number(json, "index", 0);
    keel_json_text(json, "text", text);
    keel_json_text(json, "finish_reason", end);
    keel_json_close(json, '}');
    keel_json_close(json, ']');
}

/* Why a text is whole, as OpenAI's API has it. */
static const char *end_of(const struct keel_serve_state *state)
{
    return state->status != KEEL_OK ? "error" : state->stopped ? "stop" : "length";
}

static void print_usage(struct keel_json *json, const struct keel_serve_state *state)
{
    keel_json_number(json, "seed", state->seed);
    keel_json_open(json, "usage", '{');
    keel_json_number(json, "prompt_tokens", state->prompt_tokens);
    keel_json_number(json, "completion_tokens", state->tokens);
    keel_json_number(json, "total_tokens", (uint64_t)state->prompt_tokens + state->tokens);
    keel_json_close(json, '}');
}

enum keel_status keel_answer_text(struct keel_serve_ticket *ticket, const char *model, char **out,
                                  size_t *out_bytes)
{
    const struct keel_serve_state state = keel_serve_ticket_look(ticket);
    FILE *file;
    char *text;
    KEEL_TRY(copy_text(ticket, 0, state.bytes, &text));
    enum keel_status status = open_text(out, out_bytes, &file);
    if (status == KEEL_OK) {
        struct keel_json json = {.out = file};
        keel_json_open(&json, NULL, '{');
        print_choice(&json, model, text, end_of(&state));
        print_usage(&json, &state);
        keel_json_close(&json, '}');
        fputc('\n', file);
        status = close_text(out, file);
    }
    keel_free(text);
    return status;
}

/* ---- streams ------------------------------------------------------------------------------------------- */

bool keel_answer_stream_is_out(const struct keel_answer_stream *stream)
{
    return stream->taken == stream->bytes;
}

static void print_event(FILE *file, const char *model, const char *text, const struct keel_serve_state *state)
{
    struct keel_json json = {.out = file};
    fputs("data: ", file);
    keel_json_open(&json, NULL, '{');
    print_choice(&json, model, text, state->done ? end_of(state) : NULL);
    if (state->done)
        print_usage(&json, state);
    keel_json_close(&json, '}');
    fputs(state->done ? "\n\ndata: [DONE]\n\n" : "\n\n", file);
}

enum keel_status keel_answer_stream_more(struct keel_answer_stream *stream, struct keel_serve_ticket *ticket,
                                         const char *model)
{
    const struct keel_serve_state state = keel_serve_ticket_look(ticket);
    FILE *file;
    char *text;
    keel_answer_free(stream->text);
    stream->text = NULL;
    stream->bytes = stream->taken = 0;
    KEEL_TRY(copy_text(ticket, stream->seen, state.bytes - stream->seen, &text));
    enum keel_status status = open_text(&stream->text, &stream->bytes, &file);
    if (status == KEEL_OK) {
        print_event(file, model, text, &state);
        status = close_text(&stream->text, file);
    }
    keel_free(text);
    stream->seen = state.bytes;
    stream->ended = state.done;
    return status;
}

size_t keel_answer_stream_take(struct keel_answer_stream *stream, char *out, size_t room)
{
    const size_t left = stream->bytes - stream->taken, bytes = left < room ? left : room;
    memcpy(out, stream->text + stream->taken, bytes);
    stream->taken += bytes;
    return bytes;
}

void keel_answer_stream_free(struct keel_answer_stream *stream)
{
    keel_answer_free(stream->text);
}
