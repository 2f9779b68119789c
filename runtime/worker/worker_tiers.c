/* worker_tiers.c - snapshot.local: a snapshot put together again from what the nodes have.
 *
 * All ranks say which generations their nodes have files of, and what the store has. The newest of which
 * every shard is somewhere, and the manifest, is chosen, by all alike; its files are read through where they
 * lie, and one that turns out to lack something then is passed over for the next older one. Then nodes get
 * what they lack: the manifest, and the shards that their ranks wrote, from other nodes' copies or from the
 * store; if that does not suffice (more or fewer ranks than had written it, slices), each gets all of it.
 * From there on a rank reads its share from its own node's directory, as from any store. */
#include "worker_internal.h"
#include <inttypes.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

enum { LISTED_MAX = 1024 };

static const struct keel_tier_offer *offer_of(const struct keel_worker_tiers *tiers, uint32_t p,
                                              uint64_t step, uint64_t attempt)
{
    for (uint32_t i = 0; i < KEEL_OFFERS_MAX; i++) {
        const struct keel_tier_offer *offer = &tiers->offers[p].of[i];
        if (offer->used && offer->step == step && offer->attempt == attempt)
            return offer;
    }
    return NULL;
}

static bool is_newer(uint64_t step, uint64_t attempt, uint64_t than_step, uint64_t than_attempt)
{
    return step != than_step ? step > than_step : attempt > than_attempt;
}

/* ---- what is here -------------------------------------------------------------------------------------- */

struct listing {
    const struct keel_worker *worker;
    struct keel_tier_offers *offers;
    bool far; /* of the store */
};

static bool is_wanted(const struct keel_worker *worker, uint64_t step)
{
    if (worker->resume == KEEL_RESUME_NONE || (worker->snapshot.has_bound && step >= worker->snapshot.bound))
        return false;
    if (worker->resume == KEEL_RESUME_STEP)
        return step == worker->resume_step;
    return !worker->tiers.has_records || step <= worker->tiers.records;
}

/* That of a generation, made in place of the oldest where there is no room; NULL: it is older than all. */
static struct keel_tier_offer *find_or_add(struct listing *listing, uint64_t step, uint64_t attempt)
{
    struct keel_tier_offer *oldest = NULL;
    if (!is_wanted(listing->worker, step))
        return NULL;
    for (uint32_t i = 0; i < KEEL_OFFERS_MAX; i++) {
        struct keel_tier_offer *offer = &listing->offers->of[i];
        if (offer->used && offer->step == step && offer->attempt == attempt)
            return offer;
        if (oldest == NULL || (oldest->used && (!offer->used || is_newer(oldest->step, oldest->attempt,
                                                                         offer->step, offer->attempt))))
            oldest = offer;
    }
    if (oldest->used && !is_newer(step, attempt, oldest->step, oldest->attempt))
        return NULL;
    *oldest = (struct keel_tier_offer){.used = true, .step = step, .attempt = attempt};
    return oldest;
}

static enum keel_status see_file(void *context, const struct keel_object_info *info)
{
    struct listing *listing = context;
    const struct keel_object *object = &info->object;
    struct keel_tier_offer *offer = NULL;
    if (object->kind != KEEL_OBJECT_MANIFEST && object->member < KEEL_MEMBERS_MAX)
        offer = find_or_add(listing, object->step, object->attempt);
    if (offer != NULL && object->kind == KEEL_OBJECT_PARITY)
        offer->parity = offer->parity || !listing->far;
    else if (offer != NULL)
        (listing->far ? offer->stored : offer->have)[object->member / 64] |= UINT64_C(1)
                                                                             << object->member % 64;
    return KEEL_OK;
}

/* What a store has, with the manifests of what is committed there. */
static enum keel_status list_store(struct listing *listing, struct keel_store *store, struct keel_tier *tier)
{
    struct keel_snapshot_info *list;
    uint32_t count;
    KEEL_TRY(keel_alloc(LISTED_MAX, sizeof *list, &list));
    enum keel_status status = keel_store_list(store, list, LISTED_MAX, &count, NULL);
    for (uint32_t i = 0; status == KEEL_OK && i < count; i++) {
        struct keel_tier_offer *offer = list[i].shard_count <= KEEL_MEMBERS_MAX
                                            ? find_or_add(listing, list[i].step, list[i].attempt)
                                            : NULL;
        if (offer == NULL)
            continue;
        offer->shard_count = list[i].shard_count;
        offer->manifest = offer->manifest || !listing->far;
        offer->stored_manifest = offer->stored_manifest || listing->far;
    }
    keel_free(list);
    return status == KEEL_OK ? keel_tier_list(tier, see_file, listing) : status;
}

/* The store, which all see, is looked at by one. */
static enum keel_status list_offers(const struct keel_worker *worker, struct keel_tier_offers *out)
{
    struct listing listing = {worker, out, false};
    memset(out, 0, sizeof *out);
    KEEL_TRY(list_store(&listing, worker->store, worker->tiers.near));
    listing.far = true;
    return worker->tiers.far == NULL || worker->position != 0
               ? KEEL_OK
               : list_store(&listing, worker->tiers.shared, worker->tiers.far);
}

/* ---- choosing ------------------------------------------------------------------------------------------ */

/* What all nodes have of a generation. */
static struct keel_tier_offer sum_up(const struct keel_worker *worker, uint64_t step, uint64_t attempt)
{
    struct keel_tier_offer all = {.used = true, .step = step, .attempt = attempt};
    for (uint32_t p = 0; p < worker->rank_count; p++) {
        const struct keel_tier_offer *offer = offer_of(&worker->tiers, p, step, attempt);
        if (offer == NULL)
            continue;
        all.shard_count = offer->shard_count > all.shard_count ? offer->shard_count : all.shard_count;
        all.manifest = all.manifest || offer->manifest;
        all.stored_manifest = all.stored_manifest || offer->stored_manifest;
        all.parity = all.parity || offer->parity;
        all.computed += offer->computed;
        for (uint32_t i = 0; i < KEEL_MEMBERS_MAX / 64; i++) {
            all.have[i] |= offer->have[i];
            all.stored[i] |= offer->stored[i];
        }
    }
    return all;
}

/* The first shard that is nowhere; shard_count: there is none. */
static uint32_t first_missing(const struct keel_tier_offer *all)
{
    uint32_t shard = 0;
    while (shard < all->shard_count &&
           (keel_offer_has(all->have, shard) || keel_offer_has(all->stored, shard)))
        shard++;
    return shard;
}

static bool is_complete(const struct keel_tier_offer *all)
{
    return (all->manifest || all->stored_manifest) && all->shard_count > 0 &&
           first_missing(all) == all->shard_count;
}

/* The newest below that one; `used` false: none. */
static struct keel_tier_offer next_older(const struct keel_worker *worker, const struct keel_tier_offer *than)
{
    struct keel_tier_offer best = {.used = false};
    for (uint32_t p = 0; p < worker->rank_count; p++)
        for (uint32_t i = 0; i < KEEL_OFFERS_MAX; i++) {
            const struct keel_tier_offer *offer = &worker->tiers.offers[p].of[i];
            if (offer->used &&
                (!best.used || is_newer(offer->step, offer->attempt, best.step, best.attempt)) &&
                (!than->used || is_newer(than->step, than->attempt, offer->step, offer->attempt)))
                best = *offer;
        }
    return best.used ? sum_up(worker, best.step, best.attempt) : best;
}

static void note_passed_over(struct keel_worker *worker, const struct keel_tier_offer *all)
{
    char detail[160];
    const uint32_t missing = first_missing(all);
    if (worker->position != 0)
        return;
    if (missing < all->shard_count)
        snprintf(detail, sizeof detail,
                 "shard %" PRIu32 " of %" PRIu32
                 " is on no node that is here, and in no store: an older one is taken",
                 missing, all->shard_count);
    else
        snprintf(detail, sizeof detail, "it could not be brought to its nodes: an older one is taken");
    keel_worker_note(worker, "snapshot-passed-over", all->step, KEEL_NOT_FOUND, detail);
}

/* ---- looking at it ------------------------------------------------------------------------------------- */

static enum keel_status gather(struct keel_worker *worker, const void *mine, size_t bytes, void *all)
{
    worker->tiers.restoring.group = worker->group;
    return keel_file_mover_gather(&worker->tiers.restoring, mine, bytes, all,
                                  KEEL_CALLS_OF_GUARDS + worker->tiers.restores++, 0);
}

static enum keel_status gather_offers(struct keel_worker *worker)
{
    struct keel_worker_tiers *tiers = &worker->tiers;
    if (tiers->offers == NULL)
        KEEL_TRY(keel_alloc(KEEL_MEMBERS_MAX, sizeof *tiers->offers, &tiers->offers));
    enum keel_status listed = list_offers(worker, &tiers->mine);
    if (listed != KEEL_OK) {
        keel_log(KEEL_LOG_WARN, "this node's snapshots cannot be listed: %s", keel_detail());
        memset(&tiers->mine, 0, sizeof tiers->mine);
    }
    return gather(worker, &tiers->mine, sizeof tiers->mine, tiers->offers);
}

struct keel_tier_offer *keel_worker_own_offer(struct keel_worker *worker, uint64_t step, uint64_t attempt)
{
    struct listing listing = {worker, &worker->tiers.mine, false};
    return find_or_add(&listing, step, attempt);
}

/* The ranks of a node share its files out; what is damaged is not here. */
static void look_through(struct keel_worker *worker, const uint32_t *node, uint64_t step, uint64_t attempt)
{
    struct keel_tier_offer *mine = keel_worker_own_offer(worker, step, attempt);
    uint32_t here = 0, index = 0;
    for (uint32_t p = 0; p < worker->rank_count; p++) {
        index += p < worker->position && node[p] == node[worker->position];
        here += node[p] == node[worker->position];
    }
    KEEL_ASSERT(here > 0); /* this rank */
    for (uint32_t shard = 0; mine != NULL && shard < KEEL_MEMBERS_MAX; shard++) {
        const struct keel_object object = {
            .step = step, .attempt = attempt, .kind = KEEL_OBJECT_SHARD, .member = shard};
        if (!keel_offer_has(mine->have, shard))
            continue;
        if (shard % here == index && keel_tier_verify(worker->tiers.near, &object) == KEEL_OK)
            continue;
        if (shard % here == index)
            keel_worker_note(worker, "shard-damaged", step, KEEL_CORRUPT, keel_detail());
        mine->have[shard / 64] &= ~(UINT64_C(1) << shard % 64);
    }
}

/* ---- bringing it here ---------------------------------------------------------------------------------- */

/* The first rank at or behind `from` whose node has the file; rank_count: none. */
static uint32_t holder_of(const struct keel_worker *worker, const struct keel_object *object, uint32_t from)
{
    for (uint32_t d = 0; d < worker->rank_count; d++) {
        const uint32_t p = (from + d) % worker->rank_count;
        const struct keel_tier_offer *offer = offer_of(&worker->tiers, p, object->step, object->attempt);
        if (object->kind == KEEL_OBJECT_MANIFEST
                ? offer != NULL && offer->manifest
                : offer != NULL && keel_offer_has(offer->have, object->member))
            return p;
    }
    return worker->rank_count;
}

static bool node_has(const struct keel_worker *worker, const uint32_t *node, const struct keel_object *object,
                     uint32_t position)
{
    for (uint32_t p = 0; p < worker->rank_count; p++) {
        const struct keel_tier_offer *offer = offer_of(&worker->tiers, p, object->step, object->attempt);
        if (node[p] == node[position] && (object->kind == KEEL_OBJECT_MANIFEST
                                              ? offer != NULL && offer->manifest
                                              : offer != NULL && keel_offer_has(offer->have, object->member)))
            return true;
    }
    return false;
}

/* What is to go where. */
struct bringing {
    struct keel_file_move *moves; /* owned */
    size_t count, capacity;
    struct keel_object *stored; /* owned: what this rank is to copy from the store */
    size_t stored_count, stored_capacity;
    uint32_t from_nodes, from_store; /* shards, of all ranks */
};

/* A file to the node of a rank, unless it has it. */
static enum keel_status want(struct keel_worker *worker, struct bringing *bring, const uint32_t *node,
                             const struct keel_object *object, uint32_t position)
{
    const uint32_t first = keel_worker_first_of_node(node, position);
    const uint32_t from = holder_of(worker, object, first);
    if (node_has(worker, node, object, first))
        return KEEL_OK;
    if (from < worker->rank_count) {
        KEEL_TRY(keel_grow(&bring->moves, &bring->capacity, bring->count + 1, sizeof *bring->moves));
        bring->moves[bring->count++] =
            (struct keel_file_move){.object = *object, .from = (uint16_t)from, .to = (uint16_t)first};
        bring->from_nodes += object->kind == KEEL_OBJECT_SHARD;
        return KEEL_OK;
    }
    bring->from_store += object->kind == KEEL_OBJECT_SHARD;
    if (first == worker->position) {
        KEEL_TRY(keel_grow(&bring->stored, &bring->stored_capacity, bring->stored_count + 1,
                           sizeof *bring->stored));
        bring->stored[bring->stored_count++] = *object;
    }
    return KEEL_OK;
}

/* The manifest to all nodes, and shards: those of each node's own ranks, or all. */
static enum keel_status list_wants(struct keel_worker *worker, struct bringing *bring, const uint32_t *node,
                                   bool all)
{
    const struct keel_tier_offer *chosen = &worker->tiers.chosen;
    struct keel_object object = {
        .step = chosen->step, .attempt = chosen->attempt, .kind = KEEL_OBJECT_MANIFEST};
    for (uint32_t p = 0; p < worker->rank_count; p++)
        if (keel_worker_first_of_node(node, p) == p)
            KEEL_TRY(want(worker, bring, node, &object, p));
    object.kind = KEEL_OBJECT_SHARD;
    for (object.member = 0; object.member < chosen->shard_count; object.member++)
        for (uint32_t p = 0; p < worker->rank_count; p++)
            if (all ? keel_worker_first_of_node(node, p) == p
                    : chosen->shard_count == worker->rank_count && p == object.member)
                KEEL_TRY(want(worker, bring, node, &object, p));
    return KEEL_OK;
}

static bool bring_from_store(struct keel_worker *worker, const struct bringing *bring)
{
    bool ok = true;
    for (size_t i = 0; i < bring->stored_count; i++)
        if (worker->tiers.far == NULL ||
            keel_tier_copy(worker->tiers.far, &bring->stored[i], worker->tiers.near) != KEEL_OK) {
            keel_worker_note(worker, "snapshot-refused", bring->stored[i].step, KEEL_CORRUPT,
                             worker->tiers.far == NULL ? "this node sees no store" : keel_detail());
            ok = false;
        }
    return ok;
}

static bool all_arrived(struct keel_worker *worker, const struct bringing *bring)
{
    bool ok = true;
    for (size_t i = 0; i < bring->count; i++)
        if (bring->moves[i].to == worker->position && !bring->moves[i].arrived) {
            keel_worker_note(worker, "snapshot-refused", bring->moves[i].object.step, KEEL_IO, keel_detail());
            ok = false;
        }
    return ok;
}

/* All ranks know of it. */
static void note_arrival(struct keel_worker *worker, const struct keel_file_move *move)
{
    struct keel_tier_offer *offer = NULL;
    const struct keel_object *object = &move->object;
    for (uint32_t i = 0; i < KEEL_OFFERS_MAX; i++) {
        struct keel_tier_offer *at = &worker->tiers.offers[move->to].of[i];
        if (at->used && at->step == object->step && at->attempt == object->attempt)
            offer = at;
    }
    if (offer == NULL) {
        offer = &worker->tiers.offers[move->to].of[0]; /* the others are not looked at any more */
        *offer = (struct keel_tier_offer){.used = true, .step = object->step, .attempt = object->attempt};
    }
    if (object->kind == KEEL_OBJECT_MANIFEST)
        offer->manifest = true;
    else
        offer->have[object->member / 64] |= UINT64_C(1) << object->member % 64;
}

/* *out: on all ranks, whether all is where it is to be. */
static enum keel_status bring(struct keel_worker *worker, const uint32_t *node, bool all, bool *out)
{
    struct keel_worker_tiers *tiers = &worker->tiers;
    struct bringing bring = {.moves = NULL};
    enum keel_status status = list_wants(worker, &bring, node, all);
    tiers->restoring.group = worker->group;
    if (status == KEEL_OK)
        status = keel_file_mover_run(&tiers->restoring, bring.moves, (uint32_t)bring.count,
                                     KEEL_CALLS_OF_GUARDS + tiers->restores++);
    tiers->said = status == KEEL_OK && all_arrived(worker, &bring) && bring_from_store(worker, &bring);
    if (status == KEEL_OK)
        status = gather(worker, &tiers->said, sizeof tiers->said, tiers->heard);
    *out = status == KEEL_OK;
    for (uint32_t p = 0; p < worker->rank_count; p++)
        *out = *out && tiers->heard[p];
    for (size_t i = 0; i < bring.count && *out; i++)
        note_arrival(worker, &bring.moves[i]);
    tiers->from_nodes += bring.from_nodes;
    tiers->from_store += bring.from_store;
    keel_free(bring.moves);
    keel_free(bring.stored);
    return status;
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

/* Looked through, and where it is to be: false in *out: it cannot be had. */
static enum keel_status take(struct keel_worker *worker, const uint32_t *node, struct keel_tier_offer *all,
                             bool *out)
{
    struct keel_worker_tiers *tiers = &worker->tiers;
    look_through(worker, node, all->step, all->attempt);
    KEEL_TRY(gather(worker, &tiers->mine, sizeof tiers->mine, tiers->offers));
    *all = sum_up(worker, all->step, all->attempt);
    if (!is_complete(all) && all->parity) {
        KEEL_TRY(keel_worker_compute_shards(worker, all, KEEL_CALLS_OF_GUARDS + tiers->restores++));
        KEEL_TRY(gather(worker, &tiers->mine, sizeof tiers->mine, tiers->offers));
        *all = sum_up(worker, all->step, all->attempt);
    }
    *out = is_complete(all);
    tiers->chosen = *all;
    tiers->from_nodes = tiers->from_store = 0;
    return *out ? bring(worker, node, false, out) : KEEL_OK;
}

static enum keel_status none_is_left(const struct keel_worker *worker)
{
    if (worker->resume == KEEL_RESUME_STEP && !worker->snapshot.has_bound)
        return keel_fail(KEEL_NOT_FOUND,
                         "--resume %" PRIu64 ": no node has a snapshot of that step that is whole",
                         worker->resume_step);
    if (!worker->tiers.has_committed)
        return KEEL_OK;
    return keel_fail(KEEL_CORRUPT,
                     "this run committed a snapshot of step %" PRIu64
                     ", and what the nodes here have (and the "
                     "store, if there is one) makes no whole one: bring back the nodes, or copies of their "
                     "directories, or give --resume none to begin at step 1",
                     worker->tiers.committed);
}

enum keel_status keel_worker_tiers_choose(struct keel_worker *worker)
{
    struct keel_worker_tiers *tiers = &worker->tiers;
    uint32_t node[KEEL_MEMBERS_MAX];
    struct keel_tier_offer all = {.used = false};
    bool found = false;
    if (tiers->near == NULL)
        return KEEL_OK;
    keel_worker_nodes(worker, node);
    tiers->chosen = all;
    KEEL_TRY(gather_offers(worker));
    for (all = next_older(worker, &all); all.used && !found; all = found ? all : next_older(worker, &all)) {
        if (is_complete(&all) || (all.parity && all.shard_count > 0))
            KEEL_TRY(take(worker, node, &all, &found));
        if (!found && (all.manifest || all.stored_manifest))
            note_passed_over(worker, &all);
    }
    tiers->chosen.used = found;
    worker->sync_all[0].snapshot_count = found ? 1 : 0;
    worker->sync_all[0].snapshot_step = tiers->chosen.step;
    return found ? KEEL_OK : none_is_left(worker);
}

enum keel_status keel_worker_tiers_fetch_all(struct keel_worker *worker)
{
    uint32_t node[KEEL_MEMBERS_MAX];
    bool all;
    if (worker->tiers.near == NULL || !worker->tiers.chosen.used)
        return KEEL_OK;
    keel_worker_nodes(worker, node);
    return bring(worker, node, true, &all);
}

void keel_worker_tiers_text(const struct keel_worker *worker, char *out, size_t bytes)
{
    const struct keel_worker_tiers *tiers = &worker->tiers;
    out[0] = '\0';
    if (tiers->near == NULL || !tiers->chosen.used)
        return;
    const uint32_t computed = tiers->chosen.computed;
    if (computed > 0)
        snprintf(out, bytes, ", from the nodes' directories, with %u shards computed from parity", computed);
    else if (tiers->from_nodes == 0 && tiers->from_store == 0)
        snprintf(out, bytes, ", from the nodes' own directories");
    else
        snprintf(
            out, bytes,
            ", from the nodes' directories, with %u shards from copies on other nodes and %u from the store",
            tiers->from_nodes, tiers->from_store);
}
