/* step_records.c - what every rank says with a step: its weights before it, the loss of the step before, what
 * snapshot it asks for. All ranks compare the same records, so all draw the same conclusion. */
#include "trainer_internal.h"

static uint64_t flags_now(const struct keel_trainer_step *step)
{
    return step->flags | (step->save != NULL && !keel_save_done(step->save) ? step->saving_flag : 0);
}

enum keel_status keel_tape_record(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    const struct keel_trainer_step *step = run->step;
    struct keel_commit_record *mine = &trainer->records[KEEL_MEMBERS_MAX];
    (void)action;
    KEEL_ASSERT(trainer->hold.count == trainer->tape.part_count && step->position < KEEL_MEMBERS_MAX);
    *mine = (struct keel_commit_record){.epoch = step->epoch,
                                        .step = step->step,
                                        .digest = trainer->digest,
                                        .flags = flags_now(step),
                                        .has_loss = step->has_loss,
                                        .loss_bits = step->loss_bits};
    trainer->records[step->position] = *mine; /* all there is where no others are gathered */
    return KEEL_OK;
}

/* What the ranks must agree about, as one of them says it. False: it does not know. */
static bool said_weights(const struct keel_commit_record *record, uint64_t *out)
{
    *out = record->digest;
    return true;
}

static bool said_loss(const struct keel_commit_record *record, uint64_t *out)
{
    *out = record->loss_bits;
    return record->has_loss != 0;
}

/* How many ranks say `wanted`. */
static uint32_t count_saying(const struct keel_trainer *trainer, uint32_t rank_count,
                             bool (*said)(const struct keel_commit_record *, uint64_t *), uint64_t wanted)
{
    uint32_t count = 0;
    uint64_t value;
    for (uint32_t r = 0; r < rank_count; r++)
        count += said(&trainer->records[r], &value) && value == wanted ? 1 : 0;
    return count;
}

/* All ranks have the same records, so all name the same one: the first that differs from most. */
static enum keel_status check_said(const struct keel_trainer *trainer, const struct keel_trainer_step *step,
                                   bool (*said)(const struct keel_commit_record *, uint64_t *), int digits,
                                   const char *what)
{
    uint64_t most = 0, value;
    uint32_t most_count = 0, count;
    for (uint32_t r = 0; r < step->rank_count && most_count * 2 <= step->rank_count; r++) {
        if (!said(&trainer->records[r], &value))
            continue;
        count = count_saying(trainer, step->rank_count, said, value);
        most = count > most_count ? value : most;
        most_count = count > most_count ? count : most_count;
    }
    for (uint32_t r = 0; r < step->rank_count; r++) {
        if (!said(&trainer->records[r], &value) || value == most)
            continue;
        count = count_saying(trainer, step->rank_count, said, value);
        return keel_fail(
            KEEL_MISMATCH, "after step %llu rank %u has the %s %0*llx, and %u of %u ranks have %0*llx%s",
            (unsigned long long)step->step, step->position_rank != NULL ? step->position_rank[r] : r, what,
            digits, (unsigned long long)value, most_count, step->rank_count, digits, (unsigned long long)most,
            count == most_count ? ": one of them is wrong, and nobody can tell which" : "");
    }
    return KEEL_OK;
}

enum keel_status keel_tape_check_records(struct keel_tape_run *run, const struct keel_action *action)
{
    const struct keel_trainer *trainer = run->trainer;
    const struct keel_trainer_step *step = run->step;
    (void)action;
    for (uint32_t r = 0; r < step->rank_count; r++) {
        const struct keel_commit_record *record = &trainer->records[r];
        if (record->epoch != step->epoch || record->step != step->step)
            return keel_fail(KEEL_MISMATCH, "step %llu: position %u came with step %llu",
                             (unsigned long long)step->step, r, (unsigned long long)record->step);
        run->result.flags |= record->flags;
    }
    KEEL_TRY(check_said(trainer, step, said_weights, 16, "weights"));
    return check_said(trainer, step, said_loss, 8, "loss");
}
