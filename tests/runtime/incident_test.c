/* incident_test.c - whatever happens between two commits, and in whatever order it is heard of, the parts of
 * an incident add up to the time between them. */
#include "harness.h"
#include "incident.h"
#include <keel/clock.h>
#include <string.h>

enum { S = 1000 }; /* a second of these tests */

static struct keel_view view_of(uint64_t epoch, uint16_t count, uint32_t incarnation)
{
    struct keel_view view = {.epoch = epoch, .member_count = count};
    for (uint16_t i = 0; i < count; i++)
        view.members[i] =
            (struct keel_member){.rank = i, .node = (uint16_t)(i + 1), .incarnation = incarnation};
    return view;
}

static struct keel_incident_loss loss_of(const struct keel_view *old_view, const struct keel_view *new_view)
{
    return (struct keel_incident_loss){.old_view = old_view,
                                       .new_view = new_view,
                                       .cause = KEEL_CAUSE_EXIT,
                                       .commit_ns = 10 * S,
                                       .alive_ns = 12 * S,
                                       .evidence_ns = 13 * S,
                                       .silence_ns = 2 * S,
                                       .now_ns = 14 * S};
}

static uint64_t sum_of(const uint64_t part_ns[KEEL_INCIDENT_PART_COUNT])
{
    uint64_t sum = 0;
    for (unsigned p = 0; p < KEEL_INCIDENT_PART_COUNT; p++)
        sum += part_ns[p];
    return sum;
}

static uint64_t part_ns[KEEL_INCIDENT_PART_COUNT], total_ns;

START_TEST(a_killed_rank_is_named_and_each_part_is_where_it_belongs)
{
    struct keel_view before = view_of(1, 3, 256), after = view_of(2, 2, 256);
    struct keel_incident incident = {.open = false};
    struct keel_incident_loss loss = loss_of(&before, &after);
    keel_incident_begin(&incident, &loss);
    ck_assert_uint_eq(incident.lost_count, 1);
    ck_assert_uint_eq(incident.lost[0].rank, 2);
    struct keel_step_record record = {
        .step = 5, .epoch = 2, .sync_ns = S, .heal_ns = 2 * S, .redo_ns = 3 * S, .exposed_comm_ns = 4 * S};
    ck_assert(keel_incident_commit(&incident, &record, 30 * S, part_ns, &total_ns));
    ck_assert_uint_eq(total_ns, 20 * S);
    ck_assert_uint_eq(sum_of(part_ns), total_ns);
    ck_assert_uint_eq(part_ns[KEEL_INCIDENT_BEFORE], 2 * S);
    ck_assert_uint_eq(part_ns[KEEL_INCIDENT_DETECT], S);
    ck_assert_uint_eq(part_ns[KEEL_INCIDENT_RECONFIGURE], S);
    ck_assert_uint_eq(part_ns[KEEL_INCIDENT_WAIT], 4 * S);
    ck_assert_uint_eq(part_ns[KEEL_INCIDENT_OTHER], 6 * S);
    ck_assert(!incident.open);
    ck_assert(!keel_incident_commit(&incident, &record, 31 * S, part_ns, &total_ns));
}
END_TEST

START_TEST(silence_began_up_to_a_timeout_before_it_evicted)
{
    struct keel_view before = view_of(1, 2, 256), after = view_of(2, 1, 256);
    struct keel_incident incident = {.open = false};
    struct keel_incident_loss loss = loss_of(&before, &after);
    loss.cause = KEEL_CAUSE_SILENCE;
    keel_incident_begin(&incident, &loss);
    struct keel_step_record record = {.step = 5, .epoch = 2, .sync_ns = 1};
    ck_assert(keel_incident_commit(&incident, &record, 15 * S, part_ns, &total_ns));
    ck_assert_uint_eq(part_ns[KEEL_INCIDENT_DETECT], 2 * S);
    ck_assert_uint_eq(sum_of(part_ns), 5 * S);
}
END_TEST

START_TEST(all_who_are_lost_are_counted_also_those_that_are_not_named)
{
    struct keel_view before = view_of(1, KEEL_INCIDENT_LOST_MAX + 8, 256), after = view_of(2, 1, 256);
    struct keel_incident incident = {.open = false};
    struct keel_incident_loss loss = loss_of(&before, &after);
    keel_incident_begin(&incident, &loss);
    ck_assert_uint_eq(incident.lost_count, KEEL_INCIDENT_LOST_MAX + 7);
    ck_assert_uint_eq(incident.lost[KEEL_INCIDENT_LOST_MAX - 1].rank, KEEL_INCIDENT_LOST_MAX);
}
END_TEST

START_TEST(a_second_loss_and_a_late_commit_of_the_old_view_belong_to_the_same_incident)
{
    struct keel_view first = view_of(1, 3, 256), second = view_of(2, 2, 256), third = view_of(3, 1, 256);
    struct keel_incident incident = {.open = false};
    struct keel_incident_loss loss = loss_of(&first, &second);
    keel_incident_begin(&incident, &loss);
    struct keel_step_record old = {.step = 4, .epoch = 1};
    ck_assert(!keel_incident_commit(&incident, &old, 16 * S, part_ns, &total_ns));
    loss = loss_of(&second, &third);
    loss.evidence_ns = 20 * S;
    loss.now_ns = 22 * S;
    keel_incident_begin(&incident, &loss);
    ck_assert_uint_eq(incident.lost_count, 2);
    struct keel_step_record record = {.step = 5, .epoch = 3, .sync_ns = S};
    ck_assert(keel_incident_commit(&incident, &record, 24 * S, part_ns, &total_ns));
    ck_assert_uint_eq(total_ns,
                      10 * S); /* the old view's last commit cannot have come after the view that ended it */
    ck_assert_uint_eq(sum_of(part_ns), total_ns);
    ck_assert_uint_eq(part_ns[KEEL_INCIDENT_RECONFIGURE], 8 * S);
}
END_TEST

START_TEST(steps_that_are_run_again_are_a_part)
{
    struct keel_view before = view_of(1, 2, 256), after = view_of(2, 2, 257), joined = view_of(3, 3, 257);
    struct keel_incident incident = {.open = false};
    struct keel_incident_loss loss = loss_of(&before, &after);
    keel_incident_begin(&incident, &loss);
    keel_incident_resumed(&incident, 3, 17 * S);
    keel_incident_view(&incident, joined.epoch, 18 * S); /* somebody joins meanwhile */
    struct keel_step_record record = {.step = 9, .epoch = 3, .sync_ns = S, .exposed_comm_ns = S};
    ck_assert(keel_incident_commit(&incident, &record, 40 * S, part_ns, &total_ns));
    ck_assert_uint_eq(part_ns[KEEL_INCIDENT_RESTORE], 3 * S);
    ck_assert_uint_eq(part_ns[KEEL_INCIDENT_AGAIN], 23 * S);
    ck_assert_uint_eq(sum_of(part_ns), 30 * S);
}
END_TEST

static uint64_t draw(uint64_t *seed, uint64_t below)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*seed >> 33) % below;
}

START_TEST(any_order_of_what_is_heard_adds_up)
{
    uint64_t seed = 1;
    for (int round = 0; round < 20000; round++) {
        struct keel_view before = view_of(1, 3, 256), after = view_of(2, (uint16_t)draw(&seed, 3), 256);
        struct keel_incident incident = {.open = false};
        struct keel_incident_loss loss = {.old_view = &before, .new_view = &after};
        uint64_t now_ns = 50 + draw(&seed, 1000);
        loss.cause = (enum keel_cause)draw(&seed, KEEL_CAUSE_COUNT);
        loss.commit_ns = draw(&seed, now_ns);
        loss.drill_ns = draw(&seed, 2) * draw(&seed, now_ns);
        loss.evidence_ns = draw(&seed, now_ns);
        loss.alive_ns = draw(&seed, loss.evidence_ns + 1);
        loss.silence_ns = draw(&seed, 200);
        loss.now_ns = now_ns;
        keel_incident_begin(&incident, &loss);
        if (draw(&seed, 2))
            keel_incident_resumed(&incident, draw(&seed, 4), now_ns += draw(&seed, 50));
        if (draw(&seed, 2))
            keel_incident_view(&incident, 2, now_ns += draw(&seed, 50));
        struct keel_step_record record = {.step = 1 + draw(&seed, 5),
                                          .epoch = 2,
                                          .sync_ns = draw(&seed, 2) * draw(&seed, 300),
                                          .heal_ns = draw(&seed, 300),
                                          .redo_ns = draw(&seed, 300),
                                          .exposed_comm_ns = draw(&seed, 300)};
        now_ns += draw(&seed, 500);
        ck_assert(keel_incident_commit(&incident, &record, now_ns, part_ns, &total_ns));
        ck_assert_uint_eq(total_ns, now_ns - loss.commit_ns);
        ck_assert_uint_eq(sum_of(part_ns), total_ns);
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_killed_rank_is_named_and_each_part_is_where_it_belongs);
    tcase_add_test(tc, silence_began_up_to_a_timeout_before_it_evicted);
    tcase_add_test(tc, all_who_are_lost_are_counted_also_those_that_are_not_named);
    tcase_add_test(tc, a_second_loss_and_a_late_commit_of_the_old_view_belong_to_the_same_incident);
    tcase_add_test(tc, steps_that_are_run_again_are_a_part);
    tcase_add_test(tc, any_order_of_what_is_heard_adds_up);
}

KEEL_TEST_MAIN("incident", cases, 30)
