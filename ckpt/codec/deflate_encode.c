/* deflate_encode.c - the block, bit by bit:
 *
 *   3 bits   final block, type 2 (dynamic)
 *   14 bits  how many literal codes (256 bytes, end of block, lengths of repetitions), 1 distance code, and
 *            how many lengths of the third code follow
 *   n x 3    lengths of that third code, which compresses the other code lengths, run by run
 *   ...      the lengths, the symbols, end of block
 *
 * Codes are at most 11 bits long (DEFLATE allows 15): the loss is about a thousandth, four of them and the
 * left-over bits fit one 64-bit word, and a reader resolves any with one look at a table of 16 KiB.
 *
 * A plane in which one byte is more than seven eighths is also tried with repetitions: a Huffman code spends
 * a bit on every byte, however sure. They repeat the last byte (distance 1, whose code is one bit), 3 to 258
 * times; the smaller of the two is written. */
#include "deflate_encode.h"
#include "huffman.h"
#include <keel/status.h>
#include <string.h>

enum {
    END_OF_BLOCK = 256,
    LITERAL_SYMBOLS = 257,
    SYMBOLS_MAX = 286,             /* 29 lengths of repetitions */
    LENGTHS_MAX = SYMBOLS_MAX + 1, /* and one distance code */
    LENGTH_SYMBOLS = 19,
    CODE_BITS_MAX = 11,
    LENGTH_CODE_BITS_MAX = 7,
    REPEAT_PREVIOUS = 16,  /* 3 .. 6 times, 2 extra bits */
    REPEAT_ZERO = 17,      /* 3 .. 10 times, 3 extra bits */
    REPEAT_ZERO_LONG = 18, /* 11 .. 138 times, 7 extra bits */
    REPETITION_MIN = 5,    /* shorter ones are literals */
    REPETITION_MAX = 258,
    REPETITIONS_PAY = 4096 /* planes of fewer bytes are not tried with repetitions */
};

/* ---- bits ---------------------------------------------------------------------------------------------- */

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

/* ---- the codes, sent ----------------------------------------------------------------------------------- */

struct run {
    uint8_t symbol, extra;
};

/* `count` code lengths as runs; returns how many. */
static uint32_t find_runs(const uint8_t *lengths, uint32_t count, struct run runs[LENGTHS_MAX])
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < count;) {
        uint32_t same = 1;
        while (i + same < count && lengths[i + same] == lengths[i])
            same++;
        if (lengths[i] == 0 && same >= 11) {
            same = same < 138 ? same : 138;
            runs[found++] = (struct run){REPEAT_ZERO_LONG, (uint8_t)(same - 11)};
        } else if (lengths[i] == 0 && same >= 3) {
            runs[found++] = (struct run){REPEAT_ZERO, (uint8_t)(same - 3)};
        } else if (i > 0 && lengths[i] == lengths[i - 1] && same >= 3) {
            same = same < 6 ? same : 6;
            runs[found++] = (struct run){REPEAT_PREVIOUS, (uint8_t)(same - 3)};
        } else {
            same = 1;
            runs[found++] = (struct run){lengths[i], 0};
        }
        i += same;
    }
    return found;
}

static uint32_t extra_bits(uint8_t symbol)
{
    return symbol == REPEAT_PREVIOUS ? 2 : symbol == REPEAT_ZERO ? 3 : symbol == REPEAT_ZERO_LONG ? 7 : 0;
}

/* Everything before the symbols: at most 17 + 57 + 287 x 14 bits, 512 bytes. */
enum { PREAMBLE_BYTES_MAX = 528 };
static void put_preamble(struct bits *bits, const uint8_t *lengths, uint32_t symbols)
{
    static const uint8_t order[LENGTH_SYMBOLS] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                                  11, 4,  12, 3, 13, 2, 14, 1, 15};
    struct run runs[LENGTHS_MAX];
    uint32_t run_count = find_runs(lengths, symbols + 1, runs);
    uint32_t histogram[LENGTH_SYMBOLS] = {0}, codes[LENGTH_SYMBOLS];
    uint8_t code_bits[LENGTH_SYMBOLS];
    for (uint32_t i = 0; i < run_count; i++)
        histogram[runs[i].symbol]++;
    keel_huffman_lengths(histogram, LENGTH_SYMBOLS, LENGTH_CODE_BITS_MAX, code_bits);
    keel_huffman_codes(code_bits, LENGTH_SYMBOLS, codes);
    uint32_t sent = LENGTH_SYMBOLS;
    while (sent > 4 && code_bits[order[sent - 1]] == 0)
        sent--;
    put(bits, 1 | 2 << 1, 3);
    put(bits, symbols - 257, 5);
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

/* One kind of block: the codes of what occurs in it. */
struct block {
    uint32_t symbols; /* how many lengths are sent, without that of the distance */
    uint32_t counts[SYMBOLS_MAX], codes[SYMBOLS_MAX];
    uint8_t preamble[PREAMBLE_BYTES_MAX + KEEL_DEFLATE_SLACK_BYTES];
    struct bits bits;    /* behind the preamble */
    uint64_t total_bits; /* with everything */
};

/* From the counts, all but that of the end, make the rest. `more_bits`: what follows codes. */
static void prepare(struct block *block, bool repetitions, uint64_t more_bits)
{
    uint8_t lengths[LENGTHS_MAX];
    block->counts[END_OF_BLOCK] = 1;
    block->symbols = SYMBOLS_MAX;
    while (block->counts[block->symbols - 1] == 0)
        block->symbols--;
    keel_huffman_lengths(block->counts, block->symbols, CODE_BITS_MAX, lengths);
    keel_huffman_codes(lengths, block->symbols, block->codes);
    lengths[block->symbols] = repetitions ? 1 : 0;
    block->bits = (struct bits){.at = block->preamble};
    put_preamble(&block->bits, lengths, block->symbols);
    block->total_bits = (uint64_t)(block->bits.at - block->preamble) * 8 + block->bits.count + more_bits;
    for (uint32_t i = 0; i < block->symbols; i++)
        block->total_bits += (uint64_t)block->counts[i] * lengths[i];
}

/* ---- literals ------------------------------------------------------------------------------------------ */

static void put_single(struct bits *out, const uint8_t *data, size_t bytes, const uint32_t *codes)
{
    struct bits bits = *out;
    size_t i = 0;
    for (; i + 4 <= bytes; i += 4) { /* joined as a tree, so that codes do not wait for each other */
        uint32_t a = codes[data[i]], b = codes[data[i + 1]], c = codes[data[i + 2]], d = codes[data[i + 3]];
        uint32_t ab_bits = (a & 15) + (b & 15), cd_bits = (c & 15) + (d & 15);
        uint64_t ab = a >> 4 | (uint64_t)(b >> 4) << (a & 15);
        uint64_t cd = c >> 4 | (uint64_t)(d >> 4) << (c & 15);
        bits.word |= (ab | cd << ab_bits) << bits.count; /* 4 x 11 + 7 bits at most */
        bits.count += ab_bits + cd_bits;
        flush(&bits);
    }
    for (; i < bytes; i++) {
        put_code(&bits, codes[data[i]]);
        flush(&bits);
    }
    *out = bits;
}

/* Two bytes at a time, by a table of the pairs that can be (256 KiB, of which few symbols touch little). */
static void put_pairs(struct bits *out, const uint8_t *data, size_t bytes, const uint32_t *codes,
                      const uint8_t *used, uint32_t used_count)
{
    uint32_t pairs[1 << 16]; /* bits << 5 | length; only pairs of used bytes are set, and looked at */
    for (uint32_t second = 0; second < used_count; second++) {
        uint32_t b = codes[used[second]];
        for (uint32_t first = 0; first < used_count; first++) {
            uint32_t a = codes[used[first]];
            pairs[(uint32_t)used[second] << 8 | used[first]] =
                (a >> 4 | b >> 4 << (a & 15)) << 5 | ((a & 15) + (b & 15));
        }
    }
    struct bits bits = *out;
    size_t i = 0;
    for (; i + 4 <= bytes; i += 4) {
        uint32_t word;
        memcpy(&word, data + i, sizeof word);
        uint32_t ab = pairs[word & 0xffff], cd = pairs[word >> 16];
        bits.word |= (ab >> 5 | (uint64_t)(cd >> 5) << (ab & 31)) << bits.count;
        bits.count += (ab & 31) + (cd & 31);
        flush(&bits);
    }
    put_single(&bits, data + i, bytes - i, codes);
    *out = bits;
}

static void put_literals(struct bits *out, const uint8_t *data, size_t bytes, const struct block *block)
{
    enum { PAIRS_MAX = 128 }; /* bytes of which all pairs are worth a table */
    uint8_t used[256];
    uint32_t used_count = 0;
    for (uint32_t i = 0; i < 256; i++)
        if (block->counts[i] > 0)
            used[used_count++] = (uint8_t)i;
    if (used_count <= PAIRS_MAX && (size_t)used_count * used_count * 8 <= bytes)
        put_pairs(out, data, bytes, block->codes, used, used_count);
    else
        put_single(out, data, bytes, block->codes);
}

/* ---- repetitions --------------------------------------------------------------------------------------- */

/* How many bytes from `at` on, before `end`, equal the one before. */
static size_t equal_bytes(const uint8_t *data, size_t at, size_t end)
{
    size_t i = at;
    uint64_t same = data[at - 1] * UINT64_C(0x0101010101010101), word;
    for (; i + 8 <= end; i += 8) {
        memcpy(&word, data + i, sizeof word);
        if (word != same)
            return i - at + (size_t)__builtin_ctzll(word ^ same) / 8;
    }
    while (i < end && data[i] == data[at - 1])
        i++;
    return i - at;
}

struct repetition {
    uint32_t symbol, extra, extra_bits;
};

/* How DEFLATE writes a length of 3 to 258. */
static struct repetition repetition_of(uint32_t length)
{
    if (length == REPETITION_MAX)
        return (struct repetition){SYMBOLS_MAX - 1, 0, 0};
    uint32_t value = length - 3, bits = value < 8 ? 0 : 29 - (uint32_t)__builtin_clz(value);
    return (struct repetition){257 + 4 * bits + (value >> bits), value & ((1U << bits) - 1), bits};
}

/* The next piece of a plane: literals up to *out_literals, then a repetition of *out_length (0: none). */
static void next_piece(const uint8_t *data, size_t at, size_t bytes, size_t *out_literals,
                       uint32_t *out_length)
{
    for (size_t i = at; i < bytes; i++) {
        size_t end = bytes - i < REPETITION_MAX ? bytes : i + REPETITION_MAX;
        size_t same = i > 0 && data[i] == data[i - 1] ? equal_bytes(data, i, end) : 0;
        if (same >= REPETITION_MIN) {
            *out_literals = i;
            *out_length = (uint32_t)same;
            return;
        }
        i += same > 0 ? same - 1 : 0;
    }
    *out_literals = bytes;
    *out_length = 0;
}

static void count_repetitions(struct block *block, const uint8_t *data, size_t bytes)
{
    uint64_t more_bits = 0;
    uint32_t length;
    memset(block->counts, 0, sizeof block->counts);
    for (size_t at = 0, end; at < bytes; at = end + length) {
        next_piece(data, at, bytes, &end, &length);
        for (size_t i = at; i < end; i++)
            block->counts[data[i]]++;
        if (length > 0) {
            struct repetition repetition = repetition_of(length);
            block->counts[repetition.symbol]++;
            more_bits += repetition.extra_bits + 1;
        }
    }
    prepare(block, true, more_bits);
}

static void put_repetitions(struct bits *bits, const uint8_t *data, size_t bytes, const struct block *block)
{
    uint32_t length;
    for (size_t at = 0, end; at < bytes; at = end + length) {
        next_piece(data, at, bytes, &end, &length);
        put_single(bits, data + at, end - at, block->codes);
        if (length > 0) {
            struct repetition repetition = repetition_of(length);
            put_code(bits, block->codes[repetition.symbol]);
            put(bits, repetition.extra, repetition.extra_bits + 1); /* the distance's code is a zero */
            flush(bits);
        }
    }
}

/* ---- the block ----------------------------------------------------------------------------------------- */

static bool repetitions_may_pay(const uint32_t histogram[256], size_t bytes)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < 256; i++)
        most = most > histogram[i] ? most : histogram[i];
    return bytes >= REPETITIONS_PAY && most > bytes / 8 * 7;
}

size_t keel_deflate_encode(const uint8_t *data, size_t bytes, const uint32_t histogram[256], uint8_t *out,
                           size_t limit)
{
    KEEL_ASSERT(bytes >= 1 && bytes <= KEEL_DEFLATE_INPUT_MAX);
    struct block literals = {0}, repeating;
    memcpy(literals.counts, histogram, 256 * sizeof histogram[0]);
    prepare(&literals, false, 0);
    struct block *block = &literals;
    if (repetitions_may_pay(histogram, bytes)) {
        count_repetitions(&repeating, data, bytes);
        if (repeating.total_bits < literals.total_bits)
            block = &repeating;
    }
    size_t total = (size_t)((block->total_bits + 7) / 8);
    if (total > limit)
        return 0;
    struct bits bits = block->bits;
    size_t preamble_bytes = (size_t)(bits.at - block->preamble);
    memcpy(out, block->preamble, preamble_bytes);
    bits.at = out + preamble_bytes;
    if (block == &literals)
        put_literals(&bits, data, bytes, block);
    else
        put_repetitions(&bits, data, bytes, block);
    put_code(&bits, block->codes[END_OF_BLOCK]);
    flush(&bits);
    if (bits.count > 0)
        *bits.at++ = (uint8_t)bits.word;
    KEEL_ASSERT((size_t)(bits.at - out) == total);
    return total;
}

void keel_byte_histogram(const uint8_t *data, size_t bytes, uint32_t out[256])
{
    uint32_t parts[8][256] = {{0}}; /* equal neighbours do not wait for each other's store */
    size_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        uint64_t word;
        memcpy(&word, data + i, sizeof word);
        parts[0][word & 255]++;
        parts[1][(word >> 8) & 255]++;
        parts[2][(word >> 16) & 255]++;
        parts[3][(word >> 24) & 255]++;
        parts[4][(word >> 32) & 255]++;
        parts[5][(word >> 40) & 255]++;
        parts[6][(word >> 48) & 255]++;
        parts[7][word >> 56]++;
    }
    for (; i < bytes; i++)
        parts[0][data[i]]++;
    for (uint32_t s = 0; s < 256; s++) {
        out[s] = 0;
        for (uint32_t k = 0; k < 8; k++)
            out[s] += parts[k][s];
    }
}
