/* huffman.c - prefix codes of bounded length, for deflate_encode.c. Integers only; equal histograms give
 * equal codes on every machine. Left to others: histograms, and how codes are written. */
#include "huffman.h"
#include <keel/status.h>
#include <stdbool.h>
#include <string.h>

struct leaf {
    uint32_t count, symbol;
};

/* Ascending by count, then symbol, in which order they come: by the digits of the counts, lowest first. */
static void sort_leaves(struct leaf *leaves, uint32_t count)
{
    struct leaf other[KEEL_HUFFMAN_SYMBOLS_MAX];
    uint32_t bits = 0;
    for (uint32_t i = 0; i < count; i++)
        bits |= leaves[i].count;
    for (uint32_t shift = 0; shift < 32 && bits >> shift != 0; shift += 8) {
        uint32_t starts[257] = {0};
        for (uint32_t i = 0; i < count; i++)
            starts[(leaves[i].count >> shift & 255) + 1]++;
        for (uint32_t digit = 1; digit < 256; digit++)
            starts[digit] += starts[digit - 1];
        for (uint32_t i = 0; i < count; i++)
            other[starts[leaves[i].count >> shift & 255]++] = leaves[i];
        memcpy(leaves, other, count * sizeof *leaves);
    }
}

/* How many leaves lie at each depth of the Huffman tree of `count` (2 or more) sorted leaves: two queues,
 * leaves and joined nodes, both ascending. Depths beyond 63 cannot be: counts sum to less than 2^32. */
static void tree_depths(const struct leaf *leaves, uint32_t count, uint32_t per_depth[64])
{
    uint32_t weight[KEEL_HUFFMAN_SYMBOLS_MAX] = {0},
             parent[2 * KEEL_HUFFMAN_SYMBOLS_MAX]; /* nodes: leaves 0 .. count, then the joined ones */
    uint32_t next_leaf = 0, next_joined = 0;
    for (uint32_t made = 0; made < count - 1; made++) {
        for (int side = 0; side < 2; side++) {
            bool take_leaf =
                next_leaf < count && (next_joined == made || leaves[next_leaf].count <= weight[next_joined]);
            uint32_t node = take_leaf ? next_leaf : count + next_joined;
            weight[made] += take_leaf ? leaves[next_leaf++].count : weight[next_joined++];
            parent[node] = count + made;
        }
    }
    uint8_t depth[2 * KEEL_HUFFMAN_SYMBOLS_MAX];
    uint32_t root = 2 * count - 2;
    depth[root] = 0;
    memset(per_depth, 0, 64 * sizeof per_depth[0]);
    for (uint32_t node = root; node-- > 0;) {
        depth[node] = (uint8_t)(depth[parent[node]] + 1);
        if (node < count)
            per_depth[depth[node]]++;
    }
}

/* Lift leaves deeper than `bits_max`, then lengthen others until the code is complete again: each turn
 * takes one leaf from the bottom and hangs it beside the deepest leaf above. */
static void limit_depths(uint32_t per_depth[64], uint32_t bits_max)
{
    uint32_t room = 0; /* in leaves of the lowest level */
    for (uint32_t i = 63; i > bits_max; i--) {
        per_depth[bits_max] += per_depth[i];
        per_depth[i] = 0;
    }
    for (uint32_t i = 1; i <= bits_max; i++)
        room += per_depth[i] << (bits_max - i);
    for (; room > UINT32_C(1) << bits_max; room--) {
        uint32_t above = bits_max - 1;
        while (per_depth[above] == 0)
            above--;
        per_depth[bits_max]--;
        per_depth[above]--;
        per_depth[above + 1] += 2;
    }
}

void keel_huffman_lengths(const uint32_t *histogram, uint32_t symbols, uint32_t bits_max, uint8_t *out)
{
    KEEL_ASSERT(symbols <= KEEL_HUFFMAN_SYMBOLS_MAX);
    struct leaf leaves[KEEL_HUFFMAN_SYMBOLS_MAX] = {{0, 0}};
    uint32_t count = 0;
    for (uint32_t i = 0; i < symbols; i++)
        if (histogram[i] > 0)
            leaves[count++] = (struct leaf){histogram[i], i};
    memset(out, 0, symbols);
    if (count < 2) { /* inflate wants a complete code: give a second symbol one bit as well */
        uint32_t only = count == 1 ? leaves[0].symbol : 0;
        out[only] = 1;
        out[only == 0 ? 1 : 0] = 1;
        return;
    }
    sort_leaves(leaves, count);
    uint32_t per_depth[64];
    tree_depths(leaves, count, per_depth);
    limit_depths(per_depth, bits_max);
    uint32_t next = count; /* the most frequent first */
    for (uint32_t bits = 1; bits <= bits_max; bits++)
        for (uint32_t i = 0; i < per_depth[bits]; i++)
            out[leaves[--next].symbol] = (uint8_t)bits;
    KEEL_ASSERT(next == 0);
}

uint32_t keel_huffman_reverse(uint32_t value, uint32_t bits)
{
    value = (value & 0x5555) << 1 | (value >> 1 & 0x5555);
    value = (value & 0x3333) << 2 | (value >> 2 & 0x3333);
    value = (value & 0x0f0f) << 4 | (value >> 4 & 0x0f0f);
    value = (value & 0x00ff) << 8 | (value >> 8 & 0x00ff);
    return value >> (16 - bits);
}

void keel_huffman_codes(const uint8_t *lengths, uint32_t symbols, uint32_t *out)
{
    uint32_t per_length[16] = {0}, next[16] = {0};
    for (uint32_t i = 0; i < symbols; i++)
        per_length[lengths[i]]++;
    per_length[0] = 0;
    for (uint32_t i = 1; i < 16; i++)
        next[i] = (next[i - 1] + per_length[i - 1]) << 1;
    for (uint32_t i = 0; i < symbols; i++)
        out[i] = lengths[i] == 0 ? 0 : keel_huffman_reverse(next[lengths[i]]++, lengths[i]) << 4 | lengths[i];
}
