/* deflate_encode.c - the block, bit by bit:
 *
 *   3 bits   final block, type 2 (dynamic)
 *   14 bits  257 literal codes (256 bytes and end of block), 1 distance code (unused, length zero), and how
 *            many lengths of the third code follow
 *   n x 3    lengths of that third code, which compresses the 258 code lengths, run by run
 *   ...      the 258 lengths, the literals, end of block
 *
 * Codes are at most 12 bits long (DEFLATE allows 15): the loss is below a thousandth, four of them and the
 * left-over bits fit one 64-bit word, and a reader's table of all codes stays in its first-level cache. */
#include "deflate_encode.h"
#include <keel/status.h>
#include <string.h>

enum {
    LITERALS = 257,
    END_OF_BLOCK = 256,
    LENGTHS = LITERALS + 1, /* and one distance code */
    LENGTH_SYMBOLS = 19,
    CODE_BITS_MAX = 12,
    LENGTH_CODE_BITS_MAX = 7,
    REPEAT_PREVIOUS = 16, /* 3 .. 6 times, 2 extra bits */
    REPEAT_ZERO = 17,     /* 3 .. 10 times, 3 extra bits */
    REPEAT_ZERO_LONG = 18 /* 11 .. 138 times, 7 extra bits */
};

/* ---- code lengths ---------------------------------------------------------------------------------------
 */

struct leaf {
    uint32_t count, symbol;
};

/* Ascending by count, then symbol, so that equal counts do not depend on the sorting: heap sort. */
static bool leaf_before(struct leaf a, struct leaf b)
{
    return a.count != b.count ? a.count < b.count : a.symbol < b.symbol;
}

static void sift_down(struct leaf *leaves, uint32_t at, uint32_t end)
{
    struct leaf moved = leaves[at];
    for (uint32_t child; (child = 2 * at + 1) < end; at = child) {
        if (child + 1 < end && leaf_before(leaves[child], leaves[child + 1]))
            child++;
        if (!leaf_before(moved, leaves[child]))
            break;
        leaves[at] = leaves[child];
    }
    leaves[at] = moved;
}

static void sort_leaves(struct leaf *leaves, uint32_t count)
{
    for (uint32_t i = count / 2; i-- > 0;)
        sift_down(leaves, i, count);
    for (uint32_t end = count; end-- > 1;) {
        struct leaf largest = leaves[0];
        leaves[0] = leaves[end];
        leaves[end] = largest;
        sift_down(leaves, 0, end);
    }
}

/* How many leaves lie at each depth of the Huffman tree of `count` (2 or more) sorted leaves: two queues,
 * leaves and joined nodes, both ascending. Depths beyond 63 cannot be: counts sum to less than 2^32. */
static void tree_depths(const struct leaf *leaves, uint32_t count, uint32_t per_depth[64])
{
    uint32_t weight[LITERALS] = {0},
             parent[2 * LITERALS]; /* nodes: leaves 0 .. count, then the joined ones */
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
    uint8_t depth[2 * LITERALS];
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

/* Lengths of a complete prefix code for the symbols that occur; 0 for the others. */
static void code_lengths(const uint32_t *histogram, uint32_t symbols, uint32_t bits_max, uint8_t *out)
{
    struct leaf leaves[LITERALS];
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

static uint32_t reverse_bits(uint32_t value, uint32_t bits)
{
    uint32_t reversed = 0;
    for (uint32_t i = 0; i < bits; i++)
        reversed |= ((value >> i) & 1) << (bits - 1 - i);
    return reversed;
}

/* Canonical codes (RFC 1951, 3.2.2), each packed as bits << 4 | length, bits in sending order. */
static void canonical_codes(const uint8_t *lengths, uint32_t symbols, uint32_t *out)
{
    uint32_t per_length[16] = {0}, next[16] = {0};
    for (uint32_t i = 0; i < symbols; i++)
        per_length[lengths[i]]++;
    per_length[0] = 0;
    for (uint32_t i = 1; i < 16; i++)
        next[i] = (next[i - 1] + per_length[i - 1]) << 1;
    for (uint32_t i = 0; i < symbols; i++)
        out[i] = lengths[i] == 0 ? 0 : reverse_bits(next[lengths[i]]++, lengths[i]) << 4 | lengths[i];
}

/* ---- bits -------------------------------------------------------------------------------------------------
 */

struct bits {
    uint64_t word;
    uint32_t count; /* below 8 after a flush */
    uint8_t *at;
};

static inline void put(struct bits *bits, uint32_t value, uint32_t count)
{
    bits->word |= (uint64_t)value << bits->count;
    bits->count += count;
}

static inline void put_code(struct bits *bits, uint32_t code)
{
    put(bits, code >> 4, code & 15);
}

static inline void flush(struct bits *bits)
{
    memcpy(bits->at, &bits->word, sizeof bits->word);
    bits->at += bits->count >> 3;
    bits->word >>= bits->count & 56;
    bits->count &= 7;
}

/* ---- the block --------------------------------------------------------------------------------------------
 */

struct run {
    uint8_t symbol, extra;
};

/* The code lengths as runs; returns how many. */
static uint32_t find_runs(const uint8_t lengths[LENGTHS], struct run runs[LENGTHS])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < LENGTHS;) {
        uint32_t same = 1;
        while (i + same < LENGTHS && lengths[i + same] == lengths[i])
            same++;
        if (lengths[i] == 0 && same >= 11) {
            same = same < 138 ? same : 138;
            runs[count++] = (struct run){REPEAT_ZERO_LONG, (uint8_t)(same - 11)};
        } else if (lengths[i] == 0 && same >= 3) {
            runs[count++] = (struct run){REPEAT_ZERO, (uint8_t)(same - 3)};
        } else if (i > 0 && lengths[i] == lengths[i - 1] && same >= 3) {
            same = same < 6 ? same : 6;
            runs[count++] = (struct run){REPEAT_PREVIOUS, (uint8_t)(same - 3)};
        } else {
            same = 1;
            runs[count++] = (struct run){lengths[i], 0};
        }
        i += same;
    }
    return count;
}

static uint32_t extra_bits(uint8_t symbol)
{
    return symbol == REPEAT_PREVIOUS ? 2 : symbol == REPEAT_ZERO ? 3 : symbol == REPEAT_ZERO_LONG ? 7 : 0;
}

/* Everything before the literals: at most 17 + 57 + 258 x 14 bits, 461 bytes. */
enum { PREAMBLE_BYTES_MAX = 480 };
static void put_preamble(struct bits *bits, const uint8_t lengths[LENGTHS])
{
    static const uint8_t order[LENGTH_SYMBOLS] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                                  11, 4,  12, 3, 13, 2, 14, 1, 15};
    struct run runs[LENGTHS];
    uint32_t run_count = find_runs(lengths, runs);
    uint32_t histogram[LENGTH_SYMBOLS] = {0}, codes[LENGTH_SYMBOLS];
    uint8_t code_bits[LENGTH_SYMBOLS];
    for (uint32_t i = 0; i < run_count; i++)
        histogram[runs[i].symbol]++;
    code_lengths(histogram, LENGTH_SYMBOLS, LENGTH_CODE_BITS_MAX, code_bits);
    canonical_codes(code_bits, LENGTH_SYMBOLS, codes);
    uint32_t sent = LENGTH_SYMBOLS;
    while (sent > 4 && code_bits[order[sent - 1]] == 0)
        sent--;
    put(bits, 1 | 2 << 1, 3);
    put(bits, LITERALS - 257, 5);
    put(bits, 0, 5);
    put(bits, sent - 4, 4);
    for (uint32_t i = 0; i < sent; i++) {
        put(bits, code_bits[order[i]], 3);
        flush(bits);
    }
    for (uint32_t i = 0; i < run_count; i++) {
        put_code(bits, codes[runs[i].symbol]);
        put(bits, runs[i].extra, extra_bits(runs[i].symbol));
        flush(bits);
    }
}

static void put_literals(struct bits *out, const uint8_t *data, size_t bytes, const uint32_t codes[LITERALS])
{
    struct bits bits = *out;
    size_t i = 0;
    for (; i + 4 <= bytes; i += 4) { /* joined as a tree, so that codes do not wait for each other */
        uint32_t a = codes[data[i]], b = codes[data[i + 1]], c = codes[data[i + 2]], d = codes[data[i + 3]];
        uint32_t ab_bits = (a & 15) + (b & 15), cd_bits = (c & 15) + (d & 15);
        uint64_t ab = a >> 4 | (uint64_t)(b >> 4) << (a & 15);
        uint64_t cd = c >> 4 | (uint64_t)(d >> 4) << (c & 15);
        bits.word |= (ab | cd << ab_bits) << bits.count; /* 4 x 12 + 7 bits at most */
        bits.count += ab_bits + cd_bits;
        flush(&bits);
    }
    for (; i < bytes; i++) {
        put_code(&bits, codes[data[i]]);
        flush(&bits);
    }
    *out = bits;
}

size_t keel_deflate_literals(const uint8_t *data, size_t bytes, const uint32_t histogram[256], uint8_t *out,
                             size_t limit)
{
    KEEL_ASSERT(bytes >= 1 && bytes <= KEEL_DEFLATE_INPUT_MAX);
    uint32_t counts[LITERALS], codes[LITERALS];
    uint8_t lengths[LENGTHS], preamble[PREAMBLE_BYTES_MAX + KEEL_DEFLATE_SLACK_BYTES];
    memcpy(counts, histogram, 256 * sizeof counts[0]);
    counts[END_OF_BLOCK] = 1;
    code_lengths(counts, LITERALS, CODE_BITS_MAX, lengths);
    lengths[LITERALS] = 0;
    canonical_codes(lengths, LITERALS, codes);

    struct bits bits = {.at = preamble};
    put_preamble(&bits, lengths);
    size_t preamble_bytes = (size_t)(bits.at - preamble);
    uint64_t total_bits = preamble_bytes * 8 + bits.count;
    for (uint32_t i = 0; i < LITERALS; i++)
        total_bits += (uint64_t)counts[i] * lengths[i];
    size_t total = (size_t)((total_bits + 7) / 8);
    if (total > limit)
        return 0;
    memcpy(out, preamble, preamble_bytes);
    bits.at = out + preamble_bytes;
    put_literals(&bits, data, bytes, codes);
    put_code(&bits, codes[END_OF_BLOCK]);
    flush(&bits);
    if (bits.count > 0)
        *bits.at++ = (uint8_t)bits.word;
    KEEL_ASSERT((size_t)(bits.at - out) == total);
    return total;
}

void keel_byte_histogram(const uint8_t *data, size_t bytes, uint32_t out[256])
{
    uint32_t parts[4][256] = {{0}}; /* equal neighbours do not wait for each other's store */
    size_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        uint64_t word;
        memcpy(&word, data + i, sizeof word);
        parts[0][word & 255]++;
        parts[1][(word >> 8) & 255]++;
        parts[2][(word >> 16) & 255]++;
        parts[3][(word >> 24) & 255]++;
        parts[0][(word >> 32) & 255]++;
        parts[1][(word >> 40) & 255]++;
        parts[2][(word >> 48) & 255]++;
        parts[3][word >> 56]++;
    }
    for (; i < bytes; i++)
        parts[0][data[i]]++;
    for (uint32_t s = 0; s < 256; s++)
        out[s] = parts[0][s] + parts[1][s] + parts[2][s] + parts[3][s];
}
