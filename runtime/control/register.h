/* register.h - one value in a compare-and-swap register, kept by a majority of its holders.
 *
 * CASPaxos (Rystsov, "CASPaxos: Replicated State Machines without logs", 2018): every change runs the two
 * phases of single-value Paxos; the first reads the newest accepted value, the second writes what the
 * proposer made of it. Owns ballots, the acceptor's promises and the proposer's counting; leaves
 * sending, time (repeat the message of the phase until it ends) and the meaning of the value to its user.
 *
 * The value names its holders (view.h), and the next one may name others. It says two sets of them: those of
 * the value that it was made from (`before`), and its own. It is committed when a majority of either accepted
 * it under one ballot (joint consensus: Ongaro, "Consensus: Bridging Theory and Practice", 2014, 4.3). A read
 * phase needs a majority of both sets of the newest value that it found; of the second alone, where that
 * value is known to be committed. Who makes the next value gives it
 *   - the second set as `before`, and any as its own, if the value read is known to be committed, or its two
 *     sets are the same;
 *   - else both sets as they are.
 * So between two committed values every value that may be committed needs a majority of the first one's own
 * set, and what is committed is seen by every later read phase that completes: it, or one that was made from
 * it (tests/model/holders.pml).
 *
 * For that an acceptor's state must be durable before its answer leaves (keel_register_store), and no two
 * lives of proposers may share a number: hence the nonce in each. One that lost its disk may have forgotten
 * what it promised: it is another holder, by the number of its disk, and its answers count for sets that name
 * it so. Where no value is known to be committed, as when a run begins, a read phase needs a majority of
 * holders that accepted something, or all of them: disks may be those of an earlier run, and some of those
 * lost. */
#ifndef KEEL_REGISTER_H
#define KEEL_REGISTER_H

#include "view.h"

enum {
    KEEL_REGISTER_BYTES_MAX = KEEL_VIEW_BYTES_MAX,
    KEEL_REGISTER_STORE_BYTES = 68 + KEEL_REGISTER_BYTES_MAX
};

struct keel_ballot {
    uint64_t counter; /* 0: none */
    uint64_t node;    /* nonce of the proposer's life << 16 | its node */
};
int keel_ballot_compare(struct keel_ballot a, struct keel_ballot b); /* <0, 0, >0 */
/* Others are out of reach by counting: damage. */
static inline bool keel_ballot_in_reach(struct keel_ballot ballot)
{
    return ballot.counter < KEEL_EPOCH_MAX;
}

struct keel_register_value {
    uint32_t bytes; /* 0: nothing was ever written */
    uint8_t data[KEEL_REGISTER_BYTES_MAX];
};

/* Of a value that is larger than a message, each part goes with a message of its own: node.c. */
enum keel_register_kind {
    KEEL_REGISTER_PREPARE = 1, /* ballot */
    KEEL_REGISTER_PROMISE,     /* ballot, disk, ok, promised; accepted and value when ok */
    KEEL_REGISTER_ACCEPT,      /* ballot, value */
    KEEL_REGISTER_ACCEPTED     /* ballot, disk, ok, promised */
};

struct keel_register_head {
    enum keel_register_kind kind;
    bool ok;
    uint32_t disk;               /* of the acceptor that answers */
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

/* Who said yes in this phase. */
struct keel_register_answer {
    uint16_t node;
    uint32_t disk;
    bool grown; /* it had accepted something before */
};

enum { KEEL_REGISTER_ASKED_MAX = 2 * KEEL_HOLDERS_MAX };

struct keel_register {
    uint64_t identity;              /* of this life of the proposer */
    struct keel_view_holders first; /* of a value that names none */
    /* acceptor; durable, as is the first value below */
    uint64_t run; /* its number: what was promised in another binds nobody */
    uint32_t disk;
    struct keel_ballot promised, accepted;
    /* proposer */
    enum keel_register_phase phase;
    struct keel_ballot ballot, newest; /* mine; of the newest value that a promise carried */
    struct keel_ballot seen;           /* highest that refused me */
    uint64_t known_epoch;              /* of the newest value that is known to be committed; 0: none is */
    struct keel_view_holders known;    /* and its holders */
    struct keel_view_holders sets[2];  /* whose majorities this phase needs */
    struct keel_register_answer answers[KEEL_REGISTER_ASKED_MAX];
    uint32_t answer_count;
    bool committed; /* IDLE: the proposal was, and `answers` are those who answered since, too */
    /* Large; what is beyond their lengths is never read. */
    struct keel_register_value value;    /* accepted */
    struct keel_register_value proposal; /* READING: newest value so far; WRITING: what is written */
};

/* Holders at first: nodes 0 .. holder_count - 1. `nonce`: random, another for each life of the process. */
void keel_register_init(struct keel_register *reg, uint16_t node, uint16_t holder_count, uint64_t nonce);
/* Of a value or a view: its holders, the first ones where it names none. */
const struct keel_view_holders *keel_register_holders(const struct keel_register *reg,
                                                      const struct keel_view_holders *named);

/* The acceptor's state as bytes (at most KEEL_REGISTER_STORE_BYTES), and back. A load that fails (other
 * magic, length or checksum) returns CORRUPT and leaves the register as it was. */
uint32_t keel_register_store(const struct keel_register *reg, uint8_t *out);
enum keel_status keel_register_load(struct keel_register *reg, const uint8_t *data, uint32_t bytes);

/* Acceptor: answer a PREPARE or an ACCEPT. *out_changed: the state must be durable before *reply goes. */
void keel_register_answer(struct keel_register *reg, const struct keel_register_message *ask,
                          struct keel_register_message *reply, bool *out_changed);

/* Proposer: is there a ballot above all that were heard of, which others would take? Else nobody changes this
 * register any more. */
bool keel_register_may_begin(const struct keel_register *reg);
/* Proposer: begin a change with a new, higher ballot (any phase; gives up what was under way); it may. Of the
 * newest value that is known to be committed: its epoch, 0 for none, and its holders. */
void keel_register_begin(struct keel_register *reg, uint64_t known_epoch,
                         const struct keel_view_holders *known);
/* Phase READ only: write `data`, which names its holders by the rules above. */
void keel_register_write(struct keel_register *reg, const uint8_t *data, uint32_t bytes);
/* Nothing (more) to do. */
void keel_register_rest(struct keel_register *reg);
/* The message to send, now and again, to all who are asked; false when the phase asks for none. */
bool keel_register_ask(const struct keel_register *reg, struct keel_register_message *out);
/* Who is asked in this phase, or was last: their number. */
uint32_t keel_register_asked(const struct keel_register *reg, uint16_t out[KEEL_REGISTER_ASKED_MAX]);

/* What was committed, for a node that is asked, if it did not say yet that it has it: to be sent now and
 * again. A value of which a majority alone knows cannot be read when one of them is gone. */
bool keel_register_remind(const struct keel_register *reg, uint16_t to, struct keel_register_message *out);

enum keel_register_outcome {
    KEEL_REGISTER_WAIT,      /* nothing new */
    KEEL_REGISTER_OTHERS,    /* a newer value was found: its holders are to be asked now */
    KEEL_REGISTER_HAVE,      /* the read phase is over: `proposal` is the current value; write or rest */
    KEEL_REGISTER_COMMITTED, /* `proposal` is the register's value; the phase is IDLE again */
    KEEL_REGISTER_REFUSED    /* another proposer is ahead; the phase is IDLE again */
};
/* Proposer: take a holder's answer. */
enum keel_register_outcome keel_register_hear(struct keel_register *reg, uint16_t from,
                                              const struct keel_register_message *reply);

#endif
