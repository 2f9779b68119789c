/* fabric.h - the backend over libfabric: connected message endpoints (FI_EP_MSG). See connection.h. */
#ifndef KEEL_TRANSPORT_FABRIC_H
#define KEEL_TRANSPORT_FABRIC_H

#include "connection.h"
#include "device.h"

/* Open and listen on the device's node (port chosen by the system). Takes the device's info. UNSUPPORTED, IO.
 */
enum keel_status keel_fabric_open(const struct keel_provider_info *device, bool seal_payload,
                                  struct keel_connection_backend **out);

#endif
