/* artifact_manifest.c - manifest.json to struct: strict, for what it lets through reaches a driver.
 *
 * Every member is known, of its type, within its range and given once. Strings stay in the JSON tree. */
#include "artifact.h"
#include <inttypes.h>
#include <jansson.h>
#include <keel/memory.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { FORMAT_VERSION = 1, NAME_BYTES_MAX = 128, OPTIONS_BYTES_MAX = 1024, LOCAL_MAX = 65536 };

struct parsing {
    struct keel_artifact_manifest *out;
    const char *where;
};

static enum keel_status corrupt(const struct parsing *parsing, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static enum keel_status corrupt(const struct parsing *parsing, const char *format, ...)
{
    char text[256];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return keel_fail(KEEL_CORRUPT, "%s: %s; make the artifacts anew (keel board build)", parsing->where,
                     text);
}

/* ---- what a string may be ---- */

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/* Of letters, digits and these, and not too long. */
static bool is_made_of(const char *text, const char *others)
{
    size_t length = strlen(text), at = 0;
    while (at < length && (strchr(letters, text[at]) != NULL || strchr(others, text[at]) != NULL))
        at++;
    return length > 0 && at == length && length <= NAME_BYTES_MAX;
}

static bool is_name(const char *text)
{
    return is_made_of(text, "._-") && strchr(letters, text[0]) != NULL;
}

static bool is_identifier(const char *text)
{
    return is_made_of(text, "_");
}

static bool is_hash(const char *text)
{
    return strlen(text) == KEEL_ARTIFACT_HEX_BYTES - 1 && strspn(text, "0123456789abcdef") == strlen(text);
}

static bool is_line(const char *text, size_t longest)
{
    size_t length = strlen(text);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return false;
    return length <= longest;
}

/* ---- kernels ---- */

static enum keel_status take_local(const struct parsing *parsing, json_t *local, struct keel_code_kernel *out)
{
    if (local == NULL)
        return KEEL_OK;
    if (!json_is_array(local) || json_array_size(local) != 3)
        return corrupt(parsing, "kernel %s: local must be three numbers", out->name);
    for (size_t i = 0; i < 3; i++) {
        json_t *item = json_array_get(local, i);
        json_int_t value = json_integer_value(item);
        if (!json_is_integer(item) || value < 1 || value > LOCAL_MAX)
            return corrupt(parsing, "kernel %s: local must be three numbers of 1 to %d", out->name,
                           LOCAL_MAX);
        out->local[i] = (uint32_t)value;
    }
    return KEEL_OK;
}

/* One entry for each argument: the bank that its buffer lies in, or -1. */
static enum keel_status take_banks(const struct parsing *parsing, json_t *banks,
                                   const struct keel_code_kernel *kernel)
{
    if (banks == NULL)
        return KEEL_OK;
    if (!json_is_array(banks) || json_array_size(banks) != kernel->arg_count)
        return corrupt(parsing, "kernel %s: banks must be %u numbers, one for each argument", kernel->name,
                       kernel->arg_count);
    for (size_t i = 0; i < kernel->arg_count; i++) {
        json_t *item = json_array_get(banks, i);
        json_int_t value = json_integer_value(item);
        if (!json_is_integer(item) || value < -1 || value >= 64)
            return corrupt(parsing, "kernel %s: a bank is a number of 0 to 63, or -1 for none", kernel->name);
        if (value + 1 > (json_int_t)parsing->out->bank_count)
            parsing->out->bank_count = (uint32_t)(value + 1);
    }
    return KEEL_OK;
}

static enum keel_status take_kernel(const struct parsing *parsing, json_t *json, struct keel_code_kernel *out)
{
    json_error_t error;
    json_int_t args = 0;
    json_t *local = NULL, *banks = NULL;
    if (json_unpack_ex(json, &error, JSON_STRICT, "{s:s, s:I, s?o, s?o}", "name", &out->name, "args", &args,
                       "local", &local, "banks", &banks) != 0)
        return corrupt(parsing, "a kernel: %s", error.text);
    if (!is_identifier(out->name))
        return corrupt(parsing, "a kernel's name is no identifier");
    if (args < 0 || args > KEEL_ARG_MAX)
        return corrupt(parsing, "kernel %s: args must be 0 to %d", out->name, KEEL_ARG_MAX);
    out->arg_count = (uint32_t)args;
    KEEL_TRY(take_local(parsing, local, out));
    return take_banks(parsing, banks, out);
}

/* ---- programs ---- */

static enum keel_status take_kernels(const struct parsing *parsing, json_t *list,
                                     struct keel_artifact_program *out)
{
    struct keel_artifact_manifest *manifest = parsing->out;
    size_t count = json_array_size(list); /* 0 when it is no array */
    if (count == 0 || count > KEEL_ARTIFACT_KERNELS_MAX - manifest->kernel_count)
        return corrupt(parsing, "module %s: kernels must be a list, %d in all at most", out->module,
                       KEEL_ARTIFACT_KERNELS_MAX);
    struct keel_code_kernel *kernels = manifest->kernels + manifest->kernel_count;
    for (size_t i = 0; i < count; i++) {
        KEEL_TRY(take_kernel(parsing, json_array_get(list, i), &kernels[i]));
        for (size_t k = 0; k < i; k++)
            if (strcmp(kernels[k].name, kernels[i].name) == 0)
                return corrupt(parsing, "kernel %s is given twice", kernels[i].name);
    }
    out->kernels = kernels;
    out->kernel_count = (uint32_t)count;
    manifest->kernel_count += (uint32_t)count;
    return KEEL_OK;
}

static enum keel_status take_program(const struct parsing *parsing, json_t *json, enum keel_code_form form)
{
    struct keel_artifact_manifest *manifest = parsing->out;
    struct keel_artifact_program *out = &manifest->programs[manifest->program_count];
    json_error_t error;
    json_t *kernels = NULL;
    if (json_unpack_ex(json, &error, JSON_STRICT, "{s:s, s:s, s?s, s:o}", "module", &out->module, "options",
                       &out->options, "source", &out->source, "kernels", &kernels) != 0)
        return corrupt(parsing, "a program: %s", error.text);
    if (!is_identifier(out->module) || !is_line(out->options, OPTIONS_BYTES_MAX))
        return corrupt(parsing, "a program's module is no identifier, or its options no line");
    if (out->source == NULL ? form == KEEL_CODE_BINARY : !is_hash(out->source))
        return corrupt(parsing, "module %s: source must be the hash of its text", out->module);
    for (uint32_t i = 0; i < manifest->program_count; i++)
        if (strcmp(manifest->programs[i].module, out->module) == 0 &&
            strcmp(manifest->programs[i].options, out->options) == 0)
            return corrupt(parsing, "module %s with options \"%s\" is given twice", out->module,
                           out->options);
    KEEL_TRY(take_kernels(parsing, kernels, out));
    manifest->program_count++;
    return KEEL_OK;
}

static enum keel_status take_programs(const struct parsing *parsing, json_t *list,
                                      struct keel_artifact_file *out)
{
    struct keel_artifact_manifest *manifest = parsing->out;
    size_t count = json_array_size(list);
    if (count == 0 || count > KEEL_ARTIFACT_PROGRAMS_MAX - manifest->program_count)
        return corrupt(parsing, "programs must be a list, %d in all at most", KEEL_ARTIFACT_PROGRAMS_MAX);
    out->programs = manifest->programs + manifest->program_count;
    out->program_count = (uint32_t)count;
    for (size_t i = 0; i < count; i++)
        KEEL_TRY(take_program(parsing, json_array_get(list, i), out->form));
    return KEEL_OK;
}

/* ---- files ---- */

static enum keel_status check_file(const struct parsing *parsing, const struct keel_artifact_file *file,
                                   json_int_t bytes)
{
    bool named = file->name != NULL || file->hash != NULL || bytes != 0;
    if (file->form == KEEL_CODE_BUILTIN)
        return named ? corrupt(parsing, "built-in kernels have no file, bytes or blake2b") : KEEL_OK;
    if (file->name == NULL || !is_name(file->name) || strcmp(file->name, "manifest.json") == 0 ||
        strcmp(file->name, "manifest.sum") == 0)
        return corrupt(parsing, "a file's name must be of letters, digits, '.', '_' and '-'");
    if (file->hash == NULL || !is_hash(file->hash))
        return corrupt(parsing, "%s: blake2b must be 64 hexadecimal digits", file->name);
    if (bytes < 1 || (uint64_t)bytes > KEEL_ARTIFACT_FILE_BYTES_MAX)
        return corrupt(parsing, "%s: bytes must be 1 to %" PRIu64, file->name, KEEL_ARTIFACT_FILE_BYTES_MAX);
    return KEEL_OK;
}

static enum keel_status check_image(const struct parsing *parsing, const struct keel_artifact_file *file)
{
    if (file->image == 0)
        return file->program_count > 1 && file->form == KEEL_CODE_BINARY
                   ? corrupt(parsing, "%s: holds several programs, so it needs an image number", file->name)
                   : KEEL_OK;
    for (const struct keel_artifact_file *other = parsing->out->files; other < file; other++)
        if (other->image == file->image)
            return corrupt(parsing, "image %" PRIu64 " is given to two files", file->image);
    return KEEL_OK;
}

static enum keel_status take_file(const struct parsing *parsing, json_t *json, struct keel_artifact_file *out)
{
    json_error_t error;
    json_t *programs = NULL;
    const char *form = NULL;
    json_int_t bytes = 0, image = 0;
    if (json_unpack_ex(json, &error, JSON_STRICT, "{s:s, s?s, s?I, s?s, s?I, s:o}", "form", &form, "file",
                       &out->name, "bytes", &bytes, "blake2b", &out->hash, "image", &image, "programs",
                       &programs) != 0)
        return corrupt(parsing, "a file: %s", error.text);
    if (strcmp(form, "binary") != 0 && strcmp(form, "builtin") != 0)
        return corrupt(parsing, "form must be binary or builtin");
    out->form = strcmp(form, "binary") == 0 ? KEEL_CODE_BINARY : KEEL_CODE_BUILTIN;
    KEEL_TRY(check_file(parsing, out, bytes));
    if (image < 0)
        return corrupt(parsing, "an image's number is negative");
    out->bytes = (uint64_t)bytes;
    out->image = (uint64_t)image;
    KEEL_TRY(take_programs(parsing, programs, out));
    return check_image(parsing, out);
}

static enum keel_status take_files(const struct parsing *parsing, json_t *list)
{
    struct keel_artifact_manifest *manifest = parsing->out;
    size_t count = json_array_size(list);
    if (count == 0 || count > KEEL_ARTIFACT_FILES_MAX)
        return corrupt(parsing, "artifacts must be a list of 1 to %d", KEEL_ARTIFACT_FILES_MAX);
    for (size_t i = 0; i < count; i++) {
        KEEL_TRY(take_file(parsing, json_array_get(list, i), &manifest->files[i]));
        manifest->file_count++;
    }
    return KEEL_OK;
}

static enum keel_status take_manifest(const struct parsing *parsing)
{
    struct keel_artifact_manifest *out = parsing->out;
    json_error_t error;
    const char *format = NULL;
    json_int_t version = 0;
    json_t *files = NULL;
    if (json_unpack_ex(out->json, &error, 0, "{s:s, s:I}", "format", &format, "version", &version) != 0)
        return corrupt(parsing, "%s", error.text);
    if (strcmp(format, "keel-artifacts") != 0)
        return corrupt(parsing, "it is no manifest of artifacts");
    if (version != FORMAT_VERSION)
        return keel_fail(KEEL_VERSION,
                         "%s: format version %" JSON_INTEGER_FORMAT ", and this program reads %d; make the "
                         "artifacts anew (keel board build)",
                         parsing->where, version, FORMAT_VERSION);
    if (json_unpack_ex(out->json, &error, JSON_STRICT, "{s:s, s:I, s:{s:s, s:s, s:s}, s:o}", "format",
                       &format, "version", &version, "device", "platform", &out->platform, "name",
                       &out->device, "driver", &out->driver, "artifacts", &files) != 0)
        return corrupt(parsing, "%s", error.text);
    return take_files(parsing, files);
}

/* ---- parsing ---- */

void keel_artifact_manifest_fini(struct keel_artifact_manifest *manifest)
{
    json_decref(manifest->json);
    keel_free(manifest->files);
    keel_free(manifest->programs);
    keel_free(manifest->kernels);
    *manifest = (struct keel_artifact_manifest){0};
}

enum keel_status keel_artifact_manifest_parse(const char *text, size_t bytes, const char *where,
                                              struct keel_artifact_manifest *out)
{
    struct keel_artifact_manifest manifest = {0};
    const struct parsing parsing = {.out = &manifest, .where = where};
    json_error_t error;
    if (bytes > KEEL_ARTIFACT_MANIFEST_BYTES_MAX)
        return corrupt(&parsing, "longer than %d bytes", KEEL_ARTIFACT_MANIFEST_BYTES_MAX);
    manifest.json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (manifest.json == NULL)
        return corrupt(&parsing, "line %d: %s", error.line, error.text);
    enum keel_status status = keel_alloc(KEEL_ARTIFACT_FILES_MAX, sizeof *manifest.files, &manifest.files);
    if (status == KEEL_OK)
        status = keel_alloc(KEEL_ARTIFACT_PROGRAMS_MAX, sizeof *manifest.programs, &manifest.programs);
    if (status == KEEL_OK)
        status = keel_alloc(KEEL_ARTIFACT_KERNELS_MAX, sizeof *manifest.kernels, &manifest.kernels);
    if (status == KEEL_OK)
        status = take_manifest(&parsing);
    if (status != KEEL_OK) {
        keel_artifact_manifest_fini(&manifest);
        return status;
    }
    *out = manifest;
    return KEEL_OK;
}
