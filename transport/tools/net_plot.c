/* net_plot.c - the page of `keel net bench --html`: two plots over size (bus bandwidth, median latency) and a
 * table, in one file without anything from elsewhere. */
#include "net_bench.h"

#include <errno.h>
#include <inttypes.h>
#include <keel/memory.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 860, HEIGHT = 400, LEFT = 70, RIGHT = 20, TOP = 34, BOTTOM = 46, CURVES_MAX = 16 };

static const char *const colours[] = {"#1b6ca8", "#c8102e", "#2a8a3e", "#8a4fbf", "#c77700", "#00838f",
                                      "#6d4c41", "#d81b60", "#455a64", "#7cb342", "#5e35b1", "#ef6c00"};
enum { COLOURS = sizeof colours / sizeof colours[0] };

struct plot {
    FILE *out;
    const struct keel_net_bench_row *rows;
    uint32_t row_count;
    bool latency;                     /* else bus bandwidth */
    int x_low, x_high, y_low, y_high; /* powers of two, of ten thousandths for y */
};

static double value_of(const struct plot *plot, const struct keel_net_bench_row *row)
{
    return plot->latency ? row->p50_us : row->bus_gbs;
}

static bool has_point(const struct plot *plot, const struct keel_net_bench_row *row)
{
    return row->it.iterations > 0 && row->it.bytes > 0 && value_of(plot, row) > 0;
}

static bool is_same_curve(const struct keel_net_bench_row *one, const struct keel_net_bench_row *other)
{
    return one->it.kind == other->it.kind && one->it.element == other->it.element &&
           one->it.order == other->it.order && one->it.algorithm == other->it.algorithm;
}

static void frame_plot(struct plot *plot)
{
    bool any = false;
    for (uint32_t k = 0; k < plot->row_count; k++) {
        if (!has_point(plot, &plot->rows[k]))
            continue;
        double x = log2((double)plot->rows[k].it.bytes), y = log2(value_of(plot, &plot->rows[k]));
        int x_floor = (int)x, y_floor = (int)(y + 64) - 64;
        if (!any || x_floor < plot->x_low)
            plot->x_low = x_floor;
        if (!any || x_floor + 1 > plot->x_high)
            plot->x_high = x_floor + 1;
        if (!any || y_floor < plot->y_low)
            plot->y_low = y_floor;
        if (!any || y_floor + 1 > plot->y_high)
            plot->y_high = y_floor + 1;
        any = true;
    }
    if (!any)
        plot->x_high = plot->y_high = 1;
}

static double x_of(const struct plot *plot, double log2_bytes)
{
    return LEFT + (log2_bytes - plot->x_low) / (plot->x_high - plot->x_low) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct plot *plot, double log2_value)
{
    return HEIGHT - BOTTOM -
           (log2_value - plot->y_low) / (plot->y_high - plot->y_low) * (HEIGHT - TOP - BOTTOM);
}

/* ---- drawing ---- */

static void size_label(int power, char out[16])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    snprintf(out, 16, "%d %s", 1 << power % 10, units[power / 10 < 6 ? power / 10 : 6]);
}

static void draw_grid(const struct plot *plot)
{
    char label[16];
    int x_step = plot->x_high - plot->x_low > 16 ? 2 : 1, y_step = plot->y_high - plot->y_low > 14 ? 2 : 1;
    for (int power = plot->x_low; power <= plot->x_high; power += x_step) {
        double x = x_of(plot, power);
        size_label(power, label);
        fprintf(plot->out,
                "<line x1='%.1f' y1='%d' x2='%.1f' y2='%d'/><text x='%.1f' y='%d' "
                "text-anchor='middle'>%s</text>\n",
                x, TOP, x, HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 16, label);
    }
    for (int power = plot->y_low; power <= plot->y_high; power += y_step) {
        double y = y_of(plot, power),
               value = power >= 0 ? (double)(UINT64_C(1) << power) : 1.0 / (double)(UINT64_C(1) << -power);
        fprintf(
            plot->out,
            "<line x1='%d' y1='%.1f' x2='%d' y2='%.1f'/><text x='%d' y='%.1f' text-anchor='end'>%g</text>\n",
            LEFT, y, WIDTH - RIGHT, y, LEFT - 6, y + 4, value);
    }
}

static void name_curve(const struct keel_net_bench_row *row, char *out, size_t out_bytes)
{
    snprintf(out, out_bytes, "%s %s, %s, %s", keel_collective_name(row->it.kind),
             keel_element_name(row->it.element), keel_order_name(row->it.order),
             keel_algorithm_name(row->it.algorithm));
}

static void draw_curve(const struct plot *plot, uint32_t first, uint32_t number)
{
    const char *colour = colours[number % COLOURS];
    char name[96];
    fprintf(plot->out, "<polyline fill='none' stroke='%s' stroke-width='2' points='", colour);
    for (uint32_t k = first; k < plot->row_count; k++)
        if (is_same_curve(&plot->rows[first], &plot->rows[k]) && has_point(plot, &plot->rows[k]))
            fprintf(plot->out, "%.1f,%.1f ", x_of(plot, log2((double)plot->rows[k].it.bytes)),
                    y_of(plot, log2(value_of(plot, &plot->rows[k]))));
    name_curve(&plot->rows[first], name, sizeof name);
    fprintf(plot->out, "'/>\n<text x='%d' y='%u' fill='%s'>%s</text>\n", LEFT + 10, TOP + 16 + 15 * number,
            colour, name);
}

static void draw(struct plot *plot, const char *title)
{
    uint32_t curves = 0;
    frame_plot(plot);
    fprintf(plot->out, "<svg viewBox='0 0 %d %d' role='img'><g stroke='#ddd' fill='#555' font-size='11'>\n",
            WIDTH, HEIGHT);
    fprintf(plot->out, "<text x='%d' y='20' font-size='14' stroke='none'>%s</text>\n<g stroke-width='1'>",
            LEFT, title);
    draw_grid(plot);
    fprintf(plot->out, "</g></g><g font-size='12'>\n");
    for (uint32_t k = 0; k < plot->row_count && curves < CURVES_MAX; k++) {
        bool seen = !has_point(plot, &plot->rows[k]);
        for (uint32_t before = 0; before < k && !seen; before++)
            seen = has_point(plot, &plot->rows[before]) && is_same_curve(&plot->rows[before], &plot->rows[k]);
        if (!seen)
            draw_curve(plot, k, curves++);
    }
    fprintf(plot->out, "</g></svg>\n");
}

static void write_table(FILE *out, const struct keel_net_bench_row *rows, uint32_t row_count)
{
    fputs("<table><tr><th>operation<th>element<th>order<th>algorithm<th>bytes<th>iterations<th>p50 us<th>p90 "
          "us<th>p99 us"
          "<th>max us<th>mean us<th>algorithm GB/s<th>bus GB/s<th>sent bytes</tr>\n",
          out);
    for (uint32_t k = 0; k < row_count; k++) {
        const struct keel_net_bench_row *row = &rows[k];
        if (row->it.iterations > 0)
            fprintf(out,
                    "<tr><td>%s<td>%s<td>%s<td>%s<td>%" PRIu64 "<td>%" PRIu32
                    "<td>%.1f<td>%.1f<td>%.1f<td>%.1f<td>%.1f<td>%.3f<td>%.3f<td>%.0f</tr>\n",
                    keel_collective_name(row->it.kind), keel_element_name(row->it.element),
                    keel_order_name(row->it.order), keel_algorithm_name(row->it.algorithm), row->it.bytes,
                    row->it.iterations, row->p50_us, row->p90_us, row->p99_us, row->max_us, row->mean_us,
                    row->algorithm_gbs, row->bus_gbs, row->sent_bytes);
    }
    fputs("</table>\n", out);
}

static void write_page(FILE *out, const struct keel_net_bench_row *rows, uint32_t row_count, uint32_t world,
                       const char *carrier)
{
    struct plot bandwidth = {.out = out, .rows = rows, .row_count = row_count};
    struct plot latency = {.out = out, .rows = rows, .row_count = row_count, .latency = true};
    fprintf(out,
            "<!doctype html>\n<html lang='en'><meta charset='utf-8'><title>keel net bench</title>\n<style>"
            "body{font:14px sans-serif;max-width:980px;margin:2em auto;color:#222}svg{width:100%%}"
            "svg text{stroke:none}table{border-collapse:collapse;font-size:12px}td,th{padding:2px "
            "8px;text-align:right;"
            "border-bottom:1px solid #eee}td:nth-child(-n+4),th:nth-child(-n+4){text-align:left}</style>\n"
            "<h1>keel net bench: %" PRIu32 " ranks, %s</h1>\n"
            "<p>Bus bandwidth is bytes over time, times 2(n-1)/n for all-reduce, (n-1)/n for reduce-scatter, "
            "all-gather, "
            "all-to-all, gather and scatter, 1 for the others (as nccl-tests count), in 10<sup>9</sup> bytes "
            "a second. "
            "Time is the mean of all iterations of all ranks.</p>\n",
            world, carrier);
    draw(&bandwidth, "bus bandwidth, GB/s, over size");
    draw(&latency, "median latency, us, over size");
    write_table(out, rows, row_count);
    fputs("</html>\n", out);
}

enum keel_status keel_net_bench_page(const char *path, const struct keel_net_bench_row *rows,
                                     uint32_t row_count, uint32_t world, const char *carrier)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL)
        return keel_fail(KEEL_NO_MEMORY, "%s: no memory for the page", path);
    write_page(out, rows, row_count, world, carrier);
    enum keel_status status = KEEL_OK;
    if (fclose(out) != 0)
        status = keel_fail(KEEL_NO_MEMORY, "%s: no memory for the page", path);
    else
        status = keel_command_write_file(path, text, bytes);
    free(text);
    return status;
}
