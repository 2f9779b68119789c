/* callers.h - a bound on what callers who say nothing may take of a listener that accepts by itself.
 *
 * libfabric's tcp provider accepts every connection and keeps it until the caller speaks or hangs up; its
 * listener cannot be replaced. Two measures leave the process the descriptors that its members need. First,
 * the listener is set to accept only callers that have sent something (TCP_DEFER_ACCEPT, for ten seconds),
 * and to wait half a second at most for the rest of a greeting (SO_RCVTIMEO). Second, accepted sockets on
 * which nothing has come are bounded in number, per address and in age; what is beyond is shut down, the
 * oldest first, upon which libfabric closes it. One thread at a time: the one that makes the listener's
 * progress, since nobody else may close its sockets meanwhile. */
#ifndef KEEL_TRANSPORT_CALLERS_H
#define KEEL_TRANSPORT_CALLERS_H

#include <keel/status.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <sys/types.h>

enum {
    KEEL_SILENT_SHARE =
        4, /* of the process's descriptors one in so many may be such a caller's, and of these */
    KEEL_SILENT_ADDRESS_SHARE = 2, /*   one in so many of one address where others call too, */
    KEEL_SILENT_MIN = 32,          /* but so many may be there, */
    KEEL_SILENT_MAX = 1024,        /* and no more than so many, */
    KEEL_SILENT_FEW = 16,          /* of more than so many */
    KEEL_SILENT_MS = 2000          /* none for longer */
};

struct keel_callers;
/* `port`: the listener's, in network order. NOT_FOUND where the process cannot see its own descriptors; IO.
 */
enum keel_status keel_callers_open(in_port_t port, struct keel_callers **out);
void keel_callers_close(struct keel_callers *callers); /* NULL is accepted */
/* Look at the sockets, if somebody may have called (`asked`) or the time of a silent one may be up. */
void keel_callers_look(struct keel_callers *callers, bool asked);
/* Readable when it is time to look. */
int keel_callers_descriptor(const struct keel_callers *callers);

/* libfabric's tcp provider (1.17) closes a listener and forgets whom it has accepted without reading a
 * request: silent callers, and the losers where two ranks dial each other through ofi_rxm. So their sockets
 * are found before the listener closes; what is still open after it and all of its connections have closed
 * has no owner, and is closed here. A socket is known by its inode: another thread may have its number by
 * then. */
struct keel_accepted {
    uint32_t count;
    struct keel_accepted_socket {
        int fd;
        ino_t inode;
    } sockets[KEEL_SILENT_MAX];
};
/* `port`: the listener's, in network order; 0: there is none. Finds nothing where the process cannot see its
 * descriptors. */
void keel_accepted_find(in_port_t port, struct keel_accepted *out);
void keel_accepted_close(const struct keel_accepted *accepted);

#endif
