/* layer.c - an OpenCL layer that makes boards of other kinds out of the drivers that are here.
 *
 * build/libkeel-emulated.so stands between the OpenCL loader and a driver; the driver computes, the layer
 * hides, limits, and breaks what it is told to. It is a driver's part and no part of Keel: it includes none
 * of it. It is loaded by
 *
 *   OPENCL_LAYERS=build/libkeel-emulated.so EMULATED_BOARD=fpga keel board list
 *
 * and shows one platform ("Emulated Boards", selector emulated:0); other platforms are hidden.
 *
 * EMULATED_BOARD
 *   fpga   no compiler, embedded profile, 256 MiB in 2 banks, buffers of 64 MiB; code from binaries only,
 *          one image at a time: another one is put on the board only while it is idle (else
 *          CL_INVALID_OPERATION), which takes EMULATED_REPROGRAM_MS; a kernel of the image that went is
 *          refused (CL_INVALID_PROGRAM_EXECUTABLE), and so are groups of a size that the binary has no
 *          machine code for (CL_INVALID_WORK_GROUP_SIZE)
 *   npu    no compiler, no binaries: built-in kernels only, served from the PoCL binaries in the folder
 *          EMULATED_STORE; 256 MiB, buffers of 128 MiB
 *   plain  the driver as it is (default): for faults alone
 * EMULATED_OVER: pocl (default), rusticl, or a part of a platform's name: what computes.
 * EMULATED_STORE: see npu; the artifacts of emulated/fpga serve.
 * EMULATED_MEMORY, EMULATED_BUFFER: bytes (k, m, g) that there really are, in all and for one buffer.
 * EMULATED_BANKS: banks of equal size; a buffer lies in the one that it names (as with Intel's boards:
 *   1 << 16 in its flags is the first), else in the first that has a place.
 * EMULATED_REPROGRAM_MS: 100.
 * EMULATED_INFO: "key=value;...", what the device claims, true or not. Keys: name vendor vendor_id version
 *   driver profile extensions type (2 cpu, 4 gpu, 8 accelerator) compiler linker unified available
 *   little_endian align_bits units group_items item_sizes local local_type (1 memory of its own, 2 a part of
 *   the other) lanes (that run in step) private (of each kernel) memory buffer single_fp double_fp
 *   times_per_us (the unit of when commands began and ended: 1000 is right), and which card it is, by the
 *   queries of extensions: uuid, pci, topology_amd (hexadecimal digits, as the bytes lie in memory),
 *   pci_bus_nv, pci_slot_nv.
 * EMULATED_LOG: a file that gets a line for each program, build, reprogramming and fault.
 * EMULATED_FAULTS: faults as in keel/fault.h, each ACTION:CALL=WHEN[,key=value...]
 *
 * CALL is buffer queue program build kernel launch read write copy fill map unmap mark flush, or any of
 * these; or slice (clCreateSubBuffer), arg (clSetKernelArg), wait (clWaitForEvents), callback
 * (clSetEventCallback), look (clGetEventInfo of what became of a command), context (clCreateContext), free
 * (clReleaseMemObject), close-queue, close-program, close-kernel, close (clReleaseContext), exit (the
 * driver's own handler at the end of the process).
 *
 * WHEN counts, in this process, the calls that match the fault's filters:
 *   kernel=PART       of the kernel's name (PART$: its end)
 *   device=N, bank=N  a buffer of the command lies in that bank
 *   once=FILE         not if FILE is there; it is made when the fault comes (one fault in many processes)
 *   until=FILE        made when the fault comes; while FILE is there the fault comes at every call, also in
 *                     new processes: a board that stays broken until its reset, which is `rm FILE`
 *   over=N            more than N bytes (of an unmap: in its buffer)
 *   ragged=N          the bytes are no multiple of N
 *   unaligned=N       an offset is no multiple of N
 *   host=N            the host address of a read is no multiple of N
 *   groups=N          more than N groups; rows=N: more than N of them in y; slabs=N: in z
 *   items=N           more than N work-items in a group
 *   queue=N           the queue was at least the N-th of its device that lived when it was made
 *   depth=N           more than N commands are not done in the queue
 *   busy=1            another queue of the device has commands that are not done
 *   foreign=1         an event of another queue is among the waits
 *   live=N            more than N buffers live
 *   after_ms=N        later than that after the first command of the process
 *   idle_ms=N         no command named the buffer for so long
 * ACTION
 *   error      the call returns code=N (default -5, CL_OUT_OF_RESOURCES) and does nothing
 *   fail       the command ends with code=N instead of being done
 *   lose       this call and all later ones: CL_DEVICE_NOT_AVAILABLE
 *   hang       the command never ends
 *   stall      it ends late, by ms=N, and the call returns at once
 *   slow       the call takes longer: by ms=N, by what its bytes take at mbps=N megabytes a second (of a
 *              launch: the bytes of its buffers, those in the bank if one is named), by percent=N of the time
 *              that the command takes, or by growing=N percent of it for each such call since the first slow
 *              one
 *   block      the call never returns
 *   crash      the process dies in it, of SIGSEGV or the signal code=N
 *   flip       one bit of the result is wrong: of what a launch changed (arg=N: in that argument; bit=N of
 *              32), or of the bytes read, written, copied or filled (bit=N of all)
 *   drop       the command says that it is done, and was not; a build forgets its options
 *   options    of build: add=OPTION is given to the compiler (-cl-denorms-are-zero, -cl-fast-relaxed-math)
 *   unordered  the list of events to wait for is ignored (but for the first keep=N)
 *   overtake   the command does not wait for the commands before it in its queue
 *   early      its event says that it is done while it is not
 *   short      a part of it is done: the first keep=N bytes, less=N bytes fewer, the bytes modulo wrap=N,
 *              down to a multiple of align=N; of a launch: the groups, rows or slabs that the filter allows
 *   shift      the offsets are wrong: modulo wrap=N, or down to a multiple of align=N
 *   spill      a write, fill or read goes on with zeros up to a multiple of align=N
 *   regroup    the groups of a launch are halved in x
 *   twice      a launch is done two times
 *   stale      a read gives what the last read of the same place gave; an argument keeps its last value
 *   leak       of free: the memory is not given back; bytes=N: the process loses so much at each such call
 *   stuck      of memory: stuck:memory=*,address=N,bit=N,value=0|1 is a cell that keeps its value
 *   alias      of memory: alias:memory=*,address=N,to=N,bytes=N are two places with the same cells
 * Addresses count from 0 over the board's memory, bank after bank; buffers take the lowest place free.
 * A setting that is not understood ends the process with 2, so that no test runs without its fault.
 *
 * Threads: any. The lock guards what is known of objects and is never held in a call that waits. */
#include "layer.h"
#include <CL/cl_icd.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct layer_settings layer_settings;
const struct _cl_icd_dispatch *layer_next;
static struct _cl_icd_dispatch own_dispatch;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_file = -1;

void layer_lock(void)
{
    pthread_mutex_lock(&lock);
}

void layer_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

void layer_log(const char *format, ...)
{
    if (log_file < 0)
        return;
    char line[512];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(line, sizeof line - 1, format, list);
    va_end(list);
    size_t bytes = length < (int)sizeof line - 1 ? (size_t)length : sizeof line - 2;
    line[bytes] = '\n';
    if (write(log_file, line, bytes + 1) < 0)
        log_file = -1;
}

_Noreturn void layer_refuse(const char *variable, const char *word)
{
    fprintf(stderr, "emulated board: %s: \"%s\" is not understood; see tests/emulated/layer.c\n", variable,
            word);
    _exit(2);
}

void layer_sleep_ns(uint64_t ns)
{
    struct timespec left = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    while (ns > 0 && nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

/* ---- buffers and queues ---- */

/* Which bank the application names, as with Intel's boards: CL_CHANNEL_1_INTELFPGA is 1 << 16, and so on. */
static uint64_t take_bank(cl_mem_flags *flags)
{
    const cl_mem_flags channels = (cl_mem_flags)7 << 16;
    uint64_t channel = (*flags & channels) >> 16;
    *flags &= ~channels;
    return channel > 0 ? channel - 1 : LAYER_UNSET;
}

static cl_mem place(cl_mem mem, uint64_t bytes, uint64_t bank, cl_int *error)
{
    layer_lock();
    struct layer_object *object = layer_add(KIND_BUFFER, mem);
    bool placed = layer_place(object, bytes, bank);
    if (!placed)
        layer_drop(KIND_BUFFER, mem);
    layer_unlock();
    if (placed)
        return mem;
    layer_next->clReleaseMemObject(mem);
    *error = CL_MEM_OBJECT_ALLOCATION_FAILURE;
    return NULL;
}

static cl_mem CL_API_CALL create_buffer(cl_context context, cl_mem_flags flags, size_t bytes, void *host,
                                        cl_int *error_ret)
{
    struct layer_command sizes = {.call = CALL_BUFFER, .bytes = bytes};
    cl_int error = layer_before_buffer(&sizes);
    cl_mem mem = NULL;
    uint64_t bank = layer_settings.banks > 1 ? take_bank(&flags) : LAYER_UNSET;
    if (error == CL_SUCCESS && layer_settings.max_buffer_bytes > 0 && bytes > layer_settings.max_buffer_bytes)
        error = CL_INVALID_BUFFER_SIZE;
    if (error == CL_SUCCESS)
        mem = layer_next->clCreateBuffer(context, flags, bytes, host, &error);
    if (mem != NULL)
        mem = place(mem, bytes, bank, &error);
    if (error_ret != NULL)
        *error_ret = error;
    return mem;
}

static cl_mem CL_API_CALL create_sub_buffer(cl_mem buffer, cl_mem_flags flags, cl_buffer_create_type type,
                                            const void *info, cl_int *error_ret)
{
    struct layer_command command = {.call = CALL_SLICE};
    cl_buffer_region altered = {0};
    const cl_buffer_region *region = info;
    if (type == CL_BUFFER_CREATE_TYPE_REGION && info != NULL) {
        command.offset = region->origin;
        command.bytes = region->size;
        (void)layer_before_buffer(&command);
        altered = (cl_buffer_region){command.offset, command.bytes};
        region = &altered;
    }
    cl_mem mem = layer_next->clCreateSubBuffer(buffer, flags, type, region, error_ret);
    if (mem == NULL || region == NULL)
        return mem;
    layer_lock();
    const struct layer_object *whole = layer_find(KIND_BUFFER, buffer);
    uint64_t address = whole != NULL ? whole->address + region->origin : 0,
             bank = whole != NULL ? whole->bank : 0;
    struct layer_object *object = layer_add(KIND_BUFFER, mem);
    object->parent = buffer;
    object->address = address;
    object->bank = bank;
    object->bytes = region->size;
    layer_unlock();
    return mem;
}

static cl_int CL_API_CALL retain_mem(cl_mem mem)
{
    layer_lock();
    layer_keep(KIND_BUFFER, mem);
    layer_unlock();
    return layer_next->clRetainMemObject(mem);
}

static cl_int CL_API_CALL release_mem(cl_mem mem)
{
    bool kept = false;
    cl_int error = layer_before_drop(CALL_FREE, NULL, NULL, &kept);
    if (error != CL_SUCCESS || kept)
        return error;
    layer_lock();
    layer_drop(KIND_BUFFER, mem);
    layer_unlock();
    return layer_next->clReleaseMemObject(mem);
}

static void count_other(struct layer_object *queue, void *context)
{
    struct layer_object *own = context;
    own->number += queue != own && queue->device == own->device;
}

static cl_command_queue CL_API_CALL create_queue(cl_context context, cl_device_id device,
                                                 cl_command_queue_properties properties, cl_int *error_ret)
{
    cl_int error = layer_before_call(CALL_QUEUE, device, NULL);
    cl_command_queue queue = NULL;
    if (error == CL_SUCCESS)
        queue = layer_next->clCreateCommandQueue(context, device, properties, &error);
    if (queue != NULL) {
        layer_lock();
        struct layer_object *object = layer_add(KIND_QUEUE, queue);
        object->device = layer_device_index(device);
        object->number = 1;
        layer_each(KIND_QUEUE, count_other, object);
        layer_unlock();
    }
    if (error_ret != NULL)
        *error_ret = error;
    return queue;
}

static cl_int CL_API_CALL retain_queue(cl_command_queue queue)
{
    layer_lock();
    layer_keep(KIND_QUEUE, queue);
    layer_unlock();
    return layer_next->clRetainCommandQueue(queue);
}

static cl_int CL_API_CALL release_queue(cl_command_queue queue)
{
    (void)layer_before_call(CALL_CLOSE_QUEUE, NULL, NULL);
    layer_lock();
    struct layer_object *object = layer_find(KIND_QUEUE, queue);
    cl_command_queue side = object != NULL && object->uses == 1 ? object->side : NULL;
    layer_drop(KIND_QUEUE, queue);
    layer_unlock();
    if (side != NULL)
        layer_next->clReleaseCommandQueue(side);
    return layer_next->clReleaseCommandQueue(queue);
}

static cl_int CL_API_CALL flush(cl_command_queue queue)
{
    struct layer_command command = {.call = CALL_FLUSH, .queue = queue};
    cl_int error = CL_SUCCESS;
    if (!layer_begin(&command, 0, NULL, NULL, &error))
        return error;
    return layer_end(&command, layer_next->clFlush(queue));
}

/* ---- contexts and events ---- */

static cl_context CL_API_CALL create_context(
    const cl_context_properties *properties, cl_uint count, const cl_device_id *list,
    void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *), void *user, cl_int *error_ret)
{
    cl_int error = layer_before_call(CALL_CONTEXT, count > 0 && list != NULL ? list[0] : NULL, NULL);
    cl_context context = NULL;
    if (error == CL_SUCCESS)
        context = layer_next->clCreateContext(properties, count, list, notify, user, &error);
    if (error_ret != NULL)
        *error_ret = error;
    return context;
}

static cl_int CL_API_CALL release_context(cl_context context)
{
    (void)layer_before_call(CALL_CLOSE, NULL, NULL);
    return layer_next->clReleaseContext(context);
}

static cl_int CL_API_CALL wait_for_events(cl_uint count, const cl_event *list)
{
    bool dropped = false;
    cl_int error = layer_before_drop(CALL_WAIT, NULL, NULL, &dropped);
    if (error != CL_SUCCESS || !dropped)
        return error != CL_SUCCESS ? error : layer_next->clWaitForEvents(count, list);
    for (cl_uint i = 0; i < count; i++) {
        cl_command_queue queue = NULL;
        layer_next->clGetEventInfo(list[i], CL_EVENT_COMMAND_QUEUE, sizeof(cl_command_queue), &queue, NULL);
        if (queue != NULL)
            layer_next->clFlush(queue);
    }
    return CL_SUCCESS;
}

static cl_int CL_API_CALL set_callback(cl_event event, cl_int type,
                                       void(CL_CALLBACK *notify)(cl_event, cl_int, void *), void *user)
{
    bool dropped = false;
    cl_int error = layer_before_drop(CALL_CALLBACK, NULL, NULL, &dropped);
    if (error != CL_SUCCESS || dropped)
        return error;
    return layer_next->clSetEventCallback(event, type, notify, user);
}

static cl_int CL_API_CALL get_event_info(cl_event event, cl_event_info name, size_t bytes, void *out,
                                         size_t *out_bytes)
{
    cl_int error = CL_SUCCESS;
    if (name == CL_EVENT_COMMAND_EXECUTION_STATUS)
        error = layer_before_call(CALL_LOOK, NULL, NULL);
    return error != CL_SUCCESS ? error : layer_next->clGetEventInfo(event, name, bytes, out, out_bytes);
}

static void at_exit(void)
{
    (void)layer_before_call(CALL_EXIT, NULL, NULL);
}

/* ---- commands ---- */

static cl_int CL_API_CALL enqueue_read(cl_command_queue queue, cl_mem mem, cl_bool blocking, size_t offset,
                                       size_t bytes, void *data, cl_uint count, const cl_event *waits,
                                       cl_event *event)
{
    struct layer_command command = {.call = CALL_READ,
                                    .queue = queue,
                                    .mems = {mem},
                                    .mem_count = 1,
                                    .offset = offset,
                                    .bytes = bytes,
                                    .host = data,
                                    .blocking = blocking};
    cl_int error = CL_SUCCESS;
    if (!layer_begin(&command, count, waits, event, &error))
        return error;
    return layer_end(&command, layer_next->clEnqueueReadBuffer(command.queue, mem, blocking, command.offset,
                                                               command.bytes, data, command.wait_count,
                                                               layer_waits(&command), command.event));
}

static cl_int CL_API_CALL enqueue_write(cl_command_queue queue, cl_mem mem, cl_bool blocking, size_t offset,
                                        size_t bytes, const void *data, cl_uint count, const cl_event *waits,
                                        cl_event *event)
{
    struct layer_command command = {.call = CALL_WRITE,
                                    .queue = queue,
                                    .mems = {mem},
                                    .mem_count = 1,
                                    .target = mem,
                                    .offset = offset,
                                    .bytes = bytes};
    cl_int error = CL_SUCCESS;
    if (!layer_begin(&command, count, waits, event, &error))
        return error;
    return layer_end(&command, layer_next->clEnqueueWriteBuffer(command.queue, mem, blocking, command.offset,
                                                                command.bytes, data, command.wait_count,
                                                                layer_waits(&command), command.event));
}

static cl_int CL_API_CALL enqueue_copy(cl_command_queue queue, cl_mem source, cl_mem target,
                                       size_t source_offset, size_t target_offset, size_t bytes,
                                       cl_uint count, const cl_event *waits, cl_event *event)
{
    struct layer_command command = {.call = CALL_COPY,
                                    .queue = queue,
                                    .mems = {target, source},
                                    .mem_count = 2,
                                    .target = target,
                                    .offset = target_offset,
                                    .from = source_offset,
                                    .bytes = bytes};
    cl_int error = CL_SUCCESS;
    if (!layer_begin(&command, count, waits, event, &error))
        return error;
    return layer_end(&command, layer_next->clEnqueueCopyBuffer(
                                   command.queue, source, target, command.from, command.offset, command.bytes,
                                   command.wait_count, layer_waits(&command), command.event));
}

static cl_int CL_API_CALL enqueue_fill(cl_command_queue queue, cl_mem mem, const void *pattern,
                                       size_t pattern_bytes, size_t offset, size_t bytes, cl_uint count,
                                       const cl_event *waits, cl_event *event)
{
    struct layer_command command = {.call = CALL_FILL,
                                    .queue = queue,
                                    .mems = {mem},
                                    .mem_count = 1,
                                    .target = mem,
                                    .offset = offset,
                                    .bytes = bytes};
    cl_int error = CL_SUCCESS;
    if (!layer_begin(&command, count, waits, event, &error))
        return error;
    return layer_end(&command, layer_next->clEnqueueFillBuffer(
                                   command.queue, mem, pattern, pattern_bytes, command.offset, command.bytes,
                                   command.wait_count, layer_waits(&command), command.event));
}

static void *CL_API_CALL enqueue_map(cl_command_queue queue, cl_mem mem, cl_bool blocking, cl_map_flags flags,
                                     size_t offset, size_t bytes, cl_uint count, const cl_event *waits,
                                     cl_event *event, cl_int *error_ret)
{
    struct layer_command command = {
        .call = CALL_MAP, .queue = queue, .mems = {mem}, .mem_count = 1, .offset = offset, .bytes = bytes};
    cl_int error = CL_SUCCESS;
    void *pointer = NULL;
    if (layer_begin(&command, count, waits, event, &error)) {
        pointer =
            layer_next->clEnqueueMapBuffer(command.queue, mem, blocking, flags, command.offset, command.bytes,
                                           command.wait_count, layer_waits(&command), command.event, &error);
        error = layer_end(&command, error);
        layer_mapped(command.queue, pointer, command.bytes);
    }
    if (error_ret != NULL)
        *error_ret = error;
    return pointer;
}

static cl_int CL_API_CALL enqueue_unmap(cl_command_queue queue, cl_mem mem, void *pointer, cl_uint count,
                                        const cl_event *waits, cl_event *event)
{
    struct layer_command command = {.call = CALL_UNMAP, .queue = queue, .mems = {mem}, .mem_count = 1};
    cl_int error = CL_SUCCESS;
    bool lost = !layer_begin(&command, count, waits, event, &error);
    layer_unmapped(pointer, lost);
    if (lost)
        return error;
    return layer_end(&command,
                     layer_next->clEnqueueUnmapMemObject(command.queue, mem, pointer, command.wait_count,
                                                         layer_waits(&command), command.event));
}

static cl_int CL_API_CALL enqueue_mark(cl_command_queue queue, cl_uint count, const cl_event *waits,
                                       cl_event *event)
{
    struct layer_command command = {.call = CALL_MARK, .queue = queue};
    cl_int error = CL_SUCCESS;
    if (!layer_begin(&command, count, waits, event, &error))
        return error;
    return layer_end(&command, layer_next->clEnqueueMarkerWithWaitList(command.queue, command.wait_count,
                                                                       layer_waits(&command), command.event));
}

static cl_int CL_API_CALL enqueue_launch(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                                         const size_t *offset, const size_t *global, const size_t *local,
                                         cl_uint count, const cl_event *waits, cl_event *event)
{
    struct layer_command command = {.call = CALL_LAUNCH, .queue = queue, .kernel = kernel};
    command.dimensions = dimensions <= 3 ? dimensions : 3;
    command.has_local = local != NULL;
    for (cl_uint i = 0; i < command.dimensions; i++) {
        command.global[i] = global != NULL ? global[i] : 1;
        command.local[i] = local != NULL ? local[i] : 1;
    }
    layer_lock();
    const struct layer_object *object = layer_find(KIND_KERNEL, kernel);
    cl_int error = object != NULL ? layer_launch_allowed(object, dimensions, local) : CL_SUCCESS;
    if (object != NULL && layer_settings.plan.count > 0) {
        memcpy(command.mems, object->args, sizeof command.mems);
        command.mem_count = LAYER_ARGS_MAX;
    }
    layer_unlock();
    if (error != CL_SUCCESS || !layer_begin(&command, count, waits, event, &error))
        return error;
    for (int i = 0; i < command.twice; i++)
        layer_next->clEnqueueNDRangeKernel(command.queue, kernel, dimensions, offset, command.global,
                                           command.has_local ? command.local : NULL, command.wait_count,
                                           layer_waits(&command), NULL);
    return layer_end(&command, layer_next->clEnqueueNDRangeKernel(
                                   command.queue, kernel, dimensions, offset, command.global,
                                   command.has_local ? command.local : NULL, command.wait_count,
                                   layer_waits(&command), command.event));
}

/* ---- settings ---- */

static const char *setting(const char *name, const char *otherwise)
{
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0' ? text : otherwise;
}

uint64_t layer_bytes(const char *text)
{
    char *end = NULL;
    uint64_t value = strtoull(text, &end, 0);
    int shift = *end == 'k' ? 10 : *end == 'm' ? 20 : *end == 'g' ? 30 : 0;
    if (end == text || end[shift != 0] != '\0')
        layer_refuse("a number", text);
    return value << shift;
}

static void read_board(struct layer_settings *out)
{
    const char *board = setting("EMULATED_BOARD", "plain");
    if (strcmp(board, "fpga") == 0)
        *out = (struct layer_settings){.board = BOARD_FPGA,
                                       .memory_bytes = UINT64_C(256) << 20,
                                       .max_buffer_bytes = UINT64_C(64) << 20,
                                       .banks = 2,
                                       .reprogram_ms = 100};
    else if (strcmp(board, "npu") == 0)
        *out = (struct layer_settings){.board = BOARD_NPU,
                                       .memory_bytes = UINT64_C(256) << 20,
                                       .max_buffer_bytes = UINT64_C(128) << 20,
                                       .banks = 1};
    else if (strcmp(board, "plain") == 0)
        *out = (struct layer_settings){.board = BOARD_PLAIN, .banks = 1};
    else
        layer_refuse("EMULATED_BOARD", board);
}

static void read_settings(void)
{
    struct layer_settings *own = &layer_settings;
    char wrong[KEEL_FAULT_WHY_BYTES] = "";
    read_board(own);
    own->over = setting("EMULATED_OVER", "pocl");
    own->store = setting("EMULATED_STORE", "");
    own->info = setting("EMULATED_INFO", "");
    const char *text = setting("EMULATED_MEMORY", NULL);
    own->memory_bytes = text != NULL ? layer_bytes(text) : own->memory_bytes;
    text = setting("EMULATED_BUFFER", NULL);
    own->max_buffer_bytes = text != NULL ? layer_bytes(text) : own->max_buffer_bytes;
    text = setting("EMULATED_BANKS", NULL);
    own->banks = text != NULL ? layer_bytes(text) : own->banks;
    if (own->banks == 0 || own->banks > LAYER_BANKS_MAX)
        layer_refuse("EMULATED_BANKS", text != NULL ? text : "");
    text = setting("EMULATED_REPROGRAM_MS", NULL);
    own->reprogram_ms = text != NULL ? layer_bytes(text) : own->reprogram_ms;
    layer_info_check();
    if (!layer_plan_parse(setting("EMULATED_FAULTS", ""), &own->plan, wrong))
        layer_refuse("EMULATED_FAULTS", wrong);
    text = setting("EMULATED_LOG", NULL);
    if (text != NULL)
        log_file = open(text, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (text != NULL && log_file < 0)
        layer_refuse("EMULATED_LOG", text);
}

/* ---- the loader's door ---- */

static void install(struct _cl_icd_dispatch *table)
{
    layer_identity_install(table);
    layer_code_install(table);
    table->clCreateBuffer = create_buffer;
    table->clCreateSubBuffer = create_sub_buffer;
    table->clRetainMemObject = retain_mem;
    table->clReleaseMemObject = release_mem;
    table->clCreateCommandQueue = create_queue;
    table->clRetainCommandQueue = retain_queue;
    table->clReleaseCommandQueue = release_queue;
    table->clFlush = flush;
    table->clCreateContext = create_context;
    table->clReleaseContext = release_context;
    table->clWaitForEvents = wait_for_events;
    table->clSetEventCallback = set_callback;
    table->clGetEventInfo = get_event_info;
    table->clEnqueueReadBuffer = enqueue_read;
    table->clEnqueueWriteBuffer = enqueue_write;
    table->clEnqueueCopyBuffer = enqueue_copy;
    table->clEnqueueFillBuffer = enqueue_fill;
    table->clEnqueueMapBuffer = enqueue_map;
    table->clEnqueueUnmapMemObject = enqueue_unmap;
    table->clEnqueueMarkerWithWaitList = enqueue_mark;
    table->clEnqueueNDRangeKernel = enqueue_launch;
}

#define EXPORTED __attribute__((visibility("default")))

EXPORTED cl_int CL_API_CALL clGetLayerInfo(cl_layer_info param_name, size_t param_value_size,
                                           void *param_value, size_t *param_value_size_ret)
{
    static const char name[] = "Keel's emulated boards";
    const cl_layer_api_version version = CL_LAYER_API_VERSION_100;
    if (param_name == CL_LAYER_NAME)
        return layer_answer(name, sizeof name, param_value_size, param_value, param_value_size_ret);
    if (param_name == CL_LAYER_API_VERSION)
        return layer_answer(&version, sizeof version, param_value_size, param_value, param_value_size_ret);
    return CL_INVALID_VALUE;
}

EXPORTED cl_int CL_API_CALL clInitLayer(cl_uint num_entries, const cl_icd_dispatch *target_dispatch,
                                        cl_uint *num_entries_ret, const cl_icd_dispatch **layer_dispatch_ret)
{
    const cl_uint all = sizeof own_dispatch / sizeof(void *), count = num_entries < all ? num_entries : all;
    if (target_dispatch == NULL || num_entries_ret == NULL || layer_dispatch_ret == NULL)
        return CL_INVALID_VALUE;
    memcpy(&own_dispatch, target_dispatch, count * sizeof(void *));
    layer_next = target_dispatch;
    read_settings();
    install(&own_dispatch);
    if (atexit(at_exit) != 0)
        layer_refuse("atexit", "a handler");
    *num_entries_ret = count;
    *layer_dispatch_ret = &own_dispatch;
    return CL_SUCCESS;
}
