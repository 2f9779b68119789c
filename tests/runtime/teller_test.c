/* teller_test.c - what a node that leads tells comes in its order, whatever the store does, and the end waits
 * for no store that hangs. */
#include "teller.h"

#include "harness.h"
#include "view.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <semaphore.h>
#include <string.h>

static uint64_t soon(void)
{
    return keel_deadline_after_ns(60 * KEEL_NS_PER_S);
}

enum { NOWHERE, AT_OPEN, AT_LOOK, AT_STEP };

/* A store that hangs at one of its calls until it is told to go on. */
static struct store {
    sem_t hangs, goes_on;
    int at;
    enum keel_status look_status;
    uint64_t steps, last_step, views, members, notes, holes, lost, agents;
    bool in_order;
} store;

static void pass(int at)
{
    if (store.at != at)
        return;
    store.at = NOWHERE;
    sem_post(&store.hangs);
    while (sem_wait(&store.goes_on) != 0)
        ;
}

static void await_hang(void)
{
    while (sem_wait(&store.hangs) != 0)
        ;
}

static void on_step(void *context, const struct keel_step_record *record)
{
    (void)context;
    pass(AT_STEP);
    store.in_order = store.in_order && record->step > store.last_step;
    store.last_step = record->step;
    store.steps++;
}

/* In the place of those steps. */
static void on_hole(void *context, uint64_t first, uint64_t last)
{
    (void)context;
    store.in_order = store.in_order && first == store.last_step + 1 && last >= first;
    store.last_step = last;
    store.lost += last - first + 1;
    store.holes++;
}

static void on_view(void *context, const struct keel_view *old_view, const struct keel_view *new_view,
                    enum keel_cause cause, uint64_t alive_ns, uint64_t evidence_ns)
{
    (void)context;
    ck_assert_int_eq(cause, KEEL_CAUSE_EXIT);
    ck_assert_uint_eq(alive_ns, 5);
    ck_assert_uint_eq(evidence_ns, 6);
    ck_assert_uint_eq(new_view->epoch, old_view->epoch + 1);
    ck_assert_uint_eq(new_view->shard_rank[0], 2);
    store.in_order = store.in_order && store.last_step == store.views + 1;
    store.views++;
    store.members += new_view->member_count;
}

static void on_note(void *context, uint16_t node, uint8_t local, const uint8_t *data, uint32_t bytes)
{
    (void)context;
    ck_assert_uint_eq(node, 3);
    ck_assert_uint_eq(local, 1);
    ck_assert_uint_eq(bytes, 4);
    ck_assert_mem_eq(data, "note", 4);
    store.notes++;
}

static void on_agent(void *context, const struct keel_gate_news *news)
{
    (void)context;
    ck_assert_uint_eq(news->node, 4);
    ck_assert_str_eq(news->host, "h");
    ck_assert_str_eq(news->place, "10.0.0.1:9");
    ck_assert_str_eq(news->text, "why");
    store.agents++;
}

static enum keel_status open_store(void *context, struct keel_launch_report *out)
{
    pass(AT_OPEN);
    *out = (struct keel_launch_report){.context = context,
                                       .step = on_step,
                                       .hole = on_hole,
                                       .view = on_view,
                                       .note = on_note,
                                       .agent = on_agent};
    return KEEL_OK;
}

static enum keel_status look(void *context)
{
    (void)context;
    pass(AT_LOOK);
    return store.look_status == KEEL_OK ? KEEL_OK : keel_fail(store.look_status, "it is another's");
}

static struct keel_teller *open_teller(int at)
{
    struct keel_teller *teller;
    store = (struct store){.in_order = true};
    store.at = at;
    ck_assert_int_eq(sem_init(&store.hangs, 0, 0), 0);
    ck_assert_int_eq(sem_init(&store.goes_on, 0, 0), 0);
    const struct keel_teller_config config = {
        .context = &store, .open = open_store, .look = look, .look_ns = KEEL_NS_PER_MS};
    ck_ok(keel_teller_open(&config, &teller));
    return teller;
}

static void tell_step(const struct keel_launch_report *report, uint64_t step)
{
    const struct keel_step_record record = {.step = step};
    report->step(report->context, &record);
}

static void tell_view(const struct keel_launch_report *report, uint64_t epoch)
{
    static struct keel_view old_view, new_view;
    old_view = (struct keel_view){.epoch = epoch, .member_count = 4, .shard_count = 1, .shard_rank = {1}};
    new_view = (struct keel_view){.epoch = epoch + 1, .member_count = 3, .shard_count = 1, .shard_rank = {2}};
    report->view(report->context, &old_view, &new_view, KEEL_CAUSE_EXIT, 5, 6);
}

START_TEST(all_comes_in_its_order_behind_a_store_that_opens_late)
{
    struct keel_teller *teller = open_teller(AT_OPEN);
    const struct keel_launch_report report = keel_teller_report(teller);
    await_hang();
    for (uint64_t i = 1; i <= 100; i++) {
        tell_step(&report, i);
        tell_view(&report, i);
        report.note(report.context, 3, 1, (const uint8_t *)"note", 4);
        char host[] = "h", place[] = "10.0.0.1:9", text[] = "why"; /* gone when the store opens */
        report.agent(report.context,
                     &(struct keel_gate_news){.node = 4, .host = host, .place = place, .text = text});
        host[0] = place[0] = text[0] = '\0';
    }
    ck_assert_uint_eq(store.steps, 0);
    sem_post(&store.goes_on);
    ck_ok(report.settle(report.context, 100)); /* waits for all of them */
    ck_assert_uint_eq(store.steps, 100);
    ck_assert(keel_teller_drain(teller, soon()));
    ck_assert(store.in_order);
    ck_assert_uint_eq(store.views, 100);
    ck_assert_uint_eq(store.members, 300);
    ck_assert_uint_eq(store.notes, 100);
    ck_assert_uint_eq(store.agents, 100);
    ck_assert_ptr_eq(keel_teller_opened(teller)->context, &store);
    keel_teller_close(teller);
}
END_TEST

/* Also one that has all lines, and hangs as somebody looks at it: whoever ended the thread would wait. */
START_TEST(a_store_that_hangs_is_seen_at_the_end)
{
    for (int at = AT_OPEN; at <= AT_STEP; at++) {
        struct keel_teller *teller = open_teller(at);
        const struct keel_launch_report report = keel_teller_report(teller);
        if (at == AT_STEP)
            tell_step(&report, 1);
        await_hang();
        ck_assert(!keel_teller_drain(teller, keel_now_ns()));
        sem_post(&store.goes_on);
        ck_assert(keel_teller_drain(teller, soon()));
        ck_assert_uint_eq(store.steps, at == AT_STEP ? 1 : 0);
        keel_teller_close(teller);
    }
}
END_TEST

/* Two holes: the steps that wait fill the queue, and when it has room again those behind them fill it anew.
 */
START_TEST(steps_that_find_no_room_are_told_as_a_hole_before_their_snapshot_is_settled)
{
    struct keel_teller *teller = open_teller(AT_OPEN);
    const struct keel_launch_report report = keel_teller_report(teller);
    const uint64_t many = KEEL_TELLER_BYTES / sizeof(struct keel_step_record) + 1;
    await_hang();
    for (uint64_t i = 1; i <= many; i++)
        tell_step(&report, i);
    report.note(report.context, 3, 1, (const uint8_t *)"note", 4);
    sem_post(&store.goes_on);
    ck_ok(report.settle(report.context, many));
    ck_assert(store.in_order);
    ck_assert_uint_eq(store.notes, 1);
    ck_assert_uint_eq(store.holes, 1);
    ck_assert_uint_gt(store.steps, many / 2);
    ck_assert_uint_eq(store.steps + store.lost, many);
    ck_assert_uint_eq(store.last_step, many);
    store.at = AT_STEP;
    for (uint64_t i = many + 1; i <= 2 * many; i++)
        tell_step(&report, i);
    await_hang();
    sem_post(&store.goes_on);
    tell_step(&report, 2 * many + 1);
    ck_ok(report.settle(report.context, 2 * many + 1));
    ck_assert(store.in_order);
    ck_assert_uint_eq(store.steps + store.lost, 2 * many + 1);
    ck_assert_uint_eq(store.last_step, 2 * many + 1);
    ck_assert(keel_teller_drain(teller, soon()));
    keel_teller_close(teller);
}
END_TEST

START_TEST(what_a_look_finds_ends_the_telling)
{
    struct keel_teller *teller = open_teller(AT_LOOK);
    const struct keel_launch_report report = keel_teller_report(teller);
    await_hang();
    store.look_status = KEEL_MISMATCH;
    tell_step(&report, 1);
    sem_post(&store.goes_on);
    ck_status(report.settle(report.context, 1), KEEL_IO);
    ck_status(keel_teller_failure(teller), KEEL_MISMATCH);
    ck_assert_str_eq(keel_detail(), "it is another's");
    ck_assert(keel_teller_drain(teller, soon()));
    ck_assert_uint_eq(store.steps, 0);
    keel_teller_close(teller);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, all_comes_in_its_order_behind_a_store_that_opens_late);
    tcase_add_test(tc, a_store_that_hangs_is_seen_at_the_end);
    tcase_add_test(tc, steps_that_find_no_room_are_told_as_a_hole_before_their_snapshot_is_settled);
    tcase_add_test(tc, what_a_look_finds_ends_the_telling);
}

KEEL_TEST_MAIN("teller", cases, 120)
