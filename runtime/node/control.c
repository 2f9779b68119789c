/* control.c - clock, randomness, timer, durable state and messages for one keel_node.
 *
 * Owns the node, its outbox and its state file. Promises the order: decide, make durable, send. */
#include "control.h"

#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

enum {
    OUTBOX_BYTES = 64 << 10, /* at first */
    /* What a change of the view costs its sender at most (node_views.c), and a word to every node. */
    OUTBOX_BYTES_MAX = (2 << 20) + KEEL_NODES_MAX * 2048,
    STATE_BYTES_MAX = 1 << 20,
    MESSAGES_PER_TURN = 256
};

struct outbox_head { /* in the outbox, before its bytes */
    uint32_t bytes;
    uint16_t node, reserved;
};

/* ---- effects ------------------------------------------------------------------------------------------- */

static uint64_t effect_random(void *context)
{
    (void)context;
    uint64_t number;
    randombytes_buf(&number, sizeof number);
    return number;
}

/* Put a message behind those that are in a box. False: it is lost. */
static bool put(uint8_t **box, uint32_t *used, uint32_t *capacity, const struct outbox_head *head,
                const uint8_t *data)
{
    const uint32_t bytes = *used + (uint32_t)sizeof *head + head->bytes;
    uint32_t wider = *capacity > 0 ? *capacity : OUTBOX_BYTES;
    while (wider < bytes)
        wider *= 2;
    if (wider != *capacity) {
        if (bytes > OUTBOX_BYTES_MAX || keel_realloc(box, *capacity, wider, 1) != KEEL_OK)
            return false;
        *capacity = wider;
    }
    memcpy(*box + *used, head, sizeof *head);
    memcpy(*box + *used + sizeof *head, data, head->bytes);
    *used = bytes;
    return true;
}

static void effect_send(void *context, uint16_t node, const uint8_t *data, uint32_t bytes)
{
    struct keel_control_plane *control = context;
    const struct outbox_head head = {.bytes = bytes, .node = node};
    KEEL_ASSERT(bytes <= KEEL_MESSAGE_BYTES && node < KEEL_NODES_MAX);
    if (!put(&control->outbox, &control->outbox_bytes, &control->outbox_capacity, &head, data) &&
        keel_seldom_says(&control->lost, keel_now_ns()))
        keel_log(KEEL_LOG_WARN, "outbox full: a message to node %u is lost", node);
}

static void effect_timer(void *context, uint64_t deadline_ns)
{
    ((struct keel_control_plane *)context)->timer_ns = deadline_ns;
}

static void end(struct keel_control_plane *control, enum keel_status status, const char *detail)
{
    if (control->finished)
        return;
    control->finished = true;
    control->status = status;
    snprintf(control->detail, sizeof control->detail, "%s", detail);
}

/* A full disk is waited for: it is told by `unstored`. What no wait cures ends the node. */
static bool effect_persist(void *context, const uint8_t *data, uint32_t bytes)
{
    struct keel_control_plane *control = context;
    KEEL_ASSERT(control->state_path[0] != '\0' && bytes <= STATE_BYTES_MAX);
    enum keel_status status = keel_file_replace(control->state_path, data, bytes, 0600);
    control->unstored = status == KEEL_NO_SPACE;
    if (control->unstored)
        snprintf(control->detail, sizeof control->detail, "%s", keel_detail());
    if (status == KEEL_OK || control->unstored)
        return !control->unstored;
    control->undurable = true;
    end(control, status, keel_detail());
    return true; /* the node is at its end: nobody hears what it still says */
}

/* Nodes at one address are on one host. */
static uint32_t effect_domain(void *context, uint16_t node)
{
    const struct keel_control_plane *control = context;
    return node < KEEL_NODES_MAX ? keel_mailbox_host(control->mailbox, node) : node;
}

static void effect_finish(void *context, enum keel_status status, const char *detail)
{
    end(context, status, detail);
}

static void effect_trace(void *context, const char *line)
{
    (void)context;
    keel_log(KEEL_LOG_DEBUG, "%s", line);
}

/* ---- layout -------------------------------------------------------------------------------------------- */

enum keel_status keel_control_layout(const struct keel_job *job, uint16_t node, uint32_t incarnation,
                                     struct keel_node_config *out)
{
    uint32_t nodes = job->nodes != 0 ? job->nodes : job->ranks;
    uint32_t node_count = 1 + nodes + job->spares;
    if (nodes == 0 || nodes > job->ranks || job->ranks % nodes != 0)
        return keel_fail(KEEL_INVALID, "%u ranks do not divide into %u nodes; change cluster.nodes",
                         job->ranks, nodes);
    if (node_count > KEEL_NODES_MAX || job->ranks + job->spares > KEEL_MEMBERS_MAX ||
        job->ranks / nodes > KEEL_WORKERS_PER_NODE)
        return keel_fail(
            KEEL_LIMIT,
            "%u ranks on %u nodes and %u spares: at most %d workers on %d nodes, %d on one; give more "
            "cluster.nodes, or fewer ranks",
            job->ranks, nodes, job->spares, KEEL_MEMBERS_MAX, KEEL_NODES_MAX - 1, KEEL_WORKERS_PER_NODE);
    if (node >= node_count)
        return keel_fail(KEEL_INVALID, "node %u: the run has nodes 0 to %u", node, node_count - 1);
    uint32_t workers = node == 0 ? 0 : node <= nodes ? job->ranks / nodes : 1;
    *out = (struct keel_node_config){.node = node,
                                     .node_count = (uint16_t)node_count,
                                     .holder_count = (uint16_t)keel_job_holders(job),
                                     .worker_count = (uint16_t)workers,
                                     .rank_count = (uint16_t)job->ranks,
                                     .spare_count = (uint16_t)job->spares,
                                     .shard_count = (uint16_t)job->shards,
                                     .timeout_ns = (uint64_t)(job->timeout_s * (double)KEEL_NS_PER_S),
                                     .incarnation = incarnation,
                                     .last_step = job->steps + 1, /* steps are numbered from 1 */
                                     .respawn = job->respawn,
                                     .keeps_end = job->snapshot_every > 0,
                                     .launcher = node == 0,
                                     .again = incarnation > 1}; /* the first is 1 */
    return KEEL_OK;
}

/* ---- life ---------------------------------------------------------------------------------------------- */

static void fill_effects(struct keel_control_plane *control, const struct keel_env *effects)
{
    control->env = *effects;
    control->env.context = control;
    control->env.random = effect_random;
    control->env.send = effect_send;
    control->env.timer = effect_timer;
    control->env.persist = effect_persist;
    control->env.domain = effect_domain;
    control->env.finish = effect_finish;
    control->env.trace = effect_trace;
}

enum keel_status keel_control_init(struct keel_control_plane *control,
                                   const struct keel_control_config *config)
{
    *control = (struct keel_control_plane){.owner = config->owner,
                                           .leading = config->leading,
                                           .self = config->node->node,
                                           .mailbox = config->mailbox,
                                           .timer_ns = KEEL_NEVER};
    if (config->state_path != NULL)
        snprintf(control->state_path, sizeof control->state_path, "%s", config->state_path);
    fill_effects(control, config->effects);
    enum keel_status status = keel_alloc(1, keel_node_bytes(config->node), &control->node);
    if (status == KEEL_OK)
        status = keel_alloc(1, keel_node_room_bytes(), &control->env.room);
    if (status == KEEL_OK)
        status = keel_alloc(1, OUTBOX_BYTES, &control->outbox);
    control->outbox_capacity = OUTBOX_BYTES;
    if (status == KEEL_OK)
        status = keel_node_init(control->node, config->node);
    if (status != KEEL_OK)
        keel_control_fini(control);
    return status;
}

void keel_control_fini(struct keel_control_plane *control)
{
    keel_free(control->outbox);
    keel_free(control->inbox);
    keel_free(control->node);
    keel_free(control->env.room);
    control->outbox = control->inbox = NULL;
    control->node = NULL;
    control->env.room = NULL;
}

enum keel_status keel_control_start(struct keel_control_plane *control)
{
    char *state = NULL;
    size_t bytes = 0;
    if (control->state_path[0] != '\0') {
        enum keel_status status = keel_file_read(control->state_path, STATE_BYTES_MAX, &state, &bytes);
        if (status != KEEL_OK && status != KEEL_NOT_FOUND)
            return status;
    }
    const struct keel_node_event event = {
        .kind = KEEL_EVENT_START, .data = (const uint8_t *)state, .bytes = (uint32_t)bytes};
    keel_control_step(control, &event);
    keel_free(state);
    return KEEL_OK;
}

/* ---- steps --------------------------------------------------------------------------------------------- */

static void empty_outbox(struct keel_control_plane *control)
{
    uint32_t at = 0;
    while (at < control->outbox_bytes && !control->undurable) {
        struct outbox_head head;
        memcpy(&head, control->outbox + at, sizeof head);
        at += (uint32_t)sizeof head;
        KEEL_ASSERT(head.node < KEEL_NODES_MAX && head.bytes <= KEEL_MESSAGE_BYTES);
        KEEL_ASSERT(head.bytes <= control->outbox_bytes - at); /* as effect_send wrote it */
        if (head.node != control->self)
            keel_mailbox_send(control->mailbox, head.node, control->outbox + at, head.bytes);
        else if (!put(&control->inbox, &control->inbox_bytes, &control->inbox_capacity, &head,
                      control->outbox + at) &&
                 keel_seldom_says(&control->lost, keel_now_ns()))
            keel_log(KEEL_LOG_WARN, "inbox full: a message of this node to itself is lost");
        at += head.bytes;
    }
    control->outbox_bytes = 0;
}

static void step(struct keel_control_plane *control, const struct keel_node_event *event)
{
    if (control->finished)
        return;
    control->env.now_ns = keel_now_ns();
    enum keel_status status = (enum keel_status)keel_node_step(control->node, &control->env, event);
    if (status != KEEL_OK)
        keel_log(KEEL_LOG_DEBUG, "event %d: %s", (int)event->kind, keel_status_name(status));
    empty_outbox(control);
}

/* What this node tells itself is answered within, and those answers end: each asks for less than it. */
void keel_control_step(struct keel_control_plane *control, const struct keel_node_event *event)
{
    uint8_t data[KEEL_MESSAGE_BYTES];
    step(control, event);
    for (uint32_t at = 0; at < control->inbox_bytes;) {
        struct outbox_head head;
        memcpy(&head, control->inbox + at, sizeof head);
        memcpy(data, control->inbox + at + sizeof head, head.bytes); /* the box may move meanwhile */
        at += (uint32_t)sizeof head + head.bytes;
        step(control, &(struct keel_node_event){
                          .kind = KEEL_EVENT_MESSAGE, .node = head.node, .data = data, .bytes = head.bytes});
    }
    control->inbox_bytes = 0;
}

void keel_control_turn(struct keel_control_plane *control)
{
    uint8_t data[KEEL_MESSAGE_BYTES];
    struct keel_node_event event = {.kind = KEEL_EVENT_MESSAGE, .data = data};
    for (int taken = 0; taken < MESSAGES_PER_TURN && !control->finished; taken++) {
        if (!keel_mailbox_receive(control->mailbox, &event.node, data, &event.bytes))
            break;
        keel_control_step(control, &event);
    }
    if (control->timer_ns <= keel_now_ns()) {
        control->timer_ns = KEEL_NEVER;
        keel_control_step(control, &(struct keel_node_event){.kind = KEEL_EVENT_TICK});
    }
}
