/* board_init.c - `keel board init`: a first board folder, from what the device says of itself and what it is
 * measured to do.
 *
 * The draft is a board.conf that matches this device and driver alone, with limits at half of what was
 * measured (a board that loses half of its speed is broken, not slow), and a README.md that says when and on
 * what. */
#include "board_kinds.h"
#include "check_reports.h"
#include <inttypes.h>
#include <keel/board.h>
#include <keel/clock.h>
#include <keel/json.h>
#include <stdlib.h>
#include <string.h>

struct own {
    const char *device, *root;
    bool unmeasured;
};

static void begin(void *own)
{
    *(struct own *)own = (struct own){.device = "auto", .root = "boards"};
}

/* "vendor/board": letters, digits and the like, so that it makes two folders and nothing else. */
static bool is_id(const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    size_t vendor = strspn(text, plain), board = text[vendor] == '/' ? strspn(text + vendor + 1, plain) : 0;
    return vendor > 0 && board > 0 && text[vendor + 1 + board] == '\0' && text[0] != '.' &&
           text[vendor + 1] != '.';
}

/* What a folder is drafted from. */
struct draft {
    const char *id;
    const struct keel_device_info *info;
    const struct keel_check_report *report; /* NULL: not measured */
};

/* A pattern of fnmatch(3) that fits a text and nothing else; what patterns are made of fits as any letter. */
static void print_pattern(FILE *out, const char *key, const char *text)
{
    fprintf(out, "%s = ", key);
    for (const char *at = text; *at != '\0'; at++)
        fputc(strchr("*?[]\\;#", *at) != NULL ? '?' : *at, out);
    fputc('\n', out);
}

static double figure(const struct keel_check_report *report, const char *name)
{
    const struct keel_check_figure *found = keel_check_find_figure(report, name);
    return found != NULL ? found->value : 0;
}

static void print_limits(FILE *out, const struct keel_check_report *report)
{
    fputs("\n[limits]\n; half of what was measured when this file was drafted\n", out);
    fprintf(out, "launch_ns = %.0f\n", 2 * 1e3 * figure(report, "launch_us"));
    fprintf(out, "write_bytes_s = %.0f\n", 0.5e9 * figure(report, "write_gbs"));
    fprintf(out, "read_bytes_s = %.0f\n", 0.5e9 * figure(report, "read_gbs"));
    fprintf(out, "copy_bytes_s = %.0f\n", 0.5e9 * figure(report, "copy_gbs"));
    fprintf(out, "gemm_flops_s = %.0f\n", 0.5e9 * figure(report, "gemm_gflops"));
}

static void print_conf(FILE *out, const struct draft *draft)
{
    const struct keel_device_info *info = draft->info;
    fputs("; Drafted by keel board init. Every key, with its default: "
          "boards/template/board.conf\n[board]\nname = ",
          out);
    for (const char *at = info->name; *at != '\0'; at++)
        fputc(strchr(";#", *at) != NULL ? ' ' : *at, out);
    fprintf(out, "\nkind = %s\n\n[match]\n", keel_device_kind_name(info->kind));
    print_pattern(out, "platform", info->platform);
    print_pattern(out, "name", info->name);
    print_pattern(out, "driver", info->driver_version);
    if ((info->code_forms & KEEL_CODE_SOURCE) == 0)
        fputs("\n[code]\n; it has no compiler: name the device that compiles for it, then keel board build\n"
              "form = artifacts\n",
              out);
    if (draft->report != NULL)
        print_limits(out, draft->report);
}

static void print_readme(FILE *out, const struct draft *draft)
{
    const struct keel_device_info *info = draft->info;
    static const char *const names[] = {"launch_us", "write_gbs",  "read_gbs",
                                        "copy_gbs",  "memory_gbs", "gemm_gflops"};
    char day[KEEL_WALL_TEXT_BYTES];
    keel_wall_text(keel_wall_ns(), day);
    fprintf(out, "# %s\n\nProbed on %s as `%s`: %s; %s; %s.\n", draft->id, day, info->selector, info->name,
            info->platform, info->version);
    fprintf(out,
            "%" PRIu32 " compute units, %" PRIu64 " MiB of memory, buffers of at most %" PRIu64 " MiB.\n",
            info->compute_units, info->memory_bytes >> 20, info->max_buffer_bytes >> 20);
    if (draft->report == NULL)
        return;
    fputs("\nMeasured then, by `keel board check --level 5 --quick` (medians):\n\n| figure | value "
          "|\n|---|---|\n",
          out);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        fprintf(out, "| %s | %.3f |\n", names[i], figure(draft->report, names[i]));
}

/* ---- the files ---- */

static enum keel_status put(const char *folder, const char *name, const struct draft *draft,
                            void (*print)(FILE *out, const struct draft *draft))
{
    char path[KEEL_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    KEEL_TRY(keel_path_join(path, folder, name));
    FILE *out = open_memstream(&text, &bytes);
    if (out != NULL)
        print(out, draft);
    enum keel_status status = out != NULL && fclose(out) == 0
                                  ? keel_file_replace(path, text, bytes, 0644)
                                  : keel_fail(KEEL_NO_MEMORY, "%s: no memory for it", path);
    free(text);
    return status;
}

/* The first directory of `folder` that is not there; "" when all are. */
static void first_missing(const char *folder, char out[KEEL_PATH_BYTES])
{
    snprintf(out, KEEL_PATH_BYTES, "%s", folder);
    for (char *slash = strchr(out + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (!keel_path_exists(out))
            return;
        *slash = '/';
    }
    if (keel_path_exists(out))
        out[0] = '\0';
}

/* Both files, or none and no folder. */
static enum keel_status write_folder(const char *folder, const struct draft *draft)
{
    char made[KEEL_PATH_BYTES], reason[KEEL_DETAIL_BYTES];
    first_missing(folder, made);
    if (made[0] == '\0') /* the folder was there, without a README.md */
        KEEL_TRY(keel_path_join(made, folder, "README.md"));
    enum keel_status status = keel_mkdir_all(folder);
    if (status == KEEL_OK)
        status = put(folder, "README.md", draft, print_readme);
    if (status == KEEL_OK)
        status = put(folder, "board.conf", draft, print_conf);
    if (status != KEEL_OK && keel_path_exists(made)) {
        snprintf(reason, sizeof reason, "%s", keel_detail());
        (void)keel_remove_tree(made);
        keel_detail_set(reason);
    }
    return status;
}

/* What a person wrote stays: the README of a board is theirs once it is drafted. */
static enum keel_status none_there(const char *folder)
{
    static const char *const names[] = {"board.conf", "README.md"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[KEEL_PATH_BYTES];
        KEEL_TRY(keel_path_join(path, folder, names[i]));
        if (keel_path_exists(path))
            return keel_fail(KEEL_INVALID, "%s is there already: take another name, or move it away", path);
    }
    return KEEL_OK;
}

static enum keel_status probe(const char *selector, struct keel_device_info *out)
{
    struct keel_device *device;
    KEEL_TRY(keel_device_open(selector, NULL, &device));
    *out = *keel_device_info(device);
    keel_device_close(device);
    return KEEL_OK;
}

/* A board without a compiler has no code yet, so nothing of it can be measured. */
static enum keel_status measure(const struct own *own, const struct keel_device_info *info, bool lines,
                                struct keel_check_report *report, bool *out_measured)
{
    const struct keel_check_options options = {.board = info->selector, .quick = true};
    *out_measured = false;
    if (own->unmeasured || ((info->code_forms & KEEL_CODE_SOURCE) == 0 && info->kind != KEEL_DEVICE_HOST))
        return KEEL_OK;
    KEEL_TRY(keel_check_session(&options, "5.1,5.2,5.3,5.4", lines, report));
    *out_measured = true;
    if (keel_check_exit_code(report) == 0)
        return KEEL_OK;
    return keel_fail(KEEL_UNSUPPORTED,
                     "%s cannot be measured: see keel board check %s; --unmeasured drafts without",
                     info->selector, info->selector);
}

static enum keel_status draft(const struct keel_command *command, char folder[KEEL_PATH_BYTES])
{
    const struct own *own = keel_command_own(command);
    const char *id = command->operands[0];
    struct keel_device_info info;
    struct keel_check_report report = {0};
    bool measured = false;
    KEEL_TRY(keel_path_join(folder, own->root, id));
    KEEL_TRY(none_there(folder));
    KEEL_TRY(probe(own->device, &info));
    enum keel_status status = measure(own, &info, !command->json, &report, &measured);
    if (status == KEEL_OK)
        status = write_folder(folder, &(struct draft){id, &info, measured ? &report : NULL});
    keel_check_report_fini(&report);
    return status;
}

static int run(const struct keel_command *command)
{
    char folder[KEEL_PATH_BYTES];
    if (command->operand_count == 0 || !is_id(command->operands[0]))
        return keel_board_wrong_use("init wants VENDOR/BOARD, in letters, digits, - _ and .", "");
    enum keel_status status = draft(command, folder);
    if (status != KEEL_OK)
        return keel_board_report(status);
    if (command->json) {
        struct keel_json json = keel_command_json(stdout);
        keel_json_text(&json, "folder", folder);
        keel_command_json_end(&json);
        return 0;
    }
    printf("drafted %s: read board.conf and README.md in it, then keel board check %s\n", folder, folder);
    return 0;
}

static const struct keel_command_option options[] = {
    {"--device", "SELECTOR", KEEL_COMMAND_TEXT, offsetof(struct own, device),
     "the device to probe; without it the best of this machine"},
    {"--root", "DIR", KEEL_COMMAND_TEXT, offsetof(struct own, root),
     "where board folders lie; without it boards"},
    {"--unmeasured", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, unmeasured),
     "draft no limits: measure nothing"},
    {.name = NULL}};

const struct keel_command_kind keel_board_init = {
    .name = "init",
    .operands = "VENDOR/BOARD",
    .operands_max = 1,
    .summary = "draft a board's folder by probing and measuring a device",
    .details =
        "Writes board.conf, which matches this device and driver, and README.md, which says what was seen.\n"
        "Limits are half of what is measured; a device without a compiler gets none.\n",
    .examples = "  keel board init acme/npu --device acme:0\n"
                "  keel board init pocl/laptop --device pocl:0 --root /etc/keel/boards\n",
    .options = options,
    .begin = begin,
    .run = run};
