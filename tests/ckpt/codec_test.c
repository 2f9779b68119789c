/* codec_test.c - chunks come back as they were, whatever is in them; and stock inflate reads every stream
 * that is written here. */
#include "codec.h"
#include "sample.h"
#include "split.h"
#include <math.h>
#include <zlib.h>

enum { CHUNK = KEEL_FORMAT_CHUNK_BYTES, ROOM = CHUNK + KEEL_CODEC_SLACK_BYTES };

struct buffers {
    uint8_t *raw, *base, *stored, *scratch, *back;
};

static struct buffers make_buffers(void)
{
    struct buffers b;
    ck_ok(keel_alloc(ROOM, 1, &b.raw));
    ck_ok(keel_alloc(ROOM, 1, &b.base));
    ck_ok(keel_alloc(ROOM, 1, &b.stored));
    ck_ok(keel_alloc(ROOM, 1, &b.scratch));
    ck_ok(keel_alloc(ROOM, 1, &b.back));
    return b;
}

static void free_buffers(struct buffers *b)
{
    keel_free(b->raw);
    keel_free(b->base);
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

/* Any inflate must read a stream; returns nothing, as it does or the test fails. */
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

/* Every plane that was deflated, by stock inflate. */
static uint32_t streams_read;
static void check_planes(struct buffers *b, uint32_t element_bytes, const uint8_t *base, uint32_t bytes,
                         uint32_t stored)
{
    uint8_t *planes[KEEL_PLANES_MAX] = {NULL};
    size_t count = bytes / element_bytes;
    uint32_t at = element_bytes * 8;
    for (uint32_t k = 0; k < element_bytes; k++)
        planes[k] = b->scratch + k * count;
    keel_planes_split(element_bytes, b->raw, base, count, planes);
    for (uint32_t k = 0; k < element_bytes; k++) {
        uint32_t plane_bytes;
        memcpy(&plane_bytes, b->stored + (size_t)k * 8 + 4, sizeof plane_bytes);
        if (b->stored[(size_t)k * 8] == 1) {
            inflate_reads(b->stored + at, plane_bytes, planes[k], count);
            streams_read++;
        }
        at += plane_bytes;
    }
    ck_assert_uint_eq(at, stored);
}

static uint32_t round_trip(struct buffers *b, enum keel_codec wanted, uint32_t element_bytes, uint32_t bytes)
{
    enum keel_codec codec;
    const uint8_t *base = wanted == KEEL_CODEC_DELTA ? b->base : NULL;
    uint32_t stored =
        keel_codec_encode(wanted, element_bytes, b->raw, base, bytes, b->stored, b->scratch, &codec);
    ck_assert_uint_le(stored, bytes);
    ck_assert(codec == KEEL_CODEC_RAW ? stored == bytes : codec == wanted && stored < bytes);
    if (codec != KEEL_CODEC_RAW)
        check_planes(b, element_bytes, base, bytes, stored);
    memset(b->back, 0xa5, ROOM);
    ck_ok(keel_codec_decode(codec, element_bytes, b->stored, stored, base, b->back, bytes, b->scratch));
    ck_assert_mem_eq(b->back, b->raw, bytes);
    ck_assert_uint_eq(b->back[bytes], 0xa5);
    if (wanted == KEEL_CODEC_DELTA) { /* again, where the base lies */
        memcpy(b->back, base, bytes);
        ck_ok(
            keel_codec_decode(codec, element_bytes, b->stored, stored, b->back, b->back, bytes, b->scratch));
        ck_assert_mem_eq(b->back, b->raw, bytes);
        ck_assert_uint_eq(b->back[bytes], 0xa5);
    }
    return stored;
}

static const uint32_t counts[] = {1,    2,    3,    7,    8,     255,   256,   257,   1000,
                                  4095, 4096, 4097, 8191, 32767, 32768, 65537, 131072};

START_TEST(every_kind_of_data_comes_back_bit_for_bit)
{
    struct buffers b = make_buffers();
    streams_read = 0;
    for (uint32_t size = 1; size <= 8; size *= 2) {
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            fill((enum kind)_i, b.raw, counts[i] * size, i);
            round_trip(&b, KEEL_CODEC_PLANES, size, counts[i] * size);
        }
        fill((enum kind)_i, b.raw, CHUNK, 99);
        round_trip(&b, KEEL_CODEC_PLANES, size, CHUNK);
    }
    ck_assert(streams_read > 0 || _i == RANDOM || _i == CONSTANT || _i == ZERO);
    free_buffers(&b);
}
END_TEST

/* Bases that are the same, near (by steps of few bits, up and down, over powers of two), far, and of another
 * kind. */
enum nearness { EQUAL, NEAR, FEW_CHANGED, OTHER, NEARNESS_COUNT };

static void make_base(struct buffers *b, enum nearness nearness, uint32_t element_bytes, uint32_t bytes)
{
    memcpy(b->base, b->raw, bytes);
    if (nearness == OTHER)
        fill(RANDOM, b->base, bytes, 7);
    for (uint32_t i = 0; (nearness == NEAR || nearness == FEW_CHANGED) && i < bytes; i += element_bytes) {
        uint64_t element = 0, x = mix(i);
        memcpy(&element, b->base + i, element_bytes);
        if (nearness == NEAR)
            element += (x & 63) - 32;
        else if (x % 500 == 0)
            element ^= x >> 20;
        memcpy(b->base + i, &element, element_bytes);
    }
}

START_TEST(every_delta_comes_back_bit_for_bit)
{
    struct buffers b = make_buffers();
    for (uint32_t size = 1; size <= 8; size *= 2)
        for (int nearness = 0; nearness < NEARNESS_COUNT; nearness++) {
            for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
                fill((enum kind)_i, b.raw, counts[i] * size, i);
                make_base(&b, (enum nearness)nearness, size, counts[i] * size);
                round_trip(&b, KEEL_CODEC_DELTA, size, counts[i] * size);
            }
            fill((enum kind)_i, b.raw, CHUNK, 98);
            make_base(&b, (enum nearness)nearness, size, CHUNK);
            uint32_t stored = round_trip(&b, KEEL_CODEC_DELTA, size, CHUNK);
            if (nearness == EQUAL)
                ck_assert_uint_eq(stored, size * 9); /* its planes are all zero: one byte each */
            if (nearness == FEW_CHANGED)
                ck_assert_uint_lt(stored, CHUNK / 20);
        }
    free_buffers(&b);
}
END_TEST

/* The extremes of every integer, next to each other and in both roles: differences wrap. */
START_TEST(differences_that_wrap_come_back)
{
    static const uint64_t extremes[] = {0,
                                        1,
                                        UINT64_MAX,
                                        UINT64_C(0x8000000000000000),
                                        UINT64_C(0x7fffffffffffffff),
                                        UINT64_C(0x80808080),
                                        UINT64_C(0x7f7f7f7f7f7f7f7f),
                                        UINT64_C(0x8080808080808080)};
    enum { KINDS = sizeof extremes / sizeof extremes[0], REPEATS = 200 };
    struct buffers b = make_buffers();
    for (uint32_t size = 1; size <= 8; size *= 2) {
        for (uint32_t i = 0; i < KINDS * KINDS * REPEATS; i++) {
            uint64_t x = extremes[i % KINDS] >> (64 - 8 * size),
                     y = extremes[i / KINDS % KINDS] >> (64 - 8 * size);
            memcpy(b.raw + (size_t)i * size, &x, size);
            memcpy(b.base + (size_t)i * size, &y, size);
        }
        round_trip(&b, KEEL_CODEC_DELTA, size, KINDS * KINDS * REPEATS * size);
        round_trip(&b, KEEL_CODEC_PLANES, size, KINDS * KINDS * REPEATS * size);
    }
    free_buffers(&b);
}
END_TEST

START_TEST(a_delta_without_its_base_and_an_unknown_codec_are_refused)
{
    struct buffers b = make_buffers();
    enum keel_codec codec;
    fill(TRAINED, b.raw, CHUNK, 1);
    make_base(&b, NEAR, 4, CHUNK);
    uint32_t stored =
        keel_codec_encode(KEEL_CODEC_DELTA, 4, b.raw, b.base, CHUNK, b.stored, b.scratch, &codec);
    ck_assert_uint_eq(codec, KEEL_CODEC_DELTA);
    ck_status(keel_codec_decode(codec, 4, b.stored, stored, NULL, b.back, CHUNK, b.scratch), KEEL_CORRUPT);
    ck_status(keel_codec_decode(KEEL_CODEC_COUNT, 4, b.stored, stored, b.base, b.back, CHUNK, b.scratch),
              KEEL_VERSION);
    ck_status(keel_codec_decode(KEEL_CODEC_RAW, 4, b.stored, stored, NULL, b.back, CHUNK, b.scratch),
              KEEL_CORRUPT);
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

/* The decoder's answer to any damage is a status or other bytes, within its buffers (asan). */
START_TEST(damaged_chunks_are_decoded_within_bounds)
{
    enum { BYTES = 32768 };
    struct buffers b = make_buffers();
    uint64_t state = 5;
    uint32_t refused = 0;
    for (uint32_t element = 1; element <= 8; element *= 2) {
        enum keel_codec codec;
        enum keel_codec wanted = _i == 0 ? KEEL_CODEC_PLANES : KEEL_CODEC_DELTA;
        fill(element == 1 ? SKEWED : TRAINED, b.raw, BYTES, element);
        make_base(&b, NEAR, element, BYTES);
        uint32_t stored =
            keel_codec_encode(wanted, element, b.raw, b.base, BYTES, b.stored, b.scratch, &codec);
        ck_assert_uint_eq(codec, wanted);
        uint8_t *copy;
        ck_ok(keel_alloc(stored, 1, &copy));
        for (int i = 0; i < 500; i++) {
            memcpy(copy, b.stored, stored);
            uint64_t span = i % 2 == 0 ? stored : 8 * element;
            copy[draw(&state, span)] ^= (uint8_t)(1 << draw(&state, 8));
            uint32_t length = i % 5 == 0 ? (uint32_t)draw(&state, stored + 1) : stored;
            enum keel_status status =
                keel_codec_decode(codec, element, copy, length, b.base, b.back, BYTES, b.scratch);
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
    tcase_add_loop_test(tc, every_kind_of_data_comes_back_bit_for_bit, 0, KIND_COUNT);
    tcase_add_loop_test(tc, every_delta_comes_back_bit_for_bit, 0, KIND_COUNT);
    tcase_add_test(tc, differences_that_wrap_come_back);
    tcase_add_test(tc, a_delta_without_its_base_and_an_unknown_codec_are_refused);
    tcase_add_test(tc, trained_weights_get_smaller_and_random_bytes_never_larger);
    tcase_add_loop_test(tc, damaged_chunks_are_decoded_within_bounds, 0, 2);
}

KEEL_TEST_MAIN("codec", cases, 120)
