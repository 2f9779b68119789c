/* retain.h - which generations of a run go: the decision alone, without a disk. gc_remove.c carries it out.
 */
#ifndef KEEL_CKPT_RETAIN_H
#define KEEL_CKPT_RETAIN_H

#include "generation_index.h"

struct keel_retain_plan {
    uint32_t *goes; /* numbers of generations, in the order in which they are to go; owned */
    uint32_t count;
    bool *stays;             /* of each attempt; owned */
    uint64_t last_made_step; /* of the committed attempt that was made last; 0: there is none */
};
/* Depends on its arguments alone. `now_ns`: wall time. NO_MEMORY. Free with keel_retain_plan_fini. */
enum keel_status keel_retain_decide(const struct keel_generation_index *generations,
                                    const struct keel_retention *rules, uint64_t now_ns,
                                    struct keel_retain_plan *out);
void keel_retain_plan_fini(struct keel_retain_plan *plan);

#endif
