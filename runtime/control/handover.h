/* handover.h - what a launcher and an agent that dials in say to each other before there is a node. Where
 * another node than the launcher leads (cluster.holders), it speaks the launcher's part. Who asks something
 * of a run (keel job) dials in too, and speaks the agent's part: ASK in the place of FACTS.
 *
 * Over one stream, each side first sends an opening in the clear: its role, its release, and a fresh public
 * key (X25519). Then all goes in frames that are sealed with keys made from the job key, both openings and
 * what the two public keys give (crypto_aead_xchacha20poly1305_ietf of libsodium; the nonce is the frame's
 * number). So a frame opens only for who has the job key, in this one conversation, in its order and its
 * direction: that the agent's first frame opens proves the agent, that the launcher's answer opens proves the
 * launcher. Nothing can be played again, turned round or left out, and who learns the job key later cannot
 * open what was recorded.
 *
 *     launcher                      agent
 *     opening   ------------------>
 *               <------------------  opening, FACTS
 *     JOB or REFUSED ------------->  (JOB as soon as the node is wanted; ELSEWHERE from who does not lead)
 *               <------------------  FAILED, where it cannot begin; BYE, at the end of the run
 *
 *               <------------------  opening, ASK
 *     HEARD or REFUSED ----------->  (or ELSEWHERE); then DONE, when what was asked for has come to be, and
 *                                    STAYS, as often as there is another reason why not yet
 *
 * The connection stays: that it ends tells each that the other's process did. The release comes first in the
 * opening, in the same place in all releases, so that both can name both. This is the protocol alone, without
 * sockets: gate.c is the launcher's side, dial.c the agent's. One thread; no heap. */
#ifndef KEEL_HANDOVER_H
#define KEEL_HANDOVER_H

#include "secret.h"
#include "worker_link.h"

enum {
    KEEL_RELEASE_BYTES = 32,
    KEEL_HANDOVER_KEY_BYTES = 32,
    KEEL_OPENING_BYTES = 8 + KEEL_RELEASE_BYTES + KEEL_HANDOVER_KEY_BYTES,
    KEEL_FRAME_HEAD_BYTES = 4, /* of what follows: kind, payload and tag */
    KEEL_FRAME_EXTRA_BYTES = KEEL_FRAME_HEAD_BYTES + 1 + 16,
    KEEL_FRAME_BYTES = 1 << 21, /* most; a job file has 1 MiB at most */
    KEEL_NAME_BYTES = 65,       /* of a host */
    KEEL_REASON_BYTES = 512,
    KEEL_FACTS_FRAME_BYTES = KEEL_FRAME_EXTRA_BYTES + 2 + 8 + KEEL_NAME_BYTES
};

/* Where a frame's head would be, from a launcher that could not open the agent's first frame: in the clear,
 * so a hint and no proof. */
#define KEEL_FRAME_OTHER_KEY UINT32_MAX

enum keel_handover_role { KEEL_HANDOVER_LAUNCHER = 1, KEEL_HANDOVER_AGENT };

enum keel_handover_kind {
    KEEL_HANDOVER_FACTS = 1, /* struct keel_agent_facts */
    KEEL_HANDOVER_JOB,       /* struct keel_handed_job */
    KEEL_HANDOVER_REFUSED,   /* struct keel_handover_reason: do not come again */
    KEEL_HANDOVER_FAILED,    /* the same: this node cannot begin */
    KEEL_HANDOVER_BYE,       /* empty: this node ends as it was told to */
    KEEL_HANDOVER_ELSEWHERE, /* struct keel_handover_reason: its text is the place of who leads; "": nobody */
    KEEL_HANDOVER_ASK,       /* struct keel_handover_ask */
    KEEL_HANDOVER_HEARD,     /* empty: it is being done */
    KEEL_HANDOVER_DONE,      /* empty, or struct keel_handover_reason: how a run ended that was to */
    KEEL_HANDOVER_STAYS      /* struct keel_handover_reason: why it has not come to be yet */
};

/* What may be asked of who leads. */
enum keel_handover_wish { KEEL_WISH_STOP = 1, KEEL_WISH_DRAIN, KEEL_WISH_ADD, KEEL_WISH_COUNT };

struct keel_handover {
    enum keel_handover_role role;
    bool agreed;
    uint8_t key[KEEL_HANDOVER_KEY_BYTES]; /* derived from the job key; of what is sealed here, once agreed */
    uint8_t opener[KEEL_HANDOVER_KEY_BYTES];
    uint8_t secret[KEEL_HANDOVER_KEY_BYTES]; /* behind our public key; wiped once agreed */
    uint8_t opening[KEEL_OPENING_BYTES];     /* to be sent */
    uint64_t sealed, opened;
};

/* Make the opening. `release` is this program's. Never fails. */
void keel_handover_begin(struct keel_handover *handover, enum keel_handover_role role,
                         const struct keel_secret *secret, const char *release);
/* Take the other side's. VERSION names both releases; CORRUPT: not one of Keel, or our own. */
enum keel_status keel_handover_agree(struct keel_handover *handover,
                                     const uint8_t theirs[KEEL_OPENING_BYTES]);
/* Whose it says to be, whatever it is: for messages. */
void keel_handover_release(const uint8_t opening[KEEL_OPENING_BYTES], char out[KEEL_RELEASE_BYTES]);
void keel_handover_wipe(struct keel_handover *handover);

/* How many bytes the frame that begins with these `got` has, head included: KEEL_FRAME_HEAD_BYTES as long as
 * that is not known, 0 if it is none, or has more than `most`. */
uint32_t keel_frame_bytes(const uint8_t *data, uint32_t got, uint32_t most);
/* Seal a payload; `out` has room for KEEL_FRAME_EXTRA_BYTES more. Returns the frame's bytes. */
uint32_t keel_frame_seal(struct keel_handover *handover, enum keel_handover_kind kind, const uint8_t *payload,
                         uint32_t bytes, uint8_t *out);
/* Open a whole frame in place. False: it is not the other side's next one. */
bool keel_frame_open(struct keel_handover *handover, uint8_t *frame, uint32_t frame_bytes,
                     enum keel_handover_kind *out_kind, const uint8_t **out_payload, uint32_t *out_bytes);

/* ---- payloads ------------------------------------------------------------------------------------------ */

/* Writers return the bytes, 0 where `capacity` does not suffice; readers false for what is none. */

struct keel_agent_facts {
    uint16_t node;              /* that it wants to be; 0: any */
    uint64_t instance;          /* drawn by its process: who comes again is known */
    char host[KEEL_NAME_BYTES]; /* printable, or made so by the reader */
};
uint32_t keel_agent_facts_write(const struct keel_agent_facts *facts, uint8_t *out, uint32_t capacity);
bool keel_agent_facts_read(const uint8_t *data, uint32_t bytes, struct keel_agent_facts *out);

/* What makes a node of an agent. Texts are borrowed: of the writer's caller, of the reader's data. */
struct keel_handed_job {
    uint16_t node;
    uint32_t incarnation;
    uint64_t run;
    uint16_t by;                /* the node that lets it in, 0: the launcher; */
    uint32_t by_tag;            /* and its process (keel_seal_tag) */
    const char *launcher;       /* where the launcher is reached; "": it is who lets in */
    const char *job, *identity; /* contents of DIR/job.conf and DIR/identity */
    const char *store; /* directory of the snapshots, as the launcher's host calls it; "": there is none */
    const char
        *hosts; /* names, where the job starts agents on them: for a node that leads; "": it does not */
    const char *state; /* contents of DIR/leader.state, for nodes that may lead; "": none does */
    const char *words[KEEL_PASSED_ON_MAX]; /* options of the workers */
    uint32_t word_count;
};
uint32_t keel_handed_job_bytes(const struct keel_handed_job *job);
uint32_t keel_handed_job_write(const struct keel_handed_job *job, uint8_t *out, uint32_t capacity);
bool keel_handed_job_read(const uint8_t *data, uint32_t bytes, struct keel_handed_job *out);

struct keel_handover_reason {
    enum keel_status status;
    char text[KEEL_REASON_BYTES];
};
uint32_t keel_handover_reason_write(const struct keel_handover_reason *reason, uint8_t *out,
                                    uint32_t capacity);
bool keel_handover_reason_read(const uint8_t *data, uint32_t bytes, struct keel_handover_reason *out);

struct keel_handover_ask {
    uint64_t run; /* the one that is meant: others may have the same key */
    enum keel_handover_wish wish;
    uint16_t node; /* DRAIN, ADD: which, from 1; else 0 */
};
uint32_t keel_handover_ask_write(const struct keel_handover_ask *ask, uint8_t *out, uint32_t capacity);
bool keel_handover_ask_read(const uint8_t *data, uint32_t bytes, struct keel_handover_ask *out);

#endif
