/* provider.h - what libfabric's providers can do, as far as it matters here: the capability table.
 *
 * Pure. What libfabric itself says when asked (is it there, does it reach the address, does it want memory
 * registered) is asked in device.c; here is what it does not say, above all how a provider tells of a dead
 * peer, and what follows from all that: how a provider is driven, or why it is refused. */
#ifndef KEEL_TRANSPORT_PROVIDER_H
#define KEEL_TRANSPORT_PROVIDER_H

#include <stdbool.h>
#include <stddef.h>

enum keel_evidence {
    KEEL_EVIDENCE_UNKNOWN, /* nobody has killed a peer and looked */
    KEEL_EVIDENCE_NONE,    /* sends "succeed" or wait for ever */
    KEEL_EVIDENCE_EVENT    /* FI_SHUTDOWN, and posted receives are flushed */
};

enum keel_drive {
    KEEL_DRIVE_NONE,
    KEEL_DRIVE_CONNECTED, /* a connected endpoint for each peer (fabric.c) */
    KEEL_DRIVE_EPOCH      /* one unconnected endpoint for each epoch, with a socket for each peer (rdm.c) */
};

struct keel_provider {
    const char *name;
    bool connected;   /* FI_EP_MSG */
    bool unconnected; /* FI_EP_RDM: reliable, in order, to whatever address */
    bool registers;   /* FI_MR_LOCAL: buffers are registered before it touches them */
    bool remote_data; /* immediate data with a write, without a receive of ours; not used, but good to know */
    bool sleeps;      /* queues have file descriptors to sleep on; else it is looked at by a timer */
    enum keel_evidence evidence; /* of a connected endpoint if it has them */
    bool measured;               /* here; else it is what its documentation says */
    const char *unfit;           /* why it is not used although it could be; NULL: nothing */
};

/* Why there is none, for a sentence; NULL: libfabric is built in. */
extern const char *const keel_fabric_absent;

/* All that are known; the last has no name. */
extern const struct keel_provider keel_providers[];
/* NULL: unknown. */
const struct keel_provider *keel_provider_find(const char *name);
enum keel_drive keel_provider_drive(const struct keel_provider *provider);
/* What it lacks, for a sentence "provider X has no ..."; NULL: nothing. */
const char *keel_provider_lacks(const struct keel_provider *provider);

#endif
