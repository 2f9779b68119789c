/* device_trace_test.c - a trace is JSON that a viewer takes, with every command in its row and its times. */
#include "harness.h"
#include <jansson.h>
#include <keel/clock.h>
#include <keel/health.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LIMIT_NS (60 * KEEL_NS_PER_S)
enum { ITEMS = 256, BYTES = ITEMS * sizeof(uint32_t) };

static const char *const selectors[] = {"host", "pocl:0"};
static const char source[] = "kernel void add(global uint *x, uint v) { x[get_global_id(0)] += v; }\n";

static void host_add(void *const *arguments, const struct keel_range *range)
{
    uint32_t *x = arguments[0];
    for (size_t i = 0; i < range->global[0]; i++)
        x[i] += *(const uint32_t *)arguments[1];
}

static const struct keel_module_kernel kernels[] = {{"add", host_add}};
static const struct keel_module module = {
    .name = "trace", .source = source, .kernels = kernels, .kernel_count = 1};

static char path[] = "/tmp/keel-trace-XXXXXX";
static struct keel_device *device;
static struct keel_queue *queue, *second;
static struct keel_program *program;
static struct keel_kernel *add;
static struct keel_buffer *buffer, *other;

static void open_on(const char *selector, uint32_t kept)
{
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    struct keel_device_options options = {.hung_after_ns = 40 * KEEL_NS_PER_MS};
    ck_ok(keel_device_open(selector, &options, &device));
    ck_ok(keel_device_trace_start(device, kept));
    ck_ok(keel_queue_create(device, &queue));
    ck_ok(keel_queue_create(device, &second));
    ck_ok(keel_program_create(device, &module, "", &program));
    ck_ok(keel_kernel_create(program, "add", &add));
    ck_ok(keel_buffer_create(device, BYTES, &buffer));
    ck_ok(keel_buffer_create(device, BYTES, &other));
}

static void close_all(void)
{
    keel_buffer_destroy(buffer);
    keel_buffer_destroy(other);
    keel_kernel_destroy(add);
    keel_program_destroy(program);
    keel_queue_destroy(queue);
    keel_queue_destroy(second);
    keel_device_close(device);
    unlink(path);
}

static const struct keel_range range = {.global = {ITEMS, 1, 1}, .local = {16, 1, 1}};

static void launch(struct keel_queue *on, struct keel_event **out_event)
{
    struct keel_arg args[] = {{.kind = KEEL_ARG_BUFFER, .as.buffer = buffer}, {KEEL_ARG_U32, {.u32 = 1}}};
    ck_ok(keel_queue_launch(on, add, args, 2, &range, NULL, out_event));
}

/* The commands of the trace, read as a viewer would; the caller lets go of it. */
static json_t *written(void)
{
    json_error_t error;
    ck_ok(keel_device_trace_write(device, path));
    json_t *file = json_load_file(path, 0, &error);
    ck_assert_msg(file != NULL, "%s", error.text);
    json_t *all = json_incref(json_object_get(file, "traceEvents"));
    json_decref(file);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(all, 0), "name")), "process_name");
    json_array_remove(all, 0);
    return all;
}

static const char *text_of(const json_t *all, size_t index, const char *key)
{
    const json_t *one = json_array_get(all, index);
    const json_t *value = json_object_get(one, key);
    return json_string_value(value != NULL ? value : json_object_get(json_object_get(one, "args"), key));
}

static double number_of(const json_t *all, size_t index, const char *key)
{
    const json_t *one = json_array_get(all, index);
    const json_t *value = json_object_get(one, key);
    return json_number_value(value != NULL ? value : json_object_get(json_object_get(one, "args"), key));
}

START_TEST(every_command_is_in_its_row_with_its_times)
{
    static const char *const wanted[] = {"fill", "launch add", "copy", "read", "launch add"};
    static const int rows[] = {1, 1, 1, 2, 1}, moved[] = {BYTES, 0, BYTES, 16, 0};
    struct keel_event *copied = NULL, *last = NULL;
    uint32_t out[4];
    open_on(selectors[_i], 100);
    double began_us = (double)keel_now_ns() / 1e3;
    ck_ok(keel_queue_fill(queue, buffer, 0, BYTES, 4, NULL, NULL));
    launch(queue, NULL);
    ck_ok(keel_queue_copy(queue, buffer, 0, other, 0, BYTES, NULL, &copied));
    struct keel_wait_list waits = {&copied, 1};
    ck_ok(keel_queue_read(second, other, 0, out, sizeof out, &waits, NULL));
    launch(queue, &last);
    ck_ok(keel_event_wait(last, keel_deadline_after_ns(LIMIT_NS)));
    ck_ok(keel_queue_finish(second, keel_deadline_after_ns(LIMIT_NS)));
    double ended_us = (double)keel_now_ns() / 1e3;
    uint64_t last_began_ns = 0, last_ended_ns = 0;
    ck_assert(keel_event_times(last, &last_began_ns, &last_ended_ns) == (_i != 0));
    ck_assert(last_began_ns <= last_ended_ns && (double)last_ended_ns / 1e3 <= ended_us - began_us);
    keel_event_destroy(copied);
    keel_event_destroy(last);
    ended_us = (double)keel_now_ns() / 1e3;
    ck_assert_uint_eq(out[3], 5); /* and the commands did what they do */
    json_t *all = written();
    ck_assert_uint_eq(json_array_size(all), 5);
    for (size_t i = 0; i < 5; i++) {
        double from_us = number_of(all, i, "ts"), length_us = number_of(all, i, "dur");
        ck_assert_str_eq(text_of(all, i, "name"), wanted[i]);
        ck_assert_str_eq(text_of(all, i, "ph"), "X");
        ck_assert_str_eq(text_of(all, i, "end"), _i == 0 ? "seen" : "driver");
        ck_assert_int_eq((int)number_of(all, i, "tid"), rows[i]);
        ck_assert_int_eq((int)number_of(all, i, "bytes"), moved[i]);
        ck_assert(from_us >= began_us && from_us >= number_of(all, i, "enqueued"));
        ck_assert(length_us >= 0 && from_us + length_us <= ended_us);
    }
    json_decref(all);
    close_all();
}
END_TEST

START_TEST(a_replayed_list_is_kept_command_by_command)
{
    struct keel_commands *list = NULL;
    struct keel_arg args[] = {{.kind = KEEL_ARG_BUFFER, .as.buffer = NULL}, {KEEL_ARG_U32, {.u32 = 1}}};
    uint32_t out[1];
    open_on(selectors[_i], 100);
    args[0].as.buffer = buffer;
    ck_ok(keel_commands_create(device, &list));
    for (uint32_t i = 0; i < 2; i++)
        ck_ok(keel_commands_launch(list, add, args, 2, &range));
    ck_ok(keel_commands_seal(list));
    for (int i = 0; i < 2; i++)
        ck_ok(keel_queue_replay(queue, list, NULL, NULL));
    ck_ok(keel_queue_read(queue, buffer, 0, out, sizeof out, NULL, NULL));
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(LIMIT_NS)));
    ck_assert_uint_eq(out[0], 4); /* two replays of two launches that add 1 */
    json_t *all = written();
    ck_assert_uint_eq(json_array_size(all), 5);
    for (size_t i = 0; i < 4; i++)
        ck_assert_str_eq(text_of(all, i, "name"), "launch add");
    json_decref(all);
    keel_commands_destroy(list);
    close_all();
}
END_TEST

START_TEST(only_the_last_are_kept)
{
    struct keel_event *events[10];
    open_on(selectors[_i], 4);
    for (uint32_t i = 0; i < 10; i++)
        ck_ok(keel_queue_fill(queue, buffer, 0, 4 * (i + 1), i, NULL, i % 2 == 0 ? &events[i] : NULL));
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(LIMIT_NS)));
    for (uint32_t i = 0; i < 10; i += 2)
        keel_event_destroy(events[i]);
    json_t *all = written();
    ck_assert_uint_eq(json_array_size(all), 4);
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq((int)number_of(all, i, "bytes"), (int)(4 * (i + 7)));
    json_decref(all);
    close_all();
}
END_TEST

START_TEST(what_never_ends_has_no_end)
{
    open_on(selectors[_i], 100);
    ck_ok(keel_device_inject(device, "hang:launch=1;error:copy=1"));
    launch(queue, NULL);
    ck_ok(keel_queue_copy(second, buffer, 0, other, 0, BYTES, NULL, NULL));
    ck_status(keel_queue_finish(queue, keel_deadline_after_ns(50 * KEEL_NS_PER_MS)), KEEL_TIMEOUT);
    json_t *all = written();
    ck_assert_uint_eq(json_array_size(all), 2);
    ck_assert_str_eq(text_of(all, 0, "end"), "runs");
    ck_assert_str_eq(text_of(all, 0, "ph"), "B");
    ck_assert_str_eq(text_of(all, 1, "name"), "copy");
    json_decref(all);
    close_all();
}
END_TEST

START_TEST(a_trace_runs_once_and_is_of_a_size)
{
    open_on(selectors[_i], 1);
    ck_status(keel_device_trace_start(device, 10), KEEL_BUSY);
    launch(queue, NULL);
    keel_device_trace_stop(device);
    keel_device_trace_stop(device);
    ck_status(keel_device_trace_write(device, path), KEEL_INVALID);
    ck_status(keel_device_trace_start(device, 0), KEEL_INVALID);
    ck_status(keel_device_trace_start(device, 16385), KEEL_INVALID);
    launch(queue, NULL);
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(LIMIT_NS)));
    ck_ok(keel_device_trace_start(device, 10)); /* on queues that were made before */
    launch(queue, NULL);
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(LIMIT_NS)));
    json_t *all = written();
    ck_assert_uint_eq(json_array_size(all), 1);
    ck_assert_str_eq(text_of(all, 0, "ph"), "X");
    json_decref(all);
    close_all();
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, every_command_is_in_its_row_with_its_times, 0, 2);
    tcase_add_loop_test(tc, a_replayed_list_is_kept_command_by_command, 0, 2);
    tcase_add_loop_test(tc, only_the_last_are_kept, 0, 2);
    tcase_add_loop_test(tc, what_never_ends_has_no_end, 0, 2);
    tcase_add_loop_test(tc, a_trace_runs_once_and_is_of_a_size, 0, 2);
}

KEEL_TEST_MAIN("device trace", cases, 60)
