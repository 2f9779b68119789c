/* board_build.c - `keel board build`: the artifacts of a board.
 *
 * A board without a compiler is compiled for by another device, in a process of its own: there no OpenCL
 * layers stand before the drivers, for they may hide or change what compiles. */
#include "artifact.h"
#include "artifact_make.h"
#include "board_file.h"
#include "board_kinds.h"
#include <errno.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/json.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define COMPILE_LIMIT_NS (3600 * KEEL_NS_PER_S)
#define FACTS_PATH       "/proc/self/fd/3" /* the first descriptor that a process is handed */

struct build_options {
    const char *out, *sources, *numerics;
    const char *target; /* given to the compiling process: the file with the board's facts */
};

static const struct keel_command_option options[] = {
    {"--out", "DIR", KEEL_COMMAND_TEXT, offsetof(struct build_options, out),
     "where the artifacts go (as board.conf says: code.artifacts)"},
    {"--sources", "DIR", KEEL_COMMAND_TEXT, offsetof(struct build_options, sources),
     "compile nothing: write the sources, for a compiler of the vendor"},
    {"--numerics", "CLASS", KEEL_COMMAND_TEXT, offsetof(struct build_options, numerics),
     "for jobs of that class of job.numerics too: native, exact8x2, exact8x3, bf16"},
    {"--target", "FILE", KEEL_COMMAND_TEXT, offsetof(struct build_options, target), NULL},
    {.name = NULL}};

static enum keel_class class_of(const struct build_options *own)
{
    return own->numerics != NULL ? keel_class_find(own->numerics) : KEEL_CANONICAL;
}

/* ---- making ---- */

static int tell(const struct keel_command *command, const char *folder, const struct keel_artifact_made *made,
                uint64_t began_ns)
{
    double seconds = (double)(keel_now_ns() - began_ns) / 1e9;
    if (command->json) {
        struct keel_json json = keel_command_json(stdout);
        keel_json_text(&json, "folder", folder);
        keel_json_number(&json, "programs", made->programs);
        keel_json_number(&json, "files", made->files);
        keel_json_number(&json, "bytes", made->bytes);
        keel_json_real(&json, "seconds", seconds, 3);
        keel_command_json_end(&json);
    } else {
        printf("%s: %" PRIu32 " programs, %" PRIu32 " files, %" PRIu64 " KiB, in %.1f s\n", folder,
               made->programs, made->files, made->bytes / 1024, seconds);
    }
    return 0;
}

static int tell_sources(const struct keel_command *command, const char *folder)
{
    if (command->json) {
        struct keel_json json = keel_command_json(stdout);
        keel_json_text(&json, "sources", folder);
        keel_command_json_end(&json);
    } else {
        printf("%s: the sources; sources.json says what to compile with which options, and "
               "boards/bringup/FORMATS.md what the manifest of the binaries says\n",
               folder);
    }
    return 0;
}

static int make(const struct keel_command *command, const struct keel_artifact_making *making)
{
    struct keel_artifact_made made;
    uint64_t began_ns = keel_now_ns();
    enum keel_status status = keel_artifact_make(making, &made);
    return status == KEEL_OK ? tell(command, making->folder, &made, began_ns) : keel_board_report(status);
}

/* ---- by another device ---- */

/* What the compiling process is given by compile_apart: the board's folder, and the facts of its device. */
static enum keel_status take_order(const struct keel_command *command, struct keel_board_file *file,
                                   struct keel_device_info *info)
{
    const struct build_options *own = keel_command_own(command);
    char *target;
    size_t bytes;
    KEEL_TRY(keel_board_file_read(command->operands[0], file));
    KEEL_TRY(keel_file_read(own->target, sizeof *info, &target, &bytes));
    if (bytes == sizeof *info)
        memcpy(info, target, sizeof *info);
    keel_free(target);
    if (bytes != sizeof *info)
        return keel_fail(KEEL_INVALID, "--target %s: holds no facts of a device", own->target);
    return keel_board_tune_read(file, info);
}

static int compile(const struct keel_command *command, struct keel_board_file *file,
                   struct keel_device_info *info)
{
    const struct build_options *own = keel_command_own(command);
    unsetenv("OPENCL_LAYERS");
    keel_process_tell_interrupts_as_json(false); /* who started us tells it */
    enum keel_status status = take_order(command, file, info);
    if (status != KEEL_OK)
        return keel_board_report(status);
    const struct keel_artifact_making making = {.file = file,
                                                .target = info,
                                                .selector = file->build_with,
                                                .folder = own->out,
                                                .numerics = class_of(own)};
    return make(command, &making);
}

static int compile_apart(const struct keel_command *command, const struct keel_artifact_making *making)
{
    struct keel_process_end end = {0};
    const char *const argv[] = {"/proc/self/exe",
                                "board",
                                "build",
                                making->file->folder,
                                "--out",
                                making->folder,
                                "--numerics",
                                keel_class_name(making->numerics),
                                "--target",
                                FACTS_PATH,
                                command->json ? "--json" : NULL,
                                NULL};
    fflush(stdout);
    int facts_fd = memfd_create("keel-board-facts", MFD_CLOEXEC);
    if (facts_fd < 0)
        return keel_board_report(keel_fail_errno(errno, "the board's facts cannot be handed on"));
    enum keel_status status =
        keel_pwrite_all(facts_fd, making->target, sizeof *making->target, 0, "the board's facts");
    if (status == KEEL_OK)
        status = keel_process_run(argv, &facts_fd, 1, -1, keel_deadline_after_ns(COMPILE_LIMIT_NS), &end);
    close(facts_fd);
    if (status == KEEL_TIMEOUT)
        status = keel_fail(status, "the compiler of \"%s\" did not end within an hour; it was killed",
                           making->selector);
    if (status == KEEL_OK && end.signaled)
        status =
            keel_fail(KEEL_DEVICE_LOST,
                      "the compiler of \"%s\" ended by signal %d; name another device in code.build_with",
                      making->selector, end.code);
    if (status != KEEL_OK)
        return keel_board_report(status);
    keel_command_leave_output(); /* the compiling process has printed it */
    return end.code;
}

/* ---- the command ---- */

static enum keel_status choose(const struct keel_board_file *file, const struct keel_device_info *info,
                               const struct build_options *own, struct keel_artifact_making *making,
                               char folder[KEEL_PATH_BYTES])
{
    *making = (struct keel_artifact_making){
        .file = file, .target = info, .folder = folder, .numerics = class_of(own)};
    making->selector = file->build_with[0] != '\0' ? file->build_with : info->selector;
    if (own->sources != NULL)
        return keel_path_join(folder, "", own->sources);
    if (info->kind == KEEL_DEVICE_HOST)
        return keel_fail(KEEL_UNSUPPORTED, "the host has its kernels in this program; name another device");
    if (file->build_with[0] == '\0' && (info->code_forms & KEEL_CODE_SOURCE) == 0)
        return keel_fail(KEEL_UNSUPPORTED,
                         "%s has no compiler; name a device that compiles for it in code.build_with of its "
                         "board.conf, or compile the sources with the vendor's tool (--sources DIR)",
                         info->selector);
    if (own->out != NULL)
        return keel_path_join(folder, "", own->out);
    if (file->folder[0] == '\0')
        return keel_fail(KEEL_NOT_FOUND,
                         "%s has no board folder to put artifacts into; make one (boards/README.md), or say "
                         "--out DIR",
                         info->selector);
    return keel_board_artifacts_folder(file, folder);
}

static int build_board(const struct keel_command *command, struct keel_board_file *file,
                       struct keel_device_info *info)
{
    const struct build_options *own = keel_command_own(command);
    struct keel_artifact_making making;
    char folder[KEEL_PATH_BYTES];
    enum keel_status status = keel_board_look(command->operands[0], 0, file, info);
    if (status == KEEL_OK)
        status = choose(file, info, own, &making, folder);
    if (status == KEEL_OK && own->sources == NULL)
        status = keel_artifact_may_replace(folder);
    if (status == KEEL_OK && own->sources != NULL)
        status = keel_artifact_write_sources(&making);
    if (status != KEEL_OK)
        return keel_board_report(status);
    if (own->sources != NULL)
        return tell_sources(command, folder);
    return file->build_with[0] != '\0' ? compile_apart(command, &making) : make(command, &making);
}

static int build(const struct keel_command *command)
{
    const struct build_options *own = keel_command_own(command);
    static struct keel_board_file file;
    static struct keel_device_info info;
    if (command->operand_count != 1)
        return keel_board_wrong_use("build wants one board or device", "");
    if (own->sources != NULL && own->out != NULL)
        return keel_board_wrong_use("--sources makes no artifacts that --out could name; leave one out", "");
    if (class_of(own) == KEEL_CLASSES)
        return keel_board_wrong_use("--numerics is canonical, native, exact8x2, exact8x3 or bf16, not ",
                                    own->numerics);
    return own->target != NULL ? compile(command, &file, &info) : build_board(command, &file, &info);
}

const struct keel_command_kind keel_board_build = {
    .name = "build",
    .operands = "BOARD",
    .operands_max = 1,
    .summary = "compile all kernels ahead of time",
    .details = "Makes a board's artifacts: every kernel in the device's own code, launched once at every "
               "group size\n"
               "in use, with a manifest that says what it is for. A board with artifacts is ready at once "
               "and compiles\n"
               "nothing. BOARD is vendor/board, the path of a board's folder, or a device as in `keel board "
               "list`. A\n"
               "board without a compiler is compiled for by code.build_with of its board.conf.\n",
    .examples = "  keel board build pocl/cpu\n"
                "  keel board build ./boards/acme/npu4 --sources /tmp/npu4\n",
    .options = options,
    .run = build};
