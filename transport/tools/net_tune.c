/* net_tune.c - one rank of `keel net tune`.
 *
 * Algorithms take turns, so that what disturbs the machine disturbs all of them. A turn is several operations
 * in a row, and takes as long as the slowest rank took; of the turns the median counts. Rank 0 looks for the
 * figures, once, and tells the host: so there is nothing to agree about. */
#include "net_tune.h"

#include "cost_fit.h"
#include "group.h"
#include "schedule_build.h"

#include <keel/clock.h>
#include <keel/memory.h>

enum { OPERATIONS_MAX = 64 };
#define TURN_NS (2 * KEEL_NS_PER_MS)

/* An algorithm that takes part, and the order in which it is run. */
struct way {
    enum keel_algorithm algorithm;
    enum keel_order order;
    bool in_order;
    uint64_t median_ns;
};

struct tune {
    struct keel_net_rank *rank;
    const struct keel_net_tune_plan *plan;
    uint8_t *part, *result;
    struct way ways[2 * KEEL_ALGORITHM_COUNT];
    uint32_t way_count;
    struct keel_cost_sample samples[KEEL_NET_TUNE_SAMPLES];
    uint32_t sample_count;
    struct keel_net_tune_row rows[KEEL_NET_TUNE_SAMPLES];
    uint32_t row_count;
};

/* ---- measuring ---- */

static struct keel_net_bench_case case_of(const struct tune *tune, uint32_t kind, uint64_t bytes,
                                          const struct way *way)
{
    struct keel_net_bench_case it = {
        .kind = kind, .element = KEEL_ELEMENT_F32, .order = way->order, .algorithm = way->algorithm};
    keel_net_bench_resize(&it, bytes, tune->rank->world);
    return it;
}

static struct keel_collective collective_of(const struct keel_net_bench_case *it)
{
    return (struct keel_collective){
        .kind = it->kind, .element = it->element, .order = it->order, .count = it->count};
}

/* Every rank has its times; everybody gets the longest of each. */
static enum keel_status agree(struct tune *tune, const uint64_t *mine, uint64_t *longest, uint64_t count)
{
    struct keel_net_rank *rank = tune->rank;
    const void *parts[] = {mine};
    struct keel_collective most = {.kind = KEEL_ALL_REDUCE,
                                   .sequence = rank->sequence++,
                                   .element = KEEL_ELEMENT_I64,
                                   .reduction = KEEL_MAX,
                                   .count = count,
                                   .parts = parts,
                                   .part_count = 1,
                                   .result = longest};
    return keel_group_run(rank->group, &most, keel_net_rank_deadline(rank));
}

static enum keel_status take_turn(struct tune *tune, const struct keel_net_bench_case *it,
                                  uint64_t operations, uint64_t *out_ns)
{
    const struct keel_net_bench_case meet = {.kind = KEEL_BARRIER};
    KEEL_TRY(keel_net_bench_once(tune->rank, &meet, NULL, NULL));
    uint64_t begun_ns = keel_now_ns();
    for (uint64_t k = 0; k < operations; k++) {
        KEEL_TRY(keel_net_bench_once(tune->rank, it, tune->part, tune->result));
        KEEL_TRY(keel_net_rank_alive(tune->rank, keel_now_ns()));
    }
    *out_ns = keel_now_ns() - begun_ns;
    return KEEL_OK;
}

/* All ways by turns. The first turn makes schedules and connections, the second says how many operations fit
 * into one. */
static enum keel_status measure(struct tune *tune, uint32_t kind, uint64_t bytes)
{
    uint64_t mine[2 * KEEL_ALGORITHM_COUNT], longest[2 * KEEL_ALGORITHM_COUNT];
    uint64_t operations[2 * KEEL_ALGORITHM_COUNT];
    uint64_t turns[2 * KEEL_ALGORITHM_COUNT][KEEL_NET_TUNE_ROUNDS_MAX];
    for (uint64_t round = 0; round < tune->plan->rounds + 2; round++) {
        for (uint32_t turn = 0; turn < tune->way_count; turn++) {
            uint32_t k = (uint32_t)((turn + round) % tune->way_count); /* nobody is always behind the same */
            struct keel_net_bench_case it = case_of(tune, kind, bytes, &tune->ways[k]);
            KEEL_TRY(take_turn(tune, &it, round < 2 ? 1 : operations[k], &mine[k]));
        }
        KEEL_TRY(agree(tune, mine, longest, tune->way_count));
        for (uint32_t k = 0; k < tune->way_count; k++) {
            uint64_t fit = TURN_NS / (longest[k] + 1) + 1;
            if (round < 2)
                operations[k] = fit < OPERATIONS_MAX ? fit : OPERATIONS_MAX;
            else
                turns[k][round - 2] = longest[k] / operations[k];
        }
    }
    for (uint32_t k = 0; k < tune->way_count; k++) {
        keel_net_bench_sort(turns[k], tune->plan->rounds);
        tune->ways[k].median_ns = turns[k][tune->plan->rounds / 2];
    }
    return KEEL_OK;
}

/* The same schedule under another name. */
static bool is_flat_again(uint32_t kind, enum keel_algorithm algorithm)
{
    bool own = kind == KEEL_ALL_REDUCE || kind == KEEL_REDUCE || kind == KEEL_BROADCAST;
    return algorithm == KEEL_ALGORITHM_DIRECT && !own;
}

/* Who takes part: in exact order, and in native order those that cannot in exact. */
static void find_ways(struct tune *tune, uint32_t kind, uint64_t bytes)
{
    tune->way_count = 0;
    for (uint32_t order = 0; order < 2; order++)
        for (int algorithm = KEEL_ALGORITHM_FLAT; algorithm < KEEL_ALGORITHM_COUNT; algorithm++) {
            struct way way = {.algorithm = (enum keel_algorithm)algorithm, .order = (enum keel_order)order};
            struct keel_net_bench_case it = case_of(tune, kind, bytes, &way);
            struct keel_collective what = collective_of(&it);
            struct keel_collective_key key = keel_plan_key(tune->rank->group, &what, way.algorithm);
            struct keel_facts facts = keel_key_facts(&key);
            way.in_order = keel_key_in_order(&key, &facts);
            if (way.in_order == (order == KEEL_ORDER_EXACT) && keel_key_offered(&key, &facts) &&
                !is_flat_again(kind, way.algorithm))
                tune->ways[tune->way_count++] = way;
        }
}

/* ---- keeping ---- */

static void keep(struct tune *tune, uint32_t kind, enum keel_order order, uint64_t bytes)
{
    struct keel_net_tune_row *row = &tune->rows[tune->row_count];
    *row = (struct keel_net_tune_row){.kind = kind, .order = order, .bytes = bytes};
    for (uint32_t k = 0; k < tune->way_count; k++) {
        const struct way *way = &tune->ways[k];
        if (order == KEEL_ORDER_EXACT && !way->in_order)
            continue;
        struct keel_net_bench_case it = case_of(tune, kind, bytes, way);
        it.order = order;
        struct keel_collective what = collective_of(&it);
        tune->samples[tune->sample_count++] =
            (struct keel_cost_sample){.key = keel_plan_key(tune->rank->group, &what, way->algorithm),
                                      .bytes = keel_choose_bytes(tune->rank->group, &what),
                                      .measured_ns = way->median_ns,
                                      .contest = tune->row_count};
        row->median_ns[way->algorithm] = way->median_ns;
    }
    tune->row_count++;
}

static enum keel_status all_sizes(struct tune *tune, uint32_t kind)
{
    const struct keel_net_tune_plan *plan = tune->plan;
    uint64_t last = UINT64_MAX;
    for (uint64_t wanted = plan->min_bytes; wanted <= plan->max_bytes; wanted *= plan->factor) {
        uint64_t bytes = case_of(tune, kind, wanted, &(struct way){.algorithm = KEEL_ALGORITHM_AUTO}).bytes;
        if (bytes == last) /* every rank has one element: as the size before */
            continue;
        last = bytes;
        find_ways(tune, kind, bytes);
        if (tune->sample_count + 2 * tune->way_count > KEEL_NET_TUNE_SAMPLES)
            return keel_fail(KEEL_LIMIT, "more than %d times to measure: fewer sizes, or fewer operations",
                             KEEL_NET_TUNE_SAMPLES);
        KEEL_TRY(measure(tune, kind, bytes));
        keep(tune, kind, KEEL_ORDER_EXACT, bytes);
        if (keel_kind_reduces((enum keel_collective_kind)kind))
            keep(tune, kind, KEEL_ORDER_NATIVE, bytes);
        if (kind == KEEL_BARRIER || wanted > UINT64_MAX / plan->factor)
            break;
    }
    return KEEL_OK;
}

/* ---- looking for figures ---- */

static enum keel_status fit_and_tell(struct tune *tune)
{
    const struct keel_cost_model *before = &tune->rank->group->costs;
    struct keel_cost_model after = *before;
    if (after.host_processors == 0)
        after.host_processors = keel_cpu_installed();
    keel_cost_fit(tune->samples, tune->sample_count, &after);
    for (uint32_t first = 0, among, row = 0; first < tune->sample_count; first += among, row++) {
        uint32_t fastest, taken[2];
        keel_cost_contest(tune->samples, tune->sample_count, first, before, &taken[0], &fastest);
        among = keel_cost_contest(tune->samples, tune->sample_count, first, &after, &taken[1], &fastest);
        tune->rows[row].fastest = tune->samples[fastest].key.algorithm;
        tune->rows[row].taken_before = tune->samples[taken[0]].key.algorithm;
        tune->rows[row].taken_after = tune->samples[taken[1]].key.algorithm;
        KEEL_TRY(keel_net_rank_say(tune->rank, KEEL_NET_TUNE_ROW, &tune->rows[row], sizeof tune->rows[row]));
    }
    return keel_net_rank_say(tune->rank, KEEL_NET_TUNE_COSTS, &after, sizeof after);
}

enum keel_status keel_net_tune_rank(struct keel_net_rank *rank, const struct keel_net_tune_plan *plan)
{
    struct tune *tune;
    KEEL_TRY(keel_alloc(1, sizeof *tune, &tune));
    tune->rank = rank;
    tune->plan = plan;
    enum keel_status status = keel_net_bench_memory(rank, plan->max_bytes, &tune->part, &tune->result);
    for (uint32_t k = 0; k < plan->kind_count && status == KEEL_OK; k++)
        status = all_sizes(tune, plan->kinds[k]);
    if (status == KEEL_OK && rank->rank == 0)
        status = fit_and_tell(tune);
    if (status == KEEL_OK) { /* else an operation may still be lent them, until the process ends */
        keel_transport_free(tune->part);
        keel_transport_free(tune->result);
        keel_free(tune);
    }
    return status;
}
