/* rendezvous_wire.h - frames of a rendezvous: their header, their proof, and a connection that reads and
 * writes them. */
#ifndef KEEL_TRANSPORT_RENDEZVOUS_WIRE_H
#define KEEL_TRANSPORT_RENDEZVOUS_WIRE_H

#include "handshake.h"
#include "rendezvous.h"

enum {
    KEEL_RENDEZVOUS_MAGIC = 0x4b435231, /* "KCR1" */
    KEEL_RENDEZVOUS_TABLE_ADDRESSES =
        KEEL_RENDEZVOUS_FRAME_BYTES / sizeof(struct keel_address) /* in one frame */
};

struct keel_rendezvous_header {
    uint32_t magic;
    uint32_t kind;
    uint32_t bytes; /* of the payload behind it */
    uint32_t turn;  /* how many frames went this way before */
    uint8_t proof[KEEL_PROOF_BYTES];
};
static_assert(sizeof(struct keel_rendezvous_header) == 48, "the header has a fixed size on the wire");

struct keel_rendezvous_join {
    uint8_t challenge[KEEL_CHALLENGE_BYTES]; /* the member's; the session key needs it, so it goes in clear */
    uint32_t rank, world;
    struct keel_address address;
};

/* One side of a connection. The socket is non-blocking. */
struct keel_rendezvous_wire {
    int fd;
    bool is_host;
    uint8_t
        key[KEEL_KEY_BYTES]; /* of the session, once both challenges are known; before, of the rendezvous */
    uint32_t sent, received; /* frames */
    uint32_t got;            /* bytes in `in` */
    uint8_t in[sizeof(struct keel_rendezvous_header) + KEEL_RENDEZVOUS_FRAME_BYTES];
};

/* rendezvous_host.c: "HOST:PORT" or "[V6]:PORT" for getaddrinfo's users, and the way back. */
struct addrinfo;
enum keel_status keel_rendezvous_resolve(const char *place, bool to_listen, struct addrinfo **out);
enum keel_status keel_rendezvous_place_of(int fd, bool with_port, char out[KEEL_RENDEZVOUS_PLACE_BYTES]);

/* Session key from the rendezvous's key and both challenges; replaces wire->key. */
void keel_rendezvous_wire_agree(struct keel_rendezvous_wire *wire,
                                const uint8_t host_challenge[KEEL_CHALLENGE_BYTES],
                                const uint8_t member_challenge[KEEL_CHALLENGE_BYTES]);
/* Write a whole frame. PEER_LOST, TIMEOUT. */
enum keel_status keel_rendezvous_wire_send(struct keel_rendezvous_wire *wire, uint32_t kind,
                                           const void *payload, uint32_t bytes, uint64_t deadline_ns);
/* Take what has come. True with *out_done: a whole frame is in wire->in, not yet judged. False: the
 * connection ended, or sends nonsense. Does not block. */
bool keel_rendezvous_wire_take(struct keel_rendezvous_wire *wire, uint32_t bytes_max, bool *out_done);
const struct keel_rendezvous_header *keel_rendezvous_wire_header(const struct keel_rendezvous_wire *wire);
const uint8_t *keel_rendezvous_wire_payload(const struct keel_rendezvous_wire *wire);
/* Is the proof of the frame in wire->in right? Counts it when it is. */
bool keel_rendezvous_wire_proven(struct keel_rendezvous_wire *wire);
void keel_rendezvous_wire_forget(struct keel_rendezvous_wire *wire); /* the frame; the next one may come */
/* Wait for a whole frame that is proven. TIMEOUT, PEER_LOST (the connection ended), AUTH (the proof is
 * wrong). */
enum keel_status keel_rendezvous_wire_receive(struct keel_rendezvous_wire *wire, uint64_t deadline_ns);

#endif
