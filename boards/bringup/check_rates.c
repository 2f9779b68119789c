/* check_rates.c - level 5: a board under load is as fast at the end as it was at the beginning.
 *
 * Products, small launches, writes and reads take turns for LOAD_S (LOAD_S_QUICK), and a piece of work of the
 * host beside them. A rate is that of the fastest turn in a window, an eighth of the time: what else the
 * machine does disturbs most turns of a window, seldom all. A board fails when a kind of work takes more than
 * TIMES_SLOWER as long as in the first window, by the clock and by the host's work of the same window, in
 * each of the last LAST_WINDOWS. A window of fewer than TURNS_LEAST turns may hold only disturbed ones:
 * then TIMES_SLOWER_FEW is tolerated. */
#include "check_steps.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <string.h>

enum {
    LOAD_S = 60,
    LOAD_S_QUICK = 5,
    WINDOWS = 8,
    LAST_WINDOWS = 2,
    TURNS_LEAST = 3,
    SIDE = 192,
    LAUNCHES = 200,
    BYTES = 1 << 20,
    HOST_STEPS = 1 << 20
};
#define TIMES_SLOWER     2.0
#define TIMES_SLOWER_FEW 4.0

enum work { WORK_PRODUCT, WORK_LAUNCHES, WORK_WRITE, WORK_READ, WORK_HOST, WORKS };

static const char *const work_names[WORKS] = {"a product", "200 small launches", "a write of 1 MiB",
                                              "a read of 1 MiB", "the host's work"};

struct rates {
    struct keel_check_run *run;
    struct keel_buffer *buffers[3]; /* BYTES each */
    uint8_t *input, *host, *first;  /* what is written, what the reads gave, and the first of them */
    double best_ms[WINDOWS][WORKS];
    uint32_t turns[WINDOWS];
    double first_ms[WINDOWS][WORKS]; /* the first turns one by one */
    uint32_t turn_count;
};

/* Lists of the check. */
enum { PRODUCT, LAUNCHES_AT_ONCE, ONE_LAUNCH };

static enum keel_status make_lists(struct rates *rates)
{
    struct keel_check_run *run = rates->run;
    const struct keel_gemm gemm = keel_device_fixture_square(SIDE, rates->buffers);
    const struct keel_fill fill = {.count = 1, .value = 1, .y = rates->buffers[2]};
    KEEL_TRY(keel_op_gemm(run->on.kernels, &gemm, &run->lists[PRODUCT]));
    for (uint32_t i = 0; i < LAUNCHES; i++)
        KEEL_TRY(keel_op_fill(run->on.kernels, &fill, &run->lists[LAUNCHES_AT_ONCE]));
    return keel_op_fill(run->on.kernels, &fill, &run->lists[ONE_LAUNCH]);
}

static bool rates_begin(struct rates *rates, struct keel_check_run *run)
{
    *rates = (struct rates){.run = run};
    for (int i = 0; i < 3; i++)
        if (!keel_check_able(run, keel_check_new_buffer(run, BYTES, &rates->buffers[i]),
                             "memory to measure with"))
            return false;
    if (!keel_check_able(run, keel_check_new_memory(run, BYTES, &rates->host), "host memory") ||
        !keel_check_able(run, keel_check_new_memory(run, BYTES, &rates->input), "host memory") ||
        !keel_check_able(run, keel_check_new_memory(run, BYTES, &rates->first), "host memory"))
        return false;
    for (uint32_t i = 0; i < BYTES / sizeof(float); i++) {
        const float x = (float)(i % 251) / 251.0f - 0.5f;
        memcpy(rates->input + (size_t)i * sizeof x, &x, sizeof x);
    }
    return keel_check_ok(run, make_lists(rates), "a launch");
}

static enum keel_status host_work(void)
{
    volatile uint32_t result = 1;
    uint32_t x = result;
    for (uint32_t i = 0; i < HOST_STEPS; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
    }
    result = x;
    return result == 0 ? KEEL_INVALID : KEEL_OK;
}

static enum keel_status do_work(struct rates *rates, enum work work)
{
    struct keel_check_run *run = rates->run;
    switch (work) {
    case WORK_PRODUCT:
        return keel_launch_list_run(&run->lists[PRODUCT], run->on.queue);
    case WORK_LAUNCHES:
        return keel_launch_list_run(&run->lists[LAUNCHES_AT_ONCE], run->on.queue);
    case WORK_WRITE:
        return keel_queue_write(run->on.queue, rates->buffers[1], 0, rates->input, BYTES, NULL, NULL);
    case WORK_READ:
        return keel_queue_read(run->on.queue, rates->buffers[2], 0, rates->host, BYTES, NULL, NULL);
    case WORK_HOST:
        return host_work();
    case WORKS:
        break;
    }
    return KEEL_INVALID;
}

/* One turn of all works, into its window. */
static bool turn(struct rates *rates, uint32_t window)
{
    for (uint32_t work = 0; work < WORKS; work++) {
        const uint64_t begun_ns = keel_now_ns();
        if (!keel_check_ok(rates->run, do_work(rates, (enum work)work), work_names[work]) ||
            !keel_step_finish(rates->run, rates->run->on.queue, work_names[work]))
            return false;
        const double ms = (double)(keel_now_ns() - begun_ns) / 1e6;
        double *best = &rates->best_ms[window][work];
        *best = *best == 0 || ms < *best ? ms : *best;
        if (rates->turn_count < WINDOWS)
            rates->first_ms[rates->turn_count][work] = ms;
    }
    rates->turns[window]++;
    if (rates->turn_count++ == 0)
        memcpy(rates->first, rates->host, BYTES);
    if (memcmp(rates->first, rates->host, BYTES) != 0) {
        keel_check_fail(rates->run,
                        "turn %" PRIu32
                        " of the same product, launches and read gives other bits than the first",
                        rates->turn_count);
        return false;
    }
    return true;
}

/* How much longer a work took in a window than in the first, by the clock or by the host's work: the smaller.
 */
static double times_slower(const struct rates *rates, uint32_t window, uint32_t work)
{
    const double *first = rates->best_ms[0], *now = rates->best_ms[window];
    const double by_clock = now[work] / first[work], by_host = by_clock / (now[WORK_HOST] / first[WORK_HOST]);
    return by_clock < by_host ? by_clock : by_host;
}

/* Where there were no more turns than windows each is a window; other windows without a turn are left out. */
static uint32_t settle_windows(struct rates *rates, bool *few)
{
    uint32_t count = 0;
    *few = rates->turn_count <= WINDOWS;
    if (*few) {
        memcpy(rates->best_ms, rates->first_ms, sizeof rates->best_ms);
        return rates->turn_count;
    }
    for (uint32_t window = 0; window < WINDOWS; window++) {
        if (rates->turns[window] == 0)
            continue;
        *few |= rates->turns[window] < TURNS_LEAST;
        memmove(rates->best_ms[count], rates->best_ms[window], sizeof rates->best_ms[0]);
        rates->turns[count++] = rates->turns[window];
    }
    memset(&rates->turns[count], 0, (WINDOWS - count) * sizeof rates->turns[0]);
    return count;
}

/* Whether every work is as fast at last as at first. The last judgement tells, another only asks. */
static bool judge(struct rates *rates, bool last)
{
    bool few, steady = true;
    const uint32_t count = settle_windows(rates, &few);
    if (count <= LAST_WINDOWS) {
        if (last)
            keel_check_note(rates->run, "too slow to be judged: %" PRIu32 " turns of work in the time",
                            count);
        return true;
    }
    const double tolerated = few ? TIMES_SLOWER_FEW : TIMES_SLOWER;
    for (uint32_t work = 0; work < WORK_HOST; work++) {
        double least = 1e9;
        for (uint32_t window = count - LAST_WINDOWS; window < count; window++) {
            double slower = times_slower(rates, window, work);
            least = slower < least ? slower : least;
        }
        steady = steady && least <= tolerated;
        if (!last)
            continue;
        keel_check_note(rates->run, "%s: %.3f ms at first, %.2f times that at last", work_names[work],
                        rates->best_ms[0][work], least);
        if (least > tolerated)
            keel_check_fail(
                rates->run,
                "%s slows down under load: %.3f ms at first, and %.1f times that at last (%.1f is "
                "tolerated)",
                work_names[work], rates->best_ms[0][work], least, tolerated);
    }
    return steady;
}

/* What compiles at the first launch is no measure. */
static bool warm(struct rates *rates)
{
    struct keel_check_run *run = rates->run;
    return keel_step_write(run, rates->buffers[0], 0, rates->input, BYTES) &&
           keel_step_write(run, rates->buffers[1], 0, rates->input, BYTES) &&
           keel_check_ok(run, keel_launch_list_run(&run->lists[ONE_LAUNCH], run->on.queue),
                         "a first launch") &&
           keel_check_ok(run, keel_launch_list_run(&run->lists[PRODUCT], run->on.queue), "a first launch") &&
           keel_step_finish(run, run->on.queue, "a first launch");
}

/* Work for `all_ns`, into the windows from `window` on. */
static bool load(struct rates *rates, uint32_t window, uint64_t all_ns)
{
    const uint64_t begun_ns = keel_now_ns();
    const uint32_t begun = window, turns = rates->turn_count;
    for (uint64_t past_ns = 0; past_ns < all_ns || rates->turn_count - turns <= LAST_WINDOWS;
         past_ns = keel_now_ns() - begun_ns) {
        window = begun + (uint32_t)(past_ns * (WINDOWS - begun) / all_ns);
        window = window < WINDOWS ? window : WINDOWS - 1;
        keel_check_progress(rates->run, window, WINDOWS, "work without a pause");
        if (!turn(rates, window))
            return false;
    }
    return true;
}

/* A board that has become slow stays so; a machine that was busy for some seconds does not. So the work goes
 * on once more before a board fails, and is compared with the same first window. */
static void check_steady_rates(struct keel_check_run *run)
{
    static struct rates rates;
    if (!rates_begin(&rates, run) || !warm(&rates))
        return;
    const uint64_t all_ns = (run->options->quick ? LOAD_S_QUICK : LOAD_S) * KEEL_NS_PER_S;
    if (!load(&rates, 0, all_ns))
        return;
    if (!judge(&rates, false)) {
        memset(rates.best_ms[1], 0, sizeof rates.best_ms - sizeof rates.best_ms[0]);
        memset(&rates.turns[1], 0, sizeof rates.turns - sizeof rates.turns[0]);
        if (!load(&rates, 1, all_ns))
            return;
    }
    judge(&rates, true);
}

const struct keel_check keel_checks_rates[] = {
    {"5.6", "steady-rates", "under load the board is as fast and as right at the end as at the beginning",
     "2.1", 180, KEEL_OPENS_KERNELS, check_steady_rates},
    {.id = NULL}};
