/* clpeak.c - clpeak, a program of its own: run, waited for, and its output read. */
#include "clpeak.h"
#include <errno.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/process.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RUN_LIMIT_NS (120 * KEEL_NS_PER_S)
enum { OUTPUT_BYTES = 32768, NOT_FOUND_CODE = 127 };

/* ---- its output ---- */

/* Is that line "WORD VALUE", indented as it may be? */
static bool says(const char *line, const char *word, const char *value)
{
    line += strspn(line, " ");
    const size_t length = strlen(word);
    return strncmp(line, word, length) == 0 && strncmp(line + length, value, strlen(value)) == 0 &&
           strchr("\n", line[length + strlen(value)]) != NULL;
}

static bool is(const char *line, const char *word)
{
    return strncmp(line + strspn(line, " "), word, strlen(word)) == 0;
}

/* "float16 : 13.71"; 0 for any other line. */
static double value_of(const char *line)
{
    const char *colon = memchr(line, ':', strcspn(line, "\n"));
    return is(line, "float") && colon != NULL ? strtod(colon + 1, NULL) : 0;
}

struct keel_clpeak keel_clpeak_read(const char *text, const char *platform, const char *device)
{
    struct keel_clpeak found = {0};
    bool right_platform = false, right_device = false;
    double *figure = NULL; /* of the section */
    while (*text != '\0') {
        const size_t length = strcspn(text, "\n");
        if (is(text, "Platform: ")) {
            right_platform = says(text, "Platform: ", platform);
            right_device = false;
        } else if (is(text, "Device: ")) {
            right_device = right_platform && says(text, "Device: ", device);
            figure = NULL;
        } else if (is(text, "Single-precision compute")) {
            figure = &found.gflops;
        } else if (is(text, "Global memory bandwidth")) {
            figure = &found.memory_gbs;
        } else if (right_device && figure != NULL && value_of(text) > *figure) {
            *figure = value_of(text);
        }
        text += length + (text[length] == '\n');
    }
    return found;
}

/* ---- running it ---- */

static enum keel_status run(char text[OUTPUT_BYTES], struct keel_process_end *out_end)
{
    const char *const argv[] = {"/bin/sh", "-c", "exec clpeak --compute-sp --global-bandwidth", NULL};
    int fd = memfd_create("keel-clpeak", MFD_CLOEXEC);
    if (fd < 0)
        return keel_fail_errno(errno, "clpeak cannot be started");
    enum keel_status status =
        keel_process_run(argv, NULL, 0, fd, keel_deadline_after_ns(RUN_LIMIT_NS), out_end);
    keel_read_tail(fd, text, OUTPUT_BYTES);
    close(fd);
    return status == KEEL_TIMEOUT ? KEEL_OK : status; /* what it said until then is right */
}

static void add_figure(struct keel_check_result *result, const char *name, const char *unit, double value)
{
    if (value <= 0 || result->figure_count == KEEL_CHECK_FIGURES_MAX)
        return;
    struct keel_check_figure *figure = &result->figures[result->figure_count++];
    *figure = (struct keel_check_figure){
        .better = KEEL_BETTER_MORE, .value = value, .sample_count = 1, .samples = {value}};
    snprintf(figure->name, sizeof figure->name, "%s", name);
    snprintf(figure->unit, sizeof figure->unit, "%s", unit);
}

static void add_note(struct keel_check_result *result, const char *text)
{
    if (result->note_count < KEEL_CHECK_NOTES_MAX)
        snprintf(result->notes[result->note_count++], KEEL_CHECK_TEXT_BYTES, "%s", text);
}

void keel_clpeak_add(struct keel_check_report *report)
{
    char text[OUTPUT_BYTES] = "";
    struct keel_process_end end = {0};
    struct keel_check_result *result = NULL;
    for (uint32_t i = 0; i < report->done; i++)
        if (strcmp(report->results[i].check->id, "5.5") == 0)
            result = &report->results[i];
    if (result == NULL)
        return;
    if (run(text, &end) != KEEL_OK) {
        add_note(result, keel_detail());
        return;
    }
    const struct keel_clpeak found = keel_clpeak_read(text, report->board.platform, report->board.name);
    add_figure(result, "clpeak_gflops", "GFLOP/s", found.gflops);
    add_figure(result, "clpeak_memory_gbs", "GB/s", found.memory_gbs);
    if (!end.signaled && end.code == NOT_FOUND_CODE)
        add_note(result, "clpeak is not installed: there are no figures of it");
    else if (found.gflops <= 0 && found.memory_gbs <= 0)
        add_note(result, "clpeak says nothing of this board");
}
