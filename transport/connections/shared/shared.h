/* shared.h - the backend between ranks of one host: memory that both map, and a Unix socket. See
 * connection.h. */
#ifndef KEEL_TRANSPORT_SHARED_H
#define KEEL_TRANSPORT_SHARED_H

#include "connection.h"

/* Open and listen under a random name in the abstract namespace. IO when the system refuses. */
enum keel_status keel_shared_open(struct keel_connection_backend **out);

#endif
