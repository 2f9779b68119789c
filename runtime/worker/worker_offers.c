/* worker_offers.c - snapshot.local: what each rank said that its node has of generations.
 *
 * A generation is some numbers, and its shards are runs with a stride (plan/share_runs.h): a node has those
 * of its own ranks and those that it keeps for partners, or all. So what a rank says is as long as its node
 * has generations, and goes in one gather, behind one of heads that say how long. Ranks of a node see the
 * same directory: the first of them speaks for all, until each has looked at a part of it. */
#include "worker_internal.h"
#include <keel/memory.h>
#include <string.h>

/* ---- saying -------------------------------------------------------------------------------------------- */

static uint32_t runs_of(const uint64_t *set, struct keel_share_run *out)
{
    uint32_t count = 0;
    for (uint32_t shard = 0; shard < KEEL_MEMBERS_MAX; shard++) {
        struct keel_share_run *last = count > 0 ? &out[count - 1] : NULL;
        const uint32_t after = last != NULL ? last->first + (uint32_t)last->stride * last->count : 0;
        if (shard % 64 == 0 && set[shard / 64] == 0) {
            shard += 63;
            continue;
        }
        if (!keel_offer_has(set, shard))
            continue;
        if (last != NULL && last->count == 1) { /* two shards say what the stride is */
            last->stride = (uint16_t)(shard - last->first);
            last->count++;
        } else if (last != NULL && shard == after) {
            last->count++;
        } else {
            out[count++] = (struct keel_share_run){.first = (uint16_t)shard, .stride = 1, .count = 1};
        }
    }
    return count;
}

/* This rank's into said->mine: generations, each with its runs behind it; of nobody's: none. */
static enum keel_status write_mine(struct keel_worker_tiers *tiers, bool speaks)
{
    struct keel_said_offers *said = &tiers->said_offers;
    struct keel_share_run *runs;
    size_t at = 0;
    said->head = (struct keel_offers_head){.has_newest = tiers->mine.has_newest != 0,
                                           .newest = tiers->mine.newest,
                                           .has_records = tiers->mine.has_records != 0,
                                           .records = tiers->mine.records};
    KEEL_TRY(keel_alloc(2 * KEEL_MEMBERS_MAX, sizeof *runs, &runs));
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < KEEL_OFFERS_MAX && speaks && status == KEEL_OK; i++) {
        const struct keel_tier_offer *offer = &tiers->mine.of[i];
        if (!offer->used)
            continue;
        struct keel_offer_said out = {.step = offer->step,
                                      .attempt = offer->attempt,
                                      .made_ns = offer->made_ns,
                                      .shard_count = offer->shard_count,
                                      .computed = offer->computed,
                                      .parity = offer->parity,
                                      .manifest = offer->manifest,
                                      .stored_manifest = offer->stored_manifest};
        out.have_count = runs_of(offer->have, runs);
        out.stored_count = runs_of(offer->stored, runs + out.have_count);
        const size_t run_bytes = ((size_t)out.have_count + out.stored_count) * sizeof *runs;
        status = keel_grow(&said->mine, &said->mine_capacity, at + sizeof out + run_bytes, 1);
        if (status != KEEL_OK)
            break;
        memcpy(said->mine + at, &out, sizeof out);
        memcpy(said->mine + at + sizeof out, runs, run_bytes);
        at += sizeof out + run_bytes;
    }
    said->head.bytes = at;
    keel_free(runs);
    return status;
}

enum keel_status keel_worker_gather_offers(struct keel_worker *worker, bool speaks)
{
    struct keel_worker_tiers *tiers = &worker->tiers;
    struct keel_said_offers *said = &tiers->said_offers;
    const uint32_t ranks = worker->rank_count;
    uint64_t all = 0;
    KEEL_TRY(keel_grow(&said->heads, &said->head_capacity, ranks, sizeof *said->heads));
    KEEL_TRY(keel_grow(&said->at, &said->at_capacity, ranks, sizeof *said->at));
    KEEL_TRY(keel_grow(&said->counts, &said->count_capacity, ranks, sizeof *said->counts));
    KEEL_TRY(write_mine(tiers, speaks));
    tiers->restoring.group = worker->group;
    KEEL_TRY(keel_file_mover_gather(&tiers->restoring, &said->head, sizeof said->head, said->heads,
                                    KEEL_CALLS_OF_GUARDS + tiers->restores++, 0));
    for (uint32_t p = 0; p < ranks; p++) {
        said->at[p] = all;
        all += said->counts[p] = said->heads[p].bytes;
    }
    KEEL_TRY(keel_grow(&said->bytes, &said->byte_capacity, keel_size(all), 1));
    return keel_file_mover_gather_some(&tiers->restoring, said->mine, said->counts, ranks, said->bytes,
                                       KEEL_CALLS_OF_GUARDS + tiers->restores++, 0);
}

void keel_worker_forget_offers(struct keel_worker *worker)
{
    struct keel_said_offers *said = &worker->tiers.said_offers;
    keel_free(said->heads);
    keel_free(said->at);
    keel_free(said->counts);
    keel_free(said->bytes);
    keel_free(said->mine);
    *said = (struct keel_said_offers){.heads = NULL};
}

/* ---- hearing ------------------------------------------------------------------------------------------- */

bool keel_offers_next(const struct keel_worker_tiers *tiers, uint32_t p, uint64_t *at,
                      struct keel_offer_said *out)
{
    const struct keel_said_offers *said = &tiers->said_offers;
    if (*at >= said->heads[p].bytes)
        return false;
    KEEL_ASSERT(said->heads[p].bytes - *at >= sizeof *out);
    memcpy(out, said->bytes + said->at[p] + *at, sizeof *out);
    *at += sizeof *out;
    out->runs_at = said->at[p] + *at;
    *at += ((uint64_t)out->have_count + out->stored_count) * sizeof(struct keel_share_run);
    return true;
}

bool keel_offers_find(const struct keel_worker_tiers *tiers, uint32_t p, uint64_t step, uint64_t attempt,
                      struct keel_offer_said *out)
{
    for (uint64_t at = 0; keel_offers_next(tiers, p, &at, out);)
        if (out->step == step && out->attempt == attempt)
            return true;
    return false;
}

static struct keel_share_run run_of(const struct keel_worker_tiers *tiers,
                                    const struct keel_offer_said *offer, uint32_t number)
{
    struct keel_share_run run; /* lies at any byte */
    memcpy(&run, tiers->said_offers.bytes + offer->runs_at + number * sizeof run, sizeof run);
    return run;
}

bool keel_offer_said_has(const struct keel_worker_tiers *tiers, const struct keel_offer_said *offer,
                         uint32_t shard)
{
    bool has = false;
    for (uint32_t i = 0; i < offer->have_count && !has; i++) {
        const struct keel_share_run run = run_of(tiers, offer, i);
        has = keel_share_runs_have(&run, 1, shard);
    }
    return has;
}

void keel_offer_add_said(const struct keel_worker_tiers *tiers, const struct keel_offer_said *offer,
                         struct keel_tier_offer *all)
{
    for (uint32_t i = 0; i < (uint32_t)offer->have_count + offer->stored_count; i++) {
        const struct keel_share_run run = run_of(tiers, offer, i);
        uint64_t *set = i < offer->have_count ? all->have : all->stored;
        for (uint32_t k = 0; k < run.count; k++) {
            const uint32_t shard = run.first + k * run.stride;
            KEEL_ASSERT(shard < KEEL_MEMBERS_MAX);
            set[shard / 64] |= UINT64_C(1) << shard % 64;
        }
    }
}
