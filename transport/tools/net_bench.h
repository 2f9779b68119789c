/* net_bench.h - `keel net bench`: what is measured, what its ranks tell its host, and the figures made of it.
 */
#ifndef KEEL_TRANSPORT_NET_BENCH_H
#define KEEL_TRANSPORT_NET_BENCH_H

#include "net_rendezvous.h"
#include "schedule.h"

enum {
    KEEL_NET_BENCH_LIST = 16,         /* operations, elements, algorithms, orders that may be asked for */
    KEEL_NET_BENCH_ITERATIONS = 2000, /* at most */
    KEEL_NET_BENCH_ROWS = 8192
};

/* One line: an operation of one size, done one way. */
struct keel_net_bench_case {
    uint32_t kind, element, reduction, order, algorithm;
    uint32_t iterations; /* measured; 0: the algorithm cannot do that */
    uint64_t bytes; /* as nccl-tests count: of the whole vector; of gathers and scatters, of all ranks' */
    uint64_t count; /* elements, as struct keel_collective has it */
};
/* What a rank tells about row `row`; the times of the iterations follow, uint64_t nanoseconds. */
struct keel_net_bench_times {
    struct keel_net_bench_case it;
    uint32_t row, unused;
    uint64_t total_ns;   /* all iterations, one behind the other */
    uint64_t sent_bytes; /* data that this rank sent meanwhile, without headers */
};
enum { KEEL_NET_BENCH_FRAME = KEEL_NET_FRAME_OWN };

struct keel_net_bench_plan {
    uint32_t kinds[KEEL_NET_BENCH_LIST], kind_count;
    uint32_t elements[KEEL_NET_BENCH_LIST], element_count;
    uint32_t algorithms[KEEL_NET_BENCH_LIST], algorithm_count;
    uint32_t orders[2], order_count;
    uint32_t reduction;
    uint64_t min_bytes, max_bytes, factor;
    uint64_t iterations, warmup; /* iterations 0: as many as fit into a third of a second, at least five */
};
/* Set the count of a case for so many bytes: at least one element, but for a barrier; and its bytes to those
 * that this count has. */
void keel_net_bench_resize(struct keel_net_bench_case *it, uint64_t bytes, uint32_t world);
/* A rank's buffers, for rows of up to so many bytes. Every page is written once: those that nobody has
 * written do not cost what data costs. Of keel_transport_alloc; on failure they go with the process. */
enum keel_status keel_net_bench_memory(const struct keel_net_rank *rank, uint64_t max_bytes,
                                       uint8_t **out_part, uint8_t **out_result);
/* One operation, root 0, on them. */
enum keel_status keel_net_bench_once(struct keel_net_rank *rank, const struct keel_net_bench_case *it,
                                     const void *part, void *result);
/* Names of operations with commas between; false: one is unknown, or too many. */
bool keel_net_bench_operations(const char *names, uint32_t kinds[KEEL_NET_BENCH_LIST], uint32_t *out_count);
/* --min, --max and --factor of a command: INVALID, with the one that is wrong. */
enum keel_status keel_net_bench_sizes(const struct keel_command *cmd, uint64_t min_bytes, uint64_t max_bytes,
                                      uint64_t factor);
/* A rank's work. */
enum keel_status keel_net_bench_rank(struct keel_net_rank *rank, const struct keel_net_bench_plan *plan);

void keel_net_bench_sort(uint64_t *ns, uint64_t count); /* ascending */

/* A finished line. */
struct keel_net_bench_row {
    struct keel_net_bench_case it;
    double mean_us;                        /* of all ranks and iterations: nccl-tests' time */
    double p50_us, p90_us, p99_us, max_us; /* of all iterations of all ranks */
    double algorithm_gbs, bus_gbs;         /* 10^9 bytes a second */
    double sent_bytes;                     /* of all ranks together, for one operation */
};
/* bus_gbs / algorithm_gbs (nccl-tests, PERFORMANCE.md). */
double keel_net_bench_bus_factor(uint32_t kind, uint32_t world);
/* samples: of all ranks; sorted on return. */
void keel_net_bench_sum_up(const struct keel_net_bench_case *it, uint32_t world, uint64_t *samples_ns,
                           uint64_t sample_count, uint64_t total_ns, uint64_t sent_bytes,
                           struct keel_net_bench_row *out);

/* A page with a plot and a table, in one file that needs nothing else. */
enum keel_status keel_net_bench_page(const char *path, const struct keel_net_bench_row *rows,
                                     uint32_t row_count, uint32_t world, const char *carrier);

#endif
