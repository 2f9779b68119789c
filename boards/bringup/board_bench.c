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

static const struct keel_check_figure *find(const struct keel_check_report *report, const char *name)
{
    for (uint32_t i = 0; i < report->done; i++)
        for (uint32_t k = 0; k < report->results[i].figure_count; k++)
            if (strcmp(report->results[i].figures[k].name, name) == 0)
                return &report->results[i].figures[k];
    return NULL;
}

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

static void print_row(const struct keel_check_report *report, const char *name, const char *what,
                      const char *peak)
{
    const struct keel_check_figure *figure = find(report, name),
                                   *other = peak != NULL ? find(report, peak) : NULL;
    if (figure == NULL)
        return;
    printf("%-36s %12.3f %-8s %5.1f%%", what, figure->value, figure->unit, 100 * scatter(figure));
    if (other != NULL && other->value > 0)
        printf("   %.2f of %.3f", figure->value / other->value, other->value);
    putchar('\n');
}

static void print_table(const struct keel_check_report *report)
{
    printf("%-36s %12s %-8s %6s   %s\n", "", "median", "", "middle", "beside");
    print_row(report, "launch_us", "launch of a small kernel", NULL);
    print_row(report, "write_gbs", "host to device", NULL);
    print_row(report, "read_gbs", "device to host", NULL);
    print_row(report, "copy_gbs", "copy within the device", NULL);
    print_row(report, "memory_gbs", "kernel: y = a + b", "peak_read_gbs");
    print_row(report, "peak_read_gbs", "plain kernel that reads memory", NULL);
    print_row(report, "gemm_gflops", "product, float32, canonical", "peak_gflops");
    print_row(report, "peak_gflops", "plain kernel of multiply-adds", NULL);
    print_row(report, "clpeak_memory_gbs", "clpeak: memory", NULL);
    print_row(report, "clpeak_gflops", "clpeak: single precision", NULL);
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
