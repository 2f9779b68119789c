/* check_api.c - level 1: the calls that everything else is made of do what keel/device.h says, on this board.
 *
 * Without code of the board: copies, fills, maps, slices, order and events. What a kernel does is level 2 on.
 * Transfers are in check_transfers.c, what is given back in check_lasting.c. */
#include "check_api.h"
#include "check_steps.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

enum { QUEUES = 4, COMMANDS = 2000, BYTES = KEEL_CHECK_BYTES };

/* ---- buffers ---- */

static void zeroed(struct keel_check_run *run)
{
    memset(run->got, 0xff, BYTES);
    memset(run->wanted, 0, BYTES);
    if (keel_step_read(run, run->buffer, 0, run->got, BYTES))
        keel_step_same(run, run->got, run->wanted, BYTES, "a new buffer is not zero");
}

static void slices(struct keel_check_run *run)
{
    const uint64_t align = run->on.info->base_align_bytes;
    struct keel_buffer *slice = NULL;
    if (align * 3 > BYTES)
        keel_check_fail(run, "slices are aligned to %" PRIu64 " bytes", align);
    else if (keel_step_write(run, run->buffer, 0, run->wanted, BYTES) &&
             keel_check_ok(run, keel_buffer_slice(run->buffer, align, align, &slice), "a slice") &&
             keel_step_read(run, slice, 0, run->got, align) &&
             keel_step_same(run, run->got, run->wanted + align, align,
                            "a slice is not the part of its buffer")) {
        memset(run->wanted + align, 0x5a, keel_size(align));
        if (keel_step_write(run, slice, 0, run->wanted + align, align) &&
            keel_step_read(run, run->buffer, 0, run->got, BYTES))
            keel_step_same(run, run->got, run->wanted, BYTES,
                           "what is written to a slice, and what is around it");
    }
    keel_buffer_destroy(slice);
}

/* ---- order ---- */

/* Words overwritten again and again: the last one stands only if each waited for the one before it. */
static void order(struct keel_check_run *run)
{
    for (uint32_t i = 1; i <= COMMANDS; i++) {
        enum keel_status status = keel_queue_fill(run->on.queue, run->buffer, 0, 4096, i, NULL, NULL);
        if (status == KEEL_OK)
            status = keel_queue_copy(run->on.queue, run->buffer, 0, run->other, (uint64_t)(i % 16) * 4096,
                                     4096, NULL, NULL);
        if (!keel_check_ok(run, status, "commands of one queue"))
            return;
    }
    for (uint32_t part = 0; part < 16; part++) {
        uint32_t last = 0, wanted = COMMANDS - (COMMANDS % 16 + 16 - part) % 16;
        if (!keel_step_read(run, run->other, (uint64_t)part * 4096 + 4092, &last, 4))
            return;
        if (last != wanted)
            keel_check_fail(run,
                            "commands of one queue overtook each other: fill %" PRIu32
                            " stands where %" PRIu32 " should",
                            last, wanted);
    }
}

/* A chain through several queues: each copies what the one before it wrote. */
static void events(struct keel_check_run *run)
{
    struct keel_queue *queues[QUEUES];
    struct keel_event *event = NULL;
    bool going = true;
    for (uint32_t i = 0; i < QUEUES && going; i++)
        going = keel_check_ok(run, keel_check_new_queue(run, &queues[i]), "several queues");
    going = going &&
            keel_check_ok(run, keel_queue_write(queues[0], run->buffer, 0, run->wanted, BYTES, NULL, &event),
                          "a write");
    for (uint32_t i = 1; i < QUEUES * 8 && going; i++) {
        const struct keel_wait_list waits = {.events = &event, .count = 1};
        struct keel_buffer *const both[] = {run->other, run->buffer};
        struct keel_event *next = NULL;
        going = keel_check_ok(
            run,
            keel_queue_copy(queues[i % QUEUES], both[i % 2], 0, both[1 - i % 2], 0, BYTES, &waits, &next),
            "a copy that waits for another queue");
        keel_event_destroy(event);
        event = next;
    }
    if (going &&
        keel_check_ok(run, keel_event_wait(event, run->deadline_ns), "the last of a chain of events")) {
        if (!keel_event_done(event))
            keel_check_fail(run, "an event that was waited for is not done");
        if (keel_step_read(run, run->other, 0, run->got, BYTES))
            keel_step_same(run, run->got, run->wanted, BYTES, "a chain of copies through several queues");
    }
    keel_event_destroy(event);
}

/* ---- what cannot be ---- */

static void refuse(struct keel_check_run *run, enum keel_status got, enum keel_status wanted,
                   const char *what)
{
    if (got != wanted)
        keel_check_fail(run, "%s is answered by %s, not %s", what, keel_status_name(got),
                        keel_status_name(wanted));
}

static void refuses(struct keel_check_run *run)
{
    struct keel_queue *queue = run->on.queue;
    struct keel_buffer *none = NULL;
    uint8_t byte = 0;
    refuse(run, keel_buffer_create(run->on.device, run->on.info->max_buffer_bytes + 4096, &none),
           KEEL_NO_MEMORY, "a buffer larger than the largest");
    refuse(run, keel_queue_write(queue, run->buffer, BYTES, &byte, 1, NULL, NULL), KEEL_INVALID,
           "a write beyond the end");
    refuse(run, keel_queue_read(queue, run->buffer, BYTES - 1, run->got, 2, NULL, NULL), KEEL_INVALID,
           "a read beyond the end");
    refuse(run, keel_queue_copy(queue, run->buffer, 1, run->other, 0, BYTES, NULL, NULL), KEEL_INVALID,
           "a copy from beyond the end");
    keel_check_round_trip(run); /* the queue goes on */
}

/* A deadline that has passed comes back at once, and the queue goes on. */
static void deadlines(struct keel_check_run *run)
{
    struct keel_event *event = NULL;
    if (!keel_check_ok(run, keel_queue_write(run->on.queue, run->buffer, 0, run->wanted, BYTES, NULL, NULL),
                       "a write") ||
        !keel_check_ok(run, keel_queue_mark(run->on.queue, &event), "a mark"))
        return;
    const uint64_t begun_ns = keel_now_ns();
    enum keel_status status = keel_event_wait(event, begun_ns);
    const uint64_t took_ns = keel_now_ns() - begun_ns;
    if (status != KEEL_OK && status != KEEL_TIMEOUT)
        keel_check_fail(run, "a wait whose deadline has passed: %s", keel_detail());
    if (took_ns > 2 * KEEL_NS_PER_S)
        keel_check_fail(run, "a wait whose deadline has passed took %.1f s", (double)took_ns / 1e9);
    if (keel_step_finish(run, run->on.queue, "a queue after a deadline has passed"))
        keel_check_ok(run, keel_event_wait(event, run->deadline_ns), "a mark behind a finished queue");
    keel_event_destroy(event);
}

/* The reference of most is a round trip of small transfers: where that is wrong, nothing else is to blame. */
#define BUFFERS KEEL_OPENS_BUFFERS
const struct keel_check keel_checks_api[] = {
    {"1.1", "zeroed", "a new buffer is zero", "0.2", 60, BUFFERS, zeroed},
    {"1.2", "round-trip", "what is written is read, at any offset and size", "0.2", 60, BUFFERS,
     keel_check_round_trip},
    {"1.3", "device-copies", "copies within the device move the bytes that they say", "1.2", 60, BUFFERS,
     keel_check_copies},
    {"1.4", "fills", "a fill fills its range and nothing else", "1.2", 60, BUFFERS, keel_check_fills},
    {"1.5", "slices", "a slice is the part of its buffer that it says", "1.2", 60, BUFFERS, slices},
    {"1.6", "maps", "what host and device write through a map, the other sees", "1.2", 60, BUFFERS,
     keel_check_maps},
    {"1.7", "order", "commands of one queue run in their order", "1.2", 60, BUFFERS, order},
    {"1.8", "events", "a command waits for the events of other queues", "1.2", 60, BUFFERS, events},
    {"1.9", "refuses-ranges", "what does not fit is refused, and the queue goes on", "1.2", 60, BUFFERS,
     refuses},
    {"1.10", "gives-back", "memory that is given back is there again, by the board's own measure", "0.2", 120,
     BUFFERS, keel_check_gives_back},
    {"1.11", "deadlines", "no wait outlasts its deadline, and the queue goes on", "0.2", 60, BUFFERS,
     deadlines},
    {"1.12", "large-transfers", "large writes, reads, copies, fills and maps move all of their bytes", "1.2",
     120, BUFFERS, keel_check_large},
    {"1.13", "many-buffers", "a thousand buffers live side by side", "1.2", 60, BUFFERS,
     keel_check_many_buffers},
    {"1.14", "steady", "commands, queues and buffers that are done leave no memory behind in the process",
     "0.2", 120, BUFFERS, keel_check_steady},
    {"1.15", "reopens",
     "a board that was closed opens again in the same process, and leaves no memory behind", "1.2", 120,
     BUFFERS, keel_check_reopens},
    {.id = NULL}};
