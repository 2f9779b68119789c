/* score.c - see score.h. */
#include "score.h"

static void count_right(const struct keel_scoring *scoring, uint64_t *right)
{
    for (uint32_t row = 0; row < scoring->batch; row++) {
        const float *logits = scoring->logits + (size_t)row * scoring->classes;
        const bool is_right =
            keel_data_is_right(scoring->data, scoring->inputs, row, logits, scoring->classes);
        *right += is_right;
        if (scoring->count_of == NULL)
            continue;
        const uint32_t of = keel_data_class_of(scoring->data, scoring->inputs, row);
        scoring->count_of[of]++;
        scoring->right_of[of] += is_right;
    }
}

enum keel_status keel_score(const struct keel_scoring *scoring, struct keel_scores *out)
{
    float sum = 0;
    uint64_t right = 0;
    *out = (struct keel_scores){.has_loss = false};
    if (keel_data_val_samples(scoring->data) == 0)
        return KEEL_OK;
    for (uint32_t i = 0; i < scoring->batches; i++) {
        float loss;
        KEEL_TRY(keel_data_val_batch(scoring->data, i, scoring->batches, scoring->inputs));
        KEEL_TRY(scoring->evaluate(scoring->context, &loss));
        if (scoring->logits != NULL)
            count_right(scoring, &right);
        if (scoring->logits != NULL && scoring->keep != NULL)
            KEEL_TRY(scoring->keep(scoring->context, scoring->logits,
                                   (uint64_t)scoring->batch * scoring->classes));
        sum += loss;
        scoring->progress(scoring->context, i + 1);
    }
    *out = (struct keel_scores){
        .has_loss = true,
        .loss = sum / (float)scoring->batches,
        .has_accuracy = scoring->logits != NULL,
        .accuracy = (float)((double)right / ((double)scoring->batches * (double)scoring->batch))};
    return KEEL_OK;
}
