/* device_failure_test.c - what is left of a device after a failure: what still runs is waited for, what has
 * nothing to do with it goes on, and what was begun and not done says so. On PoCL's threads, with faults of
 * hal's own or of a driver behind the layer of the emulated boards. Each test is a process. */
#include "device_backend.h"
#include "harness.h"
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/health.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIMIT_NS (60 * KEEL_NS_PER_S)
#define GIVEN_NS (200 * KEEL_NS_PER_MS)
enum { WORDS = 4096, BYTES = WORDS * sizeof(uint32_t), ROUNDS = 200000000 /* some tenths of a second */ };

static const char source[] =
    "kernel void add(global uint *x) { x[0] += 1; }\n"
    "kernel void spin(global ulong *out, ulong rounds)\n"
    "{ ulong x = out[0] | 1; for (ulong i = 0; i < rounds; i++) x = x * 6364136223846793005UL + i;\n"
    "  out[0] = x; }\n";
static const struct keel_module_kernel kernels[] = {{"add", NULL}, {"spin", NULL}};
static const struct keel_module module = {
    .name = "failure", .source = source, .kernels = kernels, .kernel_count = 2};

struct board {
    struct keel_device *device;
    struct keel_queue *queue, *second;
    struct keel_program *program;
    struct keel_kernel *add, *spin;
    struct keel_buffer *buffer, *other;
};

static struct board open_board(uint64_t hung_after_ns)
{
    struct keel_device_options options = {.hung_after_ns = hung_after_ns};
    struct board board;
    ck_ok(keel_device_open("pocl:0", &options, &board.device));
    ck_ok(keel_queue_create(board.device, &board.queue));
    ck_ok(keel_queue_create(board.device, &board.second));
    ck_ok(keel_program_create(board.device, &module, "", &board.program));
    ck_ok(keel_kernel_create(board.program, "add", &board.add));
    ck_ok(keel_kernel_create(board.program, "spin", &board.spin));
    ck_ok(keel_buffer_create(board.device, BYTES, &board.buffer));
    ck_ok(keel_buffer_create(board.device, BYTES, &board.other));
    return board;
}

/* The queues may be gone already: NULL. */
static void close_board(struct board *board)
{
    keel_queue_destroy(board->queue);
    keel_queue_destroy(board->second);
    keel_buffer_destroy(board->buffer);
    keel_buffer_destroy(board->other);
    keel_kernel_destroy(board->add);
    keel_kernel_destroy(board->spin);
    keel_program_destroy(board->program);
    keel_device_close(board->device);
}

static void spin(const struct board *board, struct keel_queue *queue, struct keel_buffer *buffer,
                 uint64_t rounds, struct keel_event **out_event)
{
    struct keel_arg args[] = {{.kind = KEEL_ARG_BUFFER, .as.buffer = buffer},
                              {KEEL_ARG_U64, {.u64 = rounds}}};
    struct keel_range range = {.global = {1, 1, 1}, .local = {1, 1, 1}};
    ck_ok(keel_queue_launch(queue, board->spin, args, 2, &range, NULL, out_event));
}

/* A read that comes after a long kernel, and then a command that fails. */
static void read_and_fail(const struct board *board, uint32_t *host)
{
    memset(host, 0xee, BYTES);
    spin(board, board->queue, board->other, ROUNDS, NULL);
    ck_ok(keel_queue_read(board->queue, board->buffer, 0, host, BYTES, NULL, NULL));
    ck_ok(keel_queue_flush(board->queue));
    ck_ok(keel_device_inject(board->device, "error:fill=1"));
    ck_ok(keel_queue_fill(board->queue, board->other, 0, BYTES, 1, NULL, NULL));
    ck_assert_uint_eq(host[0], 0xeeeeeeee);
}

START_TEST(a_queue_that_failed_is_finished_only_when_nothing_of_it_runs)
{
    struct board board = open_board(LIMIT_NS);
    uint32_t host[WORDS];
    read_and_fail(&board, host);
    ck_status(keel_queue_finish(board.queue, keel_deadline_after_ns(10 * KEEL_NS_PER_MS)), KEEL_TIMEOUT);
    ck_status(keel_queue_finish(board.queue, keel_deadline_after_ns(LIMIT_NS)), KEEL_DEVICE_LOST);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "fill failed: injected"));
    ck_assert_uint_eq(host[0], 0);
    ck_assert_uint_eq(host[WORDS - 1], 0);
    close_board(&board);
}
END_TEST

START_TEST(a_queue_that_failed_is_destroyed_only_when_nothing_of_it_runs)
{
    struct board board = open_board(LIMIT_NS);
    uint32_t host[WORDS];
    read_and_fail(&board, host);
    if (_i == 1) /* no new commands, but what runs is waited for */
        ck_ok(keel_device_report(board.device, KEEL_HEALTH_QUARANTINED, "it is said to be wrong"));
    keel_queue_destroy(board.queue);
    board.queue = NULL;
    ck_assert_uint_eq(host[0], 0);
    ck_assert_uint_eq(host[WORDS - 1], 0);
    close_board(&board);
}
END_TEST

static enum keel_status add(const struct board *board, struct keel_queue *queue, struct keel_buffer *buffer,
                            struct keel_event *wait, struct keel_event **out_event)
{
    struct keel_arg args[] = {{.kind = KEEL_ARG_BUFFER, .as.buffer = buffer}};
    struct keel_range range = {.global = {1, 1, 1}, .local = {1, 1, 1}};
    struct keel_wait_list waits = {&wait, 1};
    return keel_queue_launch(queue, board->add, args, 1, &range, wait != NULL ? &waits : NULL, out_event);
}

static void fail_next_fill(const struct board *board, struct keel_queue *queue, struct keel_event **out_event)
{
    ck_ok(keel_device_inject(board->device, "error:fill=1"));
    ck_ok(keel_queue_fill(queue, board->buffer, 0, 4, 0, NULL, out_event));
    ck_ok(keel_device_inject(board->device, NULL));
}

/* The second queue waits for the first one, which fails at a later command; then a wait there is in vain. */
START_TEST(what_fails_after_it_was_waited_for_fails_nobody_else)
{
    struct board board = open_board(LIMIT_NS);
    struct keel_event *waited_for = NULL, *late = NULL;
    ck_ok(add(&board, board.queue, board.buffer, NULL, &waited_for));
    ck_ok(add(&board, board.second, board.other, waited_for, NULL));
    if (_i == 1)
        ck_ok(keel_queue_finish(board.second, keel_deadline_after_ns(LIMIT_NS)));
    fail_next_fill(&board, board.queue, NULL);
    spin(&board, board.second, board.other, ROUNDS, &late);
    ck_status(keel_event_wait(late, keel_deadline_after_ns(10 * KEEL_NS_PER_MS)), KEEL_TIMEOUT);
    ck_ok(keel_event_wait(late, keel_deadline_after_ns(LIMIT_NS)));
    ck_ok(keel_queue_finish(board.second, keel_deadline_after_ns(LIMIT_NS)));
    keel_event_destroy(waited_for);
    keel_event_destroy(late);
    close_board(&board);
}
END_TEST

START_TEST(of_two_that_were_waited_for_the_one_that_failed_is_named)
{
    struct board board = open_board(LIMIT_NS);
    struct keel_queue *third = NULL;
    struct keel_event *good = NULL, *bad = NULL, *mark = NULL;
    ck_ok(keel_queue_create(board.device, &third));
    ck_ok(add(&board, board.second, board.other, NULL, &good));
    spin(&board, board.queue, board.buffer, 1, &bad);
    ck_ok(add(&board, third, board.other, bad, NULL)); /* not known to fail yet */
    ck_ok(add(&board, third, board.other, good, NULL));
    ck_ok(keel_queue_mark(third, &mark));
    ck_status(_i == 0 ? keel_event_lose(bad, -5, false) : keel_event_lose(good, -7, false), KEEL_DEVICE_LOST);
    ck_status(keel_event_lose(mark, -14, true), KEEL_DEVICE_LOST);
    ck_assert_ptr_nonnull(
        strstr(third->failure, _i == 0 ? "launch spin failed (error -5)" : "launch add failed (error -7)"));
    keel_event_destroy(good);
    keel_event_destroy(bad);
    keel_event_destroy(mark);
    keel_queue_destroy(third);
    close_board(&board);
}
END_TEST

START_TEST(of_two_that_were_waited_for_none_is_named_unless_it_is_known)
{
    struct board board = open_board(LIMIT_NS);
    struct keel_queue *third = NULL;
    struct keel_event *first = NULL, *second = NULL, *mark = NULL;
    ck_ok(keel_queue_create(board.device, &third));
    ck_ok(add(&board, board.queue, board.buffer, NULL, &first));
    ck_ok(add(&board, board.second, board.other, NULL, &second));
    ck_ok(add(&board, third, board.other, first, NULL));
    ck_ok(add(&board, third, board.other, second, NULL));
    ck_ok(keel_queue_mark(third, &mark));
    ck_status(keel_event_lose(mark, -14, true), KEEL_DEVICE_LOST);
    ck_assert_ptr_nonnull(strstr(third->failure, "what it waits for on another queue failed (error -14)"));
    keel_event_destroy(first);
    keel_event_destroy(second);
    keel_event_destroy(mark);
    keel_queue_destroy(third);
    close_board(&board);
}
END_TEST

static enum keel_health health_of(const struct board *board)
{
    struct keel_health_report report;
    keel_device_health(board->device, &report);
    return report.health;
}

/* The first queue's kernel comes back while the second one still hangs. */
START_TEST(a_queue_that_comes_back_does_not_speak_for_one_that_hangs)
{
    struct board board = open_board(20 * KEEL_NS_PER_MS);
    struct keel_event *comes = NULL, *hangs = NULL;
    spin(&board, board.queue, board.other, ROUNDS, &comes);
    ck_status(keel_event_wait(comes, keel_deadline_after_ns(10 * KEEL_NS_PER_MS)), KEEL_TIMEOUT);
    ck_ok(keel_device_inject(board.device, "hang:launch=1"));
    ck_ok(add(&board, board.second, board.buffer, NULL, &hangs));
    ck_status(keel_event_wait(hangs, keel_deadline_after_ns(40 * KEEL_NS_PER_MS)), KEEL_TIMEOUT);
    ck_assert_int_eq(health_of(&board), KEEL_HEALTH_HUNG);
    ck_ok(keel_event_wait(comes, keel_deadline_after_ns(LIMIT_NS)));
    ck_assert_int_eq(health_of(&board), KEEL_HEALTH_HUNG);
    keel_event_destroy(comes);
    keel_event_destroy(hangs);
    close_board(&board);
}
END_TEST

START_TEST(a_queue_that_ends_in_its_destruction_is_no_doubt_any_more)
{
    struct board board = open_board(LIMIT_NS);
    struct keel_event *comes = NULL;
    spin(&board, board.queue, board.other, ROUNDS, &comes);
    ck_status(keel_event_wait(comes, keel_deadline_after_ns(10 * KEEL_NS_PER_MS)), KEEL_TIMEOUT);
    ck_assert_int_eq(health_of(&board), KEEL_HEALTH_SUSPECT);
    keel_event_destroy(comes);
    keel_queue_destroy(board.queue);
    board.queue = NULL;
    ck_assert_int_eq(health_of(&board), KEEL_HEALTH_OK);
    close_board(&board);
}
END_TEST

/* PoCL behind the layer of the emulated boards. */
static struct board open_sick(const char *faults)
{
    char self[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES + 32];
    ck_ok(keel_self_path(self, sizeof self));
    char *slash = strrchr(self, '/');
    ck_assert_ptr_nonnull(slash);
    *slash = '\0';
    snprintf(path, sizeof path, "%s/../../libkeel-emulated.so", self);
    setenv("OPENCL_LAYERS", path, 1);
    setenv("EMULATED_BOARD", "plain", 1);
    setenv("EMULATED_FAULTS", faults, 1);
    return open_board(300 * KEEL_NS_PER_MS);
}

START_TEST(a_new_buffer_that_is_never_zeroed_makes_hung)
{
    struct board board = open_sick("hang:fill=3");
    struct keel_buffer *buffer = NULL;
    struct keel_health_report report;
    ck_status(keel_buffer_create(board.device, BYTES, &buffer), KEEL_TIMEOUT);
    ck_assert_ptr_null(buffer);
    keel_device_health(board.device, &report);
    ck_assert_int_eq(report.health, KEEL_HEALTH_HUNG);
    ck_assert_ptr_nonnull(strstr(report.evidence, "fill of a new buffer"));
    ck_status(keel_buffer_create(board.device, BYTES, &buffer), KEEL_DEVICE_LOST); /* at once */
    ck_assert_uint_eq(keel_device_stats(board.device).live_bytes, 2 * BYTES);
    close_board(&board);
}
END_TEST

/* Who waits looks by himself, and soon asks such a driver for no more callbacks. The board stays open: a
 * callback that is owed might come yet. */
START_TEST(a_driver_that_never_calls_back_is_waited_for_by_looks)
{
    enum { WAITS = 40 };
    char log[] = "/tmp/keel-callbacks-XXXXXX", *text;
    size_t size;
    uint32_t asked = 0;
    const int descriptor = mkstemp(log);
    ck_assert_int_ge(descriptor, 0);
    close(descriptor);
    setenv("EMULATED_LOG", log, 1);
    struct board board = open_sick("drop:callback=*");
    for (int i = 0; i < WAITS; i++) {
        spin(&board, board.queue, board.buffer, ROUNDS / 100, NULL); /* some milliseconds */
        ck_ok(keel_queue_finish(board.queue, keel_deadline_after_ns(LIMIT_NS)));
    }
    ck_ok(keel_file_read(log, SIZE_MAX, &text, &size));
    for (const char *at = text; (at = strstr(at, "callback")) != NULL; at++)
        asked++;
    ck_assert_uint_ge(asked, 1);
    ck_assert_uint_le(asked, WAITS / 2);
    keel_free(text);
    unlink(log);
}
END_TEST

/* A driver that cannot register a callback says nothing of the command, which runs on. */
START_TEST(a_driver_that_takes_no_callback_is_waited_for_by_looks)
{
    struct board board = open_sick("error:callback=*");
    uint32_t host[WORDS];
    struct keel_event *event = NULL;
    memset(host, 0xee, BYTES);
    spin(&board, board.queue, board.other, ROUNDS, NULL);
    ck_ok(keel_queue_read(board.queue, board.buffer, 0, host, BYTES, NULL, &event));
    ck_status(keel_event_look(event, keel_deadline_after_ns(10 * KEEL_NS_PER_MS)), KEEL_TIMEOUT);
    ck_ok(keel_event_wait(event, keel_deadline_after_ns(LIMIT_NS)));
    ck_assert_uint_eq(host[WORDS - 1], 0);
    keel_event_destroy(event);
    close_board(&board);
}
END_TEST

/* Nor one that does not say what became of it: it may run. */
START_TEST(a_command_of_which_the_driver_does_not_tell_loses_its_device)
{
    struct board board = open_sick("error:look=*,live=2"); /* from the third buffer on */
    static uint32_t host[WORDS];
    struct keel_health_report report;
    struct keel_buffer *third = NULL;
    struct keel_event *event = NULL;
    void *memory = NULL;
    memset(host, 0xee, BYTES);
    ck_ok(keel_alloc_aligned(KEEL_PAGE_BYTES, BYTES, &memory));
    ck_ok(keel_buffer_wrap(board.device, memory, BYTES, &third));
    spin(&board, board.queue, board.other, ROUNDS, NULL);
    ck_ok(keel_queue_read(board.queue, board.buffer, 0, host, BYTES, NULL, &event));
    ck_ok(keel_queue_flush(board.queue));
    ck_status(keel_event_wait(event, keel_deadline_after_ns(LIMIT_NS)), KEEL_DEVICE_LOST);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "clGetEventInfo failed (error -5)"));
    ck_assert_uint_eq(host[0], 0xeeeeeeee); /* it still runs */
    keel_device_health(board.device, &report);
    ck_assert_int_eq(report.health, KEEL_HEALTH_LOST);
}
END_TEST

/* Where the driver refuses the mark that says when a queue has ended, nobody knows when it does: host memory
 * must be kept, which only a lost device says. The first marks are those of new buffers. */
START_TEST(a_queue_whose_end_cannot_be_told_loses_its_device)
{
    struct board board = open_sick("error:mark=3+");
    struct keel_health_report report;
    static uint32_t host[WORDS];
    memset(host, 0xee, BYTES);
    spin(&board, board.queue, board.other, ROUNDS, NULL);
    ck_ok(keel_queue_read(board.queue, board.buffer, 0, host, BYTES, NULL, NULL));
    if (_i == 0) {
        ck_status(keel_queue_finish(board.queue, keel_deadline_after_ns(LIMIT_NS)), KEEL_DEVICE_LOST);
        ck_assert_ptr_nonnull(strstr(keel_detail(), "clEnqueueMarkerWithWaitList failed (error -5)"));
    } else {
        keel_queue_destroy(board.queue);
    }
    ck_assert_uint_eq(host[0], 0xeeeeeeee); /* it still runs */
    keel_device_health(board.device, &report);
    ck_assert_int_eq(report.health, KEEL_HEALTH_LOST);
}
END_TEST

/* The driver may still write a new buffer that it was not seen to zero. */
START_TEST(a_new_buffer_that_may_yet_be_written_is_kept)
{
    struct board board = open_sick("stall:fill=3,ms=300;error:mark=3+");
    const struct keel_buffer_options options = {.bytes = BYTES, .memory = KEEL_MEMORY_SHARED};
    struct keel_buffer *buffer = NULL;
    const struct keel_memory_stats before = keel_memory_stats();
    ck_status(keel_buffer_create_in(board.device, &options, &buffer), KEEL_DEVICE_LOST);
    ck_assert_uint_eq(keel_memory_stats().live_blocks, before.live_blocks + 2); /* it, and its pages */
    keel_sleep_until_ns(keel_deadline_after_ns(600 * KEEL_NS_PER_MS));
}
END_TEST

/* Nor is memory used again that a queue which was left behind may yet write: so much that the heap asks the
 * system for it, and gets the same addresses again. */
START_TEST(what_a_hung_board_may_still_write_is_not_used_again)
{
    enum { LARGE_WORDS = 1 << 20 };
    struct board board = open_sick("stall:fill=4,ms=2000"); /* the first three are those of new buffers */
    const struct keel_buffer_options options = {.bytes = LARGE_WORDS * sizeof(uint32_t),
                                                .memory = KEEL_MEMORY_SHARED};
    struct keel_buffer *shared = NULL;
    struct keel_health_report report;
    uint32_t *other;
    ck_ok(keel_buffer_create_in(board.device, &options, &shared));
    ck_ok(keel_queue_fill(board.queue, shared, 0, options.bytes, 0xabababab, NULL, NULL));
    ck_status(keel_queue_finish(board.queue, keel_deadline_after_ns(400 * KEEL_NS_PER_MS)), KEEL_TIMEOUT);
    keel_device_health(board.device, &report);
    ck_assert_int_eq(report.health, KEEL_HEALTH_HUNG);
    keel_queue_destroy(board.queue);
    keel_buffer_destroy(shared);
    ck_ok(keel_alloc_aligned(KEEL_PAGE_BYTES, options.bytes, &other));
    keel_sleep_until_ns(keel_deadline_after_ns(3 * KEEL_NS_PER_S));
    for (int word = 0; word < LARGE_WORDS; word++)
        ck_assert_uint_eq(other[word], 0);
    keel_free(other);
}
END_TEST

enum { STEPS = 5 };

static struct keel_commands *add_often(const struct board *board)
{
    struct keel_arg args[] = {{.kind = KEEL_ARG_BUFFER, .as.buffer = board->buffer}};
    struct keel_range range = {.global = {1, 1, 1}, .local = {1, 1, 1}};
    struct keel_commands *commands = NULL;
    ck_ok(keel_commands_create(board->device, &commands));
    for (int i = 0; i < STEPS; i++)
        ck_ok(keel_commands_launch(commands, board->add, args, 1, &range));
    ck_ok(keel_commands_seal(commands));
    return commands;
}

/* As the driver replays it, and command by command. */
START_TEST(half_a_list_fails_its_queue)
{
    struct board board = open_sick("error:launch=3,code=-4");
    if (_i == 1)
        ck_ok(keel_device_trace_start(board.device, 16));
    struct keel_commands *commands = add_often(&board);
    ck_status(keel_queue_replay(board.queue, commands, NULL, NULL), KEEL_DEVICE_LOST);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "command 3 of 5: "));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "error -4"));
    ck_status(keel_queue_replay(board.queue, commands, NULL, NULL), KEEL_DEVICE_LOST);
    ck_status(keel_queue_finish(board.queue, keel_deadline_after_ns(LIMIT_NS)), KEEL_DEVICE_LOST);
    keel_commands_destroy(commands);
    close_board(&board);
}
END_TEST

START_TEST(a_list_of_which_nothing_was_done_may_be_tried_again)
{
    struct board board = open_sick("error:launch=1,code=-4");
    uint32_t sum = 0;
    if (_i == 1)
        ck_ok(keel_device_trace_start(board.device, 16));
    struct keel_commands *commands = add_often(&board);
    ck_status(keel_queue_replay(board.queue, commands, NULL, NULL), KEEL_NO_MEMORY);
    ck_ok(keel_queue_replay(board.queue, commands, NULL, NULL));
    ck_ok(keel_queue_read(board.queue, board.buffer, 0, &sum, sizeof sum, NULL, NULL));
    ck_ok(keel_queue_finish(board.queue, keel_deadline_after_ns(LIMIT_NS)));
    ck_assert_uint_eq(sum, STEPS);
    keel_commands_destroy(commands);
    close_board(&board);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_queue_that_failed_is_finished_only_when_nothing_of_it_runs);
    tcase_add_loop_test(tc, a_queue_that_failed_is_destroyed_only_when_nothing_of_it_runs, 0, 2);
    tcase_add_loop_test(tc, what_fails_after_it_was_waited_for_fails_nobody_else, 0, 2);
    tcase_add_loop_test(tc, of_two_that_were_waited_for_the_one_that_failed_is_named, 0, 2);
    tcase_add_test(tc, of_two_that_were_waited_for_none_is_named_unless_it_is_known);
    tcase_add_test(tc, a_queue_that_comes_back_does_not_speak_for_one_that_hangs);
    tcase_add_test(tc, a_queue_that_ends_in_its_destruction_is_no_doubt_any_more);
    tcase_add_test(tc, a_new_buffer_that_is_never_zeroed_makes_hung);
    tcase_add_test(tc, a_driver_that_never_calls_back_is_waited_for_by_looks);
    tcase_add_test(tc, a_driver_that_takes_no_callback_is_waited_for_by_looks);
    tcase_add_test(tc, a_command_of_which_the_driver_does_not_tell_loses_its_device);
    tcase_add_loop_test(tc, a_queue_whose_end_cannot_be_told_loses_its_device, 0, 2);
    tcase_add_test(tc, a_new_buffer_that_may_yet_be_written_is_kept);
    tcase_add_test(tc, what_a_hung_board_may_still_write_is_not_used_again);
    tcase_add_loop_test(tc, half_a_list_fails_its_queue, 0, 2);
    tcase_add_loop_test(tc, a_list_of_which_nothing_was_done_may_be_tried_again, 0, 2);
}

KEEL_TEST_MAIN("device failure", cases, 90)
