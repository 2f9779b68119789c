/* artifact.c - an open folder of artifacts: all of it read, hashed and compared before anybody gets any. */
#include "artifact.h"
#include <inttypes.h>
#include <keel/memory.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

struct keel_artifacts {
    struct keel_artifact_manifest manifest;
    char folder[KEEL_PATH_BYTES];
    char *data[KEEL_ARTIFACT_FILES_MAX]; /* by file; NULL for built-in kernels */
};

void keel_artifact_hash(const void *data, uint64_t bytes, char out[KEEL_ARTIFACT_HEX_BYTES])
{
    unsigned char hash[KEEL_ARTIFACT_HASH_BYTES];
    crypto_generichash(hash, sizeof hash, data, bytes, NULL, 0);
    sodium_bin2hex(out, KEEL_ARTIFACT_HEX_BYTES, hash, sizeof hash);
}

enum keel_status keel_artifact_source_hash(const struct keel_module *module,
                                           char out[KEEL_ARTIFACT_HEX_BYTES])
{
    char *source;
    KEEL_TRY(keel_module_source(module, &source));
    keel_artifact_hash(source, strlen(source), out);
    keel_free(source);
    return KEEL_OK;
}

/* ---- opening ---- */

/* A pipe, for instance, may never end. */
static enum keel_status want_file(const char *path)
{
    if (!keel_path_exists(path) || keel_path_is_file(path))
        return KEEL_OK;
    return keel_fail(KEEL_CORRUPT, "%s: is no file; make the artifacts anew (keel board build)", path);
}

/* Is the manifest the text that was written? */
static enum keel_status check_sum(const char *folder, const char *text, size_t bytes)
{
    char path[KEEL_PATH_BYTES], hash[KEEL_ARTIFACT_HEX_BYTES], wanted[KEEL_ARTIFACT_HEX_BYTES + 32], *sum;
    size_t sum_bytes;
    KEEL_TRY(keel_path_join(path, folder, "manifest.sum"));
    KEEL_TRY(want_file(path));
    KEEL_TRY(keel_file_read(path, sizeof wanted, &sum, &sum_bytes));
    keel_artifact_hash(text, bytes, hash);
    snprintf(wanted, sizeof wanted, "%s  manifest.json\n", hash);
    bool same = sum_bytes == strlen(wanted) && memcmp(sum, wanted, sum_bytes) == 0;
    keel_free(sum);
    return same ? KEEL_OK
                : keel_fail(KEEL_CORRUPT,
                            "%s: is not the sum of manifest.json: one of them is damaged; make the artifacts "
                            "anew (keel board build)",
                            path);
}

static enum keel_status read_manifest(struct keel_artifacts *artifacts)
{
    char path[KEEL_PATH_BYTES], *text;
    size_t bytes;
    KEEL_TRY(keel_path_join(path, artifacts->folder, "manifest.json"));
    KEEL_TRY(want_file(path));
    KEEL_TRY(keel_file_read(path, KEEL_ARTIFACT_MANIFEST_BYTES_MAX, &text, &bytes));
    enum keel_status status = check_sum(artifacts->folder, text, bytes);
    if (status == KEEL_OK)
        status = keel_artifact_manifest_parse(text, bytes, path, &artifacts->manifest);
    keel_free(text);
    return status;
}

static enum keel_status other_device(const struct keel_artifacts *artifacts, const char *what,
                                     const char *made_for, const char *is)
{
    return keel_fail(KEEL_MISMATCH,
                     "%.200s: made for %s \"%s\", and this is \"%s\"; make them anew (keel board build)",
                     artifacts->folder, what, made_for, is);
}

static enum keel_status check_device(const struct keel_artifacts *artifacts,
                                     const struct keel_device_info *info)
{
    const struct keel_artifact_manifest *manifest = &artifacts->manifest;
    if (strcmp(manifest->platform, info->platform) != 0)
        return other_device(artifacts, "platform", manifest->platform, info->platform);
    if (strcmp(manifest->device, info->name) != 0)
        return other_device(artifacts, "device", manifest->device, info->name);
    if (strcmp(manifest->driver, info->driver_version) != 0)
        return other_device(artifacts, "driver", manifest->driver, info->driver_version);
    if (manifest->bank_count > 1 && manifest->bank_count > info->memory_banks)
        return keel_fail(
            KEEL_MISMATCH,
            "%.200s: its kernels need %u banks of memory, and the board has %u; set device.banks "
            "in board.conf, or make them anew (keel board build)",
            artifacts->folder, manifest->bank_count, info->memory_banks);
    return KEEL_OK;
}

static enum keel_status read_file(const struct keel_artifacts *artifacts,
                                  const struct keel_artifact_file *file, char **out)
{
    char path[KEEL_PATH_BYTES], hash[KEEL_ARTIFACT_HEX_BYTES], *data;
    size_t bytes;
    KEEL_TRY(keel_path_join(path, artifacts->folder, file->name));
    KEEL_TRY(want_file(path));
    KEEL_TRY(keel_file_read(path, KEEL_ARTIFACT_FILE_BYTES_MAX, &data, &bytes));
    keel_artifact_hash(data, bytes, hash);
    if (bytes != file->bytes || strcmp(hash, file->hash) != 0) {
        keel_free(data);
        return keel_fail(KEEL_CORRUPT,
                         "%s: is not what manifest.json says (%zu bytes, %" PRIu64
                         " wanted): damaged; make the artifacts anew (keel board build)",
                         path, bytes, file->bytes);
    }
    *out = data;
    return KEEL_OK;
}

enum keel_status keel_artifacts_open(const char *folder, const struct keel_device_info *info,
                                     struct keel_artifacts **out)
{
    struct keel_artifacts *artifacts;
    KEEL_TRY(keel_alloc(1, sizeof *artifacts, &artifacts));
    enum keel_status status = keel_path_join(artifacts->folder, "", folder);
    if (status == KEEL_OK)
        status = read_manifest(artifacts);
    if (status == KEEL_OK)
        status = check_device(artifacts, info);
    for (uint32_t i = 0; i < artifacts->manifest.file_count && status == KEEL_OK; i++)
        if (artifacts->manifest.files[i].form == KEEL_CODE_BINARY)
            status = read_file(artifacts, &artifacts->manifest.files[i], &artifacts->data[i]);
    if (status != KEEL_OK) {
        keel_artifacts_close(artifacts);
        return status;
    }
    *out = artifacts;
    return KEEL_OK;
}

void keel_artifacts_close(struct keel_artifacts *artifacts)
{
    if (artifacts == NULL)
        return;
    for (uint32_t i = 0; i < KEEL_ARTIFACT_FILES_MAX; i++)
        keel_free(artifacts->data[i]);
    keel_artifact_manifest_fini(&artifacts->manifest);
    keel_free(artifacts);
}

/* ---- finding ---- */

static enum keel_status check_program(const struct keel_artifacts *artifacts,
                                      const struct keel_artifact_program *program,
                                      const struct keel_module *module)
{
    char hash[KEEL_ARTIFACT_HEX_BYTES];
    KEEL_TRY(keel_artifact_source_hash(module, hash));
    if (program->source != NULL && strcmp(program->source, hash) != 0)
        return keel_fail(KEEL_MISMATCH,
                         "%.200s: module %s was made from another text than this program's; make the "
                         "artifacts anew (keel board build)",
                         artifacts->folder, module->name);
    for (uint32_t i = 0; i < module->kernel_count; i++) {
        uint32_t k = 0;
        while (k < program->kernel_count && strcmp(program->kernels[k].name, module->kernels[i].name) != 0)
            k++;
        if (k == program->kernel_count)
            return keel_fail(KEEL_MISMATCH,
                             "%.200s: module %s has no kernel %s; make the artifacts anew (keel board build)",
                             artifacts->folder, module->name, module->kernels[i].name);
    }
    return KEEL_OK;
}

enum keel_status keel_artifacts_find(const struct keel_artifacts *artifacts, const struct keel_module *module,
                                     const char *options, struct keel_code *out)
{
    for (uint32_t i = 0; i < artifacts->manifest.file_count; i++) {
        const struct keel_artifact_file *file = &artifacts->manifest.files[i];
        for (uint32_t k = 0; k < file->program_count; k++) {
            const struct keel_artifact_program *program = &file->programs[k];
            if (strcmp(program->module, module->name) != 0 || strcmp(program->options, options) != 0)
                continue;
            KEEL_TRY(check_program(artifacts, program, module));
            *out = (struct keel_code){.form = file->form,
                                      .bytes = artifacts->data[i],
                                      .size = file->bytes,
                                      .image = file->image,
                                      .kernels = program->kernels,
                                      .kernel_count = program->kernel_count};
            return KEEL_OK;
        }
    }
    return keel_fail(KEEL_NOT_FOUND,
                     "%.200s: nothing of module %s with options \"%s\"; make the artifacts anew (keel board "
                     "build)",
                     artifacts->folder, module->name, options);
}
