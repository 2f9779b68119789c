/* check_rates.c - level 5: a board under load is as fast at the end as it was at the beginning.
 *
 * Products, small launches, writes and reads take turns for LOAD_S (LOAD_S_QUICK), and a piece of work of the
 * host beside them. A rate is that of the fastest turn in a window, an eighth of the time: what else the
 * machine does disturbs most turns of a window, seldom all. A board fails when a kind of work takes more than
 * TIMES_SLOWER as long as in the first window, by the clock and by the host's work of the same window, in
 * each of the last LAST_WINDOWS. Where a window has few turns, one that is disturbed may stand for it, and
 * TIMES_SLOWER_FEW is tolerated. */
#include "check_tables.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/kernels.h>
#include <keel/memory.h>
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
    struct keel_device *device;
    struct keel_kernels *kernels;
    struct keel_queue *queue;
    struct keel_buffer *a, *b, *c;
    struct keel_launch_list product, launches, launch;
    uint8_t *input, *host, *first; /* what is written, what the reads gave, and the first of them */
    double best_ms[WINDOWS][WORKS];
    uint32_t turns[WINDOWS];
    double first_ms[WINDOWS][WORKS]; /* the first turns one by one */
    uint32_t turn_count;
};

static bool rates_begin(struct rates *rates, struct keel_check_run *run)
{
    *rates = (struct rates){.run = run, .device = keel_check_device(run)};
    if (rates->device == NULL || (rates->kernels = keel_check_kernels(run)) == NULL ||
        !keel_check_ok(run, keel_queue_create(rates->device, &rates->queue), "a queue") ||
        !keel_check_able(run, keel_buffer_create(rates->device, BYTES, &rates->a),
                         "memory to measure with") ||
        !keel_check_able(run, keel_buffer_create(rates->device, BYTES, &rates->b),
                         "memory to measure with") ||
        !keel_check_able(run, keel_buffer_create(rates->device, BYTES, &rates->c),
                         "memory to measure with") ||
        !keel_check_able(run, keel_alloc_aligned(KEEL_PAGE_BYTES, BYTES, &rates->host), "host memory") ||
        !keel_check_able(run, keel_alloc_aligned(KEEL_PAGE_BYTES, BYTES, &rates->input), "host memory") ||
        !keel_check_able(run, keel_alloc(1, BYTES, &rates->first), "host memory"))
        return false;
    for (uint32_t i = 0; i < BYTES / sizeof(float); i++) {
        const float x = (float)(i % 251) / 251.0f - 0.5f;
        memcpy(rates->input + (size_t)i * sizeof x, &x, sizeof x);
    }
    const struct keel_gemm gemm = {.m = SIDE,
                                   .n = SIDE,
                                   .k = SIDE,
                                   .batch = 1,
                                   .lda = SIDE,
                                   .ldb = SIDE,
                                   .ldc = SIDE,
                                   .a = rates->a,
                                   .b = rates->b,
                                   .c = rates->c};
    const struct keel_fill fill = {.count = 1, .value = 1, .y = rates->c};
    enum keel_status status = keel_op_gemm(rates->kernels, &gemm, &rates->product);
    for (uint32_t i = 0; i < LAUNCHES && status == KEEL_OK; i++)
        status = keel_op_fill(rates->kernels, &fill, &rates->launches);
    if (status == KEEL_OK)
        status = keel_op_fill(rates->kernels, &fill, &rates->launch);
    return keel_check_ok(run, status, "a launch");
}

static void rates_end(struct rates *rates)
{
    keel_launch_list_fini(&rates->product);
    keel_launch_list_fini(&rates->launches);
    keel_launch_list_fini(&rates->launch);
    if (rates->queue != NULL)
        keel_queue_destroy(rates->queue);
    struct keel_buffer *buffers[] = {rates->a, rates->b, rates->c};
    for (int i = 0; i < 3; i++)
        if (buffers[i] != NULL)
            keel_buffer_destroy(buffers[i]);
    keel_free(rates->host);
    keel_free(rates->first);
    keel_free(rates->input);
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
    switch (work) {
    case WORK_PRODUCT:
        return keel_launch_list_run(&rates->product, rates->queue);
    case WORK_LAUNCHES:
        return keel_launch_list_run(&rates->launches, rates->queue);
    case WORK_WRITE:
        return keel_queue_write(rates->queue, rates->b, 0, rates->input, BYTES, NULL, NULL);
    case WORK_READ:
        return keel_queue_read(rates->queue, rates->c, 0, rates->host, BYTES, NULL, NULL);
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
        enum keel_status status = do_work(rates, (enum work)work);
        if (status == KEEL_OK)
            status = keel_queue_finish(rates->queue, keel_check_deadline_ns(rates->run));
        if (!keel_check_ok(rates->run, status, work_names[work]))
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
        count++;
    }
    return count;
}

static void judge(struct rates *rates)
{
    bool few;
    const uint32_t count = settle_windows(rates, &few);
    if (count <= LAST_WINDOWS) {
        keel_check_note(rates->run, "too slow to be judged: %" PRIu32 " turns of work in the time", count);
        return;
    }
    const double tolerated = few ? TIMES_SLOWER_FEW : TIMES_SLOWER;
    for (uint32_t work = 0; work < WORK_HOST; work++) {
        double least = 1e9;
        for (uint32_t window = count - LAST_WINDOWS; window < count; window++) {
            double slower = times_slower(rates, window, work);
            least = slower < least ? slower : least;
        }
        keel_check_note(rates->run, "%s: %.3f ms at first, %.2f times that at last", work_names[work],
                        rates->best_ms[0][work], least);
        if (least > tolerated)
            keel_check_fail(
                rates->run,
                "%s slows down under load: %.3f ms at first, and %.1f times that at last (%.1f is "
                "tolerated)",
                work_names[work], rates->best_ms[0][work], least, tolerated);
    }
}

/* What compiles at the first launch is no measure. */
static bool warm(struct rates *rates)
{
    enum keel_status status = keel_queue_write(rates->queue, rates->a, 0, rates->input, BYTES, NULL, NULL);
    if (status == KEEL_OK)
        status = keel_queue_write(rates->queue, rates->b, 0, rates->input, BYTES, NULL, NULL);
    if (status == KEEL_OK)
        status = keel_launch_list_run(&rates->launch, rates->queue);
    if (status == KEEL_OK)
        status = keel_launch_list_run(&rates->product, rates->queue);
    if (status == KEEL_OK)
        status = keel_queue_finish(rates->queue, keel_check_deadline_ns(rates->run));
    return keel_check_ok(rates->run, status, "a first launch");
}

static void check_steady_rates(struct keel_check_run *run)
{
    struct rates rates;
    if (rates_begin(&rates, run) && warm(&rates)) {
        const uint64_t all_ns =
            (uint64_t)(keel_check_options(run)->quick ? LOAD_S_QUICK : LOAD_S) * KEEL_NS_PER_S;
        const uint64_t begun_ns = keel_now_ns();
        uint64_t now_ns = begun_ns;
        bool going = true;
        while (going && (now_ns - begun_ns < all_ns || rates.turn_count <= LAST_WINDOWS)) {
            uint32_t window = (uint32_t)((now_ns - begun_ns) * WINDOWS / all_ns);
            window = window < WINDOWS ? window : WINDOWS - 1;
            keel_check_progress(run, window, WINDOWS, "work without a pause");
            going = turn(&rates, window);
            now_ns = keel_now_ns();
        }
        if (going)
            judge(&rates);
    }
    rates_end(&rates);
}

const struct keel_check keel_checks_rates[] = {
    {"5.6", "steady-rates", "under load the board is as fast and as right at the end as at the beginning",
     "2.1", 180, false, check_steady_rates},
    {.id = NULL}};
