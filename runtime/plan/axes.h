/* axes.h - which of a view's ranks have which tensor slices, and which of them compute together.
 *
 * `tensor` places share the slices, a contiguous run each; a *column* is the ranks of one place, which have
 * the same state, and a data position is a rank of each column. A pure function of what ranks have: all of
 * them draw it alike. Ranks keep their places where they can, since a place is state; newcomers take the
 * emptiest. Ranks beyond the product of the axes carry no shard, and keep the state of their place for
 * others. */
#ifndef KEEL_AXES_H
#define KEEL_AXES_H

#include <keel/kernels.h>
#include <keel/limits.h>
#include <keel/node.h>
#include <stdbool.h>
#include <stdint.h>

struct keel_axes {
    uint32_t ranks, tensor, data;                              /* data positions that are complete */
    uint16_t place[KEEL_MEMBERS_MAX], index[KEEL_MEMBERS_MAX]; /* by rank: its column, and its number there */
    uint16_t column_count[KEEL_SLICES_MAX], first[KEEL_SLICES_MAX]; /* by place: its ranks, and the first
                                                                      of them; KEEL_RANK_NONE: none */
};

enum { KEEL_NO_PLACE = UINT16_MAX };

/* Places that so many ranks have: as many as were asked for, fewer where there are not so many ranks. */
uint32_t keel_axes_tensor(uint32_t ranks, uint32_t asked);
/* `had`: by rank its place among `tensor`, or KEEL_NO_PLACE; `stays`: who must not be given another one than
 * that, since others need what only it has. */
void keel_axes_find(const uint16_t *had, const bool *stays, uint32_t ranks, uint32_t tensor,
                    struct keel_axes *out);
/* The rank of a place at an index; which is there. Looks at all ranks. */
uint32_t keel_axes_rank(const struct keel_axes *axes, uint32_t place, uint32_t index);
/* All of a place, column_count of them, by index. */
void keel_axes_column(const struct keel_axes *axes, uint32_t place, uint16_t *out);
/* First of `slices` that a place has; of place `tensor`: the end. */
uint32_t keel_axes_slice(uint32_t slices, uint32_t tensor, uint32_t place);
/* The data position that carries a shard. */
uint32_t keel_axes_position(uint32_t shards, uint32_t data, uint32_t shard);

#endif
