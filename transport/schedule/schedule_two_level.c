/* schedule_two_level.c - within hosts, then between them, then within: few bytes and hops on the slow links.
 *
 * Hosts of equal size: the ranks with the same place in their hosts make a team across; each host sums or
 * spreads by slices, so that every rank carries 1/h of what goes between hosts. Within and across, halving
 * and doubling where the team is a power of two (in tree order, if ranks lie in order host by host), else a
 * ring: under 64 peers whatever the sizes. In an all-to-all every block goes to the rank of its host that has
 * the place of its end, and on from there: h + s - 2 peers instead of n - 1, and nearly twice the blocks.
 * What has a root goes by binomial trees over one rank a host, then within hosts of any size. */
#include "schedule_build.h"

#include <keel/memory.h>

struct hosts {
    uint32_t count;       /* hosts, numbered by their first rank */
    uint32_t *first;      /* count + 1: into ranks: */
    uint32_t *ranks;      /*   host by host, ascending */
    uint32_t *across;     /* equal hosts: ranks by place in the host, then by host */
    uint32_t *heads;      /* by host: the rank that speaks for it */
    uint32_t *count_up;   /* 0, 1, 2, ... */
    uint32_t host, place; /* of this rank */
    uint32_t head_place;  /* in this host */
};

static void hosts_free(struct hosts *hosts)
{
    keel_free(hosts->first);
    keel_free(hosts->ranks);
    keel_free(hosts->across);
    keel_free(hosts->heads);
    keel_free(hosts->count_up);
}

/* index: by host number, the host's index + 1. */
static void number_hosts(const struct keel_collective_key *key, struct hosts *hosts, uint32_t *index)
{
    for (uint32_t rank = 0; rank < key->rank_count; rank++) {
        uint32_t number = keel_key_host(key, rank);
        if (index[number] == 0)
            index[number] = ++hosts->count;
        hosts->first[index[number]]++;
    }
    for (uint32_t host = 0; host < hosts->count; host++)
        hosts->first[host + 1] += hosts->first[host];
    hosts->host = index[keel_key_host(key, key->rank)] - 1;
    for (uint32_t rank = 0; rank < key->rank_count; rank++) {
        uint32_t host = index[keel_key_host(key, rank)] - 1;
        if (rank == key->rank)
            hosts->place = hosts->heads[host];
        hosts->ranks[hosts->first[host] + hosts->heads[host]++] = rank;
    }
}

static void seat_ranks(struct hosts *hosts, const struct keel_facts *facts)
{
    for (uint32_t host = 0; host < hosts->count; host++)
        hosts->heads[host] = hosts->ranks[hosts->first[host]];
    for (uint32_t k = 0; facts->hosts_equal && k < facts->ranks; k++)
        hosts->across[k % facts->host_ranks * facts->hosts + k / facts->host_ranks] = hosts->ranks[k];
}

static enum keel_status hosts_init(struct hosts *hosts, const struct keel_builder *builder)
{
    const struct keel_collective_key *key = builder->key;
    uint32_t *index = NULL, ranks = key->rank_count, numbers = 1;
    for (uint32_t rank = 0; rank < ranks; rank++)
        numbers = keel_key_host(key, rank) >= numbers ? keel_key_host(key, rank) + 1 : numbers;
    KEEL_TRY(keel_alloc(ranks + 1, sizeof *hosts->first, (void *)&hosts->first));
    KEEL_TRY(keel_alloc(ranks, sizeof *hosts->ranks, (void *)&hosts->ranks));
    KEEL_TRY(keel_alloc(ranks, sizeof *hosts->across, (void *)&hosts->across));
    KEEL_TRY(keel_alloc(ranks, sizeof *hosts->heads, (void *)&hosts->heads));
    KEEL_TRY(keel_alloc(ranks + 1, sizeof *hosts->count_up, (void *)&hosts->count_up));
    KEEL_TRY(keel_alloc(numbers, sizeof *index, (void *)&index));
    for (uint32_t k = 0; k <= ranks; k++)
        hosts->count_up[k] = k;
    number_hosts(key, hosts, index);
    keel_free(index);
    seat_ranks(hosts, &builder->facts);
    return KEEL_OK;
}

static struct keel_team within(const struct hosts *hosts)
{
    return (struct keel_team){.count = hosts->first[hosts->host + 1] - hosts->first[hosts->host],
                              .mine = hosts->place,
                              .ranks = hosts->ranks + hosts->first[hosts->host]};
}

static struct keel_team between(const struct hosts *hosts)
{
    return (struct keel_team){.count = hosts->count, .mine = hosts->host, .ranks = hosts->heads};
}

/* ---- slices: hosts of equal size ---- */

/* A host's slices, one a place: of each slice one block for every host. And the blocks of this rank's slice.
 */
struct slices {
    struct keel_team within, across;
    struct keel_sets slices, blocks;
    uint32_t *first; /* of both sets */
};

static void slices_init(struct keel_builder *builder, const struct hosts *hosts, struct slices *out)
{
    uint32_t size = builder->facts.host_ranks, count = hosts->count;
    if (builder->status == KEEL_OK)
        builder->status = keel_alloc(size + count + 2, sizeof *out->first, (void *)&out->first);
    if (builder->status != KEEL_OK)
        return;
    for (uint32_t place = 0; place <= size; place++)
        out->first[place] = place * count;
    for (uint32_t host = 0; host <= count; host++)
        out->first[size + 1 + host] = host;
    const uint32_t *mine = hosts->across + (size_t)hosts->place * count;
    out->within = within(hosts);
    out->across = (struct keel_team){.count = count, .mine = hosts->host, .ranks = mine};
    out->slices = (struct keel_sets){out->first, hosts->across};
    out->blocks = (struct keel_sets){out->first + size + 1, mine};
}

static void scatter_sums(struct keel_builder *builder, const struct keel_team *team,
                         const struct keel_sets *sets, bool last)
{
    (keel_is_power_of_two(team->count) ? keel_halving_scatter_sums : keel_ring_scatter_sums)(builder, team,
                                                                                             sets, last);
}

static void gather_all(struct keel_builder *builder, const struct keel_team *team,
                       const struct keel_sets *sets)
{
    (keel_is_power_of_two(team->count) ? keel_doubling_gather_all : keel_ring_gather_all)(builder, team,
                                                                                          sets);
}

static void list_slices(struct keel_builder *builder, const struct slices *slices)
{
    enum keel_collective_kind kind = builder->key->kind;
    uint32_t ranks = builder->schedule->rank_count, rank = builder->schedule->rank;
    bool gathers = kind == KEEL_ALL_GATHER || kind == KEEL_ALL_GATHER_V;
    keel_build_blocks(builder, gathers ? 1 : ranks, kind == KEEL_REDUCE_SCATTER ? 1 : ranks,
                      kind == KEEL_REDUCE_SCATTER ? KEEL_SPACE_PART : KEEL_SPACE_RESULT);
    keel_build_values(builder, ranks);
    if (builder->status != KEEL_OK)
        return;
    if (gathers) {
        builder->value[rank] = keel_operand_part(0, 0);
    } else {
        scatter_sums(builder, &slices->within, &slices->slices, slices->across.count == 1);
        scatter_sums(builder, &slices->across, &slices->blocks, true);
    }
    if (kind == KEEL_REDUCE_SCATTER) {
        keel_build_settle(builder, rank);
        return;
    }
    gather_all(builder, &slices->across, &slices->blocks);
    gather_all(builder, &slices->within, &slices->slices);
}

/* ---- all-to-all: hosts of equal size ---- */

static uint32_t rank_at(const struct hosts *hosts, uint32_t host, uint32_t place)
{
    return hosts->across[(size_t)place * hosts->count + host];
}

/* Of what comes from a rank of this host, what is for this host ends here; the rest waits in `passing`, by
 * host and place. */
static void trade_within(struct keel_builder *builder, const struct hosts *hosts,
                         struct keel_operand *passing)
{
    uint32_t size = builder->facts.host_ranks;
    for (uint32_t k = 1; k < size; k++) {
        uint32_t to = (hosts->place + k) % size, from = (hosts->place + size - k) % size;
        uint32_t source = rank_at(hosts, hosts->host, from);
        for (uint32_t host = 0; host < hosts->count; host++)
            keel_build_send(builder, rank_at(hosts, hosts->host, to),
                            keel_operand_part(0, rank_at(hosts, host, to)));
        for (uint32_t host = 0; host < hosts->count; host++) {
            struct keel_operand place =
                host == hosts->host ? keel_operand_result(source) : keel_build_temp(builder, source);
            keel_build_receive(builder, source, place);
            passing[host * size + from] = place;
        }
    }
}

static void trade_between(struct keel_builder *builder, const struct hosts *hosts,
                          const struct keel_operand *passing)
{
    uint32_t size = builder->facts.host_ranks, count = hosts->count;
    for (uint32_t k = 1; k < count; k++) {
        uint32_t to = (hosts->host + k) % count, from = (hosts->host + count - k) % count;
        uint32_t end = rank_at(hosts, to, hosts->place);
        for (uint32_t place = 0; place < size; place++)
            keel_build_send(builder, end,
                            place == hosts->place ? keel_operand_part(0, end) : passing[to * size + place]);
        for (uint32_t place = 0; place < size; place++)
            keel_build_receive(builder, rank_at(hosts, from, hosts->place),
                               keel_operand_result(rank_at(hosts, from, place)));
    }
}

static void two_level_all_to_all(struct keel_builder *builder, const struct hosts *hosts)
{
    uint32_t ranks = builder->schedule->rank_count, rank = builder->schedule->rank;
    struct keel_operand *passing = NULL;
    keel_build_blocks(builder, ranks, ranks, KEEL_SPACE_RESULT);
    if (builder->status == KEEL_OK)
        builder->status = keel_alloc(ranks, sizeof *passing, (void *)&passing);
    if (builder->status != KEEL_OK)
        return;
    trade_within(builder, hosts, passing);
    trade_between(builder, hosts, passing);
    keel_build_copy(builder, keel_operand_result(rank), keel_operand_part(0, rank));
    keel_free(passing);
}

/* ---- what has a root, and the barrier ---- */

static void two_level_broadcast(struct keel_builder *builder, const struct hosts *hosts, uint32_t root_host)
{
    struct keel_team inside = within(hosts), heads = between(hosts);
    keel_build_blocks(builder, 1, 1, KEEL_SPACE_RESULT);
    keel_build_values(builder, 1);
    if (hosts->place == hosts->head_place)
        keel_tree_broadcast(builder, &heads, root_host, 1);
    keel_tree_broadcast(builder, &inside, hosts->head_place, 1);
}

/* To the first rank of the first host, in order; from there to the root. */
static void two_level_reduce(struct keel_builder *builder, const struct hosts *hosts)
{
    struct keel_team inside = within(hosts), heads = between(hosts);
    uint32_t rank = builder->schedule->rank, root = builder->key->root, end = hosts->ranks[0];
    keel_build_blocks(builder, 1, 1, KEEL_SPACE_RESULT);
    keel_build_values(builder, 1);
    keel_tree_sum_team(builder, &inside, 1);
    if (hosts->place == 0)
        keel_tree_sum_team(builder, &heads, 1);
    if (builder->status != KEEL_OK)
        return;
    if (rank == end && rank == root)
        keel_build_settle(builder, 0);
    else if (rank == end)
        keel_build_send(builder, root, builder->value[0]);
    else if (rank == root)
        keel_build_receive(builder, end, keel_operand_result(0));
}

static void two_level_gather(struct keel_builder *builder, const struct hosts *hosts, uint32_t root_host)
{
    struct keel_team inside = within(hosts), heads = between(hosts);
    uint32_t ranks = builder->schedule->rank_count, rank = builder->schedule->rank;
    const struct keel_sets whole = {hosts->first, hosts->ranks};
    keel_build_blocks(builder, 1, ranks, KEEL_SPACE_RESULT);
    keel_build_values(builder, ranks);
    if (builder->status != KEEL_OK)
        return;
    builder->value[rank] = keel_operand_part(0, 0);
    const struct keel_sets own = {hosts->count_up, inside.ranks};
    keel_tree_gather(builder, &inside, hosts->head_place, &own, rank == builder->key->root);
    if (hosts->place == hosts->head_place)
        keel_tree_gather(builder, &heads, root_host, &whole, true);
}

static void two_level_scatter(struct keel_builder *builder, const struct hosts *hosts, uint32_t root_host)
{
    struct keel_team inside = within(hosts), heads = between(hosts);
    uint32_t ranks = builder->schedule->rank_count;
    const struct keel_sets whole = {hosts->first, hosts->ranks}, own = {hosts->count_up, inside.ranks};
    keel_build_blocks(builder, ranks, 1, KEEL_SPACE_PART);
    keel_build_values(builder, ranks);
    if (hosts->place == hosts->head_place)
        keel_tree_scatter(builder, &heads, root_host, &whole, false);
    keel_tree_scatter(builder, &inside, hosts->head_place, &own, true);
}

static void two_level_barrier(struct keel_builder *builder, const struct hosts *hosts)
{
    struct keel_team inside = within(hosts), heads = between(hosts);
    keel_build_blocks(builder, 1, 1, KEEL_SPACE_RESULT);
    keel_build_values(builder, 1);
    keel_tree_sum_team(builder, &inside, 1);
    if (hosts->place == 0)
        keel_bruck_meet(builder, &heads);
    keel_tree_broadcast(builder, &inside, 0, 1);
}

/* The root speaks for its host. */
static uint32_t seat_root(struct hosts *hosts, uint32_t root)
{
    uint32_t host = 0, at = 0;
    while (hosts->ranks[at] != root)
        at++;
    while (hosts->first[host + 1] <= at)
        host++;
    hosts->heads[host] = root;
    if (host == hosts->host)
        hosts->head_place = at - hosts->first[host];
    return host;
}

static void list_kind(struct keel_builder *builder, struct hosts *hosts)
{
    struct slices slices = {0};
    switch (builder->key->kind) {
    case KEEL_BROADCAST:
        two_level_broadcast(builder, hosts, seat_root(hosts, builder->key->root));
        return;
    case KEEL_REDUCE:
        two_level_reduce(builder, hosts);
        return;
    case KEEL_GATHER:
        two_level_gather(builder, hosts, seat_root(hosts, builder->key->root));
        return;
    case KEEL_SCATTER:
        two_level_scatter(builder, hosts, seat_root(hosts, builder->key->root));
        return;
    case KEEL_BARRIER:
        two_level_barrier(builder, hosts);
        return;
    case KEEL_ALL_TO_ALL:
        two_level_all_to_all(builder, hosts);
        return;
    default:
        slices_init(builder, hosts, &slices);
        list_slices(builder, &slices);
        keel_free(slices.first);
    }
}

void keel_schedule_two_level(struct keel_builder *builder)
{
    struct hosts hosts = {0};
    builder->status = hosts_init(&hosts, builder);
    if (builder->status == KEEL_OK)
        list_kind(builder, &hosts);
    hosts_free(&hosts);
}
