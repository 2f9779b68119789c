/* node_sim_queue.h - what will happen in the world of node_sim.h: a heap by (time, order of insertion), of
 * four children each, whose entries say where the event lies: a fourth of its bytes, since a world of
 * thousands of nodes does little else than move them. */
#ifndef KEEL_TESTS_NODE_SIM_QUEUE_H
#define KEEL_TESTS_NODE_SIM_QUEUE_H

#include "node_sim.h"

#include <keel/memory.h>
#include <stdarg.h>
#include <stdio.h>

enum sim_kind {
    SIM_MESSAGE,
    SIM_TIMER,
    SIM_READY,
    SIM_BEAT,
    SIM_EXIT,      /* the agent learns that a worker's process ended */
    SIM_NODE_EXIT, /* who let it in learns that an agent's process ended */
    SIM_ARRIVE,    /* an agent dials in: node_sim_gate.h */
    SIM_GROUP,     /* the group of an epoch may have finished a step */
    SIM_COMMIT,    /* a worker commits `value` */
    SIM_SHARD,     /* its shard of snapshot `value` is durable */
    SIM_DONE,
    SIM_ACCUSE
};

struct sim_event {
    uint64_t at_ns;
    enum sim_kind kind;
    uint16_t node, from;
    uint8_t local;
    uint32_t life; /* of the node, or of the worker */
    uint32_t bytes;
    uint64_t value, epoch;
    uint8_t *data;
};

/* An entry of the heap. */
struct sim_turn {
    uint64_t at_ns, sequence;
    uint32_t event; /* its place in sim->events */
};

static inline bool before(const struct sim_turn *a, const struct sim_turn *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->sequence < b->sequence;
}

static inline void grow(void *list_address, uint32_t count, uint32_t *capacity, size_t item_bytes)
{
    if (count < *capacity)
        return;
    uint32_t wider = *capacity == 0 ? 256 : *capacity * 2;
    enum keel_status status = keel_realloc(list_address, *capacity, wider, item_bytes);
    KEEL_ASSERT(status == KEEL_OK);
    *capacity = wider;
}

/* There is room; of the same time the one with the lower number is the first. */
static inline void sim_put(struct sim *sim, struct sim_turn turn)
{
    uint32_t at = sim->queue_count++;
    for (; at > 0 && before(&turn, &sim->queue[(at - 1) / 4]); at = (at - 1) / 4)
        sim->queue[at] = sim->queue[(at - 1) / 4];
    sim->queue[at] = turn;
}

/* Places of events that are over are used again, the last one first. */
static inline uint32_t sim_event_place(struct sim *sim)
{
    if (sim->free_count > 0)
        return sim->free_events[--sim->free_count];
    if (sim->event_count == sim->event_capacity) {
        uint32_t capacity = sim->event_capacity;
        grow(&sim->free_events, sim->event_count, &capacity, sizeof *sim->free_events);
        grow(&sim->events, sim->event_count, &sim->event_capacity, sizeof *sim->events);
    }
    return sim->event_count++;
}

static inline void push(struct sim *sim, struct sim_event event)
{
    const struct sim_turn turn = {event.at_ns, ++sim->sequence, sim_event_place(sim)};
    grow(&sim->queue, sim->queue_count, &sim->queue_capacity, sizeof *sim->queue);
    sim->events[turn.event] = event;
    sim_put(sim, turn);
}

/* The event of a turn, which is over. */
static inline struct sim_event sim_take_event(struct sim *sim, const struct sim_turn *turn)
{
    struct sim_event event = sim->events[turn->event];
    sim->free_events[sim->free_count++] = turn->event;
    event.at_ns = turn->at_ns;
    return event;
}

static inline struct sim_event pop(struct sim *sim)
{
    const struct sim_turn top = sim->queue[0], last = sim->queue[--sim->queue_count];
    uint32_t at = 0;
    for (uint32_t child = 1; child < sim->queue_count; child = 4 * at + 1) {
        const uint32_t end = child + 4 < sim->queue_count ? child + 4 : sim->queue_count;
        uint32_t least = child;
        for (child++; child < end; child++)
            least = before(&sim->queue[child], &sim->queue[least]) ? child : least;
        if (!before(&sim->queue[least], &last))
            break;
        sim->queue[at] = sim->queue[least];
        at = least;
    }
    sim->queue[at] = last;
    return sim_take_event(sim, &top);
}

static inline void sim_forget_events(struct sim *sim)
{
    while (sim->queue_count > 0)
        keel_free(sim_take_event(sim, &sim->queue[--sim->queue_count]).data);
    while (sim->deferred_count > 0)
        keel_free(sim->deferred[--sim->deferred_count].data);
}

/* Not while its node is stopped: the group's own events are of no node. */
static inline bool waits_for_agent(const struct sim_event *event)
{
    return event->kind != SIM_GROUP;
}

/* ---- what the world's parts share ---- */

static inline uint64_t draw(struct sim *sim)
{
    uint64_t z = sim->random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline struct sim_event own_data(struct sim_event event, const uint8_t *data)
{
    enum keel_status status = keel_alloc(event.bytes, 1, &event.data);
    KEEL_ASSERT(status == KEEL_OK);
    memcpy(event.data, data, event.bytes);
    return event;
}

static inline bool chance(struct sim *sim, uint32_t ppm)
{
    return sim_random(sim, 1000000) < ppm;
}

static inline void violate(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
static inline void violate(struct sim *sim, const char *format, ...)
{
    if (sim->violation[0] != '\0')
        return;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(sim->violation, sizeof sim->violation, format, arguments);
    va_end(arguments);
}

static inline uint64_t later(struct sim *sim, uint64_t most_ns)
{
    return sim->now_ns + 1 + sim_random(sim, most_ns);
}

#endif
