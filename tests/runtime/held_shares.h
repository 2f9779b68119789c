/* held_shares.h - which shares the ranks of a view say that they hold, as a gather of all leaves it. */
#ifndef HELD_SHARES_H
#define HELD_SHARES_H

#include "worker_internal.h"
#include <keel/memory.h>
#include <string.h>

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
