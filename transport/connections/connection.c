/* connection.c - the backends of an endpoint as one, and what all connections share. */
#include "connection.h"

#include <arpa/inet.h>
#include <keel/log.h>
#include <stdio.h>
#include <string.h>

/* ---- lists --------------------------------------------------------------------------------------------- */

static void put(struct keel_connection **list, struct keel_connection *connection)
{
    connection->previous = NULL;
    connection->next = *list;
    if (*list != NULL)
        (*list)->previous = connection;
    *list = connection;
}

static void take(struct keel_connection **list, struct keel_connection *connection)
{
    if (connection->previous != NULL)
        connection->previous->next = connection->next;
    else
        *list = connection->next;
    if (connection->next != NULL)
        connection->next->previous = connection->previous;
}

void keel_connection_backend_adopt(struct keel_connection_backend *backend,
                                   struct keel_connection *connection)
{
    connection->backend = backend;
    connection->state = KEEL_CONNECTION_OPENING;
    put(&backend->connections, connection);
    backend->connection_count++;
}

void keel_connection_backend_sent(struct keel_connection_backend *backend, uint32_t payload_bytes)
{
    keel_count_add(&backend->bytes_sent, sizeof(struct keel_message) + payload_bytes);
    keel_count_add(&backend->messages_sent, 1);
}

void keel_connection_backend_received(struct keel_connection_backend *backend, uint32_t payload_bytes)
{
    keel_count_add(&backend->bytes_received, sizeof(struct keel_message) + payload_bytes);
    keel_count_add(&backend->messages_received, 1);
}

struct keel_connection *keel_connection_take(struct keel_connection **list)
{
    struct keel_connection *connection = *list;
    if (connection != NULL)
        take(list, connection);
    return connection;
}

/* ---- connections --------------------------------------------------------------------------------------- */

enum keel_send keel_connection_send(struct keel_connection *connection, struct keel_message *message,
                                    const void *payload, bool lent, void *owner, bool *out_retry)
{
    if (connection->state != KEEL_CONNECTION_OPEN)
        return KEEL_SEND_LATER;
    KEEL_ASSERT(message->bytes <= (lent ? KEEL_CHUNK_BYTES : KEEL_EAGER_BYTES));
    message->magic = KEEL_MESSAGE_MAGIC;
    return connection->backend->ops->send(connection, message, payload, lent, owner, out_retry);
}

void keel_connection_seal(struct keel_connection *connection, bool outgoing, struct keel_cipher *cipher)
{
    struct keel_cipher **place = outgoing ? &connection->sealer : &connection->opener;
    KEEL_ASSERT(*place == NULL && keel_connection_is_exposed(connection));
    *place = cipher;
}

bool keel_connection_is_exposed(const struct keel_connection *connection)
{
    return connection->backend->ops->exposed;
}

bool keel_connection_intact(const struct keel_connection *connection)
{
    const struct keel_connection_backend_ops *ops = connection->backend->ops;
    return ops->intact == NULL || ops->intact(connection);
}

uint64_t keel_connection_keep(struct keel_connection *connection)
{
    const struct keel_connection_backend_ops *ops = connection->backend->ops;
    return ops->keep != NULL ? ops->keep(connection) : 0;
}

bool keel_connection_release(struct keel_connection *connection, uint64_t kept)
{
    return connection->backend->ops->release(connection, kept);
}

bool keel_connection_is_crowded(const struct keel_connection *connection)
{
    const struct keel_connection_backend_ops *ops = connection->backend->ops;
    return ops->crowded != NULL && ops->crowded(connection);
}

void keel_connection_close(struct keel_connection *connection)
{
    struct keel_connection_backend *backend = connection->backend;
    if (connection->state == KEEL_CONNECTION_CLOSED)
        return;
    connection->state = KEEL_CONNECTION_CLOSED;
    backend->ops->hang_up(connection);
    keel_cipher_free(connection->sealer);
    keel_cipher_free(connection->opener);
    connection->sealer = connection->opener = NULL;
    take(&backend->connections, connection);
    backend->connection_count--;
    put(&backend->dying, connection);
}

void keel_connection_broke(struct keel_connection *connection, const char *why)
{
    if (connection->state == KEEL_CONNECTION_CLOSED)
        return;
    connection->backend->calls->broke(connection->backend->context, connection, why);
    KEEL_ASSERT(connection->state == KEEL_CONNECTION_CLOSED);
}

/* ---- backends ------------------------------------------------------------------------------------------ */

void keel_backends_close(struct keel_backends *backends)
{
    while (backends->backend_count > 0) {
        struct keel_connection_backend *backend = backends->backends[--backends->backend_count];
        while (backend->connections != NULL)
            keel_connection_close(backend->connections);
        backend->ops->close(backend);
    }
}

enum keel_status keel_backends_address(const struct keel_backends *backends, struct keel_address *out)
{
    struct keel_address_parts place = {{0}, {0}, {0}};
    struct keel_address address = {.bytes = sizeof place};
    for (uint32_t k = 0; k < backends->backend_count; k++)
        KEEL_TRY(backends->backends[k]->ops->place(backends->backends[k], &place));
    memcpy(address.data, &place, sizeof place);
    *out = address;
    return KEEL_OK;
}

struct keel_address_parts keel_place_of(const struct keel_address *address)
{
    struct keel_address_parts place = {{0}, {0}, {0}};
    memcpy(&place, address->data, address->bytes < sizeof place ? address->bytes : sizeof place);
    return place;
}

void keel_address_text(const struct keel_address *address, char out[KEEL_ADDRESS_TEXT_BYTES])
{
    struct keel_address_parts place = keel_place_of(address);
    struct sockaddr_in where;
    struct sockaddr_in6 six;
    char host[INET6_ADDRSTRLEN];
    memcpy(&where, place.fabric, sizeof where);
    memcpy(&six, place.fabric, sizeof six);
    if (six.sin6_family == AF_INET6 && inet_ntop(AF_INET6, &six.sin6_addr, host, sizeof host) != NULL)
        snprintf(out, KEEL_ADDRESS_TEXT_BYTES, "[%s]:%u", host, ntohs(six.sin6_port));
    else if (where.sin_family == AF_INET && inet_ntop(AF_INET, &where.sin_addr, host, sizeof host) != NULL)
        snprintf(out, KEEL_ADDRESS_TEXT_BYTES, "%s:%u", host, ntohs(where.sin_port));
    else
        snprintf(out, KEEL_ADDRESS_TEXT_BYTES, "an address of no IP");
}

/* Without a backend that goes beyond this host nothing else is tried. */
static bool reaches_hosts(const struct keel_backends *backends)
{
    for (uint32_t k = 0; k < backends->backend_count; k++)
        if (backends->backends[k]->ops->exposed)
            return true;
    return false;
}

enum keel_status keel_backends_dial(struct keel_backends *backends, const struct keel_address *address,
                                    void *owner, struct keel_connection **out)
{
    enum keel_status status = KEEL_NOT_FOUND;
    for (uint32_t k = 0; k < backends->backend_count && status == KEEL_NOT_FOUND; k++)
        status = backends->backends[k]->ops->dial(backends->backends[k], address, owner, out);
    return status == KEEL_NOT_FOUND && !reaches_hosts(backends)
               ? keel_fail(KEEL_PEER_LOST, "shared memory: the peer is gone, or on another host")
               : status;
}

/* To ask the fabric takes system calls; while it carries nothing, it is asked after a sleep and now and then.
 */
enum { PASSES = 64 };

static bool look_everywhere(struct keel_backends *backends)
{
    bool all = ++backends->passes >= PASSES;
    if (all)
        backends->passes = 0;
    return all;
}

void keel_backends_progress(struct keel_backends *backends)
{
    bool all = look_everywhere(backends);
    for (uint32_t k = 0; k < backends->backend_count; k++) {
        struct keel_connection_backend *backend = backends->backends[k];
        if (all || backend->connections != NULL || backend->dying != NULL)
            backend->ops->progress(backend);
    }
}

void keel_backends_progress_data(struct keel_backends *backends)
{
    bool all = look_everywhere(backends);
    for (uint32_t k = 0; k < backends->backend_count; k++) {
        struct keel_connection_backend *backend = backends->backends[k];
        const struct keel_connection_backend_ops *ops = backend->ops;
        if (all || backend->connections != NULL || backend->dying != NULL)
            (ops->progress_data != NULL ? ops->progress_data : ops->progress)(backend);
    }
}

bool keel_backends_asked(const struct keel_backends *backends)
{
    for (uint32_t k = 0; k < backends->backend_count; k++)
        if (backends->backends[k]->ops->asked != NULL &&
            backends->backends[k]->ops->asked(backends->backends[k]))
            return true;
    return false;
}

bool keel_backends_may_sleep(struct keel_backends *backends)
{
    backends->passes = PASSES;
    for (uint32_t k = 0; k < backends->backend_count; k++)
        if (!backends->backends[k]->ops->may_sleep(backends->backends[k]))
            return false;
    return true;
}

uint32_t keel_backends_descriptors(const struct keel_backends *backends,
                                   struct pollfd out[KEEL_BACKENDS_DESCRIPTORS_MAX])
{
    uint32_t count = 0;
    for (uint32_t k = 0; k < backends->backend_count; k++)
        count += backends->backends[k]->ops->descriptors(backends->backends[k], out + count);
    KEEL_ASSERT(count <= KEEL_BACKENDS_DESCRIPTORS_MAX);
    return count;
}

void keel_backends_renew(struct keel_backends *backends)
{
    for (uint32_t k = 0; k < backends->backend_count; k++)
        if (backends->backends[k]->ops->renew != NULL)
            backends->backends[k]->ops->renew(backends->backends[k]);
}

void keel_backends_count(const struct keel_backends *backends, struct keel_transport_stats *stats)
{
    for (uint32_t k = 0; k < backends->backend_count; k++) {
        const struct keel_connection_backend *backend = backends->backends[k];
        stats->bytes_sent += atomic_load(&backend->bytes_sent);
        stats->bytes_received += atomic_load(&backend->bytes_received);
        stats->messages_sent += atomic_load(&backend->messages_sent);
        stats->messages_received += atomic_load(&backend->messages_received);
        stats->stale_dropped += atomic_load(&backend->forged);
    }
}
