/* run_output_test.c - what an earlier run left in metrics.jsonl is believed no further than it goes. */
#include "harness.h"
#include "remote_leader.h"
#include "run_output.h"
#include <fcntl.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct keel_job job = {.ranks = 2};
static char directory[64], metrics[KEEL_PATH_BYTES];

static void begin(const char *text)
{
    strcpy(directory, "/tmp/keel-output-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_ok(keel_path_join(metrics, directory, "metrics.jsonl"));
    ck_ok(keel_file_replace(metrics, text, strlen(text), 0644));
}

static void give(struct keel_output *output, uint64_t step, uint64_t digest)
{
    const struct keel_launch_report report = keel_output_report(output);
    const struct keel_step_record record = {.step = step, .loss_bits = 1, .digest = digest};
    report.step(report.context, &record);
}

START_TEST(memory_follows_the_lines_on_file_not_the_steps_they_claim)
{
    struct keel_output *output;
    begin("{\"step\":4294967295,\"loss_bits\":\"1\",\"digest\":\"1\"}\n");
    uint64_t before = keel_memory_stats().live_bytes;
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    ck_assert_uint_lt(keel_memory_stats().live_bytes - before, 1 << 20);
    ck_assert_uint_eq(keel_output_next_step(output), UINT64_C(4294967296));
    keel_output_close(output);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(steps_out_of_order_are_refused_with_their_line)
{
    struct keel_output *output;
    begin("{\"step\":2,\"loss_bits\":\"1\",\"digest\":\"1\"}\n{\"step\":2,\"loss_bits\":\"1\",\"digest\":"
          "\"1\"}\n");
    ck_status(keel_output_open(directory, &job, NULL, &output), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "metrics.jsonl: the line that begins at byte "));
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(a_step_run_again_is_compared_with_its_line_and_with_none_where_there_was_none)
{
    struct keel_output *output;
    begin("{\"step\":1,\"loss_bits\":\"1\",\"digest\":\"a\"}\n{\"step\":3,\"loss_bits\":\"1\",\"digest\":"
          "\"c\"}\n");
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    give(output, 1, 0xa);
    give(output, 2, 0xb); /* nobody had its record when the run was lost */
    ck_assert_uint_eq(keel_output_mismatches(output), 0);
    give(output, 3, 0xd);
    ck_assert_uint_eq(keel_output_mismatches(output), 1);
    give(output, 4, 0xe);
    ck_assert_uint_eq(keel_output_next_step(output), 5);
    keel_output_close(output);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

/* The steps of the lines on file, one after the other: " 1 2 3". */
static void steps_on_file(char *out, size_t bytes)
{
    char *text;
    size_t length, used = 0;
    ck_ok(keel_file_read(metrics, 1 << 20, &text, &length));
    out[0] = '\0';
    for (const char *at = strstr(text, "\"step\""); at != NULL; at = strstr(at + 1, "\"step\""))
        used += (size_t)snprintf(out + used, bytes - used, " %d", atoi(strpbrk(at, "0123456789")));
    keel_free(text);
}

/* A record that was lost with the only node that had it. */
START_TEST(steps_without_a_line_get_one_when_they_are_computed_again)
{
    struct keel_output *output;
    char text[256];
    begin("{\"step\":1,\"loss_bits\":\"1\",\"digest\":\"1\"}\n{\"step\":3,\"loss_bits\":\"1\",\"digest\":"
          "\"3\"}\n"
          "{\"step\":6,\"loss_bits\":\"1\",\"digest\":\"6\"}\n{\"step\":9,\"loss_bits\":\"1\",\"digest\":"
          "\"9\"}\n");
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    ck_ok(keel_output_resume(output, 4)); /* 2 is not computed again */
    for (uint64_t step = 4; step <= 7; step++)
        give(output, step, step);
    steps_on_file(text, sizeof text);
    ck_assert_str_eq(text, " 1 3 4 5 6 7");
    ck_ok(keel_output_resume(output, 8)); /* the life ended at 7: what it held goes back, and out again */
    give(output, 9, 9);                   /* once more nobody had a record of 8 */
    give(output, 10, 10);
    ck_assert_uint_eq(keel_output_mismatches(output), 0);
    ck_ok(keel_output_resume(output, 8));
    give(output, 8, 8);
    give(output, 9, 0xd);
    ck_assert_uint_eq(keel_output_mismatches(output), 1);
    keel_output_close(output); /* 10 was held */
    steps_on_file(text, sizeof text);
    ck_assert_str_eq(text, " 1 3 4 5 6 7 8 9 10");
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(what_is_held_behind_a_hole_is_withdrawn_with_the_rest)
{
    struct keel_output *output;
    char text[256];
    begin("{\"step\":1,\"loss_bits\":\"1\",\"digest\":\"1\"}\n{\"step\":3,\"loss_bits\":\"1\",\"digest\":"
          "\"3\"}\n"
          "{\"step\":4,\"loss_bits\":\"1\",\"digest\":\"4\"}\n{\"step\":5,\"loss_bits\":\"1\",\"digest\":"
          "\"5\"}\n");
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    ck_ok(keel_output_resume(output, 2));
    const struct keel_launch_report report = keel_output_report(output);
    const struct keel_step_record ours = {.step = 5, .digest = 5}, theirs = {.step = 5, .digest = 7};
    give(output, 2, 2);
    report.mismatch(report.context, &ours, &theirs);
    keel_output_finish(output, KEEL_MISMATCH, "they differ");
    ck_assert_uint_eq(keel_output_next_step(output), 5);
    keel_output_close(output);
    steps_on_file(text, sizeof text);
    ck_assert_str_eq(text, " 1 2 3 4");
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(what_the_ranks_disagree_about_is_withdrawn_when_the_run_ends)
{
    struct keel_output *output;
    char *text;
    size_t bytes;
    begin("{\"step\":1,\"loss_bits\":\"1\",\"digest\":\"a\"}\n");
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    give(output, 2, 0xb);
    give(output, 3, 0xc);
    give(output, 4, 0xd);
    const struct keel_launch_report report = keel_output_report(output);
    const struct keel_step_record ours = {.step = 3, .digest = 0xc}, theirs = {.step = 3, .digest = 0x7};
    report.mismatch(report.context, &ours, &theirs);
    ck_assert_uint_eq(keel_output_mismatches(output), 1);
    keel_output_finish(output, KEEL_MISMATCH, "they differ");
    ck_assert_uint_eq(keel_output_next_step(output), 3);
    keel_output_close(output);
    ck_ok(keel_file_read(metrics, 1 << 20, &text, &bytes));
    ck_assert_ptr_nonnull(strstr(text, "\"step\":2,"));
    ck_assert_ptr_null(strstr(text, "\"step\":3,"));
    ck_assert_int_eq(text[bytes - 1], '\n');
    keel_free(text);
    ck_ok(keel_output_open(directory, &job, NULL, &output)); /* and a next life goes on behind them */
    ck_assert_uint_eq(keel_output_next_step(output), 3);
    keel_output_close(output);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

/* It went back, for which the ranks disagreed, and was killed then. */
START_TEST(what_was_gone_back_for_counts_no_more_for_who_takes_over)
{
    struct keel_output *output;
    char text[256];
    begin("");
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    for (uint64_t step = 1; step <= 4; step++)
        give(output, step, step);
    const struct keel_step_record ours = {.step = 3, .digest = 3}, theirs = {.step = 3, .digest = 7};
    struct keel_launch_report report = keel_output_report(output);
    report.mismatch(report.context, &ours, &theirs);
    ck_assert(keel_output_dispute(output));
    give(output, 3, 3);
    keel_output_close(output);
    ck_ok(keel_output_take_over(directory, &job, 1, 1, 0, &output));
    ck_assert_uint_eq(keel_output_mismatches(output), 0);
    give(output, 4, 4);
    keel_output_finish(output, KEEL_OK, "");
    steps_on_file(text, sizeof text);
    ck_assert_str_eq(text, " 1 2 3 4");
    report = keel_output_report(output);
    report.mismatch(report.context, &ours, &theirs);
    ck_assert(!keel_output_dispute(output)); /* once */
    keel_output_close(output);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

static void give_loss(struct keel_output *output, uint64_t step, float loss)
{
    const struct keel_launch_report report = keel_output_report(output);
    struct keel_step_record record = {.step = step, .digest = step};
    memcpy(&record.loss_bits, &loss, sizeof loss);
    report.step(report.context, &record);
}

START_TEST(a_spike_that_does_not_come_again_was_a_fault)
{
    static const struct keel_job goes_back = {.ranks = 2, .spike = KEEL_SPIKE_BACK};
    struct keel_output *output;
    bool back;
    char *text, events[KEEL_PATH_BYTES];
    size_t bytes;
    begin("");
    ck_ok(keel_output_open(directory, &goes_back, NULL, &output));
    const struct keel_launch_report report = keel_output_report(output);
    for (uint64_t step = 1; step <= 20; step++)
        give_loss(output, step, 2.0F);
    ck_ok(keel_output_spike(output, &back));
    ck_assert(!report.stop(report.context));
    give_loss(output, 21, 50.0F);
    ck_assert(report.stop(report.context));
    ck_status(report.settle(report.context, 21), KEEL_DIVERGED); /* no snapshot from here on */
    ck_ok(report.settle(report.context, 20));                    /* one from before may still wait */
    give_loss(output, 22, 60.0F);
    ck_status(keel_output_spike(output, &back), KEEL_DIVERGED);
    ck_assert(back);
    ck_assert_uint_eq(keel_output_next_step(output), 21);
    ck_ok(report.settle(report.context, 21));
    give_loss(output, 21, 2.1F);
    ck_assert(!report.stop(report.context));
    ck_ok(keel_output_spike(output, &back));
    keel_output_close(output);
    ck_ok(keel_path_join(events, directory, "events.jsonl"));
    ck_ok(keel_file_read(events, 1 << 20, &text, &bytes));
    ck_assert_ptr_nonnull(strstr(text, "\"loss-spike\""));
    ck_assert_ptr_nonnull(strstr(text, "\"loss-spike-gone\""));
    keel_free(text);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

static uint32_t count_events(const char *wanted)
{
    char *text, path[KEEL_PATH_BYTES];
    size_t bytes;
    uint32_t count = 0;
    ck_ok(keel_path_join(path, directory, "events.jsonl"));
    ck_ok(keel_file_read(path, 1 << 20, &text, &bytes));
    for (const char *at = text; (at = strstr(at, wanted)) != NULL; at++)
        count++;
    keel_free(text);
    return count;
}

/* Its leader was killed after it had written a note, of which the agent does not know that; and after it had
 * committed a snapshot, before it could tell of it. */
START_TEST(who_takes_over_tells_each_note_and_each_snapshot_once)
{
    static const char note[] = "{\"event\":\"memory\",\"step\":0,\"bytes\":123.25}";
    struct keel_output *output;
    begin("");
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    struct keel_launch_report report = keel_output_report(output);
    report.note(report.context, 1, 0, (const uint8_t *)note, sizeof note - 1);
    report.note(report.context, 2, 0, (const uint8_t *)note, sizeof note - 1);
    report.snapshot(report.context, &(struct keel_committed){.step = 20, .attempt = 3});
    keel_output_close(output);
    ck_ok(keel_output_take_over(directory, &job, 1, 1, 0, &output));
    ck_assert_uint_eq(keel_output_last_snapshot(output), 20);
    report = keel_output_report(output);
    report.note(report.context, 1, 0, (const uint8_t *)note, sizeof note - 1); /* again */
    ck_assert_uint_eq(count_events("\"memory\""), 2);
    report.note(report.context, 1, 0, (const uint8_t *)note,
                sizeof note - 1); /* another, that says the same */
    ck_assert_uint_eq(count_events("\"memory\""), 3);
    keel_output_found_snapshot(output, 10, 3);
    keel_output_found_snapshot(output, 20, 3);
    keel_output_found_snapshot(output, 60, 2); /* of a life that was gone back from */
    ck_assert_uint_eq(count_events("\"snapshot\""), 1);
    keel_output_found_snapshot(output, 40, 3);
    ck_assert_uint_eq(count_events("\"snapshot\""), 2);
    ck_assert_uint_eq(keel_output_last_snapshot(output), 40);
    keel_output_close(output);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

/* A rank that had finished left while another still had to: those that stay go on in a view without it. */
START_TEST(who_has_finished_is_not_lost)
{
    struct keel_output *output;
    struct keel_view two = {.epoch = 1, .member_count = 2}, one = {.epoch = 2, .member_count = 1};
    two.members[0] = one.members[0] = (struct keel_member){.node = 1, .incarnation = 256};
    two.members[1] = (struct keel_member){.node = 2, .incarnation = 256};
    begin("");
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    const struct keel_launch_report report = keel_output_report(output);
    report.view(report.context, &two, &one, KEEL_CAUSE_FINISHED, 1, 1);
    ck_assert_uint_eq(count_events("\"lost_ranks\":0"), 1);
    one.epoch = 3;
    report.view(report.context, &two, &one, KEEL_CAUSE_EXIT, 1, 1);
    ck_assert_uint_eq(count_events("\"lost_ranks\":1"), 1);
    keel_output_close(output);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

/* It had gone back, and was behind the lines on file, when its leader was killed. */
START_TEST(who_takes_over_knows_what_was_gone_back_from_and_what_is_run_again)
{
    static const struct keel_job goes_back = {.ranks = 2, .spike = KEEL_SPIKE_BACK};
    struct keel_output *output;
    bool back;
    begin("");
    ck_ok(keel_output_open(directory, &goes_back, NULL, &output));
    for (uint64_t step = 1; step <= 20; step++)
        give_loss(output, step, 2.0F);
    keel_output_close(output);
    ck_ok(keel_output_open(directory, &goes_back, NULL, &output)); /* a life that computes 16 to 20 again */
    ck_ok(keel_output_resume(output, 16));
    give_loss(output, 16, 2.0F);
    keel_output_close(output);
    ck_ok(keel_output_take_over(directory, &goes_back, 1, 16, 0, &output));
    for (uint64_t step = 16; step <= 20; step++)
        give_loss(output, step, 2.0F);
    ck_assert_uint_eq(count_events("\"restarted\""), 0);
    give_loss(output, 21, 50.0F);
    ck_assert_uint_eq(count_events("\"restarted\""), 1);
    ck_assert_uint_eq(count_events("\"steps_again\":5"), 1);
    ck_status(keel_output_spike(output, &back), KEEL_DIVERGED);
    ck_assert(back);
    keel_output_close(output);
    ck_ok(keel_output_take_over(directory, &goes_back, 1, 16, 0, &output));
    give_loss(output, 21, 50.0F);
    ck_status(keel_output_spike(output, &back), KEEL_DIVERGED);
    ck_assert(!back); /* the same bits twice */
    keel_output_close(output);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

/* A launcher that is killed between the line of a spike and its withdrawal leaves this. */
static void begin_with_spike(void)
{
    char text[4096] = "";
    size_t used = 0;
    for (int step = 1; step <= 22; step++) {
        float loss = step == 21 ? 50.0F : 2.0F;
        uint32_t bits;
        memcpy(&bits, &loss, sizeof bits);
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "{\"step\":%d,\"loss_bits\":\"%08x\",\"digest\":\"%x\"}\n", step, bits,
                                 (unsigned)step);
    }
    begin(text);
}

START_TEST(a_spike_that_a_killed_launcher_left_is_judged_again)
{
    static const struct keel_job goes_back = {.ranks = 2, .spike = KEEL_SPIKE_BACK};
    struct keel_output *output;
    bool back;
    begin_with_spike();
    ck_ok(keel_output_open(directory, &goes_back, NULL, &output));
    ck_ok(keel_output_resume(output, 22)); /* a snapshot from behind it was taken: it is history */
    ck_assert_uint_eq(keel_output_next_step(output), 23);
    ck_ok(keel_output_resume(output, 17));
    ck_assert_uint_eq(keel_output_next_step(output), 21);
    give_loss(output, 21, 50.0F);
    ck_status(keel_output_spike(output, &back), KEEL_DIVERGED);
    ck_assert(!back); /* the same bits twice */
    keel_output_close(output);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(a_spike_on_file_stays_where_the_job_goes_on_through_it)
{
    struct keel_output *output;
    begin_with_spike();
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    ck_ok(keel_output_resume(output, 17));
    ck_assert_uint_eq(keel_output_next_step(output), 23);
    keel_output_close(output);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(lines_of_a_node_that_led_come_between_those_of_the_launcher)
{
    static const char there[] = "{\"step\":2,\"loss_bits\":\"1\",\"digest\":\"b\"}\n"
                                "{\"step\":3,\"loss_bits\":\"1\",\"digest\":\"c\"}\n"
                                "{\"step\":4,\"loss_bits\":\"1\",\"digest\":\"d\"}\n"
                                "{\"step\":5,\"loss_bits\":\"1\",\"digest\":\"other\"}\n"
                                "{\"step\":6,\"loss_bits\":\"1\",\"digest\":\"f\"}\n"
                                "{\"step\":7,\"loss_"; /* it was killed */
    char store[KEEL_PATH_BYTES], folder[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES], steps[64], *text;
    size_t bytes;
    struct keel_output *output;
    begin("{\"step\":1,\"loss_bits\":\"1\",\"digest\":\"a\"}\n{\"step\":2,\"loss_bits\":\"1\",\"digest\":"
          "\"b\"}\n{\"step\":5,\"loss_bits\":\"1\",\"digest\":\"e\"}\n");
    ck_ok(keel_path_join(store, directory, "ckpt"));
    ck_ok(keel_remote_leader_path(store, "0000000000000001-1", folder));
    ck_ok(keel_mkdir_all(folder));
    ck_ok(keel_path_join(path, folder, "metrics.jsonl"));
    ck_ok(keel_file_replace(path, there, sizeof there - 1, 0644));
    ck_ok(keel_output_open(directory, &job, NULL, &output));
    ck_ok(keel_output_take_led(output, store, 1));
    ck_assert_uint_eq(keel_output_mismatches(output), 1);
    ck_assert_uint_eq(keel_output_next_step(output), 7);
    steps_on_file(steps, sizeof steps);
    ck_assert_str_eq(steps, " 1 2 3 4 5 6");
    ck_assert(!keel_path_exists(folder));
    give(output, 7, 0x9); /* into the file as it is now */
    steps_on_file(steps, sizeof steps);
    ck_assert_str_eq(steps, " 1 2 3 4 5 6 7");
    ck_ok(keel_output_take_led(output, store, 1)); /* nothing is there any more */
    ck_assert_uint_eq(keel_output_mismatches(output), 1);
    /* Two that led, and of steps 8 and 11 neither has a line. */
    static const char *const lines[] = {"{\"step\":9,\"loss_bits\":\"1\",\"digest\":\"9\"}\n"
                                        "{\"step\":12,\"loss_bits\":\"1\",\"digest\":\"c\"}\n",
                                        "{\"step\":10,\"loss_bits\":\"1\",\"digest\":\"a\"}\n"};
    for (int i = 0; i < 2; i++) {
        ck_ok(keel_remote_leader_path(store, i == 0 ? "0000000000000002-1" : "0000000000000003-2", folder));
        ck_ok(keel_mkdir_all(folder));
        ck_ok(keel_path_join(path, folder, "metrics.jsonl"));
        ck_ok(keel_file_replace(path, lines[i], strlen(lines[i]), 0644));
    }
    ck_ok(keel_output_take_led(output, store, 1));
    steps_on_file(steps, sizeof steps);
    ck_assert_str_eq(steps, " 1 2 3 4 5 6 7 9 10 12");
    keel_output_close(output);
    ck_ok(keel_path_join(path, directory, "events.jsonl"));
    ck_ok(keel_file_read(path, 1 << 20, &text, &bytes));
    ck_assert_ptr_nonnull(strstr(text, "\"first\":8,\"last\":8,"));
    ck_assert_ptr_nonnull(strstr(text, "\"first\":11,\"last\":11,"));
    ck_assert_ptr_null(strstr(strstr(text, "\"first\":11") + 1, "metrics-hole"));
    keel_free(text);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

static void give_evaluated(struct keel_output *output, uint64_t step, float loss)
{
    const struct keel_launch_report report = keel_output_report(output);
    struct keel_step_record record = {.step = step, .digest = step, .has_val_loss = 1};
    memcpy(&record.val_loss_bits, &loss, sizeof loss);
    report.step(report.context, &record);
}

static void give_snapshot(struct keel_output *output, uint64_t step, enum keel_status status)
{
    const struct keel_launch_report report = keel_output_report(output);
    const struct keel_committed committed = {.step = step, .status = status};
    report.snapshot(report.context, &committed);
}

/* Evaluations at 2, 4, 6: the second in a row that is no better than the first is the end, at 6. */
START_TEST(an_early_end_is_in_the_lines_whoever_reads_them)
{
    static const struct keel_job patient = {.ranks = 1, .steps = 100, .patience = 2};
    struct keel_output *output;
    char text[256];
    begin("");
    ck_ok(keel_output_open(directory, &patient, NULL, &output));
    struct keel_launch_report report = keel_output_report(output);
    for (uint64_t step = 1; step <= 5; step++)
        if (step % 2 == 0)
            give_evaluated(output, step, step == 2 ? 0.1F : 0.1F + (float)step);
        else
            give(output, step, step);
    ck_assert_uint_eq(keel_output_end_step(output), 100);
    keel_output_close(output);
    ck_ok(keel_output_take_over(directory, &patient, 1, 1, 0, &output)); /* who led died */
    report = keel_output_report(output);
    give_evaluated(output, 6, 0.1F);
    ck_assert_uint_eq(keel_output_end_step(output), 6);
    give(output, 7, 7);
    ck_ok(report.settle(report.context, 6));
    ck_status(report.settle(report.context, 7), KEEL_DIVERGED);
    ck_assert(!report.stop(report.context)); /* its snapshot is to come */
    give_snapshot(output, 6, KEEL_OK);
    ck_assert(report.stop(report.context));
    keel_output_close(output);
    steps_on_file(text, sizeof text);
    ck_assert_str_eq(text, " 1 2 3 4 5 6");
    ck_ok(keel_output_open(directory, &patient, NULL, &output));
    report = keel_output_report(output);
    ck_assert_uint_eq(keel_output_end_step(output), 6);
    ck_assert(!report.stop(report.context)); /* a life that is to make that snapshot */
    give_snapshot(output, 8, KEEL_DIVERGED);
    ck_assert(report.stop(report.context)); /* and missed it: another does */
    ck_ok(keel_output_resume(output, 5));
    ck_assert(!report.stop(report.context));
    keel_output_close(output);
    const struct keel_job more = {.ranks = 1, .steps = 100, .patience = 3};
    ck_ok(keel_output_open(directory, &more, NULL, &output));
    ck_assert_uint_eq(keel_output_end_step(output), 100);
    give(output, 7, 7);
    keel_output_close(output);
    ck_ok(keel_output_open(directory, &patient, NULL,
                           &output)); /* it went on behind that end: anew from there */
    ck_assert_uint_eq(keel_output_end_step(output), 100);
    keel_output_close(output);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

/* Those at 4 and 6 are no numbers: no better than the first, for who heard them and for who reads of them. */
START_TEST(a_validation_that_is_no_number_counts_for_who_takes_over_too)
{
    static const struct keel_job patient = {.ranks = 1, .steps = 100, .patience = 2};
    struct keel_output *output;
    begin("");
    ck_ok(keel_output_open(directory, &patient, NULL, &output));
    for (uint64_t step = 1; step <= 5; step++)
        if (step % 2 == 0)
            give_evaluated(output, step, step == 2 ? 0.1F : INFINITY);
        else
            give(output, step, step);
    keel_output_close(output);
    ck_ok(keel_output_take_over(directory, &patient, 1, 1, 0, &output));
    ck_assert_uint_eq(keel_output_end_step(output), 100);
    give_evaluated(output, 6, NAN);
    ck_assert_uint_eq(keel_output_end_step(output), 6);
    keel_output_close(output);
    ck_ok(keel_output_open(directory, &patient, NULL, &output));
    ck_assert_uint_eq(keel_output_end_step(output), 6);
    keel_output_close(output);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(who_leads_elsewhere_is_known_as_long_as_it_says_so)
{
    const struct keel_remote_leader first = {.run = 7, .node = 2, .pid = 99, .host = "h2", .folder = "1-2"};
    const struct keel_remote_leader next = {.run = 7, .node = 1, .pid = 98, .host = "h1", .folder = "2-1"};
    struct keel_remote_leader leader;
    begin("");
    ck_assert(!keel_remote_leader_lives(directory, 5, &leader));
    ck_ok(keel_remote_leader_begin(directory, &first));
    ck_assert(keel_remote_leader_lives(directory, 5, &leader));
    ck_assert(leader.run == 7 && leader.node == 2 && leader.pid == 99 && strcmp(leader.host, "h2") == 0);
    ck_assert(!keel_remote_leader_lives(directory, 0, &leader)); /* it is silent for too long */
    ck_ok(keel_remote_leader_begin(directory, &next));
    keel_remote_leader_end(directory, &first); /* of another nothing is changed */
    ck_assert(keel_remote_leader_lives(directory, 5, &leader) && leader.node == 1);
    char path[KEEL_PATH_BYTES];
    const struct timespec past[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    ck_ok(keel_remote_leader_path(directory, "leader", path));
    ck_assert_int_eq(utimensat(AT_FDCWD, path, past, 0), 0);
    ck_assert(!keel_remote_leader_lives(directory, 5, &leader));
    keel_remote_leader_touch(directory, &next);
    ck_assert(keel_remote_leader_lives(directory, 5, &leader) && leader.node == 1);
    ck_assert_int_eq(unlink(path), 0); /* by one that ended at the same moment */
    keel_remote_leader_touch(directory, &next);
    ck_assert(keel_remote_leader_lives(directory, 5, &leader) && leader.node == 1);
    keel_remote_leader_end(directory, &next);
    ck_assert(!keel_remote_leader_lives(directory, 5, &leader));
    ck_ok(keel_remove_tree(directory));
}
END_TEST

/* The ranks of a view, eight on a node, have one board but the last, which has the reference: as their
 * workers say it. */
static void begin_view(struct keel_output *output, uint16_t ranks)
{
    static struct keel_view none, view;
    const struct keel_launch_report report = keel_output_report(output);
    view.epoch = 1;
    view.member_count = ranks;
    for (uint16_t rank = 0; rank < ranks; rank++) {
        char note[128];
        const uint16_t node = (uint16_t)(1 + rank / 8);
        const uint8_t local = rank % 8;
        const int bytes = snprintf(
            note, sizeof note, "{\"event\":\"board\",\"host\":\"h%u\",\"board\":\"Acme\",\"device\":\"%s\"}",
            (unsigned)node, rank < ranks - 1 ? "acme:0" : "host");
        view.members[rank] =
            (struct keel_member){.rank = rank, .node = node, .local = local, .incarnation = 256};
        report.note(report.context, node, local, (const uint8_t *)note, (uint32_t)bytes);
    }
    report.view(report.context, &none, &view, KEEL_CAUSE_START, 1, 1);
}

/* Each step says which rank had which board; what is equal is said once, at the largest run too. */
START_TEST(a_line_does_not_grow_with_ranks_of_the_same_board)
{
    static const uint16_t ranks[] = {8, 64, 4096, KEEL_MEMBERS_MAX};
    const struct keel_step_record record = {.step = 1, .loss_bits = 1, .digest = 1, .epoch = 1};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        struct keel_output *output;
        char *text, wanted[64];
        size_t bytes;
        begin("");
        ck_ok(keel_output_open(directory, &job, NULL, &output));
        begin_view(output, ranks[i]);
        const struct keel_launch_report report = keel_output_report(output);
        report.step(report.context, &record);
        keel_output_close(output);
        ck_ok(keel_file_read(metrics, 1 << 20, &text, &bytes));
        printf("note: %u ranks: a line of %zu bytes\n", ranks[i], bytes);
        snprintf(wanted, sizeof wanted, "\"boards\":[[\"acme:0\",%d],[\"host\",1]]", ranks[i] - 1);
        ck_assert_msg(strstr(text, wanted) != NULL, "no %s in %.400s", wanted, text);
        ck_assert_uint_lt(bytes, 400);
        keel_free(text);
        ck_ok(keel_remove_tree(directory));
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_line_does_not_grow_with_ranks_of_the_same_board);
    tcase_add_test(tc, who_has_finished_is_not_lost);
    tcase_add_test(tc, who_takes_over_tells_each_note_and_each_snapshot_once);
    tcase_add_test(tc, who_takes_over_knows_what_was_gone_back_from_and_what_is_run_again);
    tcase_add_test(tc, lines_of_a_node_that_led_come_between_those_of_the_launcher);
    tcase_add_test(tc, who_leads_elsewhere_is_known_as_long_as_it_says_so);
    tcase_add_test(tc, a_spike_that_a_killed_launcher_left_is_judged_again);
    tcase_add_test(tc, a_spike_on_file_stays_where_the_job_goes_on_through_it);
    tcase_add_test(tc, a_spike_that_does_not_come_again_was_a_fault);
    tcase_add_test(tc, steps_without_a_line_get_one_when_they_are_computed_again);
    tcase_add_test(tc, what_is_held_behind_a_hole_is_withdrawn_with_the_rest);
    tcase_add_test(tc, what_was_gone_back_for_counts_no_more_for_who_takes_over);
    tcase_add_test(tc, what_the_ranks_disagree_about_is_withdrawn_when_the_run_ends);
    tcase_add_test(tc, memory_follows_the_lines_on_file_not_the_steps_they_claim);
    tcase_add_test(tc, steps_out_of_order_are_refused_with_their_line);
    tcase_add_test(tc, a_step_run_again_is_compared_with_its_line_and_with_none_where_there_was_none);
    tcase_add_test(tc, an_early_end_is_in_the_lines_whoever_reads_them);
    tcase_add_test(tc, a_validation_that_is_no_number_counts_for_who_takes_over_too);
}

KEEL_TEST_MAIN("run_output", cases, 60)
