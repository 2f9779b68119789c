/* board_cmd.c - `keel board list`: the devices, as a table for people or as JSON for programs.
 *
 * Owns the words and the layout; what is shown comes from keel_device_list alone. */
#include "quarantine_cmd.h"
#include <inttypes.h>
#include <keel/board_cmd.h>
#include <keel/device.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "keel board - the accelerator boards of this machine\n"
    "\n"
    "  keel board list [--json]   devices, and which were passed over and why\n"
    "  keel board release BOARD   trust a board again that computed wrong bits\n"
    "  keel board --help          this text\n"
    "\n"
    "The first column is what cluster.device in job files takes. \"auto\" picks the best usable device: a "
    "GPU,\n"
    "else an accelerator, else a CPU, else the host. \"host\" is plain C on one thread: always there, slow,\n"
    "and the reference for all others.\n"
    "\n"
    "Examples\n"
    "  keel board list                                    what can be used here\n"
    "  keel board list --json | jq -r '.devices[0].selector'   the same for a script\n"
    "  POCL_DEVICES=\"basic basic\" keel board list         two small devices out of one CPU\n"
    "  OCL_ICD_VENDORS=/opt/board/icd keel board list     only the drivers of one folder\n"
    "\n"
    "Exit codes: 0 done, 2 wrong use, 3 could not run here.\n";

static const char *kind_name(enum keel_device_kind kind)
{
    static const char *const names[] = {[KEEL_DEVICE_HOST] = "host",
                                        [KEEL_DEVICE_CPU] = "cpu",
                                        [KEEL_DEVICE_GPU] = "gpu",
                                        [KEEL_DEVICE_ACCELERATOR] = "accelerator"};
    return names[kind];
}

static bool is_usable(const struct keel_device_info *info)
{
    return info->passed_over[0] == '\0';
}

/* A name to speak of a device or a driver by, also when it has no selector. */
static const char *label(const struct keel_device_info *info)
{
    return info->selector[0] != '\0' ? info->selector : info->platform;
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

static void print_table(const struct keel_device_info *devices, uint32_t count, const char *loader)
{
    uint32_t passed = 0;
    printf("%-12s %-12s %5s %11s %11s  %s\n", "SELECTOR", "KIND", "UNITS", "MEMORY", "ONE BUFFER", "NAME");
    for (uint32_t i = 0; i < count; i++) {
        const struct keel_device_info *info = &devices[i];
        if (!is_usable(info)) {
            passed++;
            continue;
        }
        printf("%-12s %-12s %5" PRIu32 " ", info->selector, kind_name(info->kind), info->compute_units);
        print_bytes(info->memory_bytes);
        putchar(' ');
        print_bytes(info->max_buffer_bytes);
        printf("  %s\n%12s %s; %s\n", info->name, "", info->platform, info->version);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (is_usable(&devices[i]))
            continue;
        if (passed > 0)
            printf("\nPassed over\n");
        passed = 0;
        printf("%-12s %s\n", label(&devices[i]), devices[i].passed_over);
    }
    keel_quarantine_print();
    printf("\nOpenCL loader: %s\n", loader[0] != '\0' ? loader : "none");
}

/* ---- for programs ---- */

/* A JSON string. Drivers say what they like: bytes that are not ASCII become '?'. */
static void print_string(const char *text)
{
    putchar('"');
    for (const char *at = text; *at != '\0'; at++) {
        unsigned char c = (unsigned char)*at;
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            printf("\\u%04x", c);
        else
            putchar(c < 0x80 ? c : '?');
    }
    putchar('"');
}

static void print_field(const char *key, const char *text)
{
    printf("      \"%s\": ", key);
    print_string(text);
    printf(",\n");
}

static void print_number(const char *key, uint64_t value)
{
    printf("      \"%s\": %" PRIu64 ",\n", key, value);
}

static void print_flag(const char *key, bool value, const char *end)
{
    printf("      \"%s\": %s%s\n", key, value ? "true" : "false", end);
}

static void print_device(const struct keel_device_info *info)
{
    bool admitted = keel_quarantine_admit(info) == KEEL_OK;
    printf("    {\n");
    print_field("selector", info->selector);
    print_field("kind", kind_name(info->kind));
    print_field("name", info->name);
    print_field("platform", info->platform);
    print_field("version", info->version);
    print_field("passed_over", info->passed_over);
    print_field("quarantined", admitted ? "" : keel_detail());
    print_number("compute_units", info->compute_units);
    print_number("memory_bytes", info->memory_bytes);
    print_number("max_buffer_bytes", info->max_buffer_bytes);
    print_number("local_bytes", info->local_bytes);
    print_number("base_align_bytes", info->base_align_bytes);
    print_number("max_group_items", info->max_group_items);
    print_flag("has_compiler", info->has_compiler, ",");
    print_flag("unified_memory", info->unified_memory, ",");
    print_flag("usable", is_usable(info), "");
    printf("    }");
}

static void print_json(const struct keel_device_info *devices, uint32_t count, const char *loader)
{
    printf("{\n  \"loader\": ");
    print_string(loader);
    printf(",\n  \"devices\": [");
    for (uint32_t i = 0; i < count; i++) {
        printf(i > 0 ? ",\n" : "\n");
        print_device(&devices[i]);
    }
    printf("\n  ]\n}\n");
}

/* ---- commands ---- */

static int report(enum keel_status status)
{
    fprintf(stderr, "keel board: %s\n", keel_detail());
    return keel_status_exit_code(status);
}

static int wrong_use(const char *what)
{
    fprintf(stderr, "keel board: %s is not understood; see keel board --help\n", what);
    return keel_status_exit_code(KEEL_INVALID);
}

static int list(int argc, char **argv)
{
    bool json = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(help, stdout);
            return 0;
        }
        if (strcmp(argv[i], "--json") != 0)
            return wrong_use(argv[i]);
        json = true;
    }
    struct keel_device_info *devices = NULL;
    uint32_t count = 0;
    char loader[KEEL_DEVICE_NAME_BYTES];
    enum keel_status status = keel_alloc(KEEL_DEVICE_LIST_MAX, sizeof *devices, &devices);
    if (status == KEEL_OK)
        status = keel_device_list(devices, KEEL_DEVICE_LIST_MAX, &count, loader);
    if (status == KEEL_OK) {
        (json ? print_json : print_table)(devices, count, loader);
        if (fflush(stdout) != 0)
            status = keel_fail(KEEL_IO, "standard output cannot be written");
    }
    keel_free(devices);
    return status == KEEL_OK ? 0 : report(status);
}

int keel_board_main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    if (strcmp(verb, "release") == 0)
        return keel_quarantine_release_main(argc - 1, argv + 1);
    if (strcmp(verb, "list") == 0)
        return list(argc - 1, argv + 1);
    if (strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0 || strcmp(verb, "help") == 0) {
        fputs(help, stdout);
        return 0;
    }
    if (verb[0] == '\0') {
        fputs(help, stderr);
        return keel_status_exit_code(KEEL_INVALID);
    }
    return wrong_use(verb);
}
