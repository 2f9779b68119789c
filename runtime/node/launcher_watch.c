/* launcher_watch.c - what people do while a run goes on: files of its directory that they remove, and what
 * they ask at its gate; and what is told them in the directory: where it is asked (run_gates.h).
 *
 * Owns when the directory is looked at: once a beat, and never for long. */
#include "launcher_state.h"

#include "run_asks.h"
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

enum keel_status keel_launcher_take_ask(void *context, const struct keel_handover_ask *ask)
{
    struct keel_launcher *launcher = context;
    if (ask->wish == KEEL_WISH_STOP) {
        keel_launcher_stop(launcher);
        return KEEL_OK;
    }
    if (launcher->gathering)
        return keel_fail(KEEL_BUSY, "waits for its agents, and has not begun: ask again when they are there");
    return keel_run_asks_take(&launcher->control, ask);
}

bool keel_launcher_look_at_ask(void *context, const struct keel_handover_ask *ask,
                               char why[KEEL_REASON_BYTES])
{
    struct keel_launcher *launcher = context;
    why[0] = '\0';
    return !launcher->control.finished && keel_run_asks_look(&launcher->control, ask, why);
}

/* ---- the gate of a run on this host alone -------------------------------------------------------------- */

static bool leads(void *context, char out[KEEL_PLACE_BYTES])
{
    (void)context;
    out[0] = '\0';
    return true;
}

static void take_news(void *context, const struct keel_gate_news *news)
{
    const struct keel_launcher *launcher = context;
    if (launcher->report->agent != NULL)
        launcher->report->agent(launcher->report->context, news);
}

enum keel_status keel_launcher_open_gate(struct keel_launcher *launcher)
{
    struct keel_net_place here;
    KEEL_TRY(keel_net_place_parse_ip("127.0.0.1", &here));
    const struct keel_gate_config gate = {.bind = &here,
                                          .advertised = &here,
                                          .secret = &launcher->secret,
                                          .release = KEEL_RELEASE,
                                          .node_count = launcher->node_count,
                                          .job = {.run = launcher->run},
                                          .context = launcher,
                                          .news = take_news,
                                          .leads = leads,
                                          .ask = keel_launcher_take_ask,
                                          .look = keel_launcher_look_at_ask,
                                          .asks_only = true};
    KEEL_TRY(keel_gate_open(&gate, &launcher->gate));
    return keel_gate_place(launcher->gate, launcher->place);
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
}
