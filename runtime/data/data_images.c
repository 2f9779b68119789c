/* data_images.c - labelled images from a directory of four IDX files, named as those of MNIST and
 * Fashion-MNIST (Xiao et al. 2017): train-images-idx3-ubyte, train-labels-idx1-ubyte, and t10k-... to
 * validate with.
 *
 * Images are [height, width] or [height, width, channels]. When the job says so, an image that is trained on
 * is mirrored or moved, with zeros where nothing was, drawn anew each time it comes. */
#include "data_reader.h"
#include "idx.h"
#include <keel/memory.h>
#include <math.h>
#include <stdio.h>
#include <xxhash.h>

enum { TRAIN, VAL, SETS };

struct set {
    char *image_bytes, *label_bytes; /* owned */
    struct keel_idx images, labels;
};
struct images {
    struct set sets[SETS];
    uint32_t height, width, channels;
    struct keel_augment augment;
};

static const char *const names[SETS][2] = {{"train-images-idx3-ubyte", "train-labels-idx1-ubyte"},
                                           {"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}};

/* ---- reading ------------------------------------------------------------------------------------------- */

static enum keel_status read_idx(struct keel_data *data, const char *directory, const char *name,
                                 char **out_bytes, struct keel_idx *out)
{
    char path[KEEL_PATH_BYTES];
    size_t bytes;
    KEEL_TRY(keel_path_join(path, directory, name));
    if (keel_path_exists(path) && !keel_path_is_file(path)) /* a pipe may never end */
        return keel_fail(KEEL_INVALID,
                         "%s: no regular file (every worker reads it anew); put the IDX file itself there",
                         path);
    enum keel_status status = keel_file_read(path, UINT64_C(1) << KEEL_BYTES_MAX_LOG2, out_bytes, &bytes);
    if (status == KEEL_NOT_FOUND)
        return keel_fail(
            status,
            "%s%s: no file %s there; name a directory of four IDX files, or run `make "
            "data` for Fashion-MNIST in build/data/fashion (installed: sh "
            "PREFIX/share/keel/data.sh PREFIX/share/keel/data)",
            data->use != NULL && data->use->val_path == directory ? "" : "data.path = ", directory, name);
    if (status != KEEL_OK)
        return status;
    data->digest = XXH3_64bits_withSeed(*out_bytes, bytes, data->digest);
    return keel_idx_parse(*out_bytes, bytes, path, out);
}

static enum keel_status check_pixels(const struct keel_idx *images, const char *directory, const char *name)
{
    if (images->dims < 3)
        return keel_fail(KEEL_INVALID, "%s/%s: %u dimensions; images have 3, or 4 with channels", directory,
                         name, images->dims);
    for (uint64_t i = 0; images->type == KEEL_IDX_F32 && i < images->count; i++)
        if (!isfinite(keel_idx_number(images, i)))
            return keel_fail(KEEL_INVALID,
                             "%s/%s: element %llu is no finite number: nothing could be trained on it; mend "
                             "the file",
                             directory, name, (unsigned long long)i);
    return KEEL_OK;
}

static enum keel_status check_labels(const struct set *set, const char *directory, const char *const name[2])
{
    if (set->labels.dims != 1 || set->labels.type != KEEL_IDX_U8)
        return keel_fail(KEEL_INVALID, "%s/%s: labels are one byte each, in one dimension", directory,
                         name[1]);
    if (set->labels.size[0] != set->images.size[0])
        return keel_fail(KEEL_INVALID,
                         "%s: %s has %u images, %s %u labels; put files together that belong "
                         "together",
                         directory, name[0], set->images.size[0], name[1], set->labels.size[0]);
    return KEEL_OK;
}

static enum keel_status check_classes(const struct set *set, uint32_t classes, const char *directory,
                                      const char *name)
{
    for (uint32_t i = 0; i < set->labels.size[0]; i++)
        if (set->labels.elements[i] >= classes)
            return keel_fail(
                KEEL_INVALID,
                "%s/%s: label %u of image %u is out of range: there are %u classes (model.vocab, "
                "or the highest label for training); mend the file",
                directory, name, set->labels.elements[i], i, classes);
    return KEEL_OK;
}

static enum keel_status read_set(struct keel_data *data, const char *directory, struct set *set,
                                 const char *const name[2])
{
    KEEL_TRY(read_idx(data, directory, name[0], &set->image_bytes, &set->images));
    KEEL_TRY(read_idx(data, directory, name[1], &set->label_bytes, &set->labels));
    KEEL_TRY(check_pixels(&set->images, directory, name[0]));
    return check_labels(set, directory, name);
}

static uint32_t highest_label(const struct keel_idx *labels)
{
    uint32_t highest = 0;
    for (uint32_t i = 0; i < labels->size[0]; i++)
        highest = labels->elements[i] > highest ? labels->elements[i] : highest;
    return highest;
}

/* How many of `classes` no label names: one label 255 in a set of ten classes makes 256. */
static uint32_t count_absent(const struct keel_idx *labels, uint32_t classes)
{
    bool seen[UINT8_MAX + 1] = {false};
    uint32_t absent = classes;
    for (uint32_t i = 0; i < labels->size[0]; i++) {
        absent -= !seen[labels->elements[i]];
        seen[labels->elements[i]] = true;
    }
    return absent;
}

static enum keel_status check_sets(const struct images *images, const struct keel_job *job, uint32_t classes)
{
    const struct keel_idx *train = &images->sets[TRAIN].images, *val = &images->sets[VAL].images;
    for (uint32_t d = 1; d < KEEL_IDX_DIMS_MAX; d++)
        if (train->size[d] != val->size[d])
            return keel_fail(KEEL_INVALID,
                             "%s: images are %ux%ux%u for training and %ux%ux%u for validation; put files "
                             "together that belong together",
                             job->path, train->size[1], train->size[2], train->size[3], val->size[1],
                             val->size[2], val->size[3]);
    if (job->shift >= train->size[1] || job->shift >= train->size[2])
        return keel_fail(KEEL_INVALID, "data.shift = %u moves images of %ux%u out of sight; use less",
                         job->shift, train->size[1], train->size[2]);
    for (int s = 0; s < SETS; s++)
        KEEL_TRY(check_classes(&images->sets[s], classes, job->path, names[s][1]));
    return KEEL_OK;
}

static void declare(struct keel_data *data, struct images *images, const struct keel_job *job,
                    const struct keel_idx *from)
{
    images->height = from->size[1];
    images->width = from->size[2];
    images->channels = from->size[3];
    const uint64_t sizes[3] = {images->height, images->width, images->channels};
    images->augment = keel_augment_of(job, data->vocab);
    keel_image_declare(data, &images->augment, sizes);
}

/* Images that a trained model is to name. Only the labels for training say how many classes there are, where
 * the job does not. */
static enum keel_status open_other(struct keel_data *data, struct images *images, const struct keel_job *job)
{
    const char *directory = data->use->val_path;
    struct set *set = &images->sets[VAL];
    data->whole = false;
    data->vocab = job->vocab;
    if (job->vocab == 0) {
        KEEL_TRY(read_set(data, job->path, &images->sets[TRAIN], names[TRAIN]));
        data->vocab = highest_label(&images->sets[TRAIN].labels) + 1;
    }
    KEEL_TRY(read_set(data, directory, set, names[VAL]));
    KEEL_TRY(check_classes(set, data->vocab, directory, names[VAL][1]));
    data->val_count = set->images.size[0];
    declare(data, images, job, &set->images);
    return KEEL_OK;
}

static enum keel_status open_images(struct keel_data *data, const struct keel_job *job)
{
    struct images *images;
    KEEL_TRY(keel_alloc(1, sizeof *images, &images));
    data->own = images;
    if (data->use != NULL && data->use->val_path != NULL)
        return open_other(data, images, job);
    for (int s = 0; s < SETS; s++)
        KEEL_TRY(read_set(data, job->path, &images->sets[s], names[s]));
    const struct keel_idx *train = &images->sets[TRAIN].images;
    data->vocab = job->vocab != 0 ? job->vocab : highest_label(&images->sets[TRAIN].labels) + 1;
    KEEL_TRY(check_sets(images, job, data->vocab));
    data->absent_classes = count_absent(&images->sets[TRAIN].labels, data->vocab);
    data->train_count = train->size[0];
    data->val_count = images->sets[VAL].images.size[0];
    declare(data, images, job, train);
    return KEEL_OK;
}

static void close_images(struct keel_data *data)
{
    struct images *images = data->own;
    for (int s = 0; images != NULL && s < SETS; s++) {
        keel_free(images->sets[s].image_bytes);
        keel_free(images->sets[s].label_bytes);
    }
    keel_free(images);
}

/* ---- batches ------------------------------------------------------------------------------------------- */

/* The items of which samples of one kind are. */
struct source {
    const struct images *images;
    const struct set *set;
};

static enum keel_status copy_image(void *context, uint64_t item, const struct keel_image_view *view,
                                   float *out)
{
    const struct source *source = context;
    const struct images *images = source->images;
    int32_t height = (int32_t)images->height, width = (int32_t)images->width;
    uint64_t first = item * images->height * images->width * images->channels;
    for (int32_t y = 0; y < height; y++)
        for (int32_t x = 0; x < width; x++) {
            int32_t at_y = y - view->down, at_x = x - view->right;
            bool inside = at_y >= 0 && at_y < height && at_x >= 0 && at_x < width;
            at_x = view->mirrored ? width - 1 - at_x : at_x;
            for (uint32_t c = 0; c < images->channels; c++)
                *out++ = inside
                             ? keel_idx_number(&source->set->images,
                                               first + (uint64_t)(at_y * width + at_x) * images->channels + c)
                             : 0.0f;
        }
    return KEEL_OK;
}

static int32_t label_of(void *context, uint64_t item)
{
    return ((const struct source *)context)->set->labels.elements[item];
}

static enum keel_status fill_image(const struct keel_data *data, const struct keel_sample *sample,
                                   uint32_t slot, void *const *inputs)
{
    const struct images *images = data->own;
    struct source source = {images, &images->sets[sample->validation ? VAL : TRAIN]};
    const struct keel_image_source all = {.context = &source,
                                          .copy = copy_image,
                                          .label = label_of,
                                          .elements =
                                              (uint64_t)images->height * images->width * images->channels};
    const struct keel_image_parts parts = keel_image_draw(data, sample, &images->augment);
    return keel_image_fill(&images->augment, &parts, &all, slot, inputs);
}

uint32_t keel_image_class_of(void *const *inputs, uint32_t row)
{
    return (uint32_t)((const int32_t *)inputs[1])[row];
}

bool keel_image_is_right(void *const *inputs, uint32_t row, const float *logits, uint32_t classes)
{
    return keel_data_highest(logits, classes) == keel_image_class_of(inputs, row);
}

const struct keel_reader keel_image_reader = {.open = open_images,
                                              .close = close_images,
                                              .fill = fill_image,
                                              .is_right = keel_image_is_right,
                                              .class_of = keel_image_class_of};
