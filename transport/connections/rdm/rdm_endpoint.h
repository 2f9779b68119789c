/* rdm_endpoint.h - one unconnected endpoint of libfabric (FI_EP_RDM), with all its memory: what an epoch has.
 *
 * What is posted to a peer that died stays posted: the provider neither tells nor gives it back. So all that
 * is posted lies in slots of the RDM endpoint, and goes with it; closing the endpoint is the only safe
 * release. Nobody else's memory is ever lent. One thread at a time. Leaves to rdm.c what messages mean. */
#ifndef KEEL_TRANSPORT_RDM_ENDPOINT_H
#define KEEL_TRANSPORT_RDM_ENDPOINT_H

#include "device.h"
#include "message.h"

#include <rdma/fabric.h>

enum {
    KEEL_RDM_ENDPOINT_NAME_BYTES = 64,
    KEEL_RDM_ENDPOINT_HEAD_BYTES = 16, /* before header or envelope: which connection (rdm.c) */
    KEEL_RDM_ENDPOINT_SLOT_BYTES =
        KEEL_RDM_ENDPOINT_HEAD_BYTES + sizeof(struct keel_envelope) + KEEL_CHUNK_BYTES
};

struct keel_rdm_endpoint;

/* One message, going or coming. */
struct keel_slot {
    struct fi_context2 context; /* the provider's, while it is posted; first */
    struct keel_slot *next, *next_of_all;
    struct keel_rdm_endpoint *endpoint;
    uint8_t *memory; /* KEEL_RDM_ENDPOINT_SLOT_BYTES */
    struct fid_mr *registration;
    size_t bytes; /* that it has */
    bool receive;
    void *connection; /* sends: whose; NULL: nobody's any more */
    uint32_t ordinal;
};

struct keel_rdm_endpoint_name {
    uint32_t bytes;
    uint8_t data[KEEL_RDM_ENDPOINT_NAME_BYTES];
};

enum keel_status keel_rdm_endpoint_open(const struct keel_provider_info *device,
                                        struct keel_rdm_endpoint **out);
void keel_rdm_endpoint_close(struct keel_rdm_endpoint *endpoint);
void keel_rdm_endpoint_name(const struct keel_rdm_endpoint *endpoint, struct keel_rdm_endpoint_name *out);
/* Where to send to. LIMIT, IO. */
enum keel_status keel_rdm_endpoint_find(struct keel_rdm_endpoint *endpoint,
                                        const struct keel_rdm_endpoint_name *name, fi_addr_t *out);
/* Post so many receives more, as far as the provider has room. */
void keel_rdm_endpoint_expect(struct keel_rdm_endpoint *endpoint, uint32_t receives);

/* A slot to fill and send; NULL: no memory. */
struct keel_slot *keel_rdm_endpoint_slot(struct keel_rdm_endpoint *endpoint);
/* 0, or libfabric's error; the slot is then still the caller's. */
ssize_t keel_rdm_endpoint_send(struct keel_slot *slot, fi_addr_t to, size_t bytes);
bool keel_rdm_endpoint_is_sending(const struct keel_rdm_endpoint *endpoint); /* something has not gone */
/* The slot is not needed any more; a receive is posted again. */
void keel_slot_return(struct keel_slot *slot);

/* The next that has come or gone; NULL: none. *out_error: NULL, or why it failed. */
struct keel_slot *keel_rdm_endpoint_next(struct keel_rdm_endpoint *endpoint, const char **out_error);
/* Something to sleep on, or -1: the provider has none. */
int keel_rdm_endpoint_descriptor(const struct keel_rdm_endpoint *endpoint);
bool keel_rdm_endpoint_may_sleep(struct keel_rdm_endpoint *endpoint);

#endif
