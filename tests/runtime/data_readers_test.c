/* data_readers_test.c - masked text, labelled images and the teacher: what a sample is, that it depends on
 * its number alone, and files that are not what they should be. */
#include "data.h"
#include "harness.h"
#include <keel/file.h>
#include <keel/memory.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static char directory[64];
static struct keel_data *data;

static void make_directory(void)
{
    strcpy(directory, "/tmp/keel-readers-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
}

static void remove_directory(void)
{
    keel_data_close(data);
    data = NULL;
    ck_ok(keel_remove_tree(directory));
}

static void write_file(const char *name, const void *bytes, size_t count)
{
    char path[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(path, directory, name));
    ck_ok(keel_file_replace(path, bytes, count, 0600));
}

/* ---- masked text --------------------------------------------------------------------------------------- */

enum { BLOCK = 40, MASKED = 6, BATCH = 8 };

static struct keel_job masked_job(void)
{
    struct keel_job job = {
        .kind = KEEL_MODEL_BERT, .seed = 7, .block = BLOCK, .batch = BATCH, .val_fraction = 0.25f};
    char text[4000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + (i * i + i / 7) % 20);
    write_file("text", text, sizeof text);
    ck_ok(keel_path_join(job.path, directory, "text"));
    return job;
}

START_TEST(three_of_twenty_tokens_are_asked_for_by_the_rule_of_80_10_10)
{
    struct keel_job job = masked_job();
    ck_ok(keel_data_open(&job, &data));
    ck_assert_uint_eq(keel_data_vocab(data), 21);
    ck_assert_uint_eq(keel_data_input(data, 1)->shape.size[1], MASKED);
    int32_t ids[BATCH * BLOCK], at[BATCH * MASKED], targets[BATCH * MASKED];
    void *inputs[] = {ids, at, targets};
    uint32_t masks = 0, kept = 0, others = 0;
    for (uint32_t step = 0; step < 250; step++) {
        ck_ok(keel_data_train_batch(data, step, 0, 1, inputs));
        uint32_t seen[BATCH * BLOCK] = {0};
        for (uint32_t i = 0; i < BATCH * MASKED; i++) {
            ck_assert_int_eq(at[i] / BLOCK, (int32_t)i / MASKED);
            ck_assert_uint_eq(seen[at[i]]++, 0);
            ck_assert_int_lt(targets[i], 20);
            masks += ids[at[i]] == 20;
            kept += ids[at[i]] == targets[i];
        }
        for (uint32_t i = 0; i < BATCH * BLOCK; i++)
            others += seen[i] == 0 && ids[i] == 20;
    }
    ck_assert_uint_eq(others, 0);
    double total = 250.0 * BATCH * MASKED; /* three deviations are 0.011 and 0.009 */
    ck_assert_double_eq_tol(masks / total, 0.8, 0.011);
    ck_assert_double_eq_tol(kept / total, 0.1 + 0.1 / 20, 0.009);
}
END_TEST

START_TEST(masks_depend_on_the_sample_and_come_anew_with_each_pass)
{
    struct keel_job job = masked_job();
    ck_ok(keel_data_open(&job, &data));
    int32_t ids[2][BATCH * BLOCK], at[2][BATCH * MASKED], targets[2][BATCH * MASKED];
    void *first[] = {ids[0], at[0], targets[0]}, *second[] = {ids[1], at[1], targets[1]};
    ck_ok(keel_data_train_batch(data, 5, 3, 4, first));
    ck_ok(keel_data_train_batch(data, 23, 0, 1, second)); /* the same samples */
    ck_assert_mem_eq(ids[0], ids[1], sizeof ids[0]);
    ck_assert_mem_eq(at[0], at[1], sizeof at[0]);
    ck_assert_mem_eq(targets[0], targets[1], sizeof targets[0]);
    ck_ok(keel_data_train_batch(data, 24, 0, 1, second));
    ck_assert_mem_ne(at[0], at[1], sizeof at[0]);
    ck_ok(keel_data_val_batch(data, 1, 3, first));
    ck_ok(keel_data_val_batch(data, 1, 3, second));
    ck_assert_mem_eq(ids[0], ids[1], sizeof ids[0]);
}
END_TEST

START_TEST(a_vocabulary_without_room_for_the_mask_is_refused)
{
    struct keel_job job = masked_job();
    job.vocab = 20;
    ck_status(keel_data_open(&job, &data), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "with the mask; use 0 or at least 21"));
}
END_TEST

/* ---- images -------------------------------------------------------------------------------------------- */

enum { TRAIN = 12, VAL = 5, HEIGHT = 4, WIDTH = 3 };

static size_t idx_head(uint8_t *at, uint8_t type, uint8_t dims, const uint32_t *sizes)
{
    uint8_t *first = at;
    *at++ = 0;
    *at++ = 0;
    *at++ = type;
    *at++ = dims;
    for (uint8_t d = 0; d < dims; d++)
        for (int shift = 24; shift >= 0; shift -= 8)
            *at++ = (uint8_t)(sizes[d] >> shift);
    return (size_t)(at - first);
}

/* Pixel p of image i is 12 i + p + 1; labels go round. */
static void write_images(const char *prefix, uint32_t count, uint32_t labels, uint8_t type)
{
    uint8_t bytes[2048];
    char name[64];
    const uint32_t sizes[] = {count, HEIGHT, WIDTH};
    size_t at = idx_head(bytes, type, 3, sizes);
    for (uint32_t i = 0; i < count * HEIGHT * WIDTH; i++) {
        if (type == 0x0d)
            memcpy(bytes + at, (uint8_t[]){0x3f, 0x80, 0, 0}, 4); /* 1.0 */
        else
            bytes[at] = (uint8_t)(i + 1);
        at += type == 0x0d ? 4 : 1;
    }
    snprintf(name, sizeof name, "%s-images-idx3-ubyte", prefix);
    write_file(name, bytes, at);
    at = idx_head(bytes, 0x08, 1, &labels);
    for (uint32_t i = 0; i < labels; i++)
        bytes[at++] = (uint8_t)(i % 4);
    snprintf(name, sizeof name, "%s-labels-idx1-ubyte", prefix);
    write_file(name, bytes, at);
}

static struct keel_job image_job(void)
{
    struct keel_job job = {.kind = KEEL_MODEL_RESNET, .seed = 7, .batch = TRAIN};
    write_images("train", TRAIN, TRAIN, 0x08);
    write_images("t10k", VAL, VAL, 0x08);
    strcpy(job.path, directory);
    return job;
}

START_TEST(every_image_comes_once_a_pass_with_its_label)
{
    struct keel_job job = image_job();
    ck_ok(keel_data_open(&job, &data));
    ck_assert_uint_eq(keel_data_vocab(data), 4);
    float images[TRAIN][HEIGHT * WIDTH];
    int32_t labels[TRAIN];
    void *inputs[] = {images, labels};
    for (uint32_t pass = 0; pass < 3; pass++) {
        uint32_t seen[TRAIN] = {0};
        ck_ok(keel_data_train_batch(data, pass, 0, 1, inputs));
        for (uint32_t b = 0; b < TRAIN; b++) {
            uint32_t image = (uint32_t)lrintf(images[b][0] * 255.0f) / (HEIGHT * WIDTH);
            ck_assert_uint_eq(seen[image]++, 0);
            ck_assert_int_eq(labels[b], (int32_t)image % 4);
            for (uint32_t p = 0; p < HEIGHT * WIDTH; p++)
                ck_assert_float_eq(images[b][p], (float)(image * HEIGHT * WIDTH + p + 1) / 255.0f);
        }
    }
    float logits[4] = {0, 3, 1, 3};
    labels[2] = 1;
    ck_assert(keel_data_is_right(data, inputs, 2, logits, 4));
    labels[2] = 3;
    ck_assert(!keel_data_is_right(data, inputs, 2, logits, 4));
}
END_TEST

/* What lies at (y, x) of an image that was mirrored, then moved. */
static float moved_pixel(uint32_t image, bool mirrored, int down, int right, int y, int x)
{
    y -= down;
    x -= right;
    if (y < 0 || y >= HEIGHT || x < 0 || x >= WIDTH)
        return 0.0f;
    x = mirrored ? WIDTH - 1 - x : x;
    return (float)(image * HEIGHT * WIDTH + (uint32_t)(y * WIDTH + x) + 1) / 255.0f;
}

/* Number of the way in which the image was changed, or -1. */
static int way_of(const float *pixels, uint32_t image)
{
    for (int way = 0; way < 18; way++) {
        int y = 0, right = way / 2 % 3 - 1, down = way / 6 - 1;
        while (y < HEIGHT * WIDTH &&
               pixels[y] == moved_pixel(image, way % 2 != 0, down, right, y / WIDTH, y % WIDTH))
            y++;
        if (y == HEIGHT * WIDTH)
            return way;
    }
    return -1;
}

START_TEST(training_images_are_mirrored_and_moved_by_their_number_and_others_never)
{
    struct keel_job job = image_job();
    struct keel_data *plain;
    ck_ok(keel_data_open(&job, &plain));
    job.flip = true;
    job.shift = 1;
    ck_ok(keel_data_open(&job, &data));
    float changed[TRAIN][HEIGHT * WIDTH], images[TRAIN][HEIGHT * WIDTH];
    int32_t labels[TRAIN];
    void *inputs[] = {changed, labels}, *others[] = {images, labels};
    uint32_t ways[18] = {0};
    for (uint32_t step = 0; step < 60; step++) {
        ck_ok(keel_data_train_batch(data, step, 0, 1, inputs));
        ck_ok(keel_data_train_batch(plain, step, 0, 1, others));
        for (uint32_t b = 0; b < TRAIN; b++) {
            int way = way_of(changed[b], (uint32_t)lrintf(images[b][0] * 255.0f) / (HEIGHT * WIDTH));
            ck_assert_int_ge(way, 0);
            ways[way]++;
        }
    }
    for (int way = 0; way < 18; way++) /* 40 of each on average, three deviations are 19 */
        ck_assert_uint_ge(ways[way], 21);
    job.batch = VAL;
    ck_ok(keel_data_val_batch(data, 0, 1, inputs));
    ck_ok(keel_data_val_batch(plain, 0, 1, others));
    ck_assert_mem_eq(changed, images, sizeof changed[0] * VAL);
    keel_data_close(plain);
}
END_TEST

static void spoil(const char *name, size_t offset, uint8_t byte, size_t cut)
{
    char path[KEEL_PATH_BYTES], *bytes;
    size_t count;
    ck_ok(keel_path_join(path, directory, name));
    ck_ok(keel_file_read(path, 1 << 20, &bytes, &count));
    if (offset < count)
        bytes[offset] = (char)byte;
    ck_ok(keel_file_replace(path, bytes, count - cut, 0600));
    keel_free(bytes);
}

struct spoiled {
    const char *file;
    size_t offset;
    uint8_t byte;
    size_t cut;
    const char *says;
};
#define IMAGES "train-images-idx3-ubyte"
#define LABELS "train-labels-idx1-ubyte"
static const struct spoiled spoiled[] = {
    {IMAGES, 0, 0, 1, "is cut short: 159 bytes, its head tells of more"},
    {IMAGES, 0, 0, 152, "ends within its head"},
    {IMAGES, 0, 0, 160, "is empty; write it again"},
    {IMAGES, 0, 0x1f, 0, "is no IDX file"},
    {IMAGES, 2, 0x0b, 0, "type 0x0b are not read"},
    {IMAGES, 3, 9, 0, "has 9 dimensions; 1 to 4 are read"},
    {IMAGES, 3, 1, 0, "bytes more than its head tells of"},
    {IMAGES, 7, 0, 0, "dimension 0 is 0"},
    {IMAGES, 4, 0xff, 0, "is cut short"},
    {"t10k-labels-idx1-ubyte", 10, 4, 0, "label 4 of image 2 is out of range: there are 4 classes"},
    {"t10k-images-idx3-ubyte", 0, 0, 60, "is cut short"},
};

START_TEST(files_that_are_not_what_they_should_be_are_refused_by_name)
{
    const struct spoiled *with = &spoiled[_i];
    struct keel_job job = image_job();
    spoil(with->file, with->offset, with->byte, with->cut);
    ck_status(keel_data_open(&job, &data),
              strncmp(with->says, "is cut short", 12) == 0 || strncmp(with->says, "ends within", 11) == 0
                  ? KEEL_CORRUPT
                  : KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), with->says) != NULL, "%s does not say %s", keel_detail(), with->says);
    ck_assert_ptr_nonnull(strstr(keel_detail(), directory));
}
END_TEST

static void refused(const struct keel_job *job, enum keel_status status, const char *says)
{
    ck_status(keel_data_open(job, &data), status);
    ck_assert_msg(strstr(keel_detail(), says) != NULL, "%s does not say %s", keel_detail(), says);
}

START_TEST(what_is_missing_or_does_not_belong_together_is_named)
{
    struct keel_job job = image_job();
    char path[KEEL_PATH_BYTES];
    job.vocab = 3;
    refused(&job, KEEL_INVALID, "label 3 of image 3 is out of range: there are 3 classes");
    job.vocab = 0;
    ck_ok(keel_data_open(&job, &data));
    ck_assert_uint_eq(keel_data_absent_classes(data), 0);
    ck_assert_uint_eq(keel_data_val_samples(data), VAL);
    keel_data_close(data);
    spoil(LABELS, 8 + 5, 255, 0);
    ck_ok(keel_data_open(&job, &data));
    ck_assert_uint_eq(keel_data_vocab(data), 256);
    ck_assert_uint_eq(keel_data_absent_classes(data), 251);
    keel_data_close(data);
    data = NULL;
    job.vocab = 4;
    refused(&job, KEEL_INVALID, LABELS ": label 255 of image 5 is out of range: there are 4 classes");
    job.vocab = 0;
    job.shift = WIDTH;
    refused(&job, KEEL_INVALID, "data.shift = 3 moves images of 4x3 out of sight");
    job.shift = 0;
    write_images("train", TRAIN, TRAIN - 1, 0x08);
    refused(&job, KEEL_INVALID, "has 12 images, " LABELS " 11 labels; put files together");
    ck_ok(keel_path_join(path, directory, LABELS));
    ck_assert_int_eq(remove(path), 0);
    refused(&job, KEEL_NOT_FOUND,
            "no file " LABELS " there; name a directory of four IDX files, or run `make data`");
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    refused(&job, KEEL_INVALID, LABELS ": no regular file");
}
END_TEST

START_TEST(pixels_that_are_floats_are_taken_as_they_are_and_must_be_numbers)
{
    struct keel_job job = image_job();
    write_images("train", TRAIN, TRAIN, 0x0d);
    ck_ok(keel_data_open(&job, &data));
    float images[TRAIN][HEIGHT * WIDTH];
    int32_t labels[TRAIN];
    void *inputs[] = {images, labels};
    ck_ok(keel_data_train_batch(data, 0, 0, 1, inputs));
    ck_assert_float_eq(images[3][5], 1.0f);
    keel_data_close(data);
    data = NULL;
    spoil(IMAGES, 16 + 20, 0x7f, 0);
    spoil(IMAGES, 16 + 21, 0xc0, 0);
    refused(&job, KEEL_INVALID, "element 5 is no finite number");
}
END_TEST

/* ---- the teacher --------------------------------------------------------------------------------------- */

enum { DENSE = 5, TABLES = 3, CATEGORIES = 100, BAG = 4, SAMPLES = 256 };

static struct keel_job teacher_job(void)
{
    return (struct keel_job){.kind = KEEL_MODEL_DLRM,
                             .seed = 7,
                             .batch = SAMPLES,
                             .dense = DENSE,
                             .tables = TABLES,
                             .categories = CATEGORIES,
                             .bag = BAG,
                             .samples = 100000};
}

START_TEST(the_teacher_draws_popular_ids_normal_numbers_and_both_labels)
{
    struct keel_job job = teacher_job();
    ck_ok(keel_data_open(&job, &data));
    static float dense[SAMPLES * DENSE], labels[SAMPLES];
    static int32_t ids[SAMPLES * TABLES * BAG];
    void *inputs[] = {dense, ids, labels};
    double sum = 0, squares = 0, clicks = 0;
    uint32_t present = 0, popular = 0, absent = 0;
    for (uint32_t step = 0; step < 40; step++) {
        ck_ok(keel_data_train_batch(data, step, 0, 1, inputs));
        for (uint32_t i = 0; i < SAMPLES * DENSE; i++) {
            sum += (double)dense[i];
            squares += (double)dense[i] * (double)dense[i];
        }
        for (int32_t i = 0; i < SAMPLES * TABLES * BAG; i++) {
            int32_t table = i / BAG % TABLES;
            absent += ids[i] == -1;
            if (ids[i] == -1)
                continue;
            ck_assert_int_ge(ids[i], table * CATEGORIES);
            ck_assert_int_lt(ids[i], (table + 1) * CATEGORIES);
            present++;
            popular += ids[i] % CATEGORIES < 10;
        }
        for (uint32_t b = 0; b < SAMPLES; b++) {
            ck_assert(labels[b] == 0.0f || labels[b] == 1.0f);
            clicks += (double)labels[b];
            ck_assert_int_ne(ids[b * TABLES * BAG], -1); /* no bag is empty */
        }
    }
    double count = 40.0 * SAMPLES;
    ck_assert_double_eq_tol(sum / (count * DENSE), 0, 0.014);
    ck_assert_double_eq_tol(squares / (count * DENSE), 1, 0.02);
    ck_assert_double_eq_tol(absent / (count * TABLES * BAG), 0.375, 0.01);
    ck_assert_double_eq_tol((double)popular / present, 0.4642, 0.01); /* the cube root of 0.1 */
    ck_assert_double_ge(clicks / count, 0.2);
    ck_assert_double_le(clicks / count, 0.8);
}
END_TEST

START_TEST(the_teacher_says_the_same_of_a_sample_whenever_it_comes)
{
    struct keel_job job = teacher_job();
    job.samples = SAMPLES;
    ck_ok(keel_data_open(&job, &data));
    static float dense[3][SAMPLES * DENSE], labels[3][SAMPLES];
    static int32_t ids[3][SAMPLES * TABLES * BAG];
    void *inputs[3][3];
    for (int i = 0; i < 3; i++)
        memcpy(inputs[i], ((void *[]){dense[i], ids[i], labels[i]}), sizeof inputs[i]);
    ck_ok(keel_data_train_batch(data, 0, 0, 1, inputs[0]));
    ck_ok(keel_data_train_batch(data, 1, 0, 1,
                                inputs[1])); /* the next pass: the same samples, in another order */
    uint32_t found = 0;
    for (uint32_t a = 0; a < SAMPLES; a++)
        for (uint32_t b = 0; b < SAMPLES; b++)
            if (memcmp(dense[0] + a * DENSE, dense[1] + b * DENSE, DENSE * sizeof(float)) == 0) {
                found++;
                ck_assert_float_eq(labels[0][a], labels[1][b]);
                ck_assert_mem_eq(ids[0] + a * TABLES * BAG, ids[1] + b * TABLES * BAG, TABLES * BAG * 4);
            }
    ck_assert_uint_eq(found, SAMPLES);
    ck_ok(keel_data_val_batch(data, 0, 1, inputs[2]));
    for (uint32_t b = 0; b < SAMPLES; b++)
        ck_assert_mem_ne(dense[2], dense[1] + b * DENSE, DENSE * sizeof(float));
    float logit = 0.5f;
    ck_assert(keel_data_is_right(data, inputs[0], 3, &logit, 1) == (labels[0][3] == 1.0f));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, make_directory, remove_directory);
    tcase_add_test(tc, three_of_twenty_tokens_are_asked_for_by_the_rule_of_80_10_10);
    tcase_add_test(tc, masks_depend_on_the_sample_and_come_anew_with_each_pass);
    tcase_add_test(tc, a_vocabulary_without_room_for_the_mask_is_refused);
    tcase_add_test(tc, every_image_comes_once_a_pass_with_its_label);
    tcase_add_test(tc, training_images_are_mirrored_and_moved_by_their_number_and_others_never);
    tcase_add_loop_test(tc, files_that_are_not_what_they_should_be_are_refused_by_name, 0,
                        sizeof spoiled / sizeof spoiled[0]);
    tcase_add_test(tc, what_is_missing_or_does_not_belong_together_is_named);
    tcase_add_test(tc, pixels_that_are_floats_are_taken_as_they_are_and_must_be_numbers);
    tcase_add_test(tc, the_teacher_draws_popular_ids_normal_numbers_and_both_labels);
    tcase_add_test(tc, the_teacher_says_the_same_of_a_sample_whenever_it_comes);
}

KEEL_TEST_MAIN("data_readers", cases, 20)
