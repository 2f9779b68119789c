/* message.h - what goes over a connection, and the limits of the room.
 *
 * Owns the wire header, the kinds of message, and every bound of the transport. Promises: fixed sizes,
 * little-endian hosts (asserted by the handshake's magic). Leaves the meaning to session.c and flow.c. */
#ifndef KEEL_TRANSPORT_MESSAGE_H
#define KEEL_TRANSPORT_MESSAGE_H

#include <assert.h>
#include <keel/clock.h>
#include <keel/transport.h>
#include <stdint.h>

enum {
    KEEL_MESSAGE_MAGIC = 0x4b454c31, /* "KEL1" */
    KEEL_CHUNK_BYTES = 64 * 1024,    /* largest payload of one message */
    KEEL_CHUNK_MIN_BYTES = 16 * 1024,
    KEEL_EAGER_BYTES = 16 * 1024,              /* payload that may ride on an operation's first message */
    KEEL_OPERATIONS_MAX = 256,                 /* operations of a group not yet consumed or failed */
    KEEL_STAGING_BYTES_MAX = 64 * 1024 * 1024, /* receive space of all exact sums of a group */
    KEEL_STAGING_ONE_BYTES = 16 * 1024 * 1024, /* and what one sum asks for at most */
    KEEL_WINDOW_CHUNKS = 4,   /* chunks of each tree node that may be under way to an owner */
    KEEL_LINE_RECEIVES = 4,   /* posted receives of a connection */
    KEEL_LINE_SENDS = 8,      /* sends in flight of a connection, of which */
    KEEL_LINE_BULK_SENDS = 4, /* so many may carry bulk data */
    KEEL_PENDING_MAX = 128,   /* incoming connections that are not part of a group */
    KEEL_CHALLENGE_BYTES = 32,
    KEEL_PROOF_BYTES = 32,
    KEEL_KEY_BYTES = 32
};

#define KEEL_HANDSHAKE_NS  (5 * KEEL_NS_PER_S)    /* a caller proves itself by then or is dropped */
#define KEEL_LINGER_NS     (2 * KEEL_NS_PER_S)    /* a closed connection waits so long for the other side */
#define KEEL_CLOSE_NS      (200 * KEEL_NS_PER_MS) /* group close gives sends in flight this long */
#define KEEL_HEAD_START_NS (20 * KEEL_NS_PER_MS)  /* the higher rank lets the lower one dial first */
#define KEEL_REDIAL_NS     (100 * KEEL_NS_PER_MS)
#define KEEL_PING_NS       (50 * KEEL_NS_PER_MS)  /* silence after which a peer is asked for a sign of life */
#define KEEL_SILENT_NS     (250 * KEEL_NS_PER_MS) /* silence that blames a peer before all others */
#define KEEL_RETRY_NS      KEEL_NS_PER_MS         /* after the fabric said EAGAIN */
#define KEEL_STUCK_NS      (5 * KEEL_NS_PER_S)    /* a connection that says EAGAIN so long is broken */

enum keel_message_kind {
    /* the handshake, in this order; REFUSE may take the place of WELCOME */
    KEEL_MESSAGE_CHALLENGE = 1, /* listener: 32 random bytes */
    KEEL_MESSAGE_HELLO,         /* dialer: epoch, ranks, its own challenge, its proof */
    KEEL_MESSAGE_WELCOME,       /* listener: its proof; the connection is part of the group */
    KEEL_MESSAGE_REFUSE,        /* listener: why not (enum keel_refusal in `part`) */
    /* operations */
    KEEL_MESSAGE_FIRST, /* sender has begun; part = kind, offset = signature; small data may follow */
    KEEL_MESSAGE_GRANT, /* owner: chunks of your nodes below `offset` have room here */
    KEEL_MESSAGE_PART,  /* one chunk (offset = its number) of the sender's node number `part` */
    KEEL_MESSAGE_BODY,  /* bytes at `offset` of the sender's contribution or result slice */
    /* keeping company */
    KEEL_MESSAGE_PING,
    KEEL_MESSAGE_PONG,
    KEEL_MESSAGE_BYE /* last message of a sender that closed its group */
};

enum keel_refusal { KEEL_REFUSE_STALE = 1, KEEL_REFUSE_DUPLICATE };

struct keel_message {
    uint32_t magic;
    uint16_t kind;
    uint16_t part;
    uint64_t epoch;
    uint64_t sequence;
    uint64_t offset;
    uint32_t bytes; /* of payload behind this header */
    uint32_t lane;  /* point-to-point: 1 from lower to higher rank, 2 the other way; else 0 */
};
static_assert(sizeof(struct keel_message) == 40, "the header has a fixed size on the wire");

/* Payload of CHALLENGE, HELLO and WELCOME; unused fields are zero. */
struct keel_handshake {
    uint8_t challenge[KEEL_CHALLENGE_BYTES];
    uint8_t proof[KEEL_PROOF_BYTES];
    uint64_t epoch;
    uint32_t from, to; /* ranks of dialer and listener */
};
static_assert(sizeof(struct keel_handshake) == 80, "the handshake has a fixed size on the wire");

#endif
