/* device.h - the only door to accelerators: devices, buffers, queues, programs, kernels, events.
 *
 * Two backends: `opencl` (through the ICD loader) and `host` (plain C on the calling thread: the
 * reference). A backend is a table of functions (device_backend.h, private to hal); everything here
 * behaves the same on each, and tests/hal runs one conformance suite over all.
 *
 * Objects.    device > {buffer, queue, program > kernel}; an event belongs to its queue.
 * Ownership.  create/destroy and open/close pair up; destroy children before parents.
 *             A slice is destroyed before the buffer that it is cut from.
 * Threads.    A queue and a kernel object are used by one thread at a time; the rest is thread-safe.
 * Failure.    Errors are sticky per queue, and travel to whoever waits for what failed: after DEVICE_LOST
 *             every later call on that queue returns DEVICE_LOST with the first failure's text, and the
 *             caller's next move is to end the worker process. Nothing aborts. See keel/health.h.
 * Waiting.    Only keel_event_wait, keel_queue_finish and blocking reads and writes block, each with
 *             a deadline; the rest enqueues. No busy polling.
 * Order.      A queue runs its commands in order; across queues, order comes from events. */
#ifndef KEEL_DEVICE_H
#define KEEL_DEVICE_H

#include <keel/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct keel_device;
struct keel_buffer;
struct keel_queue;
struct keel_program;
struct keel_kernel;
struct keel_event;

enum keel_device_kind {
    KEEL_DEVICE_HOST,
    KEEL_DEVICE_CPU,
    KEEL_DEVICE_GPU,
    KEEL_DEVICE_ACCELERATOR /* NPU, FPGA */
};

enum { KEEL_DEVICE_NAME_BYTES = 128, KEEL_DEVICE_LIST_MAX = 64, KEEL_ARG_MAX = 24, KEEL_WAIT_MAX = 16 };

struct keel_device_info {
    char selector[KEEL_DEVICE_NAME_BYTES];        /* what keel_device_open takes: "host", "pocl:0", ... */
    char name[KEEL_DEVICE_NAME_BYTES];            /* as the driver says */
    char platform[KEEL_DEVICE_NAME_BYTES];        /* platform name; "host" for the host device */
    char version[KEEL_DEVICE_NAME_BYTES];         /* driver and API version */
    char passed_over[KEEL_DEVICE_NAME_BYTES * 2]; /* why it is not usable; "" when it is */
    enum keel_device_kind kind;
    uint32_t compute_units;
    uint32_t base_align_bytes; /* of slices and sub-buffers */
    uint64_t memory_bytes;     /* global memory */
    uint64_t max_buffer_bytes; /* largest single buffer */
    uint64_t local_bytes;      /* local memory per group */
    uint32_t max_group_items;
    bool has_compiler;
    bool unified_memory; /* host and device share physical memory */
};

/* All devices of all platforms, usable ones first, then those passed over with the reason (broken ICD,
 * no compiler, no memory ...). The host device is always last of the usable. Never fails because of a
 * broken platform. `loader` (may be NULL) gets the path of the OpenCL loader in use, or "" if none. */
enum keel_status keel_device_list(struct keel_device_info *out, uint32_t capacity, uint32_t *out_count,
                                  char loader[KEEL_DEVICE_NAME_BYTES]);

struct keel_device_options {
    uint32_t threads;       /* CPU devices: worker threads, 0 for the driver's default. Takes effect only
                               before the first OpenCL call of the process. */
    uint64_t hung_after_ns; /* waits that find nothing come back for so long make it HUNG (keel/health.h);
                               0 for 1 s */
};

/* Open by selector: "auto" (best usable: GPU, accelerator, CPU, then host), "host", or what
 * keel_device_list printed; a unique case-insensitive part of platform, name or selector also does.
 * NOT_FOUND says what there is and what was passed over; INVALID when several match. */
enum keel_status keel_device_open(const char *selector, const struct keel_device_options *options,
                                  struct keel_device **out);
void keel_device_close(struct keel_device *device);
const struct keel_device_info *keel_device_info(const struct keel_device *device);

struct keel_device_stats {
    uint64_t live_bytes; /* device memory in buffers now */
    uint64_t peak_bytes;
    uint64_t allocations; /* buffers created since open (slices do not count) */
};
struct keel_device_stats keel_device_stats(const struct keel_device *device);

/* Zeroed device memory. NO_MEMORY names size and limit. */
enum keel_status keel_buffer_create(struct keel_device *device, uint64_t bytes, struct keel_buffer **out);
/* A view of [offset, offset + bytes) of a buffer (not of a slice); offset a multiple of
 * base_align_bytes, bytes > 0. */
enum keel_status keel_buffer_slice(struct keel_buffer *buffer, uint64_t offset_bytes, uint64_t bytes,
                                   struct keel_buffer **out);
/* A buffer whose memory is the caller's: page-aligned, kept until the buffer is destroyed. Its contents are
 * the device's; the caller looks at them, and changes them, only through keel_queue_map. Only where host and
 * device share memory; UNSUPPORTED elsewhere. Not counted as device memory. */
enum keel_status keel_buffer_wrap(struct keel_device *device, void *memory, uint64_t bytes,
                                  struct keel_buffer **out);
void keel_buffer_destroy(struct keel_buffer *buffer);
uint64_t keel_buffer_bytes(const struct keel_buffer *buffer);

enum keel_status keel_queue_create(struct keel_device *device, struct keel_queue **out);
void keel_queue_destroy(struct keel_queue *queue); /* waits for what runs */

/* Events a command waits for; all of one device. */
struct keel_wait_list {
    struct keel_event *const *events;
    uint32_t count; /* at most KEEL_WAIT_MAX */
};

/* Copies. Host memory must stay valid and untouched until the event (out_event, may be NULL) is
 * complete; with `out_event` NULL it must stay so until the queue is finished. waits may be NULL. */
enum keel_status keel_queue_write(struct keel_queue *queue, struct keel_buffer *buffer, uint64_t offset_bytes,
                                  const void *data, uint64_t bytes, const struct keel_wait_list *waits,
                                  struct keel_event **out_event);
enum keel_status keel_queue_read(struct keel_queue *queue, struct keel_buffer *buffer, uint64_t offset_bytes,
                                 void *data, uint64_t bytes, const struct keel_wait_list *waits,
                                 struct keel_event **out_event);
enum keel_status keel_queue_copy(struct keel_queue *queue, struct keel_buffer *source,
                                 uint64_t source_offset_bytes, struct keel_buffer *target,
                                 uint64_t target_offset_bytes, uint64_t bytes,
                                 const struct keel_wait_list *waits, struct keel_event **out_event);
/* Fill with a 32-bit pattern; offset and bytes multiples of 4. */
enum keel_status keel_queue_fill(struct keel_queue *queue, struct keel_buffer *buffer, uint64_t offset_bytes,
                                 uint64_t bytes, uint32_t pattern, const struct keel_wait_list *waits,
                                 struct keel_event **out_event);

/* Let the host read a range, or write all of it anew (what was there is lost), where it lies: in place on
 * devices of unified_memory, in a copy of the driver's elsewhere. *out_pointer may be used from the event's
 * completion until the unmap is enqueued. No command may write a range that is mapped, nor read one that is
 * mapped for writing. */
enum keel_map { KEEL_MAP_READ, KEEL_MAP_WRITE };
enum keel_status keel_queue_map(struct keel_queue *queue, struct keel_buffer *buffer, uint64_t offset_bytes,
                                uint64_t bytes, enum keel_map map, void **out_pointer,
                                const struct keel_wait_list *waits, struct keel_event **out_event);
enum keel_status keel_queue_unmap(struct keel_queue *queue, struct keel_buffer *buffer, void *pointer,
                                  const struct keel_wait_list *waits, struct keel_event **out_event);

/* Kernel arguments, in order. */
enum keel_arg_kind { KEEL_ARG_BUFFER, KEEL_ARG_I32, KEEL_ARG_U32, KEEL_ARG_F32, KEEL_ARG_U64 };
struct keel_arg {
    enum keel_arg_kind kind;
    union {
        struct keel_buffer *buffer;
        int32_t i32;
        uint32_t u32;
        float f32;
        uint64_t u64;
    } as;
};

/* How many work-items, and how many to a group; global[i] is a multiple of local[i]. Unused
 * dimensions are 1. */
struct keel_range {
    size_t global[3];
    size_t local[3];
};

/* One kernel of a module. The host function does the whole range: arguments[i] points at the scalar,
 * or is the host address of the buffer argument; same order as the .cl kernel. */
struct keel_module_kernel {
    const char *name;
    void (*host)(void *const *arguments, const struct keel_range *range);
};

/* A module: the same kernels as OpenCL C source and as host functions. Static storage. */
struct keel_module {
    const char *name;
    const char *source; /* OpenCL C 1.2, NUL-terminated */
    const struct keel_module_kernel *kernels;
    uint32_t kernel_count;
};

/* Build for a device. `options` are OpenCL build options ("-DTILE_M=12"); the backend adds none that
 * change arithmetic. UNSUPPORTED with the first lines of the build log as detail. */
enum keel_status keel_program_create(struct keel_device *device, const struct keel_module *module,
                                     const char *options, struct keel_program **out);
void keel_program_destroy(struct keel_program *program);
enum keel_status keel_kernel_create(struct keel_program *program, const char *name, struct keel_kernel **out);
void keel_kernel_destroy(struct keel_kernel *kernel);
const char *keel_kernel_name(const struct keel_kernel *kernel);

enum keel_status keel_queue_launch(struct keel_queue *queue, struct keel_kernel *kernel,
                                   const struct keel_arg *args, uint32_t arg_count,
                                   const struct keel_range *range, const struct keel_wait_list *waits,
                                   struct keel_event **out_event);

/* Hand what is enqueued to the device without waiting. */
enum keel_status keel_queue_flush(struct keel_queue *queue);
/* Wait until all that was enqueued is done. TIMEOUT leaves it running. */
enum keel_status keel_queue_finish(struct keel_queue *queue, uint64_t deadline_ns);
/* Mark a point of the queue: the event completes when all before it has. */
enum keel_status keel_queue_mark(struct keel_queue *queue, struct keel_event **out_event);

/* Wait (any thread). DEVICE_LOST when the command failed, TIMEOUT when it still runs. */
enum keel_status keel_event_wait(struct keel_event *event, uint64_t deadline_ns);
bool keel_event_done(struct keel_event *event);
void keel_event_destroy(struct keel_event *event); /* NULL is accepted; never blocks */

#endif
