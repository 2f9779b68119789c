/* goodput.h - where the time of a run goes when what fails is known: an event-level model.
 *
 * No message is simulated (tests/runtime/node_sim.h does that): a failure costs what was measured of real
 * ones. Steps follow one another; a snapshot stalls its step and is durable when its tier has drained it. A
 * failure interrupts the step, whose time, or part of it, is lost (redo). Then, one after the other: it is
 * noticed (detect), a view without the lost is agreed on (reconfigure), who takes over gets the state from
 * who holds it (heal). What fails meanwhile begins that anew. Where nobody holds a lost state any more, the
 * newest snapshot that is whole is read (restore), and the steps since are done again. A lost node's place
 * goes to a spare; without one the others share its shards, and steps are slower (fewer), or, below `fewest`,
 * all wait (spares).
 *
 * All times are whole nanoseconds, and every one of them has one cause: they add up to the wall time exactly.
 * Spares do not fail; a failure hits whoever carries the place. Any thread. */
#ifndef KEEL_GOODPUT_H
#define KEEL_GOODPUT_H

#include "failures.h"
#include <stdbool.h>

/* X(name, word, what the time went into) */
#define KEEL_GOODPUT_CAUSE_TABLE(X)                                                                          \
    X(WORK, "work", "steps, each counted once")                                                              \
    X(OVERHEAD, "overhead", "what protection costs in every step")                                           \
    X(STALL, "stall", "a step waits for the capture of a snapshot")                                          \
    X(DETECT, "detect", "from a failure until it is noticed")                                                \
    X(RECONFIGURE, "reconfigure", "the new view, new connections")                                           \
    X(HEAL, "heal", "state from live holders to who takes over")                                             \
    X(REDO, "redo", "the interrupted step, as far as it was and has to be done again")                       \
    X(LOCAL, "restore_local", "reading a snapshot from each node's own disk")                                \
    X(PARTNER, "restore_partner", "reading one from copies on other nodes")                                  \
    X(ERASURE, "restore_erasure", "reading one from an erasure set")                                         \
    X(STORE, "restore_store", "reading one from the shared store")                                           \
    X(AGAIN, "again", "steps since that snapshot, done again")                                               \
    X(SLOW, "slow", "waiting for slow nodes")                                                                \
    X(FEWER, "fewer", "slower steps, with fewer nodes than planned")                                         \
    X(SPARES, "spares", "waiting for nodes: fewer are left than a plan is for")                              \
    X(IDLE, "idle", "from the end of a whole run until it is begun again")                                   \
    X(END, "unfinished", "the step that the end of the time cuts off")
enum keel_goodput_cause {
#define KEEL_GOODPUT_ENUM(name, word, help) KEEL_GOODPUT_##name,
    KEEL_GOODPUT_CAUSE_TABLE(KEEL_GOODPUT_ENUM)
#undef KEEL_GOODPUT_ENUM
        KEEL_GOODPUT_CAUSE_COUNT
};
const char *keel_goodput_word(enum keel_goodput_cause cause);
const char *keel_goodput_help(enum keel_goodput_cause cause);

/* The nearest first: of snapshots of the same step the first whole one is read. */
enum keel_goodput_tier {
    KEEL_GOODPUT_TIER_LOCAL,   /* disk of the node itself */
    KEEL_GOODPUT_TIER_PARTNER, /* disk of a node in another failure domain */
    KEEL_GOODPUT_TIER_ERASURE, /* disks of a set of nodes, of which some may be lost */
    KEEL_GOODPUT_TIER_STORE,   /* shared */
    KEEL_GOODPUT_TIER_COUNT
};
const char *keel_goodput_tier_word(enum keel_goodput_tier tier);

struct keel_goodput_snapshots {
    uint64_t every_steps; /* 0: the tier is not used */
    uint64_t drain_ns;    /* from the end of the capture until it is durable */
    uint64_t restore_ns;
};

enum { KEEL_GOODPUT_REDO_ALL = 1000000 };

struct keel_goodput_model {
    uint64_t duration_ns;
    uint32_t nodes, spares, fewest;        /* fewest: that a plan is for */
    uint32_t copies;                       /* holders of each node's state; it is lost with all of them */
    uint32_t shards_per_node;              /* what others can share of a lost node's work */
    uint64_t step_ns, overhead_ns;         /* of a step; overhead comes on top */
    uint64_t exit_ns, silence_ns, hang_ns; /* until a failure is noticed */
    uint32_t redo_ppm;                     /* of an interrupted step: done again; at most REDO_ALL */
    uint64_t slow_ns;                      /* until a slow node is exchanged; 0: never */
    uint64_t reconfigure_ns, heal_ns, stall_ns;
    uint32_t set_nodes, set_lost; /* of an erasure set: its nodes, and how many of them may be lost */
    struct keel_goodput_snapshots tiers[KEEL_GOODPUT_TIER_COUNT];
};

struct keel_goodput {
    uint64_t ns[KEEL_GOODPUT_CAUSE_COUNT]; /* add up to duration_ns */
    uint64_t steps;                        /* that the run is ahead at the end */
    uint64_t failures, incidents, joins;   /* incidents: failures that came together are one */
    uint64_t restores[KEEL_GOODPUT_TIER_COUNT], from_nothing; /* the latter: no snapshot was there */
};

/* `failures` by time, of the model's nodes. NO_MEMORY. */
enum keel_status keel_goodput_run(const struct keel_goodput_model *model,
                                  const struct keel_failures *failures, struct keel_goodput *out);

#endif
