/* board_bench.c - `keel board bench`: how fast a board is, beside what a plain kernel reaches.
 *
 * The figures are those of level 5 (check_speed.c), which counts peaks as clpeak does: chains of
 * multiply-adds, and a read of memory; clpeak itself is run where it is installed (clpeak.c). Kernels with
 * Keel's own order of arithmetic stand beside them. */
#include "board_kinds.h"
#include "check_reports.h"
#include "clpeak.h"
#include <string.h>

struct own {
    bool quick;
};

/* How far repeats lie apart: half of them lie between these two, as a part of the median. */
static double scatter(const struct keel_check_figure *figure)
{
    uint32_t inside = 0;
    double width = 0, step = figure->value / 1000;
    while (step > 0 && inside * 2 < figure->sample_count && width < figure->value) {
        width += step;
        inside = 0;
        for (uint32_t i = 0; i < figure->sample_count; i++)
            inside +=
                figure->samples[i] >= figure->value - width && figure->samples[i] <= figure->value + width;
    }
    return figure->value > 0 ? 2 * width / figure->value : 0;
}

/* A row of the table: a figure, and the peak that it stands beside. */
static const struct row {
    const char *figure, *what, *peak;
} rows[] = {
    {"launch_us", "launch of a small kernel", NULL},
    {"write_gbs", "host to device", NULL},
    {"read_gbs", "device to host", NULL},
    {"copy_gbs", "copy within the device", NULL},
    {"memory_gbs", "kernel: y = a + b", "peak_read_gbs"},
    {"peak_read_gbs", "plain kernel that reads memory", NULL},
    {"gemm_gflops", "product, float32, canonical", "peak_gflops"},
    {"peak_gflops", "plain kernel of multiply-adds", NULL},
    {"clpeak_memory_gbs", "clpeak: memory", NULL},
    {"clpeak_gflops", "clpeak: single precision", NULL},
};

static void print_row(const struct keel_check_report *report, const struct row *row)
{
    const struct keel_check_figure *figure = keel_check_find_figure(report, row->figure),
                                   *peak =
                                       row->peak != NULL ? keel_check_find_figure(report, row->peak) : NULL;
    if (figure == NULL)
        return;
    printf("%-36s %12.3f %-8s %5.1f%%", row->what, figure->value, figure->unit, 100 * scatter(figure));
    if (peak != NULL && peak->value > 0)
        printf("   %.2f of %.3f", figure->value / peak->value, peak->value);
    putchar('\n');
}

static void print_table(const struct keel_check_report *report)
{
    printf("%-36s %12s %-8s %6s   %s\n", "", "median", "", "middle", "beside");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        print_row(report, &rows[i]);
    for (uint32_t i = 0; i < report->done; i++)
        for (uint32_t k = 0; k < report->results[i].note_count; k++)
            if (strncmp(report->results[i].notes[k], "clpeak", strlen("clpeak")) == 0)
                printf("%s\n", report->results[i].notes[k]);
}

static int run(const struct keel_command *command)
{
    const struct own *own = keel_command_own(command);
    const struct keel_check_options options = {
        .board = command->operand_count > 0 ? command->operands[0] : "auto", .quick = own->quick};
    struct keel_check_report report;
    enum keel_status status = keel_check_session(&options, "0.2,2.1,5", false, &report);
    if (status != KEEL_OK)
        return keel_board_report(status);
    keel_clpeak_add(&report);
    if (command->json) {
        keel_check_print_json(&report, stdout);
    } else {
        print_table(&report);
        for (uint32_t i = 0; i < report.done; i++)
            if (report.results[i].verdict != KEEL_VERDICT_PASS)
                printf("%s %s %s: %s\n", keel_verdict_name(report.results[i].verdict),
                       report.results[i].check->id, report.results[i].check->name, report.results[i].reason);
        keel_check_print_summary(&report, stdout);
    }
    int code = keel_check_exit_code(&report);
    keel_check_report_fini(&report);
    return code;
}

static const struct keel_command_option options[] = {
    {"--quick", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, quick), "fewer repeats and smaller sizes"},
    {.name = NULL}};

const struct keel_command_kind keel_board_bench = {
    .name = "bench",
    .operands = "[BOARD]",
    .operands_max = 1,
    .summary = "how fast launches, copies, memory and products are, beside what a plain kernel reaches",
    .details =
        "Medians of repeats that are measured in turns; `middle` is the width that holds half of them.\n"
        "Peaks are counted as clpeak does, whose own figures stand beside them where it is installed.\n"
        " Exit code 1: a limit of the board file is not reached.\n",
    .examples = "  keel board bench\n"
                "  keel board bench pocl:0 --json | jq '.checks[].figures[] | {name, value, unit}'\n",
    .options = options,
    .run = run};
