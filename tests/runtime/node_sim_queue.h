/* node_sim_queue.h - what will happen in the world of node_sim.h: a heap by (time, order of insertion). */
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
    SIM_NODE_EXIT, /* the launcher learns that an agent's process ended */
    SIM_GROUP,     /* the group of an epoch may have finished a step */
    SIM_COMMIT,    /* a worker commits `value` */
    SIM_SHARD,     /* its shard of snapshot `value` is durable */
    SIM_DONE,
    SIM_ACCUSE
};

struct sim_event {
    uint64_t at_ns, sequence;
    enum sim_kind kind;
    uint16_t node, from;
    uint8_t local;
    uint32_t life; /* of the node, or of the worker */
    uint32_t bytes;
    uint64_t value, epoch;
    uint8_t *data;
};

static inline bool before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->sequence < b->sequence;
}

static inline void grow(struct sim_event **list, uint32_t count, uint32_t *capacity)
{
    if (count < *capacity)
        return;
    uint32_t wider = *capacity == 0 ? 256 : *capacity * 2;
    enum keel_status status = keel_realloc(list, *capacity, wider, sizeof **list);
    KEEL_ASSERT(status == KEEL_OK);
    *capacity = wider;
}

static inline void push(struct sim *sim, struct sim_event event)
{
    grow(&sim->queue, sim->queue_count, &sim->queue_capacity);
    event.sequence = ++sim->sequence;
    uint32_t at = sim->queue_count++;
    for (; at > 0 && before(&event, &sim->queue[(at - 1) / 2]); at = (at - 1) / 2)
        sim->queue[at] = sim->queue[(at - 1) / 2];
    sim->queue[at] = event;
}

static inline struct sim_event pop(struct sim *sim)
{
    struct sim_event top = sim->queue[0], last = sim->queue[--sim->queue_count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= sim->queue_count)
            break;
        if (child + 1 < sim->queue_count && before(&sim->queue[child + 1], &sim->queue[child]))
            child++;
        if (!before(&sim->queue[child], &last))
            break;
        sim->queue[at] = sim->queue[child];
        at = child;
    }
    sim->queue[at] = last;
    return top;
}

/* ---- what the world's parts share ---- */

static uint64_t draw(struct sim *sim)
{
    uint64_t z = sim->random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint64_t hash_bytes(uint64_t hash, const void *data, uint64_t bytes)
{
    const uint8_t *p = data;
    for (uint64_t i = 0; i < bytes; i++)
        hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static struct sim_event own_data(struct sim_event event, const uint8_t *data)
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
