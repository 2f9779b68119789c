/* table_internal.h - what table.c does for expert.c: rows gathered, ids sorted. */
#ifndef KEEL_TABLE_INTERNAL_H
#define KEEL_TABLE_INTERNAL_H

#include "kernels_internal.h"

/* Of `rows` rows of n floats, or int32. */
static inline uint64_t row_bytes(uint32_t rows, uint32_t n)
{
    return KEEL_BYTES(rows, n, sizeof(float));
}

/* Ids in ascending order, equal ones in that of their positions; those outside [0, limit) last, as `limit`.
 * Afterwards the workspace (keel_sort_workspace_bytes) begins with the keys [count], then their positions. */
enum keel_status keel_sort(struct keel_kernels *kernels, struct keel_buffer *ids, uint32_t count,
                           uint32_t limit, struct keel_buffer *workspace, struct keel_launch_list *list);

/* y[i, :] = (weights[ids[i]] *) x[ids[i] / per, :], zeros where ids[i] is outside [0, limit); weights may be
 * NULL. ids begin `ids_from` words into their buffer. */
struct keel_row_gather {
    uint32_t count, n, limit, per;
    uint64_t ids_from;
    struct keel_buffer *ids, *weights, *x, *y;
};
enum keel_status keel_gather_rows(struct keel_kernels *kernels, const struct keel_row_gather *op,
                                  struct keel_launch_list *list);

#endif
