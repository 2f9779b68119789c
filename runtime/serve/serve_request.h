/* serve_request.h - what a client of keel serve asks for: the JSON of a completion. From bytes that anybody
 * may have sent; pure. */
#ifndef KEEL_SERVE_REQUEST_H
#define KEEL_SERVE_REQUEST_H

#include "generate.h"

enum { KEEL_SERVE_TOKENS_DEFAULT = 16 };

struct keel_serve_request {
    char *prompt; /* owned; no byte of it is 0 */
    size_t prompt_bytes;
    uint32_t tokens; /* to generate, at least 1 */
    struct keel_sampling sampling;
    char *stops[KEEL_STOPS_MAX]; /* owned */
    uint32_t stop_count;
    bool stream; /* the text as it comes */
};

/* {"prompt": TEXT, "max_tokens": N, "temperature": T, "top_k": K, "top_p": P, "seed": N, "stop": TEXT or
 * [TEXT, ...], "stream": BOOL, "model": NAME}: none is needed; `model` is the name of what is served, and
 * `seed` what counts without one. INVALID: the detail is for the client, and names the key, or where it is no
 * JSON. NO_MEMORY. */
enum keel_status keel_serve_request_read(const char *text, size_t bytes, const char *model, uint64_t seed,
                                         struct keel_serve_request *out);
void keel_serve_request_free(struct keel_serve_request *request);

#endif
