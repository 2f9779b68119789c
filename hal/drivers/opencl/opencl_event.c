/* opencl_event.c - OpenCL events: a pool per queue, and waiting with a deadline.
 *
 * clWaitForEvents knows no deadline, so a wait that finds its event incomplete registers a callback,
 * once, and sleeps on a condition. The driver may call back at any later time, on its own thread, also
 * after the user has destroyed the event: so the object is counted, one reference for the user and one
 * for the callback that is owed, and goes back to its queue's pool with the last.
 *
 * A driver may call back late, or never: so who waits also looks, each time after a share of the time that
 * the wait has lasted. Where looks keep finding what no callback has told, no callback is asked for any more;
 * where callbacks keep coming in time, looks are rare.
 *
 * Lock order: event.lock, then nothing; pool.lock, then nothing. No driver call is made under a lock. */
#include "opencl_backend.h"
#include <keel/clock.h>
#include <keel/memory.h>

struct opencl_event {
    struct keel_event head;
    struct opencl_event *next; /* in the pool's list */
    cl_event native;           /* owned while taken */
    atomic_bool flushed;       /* its queue was flushed since it was enqueued */
    struct keel_mutex lock;    /* guards what follows */
    struct keel_cond fired_cond;
    uint32_t references;
    bool armed; /* a callback is registered */
    bool fired; /* the callback came, with `result` */
    cl_int result;
};

bool keel_opencl_pool_fini(struct opencl_pool *pool, uint64_t deadline_ns)
{
    keel_mutex_lock(&pool->lock);
    while (pool->away > 0 && keel_cond_wait(&pool->home, &pool->lock, deadline_ns)) {
    }
    bool all_home = pool->away == 0;
    keel_mutex_unlock(&pool->lock);
    if (!all_home)
        return false;
    while (pool->free != NULL) {
        struct opencl_event *event = pool->free;
        pool->free = event->next;
        keel_cond_fini(&event->fired_cond);
        keel_mutex_fini(&event->lock);
        keel_free(event);
    }
    keel_cond_fini(&pool->home);
    keel_mutex_fini(&pool->lock);
    return true;
}

static enum keel_status make(struct opencl_queue *queue, struct opencl_event **out)
{
    struct opencl_event *event = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *event, &event));
    event->head.queue = &queue->head;
    keel_mutex_init(&event->lock);
    keel_cond_init(&event->fired_cond);
    queue->pool.made++;
    *out = event;
    return KEEL_OK;
}

enum keel_status keel_opencl_pool_init(struct opencl_queue *queue)
{
    struct opencl_pool *pool = &queue->pool;
    keel_mutex_init(&pool->lock);
    keel_cond_init(&pool->home);
    while (pool->made < OPENCL_EVENTS_READY) {
        struct opencl_event *event;
        enum keel_status status = make(queue, &event);
        if (status != KEEL_OK) {
            (void)keel_opencl_pool_fini(pool, 0);
            return status;
        }
        event->next = pool->free;
        pool->free = event;
    }
    return KEEL_OK;
}

enum keel_status keel_opencl_event_take(struct opencl_queue *queue, struct opencl_event **out)
{
    struct opencl_pool *pool = &queue->pool;
    keel_mutex_lock(&pool->lock);
    struct opencl_event *event = pool->free;
    enum keel_status status = KEEL_OK;
    if (event != NULL)
        pool->free = event->next;
    else if (pool->made == OPENCL_EVENTS_MAX)
        status = keel_fail(KEEL_LIMIT, "a queue with %d events alive; destroy events that are done",
                           OPENCL_EVENTS_MAX);
    else
        status = make(queue, &event);
    if (status == KEEL_OK) {
        pool->away++;
        *out = event;
    }
    keel_mutex_unlock(&pool->lock);
    return status;
}

void keel_opencl_event_put(struct opencl_event *event)
{
    struct opencl_pool *pool = &((struct opencl_queue *)event->head.queue)->pool;
    keel_mutex_lock(&pool->lock);
    event->next = pool->free;
    pool->free = event;
    if (--pool->away == 0)
        keel_cond_broadcast(&pool->home);
    keel_mutex_unlock(&pool->lock);
}

struct keel_event *keel_opencl_event_fill(struct opencl_event *event, cl_event native)
{
    event->native = native;
    event->references = 1;
    event->armed = event->fired = false;
    event->result = CL_COMPLETE;
    atomic_store_explicit(&event->head.sequence,
                          atomic_load_explicit(&event->head.queue->sequence, memory_order_relaxed),
                          memory_order_relaxed);
    atomic_store_explicit(&event->flushed, false, memory_order_relaxed);
    return &event->head;
}

/* Let go of one reference; the last one sends the object home. */
static void release(struct opencl_event *event)
{
    keel_mutex_lock(&event->lock);
    bool last = --event->references == 0;
    keel_mutex_unlock(&event->lock);
    if (last)
        keel_opencl_event_put(event);
}

static void CL_CALLBACK on_complete(cl_event native, cl_int result, void *context)
{
    (void)native;
    struct opencl_event *event = context;
    keel_mutex_lock(&event->lock);
    event->fired = true;
    event->result = result;
    keel_cond_broadcast(&event->fired_cond);
    keel_mutex_unlock(&event->lock);
    struct keel_queue *queue = event->head.queue;
    if (result == CL_COMPLETE && atomic_load_explicit(&queue->device->watch.doubted, memory_order_relaxed))
        keel_queue_progress(queue, atomic_load_explicit(&event->head.sequence, memory_order_relaxed));
    release(event);
}

/* A driver need not start what was never flushed. */
static void flush_once(struct opencl_event *event)
{
    if (atomic_load_explicit(&event->flushed, memory_order_relaxed))
        return;
    clFlush(((struct opencl_queue *)event->head.queue)->native);
    atomic_store_explicit(&event->flushed, true, memory_order_relaxed);
}

cl_event keel_opencl_event_native(struct keel_event *event, const struct keel_queue *queue)
{
    struct opencl_event *own = (struct opencl_event *)event;
    if (event->queue != queue)
        flush_once(own);
    return own->native;
}

/* CL_COMPLETE, more while it runs, less when it failed; or when the driver does not tell: then it may run,
 * and that its memory must be kept, a lost device says. */
static cl_int state_of(const struct opencl_event *event)
{
    cl_int state = CL_COMPLETE;
    cl_int error =
        clGetEventInfo(event->native, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
    if (error == CL_SUCCESS)
        return state;
    (void)keel_device_lose(event->head.queue, "clGetEventInfo", error);
    return error;
}

/* Register the callback, unless that has been done. */
static void arm(struct opencl_event *event)
{
    keel_mutex_lock(&event->lock);
    bool first = !event->armed;
    event->armed = true;
    event->references += first;
    keel_mutex_unlock(&event->lock);
    if (!first)
        return;
    if (clSetEventCallback(event->native, CL_COMPLETE, on_complete, event) != CL_SUCCESS)
        release(event); /* none is owed; that says nothing of the command, and who waits looks */
}

/* The standard's word for a command whose wait list failed, and PoCL 3.1's. */
static bool says_wait_failed(cl_int state)
{
    return state == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST || state == -1;
}

/* Sleep until the driver calls back: its result, or more than CL_COMPLETE at the deadline. */
static cl_int sleep_until_fired(struct opencl_event *event, uint64_t deadline_ns)
{
    keel_mutex_lock(&event->lock);
    while (!event->fired && keel_cond_wait(&event->fired_cond, &event->lock, deadline_ns)) {
    }
    cl_int state = event->fired ? event->result : CL_RUNNING;
    keel_mutex_unlock(&event->lock);
    return state;
}

/* When to look: first after FIRST_LOOK_NS, then after a LOOK_SHARE-th of the time waited so far, so that a
 * wait is that much too long at most and looks grow with its logarithm. NVIDIA's driver calls back up to 5 ms
 * late, from a thread that spins until then. PoCL calls back at once, and each look takes a processor from
 * its kernels: 20% of a millisecond's. Where callbacks are known to be prompt looks are rare. */
enum { FIRST_LOOK_NS = 20000, RARE_LOOK_NS = 20000000, LOOK_SHARE = 16 };
/* A callback that comes so long after a look has found the event done is late; so many in a row are believed.
 */
enum { PROMPT_NS = 1000000, BELIEVED = 8 };

/* Of a wait that the driver ended in time, or a look. */
static void note_callback(atomic_int *prompt, bool in_time)
{
    const int now = atomic_load_explicit(prompt, memory_order_relaxed);
    const int next = in_time ? (now > 0 ? now : 0) + 1 : (now < 0 ? now : 0) - 1;
    if (next >= -BELIEVED && next <= BELIEVED)
        atomic_store_explicit(prompt, next, memory_order_relaxed);
}

/* CL_COMPLETE or less, or more at the deadline. */
static cl_int sleep_until_done(struct opencl_event *event, uint64_t deadline_ns)
{
    atomic_int *prompt = &((struct opencl_device *)event->head.queue->device)->prompt_callbacks;
    const int known = atomic_load_explicit(prompt, memory_order_relaxed);
    const uint64_t first_ns = known == BELIEVED ? RARE_LOOK_NS : FIRST_LOOK_NS;
    const bool asks = known > -BELIEVED;
    if (asks)
        arm(event);
    const uint64_t began_ns = keel_now_ns();
    for (uint64_t now_ns = began_ns;; now_ns = keel_now_ns()) {
        const uint64_t share_ns = (now_ns - began_ns) / LOOK_SHARE,
                       look_ns = now_ns + (share_ns > first_ns ? share_ns : first_ns);
        cl_int state = sleep_until_fired(event, look_ns < deadline_ns ? look_ns : deadline_ns);
        if (state <= CL_COMPLETE) {
            note_callback(prompt, true);
            return state;
        }
        state = state_of(event);
        if (state <= CL_COMPLETE) {
            if (asks)
                note_callback(prompt,
                              sleep_until_fired(event, keel_deadline_after_ns(PROMPT_NS)) <= CL_COMPLETE);
            return state;
        }
        if (keel_remaining_ns(deadline_ns) == 0) {
            arm(event); /* that it comes back after all is told by nobody else */
            return state;
        }
    }
}

enum keel_status keel_opencl_event_wait(struct keel_event *event, uint64_t deadline_ns)
{
    struct opencl_event *own = (struct opencl_event *)event;
    cl_int state = state_of(own);
    if (state > CL_COMPLETE) {
        flush_once(own);
        state = state_of(own); /* Oclgrind runs it in the flush, and then never calls back */
    }
    if (state > CL_COMPLETE && keel_remaining_ns(deadline_ns) > 0)
        state = sleep_until_done(own, deadline_ns);
    if (state > CL_COMPLETE)
        return keel_fail(KEEL_TIMEOUT, "%s: the command still runs", event->queue->device->info.selector);
    if (state < CL_COMPLETE)
        return keel_event_lose(event, state, says_wait_failed(state));
    /* Complete: returns at once; by the standard this, not the query, makes results visible. */
    cl_int error = clWaitForEvents(1, &own->native);
    return error == CL_SUCCESS ? KEEL_OK : keel_event_lose(event, error, false);
}

bool keel_opencl_event_done(struct keel_event *event)
{
    struct opencl_event *own = (struct opencl_event *)event;
    if (state_of(own) <= CL_COMPLETE)
        return true;
    flush_once(own);
    return false;
}

bool keel_opencl_event_times(struct keel_event *event, uint64_t *out_began_ns, uint64_t *out_ended_ns)
{
    static const cl_profiling_info asked[] = {CL_PROFILING_COMMAND_QUEUED, CL_PROFILING_COMMAND_START,
                                              CL_PROFILING_COMMAND_END};
    cl_ulong times[3];
    for (int i = 0; i < 3; i++)
        if (clGetEventProfilingInfo(((struct opencl_event *)event)->native, asked[i], sizeof times[i],
                                    &times[i], NULL) != CL_SUCCESS)
            return false;
    if (times[1] < times[0] || times[2] < times[1])
        return false;
    *out_began_ns = times[1] - times[0];
    *out_ended_ns = times[2] - times[0];
    return true;
}

bool keel_opencl_event_failed(struct keel_event *event)
{
    return state_of((struct opencl_event *)event) < CL_COMPLETE;
}

void keel_opencl_event_destroy(struct keel_event *event)
{
    struct opencl_event *own = (struct opencl_event *)event;
    clReleaseEvent(own->native);
    release(own);
}
