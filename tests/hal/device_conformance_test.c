/* device_conformance_test.c - one suite over every backend and driver at hand (device_stacks.h): what
 * keel/device.h promises holds on each. */
#include "conformance_kernels.h"
#include "device_backend.h"
#include "device_stacks.h"
#include "harness.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/device.h>
#include <keel/memory.h>
#include <keel/thread.h>
#include <stdio.h>
#include <string.h>

#define LIMIT_NS (60 * KEEL_NS_PER_S)
enum { ITEMS = 4096 };

static const struct stack *stack; /* what this run is about */

static struct keel_device *device;
static struct keel_queue *queue;

static struct keel_program *program;

/* ---- kernels for boards without a compiler: made by PoCL's, in each group that is used here ------------ */

static const struct keel_code_kernel stored_kernels[] = {
    {.name = "scale", .arg_count = 3},
    {.name = "every_kind", .arg_count = 5},
    {.name = "visit", .arg_count = 1},
    {.name = "spin", .arg_count = 2},
};

static enum keel_status store_path(char path[KEEL_PATH_BYTES])
{
    const char *store = getenv(stack_store);
    return keel_path_join(path, store != NULL ? store : ".", "conformance.bin");
}

static enum keel_status find_stored(void *context, const struct keel_module *wanted, const char *options,
                                    struct keel_code *out)
{
    static char *image;
    static size_t bytes;
    char path[KEEL_PATH_BYTES];
    (void)context, (void)options;
    if (wanted != &module)
        return keel_fail(KEEL_NOT_FOUND, "module %s is not in the store", wanted->name);
    KEEL_TRY(store_path(path));
    if (image == NULL)
        KEEL_TRY(keel_file_read(path, 1 << 24, &image, &bytes));
    *out = (struct keel_code){.form = stack->form,
                              .bytes = image,
                              .size = bytes,
                              .kernels = stored_kernels,
                              .kernel_count = sizeof stored_kernels / sizeof stored_kernels[0]};
    return KEEL_OK;
}

static enum keel_status warm(const char *name, const struct keel_arg *args, uint32_t arg_count,
                             const struct keel_range *range)
{
    struct keel_kernel *kernel = NULL;
    KEEL_TRY(keel_kernel_create(program, name, &kernel));
    enum keel_status status = keel_queue_launch(queue, kernel, args, arg_count, range, NULL, NULL);
    if (status == KEEL_OK)
        status = keel_queue_finish(queue, keel_deadline_after_ns(LIMIT_NS));
    keel_kernel_destroy(kernel);
    return status;
}

static enum keel_status warm_all(struct keel_buffer *buffer)
{
    static const size_t groups[][3] = {{1, 1, 1}, {4, 1, 1}, {16, 1, 1}, {64, 1, 1}, {4, 3, 2}};
    const struct keel_arg b = {.kind = KEEL_ARG_BUFFER, .as.buffer = buffer}, f = {KEEL_ARG_F32, {.f32 = 2}},
                          u = {KEEL_ARG_U32, {.u32 = 1}}, i = {KEEL_ARG_I32, {.i32 = 1}},
                          l = {KEEL_ARG_U64, {.u64 = 1}};
    for (int g = 0; g < 5; g++) {
        struct keel_range range;
        memcpy(range.global, groups[g], sizeof range.global);
        memcpy(range.local, groups[g], sizeof range.local);
        KEEL_TRY(warm("scale", (struct keel_arg[]){b, f, u}, 3, &range));
        KEEL_TRY(warm("every_kind", (struct keel_arg[]){b, i, u, f, l}, 5, &range));
        KEEL_TRY(warm("visit", (struct keel_arg[]){b}, 1, &range));
        KEEL_TRY(warm("spin", (struct keel_arg[]){b, l}, 2, &range));
    }
    return KEEL_OK;
}

/* A binary holds the groups that were launched before. */
static enum keel_status store_binary(struct keel_buffer *buffer)
{
    char path[KEEL_PATH_BYTES];
    void *image = NULL;
    uint64_t bytes = 0;
    KEEL_TRY(warm_all(buffer));
    KEEL_TRY(store_path(path));
    KEEL_TRY(keel_program_binary(program, &image, &bytes));
    enum keel_status status = keel_file_replace(path, image, bytes, 0600);
    keel_free(image);
    return status;
}

static enum keel_status fill_store(void)
{
    struct keel_buffer *buffer = NULL;
    enum keel_status status = keel_device_open("pocl:0", NULL, &device);
    if (status == KEEL_OK)
        status = keel_queue_create(device, &queue);
    if (status == KEEL_OK)
        status = keel_program_create(device, &module, "", &program);
    if (status == KEEL_OK)
        status = keel_buffer_create(device, 4096, &buffer);
    if (status == KEEL_OK)
        status = store_binary(buffer);
    keel_buffer_destroy(buffer);
    keel_program_destroy(program);
    keel_queue_destroy(queue);
    keel_device_close(device);
    return status;
}

static int capture(void)
{
    enum keel_status status = fill_store();
    if (status != KEEL_OK)
        printf("note: no kernels for boards without a compiler: %s\n", keel_detail());
    return keel_status_exit_code(status);
}

/* ---- the claims ------------------------------------------------------------------------------------- */

static void set_up(void)
{
    static const struct keel_code_provider provider = {.find = find_stored};
    bool stored = stack->form != KEEL_CODE_SOURCE;
    struct keel_device_options options = {.code = stored ? &provider : NULL,
                                          .image_limit = stack->form == KEEL_CODE_BINARY};
    ck_ok(keel_device_open(stack->selector, &options, &device));
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

START_TEST(a_wrong_slice_is_refused)
{
    uint64_t align_bytes = keel_device_info(device)->base_align_bytes;
    struct keel_buffer *buffer = buffer_of(4 * align_bytes), *slice = NULL, *other = NULL;
    if (align_bytes > 1)
        ck_status(keel_buffer_slice(buffer, 1, align_bytes, &slice), KEEL_INVALID);
    ck_status(keel_buffer_slice(buffer, 0, 0, &slice), KEEL_INVALID);
    ck_status(keel_buffer_slice(buffer, 3 * align_bytes, 2 * align_bytes, &slice), KEEL_INVALID);
    ck_status(keel_buffer_slice(buffer, align_bytes, UINT64_MAX, &slice), KEEL_INVALID);
    ck_ok(keel_buffer_slice(buffer, 3 * align_bytes, align_bytes, &slice));
    ck_status(keel_buffer_slice(slice, 0, align_bytes, &other), KEEL_INVALID);
    keel_buffer_destroy(slice);
    keel_buffer_destroy(buffer);
}
END_TEST

START_TEST(a_copy_moves_exactly_its_range)
{
    uint32_t in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8], wanted[8] = {0, 0, 3, 4, 5, 0, 0, 0};
    struct keel_buffer *from = buffer_of(sizeof in), *to = buffer_of(sizeof in);
    ck_ok(keel_queue_write(queue, from, 0, in, sizeof in, NULL, NULL));
    ck_ok(keel_queue_copy(queue, from, 8, to, 8, 12, NULL, NULL));
    read_back(to, 0, out, sizeof out);
    ck_assert_mem_eq(out, wanted, sizeof out);
    ck_ok(keel_queue_copy(queue, from, 0, from, 16, 16, NULL, NULL));
    read_back(from, 16, out, 16);
    ck_assert_mem_eq(out, in, 16);
    ck_status(keel_queue_copy(queue, from, 0, from, 8, 12, NULL, NULL), KEEL_INVALID);
    ck_status(keel_queue_copy(queue, from, 0, to, 24, 12, NULL, NULL), KEEL_INVALID);
    keel_buffer_destroy(from);
    keel_buffer_destroy(to);
}
END_TEST

/* Where the bytes lie counts, not by which view they are named. */
START_TEST(a_copy_onto_itself_through_slices_is_refused)
{
    uint32_t align_bytes = keel_device_info(device)->base_align_bytes;
    struct keel_buffer *buffer = buffer_of(4 * align_bytes), *first = NULL, *second = NULL;
    ck_ok(keel_buffer_slice(buffer, 0, 3 * align_bytes, &first));
    ck_ok(keel_buffer_slice(buffer, align_bytes, 3 * align_bytes, &second));
    ck_status(keel_queue_copy(queue, first, 0, second, 0, align_bytes + 4, NULL, NULL), KEEL_INVALID);
    ck_status(keel_queue_copy(queue, second, 0, buffer, align_bytes, 4, NULL, NULL), KEEL_INVALID);
    ck_ok(keel_queue_copy(queue, first, 0, second, 0, align_bytes, NULL, NULL));
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(LIMIT_NS)));
    keel_buffer_destroy(second);
    keel_buffer_destroy(first);
    keel_buffer_destroy(buffer);
}
END_TEST

START_TEST(a_fill_repeats_its_pattern_in_its_range)
{
    uint32_t out[6], wanted[6] = {0, 0xdeadbeef, 0xdeadbeef, 0xdeadbeef, 0, 0};
    struct keel_buffer *buffer = buffer_of(sizeof out);
    ck_ok(keel_queue_fill(queue, buffer, 4, 12, 0xdeadbeef, NULL, NULL));
    read_back(buffer, 0, out, sizeof out);
    ck_assert_mem_eq(out, wanted, sizeof out);
    ck_status(keel_queue_fill(queue, buffer, 2, 4, 0, NULL, NULL), KEEL_INVALID);
    ck_status(keel_queue_fill(queue, buffer, 0, 6, 0, NULL, NULL), KEEL_INVALID);
    ck_status(keel_queue_fill(queue, buffer, 20, 8, 0, NULL, NULL), KEEL_INVALID);
    keel_buffer_destroy(buffer);
}
END_TEST

START_TEST(a_transfer_outside_its_buffer_is_refused)
{
    char data[16];
    struct keel_buffer *buffer = buffer_of(sizeof data);
    ck_status(keel_queue_write(queue, buffer, 1, data, 16, NULL, NULL), KEEL_INVALID);
    ck_status(keel_queue_read(queue, buffer, 17, data, 1, NULL, NULL), KEEL_INVALID);
    ck_status(keel_queue_read(queue, buffer, UINT64_MAX, data, 2, NULL, NULL), KEEL_INVALID);
    ck_status(keel_queue_read(queue, buffer, 0, data, 0, NULL, NULL), KEEL_INVALID);
    ck_ok(keel_queue_write(queue, buffer, 15, data, 1, NULL, NULL));
    finish();
    keel_buffer_destroy(buffer);
}
END_TEST

static void *map(struct keel_buffer *buffer, uint64_t offset_bytes, uint64_t bytes, enum keel_map how)
{
    void *pointer = NULL;
    struct keel_event *mapped = NULL;
    ck_ok(keel_queue_map(queue, buffer, offset_bytes, bytes, how, &pointer, NULL, &mapped));
    ck_ok(keel_event_wait(mapped, keel_deadline_after_ns(LIMIT_NS)));
    keel_event_destroy(mapped);
    return pointer;
}

/* On a buffer, on a slice of it, and on a buffer in memory of ours. */
static void write_and_look(struct keel_buffer *buffer, uint64_t offset_bytes)
{
    float out[16], *in = map(buffer, offset_bytes, sizeof out, KEEL_MAP_WRITE);
    for (int i = 0; i < 16; i++)
        in[i] = (float)(i + 1);
    ck_ok(keel_queue_unmap(queue, buffer, in, NULL, NULL));
    read_back(buffer, offset_bytes, out, sizeof out);
    for (int i = 0; i < 16; i++)
        ck_assert_float_eq(out[i], (float)(i + 1));
    const float *first = map(buffer, offset_bytes, sizeof out, KEEL_MAP_READ);
    const float *second = map(buffer, offset_bytes + 4, 4, KEEL_MAP_READ);
    ck_assert_mem_eq(first, out, sizeof out);
    ck_assert_float_eq(*second, 2);
    ck_ok(keel_queue_unmap(queue, buffer, (void *)first, NULL, NULL));
    ck_ok(keel_queue_unmap(queue, buffer, (void *)second, NULL, NULL));
    finish();
}

START_TEST(what_is_mapped_is_what_commands_see)
{
    uint64_t align_bytes = keel_device_info(device)->base_align_bytes;
    void *memory = NULL, *pointer = NULL;
    ck_ok(keel_alloc_aligned(KEEL_PAGE_BYTES, 2 * align_bytes + KEEL_PAGE_BYTES, &memory));
    struct keel_buffer *buffer = buffer_of(2 * align_bytes + 256), *slice = NULL, *wrapped = NULL;
    ck_ok(keel_buffer_slice(buffer, align_bytes, align_bytes + 100, &slice));
    write_and_look(buffer, 12);
    write_and_look(slice, 4);
    if (keel_device_info(device)->unified_memory) {
        ck_ok(keel_buffer_wrap(device, memory, 2 * align_bytes + 256, &wrapped));
        write_and_look(wrapped, 20);
    }
    ck_status(keel_queue_map(queue, slice, 101, align_bytes, KEEL_MAP_READ, &pointer, NULL, NULL),
              KEEL_INVALID);
    keel_buffer_destroy(wrapped);
    keel_buffer_destroy(slice);
    keel_buffer_destroy(buffer);
    keel_free(memory);
}
END_TEST

/* Where all is one memory: nothing is copied, so that others may be shown the same pages. */
START_TEST(a_wrapped_buffer_is_mapped_where_it_lies)
{
    uint8_t *memory = NULL;
    struct keel_buffer *wrapped = NULL;
    uint64_t allocations = keel_device_stats(device).allocations;
    ck_ok(keel_alloc_aligned(KEEL_PAGE_BYTES, KEEL_PAGE_BYTES, &memory));
    memory[5] = 77;
    if (!keel_device_info(device)->unified_memory) {
        ck_status(keel_buffer_wrap(device, memory, KEEL_PAGE_BYTES, &wrapped), KEEL_UNSUPPORTED);
        keel_free(memory);
        return;
    }
    ck_ok(keel_buffer_wrap(device, memory, KEEL_PAGE_BYTES, &wrapped));
    uint8_t *pointer = map(wrapped, 5, 1, KEEL_MAP_READ);
    ck_assert_ptr_eq(pointer, memory + 5);
    ck_assert_uint_eq(*pointer, 77);
    ck_ok(keel_queue_unmap(queue, wrapped, pointer, NULL, NULL));
    finish();
    ck_assert_uint_eq(keel_device_stats(device).allocations, allocations);
    keel_buffer_destroy(wrapped);
    ck_status(keel_buffer_wrap(device, memory + 4, 8, &wrapped), KEEL_INVALID);
    ck_status(keel_buffer_wrap(device, memory, 0, &wrapped), KEEL_INVALID);
    keel_free(memory);
}
END_TEST

START_TEST(a_range_of_three_dimensions_visits_each_item_once)
{
    uint32_t out[8 * 6 * 4];
    struct keel_buffer *buffer = buffer_of(sizeof out);
    struct keel_kernel *visit = kernel_of("visit");
    struct keel_arg args[] = {buffer_arg(buffer)};
    struct keel_range range = {.global = {8, 6, 4}, .local = {4, 3, 2}};
    ck_ok(keel_queue_launch(queue, visit, args, 1, &range, NULL, NULL));
    read_back(buffer, 0, out, sizeof out);
    for (uint32_t i = 0; i < 8 * 6 * 4; i++)
        ck_assert_uint_eq(out[i], i + 1);
    keel_kernel_destroy(visit);
    keel_buffer_destroy(buffer);
}
END_TEST

START_TEST(a_wrong_launch_is_refused)
{
    struct keel_buffer *buffer = buffer_of(64);
    struct keel_kernel *visit = kernel_of("visit"), *missing = NULL;
    struct keel_arg args[KEEL_ARG_MAX + 1] = {buffer_arg(buffer)};
    struct keel_range parts = line(10, 4), empty = line(0, 1), good = line(16, 4);
    ck_status(keel_queue_launch(queue, visit, args, 1, &parts, NULL, NULL), KEEL_INVALID);
    ck_status(keel_queue_launch(queue, visit, args, 1, &empty, NULL, NULL), KEEL_INVALID);
    ck_status(keel_queue_launch(queue, visit, args, KEEL_ARG_MAX + 1, &good, NULL, NULL), KEEL_LIMIT);
    size_t too_many = (size_t)keel_device_info(device)->max_group_items * 2;
    struct keel_range large = line(too_many, too_many);
    ck_status(keel_queue_launch(queue, visit, args, 1, &large, NULL, NULL), KEEL_UNSUPPORTED);
    struct keel_arg none[] = {buffer_arg(NULL)};
    ck_status(keel_queue_launch(queue, visit, none, 1, &good, NULL, NULL), KEEL_INVALID);
    ck_status(keel_kernel_create(program, "no_such", &missing), KEEL_NOT_FOUND);
    ck_ok(keel_queue_launch(queue, visit, args, 1, &good, NULL, NULL)); /* the queue is none the worse */
    finish();
    keel_kernel_destroy(visit);
    keel_buffer_destroy(buffer);
}
END_TEST

/* A driver may give a new buffer the address of one that is gone. */
START_TEST(a_launch_sees_the_new_buffer_where_an_old_one_was)
{
    struct keel_kernel *visit = kernel_of("visit");
    struct keel_range range = line(16, 16);
    for (int round = 0; round < 50; round++) {
        struct keel_buffer *buffer = buffer_of(64);
        struct keel_arg args[] = {buffer_arg(buffer)};
        ck_ok(keel_queue_launch(queue, visit, args, 1, &range, NULL, NULL));
        uint32_t out[16];
        read_back(buffer, 0, out, sizeof out);
        for (uint32_t i = 0; i < 16; i++)
            ck_assert_uint_eq(out[i], i + 1);
        keel_buffer_destroy(buffer);
    }
    keel_kernel_destroy(visit);
}
END_TEST

START_TEST(launches_allocate_nothing_once_warm)
{
    struct keel_buffer *buffer = buffer_of(ITEMS * sizeof(uint32_t));
    struct keel_kernel *visit = kernel_of("visit");
    struct keel_arg args[] = {buffer_arg(buffer)};
    struct keel_range range = line(ITEMS, 64);
    uint64_t before = 0;
    for (int i = 0; i < 40; i++) {
        struct keel_event *event = NULL;
        if (i == 10)
            before = keel_memory_stats().allocations;
        ck_ok(keel_queue_launch(queue, visit, args, 1, &range, NULL, NULL));
        ck_ok(keel_queue_launch(queue, visit, args, 1, &range, NULL, &event));
        ck_ok(keel_event_wait(event, keel_deadline_after_ns(LIMIT_NS)));
        keel_event_destroy(event);
        finish();
    }
    ck_assert_uint_eq(keel_memory_stats().allocations, before);
    keel_kernel_destroy(visit);
    keel_buffer_destroy(buffer);
}
END_TEST

/* However many are on the way, for instance since the driver calls back late. */
START_TEST(a_queue_has_its_first_events)
{
    enum { ALIVE = 48 };
    struct keel_buffer *buffer = buffer_of(ITEMS * sizeof(uint32_t));
    struct keel_event *events[ALIVE];
    ck_ok(keel_queue_fill(queue, buffer, 0, ITEMS * sizeof(uint32_t), 1, NULL, NULL));
    finish();
    const uint64_t before = keel_memory_stats().allocations;
    for (uint32_t i = 0; i < ALIVE; i++)
        ck_ok(keel_queue_fill(queue, buffer, 0, ITEMS * sizeof(uint32_t), i, NULL, &events[i]));
    ck_assert_uint_eq(keel_memory_stats().allocations, before);
    finish();
    for (uint32_t i = 0; i < ALIVE; i++)
        keel_event_destroy(events[i]);
    keel_buffer_destroy(buffer);
}
END_TEST

START_TEST(events_order_two_queues)
{
    static float in[ITEMS], out[ITEMS];
    struct keel_queue *second = NULL;
    ck_ok(keel_queue_create(device, &second));
    struct keel_buffer *buffer = buffer_of(sizeof in);
    struct keel_kernel *scale = kernel_of("scale"), *again = kernel_of("scale");
    struct keel_arg args[] = {buffer_arg(buffer), {KEEL_ARG_F32, {.f32 = 2}}, {KEEL_ARG_U32, {.u32 = ITEMS}}};
    struct keel_range range = line(ITEMS, 64);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < ITEMS; i++)
            in[i] = (float)(i + round);
        struct keel_event *chain[3];
        ck_ok(keel_queue_write(queue, buffer, 0, in, sizeof in, NULL, &chain[0]));
        struct keel_wait_list first = {chain, 1}, both = {chain, 2}, last = {chain, 3};
        ck_ok(keel_queue_launch(second, scale, args, 3, &range, &first, &chain[1]));
        ck_ok(keel_queue_launch(queue, again, args, 3, &range, &both, &chain[2]));
        ck_ok(keel_queue_read(second, buffer, 0, out, sizeof out, &last, NULL));
        ck_ok(keel_queue_finish(second, keel_deadline_after_ns(LIMIT_NS)));
        for (int i = 0; i < ITEMS; i++)
            ck_assert_float_eq(out[i], 4 * in[i]);
        for (int i = 0; i < 3; i++)
            keel_event_destroy(chain[i]);
    }
    keel_kernel_destroy(again);
    keel_kernel_destroy(scale);
    keel_queue_destroy(second);
    keel_buffer_destroy(buffer);
}
END_TEST

/* A value goes around three buffers, each step on the other queue than the last. */
START_TEST(copies_on_two_queues_follow_their_events)
{
    enum { STEPS = 60, BYTES = ITEMS * sizeof(uint32_t) };
    static uint32_t out[ITEMS];
    struct keel_queue *queues[2] = {queue};
    struct keel_buffer *buffers[3];
    struct keel_event *last = NULL, *next = NULL;
    ck_ok(keel_queue_create(device, &queues[1]));
    for (int i = 0; i < 3; i++)
        buffers[i] = buffer_of(BYTES);
    for (uint32_t i = 0; i < STEPS; i++) {
        struct keel_wait_list waits = {&last, last != NULL};
        if (i % 12 == 0)
            ck_ok(keel_queue_fill(queues[i % 2], buffers[(i + 1) % 3], 0, BYTES, i, &waits, &next));
        else
            ck_ok(keel_queue_copy(queues[i % 2], buffers[i % 3], 0, buffers[(i + 1) % 3], 0, BYTES, &waits,
                                  &next));
        keel_event_destroy(last);
        last = next;
    }
    ck_ok(keel_event_wait(last, keel_deadline_after_ns(LIMIT_NS)));
    keel_event_destroy(last);
    read_back(buffers[STEPS % 3], 0, out, sizeof out);
    for (int i = 0; i < ITEMS; i++)
        ck_assert_uint_eq(out[i], STEPS - 12);
    keel_queue_destroy(queues[1]);
    for (int i = 0; i < 3; i++)
        keel_buffer_destroy(buffers[i]);
}
END_TEST

START_TEST(a_wait_list_has_a_limit_and_one_device)
{
    struct keel_device *other = NULL;
    struct keel_queue *other_queue = NULL;
    struct keel_event *event = NULL, *foreign = NULL, *events[KEEL_WAIT_MAX + 1];
    struct keel_buffer *buffer = buffer_of(64);
    ck_ok(keel_queue_mark(queue, &event));
    for (int i = 0; i <= KEEL_WAIT_MAX; i++)
        events[i] = event;
    struct keel_wait_list most = {events, KEEL_WAIT_MAX}, too_many = {events, KEEL_WAIT_MAX + 1};
    ck_ok(keel_queue_fill(queue, buffer, 0, 64, 1, &most, NULL));
    ck_status(keel_queue_fill(queue, buffer, 0, 64, 1, &too_many, NULL), KEEL_LIMIT);
    ck_ok(keel_device_open("host", NULL, &other));
    ck_ok(keel_queue_create(other, &other_queue));
    ck_ok(keel_queue_mark(other_queue, &foreign));
    struct keel_wait_list wrong = {&foreign, 1};
    ck_status(keel_queue_fill(queue, buffer, 0, 64, 1, &wrong, NULL), KEEL_INVALID);
    ck_status(keel_queue_fill(other_queue, buffer, 0, 64, 1, NULL, NULL), KEEL_INVALID);
    keel_event_destroy(foreign);
    keel_queue_destroy(other_queue);
    keel_device_close(other);
    finish();
    keel_event_destroy(event);
    keel_event_destroy(NULL);
    keel_buffer_destroy(buffer);
}
END_TEST

/* A kernel that runs for some tenths of a second on any of our machines. */
static struct keel_event *launch_spin(struct keel_kernel *spin, struct keel_buffer *buffer)
{
    struct keel_arg args[] = {buffer_arg(buffer), {KEEL_ARG_U64, {.u64 = stack->spin_rounds}}};
    struct keel_range range = line(1, 1);
    struct keel_event *event = NULL;
    ck_ok(keel_queue_launch(queue, spin, args, 2, &range, NULL, &event));
    return event;
}

static void check_spun(struct keel_buffer *buffer)
{
    uint64_t out[2];
    read_back(buffer, 0, out, sizeof out);
    ck_assert_uint_eq(out[1], 7);
}

START_TEST(a_long_kernel_times_out_and_then_finishes)
{
    struct keel_buffer *buffer = buffer_of(16);
    struct keel_kernel *spin = kernel_of("spin");
    struct keel_event *event = launch_spin(spin, buffer);
    if (stack->asynchronous) {
        uint64_t before_ns = keel_now_ns();
        ck_assert(!keel_event_done(event));
        ck_status(keel_event_wait(event, 0), KEEL_TIMEOUT);
        ck_status(keel_event_wait(event, keel_deadline_after_ns(10 * KEEL_NS_PER_MS)), KEEL_TIMEOUT);
        ck_status(keel_queue_finish(queue, keel_deadline_after_ns(10 * KEEL_NS_PER_MS)), KEEL_TIMEOUT);
        ck_assert_uint_ge(keel_now_ns() - before_ns, 20 * KEEL_NS_PER_MS);
    }
    ck_ok(keel_event_wait(event, keel_deadline_after_ns(LIMIT_NS)));
    ck_assert(keel_event_done(event));
    ck_ok(keel_event_wait(event, 0)); /* what is done is done, deadline or not */
    finish();
    keel_event_destroy(event);
    check_spun(buffer);
    keel_kernel_destroy(spin);
    keel_buffer_destroy(buffer);
}
END_TEST

static void *wait_for_event(void *event)
{
    static const char failed[] = "failed";
    return keel_event_wait(event, keel_deadline_after_ns(LIMIT_NS)) == KEEL_OK ? NULL : (void *)failed;
}

START_TEST(several_threads_wait_for_one_event)
{
    struct keel_buffer *buffer = buffer_of(16);
    struct keel_kernel *spin = kernel_of("spin");
    struct keel_event *event = launch_spin(spin, buffer);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, wait_for_event, event), 0);
    for (int i = 0; i < 3; i++) {
        void *result = event;
        ck_assert_int_eq(pthread_join(threads[i], &result), 0);
        ck_assert_ptr_null(result);
    }
    keel_event_destroy(event);
    check_spun(buffer);
    keel_kernel_destroy(spin);
    keel_buffer_destroy(buffer);
}
END_TEST

START_TEST(an_event_may_go_while_its_command_runs)
{
    struct keel_buffer *buffer = buffer_of(16);
    struct keel_kernel *spin = kernel_of("spin");
    struct keel_event *event = launch_spin(spin, buffer);
    if (stack->asynchronous) /* a callback is owed from here on */
        ck_status(keel_event_wait(event, keel_deadline_after_ns(KEEL_NS_PER_MS)), KEEL_TIMEOUT);
    keel_event_destroy(event);
    check_spun(buffer);
    keel_kernel_destroy(spin);
    keel_buffer_destroy(buffer);
}
END_TEST

START_TEST(destroying_a_queue_waits_for_what_runs)
{
    struct keel_buffer *buffer = buffer_of(16);
    struct keel_kernel *spin = kernel_of("spin");
    keel_event_destroy(launch_spin(spin, buffer));
    keel_queue_destroy(queue);
    ck_ok(keel_queue_create(device, &queue));
    check_spun(buffer);
    keel_kernel_destroy(spin);
    keel_buffer_destroy(buffer);
}
END_TEST

START_TEST(a_module_that_does_not_build_shows_its_log)
{
    static const struct keel_module broken = {
        .name = "broken", .source = "kernel void k(global float *x) { x[0] = no_such_name; }"};
    struct keel_program *built = NULL;
    if (!stack->computes || keel_device_info(device)->kind == KEEL_DEVICE_HOST) {
        ck_ok(keel_program_create(device, &broken, NULL, &built)); /* nothing to compile */
        keel_program_destroy(built);
        return;
    }
    ck_status(keel_program_create(device, &broken, NULL, &built), KEEL_UNSUPPORTED);
    ck_assert_ptr_null(built);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "broken"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "no_such_name"));
}
END_TEST

START_TEST(build_options_reach_the_compiler)
{
    static const struct keel_module_kernel table[] = {{"value", host_visit}};
    static const struct keel_module with_option = {
        .name = "with_option",
        .source = "kernel void value(global uint *out) { out[0] = VALUE; }",
        .kernels = table,
        .kernel_count = 1};
    struct keel_program *built = NULL;
    struct keel_kernel *value = NULL;
    struct keel_buffer *buffer = buffer_of(4);
    struct keel_range range = line(1, 1);
    struct keel_arg args[] = {buffer_arg(buffer)};
    ck_ok(keel_program_create(device, &with_option, "-DVALUE=1", &built)); /* what the host function says */
    ck_ok(keel_kernel_create(built, "value", &value));
    ck_ok(keel_queue_launch(queue, value, args, 1, &range, NULL, NULL));
    uint32_t out = 0;
    read_back(buffer, 0, &out, sizeof out);
    ck_assert_uint_eq(out, 1);
    keel_kernel_destroy(value);
    keel_program_destroy(built);
    keel_buffer_destroy(buffer);
}
END_TEST

START_TEST(device_memory_is_counted)
{
    struct keel_buffer *a = buffer_of(1000), *b = buffer_of(3000), *slice = NULL;
    ck_ok(keel_buffer_slice(b, 0, 100, &slice));
    struct keel_device_stats stats = keel_device_stats(device);
    ck_assert_uint_eq(stats.live_bytes, 4000);
    ck_assert_uint_eq(stats.peak_bytes, 4000);
    ck_assert_uint_eq(stats.allocations, 2);
    keel_buffer_destroy(slice);
    keel_buffer_destroy(b);
    stats = keel_device_stats(device);
    ck_assert_uint_eq(stats.live_bytes, 1000);
    ck_assert_uint_eq(stats.peak_bytes, 4000);
    keel_buffer_destroy(a);
}
END_TEST

START_TEST(a_buffer_that_does_not_fit_names_size_and_limit)
{
    const struct keel_device_info *info = keel_device_info(device);
    struct keel_buffer *buffer = NULL;
    char limit[32];
    snprintf(limit, sizeof limit, "%" PRIu64, info->max_buffer_bytes);
    ck_status(keel_buffer_create(device, info->max_buffer_bytes + 1, &buffer), KEEL_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(keel_detail(), limit));
    ck_status(keel_buffer_create(device, UINT64_MAX, &buffer), KEEL_NO_MEMORY);
    ck_status(keel_buffer_create(device, 0, &buffer), KEEL_INVALID);
    ck_assert_ptr_null(buffer);
    ck_assert_uint_eq(keel_device_stats(device).live_bytes, 0);
}
END_TEST

/* No driver here fails on demand, so the failure is put in where a backend reports it. */
START_TEST(a_lost_queue_stays_lost_and_can_still_be_destroyed)
{
    struct keel_buffer *buffer = buffer_of(64);
    struct keel_kernel *visit = kernel_of("visit");
    struct keel_arg args[] = {buffer_arg(buffer)};
    struct keel_range range = line(16, 16);
    struct keel_event *event = NULL;
    uint32_t data = 0;
    ck_status(keel_queue_lose(queue, "a test", -5), KEEL_DEVICE_LOST);
    ck_status(keel_queue_launch(queue, visit, args, 1, &range, NULL, &event), KEEL_DEVICE_LOST);
    ck_status(keel_queue_write(queue, buffer, 0, &data, 4, NULL, NULL), KEEL_DEVICE_LOST);
    ck_status(keel_queue_read(queue, buffer, 0, &data, 4, NULL, NULL), KEEL_DEVICE_LOST);
    ck_status(keel_queue_fill(queue, buffer, 0, 4, 1, NULL, NULL), KEEL_DEVICE_LOST);
    ck_status(keel_queue_copy(queue, buffer, 0, buffer, 32, 4, NULL, NULL), KEEL_DEVICE_LOST);
    ck_status(keel_queue_flush(queue), KEEL_DEVICE_LOST);
    ck_status(keel_queue_mark(queue, &event), KEEL_DEVICE_LOST);
    ck_status(keel_queue_finish(queue, keel_deadline_after_ns(LIMIT_NS)), KEEL_DEVICE_LOST);
    ck_assert_ptr_null(event);
    keel_kernel_destroy(visit);
    keel_buffer_destroy(buffer);
}
END_TEST

/* Each thread: own queue, own kernel, buffers that come and go on the one device. */
static void *work_alone(void *wrong)
{
    struct keel_queue *own = NULL;
    struct keel_kernel *visit = NULL;
    struct keel_range range = line(16, 16);
    bool good =
        keel_queue_create(device, &own) == KEEL_OK && keel_kernel_create(program, "visit", &visit) == KEEL_OK;
    for (int round = 0; good && round < 20; round++) {
        struct keel_buffer *buffer = NULL;
        uint32_t out[16] = {0};
        good = keel_buffer_create(device, sizeof out, &buffer) == KEEL_OK;
        if (!good)
            break;
        struct keel_arg args[] = {buffer_arg(buffer)};
        good = keel_queue_launch(own, visit, args, 1, &range, NULL, NULL) == KEEL_OK &&
               keel_queue_read(own, buffer, 0, out, sizeof out, NULL, NULL) == KEEL_OK &&
               keel_queue_finish(own, keel_deadline_after_ns(LIMIT_NS)) == KEEL_OK;
        for (uint32_t i = 0; i < 16; i++)
            good = good && out[i] == i + 1;
        keel_buffer_destroy(buffer);
    }
    keel_kernel_destroy(visit);
    keel_queue_destroy(own);
    return good ? NULL : wrong;
}

START_TEST(threads_share_a_device)
{
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, work_alone, &queue), 0);
    for (int i = 0; i < 3; i++) {
        void *result = NULL;
        ck_assert_int_eq(pthread_join(threads[i], &result), 0);
        ck_assert_ptr_null(result);
    }
}
END_TEST

/* What one thread enqueues another waits for, as copies to the host are drained. */
enum { HANDED_OVER = 300 };
static struct {
    struct keel_mutex mutex; /* guards what follows */
    struct keel_cond cond;
    struct keel_event *events[HANDED_OVER];
    int count;
} ring;

static void *wait_for_all(void *wrong)
{
    uint64_t deadline_ns = keel_deadline_after_ns(LIMIT_NS);
    for (int i = 0; i < HANDED_OVER; i++) {
        keel_mutex_lock(&ring.mutex);
        while (ring.count <= i && keel_cond_wait(&ring.cond, &ring.mutex, deadline_ns)) {
        }
        struct keel_event *event = ring.count > i ? ring.events[i] : NULL;
        keel_mutex_unlock(&ring.mutex);
        if (event == NULL || keel_event_wait(event, deadline_ns) != KEEL_OK)
            return wrong;
        keel_event_destroy(event);
    }
    return NULL;
}

START_TEST(one_thread_enqueues_what_another_waits_for)
{
    struct keel_buffer *buffer = buffer_of(ITEMS * sizeof(uint32_t));
    struct keel_kernel *visit = kernel_of("visit");
    struct keel_arg args[] = {buffer_arg(buffer)};
    struct keel_range range = line(ITEMS, 64);
    pthread_t waiter;
    void *result = NULL;
    keel_mutex_init(&ring.mutex);
    keel_cond_init(&ring.cond);
    ck_assert_int_eq(pthread_create(&waiter, NULL, wait_for_all, buffer), 0);
    for (int i = 0; i < HANDED_OVER; i++) {
        struct keel_event *event = NULL;
        ck_ok(keel_queue_launch(queue, visit, args, 1, &range, NULL, &event));
        keel_mutex_lock(&ring.mutex);
        ring.events[ring.count++] = event;
        keel_cond_signal(&ring.cond);
        keel_mutex_unlock(&ring.mutex);
    }
    ck_assert_int_eq(pthread_join(waiter, &result), 0);
    ck_assert_ptr_null(result);
    static uint32_t out[ITEMS];
    read_back(buffer, 0, out, sizeof out);
    for (uint32_t i = 0; i < ITEMS; i++)
        ck_assert_uint_eq(out[i], HANDED_OVER * (i + 1));
    keel_cond_fini(&ring.cond);
    keel_mutex_fini(&ring.mutex);
    keel_kernel_destroy(visit);
    keel_buffer_destroy(buffer);
}
END_TEST

/* What only a device that computes can show. */
static void computing_cases(TCase *tc)
{
    tcase_add_test(tc, a_slice_is_a_window_of_its_buffer);
    tcase_add_test(tc, every_kind_of_argument_arrives);
    tcase_add_test(tc, a_range_of_three_dimensions_visits_each_item_once);
    tcase_add_test(tc, a_launch_sees_the_new_buffer_where_an_old_one_was);
    tcase_add_test(tc, events_order_two_queues);
    tcase_add_test(tc, a_long_kernel_times_out_and_then_finishes);
    tcase_add_test(tc, an_event_may_go_while_its_command_runs);
    tcase_add_test(tc, destroying_a_queue_waits_for_what_runs);
    tcase_add_test(tc, one_thread_enqueues_what_another_waits_for);
    if (stack->fragile)
        return;
    tcase_add_test(tc, several_threads_wait_for_one_event);
    tcase_add_test(tc, threads_share_a_device);
}

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_new_buffer_is_zero);
    tcase_add_test(tc, what_is_written_is_read_back);
    tcase_add_test(tc, a_wrong_slice_is_refused);
    tcase_add_test(tc, a_copy_moves_exactly_its_range);
    tcase_add_test(tc, a_copy_onto_itself_through_slices_is_refused);
    tcase_add_test(tc, a_fill_repeats_its_pattern_in_its_range);
    tcase_add_test(tc, a_transfer_outside_its_buffer_is_refused);
    tcase_add_test(tc, what_is_mapped_is_what_commands_see);
    tcase_add_test(tc, a_wrapped_buffer_is_mapped_where_it_lies);
    tcase_add_test(tc, a_wrong_launch_is_refused);
    tcase_add_test(tc, launches_allocate_nothing_once_warm);
    tcase_add_test(tc, a_queue_has_its_first_events);
    tcase_add_test(tc, device_memory_is_counted);
    tcase_add_test(tc, a_buffer_that_does_not_fit_names_size_and_limit);
    tcase_add_test(tc, a_lost_queue_stays_lost_and_can_still_be_destroyed);
    tcase_add_test(tc, copies_on_two_queues_follow_their_events);
    if (stack->form == KEEL_CODE_SOURCE)
        tcase_add_test(tc, a_module_that_does_not_build_shows_its_log);
    if (stack->form == KEEL_CODE_SOURCE && stack->computes)
        tcase_add_test(tc, build_options_reach_the_compiler);
    if (stack->computes)
        computing_cases(tc);
    if (!stack->fragile)
        tcase_add_test(tc, a_wait_list_has_a_limit_and_one_device);
    else
        printf("note: %s: bears neither threads nor a second discovery; three claims are not asked of it\n",
               stack->name);
}

static int run_on(const struct stack *one)
{
    stack = one;
    Suite *suite = suite_create(stack->name);
    TCase *tcase = tcase_create(stack->name);
    cases(tcase);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    return stacks_main(argc, argv, run_on, capture);
}
