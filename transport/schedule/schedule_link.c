/* schedule_link.c - what must wait for what, and which message is whose.
 *
 * Owns the linked part of a schedule. One pass in the order of the listing: of every place (a block of the
 * RESULT, a TEMP) it knows the last step that wrote it and the steps that have read it since. A reader waits
 * for that writer, a writer for it and for those readers; a reader that a writer waited for is forgotten, so
 * the pass takes time and memory in proportion to the operands. PARTS are never written. */
#include "schedule_build.h"

#include <keel/memory.h>

#define NONE UINT32_MAX

struct linker {
    struct keel_schedule *schedule;
    uint32_t *writer;      /* by place: step, or NONE */
    uint32_t *reader;      /* by place: the newest reading operand, or NONE */
    uint32_t *reader_step; /* by operand: whose it is */
    uint32_t *next_reader; /* by operand: the one before it at that place */
    uint32_t *edges;       /* steps waited for, grouped by the step that waits */
    uint32_t edge_count;
    uint32_t *marked; /* by step: the last step that waits for it, so that each is waited for once */
};

static uint32_t place_of(const struct keel_schedule *schedule, struct keel_operand operand)
{
    if (operand.space == KEEL_SPACE_TEMP) {
        KEEL_ASSERT(operand.number < schedule->temp_count);
        return schedule->result_blocks + operand.number;
    }
    KEEL_ASSERT(operand.space == KEEL_SPACE_RESULT && operand.block < schedule->result_blocks);
    return operand.block;
}

static void wait_for(struct linker *linker, uint32_t step, uint32_t other)
{
    if (other == NONE || other == step || linker->marked[other] == step)
        return;
    linker->marked[other] = step;
    linker->edges[linker->edge_count++] = other;
    linker->schedule->needs[step]++;
    linker->schedule->freed_first[other + 1]++;
}

static void link_read(struct linker *linker, uint32_t step, uint32_t operand)
{
    const struct keel_schedule *schedule = linker->schedule;
    if (schedule->operands[operand].space == KEEL_SPACE_PART) {
        KEEL_ASSERT(schedule->operands[operand].block < schedule->part_blocks);
        return;
    }
    uint32_t place = place_of(schedule, schedule->operands[operand]);
    KEEL_ASSERT(linker->writer[place] != NONE);
    wait_for(linker, step, linker->writer[place]);
    linker->reader_step[operand] = step;
    linker->next_reader[operand] = linker->reader[place];
    linker->reader[place] = operand;
}

static void link_write(struct linker *linker, uint32_t step, uint32_t operand)
{
    uint32_t place = place_of(linker->schedule, linker->schedule->operands[operand]);
    KEEL_ASSERT(linker->schedule->steps[step].kind != KEEL_STEP_RECEIVE || linker->writer[place] == NONE);
    wait_for(linker, step, linker->writer[place]);
    for (uint32_t at = linker->reader[place]; at != NONE; at = linker->next_reader[at])
        wait_for(linker, step, linker->reader_step[at]);
    linker->reader[place] = NONE;
    linker->writer[place] = step;
}

static void link_steps(struct linker *linker)
{
    const struct keel_schedule *schedule = linker->schedule;
    for (uint32_t k = 0; k < schedule->step_count; k++) {
        const struct keel_step *step = &schedule->steps[k];
        uint32_t first = step->operand_first, end = first + step->operand_count;
        bool writes = step->kind != KEEL_STEP_SEND;
        for (uint32_t at = first + (writes ? 1 : 0); at < end; at++)
            link_read(linker, k, at);
        if (writes)
            link_write(linker, k, first);
    }
}

/* From "k waits for these" to "these wait for k". */
static enum keel_status turn_edges(struct linker *linker)
{
    struct keel_schedule *schedule = linker->schedule;
    KEEL_TRY(keel_alloc(linker->edge_count, sizeof *schedule->freed, (void *)&schedule->freed));
    for (uint32_t k = 0; k < schedule->step_count; k++) {
        schedule->freed_first[k + 1] += schedule->freed_first[k];
        linker->marked[k] = schedule->freed_first[k];
    }
    const uint32_t *edge = linker->edges;
    for (uint32_t k = 0; k < schedule->step_count; k++)
        for (uint32_t i = 0; i < schedule->needs[k]; i++)
            schedule->freed[linker->marked[*edge++]++] = k;
    return KEEL_OK;
}

static bool is_message(const struct keel_step *step)
{
    return step->kind == KEEL_STEP_SEND || step->kind == KEEL_STEP_RECEIVE;
}

/* slots: by rank; 0 for a stranger, else its index among the peers + 1. */
static enum keel_status find_peers(struct keel_schedule *schedule, uint32_t *slots)
{
    for (uint32_t k = 0; k < schedule->step_count; k++)
        if (is_message(&schedule->steps[k]))
            slots[schedule->steps[k].peer] = 1;
    for (uint32_t rank = 0; rank < schedule->rank_count; rank++)
        if (slots[rank] != 0)
            slots[rank] = ++schedule->peer_count;
    KEEL_TRY(keel_alloc(schedule->peer_count, sizeof *schedule->peers, (void *)&schedule->peers));
    for (uint32_t rank = 0; rank < schedule->rank_count; rank++)
        if (slots[rank] != 0)
            schedule->peers[slots[rank] - 1] = rank;
    return KEEL_OK;
}

/* Number the messages of each pair, and list the receives by peer. */
static enum keel_status number_messages(struct keel_schedule *schedule, uint32_t *slots, uint32_t *sends)
{
    KEEL_TRY(find_peers(schedule, slots));
    uint32_t receives = 0;
    KEEL_TRY(keel_alloc(schedule->peer_count + 1, sizeof *schedule->receives_first,
                        (void *)&schedule->receives_first));
    for (uint32_t k = 0; k < schedule->step_count; k++) {
        struct keel_step *step = &schedule->steps[k];
        if (!is_message(step))
            continue;
        step->peer_index = slots[step->peer] - 1;
        bool receive = step->kind == KEEL_STEP_RECEIVE;
        step->ordinal =
            receive ? schedule->receives_first[step->peer_index + 1]++ : sends[step->peer_index]++;
        receives += receive;
    }
    KEEL_TRY(keel_alloc(receives, sizeof *schedule->receives, (void *)&schedule->receives));
    for (uint32_t p = 0; p < schedule->peer_count; p++)
        schedule->receives_first[p + 1] += schedule->receives_first[p];
    for (uint32_t k = 0; k < schedule->step_count; k++) {
        const struct keel_step *step = &schedule->steps[k];
        if (step->kind == KEEL_STEP_RECEIVE)
            schedule->receives[schedule->receives_first[step->peer_index] + step->ordinal] = k;
    }
    return KEEL_OK;
}

static enum keel_status link_peers(struct keel_schedule *schedule)
{
    uint32_t *slots = NULL, *sends = NULL;
    enum keel_status status = keel_alloc(schedule->rank_count, sizeof *slots, (void *)&slots);
    if (status == KEEL_OK)
        status = keel_alloc(schedule->rank_count, sizeof *sends, (void *)&sends);
    if (status == KEEL_OK)
        status = number_messages(schedule, slots, sends);
    keel_free(sends);
    keel_free(slots);
    return status;
}

static enum keel_status link_hazards(struct linker *linker, uint32_t *scratch)
{
    struct keel_schedule *schedule = linker->schedule;
    uint32_t places = schedule->result_blocks + schedule->temp_count;
    linker->writer = scratch;
    linker->reader = linker->writer + places;
    linker->marked = linker->reader + places;
    for (uint32_t *at = scratch; at < linker->marked + schedule->step_count; at++)
        *at = NONE;
    linker->reader_step = linker->marked + schedule->step_count;
    linker->next_reader = linker->reader_step + schedule->operand_count;
    /* An operand makes its step wait for a writer, and, having read, one writer wait for its step. */
    linker->edges = linker->next_reader + schedule->operand_count;
    KEEL_TRY(keel_alloc(schedule->step_count, sizeof *schedule->needs, (void *)&schedule->needs));
    KEEL_TRY(
        keel_alloc(schedule->step_count + 1, sizeof *schedule->freed_first, (void *)&schedule->freed_first));
    link_steps(linker);
    return turn_edges(linker);
}

enum keel_status keel_schedule_link(struct keel_schedule *schedule)
{
    struct linker linker = {.schedule = schedule};
    size_t words = 2 * ((size_t)schedule->result_blocks + schedule->temp_count) + schedule->step_count +
                   4 * (size_t)schedule->operand_count;
    uint32_t *scratch = NULL;
    KEEL_TRY(keel_alloc(words, sizeof *scratch, (void *)&scratch));
    enum keel_status status = link_hazards(&linker, scratch);
    keel_free(scratch);
    return status == KEEL_OK ? link_peers(schedule) : status;
}
