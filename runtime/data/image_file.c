/* image_file.c - see image_file.h.
 *
 * The functions of the two libraries are declared here, as their versions .so.0 have them, so that building
 * Keel takes no header of theirs. */
#include "image_file.h"
#include <keel/library.h>
#include <keel/memory.h>
#include <string.h>

/* ---- the libraries ------------------------------------------------------------------------------------- */

enum { SPNG_FMT_RGB8 = 4, SPNG_CHUNK_BYTES = 1 << 24 };
struct spng_ihdr {
    uint32_t width, height;
    uint8_t bit_depth, color_type, compression_method, filter_method, interlace_method;
};

static struct {
    void *(*ctx_new)(int flags);
    void (*ctx_free)(void *ctx);
    int (*set_image_limits)(void *ctx, uint32_t width, uint32_t height);
    int (*set_chunk_limits)(void *ctx, size_t chunk_bytes, size_t cache_bytes);
    int (*set_png_buffer)(void *ctx, const void *bytes, size_t count);
    int (*get_ihdr)(void *ctx, struct spng_ihdr *out);
    int (*decoded_image_size)(void *ctx, int format, size_t *out);
    int (*decode_image)(void *ctx, void *out, size_t bytes, int format, int flags);
    int (*decode_chunks)(void *ctx);
    const char *(*strerror)(int error);
} spng;

enum { TJPF_RGB = 0, TJCS_CMYK = 3, TJFLAG_ACCURATEDCT = 4096, TJFLAG_STOPONWARNING = 8192 };
enum { TJFLAG_LIMITSCANS = 32768, TJ_FLAGS = TJFLAG_ACCURATEDCT | TJFLAG_STOPONWARNING | TJFLAG_LIMITSCANS };

static struct {
    void *(*init)(void);
    int (*destroy)(void *handle);
    int (*header)(void *handle, const unsigned char *bytes, unsigned long count, int *width, int *height,
                  int *subsampling, int *colours);
    int (*decompress)(void *handle, const unsigned char *bytes, unsigned long count, unsigned char *out,
                      int width, int pitch, int height, int format, int flags);
    char *(*error)(void *handle);
} jpeg;

#define PNG_ENTRY(name)                                                                                      \
    {                                                                                                        \
        "spng_" #name, (void *)&spng.name                                                                    \
    }
static const struct keel_library_entry png_entries[] = {PNG_ENTRY(ctx_new),
                                                        PNG_ENTRY(ctx_free),
                                                        PNG_ENTRY(set_image_limits),
                                                        PNG_ENTRY(set_chunk_limits),
                                                        PNG_ENTRY(set_png_buffer),
                                                        PNG_ENTRY(get_ihdr),
                                                        PNG_ENTRY(decoded_image_size),
                                                        PNG_ENTRY(decode_image),
                                                        PNG_ENTRY(decode_chunks),
                                                        PNG_ENTRY(strerror)};
static const struct keel_library_entry jpeg_entries[] = {{"tjInitDecompress", (void *)&jpeg.init},
                                                         {"tjDestroy", (void *)&jpeg.destroy},
                                                         {"tjDecompressHeader3", (void *)&jpeg.header},
                                                         {"tjDecompress2", (void *)&jpeg.decompress},
                                                         {"tjGetErrorStr2", (void *)&jpeg.error}};
#define COUNT(of) (sizeof(of) / sizeof(of)[0])
static struct keel_library libraries[] = {
    {.file = "libspng.so.0", .entries = png_entries, .entry_count = COUNT(png_entries)},
    {.file = "libturbojpeg.so.0", .entries = jpeg_entries, .entry_count = COUNT(jpeg_entries)}};
static const char *const packages[] = {"libspng0", "libturbojpeg0"};

enum keel_status keel_image_library_open(void)
{
    for (size_t i = 0; i < COUNT(libraries); i++) {
        const char *missing = keel_library_open(&libraries[i]);
        if (missing != NULL)
            return keel_fail(KEEL_UNSUPPORTED,
                             "image files are read by libspng and libjpeg-turbo, of which one cannot be "
                             "opened (%s): install it "
                             "(Debian: %s)",
                             missing, packages[i]);
    }
    return KEEL_OK;
}

/* ---- decoding ------------------------------------------------------------------------------------------ */

/* Room for pixels, or INVALID: more of them than a bomb is to have. */
static enum keel_status make_room(uint64_t width, uint64_t height, const char *name, struct keel_image *image)
{
    if (width == 0 || height == 0 || width > KEEL_IMAGE_SIDE_MAX || height > KEEL_IMAGE_SIDE_MAX ||
        width * height > KEEL_IMAGE_PIXELS_MAX)
        return keel_fail(
            KEEL_INVALID,
            "%s: %llu x %llu pixels: up to %d a side and %d in all are read; make it smaller, or "
            "leave it out",
            name, (unsigned long long)width, (unsigned long long)height, KEEL_IMAGE_SIDE_MAX,
            KEEL_IMAGE_PIXELS_MAX);
    image->width = (uint32_t)width;
    image->height = (uint32_t)height;
    return keel_alloc(keel_size(width * height), 3, &image->pixels);
}

static enum keel_status refuse(const char *name, const char *kind, const char *why)
{
    return keel_fail(KEEL_CORRUPT,
                     "%s: no %s that can be read (%s): it was cut or damaged; mend it, or leave it out", name,
                     kind, why);
}

static enum keel_status decode_png(void *ctx, const void *bytes, size_t count, const char *name,
                                   struct keel_image *image)
{
    struct spng_ihdr head = {.width = 0};
    size_t wanted = 0;
    int error = spng.set_image_limits(ctx, INT32_MAX, INT32_MAX); /* which we look at ourselves */
    if (error == 0)
        error = spng.set_chunk_limits(ctx, SPNG_CHUNK_BYTES, SPNG_CHUNK_BYTES);
    if (error == 0)
        error = spng.set_png_buffer(ctx, bytes, count);
    if (error == 0)
        error = spng.get_ihdr(ctx, &head);
    if (error == 0)
        KEEL_TRY(make_room(head.width, head.height, name, image));
    if (error == 0)
        error = spng.decoded_image_size(ctx, SPNG_FMT_RGB8, &wanted);
    KEEL_ASSERT(error != 0 || wanted == (size_t)image->width * image->height * 3);
    if (error == 0)
        error = spng.decode_image(ctx, image->pixels, wanted, SPNG_FMT_RGB8, 0);
    if (error == 0)
        error = spng.decode_chunks(ctx); /* what follows the pixels, to the end */
    return error == 0 ? KEEL_OK : refuse(name, "PNG", spng.strerror(error));
}

static enum keel_status decode_jpeg(void *handle, const void *bytes, size_t count, const char *name,
                                    struct keel_image *image)
{
    int width = 0, height = 0, subsampling, colours = 0;
    if (jpeg.header(handle, bytes, (unsigned long)count, &width, &height, &subsampling, &colours) != 0)
        return refuse(name, "JPEG", jpeg.error(handle));
    if (colours >= TJCS_CMYK)
        return keel_fail(KEEL_INVALID, "%s: is a JPEG of inks (CMYK); convert it to RGB", name);
    KEEL_TRY(make_room((uint64_t)width, (uint64_t)height, name, image));
    if (jpeg.decompress(handle, bytes, (unsigned long)count, image->pixels, width, 0, height, TJPF_RGB,
                        TJ_FLAGS) != 0)
        return refuse(name, "JPEG", jpeg.error(handle));
    return KEEL_OK;
}

enum keel_status keel_image_decode(const void *bytes, size_t count, const char *name, struct keel_image *out)
{
    static const uint8_t png[] = {0x89, 'P', 'N', 'G'}, jpg[] = {0xff, 0xd8, 0xff};
    const bool is_png = count >= sizeof png && memcmp(bytes, png, sizeof png) == 0,
               is_jpeg = count >= sizeof jpg && memcmp(bytes, jpg, sizeof jpg) == 0;
    struct keel_image image = {.pixels = NULL};
    if (!is_png && !is_jpeg)
        return keel_fail(KEEL_INVALID,
                         "%s: neither a PNG nor a JPEG by what it begins with; convert it, or leave it out",
                         name);
    KEEL_TRY(keel_image_library_open());
    void *reader = is_png ? spng.ctx_new(0) : jpeg.init();
    enum keel_status status =
        reader != NULL ? KEEL_OK : keel_fail(KEEL_NO_MEMORY, "no memory to decode %s", name);
    if (status == KEEL_OK)
        status = is_png ? decode_png(reader, bytes, count, name, &image)
                        : decode_jpeg(reader, bytes, count, name, &image);
    if (reader != NULL && is_png)
        spng.ctx_free(reader);
    else if (reader != NULL)
        (void)jpeg.destroy(reader);
    if (status == KEEL_OK)
        *out = image;
    else
        keel_free(image.pixels);
    return status;
}

/* ---- size ---------------------------------------------------------------------------------------------- */

/* What pixel `at` of a line of `size`, laid over `side` pixels from `begin` / size on, covers of pixel `of`:
 * in parts of `size` to the pixel. */
static uint64_t cover(uint64_t at, uint64_t side, uint64_t begin, uint64_t size, uint64_t of)
{
    const uint64_t first = begin + at * side, last = first + side;
    const uint64_t from = of * size > first ? of * size : first,
                   to = (of + 1) * size < last ? (of + 1) * size : last;
    return to > from ? to - from : 0;
}

static void mean_of(const struct keel_image *image, const struct keel_image_box *box, uint64_t size,
                    uint64_t x, uint64_t y, uint8_t out[3])
{
    const uint64_t all = box->width * box->height;
    const uint64_t y_end = (box->top + (y + 1) * box->height + size - 1) / size,
                   x_end = (box->left + (x + 1) * box->width + size - 1) / size;
    uint64_t red = 0, green = 0, blue = 0;
    KEEL_ASSERT(all > 0);
    for (uint64_t v = (box->top + y * box->height) / size; v < y_end; v++)
        for (uint64_t u = (box->left + x * box->width) / size; u < x_end; u++) {
            const uint64_t weight =
                cover(y, box->height, box->top, size, v) * cover(x, box->width, box->left, size, u);
            const uint8_t *pixel = image->pixels + (v * image->width + u) * 3;
            red += weight * pixel[0];
            green += weight * pixel[1];
            blue += weight * pixel[2];
        }
    out[0] = (uint8_t)((red + all / 2) / all);
    out[1] = (uint8_t)((green + all / 2) / all);
    out[2] = (uint8_t)((blue + all / 2) / all);
}

struct keel_image_box keel_image_middle(uint32_t width, uint32_t height, uint32_t size)
{
    const uint64_t side = width < height ? width : height;
    return (struct keel_image_box){
        .width = side, .height = side, .left = (width - side) * size / 2, .top = (height - side) * size / 2};
}

void keel_image_fit(const struct keel_image *image, const struct keel_image_box *box, uint32_t size,
                    uint8_t *out)
{
    for (uint64_t y = 0; y < size; y++)
        for (uint64_t x = 0; x < size; x++)
            mean_of(image, box, size, x, y, out + (y * size + x) * 3);
}
