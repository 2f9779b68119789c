/* share_runs.c - see share_runs.h. */
#include "share_runs.h"
#include <keel/status.h>

uint32_t keel_share_runs_make(const uint32_t *shares, uint32_t share_count, struct keel_share_run *out)
{
    uint32_t runs = 0;
    for (uint32_t i = 0, next; i < share_count; i = next) {
        const uint32_t stride = i + 1 < share_count ? shares[i + 1] - shares[i] : 1;
        KEEL_ASSERT(shares[i] <= UINT16_MAX && stride > 0 && stride <= UINT16_MAX);
        for (next = i + 1; next < share_count && shares[next] - shares[next - 1] == stride; next++)
            ;
        out[runs++] = (struct keel_share_run){(uint16_t)shares[i], (uint16_t)stride, (uint16_t)(next - i)};
    }
    return runs;
}

bool keel_share_runs_have(const struct keel_share_run *runs, uint32_t run_count, uint32_t share)
{
    for (uint32_t i = 0; i < run_count; i++) {
        const uint32_t distance = share - runs[i].first;
        if (share >= runs[i].first && distance % runs[i].stride == 0 &&
            distance / runs[i].stride < runs[i].count)
            return true;
    }
    return false;
}

int keel_share_runs_compare(const void *a, const void *b)
{
    const struct keel_share_run *x = a, *y = b;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    if (x->stride != y->stride)
        return x->stride < y->stride ? -1 : 1;
    return x->count < y->count ? -1 : x->count > y->count;
}
