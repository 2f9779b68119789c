/* schedule_facts.c - what a key is like: its shard map, its hosts; and which algorithms can do it.
 *
 * Pure, without memory, so that the generators, the cost model and the formulas of bytes say the same of the
 * same key, on every rank. */
#include "schedule_build.h"

#include <string.h>

#define MIXED UINT32_MAX

bool keel_is_power_of_two(uint32_t count)
{
    return (count & (count - 1)) == 0;
}

uint32_t keel_key_host(const struct keel_collective_key *key, uint32_t rank)
{
    return key->host_of != NULL ? key->host_of[rank] : 0;
}

/* ---- the tree over shards ---- */

/* A node: who makes its value, how many messages deep, and whether one rank holds all of it. */
struct climbed {
    uint32_t maker, steps;
    bool whole;
};

static void count_leaf(struct keel_facts *facts, const struct keel_collective_key *key, struct climbed child)
{
    if (!child.whole)
        return;
    facts->leaves++;
    facts->root_leaves += child.maker == key->root;
}

/* What its maker needs for a node, of each block: a place for what comes, and one for the sum, unless that
 * goes where a sum was. */
static void count_temps(struct keel_facts *facts, uint16_t *temps, struct climbed left, struct climbed right)
{
    bool comes = left.maker != right.maker;
    uint16_t *count = &temps[left.maker];
    if (comes)
        ++*count;
    if (left.whole && (comes || right.whole))
        ++*count;
    facts->climb_temps = *count > facts->climb_temps ? *count : facts->climb_temps;
}

/* temps: by rank, scratch so far. */
static struct climbed climb(struct keel_facts *facts, const struct keel_collective_key *key, uint16_t *temps,
                            uint32_t level, uint32_t index)
{
    uint32_t first = index << level;
    if (level == 0)
        return (struct climbed){key->shard_rank[first], 0, true};
    struct climbed left = climb(facts, key, temps, level - 1, 2 * index);
    if (first + (UINT32_C(1) << (level - 1)) >= key->shard_count)
        return left;
    struct climbed right = climb(facts, key, temps, level - 1, 2 * index + 1);
    if (left.whole && right.whole && left.maker == right.maker)
        return left;
    count_leaf(facts, key, left);
    count_leaf(facts, key, right);
    count_temps(facts, temps, left, right);
    struct climbed node = {left.maker, left.steps > right.steps ? left.steps : right.steps, false};
    facts->climb_edges += left.maker != right.maker;
    node.steps += left.maker != right.maker;
    return node;
}

static uint32_t levels_of(uint32_t count)
{
    uint32_t levels = 0;
    while ((UINT32_C(1) << levels) < count)
        levels++;
    return levels;
}

static bool is_aligned(const struct keel_collective_key *key)
{
    uint32_t own = 0, level = 0;
    while (own < key->shard_count && key->shard_rank[own] == 0)
        own++;
    while ((UINT32_C(1) << level) < own)
        level++;
    if (((key->shard_count - 1) >> level) + 1 != key->rank_count)
        return false;
    for (uint32_t shard = 0; shard < key->shard_count; shard++)
        if (key->shard_rank[shard] != shard >> level)
            return false;
    return true;
}

static bool all_ranks_hold(const struct keel_collective_key *key)
{
    uint64_t seen[KEEL_GROUP_RANKS_MAX / 64];
    uint32_t holders = 0;
    memset(seen, 0, (key->rank_count + 63) / 64 * sizeof seen[0]);
    for (uint32_t shard = 0; shard < key->shard_count; shard++) {
        uint32_t rank = key->shard_rank[shard];
        holders += (seen[rank / 64] >> rank % 64 & 1) == 0;
        seen[rank / 64] |= UINT64_C(1) << rank % 64;
    }
    return holders == key->rank_count;
}

static void find_shards(struct keel_facts *facts, const struct keel_collective_key *key)
{
    if (key->shard_rank == NULL) { /* one a rank */
        facts->leaves = key->rank_count;
        facts->root_leaves = 1;
        facts->climb_edges = key->rank_count - 1;
        facts->climb_steps = levels_of(key->rank_count);
        facts->climb_temps = facts->climb_steps + 1;
        facts->aligned = facts->all_hold = true;
        return;
    }
    uint16_t temps[KEEL_GROUP_RANKS_MAX];
    memset(temps, 0, key->rank_count * sizeof temps[0]);
    struct climbed root = climb(facts, key, temps, levels_of(key->shard_count), 0);
    count_leaf(facts, key, root);
    facts->maker = root.maker;
    facts->climb_steps = root.steps;
    facts->aligned = is_aligned(key);
    facts->all_hold = all_ranks_hold(key);
}

/* ---- hosts ---- */

static void find_hosts(struct keel_facts *facts, const struct keel_collective_key *key)
{
    uint16_t sizes[KEEL_GROUP_RANKS_MAX];
    uint32_t runs = 0;
    for (uint32_t rank = 0; rank < key->rank_count; rank++)
        sizes[keel_key_host(key, rank)] = 0;
    for (uint32_t rank = 0; rank < key->rank_count; rank++) {
        uint32_t host = keel_key_host(key, rank);
        facts->hosts += sizes[host] == 0;
        runs += rank == 0 || host != keel_key_host(key, rank - 1);
        if (++sizes[host] > facts->host_ranks)
            facts->host_ranks = sizes[host];
    }
    facts->hosts_equal = facts->hosts * facts->host_ranks == key->rank_count;
    facts->hosts_in_order = facts->hosts_equal && runs == facts->hosts;
}

struct keel_facts keel_key_facts(const struct keel_collective_key *key)
{
    struct keel_facts facts = {.ranks = key->rank_count, .reduces = keel_kind_reduces(key->kind)};
    if (facts.reduces)
        find_shards(&facts, key);
    find_hosts(&facts, key);
    return facts;
}

/* ---- who can do what ---- */

bool keel_key_in_order(const struct keel_collective_key *key, const struct keel_facts *facts)
{
    if (!facts->reduces || facts->ranks == 1)
        return true;
    switch (key->algorithm) {
    case KEEL_ALGORITHM_RING:
        return false;
    case KEEL_ALGORITHM_HALVING:
    case KEEL_ALGORITHM_DOUBLING:
        return facts->aligned && keel_is_power_of_two(facts->ranks);
    case KEEL_ALGORITHM_TWO_LEVEL:
        return facts->aligned && facts->hosts_in_order && keel_is_power_of_two(facts->host_ranks) &&
               (key->kind == KEEL_REDUCE || keel_is_power_of_two(facts->hosts));
    default:
        return true;
    }
}

/* Bit k: it has a form for kind k. */
#define KIND(kind) (UINT32_C(1) << (kind))
static const uint32_t forms[KEEL_ALGORITHM_COUNT] = {
    [KEEL_ALGORITHM_FLAT] = KIND(KEEL_COLLECTIVE_COUNT) - 1,
    [KEEL_ALGORITHM_DIRECT] = KIND(KEEL_SEND) - 1,
    [KEEL_ALGORITHM_RING] = KIND(KEEL_ALL_REDUCE) | KIND(KEEL_REDUCE_SCATTER) | KIND(KEEL_REDUCE) |
                            KIND(KEEL_ALL_GATHER) | KIND(KEEL_ALL_GATHER_V) | KIND(KEEL_BROADCAST),
    [KEEL_ALGORITHM_TREE] = KIND(KEEL_ALL_REDUCE) | KIND(KEEL_REDUCE_SCATTER) | KIND(KEEL_REDUCE) |
                            KIND(KEEL_BROADCAST) | KIND(KEEL_GATHER) | KIND(KEEL_SCATTER) |
                            KIND(KEEL_BARRIER),
    [KEEL_ALGORITHM_HALVING] = KIND(KEEL_ALL_REDUCE) | KIND(KEEL_REDUCE_SCATTER) | KIND(KEEL_REDUCE) |
                               KIND(KEEL_ALL_GATHER) | KIND(KEEL_ALL_GATHER_V) | KIND(KEEL_BROADCAST),
    [KEEL_ALGORITHM_BRUCK] = KIND(KEEL_ALL_REDUCE) | KIND(KEEL_ALL_GATHER) | KIND(KEEL_ALL_GATHER_V) |
                             KIND(KEEL_ALL_TO_ALL) | KIND(KEEL_BARRIER),
    [KEEL_ALGORITHM_DOUBLING] = KIND(KEEL_ALL_REDUCE),
    [KEEL_ALGORITHM_PAIRWISE] = KIND(KEEL_ALL_TO_ALL) | KIND(KEEL_ALL_TO_ALL_V),
    [KEEL_ALGORITHM_TWO_LEVEL] = KIND(KEEL_ALL_REDUCE) | KIND(KEEL_REDUCE_SCATTER) | KIND(KEEL_REDUCE) |
                                 KIND(KEEL_ALL_GATHER) | KIND(KEEL_ALL_GATHER_V) | KIND(KEEL_BROADCAST) |
                                 KIND(KEEL_GATHER) | KIND(KEEL_SCATTER) | KIND(KEEL_BARRIER) |
                                 KIND(KEEL_ALL_TO_ALL),
};

const char *keel_key_obstacle(const struct keel_collective_key *key, const struct keel_facts *facts)
{
    enum keel_algorithm algorithm = key->algorithm;
    enum keel_collective_kind kind = key->kind;
    bool rooted = keel_kind_has_root(kind) || kind == KEEL_BARRIER;
    bool own_sums = algorithm == KEEL_ALGORITHM_RING || algorithm == KEEL_ALGORITHM_HALVING ||
                    algorithm == KEEL_ALGORITHM_TWO_LEVEL || algorithm == KEEL_ALGORITHM_DOUBLING;
    if ((forms[algorithm] & KIND(kind)) == 0)
        return "it has no form for that";
    if (facts->reduces && key->exact && !keel_key_in_order(key, facts))
        return "with this map its sums do not follow the tree over shards";
    if (facts->reduces && own_sums && !facts->all_hold)
        return "a rank without a shard cannot begin a sum";
    if (algorithm == KEEL_ALGORITHM_HALVING && kind != KEEL_ALL_REDUCE && !keel_is_power_of_two(facts->ranks))
        return "the ranks are no power of two";
    if (algorithm == KEEL_ALGORITHM_TWO_LEVEL && !rooted && !facts->hosts_equal)
        return "hosts differ in the number of their ranks";
    return NULL;
}

/* Others take a few places for every rank; up the tree the maker of many nodes takes many for every block. */
bool keel_key_fits(const struct keel_collective_key *key, const struct keel_facts *facts)
{
    uint64_t handed_on = facts->ranks / 2; /* by a rank to those below it, of the result */
    return key->algorithm != KEEL_ALGORITHM_TREE || key->kind != KEEL_REDUCE_SCATTER ||
           (uint64_t)facts->climb_temps * facts->ranks + handed_on <= KEEL_TEMPS_MAX;
}

uint32_t keel_key_peers(const struct keel_collective_key *key, const struct keel_facts *facts)
{
    if (keel_kind_is_pair(key->kind))
        return 1;
    switch (key->algorithm) {
    case KEEL_ALGORITHM_FLAT:
    case KEEL_ALGORITHM_DIRECT:
    case KEEL_ALGORITHM_PAIRWISE:
        return facts->ranks - 1;
    case KEEL_ALGORITHM_TWO_LEVEL:
        return key->kind == KEEL_ALL_TO_ALL ? facts->hosts + facts->host_ranks - 2 : 0;
    default:
        return 0;
    }
}
