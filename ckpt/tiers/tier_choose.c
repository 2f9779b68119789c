/* tier_choose.c - the newest generation that all ranks can have: a pure function, so that every rank that
 * knows the same comes to the same without asking. */
#include "format.h"
#include <inttypes.h>
#include <keel/ckpt_tier.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>

/* An offer and whose it is. */
struct claim {
    uint64_t step, attempt;
    uint32_t rank;
    enum keel_tier_latency latency;
};

/* Newest generation first; within one by rank, the nearest of a rank first. */
static int by_generation(const void *a, const void *b)
{
    const struct claim *x = a, *y = b;
    int order = keel_compare_u64(y->step, x->step);
    if (order == 0)
        order = keel_compare_u64(y->attempt, x->attempt);
    if (order == 0)
        order = keel_compare_u64(x->rank, y->rank);
    return order != 0 ? order : keel_compare_u64(x->latency, y->latency);
}

/* The claims [0, count) of one generation: of how many ranks, and the first rank that has none. */
static uint32_t count_ranks(const struct claim *claims, size_t count, uint32_t *out_missing)
{
    uint32_t ranks = 0;
    *out_missing = 0;
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && claims[i].rank == claims[i - 1].rank)
            continue;
        ranks++;
        if (claims[i].rank == *out_missing)
            (*out_missing)++;
    }
    return ranks;
}

static size_t generation_end(const struct claim *claims, size_t first, size_t count)
{
    size_t end = first + 1;
    while (end < count && claims[end].step == claims[first].step &&
           claims[end].attempt == claims[first].attempt)
        end++;
    return end;
}

/* Where all have one: its claims are [*out_first, *out_end). */
static bool find_common(const struct claim *claims, size_t count, uint32_t rank_count,
                        struct keel_choice *choice, size_t *out_first, size_t *out_end)
{
    for (size_t first = 0, end; first < count; first = end) {
        uint32_t missing;
        end = generation_end(claims, first, count);
        uint32_t ranks = count_ranks(&claims[first], end - first, &missing);
        if (ranks == rank_count) {
            choice->step = claims[first].step;
            choice->attempt = claims[first].attempt;
            *out_first = first;
            *out_end = end;
            return true;
        }
        if (choice->passed_over)
            continue;
        choice->passed_over = true;
        choice->newer_step = claims[first].step;
        choice->newer_attempt = claims[first].attempt;
        choice->missing_rank = missing;
        choice->missing_count = rank_count - ranks;
    }
    return false;
}

static enum keel_status gather(const struct keel_rank_offers *ranks, uint32_t rank_count, struct claim **out,
                               size_t *out_count)
{
    size_t count = 0;
    struct claim *claims;
    for (uint32_t r = 0; r < rank_count; r++)
        count += ranks[r].count;
    KEEL_TRY(keel_alloc(count, sizeof *claims, &claims));
    size_t used = 0;
    for (uint32_t r = 0; r < rank_count; r++)
        for (uint32_t i = 0; i < ranks[r].count; i++) {
            const struct keel_offer *offer = &ranks[r].offers[i];
            claims[used++] = (struct claim){offer->step, offer->attempt, r, offer->latency};
        }
    if (count > 0)
        qsort(claims, count, sizeof *claims, by_generation);
    *out = claims;
    *out_count = count;
    return KEEL_OK;
}

/* "130.1 is missing on rank 5 and 2 others: its partner is gone" */
static void say_missing(const struct keel_choice *choice, const struct keel_rank_offers *ranks, char *out,
                        size_t capacity)
{
    const char *why = ranks[choice->missing_rank].why_not;
    char others[32] = "";
    if (choice->missing_count > 1)
        snprintf(others, sizeof others, " and %" PRIu32 " others", choice->missing_count - 1);
    snprintf(out, capacity, "%" PRIu64 ".%" PRIu64 " is missing on rank %" PRIu32 "%s%s%s",
             choice->newer_step, choice->newer_attempt, choice->missing_rank, others, why != NULL ? ": " : "",
             why != NULL ? why : "");
}

enum keel_status keel_tier_choose(const struct keel_rank_offers *ranks, uint32_t rank_count,
                                  struct keel_choice *out, enum keel_tier_latency *out_from)
{
    struct keel_choice choice = {0};
    struct claim *claims;
    size_t count, first = 0, end = 0;
    if (rank_count == 0)
        return keel_fail(KEEL_INVALID, "nobody is there to choose a generation for");
    KEEL_TRY(gather(ranks, rank_count, &claims, &count));
    bool found = find_common(claims, count, rank_count, &choice, &first, &end);
    for (size_t i = end; i-- > first;) /* backwards, so that a rank's nearest stays */
        out_from[claims[i].rank] = claims[i].latency;
    keel_free(claims);
    if (found) {
        *out = choice;
        return KEEL_OK;
    }
    char missing[KEEL_CHOICE_TEXT_BYTES] = "none is offered at all";
    if (choice.passed_over)
        say_missing(&choice, ranks, missing, sizeof missing);
    return keel_fail(KEEL_NOT_FOUND, "no generation can be had by all %" PRIu32 " ranks: %s", rank_count,
                     missing);
}

void keel_tier_choice_text(const struct keel_choice *choice, const struct keel_rank_offers *ranks,
                           enum keel_tier_latency from, char out[KEEL_CHOICE_TEXT_BYTES])
{
    char missing[KEEL_CHOICE_TEXT_BYTES / 2] = "";
    if (choice->passed_over)
        say_missing(choice, ranks, missing, sizeof missing);
    snprintf(out, KEEL_CHOICE_TEXT_BYTES, "step %" PRIu64 ".%" PRIu64 " from %s%s%s", choice->step,
             choice->attempt, keel_tier_latency_text(from), choice->passed_over ? "; " : "", missing);
}
