/* schedule_pairwise.c - all-to-all with one partner a step, so that nobody is sent to by two at a time.
 *
 * Where the ranks are a power of two, partners exchange (rank ^ step); else step i goes i ranks on and comes
 * from i ranks back. The same messages as flat, listed so that a runner which keeps the order of the listing
 * loads every link once a step. */
#include "schedule_build.h"

void keel_schedule_pairwise(struct keel_builder *builder)
{
    uint32_t ranks = builder->schedule->rank_count, rank = builder->schedule->rank;
    keel_build_blocks(builder, ranks, ranks, KEEL_SPACE_RESULT);
    for (uint32_t i = 1; i < ranks; i++) {
        bool exchange = keel_is_power_of_two(ranks);
        uint32_t to = exchange ? rank ^ i : keel_build_after(builder, i);
        uint32_t from = exchange ? to : keel_build_after(builder, ranks - i);
        keel_build_send(builder, to, keel_operand_part(0, to));
        keel_build_receive(builder, from, keel_operand_result(from));
    }
    keel_build_copy(builder, keel_operand_result(rank), keel_operand_part(0, rank));
}
