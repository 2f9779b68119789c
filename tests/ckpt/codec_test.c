/* codec_test.c - chunks come back as they were, whatever is in them; and stock inflate reads our DEFLATE. */
#include "codec.h"
#include "deflate_encode.h"
#include "sample.h"
#include <math.h>
#include <zlib.h>

enum { CHUNK = KEEL_FORMAT_CHUNK_BYTES, ROOM = CHUNK + KEEL_CODEC_SLACK_BYTES };

struct buffers {
    uint8_t *raw, *stored, *scratch, *back;
};

static struct buffers make_buffers(void)
{
    struct buffers b;
    ck_ok(keel_alloc(ROOM, 1, &b.raw));
    ck_ok(keel_alloc(ROOM, 1, &b.stored));
    ck_ok(keel_alloc(ROOM, 1, &b.scratch));
    ck_ok(keel_alloc(ROOM, 1, &b.back));
    return b;
}

static void free_buffers(struct buffers *b)
{
    keel_free(b->raw);
    keel_free(b->stored);
    keel_free(b->scratch);
    keel_free(b->back);
}

enum kind { RANDOM, TRAINED, CONSTANT, ZERO, DENORMAL, NAN_BITS, TWO_VALUES, SKEWED, KIND_COUNT };

static void fill(enum kind kind, uint8_t *out, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t x = mix(seed + i), word = x;
        float pair[2];
        switch (kind) {
        case TRAINED: /* sum of uniforms: bell-shaped around zero, as weights are */
            for (int k = 0; k < 2; k++) {
                float sum = -2.0F;
                for (int j = 0; j < 4; j++)
                    sum += (float)(mix(x + (uint64_t)(4 * k + j)) >> 40) * 0x1p-24F;
                pair[k] = sum * 0.02F;
            }
            memcpy(&word, pair, sizeof word);
            break;
        case CONSTANT:
            word = UINT64_C(0x3f8ccccd3f8ccccd);
            break;
        case ZERO:
            word = 0;
            break;
        case DENORMAL:
            word = x & UINT64_C(0x0000ffff0000ffff);
            break;
        case NAN_BITS:
            word = x | UINT64_C(0x7fc000007fc00000);
            break;
        case TWO_VALUES:
            word = x & 1 ? UINT64_C(0x0101010101010101) : 0;
            break;
        case SKEWED: /* Fibonacci-like frequencies: the longest codes */
            word = 0;
            for (int k = 0; k < 8; k++)
                word |= (uint64_t)__builtin_ctzll(mix(x + (uint64_t)k) | UINT64_C(1) << 40) << (8 * k);
            break;
        default:
            break;
        }
        memcpy(out + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

static void round_trip(struct buffers *b, uint32_t element_bytes, uint32_t bytes)
{
    enum keel_codec codec;
    uint32_t stored = keel_codec_encode(KEEL_CODEC_PLANES, element_bytes, b->raw, NULL, bytes, b->stored,
                                        b->scratch, &codec);
    ck_assert_uint_le(stored, bytes);
    ck_assert(codec == KEEL_CODEC_RAW ? stored == bytes : stored < bytes);
    memset(b->back, 0xa5, ROOM);
    ck_ok(keel_codec_decode(codec, element_bytes, b->stored, stored, NULL, b->back, bytes, b->scratch));
    ck_assert_mem_eq(b->back, b->raw, bytes);
    ck_assert_uint_eq(b->back[bytes], 0xa5);
}

START_TEST(every_kind_of_data_comes_back_bit_for_bit)
{
    static const uint32_t counts[] = {1, 2, 3, 7, 255, 256, 257, 1000, 4097, 65537, 131072};
    struct buffers b = make_buffers();
    for (int kind = 0; kind < KIND_COUNT; kind++)
        for (uint32_t size = 1; size <= 8; size *= 2) {
            for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
                fill((enum kind)kind, b.raw, counts[i] * size, i);
                round_trip(&b, size, counts[i] * size);
            }
            fill((enum kind)kind, b.raw, CHUNK, 99);
            round_trip(&b, size, CHUNK);
        }
    free_buffers(&b);
}
END_TEST

START_TEST(trained_weights_get_smaller_and_random_bytes_never_larger)
{
    struct buffers b = make_buffers();
    enum keel_codec codec;
    fill(TRAINED, b.raw, CHUNK, 1);
    uint32_t stored =
        keel_codec_encode(KEEL_CODEC_PLANES, 4, b.raw, NULL, CHUNK, b.stored, b.scratch, &codec);
    ck_assert_uint_eq(codec, KEEL_CODEC_PLANES);
    ck_assert_uint_lt(stored, CHUNK / 100 * 87);
    fill(RANDOM, b.raw, CHUNK, 1);
    stored = keel_codec_encode(KEEL_CODEC_PLANES, 4, b.raw, NULL, CHUNK, b.stored, b.scratch, &codec);
    ck_assert_uint_eq(codec, KEEL_CODEC_RAW);
    ck_assert_uint_eq(stored, CHUNK);
    fill(ZERO, b.raw, CHUNK, 1);
    stored = keel_codec_encode(KEEL_CODEC_PLANES, 4, b.raw, NULL, CHUNK, b.stored, b.scratch, &codec);
    ck_assert_uint_eq(stored, 4 * 8 + 4);
    free_buffers(&b);
}
END_TEST

static void inflate_reads(const uint8_t *stream, size_t stream_bytes, const uint8_t *wanted, size_t bytes)
{
    uint8_t *back;
    ck_ok(keel_alloc(bytes + 1, 1, &back));
    z_stream z = {0};
    ck_assert_int_eq(inflateInit2(&z, -15), Z_OK);
    z.next_in = (z_const Bytef *)stream;
    z.avail_in = (uInt)stream_bytes;
    z.next_out = back;
    z.avail_out = (uInt)bytes + 1;
    ck_assert_int_eq(inflate(&z, Z_FINISH), Z_STREAM_END);
    ck_assert_uint_eq(z.avail_in, 0);
    ck_assert_uint_eq(z.total_out, bytes);
    ck_assert_mem_eq(back, wanted, bytes);
    inflateEnd(&z);
    keel_free(back);
}

/* `symbols` different bytes with frequencies that fall by `ratio` in 256. */
static size_t skewed_bytes(uint8_t *out, size_t bytes, uint32_t symbols, uint32_t ratio, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++) {
        uint64_t x = mix(seed + i);
        uint32_t symbol = 0;
        for (; symbol + 1 < symbols && (x & 255) < ratio; symbol++)
            x = mix(x);
        out[i] = (uint8_t)(symbol * 37 + 11);
    }
    return bytes;
}

START_TEST(stock_inflate_reads_every_stream)
{
    static const uint32_t symbols[] = {1, 2, 3, 16, 40, 256}, ratios[] = {64, 128, 200, 250};
    struct buffers b = make_buffers();
    uint32_t histogram[256];
    for (size_t s = 0; s < 6; s++)
        for (size_t r = 0; r < 4; r++)
            for (size_t bytes = 1; bytes <= 70000; bytes = bytes * 3 + 1) {
                skewed_bytes(b.raw, bytes, symbols[s], ratios[r], s * 10 + r);
                keel_byte_histogram(b.raw, bytes, histogram);
                size_t size = keel_deflate_encode(b.raw, bytes, histogram, b.stored, CHUNK);
                ck_assert_uint_gt(size, 0);
                inflate_reads(b.stored, size, b.raw, bytes);
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
    for (uint32_t symbol = 0; bytes + one <= CHUNK; symbol++) {
        memset(b.raw + bytes, (int)symbol, one);
        bytes += one;
        uint32_t next = one + two;
        one = two;
        two = next;
    }
    keel_byte_histogram(b.raw, bytes, histogram);
    size_t size = keel_deflate_encode(b.raw, bytes, histogram, b.stored, CHUNK);
    ck_assert_uint_gt(size, 0);
    inflate_reads(b.stored, size, b.raw, bytes);
    ck_assert_uint_eq(keel_deflate_encode(b.raw, bytes, histogram, b.stored, size - 1), 0);
    ck_assert_uint_eq(keel_deflate_encode(b.raw, bytes, histogram, b.stored, size), size);
    free_buffers(&b);
}
END_TEST

/* The decoder's answer to any damage is a status or other bytes, within its buffers (asan). */
START_TEST(damaged_chunks_are_decoded_within_bounds)
{
    enum { BYTES = 16384 };
    struct buffers b = make_buffers();
    uint64_t state = 5;
    uint32_t refused = 0;
    for (uint32_t element = 1; element <= 8; element *= 2) {
        enum keel_codec codec;
        fill(element == 1 ? SKEWED : TRAINED, b.raw, BYTES, element);
        uint32_t stored =
            keel_codec_encode(KEEL_CODEC_PLANES, element, b.raw, NULL, BYTES, b.stored, b.scratch, &codec);
        ck_assert_uint_eq(codec, KEEL_CODEC_PLANES);
        uint8_t *copy;
        ck_ok(keel_alloc(stored, 1, &copy));
        for (int i = 0; i < 500; i++) {
            memcpy(copy, b.stored, stored);
            uint64_t span = i % 2 == 0 ? stored : 8 * element;
            copy[draw(&state, span)] ^= (uint8_t)(1 << draw(&state, 8));
            uint32_t length = i % 5 == 0 ? (uint32_t)draw(&state, stored + 1) : stored;
            enum keel_status status =
                keel_codec_decode(KEEL_CODEC_PLANES, element, copy, length, NULL, b.back, BYTES, b.scratch);
            ck_assert(status == KEEL_OK || status == KEEL_CORRUPT);
            refused += status == KEEL_CORRUPT;
        }
        keel_free(copy);
    }
    ck_assert_uint_gt(refused, 500);
    free_buffers(&b);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, every_kind_of_data_comes_back_bit_for_bit);
    tcase_add_test(tc, trained_weights_get_smaller_and_random_bytes_never_larger);
    tcase_add_test(tc, stock_inflate_reads_every_stream);
    tcase_add_test(tc, codes_that_would_be_too_long_are_shortened);
    tcase_add_test(tc, damaged_chunks_are_decoded_within_bounds);
}

KEEL_TEST_MAIN("codec", cases, 120)
