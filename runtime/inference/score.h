/* score.h - what a model is worth on data that it was not trained on: mean loss, and accuracy where it
 * classifies. One loop, for a run's own validation and for keel eval, so that both come to the same bits:
 * losses of batches are added in their order. */
#ifndef KEEL_SCORE_H
#define KEEL_SCORE_H

#include "data.h"

struct keel_scores {
    bool has_loss,
        has_accuracy; /* no loss: nothing is kept for validation; accuracy: of models that classify */
    float loss;       /* mean */
    float accuracy;   /* share of samples that the highest logit gets right, or the sign of the only one */
};

struct keel_scoring {
    const struct keel_data *data;
    uint32_t batch, batches; /* samples of each; how many */
    void *const *inputs;     /* of a batch: filled here */
    const float *logits;     /* of a batch, where `evaluate` puts them; NULL: accuracy is not asked for */
    uint32_t classes;        /* logits of a sample */
    uint64_t *right_of, *count_of; /* by class: added to; NULL: not asked for */
    /* Gets the logits of each batch, where there are any; NULL: nobody does. */
    enum keel_status (*keep)(void *context, const float *logits, uint64_t count);
    /* The mean loss of the batch in `inputs`. */
    enum keel_status (*evaluate)(void *context, float *out_loss);
    void (*progress)(void *context, uint32_t done); /* batches */
    void *context;
};
/* Errors: those of the data and of `evaluate`. */
enum keel_status keel_score(const struct keel_scoring *scoring, struct keel_scores *out);

#endif
