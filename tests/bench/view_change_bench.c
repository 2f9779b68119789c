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

enum { NEWCOMER = 7, STEP = 100, EPOCH = 3 };

static struct keel_worker worker;
static struct keel_device *device;
static uint32_t node[KEEL_MEMBERS_MAX];

static void ok(enum keel_status status)
{
    if (status == KEEL_OK)
        return;
    fprintf(stderr, "view_change_bench: %s\n", keel_detail());
    exit(EXIT_FAILURE);
}

static void open_worker(enum keel_zero zero)
{
    memset(&worker, 0, sizeof worker);
    worker.job = view_job(12, 256, 1 << 20);
    worker.job.parallel.zero = zero;
    ok(view_worker_open(&worker, &device));
}

static void close_worker(void)
{
    view_worker_close(&worker, device);
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
