/* schedule_build.h - what the generators share: a schedule under construction, and who holds which leaf.
 *
 * A generator lists the steps of one rank with the calls below. After the first allocation that fails the
 * builder keeps that status and its calls do nothing, so that generators need not check. Rules for
 * generators:
 *
 *   1. The k-th SEND from a to b is the k-th RECEIVE of b from a, though each side lists its own.
 *   2. A RECEIVE is the first step that touches its destination. So it waits for nothing, and a runner has a
 *      place for every message from the start of a segment, in whatever order they come.
 *   3. A step reads only PARTS and what an earlier step wrote.
 *
 * The linker asserts 2 and 3 on every schedule. */
#ifndef KEEL_TRANSPORT_SCHEDULE_BUILD_H
#define KEEL_TRANSPORT_SCHEDULE_BUILD_H

#include "schedule.h"

/* Properties of a collective that costs and choices depend on: computed from its key without allocating, in
 * time linear in its maps. */
struct keel_facts {
    uint32_t ranks;
    bool reduces;
    uint32_t leaves, root_leaves; /* reductions: of the tree over shards; those that the root holds */
    uint32_t maker;               /*   who holds the first leaf, and makes the root of the tree */
    uint32_t climb_edges;         /*   inner nodes whose children are made by two ranks */
    uint32_t climb_steps;         /*   and the most of them above a leaf */
    uint32_t climb_temps; /*   scratch of who takes the most of it to make inner nodes, of one block */
    bool aligned;         /*   rank r holds just the shards below node (level, r), the same level for all */
    bool all_hold;        /*   no rank without a leaf */
    uint32_t hosts, host_ranks; /* ranks of the largest */
    bool hosts_equal;           /* in size */
    bool hosts_in_order;        /* equal, and the ranks of each follow those of the one before */
};
struct keel_facts keel_key_facts(const struct keel_collective_key *key);
/* Why the algorithm cannot do it; NULL when it can. */
const char *keel_key_obstacle(const struct keel_collective_key *key, const struct keel_facts *facts);
/* Whether no rank takes more scratch than operands can name: all ranks say the same. */
bool keel_key_fits(const struct keel_collective_key *key, const struct keel_facts *facts);
/* The most peers of a rank, of algorithms that go straight to everybody; 0 of others, which have few (up a
 * tree as many as the map has neighbours). */
uint32_t keel_key_peers(const struct keel_collective_key *key, const struct keel_facts *facts);
/* Whether AUTO may take it. */
bool keel_key_offered(const struct keel_collective_key *key, const struct keel_facts *facts);
/* Whether its sums follow the tree over shards. */
bool keel_key_in_order(const struct keel_collective_key *key, const struct keel_facts *facts);
uint32_t keel_key_host(const struct keel_collective_key *key, uint32_t rank);
bool keel_is_power_of_two(uint32_t count);

enum { KEEL_TEMPS_MAX = UINT16_MAX + 1 }; /* of a schedule */

struct keel_builder {
    const struct keel_collective_key *key;
    struct keel_facts facts;
    struct keel_schedule *schedule;
    uint32_t step_capacity, operand_capacity, program_capacity;
    struct keel_tree_plan *plan; /* reductions: the leaves and the program of the whole sum; else NULL */
    struct keel_operand *value;  /* by block: where this rank has its value now (keel_build_values) */
    enum keel_status status;     /* OK, or why nothing is added any more */
};

/* Reductions: how many leaves the rank holds. */
uint32_t keel_build_leaves(const struct keel_builder *builder, uint32_t rank);
/* The rank `distance` behind the rank of the schedule, round the circle. */
uint32_t keel_build_after(const struct keel_builder *builder, uint32_t distance);

struct keel_operand keel_operand_part(uint32_t number, uint32_t block);
struct keel_operand keel_operand_result(uint32_t block);
/* LIMIT, with the words for it. */
enum keel_status keel_build_too_much(const struct keel_collective_key *key);
/* A fresh TEMP of the size of `block`. */
struct keel_operand keel_build_temp(struct keel_builder *builder, uint32_t block);

void keel_build_send(struct keel_builder *builder, uint32_t peer, struct keel_operand source);
void keel_build_receive(struct keel_builder *builder, uint32_t peer, struct keel_operand destination);
void keel_build_copy(struct keel_builder *builder, struct keel_operand destination,
                     struct keel_operand source);
/* destination = left + right */
void keel_build_add(struct keel_builder *builder, struct keel_operand destination, struct keel_operand left,
                    struct keel_operand right);
/* destination = the program over `source_count` sources; a program of one leaf becomes a copy. */
void keel_build_combine(struct keel_builder *builder, struct keel_operand destination,
                        const struct keel_operand *sources, uint32_t source_count, const uint16_t *program,
                        uint32_t program_count);

/* How many blocks PARTS and RESULT have, and whose sizes TEMPS take. */
void keel_build_blocks(struct keel_builder *builder, uint32_t part_blocks, uint32_t result_blocks,
                       enum keel_space sizing);
/* Reductions: send that block of all leaves of this rank; */
void keel_build_send_leaves(struct keel_builder *builder, uint32_t peer, uint32_t block);
/* and receive that block of all leaves of the others, then sum all in tree order. */
void keel_build_sum_leaves(struct keel_builder *builder, uint32_t block, struct keel_operand destination);
/* The same by a COMBINE for each inner node: more steps, and of a long block that comes early a sum is
 * written instead of a copy, unless it waits for the other child of its node. */
void keel_build_sum_pairs(struct keel_builder *builder, uint32_t block, struct keel_operand destination);
/* All-gather in one hop: block r of the result is rank r's, and is `mine` here (copied unless it is there
 * already). */
void keel_build_gather_blocks(struct keel_builder *builder, struct keel_operand mine);
/* ---- teams: phases over some of the ranks, of which algorithms are put together ---- */

/* Some ranks, this one among them, in an order that all of them know. */
struct keel_team {
    uint32_t count, mine;
    const uint32_t *ranks; /* NULL: member i is rank i */
};
/* Blocks, set by set: member i's is blocks[first[i]] .. blocks[first[i + 1] - 1]. NULL: set i is block i. */
struct keel_sets {
    const uint32_t *first, *blocks;
};
uint32_t keel_team_rank(const struct keel_team *team, uint32_t member);
uint32_t keel_set_count(const struct keel_sets *sets, uint32_t member);
uint32_t keel_set_block(const struct keel_sets *sets, uint32_t member, uint32_t k);

/* All blocks are in part 0, or, for a reduction, the sum of this rank's leaves. */
void keel_build_values(struct keel_builder *builder, uint32_t blocks);
/* Where the result wants the block; and bring it there. */
struct keel_operand keel_build_place(const struct keel_builder *builder, uint32_t block);
void keel_build_settle(struct keel_builder *builder, uint32_t block);
/* Where the sum of a block so far and of something received goes: never onto what was received, so that a
 * runner may combine straight from the message. */
struct keel_operand keel_build_sum_place(struct keel_builder *builder, uint32_t block);
void keel_build_send_set(struct keel_builder *builder, uint32_t peer, const struct keel_sets *sets,
                         uint32_t member);
/* Into temps, or, settled, to their places. */
void keel_build_receive_set(struct keel_builder *builder, uint32_t peer, const struct keel_sets *sets,
                            uint32_t member, bool settled);

/* Each member ends with the sum of its set; `last`: in its place in the result. */
typedef void keel_team_scatter_sums(struct keel_builder *builder, const struct keel_team *team,
                                    const struct keel_sets *sets, bool last);
/* From each member its set, settled; and everybody has all, settled. */
typedef void keel_team_gather_all(struct keel_builder *builder, const struct keel_team *team,
                                  const struct keel_sets *sets);
keel_team_scatter_sums keel_ring_scatter_sums, keel_halving_scatter_sums; /* halving: 2^k members, in order */
keel_team_gather_all keel_ring_gather_all, keel_doubling_gather_all;      /* doubling: 2^k members */

/* Binomial trees. `origin` is a member. Blocks 0 .. blocks - 1 from the origin to all, settled. */
void keel_tree_broadcast(struct keel_builder *builder, const struct keel_team *team, uint32_t origin,
                         uint32_t blocks);
/* Member 0 ends with the sums, in the order of the members. */
void keel_tree_sum_team(struct keel_builder *builder, const struct keel_team *team, uint32_t blocks);
/* The origin ends with all sets; `last`: settled. And the other way round. */
void keel_tree_gather(struct keel_builder *builder, const struct keel_team *team, uint32_t origin,
                      const struct keel_sets *sets, bool last);
void keel_tree_scatter(struct keel_builder *builder, const struct keel_team *team, uint32_t origin,
                       const struct keel_sets *sets, bool last);
/* Nobody goes on before all have come: dissemination (Hensgen, Finkel, Manber 1988). */
void keel_bruck_meet(struct keel_builder *builder, const struct keel_team *team);

/* The group as a team. */
struct keel_team keel_build_everybody(const struct keel_builder *builder);
/* A generator. The key has no obstacle; memory that is not to be had is in builder->status. */
typedef void keel_schedule_generator(struct keel_builder *builder);
keel_schedule_generator keel_schedule_flat, keel_schedule_direct, keel_schedule_ring, keel_schedule_tree,
    keel_schedule_halving, keel_schedule_bruck, keel_schedule_pairwise, keel_schedule_two_level,
    keel_schedule_doubling;

/* Find what waits for what, and who the peers are (schedule.h). */
enum keel_status keel_schedule_link(struct keel_schedule *schedule);

#endif
