/* device_health_test.c - the states of health and plans of faults, as pure functions, and then on devices:
 * an injected fault in front of the host device and of PoCL's threads, and a kernel there that really runs
 * on. */
#include "device_fault.h"
#include "harness.h"
#include "opencl_backend.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/health.h>
#include <keel/process.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LIMIT_NS (60 * KEEL_NS_PER_S)
#define HUNG_NS  (300 * KEEL_NS_PER_MS)
#define GIVEN_NS (500 * KEEL_NS_PER_MS)

/* ---- the states --------------------------------------------------------------------------------------- */

static struct keel_health_machine machine_in(enum keel_health health, struct keel_health_doubt *doubt)
{
    struct keel_health_machine machine = {.health = health};
    *doubt = (struct keel_health_doubt){0};
    if (health == KEEL_HEALTH_SUSPECT || health == KEEL_HEALTH_HUNG) {
        machine.health = KEEL_HEALTH_OK;
        keel_health_late(&machine, doubt, 10, 0, health == KEEL_HEALTH_HUNG ? 100 : 50, 100);
    }
    ck_assert_int_eq(machine.health, health);
    return machine;
}

START_TEST(waits_in_vain_make_suspect_and_in_time_hung)
{
    struct keel_health_machine machine = {0};
    struct keel_health_doubt one = {0}, two = {0}, third = {0};
    ck_assert(keel_health_late(&machine, &one, 10, 1000, 1040, 100));
    ck_assert_int_eq(machine.health, KEEL_HEALTH_SUSPECT);
    ck_assert(!keel_health_late(&machine, &one, 11, 1040, 1099, 100));
    ck_assert_int_eq(machine.health, KEEL_HEALTH_SUSPECT);
    ck_assert(keel_health_late(&machine, &two, 1, 1099, 1100, 100)); /* 100 since the first wait began */
    ck_assert_int_eq(machine.health, KEEL_HEALTH_HUNG);
    ck_assert(!keel_health_late(&machine, &two, 1, 1100, 1101, 100));
    struct keel_health_machine at_once = {.health = KEEL_HEALTH_DEGRADED};
    ck_assert(keel_health_late(&at_once, &third, 10, 1000, 1100, 100));
    ck_assert_int_eq(at_once.health, KEEL_HEALTH_HUNG);
}
END_TEST

START_TEST(only_what_was_waited_for_or_later_is_progress)
{
    struct keel_health_doubt one, two = {0};
    struct keel_health_machine machine = machine_in(KEEL_HEALTH_HUNG, &one);
    ck_assert(!keel_health_progress(&machine, &two, 99));
    ck_assert(!keel_health_progress(&machine, &one, 9));
    ck_assert_int_eq(machine.health, KEEL_HEALTH_HUNG);
    ck_assert(keel_health_progress(&machine, &one, 11));
    ck_assert_int_eq(machine.health, KEEL_HEALTH_DEGRADED); /* it was hung: that is remembered */
    ck_assert(!keel_health_progress(&machine, &one, 12));
}
END_TEST

START_TEST(of_two_queues_that_hang_both_must_come_back)
{
    struct keel_health_doubt one, two = {0};
    struct keel_health_machine machine = machine_in(KEEL_HEALTH_SUSPECT, &one);
    ck_assert(keel_health_late(&machine, &two, 7, 50, 100, 100));
    ck_assert(!keel_health_progress(&machine, &one, 10));
    ck_assert_int_eq(machine.health, KEEL_HEALTH_HUNG);
    ck_assert(!keel_health_progress(&machine, &one, 11)); /* its doubt is over: it does not count twice */
    ck_assert(keel_health_progress(&machine, &two, 7));
    ck_assert_int_eq(machine.health, KEEL_HEALTH_DEGRADED);
    ck_assert(keel_health_late(&machine, &two, 8, 200, 210, 100)); /* and a doubt anew */
    ck_assert_int_eq(machine.health, KEEL_HEALTH_SUSPECT);
}
END_TEST

START_TEST(what_comes_back_puts_off_the_end_of_patience)
{
    struct keel_health_doubt one, two = {0};
    struct keel_health_machine machine = machine_in(KEEL_HEALTH_SUSPECT, &one);
    ck_assert(!keel_health_late(&machine, &two, 7, 50, 60, 100));
    ck_assert(!keel_health_progress(&machine, &one, 10));
    ck_assert(!keel_health_late(&machine, &two, 7, 90, 120, 100)); /* something came back since 0 */
    ck_assert_int_eq(machine.health, KEEL_HEALTH_SUSPECT);
    ck_assert(keel_health_late(&machine, &two, 7, 120, 190, 100));
    ck_assert_int_eq(machine.health, KEEL_HEALTH_HUNG);
}
END_TEST

START_TEST(a_suspect_goes_back_to_what_it_was)
{
    struct keel_health_doubt one;
    struct keel_health_machine good = machine_in(KEEL_HEALTH_SUSPECT, &one);
    ck_assert(keel_health_progress(&good, &one, 10));
    ck_assert_int_eq(good.health, KEEL_HEALTH_OK);
    one = (struct keel_health_doubt){0};
    struct keel_health_machine bad = {.health = KEEL_HEALTH_DEGRADED};
    keel_health_late(&bad, &one, 10, 0, 50, 100);
    ck_assert(keel_health_progress(&bad, &one, 10));
    ck_assert_int_eq(bad.health, KEEL_HEALTH_DEGRADED);
    struct keel_health_machine failed = machine_in(KEEL_HEALTH_SUSPECT, &one);
    ck_assert(!keel_health_fail(&failed)); /* suspect still, and degraded when it comes back */
    ck_assert(keel_health_progress(&failed, &one, 10));
    ck_assert_int_eq(failed.health, KEEL_HEALTH_DEGRADED);
}
END_TEST

START_TEST(nobody_says_more_than_the_table_allows)
{
    enum { O = 1 << KEEL_HEALTH_OK, D = 1 << KEEL_HEALTH_DEGRADED, S = 1 << KEEL_HEALTH_SUSPECT };
    enum { L = 1 << KEEL_HEALTH_LOST, Q = 1 << KEEL_HEALTH_QUARANTINED };
    static const int allowed_from[] = {[KEEL_HEALTH_OK] = O | D | S | L | Q,
                                       [KEEL_HEALTH_DEGRADED] = O | D | S | L | Q,
                                       [KEEL_HEALTH_SUSPECT] = O | D | S | L | Q,
                                       [KEEL_HEALTH_HUNG] = L | Q,
                                       [KEEL_HEALTH_LOST] = L | Q,
                                       [KEEL_HEALTH_QUARANTINED] = O | D | S | L | Q};
    for (int from = KEEL_HEALTH_OK; from <= KEEL_HEALTH_QUARANTINED; from++)
        for (int to = KEEL_HEALTH_OK; to <= KEEL_HEALTH_QUARANTINED; to++) {
            struct keel_health_doubt doubt;
            struct keel_health_machine machine = machine_in((enum keel_health)from, &doubt);
            bool allowed = false, changed = keel_health_say(&machine, (enum keel_health)to, &allowed);
            ck_assert_msg(allowed == ((allowed_from[from] >> to & 1) == 1), "from %d to %d", from, to);
            ck_assert_int_eq(changed, allowed && from != to);
            ck_assert_int_eq(machine.health, allowed ? to : from);
        }
}
END_TEST

START_TEST(the_lost_and_the_quarantined_stay_so)
{
    for (int health = KEEL_HEALTH_LOST; health <= KEEL_HEALTH_QUARANTINED; health++) {
        struct keel_health_doubt one;
        struct keel_health_machine machine = machine_in((enum keel_health)health, &one);
        ck_assert(!keel_health_late(&machine, &one, 10, 0, 1000, 100));
        ck_assert(!keel_health_fail(&machine));
        ck_assert(!keel_health_progress(&machine, &one, 10));
        ck_assert_int_eq(machine.health, health);
    }
}
END_TEST

/* ---- plans -------------------------------------------------------------------------------------------- */

START_TEST(a_plan_says_what_it_says)
{
    struct keel_fault_plan plan;
    ck_ok(keel_fault_plan_read(
        "error:launch=12;hang:any=3+;flip:launch=*,arg=2,bit=77,kernel=gemm;slow:read=1,ms=5", &plan));
    ck_assert_uint_eq(plan.count, 4);
    const struct keel_fault *fault = plan.faults;
    ck_assert(fault[0].head.kind == KEEL_FAULT_ERROR && fault[0].head.target == KEEL_COMMAND_LAUNCH);
    ck_assert(fault[0].when.first == 12 && fault[0].when.every == 0);
    ck_assert(fault[1].head.kind == KEEL_FAULT_HANG && fault[1].head.target == KEEL_FAULT_ON_ANY);
    ck_assert(fault[1].when.first == 3 && fault[1].when.every == 1);
    ck_assert(fault[2].head.kind == KEEL_FAULT_FLIP && fault[2].arg == 2 && fault[2].bit == 77);
    ck_assert_str_eq(fault[2].kernel, "gemm");
    ck_assert(fault[3].head.kind == KEEL_FAULT_SLOW && fault[3].head.target == KEEL_COMMAND_READ &&
              fault[3].ms == 5);
    ck_ok(keel_fault_plan_read("", &plan));
    ck_assert_uint_eq(plan.count, 0);
}
END_TEST

START_TEST(a_wrong_plan_names_its_wrong_word)
{
    static const char *const wrong[][2] = {{"err:launch=1", "err"},
                                           {"error", "error"},
                                           {"error:lunch=1", "lunch"},
                                           {"error:launch", "launch"},
                                           {"error:launch=0", "0"},
                                           {"error:launch=x", "x"},
                                           {"error:launch=", ""},
                                           {"error:launch=1-3", "1-3"},
                                           {"error:launch=1,", ""},
                                           {"error:launch=1,ms=3", "ms"},
                                           {"slow:launch=1", "slow"},
                                           {"slow:launch=1,ms=0", "0"},
                                           {"slow:launch=1,ms=5s", "5s"},
                                           {"slow:launch=1,ms=600001", "600001"},
                                           {"flip:map=1", "map"},
                                           {"flip:any=1", "any"},
                                           {"flip:read=1,arg=0", "arg"},
                                           {"flip:launch=1,arg=32", "32"},
                                           {"hang:buffer=1", "buffer"},
                                           {"error:read=1,kernel=gemm", "kernel"},
                                           {"error:launch=1,kernel=", ""},
                                           {"error:launch=1;", ""},
                                           {"error:launch=1:3", "1:3"},
                                           {"error:launch=1,read=2", "read"},
                                           {"error:launch=4/0", "4/0"},
                                           {"error:mark=1", "mark"},
                                           {"slow:launch=1,ms=2,ms=3", "ms"},
                                           {"error:launch=99999999999999999999", "99999999999999999999"},
                                           {"hang:launch=1;boom:read=2", "boom"}};
    struct keel_fault_plan plan = {.count = 7};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char quoted[64];
        snprintf(quoted, sizeof quoted, "\"%s\"", wrong[i][1]);
        ck_status(keel_fault_plan_read(wrong[i][0], &plan), KEEL_INVALID);
        ck_assert_msg(strstr(keel_detail(), quoted) != NULL, "%s: %s", wrong[i][0], keel_detail());
    }
    ck_assert_uint_eq(plan.count, 7);
}
END_TEST

START_TEST(faults_count_what_they_are_put_on)
{
    struct keel_fault_plan plan;
    ck_ok(keel_fault_plan_read("error:launch=2,kernel=b;hang:read=2+;slow:any=*,ms=1;lose:copy=2/3", &plan));
    ck_assert(!keel_fault_plan_meet(&plan, KEEL_COMMAND_LAUNCH, "b").error);
    ck_assert(!keel_fault_plan_meet(&plan, KEEL_COMMAND_LAUNCH, "a").error);
    ck_assert(keel_fault_plan_meet(&plan, KEEL_COMMAND_LAUNCH, "b").error);
    ck_assert(!keel_fault_plan_meet(&plan, KEEL_COMMAND_LAUNCH, "b").error);
    ck_assert(!keel_fault_plan_meet(&plan, KEEL_COMMAND_READ, NULL).hang);
    ck_assert(keel_fault_plan_meet(&plan, KEEL_COMMAND_READ, NULL).hang);
    ck_assert(keel_fault_plan_meet(&plan, KEEL_COMMAND_READ, NULL).hang);
    ck_assert_uint_eq(keel_fault_plan_meet(&plan, KEEL_COMMAND_UNMAP, NULL).late_ns, KEEL_NS_PER_MS);
    ck_assert_uint_eq(keel_fault_plan_meet(&plan, KEEL_FAULT_ON_BUFFER, NULL).late_ns, 0);
    for (uint32_t copy = 1; copy <= 8; copy++)
        ck_assert_int_eq(keel_fault_plan_meet(&plan, KEEL_COMMAND_COPY, NULL).lose, copy % 3 == 2);
}
END_TEST

/* ---- devices ------------------------------------------------------------------------------------------ */

static const char source[] =
    "kernel void add(global uint *x, uint value) { x[get_global_id(0)] += value; }\n"
    "kernel void spin(global ulong *out, ulong rounds)\n"
    "{ ulong x = out[0] | 1; for (ulong i = 0; i < rounds; i++) x = x * 6364136223846793005UL + i;\n"
    "  out[0] = x; }\n";

static void host_add(void *const *arguments, const struct keel_range *range)
{
    uint32_t *x = arguments[0];
    for (size_t i = 0; i < range->global[0]; i++)
        x[i] += *(const uint32_t *)arguments[1];
}

static void host_spin(void *const *arguments, const struct keel_range *range)
{
    (void)range;
    uint64_t *out = arguments[0];
    out[0] = *(const uint64_t *)arguments[1];
}

static const struct keel_module_kernel kernels[] = {{"add", host_add}, {"spin", host_spin}};
static const struct keel_module module = {
    .name = "health", .source = source, .kernels = kernels, .kernel_count = 2};
static const char *const selectors[] = {"host", "pocl:0"};
enum { SELECTORS = 2, ITEMS = 16, BYTES = ITEMS * sizeof(uint32_t) };

/* A device with all that a test needs of it. */
struct board {
    struct keel_device *device;
    struct keel_queue *queue, *second;
    struct keel_program *program;
    struct keel_kernel *add, *spin;
    struct keel_buffer *buffer, *other;
};

static struct board open_board(const char *selector, const char *plan)
{
    struct keel_device_options options = {.hung_after_ns = HUNG_NS};
    struct board board;
    ck_ok(keel_device_open(selector, &options, &board.device));
    ck_ok(keel_queue_create(board.device, &board.queue));
    ck_ok(keel_queue_create(board.device, &board.second));
    ck_ok(keel_program_create(board.device, &module, "", &board.program));
    ck_ok(keel_kernel_create(board.program, "add", &board.add));
    ck_ok(keel_kernel_create(board.program, "spin", &board.spin));
    ck_ok(keel_buffer_create(board.device, BYTES, &board.buffer));
    ck_ok(keel_buffer_create(board.device, BYTES, &board.other));
    ck_ok(keel_device_inject(board.device, plan));
    return board;
}

static void close_board(struct board *board)
{
    keel_buffer_destroy(board->buffer);
    keel_buffer_destroy(board->other);
    keel_kernel_destroy(board->add);
    keel_kernel_destroy(board->spin);
    keel_program_destroy(board->program);
    keel_queue_destroy(board->queue);
    keel_queue_destroy(board->second);
    keel_device_close(board->device);
}

static enum keel_status add(const struct board *board, struct keel_queue *queue, struct keel_buffer *buffer,
                            struct keel_event *wait, struct keel_event **out_event)
{
    struct keel_arg args[] = {{.kind = KEEL_ARG_BUFFER, .as.buffer = buffer}, {KEEL_ARG_U32, {.u32 = 1}}};
    struct keel_range range = {.global = {ITEMS, 1, 1}, .local = {ITEMS, 1, 1}};
    struct keel_wait_list waits = {&wait, 1};
    return keel_queue_launch(queue, board->add, args, 2, &range, wait != NULL ? &waits : NULL, out_event);
}

static enum keel_health health_of(const struct board *board, char evidence[KEEL_EVIDENCE_BYTES])
{
    struct keel_health_report report;
    keel_device_health(board->device, &report);
    if (evidence != NULL)
        memcpy(evidence, report.evidence, KEEL_EVIDENCE_BYTES);
    return report.health;
}

static void check_values(struct keel_queue *queue, struct keel_buffer *buffer, uint32_t wanted)
{
    uint32_t out[ITEMS];
    ck_ok(keel_queue_read(queue, buffer, 0, out, sizeof out, NULL, NULL));
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(LIMIT_NS)));
    for (int i = 0; i < ITEMS; i++)
        ck_assert_uint_eq(out[i], wanted);
}

/* A board that nobody put a fault on goes on. */
static void check_works(const struct board *board)
{
    ck_ok(keel_queue_fill(board->queue, board->buffer, 0, BYTES, 5, NULL, NULL));
    ck_ok(add(board, board->queue, board->buffer, NULL, NULL));
    check_values(board->queue, board->buffer, 6);
    ck_assert_int_eq(health_of(board, NULL), KEEL_HEALTH_OK);
}

START_TEST(an_error_fails_its_event_and_its_queue_alone)
{
    struct board board = open_board(selectors[_i], "error:launch=2");
    char evidence[KEEL_EVIDENCE_BYTES];
    struct keel_event *good = NULL, *bad = NULL;
    ck_ok(add(&board, board.queue, board.buffer, NULL, &good));
    ck_ok(add(&board, board.queue, board.buffer, NULL, &bad));
    ck_ok(keel_event_wait(good, keel_deadline_after_ns(LIMIT_NS)));
    ck_status(keel_event_wait(bad, keel_deadline_after_ns(LIMIT_NS)), KEEL_DEVICE_LOST);
    ck_assert_ptr_nonnull(strstr(keel_detail(), board.device->info.selector));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "launch add failed: injected, number 2"));
    ck_assert(keel_event_done(bad));
    ck_status(add(&board, board.queue, board.buffer, NULL, NULL), KEEL_DEVICE_LOST);
    ck_status(keel_queue_finish(board.queue, keel_deadline_after_ns(LIMIT_NS)), KEEL_DEVICE_LOST);
    ck_ok(keel_event_wait(good, 0)); /* complete before, and after */
    ck_ok(add(&board, board.second, board.other, good, NULL));
    check_values(board.second, board.other, 1);
    check_values(board.second, board.buffer, 1); /* what failed did not run */
    ck_assert_int_eq(health_of(&board, evidence), KEEL_HEALTH_DEGRADED);
    ck_assert_ptr_nonnull(strstr(evidence, "launch add"));
    keel_event_destroy(good);
    keel_event_destroy(bad);
    close_board(&board);
}
END_TEST

START_TEST(a_failure_travels_and_names_the_first)
{
    struct board board = open_board(selectors[_i], "error:copy=1");
    struct keel_queue *third = NULL;
    struct keel_event *failed = NULL, *none = NULL;
    char first[KEEL_EVIDENCE_BYTES];
    ck_ok(keel_queue_create(board.device, &third));
    ck_ok(keel_queue_copy(board.queue, board.buffer, 0, board.other, 0, BYTES, NULL, &failed));
    ck_status(add(&board, board.second, board.other, failed, &none), KEEL_DEVICE_LOST);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "copy failed: injected, number 1"));
    ck_assert_ptr_null(none);
    ck_status(add(&board, board.second, board.other, NULL, NULL), KEEL_DEVICE_LOST);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "copy failed: injected, number 1"));
    snprintf(first, sizeof first, "%s", board.queue->failure);
    ck_assert_str_eq(board.second->failure, first);
    ck_ok(add(&board, third, board.other, NULL, NULL)); /* waits for nothing that failed */
    check_values(third, board.other, 1);
    keel_event_destroy(failed);
    keel_queue_destroy(third);
    close_board(&board);
}
END_TEST

/* A wait for what does not come, for an event or else a queue, comes back when its time is over and at most a
 * tenth later. On a busy machine any sleep may end late, so the best of three counts. */
static void check_in_time(struct keel_event *event, struct keel_queue *queue)
{
    uint64_t best_ns = UINT64_MAX;
    for (int i = 0; i < 3 && best_ns > GIVEN_NS + GIVEN_NS / 10; i++) {
        uint64_t began_ns = keel_now_ns(), deadline_ns = began_ns + GIVEN_NS;
        ck_status(event != NULL ? keel_event_wait(event, deadline_ns) : keel_queue_finish(queue, deadline_ns),
                  KEEL_TIMEOUT);
        uint64_t took_ns = keel_now_ns() - began_ns;
        ck_assert_uint_ge(took_ns, GIVEN_NS);
        best_ns = took_ns < best_ns ? took_ns : best_ns;
    }
    ck_assert_uint_le(best_ns, GIVEN_NS + GIVEN_NS / 10);
}

START_TEST(a_hang_lets_every_call_back_in_its_time_and_names_the_board)
{
    struct board board = open_board(selectors[_i], "hang:launch=2"),
                 sound = open_board(selectors[1 - _i], NULL);
    struct keel_event *stuck = NULL, *after = NULL, *elsewhere = NULL;
    struct keel_queue *refused = NULL;
    char evidence[KEEL_EVIDENCE_BYTES];
    ck_ok(add(&board, board.queue, board.buffer, NULL, NULL));
    ck_ok(add(&board, board.queue, board.buffer, NULL, &stuck));
    ck_ok(keel_queue_fill(board.queue, board.buffer, 0, BYTES, 9, NULL, &after));
    ck_ok(add(&board, board.second, board.other, after, &elsewhere));
    struct keel_event *events[] = {stuck, after, elsewhere};
    for (int looks = 0; looks < 4; looks++)
        ck_status(keel_event_look(stuck, keel_deadline_after_ns(HUNG_NS / 2)), KEEL_TIMEOUT);
    ck_assert_int_eq(health_of(&board, NULL), KEEL_HEALTH_OK); /* who looks up does not complain */
    for (int i = 0; i < 3; i++) {
        check_in_time(events[i], NULL);
        ck_assert_ptr_nonnull(strstr(keel_detail(), board.device->info.selector));
        ck_assert(!keel_event_done(events[i]));
    }
    check_in_time(NULL, board.queue);
    ck_assert_int_eq(health_of(&board, evidence), KEEL_HEALTH_HUNG);
    ck_assert_ptr_nonnull(strstr(evidence, "launch add"));
    ck_status(keel_queue_create(board.device, &refused), KEEL_DEVICE_LOST);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "hung"));
    check_works(&sound);
    for (int i = 0; i < 3; i++)
        keel_event_destroy(events[i]);
    close_board(&board);
    close_board(&sound);
}
END_TEST

START_TEST(what_is_slow_comes_late_and_right)
{
    struct board board = open_board(selectors[_i], "slow:launch=1,ms=500");
    struct keel_event *event = NULL;
    uint64_t began_ns = keel_now_ns();
    ck_ok(add(&board, board.queue, board.buffer, NULL, &event));
    ck_status(keel_event_wait(event, began_ns + 20 * KEEL_NS_PER_MS), KEEL_TIMEOUT);
    ck_assert_int_eq(health_of(&board, NULL), KEEL_HEALTH_SUSPECT);
    ck_ok(keel_event_wait(event, keel_deadline_after_ns(LIMIT_NS)));
    ck_assert_uint_ge(keel_now_ns() - began_ns, 500 * KEEL_NS_PER_MS);
    ck_assert_int_eq(health_of(&board, NULL), KEEL_HEALTH_OK);
    check_values(board.queue, board.buffer, 1);
    keel_event_destroy(event);
    close_board(&board);
}
END_TEST

/* Bits that differ between the words and `wanted`. */
static int wrong_bits(const uint32_t *words, uint32_t wanted)
{
    int bits = 0;
    for (int i = 0; i < ITEMS; i++)
        bits += __builtin_popcount(words[i] ^ wanted);
    return bits;
}

static int wrong_bits_in(const struct board *board, struct keel_buffer *buffer, uint32_t wanted)
{
    uint32_t out[ITEMS];
    ck_ok(keel_queue_read(board->queue, buffer, 0, out, sizeof out, NULL, NULL));
    ck_ok(keel_queue_finish(board->queue, keel_deadline_after_ns(LIMIT_NS)));
    return wrong_bits(out, wanted);
}

START_TEST(a_flip_is_of_one_bit_where_it_was_put)
{
    struct board board =
        open_board(selectors[_i], "flip:read=2;flip:write=2;flip:copy=1;flip:launch=2;flip:fill=1");
    uint32_t data[ITEMS] = {0};
    for (int round = 1; round <= 3; round++)
        ck_assert_int_eq(wrong_bits_in(&board, board.buffer, 0), round == 2);
    ck_ok(keel_queue_write(board.queue, board.buffer, 0, data, BYTES, NULL, NULL));
    ck_assert_int_eq(wrong_bits_in(&board, board.buffer, 0), 0);
    ck_ok(keel_queue_copy(board.queue, board.buffer, 0, board.other, 0, BYTES, NULL, NULL));
    ck_assert_int_eq(wrong_bits_in(&board, board.other, 0), 1);
    ck_ok(keel_queue_write(board.queue, board.buffer, 0, data, BYTES, NULL, NULL));
    ck_assert_int_eq(wrong_bits_in(&board, board.buffer, 0), 1);
    ck_assert_int_eq(wrong_bits(data, 0), 0); /* what the caller wrote from is as it was */
    ck_ok(keel_queue_fill(board.queue, board.buffer, 0, BYTES, 0, NULL, NULL));
    ck_assert_int_eq(wrong_bits_in(&board, board.buffer, 0), 1);
    ck_ok(keel_queue_fill(board.queue, board.buffer, 0, BYTES, 0, NULL, NULL));
    ck_ok(add(&board, board.queue, board.buffer, NULL, NULL));
    ck_assert_int_eq(wrong_bits_in(&board, board.buffer, 1), 0);
    ck_ok(keel_queue_fill(board.queue, board.buffer, 0, BYTES, 0, NULL, NULL));
    ck_ok(add(&board, board.queue, board.buffer, NULL, NULL));
    ck_assert_int_eq(wrong_bits_in(&board, board.buffer, 1), 1);
    ck_assert_int_eq(health_of(&board, NULL), KEEL_HEALTH_OK); /* silent, as they are */
    close_board(&board);
}
END_TEST

START_TEST(a_lost_device_refuses_all_with_its_evidence)
{
    struct board board = open_board(selectors[_i], "lose:copy=1"),
                 sound = open_board(selectors[1 - _i], NULL);
    struct keel_buffer *buffer = NULL;
    struct keel_program *program = NULL;
    char evidence[KEEL_EVIDENCE_BYTES];
    ck_ok(add(&board, board.queue, board.buffer, NULL, NULL));
    ck_ok(keel_queue_copy(board.queue, board.buffer, 0, board.other, 0, BYTES, NULL, NULL));
    ck_status(keel_queue_fill(board.second, board.other, 0, BYTES, 1, NULL, NULL), KEEL_DEVICE_LOST);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "is lost: copy failed: injected"));
    ck_status(keel_queue_finish(board.second, keel_deadline_after_ns(LIMIT_NS)), KEEL_DEVICE_LOST);
    ck_status(keel_buffer_create(board.device, 8, &buffer), KEEL_DEVICE_LOST);
    ck_status(keel_program_create(board.device, &module, "", &program), KEEL_DEVICE_LOST);
    ck_assert_int_eq(health_of(&board, evidence), KEEL_HEALTH_LOST);
    ck_assert_ptr_nonnull(strstr(evidence, "last: copy, launch add"));
    ck_status(keel_device_report(board.device, KEEL_HEALTH_OK, NULL), KEEL_INVALID);
    check_works(&sound);
    close_board(&board);
    close_board(&sound);
}
END_TEST

START_TEST(a_quarantined_device_refuses_until_it_is_released)
{
    struct board board = open_board(selectors[_i], NULL);
    ck_status(keel_device_report(board.device, KEEL_HEALTH_QUARANTINED, ""), KEEL_INVALID);
    ck_ok(keel_device_report(board.device, KEEL_HEALTH_QUARANTINED, "gemm gave 3f800001"));
    ck_status(add(&board, board.queue, board.buffer, NULL, NULL), KEEL_DEVICE_LOST);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "is quarantined: gemm gave 3f800001"));
    ck_ok(keel_device_report(board.device, KEEL_HEALTH_OK, NULL));
    check_works(&board);
    close_board(&board);
}
END_TEST

START_TEST(objects_fail_on_demand_too)
{
    struct board board = open_board(selectors[_i], "error:buffer=2;error:program=1");
    struct keel_buffer *first = NULL, *second = NULL;
    struct keel_program *program = NULL;
    ck_ok(keel_buffer_create(board.device, 8, &first));
    ck_status(keel_buffer_create(board.device, 8, &second), KEEL_NO_MEMORY);
    ck_status(keel_program_create(board.device, &module, "", &program), KEEL_UNSUPPORTED);
    ck_ok(keel_device_inject(board.device, "error:buffer=1")); /* another plan counts from anew */
    ck_status(keel_buffer_create(board.device, 8, &second), KEEL_NO_MEMORY);
    ck_ok(keel_device_inject(board.device, NULL));
    ck_ok(keel_buffer_create(board.device, 8, &second));
    check_works(&board);
    keel_buffer_destroy(first);
    keel_buffer_destroy(second);
    close_board(&board);
}
END_TEST

START_TEST(the_environment_has_a_plan_for_every_device)
{
    struct keel_device *device = NULL;
    struct keel_buffer *buffer = NULL;
    setenv("KEEL_DEVICE_FAULTS", "error:buffer=1", 1);
    ck_ok(keel_device_open(selectors[_i], NULL, &device));
    ck_status(keel_buffer_create(device, 8, &buffer), KEEL_NO_MEMORY);
    keel_device_close(device);
    setenv("KEEL_DEVICE_FAULTS", "eror:buffer=1", 1);
    device = NULL;
    ck_status(keel_device_open(selectors[_i], NULL, &device), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "\"eror\""));
    ck_assert_ptr_null(device);
}
END_TEST

static uint64_t processor_ns(void)
{
    struct timespec used;
    ck_assert_int_eq(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used), 0);
    return (uint64_t)used.tv_sec * KEEL_NS_PER_S + (uint64_t)used.tv_nsec;
}

/* How many rounds take that long on one core, measured on the device itself: by its processor time, for other
 * processes that want the core meanwhile may be gone later. */
static uint64_t rounds_for(const struct board *board, uint64_t ns)
{
    const uint64_t some = 20000000;
    struct keel_arg args[] = {{.kind = KEEL_ARG_BUFFER, .as.buffer = board->other},
                              {KEEL_ARG_U64, {.u64 = some}}};
    struct keel_range range = {.global = {1, 1, 1}, .local = {1, 1, 1}};
    uint64_t took_ns = 0;
    for (int i = 0; i < 2; i++) { /* the first one is compiled */
        uint64_t before_ns = processor_ns();
        ck_ok(keel_queue_launch(board->queue, board->spin, args, 2, &range, NULL, NULL));
        ck_ok(keel_queue_finish(board->queue, keel_deadline_after_ns(LIMIT_NS)));
        took_ns = processor_ns() - before_ns;
    }
    return (uint64_t)((double)some * (double)ns / (double)took_ns);
}

static struct keel_event *run_on(const struct board *board, uint64_t rounds)
{
    struct keel_arg args[] = {{.kind = KEEL_ARG_BUFFER, .as.buffer = board->other},
                              {KEEL_ARG_U64, {.u64 = rounds}}};
    struct keel_range range = {.global = {1, 1, 1}, .local = {1, 1, 1}};
    struct keel_event *event = NULL;
    ck_ok(keel_queue_launch(board->queue, board->spin, args, 2, &range, NULL, &event));
    return event;
}

START_TEST(a_kernel_that_runs_on_makes_hung_and_its_end_degraded)
{
    struct board board = open_board("pocl:0", NULL), sound = open_board("host", NULL);
    struct keel_event *event = run_on(&board, rounds_for(&board, 4 * KEEL_NS_PER_S));
    char evidence[KEEL_EVIDENCE_BYTES];
    check_in_time(event, NULL);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "pocl:0 (now hung)"));
    check_in_time(NULL, board.queue);
    ck_assert_int_eq(health_of(&board, evidence), KEEL_HEALTH_HUNG);
    ck_assert_ptr_nonnull(strstr(evidence, "launch spin"));
    check_works(&sound);
    ck_ok(add(&board, board.second, board.buffer, NULL, NULL)); /* its other queue goes on */
    check_values(board.second, board.buffer, 1);
    ck_assert_int_eq(health_of(&board, NULL), KEEL_HEALTH_HUNG); /* which proves nothing for this one */
    keel_event_destroy(event);
    uint64_t limit_ns = keel_deadline_after_ns(LIMIT_NS); /* nobody waits for it, and still it is noticed */
    while (health_of(&board, NULL) == KEEL_HEALTH_HUNG && keel_now_ns() < limit_ns)
        keel_sleep_until_ns(keel_deadline_after_ns(10 * KEEL_NS_PER_MS));
    ck_assert_int_eq(health_of(&board, evidence), KEEL_HEALTH_DEGRADED);
    ck_assert_ptr_nonnull(strstr(evidence, "came back"));
    ck_ok(keel_device_report(board.device, KEEL_HEALTH_OK, NULL));
    check_works(&board);
    close_board(&board);
    close_board(&sound);
}
END_TEST

START_TEST(what_hangs_is_left_behind_and_not_waited_for)
{
    struct board board = open_board("pocl:0", NULL);
    struct keel_event *event = run_on(&board, rounds_for(&board, 6 * KEEL_NS_PER_S));
    char why[KEEL_DETAIL_BYTES];
    check_in_time(event, NULL);
    snprintf(why, sizeof why, "%s", keel_detail());
    keel_event_destroy(event);
    uint64_t began_ns = keel_now_ns();
    close_board(&board);
    ck_assert_str_eq(keel_detail(), why); /* what is told of it is the first wait, not the last */
    ck_assert_uint_le(keel_now_ns() - began_ns, 2 * KEEL_NS_PER_S); /* the kernel runs on for longer */
}
END_TEST

/* A command that a real driver fails: it waits for a user event that ends with an error. */
START_TEST(what_a_driver_fails_fails_its_queue_and_travels)
{
    struct board board = open_board("pocl:0", NULL);
    struct keel_queue *third = NULL;
    ck_ok(keel_queue_create(board.device, &third));
    cl_int error;
    cl_event gate = clCreateUserEvent(((struct opencl_device *)board.device)->context, &error);
    ck_assert_int_eq(error, CL_SUCCESS);
    struct opencl_event *shell = NULL;
    ck_ok(keel_opencl_event_take((struct opencl_queue *)third, &shell));
    struct keel_event *closed = keel_opencl_event_fill(shell, gate), *failed = NULL, *next = NULL;
    ck_ok(add(&board, board.queue, board.buffer, closed, &failed));
    ck_ok(add(&board, board.second, board.other, failed, &next));
    ck_assert_int_eq(clSetUserEventStatus(gate, -9999), CL_SUCCESS);
    ck_status(keel_event_wait(failed, keel_deadline_after_ns(LIMIT_NS)), KEEL_DEVICE_LOST);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "what it waits for on queue 3 failed"));
    ck_status(keel_event_wait(next, keel_deadline_after_ns(LIMIT_NS)), KEEL_DEVICE_LOST);
    ck_assert_str_eq(board.second->failure, board.queue->failure);
    ck_status(add(&board, board.queue, board.buffer, NULL, NULL), KEEL_DEVICE_LOST);
    ck_status(add(&board, board.second, board.other, NULL, NULL), KEEL_DEVICE_LOST);
    ck_ok(add(&board, third, board.other, NULL, NULL));
    check_values(third, board.other, 1); /* neither of the two ran */
    ck_assert_int_eq(health_of(&board, NULL), KEEL_HEALTH_DEGRADED);
    keel_event_destroy(failed);
    keel_event_destroy(next);
    keel_event_destroy(closed);
    keel_queue_destroy(third);
    close_board(&board);
}
END_TEST

/* A driver that does it itself: PoCL behind the layer of the emulated boards. Each test is a process. */
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
    return open_board("pocl:0", NULL);
}

START_TEST(a_driver_that_hangs_is_no_prison)
{
    struct board board = open_sick("hang:launch=2"), sound = open_board("host", NULL);
    struct keel_event *good = NULL, *stuck = NULL, *elsewhere = NULL;
    ck_ok(add(&board, board.queue, board.buffer, NULL, &good));
    ck_ok(add(&board, board.queue, board.buffer, NULL, &stuck));
    ck_ok(add(&board, board.second, board.other, stuck, &elsewhere));
    ck_ok(keel_event_wait(good, keel_deadline_after_ns(LIMIT_NS)));
    check_in_time(stuck, NULL);
    check_in_time(elsewhere, NULL);
    check_in_time(NULL, board.queue);
    ck_assert_int_eq(health_of(&board, NULL), KEEL_HEALTH_HUNG);
    check_works(&sound);
    keel_event_destroy(good);
    keel_event_destroy(stuck);
    keel_event_destroy(elsewhere);
    uint64_t began_ns = keel_now_ns();
    close_board(&board);
    close_board(&sound);
    ck_assert_uint_le(keel_now_ns() - began_ns, 2 * KEEL_NS_PER_S);
}
END_TEST

START_TEST(a_driver_that_fails_a_command_is_named_first)
{
    struct board board = open_sick("fail:launch=2");
    struct keel_event *bad = NULL, *next = NULL;
    ck_ok(add(&board, board.queue, board.buffer, NULL, NULL));
    ck_ok(add(&board, board.queue, board.buffer, NULL, &bad));
    ck_status(keel_event_wait(bad, keel_deadline_after_ns(LIMIT_NS)), KEEL_DEVICE_LOST);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "queue 1 failed: launch add failed (error "));
    ck_status(add(&board, board.second, board.other, bad, &next), KEEL_DEVICE_LOST);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "queue 2 failed: launch add failed (error "));
    ck_assert_str_eq(board.second->failure, board.queue->failure);
    ck_assert_int_eq(health_of(&board, NULL), KEEL_HEALTH_DEGRADED);
    keel_event_destroy(bad);
    close_board(&board);
}
END_TEST

START_TEST(a_driver_whose_device_is_gone_loses_it)
{
    struct board board = open_sick("lose:launch=1");
    ck_status(add(&board, board.queue, board.buffer, NULL, NULL), KEEL_DEVICE_LOST);
    ck_assert_int_eq(health_of(&board, NULL), KEEL_HEALTH_LOST);
    ck_status(add(&board, board.second, board.buffer, NULL, NULL), KEEL_DEVICE_LOST);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "is lost: add failed (error -2)"));
    close_board(&board);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, waits_in_vain_make_suspect_and_in_time_hung);
    tcase_add_test(tc, only_what_was_waited_for_or_later_is_progress);
    tcase_add_test(tc, of_two_queues_that_hang_both_must_come_back);
    tcase_add_test(tc, what_comes_back_puts_off_the_end_of_patience);
    tcase_add_test(tc, a_suspect_goes_back_to_what_it_was);
    tcase_add_test(tc, nobody_says_more_than_the_table_allows);
    tcase_add_test(tc, the_lost_and_the_quarantined_stay_so);
    tcase_add_test(tc, a_plan_says_what_it_says);
    tcase_add_test(tc, a_wrong_plan_names_its_wrong_word);
    tcase_add_test(tc, faults_count_what_they_are_put_on);
    tcase_add_loop_test(tc, an_error_fails_its_event_and_its_queue_alone, 0, SELECTORS);
    tcase_add_loop_test(tc, a_failure_travels_and_names_the_first, 0, SELECTORS);
    tcase_add_loop_test(tc, a_hang_lets_every_call_back_in_its_time_and_names_the_board, 0, SELECTORS);
    tcase_add_loop_test(tc, what_is_slow_comes_late_and_right, 0, SELECTORS);
    tcase_add_loop_test(tc, a_flip_is_of_one_bit_where_it_was_put, 0, SELECTORS);
    tcase_add_loop_test(tc, a_lost_device_refuses_all_with_its_evidence, 0, SELECTORS);
    tcase_add_loop_test(tc, a_quarantined_device_refuses_until_it_is_released, 0, SELECTORS);
    tcase_add_loop_test(tc, objects_fail_on_demand_too, 0, SELECTORS);
    tcase_add_loop_test(tc, the_environment_has_a_plan_for_every_device, 0, SELECTORS);
    tcase_add_test(tc, a_kernel_that_runs_on_makes_hung_and_its_end_degraded);
    tcase_add_test(tc, what_hangs_is_left_behind_and_not_waited_for);
    tcase_add_test(tc, what_a_driver_fails_fails_its_queue_and_travels);
    tcase_add_test(tc, a_driver_that_hangs_is_no_prison);
    tcase_add_test(tc, a_driver_that_fails_a_command_is_named_first);
    tcase_add_test(tc, a_driver_whose_device_is_gone_loses_it);
}

KEEL_TEST_MAIN("device health", cases, 90)
