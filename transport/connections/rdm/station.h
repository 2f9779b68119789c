/* station.h - one unconnected endpoint of libfabric (FI_EP_RDM), with all its memory: what an epoch has.
 *
 * What is posted to a peer that died stays posted: the provider neither tells nor gives it back. So all that
 * is posted lies in slots of the station, and goes with it; closing the endpoint is the only safe release.
 * Nobody else's memory is ever lent. One thread at a time. Leaves to rdm.c what messages mean. */
#ifndef KEEL_TRANSPORT_STATION_H
#define KEEL_TRANSPORT_STATION_H

#include "device.h"
#include "message.h"

#include <rdma/fabric.h>

enum {
    KEEL_STATION_NAME_BYTES = 64,
    KEEL_STATION_HEAD_BYTES = 16, /* before header or envelope: which line (rdm.c) */
    KEEL_STATION_SLOT_BYTES = KEEL_STATION_HEAD_BYTES + sizeof(struct keel_envelope) + KEEL_CHUNK_BYTES
};

struct keel_station;

/* One message, going or coming. */
struct keel_slot {
    struct fi_context2 context; /* the provider's, while it is posted; first */
    struct keel_slot *next, *next_of_all;
    struct keel_station *station;
    uint8_t *memory; /* KEEL_STATION_SLOT_BYTES */
    struct fid_mr *registration;
    size_t bytes; /* that it has */
    bool receive;
    void *line; /* sends: whose; NULL: nobody's any more */
    uint32_t ordinal;
};

struct keel_station_name {
    uint32_t bytes;
    uint8_t data[KEEL_STATION_NAME_BYTES];
};

enum keel_status keel_station_open(const struct keel_provider_info *device, struct keel_station **out);
void keel_station_close(struct keel_station *station);
void keel_station_name(const struct keel_station *station, struct keel_station_name *out);
/* Where to send to. LIMIT, IO. */
enum keel_status keel_station_find(struct keel_station *station, const struct keel_station_name *name,
                                   fi_addr_t *out);
/* Post so many receives more, as far as the provider has room. */
void keel_station_expect(struct keel_station *station, uint32_t receives);

/* A slot to fill and send; NULL: no memory. */
struct keel_slot *keel_station_slot(struct keel_station *station);
/* 0, or libfabric's error; the slot is then still the caller's. */
ssize_t keel_station_send(struct keel_slot *slot, fi_addr_t to, size_t bytes);
bool keel_station_is_sending(const struct keel_station *station); /* something has not gone */
/* The slot is not needed any more; a receive is posted again. */
void keel_slot_return(struct keel_slot *slot);

/* The next that has come or gone; NULL: none. *out_error: NULL, or why it failed. */
struct keel_slot *keel_station_next(struct keel_station *station, const char **out_error);
/* Something to sleep on, or -1: the provider has none. */
int keel_station_descriptor(const struct keel_station *station);
bool keel_station_may_sleep(struct keel_station *station);

#endif
