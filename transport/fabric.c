/* fabric.c - the only file that calls libfabric.
 *
 * A closed link stays in the graveyard until the queues have been drained to the bottom once more, since
 * completions that the provider flushed may still name its slots. */
#include "fabric.h"

#include <keel/log.h>
#include <keel/memory.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <string.h>

enum {
    SLOT_BYTES = sizeof(struct keel_message) + KEEL_CHUNK_BYTES,
    SEND_SLOT_BYTES = sizeof(struct keel_message) + KEEL_EAGER_BYTES,
    /* connections at once: a group, one of an older epoch that lingers, strangers; twice for those closed */
    LINKS_MAX = 4 * KEEL_GROUP_RANKS_MAX + 2 * KEEL_PENDING_MAX,
    QUEUE_ENTRIES = LINKS_MAX * (KEEL_LINE_RECEIVES + KEEL_LINE_SENDS),
    EVENT_ENTRIES = 2 * LINKS_MAX,
    BATCH = 16,
    EVENT_BYTES = 512
};

static enum keel_status fabric_fail(ssize_t error, const char *what)
{
    return keel_fail(KEEL_IO, "fabric: %s: %s", what, fi_strerror((int)-error));
}

/* ---- links ------------------------------------------------------------------------------------------ */

static void link_into(struct keel_line **list, struct keel_line *link)
{
    link->previous = NULL;
    link->next = *list;
    if (*list != NULL)
        (*list)->previous = link;
    *list = link;
}

static void link_out_of(struct keel_line **list, struct keel_line *link)
{
    if (link->previous != NULL)
        link->previous->next = link->next;
    else
        *list = link->next;
    if (link->next != NULL)
        link->next->previous = link->previous;
}

static bool post_receive(struct keel_line_slot *slot)
{
    ssize_t result = fi_recv(slot->link->ep, slot->memory, SLOT_BYTES, NULL, FI_ADDR_UNSPEC, slot);
    return result == 0;
}

static enum keel_status link_slots(struct keel_line *link)
{
    size_t bytes = (size_t)KEEL_LINE_RECEIVES * SLOT_BYTES + (size_t)KEEL_LINE_SENDS * SEND_SLOT_BYTES;
    KEEL_TRY(keel_alloc(1, bytes, &link->memory));
    uint8_t *next = link->memory;
    for (uint32_t k = 0; k < KEEL_LINE_RECEIVES; k++, next += SLOT_BYTES)
        link->receives[k] = (struct keel_line_slot){.link = link, .memory = next, .receive = true};
    for (uint32_t k = 0; k < KEEL_LINE_SENDS; k++, next += SEND_SLOT_BYTES)
        link->sends[k] = (struct keel_line_slot){.link = link, .memory = next};
    return KEEL_OK;
}

static enum keel_status link_endpoint(struct keel_fabric *fabric, struct keel_line *link,
                                      struct fi_info *info)
{
    int result = fi_endpoint(fabric->domain, info, &link->ep, link);
    if (result != 0)
        return fabric_fail(result, "making an endpoint");
    result = fi_ep_bind(link->ep, &fabric->eq->fid, 0);
    if (result == 0)
        result = fi_ep_bind(link->ep, &fabric->cq->fid, FI_TRANSMIT | FI_RECV);
    if (result == 0)
        result = fi_enable(link->ep);
    for (uint32_t k = 0; result == 0 && k < KEEL_LINE_RECEIVES; k++)
        if (!post_receive(&link->receives[k]))
            result = -FI_EAGAIN;
    return result == 0 ? KEEL_OK : fabric_fail(result, "preparing an endpoint");
}

static enum keel_status link_create(struct keel_fabric *fabric, struct fi_info *info, struct keel_line **out)
{
    struct keel_line *link;
    KEEL_TRY(keel_alloc(1, sizeof *link, &link));
    link->fabric = fabric;
    link->state = KEEL_LINE_OPENING;
    link_into(&fabric->links, link);
    enum keel_status status = link_slots(link);
    if (status == KEEL_OK)
        status = link_endpoint(fabric, link, info);
    if (status != KEEL_OK) {
        keel_line_close(link);
        return status;
    }
    *out = link;
    return KEEL_OK;
}

void keel_line_close(struct keel_line *link)
{
    if (link->state == KEEL_LINE_CLOSED)
        return;
    link->state = KEEL_LINE_CLOSED;
    if (link->ep != NULL)
        fi_close(&link->ep->fid);
    link->ep = NULL;
    link_out_of(&link->fabric->links, link);
    link_into(&link->fabric->dying, link);
}

static void bury(struct keel_line **list)
{
    while (*list != NULL) {
        struct keel_line *link = *list;
        link_out_of(list, link);
        keel_free(link->memory);
        keel_free(link);
    }
}

enum keel_status keel_line_dial(struct keel_fabric *fabric, const struct keel_address *address, void *owner,
                                struct keel_line **out)
{
    struct keel_line *link;
    KEEL_TRY(link_create(fabric, fabric->info, &link));
    link->owner = owner;
    int result = fi_connect(link->ep, address->data, NULL, 0);
    if (result != 0) {
        keel_line_close(link);
        return keel_fail(KEEL_PEER_LOST, "fabric: connecting: %s", fi_strerror(-result));
    }
    *out = link;
    return KEEL_OK;
}

static struct keel_line_slot *free_send(struct keel_line *link, bool bulk)
{
    if (bulk && link->bulk_in_flight == KEEL_LINE_BULK_SENDS)
        return NULL;
    for (uint32_t k = 0; k < KEEL_LINE_SENDS; k++)
        if (!link->sends[k].busy)
            return &link->sends[k];
    return NULL;
}

static ssize_t post_send(struct keel_line_slot *slot, const void *payload, uint32_t bytes, bool lent)
{
    struct iovec parts[2] = {{slot->memory, sizeof(struct keel_message)}, {NULL, bytes}};
    if (lent) {
        memcpy(&parts[1].iov_base, &payload, sizeof payload); /* sends only read; iovec has no const */
        return fi_sendv(slot->link->ep, parts, NULL, 2, FI_ADDR_UNSPEC, slot);
    }
    if (bytes > 0)
        memcpy(slot->memory + sizeof(struct keel_message), payload, bytes);
    return fi_send(slot->link->ep, slot->memory, sizeof(struct keel_message) + bytes, NULL, FI_ADDR_UNSPEC,
                   slot);
}

enum keel_send keel_line_send(struct keel_line *link, struct keel_message *message, const void *payload,
                              bool lent, void *owner, bool *out_retry)
{
    if (link->state != KEEL_LINE_OPEN)
        return KEEL_SEND_LATER;
    KEEL_ASSERT(lent ? message->bytes <= KEEL_CHUNK_BYTES : message->bytes <= KEEL_EAGER_BYTES);
    struct keel_line_slot *slot = free_send(link, lent);
    if (slot == NULL)
        return KEEL_SEND_LATER;
    message->magic = KEEL_MESSAGE_MAGIC;
    memcpy(slot->memory, message, sizeof *message);
    ssize_t result = post_send(slot, payload, message->bytes, lent && message->bytes > 0);
    if (result == -FI_EAGAIN) {
        *out_retry = true;
        return KEEL_SEND_LATER;
    }
    if (result != 0)
        return KEEL_SEND_BROKEN;
    slot->busy = true;
    slot->bulk = lent;
    slot->owner = owner;
    slot->bytes = (uint32_t)sizeof *message + message->bytes;
    link->sends_in_flight++;
    link->bulk_in_flight += lent;
    return KEEL_SEND_OK;
}

/* ---- completions -------------------------------------------------------------------------------------- */

static void link_broke(struct keel_line *link, const char *why)
{
    if (link->state == KEEL_LINE_CLOSED)
        return;
    link->fabric->calls->broke(link->fabric->context, link, why);
    KEEL_ASSERT(link->state == KEEL_LINE_CLOSED);
}

static void receive_done(struct keel_line_slot *slot, size_t bytes)
{
    struct keel_line *link = slot->link;
    struct keel_fabric *fabric = link->fabric;
    struct keel_message message;
    if (bytes < sizeof message) {
        link_broke(link, "a message shorter than its header");
        return;
    }
    memcpy(&message, slot->memory, sizeof message);
    if (message.magic != KEEL_MESSAGE_MAGIC || message.bytes != bytes - sizeof message) {
        link_broke(link, "a message that is not ours");
        return;
    }
    fabric->bytes_received += bytes;
    fabric->messages_received++;
    fabric->calls->arrived(fabric->context, link, &message, slot->memory + sizeof message);
    if (link->state != KEEL_LINE_CLOSED && !post_receive(slot))
        link_broke(link, "a receive could not be posted");
}

static void send_done(struct keel_line_slot *slot)
{
    struct keel_line *link = slot->link;
    struct keel_fabric *fabric = link->fabric;
    slot->busy = false;
    link->sends_in_flight--;
    link->bulk_in_flight -= slot->bulk;
    fabric->bytes_sent += slot->bytes;
    fabric->messages_sent++;
    fabric->calls->sent(fabric->context, link, slot->owner);
}

static void completion(struct fi_cq_msg_entry *entry)
{
    struct keel_line_slot *slot = entry->op_context;
    if (slot->link->state == KEEL_LINE_CLOSED)
        return;
    if (slot->receive)
        receive_done(slot, entry->len);
    else
        send_done(slot);
}

static void failed_completion(struct keel_fabric *fabric)
{
    struct fi_cq_err_entry error = {0};
    if (fi_cq_readerr(fabric->cq, &error, 0) <= 0 || error.op_context == NULL)
        return;
    struct keel_line_slot *slot = error.op_context;
    link_broke(slot->link, fi_strerror(error.err));
}

static void drain_completions(struct keel_fabric *fabric)
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
    }
}

/* ---- connection events -------------------------------------------------------------------------------- */

static struct keel_line *link_of(struct keel_fabric *fabric, fid_t fid)
{
    for (struct keel_line *link = fabric->links; link != NULL; link = link->next)
        if (link->ep != NULL && &link->ep->fid == fid)
            return link;
    return NULL;
}

static uint32_t link_count(const struct keel_fabric *fabric)
{
    uint32_t count = 0;
    for (const struct keel_line *link = fabric->links; link != NULL; link = link->next)
        count++;
    return count;
}

static void connection_asked(struct keel_fabric *fabric, struct fi_info *info)
{
    struct keel_line *link;
    if (link_count(fabric) >= LINKS_MAX || link_create(fabric, info, &link) != KEEL_OK) {
        fi_reject(fabric->pep, info->handle, NULL, 0);
    } else if (!fabric->calls->asked(fabric->context, link) || fi_accept(link->ep, NULL, 0) != 0) {
        if (link->owner != NULL)
            link_broke(link, "it could not be accepted");
        keel_line_close(link);
    }
    fi_freeinfo(info);
}

static void event_arrived(struct keel_fabric *fabric, uint32_t event, const struct fi_eq_cm_entry *entry)
{
    if (event == FI_CONNREQ) {
        connection_asked(fabric, entry->info);
        return;
    }
    struct keel_line *link = link_of(fabric, entry->fid);
    if (link == NULL)
        return;
    if (event == FI_CONNECTED) {
        link->state = KEEL_LINE_OPEN;
        fabric->calls->opened(fabric->context, link);
    } else if (event == FI_SHUTDOWN) {
        link_broke(link, "the other side is gone");
    }
}

static void failed_event(struct keel_fabric *fabric)
{
    struct fi_eq_err_entry error = {0};
    if (fi_eq_readerr(fabric->eq, &error, 0) <= 0)
        return;
    struct keel_line *link = link_of(fabric, error.fid);
    if (link != NULL)
        link_broke(link, fi_strerror(error.err));
}

/* The last messages of a peer lie in the completion queue when its shutdown lies in the event queue, so the
 * former is always drained before an event is acted upon. */
void keel_fabric_progress(struct keel_fabric *fabric)
{
    struct keel_line *dead = fabric->dying;
    fabric->dying = NULL;
    for (;;) {
        drain_completions(fabric);
        uint8_t bytes[EVENT_BYTES] __attribute__((aligned(16)));
        uint32_t event = 0;
        ssize_t size = fi_eq_read(fabric->eq, &event, bytes, sizeof bytes, 0);
        if (size != -FI_EAVAIL && size < (ssize_t)sizeof(struct fi_eq_cm_entry))
            break;
        drain_completions(fabric);
        if (size == -FI_EAVAIL) {
            failed_event(fabric);
        } else {
            struct fi_eq_cm_entry entry;
            memcpy(&entry, bytes, sizeof entry);
            event_arrived(fabric, event, &entry);
        }
    }
    bury(&dead);
}

bool keel_fabric_may_sleep(struct keel_fabric *fabric)
{
    struct fid *fids[2] = {&fabric->eq->fid, &fabric->cq->fid};
    if (fabric->dying != NULL)
        return false;
    return fi_trywait(fabric->fabric, fids, 2) == 0;
}

/* ---- opening and closing --------------------------------------------------------------------------------
 */

static enum keel_status find_provider(struct keel_fabric *fabric, const char *provider, const char *node)
{
    struct fi_info *hints = fi_allocinfo();
    if (hints == NULL)
        return keel_fail(KEEL_NO_MEMORY, "fabric: no memory to ask for providers");
    hints->caps = FI_MSG;
    hints->ep_attr->type = FI_EP_MSG;
    hints->addr_format = FI_SOCKADDR_IN;
    hints->domain_attr->mr_mode = 0; /* buffers are not registered: verbs will want that, tcp does not */
    hints->fabric_attr->prov_name = strdup(provider);
    int result = fi_getinfo(FI_VERSION(1, 15), node, NULL, FI_SOURCE, hints, &fabric->info);
    fi_freeinfo(hints);
    if (result != 0)
        return keel_fail(KEEL_UNSUPPORTED,
                         "fabric: provider \"%s\" has no connected endpoints at %s (%s); \"tcp\" always has",
                         provider, node, fi_strerror(-result));
    return KEEL_OK;
}

static int open_queues(struct keel_fabric *fabric)
{
    struct fi_eq_attr eq = {.size = EVENT_ENTRIES, .wait_obj = FI_WAIT_FD};
    struct fi_cq_attr cq = {.size = QUEUE_ENTRIES, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD};
    int result = fi_fabric(fabric->info->fabric_attr, &fabric->fabric, NULL);
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

static int open_listener(struct keel_fabric *fabric)
{
    int result = fi_passive_ep(fabric->fabric, fabric->info, &fabric->pep, NULL);
    if (result == 0)
        result = fi_pep_bind(fabric->pep, &fabric->eq->fid, 0);
    if (result == 0)
        result = fi_listen(fabric->pep);
    return result;
}

enum keel_status keel_fabric_open(struct keel_fabric *fabric, const char *provider, const char *node,
                                  const struct keel_fabric_calls *calls, void *context)
{
    memset(fabric, 0, sizeof *fabric);
    fabric->calls = calls;
    fabric->context = context;
    KEEL_TRY(find_provider(fabric, provider, node));
    int result = open_queues(fabric);
    if (result == 0)
        result = open_listener(fabric);
    if (result == 0)
        return KEEL_OK;
    enum keel_status status = fabric_fail(result, "opening and listening");
    keel_fabric_close(fabric);
    return status;
}

enum keel_status keel_fabric_address(const struct keel_fabric *fabric, struct keel_address *out)
{
    struct keel_address address = {.bytes = 0};
    size_t bytes = sizeof address.data;
    int result = fi_getname(&fabric->pep->fid, address.data, &bytes);
    if (result != 0 || bytes > sizeof address.data)
        return fabric_fail(result, "asking for the own address");
    address.bytes = (uint32_t)bytes;
    *out = address;
    return KEEL_OK;
}

static void close_fid(struct fid *fid)
{
    if (fi_close(fid) != 0)
        keel_log(KEEL_LOG_WARN, "fabric: an object is still in use at close");
}

void keel_fabric_close(struct keel_fabric *fabric)
{
    while (fabric->links != NULL)
        keel_line_close(fabric->links);
    if (fabric->pep != NULL)
        close_fid(&fabric->pep->fid);
    if (fabric->cq != NULL)
        close_fid(&fabric->cq->fid);
    if (fabric->eq != NULL)
        close_fid(&fabric->eq->fid);
    if (fabric->domain != NULL)
        close_fid(&fabric->domain->fid);
    if (fabric->fabric != NULL)
        close_fid(&fabric->fabric->fid);
    fi_freeinfo(fabric->info);
    bury(&fabric->dying);
}
