/* layer_code.c - how code gets onto the board: the FPGA's one image, the NPU's store, and no compiler.
 *
 * A binary is one of PoCL, taken after the launches that it is for: the group sizes that it holds machine
 * code for ("/NAME/X-Y-Z" in its table of files) are those that the board can run. Over another driver any
 * size runs. */
#include "layer.h"
#include <CL/cl_icd.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STORE_MAX = 64, DEVICES_MAX = 32, NAMES_BYTES = 16384, IDLE_TRIES = 100 };

static uint64_t active[DEVICES_MAX]; /* by device: the image that it holds; under the layer's lock */

/* ---- group sizes that a binary is for ---- */

static bool is_of_pocl(const uint8_t *binary, size_t bytes)
{
    return bytes > 8 && memcmp(binary, "poclbin", 7) == 0;
}

/* Sizes of one program: "/NAME/X-Y-Z" as they stand in its binary, a line each; NULL where it does not tell.
 */
static char *sizes_in(const uint8_t *binary, size_t bytes)
{
    char *all = is_of_pocl(binary, bytes) ? malloc(bytes + 1) : NULL;
    size_t used = 0;
    for (size_t at = 0; all != NULL && at < bytes; at++) {
        size_t end = at;
        while (end < bytes && binary[end] > 0x20 && binary[end] < 0x7f)
            end++;
        if (binary[at] == '/' && end > at + 3 && memmem(binary + at, end - at, ".so", 3) != NULL) {
            memcpy(all + used, binary + at, end - at);
            used += end - at;
            all[used++] = '\n';
        }
        at = end;
    }
    if (all != NULL)
        all[used] = '\0';
    return all;
}

cl_int layer_launch_allowed(const struct layer_object *kernel, cl_uint dimensions, const size_t *local)
{
    if (layer_settings.board == BOARD_PLAIN)
        return CL_SUCCESS;
    const struct layer_object *program = layer_find(KIND_PROGRAM, kernel->parent);
    if (program == NULL)
        return CL_INVALID_PROGRAM_EXECUTABLE;
    if (layer_settings.board == BOARD_FPGA && program->image != active[program->device]) {
        layer_log("kernel %s: its image is no longer on the board", kernel->name);
        return CL_INVALID_PROGRAM_EXECUTABLE;
    }
    if (program->sizes == NULL)
        return CL_SUCCESS;
    if (local == NULL)
        return CL_INVALID_WORK_GROUP_SIZE;
    char wanted[LAYER_NAME_BYTES + 64];
    snprintf(wanted, sizeof wanted, "/%s/%zu-%zu-%zu", kernel->name, local[0], dimensions > 1 ? local[1] : 1,
             dimensions > 2 ? local[2] : 1);
    size_t length = strlen(wanted);
    for (const char *at = program->sizes; (at = strstr(at, wanted)) != NULL; at += length)
        if (at[length] < '0' || at[length] > '9')
            return CL_SUCCESS;
    layer_log("kernel %s: no code for groups of %s", kernel->name, wanted);
    return CL_INVALID_WORK_GROUP_SIZE;
}

/* ---- programs ---- */

static uint64_t hash_of(const uint8_t *data, size_t bytes)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ data[i]) * UINT64_C(0x100000001b3);
    return hash | 1;
}

static struct layer_object *add_program(cl_program program)
{
    layer_lock();
    struct layer_object *object = layer_add(KIND_PROGRAM, program);
    layer_unlock();
    return object;
}

static cl_program CL_API_CALL create_with_source(cl_context context, cl_uint count, const char **strings,
                                                 const size_t *lengths, cl_int *error_ret)
{
    cl_int error = layer_before_call(CALL_PROGRAM, NULL, NULL);
    cl_program program = NULL;
    if (error == CL_SUCCESS)
        program = layer_next->clCreateProgramWithSource(context, count, strings, lengths, &error);
    if (program != NULL)
        add_program(program)->from_source = true;
    layer_log("program from source");
    if (error_ret != NULL)
        *error_ret = error;
    return program;
}

struct idle {
    uint64_t device;
    bool is;
};

/* A queue is idle when a marker behind all of it completes soon. */
static void look_idle(struct layer_object *queue, void *context)
{
    struct idle *idle = context;
    cl_event mark = NULL;
    cl_int state = CL_QUEUED;
    if (queue->device != idle->device ||
        layer_next->clEnqueueMarkerWithWaitList(queue->handle, 0, NULL, &mark) != CL_SUCCESS)
        return;
    layer_next->clFlush(queue->handle);
    for (int i = 0; i < IDLE_TRIES && state > CL_COMPLETE; i++) {
        layer_next->clGetEventInfo(mark, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
        if (state > CL_COMPLETE)
            layer_sleep_ns(1000000);
    }
    layer_next->clReleaseEvent(mark);
    idle->is &= state <= CL_COMPLETE;
}

/* Puts an image onto the FPGA; false when the board is at work. */
static bool reprogram(uint64_t device, uint64_t image)
{
    layer_lock();
    bool needed = active[device] != image;
    struct idle idle = {device, true};
    if (needed)
        layer_each(KIND_QUEUE, look_idle, &idle);
    if (needed && idle.is)
        active[device] = image;
    layer_unlock();
    if (!needed)
        return true;
    layer_log("reprogram image %016llx%s", (unsigned long long)image,
              idle.is ? "" : ": refused, the board is at work");
    if (idle.is)
        layer_sleep_ns(layer_settings.reprogram_ms * UINT64_C(1000000));
    return idle.is;
}

static cl_program load(cl_context context, cl_device_id device, size_t bytes, const uint8_t *binary,
                       cl_int *status, cl_int *error)
{
    cl_program program =
        layer_next->clCreateProgramWithBinary(context, 1, &device, &bytes, &binary, status, error);
    if (program == NULL)
        return NULL;
    layer_lock();
    struct layer_object *object = layer_add(KIND_PROGRAM, program);
    object->image = hash_of(binary, bytes);
    object->device = layer_device_index(device);
    object->sizes = sizes_in(binary, bytes);
    layer_unlock();
    return program;
}

static cl_int may_load(cl_device_id device, const uint8_t *binary, size_t bytes)
{
    if (layer_settings.board == BOARD_NPU)
        return CL_INVALID_OPERATION;
    cl_int error = layer_before_call(CALL_PROGRAM, device, NULL);
    if (error == CL_SUCCESS && layer_settings.board == BOARD_FPGA &&
        !reprogram(layer_device_index(device), hash_of(binary, bytes)))
        error = CL_INVALID_OPERATION;
    return error;
}

static cl_program CL_API_CALL create_with_binary(cl_context context, cl_uint count, const cl_device_id *list,
                                                 const size_t *sizes, const unsigned char **binaries,
                                                 cl_int *status, cl_int *error_ret)
{
    cl_int error = CL_INVALID_VALUE;
    cl_program program = NULL;
    if (count == 1 && list != NULL && sizes != NULL && binaries != NULL && binaries[0] != NULL)
        error = may_load(list[0], binaries[0], sizes[0]);
    if (error == CL_SUCCESS) {
        layer_log("program from binary of %zu bytes, image %016llx", sizes[0],
                  (unsigned long long)hash_of(binaries[0], sizes[0]));
        program = load(context, list[0], sizes[0], binaries[0], status, &error);
    }
    if (error_ret != NULL)
        *error_ret = error;
    return program;
}

/* What the layer itself says of a build, before the driver gets it. */
static cl_int refuse_build(cl_program program, const cl_device_id *list, bool *dropped)
{
    layer_lock();
    const struct layer_object *object = layer_find(KIND_PROGRAM, program);
    bool from_source = object != NULL && object->from_source, finished = object != NULL && object->finished;
    layer_unlock();
    layer_log("build from %s", from_source ? "source" : "binary");
    if (finished)
        return CL_INVALID_OPERATION;
    if (from_source && layer_settings.board != BOARD_PLAIN)
        return CL_COMPILER_NOT_AVAILABLE;
    return layer_before_drop(CALL_BUILD, list != NULL ? list[0] : NULL, NULL, dropped);
}

static void note_build(cl_program program, cl_int error)
{
    layer_lock();
    struct layer_object *object = layer_find(KIND_PROGRAM, program);
    if (object != NULL)
        object->build_error = error;
    layer_unlock();
}

static cl_int CL_API_CALL build(cl_program program, cl_uint count, const cl_device_id *list,
                                const char *options, void(CL_CALLBACK *notify)(cl_program, void *),
                                void *user)
{
    bool dropped = false;
    cl_int refused = refuse_build(program, list, &dropped);
    if (refused != CL_INVALID_OPERATION) /* which leaves what was built as it was */
        note_build(program, refused);
    if (refused != CL_SUCCESS)
        return refused;
    char *all = layer_options(dropped ? NULL : options);
    cl_int error = layer_next->clBuildProgram(program, count, list, all, notify, user);
    free(all);
    return error;
}

/* The driver knows nothing of a build that the layer refused. */
static cl_int CL_API_CALL get_build_info(cl_program program, cl_device_id device, cl_program_build_info param,
                                         size_t value_bytes, void *value, size_t *value_bytes_ret)
{
    char text[128];
    const cl_build_status failed = CL_BUILD_ERROR;
    layer_lock();
    const struct layer_object *object = layer_find(KIND_PROGRAM, program);
    cl_int error = object != NULL ? object->build_error : CL_SUCCESS;
    layer_unlock();
    if (error != CL_SUCCESS && param == CL_PROGRAM_BUILD_STATUS)
        return layer_answer(&failed, sizeof failed, value_bytes, value, value_bytes_ret);
    if (error == CL_SUCCESS || param != CL_PROGRAM_BUILD_LOG)
        return layer_next->clGetProgramBuildInfo(program, device, param, value_bytes, value, value_bytes_ret);
    if (error == CL_COMPILER_NOT_AVAILABLE)
        snprintf(text, sizeof text, "this board has no compiler: give it a binary");
    else
        snprintf(text, sizeof text, "EMULATED_FAULTS: the build was to fail with error %d", error);
    return layer_answer(text, strlen(text) + 1, value_bytes, value, value_bytes_ret);
}

static cl_int CL_API_CALL compile(cl_program program, cl_uint count, const cl_device_id *list,
                                  const char *options, cl_uint header_count, const cl_program *headers,
                                  const char **names, void(CL_CALLBACK *notify)(cl_program, void *),
                                  void *user)
{
    layer_log("compile from source");
    if (layer_settings.board != BOARD_PLAIN)
        return CL_COMPILER_NOT_AVAILABLE;
    return layer_next->clCompileProgram(program, count, list, options, header_count, headers, names, notify,
                                        user);
}

static cl_program CL_API_CALL link_programs(cl_context context, cl_uint count, const cl_device_id *list,
                                            const char *options, cl_uint program_count,
                                            const cl_program *programs,
                                            void(CL_CALLBACK *notify)(cl_program, void *), void *user,
                                            cl_int *error_ret)
{
    layer_log("link");
    cl_int error = CL_LINKER_NOT_AVAILABLE;
    cl_program program = NULL;
    if (layer_settings.board == BOARD_PLAIN)
        program = layer_next->clLinkProgram(context, count, list, options, program_count, programs, notify,
                                            user, &error);
    if (program != NULL)
        add_program(program);
    if (error_ret != NULL)
        *error_ret = error;
    return program;
}

static cl_int CL_API_CALL retain_program(cl_program program)
{
    layer_lock();
    layer_keep(KIND_PROGRAM, program);
    layer_unlock();
    return layer_next->clRetainProgram(program);
}

static cl_int CL_API_CALL release_program(cl_program program)
{
    (void)layer_before_call(CALL_CLOSE_PROGRAM, NULL, NULL);
    layer_lock();
    layer_drop(KIND_PROGRAM, program);
    layer_unlock();
    return layer_next->clReleaseProgram(program);
}

/* ---- the NPU's store ---- */

static uint8_t *read_whole(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rbe");
    long length = -1;
    uint8_t *data = NULL;
    if (file != NULL && fseek(file, 0, SEEK_END) == 0 && (length = ftell(file)) > 0) {
        rewind(file);
        data = malloc((size_t)length);
    }
    if (data != NULL && fread(data, 1, (size_t)length, file) != (size_t)length) {
        free(data);
        data = NULL;
    }
    if (file != NULL)
        fclose(file);
    *bytes = (size_t)length;
    return data;
}

/* A program of one stored binary, built; NULL when the driver does not take it. */
static cl_program open_stored(cl_context context, cl_device_id device, const char *path)
{
    size_t bytes = 0;
    uint8_t *binary = read_whole(path, &bytes);
    cl_int error = CL_INVALID_BINARY, status = CL_SUCCESS;
    cl_program program = NULL;
    const char *end = strrchr(path, '.');
    if (binary != NULL && (is_of_pocl(binary, bytes) || (end != NULL && strcmp(end, ".bin") == 0)))
        program = load(context, device, bytes, binary, &status, &error);
    free(binary);
    char *options = program != NULL ? layer_options("") : NULL;
    if (program != NULL &&
        layer_next->clBuildProgram(program, 1, &device, options, NULL, NULL) != CL_SUCCESS) {
        release_program(program);
        program = NULL;
    }
    free(options);
    return program;
}

static bool has_all(const char *names, const char *wanted)
{
    for (const char *at = wanted; *at != '\0'; at += strspn(at, ";")) {
        size_t length = strcspn(at, ";");
        bool found = false;
        for (const char *have = names; *have != '\0' && !found; have += strspn(have, ";")) {
            size_t have_length = strcspn(have, ";");
            found = have_length == length && memcmp(have, at, length) == 0;
            have += have_length;
        }
        if (!found)
            return false;
        at += length;
    }
    return true;
}

/* Each stored binary in turn, by name; the visitor takes the program over and returns true to stop. */
static void each_stored(cl_context context, cl_device_id device,
                        bool (*visit)(cl_program, const char *, void *), void *user)
{
    struct dirent **entries = NULL;
    int count = scandir(layer_settings.store, &entries, NULL, alphasort);
    bool stop = false;
    for (int i = 0; i < count; i++) {
        char path[4096], names[NAMES_BYTES] = "";
        snprintf(path, sizeof path, "%s/%s", layer_settings.store, entries[i]->d_name);
        cl_program program = stop || entries[i]->d_name[0] == '.' ? NULL : open_stored(context, device, path);
        if (program != NULL) {
            layer_next->clGetProgramInfo(program, CL_PROGRAM_KERNEL_NAMES, sizeof names - 1, names, NULL);
            stop = visit(program, names, user);
        }
        free(entries[i]);
    }
    free(entries);
}

static bool collect_names(cl_program program, const char *names, void *user)
{
    char *all = user;
    size_t used = strlen(all);
    snprintf(all + used, NAMES_BYTES - used, "%s%s", used > 0 ? ";" : "", names);
    release_program(program);
    return false;
}

char *layer_built_in_names(cl_device_id device)
{
    char *all = calloc(1, NAMES_BYTES);
    cl_int error;
    cl_context context =
        all != NULL ? layer_next->clCreateContext(NULL, 1, &device, NULL, NULL, &error) : NULL;
    if (context != NULL) {
        each_stored(context, device, collect_names, all);
        layer_next->clReleaseContext(context);
    }
    return all;
}

struct built_in {
    const char *wanted;
    cl_program program;
};

static bool take_first(cl_program program, const char *names, void *user)
{
    struct built_in *search = user;
    if (!has_all(names, search->wanted)) {
        release_program(program);
        return false;
    }
    search->program = program;
    return true;
}

/* A stored binary is loaded once in a context: who asks for more of its kernels shares the program. */
struct sharing {
    cl_context context;
    const char *wanted;
    struct layer_object *found;
};

static void look_shared(struct layer_object *program, void *context)
{
    struct sharing *search = context;
    if (program->stored != NULL && program->context == search->context &&
        has_all(program->stored, search->wanted))
        search->found = program;
}

static cl_program share(cl_context context, const char *names)
{
    struct sharing search = {.context = context, .wanted = names};
    cl_program program = NULL;
    char *all = NULL;
    layer_lock();
    layer_each(KIND_PROGRAM, look_shared, &search);
    if (search.found != NULL && asprintf(&all, "%s;%s", search.found->names, names) > 0) {
        free(search.found->names);
        search.found->names = all;
        search.found->uses++;
        program = search.found->handle;
    }
    layer_unlock();
    if (program != NULL)
        layer_next->clRetainProgram(program);
    return program;
}

static cl_program serve(cl_context context, cl_device_id device, const char *names, cl_int *error)
{
    struct built_in search = {.wanted = names};
    *error = layer_before_call(CALL_PROGRAM, device, NULL);
    if (*error == CL_SUCCESS)
        search.program = share(context, names);
    if (*error != CL_SUCCESS || search.program != NULL)
        return search.program;
    each_stored(context, device, take_first, &search);
    if (search.program == NULL) {
        *error = CL_INVALID_VALUE;
        return NULL;
    }
    char all[NAMES_BYTES] = "";
    layer_next->clGetProgramInfo(search.program, CL_PROGRAM_KERNEL_NAMES, sizeof all - 1, all, NULL);
    layer_lock();
    struct layer_object *object = layer_find(KIND_PROGRAM, search.program);
    object->finished = true;
    object->context = context;
    object->names = strdup(names);
    object->stored = strdup(all);
    layer_unlock();
    return search.program;
}

static cl_program CL_API_CALL create_built_in(cl_context context, cl_uint count, const cl_device_id *list,
                                              const char *names, cl_int *error_ret)
{
    cl_int error = CL_INVALID_VALUE;
    cl_program program = NULL;
    if (layer_settings.board == BOARD_NPU && count == 1 && list != NULL && names != NULL)
        program = serve(context, list[0], names, &error);
    layer_log("program of built-in kernels%s", program != NULL ? "" : ": refused");
    if (error_ret != NULL)
        *error_ret = error;
    return program;
}

static cl_int CL_API_CALL get_program_info(cl_program program, cl_program_info param, size_t value_bytes,
                                           void *value, size_t *value_bytes_ret)
{
    char names[NAMES_BYTES] = "";
    layer_lock();
    const struct layer_object *object = layer_find(KIND_PROGRAM, program);
    if (object != NULL && object->names != NULL)
        snprintf(names, sizeof names, "%s", object->names);
    layer_unlock();
    if (param != CL_PROGRAM_KERNEL_NAMES || names[0] == '\0')
        return layer_next->clGetProgramInfo(program, param, value_bytes, value, value_bytes_ret);
    return layer_answer(names, strlen(names) + 1, value_bytes, value, value_bytes_ret);
}

/* ---- kernels ---- */

static cl_kernel CL_API_CALL create_kernel(cl_program program, const char *name, cl_int *error_ret)
{
    layer_lock();
    const struct layer_object *made_of = layer_find(KIND_PROGRAM, program);
    bool served = made_of == NULL || made_of->names == NULL || name == NULL || has_all(made_of->names, name);
    layer_unlock();
    cl_int error = served ? layer_before_call(CALL_KERNEL, NULL, name) : CL_INVALID_KERNEL_NAME;
    cl_kernel kernel = NULL;
    if (error == CL_SUCCESS)
        kernel = layer_next->clCreateKernel(program, name, &error);
    if (kernel != NULL) {
        layer_lock();
        struct layer_object *object = layer_add(KIND_KERNEL, kernel);
        object->parent = program;
        snprintf(object->name, sizeof object->name, "%s", name);
        layer_unlock();
    }
    if (error_ret != NULL)
        *error_ret = error;
    return kernel;
}

static cl_int CL_API_CALL set_kernel_arg(cl_kernel kernel, cl_uint index, size_t bytes, const void *value)
{
    layer_lock();
    struct layer_object *object = layer_find(KIND_KERNEL, kernel);
    bool again = object != NULL && index < LAYER_ARGS_MAX && (object->set >> index & 1) != 0, kept = false;
    if (object != NULL && index < LAYER_ARGS_MAX)
        object->set |= UINT64_C(1) << index;
    layer_unlock();
    cl_int error = again ? layer_before_drop(CALL_ARG, NULL, object->name, &kept) : CL_SUCCESS;
    if (error != CL_SUCCESS || kept)
        return error;
    error = layer_next->clSetKernelArg(kernel, index, bytes, value);
    if (error != CL_SUCCESS || index >= LAYER_ARGS_MAX)
        return error;
    layer_lock();
    cl_mem mem = NULL;
    if (value != NULL && bytes == sizeof(cl_mem))
        memcpy(&mem, value, sizeof(cl_mem));
    if (object != NULL)
        object->args[index] = mem != NULL && layer_find(KIND_BUFFER, mem) != NULL ? mem : NULL;
    layer_unlock();
    return CL_SUCCESS;
}

static cl_int CL_API_CALL retain_kernel(cl_kernel kernel)
{
    layer_lock();
    layer_keep(KIND_KERNEL, kernel);
    layer_unlock();
    return layer_next->clRetainKernel(kernel);
}

static cl_int CL_API_CALL release_kernel(cl_kernel kernel)
{
    (void)layer_before_call(CALL_CLOSE_KERNEL, NULL, NULL);
    layer_lock();
    layer_drop(KIND_KERNEL, kernel);
    layer_unlock();
    return layer_next->clReleaseKernel(kernel);
}

void layer_code_install(struct _cl_icd_dispatch *table)
{
    table->clCreateProgramWithSource = create_with_source;
    table->clCreateProgramWithBinary = create_with_binary;
    table->clCreateProgramWithBuiltInKernels = create_built_in;
    table->clBuildProgram = build;
    table->clCompileProgram = compile;
    table->clLinkProgram = link_programs;
    table->clGetProgramInfo = get_program_info;
    table->clGetProgramBuildInfo = get_build_info;
    table->clRetainProgram = retain_program;
    table->clReleaseProgram = release_program;
    table->clCreateKernel = create_kernel;
    table->clSetKernelArg = set_kernel_arg;
    table->clRetainKernel = retain_kernel;
    table->clReleaseKernel = release_kernel;
}
