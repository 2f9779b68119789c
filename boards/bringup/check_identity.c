/* check_identity.c - level 0: the board is there, opens, says who it is, and says the same again. */
#include "check_runner.h"
#include "check_steps.h"
#include <ctype.h>
#include <inttypes.h>
#include <string.h>

/* What is listed beside the board and was passed over: nothing against the board, but worth a line. */
static void note_passed_over(struct keel_check_run *run, const struct keel_device_info *devices,
                             uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (devices[i].passed_over[0] != '\0')
            keel_check_note(run, "passed over: %s: %s",
                            devices[i].selector[0] != '\0' ? devices[i].selector : devices[i].platform,
                            devices[i].passed_over);
}

static void drivers(struct keel_check_run *run)
{
    struct keel_device_info *devices;
    uint32_t count = 0, usable = 0;
    char loader[KEEL_DEVICE_NAME_BYTES];
    keel_check_progress(run, 0, 0, "loading the drivers");
    if (!keel_check_ok(run, keel_check_new_memory(run, KEEL_DEVICE_LIST_MAX * sizeof *devices, &devices),
                       "the list of devices") ||
        !keel_check_ok(run, keel_device_list(devices, KEEL_DEVICE_LIST_MAX, &count, loader),
                       "listing devices"))
        return;
    for (uint32_t i = 0; i < count; i++)
        usable += devices[i].passed_over[0] == '\0' && devices[i].kind != KEEL_DEVICE_HOST;
    note_passed_over(run, devices, count);
    keel_check_note(run, "OpenCL loader %s; %" PRIu32 " usable devices besides the host",
                    loader[0] != '\0' ? loader : "none", usable);
    if (strncmp(loader, "none:", 5) == 0 && strcmp(run->options->board, "host") != 0)
        keel_check_cannot(run, "OpenCL loader %s; check the host, or build with OPENCL=yes", loader);
    else if (usable == 0 && strcmp(run->options->board, "host") != 0)
        keel_check_cannot(
            run, "no OpenCL driver offers a usable device: install the board's driver and its .icd file "
                 "in /etc/OpenCL/vendors, or name the folder in OCL_ICD_VENDORS; keel board list says "
                 "what was passed over");
}

/* A waiver by a name that no check has would be believed to hold. */
static void know_waivers(struct keel_check_run *run)
{
    const struct keel_board_file *file = run->file;
    for (uint32_t i = 0; i < file->waiver_count; i++)
        if (keel_check_find(file->waivers[i].check) == NULL)
            keel_check_cannot(
                run, "%.200s/board.conf waives %s, and there is no such check: see keel board check --list",
                file->folder, file->waivers[i].check);
}

static void opens(struct keel_check_run *run)
{
    know_waivers(run);
    if (strcmp(run->options->board, "auto") == 0 && run->on.info->kind == KEEL_DEVICE_HOST)
        keel_check_cannot(
            run,
            "\"auto\" finds no board that compiles: name the board; keel board list shows what there is");
    keel_check_progress(run, 1, 2, "a first queue");
    if (keel_check_open(run, KEEL_OPENS_QUEUE))
        keel_step_finish(run, run->on.queue, "an empty queue finishes");
}

static bool is_plain(const char *text)
{
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++)
        if (!isprint(*at))
            return false;
    return text[0] != '\0';
}

static void names(struct keel_check_run *run)
{
    const struct keel_device_info *info = run->on.info;
    if (!is_plain(info->name))
        keel_check_fail(run, "the device's name is empty or not printable");
    if (!is_plain(info->platform))
        keel_check_fail(run, "the platform's name is empty or not printable");
    if (!is_plain(info->version))
        keel_check_fail(run, "the driver's version is empty or not printable: drift could not be told");
}

/* What OpenCL asks for at least; and what no board has, so that a claim above is an overflow, or another
 * unit. Work is cut by these numbers. `scale`: of the message. */
struct bound {
    uint64_t claimed, most;
    unsigned scale;
    const char *what;
};

static void bounds(struct keel_check_run *run)
{
    const struct keel_device_info *info = run->on.info;
    const bool host = info->kind == KEEL_DEVICE_HOST;
    const struct bound bounds[] = {
        {info->compute_units, 16384, 0, "compute units"},
        {host ? 0 : info->max_group_items, 65536, 0, "work-group items"},
        {host ? 0 : info->local_bytes, UINT64_C(1) << 30, 20, "MiB of local memory"},
        {info->memory_bytes, UINT64_C(1) << 47, 40, "TiB of memory"},
    };
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++)
        if (bounds[i].claimed > bounds[i].most)
            keel_check_fail(run, "%" PRIu64 " %s are claimed; no board has more than %" PRIu64,
                            bounds[i].claimed >> bounds[i].scale, bounds[i].what,
                            bounds[i].most >> bounds[i].scale);
    if (!host && info->local_bytes < 1024)
        keel_check_fail(run,
                        "%" PRIu64 " bytes of local memory; OpenCL asks for 1024 even of embedded boards",
                        info->local_bytes);
}

static void claims(struct keel_check_run *run)
{
    const struct keel_device_info *info = run->on.info;
    const uint32_t align = info->base_align_bytes;
    if (info->memory_bytes == 0)
        keel_check_fail(run, "the device claims no memory");
    if (info->max_buffer_bytes > info->memory_bytes)
        keel_check_fail(run, "one buffer of %" PRIu64 " bytes in a memory of %" PRIu64,
                        info->max_buffer_bytes, info->memory_bytes);
    if (info->max_buffer_bytes < info->memory_bytes / 8)
        keel_check_note(run, "the largest buffer is less than an eighth of the memory");
    if (align == 0 || (align & (align - 1)) != 0)
        keel_check_fail(run, "slices are aligned to %" PRIu32 " bytes, which is no power of two", align);
    if (info->compute_units == 0 || info->max_group_items == 0)
        keel_check_fail(run, "%" PRIu32 " compute units, groups of %" PRIu32 " items", info->compute_units,
                        info->max_group_items);
    bounds(run);
}

/* Memory is left out: some drivers tell what is free at the moment. */
static void says_the_same(struct keel_check_run *run)
{
    const struct keel_device_info *first = run->on.info, *second;
    struct keel_device *again;
    if (!keel_check_ok(run, keel_device_open(first->selector, NULL, &again), "opened a second time"))
        return;
    second = keel_device_info(again);
    if (strcmp(first->name, second->name) != 0 || strcmp(first->version, second->version) != 0)
        keel_check_fail(run, "%s is first \"%s\", \"%s\", then \"%s\", \"%s\"", first->selector, first->name,
                        first->version, second->name, second->version);
    if (first->compute_units != second->compute_units ||
        first->base_align_bytes != second->base_align_bytes ||
        first->max_group_items != second->max_group_items || first->local_bytes != second->local_bytes)
        keel_check_fail(run, "%s claims other limits when it is asked again", first->selector);
    keel_device_close(again);
}

static void memory(struct keel_check_run *run)
{
    const uint64_t has = run->on.info->memory_bytes, wanted = run->file->limits.memory_bytes;
    keel_check_note(run, "%" PRIu64 " MiB of memory", has >> 20);
    if (has < wanted)
        keel_check_fail(run,
                        "%" PRIu64 " bytes of memory, and the board file asks for %" PRIu64
                        ": look for a process that holds it, or for a bank that is missing",
                        has, wanted);
}

#define DEVICE KEEL_OPENS_DEVICE
const struct keel_check keel_checks_identity[] = {
    {"0.1", "drivers", "an OpenCL driver loads and offers a usable device", NULL, 30, KEEL_OPENS_NOTHING,
     drivers},
    {"0.2", "opens", "the board opens, gives a queue, and closes", "0.1", 30, DEVICE, opens},
    {"0.3", "names", "device, platform and driver say who they are", "0.2", 30, DEVICE, names},
    {"0.4", "claims", "what the device claims of itself is possible", "0.2", 30, DEVICE, claims},
    {"0.5", "says-the-same", "asked again it is the same board with the same limits", "0.2", 30, DEVICE,
     says_the_same},
    {"0.6", "memory", "the board has the memory that its file asks for", "0.2", 30, DEVICE, memory},
    {.id = NULL}};
