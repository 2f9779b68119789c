/* board_diff.c - `keel board diff`: what has changed between two records of a board, or since its record.
 *
 * Drift is what a maker wants to hear of: another driver, other limits, a verdict that is not what it was, a
 * figure of level 5 that moved by more than the tolerance, and by more than its own repeats lie apart (no
 * repeat now is among those of then). Worse is a verdict that was pass and is not, or a figure that moved the
 * wrong way: exit code 1. */
#include "board_kinds.h"
#include "check_reports.h"
#include <inttypes.h>
#include <jansson.h>
#include <keel/json.h>
#include <keel/memory.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { RECORD_BYTES_MAX = 16 << 20, CHANGES_MAX = 256, CHANGE_BYTES = 400 };

struct own {
    uint64_t tolerance;
    bool quick;
};

struct change {
    char what[64], text[CHANGE_BYTES];
    bool worse;
};

struct diff {
    const json_t *before, *after;
    double tolerance; /* a part of one */
    struct change changes[CHANGES_MAX];
    uint32_t count, worse, compared;
};

static void begin(void *own)
{
    *(struct own *)own = (struct own){.tolerance = 10};
}

static void add(struct diff *diff, const char *what, bool worse, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void add(struct diff *diff, const char *what, bool worse, const char *format, ...)
{
    diff->worse += worse;
    if (diff->count == CHANGES_MAX)
        return;
    struct change *change = &diff->changes[diff->count++];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(change->text, sizeof change->text, format, arguments);
    va_end(arguments);
    snprintf(change->what, sizeof change->what, "%s", what);
    change->worse = worse;
}

/* ---- comparing ---- */

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* The item of a list whose `key` is `value`. */
static const json_t *find(const json_t *list, const char *key, const char *value)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(text_of(json_array_get(list, i), key), value) == 0)
            return json_array_get(list, i);
    return NULL;
}

static void compare_board(struct diff *diff)
{
    static const char *const keys[] = {"name", "platform", "version"};
    const json_t *before = json_object_get(diff->before, "board"),
                 *after = json_object_get(diff->after, "board");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(text_of(before, keys[i]), text_of(after, keys[i])) != 0)
            add(diff, keys[i], false, "was \"%s\", is \"%s\"", text_of(before, keys[i]),
                text_of(after, keys[i]));
}

/* Do the repeats of two figures lie apart, or among each other? */
static bool lie_apart(const json_t *before, const json_t *after)
{
    double low[2] = {INFINITY, INFINITY}, high[2] = {-INFINITY, -INFINITY};
    const json_t *const lists[2] = {json_object_get(before, "samples"), json_object_get(after, "samples")};
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < json_array_size(lists[side]); i++) {
            double sample = json_number_value(json_array_get(lists[side], i));
            low[side] = fmin(low[side], sample);
            high[side] = fmax(high[side], sample);
        }
    return low[0] > high[1] || low[1] > high[0];
}

static void compare_figure(struct diff *diff, const json_t *before, const json_t *after)
{
    double was = json_number_value(json_object_get(before, "value")),
           is = json_number_value(json_object_get(after, "value"));
    diff->compared++;
    if (was <= 0 || fabs(is - was) <= diff->tolerance * was || !lie_apart(before, after))
        return;
    bool less_is_better = json_is_true(json_object_get(after, "less_is_better"));
    add(diff, text_of(after, "name"), (is > was) == less_is_better, "was %.3f, is %.3f %s (%+.1f%%)", was, is,
        text_of(after, "unit"), 100 * (is - was) / was);
}

static void compare_check(struct diff *diff, const json_t *before, const json_t *after)
{
    const char *was = text_of(before, "verdict"), *is = text_of(after, "verdict");
    const json_t *figures = json_object_get(after, "figures");
    diff->compared++;
    if (strcmp(was, is) != 0)
        add(diff, text_of(after, "id"), strcmp(is, "pass") != 0, "%s was %s, is %s %s",
            text_of(after, "name"), was, is, text_of(after, "reason"));
    for (size_t i = 0; i < json_array_size(figures) && text_of(after, "id")[0] == '5'; i++) {
        const json_t *figure = json_array_get(figures, i);
        const json_t *same = find(json_object_get(before, "figures"), "name", text_of(figure, "name"));
        if (same != NULL)
            compare_figure(diff, same, figure);
    }
}

static void compare(struct diff *diff)
{
    const json_t *before = json_object_get(diff->before, "checks"),
                 *after = json_object_get(diff->after, "checks");
    compare_board(diff);
    for (size_t i = 0; i < json_array_size(after); i++) {
        const json_t *check = json_array_get(after, i);
        const json_t *same = find(before, "id", text_of(check, "id"));
        if (same != NULL)
            compare_check(diff, same, check);
    }
    for (size_t i = 0; i < json_array_size(before); i++) {
        const json_t *check = json_array_get(before, i);
        const char *id = text_of(check, "id");
        if (id[0] != '\0' && find(after, "id", id) == NULL)
            add(diff, id, false, "%s was %s, and is not checked any more", text_of(check, "name"),
                text_of(check, "verdict"));
    }
    if (diff->compared == 0)
        add(diff, "checks", true, "the two records have no check in common");
}

/* ---- records ---- */

static enum keel_status read_record(const char *path, json_t **out)
{
    char *text = NULL;
    size_t bytes = 0;
    json_error_t error;
    if (!keel_path_exists(path))
        return keel_fail(KEEL_NOT_FOUND, "%s: no such record; make one with keel board record", path);
    KEEL_TRY(keel_file_read(path, RECORD_BYTES_MAX, &text, &bytes));
    *out = json_loadb(text, bytes, 0, &error);
    keel_free(text);
    if (*out == NULL)
        return keel_fail(KEEL_CORRUPT, "%s:%d: no record: %s; make one with keel board record", path,
                         error.line, error.text);
    if (json_array_size(json_object_get(*out, "checks")) > 0)
        return KEEL_OK;
    json_decref(*out);
    *out = NULL;
    return keel_fail(KEEL_CORRUPT,
                     "%s: a record has checks, and this has none; make one with keel board record", path);
}

/* The board as it is now, by the checks that its record has. */
static enum keel_status check_now(const char *board, bool quick, const json_t *record, json_t **out)
{
    const json_t *checks = json_object_get(record, "checks");
    const struct keel_check_options options = {.board = board, .quick = quick};
    struct keel_check_report report;
    char words[KEEL_CHECKS_MAX * 6] = "", *text = NULL;
    size_t bytes = 0;
    for (size_t i = 0; i < json_array_size(checks); i++) {
        const char *id = text_of(json_array_get(checks, i), "id");
        size_t length = strlen(words);
        if (keel_check_find(id) != NULL)
            snprintf(words + length, sizeof words - length, "%s%s", length > 0 ? "," : "", id);
    }
    KEEL_TRY(keel_check_session(&options, words, false, &report));
    enum keel_status status = keel_check_text(&report, keel_check_print_json, &text, &bytes);
    if (status == KEEL_OK)
        *out = json_loadb(text, bytes, 0, NULL);
    free(text);
    keel_check_report_fini(&report);
    return status;
}

static enum keel_status read_both(const struct keel_command *command, json_t **before, json_t **after)
{
    const struct own *own = keel_command_own(command);
    char path[KEEL_PATH_BYTES];
    if (command->operand_count == 2 && keel_path_is_file(command->operands[1])) {
        KEEL_TRY(read_record(command->operands[0], before));
        return read_record(command->operands[1], after);
    }
    const char *board = command->operands[command->operand_count - 1];
    if (command->operand_count == 2)
        snprintf(path, sizeof path, "%s", command->operands[0]);
    else
        KEEL_TRY(keel_board_record_path(board, path));
    KEEL_TRY(read_record(path, before));
    return check_now(board, own->quick, *before, after);
}

/* ---- telling ---- */

static void print_text(const struct diff *diff)
{
    for (uint32_t i = 0; i < diff->count; i++)
        printf("%-6s %-20s %s\n", diff->changes[i].worse ? "worse" : "other", diff->changes[i].what,
               diff->changes[i].text);
    printf("%" PRIu32 " compared, %" PRIu32 " changed, %" PRIu32 " for the worse (tolerance %.0f%%)\n",
           diff->compared, diff->count, diff->worse, diff->tolerance * 100);
}

static void print_json(const struct diff *diff)
{
    struct keel_json json = keel_command_json(stdout);
    keel_json_number(&json, "compared", diff->compared);
    keel_json_number(&json, "worse", diff->worse);
    keel_json_open(&json, "changes", '[');
    for (uint32_t i = 0; i < diff->count; i++) {
        keel_json_open(&json, NULL, '{');
        keel_json_text(&json, "what", diff->changes[i].what);
        keel_json_bool(&json, "worse", diff->changes[i].worse);
        keel_json_text(&json, "text", diff->changes[i].text);
        keel_json_close(&json, '}');
    }
    keel_json_close(&json, ']');
    keel_command_json_end(&json);
}

static int run(const struct keel_command *command)
{
    const struct own *own = keel_command_own(command);
    json_t *before = NULL, *after = NULL;
    static struct diff diff;
    if (command->operand_count == 0)
        return keel_board_wrong_use("diff wants a board, or one or two records", "");
    enum keel_status status = read_both(command, &before, &after);
    if (status == KEEL_OK) {
        diff = (struct diff){.before = before, .after = after, .tolerance = (double)own->tolerance / 100};
        compare(&diff);
        (command->json ? print_json : print_text)(&diff);
    }
    json_decref(before);
    json_decref(after);
    return status != KEEL_OK ? keel_board_report(status) : diff.worse > 0;
}

static const struct keel_command_option options[] = {
    {"--tolerance", "PERCENT", KEEL_COMMAND_COUNT, offsetof(struct own, tolerance),
     "how far figures may move; without it 10"},
    {"--quick", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, quick), "of a check now: as keel board check"},
    {.name = NULL}};

const struct keel_command_kind keel_board_diff = {
    .name = "diff",
    .operands = "BOARD | RECORD BOARD | RECORD RECORD",
    .operands_max = 2,
    .summary = "tell what has changed since a record, or between two",
    .details =
        "A board is checked now, by the checks of its record. A figure of level 5 has changed when it moved "
        "by\n"
        "more than the tolerance and none of its repeats is among those of then. Exit code 1: something is\n"
        "worse.\n",
    .examples = "  keel board diff boards/acme/npu              since its record\n"
                "  keel board diff monday.json tuesday.json\n"
                "  keel board diff monday.json pocl:0 --tolerance 5\n",
    .options = options,
    .begin = begin,
    .run = run};
