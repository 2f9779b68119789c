/* register.h - one value in a compare-and-swap register, kept by a majority of its holders.
 *
 * CASPaxos (Rystsov, "CASPaxos: Replicated State Machines without logs", 2018): every change runs the two
 * phases of single-value Paxos; the first reads the newest accepted value, the second writes what the
 * proposer made of it. Owns ballots, the acceptor's promises and the proposer's counting; leaves
 * sending, time (repeat the message of the phase until it ends) and the meaning of the value to its user.
 *
 * What holds: once a value is committed (accepted by a majority under one ballot), every later read phase
 * that completes sees it or one that was made from it. For that an acceptor's state must be durable before
 * its answer leaves (keel_register_store), and no two lives of proposers may share a number: hence the
 * nonce in each. A holder that lost its disk answers like a new one and may have forgotten the newest value.
 * A read phase therefore needs a majority of holders that accepted something, or all holders. So the value
 * outlives the disks of any minority while there is one proposer, and the very first change needs every
 * holder. With several proposers that is not enough: a holder that comes back with an empty disk may accept
 * an older ballot that is still under way (tests/model/view.pml with WIPES=1; none is found with ABSTAINS).
 * Its user sees to it that it abstains then: it counts for "all", and for no majority. */
#ifndef KEEL_REGISTER_H
#define KEEL_REGISTER_H

#include "view.h"

enum {
    KEEL_REGISTER_BYTES_MAX = KEEL_VIEW_BYTES_MAX,
    KEEL_REGISTER_STORE_BYTES = 56 + KEEL_REGISTER_BYTES_MAX
};

struct keel_ballot {
    uint64_t counter; /* 0: none */
    uint64_t node;    /* nonce of the proposer's life << 16 | its node */
};
int keel_ballot_compare(struct keel_ballot a, struct keel_ballot b); /* <0, 0, >0 */

struct keel_register_value {
    uint32_t bytes; /* 0: nothing was ever written */
    uint8_t data[KEEL_REGISTER_BYTES_MAX];
};

/* Of a value that is larger than a message, each part goes with a message of its own: node.c. */
enum keel_register_kind {
    KEEL_REGISTER_PREPARE = 1, /* ballot */
    KEEL_REGISTER_PROMISE,     /* ballot, ok, promised; accepted and value when ok */
    KEEL_REGISTER_ACCEPT,      /* ballot, value */
    KEEL_REGISTER_ACCEPTED,    /* ballot, ok, promised */
    KEEL_REGISTER_ABSTAINS /* ballot: in the place of either answer, by one that may have forgotten others */
};

struct keel_register_head {
    enum keel_register_kind kind;
    bool ok;
    struct keel_ballot ballot;   /* of the proposer that asks */
    struct keel_ballot promised; /* of the acceptor that answers */
    struct keel_ballot accepted;
};

struct keel_register_message {
    struct keel_register_head head;
    struct keel_register_value value;
};

enum keel_register_phase {
    KEEL_REGISTER_IDLE,
    KEEL_REGISTER_READING,
    KEEL_REGISTER_READ,
    KEEL_REGISTER_WRITING
};

struct keel_register {
    uint16_t holder_count;
    uint64_t identity; /* of this life of the proposer */
    /* acceptor; durable */
    struct keel_ballot promised, accepted;
    struct keel_register_value value;
    /* proposer */
    enum keel_register_phase phase;
    struct keel_ballot ballot, newest;   /* mine; of the newest value that a promise carried */
    struct keel_ballot seen;             /* highest that refused me */
    struct keel_register_value proposal; /* READING: newest value so far; WRITING: what is written */
    uint32_t grown;   /* bit per holder that answered the read phase and had accepted something */
    uint32_t answers; /* bit per holder that said yes in this phase */
    uint32_t absent;  /* bit per holder that abstained in the read phase */
    bool committed;   /* IDLE: the proposal was, and `answers` are those who answered since, too */
};

/* `nonce`: random, another for each life of the process. */
void keel_register_init(struct keel_register *reg, uint16_t node, uint16_t holder_count, uint64_t nonce);

/* The acceptor's state as bytes (at most KEEL_REGISTER_STORE_BYTES), and back. A load that fails (other
 * magic, length or checksum) returns CORRUPT and leaves the register as it was. */
uint32_t keel_register_store(const struct keel_register *reg, uint8_t *out);
enum keel_status keel_register_load(struct keel_register *reg, const uint8_t *data, uint32_t bytes);

/* Acceptor: answer a PREPARE or an ACCEPT. *out_changed: the state must be durable before *reply goes. */
void keel_register_answer(struct keel_register *reg, const struct keel_register_message *ask,
                          struct keel_register_message *reply, bool *out_changed);

/* Proposer: begin a change with a new, higher ballot (any phase; gives up what was under way). */
void keel_register_begin(struct keel_register *reg);
/* Phase READ only: write `data`. */
void keel_register_write(struct keel_register *reg, const uint8_t *data, uint32_t bytes);
/* Nothing (more) to do. */
void keel_register_rest(struct keel_register *reg);
/* The message to send, now and again, to all holders; false when the phase asks for none. */
bool keel_register_ask(const struct keel_register *reg, struct keel_register_message *out);

/* What was committed, for holder `to`, if it did not say yet that it has it: to be sent now and again. A
 * value of which a majority alone knows cannot be read when one of them is gone. */
bool keel_register_remind(const struct keel_register *reg, uint16_t to, struct keel_register_message *out);

enum keel_register_outcome {
    KEEL_REGISTER_WAIT,      /* nothing new */
    KEEL_REGISTER_HAVE,      /* the read phase is over: `proposal` is the current value; write or rest */
    KEEL_REGISTER_COMMITTED, /* `proposal` is the register's value; the phase is IDLE again */
    KEEL_REGISTER_REFUSED    /* another proposer is ahead; the phase is IDLE again */
};
/* Proposer: take a holder's answer. */
enum keel_register_outcome keel_register_hear(struct keel_register *reg, uint16_t from,
                                              const struct keel_register_message *reply);

#endif
