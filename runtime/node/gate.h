/* gate.h - the door for agents that dial in from other hosts: of the launcher, and where another may lead
 * (cluster.holders) of each agent. Who leads lets them in, and the others say who that is. Who asks something
 * of the run (keel job) comes by the same door, and is told when it has come to be.
 *
 * Owns the listening socket and the connections of agents, from their opening to their end. Promises that
 * only who proves the job key becomes a node (handover.h), that a node has one agent at a time, and that no
 * caller, slow, mute or hostile, holds up its owner or another caller: strangers have ten seconds and few
 * places, of which the oldest goes first. Who is refused is counted and told.
 *
 * A node is open when an agent is wanted for it (keel_gate_want): the one that asks for it by its number, or
 * who asks for any. Agents beyond that wait, and take the place of one that ended, or of one that is silent.
 * That an agent's connection ended is told; its node is open again when it is wanted again. Of a node that
 * another let in there is no connection: its agent is taken for gone only when it is silent, and somebody
 * waits. One owner, one thread; never blocks. */
#ifndef KEEL_GATE_H
#define KEEL_GATE_H

#include "handover.h"
#include "net_place.h"
#include <keel/node.h>

/* What is told; texts live until the callback returns. */
enum keel_gate_news_kind {
    KEEL_GATE_JOINED, /* was handed the job (or will be, once the gate is released) */
    KEEL_GATE_LEFT,   /* the agent of `node` ended, was replaced, or could not begin (status, text) */
    KEEL_GATE_WAITS,  /* one more than are wanted; it waits */
    KEEL_GATE_REFUSED /* whoever called from `place`; `total` so far */
};
struct keel_gate_news {
    enum keel_gate_news_kind kind;
    uint16_t node; /* 0: none */
    uint32_t incarnation;
    const char *host, *place; /* host: as it calls itself; "" when it did not say */
    enum keel_status status;  /* LEFT: OK, when it just ended */
    const char *text;
    bool orderly; /* LEFT: as it was told to */
    uint64_t total;
};

struct keel_gate_config {
    const struct keel_net_place *bind; /* where to listen: port 0 is any */
    const struct keel_net_place
        *advertised;                  /* agents come by this family, and by loopback only if it is that */
    const struct keel_secret *secret; /* copied */
    const char *release;              /* borrowed */
    uint16_t node_count;
    struct keel_handed_job job; /* node and incarnation are filled in; texts are borrowed */
    uint32_t first_words;       /* so many of its words, the last, are for a node's first life alone */
    void *context;
    void (*news)(void *context, const struct keel_gate_news *news);
    /* Nothing was heard of the agent of `node` for so long that another may take its place. */
    bool (*silent)(void *context, uint16_t node);
    /* Does this one let in? False: `out` becomes the place of who leads, "" if nobody does. */
    bool (*leads)(void *context, char out[KEEL_PLACE_BYTES]);
    /* Somebody who proved the key asks for it, of this run and of who leads. Not OK: it is refused, as
     * keel_detail() has it. */
    enum keel_status (*ask)(void *context, const struct keel_handover_ask *ask);
    /* Has it come to be? In each turn, of what is no stop, whose end is the run's. Else `why` says what it
     * waits for, "" for nothing that people must know. */
    bool (*look)(void *context, const struct keel_handover_ask *ask, char why[KEEL_REASON_BYTES]);
    bool asks_only; /* agents are this host's own: none is let in */
};

/* `silent`, by the view that `node` knows: for two timeouts, of an agent that was heard last at heard_ns, and
 * joined, or is waited for, since since_ns; for one, where the view has lost its ranks meanwhile: nobody
 * waits for it any more. */
bool keel_gate_gives_up(const struct keel_node *node, uint16_t which, uint64_t heard_ns, uint64_t since_ns,
                        uint64_t timeout_ns);

struct keel_gate;

/* BUSY: the port is taken. DENIED, IO, NO_MEMORY. */
enum keel_status keel_gate_open(const struct keel_gate_config *config, struct keel_gate **out);
/* The run is over, and ended so: agents that are still connected are told not to dial again, who asked for
 * it is told how, and who asked for something else that it did not come to be. */
void keel_gate_close(struct keel_gate *gate, enum keel_status status, const char *detail);
/* The run goes on, or is ended, without this launcher: nobody is told anything. */
void keel_gate_leave(struct keel_gate *gate);

/* Where it listens. */
enum keel_status keel_gate_place(const struct keel_gate *gate, char out[KEEL_PLACE_BYTES]);
int keel_gate_fd(const struct keel_gate *gate);               /* to poll for reading */
uint64_t keel_gate_deadline_ns(const struct keel_gate *gate); /* turn then at the latest; KEEL_NEVER */

/* An agent is wanted for this node, of this incarnation; or no longer. */
void keel_gate_want(struct keel_gate *gate, uint16_t node, uint32_t incarnation);
void keel_gate_unwant(struct keel_gate *gate, uint16_t node);
/* Its owner leads from now on, and another did before: nodes without a connection may be there. */
void keel_gate_presume(struct keel_gate *gate);
/* Jobs are handed over from now on; before, agents are only let in. */
void keel_gate_release(struct keel_gate *gate);
/* The lowest wanted node, of `from` on, that has no agent; 0: none. */
uint16_t keel_gate_missing(const struct keel_gate *gate, uint16_t from);
bool keel_gate_has(const struct keel_gate *gate, uint16_t node);
bool keel_gate_wants(const struct keel_gate *gate, uint16_t node);
/* Some agent is connected that was handed the job. */
bool keel_gate_has_some(const struct keel_gate *gate);

/* Do what is there to be done. */
void keel_gate_turn(struct keel_gate *gate);

#endif
