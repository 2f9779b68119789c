/* serve_http.h - HTTP for keel serve: completions, health and metrics. One thread of libmicrohttpd's own
 * reads and writes; requests wait without one. */
#ifndef KEEL_SERVE_HTTP_H
#define KEEL_SERVE_HTTP_H

#include "serve.h"

struct keel_http;

struct keel_http_config {
    struct keel_serve *serve; /* borrowed */
    const char *model;        /* the name that clients may give */
    uint64_t step, seed;      /* of the snapshot; what counts where a request has no seed */
    const char *address;      /* numeric: 127.0.0.1, ::1 */
    uint16_t port;            /* 0: any that is free */
    uint32_t connections_max; /* at once */
    size_t body_max;          /* bytes of a request */
    uint64_t client_ns;       /* in which a client must have sent its request, or taken its answer */
};
/* Listens. UNSUPPORTED: without libmicrohttpd, or built without it. INVALID: no such address. IO: the port is
 * taken. */
enum keel_status keel_http_create(const struct keel_http_config *config, struct keel_http **out);
uint16_t keel_http_port(const struct keel_http *http);
/* Close the connections of clients that took too long, and give up what is computed for those that are gone.
 * To be called about once a second. */
void keel_http_sweep(struct keel_http *http);
/* Take no more connections, and answer requests on those that there are by 503. */
void keel_http_drain(struct keel_http *http);
/* A request is on its way, or its answer. */
bool keel_http_is_busy(struct keel_http *http);
/* Before the serve is destroyed, and when that computes no more. */
void keel_http_destroy(struct keel_http *http);

#endif
