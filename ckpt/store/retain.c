/* retain.c - which generations of a run go, and in what order.
 *
 * A committed one goes when no rule holds it and none that stays needs it as a base, over any number of
 * others. Of those that are not committed only leftovers go: of earlier steps than the one made last, since
 * another may be on its way, or all of them when the caller knows that none is. One whose manifest is damaged
 * stays, for repair, and so do its bases.
 *
 * keep_last counts twice, by step and by creation time. A run that was restarted, or that went back behind a
 * damaged snapshot, creates snapshots of lower steps than existing ones; by step alone they would go first.
 *
 * Order of going: what needs a base before that base, so that wherever a crash ends the removal, every
 * snapshot that is still committed has its bases. */
#include "retain.h"
#include <keel/memory.h>
#include <stdlib.h>

struct moment {
    uint64_t created_ns;
    uint32_t number;
};

struct decision {
    const struct keel_generation_entry *generations;
    uint32_t count;
    struct moment *moments; /* of the committed ones, earliest first; owned, as are the next three */
    uint32_t moment_count;
    bool *stays;
    uint32_t *stack;      /* generations whose bases are still to be looked at */
    uint32_t *dependents; /* of each that goes: how many that go, and are not in the order yet, need it */
    uint32_t stacked;
};

static void decision_fini(struct decision *decision)
{
    keel_free(decision->moments);
    keel_free(decision->stays);
    keel_free(decision->stack);
    keel_free(decision->dependents);
}

static enum keel_status decision_init(const struct keel_generation_index *generations, struct decision *out)
{
    struct decision decision = {.generations = generations->at, .count = (uint32_t)generations->count};
    enum keel_status status = keel_alloc(decision.count, sizeof *decision.moments, &decision.moments);
    if (status == KEEL_OK)
        status = keel_alloc(decision.count, sizeof *decision.stays, &decision.stays);
    if (status == KEEL_OK)
        status = keel_alloc(decision.count, sizeof *decision.stack, &decision.stack);
    if (status == KEEL_OK)
        status = keel_alloc(decision.count, sizeof *decision.dependents, &decision.dependents);
    if (status != KEEL_OK) {
        decision_fini(&decision);
        return status;
    }
    *out = decision;
    return KEEL_OK;
}

/* ---- rules --------------------------------------------------------------------------------------------- */

static int earliest_first(const void *a, const void *b)
{
    const struct moment *x = a, *y = b;
    if (x->created_ns != y->created_ns)
        return x->created_ns < y->created_ns ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number; /* of one moment: the highest step first */
}

static void collect_moments(struct decision *decision)
{
    for (uint32_t i = 0; i < decision->count; i++)
        if (decision->generations[i].state == KEEL_GENERATION_COMMITTED)
            decision->moments[decision->moment_count++] =
                (struct moment){decision->generations[i].info.created_wall_ns, i};
    if (decision->moment_count > 0)
        qsort(decision->moments, decision->moment_count, sizeof *decision->moments, earliest_first);
}

static void keep_newest(struct decision *decision, uint32_t keep)
{
    uint32_t seen = 0;
    for (uint32_t i = 0; i < decision->count && seen < keep; i++) {
        bool committed = decision->generations[i].state == KEEL_GENERATION_COMMITTED;
        decision->stays[i] = decision->stays[i] || committed;
        seen += committed;
    }
    uint32_t later = 0; /* how many were made strictly later */
    for (uint32_t i = decision->moment_count; i-- > 0;) {
        if (i + 1 < decision->moment_count &&
            decision->moments[i].created_ns != decision->moments[i + 1].created_ns)
            later = decision->moment_count - 1 - i;
        if (later >= keep)
            break;
        decision->stays[decision->moments[i].number] = true;
    }
}

static void keep_by_rules(struct decision *decision, const struct keel_retention *rules, uint64_t now_ns)
{
    for (uint32_t i = 0; i < decision->moment_count; i++) {
        const struct moment *moment = &decision->moments[i];
        bool *stays = &decision->stays[moment->number];
        if (rules->keep_every_steps > 0 &&
            decision->generations[moment->number].info.step % rules->keep_every_steps == 0)
            *stays = true;
        if (moment->created_ns >= now_ns || now_ns - moment->created_ns < rules->keep_within_ns)
            *stays = true; /* a clock that was set back makes nothing old */
        /* Spans are those of the clock, not of now: what was the first of its span stays it. */
        if (rules->keep_spaced_ns > 0 &&
            (i == 0 || moment->created_ns / rules->keep_spaced_ns !=
                           decision->moments[i - 1].created_ns / rules->keep_spaced_ns))
            *stays = true;
    }
}

/* Of the committed attempt that was made last; of one moment, the lowest: fewer are leftovers then. */
static uint64_t last_made_step(const struct decision *decision)
{
    if (decision->moment_count == 0)
        return 0;
    return decision->generations[decision->moments[decision->moment_count - 1].number].info.step;
}

static void keep_others(struct decision *decision, uint64_t last_step, bool idle)
{
    bool any = false; /* somebody who stays may need any */
    for (uint32_t i = 0; i < decision->count; i++) {
        const struct keel_generation_entry *attempt = &decision->generations[i];
        bool newest = attempt->state == KEEL_GENERATION_UNCOMMITTED && attempt->info.step >= last_step;
        /* What nobody writes any more stays if only its manifest is missing: whoever has that can mend it. */
        if (attempt->state == KEEL_GENERATION_DAMAGED || (newest && (!idle || attempt->whole)))
            decision->stays[i] = true;
        any = any || (decision->stays[i] && attempt->bases_unknown);
    }
    for (uint32_t i = 0; i < decision->moment_count && any; i++)
        decision->stays[decision->moments[i].number] = true;
}

/* ---- bases --------------------------------------------------------------------------------------------- */

static int compare_attempt(const void *key, const void *item)
{
    const struct keel_snapshot_info *info = &((const struct keel_generation_entry *)item)->info;
    return keel_generation_compare(&(struct keel_generation){info->step, info->attempt}, key);
}

/* The number of that attempt; `count` when it is not there. */
static uint32_t find(const struct decision *decision, const struct keel_generation *base)
{
    const struct keel_generation_entry *found =
        bsearch(base, decision->generations, decision->count, sizeof *decision->generations, compare_attempt);
    return found == NULL ? decision->count : (uint32_t)(found - decision->generations);
}

static void keep_bases(struct decision *decision)
{
    for (uint32_t i = 0; i < decision->count; i++)
        if (decision->stays[i])
            decision->stack[decision->stacked++] = i;
    while (decision->stacked > 0) {
        const struct keel_generation_entry *attempt =
            &decision->generations[decision->stack[--decision->stacked]];
        for (uint32_t b = 0; b < attempt->base_count; b++) {
            uint32_t number = find(decision, &attempt->bases[b]);
            if (number == decision->count || decision->stays[number])
                continue;
            decision->stays[number] = true; /* once each: the stack has room */
            decision->stack[decision->stacked++] = number;
        }
    }
}

/* Dependents first, and of the others the oldest, so that removals that are cut short again and again get on
 * with what has waited longest. What needs itself in a circle, which nobody writes, gets no place and stays.
 */
static uint32_t put_in_order(struct decision *decision, uint32_t *goes)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < decision->count; i++)
        for (uint32_t b = 0; b < decision->generations[i].base_count && !decision->stays[i]; b++) {
            uint32_t number = find(decision, &decision->generations[i].bases[b]);
            if (number < decision->count)
                decision->dependents[number]++;
        }
    for (uint32_t i = decision->count; i-- > 0;)
        if (!decision->stays[i] && decision->dependents[i] == 0)
            goes[count++] = i;
    for (uint32_t next = 0; next < count; next++) {
        const struct keel_generation_entry *attempt = &decision->generations[goes[next]];
        for (uint32_t b = 0; b < attempt->base_count; b++) {
            uint32_t number = find(decision, &attempt->bases[b]);
            if (number < decision->count && --decision->dependents[number] == 0 && !decision->stays[number])
                goes[count++] = number;
        }
    }
    return count;
}

/* What must hold whatever the rules were: the newest stay, what stays has its bases, nothing is in both
 * lists. */
static void assert_safe(const struct decision *decision, const struct keel_retain_plan *plan, uint32_t keep)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < decision->count; i++) {
        const struct keel_generation_entry *attempt = &decision->generations[i];
        kept += decision->stays[i] && attempt->state == KEEL_GENERATION_COMMITTED;
        KEEL_ASSERT(decision->stays[i] || attempt->state != KEEL_GENERATION_DAMAGED);
        for (uint32_t b = 0; b < attempt->base_count && decision->stays[i]; b++) {
            uint32_t base = find(decision, &attempt->bases[b]);
            KEEL_ASSERT(base == decision->count || decision->stays[base]);
        }
    }
    KEEL_ASSERT(kept >= (keep < decision->moment_count ? keep : decision->moment_count));
    for (uint32_t i = 0; i < plan->count; i++)
        KEEL_ASSERT(!decision->stays[plan->goes[i]]);
}

enum keel_status keel_retain_decide(const struct keel_generation_index *generations,
                                    const struct keel_retention *rules, uint64_t now_ns,
                                    struct keel_retain_plan *out)
{
    struct decision decision;
    struct keel_retain_plan plan = {0};
    KEEL_ASSERT(generations->count < UINT32_MAX);
    KEEL_TRY(decision_init(generations, &decision));
    enum keel_status status = keel_alloc(generations->count, sizeof *plan.goes, &plan.goes);
    if (status == KEEL_OK) {
        collect_moments(&decision);
        plan.last_made_step = last_made_step(&decision);
        keep_newest(&decision, rules->keep_last);
        keep_by_rules(&decision, rules, now_ns);
        keep_others(&decision, plan.last_made_step, rules->idle);
        keep_bases(&decision);
        plan.count = put_in_order(&decision, plan.goes);
        assert_safe(&decision, &plan, rules->keep_last);
        plan.stays = decision.stays;
        decision.stays = NULL;
        *out = plan;
    }
    decision_fini(&decision);
    return status;
}

void keel_retain_plan_fini(struct keel_retain_plan *plan)
{
    keel_free(plan->goes);
    keel_free(plan->stays);
    *plan = (struct keel_retain_plan){0};
}
