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
#define ROW_NS (KEEL_NS_PER_S / 3)

struct bench {
    struct keel_net_rank *rank;
    const struct keel_net_bench_plan *plan;
    uint8_t *part, *result; /* max_bytes and a little more */
    struct {
        struct keel_net_bench_times head;
        uint64_t ns[KEEL_NET_BENCH_ITERATIONS];
    } told;
    uint32_t row;
};

/* ---- one operation ---- */

enum keel_status keel_net_bench_once(struct keel_net_rank *rank, const struct keel_net_bench_case *it,
                                     const void *part, void *result)
{
    struct keel_collective what = {.kind = it->kind,
                                   .element = it->element,
                                   .reduction = it->reduction,
                                   .order = it->order,
                                   .algorithm = it->algorithm,
                                   .count = it->count};
    return keel_net_rank_run(rank, what, part, result);
}

static enum keel_status run(struct bench *bench, const struct keel_net_bench_case *it)
{
    return keel_net_bench_once(bench->rank, it, bench->part, bench->result);
}

static enum keel_status together(struct bench *bench)
{
    return run(bench, &(struct keel_net_bench_case){.kind = KEEL_BARRIER});
}

/* ---- one row ---- */

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
        KEEL_TRY(keel_net_rank_alive(bench->rank, keel_now_ns()));
    }
    for (uint32_t k = 0; k < PROBES && bench->plan->iterations == 0; k++) {
        uint64_t begun_ns = keel_now_ns();
        KEEL_TRY(run(bench, it));
        uint64_t took_ns = keel_now_ns() - begun_ns;
        shortest_ns = took_ns < shortest_ns ? took_ns : shortest_ns;
    }
    return agree(bench, shortest_ns, out);
}

static enum keel_status iterate(struct bench *bench, struct keel_net_bench_case *it, uint32_t iterations)
{
    struct keel_transport_stats before, after;
    KEEL_TRY(together(bench));
    keel_endpoint_stats(bench->rank->endpoint, &before);
    uint64_t at_ns = keel_now_ns(), begun_ns = at_ns;
    for (uint32_t k = 0; k < iterations; k++) {
        KEEL_TRY(run(bench, it));
        uint64_t now_ns = keel_now_ns();
        bench->told.ns[k] = now_ns - at_ns;
        at_ns = now_ns;
        KEEL_TRY(keel_net_rank_alive(bench->rank, now_ns));
    }
    keel_endpoint_stats(bench->rank->endpoint, &after);
    it->iterations = iterations;
    bench->told.head.total_ns = at_ns - begun_ns;
    bench->told.head.sent_bytes = after.data_sent - before.data_sent;
    return KEEL_OK;
}

/* An algorithm that cannot do it says so in the first operation, which is none of the warming up where that
 * has none. */
static enum keel_status measure(struct bench *bench, struct keel_net_bench_case *it)
{
    uint32_t iterations;
    struct keel_net_bench_times *head = &bench->told.head;
    *head = (struct keel_net_bench_times){.row = bench->row++};
    enum keel_status status = warm_up(bench, it, &iterations);
    if (status == KEEL_OK)
        status = iterate(bench, it, iterations);
    if (status != KEEL_OK && status != KEEL_UNSUPPORTED && status != KEEL_LIMIT)
        return status;
    head->it = *it;
    return keel_net_rank_say(bench->rank, KEEL_NET_BENCH_FRAME, &bench->told,
                             (uint32_t)(sizeof *head + it->iterations * sizeof bench->told.ns[0]));
}

/* ---- all rows ---- */

/* Into how many counts the bytes of a row are cut. */
static uint32_t shares_of(uint32_t kind, uint32_t world)
{
    bool whole =
        kind == KEEL_ALL_REDUCE || kind == KEEL_REDUCE || kind == KEEL_BROADCAST || kind == KEEL_SEND;
    return whole ? 1 : world;
}

void keel_net_bench_resize(struct keel_net_bench_case *it, uint64_t bytes, uint32_t world)
{
    uint64_t share = (uint64_t)keel_element_bytes(it->element) * shares_of(it->kind, world);
    it->count = bytes > share ? bytes / share : 1;
    if (it->kind == KEEL_BARRIER)
        it->count = 0;
    it->bytes = it->count * share;
}

static enum keel_status all_sizes(struct bench *bench, struct keel_net_bench_case it)
{
    const struct keel_net_bench_plan *plan = bench->plan;
    uint64_t last = 0;
    for (uint64_t bytes = plan->min_bytes; bytes <= plan->max_bytes; bytes *= plan->factor) {
        it.iterations = 0;
        keel_net_bench_resize(&it, bytes, bench->rank->world);
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
    for (uint32_t o = 0; o < (keel_kind_reduces(kind) ? plan->order_count : 1); o++)
        for (uint32_t a = 0; a < plan->algorithm_count; a++)
            KEEL_TRY(all_sizes(bench, (struct keel_net_bench_case){.kind = kind,
                                                                   .element = element,
                                                                   .reduction = plan->reduction,
                                                                   .order = plan->orders[o],
                                                                   .algorithm = plan->algorithms[a]}));
    return KEEL_OK;
}

enum keel_status keel_net_bench_memory(const struct keel_net_rank *rank, uint64_t max_bytes,
                                       uint8_t **out_part, uint8_t **out_result)
{
    uint64_t bytes = max_bytes + 8 * (size_t)rank->world;
    KEEL_TRY(keel_transport_alloc(bytes, out_part));
    KEEL_TRY(keel_transport_alloc(bytes, out_result));
    memset(*out_part, 0, keel_size(bytes));
    memset(*out_result, 0, keel_size(bytes));
    return KEEL_OK;
}

enum keel_status keel_net_bench_rank(struct keel_net_rank *rank, const struct keel_net_bench_plan *plan)
{
    struct bench *bench;
    KEEL_TRY(keel_transport_alloc(sizeof *bench, &bench)); /* lent as what it points at */
    memset(bench, 0, sizeof *bench);
    bench->rank = rank;
    bench->plan = plan;
    enum keel_status status = keel_net_bench_memory(rank, plan->max_bytes, &bench->part, &bench->result);
    for (uint32_t k = 0; k < plan->kind_count && status == KEEL_OK; k++)
        for (uint32_t e = 0; e < plan->element_count && status == KEEL_OK; e++)
            if (plan->kinds[k] != KEEL_SEND || rank->world > 1)
                status = all_ways(bench, plan->kinds[k], plan->elements[e]);
    if (status == KEEL_OK) { /* else an operation may still be lent them, until the process ends */
        keel_transport_free(bench->part);
        keel_transport_free(bench->result);
        keel_transport_free(bench);
    }
    return status;
}

/* ---- figures ---- */

double keel_net_bench_bus_factor(uint32_t kind, uint32_t world)
{
    const struct keel_kind *row = keel_kind(kind);
    const double others = (double)(world - 1) / world;
    if (kind == KEEL_ALL_REDUCE)
        return 2 * others;
    return row->part == KEEL_SHAPE_BLOCKS || row->result == KEEL_SHAPE_BLOCKS ? others : 1;
}

static int by_time(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

void keel_net_bench_sort(uint64_t *ns, uint64_t count)
{
    qsort(ns, keel_size(count), sizeof *ns, by_time);
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
    keel_net_bench_sort(samples_ns, sample_count);
    out->mean_us = (double)total_ns / 1e3 / (double)sample_count;
    out->p50_us = percentile_us(samples_ns, sample_count, 50);
    out->p90_us = percentile_us(samples_ns, sample_count, 90);
    out->p99_us = percentile_us(samples_ns, sample_count, 99);
    out->max_us = (double)samples_ns[sample_count - 1] / 1e3;
    out->algorithm_gbs = out->mean_us > 0 ? (double)it->bytes / out->mean_us / 1e3 : 0;
    out->bus_gbs = out->algorithm_gbs * keel_net_bench_bus_factor(it->kind, world);
    out->sent_bytes = (double)sent_bytes / it->iterations;
}
