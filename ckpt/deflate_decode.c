/* deflate_decode.c - one block of dynamic Huffman codes, literals and repetitions of the last byte, fast.
 *
 * Two things make it fast:
 *
 *   Several literals a lookup. The next 11 bits are looked up once for all the codes that they hold whole,
 * six at most; an exponent of trained weights takes under 3 bits. Five lookups live from one 64-bit load.
 *
 *   Four places at once. Each lookup waits for the one before, so one bit stream leaves the processor idle.
 * But Huffman codes find themselves again: a decoder that begins anywhere soon falls into step with the true
 * codes. So four lanes begin at quarters of the stream, on the chance, and write to separate places. Then the
 * true decoder, come to where a lane began, goes on code by code beside it until both stand on the same bit:
 * from there on the lane has decoded what the true decoder would have, which is copied. A lane that never
 * falls into step (codes of equal length may not) costs time, never correctness: the true decoder walks on.
 *
 * Trusts no byte: reads stay within the stream, writes within what is left of the output. Left to others:
 * every other kind of DEFLATE (zlib's inflate, in planes.c). */
#include "deflate_decode.h"
#include "huffman.h"
#include "vector.h"
#include <string.h>

enum {
    LITERALS = 256,
    END_OF_BLOCK = 256,
    LENGTH_CODES_MAX = 286, /* literals, end of block, 29 lengths of repetitions */
    DISTANCE_CODES_MAX = 30,
    LENGTH_SYMBOLS = 19,
    CODE_BITS_MAX = 15,
    TABLE_BITS = 11,
    ENTRY_LITERALS_MAX = 6,
    LOOKUPS = 5,     /* of 11 bits in one load of at least 57 */
    STEP_BYTES = 32, /* that LOOKUPS may write: 5 x 6, the last eight at once */
    REPEAT_MAX = 258,
    LANES = 4,
    LANE_BYTES_MIN = 512, /* of a stream, under which lanes do not pay */
    BATCH = 16            /* steps of all lanes between two looks at where they are */
};

/* Table entries.
 *   literals   bits used (8 bits), how many (8 bits), the literals, first lowest (6 x 8 bits)
 *   special    16 bits of zero, symbol (16 bits), bits used (8 bits): end of block or a repetition
 *   0          a code of more than 11 bits
 * The low 16 bits of the last two move a lane neither in the stream nor in the output. */
struct decoder {
    const uint8_t *stream;
    size_t stream_bytes;
    uint64_t end;  /* in bits */
    uint64_t safe; /* a load of eight bytes may begin below this bit */
    bool repeats;  /* there is a distance code: 1, of one bit */
    uint8_t lengths[LENGTH_CODES_MAX + DISTANCE_CODES_MAX];
    uint16_t per_length[CODE_BITS_MAX + 1],
        sorted[LENGTH_CODES_MAX];     /* symbols in the order of their codes */
    uint64_t tables[2 << TABLE_BITS]; /* that of b bits is at 1 << b; while decoding only the last is used */
};

struct cursor {
    uint64_t at; /* bit of the stream */
    uint8_t *out;
};

/* ---- bits -----------------------------------------------------------------------------------------------
 */

/* At least 57 bits from bit `at` on; zeros behind the end. */
static inline uint64_t peek(const struct decoder *decoder, uint64_t at)
{
    uint64_t word = 0;
    size_t byte = (size_t)(at >> 3);
    if (at < decoder->safe)
        memcpy(&word, decoder->stream + byte, sizeof word);
    else
        for (size_t i = 0; i < sizeof word && byte + i < decoder->stream_bytes; i++)
            word |= (uint64_t)decoder->stream[byte + i] << (8 * i);
    return word >> (at & 7);
}

static uint32_t take(const struct decoder *decoder, uint64_t *at, uint32_t bits)
{
    uint32_t value = (uint32_t)(peek(decoder, *at) & ((1U << bits) - 1));
    *at += bits;
    return value;
}

/* ---- codes ----------------------------------------------------------------------------------------------
 */

/* Order the symbols by code; false when the lengths are no complete code. */
static bool sort_symbols(const uint8_t *lengths, uint32_t symbols, uint16_t per_length[CODE_BITS_MAX + 1],
                         uint16_t *sorted)
{
    uint16_t next[CODE_BITS_MAX + 2] = {0};
    uint32_t used = 0;
    memset(per_length, 0, (CODE_BITS_MAX + 1) * sizeof *per_length);
    for (uint32_t i = 0; i < symbols; i++)
        per_length[lengths[i]]++;
    per_length[0] = 0;
    for (uint32_t bits = 1; bits <= CODE_BITS_MAX; bits++) {
        used += (uint32_t)per_length[bits] << (CODE_BITS_MAX - bits);
        next[bits + 1] = (uint16_t)(next[bits] + per_length[bits]);
    }
    for (uint32_t i = 0; i < symbols; i++)
        if (lengths[i] > 0)
            sorted[next[lengths[i]]++] = (uint16_t)i;
    return used == 1U << CODE_BITS_MAX;
}

/* The symbol whose code begins `bits`, length by length: codes of one length are consecutive numbers, highest
 * bit first, after those of the length before. The code is complete, so one is found. */
static uint32_t symbol_of(uint64_t bits, const uint16_t per_length[CODE_BITS_MAX + 1], const uint16_t *sorted)
{
    uint32_t code = 0, first = 0, index = 0;
    for (uint32_t length = 1; length < CODE_BITS_MAX; length++) {
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

/* ---- header ---------------------------------------------------------------------------------------------
 */

/* The lengths of all codes, themselves coded; false where any inflate would refuse as well. */
static bool read_lengths(struct decoder *decoder, uint64_t *at, uint32_t count, uint32_t sent)
{
    static const uint8_t order[LENGTH_SYMBOLS] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                                  11, 4,  12, 3, 13, 2, 14, 1, 15};
    uint8_t lengths[LENGTH_SYMBOLS] = {0};
    uint16_t per_length[CODE_BITS_MAX + 1], sorted[LENGTH_SYMBOLS];
    for (uint32_t i = 0; i < sent; i++)
        lengths[order[i]] = (uint8_t)take(decoder, at, 3);
    if (!sort_symbols(lengths, LENGTH_SYMBOLS, per_length, sorted))
        return false;
    for (uint32_t i = 0; i < count && *at <= decoder->end;) {
        uint32_t symbol = symbol_of(peek(decoder, *at), per_length, sorted), repeat = 1;
        uint8_t value = (uint8_t)symbol;
        *at += lengths[symbol];
        if (symbol >= 16) {
            if (symbol == 16 && i == 0)
                return false;
            value = symbol == 16 ? decoder->lengths[i - 1] : 0;
            repeat = symbol == 16   ? 3 + take(decoder, at, 2)
                     : symbol == 17 ? 3 + take(decoder, at, 3)
                                    : 11 + take(decoder, at, 7);
        }
        if (repeat > count - i)
            return false;
        memset(decoder->lengths + i, value, repeat);
        i += repeat;
    }
    return *at <= decoder->end;
}

/* Distances: none, or the one of the last byte with a code of one bit. */
static bool read_distances(struct decoder *decoder, const uint8_t *lengths, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        if (lengths[i] != 0)
            return false;
    decoder->repeats = lengths[0] == 1;
    return lengths[0] <= 1;
}

static bool read_header(struct decoder *decoder, uint64_t *at)
{
    uint32_t type = take(decoder, at, 3), literals = take(decoder, at, 5) + 257;
    uint32_t distances = take(decoder, at, 5) + 1, sent = take(decoder, at, 4) + 4;
    if (type != (1 | 2 << 1) || literals > LENGTH_CODES_MAX || distances > DISTANCE_CODES_MAX ||
        !read_lengths(decoder, at, literals + distances, sent) ||
        !read_distances(decoder, decoder->lengths + literals, distances) ||
        decoder->lengths[END_OF_BLOCK] == 0)
        return false;
    for (uint32_t i = END_OF_BLOCK + 1; i < literals && !decoder->repeats; i++)
        if (decoder->lengths[i] != 0)
            return false;
    memset(decoder->lengths + literals, 0, LENGTH_CODES_MAX - literals);
    return sort_symbols(decoder->lengths, LENGTH_CODES_MAX, decoder->per_length, decoder->sorted);
}

/* ---- table ----------------------------------------------------------------------------------------------
 */

/* All entries of the table of `bits` bits that begin with the code of `literal`: that one, and then what the
 * table of the bits that are left says of them. Should that be too many, fewer of these bits. */
static void add_literal(uint64_t *tables, uint32_t bits, uint32_t code, uint32_t length, uint32_t literal)
{
    uint64_t *table = tables + (1U << bits), first = (uint64_t)literal << 16 | 1U << 8 | length;
    for (uint32_t left = 0; left < 1U << (bits - length); left++) {
        uint32_t left_bits = bits - length;
        uint64_t rest = tables[(1U << left_bits) + left];
        while ((rest >> 8 & 255) == ENTRY_LITERALS_MAX) {
            left_bits--;
            rest = tables[(1U << left_bits) + (left & ((1U << left_bits) - 1))];
        }
        table[left << length | code] = first + (rest & 0xffff) + (rest >> 16 << 24);
    }
}

static void build_tables(struct decoder *decoder)
{
    uint32_t codes[LENGTH_CODES_MAX], next = 0, index = 0;
    for (uint32_t length = 1; length <= TABLE_BITS; length++, next <<= 1)
        for (uint32_t i = 0; i < decoder->per_length[length]; i++, next++, index++)
            codes[index] = keel_huffman_reverse(next, length);
    memset(decoder->tables, 0, sizeof decoder->tables);
    for (uint32_t bits = 1; bits <= TABLE_BITS; bits++) {
        for (uint32_t i = 0; i < index; i++) {
            uint32_t symbol = decoder->sorted[i], length = decoder->lengths[symbol];
            if (length > bits)
                break;
            if (symbol < LITERALS)
                add_literal(decoder->tables, bits, codes[i], length, symbol);
            else if (bits == TABLE_BITS)
                for (uint32_t left = 0; left < 1U << (bits - length); left++)
                    decoder->tables[(1U << bits) + (left << length | codes[i])] =
                        (uint64_t)symbol << 16 | (uint64_t)length << 32;
        }
    }
}

static inline uint64_t entry_at(const uint64_t *table, uint64_t bits)
{
    return table[bits & ((1U << TABLE_BITS) - 1)];
}

static inline const uint64_t *table_of(const struct decoder *decoder)
{
    return decoder->tables + (1U << TABLE_BITS);
}

/* ---- one symbol, with every check ------------------------------------------------------------------------
 */

static uint32_t next_symbol(const struct decoder *decoder, uint64_t at)
{
    uint64_t bits = peek(decoder, at), entry = entry_at(table_of(decoder), bits);
    if ((entry >> 8 & 255) > 0)
        return entry >> 16 & 255;
    return entry != 0 ? (uint32_t)(entry >> 16 & 0xffff)
                      : symbol_of(bits, decoder->per_length, decoder->sorted);
}

/* The repetition that begins `bits`, after its own code: how often, and how many bits more; 0 where it is
 * none. */
static inline uint32_t repetition(uint32_t symbol, uint64_t bits, uint32_t *out_bits)
{
    static const uint8_t extra[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                    2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    static const uint16_t least[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                     31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    uint32_t i = symbol - END_OF_BLOCK - 1;
    *out_bits = extra[i] + 1U;
    if ((bits >> extra[i] & 1) != 0) /* a distance that has no code */
        return 0;
    return least[i] + (uint32_t)(bits & ((1U << extra[i]) - 1));
}

enum outcome { GOES_ON, ENDED, BROKEN };

/* Decode one symbol; `begin` and `end` are those of the output. */
static enum outcome step(const struct decoder *decoder, struct cursor *cursor, const uint8_t *begin,
                         const uint8_t *end)
{
    uint32_t symbol = next_symbol(decoder, cursor->at), bits, times;
    cursor->at += decoder->lengths[symbol];
    if (cursor->at > decoder->end)
        return BROKEN;
    if (symbol == END_OF_BLOCK)
        return ENDED;
    if (symbol < LITERALS) {
        if (cursor->out == end)
            return BROKEN;
        *cursor->out++ = (uint8_t)symbol;
        return GOES_ON;
    }
    times = repetition(symbol, peek(decoder, cursor->at), &bits);
    cursor->at += bits;
    if (times == 0 || cursor->at > decoder->end || cursor->out == begin ||
        (size_t)(end - cursor->out) < times)
        return BROKEN;
    memset(cursor->out, cursor->out[-1], times);
    cursor->out += times;
    return GOES_ON;
}

/* ---- many literals ---------------------------------------------------------------------------------------
 */

/* LOOKUPS lookups from one load. What is no literal stops the cursor where it is. */
KEEL_VECTOR_BODY struct cursor leap(const uint64_t *table, const uint8_t *stream, struct cursor cursor)
{
    uint64_t bits, sum = 0; /* of entries: its low two bytes are bits and literals used so far */
    memcpy(&bits, stream + (cursor.at >> 3), sizeof bits);
    bits >>= cursor.at & 7;
    for (uint32_t i = 0; i < LOOKUPS; i++) {
        uint64_t entry = entry_at(table, bits), literals = entry >> 16;
        memcpy(cursor.out + (sum >> 8 & 255), &literals, sizeof literals);
        sum += entry;
        bits >>= entry & 63;
    }
    return (struct cursor){cursor.at + (sum & 255), cursor.out + (sum >> 8 & 255)};
}

KEEL_VECTOR_BODY void leap_until_body(const struct decoder *decoder, struct cursor *cursor, uint64_t stop,
                                      const uint8_t *end)
{
    const uint64_t *table = table_of(decoder);
    struct cursor here = *cursor;
    uint64_t before = here.at + 1;
    stop = stop < decoder->safe ? stop : decoder->safe;
    while (here.at < stop && here.at != before && end - here.out >= STEP_BYTES) {
        before = here.at;
        here = leap(table, decoder->stream, here);
    }
    *cursor = here;
}

static void leap_until_plain(const struct decoder *decoder, struct cursor *cursor, uint64_t stop,
                             const uint8_t *end)
{
    leap_until_body(decoder, cursor, stop, end);
}

KEEL_VECTOR_AVX2 static void leap_until_avx2(const struct decoder *decoder, struct cursor *cursor,
                                             uint64_t stop, const uint8_t *end)
{
    leap_until_body(decoder, cursor, stop, end);
}

/* Literals up to bit `stop` or a little beyond, to a symbol that is none, or to where care is needed. */
static void leap_until(const struct decoder *decoder, struct cursor *cursor, uint64_t stop,
                       const uint8_t *end)
{
    if (keel_vector_avx2())
        leap_until_avx2(decoder, cursor, stop, end);
    else
        leap_until_plain(decoder, cursor, stop, end);
}

/* The same where repetitions are frequent: one lookup, then what it says. */
static void repeat_until(const struct decoder *decoder, struct cursor *cursor, uint64_t stop,
                         const uint8_t *begin, const uint8_t *end)
{
    const uint64_t *table = table_of(decoder);
    struct cursor here = *cursor;
    stop = stop < decoder->safe ? stop : decoder->safe;
    while (here.at < stop && end - here.out >= REPEAT_MAX + STEP_BYTES) {
        uint64_t bits = peek(decoder, here.at), entry = entry_at(table, bits), literals = entry >> 16;
        uint32_t symbol = literals & 0xffff, length = entry >> 32 & 255, more, times;
        if ((entry >> 8 & 255) > 0) {
            memcpy(here.out, &literals, sizeof literals);
            here.out += entry >> 8 & 255;
            here.at += entry & 255;
            continue;
        }
        if (entry == 0 || symbol == END_OF_BLOCK || here.out == begin)
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
static enum outcome decode_until(const struct decoder *decoder, struct cursor *cursor, uint64_t stop,
                                 const uint8_t *begin, const uint8_t *end)
{
    enum outcome outcome = GOES_ON;
    while (outcome == GOES_ON && cursor->at < stop) {
        if (decoder->repeats)
            repeat_until(decoder, cursor, stop, begin, end);
        else
            leap_until(decoder, cursor, stop, end);
        if (cursor->at < stop)
            outcome = step(decoder, cursor, begin, end);
    }
    return outcome;
}

/* ---- lanes ------------------------------------------------------------------------------------------------
 */

struct lane {
    struct cursor cursor;
    uint64_t from, stop; /* bits */
    uint8_t *begin, *end;
};

static inline bool lane_can_leap(const struct lane *lane)
{
    return lane->cursor.at + (uint64_t)BATCH * LOOKUPS * TABLE_BITS <= lane->stop &&
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
static bool lane_unblock(const struct decoder *decoder, struct lane *lane, bool in_step)
{
    if ((entry_at(table_of(decoder), peek(decoder, lane->cursor.at)) & 0xffff) != 0)
        return true;
    struct cursor before = lane->cursor;
    enum outcome outcome = step(decoder, &lane->cursor, lane->begin, lane->end);
    if (outcome == ENDED && !in_step && lane->cursor.at + 8 <= decoder->end) {
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
static void run_lanes(const struct decoder *decoder, struct lane lanes[LANES])
{
    bool fast = keel_vector_avx2();
    for (;;) {
        for (uint32_t i = 0; i < LANES; i++)
            if (!lane_can_leap(&lanes[i]) || !lane_unblock(decoder, &lanes[i], i == 0))
                return;
        if (fast)
            leap_all_avx2(table_of(decoder), decoder->stream, lanes);
        else
            leap_all_plain(table_of(decoder), decoder->stream, lanes);
    }
}

/* Bring the true decoder, which stands at or behind the lane's beginning, and the lane into step, then take
 * over what the lane has decoded. BROKEN: the stream is. */
static enum outcome merge(const struct decoder *decoder, struct cursor *cursor, const struct lane *lane,
                          const uint8_t *begin, const uint8_t *end)
{
    uint64_t at = lane->from;
    size_t skipped = 0, decoded = (size_t)(lane->cursor.out - lane->begin);
    while (at != cursor->at && skipped < decoded) {
        if (at < cursor->at) {
            at += decoder->lengths[lane->begin[skipped++]];
        } else {
            enum outcome outcome = step(decoder, cursor, begin, end);
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
static enum outcome decode_in_lanes(const struct decoder *decoder, struct cursor *cursor, uint8_t *end,
                                    uint8_t *spare, size_t spare_bytes)
{
    struct lane lanes[LANES];
    uint8_t *begin = cursor->out;
    uint64_t span = (decoder->safe - cursor->at) / LANES, from = cursor->at;
    size_t part = spare_bytes / (LANES - 1);
    for (uint32_t i = 0; i < LANES; i++, from += span) {
        uint8_t *place = i == 0 ? begin : spare + (i - 1) * part;
        lanes[i] = (struct lane){.cursor = {from, place},
                                 .from = from,
                                 .stop = from + span,
                                 .begin = place,
                                 .end = i == 0 ? end : place + part};
    }
    run_lanes(decoder, lanes);
    for (uint32_t i = 1; i < LANES; i++)
        leap_until(decoder, &lanes[i].cursor, lanes[i].stop, lanes[i].end);
    *cursor = lanes[0].cursor;
    enum outcome outcome = GOES_ON;
    for (uint32_t i = 1; i < LANES && outcome == GOES_ON; i++) {
        outcome = decode_until(decoder, cursor, lanes[i].from, begin, end);
        if (outcome == GOES_ON)
            outcome = merge(decoder, cursor, &lanes[i], begin, end);
    }
    return outcome;
}

bool keel_deflate_decode(const uint8_t *stream, size_t stream_bytes, uint8_t *out, size_t bytes,
                         uint8_t *spare, size_t spare_bytes)
{
    struct decoder decoder;
    decoder.stream = stream;
    decoder.stream_bytes = stream_bytes;
    decoder.end = (uint64_t)stream_bytes * 8;
    decoder.safe = stream_bytes < sizeof(uint64_t) ? 0 : (uint64_t)(stream_bytes - sizeof(uint64_t)) * 8;
    struct cursor cursor = {.out = out};
    if (stream_bytes == 0 || !read_header(&decoder, &cursor.at))
        return false;
    build_tables(&decoder);
    enum outcome outcome = GOES_ON;
    if (!decoder.repeats && stream_bytes >= LANES * LANE_BYTES_MIN && spare_bytes >= LANES * LANE_BYTES_MIN &&
        decoder.safe > cursor.at)
        outcome = decode_in_lanes(&decoder, &cursor, out + bytes, spare, spare_bytes);
    if (outcome == GOES_ON)
        outcome = decode_until(&decoder, &cursor, UINT64_MAX, out, out + bytes);
    return outcome == ENDED && cursor.out == out + bytes && (cursor.at + 7) / 8 == stream_bytes;
}
