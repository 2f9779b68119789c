/* clblast_file.c - clblast.conf of a board's folder: the parameters that CLBlast's tuners found for its fp32
 * kernels, for who computes by CLBlast (gemm.provider).
 *
 * Like tune.conf it counts for one version of the driver. Which kernels and parameters there are is CLBlast's
 * to know: it says so when kernels are made. */
#include "board_file.h"
#include <errno.h>
#include <keel/log.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(field)                                                                                         \
    offsetof(struct keel_board_clblast, field), sizeof(((struct keel_board_clblast *)0)->field)
static const struct keel_ini_key keys[] = {
    {"clblast", "driver", KEEL_INI_TEXT, FIELD(driver), "", 0, 0, NULL, false,
     "driver that it was measured on"},
};

static enum keel_status refuse(const struct keel_ini_entry *entry, const char *wanted)
{
    return keel_fail(KEEL_INVALID, "%s: %s.%s = %s: %s", entry->where, entry->section, entry->name,
                     entry->value, wanted);
}

/* The kernel of a line: the last one, or a new one. */
static enum keel_status kernel_of(struct keel_board_clblast *clblast, const struct keel_ini_entry *entry)
{
    const uint32_t count = clblast->kernel_count;
    if (count > 0 && strcmp(clblast->kernels[count - 1], entry->section) == 0)
        return KEEL_OK;
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(clblast->kernels[i], entry->section) == 0)
            return refuse(entry, "the kernel was given already; keep its parameters together");
    if (count == KEEL_BOARD_CLBLAST_KERNELS || strlen(entry->section) >= sizeof clblast->kernels[0])
        return refuse(entry, "a name too long, or too many kernels; 16 at most");
    memcpy(clblast->kernels[count], entry->section, strlen(entry->section) + 1);
    clblast->parameters[count] = (struct keel_provider_parameters){
        .kernel = clblast->kernels[count],
        .names = clblast->name_list + clblast->value_count,
        .values = clblast->values + clblast->value_count,
    };
    clblast->kernel_count++;
    return KEEL_OK;
}

static enum keel_status take(void *object, const struct keel_ini_entry *entry)
{
    struct keel_board_clblast *clblast = object;
    KEEL_TRY(kernel_of(clblast, entry));
    struct keel_provider_parameters *kernel = &clblast->parameters[clblast->kernel_count - 1];
    const uint32_t at = clblast->value_count;
    for (uint32_t i = 0; i < kernel->count; i++)
        if (strcmp(kernel->names[i], entry->name) == 0)
            return refuse(entry, "it was given already; keep one of them");
    if (at == KEEL_BOARD_CLBLAST_VALUES || strlen(entry->name) >= sizeof clblast->names[0])
        return refuse(entry, "a name too long, or too many parameters; 256 at most");
    char *end;
    errno = 0;
    unsigned long value = strtoul(entry->value, &end, 10);
    if (*entry->value < '0' || *entry->value > '9' || *end != '\0' || errno != 0)
        return refuse(entry, "a whole number is wanted");
    memcpy(clblast->names[at], entry->name, strlen(entry->name) + 1);
    clblast->name_list[at] = clblast->names[at];
    clblast->values[at] = value;
    clblast->value_count++;
    kernel->count++;
    return KEEL_OK;
}

static const struct keel_ini_table table = {
    .keys = keys, .key_count = sizeof keys / sizeof keys[0], .what = "CLBlast", .take = take};

enum keel_status keel_board_clblast_read(const struct keel_board_file *file,
                                         const struct keel_device_info *info, struct keel_board_clblast *out)
{
    memset(out, 0, sizeof *out);
    if (file->folder[0] == '\0')
        return KEEL_OK;
    KEEL_TRY(keel_path_join(out->path, file->folder, "clblast.conf"));
    if (!keel_path_exists(out->path))
        return KEEL_OK;
    if (!keel_path_is_file(out->path)) /* a pipe may never end */
        return keel_fail(KEEL_INVALID, "%s: is no file; remove it", out->path);
    KEEL_TRY(keel_ini_read(&table, out->path, out));
    if (strcmp(out->driver, info->driver_version) == 0)
        return KEEL_OK;
    keel_log(KEEL_LOG_WARN, "%s: tuned with driver \"%s\" and this is \"%s\": not used", out->path,
             out->driver, info->driver_version);
    out->kernel_count = 0;
    return KEEL_OK;
}
