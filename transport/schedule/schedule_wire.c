/* schedule_wire.c - the bytes that all ranks together put on the wire, by each algorithm's formula.
 *
 * Payload only, blocks taken to be equal. With n ranks, V bytes of a vector and one shard a rank, everything
 * that is optimal in bytes moves (n - 1) V one way and as much back. */
#include "schedule_build.h"

/* Hops that blocks 1 .. count - 1 take down (or up) a binomial tree: one for each bit of their number. */
static uint64_t tree_hops(uint32_t count)
{
    uint64_t hops = 0;
    for (uint32_t number = 1; number < count; number++)
        hops += (uint64_t)__builtin_popcount(number);
    return hops;
}

/* What one rank has for one other. */
static uint64_t block_of(const struct keel_collective_key *key, uint64_t bytes)
{
    switch (key->kind) {
    case KEEL_SCATTER:
    case KEEL_REDUCE_SCATTER:
        return bytes;
    default:
        return bytes / key->rank_count;
    }
}

static uint64_t one_hop_bytes(const struct keel_collective_key *key, const struct keel_facts *facts,
                              uint64_t bytes)
{
    uint64_t others = facts->ranks - 1;
    switch (key->kind) {
    case KEEL_ALL_REDUCE:
    case KEEL_REDUCE_SCATTER:
        return facts->leaves * others * bytes;
    case KEEL_REDUCE:
        return (facts->leaves - facts->root_leaves) * bytes;
    case KEEL_GATHER:
        return others * block_of(key, bytes);
    case KEEL_BARRIER:
        return 0;
    case KEEL_SEND:
    case KEEL_RECEIVE:
        return bytes;
    default:
        return others * bytes;
    }
}

static uint64_t direct_bytes(const struct keel_collective_key *key, const struct keel_facts *facts,
                             uint64_t bytes)
{
    uint64_t others = facts->ranks - 1, slice = bytes / facts->ranks;
    switch (key->kind) {
    case KEEL_ALL_REDUCE:
        return facts->leaves * others * slice + others * bytes;
    case KEEL_REDUCE:
        return facts->leaves * others * slice + others * slice;
    default:
        return one_hop_bytes(key, facts, bytes);
    }
}

/* Ring, halving, two levels: every block moves once from everybody to everybody, or meets everybody. */
static uint64_t round_bytes(const struct keel_collective_key *key, const struct keel_facts *facts,
                            uint64_t bytes)
{
    uint64_t others = facts->ranks - 1;
    switch (key->kind) {
    case KEEL_ALL_REDUCE:
        return 2 * others * bytes;
    case KEEL_REDUCE_SCATTER:
        return facts->ranks * others * bytes;
    default:
        return others * bytes;
    }
}

static uint64_t tree_bytes(const struct keel_collective_key *key, const struct keel_facts *facts,
                           uint64_t bytes)
{
    uint64_t others = facts->ranks - 1, edges = facts->climb_edges;
    switch (key->kind) {
    case KEEL_ALL_REDUCE:
        return (edges + others) * bytes;
    case KEEL_REDUCE:
        return (edges + (facts->maker != key->root)) * bytes;
    case KEEL_REDUCE_SCATTER:
        return edges * facts->ranks * bytes + tree_hops(facts->ranks) * bytes;
    case KEEL_GATHER:
    case KEEL_SCATTER:
        return tree_hops(facts->ranks) * block_of(key, bytes);
    case KEEL_BARRIER:
        return 0;
    default:
        return others * bytes;
    }
}

static uint64_t halving_bytes(const struct keel_collective_key *key, const struct keel_facts *facts,
                              uint64_t bytes)
{
    uint64_t slice = bytes / facts->ranks;
    switch (key->kind) {
    case KEEL_REDUCE:
    case KEEL_BROADCAST:
        return round_bytes(key, facts, bytes) + tree_hops(facts->ranks) * slice;
    default: /* folded ranks too send the vector once and get it once */
        return round_bytes(key, facts, bytes);
    }
}

static uint64_t doubling_bytes(const struct keel_collective_key *key, const struct keel_facts *facts,
                               uint64_t bytes)
{
    uint64_t core = 1, steps = 0;
    (void)key;
    for (; 2 * core <= facts->ranks; core *= 2)
        steps++;
    return (core * steps + 2 * (facts->ranks - core)) * bytes;
}

static uint64_t bruck_bytes(const struct keel_collective_key *key, const struct keel_facts *facts,
                            uint64_t bytes)
{
    if (key->kind == KEEL_ALL_TO_ALL)
        return tree_hops(facts->ranks) * bytes;
    return one_hop_bytes(key, facts, bytes);
}

/* Up to the one who speaks for each host, and on, with all of the host, to the root's. */
static uint64_t rooted_hops(const struct keel_collective_key *key, const struct keel_facts *facts)
{
    uint16_t sizes[KEEL_GROUP_RANKS_MAX], order[KEEL_GROUP_RANKS_MAX];
    uint32_t hosts = 0, at = 0;
    uint64_t hops = 0;
    for (uint32_t rank = 0; rank < facts->ranks; rank++)
        sizes[keel_key_host(key, rank)] = 0;
    for (uint32_t rank = 0; rank < facts->ranks; rank++) {
        uint32_t host = keel_key_host(key, rank);
        if (sizes[host]++ == 0)
            order[hosts++] = (uint16_t)host;
    }
    while (at + 1 < hosts && order[at] != keel_key_host(key, key->root))
        at++;
    for (uint32_t number = 0; number < hosts; number++) {
        uint32_t size = sizes[order[(at + number) % hosts]];
        hops += tree_hops(size) + (uint64_t)__builtin_popcount(number) * size;
    }
    return hops;
}

static uint64_t two_level_bytes(const struct keel_collective_key *key, const struct keel_facts *facts,
                                uint64_t bytes)
{
    switch (key->kind) {
    case KEEL_REDUCE:
        return (facts->ranks - 1 + (key->root != 0)) * bytes;
    case KEEL_GATHER:
    case KEEL_SCATTER:
        return rooted_hops(key, facts) * block_of(key, bytes);
    case KEEL_BARRIER:
        return 0;
    case KEEL_ALL_TO_ALL:
        return (uint64_t)(2 * facts->ranks - facts->hosts - facts->host_ranks) * bytes;
    default:
        return round_bytes(key, facts, bytes);
    }
}

uint64_t keel_schedule_wire_bytes(const struct keel_collective_key *key, uint64_t bytes)
{
    static uint64_t (*const formulas[KEEL_ALGORITHM_COUNT])(const struct keel_collective_key *,
                                                            const struct keel_facts *, uint64_t) = {
        [KEEL_ALGORITHM_FLAT] = one_hop_bytes,        [KEEL_ALGORITHM_DIRECT] = direct_bytes,
        [KEEL_ALGORITHM_RING] = round_bytes,          [KEEL_ALGORITHM_TREE] = tree_bytes,
        [KEEL_ALGORITHM_HALVING] = halving_bytes,     [KEEL_ALGORITHM_BRUCK] = bruck_bytes,
        [KEEL_ALGORITHM_DOUBLING] = doubling_bytes,   [KEEL_ALGORITHM_PAIRWISE] = one_hop_bytes,
        [KEEL_ALGORITHM_TWO_LEVEL] = two_level_bytes,
    };
    struct keel_facts facts = keel_key_facts(key);
    return formulas[key->algorithm](key, &facts, bytes);
}
