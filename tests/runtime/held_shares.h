/* held_shares.h - a worker that computes what follows from a view and trains nothing, and which shares the
 * ranks of a view say that they hold, as a gather of all leaves it. */
#ifndef HELD_SHARES_H
#define HELD_SHARES_H

#include "worker_internal.h"
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A GPT of so many layers and of that width. */
static inline struct keel_job view_job(uint32_t layers, uint32_t width, uint64_t bucket_bytes)
{
    return (struct keel_job){.seed = 5,
                             .shards = 4,
                             .ranks = 1,
                             .layers = layers,
                             .heads = 4,
                             .width = width,
                             .block = 8,
                             .bias = true,
                             .val_fraction = 0.1F,
                             .steps = 2,
                             .microbatches = 1,
                             .batch = 2,
                             .learning_rate = 1e-2F,
                             .parallel = {.holders = 2, .bucket_bytes = bucket_bytes},
                             .update = {.beta1 = 0.9F, .beta2 = 0.99F, .epsilon = 1e-8F}};
}

/* Data of 4 KiB and a trainer on the host, of worker->job; all else of the worker is zero. */
static inline enum keel_status view_worker_open(struct keel_worker *worker, struct keel_device **device)
{
    static atomic_uint_fast64_t progress;
    char path[] = "/tmp/keel-view-XXXXXX", text[4096];
    for (uint32_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + (i * i + i / 7) % 26);
    const int fd = mkstemp(path);
    KEEL_ASSERT(fd >= 0 && write(fd, text, sizeof text) == (ssize_t)sizeof text);
    close(fd);
    snprintf(worker->job.path, sizeof worker->job.path, "%s", path);
    const enum keel_status status = keel_data_open(&worker->job, &worker->data);
    unlink(path);
    KEEL_TRY(status);
    KEEL_TRY(keel_device_open("host", NULL, device));
    const struct keel_trainer_config config = {.job = &worker->job,
                                               .data = worker->data,
                                               .device = *device,
                                               .stall_ns = UINT64_C(60000000000),
                                               .progress = &progress};
    return keel_trainer_create(&config, &worker->trainer);
}

static inline void view_worker_close(struct keel_worker *worker, struct keel_device *device)
{
    keel_trainer_destroy(worker->trainer);
    keel_device_close(device);
    keel_data_close(worker->data);
}

static struct {
    struct keel_share_run *runs, *empties; /* owned until they are placed */
} held_shares[KEEL_MEMBERS_MAX][2];

static void held_shares_make(const uint32_t *shares, uint32_t count, struct keel_share_run **out,
                             uint16_t *out_count)
{
    KEEL_ASSERT(keel_alloc(count, sizeof **out, out) == KEEL_OK);
    *out_count = (uint16_t)keel_share_runs_make(shares, count, *out);
}

/* Record `i` of position p, which is in place, is of these shares; those that are empty in its layout are
 * named, too. Ascending. */
static inline void hold_shares(struct keel_worker *worker, uint32_t p, uint32_t i, const uint32_t *shares,
                               uint32_t count, const uint32_t *empties, uint32_t empty_count)
{
    struct keel_owned_record *record = &worker->sync_all[p].owned[i];
    held_shares_make(shares, count, &held_shares[p][i].runs, &record->run_count);
    held_shares_make(empties, empty_count, &held_shares[p][i].empties, &record->empty_count);
}

/* All have said it. */
static inline void place_shares(struct keel_worker *worker)
{
    struct keel_worker_shares *all = &worker->shares;
    uint64_t *counts;
    KEEL_ASSERT(keel_alloc(worker->rank_count, sizeof *counts, &counts) == KEEL_OK);
    const uint32_t total = keel_worker_number_shares(worker, counts);
    KEEL_ASSERT(keel_grow(&all->all, &all->all_capacity, total, sizeof *all->all) == KEEL_OK);
    for (uint32_t p = 0; p < worker->rank_count; p++)
        for (uint32_t i = 0; i < 2; i++) {
            const struct keel_owned_record *record = &worker->sync_all[p].owned[i];
            if (record->run_count > 0)
                memcpy(all->all + record->runs_at, held_shares[p][i].runs,
                       record->run_count * sizeof *all->all);
            if (record->empty_count > 0)
                memcpy(all->all + record->empties_at, held_shares[p][i].empties,
                       record->empty_count * sizeof *all->all);
            keel_free(held_shares[p][i].runs);
            keel_free(held_shares[p][i].empties);
            held_shares[p][i].runs = held_shares[p][i].empties = NULL;
        }
    keel_free(counts);
}

/* As fill_view of thousands has it: a share, and the one before. */
static inline void hold_two(struct keel_worker *worker, uint32_t p, uint32_t count)
{
    const uint32_t shares[] = {p > 0 ? p - 1 : 0, p > 0 ? p : count - 1};
    hold_shares(worker, p, 0, shares, 2, NULL, 0);
}

#endif
