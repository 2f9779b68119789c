/* step_records.c - what every rank says with a step: its weights before it, the loss of the step before, what
 * snapshot it asks for.
 *
 * Records are folded on the way: in a step all hear whether they are alike, in as many bytes as one has, and
 * not those of all ranks. Where they are not, all gather them, and all compare the same records, so all draw
 * the same conclusion. */
#include "trainer_internal.h"
#include "votes.h"
#include <keel/bits.h>
#include <keel/clock.h>
#include <keel/memory.h>
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
    struct keel_commit_record *mine = &trainer->record;
    (void)action;
    *mine = (struct keel_commit_record){.epoch = step->epoch,
                                        .step = step->step,
                                        .digest = trainer->digest,
                                        .now = trainer->digest,
                                        .flags = flags_now(step),
                                        .has_loss = step->has_loss,
                                        .loss_bits = step->loss_bits};
    return KEEL_OK;
}

/* ---- all records, folded ------------------------------------------------------------------------------- */

static void fold_value(struct keel_record_fold *fold, uint32_t which, uint64_t value)
{
    fold->said[which] = value;
    fold->inverted[which] = ~value;
}

static struct keel_record_fold fold_of(const struct keel_trainer *trainer,
                                       const struct keel_commit_record *record)
{
    struct keel_record_fold fold = {.moved = record->now != record->digest ? 1 : 0};
    fold_value(&fold, KEEL_FOLD_EPOCH, record->epoch);
    fold_value(&fold, KEEL_FOLD_STEP, record->step);
    if (!trainer->gathered.on) /* else each says what it owns */
        fold_value(&fold, KEEL_FOLD_WEIGHTS, record->digest);
    if (record->has_loss)
        fold_value(&fold, KEEL_FOLD_LOSS, record->loss_bits);
    keel_spread_flags(record->flags, fold.flags);
    return fold;
}

/* All who know it say the same; or nobody knows it. */
static bool is_alike(const struct keel_record_fold *fold, uint32_t which)
{
    return fold->said[which] == ~fold->inverted[which] ||
           (fold->said[which] == 0 && fold->inverted[which] == 0);
}

/* Odd, so that what one rank's copies are other shows in a sum of any, and by position, so that what two are
 * does not cancel. */
static uint64_t weight_of(const struct keel_tape_run *run, uint32_t position)
{
    const struct keel_trainer_step *step = run->step;
    const uint64_t place = position;
    uint64_t hash = keel_fnv1a(KEEL_FNV1A_BEGIN, &step->epoch, sizeof step->epoch);
    hash = keel_fnv1a(hash, &step->step, sizeof step->step);
    return keel_fnv1a(hash, &place, sizeof place) | 1;
}

/* Weighted by who has them: what this rank has of others, less what others have of it. Of all ranks the sum
 * is 0 where copies are what they are copies of. */
static uint64_t fold_copies(const struct keel_tape_run *run, const struct keel_commit_record *record)
{
    const struct keel_owned_layout *now = &run->trainer->owned.now;
    const uint32_t position = run->step->position;
    uint64_t holders = 0;
    for (uint32_t i = 0; i < now->copy_count; i++)
        holders += weight_of(run, now->copies[i]);
    return weight_of(run, position) * record->copies - holders * record->own;
}

static enum keel_status begin_fold(struct keel_tape_run *run, uint32_t piece, enum keel_element element,
                                   enum keel_reduction reduction, uint64_t count, const void *mine, void *all,
                                   struct keel_operation **out)
{
    const struct keel_collective what =
        keel_fold_of_ranks(keel_tape_sequence(run, piece), element, reduction, count, &mine, all);
    KEEL_ASSERT(*out == NULL);
    return keel_group_begin(run->step->group, &what, out);
}

/* What all say, in as many bytes as one does. Who finds that they differ asks for the records themselves. */
enum keel_status keel_tape_compare(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    const struct keel_commit_record *mine = &trainer->record;
    KEEL_ASSERT(mine->step == run->step->step && mine->epoch == run->step->epoch);
    KEEL_TRY(keel_tape_look(run));
    if (run->step->group == NULL)
        return KEEL_OK;
    trainer->fold_mine = fold_of(trainer, mine);
    KEEL_TRY(begin_fold(run, action->piece, KEEL_ELEMENT_U8, KEEL_MAX, sizeof trainer->fold_mine,
                        &trainer->fold_mine, &trainer->fold_all, &trainer->operations[action->piece]));
    if (!trainer->owned.on)
        return KEEL_OK;
    trainer->copies_mine = fold_copies(run, mine);
    return begin_fold(run, KEEL_PIECE_COPIES, KEEL_ELEMENT_I64, KEEL_SUM, 1, &trainer->copies_mine,
                      &trainer->copies_all, &trainer->copies);
}

enum keel_status keel_tape_await_copies(struct keel_trainer *trainer, uint64_t deadline_ns)
{
    struct keel_operation *copies = trainer->copies;
    trainer->copies = NULL;
    return keel_operation_wait(copies, deadline_ns);
}

static bool are_alike(const struct keel_tape_run *run)
{
    const struct keel_trainer *trainer = run->trainer;
    bool alike = trainer->fold_all.moved == 0 && (!trainer->owned.on || trainer->copies_all == 0);
    for (uint32_t which = 0; which < KEEL_FOLD_VALUES; which++)
        alike = alike && is_alike(&trainer->fold_all, which);
    return alike;
}

/* Those of all, or of a rank alone its own. */
static enum keel_status gather_records(struct keel_tape_run *run)
{
    struct keel_trainer *trainer = run->trainer;
    KEEL_TRY(keel_grow(&trainer->records, &trainer->record_capacity, run->step->rank_count,
                       sizeof *trainer->records));
    if (run->step->group == NULL) {
        trainer->records[run->step->position] = trainer->record;
        return KEEL_OK;
    }
    const void *parts[] = {&trainer->record};
    const struct keel_collective gather = {.kind = KEEL_ALL_GATHER,
                                           .sequence = keel_tape_sequence(run, KEEL_PIECE_RECORDS),
                                           .element = KEEL_ELEMENT_U8,
                                           .count = sizeof *trainer->records,
                                           .parts = parts,
                                           .part_count = 1,
                                           .result = trainer->records};
    keel_tape_leave(run);
    return keel_group_run(run->step->group, &gather, keel_deadline_after_ns(trainer->stall_ns));
}

/* ---- one by one ---------------------------------------------------------------------------------------- */

enum keel_status keel_tape_look(struct keel_tape_run *run)
{
    struct keel_trainer *trainer = run->trainer;
    struct keel_commit_record *mine = &trainer->record;
    uint64_t shared;
    KEEL_TRY(
        trainer->gathered.on
            ? keel_gathered_own_digest(trainer, &mine->now, &shared)
            : keel_engine_digest(trainer->engine, keel_deadline_after_ns(trainer->stall_ns), &mine->now));
    if (trainer->owned.on)
        KEEL_TRY(keel_owned_look(trainer, &mine->own, &mine->copies));
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

struct most { /* of those who say anything */
    uint32_t known, count;
    uint64_t value;
};

/* What most say; of what as many say, what the first of them does. */
static void find_most(const struct keel_trainer *trainer, uint32_t rank_count,
                      bool (*said)(const struct keel_commit_record *, uint64_t *), struct most *out)
{
    uint64_t sorted[KEEL_MEMBERS_MAX], value;
    *out = (struct most){.known = 0};
    for (uint32_t r = 0; r < rank_count; r++)
        if (said(&trainer->records[r], &value))
            sorted[out->known++] = value;
    keel_votes_sort(sorted, out->known);
    out->count = keel_votes_most(sorted, out->known);
    for (uint32_t r = rank_count; r-- > 0;)
        if (said(&trainer->records[r], &value) && keel_votes_for(sorted, out->known, value) == out->count)
            out->value = value;
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
    bool wrong[KEEL_MEMBERS_MAX], any = false;
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
    const uint32_t ranks = step->rank_count;
    bool wrong[KEEL_MEMBERS_MAX];
    struct most most;
    uint64_t value;
    uint32_t first = ranks;
    find_most(trainer, ranks, said, &most);
    for (uint32_t r = ranks; r-- > 0;) {
        wrong[r] = said(&trainer->records[r], &value) && value != most.value;
        first = wrong[r] ? r : first;
    }
    if (first == ranks)
        return KEEL_OK;
    const bool outvoted = most.count * 2 > most.known;
    char evidence[KEEL_DETAIL_BYTES];
    (void)said(&trainer->records[first], &value);
    snprintf(evidence, sizeof evidence,
             "after step %llu rank %u has the %s %0*llx, and %u of %u ranks have %0*llx%s",
             (unsigned long long)step->step, rank_of(step, first), what, digits, (unsigned long long)value,
             most.count, ranks, digits, (unsigned long long)most.value,
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

/* parallel.zero: what a rank has of others is what they have. Nobody can tell who is right. */
static enum keel_status check_copies(struct keel_tape_run *run)
{
    const struct keel_trainer *trainer = run->trainer;
    const struct keel_trainer_step *step = run->step;
    uint64_t sums[KEEL_MEMBERS_MAX];
    uint32_t r = 0;
    keel_owned_sum_copies(&trainer->owned.now, trainer->records, sums);
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
    run->result.flags |= step->group != NULL ? keel_join_flags(trainer->fold_all.flags) : 0;
    if (step->group != NULL && are_alike(run))
        return KEEL_OK;
    KEEL_TRY(gather_records(run));
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
