/* generate_test.c - which token is drawn: shares as softmax has them, candidates as top k and top p leave
 * them, the same for a seed; and the window that a model is asked with. */
#include "generate.h"
#include "harness.h"
#include <keel/file.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 40, DRAWS = 20000 };

static struct keel_token_weight order[TOKENS];
static float weights[TOKENS], logits[TOKENS];
static const struct keel_sampling_scratch scratch = {.weights = weights, .order = order};

static uint64_t state;
static float uniform(void)
{
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407U;
    return (float)(state >> 40) / 16777216.0F;
}

static void draw_logits(int seed)
{
    state = (uint64_t)seed + 1;
    for (uint32_t i = 0; i < TOKENS; i++)
        logits[i] = 8.0F * uniform() - 4.0F;
    logits[TOKENS - 1] = logits[3]; /* of equal ones the first */
}

/* By the definition, in doubles: tokens in descending order until k of them, or a share of p, are there. */
static void expect(const struct keel_sampling *how, double out[TOKENS])
{
    double shares[TOKENS], sum = 0, seen = 0;
    bool taken[TOKENS] = {false};
    for (uint32_t i = 0; i < TOKENS; i++)
        shares[i] = exp((double)logits[i] / (double)how->temperature);
    const uint32_t most = how->top_k > 0 && how->top_k < TOKENS ? how->top_k : TOKENS;
    uint32_t ranked[TOKENS];
    for (uint32_t n = 0; n < most; n++) {
        uint32_t best = TOKENS;
        for (uint32_t i = 0; i < TOKENS; i++)
            if (!taken[i] && (best == TOKENS || shares[i] > shares[best]))
                best = i;
        taken[best] = true;
        ranked[n] = best;
        sum += shares[best];
    }
    memset(out, 0, TOKENS * sizeof *out);
    double kept = 0;
    for (uint32_t n = 0; n < most && seen < (double)how->top_p * sum; n++) {
        seen += shares[ranked[n]];
        out[ranked[n]] = shares[ranked[n]];
        kept += shares[ranked[n]];
    }
    for (uint32_t i = 0; i < TOKENS; i++)
        out[i] /= kept;
}

static const struct keel_sampling ways[] = {{.temperature = 1, .top_p = 1},
                                            {.temperature = 0.5F, .top_p = 1},
                                            {.temperature = 2, .top_k = 7, .top_p = 1},
                                            {.temperature = 1, .top_p = 0.8F},
                                            {.temperature = 1.3F, .top_k = 20, .top_p = 0.6F},
                                            {.temperature = 1, .top_k = 1, .top_p = 1},
                                            {.temperature = 1, .top_p = 1e-9F}};

START_TEST(shares_are_those_of_the_softmax_of_what_is_left)
{
    const struct keel_sampling *how = &ways[_i];
    for (int seed = 0; seed < 20; seed++) {
        double wanted[TOKENS], counted[TOKENS] = {0};
        draw_logits(seed);
        expect(how, wanted);
        for (uint32_t d = 0; d < DRAWS; d++) /* evenly: each share is met within a few draws */
            counted[keel_sampling_draw(how, logits, TOKENS, ((float)d + 0.5F) / DRAWS, scratch)]++;
        for (uint32_t i = 0; i < TOKENS; i++) {
            ck_assert_double_eq_tol(counted[i] / DRAWS, wanted[i], 3.0 / DRAWS);
            ck_assert(wanted[i] > 0 || counted[i] == 0);
        }
    }
}
END_TEST

START_TEST(the_likeliest_is_taken_at_temperature_0_and_of_equal_ones_the_first)
{
    const struct keel_sampling greedy = {.temperature = 0, .top_p = 1};
    draw_logits(1);
    logits[3] = logits[TOKENS - 1] = 9;
    ck_assert_uint_eq(keel_sampling_draw(&greedy, logits, TOKENS, 0.9F, scratch), 3);
    const struct keel_sampling cold = {.temperature = 1e-30F, .top_k = 1, .top_p = 1};
    ck_assert_uint_eq(keel_sampling_draw(&cold, logits, TOKENS, 0.9F, scratch), 3);
    const float last = nextafterf(1, 0);
    const struct keel_sampling all = {.temperature = 1, .top_k = 5, .top_p = 1};
    ck_assert_uint_lt(keel_sampling_draw(&all, logits, TOKENS, last, scratch), TOKENS);
}
END_TEST

START_TEST(settings_out_of_range_are_refused)
{
    const struct keel_sampling wrong[] = {
        {.temperature = -1, .top_p = 1},       {.temperature = NAN, .top_p = 1},
        {.temperature = INFINITY, .top_p = 1}, {.temperature = 1, .top_p = 0},
        {.temperature = 1, .top_p = NAN},      {.temperature = 1, .top_p = 1.01F}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        ck_status(keel_sampling_check(&wrong[i]), KEEL_INVALID);
    ck_ok(keel_sampling_check(&ways[0]));
}
END_TEST

/* ---- windows ------------------------------------------------------------------------------------------- */

enum { BLOCK = 5 };

struct asked {
    uint32_t calls, written, stop_at;
    char text[64];
};

/* The token behind the last one, round and round; and what it is asked with is the text so far. */
static enum keel_status predict(void *context, const int32_t *window, uint32_t length, const float **out)
{
    struct asked *asked = context;
    ck_assert_uint_le(length, BLOCK);
    for (uint32_t i = 1; i < length; i++)
        ck_assert_int_eq(window[i], (window[i - 1] + 1) % 4);
    memset(logits, 0, sizeof logits);
    logits[(window[length - 1] + 1) % 4] = 5;
    logits[7] = 100; /* of a vocabulary that was padded: no token */
    *out = logits;
    asked->calls++;
    return KEEL_OK;
}

static enum keel_status write_text(void *context, uint32_t token, const char *text, size_t bytes)
{
    struct asked *asked = context;
    ck_assert_uint_lt(token, 4);
    ck_assert_uint_eq(bytes, 1);
    asked->text[asked->written++] = text[0];
    return asked->written == asked->stop_at ? KEEL_INTERRUPTED : KEEL_OK;
}

START_TEST(a_window_slides_over_the_text)
{
    char directory[] = "/tmp/keel-generate-XXXXXX";
    struct keel_job job = {.kind = KEEL_MODEL_GPT, .block = BLOCK, .batch = 1};
    struct keel_data *data;
    struct asked asked = {.calls = 0};
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_ok(keel_path_join(job.path, directory, "text"));
    ck_ok(keel_file_replace(job.path, "abcdabcd", 8, 0600));
    ck_ok(keel_data_open_to_use(&job, &(struct keel_data_use){.val_path = NULL}, &data));
    struct keel_generator generation = {.data = data,
                                        .sampling = {.top_p = 1},
                                        .tokens = 12,
                                        .block = BLOCK,
                                        .vocab = 8,
                                        .predict = predict,
                                        .write = write_text,
                                        .context = &asked};
    ck_ok(keel_generate(&generation));
    ck_assert_str_eq(asked.text, "bcdabcdabcda"); /* from token 0 on, as the text has no line's end */
    const int32_t prompt[] = {2, 3, 0, 1, 2, 3};
    generation.prompt = prompt;
    generation.prompt_count = BLOCK;
    asked = (struct asked){.stop_at = 3};
    ck_status(keel_generate(&generation), KEEL_INTERRUPTED);
    ck_assert_str_eq(asked.text, "dab");
    ck_assert_uint_eq(asked.calls, 3);
    generation.prompt_count = BLOCK + 1;
    ck_status(keel_generate(&generation), KEEL_INVALID);
    ck_assert_uint_eq(asked.calls, 3);
    keel_data_close(data);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

static enum keel_status write_some(void *context, uint32_t token, const char *text, size_t bytes)
{
    struct asked *asked = context;
    (void)token;
    asked->calls++;
    memcpy(asked->text + asked->written, text, bytes);
    asked->written += (uint32_t)bytes;
    return KEEL_OK;
}

/* The text is bcdabcdabcda, a token a letter: what a stop may begin with waits, and nothing of a stop comes.
 */
START_TEST(a_text_ends_before_a_stop)
{
    static const struct {
        const char *stops[2], *text;
        uint32_t calls;
    } rows[] = {{{"dab"}, "bc", 5},
                {{"c", "zz"}, "b", 2},
                {{"bcdabcdabcdab"}, "bcdabcdabcda", 12},
                {{"abcda", "dabx"}, "bcd", 8},
                {{"dabcx", "cda"}, "b", 4},
                {{"cdabcdabcda"}, "b", 12}};
    char directory[] = "/tmp/keel-generate-XXXXXX";
    struct keel_job job = {.kind = KEEL_MODEL_GPT, .block = BLOCK, .batch = 1};
    struct keel_data *data;
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_ok(keel_path_join(job.path, directory, "text"));
    ck_ok(keel_file_replace(job.path, "abcdabcd", 8, 0600));
    ck_ok(keel_data_open_to_use(&job, &(struct keel_data_use){.val_path = NULL}, &data));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct asked in = {.calls = 0}, out = {.calls = 0};
        bool stopped = false;
        struct keel_writing text;
        const struct keel_generator generation = {.data = data,
                                                  .sampling = {.top_p = 1},
                                                  .stops = {rows[i].stops, rows[i].stops[1] != NULL ? 2 : 1},
                                                  .out_stopped = &stopped,
                                                  .tokens = 12,
                                                  .block = BLOCK,
                                                  .vocab = 8,
                                                  .write = write_some,
                                                  .context = &out};
        ck_ok(keel_writing_begin(&text, &generation));
        while (!keel_writing_is_whole(&text)) {
            const float *next;
            uint32_t length;
            const int32_t *window = keel_writing_window(&text, &length);
            ck_ok(predict(&in, window, length, &next));
            ck_ok(keel_writing_draw(&text, next));
        }
        ck_assert_msg(strcmp(out.text, rows[i].text) == 0 && out.calls == rows[i].calls &&
                          text.stopped == (strlen(rows[i].text) < 12),
                      "row %zu: %s, %u tokens", i, out.text, out.calls);
        keel_writing_end(&text);
    }
    const char *const wrong[] = {"a", "b", "c", "d", ""};
    ck_status(keel_stops_check(&(struct keel_stops){wrong, 5}), KEEL_INVALID);
    ck_status(keel_stops_check(&(struct keel_stops){wrong + 4, 1}), KEEL_INVALID);
    ck_ok(keel_stops_check(&(struct keel_stops){wrong, 4}));
    keel_data_close(data);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

/* Tokens without a tokenizer are numbers: "12 " again and again. Which stop is whole first does not depend on
 * a token that brings several. */
START_TEST(which_stop_comes_first_its_bytes_say_and_not_the_tokens)
{
    static const char *const stops[][2] = {{"12 ", "2"}, {"2 12", " "}, {"2 ", "12 "}};
    static const char *const texts[] = {"1", "12", ""};
    char directory[] = "/tmp/keel-generate-XXXXXX";
    struct keel_job job = {.kind = KEEL_MODEL_GPT, .block = BLOCK, .batch = 1};
    const uint16_t tokens[BLOCK * 4] = {12};
    float likely[13] = {[12] = 1};
    struct keel_data *data;
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_ok(keel_path_join(job.path, directory, "tokens.bin"));
    ck_ok(keel_file_replace(job.path, tokens, sizeof tokens, 0600));
    ck_ok(keel_data_open_to_use(&job, &(struct keel_data_use){.val_path = NULL}, &data));
    for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++) {
        struct asked out = {.calls = 0};
        struct keel_writing text;
        const struct keel_generator generation = {.data = data,
                                                  .sampling = {.top_p = 1},
                                                  .stops = {stops[i], 2},
                                                  .tokens = 3,
                                                  .block = BLOCK,
                                                  .vocab = 13,
                                                  .write = write_some,
                                                  .context = &out};
        ck_ok(keel_writing_begin(&text, &generation));
        while (!keel_writing_is_whole(&text))
            ck_ok(keel_writing_draw(&text, likely));
        ck_assert_msg(strcmp(out.text, texts[i]) == 0 && text.stopped, "row %zu: `%s`", i, out.text);
        keel_writing_end(&text);
    }
    keel_data_close(data);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, shares_are_those_of_the_softmax_of_what_is_left, 0, sizeof ways / sizeof ways[0]);
    tcase_add_test(tc, the_likeliest_is_taken_at_temperature_0_and_of_equal_ones_the_first);
    tcase_add_test(tc, settings_out_of_range_are_refused);
    tcase_add_test(tc, a_window_slides_over_the_text);
    tcase_add_test(tc, a_text_ends_before_a_stop);
    tcase_add_test(tc, which_stop_comes_first_its_bytes_say_and_not_the_tokens);
}

KEEL_TEST_MAIN("generate", cases, 30)
