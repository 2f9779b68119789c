/* fabric.c - libfabric's connected endpoints: a listener, and connections with their slots.
 *
 * Receive slots are posted again at once after `arrived` returns, so a peer never blocks on us; the
 * completion queue is larger than all that can be outstanding. A closed connection stays in the graveyard
 * until the queues have been drained to the bottom once more, since completions that the provider flushed may
 * still name its slots. */
#include "fabric.h"
#include "callers.h"
#include "libfabric.h"

#include <keel/log.h>
#include <keel/memory.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <string.h>

enum {
    SLOT_BYTES = sizeof(struct keel_envelope) + KEEL_CHUNK_BYTES,
    SEND_SLOT_BYTES = sizeof(struct keel_envelope) + KEEL_EAGER_BYTES, /* where payloads are lent */
    QUEUE_ENTRIES = KEEL_BACKEND_CONNECTIONS_MAX * (KEEL_CONNECTION_RECEIVES + KEEL_CONNECTION_SENDS),
    EVENT_ENTRIES = 2 * KEEL_BACKEND_CONNECTIONS_MAX,
    BATCH = 16,
    EVENT_BYTES = 512
};

/* One posted send or receive; its address is the fabric's context. */
struct slot {
    struct link *link;
    uint8_t *memory; /* header or envelope, then payload (receives: a chunk; sends: what is not lent) */
    void *owner;     /* sends: who hears of the completion, or NULL */
    uint32_t bytes;
    bool busy, receive;
    bool bulk; /* sends: more than a control message */
    bool lent; /* sends: the payload is not in the slot */
};

struct link {
    struct keel_connection connection; /* first: they are the same to the room */
    struct fid_ep *ep;
    uint8_t *memory;
    struct fid_mr *registration; /* of the memory, if the provider wants that */
    void *descriptor;            /* of the registration, or NULL */
    struct slot receives[KEEL_CONNECTION_RECEIVES];
    struct slot sends[KEEL_CONNECTION_SENDS];
};

struct fabric {
    struct keel_connection_backend backend; /* first */
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_eq *eq;
    struct fid_pep *pep;
    struct fid_cq *cq;
    int eq_fd, cq_fd;
    uint64_t registered;          /* so often: keys of registrations, which nobody but the provider uses */
    bool registers;               /* memory must be registered before the provider touches it */
    bool seal_payload;            /* of bulk data too, on connections that are sealed */
    struct keel_callers *callers; /* who has connected and says nothing; NULL: nobody looks */
};

static struct fabric *fabric_of(const struct keel_connection_backend *backend)
{
    return (struct fabric *)(uintptr_t)backend;
}

static struct link *link_of(struct keel_connection *connection)
{
    return (struct link *)(void *)connection;
}

static enum keel_status fabric_fail(ssize_t error, const char *what)
{
    if (-error < FI_ERRNO_OFFSET) /* the system's own: a limit that is used up has a status of its own */
        return keel_fail_errno((int)-error, "fabric: %s", what);
    return keel_fail(KEEL_IO, "fabric: %s: %s", what, keel_fi_strerror((int)-error));
}

/* ---- links --------------------------------------------------------------------------------------------- */

static bool post_receive(struct slot *slot)
{
    struct link *link = slot->link;
    ssize_t result = fi_recv(link->ep, slot->memory, SLOT_BYTES, link->descriptor, FI_ADDR_UNSPEC, slot);
    return result == 0;
}

/* Bulk payloads go through slots instead of being lent: what is sealed must be copied anyway, and a copy of a
 * chunk costs less than to register memory that is used once. */
static bool copies(const struct fabric *fabric)
{
    return fabric->registers || fabric->seal_payload;
}

static enum keel_status register_slots(struct fabric *fabric, struct link *link, size_t bytes)
{
    int result = fi_mr_reg(fabric->domain, link->memory, bytes, FI_SEND | FI_RECV, 0, fabric->registered++, 0,
                           &link->registration, NULL);
    if (result != 0)
        return fabric_fail(result, "registering a connection's memory");
    link->descriptor = fi_mr_desc(link->registration);
    return KEEL_OK;
}

static enum keel_status link_slots(struct fabric *fabric, struct link *link)
{
    size_t send_bytes = copies(fabric) ? SLOT_BYTES : SEND_SLOT_BYTES;
    size_t bytes = (size_t)KEEL_CONNECTION_RECEIVES * SLOT_BYTES + (size_t)KEEL_CONNECTION_SENDS * send_bytes;
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, bytes, &link->memory));
    uint8_t *next = link->memory;
    for (uint32_t k = 0; k < KEEL_CONNECTION_RECEIVES; k++, next += SLOT_BYTES)
        link->receives[k] = (struct slot){.link = link, .memory = next, .receive = true};
    for (uint32_t k = 0; k < KEEL_CONNECTION_SENDS; k++, next += send_bytes)
        link->sends[k] = (struct slot){.link = link, .memory = next};
    return fabric->registers ? register_slots(fabric, link, bytes) : KEEL_OK;
}

static enum keel_status link_endpoint(struct fabric *fabric, struct link *link, struct fi_info *info)
{
    int result = fi_endpoint(fabric->domain, info, &link->ep, link);
    if (result == -FI_EMFILE &&
        fabric->callers != NULL) { /* silent callers have them, and are shut down soon */
        (void)fabric_fail(result, "making an endpoint");
        return KEEL_BUSY;
    }
    if (result != 0)
        return fabric_fail(result, "making an endpoint");
    result = fi_ep_bind(link->ep, &fabric->eq->fid, 0);
    if (result == 0)
        result = fi_ep_bind(link->ep, &fabric->cq->fid, FI_TRANSMIT | FI_RECV);
    if (result == 0)
        result = fi_enable(link->ep);
    for (uint32_t k = 0; result == 0 && k < KEEL_CONNECTION_RECEIVES; k++)
        if (!post_receive(&link->receives[k]))
            result = -FI_EAGAIN;
    return result == 0 ? KEEL_OK : fabric_fail(result, "preparing an endpoint");
}

static enum keel_status link_create(struct fabric *fabric, struct fi_info *info, struct link **out)
{
    struct link *link;
    if (fabric->backend.connection_count >= KEEL_BACKEND_CONNECTIONS_MAX) {
        (void)keel_fail(KEEL_LIMIT, "fabric: %d connections are open already", KEEL_BACKEND_CONNECTIONS_MAX);
        return KEEL_LIMIT;
    }
    KEEL_TRY(keel_alloc(1, sizeof *link, &link));
    keel_connection_backend_adopt(&fabric->backend, &link->connection);
    enum keel_status status = link_slots(fabric, link);
    if (status == KEEL_OK)
        status = link_endpoint(fabric, link, info);
    if (status != KEEL_OK) {
        keel_connection_close(&link->connection);
        return status;
    }
    *out = link;
    return KEEL_OK;
}

static void fabric_hang_up(struct keel_connection *connection)
{
    struct link *link = link_of(connection);
    if (link->ep != NULL)
        fi_close(&link->ep->fid);
    if (link->registration != NULL)
        fi_close(&link->registration->fid);
    link->ep = NULL;
    link->registration = NULL;
}

static void bury(struct keel_connection **list)
{
    for (struct keel_connection *connection = keel_connection_take(list); connection != NULL;
         connection = keel_connection_take(list)) {
        struct link *link = link_of(connection);
        keel_free(link->memory);
        keel_free(link);
    }
}

static enum keel_status fabric_dial(struct keel_connection_backend *backend,
                                    const struct keel_address *address, void *owner,
                                    struct keel_connection **out)
{
    struct fabric *fabric = fabric_of(backend);
    struct link *link = NULL;
    KEEL_TRY(link_create(fabric, fabric->info, &link));
    link->connection.owner = owner;
    int result = fi_connect(link->ep, address->data, NULL, 0);
    if (result != 0) {
        keel_connection_close(&link->connection);
        return keel_fail(KEEL_PEER_LOST, "fabric: connecting: %s", keel_fi_strerror(-result));
    }
    *out = &link->connection;
    return KEEL_OK;
}

static struct slot *free_send(struct link *link, bool bulk)
{
    struct slot *found = NULL;
    uint32_t bulk_count = 0;
    for (uint32_t k = 0; k < KEEL_CONNECTION_SENDS; k++) {
        if (!link->sends[k].busy)
            found = &link->sends[k];
        else
            bulk_count += link->sends[k].bulk;
    }
    return bulk && bulk_count >= KEEL_CONNECTION_BULK_SENDS ? NULL : found;
}

static ssize_t post_send(struct slot *slot, uint32_t head, const void *payload, uint32_t bytes)
{
    struct link *link = slot->link;
    struct iovec parts[2] = {{slot->memory, head}, {NULL, bytes}};
    if (!slot->lent)
        return fi_send(link->ep, slot->memory, head + bytes, link->descriptor, FI_ADDR_UNSPEC, slot);
    memcpy(&parts[1].iov_base, &payload, sizeof payload); /* sends only read; iovec has no const */
    return fi_sendv(link->ep, parts, NULL, 2, FI_ADDR_UNSPEC, slot);
}

static enum keel_send fabric_send(struct keel_connection *connection, struct keel_message *message,
                                  const void *payload, bool lent, void *owner, bool *out_retry)
{
    struct link *link = link_of(connection);
    struct slot *slot = free_send(link, lent);
    if (slot == NULL)
        return KEEL_SEND_LATER;
    slot->bulk = lent;
    slot->lent = lent && message->bytes > 0 && !copies(fabric_of(connection->backend));
    bool whole = !lent || fabric_of(connection->backend)->seal_payload;
    uint32_t head = keel_connection_fold(connection, slot->memory, message, payload, slot->lent, whole);
    ssize_t result = post_send(slot, head, payload, message->bytes);
    if (result == -FI_EAGAIN) {
        *out_retry = true;
        return KEEL_SEND_LATER;
    }
    if (result != 0)
        return KEEL_SEND_BROKEN;
    if (connection->sealer != NULL)
        keel_cipher_advance(connection->sealer);
    slot->busy = true;
    slot->owner = slot->lent ? owner : NULL;
    slot->bytes = head + message->bytes;
    connection->bulk_in_flight += slot->lent;
    return slot->lent ? KEEL_SEND_OK : KEEL_SEND_DONE;
}

/* ---- completions --------------------------------------------------------------------------------------- */

static void receive_done(struct slot *slot, size_t bytes)
{
    struct keel_connection *connection = &slot->link->connection;
    struct keel_connection_backend *backend = connection->backend;
    struct keel_message message;
    const char *why;
    bool whole = fabric_of(backend)->seal_payload;
    const uint8_t *payload = keel_connection_unfold(connection, slot->memory, bytes, whole, &message, &why);
    if (payload == NULL) {
        keel_connection_broke(connection, why);
        return;
    }
    backend->bytes_received += bytes;
    backend->messages_received++;
    backend->calls->arrived(backend->context, connection, &message, payload);
    if (connection->state != KEEL_CONNECTION_CLOSED && !post_receive(slot))
        keel_connection_broke(connection, "a receive could not be posted");
}

static void send_done(struct slot *slot)
{
    struct keel_connection *connection = &slot->link->connection;
    struct keel_connection_backend *backend = connection->backend;
    slot->busy = false;
    connection->bulk_in_flight -= slot->lent;
    backend->bytes_sent += slot->bytes;
    backend->messages_sent++;
    backend->calls->sent(backend->context, connection, slot->owner);
}

static void completion(struct fi_cq_msg_entry *entry)
{
    struct slot *slot = entry->op_context;
    if (slot->link->connection.state == KEEL_CONNECTION_CLOSED)
        return;
    if (slot->receive)
        receive_done(slot, entry->len);
    else
        send_done(slot);
}

static void failed_completion(struct fabric *fabric)
{
    struct fi_cq_err_entry error = {0};
    if (fi_cq_readerr(fabric->cq, &error, 0) <= 0 || error.op_context == NULL)
        return;
    struct slot *slot = error.op_context;
    keel_connection_broke(&slot->link->connection, keel_fi_strerror(error.err));
}

/* `once`: what is there now. Else to the bottom, for which the provider has to look at its sockets once more.
 */
static void drain_completions(struct fabric *fabric, bool once)
{
    struct fi_cq_msg_entry entries[BATCH];
    for (;;) {
        ssize_t count = fi_cq_read(fabric->cq, entries, BATCH);
        if (count == -FI_EAVAIL)
            failed_completion(fabric);
        else if (count <= 0)
            return;
        for (ssize_t k = 0; k < count; k++)
            completion(&entries[k]);
        if (once && count >= 0 && count < BATCH)
            return;
    }
}

/* ---- connection events --------------------------------------------------------------------------------- */

static struct keel_connection *line_of_fid(struct fabric *fabric, fid_t fid)
{
    for (struct keel_connection *connection = fabric->backend.connections; connection != NULL;
         connection = connection->next) {
        const struct link *link = link_of(connection);
        if (link->ep != NULL && &link->ep->fid == fid)
            return connection;
    }
    return NULL;
}

static void connection_asked(struct fabric *fabric, struct fi_info *info)
{
    const struct keel_connection_calls *calls = fabric->backend.calls;
    struct link *link = NULL;
    if (link_create(fabric, info, &link) != KEEL_OK) {
        fi_reject(fabric->pep, info->handle, NULL, 0);
    } else if (!calls->asked(fabric->backend.context, &link->connection) ||
               fi_accept(link->ep, NULL, 0) != 0) {
        if (link->connection.owner != NULL)
            keel_connection_broke(&link->connection, "it could not be accepted");
        keel_connection_close(&link->connection);
    }
    keel_fi_freeinfo(info);
}

static void event_arrived(struct fabric *fabric, uint32_t event, const struct fi_eq_cm_entry *entry)
{
    if (event == FI_CONNREQ) {
        connection_asked(fabric, entry->info);
        return;
    }
    struct keel_connection *connection = line_of_fid(fabric, entry->fid);
    if (connection == NULL)
        return;
    if (event == FI_CONNECTED) {
        connection->state = KEEL_CONNECTION_OPEN;
        fabric->backend.calls->opened(fabric->backend.context, connection);
    } else if (event == FI_SHUTDOWN) {
        keel_connection_broke(connection, "the other side is gone");
    }
}

static void failed_event(struct fabric *fabric)
{
    struct fi_eq_err_entry error = {0};
    if (fi_eq_readerr(fabric->eq, &error, 0) <= 0)
        return;
    struct keel_connection *connection = line_of_fid(fabric, error.fid);
    if (connection != NULL)
        keel_connection_broke(connection, keel_fi_strerror(error.err));
}

/* The last messages of a peer lie in the completion queue when its shutdown lies in the event queue, so the
 * former is always drained before an event is acted upon. */
static void fabric_progress(struct keel_connection_backend *backend)
{
    struct fabric *fabric = fabric_of(backend);
    struct keel_connection *dead = backend->dying;
    struct pollfd events = {.fd = fabric->eq_fd, .events = POLLIN};
    bool asked = fabric->callers != NULL && poll(&events, 1, 0) > 0;
    backend->dying = NULL;
    for (;;) {
        drain_completions(fabric, false);
        uint8_t bytes[EVENT_BYTES] __attribute__((aligned(16)));
        uint32_t event = 0;
        ssize_t size = fi_eq_read(fabric->eq, &event, bytes, sizeof bytes, 0);
        if (size != -FI_EAVAIL && size < (ssize_t)sizeof(struct fi_eq_cm_entry))
            break;
        drain_completions(fabric, false);
        if (size == -FI_EAVAIL) {
            failed_event(fabric);
        } else {
            struct fi_eq_cm_entry entry;
            memcpy(&entry, bytes, sizeof entry);
            event_arrived(fabric, event, &entry);
        }
    }
    bury(&dead);
    if (fabric->callers != NULL)
        keel_callers_look(fabric->callers, asked);
}

static bool fabric_may_sleep(struct keel_connection_backend *backend)
{
    struct fabric *fabric = fabric_of(backend);
    struct fid *fids[2] = {&fabric->eq->fid, &fabric->cq->fid};
    if (backend->dying != NULL)
        return false;
    return fi_trywait(fabric->fabric, fids, 2) == 0;
}

/* ---- opening and closing ------------------------------------------------------------------------------- */

static enum keel_status check_room(const struct fi_info *info)
{
    if (info->ep_attr->max_msg_size < SLOT_BYTES || info->rx_attr->size < KEEL_CONNECTION_RECEIVES ||
        info->tx_attr->size < KEEL_CONNECTION_SENDS)
        return keel_fail(KEEL_UNSUPPORTED, "fabric: provider \"%s\" has no room for %d messages of %d bytes",
                         info->fabric_attr->prov_name, KEEL_CONNECTION_RECEIVES + KEEL_CONNECTION_SENDS,
                         SLOT_BYTES);
    return KEEL_OK;
}

static int open_queues(struct fabric *fabric)
{
    struct fi_eq_attr eq = {.size = EVENT_ENTRIES, .wait_obj = FI_WAIT_FD};
    struct fi_cq_attr cq = {.size = QUEUE_ENTRIES, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD};
    int result = keel_fi_fabric(fabric->info->fabric_attr, &fabric->fabric, NULL);
    if (result == 0)
        result = fi_domain(fabric->fabric, fabric->info, &fabric->domain, NULL);
    if (result == 0)
        result = fi_eq_open(fabric->fabric, &eq, &fabric->eq, NULL);
    if (result == 0)
        result = fi_cq_open(fabric->domain, &cq, &fabric->cq, NULL);
    if (result == 0)
        result = fi_control(&fabric->eq->fid, FI_GETWAIT, &fabric->eq_fd);
    if (result == 0)
        result = fi_control(&fabric->cq->fid, FI_GETWAIT, &fabric->cq_fd);
    return result;
}

static int open_listener(struct fabric *fabric)
{
    int result = fi_passive_ep(fabric->fabric, fabric->info, &fabric->pep, NULL);
    if (result == 0)
        result = fi_pep_bind(fabric->pep, &fabric->eq->fid, 0);
    if (result == 0)
        result = fi_listen(fabric->pep);
    return result;
}

static enum keel_status fabric_place(const struct keel_connection_backend *backend,
                                     struct keel_address_parts *in_out)
{
    const struct fabric *fabric = fabric_of(backend);
    size_t bytes = sizeof in_out->fabric;
    int result = fi_getname(&fabric->pep->fid, in_out->fabric, &bytes);
    if (result != 0 || bytes > sizeof in_out->fabric)
        return fabric_fail(result, "asking for the own address");
    return KEEL_OK;
}

static uint32_t fabric_descriptors(const struct keel_connection_backend *backend, struct pollfd *out)
{
    const struct fabric *fabric = fabric_of(backend);
    out[0] = (struct pollfd){.fd = fabric->eq_fd, .events = POLLIN};
    out[1] = (struct pollfd){.fd = fabric->cq_fd, .events = POLLIN};
    if (fabric->callers == NULL)
        return 2;
    out[2] = (struct pollfd){.fd = keel_callers_descriptor(fabric->callers), .events = POLLIN};
    return 3;
}

static void fabric_progress_data(struct keel_connection_backend *backend)
{
    drain_completions(fabric_of(backend), true);
}

static bool fabric_asked(const struct keel_connection_backend *backend)
{
    const struct fabric *fabric = fabric_of(backend);
    struct pollfd events[2] = {{.fd = fabric->eq_fd, .events = POLLIN}, {.fd = -1}};
    if (fabric->callers != NULL)
        events[1] = (struct pollfd){.fd = keel_callers_descriptor(fabric->callers), .events = POLLIN};
    return backend->dying != NULL || poll(events, 2, 0) > 0;
}

static void close_fid(struct fid *fid)
{
    if (fi_close(fid) != 0)
        keel_log(KEEL_LOG_WARN, "fabric: an object is still in use at close");
}

/* Of a listener of TCP: others accept nobody who has not spoken. 0: it is none. */
static in_port_t port_of(const struct fabric *fabric)
{
    struct sockaddr_storage own = {0};
    struct sockaddr_in place; /* the port lies there in IPv6 too */
    size_t bytes = sizeof own;
    bool found = fi_getname(&fabric->pep->fid, &own, &bytes) == 0 && bytes >= sizeof place;
    memcpy(&place, &own, sizeof place);
    return found && (place.sin_family == AF_INET || place.sin_family == AF_INET6) ? place.sin_port : 0;
}

static void fabric_close(struct keel_connection_backend *backend)
{
    struct fabric *fabric = fabric_of(backend);
    struct keel_accepted accepted = {0};
    keel_callers_close(fabric->callers);
    if (fabric->pep != NULL) {
        keel_accepted_find(port_of(fabric), &accepted);
        close_fid(&fabric->pep->fid);
    }
    if (fabric->cq != NULL)
        close_fid(&fabric->cq->fid);
    if (fabric->eq != NULL)
        close_fid(&fabric->eq->fid);
    keel_accepted_close(&accepted);
    if (fabric->domain != NULL)
        close_fid(&fabric->domain->fid);
    if (fabric->fabric != NULL)
        close_fid(&fabric->fabric->fid);
    keel_fi_freeinfo(fabric->info);
    bury(&backend->dying);
    keel_free(fabric);
}

static const struct keel_connection_backend_ops fabric_ops = {.close = fabric_close,
                                                              .dial = fabric_dial,
                                                              .send = fabric_send,
                                                              .hang_up = fabric_hang_up,
                                                              .progress = fabric_progress,
                                                              .progress_data = fabric_progress_data,
                                                              .asked = fabric_asked,
                                                              .may_sleep = fabric_may_sleep,
                                                              .descriptors = fabric_descriptors,
                                                              .place = fabric_place,
                                                              .exposed = true};

static void watch_callers(struct fabric *fabric)
{
    in_port_t port = port_of(fabric);
    if (port != 0 && keel_callers_open(port, &fabric->callers) != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "%s; callers who say nothing are kept", keel_detail());
}

enum keel_status keel_fabric_open(const struct keel_provider_info *device, bool seal_payload,
                                  struct keel_connection_backend **out)
{
    struct fabric *fabric;
    enum keel_status status = keel_alloc(1, sizeof *fabric, &fabric);
    if (status != KEEL_OK) {
        keel_fi_freeinfo(device->info);
        return status;
    }
    fabric->backend.ops = &fabric_ops;
    fabric->seal_payload = seal_payload;
    fabric->registers = device->registers;
    fabric->info = device->info;
    status = check_room(fabric->info);
    if (status == KEEL_OK) {
        int result = open_queues(fabric);
        if (result == 0)
            result = open_listener(fabric);
        if (result != 0)
            status = keel_fail(KEEL_IO, "fabric: listening at %s: %s; is it an address of this host?",
                               device->node, keel_fi_strerror(-result));
    }
    if (status != KEEL_OK) {
        fabric_close(&fabric->backend);
        return status;
    }
    watch_callers(fabric);
    *out = &fabric->backend;
    return KEEL_OK;
}
