/* schedule_build.h - what the generators share: a schedule under construction, and who holds which leaf.
 *
 * A generator lists the steps of one rank with the calls below. Memory that is not to be had makes the
 * builder fail once; calls after that do nothing, so that generators need not ask. Rules for generators:
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

struct keel_builder {
    const struct keel_schedule_wish *wish;
    struct keel_schedule *schedule;
    uint32_t step_capacity, operand_capacity, program_capacity;
    struct keel_tree_plan *plan; /* reductions: the leaves and the program of the whole sum; else NULL */
    enum keel_status status;     /* OK, or why nothing is added any more */
};

/* Reductions: how many leaves the rank holds. */
uint32_t keel_build_leaves(const struct keel_builder *builder, uint32_t rank);
/* The rank `distance` behind the rank of the schedule, round the circle. */
uint32_t keel_build_after(const struct keel_builder *builder, uint32_t distance);

struct keel_operand keel_operand_part(uint32_t number, uint32_t block);
struct keel_operand keel_operand_result(uint32_t block);
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
/* All-gather in one hop: block r of the result is rank r's, and is `mine` here (copied unless it is there
 * already). */
void keel_build_gather_blocks(struct keel_builder *builder, struct keel_operand mine);
enum keel_status keel_build_cannot(const struct keel_builder *builder, const char *why);

/* A generator: UNSUPPORTED before its first step, or nothing to say (builder->status tells of memory). */
typedef enum keel_status keel_schedule_generator(struct keel_builder *builder);
keel_schedule_generator keel_schedule_flat, keel_schedule_direct;

/* Find what waits for what, and who the peers are (schedule.h). */
enum keel_status keel_schedule_link(struct keel_schedule *schedule);

#endif
