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
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS_MAX = 1000, WIDTH = 860, HEIGHT = 260, LEFT = 70, RIGHT = 40, TOP = 12, BOTTOM = 30 };
enum { VALUE_TICKS = 6, STEP_TICKS = 10 };

struct point {
    double step, loss, rate; /* rate: tokens or samples a second */
    double seconds, tokens;  /* of this step */
    bool ends_incident;
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
    double step_seconds;     /* of all steps that did not end an incident, */
    double step_tokens;      /* what they trained on, */
    uint64_t plain_steps;    /* and how many they are */
};

static double number(const json_t *line, const char *key)
{
    return json_number_value(json_object_get(line, key));
}

static double number_or_nan(const json_t *line, const char *key)
{
    return json_is_number(json_object_get(line, key)) ? number(line, key) : NAN;
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
                       .seconds = spent,
                       .tokens = tokens - report->last_tokens,
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

/* ---- drawing ------------------------------------------------------------------------------------------- */

struct axes {
    double first, last, low, high;
};

/* 1, 2 or 5 times a power of ten: the least such distance of which at most `most` fit between. */
static double tick_distance(double low, double high, int most)
{
    double raw = (high - low) / most, power = pow(10, floor(log10(raw > 0 ? raw : 1)));
    static const double factors[] = {1, 2, 5, 10};
    unsigned f = 0;
    while (f < 3 && factors[f] * power < raw * (1 - 1e-9))
        f++;
    return factors[f] * power;
}

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

/* A field of a point, by its offset. */
static double value_of(const struct point *point, size_t field)
{
    return *(const double *)(const void *)((const char *)point + field);
}

static struct axes axes_of(const struct report *report, size_t field)
{
    struct axes axes = {.first = report->points[0].step, .last = report->points[report->count - 1].step};
    axes.low = INFINITY;
    axes.high = -INFINITY;
    for (uint64_t i = 0; i < report->count; i++) {
        double one = value_of(&report->points[i], field);
        if (!isfinite(one))
            continue;
        axes.low = fmin(axes.low, one);
        axes.high = fmax(axes.high, one);
    }
    return axes;
}

/* The value axis ends at round values beyond the curve. */
static void round_axes(struct axes *axes)
{
    if (!(axes->high > axes->low)) { /* one value, or none */
        double value = isfinite(axes->low) ? axes->low : 0, half = fmax(fabs(value) * 0.1, 1e-6);
        axes->low = value - half;
        axes->high = value + half;
    }
    double distance = tick_distance(axes->low, axes->high, VALUE_TICKS);
    axes->low = floor(axes->low / distance + 1e-9) * distance;
    axes->high = ceil(axes->high / distance - 1e-9) * distance;
}

/* 12000 for a step, 0.35 for a loss: no exponent where a few digits do, and none of the noise of doubles. */
static void put_tick(FILE *out, double value, double distance)
{
    int digits = distance < 1 ? (int)ceil(-log10(distance) - 1e-9) : 0;
    if (digits > 6 || fabs(value) >= 1e7)
        fprintf(out, "%.3g", value);
    else
        fprintf(out, "%.*f", digits, fabs(value) < distance / 2 ? 0.0 : value);
}

static void draw_frame(FILE *out, const struct axes *axes, const char *title)
{
    fprintf(out, "<h2>%s</h2>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n", title, WIDTH,
            HEIGHT, title);
    double distance = tick_distance(axes->low, axes->high, VALUE_TICKS);
    int ticks = (int)((axes->high - axes->low) / distance + 0.5);
    for (int i = 0; i <= ticks; i++) {
        double value = axes->low + i * distance, y = y_of(axes, value);
        fprintf(out,
                "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>"
                "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">",
                LEFT, y, WIDTH - RIGHT, y, LEFT - 6, y + 4);
        put_tick(out, value, distance);
        fputs("</text>\n", out);
    }
    distance = fmax(1, tick_distance(axes->first, axes->last, STEP_TICKS));
    double first = ceil(axes->first / distance);
    ticks = (int)(floor(axes->last / distance) - first);
    for (int i = 0; i <= ticks; i++)
        fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f</text>\n",
                x_of(axes, (first + i) * distance), HEIGHT - 10, (first + i) * distance);
}

static void draw_curve(FILE *out, const struct report *report, const struct axes *axes, size_t field,
                       const char *class)
{
    bool every =
        field == offsetof(struct point, val_loss) || field == offsetof(struct point, val_accuracy); /* few */
    uint64_t stride = every ? 1 : report->count / POINTS_MAX + 1;
    fprintf(out, "<polyline class=\"%s\" points=\"", class);
    for (uint64_t i = 0; i < report->count; i += stride)
        if (isfinite(value_of(&report->points[i], field)))
            fprintf(out, "%.1f,%.1f ", x_of(axes, report->points[i].step),
                    y_of(axes, value_of(&report->points[i], field)));
    fputs("\"/>\n", out);
}

static bool is_incident(const json_t *event)
{
    const char *name = json_string_value(json_object_get(event, "event"));
    return name != NULL &&
           (strcmp(name, "recovery") == 0 || strcmp(name, "restarted") == 0 || strcmp(name, "resumed") == 0);
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

static void draw(FILE *out, const struct report *report, const char *title, size_t field, bool validation)
{
    struct axes axes = axes_of(report, field);
    if (validation) {
        struct axes other = axes_of(report, offsetof(struct point, val_loss));
        axes.low = fmin(axes.low, other.low);
        axes.high = fmax(axes.high, other.high);
    }
    round_axes(&axes);
    draw_frame(out, &axes, title);
    draw_incidents(out, report, &axes);
    draw_curve(out, report, &axes, field, "curve");
    if (validation)
        draw_curve(out, report, &axes, offsetof(struct point, val_loss), "validation");
    fputs("</svg>\n", out);
}

/* ---- words --------------------------------------------------------------------------------------------- */

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

/* False too where either has no name: a line of a file that is damaged may have none. */
static bool is_named(const json_t *event, const char *name)
{
    const char *its = json_string_value(json_object_get(event, "event"));
    return its != NULL && name != NULL && strcmp(its, name) == 0;
}

/* "rank 1 (node 2, HOST, BOARD)", one a line. */
static void put_lost(FILE *out, const json_t *event)
{
    size_t i;
    const json_t *member;
    fputs("<td>", out);
    json_array_foreach(json_object_get(event, "lost"), i, member)
    {
        fprintf(out, "%srank %.0f (node %.0f", i > 0 ? "<br>" : "", number(member, "rank"),
                number(member, "node"));
        static const char *const fields[] = {"host", "board"};
        for (unsigned f = 0; f < 2; f++) {
            const char *text = json_string_value(json_object_get(member, fields[f]));
            if (text == NULL || text[0] == '\0')
                continue;
            fputs(", ", out);
            put_escaped(out, text);
        }
        fputs(")", out);
    }
    if (is_named(event, "restarted"))
        fputs("all: the run was started again", out);
    fputs("</td>", out);
}

static const struct {
    const char *field, *title;
} parts[] = {{"down_s", "not running"},
             {"start_s", "starting"},
             {"before_s", "before the failure"},
             {"detect_s", "detect"},
             {"reconfigure_s", "reconfigure"},
             {"restore_s", "restore"},
             {"again_s", "steps again"},
             {"sync_s", "agree"},
             {"heal_s", "heal"},
             {"redo_s", "compute"},
             {"wait_s", "wait"},
             {"other_s", "other"}};
enum { PART_COUNT = sizeof parts / sizeof parts[0] };

/* Where the state came from by which an incident ended: of live ranks, or of the snapshot that was taken
 * since the one before it, the tier. */
static void put_source(FILE *out, const struct report *report, size_t at)
{
    const json_t *incident = json_array_get(report->events, at);
    const char *source = number(incident, "heal_bytes") > 0 ? "live ranks" : "";
    while (at-- > 0) {
        const json_t *event = json_array_get(report->events, at);
        if (is_named(event, "recovery") || is_named(event, "restarted"))
            break;
        if (!is_named(event, "resumed"))
            continue;
        const char *detail = json_string_value(json_object_get(event, "detail"));
        const char *from = detail != NULL ? strstr(detail, ", from ") : NULL;
        source = from != NULL ? from + strlen(", from ") : "the run's directory";
        break;
    }
    fputs("<td>", out);
    put_escaped(out, source);
    fputs("</td>", out);
}

/* Columns that are nothing in every incident are left out; so the parts of a row add up to its total. */
static void put_incidents(FILE *out, const struct report *report)
{
    size_t i;
    json_t *event;
    bool used[PART_COUNT] = {0};
    uint32_t rows = 0;
    double total = 0;
    json_array_foreach(report->events, i,
                       event) if (is_named(event, "recovery") || is_named(event, "restarted"))
    {
        for (size_t p = 0; p < PART_COUNT; p++)
            used[p] = used[p] || number(event, parts[p].field) >= 0.0005;
        total += number(event, "total_s");
        rows++;
    }
    fputs("<h2>Losses and what they cost</h2>\n", out);
    if (rows == 0) {
        fputs("<p>No rank was lost.</p>\n", out);
        return;
    }
    fputs("<p>Seconds from the last commit before a loss to the first commit after "
          "it.</p>\n<table><tr><th>step</th>"
          "<th>lost</th><th>cause</th><th>state from</th>",
          out);
    for (size_t p = 0; p < PART_COUNT; p++)
        if (used[p])
            fprintf(out, "<th>%s</th>", parts[p].title);
    fputs("<th>total</th></tr>\n", out);
    json_array_foreach(report->events, i, event)
    {
        if (!is_named(event, "recovery") && !is_named(event, "restarted"))
            continue;
        fputs("<tr>", out);
        put_cell(out, json_object_get(event, "step"));
        put_lost(out, event);
        put_cell(out, json_object_get(event, "cause"));
        put_source(out, report, i);
        for (size_t p = 0; p < PART_COUNT; p++)
            if (used[p])
                put_cell(out, json_object_get(event, parts[p].field));
        put_cell(out, json_object_get(event, "total_s"));
        fputs("</tr>\n", out);
    }
    fprintf(out, "</table>\n<p>%" PRIu32 " in all, %.3f s.</p>\n", rows, total);
}

/* The field that tells most about an event. */
static const json_t *what_of(const json_t *event)
{
    static const char *const fields[] = {"detail", "cause", "board", "from", "how", "seconds"};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const json_t *value = json_object_get(event, fields[i]);
        if (value != NULL && !(json_is_string(value) && json_string_length(value) == 0))
            return value;
    }
    return NULL;
}

/* Do two events say the same but for who says it, and when? */
static bool says_the_same(const json_t *a, const json_t *b)
{
    const json_t *what = what_of(a), *other = what_of(b);
    return is_named(a, json_string_value(json_object_get(b, "event"))) &&
           number(a, "step") == number(b, "step") &&
           (what == NULL || other == NULL ? what == other : json_equal(what, other) != 0);
}

/* Neighbours that say the same are one row with their number. */
static void put_events(FILE *out, const struct report *report)
{
    fputs("<h2>Events</h2>\n<table><tr><th>time</th><th>event</th><th>step</th><th>what</th><th></th></tr>\n",
          out);
    double start_ns = number(json_array_get(report->events, 0), "wall_ns");
    size_t count = json_array_size(report->events);
    for (size_t i = 0, next; i < count; i = next) {
        const json_t *event = json_array_get(report->events, i);
        for (next = i + 1; next < count && says_the_same(event, json_array_get(report->events, next));)
            next++;
        fprintf(out, "<tr><td>%.2f s</td>", (number(event, "wall_ns") - start_ns) / 1e9);
        put_cell(out, json_object_get(event, "event"));
        put_cell(out, json_object_get(event, "step"));
        put_cell(out, what_of(event));
        if (next - i > 1)
            fprintf(out, "<td>%zu times</td>", next - i);
        fputs("</tr>\n", out);
    }
    fputs("</table>\n", out);
}

/* ---- the head ------------------------------------------------------------------------------------------ */

/* How long the run was up: from each start to the last that is known of that life. */
static double up_seconds(const struct report *report)
{
    double up = 0, begun = 0, newest = 0;
    size_t i;
    json_t *event;
    json_array_foreach(report->events, i, event)
    {
        double at = number(event, "wall_ns") / 1e9;
        if (is_named(event, "start")) {
            up += newest - begun;
            begun = at;
        }
        newest = at;
    }
    return up + newest - begun;
}

/* Floating operations a second that all boards of the newest view can do together; 0: one is not known. */
static double peak_of(const struct report *report, double ranks)
{
    size_t i;
    json_t *event;
    double lowest = INFINITY;
    json_array_foreach(report->events, i, event) if (is_named(event, "board")) lowest =
        fmin(lowest, number(event, "peak_flops_s"));
    return isfinite(lowest) ? lowest * ranks : 0;
}

static const json_t *newest_of(const struct report *report, const char *name)
{
    const json_t *found = NULL;
    size_t i;
    json_t *event;
    json_array_foreach(report->events, i, event) if (is_named(event, name)) found = event;
    return found;
}

static void put_fact(FILE *out, const char *name, const char *text)
{
    fprintf(out, "<tr><th>%s</th><td>", name);
    put_escaped(out, text);
    fputs("</td></tr>\n", out);
}

/* 1234567 as 1,234,567. */
static const char *grouped(double value, char out[32])
{
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%.0f", value), used = 0;
    for (int i = 0; i < length && used < 30; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            out[used++] = ',';
        out[used++] = digits[i];
    }
    out[used] = '\0';
    return out;
}

/* Each different board once: "2 x NAME on HOST". */
static void put_boards(FILE *out, const struct report *report)
{
    char seen[8][256] = {{0}}, line[256];
    uint32_t count = 0;
    size_t i;
    json_t *event;
    json_array_foreach(report->events, i, event)
    {
        if (!is_named(event, "board"))
            continue;
        const char *board = json_string_value(json_object_get(event, "board"));
        const char *host = json_string_value(json_object_get(event, "host"));
        snprintf(line, sizeof line, "%s on %s", board != NULL ? board : "?", host != NULL ? host : "?");
        uint32_t at = 0;
        while (at < count && strcmp(seen[at], line) != 0)
            at++;
        if (at == count && count < 8)
            snprintf(seen[count++], sizeof seen[0], "%s", line);
    }
    for (uint32_t b = 0; b < count; b++)
        put_fact(out, b == 0 ? "Boards" : "", seen[b]);
}

/* Those of the last view that had some, since at the end they leave; and how many its life was to have. */
static double ranks_of(const struct report *report, double *out_wanted)
{
    const json_t *start = NULL, *view = NULL, *began = newest_of(report, "start");
    size_t i;
    json_t *event;
    json_array_foreach(report->events, i, event)
    {
        start = is_named(event, "start") ? event : start;
        if (!is_named(event, "view") || json_array_size(json_object_get(event, "ranks")) == 0)
            continue;
        view = event;
        began = start;
    }
    *out_wanted = number(began, "ranks");
    return view != NULL ? (double)json_array_size(json_object_get(view, "ranks")) : *out_wanted;
}

static void put_head(FILE *out, const struct report *report)
{
    const json_t *start = newest_of(report, "start"), *board = newest_of(report, "board");
    const char *model = json_string_value(json_object_get(start, "model"));
    char text[128], one[32], other[32];
    double wanted, ranks = ranks_of(report, &wanted);
    fputs("<table class=\"head\">\n", out);
    if (model != NULL)
        put_fact(out, "Model", model);
    if (board != NULL)
        put_fact(out, "Parameters", grouped(number(board, "parameters"), one));
    snprintf(text, sizeof text, "%.0f of %.0f", ranks, wanted);
    put_fact(out, "Ranks", text);
    put_boards(out, report);
    double rate = report->step_seconds > 0 ? report->step_tokens / report->step_seconds : 0;
    snprintf(text, sizeof text, "%s, %s a second while steps were committed",
             grouped(report->last_tokens, one), grouped(rate, other));
    put_fact(out, strcmp(report->unit, "samples") == 0 ? "Samples" : "Tokens", text);
    double peak = peak_of(report, ranks);
    if (peak > 0 && report->step_seconds > 0) {
        snprintf(text, sizeof text, "%.1f%%",
                 100 * number(board, "flops_per_step") * (double)report->plain_steps / report->step_seconds /
                     peak);
        put_fact(out, "Share of the peak", text);
    }
    double up = up_seconds(report);
    if (up > 0) {
        snprintf(text, sizeof text, "%.1f%% of %.1f s went into steps that were committed",
                 100 * fmin(1, report->step_seconds / up), up);
        put_fact(out, "Goodput", text);
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
    "border-bottom:1px solid #eee;vertical-align:top}\n.head th{font-weight:normal;color:#666}\n.key "
    "span{margin-right:1.5em}\n</style></head><body>\n";

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
    if (last->step > (double)report->count)
        fprintf(out, "; %.0f of these steps have no line in metrics.jsonl, and are not drawn",
                last->step - (double)report->count);
    fputs(".</p>\n", out);
    put_head(out, report);
    fputs("<p class=\"key\"><span style=\"color:#1f5fa8\">training loss, speed</span>"
          "<span style=\"color:#c8621b\">validation loss</span>"
          "<span style=\"color:#b3261e\">a loss of ranks, or a resume</span></p>\n",
          out);
    draw(out, report, "Loss by step", offsetof(struct point, loss), true);
    if (!isnan(report->last_accuracy))
        draw(out, report, "Validation accuracy by step", offsetof(struct point, val_accuracy), false);
    draw(out, report,
         strcmp(report->unit, "samples") == 0 ? "Samples per second by step" : "Tokens per second by step",
         offsetof(struct point, rate), false);
    put_incidents(out, report);
    put_events(out, report);
    if (report->events_skipped > 0)
        fprintf(out, "<p>%" PRIu64 " damaged lines of events.jsonl are not shown.</p>\n",
                report->events_skipped);
    fputs("</body></html>\n", out);
}

static int compare_step(const void *step, const void *point)
{
    const double wanted = *(const double *)step, its = ((const struct point *)point)->step;
    return (wanted > its) - (wanted < its);
}

static struct point *find_point(const struct report *report, double step)
{
    return report->count == 0 ? NULL
                              : bsearch(&step, report->points, keel_size(report->count),
                                        sizeof report->points[0], compare_step);
}

/* The time of steps that ended no incident; that of the others is in the incident. */
static void sum_steps(struct report *report)
{
    size_t i;
    json_t *event;
    json_array_foreach(report->events, i, event)
    {
        struct point *point = find_point(report, number(event, "step"));
        if (point != NULL && (is_named(event, "recovery") || is_named(event, "restarted")))
            point->ends_incident = true;
    }
    for (uint64_t p = 0; p < report->count; p++) {
        const struct point *point = &report->points[p];
        if (point->ends_incident)
            continue;
        report->step_seconds += point->seconds;
        report->step_tokens += point->tokens;
        report->plain_steps++;
    }
}

static enum keel_status read_run(struct report *report, const char *directory)
{
    char path[KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_join(path, directory, "metrics.jsonl"));
    KEEL_TRY(keel_jsonl_read(path, take_metric, report, NULL));
    KEEL_TRY(keel_path_join(path, directory, "events.jsonl"));
    KEEL_TRY(keel_jsonl_read(path, take_event, report, &report->events_skipped));
    if (report->count == 0)
        return keel_fail(KEEL_NOT_FOUND,
                         "%s: metrics.jsonl has no line of a step, so there is nothing to draw", directory);
    sum_steps(report);
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
