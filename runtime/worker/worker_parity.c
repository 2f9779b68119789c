/* worker_parity.c - snapshot.erasure: parity of the shards of K + M nodes, and shards that are computed from
 * it.
 *
 * One rank of a set does it for all, over links to a rank of each other node, which serves its node's
 * directory meanwhile (keel_tier_serve). What is a set and what is in its files is ckpt's (keel/ckpt_tier.h).
 * All ranks know from the view who is in which set. */
#include "worker_internal.h"
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

enum { SETS_MAX = KEEL_MEMBERS_MAX };
static const uint64_t call_timeout_ns = 86400 * KEEL_NS_PER_S; /* a view's end ends it sooner */

/* ---- sets ---------------------------------------------------------------------------------------------- */

/* The nodes of a view, such that neighbours are on different hosts where they can be. */
struct layout {
    uint32_t count;                   /* of nodes */
    uint32_t first[KEEL_MEMBERS_MAX]; /* position of each node's first rank */
    uint32_t node[KEEL_MEMBERS_MAX];  /* by position */
    uint32_t rank_count, most;        /* most: ranks of a node */
};

/* The position of rank number `local` of a node; rank_count: it has none. */
static uint32_t rank_of(const struct layout *layout, uint32_t number, uint32_t local)
{
    for (uint32_t p = layout->first[number]; p < layout->rank_count; p++)
        if (layout->node[p] == layout->node[layout->first[number]] && local-- == 0)
            return p;
    return layout->rank_count;
}

/* The first node of each host, then the second of each, and so on. */
static void find_layout(const struct keel_worker *worker, struct layout *out)
{
    uint32_t firsts[KEEL_MEMBERS_MAX],
        turns[KEEL_MEMBERS_MAX]; /* by node: its first position, and its turn */
    uint32_t on_host[KEEL_NODES_MAX] = {0}, nodes = 0;
    struct keel_node_ranks ranks;
    out->rank_count = keel_worker_nodes(worker, out->node);
    out->count = out->most = 0;
    keel_worker_node_ranks(out->node, out->rank_count, &ranks);
    for (uint32_t p = 0; p < out->rank_count; p++) {
        if (ranks.first[p] != p)
            continue;
        turns[nodes] = on_host[keel_job_host_of(&worker->job, worker->host_count, out->node[p])]++;
        firsts[nodes++] = p;
    }
    for (uint32_t turn = 0; out->count < nodes; turn++)
        for (uint32_t i = 0; i < nodes; i++)
            if (turns[i] == turn)
                out->first[out->count++] = firsts[i];
    for (uint32_t i = 0; i < out->count; i++)
        while (rank_of(out, i, out->most) < out->rank_count)
            out->most++;
}

/* Of each member whose shard it has, and which of its ranks serves. */
struct members {
    uint32_t ranks[KEEL_ERASURE_NODES_MAX], positions[KEEL_ERASURE_NODES_MAX];
    uint32_t link; /* number of the links between them: two that meet in several sets have another in each */
    bool some;     /* there is a shard */
};

/* Set number `set`: of the ranks with one number on their nodes, so many neighbours. The last nodes fill a
 * set with some that have their shards in the set before. */
static void find_members(const struct layout *layout, uint32_t nodes, uint32_t set, struct members *out)
{
    const uint32_t groups = (layout->count + nodes - 1) / nodes, local = set / groups, group = set % groups;
    const uint32_t own = group * nodes, first = own + nodes <= layout->count ? own : layout->count - nodes;
    out->some = false;
    out->link =
        2 * local + (first < own ? 1 : 0); /* two nodes meet in one set of a number, and in the last */
    for (uint32_t i = 0; i < nodes; i++) {
        const uint32_t rank = rank_of(layout, first + i, local);
        const bool has = rank < layout->rank_count;
        out->positions[i] = has ? rank : layout->first[first + i];
        out->ranks[i] = has && first + i >= own ? rank : KEEL_ERASURE_NO_SHARD;
        out->some = out->some || out->ranks[i] != KEEL_ERASURE_NO_SHARD;
    }
}

/* ---- links --------------------------------------------------------------------------------------------- */

/* Of who asks: one to each other. */
struct links {
    struct keel_file_link links[KEEL_ERASURE_NODES_MAX];
    struct keel_tier *tiers[KEEL_ERASURE_NODES_MAX]; /* own directory where it is this rank's; owned else */
    uint32_t count;
};

static enum keel_status open_links(struct keel_worker *worker, struct keel_file_mover *mover,
                                   const uint32_t *positions, uint32_t count, uint64_t call, uint32_t number,
                                   struct links *out)
{
    enum keel_status status = KEEL_OK;
    memset(out, 0, sizeof *out);
    for (; out->count < count && status == KEEL_OK; out->count++) {
        const uint32_t p = positions[out->count];
        struct keel_file_link *link = &out->links[out->count];
        struct keel_tier_link messages;
        char name[KEEL_TIER_NAME_BYTES];
        if (p == worker->position) {
            out->tiers[out->count] = worker->tiers.near;
            continue;
        }
        *link = (struct keel_file_link){.mover = mover, .call = call, .number = number, .peer = p};
        snprintf(name, sizeof name, "the directory of rank %u's node", worker->position_rank[p]);
        status = keel_file_link_open(link, &messages);
        if (status == KEEL_OK)
            status = keel_tier_remote_open(&messages, KEEL_LATENCY_MEMORY, worker->job.name, name,
                                           call_timeout_ns, &out->tiers[out->count]);
    }
    return status;
}

static enum keel_status close_links(struct keel_worker *worker, struct links *links, enum keel_status status)
{
    for (uint32_t i = 0; i < links->count; i++) {
        if (links->links[i].mover == NULL)
            continue;
        keel_tier_end(links->tiers[i] == worker->tiers.near ? NULL : links->tiers[i]);
        const enum keel_status ended = keel_file_link_end(&links->links[i]);
        status = status == KEEL_OK ? ended : status;
    }
    return status;
}

/* Of who is asked: until the other has what it wants. */
static enum keel_status serve(struct keel_worker *worker, struct keel_file_mover *mover, uint32_t peer,
                              uint64_t call, uint32_t number)
{
    struct keel_file_link link = {.mover = mover, .call = call, .number = number, .peer = peer};
    struct keel_tier_link messages;
    KEEL_TRY(keel_file_link_open(&link, &messages));
    enum keel_status status = keel_tier_serve(worker->tiers.near, &messages, call_timeout_ns);
    return status == KEEL_PEER_LOST && link.ended ? KEEL_OK : status;
}

/* ---- making parity ------------------------------------------------------------------------------------- */

static enum keel_status make_set(struct keel_worker *worker, struct keel_guard *guard,
                                 const struct members *members, const struct keel_erasure_config *config,
                                 uint64_t call)
{
    struct links links;
    struct keel_erasure_config what = *config;
    enum keel_status made = open_links(worker, &guard->mover, members->positions, config->node_count, call,
                                       members->link, &links);
    what.ranks = members->ranks;
    what.from = what.to = links.tiers;
    if (made == KEEL_OK)
        made = keel_erasure_protect(&what);
    if (made != KEEL_OK) {
        guard->at_fault = true;
        guard->mine.ok = false;
        guard->status = made;
        snprintf(guard->detail, sizeof guard->detail, "no parity was made: %.400s", keel_detail());
    }
    return close_links(worker, &links, KEEL_OK);
}

enum keel_status keel_worker_make_parity(struct keel_guard *guard, uint64_t call)
{
    struct keel_worker *worker = guard->worker;
    struct layout layout;
    uint32_t nodes, parity;
    if (!keel_job_erasure(&worker->job, &nodes, &parity))
        return KEEL_OK;
    find_layout(worker, &layout);
    if (layout.count < nodes) { /* until lost nodes are back */
        if (guard->position == 0)
            keel_worker_note(worker, "no-parity", guard->step, KEEL_NOT_FOUND,
                             "snapshot.erasure wants more nodes than are here: this one has no parity");
        return KEEL_OK;
    }
    const uint32_t sets = (layout.count + nodes - 1) / nodes * layout.most;
    for (uint32_t set = 0; set < sets; set++) {
        struct members members;
        const struct keel_erasure_config config = {.step = guard->step,
                                                   .attempt = guard->attempt,
                                                   .set = set,
                                                   .node_count = nodes,
                                                   .parity_count = parity};
        find_members(&layout, nodes, set, &members);
        const uint32_t maker = members.positions[set % nodes];
        for (uint32_t i = 0; i < nodes && members.some; i++) {
            if (members.positions[i] != guard->position)
                continue;
            KEEL_TRY(maker == guard->position ? make_set(worker, guard, &members, &config, call)
                                              : serve(worker, &guard->mover, maker, call, members.link));
        }
    }
    return KEEL_OK;
}

/* ---- computing shards ---------------------------------------------------------------------------------- */

/* Sets of a generation of which some node has parity. */
struct search {
    uint64_t step, attempt;
    bool sets[SETS_MAX];
};

static enum keel_status see_parity(void *context, const struct keel_object_info *info)
{
    struct search *search = context;
    const struct keel_object *object = &info->object;
    if (object->kind == KEEL_OBJECT_PARITY && object->step == search->step &&
        object->attempt == search->attempt && object->set < SETS_MAX)
        search->sets[object->set] = true;
    return KEEL_OK;
}

/* From the first set that can give it. */
static bool compute(struct keel_worker *worker, const struct links *links, const struct search *search,
                    uint32_t shard)
{
    const struct keel_object object = {
        .step = search->step, .attempt = search->attempt, .kind = KEEL_OBJECT_SHARD, .member = shard};
    bool done = false;
    for (uint32_t set = 0; set < SETS_MAX && !done; set++) {
        struct keel_tier *tier;
        if (!search->sets[set] || keel_tier_erasure_open(links->tiers, links->count, search->step,
                                                         search->attempt, set, &tier) != KEEL_OK)
            continue;
        done = keel_tier_copy(tier, &object, worker->tiers.near) == KEEL_OK &&
               keel_snapshot_check_shard(worker->store, object.step, object.attempt, shard) == KEEL_OK;
        if (!done)
            keel_log(KEEL_LOG_INFO, "shard %u from set %u: %s", shard, set, keel_detail());
        keel_tier_end(tier);
    }
    return done;
}

static enum keel_status compute_missing(struct keel_worker *worker, struct keel_tier_offer *all,
                                        const uint32_t *positions, uint32_t count, uint64_t call)
{
    struct links links;
    struct search search = {.step = all->step, .attempt = all->attempt};
    struct keel_tier_offer *mine = keel_worker_own_offer(worker, all->step, all->attempt);
    enum keel_status status = open_links(worker, &worker->tiers.restoring, positions, count, call, 0, &links);
    for (uint32_t i = 0; i < links.count && status == KEEL_OK; i++)
        if (keel_tier_list(links.tiers[i], see_parity, &search) == KEEL_NO_MEMORY)
            status = KEEL_NO_MEMORY;
    for (uint32_t shard = 0; shard < all->shard_count && status == KEEL_OK && mine != NULL; shard++) {
        if (keel_offer_has(all->have, shard) || keel_offer_has(all->stored, shard) ||
            !compute(worker, &links, &search, shard))
            continue;
        mine->have[shard / 64] |= UINT64_C(1) << shard % 64;
        mine->computed++;
    }
    return close_links(worker, &links, status);
}

enum keel_status keel_worker_compute_shards(struct keel_worker *worker, struct keel_tier_offer *all,
                                            uint64_t call)
{
    struct layout layout;
    find_layout(worker, &layout);
    if (worker->group == NULL || layout.count > KEEL_ERASURE_NODES_MAX)
        return KEEL_OK;
    worker->tiers.restoring.group = worker->group;
    if (worker->position == layout.first[0])
        return compute_missing(worker, all, layout.first, layout.count, call);
    if (keel_worker_first_of_node(layout.node, worker->position) == worker->position)
        return serve(worker, &worker->tiers.restoring, layout.first[0], call, 0);
    return KEEL_OK;
}
