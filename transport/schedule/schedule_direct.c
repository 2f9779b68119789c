/* schedule_direct.c - one hop to the owner of each slice, one hop on: rank r owns slice r of the vector.
 *
 * Moves no more bytes than a ring, in two hops instead of 2 (n - 1), with any shard map in tree order (the
 * owner has all leaves of its slice and sums them itself, as they come, for slices are long); n - 1 peers.
 * Where the owner of a slice is the one who wants it, the second hop falls away, and that is flat. */
#include "schedule_build.h"

/* Slice r of the sum, made at rank r, wherever it then goes. */
static void sum_own_slice(struct keel_builder *builder, struct keel_operand destination)
{
    for (uint32_t i = 1; i < builder->schedule->rank_count; i++) {
        uint32_t peer = keel_build_after(builder, i);
        keel_build_send_leaves(builder, peer, peer);
    }
    keel_build_sum_pairs(builder, builder->schedule->rank, destination);
}

static void direct_all_reduce(struct keel_builder *builder)
{
    uint32_t ranks = builder->schedule->rank_count;
    struct keel_operand mine = keel_operand_result(builder->schedule->rank);
    keel_build_blocks(builder, ranks, ranks, KEEL_SPACE_RESULT);
    sum_own_slice(builder, mine);
    keel_build_gather_blocks(builder, mine);
}

static void direct_reduce(struct keel_builder *builder)
{
    uint32_t ranks = builder->schedule->rank_count, rank = builder->schedule->rank;
    uint32_t root = builder->key->root;
    keel_build_blocks(builder, ranks, ranks, KEEL_SPACE_RESULT);
    if (rank != root) {
        struct keel_operand mine = keel_build_temp(builder, rank);
        sum_own_slice(builder, mine);
        keel_build_send(builder, root, mine);
        return;
    }
    sum_own_slice(builder, keel_operand_result(root));
    for (uint32_t i = 1; i < ranks; i++) {
        uint32_t peer = keel_build_after(builder, i);
        keel_build_receive(builder, peer, keel_operand_result(peer));
    }
}

/* The root sends every rank its slice, and everybody its own slice too. */
static void direct_broadcast(struct keel_builder *builder)
{
    uint32_t ranks = builder->schedule->rank_count, rank = builder->schedule->rank;
    uint32_t root = builder->key->root;
    keel_build_blocks(builder, ranks, ranks, KEEL_SPACE_RESULT);
    for (uint32_t i = 1; rank == root && i < ranks; i++) {
        uint32_t peer = keel_build_after(builder, i);
        keel_build_send(builder, peer, keel_operand_part(0, peer));
    }
    if (rank != root)
        keel_build_receive(builder, root, keel_operand_result(rank));
    for (uint32_t i = 1; i < ranks; i++) {
        uint32_t peer = keel_build_after(builder, i);
        if (peer != root)
            keel_build_send(builder, peer,
                            rank == root ? keel_operand_part(0, rank) : keel_operand_result(rank));
    }
    for (uint32_t i = ranks; i-- > 1;) {
        uint32_t peer = keel_build_after(builder, i);
        if (rank != root)
            keel_build_receive(builder, peer, keel_operand_result(peer));
    }
    for (uint32_t block = 0; rank == root && block < ranks; block++)
        keel_build_copy(builder, keel_operand_result(block), keel_operand_part(0, block));
}

void keel_schedule_direct(struct keel_builder *builder)
{
    static keel_schedule_generator *const kinds[KEEL_COLLECTIVE_COUNT] = {
        [KEEL_ALL_REDUCE] = direct_all_reduce,
        [KEEL_REDUCE] = direct_reduce,
        [KEEL_BROADCAST] = direct_broadcast,
    };
    if (kinds[builder->key->kind] != NULL)
        kinds[builder->key->kind](builder);
    else
        keel_schedule_flat(builder);
}
