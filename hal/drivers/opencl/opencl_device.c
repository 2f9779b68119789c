/* opencl_device.c - OpenCL devices and buffers, and what an OpenCL error means.
 *
 * One context for each open device. Programs are in opencl_program.c, commands in opencl_queue.c, events in
 * opencl_event.c. */
#include "opencl_backend.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/health.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

/* Zeroing a new buffer is a fill at memory speed behind what runs: so long it may take, and a second more for
 * so many bytes; see keel_buffer_create_in. */
#define ZERO_LIMIT_NS    (10 * KEEL_NS_PER_S)
#define ZERO_BYTES_PER_S (UINT64_C(64) << 20)

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
    if (error == CL_DEVICE_NOT_AVAILABLE)
        return keel_device_lose(queue, what, error);
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
    if (atomic_load(&device->left_behind))
        return;
    keel_opencl_images_release(device);
    keel_mutex_fini(&own->zero_lock);
    keel_mutex_fini(&own->image_lock);
    keel_mutex_fini(&own->place_lock);
    clReleaseContext(own->context);
    keel_device_free(device);
}

/* Caller holds zero_lock. TIMEOUT: the driver may still write it. */
static enum keel_status zero(struct opencl_device *device, struct opencl_buffer *buffer)
{
    KEEL_TRY(keel_device_check_usable(&device->head)); /* it may have hung under who held the lock before */
    struct keel_queue *queue = device->zero_queue;
    cl_command_queue native = ((struct opencl_queue *)queue)->native;
    const unsigned char pattern = 0;
    uint64_t bytes = buffer->head.bytes, patience_ns = device->head.watch.hung_after_ns;
    if (patience_ns < ZERO_LIMIT_NS)
        patience_ns = ZERO_LIMIT_NS;
    keel_queue_note(queue, KEEL_COMMAND_FILL, "of a new buffer");
    uint64_t sequence = atomic_load(&queue->sequence), began_ns = keel_now_ns();
    cl_int error = clEnqueueFillBuffer(native, buffer->mem, &pattern, sizeof pattern, 0, keel_size(bytes), 0,
                                       NULL, NULL);
    if (error != CL_SUCCESS)
        return keel_opencl_command_fail(queue, error, "clEnqueueFillBuffer");
    uint64_t deadline_ns = keel_deadline_after_ns(patience_ns + bytes / ZERO_BYTES_PER_S * KEEL_NS_PER_S);
    enum keel_status status = keel_opencl_queue_finish(queue, deadline_ns);
    return status == KEEL_TIMEOUT ? keel_queue_late(queue, sequence, began_ns) : status;
}

static void buffer_destroy(struct keel_buffer *buffer)
{
    struct opencl_buffer *own = (struct opencl_buffer *)buffer;
    clReleaseMemObject(own->mem);
    if (!keel_device_may_write(buffer->device))
        keel_free(own->memory);
    keel_free(own);
}

/* How Xilinx is told the bank of a buffer (its CL/cl_ext_xilinx.h). */
struct xilinx_place {
    unsigned flags;
    void *memory, *parameter;
};
#define XILINX_PLACE    ((cl_mem_flags)1 << 31)
#define XILINX_TOPOLOGY (1U << 31)
enum { INTEL_CHANNEL_SHIFT = 16 /* CL_CHANNEL_1_INTELFPGA is 1 << 16, CL_CHANNEL_2_INTELFPGA 2 << 16 ... */ };

static cl_mem create_mem(const struct opencl_device *device, const struct keel_buffer_options *options,
                         void *memory, cl_int *error)
{
    static const cl_mem_flags of_kind[] = {[KEEL_MEMORY_DEVICE] = 0,
                                           [KEEL_MEMORY_PINNED] = CL_MEM_ALLOC_HOST_PTR,
                                           [KEEL_MEMORY_SHARED] = CL_MEM_USE_HOST_PTR};
    cl_mem_flags flags = CL_MEM_READ_WRITE | of_kind[options->memory];
    struct xilinx_place place = {.flags = options->bank | XILINX_TOPOLOGY, .memory = memory};
    bool banks = device->head.info.memory_banks > 1;
    if (banks && device->head.bank_style == KEEL_BANKS_INTEL)
        flags |= (cl_mem_flags)(options->bank + 1) << INTEL_CHANNEL_SHIFT;
    if (banks && device->head.bank_style == KEEL_BANKS_XILINX) {
        flags |= XILINX_PLACE;
        memory = &place;
    }
    return clCreateBuffer(device->context, flags, keel_size(options->bytes), memory, error);
}

static enum keel_status buffer_create(struct keel_device *device, const struct keel_buffer_options *options,
                                      struct keel_buffer **out)
{
    struct opencl_device *own = opencl_device(device);
    struct opencl_buffer *buffer = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *buffer, &buffer));
    enum keel_status status = KEEL_OK;
    cl_int error = CL_SUCCESS;
    if (options->memory == KEEL_MEMORY_SHARED)
        status = keel_alloc_aligned(KEEL_PAGE_BYTES, keel_round_up(options->bytes, KEEL_PAGE_BYTES),
                                    &buffer->memory);
    if (status == KEEL_OK)
        buffer->mem = create_mem(own, options, buffer->memory, &error);
    if (error != CL_SUCCESS) {
        char what[64];
        snprintf(what, sizeof what, "a buffer of %" PRIu64 " bytes", options->bytes);
        status = keel_opencl_fail(error, device->info.selector, what);
    }
    if (status != KEEL_OK) {
        keel_free(buffer->memory);
        keel_free(buffer);
        return status;
    }
    buffer->head.device = device; /* it may be destroyed before it is introduced */
    buffer->head.bytes = options->bytes;
    keel_mutex_lock(&own->zero_lock);
    status = zero(own, buffer);
    const bool kept = status != KEEL_OK && !keel_device_answers(device);
    if (kept) { /* the driver may still write it: buffer and queue stay, and so the device */
        atomic_store(&device->left_behind, true);
        buffer->next = own->kept;
        own->kept = buffer;
    }
    keel_mutex_unlock(&own->zero_lock);
    if (status == KEEL_OK)
        *out = &buffer->head;
    else if (!kept)
        buffer_destroy(&buffer->head);
    return status;
}

static enum keel_status buffer_wrap(struct keel_device *device, void *memory, uint64_t bytes,
                                    struct keel_buffer **out)
{
    struct opencl_buffer *buffer = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *buffer, &buffer));
    cl_int error;
    buffer->mem = clCreateBuffer(opencl_device(device)->context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR,
                                 keel_size(bytes), memory, &error);
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
    cl_buffer_region region = {.origin = keel_size(offset_bytes), .size = keel_size(bytes)};
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

static void *native(struct keel_device *device)
{
    return opencl_device(device)->id;
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
                                                  .enqueue = keel_opencl_enqueue,
                                                  .program_create = keel_opencl_program_create,
                                                  .program_destroy = keel_opencl_program_destroy,
                                                  .program_binary = keel_opencl_program_binary,
                                                  .image_load = keel_opencl_image_load,
                                                  .kernel_create = keel_opencl_kernel_create,
                                                  .kernel_destroy = keel_opencl_kernel_destroy,
                                                  .native = native,
                                                  .commands_seal = keel_opencl_commands_seal,
                                                  .commands_unseal = keel_opencl_commands_unseal,
                                                  .replay = keel_opencl_replay,
                                                  .event_wait = keel_opencl_event_wait,
                                                  .event_done = keel_opencl_event_done,
                                                  .event_failed = keel_opencl_event_failed,
                                                  .event_destroy = keel_opencl_event_destroy,
                                                  .event_times = keel_opencl_event_times};

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
    keel_mutex_init(&device->image_lock);
    keel_mutex_init(&device->place_lock);
    enum keel_status status = keel_opencl_queue_create(&device->head, &device->zero_queue);
    if (status != KEEL_OK) {
        device_close(&device->head);
        return status;
    }
    *out = &device->head;
    return KEEL_OK;
}

const struct keel_backend keel_opencl_backend = {.discover = keel_opencl_discover, .open = device_open};
