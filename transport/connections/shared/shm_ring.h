/* shm_ring.h - memory shared by two ranks of one host: a message ring each way.
 *
 * Owns the layout of the segment and every access to it. The segment is a memfd of fixed size, sealed against
 * shrinking, so that no access can fault. The dialing rank is side 0. Each word has one writer, each ring one
 * producer and one consumer. Nothing read from the segment is trusted: own positions are kept in private
 * memory, headers are copied before they are checked, and the other side's positions and lengths are checked
 * against the ring; what breaks the rules is reported as BROKEN. A peer may die at any instruction: messages
 * that it had not published do not exist, and there is no lock that it could hold. shared.c connects the
 * sides, wakes a sleeper and watches who is alive. One thread at a time on each side. */
#ifndef KEEL_TRANSPORT_SHM_RING_H
#define KEEL_TRANSPORT_SHM_RING_H

#include "message.h"

#include <stdatomic.h>

enum {
    /* Four of the largest messages: what two ranks have under way stays in a second-level cache. */
    KEEL_RING_BYTES = 512 * 1024,
    KEEL_RING_UNTOLD_BYTES = KEEL_RING_BYTES / 8 /* dropped, and not told yet */
};

struct keel_segment;

/* Stands for a payload that lies in memory which the other side can read itself. */
struct keel_reference {
    uint64_t region, offset;
};

/* One side's view. */
struct keel_shm_ring {
    struct keel_segment *segment;
    uint32_t side;
    const _Atomic uint64_t *in_tail;      /* as the other side says */
    uint8_t *in, *out;                    /* rings, each mapped twice in a row: no message is cut in two */
    uint64_t in_head, out_tail, out_head; /* bytes since the beginning; out_head as last seen */
    uint64_t in_kept;                     /* from there on nothing is dropped yet; NEVER: nothing is kept */
    uint64_t in_told;                     /* what the other side has been told to be dropped */
    uint32_t got_bytes;                   /* of the message that is being looked at, 0: none */
    bool got_reference;
    uint32_t rung; /* the sleep of the other side that was ended by a ring */
    uint32_t sleeps;
    bool asleep, starved; /* starved: there was no room for a message */
};

/* Make a segment (side 0), or map one that was made elsewhere (side 1). The descriptor of the former is the
 * caller's to close; nothing needs it once the other side has it. NO_MEMORY, IO; CORRUPT: not such a segment.
 */
enum keel_status keel_shm_ring_create(struct keel_shm_ring *pair, int *out_fd);
enum keel_status keel_shm_ring_map(struct keel_shm_ring *pair, int fd);
void keel_shm_ring_unmap(struct keel_shm_ring *pair);

enum keel_shm_ring_result { KEEL_SHM_RING_DONE, KEEL_SHM_RING_NONE, KEEL_SHM_RING_BROKEN };
/* Copy a message into the ring out. NONE: no room; keel_shm_ring_has_room says when there is. */
enum keel_shm_ring_result keel_shm_ring_put(struct keel_shm_ring *pair, const struct keel_message *message,
                                            const void *payload);
/* The same with a reference in the payload's place. */
enum keel_shm_ring_result keel_shm_ring_refer(struct keel_shm_ring *pair, const struct keel_message *message,
                                              const struct keel_reference *reference);
/* Cheap. */
static inline bool keel_shm_ring_has_message(const struct keel_shm_ring *pair)
{
    return atomic_load_explicit(pair->in_tail, memory_order_relaxed) != pair->in_head;
}
/* The next message: its header copied, its payload where it lies until keel_shm_ring_drop; or NULL and a
 * reference. NONE: there is none. */
enum keel_shm_ring_result keel_shm_ring_get(struct keel_shm_ring *pair, struct keel_message *out,
                                            const uint8_t **payload, struct keel_reference *reference);
/* True: the other side was told. That it can have a little more room is told only now and then. */
bool keel_shm_ring_drop(struct keel_shm_ring *pair);
/* What was dropped from this position of in_head on stays the reader's until the next call; UINT64_MAX:
 * nothing does. */
void keel_shm_ring_keep(struct keel_shm_ring *pair, uint64_t from);
/* Up to where the other side has dropped what was put: in terms of out_tail. */
uint64_t keel_shm_ring_dropped(struct keel_shm_ring *pair);
/* From now on nothing that was referred to is the other side's to read; and what it asks after reading. */
void keel_shm_ring_withdraw(struct keel_shm_ring *pair);
bool keel_shm_ring_withdrawn(const struct keel_shm_ring *pair);
/* After NONE from put: true once, when half of the ring is free. */
bool keel_shm_ring_has_room(struct keel_shm_ring *pair);

/* After put, after drop: true when the other side sleeps and waits for that; it is to be rung once. */
bool keel_shm_ring_must_ring_for_message(struct keel_shm_ring *pair);
bool keel_shm_ring_must_ring_for_room(struct keel_shm_ring *pair);
/* From now on the other side rings, with `lending` also for whatever it drops; false when there is something
 * to do at once. Until keel_shm_ring_wake. */
bool keel_shm_ring_sleep(struct keel_shm_ring *pair, bool lending);
void keel_shm_ring_wake(struct keel_shm_ring *pair);

#endif
