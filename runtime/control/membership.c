/* membership.c - see membership.h. */
#include "membership.h"

#include <string.h>

void keel_times_derive(uint64_t timeout_ns, struct keel_times *out)
{
    const uint64_t gather_min_ns = UINT64_C(5000000), gather_max_ns = UINT64_C(20000000);
    out->beat_ns = timeout_ns / 10;
    out->gather_ns = timeout_ns / 50;
    out->gather_ns = out->gather_ns < gather_min_ns ? gather_min_ns : out->gather_ns;
    out->gather_ns = out->gather_ns > gather_max_ns ? gather_max_ns : out->gather_ns;
    out->record_ns = timeout_ns / 64;
    out->probe_ns = timeout_ns / 4;
    out->silence_ns = timeout_ns;
    out->backoff_ns = timeout_ns / 20;
    out->grace_ns = timeout_ns * 6;
    out->launcher_timeout_ns = timeout_ns * 5;
    out->join_wait_ns = timeout_ns * 60;
}

void keel_membership_init(struct keel_membership *m, uint16_t node_count, uint32_t incarnation,
                          uint64_t now_ns)
{
    memset(m, 0, sizeof *m);
    m->node_count = node_count;
    for (uint16_t node = 1; node < node_count; node++)
        m->nodes[node].incarnation = incarnation;
    keel_membership_reset_timers(m, now_ns);
}

bool keel_membership_report(struct keel_membership *m, uint16_t node, const struct keel_wire_status *status,
                            uint64_t now_ns)
{
    KEEL_ASSERT(node < KEEL_NODES_MAX);
    struct keel_seen_node *seen = &m->nodes[node];
    bool older = status->incarnation < seen->incarnation;
    bool same = status->incarnation == seen->incarnation;
    KEEL_ASSERT(status->worker_count <= KEEL_WORKERS_PER_NODE); /* the decoder saw to it */
    if (older || (same && (seen->exited || (seen->heard && status->sequence <= seen->sequence))))
        return false;
    seen->heard = true;
    seen->exited = false;
    seen->ended = status->ended;
    seen->incarnation = status->incarnation;
    seen->sequence = status->sequence;
    seen->heard_ns = now_ns;
    seen->first_record = status->first_record;
    seen->silent_node = status->silent_node;
    seen->worker_count = status->worker_count;
    memcpy(seen->workers, status->workers, sizeof seen->workers);
    memcpy(seen->detail, status->detail, sizeof seen->detail);
    if (node >= m->node_count)
        m->node_count = (uint16_t)(node + 1);
    for (uint8_t i = 0; i < status->worker_count; i++)
        if (status->workers[i].state == KEEL_WORKER_READY)
            seen->alive_ns[i] = now_ns;
    return true;
}

enum keel_status keel_membership_failure(const struct keel_membership *m, const struct keel_view *of,
                                         const char **out_detail)
{
    for (uint16_t node = 0; node < m->node_count; node++) {
        const struct keel_seen_node *seen = &m->nodes[node];
        for (uint8_t i = 0; i < seen->worker_count; i++) {
            const struct keel_wire_worker *worker = &seen->workers[i];
            if (worker->state != KEEL_WORKER_FAILED ||
                (of != NULL && keel_view_find_worker(of, node, i, worker->incarnation) < 0))
                continue;
            *out_detail = seen->detail;
            return worker->failure;
        }
    }
    return KEEL_OK;
}

void keel_membership_node_exit(struct keel_membership *m, uint16_t node)
{
    KEEL_ASSERT(node < KEEL_NODES_MAX);
    m->nodes[node].exited = true;
}

void keel_membership_node_started(struct keel_membership *m, uint16_t node, uint32_t incarnation,
                                  uint64_t now_ns)
{
    KEEL_ASSERT(node < KEEL_NODES_MAX);
    KEEL_ASSERT(m->nodes[node].exited && incarnation > m->nodes[node].incarnation);
    memset(&m->nodes[node], 0, sizeof m->nodes[node]);
    m->nodes[node].incarnation = incarnation;
    m->nodes[node].heard_ns = now_ns;
}

void keel_membership_clear_evidence(struct keel_membership *m)
{
    memset(m->evicted, 0, sizeof m->evicted);
    memset(m->evicted_ns, 0, sizeof m->evicted_ns);
    memset(m->accused_ns, 0, sizeof m->accused_ns);
    m->join_ns = 0;
}

void keel_membership_reset_timers(struct keel_membership *m, uint64_t now_ns)
{
    for (uint32_t i = 0; i < KEEL_NODES_MAX; i++)
        m->nodes[i].heard_ns = now_ns;
}

/* ---- evidence about one member ------------------------------------------------------------------------- */

static const struct keel_wire_worker *worker_of(const struct keel_membership *m,
                                                const struct keel_member *member)
{
    const struct keel_seen_node *seen = &m->nodes[member->node];
    if (!seen->heard || member->local >= seen->worker_count)
        return NULL;
    return &seen->workers[member->local];
}

static bool is_done(const struct keel_membership *m, const struct keel_member *member)
{
    const struct keel_wire_worker *w = worker_of(m, member);
    return w && w->incarnation == member->incarnation && w->state == KEEL_WORKER_DONE;
}

static bool ring_says_silent(const struct keel_membership *m, uint16_t node, const struct keel_times *times,
                             uint64_t now_ns)
{
    for (uint16_t i = 1; i < m->node_count; i++) {
        const struct keel_seen_node *seen = &m->nodes[i];
        if (seen->heard && !seen->exited && seen->silent_node == node &&
            now_ns - seen->heard_ns < times->silence_ns / 2)
            return true;
    }
    return false;
}

/* Rules 2 and 3. */
static enum keel_cause evidence_against(const struct keel_membership *m, const struct keel_member *member,
                                        const struct keel_times *times, uint64_t now_ns)
{
    const struct keel_seen_node *seen = &m->nodes[member->node];
    const struct keel_wire_worker *w = worker_of(m, member);
    if (seen->exited || seen->ended || seen->incarnation > member->incarnation >> 8)
        return KEEL_CAUSE_EXIT;
    if (w && w->incarnation > member->incarnation)
        return KEEL_CAUSE_EXIT;
    if (w && w->incarnation == member->incarnation &&
        (w->state == KEEL_WORKER_OFF || w->state == KEEL_WORKER_FAILED || w->state == KEEL_WORKER_GONE))
        return w->cause == KEEL_CAUSE_NONE ? KEEL_CAUSE_EXIT : w->cause;
    uint64_t silent_ns = now_ns - seen->heard_ns;
    if (silent_ns >= times->silence_ns)
        return KEEL_CAUSE_SILENCE;
    if (silent_ns >= times->silence_ns / 2 && ring_says_silent(m, member->node, times, now_ns))
        return KEEL_CAUSE_SILENCE;
    return KEEL_CAUSE_NONE;
}

static void evict(struct keel_membership *m, const struct keel_view *view, int index, enum keel_cause cause,
                  uint64_t now_ns)
{
    const struct keel_member *member = &view->members[index];
    KEEL_ASSERT(index < view->member_count && cause != KEEL_CAUSE_NONE);
    if (m->evicted[index] != KEEL_CAUSE_NONE)
        return;
    m->evicted[index] = cause;
    m->evicted_ns[index] = now_ns;
    m->alive_ns[index] = m->nodes[member->node].alive_ns[member->local];
}

/* ---- accusations by peers: rules 4 and 5 --------------------------------------------------------------- */

static bool accuses(const struct keel_membership *m, const struct keel_view *view, int from, int about)
{
    const struct keel_member *accuser = &view->members[from];
    const struct keel_wire_worker *w = worker_of(m, accuser);
    return from != about && !accuser->spare && m->evicted[from] == KEEL_CAUSE_NONE && w &&
           w->incarnation == accuser->incarnation && w->state == KEEL_WORKER_READY &&
           w->accused_epoch == view->epoch && w->accused_rank == view->members[about].rank;
}

static uint32_t count_accusers(const struct keel_membership *m, const struct keel_view *view, int about)
{
    uint32_t count = 0;
    for (int i = 0; i < view->member_count; i++)
        count += accuses(m, view, i, about) ? 1 : 0;
    return count;
}

/* Does somebody whom `index` accuses accuse it too, and is more accused (higher in rank among equals)? Then
 * that one is to go first, and its word does not count until it is decided. */
static bool yields_to_other(const struct keel_membership *m, const struct keel_view *view, int index,
                            uint32_t accusers)
{
    for (int i = 0; i < view->member_count; i++) {
        if (!accuses(m, view, i, index) || !accuses(m, view, index, i))
            continue;
        uint32_t more = count_accusers(m, view, i);
        if (more > accusers || (more == accusers && i > index))
            return true;
    }
    return false;
}

static void evict_node(struct keel_membership *m, const struct keel_view *view, uint16_t node,
                       uint64_t now_ns)
{
    for (int i = 0; i < view->member_count; i++)
        if (view->members[i].node == node && !is_done(m, &view->members[i]))
            evict(m, view, i, KEEL_CAUSE_CONNECTION, now_ns);
}

/* One accused member; true when it may be evicted by rule 5. Sets *wake_ns to when it must be looked
 * at again. */
static bool weigh_accused(struct keel_membership *m, const struct keel_view *view, int index,
                          const struct keel_times *times, uint64_t now_ns, uint32_t others,
                          struct keel_verdict *out)
{
    uint32_t accusers = count_accusers(m, view, index);
    if (accusers == 0 || m->evicted[index] != KEEL_CAUSE_NONE)
        return false;
    const struct keel_member *member = &view->members[index];
    if (is_done(m, member)) {
        evict(m, view, index, KEEL_CAUSE_FINISHED, now_ns);
        return false;
    }
    if (m->accused_ns[index] == 0) {
        m->accused_ns[index] = now_ns;
        out->probe |= UINT64_C(1) << member->node;
    }
    uint64_t since_ns = now_ns - m->accused_ns[index];
    uint64_t due_ns = since_ns < times->probe_ns ? times->probe_ns : times->silence_ns;
    if (since_ns < due_ns && m->accused_ns[index] + due_ns < out->wake_ns)
        out->wake_ns = m->accused_ns[index] + due_ns;
    if (since_ns < times->probe_ns)
        return false;
    if (m->nodes[member->node].heard_ns <= m->accused_ns[index]) {
        evict_node(m, view, member->node, now_ns);
        return false;
    }
    return (accusers * 2 >= others || since_ns >= times->silence_ns) &&
           !yields_to_other(m, view, index, accusers);
}

static void suspect_accused(struct keel_membership *m, const struct keel_view *view,
                            const struct keel_times *times, uint64_t now_ns, struct keel_verdict *out)
{
    for (uint32_t round = 0; round < KEEL_MEMBERS_MAX; round++) {
        uint32_t active = 0;
        for (int i = 0; i < view->member_count; i++)
            active += !view->members[i].spare && m->evicted[i] == KEEL_CAUSE_NONE ? 1 : 0;
        int worst = -1;
        uint32_t most = 0;
        for (int i = 0; i < view->member_count; i++) {
            if (!weigh_accused(m, view, i, times, now_ns, active - 1, out))
                continue;
            uint32_t accusers = count_accusers(m, view, i);
            if (accusers >= most) {
                most = accusers;
                worst = i;
            }
        }
        if (worst < 0)
            return;
        evict(m, view, worst, KEEL_CAUSE_CONNECTION, now_ns);
    }
}

/* ---- when nobody would remain -------------------------------------------------------------------------- */

static bool node_is_live(const struct keel_seen_node *seen, const struct keel_times *times, uint64_t now_ns)
{
    return seen->heard && !seen->exited && !seen->ended && now_ns - seen->heard_ns < times->silence_ns;
}

/* Its node is heard and says that it runs, under the incarnation that the view knows. */
static bool is_alive_and_ready(const struct keel_membership *m, const struct keel_member *member,
                               const struct keel_times *times, uint64_t now_ns)
{
    const struct keel_wire_worker *w = worker_of(m, member);
    return w && node_is_live(&m->nodes[member->node], times, now_ns) &&
           w->incarnation == member->incarnation && w->state == KEEL_WORKER_READY;
}

static bool somebody_remains(const struct keel_membership *m, const struct keel_view *view)
{
    for (int i = 0; i < view->member_count; i++)
        if (m->evicted[i] == KEEL_CAUSE_NONE && !is_done(m, &view->members[i]))
            return true;
    return false;
}

/* A evicted member leaves for the sake of those who stay. Nobody stays: then whoever is alive and ready
 * stays after all. All were silent together, which says more about the network or the machine than about one
 * of them, so the others that were only silent get the whole timeout again, from now on. */
static void reinstate(struct keel_membership *m, const struct keel_view *view, const struct keel_times *times,
                      uint64_t now_ns)
{
    bool reinstated = false;
    if (somebody_remains(m, view))
        return;
    for (int i = 0; i < view->member_count; i++) {
        const struct keel_member *member = &view->members[i];
        if (m->evicted[i] == KEEL_CAUSE_NONE || !is_alive_and_ready(m, member, times, now_ns))
            continue;
        m->evicted[i] = KEEL_CAUSE_NONE;
        m->accused_ns[i] = 0;
        reinstated = true;
    }
    for (int i = 0; reinstated && i < view->member_count; i++) {
        if (m->evicted[i] != KEEL_CAUSE_SILENCE)
            continue;
        m->evicted[i] = KEEL_CAUSE_NONE;
        m->nodes[view->members[i].node].heard_ns = now_ns;
    }
}

/* ---- newcomers ----------------------------------------------------------------------------------------- */

/* Is the place (node, local) held by a member that stays? */
static bool place_is_taken(const struct keel_view *view, uint64_t gone, uint16_t node, uint8_t local)
{
    for (int i = 0; i < view->member_count; i++)
        if (view->members[i].node == node && view->members[i].local == local && !(gone >> i & 1))
            return true;
    return false;
}

static void list_worker(const struct keel_wire_worker *w, const struct keel_view *view, uint16_t node,
                        uint8_t local, struct keel_verdict *out)
{
    bool member = keel_view_find_worker(view, node, local, w->incarnation) >= 0;
    bool fresh = w->state == KEEL_WORKER_READY && w->sent_epoch == 0;
    if (fresh && !place_is_taken(view, out->gone, node, local) && out->join_count < KEEL_MEMBERS_MAX) {
        struct keel_member *join = &out->joins[out->join_count++];
        *join = (struct keel_member){
            .node = node, .local = local, .incarnation = w->incarnation, .data = w->address};
    } else if (w->state == KEEL_WORKER_STARTING || w->state == KEEL_WORKER_OFF ||
               (w->state == KEEL_WORKER_READY && !member)) {
        out->coming++;
    }
}

static void list_newcomers(const struct keel_membership *m, const struct keel_view *view,
                           const struct keel_times *times, uint64_t now_ns, struct keel_verdict *out)
{
    for (uint16_t node = 1; node < m->node_count; node++) {
        const struct keel_seen_node *seen = &m->nodes[node];
        if (!seen->heard && !seen->exited && now_ns - seen->heard_ns < times->join_wait_ns)
            out->unheard++;
        if (!node_is_live(seen, times, now_ns)) {
            /* It may have been stopped, and come back; or it said that it ends, and its end, after which it
             * can be started again, is about to be seen. */
            uint64_t limit_ns = seen->ended ? times->silence_ns : times->join_wait_ns;
            if (seen->heard && !seen->exited && now_ns - seen->heard_ns < limit_ns)
                out->unheard++;
            continue;
        }
        for (uint8_t local = 0; local < seen->worker_count; local++)
            list_worker(&seen->workers[local], view, node, local, out);
    }
}

/* ---- suspects ------------------------------------------------------------------------------------------ */

static void start_verdict(struct keel_verdict *out)
{
    memset(out, 0, sizeof *out);
    out->wake_ns = UINT64_MAX;
}

static void collect_members(const struct keel_membership *m, const struct keel_view *view,
                            struct keel_verdict *out)
{
    uint32_t gone_or_done = 0;
    for (int i = 0; i < view->member_count; i++) {
        const struct keel_member *member = &view->members[i];
        if (m->evicted[i] != KEEL_CAUSE_NONE) {
            out->gone |= UINT64_C(1) << i;
            bool earlier = out->evidence_ns == 0 || m->evicted_ns[i] < out->evidence_ns;
            if (!member->spare && earlier) {
                out->evidence_ns = m->evicted_ns[i];
                out->alive_ns = m->alive_ns[i];
                out->cause = m->evicted[i];
            }
        }
        if (is_done(m, member))
            out->done |= UINT64_C(1) << i;
        else if (m->evicted[i] == KEEL_CAUSE_NONE && member->spare)
            out->spares++;
        else if (m->evicted[i] == KEEL_CAUSE_NONE)
            out->remaining++;
        gone_or_done += (out->gone | out->done) >> i & 1;
    }
    KEEL_ASSERT(out->remaining + out->spares + gone_or_done == view->member_count);
}

void keel_membership_suspect(struct keel_membership *m, const struct keel_view *view,
                             const struct keel_times *times, uint64_t now_ns, struct keel_verdict *out)
{
    KEEL_ASSERT(view->member_count <= KEEL_MEMBERS_MAX && m->node_count <= KEEL_NODES_MAX);
    start_verdict(out);
    for (int i = 0; i < view->member_count; i++) {
        const struct keel_member *member = &view->members[i];
        if (is_done(m, member) || m->evicted[i] != KEEL_CAUSE_NONE)
            continue;
        enum keel_cause cause = evidence_against(m, member, times, now_ns);
        if (cause != KEEL_CAUSE_NONE)
            evict(m, view, i, cause, now_ns);
        uint64_t heard_ns = m->nodes[member->node].heard_ns;
        uint64_t half_ns = heard_ns + times->silence_ns / 2;
        uint64_t due_ns = half_ns > now_ns ? half_ns : heard_ns + times->silence_ns;
        if (cause == KEEL_CAUSE_NONE && due_ns < out->wake_ns)
            out->wake_ns = due_ns;
    }
    suspect_accused(m, view, times, now_ns, out);
    reinstate(m, view, times, now_ns);
    collect_members(m, view, out);
    list_newcomers(m, view, times, now_ns, out);
    if (out->join_count == 0)
        m->join_ns = 0;
    else if (m->join_ns == 0)
        m->join_ns = now_ns;
}

void keel_membership_awaited(const struct keel_membership *m, const struct keel_view *view,
                             const struct keel_times *times, uint64_t now_ns, struct keel_verdict *out)
{
    start_verdict(out);
    for (int i = 0; i < view->member_count; i++) {
        const struct keel_member *member = &view->members[i];
        const struct keel_wire_worker *w = worker_of(m, member);
        bool same = w && w->incarnation == member->incarnation && w->state == KEEL_WORKER_READY &&
                    w->sent_epoch > 0 && w->address.bytes == member->data.bytes &&
                    memcmp(w->address.data, member->data.data, w->address.bytes) == 0;
        if (!same || !node_is_live(&m->nodes[member->node], times, now_ns))
            out->gone |= UINT64_C(1) << i;
        else if (!member->spare)
            out->remaining++;
    }
    list_newcomers(m, view, times, now_ns, out);
}
