/* check_report.c - a report on the terminal, as JSON, and as JUnit XML. */
#include "check_reports.h"
#include <errno.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/command.h>
#include <keel/json.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *const keel_check_level_names[KEEL_CHECK_LEVELS] = {
    "identity", "API", "code", "memory", "numerics", "performance", "soak", "fault drill", "pair"};

int keel_check_level(const struct keel_check *check)
{
    return check->id[0] - '0';
}

/* ---- terminal ---- */

/* What people see while it runs. */
struct terminal {
    bool tty;   /* stderr shows progress */
    bool lines; /* stdout gets a line for each check */
};

static void begins(void *context, const struct keel_check *check)
{
    const struct terminal *terminal = context;
    if (terminal->tty)
        fprintf(stderr, "\r\033[K%-4s %s", check->id, check->name);
}

static void progress(void *context, const struct keel_check *check, uint64_t done, uint64_t total,
                     const char *what)
{
    const struct terminal *terminal = context;
    if (!terminal->tty)
        return;
    fprintf(stderr, "\r\033[K%-4s %s  ", check->id, check->name);
    if (total > 0)
        fprintf(stderr, "%3.0f%%  ", 100.0 * (double)done / (double)total);
    fprintf(stderr, "%.60s", what);
}

static void print_figures(const struct keel_check_result *result, FILE *out)
{
    for (uint32_t i = 0; i < result->figure_count; i++) {
        const struct keel_check_figure *figure = &result->figures[i];
        fprintf(out, "       %-28s %12.3f %-8s", figure->name, figure->value, figure->unit);
        if (figure->limit > 0)
            fprintf(out, " %s %.3f", figure->better == KEEL_BETTER_LESS ? "at most" : "at least",
                    figure->limit);
        fputc('\n', out);
    }
}

static void ended(void *context, const struct keel_check_result *result)
{
    const struct terminal *terminal = context;
    if (terminal->tty)
        fputs("\r\033[K", stderr);
    if (!terminal->lines)
        return;
    printf("%-13s %-4s %-20s %6.2f s  %s\n", keel_verdict_name(result->verdict), result->check->id,
           result->check->name, result->seconds, result->check->claim);
    if (result->reason[0] != '\0')
        printf("       %s\n", result->reason);
    if (result->verdict == KEEL_VERDICT_WAIVED)
        printf("       waived until %s: %s\n", result->waiver_until, result->waiver);
    for (uint32_t i = 0; i < result->note_count; i++)
        printf("       %s\n", result->notes[i]);
    print_figures(result, stdout);
    if (result->verdict == KEEL_VERDICT_FAIL && result->output[0] != '\0')
        printf("       the driver's last words: %s\n", result->output);
    fflush(stdout);
}

enum keel_status keel_check_session(const struct keel_check_options *options, const char *words, bool lines,
                                    struct keel_check_report *out)
{
    bool selected[KEEL_CHECKS_MAX];
    struct terminal terminal = {.tty = isatty(STDERR_FILENO) == 1, .lines = lines};
    const struct keel_check_watcher watcher = {
        .begins = begins, .progress = progress, .ended = ended, .context = &terminal};
    KEEL_TRY(keel_check_select(words, selected));
    return keel_check_run_all(options, selected, &watcher, out);
}

void keel_check_print_summary(const struct keel_check_report *report, FILE *out)
{
    const struct keel_check_board *board = &report->board;
    if (board->selector[0] != '\0')
        fprintf(out, "\n%s: %s; %s; %s\n", board->selector, board->name, board->platform, board->version);
    else
        fprintf(out, "\n%s\n", report->options.board);
    fprintf(out,
            "%" PRIu32 " pass, %" PRIu32 " fail, %" PRIu32 " could not run, %" PRIu32 " waived; %.1f s\n",
            report->verdicts[KEEL_VERDICT_PASS], report->verdicts[KEEL_VERDICT_FAIL],
            report->verdicts[KEEL_VERDICT_CANNOT], report->verdicts[KEEL_VERDICT_WAIVED], report->seconds);
}

/* ---- JSON ---- */

void keel_check_time_text(uint64_t wall_ns, char out[KEEL_CHECK_TIME_BYTES])
{
    time_t seconds = (time_t)(wall_ns / KEEL_NS_PER_S);
    struct tm parts;
    strftime(out, KEEL_CHECK_TIME_BYTES, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &parts));
}

static void json_figure(struct keel_json *json, const struct keel_check_figure *figure)
{
    keel_json_open(json, NULL, '{');
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
    keel_json_close(json, '}');
}

static void json_result(struct keel_json *json, const struct keel_check_result *result)
{
    keel_json_open(json, NULL, '{');
    keel_json_text(json, "id", result->check->id);
    keel_json_number(json, "level", (uint64_t)keel_check_level(result->check));
    keel_json_text(json, "name", result->check->name);
    keel_json_text(json, "claim", result->check->claim);
    keel_json_text(json, "verdict", keel_verdict_name(result->verdict));
    keel_json_text(json, "beneath", keel_verdict_name(result->beneath));
    keel_json_text(json, "reason", result->reason);
    keel_json_text(json, "waiver", result->waiver[0] != '\0' ? result->waiver : NULL);
    keel_json_text(json, "waiver_until", result->waiver[0] != '\0' ? result->waiver_until : NULL);
    keel_json_real(json, "seconds", result->seconds, 3);
    keel_json_open(json, "notes", '[');
    for (uint32_t i = 0; i < result->note_count; i++)
        keel_json_text(json, NULL, result->notes[i]);
    keel_json_close(json, ']');
    keel_json_open(json, "figures", '[');
    for (uint32_t i = 0; i < result->figure_count; i++)
        json_figure(json, &result->figures[i]);
    keel_json_close(json, ']');
    keel_json_text(json, "output", result->output);
    keel_json_close(json, '}');
}

void keel_check_print_json(const struct keel_check_report *report, FILE *out)
{
    struct keel_json json = keel_command_json(out);
    char started[KEEL_CHECK_TIME_BYTES];
    keel_check_time_text(report->started_wall_ns, started);
    keel_json_text(&json, "verdict", keel_check_overall(report));
    keel_json_text(&json, "keel", KEEL_RELEASE);
    keel_json_text(&json, "started", started);
    keel_json_real(&json, "seconds", report->seconds, 3);
    keel_json_open(&json, "board", '{');
    keel_json_text(&json, "asked", report->options.board);
    keel_json_text(&json, "selector", report->board.selector);
    keel_json_text(&json, "name", report->board.name);
    keel_json_text(&json, "platform", report->board.platform);
    keel_json_text(&json, "version", report->board.version);
    keel_json_text(&json, "folder", report->board.folder);
    keel_json_close(&json, '}');
    keel_json_open(&json, "counts", '{');
    for (int verdict = 0; verdict < KEEL_VERDICT_COUNT; verdict++)
        keel_json_number(&json, keel_verdict_name((enum keel_verdict)verdict), report->verdicts[verdict]);
    keel_json_close(&json, '}');
    keel_json_open(&json, "checks", '[');
    for (uint32_t i = 0; i < report->done; i++)
        json_result(&json, &report->results[i]);
    keel_json_close(&json, ']');
    keel_command_json_end(&json);
}

/* ---- JUnit ---- */

/* Text or an attribute's value in XML 1.0, and in HTML: what cannot stand there is a question mark. */
void keel_check_escape(FILE *out, const char *text)
{
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++) {
        if (*at == '<')
            fputs("&lt;", out);
        else if (*at == '>')
            fputs("&gt;", out);
        else if (*at == '&')
            fputs("&amp;", out);
        else if (*at == '"')
            fputs("&quot;", out);
        else
            fputc((*at < ' ' && *at != '\n' && *at != '\t') || *at > '~' ? '?' : *at, out);
    }
}

static void junit_case(FILE *out, const struct keel_check_result *result)
{
    static const char *const elements[] = {NULL, "failure", "error", "skipped"};
    fprintf(out, "    <testcase classname=\"keel.board.level%d\" name=\"%s %s\" time=\"%.3f\">\n",
            keel_check_level(result->check), result->check->id, result->check->name, result->seconds);
    if (result->verdict != KEEL_VERDICT_PASS) {
        fprintf(out, "      <%s message=\"", elements[result->verdict]);
        if (result->verdict == KEEL_VERDICT_WAIVED) {
            fprintf(out, "waived until %s: ", result->waiver_until);
            keel_check_escape(out, result->waiver);
            fputs("; ", out);
        }
        keel_check_escape(out, result->reason);
        fputs("\"/>\n", out);
    }
    fputs("      <system-out>", out);
    for (uint32_t i = 0; i < result->figure_count; i++)
        fprintf(out, "%s %.6f %s\n", result->figures[i].name, result->figures[i].value,
                result->figures[i].unit);
    for (uint32_t i = 0; i < result->note_count; i++) {
        keel_check_escape(out, result->notes[i]);
        fputc('\n', out);
    }
    keel_check_escape(out, result->output);
    fputs("</system-out>\n    </testcase>\n", out);
}

static void junit_level(FILE *out, const struct keel_check_report *report, int level)
{
    uint32_t counts[KEEL_VERDICT_COUNT] = {0}, tests = 0;
    for (uint32_t i = 0; i < report->done; i++)
        if (keel_check_level(report->results[i].check) == level) {
            counts[report->results[i].verdict]++;
            tests++;
        }
    if (tests == 0)
        return;
    fprintf(out,
            "  <testsuite name=\"%d %s\" tests=\"%" PRIu32 "\" failures=\"%" PRIu32 "\" errors=\"%" PRIu32
            "\" skipped=\"%" PRIu32 "\">\n",
            level, keel_check_level_names[level], tests, counts[KEEL_VERDICT_FAIL],
            counts[KEEL_VERDICT_CANNOT], counts[KEEL_VERDICT_WAIVED]);
    for (uint32_t i = 0; i < report->done; i++)
        if (keel_check_level(report->results[i].check) == level)
            junit_case(out, &report->results[i]);
    fputs("  </testsuite>\n", out);
}

static void junit(FILE *out, const struct keel_check_report *report)
{
    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"keel board check ", out);
    keel_check_escape(out, report->options.board);
    fprintf(out, "\" time=\"%.3f\">\n", report->seconds);
    for (int level = 0; level < KEEL_CHECK_LEVELS; level++)
        junit_level(out, report, level);
    fputs("</testsuites>\n", out);
}

enum keel_status keel_check_write(const struct keel_check_report *report, const char *path,
                                  void (*write)(FILE *out, const struct keel_check_report *report))
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL)
        return keel_fail(KEEL_NO_MEMORY, "%s: no memory for the report", path);
    write(out, report);
    enum keel_status status = KEEL_OK;
    if (fclose(out) != 0)
        status = keel_fail(KEEL_NO_MEMORY, "%s: no memory for the report", path);
    else
        status = keel_command_write_file(path, text, bytes);
    free(text);
    return status;
}

enum keel_status keel_check_write_junit(const struct keel_check_report *report, const char *path)
{
    return keel_check_write(report, path, junit);
}
