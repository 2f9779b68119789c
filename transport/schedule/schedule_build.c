/* schedule_build.c - a schedule under construction: steps, operands and programs that grow. */
#include "schedule_build.h"

#include <keel/memory.h>
#include <string.h>

uint32_t keel_build_leaves(const struct keel_builder *builder, uint32_t rank)
{
    return builder->plan->rank_leaves[rank];
}

uint32_t keel_build_after(const struct keel_builder *builder, uint32_t distance)
{
    return (builder->schedule->rank + distance) % builder->schedule->rank_count;
}

struct keel_operand keel_operand_part(uint32_t number, uint32_t block)
{
    return (struct keel_operand){KEEL_SPACE_PART, (uint16_t)number, block};
}

struct keel_operand keel_operand_result(uint32_t block)
{
    return (struct keel_operand){KEEL_SPACE_RESULT, 0, block};
}

enum keel_status keel_build_too_much(const struct keel_collective_key *key)
{
    return keel_fail(KEEL_LIMIT,
                     "schedule: %s by %s would take more than %d blocks of scratch; take another algorithm",
                     keel_collective_name(key->kind), keel_algorithm_name(key->algorithm), KEEL_TEMPS_MAX);
}

struct keel_operand keel_build_temp(struct keel_builder *builder, uint32_t block)
{
    if (builder->schedule->temp_count < KEEL_TEMPS_MAX)
        return (struct keel_operand){KEEL_SPACE_TEMP, (uint16_t)builder->schedule->temp_count++, block};
    if (builder->status == KEEL_OK)
        builder->status = keel_build_too_much(builder->key);
    return (struct keel_operand){KEEL_SPACE_TEMP, 0, block}; /* no step that names it is taken */
}

/* Room for `more` items behind `count`; false when the builder has failed. */
static bool grow(struct keel_builder *builder, void *array_address, uint32_t count, uint32_t more,
                 uint32_t *capacity, size_t item_bytes)
{
    if (builder->status != KEEL_OK)
        return false;
    if (more <= *capacity - count)
        return true;
    uint32_t wanted = *capacity < 32 ? 64 : 2 * *capacity;
    if (wanted < count + more)
        wanted = count + more;
    builder->status = keel_realloc(array_address, *capacity, wanted, item_bytes);
    if (builder->status != KEEL_OK)
        return false;
    *capacity = wanted;
    return true;
}

/* A new step with room for its operands and program; NULL when the builder has failed. */
static struct keel_step *add_step(struct keel_builder *builder, enum keel_step_kind kind, uint32_t peer,
                                  uint32_t operand_count, uint32_t program_count)
{
    struct keel_schedule *s = builder->schedule;
    if (!grow(builder, (void *)&s->steps, s->step_count, 1, &builder->step_capacity, sizeof *s->steps) ||
        !grow(builder, (void *)&s->operands, s->operand_count, operand_count, &builder->operand_capacity,
              sizeof *s->operands) ||
        !grow(builder, (void *)&s->program, s->program_count, program_count, &builder->program_capacity,
              sizeof *s->program))
        return NULL;
    struct keel_step *step = &s->steps[s->step_count++];
    *step = (struct keel_step){.kind = (uint8_t)kind,
                               .peer = peer,
                               .operand_first = s->operand_count,
                               .operand_count = operand_count,
                               .program_first = s->program_count,
                               .program_count = program_count};
    s->operand_count += operand_count;
    s->program_count += program_count;
    return step;
}

void keel_build_send(struct keel_builder *builder, uint32_t peer, struct keel_operand source)
{
    KEEL_ASSERT(peer != builder->schedule->rank && peer < builder->schedule->rank_count);
    const struct keel_step *step = add_step(builder, KEEL_STEP_SEND, peer, 1, 0);
    if (step != NULL)
        builder->schedule->operands[step->operand_first] = source;
}

void keel_build_receive(struct keel_builder *builder, uint32_t peer, struct keel_operand destination)
{
    KEEL_ASSERT(peer != builder->schedule->rank && peer < builder->schedule->rank_count);
    const struct keel_step *step = add_step(builder, KEEL_STEP_RECEIVE, peer, 1, 0);
    if (step != NULL)
        builder->schedule->operands[step->operand_first] = destination;
}

void keel_build_copy(struct keel_builder *builder, struct keel_operand destination,
                     struct keel_operand source)
{
    const struct keel_step *step = add_step(builder, KEEL_STEP_COPY, 0, 2, 0);
    if (step == NULL)
        return;
    builder->schedule->operands[step->operand_first] = destination;
    builder->schedule->operands[step->operand_first + 1] = source;
}

void keel_build_combine(struct keel_builder *builder, struct keel_operand destination,
                        const struct keel_operand *sources, uint32_t source_count, const uint16_t *program,
                        uint32_t program_count)
{
    if (source_count == 1) {
        keel_build_copy(builder, destination, sources[0]);
        return;
    }
    const struct keel_step *step = add_step(builder, KEEL_STEP_COMBINE, 0, source_count + 1, program_count);
    if (step == NULL)
        return;
    struct keel_operand *operands = &builder->schedule->operands[step->operand_first];
    operands[0] = destination;
    memcpy(operands + 1, sources, source_count * sizeof *sources);
    memcpy(&builder->schedule->program[step->program_first], program, program_count * sizeof *program);
}

void keel_build_add(struct keel_builder *builder, struct keel_operand destination, struct keel_operand left,
                    struct keel_operand right)
{
    static const uint16_t sum[] = {0, 1, KEEL_TREE_ADD};
    const struct keel_operand sources[] = {left, right};
    keel_build_combine(builder, destination, sources, 2, sum, 3);
}

void keel_build_blocks(struct keel_builder *builder, uint32_t part_blocks, uint32_t result_blocks,
                       enum keel_space sizing)
{
    builder->schedule->part_blocks = part_blocks;
    builder->schedule->result_blocks = result_blocks;
    builder->schedule->sizing = sizing;
}

void keel_build_send_leaves(struct keel_builder *builder, uint32_t peer, uint32_t block)
{
    uint32_t leaves = keel_build_leaves(builder, builder->schedule->rank);
    for (uint32_t k = 0; k < leaves; k++)
        keel_build_send(builder, peer, keel_operand_part(k, block));
}

/* Of each leaf, as many as there are: the caller's stack may be small. NULL: the builder has failed. */
static struct keel_operand *reserve_sources(struct keel_builder *builder)
{
    struct keel_operand *sources = NULL;
    if (builder->status == KEEL_OK)
        builder->status = keel_alloc(builder->plan->leaf_count, sizeof *sources, (void *)&sources);
    return sources;
}

/* Leaves ascend within each rank as in the whole, so the order of receiving is that of sending. False: there
 * is one leaf alone, and it has been received at the destination. */
static bool receive_leaves(struct keel_builder *builder, uint32_t block, struct keel_operand destination,
                           struct keel_operand *sources)
{
    const struct keel_tree_plan *plan = builder->plan;
    for (uint32_t leaf = 0; leaf < plan->leaf_count; leaf++) {
        uint32_t rank = plan->leaf_rank[leaf];
        if (rank == builder->schedule->rank) {
            sources[leaf] = keel_operand_part(plan->leaf_ordinal[leaf], block);
            continue;
        }
        bool alone = plan->leaf_count == 1;
        sources[leaf] = alone ? destination : keel_build_temp(builder, block);
        keel_build_receive(builder, rank, sources[leaf]);
        if (alone)
            return false;
    }
    return true;
}

void keel_build_sum_leaves(struct keel_builder *builder, uint32_t block, struct keel_operand destination)
{
    const struct keel_tree_plan *plan = builder->plan;
    struct keel_operand *sources = reserve_sources(builder);
    if (sources != NULL && receive_leaves(builder, block, destination, sources))
        keel_build_combine(builder, destination, sources, plan->leaf_count, plan->steps, plan->step_count);
    keel_free(sources);
}

/* Sums at the bottom of the stack are made in their place, others in a temp of their own or in that of the
 * sum to their left: never onto what was received. */
static void add_pairs(struct keel_builder *builder, uint32_t block, struct keel_operand destination,
                      const struct keel_operand *sources)
{
    const struct keel_tree_plan *plan = builder->plan;
    struct keel_operand stack[KEEL_TREE_DEPTH_MAX];
    bool is_sum[KEEL_TREE_DEPTH_MAX] = {false};
    uint32_t depth = 0;
    if (plan->leaf_count == 1)
        keel_build_copy(builder, destination, sources[0]);
    for (uint32_t k = 0; k < plan->step_count; k++) {
        if (plan->steps[k] != KEEL_TREE_ADD) {
            KEEL_ASSERT(depth < KEEL_TREE_DEPTH_MAX);
            is_sum[depth] = false;
            stack[depth++] = sources[plan->steps[k]];
            continue;
        }
        KEEL_ASSERT(depth >= 2);
        uint32_t right = --depth, left = depth - 1;
        struct keel_operand sum = destination;
        if (left > 0)
            sum = is_sum[left] ? stack[left] : keel_build_temp(builder, block);
        keel_build_add(builder, sum, stack[left], stack[right]);
        stack[left] = sum;
        is_sum[left] = true;
    }
}

void keel_build_sum_pairs(struct keel_builder *builder, uint32_t block, struct keel_operand destination)
{
    struct keel_operand *sources = reserve_sources(builder);
    if (sources != NULL && receive_leaves(builder, block, destination, sources))
        add_pairs(builder, block, destination, sources);
    keel_free(sources);
}

void keel_build_gather_blocks(struct keel_builder *builder, struct keel_operand mine)
{
    const struct keel_schedule *schedule = builder->schedule;
    for (uint32_t i = 1; i < schedule->rank_count; i++)
        keel_build_send(builder, keel_build_after(builder, i), mine);
    for (uint32_t i = schedule->rank_count; i-- > 1;) {
        uint32_t peer = keel_build_after(builder, i);
        keel_build_receive(builder, peer, keel_operand_result(peer));
    }
    if (mine.space != KEEL_SPACE_RESULT)
        keel_build_copy(builder, keel_operand_result(schedule->rank), mine);
}
