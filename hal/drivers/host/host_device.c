/* host_device.c - the host backend: plain C on the calling thread. The reference for all others.
 *
 * A buffer is host memory, a command runs inside the call that enqueues it, a kernel is its module's
 * host function. So every event is complete when it is handed out: one event per queue serves them
 * all, and nothing here can block, fail later or lose a device. */
#include "device_backend.h"
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { HOST_ALIGN_BYTES = KEEL_CACHE_LINE_BYTES, HOST_GROUP_ITEMS_MAX = 1 << 20 };

struct host_buffer {
    struct keel_buffer head;
    unsigned char *data; /* owned, unless head.parent or head.wrapped is set */
};

struct host_queue {
    struct keel_queue head;
    struct keel_event complete; /* what every command hands out */
};

static void host_discover(struct keel_candidate *out, uint32_t capacity, uint32_t *count)
{
    if (*count == capacity)
        return;
    const uint64_t memory_bytes = keel_memory_limit_bytes();
    out[(*count)++].info = (struct keel_device_info){
        .selector = "host",
        .name = "plain C, one thread",
        .platform = "host",
        .version = "C11 reference",
        .driver_version = KEEL_RELEASE,
        .vendor = "Keel",
        .identity = "host",
        .kind = KEEL_DEVICE_HOST,
        .compute_units = 1,
        .base_align_bytes = HOST_ALIGN_BYTES,
        .memory_bytes = memory_bytes,
        .max_buffer_bytes = memory_bytes,
        .local_bytes = 0,
        .max_group_items = HOST_GROUP_ITEMS_MAX,
        .max_items = {HOST_GROUP_ITEMS_MAX, HOST_GROUP_ITEMS_MAX, HOST_GROUP_ITEMS_MAX},
        .float_width = 1,
        .code_forms = KEEL_CODE_BUILTIN,
        .numerics = KEEL_NUMERICS_DENORMALS | KEEL_NUMERICS_INF_NAN | KEEL_NUMERICS_NEAREST |
                    KEEL_NUMERICS_FMA | KEEL_NUMERICS_DIVIDE_SQRT,
        .memory_banks = 1,
        .unified_memory = true};
}

static void host_close(struct keel_device *device)
{
    keel_device_free(device);
}

/* All kinds of memory are one here. */
static enum keel_status host_buffer_create(struct keel_device *device,
                                           const struct keel_buffer_options *options,
                                           struct keel_buffer **out)
{
    (void)device;
    struct host_buffer *buffer = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *buffer, &buffer));
    enum keel_status status = keel_alloc_aligned(KEEL_PAGE_BYTES, options->bytes, &buffer->data);
    if (status != KEEL_OK) {
        keel_free(buffer);
        return status;
    }
    *out = &buffer->head;
    return KEEL_OK;
}

static struct host_buffer *host_buffer(struct keel_buffer *buffer)
{
    return (struct host_buffer *)buffer;
}

static enum keel_status host_buffer_wrap(struct keel_device *device, void *memory, uint64_t bytes,
                                         struct keel_buffer **out)
{
    (void)device, (void)bytes;
    struct host_buffer *buffer = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *buffer, &buffer));
    buffer->data = memory;
    *out = &buffer->head;
    return KEEL_OK;
}

static enum keel_status host_buffer_slice(struct keel_buffer *buffer, uint64_t offset_bytes, uint64_t bytes,
                                          struct keel_buffer **out)
{
    (void)bytes;
    struct host_buffer *slice = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *slice, &slice));
    slice->data = host_buffer(buffer)->data + offset_bytes;
    *out = &slice->head;
    return KEEL_OK;
}

static void host_buffer_destroy(struct keel_buffer *buffer)
{
    if (buffer->parent == NULL && !buffer->wrapped)
        keel_free(host_buffer(buffer)->data);
    keel_free(buffer);
}

static enum keel_status host_queue_create(struct keel_device *device, struct keel_queue **out)
{
    (void)device;
    struct host_queue *queue = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *queue, &queue));
    queue->complete.queue = &queue->head;
    *out = &queue->head;
    return KEEL_OK;
}

static void host_queue_destroy(struct keel_queue *queue)
{
    keel_queue_ended(queue);
    keel_free(queue);
}

static enum keel_status host_queue_flush(struct keel_queue *queue)
{
    (void)queue;
    return KEEL_OK;
}

static enum keel_status host_queue_finish(struct keel_queue *queue, uint64_t deadline_ns)
{
    (void)queue, (void)deadline_ns;
    return KEEL_OK;
}

/* ---- commands: each is done when its call returns ------------------------------------------------------ */

static void fill(unsigned char *target, uint64_t bytes, uint32_t pattern)
{
    for (uint64_t i = 0; i < bytes; i += sizeof pattern)
        memcpy(target + i, &pattern, sizeof pattern);
}

static void launch(const struct keel_device_command *command)
{
    struct keel_arg values[KEEL_ARG_MAX];
    void *pointers[KEEL_ARG_MAX];
    for (uint32_t i = 0; i < command->arg_count; i++) {
        values[i] = command->args[i];
        pointers[i] = values[i].kind == KEEL_ARG_BUFFER ? (void *)host_buffer(values[i].as.buffer)->data
                                                        : (void *)&values[i].as;
    }
    command->kernel->entry->host(pointers, command->range);
}

static unsigned char *place(struct keel_buffer *buffer, uint64_t offset_bytes)
{
    return host_buffer(buffer)->data + offset_bytes;
}

static enum keel_status host_enqueue(const struct keel_device_command *command)
{
    const size_t bytes = keel_size(command->bytes);
    switch (command->kind) {
    case KEEL_COMMAND_WRITE:
        memcpy(place(command->buffer, command->offset_bytes), command->data, bytes);
        break;
    case KEEL_COMMAND_READ:
        memcpy(command->memory, place(command->buffer, command->offset_bytes), bytes);
        break;
    case KEEL_COMMAND_COPY:
        memmove(place(command->buffer, command->offset_bytes),
                place(command->source, command->source_offset_bytes), bytes);
        break;
    case KEEL_COMMAND_FILL:
        fill(place(command->buffer, command->offset_bytes), command->bytes, command->pattern);
        break;
    case KEEL_COMMAND_MAP:
        *command->out_pointer = place(command->buffer, command->offset_bytes);
        break;
    case KEEL_COMMAND_LAUNCH:
        launch(command);
        break;
    case KEEL_COMMAND_UNMAP:
    case KEEL_COMMAND_MARK:
        break;
    }
    if (command->out_event != NULL)
        *command->out_event = &((struct host_queue *)command->queue)->complete;
    return KEEL_OK;
}

/* A module's host functions are its code: nothing is compiled, and no other code is of use. */
static enum keel_status host_program_create(struct keel_device *device, const struct keel_module *module,
                                            const char *options, const struct keel_code *code,
                                            struct keel_program **out)
{
    (void)device, (void)module, (void)options, (void)code;
    return keel_alloc(1, sizeof **out, out);
}

static void host_program_destroy(struct keel_program *program)
{
    keel_free(program);
}

static enum keel_status host_kernel_create(struct keel_program *program,
                                           const struct keel_module_kernel *entry, struct keel_kernel **out)
{
    if (entry->host == NULL)
        return keel_fail(KEEL_UNSUPPORTED, "module %s: kernel %s has no host function; use another device",
                         program->module->name, entry->name);
    struct keel_kernel *kernel = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *kernel, &kernel));
    kernel->info.max_group_items = HOST_GROUP_ITEMS_MAX;
    *out = kernel;
    return KEEL_OK;
}

static void host_kernel_destroy(struct keel_kernel *kernel)
{
    keel_free(kernel);
}

static enum keel_status host_event_wait(struct keel_event *event, uint64_t deadline_ns)
{
    (void)event, (void)deadline_ns;
    return KEEL_OK;
}

static bool host_event_done(struct keel_event *event)
{
    (void)event;
    return true;
}

static void host_event_destroy(struct keel_event *event)
{
    (void)event; /* part of its queue */
}

static const struct keel_device_ops host_ops = {.close = host_close,
                                                .buffer_create = host_buffer_create,
                                                .buffer_wrap = host_buffer_wrap,
                                                .buffer_slice = host_buffer_slice,
                                                .buffer_destroy = host_buffer_destroy,
                                                .queue_create = host_queue_create,
                                                .queue_destroy = host_queue_destroy,
                                                .queue_flush = host_queue_flush,
                                                .queue_finish = host_queue_finish,
                                                .enqueue = host_enqueue,
                                                .program_create = host_program_create,
                                                .program_destroy = host_program_destroy,
                                                .kernel_create = host_kernel_create,
                                                .kernel_destroy = host_kernel_destroy,
                                                .event_wait = host_event_wait,
                                                .event_done = host_event_done,
                                                .event_destroy = host_event_destroy};

static enum keel_status host_open(const struct keel_candidate *candidate, struct keel_device **out)
{
    struct keel_device *device = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *device, &device));
    device->ops = &host_ops;
    device->info = candidate->info;
    *out = device;
    return KEEL_OK;
}

const struct keel_backend keel_host_backend = {.discover = host_discover, .open = host_open};
