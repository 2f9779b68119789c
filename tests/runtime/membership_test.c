/* membership_test.c - the launcher's picture of the nodes, and the rules by which they are evicted, one rule
 * at a time. */
#include "any_plan.h"
#include "harness.h"
#include "membership.h"

#include <stddef.h>
#include <string.h>

enum { NODES = 4 };
#define MS UINT64_C(1000000)

static struct keel_membership m;
static struct keel_times times;
static struct keel_view view;
static uint64_t now_ns;

/* Three nodes with one worker each, all in the view of epoch 1. */
static void set_up(void)
{
    now_ns = 1000 * MS;
    keel_times_derive(1000 * MS, &times);
    keel_membership_init(&m, NODES, 1, now_ns);
    struct keel_member joins[3];
    for (uint16_t i = 0; i < 3; i++)
        joins[i] = (struct keel_member){.node = (uint16_t)(i + 1), .incarnation = 256};
    const struct keel_view none = {.epoch = 0};
    const struct keel_view_change change = {
        .joins = joins, .join_count = 3, .rank_count = 3, .shard_count = 3, .plans = any_plan()};
    ck_assert(keel_view_next(&none, &change, &view));
}

static bool report(uint16_t node, uint32_t incarnation, uint64_t sequence, enum keel_worker_state state)
{
    struct keel_wire_status status = {.incarnation = incarnation,
                                      .sequence = sequence,
                                      .silent_node = KEEL_RANK_NONE,
                                      .first_record = UINT64_MAX,
                                      .worker_count = 1};
    status.workers[0] = (struct keel_wire_worker){.incarnation = incarnation << 8,
                                                  .state = state,
                                                  .failure = KEEL_MISMATCH,
                                                  .sent_epoch = incarnation == 1 ? 1 : 0};
    return keel_membership_report(&m, node, &status, &times, now_ns);
}

static struct keel_verdict suspect(void)
{
    struct keel_verdict verdict;
    keel_membership_suspect(&m, &view, &times, now_ns, &verdict);
    return verdict;
}

/* Are these the members to leave, a bit each, and no others? */
static bool gone(struct keel_verdict verdict, uint32_t bits)
{
    bool same = true;
    for (uint32_t i = 0; i < KEEL_BITSET_BITS; i++)
        same = same && keel_bitset_has(&verdict.gone, i) == (i < 32 && (bits >> i & 1) != 0);
    return same;
}

START_TEST(late_and_repeated_reports_change_nothing)
{
    set_up();
    ck_assert(report(1, 1, 5, KEEL_WORKER_OFF));
    ck_assert(!report(1, 1, 5, KEEL_WORKER_READY));
    ck_assert(!report(1, 1, 4, KEEL_WORKER_READY));
    ck_assert_int_eq(m.nodes[1].workers[0].state, KEEL_WORKER_OFF);
    ck_assert(report(1, 2, 1, KEEL_WORKER_READY)); /* the next life begins to count anew */
    ck_assert(!report(1, 1, 99, KEEL_WORKER_OFF));
    ck_assert_int_eq(m.nodes[1].workers[0].state, KEEL_WORKER_READY);
}
END_TEST

START_TEST(a_dead_process_says_nothing_any_more)
{
    set_up();
    ck_assert(report(2, 1, 1, KEEL_WORKER_READY));
    keel_membership_node_exit(&m, 2);
    ck_assert(!report(2, 1, 2, KEEL_WORKER_READY));
    ck_assert(gone(suspect(), 1U << 1));
    ck_assert(report(2, 2, 1, KEEL_WORKER_READY));
    ck_assert(!m.nodes[2].exited);
}
END_TEST

/* What it had sent arrives behind the news of its end, which came on another way. */
START_TEST(a_process_that_ended_unheard_is_not_revived_by_what_it_sent)
{
    set_up();
    keel_membership_node_exit(&m, 2);
    ck_assert(!report(2, 1, 1, KEEL_WORKER_STARTING));
    ck_assert(m.nodes[2].exited && !m.nodes[2].heard);
    keel_membership_node_started(&m, 2, m.nodes[2].incarnation + 1, now_ns);
    ck_assert_uint_eq(m.nodes[2].incarnation, 2); /* the triples of the first life come never again */
    ck_assert(!report(2, 1, 2, KEEL_WORKER_READY));
    ck_assert(report(2, 2, 1, KEEL_WORKER_READY));
}
END_TEST

START_TEST(an_eviction_stays_until_the_view_changes)
{
    set_up();
    for (uint16_t node = 1; node < NODES; node++)
        ck_assert(report(node, 1, 1, KEEL_WORKER_READY));
    ck_assert(gone(suspect(), 0));
    uint64_t heard_ns = now_ns;
    now_ns += 7;
    ck_assert(report(3, 1, 2, KEEL_WORKER_OFF));
    struct keel_verdict verdict = suspect();
    ck_assert_uint_eq(verdict.alive_ns, heard_ns);
    ck_assert(gone(verdict, 1U << 2));
    ck_assert_int_eq(verdict.cause, KEEL_CAUSE_EXIT);
    ck_assert_uint_eq(verdict.evidence_ns, now_ns);
    ck_assert_uint_eq(verdict.remaining, 2);
    ck_assert(report(3, 1, 3, KEEL_WORKER_READY));
    ck_assert(gone(suspect(), 1U << 2));
    keel_membership_clear_evidence(&m);
    ck_assert(gone(suspect(), 0));
}
END_TEST

START_TEST(silence_evicts_after_the_timeout_and_after_half_when_the_ring_agrees)
{
    set_up();
    for (uint16_t node = 1; node < NODES; node++)
        ck_assert(report(node, 1, 1, KEEL_WORKER_READY));
    now_ns += 600 * MS;
    ck_assert(report(1, 1, 2, KEEL_WORKER_READY));
    ck_assert(report(2, 1, 2, KEEL_WORKER_READY));
    ck_assert(gone(suspect(), 0));
    m.nodes[2].silent_node = 3;
    ck_assert(gone(suspect(), 1U << 2));
    ck_assert_int_eq(suspect().cause, KEEL_CAUSE_SILENCE);
    keel_membership_clear_evidence(&m);
    m.nodes[2].silent_node = KEEL_RANK_NONE;
    now_ns += 399 * MS;
    ck_assert(gone(suspect(), 0));
    now_ns += MS;
    ck_assert(gone(suspect(), 1U << 2));
}
END_TEST

START_TEST(only_fresh_workers_outside_the_view_may_join)
{
    set_up();
    for (uint16_t node = 1; node < NODES; node++)
        ck_assert(report(node, 1, 1, KEEL_WORKER_READY));
    ck_assert_uint_eq(suspect().join_count, 0);
    ck_assert(report(2, 2, 1, KEEL_WORKER_READY));
    struct keel_verdict verdict = suspect();
    ck_assert(gone(verdict, 1U << 1));
    ck_assert_uint_eq(verdict.join_count, 1);
    ck_assert_uint_eq(verdict.joins[0].incarnation, 512);
    m.nodes[2].workers[0].sent_epoch = 1; /* was told a view: it is somebody voted out */
    ck_assert_uint_eq(suspect().join_count, 0);
}
END_TEST

START_TEST(who_is_alive_stays_when_its_accuser_is_gone)
{
    set_up();
    view.member_count = 2; /* ranks 0 and 1 */
    ck_assert(report(1, 1, 1, KEEL_WORKER_READY) && report(2, 1, 1, KEEL_WORKER_READY));
    m.evicted[1] = KEEL_CAUSE_CONNECTION; /* by rank 0 */
    m.evicted_ns[1] = now_ns;
    ck_assert(gone(suspect(), 2));
    ck_assert(report(1, 1, 2, KEEL_WORKER_GONE));
    struct keel_verdict verdict = suspect();
    ck_assert(gone(verdict, 1));
    ck_assert_uint_eq(verdict.remaining, 1);
}
END_TEST

/* The end of a process is evidence before the accusation of one that has done its work, in whatever order. */
START_TEST(who_has_finished_is_no_loss)
{
    for (int later = 0; later < 2; later++) {
        set_up();
        for (uint16_t node = 1; node < NODES; node++)
            ck_assert(report(node, 1, 1, node == 2 ? KEEL_WORKER_DONE : KEEL_WORKER_READY));
        m.evicted[1] = KEEL_CAUSE_FINISHED;
        m.evicted_ns[1] = now_ns;
        ck_assert(gone(suspect(), 1U << 1));
        ck_assert_int_eq(suspect().cause, KEEL_CAUSE_FINISHED);
        m.evicted[2 - 2 * later] = KEEL_CAUSE_EXIT;
        m.evicted_ns[2 - 2 * later] = now_ns + (later ? MS : 0) - (later ? 0 : MS);
        const struct keel_verdict verdict = suspect();
        ck_assert_int_eq(verdict.cause, KEEL_CAUSE_EXIT);
        ck_assert_uint_eq(verdict.evidence_ns, m.evicted_ns[2 - 2 * later]);
    }
}
END_TEST

/* What ends a run is the failure of who carries it, not of who was left out long before. */
START_TEST(a_failure_of_who_left_is_not_the_runs)
{
    const char *detail = NULL;
    set_up();
    ck_assert(report(1, 1, 1, KEEL_WORKER_READY) && report(3, 1, 1, KEEL_WORKER_FAILED));
    ck_status(keel_membership_failure(&m, &view, &detail), KEEL_MISMATCH);
    ck_assert_ptr_eq(detail, m.nodes[3].detail);
    view.member_count = 2; /* the third was left out */
    ck_ok(keel_membership_failure(&m, &view, &detail));
    ck_status(keel_membership_failure(&m, NULL, &detail), KEEL_MISMATCH);
    ck_assert(report(2, 1, 1, KEEL_WORKER_FAILED));
    ck_status(keel_membership_failure(&m, &view, &detail), KEEL_MISMATCH);
    ck_assert_ptr_eq(detail, m.nodes[2].detail);
}
END_TEST

static uint64_t dice;

static uint32_t draw(uint32_t below)
{
    dice = dice * UINT64_C(6364136223846793005) + 1442695040888963407U;
    return (uint32_t)(dice >> 33) % below;
}

/* Mostly what its node said before; else another state, an accusation, a word about the ring, its next life.
 */
static void report_something(struct keel_wire_status *said)
{
    const uint16_t node = (uint16_t)(1 + draw(NODES - 1));
    struct keel_wire_status *status = &said[node];
    struct keel_wire_worker *worker = &status->workers[0];
    status->sequence++;
    worker->progress++;
    if (draw(8) == 0)
        worker->state = (enum keel_worker_state)draw(KEEL_WORKER_STATE_COUNT);
    if (draw(8) == 0)
        worker->accused_epoch = draw(2);
    worker->accused_rank = (uint16_t)draw(3);
    if (draw(16) == 0)
        status->silent_node = draw(2) == 0 ? KEEL_RANK_NONE : (uint16_t)(1 + draw(NODES - 1));
    if (draw(64) == 0) {
        worker->incarnation = ++status->incarnation << 8;
        worker->sent_epoch = worker->accused_epoch = 0;
    }
    (void)keel_membership_report(&m, node, status, &times, now_ns);
    if (draw(64) == 0)
        keel_membership_node_exit(&m, node);
}

static bool same_verdict(const struct keel_verdict *a, const struct keel_verdict *b)
{
    return memcmp(&a->gone, &b->gone, sizeof a->gone) == 0 &&
           memcmp(&a->done, &b->done, sizeof a->done) == 0 && a->cause == b->cause &&
           a->evidence_ns == b->evidence_ns && a->alive_ns == b->alive_ns &&
           a->active_gone == b->active_gone && a->done_count == b->done_count &&
           a->remaining == b->remaining && a->spares == b->spares && a->coming == b->coming &&
           a->unheard == b->unheard && a->join_count == b->join_count &&
           memcmp(a->joins, b->joins, a->join_count * sizeof a->joins[0]) == 0;
}

/* As far as this test writes it. */
static void copy_membership(struct keel_membership *out, const struct keel_membership *from)
{
    memcpy(out, from, offsetof(struct keel_membership, evicted));
    for (uint16_t i = 0; i < from->judged; i++) {
        out->evicted[i] = from->evicted[i];
        out->evicted_ns[i] = from->evicted_ns[i];
        out->alive_ns[i] = from->alive_ns[i];
        out->accused_ns[i] = from->accused_ns[i];
    }
    memcpy(out->nodes, from->nodes, from->node_count * sizeof out->nodes[0]);
}

START_TEST(a_verdict_that_holds_is_what_another_look_would_find)
{
    static struct keel_membership other;
    static struct keel_verdict verdict, again;
    uint32_t held = 0, looks = 0;
    for (dice = 1; looks < 20000;) {
        struct keel_wire_status said[NODES] = {{.incarnation = 0}};
        set_up();
        for (uint16_t node = 1; node < NODES; node++) {
            said[node] =
                (struct keel_wire_status){.incarnation = 1, .silent_node = KEEL_RANK_NONE, .worker_count = 1};
            said[node].workers[0] =
                (struct keel_wire_worker){.incarnation = 256, .state = KEEL_WORKER_READY, .sent_epoch = 1};
        }
        for (int event = 0; event < 200; event++) {
            uint64_t wake_ns;
            now_ns += draw(4) == 0 ? draw(300) * MS : draw(MS);
            report_something(said);
            if (m.stale || !keel_membership_holds(&m, &verdict, &view, now_ns, &wake_ns)) {
                keel_membership_suspect(&m, &view, &times, now_ns, &verdict);
                looks++;
                continue;
            }
            held++;
            copy_membership(&other, &m);
            keel_membership_suspect(&other, &view, &times, now_ns, &again);
            ck_assert(same_verdict(&verdict, &again));
        }
    }
    ck_assert_uint_gt(held, looks / 2);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_verdict_that_holds_is_what_another_look_would_find);
    tcase_add_test(tc, a_failure_of_who_left_is_not_the_runs);
    tcase_add_test(tc, who_has_finished_is_no_loss);
    tcase_add_test(tc, who_is_alive_stays_when_its_accuser_is_gone);
    tcase_add_test(tc, late_and_repeated_reports_change_nothing);
    tcase_add_test(tc, a_dead_process_says_nothing_any_more);
    tcase_add_test(tc, a_process_that_ended_unheard_is_not_revived_by_what_it_sent);
    tcase_add_test(tc, an_eviction_stays_until_the_view_changes);
    tcase_add_test(tc, silence_evicts_after_the_timeout_and_after_half_when_the_ring_agrees);
    tcase_add_test(tc, only_fresh_workers_outside_the_view_may_join);
}

KEEL_TEST_MAIN("membership", cases, 60)
