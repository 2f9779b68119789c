/* clblast_import.c - `keel board tune BOARD --clblast DIR`: clblast.conf out of what CLBlast's own tuners
 * found.
 *
 * Each tuner (clblast_tuner_xgemm -precision 32, ...) leaves a file of JSON where it runs. Read is what it
 * found best; where a kernel was tuned in several ways, the fastest. Files for another device are refused.
 * Whether the parameters are all that a kernel wants is CLBlast's to say, when kernels are made. */
#include "board_file.h"
#include <jansson.h>
#include <keel/command.h>
#include <keel/memory.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAYS = 4, RESULT_BYTES_MAX = 16 << 20, TEXT_BYTES = 8192 };

/* What products by CLBlast are made of, and the tuners' names for it: clblast_NAME_32.json. */
static const struct {
    const char *kernel, *names[WAYS];
} sources[] = {
    {"Copy", {"copy"}},
    {"Pad", {"pad"}},
    {"Transpose", {"transpose"}},
    {"Padtranspose", {"padtranspose"}},
    {"Xgemm", {"xgemm_1", "xgemm_2", "xgemm_11", "xgemm_12"}},
    {"XgemmDirect", {"xgemm_direct_1", "xgemm_direct_2"}},
    {"GemmRoutine", {"gemm_routine"}},
};

static enum keel_status refuse(const char *path, const char *why)
{
    return keel_fail(KEEL_INVALID, "%s: %s; let CLBlast's tuner make it again on this device", path, why);
}

/* NULL into *out when there is no such file. */
static enum keel_status read_result(const char *folder, const char *name, char path[KEEL_PATH_BYTES],
                                    json_t **out)
{
    char file[64], *text = NULL;
    size_t bytes = 0;
    *out = NULL;
    snprintf(file, sizeof file, "clblast_%s_32.json", name);
    KEEL_TRY(keel_path_join(path, folder, file));
    if (!keel_path_exists(path))
        return KEEL_OK;
    if (!keel_path_is_file(path)) /* a pipe may never end */
        return refuse(path, "is no file");
    KEEL_TRY(keel_file_read(path, RESULT_BYTES_MAX, &text, &bytes));
    *out = json_loadb(text, bytes, 0, NULL);
    keel_free(text);
    return *out != NULL ? KEEL_OK : refuse(path, "is no JSON");
}

/* Does a parameter between `list` and `here` have the name of the one here? `name`: its bytes. */
static bool is_repeated(const char *list, const char *here, size_t name)
{
    while (list < here && strncmp(list, here, name + 1) != 0) {
        list += strcspn(list, " ");
        list += strspn(list, " ");
    }
    return list < here;
}

/* "PRECISION=32 TRA_DIM=32 TRA_PAD=1" by lines, without the precision. */
static bool write_parameters(const char *list, char *text, size_t room)
{
    const char *found = list;
    size_t at = 0;
    while (*found != '\0') {
        const size_t name = strspn(found, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
        const size_t digits = found[name] == '=' ? strspn(found + name + 1, "0123456789") : 0;
        const size_t length = name + 1 + digits;
        if (name == 0 || digits == 0 || digits > 9 || (found[length] != ' ' && found[length] != '\0'))
            return false;
        const bool precision = strncmp(found, "PRECISION=", name + 1) == 0;
        if (is_repeated(list, found, name) ||
            (precision && (digits != 2 || strncmp(found + length - 2, "32", 2) != 0)))
            return false;
        if (!precision)
            at += (size_t)snprintf(text + at, room - at, "%.*s = %.*s\n", (int)name, found, (int)digits,
                                   found + name + 1);
        if (at >= room)
            return false;
        found += length;
        found += strspn(found, " ");
    }
    return at > 0;
}

/* The fastest of one kernel's results, or none. */
struct best {
    double time_ms;
    char text[1024];
};

static enum keel_status take(const char *path, const json_t *result, const struct keel_device_info *info,
                             struct best *best)
{
    const char *device = json_string_value(json_object_get(result, "device"));
    const char *time = json_string_value(json_object_get(result, "best_time"));
    const char *found = json_string_value(json_object_get(result, "best_parameters"));
    struct best one = {0};
    if (device == NULL || time == NULL || found == NULL)
        return refuse(path, "has no device, best_time or best_parameters");
    if (strcmp(device, info->name) != 0)
        return keel_fail(KEEL_INVALID, "%.400s: is of \"%.100s\", and this is \"%s\"", path, device,
                         info->name);
    char *end;
    one.time_ms = strtod(time, &end);
    if (end == time || *end != '\0' || !isfinite(one.time_ms) || one.time_ms <= 0)
        return refuse(path, "its best_time is no time in milliseconds");
    if (!write_parameters(found, one.text, sizeof one.text))
        return refuse(path,
                      "its best_parameters are no list of NAME=NUMBER, each name once, with PRECISION=32");
    if (best->text[0] == '\0' || one.time_ms < best->time_ms)
        *best = one;
    return KEEL_OK;
}

static enum keel_status find_best(const char *folder, const char *const names[WAYS],
                                  const struct keel_device_info *info, struct best *best)
{
    *best = (struct best){0};
    for (int way = 0; way < WAYS && names[way] != NULL; way++) {
        char path[KEEL_PATH_BYTES];
        json_t *result = NULL;
        KEEL_TRY(read_result(folder, names[way], path, &result));
        enum keel_status status = result != NULL ? take(path, result, info, best) : KEEL_OK;
        json_decref(result);
        KEEL_TRY(status);
    }
    return KEEL_OK;
}

enum keel_status keel_board_clblast_import(const char *folder, const struct keel_device_info *info,
                                           const char *path, uint32_t *out_kernel_count)
{
    char text[TEXT_BYTES];
    uint32_t count = 0;
    size_t at = (size_t)snprintf(text, sizeof text, "[clblast]\ndriver = %s\n", info->driver_version);
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        struct best best;
        KEEL_TRY(find_best(folder, sources[i].names, info, &best));
        if (best.text[0] == '\0')
            continue;
        at += (size_t)snprintf(text + at, sizeof text - at, "[%s]\n%s", sources[i].kernel, best.text);
        KEEL_ASSERT(at < sizeof text);
        count++;
    }
    if (count == 0)
        return keel_fail(KEEL_NOT_FOUND, "%s: holds no clblast_NAME_32.json of CLBlast's tuners", folder);
    KEEL_TRY(keel_command_write_file(path, text, at));
    *out_kernel_count = count;
    return KEEL_OK;
}
