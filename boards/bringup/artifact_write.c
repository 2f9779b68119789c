/* artifact_write.c - making a folder of artifacts; the manifest and its sum come last, so that a folder which
 * was not finished is none. */
#include "artifact.h"
#include <jansson.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum keel_status not_empty(void *context, const char *name)
{
    return keel_fail(KEEL_INVALID, "%s: holds %s and is no folder of artifacts; name another, or empty it",
                     (const char *)context, name);
}

enum keel_status keel_artifact_writer_begin(struct keel_artifact_writer *writer, const char *folder)
{
    char manifest[KEEL_PATH_BYTES];
    memset(writer, 0, sizeof *writer);
    KEEL_TRY(keel_path_join(writer->folder, "", folder));
    KEEL_TRY(keel_path_join(manifest, folder, "manifest.json"));
    if (keel_path_is_file(manifest))
        KEEL_TRY(keel_remove_tree(folder));
    else if (keel_path_exists(folder))
        KEEL_TRY(keel_dir_list(folder, not_empty, writer->folder));
    KEEL_TRY(keel_mkdir_all(folder));
    writer->files = json_array();
    return writer->files != NULL ? KEEL_OK : keel_fail(KEEL_NO_MEMORY, "%s: no memory", folder);
}

static json_t *kernel_json(const struct keel_code_kernel *kernel)
{
    json_t *json = json_pack("{s:s, s:i}", "name", kernel->name, "args", (int)kernel->arg_count);
    if (json != NULL && kernel->local[0] > 0)
        json_object_set_new(
            json, "local",
            json_pack("[i, i, i]", (int)kernel->local[0], (int)kernel->local[1], (int)kernel->local[2]));
    return json;
}

static json_t *program_json(const struct keel_artifact_program *program)
{
    json_t *kernels = json_array();
    for (uint32_t i = 0; i < program->kernel_count; i++)
        json_array_append_new(kernels, kernel_json(&program->kernels[i]));
    return json_pack("{s:s, s:s, s:s*, s:o}", "module", program->module, "options", program->options,
                     "source", program->source, "kernels", kernels);
}

enum keel_status keel_artifact_writer_add(struct keel_artifact_writer *writer, const char *stem,
                                          const void *data, const struct keel_artifact_file *file)
{
    char name[64], path[KEEL_PATH_BYTES], hash[KEEL_ARTIFACT_HEX_BYTES];
    json_t *json = NULL, *programs = json_array();
    for (uint32_t i = 0; i < file->program_count; i++)
        json_array_append_new(programs, program_json(&file->programs[i]));
    if (file->form == KEEL_CODE_BUILTIN) {
        json = json_pack("{s:s, s:o}", "form", "builtin", "programs", programs);
    } else {
        snprintf(name, sizeof name, "%.40s-%u.bin", stem, writer->count);
        keel_artifact_hash(data, file->bytes, hash);
        json = json_pack("{s:s, s:s, s:I, s:s, s:I, s:o}", "form", "binary", "file", name, "bytes",
                         (json_int_t)file->bytes, "blake2b", hash, "image", (json_int_t)file->image,
                         "programs", programs);
        enum keel_status status = keel_path_join(path, writer->folder, name);
        if (status == KEEL_OK)
            status = keel_file_replace(path, data, file->bytes, 0666);
        if (status != KEEL_OK) {
            json_decref(json);
            return status;
        }
    }
    writer->count++;
    if (json_array_append_new(writer->files, json) != 0)
        return keel_fail(KEEL_NO_MEMORY, "%s: no memory for the manifest", writer->folder);
    return KEEL_OK;
}

static enum keel_status write_text(const struct keel_artifact_writer *writer, const char *name,
                                   const char *text)
{
    char path[KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_join(path, writer->folder, name));
    return keel_file_replace(path, text, strlen(text), 0666);
}

enum keel_status keel_artifact_writer_finish(struct keel_artifact_writer *writer,
                                             const struct keel_device_info *info)
{
    char hash[KEEL_ARTIFACT_HEX_BYTES], sum[KEEL_ARTIFACT_HEX_BYTES + 32];
    json_t *json = json_pack("{s:s, s:i, s:{s:s, s:s, s:s}, s:O}", "format", "keel-artifacts", "version", 1,
                             "device", "platform", info->platform, "name", info->name, "driver",
                             info->driver_version, "artifacts", (json_t *)writer->files);
    char *text = json != NULL ? json_dumps(json, JSON_INDENT(1)) : NULL;
    json_decref(json);
    if (text == NULL)
        return keel_fail(KEEL_UNSUPPORTED,
                         "%s: no memory for the manifest, or the driver's names are no UTF-8",
                         writer->folder);
    keel_artifact_hash(text, strlen(text), hash);
    snprintf(sum, sizeof sum, "%s  manifest.json\n", hash);
    enum keel_status status = write_text(writer, "manifest.json", text);
    if (status == KEEL_OK)
        status = write_text(writer, "manifest.sum", sum);
    free(text);
    return status;
}

void keel_artifact_writer_fini(struct keel_artifact_writer *writer)
{
    json_decref(writer->files);
    writer->files = NULL;
}
