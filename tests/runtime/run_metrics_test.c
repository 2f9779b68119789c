/* run_metrics_test.c - of a long metrics.jsonl the end is read, and whoever does knows what one who reads all
 * of it knows: where validation was best, what loss is usual, which lines come again. */
#include "harness.h"
#include "jsonl.h"
#include "loss_past.h"
#include "run_output.h"
#include <keel/bits.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EVAL_EVERY = 100, READ_MOST = 1 << 20 };

static const struct keel_job job = {.ranks = 2, .steps = 1 << 30, .patience = 3, .min_delta = 0.01F};
static char directory[64], metrics[KEEL_PATH_BYTES];

static uint64_t many_steps(void)
{
    return getenv("KEEL_TEST_LONG") != NULL ? 5200000 : 40000; /* 1 GB, 8 MB */
}

static void begin(void)
{
    strcpy(directory, "/tmp/keel-metrics-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_ok(keel_path_join(metrics, directory, "metrics.jsonl"));
}

/* It falls, and jumps now and then; validation is best at the evaluation before the last two. */
static struct keel_step_record record_of(uint64_t step, uint64_t best_step)
{
    const bool jumps = step % (many_steps() / 50 + 1) == 0;
    const uint64_t hundreds = step / 100;
    const float usual = 3.0F + 2.0F / (float)(1 + hundreds) + 0.01F * (float)(step * 2654435761U % 97) / 97;
    struct keel_step_record record = {.step = step,
                                      .loss_bits = keel_bits_of(jumps ? 9 * usual : usual),
                                      .digest = step * UINT64_C(0x9e3779b97f4a7c15),
                                      .epoch = 1};
    record.has_val_loss = step % EVAL_EVERY == 0;
    const double off = step > best_step ? (double)(step - best_step) : (double)(best_step - step);
    record.val_loss_bits = keel_bits_of((float)(3 + off / 1000));
    return record;
}

static void give(struct keel_output *output, uint64_t first, uint64_t last, uint64_t best_step)
{
    const struct keel_launch_report report = keel_output_report(output);
    for (uint64_t step = first; step <= last; step++) {
        const struct keel_step_record record = record_of(step, best_step);
        report.step(report.context, &record);
    }
}

/* As a run of so many steps left it, the last of them two evaluations behind the best. */
static void write_run(uint64_t steps)
{
    struct keel_output *output;
    begin();
    (void)freopen("/dev/null", "w", stdout);
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    give(output, 1, steps, steps - 2 * EVAL_EVERY);
    keel_output_close(output);
}

/* So much this process has read of files, ever. */
static uint64_t bytes_read(void)
{
    char text[512] = "";
    FILE *file = fopen("/proc/self/io", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_gt(fread(text, 1, sizeof text - 1, file), 0);
    fclose(file);
    return strtoull(text + strlen("rchar: "), NULL, 10);
}

static uint64_t count_events(const char *name)
{
    char path[KEEL_PATH_BYTES], wanted[64], *text;
    size_t bytes;
    uint64_t count = 0;
    snprintf(wanted, sizeof wanted, "\"event\":\"%s\"", name);
    ck_ok(keel_path_join(path, directory, "events.jsonl"));
    ck_ok(keel_file_read(path, 1 << 30, &text, &bytes));
    for (const char *at = text; (at = strstr(at, wanted)) != NULL; at++)
        count++;
    keel_free(text);
    return count;
}

/* Lines without what they say of those before. */
static enum keel_status copy_bare(void *context, const json_t *line, uint64_t number)
{
    (void)number;
    json_t *copy = json_deep_copy(line);
    json_object_del(copy, "past");
    json_dumpf(copy, context, JSON_COMPACT | JSON_REAL_PRECISION(9));
    fputc('\n', context);
    json_decref(copy);
    return KEEL_OK;
}

static void make_bare(void)
{
    char path[KEEL_PATH_BYTES + 8];
    snprintf(path, sizeof path, "%s.bare", metrics);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_ok(keel_jsonl_read(metrics, copy_bare, file, NULL));
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(rename(path, metrics), 0);
}

START_TEST(who_takes_over_reads_the_end_alone_and_knows_what_all_lines_say)
{
    const uint64_t steps = many_steps();
    struct stat size;
    struct keel_output *output;
    for (int bare = 0; bare <= 1; bare++) {
        write_run(steps);
        if (bare)
            make_bare();
        ck_assert_int_eq(stat(metrics, &size), 0);
        const uint64_t read = bytes_read(), begin_ns = keel_now_ns(), live = keel_memory_stats().live_bytes;
        ck_ok(keel_output_take_over(directory, &job, 1, 1, 0, &output));
        const uint64_t cost = bytes_read() - read;
        fprintf(stderr, "note: %lld bytes%s: %llu read, %llu held, %.3f s\n", (long long)size.st_size,
                bare ? " without marks" : "", (unsigned long long)cost,
                (unsigned long long)(keel_memory_stats().live_bytes - live),
                (double)(keel_now_ns() - begin_ns) / 1e9);
        if (!bare) {
            ck_assert_uint_gt((uint64_t)size.st_size, 4 * READ_MOST);
            ck_assert_uint_lt(cost, READ_MOST);
        }
        ck_assert_uint_lt(keel_memory_stats().live_bytes - live, 4 << 20);
        ck_assert_uint_eq(keel_output_next_step(output), steps + 1);
        /* The third evaluation behind the best ends it, and a jump is one: by all lines. */
        const uint64_t spikes = count_events("loss-spike");
        const struct keel_launch_report report = keel_output_report(output);
        struct keel_step_record jump = record_of(steps + 1, 1);
        jump.loss_bits = keel_bits_of(20);
        report.step(report.context, &jump);
        ck_assert_uint_eq(count_events("loss-spike"), spikes + 1);
        ck_assert_uint_eq(keel_output_end_step(output), job.steps);
        give(output, steps + 2, steps + EVAL_EVERY + 5, steps - 2 * EVAL_EVERY);
        ck_assert_uint_eq(keel_output_end_step(output), steps + EVAL_EVERY);
        ck_assert_uint_eq(keel_output_next_step(output), steps + EVAL_EVERY + 1);
        ck_assert_uint_eq(keel_output_mismatches(output), 0);
        keel_output_close(output);
        ck_ok(keel_remove_tree(directory));
    }
}
END_TEST

START_TEST(steps_far_behind_that_come_again_are_compared_with_their_lines)
{
    struct keel_output *output;
    const uint64_t steps = 20000, back = 3001;
    write_run(steps);
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    ck_ok(keel_output_resume(output, back));
    const struct keel_launch_report report = keel_output_report(output);
    give(output, back, back + 50, steps - 2 * EVAL_EVERY);
    ck_assert_uint_eq(keel_output_mismatches(output), 0);
    struct keel_step_record other = record_of(back + 51, 1);
    other.digest++;
    report.step(report.context, &other);
    ck_assert_uint_eq(keel_output_mismatches(output), 1);
    ck_assert_uint_eq(keel_output_next_step(output), steps + 1);
    keel_output_close(output);
    /* And without a word before: who took over, and agents tell of steps that long had their lines. */
    ck_ok(keel_output_take_over(directory, &job, 1, back, 0, &output));
    give(output, back + 60, back + 61, steps - 2 * EVAL_EVERY);
    ck_assert_uint_eq(keel_output_mismatches(output), 1); /* of the life before */
    keel_output_close(output);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(what_is_withdrawn_may_begin_before_what_was_read)
{
    struct keel_output *output;
    const uint64_t steps = 20000, back = 5000, best = steps - 2 * EVAL_EVERY;
    write_run(steps);
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    ck_ok(keel_output_resume(output, back));
    const struct keel_launch_report report = keel_output_report(output);
    const struct keel_step_record ours = record_of(back, best);
    struct keel_step_record theirs = ours;
    theirs.digest++;
    report.mismatch(report.context, &ours, &theirs);
    ck_assert(keel_output_dispute(output));
    ck_assert_uint_eq(keel_output_next_step(output), back);
    ck_ok(keel_output_resume(output, back));
    give(output, back, steps + EVAL_EVERY, best);
    ck_assert_uint_eq(keel_output_mismatches(output), 0);
    ck_assert_uint_eq(keel_output_end_step(output), steps + EVAL_EVERY);
    keel_output_close(output);
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    ck_assert_uint_eq(keel_output_next_step(output), steps + EVAL_EVERY + 1);
    keel_output_close(output);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(another_rule_finds_its_end_in_all_lines)
{
    const struct keel_job hasty = {.ranks = 2, .steps = job.steps, .patience = 1, .min_delta = 0.01F};
    struct keel_output *output;
    const uint64_t steps = 20000;
    write_run(steps);
    ck_ok(keel_output_open(directory, &hasty, NULL, &output));
    give(output, steps + 1, steps + EVAL_EVERY, 1);
    ck_assert_uint_lt(keel_output_end_step(output), steps + EVAL_EVERY + 1);
    keel_output_close(output);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(what_a_line_says_of_those_before_is_whole_or_not_believed)
{
    struct keel_loss_past past, back;
    char text[KEEL_LOSS_PAST_TEXT];
    keel_loss_past_begin(&past, 3, 0.5F);
    for (uint64_t step = 1; step <= 500; step++) {
        const struct keel_step_loss loss = {.step = step,
                                            .loss_bits = keel_bits_of(4 + (float)(step % 7)),
                                            .val_loss_bits = keel_bits_of((float)step),
                                            .has_val_loss = step == 90 || step == 180};
        (void)keel_loss_past_add(&past, &loss);
        (void)keel_loss_past_add(&past, &loss); /* counts once */
    }
    ck_assert_uint_eq(past.early.worse, 1);
    keel_loss_past_print(&past, text);
    ck_assert(keel_loss_past_parse(text, 3, 0.5F, &back));
    ck_assert_uint_eq(back.step, 500);
    ck_assert_uint_eq(back.early.best.step, 90);
    const struct keel_step_loss next = {.step = 501, .loss_bits = keel_bits_of(100)};
    ck_assert(keel_loss_past_add(&back, &next));
    ck_assert(keel_loss_past_add(&past, &next));
    ck_assert_mem_eq(back.spike.last, past.spike.last, sizeof back.spike.last);
    ck_assert(!keel_loss_past_parse(text, 2, 0.5F, &back));
    ck_assert(!keel_loss_past_parse(text, 3, 0.25F, &back));
    for (uint32_t i = 0; i < KEEL_LOSS_PAST_TEXT - 1; i += 7) {
        const char was = text[i];
        text[i] = was == '0' ? '1' : '0';
        ck_assert_msg(!keel_loss_past_parse(text, 3, 0.5F, &back), "digit %u", i);
        text[i] = was;
    }
    text[KEEL_LOSS_PAST_TEXT - 2] = '\0';
    ck_assert(!keel_loss_past_parse(text, 3, 0.5F, &back));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, who_takes_over_reads_the_end_alone_and_knows_what_all_lines_say);
    tcase_add_test(tc, steps_far_behind_that_come_again_are_compared_with_their_lines);
    tcase_add_test(tc, what_is_withdrawn_may_begin_before_what_was_read);
    tcase_add_test(tc, another_rule_finds_its_end_in_all_lines);
    tcase_add_test(tc, what_a_line_says_of_those_before_is_whole_or_not_believed);
}

KEEL_TEST_MAIN("run_metrics", cases, 900)
