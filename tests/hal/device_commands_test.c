/* device_commands_test.c - command lists: checked once, replayed often, with nothing set and nothing
 * allocated; on the host device, on both devices of PoCL and on rusticl. */
#define CL_TARGET_OPENCL_VERSION 120
#include "harness.h"
#include "malloc_count.h"
#include <CL/cl.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/health.h>
#include <keel/memory.h>
#include <stdio.h>

#define LIMIT_NS (60 * KEEL_NS_PER_S)
enum { ITEMS = 256, BYTES = ITEMS * (int)sizeof(uint32_t) };

/* pocl:0 blocks in its calls, pocl:1 does not. */
static const char *const selectors[] = {"host", "pocl:0", "pocl:1", "mesa:0"};
enum { DEVICES = 4 };

/* In front of the driver's. */
static uint32_t args_set;
cl_int clSetKernelArg(cl_kernel kernel, cl_uint arg_index, size_t arg_size, const void *arg_value)
{
    static cl_int (*next)(cl_kernel, cl_uint, size_t, const void *);
    if (next == NULL) {
        void *found = dlsym(RTLD_NEXT, "clSetKernelArg");
        memcpy(&next, &found, sizeof next);
    }
    args_set++;
    return next(kernel, arg_index, arg_size, arg_value);
}

static const char source[] = "kernel void affine(global uint *x, uint factor, uint term)\n"
                             "{ size_t i = get_global_id(0); x[i] = x[i] * factor + term; }\n"
                             "kernel void sum(global uint *x, global const uint *y)\n"
                             "{ size_t i = get_global_id(0); x[i] += y[i]; }\n";

static void host_affine(void *const *arguments, const struct keel_range *range)
{
    uint32_t *x = arguments[0], factor = *(const uint32_t *)arguments[1];
    uint32_t term = *(const uint32_t *)arguments[2];
    for (size_t i = 0; i < range->global[0]; i++)
        x[i] = x[i] * factor + term;
}

static void host_sum(void *const *arguments, const struct keel_range *range)
{
    uint32_t *x = arguments[0];
    const uint32_t *y = arguments[1];
    for (size_t i = 0; i < range->global[0]; i++)
        x[i] += y[i];
}

static const struct keel_module_kernel table[] = {{"affine", host_affine}, {"sum", host_sum}};
static const struct keel_module module = {"commands", source, .kernels = table, .kernel_count = 2};
static const struct keel_range range = {.global = {ITEMS, 1, 1}, .local = {64, 1, 1}};

static struct keel_device *device;
static struct keel_queue *queue;
static struct keel_program *program;
static struct keel_kernel *affine, *sum;
static struct keel_buffer *x, *y;
static struct keel_commands *list;

static uint64_t blocks_before; /* what is made is given back */

static void open_on(int which)
{
    blocks_before = keel_memory_stats().live_blocks;
    ck_ok(keel_device_open(selectors[which], NULL, &device));
    ck_ok(keel_queue_create(device, &queue));
    ck_ok(keel_program_create(device, &module, "", &program));
    ck_ok(keel_kernel_create(program, "affine", &affine));
    ck_ok(keel_kernel_create(program, "sum", &sum));
    ck_ok(keel_buffer_create(device, BYTES, &x));
    ck_ok(keel_buffer_create(device, BYTES, &y));
    ck_ok(keel_commands_create(device, &list));
}

static void close_all(void)
{
    keel_commands_destroy(list);
    keel_buffer_destroy(x);
    keel_buffer_destroy(y);
    keel_kernel_destroy(affine);
    keel_kernel_destroy(sum);
    keel_program_destroy(program);
    keel_queue_destroy(queue);
    keel_device_close(device);
    ck_assert_uint_eq(keel_memory_stats().live_blocks, blocks_before);
}

static uint64_t limit(void)
{
    return keel_deadline_after_ns(LIMIT_NS);
}

static void add_affine(struct keel_buffer *buffer, uint32_t factor, uint32_t term)
{
    struct keel_arg args[] = {{KEEL_ARG_BUFFER, {.buffer = buffer}},
                              {KEEL_ARG_U32, {.u32 = factor}},
                              {KEEL_ARG_U32, {.u32 = term}}};
    ck_ok(keel_commands_launch(list, affine, args, 3, &range));
}

static void add_sum(struct keel_buffer *to, struct keel_buffer *from)
{
    struct keel_arg args[] = {{KEEL_ARG_BUFFER, {.buffer = to}}, {KEEL_ARG_BUFFER, {.buffer = from}}};
    ck_ok(keel_commands_launch(list, sum, args, 2, &range));
}

/* y = 3; x = 2 x + 1; y += x; x = 5 x + 2 */
static void add_all(void)
{
    add_affine(y, 0, 3);
    add_affine(x, 2, 1);
    add_sum(y, x);
    add_affine(x, 5, 2);
}

static void do_all(uint32_t *a, uint32_t *b)
{
    for (int i = 0; i < ITEMS; i++) {
        a[i] = 2 * a[i] + 1;
        b[i] = 3 + a[i];
        a[i] = 5 * a[i] + 2;
    }
}

static void compare(const uint32_t *a, const uint32_t *b)
{
    uint32_t out[ITEMS];
    ck_ok(keel_queue_read(queue, x, 0, out, BYTES, NULL, NULL));
    ck_ok(keel_queue_finish(queue, limit()));
    ck_assert_mem_eq(out, a, BYTES);
    ck_ok(keel_queue_read(queue, y, 0, out, BYTES, NULL, NULL));
    ck_ok(keel_queue_finish(queue, limit()));
    ck_assert_mem_eq(out, b, BYTES);
}

START_TEST(a_replay_does_its_commands_in_order)
{
    static uint32_t a[ITEMS], b[ITEMS];
    open_on(_i);
    for (uint32_t i = 0; i < ITEMS; i++)
        a[i] = i * i;
    ck_ok(keel_queue_write(queue, x, 0, a, BYTES, NULL, NULL));
    ck_ok(keel_queue_finish(queue, limit()));
    add_all();
    ck_ok(keel_commands_seal(list));
    for (int round = 0; round < 7; round++) {
        ck_ok(keel_queue_replay(queue, list, NULL, NULL));
        do_all(a, b);
    }
    compare(a, b);
    close_all();
}
END_TEST

/* The kernel object that a list was made with is free for other launches. */
START_TEST(a_list_keeps_its_own_arguments)
{
    static uint32_t a[ITEMS], b[ITEMS];
    open_on(_i);
    add_all();
    ck_ok(keel_commands_seal(list));
    struct keel_buffer *other = NULL;
    ck_ok(keel_buffer_create(device, BYTES, &other));
    struct keel_arg args[] = {
        {KEEL_ARG_BUFFER, {.buffer = other}}, {KEEL_ARG_U32, {.u32 = 9}}, {KEEL_ARG_U32, {.u32 = 9}}};
    for (int round = 0; round < 3; round++) {
        ck_ok(keel_queue_launch(queue, affine, args, 3, &range, NULL, NULL));
        ck_ok(keel_queue_replay(queue, list, NULL, NULL));
        do_all(a, b);
    }
    compare(a, b);
    keel_buffer_destroy(other);
    close_all();
}
END_TEST

START_TEST(a_replay_waits_and_signals_across_queues)
{
    static uint32_t a[ITEMS], b[ITEMS];
    open_on(_i);
    struct keel_queue *second = NULL;
    ck_ok(keel_queue_create(device, &second));
    add_all();
    ck_ok(keel_commands_seal(list));
    for (uint32_t round = 0; round < 20; round++) {
        static uint32_t in[ITEMS], out[ITEMS];
        for (uint32_t i = 0; i < ITEMS; i++)
            in[i] = a[i] = i + round;
        struct keel_event *written = NULL, *first = NULL, *again = NULL;
        ck_ok(keel_queue_write(second, x, 0, in, BYTES, NULL, &written));
        struct keel_wait_list on_write = {&written, 1}, on_first = {&first, 1}, on_again = {&again, 1};
        ck_ok(keel_queue_replay(queue, list, &on_write, &first));
        ck_ok(keel_queue_replay(second, list, &on_first, &again)); /* the same list, while it may still run */
        ck_ok(keel_queue_read(queue, x, 0, out, BYTES, &on_again, NULL));
        ck_ok(keel_queue_finish(queue, limit()));
        do_all(a, b);
        do_all(a, b);
        ck_assert_mem_eq(out, a, BYTES);
        keel_event_destroy(written);
        keel_event_destroy(first);
        keel_event_destroy(again);
    }
    keel_queue_destroy(second);
    close_all();
}
END_TEST

START_TEST(a_replay_allocates_nothing_and_sets_no_argument)
{
    open_on(_i);
    add_all();
    ck_ok(keel_commands_seal(list));
    for (int warm = 0; warm < 3; warm++)
        ck_ok(keel_queue_replay(queue, list, NULL, NULL));
    ck_ok(keel_queue_finish(queue, limit()));
    uint64_t before = keel_memory_stats().allocations;
    args_set = 0;
    malloc_count_begin();
    enum keel_status status = KEEL_OK; /* the harness allocates when it is asked */
    for (int round = 0; round < 50 && status == KEEL_OK; round++)
        status = keel_queue_replay(queue, list, NULL, NULL);
    uint64_t calls = malloc_count_end();
    ck_ok(status);
    ck_assert_uint_eq(keel_memory_stats().allocations, before);
    ck_assert_uint_eq(calls, 0);
    ck_assert_uint_eq(args_set, 0);
    ck_ok(keel_queue_finish(queue, limit()));
    close_all();
}
END_TEST

/* The count above counts. */
START_TEST(an_allocation_is_noticed)
{
    malloc_count_begin();
    void *volatile memory = malloc(10);
    free(memory);
    uint64_t calls = malloc_count_end();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    ck_assert_uint_eq(calls, 1);
    open_on(1);
    args_set = 0;
    add_affine(x, 1, 1);
    malloc_count_begin();
    ck_ok(keel_commands_seal(list));
    calls = malloc_count_end();
    ck_assert_uint_ge(calls, 1); /* the seal is where it is prepared */
    ck_assert_uint_eq(args_set, 3);
    close_all();
#else
    ck_assert_uint_eq(calls, 0);
#endif
}
END_TEST

START_TEST(what_is_wrong_is_refused_when_it_is_added)
{
    open_on(_i);
    struct keel_range parts = {.global = {10, 1, 1}, .local = {4, 1, 1}};
    struct keel_arg args[] = {
        {KEEL_ARG_BUFFER, {.buffer = x}}, {KEEL_ARG_U32, {.u32 = 1}}, {KEEL_ARG_U32, {.u32 = 1}}};
    struct keel_arg none[] = {{KEEL_ARG_BUFFER, {.buffer = NULL}}, args[1], args[2]};
    ck_status(keel_commands_launch(list, affine, args, 3, &parts), KEEL_INVALID);
    ck_status(keel_commands_launch(list, affine, none, 3, &range), KEEL_INVALID);
    if (_i > 0)
        ck_status(keel_commands_launch(list, affine, args, 2, &range), KEEL_INVALID);
    ck_status(keel_commands_seal(list), KEEL_INVALID); /* nothing of that was taken */
    ck_status(keel_queue_replay(queue, list, NULL, NULL), KEEL_INVALID);
    add_affine(x, 1, 1);
    ck_status(keel_queue_replay(queue, list, NULL, NULL), KEEL_INVALID);
    ck_ok(keel_commands_seal(list));
    ck_status(keel_commands_launch(list, affine, args, 3, &range), KEEL_INVALID);
    ck_status(keel_commands_seal(list), KEEL_INVALID);
    ck_ok(keel_queue_replay(queue, list, NULL, NULL));
    ck_ok(keel_queue_finish(queue, limit()));
    close_all();
}
END_TEST

START_TEST(a_list_of_another_device_is_refused)
{
    open_on(_i);
    struct keel_device *other = NULL;
    struct keel_queue *other_queue = NULL;
    ck_ok(keel_device_open("host", NULL, &other));
    ck_ok(keel_queue_create(other, &other_queue));
    add_affine(x, 1, 1);
    ck_ok(keel_commands_seal(list));
    ck_status(keel_queue_replay(other_queue, list, NULL, NULL), KEEL_INVALID);
    keel_queue_destroy(other_queue);
    keel_device_close(other);
    close_all();
}
END_TEST

/* A fault in the middle: the rest is not run, and the failure names the kernel. */
START_TEST(a_command_of_a_list_that_fails_fails_the_queue)
{
    open_on(_i);
    add_affine(x, 1, 1);
    add_sum(y, x);
    add_affine(y, 7, 7);
    ck_ok(keel_commands_seal(list));
    ck_ok(keel_device_inject(device, "error:launch=5"));
    ck_ok(keel_queue_replay(queue, list, NULL, NULL));
    ck_ok(keel_queue_finish(queue, limit()));
    ck_status(keel_queue_replay(queue, list, NULL, NULL), KEEL_DEVICE_LOST);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "launch sum"));
    ck_status(keel_queue_finish(queue, limit()), KEEL_DEVICE_LOST);
    keel_queue_destroy(queue);
    ck_ok(keel_device_inject(device, NULL));
    ck_ok(keel_queue_create(device, &queue));
    uint32_t out = 0;
    ck_ok(keel_queue_read(queue, y, 0, &out, 4, NULL, NULL));
    ck_ok(keel_queue_finish(queue, limit()));
    ck_assert_uint_eq(out, 14); /* of the first replay: (0 + 1) * 7 + 7 */
    close_all();
}
END_TEST

START_TEST(a_long_list_is_replayed_whole)
{
    enum { COUNT = 1000 };
    open_on(_i);
    uint32_t wanted = 0, out = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        add_affine(x, 3, i);
        wanted = wanted * 3 + i;
    }
    ck_ok(keel_commands_seal(list));
    struct keel_event *last = NULL;
    ck_ok(keel_queue_replay(queue, list, NULL, &last));
    ck_ok(keel_event_wait(last, limit()));
    keel_event_destroy(last);
    ck_ok(keel_queue_read(queue, x, 4 * (ITEMS - 1), &out, 4, NULL, NULL));
    ck_ok(keel_queue_finish(queue, limit()));
    ck_assert_uint_eq(out, wanted);
    close_all();
}
END_TEST

/* Copies the first half of a buffer over its second half, by OpenCL itself; or fails, if it is told to. */
static int copy_half(void *context, void *native, const void *const *arguments)
{
    const int *error = context;
    cl_mem buffer = (cl_mem)arguments[0];
    uint32_t half = *(const uint32_t *)arguments[1];
    if (*error != CL_SUCCESS)
        return *error;
    return clEnqueueCopyBuffer(native, buffer, buffer, 0, half, half, 0, NULL, NULL);
}

static int call_error;
static const struct keel_call call = {"copy_half", 2, copy_half, &call_error};
static const struct keel_range once = {.global = {1, 1, 1}, .local = {1, 1, 1}};

START_TEST(a_call_is_done_in_its_place_of_the_list)
{
    uint32_t a[ITEMS] = {0}, b[ITEMS] = {0};
    struct keel_kernel *half = NULL;
    void *native = NULL;
    open_on(_i);
    if (_i == 0) {
        ck_status(keel_kernel_create_call(device, &call, &half), KEEL_UNSUPPORTED);
        ck_status(keel_device_native(device, &native), KEEL_UNSUPPORTED);
        close_all();
        return;
    }
    ck_ok(keel_device_native(device, &native));
    ck_assert_ptr_nonnull(native);
    ck_ok(keel_kernel_create_call(device, &call, &half));
    const struct keel_arg args[] = {{KEEL_ARG_BUFFER, {.buffer = x}}, {KEEL_ARG_U32, {.u32 = BYTES / 2}}};
    for (uint32_t i = 0; i < ITEMS; i++)
        a[i] = i;
    ck_ok(keel_queue_write(queue, x, 0, a, BYTES, NULL, NULL));
    add_affine(x, 2, 1);
    ck_ok(keel_commands_launch(list, half, args, 2, &once));
    add_affine(x, 5, 2);
    add_sum(y, x);
    ck_ok(keel_commands_launch(list, half, args, 2, &once)); /* the last one has the event */
    ck_ok(keel_commands_seal(list));
    for (int round = 0; round < 3; round++) {
        struct keel_event *before = NULL, *after = NULL;
        ck_ok(keel_queue_mark(queue, &before));
        ck_ok(keel_queue_replay(queue, list, &(struct keel_wait_list){&before, 1}, &after));
        ck_ok(keel_event_wait(after, limit()));
        keel_event_destroy(before);
        keel_event_destroy(after);
        for (int i = 0; i < ITEMS; i++)
            a[i] = 2 * a[i] + 1;
        memcpy(a + ITEMS / 2, a, BYTES / 2);
        for (int i = 0; i < ITEMS; i++) {
            a[i] = 5 * a[i] + 2;
            b[i] += a[i];
        }
        compare(a, b);
    }
    keel_commands_destroy(list);
    list = NULL;
    keel_kernel_destroy(half);
    close_all();
}
END_TEST

START_TEST(a_call_that_fails_is_a_launch_that_fails)
{
    struct keel_kernel *half = NULL;
    open_on(_i);
    ck_ok(keel_kernel_create_call(device, &call, &half));
    const struct keel_arg args[] = {{KEEL_ARG_BUFFER, {.buffer = x}}, {KEEL_ARG_U32, {.u32 = BYTES / 2}}};
    ck_status(keel_queue_launch(queue, half, args, 1, &once, NULL, NULL), KEEL_INVALID);
    call_error = CL_INVALID_VALUE;
    ck_status(keel_queue_launch(queue, half, args, 2, &once, NULL, NULL), KEEL_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "copy_half"));
    call_error = CL_SUCCESS;
    ck_ok(keel_queue_launch(queue, half, args, 2, &once, NULL, NULL));
    ck_ok(keel_queue_finish(queue, limit()));
    call_error = CL_INVALID_VALUE;
    add_affine(x, 2, 1);
    ck_ok(keel_commands_launch(list, half, args, 2, &once));
    ck_ok(keel_commands_seal(list));
    ck_status(keel_queue_replay(queue, list, NULL, NULL), KEEL_DEVICE_LOST);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "copy_half"));
    keel_kernel_destroy(half);
    close_all();
}
END_TEST

static void cases(TCase *tc)
{
    /* Under the address sanitizer PoCL alone is named there (tests/run.sh). */
    const int devices = getenv("OCL_ICD_VENDORS") == NULL ? DEVICES : DEVICES - 1;
    setenv("POCL_DEVICES", "basic pthread", 1);
    setenv("RUSTICL_ENABLE", "llvmpipe", 1);
    tcase_add_loop_test(tc, a_replay_does_its_commands_in_order, 0, devices);
    tcase_add_loop_test(tc, a_list_keeps_its_own_arguments, 0, devices);
    tcase_add_loop_test(tc, a_replay_waits_and_signals_across_queues, 0, devices);
    tcase_add_loop_test(tc, a_replay_allocates_nothing_and_sets_no_argument, 0, devices);
    tcase_add_test(tc, an_allocation_is_noticed);
    tcase_add_loop_test(tc, what_is_wrong_is_refused_when_it_is_added, 0, devices);
    tcase_add_loop_test(tc, a_list_of_another_device_is_refused, 0, devices);
    tcase_add_loop_test(tc, a_command_of_a_list_that_fails_fails_the_queue, 0, devices);
    tcase_add_loop_test(tc, a_call_is_done_in_its_place_of_the_list, 0, devices);
    tcase_add_loop_test(tc, a_call_that_fails_is_a_launch_that_fails, 1, devices);
    tcase_add_loop_test(tc, a_long_list_is_replayed_whole, 0, devices);
}

KEEL_TEST_MAIN("command lists", cases, 60)
