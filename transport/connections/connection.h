/* connection.h - connections, which carry messages, and the backends that make them.
 *
 * Owns the one interface between the protocol (session.c, operation_protocol.c) and its transports: `fabric`
 * or `rdm` (libfabric, any host) and `shared` (memory shared by ranks of one host). An endpoint has one
 * `struct keel_backends`: all its backends. The thread that owns the endpoint's progress makes all calls but
 * open and close, one at a time. Promises: messages of a connection arrive whole, once, in order, or the
 * connection breaks; a peer that is killed breaks its connections within milliseconds; after
 * keel_connection_close nothing reads or writes memory lent to keel_connection_send. Leaves to session.c who
 * may speak. */
#ifndef KEEL_TRANSPORT_CONNECTION_H
#define KEEL_TRANSPORT_CONNECTION_H

#include "cipher.h"

#include <poll.h>
#include <stdatomic.h>

struct keel_connection_backend;

enum keel_connection_state { KEEL_CONNECTION_OPENING, KEEL_CONNECTION_OPEN, KEEL_CONNECTION_CLOSED };

/* What all connections have; a backend's own fields follow behind it. */
struct keel_connection {
    struct keel_connection_backend *backend;
    struct keel_connection *next, *previous; /* among the backend's connections, or in its graveyard */
    void *owner;                             /* the session; set by whoever dials or accepts */
    enum keel_connection_state state;
    uint32_t bulk_in_flight;             /* sends that lend memory now */
    bool damaged;                        /* what came was not what was sent: why it broke */
    struct keel_cipher *sealer, *opener; /* of what goes and comes; NULL: a checksum if exposed */
};

/* What a backend tells its user, from keel_backends_progress. A callee may close any connection. */
struct keel_connection_calls {
    /* Somebody connects; true takes the connection (opened or broke will follow). */
    bool (*asked)(void *context, struct keel_connection *connection);
    void (*opened)(void *context, struct keel_connection *connection);
    /* payload is valid during the call. It may lie in memory that the peer can write: a hostile peer may
     * change it meanwhile, so decide nothing by reading it twice. The message is a copy. */
    void (*arrived)(void *context, struct keel_connection *connection, const struct keel_message *message,
                    const uint8_t *payload);
    /* Memory lent to this owner is free again (owner), or there is room where there was none (NULL). */
    void (*sent)(void *context, struct keel_connection *connection, void *owner);
    /* The connection is gone: the callee closes it. Called once. */
    void (*broke)(void *context, struct keel_connection *connection, const char *why);
};

enum keel_send {
    KEEL_SEND_OK,    /* on its way; if the payload was lent, sent(owner) follows */
    KEEL_SEND_DONE,  /* on its way and copied: nothing is lent, sent(owner) does not follow */
    KEEL_SEND_LATER, /* no room: sent() will come, or *out_retry is set (try again after KEEL_RETRY_NS) */
    KEEL_SEND_BROKEN
};
/* Send header and payload (the magic is filled in). With `lent` false the payload is copied (at most
 * KEEL_EAGER_BYTES); with `lent` true (at most KEEL_CHUNK_BYTES) it may be lent until sent(owner) or
 * keel_connection_close. */
enum keel_send keel_connection_send(struct keel_connection *connection, struct keel_message *message,
                                    const void *payload, bool lent, void *owner, bool *out_retry);
/* From now on what goes (or comes, not `outgoing`) is sealed. Takes the cipher. */
void keel_connection_seal(struct keel_connection *connection, bool outgoing, struct keel_cipher *cipher);
/* Others than the two processes and their kernel could read or change what goes over it. */
bool keel_connection_is_exposed(const struct keel_connection *connection);
/* Call it in `arrived` after reading the payload and before using what was read. False: the peer was taking
 * the memory back at that moment, so the bytes may be wrong; treat the connection as broken. */
bool keel_connection_intact(const struct keel_connection *connection);
/* Call it in `arrived`: the payload stays readable in place until keel_connection_release. Release it soon:
 * its sender waits for the memory. Returns a handle, or 0 where the payload cannot be kept: always 0 outside
 * of `arrived`, since what is processed there was copied when it came. */
uint64_t keel_connection_keep(struct keel_connection *connection);
/* Once, while the connection is open. False as for intact: nothing that was read counts. */
bool keel_connection_release(struct keel_connection *connection, uint64_t kept);
/* So much came behind what is kept that it keeps its sender from sending more. */
bool keel_connection_is_crowded(const struct keel_connection *connection);
/* Give it up: nothing is delivered for it any more. Twice is fine within one progress. */
void keel_connection_close(struct keel_connection *connection);

/* ---- addresses ----------------------------------------------------------------------------------------- */

/* What the opaque bytes of an address hold. */
struct keel_address_parts {
    uint8_t fabric[32]; /* as libfabric names it */
    uint8_t host[16];   /* hash of what makes a host: boot, network namespace, user; zero: no shared memory */
    uint8_t socket[16]; /* random: the name of a Unix socket in the abstract namespace */
};
static_assert(sizeof(struct keel_address_parts) == KEEL_ADDRESS_BYTES, "an address is a place");

struct keel_address_parts keel_place_of(const struct keel_address *address);
enum { KEEL_ADDRESS_TEXT_BYTES = 64 };
/* For messages: where the fabric finds it, "10.0.0.1:4000". */
void keel_address_text(const struct keel_address *address, char out[KEEL_ADDRESS_TEXT_BYTES]);

/* ---- the backends of an endpoint ----------------------------------------------------------------------- */

enum { KEEL_BACKENDS_MAX = 2, KEEL_BACKENDS_DESCRIPTORS_MAX = 4 };

struct keel_backends {
    struct keel_connection_backend
        *backends[KEEL_BACKENDS_MAX]; /* in the order in which they are asked to dial */
    uint32_t backend_count;
    uint32_t passes; /* of progress since the fabric was looked at */
};

/* Open all backends that the configuration asks for, and listen. UNSUPPORTED, IO. The fabric is driven as its
 * provider wants it (provider.h). Shared memory that the
 * system refuses is done without. */
enum keel_status keel_backends_open(struct keel_backends *backends, const struct keel_endpoint_config *config,
                                    const struct keel_connection_calls *calls, void *context);
void keel_backends_close(struct keel_backends *backends); /* closes what connections are left */
enum keel_status keel_backends_address(const struct keel_backends *backends, struct keel_address *out);

/* Begin to connect, over the first backend that can reach the address. PEER_LOST when refused at once. */
enum keel_status keel_backends_dial(struct keel_backends *backends, const struct keel_address *address,
                                    void *owner, struct keel_connection **out);
/* Deliver all that has happened. */
void keel_backends_progress(struct keel_backends *backends);
/* The same but for connections that come about, where a stranger could hold up whoever looks after them. */
void keel_backends_progress_data(struct keel_backends *backends);
/* May connections want attention? Cheap, and wrong now and then: data that comes may look the same. */
bool keel_backends_asked(const struct keel_backends *backends);
/* Before a sleep, each time: from now on peers ring. False when progress must run first. */
bool keel_backends_may_sleep(struct keel_backends *backends);
/* Where to sleep: fills `out` for poll(2), returns how many. They do not change. */
uint32_t keel_backends_descriptors(const struct keel_backends *backends,
                                   struct pollfd out[KEEL_BACKENDS_DESCRIPTORS_MAX]);
/* An epoch is over: connections that are left are its last words, or callers of a later one. What their
 * backend needed for the epoch goes with the last of them. */
void keel_backends_renew(struct keel_backends *backends);
/* Adds the bytes and messages of all backends. Any thread. */
void keel_backends_count(const struct keel_backends *backends, struct keel_transport_stats *stats);

/* ---- for backends -------------------------------------------------------------------------------------- */

struct keel_connection_backend_ops {
    void (*close)(struct keel_connection_backend *backend);
    /* NOT_FOUND: this backend cannot reach that address, another may. */
    enum keel_status (*dial)(struct keel_connection_backend *backend, const struct keel_address *address,
                             void *owner, struct keel_connection **out);
    enum keel_send (*send)(struct keel_connection *connection, struct keel_message *message,
                           const void *payload, bool lent, void *owner, bool *out_retry);
    bool (*intact)(const struct keel_connection *connection); /* NULL: always */
    uint64_t (*keep)(struct keel_connection *connection);     /* NULL: never */
    bool (*release)(struct keel_connection *connection, uint64_t kept);
    bool (*crowded)(const struct keel_connection *connection); /* NULL: never */
    void (*hang_up)(struct keel_connection
                        *connection); /* release what it holds; the connection itself stays until buried */
    void (*progress)(struct keel_connection_backend *backend);
    void (*progress_data)(
        struct keel_connection_backend *backend); /* NULL: progress never waits for a stranger */
    bool (*asked)(const struct keel_connection_backend *backend); /* NULL likewise */
    bool (*may_sleep)(struct keel_connection_backend *backend);
    uint32_t (*descriptors)(const struct keel_connection_backend *backend, struct pollfd *out);
    enum keel_status (*place)(const struct keel_connection_backend *backend,
                              struct keel_address_parts *in_out);
    void (*renew)(struct keel_connection_backend *backend); /* NULL: nothing is of an epoch */
    bool exposed; /* see keel_connection_is_exposed: such a backend seals and opens */
};

struct keel_connection_backend {
    const struct keel_connection_backend_ops *ops;
    const struct keel_connection_calls *calls;
    void *context;
    struct keel_connection *connections; /* open or opening */
    struct keel_connection *dying;       /* closed, still named by what the backend has not delivered */
    uint32_t connection_count;           /* of `connections` */
    _Atomic uint64_t bytes_sent, bytes_received, messages_sent, messages_received;
    _Atomic uint64_t forged; /* messages that did not open */
};

/* Connections of a backend at once: a group's, as many of an older epoch that linger, as many that are early
 * for the next, and callers that are strangers or refused. */
enum { KEEL_BACKEND_CONNECTIONS_MAX = 4 * KEEL_CONNECTIONS_MAX + 2 * KEEL_PENDING_MAX };

/* Whoever owns progress alone writes it: a load and a store. */
static inline void keel_count_add(_Atomic uint64_t *count, uint64_t more)
{
    uint64_t before = atomic_load_explicit(count, memory_order_relaxed);
    atomic_store_explicit(count, before + more, memory_order_relaxed);
}

void keel_connection_backend_adopt(struct keel_connection_backend *backend,
                                   struct keel_connection *connection);
/* Count a message: one writer, so no more than a load and a store. */
void keel_connection_backend_sent(struct keel_connection_backend *backend, uint32_t payload_bytes);
void keel_connection_backend_received(struct keel_connection_backend *backend, uint32_t payload_bytes);
/* Exposed backends: put what vouches for header and payload into memory, and unless it is `lent` the payload
 * behind it. Sealed if the connection is; `whole`: the payload is encrypted too, so it is not lent. Returns
 * the bytes before the payload. */
uint32_t keel_connection_fold(struct keel_connection *connection, uint8_t *memory,
                              const struct keel_message *message, const void *payload, bool lent, bool whole);
/* The payload of what came, and its header copied; NULL: it is no message, and why; or the connection is
 * `damaged`. `whole`: payloads have to be encrypted if the connection is sealed. */
const uint8_t *keel_connection_unfold(struct keel_connection *connection, uint8_t *memory, size_t bytes,
                                      bool whole, struct keel_message *out, const char **out_why);
/* Takes the first connection off a list; NULL when it is empty. */
struct keel_connection *keel_connection_take(struct keel_connection **list);
/* Tell the user that it broke, unless it is closed; the user closes it. */
void keel_connection_broke(struct keel_connection *connection, const char *why);

#endif
