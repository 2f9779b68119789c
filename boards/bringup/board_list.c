/* board_list.c - `keel board list`: the devices, as a table for people or as JSON for programs.
 *
 * Owns the words and the layout; what is shown comes from keel_device_list, the registry of board files
 * and the quarantine. */
#include "board_kinds.h"
#include <inttypes.h>
#include <keel/board.h>
#include <keel/device.h>
#include <keel/json.h>
#include <keel/quarantine.h>
#include <stdio.h>
#include <string.h>

static bool is_usable(const struct keel_device_info *info)
{
    return info->passed_over[0] == '\0';
}

/* A name to speak of a device or a driver by, also when it has no selector. */
static const char *label(const struct keel_device_info *info)
{
    return info->selector[0] != '\0' ? info->selector : info->platform;
}

/* The board file of a device: "vendor/board", or why there is none; `file` is scratch. */
static const char *board_of(const struct keel_device_info *info, struct keel_board_file *file,
                            bool *out_found)
{
    enum keel_status status = keel_board_file_find(info, file);
    *out_found = status == KEEL_OK && file->folder[0] != '\0';
    return *out_found ? file->id : status == KEEL_OK ? "" : keel_detail();
}

/* Board files that cannot be read are of no device. */
static enum keel_status print_unreadable(void *context, const char *folder)
{
    struct keel_board_file *file = context;
    if (keel_board_file_read(folder, file) != KEEL_OK)
        printf("%-12s %s\n", "board file", keel_detail());
    return KEEL_OK;
}

/* ---- for people ---- */

static void print_bytes(uint64_t bytes)
{
    const uint64_t mib = UINT64_C(1) << 20, gib = UINT64_C(1) << 30;
    if (bytes >= 10 * gib)
        printf("%7" PRIu64 " GiB", bytes / gib);
    else if (bytes >= 10 * mib)
        printf("%7" PRIu64 " MiB", bytes / mib);
    else
        printf("%7" PRIu64 " KiB", bytes / 1024);
}

static void print_board(const struct keel_device_info *info, struct keel_board_file *file)
{
    bool found;
    const char *text = board_of(info, file, &found);
    if (text[0] != '\0')
        printf("%12s %s%s\n", "", found ? "board file " : "no board file: ", text);
}

static void print_table(const struct keel_device_info *devices, uint32_t count, const char *loader,
                        struct keel_board_file *file)
{
    uint32_t passed = 0;
    printf("%-12s %-12s %5s %11s %11s  %s\n", "SELECTOR", "KIND", "UNITS", "MEMORY", "ONE BUFFER", "NAME");
    for (uint32_t i = 0; i < count; i++) {
        const struct keel_device_info *info = &devices[i];
        if (!is_usable(info)) {
            passed++;
            continue;
        }
        printf("%-12s %-12s %5" PRIu32 " ", info->selector, keel_device_kind_name(info->kind),
               info->compute_units);
        print_bytes(info->memory_bytes);
        putchar(' ');
        print_bytes(info->max_buffer_bytes);
        printf("  %s\n%12s %s; %s\n", info->name, "", info->platform, info->version);
        print_board(info, file);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (is_usable(&devices[i]))
            continue;
        if (passed > 0)
            printf("\nPassed over\n");
        passed = 0;
        printf("%-12s %s\n", label(&devices[i]), devices[i].passed_over);
    }
    (void)keel_board_folders(print_unreadable, file); /* what stops it stands beside each device */
    keel_quarantine_print();
    printf("\nOpenCL loader: %s\n", loader[0] != '\0' ? loader : "none");
}

/* ---- for programs ---- */

static void print_bits(struct keel_json *json, const char *key, uint32_t bits, const char *const *names,
                       uint32_t count)
{
    keel_json_open(json, key, '{');
    for (uint32_t i = 0; i < count; i++)
        keel_json_bool(json, names[i], (bits >> i & 1) != 0);
    keel_json_close(json, '}');
}

/* What the driver says that it is and can. */
static void print_claims(struct keel_json *json, const struct keel_device_info *info)
{
    static const char *const forms[] = {"source", "binary", "builtin"};
    static const char *const numerics[] = {"denormals", "inf_nan", "nearest",     "zero",
                                           "infinity",  "fma",     "divide_sqrt", "soft"};
    keel_json_text(json, "vendor", info->vendor);
    keel_json_number(json, "vendor_id", info->vendor_id);
    keel_json_text(json, "driver_version", info->driver_version);
    keel_json_number(json, "compute_units", info->compute_units);
    keel_json_number(json, "clock_mhz", info->clock_mhz);
    keel_json_number(json, "float_width", info->float_width);
    keel_json_number(json, "memory_bytes", info->memory_bytes);
    keel_json_number(json, "max_buffer_bytes", info->max_buffer_bytes);
    keel_json_number(json, "constant_bytes", info->constant_bytes);
    keel_json_number(json, "cache_bytes", info->cache_bytes);
    keel_json_number(json, "cache_line_bytes", info->cache_line_bytes);
    keel_json_number(json, "local_bytes", info->local_bytes);
    keel_json_number(json, "lanes", info->lanes);
    keel_json_bool(json, "local_dedicated", info->local_dedicated);
    keel_json_number(json, "base_align_bytes", info->base_align_bytes);
    keel_json_number(json, "max_group_items", info->max_group_items);
    keel_json_number(json, "max_arg_bytes", info->max_arg_bytes);
    keel_json_number(json, "timer_resolution_ns", info->timer_resolution_ns);
    print_bits(json, "code", info->code_forms, forms, sizeof forms / sizeof forms[0]);
    print_bits(json, "numerics", info->numerics, numerics, sizeof numerics / sizeof numerics[0]);
    keel_json_bool(json, "unified_memory", info->unified_memory);
    keel_json_bool(json, "error_correction", info->error_correction);
    keel_json_bool(json, "embedded_profile", info->embedded_profile);
    keel_json_bool(json, "queue_out_of_order", info->queue_out_of_order);
    keel_json_bool(json, "queue_profiling", info->queue_profiling);
}

static void print_device(struct keel_json *json, const struct keel_device_info *info,
                         struct keel_board_file *file)
{
    bool found;
    const char *text = board_of(info, file, &found);
    keel_json_open(json, NULL, '{');
    keel_json_text(json, "board", found ? text : NULL);
    keel_json_text(json, "board_problem", found || text[0] == '\0' ? NULL : text);
    bool probation = false, admitted = keel_quarantine_admit(info, &probation) == KEEL_OK;
    keel_json_text(json, "selector", info->selector);
    keel_json_text(json, "kind", keel_device_kind_name(info->kind));
    keel_json_text(json, "name", info->name);
    keel_json_text(json, "platform", info->platform);
    keel_json_text(json, "version", info->version);
    keel_json_text(json, "identity", info->identity);
    keel_json_text(json, "passed_over", info->passed_over);
    keel_json_text(json, "quarantined", admitted ? "" : keel_detail());
    print_claims(json, info);
    keel_json_bool(json, "usable", is_usable(info));
    keel_json_close(json, '}');
}

static void print_json(const struct keel_device_info *devices, uint32_t count, const char *loader,
                       struct keel_board_file *file)
{
    struct keel_json json = keel_command_json(stdout);
    keel_json_text(&json, "loader", loader);
    keel_json_open(&json, "devices", '[');
    for (uint32_t i = 0; i < count; i++)
        print_device(&json, &devices[i], file);
    keel_json_close(&json, ']');
    keel_command_json_end(&json);
}

static int list(const struct keel_command *command)
{
    static struct keel_device_info devices[KEEL_DEVICE_LIST_MAX];
    static struct keel_board_file file;
    uint32_t count = 0;
    char loader[KEEL_DEVICE_NAME_BYTES];
    enum keel_status status = keel_device_list(devices, KEEL_DEVICE_LIST_MAX, &count, loader);
    if (status != KEEL_OK)
        return keel_board_report(status);
    (command->json ? print_json : print_table)(devices, count, loader, &file);
    return 0;
}

static const struct keel_command_option options[] = {{.name = NULL}};

const struct keel_command_kind keel_board_list = {
    .name = "list",
    .operands = "",
    .summary = "devices, their board files, and which were passed over and why",
    .details = "The first column is what cluster.device in job files takes. \"auto\" picks the best usable "
               "device: a\n"
               "GPU, else an accelerator, else a CPU, else the host. \"host\" is plain C on one thread: "
               "always there,\n"
               "slow, and the reference for all others.\n",
    .examples = "  keel board list                                    what can be used here\n"
                "  keel board list --json | jq -r '.devices[0].selector'   the same for a script\n"
                "  POCL_DEVICES=\"basic basic\" keel board list         two small devices out of one CPU\n"
                "  OCL_ICD_VENDORS=/opt/board/icd keel board list     only the drivers of one folder\n",
    .options = options,
    .run = list};
