/* trainer_text.c - what the loops of validation and generated text (score.h, generate.h) ask of a rank. */
#include "generate.h"
#include "trainer_internal.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

/* The loss of the batch in trainer->inputs, and its logits where accuracy is asked for. */
static enum keel_status eval_batch(void *context, float *out_loss)
{
    struct keel_trainer *trainer = context;
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

static void see_progress(void *context, uint32_t done)
{
    struct keel_trainer *trainer = context;
    (void)done;
    keel_trainer_drill(trainer, KEEL_AT_EVAL);
    atomic_fetch_add(trainer->progress, 1);
}

enum keel_status keel_trainer_eval(struct keel_trainer *trainer, struct keel_scores *out)
{
    const struct keel_shape shape = keel_engine_output_shape(trainer->engine);
    const struct keel_scoring scoring = {.data = trainer->data,
                                         .batch = trainer->job->batch,
                                         .batches = trainer->job->eval_batches,
                                         .inputs = trainer->inputs,
                                         .logits = trainer->logits,
                                         .classes = shape.dims > 0 ? (uint32_t)shape.size[shape.dims - 1] : 0,
                                         .evaluate = eval_batch,
                                         .progress = see_progress,
                                         .context = trainer};
    return keel_score(&scoring, out);
}

/* Text that grows by one token after the other. */
struct written {
    struct keel_trainer *trainer;
    char *text; /* owned; NUL-terminated behind `bytes` */
    size_t bytes, capacity;
    uint32_t vocab;
};

/* The text is placed at the beginning of the block: causal attention makes what follows irrelevant. */
static enum keel_status predict(void *context, const int32_t *window, uint32_t length, const float **out)
{
    struct written *written = context;
    struct keel_trainer *trainer = written->trainer;
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
        status = together
                     ? keel_tensor_logits(trainer, length - 1, written->vocab, deadline_ns, trainer->row)
                     : keel_engine_output(trainer->engine, &batch, length - 1, 1, deadline_ns, trainer->row);
    keel_hang_leave(trainer->hangs, KEEL_HANG_EVAL, keel_now_ns());
    *out = trainer->row;
    return status;
}

static enum keel_status write_token(void *context, uint32_t token, const char *text, size_t bytes)
{
    struct written *written = context;
    (void)token;
    keel_trainer_drill(written->trainer, KEEL_AT_TEXT);
    KEEL_TRY(keel_grow(&written->text, &written->capacity, written->bytes + bytes + 1, 1));
    memcpy(written->text + written->bytes, text, bytes);
    written->bytes += bytes;
    written->text[written->bytes] = '\0';
    atomic_fetch_add(written->trainer->progress, 1);
    return KEEL_OK;
}

enum keel_status keel_trainer_sample(struct keel_trainer *trainer, uint32_t tokens, char **out,
                                     size_t *out_bytes)
{
    const struct keel_job *job = trainer->job;
    struct written written = {.trainer = trainer,
                              .vocab = job->vocab != 0 ? job->vocab : keel_data_vocab(trainer->data)};
    const struct keel_generator generation = {
        .data = trainer->data,
        .sampling = {.temperature = KEEL_TEMPERATURE, .top_p = 1.0F, .seed = job->seed},
        .tokens = tokens,
        .block = job->block,
        .vocab = written.vocab,
        .predict = predict,
        .write = write_token,
        .context = &written};
    if (trainer->row == NULL)
        KEEL_TRY(keel_alloc((size_t)written.vocab * 2, sizeof *trainer->row, &trainer->row));
    const enum keel_status status = keel_generate(&generation);
    if (status != KEEL_OK) {
        keel_free(written.text);
        return status;
    }
    *out = written.text;
    *out_bytes = written.bytes;
    return KEEL_OK;
}
