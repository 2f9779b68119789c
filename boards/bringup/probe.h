/* probe.h - the kernels of probe.cl, opened for a check: launches whose results show what a driver did with
 * them.
 *
 * They are compiled from source, or run on the host device; a board without a compiler has none of them. */
#ifndef KEEL_PROBE_H
#define KEEL_PROBE_H

#include "board_check.h"

enum keel_probe_kernel {
    KEEL_PROBE_SLOW,  /* words[at + i] = value + i, i < count, after `steps` turns */
    KEEL_PROBE_COPY,  /* to[i] = from[i] */
    KEEL_PROBE_GRID,  /* words[id] += a word of the work-item */
    KEEL_PROBE_STEP,  /* words[at] = 3 words[at] + value */
    KEEL_PROBE_CLASS, /* to[i] = 1 where from[i] is not a number, 2 where it is infinite, else 0 */
    KEEL_PROBE_KERNELS
};

struct keel_probe {
    struct keel_kernel *kernels[KEEL_PROBE_KERNELS]; /* end with the check */
};

/* False where the check has its verdict, or the board does not compile (a note says so). */
bool keel_probe_init(struct keel_probe *probe, struct keel_check_run *run);

/* What the kernel keel_probe_grid adds to the words of a grid: of each work-item its group, its place in the
 * group, and the size of the group. */
void keel_probe_grid(uint32_t *words, const struct keel_range *range);

enum keel_status keel_probe_slow(const struct keel_probe *probe, struct keel_queue *queue,
                                 struct keel_buffer *words, uint32_t at, uint32_t count, uint32_t steps,
                                 uint32_t value, const struct keel_wait_list *waits,
                                 struct keel_event **event);
enum keel_status keel_probe_copy(const struct keel_probe *probe, struct keel_queue *queue,
                                 struct keel_buffer *from, struct keel_buffer *to, uint32_t count,
                                 const struct keel_wait_list *waits, struct keel_event **event);
enum keel_status keel_probe_step(const struct keel_probe *probe, struct keel_queue *queue,
                                 struct keel_buffer *words, uint32_t at, uint32_t value);
enum keel_status keel_probe_class(const struct keel_probe *probe, struct keel_queue *queue,
                                  struct keel_buffer *from, struct keel_buffer *to, uint32_t count);

#endif
