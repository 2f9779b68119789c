/* run_output_state.h - what a run's output is inside, shared by run_output.c, which writes it, and
 * run_output_files.c, which opens it, for a new run or one that is taken over. Private to the two. */
#ifndef KEEL_RUN_OUTPUT_STATE_H
#define KEEL_RUN_OUTPUT_STATE_H

#include "bitset.h"
#include "early_stop.h"
#include "incident.h"
#include "jsonl.h"
#include "run_output.h"
#include "spike.h"
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
    struct keel_seen_step *seen; /* ascending; a step that nobody had a record of is missing */
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
        *places[KEEL_NODES_MAX]; /* by node: KEEL_WORKERS_PER_NODE of them, or NULL: it said nothing */
    struct keel_step_record newest;
    struct keel_spike spike;
    struct keel_seen_step spiked;    /* the run is to end or go back for this; step 0: for nothing */
    struct keel_seen_step went_back; /* the same, of the life before */
    _Atomic uint64_t refused_step;   /* no snapshot from that step on; 0: none is refused */
    struct keel_early_stop early;    /* of the evaluations that have lines */
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
    struct keel_member carriers[KEEL_MEMBERS_MAX]; /* `members` of them: of that view, by rank */
};

/* run_output.c */
/* Write {"event": name, times, fields}; takes the reference of `fields`. */
void keel_output_event(struct keel_output *output, const char *name, json_t *fields);
/* One line for people: above the bar on a terminal, plain otherwise. */
void keel_output_say(struct keel_output *output, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
enum keel_status keel_output_remember(struct keel_output *output, struct keel_seen_step seen);
uint64_t keel_output_last_step(const struct keel_output *output); /* that has a line; 0: none */
/* Lines that are held, up to that step. */
void keel_output_write_held(struct keel_output *output, uint64_t step);
/* What became of a node that is to leave: a callback of the launcher. */
void keel_output_drain(void *context, uint16_t node, enum keel_drain_news news, uint16_t ranks,
                       uint16_t fewest);
/* The ranks differ about that step. */
void keel_output_doubt(struct keel_output *output, uint64_t step);
/* The validation loss of the next step that has one. True: the run ends there. */
bool keel_output_evaluated(struct keel_output *output, uint64_t step, float loss);
/* That it does, when it is decided, and at its end. */
void keel_output_tell_early(struct keel_output *output);
void keel_output_tell_early_done(struct keel_output *output);
/* Check the lines on file anew: the first, from the step `from` on, that begins a spike. */
const struct keel_seen_step *keel_output_check_seen(struct keel_output *output, uint64_t from);
void keel_output_take_place(struct keel_output *output, uint16_t node, uint8_t local, const json_t *note);
enum keel_status keel_output_find_status(const char *name);

#endif
