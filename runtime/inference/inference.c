/* inference.c - see inference.h. */
#include "inference.h"
#include "ir.h"
#include "model.h"
#include "weights.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

struct keel_inference {
    const struct keel_job *job;   /* borrowed, as data */
    const struct keel_data *data; /* what it was made for */
    struct keel_kernels *kernels; /* owned, as the engine and what follows */
    struct keel_engine *engine;   /* of whole batches; NULL: only_decode */
    struct keel_engine *decoder;  /* of one token more of `slots` texts; NULL: none */
    struct keel_engine *prompter; /* of `rows` tokens of prompts, by the decoder's weights; NULL: none */
    struct matrices {
        struct matrix {
            struct keel_matrix is;   /* copies 0: none */
            struct keel_shape shape; /* in snapshots */
            bool frozen;             /* in the job */
            bool packed;             /* the engine has it in few bits */
        } * of;                      /* owned: by parameter */
        uint32_t count;
    } matrices, decoders; /* of the two that have weights */
    struct keel_quantise quantise;
    uint32_t slots, rows;
    int32_t
        *kept; /* tokens whose keys and values slot 0 has, in keel_inference_generate: room for model.block */
    uint32_t kept_count;
    void *inputs[KEEL_DATA_INPUTS_MAX]; /* of a batch */
    float *logits;                      /* of a batch, where there is an accuracy; of a token, else */
    bool averages;                      /* are what is loaded */
    uint64_t stall_ns;
};

/* Whether products are those of floats in one chain, which alone those in few bits are, too. */
static bool packs(const struct keel_inference *inference)
{
    return inference->quantise.bits > 0 && inference->job->tensor <= 1 &&
           inference->job->numerics == KEEL_CANONICAL;
}

/* The matrices of a model's graph, which has those of linear layers in few bits then, if it is to be. */
static enum keel_status find_matrices(const struct keel_inference *inference, struct keel_graph *graph,
                                      struct matrices *out)
{
    KEEL_TRY(keel_alloc(graph->param_count, sizeof *out->of, &out->of));
    out->count = graph->param_count;
    for (uint32_t i = 0; i < out->count; i++) {
        struct matrix *matrix = &out->of[i];
        matrix->shape = keel_graph_shape(graph, graph->params[i].value);
        matrix->frozen = graph->params[i].frozen;
        if (!keel_quantise_finds(graph, graph->params[i].name, &matrix->is))
            matrix->is.copies = 0;
        else if (packs(inference))
            KEEL_TRY(keel_pass_quantise(graph, i, inference->quantise.bits, inference->quantise.group,
                                        &matrix->packed));
    }
    return KEEL_OK;
}

static enum keel_status build_engine(const struct keel_inference *inference,
                                     const struct keel_inference_config *from, uint32_t slots, uint32_t rows,
                                     struct keel_engine **out, struct matrices *out_matrices)
{
    const struct keel_job *job = inference->job;
    struct keel_engine_config config = {.device = from->device,
                                        .kernels = inference->kernels,
                                        .tensor = job->tensor,
                                        .bucket_bytes = job->parallel.bucket_bytes,
                                        .weights_of = rows > 0 ? inference->decoder : NULL,
                                        .only_keeps = rows > 0,
                                        .slot_wait_ns = from->stall_ns};
    struct keel_graph *graph;
    struct matrices own = {.of = NULL};
    KEEL_TRY(keel_graph_create(&graph));
    config.graph = graph;
    enum keel_status status = slots > 0 ? keel_model_build_decode(graph, job, inference->data, slots, rows)
                                        : keel_model_build(graph, job, inference->data);
    if (status == KEEL_OK)
        status = find_matrices(inference, graph, out_matrices != NULL ? out_matrices : &own);
    if (status == KEEL_OK)
        status = keel_engine_create(&config, out);
    keel_free(own.of);
    keel_graph_destroy(graph);
    return status;
}

static const struct keel_engine *any_engine(const struct keel_inference *inference)
{
    return inference->engine != NULL ? inference->engine : inference->decoder;
}

static enum keel_status build(struct keel_inference *inference, const struct keel_inference_config *from)
{
    struct keel_kernels_options options = {.numerics = KEEL_CANONICAL};
    if (from->kernels != NULL)
        options = *from->kernels;
    options.numerics = (enum keel_class)inference->job->numerics;
    KEEL_TRY(keel_kernels_create_with(from->device, &options, &inference->kernels));
    if (!from->only_decode)
        KEEL_TRY(build_engine(inference, from, 0, 0, &inference->engine, &inference->matrices));
    if (from->decode > 0)
        KEEL_TRY(build_engine(inference, from, from->decode, 0, &inference->decoder, &inference->decoders));
    if (from->prompt_rows > 0)
        KEEL_TRY(build_engine(inference, from, from->decode, from->prompt_rows, &inference->prompter, NULL));
    if (from->decode > 0)
        KEEL_TRY(keel_alloc(inference->job->block, sizeof *inference->kept, &inference->kept));
    for (uint32_t i = 0; i < keel_data_input_count(inference->data); i++)
        KEEL_TRY(keel_alloc(keel_size(keel_data_input(inference->data, i)->bytes), 1, &inference->inputs[i]));
    const struct keel_shape shape = keel_engine_output_shape(any_engine(inference));
    const uint64_t columns = shape.dims > 0 ? shape.size[shape.dims - 1] : 0;
    const uint64_t scored = keel_data_has_accuracy(inference->data) ? inference->job->batch : 1;
    const uint64_t rows = scored > from->decode ? scored : from->decode;
    return keel_alloc(keel_size(rows * columns + 1), sizeof(float), &inference->logits);
}

enum keel_status keel_inference_create(const struct keel_inference_config *config,
                                       struct keel_inference **out)
{
    struct keel_inference *inference;
    KEEL_ASSERT(config->decode == 0 || keel_model_decodes(config->job, config->data));
    KEEL_ASSERT(config->decode > 0 || (!config->only_decode && config->prompt_rows == 0));
    KEEL_TRY(keel_alloc(1, sizeof *inference, &inference));
    inference->job = config->job;
    inference->data = config->data;
    inference->stall_ns = config->stall_ns;
    inference->quantise = config->quantise;
    inference->slots = config->decode;
    inference->rows = config->prompt_rows;
    inference->averages = config->averages;
    const enum keel_status status = build(inference, config);
    if (status != KEEL_OK) {
        keel_inference_destroy(inference);
        return status;
    }
    *out = inference;
    return KEEL_OK;
}

void keel_inference_destroy(struct keel_inference *inference)
{
    if (inference == NULL)
        return;
    keel_engine_destroy(inference->engine);
    keel_engine_destroy(inference->prompter); /* before whose weights it has */
    keel_engine_destroy(inference->decoder);
    keel_free(inference->kept);
    keel_free(inference->matrices.of);
    keel_free(inference->decoders.of);
    keel_kernels_destroy(inference->kernels);
    for (uint32_t i = 0; i < KEEL_DATA_INPUTS_MAX; i++)
        keel_free(inference->inputs[i]);
    keel_free(inference->logits);
    keel_free(inference);
}

/* The weights of one engine, in few bits. */
struct quantising {
    const struct keel_inference *inference;
    const struct keel_engine *engine;
    const struct matrices *matrices;
};

static bool is_packed(void *context, uint32_t param, struct keel_engine_param *out)
{
    const struct quantising *of = context;
    const struct matrix *matrix = param < of->matrices->count ? &of->matrices->of[param] : NULL;
    if (matrix == NULL || !matrix->packed)
        return false;
    *out = (struct keel_engine_param){.name = keel_engine_param(of->engine, param)->name,
                                      .dims = matrix->shape.dims,
                                      .count = keel_shape_count(&matrix->shape),
                                      .frozen = matrix->frozen};
    memcpy(out->shape, matrix->shape.size, sizeof out->shape);
    memcpy(out->whole, matrix->shape.size, sizeof out->whole);
    return true;
}

static enum keel_status name_weight(const struct quantising *of, uint32_t param, enum keel_status status)
{
    char why[KEEL_DETAIL_BYTES];
    if (status == KEEL_OK)
        return status;
    snprintf(why, sizeof why, "%.300s", keel_detail());
    return keel_fail(status, "tensor %s: %s", keel_engine_param(of->engine, param)->name, why);
}

static enum keel_status pack_weight(void *context, uint32_t param, const float *values, void *out)
{
    const struct quantising *of = context;
    return name_weight(
        of, param, keel_quantise_pack(&of->inference->quantise, &of->matrices->of[param].is, values, out));
}

static enum keel_status round_weight(void *context, uint32_t param, float *values)
{
    const struct quantising *of = context;
    if (param >= of->matrices->count || of->matrices->of[param].is.copies == 0)
        return KEEL_OK;
    return name_weight(of, param,
                       keel_quantise_round(&of->inference->quantise, &of->matrices->of[param].is, values));
}

static enum keel_status load_engine(struct keel_inference *inference, struct keel_engine *engine,
                                    const struct matrices *matrices, struct keel_snapshot *snapshot,
                                    const struct keel_load_config *config)
{
    struct quantising of = {inference, engine, matrices};
    const struct keel_weights_change change = {
        .is_packed = is_packed, .pack = pack_weight, .change = round_weight, .context = &of};
    return engine == NULL ? KEEL_OK
                          : keel_weights_load(engine, snapshot, inference->averages, config,
                                              inference->quantise.bits > 0 ? &change : NULL,
                                              keel_deadline_after_ns(inference->stall_ns));
}

enum keel_status keel_inference_load(struct keel_inference *inference, struct keel_snapshot *snapshot,
                                     const struct keel_load_config *config)
{
    KEEL_TRY(load_engine(inference, inference->engine, &inference->matrices, snapshot, config));
    return load_engine(inference, inference->decoder, &inference->decoders, snapshot, config);
}

uint32_t keel_inference_weight_count(const struct keel_inference *inference)
{
    return keel_engine_tile_count(any_engine(inference));
}

bool keel_inference_weight(const struct keel_inference *inference, uint32_t index,
                           const struct keel_engine_param **out, struct keel_matrix *out_matrix)
{
    const struct matrices *all = inference->engine != NULL ? &inference->matrices : &inference->decoders;
    const uint32_t param = keel_engine_tile(any_engine(inference), index)->param;
    *out = keel_engine_param(any_engine(inference), param);
    *out_matrix = param < all->count ? all->of[param].is : (struct keel_matrix){.copies = 0};
    return !(*out)->kept;
}

enum keel_status keel_inference_read_weight(struct keel_inference *inference, uint32_t index, float *out)
{
    struct keel_engine *engine = inference->engine != NULL ? inference->engine : inference->decoder;
    const struct keel_tile *tile = keel_engine_tile(engine, index);
    KEEL_TRY(keel_queue_read(keel_engine_queue(engine), keel_engine_flat(engine, KEEL_FLAT_WEIGHTS),
                             tile->offset * sizeof(float), out, tile->count * sizeof(float), NULL, NULL));
    return keel_queue_finish(keel_engine_queue(engine), keel_deadline_after_ns(inference->stall_ns));
}

uint32_t keel_prompt_rows(uint64_t tokens)
{
    const uint64_t launches = (tokens + KEEL_PROMPT_ROWS_MAX - 1) / KEEL_PROMPT_ROWS_MAX;
    return tokens < KEEL_PROMPT_LEAST ? 0 : (uint32_t)((tokens + launches - 1) / launches);
}

bool keel_inference_decodes(const struct keel_job *job, const struct keel_data *data)
{
    return keel_model_decodes(job, data);
}

static struct keel_engine_batch batch_of(const struct keel_inference *inference)
{
    return (struct keel_engine_batch){.inputs = (const void *const *)inference->inputs,
                                      .seed = inference->job->seed};
}

/* ---- scores -------------------------------------------------------------------------------------------- */

struct score {
    struct keel_inference *inference;
    const struct keel_inference_scoring *how;
    float *output; /* owned: all of a batch's, where there is no accuracy and somebody wants it; else NULL */
    uint64_t rows, columns; /* of it */
};

static enum keel_status evaluate(void *context, float *out_loss)
{
    const struct score *score = context;
    struct keel_inference *inference = score->inference;
    const struct keel_engine_batch batch = batch_of(inference);
    const uint64_t deadline_ns = keel_deadline_after_ns(inference->stall_ns);
    KEEL_TRY(keel_engine_eval(inference->engine, &batch, deadline_ns, out_loss));
    if (score->output != NULL) {
        KEEL_TRY(
            keel_engine_evaluated(inference->engine, 0, (uint32_t)score->rows, deadline_ns, score->output));
        return score->how->keep(score->how->context, score->output, score->rows * score->columns);
    }
    if (!keel_data_has_accuracy(inference->data))
        return KEEL_OK;
    return keel_engine_evaluated(inference->engine, 0, inference->job->batch, deadline_ns, inference->logits);
}

static enum keel_status keep_logits(void *context, const float *logits, uint64_t count)
{
    const struct keel_inference_scoring *how = ((struct score *)context)->how;
    return how->keep != NULL ? how->keep(how->context, logits, count) : KEEL_OK;
}

static void see_progress(void *context, uint32_t done)
{
    const struct keel_inference_scoring *how = ((struct score *)context)->how;
    if (how->progress != NULL)
        how->progress(how->context, done);
}

enum keel_status keel_inference_score(struct keel_inference *inference,
                                      const struct keel_inference_scoring *how, struct keel_scores *out)
{
    const struct keel_shape shape = keel_engine_output_shape(inference->engine);
    const uint64_t columns = shape.dims > 0 ? shape.size[shape.dims - 1] : 1;
    struct score score = {.inference = inference,
                          .how = how,
                          .rows = shape.dims > 0 ? keel_shape_count(&shape) / columns : 0,
                          .columns = columns};
    if (how->keep != NULL && !keel_data_has_accuracy(inference->data))
        KEEL_TRY(keel_alloc(keel_size(score.rows * columns), sizeof(float), &score.output));
    const struct keel_scoring scoring = {.data = inference->data,
                                         .batch = inference->job->batch,
                                         .batches = how->batches,
                                         .inputs = inference->inputs,
                                         .logits = keel_data_has_accuracy(inference->data) ? inference->logits
                                                                                           : NULL,
                                         .classes = shape.dims > 0 ? (uint32_t)shape.size[shape.dims - 1] : 0,
                                         .right_of = how->right_of,
                                         .count_of = how->count_of,
                                         .keep = keep_logits,
                                         .evaluate = evaluate,
                                         .progress = see_progress,
                                         .context = &score};
    const enum keel_status status = keel_score(&scoring, out);
    keel_free(score.output);
    return status;
}

/* ---- text ---------------------------------------------------------------------------------------------- */

struct writing {
    struct keel_inference *inference;
    const struct keel_generator *of;
};

/* The window stands at the beginning of the block: causal attention makes what follows irrelevant. */
enum keel_status keel_inference_predict(struct keel_inference *inference, const int32_t *window,
                                        uint32_t length, const float **out)
{
    const struct keel_engine_batch batch = batch_of(inference);
    for (uint32_t i = 0; i < keel_data_input_count(inference->data); i++)
        memset(inference->inputs[i], 0, keel_size(keel_data_input(inference->data, i)->bytes));
    memcpy(inference->inputs[0], window, length * sizeof *window);
    *out = inference->logits;
    return keel_engine_output(inference->engine, &batch, length - 1, 1,
                              keel_deadline_after_ns(inference->stall_ns), inference->logits);
}

enum keel_status keel_inference_decode(struct keel_inference *inference, const int32_t *tokens,
                                       const int32_t *positions, const float **out)
{
    const struct keel_engine_batch batch = {.inputs = (const void *[]){positions, tokens, NULL},
                                            .seed = inference->job->seed};
    *out = inference->logits;
    return keel_engine_output(inference->decoder, &batch, 0, inference->slots,
                              keel_deadline_after_ns(inference->stall_ns), inference->logits);
}

enum keel_status keel_inference_keep(struct keel_inference *inference, const int32_t *tokens,
                                     const int32_t *positions, const int32_t *slots)
{
    const struct keel_engine_batch batch = {.inputs = (const void *[]){positions, slots, tokens, NULL},
                                            .seed = inference->job->seed};
    float loss; /* of no targets: what it is for was kept on the way */
    return keel_engine_eval(inference->prompter, &batch, keel_deadline_after_ns(inference->stall_ns), &loss);
}

uint32_t keel_inference_logits(const struct keel_inference *inference)
{
    const struct keel_shape shape = keel_engine_output_shape(any_engine(inference));
    return (uint32_t)shape.size[shape.dims - 1];
}

/* The next token of what slot 0 has kept; the logits behind it. */
static enum keel_status decode_token(struct keel_inference *inference, int32_t token, const float **out)
{
    const int32_t position = (int32_t)inference->kept_count;
    KEEL_ASSERT(inference->slots == 1);
    KEEL_TRY(keel_inference_decode(inference, &token, &position, out));
    inference->kept[inference->kept_count++] = token;
    return KEEL_OK;
}

/* As many as a launch takes of the tokens of slot 0 that nobody asks the logits of. */
static enum keel_status keep_tokens(struct keel_inference *inference, const int32_t *tokens, uint32_t count)
{
    int32_t ids[KEEL_PROMPT_ROWS_MAX] = {0}, positions[KEEL_PROMPT_ROWS_MAX];
    static const int32_t slots[KEEL_PROMPT_ROWS_MAX];
    KEEL_ASSERT(inference->slots == 1 && inference->rows <= KEEL_PROMPT_ROWS_MAX);
    for (uint32_t i = 0; i < inference->rows; i++)
        positions[i] = i < count ? (int32_t)(inference->kept_count + i) : -1;
    count = count < inference->rows ? count : inference->rows;
    memcpy(ids, tokens, count * sizeof *tokens);
    KEEL_TRY(keel_inference_keep(inference, ids, positions, slots));
    memcpy(inference->kept + inference->kept_count, tokens, count * sizeof *tokens);
    inference->kept_count += count;
    return KEEL_OK;
}

/* A text that goes on: one whose window has moved has other positions, and is computed whole. */
static bool goes_on(const struct keel_inference *inference, const int32_t *window, uint32_t length)
{
    return inference->decoder != NULL && inference->kept_count < length &&
           memcmp(inference->kept, window, inference->kept_count * sizeof *window) == 0;
}

static enum keel_status predict(void *context, const int32_t *window, uint32_t length, const float **out)
{
    struct keel_inference *inference = ((struct writing *)context)->inference;
    if (!goes_on(inference, window, length))
        return keel_inference_predict(inference, window, length, out);
    while (inference->rows > 0 && inference->kept_count + KEEL_PROMPT_LEAST < length)
        KEEL_TRY(keep_tokens(inference, window + inference->kept_count, length - 1 - inference->kept_count));
    while (inference->kept_count < length)
        KEEL_TRY(decode_token(inference, window[inference->kept_count], out));
    return KEEL_OK;
}

static enum keel_status write_on(void *context, uint32_t token, const char *text, size_t bytes)
{
    const struct keel_generator *of = ((struct writing *)context)->of;
    return of->write(of->context, token, text, bytes);
}

enum keel_status keel_inference_generate(struct keel_inference *inference,
                                         const struct keel_generator *generation)
{
    struct writing writing = {.inference = inference, .of = generation};
    struct keel_generator of = *generation;
    inference->kept_count = 0;
    of.data = inference->data;
    of.block = inference->job->block;
    of.vocab = keel_inference_logits(inference);
    of.predict = predict;
    of.write = write_on;
    of.context = &writing;
    return keel_generate(&of);
}
