/* check_lasting.c - level 1: what is given back is there again, and what is done leaves nothing behind.
 *
 * Keel's own counters say nothing of a driver. The evidence here is the board's refusal, once more memory was
 * created and destroyed than it has, and the resident memory of the process, which grows with each command
 * where a driver loses some. */
#include "check_bench.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <stdio.h>
#include <unistd.h>

enum {
    TIMES_OVER = 2, /* how often the board's memory is had */
    CYCLE_S = 10,   /* and for how long this goes on at most */
    CYCLE_S_QUICK = 3,
    SHARED_BYTES = 64 << 20, /* the most at a time where host and board share memory */
    SHARED_TIMES = 16,
    SMALL_BUFFERS = 400,
    LIVE_BUFFERS = 1000,

    STAGE_COMMANDS = 400,
    TRANSFER_BYTES = 64 << 10,
    OPENINGS = 3
};
/* What a stage may add to the process: more, in each stage after the first, is a leak. */
#define STAGE_BYTES (UINT64_C(8) << 20)

/* Resident memory that no file is behind, 0 where the system does not tell. */
uint64_t keel_bench_resident_bytes(void)
{
    unsigned long long size = 0, resident = 0, shared = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL)
        return 0;
    int read = fscanf(file, "%llu %llu %llu", &size, &resident, &shared);
    fclose(file);
    return read == 3 && resident > shared ? (uint64_t)(resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE)
                                          : 0;
}

/* One buffer of the board's largest, or small, created and destroyed. */
static bool cycle(struct keel_bench *bench, uint64_t bytes, uint64_t had)
{
    struct keel_buffer *buffer = NULL;
    enum keel_status status = keel_buffer_create(bench->device, bytes, &buffer);
    if (status != KEEL_OK) {
        keel_check_fail(bench->run,
                        "memory does not come back: %" PRIu64
                        " MiB were created and destroyed one after another, "
                        "and the next %" PRIu64 " bytes are refused: %s",
                        had >> 20, bytes, keel_detail());
        return false;
    }
    keel_buffer_destroy(buffer);
    return true;
}

void keel_check_gives_back(struct keel_bench *bench)
{
    const struct keel_device_info *info = keel_device_info(bench->device);
    const bool quick = keel_check_options(bench->run)->quick;
    uint64_t bytes =
        info->max_buffer_bytes < info->memory_bytes / 2 ? info->max_buffer_bytes : info->memory_bytes / 2;
    uint64_t wanted = info->memory_bytes * TIMES_OVER;
    if (info->unified_memory) { /* the host's: others live in it, and the process shows what is lost */
        bytes = bytes < SHARED_BYTES ? bytes : SHARED_BYTES;
        wanted = wanted < SHARED_TIMES * bytes ? wanted : SHARED_TIMES * bytes;
    }
    bytes = bytes / 2 & ~UINT64_C(4095);
    const uint64_t deadline_ns =
        keel_deadline_after_ns((uint64_t)(quick ? CYCLE_S_QUICK : CYCLE_S) * KEEL_NS_PER_S);
    const uint64_t before = keel_device_stats(bench->device).live_bytes;
    uint64_t had = 0;
    for (uint32_t i = 0; i < SMALL_BUFFERS; i++, had += 4096)
        if (!cycle(bench, 4096, had))
            return;
    const uint64_t resident = keel_bench_resident_bytes();
    while (had < wanted && keel_remaining_ns(deadline_ns) > 0) {
        keel_check_progress(bench->run, had, wanted, "creating and destroying buffers");
        if (!cycle(bench, bytes, had))
            return;
        had += bytes;
    }
    const uint64_t grown =
        keel_bench_resident_bytes() > resident ? keel_bench_resident_bytes() - resident : 0;
    if (had < wanted)
        keel_check_note(bench->run, "%" PRIu64 " of %" PRIu64 " MiB were had, in the time that there was",
                        had >> 20, wanted >> 20);
    if (grown > had / 4 && grown > STAGE_BYTES + bytes)
        keel_check_fail(bench->run,
                        "memory does not come back: the process grew by %" PRIu64 " MiB while %" PRIu64
                        " were created and destroyed",
                        grown >> 20, had >> 20);
    if (keel_device_stats(bench->device).live_bytes != before)
        keel_check_fail(bench->run, "%" PRIu64 " bytes were live before, %" PRIu64 " after", before,
                        keel_device_stats(bench->device).live_bytes);
}

/* ---- many at a time ---- */

void keel_check_many_buffers(struct keel_bench *bench)
{
    struct keel_buffer *buffers[LIVE_BUFFERS] = {NULL};
    const uint64_t memory = keel_device_info(bench->device)->memory_bytes / 2;
    const uint32_t count = memory / 4096 < LIVE_BUFFERS ? (uint32_t)(memory / 4096) : LIVE_BUFFERS;
    uint32_t made = 0;
    for (; made < count; made++) {
        const uint32_t word = keel_bench_mix(made);
        enum keel_status status = keel_buffer_create(bench->device, 4096, &buffers[made]);
        if (status != KEEL_OK) {
            keel_check_fail(bench->run, "%" PRIu32 " buffers of 4096 bytes, and no more: %s", made,
                            keel_detail());
            break;
        }
        if (!keel_bench_ok(bench, keel_queue_fill(bench->queue, buffers[made], 0, 4096, word, NULL, NULL),
                           "a fill"))
            return;
    }
    for (uint32_t i = 0; i < made; i++) {
        uint32_t got = 0;
        if (!keel_bench_read(bench, buffers[i], 4092, &got, 4))
            return;
        if (got != keel_bench_mix(i))
            keel_check_fail(bench->run,
                            "of %" PRIu32 " buffers number %" PRIu32 " has %08" PRIx32 ", not %08" PRIx32,
                            made, i, got, keel_bench_mix(i));
    }
    while (made > 0)
        keel_buffer_destroy(buffers[--made]);
}

/* ---- what stays behind in the process ---- */

/* Fails where each stage after the first one left more than STAGE_BYTES behind. */
void keel_bench_judge_stages(struct keel_check_run *run, const uint64_t resident[KEEL_BENCH_STAGES + 1],
                             const char *what)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 2; i <= KEEL_BENCH_STAGES; i++) {
        uint64_t grown = resident[i] > resident[i - 1] ? resident[i] - resident[i - 1] : 0;
        least = grown < least ? grown : least;
    }
    if (least > STAGE_BYTES)
        keel_check_fail(run, "memory of the process is lost: at least %" PRIu64 " KiB with every %s",
                        least >> 10, what);
}

static bool do_commands(struct keel_bench *bench)
{
    for (uint32_t i = 0; i < STAGE_COMMANDS; i++) {
        struct keel_event *event = NULL;
        enum keel_status status =
            keel_queue_write(bench->queue, bench->buffer, 0, bench->wanted, TRANSFER_BYTES, NULL, &event);
        keel_event_destroy(event);
        if (status == KEEL_OK)
            status = keel_queue_fill(bench->queue, bench->other, 0, TRANSFER_BYTES, i, NULL, NULL);
        if (status == KEEL_OK)
            status =
                keel_queue_copy(bench->queue, bench->buffer, 0, bench->other, 0, TRANSFER_BYTES, NULL, NULL);
        if (status == KEEL_OK)
            status = keel_queue_read(bench->queue, bench->other, 0, bench->got, TRANSFER_BYTES, NULL, NULL);
        if (!keel_bench_ok(bench, status, "commands") || !keel_bench_finish(bench, bench->queue, "commands"))
            return false;
    }
    struct keel_queue *queue = NULL;
    for (uint32_t i = 0; i < 20; i++) {
        if (!keel_bench_ok(bench, keel_queue_create(bench->device, &queue), "a queue"))
            return false;
        keel_queue_destroy(queue);
    }
    return true;
}

void keel_check_steady(struct keel_bench *bench)
{
    uint64_t resident[KEEL_BENCH_STAGES + 1] = {keel_bench_resident_bytes()};
    for (uint32_t i = 1; i <= KEEL_BENCH_STAGES; i++) {
        keel_check_progress(bench->run, i, KEEL_BENCH_STAGES, "commands again and again");
        if (!do_commands(bench))
            return;
        resident[i] = keel_bench_resident_bytes();
    }
    keel_bench_judge_stages(bench->run, resident, "400 writes, fills, copies and reads and 20 queues");
}

/* The same board a second time beside the first, and after it was closed. */
void keel_check_reopens(struct keel_bench *bench)
{
    const char *selector = keel_device_info(bench->device)->selector;
    uint64_t resident[KEEL_BENCH_STAGES + 1] = {keel_bench_resident_bytes()};
    for (uint32_t i = 0; i < KEEL_BENCH_STAGES * OPENINGS; i++) {
        struct keel_bench other = {.run = bench->run};
        uint32_t got = 0;
        keel_check_progress(bench->run, i, KEEL_BENCH_STAGES * OPENINGS, "opening the board again");
        if (!keel_bench_ok(bench, keel_device_open(selector, NULL, &other.device),
                           "the board opened again") ||
            !keel_bench_ok(bench, keel_queue_create(other.device, &other.queue),
                           "a queue of a board opened again") ||
            !keel_bench_ok(bench, keel_buffer_create(other.device, 4096, &other.buffer),
                           "a buffer of a board opened again") ||
            !keel_bench_fill(&other, other.buffer, 0, 4096, i + 1) ||
            !keel_bench_read(&other, other.buffer, 4092, &got, 4))
            return;
        if (got != i + 1)
            keel_check_fail(bench->run, "opened again, the board fills with %" PRIu32 ", not %" PRIu32, got,
                            i + 1);
        keel_queue_destroy(other.queue);
        keel_buffer_destroy(other.buffer);
        keel_device_close(other.device);
        resident[i / OPENINGS + 1] = keel_bench_resident_bytes();
    }
    keel_bench_judge_stages(bench->run, resident, "3 openings of the board");
}
