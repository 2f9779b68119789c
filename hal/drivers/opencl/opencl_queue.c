/* opencl_queue.c - OpenCL command queues and the commands on them.
 *
 * A command without out_event makes no event at all, so nothing leaks and nothing is allocated. */
#include "opencl_backend.h"
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <string.h>

/* How long a queue may take to end before it is left behind: a driver that hangs must not hang us. */
#define QUEUE_END_NS      (30 * KEEL_NS_PER_S)
#define HUNG_QUEUE_END_NS (100 * KEEL_NS_PER_MS)

static struct opencl_queue *opencl_queue(struct keel_queue *queue)
{
    return (struct opencl_queue *)queue;
}

static cl_mem mem_of(struct keel_buffer *buffer)
{
    return ((struct opencl_buffer *)buffer)->mem;
}

enum keel_status keel_opencl_queue_create(struct keel_device *device, struct keel_queue **out)
{
    struct opencl_device *own = (struct opencl_device *)device;
    struct opencl_queue *queue = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *queue, &queue));
    bool profile = device->trace != NULL && device->info.queue_profiling;
    cl_int error;
    queue->native =
        clCreateCommandQueue(own->context, own->id, profile ? CL_QUEUE_PROFILING_ENABLE : 0, &error);
    if (error != CL_SUCCESS) {
        keel_free(queue);
        return keel_opencl_fail(error, device->info.selector, "clCreateCommandQueue");
    }
    queue->head.device = device;
    enum keel_status status = keel_opencl_pool_init(queue);
    if (status != KEEL_OK) {
        clReleaseCommandQueue(queue->native);
        keel_free(queue);
        return status;
    }
    *out = &queue->head;
    return KEEL_OK;
}

void keel_opencl_queue_destroy(struct keel_queue *queue)
{
    struct opencl_queue *own = opencl_queue(queue);
    struct keel_device *device = queue->device;
    uint64_t began_ns = keel_now_ns();
    uint64_t deadline_ns = began_ns + (keel_device_answers(device) ? QUEUE_END_NS : HUNG_QUEUE_END_NS);
    bool gone = atomic_load(&device->watch.health) == KEEL_HEALTH_LOST;
    if (!gone && keel_opencl_queue_finish(queue, deadline_ns) == KEEL_TIMEOUT) {
        keel_queue_leave_behind(queue, began_ns);
        return;
    }
    if (!keel_opencl_pool_fini(&own->pool, deadline_ns)) {
        keel_log(KEEL_LOG_ERROR, "%s: a queue was left behind: its events are not destroyed",
                 device->info.selector);
        atomic_store(&device->left_behind, true);
        return;
    }
    if (!gone)
        keel_queue_ended(queue);
    clReleaseCommandQueue(own->native);
    keel_free(own);
}

enum keel_status keel_opencl_queue_flush(struct keel_queue *queue)
{
    cl_int error = clFlush(opencl_queue(queue)->native);
    return error == CL_SUCCESS ? KEEL_OK : keel_opencl_command_fail(queue, error, "clFlush");
}

/* Where the driver takes no mark nobody knows when what runs ends; that memory must be kept then, a lost
 * device says. */
enum keel_status keel_opencl_queue_finish(struct keel_queue *queue, uint64_t deadline_ns)
{
    struct opencl_event *end = NULL;
    cl_event native;
    KEEL_TRY(keel_opencl_event_take(opencl_queue(queue), &end));
    cl_int error = clEnqueueMarkerWithWaitList(opencl_queue(queue)->native, 0, NULL, &native);
    if (error != CL_SUCCESS) {
        keel_opencl_event_put(end);
        return keel_device_lose(queue, "clEnqueueMarkerWithWaitList", error);
    }
    struct keel_event *event = keel_opencl_event_fill(end, native);
    enum keel_status status = keel_opencl_event_wait(event, deadline_ns);
    keel_opencl_event_destroy(event);
    return status;
}

enum keel_status keel_opencl_begin(const struct keel_device_command *command, struct opencl_launch *launch)
{
    for (uint32_t i = 0; i < command->wait_count; i++)
        launch->waits[i] = keel_opencl_event_native(command->waits[i], command->queue);
    launch->wait_list = command->wait_count > 0 ? launch->waits : NULL;
    launch->native_address = NULL;
    if (command->out_event == NULL)
        return KEEL_OK;
    launch->native_address = &launch->native;
    return keel_opencl_event_take(opencl_queue(command->queue), &launch->event);
}

enum keel_status keel_opencl_end(const struct keel_device_command *command, struct opencl_launch *launch,
                                 cl_int error, const char *what)
{
    if (error != CL_SUCCESS) {
        if (command->out_event != NULL)
            keel_opencl_event_put(launch->event);
        return keel_opencl_command_fail(command->queue, error, what);
    }
    if (command->out_event != NULL)
        *command->out_event = keel_opencl_event_fill(launch->event, launch->native);
    return KEEL_OK;
}

static const uint8_t bytes_of[] = {[KEEL_ARG_BUFFER] = sizeof(cl_mem),
                                   [KEEL_ARG_I32] = 4,
                                   [KEEL_ARG_U32] = 4,
                                   [KEEL_ARG_F32] = 4,
                                   [KEEL_ARG_U64] = 8};

enum keel_status keel_opencl_set_arg(cl_kernel native, const char *name, uint32_t index,
                                     const struct keel_arg *arg)
{
    cl_mem mem = arg->kind == KEEL_ARG_BUFFER ? mem_of(arg->as.buffer) : NULL;
    const void *value = arg->kind == KEEL_ARG_BUFFER ? (const void *)&mem : (const void *)&arg->as;
    cl_int error = clSetKernelArg(native, index, bytes_of[arg->kind], value);
    if (error == CL_SUCCESS)
        return KEEL_OK;
    return keel_fail(KEEL_INVALID, "kernel %s: argument %u is not of the kind given (OpenCL error %d)", name,
                     index, error);
}

/* Set one argument, if it differs from what is set. */
static enum keel_status set_changed_arg(struct opencl_kernel *kernel, uint32_t index,
                                        const struct keel_arg *arg)
{
    uint64_t bits = 0;
    if (arg->kind == KEEL_ARG_BUFFER)
        bits = arg->as.buffer->id;
    else
        memcpy(&bits, &arg->as, bytes_of[arg->kind]);
    uint8_t kind = (uint8_t)(1 + arg->kind);
    if (kernel->kind[index] == kind && kernel->set[index] == bits)
        return KEEL_OK;
    kernel->kind[index] = 0;
    KEEL_TRY(keel_opencl_set_arg(kernel->native, kernel->head.entry->name, index, arg));
    kernel->kind[index] = kind;
    kernel->set[index] = bits;
    return KEEL_OK;
}

/* ---- commands ------------------------------------------------------------------------------------------ */

/* The queue is in order: a barrier before the call waits for it, a marker behind it is its event. */
static cl_int enqueue_call(const struct keel_device_command *command, const struct opencl_launch *launch)
{
    cl_command_queue native = opencl_queue(command->queue)->native;
    const struct keel_call *call = &command->kernel->call;
    const void *arguments[KEEL_ARG_MAX];
    for (uint32_t i = 0; i < command->arg_count; i++)
        arguments[i] = command->args[i].kind == KEEL_ARG_BUFFER
                           ? (const void *)mem_of(command->args[i].as.buffer)
                           : (const void *)&command->args[i].as;
    cl_int error = CL_SUCCESS;
    if (command->wait_count > 0)
        error = clEnqueueBarrierWithWaitList(native, command->wait_count, launch->wait_list, NULL);
    if (error == CL_SUCCESS)
        error = call->enqueue(call->context, native, arguments);
    if (error == CL_SUCCESS && launch->native_address != NULL)
        error = clEnqueueMarkerWithWaitList(native, 0, NULL, launch->native_address);
    return error;
}

static cl_int enqueue_map(const struct keel_device_command *command, const struct opencl_launch *launch,
                          cl_mem mem)
{
    cl_int error;
    void *pointer =
        clEnqueueMapBuffer(opencl_queue(command->queue)->native, mem, CL_FALSE,
                           command->map == KEEL_MAP_READ ? CL_MAP_READ : CL_MAP_WRITE_INVALIDATE_REGION,
                           keel_size(command->offset_bytes), keel_size(command->bytes), command->wait_count,
                           launch->wait_list, launch->native_address, &error);
    if (error == CL_SUCCESS)
        *command->out_pointer = pointer;
    return error;
}

/* The driver's call for this kind of command; *out_name is what it is called in messages. */
static cl_int enqueue_native(const struct keel_device_command *command, const struct opencl_launch *launch,
                             const char **out_name)
{
    static const char *const names[] = {
        [KEEL_COMMAND_READ] = "clEnqueueReadBuffer",        [KEEL_COMMAND_WRITE] = "clEnqueueWriteBuffer",
        [KEEL_COMMAND_COPY] = "clEnqueueCopyBuffer",        [KEEL_COMMAND_FILL] = "clEnqueueFillBuffer",
        [KEEL_COMMAND_MAP] = "clEnqueueMapBuffer",          [KEEL_COMMAND_UNMAP] = "clEnqueueUnmapMemObject",
        [KEEL_COMMAND_MARK] = "clEnqueueMarkerWithWaitList"};
    cl_command_queue queue = opencl_queue(command->queue)->native;
    const cl_mem mem = command->buffer != NULL ? mem_of(command->buffer) : NULL;
    const size_t offset = keel_size(command->offset_bytes), bytes = keel_size(command->bytes);
    const cl_uint count = command->wait_count;
    const cl_event *waits = launch->wait_list;
    cl_event *event = launch->native_address;
    *out_name = command->kernel != NULL ? command->kernel->entry->name : names[command->kind];
    switch (command->kind) {
    case KEEL_COMMAND_READ:
        return clEnqueueReadBuffer(queue, mem, CL_FALSE, offset, bytes, command->memory, count, waits, event);
    case KEEL_COMMAND_WRITE:
        return clEnqueueWriteBuffer(queue, mem, CL_FALSE, offset, bytes, command->data, count, waits, event);
    case KEEL_COMMAND_COPY:
        return clEnqueueCopyBuffer(queue, mem_of(command->source), mem,
                                   keel_size(command->source_offset_bytes), offset, bytes, count, waits,
                                   event);
    case KEEL_COMMAND_FILL:
        return clEnqueueFillBuffer(queue, mem, &command->pattern, sizeof command->pattern, offset, bytes,
                                   count, waits, event);
    case KEEL_COMMAND_MAP:
        return enqueue_map(command, launch, mem);
    case KEEL_COMMAND_UNMAP:
        return clEnqueueUnmapMemObject(queue, mem, command->memory, count, waits, event);
    case KEEL_COMMAND_LAUNCH:
        if (command->kernel->call.enqueue != NULL)
            return enqueue_call(command, launch);
        return clEnqueueNDRangeKernel(queue, ((struct opencl_kernel *)command->kernel)->native, 3, NULL,
                                      command->range->global, command->range->local, count, waits, event);
    case KEEL_COMMAND_MARK:
        break;
    }
    return clEnqueueMarkerWithWaitList(queue, count, waits, event);
}

/* Is its code there, and are its arguments set? */
static enum keel_status prepare_kernel(const struct keel_device_command *command)
{
    struct opencl_kernel *kernel = (struct opencl_kernel *)command->kernel;
    const struct opencl_image *image = ((const struct opencl_program *)command->kernel->program)->image;
    if (!atomic_load(&image->loaded))
        KEEL_TRY(keel_opencl_image_check(command->queue, image, command->kernel->entry->name));
    for (uint32_t i = 0; i < command->arg_count; i++)
        KEEL_TRY(set_changed_arg(kernel, i, &command->args[i]));
    return KEEL_OK;
}

enum keel_status keel_opencl_enqueue(const struct keel_device_command *command)
{
    struct opencl_launch launch;
    const char *name;
    if (command->kind == KEEL_COMMAND_LAUNCH && command->kernel->call.enqueue == NULL)
        KEEL_TRY(prepare_kernel(command));
    KEEL_TRY(keel_opencl_begin(command, &launch));
    cl_int error = enqueue_native(command, &launch, &name);
    return keel_opencl_end(command, &launch, error, name);
}
