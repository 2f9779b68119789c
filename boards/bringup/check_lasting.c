/* check_lasting.c - level 1: what is given back is there again, and what is done leaves nothing behind.
 *
 * Keel's own counters say nothing of a driver. The evidence here is the board's refusal, once more memory was
 * created and destroyed than it has, and the resident memory of the process, which grows with each command
 * where a driver loses some. */
#include "check_api.h"
#include "check_steps.h"
#include <inttypes.h>
#include <keel/clock.h>

enum {
    TIMES_OVER = 2, /* bytes allocated in all: this many times the board's memory */
    CYCLE_S = 10,   /* or as many as this time allows */
    CYCLE_S_QUICK = 3,
    SHARED_BYTES = 64 << 20, /* the most at a time where host and board share memory */
    SHARED_TIMES = 16,
    SMALL_BUFFERS = 400,
    LIVE_BUFFERS = 1000,

    STAGE_COMMANDS = 400,
    TRANSFER_BYTES = 64 << 10,
    OPENINGS = 3
};

/* One buffer of the board's largest, or small, created and destroyed. */
static bool cycle(struct keel_check_run *run, uint64_t bytes, uint64_t had)
{
    struct keel_buffer *buffer = NULL;
    enum keel_status status = keel_buffer_create(run->on.device, bytes, &buffer);
    if (status != KEEL_OK)
        keel_check_fail(run,
                        "memory does not come back: %" PRIu64
                        " MiB were created and destroyed one after another, "
                        "and the next %" PRIu64 " bytes are refused: %s",
                        had >> 20, bytes, keel_detail());
    keel_buffer_destroy(buffer);
    return status == KEEL_OK;
}

/* How much is had at a time, and in all. */
static void sizes(const struct keel_device_info *info, uint64_t *bytes, uint64_t *wanted)
{
    *bytes =
        info->max_buffer_bytes < info->memory_bytes / 2 ? info->max_buffer_bytes : info->memory_bytes / 2;
    *wanted = info->memory_bytes * TIMES_OVER;
    if (info->unified_memory) { /* the host's: others live in it, and the process shows what is lost */
        *bytes = *bytes < SHARED_BYTES ? *bytes : SHARED_BYTES;
        *wanted = *wanted < SHARED_TIMES * *bytes ? *wanted : SHARED_TIMES * *bytes;
    }
    *bytes = *bytes / 2 & ~UINT64_C(4095);
}

void keel_check_gives_back(struct keel_check_run *run)
{
    const uint64_t limit_s = run->options->quick ? CYCLE_S_QUICK : CYCLE_S;
    const uint64_t deadline_ns = keel_deadline_after_ns(limit_s * KEEL_NS_PER_S);
    const uint64_t before = keel_device_stats(run->on.device).live_bytes;
    uint64_t bytes, wanted, had = 0;
    sizes(run->on.info, &bytes, &wanted);
    for (uint32_t i = 0; i < SMALL_BUFFERS; i++, had += 4096)
        if (!cycle(run, 4096, had))
            return;
    const uint64_t resident = keel_check_resident_bytes();
    for (; had < wanted && keel_remaining_ns(deadline_ns) > 0; had += bytes) {
        keel_check_progress(run, had, wanted, "creating and destroying buffers");
        if (!cycle(run, bytes, had))
            return;
    }
    const uint64_t now = keel_check_resident_bytes(), grown = now > resident ? now - resident : 0;
    if (had < wanted)
        keel_check_note(run, "%" PRIu64 " of %" PRIu64 " MiB were had, in the time that there was", had >> 20,
                        wanted >> 20);
    if (grown > had / 4 && grown > KEEL_CHECK_STAGE_BYTES + bytes)
        keel_check_fail(run,
                        "memory does not come back: the process grew by %" PRIu64 " MiB while %" PRIu64
                        " were created and destroyed",
                        grown >> 20, had >> 20);
    const uint64_t live = keel_device_stats(run->on.device).live_bytes;
    if (live != before)
        keel_check_fail(run, "%" PRIu64 " bytes were live before, %" PRIu64 " after", before, live);
}

/* ---- many at a time ---- */

void keel_check_many_buffers(struct keel_check_run *run)
{
    static struct keel_buffer *buffers[LIVE_BUFFERS];
    const uint64_t most = run->on.info->memory_bytes / 2 / 4096;
    const uint32_t count = most < LIVE_BUFFERS ? (uint32_t)most : LIVE_BUFFERS;
    uint32_t made = 0;
    for (; made < count && keel_buffer_create(run->on.device, 4096, &buffers[made]) == KEEL_OK; made++)
        if (!keel_check_ok(
                run, keel_queue_fill(run->on.queue, buffers[made], 0, 4096, keel_check_mix(made), NULL, NULL),
                "a fill"))
            return;
    if (made < count)
        keel_check_fail(run, "%" PRIu32 " buffers of 4096 bytes, and no more: %s", made, keel_detail());
    for (uint32_t i = 0; i < made; i++) {
        uint32_t got = 0;
        if (!keel_step_read(run, buffers[i], 4092, &got, 4))
            return;
        if (got != keel_check_mix(i))
            keel_check_fail(run,
                            "of %" PRIu32 " buffers number %" PRIu32 " has %08" PRIx32 ", not %08" PRIx32,
                            made, i, got, keel_check_mix(i));
    }
    while (made > 0)
        keel_buffer_destroy(buffers[--made]);
}

/* ---- what stays behind in the process ---- */

static enum keel_status enqueue_one_of_each(struct keel_check_run *run, uint32_t word)
{
    struct keel_event *event = NULL;
    KEEL_TRY(keel_queue_write(run->on.queue, run->buffer, 0, run->wanted, TRANSFER_BYTES, NULL, &event));
    keel_event_destroy(event);
    KEEL_TRY(keel_queue_fill(run->on.queue, run->other, 0, TRANSFER_BYTES, word, NULL, NULL));
    KEEL_TRY(keel_queue_copy(run->on.queue, run->buffer, 0, run->other, 0, TRANSFER_BYTES, NULL, NULL));
    return keel_queue_read(run->on.queue, run->other, 0, run->got, TRANSFER_BYTES, NULL, NULL);
}

static bool do_commands(struct keel_check_run *run, void *context, uint32_t number)
{
    (void)context;
    (void)number;
    for (uint32_t i = 0; i < STAGE_COMMANDS; i++)
        if (!keel_check_ok(run, enqueue_one_of_each(run, i), "commands") ||
            !keel_step_finish(run, run->on.queue, "commands"))
            return false;
    for (uint32_t i = 0; i < 20; i++) {
        struct keel_queue *queue;
        if (!keel_check_ok(run, keel_queue_create(run->on.device, &queue), "a queue"))
            return false;
        keel_queue_destroy(queue);
    }
    return true;
}

void keel_check_steady(struct keel_check_run *run)
{
    keel_check_stages(run, "commands again and again", "400 writes, fills, copies and reads and 20 queues",
                      do_commands, NULL);
}

/* The same board a second time beside the first, and after it was closed. */
static bool open_again(struct keel_check_run *run, void *context, uint32_t number)
{
    (void)context;
    for (uint32_t i = 0; i < OPENINGS; i++) {
        struct keel_device *device = NULL;
        struct keel_queue *queue = NULL;
        struct keel_buffer *buffer = NULL;
        const uint32_t word = number * OPENINGS + i;
        uint32_t got = 0;
        if (!keel_check_ok(run, keel_device_open(run->on.info->selector, NULL, &device),
                           "the board opened again") ||
            !keel_check_ok(run, keel_queue_create(device, &queue), "a queue of a board opened again") ||
            !keel_check_ok(run, keel_buffer_create(device, 4096, &buffer),
                           "a buffer of a board opened again") ||
            !keel_check_ok(run, keel_queue_fill(queue, buffer, 0, 4096, word, NULL, NULL), "a fill") ||
            !keel_check_ok(run, keel_queue_read(queue, buffer, 4092, &got, 4, NULL, NULL), "a read") ||
            !keel_step_finish(run, queue, "a board opened again"))
            return false;
        if (got != word)
            keel_check_fail(run, "opened again, the board fills with %" PRIu32 ", not %" PRIu32, got, word);
        keel_queue_destroy(queue);
        keel_buffer_destroy(buffer);
        keel_device_close(device);
    }
    return true;
}

void keel_check_reopens(struct keel_check_run *run)
{
    keel_check_stages(run, "opening the board again", "3 openings of the board", open_again, NULL);
}
