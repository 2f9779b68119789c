/* deflate_fuzz.c - our DEFLATE decoder beside zlib's: what ours takes, zlib decodes to the same bytes, and
 * ours stays within its memory whatever it is given. And what our encoder makes of data, both decode to it.
 *
 *   0   size of the output, u16
 *   2   bit 0: what follows is data for the encoder, else a stream. Of data, bits 1 to 4 say which of the low
 *       bits of each byte are kept, and the highest 3 how often it is doubled
 *   3   spare bytes / 64, u16
 *   5   the stream or the data
 *
 * Short by design, for many runs a second: enough for streams that are decoded in lanes and for repetitions;
 * memory is taken once, and what a run may use lies at the end of it, the rest poisoned. */
#include "deflate_decode.h"
#include "deflate_encode.h"
#include "fuzz.h"
#include <keel/memory.h>
#include <sanitizer/asan_interface.h>
#include <zlib.h>

enum { DATA_MAX = 12 << 10, BLOCK_BYTES = 1 << 16 };
enum place { DATA, STREAM, OURS, THEIRS, SPARE, PLACES };

/* The last `bytes` of a block, beyond and before which an access is seen. */
static uint8_t *take(enum place place, size_t bytes)
{
    static uint8_t *blocks[PLACES];
    KEEL_ASSERT(bytes <= BLOCK_BYTES);
    if (blocks[place] == NULL)
        KEEL_ASSERT(keel_alloc(1, BLOCK_BYTES, &blocks[place]) == KEEL_OK);
    ASAN_UNPOISON_MEMORY_REGION(blocks[place], BLOCK_BYTES);
    ASAN_POISON_MEMORY_REGION(blocks[place], BLOCK_BYTES - bytes);
    return blocks[place] + BLOCK_BYTES - bytes;
}

static bool stock(const uint8_t *stream, size_t stream_bytes, uint8_t *out, size_t bytes)
{
    static z_stream z;
    if (z.state == NULL)
        KEEL_ASSERT(inflateInit2(&z, -15) == Z_OK);
    KEEL_ASSERT(inflateReset(&z) == Z_OK);
    z.next_in = (z_const Bytef *)stream;
    z.avail_in = (uInt)stream_bytes;
    z.next_out = out;
    z.avail_out = (uInt)bytes;
    return inflate(&z, Z_FINISH) == Z_STREAM_END && z.avail_in == 0 && z.avail_out == 0;
}

/* With spare memory and without, ours takes the same streams. */
static bool decode(const uint8_t *stream, size_t stream_bytes, size_t bytes, size_t spare_bytes)
{
    uint8_t *ours = take(OURS, bytes), *theirs = take(THEIRS, bytes), *spare = take(SPARE, spare_bytes);
    bool taken = keel_deflate_decode(stream, stream_bytes, ours, bytes, spare, spare_bytes);
    if (taken) {
        KEEL_ASSERT(stock(stream, stream_bytes, theirs, bytes));
        KEEL_ASSERT(memcmp(ours, theirs, bytes) == 0);
        KEEL_ASSERT(keel_deflate_decode(stream, stream_bytes, theirs, bytes, NULL, 0));
        KEEL_ASSERT(memcmp(ours, theirs, bytes) == 0);
    }
    return taken;
}

/* Then one bit is made wrong. */
static void encode(const uint8_t *data, size_t bytes, uint8_t flip, size_t spare_bytes)
{
    uint32_t histogram[256];
    size_t limit = bytes + 1024;
    uint8_t *out = take(STREAM, limit + KEEL_DEFLATE_SLACK_BYTES);
    keel_byte_histogram(data, bytes, histogram);
    size_t size = keel_deflate_encode(data, bytes, histogram, out, limit);
    KEEL_ASSERT(size > 0);
    memmove(out + limit + KEEL_DEFLATE_SLACK_BYTES - size, out, size);
    out = take(STREAM, size);
    KEEL_ASSERT(decode(out, size, bytes, spare_bytes));
    KEEL_ASSERT(memcmp(take(OURS, bytes), data, bytes) == 0);
    out[(data[0] * size) >> 8] ^= (uint8_t)(1 << (flip & 7));
    (void)decode(out, size, bytes, spare_bytes);
}

/* `bytes` of data, kept bits of each, doubled `times` or until there are enough. */
static size_t make_data(const uint8_t *from, size_t bytes, uint32_t kept_bits, uint32_t times)
{
    bytes = bytes < DATA_MAX ? bytes : DATA_MAX;
    while (times > 0 && bytes << times > DATA_MAX)
        times--;
    uint8_t *data = take(DATA, bytes << times), mask = (uint8_t)((2U << kept_bits) - 1);
    for (size_t i = 0; i < bytes; i++)
        data[i] = from[i] & mask;
    for (size_t have = bytes; have < bytes << times; have *= 2)
        memcpy(data + have, data, have);
    return bytes << times;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input in = {.data = data, .bytes = bytes};
    size_t size = fuzz_take_u16(&in);
    uint8_t choice = fuzz_take_u8(&in);
    size_t spare = (size_t)fuzz_take_u16(&in) * 64 % BLOCK_BYTES, rest_bytes = bytes - in.at;
    if (rest_bytes == 0 || rest_bytes > BLOCK_BYTES)
        return 0;
    if ((choice & 1) == 0) {
        uint8_t *stream = take(STREAM, rest_bytes);
        memcpy(stream, data + in.at, rest_bytes);
        (void)decode(stream, rest_bytes, size, spare);
        return 0;
    }
    size_t many = make_data(data + in.at, rest_bytes, choice >> 1 & 15, choice >> 5);
    encode(take(DATA, many), many, (uint8_t)size, spare);
    return 0;
}
