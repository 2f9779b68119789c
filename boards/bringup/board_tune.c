/* board_tune.c - `keel board tune`: better settings of the kernels' tunables for a board, measured.
 *
 * Goes through the tunables one after the other, each with the best of those before. A value is taken when
 * its kernels give all golden hashes and its workload is faster than with the value that holds, measured in
 * turns, by more than both scatter. What is slower, wrong, or does not build is passed over and told. Ends
 * when all were tried or the time is up; what was found until then is written. */
#include "board_file.h"
#include "board_kinds.h"
#include <inttypes.h>
#include <keel/board.h>
#include <keel/clock.h>
#include <keel/golden.h>
#include <keel/json.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP_LIMIT_NS (60 * KEEL_NS_PER_S)
enum {
    ROUNDS = 11,
    MEDIAN = ROUNDS / 2,
    BUFFERS = 4,
    COUNT = 1 << 20,
    SIDE = 512,
    SETTINGS_MAX = KEEL_BOARD_TUNABLES_MAX + 64, /* given, and found */
    TEXT_BYTES = 4096
};

struct tune_options {
    uint64_t seconds;
    const char *out;
    bool list;
};

static const struct keel_command_option options[] = {
    {"--seconds", "N", KEEL_COMMAND_COUNT, offsetof(struct tune_options, seconds),
     "stop after this time (120)"},
    {"--out", "FILE", KEEL_COMMAND_TEXT, offsetof(struct tune_options, out),
     "write there (tune.conf in the board's folder)"},
    {"--list", NULL, KEEL_COMMAND_FLAG, offsetof(struct tune_options, list),
     "the tunables, their values and what they change; nothing is measured"},
    {.name = NULL}};

static void begin(void *own)
{
    ((struct tune_options *)own)->seconds = 120;
}

/* Kernels with some settings, and the list of the workload on them. */
struct variant {
    struct keel_kernels *kernels;
    struct keel_launch_list list;
    uint64_t times_ns[ROUNDS]; /* ascending once it is measured */
};

struct tuner {
    struct keel_board *board;
    struct keel_board_file *file; /* board.conf alone, without tune.conf; owned */
    struct keel_queue *queue;
    struct keel_buffer *buffers[BUFFERS]; /* COUNT floats each */
    uint64_t deadline_ns;
    struct keel_setting settings[SETTINGS_MAX]; /* of the board's file, then what was found */
    uint32_t given_count, setting_count;
    double gains[SETTINGS_MAX]; /* of a setting that was found: how much faster, 0.1 for a tenth */
};

/* ---- what is measured ---- */

static enum keel_status list_gemm(struct tuner *tuner, struct variant *variant)
{
    for (int t = 0; t < 3; t++) { /* forward, and the two products of the gradient */
        const struct keel_gemm op = {.m = SIDE,
                                     .n = SIDE,
                                     .k = SIDE,
                                     .batch = 1,
                                     .transpose_a = t == 1,
                                     .transpose_b = t == 2,
                                     .lda = SIDE,
                                     .ldb = SIDE,
                                     .ldc = SIDE,
                                     .a = tuner->buffers[0],
                                     .b = tuner->buffers[1],
                                     .c = tuner->buffers[2]};
        KEEL_TRY(keel_op_gemm(variant->kernels, &op, &variant->list));
    }
    return KEEL_OK;
}

static enum keel_status list_attention(struct tuner *tuner, struct variant *variant)
{
    const struct keel_attention op = {.batch = 1,
                                      .tokens = 512,
                                      .heads = 8,
                                      .head_width = 64,
                                      .qkv = tuner->buffers[0],
                                      .out = tuner->buffers[1],
                                      .stats = tuner->buffers[2]};
    return keel_op_attention(variant->kernels, &op, &variant->list);
}

static enum keel_status list_rows(struct tuner *tuner, struct variant *variant)
{
    const struct keel_gelu gelu = {.count = COUNT, .x = tuner->buffers[0], .y = tuner->buffers[1]};
    const struct keel_add add = {
        .count = COUNT, .a = tuner->buffers[0], .b = tuner->buffers[1], .y = tuner->buffers[2]};
    const struct keel_layernorm norm = {.rows = COUNT / SIDE,
                                        .n = SIDE,
                                        .epsilon = 1e-5F,
                                        .x = tuner->buffers[0],
                                        .gamma = tuner->buffers[1],
                                        .y = tuner->buffers[2],
                                        .mean = tuner->buffers[3],
                                        .rstd = tuner->buffers[3]};
    KEEL_TRY(keel_op_gelu(variant->kernels, &gelu, &variant->list));
    KEEL_TRY(keel_op_add(variant->kernels, &add, &variant->list));
    return keel_op_layernorm(variant->kernels, &norm, &variant->list);
}

/* The launches that a tunable shows in. */
static enum keel_status list_for(struct tuner *tuner, const char *tunable, struct variant *variant)
{
    if (strncmp(tunable, "gemm.", 5) == 0)
        return list_gemm(tuner, variant);
    if (strncmp(tunable, "attention.", 10) == 0)
        return list_attention(tuner, variant);
    KEEL_TRY(list_rows(tuner, variant));
    return strncmp(tunable, "launch.", 7) == 0 ? KEEL_OK : list_gemm(tuner, variant);
}

static void variant_fini(struct variant *variant)
{
    keel_launch_list_fini(&variant->list);
    keel_kernels_destroy(variant->kernels);
    *variant = (struct variant){0};
}

static enum keel_status variant_init(struct tuner *tuner, const char *tunable, uint32_t setting_count,
                                     struct variant *variant)
{
    const struct keel_kernels_options with = {.settings = tuner->settings, .setting_count = setting_count};
    *variant = (struct variant){0};
    enum keel_status status =
        keel_kernels_create_with(keel_board_device(tuner->board), &with, &variant->kernels);
    if (status == KEEL_OK)
        status = list_for(tuner, tunable, variant);
    if (status != KEEL_OK)
        variant_fini(variant);
    return status;
}

static enum keel_status all_golden(struct tuner *tuner, struct keel_kernels *kernels)
{
    for (uint32_t i = 0; i < keel_golden_count(); i++) {
        struct keel_golden_result result;
        KEEL_TRY(keel_golden_run(kernels, tuner->queue, i, keel_deadline_after_ns(STEP_LIMIT_NS), &result));
        if (!result.matches || !result.intact)
            return keel_fail(KEEL_MISMATCH, "golden case %s is wrong with it", keel_golden_get(i).name);
    }
    return KEEL_OK;
}

static enum keel_status run_once(struct tuner *tuner, struct variant *variant, uint64_t *out_ns)
{
    const uint64_t began_ns = keel_now_ns();
    KEEL_TRY(keel_launch_list_run(&variant->list, tuner->queue));
    KEEL_TRY(keel_queue_finish(tuner->queue, keel_deadline_after_ns(STEP_LIMIT_NS)));
    *out_ns = keel_now_ns() - began_ns;
    return KEEL_OK;
}

static int ascending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Both in turns, once before that for what the first launch costs. */
static enum keel_status measure(struct tuner *tuner, struct variant *one, struct variant *other)
{
    KEEL_TRY(run_once(tuner, one, &one->times_ns[0]));
    KEEL_TRY(run_once(tuner, other, &other->times_ns[0]));
    for (int r = 0; r < ROUNDS; r++) {
        KEEL_TRY(run_once(tuner, one, &one->times_ns[r]));
        KEEL_TRY(run_once(tuner, other, &other->times_ns[r]));
    }
    qsort(one->times_ns, ROUNDS, sizeof one->times_ns[0], ascending);
    qsort(other->times_ns, ROUNDS, sizeof other->times_ns[0], ascending);
    return KEEL_OK;
}

/* Faster beyond noise: even its upper quartile lies below the other's lower one. */
static bool is_faster(const struct variant *one, const struct variant *other)
{
    return one->times_ns[ROUNDS * 3 / 4] < other->times_ns[ROUNDS / 4];
}

/* ---- the search ---- */

/* Try the last setting, which is not counted yet, against `best`; the faster of both is in `best` then. */
static enum keel_status try_setting(struct tuner *tuner, struct variant *best, bool *out_taken)
{
    const struct keel_setting *setting = &tuner->settings[tuner->setting_count];
    struct variant next;
    *out_taken = false;
    enum keel_status status = variant_init(tuner, setting->name, tuner->setting_count + 1, &next);
    if (status == KEEL_LIMIT || status == KEEL_UNSUPPORTED)
        return KEEL_OK; /* not for this board */
    if (status == KEEL_OK)
        status = measure(tuner, best, &next);
    const bool faster = status == KEEL_OK && is_faster(&next, best);
    if (faster)
        status = all_golden(tuner, next.kernels);
    if (faster && status == KEEL_OK) {
        tuner->gains[tuner->setting_count] =
            (double)best->times_ns[MEDIAN] / (double)next.times_ns[MEDIAN] - 1.0;
        const struct variant old = *best;
        *best = next;
        next = old;
        *out_taken = true;
    }
    if (status == KEEL_MISMATCH)
        fprintf(stderr, "keel board tune: %s = %" PRIu32 ": %s\n", setting->name, setting->value,
                keel_detail());
    if (next.kernels != NULL)
        variant_fini(&next);
    return status == KEEL_MISMATCH ? KEEL_OK : status;
}

static enum keel_status tune_one(struct tuner *tuner, uint32_t index)
{
    const struct keel_tunable tunable = keel_tunable_get(index);
    struct variant best;
    double gain = 1.0;
    bool found = false;
    KEEL_TRY(variant_init(tuner, tunable.name, tuner->setting_count, &best));
    const uint32_t before = keel_kernels_setting(best.kernels, index);
    struct keel_setting *setting = &tuner->settings[tuner->setting_count];
    struct keel_setting chosen = {.name = tunable.name, .value = before};
    enum keel_status status = KEEL_OK;
    for (uint32_t v = 0; v < tunable.value_count && status == KEEL_OK; v++) {
        bool taken = false;
        if (tunable.values[v] == before || keel_remaining_ns(tuner->deadline_ns) == 0)
            continue;
        *setting = (struct keel_setting){.name = tunable.name, .value = tunable.values[v]};
        status = try_setting(tuner, &best, &taken);
        if (taken) {
            gain *= 1.0 + tuner->gains[tuner->setting_count];
            chosen = *setting;
            found = true;
        }
    }
    variant_fini(&best);
    if (status == KEEL_OK && found) {
        *setting = chosen;
        tuner->gains[tuner->setting_count++] = gain - 1.0;
    }
    return status;
}

/* What board.conf says stays, for a person wrote it. */
static enum keel_status take_given(struct tuner *tuner)
{
    const char *folder = keel_board_file(tuner->board)->folder;
    KEEL_TRY(keel_alloc(1, sizeof *tuner->file, &tuner->file));
    if (folder[0] != '\0')
        KEEL_TRY(keel_board_file_read(folder, tuner->file));
    tuner->given_count = tuner->setting_count = tuner->file->tunable_count;
    return keel_board_settings(tuner->file, tuner->settings);
}

static bool is_given(const struct tuner *tuner, const char *name)
{
    for (uint32_t i = 0; i < tuner->given_count; i++)
        if (strcmp(tuner->settings[i].name, name) == 0)
            return true;
    return false;
}

static enum keel_status search(struct tuner *tuner)
{
    struct keel_device *device = keel_board_device(tuner->board);
    KEEL_TRY(keel_queue_create(device, &tuner->queue));
    for (int i = 0; i < BUFFERS; i++)
        KEEL_TRY(keel_buffer_create(device, COUNT * sizeof(float), &tuner->buffers[i]));
    for (uint32_t i = 0; i < keel_tunable_count(); i++)
        if (!is_given(tuner, keel_tunable_get(i).name) && keel_remaining_ns(tuner->deadline_ns) > 0)
            KEEL_TRY(tune_one(tuner, i));
    return KEEL_OK;
}

/* ---- words ---- */

static int list_tunables(void)
{
    for (uint32_t i = 0; i < keel_tunable_count(); i++) {
        const struct keel_tunable tunable = keel_tunable_get(i);
        printf("%-22s %s\n%22s", tunable.name, tunable.changes, "");
        for (uint32_t v = 0; v < tunable.value_count; v++)
            printf(" %" PRIu32, tunable.values[v]);
        putchar('\n');
    }
    return 0;
}

static enum keel_status write_file(const struct tuner *tuner, const char *path)
{
    char text[TEXT_BYTES];
    const uint32_t day = keel_board_day(keel_wall_ns());
    int length = snprintf(text, sizeof text, "[tune]\ndriver = %s\nday = %04u-%02u-%02u\n\n[kernels]\n",
                          keel_device_info(keel_board_device(tuner->board))->driver_version, day / 10000,
                          day / 100 % 100, day % 100);
    for (uint32_t i = tuner->given_count; i < tuner->setting_count; i++)
        length += snprintf(text + length, sizeof text - (size_t)length, "%s = %" PRIu32 "\n",
                           tuner->settings[i].name, tuner->settings[i].value);
    return keel_command_write_file(path, text, (size_t)length);
}

static void tell(const struct keel_command *command, const struct tuner *tuner, const char *path)
{
    struct keel_json json = {.out = stdout};
    if (command->json) {
        keel_json_open(&json, NULL, '{');
        keel_json_text(&json, "file", path);
        keel_json_open(&json, "settings", '{');
    }
    for (uint32_t i = tuner->given_count; i < tuner->setting_count; i++) {
        if (command->json)
            keel_json_number(&json, tuner->settings[i].name, tuner->settings[i].value);
        else
            printf("%s = %" PRIu32 ": %.0f%% faster\n", tuner->settings[i].name, tuner->settings[i].value,
                   tuner->gains[i] * 100.0);
    }
    if (command->json) {
        keel_json_close(&json, '}');
        keel_json_close(&json, '}');
        putchar('\n');
    } else {
        printf("%s written\n", path);
    }
}

static enum keel_status tune_board(const struct keel_command *command, struct tuner *tuner)
{
    const struct tune_options *own = keel_command_own(command);
    const struct keel_board_file *file = keel_board_file(tuner->board);
    char path[KEEL_PATH_BYTES];
    if (own->out == NULL && file->folder[0] == '\0')
        return keel_fail(KEEL_NOT_FOUND, "no board file matches %s: say --out FILE, or keel board init first",
                         command->operands[0]);
    if (own->out == NULL)
        KEEL_TRY(keel_path_join(path, file->folder, "tune.conf"));
    else
        snprintf(path, sizeof path, "%s", own->out);
    KEEL_TRY(search(tuner));
    KEEL_TRY(write_file(tuner, path));
    tell(command, tuner, path);
    return KEEL_OK;
}

static void tuner_fini(struct tuner *tuner)
{
    if (tuner->queue != NULL)
        keel_queue_destroy(tuner->queue);
    for (int i = 0; i < BUFFERS; i++)
        if (tuner->buffers[i] != NULL)
            keel_buffer_destroy(tuner->buffers[i]);
    keel_board_close(tuner->board);
    keel_free(tuner->file);
}

static int tune(const struct keel_command *command)
{
    const struct tune_options *own = keel_command_own(command);
    if (own->list)
        return list_tunables();
    if (command->operand_count != 1)
        return keel_board_wrong_use("tune wants one board", "");
    struct tuner tuner = {.deadline_ns = keel_deadline_after_ns(own->seconds * KEEL_NS_PER_S)};
    enum keel_status status = keel_board_open(command->operands[0], NULL, &tuner.board);
    if (status == KEEL_OK)
        status = take_given(&tuner);
    if (status == KEEL_OK)
        status = tune_board(command, &tuner);
    tuner_fini(&tuner);
    return status == KEEL_OK ? 0 : keel_board_report(status);
}

const struct keel_command_kind keel_board_tune = {
    .name = "tune",
    .operands = "BOARD",
    .operands_max = 1,
    .summary = "measure which settings of the kernels are faster on a board",
    .details =
        "Tries the values of each tunable in turns with the one that holds, and keeps a value that is\n"
        "faster beyond the noise and gives all golden hashes. What board.conf sets stays. The file is read\n"
        "whenever the board is opened, as long as the driver is the same. No setting changes a bit.\n",
    .examples = "  keel board tune --list\n"
                "  keel board tune pocl:0 --seconds 60 --out tune.conf\n",
    .options = options,
    .begin = begin,
    .run = tune};
