/* schedule_halving.c - recursive halving and doubling: partners at distance 1, 2, 4, ... exchange halves.
 *
 * 2 log2(n) steps with the bytes of a ring (Rabenseifner 2004; Thakur, Rabenseifner, Gropp 2005). Halving
 * begins with the nearest partner and puts the lower one on the left: on ranks that hold aligned subtrees the
 * sum of a step is a node of the tree over shards, so the order is exact. Where the ranks are no power of two
 * an all-reduce folds the ranks behind the last power onto the first ones, which is another order.
 * Doubling alone: partners exchange all they have summed so far. Half the steps, log2(n) times the bytes: the
 * shortest sum of few bytes on many ranks, in the same order. */
#include "schedule_build.h"

void keel_halving_scatter_sums(struct keel_builder *builder, const struct keel_team *team,
                               const struct keel_sets *sets, bool last)
{
    for (uint32_t bit = 1; bit < team->count; bit *= 2) {
        uint32_t partner = keel_team_rank(team, team->mine ^ bit);
        uint32_t kept = team->mine % (2 * bit), given = kept ^ bit;
        for (uint32_t member = given; member < team->count; member += 2 * bit)
            keel_build_send_set(builder, partner, sets, member);
        for (uint32_t member = kept; member < team->count; member += 2 * bit)
            for (uint32_t k = 0; builder->status == KEEL_OK && k < keel_set_count(sets, member); k++) {
                uint32_t block = keel_set_block(sets, member, k);
                struct keel_operand mine = builder->value[block], got = keel_build_temp(builder, block);
                struct keel_operand sum = last && 2 * bit == team->count
                                              ? keel_build_place(builder, block)
                                              : keel_build_sum_place(builder, block);
                bool upper = (team->mine & bit) != 0;
                keel_build_receive(builder, partner, got);
                keel_build_add(builder, sum, upper ? got : mine, upper ? mine : got);
                builder->value[block] = sum;
            }
    }
}

void keel_doubling_gather_all(struct keel_builder *builder, const struct keel_team *team,
                              const struct keel_sets *sets)
{
    for (uint32_t bit = team->count / 2; bit > 0; bit /= 2) {
        uint32_t partner = keel_team_rank(team, team->mine ^ bit);
        uint32_t mine = team->mine % (2 * bit), theirs = mine ^ bit;
        for (uint32_t member = mine; member < team->count; member += 2 * bit)
            keel_build_send_set(builder, partner, sets, member);
        for (uint32_t member = theirs; member < team->count; member += 2 * bit)
            keel_build_receive_set(builder, partner, sets, member, true);
    }
    for (uint32_t k = 0; k < keel_set_count(sets, team->mine); k++)
        keel_build_settle(builder, keel_set_block(sets, team->mine, k));
}

/* A rank behind the core gives all it has to its partner in the core, and gets back the result. */
static void fold_out(struct keel_builder *builder, uint32_t partner, uint32_t blocks)
{
    for (uint32_t block = 0; builder->status == KEEL_OK && block < blocks; block++)
        keel_build_send(builder, partner, builder->value[block]);
    for (uint32_t block = 0; block < blocks; block++)
        keel_build_receive(builder, partner, keel_operand_result(block));
}

static void fold_in(struct keel_builder *builder, uint32_t partner, uint32_t blocks)
{
    for (uint32_t block = 0; builder->status == KEEL_OK && block < blocks; block++) {
        struct keel_operand got = keel_build_temp(builder, block);
        struct keel_operand sum = keel_build_sum_place(builder, block);
        keel_build_receive(builder, partner, got);
        keel_build_add(builder, sum, builder->value[block], got);
        builder->value[block] = sum;
    }
}

/* The greatest power of two that is not above the number of ranks. */
static uint32_t core_of(const struct keel_builder *builder)
{
    uint32_t core = 1;
    while (2 * core <= builder->schedule->rank_count)
        core *= 2;
    return core;
}

static void halving_all_reduce(struct keel_builder *builder)
{
    const struct keel_sets own = {0};
    uint32_t ranks = builder->schedule->rank_count, rank = builder->schedule->rank;
    uint32_t core = core_of(builder);
    struct keel_team team = {.count = core, .mine = rank};
    keel_build_blocks(builder, core, core, KEEL_SPACE_RESULT);
    keel_build_values(builder, core);
    if (rank >= core) {
        fold_out(builder, rank - core, core);
        return;
    }
    bool folded = rank + core < ranks;
    if (folded)
        fold_in(builder, rank + core, core);
    keel_halving_scatter_sums(builder, &team, &own, true);
    keel_doubling_gather_all(builder, &team, &own);
    for (uint32_t block = 0; folded && block < core; block++)
        keel_build_send(builder, rank + core, keel_operand_result(block));
}

static void halving_reduce(struct keel_builder *builder)
{
    const struct keel_sets own = {0};
    struct keel_team team = keel_build_everybody(builder);
    keel_build_blocks(builder, team.count, team.count, KEEL_SPACE_RESULT);
    keel_build_values(builder, team.count);
    keel_halving_scatter_sums(builder, &team, &own, team.mine == builder->key->root);
    keel_tree_gather(builder, &team, builder->key->root, &own, true);
}

static void halving_reduce_scatter(struct keel_builder *builder)
{
    const struct keel_sets own = {0};
    struct keel_team team = keel_build_everybody(builder);
    keel_build_blocks(builder, team.count, 1, KEEL_SPACE_PART);
    keel_build_values(builder, team.count);
    keel_halving_scatter_sums(builder, &team, &own, true);
    keel_build_settle(builder, team.mine);
}

static void halving_all_gather(struct keel_builder *builder)
{
    const struct keel_sets own = {0};
    struct keel_team team = keel_build_everybody(builder);
    keel_build_blocks(builder, 1, team.count, KEEL_SPACE_RESULT);
    keel_build_values(builder, team.count);
    if (builder->status != KEEL_OK)
        return;
    builder->value[team.mine] = keel_operand_part(0, 0);
    keel_doubling_gather_all(builder, &team, &own);
}

/* Slices down a tree, then doubled: the root too gets back what it gave. */
static void halving_broadcast(struct keel_builder *builder)
{
    const struct keel_sets own = {0};
    struct keel_team team = keel_build_everybody(builder);
    keel_build_blocks(builder, team.count, team.count, KEEL_SPACE_RESULT);
    keel_build_values(builder, team.count);
    keel_tree_scatter(builder, &team, builder->key->root, &own, true);
    keel_doubling_gather_all(builder, &team, &own);
}

void keel_schedule_halving(struct keel_builder *builder)
{
    static keel_schedule_generator *const kinds[KEEL_COLLECTIVE_COUNT] = {
        [KEEL_ALL_REDUCE] = halving_all_reduce,   [KEEL_REDUCE_SCATTER] = halving_reduce_scatter,
        [KEEL_REDUCE] = halving_reduce,           [KEEL_ALL_GATHER] = halving_all_gather,
        [KEEL_ALL_GATHER_V] = halving_all_gather, [KEEL_BROADCAST] = halving_broadcast,
    };
    kinds[builder->key->kind](builder);
}

/* Every sum has a place of its own: that of the step before is still being sent. */
void keel_schedule_doubling(struct keel_builder *builder)
{
    uint32_t ranks = builder->schedule->rank_count, rank = builder->schedule->rank;
    uint32_t core = core_of(builder);
    keel_build_blocks(builder, 1, 1, KEEL_SPACE_RESULT);
    keel_build_values(builder, 1);
    if (rank >= core) {
        fold_out(builder, rank - core, 1);
        return;
    }
    if (rank + core < ranks)
        fold_in(builder, rank + core, 1);
    for (uint32_t bit = 1; builder->status == KEEL_OK && bit < core; bit *= 2) {
        struct keel_operand mine = builder->value[0], got = keel_build_temp(builder, 0);
        struct keel_operand sum = 2 * bit == core ? keel_operand_result(0) : keel_build_temp(builder, 0);
        bool upper = (rank & bit) != 0;
        keel_build_send(builder, rank ^ bit, mine);
        keel_build_receive(builder, rank ^ bit, got);
        keel_build_add(builder, sum, upper ? got : mine, upper ? mine : got);
        builder->value[0] = sum;
    }
    keel_build_settle(builder, 0);
    if (rank + core < ranks)
        keel_build_send(builder, rank + core, keel_operand_result(0));
}
