/* http_library.h - GNU libmicrohttpd, loaded when keel serve asks for it: nothing else of Keel needs it, nor
 * what it is linked to. */
#ifndef KEEL_HTTP_LIBRARY_H
#define KEEL_HTTP_LIBRARY_H

#include <keel/status.h>
#include <microhttpd.h>

/* Its functions, by their names without MHD_. */
#define KEEL_MICROHTTPD(X)                                                                                   \
    X(start_daemon)                                                                                          \
    X(stop_daemon)                                                                                           \
    X(quiesce_daemon)                                                                                        \
    X(get_daemon_info)                                                                                       \
    X(get_connection_info)                                                                                   \
    X(lookup_connection_value)                                                                               \
    X(get_connection_values)                                                                                 \
    X(create_response_from_buffer)                                                                           \
    X(create_response_from_callback)                                                                         \
    X(destroy_response)                                                                                      \
    X(add_response_header)                                                                                   \
    X(queue_response)                                                                                        \
    X(suspend_connection)                                                                                    \
    X(resume_connection)

struct keel_microhttpd {
#define KEEL_MICROHTTPD_FIELD(name) __typeof__(&MHD_##name) name;
    KEEL_MICROHTTPD(KEEL_MICROHTTPD_FIELD)
#undef KEEL_MICROHTTPD_FIELD
};
/* UNSUPPORTED: it is not installed. Once, on any thread. */
enum keel_status keel_microhttpd_open(const struct keel_microhttpd **out);

#endif
