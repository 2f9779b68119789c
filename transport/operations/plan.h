/* plan.h - a schedule as a group keeps it: made once, used by every operation that asks for the same.
 *
 * Owns the cache and what running a schedule needs beyond the schedule: which steps wait for nothing, which
 * messages go to a peer, which received payloads may be combined where they lie. A plan is immutable; its
 * list and its users are guarded by the endpoint's lock. Leaves sizes and data to operation.c and engine.c.
 */
#ifndef KEEL_TRANSPORT_PLAN_H
#define KEEL_TRANSPORT_PLAN_H

#include "message.h"
#include "schedule.h"

struct keel_group;
struct keel_operation;

#define KEEL_NONE UINT32_MAX

struct keel_plan {
    struct keel_plan *next; /* lock: newest first */
    uint32_t users;         /* lock: operations that are not freed */
    struct keel_operation *spare;
    uint32_t spare_count; /* lock */
    enum keel_collective_kind kind;
    enum keel_algorithm algorithm;
    bool exact, by_rank;
    uint32_t root;
    struct keel_schedule *schedule;
    uint32_t *roots; /* steps that wait for nothing */
    uint32_t root_count;
    uint32_t *sends_first; /* peer_count + 1: into sends: */
    uint32_t *sends;       /*   SEND steps to that peer, in order of their messages */
    uint32_t *direct;      /* RECEIVE: the COMBINE that alone reads what it got, and at once; or KEEL_NONE */
    uint32_t leaves_max;   /* sources of a COMBINE */
};

/* The plan for this collective, counted as used. Any thread, without the lock. As keel_schedule_make; LIMIT
 * too where it has more peers than there may be connections. */
enum keel_status keel_plan_take(struct keel_group *group, const struct keel_collective *collective,
                                enum keel_algorithm algorithm, struct keel_plan **out);
void keel_plan_drop(struct keel_group *group, struct keel_plan *plan); /* not used after all */
void keel_plan_free_all(struct keel_group *group);

/* A reduction over ranks, and not over shards. */
bool keel_is_by_rank(const struct keel_collective *collective);

/* What the group wants to know of a schedule for this collective (its map, its rank). */
struct keel_collective_key keel_plan_key(const struct keel_group *group,
                                         const struct keel_collective *collective,
                                         enum keel_algorithm algorithm);

#endif
