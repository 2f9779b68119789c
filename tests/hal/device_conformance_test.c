/* device_conformance_test.c - one suite over every backend: what keel/device.h promises holds on each.
 *
 * Runs on the host device and on PoCL's threads here, and on PoCL's blocking `basic` device in a process
 * of its own, because PoCL reads POCL_DEVICES once per process. */
#include "harness.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/device.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <keel/thread.h>
#include <stdio.h>
#include <string.h>

#define LIMIT_NS (60 * KEEL_NS_PER_S)
enum { ITEMS = 4096 };

/* Which device this run is about. */
static const char *selector;
static bool asynchronous; /* commands run after the call that enqueues them */

static struct keel_device *device;
static struct keel_queue *queue;

static const char source[] =
    "kernel void scale(global float *x, float factor, uint count)\n"
    "{ size_t i = get_global_id(0); if (i < count) x[i] = x[i] * factor; }\n"
    "kernel void every_kind(global ulong *out, int i, uint u, float f, ulong l)\n"
    "{ out[0] = as_uint(i); out[1] = u; out[2] = as_uint(f); out[3] = l; }\n"
    "kernel void visit(global uint *seen)\n"
    "{ size_t i = (get_global_id(2) * get_global_size(1) + get_global_id(1)) * get_global_size(0)\n"
    "      + get_global_id(0); seen[i] = seen[i] + (uint)i + 1; }\n"
    "kernel void spin(global ulong *out, ulong rounds)\n"
    "{ ulong x = out[0] | 1; for (ulong i = 0; i < rounds; i++) x = x * 6364136223846793005UL + i;\n"
    "  out[0] = x; out[1] = 7; }\n";

static void host_scale(void *const *arguments, const struct keel_range *range)
{
    float *x = arguments[0], factor = *(const float *)arguments[1];
    uint32_t count = *(const uint32_t *)arguments[2];
    for (size_t i = 0; i < range->global[0] && i < count; i++)
        x[i] = x[i] * factor;
}

static void host_every_kind(void *const *arguments, const struct keel_range *range)
{
    (void)range;
    uint64_t *out = arguments[0];
    uint32_t bits;
    memcpy(&bits, arguments[1], sizeof bits);
    out[0] = bits;
    out[1] = *(const uint32_t *)arguments[2];
    memcpy(&bits, arguments[3], sizeof bits);
    out[2] = bits;
    out[3] = *(const uint64_t *)arguments[4];
}

static void host_visit(void *const *arguments, const struct keel_range *range)
{
    uint32_t *seen = arguments[0];
    size_t count = range->global[0] * range->global[1] * range->global[2];
    for (size_t i = 0; i < count; i++)
        seen[i] += (uint32_t)i + 1;
}

static void host_spin(void *const *arguments, const struct keel_range *range)
{
    (void)range;
    uint64_t *out = arguments[0], rounds = *(const uint64_t *)arguments[1], x = out[0] | 1;
    for (uint64_t i = 0; i < rounds; i++)
        x = x * UINT64_C(6364136223846793005) + i;
    out[0] = x;
    out[1] = 7;
}

static const struct keel_module_kernel kernels[] = {
    {"scale", host_scale}, {"every_kind", host_every_kind}, {"visit", host_visit}, {"spin", host_spin}};
static const struct keel_module module = {
    .name = "conformance", .source = source, .kernels = kernels, .kernel_count = 4};

static struct keel_program *program;

static void set_up(void)
{
    ck_ok(keel_device_open(selector, NULL, &device));
    ck_ok(keel_queue_create(device, &queue));
    ck_ok(keel_program_create(device, &module, "", &program));
}

static void tear_down(void)
{
    keel_program_destroy(program);
    keel_queue_destroy(queue);
    ck_assert_uint_eq(keel_device_stats(device).live_bytes, 0);
    keel_device_close(device);
}

static struct keel_buffer *buffer_of(uint64_t bytes)
{
    struct keel_buffer *buffer = NULL;
    ck_ok(keel_buffer_create(device, bytes, &buffer));
    return buffer;
}

static struct keel_kernel *kernel_of(const char *name)
{
    struct keel_kernel *kernel = NULL;
    ck_ok(keel_kernel_create(program, name, &kernel));
    return kernel;
}

static void finish(void)
{
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(LIMIT_NS)));
}

static void read_back(struct keel_buffer *buffer, uint64_t offset_bytes, void *data, uint64_t bytes)
{
    ck_ok(keel_queue_read(queue, buffer, offset_bytes, data, bytes, NULL, NULL));
    finish();
}

static struct keel_range line(size_t items, size_t group_items)
{
    return (struct keel_range){.global = {items, 1, 1}, .local = {group_items, 1, 1}};
}

static struct keel_arg buffer_arg(struct keel_buffer *buffer)
{
    return (struct keel_arg){.kind = KEEL_ARG_BUFFER, .as.buffer = buffer};
}

START_TEST(a_new_buffer_is_zero)
{
    static unsigned char data[10007], zeros[10007];
    memset(data, 1, sizeof data);
    struct keel_buffer *buffer = buffer_of(sizeof data); /* not a multiple of anything */
    ck_assert_uint_eq(keel_buffer_bytes(buffer), sizeof data);
    read_back(buffer, 0, data, sizeof data);
    ck_assert_mem_eq(data, zeros, sizeof data);
    keel_buffer_destroy(buffer);
}
END_TEST

START_TEST(what_is_written_is_read_back)
{
    unsigned char in[100], out[100];
    for (unsigned i = 0; i < sizeof in; i++)
        in[i] = (unsigned char)(3 * i);
    struct keel_buffer *buffer = buffer_of(1000);
    struct keel_event *written = NULL;
    ck_ok(keel_queue_write(queue, buffer, 7, in, sizeof in, NULL, &written));
    ck_ok(keel_event_wait(written, keel_deadline_after_ns(LIMIT_NS)));
    ck_assert(keel_event_done(written));
    keel_event_destroy(written);
    read_back(buffer, 7, out, sizeof out);
    ck_assert_mem_eq(in, out, sizeof in);
    read_back(buffer, 0, out, 7);
    for (int i = 0; i < 7; i++)
        ck_assert_uint_eq(out[i], 0);
    keel_buffer_destroy(buffer);
}
END_TEST

START_TEST(a_slice_is_a_window_of_its_buffer)
{
    uint64_t align_bytes = keel_device_info(device)->base_align_bytes;
    struct keel_buffer *buffer = buffer_of(align_bytes + 64), *slice = NULL;
    ck_ok(keel_buffer_slice(buffer, align_bytes, 64, &slice));
    ck_assert_uint_eq(keel_buffer_bytes(slice), 64);
    float in[16], out[16];
    for (int i = 0; i < 16; i++)
        in[i] = (float)i;
    ck_ok(keel_queue_write(queue, slice, 0, in, sizeof in, NULL, NULL));
    finish();
    struct keel_kernel *scale = kernel_of("scale");
    struct keel_arg args[] = {buffer_arg(slice), {KEEL_ARG_F32, {.f32 = 2}}, {KEEL_ARG_U32, {.u32 = 16}}};
    struct keel_range range = line(16, 16);
    ck_ok(keel_queue_launch(queue, scale, args, 3, &range, NULL, NULL));
    read_back(buffer, align_bytes, out, sizeof out);
    for (int i = 0; i < 16; i++)
        ck_assert_float_eq(out[i], 2 * in[i]);
    keel_kernel_destroy(scale);
    keel_buffer_destroy(slice);
    keel_buffer_destroy(buffer);
}
END_TEST

START_TEST(every_kind_of_argument_arrives)
{
    struct keel_buffer *buffer = buffer_of(4 * sizeof(uint64_t));
    struct keel_kernel *kernel = kernel_of("every_kind");
    ck_assert_str_eq(keel_kernel_name(kernel), "every_kind");
    struct keel_range range = line(1, 1);
    for (uint32_t i = 0; i < 3; i++) {
        struct keel_arg args[] = {buffer_arg(buffer),
                                  {KEEL_ARG_I32, {.i32 = -5 - (int32_t)i}},
                                  {KEEL_ARG_U32, {.u32 = UINT32_MAX - i}},
                                  {KEEL_ARG_F32, {.f32 = 0.75F}},
                                  {KEEL_ARG_U64, {.u64 = UINT64_C(0x123456789abcdef0) + i}}};
        ck_ok(keel_queue_launch(queue, kernel, args, 5, &range, NULL, NULL));
        uint64_t out[4];
        read_back(buffer, 0, out, sizeof out);
        ck_assert_uint_eq(out[0], (uint32_t)(-5 - (int32_t)i));
        ck_assert_uint_eq(out[1], UINT32_MAX - i);
        ck_assert_uint_eq(out[2], 0x3f400000);
        ck_assert_uint_eq(out[3], UINT64_C(0x123456789abcdef0) + i);
    }
    keel_kernel_destroy(kernel);
    keel_buffer_destroy(buffer);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_new_buffer_is_zero);
    tcase_add_test(tc, what_is_written_is_read_back);
    tcase_add_test(tc, a_slice_is_a_window_of_its_buffer);
    tcase_add_test(tc, every_kind_of_argument_arrives);
}

/* One suite on one device; the number that failed. */
static int run_on(const char *name, const char *wanted, bool is_asynchronous)
{
    selector = wanted;
    asynchronous = is_asynchronous;
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create(name);
    cases(tcase);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed;
}

/* The same program again, with POCL_DEVICES=basic. */
static int run_basic(char *self)
{
    setenv("POCL_DEVICES", "basic", 1);
    fflush(NULL);
    char *argv[] = {self, (char[]){"basic"}, NULL};
    struct keel_process child;
    struct keel_process_end end = {.code = 1};
    if (keel_process_spawn(argv, NULL, 0, -1, &child) != KEEL_OK)
        return 1;
    if (keel_process_wait(&child, keel_deadline_after_ns(10 * LIMIT_NS), &end) != KEEL_OK)
        keel_process_signal(&child, 9);
    keel_process_close(&child);
    return end.signaled || end.code != 0;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return run_on("PoCL basic", "pocl:0", false) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    int failed = run_on("host", "host", false);
    failed += run_on("PoCL threads", "pocl:0", true);
    failed += run_basic(argv[0]);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
