/* shared.h - the carrier between ranks of one host: memory that both map, and a Unix socket. See line.h. */
#ifndef KEEL_TRANSPORT_SHARED_H
#define KEEL_TRANSPORT_SHARED_H

#include "line.h"

/* Open and listen under a random name in the abstract namespace. IO when the system refuses. */
enum keel_status keel_shared_open(struct keel_carrier **out);

#endif
