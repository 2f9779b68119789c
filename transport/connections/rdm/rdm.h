/* rdm.h - the backend over libfabric's unconnected endpoints (FI_EP_RDM), one for each epoch. See
 * connection.h. */
#ifndef KEEL_TRANSPORT_RDM_H
#define KEEL_TRANSPORT_RDM_H

#include "connection.h"
#include "device.h"

/* Open and listen on the device's node (port chosen by the system). Takes the device's info. UNSUPPORTED, IO.
 */
enum keel_status keel_rdm_open(const struct keel_provider_info *device, bool seal_payload,
                               struct keel_connection_backend **out);

#endif
