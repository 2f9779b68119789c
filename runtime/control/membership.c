/* membership.c - see membership.h. */
#include "membership.h"

#include <stddef.h>
#include <string.h>

/* Between looks for the sake of reports, for each member and node: some six times what a look takes. */
static const uint64_t look_pause_ns = 128;

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
    keel_membership_clear_evidence(m);
    memset(m->nodes, 0, m->node_count * sizeof m->nodes[0]);
    memset(m, 0, offsetof(struct keel_membership, evicted));
    m->node_count = node_count;
    for (uint16_t node = 1; node < node_count; node++)
        m->nodes[node].incarnation = incarnation;
    keel_membership_reset_timers(m, now_ns);
}

static bool accuses_alike(const struct keel_wire_worker *a, const struct keel_wire_worker *b, uint64_t epoch)
{
    const bool one = a->accused_epoch == epoch, other = b->accused_epoch == epoch;
    return one == other && (!one || a->accused_rank == b->accused_rank);
}

/* To whoever looks at members and newcomers, accusations aside; a worker's progress is the agent's business.
 */
static bool looks_alike(const struct keel_wire_worker *a, const struct keel_wire_worker *b)
{
    return a->incarnation == b->incarnation && a->state == b->state && a->cause == b->cause &&
           a->failure == b->failure && (a->sent_epoch == 0) == (b->sent_epoch == 0) &&
           a->address.bytes == b->address.bytes &&
           memcmp(a->address.data, b->address.data, a->address.bytes) == 0;
}

/* Does `status` say what the one before said? Of one who was looked at as silent, or is to be, nothing does.
 */
static bool says_the_same(const struct keel_membership *m, const struct keel_seen_node *seen,
                          const struct keel_wire_status *status, const struct keel_times *times,
                          uint64_t now_ns)
{
    bool same = seen->heard && !seen->exited && seen->ended == status->ended &&
                seen->incarnation == status->incarnation && seen->silent_node == status->silent_node &&
                seen->disk == status->disk && seen->worker_count == status->worker_count &&
                now_ns - seen->heard_ns < times->silence_ns / 2;
    for (uint8_t i = 0; i < status->worker_count && same; i++)
        same = looks_alike(&seen->workers[i], &status->workers[i]) &&
               accuses_alike(&seen->workers[i], &status->workers[i], m->look_epoch);
    return same;
}

/* One more than was known. */
static void admit(struct keel_membership *m, uint16_t node, uint64_t now_ns)
{
    for (; m->node_count <= node; m->node_count++)
        m->nodes[m->node_count].heard_ns = now_ns;
}

static uint32_t done_workers(const struct keel_seen_node *seen)
{
    uint32_t count = 0;
    for (uint8_t local = 0; local < seen->worker_count; local++)
        count += seen->workers[local].state == KEEL_WORKER_DONE ? 1 : 0;
    return count;
}

bool keel_membership_report(struct keel_membership *m, uint16_t node, const struct keel_wire_status *status,
                            const struct keel_times *times, uint64_t now_ns)
{
    KEEL_ASSERT(node < KEEL_NODES_MAX);
    struct keel_seen_node *seen = &m->nodes[node];
    admit(m, node, now_ns);
    bool older = status->incarnation < seen->incarnation;
    bool same = status->incarnation == seen->incarnation;
    KEEL_ASSERT(status->worker_count <= KEEL_WORKERS_PER_NODE); /* the decoder saw to it */
    if (older || (same && (seen->exited || (seen->heard && status->sequence <= seen->sequence))))
        return false;
    m->stale = m->stale || !says_the_same(m, seen, status, times, now_ns);
    m->done_count -= done_workers(seen);
    seen->heard = true;
    seen->exited = false;
    seen->ended = status->ended;
    seen->incarnation = status->incarnation;
    seen->sequence = status->sequence;
    seen->heard_ns = now_ns;
    seen->first_record = status->first_record;
    seen->silent_node = status->silent_node;
    seen->disk = status->disk;
    seen->worker_count = status->worker_count;
    memcpy(seen->workers, status->workers, sizeof seen->workers);
    memcpy(seen->detail, status->detail, sizeof seen->detail);
    m->done_count += done_workers(seen);
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
    m->nodes[node].exited = m->changed = true;
}

void keel_membership_node_started(struct keel_membership *m, uint16_t node, uint32_t incarnation,
                                  uint64_t now_ns)
{
    KEEL_ASSERT(node < KEEL_NODES_MAX);
    KEEL_ASSERT(m->nodes[node].exited && incarnation > m->nodes[node].incarnation);
    m->done_count -= done_workers(&m->nodes[node]);
    memset(&m->nodes[node], 0, sizeof m->nodes[node]);
    m->nodes[node].incarnation = incarnation;
    m->nodes[node].heard_ns = now_ns;
    m->changed = true;
}

void keel_membership_clear_evidence(struct keel_membership *m)
{
    memset(m->evicted, 0, m->judged * sizeof m->evicted[0]);
    memset(m->evicted_ns, 0, m->judged * sizeof m->evicted_ns[0]);
    memset(m->alive_ns, 0, m->judged * sizeof m->alive_ns[0]);
    memset(m->accused_ns, 0, m->judged * sizeof m->accused_ns[0]);
    m->judged = 0;
    m->join_ns = 0;
    m->changed = true;
}

bool keel_membership_stay(struct keel_membership *m, const struct keel_view *view)
{
    bool some = false;
    for (uint16_t i = 0; i < view->member_count; i++)
        if (m->evicted[i] == KEEL_CAUSE_DRAINED) {
            m->evicted[i] = KEEL_CAUSE_NONE;
            keel_bitset_remove(&m->leaving, view->members[i].node);
            some = m->changed = true;
        }
    return some;
}

void keel_membership_reset_timers(struct keel_membership *m, uint64_t now_ns)
{
    for (uint32_t i = 0; i < m->node_count; i++)
        m->nodes[i].heard_ns = now_ns;
    m->changed = true;
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

/* What is looked up while members are judged, made in one pass over all that is known. */
struct look {
    struct keel_membership *m;
    const struct keel_view *view;
    const struct keel_times *times;
    uint64_t now_ns;
    bool ring_heard;                /* `silent` is filled in: it is wanted only when a node is silent */
    struct keel_bitset silent;      /* nodes of which their ring successors say so */
    struct keel_view_places places; /* of the view, and of all nodes */
    /* Accusations. A worker accuses one other at most. By member, by index: */
    uint16_t accuses[KEEL_MEMBERS_MAX];  /* whom; NOBODY: nobody, or its word does not count */
    uint16_t accusers[KEEL_MEMBERS_MAX]; /* how many accuse it */
    uint16_t accused[KEEL_MEMBERS_MAX];  /* those with accusers, ascending; accused_count of them */
    uint16_t accused_count;
    uint32_t active; /* members that are neither spare nor evicted */
};

enum { NOBODY = KEEL_PLACE_EMPTY };

static void begin_look(struct look *look, struct keel_membership *m, const struct keel_view *view,
                       const struct keel_times *times, uint64_t now_ns)
{
    KEEL_ASSERT(view->member_count <= KEEL_MEMBERS_MAX && m->node_count <= KEEL_NODES_MAX);
    m->judged = view->member_count > m->judged ? view->member_count : m->judged;
    look->m = m;
    look->view = view;
    look->times = times;
    look->now_ns = now_ns;
    look->ring_heard = false;
    look->accused_count = 0;
    look->active = 0;
    for (uint16_t i = 0; i < look->view->member_count; i++) {
        look->accuses[i] = NOBODY;
        look->accusers[i] = 0;
        look->active += !look->view->members[i].spare && look->m->evicted[i] == KEEL_CAUSE_NONE ? 1 : 0;
    }
    keel_view_find_places(view, m->node_count, &look->places);
}

static bool ring_says_silent(struct look *look, uint16_t node)
{
    if (!look->ring_heard)
        memset(&look->silent, 0, sizeof look->silent);
    for (uint16_t i = 1; !look->ring_heard && i < look->m->node_count; i++) {
        const struct keel_seen_node *seen = &look->m->nodes[i];
        if (seen->heard && !seen->exited && seen->silent_node != KEEL_RANK_NONE &&
            look->now_ns - seen->heard_ns < look->times->silence_ns / 2)
            keel_bitset_add(&look->silent, seen->silent_node);
    }
    look->ring_heard = true;
    return keel_bitset_has(&look->silent, node);
}

/* Rules 2 to 4. */
static enum keel_cause evidence_against(struct look *look, const struct keel_member *member)
{
    const struct keel_seen_node *seen = &look->m->nodes[member->node];
    const struct keel_wire_worker *w = worker_of(look->m, member);
    if (keel_bitset_has(&look->m->leaving, member->node))
        return KEEL_CAUSE_DRAINED;
    if (seen->exited || seen->ended || seen->incarnation > member->incarnation >> 8)
        return KEEL_CAUSE_EXIT;
    if (w && w->incarnation > member->incarnation)
        return KEEL_CAUSE_EXIT;
    if (w && w->incarnation == member->incarnation &&
        (w->state == KEEL_WORKER_OFF || w->state == KEEL_WORKER_FAILED || w->state == KEEL_WORKER_GONE))
        return w->cause == KEEL_CAUSE_NONE ? KEEL_CAUSE_EXIT : w->cause;
    uint64_t silent_ns = look->now_ns - seen->heard_ns;
    if (silent_ns >= look->times->silence_ns)
        return KEEL_CAUSE_SILENCE;
    if (silent_ns >= look->times->silence_ns / 2 && ring_says_silent(look, member->node))
        return KEEL_CAUSE_SILENCE;
    return KEEL_CAUSE_NONE;
}

/* Its accusation does not count any more. */
static void evict(struct look *look, uint16_t index, enum keel_cause cause)
{
    struct keel_membership *m = look->m;
    const struct keel_member *member = &look->view->members[index];
    KEEL_ASSERT(index < look->view->member_count && cause != KEEL_CAUSE_NONE);
    if (m->evicted[index] != KEEL_CAUSE_NONE)
        return;
    m->evicted[index] = cause;
    m->evicted_ns[index] = look->now_ns;
    m->alive_ns[index] = m->nodes[member->node].alive_ns[member->local];
    look->active -= member->spare ? 0 : 1;
    if (look->accuses[index] != NOBODY) {
        KEEL_ASSERT(look->accusers[look->accuses[index]] > 0);
        look->accusers[look->accuses[index]]--;
        look->accuses[index] = NOBODY;
    }
}

/* ---- accusations by peers: rules 5 and 6 --------------------------------------------------------------- */

/* Whom this member accuses, by index: only what an active one says of the present view counts. */
static uint16_t whom_it_accuses(const struct look *look, uint16_t from)
{
    const struct keel_member *accuser = &look->view->members[from];
    const struct keel_wire_worker *w = worker_of(look->m, accuser);
    if (accuser->spare || look->m->evicted[from] != KEEL_CAUSE_NONE || !w ||
        w->incarnation != accuser->incarnation || w->state != KEEL_WORKER_READY ||
        w->accused_epoch != look->view->epoch)
        return NOBODY;
    const int about = keel_view_find_rank(look->view, w->accused_rank);
    return about < 0 || about == from ? NOBODY : (uint16_t)about;
}

static void hear_accusations(struct look *look)
{
    const uint16_t count = look->view->member_count;
    for (uint16_t i = 0; i < count; i++) {
        look->accuses[i] = whom_it_accuses(look, i);
        if (look->accuses[i] != NOBODY)
            look->accusers[look->accuses[i]]++;
    }
    for (uint16_t i = 0; i < count; i++)
        if (look->accusers[i] > 0)
            look->accused[look->accused_count++] = i;
}

/* Does the one whom `index` accuses accuse it too, and is more accused (higher in rank among equals)? Then
 * that one is to go first, and its word does not count until it is decided. */
static bool yields_to_other(const struct look *look, uint16_t index)
{
    const uint16_t other = look->accuses[index];
    if (other == NOBODY || look->accuses[other] != index)
        return false;
    const uint16_t more = look->accusers[other], accusers = look->accusers[index];
    return more > accusers || (more == accusers && other > index);
}

static void evict_node(struct look *look, uint16_t node)
{
    for (uint32_t local = 0; local < KEEL_WORKERS_PER_NODE; local++) {
        const uint16_t at = look->places.at[node][local];
        if (at != NOBODY && !is_done(look->m, &look->view->members[at]))
            evict(look, at, KEEL_CAUSE_CONNECTION);
    }
}

/* One accused member; true when it may be evicted by rule 6. Sets *wake_ns to when it must be looked
 * at again. */
static bool weigh_accused(struct look *look, uint16_t index, uint32_t others, struct keel_verdict *out)
{
    struct keel_membership *m = look->m;
    const struct keel_times *times = look->times;
    const uint32_t accusers = look->accusers[index];
    if (accusers == 0 || m->evicted[index] != KEEL_CAUSE_NONE)
        return false;
    const struct keel_member *member = &look->view->members[index];
    if (is_done(m, member)) {
        evict(look, index, KEEL_CAUSE_FINISHED);
        return false;
    }
    if (m->accused_ns[index] == 0) {
        m->accused_ns[index] = look->now_ns;
        keel_bitset_add(&out->probe, member->node);
        out->probes = true;
    }
    uint64_t since_ns = look->now_ns - m->accused_ns[index];
    uint64_t due_ns = since_ns < times->probe_ns ? times->probe_ns : times->silence_ns;
    if (since_ns < due_ns && m->accused_ns[index] + due_ns < out->wake_ns)
        out->wake_ns = m->accused_ns[index] + due_ns;
    if (since_ns < times->probe_ns)
        return false;
    if (m->nodes[member->node].heard_ns <= m->accused_ns[index]) {
        evict_node(look, member->node);
        return false;
    }
    return (accusers * 2 >= others || since_ns >= times->silence_ns) && !yields_to_other(look, index);
}

static void suspect_accused(struct look *look, struct keel_verdict *out)
{
    hear_accusations(look);
    for (uint16_t round = 0; round < look->view->member_count; round++) {
        const uint32_t others = look->active - 1;
        uint16_t worst = NOBODY, most = 0;
        for (uint16_t i = 0; i < look->accused_count; i++) {
            const uint16_t index = look->accused[i];
            if (!weigh_accused(look, index, others, out) || look->accusers[index] < most)
                continue;
            most = look->accusers[index];
            worst = index;
        }
        if (worst == NOBODY)
            return;
        evict(look, worst, KEEL_CAUSE_CONNECTION);
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

/* An evicted member leaves for the sake of those who stay. Nobody stays: then whoever is alive and ready
 * stays after all. All were silent together, which says more about the network or the machine than about one
 * of them, so the others that were only silent get the whole timeout again, from now on. */
static bool reinstate(const struct look *look)
{
    struct keel_membership *m = look->m;
    const struct keel_view *view = look->view;
    bool reinstated = false;
    if (somebody_remains(m, view))
        return false;
    for (int i = 0; i < view->member_count; i++) {
        const struct keel_member *member = &view->members[i];
        if (m->evicted[i] == KEEL_CAUSE_NONE || !is_alive_and_ready(m, member, look->times, look->now_ns))
            continue;
        m->evicted[i] = KEEL_CAUSE_NONE;
        m->accused_ns[i] = 0;
        keel_bitset_remove(&m->leaving, member->node); /* it may go when others are there */
        reinstated = true;
    }
    for (int i = 0; reinstated && i < view->member_count; i++) {
        if (m->evicted[i] != KEEL_CAUSE_SILENCE)
            continue;
        m->evicted[i] = KEEL_CAUSE_NONE;
        m->nodes[view->members[i].node].heard_ns = look->now_ns;
    }
    return reinstated;
}

/* ---- newcomers ----------------------------------------------------------------------------------------- */

static void list_worker(const struct look *look, uint16_t node, uint8_t local, struct keel_verdict *out)
{
    const struct keel_wire_worker *w = &look->m->nodes[node].workers[local];
    const uint16_t at = look->places.at[node][local];
    const bool member = at != NOBODY && look->view->members[at].incarnation == w->incarnation;
    const bool taken = at != NOBODY && !keel_bitset_has(&out->gone, at); /* by a member that stays */
    const bool fresh = w->state == KEEL_WORKER_READY && w->sent_epoch == 0;
    if (fresh && !taken && out->join_count < KEEL_MEMBERS_MAX) {
        struct keel_member *join = &out->joins[out->join_count++];
        *join = (struct keel_member){
            .node = node, .local = local, .incarnation = w->incarnation, .data = w->address};
    } else if (w->state == KEEL_WORKER_STARTING || w->state == KEEL_WORKER_OFF ||
               (w->state == KEEL_WORKER_READY && (!member || !taken))) {
        out->coming++; /* who is evicted and lives, too: it goes on as long as there is no view without it */
    }
}

/* When a node that nothing is heard of looks another way than now. Half the timeout, from which on the ring
 * is asked, is in wake_ns. */
static uint64_t next_turn_ns(const struct keel_seen_node *seen, const struct keel_times *times,
                             uint64_t now_ns)
{
    const uint64_t silent_ns = now_ns - seen->heard_ns;
    if (seen->exited || silent_ns >= times->join_wait_ns)
        return UINT64_MAX;
    return seen->heard_ns + (silent_ns < times->silence_ns ? times->silence_ns : times->join_wait_ns);
}

static void list_newcomers(const struct look *look, struct keel_verdict *out)
{
    const struct keel_membership *m = look->m;
    const struct keel_times *times = look->times;
    const uint64_t now_ns = look->now_ns;
    for (uint16_t node = 1; node < m->node_count; node++) {
        const struct keel_seen_node *seen = &m->nodes[node];
        const uint64_t turn_ns = next_turn_ns(seen, times, now_ns);
        out->until_ns = turn_ns < out->until_ns ? turn_ns : out->until_ns;
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
        for (uint8_t local = 0; local < seen->worker_count && !keel_bitset_has(&m->leaving, node); local++)
            list_worker(look, node, local, out);
    }
}

/* ---- suspects ------------------------------------------------------------------------------------------ */

static void start_verdict(struct keel_verdict *out)
{
    memset(out, 0, offsetof(struct keel_verdict, joins));
    out->wake_ns = out->until_ns = UINT64_MAX;
}

static void end_look(const struct look *look, struct keel_verdict *out)
{
    out->until_ns = out->wake_ns < out->until_ns ? out->wake_ns : out->until_ns;
    look->m->changed = look->m->stale = false;
    look->m->looked_ns = look->now_ns;
    look->m->look_epoch = look->view->epoch;
}

bool keel_membership_holds(const struct keel_membership *m, const struct keel_verdict *verdict,
                           const struct keel_view *view, uint64_t now_ns, uint64_t *out_wake_ns)
{
    const uint64_t pause_ns = look_pause_ns * ((uint64_t)view->member_count + m->node_count);
    *out_wake_ns = m->stale ? m->looked_ns + pause_ns : UINT64_MAX;
    return !m->changed && m->look_epoch == view->epoch && now_ns < verdict->until_ns && now_ns < *out_wake_ns;
}

static void collect_members(const struct look *look, struct keel_verdict *out)
{
    const struct keel_membership *m = look->m;
    const struct keel_view *view = look->view;
    uint32_t gone_or_done = 0;
    for (uint16_t i = 0; i < view->member_count; i++) {
        const struct keel_member *member = &view->members[i];
        const bool evicted = m->evicted[i] != KEEL_CAUSE_NONE, done = is_done(m, member);
        if (evicted) {
            keel_bitset_add(&out->gone, i);
            out->active_gone = out->active_gone || !member->spare;
            const bool finished = m->evicted[i] == KEEL_CAUSE_FINISHED; /* the cause where nobody was lost */
            const bool first = finished == (out->cause == KEEL_CAUSE_FINISHED)
                                   ? m->evicted_ns[i] < out->evidence_ns
                                   : !finished;
            if (!member->spare && (out->evidence_ns == 0 || first)) {
                out->evidence_ns = m->evicted_ns[i];
                out->alive_ns = m->alive_ns[i];
                out->cause = m->evicted[i];
            }
        }
        out->done_count = (uint16_t)(out->done_count + (done ? 1 : 0));
        if (done)
            keel_bitset_add(&out->done, i);
        else if (!evicted && member->spare)
            out->spares++;
        else if (!evicted)
            out->remaining++;
        gone_or_done += evicted || done ? 1 : 0;
    }
    KEEL_ASSERT(out->remaining + out->spares + gone_or_done == view->member_count);
}

/* Rules 1 to 4, for one member. */
static void look_at_member(struct look *look, uint16_t index, struct keel_verdict *out)
{
    const struct keel_member *member = &look->view->members[index];
    if (is_done(look->m, member) || look->m->evicted[index] != KEEL_CAUSE_NONE)
        return;
    const enum keel_cause cause = evidence_against(look, member);
    if (cause != KEEL_CAUSE_NONE) {
        evict(look, index, cause);
        return;
    }
    const uint64_t heard_ns = look->m->nodes[member->node].heard_ns;
    const uint64_t half_ns = heard_ns + look->times->silence_ns / 2;
    out->overdue = (uint16_t)(out->overdue + (half_ns <= look->now_ns ? 1 : 0));
    const uint64_t due_ns = half_ns > look->now_ns ? half_ns : heard_ns + look->times->silence_ns;
    if (due_ns < out->wake_ns)
        out->wake_ns = due_ns;
}

void keel_membership_suspect(struct keel_membership *m, const struct keel_view *view,
                             const struct keel_times *times, uint64_t now_ns, struct keel_verdict *out)
{
    struct look look; /* large, of which as much is written as there are members */
    begin_look(&look, m, view, times, now_ns);
    start_verdict(out);
    for (uint16_t i = 0; i < view->member_count; i++)
        look_at_member(&look, i, out);
    suspect_accused(&look, out);
    const bool reinstated = reinstate(&look);
    collect_members(&look, out);
    list_newcomers(&look, out);
    end_look(&look, out);
    m->changed = reinstated; /* those were not looked at */
    KEEL_ASSERT(keel_bitset_count(&out->gone) + out->remaining + out->spares <= view->member_count);
    KEEL_ASSERT(out->join_count <= KEEL_MEMBERS_MAX);
    if (out->join_count == 0)
        m->join_ns = 0;
    else if (m->join_ns == 0)
        m->join_ns = now_ns;
}

void keel_membership_awaited(struct keel_membership *m, const struct keel_view *view,
                             const struct keel_times *times, uint64_t now_ns, struct keel_verdict *out)
{
    struct look look;
    begin_look(&look, m, view, times, now_ns);
    start_verdict(out);
    for (uint16_t i = 0; i < view->member_count; i++) {
        const struct keel_member *member = &view->members[i];
        const struct keel_wire_worker *w = worker_of(m, member);
        bool same = w && w->incarnation == member->incarnation && w->state == KEEL_WORKER_READY &&
                    w->sent_epoch > 0 && w->address.bytes == member->data.bytes &&
                    memcmp(w->address.data, member->data.data, w->address.bytes) == 0;
        if (!same || !node_is_live(&m->nodes[member->node], times, now_ns))
            keel_bitset_add(&out->gone, i);
        else if (member->spare)
            out->spares++;
        else
            out->remaining++;
    }
    list_newcomers(&look, out);
    end_look(&look, out);
}
