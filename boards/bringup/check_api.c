/* check_api.c - level 1: the calls that everything else is made of do what keel/device.h says, on this board.
 *
 * Without code of the board: copies, fills, maps, slices, order and events. What a kernel does is level 2 on.
 */
#include "check_bench.h"
#include "check_tables.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

enum { QUEUES = 4, COMMANDS = 2000 };

#define BYTES KEEL_BENCH_BYTES

static bool ok(struct keel_bench *bench, enum keel_status status, const char *what)
{
    return keel_bench_ok(bench, status, what);
}

static bool finish(struct keel_bench *bench, const char *what)
{
    return keel_bench_finish(bench, bench->queue, what);
}

static void same(struct keel_bench *bench, const uint8_t *wanted, uint64_t bytes, const char *what)
{
    keel_bench_same(bench, bench->got, wanted, bytes, what);
}

/* ---- buffers ---- */

static void zeroed(struct keel_bench *bench)
{
    memset(bench->got, 0xff, BYTES);
    memset(bench->wanted, 0, BYTES);
    if (ok(bench, keel_queue_read(bench->queue, bench->buffer, 0, bench->got, BYTES, NULL, NULL), "a read") &&
        finish(bench, "a read"))
        same(bench, bench->wanted, BYTES, "a new buffer is not zero");
}

static void slices(struct keel_bench *bench)
{
    uint64_t align = keel_device_info(bench->device)->base_align_bytes;
    struct keel_buffer *slice = NULL;
    if (align * 3 > BYTES) {
        keel_check_fail(bench->run, "slices are aligned to %" PRIu64 " bytes", align);
        return;
    }
    if (!ok(bench, keel_queue_write(bench->queue, bench->buffer, 0, bench->wanted, BYTES, NULL, NULL),
            "a write") ||
        !ok(bench, keel_buffer_slice(bench->buffer, align, align, &slice), "a slice"))
        return;
    if (ok(bench, keel_queue_read(bench->queue, slice, 0, bench->got, align, NULL, NULL),
           "a read of a slice") &&
        finish(bench, "a read of a slice"))
        same(bench, bench->wanted + align, align, "a slice is not the part of its buffer");
    memset(bench->wanted + align, 0x5a, keel_size(align));
    if (ok(bench, keel_queue_write(bench->queue, slice, 0, bench->wanted + align, align, NULL, NULL),
           "a write of a slice") &&
        ok(bench, keel_queue_read(bench->queue, bench->buffer, 0, bench->got, BYTES, NULL, NULL), "a read") &&
        finish(bench, "a write of a slice"))
        same(bench, bench->wanted, BYTES, "what is written to a slice, and what is around it");
    keel_buffer_destroy(slice);
}

/* ---- order ---- */

/* Words overwritten again and again: the last one stands only if each waited for the one before it. */
static void order(struct keel_bench *bench)
{
    uint32_t last = 0;
    for (uint32_t i = 1; i <= COMMANDS; i++) {
        enum keel_status status = keel_queue_fill(bench->queue, bench->buffer, 0, 4096, i, NULL, NULL);
        if (status == KEEL_OK)
            status = keel_queue_copy(bench->queue, bench->buffer, 0, bench->other, (uint64_t)(i % 16) * 4096,
                                     4096, NULL, NULL);
        if (!ok(bench, status, "commands of one queue"))
            return;
    }
    for (uint32_t part = 0; part < 16; part++) {
        uint32_t wanted = COMMANDS - (COMMANDS % 16 + 16 - part) % 16;
        if (!ok(bench,
                keel_queue_read(bench->queue, bench->other, (uint64_t)part * 4096 + 4092, &last, 4, NULL,
                                NULL),
                "a read") ||
            !finish(bench, "commands of one queue"))
            return;
        if (last != wanted)
            keel_check_fail(bench->run,
                            "commands of one queue overtook each other: fill %" PRIu32
                            " stands where %" PRIu32 " should",
                            last, wanted);
    }
}

/* A chain through several queues: each copies what the one before it wrote. */
static void events(struct keel_bench *bench)
{
    struct keel_queue *queues[QUEUES] = {NULL};
    struct keel_event *event = NULL, *next = NULL;
    bool going = true;
    for (uint32_t i = 0; i < QUEUES && going; i++)
        going = ok(bench, keel_queue_create(bench->device, &queues[i]), "several queues");
    going =
        going && ok(bench, keel_queue_write(queues[0], bench->buffer, 0, bench->wanted, BYTES, NULL, &event),
                    "a write");
    for (uint32_t i = 1; i < QUEUES * 8 && going; i++) {
        const struct keel_wait_list waits = {.events = &event, .count = 1};
        bool odd = i % 2 == 1;
        going = ok(bench,
                   keel_queue_copy(queues[i % QUEUES], odd ? bench->buffer : bench->other, 0,
                                   odd ? bench->other : bench->buffer, 0, BYTES, &waits, &next),
                   "a copy that waits for another queue");
        keel_event_destroy(event);
        event = going ? next : NULL;
    }
    if (going && ok(bench, keel_event_wait(event, keel_check_deadline_ns(bench->run)),
                    "the last of a chain of events")) {
        if (!keel_event_done(event))
            keel_check_fail(bench->run, "an event that was waited for is not done");
        if (ok(bench, keel_queue_read(bench->queue, bench->other, 0, bench->got, BYTES, NULL, NULL),
               "a read") &&
            finish(bench, "a read"))
            same(bench, bench->wanted, BYTES, "a chain of copies through several queues");
    }
    keel_event_destroy(event);
    for (uint32_t i = 0; i < QUEUES; i++)
        if (queues[i] != NULL)
            keel_queue_destroy(queues[i]);
}

/* ---- what cannot be ---- */

static void refuse(struct keel_bench *bench, enum keel_status got, enum keel_status wanted, const char *what)
{
    if (got != wanted)
        keel_check_fail(bench->run, "%s is answered by %s, not %s", what, keel_status_name(got),
                        keel_status_name(wanted));
}

static void refuses(struct keel_bench *bench)
{
    const struct keel_device_info *info = keel_device_info(bench->device);
    struct keel_buffer *none = NULL;
    uint8_t byte = 0;
    refuse(bench, keel_buffer_create(bench->device, info->max_buffer_bytes + 4096, &none), KEEL_NO_MEMORY,
           "a buffer larger than the largest");
    refuse(bench, keel_queue_write(bench->queue, bench->buffer, BYTES, &byte, 1, NULL, NULL), KEEL_INVALID,
           "a write beyond the end");
    refuse(bench, keel_queue_read(bench->queue, bench->buffer, BYTES - 1, bench->got, 2, NULL, NULL),
           KEEL_INVALID, "a read beyond the end");
    refuse(bench, keel_queue_copy(bench->queue, bench->buffer, 1, bench->other, 0, BYTES, NULL, NULL),
           KEEL_INVALID, "a copy from beyond the end");
    keel_check_round_trip(bench); /* the queue goes on */
}

/* A deadline that has passed comes back at once, and the queue goes on. */
static void deadlines(struct keel_bench *bench)
{
    struct keel_event *event = NULL;
    if (!ok(bench, keel_queue_write(bench->queue, bench->buffer, 0, bench->wanted, BYTES, NULL, NULL),
            "a write") ||
        !ok(bench, keel_queue_mark(bench->queue, &event), "a mark"))
        return;
    uint64_t begun_ns = keel_now_ns(), limit_ns = 2 * KEEL_NS_PER_S;
    enum keel_status status = keel_event_wait(event, begun_ns);
    if (status != KEEL_OK && status != KEEL_TIMEOUT)
        keel_check_fail(bench->run, "a wait whose deadline has passed: %s", keel_detail());
    if (keel_now_ns() - begun_ns > limit_ns)
        keel_check_fail(bench->run, "a wait whose deadline has passed took %.1f s",
                        (double)(keel_now_ns() - begun_ns) / 1e9);
    if (finish(bench, "a queue after a deadline has passed"))
        ok(bench, keel_event_wait(event, keel_check_deadline_ns(bench->run)),
           "a mark behind a finished queue");
    keel_event_destroy(event);
}

/* ---- the table ---- */

static void with(struct keel_check_run *run, void (*look)(struct keel_bench *bench))
{
    struct keel_bench bench;
    if (keel_bench_begin(&bench, run)) {
        keel_check_progress(run, 0, 0, "calls into the driver");
        look(&bench);
    }
    keel_check_progress(run, 0, 0, "destroying queue and buffers");
    keel_bench_end(&bench);
}

#define CHECK(name, look)                                                                                    \
    static void check_##name(struct keel_check_run *run)                                                     \
    {                                                                                                        \
        with(run, look);                                                                                     \
    }
CHECK(zeroed, zeroed)
CHECK(round_trip, keel_check_round_trip)
CHECK(copies, keel_check_copies)
CHECK(fills, keel_check_fills)
CHECK(slices, slices)
CHECK(maps, keel_check_maps)
CHECK(order, order)
CHECK(events, events)
CHECK(refuses, refuses)
CHECK(gives_back, keel_check_gives_back)
CHECK(deadlines, deadlines)
CHECK(large, keel_check_large)
CHECK(many_buffers, keel_check_many_buffers)
CHECK(steady, keel_check_steady)
CHECK(reopens, keel_check_reopens)

/* The reference of most is a round trip of small transfers: where that is wrong, nothing else is to blame. */
const struct keel_check keel_checks_api[] = {
    {"1.1", "zeroed", "a new buffer is zero", "0.2", 60, false, check_zeroed},
    {"1.2", "round-trip", "what is written is read, at any offset and size", "0.2", 60, false,
     check_round_trip},
    {"1.3", "device-copies", "copies within the device move the bytes that they say", "1.2", 60, false,
     check_copies},
    {"1.4", "fills", "a fill fills its range and nothing else", "1.2", 60, false, check_fills},
    {"1.5", "slices", "a slice is the part of its buffer that it says", "1.2", 60, false, check_slices},
    {"1.6", "maps", "what host and device write through a map, the other sees", "1.2", 60, false, check_maps},
    {"1.7", "order", "commands of one queue run in their order", "1.2", 60, false, check_order},
    {"1.8", "events", "a command waits for the events of other queues", "1.2", 60, false, check_events},
    {"1.9", "refuses-ranges", "what does not fit is refused, and the queue goes on", "1.2", 60, false,
     check_refuses},
    {"1.10", "gives-back", "memory that is given back is there again, by the board's own measure", "0.2", 120,
     false, check_gives_back},
    {"1.11", "deadlines", "no wait outlasts its deadline, and the queue goes on", "0.2", 60, false,
     check_deadlines},
    {"1.12", "large-transfers", "large writes, reads, copies, fills and maps move all of their bytes", "1.2",
     120, false, check_large},
    {"1.13", "many-buffers", "a thousand buffers live side by side", "1.2", 60, false, check_many_buffers},
    {"1.14", "steady", "commands, queues and buffers that are done leave no memory behind in the process",
     "0.2", 120, false, check_steady},
    {"1.15", "reopens",
     "a board that was closed opens again in the same process, and leaves no memory behind", "1.2", 120,
     false, check_reopens},
    {.id = NULL}};
