/* data_folders.c - labelled images from folders, as torchvision's ImageFolder has them: DIR/CLASS/NAME.png or
 * .jpg, one folder for each class, which are numbered in the byte order of their names; files within
 * likewise.
 *
 * A file is decoded when its sample comes (image_file.h): to a square of data.image pixels a side, in three
 * colours of 0 to 1. data.val_path, of the same classes, is validated with, or else the last files of each
 * class, as data.val_fraction says. What is trained on is mirrored and moved as other images are
 * (data_images.c). In the digest are the names and sizes of all files, and what is in them: in all where they
 * are 256 MiB together at most, else in about 1,024, evenly taken, so that another set, or another encoding,
 * is told in a time that does not grow with it. A file that is damaged is found by keel_data_check, or else
 * when its sample comes. */
#include "data_file.h"
#include "data_reader.h"
#include "image_file.h"
#include <keel/disk.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <xxhash.h>

enum { TRAIN, VAL, SETS, CLASSES_MAX = 1 << 20, DIGESTED_BYTES = 1 << 28, DIGESTED_FILES = 1024 };

struct item {
    struct keel_data_file file;
    uint32_t class;
};
struct set {
    struct item *items; /* owned */
    size_t count, capacity;
    uint64_t bytes;
};
struct folders {
    char **classes; /* owned: names, ascending */
    size_t class_count, class_capacity;
    struct set sets[SETS];
    uint32_t size;
    struct keel_augment augment;
};

/* ---- what there is ------------------------------------------------------------------------------------- */

/* A folder that is looked through. */
struct look {
    struct folders *folders;
    struct set *set;
    char path[KEEL_PATH_BYTES];
    uint32_t class;
};

static bool is_image(const char *name)
{
    static const char *const ends[] = {".png", ".jpg", ".jpeg"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot != NULL && dot != name && i < sizeof ends / sizeof ends[0]; i++)
        if (strcasecmp(dot, ends[i]) == 0)
            return true;
    return false;
}

static enum keel_status see_file(void *context, const char *name)
{
    const struct look *look = context;
    struct set *set = look->set;
    char path[KEEL_PATH_BYTES];
    int fd = -1;
    if (!is_image(name))
        return KEEL_OK;
    KEEL_TRY(keel_path_join(path, look->path, name));
    KEEL_TRY(keel_grow(&set->items, &set->capacity, set->count + 1, sizeof *set->items));
    struct item *item = &set->items[set->count++]; /* which close frees from here on */
    *item = (struct item){.class = look->class};
    KEEL_TRY(keel_data_file_open(path, &item->file, &fd));
    keel_disk_close(fd);
    set->bytes += item->file.bytes;
    return item->file.bytes <= KEEL_IMAGE_FILE_BYTES
               ? KEEL_OK
               : keel_fail(KEEL_INVALID, "%s: has %llu bytes, and an image has %d at most", path,
                           (unsigned long long)item->file.bytes, KEEL_IMAGE_FILE_BYTES);
}

/* The number of a class; class_count: there is none of that name. */
static size_t find_class(const struct folders *folders, const char *name)
{
    size_t low = 0, high = folders->class_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(folders->classes[middle], name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < folders->class_count && strcmp(folders->classes[low], name) == 0 ? low
                                                                                  : folders->class_count;
}

/* Of the first set the folders say what classes there are. */
static enum keel_status number_class(struct folders *folders, const struct look *look, const char *name,
                                     uint32_t *out)
{
    if (look->set == &folders->sets[TRAIN]) {
        if (folders->class_count == CLASSES_MAX)
            return keel_fail(KEEL_LIMIT, "%s: more than %d folders of classes", look->path, CLASSES_MAX);
        KEEL_TRY(keel_grow(&folders->classes, &folders->class_capacity, folders->class_count + 1,
                           sizeof *folders->classes));
        KEEL_TRY(keel_strdup(name, &folders->classes[folders->class_count]));
        folders->class_count++;
    }
    const size_t number = find_class(folders, name);
    *out = (uint32_t)number;
    return number < folders->class_count
               ? KEEL_OK
               : keel_fail(KEEL_INVALID,
                           "%s/%s: no folder of that name is trained on; put folders together that "
                           "belong together",
                           look->path, name);
}

static enum keel_status see_class(void *context, const char *name)
{
    const struct look *above = context;
    struct look look = *above;
    const size_t before = look.set->count;
    if (name[0] == '.')
        return KEEL_OK;
    KEEL_TRY(keel_path_join(look.path, above->path, name));
    if (keel_path_is_file(look.path))
        return KEEL_OK;
    KEEL_TRY(number_class(look.folders, above, name, &look.class));
    KEEL_TRY(keel_dir_list(look.path, see_file, &look));
    return look.set->count > before
               ? KEEL_OK
               : keel_fail(KEEL_INVALID,
                           "%s: holds no .png, .jpg or .jpeg: put the images of that class there, or "
                           "remove it",
                           look.path);
}

static enum keel_status read_item(const struct item *item, char **out, size_t *out_bytes)
{
    int fd = -1;
    KEEL_TRY(keel_data_file_again(&item->file, &fd));
    enum keel_status status = keel_alloc(keel_size(item->file.bytes) + 1, 1, out);
    if (status == KEEL_OK) {
        status = keel_pread_all(fd, *out, item->file.bytes, 0, item->file.path);
        *out_bytes = (size_t)item->file.bytes;
        if (status != KEEL_OK)
            keel_free(*out);
    }
    keel_disk_close(fd);
    return status;
}

/* Names are those within `directory`, so that another place is not another set. */
static enum keel_status digest_set(const struct set *set, const char *directory, uint64_t *digest)
{
    const size_t stride =
        set->bytes > DIGESTED_BYTES ? (set->count + DIGESTED_FILES - 1) / DIGESTED_FILES : 1;
    for (size_t i = 0; i < set->count; i++) {
        const struct item *item = &set->items[i];
        const char *name = item->file.path + strlen(directory);
        char *bytes;
        size_t count;
        *digest = XXH3_64bits_withSeed(name, strlen(name), *digest + item->file.bytes);
        if (i % stride != 0)
            continue;
        KEEL_TRY(read_item(item, &bytes, &count));
        *digest = XXH3_64bits_withSeed(bytes, count, *digest);
        keel_free(bytes);
    }
    return KEEL_OK;
}

static enum keel_status open_set(struct keel_data *data, struct folders *folders, const char *path,
                                 struct set *set)
{
    struct look look = {.folders = folders, .set = set};
    if (snprintf(look.path, sizeof look.path, "%s", path) >= (int)sizeof look.path)
        return keel_fail(KEEL_LIMIT, "%.200s...: path longer than %d bytes", path, KEEL_PATH_BYTES - 1);
    if (!keel_path_exists(path) || keel_path_is_file(path))
        return keel_fail(KEEL_NOT_FOUND, "%s: no folder of folders of images, one for each class, is there%s",
                         path,
                         set == &folders->sets[TRAIN] ? " (data.path, which says what classes are)" : "");
    KEEL_TRY(keel_dir_list(path, see_class, &look));
    if (set->count == 0)
        return keel_fail(KEEL_INVALID, "%s: holds no folder of images: one for each class is wanted", path);
    return digest_set(set, path, &data->digest);
}

/* The last of each class go to what is validated with. */
static enum keel_status split(struct folders *folders, double fraction)
{
    struct set *train = &folders->sets[TRAIN], *val = &folders->sets[VAL];
    size_t stays = 0;
    for (size_t first = 0, end; first < train->count; first = end) {
        for (end = first; end < train->count && train->items[end].class == train->items[first].class;)
            end++;
        const size_t kept = (size_t)((double)(end - first) * fraction);
        for (size_t i = first; i < end; i++)
            if (i < end - kept) {
                train->items[stays++] = train->items[i];
            } else {
                KEEL_TRY(keel_grow(&val->items, &val->capacity, val->count + 1, sizeof *val->items));
                val->items[val->count++] = train->items[i];
            }
    }
    train->count = stays;
    return KEEL_OK;
}

static enum keel_status open_sets(struct keel_data *data, struct folders *folders, const struct keel_job *job)
{
    const bool other = data->use != NULL && data->use->val_path != NULL;
    const char *val_path = other ? data->use->val_path : job->val_path;
    data->whole = !other;
    KEEL_TRY(open_set(data, folders, job->path, &folders->sets[TRAIN]));
    if (val_path[0] != '\0')
        return open_set(data, folders, val_path, &folders->sets[VAL]);
    /* An item that is moved when memory ends would be freed twice: room first. */
    KEEL_TRY(keel_grow(&folders->sets[VAL].items, &folders->sets[VAL].capacity, folders->sets[TRAIN].count,
                       sizeof *folders->sets[VAL].items));
    return split(folders, (double)job->val_fraction);
}

static enum keel_status open_folders(struct keel_data *data, const struct keel_job *job)
{
    struct folders *folders;
    const uint64_t sizes[3] = {job->image_size, job->image_size, 3};
    KEEL_TRY(keel_alloc(1, sizeof *folders, &folders));
    data->own = folders;
    folders->size = job->image_size;
    KEEL_TRY(keel_image_library_open());
    if (job->shift >= job->image_size)
        return keel_fail(KEEL_INVALID, "data.shift = %u moves images of %ux%u out of sight; use less",
                         job->shift, job->image_size, job->image_size);
    KEEL_TRY(open_sets(data, folders, job));
    data->vocab = job->vocab != 0 ? job->vocab : (uint32_t)folders->class_count;
    if (data->vocab < folders->class_count)
        return keel_fail(KEEL_INVALID, "%s: has %zu folders of classes, and model.vocab = %u", job->path,
                         folders->class_count, job->vocab);
    if (data->vocab < 2)
        return keel_fail(KEEL_INVALID,
                         "%s: holds one folder: there is nothing to tell its class from; name the folder "
                         "that has a folder for each class",
                         job->path);
    data->absent_classes = data->vocab - (uint32_t)folders->class_count;
    data->train_count = folders->sets[TRAIN].count;
    data->val_count = folders->sets[VAL].count;
    folders->augment = keel_augment_of(job, data->vocab);
    keel_image_declare(data, &folders->augment, sizes);
    return KEEL_OK;
}

static void close_folders(struct keel_data *data)
{
    struct folders *folders = data->own;
    for (int s = 0; folders != NULL && s < SETS; s++) {
        for (size_t i = 0; i < folders->sets[s].count; i++)
            keel_data_file_fini(&folders->sets[s].items[i].file);
        keel_free(folders->sets[s].items);
    }
    for (size_t c = 0; folders != NULL && c < folders->class_count; c++)
        keel_free(folders->classes[c]);
    if (folders != NULL)
        keel_free(folders->classes);
    keel_free(folders);
}

/* ---- samples ------------------------------------------------------------------------------------------- */

static void copy_pixels(const struct folders *folders, const uint8_t *pixels,
                        const struct keel_image_view *view, float *out)
{
    const int32_t size = (int32_t)folders->size;
    for (int32_t y = 0; y < size; y++)
        for (int32_t x = 0; x < size; x++) {
            const int32_t at_y = y - view->down, moved = x - view->right;
            const bool inside = at_y >= 0 && at_y < size && moved >= 0 && moved < size;
            const int32_t at_x = view->mirrored ? size - 1 - moved : moved;
            for (int32_t c = 0; c < 3; c++)
                *out++ = inside ? (float)pixels[(at_y * size + at_x) * 3 + c] / 255.0F : 0.0F;
        }
}

static enum keel_status decode_item(const struct item *item, struct keel_image *out)
{
    char *bytes;
    size_t count;
    KEEL_TRY(read_item(item, &bytes, &count));
    const enum keel_status status = keel_image_decode(bytes, count, item->file.path, out);
    keel_free(bytes);
    return status;
}

static enum keel_status check_folders(const struct keel_data *data, struct keel_data_checking *check)
{
    const struct folders *folders = data->own;
    check->unit = "images";
    check->of = folders->sets[TRAIN].count + folders->sets[VAL].count;
    for (int s = 0; s < SETS; s++)
        for (size_t i = 0; i < folders->sets[s].count; i++) {
            struct keel_image image = {.pixels = NULL};
            const enum keel_status status = decode_item(&folders->sets[s].items[i], &image);
            keel_free(image.pixels);
            KEEL_TRY(keel_data_checked(check, 1, status));
        }
    return KEEL_OK;
}

static enum keel_status load_pixels(const struct folders *folders, const struct item *item,
                                    const struct keel_image_view *view, uint8_t **out)
{
    const uint32_t size = folders->size;
    struct keel_image image;
    enum keel_status status = decode_item(item, &image);
    if (status ==
        KEEL_CORRUPT) /* of a worker it would be its board's; the data are not what they were to be */
        status = KEEL_MISMATCH;
    KEEL_TRY(status);
    const struct keel_image_box box =
        keel_image_crop(&folders->augment, view, image.width, image.height, size);
    status = keel_alloc((size_t)size * size, 3, out);
    if (status == KEEL_OK)
        keel_image_fit(&image, &box, size, *out);
    keel_free(image.pixels);
    return status;
}

/* The items of which samples of one kind are. */
struct source {
    const struct folders *folders;
    const struct set *set;
};

static enum keel_status copy_item(void *context, uint64_t item, const struct keel_image_view *view,
                                  float *out)
{
    const struct source *source = context;
    uint8_t *pixels;
    KEEL_TRY(load_pixels(source->folders, &source->set->items[item], view, &pixels));
    copy_pixels(source->folders, pixels, view, out);
    keel_free(pixels);
    return KEEL_OK;
}

static int32_t label_of(void *context, uint64_t item)
{
    return (int32_t)((const struct source *)context)->set->items[item].class;
}

static enum keel_status fill_folders(const struct keel_data *data, const struct keel_sample *sample,
                                     uint32_t slot, void *const *inputs)
{
    const struct folders *folders = data->own;
    struct source source = {folders, &folders->sets[sample->validation ? VAL : TRAIN]};
    const struct keel_image_source images = {.context = &source,
                                             .copy = copy_item,
                                             .label = label_of,
                                             .elements = (uint64_t)folders->size * folders->size * 3};
    const struct keel_image_parts parts = keel_image_draw(data, sample, &folders->augment);
    return keel_image_fill(&folders->augment, &parts, &images, slot, inputs);
}

const struct keel_reader keel_folder_reader = {.open = open_folders,
                                               .close = close_folders,
                                               .fill = fill_folders,
                                               .check = check_folders,
                                               .is_right = keel_image_is_right,
                                               .class_of = keel_image_class_of};
