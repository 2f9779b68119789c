/* deflate_fuzz.c - our DEFLATE decoder beside zlib's: what ours takes, zlib decodes to the same bytes, and
 * ours stays within its memory whatever it is given. And what our encoder makes of the same input, both
 * decode to it.
 *
 *   0   size of the output, u16, and its highest bit in the next byte
 *   2   the mask: bits of each byte that the encoder sees; its highest 3 bits say how often the data is
 * doubled 3   spare bytes / 64, u16 5   the stream, and, masked and doubled, the encoder's data */
#include "deflate_decode.h"
#include "deflate_encode.h"
#include "fuzz.h"
#include <keel/memory.h>
#include <zlib.h>

static uint8_t *take(size_t bytes)
{
    uint8_t *memory;
    KEEL_ASSERT(keel_alloc(1, bytes > 0 ? bytes : 1, &memory) == KEEL_OK);
    return memory;
}

static bool stock(const uint8_t *stream, size_t stream_bytes, uint8_t *out, size_t bytes)
{
    z_stream z = {0};
    KEEL_ASSERT(inflateInit2(&z, -15) == Z_OK);
    z.next_in = (z_const Bytef *)stream;
    z.avail_in = (uInt)stream_bytes;
    z.next_out = out;
    z.avail_out = (uInt)bytes;
    int result = inflate(&z, Z_FINISH);
    bool whole = result == Z_STREAM_END && z.avail_in == 0 && z.avail_out == 0;
    inflateEnd(&z);
    return whole;
}

static void decode(const uint8_t *stream, size_t stream_bytes, size_t bytes, size_t spare_bytes, bool must)
{
    uint8_t *ours = take(bytes), *theirs = take(bytes), *spare = take(spare_bytes);
    uint8_t *exact = take(stream_bytes); /* a read beyond it is seen */
    memcpy(exact, stream, stream_bytes);
    bool taken = keel_deflate_decode(exact, stream_bytes, ours, bytes, spare, spare_bytes);
    KEEL_ASSERT(taken || !must);
    if (taken) {
        KEEL_ASSERT(stock(stream, stream_bytes, theirs, bytes));
        KEEL_ASSERT(memcmp(ours, theirs, bytes) == 0);
    }
    keel_free(ours);
    keel_free(theirs);
    keel_free(spare);
    keel_free(exact);
}

static void encode(const uint8_t *data, size_t bytes, uint8_t mask, size_t spare_bytes)
{
    uint8_t *in = take(bytes), *out = take(bytes + 1024 + KEEL_DEFLATE_SLACK_BYTES), *back = take(bytes);
    uint32_t histogram[256];
    for (size_t i = 0; i < bytes; i++)
        in[i] = data[i] & mask;
    keel_byte_histogram(in, bytes, histogram);
    size_t size = keel_deflate_encode(in, bytes, histogram, out, bytes + 1024);
    KEEL_ASSERT(size > 0);
    decode(out, size, bytes, spare_bytes, true);
    KEEL_ASSERT(keel_deflate_decode(out, size, back, bytes, NULL, 0));
    KEEL_ASSERT(memcmp(back, in, bytes) == 0);
    if (size > 8) { /* one bit is wrong */
        out[(data[0] * size) >> 8] ^= (uint8_t)(1 << (mask & 7));
        decode(out, size, bytes, spare_bytes, false);
    }
    keel_free(in);
    keel_free(out);
    keel_free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input in = {.data = data, .bytes = bytes};
    size_t size = fuzz_take_u16(&in), spare;
    uint8_t mask = fuzz_take_u8(&in);
    size |= (size_t)(mask & 1) << 16;
    spare = (size_t)fuzz_take_u16(&in) * 64;
    const uint8_t *rest = data + in.at;
    size_t rest_bytes = bytes - in.at;
    if (rest_bytes == 0)
        return 0;
    decode(rest, rest_bytes, size, spare, false);
    size_t times = mask >> 5, data_bytes = rest_bytes;
    uint8_t *many = take(rest_bytes << times);
    memcpy(many, rest, rest_bytes);
    for (; times > 0 && data_bytes * 2 <= KEEL_DEFLATE_INPUT_MAX; times--, data_bytes *= 2)
        memcpy(many + data_bytes, many, data_bytes);
    encode(many, data_bytes < KEEL_DEFLATE_INPUT_MAX ? data_bytes : KEEL_DEFLATE_INPUT_MAX, mask | 3, spare);
    keel_free(many);
    return 0;
}
