/* board.c - opening a board: from a name to a device with the facts and the code that its folder adds.
 *
 * Owns the device of an open board, and its code. Which file is a device's own is said in board_find.c. */
#include "artifact.h"
#include "board_file.h"
#include <ctype.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct keel_board {
    struct keel_board_file file;
    struct keel_device *device;
    struct keel_kernels_options kernels;
    struct keel_setting settings[KEEL_BOARD_TUNABLES_MAX]; /* in `kernels` */
    struct keel_board_clblast clblast;                     /* in `kernels` */
    struct keel_artifacts *artifacts;                      /* NULL: none */
    bool only_artifacts;                                   /* nothing may be compiled */
};

/* ---- which device ---- */

void keel_board_name_split(const char *name, char folder[KEEL_PATH_BYTES], uint32_t *out_number)
{
    snprintf(folder, KEEL_PATH_BYTES, "%s", name);
    *out_number = 0;
    char *colon = strrchr(folder, ':');
    if (colon == NULL || strchr(colon, '/') != NULL || !isdigit((unsigned char)colon[1]))
        return;
    char *end;
    unsigned long number = strtoul(colon + 1, &end, 10);
    if (*end != '\0' || number > KEEL_DEVICE_LIST_MAX)
        return;
    *colon = '\0';
    *out_number = (uint32_t)number;
}

/* Why none of the machine's devices is this board. */
static enum keel_status no_device(const struct keel_board_file *file, const struct keel_device_info *devices,
                                  uint32_t count, uint32_t number)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct keel_device_info *info = &devices[i];
        enum keel_board_fit fit = keel_board_file_fit(file, info);
        if (fit == KEEL_BOARD_FITS && info->passed_over[0] != '\0')
            return keel_fail(KEEL_UNSUPPORTED, "board %.150s: %s cannot be used: %s", file->id, info->name,
                             info->passed_over);
        if (fit == KEEL_BOARD_OTHER_DRIVER)
            return keel_fail(
                KEEL_UNSUPPORTED,
                "board %.150s: the driver of %s is \"%s\", and board.conf is for \"%s\"; install "
                "that driver, or check the board with this one and change match.driver",
                file->id, info->name, info->driver_version, file->match.driver);
    }
    return keel_fail(KEEL_NOT_FOUND,
                     "board %.150s: no device %u of this machine has platform \"%s\" and name \"%s\"; "
                     "`keel board list` shows what there is",
                     file->id, number, file->match.platform, file->match.name);
}

static enum keel_status pick(const struct keel_board_file *file, uint32_t number,
                             struct keel_device_info *devices, struct keel_device_info *out)
{
    uint32_t count = 0, found = 0;
    KEEL_TRY(keel_device_list(devices, KEEL_DEVICE_LIST_MAX, &count, NULL));
    for (uint32_t i = 0; i < count; i++) {
        if (devices[i].passed_over[0] != '\0' || keel_board_file_fit(file, &devices[i]) != KEEL_BOARD_FITS ||
            found++ < number)
            continue;
        *out = devices[i];
        return KEEL_OK;
    }
    return no_device(file, devices, count, number);
}

/* From the name of a board to its file and its device. */
static enum keel_status find_board(const char *name, const struct keel_device_options *options,
                                   struct keel_board_file *file, struct keel_device_info *out)
{
    char part[KEEL_PATH_BYTES], folder[KEEL_PATH_BYTES];
    uint32_t number;
    keel_board_name_split(name, part, &number);
    KEEL_TRY(keel_board_folder_find(part, folder));
    KEEL_TRY(keel_board_file_read(folder, file));
    KEEL_TRY(
        keel_device_select("host", options, out)); /* tells the drivers how many threads, before the list */
    struct keel_device_info *devices;
    KEEL_TRY(keel_alloc(KEEL_DEVICE_LIST_MAX, sizeof *devices, &devices));
    enum keel_status status = pick(file, number, devices, out);
    keel_free(devices);
    return status;
}

enum keel_status keel_board_artifacts_folder(const struct keel_board_file *file, char out[KEEL_PATH_BYTES])
{
    return file->artifacts[0] == '/' ? keel_path_join(out, "", file->artifacts)
                                     : keel_path_join(out, file->folder, file->artifacts);
}

bool keel_board_has_artifacts(const struct keel_board_file *file)
{
    char folder[KEEL_PATH_BYTES], manifest[KEEL_PATH_BYTES];
    return file->folder[0] != '\0' && keel_board_artifacts_folder(file, folder) == KEEL_OK &&
           keel_path_join(manifest, folder, "manifest.json") == KEEL_OK && keel_path_is_file(manifest);
}

/* "auto" passes over what has no compiler, but not when its folder has its code. */
static void prefer_artifacts(const struct keel_device_options *options, struct keel_device_info *device)
{
    static const struct keel_code_provider some = {0};
    struct keel_device_options with_code = *options;
    struct keel_device_info other;
    struct keel_board_file *file;
    with_code.code = &some;
    if (keel_device_select("auto", &with_code, &other) != KEEL_OK ||
        strcmp(other.selector, device->selector) == 0 || keel_alloc(1, sizeof *file, &file) != KEEL_OK)
        return;
    if (keel_board_file_find(&other, file) == KEEL_OK && keel_board_has_artifacts(file))
        *device = other;
    keel_free(file);
}

/* From a selector to its device, and from there to the board's file. */
static enum keel_status find_device(const char *selector, const struct keel_device_options *options,
                                    struct keel_board_file *file, struct keel_device_info *out)
{
    KEEL_TRY(keel_device_select(selector, options, out));
    if (strcasecmp(selector, "auto") == 0)
        prefer_artifacts(options, out);
    return keel_board_file_find(out, file);
}

enum keel_status keel_board_look(const char *name, uint32_t threads, struct keel_board_file *out_file,
                                 struct keel_device_info *out_info)
{
    const struct keel_device_options native = {.threads = threads};
    return strchr(name, '/') != NULL ? find_board(name, &native, out_file, out_info)
                                     : find_device(name, &native, out_file, out_info);
}

/* ---- code ---- */

static enum keel_status find_code(void *context, const struct keel_module *module, const char *options,
                                  struct keel_code *out)
{
    const struct keel_board *board = context;
    enum keel_status status = keel_artifacts_find(board->artifacts, module, options, out);
    if (status == KEEL_OK || board->only_artifacts)
        return status == KEEL_NOT_FOUND ? keel_fail(KEEL_UNSUPPORTED, "%s", keel_detail()) : status;
    keel_log(KEEL_LOG_INFO, "module %s is compiled: %s", module->name, keel_detail());
    return KEEL_NOT_FOUND;
}

/* Artifacts that are not there, or of another driver, are wrong only where the board cannot do without. */
static enum keel_status open_code(struct keel_board *board, const struct keel_device_info *info)
{
    char folder[KEEL_PATH_BYTES];
    struct keel_device_info as_file = *info;
    if (board->file.folder[0] == '\0' || board->file.code == KEEL_BOARD_CODE_SOURCE)
        return KEEL_OK;
    if (board->file.memory_banks > 0)
        as_file.memory_banks = board->file.memory_banks;
    board->only_artifacts =
        board->file.code >= KEEL_BOARD_CODE_ARTIFACTS || (info->code_forms & KEEL_CODE_SOURCE) == 0;
    KEEL_TRY(keel_board_artifacts_folder(&board->file, folder));
    if (!keel_board_has_artifacts(&board->file))
        return board->only_artifacts
                   ? keel_fail(KEEL_NOT_FOUND,
                               "board %.200s: takes its code from %.200s, and there is none; make it: keel "
                               "board build %.200s",
                               board->file.id, folder, board->file.id)
                   : KEEL_OK;
    enum keel_status status = keel_artifacts_open(folder, &as_file, &board->artifacts);
    if (status != KEEL_MISMATCH || board->only_artifacts)
        return status;
    keel_log(KEEL_LOG_WARN, "kernels are compiled: %s", keel_detail());
    return KEEL_OK;
}

/* ---- opening ---- */

static enum keel_status open_board(const char *name, const struct keel_board_options *options,
                                   struct keel_board *board)
{
    struct keel_device_options native = {.threads = options->threads};
    const struct keel_code_provider code = {.find = find_code, .context = board};
    struct keel_device_info info;
    KEEL_TRY(keel_board_look(name, options->threads, &board->file, &info));
    if (!options->without_code)
        KEEL_TRY(open_code(board, &info));
    if (info.kind != KEEL_DEVICE_HOST) {
        native.image_limit = board->file.image_limit;
        native.memory_banks = board->file.memory_banks;
        native.bank_style = (enum keel_bank_style)board->file.bank_style;
        native.code = board->artifacts != NULL ? &code : NULL;
    }
    if (!options->without_tuning) {
        KEEL_TRY(keel_board_tune_read(&board->file, &info));
        KEEL_TRY(keel_board_clblast_read(&board->file, &info, &board->clblast));
    }
    KEEL_TRY(keel_board_settings(&board->file, board->settings));
    board->kernels.settings = board->settings;
    board->kernels.setting_count = board->file.tunable_count;
    board->kernels.only_artifacts = board->only_artifacts;
    board->kernels.provider_parameters = board->clblast.parameters;
    board->kernels.provider_parameter_count = board->clblast.kernel_count;
    board->kernels.provider_file = board->clblast.path;
    board->kernels.numerics = options->numerics;
    return keel_device_open(info.selector, &native, &board->device);
}

enum keel_status keel_board_open(const char *name, const struct keel_board_options *options,
                                 struct keel_board **out)
{
    struct keel_board *board;
    KEEL_TRY(keel_alloc(1, sizeof *board, &board));
    enum keel_status status =
        open_board(name, options != NULL ? options : &(struct keel_board_options){.threads = 0}, board);
    if (status != KEEL_OK) {
        keel_board_close(board);
        return status;
    }
    *out = board;
    return KEEL_OK;
}

void keel_board_close(struct keel_board *board)
{
    if (board == NULL)
        return;
    keel_device_close(board->device);
    keel_artifacts_close(board->artifacts);
    keel_free(board);
}

struct keel_device *keel_board_device(const struct keel_board *board)
{
    return board->device;
}

const struct keel_board_file *keel_board_file(const struct keel_board *board)
{
    return &board->file;
}

const struct keel_kernels_options *keel_board_kernels(const struct keel_board *board)
{
    return &board->kernels;
}
