/* schedule_team.c - what the phases over teams share: members, sets of blocks, where a value is. */
#include "schedule_build.h"

#include <keel/memory.h>

uint32_t keel_team_rank(const struct keel_team *team, uint32_t member)
{
    return team->ranks != NULL ? team->ranks[member] : member;
}

uint32_t keel_set_count(const struct keel_sets *sets, uint32_t member)
{
    return sets->first != NULL ? sets->first[member + 1] - sets->first[member] : 1;
}

uint32_t keel_set_block(const struct keel_sets *sets, uint32_t member, uint32_t k)
{
    return sets->first != NULL ? sets->blocks[sets->first[member] + k] : member;
}

struct keel_team keel_build_everybody(const struct keel_builder *builder)
{
    return (struct keel_team){.count = builder->schedule->rank_count, .mine = builder->schedule->rank};
}

/* The sum of this rank's leaves, left to right: one where the order of the tree is asked for. */
static struct keel_operand own_sum(struct keel_builder *builder, uint32_t block)
{
    uint32_t leaves = keel_build_leaves(builder, builder->schedule->rank);
    struct keel_operand sum = keel_operand_part(0, block);
    KEEL_ASSERT(leaves > 0);
    if (leaves == 1)
        return sum;
    struct keel_operand place = keel_build_temp(builder, block);
    for (uint32_t k = 1; k < leaves; k++) {
        keel_build_add(builder, place, sum, keel_operand_part(k, block));
        sum = place;
    }
    return sum;
}

void keel_build_values(struct keel_builder *builder, uint32_t blocks)
{
    if (builder->status != KEEL_OK)
        return;
    builder->status = keel_alloc(blocks, sizeof *builder->value, (void *)&builder->value);
    for (uint32_t block = 0; builder->status == KEEL_OK && block < blocks; block++)
        builder->value[block] = builder->plan != NULL ? own_sum(builder, block) : keel_operand_part(0, block);
}

struct keel_operand keel_build_place(const struct keel_builder *builder, uint32_t block)
{
    enum keel_collective_kind kind = builder->key->kind;
    return keel_operand_result(kind == KEEL_REDUCE_SCATTER || kind == KEEL_SCATTER ? 0 : block);
}

void keel_build_settle(struct keel_builder *builder, uint32_t block)
{
    if (builder->status != KEEL_OK || builder->value[block].space == KEEL_SPACE_RESULT)
        return;
    struct keel_operand place = keel_build_place(builder, block);
    keel_build_copy(builder, place, builder->value[block]);
    builder->value[block] = place;
}

struct keel_operand keel_build_sum_place(struct keel_builder *builder, uint32_t block)
{
    bool own = builder->value[block].space == KEEL_SPACE_TEMP;
    return own ? builder->value[block] : keel_build_temp(builder, block);
}

void keel_build_send_set(struct keel_builder *builder, uint32_t peer, const struct keel_sets *sets,
                         uint32_t member)
{
    for (uint32_t k = 0; builder->status == KEEL_OK && k < keel_set_count(sets, member); k++)
        keel_build_send(builder, peer, builder->value[keel_set_block(sets, member, k)]);
}

void keel_build_receive_set(struct keel_builder *builder, uint32_t peer, const struct keel_sets *sets,
                            uint32_t member, bool settled)
{
    for (uint32_t k = 0; builder->status == KEEL_OK && k < keel_set_count(sets, member); k++) {
        uint32_t block = keel_set_block(sets, member, k);
        builder->value[block] = settled ? keel_build_place(builder, block) : keel_build_temp(builder, block);
        keel_build_receive(builder, peer, builder->value[block]);
    }
}
