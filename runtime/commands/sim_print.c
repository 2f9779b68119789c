/* sim_print.c - see sim_print.h. */
#include "sim_print.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { BAR = 40 };

double keel_sim_goodput(const struct keel_sim_findings *found, uint32_t run)
{
    return (double)found->runs[run].ns[KEEL_GOODPUT_WORK] / (double)found->model.duration_ns;
}

double keel_sim_quantile(const struct keel_sim_findings *found, double q)
{
    const uint32_t rank = (uint32_t)ceil(q * found->seed_count - 1e-9);
    return keel_sim_goodput(found, found->by_goodput[rank > 0 ? rank - 1 : 0]);
}

/* Over the seeds. Whole seconds and the rest apart: nanoseconds of many long runs are more than 64 bits. */
static double mean_s(const struct keel_sim_findings *found, uint32_t cause)
{
    uint64_t whole_s = 0, rest_ns = 0;
    for (uint32_t run = 0; run < found->seed_count; run++) {
        whole_s += found->runs[run].ns[cause] / KEEL_FAILURE_SECOND_NS;
        rest_ns += found->runs[run].ns[cause] % KEEL_FAILURE_SECOND_NS;
    }
    return ((double)whole_s + (double)rest_ns / 1e9) / found->seed_count;
}

/* The mean over the seeds of what one counts. */
static double mean_count(const struct keel_sim_findings *found, size_t offset)
{
    double sum = 0;
    for (uint32_t run = 0; run < found->seed_count; run++) {
        uint64_t value;
        memcpy(&value, (const char *)&found->runs[run] + offset, sizeof value);
        sum += (double)value;
    }
    return sum / found->seed_count;
}

static double mean_restores(const struct keel_sim_findings *found)
{
    double sum = mean_count(found, offsetof(struct keel_goodput, from_nothing));
    for (uint32_t tier = 0; tier < KEEL_GOODPUT_TIER_COUNT; tier++)
        sum += mean_count(found, offsetof(struct keel_goodput, restores) + tier * sizeof(uint64_t));
    return sum;
}

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

/* ---- text ---------------------------------------------------------------------------------------------- */

static void print_time(FILE *out, double value_s)
{
    if (value_s < 120)
        fprintf(out, "%.3g s", value_s);
    else if (value_s < 7200)
        fprintf(out, "%.3g min", value_s / 60);
    else
        fprintf(out, "%.3g h", value_s / 3600);
}

static void print_setting(const struct keel_sim_findings *found, FILE *out)
{
    const struct keel_goodput_model *model = &found->model;
    fprintf(out, "keel sim: %s on %u nodes of %u boards, %u spares, %.4g days; failures: %s\n", found->job,
            model->nodes, found->boards, model->spares, seconds(model->duration_ns) / 86400, found->failures);
    fprintf(out,
            "a step of %.4g s, state of %.4g GB; a lost node costs detect %.3g s (silent) or %.3g s "
            "(ended), reconfigure %.3g s, heal %.3g s\n",
            seconds(model->step_ns), (double)found->state_bytes / 1e9, seconds(model->silence_ns),
            seconds(model->exit_ns), seconds(model->reconfigure_ns), seconds(model->heal_ns));
    for (uint32_t tier = 0; tier < KEEL_GOODPUT_TIER_COUNT; tier++) {
        const struct keel_goodput_snapshots *it = &model->tiers[tier];
        if (it->every_steps == 0)
            continue;
        fprintf(out, "snapshots, %s: every ", keel_goodput_tier_word((enum keel_goodput_tier)tier));
        print_time(out, (double)it->every_steps * seconds(model->step_ns));
        fprintf(out, ", stall %.3g s, durable after ", seconds(model->stall_ns));
        print_time(out, seconds(it->drain_ns));
        fputs(", restore ", out);
        print_time(out, seconds(it->restore_ns));
        fputc('\n', out);
    }
}

static void print_causes(const struct keel_sim_findings *found, FILE *out)
{
    double most = 0;
    for (uint32_t cause = 1; cause < KEEL_GOODPUT_CAUSE_COUNT; cause++)
        most = fmax(most, mean_s(found, cause));
    fputs("\nwhere the time goes, mean of the seeds\n", out);
    for (uint32_t cause = 0; cause < KEEL_GOODPUT_CAUSE_COUNT; cause++) {
        const double value_s = mean_s(found, cause);
        if (value_s == 0)
            continue;
        fprintf(out, "  %-16s %14.3f s %9.5f%%  ", keel_goodput_word((enum keel_goodput_cause)cause), value_s,
                100 * value_s / seconds(found->model.duration_ns));
        const int length = cause == KEEL_GOODPUT_WORK || most == 0 ? 0 : (int)ceil(value_s / most * BAR);
        for (int i = 0; i < length; i++)
            fputc('#', out);
        fprintf(out, "%s%s\n", length > 0 ? " " : "", keel_goodput_help((enum keel_goodput_cause)cause));
    }
    fprintf(out, "  %-16s %14.3f s\n", "wall time", seconds(found->model.duration_ns));
}

static void print_choices(const struct keel_sim_choices *choices, const char *title, FILE *out)
{
    if (choices->count == 0)
        return;
    fprintf(out, "\n%s\n", title);
    for (uint32_t i = 0; i < choices->count; i++) {
        const struct keel_sim_choice *choice = &choices->at[i];
        fprintf(out, "  %-28s mean %8.4f%%  5th percentile %8.4f%%%s\n", choice->label, 100 * choice->mean,
                100 * choice->low, choice->best ? "  <- best" : "");
    }
}

/* One line: the best, what it is now, and what the ends of the range would be. */
static void print_intervals(const struct keel_sim_findings *found, const char *name,
                            const struct keel_sim_choices *choices, FILE *out)
{
    for (uint32_t i = 0; i < choices->count; i++)
        if (choices->at[i].best)
            fprintf(out, "  %-8s best %s: mean %.4f%%; %s %.4f%%, %s %.4f%%; now %.4f%%\n", name,
                    choices->at[i].label, 100 * choices->at[i].mean, choices->at[0].label,
                    100 * choices->at[0].mean, choices->at[choices->count - 1].label,
                    100 * choices->at[choices->count - 1].mean,
                    100 * mean_s(found, KEEL_GOODPUT_WORK) / seconds(found->model.duration_ns));
}

/* sqrt(2 C M): C is what a snapshot costs, M the mean time between restarts from one (Young 1974). */
static void print_young(const struct keel_sim_findings *found, FILE *out)
{
    const double restores = mean_restores(found), stall_s = seconds(found->model.stall_ns);
    if (restores == 0)
        return;
    fputs("  by Young's formula, for the tier that is restored from: ", out);
    print_time(out, sqrt(2 * stall_s * seconds(found->model.duration_ns) / restores));
    fputc('\n', out);
}

void keel_sim_print_text(const struct keel_sim_findings *found, FILE *out)
{
    print_setting(found, out);
    fprintf(out,
            "\ngoodput of seeds %" PRIu64 " to %" PRIu64 ": median %.4f%%, 5th percentile %.4f%%, "
            "least %.4f%%, most %.4f%%\n",
            found->first_seed, found->first_seed + found->seed_count - 1, 100 * keel_sim_quantile(found, 0.5),
            100 * keel_sim_quantile(found, 0.05), 100 * keel_sim_quantile(found, 1e-9),
            100 * keel_sim_quantile(found, 1));
    fprintf(out, "failures %.1f, incidents %.1f, restarts from a snapshot %.2f a run\n",
            mean_count(found, offsetof(struct keel_goodput, failures)),
            mean_count(found, offsetof(struct keel_goodput, incidents)), mean_restores(found));
    print_causes(found, out);
    if (found->spares.count > 0) {
        fprintf(out,
                "\nintervals of snapshots: on nodes with the store's as it is, and the reverse (%u seeds)\n",
                found->tried_seeds);
        print_intervals(found, "nodes", &found->near_intervals, out);
        print_intervals(found, "store", &found->store_intervals, out);
        print_young(found, out);
    }
    print_choices(&found->spares, "spares", out);
    print_choices(&found->tiers, "tiers, each at its interval", out);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static void put_choices(const struct keel_sim_choices *choices, const char *key, struct keel_json *json)
{
    keel_json_open(json, key, '[');
    for (uint32_t i = 0; i < choices->count; i++) {
        const struct keel_sim_choice *choice = &choices->at[i];
        keel_json_open(json, NULL, '{');
        keel_json_text(json, "choice", choice->label);
        keel_json_real(json, "value", choice->value, 9);
        keel_json_real(json, "goodput", choice->mean, 9);
        keel_json_real(json, "goodput_p5", choice->low, 9);
        keel_json_bool(json, "best", choice->best);
        keel_json_close(json, '}');
    }
    keel_json_close(json, ']');
}

static void put_setting(const struct keel_sim_findings *found, struct keel_json *json)
{
    const struct keel_goodput_model *model = &found->model;
    keel_json_text(json, "job", found->job);
    keel_json_text(json, "failures_of", found->failures);
    keel_json_number(json, "nodes", model->nodes);
    keel_json_number(json, "boards", found->boards);
    keel_json_number(json, "spares", model->spares);
    keel_json_number(json, "copies", model->copies);
    keel_json_number(json, "state_bytes", found->state_bytes);
    keel_json_number(json, "wall_ns", model->duration_ns);
    keel_json_number(json, "step_ns", model->step_ns);
    keel_json_number(json, "first_seed", found->first_seed);
    keel_json_number(json, "seeds", found->seed_count);
}

/* The run of the median: its nanoseconds add up to wall_ns. */
static void put_median(const struct keel_sim_findings *found, struct keel_json *json)
{
    const uint32_t run = found->by_goodput[(found->seed_count - 1) / 2];
    const struct keel_goodput *its = &found->runs[run];
    keel_json_open(json, "median_run", '{');
    keel_json_number(json, "seed", found->first_seed + run);
    keel_json_number(json, "steps", its->steps);
    keel_json_number(json, "failures", its->failures);
    keel_json_number(json, "incidents", its->incidents);
    keel_json_open(json, "ns", '{');
    for (uint32_t cause = 0; cause < KEEL_GOODPUT_CAUSE_COUNT; cause++)
        keel_json_number(json, keel_goodput_word((enum keel_goodput_cause)cause), its->ns[cause]);
    keel_json_close(json, '}');
    keel_json_close(json, '}');
}

/* Runs whose times do not add up: none, or keel_goodput_run would have ended the program. */
static uint64_t count_violations(const struct keel_sim_findings *found)
{
    uint64_t count = 0;
    for (uint32_t run = 0; run < found->seed_count; run++) {
        uint64_t sum_ns = 0;
        for (uint32_t cause = 0; cause < KEEL_GOODPUT_CAUSE_COUNT; cause++)
            sum_ns += found->runs[run].ns[cause];
        count += sum_ns != found->model.duration_ns;
    }
    return count;
}

void keel_sim_print_json(const struct keel_sim_findings *found, struct keel_json *json)
{
    static const struct {
        const char *name;
        double q;
    } quantiles[] = {{"least", 1e-9}, {"p5", 0.05},  {"p25", 0.25}, {"median", 0.5},
                     {"p75", 0.75},   {"p95", 0.95}, {"most", 1}};
    put_setting(found, json);
    keel_json_real(json, "goodput", keel_sim_quantile(found, 0.5), 9);
    keel_json_real(json, "goodput_mean", mean_s(found, KEEL_GOODPUT_WORK) / seconds(found->model.duration_ns),
                   15);
    keel_json_open(json, "goodput_quantiles", '{');
    for (size_t i = 0; i < sizeof quantiles / sizeof quantiles[0]; i++)
        keel_json_real(json, quantiles[i].name, keel_sim_quantile(found, quantiles[i].q), 9);
    keel_json_close(json, '}');
    keel_json_number(json, "violations", count_violations(found));
    keel_json_real(json, "failures", mean_count(found, offsetof(struct keel_goodput, failures)), 9);
    keel_json_real(json, "incidents", mean_count(found, offsetof(struct keel_goodput, incidents)), 9);
    keel_json_real(json, "restores", mean_restores(found), 9);
    keel_json_open(json, "lost_seconds", '{');
    for (uint32_t cause = 1; cause < KEEL_GOODPUT_CAUSE_COUNT; cause++)
        keel_json_real(json, keel_goodput_word((enum keel_goodput_cause)cause), mean_s(found, cause), 15);
    keel_json_close(json, '}');
    put_median(found, json);
    keel_json_open(json, "intervals", '{');
    put_choices(&found->near_intervals, "nodes", json);
    put_choices(&found->store_intervals, "store", json);
    keel_json_close(json, '}');
    put_choices(&found->spares, "spare_choices", json);
    put_choices(&found->tiers, "tier_choices", json);
}

/* ---- SVG ----------------------------------------------------------------------------------------------- */

enum { WIDTH = 960, HEIGHT = 420, LEFT = 70, RIGHT = 180, TOP = 40, BOTTOM = 40 };

static const char *color_of(uint32_t cause)
{
    static const char *const colors[] = {"#4e79a7", "#bab0ac", "#76b7b2", "#f28e2b", "#edc948", "#59a14f",
                                         "#e15759", "#86bcb6", "#a0cbe8", "#8cd17d", "#499894", "#b07aa1",
                                         "#ff9da7", "#9c755f", "#d37295", "#79706e", "#d7b5a6"};
    _Static_assert(sizeof colors / sizeof colors[0] == KEEL_GOODPUT_CAUSE_COUNT, "a color each");
    return colors[cause];
}

static void draw_columns(const struct keel_sim_findings *found, double most, FILE *out)
{
    const double width = (double)(WIDTH - LEFT - RIGHT) / found->seed_count;
    for (uint32_t i = 0; i < found->seed_count; i++) {
        const struct keel_goodput *run = &found->runs[found->by_goodput[i]];
        double bottom = HEIGHT - BOTTOM;
        for (uint32_t cause = 1; cause < KEEL_GOODPUT_CAUSE_COUNT; cause++) {
            const double share = (double)run->ns[cause] / (double)found->model.duration_ns;
            const double height = share / most * (HEIGHT - TOP - BOTTOM);
            if (height < 0.01)
                continue;
            bottom -= height;
            fprintf(out, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\"/>\n",
                    LEFT + i * width, bottom, width, height, color_of(cause));
        }
    }
}

static void draw_legend(const struct keel_sim_findings *found, FILE *out)
{
    int y = TOP;
    for (uint32_t cause = 1; cause < KEEL_GOODPUT_CAUSE_COUNT; cause++) {
        if (mean_s(found, cause) == 0)
            continue;
        fprintf(out,
                "<rect x=\"%d\" y=\"%d\" width=\"10\" height=\"10\" fill=\"%s\"/><text x=\"%d\" "
                "y=\"%d\">%s</text>\n",
                WIDTH - RIGHT + 12, y, color_of(cause), WIDTH - RIGHT + 28, y + 9,
                keel_goodput_word((enum keel_goodput_cause)cause));
        y += 17;
    }
}

void keel_sim_print_svg(const struct keel_sim_findings *found, FILE *out)
{
    enum { TICKS = 4 };
    const double most = fmax(1 - keel_sim_quantile(found, 1e-9), 1e-9);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
            "font-size=\"12\">\n<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n"
            "<text x=\"%d\" y=\"20\">lost time by cause, one column a seed: median goodput %.3f%%, 5th "
            "percentile %.3f%%</text>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT, 100 * keel_sim_quantile(found, 0.5),
            100 * keel_sim_quantile(found, 0.05));
    for (int i = 0; i <= TICKS; i++) {
        const double y = HEIGHT - BOTTOM - (double)i / TICKS * (HEIGHT - TOP - BOTTOM);
        fprintf(
            out,
            "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.1f\" "
            "text-anchor=\"end\">%.3g%%</text>\n",
            LEFT, y, WIDTH - RIGHT, y, LEFT - 6, y + 4, 100 * most * i / TICKS);
    }
    draw_columns(found, most, out);
    draw_legend(found, out);
    fputs("</svg>\n", out);
}
