/* run_output.h - what a run writes about itself: metrics.jsonl, events.jsonl, the terminal.
 *
 * metrics.jsonl has one line per committed step, ascending, each step once in the life of the directory.
 * Steps that are run again after a total loss are compared with the line that is there: other bits are a
 * failure of promise P1 (README.md), and said loudly. events.jsonl has what happened, with monotonic and wall
 * time and the seconds lost, by cause. A line that a crash tore is cut off when the files are opened. */
#ifndef KEEL_RUN_OUTPUT_H
#define KEEL_RUN_OUTPUT_H

#include "launcher.h"
#include "metric_lines.h"
#include "plan_table.h"
#include <keel/job.h>
#include <stdio.h>

struct keel_output;

/* Read where the run in `directory` ended; nothing is written. *out is the caller's to free (lacks).
 * NOT_FOUND: it did not end well, or it goes on, or its lines are not whole. Blocks. */
enum keel_status keel_output_read_end(const char *directory, struct keel_metric_file *out);

/* A line for people about a run that was over before this command. */
void keel_output_end_text(const struct keel_seen_step *last, bool early, char *text, size_t bytes);

/* Open or create the files of `directory`. `resume`: what --resume said, for the event `start`; NULL:
 * nothing. Blocks. CORRUPT when metrics.jsonl holds what is no metric. */
enum keel_status keel_output_open(const char *directory, const struct keel_job *job, const char *resume,
                                  struct keel_output **out);
void keel_output_close(struct keel_output *output);

/* The same for who takes a run over, whose leader was heard last at `heard_ns` (monotonic) and computes from
 * first_step on: what that one knew is read from what it wrote; meanwhile `lock_fd`, of who
 * leads, is touched, so that agents wait (run_locks.h; 0: none). The event `leader` comes with the first
 * view. Where the output is a terminal, whoever sits there has other things to read: a line says where to
 * look. */
enum keel_status keel_output_take_over(const char *directory, const struct keel_job *job, uint64_t heard_ns,
                                       uint64_t first_step, int lock_fd, struct keel_output **out);

/* Of a run that was taken over: a snapshot that is in the store, in the order in which they were made. One
 * that is newer than those that were told of is told of now. */
void keel_output_found_snapshot(struct keel_output *output, uint64_t step, uint64_t attempt);
/* The newest that was told of in this life of the run; 0: none. */
uint64_t keel_output_last_snapshot(const struct keel_output *output);
/* For a node that leads on another host than the launcher's: into files of its own, with no line yet. */
enum keel_status keel_output_lead(const char *directory, const struct keel_job *job, uint64_t heard_ns,
                                  struct keel_output **out);
/* How its run ended, where its own `stop` ended it: done early, or the loss exploded. */
enum keel_status keel_output_led_end(const struct keel_output *output, enum keel_status status);
/* What such nodes wrote into `store` comes into the files (run_led.h). Between lives: behind one that
 * computed from first_step on. */
enum keel_status keel_output_take_led(struct keel_output *output, const char *store, uint64_t first_step);

/* Which plans the run has: the event `plans`, and a line. */
void keel_output_tell_plans(struct keel_output *output, const struct keel_plan_table *plans);

/* One more than the last step on file. */
uint64_t keel_output_next_step(const struct keel_output *output);
/* The newest view that there is an event of, in any life; 0: none. Blocks. */
enum keel_status keel_output_past_epoch(const struct keel_output *output, uint64_t *out);
/* The last step of the run: train.steps, or where it ended early (train.patience). */
uint64_t keel_output_end_step(const struct keel_output *output);

/* The callbacks of the launcher. */
struct keel_launch_report keel_output_report(struct keel_output *output);

/* The loss exploded and the job says that this ends the run (train.spike): DIVERGED with the detail, else OK.
 * The lines from that step on are withdrawn, and no snapshot of it was committed. *out_back (may be NULL):
 * the run is to go back and on from the newest snapshot; if the same bits come again, it is to end. Between
 * lives. */
enum keel_status keel_output_spike(struct keel_output *output, bool *out_back);

/* The life ended since half of the ranks differed from the other half: true, once in the life of `output`,
 * when lines from that step on were withdrawn, and the run is to go back and on from the newest snapshot. A
 * fault that was gone by then changes nothing; one that comes again ends the run. Between lives. */
bool keel_output_dispute(struct keel_output *output);

/* Before a life that computes from first_step on. Where train.spike is not warn, the life before may have
 * been killed between the line of an explosion and its withdrawal: that line and those behind it are
 * withdrawn now, so that the step is computed and checked again. Steps that no line tells of, since all who
 * had their records were lost, get their lines in this life. Errors: those of the file, NO_MEMORY; begin no
 * life then. */
enum keel_status keel_output_resume(struct keel_output *output, uint64_t first_step);

/* The end of the run is made once more: the last snapshot was lost with its node. */
void keel_output_tell_end_again(struct keel_output *output);

/* A run that was stopped, and whose newest snapshot is of this step, 0: there is none. OK: it has all; else
 * INTERRUPTED, or TIMEOUT where the store hangs, and which steps are computed again. */
enum keel_status keel_output_tell_unsaved(const struct keel_output *output, uint64_t kept_step, bool hangs);
/* Why the newest snapshot failed, with the detail; OK when it did not. */
enum keel_status keel_output_snapshot_failure(const struct keel_output *output);

/* All metrics are on the disk, or why not. Blocks; any thread. */
enum keel_status keel_output_settle(struct keel_output *output);

/* Steps that came with other bits than before, or differed between ranks. */
uint64_t keel_output_mismatches(const struct keel_output *output);

/* The last line on the terminal, and the closing event. */
void keel_output_finish(struct keel_output *output, enum keel_status status, const char *detail);

#endif
