/* serve_answer.h - what keel serve answers with: JSON, the events of a stream, metrics. Texts are on the
 * heap, and freed by keel_answer_free. Pure but for what they ask a ticket. NO_MEMORY. */
#ifndef KEEL_SERVE_ANSWER_H
#define KEEL_SERVE_ANSWER_H

#include "serve.h"

/* Answers by their code. */
enum { KEEL_ANSWER_CODES = 8 };
struct keel_answer_codes {
    uint64_t of[KEEL_ANSWER_CODES];
};
void keel_answer_count(struct keel_answer_codes *codes, unsigned code);

enum keel_status keel_answer_error(unsigned code, const char *why, char **out, size_t *out_bytes);
enum keel_status keel_answer_health(const char *model, uint64_t step, bool draining, char **out,
                                    size_t *out_bytes);
/* As Prometheus reads it (text format 0.0.4). */
enum keel_status keel_answer_metrics(const struct keel_serve_figures *figures,
                                     const struct keel_answer_codes *codes, uint32_t connections, char **out,
                                     size_t *out_bytes);
/* A text that is whole. */
enum keel_status keel_answer_text(struct keel_serve_ticket *ticket, const char *model, char **out,
                                  size_t *out_bytes);
void keel_answer_free(char *text);

/* A text as it comes, as server-sent events: `data: {...}` and an empty line each, at last `data: [DONE]`. */
struct keel_answer_stream {
    char *text; /* owned: what goes out next, of which `taken` bytes have */
    size_t bytes, taken;
    size_t seen; /* of the ticket's text */
    bool ended;  /* the last event was made */
};
/* All that was made is on its way. */
bool keel_answer_stream_is_out(const struct keel_answer_stream *stream);
/* Make an event of what there is more, and the last ones where the text is whole. */
enum keel_status keel_answer_stream_more(struct keel_answer_stream *stream, struct keel_serve_ticket *ticket,
                                         const char *model);
size_t keel_answer_stream_take(struct keel_answer_stream *stream, char *out, size_t room);
void keel_answer_stream_free(struct keel_answer_stream *stream);

#endif
