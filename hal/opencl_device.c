/* opencl_device.c - OpenCL devices, buffers, programs and kernels, and what an OpenCL error means.
 *
 * One context for each open device. Commands are in opencl_queue.c, events in opencl_event.c. */
#include "opencl_backend.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

/* Zeroing a new buffer is a fill at memory speed; a device that takes longer than this is gone. */
#define ZERO_LIMIT_NS (120 * KEEL_NS_PER_S)
enum { LOG_SHOWN_BYTES = 380, OPTIONS_BYTES = 1024 };

enum keel_status keel_opencl_fail(cl_int error, const char *device, const char *what)
{
    switch (error) {
    case CL_OUT_OF_HOST_MEMORY:
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
        return keel_fail(KEEL_NO_MEMORY, "%s: %s: no memory (OpenCL error %d); use smaller buffers", device,
                         what, error);
    case CL_OUT_OF_RESOURCES:
    case CL_DEVICE_NOT_AVAILABLE:
    case CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST:
        return keel_fail(KEEL_DEVICE_LOST, "%s: %s: OpenCL error %d; end this process and start a new one",
                         device, what, error);
    case CL_INVALID_WORK_GROUP_SIZE:
    case CL_INVALID_WORK_ITEM_SIZE:
        return keel_fail(KEEL_UNSUPPORTED,
                         "%s: %s: groups of this size do not fit (OpenCL error %d); "
                         "use smaller ones",
                         device, what, error);
    default:
        return keel_fail(KEEL_UNSUPPORTED, "%s: %s: OpenCL error %d; try another device (keel board list)",
                         device, what, error);
    }
}

enum keel_status keel_opencl_command_fail(struct keel_queue *queue, cl_int error, const char *what)
{
    enum keel_status status = keel_opencl_fail(error, queue->device->info.selector, what);
    return status == KEEL_DEVICE_LOST ? keel_queue_lose(queue, what, error) : status;
}

static struct opencl_device *opencl_device(struct keel_device *device)
{
    return (struct opencl_device *)device;
}

static void device_close(struct keel_device *device)
{
    struct opencl_device *own = opencl_device(device);
    if (own->zero_queue != NULL)
        keel_opencl_queue_destroy(own->zero_queue);
    keel_mutex_fini(&own->zero_lock);
    clReleaseContext(own->context);
    keel_device_free(device);
}

/* Caller holds zero_lock. */
static enum keel_status zero(struct opencl_device *device, struct opencl_buffer *buffer)
{
    struct keel_queue *queue = device->zero_queue;
    cl_command_queue native = ((struct opencl_queue *)queue)->native;
    const unsigned char pattern = 0;
    cl_int error = clEnqueueFillBuffer(native, buffer->mem, &pattern, sizeof pattern, 0, buffer->head.bytes,
                                       0, NULL, NULL);
    if (error != CL_SUCCESS)
        return keel_opencl_command_fail(queue, error, "clEnqueueFillBuffer");
    return keel_opencl_queue_finish(queue, keel_deadline_after_ns(ZERO_LIMIT_NS));
}

static void buffer_destroy(struct keel_buffer *buffer)
{
    struct opencl_buffer *own = (struct opencl_buffer *)buffer;
    clReleaseMemObject(own->mem);
    keel_free(own);
}

static enum keel_status buffer_create(struct keel_device *device, uint64_t bytes, struct keel_buffer **out)
{
    struct opencl_device *own = opencl_device(device);
    struct opencl_buffer *buffer = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *buffer, &buffer));
    cl_int error;
    buffer->mem = clCreateBuffer(own->context, CL_MEM_READ_WRITE, bytes, NULL, &error);
    if (error != CL_SUCCESS) {
        keel_free(buffer);
        char what[64];
        snprintf(what, sizeof what, "a buffer of %" PRIu64 " bytes", bytes);
        return keel_opencl_fail(error, device->info.selector, what);
    }
    buffer->head.bytes = bytes;
    keel_mutex_lock(&own->zero_lock);
    enum keel_status status = zero(own, buffer);
    keel_mutex_unlock(&own->zero_lock);
    if (status != KEEL_OK) {
        buffer_destroy(&buffer->head);
        return status;
    }
    *out = &buffer->head;
    return KEEL_OK;
}

static enum keel_status buffer_wrap(struct keel_device *device, void *memory, uint64_t bytes,
                                    struct keel_buffer **out)
{
    struct opencl_buffer *buffer = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *buffer, &buffer));
    cl_int error;
    buffer->mem = clCreateBuffer(opencl_device(device)->context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR,
                                 bytes, memory, &error);
    if (error != CL_SUCCESS) {
        keel_free(buffer);
        return keel_opencl_fail(error, device->info.selector, "a buffer in host memory");
    }
    *out = &buffer->head;
    return KEEL_OK;
}

static enum keel_status buffer_slice(struct keel_buffer *buffer, uint64_t offset_bytes, uint64_t bytes,
                                     struct keel_buffer **out)
{
    struct opencl_buffer *slice = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *slice, &slice));
    cl_buffer_region region = {.origin = offset_bytes, .size = bytes};
    cl_int error;
    slice->mem = clCreateSubBuffer(((struct opencl_buffer *)buffer)->mem, CL_MEM_READ_WRITE,
                                   CL_BUFFER_CREATE_TYPE_REGION, &region, &error);
    if (error != CL_SUCCESS) {
        keel_free(slice);
        return keel_opencl_fail(error, buffer->device->info.selector, "clCreateSubBuffer");
    }
    *out = &slice->head;
    return KEEL_OK;
}

/* The first lines of the build log become the detail; all of it goes to the log at debug level. */
static enum keel_status build_failed(const struct opencl_device *device, cl_program program,
                                     const struct keel_module *module, cl_int error)
{
    const char *selector = device->head.info.selector;
    size_t bytes = 0;
    clGetProgramBuildInfo(program, device->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
    char *text = NULL;
    if (bytes == 0 || keel_alloc(1, bytes + 1, &text) != KEEL_OK)
        return keel_fail(KEEL_UNSUPPORTED,
                         "%s: module %s does not build (OpenCL error %d), and there is no log", selector,
                         module->name, error);
    clGetProgramBuildInfo(program, device->id, CL_PROGRAM_BUILD_LOG, bytes, text, NULL);
    keel_log(KEEL_LOG_DEBUG, "build log of %s on %s:\n%s", module->name, selector, text);
    enum keel_status status =
        keel_fail(KEEL_UNSUPPORTED, "%s: module %s does not build (OpenCL error %d): %.*s", selector,
                  module->name, error, LOG_SHOWN_BYTES, text);
    keel_free(text);
    return status;
}

static enum keel_status program_create(struct keel_device *device, const struct keel_module *module,
                                       const char *options, struct keel_program **out)
{
    struct opencl_device *own = opencl_device(device);
    char all_options[OPTIONS_BYTES];
    int length = snprintf(all_options, sizeof all_options, "-cl-std=CL1.2 %s", options);
    if (length < 0 || (size_t)length >= sizeof all_options)
        return keel_fail(KEEL_LIMIT, "module %s: build options of %d bytes; at most %d", module->name, length,
                         OPTIONS_BYTES - 1);
    struct opencl_program *program = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *program, &program));
    cl_int error;
    const char *source = module->source;
    program->native = clCreateProgramWithSource(own->context, 1, &source, NULL, &error);
    if (error != CL_SUCCESS) {
        keel_free(program);
        return keel_opencl_fail(error, device->info.selector, "clCreateProgramWithSource");
    }
    error = clBuildProgram(program->native, 1, &own->id, all_options, NULL, NULL);
    if (error != CL_SUCCESS) {
        enum keel_status status = build_failed(own, program->native, module, error);
        clReleaseProgram(program->native);
        keel_free(program);
        return status;
    }
    *out = &program->head;
    return KEEL_OK;
}

static void program_destroy(struct keel_program *program)
{
    struct opencl_program *own = (struct opencl_program *)program;
    clReleaseProgram(own->native);
    keel_free(own);
}

static void kernel_destroy(struct keel_kernel *kernel)
{
    struct opencl_kernel *own = (struct opencl_kernel *)kernel;
    clReleaseKernel(own->native);
    keel_free(own);
}

static enum keel_status kernel_create(struct keel_program *program, const struct keel_module_kernel *entry,
                                      struct keel_kernel **out)
{
    struct opencl_kernel *kernel = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *kernel, &kernel));
    cl_int error;
    kernel->native = clCreateKernel(((struct opencl_program *)program)->native, entry->name, &error);
    if (error != CL_SUCCESS) {
        keel_free(kernel);
        return keel_fail(error == CL_INVALID_KERNEL_NAME ? KEEL_NOT_FOUND : KEEL_UNSUPPORTED,
                         "module %s: kernel %s is in the table but not in the source (OpenCL error %d)",
                         program->module->name, entry->name, error);
    }
    error = clGetKernelInfo(kernel->native, CL_KERNEL_NUM_ARGS, sizeof kernel->arg_count, &kernel->arg_count,
                            NULL);
    if (error != CL_SUCCESS || kernel->arg_count > KEEL_ARG_MAX) {
        enum keel_status status = keel_fail(KEEL_LIMIT, "kernel %s: %u arguments; at most %d", entry->name,
                                            kernel->arg_count, KEEL_ARG_MAX);
        kernel_destroy(&kernel->head);
        return status;
    }
    *out = &kernel->head;
    return KEEL_OK;
}

static const struct keel_device_ops opencl_ops = {.close = device_close,
                                                  .buffer_create = buffer_create,
                                                  .buffer_wrap = buffer_wrap,
                                                  .buffer_slice = buffer_slice,
                                                  .buffer_destroy = buffer_destroy,
                                                  .queue_create = keel_opencl_queue_create,
                                                  .queue_destroy = keel_opencl_queue_destroy,
                                                  .queue_flush = keel_opencl_queue_flush,
                                                  .queue_finish = keel_opencl_queue_finish,
                                                  .queue_mark = keel_opencl_queue_mark,
                                                  .write = keel_opencl_write,
                                                  .read = keel_opencl_read,
                                                  .copy = keel_opencl_copy,
                                                  .fill = keel_opencl_fill,
                                                  .map = keel_opencl_map,
                                                  .unmap = keel_opencl_unmap,
                                                  .launch = keel_opencl_launch,
                                                  .program_create = program_create,
                                                  .program_destroy = program_destroy,
                                                  .kernel_create = kernel_create,
                                                  .kernel_destroy = kernel_destroy,
                                                  .event_wait = keel_opencl_event_wait,
                                                  .event_done = keel_opencl_event_done,
                                                  .event_destroy = keel_opencl_event_destroy};

static enum keel_status device_open(const struct keel_candidate *candidate, struct keel_device **out)
{
    struct opencl_device *device = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *device, &device));
    device->head.ops = &opencl_ops;
    device->head.info = candidate->info;
    device->id = candidate->native[1];
    const cl_context_properties properties[] = {CL_CONTEXT_PLATFORM,
                                                (cl_context_properties)candidate->native[0], 0};
    cl_int error;
    device->context = clCreateContext(properties, 1, &device->id, NULL, NULL, &error);
    if (error != CL_SUCCESS) {
        keel_free(device);
        return keel_opencl_fail(error, candidate->info.selector, "clCreateContext");
    }
    keel_mutex_init(&device->zero_lock);
    enum keel_status status = keel_opencl_queue_create(&device->head, &device->zero_queue);
    if (status != KEEL_OK) {
        device_close(&device->head);
        return status;
    }
    *out = &device->head;
    return KEEL_OK;
}

const struct keel_backend keel_opencl_backend = {.discover = keel_opencl_discover, .open = device_open};
