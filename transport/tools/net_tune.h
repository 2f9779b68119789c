/* net_tune.h - `keel net tune`: every algorithm by turns, and the figures of the cost model that fit best. */
#ifndef KEEL_TRANSPORT_NET_TUNE_H
#define KEEL_TRANSPORT_NET_TUNE_H

#include "net_bench.h"

enum { KEEL_NET_TUNE_ROUNDS_MAX = 31, KEEL_NET_TUNE_SAMPLES = 4096 };

struct keel_net_tune_plan {
    uint32_t kinds[KEEL_NET_BENCH_LIST], kind_count;
    uint64_t min_bytes, max_bytes, factor, rounds;
};

/* A contest, as rank 0 tells it: the same operation by every algorithm that can. */
struct keel_net_tune_row {
    uint32_t kind, order;
    uint64_t bytes;
    uint64_t median_ns[KEEL_ALGORITHM_COUNT];    /* 0: not offered; of AUTO: 0 */
    uint32_t fastest, taken_before, taken_after; /* algorithms; by the figures before, and by those found */
    uint32_t unused;
};
/* The payload of KEEL_NET_TUNE_COSTS is a struct keel_cost_model, and comes last. */
enum { KEEL_NET_TUNE_ROW = KEEL_NET_FRAME_OWN, KEEL_NET_TUNE_COSTS };

/* A rank's work. */
enum keel_status keel_net_tune_rank(struct keel_net_rank *rank, const struct keel_net_tune_plan *plan);

#endif
