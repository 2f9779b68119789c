/* net_bench.c - one rank of `keel net bench`: warms up, times, and tells every iteration's time.
 *
 * Iterations follow each other without a barrier, as in nccl-tests: a rank that is late in one shows in the
 * times of the others, which is what a job feels. */
#include "net_bench.h"

#include <keel/clock.h>
#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>

enum { ITERATIONS_MIN = 5, PROBES = 3 };
#define ROW_NS   (KEEL_NS_PER_S / 3)
#define ALIVE_NS KEEL_NS_PER_S

struct bench {
    struct keel_net_rank *rank;
    const struct keel_net_bench_plan *plan;
    uint8_t *part, *result; /* max_bytes and a little more */
    struct {
        struct keel_net_bench_times head;
        uint64_t ns[KEEL_NET_BENCH_ITERATIONS];
    } told;
    uint32_t row;
    uint64_t said_ns; /* when the host heard of this rank last */
};

/* ---- one operation ---- */

enum keel_status keel_net_bench_once(struct keel_net_rank *rank, const struct keel_net_bench_case *it,
                                     const void *part, void *result)
{
    const void *parts[] = {part};
    bool at_root = rank->rank == 0;
    bool gives =
        it->kind != KEEL_BARRIER && ((it->kind != KEEL_BROADCAST && it->kind != KEEL_SCATTER) || at_root);
    bool gets = it->kind != KEEL_BARRIER && ((it->kind != KEEL_REDUCE && it->kind != KEEL_GATHER) || at_root);
    struct keel_collective collective = {.kind = it->kind,
                                         .sequence = rank->sequence++,
                                         .element = it->element,
                                         .reduction = it->reduction,
                                         .order = it->order,
                                         .algorithm = it->algorithm,
                                         .count = it->count,
                                         .parts = gives ? parts : NULL,
                                         .part_count = gives ? 1 : 0,
                                         .result = gets ? result : NULL};
    return keel_group_run(rank->group, &collective, keel_net_rank_deadline(rank));
}

static enum keel_status once(struct bench *bench, const struct keel_net_bench_case *it)
{
    return keel_net_bench_once(bench->rank, it, bench->part, bench->result);
}

/* Everybody sends to the next and receives from the one before. */
static enum keel_status once_around(struct bench *bench, const struct keel_net_bench_case *it)
{
    struct keel_net_rank *rank = bench->rank;
    const void *parts[] = {bench->part};
    struct keel_operation *sending = NULL, *receiving = NULL;
    uint32_t before = (rank->rank + rank->world - 1) % rank->world;
    struct keel_collective send = {.kind = KEEL_SEND,
                                   .sequence = rank->sequence + rank->rank,
                                   .element = it->element,
                                   .root = (rank->rank + 1) % rank->world,
                                   .count = it->count,
                                   .parts = parts,
                                   .part_count = 1};
    struct keel_collective receive = {.kind = KEEL_RECEIVE,
                                      .sequence = rank->sequence + before,
                                      .element = it->element,
                                      .root = before,
                                      .count = it->count,
                                      .result = bench->result};
    uint64_t deadline_ns = keel_net_rank_deadline(rank);
    rank->sequence += rank->world;
    KEEL_TRY(keel_group_begin(rank->group, &receive, &receiving));
    KEEL_TRY(keel_group_begin(rank->group, &send, &sending));
    KEEL_TRY(keel_operation_wait(sending, deadline_ns));
    return keel_operation_wait(receiving, deadline_ns);
}

static enum keel_status run(struct bench *bench, const struct keel_net_bench_case *it)
{
    return it->kind == KEEL_SEND ? once_around(bench, it) : once(bench, it);
}

static enum keel_status together(struct bench *bench)
{
    return once(bench, &(struct keel_net_bench_case){.kind = KEEL_BARRIER});
}

/* ---- one row ---- */

/* The host takes a long silence for a death. */
static enum keel_status still_here(struct bench *bench, uint64_t now_ns)
{
    if (now_ns - bench->said_ns < ALIVE_NS)
        return KEEL_OK;
    bench->said_ns = now_ns;
    return keel_net_rank_say(bench->rank, KEEL_NET_BENCH_ALIVE, NULL, 0);
}

/* How many, decided by rank 0 and told to all. */
static enum keel_status agree(struct bench *bench, uint64_t probe_ns, uint32_t *out)
{
    uint64_t fit = probe_ns > 0 ? ROW_NS / probe_ns : KEEL_NET_BENCH_ITERATIONS;
    uint32_t own = (uint32_t)(fit < ITERATIONS_MIN              ? ITERATIONS_MIN
                              : fit < KEEL_NET_BENCH_ITERATIONS ? fit
                                                                : KEEL_NET_BENCH_ITERATIONS);
    struct keel_net_rank *rank = bench->rank;
    const void *parts[] = {&own};
    struct keel_collective tell = {.kind = KEEL_BROADCAST,
                                   .sequence = rank->sequence++,
                                   .element = KEEL_ELEMENT_I32,
                                   .count = 1,
                                   .parts = rank->rank == 0 ? parts : NULL,
                                   .part_count = rank->rank == 0 ? 1 : 0,
                                   .result = out};
    if (bench->plan->iterations > 0) {
        *out = (uint32_t)bench->plan->iterations;
        return KEEL_OK;
    }
    return keel_group_run(rank->group, &tell, keel_net_rank_deadline(rank));
}

static enum keel_status warm_up(struct bench *bench, const struct keel_net_bench_case *it, uint32_t *out)
{
    uint64_t shortest_ns = UINT64_MAX;
    for (uint64_t k = 0; k < bench->plan->warmup; k++) {
        KEEL_TRY(run(bench, it));
        KEEL_TRY(still_here(bench, keel_now_ns()));
    }
    for (uint32_t k = 0; k < PROBES && bench->plan->iterations == 0; k++) {
        uint64_t begun_ns = keel_now_ns();
        KEEL_TRY(run(bench, it));
        uint64_t took_ns = keel_now_ns() - begun_ns;
        shortest_ns = took_ns < shortest_ns ? took_ns : shortest_ns;
    }
    return agree(bench, shortest_ns, out);
}

static enum keel_status measure(struct bench *bench, struct keel_net_bench_case *it)
{
    struct keel_transport_stats before, after;
    uint32_t iterations;
    enum keel_status status = warm_up(bench, it, &iterations);
    struct keel_net_bench_times *head = &bench->told.head;
    *head = (struct keel_net_bench_times){.row = bench->row++};
    if (status == KEEL_OK) {
        KEEL_TRY(together(bench));
        keel_endpoint_stats(bench->rank->endpoint, &before);
        uint64_t at_ns = keel_now_ns(), begun_ns = at_ns;
        for (uint32_t k = 0; k < iterations; k++) {
            KEEL_TRY(run(bench, it));
            uint64_t now_ns = keel_now_ns();
            bench->told.ns[k] = now_ns - at_ns;
            at_ns = now_ns;
            KEEL_TRY(still_here(bench, now_ns));
        }
        keel_endpoint_stats(bench->rank->endpoint, &after);
        it->iterations = iterations;
        head->total_ns = at_ns - begun_ns;
        head->sent_bytes = after.data_sent - before.data_sent;
    } else if (status != KEEL_UNSUPPORTED) {
        return status;
    }
    head->it = *it;
    return keel_net_rank_say(bench->rank, KEEL_NET_BENCH_FRAME, &bench->told,
                             (uint32_t)(sizeof *head + it->iterations * sizeof bench->told.ns[0]));
}

/* ---- all rows ---- */

uint64_t keel_net_bench_count(uint32_t kind, uint32_t element, uint64_t bytes, uint32_t world)
{
    uint64_t elements = bytes / keel_element_bytes(element);
    if (kind == KEEL_BARRIER)
        return 0;
    bool shared =
        kind != KEEL_ALL_REDUCE && kind != KEEL_REDUCE && kind != KEEL_BROADCAST && kind != KEEL_SEND;
    elements = shared ? elements / world : elements;
    return elements > 0 ? elements : 1;
}

static uint64_t bytes_for(uint32_t kind, uint32_t element, uint64_t count, uint32_t world)
{
    bool shared =
        kind != KEEL_ALL_REDUCE && kind != KEEL_REDUCE && kind != KEEL_BROADCAST && kind != KEEL_SEND;
    return count * keel_element_bytes(element) * (shared ? world : 1);
}

static enum keel_status all_sizes(struct bench *bench, struct keel_net_bench_case it)
{
    const struct keel_net_bench_plan *plan = bench->plan;
    uint64_t last = 0;
    for (uint64_t bytes = plan->min_bytes; bytes <= plan->max_bytes; bytes *= plan->factor) {
        it.iterations = 0;
        it.count = keel_net_bench_count(it.kind, it.element, bytes, bench->rank->world);
        it.bytes = bytes_for(it.kind, it.element, it.count, bench->rank->world);
        if (last != 0 && it.bytes == last) /* small sizes are the same where every rank has one element */
            continue;
        KEEL_TRY(measure(bench, &it));
        last = it.bytes;
        if (it.kind == KEEL_BARRIER || it.iterations == 0 || bytes > UINT64_MAX / plan->factor)
            break;
    }
    return KEEL_OK;
}

static enum keel_status all_ways(struct bench *bench, uint32_t kind, uint32_t element)
{
    const struct keel_net_bench_plan *plan = bench->plan;
    bool reduces = kind == KEEL_ALL_REDUCE || kind == KEEL_REDUCE_SCATTER || kind == KEEL_REDUCE;
    for (uint32_t o = 0; o < (reduces ? plan->order_count : 1); o++)
        for (uint32_t a = 0; a < plan->algorithm_count; a++)
            KEEL_TRY(all_sizes(bench, (struct keel_net_bench_case){.kind = kind,
                                                                   .element = element,
                                                                   .reduction = plan->reduction,
                                                                   .order = plan->orders[o],
                                                                   .algorithm = plan->algorithms[a]}));
    return KEEL_OK;
}

enum keel_status keel_net_bench_rank(struct keel_net_rank *rank, const struct keel_net_bench_plan *plan)
{
    struct bench *bench;
    uint64_t bytes = plan->max_bytes + 8 * (size_t)rank->world;
    KEEL_TRY(keel_alloc(1, sizeof *bench, &bench));
    bench->rank = rank;
    bench->plan = plan;
    bench->said_ns = keel_now_ns();
    enum keel_status status = keel_transport_alloc(bytes, &bench->part);
    if (status == KEEL_OK)
        status = keel_transport_alloc(bytes, &bench->result);
    if (status == KEEL_OK) {
        memset(bench->part, 0,
               keel_size(bytes)); /* pages that nobody has written do not cost what data costs */
        memset(bench->result, 0, keel_size(bytes));
    }
    for (uint32_t k = 0; k < plan->kind_count && status == KEEL_OK; k++)
        for (uint32_t e = 0; e < plan->element_count && status == KEEL_OK; e++)
            if (plan->kinds[k] != KEEL_SEND || rank->world > 1)
                status = all_ways(bench, plan->kinds[k], plan->elements[e]);
    if (status == KEEL_OK) { /* else an operation may still be lent them, until the process ends */
        keel_transport_free(bench->part);
        keel_transport_free(bench->result);
        keel_free(bench);
    }
    return status;
}

/* ---- figures ---- */

double keel_net_bench_bus_factor(uint32_t kind, uint32_t world)
{
    double n = world;
    switch (kind) {
    case KEEL_ALL_REDUCE:
        return 2 * (n - 1) / n;
    case KEEL_REDUCE_SCATTER:
    case KEEL_ALL_GATHER:
    case KEEL_ALL_TO_ALL:
    case KEEL_GATHER:
    case KEEL_SCATTER:
        return (n - 1) / n;
    default:
        return 1;
    }
}

static int by_time(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* The smallest that so many percent are not above (nearest rank). */
static double percentile_us(const uint64_t *sorted_ns, uint64_t count, uint64_t percent)
{
    uint64_t rank = (count * percent + 99) / 100;
    return (double)sorted_ns[rank > 0 ? rank - 1 : 0] / 1e3;
}

void keel_net_bench_sum_up(const struct keel_net_bench_case *it, uint32_t world, uint64_t *samples_ns,
                           uint64_t sample_count, uint64_t total_ns, uint64_t sent_bytes,
                           struct keel_net_bench_row *out)
{
    *out = (struct keel_net_bench_row){.it = *it};
    if (sample_count == 0)
        return;
    qsort(samples_ns, keel_size(sample_count), sizeof *samples_ns, by_time);
    out->mean_us = (double)total_ns / 1e3 / (double)sample_count;
    out->p50_us = percentile_us(samples_ns, sample_count, 50);
    out->p90_us = percentile_us(samples_ns, sample_count, 90);
    out->p99_us = percentile_us(samples_ns, sample_count, 99);
    out->max_us = (double)samples_ns[sample_count - 1] / 1e3;
    out->algorithm_gbs = out->mean_us > 0 ? (double)it->bytes / out->mean_us / 1e3 : 0;
    out->bus_gbs = out->algorithm_gbs * keel_net_bench_bus_factor(it->kind, world);
    out->sent_bytes = (double)sent_bytes / it->iterations;
}
