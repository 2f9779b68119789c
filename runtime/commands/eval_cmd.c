/* eval_cmd.c - `keel eval JOB|SNAPSHOT`: loss, perplexity or accuracy of a snapshot, on one device, without
 * agents. On the job's own validation data the figure is that of the run at that step, to the bit. */
#include "eval_cmd.h"
#include "encode_text.h"
#include "trained.h"
#include <float.h>
#include <inttypes.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS = 12, NPY_HEADER = 128 }; /* behind the point: a float, and more; bytes */

struct own {
    struct keel_trained_options trained; /* first */
    const char *data, *format, *logits;
    uint64_t batches; /* 0: not given */
    bool all, per_class, force;
};

struct eval {
    const struct own *own;
    struct keel_trained trained;
    char temporary[KEEL_PATH_BYTES]; /* folder of tokens of a text; "": none */
    struct keel_trained_meter meter;
    uint32_t batches;
    uint64_t *right_of, *count_of; /* by class; owned; NULL: not asked for */
    uint8_t *logits;               /* a file of them, behind room for its header; owned; NULL: none yet */
    uint64_t logit_count;
    struct keel_scores scores;
};

/* ---- data ---------------------------------------------------------------------------------------------- */

static enum keel_status read_format(const struct eval *eval, const char *path, uint32_t *out_width)
{
    struct keel_job job = eval->trained.job;
    static const char *const names[] = {"auto", "text", "uint16", "uint32"};
    const char *format = eval->own->format != NULL ? eval->own->format : names[KEEL_DATA_AUTO];
    snprintf(job.path, sizeof job.path, "%s", path);
    for (uint32_t f = 0; f < sizeof names / sizeof names[0]; f++) {
        if (strcmp(format, names[f]) != 0)
            continue;
        const uint32_t width = keel_job_token_width(&eval->trained.job);
        job.format = f;
        *out_width = keel_job_token_width(&job);
        if (f == KEEL_DATA_AUTO && *out_width > 0 && width > 0)
            *out_width = width; /* as the job's own token files */
        return KEEL_OK;
    }
    return keel_fail(KEEL_INVALID, "--format %s: one of auto, text, uint16, uint32 is wanted", format);
}

static enum keel_status made_already(void *context)
{
    (void)context;
    return KEEL_OK;
}

static void see_encoding(void *context, const char *path, uint64_t done_bytes, uint64_t bytes)
{
    (void)path;
    keel_trained_meter_show(context, "MB encoded", done_bytes / 1000000, bytes / 1000000);
}

/* The text becomes a token file in a folder of its own, which *use names then. */
static enum keel_status encode(struct eval *eval, struct keel_job *text, struct keel_data_use *use)
{
    const char *folder = getenv("TMPDIR");
    const struct keel_encode_config config = {.directory = eval->temporary,
                                              .make = made_already,
                                              .progress = see_encoding,
                                              .context = &eval->meter};
    char path[KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_join(path, folder != NULL && folder[0] != '\0' ? folder : "/tmp", "keel-eval-XXXXXX"));
    if (mkdtemp(path) == NULL)
        return keel_fail(KEEL_IO, "%s: cannot be made, for the tokens of --data; look at TMPDIR", path);
    memcpy(eval->temporary, path, sizeof path);
    text->val_path[0] = '\0';
    text->format = KEEL_DATA_TEXT;
    const enum keel_status status = keel_job_encode_text(text, &config);
    keel_trained_meter_hide(&eval->meter);
    KEEL_TRY(status);
    use->val_path = text->path;
    use->val_width = keel_job_token_width(text);
    return KEEL_OK;
}

/* What --data names, or the job's own. */
static enum keel_status open_data(struct eval *eval)
{
    struct keel_trained *trained = &eval->trained;
    struct keel_job text = trained->job;
    const char *files;
    struct keel_data_use use = {.val_path = eval->own->data};
    if (use.val_path == NULL)
        return keel_data_open(&trained->job, &trained->data);
    if (strlen(use.val_path) >= sizeof text.path)
        return keel_fail(KEEL_LIMIT, "--data: path longer than %zu bytes", sizeof text.path - 1);
    KEEL_TRY(read_format(eval, use.val_path, &use.val_width));
    snprintf(text.path, sizeof text.path, "%s", use.val_path);
    const bool is_text = strcmp(keel_job_unit(&trained->job), "tokens") == 0 && use.val_width == 0;
    if (is_text && keel_job_vocab(&trained->job, &files) == KEEL_VOCAB_BPE)
        KEEL_TRY(encode(eval, &text, &use));
    const enum keel_status status = keel_data_open_to_use(&trained->job, &use, &trained->data);
    if (status == KEEL_OK)
        return status;
    char why[KEEL_DETAIL_BYTES];
    snprintf(why, sizeof why, "%.400s", keel_detail());
    return keel_fail(status, "--data: %s", why);
}

/* Batches that predict every token, or name every image, about once: windows begin at every token. */
static enum keel_status count_all(const struct eval *eval, uint32_t *out)
{
    const struct keel_data *data = eval->trained.data;
    const uint64_t block = keel_data_sample_tokens(data), batch = eval->trained.job.batch;
    const uint64_t samples = keel_data_val_samples(data);
    if (samples == KEEL_DATA_DRAWN)
        return keel_fail(KEEL_INVALID, "--all: samples are drawn, without an end; give --batches");
    const uint64_t batches = ((samples + block - 1) / block + batch - 1) / batch;
    if (batches > UINT32_MAX)
        return keel_fail(KEEL_LIMIT, "--all: more than %u batches; give --batches", UINT32_MAX);
    *out = (uint32_t)batches;
    return KEEL_OK;
}

static enum keel_status count_batches(struct eval *eval)
{
    const struct own *own = eval->own;
    if (keel_data_val_samples(eval->trained.data) == 0)
        return keel_fail(KEEL_INVALID,
                         "%s keeps nothing to validate with (data.val_fraction, data.val_path); name data by "
                         "--data",
                         eval->trained.directory);
    if (own->all)
        return count_all(eval, &eval->batches);
    if (own->batches > UINT32_MAX)
        return keel_fail(KEEL_INVALID, "--batches %" PRIu64 ": at most %u", own->batches, UINT32_MAX);
    eval->batches = own->batches > 0 ? (uint32_t)own->batches : eval->trained.job.eval_batches;
    return KEEL_OK;
}

/* ---- evaluating ---------------------------------------------------------------------------------------- */

static void see_batch(void *context, uint32_t done)
{
    struct eval *eval = context;
    keel_trained_meter_show(&eval->meter, "batches", done, eval->batches);
}

static enum keel_status check_options(const struct own *own)
{
    if (own->all && own->batches > 0)
        return keel_fail(KEEL_INVALID, "--all and --batches: one of them is wanted");
    if (own->format != NULL && own->data == NULL)
        return keel_fail(KEEL_INVALID, "--format: says nothing without --data");
    return KEEL_OK;
}

static enum keel_status prepare_classes(struct eval *eval)
{
    const struct keel_data *data = eval->trained.data;
    if (!eval->own->per_class && eval->own->logits == NULL)
        return KEEL_OK;
    if (eval->own->logits != NULL && !eval->own->force && keel_path_is_file(eval->own->logits))
        return keel_fail(KEEL_INVALID, "--logits %s: something is there; name another file, or give --force",
                         eval->own->logits);
    if (eval->own->logits != NULL)
        KEEL_TRY(keel_command_may_write(eval->own->logits));
    if (!eval->own->per_class)
        return KEEL_OK;
    if (!keel_data_has_accuracy(data))
        return keel_fail(KEEL_INVALID, "--per-class: the model of this job names no classes");
    KEEL_TRY(keel_alloc(keel_data_class_count(data), sizeof *eval->right_of, &eval->right_of));
    return keel_alloc(keel_data_class_count(data), sizeof *eval->count_of, &eval->count_of);
}

static uint64_t samples_of(const struct eval *eval)
{
    return (uint64_t)eval->batches * eval->trained.job.batch;
}

/* All of them at the end; numbers of NumPy's file lie as this machine has them, of which Keel has no other
 * than the lowest byte first. */
static enum keel_status keep_logits(void *context, const float *logits, uint64_t count)
{
    struct eval *eval = context;
    if (eval->logits == NULL)
        KEEL_TRY(
            keel_alloc(NPY_HEADER + keel_size(count * eval->batches * sizeof *logits), 1, &eval->logits));
    memcpy(eval->logits + NPY_HEADER + eval->logit_count * sizeof *logits, logits,
           keel_size(count * sizeof *logits));
    eval->logit_count += count;
    return KEEL_OK;
}

/* Format 1.0: magic and version, the length of the text behind them, the text, and the numbers. */
static enum keel_status write_logits(struct eval *eval)
{
    static const char magic[] = "\x93NUMPY\x01";
    enum { FRONT = 10 };
    char text[NPY_HEADER];
    if (eval->logits == NULL)
        return KEEL_OK;
    const bool of_tokens = strcmp(keel_job_unit(&eval->trained.job), "tokens") == 0;
    const uint64_t columns =
        of_tokens ? keel_inference_logits(eval->trained.inference) : eval->logit_count / samples_of(eval);
    snprintf(text, sizeof text,
             "{'descr': '<f4', 'fortran_order': False, 'shape': (%" PRIu64 ", %" PRIu64 "), }",
             eval->logit_count / columns, columns);
    memset(eval->logits, 0, FRONT);
    memcpy(eval->logits, magic, sizeof magic - 1);
    eval->logits[FRONT - 2] = NPY_HEADER - FRONT;
    memset(eval->logits + FRONT, ' ', NPY_HEADER - FRONT);
    memcpy(eval->logits + FRONT, text, strlen(text));
    eval->logits[NPY_HEADER - 1] = '\n';
    return keel_command_write_file(eval->own->logits, eval->logits,
                                   NPY_HEADER + keel_size(eval->logit_count * sizeof(float)));
}

static enum keel_status evaluate(struct eval *eval, const char *path)
{
    struct keel_trained *trained = &eval->trained;
    char identity[KEEL_IDENTITY_BYTES] = "";
    KEEL_TRY(check_options(eval->own));
    KEEL_TRY(keel_trained_find(&eval->own->trained, path, trained));
    KEEL_TRY(open_data(eval));
    KEEL_TRY(count_batches(eval));
    KEEL_TRY(prepare_classes(eval));
    if (keel_data_is_whole(trained->data))
        keel_job_identity(&trained->job, keel_data_digest(trained->data), identity);
    KEEL_TRY(keel_trained_open(trained, &eval->own->trained, identity));
    const struct keel_inference_scoring scoring = {.batches = eval->batches,
                                                   .right_of = eval->right_of,
                                                   .count_of = eval->count_of,
                                                   .keep = eval->own->logits != NULL ? keep_logits : NULL,
                                                   .progress = see_batch,
                                                   .context = eval};
    const enum keel_status status = keel_inference_score(trained->inference, &scoring, &eval->scores);
    keel_trained_meter_hide(&eval->meter);
    return status == KEEL_OK ? write_logits(eval) : status;
}

static void unmake(struct eval *eval)
{
    keel_trained_close(&eval->trained);
    keel_free(eval->right_of);
    keel_free(eval->count_of);
    keel_free(eval->logits);
    if (eval->temporary[0] != '\0' && keel_remove_tree(eval->temporary) != KEEL_OK)
        fprintf(stderr, "keel eval: %s stays: %s\n", eval->temporary, keel_detail());
}

/* ---- telling ------------------------------------------------------------------------------------------- */

/* The loss is the mean of what a token costs, in nats, and nothing else. */
static bool has_perplexity(const struct eval *eval)
{
    const struct keel_job *job = &eval->trained.job;
    const bool balances = job->kind == KEEL_MODEL_MOE || job->kind == KEEL_MODEL_MIXTRAL;
    return strcmp(keel_job_unit(job), "tokens") == 0 && (!balances || job->balance == 0.0F);
}

static double perplexity(const struct eval *eval)
{
    return exp((double)eval->scores.loss);
}

static void print_classes(const struct eval *eval)
{
    for (uint32_t c = 0; eval->count_of != NULL && c < keel_data_class_count(eval->trained.data); c++) {
        const uint64_t of = eval->count_of[c], right = eval->right_of[c];
        if (of > 0)
            printf("  class %-6" PRIu32 " %.4f  (%" PRIu64 " of %" PRIu64 ")\n", c,
                   (double)right / (double)of, right, of);
        else
            printf("  class %-6" PRIu32 " none of the samples\n", c);
    }
}

static void print_text(const struct eval *eval)
{
    const struct keel_trained *trained = &eval->trained;
    const uint64_t samples = samples_of(eval), tokens = samples * keel_data_sample_tokens(trained->data);
    printf("%s, step %" PRIu64 ", on %s: %" PRIu32 " batches, %" PRIu64 " samples", trained->directory,
           trained->info.step, eval->own->data != NULL ? eval->own->data : "its validation data",
           eval->batches, samples);
    if (tokens > samples)
        printf(", %" PRIu64 " tokens", tokens);
    if (trained->quantise.bits > 0) {
        const struct keel_trained_quantised found = keel_trained_quantised(trained);
        printf("\nweights     %s, %u of %u tensors; %.6g MB on the device, %.6g as floats",
               eval->own->trained.weights, found.tensors, found.of_tensors, (double)found.bytes / 1e6,
               (double)found.of_bytes / 1e6);
    }
    if (trained->averages)
        printf("\nweights     their average, of decay %g", (double)trained->job.ema);
    printf("\nloss        %.6g\n", (double)eval->scores.loss);
    if (has_perplexity(eval))
        printf("perplexity  %.6g\n", perplexity(eval));
    if (eval->scores.has_accuracy)
        printf("accuracy    %.4f\n", (double)eval->scores.accuracy);
    print_classes(eval);
}

static void put_classes(const struct eval *eval, struct keel_json *json)
{
    keel_json_open(json, "classes", '[');
    for (uint32_t c = 0; c < keel_data_class_count(eval->trained.data); c++) {
        keel_json_open(json, NULL, '{');
        keel_json_number(json, "class", c);
        keel_json_number(json, "right", eval->right_of[c]);
        keel_json_number(json, "samples", eval->count_of[c]);
        keel_json_close(json, '}');
    }
    keel_json_close(json, ']');
}

static void print_json(const struct eval *eval)
{
    const struct keel_trained *trained = &eval->trained;
    struct keel_json json = keel_command_json(stdout);
    char bits[16];
    uint32_t loss_bits;
    memcpy(&loss_bits, &eval->scores.loss, sizeof loss_bits);
    snprintf(bits, sizeof bits, "%08" PRIx32, loss_bits);
    keel_json_text(&json, "job", trained->job.name);
    keel_json_text(&json, "directory", trained->directory);
    keel_json_number(&json, "step", trained->info.step);
    keel_json_text(&json, "data", eval->own->data);
    keel_json_text(&json, "weights", eval->own->trained.weights);
    if (trained->averages)
        keel_json_real(&json, "ema", (double)trained->job.ema, FLT_DIG);
    keel_json_number(&json, "weight_bytes", keel_trained_quantised(trained).bytes);
    keel_json_number(&json, "batches", eval->batches);
    keel_json_number(&json, "samples", samples_of(eval));
    keel_json_number(&json, "tokens", samples_of(eval) * keel_data_sample_tokens(trained->data));
    if (isfinite(eval->scores.loss))
        keel_json_real(&json, "loss", (double)eval->scores.loss, DIGITS);
    else
        keel_json_text(&json, "loss", NULL);
    keel_json_text(&json, "loss_bits", bits);
    if (has_perplexity(eval) && isfinite(perplexity(eval)))
        keel_json_real(&json, "perplexity", perplexity(eval), DIGITS);
    if (eval->scores.has_accuracy)
        keel_json_real(&json, "accuracy", (double)eval->scores.accuracy, DIGITS);
    if (eval->count_of != NULL)
        put_classes(eval, &json);
    keel_command_json_end(&json);
}

/* ---- the command --------------------------------------------------------------------------------------- */

static int run(const struct keel_command *command)
{
    struct eval *eval;
    enum keel_status status = keel_alloc(1, sizeof *eval, &eval);
    if (status != KEEL_OK)
        return keel_command_report(command->set, status);
    eval->own = keel_command_own(command);
    eval->meter = keel_trained_meter();
    status = evaluate(eval, command->operands[0]);
    if (status == KEEL_OK && command->json)
        print_json(eval);
    else if (status == KEEL_OK)
        print_text(eval);
    const int code = status == KEEL_OK ? 0 : keel_command_report(command->set, status);
    unmake(eval);
    keel_free(eval);
    return code;
}

static const struct keel_command_option options[] = {
    {"--data", "FILE", KEEL_COMMAND_TEXT, offsetof(struct own, data),
     "evaluate on this and not on the job's validation data: a text, encoded as the job's is; token files, "
     "where\n"
     "DIR/*.bin names several; of images a directory with t10k-... IDX files"},
    {"--format", "F", KEEL_COMMAND_TEXT, offsetof(struct own, format),
     "of --data, as data.format: auto (default), text, uint16, uint32"},
    {"--batches", "N", KEEL_COMMAND_POSITIVE, offsetof(struct own, batches),
     "so many batches, evenly spread over the data; default: train.eval_batches"},
    {"--all", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, all),
     "as many as predict every token, or name every image, about once"},
    {"--per-class", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, per_class),
     "accuracy of each class too, where the model names classes"},
    {"--logits", "FILE", KEEL_COMMAND_TEXT, offsetof(struct own, logits),
     "write the scores of all classes, or of all tokens of a text, to FILE as NumPy's .npy, a row for each "
     "sample or token; with --all in the order of the data"},
    {"--force", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, force), "replace the file of --logits"},
    KEEL_TRAINED_OPTIONS,
    {.name = NULL}};

static const struct keel_command_kind eval_kind = {
    .name = "eval",
    .operands = "JOB.conf|PATH",
    .operands_min = 1,
    .operands_max = 1,
    .summary = "say what a snapshot is worth: loss, perplexity, accuracy",
    .details =
        "PATH is the directory of a run, a snapshot in it, or a store or run of snapshots; JOB.conf means "
        "the\n"
        "run's directory that keel run makes for it. One device evaluates, whatever plan has trained, and\n"
        "without other options the loss is the run's own of that step, to the bit (of a job with train.ema "
        "with\n"
        "--ema). With --data the job's\n"
        "training data are read only where the vocabulary follows from them (data.vocab = char; token files\n"
        "without a tokenizer; images without model.vocab). A text for a job with a tokenizer becomes tokens "
        "in\n"
        "a temporary file (TMPDIR).\n"
        "Perplexity is told where the loss is that of tokens alone: not of a moe or mixtral with "
        "model.balance.\n",
    .examples = "  keel eval runs/demo\n"
                "  keel eval demo.conf --out runs/other --step 200\n"
                "  keel eval runs/demo/ckpt/demo/step-300.1 --data book.txt --all\n"
                "  keel eval runs/fashion --per-class --json | jq .classes\n",
    .options = options,
    .run = run};
static const struct keel_command_kind *const kinds[] = {&eval_kind};
static const struct keel_command_set set = {.name = "keel", .kinds = kinds, .kind_count = 1};

int keel_eval_main(int argc, char **argv)
{
    return keel_command_main(&set, argc + 1,
                             argv - 1); /* main's own words, of which ours begins with "eval" */
}
