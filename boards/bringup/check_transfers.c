/* check_transfers.c - level 1: the bytes that a transfer names, all of them, and none besides.
 *
 * What is at fault shows by going round it: the reference is made of transfers of at most SMALL_BYTES, which
 * the round trip proves first (1.2; the other checks need it). A large write is read in small parts, a large
 * read follows small writes, a copy stands between small ones. */
#include "check_bench.h"
#include <inttypes.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

enum {
    BYTES = KEEL_BENCH_BYTES,
    GUARD = 192, /* looked at before and behind each range */
    SMALL_BYTES = 64 << 10,
    LARGE_BYTES = 48 << 20,       /* the most that a large transfer moves */
    LARGE_BYTES_QUICK = 24 << 20, /* above 16 MiB, where some drivers' fields end */
};

/* ---- round trips ---- */

/* A write between guards: what is read with them is the data, and the guards as they were. */
static bool try_round_trip(struct keel_bench *bench, uint32_t offset, uint32_t bytes)
{
    const uint32_t from = offset < GUARD ? 0 : offset - GUARD, all = offset - from + bytes + GUARD;
    uint8_t *around = bench->got + BYTES / 2;
    memset(around, 0xa5, all);
    if (!keel_bench_write(bench, bench->buffer, from, around, all) ||
        !keel_bench_write(bench, bench->buffer, offset, bench->wanted, bytes))
        return false;
    memcpy(around + (offset - from), bench->wanted, bytes);
    memset(bench->got, 0, all);
    if (!keel_bench_read(bench, bench->buffer, from, bench->got, all))
        return false;
    char what[KEEL_CHECK_TEXT_BYTES];
    snprintf(what, sizeof what, "%" PRIu32 " bytes written at %" PRIu32 ", read from %" PRIu32, bytes, offset,
             from);
    if (!keel_bench_same(bench, bench->got, around, all, what))
        return false;
    memset(bench->got, 0, bytes);
    snprintf(what, sizeof what, "%" PRIu32 " bytes written and read at %" PRIu32, bytes, offset);
    return keel_bench_read(bench, bench->buffer, offset, bench->got, bytes) &&
           keel_bench_same(bench, bench->got, bench->wanted, bytes, what);
}

/* Offsets and sizes that no alignment helps; and the same place with other data again. */
void keel_check_round_trip(struct keel_bench *bench)
{
    static const uint32_t sizes[] = {1, 3, 4, 63, 64, 65, 4095, 4097, 65537, BYTES / 2 - 1024};
    static const uint32_t offsets[] = {0, 1, 4, 67, 131, 260};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (size_t o = 0; o < sizeof offsets / sizeof offsets[0]; o++) {
            for (uint32_t i = 0; i < 64; i++) /* other data each time */
                bench->wanted[i] = (uint8_t)(bench->wanted[i] + 1);
            if (!try_round_trip(bench, offsets[o], sizes[s]))
                return;
        }
}

/* ---- small parts: the reference ---- */

static bool in_parts(struct keel_bench *bench, struct keel_buffer *buffer, uint64_t offset, uint8_t *data,
                     uint64_t bytes, bool write)
{
    for (uint64_t at = 0; at < bytes; at += SMALL_BYTES) {
        uint64_t part = bytes - at < SMALL_BYTES ? bytes - at : SMALL_BYTES;
        enum keel_status status =
            write ? keel_queue_write(bench->queue, buffer, offset + at, data + at, part, NULL, NULL)
                  : keel_queue_read(bench->queue, buffer, offset + at, data + at, part, NULL, NULL);
        if (!keel_bench_ok(bench, status, write ? "a write" : "a read"))
            return false;
    }
    return keel_bench_finish(bench, bench->queue, "transfers of small parts");
}

/* ---- copies within the device ---- */

void keel_check_copies(struct keel_bench *bench)
{
    static const struct {
        uint32_t from, to, bytes;
    } tries[] = {{257, 1031, BYTES / 2 + 3}, {0, 0, BYTES},   {64, 128, 4096}, {4, 12, 20}, {1, 3, 1},
                 {4096, 300, 65535},         {100, 4096, 129}};
    if (!in_parts(bench, bench->buffer, 0, bench->wanted, BYTES, true))
        return;
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        char what[KEEL_CHECK_TEXT_BYTES];
        snprintf(what, sizeof what,
                 "a copy of %" PRIu32 " bytes from %" PRIu32 " to %" PRIu32 ", and around it", tries[i].bytes,
                 tries[i].from, tries[i].to);
        memset(bench->got, 0x3c, BYTES);
        if (!in_parts(bench, bench->other, 0, bench->got, BYTES, true) ||
            !keel_bench_ok(bench,
                           keel_queue_copy(bench->queue, bench->buffer, tries[i].from, bench->other,
                                           tries[i].to, tries[i].bytes, NULL, NULL),
                           "a copy") ||
            !in_parts(bench, bench->other, 0, bench->got, BYTES, false))
            return;
        const uint64_t end = (uint64_t)tries[i].to + tries[i].bytes;
        uint8_t guard[GUARD];
        memset(guard, 0x3c, sizeof guard);
        const uint64_t before = tries[i].to < GUARD ? tries[i].to : GUARD,
                       behind = BYTES - end < GUARD ? BYTES - end : GUARD;
        if (!keel_bench_same(bench, bench->got + tries[i].to, bench->wanted + tries[i].from, tries[i].bytes,
                             what) ||
            !keel_bench_same(bench, bench->got + tries[i].to - before, guard, before, what) ||
            !keel_bench_same(bench, bench->got + end, guard, behind, what))
            return;
    }
}

/* ---- fills ---- */

static void expect_fill(uint8_t *bytes, uint32_t offset, uint32_t count, uint32_t pattern)
{
    for (uint32_t i = 0; i < count; i += 4)
        memcpy(bytes + offset + i, &pattern, sizeof pattern);
}

void keel_check_fills(struct keel_bench *bench)
{
    static const struct {
        uint32_t offset, bytes;
    } tries[] = {{64, 4096}, {0, 4}, {4, 4}, {20, 60}, {128, 100}, {68, 4092}, {4100, 65540}, {0, BYTES}};
    for (uint32_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        const uint32_t pattern = keel_bench_mix(i + 77);
        char what[KEEL_CHECK_TEXT_BYTES];
        snprintf(what, sizeof what, "a fill of %" PRIu32 " bytes at %" PRIu32 ", and what is around it",
                 tries[i].bytes, tries[i].offset);
        memset(bench->wanted, 0xc3, BYTES);
        if (!in_parts(bench, bench->buffer, 0, bench->wanted, BYTES, true) ||
            !keel_bench_fill(bench, bench->buffer, tries[i].offset, tries[i].bytes, pattern) ||
            !in_parts(bench, bench->buffer, 0, bench->got, BYTES, false))
            return;
        expect_fill(bench->wanted, tries[i].offset, tries[i].bytes, pattern);
        if (!keel_bench_same(bench, bench->got, bench->wanted, BYTES, what))
            return;
    }
}

/* ---- maps ---- */

static bool map(struct keel_bench *bench, struct keel_buffer *buffer, uint64_t offset, uint64_t bytes,
                enum keel_map how, void **out)
{
    struct keel_event *event = NULL;
    bool done =
        keel_bench_ok(bench, keel_queue_map(bench->queue, buffer, offset, bytes, how, out, NULL, &event),
                      "a map") &&
        keel_bench_ok(bench, keel_event_wait(event, keel_check_deadline_ns(bench->run)), "a map");
    keel_event_destroy(event);
    return done;
}

static bool unmap(struct keel_bench *bench, struct keel_buffer *buffer, void *at)
{
    return keel_bench_ok(bench, keel_queue_unmap(bench->queue, buffer, at, NULL, NULL), "an unmap") &&
           keel_bench_finish(bench, bench->queue, "an unmap");
}

/* Through a map that begins at `offset`: what the host writes, and what it reads. `data` are other bytes. */
static bool try_map(struct keel_bench *bench, struct keel_buffer *buffer, uint64_t offset,
                    const uint8_t *data, uint64_t bytes, uint8_t *got)
{
    void *at = NULL;
    char what[KEEL_CHECK_TEXT_BYTES];
    snprintf(what, sizeof what, "%" PRIu64 " bytes at %" PRIu64 " written through a map", bytes, offset);
    if (!map(bench, buffer, offset, bytes, KEEL_MAP_WRITE, &at))
        return false;
    memcpy(at, data, keel_size(bytes));
    memset(got, 0, keel_size(bytes));
    if (!unmap(bench, buffer, at) || !in_parts(bench, buffer, offset, got, bytes, false) ||
        !keel_bench_same(bench, got, data, bytes, what) ||
        !map(bench, buffer, offset, bytes, KEEL_MAP_READ, &at))
        return false;
    memcpy(got, at, keel_size(bytes));
    snprintf(what, sizeof what, "%" PRIu64 " bytes at %" PRIu64 " read through a map", bytes, offset);
    return unmap(bench, buffer, at) && keel_bench_same(bench, got, data, bytes, what);
}

void keel_check_maps(struct keel_bench *bench)
{
    static const struct {
        uint32_t offset, bytes;
    } tries[] = {{0, BYTES}, {4096, 8192}, {260, 1000}, {BYTES / 2, BYTES / 2}, {64, 4}};
    memset(bench->got, 0x77, BYTES);
    if (!in_parts(bench, bench->buffer, 0, bench->got, BYTES, true))
        return;
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++)
        if (!try_map(bench, bench->buffer, tries[i].offset, bench->wanted + i, tries[i].bytes - i % 2 * 4,
                     bench->got))
            return;
}

/* ---- large transfers ---- */

struct large {
    struct keel_bench *bench;
    struct keel_buffer *from, *to;
    uint8_t *wanted, *got;
    uint64_t bytes; /* of each */
};

static uint64_t large_bytes(const struct keel_bench *bench)
{
    const struct keel_device_info *info = keel_device_info(bench->device);
    uint64_t bytes = keel_check_options(bench->run)->quick ? LARGE_BYTES_QUICK : LARGE_BYTES;
    /* There are two of them, and as much of the host's, which may be the same memory. */
    uint64_t share = info->memory_bytes / 8 * (info->unified_memory ? 1 : 3);
    bytes = bytes < share ? bytes : share;
    bytes = bytes < info->max_buffer_bytes ? bytes : info->max_buffer_bytes;
    return bytes & ~UINT64_C(4095);
}

static void spoil(struct large *large, uint32_t seed)
{
    for (uint64_t i = 0; i < large->bytes; i += 4) {
        uint32_t word = keel_bench_mix((uint32_t)(i / 4) + seed);
        memcpy(large->wanted + i, &word, sizeof word);
    }
    memset(large->got, 0xee, keel_size(large->bytes));
}

static bool large_write(struct large *large, uint64_t offset, uint64_t bytes)
{
    char what[KEEL_CHECK_TEXT_BYTES];
    spoil(large, 1);
    snprintf(what, sizeof what, "one write of %" PRIu64 " bytes at %" PRIu64 ", read in parts", bytes,
             offset);
    return keel_bench_fill(large->bench, large->from, 0, 4096, 0) &&
           keel_bench_write(large->bench, large->from, offset, large->wanted, bytes) &&
           in_parts(large->bench, large->from, offset, large->got, bytes, false) &&
           keel_bench_same(large->bench, large->got, large->wanted, bytes, what);
}

static bool large_read(struct large *large, uint64_t offset, uint64_t bytes)
{
    char what[KEEL_CHECK_TEXT_BYTES];
    spoil(large, 2);
    snprintf(what, sizeof what, "one read of %" PRIu64 " bytes at %" PRIu64 ", written in parts", bytes,
             offset);
    return in_parts(large->bench, large->from, offset, large->wanted, bytes, true) &&
           keel_bench_read(large->bench, large->from, offset, large->got, bytes) &&
           keel_bench_same(large->bench, large->got, large->wanted, bytes, what);
}

static bool large_copy(struct large *large, uint64_t from, uint64_t to, uint64_t bytes)
{
    char what[KEEL_CHECK_TEXT_BYTES];
    spoil(large, 3);
    snprintf(what, sizeof what, "one copy of %" PRIu64 " bytes from %" PRIu64 " to %" PRIu64, bytes, from,
             to);
    return in_parts(large->bench, large->to, 0, large->got, large->bytes, true) &&
           in_parts(large->bench, large->from, from, large->wanted, bytes, true) &&
           keel_bench_ok(
               large->bench,
               keel_queue_copy(large->bench->queue, large->from, from, large->to, to, bytes, NULL, NULL),
               "a copy") &&
           in_parts(large->bench, large->to, to, large->got, bytes, false) &&
           keel_bench_same(large->bench, large->got, large->wanted, bytes, what);
}

static bool large_fill(struct large *large, uint64_t offset, uint64_t bytes)
{
    char what[KEEL_CHECK_TEXT_BYTES];
    spoil(large, 4);
    snprintf(what, sizeof what, "one fill of %" PRIu64 " bytes at %" PRIu64, bytes, offset);
    if (!in_parts(large->bench, large->from, 0, large->wanted, large->bytes, true) ||
        !keel_bench_fill(large->bench, large->from, offset, bytes, 0x5ca1ab1e) ||
        !in_parts(large->bench, large->from, 0, large->got, large->bytes, false))
        return false;
    for (uint64_t i = offset; i < offset + bytes; i += 4)
        memcpy(large->wanted + i, &(const uint32_t){0x5ca1ab1e}, 4);
    return keel_bench_same(large->bench, large->got, large->wanted, large->bytes, what);
}

static void try_large(struct large *large)
{
    const uint64_t all = large->bytes, half = all / 2;
    struct keel_check_run *run = large->bench->run;
    keel_check_progress(run, 0, 5, "large writes");
    if (!large_write(large, 0, all) || !large_write(large, 1, half + 12345))
        return;
    keel_check_progress(run, 1, 5, "large reads");
    if (!large_read(large, 0, all) || !large_read(large, 4097, half + 333))
        return;
    keel_check_progress(run, 2, 5, "large copies");
    if (!large_copy(large, 0, 0, all) || !large_copy(large, all - half / 2, 0, half / 2) ||
        !large_copy(large, 0, all - half / 2, half / 2) || !large_copy(large, 260, 8, all - 300))
        return;
    keel_check_progress(run, 3, 5, "large fills");
    if (!large_fill(large, 0, all) || !large_fill(large, 36, half + 52))
        return;
    keel_check_progress(run, 4, 5, "large maps");
    spoil(large, 5);
    if (try_map(large->bench, large->from, 0, large->wanted, all, large->got))
        try_map(large->bench, large->from, half + 4096, large->wanted + 4, half - 8192, large->got);
}

void keel_check_large(struct keel_bench *bench)
{
    struct large large = {.bench = bench, .bytes = large_bytes(bench)};
    keel_check_note(bench->run, "transfers of up to %" PRIu64 " KiB", large.bytes >> 10);
    if (keel_bench_ok(bench, keel_alloc(1, large.bytes, &large.wanted), "host memory") &&
        keel_bench_ok(bench, keel_alloc(1, large.bytes, &large.got), "host memory") &&
        keel_bench_ok(bench, keel_buffer_create(bench->device, large.bytes, &large.from), "a large buffer") &&
        keel_bench_ok(bench, keel_buffer_create(bench->device, large.bytes, &large.to),
                      "a second large buffer"))
        try_large(&large);
    if (keel_check_failed(bench->run))
        return; /* what may still be written stays to the end of the process */
    if (large.from != NULL)
        keel_buffer_destroy(large.from);
    if (large.to != NULL)
        keel_buffer_destroy(large.to);
    keel_free(large.wanted);
    keel_free(large.got);
}
