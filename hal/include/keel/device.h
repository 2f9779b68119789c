/* device.h - the only way to accelerators: devices, buffers, queues, programs, kernels, events.
 *
 * Backends: `opencl` (through the ICD loader), `host` (plain C on the calling thread: the reference), and
 * `null` (memory, and kernels that do nothing: the recipe for a new one; only for who names it). A backend is
 * a table of functions (device_backend.h, private to hal); everything here behaves the same on each, and
 * tests/hal runs one conformance suite over all.
 *
 * Objects.    device > {buffer, queue, program > kernel, commands}; an event belongs to its queue.
 * Ownership.  create/destroy and open/close pair up; destroy children before parents. NULL may be destroyed.
 *             A slice is destroyed before the buffer that it is cut from.
 * Threads.    A queue and a kernel object are used by one thread at a time; the rest is thread-safe.
 * Failure.    Errors are sticky per queue: after DEVICE_LOST every later call on that queue returns
 *             DEVICE_LOST with the text of its first failure. A command that waits for a failed event fails
 *             too. The caller then ends the worker process; nothing here aborts. See keel/health.h.
 * Memory.     Host memory that a command reads or writes must stay valid until the command's event, or a
 *             finish, is OK; after a failure, until a finish returns DEVICE_LOST or the queue is destroyed.
 *             If the device is then HUNG or LOST, nothing was waited for: keep the memory until the process
 *             ends.
 * Waiting.    keel_event_wait and keel_queue_finish block up to their deadline. Creating a buffer, creating
 *             a program and keel_queue_destroy block as stated at each. All other calls enqueue and return.
 *             Nothing busy-polls. Some drivers execute a command inside the call that enqueues or flushes
 *             it (PoCL's `basic` device, Oclgrind, and the host device): there a launch blocks for as long
 *             as its kernel runs, no deadline interrupts it, and no query tells beforehand. Callers that
 *             must stay responsive use a thread or process of their own.
 * Order.      A queue runs its commands in order; across queues, order comes from events.
 * Code.       A kernel comes from source, from a binary made before, or is built into the board; the code
 *             that launches it is the same for all (keel_device_use_code). */
#ifndef KEEL_DEVICE_H
#define KEEL_DEVICE_H

#include <keel/api.h>
#include <keel/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KEEL_API_BEGIN

struct keel_device;
struct keel_buffer;
struct keel_queue;
struct keel_program;
struct keel_kernel;
struct keel_event;
struct keel_commands;
struct keel_code_provider;

enum keel_device_kind {
    KEEL_DEVICE_HOST,
    KEEL_DEVICE_CPU,
    KEEL_DEVICE_GPU,
    KEEL_DEVICE_ACCELERATOR /* NPU, FPGA */
};
/* "host", "cpu", "gpu", "accelerator". */
const char *keel_device_kind_name(enum keel_device_kind kind);

enum { KEEL_DEVICE_NAME_BYTES = 128, KEEL_DEVICE_LIST_MAX = 64, KEEL_ARG_MAX = 32, KEEL_WAIT_MAX = 16 };
enum { KEEL_COMMANDS_MAX = 1 << 20, KEEL_IMAGE_MAX = 64, KEEL_BANK_MAX = 64 };

/* Forms of kernel code, as bits. OpenCL has no query for binary support, so every OpenCL device reports
 * BINARY; one without it fails when it is given a binary. On the host device all kernels are BUILTIN. */
enum keel_code_form { KEEL_CODE_SOURCE = 1, KEEL_CODE_BINARY = 2, KEEL_CODE_BUILTIN = 4 };

/* What the driver claims of its float32 arithmetic, as bits. Claims are wrong in both directions; only the
 * golden cases (keel/golden.h) decide. */
enum keel_numerics {
    KEEL_NUMERICS_DENORMALS = 1,
    KEEL_NUMERICS_INF_NAN = 2,
    KEEL_NUMERICS_NEAREST = 4, /* rounds to nearest even */
    KEEL_NUMERICS_ZERO = 8,    /* can round to zero */
    KEEL_NUMERICS_INFINITY = 16,
    KEEL_NUMERICS_FMA = 32,
    KEEL_NUMERICS_DIVIDE_SQRT = 64, /* division and square root rounded right */
    KEEL_NUMERICS_SOFT = 128        /* in software */
};

/* Instructions for dots of four signed bytes, or of two bf16 (KEEL_DOT_BF16), as bits: of the processor that
 * a CPU device runs on, AVX512-VNNI and AVX512-BF16; the functions of cl_khr_integer_dot_product; of NVIDIA's
 * PTX, dp4a and mma of 8-bit integers. Kernels have them by assembly where the language has no word. */
enum keel_dots {
    KEEL_DOT_VNNI = 1,
    KEEL_DOT_KHR = 2,
    KEEL_DOT_DP4A = 4,
    KEEL_DOT_MMA = 8,
    KEEL_DOT_BF16 = 16
};

/* Where a buffer lies.
 * DEVICE  where the device is fastest with it.
 * PINNED  in host memory that the device can access directly: the fastest source and target of copies to
 *         and from DEVICE, and mapped without a copy.
 * SHARED  in pages that host and device both access in place; a map gives the same address each time. Only
 *         on devices of unified_memory.
 * The caller's own memory is imported with keel_buffer_wrap. */
enum keel_memory { KEEL_MEMORY_DEVICE, KEEL_MEMORY_PINNED, KEEL_MEMORY_SHARED };

struct keel_device_info {
    char selector[KEEL_DEVICE_NAME_BYTES];        /* what keel_device_open takes: "host", "pocl:0", ... */
    char name[KEEL_DEVICE_NAME_BYTES];            /* as the driver says */
    char platform[KEEL_DEVICE_NAME_BYTES];        /* platform name; "host" for the host device */
    char version[KEEL_DEVICE_NAME_BYTES];         /* driver and API version */
    char driver_version[KEEL_DEVICE_NAME_BYTES];  /* the driver's alone */
    char vendor[KEEL_DEVICE_NAME_BYTES];          /* as the driver says */
    char identity[KEEL_DEVICE_NAME_BYTES];        /* which card it is, whatever its place in the order of
                                                     devices: "uuid ...", else "pci 0000:3b:00.0"; "" when
                                                     the driver does not tell */
    char passed_over[KEEL_DEVICE_NAME_BYTES * 2]; /* why it is not usable; "" when it is */
    enum keel_device_kind kind;
    uint32_t compute_units;
    uint32_t base_align_bytes; /* of slices and sub-buffers */
    uint64_t memory_bytes;     /* global memory */
    uint64_t max_buffer_bytes; /* largest single buffer */
    uint64_t local_bytes;      /* local memory per group */
    uint64_t constant_bytes;   /* largest constant buffer */
    uint64_t cache_bytes;      /* of global memory; 0 when there is none */
    uint32_t cache_line_bytes;
    uint32_t max_group_items;     /* in all; of a group along x see keel_device_line_items */
    uint32_t max_items[3];        /* of a group, by dimension */
    uint32_t lanes;               /* work-items that run in step, as the driver tells; 0 when it does not */
    uint32_t max_arg_bytes;       /* of all arguments of a kernel together */
    uint32_t float_width;         /* floats that its vectors hold, 1 when it has none */
    uint32_t clock_mhz;           /* 0 when not told */
    uint32_t timer_resolution_ns; /* of its profile; 0 when not told */
    uint32_t vendor_id;           /* PCI's, where it has one */
    uint32_t code_forms;          /* bits of keel_code_form */
    uint32_t numerics;            /* bits of keel_numerics */
    uint32_t dots;                /* bits of keel_dots */
    uint32_t memory_banks;        /* that a buffer may be put in; 1 unless the board's options say more */
    uint32_t image_limit;         /* programs' images that it holds at once; 0: no limit */
    bool unified_memory;          /* host and device share physical memory */
    bool local_dedicated;         /* local memory is memory of its own, no part of global memory */
    bool embedded_profile;
    bool error_correction;   /* memory is checked and corrected */
    bool queue_out_of_order; /* it can run commands of one queue side by side */
    bool queue_profiling;    /* it can tell when a command began and ended */
};

/* All devices of all platforms, usable ones first, then those passed over with the reason (broken ICD,
 * no memory ...). A device without a compiler is usable, with code from elsewhere. The host device is always
 * last of the usable. A broken platform is listed, not an error. `loader` (may be NULL) gets the path of the
 * OpenCL loader in use, or "" if none. */
enum keel_status keel_device_list(struct keel_device_info *out, uint32_t capacity, uint32_t *out_count,
                                  char loader[KEEL_DEVICE_NAME_BYTES]);

/* How a platform is told the bank of a buffer: a fact of the board. */
enum keel_bank_style {
    KEEL_BANKS_NONE,
    KEEL_BANKS_INTEL, /* CL_CHANNEL_n_INTELFPGA: bits 16 and up of a buffer's flags, bank 0 is channel 1 */
    KEEL_BANKS_XILINX /* CL_MEM_EXT_PTR_XILINX with the topology index */
};

/* Facts of a board that OpenCL has no query for; a zeroed struct is the default. */
struct keel_device_options {
    uint32_t threads;       /* CPU devices: worker threads, 0 for the driver's default. Takes effect only
                               before the first OpenCL call of the process. */
    uint64_t hung_after_ns; /* the device is HUNG after this time without progress (keel/health.h); 0: 1 s */
    uint32_t image_limit;   /* images that it holds at once, at most KEEL_IMAGE_MAX; 0: no limit */
    uint32_t memory_banks;  /* at most KEEL_BANK_MAX; 0 and 1: one */
    enum keel_bank_style bank_style;       /* needed where there is more than one bank */
    const struct keel_code_provider *code; /* as keel_device_use_code; NULL: from source alone */
};

/* Open by selector: "auto" (best usable: GPU, accelerator, CPU, then host; one that has no compiler only when
 * options->code is set), "host", or what keel_device_list printed; a unique case-insensitive part of
 * platform, name or selector also does. NOT_FOUND says what there is and what was passed over; INVALID when
 * several match. */
enum keel_status keel_device_open(const char *selector, const struct keel_device_options *options,
                                  struct keel_device **out);
/* What keel_device_open would open, without doing so: errors as there. */
enum keel_status keel_device_select(const char *selector, const struct keel_device_options *options,
                                    struct keel_device_info *out);
/* Destroy all children first. If a child could not be freed because the driver may still write to it (the
 * device is HUNG or LOST, keel/health.h), the device is leaked until the process ends. NULL is accepted. */
void keel_device_close(struct keel_device *device);
const struct keel_device_info *keel_device_info(const struct keel_device *device);

/* Whether a device's lanes are many and narrow: at least KEEL_LANES_MANY work-items in step, beside a local
 * memory of its own. It wants groups of many work-items that read what lies side by side; others, vectors. A
 * GPU that does not tell how many are in step counts. */
enum { KEEL_LANES_MANY = 16 };
static inline bool keel_device_many_lanes(const struct keel_device_info *info)
{
    const bool in_step =
        info->lanes >= KEEL_LANES_MANY || (info->lanes == 0 && info->kind == KEEL_DEVICE_GPU);
    return info->kind != KEEL_DEVICE_HOST && info->local_dedicated && in_step;
}

/* Work-items of the largest group that lies along x: a device may take fewer of them in one dimension than in
 * all three. Who makes groups of one dimension asks this, and not max_group_items. */
static inline uint32_t keel_device_line_items(const struct keel_device_info *info)
{
    return info->max_items[0] < info->max_group_items ? info->max_items[0] : info->max_group_items;
}

struct keel_device_stats {
    uint64_t live_bytes; /* device memory in buffers now */
    uint64_t peak_bytes;
    uint64_t allocations; /* buffers created since open (slices do not count) */
};
struct keel_device_stats keel_device_stats(const struct keel_device *device);

/* Allocate zeroed memory in a bank of the device. Blocks until the device has zeroed it, possibly behind the
 * commands of other queues: at most 10 s (or options.hung_after_ns, if that is longer) plus 1 s per 256 MiB.
 * TIMEOUT: the device is then HUNG, and the memory is leaked. NO_MEMORY names size and
 * limit; UNSUPPORTED: SHARED on a device with memory of its own; INVALID: a bank that is not there. All kinds
 * count as device memory. */
struct keel_buffer_options {
    uint64_t bytes;
    enum keel_memory memory;
    uint32_t bank; /* below memory_banks */
};
enum keel_status keel_buffer_create_in(struct keel_device *device, const struct keel_buffer_options *options,
                                       struct keel_buffer **out);
/* The same with KEEL_MEMORY_DEVICE, in bank 0. */
enum keel_status keel_buffer_create(struct keel_device *device, uint64_t bytes, struct keel_buffer **out);
/* A view of [offset, offset + bytes) of a buffer (not of a slice); offset a multiple of
 * base_align_bytes, bytes > 0. Of slices that overlap destroy the last that was made first: NVIDIA's driver
 * 580 dies of another order once their buffer was filled. */
enum keel_status keel_buffer_slice(struct keel_buffer *buffer, uint64_t offset_bytes, uint64_t bytes,
                                   struct keel_buffer **out);
/* A buffer whose memory is the caller's: page-aligned, kept until the buffer is destroyed. Its contents are
 * the device's; the caller looks at them, and changes them, only through keel_queue_map. Only where host and
 * device share memory; UNSUPPORTED elsewhere. Not counted as device memory. */
enum keel_status keel_buffer_wrap(struct keel_device *device, void *memory, uint64_t bytes,
                                  struct keel_buffer **out);
void keel_buffer_destroy(struct keel_buffer *buffer);
uint64_t keel_buffer_bytes(const struct keel_buffer *buffer);
/* Whether two buffers or slices have a byte in common, be it in memory that was wrapped twice. */
bool keel_buffer_overlaps(const struct keel_buffer *a, const struct keel_buffer *b);
/* The same of ranges, which lie within their buffers; one of no bytes overlaps nothing. */
bool keel_buffer_ranges_overlap(const struct keel_buffer *a, uint64_t a_offset_bytes, uint64_t a_bytes,
                                const struct keel_buffer *b, uint64_t b_offset_bytes, uint64_t b_bytes);
/* Whether both begin with the same byte of memory. */
bool keel_buffer_begins_at(const struct keel_buffer *a, const struct keel_buffer *b);

enum keel_status keel_queue_create(struct keel_device *device, struct keel_queue **out);
/* Wait for the queue's commands, also after a failure, then destroy it: 30 s at most, 0.1 s on a HUNG device,
 * no wait on a LOST one. A queue that does not finish is leaked and makes its device SUSPECT or HUNG: see
 * Memory. NULL is accepted. */
void keel_queue_destroy(struct keel_queue *queue);

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

/* Map a range for the host, to read it or to overwrite all of it (a write map discards the contents): in
 * place on devices of unified_memory, through a copy made by the driver elsewhere. *out_pointer may be used
 * from the event's completion until the unmap is enqueued. No command may write a range that is mapped, nor
 * read one that is mapped for writing. */
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

/* OpenCL C as it is embedded: packed by gzip, behind a text that several begin with. */
struct keel_packed_text {
    const struct keel_packed_text *before; /* NULL: nothing */
    const unsigned char *bytes;
    uint32_t packed_bytes, text_bytes;
};

/* A module: the same kernels as OpenCL C source and as host functions. Static storage. */
struct keel_module {
    const char *name;
    const char *source; /* OpenCL C 1.2, NUL-terminated; NULL: `packed` is unpacked when it is needed */
    const struct keel_packed_text *packed;
    const struct keel_module_kernel *kernels;
    uint32_t kernel_count;
};

/* Its text, whole and NUL-terminated; the caller gives it back with keel_free. Any thread. NO_MEMORY. */
enum keel_status keel_module_source(const struct keel_module *module, char **out);

/* One kernel of code that was made before. */
struct keel_code_kernel {
    const char *name;
    uint32_t arg_count;
    uint32_t local[3]; /* the only group that it was made for; zeros: any */
};

/* The code of a module for one device, in a form that the device takes. */
struct keel_code {
    enum keel_code_form form; /* BINARY or BUILTIN */
    const void *bytes;        /* BINARY: what keel_program_binary gave, or a vendor's tool */
    uint64_t size;
    uint64_t image; /* modules with one number that is not 0 are one native program, loaded once */
    const struct keel_code_kernel *kernels; /* all those of the module, and maybe more */
    uint32_t kernel_count;
};

/* Where a device's code comes from. `find` is asked for each program before anything is compiled: NOT_FOUND
 * means: build from source; any other status fails keel_program_create. The provider has verified the bytes,
 * which are passed to the driver unchanged, and keeps them until the device is closed. Called by any thread
 * that creates a program. */
struct keel_code_provider {
    enum keel_status (*find)(void *context, const struct keel_module *module, const char *options,
                             struct keel_code *out);
    void *context;
};
/* Copied; before the first program. */
void keel_device_use_code(struct keel_device *device, const struct keel_code_provider *provider);

/* A program for a device, from the provider's code or else from source. `options` are OpenCL build options
 * ("-DTILE_M=12"); the backend adds none that change arithmetic. UNSUPPORTED with the first lines of the
 * build log as detail, or that there is no code in a form that the device takes. When a device already holds
 * image_limit images, loading another one evicts the oldest. That needs an idle device: BUSY while a queue
 * has commands since its last keel_queue_finish. The oldest image is evicted after a successful build from
 * source, or when the driver is given a binary or built-in kernels, even if it then refuses them, since the
 * board may be empty by then. Launching a kernel of an evicted image fails and names it; creating its program
 * again loads it again. */
enum keel_status keel_program_create(struct keel_device *device, const struct keel_module *module,
                                     const char *options, struct keel_program **out);
void keel_program_destroy(struct keel_program *program);
/* The program's binary, to be stored. Ask after each kernel was launched once: some drivers (PoCL) finish
 * compiling at the first launch, and the binary then holds that code too. *out_bytes is given back with
 * keel_free. UNSUPPORTED where there is none (host, built-in kernels). */
enum keel_status keel_program_binary(const struct keel_program *program, void **out_bytes,
                                     uint64_t *out_size);
/* Modules compiled one by one and linked into one native program, for boards that hold few images: `options`
 * by module. The device keeps it as image number `image` (not 0): programs whose code has that number are
 * created from it without bytes of their own, and keel_program_binary then returns the binary of the whole
 * image. It is released with the last of these programs, or with the device. Blocks for as long as the
 * compiler takes; BUSY as keel_program_create. */
enum keel_status keel_image_load(struct keel_device *device, const struct keel_module *const *modules,
                                 const char *const *options, uint32_t count, uint64_t image);

enum keel_status keel_kernel_create(struct keel_program *program, const char *name, struct keel_kernel **out);
void keel_kernel_destroy(struct keel_kernel *kernel);
const char *keel_kernel_name(const struct keel_kernel *kernel);

/* What a kernel is on its device, as its code and its driver say. */
struct keel_kernel_info {
    uint32_t arg_count;       /* 0 on the host device, where nobody tells */
    uint32_t local[3];        /* the only group it takes; zeros: any */
    uint32_t max_group_items; /* of this kernel */
    uint64_t local_bytes;     /* of a group */
    uint64_t private_bytes;   /* of a work-item in memory: arrays, and registers that are spilled; 0 where
                                 nobody tells */
};
struct keel_kernel_info keel_kernel_info(const struct keel_kernel *kernel);

/* Calls: what a library enqueues by the backend's own handles, in the place of a kernel. Launched, listed and
 * replayed as a kernel is, in groups of one item, in the order of its queue; its event is that of a marker
 * behind it, and a trace shows no more of it. On OpenCL devices alone.
 * `enqueue` puts its commands on `queue` (a cl_command_queue) and waits for none of them; arguments[i] is the
 * cl_mem of a buffer or a slice, which begins at its offset 0, or points at the scalar. It returns
 * CL_SUCCESS, or an OpenCL error, which is treated as that of a launch; what it enqueued before stays, and
 * may write nothing but memory of its own. By the thread that uses the queue; several may call at once. */
struct keel_call {
    const char *name; /* static */
    uint32_t arg_count;
    int (*enqueue)(void *context, void *queue, const void *const *arguments);
    void *context; /* lives as long as the kernel */
};
/* UNSUPPORTED where there are no such handles. Destroyed by keel_kernel_destroy. */
enum keel_status keel_kernel_create_call(struct keel_device *device, const struct keel_call *call,
                                         struct keel_kernel **out);
/* The device as a library wants it: a cl_device_id. UNSUPPORTED as above. */
enum keel_status keel_device_native(struct keel_device *device, void **out_native);

enum keel_status keel_queue_launch(struct keel_queue *queue, struct keel_kernel *kernel,
                                   const struct keel_arg *args, uint32_t arg_count,
                                   const struct keel_range *range, const struct keel_wait_list *waits,
                                   struct keel_event **out_event);

/* Command lists: launches that are checked and prepared once, and replayed often.
 *
 * Commands run in the order in which they were added; a list has no other dependencies. Arguments are stored
 * in the list's own kernel objects, so a replay sets, checks and allocates nothing; data that differs between
 * replays must be in buffers. Buffers and kernels outlive the list. A list is added to and replayed by one
 * thread at a time; it may be replayed again, on any queue of its device, while an earlier replay still runs.
 */
enum keel_status keel_commands_create(struct keel_device *device, struct keel_commands **out);
void keel_commands_destroy(struct keel_commands *commands); /* NULL is accepted; nothing of it may run */
/* Add one launch, checked as keel_queue_launch checks it. LIMIT: more than KEEL_COMMANDS_MAX. */
enum keel_status keel_commands_launch(struct keel_commands *commands, struct keel_kernel *kernel,
                                      const struct keel_arg *args, uint32_t arg_count,
                                      const struct keel_range *range);
/* Nothing is added any more. INVALID: nothing was. */
enum keel_status keel_commands_seal(struct keel_commands *commands);
/* Enqueue all of a sealed list. The first command waits for `waits`, the event (may be NULL) is the last
 * one's. If the driver refuses the first command, that status is returned and nothing has run. If it refuses
 * a later one, part of the list has run: the queue fails (DEVICE_LOST, with the driver's error).
 */
enum keel_status keel_queue_replay(struct keel_queue *queue, struct keel_commands *commands,
                                   const struct keel_wait_list *waits, struct keel_event **out_event);

/* Hand what is enqueued to the device without waiting. */
enum keel_status keel_queue_flush(struct keel_queue *queue);
/* Wait until all that was enqueued is done. TIMEOUT leaves it running. A queue that failed is waited for all
 * the same, and says DEVICE_LOST then; at once where the device is HUNG or LOST. */
enum keel_status keel_queue_finish(struct keel_queue *queue, uint64_t deadline_ns);
/* Mark a point of the queue: the event completes when all before it has. */
enum keel_status keel_queue_mark(struct keel_queue *queue, struct keel_event **out_event);

/* Wait (any thread). DEVICE_LOST when the command failed, TIMEOUT when it still runs. */
enum keel_status keel_event_wait(struct keel_event *event, uint64_t deadline_ns);
/* The same, of who looks up from a longer wait: that the command still runs then is no evidence against the
 * device (keel/health.h). */
enum keel_status keel_event_look(struct keel_event *event, uint64_t until_ns);
bool keel_event_done(struct keel_event *event);
void keel_event_destroy(struct keel_event *event); /* NULL is accepted; never blocks */

KEEL_API_END

#endif
