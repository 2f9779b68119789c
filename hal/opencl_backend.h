/* opencl_backend.h - objects shared by the opencl_*.c files; private to hal.
 *
 * opencl_discover.c finds devices, opencl_device.c owns devices, buffers and programs, opencl_queue.c
 * commands, opencl_event.c events and waiting. API level 1.2, so that any conforming board serves. */
#ifndef KEEL_OPENCL_BACKEND_H
#define KEEL_OPENCL_BACKEND_H

#define CL_TARGET_OPENCL_VERSION 120
#include "device_backend.h"
#include <CL/cl.h>
#include <keel/thread.h>

enum { OPENCL_EVENTS_MAX = 65536 /* alive on one queue */ };

struct opencl_device {
    struct keel_device head;
    cl_device_id id;
    cl_context context;
    struct keel_mutex zero_lock;   /* PoCL 3.1 deadlocks when two threads share a queue */
    struct keel_queue *zero_queue; /* zeroes new buffers; guarded by zero_lock */
};

struct opencl_buffer {
    struct keel_buffer head;
    cl_mem mem;
};

struct opencl_event;

/* The queue's store of event objects: none is freed before the queue, so steady state allocates none. */
struct opencl_pool {
    struct keel_mutex lock; /* a leaf: nothing is locked under it */
    struct keel_cond home;  /* signalled when away becomes 0 */
    struct opencl_event *free;
    uint32_t made, away; /* away: held by a user or by a callback that the driver still owes */
};

struct opencl_queue {
    struct keel_queue head;
    cl_command_queue native;
    struct opencl_pool pool;
};

struct opencl_program {
    struct keel_program head;
    cl_program native;
};

/* What was last set, so that only changed arguments are set again: setting is most of a launch's cost.
 * Buffers are compared by id, since an address may come back with another buffer. */
struct opencl_kernel {
    struct keel_kernel head;
    cl_kernel native;
    uint32_t arg_count;
    uint64_t set[KEEL_ARG_MAX]; /* buffer id, or the scalar's bits */
    uint8_t kind[KEEL_ARG_MAX]; /* 1 + enum keel_arg_kind; 0 when never set */
};

/* Describe a failed call of the OpenCL API and choose the status. */
enum keel_status keel_opencl_fail(cl_int error, const char *device, const char *what);
/* The same for a command: loses the queue when the device is gone. */
enum keel_status keel_opencl_command_fail(struct keel_queue *queue, cl_int error, const char *what);

/* Queues (opencl_queue.c), filled into the table by opencl_device.c. */
enum keel_status keel_opencl_queue_create(struct keel_device *device, struct keel_queue **out);
void keel_opencl_queue_destroy(struct keel_queue *queue);
enum keel_status keel_opencl_queue_flush(struct keel_queue *queue);
enum keel_status keel_opencl_queue_finish(struct keel_queue *queue, uint64_t deadline_ns);
enum keel_status keel_opencl_queue_mark(struct keel_queue *queue, struct keel_event **out_event);
enum keel_status keel_opencl_write(const struct keel_command *command, struct keel_buffer *buffer,
                                   uint64_t offset_bytes, const void *data, uint64_t bytes);
enum keel_status keel_opencl_read(const struct keel_command *command, struct keel_buffer *buffer,
                                  uint64_t offset_bytes, void *data, uint64_t bytes);
enum keel_status keel_opencl_copy(const struct keel_command *command, struct keel_buffer *source,
                                  uint64_t source_offset_bytes, struct keel_buffer *target,
                                  uint64_t target_offset_bytes, uint64_t bytes);
enum keel_status keel_opencl_fill(const struct keel_command *command, struct keel_buffer *buffer,
                                  uint64_t offset_bytes, uint64_t bytes, uint32_t pattern);
enum keel_status keel_opencl_map(const struct keel_command *command, struct keel_buffer *buffer,
                                 uint64_t offset_bytes, uint64_t bytes, enum keel_map map,
                                 void **out_pointer);
enum keel_status keel_opencl_unmap(const struct keel_command *command, struct keel_buffer *buffer,
                                   void *pointer);
enum keel_status keel_opencl_launch(const struct keel_command *command, struct keel_kernel *kernel,
                                    const struct keel_arg *args, uint32_t arg_count,
                                    const struct keel_range *range);

/* Events (opencl_event.c). */
void keel_opencl_pool_init(struct opencl_pool *pool);
/* False when events are still away at the deadline; then nothing is freed. */
bool keel_opencl_pool_fini(struct opencl_pool *pool, uint64_t deadline_ns);
/* An event object without a native event yet; give back unused with keel_opencl_event_put. */
enum keel_status keel_opencl_event_take(struct opencl_queue *queue, struct opencl_event **out);
void keel_opencl_event_put(struct opencl_event *event);
/* Take over a native event, and show it to the user. */
struct keel_event *keel_opencl_event_fill(struct opencl_event *event, cl_event native);
/* The native event, for a command of `queue`; flushes the event's own queue when that is another. */
cl_event keel_opencl_event_native(struct keel_event *event, const struct keel_queue *queue);
enum keel_status keel_opencl_event_wait(struct keel_event *event, uint64_t deadline_ns);
bool keel_opencl_event_done(struct keel_event *event);
void keel_opencl_event_destroy(struct keel_event *event);

/* Discovery (opencl_discover.c; opencl_icd.c for drivers that did not load). */
void keel_opencl_discover(struct keel_candidate *out, uint32_t capacity, uint32_t *count);
void keel_opencl_report_unloaded(struct keel_candidate *out, uint32_t capacity, uint32_t *count);
/* A platform or a driver that gave no device: a candidate with a reason. */
void keel_opencl_add_failure(struct keel_candidate *out, uint32_t capacity, uint32_t *count,
                             const char *platform, const char *reason);

#endif
