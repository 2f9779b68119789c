/* opencl_backend.h - objects shared by the opencl_*.c files; private to hal.
 *
 * opencl_discover.c finds devices, opencl_device.c owns devices and buffers, opencl_program.c code in all its
 * forms, opencl_queue.c commands, opencl_commands.c lists of them, opencl_event.c events and waiting. API
 * level 1.2, so that any conforming board serves. */
#ifndef KEEL_OPENCL_BACKEND_H
#define KEEL_OPENCL_BACKEND_H

#define CL_TARGET_OPENCL_VERSION 120
#include "device_backend.h"
#include <CL/cl.h>
#include <keel/thread.h>

/* Of one queue: alive at most; made with it, so that how late the driver calls back decides no allocation. */
enum { OPENCL_EVENTS_MAX = 65536, OPENCL_EVENTS_READY = 64 };

struct opencl_device {
    struct keel_device head;
    cl_device_id id;
    cl_context context;
    atomic_int prompt_callbacks; /* waits in a row that the driver's callback ended in time; below 0: late */
    struct keel_mutex zero_lock; /* PoCL 3.1 deadlocks when two threads share a queue */
    struct keel_queue *zero_queue; /* zeroes new buffers; guarded by zero_lock */
    struct opencl_buffer *kept;    /* new ones that the driver never zeroed, and may yet; as zero_queue */
    struct keel_mutex image_lock;  /* held while one is built or loaded; then place_lock */
    struct keel_mutex place_lock;  /* a leaf: held while it is decided whether an image goes */
    struct opencl_image *images;   /* the first one loaded first; guarded by image_lock */
};

struct opencl_buffer {
    struct keel_buffer head;
    cl_mem mem;
    struct opencl_buffer *next; /* in the device's kept */
    void *memory;               /* of KEEL_MEMORY_SHARED, owned; else NULL */
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

/* What a device loads: one or more programs. */
struct opencl_image {
    struct opencl_image *next;
    cl_program native;
    uint64_t number;    /* keel_code.image; 0: of one program alone */
    uint32_t programs;  /* that are alive; guarded by image_lock */
    atomic_bool loaded; /* false when another took its place: its kernels are of no use any more */
};

struct opencl_program {
    struct keel_program head;
    struct opencl_image *image;
    const struct keel_code_kernel *kernels; /* what the code's maker says of them; NULL from source */
    uint32_t kernel_count;
};

/* What was last set, so that only changed arguments are set again: setting is most of a launch's cost.
 * Buffers are compared by id, since an address may come back with another buffer. */
struct opencl_kernel {
    struct keel_kernel head;
    cl_kernel native;
    uint64_t set[KEEL_ARG_MAX]; /* buffer id, or the scalar's bits */
    uint8_t kind[KEEL_ARG_MAX]; /* 1 + enum keel_arg_kind; 0 when never set */
};

/* Describe a failed call of the OpenCL API and choose the status. */
enum keel_status keel_opencl_fail(cl_int error, const char *device, const char *what);
/* The same for a command: loses the queue when the device is gone. */
enum keel_status keel_opencl_command_fail(struct keel_queue *queue, cl_int error, const char *what);

/* Programs and kernels (opencl_program.c). */
enum keel_status keel_opencl_program_create(struct keel_device *device, const struct keel_module *module,
                                            const char *options, const struct keel_code *code,
                                            struct keel_program **out);
void keel_opencl_program_destroy(struct keel_program *program);
enum keel_status keel_opencl_program_binary(const struct keel_program *program, void **out_bytes,
                                            uint64_t *out_size);
enum keel_status keel_opencl_image_load(struct keel_device *device, const struct keel_module *const *modules,
                                        const char *const *options, uint32_t count, uint64_t image);
void keel_opencl_images_release(struct keel_device *device); /* those that no program was made of */
enum keel_status keel_opencl_kernel_create(struct keel_program *program,
                                           const struct keel_module_kernel *entry, struct keel_kernel **out);
void keel_opencl_kernel_destroy(struct keel_kernel *kernel);
/* For a launch that found its image gone, with its queue already busy: NOT_FOUND, by name, unless the image
 * stays after all. */
enum keel_status keel_opencl_image_check(const struct keel_queue *queue, const struct opencl_image *image,
                                         const char *kernel);

/* Queues (opencl_queue.c), filled into the table by opencl_device.c. */
enum keel_status keel_opencl_queue_create(struct keel_device *device, struct keel_queue **out);
void keel_opencl_queue_destroy(struct keel_queue *queue);
enum keel_status keel_opencl_queue_flush(struct keel_queue *queue);
enum keel_status keel_opencl_queue_finish(struct keel_queue *queue, uint64_t deadline_ns);
enum keel_status keel_opencl_enqueue(const struct keel_device_command *command);

/* A command being enqueued: the native wait list, and the event object that it will fill. */
struct opencl_launch {
    cl_event waits[KEEL_WAIT_MAX];
    const cl_event *wait_list; /* NULL when there is none, as OpenCL wants it */
    cl_event native;
    cl_event *native_address; /* NULL when nobody wants the event */
    struct opencl_event *event;
};
enum keel_status keel_opencl_begin(const struct keel_device_command *command, struct opencl_launch *launch);
/* After the driver's call, that said `error`; `what` names it. */
enum keel_status keel_opencl_end(const struct keel_device_command *command, struct opencl_launch *launch,
                                 cl_int error, const char *what);
/* clSetKernelArg; INVALID when it is not of the kind given. */
enum keel_status keel_opencl_set_arg(cl_kernel native, const char *name, uint32_t index,
                                     const struct keel_arg *arg);

/* Command lists (opencl_commands.c). */
enum keel_status keel_opencl_commands_seal(struct keel_commands *commands);
void keel_opencl_commands_unseal(struct keel_commands *commands);
enum keel_status keel_opencl_replay(const struct keel_device_command *command,
                                    const struct keel_commands *commands, uint32_t number);

/* Events (opencl_event.c). */
enum keel_status keel_opencl_pool_init(struct opencl_queue *queue);
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
bool keel_opencl_event_failed(struct keel_event *event);
void keel_opencl_event_destroy(struct keel_event *event);
/* False for a queue that was made without profiling. */
bool keel_opencl_event_times(struct keel_event *event, uint64_t *out_began_ns, uint64_t *out_ended_ns);

/* Discovery (opencl_discover.c; opencl_icd.c for drivers that did not load). */
void keel_opencl_discover(struct keel_candidate *out, uint32_t capacity, uint32_t *count);
void keel_opencl_report_unloaded(struct keel_candidate *out, uint32_t capacity, uint32_t *count);
/* A platform or a driver that gave no device: a candidate with a reason. */
void keel_opencl_add_failure(struct keel_candidate *out, uint32_t capacity, uint32_t *count,
                             const char *platform, const char *reason);

#endif
