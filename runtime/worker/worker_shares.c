/* worker_shares.c - parallel.zero: which shares each rank of a view said that it holds.
 *
 * Sets are runs with a stride (plan/share_runs.h), and go behind the records, in one gather of as many runs
 * as there are: a rank's own share and its copies, one or two runs with thousands of ranks as with few.
 * Shares without elements, of models that have fewer pages than owners, are everybody's: of each layout the
 * first of its ranks names them, for all. */
#include "worker_internal.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

/* Layouts that are known by their place and epoch; of more than these each rank names what is empty. */
enum { LAYOUTS_MAX = 256 };
struct layouts {
    struct {
        uint64_t epoch;
        uint32_t place, empties_at;
    } known[LAYOUTS_MAX];
    uint32_t count;
};

/* Does a record of `place` name what is empty in its layout? Else *at is where another did. */
static bool names_empties(struct layouts *layouts, uint32_t place, uint64_t epoch, uint32_t *at)
{
    uint32_t i = layouts->count; /* the newest are the likely ones */
    while (i > 0 && (layouts->known[i - 1].place != place || layouts->known[i - 1].epoch != epoch))
        i--;
    if (i > 0) {
        *at = layouts->known[i - 1].empties_at;
        return false;
    }
    if (layouts->count < LAYOUTS_MAX) {
        layouts->known[layouts->count].place = place;
        layouts->known[layouts->count].epoch = epoch;
        layouts->known[layouts->count++].empties_at = *at;
    }
    return true;
}

uint32_t keel_worker_number_shares(struct keel_worker *worker, uint64_t *counts)
{
    struct layouts layouts;
    uint32_t at = 0;
    layouts.count = 0;
    for (uint32_t p = 0; p < worker->rank_count; p++) {
        const uint32_t begin = at;
        for (uint32_t i = 0; i < 2; i++) {
            struct keel_owned_record *record = &worker->sync_all[p].owned[i];
            if (record->of == 0)
                continue;
            record->runs_at = at;
            record->empties_at = at += record->run_count;
            if (names_empties(&layouts, worker->sync_all[p].place, record->epoch, &record->empties_at))
                at += record->empty_count;
        }
        counts[p] = at - begin;
    }
    return at;
}

/* What this rank gives, as it was numbered. */
static void put_own(struct keel_worker *worker)
{
    struct keel_share_run *out = worker->shares.mine;
    for (uint32_t i = 0; i < 2; i++) {
        const struct keel_owned_record *record = &worker->sync_all[worker->position].owned[i];
        const struct keel_share_run *runs, *empties;
        if (record->of == 0)
            continue;
        keel_trainer_owned_runs(worker->trainer, i, &runs, &empties);
        memcpy(out, runs, record->run_count * sizeof *out);
        out += record->run_count;
        if (record->empties_at < record->runs_at || record->empty_count == 0)
            continue; /* another named it */
        memcpy(out, empties, record->empty_count * sizeof *out);
        out += record->empty_count;
    }
}

/* Rounds have their numbers among those of rounds, above all of these. */
static uint64_t number_of(uint64_t sequence)
{
    const uint64_t in_view = sequence & (KEEL_SEQUENCE_ROUND - 1);
    return KEEL_SEQUENCE_SHARES + 2 * in_view + (sequence >= KEEL_SEQUENCE_ROUND ? 1 : 0);
}

enum keel_status keel_worker_gather_shares(struct keel_worker *worker, uint64_t sequence)
{
    struct keel_worker_shares *shares = &worker->shares;
    KEEL_TRY(keel_grow(&shares->counts, &shares->count_capacity, worker->rank_count, sizeof *shares->counts));
    const uint32_t all = keel_worker_number_shares(worker, shares->counts);
    const uint64_t mine = shares->counts[worker->position];
    KEEL_TRY(keel_grow(&shares->all, &shares->all_capacity, all, sizeof *shares->all));
    KEEL_TRY(keel_grow(&shares->mine, &shares->mine_capacity, keel_size(mine), sizeof *shares->mine));
    put_own(worker);
    if (worker->group == NULL) {
        memcpy(shares->all, shares->mine, all * sizeof *shares->all);
        return KEEL_OK;
    }
    const void *parts[] = {shares->mine};
    for (uint32_t p = 0; p < worker->rank_count; p++)
        shares->counts[p] *= sizeof *shares->all;
    const struct keel_collective gather = {.kind = KEEL_ALL_GATHER_V,
                                           .sequence = number_of(sequence),
                                           .element = KEEL_ELEMENT_U8,
                                           .counts_out = shares->counts,
                                           .parts = parts,
                                           .part_count = mine > 0 ? 1 : 0,
                                           .result = shares->all};
    return all == 0 ? KEEL_OK
                    : keel_group_run(worker->group, &gather, keel_deadline_after_ns(worker->stall_ns));
}
