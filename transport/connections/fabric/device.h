/* device.h - asks libfabric for a provider: the one that is named, or the best that is there.
 *
 * Owns what is said when there is none. See provider.h for what follows from its name. */
#ifndef KEEL_PROVIDER_INFO_H
#define KEEL_PROVIDER_INFO_H

#include "provider.h"

#include <keel/status.h>

struct fi_info;

struct keel_provider_info {
    const struct keel_provider *provider;
    struct fi_info *info;
    const char *node; /* the caller's */
    bool registers;   /* memory must be registered before the provider touches it */
};

/* `provider` NULL: verbs where a device of it has that address, else tcp. UNSUPPORTED, with the reason.
 * Whoever opens a backend with it takes the info. */
enum keel_status keel_device_find(const char *provider, const char *node, struct keel_provider_info *out);

#endif
