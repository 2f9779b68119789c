/* schedule_tree.c - binomial trees: log2(n) steps and peers for everything that has a root.
 *
 * Reductions go up along the tree over shards itself, whatever the map: an inner node is made by the rank
 * that has the leftmost leaf under it, which gets the right child's value from whoever made that. One shard a
 * rank, that is the binomial tree. Broadcast, gather and scatter number the members from the origin; a
 * member's parent is its number without the lowest bit. */
#include "schedule_build.h"

#include <keel/memory.h>

/* The place of this rank in the binomial tree of a team. */
struct branch {
    uint32_t number; /* members from the origin on */
    uint32_t span;   /* the members of its subtree are number .. number + span - 1, as far as there are any */
};

static struct branch branch_of(const struct keel_team *team, uint32_t origin)
{
    struct branch branch = {(team->mine + team->count - origin) % team->count, 1};
    while (branch.span < team->count && (branch.number & branch.span) == 0)
        branch.span *= 2;
    return branch;
}

static uint32_t rank_at(const struct keel_team *team, uint32_t origin, uint32_t number)
{
    KEEL_ASSERT(team->count > 0 && number < team->count);
    return keel_team_rank(team, (origin + number) % team->count);
}

static uint32_t parent_of(const struct keel_team *team, uint32_t origin, struct branch branch)
{
    return rank_at(team, origin, branch.number & (branch.number - 1));
}

void keel_tree_broadcast(struct keel_builder *builder, const struct keel_team *team, uint32_t origin,
                         uint32_t blocks)
{
    struct branch branch = branch_of(team, origin);
    for (uint32_t block = 0; builder->status == KEEL_OK && branch.number > 0 && block < blocks; block++) {
        builder->value[block] = keel_operand_result(block);
        keel_build_receive(builder, parent_of(team, origin, branch), builder->value[block]);
    }
    for (uint32_t bit = branch.span / 2; bit > 0; bit /= 2) {
        if (branch.number + bit >= team->count)
            continue;
        for (uint32_t block = 0; builder->status == KEEL_OK && block < blocks; block++)
            keel_build_send(builder, rank_at(team, origin, branch.number + bit), builder->value[block]);
    }
    for (uint32_t block = 0; block < blocks; block++)
        keel_build_settle(builder, block);
}

void keel_tree_sum_team(struct keel_builder *builder, const struct keel_team *team, uint32_t blocks)
{
    struct branch branch = branch_of(team, 0);
    for (uint32_t bit = 1; bit < branch.span && branch.number + bit < team->count; bit *= 2)
        for (uint32_t block = 0; builder->status == KEEL_OK && block < blocks; block++) {
            struct keel_operand got = keel_build_temp(builder, block);
            struct keel_operand sum = keel_build_sum_place(builder, block);
            keel_build_receive(builder, rank_at(team, 0, branch.number + bit), got);
            keel_build_add(builder, sum, builder->value[block], got);
            builder->value[block] = sum;
        }
    for (uint32_t block = 0; builder->status == KEEL_OK && branch.number > 0 && block < blocks; block++)
        keel_build_send(builder, parent_of(team, 0, branch), builder->value[block]);
}

static uint32_t member_at(const struct keel_team *team, uint32_t origin, uint32_t number)
{
    return (origin + number) % team->count;
}

static void settle_set(struct keel_builder *builder, const struct keel_sets *sets, uint32_t member)
{
    for (uint32_t k = 0; k < keel_set_count(sets, member); k++)
        keel_build_settle(builder, keel_set_block(sets, member, k));
}

void keel_tree_gather(struct keel_builder *builder, const struct keel_team *team, uint32_t origin,
                      const struct keel_sets *sets, bool last)
{
    struct branch branch = branch_of(team, origin);
    bool settled = last && branch.number == 0;
    for (uint32_t bit = 1; bit < branch.span; bit *= 2)
        for (uint32_t k = bit; k < 2 * bit && branch.number + k < team->count; k++)
            keel_build_receive_set(builder, rank_at(team, origin, branch.number + bit), sets,
                                   member_at(team, origin, branch.number + k), settled);
    if (settled)
        settle_set(builder, sets, team->mine);
    if (branch.number == 0)
        return;
    for (uint32_t k = 0; k < branch.span && branch.number + k < team->count; k++)
        keel_build_send_set(builder, parent_of(team, origin, branch), sets,
                            member_at(team, origin, branch.number + k));
}

void keel_tree_scatter(struct keel_builder *builder, const struct keel_team *team, uint32_t origin,
                       const struct keel_sets *sets, bool last)
{
    struct branch branch = branch_of(team, origin);
    if (branch.number > 0)
        for (uint32_t k = 0; k < branch.span && branch.number + k < team->count; k++)
            keel_build_receive_set(builder, parent_of(team, origin, branch), sets,
                                   member_at(team, origin, branch.number + k), last && k == 0);
    for (uint32_t bit = branch.span / 2; bit > 0; bit /= 2)
        for (uint32_t k = bit; k < 2 * bit && branch.number + k < team->count; k++)
            keel_build_send_set(builder, rank_at(team, origin, branch.number + bit), sets,
                                member_at(team, origin, branch.number + k));
    if (last)
        settle_set(builder, sets, team->mine);
}

/* ---- up along the tree over shards ---- */

/* The program of the whole sum, with the maker of each value on its stack, and the values that are here. */
struct climb {
    uint32_t makers[KEEL_TREE_DEPTH_MAX];
    struct keel_operand *values; /* [depth][block] */
    uint32_t depth, blocks;
};

static void climb_leaf(struct keel_builder *builder, struct climb *climb, uint32_t leaf)
{
    uint32_t ordinal = builder->plan->leaf_ordinal[leaf];
    KEEL_ASSERT(climb->depth < KEEL_TREE_DEPTH_MAX);
    struct keel_operand *values = climb->values + (size_t)climb->depth * climb->blocks;
    climb->makers[climb->depth++] = builder->plan->leaf_rank[leaf];
    for (uint32_t block = 0; block < climb->blocks; block++)
        values[block] = keel_operand_part(ordinal, block);
}

/* Whether the maker of the whole sum wants that block of it in its result. */
static bool wanted_here(const struct keel_builder *builder, uint32_t block)
{
    uint32_t rank = builder->schedule->rank;
    if (builder->key->kind == KEEL_REDUCE_SCATTER)
        return block == rank;
    return builder->key->kind == KEEL_ALL_REDUCE || builder->key->root == rank;
}

static void climb_node(struct keel_builder *builder, struct climb *climb, bool last)
{
    uint32_t rank = builder->schedule->rank;
    uint32_t left = climb->makers[climb->depth - 2], right = climb->makers[climb->depth - 1];
    struct keel_operand *rights = climb->values + (size_t)(climb->depth - 1) * climb->blocks;
    struct keel_operand *lefts = rights - climb->blocks;
    climb->depth--;
    for (uint32_t block = 0; block < climb->blocks; block++) {
        if (right == rank && left != rank)
            keel_build_send(builder, left, rights[block]);
        if (left != rank)
            continue;
        if (right != rank) {
            rights[block] = keel_build_temp(builder, block);
            keel_build_receive(builder, right, rights[block]);
        }
        bool placed = last && wanted_here(builder, block);
        struct keel_operand sum = placed ? keel_build_place(builder, block) : lefts[block];
        if (!placed && sum.space == KEEL_SPACE_PART && right == rank)
            sum = rights[block];
        if (sum.space == KEEL_SPACE_PART)
            sum = keel_build_temp(builder, block);
        keel_build_add(builder, sum, lefts[block], rights[block]);
        lefts[block] = sum;
    }
}

/* The maker of the root of the tree, where the values are the sums then. */
static uint32_t climb_tree(struct keel_builder *builder, uint32_t blocks)
{
    const struct keel_tree_plan *plan = builder->plan;
    struct climb climb = {.blocks = blocks};
    if (builder->status == KEEL_OK)
        builder->status =
            keel_alloc((size_t)KEEL_TREE_DEPTH_MAX * blocks, sizeof *climb.values, (void *)&climb.values);
    if (builder->status == KEEL_OK)
        builder->status = keel_alloc(blocks, sizeof *builder->value, (void *)&builder->value);
    for (uint32_t k = 0; builder->status == KEEL_OK && k < plan->step_count; k++) {
        if (plan->steps[k] == KEEL_TREE_ADD)
            climb_node(builder, &climb, k + 1 == plan->step_count);
        else
            climb_leaf(builder, &climb, plan->steps[k]);
    }
    for (uint32_t block = 0; builder->status == KEEL_OK && block < blocks; block++)
        builder->value[block] = climb.values[block];
    keel_free(climb.values);
    return plan->leaf_rank[0];
}

static void tree_all_reduce(struct keel_builder *builder)
{
    struct keel_team team = keel_build_everybody(builder);
    keel_build_blocks(builder, 1, 1, KEEL_SPACE_RESULT);
    uint32_t maker = climb_tree(builder, 1);
    keel_tree_broadcast(builder, &team, maker, 1);
}

static void tree_reduce(struct keel_builder *builder)
{
    uint32_t rank = builder->schedule->rank, root = builder->key->root;
    keel_build_blocks(builder, 1, 1, KEEL_SPACE_RESULT);
    uint32_t maker = climb_tree(builder, 1);
    if (builder->status != KEEL_OK)
        return;
    if (rank == maker && rank != root)
        keel_build_send(builder, root, builder->value[0]);
    if (rank != maker && rank == root)
        keel_build_receive(builder, maker, keel_operand_result(0));
    if (rank == maker && rank == root)
        keel_build_settle(builder, 0);
}

static void tree_reduce_scatter(struct keel_builder *builder)
{
    const struct keel_sets own = {0};
    struct keel_team team = keel_build_everybody(builder);
    keel_build_blocks(builder, team.count, 1, KEEL_SPACE_PART);
    uint32_t maker = climb_tree(builder, team.count);
    keel_tree_scatter(builder, &team, maker, &own, true);
}

/* ---- the other kinds ---- */

static void tree_broadcast(struct keel_builder *builder)
{
    struct keel_team team = keel_build_everybody(builder);
    keel_build_blocks(builder, 1, 1, KEEL_SPACE_RESULT);
    keel_build_values(builder, 1);
    keel_tree_broadcast(builder, &team, builder->key->root, 1);
}

static void tree_gather(struct keel_builder *builder)
{
    const struct keel_sets own = {0};
    struct keel_team team = keel_build_everybody(builder);
    keel_build_blocks(builder, 1, team.count, KEEL_SPACE_RESULT);
    keel_build_values(builder, team.count);
    if (builder->status != KEEL_OK)
        return;
    builder->value[team.mine] = keel_operand_part(0, 0);
    keel_tree_gather(builder, &team, builder->key->root, &own, true);
}

static void tree_scatter(struct keel_builder *builder)
{
    const struct keel_sets own = {0};
    struct keel_team team = keel_build_everybody(builder);
    keel_build_blocks(builder, team.count, 1, KEEL_SPACE_PART);
    keel_build_values(builder, team.count);
    keel_tree_scatter(builder, &team, builder->key->root, &own, true);
}

static void tree_barrier(struct keel_builder *builder)
{
    struct keel_team team = keel_build_everybody(builder);
    keel_build_blocks(builder, 1, 1, KEEL_SPACE_RESULT);
    keel_build_values(builder, 1);
    keel_tree_sum_team(builder, &team, 1);
    keel_tree_broadcast(builder, &team, 0, 1);
}

void keel_schedule_tree(struct keel_builder *builder)
{
    static keel_schedule_generator *const kinds[KEEL_COLLECTIVE_COUNT] = {
        [KEEL_ALL_REDUCE] = tree_all_reduce, [KEEL_REDUCE_SCATTER] = tree_reduce_scatter,
        [KEEL_REDUCE] = tree_reduce,         [KEEL_BROADCAST] = tree_broadcast,
        [KEEL_GATHER] = tree_gather,         [KEEL_SCATTER] = tree_scatter,
        [KEEL_BARRIER] = tree_barrier,
    };
    kinds[builder->key->kind](builder);
}
