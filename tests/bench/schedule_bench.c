/* schedule_bench.c - how long each collective of 4,096 ranks would take, by every schedule.
 *
 * Not measured: simulated event by event from the cost model's terms (transport/schedule_time.h), beside the
 * closed form by which AUTO chooses. 64 hosts of 64 ranks; within a host 0.5 us a message, 0.2 us between two
 * and 10 GB/s; between hosts 14 us, 1 us, 1.25 GB/s; sums at 20 GB/s. 8 bytes and 1 MiB. Where ranks are not
 * alike and have more steps than a bench should simulate, it is a machine of 512 ranks on 8 hosts. One JSON
 * object a line; `value` is the simulation, `peer` the closed form. Connections and the memory of the
 * schedule are those of the root or of a rank beside it, whichever has more. */
#include "transport/schedule_time.h"

#include <keel/memory.h>
#include <keel/status.h>

enum { RANKS = 4096, RANKS_FEWER = 512, HOST_RANKS = 64 };

static const uint64_t steps_most = 1000000;
static uint16_t host_of[RANKS];

static const struct keel_cost_model model = {{500, 200, 100}, {14000, 1000, 800}, 50, 0};

/* Of one rank. */
struct needs {
    uint64_t steps, bytes;
    uint32_t connections;
};

static void print_line(const struct keel_collective_key *key, uint64_t bytes, const struct needs *needs,
                       uint64_t simulated_ns)
{
    uint64_t closed_ns = keel_schedule_cost_ns(key, bytes, &model);
    bool chosen = keel_schedule_choose(key, bytes, &model) == key->algorithm;
    printf(
        "{\"room\": \"transport\", \"figure\": \"%s by %s, %u ranks, %lu B%s%s, %u connections, %lu KiB\", "
        "\"value\": %.1f, \"unit\": "
        "\"us simulated\", \"peer\": \"closed form\", \"peer_value\": %.1f, \"ratio\": %.2f, \"goal\": null, "
        "\"met\": null}\n",
        keel_collective_name(key->kind), keel_algorithm_name(key->algorithm), key->rank_count,
        (unsigned long)bytes, key->exact ? ", exact" : "", chosen ? ", AUTO" : "", needs->connections,
        (unsigned long)(needs->bytes + 1023) / 1024, (double)simulated_ns / 1000, (double)closed_ns / 1000,
        closed_ns > 0 ? (double)simulated_ns / (double)closed_ns : 1.0);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Of the root and of a rank beside it, whichever has more. No steps: the algorithm cannot. */
static struct needs needs_of(const struct keel_collective_key *key)
{
    struct needs most = {0};
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct keel_schedule *schedule = NULL;
        uint64_t before = keel_memory_stats().live_bytes;
        if (!time_make(key, key->root + rank, &schedule))
            return (struct needs){0};
        most.bytes = larger(most.bytes, keel_memory_stats().live_bytes - before);
        most.steps = larger(most.steps, schedule->step_count);
        most.connections = (uint32_t)larger(most.connections, schedule->peer_count);
        keel_schedule_free(schedule);
    }
    return most;
}

/* Hosts are alike in these: a step's partner is within the host for all ranks or for none, or, flat, for as
 * many. */
static bool ranks_alike(const struct keel_collective_key *key)
{
    bool rooted = key->kind == KEEL_BROADCAST || key->kind == KEEL_REDUCE || key->kind == KEEL_GATHER ||
                  key->kind == KEEL_SCATTER;
    return !rooted && key->algorithm != KEEL_ALGORITHM_TREE && key->algorithm != KEEL_ALGORITHM_RING &&
           key->algorithm != KEEL_ALGORITHM_BRUCK;
}

static void run(struct keel_collective_key key, uint64_t bytes)
{
    struct needs needs = needs_of(&key);
    uint64_t ns = 0, steps = needs.steps * key.rank_count;
    bool alike = steps > steps_most && ranks_alike(&key);
    if (steps > steps_most && !alike) {
        key.rank_count = RANKS_FEWER;
        needs = needs_of(&key);
    }
    if (steps > 0 && (alike ? time_alike : time_whole)(&key, bytes, &model, &ns))
        print_line(&key, bytes, &needs, ns);
}

int main(void)
{
    const uint64_t sizes[] = {8, UINT64_C(1) << 20};
    for (uint32_t rank = 0; rank < RANKS; rank++)
        host_of[rank] = (uint16_t)(rank / HOST_RANKS);
    for (int kind = 0; kind < KEEL_SEND; kind++)
        for (int algorithm = KEEL_ALGORITHM_FLAT; algorithm < KEEL_ALGORITHM_COUNT; algorithm++)
            for (int k = 0; k < (kind == KEEL_BARRIER ? 1 : 2); k++) {
                struct keel_collective_key key = {.kind = (enum keel_collective_kind)kind,
                                                  .algorithm = (enum keel_algorithm)algorithm,
                                                  .rank_count = RANKS,
                                                  .host_of = host_of};
                if (kind != KEEL_ALL_GATHER_V && kind != KEEL_ALL_TO_ALL_V)
                    run(key, sizes[k]);
            }
    return 0;
}
