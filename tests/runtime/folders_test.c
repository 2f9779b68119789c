/* folders_test.c - images of folders: PNG and JPEG as their pixels, the square in their middle, which are
 * trained on, and what is refused by its name. */
#include "data.h"
#include "harness.h"
#include "image_file.h"
#include <keel/file.h>
#include <keel/library.h>
#include <keel/memory.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { SIZE = 8, BATCH = 4, END_BYTES = 12 };

/* What writes images, of the same libraries. */
enum {
    SPNG_CTX_ENCODER = 2,
    SPNG_ENCODE_TO_BUFFER = 12,
    SPNG_FMT_PNG = 256,
    SPNG_ENCODE_FINALIZE = 2,
    COLOUR = 2
};
struct head {
    uint32_t width, height;
    uint8_t bit_depth, color_type, compression, filter, interlace;
};
static void *(*png_new)(int flags);
static int (*png_option)(void *ctx, int option, int value);
static int (*png_head)(void *ctx, struct head *head);
static int (*png_encode)(void *ctx, const void *pixels, size_t bytes, int format, int flags);
static void *(*png_bytes)(void *ctx, size_t *out_count, int *error);
static void (*png_free)(void *ctx);
static void *(*jpeg_new)(void);
static int (*jpeg_encode)(void *handle, const unsigned char *pixels, int width, int pitch, int height,
                          int format, unsigned char **out, unsigned long *out_count, int subsampling,
                          int quality, int flags);
static const struct keel_library_entry png_entries[] = {
    {"spng_ctx_new", (void *)&png_new},          {"spng_set_option", (void *)&png_option},
    {"spng_set_ihdr", (void *)&png_head},        {"spng_encode_image", (void *)&png_encode},
    {"spng_get_png_buffer", (void *)&png_bytes}, {"spng_ctx_free", (void *)&png_free}};
static const struct keel_library_entry jpeg_entries[] = {{"tjInitCompress", (void *)&jpeg_new},
                                                         {"tjCompress2", (void *)&jpeg_encode}};
static struct keel_library png = {.file = "libspng.so.0", .entries = png_entries, .entry_count = 6};
static struct keel_library jpeg = {.file = "libturbojpeg.so.0", .entries = jpeg_entries, .entry_count = 2};

static char directory[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
static struct keel_job job;
static struct keel_data *data;

static uint8_t *make_pixels(uint32_t width, uint32_t height, uint8_t first)
{
    uint8_t *pixels = malloc((size_t)width * height * 3);
    ck_assert_ptr_nonnull(pixels);
    for (uint32_t i = 0; i < width * height * 3; i++)
        pixels[i] = (uint8_t)(first + i * 7);
    return pixels;
}

/* On the heap. */
static void *encode_png(const uint8_t *pixels, uint32_t width, uint32_t height, size_t *out_count)
{
    struct head head = {.width = width, .height = height, .bit_depth = 8, .color_type = COLOUR};
    int error = 0;
    void *ctx = png_new(SPNG_CTX_ENCODER);
    ck_assert_int_eq(png_option(ctx, SPNG_ENCODE_TO_BUFFER, 1), 0);
    ck_assert_int_eq(png_head(ctx, &head), 0);
    ck_assert_int_eq(png_encode(ctx, pixels, (size_t)width * height * 3, SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE),
                     0);
    void *bytes = png_bytes(ctx, out_count, &error);
    ck_assert(bytes != NULL && error == 0);
    png_free(ctx);
    return bytes;
}

static void *encode_jpeg(const uint8_t *pixels, uint32_t width, uint32_t height, size_t *out_count)
{
    unsigned char *bytes = NULL;
    unsigned long count = 0;
    ck_assert_int_eq(
        jpeg_encode(jpeg_new(), pixels, (int)width, 0, (int)height, 0, &bytes, &count, 0, 100, 0), 0);
    *out_count = count;
    return bytes;
}

static void write_bytes(const char *name, const void *bytes, size_t count)
{
    char folder[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(path, directory, name));
    ck_ok(keel_path_parent(folder, path));
    ck_ok(keel_mkdir_all(folder));
    ck_ok(keel_file_replace(path, bytes, count, 0600));
}

/* One colour, by which it is known. */
static void write_plain(const char *name, uint8_t value)
{
    uint8_t pixels[SIZE * SIZE * 3];
    size_t count;
    memset(pixels, value, sizeof pixels);
    void *bytes = encode_png(pixels, SIZE, SIZE, &count);
    write_bytes(name, bytes, count);
    free(bytes);
}

static void set_up(void)
{
    static const char *const keys[] = {"model.kind=resnet", "data.format=folders", "data.image_size=8",
                                       "train.batch=4", "data.val_fraction=0.34"};
    ck_assert_ptr_null(keel_library_open(&png));
    ck_assert_ptr_null(keel_library_open(&jpeg));
    strcpy(directory, "/tmp/keel-folders-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    write_bytes("job.conf", "", 0);
    ck_ok(keel_job_load(path, keys, sizeof keys / sizeof keys[0], &job));
    ck_ok(keel_path_join(path, directory, "images"));
    strcpy(job.path, path);
    data = NULL;
}

static void tear_down(void)
{
    keel_data_close(data);
    ck_ok(keel_remove_tree(directory));
}

/* Three of each of two classes, and what is none. */
static void write_six(void)
{
    write_plain("images/cat/3.png", 3);
    write_plain("images/cat/1.PNG", 1);
    write_plain("images/cat/2.png", 2);
    write_plain("images/ant/b.png", 11);
    write_plain("images/ant/a.png", 10);
    write_plain("images/ant/c.png", 12);
    write_bytes("images/ant/notes.txt", "none", 4);
    write_bytes("images/README", "none", 4);
}

static float batch[BATCH][SIZE * SIZE * 3];
static int32_t labels[BATCH];
static void *inputs[] = {batch, labels};

START_TEST(a_png_has_its_pixels_and_a_jpeg_about)
{
    struct keel_image image;
    size_t count;
    uint8_t *pixels = make_pixels(13, 5, 1);
    void *bytes = encode_png(pixels, 13, 5, &count);
    ck_ok(keel_image_decode(bytes, count, "x.png", &image));
    ck_assert(image.width == 13 && image.height == 5);
    ck_assert_mem_eq(image.pixels, pixels, 13 * 5 * 3);
    keel_free(image.pixels);
    for (size_t cut = 0; cut < count - END_BYTES;
         cut++) { /* of what is in front of the end, which has no pixels */
        const enum keel_status status = keel_image_decode(bytes, cut, "x.png", &image);
        ck_assert_msg(status == (cut < 4 ? KEEL_INVALID : KEEL_CORRUPT), "%zu of %zu bytes", cut, count);
    }
    free(bytes);
    memset(pixels, 200, 13 * 5 * 3);
    bytes = encode_jpeg(pixels, 13, 5, &count);
    ck_ok(keel_image_decode(bytes, count, "x.jpg", &image));
    for (int i = 0; i < 13 * 5 * 3; i++)
        ck_assert_int_le(abs(image.pixels[i] - 200), 2);
    keel_free(image.pixels);
    ck_status(keel_image_decode(bytes, count - 2, "x.jpg", &image), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "x.jpg: no JPEG that can be read"));
    ck_status(keel_image_decode(bytes, count / 2, "x.jpg", &image), KEEL_CORRUPT);
    free(bytes);
    free(pixels);
}
END_TEST

static void put_word(uint8_t *at, uint32_t word)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(word >> (24 - 8 * i));
}

/* A PNG's first chunk, with its sum. */
static void set_sides(uint8_t *bytes, uint32_t side)
{
    enum { KIND = 12, WIDTH = 16, HEIGHT = 20, SUM = 29 };
    put_word(bytes + WIDTH, side);
    put_word(bytes + HEIGHT, side);
    put_word(bytes + SUM, (uint32_t)crc32(0, bytes + KIND, SUM - KIND));
}

/* 65,000 by 65,000 pixels in a file of some bytes. */
START_TEST(a_bomb_is_refused_before_its_pixels_have_memory)
{
    static const uint8_t sides[] = {0xfd, 0xe8, 0xfd, 0xe8};
    struct keel_image image;
    size_t count;
    uint8_t *pixels = make_pixels(16, 16, 0), *bytes = encode_jpeg(pixels, 16, 16, &count);
    for (size_t i = 0; i + 8 < count; i++)
        if (bytes[i] == 0xff && bytes[i + 1] == 0xc0) {
            memcpy(bytes + i + 5, sides, sizeof sides);
            break;
        }
    ck_status(keel_image_decode(bytes, count, "bomb.jpg", &image), KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), "bomb.jpg: 65000 x 65000 pixels") != NULL, "%s", keel_detail());
    free(bytes);
    bytes = encode_png(pixels, 16, 16, &count);
    set_sides(bytes, 65000);
    ck_status(keel_image_decode(bytes, count, "bomb.png", &image), KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), "bomb.png: 65000 x 65000 pixels") != NULL, "%s", keel_detail());
    set_sides(bytes, 16); /* as it was */
    ck_ok(keel_image_decode(bytes, count, "x.png", &image));
    keel_free(image.pixels);
    free(bytes);
    free(pixels);
    ck_status(keel_image_decode("GIF89a..", 8, "x.png", &image), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "neither a PNG nor a JPEG"));
}
END_TEST

/* By fractions: the mean of the area that a pixel covers. */
static uint8_t mean_at(const struct keel_image *image, uint32_t size, uint32_t x, uint32_t y, uint32_t c)
{
    const double side = image->width < image->height ? image->width : image->height, step = side / size;
    const double left = (image->width - side) / 2 + x * step, top = (image->height - side) / 2 + y * step;
    double sum = 0;
    for (uint32_t v = 0; v < image->height; v++)
        for (uint32_t u = 0; u < image->width; u++) {
            const double w = fmin(u + 1, left + step) - fmax(u, left),
                         h = fmin(v + 1, top + step) - fmax(v, top);
            if (w > 0 && h > 0)
                sum += w * h * image->pixels[(v * image->width + u) * 3 + c];
        }
    return (uint8_t)(sum / (step * step) + 0.5 + 1e-9);
}

START_TEST(a_pixel_is_the_mean_of_what_it_covers)
{
    static const uint32_t sides[][3] = {{8, 8, 8}, {16, 16, 8}, {31, 17, 8}, {9, 40, 8},
                                        {3, 5, 8}, {1, 1, 8},   {100, 63, 9}};
    for (size_t i = 0; i < sizeof sides / sizeof sides[0]; i++) {
        const uint32_t size = sides[i][2];
        struct keel_image image = {sides[i][0], sides[i][1], make_pixels(sides[i][0], sides[i][1], 5)};
        uint8_t out[9 * 9 * 3];
        const struct keel_image_box middle = keel_image_middle(image.width, image.height, size);
        keel_image_fit(&image, &middle, size, out);
        for (uint32_t p = 0; p < size * size * 3; p++)
            ck_assert_int_le(abs(out[p] - mean_at(&image, size, p / 3 % size, p / 3 / size, p % 3)),
                             i < 2 ? 0 : 1);
        if (i == 0)
            ck_assert_mem_eq(out, image.pixels, 8 * 8 * 3);
        free(image.pixels);
    }
}
END_TEST

START_TEST(classes_and_files_come_by_name_and_the_last_of_each_are_kept)
{
    bool seen[16] = {false};
    write_six();
    ck_ok(keel_data_open(&job, &data));
    ck_assert_uint_eq(keel_data_vocab(data), 2);
    ck_assert_uint_eq(keel_data_train_samples(data), 4);
    ck_assert_uint_eq(keel_data_val_samples(data), 2);
    ck_ok(keel_data_train_batch(data, 0, 0, 1, inputs));
    for (uint32_t b = 0; b < BATCH; b++) {
        const int value = (int)lrintf(batch[b][0] * 255.0F);
        ck_assert_int_eq(labels[b], value < 10); /* ant is 0 */
        seen[value] = true;
    }
    ck_assert(seen[1] && seen[2] && seen[10] && seen[11]);
    ck_ok(keel_data_val_batch(data, 0, 1, inputs));
    ck_assert_int_eq((int)lrintf(batch[0][0] * 255.0F), 12);
    ck_assert_int_eq((int)lrintf(batch[BATCH - 1][0] * 255.0F), 3);
    const uint64_t digest = keel_data_digest(data);
    keel_data_close(data);
    data = NULL;
    write_plain("images/cat/1.PNG", 9);
    write_plain("val/cat/x.png", 77);
    ck_ok(keel_path_join(job.val_path, directory, "val"));
    ck_ok(keel_data_open(&job, &data));
    ck_assert_uint_ne(keel_data_digest(data), digest);
    ck_assert_uint_eq(keel_data_train_samples(data), 6);
    ck_assert_uint_eq(keel_data_val_samples(data), 1);
    ck_ok(keel_data_val_batch(data, 0, 1, inputs));
    ck_assert(labels[0] == 1 && lrintf(batch[0][5] * 255.0F) == 77);
}
END_TEST

static void refused(enum keel_status wanted, const char *words)
{
    ck_status(keel_data_open(&job, &data), wanted);
    data = NULL;
    ck_assert_msg(strstr(keel_detail(), words) != NULL, "%s", keel_detail());
}

START_TEST(what_is_wrong_is_told_by_its_file)
{
    refused(KEEL_NOT_FOUND, "images: no folder of folders of images");
    ck_ok(keel_mkdir_all(job.path));
    refused(KEEL_INVALID, "images: holds no folder of images");
    write_bytes("images/ant/notes.txt", "none", 4);
    refused(KEEL_INVALID, "images/ant: holds no .png, .jpg or .jpeg");
    write_plain("images/ant/a.png", 1);
    refused(KEEL_INVALID, "images: holds one folder: there is nothing to tell its class from");
    write_six();
    write_plain("val/dog/x.png", 1);
    ck_ok(keel_path_join(job.val_path, directory, "val"));
    refused(KEEL_INVALID, "val/dog: no folder of that name is trained on");
    job.val_path[0] = '\0';
    job.vocab = 1;
    refused(KEEL_INVALID, "has 2 folders of classes, and model.vocab = 1");
    job.vocab = 0;
    job.shift = SIZE;
    refused(KEEL_INVALID, "data.shift = 8 moves images of 8x8 out of sight");
    job.shift = 0;
    job.val_fraction = 0.0F;
    write_bytes("images/ant/a.png", "\x89PNG", 4);
    ck_ok(keel_data_open(&job, &data));
    enum keel_status status = KEEL_OK;
    for (uint64_t step = 0; step < 2 && status == KEEL_OK; step++)
        status = keel_data_train_batch(data, step, 0, 1, inputs);
    ck_status(status, KEEL_MISMATCH); /* a worker's CORRUPT would be its board's */
    ck_assert_msg(strstr(keel_detail(), "images/ant/a.png: no PNG that can be read") != NULL, "%s",
                  keel_detail());
}
END_TEST

static uint32_t told;

static void see_wrong(void *context, const char *detail)
{
    (void)context;
    told += strstr(detail, "images/cat/2.png: no PNG that can be read") != NULL ||
            strstr(detail, "images/ant/c.png: is a JPEG of inks (CMYK)") != NULL;
}

/* One that was cut, and one of inks, whose head says so. */
START_TEST(all_of_a_folder_is_looked_at_before_it_is_trained_on)
{
    static const uint8_t inks[] = {0xff, 0xd8, 0xff, 0xc0, 0, 20,   8, 0, 8,    0, 8,    4,    1, 0x11,
                                   0,    2,    0x11, 0,    3, 0x11, 0, 4, 0x11, 0, 0xff, 0xda, 0, 14,
                                   4,    1,    0,    2,    0, 3,    0, 4, 0,    0, 63,   0};
    const struct keel_data_watch watch = {.wrong = see_wrong};
    write_six();
    ck_ok(keel_data_open(&job, &data));
    ck_ok(keel_data_check(data, &watch));
    keel_data_close(data);
    data = NULL;
    write_bytes("images/cat/2.png", "\x89PNG\r\n", 6);
    write_bytes("images/ant/c.png", inks, sizeof inks);
    ck_ok(keel_data_open(&job, &data));
    ck_status(keel_data_check(data, &watch), KEEL_CORRUPT); /* of the first */
    ck_assert_uint_eq(told, 2);
    ck_assert_msg(strstr(keel_detail(), "2 of 6 images cannot be trained on, the first: ") != NULL, "%s",
                  keel_detail());
}
END_TEST

START_TEST(a_file_that_is_replaced_is_noticed)
{
    write_six();
    ck_ok(keel_data_open(&job, &data));
    write_bytes("images/ant/a.png", "none at all", 11);
    ck_status(keel_data_train_batch(data, 0, 0, 1, inputs), KEEL_MISMATCH);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, a_png_has_its_pixels_and_a_jpeg_about);
    tcase_add_test(tc, a_bomb_is_refused_before_its_pixels_have_memory);
    tcase_add_test(tc, a_pixel_is_the_mean_of_what_it_covers);
    tcase_add_test(tc, classes_and_files_come_by_name_and_the_last_of_each_are_kept);
    tcase_add_test(tc, what_is_wrong_is_told_by_its_file);
    tcase_add_test(tc, all_of_a_folder_is_looked_at_before_it_is_trained_on);
    tcase_add_test(tc, a_file_that_is_replaced_is_noticed);
}

KEEL_TEST_MAIN("folders", cases, 60)
