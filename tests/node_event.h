/* node_event.h - what an event costs a node of the control plane, by how many ranks there are: in basic
 * blocks that were executed, in messages and in bytes that were sent, and in time.
 *
 * A launcher and one agent of a run of `ranks`, one on each node; the other nodes are played. A program with
 * this in it is built with a call at each basic block where blocks are wanted (KEEL_COUNT_BLOCKS): these, and
 * what is sent, are the same on every machine. */
#ifndef KEEL_TESTS_NODE_EVENT_H
#define KEEL_TESTS_NODE_EVENT_H

#include "any_plan.h"
#include "block_counter.h"
#include "node_state.h"

#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

enum { EVENT_RANKS_MAX = 4096, EVENT_TIMEOUT_MS = 1000, EVENT_BEATS = 8, EVENT_STEPS = 64 };

#define EVENT_KINDS(X)                                                                                       \
    X(STATUS, "a status, over 8 beats")                                                                      \
    X(ACCUSES, "a status that accuses another than before")                                                  \
    X(ACCUSED, "a status, 1/16 of the ranks accused")                                                        \
    X(SILENT, "a status, 1/16 of the nodes silent")                                                          \
    X(HOLE, "a status, a step record is lost")                                                               \
    X(AT_END, "a status, the last step is delivered")                                                        \
    X(ENDING, "a status, the run is over")                                                                   \
    X(RECORD, "a step record")                                                                               \
    X(SHARD, "a shard of a snapshot")                                                                        \
    X(CHANGE, "a node lost, by rank")                                                                        \
    X(AGENT_VIEW, "agent: a view, by rank")                                                                  \
    X(AGENT_STEP, "agent: a step of its worker")                                                             \
    X(AGENT_BEAT, "agent: a beat")
enum event_kind {
#define EVENT_ENUM(name, text) EVENT_##name,
    EVENT_KINDS(EVENT_ENUM)
#undef EVENT_ENUM
        EVENT_COUNT
};
static const char *const event_names[] = {
#define EVENT_NAME(name, text) text,
    EVENT_KINDS(EVENT_NAME)
#undef EVENT_NAME
};

struct event_cost {
    uint64_t ns, blocks, messages, bytes;
};

/* The last messages from one to the other, in a ring. */
struct event_mail {
    uint8_t data[64][KEEL_MESSAGE_BYTES];
    uint32_t bytes[64], count;
};

static struct event_world {
    struct keel_node *launcher, *agent; /* the agent is node 1 */
    uint64_t sequence;
    struct event_cost spent; /* since it was cleared */
    uint64_t most;           /* bytes of one message */
    uint64_t now_ns;
    uint16_t ranks;
    struct event_mail to_agent, to_launcher; /* between these two */
} event_world;

static const uint64_t event_ms = 1000000;

/* ---- an environment that counts ------------------------------------------------------------------------ */

static uint64_t event_random(void *context)
{
    (void)context;
    return 4;
}

static void event_send(void *context, uint16_t node, const uint8_t *data, uint32_t bytes)
{
    struct event_world *w = &event_world;
    w->spent.messages++;
    w->spent.bytes += bytes;
    w->most = bytes > w->most ? bytes : w->most;
    struct event_mail *mail = context == w->agent ? &w->to_launcher : &w->to_agent;
    if (node == (context == w->agent ? 0 : 1)) {
        memcpy(mail->data[mail->count % 64], data, bytes);
        mail->bytes[mail->count++ % 64] = bytes;
    }
}

static void event_timer(void *context, uint64_t deadline_ns)
{
    (void)context;
    (void)deadline_ns;
}

static bool event_persist(void *context, const uint8_t *data, uint32_t bytes)
{
    (void)context;
    (void)data;
    (void)bytes;
    return true;
}

static void event_view_change(void *context, const struct keel_view *old_view,
                              const struct keel_view *new_view, enum keel_cause cause, uint64_t alive_ns,
                              uint64_t evidence_ns)
{
    (void)context;
    (void)old_view;
    (void)new_view;
    (void)cause;
    (void)alive_ns;
    (void)evidence_ns;
}

static void event_tell_view(void *context, uint8_t local, const struct keel_view *view)
{
    (void)context;
    (void)local;
    (void)view;
}

static void event_local(void *context, uint8_t local)
{
    (void)context;
    (void)local;
}

static void event_start(void *context, uint8_t local, uint32_t incarnation)
{
    (void)context;
    (void)local;
    (void)incarnation;
}

static void event_record(void *context, const struct keel_step_record *record)
{
    (void)context;
    (void)record;
}

static void event_drop(void *context, uint64_t step, uint64_t attempt, const struct keel_bitset *ranks)
{
    (void)context;
    (void)step;
    (void)attempt;
    (void)ranks;
}

static void event_finish(void *context, enum keel_status status, const char *detail)
{
    (void)context;
    (void)status;
    (void)detail;
}

static void event_trace(void *context, const char *line)
{
    (void)context;
    (void)line;
}

static void event_give(struct keel_node *to, const struct keel_node_event *event)
{
    struct event_world *w = &event_world;
    static _Alignas(64) uint8_t room[24 * sizeof(struct keel_view)];
    KEEL_ASSERT(sizeof room == keel_node_room_bytes());
    const struct keel_env env = {.room = room,
                                 .context = to,
                                 .now_ns = w->now_ns,
                                 .random = event_random,
                                 .send = event_send,
                                 .timer = event_timer,
                                 .persist = event_persist,
                                 .tell_view = event_tell_view,
                                 .tell_stop = event_local,
                                 .worker_start = event_start,
                                 .worker_kill = event_local,
                                 .snapshot_drop = event_drop,
                                 .step_commit = event_record,
                                 .view_change = event_view_change,
                                 .finish = event_finish,
                                 .trace = event_trace};
    const uint64_t blocks = blocks_run, before_ns = keel_now_ns();
    const int status = keel_node_step(to, &env, event);
    w->spent.ns += keel_now_ns() - before_ns;
    w->spent.blocks += blocks_run - blocks;
    KEEL_ASSERT(status == KEEL_OK);
}

/* ---- events of a launcher ------------------------------------------------------------------------------ */

static struct keel_wire_message event_message;

static struct keel_wire_message *event_new(enum keel_wire_kind kind)
{
    keel_wire_clear(&event_message, kind);
    event_message.epoch = event_world.launcher->view.epoch;
    return &event_message;
}

static void event_say(uint16_t node)
{
    static uint8_t bytes[KEEL_MESSAGE_BYTES];
    const uint32_t count = keel_wire_encode(&event_message, bytes);
    event_give(
        event_world.launcher,
        &(struct keel_node_event){.kind = KEEL_EVENT_MESSAGE, .node = node, .data = bytes, .bytes = count});
}

static void event_fill_status(uint16_t accused_rank)
{
    struct keel_wire_status *status = &event_new(KEEL_WIRE_STATUS)->as.status;
    status->sequence = ++event_world.sequence;
    status->silent_node = KEEL_RANK_NONE;
    status->first_record = UINT64_MAX;
    status->worker_count = 1;
    struct keel_wire_worker *worker = &status->workers[0];
    worker->state = KEEL_WORKER_READY;
    worker->sent_epoch = event_message.epoch;
    worker->accused_epoch = accused_rank != KEEL_RANK_NONE ? event_message.epoch : 0;
    worker->accused_rank = accused_rank;
    worker->address.bytes = KEEL_ADDRESS_BYTES;
}

static void event_status(uint16_t node, uint16_t accused_rank)
{
    event_fill_status(accused_rank);
    event_say(node);
}

static void event_step(uint64_t step)
{
    event_new(KEEL_WIRE_STEP)->as.step =
        (struct keel_step_record){.step = step, .epoch = event_world.launcher->view.epoch, .digest = step};
    event_say(1);
}

static void event_shard(uint16_t rank, uint64_t step)
{
    event_new(KEEL_WIRE_SHARD)->as.shard = (struct keel_wire_shard){
        .step = step, .attempt = event_world.launcher->view.epoch, .summary = {.rank = rank}};
    event_say((uint16_t)(rank + 1));
}

static void event_status_of_all(uint16_t from)
{
    for (uint16_t node = from; node <= event_world.ranks; node++)
        event_status(node, KEEL_RANK_NONE);
}

static void event_tick(struct keel_node *node)
{
    event_give(node, &(struct keel_node_event){.kind = KEEL_EVENT_TICK});
}

/* All nodes have said that their worker is ready, and the first view is there. */
static void event_begin(uint16_t ranks)
{
    struct event_world *w = &event_world;
    struct keel_node_config config = {.node_count = (uint16_t)(ranks + 1),
                                      .holder_count = 1,
                                      .rank_count = ranks,
                                      .shard_count = ranks < KEEL_SHARDS_MAX ? ranks : KEEL_SHARDS_MAX,
                                      .plans = any_plan(),
                                      .timeout_ns = EVENT_TIMEOUT_MS * event_ms,
                                      .last_step = EVENT_STEPS,
                                      .first_step = 1,
                                      .launcher = true};
    w->now_ns = 1000 * event_ms;
    w->ranks = ranks;
    w->to_agent.count = w->to_launcher.count = 0;
    KEEL_ASSERT(keel_node_init(w->launcher, &config) == KEEL_OK);
    event_give(w->launcher, &(struct keel_node_event){.kind = KEEL_EVENT_START});
    config.launcher = false;
    config.node = config.worker_count = 1;
    KEEL_ASSERT(keel_node_init(w->agent, &config) == KEEL_OK);
    event_give(w->agent, &(struct keel_node_event){.kind = KEEL_EVENT_START});
    event_give(w->agent, &(struct keel_node_event){.kind = KEEL_EVENT_WORKER_READY,
                                                   .address = {.bytes = KEEL_ADDRESS_BYTES}});
    event_status_of_all(1);
    w->now_ns += 10 * event_ms;
    event_tick(w->launcher);
    KEEL_ASSERT(keel_view_active_count(&w->launcher->view) == ranks);
}

/* ---- one kind after the other: how many events were measured ------------------------------------------- */

static void event_clear(void)
{
    memset(&event_world.spent, 0, sizeof event_world.spent);
}

/* Every node says each beat what it said before, or every second one accuses another: looks at all members,
 * which come at times, are in the mean. */
static uint32_t event_beats(enum event_kind kind, uint32_t beats)
{
    const uint16_t ranks = event_world.ranks;
    event_clear();
    for (uint32_t i = 0; i < beats * ranks; i++) {
        event_world.now_ns += EVENT_TIMEOUT_MS * event_ms / 10 / ranks;
        event_status((uint16_t)(1 + i % ranks), kind == EVENT_ACCUSES && i % 2 == 0
                                                    ? (uint16_t)((i + ranks / 2) % ranks)
                                                    : KEEL_RANK_NONE);
    }
    return beats * ranks;
}

/* Statuses of those nodes that neither accuse nor are silent. */
static uint32_t event_few(uint16_t first)
{
    const uint32_t count = 256;
    event_clear();
    for (uint32_t i = 0; i < count; i++) {
        event_world.now_ns += 10000;
        event_status((uint16_t)(first + i % (event_world.ranks + 1U - first)), KEEL_RANK_NONE);
    }
    return count;
}

static void event_hand(struct keel_node *to, uint16_t from, const struct event_mail *mail, uint32_t at)
{
    KEEL_ASSERT(mail->count - at <= 64);
    event_give(to, &(struct keel_node_event){.kind = KEEL_EVENT_MESSAGE,
                                             .node = from,
                                             .data = mail->data[at % 64],
                                             .bytes = mail->bytes[at % 64]});
}

/* The agent hears what the launcher sent it from message `first` on, and the launcher what it answers, till
 * nobody says anything. What that costs the agent is added. */
static void event_deliver(uint32_t first)
{
    struct event_world *w = &event_world;
    uint32_t answered = w->to_launcher.count;
    for (uint32_t i = first; i < w->to_agent.count; i++) {
        event_hand(w->agent, 0, &w->to_agent, i);
        for (const struct event_cost spent = w->spent; answered < w->to_launcher.count; w->spent = spent)
            event_hand(w->launcher, 1, &w->to_launcher, answered++);
    }
}

/* The last node is lost. */
static uint32_t event_lose(void)
{
    struct event_world *w = &event_world;
    event_status_of_all(1); /* all have the view */
    event_clear();
    event_give(w->launcher, &(struct keel_node_event){.kind = KEEL_EVENT_NODE_EXIT, .node = w->ranks});
    w->now_ns += 20 * event_ms;
    event_tick(w->launcher);
    event_status(1, KEEL_RANK_NONE);
    KEEL_ASSERT(w->launcher->view.epoch == 2);
    return w->ranks;
}

static uint32_t event_agent_view(void)
{
    struct event_world *w = &event_world;
    event_deliver(0);
    KEEL_ASSERT(w->agent->view.epoch == 1);
    const uint32_t first = w->to_agent.count;
    (void)event_lose();
    event_clear();
    event_deliver(first);
    KEEL_ASSERT(w->agent->view.epoch == 2);
    return w->ranks;
}

static uint32_t event_agent_steps(bool beat)
{
    struct event_world *w = &event_world;
    event_deliver(0);
    event_clear();
    for (uint64_t step = 1; step <= 32; step++) {
        const struct keel_step_record record = {.step = step, .epoch = 1, .digest = step};
        w->now_ns += 10 * event_ms;
        event_give(w->agent,
                   &(struct keel_node_event){.kind = beat ? KEEL_EVENT_WORKER_BEAT : KEEL_EVENT_WORKER_STEP,
                                             .value = step,
                                             .record = &record});
    }
    return 32;
}

static uint32_t event_silence(void)
{
    const uint16_t part = event_world.ranks / 16;
    for (int look = 0; look < 2; look++) { /* in two parts: or it would take itself for stalled */
        event_world.now_ns += 300 * event_ms;
        event_status_of_all((uint16_t)(part + 1));
    }
    return event_few((uint16_t)(part + 1));
}

/* All but the last rank have finished. */
static void event_done_but_one(void)
{
    for (uint16_t node = 1; node < event_world.ranks; node++) {
        event_fill_status(KEEL_RANK_NONE);
        event_message.as.status.workers[0].state = KEEL_WORKER_DONE;
        event_say(node);
    }
    event_world.now_ns += event_ms;
    event_tick(event_world.launcher);
}

static uint32_t event_run(enum event_kind kind)
{
    const uint16_t ranks = event_world.ranks, part = ranks / 16;
    switch (kind) {
    case EVENT_STATUS:
        return event_beats(kind, EVENT_BEATS);
    case EVENT_ACCUSES:
        return event_beats(kind, 1); /* accusations evict after the quarter of a timeout */
    case EVENT_ACCUSED:
        for (uint16_t i = 0; i < part; i++)
            event_status((uint16_t)(i + 1), i ^ 1);
        return event_few((uint16_t)(part + 1));
    case EVENT_SILENT:
        return event_silence();
    case EVENT_HOLE:
        event_step(2);
        event_status(1, KEEL_RANK_NONE);
        return event_few(1);
    case EVENT_AT_END:
        for (uint64_t step = 1; step < EVENT_STEPS; step++)
            event_step(step);
        event_done_but_one();
        return event_few(ranks);
    case EVENT_ENDING:
        event_give(event_world.launcher, &(struct keel_node_event){.kind = KEEL_EVENT_STOP});
        event_world.now_ns += 6 * EVENT_TIMEOUT_MS * event_ms;
        event_status_of_all(1);
        event_tick(event_world.launcher);
        KEEL_ASSERT(event_world.launcher->leader->ending);
        return event_few(1);
    case EVENT_RECORD:
        event_status(1, KEEL_RANK_NONE); /* the look at a new view is part of its change */
        event_clear();
        for (uint64_t step = 1; step < EVENT_STEPS; step++)
            event_step(step);
        return EVENT_STEPS - 1;
    case EVENT_SHARD:
        event_clear();
        for (uint16_t rank = 0; rank < ranks - 1; rank++)
            event_shard(rank, 4);
        return ranks - 1U;
    case EVENT_CHANGE:
        return event_lose();
    case EVENT_AGENT_VIEW:
        return event_agent_view();
    case EVENT_AGENT_STEP:
    case EVENT_AGENT_BEAT:
        return event_agent_steps(kind == EVENT_AGENT_BEAT);
    case EVENT_COUNT:
    default:
        return 0;
    }
}

static inline void event_open(void)
{
    KEEL_ASSERT(keel_alloc(1, keel_node_bytes(&(struct keel_node_config){.launcher = true}),
                           &event_world.launcher) == KEEL_OK);
    KEEL_ASSERT(keel_alloc(1, keel_node_bytes(&(struct keel_node_config){.node = 1, .holder_count = 1}),
                           &event_world.agent) == KEEL_OK);
}

static inline void event_close(void)
{
    keel_free(event_world.launcher);
    keel_free(event_world.agent);
}

/* What one event of the kind costs, in the mean, in 1/1000: of a view's change, by rank. */
static inline struct event_cost event_measure(uint16_t ranks, enum event_kind kind)
{
    event_begin(ranks);
    event_world.most = 0;
    const uint32_t count = event_run(kind);
    const struct event_cost *spent = &event_world.spent;
    return (struct event_cost){spent->ns * 1000 / count, spent->blocks * 1000 / count,
                               spent->messages * 1000 / count, spent->bytes * 1000 / count};
}

#endif
