/* sums.h - inputs of exact sums that every process can make for itself, and the simplest possible oracle. */
#ifndef KEEL_TESTS_SUMS_H
#define KEEL_TESTS_SUMS_H

#include <keel/transport.h>
#include <stdlib.h>
#include <string.h>

/* Element i of shard s: any finite float of moderate size, so that additions round. */
static inline float shard_value(uint32_t shard, uint64_t element)
{
    uint64_t z = (uint64_t)shard * UINT64_C(0x9e3779b97f4a7c15) + element * UINT64_C(0xbf58476d1ce4e5b9) + 1;
    z = (z ^ (z >> 29)) * UINT64_C(0x94d049bb133111eb);
    z ^= z >> 32;
    uint32_t bits = ((uint32_t)z & UINT32_C(0x807fffff)) | ((uint32_t)(120 + (z >> 40) % 16) << 23);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The value of a node, by the words of transport.h. */
static inline float node_value(uint32_t level, uint32_t index, uint32_t shard_count, uint64_t element)
{
    if (level == 0)
        return shard_value(index, element);
    float left = node_value(level - 1, 2 * index, shard_count, element);
    if (((2 * index + 1) << (level - 1)) >= shard_count)
        return left;
    return left + node_value(level - 1, 2 * index + 1, shard_count, element);
}

static inline uint32_t tree_levels(uint32_t shard_count)
{
    uint32_t level = 0;
    while ((UINT32_C(1) << level) < shard_count)
        level++;
    return level;
}

/* The parts of a rank, each on the heap; returns how many. */
static inline uint32_t make_parts(uint32_t shard_count, const uint16_t *shard_rank, uint32_t rank,
                                  uint64_t count, float **parts)
{
    static struct keel_tree_node nodes[KEEL_GROUP_SHARDS_MAX];
    uint32_t node_count = 0;
    if (keel_tree_nodes(shard_count, shard_rank, rank, nodes, KEEL_GROUP_SHARDS_MAX, &node_count) != KEEL_OK)
        abort();
    for (uint32_t k = 0; k < node_count; k++) {
        parts[k] = malloc((count + 1) * sizeof(float));
        for (uint64_t i = 0; i < count; i++)
            parts[k][i] = node_value(nodes[k].level, nodes[k].index, shard_count, i);
    }
    return node_count;
}

static inline void free_parts(float **parts, uint32_t count)
{
    for (uint32_t k = 0; k < count; k++)
        free(parts[k]);
}

/* The first element whose bits differ from the root's, or count. */
static inline uint64_t first_wrong(const float *result, uint32_t shard_count, uint64_t count)
{
    uint32_t levels = tree_levels(shard_count);
    for (uint64_t i = 0; i < count; i++) {
        float wanted = node_value(levels, 0, shard_count, i);
        if (memcmp(&wanted, &result[i], sizeof wanted) != 0)
            return i;
    }
    return count;
}

#endif
