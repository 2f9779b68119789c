/* message.h - what goes over a connection, and the limits of the room.
 *
 * Owns the wire header, the kinds of message, and every bound of the transport. Promises: fixed sizes,
 * little-endian hosts (asserted by the handshake's magic). Leaves the meaning to session.c and
 * operation_protocol.c. */
#ifndef KEEL_TRANSPORT_MESSAGE_H
#define KEEL_TRANSPORT_MESSAGE_H

#include <assert.h>
#include <keel/clock.h>
#include <keel/transport.h>
#include <stdint.h>

enum {
    KEEL_MESSAGE_MAGIC = 0x4b454c32,   /* "KEL2" */
    KEEL_ENVELOPE_WHOLE = 0x4b454c57,  /* "KELW" */
    KEEL_ENVELOPE_HEADER = 0x4b454c48, /* "KELH" */
    KEEL_TAG_BYTES = 16,
    KEEL_CHUNK_BYTES = 130880, /* largest payload of one message: over loopback it and its headers are two
                                  packets, not three */
    KEEL_CHUNK_MIN_BYTES = 16 * 1024,
    KEEL_EAGER_BYTES =
        16 * 1024, /* payload of an operation's first message: its signature, then small data */
    KEEL_COPY_BYTES =
        2 * 1024, /* payloads up to this are copied into the connection, longer ones lent to it */
    KEEL_OPERATIONS_MAX = 256,                /* operations of an epoch not yet consumed or failed */
    KEEL_EARLY_MAX = 2 * KEEL_OPERATIONS_MAX, /* messages of a peer kept for operations not begun here */
    KEEL_WINDOW_SEGMENTS = 8,                 /* segments of an operation that may be under way */
    KEEL_SCRATCH_BYTES_MAX =
        64 * 1024 * 1024, /* scratch of all operations of an epoch, beyond one segment each */
    KEEL_SCRATCH_ONE_BYTES = 16 * 1024 * 1024, /* and of one of them, beyond its first segment */
    KEEL_PLANS_MAX = 64,                       /* schedules that a group keeps, but for those in use */
    KEEL_SPARES_MAX = 4,                       /* finished operations that a schedule keeps for the next */
    KEEL_SPLITS_MAX = 1024,                    /* groups split off in one epoch */
    KEEL_CONNECTION_RECEIVES = 4,              /* posted receives of a connection */
    KEEL_CONNECTION_SENDS = 8,                 /* sends in flight of a connection, of which */
    KEEL_CONNECTION_BULK_SENDS = 4,            /* so many may carry bulk data */
    KEEL_FLOW_SENDS = 16,                      /* sends of an operation to a rank that lend its memory */
    KEEL_SILENCE_LOOKS = 4,                    /* so often within a group's silence its peers are looked at */
    KEEL_PENDING_MAX = 128,                    /* callers that have not proven themselves yet, */
    KEEL_PENDING_FEW = 64, /* and have KEEL_HANDSHAKE_NS for it if there are more than so many */
    KEEL_LOSSES_MAX = 126, /* lost ranks of an epoch that are named */
    KEEL_CHALLENGE_BYTES = 32,
    KEEL_PROOF_BYTES = 32,
    KEEL_MEMBERS_BYTES = 32, /* digest of who a group is: keel_handshake_members */
    KEEL_KEY_BYTES = 32
};

#define KEEL_HANDSHAKE_NS  (5 * KEEL_NS_PER_S)    /* to prove itself, where many callers have not */
#define KEEL_LINGER_NS     (2 * KEEL_NS_PER_S)    /* a closed connection waits so long for the other side */
#define KEEL_CLOSE_NS      (200 * KEEL_NS_PER_MS) /* group close gives sends in flight this long */
#define KEEL_WORDS_NS      (100 * KEEL_NS_PER_MS) /* who gives up waits so long to say how far it has come */
#define KEEL_HEAD_START_NS (20 * KEEL_NS_PER_MS)  /* the higher rank lets the lower one dial first */
#define KEEL_REDIAL_NS     (100 * KEEL_NS_PER_MS)
/* Operations under way: so often the quiet are asked for a sign of life. */
#define KEEL_PING_NS        (50 * KEEL_NS_PER_MS)
#define KEEL_SILENCE_MIN_NS (40 * KEEL_NS_PER_MS)  /* a group's silence at least */
#define KEEL_SILENT_NS      (250 * KEEL_NS_PER_MS) /* silence that blames a peer before all others */
#define KEEL_RETRY_NS       KEEL_NS_PER_MS         /* after the fabric said EAGAIN */
#define KEEL_HOLD_NS        KEEL_NS_PER_MS /* a sleeper copies what peers lent when it has slept so long */
#define KEEL_SLICE_NS       (100 * KEEL_NS_PER_US) /* of the processor, for threads that others wait for */

enum keel_message_kind {
    /* the handshake, in this order; REFUSE may take the place of WELCOME */
    KEEL_MESSAGE_CHALLENGE = 1, /* listener: 32 random bytes; `part`: its best cipher */
    KEEL_MESSAGE_HELLO,         /* dialer: epoch, ranks, its own challenge, its proof; `part`: the cipher for
                                   all that follows, both ways, if there is a key */
    KEEL_MESSAGE_WELCOME,       /* listener: its proof; the connection is part of the group */
    KEEL_MESSAGE_REFUSE,        /* listener: why not (refusal << 32 in `offset`); else as BYE */
    /* operations; `group`, `sequence` and `part` (lane) say which */
    KEEL_MESSAGE_FIRST,  /* sender has begun: its signature, then its first messages of segment 0; `offset`:
                            segments that may be sent to it << 32 | how many messages follow the signature */
    KEEL_MESSAGE_GRANT,  /* segments below offset >> 32 have room here */
    KEEL_MESSAGE_DATA,   /* one message of the schedule: segment << 32 | number among those of this pair */
    KEEL_MESSAGE_DIFFER, /* two ranks disagree about the operation: struct keel_differ */
    /* keeping company */
    KEEL_MESSAGE_PING,  /* give a sign of life; `offset`: when it was asked, in the asker's time */
    KEEL_MESSAGE_PONG,  /* the same `offset`; whom its sender waits for in vain (keepalive.c): `part`,
                         * `sequence`
                         */
    KEEL_MESSAGE_LOST,  /* struct keel_losses: the ranks of the epoch that its sender knows to be lost */
    KEEL_MESSAGE_BYE,   /* last message of a sender that closed its group: struct keel_losses; if it disagreed
                           about an operation, struct keel_farewell, and the header names the operation */
    KEEL_MESSAGE_REVOKE /* `group` is revoked, on all its ranks: who hears it passes it on */
};

enum keel_refusal {
    KEEL_REFUSE_STALE = 1,
    KEEL_REFUSE_DUPLICATE,
    KEEL_REFUSE_MEMBERS /* the same epoch, but other members, addresses or shards */
};

struct keel_message {
    uint32_t magic;
    uint16_t kind;
    uint16_t
        part; /* operations: lane; 1 from lower to higher rank of a pair, 2 the other way, 0 collective */
    uint64_t epoch;
    uint64_t sequence;
    uint64_t offset;
    uint32_t bytes; /* of payload behind this header */
    uint32_t group; /* number of the group within the epoch; 0: all its ranks */
};
static_assert(sizeof(struct keel_message) == 40, "the header has a fixed size on the wire");

/* What takes the header's place where others than the two processes could change what goes over a connection
 * and there is no key, or none yet. The checksum finds damage; it proves nothing about who made the message.
 */
struct keel_checked {
    struct keel_message message;
    uint32_t checksum; /* CRC-32C (RFC 3720) of the message, then of the payload behind this */
    uint32_t unused;   /* zero */
};
static_assert(sizeof(struct keel_checked) == 48, "the checked header has a fixed size on the wire");

/* What takes its place once both sides have proven themselves: the header is encrypted, and so is the payload
 * behind it if the magic says WHOLE. The tag vouches for all of it, the payload included. */
struct keel_envelope {
    uint32_t magic;
    uint32_t bytes; /* of payload behind it */
    uint8_t tag[KEEL_TAG_BYTES];
    struct keel_message message;
};
static_assert(sizeof(struct keel_envelope) == 64, "the envelope has a fixed size on the wire");

/* What ranks must agree about, and what two of them must: on every FIRST. */
struct keel_signature {
    uint8_t kind, element, reduction, order, algorithm;
    uint8_t unused;
    uint16_t costs_hash; /* what AUTO goes by */
    uint32_t root;
    uint32_t chunk_bytes;
    uint64_t count;
    uint64_t counts_hash; /* of all-gather-v: who contributes how much */
    uint64_t map_hash;    /* of reductions: who carries which shard; in a subgroup, of its members too */
    uint64_t give_bytes;  /* from the sender of this message to its receiver, */
    uint64_t take_bytes;  /* and the other way */
};
static_assert(sizeof(struct keel_signature) == 56, "the signature has a fixed size on the wire");

/* Two ranks of the group, and what each meant. */
struct keel_differ {
    uint32_t rank[2];
    struct keel_signature said[2];
};
static_assert(sizeof(struct keel_differ) == 120, "a difference has a fixed size on the wire");

/* Ranks of the epoch that were lost, or were silent at a deadline, in the order in which its sender heard of
 * it. */
struct keel_losses {
    uint16_t count;
    uint16_t awaited; /* 1: nobody saw them die, they were awaited at a deadline */
    uint16_t rank[KEEL_LOSSES_MAX];
};
static_assert(sizeof(struct keel_losses) == 256, "the losses have a fixed size on the wire");

/* Why an epoch ended, for those who hear it only now. */
struct keel_farewell {
    struct keel_losses losses;
    struct keel_differ differ;
};
static_assert(sizeof(struct keel_farewell) == 376, "a farewell has a fixed size on the wire");

/* Payload of CHALLENGE, HELLO and WELCOME; unused fields are zero. */
struct keel_handshake {
    uint8_t challenge[KEEL_CHALLENGE_BYTES];
    uint8_t proof[KEEL_PROOF_BYTES];
    uint64_t epoch;
    uint32_t from, to;                   /* ranks of dialer and listener */
    uint8_t members[KEEL_MEMBERS_BYTES]; /* HELLO: the dialer's group */
};
static_assert(sizeof(struct keel_handshake) == 112, "the handshake has a fixed size on the wire");

#endif
