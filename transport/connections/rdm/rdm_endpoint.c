/* rdm_endpoint.c - an unconnected endpoint, its queue, its slots, and whom it knows. */
#include "rdm_endpoint.h"
#include "callers.h"
#include "libfabric.h"

#include <keel/log.h>
#include <keel/memory.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <string.h>

enum {
    BATCH = 16,
    NAMES_MAX = 1024, /* of peers and strangers */
    QUEUE_ENTRIES = 4096
};

struct keel_rdm_endpoint {
    struct fi_info *info; /* the backend's */
    bool registers;
    uint64_t registered;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    int fd;
    struct keel_slot *all, *idle_sends;
    struct keel_slot *idle_receives; /* to be posted */
    uint32_t receive_count, sending;
    struct fi_cq_msg_entry entries[BATCH]; /* read and not yet told */
    ssize_t entry_count, entry_next;
    struct keel_rdm_endpoint_name *names; /* NAMES_MAX, once there is one, */
    fi_addr_t *found;                     /*   and what they became */
    uint32_t name_count;
};

/* ---- slots --------------------------------------------------------------------------------------------- */

static enum keel_status slot_create(struct keel_rdm_endpoint *endpoint, struct keel_slot **out)
{
    struct keel_slot *slot;
    KEEL_TRY(keel_alloc(1, sizeof *slot, &slot));
    enum keel_status status =
        keel_alloc_aligned(KEEL_PAGE_BYTES, KEEL_RDM_ENDPOINT_SLOT_BYTES, &slot->memory);
    if (status == KEEL_OK && endpoint->registers) {
        int result = fi_mr_reg(endpoint->domain, slot->memory, KEEL_RDM_ENDPOINT_SLOT_BYTES,
                               FI_SEND | FI_RECV, 0, endpoint->registered++, 0, &slot->registration, NULL);
        if (result != 0)
            status = keel_fail(KEEL_IO, "fabric: registering memory: %s", keel_fi_strerror(-result));
    }
    if (status != KEEL_OK) {
        keel_free(slot->memory);
        keel_free(slot);
        return status;
    }
    slot->endpoint = endpoint;
    slot->next_of_all = endpoint->all;
    endpoint->all = slot;
    *out = slot;
    return KEEL_OK;
}

static void *descriptor_of(const struct keel_slot *slot)
{
    return slot->registration != NULL ? fi_mr_desc(slot->registration) : NULL;
}

static void post_receives(struct keel_rdm_endpoint *endpoint)
{
    while (endpoint->idle_receives != NULL) {
        struct keel_slot *slot = endpoint->idle_receives;
        if (fi_recv(endpoint->ep, slot->memory, KEEL_RDM_ENDPOINT_SLOT_BYTES, descriptor_of(slot),
                    FI_ADDR_UNSPEC, slot) != 0)
            return;
        endpoint->idle_receives = slot->next;
    }
}

void keel_rdm_endpoint_expect(struct keel_rdm_endpoint *endpoint, uint32_t receives)
{
    struct keel_slot *slot;
    while (receives-- > 0 && endpoint->receive_count < endpoint->info->rx_attr->size &&
           slot_create(endpoint, &slot) == KEEL_OK) {
        endpoint->receive_count++;
        slot->receive = true;
        slot->next = endpoint->idle_receives;
        endpoint->idle_receives = slot;
    }
    post_receives(endpoint);
}

struct keel_slot *keel_rdm_endpoint_slot(struct keel_rdm_endpoint *endpoint)
{
    struct keel_slot *slot = endpoint->idle_sends;
    if (slot == NULL)
        return slot_create(endpoint, &slot) == KEEL_OK ? slot : NULL;
    endpoint->idle_sends = slot->next;
    return slot;
}

ssize_t keel_rdm_endpoint_send(struct keel_slot *slot, fi_addr_t to, size_t bytes)
{
    ssize_t result = fi_send(slot->endpoint->ep, slot->memory, bytes, descriptor_of(slot), to, slot);
    slot->endpoint->sending += result == 0;
    return result;
}

bool keel_rdm_endpoint_is_sending(const struct keel_rdm_endpoint *endpoint)
{
    return endpoint->sending > 0;
}

void keel_slot_return(struct keel_slot *slot)
{
    struct keel_rdm_endpoint *endpoint = slot->endpoint;
    struct keel_slot **list = slot->receive ? &endpoint->idle_receives : &endpoint->idle_sends;
    slot->connection = NULL;
    slot->next = *list;
    *list = slot;
    if (slot->receive)
        post_receives(endpoint);
}

/* ---- what has happened --------------------------------------------------------------------------------- */

static struct keel_slot *failed(struct keel_rdm_endpoint *endpoint, const char **out_error)
{
    struct fi_cq_err_entry error = {0};
    if (fi_cq_readerr(endpoint->cq, &error, 0) <= 0)
        return NULL;
    struct keel_slot *slot = error.op_context;
    *out_error = keel_fi_strerror(error.err);
    if (slot != NULL && !slot->receive)
        endpoint->sending--;
    return slot;
}

struct keel_slot *keel_rdm_endpoint_next(struct keel_rdm_endpoint *endpoint, const char **out_error)
{
    *out_error = NULL;
    if (endpoint->entry_next == endpoint->entry_count) {
        endpoint->entry_next = 0;
        endpoint->entry_count = fi_cq_read(endpoint->cq, endpoint->entries, BATCH);
        if (endpoint->entry_count <= 0) {
            bool bad = endpoint->entry_count == -FI_EAVAIL;
            endpoint->entry_count = 0;
            if (bad)
                return failed(endpoint, out_error);
            if (endpoint->idle_receives != NULL)
                post_receives(endpoint);
            return NULL;
        }
    }
    const struct fi_cq_msg_entry *entry = &endpoint->entries[endpoint->entry_next++];
    struct keel_slot *slot = entry->op_context;
    if (slot->receive)
        slot->bytes = entry->len;
    else
        endpoint->sending--;
    return slot;
}

int keel_rdm_endpoint_descriptor(const struct keel_rdm_endpoint *endpoint)
{
    return endpoint->fd;
}

bool keel_rdm_endpoint_may_sleep(struct keel_rdm_endpoint *endpoint)
{
    struct fid *fid = &endpoint->cq->fid;
    if (endpoint->entry_next < endpoint->entry_count)
        return false;
    return endpoint->fd < 0 || fi_trywait(endpoint->fabric, &fid, 1) == 0;
}

/* ---- whom it knows ------------------------------------------------------------------------------------- */

/* Names are never removed: a provider may still have something under way to them. */
enum keel_status keel_rdm_endpoint_find(struct keel_rdm_endpoint *endpoint,
                                        const struct keel_rdm_endpoint_name *name, fi_addr_t *out)
{
    for (uint32_t k = 0; k < endpoint->name_count; k++)
        if (memcmp(&endpoint->names[k], name, sizeof *name) == 0) {
            *out = endpoint->found[k];
            return KEEL_OK;
        }
    if (endpoint->names == NULL)
        KEEL_TRY(keel_alloc(NAMES_MAX, sizeof *endpoint->names, &endpoint->names));
    if (endpoint->found == NULL)
        KEEL_TRY(keel_alloc(NAMES_MAX, sizeof *endpoint->found, &endpoint->found));
    if (endpoint->name_count == NAMES_MAX)
        return keel_fail(KEEL_LIMIT, "fabric: more than %d addresses in one epoch", NAMES_MAX);
    if (fi_av_insert(endpoint->av, name->data, 1, out, 0, NULL) != 1)
        return keel_fail(KEEL_IO, "fabric: the provider does not take the peer's address");
    endpoint->names[endpoint->name_count] = *name;
    endpoint->found[endpoint->name_count++] = *out;
    return KEEL_OK;
}

void keel_rdm_endpoint_name(const struct keel_rdm_endpoint *endpoint, struct keel_rdm_endpoint_name *out)
{
    size_t bytes = sizeof out->data;
    memset(out, 0, sizeof *out);
    if (fi_getname(&endpoint->ep->fid, out->data, &bytes) == 0)
        out->bytes = (uint32_t)bytes;
}

/* ---- opening and closing ------------------------------------------------------------------------------- */

/* With something to sleep on if the provider has it. Some say so only when asked for it. */
static int open_queue(struct keel_rdm_endpoint *endpoint)
{
    struct fi_cq_attr cq = {.size = QUEUE_ENTRIES, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD};
    endpoint->fd = -1;
    if (fi_cq_open(endpoint->domain, &cq, &endpoint->cq, NULL) == 0) {
        if (fi_control(&endpoint->cq->fid, FI_GETWAIT, &endpoint->fd) == 0)
            return 0;
        endpoint->fd = -1;
        fi_close(&endpoint->cq->fid);
        endpoint->cq = NULL;
    }
    cq.wait_obj = FI_WAIT_NONE;
    return fi_cq_open(endpoint->domain, &cq, &endpoint->cq, NULL);
}

static int open_endpoint(struct keel_rdm_endpoint *endpoint)
{
    struct fi_av_attr av = {.type = FI_AV_UNSPEC, .count = NAMES_MAX};
    int result = keel_fi_fabric(endpoint->info->fabric_attr, &endpoint->fabric, NULL);
    if (result == 0)
        result = fi_domain(endpoint->fabric, endpoint->info, &endpoint->domain, NULL);
    if (result == 0)
        result = fi_av_open(endpoint->domain, &av, &endpoint->av, NULL);
    if (result == 0)
        result = open_queue(endpoint);
    if (result == 0)
        result = fi_endpoint(endpoint->domain, endpoint->info, &endpoint->ep, NULL);
    if (result == 0)
        result = fi_ep_bind(endpoint->ep, &endpoint->av->fid, 0);
    if (result == 0)
        result = fi_ep_bind(endpoint->ep, &endpoint->cq->fid, FI_TRANSMIT | FI_RECV);
    return result == 0 ? fi_enable(endpoint->ep) : result;
}

enum keel_status keel_rdm_endpoint_open(const struct keel_provider_info *device,
                                        struct keel_rdm_endpoint **out)
{
    struct keel_rdm_endpoint *endpoint;
    KEEL_TRY(keel_alloc(1, sizeof *endpoint, &endpoint));
    endpoint->info = device->info;
    endpoint->registers = device->registers;
    int result = open_endpoint(endpoint);
    if (result != 0) {
        keel_rdm_endpoint_close(endpoint);
        return keel_fail(KEEL_IO, "fabric: opening an endpoint of \"%s\": %s", device->provider->name,
                         keel_fi_strerror(-result));
    }
    *out = endpoint;
    return KEEL_OK;
}

/* ofi_rxm (1.17) keeps its domain when a peer died in the middle of a long message. */
static void close_fid(struct fid *fid, const char *what)
{
    int result = fi_close(fid);
    if (result != 0)
        keel_log(KEEL_LOG_INFO, "fabric: closing %s: %s", what, keel_fi_strerror(-result));
}

/* ofi_rxm over tcp listens; the name of the endpoint is where. */
static in_port_t port_of(const struct keel_rdm_endpoint *endpoint)
{
    struct keel_rdm_endpoint_name name;
    struct sockaddr_in own;
    keel_rdm_endpoint_name(endpoint, &name);
    memcpy(&own, name.data, sizeof own);
    return name.bytes == sizeof own && own.sin_family == AF_INET ? own.sin_port : 0;
}

static void close_endpoint(struct keel_rdm_endpoint *endpoint)
{
    struct keel_accepted accepted;
    keel_accepted_find(port_of(endpoint), &accepted);
    close_fid(&endpoint->ep->fid, "an endpoint");
    keel_accepted_close(&accepted);
}

void keel_rdm_endpoint_close(struct keel_rdm_endpoint *endpoint)
{
    if (endpoint->ep != NULL)
        close_endpoint(endpoint);
    while (endpoint->all != NULL) {
        struct keel_slot *slot = endpoint->all;
        endpoint->all = slot->next_of_all;
        if (slot->registration != NULL)
            close_fid(&slot->registration->fid, "a registration");
        keel_free(slot->memory);
        keel_free(slot);
    }
    if (endpoint->cq != NULL)
        close_fid(&endpoint->cq->fid, "a queue");
    if (endpoint->av != NULL)
        close_fid(&endpoint->av->fid, "a table of addresses");
    if (endpoint->domain != NULL)
        close_fid(&endpoint->domain->fid, "a domain");
    if (endpoint->fabric != NULL)
        close_fid(&endpoint->fabric->fid, "a fabric");
    keel_free(endpoint->names);
    keel_free(endpoint->found);
    keel_free(endpoint);
}
