/* run_output_state.h - what a run's output is inside, shared by run_output.c, which writes it, run_metrics.c,
 * which has the lines of metrics.jsonl, run_early.c, run_missing.c, and run_output_files.c, which opens it,
 * for a new run or one that is taken over. Private to these. */
#ifndef KEEL_RUN_OUTPUT_STATE_H
#define KEEL_RUN_OUTPUT_STATE_H

#include "bitset.h"
#include "incident.h"
#include "jsonl.h"
#include "loss_past.h"
#include "run_output.h"
#include <stdatomic.h>

enum { FILE_NAME_BYTES = KEEL_PATH_BYTES };

/* Where a worker computes, as it said itself; "" until then. */
struct place {
    char host[64], board[128], device[128];
};

struct keel_output {
    const struct keel_job *job;
    char directory[KEEL_PATH_BYTES];
    struct keel_jsonl *metrics, *events;
    struct keel_line base;                 /* the last before those of `seen`; step 0: there is none */
    struct keel_loss_past base_past, past; /* of the losses up to the base, and of all */
    struct keel_step_ranges base_lacks;    /* steps before the base that have no line */
    struct keel_step_ranges told;          /* that metrics.jsonl lacks these */
    bool apart;             /* others may have led in this life, so that steps may have lines elsewhere */
    bool others_led;        /* so that steps may have lines elsewhere, and losses are known by word alone */
    uint64_t mark_end;      /* in the file, the last mark ends there (metric_lines.h) */
    struct keel_line *seen; /* ascending; a step that nobody had a record of is missing */
    uint64_t seen_count, seen_capacity;
    uint64_t lines;                 /* of `seen`, from the first: their lines are in the file */
    json_t **held;                  /* the lines of the others, until the hole before them is filled */
    uint64_t held_next, held_count; /* of `held`: the line of seen[lines], and all */
    uint64_t mismatches;
    uint64_t disputed_step; /* the ranks do not agree about the state after it; 0: none */
    uint64_t outvoted_step; /* the last about which most of them did */
    uint64_t disputes;      /* for which the run went back */
    uint64_t last_drill_ns; /* of a drill that was accounted for */
    uint64_t started_ns, first_step_ns, steps_now, tokens_now;
    uint64_t commit_ns;                 /* of the newest step, or of the first view */
    uint64_t view_ns, resumed_ns;       /* first view of this life, newest restored snapshot; 0: none */
    uint64_t down_ns;                   /* from the last commit of the life before to the start of this one */
    uint64_t last_snapshot;             /* of this life of the run */
    uint64_t told_step, told_attempt;   /* of the newest snapshot that there is an event of */
    json_t *past_notes[KEEL_NODES_MAX]; /* of a run that was taken over, by node: the last line; or NULL */
    struct keel_bitset past_drained;    /* likewise: nodes that left, and that is told */
    struct keel_seen_step past_spike;   /* likewise, while events are read: the newest explosion */
    uint64_t past_down_ns;              /* likewise */
    struct keel_incident incident;
    struct place
        *places[KEEL_NODES_MAX];    /* by node: KEEL_WORKERS_PER_NODE of them, or NULL: it said nothing */
    char *troubles[KEEL_NODES_MAX]; /* likewise: the last before the first view of this life; or NULL */
    struct keel_step_record newest;
    struct keel_seen_step spiked;    /* the run is to end or go back for this; step 0: for nothing */
    struct keel_seen_step went_back; /* the same, of the life before */
    _Atomic uint64_t refused_step;   /* no snapshot from that step on; 0: none is refused */
    _Atomic uint64_t end_step; /* where the run ended early: what comes behind is not kept; 0: it did not */
    bool end_missed;           /* of that step there will be no snapshot in this life */
    uint64_t heard_ns; /* who led before was heard last, until that is told; 0: nobody did, or it is */
    int lock_fd;       /* to be touched while files are read; 0: none */
    bool terminal, quiet;
    bool moves; /* others may lead between: a step that has no line here may have one there */
    uint64_t steps_before, first_step;        /* on file when opened; the first that came in this life */
    enum keel_status snapshot_status;         /* of the newest snapshot */
    char snapshot_failure[KEEL_DETAIL_BYTES]; /* and why, when it failed */
    uint16_t members, spares;
    uint64_t epoch;
    struct keel_member *carriers; /* `members` of them: of that view, by rank */
    size_t carrier_capacity;
};

/* run_output.c */
/* Write {"event": name, times, fields}; takes the reference of `fields`. */
void keel_output_event(struct keel_output *output, const char *name, json_t *fields);
/* One line for people: above the bar on a terminal, plain otherwise. */
void keel_output_say(struct keel_output *output, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* What became of a node that is to leave: a callback of the launcher. */
void keel_output_drain(void *context, uint16_t node, enum keel_drain_news news, uint16_t ranks,
                       uint16_t fewest);
/* The ranks differ about that step. */
void keel_output_doubt(struct keel_output *output, uint64_t step);
/* run_missing.c */
/* What went wrong with a node; "": nothing any more. */
void keel_output_blame(struct keel_output *output, uint16_t node, const char *why);
void keel_output_forgive(struct keel_output *output);
/* The first view of a life has fewer than the job asks for: which nodes are missing, why, and the next move.
 */
void keel_output_tell_missing(struct keel_output *output, const struct keel_view *view);
/* run_early.c */
/* That the run ends early, when it is decided, and at its end. */
void keel_output_tell_early(struct keel_output *output);
void keel_output_tell_early_done(struct keel_output *output);
void keel_output_take_place(struct keel_output *output, uint16_t node, uint8_t local, const json_t *note);
enum keel_status keel_output_find_status(const char *name);

/* run_metrics.c */
/* Read the end of metrics.jsonl, and as much before as its last mark wants; CORRUPT, IO, NO_MEMORY, and what
 * is known stays. */
enum keel_status keel_output_read_metrics(struct keel_output *output);
/* The lines from that step on are among those that are kept then. Errors as above. */
enum keel_status keel_output_reach(struct keel_output *output, uint64_t step);
/* The newest line, held or not; step 0: there is none. And its step; and that of the last in the file. */
const struct keel_line *keel_output_last(const struct keel_output *output);
uint64_t keel_output_last_step(const struct keel_output *output);
uint64_t keel_output_last_written(const struct keel_output *output);
/* The steps up to the newest that have no line, into an empty set. NO_MEMORY. */
enum keel_status keel_output_find_lacking(const struct keel_output *output, struct keel_step_ranges *out);
/* Tell of those up to the step `last` that nobody was told of, if no line of them can be elsewhere; people at
 * the end of the run of all. */
void keel_output_tell_lacking(struct keel_output *output, uint64_t last, bool at_end);
const struct keel_seen_step *keel_output_find(struct keel_output *output, uint64_t step);
/* It comes behind the lines in the file, before those that are held. NO_MEMORY. */
enum keel_status keel_output_remember(struct keel_output *output, const struct keel_line *line);
/* Its losses are the next. True: a spike begins. */
bool keel_output_judge(struct keel_output *output, const struct keel_line *line);
/* All of them anew: the first, from the step `from` on, that begins a spike. */
const struct keel_line *keel_output_judge_again(struct keel_output *output, uint64_t from);
/* Callbacks of the launcher. */
uint64_t keel_output_past(void *context, uint8_t *out, uint32_t *bytes);
void keel_output_learn(void *context, const uint8_t *data, uint32_t bytes);
/* That step's losses come: are those of steps before unknown? */
void keel_output_miss(struct keel_output *output, uint64_t step);
/* Write the line that was remembered last; takes its reference. is_new: no later step has one. */
void keel_output_put(struct keel_output *output, json_t *line, bool is_new);
/* Forget lines far before that step, of which nothing comes any more. */
void keel_output_trim(struct keel_output *output, uint64_t step);
/* Lines that are held, up to that step. */
void keel_output_write_held(struct keel_output *output, uint64_t step);
/* Steps from first_step on are computed again: lines behind one of which nobody had a record are taken out of
 * the file, and put back when the run has come so far, behind those that were missing. */
enum keel_status keel_output_fill_holes(struct keel_output *output, uint64_t first_step);
/* Cut the lines from that step on. */
enum keel_status keel_output_cut(struct keel_output *output, uint64_t step);
/* A file is read, and is at its line of that number: agents wait for who takes over meanwhile. */
void keel_output_show_life(const struct keel_output *output, uint64_t number);

#endif
