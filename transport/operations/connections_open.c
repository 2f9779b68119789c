/* connections_open.c - the backends of an endpoint are chosen and opened: shared memory within the host, and
 * one of libfabric's providers, connected or datagrams. */
#include "fabric.h"
#include "rdm.h"
#include "shared.h"

#include <stdlib.h>
#include <string.h>

static void enlist(struct keel_backends *backends, struct keel_connection_backend *backend,
                   const struct keel_connection_calls *calls, void *context)
{
    backend->calls = calls;
    backend->context = context;
    backends->backends[backends->backend_count++] = backend;
}

static bool shared_wanted(const struct keel_endpoint_config *config)
{
    const char *value = getenv("KEEL_SHARED_MEMORY");
    return !config->fabric_only && (value == NULL || strcmp(value, "0") != 0);
}

/* Built without libfabric: ranks that all are on this host need no more than its memory. */
static bool shared_suffices(const struct keel_backends *backends, const struct keel_endpoint_config *config)
{
    const bool here =
        config->node == NULL || strncmp(config->node, "127.", 4) == 0 || strcmp(config->node, "::1") == 0;
    return keel_fabric_absent != NULL && backends->backend_count > 0 && config->provider == NULL && here;
}

static enum keel_status open_device(const struct keel_provider_info *device, bool seal_payload,
                                    struct keel_connection_backend **out)
{
    bool connected = keel_provider_drive(device->provider) == KEEL_DRIVE_CONNECTED;
    return (connected ? keel_fabric_open : keel_rdm_open)(device, seal_payload, out);
}

enum keel_status keel_backends_open(struct keel_backends *backends, const struct keel_endpoint_config *config,
                                    const struct keel_connection_calls *calls, void *context)
{
    struct keel_connection_backend *backend;
    const char *node = config->node != NULL ? config->node : "127.0.0.1";
    *backends = (struct keel_backends){.backend_count = 0};
    if (shared_wanted(config) && keel_shared_open(&backend) == KEEL_OK)
        enlist(backends, backend, calls, context);
    if (shared_suffices(backends, config))
        return KEEL_OK;
    struct keel_provider_info device;
    enum keel_status status = keel_device_find(config->provider, node, &device);
    if (status == KEEL_OK)
        status = open_device(&device, config->seal_payload, &backend);
    if (status == KEEL_OK)
        enlist(backends, backend, calls, context);
    else
        keel_backends_close(backends);
    return status;
}
