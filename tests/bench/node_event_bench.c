/* node_event_bench.c - what an event costs the control plane, by how many ranks there are (node_event.h).
 *
 * Twice: this program measures time; its sibling node_event_blocks counts the basic blocks that were executed
 * and what was sent. One JSON object a line; the peer is the same event with 64 ranks. */
#include "node_event.h"

#include <inttypes.h>
#include <keel/file.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

static void print_line(const char *event, uint16_t ranks, uint64_t value, const char *unit, uint64_t least)
{
    printf("{\"room\": \"runtime\", \"figure\": \"%u ranks: %s\", \"value\": %.2f, \"unit\": \"%s\", "
           "\"peer\": \"64 ranks\", \"peer_value\": %.2f, \"ratio\": %.2f, \"goal\": null, \"met\": null}\n",
           ranks, event, (double)value / 1000, unit, (double)least / 1000,
           least == 0 ? 0 : (double)value / (double)least);
}

static void print_kind(enum event_kind kind)
{
    static const uint16_t sizes[] = {64, 256, 1024, EVENT_RANKS_MAX};
    struct event_cost least = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const struct event_cost cost = event_measure(sizes[i], kind);
        const char *name = event_names[kind];
        least = i == 0 ? cost : least;
        if (cost.blocks == 0) {
            print_line(name, sizes[i], cost.ns / 1000, "us", least.ns / 1000);
            continue;
        }
        print_line(name, sizes[i], cost.blocks, "blocks", least.blocks);
        print_line(name, sizes[i], cost.bytes, "bytes", least.bytes);
    }
}

static void print_state(const char *of, uint64_t bytes)
{
    printf("{\"room\": \"runtime\", \"figure\": \"%s, %d ranks\", \"value\": %.2f, \"unit\": \"KiB\", "
           "\"peer\": null, \"peer_value\": null, \"ratio\": null, \"goal\": null, \"met\": null}\n",
           of, EVENT_RANKS_MAX, (double)bytes / 1024);
}

/* Of the table by which simulated nodes pay (node_costs.h). */
static void print_cost(const char *name, enum event_kind kind)
{
    const struct event_cost cost = event_measure(EVENT_RANKS_MAX, kind);
    if (cost.blocks == 0) /* else this program counts, and is slower for it */
        printf("{\"room\": \"runtime\", \"figure\": \"a simulated node pays: %s\", \"value\": %" PRIu64
               ", \"unit\": \"\", \"peer\": null, \"peer_value\": null, \"ratio\": null, \"goal\": null, "
               "\"met\": null}\n",
               name, cost.ns / 1000);
}

int main(int argc, char **argv)
{
    (void)argc;
    event_open();
    for (int kind = 0; kind < EVENT_COUNT; kind++)
        print_kind((enum event_kind)kind);
    print_cost("event_ns", EVENT_STATUS);
    print_cost("make_ns", EVENT_CHANGE);
    print_cost("take_ns", EVENT_AGENT_VIEW);
    print_state("state of a launcher", sizeof(struct keel_node));
    print_state("state of an agent, the view aside", offsetof(struct keel_node, view));
    print_state("views of an agent: its own, and one on its way",
                offsetof(struct keel_node, reg) - offsetof(struct keel_node, view));
    event_close();
    (void)fflush(stdout);
    char sibling[KEEL_PATH_BYTES];
    const char *slash = strrchr(argv[0], '/');
    (void)snprintf(sibling, sizeof sibling, "%.*snode_event_blocks",
                   slash == NULL ? 0 : (int)(slash + 1 - argv[0]), argv[0]);
#ifndef KEEL_COUNT_BLOCKS
    (void)execl(sibling, sibling, (char *)NULL);
    perror(sibling);
    return 3;
#endif
    return 0;
}
