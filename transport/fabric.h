/* fabric.h - libfabric, wrapped: one listener, and links (connected message endpoints with their slots).
 *
 * Owns every fabric object and every buffer that the fabric may touch. All calls but open and close come
 * from the one progress thread. Promises: slots are reposted at once after `arrived` returns, so a peer
 * never blocks on us; after keel_line_close nothing reads or writes memory lent to keel_line_send; the
 * completion queue is larger than all that can be outstanding. Leaves to session.c who may speak. */
#ifndef KEEL_TRANSPORT_FABRIC_H
#define KEEL_TRANSPORT_FABRIC_H

#include "message.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

struct keel_line;
struct keel_fabric;

/* One posted send or receive; its address is the fabric's context. */
struct keel_line_slot {
    struct keel_line *link;
    uint8_t *memory; /* header, then payload (receives: a chunk; sends: eager payload) */
    void *owner;     /* sends: who hears of the completion, or NULL */
    uint32_t bytes;
    bool busy, bulk, receive;
};

enum keel_line_state { KEEL_LINE_OPENING, KEEL_LINE_OPEN, KEEL_LINE_CLOSED };

struct keel_line {
    struct keel_fabric *fabric;
    struct keel_line *next, *previous; /* among the fabric's links, or in its graveyard */
    struct fid_ep *ep;
    void *owner; /* the session; set by whoever dials or accepts */
    enum keel_line_state state;
    uint32_t sends_in_flight, bulk_in_flight;
    uint8_t *memory;
    struct keel_line_slot receives[KEEL_LINE_RECEIVES];
    struct keel_line_slot sends[KEEL_LINE_SENDS];
};

/* What the fabric tells its user, on the progress thread. A callee may close any link. */
struct keel_fabric_calls {
    /* Somebody connects; true takes the link (opened or broke will follow). */
    bool (*asked)(void *context, struct keel_line *link);
    void (*opened)(void *context, struct keel_line *link);
    /* payload is valid during the call. */
    void (*arrived)(void *context, struct keel_line *link, const struct keel_message *message,
                    const uint8_t *payload);
    void (*sent)(void *context, struct keel_line *link, void *owner);
    /* The link is gone: the callee closes it. Called once. */
    void (*broke)(void *context, struct keel_line *link, const char *why);
};

struct keel_fabric {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_eq *eq;
    struct fid_pep *pep;
    struct fid_cq *cq;
    int eq_fd, cq_fd;
    const struct keel_fabric_calls *calls;
    void *context;
    struct keel_line *links; /* open or opening */
    struct keel_line *dying; /* closed since the last whole drain of the queues began */
    _Atomic uint64_t bytes_sent, bytes_received, messages_sent, messages_received;
};

/* Open and listen on `node` (port chosen by the system). UNSUPPORTED, IO. */
enum keel_status keel_fabric_open(struct keel_fabric *fabric, const char *provider, const char *node,
                                  const struct keel_fabric_calls *calls, void *context);
void keel_fabric_close(struct keel_fabric *fabric); /* closes what links are left */
enum keel_status keel_fabric_address(const struct keel_fabric *fabric, struct keel_address *out);

/* Deliver all that has happened. */
void keel_fabric_progress(struct keel_fabric *fabric);
/* True when one may sleep on eq_fd and cq_fd; false when progress must run first. */
bool keel_fabric_may_sleep(struct keel_fabric *fabric);

/* Begin to connect. PEER_LOST when refused at once. */
enum keel_status keel_line_dial(struct keel_fabric *fabric, const struct keel_address *address, void *owner,
                                struct keel_line **out);
/* Give it up: nothing is delivered for it any more. */
void keel_line_close(struct keel_line *link);

enum keel_send { KEEL_SEND_OK, KEEL_SEND_LATER, KEEL_SEND_BROKEN };
/* Send header and payload. Copied when `bytes` fits the slot and `lent` is false; otherwise the payload is
 * lent until `sent(owner)` or keel_line_close. LATER: no slot is free (a completion will come) or the
 * fabric is out of room (*out_retry is set: try again after KEEL_RETRY_NS). */
enum keel_send keel_line_send(struct keel_line *link, struct keel_message *message, const void *payload,
                              bool lent, void *owner, bool *out_retry);

#endif
