/* device_backend.h - what a device backend gives to device.c; private to hal.
 *
 * Owns the common heads of the objects of keel/device.h and the two tables of functions that a backend
 * fills. A backend's own object embeds the head as its first member, so one pointer serves both.
 *
 * device.c checks arguments, ranges, limits and the queue's lost flag, and counts memory: a backend may
 * rely on all of that. A backend fills its own fields; heads are filled by device.c, except where stated.
 * To write one: start from null_device.c, which says how. */
#ifndef KEEL_DEVICE_BACKEND_H
#define KEEL_DEVICE_BACKEND_H

#include "health_machine.h"
#include <keel/device.h>
#include <keel/thread.h>
#include <stdatomic.h>

/* The first failure of a queue, kept for queues that turn out to have waited for it. */
struct keel_queue_failure {
    uint32_t queue;    /* its number */
    uint64_t sequence; /* of the command that failed; those before it did not */
    char text[KEEL_EVIDENCE_BYTES];
};
enum { KEEL_FAILURES = 4 };

/* What is known of a device's health (device_health.c). Zeroed is OK; keel_device_open inits it. */
struct keel_watch {
    struct keel_mutex lock; /* a leaf: guards what follows, but the flags */
    struct keel_health_machine machine;
    uint64_t since_ns, hung_after_ns;
    char evidence[KEEL_EVIDENCE_BYTES];
    struct keel_queue_failure failures[KEEL_FAILURES];
    uint32_t failure_count; /* the next one's place is this % KEEL_FAILURES */
    atomic_uint health;     /* the machine's, to be looked at without the lock */
    atomic_bool doubted;    /* a wait passed its deadline: waits that succeed say so */
};

struct keel_device {
    const struct keel_device_ops *ops;
    struct keel_device_info info;
    struct keel_watch watch;
    struct keel_trace *trace;    /* of its commands; NULL while none runs */
    struct keel_faults *faults;  /* in front of the backend's ops; NULL until there was a plan */
    atomic_bool left_behind;     /* something of it could not be ended: it is never freed */
    atomic_uint_fast32_t queues; /* made since it was opened: the next one's number */
    atomic_uint_fast64_t live_bytes, peak_bytes, allocations;
    atomic_uint_fast64_t next_buffer_id;
    atomic_uint_fast32_t busy_queues; /* with commands since they were last finished */
    struct keel_code_provider code;   /* find is NULL when there is none */
    enum keel_bank_style bank_style;
};

struct keel_buffer {
    struct keel_device *device;
    struct keel_buffer *parent; /* the buffer that this slice is cut from; NULL for a buffer */
    const void *wrapped;        /* the caller's memory; NULL: it is the device's, or a slice's */
    uint64_t bytes;
    uint64_t from_bytes;         /* of a slice: where it begins in its parent */
    uint64_t id;                 /* never used twice on a device: tells a new buffer at an old address */
    atomic_uint_fast32_t slices; /* alive */
};

enum keel_command_kind {
    KEEL_COMMAND_LAUNCH,
    KEEL_COMMAND_READ,
    KEEL_COMMAND_WRITE,
    KEEL_COMMAND_COPY,
    KEEL_COMMAND_FILL,
    KEEL_COMMAND_MAP,
    KEEL_COMMAND_UNMAP,
    KEEL_COMMAND_MARK
};

enum { KEEL_NOTES = 8, KEEL_UPSTREAMS = 4 };

/* One of a queue's last commands, for evidence. Written by the queue's thread, read by any. */
struct keel_note {
    _Atomic(const char *) name; /* of a kernel, static; NULL for others */
    atomic_uint_fast8_t kind;
};

/* Another queue that commands of this one waited for. */
struct keel_upstream {
    uint32_t queue;    /* its number */
    uint64_t sequence; /* the last command of it that was waited for, */
    uint64_t at;       /* and the command that did */
};

struct keel_queue {
    struct keel_device *device;
    atomic_bool lost; /* sticky; set after `failure` is written, through keel_queue_fail */
    bool busy;        /* counted in the device's busy_queues; of the thread that uses the queue */
    uint32_t number;  /* of the device's queues, from 1 */
    atomic_uint_fast64_t sequence;                  /* commands enqueued */
    struct keel_health_doubt doubt;                 /* under watch.lock */
    struct keel_upstream upstreams[KEEL_UPSTREAMS]; /* since it was last finished; under watch.lock */
    uint32_t upstream_count; /* the next one's place is this % KEEL_UPSTREAMS; written as they are */
    struct keel_note notes[KEEL_NOTES];
    char failure[KEEL_EVIDENCE_BYTES]; /* the first one */
    uint64_t ready_ns;                 /* for device_fault.c; the queue's thread alone */
};

struct keel_program {
    struct keel_device *device;
    const struct keel_module *module;
};

struct keel_kernel {
    struct keel_program *program;
    const struct keel_module_kernel *entry;
    struct keel_kernel_info info; /* filled by the backend */
    struct keel_call call;        /* enqueue is NULL for a kernel: device_program.c makes the others */
};

/* One launch of a list. */
struct keel_list_step {
    struct keel_kernel *kernel;
    struct keel_range range;
    uint32_t first_arg, arg_count; /* in the list's args */
};

struct keel_commands {
    struct keel_device *device;
    struct keel_list_step *steps; /* owned, as args */
    struct keel_arg *args;
    uint32_t count, arg_count;
    size_t capacity, arg_capacity;
    bool sealed;
    void *prepared; /* the backend's, between commands_seal and commands_unseal */
};

struct keel_event {
    struct keel_queue *queue; /* filled by the backend */
    atomic_uint_fast64_t
        sequence; /* its command's on the queue, filled by a backend whose waits can pass their deadline */
    uint32_t trace_place; /* in the ring of a trace, where a trace runs */
    bool injected;        /* made by device_fault.c, not by the backend */
};

/* One device that a backend has found. */
struct keel_candidate {
    struct keel_device_info info;
    const struct keel_backend *backend;
    void *native[2]; /* the backend's handles */
};

struct keel_backend {
    /* Append what is there to out[*count], never past capacity. Never fails: what is broken becomes a
     * candidate with a `passed_over` reason. */
    void (*discover)(struct keel_candidate *out, uint32_t capacity, uint32_t *count);
    /* Make the device of a candidate; ops and info are filled by the backend, the rest by device.c. */
    enum keel_status (*open)(const struct keel_candidate *candidate, struct keel_device **out);
    const char *absent; /* it was left out of this build: the next move; NULL: it is here */
};

extern const struct keel_backend keel_host_backend;
extern const struct keel_backend keel_null_backend;
extern const struct keel_backend keel_opencl_backend;

/* Path of the OpenCL loader in this process. */
void keel_opencl_loader(char out[KEEL_DEVICE_NAME_BYTES]);

/* A command as a backend gets it: what it waits for, where its event goes (may be NULL), and the operands of
 * its kind. Arguments and range of a launch are the caller's and end with the call; host memory is the
 * command's until it is done. */
struct keel_device_command {
    struct keel_queue *queue;
    enum keel_command_kind kind;
    struct keel_event *const *waits;
    uint32_t wait_count;
    struct keel_event **out_event;
    struct keel_buffer *buffer;   /* all but LAUNCH and MARK; of COPY the target */
    uint64_t offset_bytes, bytes; /* in it; not of UNMAP */
    struct keel_buffer *source;   /* COPY */
    uint64_t source_offset_bytes;
    const void *data;   /* WRITE: from where */
    void *memory;       /* READ: to where; UNMAP: what was mapped */
    void **out_pointer; /* MAP */
    enum keel_map map;  /* MAP */
    uint32_t pattern;   /* FILL */
    uint32_t arg_count; /* LAUNCH, as are the next three */
    struct keel_kernel *kernel;
    const struct keel_arg *args;
    const struct keel_range *range;
    uint64_t enqueued_ns;      /* the rest is for a trace alone: when it was begun, */
    struct keel_event *traced; /* and its event, when nobody else wants one */
};

/* Each call as in keel/device.h; offsets and sizes are inside the buffers. */
struct keel_device_ops {
    void (*close)(struct keel_device *device);

    enum keel_status (*buffer_create)(struct keel_device *device, const struct keel_buffer_options *options,
                                      struct keel_buffer **out);
    enum keel_status (*buffer_wrap)(struct keel_device *device, void *memory, uint64_t bytes,
                                    struct keel_buffer **out);
    enum keel_status (*buffer_slice)(struct keel_buffer *buffer, uint64_t offset_bytes, uint64_t bytes,
                                     struct keel_buffer **out);
    void (*buffer_destroy)(struct keel_buffer *buffer);

    enum keel_status (*queue_create)(struct keel_device *device, struct keel_queue **out);
    void (*queue_destroy)(struct keel_queue *queue);
    enum keel_status (*queue_flush)(struct keel_queue *queue);
    enum keel_status (*queue_finish)(struct keel_queue *queue, uint64_t deadline_ns);

    enum keel_status (*enqueue)(const struct keel_device_command *command);

    /* From source when `code` is NULL; else code is of a form that the device takes, and has all kernels. */
    enum keel_status (*program_create)(struct keel_device *device, const struct keel_module *module,
                                       const char *options, const struct keel_code *code,
                                       struct keel_program **out);
    void (*program_destroy)(struct keel_program *program);
    /* Both NULL where programs have no binary. */
    enum keel_status (*program_binary)(const struct keel_program *program, void **out_bytes,
                                       uint64_t *out_size);
    enum keel_status (*image_load)(struct keel_device *device, const struct keel_module *const *modules,
                                   const char *const *options, uint32_t count, uint64_t image);
    enum keel_status (*kernel_create)(struct keel_program *program, const struct keel_module_kernel *entry,
                                      struct keel_kernel **out);
    void (*kernel_destroy)(struct keel_kernel *kernel);
    /* The device's own handle. NULL where there are none; where there is one, launches may be calls. */
    void *(*native)(struct keel_device *device);

    /* All three NULL where a replay is but its commands enqueued. `replay` enqueues step `number` of a sealed
     * list; `command` is that step as a launch. */
    enum keel_status (*commands_seal)(struct keel_commands *commands);
    void (*commands_unseal)(struct keel_commands *commands);
    enum keel_status (*replay)(const struct keel_device_command *command,
                               const struct keel_commands *commands, uint32_t number);

    enum keel_status (*event_wait)(struct keel_event *event, uint64_t deadline_ns);
    bool (*event_done)(struct keel_event *event);
    /* Its command failed; asked before another queue is made to wait for it. NULL where none ever fails. */
    bool (*event_failed)(struct keel_event *event);
    void (*event_destroy)(struct keel_event *event);
    /* When a command that is done began and ended, counted from when the driver took it; false when the
     * driver does not tell. NULL where it never does. */
    bool (*event_times)(struct keel_event *event, uint64_t *out_began_ns, uint64_t *out_ended_ns);
};

/* The checks of a launch, also for those that are kept in a list (device_queue.c). */
enum keel_status keel_check_launch(const struct keel_device *device, const struct keel_kernel *kernel,
                                   const struct keel_arg *args, uint32_t arg_count,
                                   const struct keel_range *range);
/* All steps of a sealed list (device_commands.c). */
enum keel_status keel_commands_run(const struct keel_device_command *command,
                                   const struct keel_commands *commands);

/* A command of this queue failed: from now on the queue is lost. Returns DEVICE_LOST. A backend that hears of
 * it from its driver calls the second; the third when the whole device is gone. */
enum keel_status keel_queue_fail(struct keel_queue *queue, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
enum keel_status keel_queue_lose(struct keel_queue *queue, const char *what, int native_error);
enum keel_status keel_device_lose(struct keel_queue *queue, const char *what, int native_error);
/* The same of the command of an event, by its name; `by_wait` when what failed was something it waited for.
 */
enum keel_status keel_event_lose(struct keel_event *event, int native_error, bool by_wait);

/* For the front, and for backends that wait (device_health.c). */
void keel_watch_init(struct keel_watch *watch, uint64_t hung_after_ns);
/* The last of a backend's close: the device is gone. */
void keel_device_free(struct keel_device *device);
/* DEVICE_LOST with the evidence: of a device that is hung, lost or quarantined; of a queue that failed. */
enum keel_status keel_device_refuse(struct keel_device *device);
enum keel_status keel_queue_failed(struct keel_queue *queue);
/* What keel_device_refuse says, unless the device answers. */
enum keel_status keel_device_check_usable(struct keel_device *device);
/* Neither hung nor lost: worth waiting for what runs. */
bool keel_device_answers(struct keel_device *device);
/* The command that is next on the queue waits for an event of another one; all such waits are over, and well.
 */
void keel_queue_note_wait(struct keel_queue *queue, struct keel_event *event);
void keel_queue_forget_waits(struct keel_queue *queue);
/* The queue's next command fails because what it waits for failed on `cause`. */
enum keel_status keel_queue_inherit(struct keel_queue *queue, struct keel_queue *cause);
const char *keel_command_kind_name(enum keel_command_kind kind);
/* Number and note the command that is enqueued now; `name` is static, or NULL. */
void keel_queue_note(struct keel_queue *queue, enum keel_command_kind kind, const char *name);
/* A wait for that command, which began at began_ns, passed its deadline: returns TIMEOUT in words. */
enum keel_status keel_queue_late(struct keel_queue *queue, uint64_t sequence, uint64_t began_ns);
/* The queue, waited for since began_ns, does not end: nothing of it is freed, since the driver may still call
 * back, and the device hears of it. */
void keel_queue_leave_behind(struct keel_queue *queue, uint64_t began_ns);
/* All of it is done, and it is about to be freed. */
void keel_queue_ended(struct keel_queue *queue);
/* That command is complete; needed only while the device is doubted. Any thread. */
void keel_queue_progress(struct keel_queue *queue, uint64_t sequence);

/* A trace of commands (device_trace.c). Before a command: note the time and see that it has an event. */
void keel_trace_begin(struct keel_device_command *command);
/* After it: keep it. */
void keel_trace_add(const struct keel_device_command *command, enum keel_status status);
/* The caller destroys this event. */
void keel_trace_let_go(struct keel_event *event);
/* The queue is about to be destroyed. */
void keel_trace_end_queue(struct keel_queue *queue);

/* Pick one of the candidates (device_select.c). */
enum keel_status keel_candidate_pick(const struct keel_candidate *candidates, uint32_t count,
                                     const char *selector, bool code_provided, uint32_t *out_index);

#endif
