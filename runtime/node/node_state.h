/* node_state.h - what a keel_node is inside, shared by node.c, node_views.c, node_agent.c, node_leader.c,
 * node_snapshots.c, node_leaving.c, node_children.c, node_holders.c, node_past.c and node_moves.c.
 *
 * node.c owns the entry, the clockwork and the register; node_views.c how a view comes from node to node;
 * node_agent.c the part that every node plays that does not lead, or has workers; node_leader.c the part of
 * the one that leads; node_snapshots.c its snapshots; node_leaving.c which nodes leave it; node_holders.c
 * which hold the register; node_moves.c who leads. Private to these. */
#ifndef KEEL_NODE_STATE_H
#define KEEL_NODE_STATE_H

#include "membership.h"
#include "node_notes.h"
#include "node_records.h"
#include "node_wire.h"
#include <stddef.h>

enum {
    KEEL_RESTARTS_MAX = 5,    /* in a row, of one worker, and of one agent: a long life is forgiven */
    KEEL_RESTARTS_EVER = 255, /* of one worker in its agent's life: they fill a byte of its incarnation */
    KEEL_SHARDS_PENDING = 4,  /* snapshots in flight, per worker and at the launcher */
    KEEL_RECORD_BURST = 64,   /* records sent again at once */
    KEEL_RECORDS_ASKED = KEEL_RECORDS_MAX / 4 * 3, /* of those that agents keep, by who was too far behind */
    KEEL_HOLDERS_TO_MOVE = 3 /* with so many the leader moves: with fewer none may be missing */
};

/* ---- agent --------------------------------------------------------------------------------------------- */

struct keel_local {
    enum keel_worker_state state;
    bool running; /* a process is there: from worker_start to WORKER_EXIT */
    bool killed;  /* by us; WORKER_EXIT is on its way */
    bool stop_told;
    enum keel_cause cause;
    enum keel_status failure;
    uint32_t incarnation, restarts, strikes;  /* strikes: restarts in a row */
    uint64_t started_ns, beat_ns, restart_ns; /* restart_ns: when OFF, not before */
    uint64_t sent_epoch, progress;
    uint64_t accused_epoch;
    uint16_t accused_rank;
    struct keel_address address;
};

struct keel_pending_shard {
    bool used;
    bool taken; /* the leader has it; the next one may want it again */
    uint64_t sent_ns;
    struct keel_wire_shard shard;
};

/* Of two snapshots of a worker or of a leader, was this one begun first? A later view may do earlier steps
 * again.
 */
static inline bool keel_snapshot_precedes(uint64_t attempt, uint64_t step, uint64_t other_attempt,
                                          uint64_t other_step)
{
    return attempt != other_attempt ? attempt < other_attempt : step < other_step;
}

struct keel_agent {
    struct keel_local locals[KEEL_WORKERS_PER_NODE];
    struct keel_pending_shard pending[KEEL_WORKERS_PER_NODE * KEEL_SHARDS_PENDING];
    struct keel_notes notes; /* that the leader lacks */
    uint32_t notes_made;
    uint64_t note_sent_ns; /* the oldest was sent then; 0: it was not */
    uint64_t sequence;
    bool report_due;
    uint64_t beat_ns;    /* next heartbeat */
    uint64_t leader_ns;  /* the leader was heard last */
    uint64_t next_step;  /* that the leader wants, as far as known: those before it are delivered */
    uint64_t first_step; /* of the run, as the leader says */
    uint64_t saved_step; /* newest of which a worker handed over its shard, if has_saved */
    bool has_saved;
    uint64_t behind_ns;     /* predecessor in the ring was heard last */
    uint16_t behind, ahead; /* ring neighbours by the view; 0: none */
    bool stopping, ending;
    bool leaving;    /* this node alone ends; by `end_ns` at the latest */
    bool over;       /* it has ended; on a node that leads, the leader still waits for others */
    uint64_t end_ns; /* kill what still runs then */
    enum keel_status end_status;
    char end_detail[KEEL_WIRE_DETAIL_BYTES];
    char failure_detail[KEEL_WIRE_DETAIL_BYTES]; /* of the first worker that FAILED */
    char lost_detail[KEEL_WIRE_DETAIL_BYTES]; /* of the newest failure that a restart was to cure; "" once a
                                                 worker is ready again */
};

/* ---- views -------------------------------------------------------------------------------------------- */

/* The newest view, as it is handed on. */
struct keel_view_news {
    struct keel_wire_view_name name; /* epoch 0: there is none */
    uint64_t base;                   /* `data` makes it from the view of this epoch; 0: no data */
    uint32_t data_bytes;
    uint64_t served_ns;    /* parts that were sent count from then on, */
    uint32_t served_bytes; /* and are so many bytes */
    uint8_t data[KEEL_WIRE_VIEW_BYTES];
};

/* A view that comes in parts, from its source. */
struct keel_view_fetch {
    struct keel_wire_view_name name; /* epoch 0: none does */
    uint16_t source;
    struct keel_bitset have, asked;  /* parts that came, and that were asked for last and did not */
    uint64_t asked_ns;               /* last; or a part came then */
    uint64_t heard_ns;               /* a part came last, or its source is new */
    uint16_t have_count, lack_count; /* as in struct keel_wire_view */
    uint16_t nodes[KEEL_NODES_MAX];
    uint8_t data[KEEL_VIEW_BYTES_MAX];
};

/* A message of the register that comes in parts. */
struct keel_register_parts {
    struct keel_bitset have; /* parts that came */
    struct keel_register_message message;
};

/* ---- who leads ----------------------------------------------------------------------------------------- */

enum keel_role {
    KEEL_FOLLOWS,
    KEEL_STANDS, /* a read phase is under way by which it would lead */
    KEEL_LEADS
};

/* A term is the ballot of the newest read phase that its leader completed, zero before its first: a ballot is
 * of one life of one node, so a term has one leader. */
struct keel_term {
    struct keel_ballot ballot; /* the highest that was heard of */
    uint16_t leader;           /* whose it is */
    enum keel_role role;
    uint64_t stand_ns;    /* not before */
    uint64_t resend_ns;   /* STANDS: ask again then */
    uint64_t answered_ns; /* one who leads no more was told so last */
    uint16_t asked;       /* the holder that was asked last who leads */
};

/* What who leads next must know, newest that was heard; opaque here. */
struct keel_past {
    uint64_t step; /* as of this one */
    uint64_t sent_ns;
    uint32_t bytes; /* 0: nothing was heard */
    uint8_t data[KEEL_PAST_BYTES_MAX];
};

/* Nodes that are to be away, as the newest that was heard has it (node_away.c). */
struct keel_away {
    uint64_t version; /* 0: none ever was */
    uint32_t count;   /* of the set */
    struct keel_bitset set;
};

/* ---- leader -------------------------------------------------------------------------------------------- */

struct keel_snapshot_set {
    bool used;
    uint64_t step, attempt;
    struct keel_bitset have; /* ranks whose shards are durable */
    uint32_t have_count;
    struct keel_shard_summary shards[KEEL_MEMBERS_MAX];
};

/* Who was active in the newest view in which a step was committed, as far as heard. */
struct keel_carriers {
    uint64_t epoch;                                              /* of it; 0: none was committed */
    uint32_t rows;                                               /* nodes from here on have none */
    uint32_t incarnation[KEEL_NODES_MAX][KEEL_WORKERS_PER_NODE]; /* plus one; 0: no carrier */
};

struct keel_leader {
    bool awaiting_joins;               /* no view of this leadership yet */
    bool took_over;                    /* another led before, in this life of the run */
    uint64_t first_epoch;              /* of the first view of this leadership; 0: none yet */
    uint64_t lead_ns;                  /* it began then */
    uint64_t announced_ns;             /* those who were not heard were told who leads last */
    uint64_t start_ns, first_ready_ns; /* start_ns: there were enough for a view last */
    bool short_told;                   /* of the present view: that too few are left for any plan */
    /* the change under way */
    bool changing;
    uint64_t change_ns, resend_ns, retry_ns, remind_ns;
    enum keel_cause change_cause;
    uint64_t alive_ns, evidence_ns;
    /* steps */
    uint64_t next_step;
    uint64_t front_step; /* highest committed in the present epoch, as far as heard */
    uint64_t hole_ns, hole_step, hole_asked_ns;
    uint64_t behind_ns; /* so many records were lacking that not all are kept any more, last; 0: never */
    /* What is known of who holds the records from step `held_from` on; 0: nothing. */
    uint64_t held_from, held_first; /* the lowest that is held, or one that is not above held_from */
    uint16_t held_by;               /* whose that is */
    bool carrier_left;              /* of them somebody is still at work, as far as the newest look says */
    uint16_t active_count, before_count; /* active members of the present view, and of that before */
    /* snapshots of the present epoch */
    bool committed_any;
    uint64_t committed_step;
    bool end_kept; /* that of the last step was handed over, in this view or an earlier one */
    /* end */
    bool stopping, ending;
    uint64_t stop_ns, over_ns, end_ns, end_sent_ns;
    uint16_t end_awaited; /* a node that was waited for last */
    enum keel_status end_status;
    char end_detail[KEEL_WIRE_DETAIL_BYTES];
    struct keel_bitset told;                      /* nodes that were told of the present view: most have it */
    struct keel_bitset informed;                  /* nodes that said that they have it */
    uint64_t view_ns;                             /* when it was committed */
    uint64_t holders_ns;                          /* are they all there? Looked at again then */
    uint64_t sought_ns;                           /* one who is silent was told who leads last, */
    uint16_t sought;                              /* this one */
    uint32_t reply_from[KEEL_REGISTER_ASKED_MAX]; /* whose `replies` are: the node plus one; 0: nobody's */
    /* Large: what is read of these was written, or is zero since the storage was new (keel_moves_clear). */
    struct keel_view earlier;    /* what the register held when it began; epoch 0: nothing */
    struct keel_view before;     /* the view that the present one replaced */
    struct keel_verdict verdict; /* of the newest look at members and newcomers (judge) */
    struct keel_carriers carriers;
    struct keel_snapshot_set snapshots[KEEL_SHARDS_PENDING];
    struct keel_register_parts replies[KEEL_REGISTER_ASKED_MAX];
    uint64_t notes[KEEL_NODES_MAX]; /* number of the newest that came, by node */
    struct keel_membership membership;
};

/* ---- who leads: agents that are to be started, or let in; and who is to leave -------------------------- */

struct keel_respawn {
    uint32_t count;       /* in a row */
    uint32_t incarnation; /* started last */
    uint64_t due_ns;      /* 0: none pends */
    uint64_t started_ns;  /* the present life; 0: since the launcher's start */
    /* Of one that is to leave and cannot yet (`told`): why, and how many would be left, of how many at least.
     */
    enum keel_drain_news why;
    uint16_t left_count, fewest;
};

struct keel_children {
    uint32_t count;           /* agents that are to be started again */
    uint64_t due_ns;          /* none of them before */
    struct keel_bitset told;  /* nodes that are to be away: that they cannot leave yet */
    struct keel_bitset ended; /* nodes without a process, as far as it is known */
    struct keel_bitset knows; /* nodes that said that they have the set of those that are to be away */
    uint64_t away_heard;      /* the newest version of it that anybody said to have */
    uint64_t drain_ns;        /* a node that waits to leave is looked at again then */
    struct keel_respawn nodes[KEEL_NODES_MAX];
};

/* ---- the node ------------------------------------------------------------------------------------------ */

/* Of a step: nothing of it is kept. */
struct keel_scratch {
    struct keel_wire_message in, out; /* decoded, to be sent */
    struct keel_wire_message sent;    /* what was encoded, read back */
    uint8_t bytes[KEEL_MESSAGE_BYTES];
};

struct keel_node {
    struct keel_node_config config;
    struct keel_times times;
    const struct keel_env *env;   /* during a step only */
    struct keel_scratch *scratch; /* likewise */
    uint64_t now_ns;              /* likewise */
    size_t lent_bytes;            /* likewise: of env->room */
    uint64_t wake_ns;             /* earliest deadline asked for in this step */
    uint64_t planned_ns;          /* the TICK asked for last; 0: none */
    bool started, finished;
    bool unstored; /* the register changed and could not be stored: no room */
    struct keel_records records;
    struct keel_agent agent;
    struct keel_term term;
    struct keel_past past;
    struct keel_away away;
    struct keel_leader *leader; /* NULL: it does not lead, nor stands */
    struct keel_view view;      /* newest committed one known */
    struct keel_view_news news;
    struct keel_view_fetch fetch;
    /* From here on of those who hold the register: the storage of others ends before it (keel_node_bytes). */
    struct keel_register reg;
    struct keel_register_parts ask; /* of the proposer */
    struct keel_children children;
    /* And from here on of the launcher: others are lent a place when they stand. */
    struct keel_leader place;
};
_Static_assert(offsetof(struct keel_node, view) <= 64 << 10, "what an agent keeps beside the view");

/* node.c */
static inline bool keel_node_due(const struct keel_node *node, uint64_t deadline_ns)
{
    return node->now_ns >= deadline_ns;
}
void keel_node_wake(struct keel_node *node, uint64_t deadline_ns); /* TICK then at the latest */
/* So much of env->room, for views and their bytes, which are too large for a stack: until the step ends, or
 * lent_bytes is set back to what it was before. Aligned for anything; not cleared. */
void *keel_node_lend(struct keel_node *node, size_t bytes);
/* Clear and address node->out; the caller fills `as` and sends. */
struct keel_wire_message *keel_node_message(struct keel_node *node, enum keel_wire_kind kind);
void keel_node_send(struct keel_node *node, uint16_t to);
void keel_node_trace(struct keel_node *node, const char *format, ...) __attribute__((format(printf, 2, 3)));
void keel_node_finish(struct keel_node *node, enum keel_status status, const char *detail);
/* Register: send the ask of the present phase to all holders; answers of this node count at once. */
void keel_node_ask_holders(struct keel_node *node);
/* Of what was committed, those who do not have it yet. */
void keel_node_remind_holders(struct keel_node *node);

static inline bool keel_node_leads(const struct keel_node *node)
{
    return node->term.role == KEEL_LEADS;
}
/* That have a plan: there is one, as keel_node_init saw. */
static inline uint16_t keel_node_fewest_ranks(const struct keel_node *node)
{
    uint16_t fewest = 1;
    while (node->config.plans[fewest] == 0)
        fewest++;
    return fewest;
}
/* Is the leader one that moves? */
static inline bool keel_node_moves(const struct keel_node *node)
{
    return node->config.holder_count >= KEEL_HOLDERS_TO_MOVE;
}
/* Those of the newest view known. Of a node that may hold the register. */
static inline const struct keel_view_holders *keel_node_holders(const struct keel_node *node)
{
    return keel_register_holders(&node->reg, &node->view.holders);
}

/* node_views.c */
/* Leader: node->view is new, and `old` was the one before. */
void keel_views_made(struct keel_node *node, const struct keel_view *old);
/* Tell one node of the view, which has that of `epoch`; where parts of it are with `source`. */
void keel_views_tell(struct keel_node *node, uint16_t to, uint64_t epoch, uint16_t source);
/* To these nodes, of which the first `have` have the view before, and through them to all of them. */
void keel_views_hand_on(struct keel_node *node, const uint16_t *nodes, uint16_t have, uint16_t lack);
void keel_views_message(struct keel_node *node, uint16_t from);
void keel_views_work(struct keel_node *node);

/* node_agent.c */
void keel_agent_adopt(struct keel_node *node, const struct keel_view *view);
void keel_agent_start(struct keel_node *node);
int keel_agent_event(struct keel_node *node, const struct keel_node_event *event);
void keel_agent_message(struct keel_node *node, uint16_t from);
void keel_agent_reset_timers(struct keel_node *node);
void keel_agent_turn_to_leader(struct keel_node *node);
void keel_agent_report_to(struct keel_node *node, uint16_t to);
void keel_agent_work(struct keel_node *node); /* all that is due now */

/* node_leader.c */
/* After what the register held: `earlier` of the leader's cleared state. */
void keel_leader_start(struct keel_node *node, uint64_t next_step);
void keel_leader_tell(struct keel_node *node, uint16_t to);
void keel_leader_stop(struct keel_node *node);                 /* the user asks for it */
void keel_leader_lose(struct keel_node *node, uint16_t which); /* its process ended */
void keel_leader_ask(struct keel_node *node); /* the holders for the present view: does this node lead yet? */
/* Who takes over has heard of each member of the view before, or knows that its node ended. */
bool keel_leader_hears_members(const struct keel_node *node);
/* Did this life of the run see its last step committed? */
bool keel_leader_has_delivered(const struct keel_node *node);
void keel_leader_message(struct keel_node *node, uint16_t from);
void keel_leader_reset_timers(struct keel_node *node);
void keel_leader_work(struct keel_node *node);
void keel_leader_register(struct keel_node *node, enum keel_register_outcome outcome);

/* node_snapshots.c */
void keel_snapshots_collect(struct keel_node *node, const struct keel_wire_shard *shard);
/* Those that are whole, and whose steps are delivered. */
void keel_snapshots_commit(struct keel_node *node);
void keel_snapshots_turn(struct keel_node *node); /* the view is new */

/* node_leaving.c */
/* A node is to leave when it can, or to stay. */
void keel_leaving_drain(struct keel_node *node, uint16_t which, bool away);
/* It is to be away already, and somebody asks for it once more: why it stays is told once more, as it is by
 * now. */
void keel_leaving_tell_again(struct keel_node *node, uint16_t which);
/* It is to leave, and no rank is there any more: its agent may end. */
bool keel_leaving_may_go(const struct keel_node *node, uint16_t which);
void keel_leaving_work(struct keel_node *node);

/* node_children.c: of who leads. */
void keel_children_begin(struct keel_node *node);                                    /* another led before */
int keel_children_end(struct keel_node *node, uint16_t which, uint64_t incarnation); /* NODE_EXIT */
void keel_children_work(struct keel_node *node);
/* It is in node->away since now, or no more. */
void keel_children_drain(struct keel_node *node, uint16_t which, bool away);
/* Its process has ended, though nobody saw it. */
void keel_children_see_ended(struct keel_node *node, uint16_t which);
/* Is it to be started again, and was not yet? */
bool keel_children_await(const struct keel_node *node, uint16_t which);
uint32_t keel_children_awaited(const struct keel_node *node);
/* It is wanted, and nobody came yet: whoever was there before is not told who leads, so that it ends. */
bool keel_children_want(const struct keel_node *node, uint16_t which);
/* It is silent: is that for too long where the leader moves? Then it counts as ended. */
bool keel_children_miss(struct keel_node *node, uint16_t which);

/* node_away.c */
/* Leader: a node is to be away, or to come back (DRAIN). */
int keel_away_ask(struct keel_node *node, uint16_t which, bool is_away);
/* Leader: a report of a node that has this version. */
void keel_away_report(struct keel_node *node, uint16_t from, uint64_t version);
/* `to` has this version: if it is older than ours, here is ours. */
void keel_away_answer(struct keel_node *node, uint16_t to, uint64_t version);
void keel_away_message(struct keel_node *node, uint16_t from);
/* Leader: it knows what who led before knew, as far as anybody can. Until then nobody is started again, who
 * may be to be away. */
bool keel_away_settled(const struct keel_node *node);

/* node_holders.c */
/* Of the next view, by who is there; those of the present one where that is as well. */
void keel_holders_choose(const struct keel_node *node, const struct keel_view_holders *now,
                         struct keel_view_holders *out);
/* A view is wanted for their sake alone: one is lost, or more could hold it. */
bool keel_holders_due(const struct keel_node *node);
/* Is it there, with the disk by which it is named? */
bool keel_holders_lives(const struct keel_node *node, const struct keel_view_holder *holder);

/* node_past.c */
int keel_past_take(struct keel_node *node, const struct keel_node_event *event);
void keel_past_message(struct keel_node *node, uint16_t from);
/* Leader: what is due. */
void keel_past_work(struct keel_node *node);
/* Leader: this node begins to lead, and nothing was delivered yet. */
void keel_past_hand_over(struct keel_node *node);
/* Leader: deliver steps from `from` on, below `to`, again that another did, and whose records are here. */
void keel_past_replay(struct keel_node *node, uint64_t from, uint64_t to);

/* node_moves.c */
/* What is zero, or was in use: as far as it was written, which is as far as that run was large. */
void keel_moves_clear(struct keel_leader *leader);
/* What the holders answered to this node. */
void keel_moves_register(struct keel_node *node, enum keel_register_outcome outcome);
/* May it be answered who asks to read? Then nobody else leads, as far as this holder knows. */
bool keel_moves_may_read(const struct keel_node *node, uint16_t from);
/* A read phase of this leader is over: its ballot is the term. */
void keel_moves_raise(struct keel_node *node);
/* A message from who leads: false when a later one is known. */
bool keel_moves_follow(struct keel_node *node, uint16_t from, const struct keel_ballot *term);
/* A report named this term: false when another leads by it, and this node does not any more. */
bool keel_moves_hear(struct keel_node *node, const struct keel_ballot *term);
void keel_moves_work(struct keel_node *node);
/* Of a node that leads where the leader moves: which lives of nodes it may start. Those of two leaders
 * differ, and those of a later one are greater. 0: it led too often. */
uint32_t keel_moves_lives(const struct keel_node *node);

#endif
