/* sdc_check.h - is this rank's board still right? Golden operations between the steps of a run.
 *
 * A screened step runs one golden operation (keel/golden.h) after its gradients are computed and before this
 * rank contributes them to the sum: a board that fails it changes no rank's weights in that step. Screens
 * take the operations in turn, ranks beginning at different ones. What a board computed wrong between two
 * screens, and only there, is not found: train.screen_every = 1 leaves no such step.
 *
 * A board that fails is quarantined with its evidence (keel/quarantine.h), and its worker ends with CORRUPT:
 * it is not started again, and the other ranks do the step without it, with the same bits.
 *
 * One thread, that of the steps. */
#ifndef KEEL_SDC_CHECK_H
#define KEEL_SDC_CHECK_H

#include "hang_watch.h"
#include <keel/kernels.h>

struct keel_sdc_check;

struct keel_sdc_check_config {
    struct keel_device *device;    /* borrowed, as are the kernels of it */
    struct keel_kernels *kernels;  /* used between launches of the steps, never during one */
    const char *run;               /* borrowed: its name, for the evidence */
    const char *directory;         /* borrowed: of the run, where findings of drills go */
    bool drill;                    /* a drill changes memory in this run: findings may be its own */
    uint32_t node, local;          /* of the worker: where it begins, and for the evidence */
    uint64_t limit_ns;             /* a golden operation that takes longer: the device hangs */
    struct keel_hang_watch *hangs; /* who notices that sooner; borrowed; NULL: nobody */
};

enum keel_status keel_sdc_check_create(const struct keel_sdc_check_config *config,
                                       struct keel_sdc_check **out);
void keel_sdc_check_destroy(struct keel_sdc_check *screen); /* NULL is fine */

/* All golden operations, before the board is used at all. As keel_sdc_check_step. */
enum keel_status keel_sdc_check_admit(struct keel_sdc_check *screen);

/* The next golden operation, at the end of step `step`. CORRUPT: the board is wrong, and quarantined, as the
 * detail says with the evidence; TIMEOUT becomes DEVICE_LOST; what else the device says. */
enum keel_status keel_sdc_check_step(struct keel_sdc_check *screen, uint64_t step);

/* A product of step `step` changed in memory: what it was goes into the board's file. CORRUPT, always,
 * with the evidence, and where its file is or why there is none. */
enum keel_status keel_sdc_check_quarantine(const struct keel_sdc_check_config *config, uint64_t step,
                                           const char *evidence);

/* What this rank has of step `step` is not what it was, or what the others have: a finding of memory too.
 * DEVICE_LOST: the worker is to begin again, and the board to pass all golden operations before it is used;
 * CORRUPT, after as many findings as are too many: no more. */
enum keel_status keel_sdc_check_outvoted(const struct keel_sdc_check_config *config, uint64_t step,
                                         const char *evidence);

/* How many golden operations the steps ran, and how long they took in all. */
struct keel_sdc_check_cost {
    uint64_t operations, spent_ns;
};
struct keel_sdc_check_cost keel_sdc_check_cost(const struct keel_sdc_check *screen);

#endif
