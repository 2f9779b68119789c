/* rdm.c - the backend over unconnected endpoints: a connection is a TCP socket and messages between two
 * RDM endpoints.
 *
 * Over the socket the two sides tell each other the names of their RDM endpoints, once; from then on it only
 * says whether the other process lives, which no unconnected endpoint does. So the address of an endpoint is
 * where it listens, whatever the provider calls its own, and an epoch's RDM endpoint need not be known
 * before.
 *
 * A message begins with the connection it is for, a random token of that connection, and its number, because
 * a provider may complete a short message before a long one that was sent earlier: those wait in their slots
 * for their turn. A sender is at most WINDOW messages ahead of the oldest that has not gone.
 *
 * Payloads are copied into slots, so no connection ever holds anybody's memory. An RDM endpoint ends with the
 * last connection of its epoch. Where a provider has nothing to sleep on, it is looked at by a timer while
 * there are connections.
 */
#include "rdm.h"
#include "handshake.h"
#include "libfabric.h"
#include "rdm_endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <netdb.h>
#include <rdma/fi_errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum {
    GREETING_MAGIC = 0x4b455244,       /* "KERD" */
    WINDOW = KEEL_CONNECTION_RECEIVES, /* messages of a connection under way */
    SPARE_RECEIVES = 4,                /* posted, beside those of the connections */
    RETIRED_MAX = 4,                   /* RDM endpoints of earlier epochs */
    BACKLOG = 128,
    EVENTS = 32,
    LOOK_PASSES = 64 /* passes of progress between two looks at the sockets when nobody slept */
};

/* How long it sleeps at first after something came, and at last: with something to sleep on, in case that
 * tells less than it should; without, because nothing tells. */
#define TIMER_FIRST_NS   (KEEL_NS_PER_MS)
#define TIMER_LAST_NS    (64 * KEEL_NS_PER_MS)
#define LOOKING_FIRST_NS (100 * KEEL_NS_PER_US)
#define LOOKING_LAST_NS  (4 * KEEL_NS_PER_MS)

/* What both sides send over the socket. */
struct greeting {
    uint32_t magic;
    uint32_t index; /* of the sender's connection */
    uint64_t token;
    char provider[16]; /* its name, or the beginning of it */
    struct keel_rdm_endpoint_name name;
};

/* All that a socket carries. */
struct words {
    struct greeting greeting;
    uint32_t sent, magic; /* when it closes the connection: messages that it has sent */
};

/* What stands before each message. */
struct label {
    uint32_t index, number;
    uint64_t token;
};
static_assert(sizeof(struct label) == KEEL_RDM_ENDPOINT_HEAD_BYTES, "a label is what slots have room for");

struct place {
    struct keel_rdm_endpoint *endpoint;
    struct place *next;   /* among the retired */
    uint32_t connections; /* that are not closed */
    uint64_t until_ns;    /* without connections: what is being sent may take so long */
    bool used;
};

struct rdm_connection {
    struct keel_connection connection; /* first: they are the same to the room */
    struct place *place;
    int fd;
    bool greeted, gone;  /* gone: the socket has ended, */
    uint64_t missing_ns; /*   and what was sent before and is missing may take so long */
    uint32_t index;      /* in the backend's table */
    uint64_t token;
    uint32_t heard;     /* bytes of what the other side says: */
    struct words words; /*   this */
    fi_addr_t to;
    uint32_t sent, received; /* messages */
    struct keel_slot *out[WINDOW], *in[WINDOW];
};

struct rdm {
    struct keel_connection_backend backend; /* first */
    struct keel_provider_info device;
    bool seal_payload, sleeps, look;
    bool ended;   /* some connection's socket is */
    bool closing; /* some RDM endpoint has no connections, and something to send */
    char provider[16];
    uint32_t passes, next_index;
    int listener, epoll, timer;
    uint64_t step_ns;
    struct place *current; /* NULL until wanted */
    struct place *retired; /* the newest first */
    struct rdm_connection *table[KEEL_BACKEND_CONNECTIONS_MAX];
};

static struct rdm *rdm_of(const struct keel_connection_backend *backend)
{
    return (struct rdm *)(uintptr_t)backend;
}

static struct rdm_connection *own_line(struct keel_connection *connection)
{
    return (struct rdm_connection *)(void *)connection;
}

/* ---- RDM endpoints ------------------------------------------------------------------------------------- */

static bool watch(const struct rdm *rdm, int fd, void *what, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = what};
    return epoll_ctl(rdm->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static void place_close(struct place *place)
{
    keel_rdm_endpoint_close(place->endpoint);
    keel_free(place);
}

/* The RDM endpoint for connections that are made now. */
static enum keel_status place_now(struct rdm *rdm)
{
    struct place *place;
    struct keel_rdm_endpoint_name name;
    if (rdm->current != NULL)
        return KEEL_OK;
    KEEL_TRY(keel_alloc(1, sizeof *place, &place));
    enum keel_status status = keel_rdm_endpoint_open(&rdm->device, &place->endpoint);
    if (status != KEEL_OK) {
        keel_free(place);
        return status;
    }
    int fd = keel_rdm_endpoint_descriptor(place->endpoint);
    keel_rdm_endpoint_name(place->endpoint, &name);
    if (name.bytes == 0 || (fd >= 0 && !watch(rdm, fd, NULL, EPOLLIN))) {
        place_close(place);
        return keel_fail(KEEL_IO, "fabric: an endpoint without a name, or that cannot be slept on");
    }
    rdm->sleeps = fd >= 0;
    rdm->current = place;
    return KEEL_OK;
}

static void retire(struct rdm *rdm)
{
    struct place *place = rdm->current;
    place->next = rdm->retired;
    rdm->retired = place;
    rdm->current = NULL;
}

/* RDM endpoints go with their last connection and what that said last. */
static void close_empty(struct rdm *rdm)
{
    uint64_t now = keel_now_ns();
    rdm->closing = false;
    if (rdm->current != NULL && rdm->current->used && rdm->current->connections == 0)
        retire(rdm);
    for (struct place **at = &rdm->retired; *at != NULL;) {
        struct place *place = *at;
        if (place->connections == 0 && place->until_ns == 0)
            place->until_ns = now + KEEL_CLOSE_NS;
        bool sending = keel_rdm_endpoint_is_sending(place->endpoint) && now < place->until_ns;
        if (place->connections > 0 || sending) {
            rdm->closing = rdm->closing || place->connections == 0;
            at = &place->next;
            continue;
        }
        *at = place->next;
        place_close(place);
    }
}

static void renew(struct rdm *rdm)
{
    close_empty(rdm);
    if (place_now(rdm) != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "%s", keel_detail()); /* whoever dials tries again, and is told */
}

/* Whoever still has a connection there has been saying its last words for long. */
static void clear_oldest(struct rdm *rdm)
{
    const struct place *oldest = NULL;
    uint32_t count = 0;
    for (const struct place *at = rdm->retired; at != NULL; at = at->next, count++)
        oldest = at;
    if (count <= RETIRED_MAX)
        return;
    for (uint32_t k = 0; k < KEEL_BACKEND_CONNECTIONS_MAX; k++)
        if (rdm->table[k] != NULL && rdm->table[k]->place == oldest)
            keel_connection_broke(&rdm->table[k]->connection, "it is of an epoch that is long over");
}

static void rdm_renew(struct keel_connection_backend *backend)
{
    struct rdm *rdm = rdm_of(backend);
    if (rdm->current != NULL && rdm->current->used)
        retire(rdm);
    clear_oldest(rdm);
    renew(rdm);
}

/* ---- birth and death of connections -------------------------------------------------------------------- */

/* Takes the socket. LIMIT, IO. */
static enum keel_status line_create(struct rdm *rdm, int fd, uint32_t events, struct rdm_connection **out)
{
    struct rdm_connection *connection;
    enum keel_status status = place_now(rdm);
    if (status == KEEL_OK && rdm->backend.connection_count >= KEEL_BACKEND_CONNECTIONS_MAX)
        status =
            keel_fail(KEEL_LIMIT, "fabric: %d connections are open already", KEEL_BACKEND_CONNECTIONS_MAX);
    if (status == KEEL_OK)
        status = keel_alloc(1, sizeof *connection, &connection);
    if (status != KEEL_OK) {
        close(fd);
        return status;
    }
    while (rdm->table[rdm->next_index % KEEL_BACKEND_CONNECTIONS_MAX] != NULL)
        rdm->next_index++;
    connection->index = rdm->next_index++ % KEEL_BACKEND_CONNECTIONS_MAX;
    rdm->table[connection->index] = connection;
    randombytes_buf(&connection->token, sizeof connection->token);
    connection->fd = fd;
    connection->place = rdm->current;
    connection->place->connections++;
    keel_connection_backend_adopt(&rdm->backend, &connection->connection);
    if (!watch(rdm, fd, connection, events)) {
        keel_connection_close(&connection->connection);
        (void)keel_fail(KEEL_LIMIT, "fabric: a socket cannot be watched: %s", strerror(errno));
        return KEEL_LIMIT;
    }
    *out = connection;
    return KEEL_OK;
}

/* What is posted stays the RDM endpoint's. */
static void rdm_hang_up(struct keel_connection *given)
{
    struct rdm_connection *connection = own_line(given);
    const uint32_t last[2] = {connection->sent, GREETING_MAGIC};
    rdm_of(given->backend)->table[connection->index] = NULL;
    for (uint32_t k = 0; k < WINDOW; k++) {
        if (connection->in[k] != NULL)
            keel_slot_return(connection->in[k]);
        if (connection->out[k] != NULL)
            connection->out[k]->connection = NULL;
    }
    if (connection->greeted)
        (void)!send(connection->fd, &last, sizeof last, MSG_DONTWAIT | MSG_NOSIGNAL);
    close(connection->fd);
    connection->place->connections--;
}

static void bury(struct keel_connection **list)
{
    for (struct keel_connection *connection = keel_connection_take(list); connection != NULL;
         connection = keel_connection_take(list))
        keel_free(own_line(connection));
}

/* ---- the sockets --------------------------------------------------------------------------------------- */

static enum keel_status rdm_dial(struct keel_connection_backend *backend, const struct keel_address *address,
                                 void *owner, struct keel_connection **out)
{
    struct keel_address_parts place = keel_place_of(address);
    struct sockaddr_in to;
    struct rdm_connection *connection = NULL;
    memcpy(&to, place.fabric, sizeof to);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return keel_fail_errno(errno, "fabric: making a socket");
    if (connect(fd, (const struct sockaddr *)&to, sizeof to) != 0 && errno != EINPROGRESS) {
        int error = errno;
        close(fd);
        return keel_fail(KEEL_PEER_LOST, "fabric: connecting: %s", strerror(error));
    }
    KEEL_TRY(line_create(rdm_of(backend), fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, &connection));
    connection->connection.owner = owner;
    *out = &connection->connection;
    return KEEL_OK;
}

/* It fits into a new socket's buffer at once. False: the socket has failed. */
static bool greet(struct rdm_connection *connection)
{
    const struct rdm *rdm = rdm_of(connection->connection.backend);
    struct greeting mine;
    memset(&mine, 0, sizeof mine);
    mine.magic = GREETING_MAGIC;
    memcpy(mine.provider, rdm->provider, sizeof mine.provider);
    mine.index = connection->index;
    mine.token = connection->token;
    keel_rdm_endpoint_name(connection->place->endpoint, &mine.name);
    connection->greeted = true;
    return send(connection->fd, &mine, sizeof mine, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof mine;
}

static void callers_arrived(struct rdm *rdm)
{
    struct keel_connection_backend *backend = &rdm->backend;
    for (uint32_t k = 0; k < BACKLOG; k++) {
        struct rdm_connection *connection = NULL;
        int fd = accept4(rdm->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        if (line_create(rdm, fd, EPOLLIN | EPOLLRDHUP, &connection) != KEEL_OK)
            continue;
        if (!greet(connection) || !backend->calls->asked(backend->context, &connection->connection))
            keel_connection_close(&connection->connection);
    }
}

static void deliver(struct rdm_connection *connection);

/* The other side has said who it is. */
static void met(struct rdm_connection *connection)
{
    const struct rdm *rdm = rdm_of(connection->connection.backend);
    const struct greeting *theirs = &connection->words.greeting;
    if (theirs->magic != GREETING_MAGIC || theirs->name.bytes > KEEL_RDM_ENDPOINT_NAME_BYTES ||
        memcmp(theirs->provider, rdm->provider, sizeof rdm->provider) != 0) {
        keel_connection_broke(&connection->connection,
                              "the other side has another provider, or is none of ours");
        return;
    }
    if (keel_rdm_endpoint_find(connection->place->endpoint, &theirs->name, &connection->to) != KEEL_OK) {
        keel_connection_broke(&connection->connection, keel_detail());
        return;
    }
    keel_rdm_endpoint_expect(connection->place->endpoint,
                             WINDOW + (connection->place->used ? 0 : SPARE_RECEIVES));
    connection->place->used = true;
    connection->connection.state = KEEL_CONNECTION_OPEN;
    connection->connection.backend->calls->opened(connection->connection.backend->context,
                                                  &connection->connection);
    deliver(connection);
}

static void ended(struct rdm_connection *connection)
{
    struct rdm *rdm = rdm_of(connection->connection.backend);
    connection->gone = rdm->ended = true;
    connection->missing_ns =
        connection->heard == sizeof connection->words ? keel_deadline_after_ns(KEEL_CLOSE_NS) : 0;
    epoll_ctl(rdm->epoll, EPOLL_CTL_DEL, connection->fd, NULL);
}

static void listen_to(struct rdm_connection *connection)
{
    bool met_before = connection->heard >= sizeof connection->words.greeting;
    uint32_t wanted = met_before ? sizeof connection->words : sizeof connection->words.greeting;
    uint8_t more;
    ssize_t got = connection->heard == wanted
                      ? recv(connection->fd, &more, sizeof more, MSG_DONTWAIT)
                      : recv(connection->fd, (uint8_t *)&connection->words + connection->heard,
                             wanted - connection->heard, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
        ended(connection);
    } else if (got > 0 && connection->heard == wanted) {
        keel_connection_broke(&connection->connection, "bytes that are not ours");
    } else if (got > 0) {
        connection->heard += (uint32_t)got;
        if (connection->heard == sizeof connection->words.greeting)
            met(connection);
    }
}

static void connected(struct rdm_connection *connection)
{
    const struct rdm *rdm = rdm_of(connection->connection.backend);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = connection};
    int error = 0;
    socklen_t bytes = sizeof error;
    if (getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0 || error != 0 ||
        !greet(connection) || epoll_ctl(rdm->epoll, EPOLL_CTL_MOD, connection->fd, &event) != 0)
        keel_connection_broke(&connection->connection,
                              error != 0 ? strerror(error) : "it could not be greeted");
}

static void socket_ready(struct rdm_connection *connection, uint32_t events)
{
    if (connection->connection.state != KEEL_CONNECTION_CLOSED && !connection->greeted)
        connected(connection);
    if (connection->connection.state != KEEL_CONNECTION_CLOSED && (events & ~(uint32_t)EPOLLOUT) != 0)
        listen_to(connection);
}

static void look_at_sockets(struct rdm *rdm)
{
    struct epoll_event events[EVENTS];
    int count = epoll_wait(rdm->epoll, events, EVENTS, 0);
    for (int k = 0; k < count; k++) {
        struct rdm_connection *connection = events[k].data.ptr;
        if (events[k].data.ptr == rdm)
            callers_arrived(rdm);
        else if (connection != NULL)
            socket_ready(connection, events[k].events);
    }
    rdm->look = count == EVENTS;
    rdm->passes = 0;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

static enum keel_send rdm_send(struct keel_connection *given, struct keel_message *message,
                               const void *payload, bool lent, void *owner, bool *out_retry)
{
    struct rdm_connection *connection = own_line(given);
    struct keel_slot **place = &connection->out[connection->sent % WINDOW];
    struct label label = {connection->words.greeting.index, connection->sent,
                          connection->words.greeting.token};
    (void)owner;
    if (*place != NULL)
        return KEEL_SEND_LATER;
    struct keel_slot *slot = keel_rdm_endpoint_slot(connection->place->endpoint);
    if (slot == NULL) {
        *out_retry = true;
        return KEEL_SEND_LATER;
    }
    bool whole = !lent || rdm_of(given->backend)->seal_payload;
    memcpy(slot->memory, &label, sizeof label);
    uint32_t bytes = (uint32_t)sizeof label + message->bytes +
                     keel_connection_fold(given, slot->memory + sizeof label, message, payload, false, whole);
    ssize_t result = keel_rdm_endpoint_send(slot, connection->to, bytes);
    if (result != 0) {
        keel_slot_return(slot);
        *out_retry = result == -FI_EAGAIN;
        return result == -FI_EAGAIN ? KEEL_SEND_LATER : KEEL_SEND_BROKEN;
    }
    if (given->sealer != NULL)
        keel_cipher_advance(given->sealer);
    slot->connection = connection;
    slot->ordinal = connection->sent++ % WINDOW;
    *place = slot;
    keel_connection_backend_sent(given->backend, bytes - (uint32_t)(sizeof label + sizeof *message));
    return KEEL_SEND_DONE;
}

/* What has its turn. */
static void deliver(struct rdm_connection *connection)
{
    struct keel_connection_backend *backend = connection->connection.backend;
    while (connection->connection.state == KEEL_CONNECTION_OPEN &&
           connection->in[connection->received % WINDOW] != NULL) {
        struct keel_slot *slot = connection->in[connection->received % WINDOW];
        struct keel_message message;
        const char *why;
        connection->in[connection->received++ % WINDOW] = NULL;
        const uint8_t *payload = keel_connection_unfold(
            &connection->connection, slot->memory + sizeof(struct label), slot->bytes - sizeof(struct label),
            rdm_of(backend)->seal_payload, &message, &why);
        if (payload == NULL) {
            keel_connection_broke(&connection->connection, why);
        } else {
            keel_connection_backend_received(backend,
                                             (uint32_t)(slot->bytes - sizeof(struct label) - sizeof message));
            backend->calls->arrived(backend->context, &connection->connection, &message, payload);
        }
        keel_slot_return(slot);
    }
}

/* Strangers and what is left of closed connections are dropped. */
static void message_arrived(struct rdm *rdm, struct keel_slot *slot)
{
    struct label label;
    struct rdm_connection *connection = NULL;
    if (slot->bytes >= sizeof label) {
        memcpy(&label, slot->memory, sizeof label);
        connection = label.index < KEEL_BACKEND_CONNECTIONS_MAX ? rdm->table[label.index] : NULL;
    }
    if (connection == NULL || connection->token != label.token ||
        connection->place->endpoint != slot->endpoint) {
        keel_slot_return(slot);
        return;
    }
    struct keel_slot **place = &connection->in[label.number % WINDOW];
    if (label.number - connection->received >= WINDOW || *place != NULL) {
        keel_slot_return(slot);
        keel_connection_broke(&connection->connection, "a message that has come before, or too early");
        return;
    }
    *place = slot;
    deliver(connection);
}

static void message_gone(struct rdm *rdm, struct keel_slot *slot, const char *error)
{
    struct rdm_connection *connection = slot->connection;
    uint32_t ordinal = slot->ordinal;
    keel_slot_return(slot);
    if (connection == NULL)
        return;
    connection->out[ordinal] = NULL;
    if (error != NULL)
        keel_connection_broke(&connection->connection, error);
    else
        rdm->backend.calls->sent(rdm->backend.context, &connection->connection, NULL);
}

static void drain(struct rdm *rdm, struct place *place)
{
    const char *error;
    struct keel_slot *slot;
    while ((slot = keel_rdm_endpoint_next(place->endpoint, &error)) != NULL) {
        rdm->step_ns = 0;
        if (!slot->receive)
            message_gone(rdm, slot, error);
        else if (error != NULL)
            keel_slot_return(slot);
        else
            message_arrived(rdm, slot);
    }
}

/* ---- progress ------------------------------------------------------------------------------------------ */

static void drain_all(struct rdm *rdm)
{
    if (rdm->current != NULL)
        drain(rdm, rdm->current);
    for (struct place *place = rdm->retired; place != NULL; place = place->next)
        drain(rdm, place);
}

/* Who closed a connection has said how many messages it had sent: they may be slower than the word of the
 * end. */
static void break_gone(struct rdm *rdm)
{
    uint64_t now = keel_now_ns();
    rdm->ended = false;
    for (uint32_t k = 0; k < KEEL_BACKEND_CONNECTIONS_MAX; k++) {
        struct rdm_connection *connection = rdm->table[k];
        if (connection == NULL || !connection->gone)
            continue;
        if (connection->words.sent != connection->received && now < connection->missing_ns)
            rdm->ended = true;
        else
            keel_connection_broke(&connection->connection, "the other side is gone");
    }
}

static void rdm_progress(struct keel_connection_backend *backend)
{
    struct rdm *rdm = rdm_of(backend);
    if (backend->dying != NULL || rdm->closing) {
        bury(&backend->dying);
        renew(rdm);
    }
    drain_all(rdm);
    if (rdm->look || backend->connections == NULL || ++rdm->passes >= LOOK_PASSES)
        look_at_sockets(rdm);
    if (!rdm->ended)
        return;
    drain_all(rdm);
    break_gone(rdm);
}

/* Nothing happened: look again after twice the time. */
static void set_timer(struct rdm *rdm)
{
    uint64_t first = rdm->sleeps ? TIMER_FIRST_NS : LOOKING_FIRST_NS;
    uint64_t last = rdm->sleeps ? TIMER_LAST_NS : LOOKING_LAST_NS;
    struct itimerspec when = {{0, 0}, {0, 0}};
    if (rdm->backend.connections != NULL || rdm->closing) {
        rdm->step_ns = rdm->step_ns == 0 || rdm->ended || rdm->closing ? first
                       : rdm->step_ns < last                           ? rdm->step_ns * 2
                                                                       : last;
        when.it_value.tv_nsec = (long)rdm->step_ns;
    }
    timerfd_settime(rdm->timer, 0, &when, NULL);
}

static bool rdm_may_sleep(struct keel_connection_backend *backend)
{
    struct rdm *rdm = rdm_of(backend);
    rdm->look = true;
    if (backend->dying != NULL ||
        (rdm->current != NULL && !keel_rdm_endpoint_may_sleep(rdm->current->endpoint)))
        return false;
    for (const struct place *place = rdm->retired; place != NULL; place = place->next)
        if (!keel_rdm_endpoint_may_sleep(place->endpoint))
            return false;
    set_timer(rdm);
    return true;
}

static uint32_t rdm_descriptors(const struct keel_connection_backend *backend, struct pollfd *out)
{
    out[0] = (struct pollfd){.fd = rdm_of(backend)->epoll, .events = POLLIN};
    return 1;
}

/* ---- opening and closing ------------------------------------------------------------------------------- */

static enum keel_status rdm_place(const struct keel_connection_backend *backend,
                                  struct keel_address_parts *in_out)
{
    struct sockaddr_in address;
    socklen_t bytes = sizeof address;
    if (getsockname(rdm_of(backend)->listener, (struct sockaddr *)&address, &bytes) != 0)
        return keel_fail_errno(errno, "fabric: asking for the own address");
    memcpy(in_out->fabric, &address, sizeof address);
    return KEEL_OK;
}

/* What has been said last is let go out. */
static void rdm_close(struct keel_connection_backend *backend)
{
    struct rdm *rdm = rdm_of(backend);
    bury(&backend->dying);
    for (close_empty(rdm); rdm->closing; close_empty(rdm)) {
        drain_all(rdm);
        keel_sleep_until_ns(keel_deadline_after_ns(LOOKING_FIRST_NS));
    }
    if (rdm->current != NULL)
        place_close(rdm->current);
    if (rdm->listener >= 0)
        close(rdm->listener);
    if (rdm->epoll >= 0)
        close(rdm->epoll);
    if (rdm->timer >= 0)
        close(rdm->timer);
    keel_fi_freeinfo(rdm->device.info);
    keel_free(rdm);
}

static const struct keel_connection_backend_ops rdm_ops = {.close = rdm_close,
                                                           .dial = rdm_dial,
                                                           .send = rdm_send,
                                                           .hang_up = rdm_hang_up,
                                                           .progress = rdm_progress,
                                                           .may_sleep = rdm_may_sleep,
                                                           .descriptors = rdm_descriptors,
                                                           .place = rdm_place,
                                                           .renew = rdm_renew,
                                                           .exposed = true};

static enum keel_status start_listening(struct rdm *rdm)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    int result = getaddrinfo(rdm->device.node, NULL, &hints, &found);
    if (result != 0)
        return keel_fail(KEEL_IO, "fabric: listening at %s: %s; is it an address of this host?",
                         rdm->device.node, gai_strerror(result));
    rdm->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    rdm->epoll = epoll_create1(EPOLL_CLOEXEC);
    rdm->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    bool good = rdm->listener >= 0 && rdm->epoll >= 0 && rdm->timer >= 0 &&
                bind(rdm->listener, found->ai_addr, found->ai_addrlen) == 0 &&
                listen(rdm->listener, BACKLOG) == 0 && watch(rdm, rdm->listener, rdm, EPOLLIN) &&
                watch(rdm, rdm->timer, NULL, EPOLLIN);
    int error = errno;
    freeaddrinfo(found);
    if (!good)
        return keel_fail(KEEL_IO, "fabric: listening at %s: %s; is it an address of this host?",
                         rdm->device.node, strerror(error));
    return KEEL_OK;
}

static enum keel_status check_room(const struct fi_info *info)
{
    if (info->ep_attr->max_msg_size < KEEL_RDM_ENDPOINT_SLOT_BYTES || info->rx_attr->size < 2 * WINDOW ||
        info->tx_attr->size < 2 * WINDOW)
        return keel_fail(KEEL_UNSUPPORTED, "fabric: provider \"%s\" has no room for %d messages of %zu bytes",
                         info->fabric_attr->prov_name, 2 * WINDOW, (size_t)KEEL_RDM_ENDPOINT_SLOT_BYTES);
    return KEEL_OK;
}

enum keel_status keel_rdm_open(const struct keel_provider_info *device, bool seal_payload,
                               struct keel_connection_backend **out)
{
    struct rdm *rdm;
    enum keel_status status = keel_alloc(1, sizeof *rdm, &rdm);
    if (status != KEEL_OK) {
        keel_fi_freeinfo(device->info);
        return status;
    }
    rdm->backend.ops = &rdm_ops;
    rdm->device = *device;
    rdm->seal_payload = seal_payload;
    snprintf(rdm->provider, sizeof rdm->provider, "%s", device->provider->name);
    rdm->listener = rdm->epoll = rdm->timer = -1;
    status = keel_handshake_init();
    if (status == KEEL_OK)
        status = check_room(device->info);
    if (status == KEEL_OK)
        status = start_listening(rdm);
    if (status == KEEL_OK)
        status = place_now(rdm);
    if (status != KEEL_OK) {
        rdm_close(&rdm->backend);
        return status;
    }
    *out = &rdm->backend;
    return KEEL_OK;
}
