/* load_plan.h - which chunks a set of boxes needs, in the order of the shards' tables, which is the one in
 * which our writers lay them down, and what of each goes where. No chunk is read: of a merged index the parts
 * that are asked for, and the indexes of shards that hold something.
 *
 * A chunk stands in the plan once, whatever number of boxes want something of it: all its uses follow each
 * other. A rounded copy (codec same) needs its master's chunks. 16 bytes a use, and 152 for each part of a
 * box that one piece holds. */
#ifndef KEEL_CKPT_LOAD_PLAN_H
#define KEEL_CKPT_LOAD_PLAN_H

#include "snapshot.h"

#define KEEL_USE_STORED UINT32_MAX
#define KEEL_PART_NONE  UINT32_MAX

/* A part of a box, from one piece. */
struct keel_load_part {
    uint32_t load, piece;
    uint32_t shard, record; /* of the piece */
    uint32_t failed; /* the part that this one stands in for, or KEEL_PART_NONE: its piece is damaged here */
    struct keel_box box;
};

struct keel_load_use {
    uint32_t shard, chunk; /* to be decoded: number in the shard's table */
    uint32_t part;
    uint32_t copy_chunk; /* KEEL_USE_STORED, or the chunk (in the piece's record) that is its rounding */
};

struct keel_load_plan {
    struct keel_snapshot *snapshot; /* borrowed, as are loads */
    const struct keel_load *loads;
    uint32_t load_count;
    struct keel_load_part *parts; /* owned; only grows */
    struct keel_load_use *uses;   /* owned; by shard, chunk, part */
    size_t part_count, part_capacity, use_count, use_capacity;
    uint64_t wanted_bytes; /* raw bytes of the boxes */
    uint64_t needed_bytes; /* stored bytes of the chunks, each once; without bases */
};

/* NOT_FOUND, MISMATCH, INVALID: of a box; CORRUPT: a hole, or of a merged index or a shard that is opened for
 * it. */
enum keel_status keel_load_plan_make(struct keel_snapshot *snapshot, const struct keel_load *loads,
                                     uint32_t count, struct keel_load_plan *out);
void keel_load_plan_fini(struct keel_load_plan *plan);

/* Uses that failed: replace all uses of the plan by others that bring the same elements from other pieces.
 * When there are none, CORRUPT, and *out_index is the number of the first of them that has no way out. */
enum keel_status keel_load_plan_again(struct keel_load_plan *plan, const struct keel_load_use *failed,
                                      size_t count, size_t *out_index);

/* A use takes those elements of its part whose index in the piece is in [*out_from, *out_to). */
void keel_load_use_range(const struct keel_load_plan *plan, const struct keel_load_use *use,
                         uint64_t *out_from, uint64_t *out_to);
/* How many uses, from `first` on, are of one chunk. */
size_t keel_load_plan_uses(const struct keel_load_plan *plan, size_t first);

#endif
