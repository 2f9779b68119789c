/* image_file.h - PNG and JPEG files as pixels, and pixels of any size as a square of one.
 *
 * libspng decodes PNG, libjpeg-turbo's TurboJPEG JPEG: both are opened when the first image is, so nothing
 * else of Keel needs them. What is cut, damaged, or larger than the limits is refused before or while it is
 * decoded. JPEG is decoded by the accurate integer transform, whose bits do not depend on the processor; PNG
 * is lossless. */
#ifndef KEEL_IMAGE_FILE_H
#define KEEL_IMAGE_FILE_H

#include <keel/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KEEL_IMAGE_FILE_BYTES = 1 << 28, /* of a file, at most */
    KEEL_IMAGE_SIDE_MAX = 16384,
    KEEL_IMAGE_PIXELS_MAX = 1 << 25 /* 96 MiB of them */
};

struct keel_image {
    uint32_t width, height;
    uint8_t *pixels; /* owned (keel_free): rows of red, green, blue */
};

/* UNSUPPORTED: a library is not installed, and which package has it. Any thread. */
enum keel_status keel_image_library_open(void);

/* By what the bytes begin with, whatever the name. Grey becomes three alike; of what is transparent the
 * colour counts; 16 bits become 8; an orientation that a camera notes is not looked at. CORRUPT, of what is
 * cut or damaged, and INVALID, of what is no such image, of inks, or larger than the limits, name the file
 * and what is wrong. Any thread. */
enum keel_status keel_image_decode(const void *bytes, size_t count, const char *name, struct keel_image *out);

/* A rectangle of an image: pixels, and where it begins, in parts of `size` to the pixel. */
struct keel_image_box {
    uint64_t width, height, left, top;
};
/* The square in the middle, as wide as the shorter side. */
struct keel_image_box keel_image_middle(uint32_t width, uint32_t height, uint32_t size);
/* A rectangle within the image on size x size pixels: each the mean of the area that it covers, by integers,
 * halves up. out: size * size * 3. */
void keel_image_fit(const struct keel_image *image, const struct keel_image_box *box, uint32_t size,
                    uint8_t *out);

#endif
