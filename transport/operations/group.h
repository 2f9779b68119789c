/* group.h - private structures: endpoints, sessions (one per connection), groups, operations, and flows: what
 * an operation exchanges with one peer.
 *
 * Each field belongs to one of three kinds. "progress": only the thread that owns progress touches it
 * (endpoint.c: one thread at a time), without a lock. "lock": guarded by the endpoint's one lock, which is
 * held for a few instructions and never while connections or user memory are touched. Atomics are written by
 * the owner of progress and read by any thread. Fields without a word are set before the structure is shared.
 */
#ifndef KEEL_TRANSPORT_GROUP_H
#define KEEL_TRANSPORT_GROUP_H

#include "connection.h"
#include "plan.h"
#include "recorder.h"

#include <keel/thread.h>
#include <stdatomic.h>

struct keel_flow;

enum keel_session_state {
    KEEL_SESSION_CALLED,  /* incoming: nothing proven yet */
    KEEL_SESSION_DIALING, /* outgoing: waiting for the challenge */
    KEEL_SESSION_PROVING, /* outgoing: waiting for the welcome */
    KEEL_SESSION_EARLY,   /* incoming, proven, of an epoch that is not open here yet */
    KEEL_SESSION_UP,      /* part of the group */
    KEEL_SESSION_LEAVING  /* says its last word and waits for the other side; hears nothing */
};

/* One connection and what was said on it. All progress. */
struct keel_session {
    struct keel_endpoint *endpoint;
    struct keel_group *group; /* of the whole epoch; while it is dialing, proving or up */
    struct keel_session *next, *previous;
    struct keel_connection *link;
    enum keel_session_state state;
    uint32_t rank; /* of the other side, once known */
    uint32_t to;   /* incoming: the rank that it called */
    uint64_t epoch;
    uint8_t challenge[KEEL_CHALLENGE_BYTES], theirs[KEEL_CHALLENGE_BYTES];
    uint8_t members[KEEL_MEMBERS_BYTES]; /* of the dialer's group */
    uint8_t secret[KEEL_KEY_BYTES];      /* behind the challenge, until the ciphers are made */
    enum keel_cipher_kind cipher;
    struct keel_cipher *sealer; /* made, for what comes after our greeting */
    bool dialed;
    uint32_t due; /* bit per kind of message without operation that is to be sent */
    enum keel_refusal refusal;
    struct keel_losses losses; /* of the farewell */
    uint64_t deadline_ns;      /* when it is dropped (called, leaving) */
    uint64_t retry_ns;         /* when to send again after EAGAIN; 0: not waiting */
    uint64_t asked_ns;         /* of its last PING, to be told with the answer */
};

/* A message of an operation that has not begun here. */
struct keel_early {
    struct keel_early *next;
    struct keel_message message;
    uint8_t payload[];
};

/* Word of a disagreement, on its way. */
struct keel_notice {
    struct keel_notice *next;
    struct keel_message message;
    struct keel_differ differ;
};

enum keel_peer_state { KEEL_PEER_ABSENT, KEEL_PEER_UP, KEEL_PEER_LEFT, KEEL_PEER_LOST_STATE };

/* A rank of the epoch that an operation here wants, or that another rank reported. All progress but the
 * times. */
struct keel_peer {
    struct keel_peer *next; /* among the peers of the epoch */
    uint32_t rank;          /* in the epoch */
    enum keel_peer_state state;
    bool accused;                 /* somebody of the epoch has lost it */
    struct keel_session *session; /* up, or being dialed */
    enum keel_status parting;     /* left or lost: what operations with it end with */
    uint64_t redial_ns;
    uint32_t busy_dials; /* dials in a row for which there was no descriptor */
    bool busy;           /* on the epoch's list of those to whom something may be sent */
    struct keel_peer *next_busy;
    struct keel_notice *notices;
    struct keel_flow *work, *work_last; /* flows with something to send, first come first served */
    struct keel_early *early;
    uint32_t early_count;
    /* 0: never called. The last sign of its life, and when the last question was asked that it answered. */
    _Atomic uint64_t heard_ns, answered_ns;
    /* that it named last, or 0: for how many ms it was held up << 32 | hops << 16 | that one's rank + 1 */
    _Atomic uint64_t suspect;
};

/* A zero-copy send: the connection's handle of it until the memory is free again. */
struct keel_ticket {
    struct keel_flow *flow;
    uint32_t item;
};

/* An operation and one of its peers: what goes, what comes, how much may go (credit: grants). Set at begin,
 * then progress. An item is a step in one of the segments under way: slot * step_count + step. */
struct keel_flow {
    struct keel_operation *operation;
    struct keel_peer *_Atomic peer;   /* set when it first begins here; stays */
    uint32_t rank;                    /* in the group */
    const uint32_t *sends, *receives; /* steps of a segment, in order of their messages */
    uint32_t send_count, receive_count;
    /* of the sizes */
    uint32_t give_segments, take_segments; /* how many have messages to it, from it */
    uint64_t give_bytes, take_bytes;
    uint64_t give_count, take_count; /* messages */
    uint32_t opening_head, opening_tail;
    /* how far it is */
    bool queued, first_sent;
    _Atomic bool begun, settled; /* begun: its first message has come */
    struct keel_flow *next_work, *previous_work;
    uint32_t granted; /* segments below may be sent */
    uint32_t grant, grant_told;
    uint64_t give_left, take_left; /* messages */
    uint32_t in_flight, held;
    uint32_t busy; /* bit per ticket */
    struct keel_ticket tickets[KEEL_FLOW_SENDS];
    uint32_t head[KEEL_WINDOW_SEGMENTS], tail[KEEL_WINDOW_SEGMENTS]; /* by slot: SENDs that are ready */
};

/* A payload in the peer's memory that is read in place (zero copy), instead of from a TEMP. */
struct keel_held {
    const uint8_t *payload; /* NULL: nothing is held, the TEMP has it */
    uint32_t bytes;
    struct keel_flow *flow;
    struct keel_connection *connection; /* NULL: it was taken back, and nobody will ever have it */
    uint64_t kept;
};

/* Where a block, or the chunk of it that is in a segment, lies. */
struct keel_operation_piece {
    uint64_t at; /* bytes from the start of its space */
    uint32_t bytes;
    bool there; /* the block reaches into this segment */
};

/* How a space is cut into blocks. */
struct keel_cut {
    uint64_t share, total; /* bytes: of every block but those at the end; of all */
    const uint64_t *ends;  /* or, where blocks differ: the end of each */
};

struct keel_operation {
    struct keel_group *group;
    struct keel_plan *plan;
    struct keel_collective asked; /* the sizes that all is set for; kind COUNT: none */
    uint16_t lane;                /* point-to-point: 1 upwards, 2 downwards in rank; else 0 */
    uint64_t sequence;
    _Atomic uint64_t since_ns;       /* begun here, by progress */
    struct keel_signature signature; /* but for what goes between a pair */
    /* the data */
    uint64_t element_bytes, divisor; /* divisor: of an average, or 0 */
    const uint8_t **parts;           /* as many as there is room for in part_capacity */
    uint32_t part_count, part_capacity;
    uint8_t *result;
    struct keel_cut part_cut, result_cut;
    uint64_t *ends; /* tables of both cuts: 2 * rank_count, or NULL */
    uint32_t chunk_bytes, segment_count, window;
    bool tokens;                         /* messages without bytes are sent: a barrier */
    struct keel_operation_piece *pieces; /* by operand of a short schedule, or NULL: */
    bool pieces_known;                   /*   of the only segment */
    bool opening_known; /* how that begins lies behind the last slot, in the flows, and here: */
    uint32_t opening_ready, opening_last;
    /* progress: how far it is */
    uint32_t lowest;                     /* segments below are done */
    uint32_t left[KEEL_WINDOW_SEGMENTS]; /* steps of each slot that are not done */
    uint32_t *needs, *chain;             /* by item; chain: the next in a queue */
    uint8_t *state;                      /* by item: enum of engine.c */
    uint32_t ready, ready_last;          /* items to run */
    const void **leaves;                 /* of a COMBINE, while it runs */
    uint8_t *scratch;                    /* window * temp_count chunks, */
    struct keel_held *held;              /*   and what stands for one of them */
    uint32_t held_count;
    bool scratch_lendable;   /* it is transport memory */
    uint64_t scratch_bytes;  /* that there are */
    uint64_t scratch_held;   /* that are counted; lock */
    void *owned;             /* lent memory that goes with the operation if it fails */
    uint32_t slots;          /* that needs, chain and state have room for */
    struct keel_flow *flows; /* of the plan's peers, in order */
    uint32_t flow_count, open_flows;
    uint16_t record; /* its place in the recording */
    bool starting;   /* its first messages are about to go */
    bool waits_told; /* the recording says what it waits for */
    bool ended;      /* outcome is published */
    bool linked;     /* in the epoch's table */
    struct keel_operation *next_in_table;
    struct keel_differ differ; /* after MISMATCH; set before done */
    /* lock */
    struct keel_operation *next_submitted;
    struct keel_operation *next_live, *previous_live; /* all of the group that are not freed */
    enum keel_status status;                          /* set before done */
    _Atomic bool done;                                /* written by progress */
};

enum { KEEL_TABLE_SLOTS = 64, KEEL_CHOICES = 32 };

/* What the cost model said before. */
struct keel_algorithm_choice {
    enum keel_collective_kind kind;
    bool exact, by_rank;
    uint32_t root;
    uint64_t bytes;
    enum keel_algorithm algorithm; /* AUTO: nothing yet */
};

/* The group of an epoch, or one split off from it. A child uses the epoch's peers, table and limits. */
struct keel_group {
    struct keel_endpoint *endpoint;
    struct keel_group *whole;  /* the epoch's; itself unless it is a child */
    struct keel_group *parent; /* what it was split from, or NULL */
    uint32_t number;           /* within the epoch; 0: whole */
    uint16_t record;           /* its index in the recording */
    uint64_t identity;         /* the same on all its ranks, and of no other group */
    uint64_t epoch;
    uint32_t rank, rank_count;
    uint32_t shard_count;
    uint16_t *shard_rank;                /* shard_count */
    uint64_t map_hash;                   /* of both */
    uint64_t members_hash;               /* child: of its ranks in order; the epoch's are in `members` */
    uint8_t members[KEEL_MEMBERS_BYTES]; /* whole only: who it is (handshake.h) */
    uint16_t *host_of;                   /* rank_count: its host, numbered as they come */
    uint32_t node_count;                 /* tree nodes held here */
    uint16_t *to_whole, *from_whole;     /* child: rank in the epoch; rank of the epoch here, or NO_RANK */
    struct keel_cost_model costs;        /* whole only: what AUTO goes by, */
    uint16_t costs_hash;                 /*   for the others to compare */
    /* whole only; progress */
    struct keel_address *addresses; /* rank_count */
    struct keel_peer **peers;       /* rank_count; NULL until wanted */
    struct keel_peer *peer_list, *busy;
    struct keel_operation *table[KEEL_TABLE_SLOTS];
    struct keel_notice dispute; /* the last disagreement; its message is of kind 0 when there was none */
    uint32_t active;            /* operations begun and not ended */
    uint32_t held_count;        /* payloads of peers that these hold */
    uint64_t close_ns;          /* when closing stops waiting; 0: not closing */
    uint64_t look_ns;           /* when the next look for signs of life is due */
    uint64_t silence_ns;        /* without one for so long, lost; 0: not for that. Set at the start. */
    /* whole only; lock */
    struct keel_group *children;
    uint32_t split_count;                                   /* children there were */
    uint32_t closed_numbers[KEEL_SPLITS_MAX], closed_count; /* of those that are closed */
    uint32_t revoked_numbers[KEEL_SPLITS_MAX],
        revoked_count; /* of those that peers revoked before they were */
    uint64_t scratch_bytes;
    uint32_t operation_count; /* live, of all groups of the epoch */
    bool detached;
    void (*on_lost)(void *context, uint32_t rank);
    void *on_lost_context;
    /* lock */
    struct keel_group *next_child;
    struct keel_plan *plans;
    struct keel_algorithm_choice choices[KEEL_CHOICES];
    struct keel_operation *again[KEEL_CHOICES]; /* short ones that are over, by what they were asked */
    struct keel_operation *live;
    uint32_t waiters;
    _Atomic bool revoked;
    bool orphaned;        /* closed with what it was split from: only this is left, until it is closed too */
    bool revoked_for_all; /* not only closed: whoever connects hears of it, */
    bool revocation_due;  /*   and who is connected is still to */
    struct keel_losses lost; /* ranks of this group */
    bool guessed;            /* nothing speaks for the first of them: others do not hear of it */
    bool is_awaited;         /* whole: somebody gave up waiting for this rank */
};

enum { KEEL_NO_RANK = 0xffff };

struct keel_endpoint {
    struct keel_backends backends;
    struct keel_recorder *recorder; /* its operations: progress; its groups: lock */
    struct keel_address address;
    struct keel_thread thread;
    int wake_fd;
    bool has_key;
    uint8_t key[KEEL_KEY_BYTES];
    /* progress */
    struct keel_group *current; /* as far as progress has got */
    struct keel_session *sessions;
    bool seen_epoch;
    uint64_t current_epoch;                   /* newest that was current, open or not */
    uint64_t past_epoch;                      /* closed last, */
    uint8_t past_members[KEEL_MEMBERS_BYTES]; /* who it was, */
    struct keel_losses past_losses;           /* and whom it had lost, */
    struct keel_notice past_dispute;          /* and who had disagreed in it */
    uint64_t now_ns;      /* as this pass began, or one before: for what need not be finer */
    uint32_t idle_passes; /* passes since, in which nothing happened */
    uint64_t tick_ns;     /* when something is due */
    uint64_t spin_ns;     /* how long a waiter spins before it sleeps */
    uint64_t patience_ns; /* how long one looks again before others are offered the processor */
    uint64_t calm_ns;     /* until then nobody spins for longer than that */
    uint64_t events;      /* messages that came, sends that completed */
    _Atomic uint64_t stale_dropped, data_sent, data_copied;
    _Atomic uint32_t connections;
    _Atomic uint32_t vain_wakes; /* sleeps in a row that a descriptor ended at once, for nothing */
    /* lock */
    struct keel_mutex lock;
    struct keel_cond changed; /* an outcome, the group, or who owns progress */
    struct keel_cond parked;  /* for the progress thread, while others own progress */
    bool driving;             /* somebody owns progress */
    _Atomic uint32_t claims;  /* who waits to own it next, before all other callers; written under the lock */
    uint64_t drives;          /* so often a caller took it */
    bool wanted;              /* the thread is to have it next: connections want attention */
    bool thread_parked, thread_deep, thread_polling;
    uint64_t thread_until_ns;  /* when its sleep in poll ends */
    uint64_t lease_ns;         /* until then the thread leaves progress to waiters */
    _Atomic uint32_t sleepers; /* waiters that do not own progress; written under the lock */
    struct keel_group *group;  /* open */
    bool has_epoch, opening, closing, stopping, revoking;
    _Atomic bool mail; /* something of the above is new */
    bool woken;        /* the eventfd is written */
    uint64_t newest_epoch;
    struct keel_operation *submitted, **submitted_last;
};

/* endpoint.c: who owns progress */
void keel_endpoint_wake(struct keel_endpoint *endpoint); /* caller holds the lock: look at the mail */
void keel_endpoint_at(struct keel_endpoint *endpoint, uint64_t when_ns); /* progress: tick by then */
/* Caller holds the lock. True: it owns progress now, and must give it back. */
bool keel_endpoint_drive(struct keel_endpoint *endpoint);
/* Caller holds the lock, and waits until whoever owns progress has let go; no other caller gets it before.
 * True: it owns progress now, and must give it back; false: the deadline has passed. */
bool keel_endpoint_claim(struct keel_endpoint *endpoint, uint64_t deadline_ns);
/* Caller holds the lock and owns progress; `soon`: the thread is to look after what is under way. */
void keel_endpoint_undrive(struct keel_endpoint *endpoint, bool soon);
/* One round of progress, without the lock. Connections are the thread's: a stranger can hold it up there. */
void keel_endpoint_pass(struct keel_endpoint *endpoint, bool connections);
/* Caller owns progress and holds the lock, which is let go: take the mail. */
void keel_endpoint_mail(struct keel_endpoint *endpoint);
/* Caller owns progress: sleep until something may have come, or the deadline. */
void keel_endpoint_sleep(struct keel_endpoint *endpoint, uint64_t deadline_ns);

/* operation.c */
void keel_operation_destroy(struct keel_operation *operation);
void keel_operation_free_all(struct keel_group *group);            /* nobody uses the group any more */
void keel_operation_unlink_live(struct keel_operation *operation); /* caller holds the lock */
/* Caller holds the lock: it ended well, or never began, and is kept for the next. Returns one that there is
 * no room for, if any: the caller's to destroy. */
struct keel_operation *keel_operation_give_back(struct keel_operation *operation);
enum keel_status keel_collective_check(const struct keel_group *group, const struct keel_collective *what);
/* How many parts this rank gives; whether it gets a result. */
uint32_t keel_collective_gives(const struct keel_group *group, const struct keel_collective *what);
bool keel_collective_gets(const struct keel_group *group, const struct keel_collective *what);
/* As keel_operation_wait; the caller is one of the group's waiters already, and owns progress if `driving`,
 * else holds the lock. Neither afterwards. */
enum keel_status keel_operation_await(struct keel_operation *operation, uint64_t deadline_ns, bool driving);

/* group.c */
enum keel_status keel_group_check_map(uint32_t rank_count, uint32_t shard_count, const uint16_t *shard_rank);
enum keel_status keel_group_map(struct keel_group *group, uint32_t shard_count, const uint16_t *shard_rank);
void keel_group_destroy(struct keel_group *group);
/* Caller holds the lock: one waiter less. Whoever closes a group that is over waits for the last. */
void keel_group_leave(struct keel_group *group);
/* Caller holds the lock: a child of this number was here, and is closed. */
bool keel_group_has_closed(const struct keel_group *whole, uint32_t number);
/* choose.c: the algorithm that is asked for, or the cheapest. Without the lock. */
enum keel_status keel_choose_hosts(struct keel_group *group, const struct keel_group *whole);
enum keel_algorithm keel_choose(struct keel_group *group, const struct keel_collective *what);
uint64_t keel_choose_bytes(const struct keel_group *group, const struct keel_collective *what);
/* split.c: it has no waiters and no operations under way when this returns */
void keel_group_close_child(struct keel_group *child);
/* Caller holds the lock. rank: of this group (NO_RANK: not a member), lost to it; or of the epoch, and lost
 * to all its groups. */
void keel_group_note(struct keel_group *group, uint32_t rank);
void keel_group_note_lost(struct keel_group *whole, uint32_t rank);
/* Caller holds the lock. rank: of this group, where a wait ended that nobody is known to be guilty of. */
void keel_group_note_guess(struct keel_group *group, uint32_t rank);
/* Caller holds the lock. Its calls return REVOKED; `tell`: also on its other ranks. */
void keel_group_end(struct keel_group *group, bool tell);
/* What other ranks are told. Takes the lock. */
void keel_group_losses(struct keel_group *whole, struct keel_losses *out);
/* A peer says that the group of this number is revoked. Takes the lock. */
void keel_group_revoked_there(struct keel_group *whole, uint32_t number);
/* A group that is revoked and of which the peers are to hear, once; NULL: none. Takes the lock. */
struct keel_group *keel_group_next_revoked(struct keel_group *whole);
bool keel_group_over(const struct keel_group *group);

/* session.c; progress */
extern const struct keel_connection_calls keel_session_calls;
/* The peer of that rank of the epoch, made if it is new; NULL when there is no memory. */
struct keel_peer *keel_session_peer(struct keel_group *whole, uint32_t rank);
void keel_session_group_opened(struct keel_endpoint *endpoint, struct keel_group *group);
void keel_session_busy(struct keel_group *whole, struct keel_peer *peer); /* something may be sent to it */
/* The connection to this peer, if an operation's message may go now, before all others; else NULL. */
struct keel_connection *keel_session_ready(const struct keel_peer *peer);
/* Send what can be sent, dial who is wanted. May end operations. */
void keel_session_pump(struct keel_group *whole);
void keel_session_tick(struct keel_endpoint *endpoint, uint64_t now_ns);
bool keel_session_lingers(const struct keel_endpoint *endpoint); /* somebody has not read our farewell yet */
void keel_session_close_all(struct keel_endpoint *endpoint);
/* What is dialed or up is gone: its rank is lost. */
void keel_session_break(struct keel_session *session, const char *why);
void keel_session_ask(struct keel_session *session); /* for a sign of life, if it can be */
/* Say BYE on all sessions of the group; true once no user memory is lent any more (or time is up). */
void keel_session_group_closing(struct keel_group *group, uint64_t now_ns);
bool keel_session_group_closed(struct keel_group *group, uint64_t now_ns);
/* Break the connections to which this child has lent memory. */
void keel_session_break_lent(struct keel_group *child);
void keel_session_forget(struct keel_group *whole); /* frees the peers; nobody uses the group any more */

/* loss.c; progress. Ranks are those of the epoch. */
/* False: it is no such message. */
bool keel_losses_read(const uint8_t *payload, uint32_t bytes, struct keel_losses *out);
bool keel_losses_name(const struct keel_losses *losses, uint32_t rank);
/* Note the loss, and tell all who are connected. */
void keel_loss_spread(struct keel_group *group, uint32_t rank);
/* Its connection broke, or it is silent: its operations end with PEER_LOST, or CORRUPT if what came was
 * changed. */
void keel_loss_found(struct keel_group *group, uint32_t rank, enum keel_status status, const char *why);
/* Others have lost these. */
void keel_loss_heard(struct keel_group *group, const struct keel_losses *losses);
/* It said farewell, or refused this rank. */
void keel_loss_left(struct keel_group *group, uint32_t rank, const struct keel_losses *losses);

/* keepalive.c; progress */
void keel_keepalive_wake(struct keel_group *group); /* something is under way */
/* Called, or connected: from now on it has to give signs of life. */
void keel_keepalive_begin(struct keel_group *group, struct keel_peer *peer);
void keel_keepalive_heard(struct keel_peer *peer, uint64_t now_ns);
void keel_keepalive_left(struct keel_peer *peer); /* in order: its silence says nothing any more */
void keel_keepalive_answered(struct keel_peer *peer, uint64_t asked_ns);
/* Whom this rank waits for in vain: a rank of the epoch (NO_RANK: nobody), over how many ranks that is known,
 * and for how long that one has held somebody up. */
struct keel_suspect {
    uint32_t rank, hops;
    uint64_t held_ns;
};
/* In any operation; nothing that `but` said, or of itself. */
struct keel_suspect keel_keepalive_suspect(const struct keel_group *whole, const struct keel_peer *but);
/* An answer to this peer says so, and its answer is read. */
void keel_keepalive_tell(const struct keel_group *whole, const struct keel_peer *peer,
                         struct keel_message *out_message);
void keel_keepalive_told(const struct keel_group *whole, struct keel_peer *peer,
                         const struct keel_message *message);
/* Any thread. The same of one operation; but: NULL or as above. */
struct keel_suspect keel_keepalive_blamed(const struct keel_operation *operation, const struct keel_peer *but,
                                          uint64_t now_ns);
/* Any thread. How long the flow's rank has held the operation up, as far as it shows here: it gives no sign
 * of life, or has not begun and waits for nobody. 0: it does not. */
uint64_t keel_keepalive_held_ns(const struct keel_flow *flow, uint64_t now_ns);
/* All that had come was delivered after now_ns. */
void keel_keepalive_tick(struct keel_group *group, uint64_t now_ns);

/* operation_protocol.c; progress */
void keel_protocol_begin(struct keel_operation *operation);
/* A message of an operation: false when it breaks the rules. */
bool keel_protocol_arrived(struct keel_group *whole, struct keel_peer *peer,
                           const struct keel_message *message, const uint8_t *payload);
void keel_protocol_sent(struct keel_ticket *ticket);
/* Send one message to this peer. NOTHING: there is none to send now. */
enum keel_flow_send { KEEL_FLOW_SENT, KEEL_FLOW_NOTHING, KEEL_FLOW_LATER, KEEL_FLOW_BROKEN };
enum keel_flow_send keel_protocol_send(struct keel_peer *peer, struct keel_connection *link, bool *out_retry);
/* The rank has left and its connection is closed: what was lent to it is back. */
void keel_protocol_left(struct keel_group *whole, uint32_t rank);
/* The rank will say nothing more: end what still awaits it with this status. */
void keel_protocol_without(struct keel_group *whole, uint32_t rank, enum keel_status status);
void keel_protocol_end(struct keel_operation *operation, enum keel_status status);
/* The epoch closes: end what is under way. */
void keel_protocol_close(struct keel_group *whole);
/* Groups were revoked: tell their ranks, or one of them. */
void keel_protocol_revoked(struct keel_group *whole);
void keel_protocol_tell_revoked(const struct keel_group *group, struct keel_peer *peer);
/* A ready SEND lies in the flow, or a grant is to be told. */
void keel_protocol_queue(struct keel_flow *flow);
/* Child closing: end what it has under way, take it out of the table. */
void keel_protocol_close_child(struct keel_group *child);
/* The payload that is being delivered is read later; false: it is not kept for that. */
bool keel_protocol_hold(struct keel_flow *flow, struct keel_held *out);
bool keel_protocol_holds(const struct keel_held *held); /* it may be read */
bool keel_protocol_let_go(struct keel_held *held);      /* false: what was read does not count */
/* Before a long sleep: what is held is copied, since its sender may be what all wait for. */
void keel_protocol_rest(struct keel_group *whole);
bool keel_protocol_lends(const struct keel_group *child); /* a connection that stands still uses its memory */

/* trace.c: what the flight recorder is told; progress */
void keel_trace_began(struct keel_operation *operation);
void keel_trace_first(struct keel_operation *operation, const struct keel_flow *flow);
void keel_trace_segment(struct keel_operation *operation);
void keel_trace_ended(struct keel_operation *operation, enum keel_status status);
/* Progress is about to sleep: what everything under way waits for. */
void keel_trace_idle(struct keel_endpoint *endpoint);
/* Something came or went for it: what it waited for is no news any more. */
static inline void keel_trace_moved(struct keel_operation *operation)
{
    operation->waits_told = false;
}
/* What it waits for, in words; caller owns progress. */
void keel_trace_describe(struct keel_operation *operation, char *out, size_t out_bytes);

/* engine.c: the steps; progress */
/* Of the lowest segment: a message of this peer has not come; one for it may not go yet. */
bool keel_engine_awaits(const struct keel_flow *flow);
bool keel_engine_is_held(const struct keel_flow *flow);
/* More segments have room than the peer was told, by half a window at least, or all. */
bool keel_engine_grant_is_due(const struct keel_flow *flow);

void keel_engine_init(struct keel_operation *operation); /* any thread: flows' counts, once the data is set */
void keel_engine_start(struct keel_operation *operation);
/* A message for its place; false when it has none. */
bool keel_engine_take(struct keel_flow *flow, uint32_t segment, uint32_t ordinal, const uint8_t *payload,
                      uint32_t bytes);
/* The next message that may go; false when there is none now. Gone: it has been handed to the connection. */
struct keel_give {
    uint32_t item, segment, ordinal, bytes;
    const uint8_t *payload;
};
bool keel_engine_next(struct keel_flow *flow, struct keel_give *out);
void keel_engine_gone(struct keel_flow *flow, const struct keel_give *give, bool done);
void keel_engine_sent(struct keel_operation *operation, uint32_t item);
/* Nothing is held any more: where `copies`, because it lies in its TEMP. */
void keel_engine_let_go(struct keel_operation *operation, bool copies);
/* Small messages of segment 0 that may ride on the first one, copied; returns how many, and their bytes.
 * Packed: they have gone. */
uint32_t keel_engine_pack(const struct keel_flow *flow, uint8_t *out, uint32_t capacity, uint32_t *out_bytes);
void keel_engine_packed(struct keel_flow *flow, uint32_t count);
bool keel_engine_unpack(struct keel_flow *flow, uint32_t count, const uint8_t *payload, uint32_t bytes);

static inline uint32_t keel_group_to_whole(const struct keel_group *group, uint32_t rank)
{
    return group->to_whole != NULL ? group->to_whole[rank] : rank;
}

/* KEEL_NO_RANK: not a member. */
static inline uint32_t keel_group_from_whole(const struct keel_group *group, uint32_t rank)
{
    return group->from_whole != NULL ? group->from_whole[rank] : rank;
}

#endif
