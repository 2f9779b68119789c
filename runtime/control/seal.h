/* seal.h - datagrams that prove who sent them, once.
 *
 * A datagram is a header in the clear, the sealed message, and a tag over both (XChaCha20-Poly1305, IETF
 * construction, libsodium). The header says the run, the sender and its incarnation, the receiver and its
 * process, and a counter. A datagram opens only if it belongs to this run, comes from the sender that it
 * names, is addressed to this process and was not opened before. The same datagram is never opened twice (a
 * window of 64 counters per sender, RFC 6479's idea; a process that was started again is another receiver),
 * and once a sender's new incarnation was heard, its old one no longer is: a node that was replaced cannot
 * speak. Not thread-safe: one owner. Little-endian hosts of one kind: headers go as they are. */
#ifndef KEEL_SEAL_H
#define KEEL_SEAL_H

#include <keel/node.h>
#include <stdint.h>

enum {
    KEEL_SEAL_KEY_BYTES = 32,
    KEEL_SEAL_HEAD_BYTES = 48,
    KEEL_SEAL_TAG_BYTES = 16,
    KEEL_SEAL_EXTRA_BYTES = KEEL_SEAL_HEAD_BYTES + KEEL_SEAL_TAG_BYTES,
    KEEL_DATAGRAM_BYTES = KEEL_MESSAGE_BYTES + KEEL_SEAL_EXTRA_BYTES
};

/* Why a datagram did not open. X(name, text) */
#define KEEL_SEAL_TABLE(X)                                                                                   \
    X(OPENED, "opened")                                                                                      \
    X(GARBAGE, "not a datagram of Keel")                                                                     \
    X(FOREIGN, "of another run")                                                                             \
    X(ASTRAY, "addressed to another process")                                                                \
    X(FORGED, "wrong key or altered on the way")                                                             \
    X(REPLAYED, "seen before, or too old to tell")                                                           \
    X(REPLACED, "from an incarnation that was replaced")
enum keel_seal_verdict {
#define KEEL_SEAL_ENUM(name, text) KEEL_SEAL_##name,
    KEEL_SEAL_TABLE(KEEL_SEAL_ENUM)
#undef KEEL_SEAL_ENUM
        KEEL_SEAL_VERDICTS
};
const char *keel_seal_verdict_text(enum keel_seal_verdict verdict);

/* What was heard of one sender. */
struct keel_seal_peer {
    uint64_t boot;    /* of its process, 0: nothing heard yet */
    uint64_t highest; /* counter */
    uint64_t window;  /* bit i: counter highest - i was opened */
    uint32_t incarnation;
};

struct keel_seal {
    uint8_t key[KEEL_SEAL_KEY_BYTES];
    uint64_t run;  /* drawn by the launcher: tells this start of the run from every other */
    uint64_t boot; /* drawn here: tells this process from every other */
    uint64_t counter;
    uint32_t incarnation;
    uint16_t node;
    struct keel_seal_peer peers[KEEL_NODES_MAX];
};

/* What travels beside the message, authenticated. */
struct keel_seal_label {
    uint16_t from, to;
    uint16_t channel; /* the mailbox's use */
    uint32_t version; /* the mailbox's use */
    uint32_t tag;     /* of the receiver's process (keel_seal_tag) */
};

void keel_seal_init(struct keel_seal *seal, const uint8_t key[KEEL_SEAL_KEY_BYTES], uint64_t run,
                    uint16_t node, uint32_t incarnation);

/* What tells this process from others of its node: 0 for the launcher, which the run's number tells. One that
 * takes its place opens what was sent to it, once more maybe: all that the control plane is told can come
 * twice. */
uint32_t keel_seal_tag(const struct keel_seal *seal);
/* The tag of the process that spoke for a node last, as far as heard; 0: none. */
uint32_t keel_seal_peer_tag(const struct keel_seal *seal, uint16_t node);

/* Seal `bytes` (at most KEEL_MESSAGE_BYTES) for node label->to; label->from is set here. Returns the
 * bytes written to `out`. */
uint32_t keel_seal_wrap(struct keel_seal *seal, const struct keel_seal_label *label, const uint8_t *data,
                        uint32_t bytes, uint8_t out[KEEL_DATAGRAM_BYTES]);

/* Open a datagram of any contents. `out` holds KEEL_MESSAGE_BYTES; it is scratch unless OPENED, the other
 * outputs are then untouched. */
enum keel_seal_verdict keel_seal_open(struct keel_seal *seal, const uint8_t *datagram,
                                      uint32_t datagram_bytes, struct keel_seal_label *out_label,
                                      uint8_t *out, uint32_t *out_bytes);

void keel_seal_wipe(struct keel_seal *seal);

#endif
