/* opencl_program.c - OpenCL programs and kernels: code from source, from binaries, built in; and images.
 *
 * A native program belongs to an image; programs whose code bears one image number share it. A device of
 * image_limit is given another image only while no queue has commands: first the oldest image is taken for
 * gone, then the queues are looked at, and where one is busy it stays; a launch first marks its queue busy
 * and then looks at its image, so that one of the two sees the other. A launch that sees its image gone looks
 * again under the lock, for it may have looked in between. */
#include "opencl_backend.h"
#include <inttypes.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

enum { LOG_SHOWN_BYTES = 380, OPTIONS_BYTES = 1024 };

static struct opencl_device *opencl_device(struct keel_device *device)
{
    return (struct opencl_device *)device;
}

/* ---- from source -------------------------------------------------------------------------------------- */

/* The first lines of the build log become the detail; all of it goes to the log at debug level. */
static enum keel_status build_failed(const struct opencl_device *device, cl_program program,
                                     const char *module, cl_int error)
{
    const char *selector = device->head.info.selector;
    size_t bytes = 0;
    clGetProgramBuildInfo(program, device->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
    char *text = NULL;
    if (bytes == 0 || keel_alloc(1, bytes + 1, &text) != KEEL_OK)
        return keel_fail(KEEL_UNSUPPORTED,
                         "%s: module %s does not build (OpenCL error %d), and there is no log", selector,
                         module, error);
    clGetProgramBuildInfo(program, device->id, CL_PROGRAM_BUILD_LOG, bytes, text, NULL);
    keel_log(KEEL_LOG_DEBUG, "build log of %s on %s:\n%s", module, selector, text);
    enum keel_status status =
        keel_fail(KEEL_UNSUPPORTED, "%s: module %s does not build (OpenCL error %d): %.*s", selector, module,
                  error, LOG_SHOWN_BYTES, text);
    keel_free(text);
    return status;
}

static enum keel_status all_options(const struct keel_module *module, const char *options,
                                    char out[OPTIONS_BYTES])
{
    int length = snprintf(out, OPTIONS_BYTES, "-cl-std=CL1.2 %s", options);
    if (length < 0 || length >= OPTIONS_BYTES)
        return keel_fail(KEEL_LIMIT, "module %s: build options of %d bytes; at most %d", module->name, length,
                         OPTIONS_BYTES - 1);
    return KEEL_OK;
}

/* Built, or only compiled, to be linked. */
static enum keel_status from_source(struct opencl_device *device, const struct keel_module *module,
                                    const char *options, bool build, cl_program *out)
{
    char options_text[OPTIONS_BYTES];
    KEEL_TRY(all_options(module, options, options_text));
    cl_int error;
    char *source;
    KEEL_TRY(keel_module_source(module, &source));
    cl_program native = clCreateProgramWithSource(device->context, 1, (const char **)&source, NULL, &error);
    keel_free(source); /* the driver has a copy */
    if (error != CL_SUCCESS)
        return keel_opencl_fail(error, device->head.info.selector, "clCreateProgramWithSource");
    if (build)
        error = clBuildProgram(native, 1, &device->id, options_text, NULL, NULL);
    else
        error = clCompileProgram(native, 1, &device->id, options_text, 0, NULL, NULL, NULL, NULL);
    if (error != CL_SUCCESS) {
        enum keel_status status = build_failed(device, native, module->name, error);
        clReleaseProgram(native);
        return status;
    }
    *out = native;
    return KEEL_OK;
}

/* ---- from code that was made before ------------------------------------------------------------------- */

static enum keel_status not_taken(const struct opencl_device *device, const struct keel_module *module,
                                  const char *call, cl_int error)
{
    return keel_fail(
        KEEL_MISMATCH,
        "%s: the driver does not take the code of module %s (%s: OpenCL error %d); make it again "
        "for this driver: keel board build",
        device->head.info.selector, module->name, call, error);
}

/* The build of a binary compiles nothing of ours, but no kernel can be had without it. */
static enum keel_status from_binary(struct opencl_device *device, const struct keel_module *module,
                                    const struct keel_code *code, cl_program *out)
{
    cl_int error, taken = CL_SUCCESS;
    const unsigned char *bytes = code->bytes;
    size_t size = keel_size(code->size);
    cl_program native =
        clCreateProgramWithBinary(device->context, 1, &device->id, &size, &bytes, &taken, &error);
    if (error != CL_SUCCESS)
        return not_taken(device, module, "clCreateProgramWithBinary", error);
    if (taken == CL_SUCCESS)
        taken = clBuildProgram(native, 1, &device->id, "", NULL, NULL);
    if (taken != CL_SUCCESS) {
        clReleaseProgram(native);
        return not_taken(device, module, "clBuildProgram", taken);
    }
    *out = native;
    return KEEL_OK;
}

/* "a;b;c" of all kernels. */
static enum keel_status join_names(const struct keel_code *code, char **out)
{
    size_t bytes = 1, used = 0;
    for (uint32_t i = 0; i < code->kernel_count; i++)
        bytes += strlen(code->kernels[i].name) + 1;
    char *text = NULL;
    KEEL_TRY(keel_alloc(1, bytes, &text));
    for (uint32_t i = 0; i < code->kernel_count; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i > 0 ? ";" : "", code->kernels[i].name);
    *out = text;
    return KEEL_OK;
}

/* By the standard these need no build; some drivers want one. */
static cl_int ready_builtins(struct opencl_device *device, cl_program native, const char *name)
{
    cl_int error;
    cl_kernel kernel = clCreateKernel(native, name, &error);
    if (error == CL_INVALID_PROGRAM_EXECUTABLE)
        return clBuildProgram(native, 1, &device->id, "", NULL, NULL);
    if (error == CL_SUCCESS)
        clReleaseKernel(kernel);
    return error;
}

static enum keel_status from_builtins(struct opencl_device *device, const struct keel_module *module,
                                      const struct keel_code *code, cl_program *out)
{
    char *names = NULL;
    KEEL_TRY(join_names(code, &names));
    cl_int error;
    cl_program native = clCreateProgramWithBuiltInKernels(device->context, 1, &device->id, names, &error);
    keel_free(names);
    if (error != CL_SUCCESS)
        return not_taken(device, module, "clCreateProgramWithBuiltInKernels", error);
    error = ready_builtins(device, native, code->kernels[0].name);
    if (error != CL_SUCCESS) {
        clReleaseProgram(native);
        return not_taken(device, module, "clBuildProgram", error);
    }
    *out = native;
    return KEEL_OK;
}

/* ---- images ------------------------------------------------------------------------------------------- */

/* All of these with image_lock held. */

static struct opencl_image *find_loaded(struct opencl_device *device, uint64_t number)
{
    for (struct opencl_image *image = device->images; image != NULL; image = image->next)
        if (number != 0 && image->number == number && atomic_load(&image->loaded))
            return image;
    return NULL;
}

/* The oldest image goes when there are as many as the device holds. */
static enum keel_status make_room(struct opencl_device *device)
{
    uint32_t limit = device->head.info.image_limit, loaded = 0;
    struct opencl_image *oldest = NULL;
    for (struct opencl_image *image = device->images; image != NULL; image = image->next) {
        if (!atomic_load(&image->loaded))
            continue;
        loaded++;
        if (oldest == NULL)
            oldest = image;
    }
    if (limit == 0 || loaded < limit || oldest == NULL)
        return KEEL_OK;
    keel_mutex_lock(&device->place_lock);
    atomic_store(&oldest->loaded, false);
    bool stays = atomic_load(&device->head.busy_queues) != 0;
    atomic_store(&oldest->loaded, stays);
    keel_mutex_unlock(&device->place_lock);
    if (!stays)
        return KEEL_OK;
    return keel_fail(KEEL_BUSY,
                     "%s: it holds %" PRIu32
                     " image(s), and one can go only while nothing runs; finish every "
                     "queue first (keel_queue_finish)",
                     device->head.info.selector, limit);
}

static void append_image(struct opencl_device *device, struct opencl_image *image, uint64_t number)
{
    image->number = number;
    atomic_store(&image->loaded, true);
    struct opencl_image **end = &device->images;
    while (*end != NULL)
        end = &(*end)->next;
    *end = image;
}

/* The compiler loads nothing: the oldest image goes only for one that was built. */
static enum keel_status load_source(struct opencl_device *device, const struct keel_module *module,
                                    const char *options, cl_program *out)
{
    KEEL_TRY(from_source(device, module, options, true, out));
    enum keel_status status = make_room(device);
    if (status != KEEL_OK)
        clReleaseProgram(*out);
    return status;
}

/* Such code may be on the board before the driver says that it takes it, so the oldest image goes first. */
static enum keel_status load_code(struct opencl_device *device, const struct keel_module *module,
                                  const struct keel_code *code, cl_program *out)
{
    if (code->form == KEEL_CODE_BINARY && code->size == 0)
        return keel_fail(KEEL_CORRUPT,
                         "%s: the binary of module %s is empty; make it again: keel board build",
                         device->head.info.selector, module->name);
    KEEL_TRY(make_room(device));
    return code->form == KEEL_CODE_BINARY ? from_binary(device, module, code, out)
                                          : from_builtins(device, module, code, out);
}

static enum keel_status load_image(struct opencl_device *device, const struct keel_module *module,
                                   const char *options, const struct keel_code *code,
                                   struct opencl_image **out)
{
    struct opencl_image *image = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *image, &image));
    enum keel_status status = code == NULL ? load_source(device, module, options, &image->native)
                                           : load_code(device, module, code, &image->native);
    if (status != KEEL_OK) {
        keel_free(image);
        return status;
    }
    append_image(device, image, code != NULL ? code->image : 0);
    *out = image;
    return KEEL_OK;
}

static void release_image(struct opencl_device *device, struct opencl_image *image)
{
    if (--image->programs > 0)
        return;
    struct opencl_image **at = &device->images;
    while (*at != image)
        at = &(*at)->next;
    *at = image->next;
    clReleaseProgram(image->native);
    keel_free(image);
}

enum keel_status keel_opencl_image_check(const struct keel_queue *queue, const struct opencl_image *image,
                                         const char *kernel)
{
    struct opencl_device *device = opencl_device(queue->device);
    keel_mutex_lock(&device->place_lock);
    bool loaded = atomic_load(&image->loaded);
    keel_mutex_unlock(&device->place_lock);
    if (loaded)
        return KEEL_OK;
    return keel_fail(KEEL_NOT_FOUND,
                     "%s: kernel %s: another image took the place of its own; create its program anew",
                     queue->device->info.selector, kernel);
}

/* ---- programs ----------------------------------------------------------------------------------------- */

enum keel_status keel_opencl_program_create(struct keel_device *device, const struct keel_module *module,
                                            const char *options, const struct keel_code *code,
                                            struct keel_program **out)
{
    struct opencl_device *own = opencl_device(device);
    struct opencl_program *program = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *program, &program));
    if (code != NULL) {
        program->kernels = code->kernels;
        program->kernel_count = code->kernel_count;
    }
    enum keel_status status = KEEL_OK;
    keel_mutex_lock(&own->image_lock);
    program->image = find_loaded(own, code != NULL ? code->image : 0);
    if (program->image == NULL)
        status = load_image(own, module, options, code, &program->image);
    if (status == KEEL_OK)
        program->image->programs++;
    keel_mutex_unlock(&own->image_lock);
    if (status != KEEL_OK) {
        keel_free(program);
        return status;
    }
    *out = &program->head;
    return KEEL_OK;
}

void keel_opencl_program_destroy(struct keel_program *program)
{
    struct opencl_device *device = opencl_device(program->device);
    keel_mutex_lock(&device->image_lock);
    release_image(device, ((struct opencl_program *)program)->image);
    keel_mutex_unlock(&device->image_lock);
    keel_free(program);
}

static enum keel_status binary_of(const struct opencl_device *device, cl_program native, void **out_bytes,
                                  uint64_t *out_size)
{
    size_t size = 0;
    cl_int error = clGetProgramInfo(native, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL);
    if (error != CL_SUCCESS || size == 0)
        return keel_fail(KEEL_UNSUPPORTED, "%s: the driver gives no binary of a program (OpenCL error %d)",
                         device->head.info.selector, error);
    unsigned char *bytes = NULL;
    KEEL_TRY(keel_alloc(1, size, &bytes));
    error = clGetProgramInfo(native, CL_PROGRAM_BINARIES, sizeof bytes, &bytes, NULL);
    if (error != CL_SUCCESS) {
        keel_free(bytes);
        return keel_opencl_fail(error, device->head.info.selector, "the binary of a program");
    }
    *out_bytes = bytes;
    *out_size = size;
    return KEEL_OK;
}

enum keel_status keel_opencl_program_binary(const struct keel_program *program, void **out_bytes,
                                            uint64_t *out_size)
{
    const struct opencl_program *own = (const struct opencl_program *)program;
    return binary_of(opencl_device(program->device), own->image->native, out_bytes, out_size);
}

static enum keel_status link_parts(struct opencl_device *device, const cl_program *parts, uint32_t count,
                                   cl_program *out)
{
    cl_int error;
    cl_program linked = clLinkProgram(device->context, 1, &device->id, "", count, parts, NULL, NULL, &error);
    if (error == CL_SUCCESS) {
        *out = linked;
        return KEEL_OK;
    }
    enum keel_status status = linked != NULL
                                  ? build_failed(device, linked, "(all, linked)", error)
                                  : keel_opencl_fail(error, device->head.info.selector, "clLinkProgram");
    if (linked != NULL)
        clReleaseProgram(linked);
    return status;
}

static enum keel_status link_modules(struct opencl_device *device, const struct keel_module *const *modules,
                                     const char *const *options, uint32_t count, cl_program *out)
{
    cl_program parts[KEEL_IMAGE_MAX] = {NULL};
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < count && status == KEEL_OK; i++)
        status = from_source(device, modules[i], options[i], false, &parts[i]);
    if (status == KEEL_OK)
        status = link_parts(device, parts, count, out);
    for (uint32_t i = 0; i < count; i++)
        if (parts[i] != NULL)
            clReleaseProgram(parts[i]);
    return status;
}

enum keel_status keel_opencl_image_load(struct keel_device *device, const struct keel_module *const *modules,
                                        const char *const *options, uint32_t count, uint64_t image)
{
    struct opencl_device *own = opencl_device(device);
    struct opencl_image *loaded;
    KEEL_TRY(keel_alloc(1, sizeof *loaded, &loaded));
    enum keel_status status = link_modules(own, modules, options, count, &loaded->native);
    if (status == KEEL_OK) {
        keel_mutex_lock(&own->image_lock);
        status = make_room(own);
        if (status == KEEL_OK)
            append_image(own, loaded, image);
        keel_mutex_unlock(&own->image_lock);
    }
    if (status == KEEL_OK)
        return KEEL_OK;
    if (loaded->native != NULL)
        clReleaseProgram(loaded->native);
    keel_free(loaded);
    return status;
}

void keel_opencl_images_release(struct keel_device *device)
{
    struct opencl_device *own = opencl_device(device);
    for (struct opencl_image *image = own->images, *next; image != NULL; image = next) {
        next = image->next;
        KEEL_ASSERT(image->programs == 0); /* children go before parents */
        clReleaseProgram(image->native);
        keel_free(image);
    }
}

/* ---- kernels ------------------------------------------------------------------------------------------ */

void keel_opencl_kernel_destroy(struct keel_kernel *kernel)
{
    struct opencl_kernel *own = (struct opencl_kernel *)kernel;
    clReleaseKernel(own->native);
    keel_free(own);
}

static enum keel_status ask_kernel(const struct opencl_device *device, struct opencl_kernel *kernel,
                                   const char *name)
{
    struct keel_kernel_info *info = &kernel->head.info;
    size_t local[3] = {0}, group_items = 0;
    cl_ulong local_bytes = 0, private_bytes = 0;
    cl_int error =
        clGetKernelInfo(kernel->native, CL_KERNEL_NUM_ARGS, sizeof info->arg_count, &info->arg_count, NULL);
    if (error != CL_SUCCESS || info->arg_count > KEEL_ARG_MAX)
        return keel_fail(KEEL_LIMIT, "kernel %s: %" PRIu32 " arguments; at most %d", name, info->arg_count,
                         KEEL_ARG_MAX);
    error = clGetKernelWorkGroupInfo(kernel->native, device->id, CL_KERNEL_WORK_GROUP_SIZE,
                                     sizeof group_items, &group_items, NULL);
    if (error != CL_SUCCESS || group_items > device->head.info.max_group_items)
        group_items = device->head.info.max_group_items;
    clGetKernelWorkGroupInfo(kernel->native, device->id, CL_KERNEL_COMPILE_WORK_GROUP_SIZE, sizeof local,
                             local, NULL);
    clGetKernelWorkGroupInfo(kernel->native, device->id, CL_KERNEL_LOCAL_MEM_SIZE, sizeof local_bytes,
                             &local_bytes, NULL);
    info->max_group_items = (uint32_t)group_items;
    clGetKernelWorkGroupInfo(kernel->native, device->id, CL_KERNEL_PRIVATE_MEM_SIZE, sizeof private_bytes,
                             &private_bytes, NULL);
    info->local_bytes = local_bytes;
    info->private_bytes = private_bytes;
    for (int i = 0; i < 3; i++)
        info->local[i] = (uint32_t)local[i];
    return KEEL_OK;
}

/* What the code's maker says must be what the driver says, where it says anything. */
static enum keel_status compare_with_code(const struct opencl_program *program, const char *name,
                                          struct keel_kernel_info *info)
{
    const struct keel_code_kernel *said = NULL;
    for (uint32_t i = 0; i < program->kernel_count && said == NULL; i++)
        if (strcmp(program->kernels[i].name, name) == 0)
            said = &program->kernels[i];
    if (said == NULL)
        return KEEL_OK;
    bool agrees = said->arg_count == info->arg_count;
    if (info->local[0] != 0 && said->local[0] != 0)
        agrees = agrees && memcmp(info->local, said->local, sizeof info->local) == 0;
    if (!agrees)
        return keel_fail(KEEL_MISMATCH,
                         "kernel %s: the driver says %" PRIu32 " arguments, groups of %" PRIu32
                         "; its code was described with %" PRIu32 " and %" PRIu32
                         "; make it again: keel board build",
                         name, info->arg_count, info->local[0], said->arg_count, said->local[0]);
    if (info->local[0] == 0)
        memcpy(info->local, said->local, sizeof info->local);
    return KEEL_OK;
}

enum keel_status keel_opencl_kernel_create(struct keel_program *program,
                                           const struct keel_module_kernel *entry, struct keel_kernel **out)
{
    struct opencl_program *own = (struct opencl_program *)program;
    struct opencl_kernel *kernel = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *kernel, &kernel));
    cl_int error;
    kernel->native = clCreateKernel(own->image->native, entry->name, &error);
    if (error != CL_SUCCESS) {
        keel_free(kernel);
        return keel_fail(error == CL_INVALID_KERNEL_NAME ? KEEL_NOT_FOUND : KEEL_UNSUPPORTED,
                         "module %s: kernel %s is in the table but not in the code (OpenCL error %d)",
                         program->module->name, entry->name, error);
    }
    enum keel_status status = ask_kernel(opencl_device(program->device), kernel, entry->name);
    if (status == KEEL_OK)
        status = compare_with_code(own, entry->name, &kernel->head.info);
    if (status != KEEL_OK) {
        keel_opencl_kernel_destroy(&kernel->head);
        return status;
    }
    *out = &kernel->head;
    return KEEL_OK;
}
