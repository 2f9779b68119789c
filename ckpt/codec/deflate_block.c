/* deflate_block.c - the header of a block: the code of the code lengths, the lengths, and from these the
 * table.
 *
 * What zlib refuses, this refuses: codes that are incomplete or too many, no end of block, more codes than
 * there may be, repetitions of lengths before the first or beyond the last. */
#include "deflate_block.h"
#include "huffman.h"

enum { LENGTH_SYMBOLS = 19 };

/* ---- bits ---------------------------------------------------------------------------------------------- */

static uint32_t take(const struct keel_deflate_block *block, uint64_t *at, uint32_t bits)
{
    uint32_t value = (uint32_t)(keel_deflate_peek(block, *at) & ((1U << bits) - 1));
    *at += bits;
    return value;
}

/* ---- codes --------------------------------------------------------------------------------------------- */

/* Order the symbols by code; false when the lengths are no complete code. */
static bool sort_symbols(const uint8_t *lengths, uint32_t symbols,
                         uint16_t per_length[KEEL_DEFLATE_CODE_BITS_MAX + 1], uint16_t *sorted)
{
    uint16_t next[KEEL_DEFLATE_CODE_BITS_MAX + 2] = {0};
    uint32_t used = 0;
    memset(per_length, 0, (KEEL_DEFLATE_CODE_BITS_MAX + 1) * sizeof *per_length);
    for (uint32_t i = 0; i < symbols; i++)
        per_length[lengths[i]]++;
    per_length[0] = 0;
    for (uint32_t bits = 1; bits <= KEEL_DEFLATE_CODE_BITS_MAX; bits++) {
        used += (uint32_t)per_length[bits] << (KEEL_DEFLATE_CODE_BITS_MAX - bits);
        next[bits + 1] = (uint16_t)(next[bits] + per_length[bits]);
    }
    for (uint32_t i = 0; i < symbols; i++)
        if (lengths[i] > 0)
            sorted[next[lengths[i]]++] = (uint16_t)i;
    return used == 1U << KEEL_DEFLATE_CODE_BITS_MAX;
}

/* The symbol whose code begins `bits`, length by length: codes of one length are consecutive numbers, highest
 * bit first, after those of the length before. The code is complete, so one is found. */
static uint32_t symbol_of(uint64_t bits, const uint16_t per_length[KEEL_DEFLATE_CODE_BITS_MAX + 1],
                          const uint16_t *sorted)
{
    uint32_t code = 0, first = 0, index = 0;
    for (uint32_t length = 1; length < KEEL_DEFLATE_CODE_BITS_MAX; length++) {
        code = code << 1 | (bits & 1);
        bits >>= 1;
        first <<= 1;
        if (code - first < per_length[length])
            return sorted[index + code - first];
        first += per_length[length];
        index += per_length[length];
    }
    return sorted[index + (code << 1 | (bits & 1)) - (first << 1)];
}

/* ---- header -------------------------------------------------------------------------------------------- */

/* The lengths of all codes, themselves coded; false where any inflate would refuse as well. */
static bool read_lengths(struct keel_deflate_block *block, uint64_t *at, uint32_t count, uint32_t sent)
{
    static const uint8_t order[LENGTH_SYMBOLS] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                                  11, 4,  12, 3, 13, 2, 14, 1, 15};
    uint8_t lengths[LENGTH_SYMBOLS] = {0};
    uint16_t per_length[KEEL_DEFLATE_CODE_BITS_MAX + 1], sorted[LENGTH_SYMBOLS];
    for (uint32_t i = 0; i < sent; i++)
        lengths[order[i]] = (uint8_t)take(block, at, 3);
    if (!sort_symbols(lengths, LENGTH_SYMBOLS, per_length, sorted))
        return false;
    for (uint32_t i = 0; i < count && *at <= block->end;) {
        uint32_t symbol = symbol_of(keel_deflate_peek(block, *at), per_length, sorted), repeat = 1;
        uint8_t value = (uint8_t)symbol;
        *at += lengths[symbol];
        if (symbol >= 16) {
            if (symbol == 16 && i == 0)
                return false;
            value = symbol == 16 ? block->lengths[i - 1] : 0;
            repeat = symbol == 16   ? 3 + take(block, at, 2)
                     : symbol == 17 ? 3 + take(block, at, 3)
                                    : 11 + take(block, at, 7);
        }
        if (repeat > count - i)
            return false;
        memset(block->lengths + i, value, repeat);
        i += repeat;
    }
    return *at <= block->end;
}

/* Distances: none, or the one of the last byte with a code of one bit. */
static bool read_distances(struct keel_deflate_block *block, const uint8_t *lengths, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        if (lengths[i] != 0)
            return false;
    block->repeats = lengths[0] == 1;
    return lengths[0] <= 1;
}

static bool read_header(struct keel_deflate_block *block, uint64_t *at)
{
    uint32_t type = take(block, at, 3), literals = take(block, at, 5) + 257;
    uint32_t distances = take(block, at, 5) + 1, sent = take(block, at, 4) + 4;
    if (type != (1 | 2 << 1) || literals > KEEL_DEFLATE_LENGTH_CODES_MAX ||
        distances > KEEL_DEFLATE_DISTANCE_CODES_MAX || !read_lengths(block, at, literals + distances, sent) ||
        !read_distances(block, block->lengths + literals, distances) ||
        block->lengths[KEEL_DEFLATE_END_OF_BLOCK] == 0)
        return false;
    for (uint32_t i = KEEL_DEFLATE_END_OF_BLOCK + 1; i < literals && !block->repeats; i++)
        if (block->lengths[i] != 0)
            return false;
    memset(block->lengths + literals, 0, KEEL_DEFLATE_LENGTH_CODES_MAX - literals);
    return sort_symbols(block->lengths, KEEL_DEFLATE_LENGTH_CODES_MAX, block->per_length, block->sorted);
}

/* ---- table --------------------------------------------------------------------------------------------- */

/* All entries of the table of `bits` bits that begin with the code of `literal`: that one, and then what the
 * table of the bits that are left says of them. Should that be too many, fewer of these bits. */
static void add_literal(uint64_t *tables, uint32_t bits, uint32_t code, uint32_t length, uint32_t literal)
{
    uint64_t *table = tables + (1U << bits), first = (uint64_t)literal << 16 | 1U << 8 | length;
    for (uint32_t left = 0; left < 1U << (bits - length); left++) {
        uint32_t left_bits = bits - length;
        uint64_t rest = tables[(1U << left_bits) + left];
        while ((rest >> 8 & 255) == KEEL_DEFLATE_ENTRY_LITERALS_MAX) {
            left_bits--;
            rest = tables[(1U << left_bits) + (left & ((1U << left_bits) - 1))];
        }
        table[left << length | code] = first + (rest & 0xffff) + (rest >> 16 << 24);
    }
}

static void build_tables(struct keel_deflate_block *block)
{
    uint32_t codes[KEEL_DEFLATE_LENGTH_CODES_MAX], next = 0, index = 0;
    for (uint32_t length = 1; length <= KEEL_DEFLATE_TABLE_BITS; length++, next <<= 1)
        for (uint32_t i = 0; i < block->per_length[length]; i++, next++, index++)
            codes[index] = keel_huffman_reverse(next, length);
    memset(block->tables, 0, sizeof block->tables);
    for (uint32_t bits = 1; bits <= KEEL_DEFLATE_TABLE_BITS; bits++) {
        for (uint32_t i = 0; i < index; i++) {
            uint32_t symbol = block->sorted[i], length = block->lengths[symbol];
            if (length > bits)
                break;
            if (symbol < KEEL_DEFLATE_LITERALS)
                add_literal(block->tables, bits, codes[i], length, symbol);
            else if (bits == KEEL_DEFLATE_TABLE_BITS)
                for (uint32_t left = 0; left < 1U << (bits - length); left++)
                    block->tables[(1U << bits) + (left << length | codes[i])] =
                        (uint64_t)symbol << 16 | (uint64_t)length << 32;
        }
    }
}

/* ---- the block ----------------------------------------------------------------------------------------- */

uint32_t keel_deflate_long_symbol(const struct keel_deflate_block *block, uint64_t bits)
{
    return symbol_of(bits, block->per_length, block->sorted);
}

bool keel_deflate_block_open(struct keel_deflate_block *block, const uint8_t *stream, size_t stream_bytes,
                             uint64_t *out_at)
{
    block->stream = stream;
    block->stream_bytes = stream_bytes;
    block->end = (uint64_t)stream_bytes * 8;
    block->safe = stream_bytes < sizeof(uint64_t) ? 0 : (uint64_t)(stream_bytes - sizeof(uint64_t)) * 8;
    *out_at = 0;
    if (stream_bytes == 0 || !read_header(block, out_at))
        return false;
    build_tables(block);
    return true;
}
