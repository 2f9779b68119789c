/* schedule_time.h - when the steps of schedules would be done, by the cost model's own terms, event by event.
 *
 * A message occupies its sender for gap + bytes x picos_per_byte (within a host for the gap alone: bytes are
 * read where they lie), comes alpha later and occupies its receiver for both; sums occupy the receiver's
 * processor. Everything starts as soon as its hazards allow, first come first served: pipelining and crowding
 * are in it, which closed forms leave out or guess. Whole: all ranks together. Alike: where all ranks do the
 * same at the same time, one rank stands for all, and what it receives is what it sent itself, so that 4,096
 * ranks of 20,000 steps are 20,000 steps. */
#ifndef KEEL_TESTS_SCHEDULE_TIME_H
#define KEEL_TESTS_SCHEDULE_TIME_H

#include "schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum time_kind { TIME_READY, TIME_ARRIVED, TIME_DONE };

struct time_event {
    uint64_t at_ps, order; /* order: of those at the same time the first made */
    uint32_t rank, step;
    enum time_kind kind;
};

struct time_rank {
    struct keel_schedule *schedule;
    uint32_t *needs;
    uint64_t out_ps, in_ps, sums_ps; /* when each is free again */
    uint32_t done;
};

struct time_run {
    const struct keel_collective_key *key;
    const struct keel_cost_model *model;
    uint64_t block_bytes;
    struct time_rank *ranks; /* alike: one */
    uint32_t rank_count;
    uint32_t *receive_of; /* alike: by SEND step, the RECEIVE that it is on the other side; else NULL */
    struct time_event *heap;
    uint64_t heap_count, heap_capacity, order, end_ps;
};

static inline bool time_before(const struct time_event *a, const struct time_event *b)
{
    return a->at_ps != b->at_ps ? a->at_ps < b->at_ps : a->order < b->order;
}

static inline void time_push(struct time_run *run, uint64_t at_ps, uint32_t rank, uint32_t step,
                             enum time_kind kind)
{
    if (run->heap_count == run->heap_capacity) {
        run->heap_capacity = run->heap_capacity == 0 ? 1024 : 2 * run->heap_capacity;
        run->heap = realloc(run->heap, run->heap_capacity * sizeof *run->heap);
        if (run->heap == NULL)
            abort();
    }
    struct time_event event = {at_ps, run->order++, rank, step, kind};
    uint64_t at = run->heap_count++;
    for (; at > 0 && time_before(&event, &run->heap[(at - 1) / 2]); at = (at - 1) / 2)
        run->heap[at] = run->heap[(at - 1) / 2];
    run->heap[at] = event;
}

static inline struct time_event time_pop(struct time_run *run)
{
    struct time_event first = run->heap[0], last = run->heap[--run->heap_count];
    uint64_t at = 0, child = 1;
    while (child < run->heap_count) {
        if (child + 1 < run->heap_count && time_before(&run->heap[child + 1], &run->heap[child]))
            child++;
        if (!time_before(&run->heap[child], &last))
            break;
        run->heap[at] = run->heap[child];
        at = child;
        child = 2 * at + 1;
    }
    run->heap[at] = last;
    return first;
}

static inline const struct keel_link_cost *time_link(const struct time_run *run, uint32_t a, uint32_t b)
{
    const uint16_t *host_of = run->key->host_of;
    return host_of == NULL || host_of[a] == host_of[b] ? &run->model->within : &run->model->between;
}

static inline uint64_t time_occupy(uint64_t *free_ps, uint64_t from_ps, uint64_t for_ps)
{
    *free_ps = (*free_ps > from_ps ? *free_ps : from_ps) + for_ps;
    return *free_ps;
}

/* A long block is several messages. */
static inline uint64_t time_gaps_ps(const struct time_run *run, const struct keel_link_cost *link)
{
    uint64_t chunk = keel_chunk_bytes(run->block_bytes);
    return link->gap_ns * 1000 * (run->block_bytes > chunk ? (run->block_bytes + chunk - 1) / chunk : 1);
}

static inline uint64_t time_port_ps(const struct time_run *run, const struct keel_link_cost *link)
{
    return time_gaps_ps(run, link) + run->block_bytes * link->picos_per_byte;
}

/* The rank's own number, also where one stands for all. */
static inline uint32_t time_self(const struct time_run *run, uint32_t rank)
{
    return run->ranks[rank].schedule->rank;
}

static inline uint32_t time_receive(const struct time_run *run, uint32_t rank, uint32_t at,
                                    const struct keel_step *send)
{
    if (run->receive_of != NULL)
        return run->receive_of[at];
    const struct keel_schedule *peer = run->ranks[send->peer].schedule;
    uint32_t low = 0, high = peer->peer_count;
    while (low + 1 < high) {
        uint32_t middle = (low + high) / 2;
        if (peer->peers[middle] <= rank)
            low = middle;
        else
            high = middle;
    }
    return peer->receives[peer->receives_first[low] + send->ordinal];
}

static inline void time_start(struct time_run *run, struct time_event event)
{
    struct time_rank *r = &run->ranks[event.rank];
    const struct keel_step *step = &r->schedule->steps[event.step];
    uint64_t done_ps = event.at_ps;
    if (step->kind == KEEL_STEP_SEND) {
        const struct keel_link_cost *link = time_link(run, time_self(run, event.rank), step->peer);
        uint64_t port_ps = link == &run->model->within ? time_gaps_ps(run, link) : time_port_ps(run, link);
        done_ps = time_occupy(&r->out_ps, event.at_ps, port_ps);
        time_push(run, done_ps - port_ps + link->alpha_ns * 1000,
                  run->receive_of != NULL ? event.rank : step->peer,
                  time_receive(run, event.rank, event.step, step), TIME_ARRIVED);
    } else if (step->kind == KEEL_STEP_COMBINE) {
        done_ps =
            time_occupy(&r->sums_ps, event.at_ps,
                        (step->operand_count - 2) * run->block_bytes * run->model->combine_picos_per_byte);
    }
    time_push(run, done_ps, event.rank, event.step, TIME_DONE);
}

static inline void time_finish(struct time_run *run, struct time_event event)
{
    struct time_rank *r = &run->ranks[event.rank];
    const struct keel_schedule *schedule = r->schedule;
    r->done++;
    run->end_ps = event.at_ps;
    for (uint32_t i = schedule->freed_first[event.step]; i < schedule->freed_first[event.step + 1]; i++)
        if (--r->needs[schedule->freed[i]] == 0)
            time_push(run, event.at_ps, event.rank, schedule->freed[i], TIME_READY);
}

static inline void time_events(struct time_run *run)
{
    for (uint32_t rank = 0; rank < run->rank_count; rank++) {
        struct time_rank *r = &run->ranks[rank];
        r->needs = calloc(r->schedule->step_count + 1, sizeof *r->needs);
        if (r->needs == NULL)
            abort();
        if (r->schedule->step_count > 0)
            memcpy(r->needs, r->schedule->needs, r->schedule->step_count * sizeof *r->needs);
        for (uint32_t k = 0; k < r->schedule->step_count; k++)
            if (r->needs[k] == 0 && r->schedule->steps[k].kind != KEEL_STEP_RECEIVE)
                time_push(run, 0, rank, k, TIME_READY);
    }
    while (run->heap_count > 0) {
        struct time_event event = time_pop(run);
        if (event.kind == TIME_READY) {
            time_start(run, event);
        } else if (event.kind == TIME_DONE) {
            time_finish(run, event);
        } else {
            struct time_rank *r = &run->ranks[event.rank];
            uint32_t from = r->schedule->steps[event.step].peer;
            uint64_t port_ps = time_port_ps(run, time_link(run, from, time_self(run, event.rank)));
            time_push(run, time_occupy(&r->in_ps, event.at_ps, port_ps), event.rank, event.step, TIME_DONE);
        }
    }
    for (uint32_t rank = 0; rank < run->rank_count; rank++) /* or it would be the time of a part */
        if (run->ranks[rank].done != run->ranks[rank].schedule->step_count)
            abort();
}

static inline uint64_t time_block_bytes(const struct keel_collective_key *key,
                                        const struct keel_schedule *schedule, uint64_t bytes)
{
    switch (key->kind) {
    case KEEL_ALL_REDUCE:
    case KEEL_REDUCE:
    case KEEL_BROADCAST:
        return (bytes + schedule->part_blocks - 1) / schedule->part_blocks;
    case KEEL_REDUCE_SCATTER:
    case KEEL_SCATTER:
        return bytes;
    case KEEL_BARRIER:
        return 0;
    default:
        return (bytes + key->rank_count - 1) / key->rank_count;
    }
}

static inline bool time_make(const struct keel_collective_key *key, uint32_t rank, struct keel_schedule **out)
{
    struct keel_collective_key mine = *key;
    mine.rank = rank;
    return keel_schedule_make(&mine, out) == KEEL_OK;
}

static inline uint64_t time_end(struct time_run *run)
{
    uint64_t end_ns = run->end_ps / 1000;
    for (uint32_t rank = 0; rank < run->rank_count; rank++) {
        keel_schedule_free(run->ranks[rank].schedule);
        free(run->ranks[rank].needs);
    }
    free(run->ranks);
    free(run->receive_of);
    free(run->heap);
    return end_ns;
}

/* All ranks. False: the algorithm cannot. */
static inline bool time_whole(const struct keel_collective_key *key, uint64_t bytes,
                              const struct keel_cost_model *model, uint64_t *out_ns)
{
    struct time_run run = {.key = key, .model = model, .rank_count = key->rank_count};
    run.ranks = calloc(key->rank_count, sizeof *run.ranks);
    if (run.ranks == NULL)
        abort();
    bool able = true;
    for (uint32_t rank = 0; able && rank < key->rank_count; rank++)
        able = time_make(key, rank, &run.ranks[rank].schedule);
    if (able) {
        run.block_bytes = time_block_bytes(key, run.ranks[0].schedule, bytes);
        time_events(&run);
    }
    *out_ns = time_end(&run);
    return able;
}

/* Which of its own SENDs a rank that all are like receives at each RECEIVE: its peer's step of the same
 * number. */
static inline bool time_match(struct time_run *run)
{
    const struct keel_schedule *mine = run->ranks[0].schedule;
    bool alike = true;
    run->receive_of = calloc(mine->step_count + 1, sizeof *run->receive_of);
    if (run->receive_of == NULL)
        abort();
    for (uint32_t p = 0; alike && p < mine->peer_count; p++) {
        struct keel_schedule *peer = NULL;
        if (!time_make(run->key, mine->peers[p], &peer))
            abort();
        alike = peer->step_count == mine->step_count;
        for (uint32_t k = 0; alike && k < peer->step_count; k++) {
            const struct keel_step *step = &peer->steps[k];
            alike = step->kind == mine->steps[k].kind;
            if (alike && step->kind == KEEL_STEP_SEND && step->peer == mine->rank)
                run->receive_of[k] = mine->receives[mine->receives_first[p] + step->ordinal];
        }
        keel_schedule_free(peer);
    }
    return alike;
}

/* One rank for all. False: the algorithm cannot, or its ranks do different things. */
static inline bool time_alike(const struct keel_collective_key *key, uint64_t bytes,
                              const struct keel_cost_model *model, uint64_t *out_ns)
{
    struct time_run run = {.key = key, .model = model, .rank_count = 1};
    run.ranks = calloc(1, sizeof *run.ranks);
    if (run.ranks == NULL)
        abort();
    bool able = time_make(key, 0, &run.ranks[0].schedule) && time_match(&run);
    if (able) {
        run.block_bytes = time_block_bytes(key, run.ranks[0].schedule, bytes);
        time_events(&run);
    }
    *out_ns = time_end(&run);
    return able;
}

#endif
