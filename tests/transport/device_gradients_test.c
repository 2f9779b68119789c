/* device_gradients_test.c - gradients in device memory, summed bucket by bucket: the bits of the tree, and
 * what is copied on the way, with ranks on one host and over TCP, in place and staged. */
#include "device_board.h"
#include "sums.h"

enum { BUCKETS = 4, BUCKET_FLOATS = 512 * 1024 };
static bool over_fabric;

static void settle(uint32_t rank, struct keel_endpoint_config *config)
{
    (void)rank;
    config->fabric_only = over_fabric;
}

/* Scattered: two nodes each of ranks 0 and 1, none of others. Spread: equal runs. By ranks: 2, 3, 4. */
static const uint16_t scattered_map[] = {0, 1, 0, 1};
static const uint16_t spread_maps[3][4] = {{0, 0, 1, 1}, {0, 1, 1, 2}, {0, 1, 2, 3}};

/* The data of the tree node, over all buckets. */
static void make_node(struct rank *me, struct board *board, const struct keel_tree_node *node,
                      struct keel_buffer *buffer)
{
    float *values = malloc(BUCKETS * BUCKET_FLOATS * sizeof *values);
    for (uint64_t k = 0; k < BUCKETS * BUCKET_FLOATS; k++)
        values[k] = node_value(node->level, node->index, 4, k % 4099);
    board_write(me, board, buffer, 0, values, BUCKETS * BUCKET_FLOATS * sizeof *values);
    free(values);
}

static void check_sums(struct rank *me, struct board *board, struct keel_buffer *buffer)
{
    const uint64_t bytes = BUCKETS * BUCKET_FLOATS * sizeof(float);
    float *values = malloc(bytes), wanted[4099];
    rank_ok(me, keel_queue_read(board->queue, buffer, 0, values, bytes, NULL, NULL));
    rank_ok(me, keel_queue_finish(board->queue, in_seconds(20)));
    for (uint64_t k = 0; k < 4099; k++)
        wanted[k] = node_value(2, 0, 4, k);
    for (uint64_t k = 0; k < BUCKETS * BUCKET_FLOATS; k++)
        rank_check(me, memcmp(&values[k], &wanted[k % 4099], sizeof(float)) == 0);
    free(values);
}

/* Of the slice that this rank adds up, into scratch: over TCP the first of two parts of others that are added
 * to each other (two shards of one rank are one part); on one host, by any algorithm, all parts of others but
 * the last. Of the result: the others' slices. Parts are sent from where they lie, so nothing else; 1% for
 * first messages. */
static uint64_t copied_at_most(const struct rank *me, const uint16_t *map, uint32_t others_parts,
                               uint64_t bytes)
{
    uint32_t waiting = over_fabric ? 0 : others_parts - 1;
    for (uint32_t k = 0; over_fabric && k < 4; k += 2)
        waiting += map[k] != map[k + 1] && map[k] != me->rank && map[k + 1] != me->rank;
    return (waiting + me->rank_count - 1) * bytes / me->rank_count + bytes / 100;
}

/* All at once, as a backward pass would begin them one by one. */
static void sum_buckets(struct rank *me, struct board *board, struct keel_group *group,
                        struct keel_shared_buffer *nodes, uint32_t count, struct keel_shared_buffer *sum)
{
    struct keel_device_operation *operations[BUCKETS];
    for (uint32_t b = 0; b < BUCKETS; b++) {
        uint64_t at = b * BUCKET_FLOATS * sizeof(float);
        struct keel_device_place places[PARTS_MAX];
        for (uint32_t k = 0; k < count; k++)
            places[k] = (struct keel_device_place){nodes[k].buffer, at};
        struct keel_device_collective call = {.what = {.kind = KEEL_ALL_REDUCE,
                                                       .sequence = 10 + b,
                                                       .element = KEEL_ELEMENT_F32,
                                                       .count = BUCKET_FLOATS,
                                                       .part_count = count},
                                              .parts = places,
                                              .result = {sum->buffer, at}};
        rank_ok(me, keel_device_collective_begin(board->collectives, group, &call, &operations[b]));
    }
    for (uint32_t b = 0; b < BUCKETS; b++)
        rank_ok(me, keel_device_operation_wait(operations[b], in_seconds(30)));
}

static int gradients_body(struct rank *me)
{
    const uint64_t bytes = BUCKETS * BUCKET_FLOATS * sizeof(float);
    struct board board;
    struct keel_tree_node held[PARTS_MAX];
    struct keel_shared_buffer nodes[PARTS_MAX], sum;
    struct keel_transport_stats stats;
    struct keel_device_collectives_facts facts;
    uint32_t count = 0;
    const uint16_t *gradient_map = me->seed != 0 ? spread_maps[me->rank_count - 2] : scattered_map;
    staging_bytes = 2 * 3 * BUCKET_FLOATS * sizeof(float);
    board_open(me, &board);
    struct keel_group *group = rank_group(me, 1, 4, gradient_map);
    rank_ok(me, keel_tree_nodes(4, gradient_map, me->rank, held, PARTS_MAX, &count));
    rank_ok(me, keel_shared_buffer_create(board.device, bytes, &sum));
    for (uint32_t k = 0; k < count; k++) {
        rank_ok(me, keel_shared_buffer_create(board.device, bytes, &nodes[k]));
        make_node(me, &board, &held[k], nodes[k].buffer);
    }
    sum_buckets(me, &board, group, nodes, count, &sum);
    check_sums(me, &board, sum.buffer);
    keel_endpoint_stats(me->endpoint, &stats);
    keel_device_collectives_facts(board.collectives, &facts);
    rank_check(me, facts.device_to_host_bytes == (staged ? count * bytes : 0));
    rank_check(me, facts.host_to_device_bytes == (staged ? bytes : 0));
    rank_check(me, stats.data_copied <= copied_at_most(me, gradient_map, 4 - count, bytes));
    rank_check(me, !over_fabric || stats.data_copied > 0);
    keel_group_close(group);
    for (uint32_t k = 0; k < count; k++)
        keel_shared_buffer_destroy(&nodes[k]);
    keel_shared_buffer_destroy(&sum);
    board_close(me, &board);
    return 0;
}

START_TEST(buckets_are_summed_without_copies_of_parts)
{
    struct ranks ranks;
    ranks_settle = settle;
    selector = "host";
    over_fabric = _i % 2 == 1;
    staged = _i >= 12;
    ranks_start(&ranks, 2 + (uint32_t)_i / 2 % 3, (uint64_t)_i / 6 % 2, NULL, gradients_body);
    ranks_end(&ranks, -1);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, buckets_are_summed_without_copies_of_parts, 0, 24);
}
KEEL_TEST_MAIN("gradients in device memory", cases, 120)
