/* agent_gate.h - the door of an agent whose node may lead (cluster.holders): gate.h, as an agent has it.
 *
 * Listens where the agent's mailbox does, and hands on what was handed over to this agent: to who dials in
 * while its node leads; else it says who leads. While it leads the node keeps the directory of the run, too,
 * and starts agents on hosts where the launcher did (starters.h). Private to node/. */
#ifndef KEEL_AGENT_GATE_H
#define KEEL_AGENT_GATE_H

#include "control.h"
#include "dial.h"
#include "gate.h"
#include "leading.h"
#include "starters.h"

struct keel_agent_gate {
    struct keel_gate *gate; /* NULL: it has none */
    struct keel_control_plane *control;
    const struct keel_leading *leading; /* who is told of agents that come and go */
    struct keel_mailbox *mailbox;
    struct keel_hosts hosts;
    struct keel_starters *starters; /* NULL: people start agents */
    char place[KEEL_PLACE_BYTES];   /* where they dial in */
    bool leads;
    uint64_t stop_ns;    /* somebody asked for the end of the run, here, then; 0: nobody did */
    uint64_t timeout_ns; /* of the run */
    bool unsaved;        /* so it ended, without its last snapshot: who asked is told that it failed, and the
                            agent ends as interrupted */
    /* Silence of a node counts: */
    uint64_t lead_ns;                   /* from when this one began to lead, */
    uint64_t joined_ns[KEEL_NODES_MAX]; /* or the node was let in */
};

struct keel_agent_gate_config {
    const struct keel_dialed *dialed; /* borrowed while it is open, as the next */
    const char *launcher;             /* where the launcher is reached */
    const struct keel_secret *secret; /* copied */
    const struct keel_job *job;       /* borrowed while it is open, as the next */
    const char *program;              /* of this agent */
    struct keel_control_plane *control;
    const struct keel_leading *leading;
    struct keel_mailbox *mailbox;
    uint16_t node_count;
    uint64_t timeout_ns;
};

/* BUSY: the mailbox's port is taken for connections. */
enum keel_status keel_agent_gate_open(struct keel_agent_gate *gate,
                                      const struct keel_agent_gate_config *config);
/* `over`: the run is, with this end, and not for this node alone: who waits is told. */
void keel_agent_gate_close(struct keel_agent_gate *gate, bool over, enum keel_status status,
                           const char *detail);
/* The node is over. Where somebody asked for the end of the run here, and the last snapshot did not come in
 * time, or cannot (`hung`: the store does not answer), its status becomes TIMEOUT, with its detail. */
void keel_agent_gate_look_at_stop(struct keel_agent_gate *gate, const struct keel_job *job, bool hung);
/* Once a turn of the agent's loop. */
void keel_agent_gate_turn(struct keel_agent_gate *gate);
/* Turn when one is readable; -1: there is none. */
int keel_agent_gate_fd(const struct keel_agent_gate *gate);
int keel_agent_gate_starters_fd(const struct keel_agent_gate *gate);
uint64_t keel_agent_gate_deadline_ns(const struct keel_agent_gate *gate);
/* The node wants an agent (keel_env.node_start). */
void keel_agent_gate_want(struct keel_agent_gate *gate, uint16_t node, uint32_t incarnation);

#endif
