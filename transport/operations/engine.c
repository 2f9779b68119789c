/* engine.c - runs a linked schedule: which step may go now, and what it does to the data.
 *
 * The schedule is run once per segment (the c-th chunk of every block), up to `window` segments at a time,
 * each in its slot. A step is run when the steps that it needs are done: a COPY or COMBINE at once, a SEND
 * when its peer has room, a RECEIVE when its message comes. Needs nothing but memory: who may be sent to, and
 * when, is for operation_protocol.c to say. Scratch is a chunk of every TEMP for every slot. */
#include "combine.h"
#include "copy.h"
#include "group.h"

#include <string.h>

enum item_state {
    WAITING,
    READY,    /* SEND: lies in its flow; RECEIVE: its message may come */
    GONE,     /* SEND: its memory is lent */
    COMBINED, /* COMBINE: run already, straight from a payload */
    DONE
};

/* ---- where the data is --------------------------------------------------------------------------------- */

static const struct keel_cut *cut_of(const struct keel_operation *operation,
                                     const struct keel_operand *operand)
{
    enum keel_space space = (enum keel_space)operand->space;
    if (space == KEEL_SPACE_TEMP)
        space = operation->plan->schedule->sizing;
    return space == KEEL_SPACE_PART ? &operation->part_cut : &operation->result_cut;
}

static void block_of(const struct keel_cut *cut, uint32_t block, uint64_t *out_at, uint64_t *out_bytes)
{
    if (cut->ends != NULL) {
        *out_at = block > 0 ? cut->ends[block - 1] : 0;
        *out_bytes = cut->ends[block] - *out_at;
        return;
    }
    uint64_t at = cut->share * block;
    *out_at = at < cut->total ? at : cut->total;
    *out_bytes = cut->total - *out_at < cut->share ? cut->total - *out_at : cut->share;
}

static struct keel_operation_piece cut_piece(const struct keel_operation *operation,
                                             const struct keel_operand *operand, uint32_t segment)
{
    uint64_t at, bytes, first = (uint64_t)segment * operation->chunk_bytes;
    block_of(cut_of(operation, operand), operand->block, &at, &bytes);
    if (first >= bytes)
        return (struct keel_operation_piece){at, 0, operation->tokens};
    bytes -= first;
    return (struct keel_operation_piece){
        at + first, bytes < operation->chunk_bytes ? (uint32_t)bytes : operation->chunk_bytes, true};
}

static struct keel_operation_piece piece_of(const struct keel_operation *operation, uint32_t operand,
                                            uint32_t segment)
{
    if (operation->pieces_known)
        return operation->pieces[operand];
    return cut_piece(operation, &operation->plan->schedule->operands[operand], segment);
}

static uint8_t *temp_at(const struct keel_operation *operation, uint32_t number, uint32_t slot)
{
    return operation->scratch +
           ((uint64_t)slot * operation->plan->schedule->temp_count + number) * operation->chunk_bytes;
}

/* The root of a broadcast may do without a result: its part says the same. */
static bool is_spared(const struct keel_operation *operation, const struct keel_operand *operand)
{
    return operand->space == KEEL_SPACE_RESULT && operation->result == NULL;
}

static struct keel_held *held_at(const struct keel_operation *operation, uint32_t number, uint32_t slot)
{
    return &operation->held[(uint64_t)slot * operation->plan->schedule->temp_count + number];
}

static const void *source_at(const struct keel_operation *operation, const struct keel_operand *operand,
                             struct keel_operation_piece piece, uint32_t slot)
{
    if (piece.bytes == 0)
        return NULL;
    if (operand->space == KEEL_SPACE_TEMP) {
        const struct keel_held *held = held_at(operation, operand->number, slot);
        return held->payload != NULL ? held->payload : temp_at(operation, operand->number, slot);
    }
    if (operand->space == KEEL_SPACE_PART)
        return operation->parts[operand->number] + piece.at;
    if (is_spared(operation, operand))
        return operation->parts[0] + piece.at;
    return operation->result + piece.at;
}

static void *destination_at(const struct keel_operation *operation, const struct keel_operand *operand,
                            struct keel_operation_piece piece, uint32_t slot)
{
    KEEL_ASSERT(operand->space != KEEL_SPACE_PART);
    return operand->space == KEEL_SPACE_TEMP ? temp_at(operation, operand->number, slot)
                                             : operation->result + piece.at;
}

/* ---- what a pair exchanges ----------------------------------------------------------------------------- */

static void count_copied(const struct keel_operation *operation, uint64_t bytes)
{
    keel_count_add(&operation->group->endpoint->data_copied, bytes);
}

/* The first of a step: what it moves, or where it puts something. */
static const struct keel_operand *operand_of(const struct keel_operation *operation, uint32_t step,
                                             uint32_t segment, struct keel_operation_piece *out)
{
    const struct keel_schedule *schedule = operation->plan->schedule;
    uint32_t first = schedule->steps[step].operand_first;
    *out = piece_of(operation, first, segment);
    return &schedule->operands[first];
}

static uint64_t count_messages(const struct keel_flow *flow, bool give, uint32_t *out_segments,
                               uint64_t *out_bytes)
{
    const struct keel_operation *operation = flow->operation;
    uint32_t most = 0;
    uint64_t total = 0, at, bytes;
    *out_bytes = 0;
    const uint32_t *steps = give ? flow->sends : flow->receives;
    uint32_t count = give ? flow->send_count : flow->receive_count;
    for (uint32_t k = 0; k < count; k++) {
        const struct keel_schedule *schedule = operation->plan->schedule;
        const struct keel_operand *operand = &schedule->operands[schedule->steps[steps[k]].operand_first];
        block_of(cut_of(operation, operand), operand->block, &at, &bytes);
        uint32_t chunks = (uint32_t)((bytes + operation->chunk_bytes - 1) / operation->chunk_bytes);
        if (operation->tokens)
            chunks = 1;
        total += chunks;
        *out_bytes += bytes;
        most = chunks > most ? chunks : most;
    }
    *out_segments = most;
    return total;
}

void keel_engine_init(struct keel_operation *operation)
{
    const struct keel_schedule *schedule = operation->plan->schedule;
    for (uint32_t k = 0; k < operation->flow_count; k++) {
        struct keel_flow *flow = &operation->flows[k];
        flow->give_count = count_messages(flow, true, &flow->give_segments, &flow->give_bytes);
        flow->take_count = count_messages(flow, false, &flow->take_segments, &flow->take_bytes);
    }
    operation->opening_known = false;
    operation->pieces_known = operation->pieces != NULL && operation->segment_count == 1;
    for (uint32_t k = 0; operation->pieces_known && k < schedule->operand_count; k++)
        operation->pieces[k] = cut_piece(operation, &schedule->operands[k], 0);
}

/* ---- running ------------------------------------------------------------------------------------------- */

static uint32_t item_of(const struct keel_operation *operation, uint32_t slot, uint32_t step)
{
    return slot * operation->plan->schedule->step_count + step;
}

static void split_item(const struct keel_operation *operation, uint32_t item, uint32_t *out_slot,
                       uint32_t *out_step)
{
    bool one = operation->window <= 1; /* divisions take long */
    *out_slot = one ? 0 : item / operation->plan->schedule->step_count;
    *out_step = one ? item : item % operation->plan->schedule->step_count;
}

static uint32_t slot_of(const struct keel_operation *operation, uint32_t segment)
{
    return operation->window > 1 ? segment % operation->window : 0;
}

static void push_ready(struct keel_operation *operation, uint32_t item)
{
    operation->chain[item] = KEEL_NONE;
    if (operation->ready == KEEL_NONE)
        operation->ready = item;
    else
        operation->chain[operation->ready_last] = item;
    operation->ready_last = item;
}

static void item_done(struct keel_operation *operation, uint32_t item)
{
    const struct keel_schedule *schedule = operation->plan->schedule;
    uint32_t slot, step;
    split_item(operation, item, &slot, &step);
    KEEL_ASSERT(operation->state[item] != DONE && operation->left[slot] > 0);
    operation->state[item] = DONE;
    operation->left[slot]--;
    for (uint32_t k = schedule->freed_first[step]; k < schedule->freed_first[step + 1]; k++) {
        uint32_t next = item_of(operation, slot, schedule->freed[k]);
        KEEL_ASSERT(operation->needs[next] > 0 && operation->state[next] != DONE);
        if (--operation->needs[next] == 0)
            push_ready(operation, next);
    }
}

static void queue_send(struct keel_operation *operation, uint32_t item, uint32_t slot, uint32_t flow_index)
{
    struct keel_flow *flow = &operation->flows[flow_index];
    operation->state[item] = READY;
    operation->chain[item] = KEEL_NONE;
    if (flow->head[slot] == KEEL_NONE)
        flow->head[slot] = item;
    else
        operation->chain[flow->tail[slot]] = item;
    flow->tail[slot] = item;
    keel_protocol_queue(flow);
}

/* ---- what is held: payloads of peers that a COMBINE reads where they lie, once all of them are there --- */

static void drop_held(struct keel_operation *operation, struct keel_held *held)
{
    KEEL_ASSERT(operation->held_count > 0 && operation->group->whole->held_count > 0 && held->flow->held > 0);
    operation->held_count--;
    operation->group->whole->held_count--;
    held->flow->held--;
    held->payload = NULL;
}

void keel_engine_let_go(struct keel_operation *operation, bool copies)
{
    uint32_t temps = operation->plan->schedule->temp_count;
    for (uint32_t k = 0; k < operation->window * temps && operation->held_count > 0; k++) {
        struct keel_held *held = &operation->held[k];
        if (held->payload == NULL || (copies && held->connection == NULL))
            continue;
        bool there = keel_protocol_holds(held);
        if (there && copies) {
            memcpy(temp_at(operation, k % temps, k / temps), held->payload, held->bytes);
            count_copied(operation, held->bytes);
        }
        there = there && keel_protocol_let_go(held);
        if (there || !copies)
            drop_held(operation, held);
        else
            held->connection = NULL;
    }
}

/* The payload that is being delivered, of a TEMP that one COMBINE alone reads. */
static bool hold(struct keel_flow *flow, uint32_t number, uint32_t slot, const uint8_t *payload,
                 uint32_t bytes)
{
    struct keel_operation *operation = flow->operation;
    struct keel_held *held = held_at(operation, number, slot);
    if (!keel_protocol_hold(flow, held))
        return false;
    held->payload = payload;
    held->bytes = bytes;
    held->flow = flow;
    flow->held++;
    operation->held_count++;
    operation->group->whole->held_count++;
    return true;
}

/* Before a COMBINE reads, and after: whether all that it reads without having it is there. If not, its peer
 * is about to be lost, and the operation with it. */
static bool sources_there(struct keel_operation *operation, const struct keel_operand *sources,
                          uint32_t count, uint32_t slot, bool let_go)
{
    bool there = true;
    for (uint32_t k = 0; k < count && operation->held_count > 0; k++) {
        struct keel_held *held =
            sources[k].space == KEEL_SPACE_TEMP ? held_at(operation, sources[k].number, slot) : NULL;
        if (held == NULL || held->payload == NULL)
            continue;
        bool good = keel_protocol_holds(held) && (!let_go || keel_protocol_let_go(held));
        if (!good)
            held->connection = NULL;
        else if (let_go)
            drop_held(operation, held);
        there = there && good;
    }
    return there;
}

/* received: what lies at `payload`, and not yet in its TEMP; NULL: nothing. False: not all of it is there. */
static bool combine(struct keel_operation *operation, uint32_t step, uint32_t segment, uint32_t slot,
                    const struct keel_operand *received, const uint8_t *payload)
{
    const struct keel_schedule *schedule = operation->plan->schedule;
    const struct keel_step *at = &schedule->steps[step];
    const struct keel_operand *operands = &schedule->operands[at->operand_first];
    enum keel_element element = (enum keel_element)operation->signature.element;
    enum keel_reduction reduction = (enum keel_reduction)operation->signature.reduction;
    struct keel_operation_piece out = piece_of(operation, at->operand_first, segment);
    if (operation->held_count > 0 &&
        !sources_there(operation, operands + 1, at->operand_count - 1, slot, false))
        return false;
    for (uint32_t k = 1; k < at->operand_count; k++) {
        struct keel_operation_piece piece = piece_of(operation, at->operand_first + k, segment);
        KEEL_ASSERT(piece.bytes == out.bytes);
        bool here = received != NULL && operands[k].space == KEEL_SPACE_TEMP &&
                    operands[k].number == received->number;
        operation->leaves[k - 1] = here ? payload : source_at(operation, &operands[k], piece, slot);
    }
    keel_combine(element, reduction == KEEL_AVERAGE ? KEEL_SUM : reduction, operation->leaves,
                 schedule->program + at->program_first, at->program_count,
                 destination_at(operation, &operands[0], out, slot), out.bytes / operation->element_bytes);
    count_copied(operation, at->operand_count == 2 ? out.bytes : 0); /* a sum of one is a copy */
    return operation->held_count == 0 ||
           sources_there(operation, operands + 1, at->operand_count - 1, slot, true);
}

static void copy(const struct keel_operation *operation, uint32_t first, uint32_t segment, uint32_t slot)
{
    const struct keel_operand *operands = &operation->plan->schedule->operands[first];
    struct keel_operation_piece piece = piece_of(operation, first + 1, segment);
    struct keel_operation_piece into = piece_of(operation, first, segment);
    if (is_spared(operation, &operands[0]))
        return;
    void *to = destination_at(operation, &operands[0], into, slot);
    const void *from = source_at(operation, &operands[1], piece, slot);
    if (to == from)
        return;
    memcpy(to, from, piece.bytes);
    count_copied(operation, piece.bytes);
}

static uint32_t segment_in(const struct keel_operation *operation, uint32_t slot)
{
    uint32_t window = operation->window;
    if (window <= 1)
        return operation->lowest;
    return operation->lowest + (slot + window - operation->lowest % window) % window;
}

/* A SEND goes when its peer has room, a RECEIVE is done when its message comes. False: neither, or there is
 * nothing to move. */
static bool leave_to_peer(struct keel_operation *operation, uint32_t item, uint32_t slot, uint32_t step,
                          uint32_t segment)
{
    const struct keel_schedule *schedule = operation->plan->schedule;
    const struct keel_step *at = &schedule->steps[step];
    bool sends = at->kind == KEEL_STEP_SEND;
    if ((!sends && at->kind != KEEL_STEP_RECEIVE) || !piece_of(operation, at->operand_first, segment).there)
        return false;
    if (sends)
        queue_send(operation, item, slot, at->peer_index);
    else
        operation->state[item] = READY;
    return true;
}

static void run_item(struct keel_operation *operation, uint32_t item)
{
    const struct keel_schedule *schedule = operation->plan->schedule;
    uint32_t slot, step;
    split_item(operation, item, &slot, &step);
    uint32_t segment = segment_in(operation, slot);
    const struct keel_step *at = &schedule->steps[step];
    if (leave_to_peer(operation, item, slot, step, segment))
        return;
    if (operation->state[item] != COMBINED && piece_of(operation, at->operand_first, segment).bytes > 0) {
        if (at->kind == KEEL_STEP_COPY)
            copy(operation, at->operand_first, segment, slot);
        else if (at->kind == KEEL_STEP_COMBINE && !combine(operation, step, segment, slot, NULL, NULL))
            return;
    }
    item_done(operation, item);
}

static void open_segment(struct keel_operation *operation, uint32_t segment)
{
    const struct keel_plan *plan = operation->plan;
    const struct keel_schedule *schedule = plan->schedule;
    uint32_t slot = slot_of(operation, segment), first = item_of(operation, slot, 0);
    if (schedule->step_count > 0) {
        memcpy(operation->needs + first, schedule->needs, schedule->step_count * sizeof *operation->needs);
        memset(operation->state + first, WAITING, schedule->step_count);
    }
    operation->left[slot] = schedule->step_count;
    for (uint32_t k = 0; k < operation->flow_count; k++)
        operation->flows[k].head[slot] = KEEL_NONE;
    for (uint32_t k = 0; k < plan->root_count; k++)
        if (!leave_to_peer(operation, first + plan->roots[k], slot, plan->roots[k], segment))
            push_ready(operation, first + plan->roots[k]);
}

/* The segment is whole here, and nothing of it is lent any more. */
static void finish_segment(struct keel_operation *operation, uint32_t segment)
{
    for (uint32_t block = 0; operation->divisor > 0 && block < operation->plan->schedule->result_blocks;
         block++) {
        struct keel_operand operand = {.space = KEEL_SPACE_RESULT, .block = block};
        struct keel_operation_piece piece = cut_piece(operation, &operand, segment);
        if (piece.bytes > 0)
            keel_combine_divide((enum keel_element)operation->signature.element, operation->result + piece.at,
                                piece.bytes / operation->element_bytes, operation->divisor);
    }
}

bool keel_engine_grant_is_due(const struct keel_flow *flow)
{
    uint32_t window = flow->operation->window;
    return flow->grant > flow->grant_told &&
           (flow->grant == flow->take_segments || flow->grant - flow->grant_told >= (window + 1) / 2);
}

static void tell_grants(struct keel_operation *operation)
{
    for (uint32_t k = 0; k < operation->flow_count; k++) {
        struct keel_flow *flow = &operation->flows[k];
        uint32_t limit = operation->lowest + operation->window;
        if (limit > flow->take_segments)
            limit = flow->take_segments;
        if (flow->grant == limit)
            continue;
        flow->grant = limit;
        if (flow->first_sent && keel_engine_grant_is_due(flow))
            keel_protocol_queue(flow);
    }
}

static void advance(struct keel_operation *operation)
{
    uint32_t next = operation->lowest + operation->window;
    KEEL_ASSERT(operation->lowest < operation->segment_count);
    finish_segment(operation, operation->lowest++);
    if (next < operation->segment_count)
        open_segment(operation, next);
}

static void run_all(struct keel_operation *operation)
{
    uint32_t before = operation->lowest;
    for (;;) {
        while (operation->ready != KEEL_NONE) {
            uint32_t item = operation->ready;
            operation->ready = operation->chain[item];
            run_item(operation, item);
        }
        if (operation->lowest == operation->segment_count ||
            operation->left[slot_of(operation, operation->lowest)] > 0)
            break;
        advance(operation);
    }
    if (operation->lowest > before) {
        keel_trace_segment(operation);
        if (operation->segment_count > operation->window)
            tell_grants(operation);
    }
}

/* Most of what comes or goes sets nothing off. */
static void run(struct keel_operation *operation)
{
    if (operation->ready != KEEL_NONE || operation->lowest == operation->segment_count ||
        operation->left[slot_of(operation, operation->lowest)] == 0)
        run_all(operation);
}

static void copy_items(struct keel_operation *operation, uint32_t to, uint32_t from)
{
    uint32_t count = operation->plan->schedule->step_count;
    memcpy(operation->needs + to, operation->needs + from, count * sizeof *operation->needs);
    memcpy(operation->chain + to, operation->chain + from, count * sizeof *operation->chain);
    memcpy(operation->state + to, operation->state + from, count);
}

static void keep_opening(struct keel_operation *operation)
{
    copy_items(operation, item_of(operation, operation->slots, 0), 0);
    operation->opening_ready = operation->ready;
    operation->opening_last = operation->ready_last;
    for (uint32_t k = 0; k < operation->flow_count; k++) {
        operation->flows[k].opening_head = operation->flows[k].head[0];
        operation->flows[k].opening_tail = operation->flows[k].tail[0];
    }
    operation->opening_known = true;
}

static void open_as_before(struct keel_operation *operation)
{
    copy_items(operation, 0, item_of(operation, operation->slots, 0));
    operation->ready = operation->opening_ready;
    operation->ready_last = operation->opening_last;
    operation->left[0] = operation->plan->schedule->step_count;
    for (uint32_t k = 0; k < operation->flow_count; k++) {
        operation->flows[k].head[0] = operation->flows[k].opening_head;
        operation->flows[k].tail[0] = operation->flows[k].opening_tail;
    }
}

void keel_engine_start(struct keel_operation *operation)
{
    operation->ready = KEEL_NONE;
    if (operation->opening_known)
        open_as_before(operation);
    for (uint32_t segment = 0;
         !operation->opening_known && segment < operation->window && segment < operation->segment_count;
         segment++)
        open_segment(operation, segment);
    if (operation->pieces_known && !operation->opening_known)
        keep_opening(operation);
    tell_grants(operation);
    run(operation);
}

/* ---- messages ------------------------------------------------------------------------------------------ */

/* A long result is not read here before it is whole. */
static void deposit(const struct keel_operation *operation, const struct keel_operand *into, void *out,
                    const uint8_t *payload, uint32_t bytes)
{
    if (into->space == KEEL_SPACE_RESULT && operation->result_cut.total >= KEEL_COPY_AWAY_BYTES)
        keel_copy_away(out, payload, bytes);
    else
        memcpy(out, payload, bytes);
    count_copied(operation, bytes);
}

bool keel_engine_take(struct keel_flow *flow, uint32_t segment, uint32_t ordinal, const uint8_t *payload,
                      uint32_t bytes)
{
    struct keel_operation *operation = flow->operation;
    if (ordinal >= flow->receive_count || segment < operation->lowest ||
        segment >= operation->segment_count || segment - operation->lowest >= operation->window)
        return false;
    uint32_t slot = slot_of(operation, segment), step = flow->receives[ordinal];
    uint32_t item = item_of(operation, slot, step), reader = operation->plan->direct[step];
    struct keel_operation_piece piece;
    const struct keel_operand *into = operand_of(operation, step, segment, &piece);
    if (operation->state[item] != READY || piece.bytes != bytes)
        return false;
    if (bytes > 0 && reader != KEEL_NONE && operation->needs[item_of(operation, slot, reader)] == 1) {
        if (!combine(operation, reader, segment, slot, into, payload))
            return true; /* the peer that took back what it had lent is found out soon */
        operation->state[item_of(operation, slot, reader)] = COMBINED;
    } else if (bytes > 0 && !is_spared(operation, into) &&
               (reader == KEEL_NONE || !hold(flow, into->number, slot, payload, bytes))) {
        deposit(operation, into, destination_at(operation, into, piece, slot), payload, bytes);
    }
    KEEL_ASSERT(flow->take_left > 0); /* every RECEIVE of a granted segment is counted */
    flow->take_left--;
    item_done(operation, item);
    run(operation);
    return true;
}

bool keel_engine_next(struct keel_flow *flow, struct keel_give *out)
{
    struct keel_operation *operation = flow->operation;
    for (uint32_t segment = operation->lowest;
         segment < operation->segment_count && segment < flow->granted &&
         segment - operation->lowest < operation->window;
         segment++) {
        uint32_t slot = slot_of(operation, segment), *head = &flow->head[slot];
        while (*head != KEEL_NONE && operation->state[*head] != READY)
            *head = operation->chain[*head]; /* it rode on the first message */
        if (*head == KEEL_NONE)
            continue;
        uint32_t at, step;
        split_item(operation, *head, &at, &step);
        struct keel_operation_piece piece;
        const struct keel_operand *operand = operand_of(operation, step, segment, &piece);
        *out = (struct keel_give){.item = *head,
                                  .segment = segment,
                                  .ordinal = operation->plan->schedule->steps[step].ordinal,
                                  .bytes = piece.bytes,
                                  .payload = source_at(operation, operand, piece, slot)};
        return true;
    }
    return false;
}

void keel_engine_gone(struct keel_flow *flow, const struct keel_give *give, bool done)
{
    struct keel_operation *operation = flow->operation;
    uint32_t *head = &flow->head[slot_of(operation, give->segment)];
    KEEL_ASSERT(*head == give->item && flow->give_left > 0);
    *head = operation->chain[give->item];
    flow->give_left--;
    operation->state[give->item] = GONE;
    if (!done)
        return;
    item_done(operation, give->item);
    run(operation);
}

void keel_engine_sent(struct keel_operation *operation, uint32_t item)
{
    KEEL_ASSERT(operation->state[item] == GONE);
    item_done(operation, item);
    run(operation);
}

uint32_t keel_engine_pack(const struct keel_flow *flow, uint8_t *out, uint32_t capacity, uint32_t *out_bytes)
{
    const struct keel_operation *operation = flow->operation;
    uint32_t packed = 0;
    const uint32_t *steps = flow->sends;
    *out_bytes = 0;
    if (operation->lowest > 0 || operation->segment_count == 0)
        return 0;
    for (; packed < flow->send_count; packed++) {
        struct keel_operation_piece piece;
        const struct keel_operand *operand = operand_of(operation, steps[packed], 0, &piece);
        if (piece.there && operation->state[steps[packed]] != READY)
            break;
        if (piece.bytes > capacity - *out_bytes)
            break;
        if (piece.bytes > 0)
            memcpy(out + *out_bytes, source_at(operation, operand, piece, 0), piece.bytes);
        *out_bytes += piece.bytes;
    }
    return packed;
}

void keel_engine_packed(struct keel_flow *flow, uint32_t count)
{
    struct keel_operation *operation = flow->operation;
    const uint32_t *steps = flow->sends;
    for (uint32_t k = 0; k < count; k++) {
        if (operation->state[steps[k]] != READY)
            continue;
        KEEL_ASSERT(flow->give_left > 0);
        flow->give_left--;
        item_done(operation, steps[k]);
    }
    if (count > 0)
        run(operation);
}

bool keel_engine_unpack(struct keel_flow *flow, uint32_t count, const uint8_t *payload, uint32_t bytes)
{
    const struct keel_operation *operation = flow->operation;
    uint32_t at = 0;
    if (count > flow->receive_count)
        return false;
    for (uint32_t k = 0; k < count && operation->segment_count > 0; k++) {
        struct keel_operation_piece piece;
        operand_of(operation, flow->receives[k], 0, &piece);
        if (!piece.there)
            continue;
        if (piece.bytes > bytes - at || !keel_engine_take(flow, 0, k, payload + at, piece.bytes))
            return false;
        at += piece.bytes;
    }
    return at == bytes;
}

/* ---- what it waits for --------------------------------------------------------------------------------- */

bool keel_engine_awaits(const struct keel_flow *flow)
{
    const struct keel_operation *operation = flow->operation;
    uint32_t slot = slot_of(operation, operation->lowest);
    if (operation->lowest >= flow->take_segments)
        return false;
    for (uint32_t k = 0; k < flow->receive_count; k++)
        if (operation->state[item_of(operation, slot, flow->receives[k])] == READY)
            return true;
    return false;
}

bool keel_engine_is_held(const struct keel_flow *flow)
{
    const struct keel_operation *operation = flow->operation;
    return operation->lowest < operation->segment_count && operation->lowest >= flow->granted &&
           flow->head[slot_of(operation, operation->lowest)] != KEEL_NONE;
}
