/* leading.c - see leading.h. */
#include "leading.h"

#include <keel/clock.h>
#include <keel/log.h>
#include <stdio.h>

/* NULL: it cannot do what who leads does. */
static struct keel_leading *leading_of(void *context)
{
    struct keel_leading *leading = ((struct keel_control_plane *)context)->leading;
    return leading->open == NULL || leading->open(leading) ? leading : NULL;
}

void keel_leading_report_snapshots(struct keel_leading *leading)
{
    struct keel_committed result;
    while (leading->committer != NULL && keel_committer_take(leading->committer, &result))
        leading->report->snapshot(leading->report->context, &result);
}

bool keel_leading_drain(struct keel_leading *leading, uint64_t deadline_ns)
{
    const bool drained = keel_committer_drain(leading->committer, deadline_ns);
    keel_leading_report_snapshots(leading);
    if (!drained) {
        keel_log(KEEL_LOG_ERROR, "the last snapshot is still being committed after %d s: the disk hangs",
                 KEEL_LEADING_DRAIN_S);
        leading->committer = NULL;
    }
    return drained;
}

static void effect_snapshot_commit(void *context, uint64_t step, uint64_t attempt,
                                   const struct keel_shard_summary *shards, uint32_t count)
{
    struct keel_leading *leading = leading_of(context);
    struct keel_committed failed = {.step = step, .attempt = attempt};
    if (leading == NULL)
        return;
    if (leading->committer != NULL) {
        keel_leading_report_snapshots(leading); /* results take room */
        failed.status = keel_committer_order(leading->committer, step, attempt, shards, count, &failed);
    } else {
        failed.status = keel_fail(KEEL_INVALID, "a snapshot of a job that asks for none");
        snprintf(failed.detail, sizeof failed.detail, "%s", keel_detail());
    }
    if (failed.status != KEEL_OK)
        leading->report->snapshot(leading->report->context, &failed);
}

static void effect_snapshot_drop(void *context, uint64_t step, uint64_t attempt,
                                 const struct keel_bitset *ranks)
{
    struct keel_leading *leading = leading_of(context);
    if (leading != NULL && leading->committer != NULL)
        keel_committer_drop(leading->committer, step, attempt, ranks);
}

static void effect_step_commit(void *context, const struct keel_step_record *record)
{
    struct keel_leading *leading = leading_of(context);
    if (leading != NULL)
        leading->report->step(leading->report->context, record);
}

static void effect_past(void *context, const uint8_t *data, uint32_t bytes)
{
    struct keel_leading *leading = leading_of(context);
    if (leading != NULL && leading->report->learn != NULL)
        leading->report->learn(leading->report->context, data, bytes);
}

static void effect_mismatch(void *context, const struct keel_step_record *a, const struct keel_step_record *b)
{
    struct keel_leading *leading = leading_of(context);
    if (leading != NULL)
        leading->report->mismatch(leading->report->context, a, b);
}

static void effect_view_change(void *context, const struct keel_view *old_view,
                               const struct keel_view *new_view, enum keel_cause cause, uint64_t alive_ns,
                               uint64_t evidence_ns)
{
    struct keel_leading *leading = leading_of(context);
    if (leading == NULL || ((struct keel_control_plane *)context)->undurable)
        return; /* it never comes to be: nobody is told */
    leading->began = true;
    leading->report->view(leading->report->context, old_view, new_view, cause, alive_ns, evidence_ns);
}

static void effect_shortage(void *context, uint16_t ranks, uint16_t fewest)
{
    struct keel_leading *leading = leading_of(context);
    if (leading != NULL)
        leading->report->shortage(leading->report->context, ranks, fewest);
}

static void effect_drain(void *context, uint16_t node, enum keel_drain_news news, uint16_t ranks,
                         uint16_t fewest)
{
    struct keel_leading *leading = leading_of(context);
    if (leading != NULL)
        leading->report->drain(leading->report->context, node, news, ranks, fewest);
}

static void effect_note(void *context, uint16_t node, uint8_t local, const uint8_t *data, uint32_t bytes)
{
    struct keel_leading *leading = leading_of(context);
    if (leading != NULL)
        leading->report->note(leading->report->context, node, local, data, bytes);
}

void keel_leading_fill(struct keel_env *effects)
{
    effects->snapshot_commit = effect_snapshot_commit;
    effects->snapshot_drop = effect_snapshot_drop;
    effects->step_commit = effect_step_commit;
    effects->past = effect_past;
    effects->mismatch = effect_mismatch;
    effects->view_change = effect_view_change;
    effects->shortage = effect_shortage;
    effects->drain = effect_drain;
    effects->note = effect_note;
}
