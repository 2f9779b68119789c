/* node_leader.c - the part of who leads: turning evidence into views, delivering steps and snapshots,
 * ending the run. States and invariants: head of node.c.
 *
 * Every function here is called with node->env set; keel_leader_work looks at everything that may be due and
 * is cheap enough to run after every event. */
#include "node_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SOUGHT_MAX = 64 }; /* nodes that are looked at in a beat */

/* ---- telling agents ------------------------------------------------------------------------------------ */

/* What the ranks save as they stop counts in their view alone, so they are told when all are in one that
 * stays: in the first of a run, which has nothing to save before a step; in another, when a step shows it; or
 * when they had time for that. */
static bool tells_stop(const struct keel_node *node)
{
    const struct keel_leader *leader = node->leader;
    if (!leader->stopping || leader->awaiting_joins)
        return leader->stopping && !leader->took_over;
    const bool first = !leader->took_over && node->view.epoch == leader->first_epoch;
    const bool stays = !leader->changing && !leader->verdict.active_gone;
    const uint64_t from_ns = leader->stop_ns > leader->view_ns ? leader->stop_ns : leader->view_ns;
    return (stays && (first || leader->front_step > 0)) ||
           keel_node_due(node, from_ns + node->times.silence_ns);
}

static void tell(struct keel_node *node, uint16_t to, bool missing)
{
    const struct keel_leader *leader = node->leader;
    struct keel_wire_leader *out = &keel_node_message(node, KEEL_WIRE_LEADER)->as.leader;
    out->term = node->term.ballot;
    out->first_step = node->config.first_step;
    out->next_step = leader->next_step;
    out->lacks_to = keel_records_first(&node->records, leader->next_step);
    out->missing = missing;
    out->stop = tells_stop(node);
    out->end = leader->ending;
    out->leave = keel_leaving_may_go(node, to);
    out->note = leader->notes[to];
    out->away = node->away.version;
    out->status = leader->end_status;
    memcpy(out->detail, leader->end_detail, sizeof out->detail);
    keel_node_send(node, to);
}

void keel_leader_tell(struct keel_node *node, uint16_t to)
{
    tell(node, to, false);
}

/* The launcher where another leads; and the agent of this node, if it has one. */
static void tell_all(struct keel_node *node)
{
    for (uint16_t to = node->config.launcher ? 1 : 0; to < node->leader->membership.node_count; to++)
        tell(node, to, false);
}

/* The view is new: to all who live, evicted members too, which end by it. Who is silent is told when it
 * speaks. */
static void tell_view(struct keel_node *node, const struct keel_view *old)
{
    struct keel_leader *leader = node->leader;
    uint16_t have[KEEL_NODES_MAX], lack[KEEL_NODES_MAX], have_count = 0, lack_count = 0;
    for (uint16_t to = 0; to < node->leader->membership.node_count; to++) {
        const struct keel_seen_node *seen = &node->leader->membership.nodes[to];
        if (to == node->config.node || !seen->heard || seen->exited || seen->ended ||
            keel_node_due(node, seen->heard_ns + node->times.silence_ns / 2))
            continue;
        if (keel_bitset_has(&leader->told, to))
            have[have_count++] = to;
        else
            lack[lack_count++] = to;
    }
    memset(&leader->informed, 0, sizeof leader->informed);
    memset(&leader->told, 0, sizeof leader->told);
    leader->view_ns = node->now_ns;
    keel_views_made(node, old);
    memcpy(have + have_count, lack, lack_count * sizeof lack[0]);
    for (uint32_t i = 0; i < (uint32_t)have_count + lack_count; i++)
        keel_bitset_add(&leader->told, have[i]);
    keel_views_hand_on(node, have, have_count, lack_count);
}

/* A node has an older view, and the present one had time to come to it, in parts a beat (who is pointed to us
 * meanwhile holds up all others): it is told by us, and pointed to one who has the parts. */
static void repair_view(struct keel_node *node, uint16_t to, uint64_t epoch)
{
    struct keel_leader *leader = node->leader;
    keel_bitset_remove(&leader->informed, to);
    const bool parts = keel_wire_parts(node->news.name.bytes) > 1;
    if (!keel_node_due(node, leader->view_ns + (parts ? node->times.beat_ns : node->times.gather_ns)))
        return;
    const uint64_t any = node->env->random(node->env->context) % node->leader->membership.node_count;
    uint32_t source = keel_bitset_next(&leader->informed, (uint32_t)any); /* another each time */
    if (source >= KEEL_NODES_MAX)
        source = keel_bitset_next(&leader->informed, 0);
    keel_views_tell(node, to, epoch, source < KEEL_NODES_MAX ? (uint16_t)source : node->config.node);
    keel_bitset_add(&leader->told, to);
}

/* ---- end ----------------------------------------------------------------------------------------------- */

static void end_run(struct keel_node *node, enum keel_status status, const char *detail)
{
    struct keel_leader *leader = node->leader;
    KEEL_ASSERT(!leader->ending && !node->finished);
    leader->ending = true;
    leader->end_ns = leader->end_sent_ns = node->now_ns;
    leader->end_status = status;
    (void)snprintf(leader->end_detail, sizeof leader->end_detail, "%s", detail);
    keel_node_trace(node, "end %s: %s", keel_status_name(status), detail);
    keel_register_rest(&node->reg);
    tell_all(node);
}

static bool is_awaited(const struct keel_node *node, uint16_t which)
{
    const struct keel_seen_node *seen = &node->leader->membership.nodes[which];
    return seen->heard && !seen->ended && !seen->exited &&
           !keel_node_due(node, seen->heard_ns + node->times.silence_ns);
}

/* Is some node to end that did not? Asked after every event: it looks at the others once that one has ended.
 */
static bool some_awaited(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    if (is_awaited(node, leader->end_awaited))
        return true;
    for (uint16_t i = 0; i < node->leader->membership.node_count; i++) {
        leader->end_awaited = i;
        if (is_awaited(node, i))
            return true;
    }
    return false;
}

static void work_on_end(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    if (!some_awaited(node) || keel_node_due(node, leader->end_ns + 3 * node->times.silence_ns)) {
        keel_node_finish(node, leader->end_status, leader->end_detail);
        return;
    }
    if (keel_node_due(node, leader->end_sent_ns + node->times.beat_ns)) {
        leader->end_sent_ns = node->now_ns;
        tell_all(node);
    }
}

/* ---- steps --------------------------------------------------------------------------------------------- */

static void deliver(struct keel_node *node, const struct keel_step_record *record)
{
    KEEL_ASSERT(record->step == node->leader->next_step); /* invariant 5 */
    node->leader->next_step++;
    node->leader->over_ns = 0; /* progress: the last ones may take their time */
    node->env->step_commit(node->env->context, record);
}

static void deliver_steps(struct keel_node *node)
{
    const struct keel_record_slot *slot;
    while ((slot = keel_records_get(&node->records, node->leader->next_step)) != NULL)
        deliver(node, &slot->record);
    keel_snapshots_commit(node);
}

/* Somebody who took part in the steps is still at work. Who joined while the last one was committed did not.
 */
static bool carrier_remains(const struct keel_node *node)
{
    const struct keel_carriers *carriers = &node->leader->carriers;
    const struct keel_verdict *verdict = &node->leader->verdict;
    for (uint16_t i = 0; i < node->leader->active_count; i++) {
        const struct keel_member *member = &node->view.members[i];
        if (keel_bitset_has(&verdict->gone, i) || keel_bitset_has(&verdict->done, i))
            continue;
        if (carriers->epoch == 0 ||
            (member->node < carriers->rows &&
             carriers->incarnation[member->node][member->local] == member->incarnation + 1))
            return true;
    }
    return false;
}

static void set_carriers(struct keel_node *node, const struct keel_view *view)
{
    struct keel_carriers *carriers = &node->leader->carriers;
    memset(carriers->incarnation, 0, carriers->rows * sizeof carriers->incarnation[0]);
    carriers->epoch = view->epoch;
    for (uint16_t i = 0; i < view->member_count && !view->members[i].spare; i++) {
        const struct keel_member *member = &view->members[i];
        carriers->rows = member->node < carriers->rows ? carriers->rows : member->node + 1U;
        carriers->incarnation[member->node][member->local] = member->incarnation + 1;
    }
    node->leader->carrier_left = carrier_remains(node);
}

/* A record came that is further than the next one: ask for what lies between, not too often. */
static void ask_for_hole(struct keel_node *node, uint16_t from, uint64_t step)
{
    struct keel_leader *leader = node->leader;
    if (step < leader->next_step || !keel_node_due(node, leader->hole_asked_ns + node->times.record_ns))
        return;
    leader->hole_asked_ns = node->now_ns;
    tell(node, from, true);
}

/* The lowest record that a node holds from the next one on; UINT64_MAX: none, or it is dead, or by its own
 * rule ended. Of whom nothing was heard it may be any. */
static uint64_t first_held(const struct keel_node *node, uint16_t which)
{
    const struct keel_seen_node *seen = &node->leader->membership.nodes[which];
    if (which == 0 && !seen->heard) /* the launcher was not an agent */
        return UINT64_MAX;
    if (seen->exited || seen->ended || keel_node_due(node, seen->heard_ns + node->times.launcher_timeout_ns))
        return UINT64_MAX;
    return seen->heard ? seen->first_record : node->leader->next_step;
}

static void find_held(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    leader->held_from = leader->next_step;
    leader->held_first = UINT64_MAX;
    for (uint16_t i = 0; i < leader->membership.node_count && leader->held_first > leader->next_step; i++) {
        const uint64_t first = first_held(node, i);
        if (first >= leader->held_first)
            continue;
        leader->held_first = first;
        leader->held_by = i;
    }
}

/* A report of this node came: it may hold a record that nobody held. */
static void hear_held(struct keel_node *node, uint16_t which)
{
    struct keel_leader *leader = node->leader;
    const uint64_t first = first_held(node, which);
    if (first >= leader->held_first)
        return;
    leader->held_first = first;
    leader->held_by = which;
}

/* Nobody who may live holds the next record. Asked after every event: it looks at all nodes only when the one
 * that held it does not hold it any more. */
static bool is_lost(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    const bool known = leader->held_from == leader->next_step;
    if (!known ||
        (leader->held_first <= leader->next_step && first_held(node, leader->held_by) > leader->next_step))
        find_held(node);
    return leader->held_first > leader->next_step;
}

/* The run is further than agents keep records, and the next one is lost: what they keep is lost too before it
 * could be asked for, if it is left to the timeout of a hole, or if steps are fast. So most of it is asked
 * for once; and when that came too late, delivery goes on with the record that is here. */
static void catch_up(struct keel_node *node, uint64_t step)
{
    struct keel_leader *leader = node->leader;
    const bool again =
        leader->behind_ns != 0 && !keel_node_due(node, leader->behind_ns + node->times.silence_ns);
    const uint64_t next = again ? step : step - KEEL_RECORDS_ASKED;
    leader->behind_ns = node->now_ns;
    keel_node_trace(node, "records of steps %" PRIu64 " to %" PRIu64 " are lost: the run is at %" PRIu64,
                    leader->next_step, next - 1, step);
    KEEL_ASSERT(next > leader->next_step); /* invariant 5 */
    leader->next_step = next;
}

static void take_record(struct keel_node *node, const struct keel_step_record *record)
{
    struct keel_leader *leader = node->leader;
    if (record->step >= node->config.last_step) /* of no step of this run */
        return;
    if (record->epoch == node->view.epoch && record->step > leader->front_step)
        leader->front_step = record->step;
    const struct keel_view *view = record->epoch == node->view.epoch ? &node->view : &leader->before;
    if (record->epoch == view->epoch && record->epoch > leader->carriers.epoch)
        set_carriers(node, view);
    const bool far = record->step > leader->next_step && record->step - leader->next_step >= KEEL_RECORDS_MAX;
    if (far && (record->epoch != node->view.epoch || !is_lost(node)))
        return; /* would push out what is still wanted; it is sent again */
    if (far)
        catch_up(node, record->step);
    const enum keel_record_fate fate = keel_records_put(&node->records, record, node->now_ns);
    /* Its own workers are past that by more than is kept, and one that led before has it. */
    if (fate == KEEL_RECORD_OLD && record->step == leader->next_step)
        deliver(node, record);
    if (fate == KEEL_RECORD_DIFFERENT) {
        const struct keel_step_record *other = &keel_records_get(&node->records, record->step)->record;
        keel_node_trace(node, "step %" PRIu64 ": the bits of two ranks differ", record->step);
        node->env->mismatch(node->env->context, other, record);
    }
    deliver_steps(node);
}

/* Delivery goes on behind the next hole. False: it may be none. */
static bool pass_hole(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    find_held(node);
    const uint64_t mine = keel_records_first(&node->records, leader->next_step);
    const uint64_t lowest = mine < leader->held_first ? mine : leader->held_first;
    /* Who told of a later one died with it; or somebody came meanwhile who was not heard and may hold it. */
    if (lowest == UINT64_MAX || lowest <= leader->next_step)
        return false;
    keel_node_trace(node, "records of steps %" PRIu64 " to %" PRIu64 " are lost", leader->next_step,
                    lowest - 1);
    leader->next_step = lowest;
    deliver_steps(node);
    return true;
}

/* When nobody who lives holds the next record and the present epoch is past it, or its workers are done, the
 * run went on without it: it is lost, and delivery goes on behind the hole after a timeout. So it does behind
 * further holes, as far as nobody held a record in that time. */
static void skip_holes(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    const bool over = leader->over_ns != 0;
    if ((leader->front_step <= leader->next_step && !over) || !is_lost(node)) {
        leader->hole_ns = 0;
        return;
    }
    if (leader->hole_ns == 0 || leader->hole_step != leader->next_step) {
        leader->hole_ns = node->now_ns;
        leader->hole_step = leader->next_step;
    }
    if (!keel_node_due(node, leader->hole_ns + node->times.silence_ns))
        return;
    leader->hole_ns = 0;
    const uint64_t until = leader->held_first; /* the lowest that anybody held since */
    while (leader->next_step < until && (leader->front_step > leader->next_step || over) && pass_hole(node))
        continue;
}

/* No node that may live holds a record that was not delivered. One that has left (node_leaving.c) lives no
 * more, though who leads now may never have heard of it. */
static bool records_settled(const struct keel_node *node)
{
    for (uint16_t i = 1; i < node->leader->membership.node_count; i++) {
        const struct keel_seen_node *seen = &node->leader->membership.nodes[i];
        const bool left = keel_bitset_has(&node->away.set, i) && keel_bitset_has(&node->children.ended, i);
        if (!seen->exited && !seen->ended && !left && (!seen->heard || seen->first_record != UINT64_MAX))
            return false;
    }
    return true;
}

/* ---- the end in sight ---------------------------------------------------------------------------------- */

/* Did this life of the run see its last step committed? */
bool keel_leader_has_delivered(const struct keel_node *node)
{
    const struct keel_leader *leader = node->leader;
    return !leader->awaiting_joins && leader->next_step > node->config.first_step &&
           leader->next_step >= node->config.last_step;
}

/* The ranks that committed the last step write its snapshot by themselves: a rank that joins has no work. */
static bool is_finishing(const struct keel_node *node)
{
    return keel_leader_has_delivered(node) && node->leader->carrier_left;
}

/* True if no rank that took part in the last step is still at work. Its snapshot was committed, or was lost
 * with a rank: then the next run of the same command writes it with all ranks, since those left here lack the
 * shards of the ranks that are done. */
static bool is_over(const struct keel_node *node)
{
    bool kept = node->leader->end_kept || !node->config.keeps_end;
    return keel_leader_has_delivered(node) && !node->leader->carrier_left &&
           (kept || node->leader->membership.done_count > 0);
}

/* ---- changing the view --------------------------------------------------------------------------------- */

static void suspect(struct keel_node *node, const struct keel_view *base, struct keel_verdict *out)
{
    if (node->leader->awaiting_joins)
        keel_membership_awaited(&node->leader->membership, base, &node->times, node->now_ns, out);
    else
        keel_membership_suspect(&node->leader->membership, base, &node->times, node->now_ns, out);
    node->leader->carrier_left = carrier_remains(node);
}

/* Look at all anew, if the newest look does not hold any more: true. */
static bool judge(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    const struct keel_view *base = leader->awaiting_joins ? &leader->earlier : &node->view;
    uint64_t wake_ns;
    const bool holds =
        keel_membership_holds(&node->leader->membership, &leader->verdict, base, node->now_ns, &wake_ns);
    if (!holds)
        suspect(node, base, &leader->verdict);
    else
        keel_node_wake(node, wake_ns);
    keel_node_wake(node, leader->verdict.wake_ns);
    return !holds;
}

/* Who may join now: nobody whose work would be in vain. But without newcomers nobody may be left to do it. */
static uint16_t joining(const struct keel_node *node, const struct keel_verdict *verdict)
{
    const uint16_t rest = (uint16_t)(verdict->remaining + verdict->spares);
    if (verdict->join_count == 0) /* asked after every event: what follows looks at all members */
        return 0;
    const bool enough = keel_view_seats(node->config.plans, node->config.rank_count, rest) > 0;
    const bool idle = node->leader->stopping || (enough && is_finishing(node));
    return idle ? 0 : verdict->join_count;
}

/* Active ranks of the view that would be next. */
static uint16_t seats_of(const struct keel_node *node, const struct keel_verdict *verdict)
{
    const uint32_t workers = (uint32_t)verdict->remaining + verdict->spares + joining(node, verdict);
    return keel_view_seats(node->config.plans, node->config.rank_count, workers);
}

/* The view cannot go on, and no plan is for those who are left. */
static bool is_short(const struct keel_node *node, const struct keel_verdict *verdict)
{
    return !node->leader->stopping && verdict->active_gone && seats_of(node, verdict) == 0;
}

static void propose(struct keel_node *node, enum keel_cause cause, uint64_t alive_ns, uint64_t evidence_ns)
{
    struct keel_leader *leader = node->leader;
    if (node->reg.phase != KEEL_REGISTER_IDLE || !keel_node_due(node, leader->retry_ns))
        return;
    if (!keel_register_may_begin(&node->reg)) {
        end_run(node, KEEL_CORRUPT,
                "the holders of the view have a ballot that has no next; resume from the newest snapshot");
        return;
    }
    if (!leader->changing)
        leader->change_ns = node->now_ns;
    leader->changing = true;
    leader->change_cause = cause;
    leader->alive_ns = alive_ns;
    leader->evidence_ns = evidence_ns;
    leader->resend_ns = node->now_ns + node->times.beat_ns / 2;
    keel_node_trace(node, "propose after epoch %" PRIu64 ": %s", node->view.epoch, keel_cause_name(cause));
    keel_register_begin(&node->reg, node->view.epoch, &node->view.holders);
    KEEL_ASSERT(node->reg.phase == KEEL_REGISTER_READING);
    keel_node_ask_holders(node);
}

void keel_leader_ask(struct keel_node *node)
{
    propose(node, KEEL_CAUSE_START, 0, 0);
}

/* Of this run, as its job is now. */
static bool has_plan(const struct keel_node *node, const struct keel_view *view)
{
    const uint16_t active = keel_view_active_count(view);
    return active <= node->config.rank_count && view->plan == node->config.plans[active];
}

/* By the rules of register.h: others than now only where that is known to be committed, or needs no others.
 */
static void name_holders(const struct keel_node *node, struct keel_view *next)
{
    const struct keel_view_holders *sets = node->reg.sets;
    if (!keel_node_moves(node))
        return;
    next->before = sets[0];
    next->holders = sets[1];
    if (keel_view_holders_same(&sets[0], &sets[1]))
        keel_holders_choose(node, &sets[1], &next->holders);
}

/* The read phase gave the present value: make the next of it. A value that is newer than the view known
 * was left by a ballot that was cut short; it is committed as it is, before anything new. */
static void write_next(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    struct keel_register_value *value = &node->reg.proposal;
    struct keel_view *base = keel_node_lend(node, sizeof *base), *next = keel_node_lend(node, sizeof *next);
    memset(base, 0, offsetof(struct keel_view, members));
    bool fine = value->bytes == 0 || keel_view_decode(value->data, value->bytes, base);
    keel_moves_raise(node);
    if (fine && base->epoch < node->view.epoch && node->reg.known_epoch < node->view.epoch) {
        keel_register_rest(&node->reg); /* another has made a view since it was asked */
        leader->changing = false;
        return;
    }
    if (!fine || base->epoch < node->view.epoch || base->epoch == KEEL_EPOCH_MAX) {
        end_run(node, KEEL_CORRUPT, "the holders of the view lost it; resume from the newest snapshot");
        return;
    }
    if (!leader->awaiting_joins && base->epoch > node->view.epoch &&
        base->shard_count == node->config.shard_count && has_plan(node, base)) {
        if (keel_node_moves(
                node)) /* who wrote it led meanwhile, and may have committed what was begun before */
            leader->first_epoch = base->epoch + 1;
        keel_view_copy(next, base);
    } else {
        struct keel_verdict *verdict = &leader->verdict;
        if (leader->awaiting_joins && base->epoch < node->config.past_epoch)
            base->epoch = node->config.past_epoch; /* of views that nobody remembers who is asked */
        if (leader->took_over && leader->awaiting_joins) {
            if (base->epoch != leader->earlier.epoch) /* of which nobody said yet that it has it */
                memset(&leader->told, 0, sizeof leader->told);
            keel_view_copy(&leader->earlier, base);
        }
        suspect(node, base, verdict);
        node->leader->membership.changed = true; /* `base` may be another view than is judged next */
        struct keel_view_change change = {.gone = verdict->gone,
                                          .joins = verdict->joins,
                                          .join_count = joining(node, verdict),
                                          .rank_count = node->config.rank_count,
                                          .shard_count = node->config.shard_count,
                                          .plans = node->config.plans};
        keel_bitset_add_all(&change.gone, &verdict->done);
        if (!keel_view_next(base, &change, next)) {
            keel_register_rest(&node->reg);
            leader->changing = false;
            return;
        }
        name_holders(node, next);
    }
    KEEL_ASSERT(next->epoch > node->view.epoch && keel_view_valid(next)); /* invariants 1 and 3 */
    KEEL_ASSERT(has_plan(node, next));                                    /* invariant 9 */
    uint8_t *bytes = keel_node_lend(node, KEEL_VIEW_BYTES_MAX);
    keel_register_write(&node->reg, bytes, keel_view_encode(next, bytes));
    KEEL_ASSERT(keel_view_decode(node->reg.proposal.data, node->reg.proposal.bytes, base));
    KEEL_ASSERT(base->epoch == next->epoch && base->member_count == next->member_count);
    keel_node_ask_holders(node);
}

static void install(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    const bool is_first = leader->awaiting_joins;
    const struct keel_view *old = &leader->before;
    struct keel_view *next = keel_node_lend(node, sizeof *next);
    bool fine = keel_view_decode(node->reg.proposal.data, node->reg.proposal.bytes, next);
    keel_view_copy(&leader->before, is_first && leader->took_over ? &leader->earlier : &node->view);
    KEEL_ASSERT(fine && next->epoch > old->epoch); /* we wrote it; invariant 1 */
    KEEL_ASSERT(node->reg.phase == KEEL_REGISTER_IDLE && leader->changing);
    KEEL_ASSERT(next->shard_count == node->config.shard_count);
    leader->before_count = is_first ? keel_view_active_count(old) : leader->active_count;
    leader->first_epoch = is_first ? next->epoch : leader->first_epoch;
    if (node->config.launcher)
        keel_view_copy(&node->view, next);
    else
        keel_agent_adopt(node, next);
    leader->active_count = keel_view_active_count(next);
    leader->remind_ns = node->now_ns + node->times.beat_ns;
    leader->awaiting_joins = leader->changing = leader->short_told = false;
    leader->first_ready_ns = leader->over_ns = leader->front_step = 0;
    keel_snapshots_turn(node);
    keel_membership_clear_evidence(&node->leader->membership);
    keel_node_trace(node, "view epoch %" PRIu64 ": %u active, %u members, after %s", next->epoch,
                    keel_view_active_count(next), next->member_count, keel_cause_name(leader->change_cause));
    tell_view(node, old);
    node->env->view_change(node->env->context, old, &node->view, leader->change_cause, leader->alive_ns,
                           leader->evidence_ns);
}

void keel_leader_register(struct keel_node *node, enum keel_register_outcome outcome)
{
    if (node->leader->ending)
        return;
    switch (outcome) {
    case KEEL_REGISTER_WAIT:
    case KEEL_REGISTER_OTHERS:
        break;
    case KEEL_REGISTER_HAVE:
        write_next(node);
        break;
    case KEEL_REGISTER_COMMITTED:
        install(node);
        break;
    case KEEL_REGISTER_REFUSED:
        node->leader->retry_ns = node->now_ns + node->times.gather_ns +
                                 node->env->random(node->env->context) % (node->times.gather_ns + 1);
        break;
    }
}

/* ---- when is it time? ---------------------------------------------------------------------------------- */

/* All that is left of the view's workers has finished. */
static void conclude(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    if (leader->over_ns == 0)
        leader->over_ns = node->now_ns;
    bool complete = leader->next_step >= node->config.last_step;
    if (complete)
        end_run(node, KEEL_OK, "all steps are committed");
    else if (!records_settled(node) && !keel_node_due(node, leader->over_ns + node->times.grace_ns))
        return;
    else if (leader->stopping)
        end_run(node, KEEL_INTERRUPTED, KEEL_NODE_STOPPED);
    else /* resumed from a snapshot that is newer than the last record that was delivered */
        end_run(node, KEEL_OK, "all steps are done; the records of the last ones died with their nodes");
}

static void end_without_workers(struct keel_node *node, uint16_t ranks)
{
    const char *detail;
    const struct keel_view *of = node->leader->awaiting_joins ? NULL : &node->view;
    const enum keel_status failure = keel_membership_failure(&node->leader->membership, of, &detail);
    const uint16_t fewest = keel_node_fewest_ranks(node);
    if (failure != KEEL_OK && ranks == 0) {
        end_run(node, failure, detail);
        return;
    }
    char text[KEEL_WIRE_DETAIL_BYTES], head[96] = "all workers are lost";
    const char *reason = "";
    for (uint16_t i = 1; i < node->leader->membership.node_count && reason[0] == '\0'; i++)
        reason = node->leader->membership.nodes[i].detail;
    if (ranks > 0 || fewest > 1)
        (void)snprintf(head, sizeof head, "%u of the %u ranks that the smallest plan needs are left", ranks,
                       fewest);
    (void)snprintf(text, sizeof text, "%s%s%.*s; run the same command again to resume", head,
                   reason[0] != '\0' ? ": " : "", (int)sizeof text - 140, reason);
    end_run(node, KEEL_INTERRUPTED, text);
}

/* Starting takes its time. */
static void tell_shortage(struct keel_node *node, uint16_t ranks)
{
    struct keel_leader *leader = node->leader;
    if (leader->short_told || ranks == 0 ||
        (leader->awaiting_joins && !keel_node_due(node, leader->start_ns + node->times.grace_ns)))
        return;
    leader->short_told = true;
    keel_node_trace(node, "%u ranks, and the smallest plan is for %u: wait", ranks,
                    keel_node_fewest_ranks(node));
    node->env->shortage(node->env->context, ranks, keel_node_fewest_ranks(node));
}

/* No plan is for so few as are there: wait for those who may come, or end by themselves. What the last ranks
 * leave undone when others are done already, the next life of the run does. */
static void await_enough(struct keel_node *node, const struct keel_verdict *verdict, uint32_t hope)
{
    struct keel_leader *leader = node->leader;
    const uint16_t ranks = (uint16_t)(verdict->remaining + verdict->spares + verdict->join_count);
    const bool late = keel_node_due(node, leader->start_ns + node->times.join_wait_ns);
    leader->first_ready_ns = 0;
    if (!late && is_finishing(node))
        return;
    if (!late && hope > 0)
        tell_shortage(node, ranks);
    else if (verdict->done_count > 0)
        conclude(node);
    else if (ranks == 0 && hope > 0)
        end_run(node, KEEL_TIMEOUT, "no worker became ready in time; see the workers' logs");
    else
        end_without_workers(node, ranks);
}

/* Until then nobody takes the place of one that lives. */
bool keel_leader_hears_members(const struct keel_node *node)
{
    const struct keel_leader *leader = node->leader;
    for (uint16_t i = 0; i < leader->earlier.member_count; i++) {
        const struct keel_seen_node *seen = &leader->membership.nodes[leader->earlier.members[i].node];
        if (!seen->heard && !seen->exited)
            return false;
    }
    return true;
}

/* Nobody carries the run: wait for enough of those who may come, but not for long once one is there. */
static void await_joins(struct keel_node *node, const struct keel_verdict *verdict)
{
    struct keel_leader *leader = node->leader;
    uint32_t ready = (uint32_t)verdict->remaining + verdict->spares + verdict->join_count;
    uint32_t hope = (uint32_t)verdict->coming + verdict->unheard + keel_children_awaited(node);
    uint64_t patience_ns = leader->awaiting_joins ? node->times.grace_ns : node->times.silence_ns;
    if (seats_of(node, verdict) == 0) {
        await_enough(node, verdict, hope);
        return;
    }
    leader->start_ns = node->now_ns;
    if (leader->first_ready_ns == 0)
        leader->first_ready_ns = node->now_ns;
    uint32_t wanted =
        (uint32_t)node->config.rank_count + (leader->awaiting_joins ? node->config.spare_count : 0);
    if (leader->awaiting_joins && leader->took_over && leader->earlier.member_count > 0) {
        wanted = leader->earlier.member_count < wanted ? leader->earlier.member_count : wanted;
        patience_ns = node->times.silence_ns;
        ready -= keel_leader_hears_members(node) ? 0 : verdict->join_count;
    }
    uint64_t due_ns = leader->first_ready_ns + patience_ns;
    bool lost = !leader->awaiting_joins && verdict->active_gone;
    enum keel_cause cause = lost                     ? verdict->cause
                            : leader->awaiting_joins ? KEEL_CAUSE_START
                                                     : KEEL_CAUSE_JOIN;
    if (ready >= wanted || hope == 0 || keel_node_due(node, due_ns))
        propose(node, cause, lost ? verdict->alive_ns : 0,
                lost ? verdict->evidence_ns : leader->first_ready_ns);
    else
        keel_node_wake(node, due_ns);
}

static void watch_view(struct keel_node *node, const struct keel_verdict *verdict)
{
    if (verdict->active_gone) {
        /* Of nodes that are cut off together each was heard at another moment of a beat. */
        const uint64_t others_ns = verdict->overdue > 0 ? node->times.beat_ns : 0;
        uint64_t due_ns = verdict->evidence_ns + node->times.gather_ns + others_ns;
        if (!keel_node_due(node, due_ns))
            keel_node_wake(node, due_ns);
        else if (seats_of(node, verdict) > 0)
            propose(node, verdict->cause, verdict->alive_ns, verdict->evidence_ns);
    } else if (joining(node, verdict) > 0 && verdict->done_count == 0 &&
               seats_of(node, verdict) > verdict->remaining) {
        uint64_t due_ns = node->leader->membership.join_ns + node->times.gather_ns;
        if (keel_node_due(node, due_ns))
            propose(node, KEEL_CAUSE_JOIN, 0, node->leader->membership.join_ns);
        else
            keel_node_wake(node, due_ns);
    }
}

/* A change under way: repeat the ask; without a majority for sixty timeouts the run cannot go on. But our own
 * disk, when it is full, is waited for until there is room or the user stops the run. */
static void push_change(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    if (!leader->changing) {
        if (keel_node_due(node, leader->remind_ns)) {
            leader->remind_ns = node->now_ns + node->times.beat_ns;
            keel_node_remind_holders(node);
        }
        return;
    }
    if (node->unstored)
        leader->change_ns = node->now_ns;
    if (keel_node_due(node, leader->change_ns + node->times.join_wait_ns)) {
        end_run(node, KEEL_INTERRUPTED, "most holders of the view are gone; run the same command again");
        return;
    }
    if (node->reg.phase != KEEL_REGISTER_IDLE && keel_node_due(node, leader->resend_ns)) {
        leader->resend_ns = node->now_ns + node->times.beat_ns / 2;
        keel_node_ask_holders(node);
    }
    /* A change that was refused is proposed again only while it is wanted: nothing is due then. */
    const uint64_t next_ns = leader->resend_ns > leader->retry_ns ? leader->resend_ns : leader->retry_ns;
    if (!keel_node_due(node, next_ns))
        keel_node_wake(node, next_ns);
}

/* The view may stay, but not all who hold it are there. Looked at once a beat: it may take all nodes. */
static void watch_holders(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    if (!keel_node_moves(node) || !keel_node_due(node, leader->holders_ns))
        return;
    leader->holders_ns = node->now_ns + node->times.beat_ns;
    if (!leader->awaiting_joins && !leader->changing && !leader->stopping && !leader->verdict.active_gone &&
        leader->verdict.done_count == 0 && keel_holders_due(node))
        propose(node, KEEL_CAUSE_HOLDER, 0, node->now_ns);
}

/* Who is silent may know nobody who holds the view now: one after the other, one a beat, is told who leads;
 * and one that was silent for too long counts as ended. */
static void seek_silent(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    const uint16_t count = leader->membership.node_count;
    if (!keel_node_moves(node) || !keel_node_due(node, leader->sought_ns + node->times.beat_ns))
        return;
    leader->sought_ns = node->now_ns;
    for (uint32_t i = 0; i < SOUGHT_MAX && i < count; i++) {
        leader->sought = (uint16_t)((leader->sought + 1U) % count);
        const struct keel_seen_node *seen = &leader->membership.nodes[leader->sought];
        const bool silent = keel_node_due(node, seen->heard_ns + node->times.silence_ns);
        if (leader->sought == node->config.node || seen->exited || (!silent && !seen->ended) ||
            keel_children_want(node, leader->sought))
            continue;
        if (keel_children_miss(node, leader->sought))
            return;
        if (seen->ended)
            continue;
        tell(node, leader->sought, false);
        return;
    }
}

static void probe(struct keel_node *node, const struct keel_bitset *nodes)
{
    for (uint32_t i = keel_bitset_next(nodes, 1); i < node->leader->membership.node_count;
         i = keel_bitset_next(nodes, i + 1))
        tell(node, (uint16_t)i, false);
}

/* The last leader went as the run ended: all who are heard are done, or nobody else was heard for a timeout.
 */
static bool ended_before(const struct keel_node *node, const struct keel_verdict *verdict)
{
    const struct keel_leader *leader = node->leader;
    return leader->took_over && leader->awaiting_joins && leader->membership.done_count > 0 &&
           verdict->remaining == 0 && verdict->spares == 0 && verdict->join_count == 0 &&
           (verdict->unheard == 0 || keel_node_due(node, leader->lead_ns + node->times.silence_ns));
}

void keel_leader_work(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    if (!leader->ending) {
        bool anew = judge(node);
        const struct keel_verdict *verdict = &leader->verdict;
        if (is_short(node, verdict) && keel_membership_stay(&leader->membership, &node->view))
            anew = judge(node); /* others were lost: who was to leave is needed */
        if (anew && verdict->probes)
            probe(node, &verdict->probe);
        if (verdict->remaining > 0 && !leader->awaiting_joins && !is_short(node, verdict))
            leader->start_ns = node->now_ns;
        /* A job that is wrong is wrong everywhere; bits that are wrong are one board's, and the others begin.
         */
        const char *detail;
        const bool begins = leader->awaiting_joins && !leader->took_over;
        enum keel_status failure =
            begins && anew ? keel_membership_failure(&node->leader->membership, NULL, &detail) : KEEL_OK;
        bool some_done = verdict->done_count > 0 || ended_before(node, verdict);
        bool unheard = leader->awaiting_joins && verdict->unheard > 0; /* those may be at work */
        bool idle = begins || (verdict->remaining == 0 && !some_done && verdict->spares == 0 && !unheard);
        bool over = is_over(node);
        if (failure != KEEL_OK && failure != KEEL_CORRUPT)
            end_run(node, failure, detail);
        else if (leader->stopping && !over &&
                 (idle || keel_node_due(node, leader->stop_ns + node->times.grace_ns)))
            end_run(node, KEEL_INTERRUPTED, KEEL_NODE_STOPPED);
        else if (over || (verdict->remaining == 0 && some_done))
            conclude(node);
        else if (leader->awaiting_joins || idle || is_short(node, verdict))
            await_joins(node, verdict);
        else
            watch_view(node, verdict);
    }
    if (!leader->ending)
        keel_leaving_work(node);
    if (!leader->ending)
        watch_holders(node);
    if (!leader->ending)
        seek_silent(node);
    if (!leader->ending)
        push_change(node);
    if (!leader->ending)
        skip_holes(node);
    if (leader->ending)
        work_on_end(node);
}

/* ---- events and messages ------------------------------------------------------------------------------- */

void keel_leader_start(struct keel_node *node, uint64_t next_step)
{
    struct keel_leader *leader = node->leader;
    /* Who took over does not know who was started again since. */
    const uint32_t least = leader->took_over ? 0 : node->config.incarnation;
    keel_membership_init(&leader->membership, node->config.node_count, least, node->now_ns);
    leader->awaiting_joins = true;
    leader->start_ns = leader->lead_ns = node->now_ns;
    leader->next_step = next_step;
    keel_node_trace(node, "%s starts after epoch %" PRIu64 ", wants step %" PRIu64,
                    leader->took_over ? "leader" : "launcher", leader->earlier.epoch, leader->next_step);
}

void keel_leader_reset_timers(struct keel_node *node)
{
    keel_membership_reset_timers(&node->leader->membership, node->now_ns);
    node->leader->hole_ns = node->leader->over_ns = node->leader->held_from = 0;
    if (keel_node_moves(node)) /* others may have one that leads now, and say so */
        tell_all(node);
}

void keel_leader_stop(struct keel_node *node)
{
    if (node->leader->stopping)
        return;
    node->leader->stopping = true;
    node->leader->stop_ns = node->now_ns;
    keel_node_trace(node, "stop asked for");
    tell_all(node);
}

void keel_leader_lose(struct keel_node *node, uint16_t which)
{
    keel_membership_node_exit(&node->leader->membership, which);
    keel_bitset_remove(&node->leader->informed, which);
    keel_bitset_remove(&node->leader->told, which);
}

/* Another who led had delivered all steps before this one: before this node did, or where the leader moves,
 * maybe meanwhile. */
static void pass_over(struct keel_node *node, uint64_t step)
{
    struct keel_leader *leader = node->leader;
    if ((!leader->took_over && !keel_node_moves(node)) || step <= leader->next_step ||
        step > node->config.last_step)
        return;
    keel_past_replay(node, leader->next_step, step);
    leader->next_step = step;
    deliver_steps(node);
}

static void take_report(struct keel_node *node, uint16_t from)
{
    const struct keel_wire_message *in = &node->scratch->in;
    if (keel_children_await(node, from)) /* its process ended: this came late */
        return;
    if (!keel_membership_report(&node->leader->membership, from, &in->as.status, &node->times, node->now_ns))
        return;
    if (in->as.status.stopping)
        keel_leader_stop(node);
    keel_away_report(node, from, in->as.status.away);
    pass_over(node, in->as.status.next_step);
    hear_held(node, from);
    if (in->as.status.has_newest)
        take_record(node, &in->as.status.newest);
    tell(node, from, false);
    if (node->leader->took_over && node->leader->awaiting_joins && in->epoch == node->leader->earlier.epoch)
        keel_bitset_add(&node->leader->told, from); /* it has the view from which the next is made */
    if (in->epoch < node->view.epoch)
        repair_view(node, from, in->epoch);
    else if (in->epoch == node->view.epoch)
        keel_bitset_add(&node->leader->informed, from);
}

static void take_note(struct keel_node *node, uint16_t from)
{
    const struct keel_wire_note *note = &node->scratch->in.as.note;
    if (note->number > node->leader->notes[from]) {
        node->leader->notes[from] = note->number;
        node->env->note(node->env->context, from, note->local, note->data, note->bytes);
    }
    tell(node, from, false);
}

void keel_leader_message(struct keel_node *node, uint16_t from)
{
    const struct keel_wire_message *in = &node->scratch->in;
    switch (in->kind) {
    case KEEL_WIRE_STATUS:
        if (keel_moves_hear(node, &in->as.status.term))
            take_report(node, from);
        break;
    case KEEL_WIRE_STEP:
        take_record(node, &in->as.step);
        ask_for_hole(node, from, in->as.step.step);
        break;
    case KEEL_WIRE_SHARD:
        if (node->leader->awaiting_joins && node->leader->took_over)
            break; /* of which view it counts is not known yet: it comes again */
        keel_snapshots_collect(node, &in->as.shard);
        keel_node_message(node, KEEL_WIRE_SHARD_ACK)->as.shard = in->as.shard;
        keel_node_send(node, from);
        break;
    case KEEL_WIRE_NOTE:
        take_note(node, from);
        break;
    default:
        keel_node_trace(node, "drop message kind %d from node %u: not its part", (int)in->kind, from);
        break;
    }
}
