/* early_stop.h - has validation stopped getting better (train.patience)?
 *
 * A pure function of the validation losses in the order of their steps, so that every life of a run, and
 * whoever takes it over, finds the same end. An evaluation is better when it is below the best so far by more
 * than `min_delta`; the run ends at the one that is the last of `patience` in a row that are not. (Prechelt
 * 1998, "Early stopping - but when?", the rule UP with strips of one evaluation against the best.) */
#ifndef KEEL_EARLY_STOP_H
#define KEEL_EARLY_STOP_H

#include <stdbool.h>
#include <stdint.h>

struct keel_evaluation {
    uint64_t step;
    float loss;
};

struct keel_early_stop {         /* zeros, and the rule, to begin with; may be copied */
    uint32_t patience;           /* 0: the run never ends so */
    float min_delta;             /* as struct keel_job has it */
    uint64_t step;               /* of the newest evaluation; 0: there was none */
    uint32_t worse;              /* the newest so many were not better */
    uint64_t end_step;           /* where it ends; 0: it goes on */
    struct keel_evaluation best; /* of those up to there; step 0: none was a number */
};

/* The next evaluation; of a step that was added before, or behind the end, it is left out. */
void keel_early_stop_add(struct keel_early_stop *stop, uint64_t step, float loss);
/* All but the rule. */
void keel_early_stop_forget(struct keel_early_stop *stop);

#endif
