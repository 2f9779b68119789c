/* check_transfers.c - level 1: the bytes that a transfer names, all of them, and none besides.
 *
 * What is at fault shows by going round it: the reference is made of transfers of at most SMALL_BYTES, which
 * the round trip proves first (1.2; the other checks need it). A large write is read in small parts, a large
 * read follows small writes, a copy stands between small ones. */
#include "check_api.h"
#include "check_steps.h"
#include <inttypes.h>
#include <keel/memory.h>
#include <string.h>

enum {
    BYTES = KEEL_CHECK_BYTES,
    GUARD = 192, /* looked at before and behind each range */
    SMALL_BYTES = 64 << 10,
    LARGE_BYTES = 48 << 20,       /* the most that a large transfer moves */
    LARGE_BYTES_QUICK = 24 << 20, /* above 16 MiB, where some drivers' fields end */
};

/* ---- round trips ---- */

/* Host memory has guards too, and addresses that no alignment helps: what stands at `offset` is read to one,
 * and written back from another. */
static bool try_host_address(struct keel_check_run *run, uint32_t offset, uint32_t bytes)
{
    const uint32_t skew = offset % 64, before = GUARD + skew, all = before + bytes + GUARD;
    uint8_t *wanted = run->got + BYTES / 2, *from = run->wanted + BYTES / 2 + skew;
    memset(wanted, 0xa5, all);
    memcpy(wanted + before, run->wanted, bytes);
    memset(run->got, 0xa5, all);
    if (!keel_step_read(run, run->buffer, offset, run->got + before, bytes) ||
        !keel_step_same(run, run->got, wanted, all,
                        "%" PRIu32 " bytes read to a host address that is %" PRIu32
                        " behind a multiple of 64, and what is around them",
                        bytes, skew))
        return false;
    memcpy(from, run->wanted, bytes);
    memset(run->got, 0, bytes);
    return keel_step_fill(run, run->buffer, 0, BYTES, 0) &&
           keel_step_write(run, run->buffer, offset, from, bytes) &&
           keel_step_read(run, run->buffer, offset, run->got, bytes) &&
           keel_step_same(run, run->got, from, bytes,
                          "%" PRIu32 " bytes written from a host address that is %" PRIu32
                          " behind a multiple of 64",
                          bytes, skew);
}

/* A write between guards: what is read with them is the data, and the guards as they were. */
static bool try_round_trip(struct keel_check_run *run, uint32_t offset, uint32_t bytes)
{
    const uint32_t from = offset < GUARD ? 0 : offset - GUARD, all = offset - from + bytes + GUARD;
    uint8_t *around = run->got + BYTES / 2;
    memset(around, 0xa5, all);
    if (!keel_step_write(run, run->buffer, from, around, all) ||
        !keel_step_write(run, run->buffer, offset, run->wanted, bytes))
        return false;
    memcpy(around + (offset - from), run->wanted, bytes);
    memset(run->got, 0, all);
    if (!keel_step_read(run, run->buffer, from, run->got, all) ||
        !keel_step_same(run, run->got, around, all,
                        "%" PRIu32 " bytes written at %" PRIu32 ", read from %" PRIu32, bytes, offset, from))
        return false;
    memset(run->got, 0, bytes);
    return keel_step_read(run, run->buffer, offset, run->got, bytes) &&
           keel_step_same(run, run->got, run->wanted, bytes, "%" PRIu32 " bytes written and read at %" PRIu32,
                          bytes, offset) &&
           try_host_address(run, offset, bytes);
}

/* Offsets and sizes that no alignment helps; and the same place with other data again. */
void keel_check_round_trip(struct keel_check_run *run)
{
    static const uint32_t sizes[] = {1, 3, 4, 63, 64, 65, 4095, 4097, 65537, BYTES / 2 - 1024};
    static const uint32_t offsets[] = {0, 1, 4, 67, 131, 260};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (size_t o = 0; o < sizeof offsets / sizeof offsets[0]; o++) {
            for (uint32_t i = 0; i < 64; i++) /* other data each time */
                run->wanted[i] = (uint8_t)(run->wanted[i] + 1);
            if (!try_round_trip(run, offsets[o], sizes[s]))
                return;
        }
}

/* ---- small parts: the reference ---- */

static bool in_parts(struct keel_check_run *run, struct keel_buffer *buffer, uint64_t offset, uint8_t *data,
                     uint64_t bytes, bool write)
{
    struct keel_queue *queue = run->on.queue;
    for (uint64_t at = 0; at < bytes; at += SMALL_BYTES) {
        const uint64_t part = bytes - at < SMALL_BYTES ? bytes - at : SMALL_BYTES;
        enum keel_status status =
            write ? keel_queue_write(queue, buffer, offset + at, data + at, part, NULL, NULL)
                  : keel_queue_read(queue, buffer, offset + at, data + at, part, NULL, NULL);
        if (!keel_check_ok(run, status, write ? "a write" : "a read"))
            return false;
    }
    return keel_step_finish(run, queue, "transfers of small parts");
}

static bool put_in_parts(struct keel_check_run *run, struct keel_buffer *buffer, uint64_t offset,
                         uint8_t *data, uint64_t bytes)
{
    return in_parts(run, buffer, offset, data, bytes, true);
}

static bool get_in_parts(struct keel_check_run *run, struct keel_buffer *buffer, uint64_t offset,
                         uint8_t *data, uint64_t bytes)
{
    return in_parts(run, buffer, offset, data, bytes, false);
}

/* ---- copies within the device ---- */

/* One copy into bytes that are all 0x3c, and what is around it. */
static bool try_copy(struct keel_check_run *run, uint32_t from, uint32_t to, uint32_t bytes)
{
    const uint32_t before = to < GUARD ? to : GUARD, end = to + bytes,
                   behind = BYTES - end < GUARD ? BYTES - end : GUARD;
    uint8_t guard[GUARD];
    memset(guard, 0x3c, sizeof guard);
    memset(run->got, 0x3c, BYTES);
    if (!put_in_parts(run, run->other, 0, run->got, BYTES) ||
        !keel_check_ok(run,
                       keel_queue_copy(run->on.queue, run->buffer, from, run->other, to, bytes, NULL, NULL),
                       "a copy") ||
        !get_in_parts(run, run->other, 0, run->got, BYTES))
        return false;
    const struct {
        const uint8_t *got, *wanted;
        uint32_t bytes;
    } looks[] = {{run->got + to, run->wanted + from, bytes},
                 {run->got + to - before, guard, before},
                 {run->got + end, guard, behind}};
    for (int i = 0; i < 3; i++)
        if (!keel_step_same(run, looks[i].got, looks[i].wanted, looks[i].bytes,
                            "a copy of %" PRIu32 " bytes from %" PRIu32 " to %" PRIu32 ", and around it",
                            bytes, from, to))
            return false;
    return true;
}

void keel_check_copies(struct keel_check_run *run)
{
    static const struct {
        uint32_t from, to, bytes;
    } tries[] = {{257, 1031, BYTES / 2 + 3}, {0, 0, BYTES},   {64, 128, 4096}, {4, 12, 20}, {1, 3, 1},
                 {4096, 300, 65535},         {100, 4096, 129}};
    bool going = put_in_parts(run, run->buffer, 0, run->wanted, BYTES);
    for (size_t i = 0; going && i < sizeof tries / sizeof tries[0]; i++)
        going = try_copy(run, tries[i].from, tries[i].to, tries[i].bytes);
}

/* ---- fills ---- */

static void expect_fill(uint8_t *bytes, uint64_t offset, uint64_t count, uint32_t pattern)
{
    for (uint64_t i = 0; i < count; i += 4)
        memcpy(bytes + offset + i, &pattern, sizeof pattern);
}

void keel_check_fills(struct keel_check_run *run)
{
    static const struct {
        uint32_t offset, bytes;
    } tries[] = {{64, 4096}, {0, 4}, {4, 4}, {20, 60}, {128, 100}, {68, 4092}, {4100, 65540}, {0, BYTES}};
    for (uint32_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        const uint32_t pattern = keel_check_mix(i + 77);
        memset(run->wanted, 0xc3, BYTES);
        if (!put_in_parts(run, run->buffer, 0, run->wanted, BYTES) ||
            !keel_step_fill(run, run->buffer, tries[i].offset, tries[i].bytes, pattern) ||
            !get_in_parts(run, run->buffer, 0, run->got, BYTES))
            return;
        expect_fill(run->wanted, tries[i].offset, tries[i].bytes, pattern);
        if (!keel_step_same(run, run->got, run->wanted, BYTES,
                            "a fill of %" PRIu32 " bytes at %" PRIu32 ", and what is around it",
                            tries[i].bytes, tries[i].offset))
            return;
    }
}

/* ---- maps ---- */

static bool map(struct keel_check_run *run, struct keel_buffer *buffer, uint64_t offset, uint64_t bytes,
                enum keel_map how, void **out)
{
    struct keel_event *event = NULL;
    bool done =
        keel_check_ok(run, keel_queue_map(run->on.queue, buffer, offset, bytes, how, out, NULL, &event),
                      "a map") &&
        keel_check_ok(run, keel_event_wait(event, run->deadline_ns), "a map");
    keel_event_destroy(event);
    return done;
}

static bool unmap(struct keel_check_run *run, struct keel_buffer *buffer, void *at)
{
    return keel_check_ok(run, keel_queue_unmap(run->on.queue, buffer, at, NULL, NULL), "an unmap") &&
           keel_step_finish(run, run->on.queue, "an unmap");
}

/* Through a map that begins at `offset`: what the host writes, and what it reads. `data` are other bytes. */
static bool try_map(struct keel_check_run *run, struct keel_buffer *buffer, uint64_t offset, uint8_t *data,
                    uint64_t bytes, uint8_t *got)
{
    void *at = NULL;
    if (!map(run, buffer, offset, bytes, KEEL_MAP_WRITE, &at))
        return false;
    memcpy(at, data, keel_size(bytes));
    memset(got, 0, keel_size(bytes));
    if (!unmap(run, buffer, at) || !get_in_parts(run, buffer, offset, got, bytes) ||
        !keel_step_same(run, got, data, bytes, "%" PRIu64 " bytes at %" PRIu64 " written through a map",
                        bytes, offset) ||
        !map(run, buffer, offset, bytes, KEEL_MAP_READ, &at))
        return false;
    memcpy(got, at, keel_size(bytes));
    return unmap(run, buffer, at) &&
           keel_step_same(run, got, data, bytes, "%" PRIu64 " bytes at %" PRIu64 " read through a map", bytes,
                          offset);
}

void keel_check_maps(struct keel_check_run *run)
{
    static const struct {
        uint32_t offset, bytes;
    } tries[] = {{0, BYTES}, {4096, 8192}, {260, 1000}, {BYTES / 2, BYTES / 2}, {64, 4}};
    memset(run->got, 0x77, BYTES);
    bool going = put_in_parts(run, run->buffer, 0, run->got, BYTES);
    for (size_t i = 0; going && i < sizeof tries / sizeof tries[0]; i++)
        going =
            try_map(run, run->buffer, tries[i].offset, run->wanted + i, tries[i].bytes - i % 2 * 4, run->got);
}

/* ---- large transfers ---- */

struct large {
    struct keel_buffer *from, *to;
    uint8_t *wanted, *got;
    uint64_t bytes; /* of each */
};

static uint64_t large_bytes(const struct keel_check_run *run)
{
    const struct keel_device_info *info = run->on.info;
    uint64_t bytes = run->options->quick ? LARGE_BYTES_QUICK : LARGE_BYTES;
    /* Two on the board and two on the host: together half of what this process may have, where both are one
     * memory. */
    const uint64_t host = info->unified_memory ? keel_memory_limit_bytes() / 8 : UINT64_MAX;
    uint64_t share = info->memory_bytes / 8 * 3;
    share = share < host ? share : host;
    bytes = bytes < share ? bytes : share;
    bytes = bytes < info->max_buffer_bytes ? bytes : info->max_buffer_bytes;
    return bytes & ~UINT64_C(4095);
}

/* Other data in `wanted`, and in `got` none of them. */
static void spoil(const struct large *large, uint32_t seed)
{
    for (uint64_t i = 0; i < large->bytes; i += 4) {
        uint32_t word = keel_check_mix((uint32_t)(i / 4) + seed);
        memcpy(large->wanted + i, &word, sizeof word);
    }
    memset(large->got, 0xee, keel_size(large->bytes));
}

enum large_kind { LARGE_WRITE, LARGE_READ, LARGE_COPY, LARGE_FILL, LARGE_MAP, LARGE_KINDS };
static const char *const large_names[LARGE_KINDS] = {"large writes", "large reads", "large copies",
                                                     "large fills", "large maps"};

/* One transfer of `bytes` at `at`, and for copies to `to`, between transfers in small parts. */
static bool try_large(struct keel_check_run *run, const struct large *large, enum large_kind kind,
                      uint64_t at, uint64_t to, uint64_t bytes)
{
    enum { WORD = 0x5ca1ab1e };
    spoil(large, (uint32_t)kind + 1);
    switch (kind) {
    case LARGE_WRITE:
        return keel_step_fill(run, large->from, 0, 4096, 0) &&
               keel_step_write(run, large->from, at, large->wanted, bytes) &&
               get_in_parts(run, large->from, at, large->got, bytes) &&
               keel_step_same(run, large->got, large->wanted, bytes,
                              "one write of %" PRIu64 " bytes at %" PRIu64 ", read in parts", bytes, at);
    case LARGE_READ:
        return put_in_parts(run, large->from, at, large->wanted, bytes) &&
               keel_step_read(run, large->from, at, large->got, bytes) &&
               keel_step_same(run, large->got, large->wanted, bytes,
                              "one read of %" PRIu64 " bytes at %" PRIu64 ", written in parts", bytes, at);
    case LARGE_COPY:
        return put_in_parts(run, large->to, 0, large->got, large->bytes) &&
               put_in_parts(run, large->from, at, large->wanted, bytes) &&
               keel_check_ok(
                   run, keel_queue_copy(run->on.queue, large->from, at, large->to, to, bytes, NULL, NULL),
                   "a copy") &&
               get_in_parts(run, large->to, to, large->got, bytes) &&
               keel_step_same(run, large->got, large->wanted, bytes,
                              "one copy of %" PRIu64 " bytes from %" PRIu64 " to %" PRIu64, bytes, at, to);
    case LARGE_FILL:
        if (!put_in_parts(run, large->from, 0, large->wanted, large->bytes) ||
            !keel_step_fill(run, large->from, at, bytes, WORD) ||
            !get_in_parts(run, large->from, 0, large->got, large->bytes))
            return false;
        expect_fill(large->wanted, at, bytes, WORD);
        return keel_step_same(run, large->got, large->wanted, large->bytes,
                              "one fill of %" PRIu64 " bytes at %" PRIu64, bytes, at);
    default:
        return try_map(run, large->from, at, large->wanted + (at > 0 ? 4 : 0), bytes, large->got);
    }
}

void keel_check_large(struct keel_check_run *run)
{
    struct large large = {.bytes = large_bytes(run)};
    const uint64_t all = large.bytes, half = all / 2;
    const struct {
        enum large_kind kind;
        uint64_t at, to, bytes;
    } tries[] = {{LARGE_WRITE, 0, 0, all},
                 {LARGE_WRITE, 1, 0, half + 12345},
                 {LARGE_READ, 0, 0, all},
                 {LARGE_READ, 4097, 0, half + 333},
                 {LARGE_COPY, 0, 0, all},
                 {LARGE_COPY, all - half / 2, 0, half / 2},
                 {LARGE_COPY, 0, all - half / 2, half / 2},
                 {LARGE_COPY, 260, 8, all - 300},
                 {LARGE_FILL, 0, 0, all},
                 {LARGE_FILL, 36, 0, half + 52},
                 {LARGE_MAP, 0, 0, all},
                 {LARGE_MAP, half + 4096, 0, half - 8192}};
    keel_check_note(run, "transfers of up to %" PRIu64 " KiB", all >> 10);
    bool going = keel_check_ok(run, keel_check_new_memory(run, all, &large.wanted), "host memory") &&
                 keel_check_ok(run, keel_check_new_memory(run, all, &large.got), "host memory") &&
                 keel_check_ok(run, keel_check_new_buffer(run, all, &large.from), "a large buffer") &&
                 keel_check_ok(run, keel_check_new_buffer(run, all, &large.to), "a second large buffer");
    for (size_t i = 0; going && i < sizeof tries / sizeof tries[0]; i++) {
        keel_check_progress(run, tries[i].kind, LARGE_KINDS, large_names[tries[i].kind]);
        going = try_large(run, &large, tries[i].kind, tries[i].at, tries[i].to, tries[i].bytes);
    }
}
