/* board_file.c - board.conf to struct keel_board_file: the table of its keys, and the two sections whose keys
 * are names of others: tunables of kernels, and checks that are waived.
 *
 * Whether a tunable or a check of that name exists is said by those who have them. */
#include "board_file.h"
#include <errno.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FIELD(field) offsetof(struct keel_board_file, field), sizeof(((struct keel_board_file *)0)->field)
#define RATE_MAX     1e18

static const struct keel_ini_key keys[] = {
    {"board", "name", KEEL_INI_TEXT, FIELD(name), "", 0, 0, NULL, false, "what people call it"},
    {"board", "kind", KEEL_INI_CHOICE, FIELD(kind), "any", 0, 0, "any|host|cpu|gpu|accelerator", false,
     "kind of device that it must be"},
    {"match", "platform", KEEL_INI_TEXT, FIELD(match.platform), "", 0, 0, NULL, false,
     "pattern of the platform's name; empty: any"},
    {"match", "name", KEEL_INI_TEXT, FIELD(match.name), "", 0, 0, NULL, false,
     "pattern of the device's name; empty: any"},
    {"match", "driver", KEEL_INI_TEXT, FIELD(match.driver), "", 0, 0, NULL, false,
     "pattern of the driver's version; empty: any"},
    {"device", "images", KEEL_INI_U32, FIELD(image_limit), "0", 0, 64, NULL, false,
     "programs' images that it holds at once; 0: no limit"},
    {"device", "banks", KEEL_INI_U32, FIELD(memory_banks), "1", 1, 64, NULL, false, "memory banks"},
    {"device", "bank_style", KEEL_INI_CHOICE, FIELD(bank_style), "none", 0, 0, "none|intel|xilinx", false,
     "how its driver is told the bank of a buffer"},
    {"device", "peak_flops_s", KEEL_INI_U64, FIELD(peak_flops_s), "0", 0, RATE_MAX, NULL, false,
     "float32 operations a second at most, as its maker says; 0: not known"},
    {"code", "form", KEEL_INI_CHOICE, FIELD(code), "auto", 0, 0, "auto|source|artifacts|builtin", false,
     "auto: artifacts made for this driver, else source; builtin: artifacts of kernels in the board"},
    {"code", "artifacts", KEEL_INI_TEXT, FIELD(artifacts), "artifacts", 1, 0, NULL, false,
     "folder of the artifacts, from the board's folder"},
    {"code", "build_with", KEEL_INI_TEXT, FIELD(build_with), "", 0, 0, NULL, false,
     "device that compiles for it; empty: itself"},
    {"code", "one_image", KEEL_INI_BOOL, FIELD(one_image), "false", 0, 0, NULL, false,
     "link all modules into one image"},
    {"limits", "memory_bytes", KEEL_INI_U64, FIELD(limits.memory_bytes), "0", 0, RATE_MAX, NULL, false,
     "least memory; 0 here and below: no limit"},
    {"limits", "launch_ns", KEEL_INI_U64, FIELD(limits.launch_ns), "0", 0, RATE_MAX, NULL, false,
     "most that an empty launch may take"},
    {"limits", "write_bytes_s", KEEL_INI_U64, FIELD(limits.write_bytes_s), "0", 0, RATE_MAX, NULL, false,
     "least rate from host to device"},
    {"limits", "read_bytes_s", KEEL_INI_U64, FIELD(limits.read_bytes_s), "0", 0, RATE_MAX, NULL, false,
     "least rate from device to host"},
    {"limits", "copy_bytes_s", KEEL_INI_U64, FIELD(limits.copy_bytes_s), "0", 0, RATE_MAX, NULL, false,
     "least rate of copies within the device"},
    {"limits", "gemm_flops_s", KEEL_INI_U64, FIELD(limits.gemm_flops_s), "0", 0, RATE_MAX, NULL, false,
     "least rate of a matrix product"},
    {"recovery", "reset", KEEL_INI_TEXT, FIELD(reset), "", 0, 0, NULL, false,
     "command that resets the board; empty: none"},
    {"recovery", "reset_s", KEEL_INI_U32, FIELD(reset_s), "60", 1, 3600, NULL, false,
     "seconds that the reset may take"},
};

/* ---- sections of names ---- */

static enum keel_status bad_line(const struct keel_ini_entry *entry, const char *wanted)
{
    return keel_fail(KEEL_INVALID, "%s: %s.%s = %s: %s", entry->where, entry->section, entry->name,
                     entry->value, wanted);
}

static enum keel_status given_twice(const struct keel_ini_entry *entry)
{
    return keel_fail(KEEL_INVALID, "%s: %s.%s was given already; keep one of them", entry->where,
                     entry->section, entry->name);
}

enum keel_status keel_board_tunable_take(struct keel_board_file *file, const struct keel_ini_entry *entry)
{
    for (uint32_t i = 0; i < file->tunable_count; i++)
        if (strcmp(file->tunables[i].name, entry->name) == 0)
            return given_twice(entry);
    if (file->tunable_count == KEEL_BOARD_TUNABLES_MAX || strlen(entry->name) >= KEEL_BOARD_NAME_BYTES)
        return bad_line(entry, "a name too long, or too many; 64 at most");
    char *end;
    errno = 0;
    unsigned long long value = strtoull(entry->value, &end, 10);
    if (*entry->value < '0' || *entry->value > '9' || *end != '\0' || errno != 0 || value > UINT32_MAX)
        return bad_line(entry, "a whole number is wanted");
    struct keel_board_tunable *tunable = &file->tunables[file->tunable_count++];
    snprintf(tunable->name, sizeof tunable->name, "%s", entry->name);
    tunable->value = (uint32_t)value;
    tunable->line = (unsigned)strtoul(strrchr(entry->where, ':') + 1, NULL, 10);
    return KEEL_OK;
}

/* "2027-01-31", of a day that there is. */
static bool is_day(const char *text)
{
    struct tm day = {0}, same;
    const char *end = strlen(text) == KEEL_DAY_BYTES - 1 ? strptime(text, "%Y-%m-%d", &day) : NULL;
    same = day;
    return end != NULL && *end == '\0' && timegm(&same) >= 0 && same.tm_mday == day.tm_mday &&
           same.tm_mon == day.tm_mon;
}

static enum keel_status take_waiver(struct keel_board_file *file, const struct keel_ini_entry *entry)
{
    if (keel_board_waiver(file, entry->name) != NULL)
        return given_twice(entry);
    if (file->waiver_count == KEEL_BOARD_WAIVERS_MAX || strlen(entry->name) >= KEEL_BOARD_NAME_BYTES)
        return bad_line(entry, "a name too long, or too many waivers; 32 at most");
    static const char word[] = " until ";
    const char *until = NULL;
    for (const char *at = entry->value; (at = strstr(at, word)) != NULL; at++)
        until = at;
    size_t length = until != NULL ? (size_t)(until - entry->value) : 0;
    if (length == 0 || length >= KEEL_BOARD_TEXT_BYTES || !is_day(until + strlen(word)))
        return bad_line(entry, "\"reason until YYYY-MM-DD\" is wanted: no waiver is for good");
    struct keel_board_waiver *waiver = &file->waivers[file->waiver_count++];
    snprintf(waiver->check, sizeof waiver->check, "%s", entry->name);
    snprintf(waiver->reason, sizeof waiver->reason, "%.*s", (int)length, entry->value);
    memcpy(waiver->until, until + strlen(word), sizeof waiver->until);
    return KEEL_OK;
}

static enum keel_status take(void *object, const struct keel_ini_entry *entry)
{
    if (strcmp(entry->section, "kernels") == 0)
        return keel_board_tunable_take(object, entry);
    return strcmp(entry->section, "waivers") == 0 ? take_waiver(object, entry) : KEEL_NOT_FOUND;
}

static const struct keel_ini_table table = {
    .keys = keys, .key_count = sizeof keys / sizeof keys[0], .what = "board", .take = take};

/* The tunable whose name is nearest; at 0 it is that one. */
static const char *nearest_tunable(const char *wanted, unsigned *out_distance)
{
    const char *nearest = "";
    *out_distance = UINT32_MAX;
    for (uint32_t i = 0; i < keel_tunable_count(); i++) {
        const char *name = keel_tunable_get(i).name;
        unsigned distance = keel_ini_distance(name, wanted);
        if (distance < *out_distance) {
            *out_distance = distance;
            nearest = name;
        }
    }
    return nearest;
}

static enum keel_status check_tunable(const struct keel_board_file *file,
                                      const struct keel_board_tunable *tunable)
{
    unsigned distance;
    const char *nearest = nearest_tunable(tunable->name, &distance);
    if (distance == 0)
        return KEEL_OK;
    return keel_fail(KEEL_INVALID,
                     "%.300s/board.conf:%u: unknown key kernels.%s; the nearest known key is kernels.%s",
                     file->folder, tunable->line, tunable->name, nearest);
}

enum keel_status keel_board_settings(const struct keel_board_file *file,
                                     struct keel_setting out[KEEL_BOARD_TUNABLES_MAX])
{
    for (uint32_t i = 0; i < file->tunable_count; i++) {
        KEEL_TRY(check_tunable(file, &file->tunables[i]));
        out[i] = (struct keel_setting){.name = file->tunables[i].name, .value = file->tunables[i].value};
    }
    return KEEL_OK;
}

/* ---- tune.conf ---- */

struct tuning {
    char driver[KEEL_DEVICE_NAME_BYTES], day[16];
    struct keel_board_file found;
};

#define TUNING(field) offsetof(struct tuning, field), sizeof(((struct tuning *)0)->field)
static const struct keel_ini_key tune_keys[] = {
    {"tune", "driver", KEEL_INI_TEXT, TUNING(driver), "", 0, 0, NULL, false,
     "driver that it was measured on"},
    {"tune", "day", KEEL_INI_TEXT, TUNING(day), "", 0, 0, NULL, false, "day of the measurement"},
};

static enum keel_status take_tuned(void *object, const struct keel_ini_entry *entry)
{
    struct tuning *tuning = object;
    return strcmp(entry->section, "kernels") == 0 ? keel_board_tunable_take(&tuning->found, entry)
                                                  : KEEL_NOT_FOUND;
}

static const struct keel_ini_table tune_table = {.keys = tune_keys,
                                                 .key_count = sizeof tune_keys / sizeof tune_keys[0],
                                                 .what = "tuning",
                                                 .take = take_tuned};

static bool has_tunable(const struct keel_board_file *file, const char *name)
{
    for (uint32_t i = 0; i < file->tunable_count; i++)
        if (strcmp(file->tunables[i].name, name) == 0)
            return true;
    return false;
}

/* Keel wrote the file, and another release has other tunables: what is left of it holds. */
static void add_tuned(struct keel_board_file *file, const struct tuning *tuning, const char *path)
{
    const uint32_t count = tuning->found.tunable_count;
    uint32_t stale = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct keel_board_tunable *found = &tuning->found.tunables[i];
        unsigned distance;
        (void)nearest_tunable(found->name, &distance);
        if (distance > 0) {
            stale++;
            keel_log(KEEL_LOG_WARN, "%s:%u: %s is no tunable of this release and is left out", path,
                     found->line, found->name);
        } else if (!has_tunable(file, found->name) && file->tunable_count < KEEL_BOARD_TUNABLES_MAX) {
            file->tunables[file->tunable_count++] = *found;
        }
    }
    if (stale > 0)
        keel_log(KEEL_LOG_WARN, "%s: %u of %u tunables are kept; tune anew: keel board tune", path,
                 count - stale, count);
}

enum keel_status keel_board_tune_read(struct keel_board_file *file, const struct keel_device_info *info)
{
    char path[KEEL_PATH_BYTES];
    if (file->folder[0] == '\0')
        return KEEL_OK;
    KEEL_TRY(keel_path_join(path, file->folder, "tune.conf"));
    if (!keel_path_exists(path))
        return KEEL_OK;
    if (!keel_path_is_file(path)) /* a pipe may never end */
        return keel_fail(KEEL_INVALID, "%s: is no file; remove it, and make one with keel board tune", path);
    struct tuning *tuning;
    KEEL_TRY(keel_alloc(1, sizeof *tuning, &tuning));
    enum keel_status status = keel_ini_read(&tune_table, path, tuning);
    if (status == KEEL_OK && strcmp(tuning->driver, info->driver_version) == 0)
        add_tuned(file, tuning, path);
    else if (status == KEEL_OK)
        keel_log(KEEL_LOG_WARN, "%s: tuned with driver \"%s\" and this is \"%s\": not used; keel board tune",
                 path, tuning->driver, info->driver_version);
    else if (status == KEEL_INVALID)
        status = keel_fail(status, "%s; remove the file, or make it anew: keel board tune", keel_detail());
    keel_free(tuning);
    return status;
}

/* ---- reading a file ---- */

void keel_board_file_defaults(struct keel_board_file *out)
{
    memset(out, 0, sizeof *out);
    keel_ini_defaults(&table, out);
}

/* The last two names of a folder's real path. */
static enum keel_status set_folder(struct keel_board_file *file, const char *folder)
{
    char *real = realpath(folder, NULL);
    if (real == NULL)
        return keel_fail_errno(errno, "%s: no such board folder; `keel board list` shows those there are",
                               folder);
    size_t length = strlen(real);
    if (length < sizeof file->folder) {
        memcpy(file->folder, real, length + 1);
        const char *slash = strrchr(real, '/');
        while (slash > real && slash[-1] != '/')
            slash--;
        snprintf(file->id, sizeof file->id, "%s", slash);
    }
    free(real);
    return length < sizeof file->folder
               ? KEEL_OK
               : keel_fail(KEEL_LIMIT, "%s: path longer than %d bytes", folder, KEEL_PATH_BYTES - 1);
}

static enum keel_status check(const struct keel_board_file *file, const char *path)
{
    if (file->match.platform[0] == '\0' && file->match.name[0] == '\0')
        return keel_fail(KEEL_INVALID,
                         "%s: says of no device that it is its own; set match.platform or match.name", path);
    if (file->memory_banks > 1 && file->bank_style == 0)
        return keel_fail(KEEL_INVALID,
                         "%s: device.banks = %u without device.bank_style; say how the driver is told the "
                         "bank: intel or xilinx",
                         path, file->memory_banks);
    return KEEL_OK;
}

enum keel_status keel_board_file_read(const char *folder, struct keel_board_file *out)
{
    char path[KEEL_PATH_BYTES];
    keel_board_file_defaults(out);
    KEEL_TRY(set_folder(out, folder));
    KEEL_TRY(keel_path_join(path, folder, "board.conf"));
    KEEL_TRY(keel_ini_read(&table, path, out));
    return check(out, path);
}

const struct keel_board_waiver *keel_board_waiver(const struct keel_board_file *file, const char *name)
{
    for (uint32_t i = 0; i < file->waiver_count; i++)
        if (strcmp(file->waivers[i].check, name) == 0)
            return &file->waivers[i];
    return NULL;
}
