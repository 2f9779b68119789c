/* device_collective.c - collectives on device memory: bring the parts to the host, reduce, bring the result
 * back.
 *
 * An operation goes through four states: QUEUED (waits for staging memory), READING (commands that bring the
 * parts to the host: reads, or maps), REDUCING (an ordinary collective on what they brought), WRITING (writes
 * of the result, or unmaps). Copies or maps are all that the two ways differ in.
 *
 * Operations are a ring in the order of their begins, and staging memory is a ring in the same order: it is
 * taken at the head, and comes back when the operation and all before it are done. Otherwise they move on
 * independently; a look at all of them never blocks. A waiter that finds nothing to move sleeps on what its
 * own operation needs next. Two queues, so that a write does not stand behind the reads of later operations.
 *
 * Every command has an event that is kept until it is known to be over: a queue says nothing of a command in
 * its middle that failed, and memory is let go only when no command can touch it. */
#include "group.h"

#include <keel/health.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <keel/transport_device.h>
#include <stdio.h>
#include <string.h>

#define FREE_LIMIT_NS (30 * KEEL_NS_PER_S)
/* A wait for the device looks this often whether the epoch is over. */
#define LOOK_NS (20 * KEEL_NS_PER_MS)

enum state { FREE, QUEUED, READING, REDUCING, WRITING, DONE };

struct keel_device_operation {
    struct keel_device_collectives *of;
    enum state state;
    struct keel_group *group;
    struct keel_collective what;
    uint32_t gives; /* parts */
    bool gets;
    uint64_t part_bytes, result_bytes;
    struct keel_device_place *places;        /* parts_max parts, then the result; owned */
    struct keel_event *after[KEEL_WAIT_MAX]; /* borrowed */
    uint32_t after_count;
    void **at;                     /* where the parts are for the host, then the result: parts_max + 1 */
    uint32_t mapped;               /* of these, so many are mapped */
    uint64_t memory_end;           /* of its staging memory: a position of the ring */
    struct keel_event **events;    /* of commands that may run: parts_max + 1 */
    uint32_t event_count, settled; /* the first `settled` are over */
    struct keel_operation *operation;
};

struct keel_device_collectives {
    struct keel_device_collectives_config config;
    bool in_place;
    struct keel_queue *reads, *writes;
    uint8_t *memory;                   /* staging_bytes */
    uint64_t memory_head, memory_tail; /* positions: all that was ever taken, and given back */
    struct keel_device_operation *ring;
    uint64_t begun, started, returned; /* so many operations were; `returned`: their memory */
    bool inside;                       /* as on_device was told */
    enum keel_status status;           /* of the first failure, until the reset */
    char detail[KEEL_DETAIL_BYTES];
    struct keel_device_collectives_facts facts;
};

/* ---- life ---------------------------------------------------------------------------------------------- */

static enum keel_status check_config(const struct keel_device_collectives_config *config)
{
    if (config->parts_max == 0 || config->parts_max > KEEL_GROUP_SHARDS_MAX || config->operations_max == 0 ||
        config->operations_max > KEEL_DEVICE_OPERATIONS_MAX)
        return keel_fail(KEEL_INVALID, "device collectives: %u parts and %u operations; 1 to %d and 1 to %d",
                         config->parts_max, config->operations_max, KEEL_GROUP_SHARDS_MAX,
                         KEEL_DEVICE_OPERATIONS_MAX);
    return KEEL_OK;
}

static enum keel_status allocate(struct keel_device_collectives *all)
{
    const struct keel_device_collectives_config *config = &all->config;
    if (!all->in_place && config->staging_bytes > 0)
        KEEL_TRY(keel_transport_alloc(config->staging_bytes, &all->memory));
    KEEL_TRY(keel_alloc(config->operations_max, sizeof *all->ring, &all->ring));
    for (uint32_t k = 0; k < config->operations_max; k++) {
        struct keel_device_operation *operation = &all->ring[k];
        operation->of = all;
        KEEL_TRY(keel_alloc(config->parts_max + 1, sizeof *operation->places, &operation->places));
        KEEL_TRY(keel_alloc(config->parts_max + 1, sizeof *operation->at, &operation->at));
        KEEL_TRY(keel_alloc(config->parts_max + 1, sizeof(struct keel_event *), &operation->events));
    }
    KEEL_TRY(keel_queue_create(config->device, &all->reads));
    return keel_queue_create(config->device, &all->writes);
}

enum keel_status keel_device_collectives_create(const struct keel_device_collectives_config *config,
                                                struct keel_device_collectives **out)
{
    struct keel_device_collectives *all;
    KEEL_TRY(check_config(config));
    KEEL_TRY(keel_alloc(1, sizeof *all, &all));
    all->config = *config;
    all->config.staging_bytes = keel_round_up(config->staging_bytes, KEEL_CACHE_LINE_BYTES);
    all->in_place = keel_device_info(config->device)->unified_memory && !config->staged;
    enum keel_status status = allocate(all);
    if (status != KEEL_OK) {
        keel_device_collectives_free(all);
        return status;
    }
    *out = all;
    return KEEL_OK;
}

void keel_device_collectives_free(struct keel_device_collectives *all)
{
    if (all == NULL)
        return;
    if (keel_device_collectives_reset(all, keel_deadline_after_ns(FREE_LIMIT_NS)) != KEEL_OK) {
        keel_log(KEEL_LOG_ERROR, "%s: device collectives were left behind: their commands do not end",
                 keel_device_info(all->config.device)->selector);
        return;
    }
    keel_queue_destroy(all->writes);
    keel_queue_destroy(all->reads);
    for (uint32_t k = 0; all->ring != NULL && k < all->config.operations_max; k++) {
        keel_free(all->ring[k].places);
        keel_free(all->ring[k].at);
        keel_free(all->ring[k].events);
    }
    keel_free(all->ring);
    if (!keel_device_may_write(all->config.device))
        keel_transport_free(all->memory);
    keel_free(all);
}

void keel_device_collectives_facts(const struct keel_device_collectives *all,
                                   struct keel_device_collectives_facts *out)
{
    *out = all->facts;
}

enum keel_status keel_shared_buffer_create(struct keel_device *device, uint64_t bytes,
                                           struct keel_shared_buffer *out)
{
    struct keel_shared_buffer shared = {.device = device};
    if (keel_device_info(device)->unified_memory && keel_transport_alloc(bytes, &shared.memory) == KEEL_OK &&
        keel_buffer_wrap(device, shared.memory, bytes, &shared.buffer) == KEEL_OK) {
        *out = shared;
        return KEEL_OK;
    }
    keel_transport_free(shared.memory); /* no device has to take the host's memory */
    shared.memory = NULL;
    KEEL_TRY(keel_buffer_create(device, bytes, &shared.buffer));
    *out = shared;
    return KEEL_OK;
}

void keel_shared_buffer_destroy(struct keel_shared_buffer *shared)
{
    if (shared->buffer != NULL)
        keel_buffer_destroy(shared->buffer);
    if (shared->memory != NULL && !keel_device_may_write(shared->device))
        keel_transport_free(shared->memory);
    *shared = (struct keel_shared_buffer){.memory = NULL};
}

/* ---- failure ------------------------------------------------------------------------------------------- */

/* The first failure is that of all operations. */
static void fail(const struct keel_device_operation *operation, enum keel_status status, const char *doing)
{
    struct keel_device_collectives *all = operation->of;
    if (all->status != KEEL_OK)
        return;
    all->status = status;
    snprintf(all->detail, sizeof all->detail, "%s %llu on %s, %s: %.*s",
             keel_collective_name(operation->what.kind), (unsigned long long)operation->what.sequence,
             keel_device_info(all->config.device)->selector, doing, KEEL_DETAIL_BYTES / 2, keel_detail());
}

static enum keel_status failed(const struct keel_device_collectives *all)
{
    keel_detail_set(all->detail);
    return all->status;
}

static void tell(struct keel_device_collectives *all, bool inside)
{
    if (all->inside != inside && all->config.on_device != NULL)
        all->config.on_device(all->config.context, inside);
    all->inside = inside;
}

/* ---- commands ------------------------------------------------------------------------------------------ */

static bool settled(struct keel_device_operation *operation)
{
    while (operation->settled < operation->event_count &&
           keel_event_done(operation->events[operation->settled]))
        operation->settled++;
    return operation->settled == operation->event_count;
}

/* All are over: the first that failed. */
static enum keel_status collect(struct keel_device_operation *operation)
{
    enum keel_status status = KEEL_OK;
    char detail[KEEL_DETAIL_BYTES] = "";
    for (uint32_t k = 0; k < operation->event_count; k++) {
        enum keel_status one = keel_event_wait(operation->events[k], 0);
        if (status == KEEL_OK && one != KEEL_OK)
            snprintf(detail, sizeof detail, "%s", keel_detail());
        status = status == KEEL_OK ? one : status;
        keel_event_destroy(operation->events[k]);
    }
    operation->event_count = operation->settled = 0;
    if (status != KEEL_OK)
        keel_detail_set(detail);
    return status;
}

static struct keel_event **next_event(struct keel_device_operation *operation)
{
    KEEL_ASSERT(operation->event_count <= operation->of->config.parts_max);
    return &operation->events[operation->event_count];
}

static const struct keel_device_place *result_place(const struct keel_device_operation *operation)
{
    return &operation->places[operation->of->config.parts_max];
}

static void **result_at(const struct keel_device_operation *operation)
{
    return &operation->at[operation->of->config.parts_max];
}

/* Parts are read where their memory is the device's alone, mapped where it is the host's too. */
static enum keel_status bring_part(struct keel_device_operation *operation, uint32_t part)
{
    struct keel_device_collectives *all = operation->of;
    const struct keel_device_place *place = &operation->places[part];
    struct keel_wait_list waits = {operation->after, operation->after_count};
    if (all->in_place) {
        KEEL_TRY(keel_queue_map(all->reads, place->buffer, place->offset_bytes, operation->part_bytes,
                                KEEL_MAP_READ, &operation->at[part], &waits, next_event(operation)));
        operation->mapped++;
        all->facts.mapped_bytes += operation->part_bytes;
    } else {
        KEEL_TRY(keel_queue_read(all->reads, place->buffer, place->offset_bytes, operation->at[part],
                                 operation->part_bytes, &waits, next_event(operation)));
        all->facts.device_to_host_bytes += operation->part_bytes;
    }
    operation->event_count++;
    return KEEL_OK;
}

static enum keel_status map_result(struct keel_device_operation *operation)
{
    struct keel_device_collectives *all = operation->of;
    struct keel_wait_list waits = {operation->after, operation->after_count};
    const struct keel_device_place *place = result_place(operation);
    KEEL_TRY(keel_queue_map(all->reads, place->buffer, place->offset_bytes, operation->result_bytes,
                            KEEL_MAP_WRITE, result_at(operation), &waits, next_event(operation)));
    operation->event_count++;
    operation->mapped++;
    all->facts.mapped_bytes += operation->result_bytes;
    return KEEL_OK;
}

static enum keel_status bring_in(struct keel_device_operation *operation)
{
    for (uint32_t part = 0; part < operation->gives && operation->part_bytes > 0; part++)
        KEEL_TRY(bring_part(operation, part));
    if (operation->of->in_place && operation->result_bytes > 0)
        KEEL_TRY(map_result(operation));
    return operation->event_count > 0 ? keel_queue_flush(operation->of->reads) : KEEL_OK;
}

static enum keel_status unmap_last(struct keel_device_operation *operation)
{
    uint32_t k = --operation->mapped;
    bool part = k < operation->gives && operation->part_bytes > 0;
    const struct keel_device_place *place = part ? &operation->places[k] : result_place(operation);
    KEEL_TRY(keel_queue_unmap(operation->of->writes, place->buffer,
                              part ? operation->at[k] : *result_at(operation), NULL, next_event(operation)));
    operation->event_count++;
    return KEEL_OK;
}

static enum keel_status bring_out(struct keel_device_operation *operation)
{
    struct keel_device_collectives *all = operation->of;
    struct keel_wait_list waits = {operation->after, operation->after_count};
    const struct keel_device_place *place = result_place(operation);
    while (operation->mapped > 0)
        KEEL_TRY(unmap_last(operation));
    if (!all->in_place && operation->result_bytes > 0) {
        KEEL_TRY(keel_queue_write(all->writes, place->buffer, place->offset_bytes, *result_at(operation),
                                  operation->result_bytes, &waits, next_event(operation)));
        operation->event_count++;
        all->facts.host_to_device_bytes += operation->result_bytes;
    }
    return operation->event_count > 0 ? keel_queue_flush(all->writes) : KEEL_OK;
}

/* ---- staging memory ------------------------------------------------------------------------------------ */

static uint64_t staging_bytes(const struct keel_device_operation *operation)
{
    uint64_t part = keel_round_up(operation->part_bytes, KEEL_CACHE_LINE_BYTES);
    return operation->of->in_place ? 0 : operation->gives * part + operation->result_bytes;
}

static uint64_t next_turn(uint64_t position, uint64_t size)
{
    return (position + size - 1) / size * size;
}

/* In one piece: what is left at the ring's end is passed over. False: there is not enough yet. */
static bool take_memory(struct keel_device_operation *operation)
{
    struct keel_device_collectives *all = operation->of;
    uint64_t size = all->config.staging_bytes, bytes = staging_bytes(operation), from = all->memory_head;
    operation->memory_end = from;
    if (bytes == 0)
        return true;
    if (all->memory_head == all->memory_tail) /* all of it is free */
        all->memory_head = all->memory_tail = from = next_turn(from, size);
    if (from % size + bytes > size)
        from = next_turn(from, size);
    if (from + bytes - all->memory_tail > size)
        return false;
    uint8_t *at = all->memory + from % size;
    for (uint32_t k = 0; k < operation->gives; k++)
        operation->at[k] = at + k * keel_round_up(operation->part_bytes, KEEL_CACHE_LINE_BYTES);
    *result_at(operation) = at + bytes - operation->result_bytes;
    operation->memory_end = all->memory_head = keel_round_up(from + bytes, KEEL_CACHE_LINE_BYTES);
    return true;
}

static struct keel_device_operation *at_number(const struct keel_device_collectives *all, uint64_t number)
{
    return &all->ring[number % all->config.operations_max];
}

static void return_memory(struct keel_device_collectives *all)
{
    for (; all->returned < all->started; all->returned++) {
        const struct keel_device_operation *oldest = at_number(all, all->returned);
        if (oldest->state != DONE && oldest->state != FREE)
            break;
        if (oldest->memory_end > all->memory_tail)
            all->memory_tail = oldest->memory_end;
    }
}

/* ---- an operation's way -------------------------------------------------------------------------------- */

static bool reducing(const struct keel_device_collectives *all)
{
    for (uint64_t k = all->returned; k < all->started; k++)
        if (at_number(all, k)->state == REDUCING)
            return true;
    return false;
}

static void begin_reading(struct keel_device_operation *operation)
{
    struct keel_device_collectives *all = operation->of;
    all->started++;
    all->facts.overlaps += reducing(all);
    operation->state = READING;
    enum keel_status status = bring_in(operation);
    if (status != KEEL_OK)
        fail(operation, status, "read from the device");
}

static void begin_reducing(struct keel_device_operation *operation)
{
    struct keel_collective what = operation->what;
    enum keel_status status = collect(operation);
    if (status != KEEL_OK) {
        fail(operation, status, "read from the device");
        return;
    }
    what.parts = (const void *const *)operation->at;
    what.part_count = operation->gives;
    what.result = operation->gets && operation->result_bytes > 0 ? *result_at(operation) : NULL;
    status = keel_group_begin(operation->group, &what, &operation->operation);
    if (status != KEEL_OK)
        fail(operation, status, "begin");
    else
        operation->state = REDUCING;
}

/* Who ended the epoch may have said why to another operation, and that is what the caller is told. */
static enum keel_status reason(struct keel_device_operation **in_out)
{
    struct keel_device_collectives *all = (*in_out)->of;
    for (uint64_t k = all->returned; k < all->started; k++) {
        struct keel_device_operation *other = at_number(all, k);
        enum keel_status status;
        if (other->state != REDUCING || other->operation == NULL ||
            !keel_operation_test(other->operation, &status))
            continue;
        other->operation = NULL;
        *in_out = other;
        if (status != KEEL_OK && status != KEEL_REVOKED)
            return status;
    }
    return KEEL_REVOKED;
}

static void begin_writing(struct keel_device_operation *operation, enum keel_status status)
{
    operation->operation = NULL;
    if (status == KEEL_REVOKED)
        status = reason(&operation);
    if (status != KEEL_OK) {
        fail(operation, status, "between the ranks");
        return;
    }
    operation->state = WRITING;
    operation->of->facts.overlaps += reducing(operation->of);
    status = bring_out(operation);
    if (status != KEEL_OK)
        fail(operation, status, "write to the device");
}

static void end_writing(struct keel_device_operation *operation)
{
    enum keel_status status = collect(operation);
    if (status != KEEL_OK) {
        fail(operation, status, "write to the device");
        return;
    }
    operation->state = DONE;
    operation->of->facts.operations++;
    return_memory(operation->of);
}

/* As far as it goes without waiting; true if it went anywhere. */
static bool move(struct keel_device_operation *operation, bool is_next)
{
    bool moved = false, can = true;
    enum keel_status status;
    while (can && operation->of->status == KEEL_OK) {
        enum state state = operation->state;
        if (state == QUEUED && is_next && take_memory(operation))
            begin_reading(operation);
        else if (state == READING && settled(operation))
            begin_reducing(operation);
        else if (state == REDUCING && keel_operation_test(operation->operation, &status))
            begin_writing(operation, status);
        else if (state == WRITING && settled(operation))
            end_writing(operation);
        can = operation->state != state;
        moved = moved || can;
    }
    return moved;
}

static bool move_all(struct keel_device_collectives *all)
{
    const bool before = all->inside;
    bool moved = false;
    tell(all, true);
    for (uint64_t k = all->returned; k < all->begun; k++)
        moved = move(at_number(all, k), k == all->started) || moved;
    tell(all, before);
    return moved;
}

void keel_device_collectives_advance(struct keel_device_collectives *all)
{
    while (move_all(all)) {
    }
}

/* ---- begin --------------------------------------------------------------------------------------------- */

static enum keel_status check_place(const struct keel_device_operation *operation, const char *name,
                                    const struct keel_device_place *place, uint64_t bytes)
{
    uint64_t there = place->buffer != NULL ? keel_buffer_bytes(place->buffer) : 0;
    if (bytes > 0 && (place->offset_bytes > there || bytes > there - place->offset_bytes))
        return keel_fail(KEEL_INVALID, "%s %llu: a %s of %llu bytes at %llu of a buffer of %llu",
                         keel_collective_name(operation->what.kind),
                         (unsigned long long)operation->what.sequence, name, (unsigned long long)bytes,
                         (unsigned long long)place->offset_bytes, (unsigned long long)there);
    return KEEL_OK;
}

static bool overlap(const struct keel_device_place *a, uint64_t a_bytes, const struct keel_device_place *b,
                    uint64_t b_bytes)
{
    return a_bytes > 0 && b_bytes > 0 && /* else there may be no buffer */
           keel_buffer_ranges_overlap(a->buffer, a->offset_bytes, a_bytes, b->buffer, b->offset_bytes,
                                      b_bytes);
}

static enum keel_status check_places(const struct keel_device_operation *operation)
{
    const struct keel_device_place *result = result_place(operation);
    KEEL_TRY(check_place(operation, "result", result, operation->result_bytes));
    for (uint32_t k = 0; k < operation->gives; k++) {
        KEEL_TRY(check_place(operation, "part", &operation->places[k], operation->part_bytes));
        if (overlap(&operation->places[k], operation->part_bytes, result, operation->result_bytes))
            return keel_fail(
                KEEL_INVALID,
                "%s %llu: the result lies on part %u; parts are kept, so give it a place of its own",
                keel_collective_name(operation->what.kind), (unsigned long long)operation->what.sequence, k);
    }
    return KEEL_OK;
}

static enum keel_status check(const struct keel_device_collectives *all, const struct keel_group *group,
                              const struct keel_device_collective *collective)
{
    const struct keel_collective *what = &collective->what;
    KEEL_TRY(keel_collective_check(group, what));
    const char *name = keel_collective_name(what->kind);
    unsigned long long sequence = what->sequence;
    if (what->kind == KEEL_BARRIER || what->kind == KEEL_ALL_TO_ALL_V)
        return keel_fail(KEEL_UNSUPPORTED,
                         "%s %llu: not on device memory; read into host memory and use keel_group_begin",
                         name, sequence);
    uint32_t gives = keel_collective_gives(group, what);
    if (gives > all->config.parts_max)
        return keel_fail(KEEL_LIMIT, "%s %llu: %u parts; the object was made for %u", name, sequence, gives,
                         all->config.parts_max);
    if (gives > 0 && what->part_count != gives)
        return keel_fail(KEEL_INVALID, "%s %llu: %u parts given, rank %u has %u to give", name, sequence,
                         what->part_count, group->rank, gives);
    if (collective->after.count > KEEL_WAIT_MAX)
        return keel_fail(KEEL_LIMIT, "%s %llu: it waits for %u events; at most %d", name, sequence,
                         collective->after.count, KEEL_WAIT_MAX);
    if (at_number(all, all->begun)->state != FREE)
        return keel_fail(KEEL_LIMIT, "%s %llu: %u operations are under way; wait for the oldest", name,
                         sequence, all->config.operations_max);
    return KEEL_OK;
}

static uint64_t sum_of(const uint64_t *counts, uint32_t rank_count)
{
    uint64_t sum = 0;
    for (uint32_t rank = 0; rank < rank_count; rank++)
        sum += counts[rank];
    return sum;
}

/* Elements of a part and of the result. */
static void size(const struct keel_group *group, const struct keel_collective *what, uint64_t *part,
                 uint64_t *result)
{
    const struct keel_kind *kind = keel_kind(what->kind);
    const bool scatters = what->kind == KEEL_REDUCE_SCATTER && what->counts_out != NULL;
    *part = what->count * (kind->part == KEEL_SHAPE_BLOCKS ? group->rank_count : 1);
    *result = what->count * (kind->result == KEEL_SHAPE_BLOCKS ? group->rank_count : 1);
    if (!scatters && what->kind != KEEL_ALL_GATHER_V)
        return;
    const uint64_t mine = what->counts_out[group->rank], all = sum_of(what->counts_out, group->rank_count);
    *part = scatters ? all : mine;
    *result = scatters ? mine : all;
}

static void fill(struct keel_device_operation *operation, struct keel_group *group,
                 const struct keel_device_collective *collective)
{
    const struct keel_collective *what = &collective->what;
    const uint64_t bytes = keel_element_bytes(what->element);
    uint64_t part, result;
    size(group, what, &part, &result);
    operation->group = group;
    operation->what = *what;
    operation->gives = keel_collective_gives(group, what);
    operation->gets = keel_collective_gets(group, what);
    operation->part_bytes = part * bytes;
    operation->result_bytes = operation->gets ? result * bytes : 0;
    for (uint32_t k = 0; k < operation->gives; k++)
        operation->places[k] = collective->parts[k];
    operation->places[operation->of->config.parts_max] = collective->result;
    operation->after_count = collective->after.count;
    for (uint32_t k = 0; k < operation->after_count; k++)
        operation->after[k] = collective->after.events[k];
}

static enum keel_status check_memory(const struct keel_device_operation *operation)
{
    uint64_t wanted = staging_bytes(operation);
    if (wanted > operation->of->config.staging_bytes)
        return keel_fail(KEEL_LIMIT, "%s %llu: it needs %llu bytes of staging memory, and there are %llu",
                         keel_collective_name(operation->what.kind),
                         (unsigned long long)operation->what.sequence, (unsigned long long)wanted,
                         (unsigned long long)operation->of->config.staging_bytes);
    return KEEL_OK;
}

enum keel_status keel_device_collective_begin(struct keel_device_collectives *all, struct keel_group *group,
                                              const struct keel_device_collective *collective,
                                              struct keel_device_operation **out)
{
    if (all->status != KEEL_OK)
        return failed(all);
    KEEL_TRY(check(all, group, collective));
    struct keel_device_operation *operation = at_number(all, all->begun);
    fill(operation, group, collective);
    KEEL_TRY(check_places(operation));
    if (!all->in_place)
        KEEL_TRY(check_memory(operation));
    operation->state = QUEUED;
    all->begun++;
    uint32_t under_way = (uint32_t)(all->begun - all->returned);
    if (under_way > all->facts.under_way_high)
        all->facts.under_way_high = under_way;
    keel_device_collectives_advance(all);
    *out = operation;
    return KEEL_OK;
}

/* ---- waiting ------------------------------------------------------------------------------------------- */

/* What to sleep on: the operation itself, or the oldest that keeps staging memory from it. */
static struct keel_device_operation *choose(struct keel_device_operation *wanted)
{
    struct keel_device_collectives *all = wanted->of;
    if (wanted->state != QUEUED)
        return wanted;
    KEEL_ASSERT(all->returned < all->started); /* else there was memory for the next one */
    return at_number(all, all->returned);
}

/* What is not over after one look is still waited for: the waits for the device are told as one. */
static void sleep_on(struct keel_device_operation *operation, uint64_t deadline_ns)
{
    tell(operation->of, operation->state != REDUCING);
    if (operation->state == REDUCING) {
        enum keel_status status = keel_operation_wait(operation->operation, deadline_ns);
        tell(operation->of, true);
        begin_writing(operation, status);
        return;
    }
    struct keel_event *event = operation->events[operation->settled];
    const uint64_t look_ns = keel_deadline_after_ns(LOOK_NS);
    const char *doing = operation->state == READING ? "read from the device" : "write to the device";
    if ((look_ns < deadline_ns ? keel_event_look(event, look_ns) : keel_event_wait(event, deadline_ns)) !=
        KEEL_TIMEOUT)
        return; /* a failure too: who collects it tells */
    if (keel_group_over(operation->group))
        fail(operation, keel_fail(KEEL_REVOKED, "the epoch is over; open the next group"), doing);
    else if (keel_now_ns() >= deadline_ns)
        fail(operation, keel_fail(KEEL_TIMEOUT, "the device has not done it by the deadline"), doing);
}

enum keel_status keel_device_operation_start(struct keel_device_operation *operation, uint64_t deadline_ns)
{
    struct keel_device_collectives *all = operation->of;
    while (all->status == KEEL_OK && operation->state == READING)
        if (!move_all(all) && all->status == KEEL_OK)
            sleep_on(operation, deadline_ns);
    tell(all, false);
    return all->status == KEEL_OK ? KEEL_OK : failed(all);
}

enum keel_status keel_device_operation_wait(struct keel_device_operation *operation, uint64_t deadline_ns)
{
    struct keel_device_collectives *all = operation->of;
    while (all->status == KEEL_OK && operation->state != DONE)
        if (!move_all(all) && all->status == KEEL_OK)
            sleep_on(choose(operation), deadline_ns);
    tell(all, false);
    if (all->status != KEEL_OK)
        return failed(all);
    operation->state = FREE;
    return KEEL_OK;
}

enum keel_status keel_device_collective_run(struct keel_device_collectives *all, struct keel_group *group,
                                            const struct keel_device_collective *collective,
                                            uint64_t deadline_ns)
{
    struct keel_device_operation *operation = NULL;
    KEEL_TRY(keel_device_collective_begin(all, group, collective, &operation));
    return keel_device_operation_wait(operation, deadline_ns);
}

/* ---- starting again ------------------------------------------------------------------------------------ */

/* Failed commands are over too. */
static enum keel_status quiet(struct keel_device_operation *operation, uint64_t deadline_ns)
{
    for (; operation->settled < operation->event_count; operation->settled++)
        if (keel_event_wait(operation->events[operation->settled], deadline_ns) == KEEL_TIMEOUT)
            return KEEL_TIMEOUT;
    (void)collect(operation);
    return KEEL_OK;
}

enum keel_status keel_device_collectives_reset(struct keel_device_collectives *all, uint64_t deadline_ns)
{
    for (uint32_t k = 0; all->ring != NULL && k < all->config.operations_max; k++) {
        struct keel_device_operation *operation = &all->ring[k];
        KEEL_TRY(quiet(operation, deadline_ns));
        while (operation->mapped > 0)
            (void)unmap_last(operation); /* a map that failed has nothing to give back */
        KEEL_TRY(quiet(operation, deadline_ns));
        operation->operation = NULL;
        operation->state = FREE;
    }
    all->begun = all->started = all->returned = 0;
    all->memory_head = all->memory_tail = 0;
    all->status = KEEL_OK;
    return KEEL_OK;
}
