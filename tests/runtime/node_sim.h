/* node_sim.h - a deterministic world around keel_node: network, clocks, disks, processes, workers.
 *
 * Drives the same object code as the agents do, from a seed. Workers are modelled: told a view, they wait
 * for one another, agree on the newest state that one of them holds (else the newest committed snapshot),
 * and commit steps (numbered from 1) together, each a little later than the other. What must always hold is
 * checked while it runs; the first violation is kept as text. One world per thread. */
#ifndef KEEL_TESTS_NODE_SIM_H
#define KEEL_TESTS_NODE_SIM_H

#include "node_costs.h"
#include "node_state.h"
#include <string.h>

enum { SIM_NODES = KEEL_NODES_MAX, SIM_LOCALS = 8, SIM_STEPS_MAX = 1024, SIM_EPOCHS_MAX = 4096 };

#define SIM_MS UINT64_C(1000000)

struct sim_config {
    uint64_t seed;
    uint16_t nodes; /* launcher included */
    uint16_t workers_per_node, ranks, spares, shards, holders;
    uint16_t fewest;        /* ranks that a plan is for */
    uint64_t holes;         /* bit n: and none is for n */
    bool tells_past;        /* who leads tells the others what it must know (node_sim_past.h) */
    uint16_t address_bytes; /* of a worker; 0: 8 */
    uint16_t domain;        /* so many nodes, by number, fail together; 0: each by itself */
    uint64_t timeout_ns, step_ns, ready_ns;
    uint64_t spread_ns;                 /* within which all ranks commit a step; 0: half of step_ns */
    uint64_t last_step, snapshot_every; /* steps 1 .. last_step */
    uint32_t loss_ppm, duplicate_ppm;
    uint64_t delay_min_ns, delay_max_ns;
    struct sim_costs costs;
    bool respawn;
};

enum { SIM_ANY = UINT16_MAX, SIM_GRAYS_MAX = 8 };

/* A link, or with `b` SIM_ANY all links of a node, that loses much of what it carries, and delays the rest.
 */
struct sim_gray {
    uint16_t a, b;
    uint32_t loss_ppm;
    uint64_t late_ns; /* at most */
};

struct sim_worker {
    bool running, stopped, ready, done, stop_told;
    uint64_t ready_ns;
    uint32_t incarnation, life; /* life: distinguishes processes in the event queue */
    bool has_state;
    uint64_t next_step, sent_epoch, accused_epoch;
    uint64_t finishing_epoch; /* it did the last step in that view, and turns to no other; 0: it did not */
};

#define SIM_FAILURE_END "; take another board" /* how the words of sim_fail_worker end */

struct sim_node {
    bool running, stopped;
    uint32_t incarnation, life, timer_generation;
    uint32_t hurried; /* timers in a row that were to come at once */
    struct keel_node *state;
    void *place; /* of a holder that led, or stood for it */
    struct sim_worker workers[SIM_LOCALS];
    uint8_t disk[KEEL_REGISTER_STORE_BYTES];
    uint32_t disk_bytes;
    uint64_t started_ns;
    uint64_t stopped_ns, woke_ns;                  /* when last */
    uint16_t let_in_by;                            /* the node that it dialed, */
    uint32_t let_in_life;                          /* and which life of that */
    uint32_t deferred_bytes;                       /* of datagrams that wait while it is stopped */
    uint32_t lives_here;                           /* lives in this run (sim_kill_all) */
    bool disk_full;                                /* what is stored from now on finds no room */
    uint8_t held[SIM_STEPS_MAX];                   /* records that this process was given */
    uint64_t notes_said, notes_heard, newest_note; /* by sim_say; the newest that this leader heard */
    uint64_t heard_by;                             /* that leader (sim_leader_name) */
    struct sim_meter meter;
    uint64_t past_step, past_told; /* of node_sim_past.h: what it knows, and told last */
    bool finished;
    enum keel_status finish_status;
    char finish_detail[KEEL_WIRE_DETAIL_BYTES];
};

enum { SIM_COMMITTERS_MAX = 4 };

/* A generation on the disk of the snapshots. */
struct sim_generation {
    uint64_t step, epoch;
    bool there[KEEL_MEMBERS_MAX]; /* by rank: its shard lies there; none: the generation is gone */
    uint64_t saved_ns;            /* its newest shard came then */
    bool committed;
    uint64_t committed_by;                   /* the leader that did last (sim_leader_name) */
    uint64_t committers[SIM_COMMITTERS_MAX]; /* lives of nodes that did (sim_life_name), newest first */
};
enum { SIM_GENERATIONS_MAX = 64 };

struct sim_event;
struct sim_turn;

struct sim {
    struct sim_config config;
    uint64_t now_ns, random_state, sequence, events_done;
    uint64_t skipped_ns;    /* of that no beats were simulated: node_quiet.h */
    struct sim_turn *queue; /* a heap: node_sim_queue.h */
    uint32_t queue_count, queue_capacity;
    struct sim_event *events; /* those of the queue lie here, */
    uint32_t *free_events;    /* but for these places */
    uint32_t event_count, event_capacity, free_count;
    struct sim_event *deferred; /* for stopped nodes, in order */
    uint32_t deferred_count, deferred_capacity;
    struct sim_node *nodes;             /* config.nodes of them */
    bool blocked[SIM_NODES][SIM_NODES]; /* from, to */
    uint64_t healed_ns;                 /* some of them were unblocked then, or all */
    struct sim_gray grays[SIM_GRAYS_MAX];
    uint32_t gray_count;
    uint32_t loss_ppm, duplicate_ppm; /* now */
    uint32_t garble_ppm;              /* copies with a few bytes changed, from anybody */
    /* what was seen */
    uint64_t view_hash[SIM_EPOCHS_MAX];      /* by epoch; 0: none */
    struct keel_view *views[SIM_EPOCHS_MAX]; /* likewise, as it was seen first; NULL */
    uint64_t newest_epoch;                   /* of view_change */
    struct keel_view view, view_before;      /* newest installed, and the one before */
    struct keel_ballot view_ballot;          /* under which it was committed, */
    uint64_t view_ns;                        /* and when */
    uint32_t view_changes;
    enum keel_cause last_cause;
    uint64_t change_ns[64]; /* when the first view changes came */
    uint64_t delivered_next, delivered_count, gaps;
    uint64_t delivered_digest[SIM_STEPS_MAX]; /* of the weights, as the record of each step said first */
    uint64_t delivered_again;                 /* by a leader to which it was not told that the last one had */
    uint32_t moves;                           /* times that another node led than before */
    uint32_t take_overs;                      /* launchers that were started where agents lived */
    uint64_t first_step;                      /* of this life of the run */
    uint16_t leader;                          /* that led last */
    bool over;                                /* the run is: who led then ended so: */
    enum keel_status end_status;
    char end_detail[KEEL_WIRE_DETAIL_BYTES];
    uint64_t end_epoch;  /* the view of the last step's record */
    uint32_t ends_again; /* groups that began the end again from a snapshot, when all steps were delivered */
    uint64_t snapshot_step, snapshot_count, snapshot_last_epoch;
    struct sim_generation generations[SIM_GENERATIONS_MAX]; /* the newest */
    uint32_t generation_count;                              /* of all */
    uint32_t dropped;                                       /* shards that the launcher gave up */
    uint64_t plans[KEEL_MEMBERS_MAX + 1];                   /* by ranks: the number of their plan, 0: none */
    uint32_t shortages;                                     /* that the launcher told of */
    uint32_t drains[KEEL_DRAIN_HOLDS + 1];                  /* likewise, by news */
    /* Messages and bytes that were sent, by kind, and bytes by sender; and the largest message. */
    uint64_t sent[KEEL_WIRE_KIND_COUNT], sent_bytes[KEEL_WIRE_KIND_COUNT];
    uint32_t largest;
    uint64_t sent_by[SIM_NODES], view_bytes_by[SIM_NODES]; /* the latter: of messages about views */
    uint32_t mismatches, notes, kills, worker_starts, node_starts;
    uint32_t arrivals;    /* agents that another than the launcher let in */
    uint32_t spins;       /* nodes that asked for timers at once, over and over: a busy loop */
    uint64_t group_epoch; /* epoch whose steps are scheduled */
    uint64_t bad_digest_step;
    int bad_digest_node;             /* -1: nobody computes wrongly */
    uint64_t trace_hash, view_chain; /* over all lines of trace; over all views, in their order */
    uint64_t past_lacks;             /* steps of which who led did not know */
    uint64_t run;                    /* number of the present one, from 0 */
    uint64_t past_epoch;             /* of the lives of the run before this one */
    uint64_t leaders_asked;          /* times that all was well, and who leads was asked what it knows */
    bool verbose;
    bool user_stopped;   /* sim_user_stop was called in this life of the launcher */
    char violation[256]; /* "" while all is well */
};

struct sim *sim_create(const struct sim_config *config);
void sim_destroy(struct sim *sim);

void sim_start_node(struct sim *sim, uint16_t node, uint32_t incarnation);
void sim_kill_all(struct sim *sim);
void sim_kill_node(struct sim *sim, uint16_t node); /* agent or launcher, with its workers */
void sim_kill_worker(struct sim *sim, uint16_t node, uint8_t local);
void sim_stop_node(struct sim *sim, uint16_t node); /* SIGSTOP of the agent alone */
void sim_wake_node(struct sim *sim, uint16_t node);
/* A gray link more, in place of an earlier one where there are many. */
static inline void sim_gray(struct sim *sim, const struct sim_gray *gray)
{
    sim->grays[sim->gray_count++ % SIM_GRAYS_MAX] = *gray;
}

static inline void sim_partition(struct sim *sim, uint16_t a, uint16_t b, bool blocked) /* both ways */
{
    sim->blocked[a][b] = sim->blocked[b][a] = blocked;
    sim->healed_ns = blocked ? sim->healed_ns : sim->now_ns;
}
void sim_fail_worker(struct sim *sim, uint16_t node, uint8_t local, enum keel_status status);
/* The worker's shard of a snapshot is durable, whatever it has computed. */
void sim_save(struct sim *sim, uint16_t node, uint8_t local, uint16_t rank, uint64_t step);
/* Give any event to a node, now. */
int sim_give(struct sim *sim, uint16_t node, struct keel_node_event *event);

/* Until `until_ns`, or the run is over, or a violation. True when it is over. */
bool sim_run(struct sim *sim, uint64_t until_ns);
/* Until `until_ns` or the condition holds; true when it does. */
bool sim_run_until(struct sim *sim, uint64_t until_ns,
                   bool (*condition)(const struct sim *sim, uint64_t value), uint64_t value);
uint64_t sim_random(struct sim *sim, uint64_t below);

static inline struct sim_generation *generation_of(struct sim *sim, uint64_t step, uint64_t epoch)
{
    for (uint32_t i = 0; i < SIM_GENERATIONS_MAX; i++)
        if (sim->generations[i].epoch == epoch && sim->generations[i].step == step)
            return &sim->generations[i];
    struct sim_generation *made = &sim->generations[sim->generation_count++ % SIM_GENERATIONS_MAX];
    *made = (struct sim_generation){.step = step, .epoch = epoch};
    return made;
}

static inline void sim_saved(struct sim *sim, uint64_t step, uint64_t epoch, uint16_t rank)
{
    struct sim_generation *generation = generation_of(sim, step, epoch);
    generation->there[rank] = true;
    generation->saved_ns = sim->now_ns;
}

/* What is lost of what goes from one to another; what comes may be later by so much. */
static inline uint32_t sim_link_loss(const struct sim *sim, uint16_t from, uint16_t to, uint64_t *late_ns)
{
    const uint32_t count = sim->gray_count < SIM_GRAYS_MAX ? sim->gray_count : SIM_GRAYS_MAX;
    uint32_t loss_ppm = sim->loss_ppm;
    for (uint32_t i = 0; i < count; i++) {
        const struct sim_gray *gray = &sim->grays[i];
        const bool its = (gray->a == from && (gray->b == to || gray->b == SIM_ANY)) ||
                         (gray->a == to && (gray->b == from || gray->b == SIM_ANY));
        loss_ppm = its && gray->loss_ppm > loss_ppm ? gray->loss_ppm : loss_ppm;
        *late_ns += its ? gray->late_ns : 0;
    }
    return loss_ppm;
}

/* Each hears the other, as well as everybody. */
static inline bool sim_talk(const struct sim *sim, uint16_t a, uint16_t b)
{
    uint64_t late_ns = 0;
    return !sim->blocked[a][b] && !sim->blocked[b][a] &&
           sim_link_loss(sim, a, b, &late_ns) == sim->loss_ppm && late_ns == 0;
}

/* A datagram waits in the socket of a node that is stopped; false: it finds no room. */
static inline bool sim_socket_holds(struct sim *sim, uint16_t node, uint32_t bytes)
{
    const uint32_t room = sim->config.costs.socket_bytes;
    struct sim_node *n = &sim->nodes[node];
    if (room == 0)
        return true;
    n->deferred_bytes += bytes + sim->config.costs.extra_bytes;
    if (n->deferred_bytes <= room)
        return true;
    n->deferred_bytes -= bytes + sim->config.costs.extra_bytes;
    n->meter.overflows++;
    return false;
}

/* Generations with shards that are not committed. */
static inline uint32_t sim_uncommitted(const struct sim *sim)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < SIM_GENERATIONS_MAX; i++) {
        const struct sim_generation *generation = &sim->generations[i];
        const bool some = memchr(generation->there, true, sizeof generation->there) != NULL;
        count += !generation->committed && some ? 1 : 0;
    }
    return count;
}

static inline struct sim_config sim_default(uint64_t seed)
{
    return (struct sim_config){.seed = seed,
                               .nodes = 5,
                               .workers_per_node = 1,
                               .ranks = 4,
                               .fewest = 1,
                               .spares = 0,
                               .shards = 8,
                               .holders = 1,
                               .timeout_ns = 500 * SIM_MS,
                               .step_ns = 20 * SIM_MS,
                               .ready_ns = 100 * SIM_MS,
                               .last_step = 100,
                               .snapshot_every = 10,
                               .delay_min_ns = SIM_MS / 20,
                               .delay_max_ns = SIM_MS,
                               .respawn = true};
}

static inline void sim_user_stop(struct sim *sim)
{
    sim->user_stopped = true;
    (void)sim_give(sim, 0, &(struct keel_node_event){.kind = KEEL_EVENT_STOP});
}

static inline void sim_stop_worker(struct sim *sim, uint16_t node, uint8_t local)
{
    sim->nodes[node].workers[local].stopped = true;
}

static inline void sim_wake_worker(struct sim *sim, uint16_t node, uint8_t local)
{
    sim->nodes[node].workers[local].stopped = false;
}

static inline void sim_count(struct sim *sim, uint16_t from, const uint8_t *data, uint32_t bytes)
{
    const uint8_t kind = data[4]; /* behind the magic number: node_wire.c */
    KEEL_ASSERT(kind < KEEL_WIRE_KIND_COUNT);
    sim->sent[kind]++;
    sim->sent_bytes[kind] += bytes;
    sim->sent_by[from] += bytes;
    sim->view_bytes_by[from] += kind >= KEEL_WIRE_VIEW ? bytes : 0;
    sim->largest = bytes > sim->largest ? bytes : sim->largest;
}

static inline void sim_unblock(struct sim *sim)
{
    for (uint16_t i = 0; i < sim->config.nodes; i++)
        memset(sim->blocked[i], 0, sim->config.nodes * sizeof sim->blocked[i][0]);
    sim->healed_ns = sim->now_ns;
}

static inline bool sim_agents_live(const struct sim *sim)
{
    for (uint16_t i = 1; i < sim->config.nodes; i++)
        if (sim->nodes[i].running)
            return true;
    return false;
}

/* Of those that it keeps the oldest may be past asking for. */
static inline bool sim_holds(const struct sim_node *node, uint64_t step)
{
    const uint64_t later = step + KEEL_RECORDS_ASKED;
    return node->held[step] &&
           (later >= SIM_STEPS_MAX || memchr(node->held + later, 1, SIM_STEPS_MAX - later) == NULL);
}

/* Who was stopped for so long that the others count it as ended, and may not have been heard since. */
static inline bool sim_counts_as_ended(const struct sim *sim, const struct sim_node *node)
{
    return node->stopped || (node->woke_ns - node->stopped_ns >= 5 * sim->config.timeout_ns &&
                             sim->now_ns - node->woke_ns < sim->config.timeout_ns);
}

/* A node that the launcher starts it waits for. One that somebody else starts it knows when it has heard that
 * life of it, and no later than a timeout after the start, or after a cut network is whole. All of that as of
 * when it decided to end the run: one that is started behind that, while the others end, is too late. */
static inline bool sim_may_be_known(const struct sim *sim, uint16_t leader, uint16_t node)
{
    const struct sim_node *its = &sim->nodes[node];
    const struct keel_leader *of = sim->nodes[leader].state->leader;
    const struct keel_seen_node *seen = &of->membership.nodes[node];
    const uint64_t could_be_heard_ns = sim->healed_ns > its->started_ns ? sim->healed_ns : its->started_ns;
    const uint64_t decided_ns = of->ending ? of->end_ns : sim->now_ns;
    if (its->started_ns > decided_ns)
        return false;
    return sim->config.respawn || could_be_heard_ns + sim->config.timeout_ns <= decided_ns ||
           (seen->heard && seen->incarnation == its->incarnation);
}

/* It may be silent for who leads, or unknown to it yet, and is counted as gone. */
static inline bool sim_may_be_silent(const struct sim *sim, uint16_t leader, uint16_t node)
{
    return sim_counts_as_ended(sim, &sim->nodes[node]) || !sim_talk(sim, leader, node) ||
           sim->loss_ppm > sim->config.loss_ppm || sim->config.loss_ppm > 100000 ||
           sim->now_ns - sim->healed_ns < sim->config.timeout_ns || sim->config.costs.socket_bytes > 0 ||
           !sim_may_be_known(sim, leader, node);
}

/* Another run begins, with the disks of the one before. */
static inline void sim_forget_lives(struct sim *sim)
{
    for (uint16_t i = 0; i < sim->config.nodes; i++)
        sim->nodes[i].lives_here = 0;
    sim->run++;
    sim->past_epoch = sim->newest_epoch;
    sim->view_ballot = (struct keel_ballot){0}; /* of whom the launcher has not heard */
}

static inline void sim_accuse(struct sim *sim, uint16_t node, uint8_t local, uint16_t rank)
{
    const struct sim_worker *w = &sim->nodes[node].workers[local];
    (void)sim_give(sim, node,
                   &(struct keel_node_event){.kind = KEEL_EVENT_WORKER_ACCUSES,
                                             .local = local,
                                             .rank = rank,
                                             .value = w->sent_epoch,
                                             .cause = KEEL_CAUSE_CONNECTION});
}

/* Of a life of a node, among all; not 0. */
static inline uint64_t sim_life_name(const struct sim *sim, uint16_t node)
{
    return (uint64_t)sim->nodes[node].life << 16 | node;
}

/* Of a time that this node leads, among all. */
static inline uint64_t sim_leader_name(const struct sim *sim, uint16_t node)
{
    return sim->nodes[node].state->leader->lead_ns << 16 | node;
}

/* A worker's note, with its number. */
static inline void sim_say(struct sim *sim, uint16_t node, uint8_t local)
{
    const uint64_t number = ++sim->nodes[node].notes_said;
    struct keel_node_event note = {.kind = KEEL_EVENT_WORKER_NOTE, .local = local, .bytes = sizeof number};
    note.data = (const uint8_t *)&number;
    (void)sim_give(sim, node, &note);
}

/* A note came to a leader: false when it is one of sim_say, and came twice or after a later one. */
static inline bool sim_hear(struct sim *sim, uint16_t leader, uint16_t node, const uint8_t *data,
                            uint32_t bytes)
{
    struct sim_node *from = &sim->nodes[node];
    uint64_t number, newest = from->heard_by == sim_leader_name(sim, leader) ? from->newest_note : 0;
    if (bytes != sizeof number) {
        sim->notes++;
        return true;
    }
    memcpy(&number, data, sizeof number);
    from->newest_note = number;
    from->heard_by = sim_leader_name(sim, leader);
    from->notes_heard++;
    return number > newest || sim->garble_ppm != 0;
}

#endif
