/* launcher_watch.c - what people do in the directory of a run while it goes on: files that they remove, and
 * nodes that are to be away (drains.h); and what is told them there: where it is asked (run_gates.h).
 *
 * Owns when it is looked at: once a beat, and never for long. */
#include "launcher_state.h"

#include "drains.h"
#include "run_locks.h"
#include <keel/clock.h>
#include <keel/log.h>
#include <stdio.h>
#include <string.h>

/* Who looks at a lock has it for a moment, and a run that is refused a little longer. */
static const uint64_t unkept_max_ns = KEEL_NS_PER_S / 2;

static void keep_locks(struct keel_launcher *launcher)
{
    struct keel_control_plane *control = &launcher->control;
    const enum keel_status status = keel_local_keep_locks(launcher);
    if (status != KEEL_BUSY) { /* a full disk is tried again */
        launcher->unkept_ns = 0;
        return;
    }
    if (launcher->unkept_ns == 0)
        launcher->unkept_ns = keel_now_ns();
    if (keel_now_ns() - launcher->unkept_ns < unkept_max_ns || control->finished)
        return;
    control->finished = true;
    control->status = KEEL_BUSY;
    snprintf(control->detail, sizeof control->detail,
             "%.300s: the locks of this run were removed, and another run has begun there: this one ends",
             launcher->config->directory);
}

static void add_gate(const struct keel_launcher *launcher, uint16_t node, struct keel_bitset *have,
                     struct keel_run_gates *gates)
{
    char place[KEEL_PLACE_BYTES];
    if (keel_bitset_has(have, node) || keel_bitset_count(have) == KEEL_GATES_MAX)
        return;
    if (node == 0)
        snprintf(place, sizeof place, "%s", launcher->place);
    else if (!keel_mailbox_place_of(launcher->mailbox, node, place))
        return;
    keel_bitset_add(have, node);
    keel_run_gates_add(gates, place);
}

/* Where who leads is asked when this launcher is gone: there, or at another gate, which says where. */
static void keep_gates(struct keel_launcher *launcher)
{
    struct keel_run_gates gates = {.run = launcher->run};
    struct keel_bitset have = {.some = {0}};
    uint16_t nodes[KEEL_NODE_CANDIDATES_MAX];
    const bool others = keel_job_holders(launcher->config->job) > 1;
    const uint32_t count = keel_node_candidates(launcher->control.node, nodes);
    for (uint32_t i = 0; i < count; i++)
        add_gate(launcher, nodes[i], &have, &gates);
    for (uint16_t node = 0; node < (others ? launcher->node_count : 1) && node < KEEL_GATES_MAX; node++)
        add_gate(launcher, node, &have, &gates);
    if (gates.run == launcher->gates.run && strcmp(gates.places, launcher->gates.places) == 0)
        return;
    if (keel_run_gates_write(launcher->config->directory, &gates) == KEEL_OK) /* else tried again */
        launcher->gates = gates;
}

static void look_at_drains(struct keel_launcher *launcher)
{
    struct keel_bitset wanted;
    if (keel_drains_read(launcher->config->directory, &wanted) != KEEL_OK)
        return; /* tried again */
    for (uint16_t node = 1; node < launcher->node_count; node++) {
        const bool away = keel_bitset_has(&wanted, node);
        if (away != keel_bitset_has(&launcher->drained, node))
            keel_control_step(
                &launcher->control,
                &(struct keel_node_event){.kind = KEEL_EVENT_DRAIN, .node = node, .value = away ? 1 : 0});
    }
    launcher->drained = wanted;
}

void keel_launcher_watch(struct keel_launcher *launcher)
{
    if (keel_remaining_ns(launcher->watch_ns) > 0 || launcher->control.finished)
        return;
    launcher->watch_ns =
        keel_deadline_after_ns((uint64_t)(launcher->config->job->timeout_s * (double)KEEL_NS_PER_S) / 10);
    keep_locks(launcher);
    if (keel_job_holders(launcher->config->job) > 1) /* who asks later knows by it when this one ended */
        keel_lock_touch(launcher->config->locks.run_fd);
    if (launcher->gate != NULL)
        keep_gates(launcher);
    look_at_drains(launcher);
}
