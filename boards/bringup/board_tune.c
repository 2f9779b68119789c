/* board_tune.c - `keel board tune`: better settings of the kernels' tunables for a board, measured.
 *
 * Goes through the tunables one after the other, each with the best of those before. A value is taken when it
 * is faster and right (tune_trial.c). What is slower, wrong, does not build, dies or hangs is passed over and
 * told. Ends when all were tried or the time is up; what was found until then is written. Nothing is written
 * when nothing could be measured. */
#include "board_file.h"
#include "board_kinds.h"
#include "tune_trial.h"
#include <inttypes.h>
#include <keel/board.h>
#include <keel/clock.h>
#include <keel/json.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES = 4096 };

struct tune_options {
    uint64_t seconds;
    const char *out, *clblast;
    bool list;
    bool trial; /* the process of a trial */
};

static const struct keel_command_option options[] = {
    {"--seconds", "N", KEEL_COMMAND_COUNT, offsetof(struct tune_options, seconds),
     "stop after this time (120)"},
    {"--out", "FILE", KEEL_COMMAND_TEXT, offsetof(struct tune_options, out),
     "write there (tune.conf in the board's folder)"},
    {"--clblast", "DIR", KEEL_COMMAND_TEXT, offsetof(struct tune_options, clblast),
     "write clblast.conf out of what CLBlast's tuners left in DIR; nothing is measured"},
    {"--list", NULL, KEEL_COMMAND_FLAG, offsetof(struct tune_options, list),
     "the tunables, their values and what they change; nothing is measured"},
    {"--trial", NULL, KEEL_COMMAND_FLAG, offsetof(struct tune_options, trial), NULL},
    {.name = NULL}};

static void begin(void *own)
{
    ((struct tune_options *)own)->seconds = 120;
}

struct tuner {
    const char *board;
    struct keel_board_file file; /* board.conf alone, without tune.conf */
    struct keel_device_info info;
    uint64_t deadline_ns, longest_ns; /* the longest trial that came to its end; 0: none did */
    struct keel_trial trial;          /* its settings: of the board's file, then what was found */
    uint32_t given_count, measured_count;
    double gains[KEEL_TRIAL_SETTINGS_MAX]; /* of a setting that was found: how much faster, 0.1 for a tenth */
    char failed[KEEL_DETAIL_BYTES];        /* the last one that was not measured, and why */
};

/* ---- the search ---- */

static void note_failed(struct tuner *tuner, struct keel_trial_setting tried, const char *said)
{
    snprintf(tuner->failed, sizeof tuner->failed, "%s = %" PRIu32 ": %.400s",
             keel_tunable_get(tried.tunable).name, tried.value, said);
}

/* Whether the board has room for the settings that hold with this value in its place. */
static bool fits(struct tuner *tuner, struct keel_trial_setting tried)
{
    struct keel_setting settings[KEEL_TRIAL_SETTINGS_MAX + 1];
    uint32_t count = 0;
    for (uint32_t i = 0; i < tuner->trial.setting_count; i++) {
        const struct keel_trial_setting *held = &tuner->trial.settings[i];
        if (held->tunable != tried.tunable)
            settings[count++] = (struct keel_setting){keel_tunable_get(held->tunable).name, held->value};
    }
    settings[count++] = (struct keel_setting){keel_tunable_get(tried.tunable).name, tried.value};
    return keel_kernels_check(&tuner->info, settings, count) == KEEL_OK;
}

/* Try one value with the settings that hold. One that the time was up for has not failed. */
static enum keel_status try_value(struct tuner *tuner, struct keel_trial_setting tried)
{
    struct keel_trial *trial = &tuner->trial;
    trial->tried = tried;
    if (!fits(tuner, tried)) {
        trial->outcome = KEEL_TRIAL_FAILED;
        note_failed(tuner, tried, keel_detail());
        return KEEL_OK;
    }
    KEEL_TRY(keel_trial_run(tuner->board, trial, &tuner->longest_ns, tuner->deadline_ns));
    tuner->measured_count += trial->outcome >= KEEL_TRIAL_SLOWER;
    if (trial->outcome == KEEL_TRIAL_FAILED) {
        note_failed(tuner, tried, trial->said);
        if (keel_remaining_ns(tuner->deadline_ns) > 0)
            fprintf(stderr, "keel board tune: %s\n", tuner->failed);
    }
    return KEEL_OK;
}

static enum keel_status tune_one(struct tuner *tuner, uint32_t index)
{
    const struct keel_tunable tunable = keel_tunable_get(index);
    struct keel_trial *trial = &tuner->trial;
    const uint32_t place = trial->setting_count; /* where a value is put that is found */
    double gain = 1.0;
    for (uint32_t v = 0; v < tunable.value_count && keel_remaining_ns(tuner->deadline_ns) > 0; v++) {
        const struct keel_trial_setting tried = {index, tunable.values[v]};
        KEEL_TRY(try_value(tuner, tried));
        if (trial->outcome != KEEL_TRIAL_FASTER)
            continue;
        gain *= 1.0 + trial->gain;
        tuner->gains[place] = gain - 1.0;
        trial->settings[place] = tried;
        trial->setting_count = place + 1;
    }
    return KEEL_OK;
}

/* What board.conf says stays, for a person wrote it. */
static enum keel_status take_given(struct tuner *tuner)
{
    struct keel_setting given[KEEL_BOARD_TUNABLES_MAX];
    KEEL_ASSERT(keel_tunable_count() <= KEEL_TRIAL_SETTINGS_MAX);
    KEEL_TRY(keel_board_settings(&tuner->file, given));
    for (uint32_t i = 0; i < tuner->file.tunable_count; i++)
        for (uint32_t t = 0; t < keel_tunable_count(); t++)
            if (strcmp(given[i].name, keel_tunable_get(t).name) == 0)
                tuner->trial.settings[tuner->trial.setting_count++] =
                    (struct keel_trial_setting){t, given[i].value};
    tuner->given_count = tuner->trial.setting_count;
    return KEEL_OK;
}

static bool is_given(const struct tuner *tuner, uint32_t tunable)
{
    for (uint32_t i = 0; i < tuner->given_count; i++)
        if (tuner->trial.settings[i].tunable == tunable)
            return true;
    return false;
}

static enum keel_status search(struct tuner *tuner)
{
    snprintf(tuner->failed, sizeof tuner->failed, "%s",
             keel_remaining_ns(tuner->deadline_ns) > 0 ? "its board.conf sets every tunable"
                                                       : "the time was up before the first: more --seconds");
    for (uint32_t i = 0; i < keel_tunable_count(); i++)
        if (!is_given(tuner, i) && !keel_tunable_get(i).native) /* trials are canonical */
            KEEL_TRY(tune_one(tuner, i));
    return tuner->measured_count > 0
               ? KEEL_OK
               : keel_fail(KEEL_UNSUPPORTED, "%.150s: no value could be measured, so nothing is written; %s",
                           tuner->board, tuner->failed);
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

static const char *name_at(const struct tuner *tuner, uint32_t i)
{
    return keel_tunable_get(tuner->trial.settings[i].tunable).name;
}

static enum keel_status write_file(const struct tuner *tuner, const char *path)
{
    char text[TEXT_BYTES];
    char now[KEEL_WALL_TEXT_BYTES];
    keel_wall_text(keel_wall_ns(), now);
    int length = snprintf(text, sizeof text, "[tune]\ndriver = %s\nday = %.10s\n\n[kernels]\n",
                          tuner->info.driver_version, now);
    for (uint32_t i = tuner->given_count; i < tuner->trial.setting_count; i++)
        length += snprintf(text + length, sizeof text - (size_t)length, "%s = %" PRIu32 "\n",
                           name_at(tuner, i), tuner->trial.settings[i].value);
    return keel_command_write_file(path, text, (size_t)length);
}

static void tell(const struct keel_command *command, const struct tuner *tuner, const char *path)
{
    struct keel_json json = {.out = stdout};
    if (command->json) {
        json = keel_command_json(stdout);
        keel_json_text(&json, "file", path);
        keel_json_open(&json, "settings", '{');
    }
    for (uint32_t i = tuner->given_count; i < tuner->trial.setting_count; i++) {
        if (command->json)
            keel_json_number(&json, name_at(tuner, i), tuner->trial.settings[i].value);
        else
            printf("%s = %" PRIu32 ": %.0f%% faster\n", name_at(tuner, i), tuner->trial.settings[i].value,
                   tuner->gains[i] * 100.0);
    }
    if (command->json) {
        keel_json_close(&json, '}');
        keel_command_json_end(&json);
    } else {
        printf("%s written\n", path);
    }
}

static enum keel_status import(const struct keel_command *command, const struct tuner *tuner,
                               const char *path)
{
    const struct tune_options *own = keel_command_own(command);
    uint32_t kernel_count = 0;
    KEEL_TRY(keel_board_clblast_import(own->clblast, &tuner->info, path, &kernel_count));
    if (command->json) {
        struct keel_json json = keel_command_json(stdout);
        keel_json_text(&json, "file", path);
        keel_json_number(&json, "kernels", kernel_count);
        keel_command_json_end(&json);
    } else {
        printf("%s written: parameters of %" PRIu32 " kernels\n", path, kernel_count);
    }
    return KEEL_OK;
}

static enum keel_status tune_board(const struct keel_command *command, struct tuner *tuner)
{
    const struct tune_options *own = keel_command_own(command);
    const struct keel_board_file *file = &tuner->file;
    char path[KEEL_PATH_BYTES];
    if (own->out == NULL && file->folder[0] == '\0')
        return keel_fail(KEEL_NOT_FOUND, "no board file matches %s: say --out FILE, or keel board init first",
                         command->operands[0]);
    if (own->out == NULL)
        KEEL_TRY(keel_path_join(path, file->folder, own->clblast != NULL ? "clblast.conf" : "tune.conf"));
    else
        snprintf(path, sizeof path, "%s", own->out);
    KEEL_TRY(keel_command_may_write(path));
    if (own->clblast != NULL)
        return import(command, tuner, path);
    KEEL_TRY(take_given(tuner));
    KEEL_TRY(search(tuner));
    KEEL_TRY(write_file(tuner, path));
    tell(command, tuner, path);
    return KEEL_OK;
}

static int tune(const struct keel_command *command)
{
    const struct tune_options *own = keel_command_own(command);
    static struct tuner tuner;
    if (own->list)
        return list_tunables();
    if (command->operand_count != 1)
        return keel_board_wrong_use("tune wants one board", "");
    if (own->trial)
        return keel_trial_main(command->operands[0]);
    if (own->seconds > KEEL_BOARD_SECONDS_MAX)
        return keel_board_wrong_use("--seconds takes a year at most, 31622400", "");
    tuner.board = command->operands[0];
    tuner.deadline_ns = keel_deadline_after_ns(own->seconds * KEEL_NS_PER_S);
    enum keel_status status = keel_board_look(tuner.board, 0, &tuner.file, &tuner.info);
    if (status == KEEL_OK)
        status = tune_board(command, &tuner);
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
        "whenever the board is opened, as long as the driver is the same. No setting that it tries changes a "
        "bit.\n",
    .examples = "  keel board tune --list\n"
                "  keel board tune pocl:0 --seconds 60 --out tune.conf\n"
                "  keel board tune acme/gpu --clblast tuned\n",
    .options = options,
    .begin = begin,
    .run = tune};
