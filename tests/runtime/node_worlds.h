/* node_worlds.h - random worlds for the control plane (node_sim.h): what each is drawn from a seed, and the
 * faults in it; how it must end, and what its leader must know whenever nothing was wrong for a while. */
#ifndef KEEL_TESTS_NODE_WORLDS_H
#define KEEL_TESTS_NODE_WORLDS_H

#include "node_cases.h"
#include "node_wishes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Processors and networks up to 128 times as slow as ours, and sockets that a few messages fill. */
static struct sim_costs drawn_costs(struct sim *dice)
{
    struct sim_costs costs = sim_measured_costs();
    const uint64_t slower = UINT64_C(1) << sim_random(dice, 8);
    costs.event_ns *= slower;
    costs.receive_ns *= slower;
    costs.send_ns *= slower;
    costs.receive_ps *= slower;
    costs.send_ps *= slower;
    costs.make_ns *= slower;
    costs.take_ns *= slower;
    costs.byte_ps *= slower;
    costs.socket_bytes = (uint32_t)(4000 + sim_random(dice, sim_random(dice, 2) == 0 ? 20000 : 210000));
    return costs;
}

static struct sim_config random_config(struct sim *dice)
{
    struct sim_config c = sim_default(sim_random(dice, UINT64_MAX));
    c.nodes = (uint16_t)(2 + sim_random(dice, 5));
    c.workers_per_node = (uint16_t)(1 + sim_random(dice, 2));
    uint64_t workers = (uint64_t)(c.nodes - 1) * c.workers_per_node;
    c.ranks = (uint16_t)(1 + sim_random(dice, workers));
    c.spares = (uint16_t)(workers - c.ranks);
    c.shards = (uint16_t)(1 + sim_random(dice, c.ranks + 8U)); /* some ranks may have none */
    c.fewest = (uint16_t)(sim_random(dice, 2) == 0 ? 1 : 1 + sim_random(dice, c.ranks));
    c.holes = sim_random(dice, 2) == 0 ? 0 : sim_random(dice, UINT64_C(1) << c.ranks); /* never all of them */
    c.holders = c.nodes < 3 || sim_random(dice, 2) == 0 ? 1 : c.nodes < 5 || sim_random(dice, 3) > 0 ? 3 : 5;
    c.domain = (uint16_t)sim_random(dice, 3);
    c.timeout_ns = (200 + sim_random(dice, 800)) * SIM_MS;
    c.loss_ppm = sim_random(dice, 2) == 0 ? 0 : (uint32_t)sim_random(dice, 200000);
    c.duplicate_ppm = (uint32_t)sim_random(dice, 200000);
    c.delay_max_ns = (1 + sim_random(dice, 20)) * SIM_MS;
    c.last_step = 60 + sim_random(dice, sim_random(dice, 6) == 0 ? 800 : 100);
    c.snapshot_every = 5 + c.last_step / 50 + sim_random(dice, 20); /* SIM_GENERATIONS_MAX */
    c.respawn = sim_random(dice, 4) != 0;
    if (sim_random(dice, 3) == 0)
        c.costs = drawn_costs(dice);
    return c;
}

static void restart_everything(struct sim *sim)
{
    sim_kill_all(sim);
    sim_start_all(sim);
}

/* A rack: several at once, and again while the change is under way. */
static void kill_in_a_burst(struct sim *sim)
{
    uint64_t count = 1 + sim_random(sim, 5);
    for (uint64_t i = 0; i < count; i++) {
        uint16_t node = (uint16_t)(1 + sim_random(sim, sim->config.nodes - 1U));
        if (sim_random(sim, 3) == 0)
            sim_kill_node(sim, node);
        else
            sim_kill_worker(sim, node, (uint8_t)sim_random(sim, sim->config.workers_per_node));
        (void)sim_run(sim, sim->now_ns + sim_random(sim, 40 * SIM_MS));
    }
}

/* Some or all of the processes are stopped together, the launcher maybe among them, and come back one after
 * the other: a terminal, a debugger, a switch that starts again. With workers, the machine was suspended. */
static void pause_some(struct sim *sim)
{
    uint64_t all = (UINT64_C(1) << sim->config.nodes) - 1;
    uint64_t mask = sim_random(sim, 2) == 0 ? all - sim_random(sim, 2) : sim_random(sim, all + 1);
    bool workers = sim_random(sim, 2) == 0;
    uint64_t timeouts = sim_random(sim, 4) == 0 ? 30 : 4;
    for (uint16_t node = 0; node < sim->config.nodes; node++)
        if (mask >> node & 1) {
            sim_stop_node(sim, node);
            for (uint8_t local = 0; workers && local < sim->config.workers_per_node; local++)
                sim_stop_worker(sim, node, local);
        }
    (void)sim_run(sim, sim->now_ns + sim_random(sim, timeouts * sim->config.timeout_ns));
    uint64_t apart_ns = sim_random(sim, 3) == 0 ? 2 * sim->config.timeout_ns : 10 * SIM_MS;
    for (uint16_t i = 0, first = (uint16_t)sim_random(sim, sim->config.nodes); i < sim->config.nodes; i++) {
        uint16_t node = (uint16_t)((first + i) % sim->config.nodes);
        if (!(mask >> node & 1))
            continue;
        for (uint8_t local = 0; workers && local < sim->config.workers_per_node; local++)
            sim_wake_worker(sim, node, local);
        sim_wake_node(sim, node);
        (void)sim_run(sim, sim->now_ns + sim_random(sim, apart_ns));
    }
}

/* Neighbours by number: a rack, with the launcher or without. */
static uint64_t draw_rack(struct sim *sim)
{
    const uint64_t all = (UINT64_C(1) << sim->config.nodes) - 1;
    const uint64_t first = sim_random(sim, sim->config.nodes), count = 1 + sim_random(sim, sim->config.nodes);
    return ((UINT64_C(1) << count) - 1) << first & all;
}

/* The rack's switch lets nothing through to the others, or nothing from them, or neither; maybe it soon does
 * again. */
static void cut_rack(struct sim *sim)
{
    const uint64_t rack = draw_rack(sim), way = sim_random(sim, 3);
    const bool heals = sim_random(sim, 2) == 0;
    for (uint32_t turn = 0; turn < (heals ? 2U : 1U); turn++) {
        for (uint16_t in = 0; in < sim->config.nodes; in++)
            for (uint16_t out = 0; out < sim->config.nodes; out++)
                if ((rack >> in & 1) > (rack >> out & 1)) {
                    sim->blocked[out][in] = way != 0 && turn == 0;
                    sim->blocked[in][out] = way != 1 && turn == 0;
                }
        sim->healed_ns = sim->now_ns;
        if (heals && turn == 0)
            (void)sim_run(sim, sim->now_ns + sim_random(sim, 3 * sim->config.timeout_ns));
    }
}

/* The nodes of a rack die together, and come back together, as after a loss of power: started by the
 * launcher, or where it starts none, by somebody else. */
static void restart_rack(struct sim *sim)
{
    const uint64_t rack = draw_rack(sim) & ~UINT64_C(1);
    for (uint16_t node = 1; node < sim->config.nodes; node++)
        if (rack >> node & 1)
            sim_kill_node(sim, node);
    (void)sim_run(sim, sim->now_ns + sim_random(sim, 2 * sim->config.timeout_ns));
    for (uint16_t node = 1; node < sim->config.nodes && !sim->over && !sim->config.respawn; node++)
        if ((rack >> node & 1) && !sim->nodes[node].running)
            sim_start_node(sim, node, sim->nodes[node].incarnation + 1);
}

/* What a link, or all links of a node, still carries: some of it, late. */
static void gray(struct sim *sim, uint16_t node)
{
    const uint16_t other = sim_random(sim, 2) == 0 ? SIM_ANY : (uint16_t)sim_random(sim, sim->config.nodes);
    sim_gray(sim, &(struct sim_gray){.a = node,
                                     .b = other,
                                     .loss_ppm = (uint32_t)(300000 + sim_random(sim, 650000)),
                                     .late_ns = sim_random(sim, sim->config.timeout_ns / 2)});
}

static void heal_links(struct sim *sim)
{
    sim_unblock(sim);
    sim->gray_count = 0;
}

static void inject_into_network(struct sim *sim, uint16_t node, uint16_t other)
{
    switch (sim_random(sim, 7)) {
    case 0: /* one way */
        if (node != other)
            *(sim_random(sim, 2) == 0 ? &sim->blocked[node][other] : &sim->blocked[other][node]) = true;
        break;
    case 1:
    case 2:
        cut_rack(sim);
        break;
    case 3:
        gray(sim, sim_random(sim, 3) == 0 ? sim->leader : node);
        break;
    case 4:
        restart_rack(sim);
        break;
    case 5:
        (void)sim_dial(sim, node);
        break;
    default:
        heal_links(sim);
        break;
    }
}

/* Who leads is lost, and comes back no sooner than the next fault; then a node, for which another leader lets
 * one in. */
static void lose_leader_and(struct sim *sim, uint16_t node)
{
    sim_kill_node(sim, sim->leader);
    (void)sim_run(sim, sim->now_ns + 3 * sim->config.timeout_ns);
    if (sim->over || node == sim->leader)
        return;
    sim_kill_node(sim, node);
    (void)sim_run(sim, sim->now_ns + sim_random(sim, 10 * sim->config.timeout_ns));
}

/* A process, or all of a node. */
static void strike(struct sim *sim, uint64_t what, uint16_t node, uint8_t local)
{
    if (what < 3)
        sim_kill_worker(sim, node, local);
    else if (what < 5)
        sim_kill_node(sim, node);
    else if (what == 5)
        sim_stop_node(sim, node);
    else if (what < 8)
        sim_wake_node(sim, node);
    else if (what == 8)
        sim_stop_worker(sim, node, local);
    else
        sim_wake_worker(sim, node, local);
}

/* Who leads, or another, with its disk or without. */
static void restart_a_leader(struct sim *sim, uint16_t other)
{
    other = sim->config.holders < 3 || sim_random(sim, 2) == 0 ? sim->leader : other;
    if (sim->config.holders >= 3 && sim_random(sim, 2) == 0 && sim_may_wipe(sim))
        sim->nodes[other].disk_bytes = 0;
    sim_kill_node(sim, other);
    if (sim_random(sim, 2) == 0)
        (void)sim_run(sim, sim->now_ns + sim_random(sim, 3 * sim->config.timeout_ns));
    if (!sim->nodes[0].running && (sim->config.holders < 3 || sim_random(sim, 2) == 0))
        sim_start_all(sim); /* else it starts agents by itself */
}

static void pause_the_leader(struct sim *sim)
{
    const uint16_t leader = sim->leader;
    sim_stop_node(sim, leader);
    (void)sim_run(sim, sim->now_ns + sim_random(sim, 3 * sim->config.timeout_ns));
    sim_wake_node(sim, leader);
}

/* All, or about half of them. */
static void fill_disks(struct sim *sim, bool all)
{
    for (uint16_t i = 0; i < sim->config.nodes; i++)
        sim->nodes[i].disk_full = sim_random(sim, 2) == 0 || all;
}

static void inject(struct sim *sim)
{
    uint16_t node = (uint16_t)(1 + sim_random(sim, sim->config.nodes - 1U));
    uint16_t other = (uint16_t)sim_random(sim, sim->config.nodes);
    uint8_t local = (uint8_t)sim_random(sim, sim->config.workers_per_node);
    const uint64_t what = sim_random(sim, 31);
    switch (what) {
    case 10:
        if (node != other)
            sim_partition(sim, node, other, sim_random(sim, 2) == 0);
        break;
    case 11:
        sim->loss_ppm = sim_random(sim, 2) == 0 ? 600000 : sim->config.loss_ppm;
        break;
    case 12:
        sim_accuse(sim, node, local, (uint16_t)sim_random(sim, sim->config.ranks));
        break;
    case 13:
        restart_a_leader(sim, other);
        break;
    case 14:
        pause_the_leader(sim);
        break;
    case 15:
        if (sim_random(sim, 4) == 0)
            restart_everything(sim);
        break;
    case 16:
        if (sim->view_changes > 0 && sim_random(sim, 4) == 0)
            sim_fail_worker(sim, node, local, KEEL_DEVICE_LOST);
        break;
    case 17:
        if (sim_random(sim, 8) == 0)
            sim_user_stop(sim);
        break;
    case 18:
        kill_in_a_burst(sim);
        break;
    case 19:
    case 20:
    case 21:
        pause_some(sim);
        break;
    case 22:
        sim->nodes[sim_random(sim, 2) == 0 ? 0 : other].disk_full = sim_random(sim, 3) != 0;
        break;
    case 23:
        sim->duplicate_ppm = (uint32_t)sim_random(sim, 500000);
        break;
    case 24:
        fill_disks(sim, local == 0);
        break;
    case 25:
        if (sim->config.holders >= 3)
            lose_leader_and(sim, node);
        break;
    default:
        if (what < 10)
            strike(sim, what, node, local);
        else
            inject_into_network(sim, node, other);
        break;
    }
}

static void end_faults(struct sim *sim)
{
    sim->loss_ppm = sim->duplicate_ppm = 0;
    heal_links(sim);
    for (uint16_t node = 0; node < sim->config.nodes; node++) {
        sim->nodes[node].disk_full = false;
        sim_wake_node(sim, node);
        for (uint8_t local = 0; local < sim->config.workers_per_node; local++)
            sim_wake_worker(sim, node, local);
    }
}

/* What of a node that has lived for a timeout its leader lacks; NULL: nothing. */
static const char *lacks_of_node(const struct sim *sim, const struct keel_leader *leader, uint16_t node)
{
    const struct sim_node *its = &sim->nodes[node];
    const struct keel_seen_node *seen = &leader->membership.nodes[node];
    const uint64_t long_ago_ns = sim->now_ns - sim->config.timeout_ns;
    if (!its->running || its->started_ns > long_ago_ns || its->state->agent.leaving ||
        its->state->agent.ending)
        return NULL;
    if (!seen->heard || seen->exited || seen->incarnation != its->incarnation)
        return "a node that lives";
    if (its->state->agent.stopping && !leader->stopping)
        return "that the run is to stop";
    if (its->state->agent.next_step > leader->next_step)
        return "what is delivered";
    bool done = false;
    for (uint8_t local = 0; local < sim->config.workers_per_node; local++) {
        const struct sim_worker *w = &its->workers[local];
        done = done || w->done;
        if (!w->running || !w->ready || w->done || w->ready_ns > long_ago_ns)
            continue;
        if (local >= seen->worker_count || seen->workers[local].incarnation != w->incarnation)
            return "a worker that is ready";
        if (w->sent_epoch > seen->workers[local].sent_epoch && sim->view_ns < long_ago_ns)
            return "the view that a worker was told";
    }
    return its->state->agent.notes.count > 0 && !done ? "a note" : NULL;
}

/* The newest snapshot of the present view is whole for a timeout, and its steps are delivered by who leads.
 */
static bool lacks_snapshot(const struct sim *sim, const struct keel_leader *leader)
{
    const struct sim_generation *newest = NULL;
    for (uint32_t i = 0; i < SIM_GENERATIONS_MAX; i++) {
        const struct sim_generation *g = &sim->generations[i];
        if (g->epoch == sim->view.epoch && g->epoch != 0 && (newest == NULL || g->step > newest->step))
            newest = g;
    }
    if (newest == NULL || newest->committed || newest->step >= leader->next_step ||
        leader->first_epoch == 0 || leader->first_epoch > newest->epoch ||
        newest->saved_ns > sim->now_ns - sim->config.timeout_ns)
        return false;
    for (uint16_t rank = 0; rank < keel_view_active_count(&sim->view); rank++) {
        const int at = keel_view_find_rank(&sim->view, rank);
        const struct sim_node *its = at < 0 ? NULL : &sim->nodes[sim->view.members[at].node];
        if (!newest->there[rank] || its == NULL || !its->running || its->started_ns > sim->view_ns)
            return false; /* or nobody who lives can tell of it */
    }
    return true;
}

/* Without it a leader of those who may move learns nothing of another. One that lost its disk since is
 * another holder: it answers nobody for the one that is named. */
static bool has_majority(const struct sim *sim)
{
    const struct keel_view_holders *holders = &sim->view.holders;
    uint32_t up = 0;
    for (uint8_t i = 0; i < holders->count; i++) {
        const struct sim_node *its = &sim->nodes[holders->at[i].node];
        up += its->running && its->state->reg.disk == holders->at[i].disk ? 1 : 0;
    }
    return holders->count == 0 ? sim->nodes[0].running : up * 2 > holders->count;
}

/* Once nothing was wrong for a while, who leads knows all that anybody who led before it can have known: who
 * lives, and what view each was told; what is delivered; that the user asked for the end; notes, and shards.
 */
static void check_leader_knows(struct sim *sim)
{
    const struct sim_node *its = &sim->nodes[sim->leader];
    const struct keel_leader *leader = its->running ? its->state->leader : NULL;
    const uint64_t long_ago_ns = sim->now_ns - 2 * sim->config.timeout_ns;
    const char *lacks = NULL;
    if (sim->over || sim->violation[0] != '\0' || leader == NULL || leader->ending || !has_majority(sim) ||
        its->state->term.role != KEEL_LEADS || leader->lead_ns > long_ago_ns || its->started_ns > long_ago_ns)
        return;
    for (uint16_t node = 1; node < sim->config.nodes && lacks == NULL; node++)
        lacks = node == sim->leader ? NULL : lacks_of_node(sim, leader, node);
    if (lacks == NULL && !leader->awaiting_joins && its->state->view.epoch != sim->newest_epoch)
        lacks = "the newest view";
    if (lacks == NULL && lacks_snapshot(sim, leader))
        lacks = "a shard of a snapshot";
    sim->leaders_asked++;
    if (lacks != NULL)
        (void)snprintf(sim->violation, sizeof sim->violation, "node %u leads and lacks %s, at %" PRIu64 " ms",
                       sim->leader, lacks, sim->now_ns / SIM_MS);
}

/* Nothing is wrong for a while. */
static void rest(struct sim *sim, struct world_wishes *wishes)
{
    end_faults(sim);
    (void)sim_run(sim, sim->now_ns + 4 * sim->config.timeout_ns);
    check_leader_knows(sim);
    wishes_check(wishes, sim);
}

/* Somebody leads, or may yet. */
static bool goes_on(const struct sim *sim)
{
    bool some = sim->nodes[0].running;
    for (uint16_t node = 1; sim->config.holders >= 3 && node < sim->config.nodes; node++)
        some = some || sim->nodes[node].running;
    return some && !sim->over;
}

/* An end that is not the end of the training is resumed, as its user would. */
static void resume_if_ended(struct sim *sim)
{
    if (goes_on(sim))
        return;
    ck_assert_msg(!sim->over || sim->end_status == KEEL_OK || sim->end_status == KEEL_INTERRUPTED ||
                      sim->end_status == KEEL_TIMEOUT,
                  "%s", sim->end_detail);
    if (!sim->over || sim->end_status != KEEL_OK)
        restart_everything(sim);
}

/* SIM_LOG=FILE: a line for each seed, by which two builds of the control plane are compared. */
static void log_run(uint64_t seed, const struct sim *sim)
{
    FILE *log = getenv("SIM_LOG") != NULL ? fopen(getenv("SIM_LOG"), "a") : NULL;
    if (log == NULL)
        return;
    (void)fprintf(log,
                  "%" PRIu64 " views %u epoch %" PRIu64 " chain %016" PRIx64 " trace %016" PRIx64
                  " events %" PRIu64 " ended %" PRIu64 "\n",
                  seed, sim->view_changes, sim->newest_epoch, sim->view_chain, sim->trace_hash,
                  sim->events_done, sim->now_ns);
    (void)fclose(log);
}

static uint64_t worlds_arrivals; /* of all that were played: agents that another than the launcher let in */
static uint64_t worlds_answers;  /* wishes that who leads knew when it was asked once more */

static uint64_t random_run(uint64_t seed, bool verbose)
{
    struct sim_config small = sim_default(seed);
    struct sim *dice = sim_create(&small);
    struct sim *sim = NULL;
    struct world_wishes wishes;
    struct sim_config config = random_config(dice);
    sim_destroy(dice);
    sim = sim_create(&config);
    sim->verbose = verbose;
    if (verbose)
        printf("%u nodes of %u workers, %u ranks, %u spares, %u holders, timeout %" PRIu64 " ms, %" PRIu64
               " steps, a snapshot every %" PRIu64 ", loss %u ppm, an event costs %" PRIu64
               " ns, a socket has %u bytes\n",
               config.nodes, config.workers_per_node, config.ranks, config.spares, config.holders,
               config.timeout_ns / SIM_MS, config.last_step, config.snapshot_every, config.loss_ppm,
               config.costs.event_ns, config.costs.socket_bytes);
    wishes_begin(&wishes, seed);
    sim_start_all(sim);
    uint64_t faults = sim_random(sim, 12);
    for (uint64_t i = 0; i < faults && sim->violation[0] == '\0'; i++) {
        /* Faults come together, too. */
        (void)sim_run(sim, sim->now_ns + sim_random(sim, (sim_random(sim, 3) == 0 ? 20 : 1500) * SIM_MS));
        resume_if_ended(sim);
        if (!sim->over)
            inject(sim);
        wishes_turn(&wishes, sim);
        if (sim_random(sim, 8) == 0)
            rest(sim, &wishes);
    }
    rest(sim, &wishes);
    bool over = false;
    for (uint32_t attempt = 0; attempt < 3 && !over && sim->violation[0] == '\0'; attempt++) {
        resume_if_ended(sim);
        over = sim_run(sim, sim->now_ns + 60 * config.timeout_ns + 2 * config.last_step * config.step_ns) &&
               sim->end_status == KEEL_OK;
    }
    ck_assert_msg(sim->violation[0] == '\0', "seed %" PRIu64 ": %s", seed, sim->violation);
    if (!over && verbose)
        for (uint16_t n = 0; n < config.nodes; n++)
            printf(
                "node %u running %d stopped %d finished %d worker running %d stopped %d done %d told %" PRIu64
                " next %" PRIu64 " group %" PRIu64 " now %" PRIu64 "\n",
                n, sim->nodes[n].running, sim->nodes[n].stopped, sim->nodes[n].finished,
                sim->nodes[n].workers[0].running, sim->nodes[n].workers[0].stopped,
                sim->nodes[n].workers[0].done, sim->nodes[n].workers[0].sent_epoch,
                sim->nodes[n].workers[0].next_step, sim->group_epoch, sim->now_ns);
    ck_assert_msg(over, "seed %" PRIu64 ": not over, %" PRIu64 " of %" PRIu64 " steps, epoch %" PRIu64, seed,
                  sim->delivered_next, config.last_step, sim->newest_epoch);
    ck_assert_msg(sim->delivered_count + sim->gaps == config.last_step, "seed %" PRIu64 ": %" PRIu64 " steps",
                  seed, sim->delivered_count);
    ck_assert_msg(sim->mismatches == 0, "seed %" PRIu64 ": bits differ", seed);
    ck_assert_msg(sim->spins == 0, "seed %" PRIu64 ": a node spins", seed);
    log_run(seed, sim);
    worlds_arrivals += sim->arrivals;
    worlds_answers += wishes.answers;
    uint64_t hash = sim->trace_hash;
    sim_destroy(sim);
    return hash;
}

#endif
