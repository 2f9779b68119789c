/* check_api.c - level 1: the calls that everything else is made of do what keel/device.h says, on this board.
 *
 * Without code of the board: copies, fills, maps, slices, order and events. What a kernel does is level 2 on.
 */
#include "check_tables.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

enum { BYTES = 1 << 20, QUEUES = 4, COMMANDS = 2000, CREATED = 400 };

/* A queue, two buffers of BYTES, and host memory of twice that. */
struct bench {
    struct keel_check_run *run;
    struct keel_device *device;
    struct keel_queue *queue;
    struct keel_buffer *buffer, *other;
    uint8_t *wanted, *got;
};

static bool ok(struct bench *bench, enum keel_status status, const char *what)
{
    return keel_check_ok(bench->run, status, what);
}

static bool finish(struct bench *bench, const char *what)
{
    return ok(bench, keel_queue_finish(bench->queue, keel_check_deadline_ns(bench->run)), what);
}

static uint32_t mix(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x7feb352dU;
    x = (x ^ (x >> 15)) * 0x846ca68bU;
    return x ^ (x >> 16);
}

static bool bench_begin(struct bench *bench, struct keel_check_run *run)
{
    *bench = (struct bench){.run = run, .device = keel_check_device(run)};
    if (bench->device == NULL || !ok(bench, keel_alloc(1, BYTES, &bench->wanted), "host memory") ||
        !ok(bench, keel_alloc(1, BYTES, &bench->got), "host memory") ||
        !ok(bench, keel_queue_create(bench->device, &bench->queue), "a queue") ||
        !ok(bench, keel_buffer_create(bench->device, BYTES, &bench->buffer), "a buffer of 1 MiB") ||
        !ok(bench, keel_buffer_create(bench->device, BYTES, &bench->other), "a second buffer of 1 MiB"))
        return false;
    for (uint32_t i = 0; i < BYTES; i++)
        bench->wanted[i] = (uint8_t)mix(i);
    return true;
}

static void bench_end(struct bench *bench)
{
    if (bench->queue != NULL)
        keel_queue_destroy(bench->queue);
    if (bench->buffer != NULL)
        keel_buffer_destroy(bench->buffer);
    if (bench->other != NULL)
        keel_buffer_destroy(bench->other);
    keel_free(bench->wanted);
    keel_free(bench->got);
}

static void same(struct bench *bench, const uint8_t *wanted, uint64_t bytes, const char *what)
{
    for (uint64_t i = 0; i < bytes; i++)
        if (bench->got[i] != wanted[i]) {
            keel_check_fail(bench->run, "%s: byte %" PRIu64 " of %" PRIu64 " is %02x, not %02x", what, i,
                            bytes, bench->got[i], wanted[i]);
            return;
        }
}

/* ---- buffers ---- */

static void zeroed(struct bench *bench)
{
    memset(bench->got, 0xff, BYTES);
    memset(bench->wanted, 0, BYTES);
    if (ok(bench, keel_queue_read(bench->queue, bench->buffer, 0, bench->got, BYTES, NULL, NULL), "a read") &&
        finish(bench, "a read"))
        same(bench, bench->wanted, BYTES, "a new buffer is not zero");
}

/* Offsets and sizes that no alignment helps. */
static void round_trip(struct bench *bench)
{
    static const uint32_t sizes[] = {1, 3, 4, 63, 64, 65, 4095, 4097, 65537, BYTES - 131};
    static const uint32_t offsets[] = {0, 1, 4, 67, 131};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (size_t o = 0; o < sizeof offsets / sizeof offsets[0]; o++) {
            memset(bench->got, 0, sizes[s]);
            if (!ok(bench,
                    keel_queue_write(bench->queue, bench->buffer, offsets[o], bench->wanted, sizes[s], NULL,
                                     NULL),
                    "a write") ||
                !ok(bench,
                    keel_queue_read(bench->queue, bench->buffer, offsets[o], bench->got, sizes[s], NULL,
                                    NULL),
                    "a read") ||
                !finish(bench, "a write and a read"))
                return;
            same(bench, bench->wanted, sizes[s], "what was written is not what is read");
        }
}

static void copies(struct bench *bench)
{
    enum { FROM = 257, TO = 1031, COUNT = BYTES / 2 + 3 };
    if (ok(bench, keel_queue_write(bench->queue, bench->buffer, 0, bench->wanted, BYTES, NULL, NULL),
           "a write") &&
        ok(bench, keel_queue_copy(bench->queue, bench->buffer, FROM, bench->other, TO, COUNT, NULL, NULL),
           "a copy") &&
        ok(bench, keel_queue_read(bench->queue, bench->other, TO, bench->got, COUNT, NULL, NULL), "a read") &&
        finish(bench, "a copy"))
        same(bench, bench->wanted + FROM, COUNT, "a copy within the device");
}

static void fills(struct bench *bench)
{
    enum { FROM = 64, COUNT = 4096 };
    const uint32_t pattern = 0xdeadbeef;
    memset(bench->wanted, 0, BYTES);
    for (uint32_t i = FROM; i < FROM + COUNT; i += 4)
        memcpy(bench->wanted + i, &pattern, sizeof pattern);
    if (ok(bench, keel_queue_fill(bench->queue, bench->buffer, FROM, COUNT, pattern, NULL, NULL), "a fill") &&
        ok(bench, keel_queue_read(bench->queue, bench->buffer, 0, bench->got, BYTES, NULL, NULL), "a read") &&
        finish(bench, "a fill"))
        same(bench, bench->wanted, BYTES, "a fill, and what is around it");
}

static void slices(struct bench *bench)
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

/* ---- maps ---- */

static bool map(struct bench *bench, enum keel_map how, void **out)
{
    struct keel_event *event = NULL;
    bool done =
        ok(bench, keel_queue_map(bench->queue, bench->buffer, 0, BYTES, how, out, NULL, &event), "a map") &&
        ok(bench, keel_event_wait(event, keel_check_deadline_ns(bench->run)), "a map");
    keel_event_destroy(event);
    return done;
}

static void maps(struct bench *bench)
{
    void *at = NULL;
    if (!map(bench, KEEL_MAP_WRITE, &at))
        return;
    memcpy(at, bench->wanted, BYTES);
    if (!ok(bench, keel_queue_unmap(bench->queue, bench->buffer, at, NULL, NULL), "an unmap") ||
        !ok(bench, keel_queue_copy(bench->queue, bench->buffer, 0, bench->other, 0, BYTES, NULL, NULL),
            "a copy") ||
        !ok(bench, keel_queue_read(bench->queue, bench->other, 0, bench->got, BYTES, NULL, NULL), "a read") ||
        !finish(bench, "a copy of what was mapped"))
        return;
    same(bench, bench->wanted, BYTES, "what was written through a map");
    if (!map(bench, KEEL_MAP_READ, &at))
        return;
    memcpy(bench->got, at, BYTES);
    if (ok(bench, keel_queue_unmap(bench->queue, bench->buffer, at, NULL, NULL), "an unmap") &&
        finish(bench, "an unmap"))
        same(bench, bench->wanted, BYTES, "what is read through a map");
}

/* ---- order ---- */

/* Words overwritten again and again: the last one stands only if each waited for the one before it. */
static void order(struct bench *bench)
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
static void events(struct bench *bench)
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

static void refuse(struct bench *bench, enum keel_status got, enum keel_status wanted, const char *what)
{
    if (got != wanted)
        keel_check_fail(bench->run, "%s is answered by %s, not %s", what, keel_status_name(got),
                        keel_status_name(wanted));
}

static void refuses(struct bench *bench)
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
    round_trip(bench); /* the queue goes on */
}

/* What is given back is there again; and many times over. */
static void gives_back(struct bench *bench)
{
    const struct keel_device_info *info = keel_device_info(bench->device);
    uint64_t bytes = info->max_buffer_bytes / 4 < 16 << 20 ? info->max_buffer_bytes / 4 : 16 << 20;
    uint64_t before = keel_device_stats(bench->device).live_bytes;
    for (uint32_t i = 0; i < CREATED; i++) {
        struct keel_buffer *buffer = NULL;
        if (!ok(bench,
                keel_buffer_create(bench->device, i % 40 == 0 ? bytes & ~(uint64_t)4095 : 4096, &buffer),
                "a buffer, created and destroyed many times"))
            return;
        keel_buffer_destroy(buffer);
        keel_check_progress(bench->run, i, CREATED, "creating and destroying buffers");
    }
    if (keel_device_stats(bench->device).live_bytes != before)
        keel_check_fail(bench->run, "%" PRIu64 " bytes were live before, %" PRIu64 " after", before,
                        keel_device_stats(bench->device).live_bytes);
}

/* A deadline that has passed comes back at once, and the queue goes on. */
static void deadlines(struct bench *bench)
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

static void with(struct keel_check_run *run, void (*look)(struct bench *bench))
{
    struct bench bench;
    if (bench_begin(&bench, run)) {
        keel_check_progress(run, 0, 0, "calls into the driver");
        look(&bench);
    }
    keel_check_progress(run, 0, 0, "destroying queue and buffers");
    bench_end(&bench);
}

#define CHECK(name)                                                                                          \
    static void check_##name(struct keel_check_run *run)                                                     \
    {                                                                                                        \
        with(run, name);                                                                                     \
    }
CHECK(zeroed)
CHECK(round_trip)
CHECK(copies)
CHECK(fills)
CHECK(slices)
CHECK(maps)
CHECK(order)
CHECK(events)
CHECK(refuses)
CHECK(gives_back)
CHECK(deadlines)

const struct keel_check keel_checks_api[] = {
    {"1.1", "zeroed", "a new buffer is zero", "0.2", 60, false, check_zeroed},
    {"1.2", "round-trip", "what is written is read, at any offset and size", "0.2", 60, false,
     check_round_trip},
    {"1.3", "device-copies", "copies within the device move the bytes that they say", "0.2", 60, false,
     check_copies},
    {"1.4", "fills", "a fill fills its range and nothing else", "0.2", 60, false, check_fills},
    {"1.5", "slices", "a slice is the part of its buffer that it says", "0.2", 60, false, check_slices},
    {"1.6", "maps", "what host and device write through a map, the other sees", "0.2", 60, false, check_maps},
    {"1.7", "order", "commands of one queue run in their order", "0.2", 60, false, check_order},
    {"1.8", "events", "a command waits for the events of other queues", "0.2", 60, false, check_events},
    {"1.9", "refuses-ranges", "what does not fit is refused, and the queue goes on", "0.2", 60, false,
     check_refuses},
    {"1.10", "gives-back", "memory that is given back is there again", "0.2", 60, false, check_gives_back},
    {"1.11", "deadlines", "no wait outlasts its deadline, and the queue goes on", "0.2", 60, false,
     check_deadlines},
    {.id = NULL}};
