/* run_lives.h - a run as its command line asks for it, and its lives: from which step each goes on, and what
 * is to be done when it ended.
 *
 * A life is one keel_launch. Most runs have one; another follows where a loss exploded or ranks differ and
 * the job says go back, or where the snapshot of the end was lost. */
#ifndef KEEL_RUN_LIVES_H
#define KEEL_RUN_LIVES_H

#include "drill.h"
#include "launcher.h"
#include "plan_table.h"
#include "run_output.h"

enum { KEEL_RUN_OVERRIDES_MAX = 256, KEEL_RUN_MADE_COUNT = 4 };

struct keel_run {
    const char *job_path;
    const char *overrides[KEEL_RUN_OVERRIDES_MAX];
    uint32_t override_count;
    char made[KEEL_RUN_MADE_COUNT][64];  /* overrides made from --ranks and its like; "": not given */
    const char *drills[KEEL_DRILLS_MAX]; /* for the checks: they are passed on too */
    uint32_t drill_count;
    const char *passed_on[KEEL_PASSED_BY_USER_MAX]; /* options of workers and their values */
    uint32_t passed_on_count;
    const char *out, *resume;
    bool prepare_only;
    struct keel_job job;
    char directory[KEEL_PATH_BYTES], job_copy[KEEL_PATH_BYTES];
    char identity[KEEL_IDENTITY_BYTES];
    uint64_t data_digest;        /* of which the identity is; not known to who takes over */
    bool over;                   /* nothing is left to do */
    struct keel_metric_file end; /* if so, its lines */
    struct keel_plan_table plans;
    struct keel_launch_locks locks; /* of the directory */
    bool takes_over;                /* a run whose launcher ended: */
    struct keel_take_over take_over;
    bool left;                     /* and which could not be taken over: it is another's still */
    uint64_t heard_ns, first_step; /* that one was heard last; its life began with this step */
};

/* An option for workers, and its value. LIMIT. */
enum keel_status keel_run_pass_on(struct keel_run *run, const char *name, const char *value);

/* Where its snapshots are. */
enum keel_status keel_run_store_root(const struct keel_run *run, char out[KEEL_PATH_BYTES]);
/* NULL in *out: nothing is there yet. */
enum keel_status keel_run_open_store(const struct keel_run *run, struct keel_store **out);
/* Is the end of the run durable? It is when it was to be: snapshot.every = 0 asks for nothing. Snapshots up
 * to the step on_record are looked at, those behind it are read. */
bool keel_run_end_is_kept(const struct keel_run *run, uint64_t on_record, uint64_t end_step);
/* The text that the job asked for, on the standard output. */
void keel_run_show_sample(const struct keel_run *run);

/* All lives, and what people are told; the directory is locked, and job.conf, identity and plans are there.
 */
enum keel_status keel_run_job(struct keel_run *run);

/* `keel lead`, which agents start in the place of a launcher that ended. argv[0] is "lead". Returns the exit
 * code. */
int keel_lead_main(int argc, char **argv);

#endif
