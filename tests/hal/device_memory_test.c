/* device_memory_test.c - buffers in each kind of memory and in banks, on the host device and on both devices
 * of PoCL; what a driver is told of them is looked at in front of it. */
#define CL_TARGET_OPENCL_VERSION 120
#include "harness.h"
#include <CL/cl.h>
#include <dlfcn.h>
#include <keel/clock.h>
#include <keel/device.h>
#include <keel/memory.h>
#include <string.h>

#define LIMIT_NS (60 * KEEL_NS_PER_S)
enum { BYTES = 10000 };

/* pocl:0 blocks in its calls, pocl:1 does not. */
static const char *const selectors[] = {"host", "pocl:0", "pocl:1", "mesa:0"};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { DEVICES = 3 }; /* Mesa's does not load beside a sanitizer */
#else
enum { DEVICES = 4 };
#endif

/* As Xilinx has it in front of a buffer's memory. */
struct place {
    unsigned flags;
    void *memory, *parameter;
};
static const cl_mem_flags bank_flags = ((cl_mem_flags)0xff << 16) | ((cl_mem_flags)1 << 31);

/* In front of the driver's, which knows no banks. */
static cl_mem_flags told_flags;
static struct place told_place;
cl_mem clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size, void *host_ptr,
                      cl_int *errcode_ret)
{
    static cl_mem (*next)(cl_context, cl_mem_flags, size_t, void *, cl_int *);
    if (next == NULL) {
        void *found = dlsym(RTLD_NEXT, "clCreateBuffer");
        memcpy(&next, &found, sizeof next);
    }
    told_flags = flags;
    told_place = (struct place){0};
    if ((flags >> 31 & 1) != 0) {
        memcpy(&told_place, host_ptr, sizeof told_place);
        host_ptr = told_place.memory;
    }
    return next(context, flags & ~bank_flags, size, host_ptr, errcode_ret);
}

static struct keel_device *device;
static struct keel_queue *queue;

static uint64_t blocks_before; /* what is made is given back */

static void open_on(int which, const struct keel_device_options *options)
{
    blocks_before = keel_memory_stats().live_blocks;
    ck_ok(keel_device_open(selectors[which], options, &device));
    ck_ok(keel_queue_create(device, &queue));
}

static void close_all(void)
{
    keel_queue_destroy(queue);
    ck_assert_uint_eq(keel_device_stats(device).live_bytes, 0);
    keel_device_close(device);
    ck_assert_uint_eq(keel_memory_stats().live_blocks, blocks_before);
}

static void finish(void)
{
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(LIMIT_NS)));
}

static unsigned char *map(struct keel_buffer *buffer, enum keel_map how)
{
    void *pointer = NULL;
    ck_ok(keel_queue_map(queue, buffer, 0, BYTES, how, &pointer, NULL, NULL));
    finish();
    return pointer;
}

static void unmap(struct keel_buffer *buffer, void *pointer)
{
    ck_ok(keel_queue_unmap(queue, buffer, pointer, NULL, NULL));
    finish();
}

static struct keel_buffer *buffer_in(enum keel_memory memory, uint32_t bank)
{
    struct keel_buffer *buffer = NULL;
    struct keel_buffer_options options = {.bytes = BYTES, .memory = memory, .bank = bank};
    ck_ok(keel_buffer_create_in(device, &options, &buffer));
    return buffer;
}

START_TEST(every_kind_is_zero_and_keeps_what_is_written)
{
    static const enum keel_memory kinds[] = {KEEL_MEMORY_DEVICE, KEEL_MEMORY_PINNED, KEEL_MEMORY_SHARED};
    static unsigned char in[BYTES], out[BYTES], zeros[BYTES];
    open_on(_i, NULL);
    for (int k = 0; k < 3; k++) {
        struct keel_buffer *buffer = buffer_in(kinds[k], 0), *other = buffer_in(KEEL_MEMORY_DEVICE, 0);
        ck_assert_uint_eq(keel_device_stats(device).live_bytes, 2 * BYTES);
        ck_ok(keel_queue_read(queue, buffer, 0, out, BYTES, NULL, NULL));
        finish();
        ck_assert_mem_eq(out, zeros, BYTES);
        unsigned char *mapped = map(buffer, KEEL_MAP_WRITE);
        for (int i = 0; i < BYTES; i++)
            mapped[i] = in[i] = (unsigned char)(7 * i + k);
        unmap(buffer, mapped);
        ck_ok(keel_queue_copy(queue, buffer, 0, other, 0, BYTES, NULL, NULL));
        ck_ok(keel_queue_read(queue, other, 0, out, BYTES, NULL, NULL));
        finish();
        ck_assert_mem_eq(out, in, BYTES);
        keel_buffer_destroy(other);
        keel_buffer_destroy(buffer);
    }
    close_all();
}
END_TEST

START_TEST(shared_memory_stays_where_it_is)
{
    open_on(_i, NULL);
    ck_assert(keel_device_info(device)->unified_memory);
    struct keel_buffer *buffer = buffer_in(KEEL_MEMORY_SHARED, 0);
    unsigned char *first = map(buffer, KEEL_MAP_WRITE);
    ck_assert_uint_eq((uintptr_t)first % KEEL_PAGE_BYTES, 0);
    memset(first, 5, BYTES);
    unmap(buffer, first);
    ck_ok(keel_queue_fill(queue, buffer, 4, 8, 0x07070707, NULL, NULL));
    unsigned char *second = map(buffer, KEEL_MAP_READ);
    ck_assert_ptr_eq(first, second);
    ck_assert_uint_eq(second[3], 5);
    ck_assert_uint_eq(second[4], 7);
    ck_assert_uint_eq(second[12], 5);
    unmap(buffer, second);
    keel_buffer_destroy(buffer);
    close_all();
}
END_TEST

START_TEST(the_driver_is_told_what_kind_is_wanted)
{
    open_on(1, NULL);
    keel_buffer_destroy(buffer_in(KEEL_MEMORY_DEVICE, 0));
    ck_assert_uint_eq(told_flags, CL_MEM_READ_WRITE);
    keel_buffer_destroy(buffer_in(KEEL_MEMORY_PINNED, 0));
    ck_assert_uint_eq(told_flags, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR);
    keel_buffer_destroy(buffer_in(KEEL_MEMORY_SHARED, 0));
    ck_assert_uint_eq(told_flags, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR);
    close_all();
}
END_TEST

START_TEST(a_bank_is_named_as_intel_does)
{
    struct keel_device_options options = {.memory_banks = 4, .bank_style = KEEL_BANKS_INTEL};
    open_on(1, &options);
    ck_assert_uint_eq(keel_device_info(device)->memory_banks, 4);
    for (uint32_t bank = 0; bank < 4; bank++) {
        keel_buffer_destroy(buffer_in(KEEL_MEMORY_DEVICE, bank));
        ck_assert_uint_eq(told_flags, CL_MEM_READ_WRITE | (cl_mem_flags)(bank + 1) << 16);
    }
    close_all();
}
END_TEST

START_TEST(a_bank_is_named_as_xilinx_does)
{
    struct keel_device_options options = {.memory_banks = 32, .bank_style = KEEL_BANKS_XILINX};
    open_on(1, &options);
    keel_buffer_destroy(buffer_in(KEEL_MEMORY_DEVICE, 31));
    ck_assert_uint_eq(told_flags, CL_MEM_READ_WRITE | (cl_mem_flags)1 << 31);
    ck_assert_uint_eq(told_place.flags, 31U | 1U << 31);
    ck_assert_ptr_null(told_place.memory);
    struct keel_buffer *shared = buffer_in(KEEL_MEMORY_SHARED, 2);
    ck_assert_uint_eq(told_place.flags, 2U | 1U << 31);
    unsigned char *mapped = map(shared, KEEL_MAP_READ);
    ck_assert_ptr_eq(mapped, told_place.memory);
    unmap(shared, mapped);
    keel_buffer_destroy(shared);
    close_all();
}
END_TEST

START_TEST(what_is_not_there_is_refused)
{
    struct keel_buffer *buffer = NULL;
    struct keel_buffer_options second_bank = {.bytes = BYTES, .bank = 1}, nothing = {.bytes = 0};
    open_on(_i, NULL);
    ck_status(keel_buffer_create_in(device, &second_bank, &buffer), KEEL_INVALID);
    ck_status(keel_buffer_create_in(device, &nothing, &buffer), KEEL_INVALID);
    ck_assert_ptr_null(buffer);
    close_all();
    struct keel_device_options unnamed = {.memory_banks = 2}, too_many = {.image_limit = KEEL_IMAGE_MAX + 1};
    ck_status(keel_device_open(selectors[_i], &unnamed, &device), KEEL_INVALID);
    ck_status(keel_device_open(selectors[_i], &too_many, &device), KEEL_LIMIT);
    struct keel_device_options of_boards = {.image_limit = 1};
    ck_status(keel_device_open("host", &of_boards, &device), KEEL_INVALID);
}
END_TEST

START_TEST(a_device_tells_what_it_is)
{
    open_on(_i, NULL);
    const struct keel_device_info *info = keel_device_info(device);
    ck_assert_str_ne(info->vendor, "");
    ck_assert_str_ne(info->driver_version, "");
    ck_assert(!info->embedded_profile);
    ck_assert_uint_eq(info->memory_banks, 1);
    ck_assert_uint_eq(info->image_limit, 0);
    ck_assert_uint_ge(info->float_width, 1);
    ck_assert_uint_ge(info->max_items[0], 1);
    ck_assert((info->numerics & KEEL_NUMERICS_NEAREST) != 0);
    ck_assert((info->numerics & KEEL_NUMERICS_SOFT) == 0);
    bool host = info->kind == KEEL_DEVICE_HOST;
    ck_assert_int_eq((info->code_forms & KEEL_CODE_SOURCE) != 0, !host);
    ck_assert_int_eq((info->code_forms & KEEL_CODE_BINARY) != 0, !host);
    if (_i == 1 || _i == 2)
        ck_assert_uint_eq(info->cache_line_bytes, 64);
    close_all();
}
END_TEST

static void cases(TCase *tc)
{
    setenv("POCL_DEVICES", "basic pthread", 1);
    setenv("RUSTICL_ENABLE", "llvmpipe", 1);
    tcase_add_loop_test(tc, every_kind_is_zero_and_keeps_what_is_written, 0, DEVICES);
    tcase_add_loop_test(tc, shared_memory_stays_where_it_is, 0, DEVICES);
    tcase_add_test(tc, the_driver_is_told_what_kind_is_wanted);
    tcase_add_test(tc, a_bank_is_named_as_intel_does);
    tcase_add_test(tc, a_bank_is_named_as_xilinx_does);
    tcase_add_loop_test(tc, what_is_not_there_is_refused, 0, DEVICES);
    tcase_add_loop_test(tc, a_device_tells_what_it_is, 0, DEVICES);
}

KEEL_TEST_MAIN("device memory", cases, 60)
