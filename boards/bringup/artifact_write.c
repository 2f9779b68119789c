/* artifact_write.c - making a folder of artifacts beside the one that it takes the place of, so that there is
 * always a whole one; and nothing but artifacts ever makes way. */
#include "artifact.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <keel/disk.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what was there before ---- */

struct old {
    const char *folder;
    json_t *manifest;
};

static bool is_named(const json_t *manifest, const char *name)
{
    size_t i;
    json_t *file;
    json_array_foreach(json_object_get(manifest, "artifacts"), i, file)
    {
        const char *named = json_string_value(json_object_get(file, "file"));
        if (named != NULL && strcmp(named, name) == 0)
            return true;
    }
    return strcmp(name, "manifest.json") == 0 || strcmp(name, "manifest.sum") == 0;
}

static enum keel_status check_name(void *context, const char *name)
{
    const struct old *old = context;
    const char *format = json_string_value(json_object_get(old->manifest, "format"));
    if (format != NULL && strcmp(format, "keel-artifacts") == 0 && is_named(old->manifest, name))
        return KEEL_OK;
    return keel_fail(KEEL_INVALID,
                     "%.800s: holds %s, which no manifest of artifacts there names; it stays as it is: take "
                     "what is no artifact away, or name another folder",
                     old->folder, name);
}

/* Whatever takes the place of a folder's files takes them away: all must be those of artifacts. The manifest
 * may be damaged or of another version; that it is one of artifacts is enough. */
enum keel_status keel_artifact_may_replace(const char *folder)
{
    char path[KEEL_PATH_BYTES], *text;
    size_t bytes;
    struct old old = {.folder = folder};
    if (!keel_path_exists(folder))
        return KEEL_OK;
    KEEL_TRY(keel_path_join(path, folder, "manifest.json"));
    if (keel_path_is_file(path)) {
        KEEL_TRY(keel_file_read(path, KEEL_ARTIFACT_MANIFEST_BYTES_MAX, &text, &bytes));
        old.manifest = json_loadb(text, bytes, 0, NULL);
        keel_free(text);
    }
    enum keel_status status = keel_dir_list(folder, check_name, &old);
    json_decref(old.manifest);
    return status;
}

/* ---- beginning ---- */

/* The folder by its full name, so that what is made lies beside it, whatever link or "." named it. */
static enum keel_status find_place(struct keel_artifact_writer *writer, const char *folder)
{
    KEEL_TRY(keel_mkdir_all(folder));
    char *real = realpath(folder, NULL);
    if (real == NULL)
        return keel_fail_errno(errno, "%s: cannot be found", folder);
    enum keel_status status = keel_path_join(writer->folder, "", real);
    free(real);
    if (status != KEEL_OK || strlen(writer->folder) + sizeof ".XXXXXX/new" > KEEL_PATH_BYTES)
        return keel_fail(KEEL_LIMIT, "%s: path too long", folder);
    return KEEL_OK;
}

enum keel_status keel_artifact_writer_begin(struct keel_artifact_writer *writer, const char *folder)
{
    char work[KEEL_PATH_BYTES + sizeof ".XXXXXX"];
    memset(writer, 0, sizeof *writer);
    KEEL_TRY(find_place(writer, folder));
    KEEL_TRY(keel_artifact_may_replace(writer->folder));
    snprintf(work, sizeof work, "%s.XXXXXX", writer->folder);
    if (mkdtemp(work) == NULL)
        return keel_fail_errno(errno, "%s: cannot be made", work);
    memcpy(writer->work, work, sizeof writer->work);
    enum keel_status status = keel_path_join(writer->made, writer->work, "new");
    if (status == KEEL_OK)
        status = keel_mkdir_all(writer->made);
    writer->files = json_array();
    if (status == KEEL_OK && writer->files == NULL)
        status = keel_fail(KEEL_NO_MEMORY, "%s: no memory", folder);
    if (status != KEEL_OK)
        keel_artifact_writer_fini(writer);
    return status;
}

/* ---- what it is for ---- */

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
        enum keel_status status = keel_path_join(path, writer->made, name);
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
    KEEL_TRY(keel_path_join(path, writer->made, name));
    return keel_file_replace(path, text, strlen(text), 0666);
}

static enum keel_status move(const char *from, const char *to)
{
    return keel_disk_rename(AT_FDCWD, from, AT_FDCWD, to) == 0
               ? KEEL_OK
               : keel_fail_errno(errno, "%.400s: cannot be moved to %.400s", from, to);
}

/* The old folder goes away whole and the new one comes whole; where that fails the old one comes back. */
static enum keel_status put_in_place(const struct keel_artifact_writer *writer)
{
    char old[KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_join(old, writer->work, "old"));
    KEEL_TRY(keel_artifact_may_replace(writer->folder));
    KEEL_TRY(move(writer->folder, old));
    enum keel_status status = move(writer->made, writer->folder);
    if (status != KEEL_OK)
        (void)keel_disk_rename(AT_FDCWD, old, AT_FDCWD, writer->folder);
    return status;
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
    enum keel_status status = write_text(writer, "manifest.sum", sum);
    if (status == KEEL_OK)
        status = write_text(writer, "manifest.json", text);
    free(text);
    return status == KEEL_OK ? put_in_place(writer) : status;
}

void keel_artifact_writer_fini(struct keel_artifact_writer *writer)
{
    json_decref(writer->files);
    if (writer->work[0] != '\0' && keel_remove_tree(writer->work) != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "left behind: %s", keel_detail());
    *writer = (struct keel_artifact_writer){0};
}
