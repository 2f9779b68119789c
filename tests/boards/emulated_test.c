/* emulated_test.c - the OpenCL layer that plays other boards does what its head says, and each fault comes.
 *
 * Speaks OpenCL itself, as a driver's test does. Every test runs in a process of its own (Check forks), since
 * the layer reads its settings once; the binary that the boards take is captured before by this program. */
#define CL_TARGET_OPENCL_VERSION 120
#include "harness.h"
#include <CL/cl.h>
#include <keel/clock.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ITEMS = 64, GROUP = 16, IMAGE_MAX = 1 << 20 };

static char folder[] = "/tmp/keel-emulated-XXXXXX";
static char layer_path[512];

static const char source[] =
    "kernel void twice(global float *x) { x[get_global_id(0)] *= 2; }\n"
    "kernel void small(global float *x) { x[get_global_id(0)] *= 1e-20f; x[get_global_id(0)] *= 1e-20f; }\n";

static cl_device_id device;
static cl_context context;
static cl_command_queue queue;
static cl_mem buffer;

static const char *path(const char *name)
{
    static char text[2][600];
    static int turn;
    turn = !turn;
    snprintf(text[turn], sizeof text[turn], "%s/%s", folder, name);
    return text[turn];
}

/* The board that this process speaks to. */
static void open_board(const char *board, const char *faults)
{
    setenv("OPENCL_LAYERS", layer_path, 1);
    setenv("EMULATED_BOARD", board, 1);
    setenv("EMULATED_STORE", path("store"), 1);
    setenv("EMULATED_FAULTS", faults, 1);
    setenv("EMULATED_REPROGRAM_MS", "20", 1);
    cl_platform_id platforms[4];
    cl_uint count = 0;
    cl_int error = clGetPlatformIDs(4, platforms, &count);
    ck_assert_int_eq(error, CL_SUCCESS);
    ck_assert_uint_eq(count, 1);
    ck_assert_int_eq(clGetDeviceIDs(platforms[0], CL_DEVICE_TYPE_ALL, 1, &device, NULL), CL_SUCCESS);
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    ck_assert_int_eq(error, CL_SUCCESS);
    queue = clCreateCommandQueue(context, device, 0, &error);
    ck_assert_int_eq(error, CL_SUCCESS);
}

static void fill_buffer(void)
{
    float ones[ITEMS];
    cl_int error;
    for (int i = 0; i < ITEMS; i++)
        ones[i] = 1;
    buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof ones, NULL, &error);
    ck_assert_int_eq(error, CL_SUCCESS);
    error = clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, sizeof ones, ones, 0, NULL, NULL);
    ck_assert_int_eq(error, CL_SUCCESS);
}

static cl_program from_source(void)
{
    const char *text = source;
    return clCreateProgramWithSource(context, 1, &text, NULL, NULL);
}

static cl_program from_binary(const char *name, cl_int *error)
{
    static unsigned char image[IMAGE_MAX];
    FILE *file = fopen(path(name), "rb");
    ck_assert_ptr_nonnull(file);
    size_t bytes = fread(image, 1, sizeof image, file);
    fclose(file);
    const unsigned char *start = image;
    cl_program program = clCreateProgramWithBinary(context, 1, &device, &bytes, &start, NULL, error);
    if (program != NULL)
        *error = clBuildProgram(program, 1, &device, "", NULL, NULL);
    return program;
}

static cl_kernel kernel_of(cl_program program, const char *name)
{
    cl_int error;
    cl_kernel kernel = clCreateKernel(program, name, &error);
    ck_assert_int_eq(error, CL_SUCCESS);
    ck_assert_int_eq(clSetKernelArg(kernel, 0, sizeof(cl_mem), &buffer), CL_SUCCESS);
    return kernel;
}

static cl_int launch(cl_kernel kernel, size_t group, cl_event *event)
{
    size_t global[3] = {ITEMS, 1, 1}, local[3] = {group, 1, 1};
    return clEnqueueNDRangeKernel(queue, kernel, 3, NULL, global, local, 0, NULL, event);
}

static void read_all(float out[ITEMS])
{
    ck_assert_int_eq(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, ITEMS * sizeof *out, out, 0, NULL, NULL),
                     CL_SUCCESS);
}

static int wrong_items(float wanted)
{
    float out[ITEMS];
    int wrong = 0;
    read_all(out);
    for (int i = 0; i < ITEMS; i++)
        wrong += memcmp(&out[i], &wanted, sizeof wanted) != 0;
    return wrong;
}

/* A plain board with its kernel "twice", ready. */
static cl_kernel ready_plain(const char *faults)
{
    open_board("plain", faults);
    fill_buffer();
    cl_program program = from_source();
    ck_assert_int_eq(clBuildProgram(program, 1, &device, "", NULL, NULL), CL_SUCCESS);
    return kernel_of(program, "twice");
}

/* Before the tests: two images, captured after a launch, from a driver with a compiler.
 */
static void capture(const char *options, const char *name)
{
    static unsigned char image[IMAGE_MAX];
    unsigned char *start = image;
    cl_program program = from_source();
    size_t bytes = 0;
    ck_assert_int_eq(clBuildProgram(program, 1, &device, options, NULL, NULL), CL_SUCCESS);
    ck_assert_int_eq(launch(kernel_of(program, "twice"), GROUP, NULL), CL_SUCCESS);
    ck_assert_int_eq(clFinish(queue), CL_SUCCESS);
    ck_assert_int_eq(clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, NULL),
                     CL_SUCCESS);
    ck_assert_uint_le(bytes, IMAGE_MAX);
    ck_assert_int_eq(clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof start, &start, NULL), CL_SUCCESS);
    FILE *file = fopen(path(name), "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(image, 1, bytes, file), bytes);
    fclose(file);
}

START_TEST(images_are_captured)
{
    open_board("plain", "");
    fill_buffer();
    capture("", "store/image.bin");
    capture("-DOTHER", "other.bin");
}
END_TEST

static size_t said(cl_device_info what, void *value, size_t bytes)
{
    size_t length = 0;
    memset(value, 0, bytes);
    ck_assert_int_eq(clGetDeviceInfo(device, what, bytes, value, &length), CL_SUCCESS);
    return length;
}

START_TEST(an_fpga_says_what_it_is_and_has_no_compiler)
{
    char text[256];
    cl_device_type type;
    cl_bool compiler;
    cl_ulong bytes;
    open_board("fpga", "");
    said(CL_DEVICE_NAME, text, sizeof text);
    ck_assert_ptr_nonnull(strstr(text, "Emulated FPGA"));
    said(CL_DEVICE_PROFILE, text, sizeof text);
    ck_assert_str_eq(text, "EMBEDDED_PROFILE");
    said(CL_DEVICE_TYPE, &type, sizeof type);
    ck_assert_uint_eq(type, CL_DEVICE_TYPE_ACCELERATOR);
    said(CL_DEVICE_COMPILER_AVAILABLE, &compiler, sizeof compiler);
    ck_assert_uint_eq(compiler, CL_FALSE);
    said(CL_DEVICE_GLOBAL_MEM_SIZE, &bytes, sizeof bytes);
    ck_assert_uint_eq(bytes, UINT64_C(256) << 20);
    ck_assert_int_eq(clBuildProgram(from_source(), 1, &device, "", NULL, NULL), CL_COMPILER_NOT_AVAILABLE);
}
END_TEST

START_TEST(an_fpga_computes_from_a_binary_and_refuses_groups_that_it_has_no_code_for)
{
    cl_int error;
    open_board("fpga", "");
    fill_buffer();
    cl_kernel twice = kernel_of(from_binary("store/image.bin", &error), "twice");
    ck_assert_int_eq(error, CL_SUCCESS);
    ck_assert_int_eq(launch(twice, GROUP, NULL), CL_SUCCESS);
    ck_assert_int_eq(wrong_items(2), 0);
    ck_assert_int_eq(launch(twice, GROUP / 2, NULL), CL_INVALID_WORK_GROUP_SIZE);
    ck_assert_int_eq(launch(twice, 1, NULL), CL_INVALID_WORK_GROUP_SIZE);
    ck_assert_int_eq(wrong_items(2), 0);
}
END_TEST

START_TEST(an_fpga_holds_one_image_and_refuses_kernels_of_the_one_that_went)
{
    cl_int error;
    open_board("fpga", "");
    fill_buffer();
    cl_kernel first = kernel_of(from_binary("store/image.bin", &error), "twice");
    cl_kernel second = kernel_of(from_binary("other.bin", &error), "twice");
    ck_assert_int_eq(launch(second, GROUP, NULL), CL_SUCCESS);
    ck_assert_int_eq(launch(first, GROUP, NULL), CL_INVALID_PROGRAM_EXECUTABLE);
    ck_assert_int_eq(clFinish(queue), CL_SUCCESS);
    first = kernel_of(from_binary("store/image.bin", &error), "twice");
    ck_assert_int_eq(launch(first, GROUP, NULL), CL_SUCCESS);
    ck_assert_int_eq(wrong_items(4), 0);
}
END_TEST

START_TEST(an_fpga_at_work_is_not_reprogrammed)
{
    cl_int error;
    open_board("fpga", "hang:launch=1");
    fill_buffer();
    cl_kernel twice = kernel_of(from_binary("store/image.bin", &error), "twice");
    ck_assert_int_eq(launch(twice, GROUP, NULL), CL_SUCCESS);
    ck_assert_ptr_null(from_binary("other.bin", &error));
    ck_assert_int_eq(error, CL_INVALID_OPERATION);
}
END_TEST

START_TEST(an_npu_serves_built_in_kernels_and_nothing_else)
{
    cl_int error;
    char names[256];
    open_board("npu", "");
    fill_buffer();
    said(CL_DEVICE_BUILT_IN_KERNELS, names, sizeof names);
    ck_assert_ptr_nonnull(strstr(names, "twice"));
    ck_assert_ptr_null(from_binary("store/image.bin", &error));
    ck_assert_int_eq(error, CL_INVALID_OPERATION);
    ck_assert_int_eq(clBuildProgram(from_source(), 1, &device, "", NULL, NULL), CL_COMPILER_NOT_AVAILABLE);
    ck_assert_ptr_null(clCreateProgramWithBuiltInKernels(context, 1, &device, "twice;thrice", &error));
    ck_assert_int_eq(error, CL_INVALID_VALUE);
    cl_program program = clCreateProgramWithBuiltInKernels(context, 1, &device, "twice", &error);
    ck_assert_int_eq(error, CL_SUCCESS);
    ck_assert_ptr_null(clCreateKernel(program, "small", &error));
    ck_assert_int_eq(error, CL_INVALID_KERNEL_NAME);
    ck_assert_int_eq(launch(kernel_of(program, "twice"), GROUP, NULL), CL_SUCCESS);
    ck_assert_int_eq(wrong_items(2), 0);
}
END_TEST

START_TEST(memory_ends_where_the_board_says_or_earlier_when_it_lies)
{
    cl_int error;
    cl_ulong claimed;
    setenv("EMULATED_MEMORY", "2m", 1);
    setenv("EMULATED_BUFFER", "1m", 1);
    setenv("EMULATED_INFO", "memory=64g;driver=0.9", 1);
    open_board("fpga", "");
    said(CL_DEVICE_GLOBAL_MEM_SIZE, &claimed, sizeof claimed);
    ck_assert_uint_eq(claimed, UINT64_C(64) << 30);
    char driver[64];
    said(CL_DRIVER_VERSION, driver, sizeof driver);
    ck_assert_str_eq(driver, "0.9");
    ck_assert_ptr_null(clCreateBuffer(context, CL_MEM_READ_WRITE, (1 << 20) + 1, NULL, &error));
    ck_assert_int_eq(error, CL_INVALID_BUFFER_SIZE);
    cl_mem first = clCreateBuffer(context, CL_MEM_READ_WRITE, 1 << 20, NULL, &error);
    cl_mem second = clCreateBuffer(context, CL_MEM_READ_WRITE, 1 << 20, NULL, &error);
    ck_assert(first != NULL && second != NULL);
    ck_assert_ptr_null(clCreateBuffer(context, CL_MEM_READ_WRITE, 1, NULL, &error));
    ck_assert_int_eq(error, CL_MEM_OBJECT_ALLOCATION_FAILURE);
    clReleaseMemObject(first);
    ck_assert_ptr_nonnull(clCreateBuffer(context, CL_MEM_READ_WRITE, 1 << 20, NULL, &error));
}
END_TEST

START_TEST(a_buffer_lies_in_the_bank_that_it_names)
{
    cl_int error;
    const cl_mem_flags second = CL_MEM_READ_WRITE | (cl_mem_flags)2 << 16;
    setenv("EMULATED_MEMORY", "2m", 1);
    open_board("fpga", "slow:fill=*,ms=100,bank=1");
    cl_mem near = clCreateBuffer(context, CL_MEM_READ_WRITE, 1 << 20, NULL, &error);
    cl_mem far = clCreateBuffer(context, second, 1 << 20, NULL, &error);
    ck_assert(near != NULL && far != NULL);
    ck_assert_ptr_null(clCreateBuffer(context, second, 1, NULL, &error));
    ck_assert_int_eq(error, CL_MEM_OBJECT_ALLOCATION_FAILURE);
    uint64_t begin_ns = keel_now_ns(), zero = 0;
    ck_assert_int_eq(clEnqueueFillBuffer(queue, far, &zero, 8, 0, 8, 0, NULL, NULL), CL_SUCCESS);
    ck_assert_uint_ge(keel_now_ns() - begin_ns, 100 * KEEL_NS_PER_MS);
}
END_TEST

START_TEST(an_error_comes_at_its_call_alone)
{
    cl_kernel twice = ready_plain("error:launch=2,code=-5");
    ck_assert_int_eq(launch(twice, GROUP, NULL), CL_SUCCESS);
    ck_assert_int_eq(launch(twice, GROUP, NULL), CL_OUT_OF_RESOURCES);
    ck_assert_int_eq(launch(twice, GROUP, NULL), CL_SUCCESS);
    ck_assert_int_eq(wrong_items(4), 0);
}
END_TEST

static void asked_why(cl_program program, cl_build_status status, const char *words)
{
    cl_build_status said_status = CL_BUILD_NONE;
    char log[256] = "";
    size_t bytes = 0;
    ck_assert_int_eq(clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_STATUS, sizeof said_status,
                                           &said_status, NULL),
                     CL_SUCCESS);
    ck_assert_int_eq(said_status, status);
    ck_assert_int_eq(clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, sizeof log, log, &bytes),
                     CL_SUCCESS);
    ck_assert_msg(strstr(log, words) != NULL, "the log is \"%s\"", log);
    ck_assert_uint_eq(bytes, strlen(log) + 1);
}

START_TEST(a_build_that_is_refused_says_why)
{
    open_board("plain", "error:build=1,code=-11");
    cl_program program = from_source();
    ck_assert_int_eq(clBuildProgram(program, 1, &device, "", NULL, NULL), CL_BUILD_PROGRAM_FAILURE);
    asked_why(program, CL_BUILD_ERROR, "EMULATED_FAULTS");
    ck_assert_int_eq(clBuildProgram(program, 1, &device, "", NULL, NULL), CL_SUCCESS);
    asked_why(program, CL_BUILD_SUCCESS, "");
}
END_TEST

START_TEST(a_board_without_a_compiler_says_so_in_the_log)
{
    open_board("fpga", "");
    cl_program program = from_source();
    ck_assert_int_eq(clBuildProgram(program, 1, &device, "", NULL, NULL), CL_COMPILER_NOT_AVAILABLE);
    asked_why(program, CL_BUILD_ERROR, "no compiler");
}
END_TEST

START_TEST(a_lost_board_stays_lost)
{
    cl_kernel twice = ready_plain("lose:launch=1");
    cl_int error;
    ck_assert_int_eq(launch(twice, GROUP, NULL), CL_DEVICE_NOT_AVAILABLE);
    ck_assert_int_eq(clFlush(queue), CL_DEVICE_NOT_AVAILABLE);
    ck_assert_ptr_null(clCreateBuffer(context, CL_MEM_READ_WRITE, 64, NULL, &error));
    ck_assert_int_eq(error, CL_DEVICE_NOT_AVAILABLE);
}
END_TEST

static cl_int state_of(cl_event event)
{
    cl_int state = CL_QUEUED;
    clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
    return state;
}

START_TEST(a_hung_command_never_ends_and_a_stalled_one_late)
{
    cl_event hung, stalled;
    cl_kernel twice = ready_plain("stall:launch=1,ms=200; hang:launch=2");
    uint64_t begin_ns = keel_now_ns();
    ck_assert_int_eq(launch(twice, GROUP, &stalled), CL_SUCCESS);
    clFlush(queue);
    ck_assert_int_gt(state_of(stalled), CL_COMPLETE);
    ck_assert_int_eq(clWaitForEvents(1, &stalled), CL_SUCCESS);
    ck_assert_uint_ge(keel_now_ns() - begin_ns, 190 * KEEL_NS_PER_MS);
    ck_assert_int_eq(launch(twice, GROUP, &hung), CL_SUCCESS);
    clFlush(queue);
    usleep(100000);
    ck_assert_int_gt(state_of(hung), CL_COMPLETE);
}
END_TEST

START_TEST(a_failed_command_ends_with_an_error)
{
    cl_event failed;
    cl_kernel twice = ready_plain("fail:launch=1,code=-9999");
    ck_assert_int_eq(launch(twice, GROUP, &failed), CL_SUCCESS);
    clFlush(queue);
    while (state_of(failed) > CL_COMPLETE) /* the suite's limit ends it */
        usleep(1000);
    ck_assert_int_lt(state_of(failed), CL_COMPLETE);
}
END_TEST

START_TEST(a_slow_read_takes_as_long_as_its_bytes)
{
    ready_plain("slow:read=1,ms=150");
    uint64_t begin_ns = keel_now_ns();
    ck_assert_int_eq(wrong_items(1), 0);
    ck_assert_uint_ge(keel_now_ns() - begin_ns, 150 * KEEL_NS_PER_MS);
}
END_TEST

START_TEST(a_flip_changes_one_bit_of_the_result)
{
    cl_kernel twice = ready_plain("flip:launch=1,kernel=twi,bit=3; flip:read=2,bit=0");
    ck_assert_int_eq(launch(twice, GROUP, NULL), CL_SUCCESS);
    ck_assert_int_eq(wrong_items(2), 1);
    ck_assert_int_eq(wrong_items(2), 2); /* the one in memory, and one in this reading alone */
    ck_assert_int_eq(wrong_items(2), 1);
}
END_TEST

START_TEST(a_dropped_launch_says_that_it_is_done)
{
    cl_event event;
    cl_kernel twice = ready_plain("drop:launch=1");
    ck_assert_int_eq(launch(twice, GROUP, &event), CL_SUCCESS);
    ck_assert_int_eq(clWaitForEvents(1, &event), CL_SUCCESS);
    ck_assert_int_eq(wrong_items(1), 0);
}
END_TEST

/* What is left of 1 after two products with 1e-20, in a program built with these faults. */
static float small_left(const char *faults)
{
    float out[ITEMS];
    open_board("plain", faults);
    fill_buffer();
    cl_program program = from_source();
    ck_assert_int_eq(clBuildProgram(program, 1, &device, "", NULL, NULL), CL_SUCCESS);
    ck_assert_int_eq(launch(kernel_of(program, "small"), GROUP, NULL), CL_SUCCESS);
    read_all(out);
    return out[0];
}

START_TEST(a_driver_keeps_denormals)
{
    ck_assert_float_gt(small_left(""), 0);
}
END_TEST

START_TEST(and_flushes_them_when_an_option_is_added)
{
    ck_assert_float_eq(small_left("options:build=*,add=-cl-denorms-are-zero"), 0);
}
END_TEST

START_TEST(a_stuck_cell_and_two_places_that_are_one_keep_what_they_keep)
{
    cl_kernel twice =
        ready_plain("stuck:memory=*,address=16,bit=0,value=1; alias:memory=*,address=64,to=128,bytes=8");
    ck_assert_int_eq(launch(twice, GROUP, NULL), CL_SUCCESS);
    float out[ITEMS], mark = 7;
    read_all(out);
    ck_assert_float_ne(out[4], 2);
    ck_assert_int_eq(wrong_items(2), 1);
    ck_assert_int_eq(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 128, 4, &mark, 0, NULL, NULL), CL_SUCCESS);
    read_all(out);
    ck_assert_float_eq(out[16], 7);
    ck_assert_float_eq(out[32], 7);
    ck_assert_float_eq(out[17], 2);
}
END_TEST

START_TEST(a_fault_that_stays_until_its_reset_is_there_in_the_next_process)
{
    char faults[700];
    snprintf(faults, sizeof faults, "lose:launch=3,until=%s", path("broken"));
    fclose(fopen(path("broken"), "wb"));
    cl_kernel twice = ready_plain(faults);
    ck_assert_int_eq(launch(twice, GROUP, NULL), CL_DEVICE_NOT_AVAILABLE);
}
END_TEST

START_TEST(a_fault_that_came_once_does_not_come_again)
{
    char faults[700];
    snprintf(faults, sizeof faults, "error:launch=2+,once=%s", path("came"));
    cl_kernel twice = ready_plain(faults);
    ck_assert_int_eq(launch(twice, GROUP, NULL), CL_SUCCESS);
    ck_assert_int_ne(access(path("came"), F_OK), 0);
    ck_assert_int_eq(launch(twice, GROUP, NULL), CL_OUT_OF_RESOURCES);
    ck_assert_int_eq(access(path("came"), F_OK), 0);
    ck_assert_int_eq(launch(twice, GROUP, NULL), CL_SUCCESS);
}
END_TEST

START_TEST(a_crash_is_one)
{
    launch(ready_plain("crash:launch=1"), GROUP, NULL);
}
END_TEST

START_TEST(a_plan_that_is_not_understood_ends_the_process)
{
    setenv("EMULATED_FAULTS", "error:lunch=1", 1);
    setenv("OPENCL_LAYERS", layer_path, 1);
    cl_uint count = 0;
    clGetPlatformIDs(0, NULL, &count);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, an_fpga_says_what_it_is_and_has_no_compiler);
    tcase_add_test(tc, an_fpga_computes_from_a_binary_and_refuses_groups_that_it_has_no_code_for);
    tcase_add_test(tc, an_fpga_holds_one_image_and_refuses_kernels_of_the_one_that_went);
    tcase_add_test(tc, an_fpga_at_work_is_not_reprogrammed);
    tcase_add_test(tc, an_npu_serves_built_in_kernels_and_nothing_else);
    tcase_add_test(tc, memory_ends_where_the_board_says_or_earlier_when_it_lies);
    tcase_add_test(tc, a_buffer_lies_in_the_bank_that_it_names);
    tcase_add_test(tc, an_error_comes_at_its_call_alone);
    tcase_add_test(tc, a_build_that_is_refused_says_why);
    tcase_add_test(tc, a_board_without_a_compiler_says_so_in_the_log);
    tcase_add_test(tc, a_lost_board_stays_lost);
    tcase_add_test(tc, a_hung_command_never_ends_and_a_stalled_one_late);
    tcase_add_test(tc, a_failed_command_ends_with_an_error);
    tcase_add_test(tc, a_slow_read_takes_as_long_as_its_bytes);
    tcase_add_test(tc, a_flip_changes_one_bit_of_the_result);
    tcase_add_test(tc, a_dropped_launch_says_that_it_is_done);
    tcase_add_test(tc, a_driver_keeps_denormals);
    tcase_add_test(tc, and_flushes_them_when_an_option_is_added);
    tcase_add_test(tc, a_stuck_cell_and_two_places_that_are_one_keep_what_they_keep);
    tcase_add_test(tc, a_fault_that_stays_until_its_reset_is_there_in_the_next_process);
    tcase_add_test(tc, a_fault_that_came_once_does_not_come_again);
    tcase_add_test_raise_signal(tc, a_crash_is_one, SIGSEGV);
    tcase_add_exit_test(tc, a_plan_that_is_not_understood_ends_the_process, 2);
}

static void capture_cases(TCase *tc)
{
    tcase_add_test(tc, images_are_captured);
}

/* One suite, each test in a process of its own; the number that failed. */
static int run(const char *name, void (*add)(TCase *))
{
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 60);
    add(tcase);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_FORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed;
}

int main(void)
{
    static const char *const made[] = {"store/image.bin", "other.bin", "broken", "came", "store", ""};
    const char *build = getenv("BUILD");
    snprintf(layer_path, sizeof layer_path, "%s/libkeel-emulated.so", build != NULL ? build : "build");
    if (mkdtemp(folder) == NULL || mkdir(path("store"), 0755) != 0)
        return EXIT_FAILURE;
    int failed = run("capture", capture_cases);
    if (failed == 0)
        failed = run("emulated boards", cases);
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++)
        remove(path(made[i]));
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
