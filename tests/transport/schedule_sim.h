/* schedule_sim.h - runs the schedules of all ranks together, on symbols instead of numbers.
 *
 * A value is a pair of hashes: of the expression tree (order matters) and of the multiset of its leaves.
 * Steps run in any order that the hazards allow, drawn from a seed; a message is read from its source when it
 * is delivered, as late as a runner that lends memory would. Segments follow each other through a window as
 * in schedule.h: a message of segment s goes only when the peer's lowest unfinished segment is above s -
 * window. Checks of a run: every message has a receive and every receive a message, no receive waits, blocks
 * match in size, nothing is read that was not written, and the run ends. */
#ifndef KEEL_TESTS_SCHEDULE_SIM_H
#define KEEL_TESTS_SCHEDULE_SIM_H

#include "harness.h"
#include "schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIM_NOBODY UINT32_MAX

/* Check's own assertions write a connection each, also when they hold. */
#define sim_check_msg(condition, ...)                                                                        \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            ck_abort_msg(__VA_ARGS__);                                                                       \
    } while (0)
#define sim_check(condition) sim_check_msg(condition, "%s:%d: %s", __FILE__, __LINE__, #condition)

struct sim_value {
    uint64_t tree, set; /* both 0: never written */
};

struct sim_rank {
    struct keel_schedule *schedule;
    struct sim_value *results; /* [segment][block] */
    struct sim_value *temps;   /* [slot][number] */
    uint32_t *needs;           /* [slot][step]: how many steps it still waits for */
    uint32_t *done;            /* [slot] */
    uint32_t lowest;           /* segment that is not finished */
};

struct sim_token {
    uint32_t rank, segment, step;
};

struct sim {
    struct keel_collective_key key; /* of all; rank differs */
    struct keel_tree_plan *plan;    /* reductions */
    uint32_t *leaf_first;           /*   by rank: its first leaf in leaf_of */
    uint32_t *leaf_of;              /*   by rank and ordinal */
    struct sim_value *sums;         /*   [segment][block]: what they should be */
    uint32_t sum_blocks;
    struct sim_rank *ranks;
    uint32_t segments, window, held; /* held: this rank does nothing; SIM_NOBODY */
    uint64_t seed;
    struct sim_token *pool;
    uint32_t pool_count, pool_capacity;
    uint64_t messages, steps; /* sent; of all ranks */
    uint32_t peers_most;
};

static inline uint64_t sim_mix(uint64_t a, uint64_t b)
{
    uint64_t z = a * UINT64_C(0x9e3779b97f4a7c15) + b + UINT64_C(0x632be59bd9b4e019);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline uint64_t sim_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return sim_mix(*state, 0);
}

static inline bool sim_reduces(enum keel_collective_kind kind)
{
    return kind == KEEL_ALL_REDUCE || kind == KEEL_REDUCE_SCATTER || kind == KEEL_REDUCE;
}

/* ---- what a value should be ---------------------------------------------------------------------------- */

static inline struct sim_value sim_leaf(uint64_t who, uint64_t block, uint64_t segment)
{
    uint64_t hash = sim_mix(sim_mix(who, block), segment) | 1;
    return (struct sim_value){hash, hash};
}

static inline struct sim_value sim_node(struct sim_value left, struct sim_value right)
{
    return (struct sim_value){sim_mix(left.tree, right.tree), left.set + right.set};
}

static inline uint64_t sim_shard_node(struct keel_tree_node node)
{
    return ((uint64_t)(node.level + 1) << 32) | node.index;
}

static inline struct sim_value sim_part(const struct sim *sim, uint32_t rank, uint32_t number, uint32_t block,
                                        uint32_t segment)
{
    if (!sim_reduces(sim->key.kind))
        return sim_leaf(rank, block, segment);
    sim_check(number < sim->plan->rank_leaves[rank]);
    uint32_t leaf = sim->leaf_of[sim->leaf_first[rank] + number];
    return sim_leaf(sim_shard_node(sim->plan->leaf_node[leaf]), block, segment);
}

static inline struct sim_value sim_sum(const struct sim *sim, uint32_t block, uint32_t segment)
{
    const struct keel_tree_plan *plan = sim->plan;
    struct sim_value stack[2 * KEEL_TREE_DEPTH_MAX];
    uint32_t depth = 0;
    for (uint32_t k = 0; k < plan->step_count; k++) {
        if (plan->steps[k] != KEEL_TREE_ADD) {
            stack[depth++] = sim_leaf(sim_shard_node(plan->leaf_node[plan->steps[k]]), block, segment);
            continue;
        }
        depth--;
        stack[depth - 1] = sim_node(stack[depth - 1], stack[depth]);
    }
    return stack[0];
}

/* What block `block` of the result of `rank` should be; false: nothing is said of it. */
static inline bool sim_wanted(const struct sim *sim, uint32_t rank, uint32_t block, uint32_t segment,
                              struct sim_value *out)
{
    uint32_t root = sim->key.root;
    switch (sim->key.kind) {
    case KEEL_ALL_REDUCE:
        *out = sim->sums[(size_t)segment * sim->sum_blocks + block];
        return true;
    case KEEL_REDUCE_SCATTER:
        *out = sim->sums[(size_t)segment * sim->sum_blocks + rank];
        return true;
    case KEEL_REDUCE:
        *out = sim->sums[(size_t)segment * sim->sum_blocks + block];
        return rank == root;
    case KEEL_ALL_GATHER:
    case KEEL_ALL_GATHER_V:
        *out = sim_leaf(block, 0, segment);
        return true;
    case KEEL_ALL_TO_ALL:
    case KEEL_ALL_TO_ALL_V:
        *out = sim_leaf(block, rank, segment);
        return true;
    case KEEL_BROADCAST:
        *out = sim_leaf(root, block, segment);
        return true;
    case KEEL_GATHER:
        *out = sim_leaf(block, 0, segment);
        return rank == root;
    case KEEL_SCATTER:
        *out = sim_leaf(root, rank, segment);
        return true;
    default:
        return false;
    }
}

/* Blocks with the same number here have the same size. */
static inline uint64_t sim_size(const struct sim *sim, uint32_t rank, struct keel_operand operand)
{
    uint32_t space = operand.space == KEEL_SPACE_TEMP ? sim->ranks[rank].schedule->sizing : operand.space;
    switch (sim->key.kind) {
    case KEEL_ALL_REDUCE:
    case KEEL_REDUCE:
    case KEEL_BROADCAST:
        return operand.block; /* slices: the last ones may be short */
    case KEEL_ALL_GATHER_V:
        return space == KEEL_SPACE_PART ? rank : operand.block;
    case KEEL_ALL_TO_ALL_V: {
        uint64_t from = space == KEEL_SPACE_PART ? rank : operand.block;
        uint64_t to = space == KEEL_SPACE_PART ? operand.block : rank;
        return from << 32 | to;
    }
    default:
        return 0;
    }
}

/* ---- running ------------------------------------------------------------------------------------------- */

static inline void sim_push(struct sim *sim, uint32_t rank, uint32_t segment, uint32_t step)
{
    if (sim->pool_count == sim->pool_capacity) {
        sim->pool_capacity = sim->pool_capacity == 0 ? 1024 : 2 * sim->pool_capacity;
        sim->pool = realloc(sim->pool, sim->pool_capacity * sizeof *sim->pool);
    }
    sim->pool[sim->pool_count++] = (struct sim_token){rank, segment, step};
}

static inline struct sim_value *sim_place(const struct sim *sim, uint32_t rank, uint32_t segment,
                                          struct keel_operand operand)
{
    const struct sim_rank *r = &sim->ranks[rank];
    if (operand.space == KEEL_SPACE_TEMP)
        return &r->temps[(size_t)(segment % sim->window) * r->schedule->temp_count + operand.number];
    sim_check(operand.space == KEEL_SPACE_RESULT && r->results != NULL);
    return &r->results[(size_t)segment * r->schedule->result_blocks + operand.block];
}

static inline struct sim_value sim_read(const struct sim *sim, uint32_t rank, uint32_t segment,
                                        struct keel_operand operand)
{
    if (operand.space == KEEL_SPACE_PART)
        return sim_part(sim, rank, operand.number, operand.block, segment);
    struct sim_value value = *sim_place(sim, rank, segment, operand);
    sim_check_msg(value.set != 0, "rank %u reads what nobody wrote", rank);
    return value;
}

/* A segment comes into the window: all its steps are still to do. */
static inline void sim_open(struct sim *sim, uint32_t rank, uint32_t segment)
{
    struct sim_rank *r = &sim->ranks[rank];
    const struct keel_schedule *schedule = r->schedule;
    uint32_t slot = segment % sim->window;
    uint32_t *needs = r->needs + (size_t)slot * schedule->step_count;
    r->done[slot] = 0;
    if (schedule->step_count > 0)
        memcpy(needs, schedule->needs, schedule->step_count * sizeof *needs);
    if (schedule->temp_count > 0)
        memset(r->temps + (size_t)slot * schedule->temp_count, 0, schedule->temp_count * sizeof *r->temps);
    for (uint32_t k = 0; k < schedule->step_count; k++)
        if (needs[k] == 0 && schedule->steps[k].kind != KEEL_STEP_RECEIVE)
            sim_push(sim, rank, segment, k);
}

static inline void sim_advance(struct sim *sim, uint32_t rank)
{
    struct sim_rank *r = &sim->ranks[rank];
    while (r->lowest < sim->segments && r->done[r->lowest % sim->window] == r->schedule->step_count) {
        r->lowest++;
        if (r->lowest + sim->window - 1 < sim->segments)
            sim_open(sim, rank, r->lowest + sim->window - 1);
        else
            r->done[(r->lowest + sim->window - 1) % sim->window] = UINT32_MAX; /* behind the last */
    }
}

static inline void sim_finish(struct sim *sim, uint32_t rank, uint32_t segment, uint32_t step)
{
    struct sim_rank *r = &sim->ranks[rank];
    const struct keel_schedule *schedule = r->schedule;
    uint32_t slot = segment % sim->window;
    uint32_t *needs = r->needs + (size_t)slot * schedule->step_count;
    sim_check(needs[step] == 0);
    needs[step] = UINT32_MAX; /* never again */
    for (uint32_t i = schedule->freed_first[step]; i < schedule->freed_first[step + 1]; i++) {
        uint32_t next = schedule->freed[i];
        sim_check(needs[next] > 0);
        if (--needs[next] == 0)
            sim_push(sim, rank, segment, next);
    }
    r->done[slot]++;
}

/* The receive that a message is for. */
static inline uint32_t sim_receive_of(const struct sim *sim, uint32_t from, const struct keel_step *send)
{
    const struct keel_schedule *schedule = sim->ranks[send->peer].schedule;
    uint32_t low = 0, high = schedule->peer_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (schedule->peers[middle] < from)
            low = middle + 1;
        else
            high = middle;
    }
    sim_check_msg(low < schedule->peer_count && schedule->peers[low] == from, "%u does not know %u",
                  send->peer, from);
    uint32_t at = schedule->receives_first[low] + send->ordinal;
    sim_check_msg(at < schedule->receives_first[low + 1], "%u awaits no message %u of %u", send->peer,
                  send->ordinal, from);
    return schedule->receives[at];
}

/* False: the peer's window is not there yet. */
static inline bool sim_deliver(struct sim *sim, uint32_t rank, uint32_t segment, const struct keel_step *send)
{
    const struct sim_rank *peer = &sim->ranks[send->peer];
    if (segment >= peer->lowest + sim->window)
        return false;
    uint32_t receive = sim_receive_of(sim, rank, send);
    struct keel_operand source = sim->ranks[rank].schedule->operands[send->operand_first];
    const struct keel_step *step = &peer->schedule->steps[receive];
    struct keel_operand destination = peer->schedule->operands[step->operand_first];
    sim_check(sim_size(sim, rank, source) == sim_size(sim, send->peer, destination));
    *sim_place(sim, send->peer, segment, destination) = sim_read(sim, rank, segment, source);
    sim_finish(sim, send->peer, segment, receive);
    sim->messages++;
    return true;
}

static inline struct sim_value sim_compute(const struct sim *sim, uint32_t rank, uint32_t segment,
                                           const struct keel_step *step)
{
    const struct keel_schedule *schedule = sim->ranks[rank].schedule;
    const struct keel_operand *sources = &schedule->operands[step->operand_first + 1];
    struct sim_value stack[2 * KEEL_TREE_DEPTH_MAX];
    uint32_t depth = 0, used = 0;
    if (step->kind == KEEL_STEP_COPY)
        return sim_read(sim, rank, segment, sources[0]);
    for (uint32_t k = 0; k < step->program_count; k++) {
        uint16_t word = schedule->program[step->program_first + k];
        if (word != KEEL_TREE_ADD) {
            sim_check(word < step->operand_count - 1);
            sim_check(depth < KEEL_TREE_DEPTH_MAX);
            stack[depth++] = sim_read(sim, rank, segment, sources[word]);
            used++;
            continue;
        }
        sim_check(depth >= 2);
        depth--;
        stack[depth - 1] = sim_node(stack[depth - 1], stack[depth]);
    }
    sim_check(depth == 1);
    sim_check(used == step->operand_count - 1);
    return stack[0];
}

/* Run one step; false when it has to wait for the peer's window. */
static inline bool sim_step(struct sim *sim, struct sim_token token)
{
    const struct keel_schedule *schedule = sim->ranks[token.rank].schedule;
    const struct keel_step *step = &schedule->steps[token.step];
    if (step->kind == KEEL_STEP_SEND) {
        if (!sim_deliver(sim, token.rank, token.segment, step))
            return false;
        sim_finish(sim, token.rank, token.segment, token.step);
        sim_advance(sim, step->peer);
    } else {
        const struct keel_operand *operands = &schedule->operands[step->operand_first];
        for (uint32_t k = 1; k < step->operand_count; k++)
            sim_check(sim_size(sim, token.rank, operands[0]) == sim_size(sim, token.rank, operands[k]));
        *sim_place(sim, token.rank, token.segment, operands[0]) =
            sim_compute(sim, token.rank, token.segment, step);
        sim_finish(sim, token.rank, token.segment, token.step);
    }
    sim_advance(sim, token.rank);
    return true;
}

/* Until nothing more can be done: turns without progress are bounded by one round of the pool. */
static inline void sim_run(struct sim *sim)
{
    uint32_t idle = 0;
    while (idle < sim->pool_count) {
        uint32_t at = (uint32_t)(sim_random(&sim->seed) % (sim->pool_count - idle));
        struct sim_token token = sim->pool[at];
        /* what cannot go is kept behind the others until something went */
        if (token.rank == sim->held || !sim_step(sim, token)) {
            sim->pool[at] = sim->pool[sim->pool_count - 1 - idle];
            sim->pool[sim->pool_count - 1 - idle] = token;
            idle++;
            continue;
        }
        /* pool may have grown (and moved) behind; this token still stands at `at` */
        sim->pool[at] = sim->pool[--sim->pool_count];
        idle = 0;
    }
}

static inline bool sim_ended(const struct sim *sim, uint32_t rank)
{
    return sim->ranks[rank].lowest == sim->segments;
}

/* ---- making and checking ------------------------------------------------------------------------------- */

static inline void sim_free(struct sim *sim)
{
    for (uint32_t rank = 0; rank < sim->key.rank_count; rank++) {
        struct sim_rank *r = &sim->ranks[rank];
        keel_schedule_free(r->schedule);
        free(r->results);
        free(r->temps);
        free(r->needs);
        free(r->done);
    }
    free(sim->ranks);
    if (sim->plan != NULL)
        keel_tree_plan_fini(sim->plan);
    free(sim->plan);
    free(sim->leaf_first);
    free(sim->leaf_of);
    free(sim->sums);
    free(sim->pool);
}

static inline void sim_check_shape(struct sim *sim, const struct keel_schedule *schedule)
{
    for (uint32_t k = 0; k < schedule->step_count; k++)
        sim_check_msg(schedule->steps[k].kind != KEEL_STEP_RECEIVE || schedule->needs[k] == 0,
                      "a receive waits");
    for (uint32_t k = 1; k < schedule->peer_count; k++)
        sim_check(schedule->peers[k - 1] < schedule->peers[k]);
    if (schedule->peer_count > sim->peers_most)
        sim->peers_most = schedule->peer_count;
    sim->steps += schedule->step_count;
}

static inline void sim_group_leaves(struct sim *sim)
{
    const struct keel_tree_plan *plan = sim->plan;
    sim->leaf_first = calloc(sim->key.rank_count + 1, sizeof *sim->leaf_first);
    sim->leaf_of = calloc(plan->leaf_count, sizeof *sim->leaf_of);
    for (uint32_t rank = 0; rank < sim->key.rank_count; rank++)
        sim->leaf_first[rank + 1] = sim->leaf_first[rank] + plan->rank_leaves[rank];
    for (uint32_t leaf = 0; leaf < plan->leaf_count; leaf++)
        sim->leaf_of[sim->leaf_first[plan->leaf_rank[leaf]] + plan->leaf_ordinal[leaf]] = leaf;
}

/* All ranks cut alike, so rank 0's blocks are everybody's. */
static inline void sim_make_sums(struct sim *sim)
{
    const struct keel_schedule *schedule = sim->ranks[0].schedule;
    sim->sum_blocks = schedule->part_blocks;
    sim->sums = calloc((size_t)sim->segments * sim->sum_blocks, sizeof *sim->sums);
    for (uint32_t segment = 0; segment < sim->segments; segment++)
        for (uint32_t block = 0; block < sim->sum_blocks; block++)
            sim->sums[(size_t)segment * sim->sum_blocks + block] = sim_sum(sim, block, segment);
}

static inline void sim_make_plan(struct sim *sim)
{
    static uint16_t own[KEEL_GROUP_SHARDS_MAX];
    const struct keel_collective_key *key = &sim->key;
    sim->plan = calloc(1, sizeof *sim->plan);
    for (uint32_t rank = 0; rank < key->rank_count; rank++)
        own[rank] = (uint16_t)rank;
    if (key->shard_rank != NULL)
        sim_check(keel_tree_plan_make(sim->plan, key->rank_count, key->shard_count, key->shard_rank) ==
                  KEEL_OK);
    else
        sim_check(keel_tree_plan_make(sim->plan, key->rank_count, key->rank_count, own) == KEEL_OK);
    sim_group_leaves(sim);
}

/* Make the schedules of all ranks; false when the algorithm cannot do it, which all ranks must say alike. */
static inline bool sim_make(struct sim *sim, const struct keel_collective_key *key, uint32_t segments,
                            uint32_t window, uint64_t seed)
{
    *sim =
        (struct sim){.key = *key, .segments = segments, .window = window, .held = SIM_NOBODY, .seed = seed};
    sim->ranks = calloc(key->rank_count, sizeof *sim->ranks);
    if (sim_reduces(key->kind))
        sim_make_plan(sim);
    uint32_t refused = 0;
    for (uint32_t rank = 0; rank < key->rank_count; rank++) {
        struct sim_rank *r = &sim->ranks[rank];
        struct keel_collective_key mine = *key;
        mine.rank = rank;
        enum keel_status status = keel_schedule_make(&mine, &r->schedule);
        if (status == KEEL_UNSUPPORTED) {
            refused++;
            continue;
        }
        ck_ok(status);
        sim_check_shape(sim, r->schedule);
        sim_check(!sim_reduces(key->kind) || r->schedule->part_blocks == sim->ranks[0].schedule->part_blocks);
        bool results = (key->kind != KEEL_GATHER && key->kind != KEEL_REDUCE) || rank == key->root;
        if (results) /* else: touched at the root alone */
            r->results = calloc((size_t)segments * r->schedule->result_blocks + 1, sizeof *r->results);
        r->temps = calloc((size_t)window * r->schedule->temp_count + 1, sizeof *r->temps);
        r->needs = calloc((size_t)window * r->schedule->step_count + 1, sizeof *r->needs);
        r->done = calloc(window, sizeof *r->done);
    }
    sim_check_msg(refused == 0 || refused == key->rank_count, "%u of %u ranks say that it cannot be done",
                  refused, key->rank_count);
    if (refused > 0) {
        sim_free(sim);
        return false;
    }
    if (sim_reduces(key->kind))
        sim_make_sums(sim);
    for (uint32_t rank = 0; rank < key->rank_count; rank++) {
        for (uint32_t segment = 0; segment < segments && segment < window; segment++)
            sim_open(sim, rank, segment);
        sim_advance(sim, rank);
    }
    return true;
}

static inline void sim_check_results(const struct sim *sim)
{
    bool exact = sim->key.exact && sim_reduces(sim->key.kind);
    for (uint32_t rank = 0; rank < sim->key.rank_count; rank++) {
        const struct keel_schedule *schedule = sim->ranks[rank].schedule;
        sim_check_msg(sim_ended(sim, rank), "rank %u never ends", rank);
        sim_check(!exact || schedule->in_order);
        for (uint32_t segment = 0; segment < sim->segments; segment++)
            for (uint32_t block = 0; block < schedule->result_blocks; block++) {
                struct sim_value wanted;
                if (!sim_wanted(sim, rank, block, segment, &wanted))
                    continue;
                struct keel_operand place = {KEEL_SPACE_RESULT, 0, block};
                struct sim_value got = *sim_place(sim, rank, segment, place);
                sim_check_msg(got.set == wanted.set, "rank %u, block %u: wrong leaves", rank, block);
                sim_check_msg(!schedule->in_order || got.tree == wanted.tree,
                              "rank %u, block %u: another order", rank, block);
            }
    }
}

#endif
