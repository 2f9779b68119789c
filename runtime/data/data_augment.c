/* data_augment.c - what is drawn for an image that is trained on: mirrored, moved, a part of it, or mixed
 * with another (Zhang et al. 2018, "mixup"), label and all. All by the number of the sample and the seed, in
 * canonical arithmetic: any rank has the same image, after any resume.
 *
 * A crop is that of Szegedy et al. 2015 as torchvision's RandomResizedCrop has it: area and proportions are
 * drawn, up to ten times, until a rectangle lies within the image; then the square in its middle. The shares
 * of two images are Beta(mixup, mixup), by Johnk's method (1964): X / (X + Y), where X and Y are uniform
 * numbers to the power of 1 / mixup whose sum is at most 1. */
#include "data_reader.h"
#include <keel/kernels.h>
#include <keel/memory.h>
#include <math.h>

enum { AUGMENT_STREAM = 3, MIX_STREAM = 8, CROP_TRIES = 10, BETA_TRIES = 64 };
#define FAR 80.0F /* beyond this e^x is no share that float32 has beside 1 */
enum { DRAW_MIRROR, DRAW_DOWN, DRAW_RIGHT, DRAW_CROP = 16, DRAW_BETA = 64 };

struct keel_augment keel_augment_of(const struct keel_job *job, uint32_t classes)
{
    return (struct keel_augment){.flip = job->flip,
                                 .shift = job->shift,
                                 .crop = job->crop,
                                 .mixup = job->mixup,
                                 .smoothing = job->label_smoothing,
                                 .classes = classes};
}

/* Strictly between 0 and 1. */
static float uniform(uint64_t key, uint64_t index)
{
    return ((float)(keel_data_draw(key, 0, index) >> 41) + 0.5F) / 8388608.0F;
}

static struct keel_image_view view_of(const struct keel_augment *augment, uint64_t key)
{
    const uint32_t ways = 2 * augment->shift + 1;
    return (struct keel_image_view){
        .mirrored = augment->flip && (keel_data_draw(key, 0, DRAW_MIRROR) >> 63) != 0,
        .down = (int32_t)keel_data_below(keel_data_draw(key, 0, DRAW_DOWN), ways) - (int32_t)augment->shift,
        .right = (int32_t)keel_data_below(keel_data_draw(key, 0, DRAW_RIGHT), ways) - (int32_t)augment->shift,
        .key = key};
}

/* ---- crops --------------------------------------------------------------------------------------------- */

static uint32_t rounded_root(float area)
{
    return (uint32_t)(keel_canon_sqrt(area) + 0.5F);
}

struct keel_image_box keel_image_crop(const struct keel_augment *augment, const struct keel_image_view *view,
                                      uint32_t width, uint32_t height, uint32_t size)
{
    const float whole = (float)width * (float)height, widest = keel_canon_log(4.0F / 3.0F);
    for (uint64_t i = 0; augment->crop > 0.0F && view->key != 0 && i < CROP_TRIES; i++) {
        const uint64_t draw = DRAW_CROP + 4 * i;
        const float area = whole * fmaf(1.0F - augment->crop, uniform(view->key, draw), augment->crop);
        const float ratio = keel_canon_exp(widest * fmaf(2.0F, uniform(view->key, draw + 1), -1.0F));
        const uint32_t w = rounded_root(area * ratio), h = rounded_root(keel_canon_divide(area, ratio));
        if (w == 0 || h == 0 || w > width || h > height)
            continue;
        return (struct keel_image_box){
            .width = w,
            .height = h,
            .left = (uint64_t)keel_data_below(keel_data_draw(view->key, 0, draw + 2), width - w + 1) * size,
            .top = (uint64_t)keel_data_below(keel_data_draw(view->key, 0, draw + 3), height - h + 1) * size};
    }
    return keel_image_middle(width, height, size);
}

/* ---- mixing -------------------------------------------------------------------------------------------- */

static float draw_share(float parameter, uint64_t key)
{
    for (uint64_t i = 0; i < BETA_TRIES; i++) {
        const float x = keel_canon_divide(keel_canon_log(uniform(key, DRAW_BETA + 2 * i)), parameter);
        const float y = keel_canon_divide(keel_canon_log(uniform(key, DRAW_BETA + 2 * i + 1)), parameter);
        if (keel_canon_exp(x) + keel_canon_exp(y) <= 1.0F) /* by logarithms, which no power underflows */
            return y - x > FAR ? 0.0F : keel_canon_divide(1.0F, 1.0F + keel_canon_exp(y - x));
    }
    return 1.0F; /* of parameters up to 1 one in two is taken: never in practice */
}

struct keel_image_parts keel_image_draw(const struct keel_data *data, const struct keel_sample *sample,
                                        const struct keel_augment *augment)
{
    struct keel_image_parts parts = {.item = {sample->item}, .share = 1.0F};
    if (sample->validation)
        return parts;
    parts.view[0] = view_of(augment, keel_data_draw(data->seed, AUGMENT_STREAM, sample->number));
    if (augment->mixup > 0.0F) {
        const uint64_t key = keel_data_draw(data->seed, MIX_STREAM, sample->number);
        parts.item[1] = keel_data_draw(key, 1, 0) % data->train_count;
        parts.view[1] = view_of(augment, key);
        parts.share = draw_share(augment->mixup, key);
    }
    return parts;
}

/* ---- batches ------------------------------------------------------------------------------------------- */

void keel_image_declare(struct keel_data *data, const struct keel_augment *augment, const uint64_t sizes[3])
{
    const uint64_t classes = augment->classes;
    keel_data_add_input(data, "images", KEEL_F32, 1, 3, sizes);
    keel_data_add_input(data, "labels", KEEL_I32, 1, 0, sizes);
    if (augment->mixup > 0.0F)
        keel_data_add_input(data, "mix", KEEL_F32, 1, 1, &classes);
}

/* 1 at the sample's own label less the soft one; of labels that are smoothed, which both are. */
static void fill_mix(const struct keel_augment *augment, float share, int32_t own, int32_t other, float *out)
{
    const float moved = (1.0F - share) * (1.0F - augment->smoothing);
    for (uint32_t c = 0; c < augment->classes; c++)
        out[c] = 0.0F;
    out[own] += moved;
    out[other] -= moved;
}

enum keel_status keel_image_fill(const struct keel_augment *augment, const struct keel_image_parts *parts,
                                 const struct keel_image_source *source, uint32_t slot, void *const *inputs)
{
    float *out = (float *)inputs[0] + slot * source->elements, *other = NULL;
    const int32_t own = source->label(source->context, parts->item[0]);
    const bool mixed = parts->share < 1.0F;
    KEEL_TRY(source->copy(source->context, parts->item[0], &parts->view[0], out));
    ((int32_t *)inputs[1])[slot] = own;
    if (augment->mixup > 0.0F)
        fill_mix(augment, parts->share, own, mixed ? source->label(source->context, parts->item[1]) : own,
                 (float *)inputs[2] + (size_t)slot * augment->classes);
    if (!mixed)
        return KEEL_OK;
    KEEL_TRY(keel_alloc(keel_size(source->elements), sizeof *other, &other));
    const enum keel_status status = source->copy(source->context, parts->item[1], &parts->view[1], other);
    for (uint64_t i = 0; status == KEEL_OK && i < source->elements; i++)
        out[i] = fmaf(parts->share, out[i] - other[i], other[i]);
    keel_free(other);
    return status;
}
