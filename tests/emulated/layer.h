/* layer.h - what the files of the emulated boards' OpenCL layer share; the layer itself is layer.c.
 *
 * layer_plan.c reads the faults and knows when each is due, layer_defect.c changes commands, layer_objects.c
 * knows what was made and where it lies in the board's memory, layer_fault.c does the faults,
 * layer_identity.c says what the board is, layer_code.c loads its code, layer.c puts them before the driver.
 */
#ifndef KEEL_EMULATED_LAYER_H
#define KEEL_EMULATED_LAYER_H

#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <CL/cl_layer.h>
#include <keel/fault.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LAYER_FAULTS_MAX = 32,
    LAYER_ARGS_MAX = 64,
    LAYER_WAITS_MAX = 64,
    LAYER_BANKS_MAX = 8,
    LAYER_NAME_BYTES = 128,
    LAYER_PATH_BYTES = 256
};

/* ---- the plan of faults (layer_plan.c) ---- */

/* Those behind `any`, which has the ones before it, are named one by one; `memory` is no call, but a defect
 * of the memory itself. */
#define LAYER_CALLS(X)                                                                                       \
    X(BUFFER, "buffer")                                                                                      \
    X(QUEUE, "queue")                                                                                        \
    X(PROGRAM, "program")                                                                                    \
    X(BUILD, "build")                                                                                        \
    X(KERNEL, "kernel")                                                                                      \
    X(LAUNCH, "launch")                                                                                      \
    X(READ, "read")                                                                                          \
    X(WRITE, "write")                                                                                        \
    X(COPY, "copy")                                                                                          \
    X(FILL, "fill")                                                                                          \
    X(MAP, "map")                                                                                            \
    X(UNMAP, "unmap")                                                                                        \
    X(MARK, "mark")                                                                                          \
    X(FLUSH, "flush")                                                                                        \
    X(MEMORY, "memory")                                                                                      \
    X(ANY, "any")                                                                                            \
    X(SLICE, "slice")                                                                                        \
    X(ARG, "arg")                                                                                            \
    X(WAIT, "wait")                                                                                          \
    X(CALLBACK, "callback")                                                                                  \
    X(LOOK, "look")                                                                                          \
    X(CONTEXT, "context")                                                                                    \
    X(FREE, "free")                                                                                          \
    X(CLOSE_QUEUE, "close-queue")                                                                            \
    X(CLOSE_PROGRAM, "close-program")                                                                        \
    X(CLOSE_KERNEL, "close-kernel")                                                                          \
    X(CLOSE, "close")                                                                                        \
    X(EXIT, "exit")
#define LAYER_ACTIONS(X)                                                                                     \
    X(ERROR, "error")                                                                                        \
    X(FAIL, "fail")                                                                                          \
    X(LOSE, "lose")                                                                                          \
    X(HANG, "hang")                                                                                          \
    X(STALL, "stall")                                                                                        \
    X(SLOW, "slow")                                                                                          \
    X(BLOCK, "block")                                                                                        \
    X(CRASH, "crash")                                                                                        \
    X(FLIP, "flip")                                                                                          \
    X(DROP, "drop")                                                                                          \
    X(OPTIONS, "options")                                                                                    \
    X(STUCK, "stuck")                                                                                        \
    X(ALIAS, "alias")                                                                                        \
    X(UNORDERED, "unordered")                                                                                \
    X(OVERTAKE, "overtake")                                                                                  \
    X(EARLY, "early")                                                                                        \
    X(SHORT, "short")                                                                                        \
    X(SHIFT, "shift")                                                                                        \
    X(SPILL, "spill")                                                                                        \
    X(REGROUP, "regroup")                                                                                    \
    X(TWICE, "twice")                                                                                        \
    X(STALE, "stale")                                                                                        \
    X(LEAK, "leak")
/* Values of actions; filters of commands, from `over` on; how much an action does, from `keep` on. */
#define LAYER_KEYS(X)                                                                                        \
    X(CODE, "code")                                                                                          \
    X(MS, "ms")                                                                                              \
    X(MBPS, "mbps")                                                                                          \
    X(DEVICE, "device")                                                                                      \
    X(BANK, "bank")                                                                                          \
    X(ARG, "arg")                                                                                            \
    X(BIT, "bit")                                                                                            \
    X(ADDRESS, "address")                                                                                    \
    X(BYTES, "bytes")                                                                                        \
    X(TO, "to")                                                                                              \
    X(VALUE, "value")                                                                                        \
    X(OVER, "over")                                                                                          \
    X(RAGGED, "ragged")                                                                                      \
    X(UNALIGNED, "unaligned")                                                                                \
    X(HOST, "host")                                                                                          \
    X(GROUPS, "groups")                                                                                      \
    X(ROWS, "rows")                                                                                          \
    X(SLABS, "slabs")                                                                                        \
    X(ITEMS, "items")                                                                                        \
    X(QUEUE, "queue")                                                                                        \
    X(DEPTH, "depth")                                                                                        \
    X(LIVE, "live")                                                                                          \
    X(BUSY, "busy")                                                                                          \
    X(FOREIGN, "foreign")                                                                                    \
    X(AFTER, "after_ms")                                                                                     \
    X(IDLE, "idle_ms")                                                                                       \
    X(KEEP, "keep")                                                                                          \
    X(LESS, "less")                                                                                          \
    X(WRAP, "wrap")                                                                                          \
    X(ALIGN, "align")                                                                                        \
    X(PERCENT, "percent")                                                                                    \
    X(GROWING, "growing")

#define LAYER_CALL(name, text)   CALL_##name,
#define LAYER_ACTION(name, text) ACTION_##name,
#define LAYER_KEY(name, text)    KEY_##name,
enum layer_call { LAYER_CALLS(LAYER_CALL) CALL_COUNT };
enum layer_action { LAYER_ACTIONS(LAYER_ACTION) ACTION_COUNT };
enum layer_key { LAYER_KEYS(LAYER_KEY) KEY_COUNT };

struct layer_fault {
    struct keel_fault_head head; /* enum layer_action, enum layer_call */
    struct keel_fault_when when; /* of the calls that match */
    char kernel[LAYER_NAME_BYTES];
    char add[LAYER_NAME_BYTES];
    char once[LAYER_PATH_BYTES], until[LAYER_PATH_BYTES];
    uint64_t value[KEY_COUNT];
};

#define LAYER_UNSET UINT64_MAX

struct layer_plan {
    struct layer_fault faults[LAYER_FAULTS_MAX];
    uint32_t count;
    bool has_memory_defects;
    bool drops_unmaps;
    bool counts_commands; /* a fault asks how many commands wait in a queue */
};

/* Reads a plan; false with the word that is wrong in `wrong`. */
bool layer_plan_parse(const char *text, struct layer_plan *out, char wrong[KEEL_FAULT_WHY_BYTES]);
/* Counts a matching call; true when the fault is due at it. Caller holds the layer's lock. */
bool layer_fault_due(struct layer_fault *fault);
const char *layer_action_name(enum layer_action action);
const char *layer_call_name(enum layer_call call);

/* ---- what was made (layer_objects.c) ---- */

enum layer_kind { KIND_BUFFER, KIND_PROGRAM, KIND_KERNEL, KIND_QUEUE };

struct layer_object {
    struct layer_object *next;  /* of its bucket */
    struct layer_object *above; /* buffers: the next one in the board's memory */
    void *handle;
    enum layer_kind kind;
    uint32_t uses;
    void *parent;                  /* program of a kernel; buffer of a slice */
    uint64_t address, bytes, bank; /* buffers */
    uint64_t device;               /* queues, programs: the number of their device */
    uint64_t number;               /* queues: how many of the device live, itself included */
    uint64_t pending;              /* queues: commands that are not done, where faults ask for it */
    void *side;                    /* queues: where commands go that overtake; NULL: none yet */
    uint64_t touched_ms;           /* buffers: when a command last named it */
    uint64_t set;                  /* kernels: a bit for each argument that was set */
    uint64_t image;                /* programs: which image holds it, 0: none */
    bool from_source, finished;    /* programs: finished when it may not be built again */
    cl_int build_error;            /* programs: with which the layer refused the newest build, else 0 */
    char *names;                   /* programs: the built-in kernels "a;b" that were asked for, else NULL */
    char *stored;                  /* and all that the stored binary has */
    cl_context context;            /* and where it was loaded */
    char *sizes;                   /* programs: the group sizes in the binary, NULL: any */
    char name[LAYER_NAME_BYTES];   /* kernels */
    cl_mem args[LAYER_ARGS_MAX];   /* kernels: NULL where the argument is no buffer */
};

/* All under layer_lock. add replaces what was known of a handle that came back; find may give NULL. */
struct layer_object *layer_add(enum layer_kind kind, void *handle);
struct layer_object *layer_find(enum layer_kind kind, const void *handle);
void layer_keep(enum layer_kind kind, const void *handle);
/* One use less; with the last one the object is forgotten. */
void layer_drop(enum layer_kind kind, void *handle);
void layer_each(enum layer_kind kind, void (*visit)(struct layer_object *, void *), void *context);
/* A place for a buffer in the board's memory; false when there is none. */
bool layer_place(struct layer_object *buffer, uint64_t bytes, uint64_t bank);
/* The buffer (no slice) that covers an address, or NULL. */
struct layer_object *layer_at(uint64_t address);

/* ---- a command on its way to the driver (layer_fault.c) ---- */

struct layer_command {
    enum layer_call call;
    cl_command_queue queue;
    cl_command_queue home; /* where the application put it */
    cl_kernel kernel;
    cl_mem mems[LAYER_ARGS_MAX];
    uint32_t mem_count;
    size_t offset, bytes; /* of the target; of a read, of what it reads */
    size_t from;          /* copies: offset in the source */
    cl_mem target;        /* what the command writes, NULL for a launch and a read */
    void *host;           /* what a read writes */
    bool blocking;
    cl_uint dimensions; /* launches */
    size_t global[3], local[3];
    bool has_local, twice, overtakes;
    cl_uint wait_count;
    cl_event waits[LAYER_WAITS_MAX];
    cl_event *event;
    cl_event *early;    /* where the application wants its event, and gets one that is done already */
    cl_event own_event; /* where a command is counted and the application asks for no event */
    const struct layer_fault *spill, *stale;
    uint64_t percent, begun_ns; /* slow by a share of its own time */
    struct layer_fault *flip;
    void *before[LAYER_ARGS_MAX]; /* a flip in a launch: what its buffers held */
    cl_event gate;
    cl_int gate_ends; /* negative: it fails; 0: it opens after gate_ms; 1: never */
    uint64_t gate_ms;
};

/* The faults of a call that enqueues nothing. CL_SUCCESS: go on. */
cl_int layer_before_call(enum layer_call call, cl_device_id device, const char *name);
/* The same of a call that may also be left undone: *dropped. */
cl_int layer_before_drop(enum layer_call call, cl_device_id device, const char *name, bool *dropped);
/* The same of a buffer or slice that is made: offset and bytes may be changed. */
cl_int layer_before_buffer(struct layer_command *sizes);
/* Takes the waits over and does what is due before; true: give it to the driver with command->waits. False:
 * it is done, with *error. */
bool layer_begin(struct layer_command *command, cl_uint wait_count, const cl_event *waits, cl_event *event,
                 cl_int *error);
const cl_event *layer_waits(const struct layer_command *command); /* NULL when there are none */
cl_int layer_end(struct layer_command *command, cl_int error);
/* ---- what a driver does wrong to a command (layer_defect.c) ---- */

/* Do the fault's filters let this command pass? Caller holds the lock. */
bool layer_filters_match(const struct layer_fault *fault, const struct layer_command *command);
/* Changes the command as the fault says; true: nothing is left of it to do. Caller holds the lock. */
bool layer_alter(const struct layer_fault *fault, struct layer_command *command);
/* Before the command is given to the driver, after it. Without the lock. */
void layer_altered_begin(struct layer_command *command);
void layer_altered_end(struct layer_command *command, cl_int error);
/* What a map gave, and its unmap, done or lost. */
void layer_mapped(cl_command_queue queue, void *at, size_t bytes);
void layer_unmapped(void *at, bool lost);
/* Memory of the process that nobody gives back. */
void layer_leak(uint64_t bytes);
uint64_t layer_now_ns(void);

/* Build options with what the faults add; the caller frees. */
char *layer_options(const char *options);

/* ---- identity (layer_identity.c) and code (layer_code.c) ---- */

enum layer_board { BOARD_PLAIN, BOARD_FPGA, BOARD_NPU };

struct layer_settings {
    enum layer_board board;
    const char *over;
    const char *store;
    const char *info;
    uint64_t memory_bytes, max_buffer_bytes, banks; /* what it really has; 0: what the driver has */
    uint64_t reprogram_ms;
    struct layer_plan plan;
};

extern struct layer_settings layer_settings;
extern const struct _cl_icd_dispatch *layer_next;

void layer_lock(void);
void layer_unlock(void);
/* One line in EMULATED_LOG. */
void layer_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A setting that is not understood ends the process: a test must not run without its fault. */
_Noreturn void layer_refuse(const char *variable, const char *word);
void layer_sleep_ns(uint64_t ns);

/* The number of a device among those that the layer shows. */
uint64_t layer_device_index(cl_device_id device);
/* A number: decimal or 0x, with k, m or g behind it. */
uint64_t layer_bytes(const char *text);
void layer_info_check(void);
/* A query's answer in the manner of OpenCL. */
cl_int layer_answer(const void *data, size_t bytes, size_t value_bytes, void *value, size_t *value_bytes_ret);
void layer_identity_install(struct _cl_icd_dispatch *table);
void layer_code_install(struct _cl_icd_dispatch *table);
/* ';'-separated names of the NPU's kernels; the caller frees. */
char *layer_built_in_names(cl_device_id device);
/* May this launch run on what the board holds now? */
cl_int layer_launch_allowed(const struct layer_object *kernel, cl_uint dimensions, const size_t *local);

#endif
