/* provider.c - the capability table of libfabric 1.17's providers. */
#include "provider.h"

#include <string.h>

enum { NO = 0, YES = 1 };

/* What is measured is so: a peer killed with SIGKILL while receives were posted and sends under way. */
static const struct keel_provider providers[] = {
    /* name, connected, registers, remote data, sleeps, evidence of a death, measured */
    {"tcp", YES, NO, YES, YES, KEEL_EVIDENCE_EVENT, YES},
    {"verbs", YES, YES, NO, YES, KEEL_EVIDENCE_EVENT, NO}, /* its remote data takes a receive */
    {"net", YES, NO, YES, YES, KEEL_EVIDENCE_UNKNOWN, NO},
    {"sockets", YES, NO, YES, YES, KEEL_EVIDENCE_UNKNOWN, NO},
    {"tcp;ofi_rxm", NO, NO, YES, YES, KEEL_EVIDENCE_NONE, YES},
    {"net;ofi_rxm", NO, NO, YES, YES, KEEL_EVIDENCE_NONE, NO},
    {"verbs;ofi_rxm", NO, YES, YES, YES, KEEL_EVIDENCE_NONE, NO},
    {"shm", NO, NO, YES, NO, KEEL_EVIDENCE_NONE, YES},
    {"udp", NO, NO, NO, YES, KEEL_EVIDENCE_NONE, NO},
    {"udp;ofi_rxd", NO, NO, YES, YES, KEEL_EVIDENCE_NONE, NO},
    {"efa", NO, YES, YES, NO, KEEL_EVIDENCE_NONE, NO},
    {"psm3", NO, NO, YES, YES, KEEL_EVIDENCE_NONE, NO},
};

const struct keel_provider *keel_providers(size_t *out_count)
{
    *out_count = sizeof providers / sizeof *providers;
    return providers;
}

const struct keel_provider *keel_provider_find(const char *name)
{
    for (size_t k = 0; k < sizeof providers / sizeof *providers; k++)
        if (strcmp(providers[k].name, name) == 0)
            return &providers[k];
    return NULL;
}

const char *keel_provider_lacks(const struct keel_provider *provider)
{
    if (!provider->connected)
        return "connected endpoints (FI_EP_MSG), and without them nothing tells of a dead peer";
    if (!provider->sleeps)
        return "file descriptors to sleep on";
    if (provider->evidence == KEEL_EVIDENCE_NONE)
        return "evidence of a dead peer";
    if (provider->evidence == KEEL_EVIDENCE_UNKNOWN)
        return "known way to tell of a dead peer; whoever measures one enters it in provider.c";
    return NULL;
}
