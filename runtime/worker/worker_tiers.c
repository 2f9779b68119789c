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
    return worker->resume != KEEL_RESUME_STEP || step == worker->resume_step;
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
    if (!listing->far && (listing->offers->has_newest == 0 || object->step > listing->offers->newest))
        listing->offers->newest = object->step;
    listing->offers->has_newest |= !listing->far;
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
        if (offer == NULL || list[i].created_wall_ns < offer->made_ns)
            continue;
        if (list[i].created_wall_ns > offer->made_ns)
            offer->manifest = offer->stored_manifest = false;
        offer->shard_count = list[i].shard_count;
        offer->made_ns = list[i].created_wall_ns;
        offer->manifest = offer->manifest || !listing->far;
        offer->stored_manifest = offer->stored_manifest || listing->far;
    }
    keel_free(list);
    return status == KEEL_OK ? keel_tier_list(tier, see_file, listing) : status;
}

/* The store, which all see, is looked at by one. */
static enum keel_status list_offers(struct keel_worker *worker, struct keel_tier_offers *out)
{
    struct listing listing = {worker, out, false};
    memset(out, 0, sizeof *out);
    out->has_records = worker->tiers.has_records;
    out->records = worker->tiers.records;
    KEEL_TRY(list_store(&listing, worker->store, worker->tiers.near));
    keel_worker_adopt(worker);
    for (uint32_t i = 0; i < worker->tiers.adopted_count; i++)
        KEEL_TRY(list_store(&listing, worker->tiers.adopted[i].store, worker->tiers.adopted[i].tier));
    listing.far = true;
    return worker->tiers.far == NULL || worker->position != 0
               ? KEEL_OK
               : list_store(&listing, worker->tiers.shared, worker->tiers.far);
}

/* ---- choosing ------------------------------------------------------------------------------------------ */

/* When the newest manifest of that generation was made: what is of another one does not count. */
static uint64_t made_ns_of(const struct keel_worker *worker, uint64_t step, uint64_t attempt)
{
    uint64_t made_ns = 0;
    struct keel_offer_said offer;
    for (uint32_t p = 0; p < worker->rank_count; p++)
        if (keel_offers_find(&worker->tiers, p, step, attempt, &offer) && offer.made_ns > made_ns)
            made_ns = offer.made_ns;
    return made_ns;
}

/* What all nodes have of a generation. */
static void sum_up(const struct keel_worker *worker, uint64_t step, uint64_t attempt,
                   struct keel_tier_offer *all)
{
    struct keel_offer_said offer;
    *all = (struct keel_tier_offer){
        .used = true, .step = step, .attempt = attempt, .made_ns = made_ns_of(worker, step, attempt)};
    for (uint32_t p = 0; p < worker->rank_count; p++) {
        if (!keel_offers_find(&worker->tiers, p, step, attempt, &offer))
            continue;
        const bool same = offer.made_ns == all->made_ns;
        all->shard_count = same ? offer.shard_count : all->shard_count;
        all->manifest = all->manifest || (offer.manifest && same);
        all->stored_manifest = all->stored_manifest || (offer.stored_manifest && same);
        all->parity = all->parity || offer.parity;
        all->computed += offer.computed;
        keel_offer_add_said(&worker->tiers, &offer, all);
    }
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

/* The step behind which no snapshot is taken: that of the rank that knows most of the run. */
static uint64_t newest_allowed(const struct keel_worker *worker)
{
    uint64_t records = 0;
    bool known = false;
    for (uint32_t p = 0; p < worker->rank_count; p++) {
        const struct keel_offers_head *head = &worker->tiers.said_offers.heads[p];
        known = known || head->has_records;
        if (head->has_records && head->records > records)
            records = head->records;
    }
    return known && worker->resume != KEEL_RESUME_STEP ? records : UINT64_MAX;
}

static bool offer_is_newer(const struct keel_offer_said *offer, const struct keel_offer_said *than)
{
    return is_newer(offer->step, offer->attempt, than->step, than->attempt);
}

/* Of those up to the records the newest below *all, or of those `behind` them the oldest above it, which
 * lacks the fewest steps; `used` false: none. */
static void next_offer(const struct keel_worker *worker, bool behind, struct keel_tier_offer *all)
{
    struct keel_offer_said best = {.step = 0}, offer;
    const struct keel_offer_said than = {.step = all->step, .attempt = all->attempt};
    const uint64_t allowed = newest_allowed(worker);
    bool found = false;
    for (uint32_t p = 0; p < worker->rank_count; p++)
        for (uint64_t at = 0; keel_offers_next(&worker->tiers, p, &at, &offer);) {
            if ((offer.step > allowed) != behind)
                continue;
            const bool nearer =
                !found || (behind ? offer_is_newer(&best, &offer) : offer_is_newer(&offer, &best));
            const bool beyond =
                !all->used || (behind ? offer_is_newer(&offer, &than) : offer_is_newer(&than, &offer));
            if (nearer && beyond) {
                best = offer;
                found = true;
            }
        }
    if (found)
        sum_up(worker, best.step, best.attempt, all);
    all->used = found;
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
                 " is on no node that is here, and in no store: another is taken",
                 missing, all->shard_count);
    else
        snprintf(detail, sizeof detail, "it could not be brought to its nodes: another is taken");
    keel_worker_note(worker, "snapshot-passed-over", all->step, KEEL_NOT_FOUND, detail);
}

/* ---- looking at it ------------------------------------------------------------------------------------- */

enum keel_status keel_worker_tiers_gather(struct keel_worker *worker, const void *mine, size_t bytes,
                                          void *all)
{
    worker->tiers.restoring.group = worker->group;
    return keel_file_mover_gather(&worker->tiers.restoring, mine, bytes, all,
                                  KEEL_CALLS_OF_GUARDS + worker->tiers.restores++, 0);
}

static enum keel_status gather_offers(struct keel_worker *worker, const uint32_t *node)
{
    struct keel_worker_tiers *tiers = &worker->tiers;
    enum keel_status listed = list_offers(worker, &tiers->mine);
    if (listed != KEEL_OK) {
        keel_log(KEEL_LOG_WARN, "this node's snapshots cannot be listed: %s", keel_detail());
        memset(&tiers->mine, 0, sizeof tiers->mine);
    }
    return keel_worker_gather_offers(worker,
                                     keel_worker_first_of_node(node, worker->position) == worker->position);
}

struct keel_tier_offer *keel_worker_own_offer(struct keel_worker *worker, uint64_t step, uint64_t attempt)
{
    struct listing listing = {worker, &worker->tiers.mine, false};
    return find_or_add(&listing, step, attempt);
}

/* Whole, and of the snapshot of which the manifest here speaks. */
static enum keel_status check_shard(struct keel_worker *worker, const struct keel_object *object)
{
    enum keel_status status = keel_tier_verify(worker->tiers.near, object);
    if (status == KEEL_NOT_FOUND && worker->tiers.adopted_count > 0) {
        keel_worker_adopt_file(worker, object);
        status = keel_tier_verify(worker->tiers.near, object);
    }
    if (status == KEEL_OK)
        status = keel_snapshot_check_shard(worker->store, object->step, object->attempt, object->member);
    return status;
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
        if (shard % here == index && check_shard(worker, &object) == KEEL_OK)
            continue;
        if (shard % here == index)
            keel_worker_note(worker, "shard-damaged", step, KEEL_CORRUPT, keel_detail());
        mine->have[shard / 64] &= ~(UINT64_C(1) << shard % 64);
    }
}

/* ---- bringing it here ---------------------------------------------------------------------------------- */

static bool offers_file(const struct keel_worker *worker, uint32_t p, const struct keel_object *object)
{
    struct keel_offer_said offer;
    if (object->kind == KEEL_OBJECT_SHARD && worker->tiers.brought_to[object->member] == p + 1)
        return true;
    if (!keel_offers_find(&worker->tiers, p, object->step, object->attempt, &offer))
        return false;
    return object->kind == KEEL_OBJECT_MANIFEST
               ? offer.manifest && offer.made_ns == worker->tiers.chosen.made_ns
               : keel_offer_said_has(&worker->tiers, &offer, object->member);
}

/* The first rank at or behind `from` whose node has the file; rank_count: none. */
static uint32_t holder_of(const struct keel_worker *worker, const struct keel_object *object, uint32_t from)
{
    if (object->kind == KEEL_OBJECT_SHARD && !keel_offer_has(worker->tiers.chosen.have, object->member))
        return worker->rank_count;
    for (uint32_t d = 0; d < worker->rank_count; d++)
        if (offers_file(worker, (from + d) % worker->rank_count, object))
            return (from + d) % worker->rank_count;
    return worker->rank_count;
}

static bool node_has(const struct keel_worker *worker, const struct keel_node_ranks *ranks,
                     const struct keel_object *object, uint32_t first)
{
    for (uint32_t p = first; p < worker->rank_count; p = ranks->next[p])
        if (offers_file(worker, p, object))
            return true;
    return false;
}

/* What is to go where, the same list on all ranks, a part at a time: of all shards to all nodes the whole
 * list would be the product of both. What comes from the store has no sender. */
enum { BRING_AT_ONCE = 1 << 16 };
struct bringing {
    struct keel_file_move *moves, *stored; /* owned */
    size_t count, capacity, stored_count, stored_capacity;
    uint32_t member, position; /* the part that comes begins there; */
    bool more;                 /* there is one */
};

/* A file to the node of a rank, unless it has it. */
static enum keel_status want(struct keel_worker *worker, struct bringing *bring,
                             const struct keel_node_ranks *ranks, const struct keel_object *object,
                             uint32_t position)
{
    const uint32_t first = ranks->first[position];
    if (node_has(worker, ranks, object, first))
        return KEEL_OK;
    const uint32_t from = holder_of(worker, object, first);
    const struct keel_file_move move = {.object = *object, .from = (uint16_t)from, .to = (uint16_t)first};
    if (from < worker->rank_count) {
        KEEL_TRY(keel_grow(&bring->moves, &bring->capacity, bring->count + 1, sizeof *bring->moves));
        bring->moves[bring->count++] = move;
        return KEEL_OK;
    }
    KEEL_TRY(
        keel_grow(&bring->stored, &bring->stored_capacity, bring->stored_count + 1, sizeof *bring->stored));
    bring->stored[bring->stored_count++] = move;
    return KEEL_OK;
}

/* The manifest, to all nodes; or shards: those of each node's own ranks, or all. */
enum wanted { MANIFEST, OWN_SHARDS, ALL_SHARDS };

static enum keel_status list_wants(struct keel_worker *worker, struct bringing *bring,
                                   const struct keel_node_ranks *ranks, enum wanted wanted)
{
    const struct keel_tier_offer *chosen = &worker->tiers.chosen;
    struct keel_object object = {.step = chosen->step,
                                 .attempt = chosen->attempt,
                                 .kind = wanted == MANIFEST ? KEEL_OBJECT_MANIFEST : KEEL_OBJECT_SHARD};
    const uint32_t count = wanted == MANIFEST ? 1 : chosen->shard_count;
    bring->more = false;
    bring->count = bring->stored_count = 0;
    if (wanted == OWN_SHARDS) {
        for (uint32_t p = 0; p < count && count == worker->rank_count; p++) {
            object.member = p;
            KEEL_TRY(want(worker, bring, ranks, &object, p));
        }
        return KEEL_OK;
    }
    for (; bring->member < count; bring->member++, bring->position = 0)
        for (; bring->position < worker->rank_count; bring->position++) {
            if (bring->count + bring->stored_count == BRING_AT_ONCE) {
                bring->more = true;
                return KEEL_OK;
            }
            object.member = bring->member;
            if (ranks->first[bring->position] == bring->position)
                KEEL_TRY(want(worker, bring, ranks, &object, bring->position));
        }
    return KEEL_OK;
}

static enum keel_status copy_stored(struct keel_worker *worker, const struct keel_object *object)
{
    if (worker->tiers.far == NULL)
        return keel_fail(KEEL_NOT_FOUND, "this node sees no store");
    KEEL_TRY(keel_tier_copy(worker->tiers.far, object, worker->tiers.near));
    return object->kind == KEEL_OBJECT_MANIFEST
               ? KEEL_OK
               : keel_snapshot_check_shard(worker->store, object->step, object->attempt, object->member);
}

static bool bring_from_store(struct keel_worker *worker, const struct bringing *bring)
{
    bool ok = true;
    for (size_t i = 0; i < bring->stored_count; i++)
        if (bring->stored[i].to == worker->position &&
            copy_stored(worker, &bring->stored[i].object) != KEEL_OK) {
            keel_worker_note(worker, "snapshot-refused", bring->stored[i].object.step, KEEL_CORRUPT,
                             keel_detail());
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

/* All ranks know of it. `brought`: the shards that came from there. Of a manifest all say it themselves next.
 */
static void note_arrival(struct keel_worker *worker, const struct keel_file_move *move, uint64_t *brought)
{
    const uint32_t shard = move->object.member;
    if (move->object.kind == KEEL_OBJECT_MANIFEST)
        return;
    worker->tiers.brought_to[shard] = (uint16_t)(move->to + 1);
    brought[shard / 64] |= UINT64_C(1) << shard % 64;
}

/* A part of the list. *out: on all ranks, whether all of it is where it is to be. */
static enum keel_status bring_part(struct keel_worker *worker, struct bringing *bring,
                                   const struct keel_node_ranks *ranks, enum wanted wanted, bool *out)
{
    struct keel_worker_tiers *tiers = &worker->tiers;
    enum keel_status status = list_wants(worker, bring, ranks, wanted);
    tiers->restoring.group = worker->group;
    if (status == KEEL_OK)
        status = keel_file_mover_run(&tiers->restoring, bring->moves, (uint32_t)bring->count,
                                     KEEL_CALLS_OF_GUARDS + tiers->restores++);
    tiers->said = status == KEEL_OK && all_arrived(worker, bring) && bring_from_store(worker, bring);
    if (status == KEEL_OK)
        status = keel_worker_tiers_gather(worker, &tiers->said, sizeof tiers->said, tiers->heard);
    *out = status == KEEL_OK;
    for (uint32_t p = 0; p < worker->rank_count; p++)
        *out = *out && tiers->heard[p];
    for (size_t i = 0; i < bring->stored_count && *out; i++)
        note_arrival(worker, &bring->stored[i], tiers->from_store);
    for (size_t i = 0; i < bring->count && *out; i++)
        note_arrival(worker, &bring->moves[i], tiers->from_nodes);
    return status;
}

static enum keel_status bring(struct keel_worker *worker, const uint32_t *node, enum wanted wanted, bool *out)
{
    struct bringing bring = {.more = true};
    struct keel_node_ranks ranks;
    enum keel_status status = KEEL_OK;
    *out = true;
    keel_worker_node_ranks(node, worker->rank_count, &ranks);
    while (bring.more && *out && status == KEEL_OK)
        status = bring_part(worker, &bring, &ranks, wanted, out);
    keel_free(bring.moves);
    keel_free(bring.stored);
    return status;
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

/* This node offers a manifest that an absent one left. */
static void adopt_manifest(struct keel_worker *worker, const struct keel_tier_offer *all)
{
    const struct keel_tier_offer *mine = keel_worker_own_offer(worker, all->step, all->attempt);
    const struct keel_object object = {
        .step = all->step, .attempt = all->attempt, .kind = KEEL_OBJECT_MANIFEST};
    if (worker->tiers.adopted_count > 0 && mine != NULL && mine->manifest &&
        keel_tier_verify(worker->tiers.near, &object) != KEEL_OK)
        keel_worker_adopt_file(worker, &object);
}

/* After the manifest is on all nodes, so that what is not its own counts nowhere. */
static enum keel_status look_and_gather(struct keel_worker *worker, const uint32_t *node,
                                        struct keel_tier_offer *all)
{
    struct keel_tier_offer *mine = keel_worker_own_offer(worker, all->step, all->attempt);
    if (mine != NULL) { /* as it was brought */
        mine->manifest = true;
        mine->made_ns = all->made_ns;
        mine->shard_count = all->shard_count;
    }
    look_through(worker, node, all->step, all->attempt);
    KEEL_TRY(keel_worker_gather_offers(worker, true));
    sum_up(worker, all->step, all->attempt, all);
    return KEEL_OK;
}

/* Looked through, and where it is to be: false in *out: it cannot be had. */
static enum keel_status take(struct keel_worker *worker, const uint32_t *node, struct keel_tier_offer *all,
                             bool *out)
{
    struct keel_worker_tiers *tiers = &worker->tiers;
    tiers->chosen = *all;
    memset(tiers->from_nodes, 0, sizeof tiers->from_nodes);
    memset(tiers->from_store, 0, sizeof tiers->from_store);
    memset(tiers->brought_to, 0, all->shard_count * sizeof tiers->brought_to[0]);
    adopt_manifest(worker, all);
    KEEL_TRY(bring(worker, node, MANIFEST, out));
    if (!*out)
        return KEEL_OK;
    KEEL_TRY(look_and_gather(worker, node, all));
    if (!is_complete(all) && all->parity) {
        KEEL_TRY(keel_worker_compute_shards(worker, all, KEEL_CALLS_OF_GUARDS + tiers->restores++));
        KEEL_TRY(keel_worker_gather_offers(worker, true));
        sum_up(worker, all->step, all->attempt, all);
    }
    *out = is_complete(all);
    tiers->chosen = *all;
    return *out ? bring(worker, node, OWN_SHARDS, out) : KEEL_OK;
}

/* A node of the job is not in the view: it may have what is missing. */
static bool is_some_absent(const struct keel_worker *worker)
{
    for (uint32_t node = 1; node <= keel_job_node_count(&worker->job); node++)
        if (!keel_worker_sees_node(worker, node))
            return true;
    return false;
}

/* This run took a snapshot, as far as is known here; or began without this rank, which was a spare. */
static bool may_have_committed(const struct keel_worker *worker)
{
    const struct keel_worker_tiers *tiers = &worker->tiers;
    if (worker->resume == KEEL_RESUME_NONE)
        return false;
    return tiers->has_records != 0 ? tiers->records >= worker->job.snapshot_every : worker->view.epoch > 1;
}

/* PEER_LOST: the next view is waited for, and who is still away then, as by restarts of workers. */
static enum keel_status none_is_left(const struct keel_worker *worker, uint64_t seen)
{
    const struct keel_worker_tiers *tiers = &worker->tiers;
    const bool known = tiers->has_committed || seen > 0, absent = is_some_absent(worker);
    if (worker->resume == KEEL_RESUME_STEP && !worker->snapshot.has_bound)
        return keel_fail(KEEL_NOT_FOUND,
                         "--resume %" PRIu64 ": no node has a snapshot of that step that is whole",
                         worker->resume_step);
    if (!known && absent && may_have_committed(worker))
        return keel_fail(KEEL_PEER_LOST, "no node here has a snapshot, and nodes are away that may have: "
                                         "they are waited for");
    if (!known)
        return KEEL_OK;
    return keel_fail(absent ? KEEL_PEER_LOST : KEEL_CORRUPT,
                     "this run committed a snapshot of step %" PRIu64
                     ", and what the nodes here have (and the "
                     "store, if there is one) makes no whole one: bring back the nodes, or copies of their "
                     "directories, or give --resume none to begin at step 1",
                     tiers->has_committed && tiers->committed > seen ? tiers->committed : seen);
}

/* The first view of a run's directory has epoch 1, as that of another directory had: what lies here is not of
 * this run, and has the names that its own snapshots are to have. */
static enum keel_status refuse_leftovers(const struct keel_worker *worker)
{
    for (uint32_t p = 0; p < worker->rank_count && worker->view.epoch == 1; p++) {
        const struct keel_offers_head *head = &worker->tiers.said_offers.heads[p];
        if (head->has_newest && (worker->resume != KEEL_RESUME_STEP || head->newest > worker->resume_step))
            return keel_fail(
                KEEL_INVALID,
                "snapshot.local = %.200s: rank %u's node has snapshots of a run %s, the newest of "
                "step %" PRIu64 ", and this directory is of a new run: give that run's own "
                "directory (--out) to go on with it, or another snapshot.local, or remove them",
                worker->job.snapshot_local, worker->position_rank[p], worker->job.name, head->newest);
    }
    return KEEL_OK;
}

/* The first whole one up to the records, or `behind` them, its files brought; what is damaged is passed over.
 * *seen: the newest step of which there is a manifest. */
static enum keel_status take_first(struct keel_worker *worker, const uint32_t *node, bool behind,
                                   uint64_t *seen, bool *found)
{
    struct keel_tier_offer all = {.used = false};
    for (next_offer(worker, behind, &all); all.used && !*found;) {
        const bool committed = all.manifest || all.stored_manifest;
        if (is_complete(&all) || (all.parity && all.shard_count > 0))
            KEEL_TRY(take(worker, node, &all, found));
        if (!*found && committed)
            note_passed_over(worker, &all);
        *seen = committed && all.step > *seen ? all.step : *seen;
        if (!*found)
            next_offer(worker, behind, &all);
    }
    return KEEL_OK;
}

/* Where the nodes have committed for so long without a leader that heard of steps that nothing older is kept,
 * the run goes on from what there is, and metrics.jsonl lacks these steps. */
enum keel_status keel_worker_tiers_choose(struct keel_worker *worker)
{
    struct keel_worker_tiers *tiers = &worker->tiers;
    uint32_t node[KEEL_MEMBERS_MAX];
    uint64_t seen = 0;
    bool found = false;
    if (tiers->near == NULL)
        return KEEL_OK;
    keel_worker_nodes(worker, node);
    tiers->chosen = (struct keel_tier_offer){.used = false};
    KEEL_TRY(gather_offers(worker, node));
    KEEL_TRY(refuse_leftovers(worker));
    KEEL_TRY(take_first(worker, node, false, &seen, &found));
    if (!found && (seen == 0 || !is_some_absent(worker))) /* else who is away may have what is missing */
        KEEL_TRY(take_first(worker, node, true, &seen, &found));
    keel_worker_adopt_end(worker);
    tiers->chosen.used = found;
    worker->sync_all[0].snapshot_count = found ? 1 : 0;
    worker->sync_all[0].snapshot_step = tiers->chosen.step;
    return found ? KEEL_OK : none_is_left(worker, seen);
}

enum keel_status keel_worker_tiers_fetch_all(struct keel_worker *worker)
{
    uint32_t node[KEEL_MEMBERS_MAX];
    bool all;
    if (worker->tiers.near == NULL || !worker->tiers.chosen.used)
        return KEEL_OK;
    keel_worker_nodes(worker, node);
    return bring(worker, node, ALL_SHARDS, &all);
}

static uint32_t count_shards(const uint64_t *set, const uint64_t *without)
{
    uint32_t count = 0;
    for (uint32_t shard = 0; shard < KEEL_MEMBERS_MAX; shard++)
        count += keel_offer_has(set, shard) && (without == NULL || !keel_offer_has(without, shard));
    return count;
}

void keel_worker_tiers_text(const struct keel_worker *worker, char *out, size_t bytes)
{
    const struct keel_worker_tiers *tiers = &worker->tiers;
    out[0] = '\0';
    if (tiers->near == NULL || !tiers->chosen.used)
        return;
    const uint32_t computed = tiers->chosen.computed;
    const uint32_t from_store =
        count_shards(tiers->from_store, NULL); /* and then perhaps from node to node */
    const uint32_t from_nodes = count_shards(tiers->from_nodes, tiers->from_store);
    if (computed > 0)
        snprintf(out, bytes, ", from the nodes' directories, with %u shards computed from parity", computed);
    else if (from_nodes == 0 && from_store == 0)
        snprintf(out, bytes, ", from the nodes' own directories");
    else
        snprintf(
            out, bytes,
            ", from the nodes' directories, with %u shards from copies on other nodes and %u from the store",
            from_nodes, from_store);
}
