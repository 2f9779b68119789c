/* tier_wire.h - the messages between a remote tier and who serves it.
 *
 * A message is a header and a payload. Every request but write, close and abort is answered, in order; an
 * answer has the request's serial number, so one that comes after its caller gave up is known and dropped.
 * What fails while writing is told at the commit. Handles are numbers of the server. */
#ifndef KEEL_CKPT_TIER_WIRE_H
#define KEEL_CKPT_TIER_WIRE_H

#include "format.h"
#include <keel/ckpt_tier.h>

enum keel_wire_op {                       /* in brackets: what else goes, and what comes back */
                    KEEL_WIRE_HELLO = 1,  /* () */
                    KEEL_WIRE_LIST = 2,   /* (object: after this one, with KEEL_WIRE_AFTER) payload: infos */
                    KEEL_WIRE_OPEN = 3,   /* (object) handle, bytes, digest */
                    KEEL_WIRE_READ = 4,   /* (handle, offset, bytes) payload */
                    KEEL_WIRE_CLOSE = 5,  /* (handle) no answer */
                    KEEL_WIRE_CREATE = 6, /* (object, bytes) handle */
                    KEEL_WIRE_WRITE = 7,  /* (handle, offset, payload) no answer */
                    KEEL_WIRE_COMMIT = 8, /* (handle, digest) */
                    KEEL_WIRE_ABORT = 9,  /* (handle) no answer */
                    KEEL_WIRE_REMOVE = 10 /* (object) */
};
enum { KEEL_WIRE_ANSWER = 1U << 16 };                                   /* added to the op */
enum { KEEL_WIRE_AFTER = 1, KEEL_WIRE_MORE = 2, KEEL_WIRE_DIGEST = 4 }; /* flags */

struct keel_wire_object {
    uint64_t step, attempt;
    uint32_t kind, set, member, zero;
};

struct keel_wire_header {
    char magic[8]; /* KEELLEVL */
    uint32_t version;
    uint32_t op;
    uint64_t check; /* XXH3-64 of the whole message, this field taken as zero */
    uint64_t serial;
    char run[KEEL_RUN_NAME_BYTES]; /* padded with NUL */
    struct keel_wire_object object;
    uint64_t handle, offset, bytes;
    uint32_t status; /* of an answer; when not OK the payload is the detail, as text */
    uint32_t flags;
    uint32_t payload_bytes;
    uint32_t zero;
    uint8_t digest[KEEL_DIGEST_BYTES];
};
_Static_assert(sizeof(struct keel_wire_header) == 184, "wire header");

struct keel_wire_info { /* of a list's payload, ascending */
    struct keel_wire_object object;
    uint64_t bytes;
    uint32_t flags; /* KEEL_WIRE_DIGEST */
    uint32_t zero;
    uint8_t digest[KEEL_DIGEST_BYTES];
};
_Static_assert(sizeof(struct keel_wire_info) == 64, "wire info");

enum { KEEL_WIRE_PAYLOAD_MAX = 1 << 20, KEEL_WIRE_INFOS_MAX = 1024 };

/* One message and room for the largest; the payload is behind the header. */
struct keel_tier_message {
    struct keel_wire_header header;
    uint8_t payload[KEEL_WIRE_PAYLOAD_MAX];
};
_Static_assert((int)sizeof(struct keel_tier_message) <= (int)KEEL_TIER_MESSAGE_BYTES, "message");

/* An empty message of that op. */
void keel_wire_begin(struct keel_tier_message *message, uint32_t op, uint64_t serial, const char *run);
/* Seal and send. */
enum keel_status keel_wire_send(const struct keel_tier_link *link, struct keel_tier_message *message,
                                uint64_t deadline_ns);
/* Receive one and check its form. CORRUPT: garbage; VERSION. */
enum keel_status keel_wire_receive(const struct keel_tier_link *link, struct keel_tier_message *out,
                                   uint64_t deadline_ns);

struct keel_wire_object keel_wire_object_from(const struct keel_object *object);
/* False: no object has such numbers. */
bool keel_wire_object_to(const struct keel_wire_object *wire, struct keel_object *out);

#endif
