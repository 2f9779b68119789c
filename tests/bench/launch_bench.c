/* launch_bench.c - what a launch costs above the same launch in raw OpenCL, on PoCL's devices.
 *
 * The kernel writes one word. Ways alternate within a round, on contexts of their own over the same device:
 * many launches and one wait for them, and each launch waited for. A figure is the median over the rounds of
 * the difference to raw OpenCL of that round. One JSON object a line. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <keel/clock.h>
#include <keel/device.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 101, LAUNCHES = 1000, WAITS = 200 };
enum way { RAW, LAUNCH, REPLAY, RAW_WAIT, LAUNCH_WAIT, WAYS };

static const char source[] = "kernel void word(global uint *x, uint value) { x[0] = value; }";

static void no_host(void *const *arguments, const struct keel_range *range)
{
    (void)arguments, (void)range;
}
static const struct keel_module_kernel table[] = {{"word", no_host}};
static const struct keel_module module = {
    .name = "launch", .source = source, .kernels = table, .kernel_count = 1};
static const struct keel_range one = {.global = {1, 1, 1}, .local = {1, 1, 1}};

static struct raw {
    cl_context context;
    cl_command_queue queue;
    cl_program program;
    cl_kernel kernel;
    cl_mem buffer;
} raw;

static struct ours {
    struct keel_device *device;
    struct keel_queue *queue;
    struct keel_program *program;
    struct keel_kernel *kernel;
    struct keel_buffer *buffer;
    struct keel_commands *list;
    struct keel_arg args[2];
} ours;

static void must(enum keel_status status)
{
    if (status != KEEL_OK) {
        fprintf(stderr, "launch_bench: %s\n", keel_detail());
        exit(keel_status_exit_code(status));
    }
}

static void must_cl(cl_int error)
{
    if (error != CL_SUCCESS)
        must(keel_fail(KEEL_UNSUPPORTED, "raw OpenCL says error %d", error));
}

static uint64_t limit(void)
{
    return keel_deadline_after_ns(60 * KEEL_NS_PER_S);
}

static cl_device_id find_device(uint32_t index)
{
    cl_platform_id platforms[16];
    cl_uint count = 0, devices = 0;
    cl_device_id ids[4];
    must_cl(clGetPlatformIDs(16, platforms, &count));
    for (cl_uint i = 0; i < count && i < 16; i++) {
        char name[128] = "";
        must_cl(clGetPlatformInfo(platforms[i], CL_PLATFORM_NAME, sizeof name, name, NULL));
        if (strstr(name, "Portable Computing Language") == NULL)
            continue;
        must_cl(clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, 4, ids, &devices));
        if (index < devices)
            return ids[index];
    }
    must(keel_fail(KEEL_NOT_FOUND, "no PoCL; install pocl-opencl-icd"));
    return NULL;
}

static void open_raw(uint32_t index)
{
    cl_device_id id = find_device(index);
    cl_int error;
    const char *text = source;
    const cl_uint value = 7;
    raw.context = clCreateContext(NULL, 1, &id, NULL, NULL, &error);
    must_cl(error);
    raw.queue = clCreateCommandQueue(raw.context, id, 0, &error);
    must_cl(error);
    raw.buffer = clCreateBuffer(raw.context, CL_MEM_READ_WRITE, 4, NULL, &error);
    must_cl(error);
    raw.program = clCreateProgramWithSource(raw.context, 1, &text, NULL, &error);
    must_cl(error);
    must_cl(clBuildProgram(raw.program, 1, &id, "", NULL, NULL));
    raw.kernel = clCreateKernel(raw.program, "word", &error);
    must_cl(error);
    must_cl(clSetKernelArg(raw.kernel, 0, sizeof(cl_mem), &raw.buffer));
    must_cl(clSetKernelArg(raw.kernel, 1, sizeof value, &value));
}

static void close_raw(void)
{
    clReleaseKernel(raw.kernel);
    clReleaseProgram(raw.program);
    clReleaseMemObject(raw.buffer);
    clReleaseCommandQueue(raw.queue);
    clReleaseContext(raw.context);
}

static void open_ours(uint32_t index)
{
    char selector[16];
    snprintf(selector, sizeof selector, "pocl:%u", index);
    must(keel_device_open(selector, NULL, &ours.device));
    must(keel_queue_create(ours.device, &ours.queue));
    must(keel_buffer_create(ours.device, 4, &ours.buffer));
    must(keel_program_create(ours.device, &module, "", &ours.program));
    must(keel_kernel_create(ours.program, "word", &ours.kernel));
    ours.args[0] = (struct keel_arg){KEEL_ARG_BUFFER, {.buffer = ours.buffer}};
    ours.args[1] = (struct keel_arg){KEEL_ARG_U32, {.u32 = 7}};
    must(keel_commands_create(ours.device, &ours.list));
    for (int i = 0; i < LAUNCHES; i++)
        must(keel_commands_launch(ours.list, ours.kernel, ours.args, 2, &one));
    must(keel_commands_seal(ours.list));
}

static void close_ours(void)
{
    keel_commands_destroy(ours.list);
    keel_kernel_destroy(ours.kernel);
    keel_program_destroy(ours.program);
    keel_buffer_destroy(ours.buffer);
    keel_queue_destroy(ours.queue);
    keel_device_close(ours.device);
}

static void launch_raw(void)
{
    must_cl(clEnqueueNDRangeKernel(raw.queue, raw.kernel, 3, NULL, one.global, one.local, 0, NULL, NULL));
}

static void launch_ours(void)
{
    must(keel_queue_launch(ours.queue, ours.kernel, ours.args, 2, &one, NULL, NULL));
}

/* Microseconds a launch. */
static double time_way(enum way way)
{
    uint64_t deadline_ns = limit(), start_ns = keel_now_ns();
    int launches = way == RAW_WAIT || way == LAUNCH_WAIT ? WAITS : LAUNCHES;
    for (int i = 0; i < launches && way != REPLAY; i++) {
        if (way == RAW || way == RAW_WAIT)
            launch_raw();
        else
            launch_ours();
        if (way == RAW_WAIT)
            must_cl(clFinish(raw.queue));
        if (way == LAUNCH_WAIT)
            must(keel_queue_finish(ours.queue, deadline_ns));
    }
    if (way == REPLAY)
        must(keel_queue_replay(ours.queue, ours.list, NULL, NULL));
    if (way == RAW)
        must_cl(clFinish(raw.queue));
    if (way == LAUNCH || way == REPLAY)
        must(keel_queue_finish(ours.queue, deadline_ns));
    return (double)(keel_now_ns() - start_ns) / 1e3 / launches;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values)
{
    double sorted[ROUNDS];
    memcpy(sorted, values, sizeof sorted);
    qsort(sorted, ROUNDS, sizeof *sorted, by_value);
    return sorted[ROUNDS / 2];
}

/* The price above raw OpenCL; `goal` microseconds, or none when it is 0. */
static void print(const char *device, const char *what, const double *mine, const double *theirs, double goal)
{
    double above[ROUNDS];
    for (int i = 0; i < ROUNDS; i++)
        above[i] = mine[i] - theirs[i];
    double value = median(above), peer = median(theirs);
    printf("{\"room\":\"hal\",\"figure\":\"%s above raw OpenCL, PoCL %s\",\"value\":%.3f,\"unit\":\"us\","
           "\"peer\":\"raw OpenCL\",\"peer_value\":%.3f,\"ratio\":%.3f,",
           what, device, value, peer, (peer + value) / peer);
    if (goal > 0)
        printf("\"goal\":%.1f,\"met\":%s}\n", goal, value <= goal ? "true" : "false");
    else
        printf("\"goal\":null,\"met\":null}\n");
    fflush(stdout);
}

static void bench(const char *device, uint32_t index, double goal)
{
    static double us[WAYS][ROUNDS];
    open_raw(index);
    open_ours(index);
    for (int way = 0; way < WAYS; way++)
        time_way((enum way)way); /* warm */
    for (int round = 0; round < ROUNDS; round++)
        for (int way = 0; way < WAYS; way++) {
            enum way turn = (enum way)((way + round) % WAYS);
            us[turn][round] = time_way(turn);
        }
    print(device, "a launch", us[LAUNCH], us[RAW], goal);
    print(device, "a replayed launch", us[REPLAY], us[RAW], goal);
    print(device, "a launch that is waited for", us[LAUNCH_WAIT], us[RAW_WAIT], goal);
    close_ours();
    close_raw();
}

int main(void)
{
    setenv("POCL_DEVICES", "basic pthread", 1);
    bench("basic", 0, 1.0);
    bench("threads", 1, 0);
    return 0;
}
