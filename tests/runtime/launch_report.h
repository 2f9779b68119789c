/* launch_report.h - what a launcher tells its caller, as lines of a file, for tests of real processes. */
#ifndef KEEL_TESTS_LAUNCH_REPORT_H
#define KEEL_TESTS_LAUNCH_REPORT_H

#include "launcher.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <stdio.h>
#include <stdlib.h>

static FILE *report_file;

static void on_step(void *context, const struct keel_step_record *record)
{
    (void)context;
    fprintf(report_file, "step %" PRIu64 " %016" PRIx64 "\n", record->step, record->digest);
}

static void on_mismatch(void *context, const struct keel_step_record *a, const struct keel_step_record *b)
{
    (void)context;
    fprintf(report_file, "mismatch %" PRIu64 " %" PRIu64 "\n", a->step, b->step);
}

static void on_view(void *context, const struct keel_view *old_view, const struct keel_view *new_view,
                    enum keel_cause cause, uint64_t alive_ns, uint64_t evidence_ns)
{
    (void)context;
    int active = 0;
    for (uint16_t i = 0; i < new_view->member_count; i++)
        active += !new_view->members[i].spare;
    fprintf(report_file, "view %" PRIu64 " after %" PRIu64 " active %d spare %d cause %s evidence %d\n",
            new_view->epoch, old_view->epoch, active, new_view->member_count - active, keel_cause_name(cause),
            evidence_ns > 0 && alive_ns <= evidence_ns);
}

/* REPORT_TELL_MS: it takes so long, as on a terminal that stands. */
static void on_tell(void *context, const char *text)
{
    const char *slow_ms = getenv("REPORT_TELL_MS");
    (void)context;
    fprintf(report_file, "tell %s\n", text);
    if (slow_ms != NULL)
        keel_sleep_until_ns(keel_deadline_after_ns(strtoull(slow_ms, NULL, 10) * KEEL_NS_PER_MS));
}

static void on_shortage(void *context, uint16_t ranks, uint16_t fewest)
{
    (void)context;
    fprintf(report_file, "shortage %u %u\n", ranks, fewest);
}

static void on_drain(void *context, uint16_t node, enum keel_drain_news news, uint16_t ranks, uint16_t fewest)
{
    static const char *const names[] = {"left", "waits", "over", "holds"};
    (void)context;
    fprintf(report_file, "drain %u %s %u %u\n", node, names[news], ranks, fewest);
}

static void on_note(void *context, uint16_t node, uint8_t local, const uint8_t *data, uint32_t bytes)
{
    (void)context;
    fprintf(report_file, "note %u.%u %.*s\n", node, local, (int)bytes, (const char *)data);
}

static void on_snapshot(void *context, const struct keel_committed *snapshot)
{
    (void)context;
    fprintf(report_file, "snapshot %" PRIu64 " %s %s\n", snapshot->step, keel_status_name(snapshot->status),
            snapshot->detail);
}

static void on_agent_exit(void *context, uint16_t node, uint32_t incarnation,
                          const struct keel_process_end *end)
{
    (void)context;
    fprintf(report_file, "agent-exit %u.%u %s %d\n", node, incarnation, end->signaled ? "signal" : "code",
            end->code);
}

static void on_room(void *context, bool full, const char *detail)
{
    (void)context;
    fprintf(report_file, "room %s %s\n", full ? "none" : "again", detail);
}

static void on_stranger(void *context, const char *place, const char *reason, uint64_t total)
{
    (void)context;
    (void)place;
    fprintf(report_file, "stranger %" PRIu64 " %s\n", total, reason);
}

static const struct keel_launch_report reports = {.step = on_step,
                                                  .mismatch = on_mismatch,
                                                  .view = on_view,
                                                  .shortage = on_shortage,
                                                  .tell = on_tell,
                                                  .drain = on_drain,
                                                  .note = on_note,
                                                  .snapshot = on_snapshot,
                                                  .agent_exit = on_agent_exit,
                                                  .room = on_room,
                                                  .stranger = on_stranger};

#endif
