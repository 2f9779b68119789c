/* trainer_text.c - learning rate, validation and generated text. */
#include "trainer_internal.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

enum { SAMPLE_STREAM = 0x7fffffff };
static const float sample_temperature = 0.8f;

float keel_learning_rate(const struct keel_job *job, uint64_t step)
{
    if (step < job->warmup_steps)
        return job->learning_rate * (float)(step + 1) / (float)job->warmup_steps;
    if (step >= job->decay_steps)
        return job->min_learning_rate;
    float done = (float)(step - job->warmup_steps) / (float)(job->decay_steps - job->warmup_steps);
    float share = 0.5f * (1.0f + keel_canon_cos(3.14159265f * done));
    return job->min_learning_rate + share * (job->learning_rate - job->min_learning_rate);
}

static void count_right(struct keel_trainer *trainer, uint64_t *right)
{
    struct keel_shape shape = keel_engine_output_shape(trainer->engine);
    uint32_t classes = (uint32_t)shape.size[shape.dims - 1];
    for (uint32_t row = 0; row < trainer->job->batch; row++)
        *right += keel_data_is_right(trainer->data, trainer->inputs, row,
                                     trainer->logits + (size_t)row * classes, classes);
}

/* The loss of the batch in trainer->inputs, and its logits where accuracy is asked for. */
static enum keel_status eval_batch(struct keel_trainer *trainer, float *out_loss)
{
    struct keel_engine_batch batch = {.inputs = keel_trainer_inputs(trainer), .seed = trainer->job->seed};
    uint64_t deadline_ns = keel_deadline_after_ns(trainer->stall_ns);
    keel_hang_enter(trainer->hangs, KEEL_HANG_EVAL, keel_now_ns());
    enum keel_status status = keel_trainer_by_segments(trainer)
                                  ? keel_tensor_evaluate(trainer, &batch, KEEL_AT_EVAL, deadline_ns, out_loss)
                                  : keel_engine_eval(trainer->engine, &batch, deadline_ns, out_loss);
    if (status == KEEL_OK && trainer->logits != NULL)
        status = keel_engine_evaluated(trainer->engine, 0, trainer->job->batch, deadline_ns, trainer->logits);
    keel_hang_leave(trainer->hangs, KEEL_HANG_EVAL, keel_now_ns());
    if (status == KEEL_OK)
        keel_hang_trust(trainer->hangs, KEEL_HANG_EVAL);
    return status;
}

enum keel_status keel_trainer_eval(struct keel_trainer *trainer, struct keel_trainer_scores *out)
{
    const struct keel_job *job = trainer->job;
    float sum = 0;
    uint64_t right = 0;
    *out = (struct keel_trainer_scores){.has_loss = false};
    if (keel_data_val_samples(trainer->data) == 0)
        return KEEL_OK;
    for (uint32_t i = 0; i < job->eval_batches; i++) {
        float loss;
        KEEL_TRY(keel_data_val_batch(trainer->data, i, job->eval_batches, trainer->inputs));
        KEEL_TRY(eval_batch(trainer, &loss));
        keel_trainer_drill(trainer, KEEL_AT_EVAL);
        if (trainer->logits != NULL)
            count_right(trainer, &right);
        sum += loss;
        atomic_fetch_add(trainer->progress, 1);
    }
    *out = (struct keel_trainer_scores){
        .has_loss = true,
        .loss = sum / (float)job->eval_batches,
        .has_accuracy = trainer->logits != NULL,
        .accuracy = (float)((double)right / ((double)job->eval_batches * (double)job->batch))};
    return KEEL_OK;
}

/* Draw from softmax(logits / temperature) with one uniform number. */
static uint32_t draw(const float *logits, uint32_t count, float uniform, float *scratch)
{
    float highest = logits[0], sum = 0;
    for (uint32_t i = 1; i < count; i++)
        highest = logits[i] > highest ? logits[i] : highest;
    for (uint32_t i = 0; i < count; i++) {
        scratch[i] = keel_canon_exp((logits[i] - highest) / sample_temperature);
        sum += scratch[i];
    }
    float wanted = uniform * sum, seen = 0;
    for (uint32_t i = 0; i < count; i++) {
        seen += scratch[i];
        if (wanted < seen)
            return i;
    }
    return count - 1;
}

/* One token after window[0 .. length). The text is placed at the beginning of the block: causal attention
 * makes what follows irrelevant. */
static enum keel_status next_token(struct keel_trainer *trainer, const int32_t *window, uint32_t length,
                                   float uniform, float *logits, uint32_t vocab, int32_t *out)
{
    memset(trainer->inputs[0], 0, keel_size(keel_data_input(trainer->data, 0)->bytes));
    memcpy(trainer->inputs[0], window, length * sizeof(int32_t));
    struct keel_engine_batch batch = {.inputs = (const void *[]){trainer->inputs[0], NULL},
                                      .seed = trainer->job->seed};
    keel_hang_enter(trainer->hangs, KEEL_HANG_EVAL, keel_now_ns());
    const uint64_t deadline_ns = keel_deadline_after_ns(trainer->stall_ns);
    const bool together = trainer->gathered.on || trainer->tensor.count > 0;
    enum keel_status status = KEEL_OK;
    float loss; /* of no meaning */
    if (together)
        status = keel_tensor_evaluate(trainer, &batch, KEEL_AT_TEXT, deadline_ns, &loss);
    if (status == KEEL_OK)
        status = together ? keel_tensor_logits(trainer, length - 1, vocab, deadline_ns, logits)
                          : keel_engine_output(trainer->engine, &batch, length - 1, 1, deadline_ns, logits);
    keel_hang_leave(trainer->hangs, KEEL_HANG_EVAL, keel_now_ns());
    if (status != KEEL_OK)
        return status;
    /* Only tokens that the text has: a padded vocabulary has no bytes behind the rest. */
    *out = (int32_t)draw(logits, keel_data_vocab(trainer->data), uniform, logits + vocab);
    return KEEL_OK;
}

/* Text that grows by one token after the other. */
struct written {
    char *text; /* owned; NUL-terminated behind `bytes` */
    size_t bytes, capacity;
};

static enum keel_status write_token(const struct keel_data *data, uint32_t token, struct written *written)
{
    char scratch[KEEL_TOKEN_TEXT_BYTES];
    size_t bytes;
    const char *text = keel_data_text_of(data, token, scratch, &bytes);
    KEEL_TRY(keel_grow(&written->text, &written->capacity, written->bytes + bytes + 1, 1));
    memcpy(written->text + written->bytes, text, bytes);
    written->bytes += bytes;
    written->text[written->bytes] = '\0';
    return KEEL_OK;
}

static enum keel_status generate(struct keel_trainer *trainer, uint32_t tokens, uint32_t vocab,
                                 int32_t *history, float *logits, struct written *written)
{
    const struct keel_job *job = trainer->job;
    struct keel_control control = {.seed_lo = (uint32_t)job->seed, .seed_hi = (uint32_t)(job->seed >> 32)};
    history[0] = (int32_t)keel_data_first_token(trainer->data);
    for (uint32_t n = 0; n < tokens; n++) {
        uint32_t length = n + 1 < job->block ? n + 1 : job->block;
        float uniform = keel_random_uniform(&control, SAMPLE_STREAM, n);
        KEEL_TRY(
            next_token(trainer, history + (n + 1 - length), length, uniform, logits, vocab, &history[n + 1]));
        keel_trainer_drill(trainer, KEEL_AT_TEXT);
        KEEL_TRY(write_token(trainer->data, (uint32_t)history[n + 1], written));
        atomic_fetch_add(trainer->progress, 1);
    }
    return KEEL_OK;
}

enum keel_status keel_trainer_sample(struct keel_trainer *trainer, uint32_t tokens, char **out,
                                     size_t *out_bytes)
{
    uint32_t vocab = trainer->job->vocab != 0 ? trainer->job->vocab : keel_data_vocab(trainer->data);
    int32_t *history = NULL;
    struct written written = {.text = NULL};
    enum keel_status status = keel_alloc((size_t)tokens + 1, sizeof *history, &history);
    if (status == KEEL_OK && trainer->row == NULL)
        status = keel_alloc((size_t)vocab * 2, sizeof *trainer->row, &trainer->row);
    if (status == KEEL_OK)
        status = generate(trainer, tokens, vocab, history, trainer->row, &written);
    keel_free(history);
    if (status != KEEL_OK) {
        keel_free(written.text);
        return status;
    }
    *out = written.text;
    *out_bytes = written.bytes;
    return KEEL_OK;
}
