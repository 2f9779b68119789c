/* layer_fault.c - the faults done: to calls, to commands, to results and to the memory itself.
 *
 * A command that hangs, stalls or fails waits for a user event of ours besides what it waits for: so the
 * driver itself shows what a driver shows then. What is changed in memory is changed between two commands:
 * such a command, and with a defect of the memory every one that writes, is finished before its call
 * returns, as blocking drivers do anyway. */
#include "layer.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALIAS_MAX = 4096 };

static bool lost; /* under the layer's lock */

/* What is due at one call, together. */
struct due {
    cl_int error;
    bool gate, drop, block;
    int crash;        /* the signal, 0: none */
    cl_int gate_ends; /* negative: the gate fails; 0: it opens after gate_ms; 1: never */
    uint64_t gate_ms, sleep_ms, leak_bytes;
    struct layer_fault *flip;
};

/* The bytes of a command that lie in the fault's bank, or all; 0 when none do. */
static uint64_t bytes_in_bank(const struct layer_fault *fault, const struct layer_command *command)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < command->mem_count; i++) {
        const struct layer_object *buffer =
            command->mems[i] != NULL ? layer_find(KIND_BUFFER, command->mems[i]) : NULL;
        if (buffer != NULL &&
            (fault->value[KEY_BANK] == LAYER_UNSET || buffer->bank == fault->value[KEY_BANK]))
            bytes += command->call == CALL_LAUNCH ? buffer->bytes : command->bytes;
    }
    return bytes;
}

/* "gemm" is a part of the kernel's name, "gemm$" its end. */
static bool is_called(const char *name, const char *pattern)
{
    size_t length = strlen(pattern), whole = strlen(name);
    if (pattern[length - 1] != '$')
        return strstr(name, pattern) != NULL;
    return whole >= length - 1 && memcmp(name + whole - (length - 1), pattern, length - 1) == 0;
}

static bool concerns(const struct layer_fault *fault, enum layer_call call, uint64_t device, const char *name,
                     const struct layer_command *command)
{
    if (fault->head.target != call && (fault->head.target != CALL_ANY || call >= CALL_MEMORY))
        return false;
    if (!layer_filters_match(fault, command))
        return false;
    if (fault->value[KEY_DEVICE] != LAYER_UNSET && fault->value[KEY_DEVICE] != device)
        return false;
    if (fault->kernel[0] != '\0' && (name == NULL || !is_called(name, fault->kernel)))
        return false;
    return fault->value[KEY_BANK] == LAYER_UNSET || (command != NULL && bytes_in_bank(fault, command) > 0);
}

static uint64_t or_else(uint64_t value, uint64_t otherwise)
{
    return value == LAYER_UNSET ? otherwise : value;
}

static void add(struct due *due, struct layer_fault *fault, struct layer_command *command)
{
    cl_int code = (cl_int)(int64_t)or_else(fault->value[KEY_CODE], (uint64_t)(int64_t)CL_OUT_OF_RESOURCES);
    uint64_t ms = or_else(fault->value[KEY_MS], 0), mbps = or_else(fault->value[KEY_MBPS], 0);
    switch (fault->head.kind) {
    case ACTION_LOSE:
        lost = true;
        due->error = CL_DEVICE_NOT_AVAILABLE;
        break;
    case ACTION_ERROR:
        due->error = code;
        break;
    case ACTION_FAIL:
    case ACTION_HANG:
    case ACTION_STALL:
        due->gate = true;
        due->gate_ms = ms;
        due->gate_ends = fault->head.kind == ACTION_FAIL ? code : fault->head.kind == ACTION_HANG;
        break;
    case ACTION_SLOW:
        if (command != NULL)
            command->percent = or_else(fault->value[KEY_PERCENT], 0) +
                               or_else(fault->value[KEY_GROWING], 0) * (fault->when.seen - fault->when.first);
        due->sleep_ms += ms + (mbps > 0 && command != NULL ? bytes_in_bank(fault, command) / 1000 / mbps : 0);
        break;
    case ACTION_FLIP:
        due->flip = fault;
        break;
    case ACTION_DROP:
        due->drop = true;
        break;
    case ACTION_BLOCK:
        due->block = true;
        break;
    case ACTION_CRASH:
        due->crash = (int)or_else(fault->value[KEY_CODE], SIGSEGV);
        break;
    case ACTION_LEAK:
        due->drop |= fault->head.target == CALL_FREE;
        due->leak_bytes += or_else(fault->value[KEY_BYTES], 0);
        break;
    case ACTION_UNORDERED:
    case ACTION_OVERTAKE:
    case ACTION_EARLY:
    case ACTION_SHORT:
    case ACTION_SHIFT:
    case ACTION_SPILL:
    case ACTION_REGROUP:
    case ACTION_TWICE:
    case ACTION_STALE:
        due->drop |= command == NULL || layer_alter(fault, command);
        break;
    case ACTION_OPTIONS:
    case ACTION_STUCK:
    case ACTION_ALIAS:
        break;
    }
}

/* Everything that is due at this call; what ends the process or never returns does so here. */
static struct due collect(enum layer_call call, uint64_t device, const char *name,
                          struct layer_command *command)
{
    struct due due = {.error = CL_SUCCESS};
    layer_lock();
    for (uint32_t i = 0; !lost && i < layer_settings.plan.count; i++) {
        struct layer_fault *fault = &layer_settings.plan.faults[i];
        if (!concerns(fault, call, device, name, command) || !layer_fault_due(fault))
            continue;
        add(&due, fault, command);
        layer_log("fault %s:%s=%llu%s%s", layer_action_name(fault->head.kind), layer_call_name(call),
                  (unsigned long long)fault->when.seen, name != NULL ? " " : "", name != NULL ? name : "");
    }
    if (lost)
        due.error = CL_DEVICE_NOT_AVAILABLE;
    layer_unlock();
    if (due.crash != 0) {
        signal(due.crash, SIG_DFL); /* PoCL has a handler of its own */
        raise(due.crash);
    }
    while (due.block)
        pause();
    layer_leak(due.leak_bytes);
    layer_sleep_ns(due.sleep_ms * UINT64_C(1000000));
    return due;
}

cl_int layer_before_drop(enum layer_call call, cl_device_id device, const char *name, bool *dropped)
{
    *dropped = false;
    if (layer_settings.plan.count == 0)
        return CL_SUCCESS;
    struct due due = collect(call, layer_device_index(device), name, NULL);
    *dropped = due.drop;
    return due.error;
}

cl_int layer_before_call(enum layer_call call, cl_device_id device, const char *name)
{
    bool dropped = false;
    return layer_before_drop(call, device, name, &dropped);
}

cl_int layer_before_buffer(struct layer_command *sizes)
{
    if (layer_settings.plan.count == 0)
        return CL_SUCCESS;
    return collect(sizes->call, 0, NULL, sizes).error;
}

char *layer_options(const char *options)
{
    size_t bytes = (options != NULL ? strlen(options) : 0) + 1;
    for (uint32_t i = 0; i < layer_settings.plan.count; i++)
        bytes += strlen(layer_settings.plan.faults[i].add) + 1;
    char *all = malloc(bytes);
    if (all == NULL)
        return NULL;
    size_t used = (size_t)snprintf(all, bytes, "%s", options != NULL ? options : "");
    layer_lock();
    for (uint32_t i = 0; i < layer_settings.plan.count; i++) {
        struct layer_fault *fault = &layer_settings.plan.faults[i];
        if (fault->head.kind == ACTION_OPTIONS && fault->head.target == CALL_BUILD && layer_fault_due(fault))
            used += (size_t)snprintf(all + used, bytes - used, " %s", fault->add);
    }
    layer_unlock();
    return all;
}

/* ---- gates ---- */

struct opening {
    cl_event gate;
    uint64_t ms;
};

static void *open_later(void *context)
{
    struct opening *opening = context;
    layer_sleep_ns(opening->ms * UINT64_C(1000000));
    layer_next->clSetUserEventStatus(opening->gate, CL_COMPLETE);
    layer_next->clReleaseEvent(opening->gate);
    free(opening);
    return NULL;
}

static bool open_after(cl_event gate, uint64_t ms)
{
    struct opening *opening = malloc(sizeof *opening);
    pthread_t thread;
    if (opening == NULL)
        return false;
    *opening = (struct opening){gate, ms};
    layer_next->clRetainEvent(gate);
    if (pthread_create(&thread, NULL, open_later, opening) != 0) {
        layer_next->clReleaseEvent(gate);
        free(opening);
        return false;
    }
    pthread_detach(thread);
    return true;
}

static cl_int add_gate(struct layer_command *command, const struct due *due)
{
    cl_context context = NULL;
    cl_int error = layer_next->clGetCommandQueueInfo(command->queue, CL_QUEUE_CONTEXT, sizeof(cl_context),
                                                     &context, NULL);
    if (error != CL_SUCCESS || command->wait_count == LAYER_WAITS_MAX)
        return CL_OUT_OF_RESOURCES;
    command->gate = layer_next->clCreateUserEvent(context, &error);
    if (error != CL_SUCCESS)
        return error;
    command->waits[command->wait_count++] = command->gate;
    command->gate_ends = due->gate_ends;
    command->gate_ms = due->gate_ms;
    return CL_SUCCESS;
}

/* The command has been given to the driver: now its gate may do what it does. */
static void let_gate_go(struct layer_command *command)
{
    if (command->gate == NULL)
        return;
    if (command->gate_ends < 0)
        layer_next->clSetUserEventStatus(command->gate, command->gate_ends);
    else if (command->gate_ends == 0 && !open_after(command->gate, command->gate_ms))
        layer_next->clSetUserEventStatus(command->gate, CL_COMPLETE);
    if (command->gate_ends <= 0)
        layer_next->clReleaseEvent(command->gate);
}

/* ---- flips ---- */

static uint64_t bytes_of(cl_mem mem)
{
    size_t bytes = 0;
    layer_next->clGetMemObjectInfo(mem, CL_MEM_SIZE, sizeof bytes, &bytes, NULL);
    return bytes;
}

static void *look_into(cl_command_queue queue, cl_mem mem, uint64_t bytes)
{
    void *data = malloc(bytes);
    if (data != NULL &&
        layer_next->clEnqueueReadBuffer(queue, mem, CL_TRUE, 0, bytes, data, 0, NULL, NULL) != CL_SUCCESS) {
        free(data);
        data = NULL;
    }
    return data;
}

static void flip_bit(cl_command_queue queue, cl_mem mem, uint64_t bit)
{
    uint8_t byte = 0;
    layer_next->clEnqueueReadBuffer(queue, mem, CL_TRUE, bit / 8, 1, &byte, 0, NULL, NULL);
    byte ^= (uint8_t)(1U << bit % 8);
    layer_next->clEnqueueWriteBuffer(queue, mem, CL_TRUE, bit / 8, 1, &byte, 0, NULL, NULL);
    layer_log("flipped bit %llu of byte %llu", (unsigned long long)(bit % 8), (unsigned long long)(bit / 8));
}

/* Which of a launch's buffers a flip may be in. */
static bool is_open_to_flip(const struct layer_command *command, uint32_t index)
{
    uint64_t arg = command->flip->value[KEY_ARG];
    return command->mems[index] != NULL && (arg == LAYER_UNSET || arg == index);
}

static void look_before(struct layer_command *command)
{
    layer_next->clFinish(command->queue);
    for (uint32_t i = 0; i < command->mem_count; i++)
        if (is_open_to_flip(command, i))
            command->before[i] = look_into(command->queue, command->mems[i], bytes_of(command->mems[i]));
}

/* The middle one of the words that the launch changed; 0 when it changed none. */
static uint64_t changed_word(const uint8_t *before, const uint8_t *after, uint64_t bytes)
{
    uint64_t changed = 0, seen = 0;
    for (uint64_t at = 0; at + 4 <= bytes; at += 4)
        changed += memcmp(before + at, after + at, 4) != 0;
    for (uint64_t at = 0; at + 4 <= bytes; at += 4)
        if (memcmp(before + at, after + at, 4) != 0 && seen++ == changed / 2)
            return at / 4 + 1;
    return 0;
}

/* In what the launch changed; where it wrote what was there already, in the middle of its last buffer. */
static void flip_in_launch(struct layer_command *command)
{
    uint64_t bit = or_else(command->flip->value[KEY_BIT], 12) % 32;
    cl_mem last = NULL;
    bool done = false;
    for (uint32_t i = 0; i < command->mem_count; i++) {
        if (command->before[i] == NULL)
            continue;
        uint64_t bytes = bytes_of(command->mems[i]);
        uint8_t *after = done ? NULL : look_into(command->queue, command->mems[i], bytes);
        uint64_t word = after != NULL ? changed_word(command->before[i], after, bytes) : 0;
        if (word > 0)
            flip_bit(command->queue, command->mems[i], (word - 1) * 32 + bit);
        done |= word > 0;
        last = command->mems[i];
        free(after);
        free(command->before[i]);
    }
    if (!done && last != NULL)
        flip_bit(command->queue, last, bytes_of(last) / 8 * 32 + bit);
}

static void flip_result(struct layer_command *command)
{
    layer_next->clFinish(command->queue);
    uint64_t bits = command->bytes * 8;
    uint64_t bit = or_else(command->flip->value[KEY_BIT], bits / 2 + 12) % (bits > 0 ? bits : 1);
    if (command->call == CALL_LAUNCH)
        flip_in_launch(command);
    else if (command->host != NULL)
        ((uint8_t *)command->host)[bit / 8] ^= (uint8_t)(1U << bit % 8);
    else if (command->target != NULL)
        flip_bit(command->queue, command->target, command->offset * 8 + bit);
}

/* ---- defects of the memory ---- */

/* Copies between a place of the board's memory and ours; false when no buffer lies there. */
static bool reach(cl_command_queue queue, uint64_t address, uint64_t bytes, void *data, bool write)
{
    layer_lock();
    struct layer_object *buffer = layer_at(address);
    cl_mem mem = buffer != NULL ? buffer->handle : NULL;
    uint64_t offset = buffer != NULL ? address - buffer->address : 0;
    bool inside = buffer != NULL && offset + bytes <= buffer->bytes;
    layer_unlock();
    if (!inside)
        return false;
    if (write)
        return layer_next->clEnqueueWriteBuffer(queue, mem, CL_TRUE, offset, bytes, data, 0, NULL, NULL) ==
               CL_SUCCESS;
    return layer_next->clEnqueueReadBuffer(queue, mem, CL_TRUE, offset, bytes, data, 0, NULL, NULL) ==
           CL_SUCCESS;
}

static void stick(cl_command_queue queue, const struct layer_fault *fault)
{
    uint64_t address = or_else(fault->value[KEY_ADDRESS], 0), bit = or_else(fault->value[KEY_BIT], 0);
    uint8_t byte = 0, mask = (uint8_t)(1U << bit % 8);
    address += bit / 8;
    if (!reach(queue, address, 1, &byte, false))
        return;
    bool one = or_else(fault->value[KEY_VALUE], 1) != 0;
    byte = one ? (uint8_t)(byte | mask) : (uint8_t)(byte & ~mask);
    reach(queue, address, 1, &byte, true);
}

/* Two places are the same cells: what was written last to either is in both. */
static void alias(cl_command_queue queue, const struct layer_fault *fault)
{
    static uint8_t cells[ALIAS_MAX];
    uint8_t here[ALIAS_MAX], there[ALIAS_MAX];
    uint64_t bytes = or_else(fault->value[KEY_BYTES], 64), address = or_else(fault->value[KEY_ADDRESS], 0);
    uint64_t to = or_else(fault->value[KEY_TO], 0);
    bytes = bytes > ALIAS_MAX ? ALIAS_MAX : bytes;
    if (!reach(queue, address, bytes, here, false) || !reach(queue, to, bytes, there, false))
        return;
    memcpy(cells, memcmp(there, cells, bytes) != 0 ? there : here, bytes);
    reach(queue, address, bytes, cells, true);
    reach(queue, to, bytes, cells, true);
}

static void wear(const struct layer_command *command)
{
    layer_next->clFinish(command->queue);
    for (uint32_t i = 0; i < layer_settings.plan.count; i++) {
        const struct layer_fault *fault = &layer_settings.plan.faults[i];
        if (fault->head.kind == ACTION_STUCK)
            stick(command->queue, fault);
        else if (fault->head.kind == ACTION_ALIAS)
            alias(command->queue, fault);
    }
}

static bool writes(enum layer_call call)
{
    return call == CALL_LAUNCH || call == CALL_WRITE || call == CALL_COPY || call == CALL_FILL ||
           call == CALL_UNMAP;
}

/* ---- a command ---- */

static uint64_t index_of(cl_command_queue queue)
{
    layer_lock();
    const struct layer_object *object = layer_find(KIND_QUEUE, queue);
    uint64_t index = object != NULL ? object->device : 0;
    layer_unlock();
    return index;
}

static void name_of(cl_kernel kernel, char out[LAYER_NAME_BYTES])
{
    layer_lock();
    const struct layer_object *object = kernel != NULL ? layer_find(KIND_KERNEL, kernel) : NULL;
    snprintf(out, LAYER_NAME_BYTES, "%s", object != NULL ? object->name : "");
    layer_unlock();
}

bool layer_begin(struct layer_command *command, cl_uint wait_count, const cl_event *waits, cl_event *event,
                 cl_int *error)
{
    command->event = event;
    command->home = command->queue;
    if (wait_count >= LAYER_WAITS_MAX || (wait_count > 0) != (waits != NULL)) {
        *error = CL_INVALID_EVENT_WAIT_LIST;
        return false;
    }
    if (wait_count > 0)
        memcpy(command->waits, waits, wait_count * sizeof(cl_event));
    command->wait_count = wait_count;
    if (layer_settings.plan.count == 0)
        return true;
    char name[LAYER_NAME_BYTES];
    name_of(command->kernel, name);
    struct due due =
        collect(command->call, index_of(command->queue), command->kernel != NULL ? name : NULL, command);
    *error = due.error;
    if (due.error == CL_SUCCESS && due.gate)
        *error = add_gate(command, &due);
    if (*error != CL_SUCCESS)
        return false;
    command->flip = due.flip;
    if (due.flip != NULL && command->call == CALL_LAUNCH)
        look_before(command);
    layer_altered_begin(command);
    if (!due.drop)
        return true;
    *error = layer_next->clEnqueueMarkerWithWaitList(command->queue, command->wait_count,
                                                     layer_waits(command), command->event);
    let_gate_go(command);
    layer_altered_end(command, *error);
    return false;
}

const cl_event *layer_waits(const struct layer_command *command)
{
    return command->wait_count > 0 ? command->waits : NULL;
}

cl_int layer_end(struct layer_command *command, cl_int error)
{
    let_gate_go(command);
    if (layer_settings.plan.count > 0)
        layer_altered_end(command, error);
    if (error != CL_SUCCESS || layer_settings.plan.count == 0)
        return error;
    if (command->flip != NULL)
        flip_result(command);
    if (layer_settings.plan.has_memory_defects && writes(command->call))
        wear(command);
    return error;
}
