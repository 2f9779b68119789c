/* jsonl_fuzz.c - any bytes as the metrics.jsonl and events.jsonl that an earlier run left: refused, naming
 * the line, or mended so that they read, twice the same, and the report is drawn from them. Who only asks
 * finds the same last step in them. */
#include "fuzz.h"
#include "jsonl.h"
#include "report.h"
#include "run_output.h"
#include <keel/memory.h>

static enum keel_status count_line(void *context, const json_t *line, uint64_t number)
{
    KEEL_ASSERT(line != NULL && number > 0);
    ++*(uint64_t *)context;
    return KEEL_OK;
}

/* What `keel job status`, and the same command of a run that is over, read. */
static void ask(const char *directory, struct keel_metric_file *seen)
{
    struct keel_metric_file end;
    KEEL_ASSERT(keel_metric_look(directory, seen) == KEEL_OK);
    if (keel_output_read_end(directory, &end) != KEEL_OK)
        return;
    KEEL_ASSERT(!seen->damaged && end.last.seen.step == seen->last.seen.step);
    keel_step_ranges_free(&end.lacks);
}

/* What `keel run` does with the directory of an earlier run, and then the report. */
static void resume(const char *directory, const char *metrics, const struct keel_metric_file *seen)
{
    static struct keel_job job;
    struct keel_output *output;
    uint64_t mended = 0, again = 0;
    struct keel_jsonl *file;
    if (keel_output_open(directory, &job, NULL, &output) != KEEL_OK)
        return;
    KEEL_ASSERT(!seen->damaged && keel_output_next_step(output) == seen->last.seen.step + 1);
    keel_output_close(output);
    KEEL_ASSERT(keel_jsonl_open(metrics, count_line, &mended, &file) == KEEL_OK);
    keel_jsonl_close(file);
    KEEL_ASSERT(keel_jsonl_read(metrics, count_line, &again, NULL) == KEEL_OK && again == mended);
    enum keel_status status = keel_report_write(directory);
    KEEL_ASSERT(status == KEEL_OK || status == KEEL_NOT_FOUND);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char metrics[KEEL_PATH_BYTES], events[KEEL_PATH_BYTES], drills[KEEL_PATH_BYTES];
    KEEL_ASSERT(keel_path_join(metrics, fuzz_directory(), "metrics.jsonl") == KEEL_OK);
    KEEL_ASSERT(keel_path_join(events, fuzz_directory(), "events.jsonl") == KEEL_OK);
    KEEL_ASSERT(keel_path_join(drills, fuzz_directory(), "drills.jsonl") == KEEL_OK);
    fuzz_write(metrics, data, bytes);
    fuzz_write(events, data, bytes);
    fuzz_write(drills, data, bytes);
    struct keel_metric_file seen;
    ask(fuzz_directory(), &seen);
    resume(fuzz_directory(), metrics, &seen);
    keel_step_ranges_free(&seen.lacks);
    return 0;
}
