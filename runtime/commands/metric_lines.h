/* metric_lines.h - what a line of metrics.jsonl says, and which steps have none, from the end of the file.
 *
 * A line each KEEL_METRIC_MARK_BYTES is a mark: it has the byte at which it begins (`at`) and the steps
 * before it that have no line (`lacks`: [[first, last], ...]). So which steps lack is known from the last
 * mark and the lines behind it. A mark that stands elsewhere than it says has lines before it that somebody
 * took out or put in: the last before those is taken, and what is behind that is read. */
#ifndef KEEL_METRIC_LINES_H
#define KEEL_METRIC_LINES_H

#include "jsonl.h"
#include "step_ranges.h"
#include <keel/file.h>

enum { KEEL_METRIC_MARK_BYTES = 256 << 10 };

/* What metrics.jsonl says of a step. */
struct keel_seen_step {
    uint64_t step, digest;
    uint32_t loss_bits;
};

struct keel_line {
    struct keel_seen_step seen;
    uint32_t val_loss_bits;
    bool has_val_loss;
    uint64_t a_step; /* tokens, the same for all steps of a run; 0: the line does not say */
    uint64_t end;    /* in the file, where the next begins; 0: it is held */
};

/* False: that is no metric of Keel. */
bool keel_metric_read(const json_t *line, struct keel_line *out);
/* May that line stand behind the other? Its step is later, and its tokens are those of so many steps. */
bool keel_metric_follows(const struct keel_line *line, const struct keel_line *before);

/* Make that line, which begins at `at`, a mark. */
void keel_metric_mark(json_t *line, uint64_t at, const struct keel_step_ranges *lacks);
/* It goes elsewhere: what it says of its place is not so there. */
void keel_metric_unmark(json_t *line);
/* The last mark in its place, and in order, before place->begin: the caller has a reference of *line, and
 * *lacks, which was empty. False: there is none. */
bool keel_metric_mark_before(const char *path, struct keel_jsonl_place *place, json_t **line,
                             struct keel_line *out, struct keel_step_ranges *lacks);
/* Behind `before`: the steps between have no line. */
enum keel_status keel_metric_skip(struct keel_step_ranges *lacks, uint64_t before, uint64_t step);

/* A file seen from outside. */
struct keel_metric_file {
    struct keel_line last; /* step 0: there is none */
    double loss, seconds;  /* of it */
    struct keel_step_ranges lacks;
    bool
        damaged; /* the line that begins at damaged_at is no metric, or out of order: nothing more was read */
    uint64_t damaged_at;
    double age_s; /* since it was written */
};
/* A file that is not there has no line. What was read is the caller's to free (lacks). IO, NO_MEMORY. */
enum keel_status keel_metric_look(const char *directory, struct keel_metric_file *out);

/* For people: the directory, and those steps (keel_step_ranges_text). */
#define KEEL_METRIC_LACKING                                                                                  \
    "%s/metrics.jsonl lacks %s, which were done: their lines were lost, or taken out; no weight depends on " \
    "them. Put a copy of the file back, or have the steps done again: --resume with the step of a snapshot " \
    "before them (keel ckpt ls), or none"
/* The directory, and twice where it begins. */
#define KEEL_METRIC_DAMAGED                                                                                  \
    "%s/metrics.jsonl: the line that begins at byte %" PRIu64                                                \
    " is not a metric of this run, or out of order: "                                                        \
    "keep what is before it (head -c %" PRIu64 "), or move the file away"
/* The fields of the event that says that these have no line. */
json_t *keel_metric_hole_event(uint64_t first, uint64_t last);

#endif
