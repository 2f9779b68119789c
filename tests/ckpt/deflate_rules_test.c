/* deflate_rules_test.c - every rule by which zlib refuses a block of dynamic codes, ours refuses by as well:
 * blocks written bit by bit, each breaking one rule or being odd in one way. */
#include "deflate_decode.h"
#include "deflate_encode.h"
#include "sample.h"
#include <zlib.h>

enum { END = 256, LENGTH_3 = 257, STREAM_BYTES = 400, LENGTHS = 320 };

struct bits {
    uint8_t bytes[STREAM_BYTES];
    size_t count;
};

static void put(struct bits *bits, uint32_t value, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++, bits->count++)
        bits->bytes[bits->count / 8] |= (uint8_t)((value >> i & 1) << (bits->count % 8));
}

static void put_code(struct bits *bits, uint32_t code, uint32_t count)
{
    while (count-- > 0)
        put(bits, code >> count, 1);
}

/* What is sent. Codes are a = 0, end = 10, repeat 3 times = 11, and 0 for the distance 1. */
struct block {
    uint32_t type, literals, distances;
    uint8_t lengths[LENGTHS]; /* of literals from 0, of distances from 288 */
    const char *body;         /* a: the byte; r: a repetition; R: one of no distance; e: end of block */
};

static struct block plain_block(void)
{
    struct block block = {.type = 5, .literals = 258, .distances = 1, .body = "are"};
    block.lengths['a'] = 1;
    block.lengths[END] = block.lengths[LENGTH_3] = 2;
    block.lengths[288] = 1;
    return block;
}

static void put_body(struct bits *bits, const char *body)
{
    for (; *body != '\0'; body++)
        if (*body == 'a')
            put_code(bits, 0, 1);
        else if (*body == 'e')
            put_code(bits, 2, 2);
        else
            put_code(bits, *body == 'R' ? 7 : 6, 3);
}

/* The lengths 0 to 15 are sent as codes of four bits. */
static struct bits write_block(const struct block *block)
{
    static const uint8_t order[] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    struct bits bits = {.count = 0};
    put(&bits, block->type, 3);
    put(&bits, block->literals - 257, 5);
    put(&bits, block->distances - 1, 5);
    put(&bits, 15, 4);
    for (size_t i = 0; i < sizeof order; i++)
        put(&bits, order[i] < 16 ? 4 : 0, 3);
    for (uint32_t i = 0; i < block->literals; i++)
        put_code(&bits, block->lengths[i], 4);
    for (uint32_t i = 0; i < block->distances; i++)
        put_code(&bits, block->lengths[288 + i], 4);
    put_body(&bits, block->body);
    return bits;
}

static bool stock(const uint8_t *stream, size_t stream_bytes, uint8_t *out, size_t bytes)
{
    z_stream z = {.next_in = (z_const Bytef *)stream, .avail_in = (uInt)stream_bytes};
    ck_assert_int_eq(inflateInit2(&z, -15), Z_OK);
    z.next_out = out;
    z.avail_out = (uInt)bytes;
    int result = inflate(&z, Z_FINISH);
    bool whole = result == Z_STREAM_END && z.avail_in == 0 && z.avail_out == 0;
    inflateEnd(&z);
    return whole;
}

enum verdict { BOTH_TAKE, ONLY_STOCK_TAKES, BOTH_REFUSE };

/* As `bytes` of output; one fewer or more both always refuse. */
static void judge(const struct bits *bits, size_t bytes, enum verdict verdict, const char *what)
{
    uint8_t ours[64], theirs[64];
    size_t size = (bits->count + 7) / 8;
    ck_assert_msg(stock(bits->bytes, size, theirs, bytes) == (verdict != BOTH_REFUSE), "zlib: %s", what);
    ck_assert_msg(keel_deflate_decode(bits->bytes, size, ours, bytes, NULL, 0) == (verdict == BOTH_TAKE),
                  "ours: %s", what);
    if (verdict == BOTH_TAKE)
        ck_assert_mem_eq(ours, theirs, bytes);
    for (size_t other = bytes == 0 ? 1 : bytes - 1; other <= bytes + 1; other += 2) {
        ck_assert_msg(!stock(bits->bytes, size, theirs, other), "zlib, %zu bytes: %s", other, what);
        ck_assert_msg(!keel_deflate_decode(bits->bytes, size, ours, other, NULL, 0), "ours, %zu bytes: %s",
                      other, what);
    }
}

static const struct oddity {
    const char *what;
    enum verdict verdict;
    size_t bytes;
    uint32_t type, literals, distances; /* 0: as the plain block's */
    struct {
        uint16_t symbol; /* a distance from 288 */
        uint8_t length;
        bool set;
    } change[4];
    const char *body;
} oddities[] = {
    {.what = "a repetition of the last byte", .verdict = BOTH_TAKE, .bytes = 4},
    {.what = "all counts as high as they may be",
     .verdict = BOTH_TAKE,
     .bytes = 4,
     .literals = 286,
     .distances = 30},
    {.what = "287 literals and lengths", .verdict = BOTH_REFUSE, .bytes = 4, .literals = 287},
    {.what = "288 literals and lengths", .verdict = BOTH_REFUSE, .bytes = 4, .literals = 288},
    {.what = "31 distances", .verdict = BOTH_REFUSE, .bytes = 4, .distances = 31},
    {.what = "32 distances", .verdict = BOTH_REFUSE, .bytes = 4, .distances = 32},
    {.what = "too many literal codes", .verdict = BOTH_REFUSE, .bytes = 4, .change = {{'b', 1, true}}},
    {.what = "too many by one of fifteen bits",
     .verdict = BOTH_REFUSE,
     .bytes = 4,
     .change = {{'b', 15, true}}},
    {.what = "too few literal codes", .verdict = BOTH_REFUSE, .bytes = 4, .change = {{'a', 2, true}}},
    {.what = "no end of block",
     .verdict = BOTH_REFUSE,
     .bytes = 4,
     .change = {{END, 0, true}, {'b', 2, true}}},
    {.what = "an end of block alone, of one bit",
     .verdict = ONLY_STOCK_TAKES,
     .bytes = 0,
     .change = {{END, 1, true}, {'a', 0, true}, {LENGTH_3, 0, true}},
     .body = "a"},
    {.what = "an end of block alone, of two bits",
     .verdict = BOTH_REFUSE,
     .bytes = 0,
     .change = {{'a', 0, true}, {LENGTH_3, 0, true}},
     .body = "aa"},
    {.what = "too many distance codes",
     .verdict = BOTH_REFUSE,
     .bytes = 4,
     .distances = 3,
     .change = {{289, 1, true}, {290, 1, true}}},
    {.what = "one distance code, of two bits",
     .verdict = BOTH_REFUSE,
     .bytes = 1,
     .change = {{288, 2, true}},
     .body = "ae"},
    {.what = "two distance codes",
     .verdict = ONLY_STOCK_TAKES,
     .bytes = 4,
     .distances = 2,
     .change = {{289, 1, true}}},
    {.what = "another distance",
     .verdict = ONLY_STOCK_TAKES,
     .bytes = 5,
     .distances = 2,
     .change = {{288, 0, true}, {289, 1, true}},
     .body = "aare"},
    {.what = "a repetition without a distance code",
     .verdict = BOTH_REFUSE,
     .bytes = 4,
     .change = {{288, 0, true}}},
    {.what = "a code of a repetition, unused, without a distance code",
     .verdict = ONLY_STOCK_TAKES,
     .bytes = 1,
     .change = {{288, 0, true}},
     .body = "ae"},
    {.what = "a repetition of a distance that has no code",
     .verdict = BOTH_REFUSE,
     .bytes = 4,
     .body = "aRe"},
    {.what = "a repetition before the first byte", .verdict = BOTH_REFUSE, .bytes = 3, .body = "re"},
    {.what = "no end", .verdict = BOTH_REFUSE, .bytes = 4, .body = "ar"},
    {.what = "a block that is not the last", .verdict = BOTH_REFUSE, .bytes = 4, .type = 4},
    {.what = "a block of type 3", .verdict = BOTH_REFUSE, .bytes = 4, .type = 7},
};

START_TEST(a_block_that_breaks_a_rule_is_refused_as_zlib_does)
{
    const struct oddity *oddity = &oddities[_i];
    struct block block = plain_block();
    block.type = oddity->type > 0 ? oddity->type : block.type;
    block.literals = oddity->literals > 0 ? oddity->literals : block.literals;
    block.distances = oddity->distances > 0 ? oddity->distances : block.distances;
    block.body = oddity->body != NULL ? oddity->body : block.body;
    for (size_t i = 0; i < 4 && oddity->change[i].set; i++)
        block.lengths[oddity->change[i].symbol] = oddity->change[i].length;
    struct bits bits = write_block(&block);
    judge(&bits, oddity->bytes, oddity->verdict, oddity->what);
}
END_TEST

/* How the lengths are sent: nineteen lengths of three bits in the order of the RFC, then codes. The lengths
 * are those of the plain block: 97 zeros, 1, 158 zeros, 2, 2, 1. */
static const struct sending {
    const char *what;
    enum verdict verdict;
    uint8_t lengths[19]; /* 16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15 */
    struct {
        uint8_t code, bits, extra, extra_bits;
    } codes[8];
} sendings[] = {
    /* codes of 1, 2, 18: 10, 11, 0 */
    {"runs of zeros",
     BOTH_TAKE,
     {[2] = 1, [15] = 2, [17] = 2},
     {{0, 1, 86, 7}, {2, 2, 0, 0}, {0, 1, 127, 7}, {0, 1, 9, 7}, {3, 2, 0, 0}, {3, 2, 0, 0}, {2, 2, 0, 0}}},
    {"a run of zeros beyond the last",
     BOTH_REFUSE,
     {[2] = 1, [15] = 2, [17] = 2},
     {{0, 1, 86, 7}, {2, 2, 0, 0}, {0, 1, 127, 7}, {0, 1, 9, 7}, {3, 2, 0, 0}, {3, 2, 0, 0}, {0, 1, 0, 7}}},
    /* codes of 1, 2, 16, 18: 110, 10, 111, 0 */
    {"a repetition beyond the last",
     BOTH_REFUSE,
     {[0] = 3, [2] = 1, [15] = 2, [17] = 3},
     {{0, 1, 86, 7}, {6, 3, 0, 0}, {0, 1, 127, 7}, {0, 1, 9, 7}, {2, 2, 0, 0}, {7, 3, 0, 2}}},
    {"a repetition before the first",
     BOTH_REFUSE,
     {[0] = 3, [2] = 1, [15] = 2, [17] = 3},
     {{7, 3, 0, 2},
      {0, 1, 83, 7},
      {6, 3, 0, 0},
      {0, 1, 127, 7},
      {0, 1, 9, 7},
      {2, 2, 0, 0},
      {2, 2, 0, 0},
      {6, 3, 0, 0}}},
    {"too many codes for the lengths",
     BOTH_REFUSE,
     {[2] = 1, [14] = 1, [15] = 2, [17] = 2},
     {{0, 1, 86, 7}, {2, 2, 0, 0}, {0, 1, 127, 7}, {0, 1, 9, 7}, {3, 2, 0, 0}, {3, 2, 0, 0}, {2, 2, 0, 0}}},
    {"too few codes for the lengths",
     BOTH_REFUSE,
     {[2] = 1, [15] = 2, [17] = 3},
     {{0, 1, 86, 7}, {6, 3, 0, 0}, {0, 1, 127, 7}, {0, 1, 9, 7}, {2, 2, 0, 0}, {2, 2, 0, 0}, {6, 3, 0, 0}}},
    {"one code for all lengths", BOTH_REFUSE, {[2] = 1}, {{0, 1, 127, 7}, {0, 1, 110, 7}}},
    {"no code for the lengths", BOTH_REFUSE, {0}, {{0, 1, 127, 7}}},
};

START_TEST(lengths_that_are_sent_against_the_rules_are_refused_as_zlib_does)
{
    const struct sending *sending = &sendings[_i];
    struct bits bits = {.count = 0};
    put(&bits, 5, 3);
    put(&bits, 1, 5);
    put(&bits, 0, 5);
    put(&bits, 15, 4);
    for (size_t i = 0; i < 19; i++)
        put(&bits, sending->lengths[i], 3);
    for (size_t i = 0; i < 8; i++) {
        put_code(&bits, sending->codes[i].code, sending->codes[i].bits);
        put(&bits, sending->codes[i].extra, sending->codes[i].extra_bits);
    }
    put_body(&bits, "are");
    judge(&bits, 4, sending->verdict, sending->what);
}
END_TEST

/* The same lengths, of which the last of the literals and the first of the distances are one repetition. */
START_TEST(a_repetition_of_lengths_goes_on_from_literals_to_distances)
{
    struct bits bits = {.count = 0};
    static const uint8_t lengths[19] = {[0] = 2, [2] = 1, [17] = 2}; /* 1, 16, 18: 10, 11, 0 */
    put(&bits, 5, 3);
    put(&bits, 0, 5);
    put(&bits, 3, 5);
    put(&bits, 15, 4);
    for (size_t i = 0; i < 19; i++)
        put(&bits, lengths[i], 3);
    put_code(&bits, 0, 1); /* 97 zeros, a, 138 + 20 zeros, end, 3 times more for distances, 1 more */
    put(&bits, 86, 7);
    put_code(&bits, 2, 2);
    put_code(&bits, 0, 1);
    put(&bits, 127, 7);
    put_code(&bits, 0, 1);
    put(&bits, 9, 7);
    put_code(&bits, 2, 2);
    put_code(&bits, 3, 2);
    put(&bits, 0, 2);
    put_code(&bits, 2, 2);
    put_code(&bits, 0, 1);
    put_code(&bits, 1, 1);
    judge(&bits, 1, BOTH_REFUSE, "four distances of one bit are too many");
}
END_TEST

START_TEST(a_block_cut_anywhere_or_with_a_byte_behind_it_is_refused)
{
    struct block block = plain_block();
    struct bits bits = write_block(&block);
    uint8_t out[8];
    size_t size = (bits.count + 7) / 8;
    for (size_t bytes = 0; bytes <= size + 1; bytes++) {
        ck_assert_int_eq(keel_deflate_decode(bits.bytes, bytes, out, 4, NULL, 0), bytes == size);
        ck_assert_int_eq(stock(bits.bytes, bytes, out, 4), bytes == size);
    }
    put(&bits, 255, (uint32_t)(size * 8 - bits.count)); /* what is left of the last byte says nothing */
    ck_assert(keel_deflate_decode(bits.bytes, size, out, 4, NULL, 0));
    ck_assert(stock(bits.bytes, size, out, 4));
}
END_TEST

START_TEST(whatever_bits_are_flipped_ours_takes_nothing_that_zlib_refuses)
{
    struct block block = plain_block();
    struct bits bits = write_block(&block);
    uint8_t ours[64], theirs[64];
    size_t size = (bits.count + 7) / 8;
    uint64_t state = 5;
    for (size_t i = 0; i < bits.count + 20000; i++) {
        struct bits other = bits;
        size_t first = i < bits.count ? i : draw(&state, bits.count), second = draw(&state, bits.count);
        other.bytes[first / 8] ^= (uint8_t)(1 << first % 8);
        if (i >= bits.count)
            other.bytes[second / 8] ^= (uint8_t)(1 << second % 8);
        for (size_t bytes = 0; bytes <= 8; bytes++)
            if (keel_deflate_decode(other.bytes, size, ours, bytes, NULL, 0)) {
                ck_assert(stock(other.bytes, size, theirs, bytes));
                ck_assert_mem_eq(ours, theirs, bytes);
            }
    }
}
END_TEST

/* 127 bytes and the end of block, all of seven bits, the last of which is all ones: any byte can be made an
 * end, and what follows still decodes. Once ours went on behind an end in the first quarter of a stream. */
START_TEST(nothing_is_decoded_behind_an_end_of_block)
{
    enum { SYMBOLS = 127, BYTES = SYMBOLS * 70, CODE_BITS = 7 };
    uint8_t *data, *stream, *cut, *out, *spare;
    uint32_t histogram[256];
    ck_ok(keel_alloc(BYTES, 1, &data));
    ck_ok(keel_alloc(BYTES + KEEL_DEFLATE_SLACK_BYTES, 1, &stream));
    ck_ok(keel_alloc(BYTES, 1, &cut));
    ck_ok(keel_alloc(BYTES, 1, &out));
    ck_ok(keel_alloc(BYTES, 1, &spare));
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (uint8_t)((i * 53 + i / SYMBOLS * 17) % SYMBOLS); /* each as often */
    keel_byte_histogram(data, BYTES, histogram);
    size_t size = keel_deflate_encode(data, BYTES, histogram, stream, BYTES);
    size_t end = size * 8;
    while ((stream[(end - 1) / 8] >> (end - 1) % 8 & 1) == 0)
        end--;
    for (size_t at = 0; at < BYTES; at += 13) {
        memcpy(cut, stream, size);
        size_t first = end - (BYTES - at + 1) * CODE_BITS;
        for (size_t bit = first; bit < first + CODE_BITS; bit++)
            cut[bit / 8] |= (uint8_t)(1 << bit % 8);
        ck_assert(!keel_deflate_decode(cut, size, out, BYTES - at - 1, spare, BYTES));
        ck_assert(!keel_deflate_decode(cut, size, out, BYTES, spare, BYTES));
        size_t cut_bytes = (first + CODE_BITS + 7) / 8;
        ck_assert(stock(cut, cut_bytes, out, at));
        memset(out, 0xa5, BYTES);
        ck_assert(keel_deflate_decode(cut, cut_bytes, out, at, spare, BYTES));
        ck_assert_mem_eq(out, data, at);
    }
    keel_free(data);
    keel_free(stream);
    keel_free(cut);
    keel_free(out);
    keel_free(spare);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, a_block_that_breaks_a_rule_is_refused_as_zlib_does, 0,
                        (int)(sizeof oddities / sizeof oddities[0]));
    tcase_add_loop_test(tc, lengths_that_are_sent_against_the_rules_are_refused_as_zlib_does, 0,
                        (int)(sizeof sendings / sizeof sendings[0]));
    tcase_add_test(tc, a_repetition_of_lengths_goes_on_from_literals_to_distances);
    tcase_add_test(tc, a_block_cut_anywhere_or_with_a_byte_behind_it_is_refused);
    tcase_add_test(tc, whatever_bits_are_flipped_ours_takes_nothing_that_zlib_refuses);
    tcase_add_test(tc, nothing_is_decoded_behind_an_end_of_block);
}

KEEL_TEST_MAIN("deflate rules", cases, 120)
