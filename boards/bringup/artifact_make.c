/* artifact_make.c - from modules to artifacts: compile, launch once, keep the driver's own form.
 *
 * A driver may put off a part of its compiling to the first launch at each group size; so each kernel is
 * launched before its code is kept, by the golden operations and the memory check, at the groups that the
 * target uses. */
#include "artifact_make.h"
#include "artifact.h"
#include "board_file.h"
#include "memcheck.h"
#include <jansson.h>
#include <keel/clock.h>
#include <keel/golden.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARM_LIMIT_NS (1800 * KEEL_NS_PER_S)
enum { WARM_MEMORY_BYTES = 1 << 20, ONE_IMAGE = 1 };

/* A program to be kept. */
struct part {
    const struct keel_module *module;
    char *options;
    struct keel_code_kernel *kernels;
    const struct keel_program *program; /* while it is built */
};

struct maker {
    const struct keel_artifact_making *making;
    struct keel_device *device;
    struct keel_kernels *kernels;
    struct keel_program *memcheck; /* the memory check's, beside those of `kernels` */
    struct part parts[KEEL_IMAGE_MAX];
    uint32_t count;
};

/* ---- parts ---- */

/* One more program, with what is known of its kernels; `kernels` may be NULL where nothing is built. */
static enum keel_status add_part(struct maker *maker, const struct keel_kernels_part *from)
{
    if (maker->count == KEEL_IMAGE_MAX)
        return keel_fail(KEEL_LIMIT, "more than %d programs", (int)KEEL_IMAGE_MAX);
    struct part *part = &maker->parts[maker->count++];
    part->module = from->module;
    part->program = from->program;
    KEEL_TRY(keel_strdup(from->options, &part->options));
    KEEL_TRY(keel_alloc(from->module->kernel_count, sizeof *part->kernels, &part->kernels));
    for (uint32_t i = 0; i < from->module->kernel_count; i++) {
        struct keel_kernel_info info = keel_kernel_info(from->kernels[i]);
        part->kernels[i].name = from->module->kernels[i].name;
        part->kernels[i].arg_count = info.arg_count;
        memcpy(part->kernels[i].local, info.local, sizeof info.local);
    }
    return KEEL_OK;
}

/* The memory check has one program of one kernel. */
static enum keel_status add_memcheck(struct maker *maker)
{
    struct keel_kernel *kernel;
    const struct keel_kernels_part part = {
        .module = &keel_memcheck_module, .options = "", .program = maker->memcheck, .kernels = &kernel};
    KEEL_ASSERT(keel_memcheck_module.kernel_count == 1);
    KEEL_TRY(keel_kernel_create(maker->memcheck, keel_memcheck_module.kernels[0].name, &kernel));
    enum keel_status status = add_part(maker, &part);
    keel_kernel_destroy(kernel);
    return status;
}

/* ---- a device that compiles ---- */

static enum keel_status create_programs(struct maker *maker)
{
    struct keel_setting settings[KEEL_BOARD_TUNABLES_MAX];
    const struct keel_kernels_options with = {.numerics = maker->making->numerics,
                                              .target = maker->making->target,
                                              .settings = settings,
                                              .setting_count = maker->making->file->tunable_count};
    KEEL_TRY(keel_board_settings(maker->making->file, settings));
    KEEL_TRY(keel_kernels_create_with(maker->device, &with, &maker->kernels));
    return keel_program_create(maker->device, &keel_memcheck_module, "", &maker->memcheck);
}

static void destroy_programs(struct maker *maker)
{
    keel_program_destroy(maker->memcheck);
    keel_kernels_destroy(maker->kernels);
    maker->memcheck = NULL;
    maker->kernels = NULL;
}

static enum keel_status open_programs(struct maker *maker)
{
    KEEL_TRY(keel_device_open(maker->making->selector, NULL, &maker->device));
    KEEL_TRY(create_programs(maker));
    for (uint32_t i = 0; i < keel_kernels_part_count(maker->kernels); i++) {
        struct keel_kernels_part part = keel_kernels_part(maker->kernels, i);
        KEEL_TRY(add_part(maker, &part));
    }
    return add_memcheck(maker);
}

static void close_programs(struct maker *maker)
{
    destroy_programs(maker);
    for (uint32_t i = 0; i < maker->count; i++) {
        keel_free(maker->parts[i].options);
        keel_free(maker->parts[i].kernels);
    }
    keel_device_close(maker->device);
}

static enum keel_status warm(struct maker *maker)
{
    struct keel_queue *queue;
    struct keel_memcheck_result result;
    const uint64_t deadline_ns = keel_deadline_after_ns(WARM_LIMIT_NS);
    KEEL_TRY(keel_queue_create(maker->device, &queue));
    enum keel_status status = keel_golden_warm(maker->kernels, queue, deadline_ns);
    keel_queue_destroy(queue);
    KEEL_TRY(status);
    const struct keel_memcheck_options options = {.bytes = WARM_MEMORY_BYTES, .deadline_ns = deadline_ns};
    return keel_memcheck_run(maker->device, &options, &result);
}

/* ---- one image ---- */

static enum keel_status find_linked(void *context, const struct keel_module *module, const char *options,
                                    struct keel_code *out)
{
    const struct maker *maker = context;
    for (uint32_t i = 0; i < maker->count; i++) {
        const struct part *part = &maker->parts[i];
        if (part->module != module || strcmp(part->options, options) != 0)
            continue;
        *out = (struct keel_code){.form = KEEL_CODE_BINARY,
                                  .image = ONE_IMAGE,
                                  .kernels = part->kernels,
                                  .kernel_count = module->kernel_count};
        return KEEL_OK;
    }
    return KEEL_NOT_FOUND;
}

/* All programs anew, of one image. */
static enum keel_status link_programs(struct maker *maker)
{
    const struct keel_module *modules[KEEL_IMAGE_MAX];
    const char *options[KEEL_IMAGE_MAX];
    const struct keel_code_provider code = {.find = find_linked, .context = maker};
    for (uint32_t i = 0; i < maker->count; i++) {
        modules[i] = maker->parts[i].module;
        options[i] = maker->parts[i].options;
    }
    destroy_programs(maker);
    KEEL_TRY(keel_image_load(maker->device, modules, options, maker->count, ONE_IMAGE));
    keel_device_use_code(maker->device, &code);
    KEEL_TRY(create_programs(maker));
    for (uint32_t i = 0; i < maker->count; i++)
        maker->parts[i].program = maker->memcheck; /* all are one */
    return KEEL_OK;
}

/* ---- writing ---- */

static enum keel_status describe(const struct part *part, bool builtin, char source[KEEL_ARTIFACT_HEX_BYTES],
                                 struct keel_artifact_program *out)
{
    KEEL_TRY(keel_artifact_source_hash(part->module, source));
    *out = (struct keel_artifact_program){.module = part->module->name,
                                          .options = part->options,
                                          .source = builtin ? NULL : source,
                                          .kernels = part->kernels,
                                          .kernel_count = part->module->kernel_count};
    return KEEL_OK;
}

/* One file with the code of parts [first, first + count), which share a native program. */
static enum keel_status write_file(struct maker *maker, struct keel_artifact_writer *writer, uint32_t first,
                                   uint32_t count, struct keel_artifact_made *made)
{
    static char sources[KEEL_IMAGE_MAX][KEEL_ARTIFACT_HEX_BYTES];
    struct keel_artifact_program programs[KEEL_IMAGE_MAX];
    const bool builtin = maker->making->file->code == KEEL_BOARD_CODE_BUILTIN;
    for (uint32_t i = 0; i < count; i++)
        KEEL_TRY(describe(&maker->parts[first + i], builtin, sources[i], &programs[i]));
    struct keel_artifact_file file = {.form = builtin ? KEEL_CODE_BUILTIN : KEEL_CODE_BINARY,
                                      .image = count > 1 ? ONE_IMAGE : 0,
                                      .programs = programs,
                                      .program_count = count};
    void *bytes = NULL;
    if (!builtin)
        KEEL_TRY(keel_program_binary(maker->parts[first].program, &bytes, &file.bytes));
    enum keel_status status = keel_artifact_writer_add(
        writer, count > 1 ? "image" : maker->parts[first].module->name, bytes, &file);
    keel_free(bytes);
    made->programs += count;
    made->files += !builtin;
    made->bytes += file.bytes;
    return status;
}

static enum keel_status write_folder(struct maker *maker, struct keel_artifact_made *made)
{
    struct keel_artifact_writer writer;
    const bool together = maker->making->file->one_image;
    KEEL_TRY(keel_artifact_writer_begin(&writer, maker->making->folder));
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < maker->count && status == KEEL_OK; i += together ? maker->count : 1)
        status = write_file(maker, &writer, i, together ? maker->count : 1, made);
    if (status == KEEL_OK)
        status = keel_artifact_writer_finish(&writer, maker->making->target);
    keel_artifact_writer_fini(&writer);
    return status;
}

enum keel_status keel_artifact_make(const struct keel_artifact_making *making, struct keel_artifact_made *out)
{
    struct maker *maker;
    struct keel_artifact_made made = {0};
    KEEL_TRY(keel_alloc(1, sizeof *maker, &maker));
    maker->making = making;
    enum keel_status status = open_programs(maker);
    if (status == KEEL_OK && making->file->one_image)
        status = link_programs(maker);
    if (status == KEEL_OK)
        status = warm(maker);
    if (status == KEEL_OK)
        status = write_folder(maker, &made);
    close_programs(maker);
    keel_free(maker);
    if (status == KEEL_OK)
        *out = made;
    return status;
}

/* ---- sources for others ---- */

static enum keel_status write_source(const char *folder, const struct part *part, uint32_t number,
                                     json_t *list)
{
    char name[96], path[KEEL_PATH_BYTES], hash[KEEL_ARTIFACT_HEX_BYTES], *source;
    KEEL_TRY(keel_artifact_source_hash(part->module, hash));
    json_t *kernels = json_array();
    for (uint32_t i = 0; i < part->module->kernel_count; i++)
        json_array_append_new(kernels, json_string(part->kernels[i].name));
    snprintf(name, sizeof name, "%.64s-%u.cl", part->module->name, number);
    json_array_append_new(list,
                          json_pack("{s:s, s:s, s:s, s:s, s:o}", "file", name, "module", part->module->name,
                                    "options", part->options, "source", hash, "kernels", kernels));
    KEEL_TRY(keel_path_join(path, folder, name));
    KEEL_TRY(keel_module_source(part->module, &source));
    enum keel_status status = keel_file_replace(path, source, strlen(source), 0666);
    keel_free(source);
    return status;
}

static enum keel_status write_list(const char *folder, json_t *list)
{
    char path[KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_join(path, folder, "sources.json"));
    char *text = json_dumps(list, JSON_INDENT(1));
    if (text == NULL)
        return keel_fail(KEEL_NO_MEMORY, "%s: no memory", path);
    enum keel_status status = keel_file_replace(path, text, strlen(text), 0666);
    free(text);
    return status;
}

enum keel_status keel_artifact_write_sources(const struct keel_artifact_making *making)
{
    struct keel_artifact_making on_host = *making;
    struct maker *maker;
    on_host.selector = "host"; /* its programs need no compiler */
    KEEL_TRY(keel_mkdir_all(making->folder));
    KEEL_TRY(keel_alloc(1, sizeof *maker, &maker));
    maker->making = &on_host;
    json_t *list = json_array();
    enum keel_status status = open_programs(maker);
    for (uint32_t i = 0; i < maker->count && status == KEEL_OK; i++)
        status = write_source(making->folder, &maker->parts[i], i, list);
    if (status == KEEL_OK)
        status = write_list(making->folder, list);
    json_decref(list);
    close_programs(maker);
    keel_free(maker);
    return status;
}
