/* membership.h - failure detection: what the leader knows of all nodes and workers.
 *
 * Owns what agents reported last (state, not events: lost and repeated reports do no harm), when each node
 * was heard, who accuses whom, and the rules by which they are evicted. Evidence alone changes nothing: this
 * file says who should leave and who could join, and node_leader.c commits a view that does it. Knows nothing
 * of messages in flight, of the register or of steps. */
#ifndef KEEL_MEMBERSHIP_H
#define KEEL_MEMBERSHIP_H

#include "node_wire.h"

/* All that is derived from the user's one timeout. */
struct keel_times {
    uint64_t beat_ns;    /* timeout / 10: heartbeats, and every retransmission */
    uint64_t gather_ns;  /* timeout / 50, within 5 .. 20 ms: evidence that comes together makes one change */
    uint64_t record_ns;  /* timeout / 64: a record that the launcher lacks for so long is sent by others */
    uint64_t probe_ns;   /* timeout / 4: an accused node has so long to answer */
    uint64_t silence_ns; /* timeout: silent for so long is dead */
    uint64_t backoff_ns; /* timeout / 20: before the first restart; doubles */
    uint64_t grace_ns;   /* 6 x timeout: for the others, after the first worker is ready; for a stop */
    uint64_t launcher_timeout_ns; /* 5 x timeout: an agent without its launcher ends */
    uint64_t join_wait_ns;        /* 60 x timeout: some worker must be ready by then */
};
void keel_times_derive(uint64_t timeout_ns, struct keel_times *out);

struct keel_seen_node {
    bool heard;  /* since this node leads */
    bool exited; /* its process ended; until a higher incarnation is heard */
    bool ended;  /* it said that it ends */
    uint32_t incarnation;
    uint64_t sequence, heard_ns;
    uint64_t first_record; /* lowest step record it holds that the launcher lacks */
    uint16_t silent_node;  /* whom it accuses of silence */
    uint32_t disk;         /* as in struct keel_wire_status */
    uint8_t worker_count;
    struct keel_wire_worker workers[KEEL_WORKERS_PER_NODE];
    uint64_t alive_ns[KEEL_WORKERS_PER_NODE]; /* newest report of each as running, by its agent's pidfd */
    char detail[KEEL_WIRE_DETAIL_BYTES];      /* why it lost workers; "": it says nothing */
};

struct keel_membership {
    uint16_t node_count; /* nodes[0 .. node_count) may be heard of; 0 is the launcher, without workers */
    uint16_t judged;     /* what is known of members is written below it */
    uint32_t done_count; /* workers of all nodes that said last that they are DONE */
    uint64_t join_ns;    /* first time that a newcomer waited; 0: none */
    struct keel_bitset leaving; /* nodes whose members go, and that nobody joins from */
    /* What was seen at the last look is another since: */
    bool changed;                   /* look at once: a process ended or was started, the view is another */
    bool stale;                     /* look soon: a report says something else than the one before */
    uint64_t looked_ns, look_epoch; /* when that was, and at the members of which view */
    /* Large; written as far as there are members and nodes, and zero behind. About the members of the present
     * view, by index, cleared when it changes: */
    enum keel_cause evicted[KEEL_MEMBERS_MAX];
    uint64_t evicted_ns[KEEL_MEMBERS_MAX];
    uint64_t alive_ns[KEEL_MEMBERS_MAX];   /* of the evicted: last sign of life; 0: none was heard */
    uint64_t accused_ns[KEEL_MEMBERS_MAX]; /* first accusation by a peer; 0: none */
    struct keel_seen_node nodes[KEEL_NODES_MAX];
};

struct keel_verdict {
    struct keel_bitset gone;  /* members to leave, by index */
    enum keel_cause cause;    /* of the first of them */
    uint64_t evidence_ns;     /* first evidence against an active one; 0: none is gone */
    uint64_t alive_ns;        /* its last sign of life; 0: none was heard */
    bool active_gone;         /* an active member is among the gone */
    struct keel_bitset done;  /* members that finished all steps */
    uint16_t done_count;      /* of them */
    uint16_t remaining;       /* active members neither gone nor done */
    uint16_t spares;          /* spare members neither gone nor done */
    uint16_t overdue;         /* members neither gone nor done whose node is silent for half of `silence` */
    uint16_t coming;          /* workers that may still become ready, on nodes that are heard */
    uint16_t unheard;         /* nodes that are silent or were never heard, not known to be dead */
    struct keel_bitset probe; /* nodes to be asked now: one of theirs is accused */
    bool probes;              /* there are such */
    uint64_t wake_ns;         /* look again then at the latest; UINT64_MAX: nothing pends */
    uint64_t until_ns; /* so long it holds if no node is silent that was not, and nothing else is heard */
    uint16_t join_count;
    struct keel_member joins[KEEL_MEMBERS_MAX]; /* join_count of them; what follows is not written */
};

/* *m is zeroed, or was in use before. All nodes were started under this incarnation: what a process that
 * ended unheard had sent is late, and who is started in its place is told from it. */
void keel_membership_init(struct keel_membership *m, uint16_t node_count, uint32_t incarnation,
                          uint64_t now_ns);

/* What a restart does not cure, as the first worker that reports it says (its detail is borrowed till the
 * next status): of a member of the view, as who left earlier did not end the run; of any, where `of` is NULL.
 */
enum keel_status keel_membership_failure(const struct keel_membership *m, const struct keel_view *of,
                                         const char **out_detail);

/* Take a status report; false when it is stale (an older incarnation or sequence, a process known to be
 * dead) and changed nothing. */
bool keel_membership_report(struct keel_membership *m, uint16_t node, const struct keel_wire_status *status,
                            const struct keel_times *times, uint64_t now_ns);
/* The process of a node ended: certain. */
void keel_membership_node_exit(struct keel_membership *m, uint16_t node);
/* It had exited, was started again under a higher incarnation, and is not heard yet. */
void keel_membership_node_started(struct keel_membership *m, uint16_t node, uint32_t incarnation,
                                  uint64_t now_ns);
/* The view changed: evidence was about members of the old one. */
void keel_membership_clear_evidence(struct keel_membership *m);
/* Those of leaving nodes that no view is without yet stay, and their nodes with them: true, if there are
 * such.
 */
bool keel_membership_stay(struct keel_membership *m, const struct keel_view *view);
/* This process itself was stopped for a while: what it did not hear proves nothing. */
void keel_membership_reset_timers(struct keel_membership *m, uint64_t now_ns);

/* Find suspects among the members of `view` and list who could join. Rules, first that fits:
 *  1 done: the worker said so; it leaves with the next change, and at once when somebody accuses it
 *  2 its node is leaving                                                -> gone
 *  3 its process ended, or its node's process, or was started again       -> gone
 *  4 its node was silent for `silence`, or for half of it and its ring successor says the same -> gone
 *  5 accused by active peers of this epoch, and its node silent for `probe` since -> the node's all gone
 *  6 accused although it lives, for `probe` by at least half of the other active ranks, or for `silence` by
 *    anyone: a network matter. Only the most accused goes (highest rank among equals), and its own
 *    accusations with it.
 * When these leave nobody, members that are alive and ready stay after all, and those that were only silent
 * are given `silence` again from now on.
 * One pass over members, nodes and their workers, whoever accuses whom. */
void keel_membership_suspect(struct keel_membership *m, const struct keel_view *view,
                             const struct keel_times *times, uint64_t now_ns, struct keel_verdict *out);

/* Does the verdict of the last look still hold, which was at `view`? A look is a pass over all; this is asked
 * after every event, and costs the same with one node and with thousands. A report that says what the one
 * before said changes no verdict, and silence counts from half the timeout on. Reports that say something
 * else come from everybody at once, when a run begins and when somebody is lost: looks for their sake keep a
 * distance that grows with members and nodes, and *out_wake_ns is when the next is due. */
bool keel_membership_holds(const struct keel_membership *m, const struct keel_verdict *verdict,
                           const struct keel_view *view, uint64_t now_ns, uint64_t *out_wake_ns);

/* The first look of a new leader: `view` is of an earlier one, or of an earlier life of the run. A member
 * stays if its worker is alive, was sent a view and has the address that it has in this one. All other
 * members leave; workers that were sent no view join. */
void keel_membership_awaited(struct keel_membership *m, const struct keel_view *view,
                             const struct keel_times *times, uint64_t now_ns, struct keel_verdict *out);

#endif
