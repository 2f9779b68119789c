/* device_fault.c - faults on demand in front of a backend.
 *
 * keel_device_inject puts a table of functions of its own in front of the backend's, so that a device that
 * was never given a plan pays nothing. From then on every event of the device is created here: it may wrap
 * the backend's event, and decides itself when it is complete. Each queue has a time before which none of its
 * commands completes: `slow` moves it later, `hang` sets it to never, and a wait for an event waits for that
 * time too. A command that would never complete is not passed to the backend.
 *
 * Lock order: faults.lock, then nothing. A queue's time belongs to the queue's thread, an event's is written
 * before the event is handed out. */
#include "device_fault.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>

#define FLIP_LIMIT_NS (60 * KEEL_NS_PER_S)

struct fault_event {
    struct keel_event head;
    struct fault_event *next_free, *next_made;
    struct keel_event *inner; /* the backend's, owned; NULL for a command that never reached it */
    uint64_t ready_ns;        /* not complete before */
    bool failed;
};

struct keel_faults {
    struct keel_device_ops ops;          /* in force: the backend's, with ours in front */
    const struct keel_device_ops *inner; /* the backend's */
    struct keel_mutex lock;              /* guards what follows */
    struct keel_fault_plan plan;
    struct fault_event *free, *made;
};

static struct keel_faults *faults_of(const struct keel_queue *queue)
{
    return queue->device->faults;
}

static struct fault_event *own_event(struct keel_event *event)
{
    return (struct fault_event *)event;
}

/* ---- events ------------------------------------------------------------------------------------------- */

static enum keel_status event_take(struct keel_queue *queue, struct fault_event **out)
{
    struct keel_faults *faults = faults_of(queue);
    struct fault_event *event = NULL;
    keel_mutex_lock(&faults->lock);
    event = faults->free;
    if (event != NULL)
        faults->free = event->next_free;
    enum keel_status status = event != NULL ? KEEL_OK : keel_alloc(1, sizeof *event, &event);
    if (status == KEEL_OK && !event->head.injected) {
        event->head.injected = true;
        event->next_made = faults->made;
        faults->made = event;
    }
    keel_mutex_unlock(&faults->lock);
    if (status != KEEL_OK)
        return status;
    KEEL_ASSERT(event->head.injected && event->inner == NULL);
    event->head.queue = queue;
    atomic_store_explicit(&event->head.sequence, atomic_load_explicit(&queue->sequence, memory_order_relaxed),
                          memory_order_relaxed);
    event->failed = false;
    event->ready_ns = queue->ready_ns;
    *out = event;
    return KEEL_OK;
}

static void event_destroy(struct keel_event *event)
{
    struct keel_faults *faults = faults_of(event->queue);
    struct keel_event *inner = event->injected ? own_event(event)->inner : event;
    if (inner != NULL)
        faults->inner->event_destroy(inner);
    if (!event->injected)
        return;
    own_event(event)->inner = NULL;
    keel_mutex_lock(&faults->lock);
    own_event(event)->next_free = faults->free;
    faults->free = own_event(event);
    keel_mutex_unlock(&faults->lock);
}

/* Sleep until a queue's or event's time, or the deadline: TIMEOUT. */
static enum keel_status wait_ready(struct keel_queue *queue, uint64_t ready_ns, uint64_t deadline_ns)
{
    if (ready_ns <= keel_now_ns())
        return KEEL_OK;
    keel_sleep_until_ns(ready_ns < deadline_ns ? ready_ns : deadline_ns);
    if (ready_ns > deadline_ns)
        return keel_fail(KEEL_TIMEOUT, "%s: the command still runs", queue->device->info.selector);
    return KEEL_OK;
}

static enum keel_status event_wait(struct keel_event *event, uint64_t deadline_ns)
{
    struct keel_faults *faults = faults_of(event->queue);
    if (!event->injected)
        return faults->inner->event_wait(event, deadline_ns);
    struct fault_event *own = own_event(event);
    if (own->failed)
        return keel_queue_failed(event->queue);
    KEEL_TRY(wait_ready(event->queue, own->ready_ns, deadline_ns));
    return own->inner != NULL ? faults->inner->event_wait(own->inner, deadline_ns) : KEEL_OK;
}

static bool event_done(struct keel_event *event)
{
    struct keel_faults *faults = faults_of(event->queue);
    if (!event->injected)
        return faults->inner->event_done(event);
    struct fault_event *own = own_event(event);
    if (own->failed)
        return true;
    return own->ready_ns <= keel_now_ns() && (own->inner == NULL || faults->inner->event_done(own->inner));
}

static bool event_failed(struct keel_event *event)
{
    const struct keel_device_ops *inner = faults_of(event->queue)->inner;
    struct keel_event *native = event->injected ? own_event(event)->inner : event;
    return (event->injected && own_event(event)->failed) ||
           (native != NULL && inner->event_failed != NULL && inner->event_failed(native));
}

static bool event_times(struct keel_event *event, uint64_t *out_began_ns, uint64_t *out_ended_ns)
{
    struct keel_event *inner = event->injected ? own_event(event)->inner : event;
    return inner != NULL && faults_of(event->queue)->inner->event_times(inner, out_began_ns, out_ended_ns);
}

/* ---- one command on its way to the backend ------------------------------------------------------------ */

struct passage {
    struct keel_device_command command; /* as the backend gets it */
    struct keel_event *waits[KEEL_WAIT_MAX];
    struct keel_event *inner;  /* where the backend puts its event */
    struct fault_event *event; /* what the caller gets; NULL when nobody wants it */
    struct keel_fault_hit hit;
    bool passes;
};

/* The backend's own events of a wait list; the queue is not ready before they are. */
static void unwrap_waits(const struct keel_device_command *command, struct passage *passage)
{
    struct keel_queue *queue = command->queue;
    uint32_t count = 0;
    for (uint32_t i = 0; i < command->wait_count; i++) {
        struct keel_event *event = command->waits[i];
        struct keel_event *inner = event->injected ? own_event(event)->inner : event;
        if (event->injected && own_event(event)->ready_ns > queue->ready_ns)
            queue->ready_ns = own_event(event)->ready_ns;
        if (inner != NULL)
            passage->waits[count++] = inner;
    }
    passage->command.waits = passage->waits;
    passage->command.wait_count = count;
}

static void strike(struct passage *passage, const char *kernel)
{
    struct keel_queue *queue = passage->command.queue;
    const struct keel_fault_hit *hit = &passage->hit;
    const char *kind = keel_command_kind_name(passage->command.kind);
    if (hit->hang)
        queue->ready_ns = KEEL_NEVER;
    if (hit->late_ns > 0 && queue->ready_ns != KEEL_NEVER) {
        uint64_t now_ns = keel_now_ns();
        queue->ready_ns = (queue->ready_ns > now_ns ? queue->ready_ns : now_ns) + hit->late_ns;
    }
    if (hit->error || hit->lose)
        (void)keel_queue_fail(queue, "%s%s%s failed: injected, number %" PRIu64, kind,
                              kernel != NULL ? " " : "", kernel != NULL ? kernel : "", hit->number);
    if (hit->lose)
        (void)keel_device_report(queue->device, KEEL_HEALTH_LOST, queue->failure);
    passage->passes = !hit->lose && !hit->error && queue->ready_ns != KEEL_NEVER;
}

/* Decide what becomes of a command, before the backend sees it. */
static enum keel_status enter(const struct keel_device_command *command, struct passage *passage)
{
    struct keel_queue *queue = command->queue;
    struct keel_faults *faults = faults_of(queue);
    const char *kernel = command->kernel != NULL ? command->kernel->entry->name : NULL;
    *passage = (struct passage){.command = *command};
    passage->command.out_event = NULL;
    unwrap_waits(command, passage);
    keel_mutex_lock(&faults->lock);
    passage->hit = keel_fault_plan_meet(&faults->plan, command->kind, kernel);
    keel_mutex_unlock(&faults->lock);
    strike(passage, kernel);
    if (command->out_event != NULL)
        KEEL_TRY(event_take(queue, &passage->event));
    if (command->out_event != NULL || passage->hit.flip != NULL)
        passage->command.out_event = &passage->inner;
    return KEEL_OK;
}

/* What the caller gets: `status` is what the backend said of a command that passed. */
static enum keel_status leave(const struct keel_device_command *command, struct passage *passage,
                              enum keel_status status)
{
    if (passage->event == NULL) {
        if (passage->inner != NULL)
            faults_of(command->queue)->inner->event_destroy(passage->inner);
        return status;
    }
    passage->event->inner = passage->inner;
    passage->event->failed = passage->hit.error || passage->hit.lose;
    if (status == KEEL_OK)
        *command->out_event = &passage->event->head;
    else
        event_destroy(&passage->event->head);
    return status;
}

/* ---- flips -------------------------------------------------------------------------------------------- */

/* The bit that is to be wrong among so many bytes. */
static uint64_t flipped_bit(const struct keel_fault_hit *hit, uint64_t bytes)
{
    uint64_t bit = hit->flip->bit;
    if (bit == KEEL_FAULT_UNSET) {
        bit = hit->number * UINT64_C(0x9e3779b97f4a7c15); /* splitmix64's step and last mix */
        bit = (bit ^ (bit >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        bit ^= bit >> 31;
    }
    return bit % (bytes * 8);
}

static enum keel_status settle(struct keel_queue *queue, struct keel_event *event)
{
    return faults_of(queue)->inner->event_wait(event, keel_deadline_after_ns(FLIP_LIMIT_NS));
}

/* One bit of a range of a buffer, after the command. */
static enum keel_status flip_buffer(struct passage *passage, struct keel_buffer *buffer,
                                    uint64_t offset_bytes, uint64_t bytes)
{
    struct keel_queue *queue = passage->command.queue;
    const struct keel_device_ops *inner = faults_of(queue)->inner;
    uint64_t bit = flipped_bit(&passage->hit, bytes);
    unsigned char byte = 0;
    struct keel_event *event = NULL;
    struct keel_device_command command = {.queue = queue,
                                          .kind = KEEL_COMMAND_READ,
                                          .out_event = &event,
                                          .buffer = buffer,
                                          .offset_bytes = offset_bytes + bit / 8,
                                          .bytes = 1,
                                          .data = &byte,
                                          .memory = &byte};
    KEEL_TRY(inner->enqueue(&command));
    enum keel_status status = settle(queue, event);
    inner->event_destroy(event);
    KEEL_TRY(status);
    byte ^= (unsigned char)(1U << (bit % 8));
    command.kind = KEEL_COMMAND_WRITE;
    KEEL_TRY(inner->enqueue(&command));
    status = settle(queue, event);
    inner->event_destroy(event);
    return status;
}

static enum keel_status flip_memory(struct passage *passage, unsigned char *data, uint64_t bytes)
{
    uint64_t bit = flipped_bit(&passage->hit, bytes);
    KEEL_TRY(settle(passage->command.queue, passage->inner));
    data[bit / 8] ^= (unsigned char)(1U << (bit % 8));
    return KEEL_OK;
}

/* The buffer that a flip of a launch is for: the argument that it names, else the last buffer. */
static struct keel_buffer *flipped_arg(const struct keel_fault *flip, const struct keel_arg *args,
                                       uint32_t arg_count)
{
    struct keel_buffer *buffer = NULL;
    for (uint32_t i = 0; i < arg_count; i++)
        if (args[i].kind == KEEL_ARG_BUFFER && (flip->arg == KEEL_FAULT_UNSET || flip->arg == i))
            buffer = args[i].as.buffer;
    return buffer;
}

/* One bit of what the command has written. */
static enum keel_status flip(struct passage *passage)
{
    const struct keel_device_command *command = &passage->command;
    struct keel_buffer *buffer;
    switch (command->kind) {
    case KEEL_COMMAND_READ:
        return flip_memory(passage, command->memory, command->bytes);
    case KEEL_COMMAND_WRITE:
    case KEEL_COMMAND_COPY:
    case KEEL_COMMAND_FILL:
        return flip_buffer(passage, command->buffer, command->offset_bytes, command->bytes);
    case KEEL_COMMAND_LAUNCH:
        buffer = flipped_arg(passage->hit.flip, command->args, command->arg_count);
        return buffer != NULL ? flip_buffer(passage, buffer, 0, buffer->bytes) : KEEL_OK;
    default:
        return KEEL_OK;
    }
}

/* ---- the table ---------------------------------------------------------------------------------------- */

static enum keel_status fault_enqueue(const struct keel_device_command *command)
{
    struct passage passage;
    KEEL_TRY(enter(command, &passage));
    enum keel_status status = KEEL_OK;
    if (passage.passes)
        status = faults_of(command->queue)->inner->enqueue(&passage.command);
    if (status == KEEL_OK && passage.passes && passage.hit.flip != NULL)
        status = flip(&passage);
    return leave(command, &passage, status);
}

static enum keel_status fault_finish(struct keel_queue *queue, uint64_t deadline_ns)
{
    KEEL_TRY(wait_ready(queue, queue->ready_ns, deadline_ns));
    return faults_of(queue)->inner->queue_finish(queue, deadline_ns);
}

static bool meets_error(struct keel_device *device, uint32_t on)
{
    struct keel_faults *faults = device->faults;
    keel_mutex_lock(&faults->lock);
    bool error = keel_fault_plan_meet(&faults->plan, on, NULL).error;
    keel_mutex_unlock(&faults->lock);
    return error;
}

static enum keel_status fault_buffer_create(struct keel_device *device,
                                            const struct keel_buffer_options *options,
                                            struct keel_buffer **out)
{
    if (meets_error(device, KEEL_FAULT_ON_BUFFER))
        return keel_fail(KEEL_NO_MEMORY, "%s: a buffer of %" PRIu64 " bytes: no memory (injected)",
                         device->info.selector, options->bytes);
    return device->faults->inner->buffer_create(device, options, out);
}

static enum keel_status fault_program_create(struct keel_device *device, const struct keel_module *module,
                                             const char *options, const struct keel_code *code,
                                             struct keel_program **out)
{
    if (meets_error(device, KEEL_FAULT_ON_PROGRAM))
        return keel_fail(KEEL_UNSUPPORTED, "%s: module %s does not build (injected)", device->info.selector,
                         module->name);
    return device->faults->inner->program_create(device, module, options, code, out);
}

static void fault_close(struct keel_device *device)
{
    struct keel_faults *faults = device->faults;
    const struct keel_device_ops *inner = faults->inner;
    while (faults->made != NULL) {
        struct fault_event *event = faults->made;
        faults->made = event->next_made;
        keel_free(event);
    }
    keel_mutex_fini(&faults->lock);
    keel_free(faults);
    inner->close(device);
}

static enum keel_status put_in_front(struct keel_device *device)
{
    struct keel_faults *faults = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *faults, &faults));
    keel_mutex_init(&faults->lock);
    faults->inner = device->ops;
    faults->ops = *device->ops;
    faults->ops.close = fault_close;
    faults->ops.buffer_create = fault_buffer_create;
    faults->ops.program_create = fault_program_create;
    faults->ops.enqueue = fault_enqueue;
    faults->ops.replay = NULL; /* each step is enqueued, so that it is met */
    faults->ops.queue_finish = fault_finish;
    faults->ops.event_wait = event_wait;
    faults->ops.event_done = event_done;
    faults->ops.event_failed = event_failed;
    faults->ops.event_destroy = event_destroy;
    if (device->ops->event_times != NULL)
        faults->ops.event_times = event_times;
    device->faults = faults;
    device->ops = &faults->ops;
    return KEEL_OK;
}

enum keel_status keel_device_inject(struct keel_device *device, const char *plan)
{
    struct keel_fault_plan read;
    KEEL_TRY(keel_fault_plan_read(plan != NULL ? plan : "", &read));
    if (device->faults == NULL && read.count == 0)
        return KEEL_OK;
    if (device->faults == NULL)
        KEEL_TRY(put_in_front(device));
    keel_mutex_lock(&device->faults->lock);
    device->faults->plan = read;
    keel_mutex_unlock(&device->faults->lock);
    return KEEL_OK;
}

bool keel_device_has_faults(const struct keel_device *device)
{
    return device->faults != NULL;
}
