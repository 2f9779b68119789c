/* node_costs.h - what a simulated node pays: processor for each event, datagram and byte, its network's time
 * for each byte, and room in a socket for what comes while it is busy.
 *
 * A node is one thread: an event that comes while it works waits, and what it causes leaves when its work is
 * done. Numbers are of one core, as node_event_bench and node_costs_bench print them. All zero: nothing costs
 * anything. */
#ifndef KEEL_TESTS_NODE_COSTS_H
#define KEEL_TESTS_NODE_COSTS_H

#include <keel/memory.h>
#include <keel/status.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sim_costs {
    uint64_t event_ns;            /* a step of a node */
    uint64_t receive_ns, send_ns; /* a datagram */
    uint64_t receive_ps, send_ps; /* a byte of it */
    uint64_t make_ns, take_ns;    /* a member of a view: in the launcher, and in an agent */
    uint64_t byte_ps;             /* a byte on a node's network, each way */
    uint32_t extra_bytes;         /* that a datagram has beside its message */
    uint32_t socket_bytes;        /* what waits for a node: more is lost */
};

struct sim_wait {
    uint64_t until_ns;
    uint32_t bytes;
};

/* Of one node. */
struct sim_meter {
    uint64_t busy_ns;       /* it works until then */
    uint64_t out_ns, in_ns; /* its network is taken until then */
    uint64_t worked_ns;     /* in all */
    uint64_t overflows;     /* datagrams that found no room */
    struct sim_wait *waits; /* datagrams that came and wait, in order, from `first` on */
    uint32_t first, end, capacity, waiting_bytes;
};

/* What `make bench` wrote of a name, in place of what is known here. */
static inline void sim_read_cost(const char *line, const char *name, uint64_t *cost)
{
    char wanted[64];
    (void)snprintf(wanted, sizeof wanted, "a simulated node pays: %s\"", name);
    const char *value = strstr(line, wanted) != NULL ? strstr(line, "\"value\": ") : NULL;
    if (value != NULL)
        *cost = strtoull(value + strlen("\"value\": "), NULL, 10);
}

static inline void sim_read_costs(const char *path, struct sim_costs *costs)
{
    char line[512];
    FILE *file = fopen(path, "re");
    KEEL_ASSERT(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        sim_read_cost(line, "event_ns", &costs->event_ns);
        sim_read_cost(line, "receive_ns", &costs->receive_ns);
        sim_read_cost(line, "send_ns", &costs->send_ns);
        sim_read_cost(line, "receive_ps", &costs->receive_ps);
        sim_read_cost(line, "send_ps", &costs->send_ps);
        sim_read_cost(line, "make_ns", &costs->make_ns);
        sim_read_cost(line, "take_ns", &costs->take_ns);
    }
    (void)fclose(file);
}

/* SIM_COSTS=build/bench.json takes those that `make bench ROOM=runtime` measured there; without it they are
 * of one core of a 2.8 GHz Xeon. */
static inline struct sim_costs sim_measured_costs(void)
{
    struct sim_costs costs = {
        .event_ns = 1500,
        .receive_ns = 1200,
        .send_ns = 3500,
        .receive_ps = 680,
        .send_ps = 690,
        .make_ns = 1700,
        .take_ns = 100,
        .byte_ps = 800, /* 10 Gbit/s */
        .extra_bytes = 64 + 42,
        .socket_bytes = 212992, /* of Linux, where nobody raised it */
    };
    if (getenv("SIM_COSTS") != NULL)
        sim_read_costs(getenv("SIM_COSTS"), &costs);
    return costs;
}

/* A datagram comes at `now_ns`; false: it is lost. Else it waits until the node is free. */
static inline bool sim_meter_take(struct sim_meter *meter, const struct sim_costs *costs, uint64_t now_ns,
                                  uint32_t bytes)
{
    while (meter->first < meter->end && meter->waits[meter->first].until_ns <= now_ns)
        meter->waiting_bytes -= meter->waits[meter->first++].bytes;
    if (meter->first == meter->end)
        meter->first = meter->end = 0;
    if (meter->busy_ns <= now_ns)
        return true;
    if (meter->waiting_bytes + bytes > costs->socket_bytes) {
        meter->overflows++;
        return false;
    }
    if (meter->end == meter->capacity) {
        const uint32_t wider = meter->capacity == 0 ? 64 : 2 * meter->capacity;
        const enum keel_status status =
            keel_realloc(&meter->waits, meter->capacity, wider, sizeof meter->waits[0]);
        KEEL_ASSERT(status == KEEL_OK);
        meter->capacity = wider;
    }
    meter->waits[meter->end++] = (struct sim_wait){meter->busy_ns, bytes};
    meter->waiting_bytes += bytes;
    return true;
}

/* When a datagram that is sent at `now_ns` has passed the two networks, the way between them aside: what is
 * late on its way holds nobody else up. */
static inline uint64_t sim_meter_pass(struct sim_meter *from, struct sim_meter *to,
                                      const struct sim_costs *costs, uint64_t now_ns, uint64_t way_ns,
                                      uint32_t bytes)
{
    if (costs->byte_ps == 0)
        return now_ns + way_ns;
    const uint64_t takes_ns = (bytes + costs->extra_bytes) * costs->byte_ps / 1000;
    from->out_ns = (from->out_ns > now_ns ? from->out_ns : now_ns) + takes_ns;
    to->in_ns = (to->in_ns > from->out_ns ? to->in_ns : from->out_ns) + takes_ns;
    return to->in_ns + way_ns;
}

#endif
