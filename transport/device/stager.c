/* stager.c - collectives on device memory: a stream of chunks through a few slots.
 *
 * A slot goes through three states: READING (commands that bring the parts to the host: reads, or maps),
 * REDUCING (an ordinary collective on what they brought), WRITING (writes of the result, or unmaps). Which
 * of the two it is, copies or maps, is all that the two ways differ in: a call in place is one chunk.
 *
 * Slots move on independently; a look at all of them never blocks (`move`). A waiter that finds nothing to
 * move sleeps on what its own call needs next. Two queues, so that a write does not stand behind the reads
 * of later chunks.
 *
 * Every command has an event that is kept until it is known to be over: a queue says nothing of a command in
 * its middle that failed, and memory is let go only when no command can touch it. */
#include "group.h"

#include <keel/log.h>
#include <keel/memory.h>
#include <keel/transport_device.h>
#include <stdio.h>
#include <string.h>

#define FREE_LIMIT_NS (30 * KEEL_NS_PER_S)
/* A wait for the device looks this often whether the epoch is over. */
#define LOOK_NS (20 * KEEL_NS_PER_MS)
enum { CHUNK_BYTES = 1 << 20, BLOCK_BYTES_MIN = 64 };

struct keel_staged_call {
    struct keel_stager *stager;
    struct keel_staged_call *next; /* begun after this one */
    bool used;
    struct keel_group *group;
    struct keel_collective what;
    struct keel_device_place *parts; /* parts_max, owned */
    struct keel_device_place result;
    struct keel_event *after[KEEL_WAIT_MAX]; /* borrowed */
    uint32_t after_count;
    uint32_t gives, in_blocks, out_blocks; /* parts; blocks in a part; blocks in the result, 0 for none */
    uint64_t block_count;                  /* elements of a whole chunk's blocks */
    uint64_t chunks, taken, done;
};

enum slot_state { FREE, READING, REDUCING, WRITING };

struct slot {
    enum slot_state state;
    struct keel_staged_call *call;
    uint64_t number;               /* of the chunk in the call */
    uint64_t first, count;         /* elements of each block */
    uint8_t *memory;               /* parts_max + 1 chunks, a share of the stager's; NULL in place */
    void **at;                     /* where the parts are for the host, then the result: parts_max + 1 */
    uint32_t mapped;               /* of these, so many are mapped */
    struct keel_event **events;    /* of commands that may run */
    uint32_t event_count, settled; /* the first `settled` are over */
    struct keel_operation *operation;
};

struct keel_stager {
    struct keel_stager_config config;
    bool in_place;
    struct keel_queue *reads, *writes;
    uint32_t events_max; /* of a slot */
    uint8_t *memory;     /* of all slots */
    struct slot slots[KEEL_STAGER_SLOTS];
    struct keel_staged_call calls[KEEL_STAGER_CALLS];
    struct keel_staged_call *first, *last; /* with chunks that no slot has taken, in order */
    enum keel_status status;               /* of the first failure, until the reset */
    char detail[KEEL_DETAIL_BYTES];
    struct keel_stager_stats stats;
};

/* ---- life ---------------------------------------------------------------------------------------------- */

static enum keel_status check_config(const struct keel_stager_config *config)
{
    if (config->ranks_max == 0 || config->ranks_max > KEEL_GROUP_RANKS_MAX || config->parts_max == 0 ||
        config->parts_max > KEEL_GROUP_SHARDS_MAX)
        return keel_fail(KEEL_INVALID, "stager: %u ranks and %u parts; there are 1 to %d and 1 to %d",
                         config->ranks_max, config->parts_max, KEEL_GROUP_RANKS_MAX, KEEL_GROUP_SHARDS_MAX);
    if (config->chunk_bytes < (uint64_t)BLOCK_BYTES_MIN * config->ranks_max ||
        config->chunk_bytes > UINT32_MAX)
        return keel_fail(KEEL_INVALID, "stager: chunks of %llu bytes for %u ranks; give it %llu to %u",
                         (unsigned long long)config->chunk_bytes, config->ranks_max,
                         (unsigned long long)BLOCK_BYTES_MIN * config->ranks_max, UINT32_MAX);
    return KEEL_OK;
}

static enum keel_status allocate(struct keel_stager *stager)
{
    const struct keel_stager_config *config = &stager->config;
    uint64_t slot_bytes = (config->parts_max + 1) * config->chunk_bytes;
    uint32_t most = config->parts_max * config->ranks_max;
    stager->events_max = most < KEEL_STAGER_COMMANDS_MAX ? most + 1 : KEEL_STAGER_COMMANDS_MAX;
    if (!stager->in_place)
        KEEL_TRY(keel_transport_alloc(KEEL_STAGER_SLOTS * slot_bytes, &stager->memory));
    for (uint32_t k = 0; k < KEEL_STAGER_SLOTS; k++) {
        struct slot *slot = &stager->slots[k];
        slot->memory = stager->in_place ? NULL : stager->memory + k * slot_bytes;
        KEEL_TRY(keel_alloc(config->parts_max + 1, sizeof *slot->at, &slot->at));
        KEEL_TRY(keel_alloc(stager->events_max, sizeof(struct keel_event *), &slot->events));
    }
    for (uint32_t k = 0; k < KEEL_STAGER_CALLS; k++) {
        stager->calls[k].stager = stager;
        KEEL_TRY(keel_alloc(config->parts_max, sizeof(struct keel_device_place), &stager->calls[k].parts));
    }
    KEEL_TRY(keel_queue_create(config->device, &stager->reads));
    return keel_queue_create(config->device, &stager->writes);
}

enum keel_status keel_stager_create(const struct keel_stager_config *config, struct keel_stager **out)
{
    struct keel_stager *stager;
    struct keel_stager_config own = *config;
    if (own.chunk_bytes == 0)
        own.chunk_bytes = CHUNK_BYTES;
    own.chunk_bytes = keel_round_up(own.chunk_bytes, BLOCK_BYTES_MIN);
    KEEL_TRY(check_config(&own));
    KEEL_TRY(keel_alloc(1, sizeof *stager, &stager));
    stager->config = own;
    stager->in_place = keel_device_info(own.device)->unified_memory && !own.staged;
    enum keel_status status = allocate(stager);
    if (status != KEEL_OK) {
        keel_stager_free(stager);
        return status;
    }
    *out = stager;
    return KEEL_OK;
}

void keel_stager_free(struct keel_stager *stager)
{
    if (stager == NULL)
        return;
    if (keel_stager_reset(stager, keel_deadline_after_ns(FREE_LIMIT_NS)) != KEEL_OK) {
        keel_log(KEEL_LOG_ERROR, "%s: a stager was left behind: its commands do not end",
                 keel_device_info(stager->config.device)->selector);
        return;
    }
    keel_queue_destroy(stager->writes);
    keel_queue_destroy(stager->reads);
    for (uint32_t k = 0; k < KEEL_STAGER_CALLS; k++)
        keel_free(stager->calls[k].parts);
    for (uint32_t k = 0; k < KEEL_STAGER_SLOTS; k++) {
        keel_free(stager->slots[k].events);
        keel_free(stager->slots[k].at);
    }
    keel_transport_free(stager->memory);
    keel_free(stager);
}

void keel_stager_stats(const struct keel_stager *stager, struct keel_stager_stats *out)
{
    *out = stager->stats;
}

/* ---- failure ------------------------------------------------------------------------------------------- */

/* The first failure is that of all calls. */
static void fail(struct keel_stager *stager, const struct slot *slot, enum keel_status status,
                 const char *doing)
{
    const struct keel_staged_call *call = slot->call;
    if (stager->status != KEEL_OK)
        return;
    stager->status = status;
    snprintf(stager->detail, sizeof stager->detail, "%s %llu on %s, chunk %llu of %llu, %s: %.*s",
             keel_collective_name(call->what.kind), (unsigned long long)call->what.sequence,
             keel_device_info(stager->config.device)->selector, (unsigned long long)slot->number + 1,
             (unsigned long long)call->chunks, doing, KEEL_DETAIL_BYTES / 2, keel_detail());
}

/* ---- commands ------------------------------------------------------------------------------------------ */

static bool settled(struct slot *slot)
{
    while (slot->settled < slot->event_count && keel_event_done(slot->events[slot->settled]))
        slot->settled++;
    return slot->settled == slot->event_count;
}

/* All are over: the first that failed. */
static enum keel_status collect(struct slot *slot)
{
    enum keel_status status = KEEL_OK;
    char detail[KEEL_DETAIL_BYTES] = "";
    for (uint32_t k = 0; k < slot->event_count; k++) {
        enum keel_status one = keel_event_wait(slot->events[k], 0);
        if (status == KEEL_OK && one != KEEL_OK)
            snprintf(detail, sizeof detail, "%s", keel_detail());
        status = status == KEEL_OK ? one : status;
        keel_event_destroy(slot->events[k]);
    }
    slot->event_count = slot->settled = 0;
    if (status != KEEL_OK)
        keel_detail_set(detail);
    return status;
}

static struct keel_event **next_event(struct slot *slot)
{
    KEEL_ASSERT(slot->event_count < slot->call->stager->events_max);
    return &slot->events[slot->event_count];
}

struct piece {
    uint64_t on_host, on_device, bytes;
};

/* Of block `block`: where it is in the slot's part or result, and in the buffer. */
static struct piece piece_of(const struct slot *slot, const struct keel_device_place *place, uint32_t block)
{
    uint64_t element_bytes = keel_element_bytes(slot->call->what.element);
    uint64_t element = block * slot->call->what.count + slot->first;
    return (struct piece){.on_host = block * slot->count * element_bytes,
                          .on_device = place->offset_bytes + element * element_bytes,
                          .bytes = slot->count * element_bytes};
}

static enum keel_status copy_in(struct keel_stager *stager, struct slot *slot)
{
    struct keel_staged_call *call = slot->call;
    struct keel_wait_list waits = {call->after, call->after_count};
    for (uint32_t part = 0; part < call->gives; part++)
        for (uint32_t block = 0; block < call->in_blocks; block++) {
            struct piece piece = piece_of(slot, &call->parts[part], block);
            KEEL_TRY(keel_queue_read(stager->reads, call->parts[part].buffer, piece.on_device,
                                     (uint8_t *)slot->at[part] + piece.on_host, piece.bytes, &waits,
                                     next_event(slot)));
            slot->event_count++;
            stager->stats.staged_bytes += piece.bytes;
        }
    return slot->event_count > 0 ? keel_queue_flush(stager->reads) : KEEL_OK;
}

static enum keel_status copy_out(struct keel_stager *stager, struct slot *slot)
{
    struct keel_staged_call *call = slot->call;
    struct keel_wait_list waits = {call->after, call->after_count};
    for (uint32_t block = 0; block < call->out_blocks; block++) {
        struct piece piece = piece_of(slot, &call->result, block);
        KEEL_TRY(keel_queue_write(stager->writes, call->result.buffer, piece.on_device,
                                  (uint8_t *)slot->at[stager->config.parts_max] + piece.on_host, piece.bytes,
                                  &waits, next_event(slot)));
        slot->event_count++;
        stager->stats.staged_bytes += piece.bytes;
    }
    return slot->event_count > 0 ? keel_queue_flush(stager->writes) : KEEL_OK;
}

static enum keel_status map_one(struct keel_stager *stager, struct slot *slot,
                                const struct keel_device_place *place, uint32_t blocks, enum keel_map map)
{
    struct keel_staged_call *call = slot->call;
    struct keel_wait_list waits = {call->after, call->after_count};
    uint64_t bytes = blocks * call->what.count * keel_element_bytes(call->what.element);
    KEEL_TRY(keel_queue_map(stager->reads, place->buffer, place->offset_bytes, bytes, map,
                            &slot->at[slot->mapped], &waits, next_event(slot)));
    slot->mapped++;
    slot->event_count++;
    return KEEL_OK;
}

static enum keel_status map_all(struct keel_stager *stager, struct slot *slot)
{
    struct keel_staged_call *call = slot->call;
    for (uint32_t part = 0; part < call->gives; part++)
        KEEL_TRY(map_one(stager, slot, &call->parts[part], call->in_blocks, KEEL_MAP_READ));
    if (call->out_blocks > 0)
        KEEL_TRY(map_one(stager, slot, &call->result, call->out_blocks, KEEL_MAP_WRITE));
    return keel_queue_flush(stager->reads);
}

static enum keel_status unmap_last(struct keel_stager *stager, struct slot *slot)
{
    struct keel_staged_call *call = slot->call;
    uint32_t k = --slot->mapped;
    struct keel_buffer *buffer = k < call->gives ? call->parts[k].buffer : call->result.buffer;
    KEEL_TRY(keel_queue_unmap(stager->writes, buffer, slot->at[k], NULL, next_event(slot)));
    slot->event_count++;
    return KEEL_OK;
}

static enum keel_status unmap_all(struct keel_stager *stager, struct slot *slot)
{
    while (slot->mapped > 0)
        KEEL_TRY(unmap_last(stager, slot));
    return keel_queue_flush(stager->writes);
}

/* ---- a slot's way -------------------------------------------------------------------------------------- */

static bool reducing(const struct keel_stager *stager)
{
    for (uint32_t k = 0; k < KEEL_STAGER_SLOTS; k++)
        if (stager->slots[k].state == REDUCING)
            return true;
    return false;
}

static void take_chunk(struct keel_stager *stager, struct slot *slot)
{
    struct keel_staged_call *call = stager->first;
    slot->call = call;
    slot->number = call->taken++;
    slot->first = slot->number * call->block_count;
    slot->count = call->what.count - slot->first;
    if (slot->count > call->block_count)
        slot->count = call->block_count;
    for (uint32_t k = 0; slot->memory != NULL && k <= stager->config.parts_max; k++)
        slot->at[k] = slot->memory + k * stager->config.chunk_bytes;
    if (call->taken == call->chunks)
        stager->first = call->next;
}

static void begin_reading(struct keel_stager *stager, struct slot *slot)
{
    uint32_t busy = 1;
    enum keel_status status = KEEL_OK;
    take_chunk(stager, slot);
    for (uint32_t k = 0; k < KEEL_STAGER_SLOTS; k++)
        busy += stager->slots[k].state != FREE;
    if (busy > stager->stats.slots_high)
        stager->stats.slots_high = busy;
    stager->stats.overlaps += reducing(stager);
    slot->state = READING;
    if (slot->count > 0)
        status = stager->in_place ? map_all(stager, slot) : copy_in(stager, slot);
    if (status != KEEL_OK)
        fail(stager, slot, status, "read from the device");
}

static enum keel_status begin_reducing(struct keel_stager *stager, struct slot *slot)
{
    const struct keel_staged_call *call = slot->call;
    struct keel_collective what = call->what;
    uint32_t result = stager->in_place ? call->gives : stager->config.parts_max;
    what.sequence += slot->number;
    what.count = slot->count;
    what.parts = (const void *const *)slot->at;
    what.part_count = call->gives;
    what.result = call->out_blocks > 0 && slot->count > 0 ? slot->at[result] : NULL;
    return keel_group_begin(call->group, &what, &slot->operation);
}

static void after_reading(struct keel_stager *stager, struct slot *slot)
{
    enum keel_status status = collect(slot);
    if (status != KEEL_OK) {
        fail(stager, slot, status, "read from the device");
        return;
    }
    status = begin_reducing(stager, slot);
    if (status != KEEL_OK)
        fail(stager, slot, status, "begin");
    else
        slot->state = REDUCING;
}

/* Who ended the epoch may have said why to another chunk, and that is what the caller is told. */
static enum keel_status reason(struct keel_stager *stager, struct slot **in_out)
{
    for (uint32_t k = 0; k < KEEL_STAGER_SLOTS; k++) {
        struct slot *slot = &stager->slots[k];
        if (slot->state != REDUCING || slot->operation == NULL || !keel_operation_done(slot->operation))
            continue;
        enum keel_status status = keel_operation_wait(slot->operation, 0);
        slot->operation = NULL;
        *in_out = slot;
        if (status != KEEL_OK && status != KEEL_REVOKED)
            return status;
    }
    return KEEL_REVOKED;
}

/* The operation has ended, or is waited for. */
static void after_reducing(struct keel_stager *stager, struct slot *slot, uint64_t deadline_ns)
{
    enum keel_status status = keel_operation_wait(slot->operation, deadline_ns);
    slot->operation = NULL;
    if (status == KEEL_REVOKED)
        status = reason(stager, &slot);
    if (status != KEEL_OK) {
        fail(stager, slot, status, "between the ranks");
        return;
    }
    slot->state = WRITING;
    stager->stats.overlaps += reducing(stager);
    if (slot->count > 0)
        status = stager->in_place ? unmap_all(stager, slot) : copy_out(stager, slot);
    if (status != KEEL_OK)
        fail(stager, slot, status, "write to the device");
}

static void after_writing(struct keel_stager *stager, struct slot *slot)
{
    enum keel_status status = collect(slot);
    if (status != KEEL_OK) {
        fail(stager, slot, status, "write to the device");
        return;
    }
    slot->state = FREE;
    slot->call->done++;
    stager->stats.chunks++;
}

/* As far as it goes without waiting; true if it went anywhere. */
static bool move_slot(struct keel_stager *stager, struct slot *slot)
{
    bool moved = false, can = true;
    while (can && stager->status == KEEL_OK) {
        enum slot_state state = slot->state;
        if (state == FREE && stager->first != NULL)
            begin_reading(stager, slot);
        else if (state == READING && settled(slot))
            after_reading(stager, slot);
        else if (state == REDUCING && keel_operation_done(slot->operation))
            after_reducing(stager, slot, 0);
        else if (state == WRITING && settled(slot))
            after_writing(stager, slot);
        can = slot->state != state;
        moved = moved || can;
    }
    return moved;
}

static bool move(struct keel_stager *stager)
{
    bool moved = false;
    for (uint32_t k = 0; k < KEEL_STAGER_SLOTS; k++)
        moved = move_slot(stager, &stager->slots[k]) || moved;
    return moved;
}

void keel_stager_advance(struct keel_stager *stager)
{
    while (move(stager)) {
    }
}

/* ---- calls --------------------------------------------------------------------------------------------- */

static bool blocks_in(enum keel_collective_kind kind)
{
    return kind == KEEL_REDUCE_SCATTER || kind == KEEL_ALL_TO_ALL || kind == KEEL_SCATTER;
}

static bool blocks_out(enum keel_collective_kind kind)
{
    return kind == KEEL_ALL_GATHER || kind == KEEL_ALL_TO_ALL || kind == KEEL_GATHER;
}

/* Elements of a chunk's blocks. */
static uint64_t block_count(const struct keel_stager *stager, const struct keel_group *group,
                            const struct keel_collective *what)
{
    uint32_t blocks = blocks_in(what->kind) || blocks_out(what->kind) ? group->rank_count : 1;
    uint64_t bytes = stager->config.chunk_bytes / blocks / BLOCK_BYTES_MIN * BLOCK_BYTES_MIN;
    KEEL_ASSERT(bytes > 0);
    return stager->in_place ? what->count : bytes / keel_element_bytes(what->element);
}

uint64_t keel_stager_numbers(const struct keel_stager *stager, const struct keel_group *group,
                             const struct keel_collective *what)
{
    uint64_t count = block_count(stager, group, what);
    return count > 0 && what->count > count ? (what->count + count - 1) / count : 1;
}

static enum keel_status check_place(const struct keel_staged_call *call, const char *name,
                                    const struct keel_device_place *place, uint64_t bytes)
{
    uint64_t there = place->buffer != NULL ? keel_buffer_bytes(place->buffer) : 0;
    if (bytes > 0 && (place->offset_bytes > there || bytes > there - place->offset_bytes))
        return keel_fail(KEEL_INVALID, "%s %llu: a %s of %llu bytes at %llu of a buffer of %llu",
                         keel_collective_name(call->what.kind), (unsigned long long)call->what.sequence, name,
                         (unsigned long long)bytes, (unsigned long long)place->offset_bytes,
                         (unsigned long long)there);
    return KEEL_OK;
}

static bool overlap(const struct keel_device_place *a, uint64_t a_bytes, const struct keel_device_place *b,
                    uint64_t b_bytes)
{
    return a->buffer == b->buffer && a_bytes > 0 && b_bytes > 0 &&
           a->offset_bytes < b->offset_bytes + b_bytes && b->offset_bytes < a->offset_bytes + a_bytes;
}

static enum keel_status check_places(const struct keel_staged_call *call,
                                     const struct keel_device_place *parts)
{
    uint64_t bytes = call->what.count * keel_element_bytes(call->what.element);
    uint64_t in_bytes = bytes * call->in_blocks, out_bytes = bytes * call->out_blocks;
    KEEL_TRY(check_place(call, "result", &call->result, out_bytes));
    for (uint32_t k = 0; k < call->gives; k++) {
        KEEL_TRY(check_place(call, "part", &parts[k], in_bytes));
        if (overlap(&parts[k], in_bytes, &call->result, out_bytes))
            return keel_fail(
                KEEL_INVALID,
                "%s %llu: the result lies on part %u; parts are kept, so give it a place of its own",
                keel_collective_name(call->what.kind), (unsigned long long)call->what.sequence, k);
    }
    return KEEL_OK;
}

static enum keel_status check(const struct keel_stager *stager, const struct keel_group *group,
                              const struct keel_device_collective *collective)
{
    const struct keel_collective *what = &collective->what;
    KEEL_TRY(keel_collective_check(group, what));
    const char *name = keel_collective_name(what->kind);
    unsigned long long sequence = what->sequence;
    if (what->kind == KEEL_BARRIER || what->kind == KEEL_ALL_GATHER_V || what->kind == KEEL_ALL_TO_ALL_V)
        return keel_fail(KEEL_UNSUPPORTED,
                         "%s %llu: not on device memory; read into host memory and use keel_group_begin",
                         name, sequence);
    uint32_t gives = keel_collective_gives(group, what);
    if (group->rank_count > stager->config.ranks_max || gives > stager->config.parts_max)
        return keel_fail(KEEL_LIMIT, "%s %llu: %u ranks and %u parts; the stager was made for %u and %u",
                         name, sequence, group->rank_count, gives, stager->config.ranks_max,
                         stager->config.parts_max);
    if (gives > 0 && what->part_count != gives)
        return keel_fail(KEEL_INVALID, "%s %llu: %u parts given, rank %u has %u to give", name, sequence,
                         what->part_count, group->rank, gives);
    uint64_t commands = (uint64_t)gives * (blocks_in(what->kind) ? group->rank_count : 1);
    if (!stager->in_place && commands > stager->events_max)
        return keel_fail(KEEL_LIMIT, "%s %llu: %llu pieces a chunk; there may be %u", name, sequence,
                         (unsigned long long)commands, stager->events_max);
    if (collective->after.count > KEEL_WAIT_MAX)
        return keel_fail(KEEL_LIMIT, "%s %llu: it waits for %u events; at most %d", name, sequence,
                         collective->after.count, KEEL_WAIT_MAX);
    return KEEL_OK;
}

static void fill(const struct keel_stager *stager, struct keel_group *group,
                 const struct keel_device_collective *collective, struct keel_staged_call *call)
{
    const struct keel_collective *what = &collective->what;
    call->group = group;
    call->what = *what;
    call->result = collective->result;
    call->after_count = collective->after.count;
    for (uint32_t k = 0; k < call->after_count; k++)
        call->after[k] = collective->after.events[k];
    call->gives = keel_collective_gives(group, what);
    call->in_blocks = blocks_in(what->kind) ? group->rank_count : 1;
    call->out_blocks = 0;
    if (keel_collective_gets(group, what))
        call->out_blocks = blocks_out(what->kind) ? group->rank_count : 1;
    call->block_count = block_count(stager, group, what);
    call->chunks = keel_stager_numbers(stager, group, what);
    call->taken = call->done = 0;
    call->next = NULL;
}

static enum keel_status failed(const struct keel_stager *stager)
{
    keel_detail_set(stager->detail);
    return stager->status;
}

enum keel_status keel_stager_begin(struct keel_stager *stager, struct keel_group *group,
                                   const struct keel_device_collective *collective,
                                   struct keel_staged_call **out)
{
    struct keel_staged_call *call = stager->calls, *end = call + KEEL_STAGER_CALLS;
    if (stager->status != KEEL_OK)
        return failed(stager);
    KEEL_TRY(check(stager, group, collective));
    while (call < end && call->used)
        call++;
    if (call == end)
        return keel_fail(KEEL_LIMIT, "%s %llu: %d calls are under way; wait for some",
                         keel_collective_name(collective->what.kind),
                         (unsigned long long)collective->what.sequence, KEEL_STAGER_CALLS);
    fill(stager, group, collective, call);
    KEEL_TRY(check_places(call, collective->parts));
    for (uint32_t k = 0; k < call->gives; k++)
        call->parts[k] = collective->parts[k];
    call->used = true;
    if (stager->first == NULL)
        stager->first = call;
    else
        stager->last->next = call;
    stager->last = call;
    keel_stager_advance(stager);
    *out = call;
    return KEEL_OK;
}

/* ---- waiting ------------------------------------------------------------------------------------------- */

/* What to sleep on: the oldest chunk of this call; where no slot has one, the oldest of all. */
static struct slot *choose(struct keel_stager *stager, const struct keel_staged_call *call)
{
    struct slot *best = NULL;
    for (uint32_t k = 0; k < KEEL_STAGER_SLOTS; k++) {
        struct slot *slot = &stager->slots[k];
        if (slot->state == FREE)
            continue;
        bool own = slot->call == call, best_own = best != NULL && best->call == call;
        if (best == NULL || (own && !best_own) || (own == best_own && slot->number < best->number))
            best = slot;
    }
    KEEL_ASSERT(best != NULL); /* what is not in a slot goes into a free one without waiting */
    return best;
}

static void sleep_on(struct keel_stager *stager, struct slot *slot, uint64_t deadline_ns)
{
    if (slot->state == REDUCING) {
        after_reducing(stager, slot, deadline_ns);
        return;
    }
    uint64_t look_ns = keel_deadline_after_ns(LOOK_NS);
    const char *doing = slot->state == READING ? "read from the device" : "write to the device";
    if (look_ns > deadline_ns)
        look_ns = deadline_ns;
    if (keel_event_wait(slot->events[slot->settled], look_ns) != KEEL_TIMEOUT)
        return; /* a failure too: who collects it tells */
    if (keel_group_over(slot->call->group))
        fail(stager, slot, keel_fail(KEEL_REVOKED, "the epoch is over; open the next group"), doing);
    else if (keel_now_ns() >= deadline_ns)
        fail(stager, slot, keel_fail(KEEL_TIMEOUT, "the device has not done it by the deadline"), doing);
}

enum keel_status keel_stager_wait(struct keel_staged_call *call, uint64_t deadline_ns)
{
    struct keel_stager *stager = call->stager;
    while (stager->status == KEEL_OK && call->done < call->chunks)
        if (!move(stager) && stager->status == KEEL_OK)
            sleep_on(stager, choose(stager, call), deadline_ns);
    if (stager->status != KEEL_OK)
        return failed(stager);
    call->used = false;
    stager->stats.calls++;
    return KEEL_OK;
}

enum keel_status keel_stager_run(struct keel_stager *stager, struct keel_group *group,
                                 const struct keel_device_collective *collective, uint64_t deadline_ns)
{
    struct keel_staged_call *call = NULL;
    KEEL_TRY(keel_stager_begin(stager, group, collective, &call));
    return keel_stager_wait(call, deadline_ns);
}

/* ---- starting again ------------------------------------------------------------------------------------ */

/* Failed commands are over too. */
static enum keel_status quiet(struct slot *slot, uint64_t deadline_ns)
{
    for (; slot->settled < slot->event_count; slot->settled++)
        if (keel_event_wait(slot->events[slot->settled], deadline_ns) == KEEL_TIMEOUT)
            return KEEL_TIMEOUT;
    (void)collect(slot);
    return KEEL_OK;
}

enum keel_status keel_stager_reset(struct keel_stager *stager, uint64_t deadline_ns)
{
    for (uint32_t k = 0; k < KEEL_STAGER_SLOTS; k++) {
        struct slot *slot = &stager->slots[k];
        KEEL_TRY(quiet(slot, deadline_ns));
        while (slot->mapped > 0)
            (void)unmap_last(stager, slot); /* a map that failed has nothing to give back */
        KEEL_TRY(quiet(slot, deadline_ns));
        slot->operation = NULL;
        slot->state = FREE;
    }
    for (uint32_t k = 0; k < KEEL_STAGER_CALLS; k++)
        stager->calls[k].used = false;
    stager->first = stager->last = NULL;
    stager->status = KEEL_OK;
    return KEEL_OK;
}
