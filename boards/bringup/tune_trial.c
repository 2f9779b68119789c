/* tune_trial.c - one value of a tunable against the settings that hold, in a process of its own: measured in
 * turns, and its kernels held against the golden hashes.
 *
 * A value may make a driver die or hang: then its process does, and the search goes on. Order and answer are
 * one struct in memory that both processes have open; no answer is there until the trial has come to its end.
 */
#include "tune_trial.h"
#include "device_fixture.h"
#include <errno.h>
#include <inttypes.h>
#include <keel/attention_ops.h>
#include <keel/board.h>
#include <keel/clock.h>
#include <keel/golden.h>
#include <keel/process.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define STEP_LIMIT_NS  (60 * KEEL_NS_PER_S)
#define TRIAL_LIMIT_NS (60 * KEEL_NS_PER_S)
/* As long as the longest that came to its end, on a machine as busy as this one is. */
#define TRIAL_TIMES 10
enum { ROUNDS = 11, MEDIAN = ROUNDS / 2, BUFFERS = 4, COUNT = 1 << 20, SIDE = 512, ORDER_FD = 3 };

/* Kernels with some settings, and the list of the workload on them. */
struct variant {
    struct keel_kernels *kernels;
    struct keel_launch_list list;
    uint64_t times_ns[ROUNDS]; /* ascending once it is measured */
};

struct bench {
    struct keel_board *board;
    struct keel_queue *queue;
    struct keel_buffer *buffers[BUFFERS]; /* COUNT floats each */
};

/* ---- what is measured ---- */

static enum keel_status list_gemm(struct bench *bench, struct variant *variant)
{
    for (int t = 0; t < 3; t++) { /* forward, and the two products of the gradient */
        struct keel_gemm op = keel_device_fixture_square(SIDE, bench->buffers);
        op.transpose_a = t == 1;
        op.transpose_b = t == 2;
        KEEL_TRY(keel_op_gemm(variant->kernels, &op, &variant->list));
    }
    return KEEL_OK;
}

static enum keel_status list_attention(struct bench *bench, struct variant *variant)
{
    const struct keel_attention op = {.batch = 1,
                                      .tokens = 512,
                                      .heads = 8,
                                      .head_width = 64,
                                      .qkv = bench->buffers[0],
                                      .out = bench->buffers[1],
                                      .stats = bench->buffers[2],
                                      .workspace = bench->buffers[3]};
    return keel_op_attention(variant->kernels, &op, &variant->list);
}

static enum keel_status list_rows(struct bench *bench, struct variant *variant)
{
    const struct keel_activation gelu = {
        .count = COUNT, .kind = KEEL_GELU, .x = bench->buffers[0], .y = bench->buffers[1]};
    const struct keel_add add = {
        .count = COUNT, .a = bench->buffers[0], .b = bench->buffers[1], .y = bench->buffers[2]};
    const struct keel_layernorm norm = {.rows = COUNT / SIDE,
                                        .n = SIDE,
                                        .epsilon = 1e-5F,
                                        .x = bench->buffers[0],
                                        .gamma = bench->buffers[1],
                                        .y = bench->buffers[2],
                                        .rstd = bench->buffers[3]};
    KEEL_TRY(keel_op_activation(variant->kernels, &gelu, &variant->list));
    KEEL_TRY(keel_op_add(variant->kernels, &add, &variant->list));
    return keel_op_layernorm(variant->kernels, &norm, &variant->list);
}

/* The launches that a tunable shows in. */
static enum keel_status list_for(struct bench *bench, const char *tunable, struct variant *variant)
{
    if (strncmp(tunable, "gemm.", 5) == 0)
        return list_gemm(bench, variant);
    if (strncmp(tunable, "attention.", 10) == 0)
        return list_attention(bench, variant);
    KEEL_TRY(list_rows(bench, variant));
    return strncmp(tunable, "launch.", 7) == 0 ? KEEL_OK : list_gemm(bench, variant);
}

static void variant_fini(struct variant *variant)
{
    keel_launch_list_fini(&variant->list);
    keel_kernels_destroy(variant->kernels);
}

static enum keel_status variant_init(struct bench *bench, const char *tunable,
                                     const struct keel_setting *settings, uint32_t count,
                                     struct variant *variant)
{
    const struct keel_kernels_options with = {.settings = settings, .setting_count = count};
    KEEL_TRY(keel_kernels_create_with(keel_board_device(bench->board), &with, &variant->kernels));
    return list_for(bench, tunable, variant);
}

static enum keel_status all_golden(struct bench *bench, struct keel_kernels *kernels)
{
    for (uint32_t i = 0; i < keel_golden_count(KEEL_CANONICAL); i++) {
        struct keel_golden_result result;
        KEEL_TRY(keel_golden_run(kernels, bench->queue, i, keel_deadline_after_ns(STEP_LIMIT_NS), &result));
        if (!result.matches || !result.intact)
            return keel_fail(KEEL_MISMATCH, "golden case %s is wrong with it",
                             keel_golden_get(KEEL_CANONICAL, i).name);
    }
    return KEEL_OK;
}

static enum keel_status run_once(struct bench *bench, struct variant *variant, uint64_t *out_ns)
{
    const uint64_t began_ns = keel_now_ns();
    KEEL_TRY(keel_launch_list_run(&variant->list, bench->queue));
    KEEL_TRY(keel_queue_finish(bench->queue, keel_deadline_after_ns(STEP_LIMIT_NS)));
    *out_ns = keel_now_ns() - began_ns;
    return KEEL_OK;
}

static int ascending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Both in turns, once before that for what the first launch costs. */
static enum keel_status measure(struct bench *bench, struct variant *one, struct variant *other)
{
    KEEL_TRY(run_once(bench, one, &one->times_ns[0]));
    KEEL_TRY(run_once(bench, other, &other->times_ns[0]));
    for (int r = 0; r < ROUNDS; r++) {
        KEEL_TRY(run_once(bench, one, &one->times_ns[r]));
        KEEL_TRY(run_once(bench, other, &other->times_ns[r]));
    }
    qsort(one->times_ns, ROUNDS, sizeof one->times_ns[0], ascending);
    qsort(other->times_ns, ROUNDS, sizeof other->times_ns[0], ascending);
    return KEEL_OK;
}

/* Faster beyond noise: even its upper quartile lies below the other's lower one. */
static bool is_faster(const struct variant *one, const struct variant *other)
{
    return one->times_ns[ROUNDS * 3 / 4] < other->times_ns[ROUNDS / 4];
}

/* ---- the process of a trial ---- */

static enum keel_status open_bench(const char *board, struct bench *bench)
{
    /* The settings that hold are in the order; a file that is damaged must not keep its own remedy away. */
    const struct keel_board_options options = {.without_tuning = true};
    KEEL_TRY(keel_board_open(board, &options, &bench->board));
    struct keel_device *device = keel_board_device(bench->board);
    KEEL_TRY(keel_queue_create(device, &bench->queue));
    for (int i = 0; i < BUFFERS; i++)
        KEEL_TRY(keel_buffer_create(device, COUNT * sizeof(float), &bench->buffers[i]));
    return KEEL_OK;
}

static void close_bench(struct bench *bench)
{
    keel_queue_destroy(bench->queue);
    for (int i = 0; i < BUFFERS; i++)
        keel_buffer_destroy(bench->buffers[i]);
    keel_board_close(bench->board);
}

/* The settings that hold, and behind `*held` the same with the value that is tried. */
static void split(const struct keel_trial *trial, struct keel_setting held[KEEL_TRIAL_SETTINGS_MAX],
                  struct keel_setting tried[KEEL_TRIAL_SETTINGS_MAX], uint32_t *out_tried)
{
    uint32_t at = trial->setting_count;
    for (uint32_t i = 0; i < trial->setting_count; i++) {
        held[i] = (struct keel_setting){.name = keel_tunable_get(trial->settings[i].tunable).name,
                                        .value = trial->settings[i].value};
        tried[i] = held[i];
        if (trial->settings[i].tunable == trial->tried.tunable)
            at = i;
    }
    tried[at] = (struct keel_setting){.name = keel_tunable_get(trial->tried.tunable).name,
                                      .value = trial->tried.value};
    *out_tried = at == trial->setting_count ? at + 1 : trial->setting_count;
}

static enum keel_status compare(struct bench *bench, struct keel_trial *trial, struct variant *holds,
                                struct variant *next)
{
    struct keel_setting held[KEEL_TRIAL_SETTINGS_MAX], tried[KEEL_TRIAL_SETTINGS_MAX];
    uint32_t tried_count;
    const char *name = keel_tunable_get(trial->tried.tunable).name;
    split(trial, held, tried, &tried_count);
    KEEL_TRY(variant_init(bench, name, held, trial->setting_count, holds));
    if (keel_kernels_setting(holds->kernels, trial->tried.tunable) == trial->tried.value) {
        trial->outcome = KEEL_TRIAL_SAME;
        return KEEL_OK;
    }
    KEEL_TRY(variant_init(bench, name, tried, tried_count, next));
    KEEL_TRY(measure(bench, holds, next));
    if (is_faster(next, holds))
        KEEL_TRY(all_golden(bench, next->kernels));
    trial->outcome = is_faster(next, holds) ? KEEL_TRIAL_FASTER : KEEL_TRIAL_SLOWER;
    trial->gain = (double)holds->times_ns[MEDIAN] / (double)next->times_ns[MEDIAN] - 1.0;
    return KEEL_OK;
}

int keel_trial_main(const char *board)
{
    struct keel_trial trial;
    struct bench bench = {0};
    struct variant holds = {0}, next = {0};
    enum keel_status status = keel_pread_all(ORDER_FD, &trial, sizeof trial, 0, "the order of a trial");
    if (status != KEEL_OK)
        return keel_status_exit_code(status);
    status = open_bench(board, &bench);
    if (status == KEEL_OK)
        status = compare(&bench, &trial, &holds, &next);
    if (status != KEEL_OK) {
        trial.outcome = KEEL_TRIAL_FAILED;
        snprintf(trial.said, sizeof trial.said, "%s", keel_detail());
    }
    status = keel_pwrite_all(ORDER_FD, &trial, sizeof trial, 0, "the answer of a trial");
    variant_fini(&next);
    variant_fini(&holds);
    close_bench(&bench);
    return keel_status_exit_code(status);
}

/* ---- who orders it ---- */

/* What is said of a process that gave no answer. */
static void judge_end(struct keel_trial *trial, enum keel_status status, const struct keel_process_end *end)
{
    trial->outcome = KEEL_TRIAL_FAILED;
    if (status == KEEL_TIMEOUT)
        snprintf(trial->said, sizeof trial->said, "it was not done in time, and was ended");
    else if (end->signaled)
        snprintf(trial->said, sizeof trial->said, "its process died of signal %d (%s)", end->code,
                 strsignal(end->code));
    else
        snprintf(trial->said, sizeof trial->said, "its process ended with exit code %d", end->code);
}

/* When a trial counts as hung. Before any came to its end nobody knows how long one takes here: half of the
 * time that is left. */
static uint64_t own_deadline(uint64_t longest_ns, uint64_t deadline_ns)
{
    const uint64_t allowed_ns =
        longest_ns > 0 ? TRIAL_TIMES * longest_ns : keel_remaining_ns(deadline_ns) / 2;
    const uint64_t own_ns = keel_deadline_after_ns(allowed_ns > TRIAL_LIMIT_NS ? allowed_ns : TRIAL_LIMIT_NS);
    return own_ns < deadline_ns ? own_ns : deadline_ns;
}

enum keel_status keel_trial_run(const char *board, struct keel_trial *trial, uint64_t *longest_ns,
                                uint64_t deadline_ns)
{
    const uint64_t began_ns = keel_now_ns(), own_ns = own_deadline(*longest_ns, deadline_ns);
    struct keel_process_end end = {0};
    trial->outcome = KEEL_TRIAL_NONE;
    int fd = memfd_create("keel-trial", MFD_CLOEXEC);
    if (fd < 0)
        return keel_fail_errno(errno, "a trial cannot be started");
    enum keel_status status = keel_pwrite_all(fd, trial, sizeof *trial, 0, "the order of a trial");
    const char *const argv[] = {"/proc/self/exe", "board", "tune", board, "--trial", NULL};
    if (status == KEEL_OK)
        status = keel_process_run(argv, &fd, 1, STDERR_FILENO, own_ns, &end);
    if (status == KEEL_OK || status == KEEL_TIMEOUT) {
        const enum keel_status waited = status;
        status = keel_pread_all(fd, trial, sizeof *trial, 0, "the answer of a trial");
        if (status == KEEL_OK && trial->outcome == KEEL_TRIAL_NONE)
            judge_end(trial, waited, &end);
        const uint64_t took_ns = keel_now_ns() - began_ns;
        if (status == KEEL_OK && waited == KEEL_OK && took_ns > *longest_ns)
            *longest_ns = took_ns;
    }
    close(fd);
    return status;
}
