/* report.c - report.html from metrics.jsonl and events.jsonl.
 *
 * Drawn as plain SVG, so that the page shows without script, network or other files. Curves are thinned to
 * at most POINTS_MAX points each; incidents are drawn as vertical lines at the step where they happened. */
#include "report.h"
#include "jsonl.h"
#include <inttypes.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS_MAX = 1000, WIDTH = 860, HEIGHT = 260, LEFT = 70, RIGHT = 10, TOP = 12, BOTTOM = 30 };

struct point {
    double step, loss, rate;       /* rate: tokens or samples a second */
    double val_loss, val_accuracy; /* NaN where not evaluated */
};

struct report {
    struct point *points;
    uint64_t count, capacity;
    const char *unit;                  /* what the run counts */
    double last_tokens, last_accuracy; /* NaN: of no model that classifies */
    char last_digest[24];
    uint64_t events_skipped; /* lines that could not be read */
    json_t *events;          /* array of what the page shows */
};

static double number(const json_t *line, const char *key)
{
    return json_number_value(json_object_get(line, key));
}

static double number_or_nan(const json_t *line, const char *key)
{
    return json_object_get(line, key) != NULL ? number(line, key) : NAN;
}

static enum keel_status take_metric(void *context, const json_t *line, uint64_t row)
{
    (void)row;
    struct report *report = context;
    if (report->count == report->capacity) {
        uint64_t more = report->capacity * 2 + 1024;
        KEEL_TRY(keel_realloc(&report->points, report->capacity, more, sizeof *report->points));
        report->capacity = more;
    }
    report->unit = json_object_get(line, "samples") != NULL ? "samples" : "tokens";
    double spent = number(line, "seconds"), tokens = number(line, report->unit);
    double accuracy = number_or_nan(line, "val_accuracy");
    report->last_accuracy = isnan(accuracy) ? report->last_accuracy : accuracy;
    const char *digest = json_string_value(json_object_get(line, "digest"));
    report->points[report->count++] =
        (struct point){.step = number(line, "step"),
                       .loss = number(line, "loss"),
                       .val_loss = number_or_nan(line, "val_loss"),
                       .val_accuracy = accuracy,
                       .rate = spent > 0 ? (tokens - report->last_tokens) / spent : 0};
    report->last_tokens = tokens;
    snprintf(report->last_digest, sizeof report->last_digest, "%s", digest != NULL ? digest : "");
    return KEEL_OK;
}

static enum keel_status take_event(void *context, const json_t *line, uint64_t row)
{
    (void)row;
    struct report *report = context;
    json_array_append(report->events,
                      (json_t *)(uintptr_t)line); /* Jansson counts references through non-const */
    return KEEL_OK;
}

/* ---- drawing
 * ------------------------------------------------------------------------------------------------- */

struct axes {
    double first, last, low, high;
};

static double x_of(const struct axes *axes, double step)
{
    double span = axes->last > axes->first ? axes->last - axes->first : 1;
    return LEFT + (step - axes->first) / span * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct axes *axes, double value)
{
    double span = axes->high > axes->low ? axes->high - axes->low : 1;
    return TOP + (axes->high - value) / span * (HEIGHT - TOP - BOTTOM);
}

static double loss_of(const struct point *point)
{
    return point->loss;
}

static double val_loss_of(const struct point *point)
{
    return point->val_loss;
}

static double val_accuracy_of(const struct point *point)
{
    return point->val_accuracy;
}

static double rate_of(const struct point *point)
{
    return point->rate;
}

static struct axes axes_of(const struct report *report, double (*value)(const struct point *))
{
    struct axes axes = {.first = report->points[0].step, .last = report->points[report->count - 1].step};
    axes.low = INFINITY;
    axes.high = -INFINITY;
    for (uint64_t i = 0; i < report->count; i++) {
        axes.low = fmin(axes.low, value(&report->points[i]));
        axes.high = fmax(axes.high, value(&report->points[i]));
    }
    return axes;
}

static void draw_frame(FILE *out, const struct axes *axes, const char *title)
{
    fprintf(out, "<h2>%s</h2>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n", title, WIDTH,
            HEIGHT, title);
    for (int i = 0; i <= 4; i++) {
        double value = axes->low + (axes->high - axes->low) * i / 4, y = y_of(axes, value);
        double step = axes->first + (axes->last - axes->first) * i / 4;
        fprintf(out,
                "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>"
                "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.5g</text>"
                "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f</text>\n",
                LEFT, y, WIDTH - RIGHT, y, LEFT - 6, y + 4, value, x_of(axes, step), HEIGHT - 10, step);
    }
}

static void draw_curve(FILE *out, const struct report *report, const struct axes *axes,
                       double (*value)(const struct point *), const char *class)
{
    bool every = value == val_loss_of || value == val_accuracy_of; /* few */
    uint64_t stride = every ? 1 : report->count / POINTS_MAX + 1;
    fprintf(out, "<polyline class=\"%s\" points=\"", class);
    for (uint64_t i = 0; i < report->count; i += stride)
        if (isfinite(value(&report->points[i])))
            fprintf(out, "%.1f,%.1f ", x_of(axes, report->points[i].step),
                    y_of(axes, value(&report->points[i])));
    fputs("\"/>\n", out);
}

static bool is_incident(const json_t *event)
{
    const char *name = json_string_value(json_object_get(event, "event"));
    return name != NULL && (strcmp(name, "recovery") == 0 || strcmp(name, "resumed") == 0);
}

static void draw_incidents(FILE *out, const struct report *report, const struct axes *axes)
{
    size_t i;
    json_t *event;
    json_array_foreach(report->events, i, event)
    {
        if (!is_incident(event))
            continue;
        double x = x_of(axes, number(event, "step"));
        fprintf(out, "<line class=\"incident\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>\n", x, TOP, x,
                HEIGHT - BOTTOM);
    }
}

static void draw(FILE *out, const struct report *report, const char *title,
                 double (*value)(const struct point *), bool validation)
{
    struct axes axes = axes_of(report, value);
    if (validation) {
        struct axes other = axes_of(report, val_loss_of);
        axes.low = fmin(axes.low, other.low);
        axes.high = fmax(axes.high, other.high);
    }
    draw_frame(out, &axes, title);
    draw_incidents(out, report, &axes);
    draw_curve(out, report, &axes, value, "curve");
    if (validation)
        draw_curve(out, report, &axes, val_loss_of, "validation");
    fputs("</svg>\n", out);
}

/* ---- words
 * ------------------------------------------------------------------------------------------------------- */

static void put_escaped(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        default:
            fputc(*text, out);
        }
    }
}

static void put_cell(FILE *out, const json_t *value)
{
    fputs("<td>", out);
    if (json_is_string(value))
        put_escaped(out, json_string_value(value));
    else if (json_is_integer(value))
        fprintf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        fprintf(out, "%.3f", json_real_value(value));
    fputs("</td>", out);
}

static void put_recoveries(FILE *out, const struct report *report)
{
    static const char *const columns[] = {
        "step",   "cause",  "lost_ranks",        "detect_s", "reconfigure_s", "sync_s",
        "heal_s", "redo_s", "redo_microbatches", "wait_s",   "total_s"};
    size_t i;
    json_t *event;
    fputs("<h2>Losses and what they cost</h2>\n<table><tr>", out);
    for (size_t c = 0; c < sizeof columns / sizeof columns[0]; c++)
        fprintf(out, "<th>%s</th>", columns[c]);
    fputs("</tr>\n", out);
    uint32_t rows = 0;
    json_array_foreach(report->events, i, event)
    {
        const char *name = json_string_value(json_object_get(event, "event"));
        if (name == NULL || strcmp(name, "recovery") != 0)
            continue;
        rows++;
        fputs("<tr>", out);
        for (size_t c = 0; c < sizeof columns / sizeof columns[0]; c++)
            put_cell(out, json_object_get(event, columns[c]));
        fputs("</tr>\n", out);
    }
    fprintf(out, "</table>\n<p>Losses of ranks while the run was alive: %" PRIu32 ".</p>\n", rows);
}

/* The field that tells most about an event. */
static const json_t *what_of(const json_t *event)
{
    static const char *const fields[] = {"detail", "cause", "from", "how", "seconds"};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const json_t *value = json_object_get(event, fields[i]);
        if (value != NULL && !(json_is_string(value) && json_string_length(value) == 0))
            return value;
    }
    return NULL;
}

static void put_events(FILE *out, const struct report *report)
{
    size_t i;
    json_t *event;
    fputs("<h2>Events</h2>\n<table><tr><th>time</th><th>event</th><th>step</th><th>what</th></tr>\n", out);
    double start_ns = number(json_array_get(report->events, 0), "wall_ns");
    json_array_foreach(report->events, i, event)
    {
        fprintf(out, "<tr><td>%.2f s</td>", (number(event, "wall_ns") - start_ns) / 1e9);
        put_cell(out, json_object_get(event, "event"));
        put_cell(out, json_object_get(event, "step"));
        put_cell(out, what_of(event));
        fputs("</tr>\n", out);
    }
    fputs("</table>\n", out);
}

static const char page_head[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Keel run</title>\n<style>\n"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222}\n"
    "h1{font-size:1.5em}h2{font-size:1.1em;margin-top:2em}svg{width:100%;height:auto}\n"
    "svg text{font-size:11px;fill:#666}.grid{stroke:#e4e4e4}\n"
    ".curve{fill:none;stroke:#1f5fa8;stroke-width:1.5}.validation{fill:none;stroke:#c8621b;stroke-width:2}\n"
    ".incident{stroke:#b3261e;stroke-dasharray:4 3}\n"
    "table{border-collapse:collapse;font-size:13px}td,th{padding:2px 10px 2px 0;text-align:left;"
    "border-bottom:1px solid #eee}\n.key span{margin-right:1.5em}\n</style></head><body>\n";

static void put_page(FILE *out, const struct report *report, const char *directory)
{
    const struct point *last = &report->points[report->count - 1];
    fputs(page_head, out);
    fputs("<h1>Run in ", out);
    put_escaped(out, directory);
    fprintf(out, "</h1>\n<p>%.0f steps committed, loss %.4f, weights %s, %.0f %s", last->step, last->loss,
            report->last_digest, report->last_tokens, report->unit);
    if (!isnan(report->last_accuracy))
        fprintf(out, ", validation accuracy %.4f", report->last_accuracy);
    fputs(".</p>\n", out);
    fputs("<p class=\"key\"><span style=\"color:#1f5fa8\">training loss, speed</span>"
          "<span style=\"color:#c8621b\">validation loss</span>"
          "<span style=\"color:#b3261e\">a loss of ranks, or a resume</span></p>\n",
          out);
    draw(out, report, "Loss by step", loss_of, true);
    if (!isnan(report->last_accuracy))
        draw(out, report, "Validation accuracy by step", val_accuracy_of, false);
    draw(out, report,
         strcmp(report->unit, "samples") == 0 ? "Samples per second by step" : "Tokens per second by step",
         rate_of, false);
    put_recoveries(out, report);
    put_events(out, report);
    if (report->events_skipped > 0)
        fprintf(out, "<p>%" PRIu64 " damaged lines of events.jsonl are not shown.</p>\n",
                report->events_skipped);
    fputs("</body></html>\n", out);
}

static enum keel_status read_run(struct report *report, const char *directory)
{
    char path[KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_join(path, directory, "metrics.jsonl"));
    KEEL_TRY(keel_jsonl_read(path, take_metric, report, NULL));
    KEEL_TRY(keel_path_join(path, directory, "events.jsonl"));
    KEEL_TRY(keel_jsonl_read(path, take_event, report, &report->events_skipped));
    if (report->count == 0)
        return keel_fail(KEEL_NOT_FOUND, "%s: no step was committed yet, so there is nothing to draw",
                         directory);
    return KEEL_OK;
}

static enum keel_status write_page(const struct report *report, const char *directory)
{
    char path[KEEL_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    KEEL_TRY(keel_path_join(path, directory, "report.html"));
    FILE *memory = open_memstream(&text, &bytes);
    if (memory == NULL)
        return keel_fail(KEEL_NO_MEMORY, "no memory for the report");
    put_page(memory, report, directory);
    fclose(memory);
    enum keel_status status = keel_file_replace(path, text, bytes, 0666);
    free(text); /* open_memstream's own allocation */
    return status;
}

enum keel_status keel_report_write(const char *directory)
{
    struct report report = {.events = json_array(), .last_accuracy = NAN};
    enum keel_status status = read_run(&report, directory);
    if (status == KEEL_OK)
        status = write_page(&report, directory);
    json_decref(report.events);
    keel_free(report.points);
    return status;
}
