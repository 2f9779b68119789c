/* check_page.c - the page of `keel board check --html`: verdicts by level, plots of every figure's repeats
 * against its limit, and the time of each check, in one file without anything from elsewhere. */
#include "check_reports.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTH = 420,
    HEIGHT = 180,
    LEFT = 62,
    RIGHT = 12,
    TOP = 10,
    BOTTOM = 24,
    BAR_HEIGHT = 16,
    BARS_LEFT = 190
};

/* Colours that stand out on both grounds; the verdict's word is always beside them. */
static const char style[] =
    ":root{color-scheme:light dark;--ink:#1c2024;--soft:#60656c;--ground:#fff;--card:#f5f6f8;--line:#d9dce1;"
    "--dot:#1f6fbf;--limit:#c4411a;--pass:#1f7a3d;--fail:#b3261e;--cannot:#8a5a00;--waived:#5b4bb3}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e8eaed;--soft:#a0a6ad;--ground:#15181b;--card:#1f2327;"
    "--line:#363b41;--dot:#6fb1f2;--limit:#ff8a65;--pass:#6cc788;--fail:#ff8a80;--cannot:#e0b04a;--waived:#"
    "b3a7ff}}"
    "body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--ground);max-width:960px;"
    "margin:2rem auto;padding:0 1rem}h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}"
    ".soft,.claim{color:var(--soft)}table{border-collapse:collapse;width:100%}"
    "td,th{padding:.35rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}"
    "td:first-child{width:3rem}td.v{width:8rem}td.n{width:5rem;text-align:right;font-variant-numeric:tabular-"
    "nums;white-space:nowrap}"
    ".v{font-weight:600;white-space:nowrap}.pass{color:var(--pass)}.fail{color:var(--fail)}"
    ".could-not-run{color:var(--cannot)}.waived{color:var(--waived)}"
    ".plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(340px,1fr));gap:1rem}"
    "figure{margin:0;background:var(--card);padding:.7rem;border-radius:6px}figcaption{font-size:.9rem}"
    "svg{width:100%;height:auto}svg text{fill:var(--soft);font-size:11px}svg .grid{stroke:var(--line)}"
    "svg .dot{fill:var(--dot)}svg .middle{stroke:var(--dot)}svg "
    ".limit{stroke:var(--limit);stroke-dasharray:5 3}"
    "svg rect.pass{fill:var(--pass)}svg rect.fail{fill:var(--fail)}svg rect.could-not-run{fill:var(--cannot)}"
    "svg "
    "rect.waived{fill:var(--waived)}pre{white-space:pre-wrap;background:var(--card);padding:.5rem;overflow:"
    "auto}";

/* ---- plots ---- */

static void frame(const struct keel_check_figure *figure, double *low, double *high)
{
    *low = *high = figure->value;
    for (uint32_t i = 0; i < figure->sample_count; i++) {
        *low = figure->samples[i] < *low ? figure->samples[i] : *low;
        *high = figure->samples[i] > *high ? figure->samples[i] : *high;
    }
    if (figure->limit > 0) {
        *low = figure->limit < *low ? figure->limit : *low;
        *high = figure->limit > *high ? figure->limit : *high;
    }
    double margin = *high > *low ? (*high - *low) * 0.1 : *high * 0.1 + 1e-9;
    *low = *low > margin || *low < 0 ? *low - margin : 0;
    *high += margin;
}

static double y_of(double value, double low, double high)
{
    return TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM);
}

static void level_line(FILE *out, const char *class, double y)
{
    fprintf(out, "<line class='%s' x1='%d' y1='%.1f' x2='%d' y2='%.1f'/>", class, LEFT, y, WIDTH - RIGHT, y);
}

static void draw_figure(FILE *out, const struct keel_check_result *result,
                        const struct keel_check_figure *figure)
{
    double low, high;
    frame(figure, &low, &high);
    keel_check_escape(out, "<figure><figcaption><b>", figure->name, "</b> ");
    fprintf(out, "%.3f", figure->value);
    keel_check_escape(out, " ", figure->unit, " ");
    fprintf(out, "<span class='soft'>%s %s; median of %" PRIu32, result->check->id, result->check->name,
            figure->sample_count);
    if (figure->limit > 0)
        fprintf(out, "; %s %.3f", figure->better == KEEL_BETTER_LESS ? "at most" : "at least", figure->limit);
    fprintf(out, "</span></figcaption><svg viewBox='0 0 %d %d' role='img' aria-label='%s by repeat'>", WIDTH,
            HEIGHT, figure->name);
    for (int i = 0; i <= 3; i++) {
        double value = low + (high - low) * i / 3, y = y_of(value, low, high);
        level_line(out, "grid", y);
        fprintf(out, "<text x='%d' y='%.1f' text-anchor='end'>%.4g</text>", LEFT - 6, y + 4, value);
    }
    level_line(out, "middle", y_of(figure->value, low, high));
    if (figure->limit > 0)
        level_line(out, "limit", y_of(figure->limit, low, high));
    for (uint32_t i = 0; i < figure->sample_count; i++) {
        double x = LEFT + (i + 0.5) / figure->sample_count * (WIDTH - LEFT - RIGHT);
        fprintf(out,
                "<circle class='dot' cx='%.1f' cy='%.1f' r='3.5'><title>repeat %" PRIu32
                ": %.6g</title></circle>",
                x, y_of(figure->samples[i], low, high), i + 1, figure->samples[i]);
    }
    fprintf(out, "<text x='%d' y='%d' text-anchor='middle'>repeat</text></svg></figure>\n",
            (LEFT + WIDTH) / 2, HEIGHT - 6);
}

static void draw_figures(FILE *out, const struct keel_check_report *report)
{
    uint32_t figures = 0;
    for (uint32_t i = 0; i < report->done; i++)
        figures += report->results[i].figure_count;
    if (figures == 0)
        return;
    fputs("<h2>Figures</h2>\n<p class='soft'>Dots are repeats, the line is their median, the dashed line the "
          "board "
          "file's limit.</p>\n<div class='plots'>\n",
          out);
    for (uint32_t i = 0; i < report->done; i++)
        for (uint32_t k = 0; k < report->results[i].figure_count; k++)
            draw_figure(out, &report->results[i], &report->results[i].figures[k]);
    fputs("</div>\n", out);
}

static void draw_times(FILE *out, const struct keel_check_report *report)
{
    double longest = 1e-3;
    for (uint32_t i = 0; i < report->done; i++)
        longest = report->results[i].seconds > longest ? report->results[i].seconds : longest;
    fprintf(out,
            "<h2>Time of each check</h2>\n<svg viewBox='0 0 860 %" PRIu32
            "' role='img' aria-label='seconds by check'>",
            report->done * (BAR_HEIGHT + 4) + 4);
    for (uint32_t i = 0; i < report->done; i++) {
        const struct keel_check_result *result = &report->results[i];
        double width = result->seconds / longest * (860 - BARS_LEFT - 80);
        uint32_t y = i * (BAR_HEIGHT + 4) + 2;
        fprintf(
            out,
            "<text x='%d' y='%" PRIu32 "' text-anchor='end'>%s %s</text><rect class='%s' x='%d' y='%" PRIu32
            "' width='%.1f' height='%d' rx='2'/><text x='%.1f' y='%" PRIu32 "'>%.2f s</text>\n",
            BARS_LEFT - 8, y + 12, result->check->id, result->check->name, keel_verdict_name(result->verdict),
            BARS_LEFT, y, width < 1 ? 1 : width, BAR_HEIGHT, BARS_LEFT + width + 6, y + 12, result->seconds);
    }
    fputs("</svg>\n", out);
}

/* ---- tables ---- */

static void write_result(FILE *out, const struct keel_check_result *result)
{
    const char *verdict = keel_verdict_name(result->verdict);
    fprintf(out, "<tr><td>%s<td>%s<br><span class='claim'>", result->check->id, result->check->name);
    keel_check_escape(out, "", result->check->claim, "</span>");
    if (result->reason[0] != '\0')
        keel_check_escape(out, "<br><b>", result->reason, "</b>");
    if (result->verdict == KEEL_VERDICT_WAIVED) {
        fprintf(out, "<br>beneath the waiver: %s; waived until %s: ", keel_verdict_name(result->beneath),
                result->waiver_until);
        keel_check_escape(out, "", result->waiver, "");
    }
    for (uint32_t i = 0; i < result->note_count; i++)
        keel_check_escape(out, "<br><span class='soft'>", result->notes[i], "</span>");
    if (result->verdict == KEEL_VERDICT_FAIL && result->output[0] != '\0')
        keel_check_escape(out, "<pre>", result->output, "</pre>");
    fprintf(out, "<td class='v %s'>%s<td class='n'>%.2f s</tr>\n", verdict, verdict, result->seconds);
}

static void write_level(FILE *out, const struct keel_check_report *report, int level)
{
    bool begun = false;
    for (uint32_t i = 0; i < report->done; i++) {
        if (keel_check_level(report->results[i].check) != level)
            continue;
        if (!begun)
            fprintf(out, "<h2>Level %d: %s</h2>\n<table>\n", level, keel_check_level_names[level]);
        begun = true;
        write_result(out, &report->results[i]);
    }
    if (begun)
        fputs("</table>\n", out);
}

static void write_head(FILE *out, const struct keel_check_report *report)
{
    const struct keel_check_board *board = &report->board;
    const char *overall = keel_check_overall(report);
    const char *name = board->name[0] != '\0' ? board->name : report->options.board;
    char started[KEEL_WALL_TEXT_BYTES];
    keel_wall_text(report->started_wall_ns, started);
    keel_check_escape(out,
                      "<!doctype html>\n<html lang='en'><meta charset='utf-8'><meta name='viewport' "
                      "content='width=device-width,initial-scale=1'><title>keel board check: ",
                      name, "</title>\n");
    fprintf(out, "<style>%s</style>\n", style);
    keel_check_escape(out, "<h1>", name, ": ");
    fprintf(out, "<span class='%s'>%s</span></h1>\n", overall, overall);
    keel_check_escape(out, "<p>", board->selector[0] != '\0' ? board->selector : report->options.board, "; ");
    keel_check_escape(out, "", board->platform, "; ");
    keel_check_escape(out, "", board->version, "<br><span class='soft'>board file: ");
    keel_check_escape(out, "", board->folder[0] != '\0' ? board->folder : "none", "; ");
    fprintf(out, "Keel %s; %s; %.1f s</span></p>\n<p>", KEEL_RELEASE, started, report->seconds);
    for (int verdict = 0; verdict < KEEL_VERDICT_COUNT; verdict++) {
        const char *word = keel_verdict_name((enum keel_verdict)verdict);
        fprintf(out, "<span class='v %s'>%" PRIu32 " %s</span>%s", word, report->verdicts[verdict], word,
                verdict + 1 < KEEL_VERDICT_COUNT ? ", " : "</p>\n");
    }
}

void keel_check_print_page(const struct keel_check_report *report, FILE *out)
{
    write_head(out, report);
    for (int level = 0; level < KEEL_CHECK_LEVELS; level++)
        write_level(out, report, level);
    draw_figures(out, report);
    draw_times(out, report);
    fputs("</html>\n", out);
}
