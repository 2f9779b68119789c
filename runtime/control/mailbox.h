/* mailbox.h - control messages between the nodes of a run.
 *
 * One UDP socket per agent and launcher; every datagram is sealed (seal.h). Messages may be lost,
 * repeated never, reordered: the control plane is made for that. Addresses: agents are told the
 * launcher's, which stays when another process takes its place, since that takes its socket; the launcher
 * learns an agent's address from the newest datagram that proved itself, and hands the directory to all, so
 * that agents reach one another. Each datagram says which directory its sender has; the launcher answers an
 * old one with the new one, so a lost directory repairs itself. IPv4 and IPv6. Never blocks; one owner, not
 * thread-safe. No heap after open. */
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
    uint16_t node;      /* 0: the launcher, which keeps the directory */
    uint32_t incarnation;
    const char *launcher; /* "HOST:PORT", numeric; NULL on the launcher */
    int socket;           /* launcher: of the one that it follows, taken over; 0: a new one */
    /* Something that does not belong came: at most once a second. May be NULL. */
    void (*stranger)(void *context, const char *place, const char *reason, uint64_t total);
    void *context;
};

struct keel_mailbox;

/* INVALID (an address that is none), DENIED, IO. */
enum keel_status keel_mailbox_open(const struct keel_mailbox_config *config, struct keel_mailbox **out);
void keel_mailbox_close(struct keel_mailbox *mailbox);

/* To poll for reading. */
int keel_mailbox_fd(const struct keel_mailbox *mailbox);
/* Where it listens, "HOST:PORT". */
void keel_mailbox_place(const struct keel_mailbox *mailbox, char out[KEEL_PLACE_BYTES]);

/* When a message that proved itself came from a node last; 0: never. */
uint64_t keel_mailbox_heard_ns(const struct keel_mailbox *mailbox, uint16_t node);

/* Agent: ask the launcher's mailbox for an answer as long as this message, `bytes` up to KEEL_MESSAGE_BYTES;
 * and the longest answer that was taken in so far (keel_mailbox_receive takes them). Tells whether datagrams
 * of that length pass on this network, both ways. */
void keel_mailbox_probe(struct keel_mailbox *mailbox, uint32_t bytes);
uint32_t keel_mailbox_echoed(const struct keel_mailbox *mailbox);

/* Send at most KEEL_MESSAGE_BYTES; may be lost, says nothing. */
void keel_mailbox_send(struct keel_mailbox *mailbox, uint16_t node, const uint8_t *data, uint32_t bytes);

/* Take the next message; false when there is none. `out` holds KEEL_MESSAGE_BYTES. Takes at most 64
 * datagrams from the socket per call, so that a flood of strangers cannot hold its owner. */
bool keel_mailbox_receive(struct keel_mailbox *mailbox, uint16_t *out_node, uint8_t *out,
                          uint32_t *out_bytes);

#endif
