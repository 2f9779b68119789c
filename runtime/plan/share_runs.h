/* share_runs.h - sets of shares as runs with a stride: what a rank holds of thousands is a few numbers.
 *
 * A rank holds its own share, and copies of those of one node, or of every k-th position (holdings.h): one or
 * two runs, whatever the number of ranks. Pure. */
#ifndef KEEL_SHARE_RUNS_H
#define KEEL_SHARE_RUNS_H

#include <stdbool.h>
#include <stdint.h>

/* Shares first, first + stride, ...: `count` of them, 1 at least. Over the wire between equal binaries. */
struct keel_share_run {
    uint16_t first, stride, count;
};

/* The runs of so many shares, which ascend; at most as many as these: returns how many. */
uint32_t keel_share_runs_make(const uint32_t *shares, uint32_t share_count, struct keel_share_run *out);

bool keel_share_runs_have(const struct keel_share_run *runs, uint32_t run_count, uint32_t share);

/* Ascending by first, stride and count: for qsort. */
int keel_share_runs_compare(const void *a, const void *b);

#endif
