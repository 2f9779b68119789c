/* sample_cmd.c - `keel sample JOB|SNAPSHOT`: text from a snapshot, on one device, as it comes. With the
 * settings of a run's own text it is that text, to the byte. */
#include "sample_cmd.h"
#include "trained.h"
#include <errno.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS_MAX = 1 << 24, TOKENS = 256, PROMPT_BYTES_MAX = 1 << 26, READ_BYTES = 1 << 16 };

struct own {
    struct keel_trained_options trained; /* first */
    const char *prompt, *prompt_file, *temperature, *top_p, *seed;
    uint64_t tokens, top_k; /* top_k 0: not given */
    struct keel_command_texts stop;
    bool no_cache;
};

struct sample {
    const struct own *own;
    bool json;
    struct keel_trained trained;
    struct keel_sampling sampling;
    struct keel_stops stops;
    bool stopped;
    char *prompt; /* owned, as what follows; NULL: none */
    size_t prompt_bytes;
    int32_t *prompt_tokens;
    size_t prompt_count;
    char *text; /* what was written, of which the first `printed` bytes are on their way */
    size_t bytes, capacity, printed;
    uint32_t *tokens;
    size_t count, token_capacity;
    uint64_t begun_ns, first_ns, ended_ns;
};

/* ---- options ------------------------------------------------------------------------------------------- */

static enum keel_status read_float(const char *option, const char *text, float otherwise, float *out)
{
    char *end;
    *out = otherwise;
    if (text == NULL)
        return KEEL_OK;
    *out = strtof(text, &end);
    if (end == text || *end != '\0' || !isfinite(*out))
        return keel_fail(KEEL_INVALID, "%s %.40s: a number is wanted", option, text);
    return KEEL_OK;
}

static enum keel_status read_seed(const char *text, uint64_t otherwise, uint64_t *out)
{
    char *end;
    *out = otherwise;
    if (text == NULL)
        return KEEL_OK;
    errno = 0;
    *out = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0)
        return keel_fail(KEEL_INVALID, "--seed %.40s: a whole number below 2^64 is wanted", text);
    return KEEL_OK;
}

static enum keel_status read_sampling(struct sample *sample)
{
    const struct own *own = sample->own;
    struct keel_sampling *out = &sample->sampling;
    KEEL_TRY(read_float("--temperature", own->temperature, KEEL_TEMPERATURE, &out->temperature));
    KEEL_TRY(read_float("--top-p", own->top_p, 1.0F, &out->top_p));
    KEEL_TRY(read_seed(own->seed, 0, &out->seed));
    if (own->top_k > UINT32_MAX)
        return keel_fail(KEEL_INVALID, "--top-k %" PRIu64 ": at most %u", own->top_k, UINT32_MAX);
    if (own->tokens > TOKENS_MAX)
        return keel_fail(KEEL_INVALID, "--tokens %" PRIu64 ": at most %d", own->tokens, TOKENS_MAX);
    if (own->prompt != NULL && own->prompt_file != NULL)
        return keel_fail(KEEL_INVALID, "--prompt and --prompt-file: one of them is wanted");
    out->top_k = (uint32_t)own->top_k;
    sample->stops = (struct keel_stops){.texts = own->stop.at, .count = (uint32_t)own->stop.count};
    if (keel_stops_check(&sample->stops) != KEEL_OK) {
        char why[KEEL_DETAIL_BYTES];
        snprintf(why, sizeof why, "%.400s", keel_detail());
        return keel_fail(KEEL_INVALID, "--stop: %s", why);
    }
    return keel_sampling_check(out);
}

/* ---- the prompt ---------------------------------------------------------------------------------------- */

static enum keel_status read_input(char **out, size_t *out_bytes)
{
    size_t capacity = 0, bytes = 0, more = 1;
    while (more > 0) {
        KEEL_TRY(keel_grow(out, &capacity, bytes + READ_BYTES, 1));
        more = fread(*out + bytes, 1, READ_BYTES, stdin);
        bytes += more;
        if (bytes > PROMPT_BYTES_MAX)
            return keel_fail(KEEL_LIMIT, "--prompt-file -: more than %d bytes", PROMPT_BYTES_MAX);
    }
    if (ferror(stdin) != 0)
        return keel_fail_errno(errno, "--prompt-file -: cannot be read");
    *out_bytes = bytes;
    return KEEL_OK;
}

static enum keel_status read_prompt(struct sample *sample)
{
    const struct own *own = sample->own;
    if (own->prompt_file != NULL && strcmp(own->prompt_file, "-") == 0)
        return read_input(&sample->prompt, &sample->prompt_bytes);
    if (own->prompt_file != NULL)
        return keel_file_read(own->prompt_file, PROMPT_BYTES_MAX, &sample->prompt, &sample->prompt_bytes);
    sample->prompt_bytes = own->prompt != NULL ? strlen(own->prompt) : 0;
    KEEL_TRY(keel_alloc(sample->prompt_bytes + 1, 1, &sample->prompt));
    if (own->prompt != NULL)
        memcpy(sample->prompt, own->prompt, sample->prompt_bytes);
    return KEEL_OK;
}

static enum keel_status encode_prompt(struct sample *sample)
{
    const uint32_t block = sample->trained.job.block;
    KEEL_TRY(read_prompt(sample));
    const enum keel_status status =
        keel_data_encode(sample->trained.data, sample->prompt, sample->prompt_bytes, &sample->prompt_tokens,
                         &sample->prompt_count);
    if (status != KEEL_OK) {
        char why[KEEL_DETAIL_BYTES];
        snprintf(why, sizeof why, "%.400s", keel_detail());
        return keel_fail(status, "the prompt: %s", why);
    }
    if (sample->prompt_count > block)
        return keel_fail(
            KEEL_INVALID,
            "the prompt has %zu tokens, and the model sees %u at once (model.block): give its end",
            sample->prompt_count, block);
    return KEEL_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static enum keel_status print_to(struct sample *sample, size_t end)
{
    const size_t bytes = end - sample->printed;
    if (bytes == 0 || sample->json)
        return KEEL_OK;
    (void)fwrite(sample->text + sample->printed, 1, bytes, stdout);
    sample->printed = end;
    return keel_command_printed(); /* a failure is told once: by this call, and not when the command ends */
}

static enum keel_status write_token(void *context, uint32_t token, const char *text, size_t bytes)
{
    struct sample *sample = context;
    if (sample->count == 0)
        sample->first_ns = keel_now_ns();
    KEEL_TRY(keel_grow(&sample->tokens, &sample->token_capacity, sample->count + 1, sizeof *sample->tokens));
    sample->tokens[sample->count++] = token;
    KEEL_TRY(keel_grow(&sample->text, &sample->capacity, sample->bytes + bytes + 1, 1));
    memcpy(sample->text + sample->bytes, text, bytes);
    sample->bytes += bytes;
    sample->text[sample->bytes] = '\0';
    return print_to(sample, keel_whole_characters(sample->text, sample->bytes));
}

/* ---- the model ----------------------------------------------------------------------------------------- */

static enum keel_status open_model(struct sample *sample, const char *path)
{
    struct keel_trained *trained = &sample->trained;
    char identity[KEEL_IDENTITY_BYTES];
    KEEL_TRY(keel_trained_find_text(&sample->own->trained, path, trained, identity));
    if (sample->own->seed == NULL)
        sample->sampling.seed = trained->job.seed;
    KEEL_TRY(encode_prompt(sample));
    const uint64_t longest = (sample->prompt_count > 0 ? sample->prompt_count : 1) + sample->own->tokens;
    trained->decode = !sample->own->no_cache && keel_inference_decodes(&trained->job, trained->data);
    if (trained->decode > 0 && sample->prompt_count > 0)
        trained->prompt_rows =
            keel_prompt_rows(sample->prompt_count - 1); /* the last one's logits are wanted */
    trained->only_decode = trained->decode > 0 && longest - 1 <= trained->job.block;
    return keel_trained_open(trained, &sample->own->trained, identity);
}

static enum keel_status generate(struct sample *sample)
{
    const struct keel_generator generation = {.sampling = sample->sampling,
                                              .stops = sample->stops,
                                              .out_stopped = &sample->stopped,
                                              .prompt = sample->prompt_tokens,
                                              .prompt_count = (uint32_t)sample->prompt_count,
                                              .tokens = (uint32_t)sample->own->tokens,
                                              .write = write_token,
                                              .context = sample};
    sample->begun_ns = keel_now_ns();
    const enum keel_status status = keel_inference_generate(sample->trained.inference, &generation);
    sample->ended_ns = keel_now_ns();
    KEEL_TRY(status);
    return print_to(sample, sample->bytes);
}

/* ---- telling ------------------------------------------------------------------------------------------- */

/* Of the tokens behind the first, which waits for kernels to be compiled. */
static double tokens_per_s(const struct sample *sample)
{
    const uint64_t ns = sample->ended_ns - sample->first_ns;
    return sample->count > 1 && ns > 0 ? (double)(sample->count - 1) * 1e9 / (double)ns : 0;
}

static double first_s(const struct sample *sample)
{
    return (double)(sample->first_ns - sample->begun_ns) / 1e9;
}

static void print_json(const struct sample *sample)
{
    keel_hide_zeros(sample->text, sample->bytes);
    struct keel_json json = keel_command_json(stdout);
    keel_json_text(&json, "job", sample->trained.job.name);
    keel_json_text(&json, "directory", sample->trained.directory);
    keel_json_number(&json, "step", sample->trained.info.step);
    keel_json_number(&json, "seed", sample->sampling.seed);
    keel_json_number(&json, "prompt_tokens", sample->prompt_count);
    keel_json_text(&json, "text", sample->text);
    keel_json_open(&json, "tokens", '[');
    for (size_t i = 0; i < sample->count; i++)
        keel_json_number(&json, NULL, sample->tokens[i]);
    keel_json_close(&json, ']');
    keel_json_text(&json, "weights", sample->own->trained.weights);
    keel_json_text(&json, "finish_reason", sample->stopped ? "stop" : "length");
    keel_json_bool(&json, "cache", sample->trained.decode > 0);
    keel_json_real(&json, "first_token_s", first_s(sample), 6);
    keel_json_real(&json, "tokens_per_s", tokens_per_s(sample), 3);
    keel_command_json_end(&json);
}

static void print_rate(const struct sample *sample)
{
    fprintf(stderr,
            "%skeel sample: step %" PRIu64 ", %zu tokens, the first after %.2f s, then %.1f tokens/s\n",
            sample->bytes > 0 && sample->text[sample->bytes - 1] == '\n' ? "" : "\n",
            sample->trained.info.step, sample->count, first_s(sample), tokens_per_s(sample));
}

/* ---- the command --------------------------------------------------------------------------------------- */

static void unmake(struct sample *sample)
{
    keel_trained_close(&sample->trained);
    keel_free(sample->prompt);
    keel_free(sample->prompt_tokens);
    keel_free(sample->text);
    keel_free(sample->tokens);
}

static int run(const struct keel_command *command)
{
    struct sample *sample;
    enum keel_status status = keel_alloc(1, sizeof *sample, &sample);
    if (status != KEEL_OK)
        return keel_command_report(command->set, status);
    sample->own = keel_command_own(command);
    sample->json = command->json;
    status = read_sampling(sample);
    if (status == KEEL_OK)
        status = open_model(sample, command->operands[0]);
    if (status == KEEL_OK)
        status = generate(sample);
    if (status == KEEL_OK && sample->json)
        print_json(sample);
    else if (status == KEEL_OK)
        print_rate(sample);
    const int code = status == KEEL_OK ? 0 : keel_command_report(command->set, status);
    unmake(sample);
    keel_free(sample);
    return code;
}

static void begin(void *own)
{
    ((struct own *)own)->tokens = TOKENS;
}

static const struct keel_command_option options[] = {
    {"--prompt", "TEXT", KEEL_COMMAND_TEXT, offsetof(struct own, prompt),
     "the text goes on from this; without a prompt from a line's end"},
    {"--prompt-file", "FILE", KEEL_COMMAND_TEXT, offsetof(struct own, prompt_file),
     "or from what is in FILE; -: the standard input"},
    {"--tokens", "N", KEEL_COMMAND_POSITIVE, offsetof(struct own, tokens), "to generate; default 256"},
    {"--stop", "TEXT", KEEL_COMMAND_TEXTS, offsetof(struct own, stop),
     "end before this appears in the text; up to four of them"},
    {"--temperature", "T", KEEL_COMMAND_TEXT, offsetof(struct own, temperature),
     "divides the logits: 0 takes the likeliest token; default 0.8"},
    {"--top-k", "K", KEEL_COMMAND_POSITIVE, offsetof(struct own, top_k),
     "draw from the K likeliest tokens; default: all"},
    {"--top-p", "P", KEEL_COMMAND_TEXT, offsetof(struct own, top_p),
     "draw from the fewest tokens whose probabilities add up to P; default 1: all"},
    {"--seed", "N", KEEL_COMMAND_TEXT, offsetof(struct own, seed), "of what is drawn; default: job.seed"},
    {"--no-cache", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, no_cache),
     "compute all tokens anew for each one, and keep no keys and values: the text is the same"},
    KEEL_TRAINED_OPTIONS,
    {.name = NULL}};

static const struct keel_command_kind sample_kind = {
    .name = "sample",
    .operands = "JOB.conf|PATH",
    .operands_min = 1,
    .operands_max = 1,
    .summary = "write text by a snapshot of a language model",
    .details =
        "PATH is the directory of a run, a snapshot in it, or a store or run of snapshots; JOB.conf means "
        "the\n"
        "run's directory that keel run makes for it. Text goes to the standard output as it comes, in whole\n"
        "characters, without the prompt; the rate goes to the standard error. The same seed gives the same "
        "text\n"
        "on every device; without options but --tokens it is the text of the run itself (train.sample).\n"
        "Of token files without a tokenizer, prompt and text are numbers.\n"
        "Where the text is longer than the model sees at once (model.block), its last tokens count.\n",
    .examples = "  keel sample runs/demo --prompt 'In the beginning' --tokens 400\n"
                "  keel sample runs/demo --step 200 --temperature 0\n"
                "  keel sample demo.conf --top-k 40 --top-p 0.95 --seed 7\n"
                "  echo 'Once upon' | keel sample runs/demo --prompt-file - --json | jq -r .text\n",
    .options = options,
    .begin = begin,
    .run = run};
static const struct keel_command_kind *const kinds[] = {&sample_kind};
static const struct keel_command_set set = {.name = "keel", .kinds = kinds, .kind_count = 1};

int keel_sample_main(int argc, char **argv)
{
    return keel_command_main(&set, argc + 1,
                             argv - 1); /* main's own words, of which ours begins with "sample" */
}
