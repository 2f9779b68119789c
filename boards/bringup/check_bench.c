/* check_bench.c - set-up and comparisons that the checks of calls share. */
#include "check_bench.h"
#include <inttypes.h>
#include <keel/memory.h>

bool keel_bench_ok(struct keel_bench *bench, enum keel_status status, const char *what)
{
    return keel_check_ok(bench->run, status, what);
}

bool keel_bench_finish(struct keel_bench *bench, struct keel_queue *queue, const char *what)
{
    return keel_bench_ok(bench, keel_queue_finish(queue, keel_check_deadline_ns(bench->run)), what);
}

bool keel_bench_begin(struct keel_bench *bench, struct keel_check_run *run)
{
    *bench = (struct keel_bench){.run = run, .device = keel_check_device(run)};
    if (bench->device == NULL ||
        !keel_bench_ok(bench, keel_alloc(1, KEEL_BENCH_BYTES, &bench->wanted), "host memory") ||
        !keel_bench_ok(bench, keel_alloc(1, KEEL_BENCH_BYTES, &bench->got), "host memory") ||
        !keel_bench_ok(bench, keel_queue_create(bench->device, &bench->queue), "a queue") ||
        !keel_bench_ok(bench, keel_buffer_create(bench->device, KEEL_BENCH_BYTES, &bench->buffer),
                       "a buffer of 1 MiB") ||
        !keel_bench_ok(bench, keel_buffer_create(bench->device, KEEL_BENCH_BYTES, &bench->other),
                       "a second buffer of 1 MiB"))
        return false;
    for (uint32_t i = 0; i < KEEL_BENCH_BYTES; i++)
        bench->wanted[i] = (uint8_t)keel_bench_mix(i);
    return true;
}

void keel_bench_end(struct keel_bench *bench)
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

bool keel_bench_same(struct keel_bench *bench, const uint8_t *got, const uint8_t *wanted, uint64_t bytes,
                     const char *what)
{
    for (uint64_t i = 0; i < bytes; i++)
        if (got[i] != wanted[i]) {
            keel_check_fail(bench->run, "%s: byte %" PRIu64 " of %" PRIu64 " is %02x, not %02x", what, i,
                            bytes, got[i], wanted[i]);
            return false;
        }
    return true;
}

bool keel_bench_write(struct keel_bench *bench, struct keel_buffer *buffer, uint64_t offset, const void *data,
                      uint64_t bytes)
{
    return keel_bench_ok(bench, keel_queue_write(bench->queue, buffer, offset, data, bytes, NULL, NULL),
                         "a write") &&
           keel_bench_finish(bench, bench->queue, "a write");
}

bool keel_bench_read(struct keel_bench *bench, struct keel_buffer *buffer, uint64_t offset, void *data,
                     uint64_t bytes)
{
    return keel_bench_ok(bench, keel_queue_read(bench->queue, buffer, offset, data, bytes, NULL, NULL),
                         "a read") &&
           keel_bench_finish(bench, bench->queue, "a read");
}

bool keel_bench_fill(struct keel_bench *bench, struct keel_buffer *buffer, uint64_t offset, uint64_t bytes,
                     uint32_t word)
{
    return keel_bench_ok(bench, keel_queue_fill(bench->queue, buffer, offset, bytes, word, NULL, NULL),
                         "a fill") &&
           keel_bench_finish(bench, bench->queue, "a fill");
}
