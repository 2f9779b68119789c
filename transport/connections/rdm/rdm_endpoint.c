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

static enum keel_status slot_create(struct keel_rdm_endpoint *station, struct keel_slot **out)
{
    struct keel_slot *slot;
    KEEL_TRY(keel_alloc(1, sizeof *slot, &slot));
    enum keel_status status =
        keel_alloc_aligned(KEEL_PAGE_BYTES, KEEL_RDM_ENDPOINT_SLOT_BYTES, &slot->memory);
    if (status == KEEL_OK && station->registers) {
        int result = fi_mr_reg(station->domain, slot->memory, KEEL_RDM_ENDPOINT_SLOT_BYTES, FI_SEND | FI_RECV,
                               0, station->registered++, 0, &slot->registration, NULL);
        if (result != 0)
            status = keel_fail(KEEL_IO, "fabric: registering memory: %s", keel_fi_strerror(-result));
    }
    if (status != KEEL_OK) {
        keel_free(slot->memory);
        keel_free(slot);
        return status;
    }
    slot->station = station;
    slot->next_of_all = station->all;
    station->all = slot;
    *out = slot;
    return KEEL_OK;
}

static void *descriptor_of(const struct keel_slot *slot)
{
    return slot->registration != NULL ? fi_mr_desc(slot->registration) : NULL;
}

static void post_receives(struct keel_rdm_endpoint *station)
{
    while (station->idle_receives != NULL) {
        struct keel_slot *slot = station->idle_receives;
        if (fi_recv(station->ep, slot->memory, KEEL_RDM_ENDPOINT_SLOT_BYTES, descriptor_of(slot),
                    FI_ADDR_UNSPEC, slot) != 0)
            return;
        station->idle_receives = slot->next;
    }
}

void keel_rdm_endpoint_expect(struct keel_rdm_endpoint *station, uint32_t receives)
{
    struct keel_slot *slot;
    while (receives-- > 0 && station->receive_count < station->info->rx_attr->size &&
           slot_create(station, &slot) == KEEL_OK) {
        station->receive_count++;
        slot->receive = true;
        slot->next = station->idle_receives;
        station->idle_receives = slot;
    }
    post_receives(station);
}

struct keel_slot *keel_rdm_endpoint_slot(struct keel_rdm_endpoint *station)
{
    struct keel_slot *slot = station->idle_sends;
    if (slot == NULL)
        return slot_create(station, &slot) == KEEL_OK ? slot : NULL;
    station->idle_sends = slot->next;
    return slot;
}

ssize_t keel_rdm_endpoint_send(struct keel_slot *slot, fi_addr_t to, size_t bytes)
{
    ssize_t result = fi_send(slot->station->ep, slot->memory, bytes, descriptor_of(slot), to, slot);
    slot->station->sending += result == 0;
    return result;
}

bool keel_rdm_endpoint_is_sending(const struct keel_rdm_endpoint *station)
{
    return station->sending > 0;
}

void keel_slot_return(struct keel_slot *slot)
{
    struct keel_rdm_endpoint *station = slot->station;
    struct keel_slot **list = slot->receive ? &station->idle_receives : &station->idle_sends;
    slot->connection = NULL;
    slot->next = *list;
    *list = slot;
    if (slot->receive)
        post_receives(station);
}

/* ---- what has happened --------------------------------------------------------------------------------- */

static struct keel_slot *failed(struct keel_rdm_endpoint *station, const char **out_error)
{
    struct fi_cq_err_entry error = {0};
    if (fi_cq_readerr(station->cq, &error, 0) <= 0)
        return NULL;
    struct keel_slot *slot = error.op_context;
    *out_error = keel_fi_strerror(error.err);
    if (slot != NULL && !slot->receive)
        station->sending--;
    return slot;
}

struct keel_slot *keel_rdm_endpoint_next(struct keel_rdm_endpoint *station, const char **out_error)
{
    *out_error = NULL;
    if (station->entry_next == station->entry_count) {
        station->entry_next = 0;
        station->entry_count = fi_cq_read(station->cq, station->entries, BATCH);
        if (station->entry_count <= 0) {
            bool bad = station->entry_count == -FI_EAVAIL;
            station->entry_count = 0;
            if (bad)
                return failed(station, out_error);
            if (station->idle_receives != NULL)
                post_receives(station);
            return NULL;
        }
    }
    const struct fi_cq_msg_entry *entry = &station->entries[station->entry_next++];
    struct keel_slot *slot = entry->op_context;
    if (slot->receive)
        slot->bytes = entry->len;
    else
        station->sending--;
    return slot;
}

int keel_rdm_endpoint_descriptor(const struct keel_rdm_endpoint *station)
{
    return station->fd;
}

bool keel_rdm_endpoint_may_sleep(struct keel_rdm_endpoint *station)
{
    struct fid *fid = &station->cq->fid;
    if (station->entry_next < station->entry_count)
        return false;
    return station->fd < 0 || fi_trywait(station->fabric, &fid, 1) == 0;
}

/* ---- whom it knows ------------------------------------------------------------------------------------- */

/* Names are never removed: a provider may still have something under way to them. */
enum keel_status keel_rdm_endpoint_find(struct keel_rdm_endpoint *station,
                                        const struct keel_rdm_endpoint_name *name, fi_addr_t *out)
{
    for (uint32_t k = 0; k < station->name_count; k++)
        if (memcmp(&station->names[k], name, sizeof *name) == 0) {
            *out = station->found[k];
            return KEEL_OK;
        }
    if (station->names == NULL)
        KEEL_TRY(keel_alloc(NAMES_MAX, sizeof *station->names, &station->names));
    if (station->found == NULL)
        KEEL_TRY(keel_alloc(NAMES_MAX, sizeof *station->found, &station->found));
    if (station->name_count == NAMES_MAX)
        return keel_fail(KEEL_LIMIT, "fabric: more than %d addresses in one epoch", NAMES_MAX);
    if (fi_av_insert(station->av, name->data, 1, out, 0, NULL) != 1)
        return keel_fail(KEEL_IO, "fabric: the provider does not take the peer's address");
    station->names[station->name_count] = *name;
    station->found[station->name_count++] = *out;
    return KEEL_OK;
}

void keel_rdm_endpoint_name(const struct keel_rdm_endpoint *station, struct keel_rdm_endpoint_name *out)
{
    size_t bytes = sizeof out->data;
    memset(out, 0, sizeof *out);
    if (fi_getname(&station->ep->fid, out->data, &bytes) == 0)
        out->bytes = (uint32_t)bytes;
}

/* ---- opening and closing ------------------------------------------------------------------------------- */

/* With something to sleep on if the provider has it. Some say so only when asked for it. */
static int open_queue(struct keel_rdm_endpoint *station)
{
    struct fi_cq_attr cq = {.size = QUEUE_ENTRIES, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD};
    station->fd = -1;
    if (fi_cq_open(station->domain, &cq, &station->cq, NULL) == 0) {
        if (fi_control(&station->cq->fid, FI_GETWAIT, &station->fd) == 0)
            return 0;
        station->fd = -1;
        fi_close(&station->cq->fid);
        station->cq = NULL;
    }
    cq.wait_obj = FI_WAIT_NONE;
    return fi_cq_open(station->domain, &cq, &station->cq, NULL);
}

static int open_endpoint(struct keel_rdm_endpoint *station)
{
    struct fi_av_attr av = {.type = FI_AV_UNSPEC, .count = NAMES_MAX};
    int result = keel_fi_fabric(station->info->fabric_attr, &station->fabric, NULL);
    if (result == 0)
        result = fi_domain(station->fabric, station->info, &station->domain, NULL);
    if (result == 0)
        result = fi_av_open(station->domain, &av, &station->av, NULL);
    if (result == 0)
        result = open_queue(station);
    if (result == 0)
        result = fi_endpoint(station->domain, station->info, &station->ep, NULL);
    if (result == 0)
        result = fi_ep_bind(station->ep, &station->av->fid, 0);
    if (result == 0)
        result = fi_ep_bind(station->ep, &station->cq->fid, FI_TRANSMIT | FI_RECV);
    return result == 0 ? fi_enable(station->ep) : result;
}

enum keel_status keel_rdm_endpoint_open(const struct keel_provider_info *device,
                                        struct keel_rdm_endpoint **out)
{
    struct keel_rdm_endpoint *station;
    KEEL_TRY(keel_alloc(1, sizeof *station, &station));
    station->info = device->info;
    station->registers = device->registers;
    int result = open_endpoint(station);
    if (result != 0) {
        keel_rdm_endpoint_close(station);
        return keel_fail(KEEL_IO, "fabric: opening an endpoint of \"%s\": %s", device->provider->name,
                         keel_fi_strerror(-result));
    }
    *out = station;
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
static in_port_t port_of(const struct keel_rdm_endpoint *station)
{
    struct keel_rdm_endpoint_name name;
    struct sockaddr_in own;
    keel_rdm_endpoint_name(station, &name);
    memcpy(&own, name.data, sizeof own);
    return name.bytes == sizeof own && own.sin_family == AF_INET ? own.sin_port : 0;
}

static void close_endpoint(struct keel_rdm_endpoint *station)
{
    struct keel_accepted accepted;
    keel_accepted_find(port_of(station), &accepted);
    close_fid(&station->ep->fid, "an endpoint");
    keel_accepted_close(&accepted);
}

void keel_rdm_endpoint_close(struct keel_rdm_endpoint *station)
{
    if (station->ep != NULL)
        close_endpoint(station);
    while (station->all != NULL) {
        struct keel_slot *slot = station->all;
        station->all = slot->next_of_all;
        if (slot->registration != NULL)
            close_fid(&slot->registration->fid, "a registration");
        keel_free(slot->memory);
        keel_free(slot);
    }
    if (station->cq != NULL)
        close_fid(&station->cq->fid, "a queue");
    if (station->av != NULL)
        close_fid(&station->av->fid, "a table of addresses");
    if (station->domain != NULL)
        close_fid(&station->domain->fid, "a domain");
    if (station->fabric != NULL)
        close_fid(&station->fabric->fid, "a fabric");
    keel_free(station->names);
    keel_free(station->found);
    keel_free(station);
}
