/* kernels.c - the built programs of one device, and lists of launches.
 *
 * Owns every keel_program and keel_kernel of a device: all modules of KEEL_MODULE_TABLE are built at
 * creation (native ones for native kernels alone), so that no operation compiles in the middle of a run.
 * Leaves to others: what a launch means (the file of each operation) and how it runs (hal). */
#include "clblast.h"
#include "kernels_internal.h"

#include <inttypes.h>
#include <keel/log.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct built_module {
    const struct keel_module *module;
    struct keel_program *program;
    struct keel_kernel **kernels; /* module->kernel_count, in the order of module->kernels */
    char options[KEEL_BUILD_OPTIONS_BYTES];
};

struct keel_kernels {
    struct keel_device *device;   /* borrowed */
    struct keel_device_info info; /* of the device that they are for */
    bool native;
    uint64_t provider_digest;     /* of CLBlast's parameters; 0: none were given */
    struct keel_clblast *clblast; /* NULL: products are our own */
    uint32_t tuned[KEEL_TUNABLE_COUNT];
    struct built_module modules[KEEL_MODULE_COUNT];
};

static const struct keel_module *const module_table[KEEL_MODULE_COUNT] = {
#define KEEL_MODULE_ADDRESS(name) &keel_module_##name,
    KEEL_MODULE_TABLE(KEEL_MODULE_ADDRESS) KEEL_NATIVE_MODULE_TABLE(KEEL_MODULE_ADDRESS)
#undef KEEL_MODULE_ADDRESS
};

/* What does not fit is refused by what the sources take (tunables.c), not by what a driver counts: rusticl
 * counts 45,312 bytes where the arrays of keel_gemm take 28,800, has 32,768, and computes right. So its count
 * is only told. */
static void note_local(const struct keel_kernels *kernels, const struct keel_kernel *kernel)
{
    const uint64_t takes = keel_kernel_info(kernel).local_bytes;
    if (kernels->info.kind != KEEL_DEVICE_HOST && takes > kernels->info.local_bytes)
        keel_log(KEEL_LOG_INFO,
                 "kernel %s takes %" PRIu64 " bytes of local memory by the driver's count, %s has %" PRIu64,
                 keel_kernel_name(kernel), takes, kernels->info.selector, kernels->info.local_bytes);
}

static enum keel_status build_module(const struct keel_kernels *kernels, enum keel_module_id id,
                                     struct built_module *out)
{
    const struct keel_module *module = module_table[id];
    out->module = module;
    keel_tunables_build_options(&kernels->info, id, kernels->tuned, out->options);
    KEEL_TRY(keel_alloc(module->kernel_count, sizeof(struct keel_kernel *), &out->kernels));
    KEEL_TRY(keel_program_create(kernels->device, module, out->options, &out->program));
    for (uint32_t i = 0; i < module->kernel_count; i++) {
        KEEL_TRY(keel_kernel_create(out->program, module->kernels[i].name, &out->kernels[i]));
        note_local(kernels, out->kernels[i]);
    }
    return KEEL_OK;
}

enum keel_status keel_kernels_create(struct keel_device *device, struct keel_kernels **out)
{
    return keel_kernels_create_with(device, &(struct keel_kernels_options){0}, out);
}

/* FNV-1a of a text with its zero, so that two that follow each other are not one. */
static uint64_t mix_text(uint64_t digest, const char *text)
{
    do
        digest = (digest ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    while (*text++ != '\0');
    return digest;
}

static uint64_t parameter_digest(const struct keel_kernels_options *options)
{
    uint64_t digest = options->provider_parameter_count > 0 ? UINT64_C(0xcbf29ce484222325) : 0;
    for (uint32_t i = 0; i < options->provider_parameter_count; i++) {
        const struct keel_provider_parameters *of = &options->provider_parameters[i];
        digest = mix_text(digest, of->kernel);
        for (uint32_t v = 0; v < of->count; v++) {
            char value[24];
            snprintf(value, sizeof value, "%zu", of->values[v]);
            digest = mix_text(mix_text(digest, of->names[v]), value);
        }
    }
    return digest;
}

enum keel_status keel_kernels_create_with(struct keel_device *device,
                                          const struct keel_kernels_options *options,
                                          struct keel_kernels **out)
{
    struct keel_kernels *kernels;
    KEEL_TRY(keel_alloc(1, sizeof *kernels, &kernels));
    kernels->device = device;
    kernels->native = options->native;
    kernels->provider_digest = parameter_digest(options);
    kernels->info = options->target != NULL ? *options->target : *keel_device_info(device);
    if (kernels->info.compute_units == 0) /* some driver's word; work is divided by it */
        kernels->info.compute_units = 1;
    enum keel_status status =
        keel_tunables_apply(&kernels->info, options->settings, options->setting_count, kernels->tuned);
    const bool here = options->native && options->target == NULL;
    if (status == KEEL_OK && here && kernels->tuned[KEEL_TUNABLE_GEMM_PROVIDER] == 1)
        status = keel_clblast_create(device, options, &kernels->clblast);
    for (uint32_t i = 0; i < keel_kernels_part_count(kernels) && status == KEEL_OK; i++)
        status = build_module(kernels, (enum keel_module_id)i, &kernels->modules[i]);
    if (status != KEEL_OK) {
        keel_kernels_destroy(kernels);
        return status;
    }
    *out = kernels;
    return KEEL_OK;
}

void keel_kernels_destroy(struct keel_kernels *kernels)
{
    if (kernels == NULL)
        return;
    for (uint32_t i = 0; i < KEEL_MODULE_COUNT; i++) {
        struct built_module *built = &kernels->modules[i];
        if (built->kernels != NULL) {
            for (uint32_t k = 0; k < built->module->kernel_count; k++) {
                if (built->kernels[k] != NULL)
                    keel_kernel_destroy(built->kernels[k]);
            }
        }
        if (built->program != NULL)
            keel_program_destroy(built->program);
        keel_free(built->kernels);
    }
    keel_clblast_destroy(kernels->clblast);
    keel_free(kernels);
}

struct keel_device *keel_kernels_device(const struct keel_kernels *kernels)
{
    return kernels->device;
}

const struct keel_clblast *keel_kernels_clblast(const struct keel_kernels *kernels)
{
    return kernels->clblast;
}

void keel_kernels_provider(const struct keel_kernels *kernels, char out[KEEL_PROVIDER_TEXT_BYTES])
{
    if (kernels->clblast == NULL)
        snprintf(out, KEEL_PROVIDER_TEXT_BYTES, "Keel");
    else if (kernels->provider_digest == 0)
        snprintf(out, KEEL_PROVIDER_TEXT_BYTES, "CLBlast with its own parameters");
    else
        snprintf(out, KEEL_PROVIDER_TEXT_BYTES, "CLBlast with parameters %016" PRIx64,
                 kernels->provider_digest);
}

bool keel_kernels_native(const struct keel_kernels *kernels)
{
    return kernels->native;
}

const char *keel_kernels_module_name(enum keel_module_id module)
{
    return module_table[module]->name;
}

const struct keel_device_info *keel_kernels_info(const struct keel_kernels *kernels)
{
    return &kernels->info;
}

uint32_t keel_kernels_part_count(const struct keel_kernels *kernels)
{
    return kernels->native ? KEEL_MODULE_COUNT : KEEL_MODULE_CANONICAL_COUNT;
}

struct keel_kernels_part keel_kernels_part(const struct keel_kernels *kernels, uint32_t index)
{
    KEEL_ASSERT(index < keel_kernels_part_count(kernels));
    const struct built_module *built = &kernels->modules[index];
    return (struct keel_kernels_part){.module = built->module,
                                      .options = built->options,
                                      .program = built->program,
                                      .kernels = built->kernels};
}

uint32_t keel_kernels_setting(const struct keel_kernels *kernels, uint32_t tunable_index)
{
    KEEL_ASSERT(tunable_index < KEEL_TUNABLE_COUNT);
    return kernels->tuned[tunable_index];
}

enum keel_local_size keel_device_local_size(const struct keel_device_info *info)
{
    return info->kind == KEEL_DEVICE_HOST || info->local_bytes >= KEEL_LOCAL_LARGE_BYTES ? KEEL_LOCAL_LARGE
           : info->local_bytes >= KEEL_LOCAL_SMALL_BYTES                                 ? KEEL_LOCAL_SMALL
                                                                                         : KEEL_LOCAL_TINY;
}

enum keel_status keel_kernels_find(struct keel_kernels *kernels, enum keel_module_id module, const char *name,
                                   struct keel_kernel **out)
{
    const struct built_module *built = &kernels->modules[module];
    for (uint32_t i = 0; i < built->module->kernel_count; i++) {
        if (strcmp(built->module->kernels[i].name, name) == 0) {
            *out = built->kernels[i];
            return KEEL_OK;
        }
    }
    return keel_fail(KEEL_INTERNAL, "module %s has no kernel %s", built->module->name, name);
}

enum keel_status keel_launch_list_append(struct keel_launch_list *list, struct keel_kernel *kernel,
                                         const struct keel_range *range, const struct keel_arg *args,
                                         uint32_t arg_count)
{
    KEEL_ASSERT(arg_count <= KEEL_ARG_MAX && list->commands == NULL);
    if (list->count == list->capacity) {
        uint32_t capacity = list->capacity == 0 ? 64 : list->capacity * 2;
        KEEL_TRY(keel_realloc(&list->items, list->capacity, capacity, sizeof *list->items));
        list->capacity = capacity;
    }
    struct keel_launch *launch = &list->items[list->count++];
    launch->kernel = kernel;
    launch->range = *range;
    launch->arg_count = arg_count;
    memcpy(launch->args, args, arg_count * sizeof *args);
    return KEEL_OK;
}

enum keel_status keel_kernels_launch(struct keel_kernels *kernels, struct keel_launch_list *list,
                                     enum keel_module_id module, const char *name,
                                     const struct keel_range *range, const struct keel_arg *args,
                                     uint32_t arg_count)
{
    struct keel_kernel *kernel = NULL;
    KEEL_TRY(keel_kernels_find(kernels, module, name, &kernel));
    return keel_launch_list_append(list, kernel, range, args, arg_count);
}

struct keel_range keel_kernels_range(const struct keel_kernels *kernels, uint64_t items)
{
    const uint64_t group = kernels->tuned[KEEL_TUNABLE_GROUP_ITEMS];
    uint64_t groups = (items + group - 1) / group;
    if (groups == 0)
        groups = 1;
    return (struct keel_range){.global = {keel_size(groups * group), 1, 1},
                               .local = {keel_size(group), 1, 1}};
}

uint32_t keel_kernels_item_elements(const struct keel_kernels *kernels)
{
    return kernels->tuned[KEEL_TUNABLE_ITEM_ELEMENTS];
}

uint32_t keel_kernels_item_rows(const struct keel_kernels *kernels, uint32_t n)
{
    const uint32_t elements = keel_kernels_item_elements(kernels);
    return n < elements ? elements / n : 1;
}

enum keel_status keel_kernels_launch_flat(struct keel_kernels *kernels, struct keel_launch_list *list,
                                          enum keel_module_id module, const char *name, uint64_t count,
                                          const struct keel_arg *args, uint32_t arg_count)
{
    uint32_t block = keel_kernels_item_elements(kernels);
    struct keel_range range = keel_kernels_range(kernels, (count + block - 1) / block);
    return keel_kernels_launch(kernels, list, module, name, &range, args, arg_count);
}

uint64_t keel_product(const uint64_t *factors, size_t count)
{
    uint64_t product = 1;
    for (size_t i = 0; i < count; i++) {
        if (factors[i] != 0 && product > UINT64_MAX / factors[i])
            product = UINT64_MAX;
        else
            product *= factors[i];
    }
    return product;
}

enum keel_status keel_check_buffer(const char *op, const char *what, const struct keel_buffer *buffer,
                                   uint64_t bytes)
{
    if (buffer == NULL)
        return keel_fail(KEEL_INVALID, "%s: no buffer for %s", op, what);
    if (keel_buffer_bytes(buffer) < bytes)
        return keel_fail(KEEL_INVALID, "%s: %s holds %llu bytes, needs %llu", op, what,
                         (unsigned long long)keel_buffer_bytes(buffer), (unsigned long long)bytes);
    return KEEL_OK;
}

enum keel_status keel_check_apart(const char *op, const char *written, const struct keel_buffer *to,
                                  const char *read, const struct keel_buffer *from)
{
    if (to == NULL || from == NULL || !keel_buffer_overlaps(to, from))
        return KEEL_OK;
    return keel_fail(KEEL_INVALID, "%s: %s overlaps %s; it needs memory of its own", op, written, read);
}

enum keel_status keel_check_finite(const char *op, const char *what, float value)
{
    if (isfinite(value))
        return KEEL_OK;
    return keel_fail(KEEL_INVALID, "%s: %s is %g", op, what, (double)value);
}

void keel_launch_list_fini(struct keel_launch_list *list)
{
    keel_commands_destroy(list->commands);
    keel_free(list->items);
    *list = (struct keel_launch_list){0};
}

enum keel_status keel_launch_list_seal(struct keel_launch_list *list, const struct keel_kernels *kernels)
{
    if (list->count == 0)
        return KEEL_OK;
    struct keel_commands *commands = NULL;
    KEEL_TRY(keel_commands_create(kernels->device, &commands));
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < list->count && status == KEEL_OK; i++) {
        const struct keel_launch *launch = &list->items[i];
        status =
            keel_commands_launch(commands, launch->kernel, launch->args, launch->arg_count, &launch->range);
    }
    if (status == KEEL_OK)
        status = keel_commands_seal(commands);
    if (status != KEEL_OK) {
        keel_commands_destroy(commands);
        return status;
    }
    list->commands = commands;
    return KEEL_OK;
}

enum keel_status keel_launch_list_run(const struct keel_launch_list *list, struct keel_queue *queue)
{
    if (list->commands != NULL)
        return keel_queue_replay(queue, list->commands, NULL, NULL);
    for (uint32_t i = 0; i < list->count; i++) {
        const struct keel_launch *launch = &list->items[i];
        KEEL_TRY(keel_queue_launch(queue, launch->kernel, launch->args, launch->arg_count, &launch->range,
                                   NULL, NULL));
    }
    return KEEL_OK;
}
