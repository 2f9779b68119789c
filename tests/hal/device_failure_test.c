/* device_failure_test.c - what is left of a device after a failure: what still runs is waited for, what has
 * nothing to do with it goes on, and what was begun and not done says so. On PoCL's threads, with faults of
 * hal's own or of a driver behind the layer of the emulated boards. Each test is a process. */
#include "device_backend.h"
#include "harness.h"
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/health.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT_NS (60 * KEEL_NS_PER_S)
#define GIVEN_NS (200 * KEEL_NS_PER_MS)
enum { WORDS = 4096, BYTES = WORDS * sizeof(uint32_t), ROUNDS = 400000000 /* some tenths of a second */ };

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

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_queue_that_failed_is_finished_only_when_nothing_of_it_runs);
    tcase_add_loop_test(tc, a_queue_that_failed_is_destroyed_only_when_nothing_of_it_runs, 0, 2);
}

KEEL_TEST_MAIN("device failure", cases, 90)
