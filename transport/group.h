/* group.h - the insides: endpoint, sessions (one per connection), group, operations and their legs.
 *
 * Two kinds of field. "progress": touched by the progress thread alone, so without a lock. "lock": guarded
 * by the endpoint's one lock; it is held for a few instructions, never while the fabric or user memory is
 * touched. Atomics are written by the progress thread and read by anybody. */
#ifndef KEEL_TRANSPORT_GROUP_H
#define KEEL_TRANSPORT_GROUP_H

#include "line.h"
#include "tree.h"

#include <keel/thread.h>
#include <stdatomic.h>

struct keel_leg;

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
    struct keel_group *group; /* while it is dialing, proving or up */
    struct keel_session *next, *previous;
    struct keel_line *link;
    enum keel_session_state state;
    uint32_t rank; /* of the other side, once known */
    uint32_t to;   /* incoming: the rank that it called */
    uint64_t epoch;
    uint8_t challenge[KEEL_CHALLENGE_BYTES], theirs[KEEL_CHALLENGE_BYTES];
    uint32_t due; /* bit per kind of message without operation that is to be sent */
    enum keel_refusal refusal;
    uint16_t accused;     /* of the farewell: a lost rank + 1, or 0 */
    uint64_t deadline_ns; /* when it is dropped (called, leaving) */
    uint64_t retry_ns;    /* when to send again after EAGAIN; 0: not waiting */
    uint64_t stuck_ns;    /* when EAGAIN began; 0: it has not */
};

/* The first message of an operation that has not begun here. */
struct keel_early {
    struct keel_early *next;
    struct keel_message message;
    uint8_t payload[];
};

enum keel_peer_state { KEEL_PEER_ABSENT, KEEL_PEER_UP, KEEL_PEER_LEFT, KEEL_PEER_LOST_STATE };

/* What the group knows of a rank. All progress but heard_ns. */
struct keel_peer {
    enum keel_peer_state state;
    struct keel_session *session; /* up, or being dialed */
    enum keel_status parting;     /* left: what operations with it end with */
    bool needed;                  /* an operation wants it */
    uint64_t redial_ns;
    struct keel_leg *work, *work_last; /* legs with something to send, first come first served */
    struct keel_early *early;
    uint32_t early_count;
    _Atomic uint64_t heard_ns;
};

enum keel_operation_kind {
    KEEL_OPERATION_REDUCE = 1,
    KEEL_OPERATION_BROADCAST,
    KEEL_OPERATION_ALL_GATHER,
    KEEL_OPERATION_SEND,
    KEEL_OPERATION_RECEIVE,
    KEEL_OPERATION_BARRIER
};

/* An operation towards one rank: what goes, what comes. Set at begin, then progress. */
struct keel_leg {
    struct keel_operation *operation;
    uint32_t rank;
    bool used, queued, first_sent, first_got, settled;
    struct keel_leg *next_work, *previous_work;
    uint32_t in_flight; /* sends that lend user memory */
    /* bytes that go: a contribution, or the result slice summed here */
    const uint8_t *body;
    uint64_t body_bytes, body_ready, body_sent;
    /* bytes that come, straight to their place */
    uint8_t *into;
    uint64_t into_bytes, into_got;
    /* my tree nodes for the slice of that rank, chunk by chunk, all nodes of a chunk in turn */
    struct keel_slice give;
    uint64_t give_chunks, give_chunk, granted;
    uint32_t give_nodes, give_node;
    /* tree nodes of that rank for my slice */
    uint64_t take_chunks, take_chunk, grant, grant_told;
    uint32_t take_nodes, take_node;
};

struct keel_operation {
    struct keel_group *group;
    enum keel_operation_kind kind;
    uint16_t lane; /* point-to-point: 1 upwards, 2 downwards in rank; else 0 */
    uint64_t sequence, signature;
    struct keel_leg *legs; /* rank_count */
    uint32_t leg_count;
    uint32_t open_legs; /* progress */
    bool ended;         /* progress: outcome is published */
    bool linked;        /* progress: in the group's table */
    struct keel_operation *next_in_table;
    struct keel_operation *next_submitted;            /* lock */
    struct keel_operation *next_live, *previous_live; /* lock: all that are not freed */
    bool done;                                        /* lock */
    enum keel_status status;                          /* lock */
    _Atomic uint64_t awaited, unbegun;                /* bit per rank */
    /* exact sum; progress */
    const float **parts;
    float *result;
    struct keel_slice mine;
    uint64_t chunk_floats, chunks, summed;
    uint32_t begun_legs;
    bool eager;
    float *staging;
    uint64_t staging_bytes, window;
    struct keel_operation *next_waiting;
};

enum { KEEL_TABLE_SLOTS = 64 };

struct keel_group {
    struct keel_endpoint *endpoint;
    uint64_t epoch;
    uint32_t rank, rank_count;
    struct keel_address addresses[KEEL_GROUP_RANKS_MAX];
    struct keel_tree_plan plan;
    uint32_t node_count[KEEL_GROUP_RANKS_MAX], node_start[KEEL_GROUP_RANKS_MAX]; /* into leaf_of */
    uint16_t leaf_of[KEEL_GROUP_SHARDS_MAX];  /* leaves, by rank, then by node */
    uint16_t stage_of[KEEL_GROUP_SHARDS_MAX]; /* leaf of another rank: its place in staging */
    uint32_t stage_count, most_nodes;
    /* progress */
    struct keel_peer peers[KEEL_GROUP_RANKS_MAX];
    struct keel_operation *table[KEEL_TABLE_SLOTS];
    struct keel_operation *waiting, **waiting_last; /* for staging, in order */
    uint64_t staging_bytes;
    uint16_t accused;                            /* rank lost last + 1, or 0 */
    uint32_t active;                             /* operations begun and not ended */
    uint64_t close_ns;                           /* when closing stops waiting; 0: not closing */
    const float *sources[KEEL_GROUP_SHARDS_MAX]; /* scratch of a sum */
    /* lock */
    struct keel_operation *live;
    uint32_t live_count, waiters;
    bool revoked, detached, has_lost;
    uint32_t lost_rank;
    void (*on_lost)(void *context, uint32_t rank);
    void *on_lost_context;
};

struct keel_endpoint {
    struct keel_lines lines;
    struct keel_address address;
    struct keel_thread thread;
    int wake_fd;
    bool has_key;
    uint8_t key[KEEL_KEY_BYTES];
    /* progress */
    struct keel_group *current; /* as far as the progress thread has got */
    struct keel_session *sessions;
    bool seen_epoch;
    uint64_t current_epoch; /* newest that was current, open or not */
    uint64_t past_epoch;    /* closed last, */
    uint16_t past_accused;  /* and whom it had lost: a rank + 1, or 0 */
    uint64_t tick_ns;       /* when something is due */
    _Atomic uint64_t stale_dropped;
    _Atomic uint32_t connections;
    /* lock */
    struct keel_mutex lock;
    struct keel_cond changed;
    struct keel_group *group; /* open */
    bool has_epoch, opening, closing, stopping, woken;
    uint64_t newest_epoch;
    struct keel_operation *submitted, **submitted_last;
};

/* endpoint.c */
void keel_endpoint_wake(struct keel_endpoint *endpoint);                 /* caller holds the lock */
void keel_endpoint_at(struct keel_endpoint *endpoint, uint64_t when_ns); /* progress: tick by then */

/* operation.c */
void keel_operation_free_all(struct keel_group *group); /* nobody uses the group any more */

/* session.c; progress thread */
extern const struct keel_line_calls keel_session_calls;
void keel_session_group_opened(struct keel_endpoint *endpoint, struct keel_group *group);
void keel_session_need(struct keel_group *group, uint32_t rank); /* an operation wants this rank */
void keel_session_tick(struct keel_endpoint *endpoint, uint64_t now_ns);
void keel_session_close_all(struct keel_endpoint *endpoint);
/* Say BYE on all sessions of the group; true once no user memory is lent any more (or time is up). */
void keel_session_group_closing(struct keel_group *group, uint64_t now_ns);
bool keel_session_group_closed(struct keel_group *group, uint64_t now_ns);

/* flow.c; progress thread */
void keel_flow_begin(struct keel_operation *operation);
/* A message of an operation: false when it breaks the rules. */
bool keel_flow_arrived(struct keel_group *group, uint32_t rank, const struct keel_message *message,
                       const uint8_t *payload);
void keel_flow_sent(struct keel_leg *leg);
/* Send one message of this leg. NOTHING: there is none to send now. */
enum keel_flow_send { KEEL_FLOW_SENT, KEEL_FLOW_NOTHING, KEEL_FLOW_LATER, KEEL_FLOW_BROKEN };
enum keel_flow_send keel_flow_send(struct keel_leg *leg, struct keel_line *link, bool *out_retry);
/* The rank will say nothing more: end what still awaits it with this status. */
void keel_flow_without(struct keel_group *group, uint32_t rank, enum keel_status status);
void keel_flow_end(struct keel_operation *operation, enum keel_status status);
void keel_flow_queue(struct keel_leg *leg);
void keel_flow_unqueue(struct keel_leg *leg);

/* reduce.c; progress thread, but for the first */
void keel_reduce_prepare(struct keel_operation *operation, const float *const *parts, float *result,
                         uint64_t count); /* any thread */
void keel_reduce_all_begun(struct keel_operation *operation);
bool keel_reduce_first(struct keel_leg *leg, const struct keel_message *message, const uint8_t *payload);
bool keel_reduce_part(struct keel_leg *leg, const struct keel_message *message, const uint8_t *payload);
void keel_reduce_advance(struct keel_operation *operation); /* sum what is there */
void keel_reduce_release(struct keel_operation *operation); /* its staging */
uint32_t keel_reduce_pack(const struct keel_leg *leg, uint8_t out[KEEL_EAGER_BYTES]);
const float *keel_reduce_chunk(const struct keel_leg *leg, uint32_t *out_bytes);

#endif
