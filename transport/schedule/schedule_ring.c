/* schedule_ring.c - everybody talks to two neighbours only: the fewest peers, the most steps.
 *
 * Sums travel round the circle and grow, results follow (Patarasuk and Yuan 2009); a vector from or to a root
 * goes along a chain, segment behind segment. Sums are in the order of the circle, so never exact. */
#include "schedule_build.h"

/* Where the sum of turn `turn` goes: where the one lies that was sent on two turns ago. */
static struct keel_operand sum_place(struct keel_builder *builder, const struct keel_team *team,
                                     const struct keel_sets *sets, uint32_t turn, uint32_t block, uint32_t k)
{
    uint32_t gone = (team->mine + team->count - turn + 3) % team->count;
    if (builder->value[block].space == KEEL_SPACE_TEMP || turn < 5 || k >= keel_set_count(sets, gone))
        return keel_build_sum_place(builder, block);
    struct keel_operand place = builder->value[keel_set_block(sets, gone, k)];
    place.block = block;
    return place;
}

void keel_ring_scatter_sums(struct keel_builder *builder, const struct keel_team *team,
                            const struct keel_sets *sets, bool last)
{
    uint32_t members = team->count, next = keel_team_rank(team, (team->mine + 1) % members);
    uint32_t previous = keel_team_rank(team, (team->mine + members - 1) % members);
    for (uint32_t turn = 2; turn <= members; turn++) {
        uint32_t out = (team->mine + members - turn + 1) % members;
        uint32_t in = (team->mine + members - turn) % members;
        keel_build_send_set(builder, next, sets, out);
        for (uint32_t k = 0; builder->status == KEEL_OK && k < keel_set_count(sets, in); k++) {
            uint32_t block = keel_set_block(sets, in, k);
            struct keel_operand got = keel_build_temp(builder, block);
            struct keel_operand sum = last && turn == members
                                          ? keel_build_place(builder, block)
                                          : sum_place(builder, team, sets, turn, block, k);
            keel_build_receive(builder, previous, got);
            keel_build_add(builder, sum, got, builder->value[block]);
            builder->value[block] = sum;
        }
    }
}

void keel_ring_gather_all(struct keel_builder *builder, const struct keel_team *team,
                          const struct keel_sets *sets)
{
    uint32_t members = team->count, next = keel_team_rank(team, (team->mine + 1) % members);
    uint32_t previous = keel_team_rank(team, (team->mine + members - 1) % members);
    for (uint32_t turn = 1; turn < members; turn++) {
        keel_build_send_set(builder, next, sets, (team->mine + members - turn + 1) % members);
        keel_build_receive_set(builder, previous, sets, (team->mine + members - turn) % members, true);
    }
    for (uint32_t k = 0; k < keel_set_count(sets, team->mine); k++)
        keel_build_settle(builder, keel_set_block(sets, team->mine, k));
}

/* From the rank behind the root round to the root, which has the whole sum. */
static void ring_reduce(struct keel_builder *builder)
{
    uint32_t ranks = builder->schedule->rank_count, rank = builder->schedule->rank;
    bool first = rank == (builder->key->root + 1) % ranks, last = rank == builder->key->root;
    keel_build_blocks(builder, 1, 1, KEEL_SPACE_RESULT);
    keel_build_values(builder, 1);
    if (builder->status != KEEL_OK)
        return;
    if (!first) {
        struct keel_operand got = keel_build_temp(builder, 0);
        struct keel_operand sum = last ? keel_operand_result(0) : keel_build_sum_place(builder, 0);
        keel_build_receive(builder, keel_build_after(builder, ranks - 1), got);
        keel_build_add(builder, sum, got, builder->value[0]);
        builder->value[0] = sum;
    }
    if (last)
        keel_build_settle(builder, 0);
    else
        keel_build_send(builder, keel_build_after(builder, 1), builder->value[0]);
}

static void ring_broadcast(struct keel_builder *builder)
{
    uint32_t ranks = builder->schedule->rank_count, rank = builder->schedule->rank;
    bool first = rank == builder->key->root, last = (rank + 1) % ranks == builder->key->root;
    struct keel_operand value = first ? keel_operand_part(0, 0) : keel_operand_result(0);
    keel_build_blocks(builder, 1, 1, KEEL_SPACE_RESULT);
    if (!first)
        keel_build_receive(builder, keel_build_after(builder, ranks - 1), value);
    if (!last)
        keel_build_send(builder, keel_build_after(builder, 1), value);
    if (first)
        keel_build_copy(builder, keel_operand_result(0), value);
}

static void ring_reduce_scatter(struct keel_builder *builder)
{
    const struct keel_sets own = {0};
    struct keel_team team = keel_build_everybody(builder);
    keel_build_blocks(builder, team.count, 1, KEEL_SPACE_PART);
    keel_build_values(builder, team.count);
    keel_ring_scatter_sums(builder, &team, &own, true);
    keel_build_settle(builder, team.mine);
}

static void ring_all_reduce(struct keel_builder *builder)
{
    const struct keel_sets own = {0};
    struct keel_team team = keel_build_everybody(builder);
    keel_build_blocks(builder, team.count, team.count, KEEL_SPACE_RESULT);
    keel_build_values(builder, team.count);
    keel_ring_scatter_sums(builder, &team, &own, true);
    keel_ring_gather_all(builder, &team, &own);
}

static void ring_all_gather(struct keel_builder *builder)
{
    const struct keel_sets own = {0};
    struct keel_team team = keel_build_everybody(builder);
    keel_build_blocks(builder, 1, team.count, KEEL_SPACE_RESULT);
    keel_build_values(builder, team.count);
    if (builder->status != KEEL_OK)
        return;
    builder->value[team.mine] = keel_operand_part(0, 0);
    keel_ring_gather_all(builder, &team, &own);
}

void keel_schedule_ring(struct keel_builder *builder)
{
    static keel_schedule_generator *const kinds[KEEL_COLLECTIVE_COUNT] = {
        [KEEL_ALL_REDUCE] = ring_all_reduce,   [KEEL_REDUCE_SCATTER] = ring_reduce_scatter,
        [KEEL_REDUCE] = ring_reduce,           [KEEL_ALL_GATHER] = ring_all_gather,
        [KEEL_ALL_GATHER_V] = ring_all_gather, [KEEL_BROADCAST] = ring_broadcast,
    };
    kinds[builder->key->kind](builder);
}
