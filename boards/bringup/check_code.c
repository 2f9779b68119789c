/* check_code.c - level 2: the board gets its code, from source or from its artifacts, and refuses what is
 * none. */
#include "artifact.h"
#include "board_file.h"
#include "check_steps.h"
#include "memcheck.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>

enum { READY_MS = 300, CODE_BYTES_MAX = 256 << 20 };

static void note_seconds(struct keel_check_run *run, const char *what, uint64_t begun_ns)
{
    keel_check_note(run, "%s after %.2f s", what, (double)(keel_now_ns() - begun_ns) / 1e9);
}

static void builds(struct keel_check_run *run)
{
    const uint64_t begun_ns = keel_now_ns();
    if (keel_check_open(run, KEEL_OPENS_KERNELS))
        note_seconds(run, "all modules", begun_ns);
}

/* Drivers that compile at the first launch may do so wrong, or die of it. */
static void warms(struct keel_check_run *run)
{
    const uint64_t begun_ns = keel_now_ns();
    keel_check_progress(run, 0, 0, "launching every kernel once");
    if (keel_check_ok(run, keel_golden_warm(run->on.kernels, run->on.queue, run->deadline_ns),
                      "a first launch"))
        note_seconds(run, "every kernel launched", begun_ns);
}

/* Broken source, and a kernel that is not there: refused with a reason, and the board goes on. */
static void refuses(struct keel_check_run *run)
{
    static const struct keel_module_kernel kernels[] = {{.name = "broken", .host = NULL}};
    static const struct keel_module module = {.name = "broken",
                                              .source =
                                                  "__kernel void broken(__global float *x) { x[0] = ; }\n",
                                              .kernels = kernels,
                                              .kernel_count = 1};
    struct keel_program *program = NULL;
    struct keel_kernels *good = NULL;
    if (run->on.info->kind == KEEL_DEVICE_HOST) {
        keel_check_note(run, "the host compiles nothing");
        return;
    }
    keel_check_progress(run, 0, 2, "compiling source that is none");
    enum keel_status status = keel_program_create(run->on.device, &module, "", &program);
    keel_program_destroy(program);
    if (status == KEEL_OK)
        keel_check_fail(run, "source that does not compile is taken for a program");
    else if (status != KEEL_UNSUPPORTED)
        keel_check_fail(run, "source that does not compile is answered by %s: %s", keel_status_name(status),
                        keel_detail());
    keel_check_progress(run, 1, 2, "building the kernels after it");
    if (keel_check_able(run, keel_kernels_create(run->on.device, &good), "right code after wrong code"))
        keel_kernels_destroy(good);
}

/* Does the code come from the board's folder? */
static bool has_artifacts(struct keel_check_run *run)
{
    return run->file->code != KEEL_BOARD_CODE_SOURCE && keel_board_has_artifacts(run->file);
}

/* Compiled before, kernels come from the driver's cache, or from artifacts. What is promised is the board's
 * time: that of other processes on a busy machine is not in it. */
static void ready(struct keel_check_run *run)
{
    enum { TIMES = 3 };
    double samples[TIMES];
    for (uint32_t i = 0; i < TIMES; i++) {
        struct keel_kernels *kernels = NULL;
        const uint64_t queued_ns = keel_check_queued_ns(), begun_ns = keel_now_ns();
        if (!keel_check_able(run, keel_kernels_create(run->on.device, &kernels), "the kernels"))
            return;
        const uint64_t took_ns = keel_now_ns() - begun_ns, lost_ns = keel_check_queued_ns() - queued_ns;
        samples[i] = took_ns > lost_ns ? (double)(took_ns - lost_ns) / 1e6 : 0;
        keel_kernels_destroy(kernels);
    }
    double median_ms = keel_check_figure(run, "ready_ms", "ms", KEEL_BETTER_LESS, samples, TIMES);
    if (has_artifacts(run) && median_ms > READY_MS)
        keel_check_fail(run, "with artifacts the kernels are ready after %.0f ms, and %d is promised",
                        median_ms, READY_MS);
}

/* ---- damaged artifacts ---- */

struct damage {
    const char *what, *file; /* NULL: the first file of code */
    enum { DAMAGE_FLIP, DAMAGE_CUT, DAMAGE_REMOVE } how;
};

static const struct damage damages[] = {
    {"a bit of the code is flipped", NULL, DAMAGE_FLIP},
    {"the code is cut short", NULL, DAMAGE_CUT},
    {"the file of the code is gone", NULL, DAMAGE_REMOVE},
    {"a bit of the manifest is flipped", "manifest.json", DAMAGE_FLIP},
    {"the manifest is cut short", "manifest.json", DAMAGE_CUT},
    {"the manifest's sum is gone", "manifest.sum", DAMAGE_REMOVE},
};

/* Artifacts of one module in a folder, as keel board build writes them. */
static enum keel_status write_artifacts(struct keel_device *device, const char *folder, const void *bytes,
                                        uint64_t size)
{
    const struct keel_code_kernel kernels[] = {
        {.name = keel_memcheck_module.kernels[0].name, .arg_count = 1}};
    char source[KEEL_ARTIFACT_HEX_BYTES];
    KEEL_TRY(keel_artifact_source_hash(&keel_memcheck_module, source));
    const struct keel_artifact_program made = {.module = keel_memcheck_module.name,
                                               .options = "",
                                               .source = source,
                                               .kernels = kernels,
                                               .kernel_count = 1};
    const struct keel_artifact_file file = {
        .form = KEEL_CODE_BINARY, .bytes = size, .programs = &made, .program_count = 1};
    struct keel_artifact_writer writer;
    KEEL_TRY(keel_artifact_writer_begin(&writer, folder));
    enum keel_status status = keel_artifact_writer_add(&writer, "code", bytes, &file);
    if (status == KEEL_OK)
        status = keel_artifact_writer_finish(&writer, keel_device_info(device));
    keel_artifact_writer_fini(&writer);
    return status;
}

static enum keel_status make_artifacts(struct keel_device *device, const char *folder)
{
    struct keel_program *program = NULL;
    void *bytes = NULL;
    uint64_t size = 0;
    KEEL_TRY(keel_program_create(device, &keel_memcheck_module, "", &program));
    enum keel_status status = keel_program_binary(program, &bytes, &size);
    keel_program_destroy(program);
    if (status == KEEL_OK)
        status = write_artifacts(device, folder, bytes, size);
    keel_free(bytes);
    return status;
}

struct copying {
    const char *from, *to;
};

static enum keel_status copy_file(void *context, const char *name)
{
    const struct copying *copying = context;
    char from[KEEL_PATH_BYTES], to[KEEL_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    KEEL_TRY(keel_path_join(from, copying->from, name));
    KEEL_TRY(keel_path_join(to, copying->to, name));
    KEEL_TRY(keel_file_read(from, CODE_BYTES_MAX, &text, &bytes));
    enum keel_status status = keel_file_replace(to, text, bytes, 0600);
    keel_free(text);
    return status;
}

/* A copy of the board's own artifacts, or some made for this. NOT_FOUND: the board has none and takes none.
 */
static enum keel_status get_artifacts(struct keel_check_run *run, const char *folder)
{
    char own[KEEL_PATH_BYTES];
    if (has_artifacts(run)) {
        KEEL_TRY(keel_board_artifacts_folder(run->file, own));
        return keel_dir_list(own, copy_file, &(struct copying){.from = own, .to = folder});
    }
    if (run->on.info->kind == KEEL_DEVICE_HOST || (run->on.info->code_forms & KEEL_CODE_BINARY) == 0)
        return KEEL_NOT_FOUND;
    return make_artifacts(run->on.device, folder);
}

/* The first file that is not the manifest's. */
static enum keel_status find_code(void *context, const char *name)
{
    char *found = context;
    if (found[0] == '\0' && strncmp(name, "manifest.", strlen("manifest.")) != 0)
        snprintf(found, KEEL_PATH_BYTES, "%s", name);
    return KEEL_OK;
}

/* Damage one file of the folder; *kept and *bytes are what it was. */
static enum keel_status do_damage(const struct damage *damage, const char *path, char **kept, size_t *bytes)
{
    KEEL_TRY(keel_file_read(path, CODE_BYTES_MAX, kept, bytes));
    if (damage->how == DAMAGE_REMOVE)
        return keel_remove_tree(path);
    (*kept)[*bytes / 2] ^= 4;
    enum keel_status status =
        keel_file_replace(path, *kept, damage->how == DAMAGE_CUT ? *bytes / 2 : *bytes, 0600);
    (*kept)[*bytes / 2] ^= 4;
    return status;
}

static void try_damage(struct keel_check_run *run, const char *folder, const char *code,
                       const struct damage *damage)
{
    char path[KEEL_PATH_BYTES], *kept = NULL;
    size_t bytes = 0;
    struct keel_artifacts *artifacts = NULL;
    enum keel_status status = keel_path_join(path, folder, damage->file != NULL ? damage->file : code);
    if (status == KEEL_OK)
        status = do_damage(damage, path, &kept, &bytes);
    if (keel_check_able(run, status, "damaging artifacts")) {
        if (keel_artifacts_open(folder, run->on.info, &artifacts) == KEEL_OK)
            keel_check_fail(run, "artifacts are taken although %s", damage->what);
        keel_artifacts_close(artifacts);
        keel_check_able(run, keel_file_replace(path, kept, bytes, 0600), "mending artifacts");
    }
    keel_free(kept);
}

static void try_damages(struct keel_check_run *run, const char *folder)
{
    enum { DAMAGES = sizeof damages / sizeof damages[0] };
    char code[KEEL_PATH_BYTES] = "";
    struct keel_artifacts *artifacts = NULL;
    if (!keel_check_able(run, keel_dir_list(folder, find_code, code), "artifacts"))
        return;
    for (uint32_t i = 0; i <= DAMAGES; i++) {
        keel_check_progress(run, i, DAMAGES, i < DAMAGES ? damages[i].what : "whole again");
        if (i < DAMAGES && (damages[i].file != NULL || code[0] != '\0')) /* built-in kernels have no file */
            try_damage(run, folder, code, &damages[i]);
    }
    if (keel_check_ok(run, keel_artifacts_open(folder, run->on.info, &artifacts), "artifacts that are whole"))
        keel_artifacts_close(artifacts);
}

/* On a copy made for it: those of the board's folder stay as they are. */
static void refuses_damage(struct keel_check_run *run)
{
    char folder[] = "/tmp/keel-check-XXXXXX";
    if (mkdtemp(folder) == NULL) {
        keel_check_cannot(run, "%s: no folder can be made there", folder);
        return;
    }
    keel_check_progress(run, 0, 0, "getting artifacts");
    enum keel_status status = get_artifacts(run, folder);
    if (status == KEEL_NOT_FOUND)
        keel_check_note(run, "the board has no artifacts, and takes none");
    else if (keel_check_able(run, status, "artifacts to damage"))
        try_damages(run, folder);
    keel_remove_tree(folder);
}

const struct keel_check keel_checks_code[] = {
    {"2.1", "builds", "all modules become programs of the board", "0.2", 300, KEEL_OPENS_DEVICE, builds},
    {"2.2", "warms", "every kernel launches and ends", "2.1", 300, KEEL_OPENS_KERNELS, warms},
    {"2.3", "refuses", "source that does not compile is refused, and the board goes on", "0.2", 300,
     KEEL_OPENS_DEVICE, refuses},
    {"2.4", "ready", "programs that were made before are ready again", "2.1", 120, KEEL_OPENS_DEVICE, ready},
    {"2.5", "damage", "artifacts that are damaged are refused before the driver sees them", "2.1", 120,
     KEEL_OPENS_DEVICE, refuses_damage},
    {.id = NULL}};
