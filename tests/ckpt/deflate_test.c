/* deflate_test.c - stock inflate reads what our encoder writes, our decoder reads it as stock inflate does,
 * and what others write is left to inflate. */
#include "codec.h"
#include "deflate_decode.h"
#include "deflate_encode.h"
#include "sample.h"
#include <zlib.h>

enum { DATA = KEEL_DEFLATE_INPUT_MAX, ROOM = DATA + 4096, PLANE = 200000 };

struct buffers {
    uint8_t *data, *stream, *back, *spare;
};

static struct buffers make_buffers(void)
{
    struct buffers b;
    ck_ok(keel_alloc(ROOM, 1, &b.data));
    ck_ok(keel_alloc(ROOM, 1, &b.stream));
    ck_ok(keel_alloc(ROOM, 1, &b.back));
    ck_ok(keel_alloc(ROOM, 1, &b.spare));
    return b;
}

static void free_buffers(struct buffers *b)
{
    keel_free(b->data);
    keel_free(b->stream);
    keel_free(b->back);
    keel_free(b->spare);
}

static bool stock_inflate(const uint8_t *stream, size_t stream_bytes, uint8_t *out, size_t bytes)
{
    z_stream z = {0};
    ck_assert_int_eq(inflateInit2(&z, -15), Z_OK);
    z.next_in = (z_const Bytef *)stream;
    z.avail_in = (uInt)stream_bytes;
    z.next_out = out;
    z.avail_out = (uInt)bytes;
    int result = inflate(&z, Z_FINISH);
    bool whole = result == Z_STREAM_END && z.avail_in == 0 && z.avail_out == 0;
    inflateEnd(&z);
    return whole;
}

/* Encode b->data; stock inflate and our decoder, with and without spare memory, must give it back. */
static size_t both_read_it(struct buffers *b, size_t bytes)
{
    static const size_t spares[] = {0, 3000, 60000, DATA};
    uint32_t histogram[256];
    keel_byte_histogram(b->data, bytes, histogram);
    size_t size = keel_deflate_encode(b->data, bytes, histogram, b->stream, ROOM - KEEL_DEFLATE_SLACK_BYTES);
    ck_assert_uint_gt(size, 0);
    memset(b->back, 0xa5, bytes + 1);
    ck_assert(stock_inflate(b->stream, size, b->back, bytes));
    ck_assert_mem_eq(b->back, b->data, bytes);
    for (size_t i = 0; i < sizeof spares / sizeof spares[0]; i++) {
        memset(b->back, 0xa5, bytes + 1);
        memset(b->spare + spares[i], 0x5a, 1);
        ck_assert(keel_deflate_decode(b->stream, size, b->back, bytes, b->spare, spares[i]));
        ck_assert_mem_eq(b->back, b->data, bytes);
        ck_assert_uint_eq(b->back[bytes], 0xa5);
        ck_assert_uint_eq(b->spare[spares[i]], 0x5a);
    }
    return size;
}

/* `symbols` different bytes with frequencies that fall by `ratio` in 256. */
static void skewed_bytes(uint8_t *out, size_t bytes, uint32_t symbols, uint32_t ratio, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++) {
        uint64_t x = mix(seed + i);
        uint32_t symbol = 0;
        for (; symbol + 1 < symbols && (x & 255) < ratio; symbol++)
            x = mix(x);
        out[i] = (uint8_t)(symbol * 37 + 11);
    }
}

START_TEST(every_stream_is_read_by_stock_inflate_and_by_ours)
{
    static const uint32_t symbols[] = {1, 2, 3, 16, 40, 256}, ratios[] = {16, 64, 128, 200, 250};
    struct buffers b = make_buffers();
    for (size_t r = 0; r < sizeof ratios / sizeof ratios[0]; r++)
        for (size_t bytes = 1; bytes <= PLANE; bytes = bytes * 3 + 1) {
            skewed_bytes(b.data, bytes, symbols[_i], ratios[r], (uint64_t)_i * 10 + r);
            both_read_it(&b, bytes);
        }
    free_buffers(&b);
}
END_TEST

/* Codes of equal length never fall into step from another bit: the lanes find nothing, the result is right.
 */
START_TEST(codes_of_equal_length_are_read_from_every_lane)
{
    struct buffers b = make_buffers();
    for (uint32_t symbols = 2; symbols <= 256; symbols *= 2) {
        for (size_t i = 0; i < PLANE; i++)
            b.data[i] = (uint8_t)(mix(i) % symbols);
        both_read_it(&b, PLANE);
    }
    free_buffers(&b);
}
END_TEST

/* Fibonacci counts make the deepest Huffman trees; these sum to under 1 MiB and would need 27 bits. */
START_TEST(codes_that_would_be_too_long_are_shortened)
{
    struct buffers b = make_buffers();
    uint32_t histogram[256], one = 1, two = 1;
    size_t bytes = 0;
    uint64_t state = 1;
    for (uint32_t symbol = 0; bytes + one <= DATA; symbol++) {
        memset(b.data + bytes, (int)symbol, one);
        bytes += one;
        uint32_t next = one + two;
        one = two;
        two = next;
    }
    both_read_it(&b, bytes);
    for (size_t i = bytes; i-- > 1;) { /* in any order, for the lanes */
        size_t other = draw(&state, i + 1);
        uint8_t byte = b.data[i];
        b.data[i] = b.data[other];
        b.data[other] = byte;
    }
    size_t size = both_read_it(&b, bytes);
    keel_byte_histogram(b.data, bytes, histogram);
    ck_assert_uint_eq(keel_deflate_encode(b.data, bytes, histogram, b.stream, size - 1), 0);
    ck_assert_uint_eq(keel_deflate_encode(b.data, bytes, histogram, b.stream, size), size);
    free_buffers(&b);
}
END_TEST

/* Runs of every length, alone and between others, at the beginning and at the end. */
START_TEST(repetitions_of_every_length_are_read)
{
    enum { EVERY = 600 };
    struct buffers b = make_buffers();
    for (size_t rest = 0; rest < 300; rest += 23) {
        size_t bytes = 0;
        for (size_t length = 0; length < EVERY; length++) {
            memset(b.data + bytes, 7, length);
            bytes += length;
            b.data[bytes++] = (uint8_t)mix(length);
        }
        memset(b.data + bytes, 7, rest);
        size_t size = both_read_it(&b, bytes + rest);
        ck_assert_uint_lt(size, bytes / 16);
    }
    memset(b.data, 0, DATA);
    b.data[DATA - 1] = 1;
    ck_assert_uint_lt(both_read_it(&b, DATA), 2000);
    free_buffers(&b);
}
END_TEST

/* The same bytes give the same stream, on every machine and in every release, so that equal states are equal
 * files. Of exponents (pairs), of many bytes, of one byte nearly everywhere (repetitions). */
START_TEST(streams_are_what_they_always_were)
{
    static const struct {
        uint32_t symbols, ratio;
        uint64_t check;
    } kinds[] = {{20, 128, UINT64_C(3399273893195341890)},
                 {200, 245, UINT64_C(1177074329477088901)},
                 {30, 8, UINT64_C(8731180250390781097)}};
    struct buffers b = make_buffers();
    skewed_bytes(b.data, PLANE, kinds[_i].symbols, kinds[_i].ratio, 77);
    size_t size = both_read_it(&b, PLANE);
    ck_assert_uint_eq(keel_format_check(b.stream, size), kinds[_i].check);
    free_buffers(&b);
}
END_TEST

/* Whatever is cut off or wrong: ours takes nothing that stock inflate refuses, and gives the same bytes. */
START_TEST(damaged_streams_are_never_read_otherwise_than_by_inflate)
{
    enum { FLIPS = 3000, BYTES = 60000 };
    struct buffers b = make_buffers();
    uint8_t *theirs, *stream;
    uint32_t histogram[256], taken = 0;
    uint64_t state = 11;
    skewed_bytes(b.data, BYTES, 40, _i == 0 ? 128 : 12, 3);
    keel_byte_histogram(b.data, BYTES, histogram);
    size_t size = keel_deflate_encode(b.data, BYTES, histogram, b.stream, BYTES);
    ck_ok(keel_alloc(BYTES, 1, &theirs));
    ck_ok(keel_alloc(size, 1, &stream)); /* exactly: asan sees a read behind it */
    for (int i = 0; i < FLIPS; i++) {
        memcpy(stream, b.stream, size);
        uint64_t span = i % 2 == 0 ? size : 80;
        stream[draw(&state, span)] ^= (uint8_t)(1 << draw(&state, 8));
        size_t length = i % 7 == 0 ? draw(&state, size + 1) : size;
        size_t bytes = i % 5 == 0 ? draw(&state, BYTES + 1) : BYTES;
        size_t spare = i % 3 == 0 ? 0 : 16384;
        if (!keel_deflate_decode(stream, length, b.back, bytes, b.spare, spare))
            continue;
        taken++;
        ck_assert(stock_inflate(stream, length, theirs, bytes));
        ck_assert_mem_eq(b.back, theirs, bytes);
    }
    ck_assert_uint_lt(taken, FLIPS);
    keel_free(theirs);
    keel_free(stream);
    free_buffers(&b);
}
END_TEST

/* A chunk of planes of bytes whose only plane another deflate has written: matches, stored blocks, fixed
 * codes. */
START_TEST(streams_of_other_writers_are_decoded_by_inflate)
{
    static const struct {
        int level, strategy;
    } kinds[] = {{9, Z_DEFAULT_STRATEGY}, {1, Z_DEFAULT_STRATEGY},
                 {0, Z_DEFAULT_STRATEGY}, {6, Z_FIXED},
                 {6, Z_HUFFMAN_ONLY},     {6, Z_RLE}};
    enum { BYTES = 150000, TABLE = 8 };
    struct buffers b = make_buffers();
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        skewed_bytes(b.data, BYTES, 30, i % 2 == 0 ? 100 : 5, i);
        z_stream z = {0};
        ck_assert_int_eq(deflateInit2(&z, kinds[i].level, Z_DEFLATED, -15, 9, kinds[i].strategy), Z_OK);
        z.next_in = b.data;
        z.avail_in = BYTES;
        z.next_out = b.stream + TABLE;
        z.avail_out = ROOM - TABLE;
        ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
        uint32_t size = (uint32_t)z.total_out;
        deflateEnd(&z);
        memset(b.stream, 0, TABLE);
        b.stream[0] = 1;
        memcpy(b.stream + 4, &size, sizeof size);
        memset(b.back, 0, BYTES);
        ck_ok(keel_codec_decode(KEEL_CODEC_PLANES, 1, b.stream, TABLE + size, NULL, b.back, BYTES, b.spare));
        ck_assert_mem_eq(b.back, b.data, BYTES);
        b.stream[TABLE + size / 2] ^= 0x55; /* damage is refused, or other bytes: the checksum's business */
        enum keel_status status =
            keel_codec_decode(KEEL_CODEC_PLANES, 1, b.stream, TABLE + size, NULL, b.back, BYTES, b.spare);
        ck_assert(status == KEEL_OK || status == KEEL_CORRUPT);
    }
    free_buffers(&b);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, every_stream_is_read_by_stock_inflate_and_by_ours, 0, 6);
    tcase_add_test(tc, codes_of_equal_length_are_read_from_every_lane);
    tcase_add_test(tc, codes_that_would_be_too_long_are_shortened);
    tcase_add_test(tc, repetitions_of_every_length_are_read);
    tcase_add_loop_test(tc, streams_are_what_they_always_were, 0, 3);
    tcase_add_loop_test(tc, damaged_streams_are_never_read_otherwise_than_by_inflate, 0, 2);
    tcase_add_test(tc, streams_of_other_writers_are_decoded_by_inflate);
}

KEEL_TEST_MAIN("deflate", cases, 120)
