/* rendezvous.h - a meeting of processes at one address, before there is a group: who is which rank, where
 * everybody's endpoint is, and what they have to report.
 *
 * Owns the protocol between a host (one process, no rank) and its members (one a rank) over TCP. Every frame
 * but the host's greeting carries a keyed BLAKE2b over a session key that is made from the rendezvous's key
 * and the challenges of both, its direction and its number: whoever has no key is not listened to, and
 * nothing can be replayed, turned round or left out. Not encrypted. Promises: every wait has a deadline; a
 * member that is gone is told. Leaves to net_rendezvous.c what is done together. Not thread-safe; blocks only
 * where it says so. */
#ifndef KEEL_TRANSPORT_RENDEZVOUS_H
#define KEEL_TRANSPORT_RENDEZVOUS_H

#include "message.h"

enum {
    KEEL_RENDEZVOUS_FRAME_BYTES = 64 * 1024, /* largest payload */
    KEEL_RENDEZVOUS_PLACE_BYTES = 80,        /* "[...]:65535" */
    KEEL_RENDEZVOUS_STRANGERS_MAX = 128
};

/* Kinds from KEEL_RENDEZVOUS_OWN on are the user's. */
enum keel_rendezvous_kind {
    KEEL_RENDEZVOUS_JOIN = 1,
    KEEL_RENDEZVOUS_TABLE,
    KEEL_RENDEZVOUS_BYE,
    KEEL_RENDEZVOUS_OWN = 16
};

/* ---- the host ------------------------------------------------------------------------------------------ */

struct keel_rendezvous_host;

enum keel_rendezvous_event_kind {
    KEEL_RENDEZVOUS_COMPLETE, /* all have joined, and know of each other */
    KEEL_RENDEZVOUS_FRAME,    /* a member said something */
    KEEL_RENDEZVOUS_GONE      /* a member's connection ended; *orderly: it said goodbye */
};
struct keel_rendezvous_event {
    enum keel_rendezvous_event_kind kind;
    uint32_t rank;
    bool orderly;
    uint32_t frame_kind, bytes;
    const uint8_t *payload; /* until the next call */
};

/* Listen at "HOST:PORT" (port 0: any) for `world` members. The key is copied. INVALID, IO. */
enum keel_status keel_rendezvous_host_open(const char *place, const uint8_t key[KEEL_KEY_BYTES],
                                           uint32_t world, struct keel_rendezvous_host **out);
/* Where it listens, as text for keel_rendezvous_connect. */
const char *keel_rendezvous_host_place(const struct keel_rendezvous_host *host);
/* The next event, or TIMEOUT. */
enum keel_status keel_rendezvous_host_next(struct keel_rendezvous_host *host, uint64_t deadline_ns,
                                           struct keel_rendezvous_event *out);
/* How many have joined, and (as long as some are missing) the lowest rank that has not. */
uint32_t keel_rendezvous_host_joined(const struct keel_rendezvous_host *host, uint32_t *out_missing);
void keel_rendezvous_host_close(struct keel_rendezvous_host *host);

/* ---- a member ------------------------------------------------------------------------------------------ */

struct keel_rendezvous_member;

/* Reach the host, trying again until it listens, and take its greeting. `local` gets this machine's address
 * on that way, which is where the others reach it. TIMEOUT, NOT_FOUND (no such name). */
enum keel_status keel_rendezvous_connect(const char *place, const uint8_t key[KEEL_KEY_BYTES],
                                         uint64_t deadline_ns, char local[KEEL_RENDEZVOUS_PLACE_BYTES],
                                         struct keel_rendezvous_member **out);
/* Say who I am, wait until all are there: addresses[world]. AUTH: the host has another key, or says this one
 * is wrong; MISMATCH: another world, or the rank is taken; TIMEOUT. */
enum keel_status keel_rendezvous_enter(struct keel_rendezvous_member *member, uint32_t rank, uint32_t world,
                                       const struct keel_address *mine, uint64_t deadline_ns,
                                       struct keel_address *addresses);
/* Blocks at most until the deadline. PEER_LOST: the host is gone. */
enum keel_status keel_rendezvous_say(struct keel_rendezvous_member *member, uint32_t kind,
                                     const void *payload, uint32_t bytes, uint64_t deadline_ns);
/* Says goodbye first when `orderly`. NULL is fine. */
void keel_rendezvous_leave(struct keel_rendezvous_member *member, bool orderly);

/* The key in a file: 64 hexadecimal digits, which nobody but its owner may read. NOT_FOUND, DENIED, INVALID.
 */
enum keel_status keel_rendezvous_key_read(const char *path, uint8_t out[KEEL_KEY_BYTES]);

#endif
