/* net_cases.h - the cases of `keel net check`: the same list on every rank, from the number of ranks alone.
 */
#ifndef KEEL_TRANSPORT_NET_CASES_H
#define KEEL_TRANSPORT_NET_CASES_H

#include "schedule.h"

struct keel_net_case {
    enum keel_collective_kind kind; /* SEND stands for: everybody sends to the next rank */
    enum keel_element element;
    enum keel_reduction reduction;
    enum keel_order order;
    enum keel_algorithm algorithm;
    uint32_t root;
    uint64_t count;
    uint64_t seed; /* the same for cases that differ in algorithm alone: they must give the same bits */
};
struct keel_net_case_filter {
    int32_t kind; /* only these; -1: all */
    bool full;    /* everything with everything */
};
/* Calls `visit` for each, in one order; stops at the first status that is not OK. */
enum keel_status keel_net_cases_each(uint32_t world, const struct keel_net_case_filter *filter,
                                     enum keel_status (*visit)(void *context, const struct keel_net_case *it),
                                     void *context);
/* "all-reduce of 17 f32, sum, exact, ring" */
void keel_net_case_name(const struct keel_net_case *it, char *out, size_t out_bytes);

/* Elements that `rank` gives and gets. */
uint64_t keel_net_case_given(const struct keel_net_case *it, uint32_t rank, uint32_t world);
uint64_t keel_net_case_got(const struct keel_net_case *it, uint32_t rank, uint32_t world);
/* Counts of the variants with counts: what goes from one rank to the other; all-gather-v: to anybody. */
uint64_t keel_net_case_count(const struct keel_net_case *it, uint32_t from, uint32_t to);
/* Not a reduction: whose element, and which of its, stands at `index` of the result of `rank`. */
void keel_net_case_source(const struct keel_net_case *it, uint32_t rank, uint32_t world, uint64_t index,
                          uint32_t *out_rank, uint64_t *out_index);
/* Reductions: which element of every part stands at `index` of the result of `rank`. */
uint64_t keel_net_case_reduced(const struct keel_net_case *it, uint32_t rank, uint64_t index);

#endif
