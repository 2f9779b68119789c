/* check_verdict.c - what is pure about verdicts: their names, waivers, the exit code, and reading what a
 * check's process says. Nothing here asks the machine for anything. */
#include "check_runner.h"
#include <inttypes.h>
#include <jansson.h>
#include <keel/memory.h>
#include <math.h>
#include <string.h>

const char *keel_verdict_name(enum keel_verdict verdict)
{
    static const char *const names[KEEL_VERDICT_COUNT] = {"pass", "fail", "could-not-run", "waived"};
    return names[verdict];
}

int keel_check_exit_code(const struct keel_check_report *report)
{
    if (report->verdicts[KEEL_VERDICT_FAIL] > 0)
        return 1;
    return report->verdicts[KEEL_VERDICT_CANNOT] > 0 ? keel_status_exit_code(KEEL_UNSUPPORTED) : 0;
}

const char *keel_check_overall(const struct keel_check_report *report)
{
    int code = keel_check_exit_code(report);
    enum keel_verdict verdict = code == 0   ? KEEL_VERDICT_PASS
                                : code == 1 ? KEEL_VERDICT_FAIL
                                            : KEEL_VERDICT_CANNOT;
    return keel_verdict_name(verdict);
}

bool keel_check_within(double value, double limit, bool less_is_better)
{
    if (!isfinite(value))
        return false;
    return limit <= 0 || (less_is_better ? value <= limit : value >= limit);
}

void keel_check_waive(struct keel_check_result *result, const char *today)
{
    result->beneath = result->verdict;
    if (result->verdict == KEEL_VERDICT_PASS || result->waiver[0] == '\0')
        return;
    if (strcmp(today, result->waiver_until) <= 0) {
        result->verdict = KEEL_VERDICT_WAIVED;
        return;
    }
    size_t length = strlen(result->reason);
    snprintf(result->reason + length, sizeof result->reason - length, " (its waiver ended on %s)",
             result->waiver_until);
}

/* ---- what a run of training did ---- */

enum { LOSS_DIGITS = 8, DIGEST_DIGITS = 16, BITS_BYTES = LOSS_DIGITS + 1 + DIGEST_DIGITS + 1 };

/* The hexadecimal digits of `key` in a line, all of them or NULL. */
static const char *digits_of(const char *line, size_t line_bytes, const char *key, size_t digits)
{
    const char *at = memmem(line, line_bytes, key, strlen(key));
    if (at == NULL)
        return NULL;
    at += strlen(key);
    return strspn(at, "0123456789abcdef") == digits ? at : NULL;
}

enum keel_status keel_check_bits(const char *metrics, uint32_t steps, char **out)
{
    uint32_t lines = 0;
    char *bits;
    KEEL_TRY(keel_alloc((uint64_t)steps * BITS_BYTES + 1, 1, &bits));
    while (*metrics != '\0') {
        const size_t bytes = strcspn(metrics, "\n");
        const char *loss = digits_of(metrics, bytes, "\"loss_bits\":\"", LOSS_DIGITS);
        const char *digest = digits_of(metrics, bytes, "\"digest\":\"", DIGEST_DIGITS);
        if (loss != NULL && digest != NULL && lines++ < steps)
            snprintf(bits + (size_t)(lines - 1) * BITS_BYTES, BITS_BYTES + 1, "%.8s %.16s\n", loss, digest);
        metrics += bytes + (metrics[bytes] == '\n');
    }
    if (lines == steps) {
        *out = bits;
        return KEEL_OK;
    }
    keel_free(bits);
    return keel_fail(KEEL_CORRUPT, "a run of %" PRIu32 " steps tells the bits of %" PRIu32, steps, lines);
}

/* ---- what a process says ---- */

void keel_check_tell_figure(struct keel_json *json, const struct keel_check_figure *figure)
{
    keel_json_text(json, "name", figure->name);
    keel_json_text(json, "unit", figure->unit);
    keel_json_bool(json, "less_is_better", figure->better == KEEL_BETTER_LESS);
    keel_json_real(json, "value", figure->value, 6);
    if (figure->limit > 0)
        keel_json_real(json, "limit", figure->limit, 6);
    else
        keel_json_text(json, "limit", NULL);
    keel_json_open(json, "samples", '[');
    for (uint32_t i = 0; i < figure->sample_count; i++)
        keel_json_real(json, NULL, figure->samples[i], 6);
    keel_json_close(json, ']');
}

static const char *text_of(const json_t *line, const char *key)
{
    const char *text = json_string_value(json_object_get(line, key));
    return text != NULL ? text : "";
}

static bool take_board(const json_t *line, struct keel_check_board *board)
{
    if (board->selector[0] != '\0')
        return true;
    snprintf(board->selector, sizeof board->selector, "%s", text_of(line, "selector"));
    snprintf(board->name, sizeof board->name, "%s", text_of(line, "name"));
    snprintf(board->platform, sizeof board->platform, "%s", text_of(line, "platform"));
    snprintf(board->version, sizeof board->version, "%s", text_of(line, "version"));
    snprintf(board->folder, sizeof board->folder, "%s", text_of(line, "folder"));
    return true;
}

static bool take_figure(const json_t *line, struct keel_check_result *result)
{
    if (result->figure_count == KEEL_CHECK_FIGURES_MAX)
        return false;
    struct keel_check_figure *figure = &result->figures[result->figure_count++];
    const json_t *samples = json_object_get(line, "samples");
    snprintf(figure->name, sizeof figure->name, "%s", text_of(line, "name"));
    snprintf(figure->unit, sizeof figure->unit, "%s", text_of(line, "unit"));
    figure->better =
        json_is_true(json_object_get(line, "less_is_better")) ? KEEL_BETTER_LESS : KEEL_BETTER_MORE;
    figure->value = json_number_value(json_object_get(line, "value"));
    figure->limit = json_number_value(json_object_get(line, "limit"));
    for (size_t i = 0; i < json_array_size(samples) && i < KEEL_CHECK_SAMPLES_MAX; i++)
        figure->samples[figure->sample_count++] = json_number_value(json_array_get(samples, i));
    return true;
}

static bool take_note(const json_t *line, struct keel_check_result *result)
{
    if (result->note_count == KEEL_CHECK_NOTES_MAX)
        return false;
    snprintf(result->notes[result->note_count++], KEEL_CHECK_TEXT_BYTES, "%s", text_of(line, "text"));
    return true;
}

static bool take_verdict(const json_t *line, struct keel_check_result *result)
{
    const char *name = text_of(line, "verdict");
    for (int verdict = 0; verdict < KEEL_VERDICT_WAIVED; verdict++)
        if (strcmp(name, keel_verdict_name((enum keel_verdict)verdict)) == 0) {
            result->verdict = (enum keel_verdict)verdict;
            snprintf(result->reason, sizeof result->reason, "%s", text_of(line, "reason"));
            return true;
        }
    return false;
}

static bool take_progress(const json_t *line, const struct keel_check *check,
                          const struct keel_check_watcher *watcher)
{
    uint64_t done = (uint64_t)json_integer_value(json_object_get(line, "done"));
    uint64_t total = (uint64_t)json_integer_value(json_object_get(line, "total"));
    watcher->progress(watcher->context, check, done, total, text_of(line, "what"));
    return true;
}

bool keel_check_hear(const char *line, struct keel_check_report *report, struct keel_check_result *result,
                     const struct keel_check_watcher *watcher)
{
    json_t *root = json_loads(line, 0, NULL);
    const char *kind = text_of(root, "say");
    bool taken = false;
    if (strcmp(kind, "board") == 0)
        taken = take_board(root, &report->board);
    else if (strcmp(kind, "figure") == 0)
        taken = take_figure(root, result);
    else if (strcmp(kind, "note") == 0)
        taken = take_note(root, result);
    else if (strcmp(kind, "progress") == 0)
        taken = take_progress(root, result->check, watcher);
    else if (strcmp(kind, "verdict") == 0)
        taken = take_verdict(root, result);
    json_decref(root);
    return taken;
}
