/* augment_test.c - what is drawn for images that are trained on: shares of two that are Beta, soft labels,
 * rectangles within an image, all by the number of the sample. */
#include "data_reader.h"
#include "harness.h"
#include <keel/memory.h>
#include <math.h>

enum { CLASSES = 4, ELEMENTS = 6, SAMPLES = 4000 };
static struct keel_data data = {.seed = 7, .train_count = 1000};

static struct keel_sample sample_of(uint64_t number)
{
    return (struct keel_sample){.item = number % data.train_count, .number = number};
}

/* Image i is all i, and of class i mod CLASSES; mirrored ones are below 0. */
static enum keel_status copy(void *context, uint64_t item, const struct keel_image_view *view, float *out)
{
    (void)context;
    for (uint32_t e = 0; e < ELEMENTS; e++)
        out[e] = (view->mirrored ? -1.0F : 1.0F) * (float)item;
    return KEEL_OK;
}
static int32_t label(void *context, uint64_t item)
{
    (void)context;
    return (int32_t)(item % CLASSES);
}
static const struct keel_image_source source = {.copy = copy, .label = label, .elements = ELEMENTS};

START_TEST(shares_are_beta)
{
    static const float parameters[] = {0.05F, 0.2F, 0.5F, 1.0F};
    for (size_t p = 0; p < sizeof parameters / sizeof parameters[0]; p++) {
        const struct keel_augment augment = {.mixup = parameters[p], .classes = CLASSES};
        double sum = 0, squares = 0;
        for (uint64_t n = 0; n < SAMPLES; n++) {
            const struct keel_sample sample = sample_of(n);
            const double share = (double)keel_image_draw(&data, &sample, &augment).share;
            ck_assert(share >= 0 && share <= 1);
            sum += share;
            squares += share * share;
        }
        const double mean = sum / SAMPLES, variance = squares / SAMPLES - mean * mean;
        const double truth = 1 / (4 * (2 * (double)parameters[p] + 1)), apart = 5 / sqrt(SAMPLES);
        ck_assert_double_le(fabs(mean - 0.5), apart * sqrt(truth));
        ck_assert_double_le(fabs(variance / truth - 1), apart * 2);
    }
}
END_TEST

START_TEST(a_sample_is_two_images_and_its_label_theirs)
{
    const struct keel_augment augment = {.mixup = 0.5F, .flip = true, .classes = CLASSES};
    struct keel_augment smoothed = augment;
    smoothed.smoothing = 0.2F;
    uint32_t mirrored = 0, apart = 0;
    for (uint64_t n = 0; n < 200; n++) {
        float images[2 * ELEMENTS], mix[2 * CLASSES], less[2 * CLASSES], sum = 0.0F;
        int32_t labels[2] = {-1, -1};
        const struct keel_sample sample = sample_of(n);
        const struct keel_image_parts parts = keel_image_draw(&data, &sample, &augment),
                                      again = keel_image_draw(&data, &sample, &augment);
        ck_assert_mem_eq(&parts.share, &again.share, sizeof parts.share);
        ck_assert(parts.item[0] == sample.item && parts.item[1] == again.item[1] && parts.item[1] < 1000);
        ck_ok(keel_image_fill(&augment, &parts, &source, 1, (void *[]){images, labels, mix}));
        const float own = (parts.view[0].mirrored ? -1.0F : 1.0F) * (float)parts.item[0];
        const float other = (parts.view[1].mirrored ? -1.0F : 1.0F) * (float)parts.item[1];
        for (uint32_t e = 0; e < ELEMENTS; e++)
            ck_assert(images[ELEMENTS + e] == fmaf(parts.share, own - other, other));
        const uint32_t first = (uint32_t)parts.item[0] % CLASSES, second = (uint32_t)parts.item[1] % CLASSES;
        ck_assert_int_eq(labels[1], (int32_t)first);
        for (uint32_t c = 0; c < CLASSES; c++) { /* the soft label is 1 at its own less mix */
            const float soft = (c == first ? 1.0F : 0.0F) - mix[CLASSES + c];
            const float wanted =
                (c == first ? parts.share : 0.0F) + (c == second ? 1.0F - parts.share : 0.0F);
            ck_assert_float_eq_tol(soft, wanted, 1e-6F);
            sum += mix[CLASSES + c];
        }
        ck_assert(sum == 0.0F);
        ck_ok(keel_image_fill(&smoothed, &parts, &source, 1, (void *[]){images, labels, less}));
        for (uint32_t c = 0; c < CLASSES; c++)
            ck_assert_float_eq_tol(less[CLASSES + c], 0.8F * mix[CLASSES + c], 1e-6F);
        mirrored += parts.view[0].mirrored;
        apart += parts.view[0].mirrored != parts.view[1].mirrored;
    }
    ck_assert(mirrored > 60 && mirrored < 140 && apart > 60 && apart < 140);
}
END_TEST

START_TEST(what_validates_is_as_it_is)
{
    const struct keel_augment augment = {
        .mixup = 1.0F, .crop = 0.1F, .flip = true, .shift = 3, .classes = CLASSES};
    for (uint64_t n = 0; n < 50; n++) {
        const struct keel_sample sample = {.item = n, .number = n, .validation = true};
        const struct keel_image_parts parts = keel_image_draw(&data, &sample, &augment);
        const struct keel_image_view *view = &parts.view[0];
        ck_assert(parts.share == 1.0F && !view->mirrored && view->down == 0 && view->right == 0);
        const struct keel_image_box box = keel_image_crop(&augment, view, 31, 20, 8),
                                    middle = keel_image_middle(31, 20, 8);
        ck_assert_mem_eq(&box, &middle, sizeof box);
        ck_assert(box.width == 20 && box.height == 20 && box.left == 44 && box.top == 0);
    }
}
END_TEST

START_TEST(a_crop_lies_within_the_image)
{
    enum { WIDTH = 500, HEIGHT = 375, SIZE = 64 };
    const struct keel_augment augment = {.crop = 0.08F};
    const struct keel_image_box middle = keel_image_middle(WIDTH, HEIGHT, SIZE);
    double least = 1, most = 0;
    uint32_t middles = 0;
    for (uint64_t n = 0; n < SAMPLES; n++) {
        const struct keel_sample sample = sample_of(n);
        const struct keel_image_view view = keel_image_draw(&data, &sample, &augment).view[0];
        const struct keel_image_box box = keel_image_crop(&augment, &view, WIDTH, HEIGHT, SIZE);
        ck_assert(box.left % SIZE == 0 || memcmp(&box, &middle, sizeof box) == 0);
        ck_assert_uint_le(box.left + box.width * SIZE, (uint64_t)WIDTH * SIZE);
        ck_assert_uint_le(box.top + box.height * SIZE, (uint64_t)HEIGHT * SIZE);
        const double share = (double)(box.width * box.height) / (WIDTH * HEIGHT);
        const double ratio = (double)box.width / (double)box.height;
        ck_assert(share > 0.075 && share <= 1 && ratio > 0.74 && ratio < 1.35);
        least = fmin(least, share);
        most = fmax(most, share);
        middles += memcmp(&box, &middle, sizeof box) == 0;
    }
    ck_assert(least < 0.1 && most > 0.9);
    ck_assert_uint_lt(middles, SAMPLES / 100);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, shares_are_beta);
    tcase_add_test(tc, a_sample_is_two_images_and_its_label_theirs);
    tcase_add_test(tc, what_validates_is_as_it_is);
    tcase_add_test(tc, a_crop_lies_within_the_image);
}

KEEL_TEST_MAIN("augment", cases, 60)
