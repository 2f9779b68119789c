/* view_change_bench.c - what a rank computes when a view begins, by the number of ranks: who sends what to
 * whom, from what all said that they have. The engine is a real one, of a GPT of 12 blocks, which nothing
 * runs on. One JSON object a line.
 *
 * The limit: all that a rank finds follows from records of all ranks, so it reads each at least once: 240
 * bytes a rank, 1 MB of 4,096, a fraction of a millisecond. */
#include "../runtime/held_shares.h"
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NEWCOMER = 7, STEP = 100, EPOCH = 3 };

static struct keel_worker worker;
static struct keel_device *device;
static uint32_t node[KEEL_MEMBERS_MAX];
static atomic_uint_fast64_t progress;

static const struct keel_job gpt = {.seed = 5,
                                    .shards = 4,
                                    .ranks = 1,
                                    .layers = 12,
                                    .heads = 4,
                                    .width = 256,
                                    .block = 8,
                                    .bias = true,
                                    .val_fraction = 0.1F,
                                    .steps = 2,
                                    .microbatches = 1,
                                    .batch = 2,
                                    .learning_rate = 1e-2F,
                                    .storage = KEEL_F32,
                                    .parallel = {.holders = 2, .bucket_bytes = 1 << 20},
                                    .update = {.beta1 = 0.9F, .beta2 = 0.99F, .epsilon = 1e-8F}};

static void ok(enum keel_status status)
{
    if (status == KEEL_OK)
        return;
    fprintf(stderr, "view_change_bench: %s\n", keel_detail());
    exit(EXIT_FAILURE);
}

static void open_data(void)
{
    char path[] = "/tmp/keel-view-change-XXXXXX";
    const int fd = mkstemp(path);
    for (uint32_t i = 0; i < 4096; i++) {
        const char letter = (char)('a' + (i * i + i / 7) % 26);
        KEEL_ASSERT(fd >= 0 && write(fd, &letter, 1) == 1);
    }
    close(fd);
    snprintf(worker.job.path, sizeof worker.job.path, "%s", path);
    ok(keel_data_open(&worker.job, &worker.data));
    unlink(path);
}

static void open_worker(enum keel_zero zero)
{
    memset(&worker, 0, sizeof worker);
    worker.job = gpt;
    worker.job.parallel.zero = zero;
    open_data();
    ok(keel_device_open("host", NULL, &device));
    const struct keel_trainer_config config = {.job = &worker.job,
                                               .data = worker.data,
                                               .device = device,
                                               .stall_ns = UINT64_C(60000000000),
                                               .progress = &progress};
    ok(keel_trainer_create(&config, &worker.trainer));
}

static void close_worker(void)
{
    keel_trainer_destroy(worker.trainer);
    keel_device_close(device);
    keel_data_close(worker.data);
}

/* All have the state but the newcomer; of owners each has its share, and that of the one before. */
static void fill_view(uint32_t ranks)
{
    memset(worker.sync_all, 0, sizeof worker.sync_all);
    worker.rank_count = ranks;
    worker.position = NEWCOMER;
    worker.axes.map.tensor = 1;
    worker.view.member_count = (uint16_t)ranks;
    for (uint32_t p = 0; p < ranks; p++) {
        struct keel_owned_record *record = &worker.sync_all[p].owned[0];
        worker.view.members[p] = (struct keel_member){.rank = (uint16_t)p, .node = (uint16_t)(1 + p)};
        node[p] = 1 + p;
        if (p == NEWCOMER)
            continue;
        worker.sync_all[p].has_state = 1;
        worker.sync_all[p].next_step = STEP;
        *record = (struct keel_owned_record){
            .epoch = EPOCH, .step = STEP, .of = ranks, .position = p, .complete = 1};
        hold_two(&worker, p, ranks);
    }
    place_shares(&worker);
}

static void replica(struct keel_moves *out)
{
    ok(keel_worker_find_healing(&worker, STEP, out));
}

static void owner(struct keel_moves *out)
{
    const struct keel_owners owners = {
        .epoch = EPOCH + 1,
        .position = NEWCOMER,
        .of = {.count = worker.rank_count, .group = worker.rank_count, .holders = 2, .node = node}};
    KEEL_ASSERT(keel_worker_choose_owned(&worker, 0, STEP).of == worker.rank_count);
    KEEL_ASSERT(!keel_worker_is_whole(&worker, STEP));
    ok(keel_trainer_own(worker.trainer, &owners));
    ok(keel_worker_find_owned(&worker, EPOCH, STEP, out));
}

static void snapshot(struct keel_moves *out)
{
    ok(keel_worker_find_shares(&worker, out));
}

static void print_line(const char *figure, uint32_t ranks, double value, const char *unit, const char *goal,
                       const char *met)
{
    printf(
        "{\"room\": \"runtime\", \"figure\": \"a view of %u ranks begins, %s\", \"value\": %.2f, \"unit\": "
        "\"%s\", \"peer\": null, \"peer_value\": null, \"ratio\": null, \"goal\": %s, \"met\": %s}\n",
        ranks, figure, value, unit, goal, met);
}

/* Processor time. The goal is of 4,096 ranks: a second, as for opening a snapshot of so many. */
static void measure(const char *figure, uint32_t ranks, void (*find)(struct keel_moves *))
{
    struct keel_moves moves;
    fill_view(ranks);
    const clock_t begin = clock();
    find(&moves);
    const double ms = (double)(clock() - begin) * 1e3 / CLOCKS_PER_SEC;
    print_line(figure, ranks, ms, "ms", "1000", ms <= 1000 ? "true" : "false");
    keel_moves_fini(&moves);
}

int main(void)
{
    const uint32_t ranks[] = {16, 256, KEEL_MEMBERS_MAX};
    for (int i = 0; i < 3; i++) {
        open_worker(KEEL_ZERO_NONE);
        measure("one newcomer among replicas", ranks[i], replica);
        measure("each reads a share of a snapshot", ranks[i], snapshot);
        close_worker();
        open_worker(KEEL_ZERO_OPTIMIZER);
        measure("one newcomer among owners", ranks[i], owner);
        close_worker();
    }
    print_line("memory at most, with the engine", KEEL_MEMBERS_MAX,
               (double)keel_memory_stats().peak_bytes / 1e6, "MB", "null", "null");
    return EXIT_SUCCESS;
}
