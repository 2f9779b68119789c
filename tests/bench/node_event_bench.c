/* node_event_bench.c - what an event costs the launcher, by how many ranks there are.
 *
 * A launcher of the control plane with 64, 256, 1,024 and 4,096 ranks, one on each node, all in the view; the
 * environment does nothing. Events: the status that each node sends every beat, in the mean over eight beats;
 * the same while a sixteenth of the ranks accuse one another in pairs; a status of which every second one
 * accuses, over a beat; the same while a sixteenth of the nodes are silent for more than half the timeout.
 * Built with room for 4,096 ranks (KEEL_LIMIT_MEMBERS), and twice: this program measures time; its sibling
 * node_event_blocks counts the basic blocks that were executed, which are the same on every machine. One JSON
 * object a line; the peer is the same event with 64 ranks. */
#include "any_plan.h"
#include "node_state.h"

#include <keel/clock.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EVENTS = 256, ROUNDS = 16, TIMEOUT_MS = 1000, BEATS = 8 };
enum event_kind { STATUS, ACCUSED, ACCUSES, SILENT, KINDS };

static const uint64_t ms = 1000000;
static const char *const kind_names[KINDS] = {"a status, over 8 beats", "a status, 1/16 of the ranks accused",
                                              "a status that accuses another than before",
                                              "a status, 1/16 of the nodes silent"};

static struct keel_node *launcher;
static struct keel_env env;
static uint64_t sequence, blocks;

#ifdef KEEL_COUNT_BLOCKS
void __sanitizer_cov_trace_pc(void);
__attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc(void)
{
    blocks++;
}
#endif

/* ---- an environment that does nothing ------------------------------------------------------------------ */

static uint64_t no_random(void *context)
{
    (void)context;
    return 4;
}

static void no_send(void *context, uint16_t node, const uint8_t *data, uint32_t bytes)
{
    (void)context;
    (void)node;
    (void)data;
    (void)bytes;
}

static void no_timer(void *context, uint64_t deadline_ns)
{
    (void)context;
    (void)deadline_ns;
}

static bool no_persist(void *context, const uint8_t *data, uint32_t bytes)
{
    (void)context;
    (void)data;
    (void)bytes;
    return true;
}

static void no_view_change(void *context, const struct keel_view *old_view, const struct keel_view *new_view,
                           enum keel_cause cause, uint64_t alive_ns, uint64_t evidence_ns)
{
    (void)context;
    (void)old_view;
    (void)new_view;
    (void)cause;
    (void)alive_ns;
    (void)evidence_ns;
}

static void no_trace(void *context, const char *line)
{
    (void)context;
    (void)line;
}

/* ---- events -------------------------------------------------------------------------------------------- */

/* The status of `node`; time and blocks of the step that takes it are added. */
static void give_status(uint16_t node, uint16_t accused_rank, uint64_t *elapsed_ns, uint64_t *executed)
{
    static struct keel_wire_message message;
    static uint8_t bytes[KEEL_MESSAGE_BYTES];
    keel_wire_clear(&message, KEEL_WIRE_STATUS);
    struct keel_wire_status *status = &message.as.status;
    message.epoch = launcher->view.epoch;
    status->sequence = ++sequence;
    status->silent_node = KEEL_RANK_NONE;
    status->first_record = UINT64_MAX;
    status->worker_count = 1;
    struct keel_wire_worker *worker = &status->workers[0];
    worker->state = KEEL_WORKER_READY;
    worker->sent_epoch = message.epoch;
    worker->accused_epoch = accused_rank != KEEL_RANK_NONE ? message.epoch : 0;
    worker->accused_rank = accused_rank;
    worker->address.bytes = KEEL_ADDRESS_BYTES;
    const struct keel_node_event event = {
        .kind = KEEL_EVENT_MESSAGE, .node = node, .data = bytes, .bytes = keel_wire_encode(&message, bytes)};
    const uint64_t blocks_before = blocks, before_ns = keel_now_ns();
    (void)keel_node_step(launcher, &env, &event);
    *elapsed_ns += keel_now_ns() - before_ns;
    *executed += blocks - blocks_before;
}

/* All nodes have said that their worker is ready, and the first view is there. */
static void begin(uint16_t ranks)
{
    uint64_t unused = 0;
    const struct keel_node_config config = {.node_count = (uint16_t)(ranks + 1),
                                            .holder_count = 1,
                                            .rank_count = ranks,
                                            .shard_count = ranks < KEEL_SHARDS_MAX ? ranks : KEEL_SHARDS_MAX,
                                            .plans = any_plan(),
                                            .timeout_ns = TIMEOUT_MS * ms,
                                            .last_step = 1000,
                                            .launcher = true};
    env = (struct keel_env){.now_ns = 1000 * ms,
                            .random = no_random,
                            .send = no_send,
                            .timer = no_timer,
                            .persist = no_persist,
                            .view_change = no_view_change,
                            .trace = no_trace};
    KEEL_ASSERT(keel_node_init(launcher, &config) == KEEL_OK);
    (void)keel_node_step(launcher, &env, &(struct keel_node_event){.kind = KEEL_EVENT_START});
    for (uint16_t node = 1; node <= ranks; node++)
        give_status(node, KEEL_RANK_NONE, &unused, &unused);
    env.now_ns += 10 * ms;
    (void)keel_node_step(launcher, &env, &(struct keel_node_event){.kind = KEEL_EVENT_TICK});
    KEEL_ASSERT(keel_view_active_count(&launcher->view) == ranks);
}

struct cost {
    uint64_t ns, blocks; /* of one event */
};

/* Every node says each beat what it said before, or every second one accuses another: looks at all members,
 * which come at times, are in the mean. */
static struct cost measure_beats(uint16_t ranks, enum event_kind kind)
{
    struct cost cost = {0, 0};
    const uint64_t beat_ns = TIMEOUT_MS * ms / 10;
    const uint32_t beats =
        kind == STATUS ? BEATS : 1; /* accusations convict after the quarter of a timeout */
    begin(ranks);
    for (uint32_t i = 0; i < beats * ranks; i++) {
        env.now_ns += beat_ns / ranks;
        give_status((uint16_t)(1 + i % ranks),
                    kind == ACCUSES && i % 2 == 0 ? (uint16_t)((i + ranks / 2) % ranks) : KEEL_RANK_NONE,
                    &cost.ns, &cost.blocks);
    }
    KEEL_ASSERT(launcher->view.epoch == 1);
    return (struct cost){cost.ns / (beats * ranks), cost.blocks / (beats * ranks)};
}

static struct cost measure(uint16_t ranks, enum event_kind kind)
{
    if (kind == STATUS || kind == ACCUSES)
        return measure_beats(ranks, kind);
    const uint16_t part = ranks / 16;
    struct cost cost = {0, 0};
    uint64_t unused = 0;
    begin(ranks);
    for (uint16_t i = 0; i < part && kind == ACCUSED; i++)
        give_status((uint16_t)(i + 1), i ^ 1, &unused, &unused);
    for (int look = 0; look < 2 && kind == SILENT;
         look++) { /* in two parts: or it would take itself for stalled */
        env.now_ns += 300 * ms;
        for (uint16_t node = part + 1; node <= ranks; node++)
            give_status(node, KEEL_RANK_NONE, &unused, &unused);
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct cost now = {0, 0};
        for (uint32_t i = 0; i < EVENTS; i++) {
            env.now_ns += 10000;
            give_status((uint16_t)(part + 1 + i % (ranks - part)), KEEL_RANK_NONE, &now.ns, &now.blocks);
        }
        cost = round == 0 || now.ns < cost.ns ? now : cost;
    }
    KEEL_ASSERT(launcher->view.epoch == 1); /* nobody went meanwhile */
    return (struct cost){cost.ns / EVENTS, cost.blocks / EVENTS};
}

static void print_line(const char *event, uint16_t ranks, double value, const char *unit, double least)
{
    printf(
        "{\"room\": \"runtime\", \"figure\": \"launcher, %u ranks: %s\", \"value\": %.2f, \"unit\": \"%s\", "
        "\"peer\": \"64 ranks\", \"peer_value\": %.2f, \"ratio\": %.2f, \"goal\": null, \"met\": null}\n",
        ranks, event, value, unit, least, value / least);
}

int main(int argc, char **argv)
{
    static const uint16_t sizes[] = {64, 256, 1024, 4096};
    (void)argc;
    KEEL_ASSERT(keel_alloc(1, keel_node_bytes(true), &launcher) == KEEL_OK);
    for (int kind = 0; kind < KINDS; kind++) {
        struct cost least = {0, 0};
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            const struct cost cost = measure(sizes[i], (enum event_kind)kind);
            least = i == 0 ? cost : least;
            if (cost.blocks > 0)
                print_line(kind_names[kind], sizes[i], (double)cost.blocks, "blocks", (double)least.blocks);
            else
                print_line(kind_names[kind], sizes[i], (double)cost.ns / 1000, "us", (double)least.ns / 1000);
        }
    }
    printf("{\"room\": \"runtime\", \"figure\": \"state of a launcher for 4096 ranks\", \"value\": %.2f, "
           "\"unit\": "
           "\"MB\", \"peer\": \"an agent's\", \"peer_value\": %.2f, \"ratio\": %.2f, \"goal\": null, "
           "\"met\": null}\n",
           (double)keel_node_bytes(true) / 1e6, (double)keel_node_bytes(false) / 1e6,
           (double)keel_node_bytes(true) / (double)keel_node_bytes(false));
    keel_free(launcher);
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
