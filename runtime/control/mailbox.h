/* mailbox.h - control messages between the nodes of a run.
 *
 * One UDP socket per agent and launcher; every datagram is sealed (seal.h). Messages may be lost,
 * repeated never, reordered: the control plane is made for that. Addresses: agents are told the
 * launcher's, which stays when another process takes its place, since that takes its socket, and that of who
 * let them in; who leads learns an agent's address from the newest datagram that proved itself, and tells all
 * what is new in the directory (directory.h), so that agents reach one another; what is lost of that repairs
 * itself. IPv4 and IPv6. Never blocks; one owner, not thread-safe. No heap after open. */
#ifndef KEEL_MAILBOX_H
#define KEEL_MAILBOX_H

#include "net_place.h"
#include "seal.h"
#include <keel/status.h>
#include <stdbool.h>
#include <stdint.h>

struct keel_mailbox_config {
    const struct keel_net_place
        *bind;          /* to listen on, port 0 for any; NULL is 127.0.0.1. Borrowed for the call */
    const uint8_t *key; /* KEEL_SEAL_KEY_BYTES, derived for "control"; copied */
    uint64_t run;       /* drawn by the launcher */
    uint16_t node;      /* 0: the launcher, which keeps the directory at first */
    uint32_t incarnation;
    const char *launcher;           /* "HOST:PORT", numeric; NULL on the launcher */
    uint16_t by;                    /* the node that let this one in, */
    uint32_t by_tag;                /* its process, */
    struct keel_net_place by_place; /* and where it is; all 0: the launcher did */
    int socket;                     /* launcher: of the one that it follows, taken over; 0: a new one */
    /* Something that does not belong came: once, and then ever more seldom. May be NULL. */
    void (*stranger)(void *context, const char *place, const char *reason, uint64_t total);
    void *context;
};

struct keel_mailbox;

/* INVALID (an address that is none), DENIED, IO. Nothing is sent. */
enum keel_status keel_mailbox_open(const struct keel_mailbox_config *config, struct keel_mailbox **out);
/* An agent tells who let it in where it is. From the first datagram on, no other mailbox of this node and
 * incarnation is heard: one that may yet be closed for another (its port is not free for connections) sends
 * none. */
void keel_mailbox_greet(struct keel_mailbox *mailbox);
void keel_mailbox_close(struct keel_mailbox *mailbox);

/* To poll for reading. */
int keel_mailbox_fd(const struct keel_mailbox *mailbox);
/* Where it listens, "HOST:PORT". */
void keel_mailbox_place(const struct keel_mailbox *mailbox, char out[KEEL_PLACE_BYTES]);
/* Where a node was last, as far as it is known here: false, if it is not. */
bool keel_mailbox_place_of(const struct keel_mailbox *mailbox, uint16_t node, char out[KEEL_PLACE_BYTES]);
/* What tells this process from others of its node (keel_seal_tag): for who is let in. */
uint32_t keel_mailbox_tag(const struct keel_mailbox *mailbox);
/* This node leads, and so keeps the directory; or no longer. */
void keel_mailbox_keep(struct keel_mailbox *mailbox, bool keeps);

/* When a message that proved itself came from a node last; 0: never. */
uint64_t keel_mailbox_heard_ns(const struct keel_mailbox *mailbox, uint16_t node);

/* A number that nodes have in common which are at one address, as far as their addresses are known. */
uint32_t keel_mailbox_host(const struct keel_mailbox *mailbox, uint16_t node);

/* Agent: ask the mailbox of who let it in for an answer as long as this message, `bytes` up to
 * KEEL_MESSAGE_BYTES; and the longest answer that was taken in so far (keel_mailbox_receive takes them).
 * Tells whether datagrams of that length pass on this network, both ways. */
void keel_mailbox_probe(struct keel_mailbox *mailbox, uint32_t bytes);
uint32_t keel_mailbox_echoed(const struct keel_mailbox *mailbox);

/* Send at most KEEL_MESSAGE_BYTES; may be lost, says nothing. */
void keel_mailbox_send(struct keel_mailbox *mailbox, uint16_t node, const uint8_t *data, uint32_t bytes);

/* Take the next message; false when there is none. `out` holds KEEL_MESSAGE_BYTES. Takes at most 64
 * datagrams from the socket per call, so that a flood of strangers cannot hold its owner. */
bool keel_mailbox_receive(struct keel_mailbox *mailbox, uint16_t *out_node, uint8_t *out,
                          uint32_t *out_bytes);

#endif
