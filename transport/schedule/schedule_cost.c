/* schedule_cost.c - what an operation would take, what it puts on the wire, and which algorithm is cheapest.
 *
 * Times are sums of hops. A hop in which a rank has m messages of b bytes to send or to take in costs
 *     alpha + m (gap + b picos_per_byte)
 * (LogGP: Alexandrov, Ionescu, Schauser, Scheiman 1995), and what is left of combining them; a long block is
 * several messages. Within a host it is the receiver who moves the bytes, from where they lie. Where ranks
 * lie host by host, a hop to a partner nearer than a host's size stays within the host. And no operation
 * takes less than all its messages, bytes and sums take the processors that there are: ranks that are more
 * than these have no time of their own. Everything is in picoseconds and saturates. */
#include "message.h"
#include "schedule_build.h"

struct price {
    const struct keel_collective_key *key;
    const struct keel_facts *facts;
    const struct keel_cost_model *model;
    uint32_t ranks;
    uint64_t bytes, slice; /* of the whole; of 1 / ranks of it, rounded up */
};

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) || product > UINT64_MAX / 64 ? UINT64_MAX / 64 : product;
}

uint64_t keel_chunk_bytes(uint64_t block_bytes)
{
    uint64_t pieces = (block_bytes + KEEL_CHUNK_BYTES - 1) / KEEL_CHUNK_BYTES, chunk = block_bytes;
    pieces = pieces > 4 ? pieces : 4;
    if (block_bytes > 4 * KEEL_CHUNK_MIN_BYTES)
        chunk =
            (block_bytes + pieces - 1) / pieces; /* rounded down, a message of what is left would be behind */
    else if (block_bytes > KEEL_CHUNK_MIN_BYTES)
        chunk = KEEL_CHUNK_MIN_BYTES;
    return chunk > 0 ? (chunk + 63) / 64 * 64 : 64;
}

/* The gaps of a block: one for each message that it is cut into. */
static uint64_t gaps(const struct keel_link_cost *link, uint64_t bytes)
{
    uint64_t chunk = keel_chunk_bytes(bytes);
    return times(times(link->gap_ns, 1000), bytes > chunk ? (bytes + chunk - 1) / chunk : 1);
}

/* Messages are combined while the next ones come. */
static uint64_t hop(const struct price *p, const struct keel_link_cost *link, uint64_t messages,
                    uint64_t bytes, bool combined)
{
    uint64_t port = gaps(link, bytes) + times(bytes, link->picos_per_byte);
    uint64_t sum = combined ? times(bytes, p->model->combine_picos_per_byte) : 0;
    uint64_t alpha = times(link->alpha_ns, 1000);
    if (messages == 0)
        return alpha;
    return alpha + (port > sum ? times(messages, port) + sum : times(messages, sum) + port);
}

/* A partner that many ranks away. */
static const struct keel_link_cost *link_at(const struct price *p, uint32_t distance)
{
    const struct keel_facts *facts = p->facts;
    bool near = facts->hosts == 1 || (facts->hosts_in_order && keel_is_power_of_two(facts->host_ranks) &&
                                      distance < facts->host_ranks);
    return near ? &p->model->within : &p->model->between;
}

static const struct keel_link_cost *worst_link(const struct price *p)
{
    return p->facts->hosts == 1 ? &p->model->within : &p->model->between;
}

/* One message to each other rank. Those of the own host take theirs in all at once. */
static uint64_t give_out(const struct price *p, uint64_t bytes)
{
    uint64_t near = p->facts->host_ranks - 1, far = p->ranks - 1 - near;
    const struct keel_link_cost *within = &p->model->within;
    return hop(p, worst_link(p), far, bytes, false) + times(near, gaps(within, bytes)) +
           (near > 0 ? times(bytes, within->picos_per_byte) : 0);
}

/* `messages` from all other ranks, evenly. */
static uint64_t spread(const struct price *p, uint64_t messages, uint64_t bytes, bool combined)
{
    if (p->ranks == 1)
        return 0;
    uint64_t near = messages * (p->facts->host_ranks - 1) / (p->ranks - 1);
    struct keel_link_cost within = p->model->within;
    within.alpha_ns = 0;
    /* Sums of all at once: of long blocks, those of a segment while the next one comes. */
    return hop(p, worst_link(p), messages - near, bytes, combined) + hop(p, &within, near, bytes, combined);
}

/* ---- phases ---- */

static uint64_t ring_turns(const struct price *p, const struct keel_link_cost *link, uint32_t members,
                           uint64_t width, uint64_t bytes, bool combined)
{
    return times(members - 1, hop(p, link, width, bytes, combined));
}

/* Halving (or doubling) over members, from the nearest (or the farthest) on; `link` NULL: by distance. */
static uint64_t halves(const struct price *p, const struct keel_link_cost *link, uint32_t members,
                       uint64_t width, uint64_t bytes, bool combined)
{
    uint64_t sum = 0;
    for (uint32_t bit = 1; bit < members; bit *= 2)
        sum += hop(p, link != NULL ? link : link_at(p, bit), width * (members / 2 / bit), bytes, combined);
    return sum;
}

static uint64_t halves_or_ring(const struct price *p, const struct keel_link_cost *link, uint32_t members,
                               uint64_t width, uint64_t bytes, bool combined)
{
    return keel_is_power_of_two(members) ? halves(p, link, members, width, bytes, combined)
                                         : ring_turns(p, link, members, width, bytes, combined);
}

/* The hop at distance `bit` of those at 1, 2, 4, ... < members that a block takes by the bits of its way. No
 * way has all bits where the members are no power of two: then the last hop is ready with the first. */
static uint64_t bit_hop(const struct price *p, const struct keel_link_cost *link, uint32_t members,
                        uint32_t bit, uint64_t messages, uint64_t bytes, bool combined)
{
    const struct keel_link_cost *used = link != NULL ? link : link_at(p, bit);
    uint64_t ps = hop(p, used, messages, bytes, combined);
    return 2 * bit > members ? ps - times(used->alpha_ns, 1000) : ps;
}

/* Down a tree within a host, what is only ready with the first hop is also taken in at the same time. */
static uint64_t hop_down(const struct price *p, const struct keel_link_cost *link, uint32_t members,
                         uint32_t bit, uint64_t messages, uint64_t bytes)
{
    const struct keel_link_cost *used = link != NULL ? link : link_at(p, bit);
    if (2 * bit > members && used == &p->model->within)
        return times(messages, gaps(used, bytes));
    return bit_hop(p, link, members, bit, messages, bytes, false);
}

/* Whole blocks up (combined) or down a binomial tree. */
static uint64_t tree_hops(const struct price *p, const struct keel_link_cost *link, uint32_t members,
                          uint64_t width, uint64_t bytes, bool combined)
{
    uint64_t sum = 0;
    for (uint32_t bit = 1; bit < members; bit *= 2)
        sum += combined ? bit_hop(p, link, members, bit, width, bytes, true)
                        : hop_down(p, link, members, bit, width, bytes);
    return sum;
}

/* At each hop as many blocks as there are members below: gather, scatter (down), and Bruck's all-gather. */
static uint64_t growing_hops(const struct price *p, const struct keel_link_cost *link, uint32_t members,
                             uint64_t width, uint64_t bytes, bool down)
{
    uint64_t sum = 0;
    for (uint32_t bit = 1; bit < members; bit *= 2) {
        uint64_t count = bit < members - bit ? bit : members - bit;
        sum += down ? hop_down(p, link, members, bit, width * count, bytes)
                    : bit_hop(p, link, members, bit, width * count, bytes, false);
    }
    return sum;
}

/* Everybody waits for everybody. */
static uint64_t meeting(const struct price *p, const struct keel_link_cost *link, uint32_t members)
{
    uint64_t sum = 0;
    for (uint32_t bit = 1; bit < members; bit *= 2)
        sum += hop(p, link, 1, 0, false);
    return sum;
}

/* How many numbers below `count` have that bit. */
static uint64_t numbers_with(uint32_t bit, uint32_t count)
{
    uint32_t rest = count % (2 * bit);
    return (uint64_t)(count / (2 * bit)) * bit + (rest > bit ? rest - bit : 0);
}

/* ---- algorithms ---- */

/* Leaves that a rank receives when it gets all that it has not. */
static uint64_t foreign_leaves(const struct price *p)
{
    return p->facts->leaves - p->facts->leaves / p->ranks;
}

static uint64_t flat(const struct price *p)
{
    uint64_t others = p->ranks - 1;
    switch (p->key->kind) {
    case KEEL_ALL_REDUCE:
    case KEEL_REDUCE:
    case KEEL_REDUCE_SCATTER:
        return spread(p, foreign_leaves(p), p->bytes, true);
    case KEEL_BROADCAST:
    case KEEL_SCATTER:
        return give_out(p, p->bytes);
    case KEEL_BARRIER:
        return spread(p, others, 0, false);
    case KEEL_SEND:
    case KEEL_RECEIVE:
        return hop(p, worst_link(p), 1, p->bytes, false);
    default:
        return spread(p, others, p->slice, false);
    }
}

static uint64_t direct(const struct price *p)
{
    uint64_t out = spread(p, p->ranks - 1, p->slice, false);
    switch (p->key->kind) {
    case KEEL_ALL_REDUCE:
    case KEEL_REDUCE:
        return spread(p, foreign_leaves(p), p->slice, true) + out;
    case KEEL_BROADCAST:
        return give_out(p, p->slice) + out;
    default:
        return flat(p);
    }
}

/* Once round all ranks but one. Where they lie host by host only the first of each host hears from afar:
 * a block waits for that once a host, or behind the others of which that link has to carry `blocks`. */
static uint64_t circle(const struct price *p, uint64_t blocks, uint64_t bytes, bool combined)
{
    const struct keel_facts *facts = p->facts;
    if (facts->hosts == 1 || !facts->hosts_in_order)
        return ring_turns(p, worst_link(p), p->ranks, 1, bytes, combined);
    uint64_t round = times(p->ranks - facts->hosts, hop(p, &p->model->within, 1, bytes, combined)) +
                     times(facts->hosts - 1, hop(p, &p->model->between, 1, bytes, combined));
    uint64_t slow = hop(p, &p->model->between, blocks, bytes, false);
    return round > slow ? round : slow;
}

static uint64_t ring(const struct price *p)
{
    uint64_t others = p->ranks - 1;
    switch (p->key->kind) {
    case KEEL_ALL_REDUCE:
        return circle(p, others, p->slice, true) + circle(p, others, p->slice, false);
    case KEEL_REDUCE_SCATTER:
        return circle(p, others, p->bytes, true);
    case KEEL_REDUCE:
        return circle(p, 1, p->bytes, true);
    case KEEL_BROADCAST:
        return circle(p, 1, p->bytes, false);
    default:
        return circle(p, others, p->slice, false);
    }
}

/* Up along the tree over shards. */
static uint64_t climb_hops(const struct price *p, uint64_t blocks)
{
    if (p->facts->aligned)
        return tree_hops(p, NULL, p->ranks, blocks, p->bytes, true);
    return times(p->facts->climb_steps, hop(p, worst_link(p), blocks, p->bytes, true));
}

static uint64_t tree(const struct price *p)
{
    uint32_t ranks = p->ranks;
    switch (p->key->kind) {
    case KEEL_ALL_REDUCE:
        return climb_hops(p, 1) + tree_hops(p, NULL, ranks, 1, p->bytes, false);
    case KEEL_REDUCE:
        return climb_hops(p, 1) +
               (p->facts->maker != p->key->root ? hop(p, worst_link(p), 1, p->bytes, false) : 0);
    case KEEL_REDUCE_SCATTER:
        return climb_hops(p, ranks) + growing_hops(p, NULL, ranks, 1, p->bytes, true);
    case KEEL_BROADCAST:
        return tree_hops(p, NULL, ranks, 1, p->bytes, false);
    case KEEL_SCATTER:
        return growing_hops(p, NULL, ranks, 1, p->bytes, true);
    case KEEL_BARRIER:
        return 2 * tree_hops(p, NULL, ranks, 1, 0, false);
    default:
        return growing_hops(p, NULL, ranks, 1, p->slice, false);
    }
}

static uint32_t core_of(uint32_t ranks)
{
    uint32_t core = 1;
    while (2 * core <= ranks)
        core *= 2;
    return core;
}

/* The ranks behind the core give all, and get all back. */
static uint64_t fold(const struct price *p, uint64_t blocks, uint64_t bytes)
{
    if (keel_is_power_of_two(p->ranks))
        return 0;
    return hop(p, worst_link(p), blocks, bytes, true) + hop(p, worst_link(p), blocks, bytes, false);
}

static uint64_t doubling(const struct price *p)
{
    return tree_hops(p, NULL, core_of(p->ranks), 1, p->bytes, true) + fold(p, 1, p->bytes);
}

static uint64_t halving(const struct price *p)
{
    uint32_t core = core_of(p->ranks);
    uint64_t block = (p->bytes + core - 1) / core;
    switch (p->key->kind) {
    case KEEL_ALL_REDUCE:
        return halves(p, NULL, core, 1, block, true) + halves(p, NULL, core, 1, block, false) +
               fold(p, core, block);
    case KEEL_REDUCE:
        return halves(p, NULL, core, 1, block, true) + growing_hops(p, NULL, core, 1, block, false);
    case KEEL_REDUCE_SCATTER:
        return halves(p, NULL, core, 1, p->bytes, true);
    case KEEL_BROADCAST:
        return growing_hops(p, NULL, core, 1, block, false) + halves(p, NULL, core, 1, block, false);
    default:
        return halves(p, NULL, core, 1, block, false);
    }
}

static uint64_t bruck(const struct price *p)
{
    const struct keel_link_cost *link = worst_link(p);
    uint64_t sum = 0;
    switch (p->key->kind) {
    case KEEL_ALL_REDUCE:
        for (uint32_t bit = 1; bit < p->ranks; bit *= 2) {
            uint64_t count = bit < p->ranks - bit ? bit : p->ranks - bit;
            count = (count * p->facts->leaves + p->ranks - 1) / p->ranks;
            sum += bit_hop(p, link, p->ranks, bit, count, p->bytes, false);
        }
        sum += times(foreign_leaves(p), times(p->bytes, p->model->combine_picos_per_byte));
        return sum;
    case KEEL_BARRIER:
        return meeting(p, link, p->ranks);
    case KEEL_ALL_TO_ALL:
        for (uint32_t bit = 1; bit < p->ranks; bit *= 2)
            sum += bit_hop(p, link, p->ranks, bit, numbers_with(bit, p->ranks), p->slice, false);
        return sum;
    default:
        return growing_hops(p, link, p->ranks, 1, p->slice, false);
    }
}

static uint64_t two_level(const struct price *p)
{
    const struct keel_link_cost *within = &p->model->within, *between = &p->model->between;
    uint32_t size = p->facts->host_ranks, hosts = p->facts->hosts;
    switch (p->key->kind) {
    case KEEL_ALL_REDUCE:
        return halves_or_ring(p, within, size, hosts, p->slice, true) +
               halves_or_ring(p, between, hosts, 1, p->slice, true) +
               halves_or_ring(p, between, hosts, 1, p->slice, false) +
               halves_or_ring(p, within, size, hosts, p->slice, false);
    case KEEL_REDUCE_SCATTER:
        return halves_or_ring(p, within, size, hosts, p->bytes, true) +
               halves_or_ring(p, between, hosts, 1, p->bytes, true);
    case KEEL_REDUCE:
        return tree_hops(p, within, size, 1, p->bytes, true) +
               tree_hops(p, between, hosts, 1, p->bytes, true) +
               (p->key->root != 0 ? hop(p, worst_link(p), 1, p->bytes, false) : 0);
    case KEEL_BROADCAST:
        return tree_hops(p, between, hosts, 1, p->bytes, false) +
               tree_hops(p, within, size, 1, p->bytes, false);
    case KEEL_BARRIER:
        return 2 * tree_hops(p, within, size, 1, 0, false) + meeting(p, between, hosts);
    case KEEL_GATHER:
    case KEEL_SCATTER: {
        bool down = p->key->kind == KEEL_SCATTER;
        uint64_t block = down ? p->bytes : p->slice;
        return growing_hops(p, within, size, 1, block, down) +
               growing_hops(p, between, hosts, size, block, down);
    }
    case KEEL_ALL_TO_ALL:
        return (size > 1 ? hop(p, within, (uint64_t)hosts * (size - 1), p->slice, false) : 0) +
               (hosts > 1 ? hop(p, between, (uint64_t)size * (hosts - 1), p->slice, false) : 0);
    default:
        return halves_or_ring(p, between, hosts, 1, p->slice, false) +
               halves_or_ring(p, within, size, hosts, p->slice, false);
    }
}

/* ---- the whole ---- */

/* A message carries so much; of algorithms that cut the vector, a piece of it. */
static uint64_t block_bytes(const struct price *p)
{
    enum keel_algorithm algorithm = p->key->algorithm;
    switch (p->key->kind) {
    case KEEL_REDUCE_SCATTER:
    case KEEL_SCATTER:
    case KEEL_SEND:
    case KEEL_RECEIVE:
        return p->bytes;
    case KEEL_ALL_REDUCE:
    case KEEL_REDUCE:
    case KEEL_BROADCAST: {
        bool always = algorithm == KEEL_ALGORITHM_DIRECT || algorithm == KEEL_ALGORITHM_HALVING;
        bool rounds = algorithm == KEEL_ALGORITHM_RING || algorithm == KEEL_ALGORITHM_TWO_LEVEL;
        return always || (rounds && p->key->kind == KEEL_ALL_REDUCE) ? p->slice : p->bytes;
    }
    default:
        return p->slice;
    }
}

/* Of the bytes on the wire, those that are combined where they come. */
static uint64_t combined_bytes(const struct price *p, uint64_t wire)
{
    enum keel_algorithm algorithm = p->key->algorithm;
    bool whole = algorithm == KEEL_ALGORITHM_FLAT || algorithm == KEEL_ALGORITHM_BRUCK ||
                 algorithm == KEEL_ALGORITHM_DOUBLING;
    if (!p->facts->reduces)
        return 0;
    return whole || p->key->kind != KEEL_ALL_REDUCE ? wire : wire / 2;
}

/* What all of it takes the processors of a host, where all links are alike. */
static uint64_t labour(const struct price *p)
{
    const struct keel_facts *facts = p->facts;
    uint64_t processors = p->model->host_processors, block = block_bytes(p);
    uint64_t at_once = (processors < facts->host_ranks ? processors : facts->host_ranks) * facts->hosts;
    if (at_once == 0 || block == 0 || (facts->hosts > 1 && facts->host_ranks > 1))
        return 0;
    const struct keel_link_cost *link = worst_link(p);
    uint64_t wire = keel_schedule_wire_bytes(p->key, p->bytes);
    uint64_t turns = processors < facts->host_ranks ? 4 : 2; /* to send, to take in; and to change ranks */
    uint64_t ps = times(turns * (wire / block), gaps(link, block)) + times(wire, link->picos_per_byte) +
                  times(combined_bytes(p, wire), p->model->combine_picos_per_byte);
    return ps / at_once;
}

static uint64_t cost_ns(const struct keel_collective_key *key, const struct keel_facts *facts, uint64_t bytes,
                        const struct keel_cost_model *model)
{
    static uint64_t (*const prices[KEEL_ALGORITHM_COUNT])(const struct price *) = {
        [KEEL_ALGORITHM_FLAT] = flat,           [KEEL_ALGORITHM_DIRECT] = direct,
        [KEEL_ALGORITHM_RING] = ring,           [KEEL_ALGORITHM_TREE] = tree,
        [KEEL_ALGORITHM_HALVING] = halving,     [KEEL_ALGORITHM_BRUCK] = bruck,
        [KEEL_ALGORITHM_PAIRWISE] = flat,       [KEEL_ALGORITHM_DOUBLING] = doubling,
        [KEEL_ALGORITHM_TWO_LEVEL] = two_level,
    };
    const struct price price = {.key = key,
                                .facts = facts,
                                .model = model,
                                .ranks = facts->ranks,
                                .bytes = bytes,
                                .slice = (bytes + facts->ranks - 1) / facts->ranks};
    bool alone = facts->ranks == 1 && !keel_kind_is_pair(key->kind);
    if (alone)
        return 0;
    uint64_t path = prices[key->algorithm](&price), least = labour(&price);
    return (path > least ? path : least) / 1000;
}

uint64_t keel_schedule_cost_ns(const struct keel_collective_key *key, uint64_t bytes,
                               const struct keel_cost_model *model)
{
    struct keel_facts facts = keel_key_facts(key);
    return cost_ns(key, &facts, bytes, model);
}

bool keel_key_offered(const struct keel_collective_key *key, const struct keel_facts *facts)
{
    bool many = keel_key_peers(key, facts) >= KEEL_SCHEDULE_PEERS_MAX;
    if ((many && key->kind != KEEL_ALL_TO_ALL_V) || keel_key_obstacle(key, facts) != NULL ||
        !keel_key_fits(key, facts))
        return false;
    return key->algorithm != KEEL_ALGORITHM_TWO_LEVEL || facts->hosts > 1;
}

enum keel_algorithm keel_schedule_choose(const struct keel_collective_key *key, uint64_t bytes,
                                         const struct keel_cost_model *model)
{
    struct keel_collective_key trial = *key;
    struct keel_facts facts = keel_key_facts(key);
    enum keel_algorithm best = KEEL_ALGORITHM_FLAT;
    uint64_t best_ns = UINT64_MAX;
    for (int algorithm = KEEL_ALGORITHM_FLAT; algorithm < KEEL_ALGORITHM_COUNT; algorithm++) {
        trial.algorithm = (enum keel_algorithm)algorithm;
        if (!keel_key_offered(&trial, &facts))
            continue;
        uint64_t ns = cost_ns(&trial, &facts, bytes, model);
        if (ns < best_ns) {
            best = trial.algorithm;
            best_ns = ns;
        }
    }
    return best;
}
