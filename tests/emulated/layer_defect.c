/* layer_defect.c - what a broken driver does wrong to one command: it ignores its waits, overtakes, reports
 * it done too early, does a part of it, does it elsewhere, twice, or beyond its end.
 *
 * A fault's filters say which commands it concerns (layer_filters_match), layer_alter changes the command
 * before the driver gets it, layer_altered_end does what comes behind it. */
#include "layer.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CACHED_MAX = 64, CACHED_BYTES = 1 << 20, SPILL_MAX = 4096 };

static uint64_t started_ns; /* the first command of the process; under the layer's lock */

uint64_t layer_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

void layer_leak(uint64_t bytes)
{
    static uint8_t *kept; /* a chain of all that was lost; under the layer's lock */
    uint8_t *lost = bytes >= sizeof kept ? malloc(bytes) : NULL;
    if (lost == NULL)
        return;
    memset(lost, 0x5a, bytes); /* it is there once it is touched */
    layer_lock();
    memcpy(lost, &kept, sizeof kept);
    kept = lost;
    layer_unlock();
}

/* ---- filters ---- */

static bool is_set(const struct layer_fault *fault, enum layer_key key)
{
    return fault->value[key] != LAYER_UNSET;
}

static uint64_t groups_of(const struct layer_command *command, uint32_t dimension)
{
    size_t local = command->has_local ? command->local[dimension] : 1;
    return dimension < command->dimensions && local > 0 ? command->global[dimension] / local : 1;
}

static uint64_t all_groups(const struct layer_command *command)
{
    return groups_of(command, 0) * groups_of(command, 1) * groups_of(command, 2);
}

static uint64_t items_of(const struct layer_command *command)
{
    uint64_t items = 1;
    for (uint32_t i = 0; command->has_local && i < command->dimensions; i++)
        items *= command->local[i];
    return items;
}

static uint64_t moved_bytes(const struct layer_command *command)
{
    const struct layer_object *buffer =
        command->call == CALL_UNMAP ? layer_find(KIND_BUFFER, command->mems[0]) : NULL;
    return buffer != NULL ? buffer->bytes : command->bytes;
}

struct other_work {
    const struct layer_object *own;
    bool found;
};

static void look_busy(struct layer_object *queue, void *context)
{
    struct other_work *work = context;
    work->found |= queue != work->own && queue->device == work->own->device && queue->pending > 0;
}

static bool queue_matches(const struct layer_fault *fault, const struct layer_command *command)
{
    const struct layer_object *queue = command->queue != NULL ? layer_find(KIND_QUEUE, command->queue) : NULL;
    struct other_work work = {.own = queue};
    if (queue == NULL)
        return !is_set(fault, KEY_QUEUE) && !is_set(fault, KEY_DEPTH) && !is_set(fault, KEY_BUSY);
    if (is_set(fault, KEY_QUEUE) && queue->number < fault->value[KEY_QUEUE])
        return false;
    if (is_set(fault, KEY_DEPTH) && queue->pending <= fault->value[KEY_DEPTH])
        return false;
    if (is_set(fault, KEY_BUSY))
        layer_each(KIND_QUEUE, look_busy, &work);
    return !is_set(fault, KEY_BUSY) || work.found;
}

static bool waits_for_other_queue(const struct layer_command *command)
{
    for (cl_uint i = 0; i < command->wait_count; i++) {
        cl_command_queue queue = NULL;
        layer_next->clGetEventInfo(command->waits[i], CL_EVENT_COMMAND_QUEUE, sizeof(cl_command_queue),
                                   &queue, NULL);
        if (queue != NULL && queue != command->queue)
            return true;
    }
    return false;
}

static bool time_matches(const struct layer_fault *fault, const struct layer_command *command)
{
    uint64_t now = layer_now_ns();
    if (started_ns == 0 && command != NULL && command->queue != NULL)
        started_ns = now;
    if (is_set(fault, KEY_AFTER) && (started_ns == 0 || now - started_ns < fault->value[KEY_AFTER] * 1000000))
        return false;
    if (!is_set(fault, KEY_IDLE))
        return true;
    const struct layer_object *buffer =
        command != NULL && command->mems[0] != NULL ? layer_find(KIND_BUFFER, command->mems[0]) : NULL;
    return buffer != NULL && buffer->touched_ms > 0 &&
           now / 1000000 - buffer->touched_ms >= fault->value[KEY_IDLE];
}

static void count_buffer(struct layer_object *buffer, void *context)
{
    *(uint64_t *)context += buffer->parent == NULL;
}

static bool is_over(const struct layer_fault *fault, enum layer_key key, uint64_t value)
{
    return !is_set(fault, key) || value > fault->value[key];
}

static bool shape_matches(const struct layer_fault *fault, const struct layer_command *command)
{
    const uint64_t *value = fault->value;
    if (is_set(fault, KEY_RAGGED) && command->bytes % value[KEY_RAGGED] == 0)
        return false;
    if (is_set(fault, KEY_UNALIGNED) && command->offset % value[KEY_UNALIGNED] == 0 &&
        command->from % value[KEY_UNALIGNED] == 0)
        return false;
    if (is_set(fault, KEY_HOST) && (uintptr_t)command->host % value[KEY_HOST] == 0)
        return false;
    return is_over(fault, KEY_OVER, moved_bytes(command)) &&
           is_over(fault, KEY_GROUPS, all_groups(command)) &&
           is_over(fault, KEY_ROWS, groups_of(command, 1)) &&
           is_over(fault, KEY_SLABS, groups_of(command, 2)) && is_over(fault, KEY_ITEMS, items_of(command));
}

bool layer_filters_match(const struct layer_fault *fault, const struct layer_command *command)
{
    uint64_t live = 0;
    if (is_set(fault, KEY_LIVE))
        layer_each(KIND_BUFFER, count_buffer, &live);
    if (!is_over(fault, KEY_LIVE, live) || !time_matches(fault, command))
        return false;
    if (command == NULL)
        return true;
    return shape_matches(fault, command) && queue_matches(fault, command) &&
           (!is_set(fault, KEY_FOREIGN) || waits_for_other_queue(command));
}

/* ---- commands that are changed ---- */

static void limit_groups(struct layer_command *command, uint64_t limit)
{
    for (uint32_t i = command->dimensions; i-- > 0 && all_groups(command) > limit;) {
        uint64_t others = all_groups(command) / groups_of(command, i), kept = limit / others;
        command->global[i] = (kept > 0 ? kept : 1) * (command->has_local ? command->local[i] : 1);
    }
}

static void limit_dimension(struct layer_command *command, uint32_t i, uint64_t limit)
{
    if (groups_of(command, i) > limit)
        command->global[i] = limit * (command->has_local ? command->local[i] : 1);
}

/* True when no byte is left. */
static bool shorten(const struct layer_fault *fault, struct layer_command *command)
{
    const uint64_t *value = fault->value;
    if (command->call == CALL_LAUNCH) {
        if (is_set(fault, KEY_GROUPS))
            limit_groups(command, value[KEY_GROUPS]);
        if (is_set(fault, KEY_ROWS))
            limit_dimension(command, 1, value[KEY_ROWS]);
        if (is_set(fault, KEY_SLABS))
            limit_dimension(command, 2, value[KEY_SLABS]);
        return false;
    }
    if (is_set(fault, KEY_KEEP) && command->bytes > value[KEY_KEEP])
        command->bytes = value[KEY_KEEP];
    if (is_set(fault, KEY_LESS))
        command->bytes -= command->bytes > value[KEY_LESS] ? value[KEY_LESS] : command->bytes;
    if (is_set(fault, KEY_WRAP))
        command->bytes %= value[KEY_WRAP];
    if (is_set(fault, KEY_ALIGN))
        command->bytes -= command->bytes % value[KEY_ALIGN];
    return command->bytes == 0;
}

static void shift(const struct layer_fault *fault, struct layer_command *command)
{
    size_t *offsets[] = {&command->offset, &command->from};
    for (int i = 0; i < 2; i++) {
        if (is_set(fault, KEY_WRAP))
            *offsets[i] %= fault->value[KEY_WRAP];
        if (is_set(fault, KEY_ALIGN))
            *offsets[i] -= *offsets[i] % fault->value[KEY_ALIGN];
    }
}

bool layer_alter(const struct layer_fault *fault, struct layer_command *command)
{
    switch (fault->head.kind) {
    case ACTION_UNORDERED: {
        uint64_t keep = is_set(fault, KEY_KEEP) ? fault->value[KEY_KEEP] : 0;
        command->wait_count = keep < command->wait_count ? (cl_uint)keep : command->wait_count;
        return false;
    }
    case ACTION_OVERTAKE:
        command->overtakes = true;
        return false;
    case ACTION_EARLY:
        command->early = command->event;
        command->event = NULL;
        return false;
    case ACTION_SHORT:
        return shorten(fault, command);
    case ACTION_SHIFT:
        shift(fault, command);
        return false;
    case ACTION_SPILL:
        command->spill = fault;
        return false;
    case ACTION_REGROUP:
        if (command->has_local && command->local[0] % 2 == 0)
            command->local[0] /= 2;
        return false;
    case ACTION_TWICE:
        command->twice = true;
        return false;
    case ACTION_STALE:
        command->stale = fault;
        return false;
    default:
        return false;
    }
}

static cl_context context_of(cl_command_queue queue)
{
    cl_context context = NULL;
    layer_next->clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof(cl_context), &context, NULL);
    return context;
}

/* The queue that commands of `queue` take when they overtake. */
static cl_command_queue side_of(cl_command_queue queue)
{
    layer_lock();
    struct layer_object *object = layer_find(KIND_QUEUE, queue);
    cl_command_queue side = object != NULL ? object->side : NULL;
    layer_unlock();
    cl_device_id device = NULL;
    cl_command_queue_properties properties = 0;
    cl_int error = CL_SUCCESS;
    if (object == NULL || side != NULL)
        return side != NULL ? side : queue;
    layer_next->clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof(cl_device_id), &device, NULL);
    layer_next->clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties, NULL);
    side = layer_next->clCreateCommandQueue(context_of(queue), device, properties, &error);
    layer_lock();
    object = layer_find(KIND_QUEUE, queue);
    if (side != NULL && object != NULL)
        object->side = side;
    layer_unlock();
    return side != NULL ? side : queue;
}

static void count_pending(cl_command_queue queue, uint64_t more)
{
    layer_lock();
    struct layer_object *object = layer_find(KIND_QUEUE, queue);
    if (object != NULL)
        object->pending += more;
    layer_unlock();
}

static bool is_counted(const struct layer_command *command)
{
    return layer_settings.plan.counts_commands && command->call != CALL_FLUSH;
}

void layer_altered_begin(struct layer_command *command)
{
    layer_lock();
    for (uint32_t i = 0; i < command->mem_count; i++) {
        struct layer_object *buffer =
            command->mems[i] != NULL ? layer_find(KIND_BUFFER, command->mems[i]) : NULL;
        if (buffer != NULL)
            buffer->touched_ms = layer_now_ns() / 1000000;
    }
    layer_unlock();
    if (command->overtakes)
        command->queue = side_of(command->home);
    if (is_counted(command)) {
        count_pending(command->home, 1);
        if (command->event == NULL)
            command->event = &command->own_event;
    }
    if (command->percent > 0) {
        layer_next->clFinish(command->queue);
        command->begun_ns = layer_now_ns();
    }
}

/* ---- behind the command ---- */

struct counted {
    cl_command_queue queue;
    cl_event own;
};

static void CL_CALLBACK uncount(cl_event event, cl_int state, void *context)
{
    struct counted *counted = context;
    (void)event, (void)state;
    count_pending(counted->queue, (uint64_t)-1);
    if (counted->own != NULL)
        layer_next->clReleaseEvent(counted->own);
    free(counted);
}

static void count_until_done(struct layer_command *command, cl_int error)
{
    struct counted *counted = error == CL_SUCCESS ? malloc(sizeof *counted) : NULL;
    if (counted == NULL) {
        count_pending(command->home, (uint64_t)-1);
        return;
    }
    *counted = (struct counted){command->home, command->own_event};
    layer_next->clSetEventCallback(*command->event, CL_COMPLETE, uncount, counted);
}

static void spill(const struct layer_command *command)
{
    static const uint8_t zeros[SPILL_MAX];
    uint64_t align = command->spill->value[KEY_ALIGN], end = command->offset + command->bytes;
    size_t whole = 0;
    layer_next->clGetMemObjectInfo(command->mems[0], CL_MEM_SIZE, sizeof whole, &whole, NULL);
    uint64_t stop = (end + align - 1) / align * align;
    stop = stop < whole ? stop : whole;
    if (stop <= end || stop - end > SPILL_MAX)
        return;
    layer_next->clFinish(command->queue);
    if (command->call == CALL_READ)
        memset((uint8_t *)command->host + command->bytes, 0, stop - end);
    else
        layer_next->clEnqueueWriteBuffer(command->queue, command->target, CL_TRUE, end, stop - end, zeros, 0,
                                         NULL, NULL);
}

/* Where a driver gives a copy, an unmap that is not done loses what the host wrote. */
static struct {
    void *at, *before;
    size_t bytes;
} mapped[CACHED_MAX];

void layer_mapped(cl_command_queue queue, void *at, size_t bytes)
{
    if (!layer_settings.plan.drops_unmaps || at == NULL)
        return;
    layer_next->clFinish(queue);
    layer_lock();
    uint32_t i = 0;
    while (i < CACHED_MAX && mapped[i].at != NULL)
        i++;
    if (i < CACHED_MAX && (mapped[i].before = malloc(bytes)) != NULL) {
        memcpy(mapped[i].before, at, bytes);
        mapped[i].at = at;
        mapped[i].bytes = bytes;
    }
    layer_unlock();
}

void layer_unmapped(void *at, bool lost)
{
    layer_lock();
    for (uint32_t i = 0; i < CACHED_MAX; i++) {
        if (mapped[i].at != at || at == NULL)
            continue;
        if (lost)
            memcpy(at, mapped[i].before, mapped[i].bytes);
        free(mapped[i].before);
        mapped[i].at = NULL;
        break;
    }
    layer_unlock();
}

/* A cache of reads that nothing invalidates. */
static void give_stale(const struct layer_command *command)
{
    static struct {
        cl_mem mem;
        size_t offset, bytes;
        void *data;
    } cached[CACHED_MAX];
    static uint32_t count;
    if (command->host == NULL || command->bytes > CACHED_BYTES)
        return;
    layer_next->clFinish(command->queue);
    layer_lock();
    uint32_t i = 0;
    while (i < count && (cached[i].mem != command->mems[0] || cached[i].offset != command->offset ||
                         cached[i].bytes != command->bytes))
        i++;
    if (i < count) {
        memcpy(command->host, cached[i].data, command->bytes);
    } else if (count < CACHED_MAX && (cached[i].data = malloc(command->bytes)) != NULL) {
        memcpy(cached[i].data, command->host, command->bytes);
        cached[i].mem = command->mems[0];
        cached[i].offset = command->offset;
        cached[i].bytes = command->bytes;
        count++;
    }
    layer_unlock();
}

void layer_altered_end(struct layer_command *command, cl_int error)
{
    if (is_counted(command))
        count_until_done(command, error);
    if (error != CL_SUCCESS)
        return;
    if (command->early != NULL) {
        cl_int made = CL_SUCCESS;
        *command->early = layer_next->clCreateUserEvent(context_of(command->home), &made);
        layer_next->clSetUserEventStatus(*command->early, CL_COMPLETE);
        layer_next->clFlush(command->queue);
    }
    if (command->percent > 0) {
        layer_next->clFinish(command->queue);
        layer_sleep_ns((layer_now_ns() - command->begun_ns) * command->percent / 100);
    }
    if (command->overtakes && command->queue != command->home) {
        cl_event done = NULL; /* what comes behind it in its own queue waits for it */
        layer_next->clEnqueueMarkerWithWaitList(command->queue, 0, NULL, &done);
        layer_next->clFlush(command->queue);
        layer_next->clEnqueueBarrierWithWaitList(command->home, 1, &done, NULL);
        layer_next->clReleaseEvent(done);
    }
    if (command->spill != NULL && (command->target != NULL || command->call == CALL_READ))
        spill(command);
    if (command->stale != NULL && command->call == CALL_READ)
        give_stale(command);
}
