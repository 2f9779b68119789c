/* null_device.c - a backend whose memory is real and whose kernels do nothing: the recipe for a new one.
 *
 * Selector "null"; never chosen by itself, never listed. To drive a board that has no OpenCL driver, copy
 * this file, put its name into `backends` of drivers/device_open.c, and replace, from top to bottom,
 * what stands behind the words BOARD below by calls of its library. Add it to the table of stacks of
 * tests/hal/device_conformance_test.c, which says when it is right. Health, failures that travel, faults on
 * demand, traces, limits and counts of memory are in front of every backend: there is nothing to write for
 * them but what the comments say.
 *
 * How it runs: a queue is a ring of commands and a thread that takes them in order, as a board takes them
 * from a ring in memory after a doorbell. Commands of a queue are numbered from 1, and the queue knows how
 * many are done, so an event is a queue and a number, and a wait is for that count: nothing is allocated for
 * a command, and an event may be destroyed before its command is done.
 *
 * Lock order: null_queue.lock, then nothing. */
#include "device_backend.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

enum { RING = 256, GROUP_ITEMS_MAX = 1024 };
#define MEMORY_BYTES (UINT64_C(1) << 32)
/* How long a command may wait for a place in the ring, and a queue for its end: a board that hangs must not
 * hang us, and one that is known to hang is given less. */
#define WAIT_LIMIT_NS (30 * KEEL_NS_PER_S)
#define HUNG_LIMIT_NS (100 * KEEL_NS_PER_MS)

/* ---- objects: each begins with its head of device_backend.h, so that one pointer serves both ----------- */

struct null_buffer {
    struct keel_buffer head;
    unsigned char
        *data; /* BOARD: the handle of its memory. Owned, unless head.parent or head.wrapped is set */
};

/* What a command does when its turn comes. */
struct null_work {
    unsigned char *target;       /* NULL for what moves nothing: launches, maps, marks */
    const unsigned char *source; /* NULL for a fill */
    uint64_t bytes;
    uint32_t pattern;
    uint32_t wait_count;
    struct {
        struct null_queue *queue; /* a reference is held on it */
        uint64_t number;
    } waits[KEEL_WAIT_MAX];
};

enum { EVENTS_READY = 64 };

struct null_event {
    struct keel_event head;
    struct null_event *next; /* in the queue's free list */
    uint64_t number;
};

struct null_queue {
    struct keel_queue head;
    struct keel_thread thread;
    struct keel_mutex lock; /* guards what follows */
    struct keel_cond moved; /* a command was put in, or is done, or the end has come */
    struct null_work ring[RING];
    uint64_t put, done; /* commands */
    struct null_event *free;
    uint32_t references; /* its owner, and the commands of others that wait for it */
    bool ending;
};

static struct null_buffer *null_buffer(struct keel_buffer *buffer)
{
    return (struct null_buffer *)buffer;
}

static struct null_queue *null_queue(struct keel_queue *queue)
{
    return (struct null_queue *)queue;
}

/* ---- what there is ------------------------------------------------------------------------------------ */

/* BOARD: ask its library; one candidate for each board, and a candidate with `passed_over` filled for each
 * that is there and cannot be used. Never fails. What is not known stays 0. */
static void null_discover(struct keel_candidate *out, uint32_t capacity, uint32_t *count)
{
    if (*count == capacity)
        return;
    out[(*count)++].info =
        (struct keel_device_info){.selector = "null",
                                  .name = "memory alone",
                                  .platform = "null",
                                  .version = "C11 recipe",
                                  .driver_version = KEEL_RELEASE,
                                  .vendor = "Keel",
                                  .identity = "null",
                                  .kind = KEEL_DEVICE_ACCELERATOR,
                                  .compute_units = 1,
                                  .base_align_bytes = KEEL_CACHE_LINE_BYTES,
                                  .memory_bytes = MEMORY_BYTES,
                                  .max_buffer_bytes = MEMORY_BYTES,
                                  .max_group_items = GROUP_ITEMS_MAX,
                                  .max_items = {GROUP_ITEMS_MAX, GROUP_ITEMS_MAX, GROUP_ITEMS_MAX},
                                  .float_width = 1,
                                  .code_forms = KEEL_CODE_SOURCE | KEEL_CODE_BINARY | KEEL_CODE_BUILTIN,
                                  .memory_banks = 1,
                                  .unified_memory = true};
}

/* ---- memory: new buffers are zero, slices are windows -------------------------------------------------- */

static enum keel_status null_buffer_create(struct keel_device *device,
                                           const struct keel_buffer_options *options,
                                           struct keel_buffer **out)
{
    (void)device;
    struct null_buffer *buffer = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *buffer, &buffer));
    enum keel_status status = keel_alloc_aligned(KEEL_PAGE_BYTES, options->bytes, &buffer->data); /* BOARD */
    if (status != KEEL_OK) {
        keel_free(buffer);
        return status;
    }
    *out = &buffer->head;
    return KEEL_OK;
}

/* Asked only where info.unified_memory is set. */
static enum keel_status null_buffer_wrap(struct keel_device *device, void *memory, uint64_t bytes,
                                         struct keel_buffer **out)
{
    (void)device, (void)bytes;
    struct null_buffer *buffer = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *buffer, &buffer));
    buffer->data = memory;
    *out = &buffer->head;
    return KEEL_OK;
}

static enum keel_status null_buffer_slice(struct keel_buffer *buffer, uint64_t offset_bytes, uint64_t bytes,
                                          struct keel_buffer **out)
{
    return null_buffer_wrap(buffer->device, null_buffer(buffer)->data + offset_bytes, bytes, out);
}

static void null_buffer_destroy(struct keel_buffer *buffer)
{
    if (buffer->parent == NULL && !buffer->wrapped)
        keel_free(null_buffer(buffer)->data); /* BOARD */
    keel_free(buffer);
}

/* ---- the queue's thread: BOARD: its command processor, and its interrupt that moves `done` ------------- */

/* Let go of a queue; the last one frees it. */
static void release(struct null_queue *queue)
{
    keel_mutex_lock(&queue->lock);
    bool last = --queue->references == 0;
    keel_mutex_unlock(&queue->lock);
    if (!last)
        return;
    while (queue->free != NULL) {
        struct null_event *event = queue->free;
        queue->free = event->next;
        keel_free(event);
    }
    keel_cond_fini(&queue->moved);
    keel_mutex_fini(&queue->lock);
    keel_free(queue);
}

/* Until so many commands of a queue are done: false when the deadline passed. */
static bool wait_until(struct null_queue *queue, uint64_t number, uint64_t deadline_ns)
{
    keel_mutex_lock(&queue->lock);
    while (queue->done < number && keel_cond_wait(&queue->moved, &queue->lock, deadline_ns)) {
    }
    bool reached = queue->done >= number;
    keel_mutex_unlock(&queue->lock);
    return reached;
}

static void work(struct null_work *job)
{
    for (uint32_t i = 0; i < job->wait_count; i++) {
        wait_until(job->waits[i].queue, job->waits[i].number, KEEL_NEVER);
        release(job->waits[i].queue);
    }
    if (job->target == NULL)
        return;
    if (job->source != NULL) {
        memmove(job->target, job->source, keel_size(job->bytes));
        return;
    }
    for (uint64_t i = 0; i < job->bytes; i += sizeof job->pattern)
        memcpy(job->target + i, &job->pattern, sizeof job->pattern);
}

/* BOARD: where a command fails, say so with keel_queue_lose, or keel_device_lose when all of it is gone,
 * before its end is told; from then on nothing more is enqueued on the queue. */
static void *take_turns(void *context)
{
    struct null_queue *queue = context;
    keel_mutex_lock(&queue->lock);
    while (!queue->ending || queue->done < queue->put) {
        if (queue->done == queue->put) {
            keel_cond_wait(&queue->moved, &queue->lock, KEEL_NEVER);
            continue;
        }
        struct null_work *job = &queue->ring[queue->done % RING];
        keel_mutex_unlock(&queue->lock);
        work(job);
        keel_mutex_lock(&queue->lock);
        queue->done++;
        keel_cond_broadcast(&queue->moved);
    }
    keel_mutex_unlock(&queue->lock);
    release(queue);
    return NULL;
}

/* The first events, so that no command makes one while fewer are alive. */
static enum keel_status make_events(struct null_queue *queue)
{
    for (uint32_t i = 0; i < EVENTS_READY; i++) {
        struct null_event *event;
        KEEL_TRY(keel_alloc(1, sizeof *event, &event));
        event->next = queue->free;
        queue->free = event;
    }
    return KEEL_OK;
}

static enum keel_status null_queue_create(struct keel_device *device, struct keel_queue **out)
{
    (void)device;
    struct null_queue *queue = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *queue, &queue));
    keel_mutex_init(&queue->lock);
    keel_cond_init(&queue->moved);
    queue->references = 2; /* the caller's, and the thread's */
    enum keel_status status = make_events(queue);
    if (status == KEEL_OK)
        status = keel_thread_create(&queue->thread, "null queue", take_turns, queue);
    if (status != KEEL_OK) {
        queue->references = 1;
        release(queue);
        return status;
    }
    *out = &queue->head;
    return KEEL_OK;
}

/* Waits for what runs, and leaves behind what does not end. */
static void null_queue_destroy(struct keel_queue *queue)
{
    struct null_queue *own = null_queue(queue);
    uint64_t began_ns = keel_now_ns();
    uint64_t limit_ns = keel_device_answers(queue->device) ? WAIT_LIMIT_NS : HUNG_LIMIT_NS;
    if (!wait_until(own, own->put, began_ns + limit_ns)) {
        keel_queue_leave_behind(queue, began_ns);
        return;
    }
    keel_mutex_lock(&own->lock);
    own->ending = true;
    keel_cond_broadcast(&own->moved);
    keel_mutex_unlock(&own->lock);
    keel_thread_join(&own->thread);
    keel_queue_ended(queue);
    release(own);
}

/* BOARD: ring its doorbell, unless every command does. */
static enum keel_status null_queue_flush(struct keel_queue *queue)
{
    (void)queue;
    return KEEL_OK;
}

/* ---- events: `sequence` of the head is what health calls the command, and is copied from the queue ----- */

/* Caller holds the queue's lock. */
static enum keel_status take_event(struct null_queue *queue, uint64_t number, struct null_event **out)
{
    struct null_event *event = queue->free;
    if (event != NULL)
        queue->free = event->next;
    else
        KEEL_TRY(keel_alloc(1, sizeof *event, &event));
    event->head.queue = &queue->head;
    atomic_store_explicit(&event->head.sequence,
                          atomic_load_explicit(&queue->head.sequence, memory_order_relaxed),
                          memory_order_relaxed);
    event->number = number;
    *out = event;
    return KEEL_OK;
}

static enum keel_status wait_for(struct keel_queue *queue, uint64_t number, uint64_t deadline_ns)
{
    if (wait_until(null_queue(queue), number, deadline_ns))
        return KEEL_OK;
    return keel_fail(KEEL_TIMEOUT, "%s: the command still runs", queue->device->info.selector);
}

static enum keel_status null_event_wait(struct keel_event *event, uint64_t deadline_ns)
{
    return wait_for(event->queue, ((struct null_event *)event)->number, deadline_ns);
}

static enum keel_status null_queue_finish(struct keel_queue *queue, uint64_t deadline_ns)
{
    return wait_for(queue, null_queue(queue)->put, deadline_ns);
}

static bool null_event_done(struct keel_event *event)
{
    return wait_until(null_queue(event->queue), ((struct null_event *)event)->number, 0);
}

static void null_event_destroy(struct keel_event *event)
{
    struct null_queue *queue = null_queue(event->queue);
    keel_mutex_lock(&queue->lock);
    ((struct null_event *)event)->next = queue->free;
    queue->free = (struct null_event *)event;
    keel_mutex_unlock(&queue->lock);
}

/* ---- commands: each puts one job into the ring; all was checked by device_queue.c ---------------------- */

/* What other queues' commands the job waits for; its own queue runs in order. */
static void keep_waits(const struct keel_device_command *command, struct null_work *job)
{
    for (uint32_t i = 0; i < command->wait_count; i++) {
        struct keel_event *event = command->waits[i];
        if (event->queue == command->queue)
            continue;
        struct null_queue *queue = null_queue(event->queue);
        keel_mutex_lock(&queue->lock);
        queue->references++;
        keel_mutex_unlock(&queue->lock);
        job->waits[job->wait_count].queue = queue;
        job->waits[job->wait_count++].number = ((struct null_event *)event)->number;
    }
}

/* Caller holds the lock. False when there is no place in time. */
static bool wait_for_place(struct null_queue *queue)
{
    uint64_t deadline_ns = keel_deadline_after_ns(WAIT_LIMIT_NS);
    while (queue->put - queue->done == RING && keel_cond_wait(&queue->moved, &queue->lock, deadline_ns)) {
    }
    return queue->put - queue->done < RING;
}

/* `job` comes without its waits. */
static enum keel_status put(const struct keel_device_command *command, struct null_work job)
{
    struct null_queue *queue = null_queue(command->queue);
    struct null_event *event = NULL;
    keep_waits(command, &job);
    keel_mutex_lock(&queue->lock);
    enum keel_status status = KEEL_OK;
    if (!wait_for_place(queue))
        status = keel_fail(KEEL_TIMEOUT, "%s: its ring of %d commands is full and does not move",
                           command->queue->device->info.selector, RING);
    if (status == KEEL_OK && command->out_event != NULL)
        status = take_event(queue, queue->put + 1, &event);
    if (status == KEEL_OK) {
        queue->ring[queue->put++ % RING] = job;
        keel_cond_broadcast(&queue->moved);
    }
    keel_mutex_unlock(&queue->lock);
    for (uint32_t i = 0; status != KEEL_OK && i < job.wait_count; i++)
        release(job.waits[i].queue);
    if (event != NULL)
        *command->out_event = &event->head;
    return status;
}

static unsigned char *place(struct keel_buffer *buffer, uint64_t offset_bytes)
{
    return null_buffer(buffer)->data + offset_bytes;
}

/* BOARD: without unified memory a map for reading is a copy to memory of ours, and an unmap after writing one
 * back; a launch copies the arguments, which are the caller's, and starts the kernel over the range. */
static enum keel_status null_enqueue(const struct keel_device_command *command)
{
    struct null_work job = {.bytes = command->bytes, .pattern = command->pattern};
    switch (command->kind) {
    case KEEL_COMMAND_WRITE:
        job.target = place(command->buffer, command->offset_bytes);
        job.source = command->data;
        break;
    case KEEL_COMMAND_READ:
        job.target = command->memory;
        job.source = place(command->buffer, command->offset_bytes);
        break;
    case KEEL_COMMAND_COPY:
        job.target = place(command->buffer, command->offset_bytes);
        job.source = place(command->source, command->source_offset_bytes);
        break;
    case KEEL_COMMAND_FILL:
        job.target = place(command->buffer, command->offset_bytes);
        break;
    case KEEL_COMMAND_MAP:
        *command->out_pointer = place(command->buffer, command->offset_bytes);
        break;
    case KEEL_COMMAND_UNMAP:
    case KEEL_COMMAND_LAUNCH:
    case KEEL_COMMAND_MARK:
        break;
    }
    return put(command, job);
}

/* ---- code: BOARD: from `code` where that is given, in a form that info.code_forms names ---------------- */

static enum keel_status null_program_create(struct keel_device *device, const struct keel_module *module,
                                            const char *options, const struct keel_code *code,
                                            struct keel_program **out)
{
    (void)device, (void)module, (void)options, (void)code;
    return keel_alloc(1, sizeof **out, out);
}

static void null_program_destroy(struct keel_program *program)
{
    keel_free(program);
}

/* BOARD: find it by entry->name; info is what it knows of the kernel. */
static enum keel_status null_kernel_create(struct keel_program *program,
                                           const struct keel_module_kernel *entry, struct keel_kernel **out)
{
    (void)program, (void)entry;
    struct keel_kernel *kernel = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *kernel, &kernel));
    kernel->info.max_group_items = GROUP_ITEMS_MAX;
    *out = kernel;
    return KEEL_OK;
}

static void null_kernel_destroy(struct keel_kernel *kernel)
{
    keel_free(kernel);
}

/* ---- the tables --------------------------------------------------------------------------------------- */

static void null_close(struct keel_device *device)
{
    keel_device_free(device); /* always the last */
}

/* What is left out is NULL: no binaries, no linking; a list's commands are enqueued; no command ever
 * fails (BOARD: event_failed); nobody tells when one began. */
static const struct keel_device_ops null_ops = {.close = null_close,
                                                .buffer_create = null_buffer_create,
                                                .buffer_wrap = null_buffer_wrap,
                                                .buffer_slice = null_buffer_slice,
                                                .buffer_destroy = null_buffer_destroy,
                                                .queue_create = null_queue_create,
                                                .queue_destroy = null_queue_destroy,
                                                .queue_flush = null_queue_flush,
                                                .queue_finish = null_queue_finish,
                                                .enqueue = null_enqueue,
                                                .program_create = null_program_create,
                                                .program_destroy = null_program_destroy,
                                                .kernel_create = null_kernel_create,
                                                .kernel_destroy = null_kernel_destroy,
                                                .event_wait = null_event_wait,
                                                .event_done = null_event_done,
                                                .event_destroy = null_event_destroy};

/* BOARD: candidate->native holds what discovery put there. */
static enum keel_status null_open(const struct keel_candidate *candidate, struct keel_device **out)
{
    struct keel_device *device = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *device, &device));
    device->ops = &null_ops;
    device->info = candidate->info;
    *out = device;
    return KEEL_OK;
}

const struct keel_backend keel_null_backend = {.discover = null_discover, .open = null_open};
