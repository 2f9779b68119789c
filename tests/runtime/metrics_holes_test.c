/* metrics_holes_test.c - steps that metrics.jsonl lacks, whoever lost their lines: told by who runs the run,
 * and by who asks, from the ends of the files; and never of a line that is there. */
#include "harness.h"
#include "jsonl.h"
#include "remote_leader.h"
#include "run_look.h"
#include "run_output.h"
#include "step_ranges.h"
#include <keel/file.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MANY = 20000, READ_MOST = 1 << 20 };

static const struct keel_job job = {.ranks = 2, .steps = 1 << 30};
static const struct keel_job moves = {.ranks = 2, .steps = 12, .holders = 3};
static char directory[64], metrics[KEEL_PATH_BYTES], events[KEEL_PATH_BYTES];

static void write_file(const char *path, const char *text)
{
    ck_ok(keel_file_replace(path, text, strlen(text), 0644));
}

static void begin(void)
{
    char path[KEEL_PATH_BYTES];
    (void)freopen("/dev/null", "w", stdout);
    strcpy(directory, "/tmp/keel-holes-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_ok(keel_path_join(metrics, directory, "metrics.jsonl"));
    ck_ok(keel_path_join(events, directory, "events.jsonl"));
    ck_ok(keel_path_join(path, directory, "job.conf"));
    write_file(path, "[job]\nname = holes\n[train]\nsteps = 30000\n");
}

static void end(struct keel_output *output)
{
    keel_output_close(output);
    ck_ok(keel_remove_tree(directory));
}

static void give(struct keel_output *output, uint64_t first, uint64_t last)
{
    const struct keel_launch_report report = keel_output_report(output);
    for (uint64_t step = first; step <= last; step++) {
        const struct keel_step_record record = {
            .step = step, .loss_bits = 0x40000000, .digest = step, .tokens = 256 * step};
        report.step(report.context, &record);
    }
}

static uint64_t count_in(const char *path, const char *wanted)
{
    char *text;
    size_t bytes;
    uint64_t count = 0;
    ck_ok(keel_file_read(path, 1 << 30, &text, &bytes));
    for (const char *at = text; (at = strstr(at, wanted)) != NULL; at++)
        count++;
    keel_free(text);
    return count;
}

static uint64_t bytes_read(void)
{
    char text[512] = "";
    FILE *file = fopen("/proc/self/io", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_gt(fread(text, 1, sizeof text - 1, file), 0);
    fclose(file);
    return strtoull(text + strlen("rchar: "), NULL, 10);
}

static struct keel_run_look look(void)
{
    struct keel_run_look seen;
    ck_ok(keel_run_look_at(directory, &seen));
    return seen;
}

/* Lines whose steps are in that range are taken out, as an editor does. */
struct cut {
    FILE *file;
    json_int_t first, last;
};

static enum keel_status keep_line(void *context, const json_t *line, uint64_t number)
{
    const struct cut *cut = context;
    const json_int_t step = json_integer_value(json_object_get(line, "step"));
    (void)number;
    if (step >= cut->first && step <= cut->last)
        return KEEL_OK;
    json_dumpf(line, cut->file, JSON_COMPACT | JSON_REAL_PRECISION(9));
    fputc('\n', cut->file);
    return KEEL_OK;
}

static void take_out(json_int_t first, json_int_t last)
{
    char path[KEEL_PATH_BYTES + 8];
    snprintf(path, sizeof path, "%s.cut", metrics);
    struct cut cut = {.file = fopen(path, "w"), .first = first, .last = last};
    ck_assert_ptr_nonnull(cut.file);
    ck_ok(keel_jsonl_read(metrics, keep_line, &cut, NULL));
    ck_assert_int_eq(fclose(cut.file), 0);
    ck_assert_int_eq(rename(path, metrics), 0);
}

START_TEST(ranges_are_a_set)
{
    struct keel_step_ranges ranges = {.at = NULL};
    bool has[64] = {false};
    uint64_t random = 7;
    for (int i = 0; i < 2000; i++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        const uint64_t first = 1 + (random >> 40) % 60, last = first + (random >> 50) % 3;
        const bool add = (random >> 60) % 2 == 0;
        if (add)
            ck_ok(keel_step_ranges_add(&ranges, first, last));
        else
            ck_ok(keel_step_ranges_remove(&ranges, first, last));
        for (uint64_t step = first; step <= last; step++)
            has[step] = add;
        uint64_t step = 0, at = 0;
        for (; at < ranges.count; at++) {
            ck_assert(at == 0 || ranges.at[at].first > ranges.at[at - 1].last + 1);
            while (++step < ranges.at[at].first)
                ck_assert(!has[step]);
            for (; step <= ranges.at[at].last; step++)
                ck_assert(has[step]);
            step--;
        }
        while (++step < 64)
            ck_assert(!has[step]);
    }
    keel_step_ranges_free(&ranges);
}
END_TEST

START_TEST(a_hole_is_known_to_who_asks_however_many_lines_and_events_are_behind_it)
{
    struct keel_output *output;
    begin();
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    give(output, 1, 40);
    give(output, 50, 50);
    give(output, 52, MANY);
    ck_assert_uint_eq(count_in(events, "metrics-hole"), 2);
    FILE *file = fopen(events, "a");
    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < 60000; i++)
        fprintf(file, "{\"event\":\"stored\",\"step\":%d,\"detail\":\"%080d\"}\n", i, i);
    ck_assert_int_eq(fclose(file), 0);
    const struct keel_run_look seen = look();
    ck_assert_str_eq(seen.lacking, "10 steps (41 to 49, 51)");
    ck_assert_uint_eq(seen.steps_lacking, 10);
    ck_assert_uint_eq(seen.step, MANY);
    /* Once they are computed again, they are there. */
    ck_ok(keel_output_resume(output, 31));
    give(output, 31, MANY);
    ck_assert_uint_eq(look().steps_lacking, 0);
    ck_assert_uint_eq(keel_output_mismatches(output), 0);
    ck_assert_uint_eq(count_in(events, "metrics-hole"), 2);
    end(output);
}
END_TEST

START_TEST(lines_that_were_taken_out_of_the_middle_are_missed_once_the_file_is_opened_or_asked_for)
{
    struct keel_output *output;
    struct stat size;
    begin();
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    give(output, 1, MANY);
    keel_output_close(output);
    uint64_t read = bytes_read();
    ck_assert_uint_eq(look().steps_lacking, 0);
    ck_assert_int_eq(stat(metrics, &size), 0);
    ck_assert_uint_gt((uint64_t)size.st_size, 2 * READ_MOST);
    ck_assert_uint_lt(bytes_read() - read, READ_MOST);
    take_out(MANY / 2, MANY / 2 + 4);
    ck_assert_str_eq(look().lacking, "5 steps (10000 to 10004)");
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    ck_assert_uint_eq(count_in(events, "\"first\":10000,\"last\":10004,"), 1);
    give(output, MANY + 1, MANY + 2000); /* a mark more, which knows it */
    keel_output_close(output);
    read = bytes_read();
    ck_assert_str_eq(look().lacking, "5 steps (10000 to 10004)");
    ck_assert_uint_lt(bytes_read() - read, READ_MOST);
    ck_assert_int_eq(unlink(metrics), 0); /* all of it: nothing says how far the run was */
    ck_assert_uint_eq(look().step, 0);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(a_step_that_no_run_of_these_lines_can_have_reached_is_not_believed)
{
    static const char *const forged[] = {"\"step\":1000000000000000,", "\"step\":4000,", "\"step\":24,",
                                         "\"step\":11,"};
    struct keel_output *output;
    for (size_t i = 0; i < sizeof forged / sizeof forged[0]; i++) {
        char *text, *at;
        size_t bytes;
        begin();
        ck_ok(keel_output_open(directory, &job, NULL, &output));
        give(output, 1, 12);
        keel_output_close(output);
        ck_ok(keel_file_read(metrics, 1 << 20, &text, &bytes));
        at = strstr(text, "\"step\":12,");
        ck_assert_ptr_nonnull(at);
        FILE *file = fopen(metrics, "w");
        ck_assert_ptr_nonnull(file);
        fprintf(file, "%.*s%s%s", (int)(at - text), text, forged[i], at + strlen("\"step\":12,"));
        ck_assert_int_eq(fclose(file), 0);
        const struct keel_run_look seen = look();
        ck_assert_uint_eq(seen.step, 11);
        ck_assert_str_eq(seen.damaged, directory);
        ck_assert_uint_eq(seen.damaged_at, (uint64_t)(at - text) - 1);
        ck_assert_uint_eq(seen.steps_lacking, 0);
        ck_status(keel_output_open(directory, &job, NULL, &output), KEEL_CORRUPT);
        ck_assert_int_eq(truncate(metrics, (off_t)seen.damaged_at), 0); /* as both say */
        ck_ok(keel_output_open(directory, &job, NULL, &output));
        ck_assert_uint_eq(keel_output_next_step(output), 12);
        keel_free(text);
        end(output);
    }
}
END_TEST

START_TEST(a_file_that_cannot_be_read_further_back_changes_nothing_that_is_known)
{
    struct keel_output *output;
    begin();
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    give(output, 1, MANY);
    keel_output_close(output);
    ck_ok(keel_output_open(directory, &job, NULL, &output)); /* of the end of it */
    FILE *file = fopen(metrics, "r+");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, 1 << 20, SEEK_SET), 0);
    fputs("\n????\n", file);
    ck_assert_int_eq(fclose(file), 0);
    ck_status(keel_output_resume(output, 100), KEEL_CORRUPT);
    ck_assert_uint_eq(keel_output_next_step(output), MANY + 1);
    give(output, MANY + 1, MANY + 1);
    ck_assert_uint_eq(keel_output_next_step(output), MANY + 2);
    ck_assert_uint_eq(count_in(events, "metrics-hole"), 0);
    end(output);
}
END_TEST

static void lead(const char *folder_name, const char *lines, const char *events_there)
{
    char store[KEEL_PATH_BYTES], folder[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(store, directory, "ckpt"));
    ck_ok(keel_remote_leader_path(store, folder_name, folder));
    ck_ok(keel_mkdir_all(folder));
    ck_ok(keel_path_join(path, folder, "metrics.jsonl"));
    write_file(path, lines);
    ck_ok(keel_path_join(path, folder, "events.jsonl"));
    write_file(path, events_there);
}

static void begin_led(struct keel_output **output)
{
    char path[KEEL_PATH_BYTES], store[KEEL_PATH_BYTES];
    begin();
    ck_ok(keel_path_join(path, directory, "job.conf"));
    ck_ok(keel_path_join(store, directory, "ckpt"));
    ck_ok(keel_mkdir_all(store));
    write_file(path,
               "[job]\nname = holes\n[train]\nsteps = 12\n[cluster]\nranks = 3\nlaunch = none\nholders = 3\n"
               "bind = 127.0.0.1:4711\n");
    ck_ok(keel_output_open(directory, &moves, NULL, output));
    ck_ok(keel_output_resume(*output, 1));
    give(*output, 1, 4);
    give(*output, 7, 8); /* it was cut off, or the records of 5 and 6 are lost */
    ck_assert_uint_eq(count_in(events, "metrics-hole"), 0);
}

/* While lines may be elsewhere, nothing is said to lack for good. */
START_TEST(a_hole_in_the_launchers_own_span_is_told_when_no_line_can_come_any_more)
{
    struct keel_output *output;
    char store[KEEL_PATH_BYTES];
    begin_led(&output);
    ck_ok(keel_path_join(store, directory, "ckpt"));
    ck_ok(keel_output_take_led(output, store, 1)); /* nobody else led */
    ck_assert_uint_eq(count_in(events, "\"first\":5,\"last\":6,"), 1);
    give(output, 9, 12);
    keel_output_finish(output, KEEL_OK, "");
    ck_assert_uint_eq(count_in(events, "metrics-hole"), 1);
    const struct keel_run_look seen = look();
    ck_assert_str_eq(seen.lacking, "2 steps (5 to 6)");
    end(output);
}
END_TEST

START_TEST(what_lacks_is_what_no_file_has_a_line_of)
{
    static const char line_5[] = "{\"step\":5,\"loss_bits\":\"1\",\"digest\":\"5\"}\n";
    struct keel_output *output;
    char store[KEEL_PATH_BYTES];
    begin_led(&output);
    /* Who led has 5 and 10, and says that it lost 1 to 4, which are here, and 6 to 9, of which 7 and 8 are.
     */
    lead("0000000000000001-2", line_5, "{\"event\":\"metrics-hole\",\"first\":1,\"last\":4}\n");
    lead("0000000000000002-1", "{\"step\":10,\"loss_bits\":\"1\",\"digest\":\"a\"}\n",
         "{\"event\":\"metrics-hole\",\"first\":6,\"last\":9}\n");
    ck_assert_str_eq(look().lacking, "2 steps (6, 9)");
    ck_ok(keel_path_join(store, directory, "ckpt"));
    ck_ok(keel_output_take_led(output, store, 1));
    ck_assert_str_eq(look().lacking, "2 steps (6, 9)");
    ck_assert_uint_eq(count_in(events, "metrics-hole"), 2);
    ck_assert_uint_eq(count_in(events, "\"first\":6,\"last\":6,"), 1);
    ck_assert_uint_eq(count_in(events, "\"first\":9,\"last\":9,"), 1);
    end(output);
}
END_TEST

START_TEST(marks_of_files_that_become_one_say_where_they_stand_there)
{
    struct keel_output *output, *there;
    char store[KEEL_PATH_BYTES], folder[KEEL_PATH_BYTES];
    begin_led(&output);
    ck_ok(keel_path_join(store, directory, "ckpt"));
    ck_ok(keel_remote_leader_path(store, "0000000000000001-2", folder));
    ck_ok(keel_mkdir_all(folder));
    ck_ok(keel_output_lead(folder, &job, 1, &there));
    give(there, 5, MANY - 1);
    give(there, MANY + 1, 2 * MANY);
    keel_output_close(there);
    ck_assert_str_eq(look().lacking, "1 step (20000)");
    ck_ok(keel_output_take_led(output, store, 1));
    const uint64_t read = bytes_read();
    const struct keel_run_look seen = look();
    ck_assert_uint_lt(bytes_read() - read, READ_MOST);
    ck_assert_str_eq(seen.lacking, "1 step (20000)");
    ck_assert_uint_eq(seen.step, 2 * MANY);
    ck_assert_uint_eq(keel_output_mismatches(output), 0);
    end(output);
}
END_TEST

START_TEST(who_takes_over_reads_the_newest_life_of_events)
{
    struct keel_output *output;
    begin();
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    give(output, 1, 4);
    FILE *file = fopen(events, "a");
    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < 60000; i++)
        fprintf(file, "{\"event\":\"bits-differ\",\"step\":%d,\"detail\":\"%080d\"}\n", i, i);
    ck_assert_int_eq(fclose(file), 0);
    struct keel_launch_report report = keel_output_report(output);
    const struct keel_committed old = {.step = 4, .attempt = 3};
    report.snapshot(report.context, &old);
    keel_output_finish(output, KEEL_INTERRUPTED, "");
    keel_output_close(output);
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    give(output, 5, 6);
    keel_output_close(output);
    const uint64_t read = bytes_read();
    ck_ok(keel_output_take_over(directory, &job, 1, 5, 0, &output));
    ck_assert_uint_lt(bytes_read() - read, READ_MOST);
    ck_assert_uint_eq(keel_output_mismatches(output), 0);
    keel_output_found_snapshot(output, 4, 3); /* which the life before told of */
    ck_assert_uint_eq(keel_output_last_snapshot(output), 0);
    ck_assert_uint_eq(count_in(events, "\"event\":\"snapshot\""), 1);
    end(output);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, ranges_are_a_set);
    tcase_add_test(tc, a_hole_is_known_to_who_asks_however_many_lines_and_events_are_behind_it);
    tcase_add_test(tc,
                   lines_that_were_taken_out_of_the_middle_are_missed_once_the_file_is_opened_or_asked_for);
    tcase_add_test(tc, a_step_that_no_run_of_these_lines_can_have_reached_is_not_believed);
    tcase_add_test(tc, a_file_that_cannot_be_read_further_back_changes_nothing_that_is_known);
    tcase_add_test(tc, a_hole_in_the_launchers_own_span_is_told_when_no_line_can_come_any_more);
    tcase_add_test(tc, what_lacks_is_what_no_file_has_a_line_of);
    tcase_add_test(tc, marks_of_files_that_become_one_say_where_they_stand_there);
    tcase_add_test(tc, who_takes_over_reads_the_newest_life_of_events);
}

KEEL_TEST_MAIN("metrics_holes", cases, 120)
