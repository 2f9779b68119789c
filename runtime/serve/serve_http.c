/* serve_http.c - see serve_http.h.
 *
 * A connection has a deadline where the next move is its client's: for a whole request from when it was
 * opened or the last answer was taken, for its answer once that is whole, and for each part of a stream.
 * Between these it is suspended, and costs nothing but memory. libmicrohttpd's own limit is of silence alone,
 * so that one byte now and then would hold a connection.
 *
 * Who sends no more may still read (TCP's half-close), and looks as who has closed does until something is
 * sent to him: an answer, or a probe of TCP, which who is gone refuses once his system has forgotten the
 * connection, within KEEP_S and a minute. */
#include "serve_http.h"
#include "http_library.h"
#include "serve_answer.h"
#include <arpa/inet.h>
#include <errno.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <keel/thread.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

/* Of one connection, from its first byte to its last. */
struct link {
    struct link *next, *before;
    int fd;
    uint64_t deadline_ns;             /* 0: the next move is ours */
    struct keel_serve_ticket *ticket; /* of its request; NULL: none */
    bool gone;                        /* was shut down */
};

struct exchange;
struct route {
    const char *url, *method;
    enum MHD_Result (*answer)(struct exchange *exchange);
};

/* Of one request. */
struct exchange {
    struct keel_http *http;
    struct MHD_Connection *connection;
    struct link *link;
    const struct route *route;
    char *body; /* owned */
    size_t bytes, capacity;
    bool too_large, asked;
    struct keel_serve_ticket *ticket; /* released when the exchange ends */
    bool streams;
    struct keel_answer_stream stream; /* what of the answer was made, and what of it is on its way */
};

struct keel_http {
    const struct keel_microhttpd *mhd;
    struct keel_http_config config;
    struct MHD_Daemon *daemon;
    struct keel_mutex lock;
    /* Guarded by the lock. */
    struct link *links;
    uint32_t count;
    int32_t busy; /* requests that are on their way, or their answers */
    bool draining;
    struct keel_answer_codes codes;
};

/* ---- connections --------------------------------------------------------------------------------------- */

static void set_deadline(struct keel_http *http, struct link *link, bool clients)
{
    keel_mutex_lock(&http->lock);
    link->deadline_ns = clients ? keel_deadline_after_ns(http->config.client_ns) : 0;
    keel_mutex_unlock(&http->lock);
}

static void set_ticket(struct keel_http *http, struct link *link, struct keel_serve_ticket *ticket)
{
    keel_mutex_lock(&http->lock);
    link->ticket = ticket;
    keel_mutex_unlock(&http->lock);
}

static void set_busy(struct keel_http *http, bool busy)
{
    keel_mutex_lock(&http->lock);
    http->busy += busy ? 1 : -1;
    keel_mutex_unlock(&http->lock);
}

/* A dead client is probed for, and what a slow one does not take does not pile up in the system. */
static void set_limits(int fd)
{
    enum { KEEP_S = 10, PROBES = 3, SEND_BYTES = 1 << 16 };
    const struct {
        int level, name, value;
    } all[] = {{SOL_SOCKET, SO_KEEPALIVE, 1},
               {IPPROTO_TCP, TCP_KEEPIDLE, KEEP_S},
               {IPPROTO_TCP, TCP_KEEPINTVL, KEEP_S},
               {IPPROTO_TCP, TCP_KEEPCNT, PROBES},
               {SOL_SOCKET, SO_SNDBUF, SEND_BYTES}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        (void)setsockopt(fd, all[i].level, all[i].name, &all[i].value, sizeof all[i].value);
}

static void open_link(struct keel_http *http, struct MHD_Connection *connection, void **context)
{
    struct link *link;
    const union MHD_ConnectionInfo *info =
        http->mhd->get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    *context = NULL;
    if (info == NULL || keel_alloc(1, sizeof *link, &link) != KEEL_OK)
        return; /* its requests get no answer */
    link->fd = info->connect_fd;
    link->deadline_ns = keel_deadline_after_ns(http->config.client_ns);
    set_limits(link->fd);
    keel_mutex_lock(&http->lock);
    link->next = http->links;
    if (http->links != NULL)
        http->links->before = link;
    http->links = link;
    http->count++;
    keel_mutex_unlock(&http->lock);
    *context = link;
}

static void close_link(struct keel_http *http, struct link *link)
{
    keel_mutex_lock(&http->lock);
    if (link->next != NULL)
        link->next->before = link->before;
    if (link->before != NULL)
        link->before->next = link->next;
    else
        http->links = link->next;
    http->count--;
    keel_mutex_unlock(&http->lock);
    keel_free(link);
}

static void on_connection(void *context, struct MHD_Connection *connection, void **own,
                          enum MHD_ConnectionNotificationCode code)
{
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        open_link(context, connection, own);
    else if (*own != NULL)
        close_link(context, *own);
}

static struct link *link_of(struct keel_http *http, struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        http->mhd->get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info != NULL ? info->socket_context : NULL;
}

/* Nobody is there who could take an answer. */
static bool has_left(int fd)
{
    struct pollfd look = {.fd = fd};
    return poll(&look, 1, 0) > 0 && (look.revents & (POLLHUP | POLLERR)) != 0;
}

/* At once, without waiting for what was sent to be taken: a reset. The end that shutdown(2) sends would stand
 * behind that. */
static void cut_off(struct link *link)
{
    const struct linger now = {.l_onoff = 1, .l_linger = 0};
    const struct sockaddr none = {.sa_family = AF_UNSPEC};
    link->gone = true;
    (void)setsockopt(link->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    if (connect(link->fd, &none, sizeof none) != 0)
        shutdown(link->fd, SHUT_RDWR);
}

void keel_http_sweep(struct keel_http *http)
{
    const uint64_t now_ns = keel_now_ns();
    keel_mutex_lock(&http->lock);
    for (struct link *link = http->links; link != NULL; link = link->next) {
        const bool late = link->deadline_ns != 0 && now_ns > link->deadline_ns;
        const bool left = link->ticket != NULL && has_left(link->fd);
        if ((late || left) && !link->gone)
            cut_off(link);
        if (left)
            keel_serve_ticket_give_up(link->ticket);
    }
    keel_mutex_unlock(&http->lock);
}

/* ---- answers ------------------------------------------------------------------------------------------- */

/* `body` is copied. */
static enum MHD_Result answer(struct exchange *exchange, unsigned code, const char *type, const char *body,
                              size_t bytes)
{
    struct keel_http *http = exchange->http;
    struct MHD_Response *response =
        http->mhd->create_response_from_buffer(bytes, (void *)(uintptr_t)body, MHD_RESPMEM_MUST_COPY);
    char seconds[16];
    if (response == NULL)
        return MHD_NO;
    http->mhd->add_response_header(response, "Content-Type", type);
    if (code == MHD_HTTP_SERVICE_UNAVAILABLE) {
        snprintf(seconds, sizeof seconds, "%u", keel_serve_free_in_s(http->config.serve));
        http->mhd->add_response_header(response, "Retry-After", seconds);
    }
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        http->mhd->add_response_header(response, "Allow", exchange->route->method);
    if (code >= 400)
        http->mhd->add_response_header(response, "Connection", "close");
    const enum MHD_Result queued = http->mhd->queue_response(exchange->connection, code, response);
    http->mhd->destroy_response(response);
    keel_mutex_lock(&http->lock);
    keel_answer_count(&http->codes, code);
    keel_mutex_unlock(&http->lock);
    set_deadline(http, exchange->link, true);
    return queued;
}

static enum MHD_Result answer_error(struct exchange *exchange, unsigned code, const char *why)
{
    char *text;
    size_t bytes;
    if (keel_answer_error(code, why, &text, &bytes) != KEEL_OK)
        return MHD_NO;
    const enum MHD_Result queued = answer(exchange, code, "application/json", text, bytes);
    keel_answer_free(text);
    return queued;
}

static unsigned code_of(enum keel_status status)
{
    return status == KEEL_INVALID                               ? MHD_HTTP_BAD_REQUEST
           : status == KEEL_LIMIT || status == KEEL_INTERRUPTED ? MHD_HTTP_SERVICE_UNAVAILABLE
                                                                : MHD_HTTP_INTERNAL_SERVER_ERROR;
}

/* ---- completions --------------------------------------------------------------------------------------- */

static void suspend(void *context)
{
    struct exchange *exchange = context;
    exchange->http->mhd->suspend_connection(exchange->connection);
}

static void resume(void *context)
{
    struct exchange *exchange = context;
    exchange->http->mhd->resume_connection(exchange->connection);
}

static ssize_t next_of_stream(struct exchange *exchange, char *out, size_t room)
{
    if (keel_answer_stream_is_out(&exchange->stream)) {
        if (exchange->stream.ended)
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (keel_serve_ticket_wait(exchange->ticket, exchange->stream.seen))
            return 0; /* until it is woken */
        if (keel_answer_stream_more(&exchange->stream, exchange->ticket, exchange->http->config.model) !=
            KEEL_OK)
            return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    return (ssize_t)keel_answer_stream_take(&exchange->stream, out, room);
}

/* More of a text that goes out as it comes: all that went before was taken. */
static ssize_t read_stream(void *context, uint64_t position, char *out, size_t room)
{
    struct exchange *exchange = context;
    (void)position;
    const ssize_t bytes = next_of_stream(exchange, out, room);
    set_deadline(exchange->http, exchange->link, bytes != 0);
    return bytes;
}

static enum MHD_Result begin_stream(struct exchange *exchange)
{
    struct keel_http *http = exchange->http;
    enum { BLOCK_BYTES = 4096 };
    struct MHD_Response *response =
        http->mhd->create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, exchange, NULL);
    if (response == NULL)
        return MHD_NO;
    http->mhd->add_response_header(response, "Content-Type", "text/event-stream");
    http->mhd->add_response_header(response, "Cache-Control", "no-store");
    const enum MHD_Result queued = http->mhd->queue_response(exchange->connection, MHD_HTTP_OK, response);
    http->mhd->destroy_response(response);
    keel_mutex_lock(&http->lock);
    keel_answer_count(&http->codes, MHD_HTTP_OK);
    keel_mutex_unlock(&http->lock);
    return queued;
}

static enum MHD_Result answer_text(struct exchange *exchange)
{
    const struct keel_serve_state state = keel_serve_ticket_look(exchange->ticket);
    char *text;
    size_t bytes;
    if (!state.done) {
        if (keel_serve_ticket_wait(exchange->ticket, SIZE_MAX))
            return MHD_YES; /* suspended: called again when it is done */
        return answer_text(exchange);
    }
    set_ticket(exchange->http, exchange->link, NULL);
    if (state.status == KEEL_INTERRUPTED)
        return MHD_NO; /* the client is gone */
    if (state.status != KEEL_OK)
        return answer_error(exchange, MHD_HTTP_INTERNAL_SERVER_ERROR, "the device has failed");
    if (keel_answer_text(exchange->ticket, exchange->http->config.model, &text, &bytes) != KEEL_OK)
        return MHD_NO;
    const enum MHD_Result queued = answer(exchange, MHD_HTTP_OK, "application/json", text, bytes);
    keel_answer_free(text);
    return queued;
}

static enum MHD_Result complete(struct exchange *exchange)
{
    struct keel_http *http = exchange->http;
    struct keel_serve_request request;
    const struct keel_serve_waiter waiter = {.suspend = suspend, .wake = resume, .context = exchange};
    if (exchange->ticket != NULL)
        return answer_text(exchange);
    enum keel_status status = keel_serve_request_read(exchange->body, exchange->bytes, http->config.model,
                                                      http->config.seed, &request);
    keel_free(exchange->body);
    exchange->body = NULL;
    exchange->bytes = exchange->capacity = 0;
    if (status == KEEL_OK) {
        exchange->streams = request.stream;
        status = keel_serve_submit(http->config.serve, &request, &waiter, &exchange->ticket);
        keel_serve_request_free(&request);
    }
    if (status != KEEL_OK)
        return answer_error(exchange, code_of(status), keel_detail());
    set_deadline(http, exchange->link, false);
    set_ticket(http, exchange->link, exchange->ticket);
    /* Called again at once, to wait. Suspended in this call, it would still count as one that reads when it
     * is resumed, and the end of what a client sends would close it (libmicrohttpd 0.9.75). */
    return exchange->streams ? begin_stream(exchange) : MHD_YES;
}

/* ---- pages --------------------------------------------------------------------------------------------- */

static bool is_draining(struct keel_http *http)
{
    keel_mutex_lock(&http->lock);
    const bool draining = http->draining;
    keel_mutex_unlock(&http->lock);
    return draining;
}

static enum MHD_Result answer_health(struct exchange *exchange)
{
    struct keel_http *http = exchange->http;
    const bool draining = is_draining(http);
    char *text;
    size_t bytes;
    if (keel_answer_health(http->config.model, http->config.step, draining, &text, &bytes) != KEEL_OK)
        return MHD_NO;
    const enum MHD_Result queued = answer(exchange, draining ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK,
                                          "application/json", text, bytes);
    keel_answer_free(text);
    return queued;
}

static enum MHD_Result answer_metrics(struct exchange *exchange)
{
    struct keel_http *http = exchange->http;
    const struct keel_serve_figures figures = keel_serve_figures(http->config.serve);
    char *text;
    size_t bytes;
    keel_mutex_lock(&http->lock);
    const struct keel_answer_codes codes = http->codes;
    const uint32_t connections = http->count;
    keel_mutex_unlock(&http->lock);
    if (keel_answer_metrics(&figures, &codes, connections, &text, &bytes) != KEEL_OK)
        return MHD_NO;
    const enum MHD_Result queued = answer(exchange, MHD_HTTP_OK, "text/plain; version=0.0.4", text, bytes);
    keel_answer_free(text);
    return queued;
}

/* ---- requests ------------------------------------------------------------------------------------------ */

static const struct route routes[] = {{"/v1/completions", "POST", complete},
                                      {"/health", "GET", answer_health},
                                      {"/metrics", "GET", answer_metrics}};

static const struct route *find_route(const char *url)
{
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++)
        if (strcmp(routes[i].url, url) == 0)
            return &routes[i];
    return NULL;
}

static void take_body(struct exchange *exchange, const char *data, size_t bytes)
{
    const size_t most = exchange->http->config.body_max;
    exchange->too_large = exchange->too_large || bytes > most - exchange->bytes;
    if (exchange->too_large ||
        keel_grow(&exchange->body, &exchange->capacity, exchange->bytes + bytes, 1) != KEEL_OK) {
        exchange->too_large = true;
        return;
    }
    memcpy(exchange->body + exchange->bytes, data, bytes);
    exchange->bytes += bytes;
}

static enum MHD_Result begin(struct keel_http *http, struct MHD_Connection *connection, void **own)
{
    struct exchange *exchange;
    struct link *link = link_of(http, connection);
    if (link == NULL || keel_alloc(1, sizeof *exchange, &exchange) != KEEL_OK)
        return MHD_NO;
    exchange->http = http;
    exchange->connection = connection;
    exchange->link = link;
    set_busy(http, true);
    *own = exchange;
    return MHD_YES;
}

/* What headers say of where a request ends. */
struct framing {
    unsigned lengths, encodings;
    bool spaced; /* a name has a blank behind it, and is another one to who passes that on */
};

static enum MHD_Result see_header(void *context, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct framing *framing = context;
    (void)kind, (void)value;
    framing->lengths += strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0;
    framing->encodings += strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0;
    framing->spaced = framing->spaced || strpbrk(name, " \t") != NULL;
    return MHD_YES;
}

/* A proxy before us may take another end than libmicrohttpd, and then the next client's request for a part of
 * this one's body (RFC 9112, 5.1, 6.3, 11.2). */
static bool ends_twice(const struct exchange *exchange)
{
    struct framing framing = {.lengths = 0};
    (void)exchange->http->mhd->get_connection_values(exchange->connection, MHD_HEADER_KIND, see_header,
                                                     &framing);
    return framing.lengths + framing.encodings > 1 || framing.spaced;
}

/* What can be said before the body is there: a body that nobody reads is not waited for. */
static enum MHD_Result refuse_early(struct exchange *exchange, const char *url, const char *method)
{
    struct keel_http *http = exchange->http;
    const char *length =
        http->mhd->lookup_connection_value(exchange->connection, MHD_HEADER_KIND, "Content-Length");
    const char *encoding =
        http->mhd->lookup_connection_value(exchange->connection, MHD_HEADER_KIND, "Transfer-Encoding");
    if (ends_twice(exchange))
        return answer_error(exchange, MHD_HTTP_BAD_REQUEST,
                            "one Content-Length or Transfer-Encoding is wanted, and no blank before a colon");
    /* Of any other libmicrohttpd reads until the client sends no more, which waits for its answer (RFC 9112,
     * 6.1). */
    if (encoding != NULL && strcasecmp(encoding, "chunked") != 0)
        return answer_error(exchange, MHD_HTTP_NOT_IMPLEMENTED,
                            "a Transfer-Encoding other than chunked is not read");
    exchange->route = find_route(url);
    if (exchange->route == NULL)
        return answer_error(exchange, MHD_HTTP_NOT_FOUND, "there are /v1/completions, /health and /metrics");
    if (strcmp(exchange->route->method, method) != 0)
        return answer_error(exchange, MHD_HTTP_METHOD_NOT_ALLOWED,
                            exchange->route == &routes[0] ? "completions are asked for by POST"
                                                          : "this page is read by GET");
    if (length != NULL && strtoull(length, NULL, 10) > http->config.body_max)
        return answer_error(exchange, MHD_HTTP_CONTENT_TOO_LARGE, "the request is too large");
    if (exchange->route == &routes[0] && is_draining(http))
        return answer_error(exchange, MHD_HTTP_SERVICE_UNAVAILABLE, "keel serve is about to end");
    return MHD_YES;
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data, size_t *bytes,
                                  void **own)
{
    struct exchange *exchange = *own;
    (void)version;
    if (exchange == NULL)
        return begin(context, connection, own) == MHD_YES ? refuse_early(*own, url, method) : MHD_NO;
    if (*bytes > 0) {
        take_body(exchange, data, *bytes);
        *bytes = 0;
        return MHD_YES;
    }
    if (exchange->too_large)
        return answer_error(exchange, MHD_HTTP_CONTENT_TOO_LARGE, "the request is too large");
    return exchange->route->answer(exchange);
}

static void on_completed(void *context, struct MHD_Connection *connection, void **own,
                         enum MHD_RequestTerminationCode code)
{
    struct keel_http *http = context;
    struct exchange *exchange = *own;
    (void)connection;
    if (exchange == NULL)
        return;
    *own = NULL;
    /* Its limit of silence came before the sweep, as on a busy machine it may: its end, too, would stand
     * behind what was not taken. */
    keel_mutex_lock(&http->lock);
    if (code == MHD_REQUEST_TERMINATED_TIMEOUT_REACHED && !exchange->link->gone)
        cut_off(exchange->link);
    keel_mutex_unlock(&http->lock);
    set_ticket(http, exchange->link, NULL);
    set_deadline(http, exchange->link, true);
    set_busy(http, false);
    if (exchange->ticket != NULL)
        keel_serve_ticket_release(exchange->ticket);
    keel_answer_stream_free(&exchange->stream);
    keel_free(exchange->body);
    keel_free(exchange);
}

/* ---- the whole ----------------------------------------------------------------------------------------- */

union address {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
};

static enum keel_status read_address(const struct keel_http_config *config, union address *out)
{
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, config->address, &out->four.sin_addr) == 1) {
        out->four.sin_family = AF_INET;
        out->four.sin_port = htons(config->port);
        return KEEL_OK;
    }
    if (inet_pton(AF_INET6, config->address, &out->six.sin6_addr) == 1) {
        out->six.sin6_family = AF_INET6;
        out->six.sin6_port = htons(config->port);
        return KEEL_OK;
    }
    return keel_fail(KEEL_INVALID,
                     "--bind %s: an address of this host by its numbers is wanted, as 127.0.0.1",
                     config->address);
}

static enum keel_status start(struct keel_http *http)
{
    const struct keel_http_config *config = &http->config;
    union address address;
    KEEL_TRY(keel_microhttpd_open(&http->mhd));
    KEEL_TRY(read_address(config, &address));
    const unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO | MHD_ALLOW_SUSPEND_RESUME |
                           (address.any.sa_family == AF_INET6 ? MHD_USE_IPv6 : 0U);
    const unsigned idle_s = (unsigned)(config->client_ns / KEEL_NS_PER_S) + 1;
    errno = 0;
    http->daemon = http->mhd->start_daemon(flags, config->port, NULL, NULL, on_request, http,
                                           MHD_OPTION_SOCK_ADDR, &address.any, MHD_OPTION_CONNECTION_LIMIT,
                                           config->connections_max, MHD_OPTION_CONNECTION_TIMEOUT, idle_s,
                                           MHD_OPTION_NOTIFY_CONNECTION, on_connection, http,
                                           MHD_OPTION_NOTIFY_COMPLETED, on_completed, http, MHD_OPTION_END);
    if (http->daemon != NULL)
        return KEEL_OK;
    return keel_fail(KEEL_IO, "%s port %u: cannot be listened at (%s); take another --%s", config->address,
                     config->port, errno != 0 ? strerror(errno) : "libmicrohttpd does not say why",
                     errno == EADDRNOTAVAIL ? "bind" : "port");
}

enum keel_status keel_http_create(const struct keel_http_config *config, struct keel_http **out)
{
    struct keel_http *http;
    KEEL_TRY(keel_alloc(1, sizeof *http, &http));
    http->config = *config;
    keel_mutex_init(&http->lock);
    const enum keel_status status = start(http);
    if (status != KEEL_OK) {
        keel_http_destroy(http);
        return status;
    }
    *out = http;
    return KEEL_OK;
}

uint16_t keel_http_port(const struct keel_http *http)
{
    const union MHD_DaemonInfo *info = http->mhd->get_daemon_info(http->daemon, MHD_DAEMON_INFO_BIND_PORT);
    return info != NULL ? info->port : http->config.port;
}

void keel_http_drain(struct keel_http *http)
{
    keel_mutex_lock(&http->lock);
    http->draining = true;
    keel_mutex_unlock(&http->lock);
    const MHD_socket listener = http->mhd->quiesce_daemon(http->daemon);
    if (listener != MHD_INVALID_SOCKET)
        close(listener);
}

bool keel_http_is_busy(struct keel_http *http)
{
    keel_mutex_lock(&http->lock);
    const bool busy = http->busy > 0;
    keel_mutex_unlock(&http->lock);
    return busy;
}

void keel_http_destroy(struct keel_http *http)
{
    if (http == NULL)
        return;
    if (http->daemon != NULL)
        http->mhd->stop_daemon(http->daemon);
    keel_mutex_fini(&http->lock);
    keel_free(http);
}
