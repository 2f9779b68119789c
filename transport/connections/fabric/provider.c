/* provider.c - the capability table of libfabric's providers. */
#include "provider.h"

#include <string.h>

enum { NO = 0, YES = 1 };

static const char speed[] = "bearable speed (18 ms a MiB)";
static const char quiet[] =
    "quiet (a rank that waits takes a quarter of a processor, since its descriptors are "
    "ready when nothing has come)";
static const char safety[] = "safety for those who survive one of its processes (locks and segments stay "
                             "behind); ranks of one host share memory without it";

const char *const keel_fabric_absent = NULL;

/* What is measured is so: a peer killed with SIGKILL while receives were posted and sends under way. */
const struct keel_provider keel_providers[] = {
    /* name, connected, unconnected, registers, remote data, sleeps, evidence of a death, measured, unfit */
    {"tcp", YES, NO, NO, YES, YES, KEEL_EVIDENCE_EVENT, YES, NULL},
    {"verbs", YES, NO, YES, NO, YES, KEEL_EVIDENCE_EVENT, NO, NULL}, /* its remote data takes a receive */
    {"net", YES, YES, NO, YES, YES, KEEL_EVIDENCE_UNKNOWN, YES, quiet},
    {"sockets", YES, YES, NO, YES, YES, KEEL_EVIDENCE_UNKNOWN, YES, speed},
    {"tcp;ofi_rxm", NO, YES, NO, YES, YES, KEEL_EVIDENCE_NONE, YES, NULL},
    {"net;ofi_rxm", NO, YES, NO, YES, YES, KEEL_EVIDENCE_NONE, YES, quiet},
    {"verbs;ofi_rxm", NO, YES, YES, YES, YES, KEEL_EVIDENCE_NONE, NO, NULL},
    {"udp;ofi_rxd", NO, YES, NO, YES, NO, KEEL_EVIDENCE_NONE, YES, NULL},
    {"udp", NO, NO, NO, NO, YES, KEEL_EVIDENCE_NONE, NO, NULL},
    {"shm", NO, YES, NO, YES, NO, KEEL_EVIDENCE_NONE, YES, safety},
    {"efa", NO, YES, YES, YES, NO, KEEL_EVIDENCE_NONE, NO, NULL},
    {"cxi", NO, YES, NO, YES, NO, KEEL_EVIDENCE_NONE, NO, NULL},
    {"psm3", NO, YES, NO, YES, NO, KEEL_EVIDENCE_NONE, NO, NULL},
    {.name = NULL},
};

const struct keel_provider *keel_provider_find(const char *name)
{
    for (const struct keel_provider *it = keel_providers; it->name != NULL; it++)
        if (strcmp(it->name, name) == 0)
            return it;
    return NULL;
}

/* Connected endpoints where they tell of a dead peer: they take one system call less, and lend memory. */
enum keel_drive keel_provider_drive(const struct keel_provider *provider)
{
    if (provider->unfit != NULL)
        return KEEL_DRIVE_NONE;
    if (provider->connected && provider->sleeps && provider->evidence == KEEL_EVIDENCE_EVENT)
        return KEEL_DRIVE_CONNECTED;
    return provider->unconnected ? KEEL_DRIVE_EPOCH : KEEL_DRIVE_NONE;
}

const char *keel_provider_lacks(const struct keel_provider *provider)
{
    if (keel_provider_drive(provider) != KEEL_DRIVE_NONE)
        return NULL;
    if (provider->unfit != NULL)
        return provider->unfit;
    if (!provider->connected)
        return "reliable endpoints (FI_EP_MSG or FI_EP_RDM); ofi_rxd above it has";
    return "known way to tell of a dead peer; whoever measures one enters it in provider.c";
}
