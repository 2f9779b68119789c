/* image_fuzz.c - any bytes as an image file: refused by name, or pixels within the limits, all of them there,
 * of which a square is made. Sums of a PNG's chunks are mended behind each mutation, or none would be read.
 */
#include "fuzz.h"
#include "image_file.h"
#include <keel/memory.h>
#include <zlib.h>

enum { SIZE = 4, SIGNATURE = 8, AROUND = 12 /* bytes of a chunk beside its own: size, kind, sum */ };

static uint32_t big_endian(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t max_bytes, unsigned seed)
{
    bytes = LLVMFuzzerMutate(data, bytes, max_bytes);
    const bool is_png = bytes > SIGNATURE && memcmp(data, "\x89PNG", 4) == 0 && seed % 8 != 0;
    for (size_t at = SIGNATURE; is_png && bytes - at >= AROUND;) {
        const uint32_t count = big_endian(data + at);
        if (count > bytes - at - AROUND)
            break;
        const uint32_t sum = (uint32_t)crc32(0, data + at + 4, count + 4);
        for (uint32_t i = 0; i < 4; i++)
            data[at + 8 + count + i] = (uint8_t)(sum >> (24 - 8 * i));
        at += count + AROUND;
    }
    return bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct keel_image image;
    uint8_t square[SIZE * SIZE * 3];
    const enum keel_status status = keel_image_decode(data, bytes, "input", &image);
    if (status != KEEL_OK) {
        KEEL_ASSERT(status == KEEL_CORRUPT || status == KEEL_INVALID || status == KEEL_NO_MEMORY);
        KEEL_ASSERT(strncmp(keel_detail(), "input: ", 7) == 0 || status == KEEL_NO_MEMORY);
        return 0;
    }
    KEEL_ASSERT(image.width > 0 && image.width <= KEEL_IMAGE_SIDE_MAX);
    KEEL_ASSERT(image.height > 0 && image.height <= KEEL_IMAGE_SIDE_MAX);
    KEEL_ASSERT((uint64_t)image.width * image.height <= KEEL_IMAGE_PIXELS_MAX);
    image.pixels[(size_t)image.width * image.height * 3 - 1] ^= 1; /* there, to the last */
    const struct keel_image_box middle = keel_image_middle(image.width, image.height, SIZE);
    keel_image_fit(&image, &middle, SIZE, square);
    keel_free(image.pixels);
    return 0;
}
