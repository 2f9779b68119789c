/* device_test.c - collectives on device memory among real processes: on the plain C device, on PoCL's
 * threads, and in a process of its own on PoCL's blocking device; in place and staged. The bits are those of
 * the same collective on host memory.
 *
 * Faults of a device are made where it is reached: this program has clEnqueueReadBuffer and its like in front
 * of the driver's, and lets a chosen one be refused, fail afterwards, or never end. */
#define CL_TARGET_OPENCL_VERSION 120
#include "device_board.h"
#include "region.h"
#include "sums.h"

#include <CL/cl.h>
#include <dlfcn.h>
#include <keel/health.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <keel/thread.h>

enum { GUARD_BYTES = 64 };

/* ---- faults -------------------------------------------------------------------------------------------- */

enum command { READ, WRITE, MAP };
enum trouble { NO_TROUBLE, REFUSED, FAILS_LATER, HANGS };

static struct {
    enum trouble trouble;
    enum command command;
    int after; /* commands of that kind that go well before */
    cl_event hung;
} fault;

static bool strikes(enum command command)
{
    return fault.trouble != NO_TROUBLE && fault.command == command && fault.after-- == 0;
}

static void *real(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

/* In place of what the command would have had. */
static cl_int strike(cl_mem memory, cl_event *event)
{
    cl_context context;
    cl_int error = clGetMemObjectInfo(memory, CL_MEM_CONTEXT, sizeof(cl_context), &context, NULL);
    if (fault.trouble == REFUSED || error != CL_SUCCESS)
        return CL_OUT_OF_RESOURCES;
    *event = clCreateUserEvent(context, &error);
    if (fault.trouble == FAILS_LATER)
        return clSetUserEventStatus(*event, CL_OUT_OF_RESOURCES);
    fault.hung = *event;
    return clRetainEvent(fault.hung);
}

cl_int clEnqueueReadBuffer(cl_command_queue command_queue, cl_mem buffer, cl_bool blocking_read,
                           size_t offset, size_t size, void *ptr, cl_uint num_events_in_wait_list,
                           const cl_event *event_wait_list, cl_event *event)
{
    cl_int (*call)(cl_command_queue, cl_mem, cl_bool, size_t, size_t, void *, cl_uint, const cl_event *,
                   cl_event *);
    *(void **)&call = real("clEnqueueReadBuffer");
    if (strikes(READ))
        return strike(buffer, event);
    return call(command_queue, buffer, blocking_read, offset, size, ptr, num_events_in_wait_list,
                event_wait_list, event);
}

cl_int clEnqueueWriteBuffer(cl_command_queue command_queue, cl_mem buffer, cl_bool blocking_write,
                            size_t offset, size_t size, const void *ptr, cl_uint num_events_in_wait_list,
                            const cl_event *event_wait_list, cl_event *event)
{
    cl_int (*call)(cl_command_queue, cl_mem, cl_bool, size_t, size_t, const void *, cl_uint, const cl_event *,
                   cl_event *);
    *(void **)&call = real("clEnqueueWriteBuffer");
    if (strikes(WRITE))
        return strike(buffer, event);
    return call(command_queue, buffer, blocking_write, offset, size, ptr, num_events_in_wait_list,
                event_wait_list, event);
}

void *clEnqueueMapBuffer(cl_command_queue command_queue, cl_mem buffer, cl_bool blocking_map,
                         cl_map_flags map_flags, size_t offset, size_t size, cl_uint num_events_in_wait_list,
                         const cl_event *event_wait_list, cl_event *event, cl_int *errcode_ret)
{
    void *(*call)(cl_command_queue, cl_mem, cl_bool, cl_map_flags, size_t, size_t, cl_uint, const cl_event *,
                  cl_event *, cl_int *);
    *(void **)&call = real("clEnqueueMapBuffer");
    bool struck = strikes(MAP);
    void *pointer = NULL;
    if (!struck || fault.trouble == HANGS) /* what never ended may be there all the same */
        pointer = call(command_queue, buffer, blocking_map, map_flags, offset, size, num_events_in_wait_list,
                       event_wait_list, struck ? NULL : event, errcode_ret);
    if (struck)
        *errcode_ret = strike(buffer, event);
    return pointer;
}

/* ---- one collective ------------------------------------------------------------------------------------ */

/* One collective, on host memory and on the device. */
struct trial {
    struct keel_device_collective staged;
    struct keel_device_place places[PARTS_MAX];
    const void *parts[PARTS_MAX];
    struct keel_buffer *in, *out; /* all parts; the result, between guards */
    uint8_t *given, *wanted, *got;
    uint64_t part_bytes, result_bytes;
};

static bool sums(enum keel_collective_kind kind)
{
    return kind == KEEL_ALL_REDUCE || kind == KEEL_REDUCE || kind == KEEL_REDUCE_SCATTER;
}

/* Floats that round when they are added; bytes of them for the rest. */
static void make_data(struct rank *me, uint32_t part, uint64_t bytes, uint8_t *out)
{
    for (uint64_t k = 0; k * sizeof(float) < bytes; k++) {
        float value = shard_value(me->rank * PARTS_MAX + part, k);
        uint64_t left = bytes - k * sizeof value;
        memcpy(out + k * sizeof value, &value, left < sizeof value ? left : sizeof value);
    }
}

static void trial_make(struct rank *me, struct board *board, const struct keel_collective *what,
                       uint32_t part_count, uint64_t offset_bytes, struct trial *trial)
{
    enum keel_collective_kind kind = what->kind;
    uint64_t bytes = what->count * keel_element_bytes(what->element);
    bool in = kind == KEEL_REDUCE_SCATTER || kind == KEEL_ALL_TO_ALL || kind == KEEL_SCATTER;
    bool out = kind == KEEL_ALL_GATHER || kind == KEEL_ALL_TO_ALL || kind == KEEL_GATHER;
    memset(trial, 0, sizeof *trial);
    trial->part_bytes = bytes * (in ? me->rank_count : 1);
    trial->result_bytes = bytes * (out ? me->rank_count : 1);
    if (what->counts_out != NULL) {
        uint64_t all = 0, mine = what->counts_out[me->rank] * keel_element_bytes(what->element);
        for (uint32_t r = 0; r < me->rank_count; r++)
            all += what->counts_out[r] * keel_element_bytes(what->element);
        trial->part_bytes = kind == KEEL_REDUCE_SCATTER ? all : mine;
        trial->result_bytes = kind == KEEL_REDUCE_SCATTER ? mine : all;
    }
    uint64_t stride = trial->part_bytes + 24,
             out_bytes = trial->result_bytes + 2 * GUARD_BYTES + offset_bytes;
    trial->given = calloc(part_count + 1, stride);
    trial->wanted = calloc(1, out_bytes);
    trial->got = calloc(1, out_bytes);
    trial->in = board_buffer(me, board, offset_bytes + (part_count + 1) * stride);
    trial->out = board_buffer(me, board, out_bytes);
    memset(trial->wanted, 0xee, out_bytes);
    board_write(me, board, trial->out, 0, trial->wanted, out_bytes);
    for (uint32_t k = 0; k < part_count; k++) {
        trial->parts[k] = trial->given + k * stride;
        make_data(me, k, trial->part_bytes, trial->given + k * stride);
        trial->places[k] = (struct keel_device_place){trial->in, offset_bytes + k * stride};
        board_write(me, board, trial->in, trial->places[k].offset_bytes, trial->parts[k], trial->part_bytes);
    }
    trial->staged.what = *what;
    trial->staged.what.part_count = part_count;
    trial->staged.parts = trial->places;
    trial->staged.result = (struct keel_device_place){trial->out, GUARD_BYTES + offset_bytes};
}

/* What host memory gets: into `wanted`, whose rest stays as it was on the device. */
static void trial_on_host(struct rank *me, struct keel_group *group, struct trial *trial, uint64_t sequence)
{
    struct keel_collective what = trial->staged.what;
    what.sequence = sequence;
    what.parts = trial->parts;
    what.result = trial->wanted + trial->staged.result.offset_bytes;
    if (what.kind == KEEL_BROADCAST && what.root == me->rank)
        what.result = NULL;
    rank_ok(me, keel_group_run(group, &what, in_seconds(20)));
}

static void trial_compare(struct rank *me, struct board *board, struct trial *trial)
{
    uint64_t bytes = keel_buffer_bytes(trial->out);
    rank_ok(me, keel_queue_read(board->queue, trial->out, 0, trial->got, bytes, NULL, NULL));
    rank_ok(me, keel_queue_finish(board->queue, in_seconds(20)));
    rank_check(me, memcmp(trial->got, trial->wanted, bytes) == 0);
}

static void trial_free(struct trial *trial)
{
    keel_buffer_destroy(trial->in);
    keel_buffer_destroy(trial->out);
    free(trial->given);
    free(trial->wanted);
    free(trial->got);
}

/* A sum of floats that every rank gives one part to. */
static void trial_sum(struct rank *me, struct board *board, uint64_t floats, uint64_t sequence,
                      struct trial *trial)
{
    struct keel_collective what = {
        .kind = KEEL_ALL_REDUCE, .element = KEEL_ELEMENT_F32, .sequence = sequence, .count = floats};
    trial_make(me, board, &what, 1, 4, trial);
}

static const uint16_t one_each[RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7, 8};

static struct keel_group *one_each_group(struct rank *me, uint64_t epoch)
{
    return rank_group(me, epoch, me->rank_count, one_each);
}

/* ---- the same bits ------------------------------------------------------------------------------------- */

static const struct {
    enum keel_collective_kind kind;
    enum keel_element element;
    enum keel_reduction reduction;
} kinds[] = {
    {KEEL_ALL_REDUCE, KEEL_ELEMENT_F32, KEEL_SUM},     {KEEL_ALL_REDUCE, KEEL_ELEMENT_BF16, KEEL_MAX},
    {KEEL_ALL_REDUCE, KEEL_ELEMENT_F32, KEEL_AVERAGE}, {KEEL_REDUCE_SCATTER, KEEL_ELEMENT_F32, KEEL_SUM},
    {KEEL_REDUCE, KEEL_ELEMENT_F32, KEEL_SUM},         {KEEL_ALL_GATHER, KEEL_ELEMENT_U8, KEEL_SUM},
    {KEEL_ALL_TO_ALL, KEEL_ELEMENT_I64, KEEL_SUM},     {KEEL_BROADCAST, KEEL_ELEMENT_U8, KEEL_SUM},
    {KEEL_GATHER, KEEL_ELEMENT_I32, KEEL_SUM},         {KEEL_SCATTER, KEEL_ELEMENT_F64, KEEL_SUM}};
/* With slices of their own sizes, one of them empty. */
static const enum keel_collective_kind uneven_kinds[] = {KEEL_REDUCE_SCATTER, KEEL_ALL_GATHER_V};

/* Rank 1 gives three parts, rank 2 two. */
static const uint16_t scattered[] = {0, 1, 2, 1, 1, 1, 2};
enum { SCATTERED = 7 };

static uint32_t parts_of(struct rank *me, const struct keel_collective *what)
{
    struct keel_tree_node nodes[PARTS_MAX];
    uint32_t count = 0;
    if (what->kind == KEEL_BROADCAST || what->kind == KEEL_SCATTER)
        return what->root == me->rank;
    if (!sums(what->kind))
        return 1;
    rank_ok(me, keel_tree_nodes(SCATTERED, scattered, me->rank, nodes, PARTS_MAX, &count));
    return count;
}

static uint64_t run_kind(struct rank *me, struct board *board, struct keel_group *group,
                         const struct keel_collective *what, uint64_t offset_bytes)
{
    struct trial trial;
    trial_make(me, board, what, parts_of(me, what), offset_bytes, &trial);
    trial_on_host(me, group, &trial, what->sequence + 1);
    rank_ok(me, keel_device_collective_run(board->collectives, group, &trial.staged, in_seconds(20)));
    trial_compare(me, board, &trial);
    trial_free(&trial);
    return what->sequence + 2;
}

static int every_kind_body(struct rank *me)
{
    static const uint64_t counts[] = {0, 1, 7, 1024, 1025, 9001};
    struct board board;
    board_open(me, &board);
    struct keel_group *group = rank_group(me, 1, SCATTERED, scattered);
    uint64_t sequence = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            struct keel_collective what = {.kind = kinds[k].kind,
                                           .element = kinds[k].element,
                                           .reduction = kinds[k].reduction,
                                           .root = (uint32_t)(c % me->rank_count),
                                           .sequence = sequence,
                                           .count = counts[c]};
            sequence = run_kind(me, &board, group, &what, c % 3 * keel_element_bytes(what.element));
        }
    for (size_t k = 0; k < 2; k++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            const uint64_t sizes[] = {counts[c], c % 2 == 0 ? 0 : 4 * counts[c] + 3, counts[5 - c]};
            struct keel_collective what = {.kind = uneven_kinds[k],
                                           .element = KEEL_ELEMENT_F32,
                                           .sequence = sequence,
                                           .counts_out = sizes};
            sequence = run_kind(me, &board, group, &what, c % 3 * sizeof(float));
        }
    struct keel_collective pair = {.kind = me->rank == 0 ? KEEL_SEND : KEEL_RECEIVE,
                                   .element = KEEL_ELEMENT_U8,
                                   .root = 1 - me->rank,
                                   .sequence = sequence,
                                   .count = 3 * 4096 + 1};
    if (me->rank < 2) {
        struct trial trial;
        trial_make(me, &board, &pair, me->rank == 0, 3, &trial);
        trial_on_host(me, group, &trial, sequence + 100);
        rank_ok(me, keel_device_collective_run(board.collectives, group, &trial.staged, in_seconds(20)));
        trial_compare(me, &board, &trial);
        trial_free(&trial);
    }
    keel_group_close(group);
    board_close(me, &board);
    return 0;
}

static void run_ranks(uint32_t count, int (*body)(struct rank *))
{
    struct ranks ranks;
    ranks_start(&ranks, count, 0, NULL, body);
    ranks_end(&ranks, -1);
}

START_TEST(every_kind_has_the_bits_of_host_memory_and_touches_nothing_else)
{
    run_ranks(3, every_kind_body);
}
END_TEST

static int alone_body(struct rank *me)
{
    struct board board;
    struct trial trial;
    board_open(me, &board);
    struct keel_group *group = one_each_group(me, 1);
    trial_sum(me, &board, 5000, 1, &trial);
    trial_on_host(me, group, &trial, 0);
    rank_ok(me, keel_device_collective_run(board.collectives, group, &trial.staged, in_seconds(20)));
    trial_compare(me, &board, &trial);
    trial_free(&trial);
    keel_group_close(group);
    board_close(me, &board);
    return 0;
}

START_TEST(a_rank_alone_gets_what_it_gave)
{
    run_ranks(1, alone_body);
}
END_TEST

/* ---- the stream ---------------------------------------------------------------------------------------- */

enum { CALLS = 8, FLOATS = 40 * 1024 + 17, FIT = 3 };
enum {
    EARLY_BYTES = 512
}; /* first messages of the other side, some 140 bytes each; 72 calls that keep a word show */

/* Rank 0 is first, so that nothing of its can end before it has all memory full. */
static void begin_in_turn(struct rank *me, struct board *board, struct keel_group *group,
                          struct trial *trials, struct keel_device_operation **calls)
{
    uint64_t sequence = 1;
    if (me->rank > 0)
        rank_hear(me);
    for (uint32_t k = 0; k < CALLS; k++) {
        trials[k].staged.what.sequence = sequence++;
        rank_ok(me, keel_device_collective_begin(board->collectives, group, &trials[k].staged, &calls[k]));
    }
    if (me->rank == 0)
        rank_say(me, 'b');
}

static int stream_body(struct rank *me)
{
    struct board board;
    struct trial trials[CALLS];
    struct keel_device_operation *calls[CALLS];
    struct keel_device_collectives_facts facts;
    staging_bytes = FIT * 2 * (FLOATS + CALLS) * sizeof(float) + 1000;
    board_open(me, &board);
    struct keel_group *group = one_each_group(me, 1);
    for (uint32_t k = 0; k < CALLS; k++) {
        trial_sum(me, &board, FLOATS + k, 0, &trials[k]);
        trial_on_host(me, group, &trials[k], 100000 + k);
    }
    begin_in_turn(me, &board, group, trials, calls);
    for (uint32_t k = 0; k < CALLS; k++) /* any order will do */
        rank_ok(me, keel_device_operation_wait(calls[(k + 2) % CALLS], in_seconds(20)));
    for (uint32_t k = 0; k < CALLS; k++) {
        trial_compare(me, &board, &trials[k]);
        trial_free(&trials[k]);
    }
    keel_device_collectives_facts(board.collectives, &facts);
    uint64_t bytes = (CALLS * FLOATS + CALLS * (CALLS - 1) / 2) * sizeof(float);
    rank_check(me, facts.operations == CALLS);
    rank_check(me, facts.device_to_host_bytes == (staged ? bytes : 0));
    rank_check(me, facts.host_to_device_bytes == (staged ? bytes : 0));
    rank_check(me, facts.mapped_bytes == (staged ? 0 : 2 * bytes));
    rank_check(me, me->rank != 0 || (facts.under_way_high == CALLS && facts.overlaps > 0));
    keel_group_close(group);
    board_close(me, &board);
    return 0;
}

START_TEST(copies_of_one_operation_overlap_with_sums_of_others)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, 0, NULL, stream_body);
    ranks_listen(&ranks, 0);
    ranks_tell(&ranks, 1, 'g');
    ranks_tell(&ranks, 2, 'g');
    ranks_end(&ranks, -1);
}
END_TEST

/* The device's own work comes first, the call goes on while the host does something else. */
static int after_body(struct rank *me)
{
    struct board board;
    struct trial trial;
    struct keel_event *filled = NULL;
    struct keel_device_operation *call = NULL;
    board_open(me, &board);
    struct keel_group *group = one_each_group(me, 1);
    trial_sum(me, &board, FLOATS, 1, &trial);
    uint64_t begin = trial.places[0].offset_bytes, bytes = trial.part_bytes;
    for (uint32_t round = 0; round < 20; round++) {
        float value = (float)round, sum[2];
        uint32_t pattern;
        memcpy(&pattern, &value, sizeof pattern);
        rank_ok(me, keel_queue_fill(board.queue, trial.in, begin, bytes, pattern, NULL, NULL));
        rank_ok(me, keel_queue_mark(board.queue, &filled));
        trial.staged.what.sequence = 1 + round * 1000;
        trial.staged.after = (struct keel_wait_list){&filled, 1};
        rank_ok(me, keel_device_collective_begin(board.collectives, group, &trial.staged, &call));
        for (uint32_t k = 0; k < 50; k++)
            keel_device_collectives_advance(board.collectives);
        rank_ok(me, keel_device_operation_wait(call, in_seconds(20)));
        keel_event_destroy(filled);
        uint64_t last = trial.staged.result.offset_bytes + bytes - sizeof value;
        rank_ok(me, keel_queue_read(board.queue, trial.out, trial.staged.result.offset_bytes, &sum[0],
                                    sizeof value, NULL, NULL));
        rank_ok(me, keel_queue_read(board.queue, trial.out, last, &sum[1], sizeof value, NULL, NULL));
        rank_ok(me, keel_queue_finish(board.queue, in_seconds(20)));
        rank_check(me, sum[0] == value * 2 && sum[1] == value * 2);
    }
    trial_free(&trial);
    keel_group_close(group);
    board_close(me, &board);
    return 0;
}

START_TEST(a_call_waits_for_the_devices_events)
{
    run_ranks(2, after_body);
}
END_TEST

/* Who is alone hears nobody who is early: what others say before it is asked for takes memory for a while.
 * But nothing holds its operations up, so the first calls may have had but one under way at a time, and a
 * later one has as many as fit: so often it may take memory. */
static int memory_body(struct rank *me)
{
    struct board board;
    struct trial trials[CALLS];
    struct keel_device_operation *calls[CALLS];
    board_open(me, &board);
    struct keel_group *group = one_each_group(me, 1);
    for (uint32_t k = 0; k < CALLS; k++)
        trial_sum(me, &board, FLOATS, 0, &trials[k]);
    begin_in_turn(me, &board, group, trials, calls); /* rank 0 had as much under way as there can be */
    for (uint32_t k = 0; k < CALLS; k++)
        rank_ok(me, keel_device_operation_wait(calls[k], in_seconds(20)));
    struct keel_memory_stats before = keel_memory_stats(), now = before;
    uint32_t grew = 0;
    for (uint32_t round = 1; round < 10; round++) {
        uint64_t allocations = now.allocations;
        for (uint32_t k = 0; k < CALLS; k++) {
            trials[k].staged.what.sequence += 10000;
            rank_ok(me,
                    keel_device_collective_run(board.collectives, group, &trials[k].staged, in_seconds(20)));
        }
        now = keel_memory_stats();
        grew += now.allocations > allocations;
    }
    rank_check(me, me->rank != 0 || now.live_bytes <= before.live_bytes + EARLY_BYTES);
    rank_check(me, me->rank_count > 1 || grew < 4);
    for (uint32_t k = 0; k < CALLS; k++)
        trial_free(&trials[k]);
    keel_group_close(group);
    board_close(me, &board);
    return 0;
}

START_TEST(calls_in_a_row_take_no_memory)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 0, NULL, memory_body);
    ranks_listen(&ranks, 0);
    ranks_tell(&ranks, 1, 'g');
    ranks_end(&ranks, -1);
    ranks_start(&ranks, 1, 0, NULL, memory_body);
    ranks_listen(&ranks, 0);
    ranks_end(&ranks, -1);
}
END_TEST

/* ---- memory that host and device share ----------------------------------------------------------------- */

static int wrapped_body(struct rank *me)
{
    struct board board;
    uint8_t *memory = NULL;
    struct keel_buffer *buffer = NULL;
    const void *parts[1];
    const uint64_t bytes = 1 << 20;
    board_open(me, &board);
    struct keel_group *group = one_each_group(me, 1);
    rank_ok(me, keel_transport_alloc(2 * bytes, &memory));
    make_data(me, 0, bytes, memory);
    rank_ok(me, keel_buffer_wrap(board.device, memory, 2 * bytes, &buffer));
    struct keel_device_place place = {buffer, 0};
    struct keel_device_collective sum = {
        .what = {.kind = KEEL_ALL_REDUCE, .count = bytes / sizeof(float), .part_count = 1},
        .parts = &place,
        .result = {buffer, bytes}};
    rank_ok(me, keel_device_collective_run(board.collectives, group, &sum, in_seconds(20)));
    uint8_t *wanted = malloc(bytes), *got = malloc(bytes);
    parts[0] = memory;
    sum.what.sequence = 100000;
    sum.what.parts = parts;
    sum.what.result = wanted;
    rank_ok(me, keel_group_run(group, &sum.what, in_seconds(20)));
    rank_ok(me, keel_queue_read(board.queue, buffer, bytes, got, bytes, NULL, NULL));
    rank_ok(me, keel_queue_finish(board.queue, in_seconds(20)));
    rank_check(me, memcmp(wanted, got, bytes) == 0);
    free(wanted);
    free(got);
    keel_group_close(group);
    keel_buffer_destroy(buffer);
    board_close(me, &board);
    keel_transport_free(memory);
    return 0;
}

START_TEST(buffers_in_transport_memory_work_alike)
{
    run_ranks(3, wrapped_body);
}
END_TEST

/* ---- what is refused ----------------------------------------------------------------------------------- */

/* It is memory that parts and result may not share, whatever buffers name it: a slice, or a second wrap. */
static void refuse_shared_memory(struct rank *me, struct board *board, struct keel_group *group,
                                 const struct trial *trial)
{
    const uint64_t bytes = 16 * KEEL_PAGE_BYTES;
    struct keel_device_collective bad = trial->staged;
    struct keel_device_operation *call = NULL;
    struct keel_buffer *buffers[2];
    uint8_t *memory;
    rank_ok(me, keel_buffer_slice(trial->in, 0, keel_buffer_bytes(trial->in), &buffers[0]));
    bad.result.buffer = buffers[0];
    rank_check(me, keel_device_collective_begin(board->collectives, group, &bad, &call) == KEEL_INVALID);
    keel_buffer_destroy(buffers[0]);
    if (!keel_device_info(board->device)->unified_memory)
        return;
    rank_ok(me, keel_transport_alloc(bytes, &memory));
    rank_ok(me, keel_buffer_wrap(board->device, memory, bytes, &buffers[0]));
    rank_ok(me,
            keel_buffer_wrap(board->device, memory + KEEL_PAGE_BYTES, bytes - KEEL_PAGE_BYTES, &buffers[1]));
    const struct keel_device_place part = {buffers[0], KEEL_PAGE_BYTES};
    bad.parts = &part;
    bad.result = (struct keel_device_place){buffers[1], 64};
    rank_check(me, keel_device_collective_begin(board->collectives, group, &bad, &call) == KEEL_INVALID);
    keel_buffer_destroy(buffers[1]);
    keel_buffer_destroy(buffers[0]);
    keel_transport_free(memory);
}

static int refused_body(struct rank *me)
{
    struct board board;
    struct trial trial;
    struct keel_device_operation *call = NULL;
    struct keel_device_collectives *other = NULL;
    board_open(me, &board);
    struct keel_group *group = one_each_group(me, 1);
    trial_sum(me, &board, 5000, 1, &trial);
    struct keel_device_collective bad = trial.staged;
    bad.what.kind = KEEL_BARRIER;
    rank_check(me, keel_device_collective_begin(board.collectives, group, &bad, &call) == KEEL_UNSUPPORTED);
    const uint64_t table[2] = {1, 1};
    bad.what.kind = KEEL_ALL_TO_ALL_V;
    bad.what.counts_in = bad.what.counts_out = table;
    rank_check(me, keel_device_collective_begin(board.collectives, group, &bad, &call) == KEEL_UNSUPPORTED);
    bad = trial.staged;
    bad.what.part_count = 2;
    rank_check(me, keel_device_collective_begin(board.collectives, group, &bad, &call) == KEEL_INVALID);
    bad = trial.staged;
    bad.what.count = 6000;
    rank_check(me, keel_device_collective_begin(board.collectives, group, &bad, &call) == KEEL_INVALID);
    bad = trial.staged;
    bad.result = trial.places[0];
    rank_check(me, keel_device_collective_begin(board.collectives, group, &bad, &call) == KEEL_INVALID);
    refuse_shared_memory(me, &board, group, &trial);
    bad = trial.staged;
    bad.result.buffer = NULL;
    rank_check(me, keel_device_collective_begin(board.collectives, group, &bad, &call) == KEEL_INVALID);
    struct keel_device_collectives_config config = {.device = board.device, .operations_max = 1};
    rank_check(me, keel_device_collectives_create(&config, &other) == KEEL_INVALID);
    config = (struct keel_device_collectives_config){
        .device = board.device, .parts_max = 1, .operations_max = KEEL_DEVICE_OPERATIONS_MAX + 1};
    rank_check(me, keel_device_collectives_create(&config, &other) == KEEL_INVALID);
    config = (struct keel_device_collectives_config){
        .device = board.device, .parts_max = 1, .operations_max = 1, .staging_bytes = 100, .staged = true};
    rank_ok(me, keel_device_collectives_create(&config, &other));
    rank_check(me, keel_device_collective_begin(other, group, &trial.staged, &call) == KEEL_LIMIT);
    keel_device_collectives_free(other);
    rank_ok(me, keel_device_collective_run(board.collectives, group, &trial.staged,
                                           in_seconds(20))); /* none the worse */
    struct keel_device_collective reduce = trial.staged;     /* a result that nobody gets lies on nothing */
    reduce.what.kind = KEEL_REDUCE;
    reduce.what.sequence = 1000;
    if (me->rank != 0)
        reduce.result = (struct keel_device_place){trial.in, trial.places[0].offset_bytes + 100};
    rank_ok(me, keel_device_collective_run(board.collectives, group, &reduce, in_seconds(20)));
    trial_free(&trial);
    keel_group_close(group);
    board_close(me, &board);
    return 0;
}

START_TEST(what_cannot_be_is_refused_before_it_begins)
{
    run_ranks(2, refused_body);
}
END_TEST

static int two_ways_body(struct rank *me)
{
    struct board board;
    struct trial trial;
    staged = me->rank == 0;
    board_open(me, &board);
    struct keel_group *group = one_each_group(me, 1);
    trial_sum(me, &board, 5000, 1, &trial);
    trial_on_host(me, group, &trial, 2);
    rank_ok(me, keel_device_collective_run(board.collectives, group, &trial.staged, in_seconds(20)));
    trial_compare(me, &board, &trial);
    trial_free(&trial);
    keel_group_close(group);
    board_close(me, &board);
    return 0;
}

START_TEST(ranks_of_different_ways_take_part_in_the_same_operation)
{
    run_ranks(2, two_ways_body);
}
END_TEST

/* ---- shared buffers ------------------------------------------------------------------------------------ */

enum { REGIONS_MAX = 2000 };

START_TEST(without_a_region_left_a_shared_buffer_is_an_ordinary_one)
{
    static void *regions[REGIONS_MAX];
    struct keel_device *device;
    struct keel_shared_buffer shared = {0};
    uint32_t count = 0;
    ck_ok(keel_device_open(selector, NULL, &device));
    while (count < REGIONS_MAX && keel_transport_alloc(1, &regions[count]) == KEEL_OK)
        count++;
    ck_assert_uint_lt(count, REGIONS_MAX);
    ck_ok(keel_shared_buffer_create(device, 100, &shared));
    ck_assert_ptr_null(shared.memory);
    ck_assert_uint_eq(keel_buffer_bytes(shared.buffer), 100);
    keel_shared_buffer_destroy(&shared);
    while (count > 0)
        keel_transport_free(regions[--count]);
    keel_device_close(device);
}
END_TEST

/* Peers may have it mapped, too; an unmapped page under a device's late write ends the process. */
START_TEST(memory_that_a_lost_device_may_still_write_is_kept)
{
    struct keel_device *device;
    struct keel_shared_buffer shared = {0};
    struct keel_region_place place;
    ck_ok(keel_device_open(selector, NULL, &device));
    ck_ok(keel_shared_buffer_create(device, 100, &shared));
    uint8_t *memory = shared.memory;
    ck_assert_ptr_nonnull(memory);
    ck_ok(keel_device_report(device, KEEL_HEALTH_LOST, "it fell off its bus"));
    keel_shared_buffer_destroy(&shared);
    ck_assert(keel_region_find(memory, 100, &place));
    memory[99] = 1;
    keel_device_close(device);
}
END_TEST

/* ---- failures ------------------------------------------------------------------------------------------ */

/* The next epoch, of ranks 0 and 1, with the same object. */
static void goes_on(struct rank *me, struct board *board, uint64_t epoch)
{
    const uint32_t members[] = {0, 1};
    struct trial trial;
    struct keel_group *group = rank_group_of(me, epoch, members, 2, 2, one_each);
    trial_sum(me, board, FLOATS, 1000, &trial);
    trial_on_host(me, group, &trial, 0);
    rank_ok(me, keel_device_collective_run(board->collectives, group, &trial.staged, in_seconds(20)));
    trial_compare(me, board, &trial);
    trial_free(&trial);
    keel_group_close(group);
}

/* Rank 2 dies while others are in the middle of what it takes part in. In place others read its memory
 * themselves, so it dies at once: a rank that was held up between more calls found that all was done. */
static int killed_body(struct rank *me)
{
    struct board board;
    struct trial trial;
    struct keel_device_operation *call = NULL;
    uint32_t lost = 9;
    board_open(me, &board);
    struct keel_group *group = one_each_group(me, 1);
    trial_sum(me, &board, FLOATS * 20, 1, &trial);
    rank_ok(me, keel_device_collective_begin(board.collectives, group, &trial.staged, &call));
    if (me->rank == 2) {
        for (uint32_t k = 0; k < (staged ? 20U : 1U); k++)
            keel_device_collectives_advance(board.collectives);
        kill(getpid(), SIGKILL);
    }
    rank_check(me, keel_device_operation_wait(call, in_seconds(20)) == KEEL_PEER_LOST);
    rank_check(me, keel_group_lost(group, &lost) && lost == 2);
    rank_check(me, keel_device_collective_begin(board.collectives, group, &trial.staged, &call) ==
                       KEEL_PEER_LOST);
    keel_group_close(group);
    rank_ok(me, keel_device_collectives_reset(board.collectives, in_seconds(20)));
    trial_free(&trial);
    goes_on(me, &board, 2);
    board_close(me, &board);
    return 0;
}

START_TEST(a_peer_that_dies_in_the_middle_is_named_and_the_survivors_go_on)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, 0, NULL, killed_body);
    ranks_end(&ranks, 2);
}
END_TEST

/* Which command of rank 0's device fails, and how. */
static int broken_device_body(struct rank *me)
{
    struct board board;
    struct trial trial;
    board_open(me, &board);
    struct keel_group *group = one_each_group(me, 1);
    trial_sum(me, &board, FLOATS, 1, &trial);
    if (me->rank == 0) {
        fault.command = (enum command)(me->seed / 10);
        fault.trouble = (enum trouble)(me->seed % 10);
        fault.after = staged ? 0 : 1;
    }
    enum keel_status status =
        keel_device_collective_run(board.collectives, group, &trial.staged, in_seconds(10));
    if (me->rank == 0) {
        rank_check(me, status == KEEL_DEVICE_LOST);
        rank_check(me,
                   strstr(keel_detail(), fault.command == WRITE ? "write to the device" : "read from the"));
    } else { /* rank 0 ends its epoch, as one does whose device is gone; a sum that it has given to is whole
              */
        bool whole = me->seed / 10 == WRITE && status == KEEL_OK;
        rank_check(me, whole || status == KEEL_REVOKED || status == KEEL_PEER_LOST);
    }
    keel_group_close(group);
    rank_ok(me, keel_device_collectives_reset(board.collectives, in_seconds(10)));
    trial_free(&trial);
    board_close(me, &board);
    return 0;
}

static void broken_device(enum command command, enum trouble trouble)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, (uint64_t)command * 10 + trouble, NULL, broken_device_body);
    ranks_end(&ranks, -1);
}

START_TEST(a_command_that_the_device_refuses_ends_the_call)
{
    broken_device(staged ? READ : MAP, REFUSED);
    if (staged)
        broken_device(WRITE, REFUSED);
}
END_TEST

START_TEST(a_command_that_fails_later_ends_the_call)
{
    broken_device(staged ? READ : MAP, FAILS_LATER);
    if (staged)
        broken_device(WRITE, FAILS_LATER);
}
END_TEST

/* Until the command has ended nothing that it may touch is let go; then all goes on. */
static int hung_device_body(struct rank *me)
{
    struct board board;
    struct trial trial;
    uint32_t lost = 9;
    board_open(me, &board);
    struct keel_group *group = one_each_group(me, 1);
    trial_sum(me, &board, FLOATS, 1, &trial);
    if (me->rank == 0) {
        fault.command = staged ? READ : MAP;
        fault.trouble = HANGS;
        fault.after = 0;
    }
    uint64_t deadline_ns = keel_deadline_after_ns(KEEL_NS_PER_S / 2);
    rank_check(me, keel_device_collective_run(board.collectives, group, &trial.staged, deadline_ns) ==
                       KEEL_TIMEOUT);
    rank_check(me, keel_now_ns() >= deadline_ns);
    if (me->rank == 0)
        rank_check(me, strstr(keel_detail(), "read from the device") != NULL);
    else
        rank_check(me, keel_group_lost(group, &lost) && lost == 0);
    rank_say(me, 't');
    rank_hear(me);
    keel_group_close(group);
    if (me->rank == 0) {
        rank_check(me, keel_device_collectives_reset(
                           board.collectives, keel_deadline_after_ns(KEEL_NS_PER_S / 20)) == KEEL_TIMEOUT);
        rank_check(me, clSetUserEventStatus(fault.hung, CL_COMPLETE) == CL_SUCCESS);
        clReleaseEvent(fault.hung);
        fault.trouble = NO_TROUBLE;
    }
    rank_ok(me, keel_device_collectives_reset(board.collectives, in_seconds(10)));
    trial_free(&trial);
    goes_on(me, &board, 2);
    board_close(me, &board);
    return 0;
}

START_TEST(a_command_that_never_ends_is_given_up_at_the_deadline)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 0, NULL, hung_device_body);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

static void *revoke_soon(void *group)
{
    keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_S / 20));
    keel_group_revoke(group);
    return NULL;
}

static int revoked_body(struct rank *me)
{
    struct board board;
    struct trial trial;
    struct keel_thread thread;
    board_open(me, &board);
    for (uint32_t round = 0; round < 2; round++) { /* the peer never begins; then the device hangs, too */
        struct keel_group *group = one_each_group(me, 1 + round);
        trial_sum(me, &board, FLOATS, 1, &trial);
        fault.command = READ;
        fault.after = 0;
        fault.trouble = round == 1 && staged && strcmp(selector, "host") != 0 ? HANGS : NO_TROUBLE;
        rank_ok(me, keel_thread_create(&thread, "revoke", revoke_soon, group));
        rank_check(me, me->rank != 0 || keel_device_collective_run(board.collectives, group, &trial.staged,
                                                                   in_seconds(20)) == KEEL_REVOKED);
        keel_thread_join(&thread);
        rank_say(me, 'r');
        rank_hear(me);
        keel_group_close(group);
        if (fault.hung != NULL) {
            rank_check(me, clSetUserEventStatus(fault.hung, CL_COMPLETE) == CL_SUCCESS);
            clReleaseEvent(fault.hung);
        }
        rank_ok(me, keel_device_collectives_reset(board.collectives, in_seconds(10)));
        fault.trouble = NO_TROUBLE;
        trial_free(&trial);
    }
    board_close(me, &board);
    return 0;
}

START_TEST(revoking_ends_a_call_whatever_it_waits_for)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 0, NULL, revoked_body);
    ranks_together(&ranks);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

/* ---- all devices --------------------------------------------------------------------------------------- */

static int run_suite(const char *name, const char *wanted, bool is_staged)
{
    selector = wanted;
    staged = is_staged;
    bool opencl = strcmp(selector, "host") != 0;
    Suite *suite = suite_create(name);
    TCase *tc = tcase_create(name);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, every_kind_has_the_bits_of_host_memory_and_touches_nothing_else);
    tcase_add_test(tc, a_rank_alone_gets_what_it_gave);
    tcase_add_test(tc, copies_of_one_operation_overlap_with_sums_of_others);
    tcase_add_test(tc, a_call_waits_for_the_devices_events);
    tcase_add_test(tc, calls_in_a_row_take_no_memory);
    tcase_add_test(tc, buffers_in_transport_memory_work_alike);
    tcase_add_test(tc, what_cannot_be_is_refused_before_it_begins);
    tcase_add_test(tc, without_a_region_left_a_shared_buffer_is_an_ordinary_one);
    tcase_add_test(tc, memory_that_a_lost_device_may_still_write_is_kept);
    tcase_add_test(tc, ranks_of_different_ways_take_part_in_the_same_operation);
    tcase_add_test(tc, a_peer_that_dies_in_the_middle_is_named_and_the_survivors_go_on);
    tcase_add_test(tc, revoking_ends_a_call_whatever_it_waits_for);
    if (opencl) {
        tcase_add_test(tc, a_command_that_the_device_refuses_ends_the_call);
        tcase_add_test(tc, a_command_that_fails_later_ends_the_call);
        tcase_add_test(tc, a_command_that_never_ends_is_given_up_at_the_deadline);
    }
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed;
}

/* The same program again, with POCL_DEVICES=basic: PoCL reads that once. */
static int run_basic(char *self)
{
    setenv("POCL_DEVICES", "basic", 1);
    fflush(NULL);
    char *argv[] = {self, (char[]){"basic"}, NULL};
    struct keel_process child;
    struct keel_process_end end = {.code = 1};
    if (keel_process_spawn(argv, NULL, 0, -1, &child) != KEEL_OK)
        return 1;
    if (keel_process_wait(&child, in_seconds(600), &end) != KEEL_OK)
        keel_process_signal(&child, 9);
    keel_process_close(&child);
    return end.signaled || end.code != 0;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return run_suite("PoCL basic, in place", "pocl:0", false) +
                           run_suite("PoCL basic, staged", "pocl:0", true) ==
                       0
                   ? EXIT_SUCCESS
                   : EXIT_FAILURE;
    int failed = run_suite("host, in place", "host", false) + run_suite("host, staged", "host", true);
    failed += run_suite("PoCL threads, in place", "pocl:0", false);
    failed += run_suite("PoCL threads, staged", "pocl:0", true);
    failed += run_basic(argv[0]);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
