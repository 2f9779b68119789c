/* device_queue.c - the front of queues, commands and events: checks, then the backend.
 *
 * Every command is checked here once: the queue is not lost, the events are of this device, ranges lie
 * inside their buffers. Nothing here allocates. */
#include "device_backend.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <stdio.h>

#define TRACED_QUEUE_END_NS (2 * KEEL_NS_PER_S)

static enum keel_status check_alive(struct keel_queue *queue)
{
    if (atomic_load_explicit(&queue->lost, memory_order_acquire))
        return keel_queue_failed(queue);
    if (keel_health_refuses(atomic_load_explicit(&queue->device->watch.health, memory_order_relaxed)))
        return keel_device_refuse(queue->device);
    return KEEL_OK;
}

enum keel_status keel_queue_create(struct keel_device *device, struct keel_queue **out)
{
    KEEL_TRY(keel_device_check_usable(device));
    struct keel_queue *queue = NULL;
    KEEL_TRY(device->ops->queue_create(device, &queue));
    KEEL_ASSERT(queue != NULL && !atomic_load(&queue->lost) && atomic_load(&queue->sequence) == 0);
    queue->device = device;
    queue->number = (uint32_t)atomic_fetch_add(&device->queues, 1) + 1;
    *out = queue;
    return KEEL_OK;
}

/* What runs is let come to its end, unless that takes long, so that the trace has it. */
static void end_in_trace(struct keel_queue *queue)
{
    if (keel_device_answers(queue->device))
        (void)keel_queue_finish(queue, keel_deadline_after_ns(TRACED_QUEUE_END_NS));
    keel_trace_end_queue(queue);
}

static void count_idle(struct keel_device *device)
{
    const uint64_t before = atomic_fetch_sub(&device->busy_queues, 1);
    KEEL_ASSERT(before > 0);
}

void keel_queue_destroy(struct keel_queue *queue)
{
    if (queue == NULL)
        return;
    struct keel_device *device = queue->device;
    char why[KEEL_DETAIL_BYTES]; /* it is destroyed after a failure, whose words stay */
    snprintf(why, sizeof why, "%s", keel_detail());
    if (device->trace != NULL)
        end_in_trace(queue);
    const bool busy = queue->busy; /* no more, where the trace waited for its end */
    device->ops->queue_destroy(queue);
    keel_detail_set(why);
    if (busy)
        count_idle(device);
}

/* A failure travels: who waits for a command that failed has failed. Drivers find out as well, but not what
 * was first, and PoCL 3.1 never ends a command that is made to wait for one that has failed already. */
static enum keel_status check_wait(struct keel_queue *queue, struct keel_event *event)
{
    const struct keel_device_ops *ops = queue->device->ops;
    if (event->queue->device != queue->device)
        return keel_fail(KEEL_INVALID, "a command of %s waits for an event of another device",
                         queue->device->info.selector);
    if (event->queue == queue) /* and would be refused if that had failed */
        return KEEL_OK;
    keel_queue_note_wait(queue, event);
    if (ops->event_failed != NULL && ops->event_failed(event) && ops->event_wait(event, 0) != KEEL_OK)
        return keel_queue_inherit(queue, event->queue);
    return KEEL_OK;
}

static enum keel_status check_waits(struct keel_queue *queue, const struct keel_wait_list *waits)
{
    for (uint32_t i = 0; i < waits->count; i++)
        KEEL_TRY(check_wait(queue, waits->events[i]));
    return KEEL_OK;
}

/* A device whose queues are all idle may be given another image. */
static void set_busy(struct keel_queue *queue, bool busy)
{
    if (queue->busy == busy)
        return;
    queue->busy = busy;
    if (busy)
        atomic_fetch_add(&queue->device->busy_queues, 1);
    else
        count_idle(queue->device);
}

static enum keel_status prepare(struct keel_device_command *command, const struct keel_wait_list *waits)
{
    struct keel_queue *queue = command->queue;
    KEEL_TRY(check_alive(queue));
    set_busy(queue, true);
    if (queue->device->trace != NULL)
        keel_trace_begin(command);
    if (waits == NULL)
        return KEEL_OK;
    if (waits->count > KEEL_WAIT_MAX)
        return keel_fail(KEEL_LIMIT, "a command that waits for %" PRIu32 " events; at most %d", waits->count,
                         KEEL_WAIT_MAX);
    KEEL_TRY(check_waits(queue, waits));
    command->waits = waits->events;
    command->wait_count = waits->count;
    return KEEL_OK;
}

/* What the backend said of a command that was prepared and noted: its event is there exactly when somebody
 * wanted one, and is of the command's queue. */
static enum keel_status issued(const struct keel_device_command *command, enum keel_status status)
{
    KEEL_ASSERT(command->queue->busy);
    if (status == KEEL_OK && command->out_event != NULL)
        KEEL_ASSERT(*command->out_event != NULL && (*command->out_event)->queue == command->queue);
    if (command->queue->device->trace != NULL)
        keel_trace_add(command, status);
    return status;
}

static enum keel_status check_inside(const struct keel_device *device, const struct keel_buffer *buffer,
                                     uint64_t offset_bytes, uint64_t bytes)
{
    if (buffer == NULL || buffer->device != device)
        return keel_fail(KEEL_INVALID, "a buffer that is not of %s", device->info.selector);
    if (bytes == 0 || offset_bytes > buffer->bytes || bytes > buffer->bytes - offset_bytes)
        return keel_fail(KEEL_INVALID, "%" PRIu64 " bytes at %" PRIu64 " of a buffer of %" PRIu64, bytes,
                         offset_bytes, buffer->bytes);
    return KEEL_OK;
}

static enum keel_status check_copy(const struct keel_device_command *command)
{
    const struct keel_device *device = command->queue->device;
    const uint64_t from = command->source_offset_bytes, to = command->offset_bytes, bytes = command->bytes;
    KEEL_TRY(check_inside(device, command->source, from, bytes));
    KEEL_TRY(check_inside(device, command->buffer, to, bytes));
    if (keel_buffer_ranges_overlap(command->source, from, bytes, command->buffer, to, bytes))
        return keel_fail(KEEL_INVALID,
                         "a copy of %" PRIu64 " bytes from %" PRIu64 " to %" PRIu64 " overlaps itself", bytes,
                         from, to);
    return KEEL_OK;
}

static enum keel_status check_group(const struct keel_device *device, const struct keel_kernel *kernel,
                                    const struct keel_range *range)
{
    const char *name = kernel->entry->name;
    const uint32_t *made_for = kernel->info.local;
    size_t group_items = 1;
    for (int i = 0; i < 3; i++) {
        if (range->local[i] == 0 || range->global[i] == 0 || range->global[i] % range->local[i] != 0)
            return keel_fail(KEEL_INVALID, "kernel %s: %zu items in dimension %d are not whole groups of %zu",
                             name, range->global[i], i, range->local[i]);
        if (made_for[0] != 0 && range->local[i] != made_for[i])
            return keel_fail(KEEL_UNSUPPORTED,
                             "kernel %s: groups of %zu x %zu x %zu items; on %s it is made for %" PRIu32
                             " x %" PRIu32 " x %" PRIu32 " alone",
                             name, range->local[0], range->local[1], range->local[2], device->info.selector,
                             made_for[0], made_for[1], made_for[2]);
        if (range->local[i] > device->info.max_items[i])
            return keel_fail(KEEL_UNSUPPORTED,
                             "kernel %s: groups of %zu items in dimension %d; %s takes %" PRIu32, name,
                             range->local[i], i, device->info.selector, device->info.max_items[i]);
        group_items *= range->local[i];
    }
    /* What the driver says of the kernel is no ground: Mesa 22 says 32, and runs groups of 64. */
    if (group_items > device->info.max_group_items)
        return keel_fail(KEEL_UNSUPPORTED, "kernel %s: groups of %zu items; %s takes %" PRIu32, name,
                         group_items, device->info.selector, device->info.max_group_items);
    return KEEL_OK;
}

enum keel_status keel_check_launch(const struct keel_device *device, const struct keel_kernel *kernel,
                                   const struct keel_arg *args, uint32_t arg_count,
                                   const struct keel_range *range)
{
    const char *name = kernel->entry->name;
    if (kernel->program->device != device)
        return keel_fail(KEEL_INVALID, "kernel %s was built for another device", name);
    if (arg_count > KEEL_ARG_MAX)
        return keel_fail(KEEL_LIMIT, "kernel %s: %" PRIu32 " arguments; at most %d", name, arg_count,
                         KEEL_ARG_MAX);
    if (kernel->info.arg_count != 0 && arg_count != kernel->info.arg_count)
        return keel_fail(KEEL_INVALID, "kernel %s: %" PRIu32 " arguments given; it takes %" PRIu32, name,
                         arg_count, kernel->info.arg_count);
    KEEL_TRY(check_group(device, kernel, range));
    for (uint32_t i = 0; i < arg_count; i++)
        if (args[i].kind == KEEL_ARG_BUFFER &&
            (args[i].as.buffer == NULL || args[i].as.buffer->device != device))
            return keel_fail(KEEL_INVALID, "kernel %s: argument %" PRIu32 " is not a buffer of %s", name, i,
                             device->info.selector);
    return KEEL_OK;
}

static enum keel_status check_operands(const struct keel_device_command *command)
{
    const struct keel_device *device = command->queue->device;
    const uint64_t offset_bytes = command->offset_bytes, bytes = command->bytes;
    switch (command->kind) {
    case KEEL_COMMAND_LAUNCH:
        return keel_check_launch(device, command->kernel, command->args, command->arg_count, command->range);
    case KEEL_COMMAND_COPY:
        return check_copy(command);
    case KEEL_COMMAND_UNMAP:
    case KEEL_COMMAND_MARK:
        return KEEL_OK;
    default:
        break;
    }
    KEEL_TRY(check_inside(device, command->buffer, offset_bytes, bytes));
    if (command->kind == KEEL_COMMAND_FILL &&
        (offset_bytes % sizeof command->pattern != 0 || bytes % sizeof command->pattern != 0))
        return keel_fail(KEEL_INVALID, "a fill of %" PRIu64 " bytes at %" PRIu64 "; both are multiples of 4",
                         bytes, offset_bytes);
    return KEEL_OK;
}

static enum keel_status enqueue(struct keel_device_command *command, const struct keel_wait_list *waits)
{
    struct keel_queue *queue = command->queue;
    KEEL_TRY(prepare(command, waits));
    KEEL_TRY(check_operands(command));
    keel_queue_note(queue, command->kind, command->kernel != NULL ? command->kernel->entry->name : NULL);
    return issued(command, queue->device->ops->enqueue(command));
}

enum keel_status keel_queue_write(struct keel_queue *queue, struct keel_buffer *buffer, uint64_t offset_bytes,
                                  const void *data, uint64_t bytes, const struct keel_wait_list *waits,
                                  struct keel_event **out_event)
{
    struct keel_device_command command = {.queue = queue,
                                          .kind = KEEL_COMMAND_WRITE,
                                          .out_event = out_event,
                                          .buffer = buffer,
                                          .offset_bytes = offset_bytes,
                                          .bytes = bytes,
                                          .data = data};
    return enqueue(&command, waits);
}

enum keel_status keel_queue_read(struct keel_queue *queue, struct keel_buffer *buffer, uint64_t offset_bytes,
                                 void *data, uint64_t bytes, const struct keel_wait_list *waits,
                                 struct keel_event **out_event)
{
    struct keel_device_command command = {.queue = queue,
                                          .kind = KEEL_COMMAND_READ,
                                          .out_event = out_event,
                                          .buffer = buffer,
                                          .offset_bytes = offset_bytes,
                                          .bytes = bytes,
                                          .memory = data};
    return enqueue(&command, waits);
}

enum keel_status keel_queue_copy(struct keel_queue *queue, struct keel_buffer *source,
                                 uint64_t source_offset_bytes, struct keel_buffer *target,
                                 uint64_t target_offset_bytes, uint64_t bytes,
                                 const struct keel_wait_list *waits, struct keel_event **out_event)
{
    struct keel_device_command command = {.queue = queue,
                                          .kind = KEEL_COMMAND_COPY,
                                          .out_event = out_event,
                                          .buffer = target,
                                          .offset_bytes = target_offset_bytes,
                                          .bytes = bytes,
                                          .source = source,
                                          .source_offset_bytes = source_offset_bytes};
    return enqueue(&command, waits);
}

enum keel_status keel_queue_fill(struct keel_queue *queue, struct keel_buffer *buffer, uint64_t offset_bytes,
                                 uint64_t bytes, uint32_t pattern, const struct keel_wait_list *waits,
                                 struct keel_event **out_event)
{
    struct keel_device_command command = {.queue = queue,
                                          .kind = KEEL_COMMAND_FILL,
                                          .out_event = out_event,
                                          .buffer = buffer,
                                          .offset_bytes = offset_bytes,
                                          .bytes = bytes,
                                          .pattern = pattern};
    return enqueue(&command, waits);
}

enum keel_status keel_queue_map(struct keel_queue *queue, struct keel_buffer *buffer, uint64_t offset_bytes,
                                uint64_t bytes, enum keel_map map, void **out_pointer,
                                const struct keel_wait_list *waits, struct keel_event **out_event)
{
    struct keel_device_command command = {.queue = queue,
                                          .kind = KEEL_COMMAND_MAP,
                                          .out_event = out_event,
                                          .buffer = buffer,
                                          .offset_bytes = offset_bytes,
                                          .bytes = bytes,
                                          .out_pointer = out_pointer,
                                          .map = map};
    return enqueue(&command, waits);
}

enum keel_status keel_queue_unmap(struct keel_queue *queue, struct keel_buffer *buffer, void *pointer,
                                  const struct keel_wait_list *waits, struct keel_event **out_event)
{
    struct keel_device_command command = {.queue = queue,
                                          .kind = KEEL_COMMAND_UNMAP,
                                          .out_event = out_event,
                                          .buffer = buffer,
                                          .memory = pointer};
    return enqueue(&command, waits);
}

enum keel_status keel_queue_launch(struct keel_queue *queue, struct keel_kernel *kernel,
                                   const struct keel_arg *args, uint32_t arg_count,
                                   const struct keel_range *range, const struct keel_wait_list *waits,
                                   struct keel_event **out_event)
{
    struct keel_device_command command = {.queue = queue,
                                          .kind = KEEL_COMMAND_LAUNCH,
                                          .out_event = out_event,
                                          .arg_count = arg_count,
                                          .kernel = kernel,
                                          .args = args,
                                          .range = range};
    return enqueue(&command, waits);
}

enum keel_status keel_queue_replay(struct keel_queue *queue, struct keel_commands *commands,
                                   const struct keel_wait_list *waits, struct keel_event **out_event)
{
    struct keel_device_command command = {
        .queue = queue, .kind = KEEL_COMMAND_LAUNCH, .out_event = out_event};
    KEEL_TRY(prepare(&command, waits));
    if (commands->device != queue->device || !commands->sealed)
        return keel_fail(KEEL_INVALID, "%s: a list of commands that is %s", queue->device->info.selector,
                         commands->sealed ? "of another device" : "not sealed; call keel_commands_seal");
    command.out_event = out_event; /* a trace keeps the steps, not the replay */
    return keel_commands_run(&command, commands);
}

enum keel_status keel_queue_flush(struct keel_queue *queue)
{
    KEEL_TRY(check_alive(queue));
    return queue->device->ops->queue_flush(queue);
}

/* What a wait that began at began_ns, or began with no time to wait (0), came to. */
static enum keel_status waited(struct keel_queue *queue, uint64_t sequence, uint64_t began_ns,
                               enum keel_status status)
{
    if (status == KEEL_OK && atomic_load_explicit(&queue->device->watch.doubted, memory_order_relaxed))
        keel_queue_progress(queue, sequence);
    if (status == KEEL_TIMEOUT && began_ns != 0)
        return keel_queue_late(queue, sequence, began_ns);
    return status;
}

/* When a wait begins; 0 for a look that does not wait. */
static uint64_t begin_wait(uint64_t deadline_ns)
{
    uint64_t now_ns = deadline_ns > 0 ? keel_now_ns() : 0;
    return now_ns < deadline_ns ? now_ns : 0;
}

enum keel_status keel_queue_finish(struct keel_queue *queue, uint64_t deadline_ns)
{
    if (!keel_device_answers(queue->device))
        KEEL_TRY(check_alive(queue));
    uint64_t began_ns = begin_wait(deadline_ns);
    uint64_t sequence = atomic_load_explicit(&queue->sequence, memory_order_relaxed);
    enum keel_status status =
        waited(queue, sequence, began_ns, queue->device->ops->queue_finish(queue, deadline_ns));
    if (status == KEEL_OK) {
        set_busy(queue, false);
        keel_queue_forget_waits(queue);
    }
    if (status != KEEL_TIMEOUT) /* nothing of it runs any more, and a queue that failed says so now */
        KEEL_TRY(check_alive(queue));
    return status;
}

enum keel_status keel_queue_mark(struct keel_queue *queue, struct keel_event **out_event)
{
    KEEL_TRY(check_alive(queue));
    keel_queue_note(queue, KEEL_COMMAND_MARK, NULL);
    KEEL_TRY(queue->device->ops->enqueue(
        &(struct keel_device_command){.queue = queue, .kind = KEEL_COMMAND_MARK, .out_event = out_event}));
    KEEL_ASSERT(*out_event != NULL && (*out_event)->queue == queue);
    return KEEL_OK;
}

enum keel_status keel_event_wait(struct keel_event *event, uint64_t deadline_ns)
{
    struct keel_queue *queue = event->queue;
    uint64_t began_ns = begin_wait(deadline_ns);
    uint64_t sequence = atomic_load_explicit(&event->sequence, memory_order_relaxed);
    return waited(queue, sequence, began_ns, queue->device->ops->event_wait(event, deadline_ns));
}

enum keel_status keel_event_look(struct keel_event *event, uint64_t until_ns)
{
    struct keel_queue *queue = event->queue;
    const uint64_t sequence = atomic_load_explicit(&event->sequence, memory_order_relaxed);
    return waited(queue, sequence, 0, queue->device->ops->event_wait(event, until_ns));
}

bool keel_event_done(struct keel_event *event)
{
    struct keel_queue *queue = event->queue;
    KEEL_ASSERT(queue != NULL);
    bool done = queue->device->ops->event_done(event);
    if (done && atomic_load_explicit(&queue->device->watch.doubted, memory_order_relaxed))
        keel_queue_progress(queue, atomic_load_explicit(&event->sequence, memory_order_relaxed));
    return done;
}

void keel_event_destroy(struct keel_event *event)
{
    if (event == NULL)
        return;
    if (event->queue->device->trace != NULL)
        keel_trace_let_go(event);
    event->queue->device->ops->event_destroy(event);
}
