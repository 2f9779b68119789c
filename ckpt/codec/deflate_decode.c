/* deflate_decode.c - one block of dynamic Huffman codes, literals and repetitions of the last byte, fast.
 *
 * Two things make it fast:
 *
 *   Several literals a lookup. The next 11 bits are looked up once for all the codes that they hold whole,
 *   six at most; an exponent of trained weights takes under 3 bits. Five lookups live from one 64-bit load.
 *
 *   Four places at once. Each lookup waits for the one before, so one bit stream leaves the processor idle.
 *   But Huffman codes find themselves again: a decoder that begins anywhere soon falls into step with the
 *   true codes. So four lanes begin at quarters of the stream, on the chance, and write to separate places.
 *   Then the true decoder, come to where a lane began, goes on code by code beside it until both stand on
 *   the same bit: from there on the lane has decoded what the true decoder would have, which is copied. A
 *   lane that never falls into step (codes of equal length may not) costs time, never correctness: the true
 *   decoder walks on.
 *
 * Trusts no byte: reads stay within the stream, writes within what is left of the output. Left to others: the
 * header and the table (deflate_block.c), and every other kind of DEFLATE (zlib's inflate, in planes.c). */
#include "deflate_decode.h"
#include "deflate_block.h"
#include "vector.h"
#include <string.h>

enum {
    LOOKUPS = 5,     /* of 11 bits in one load of at least 57 */
    STEP_BYTES = 32, /* that LOOKUPS may write: 5 x 6, the last eight at once */
    REPEAT_MAX = 258,
    LANES = 4,
    LANE_BYTES_MIN = 512, /* of a stream, under which lanes do not pay */
    BATCH = 16            /* steps of all lanes between two looks at where they are */
};

struct cursor {
    uint64_t at; /* bit of the stream */
    uint8_t *out;
};

/* ---- one symbol, with every check ---------------------------------------------------------------------- */

static uint32_t next_symbol(const struct keel_deflate_block *block, uint64_t at)
{
    uint64_t bits = keel_deflate_peek(block, at), entry = keel_deflate_entry(keel_deflate_table(block), bits);
    if ((entry >> 8 & 255) > 0)
        return entry >> 16 & 255;
    return entry != 0 ? (uint32_t)(entry >> 16 & 0xffff) : keel_deflate_long_symbol(block, bits);
}

/* The repetition that begins `bits`, after its own code: how often, and how many bits more; 0 where it is
 * none. */
static inline uint32_t repetition(uint32_t symbol, uint64_t bits, uint32_t *out_bits)
{
    static const uint8_t extra[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                    2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    static const uint16_t least[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                     31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    uint32_t i = symbol - KEEL_DEFLATE_END_OF_BLOCK - 1;
    *out_bits = extra[i] + 1U;
    if ((bits >> extra[i] & 1) != 0) /* a distance that has no code */
        return 0;
    return least[i] + (uint32_t)(bits & ((1U << extra[i]) - 1));
}

enum outcome { GOES_ON, ENDED, BROKEN };

/* Decode one symbol; `begin` and `end` are those of the output. */
static enum outcome step(const struct keel_deflate_block *block, struct cursor *cursor, const uint8_t *begin,
                         const uint8_t *end)
{
    uint32_t symbol = next_symbol(block, cursor->at), bits, times;
    cursor->at += block->lengths[symbol];
    if (cursor->at > block->end)
        return BROKEN;
    if (symbol == KEEL_DEFLATE_END_OF_BLOCK)
        return ENDED;
    if (symbol < KEEL_DEFLATE_LITERALS) {
        if (cursor->out == end)
            return BROKEN;
        *cursor->out++ = (uint8_t)symbol;
        return GOES_ON;
    }
    times = repetition(symbol, keel_deflate_peek(block, cursor->at), &bits);
    cursor->at += bits;
    if (times == 0 || cursor->at > block->end || cursor->out == begin || (size_t)(end - cursor->out) < times)
        return BROKEN;
    memset(cursor->out, cursor->out[-1], times);
    cursor->out += times;
    return GOES_ON;
}

/* ---- many literals ------------------------------------------------------------------------------------- */

/* LOOKUPS lookups from one load. What is no literal stops the cursor where it is. */
KEEL_VECTOR_BODY struct cursor leap(const uint64_t *table, const uint8_t *stream, struct cursor cursor)
{
    uint64_t bits, sum = 0; /* of entries: its low two bytes are bits and literals used so far */
    memcpy(&bits, stream + (cursor.at >> 3), sizeof bits);
    bits >>= cursor.at & 7;
    for (uint32_t i = 0; i < LOOKUPS; i++) {
        uint64_t entry = keel_deflate_entry(table, bits), literals = entry >> 16;
        memcpy(cursor.out + (sum >> 8 & 255), &literals, sizeof literals);
        sum += entry;
        bits >>= entry & 63;
    }
    return (struct cursor){cursor.at + (sum & 255), cursor.out + (sum >> 8 & 255)};
}

KEEL_VECTOR_BODY void leap_until_body(const struct keel_deflate_block *block, struct cursor *cursor,
                                      uint64_t stop, const uint8_t *end)
{
    const uint64_t *table = keel_deflate_table(block);
    struct cursor here = *cursor;
    uint64_t before = here.at + 1;
    stop = stop < block->safe ? stop : block->safe;
    while (here.at < stop && here.at != before && end - here.out >= STEP_BYTES) {
        before = here.at;
        here = leap(table, block->stream, here);
    }
    *cursor = here;
}

static void leap_until_plain(const struct keel_deflate_block *block, struct cursor *cursor, uint64_t stop,
                             const uint8_t *end)
{
    leap_until_body(block, cursor, stop, end);
}

KEEL_VECTOR_AVX2 static void leap_until_avx2(const struct keel_deflate_block *block, struct cursor *cursor,
                                             uint64_t stop, const uint8_t *end)
{
    leap_until_body(block, cursor, stop, end);
}

/* Literals up to bit `stop` or a little beyond, to a symbol that is none, or to where care is needed. */
static void leap_until(const struct keel_deflate_block *block, struct cursor *cursor, uint64_t stop,
                       const uint8_t *end)
{
    if (keel_vector_avx2())
        leap_until_avx2(block, cursor, stop, end);
    else
        leap_until_plain(block, cursor, stop, end);
}

/* The same where repetitions are frequent: one lookup, then what it says. */
static void repeat_until(const struct keel_deflate_block *block, struct cursor *cursor, uint64_t stop,
                         const uint8_t *begin, const uint8_t *end)
{
    const uint64_t *table = keel_deflate_table(block);
    struct cursor here = *cursor;
    stop = stop < block->safe ? stop : block->safe;
    while (here.at < stop && end - here.out >= REPEAT_MAX + STEP_BYTES) {
        uint64_t bits = keel_deflate_peek(block, here.at), entry = keel_deflate_entry(table, bits),
                 literals = entry >> 16;
        uint32_t symbol = literals & 0xffff, length = entry >> 32 & 255, more, times;
        if ((entry >> 8 & 255) > 0) {
            memcpy(here.out, &literals, sizeof literals);
            here.out += entry >> 8 & 255;
            here.at += entry & 255;
            continue;
        }
        if (entry == 0 || symbol == KEEL_DEFLATE_END_OF_BLOCK || here.out == begin)
            break;
        times = repetition(symbol, bits >> length, &more);
        if (times == 0)
            break;
        memset(here.out, here.out[-1], times);
        here.out += times;
        here.at += length + more;
    }
    *cursor = here;
}

/* Decode to bit `stop` or a little beyond, or to the end. */
static enum outcome decode_until(const struct keel_deflate_block *block, struct cursor *cursor, uint64_t stop,
                                 const uint8_t *begin, const uint8_t *end)
{
    enum outcome outcome = GOES_ON;
    while (outcome == GOES_ON && cursor->at < stop) {
        if (block->repeats)
            repeat_until(block, cursor, stop, begin, end);
        else
            leap_until(block, cursor, stop, end);
        if (cursor->at < stop)
            outcome = step(block, cursor, begin, end);
    }
    return outcome;
}

/* ---- lanes --------------------------------------------------------------------------------------------- */

struct lane {
    struct cursor cursor;
    uint64_t from, stop; /* bits */
    uint8_t *begin, *end;
};

static inline bool lane_can_leap(const struct lane *lane)
{
    return lane->cursor.at + (uint64_t)BATCH * LOOKUPS * KEEL_DEFLATE_TABLE_BITS <= lane->stop &&
           lane->end - lane->cursor.out >= BATCH * STEP_BYTES;
}

KEEL_VECTOR_BODY void leap_all_body(const uint64_t *table, const uint8_t *stream, struct lane lanes[LANES])
{
    struct cursor a = lanes[0].cursor, b = lanes[1].cursor, c = lanes[2].cursor, d = lanes[3].cursor;
    for (uint32_t i = 0; i < BATCH; i++) {
        a = leap(table, stream, a);
        b = leap(table, stream, b);
        c = leap(table, stream, c);
        d = leap(table, stream, d);
    }
    lanes[0].cursor = a;
    lanes[1].cursor = b;
    lanes[2].cursor = c;
    lanes[3].cursor = d;
}

static void leap_all_plain(const uint64_t *table, const uint8_t *stream, struct lane lanes[LANES])
{
    leap_all_body(table, stream, lanes);
}

KEEL_VECTOR_AVX2 static void leap_all_avx2(const uint64_t *table, const uint8_t *stream,
                                           struct lane lanes[LANES])
{
    leap_all_body(table, stream, lanes);
}

/* A lane that stands before something else than short literals takes one symbol. An end of block where none
 * can be is no code: the lane is not in step, and begins again behind it. False when the lane is at its end,
 * as the first, which is in step, is at any end of block.
 */
static bool lane_unblock(const struct keel_deflate_block *block, struct lane *lane, bool in_step)
{
    if ((keel_deflate_entry(keel_deflate_table(block), keel_deflate_peek(block, lane->cursor.at)) & 0xffff) !=
        0)
        return true;
    struct cursor before = lane->cursor;
    enum outcome outcome = step(block, &lane->cursor, lane->begin, lane->end);
    if (outcome == ENDED && !in_step && lane->cursor.at + 8 <= block->end) {
        lane->from = lane->cursor.at;
        lane->cursor.out = lane->begin;
        return true;
    }
    if (outcome != GOES_ON)
        lane->cursor = before;
    return outcome == GOES_ON;
}

/* All lanes until the first comes near its end. They take equal numbers of bits, nearly all of which every
 * lookup uses, so the others are near theirs, too. */
static void run_lanes(const struct keel_deflate_block *block, struct lane lanes[LANES])
{
    bool fast = keel_vector_avx2();
    for (;;) {
        for (uint32_t i = 0; i < LANES; i++)
            if (!lane_can_leap(&lanes[i]) || !lane_unblock(block, &lanes[i], i == 0))
                return;
        if (fast)
            leap_all_avx2(keel_deflate_table(block), block->stream, lanes);
        else
            leap_all_plain(keel_deflate_table(block), block->stream, lanes);
    }
}

/* Bring the true decoder, which stands at or behind the lane's beginning, and the lane into step, then take
 * over what the lane has decoded. BROKEN: the stream is. */
static enum outcome merge(const struct keel_deflate_block *block, struct cursor *cursor,
                          const struct lane *lane, const uint8_t *begin, const uint8_t *end)
{
    uint64_t at = lane->from;
    size_t skipped = 0, decoded = (size_t)(lane->cursor.out - lane->begin);
    while (at != cursor->at && skipped < decoded) {
        if (at < cursor->at) {
            at += block->lengths[lane->begin[skipped++]];
        } else {
            enum outcome outcome = step(block, cursor, begin, end);
            if (outcome != GOES_ON)
                return outcome;
        }
    }
    size_t taken = decoded - skipped;
    if (at != cursor->at || taken > (size_t)(end - cursor->out))
        return GOES_ON;
    memcpy(cursor->out, lane->begin + skipped, taken);
    *cursor = (struct cursor){lane->cursor.at, cursor->out + taken};
    return GOES_ON;
}

/* The first lane is the true decoder; the others write to equal parts of the spare memory. */
static enum outcome decode_in_lanes(const struct keel_deflate_block *block, struct cursor *cursor,
                                    uint8_t *end, uint8_t *spare, size_t spare_bytes)
{
    struct lane lanes[LANES];
    uint8_t *begin = cursor->out;
    uint64_t span = (block->safe - cursor->at) / LANES, from = cursor->at;
    size_t part = spare_bytes / (LANES - 1);
    for (uint32_t i = 0; i < LANES; i++, from += span) {
        uint8_t *place = i == 0 ? begin : spare + (i - 1) * part;
        lanes[i] = (struct lane){.cursor = {from, place},
                                 .from = from,
                                 .stop = from + span,
                                 .begin = place,
                                 .end = i == 0 ? end : place + part};
    }
    run_lanes(block, lanes);
    for (uint32_t i = 1; i < LANES; i++)
        leap_until(block, &lanes[i].cursor, lanes[i].stop, lanes[i].end);
    *cursor = lanes[0].cursor;
    enum outcome outcome = GOES_ON;
    for (uint32_t i = 1; i < LANES && outcome == GOES_ON; i++) {
        outcome = decode_until(block, cursor, lanes[i].from, begin, end);
        if (outcome == GOES_ON)
            outcome = merge(block, cursor, &lanes[i], begin, end);
    }
    return outcome;
}

bool keel_deflate_decode(const uint8_t *stream, size_t stream_bytes, uint8_t *out, size_t bytes,
                         uint8_t *spare, size_t spare_bytes)
{
    struct keel_deflate_block block;
    struct cursor cursor = {.out = out};
    if (!keel_deflate_block_open(&block, stream, stream_bytes, &cursor.at))
        return false;
    enum outcome outcome = GOES_ON;
    if (!block.repeats && stream_bytes >= LANES * LANE_BYTES_MIN && spare_bytes >= LANES * LANE_BYTES_MIN &&
        block.safe > cursor.at)
        outcome = decode_in_lanes(&block, &cursor, out + bytes, spare, spare_bytes);
    if (outcome == GOES_ON)
        outcome = decode_until(&block, &cursor, UINT64_MAX, out, out + bytes);
    return outcome == ENDED && cursor.out == out + bytes && (cursor.at + 7) / 8 == stream_bytes;
}
