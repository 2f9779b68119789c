/* schedule_bruck.c - everything to everybody in ceil(log2 n) steps, for any number of ranks.
 *
 * Bruck, Ho, Kipnis, Upfal, Weathersby 1997. All-gather: at distance 1, 2, 4, ... pass on all blocks that one
 * has. All-to-all: a block that has d ranks to go takes one hop for each bit of d, so that it is sent at most
 * log2(n) times, over 2 log2(n) peers instead of n - 1. Barrier: dissemination. All-reduce: an all-gather of
 * the leaves, which everybody sums in tree order: for a few bytes the shortest exact sum with any map. */
#include "schedule_build.h"

#include <keel/memory.h>

static void bruck_all_gather(struct keel_builder *builder)
{
    uint32_t ranks = builder->schedule->rank_count;
    keel_build_blocks(builder, 1, ranks, KEEL_SPACE_RESULT);
    for (uint32_t bit = 1; bit < ranks; bit *= 2) {
        uint32_t count = bit < ranks - bit ? bit : ranks - bit;
        for (uint32_t k = 0; k < count; k++) /* to the rank before: what is here and behind */
            keel_build_send(builder, keel_build_after(builder, ranks - bit),
                            k == 0 ? keel_operand_part(0, 0)
                                   : keel_operand_result(keel_build_after(builder, k)));
        for (uint32_t k = 0; k < count; k++)
            keel_build_receive(builder, keel_build_after(builder, bit),
                               keel_operand_result(keel_build_after(builder, bit + k)));
    }
    keel_build_copy(builder, keel_operand_result(builder->schedule->rank), keel_operand_part(0, 0));
}

/* value[d]: the block that came from where it has the lower bits of d behind it, and has the rest to go. */
static void bruck_all_to_all(struct keel_builder *builder)
{
    uint32_t ranks = builder->schedule->rank_count, rank = builder->schedule->rank;
    keel_build_blocks(builder, ranks, ranks, KEEL_SPACE_RESULT);
    keel_build_values(builder, ranks);
    for (uint32_t d = 1; builder->status == KEEL_OK && d < ranks; d++)
        builder->value[d] = keel_operand_part(0, keel_build_after(builder, d));
    for (uint32_t bit = 1; builder->status == KEEL_OK && bit < ranks; bit *= 2) {
        for (uint32_t d = bit; d < ranks; d++)
            if ((d & bit) != 0)
                keel_build_send(builder, keel_build_after(builder, bit), builder->value[d]);
        for (uint32_t d = bit; d < ranks; d++) {
            if ((d & bit) == 0)
                continue;
            bool there = d < 2 * bit; /* no higher bit */
            builder->value[d] = there ? keel_operand_result(keel_build_after(builder, ranks - d))
                                      : keel_build_temp(builder, 0);
            keel_build_receive(builder, keel_build_after(builder, ranks - bit), builder->value[d]);
        }
    }
    keel_build_copy(builder, keel_operand_result(rank), keel_operand_part(0, rank));
}

void keel_bruck_meet(struct keel_builder *builder, const struct keel_team *team)
{
    for (uint32_t bit = 1; builder->status == KEEL_OK && bit < team->count; bit *= 2) {
        struct keel_operand got = keel_build_temp(builder, 0);
        keel_build_send(builder, keel_team_rank(team, (team->mine + bit) % team->count), builder->value[0]);
        keel_build_receive(builder, keel_team_rank(team, (team->mine + team->count - bit) % team->count),
                           got);
        keel_build_add(builder, got, builder->value[0], got);
        builder->value[0] = got;
    }
}

static void bruck_barrier(struct keel_builder *builder)
{
    struct keel_team team = keel_build_everybody(builder);
    keel_build_blocks(builder, 1, 1, KEEL_SPACE_RESULT);
    keel_build_values(builder, 1);
    keel_bruck_meet(builder, &team);
}

/* ---- all-reduce: every rank gets every leaf ---- */

/* Leaves grouped by rank: those of rank r are leaf[first[r]] .. leaf[first[r + 1] - 1]. */
struct leaves {
    uint32_t *first, *leaf;
    struct keel_operand *place; /* by leaf: where it is here */
};

static enum keel_status group_leaves(const struct keel_builder *builder, struct leaves *out)
{
    const struct keel_tree_plan *plan = builder->plan;
    uint32_t ranks = builder->schedule->rank_count;
    KEEL_TRY(keel_alloc(ranks + 1, sizeof *out->first, (void *)&out->first));
    KEEL_TRY(keel_alloc(plan->leaf_count, sizeof *out->leaf, (void *)&out->leaf));
    KEEL_TRY(keel_alloc(plan->leaf_count, sizeof *out->place, (void *)&out->place));
    for (uint32_t rank = 0; rank < ranks; rank++)
        out->first[rank + 1] = out->first[rank] + plan->rank_leaves[rank];
    for (uint32_t leaf = 0; leaf < plan->leaf_count; leaf++) {
        out->leaf[out->first[plan->leaf_rank[leaf]] + plan->leaf_ordinal[leaf]] = leaf;
        out->place[leaf] = keel_operand_part(plan->leaf_ordinal[leaf], 0);
    }
    return KEEL_OK;
}

static void pass_leaves(struct keel_builder *builder, const struct leaves *leaves)
{
    uint32_t ranks = builder->schedule->rank_count;
    for (uint32_t bit = 1; bit < ranks; bit *= 2) {
        uint32_t count = bit < ranks - bit ? bit : ranks - bit;
        for (uint32_t k = 0; k < count; k++) {
            uint32_t owner = keel_build_after(builder, k);
            for (uint32_t i = leaves->first[owner]; i < leaves->first[owner + 1]; i++)
                keel_build_send(builder, keel_build_after(builder, ranks - bit),
                                leaves->place[leaves->leaf[i]]);
        }
        for (uint32_t k = bit; k < bit + count; k++) {
            uint32_t owner = keel_build_after(builder, k);
            for (uint32_t i = leaves->first[owner]; i < leaves->first[owner + 1]; i++) {
                leaves->place[leaves->leaf[i]] = keel_build_temp(builder, 0);
                keel_build_receive(builder, keel_build_after(builder, bit), leaves->place[leaves->leaf[i]]);
            }
        }
    }
}

static void bruck_all_reduce(struct keel_builder *builder)
{
    const struct keel_tree_plan *plan = builder->plan;
    struct leaves leaves = {0};
    keel_build_blocks(builder, 1, 1, KEEL_SPACE_RESULT);
    builder->status = group_leaves(builder, &leaves);
    if (builder->status == KEEL_OK) {
        pass_leaves(builder, &leaves);
        keel_build_combine(builder, keel_operand_result(0), leaves.place, plan->leaf_count, plan->steps,
                           plan->step_count);
    }
    keel_free(leaves.first);
    keel_free(leaves.leaf);
    keel_free(leaves.place);
}

void keel_schedule_bruck(struct keel_builder *builder)
{
    static keel_schedule_generator *const kinds[KEEL_COLLECTIVE_COUNT] = {
        [KEEL_ALL_REDUCE] = bruck_all_reduce,   [KEEL_ALL_GATHER] = bruck_all_gather,
        [KEEL_ALL_GATHER_V] = bruck_all_gather, [KEEL_ALL_TO_ALL] = bruck_all_to_all,
        [KEEL_BARRIER] = bruck_barrier,
    };
    kinds[builder->key->kind](builder);
}
