/* schedule_flat.c - one hop: everybody who wants something gets it straight from everybody who has it.
 *
 * The smallest latency of few ranks, any shard map in tree order; n - 1 peers, and for an all-reduce n times
 * the bytes. Blocks are whole: an all-reduce, a reduce and a broadcast have one. */
#include "schedule_build.h"

static void flat_all_reduce(struct keel_builder *builder)
{
    keel_build_blocks(builder, 1, 1, KEEL_SPACE_RESULT);
    for (uint32_t i = 1; i < builder->schedule->rank_count; i++)
        keel_build_send_leaves(builder, keel_build_after(builder, i), 0);
    keel_build_sum_leaves(builder, 0, keel_operand_result(0));
}

static void flat_reduce(struct keel_builder *builder)
{
    keel_build_blocks(builder, 1, 1, KEEL_SPACE_RESULT);
    if (builder->schedule->rank != builder->key->root)
        keel_build_send_leaves(builder, builder->key->root, 0);
    else
        keel_build_sum_leaves(builder, 0, keel_operand_result(0));
}

static void flat_reduce_scatter(struct keel_builder *builder)
{
    uint32_t ranks = builder->schedule->rank_count;
    keel_build_blocks(builder, ranks, 1, KEEL_SPACE_PART);
    for (uint32_t i = 1; i < ranks; i++) {
        uint32_t peer = keel_build_after(builder, i);
        keel_build_send_leaves(builder, peer, peer);
    }
    keel_build_sum_leaves(builder, builder->schedule->rank, keel_operand_result(0));
}

static void flat_all_gather(struct keel_builder *builder)
{
    keel_build_blocks(builder, 1, builder->schedule->rank_count, KEEL_SPACE_RESULT);
    keel_build_gather_blocks(builder, keel_operand_part(0, 0));
}

static void flat_all_to_all(struct keel_builder *builder)
{
    uint32_t ranks = builder->schedule->rank_count, rank = builder->schedule->rank;
    keel_build_blocks(builder, ranks, ranks, KEEL_SPACE_RESULT);
    for (uint32_t i = 1; i < ranks; i++) {
        uint32_t peer = keel_build_after(builder, i);
        keel_build_send(builder, peer, keel_operand_part(0, peer));
    }
    for (uint32_t i = ranks; i-- > 1;) {
        uint32_t peer = keel_build_after(builder, i);
        keel_build_receive(builder, peer, keel_operand_result(peer));
    }
    keel_build_copy(builder, keel_operand_result(rank), keel_operand_part(0, rank));
}

static void flat_broadcast(struct keel_builder *builder)
{
    keel_build_blocks(builder, 1, 1, KEEL_SPACE_RESULT);
    if (builder->schedule->rank != builder->key->root) {
        keel_build_receive(builder, builder->key->root, keel_operand_result(0));
        return;
    }
    for (uint32_t i = 1; i < builder->schedule->rank_count; i++)
        keel_build_send(builder, keel_build_after(builder, i), keel_operand_part(0, 0));
    keel_build_copy(builder, keel_operand_result(0), keel_operand_part(0, 0));
}

static void flat_gather(struct keel_builder *builder)
{
    uint32_t ranks = builder->schedule->rank_count, root = builder->key->root;
    keel_build_blocks(builder, 1, ranks, KEEL_SPACE_RESULT);
    if (builder->schedule->rank != root) {
        keel_build_send(builder, root, keel_operand_part(0, 0));
        return;
    }
    for (uint32_t i = 1; i < ranks; i++) {
        uint32_t peer = keel_build_after(builder, i);
        keel_build_receive(builder, peer, keel_operand_result(peer));
    }
    keel_build_copy(builder, keel_operand_result(root), keel_operand_part(0, 0));
}

static void flat_scatter(struct keel_builder *builder)
{
    uint32_t ranks = builder->schedule->rank_count, root = builder->key->root;
    keel_build_blocks(builder, ranks, 1, KEEL_SPACE_PART);
    if (builder->schedule->rank != root) {
        keel_build_receive(builder, root, keel_operand_result(0));
        return;
    }
    for (uint32_t i = 1; i < ranks; i++) {
        uint32_t peer = keel_build_after(builder, i);
        keel_build_send(builder, peer, keel_operand_part(0, peer));
    }
    keel_build_copy(builder, keel_operand_result(0), keel_operand_part(0, root));
}

static void flat_barrier(struct keel_builder *builder)
{
    keel_build_blocks(builder, 1, 1, KEEL_SPACE_PART);
    for (uint32_t i = 1; i < builder->schedule->rank_count; i++)
        keel_build_send(builder, keel_build_after(builder, i), keel_operand_part(0, 0));
    for (uint32_t i = builder->schedule->rank_count; i-- > 1;)
        keel_build_receive(builder, keel_build_after(builder, i), keel_build_temp(builder, 0));
}

static void flat_send(struct keel_builder *builder)
{
    keel_build_blocks(builder, 1, 0, KEEL_SPACE_PART);
    keel_build_send(builder, builder->key->root, keel_operand_part(0, 0));
}

static void flat_receive(struct keel_builder *builder)
{
    keel_build_blocks(builder, 0, 1, KEEL_SPACE_RESULT);
    keel_build_receive(builder, builder->key->root, keel_operand_result(0));
}

void keel_schedule_flat(struct keel_builder *builder)
{
    static keel_schedule_generator *const kinds[KEEL_COLLECTIVE_COUNT] = {
        [KEEL_ALL_REDUCE] = flat_all_reduce,   [KEEL_REDUCE_SCATTER] = flat_reduce_scatter,
        [KEEL_REDUCE] = flat_reduce,           [KEEL_ALL_GATHER] = flat_all_gather,
        [KEEL_ALL_GATHER_V] = flat_all_gather, [KEEL_ALL_TO_ALL] = flat_all_to_all,
        [KEEL_ALL_TO_ALL_V] = flat_all_to_all, [KEEL_BROADCAST] = flat_broadcast,
        [KEEL_GATHER] = flat_gather,           [KEEL_SCATTER] = flat_scatter,
        [KEEL_BARRIER] = flat_barrier,         [KEEL_SEND] = flat_send,
        [KEEL_RECEIVE] = flat_receive,
    };
    kinds[builder->key->kind](builder);
}
