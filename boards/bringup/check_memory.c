/* check_memory.c - level 3: every word of the board's memory is a word of its own and keeps what it is told.
 *
 * How much is tested: 95% of what the board says it has. Where host and device share memory, that is the
 * host's, and others live in it: there it is as much as the board file's limits.memory, or 256 MiB without
 * one, and a note at the verdict says how much of how much. */
#include "check_steps.h"
#include "memcheck.h"
#include <inttypes.h>
#include <keel/clock.h>

enum { REST_S = 20, REST_S_QUICK = 1 };
enum { SHARED_BYTES = 256 << 20, QUICK_BYTES = 16 << 20, PIECES = 8, SLOW_TIMES = 4, RESERVE_S = 5 };

static const double mib = 1024.0 * 1024.0;

static uint64_t bytes_to_test(struct keel_check_run *run)
{
    const struct keel_device_info *info = run->on.info;
    uint64_t bytes = info->memory_bytes / 20 * 19, most = SHARED_BYTES;
    if (info->unified_memory) {
        if (run->file->limits.memory_bytes != 0)
            most = run->file->limits.memory_bytes;
        if (bytes > most) {
            bytes = most;
            keel_check_note(run,
                            "only %.0f MiB of %.0f are tested: host and board share their memory, and the "
                            "rest is others'; limits.memory_bytes of board.conf says how much",
                            (double)bytes / mib, (double)info->memory_bytes / mib);
        }
    }
    if (run->options->quick && bytes > QUICK_BYTES) {
        bytes = QUICK_BYTES;
        keel_check_note(run, "quick: %.0f MiB are tested", (double)bytes / mib);
    }
    return bytes & ~UINT64_C(4095);
}

/* ---- 3.1 ----------------------------------------------------------------------------------------------- */

/* Is all of it there at once, each bank's share in its own? Each buffer is written to at its end, or drivers
 * give what they do not have. */
static void take_all(struct keel_check_run *run, uint64_t bytes)
{
    enum { BUFFERS_MAX = 256 };
    struct keel_buffer *buffers[BUFFERS_MAX];
    const struct keel_device_info *info = run->on.info;
    const uint64_t largest = info->max_buffer_bytes & ~UINT64_C(4095);
    const uint64_t share = bytes / info->memory_banks & ~UINT64_C(4095);
    uint64_t taken = 0, wanted = share * info->memory_banks;
    uint32_t count = 0;
    enum keel_status status = KEEL_OK;
    while (taken < wanted && count < BUFFERS_MAX) {
        uint64_t left = share - taken % share;
        struct keel_buffer_options part = {.bytes = left < largest ? left : largest,
                                           .bank = (uint32_t)(taken / share)};
        keel_check_progress(run, taken, wanted, "taking memory");
        status = keel_buffer_create_in(run->on.device, &part, &buffers[count]);
        if (status != KEEL_OK)
            break;
        count++;
        taken += part.bytes;
    }
    if (status != KEEL_OK)
        keel_check_fail(run, "%.0f MiB of %.0f could be had: %s", (double)taken / mib, (double)wanted / mib,
                        keel_detail());
    else if (taken < wanted)
        keel_check_cannot(run, "more than %d buffers of %.0f MiB: the largest buffer is too small",
                          BUFFERS_MAX, (double)largest / mib);
    while (count > 0)
        keel_buffer_destroy(buffers[--count]);
}

static void check_capacity(struct keel_check_run *run)
{
    const struct keel_device_info *info = run->on.info;
    const uint64_t wanted = run->file->limits.memory_bytes;
    if (info->memory_bytes < wanted)
        keel_check_fail(run, "%.0f MiB of memory; limits.memory of %s wants %.0f",
                        (double)info->memory_bytes / mib, run->file->id, (double)wanted / mib);
    if (info->max_buffer_bytes > info->memory_bytes || info->max_buffer_bytes == 0)
        keel_check_fail(run, "one buffer may have %" PRIu64 " bytes of a memory of %" PRIu64,
                        info->max_buffer_bytes, info->memory_bytes);
    if (!keel_check_failed(run))
        take_all(run, bytes_to_test(run));
}

/* ---- 3.2 ----------------------------------------------------------------------------------------------- */

static void show_pass(void *context, uint32_t done, uint32_t total, const char *pass)
{
    keel_check_progress(context, done, total, pass);
}

static void judge(struct keel_check_run *run, const struct keel_memcheck_result *result)
{
    double speed = result->bytes_per_s / 1e9, slowest = result->slowest_bytes_per_s / 1e9;
    if (result->by_copies)
        keel_check_note(run, "patterns came from the host: the board has no code of the memory check");
    keel_check_note(run, "%.0f MiB in %" PRIu32 " pieces, %" PRIu32 " banks",
                    (double)result->tested_bytes / mib, result->pieces, result->banks);
    if (result->tested_bytes < result->wanted_bytes)
        keel_check_fail(run, "%.0f MiB of %.0f could be had", (double)result->tested_bytes / mib,
                        (double)result->wanted_bytes / mib);
    if (result->faults > 0)
        keel_check_fail(run,
                        "%" PRIu64 " wrong words; the first, in %s, is at byte 0x%" PRIx64 ": 0x%08" PRIx32
                        " where 0x%08" PRIx32 " was written (bits 0x%08" PRIx32 ")",
                        result->faults, result->pass, result->address_bytes, result->got, result->wanted,
                        result->got ^ result->wanted);
    else if (slowest * SLOW_TIMES < speed)
        keel_check_fail(run,
                        "slow memory: %.2f GB/s from byte 0x%" PRIx64 " on, in bank %" PRIu32
                        ", and %.2f in the middle",
                        slowest, result->slowest_address_bytes, result->slowest_bank, speed);
    else
        keel_check_figure(run, "memory_check_gbs", "GB/s", KEEL_BETTER_MORE, &speed, 1);
}

static void check_patterns(struct keel_check_run *run)
{
    struct keel_memcheck_result result;
    const uint64_t bytes = bytes_to_test(run);
    struct keel_memcheck_options options = {.bytes = bytes,
                                            .piece_bytes = (bytes / PIECES + 4095) & ~UINT64_C(4095),
                                            .deadline_ns = run->deadline_ns - RESERVE_S * KEEL_NS_PER_S,
                                            .progress = show_pass,
                                            .context = run};
    if (keel_check_able(run, keel_memcheck_run(run->on.device, &options, &result), "memory check"))
        judge(run, &result);
}

/* ---- 3.3 ----------------------------------------------------------------------------------------------- */

/* Words, their complements, and nothing done with them for a while: cells that are not refreshed lose one
 * value. */
static void check_retention(struct keel_check_run *run)
{
    const uint64_t rest_ns = (run->options->quick ? REST_S_QUICK : REST_S) * KEEL_NS_PER_S;
    bool going = true;
    for (uint32_t round = 0; going && round < 2; round++) {
        for (uint32_t i = 0; i < KEEL_CHECK_BYTES; i++)
            run->wanted[i] = (uint8_t)~run->wanted[i];
        keel_check_progress(run, round, 2, "letting memory rest");
        going = keel_step_write(run, run->buffer, 0, run->wanted, KEEL_CHECK_BYTES);
        keel_sleep_until_ns(keel_deadline_after_ns(going ? rest_ns : 0));
        going = going && keel_step_read(run, run->buffer, 0, run->got, KEEL_CHECK_BYTES) &&
                keel_step_same(run, run->got, run->wanted, KEEL_CHECK_BYTES, "memory that rested");
    }
}

const struct keel_check keel_checks_memory[] = {
    {"3.1", "capacity", "the memory that the board says it has can be had at once", NULL, 60,
     KEEL_OPENS_DEVICE, check_capacity},
    {"3.2", "patterns", "every word has an address of its own and keeps every bit, and no bank is slow",
     "3.1", 600, KEEL_OPENS_DEVICE, check_patterns},
    {"3.3", "retention", "memory that nobody touches for a while keeps what it was told", "1.2", 120,
     KEEL_OPENS_BUFFERS, check_retention},
    {.id = NULL},
};
