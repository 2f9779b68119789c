/* check_identity.c - level 0: the board is there, opens, says who it is, and says the same again. */
#include "check_runner.h"
#include "check_tables.h"
#include <ctype.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>

enum { LOCAL_BYTES_LEAST = 1024, GROUP_ITEMS_LEAST = 1, BUFFER_PART_LEAST = 4 };
/* Far beyond what is built: a claim above is an overflow, or another unit. Work is cut by these numbers. */
enum { UNITS_MOST = 16384, GROUP_ITEMS_MOST = 65536 };
#define LOCAL_BYTES_MOST  (UINT64_C(1) << 30)
#define MEMORY_BYTES_MOST (UINT64_C(1) << 47)

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
    struct keel_device_info *devices = NULL;
    uint32_t count = 0, opencl = 0;
    char loader[KEEL_DEVICE_NAME_BYTES];
    keel_check_progress(run, 0, 0, "loading the drivers");
    if (!keel_check_ok(run, keel_alloc(KEEL_DEVICE_LIST_MAX, sizeof *devices, &devices),
                       "the list of devices"))
        return;
    if (keel_check_ok(run, keel_device_list(devices, KEEL_DEVICE_LIST_MAX, &count, loader),
                      "listing devices")) {
        for (uint32_t i = 0; i < count; i++)
            opencl += devices[i].passed_over[0] == '\0' && devices[i].kind != KEEL_DEVICE_HOST;
        note_passed_over(run, devices, count);
        keel_check_note(run, "OpenCL loader %s; %" PRIu32 " usable devices besides the host",
                        loader[0] != '\0' ? loader : "none", opencl);
        if (strncmp(loader, "none:", 5) == 0 && strcmp(keel_check_options(run)->board, "host") != 0)
            keel_check_cannot(run, "OpenCL loader %s; check the host, or build with OPENCL=yes", loader);
        else if (opencl == 0 && strcmp(keel_check_options(run)->board, "host") != 0)
            keel_check_cannot(run,
                              "no OpenCL driver offers a usable device: install the board's driver and its "
                              ".icd file in /etc/OpenCL/vendors, or name the folder in OCL_ICD_VENDORS; "
                              "keel board list says what was passed over");
    }
    keel_free(devices);
}

/* A waiver by a name that no check has would be believed to hold. */
static void know_waivers(struct keel_check_run *run)
{
    const struct keel_board_file *file = keel_check_board_file(run);
    for (uint32_t i = 0; i < file->waiver_count; i++)
        if (keel_check_find(file->waivers[i].check) == NULL)
            keel_check_cannot(
                run, "%.200s/board.conf waives %s, and there is no such check: see keel board check --list",
                file->folder, file->waivers[i].check);
}

static void opens(struct keel_check_run *run)
{
    struct keel_device *device = keel_check_device(run);
    struct keel_queue *queue = NULL;
    if (device == NULL)
        return;
    know_waivers(run);
    if (strcmp(keel_check_options(run)->board, "auto") == 0 &&
        keel_device_info(device)->kind == KEEL_DEVICE_HOST)
        keel_check_cannot(run,
                          "\"auto\" finds no board that compiles: name the board; keel board list shows what "
                          "there is");
    keel_check_progress(run, 1, 2, "a first queue");
    if (!keel_check_ok(run, keel_queue_create(device, &queue), "a queue"))
        return;
    keel_check_ok(run, keel_queue_finish(queue, keel_check_deadline_ns(run)), "an empty queue finishes");
    keel_queue_destroy(queue);
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
    struct keel_device *device = keel_check_device(run);
    if (device == NULL)
        return;
    const struct keel_device_info *info = keel_device_info(device);
    if (!is_plain(info->name))
        keel_check_fail(run, "the device's name is empty or not printable");
    if (!is_plain(info->platform))
        keel_check_fail(run, "the platform's name is empty or not printable");
    if (!is_plain(info->version))
        keel_check_fail(run, "the driver's version is empty or not printable: drift could not be told");
}

static void claims(struct keel_check_run *run)
{
    struct keel_device *device = keel_check_device(run);
    if (device == NULL)
        return;
    const struct keel_device_info *info = keel_device_info(device);
    uint32_t align = info->base_align_bytes;
    if (info->memory_bytes == 0)
        keel_check_fail(run, "the device claims no memory");
    if (info->max_buffer_bytes > info->memory_bytes)
        keel_check_fail(run, "one buffer of %" PRIu64 " bytes in a memory of %" PRIu64,
                        info->max_buffer_bytes, info->memory_bytes);
    if (info->max_buffer_bytes < info->memory_bytes / BUFFER_PART_LEAST / 2)
        keel_check_note(run, "the largest buffer is less than an eighth of the memory");
    if (align == 0 || (align & (align - 1)) != 0)
        keel_check_fail(run, "slices are aligned to %" PRIu32 " bytes, which is no power of two", align);
    if (info->compute_units == 0 || info->max_group_items < GROUP_ITEMS_LEAST)
        keel_check_fail(run, "%" PRIu32 " compute units, groups of %" PRIu32 " items", info->compute_units,
                        info->max_group_items);
    if (info->kind != KEEL_DEVICE_HOST && info->local_bytes < LOCAL_BYTES_LEAST)
        keel_check_fail(run, "%" PRIu64 " bytes of local memory; OpenCL asks for %d even of embedded boards",
                        info->local_bytes, LOCAL_BYTES_LEAST);
    if (info->compute_units > UNITS_MOST)
        keel_check_fail(run, "%" PRIu32 " compute units are claimed; no board has more than %d",
                        info->compute_units, UNITS_MOST);
    if (info->kind != KEEL_DEVICE_HOST && info->max_group_items > GROUP_ITEMS_MOST)
        keel_check_fail(run, "groups of %" PRIu32 " items are claimed; no board has more than %d",
                        info->max_group_items, GROUP_ITEMS_MOST);
    if (info->kind != KEEL_DEVICE_HOST && info->local_bytes > LOCAL_BYTES_MOST)
        keel_check_fail(run, "%" PRIu64 " MiB of local memory are claimed; no board has more than %" PRIu64,
                        info->local_bytes >> 20, LOCAL_BYTES_MOST >> 20);
    if (info->memory_bytes > MEMORY_BYTES_MOST)
        keel_check_fail(run, "%" PRIu64 " TiB of memory are claimed; no board has more than %" PRIu64,
                        info->memory_bytes >> 40, MEMORY_BYTES_MOST >> 40);
}

/* Memory is left out: some drivers tell what is free at the moment. */
static void says_the_same(struct keel_check_run *run)
{
    struct keel_device *device = keel_check_device(run);
    if (device == NULL)
        return;
    struct keel_device_info first = *keel_device_info(device);
    struct keel_device *again = NULL;
    if (!keel_check_ok(run, keel_device_open(first.selector, NULL, &again), "opened a second time"))
        return;
    const struct keel_device_info *second = keel_device_info(again);
    if (strcmp(first.name, second->name) != 0 || strcmp(first.version, second->version) != 0)
        keel_check_fail(run, "%s is first \"%s\", \"%s\", then \"%s\", \"%s\"", first.selector, first.name,
                        first.version, second->name, second->version);
    if (first.compute_units != second->compute_units || first.base_align_bytes != second->base_align_bytes ||
        first.max_group_items != second->max_group_items || first.local_bytes != second->local_bytes)
        keel_check_fail(run, "%s claims other limits when it is asked again", first.selector);
    keel_device_close(again);
}

static void memory(struct keel_check_run *run)
{
    struct keel_device *device = keel_check_device(run);
    if (device == NULL)
        return;
    uint64_t has = keel_device_info(device)->memory_bytes,
             wanted = keel_check_board_file(run)->limits.memory_bytes;
    keel_check_note(run, "%" PRIu64 " MiB of memory", has >> 20);
    if (has < wanted)
        keel_check_fail(run,
                        "%" PRIu64 " bytes of memory, and the board file asks for %" PRIu64
                        ": look for a process that holds it, or for a bank that is missing",
                        has, wanted);
}

const struct keel_check keel_checks_identity[] = {
    {"0.1", "drivers", "an OpenCL driver loads and offers a usable device", NULL, 30, false, drivers},
    {"0.2", "opens", "the board opens, gives a queue, and closes", "0.1", 30, false, opens},
    {"0.3", "names", "device, platform and driver say who they are", "0.2", 30, false, names},
    {"0.4", "claims", "what the device claims of itself is possible", "0.2", 30, false, claims},
    {"0.5", "says-the-same", "asked again it is the same board with the same limits", "0.2", 30, false,
     says_the_same},
    {"0.6", "memory", "the board has the memory that its file asks for", "0.2", 30, false, memory},
    {.id = NULL}};
