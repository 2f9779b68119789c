/* device_program.c - the front of programs and kernels: which form of code a program is made from.
 *
 * Owns the order of asking (the code provider, then the compiler) and what is checked of provided code before
 * a backend sees it: its form, and that it has every kernel of its module. That its bytes are sound is the
 * provider's to know. Calls are kernels without a program of the backend's. */
#include "device_backend.h"
#include <inttypes.h>
#include <keel/memory.h>
#include <string.h>

void keel_device_use_code(struct keel_device *device, const struct keel_code_provider *provider)
{
    device->code = *provider;
}

static bool has_kernel(const struct keel_code *code, const char *name)
{
    for (uint32_t i = 0; i < code->kernel_count; i++)
        if (strcmp(code->kernels[i].name, name) == 0)
            return true;
    return false;
}

static enum keel_status check_code(const struct keel_device_info *info, const struct keel_module *module,
                                   const struct keel_code *code)
{
    if ((code->form != KEEL_CODE_BINARY && code->form != KEEL_CODE_BUILTIN) ||
        (info->code_forms & (uint32_t)code->form) == 0)
        return keel_fail(
            KEEL_MISMATCH,
            "%s: code of module %s comes in a form (%d) that this device does not take; see keel "
            "board list --json",
            info->selector, module->name, (int)code->form);
    for (uint32_t i = 0; i < module->kernel_count; i++)
        if (!has_kernel(code, module->kernels[i].name))
            return keel_fail(KEEL_MISMATCH,
                             "%s: the code of module %s has no kernel %s; make it again: keel board build",
                             info->selector, module->name, module->kernels[i].name);
    return KEEL_OK;
}

/* *found: `code` is there and good; else the program comes from source. The host device has its own. */
static enum keel_status ask_provider(const struct keel_device *device, const struct keel_module *module,
                                     const char *options, struct keel_code *code, bool *found)
{
    const struct keel_device_info *info = &device->info;
    enum keel_status status = KEEL_NOT_FOUND;
    if (info->kind == KEEL_DEVICE_HOST)
        return KEEL_OK;
    if (device->code.find != NULL)
        status = device->code.find(device->code.context, module, options, code);
    if (status == KEEL_OK) {
        *found = true;
        return check_code(info, module, code);
    }
    if (status != KEEL_NOT_FOUND)
        return status;
    if ((info->code_forms & KEEL_CODE_SOURCE) == 0)
        return keel_fail(
            KEEL_UNSUPPORTED,
            "%s: no code for module %s with options \"%s\", and the device has no compiler; make it "
            "where there is one: keel board build",
            info->selector, module->name, options);
    return KEEL_OK;
}

enum keel_status keel_program_create(struct keel_device *device, const struct keel_module *module,
                                     const char *options, struct keel_program **out)
{
    KEEL_TRY(keel_device_check_usable(device));
    struct keel_code code = {0};
    bool found = false;
    if (options == NULL)
        options = "";
    KEEL_TRY(ask_provider(device, module, options, &code, &found));
    struct keel_program *program = NULL;
    KEEL_TRY(device->ops->program_create(device, module, options, found ? &code : NULL, &program));
    program->device = device;
    program->module = module;
    *out = program;
    return KEEL_OK;
}

void keel_program_destroy(struct keel_program *program)
{
    if (program != NULL)
        program->device->ops->program_destroy(program);
}

enum keel_status keel_program_binary(const struct keel_program *program, void **out_bytes, uint64_t *out_size)
{
    if (program->device->ops->program_binary == NULL)
        return keel_fail(KEEL_UNSUPPORTED, "%s: programs have no binary here; use an OpenCL device",
                         program->device->info.selector);
    return program->device->ops->program_binary(program, out_bytes, out_size);
}

static enum keel_status check_link(struct keel_device *device, uint32_t count)
{
    KEEL_TRY(keel_device_check_usable(device));
    if (device->ops->image_load == NULL || (device->info.code_forms & KEEL_CODE_SOURCE) == 0)
        return keel_fail(KEEL_UNSUPPORTED,
                         "%s: it has no compiler to link an image with; name a device that has",
                         device->info.selector);
    if (count == 0 || count > KEEL_IMAGE_MAX)
        return keel_fail(KEEL_LIMIT, "an image of %" PRIu32 " modules; 1 to %d", count, (int)KEEL_IMAGE_MAX);
    return KEEL_OK;
}

enum keel_status keel_image_load(struct keel_device *device, const struct keel_module *const *modules,
                                 const char *const *options, uint32_t count, uint64_t image)
{
    KEEL_ASSERT(image != 0);
    KEEL_TRY(check_link(device, count));
    return device->ops->image_load(device, modules, options, count, image);
}

enum keel_status keel_kernel_create(struct keel_program *program, const char *name, struct keel_kernel **out)
{
    const struct keel_module *module = program->module;
    const struct keel_module_kernel *entry = NULL;
    for (uint32_t i = 0; i < module->kernel_count && entry == NULL; i++)
        if (strcmp(module->kernels[i].name, name) == 0)
            entry = &module->kernels[i];
    if (entry == NULL)
        return keel_fail(KEEL_NOT_FOUND, "module %s has no kernel %s; add it to the module's table",
                         module->name, name);
    struct keel_kernel *kernel = NULL;
    KEEL_TRY(program->device->ops->kernel_create(program, entry, &kernel));
    kernel->program = program;
    kernel->entry = entry;
    *out = kernel;
    return KEEL_OK;
}

enum keel_status keel_device_native(struct keel_device *device, void **out_native)
{
    if (device->ops->native == NULL)
        return keel_fail(KEEL_UNSUPPORTED, "%s: it has no OpenCL handles; use an OpenCL device",
                         device->info.selector);
    *out_native = device->ops->native(device);
    return KEEL_OK;
}

/* A call has a program of its own, so that it looks like any kernel. */
struct call_kernel {
    struct keel_kernel head;
    struct keel_program program;
    struct keel_module_kernel entry;
};

enum keel_status keel_kernel_create_call(struct keel_device *device, const struct keel_call *call,
                                         struct keel_kernel **out)
{
    void *native;
    KEEL_TRY(keel_device_check_usable(device));
    KEEL_TRY(keel_device_native(device, &native));
    if (call->arg_count > KEEL_ARG_MAX)
        return keel_fail(KEEL_LIMIT, "call %s: %" PRIu32 " arguments; at most %d", call->name,
                         call->arg_count, KEEL_ARG_MAX);
    struct call_kernel *kernel = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *kernel, &kernel));
    kernel->program.device = device;
    kernel->entry.name = call->name;
    kernel->head.program = &kernel->program;
    kernel->head.entry = &kernel->entry;
    kernel->head.info =
        (struct keel_kernel_info){.arg_count = call->arg_count, .local = {1, 1, 1}, .max_group_items = 1};
    kernel->head.call = *call;
    *out = &kernel->head;
    return KEEL_OK;
}

void keel_kernel_destroy(struct keel_kernel *kernel)
{
    if (kernel == NULL)
        return;
    if (kernel->call.enqueue != NULL)
        keel_free(kernel);
    else
        kernel->program->device->ops->kernel_destroy(kernel);
}

const char *keel_kernel_name(const struct keel_kernel *kernel)
{
    return kernel->entry->name;
}

struct keel_kernel_info keel_kernel_info(const struct keel_kernel *kernel)
{
    return kernel->info;
}
