/* device.c - what libfabric says when it is asked for a provider. */
#include "device.h"
#include "libfabric.h"

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdlib.h>
#include <string.h>

/* What we can do for a provider: register our memory. That it then also wants pages that are there, and names
 * keys and addresses its own way, is the same to us. Nobody writes into our memory, so immediate data may
 * take a receive, and keys may belong to an endpoint. */
static const int registration_modes =
    FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ENDPOINT;

static int ask(const struct keel_provider *provider, const char *node, struct fi_info **out)
{
    struct fi_info *hints = keel_fi_allocinfo();
    bool connected = keel_provider_drive(provider) == KEEL_DRIVE_CONNECTED;
    if (hints == NULL)
        return -FI_ENOMEM;
    hints->caps = FI_MSG;
    hints->mode = FI_RX_CQ_DATA | (connected ? 0 : FI_CONTEXT | FI_CONTEXT2);
    hints->ep_attr->type = connected ? FI_EP_MSG : FI_EP_RDM;
    const bool six = node != NULL && strchr(node, ':') != NULL;
    hints->addr_format = six                         ? FI_SOCKADDR_IN6
                         : node != NULL || connected ? FI_SOCKADDR_IN
                                                     : FI_FORMAT_UNSPEC;
    hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
    hints->domain_attr->mr_mode = registration_modes;
    hints->fabric_attr->prov_name = strdup(provider->name);
    int result = keel_fi_getinfo(FI_VERSION(1, 15), node, NULL, node != NULL ? FI_SOURCE : 0, hints, out);
    keel_fi_freeinfo(hints);
    return result;
}

/* Asked once more without the address: unconnected endpoints need not have one that IP knows (their
 * connections meet over sockets); for the others, to say what stands in the way. */
static enum keel_status ask_anywhere(struct keel_provider_info *device, int error)
{
    const char *name = device->provider->name;
    if (ask(device->provider, NULL, &device->info) != 0)
        return keel_fail(KEEL_UNSUPPORTED,
                         "fabric: provider \"%s\" finds no device here (%s): load its driver, or use \"tcp\"",
                         name, keel_fi_strerror(-error));
    if (device->info->addr_format != FI_SOCKADDR_IN && device->info->addr_format != FI_SOCKADDR_IN6)
        return KEEL_OK;
    keel_fi_freeinfo(device->info);
    return keel_fail(KEEL_UNSUPPORTED,
                     "fabric: provider \"%s\" cannot listen at %s (%s): give an address of this host", name,
                     device->node, keel_fi_strerror(-error));
}

static bool forced_to_register(void)
{
    const char *value = getenv("KEEL_FABRIC_REGISTER");
    return value != NULL && strcmp(value, "1") == 0;
}

static enum keel_status find(const char *name, struct keel_provider_info *device)
{
    device->provider = keel_provider_find(name);
    if (device->provider == NULL)
        return keel_fail(KEEL_UNSUPPORTED, "fabric: provider \"%s\" is not known here; \"tcp\" is", name);
    if (keel_provider_lacks(device->provider) != NULL)
        return keel_fail(KEEL_UNSUPPORTED, "fabric: provider \"%s\" has no %s; use \"tcp\"", name,
                         keel_provider_lacks(device->provider));
    int result = ask(device->provider, device->node, &device->info);
    if (result != 0)
        KEEL_TRY(ask_anywhere(device, result));
    device->registers = (device->info->domain_attr->mr_mode & FI_MR_LOCAL) != 0 || forced_to_register();
    return KEEL_OK;
}

enum keel_status keel_device_find(const char *provider, const char *node, struct keel_provider_info *out)
{
    *out = (struct keel_provider_info){.node = node};
    KEEL_TRY(keel_libfabric_open());
    if (provider != NULL)
        return find(provider, out);
    return find("verbs", out) == KEEL_OK ? KEEL_OK : find("tcp", out);
}
