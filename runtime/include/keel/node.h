/* node.h - the control plane as a pure function: event in, effects out.
 *
 * One keel_node is the control-plane state of one agent, or of the launcher, which leads at first.
 * keel_node_step() is the only way in: no threads, no blocking, no clock, no files, no allocation;
 * everything it does goes through keel_env, so that the agents run it over sockets and files, and the
 * simulator runs the same object code over a simulated network, clock and disk, from a seed that
 * replays exactly. Integers only; no pointer-ordered containers.
 *
 * What it decides: who is in the run (membership), which rank carries which shard (the view), whether
 * there are enough of them for any plan, when a
 * worker is evicted (evidence accuses, only a view change evicts), when a snapshot is committed,
 * when records of steps are delivered, when the run is over.
 *
 * The view is one value in a compare-and-swap register (CASPaxos, Rystsov 2018) held by
 * `holder_count` nodes; the launcher alone in the simplest set-up. With three holders or more any of them may
 * lead: when the leader is silent the next one takes over, and the run goes on. Each view names its holders,
 * and one that is lost is replaced with the next view. */
#ifndef KEEL_NODE_H
#define KEEL_NODE_H

#include <keel/api.h>
#include <keel/ckpt.h>
#include <keel/limits.h>
#include <keel/status.h>
#include <keel/transport.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KEEL_API_BEGIN

enum {
    KEEL_PAST_BYTES_MAX = 384, /* what who leads next must know (KEEL_EVENT_PAST) */
    KEEL_RECORDS_MAX = 256,    /* step records kept by an agent until the launcher has them */
    KEEL_NODE_TEXT_BYTES = 256
};

/* The detail with which nodes finish (INTERRUPTED) whose user asked for the end of the run. */
#define KEEL_NODE_STOPPED "stopped; run the same command again to resume"
/* And an agent (OK) whose node left: the run goes on. */
#define KEEL_NODE_DRAINED "this node was drained: its agent ends, and the run goes on without it"

#define KEEL_RANK_NONE UINT16_MAX

/* One worker in the view. A rank is a stable name of a place in the run: active ranks are below
 * rank_count, spares are named from rank_count upwards. When a rank dies, whoever takes its place takes its
 * number too, so that ranks stay 0 .. world - 1 for people; what tells one holder of a rank from the
 * next is (node, local, incarnation), and that triple is never used twice. */
struct keel_member {
    uint16_t rank;            /* 0 .. KEEL_MEMBERS_MAX - 1; members are sorted by it */
    uint16_t node;            /* which node runs it */
    uint8_t local;            /* index among the workers of its node */
    uint8_t spare;            /* 1: carries no shard, waits */
    uint32_t incarnation;     /* of the worker: (incarnation of its node << 8) + its restarts there */
    struct keel_address data; /* fabric address */
};

/* Those who hold the register in which the view is. A holder is a node with its disk: one that lost what it
 * had stored is another holder of the same node. */
struct keel_view_holders {
    uint8_t count; /* odd; 0: the launcher alone, as the run began */
    struct keel_view_holder {
        uint16_t node;
        uint32_t disk; /* 0: the first that the node had in this run; KEEL_DISK_NONE: it holds nothing */
    } at[KEEL_HOLDERS_MAX];
};
#define KEEL_DISK_NONE UINT32_MAX

struct keel_view {
    uint64_t epoch; /* 0: no view yet */
    uint64_t plan;  /* number of the plan that its active ranks work by (struct keel_node_config); not 0 */
    uint16_t member_count, shard_count;
    struct keel_view_holders before, holders; /* it was committed by a majority of either (register.h) */
    struct keel_member members[KEEL_MEMBERS_MAX];
    uint16_t shard_rank[KEEL_SHARDS_MAX]; /* rank (not member index) of each shard */
};

/* One committed step, as a worker reports it. */
struct keel_step_record {
    uint64_t step;
    uint32_t loss_bits, grad_norm_bits, learning_rate_bits;
    uint32_t val_loss_bits, has_val_loss;
    uint32_t val_accuracy_bits, has_val_accuracy; /* of models that classify */
    uint64_t tokens;                              /* consumed since the beginning of the run */
    uint64_t epoch;                               /* of the view in which this rank committed it */
    uint64_t digest;                              /* of all weights after the step */
    /* Where the time went, on the rank that reports. */
    uint64_t duration_ns;       /* from the commit before to this one */
    uint64_t exposed_comm_ns;   /* waiting for peers with nothing to compute */
    uint64_t snapshot_stall_ns; /* waiting for a capture before weights may change */
    uint64_t sync_ns;           /* first step of a view, else 0: connecting, agreeing on where to go on */
    uint64_t heal_ns;           /* first step of a view: state copied from live ranks, */
    uint64_t heal_bytes;        /* and how much, all ranks together, */
    uint32_t heal_ranks;        /* from how many */
    uint64_t redo_ns;           /* first step of a view: computing what is missing of it */
    uint32_t redo_microbatches; /* of a step that the view before began */
    uint32_t loss_scale_bits;   /* 0: the loss is not scaled */
    uint64_t sent_bytes;        /* to other ranks, of the data of this attempt's collectives */
};

/* Why something happened; also the `cause` field of events.jsonl. */
#define KEEL_CAUSE_TABLE(X)                                                                                  \
    X(NONE, "none")                                                                                          \
    X(START, "start")                                                                                        \
    X(EXIT, "process-exit")                                                                                  \
    X(CONNECTION, "connection-lost")                                                                         \
    X(SILENCE, "heartbeat-missed")                                                                           \
    X(STUCK, "no-progress")                                                                                  \
    X(JOIN, "join")                                                                                          \
    X(FINISHED, "finished")                                                                                  \
    X(DRAINED, "drained")                                                                                    \
    X(HOLDER, "holder-lost")
enum keel_cause {
#define KEEL_CAUSE_ENUM(name, text) KEEL_CAUSE_##name,
    KEEL_CAUSE_TABLE(KEEL_CAUSE_ENUM)
#undef KEEL_CAUSE_ENUM
        KEEL_CAUSE_COUNT
};
const char *keel_cause_name(enum keel_cause cause);

/* ---- configuration ------------------------------------------------------------------------------------- */

struct keel_node_config {
    uint16_t node;       /* this node; 0 is the launcher */
    uint16_t node_count; /* nodes the run starts with, launcher included */
    uint16_t
        holder_count; /* so many hold the register, of those who are there; at first the launcher alone */
    uint16_t worker_count; /* workers on this node (0 on a launcher) */
    uint16_t rank_count;   /* active ranks wanted: the world */
    uint16_t spare_count;  /* further workers wanted as spares */
    uint16_t shard_count;
    const uint64_t *plans; /* of who may lead: by how many ranks are active, of 0 .. rank_count: the number of
                              the plan that so many have; 0: none, and no view has so many. Borrowed while the
                              node lives. */
    uint64_t timeout_ns;   /* the one timeout of the user; every other derives from it */
    uint32_t incarnation;  /* of this node: counts its restarts, below 2^24; an agent that is started
                              again within one life of the launcher must get a larger one */
    uint16_t leader;       /* agent: the node that let it in, and leads as far as it knows */
    uint64_t first_step;   /* launcher: step_commit is wanted from this step on */
    uint64_t last_step;    /* the run is over when all steps below this one are committed */
    bool respawn;          /* start workers (agent) and agents (who leads) again when they end; at most
                              five times each, with back-off */
    bool keeps_end;        /* the last step is followed by a snapshot */
    bool launcher;         /* leads at first; always node 0 */
    uint64_t run;          /* its number: of what a node stored, that of another run is not believed */
    bool again;            /* another life of this node was in this run */
    bool takes_over;       /* launcher: in place of one that ended, with a larger incarnation; agents and
                              workers of the run live, and are kept */
    uint64_t kept_step;    /* likewise: newest step of which a snapshot is committed; 0: none */
    uint64_t past_epoch;   /* of who may lead: the newest view that earlier lives of the run are known to have
                              had; 0: none. Those of this one come after it, whatever its holders remember */
};

/* ---- events: what happened ----------------------------------------------------------------------------- */

enum keel_event_kind {
    KEEL_EVENT_START,          /* first of all; `data` is what keel_env.persist stored last, or empty */
    KEEL_EVENT_TICK,           /* the timer that env.timer asked for */
    KEEL_EVENT_MESSAGE,        /* authenticated `data` from `node` */
    KEEL_EVENT_WORKER_READY,   /* `local`: device open, kernels built, listening at `address` */
    KEEL_EVENT_WORKER_BEAT,    /* `local` lives; progress counter in `value` */
    KEEL_EVENT_WORKER_STEP,    /* `record` is committed on `local` */
    KEEL_EVENT_WORKER_SHARD,   /* `summary` of snapshot (`value` = step, `attempt`) is durable */
    KEEL_EVENT_WORKER_ACCUSES, /* `local` says rank `rank` of epoch `value` is gone (`cause`) */
    KEEL_EVENT_WORKER_EXIT,    /* process of `local` ended (pidfd) */
    KEEL_EVENT_NODE_EXIT,     /* launcher, or who leads: the agent of `node` ended, of incarnation `value` (0:
                                 whichever was there) */
    KEEL_EVENT_WORKER_DONE,   /* `local` has finished all steps and closed */
    KEEL_EVENT_WORKER_NOTE,   /* `local` has something to say for events.jsonl: JSON object in `data` */
    KEEL_EVENT_WORKER_FAILED, /* `local` gives up: status in `value`, detail text in `data` */
    KEEL_EVENT_STOP,          /* launcher, or who leads: the user asks for an orderly end (SIGINT) */
    KEEL_EVENT_LEADER,        /* agent: a process begins to lead, and has as long to be heard as any */
    KEEL_EVENT_PAST, /* who leads, where others may: what the next one must know, in `data`, as of step
                        `value`; see keel_env.past */
    KEEL_EVENT_DRAIN /* who leads: `node` is to leave the run in order (value 1), or to come back (0). Who
                        takes over may not know yet what was asked before, and takes none then: whoever
                        wants it looks by keel_node_away whether it is asked, and asks again */
};

struct keel_node_event {
    enum keel_event_kind kind;
    uint16_t node;
    uint16_t rank;
    uint8_t local;
    enum keel_cause cause;
    uint64_t value, attempt;
    struct keel_address address;
    const struct keel_step_record *record;    /* borrowed during the call */
    const struct keel_shard_summary *summary; /* likewise */
    const uint8_t *data;                      /* likewise */
    uint32_t bytes;
};

/* ---- environment: all effects -------------------------------------------------------------------------- */

struct keel_bitset; /* control/bitset.h */

enum keel_drain_news {
    KEEL_DRAIN_LEFT,  /* its agent has ended */
    KEEL_DRAIN_WAITS, /* it stays until others have come */
    KEEL_DRAIN_OVER,  /* it may come back, or stay */
    KEEL_DRAIN_HOLDS  /* it stays until other holders of the view are there: too few would be left */
};

struct keel_env {
    void *context;
    uint64_t now_ns; /* monotonic, the same for the whole call */
    /* keel_node_room_bytes of memory, for the time of a call: views of the largest run are too long for a
     * stack. Several nodes of one thread may have the same; a small run writes little of it. */
    void *room;
    uint64_t (*random)(void *context);
    /* Send to a node; may be lost, repeated or reordered. Never fails visibly. */
    void (*send)(void *context, uint16_t node, const uint8_t *data, uint32_t bytes);
    /* Deliver a TICK at `deadline_ns`; replaces the earlier one. */
    void (*timer)(void *context, uint64_t deadline_ns);
    /* Store durably before anything that was sent in this call goes out. False: there is no room for it now.
     * Nothing is answered then; the node asks again as long as a change of the view is wanted. */
    bool (*persist)(void *context, const uint8_t *data, uint32_t bytes);
    /* Agent: hand the view to a local worker. */
    void (*tell_view)(void *context, uint8_t local, const struct keel_view *view);
    /* Agent: ask a local worker for an orderly end: it finishes the step and says DONE. */
    void (*tell_stop)(void *context, uint8_t local);
    /* Agent: start a local worker (the first time too, from START) or kill it. WORKER_EXIT follows a kill.
     * Every other event about a worker must be about the incarnation started last. */
    void (*worker_start)(void *context, uint8_t local, uint32_t incarnation);
    void (*worker_kill)(void *context, uint8_t local);
    /* Launcher, or who leads: start the agent of `node` again, or let one in, after its NODE_EXIT, or when it
     * was silent for five timeouts where the leader moves, and a back-off. NULL: whoever started the agents
     * does that. */
    void (*node_start)(void *context, uint16_t node, uint32_t incarnation);
    /* Leader: write the manifest of a snapshot whose shards are all durable. Of the last step it may have
     * been written when another led: then nothing is to be done. */
    void (*snapshot_commit)(void *context, uint64_t step, uint64_t attempt,
                            const struct keel_shard_summary *shards, uint32_t count);
    /* Leader: this attempt of a snapshot will not be committed any more (the view changed, or a later step
     * was committed first), though the shards of these ranks are durable. Remove them, unless
     * snapshot_commit was already called for this attempt. */
    void (*snapshot_drop)(void *context, uint64_t step, uint64_t attempt, const struct keel_bitset *ranks);
    /* Leader: a step is committed; called once per step, ascending; without a gap unless
     * nobody alive has the record any more, or who leads lacked more than agents keep. A new leader begins
     * with steps that the last one delivered, if that was told to nobody; and one that does not know yet that
     * another leads may call it too. It is the same record. */
    void (*step_commit)(void *context, const struct keel_step_record *record);
    /* Leader: another led before, and this is what it said last that the next one must know, as far as it
     * came here (0 bytes: nothing did). Of steps behind that, step_commit is called for those whose records
     * are here, though they were delivered. Before any step. NULL: nobody asks. */
    void (*past)(void *context, const uint8_t *data, uint32_t bytes);
    /* Leader: two ranks disagree on the bits of a step. */
    void (*mismatch)(void *context, const struct keel_step_record *a, const struct keel_step_record *b);
    /* Leader: the view changed. Lost are the members of the old view whose (node, local, incarnation) is
     * not in the new one; `old_view` has epoch 0 for the first view of this launcher's life.
     * `evidence_ns`: when the first evidence for the change came; `alive_ns`: the last sign of life, before
     * that, of the rank that it is about (0: none was heard, or none is lost). */
    void (*view_change)(void *context, const struct keel_view *old_view, const struct keel_view *new_view,
                        enum keel_cause cause, uint64_t alive_ns, uint64_t evidence_ns);
    /* Leader: no plan is for so few as are left: no view begins before others come. `ranks` are there,
     * `fewest` have a plan. Once for each time. */
    void (*shortage)(void *context, uint16_t ranks, uint16_t fewest);
    /* Who leads: what became of a node that is to leave (DRAIN). Of one that stays for now:
     * `ranks` would be left without it, and the smallest plan is for `fewest`, or `ranks` holders, and a
     * majority is `fewest`; once for each reason, and once more when it is asked for again. NULL: nobody
     * asks. */
    void (*drain)(void *context, uint16_t node, enum keel_drain_news news, uint16_t ranks, uint16_t fewest);
    /* Leader: a note of a worker arrived: each once while the same node leads, and an agent's in their
     * order. Lost are only those that an agent had not handed over when it died, or of more than 64
     * or 8 KiB that wait. */
    void (*note)(void *context, uint16_t node, uint8_t local, const uint8_t *data, uint32_t bytes);
    /* A holder, where there are three or more: a place of so many bytes for what who leads keeps, while this
     * node leads or stands for it: zeroed at first, and the same each time. NULL: there is none, and another
     * leads. */
    void *(*lead_place)(void *context, size_t bytes);
    /* Leader: a number that nodes have in common which fail together (a host, a rack). NULL: each node fails
     * by itself. */
    uint32_t (*domain)(void *context, uint16_t node);
    /* The run is over for this node (finished, stopped, failed, launcher lost): its workers are gone or
     * were killed; end after this call. Called once. */
    void (*finish)(void *context, enum keel_status status, const char *detail);
    /* One line of trace for people and for comparing replays. */
    void (*trace)(void *context, const char *line);
};

/* ---- the function -------------------------------------------------------------------------------------- */

/* Caller's storage of a fixed size: an agent's, one's that holds the register, or a launcher's. Zeroed, or of
 * a node of the same kind before. It has room for the largest run, of which a smaller one writes nothing:
 * from keel_alloc (memory.h) that takes no memory. */
struct keel_node;
size_t keel_node_bytes(const struct keel_node_config *config);
enum keel_status keel_node_init(struct keel_node *node, const struct keel_node_config *config);

size_t keel_node_room_bytes(void); /* keel_env.room */

/* Take one event. Returns OK, or INVALID for an event that makes no sense (a malformed message is dropped
 * with a trace, not an error). Asserts its invariants. */
int keel_node_step(struct keel_node *node, const struct keel_env *env, const struct keel_node_event *event);

/* How far the run has come, as an agent knows it: for workers that are started again. */
struct keel_node_progress {
    bool known, has_saved;
    uint64_t recorded; /* known: steps up to this one are delivered, */
    uint64_t saved;    /* has_saved: and the newest snapshot of which its workers handed over shards */
};
void keel_node_progress(const struct keel_node *node, struct keel_node_progress *out);

/* Agent: when the leader was heard last, or a silence that was this node's own ended. */
uint64_t keel_node_leader_ns(const struct keel_node *node);

/* Who leads, as far as this node knows: itself only when it does. KEEL_NODE_NONE: it led, and waits for
 * another to. */
#define KEEL_NODE_NONE UINT16_MAX
uint16_t keel_node_leader(const struct keel_node *node);
/* An agent that may lead: those that do, or may, as far as it knows; returns how many. */
enum { KEEL_NODE_CANDIDATES_MAX = KEEL_HOLDERS_MAX + 1 };
uint32_t keel_node_candidates(const struct keel_node *node, uint16_t out[KEEL_NODE_CANDIDATES_MAX]);

/* Of who leads: how it stands with a node that is to leave, or to come back (DRAIN). All false of another. */
struct keel_node_away {
    bool settled; /* it is known what was asked of who led before: else a wish is not heard yet */
    bool asked;   /* the node is to be away */
    bool told;    /* that it is, or is not, is known to all nodes that are heard, and to a majority of the
                   holders, or where one node holds it to one other at least: whoever leads next knows it */
    bool left;    /* asked: and its agent has ended */
    bool stays;   /* asked: it cannot leave yet, for `why` (DRAIN_WAITS, DRAIN_HOLDS); else this is nothing */
    enum keel_drain_news why;
    uint16_t left_count, fewest; /* as keel_env.drain tells it */
};
void keel_node_away(struct keel_node *node, uint64_t now_ns, uint16_t which, struct keel_node_away *out);

/* Is a worker of `which` a member of the newest view that this node knows? */
bool keel_node_has_member(const struct keel_node *node, uint16_t which);

KEEL_API_END

#endif
