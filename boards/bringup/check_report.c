/* check_report.c - a report on the terminal, as JSON, and as JUnit XML. */
#include "check_reports.h"
#include <errno.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/command.h>
#include <keel/json.h>
#include <stdlib.h>
#include <string.h>
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
    for (uint32_t i = 0; i < result->figure_count; i++) {
        keel_json_open(json, NULL, '{');
        keel_check_tell_figure(json, &result->figures[i]);
        keel_json_close(json, '}');
    }
    keel_json_close(json, ']');
    keel_json_text(json, "output", result->output);
    keel_json_close(json, '}');
}

void keel_check_print_json(const struct keel_check_report *report, FILE *out)
{
    struct keel_json json = keel_command_json(out);
    char started[KEEL_WALL_TEXT_BYTES];
    keel_wall_text(report->started_wall_ns, started);
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

void keel_check_escape(FILE *out, const char *before, const char *text, const char *after)
{
    fputs(before, out);
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
    fputs(after, out);
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
            keel_check_escape(out, "", result->waiver, "; ");
        }
        keel_check_escape(out, "", result->reason, "\"/>\n");
    }
    fputs("      <system-out>", out);
    for (uint32_t i = 0; i < result->figure_count; i++)
        fprintf(out, "%s %.6f %s\n", result->figures[i].name, result->figures[i].value,
                result->figures[i].unit);
    for (uint32_t i = 0; i < result->note_count; i++)
        keel_check_escape(out, "", result->notes[i], "\n");
    keel_check_escape(out, "", result->output, "</system-out>\n    </testcase>\n");
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

void keel_check_print_junit(const struct keel_check_report *report, FILE *out)
{
    keel_check_escape(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"keel board check ",
                      report->options.board, "");
    fprintf(out, "\" time=\"%.3f\">\n", report->seconds);
    for (int level = 0; level < KEEL_CHECK_LEVELS; level++)
        junit_level(out, report, level);
    fputs("</testsuites>\n", out);
}

/* ---- what these share ---- */

enum keel_status keel_check_text(const struct keel_check_report *report, keel_check_print *print, char **out,
                                 size_t *out_bytes)
{
    FILE *stream = open_memstream(out, out_bytes);
    if (stream != NULL)
        print(report, stream);
    return stream != NULL && fclose(stream) == 0 ? KEEL_OK
                                                 : keel_fail(KEEL_NO_MEMORY, "no memory for a report");
}

enum keel_status keel_check_write(const struct keel_check_report *report, keel_check_print *print,
                                  const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    enum keel_status status = keel_check_text(report, print, &text, &bytes);
    if (status == KEEL_OK)
        status = keel_command_write_file(path, text, bytes);
    free(text);
    return status;
}

const struct keel_check_figure *keel_check_find_figure(const struct keel_check_report *report,
                                                       const char *name)
{
    for (uint32_t i = 0; i < report->done; i++)
        for (uint32_t k = 0; k < report->results[i].figure_count; k++)
            if (strcmp(report->results[i].figures[k].name, name) == 0)
                return &report->results[i].figures[k];
    return NULL;
}
