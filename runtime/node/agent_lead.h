/* agent_lead.h - an agent whose node may lead (cluster.holders), and what it does while it does.
 *
 * Holds the register's state, and once the node leads, what people are told of the run and the snapshots, in
 * the common store (remote_leader.h). All that is read and written there is on two threads (teller.h,
 * committer.h): the agent's loop waits for none of it. What does not cease there, a store that is gone, or
 * another run that was begun in its place, ends the agent: another leads then. Private to node/. */
#ifndef KEEL_AGENT_LEAD_H
#define KEEL_AGENT_LEAD_H

#include "agent.h"
#include "leading.h"
#include "remote_leader.h"
#include "teller.h"
#include <stdatomic.h>

struct keel_agent_lead {
    struct keel_leading leading; /* first: found by it */
    const struct keel_agent_output *output;
    const struct keel_job *job;         /* borrowed, as the next */
    const char *directory, *store_path; /* of the node; of the snapshots */
    struct keel_control_plane *control;
    struct keel_launch_report report; /* the teller's */
    struct keel_teller *teller;       /* NULL: it never led */
    char identity[KEEL_IDENTITY_BYTES];
    char state_path[KEEL_PATH_BYTES], lock_path[KEEL_PATH_BYTES]; /* of the register; "": has none */
    int lock_fd;
    void *place;       /* of keel_env.lead_place; heap */
    uint64_t *plans;   /* heap */
    uint64_t heard_ns; /* who led before, last; from before the teller is there */
    bool leads;
    bool abandoned;          /* the store hangs: all of this is its threads' until the process ends */
    enum keel_status status; /* why it cannot lead, */
    char detail[KEEL_DETAIL_BYTES];
    /* Between the loop and the teller's thread: */
    _Atomic bool leads_now;
    /* The teller's thread's: */
    struct keel_remote_leader words; /* node and run are there from the start */
    bool says_so;                    /* STORE/.leader/leader is ours */
    uint32_t blind;                  /* looks in a row that did not find the store */
    struct keel_store *store;        /* the committer's thread's */
};

/* From what was handed over to it: job, options and node's directory live as long. `keep`: the directory in
 * which the register's state outlives the agent's process. `node` is completed. */
enum keel_status keel_agent_lead_init(struct keel_agent_lead *lead, const struct keel_job *job,
                                      const char *directory, const char *keep, struct keel_node_config *node);
/* The effects of who leads, beside the agent's. */
void keel_agent_lead_fill(struct keel_env *effects);
/* Once a turn of the agent's loop. Not OK: it ends, and the run goes on without this node. */
enum keel_status keel_agent_lead_turn(struct keel_agent_lead *lead);
int keel_agent_lead_fd(const struct keel_agent_lead *lead); /* turn when it is readable; -1 */
/* The node is over: `deserted` when the run is not. If it led, the last snapshot is committed and the end
 * told; how it ended comes back, and why in `detail`. Where the store hangs, `abandoned`, after
 * KEEL_LEADING_DRAIN_S and some seconds: the process is to end, and nothing that its two threads have from it
 * is freed before. */
enum keel_status keel_agent_lead_end(struct keel_agent_lead *lead, bool deserted, enum keel_status status,
                                     char detail[KEEL_DETAIL_BYTES]);
void keel_agent_lead_fini(struct keel_agent_lead *lead);

#endif
