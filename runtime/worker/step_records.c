/* step_records.c - what every rank says with a step: its weights before it, the loss of the step before, what
 * snapshot it asks for. All ranks compare the same records, so all draw the same conclusion. */
#include "trainer_internal.h"
#include <keel/clock.h>
#include <stdio.h>
#include <string.h>

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
    KEEL_ASSERT(step->position < KEEL_MEMBERS_MAX);
    *mine = (struct keel_commit_record){.epoch = step->epoch,
                                        .step = step->step,
                                        .digest = trainer->digest,
                                        .now = trainer->digest,
                                        .flags = flags_now(step),
                                        .has_loss = step->has_loss,
                                        .loss_bits = step->loss_bits};
    trainer->records[step->position] = *mine; /* all there is where no others are gathered */
    return KEEL_OK;
}

enum keel_status keel_tape_look(struct keel_tape_run *run)
{
    struct keel_trainer *trainer = run->trainer;
    struct keel_commit_record *mine = &trainer->records[KEEL_MEMBERS_MAX];
    uint64_t shared;
    KEEL_TRY(
        trainer->gathered.on
            ? keel_gathered_own_digest(trainer, &mine->now, &shared)
            : keel_engine_digest(trainer->engine, keel_deadline_after_ns(trainer->stall_ns), &mine->now));
    if (trainer->owned.on)
        KEEL_TRY(keel_owned_look(trainer, &mine->own, &mine->copies));
    trainer->records[run->step->position] = *mine;
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

/* How many ranks say `wanted`; NULL: say anything. */
static uint32_t count_saying(const struct keel_trainer *trainer, uint32_t rank_count,
                             bool (*said)(const struct keel_commit_record *, uint64_t *),
                             const uint64_t *wanted)
{
    uint32_t count = 0;
    uint64_t value;
    for (uint32_t r = 0; r < rank_count; r++)
        count += said(&trainer->records[r], &value) && (wanted == NULL || value == *wanted) ? 1 : 0;
    return count;
}

static uint16_t rank_of(const struct keel_trainer_step *step, uint32_t position)
{
    return step->position_rank != NULL ? step->position_rank[position] : (uint16_t)position;
}

/* Nobody leaves before all have the records: who lacks one would take it for a loss, and go on with a state
 * that may be the wrong one. Whoever is lost meanwhile, the records say what they say. */
static void meet(struct keel_tape_run *run)
{
    const struct keel_collective barrier = {.kind = KEEL_BARRIER,
                                            .sequence = keel_tape_sequence(run, KEEL_PIECE_MEETING)};
    keel_tape_leave(run);
    if (run->step->group != NULL)
        (void)keel_group_run(run->step->group, &barrier, keel_deadline_after_ns(run->trainer->stall_ns));
}

/* Ranks with other slices end with it, too: they have no part in it, and would go on alone. */
static enum keel_status differ(struct keel_tape_run *run, const char *evidence)
{
    meet(run);
    if (run->trainer->tensor.count > 0)
        keel_tensor_disagree(run);
    return keel_fail(KEEL_MISMATCH, "%s", evidence);
}

/* Those for which wrong[position] go; the others do the step again without them. */
static enum keel_status vote_out(struct keel_tape_run *run, const bool *wrong, bool board,
                                 const char *evidence)
{
    const struct keel_trainer_step *step = run->step;
    struct keel_trainer_vote vote = {
        .step = step->step, .mine = wrong[step->position], .board = board, .evidence = evidence};
    uint32_t first = step->rank_count;
    for (uint32_t r = step->rank_count; r-- > 0;) {
        const struct keel_commit_record *record = &run->trainer->records[r];
        if (wrong[r]) {
            vote.rank = rank_of(step, r);
            continue;
        }
        first = r;
        vote.digest = record->digest;
        vote.loss_bits = record->has_loss ? record->loss_bits : vote.loss_bits;
        vote.has_loss = vote.has_loss || record->has_loss;
    }
    vote.tells = first == step->position;
    if (run->trainer->gathered.on) { /* all computed with what it gave of its weights */
        keel_trainer_drop(run->trainer);
        run->before.count = 0;
    }
    meet(run);
    if (step->screen.outvoted != NULL)
        return step->screen.outvoted(step->screen.context, &vote);
    return keel_fail(KEEL_MISMATCH, "%s", evidence);
}

/* A rank knows by itself that its weights are not those that it began the step with: gradients are made of
 * both. */
static enum keel_status check_kept(struct keel_tape_run *run)
{
    const struct keel_trainer_step *step = run->step;
    bool wrong[KEEL_MEMBERS_MAX] = {false}, any = false;
    char evidence[KEEL_DETAIL_BYTES];
    for (uint32_t r = step->rank_count; r-- > 0;) {
        const struct keel_commit_record *record = &run->trainer->records[r];
        wrong[r] = record->now != record->digest;
        any = any || wrong[r];
        if (wrong[r])
            snprintf(evidence, sizeof evidence,
                     "rank %u has weights %016llx in step %llu, which began with %016llx", rank_of(step, r),
                     (unsigned long long)record->now, (unsigned long long)step->step + 1,
                     (unsigned long long)record->digest);
    }
    return any ? vote_out(run, wrong, true, evidence) : KEEL_OK;
}

/* All ranks have the same records, so all name the same one: the first that differs from most. Where no more
 * than half agree, nobody can tell who is right. */
static enum keel_status check_said(struct keel_tape_run *run,
                                   bool (*said)(const struct keel_commit_record *, uint64_t *), bool board,
                                   int digits, const char *what)
{
    const struct keel_trainer *trainer = run->trainer;
    const struct keel_trainer_step *step = run->step;
    const uint32_t ranks = step->rank_count, known = count_saying(trainer, ranks, said, NULL);
    bool wrong[KEEL_MEMBERS_MAX] = {false};
    uint64_t most = 0, value;
    uint32_t most_count = 0, count, first = ranks;
    for (uint32_t r = 0; r < ranks && most_count * 2 <= known; r++) {
        if (!said(&trainer->records[r], &value))
            continue;
        count = count_saying(trainer, ranks, said, &value);
        most = count > most_count ? value : most;
        most_count = count > most_count ? count : most_count;
    }
    for (uint32_t r = ranks; r-- > 0;) {
        wrong[r] = said(&trainer->records[r], &value) && value != most;
        first = wrong[r] ? r : first;
    }
    if (first == ranks)
        return KEEL_OK;
    const bool outvoted = most_count * 2 > known;
    char evidence[KEEL_DETAIL_BYTES];
    (void)said(&trainer->records[first], &value);
    snprintf(evidence, sizeof evidence,
             "after step %llu rank %u has the %s %0*llx, and %u of %u ranks have %0*llx%s",
             (unsigned long long)step->step, rank_of(step, first), what, digits, (unsigned long long)value,
             most_count, ranks, digits, (unsigned long long)most,
             outvoted ? "" : ": one of them is wrong, and nobody can tell which");
    return outvoted ? vote_out(run, wrong, board, evidence) : differ(run, evidence);
}

/* Whose pieces `position` has copies of, in words, and how many they are. A digest is that of all of them:
 * nobody knows of which one. */
static uint32_t name_owners(const struct keel_tape_run *run, uint32_t position, char *out, size_t capacity)
{
    const struct keel_owned_layout *now = &run->trainer->owned.now;
    uint32_t count = 0;
    size_t used = 0;
    for (uint32_t p = 0; p < run->step->rank_count; p++)
        if (keel_owned_copies(now, position, p) && used < capacity)
            used += (size_t)snprintf(out + used, capacity - used, count++ == 0 ? "%u" : ", %u",
                                     rank_of(run->step, p));
    return count;
}

/* By position: the sum of the digests of those of whose pieces it has copies. */
static void sum_copies(const struct keel_tape_run *run, uint64_t sums[KEEL_MEMBERS_MAX])
{
    const struct keel_owned_layout *now = &run->trainer->owned.now;
    const struct keel_commit_record *records = run->trainer->records;
    const uint32_t count = run->step->rank_count, group = now->owners.of.group;
    uint64_t all[KEEL_MEMBERS_MAX] = {0}; /* groups: of the positions with the same number in each */
    memset(sums, 0, count * sizeof *sums);
    for (uint32_t p = 0; p < count; p++) {
        all[p % group] += records[p].own;
        if (group == now->owners.of.count && now->second[p] != KEEL_SEAT_NONE)
            sums[now->second[p]] += records[p].own;
    }
    for (uint32_t p = 0; p < count && group < now->owners.of.count; p++)
        sums[p] = all[p % group] - records[p].own;
}

/* parallel.zero: what a rank has of others is what they have. Nobody can tell who is right. */
static enum keel_status check_copies(struct keel_tape_run *run)
{
    const struct keel_trainer *trainer = run->trainer;
    const struct keel_trainer_step *step = run->step;
    uint64_t sums[KEEL_MEMBERS_MAX];
    uint32_t r = 0;
    sum_copies(run, sums);
    while (r < step->rank_count && sums[r] == trainer->records[r].copies)
        r++;
    if (r == step->rank_count)
        return KEEL_OK;
    char evidence[KEEL_DETAIL_BYTES], names[128] = "?";
    const bool several = name_owners(run, r, names, sizeof names) > 1;
    snprintf(evidence, sizeof evidence,
             "after step %llu rank %u has other pieces of the state of rank%s %s than %s: one of them is "
             "wrong, and nobody can tell which",
             (unsigned long long)step->step, rank_of(step, r), several ? "s" : "", names,
             several ? "those have" : "that has");
    return differ(run, evidence);
}

enum keel_status keel_tape_check_records(struct keel_tape_run *run, const struct keel_action *action)
{
    const struct keel_trainer *trainer = run->trainer;
    const struct keel_trainer_step *step = run->step;
    (void)action;
    if (step->group == NULL)
        KEEL_TRY(keel_tape_look(run));
    for (uint32_t r = 0; r < step->rank_count; r++) {
        const struct keel_commit_record *record = &trainer->records[r];
        if (record->epoch != step->epoch || record->step != step->step)
            return keel_fail(KEEL_MISMATCH, "step %llu: position %u came with step %llu",
                             (unsigned long long)step->step, r, (unsigned long long)record->step);
        run->result.flags |= record->flags;
    }
    KEEL_TRY(check_kept(run));
    if (!trainer->gathered.on) /* else each says what it owns */
        KEEL_TRY(check_said(run, said_weights, true, 16, "weights"));
    KEEL_TRY(check_said(run, said_loss, false, 8, "loss"));
    return trainer->owned.on ? check_copies(run) : KEEL_OK;
}
