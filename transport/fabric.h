/* fabric.h - the carrier over libfabric: connected message endpoints (FI_EP_MSG). See line.h. */
#ifndef KEEL_TRANSPORT_FABRIC_H
#define KEEL_TRANSPORT_FABRIC_H

#include "line.h"

/* Open and listen on config->node (port chosen by the system). UNSUPPORTED, IO. */
enum keel_status keel_fabric_open(const struct keel_endpoint_config *config, struct keel_carrier **out);

#endif
