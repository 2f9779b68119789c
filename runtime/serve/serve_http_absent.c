/* serve_http_absent.c - in the place of serve_http.c where Keel is built without libmicrohttpd (HTTP=no). */
#include "serve_http.h"

enum keel_status keel_http_create(const struct keel_http_config *config, struct keel_http **out)
{
    (void)config;
    (void)out;
    return keel_fail(KEEL_UNSUPPORTED, "keel serve: this Keel was built without HTTP (HTTP=no)");
}

uint16_t keel_http_port(const struct keel_http *http)
{
    (void)http;
    return 0;
}

void keel_http_sweep(struct keel_http *http)
{
    (void)http;
}

void keel_http_drain(struct keel_http *http)
{
    (void)http;
}

bool keel_http_is_busy(struct keel_http *http)
{
    (void)http;
    return false;
}

void keel_http_destroy(struct keel_http *http)
{
    (void)http;
}
