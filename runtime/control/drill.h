/* drill.h - faults by plan, the same for tests, demos and bring-up.
 *
 *     kill:rank=2,step=30                 SIGKILL the worker that carries rank 2, in step 30
 *     kill:node=1,step=30,at=reduce       SIGKILL that node: its agent and its workers
 *     kill:rank=2,step=30,at=gather       when it has begun to gather weights (parallel.zero = 3)
 *     kill:rank=2,step=30,at=eval         in its evaluation behind step 30
 *     kill:rank=2,step=30,at=text         in the text behind the last step
 *     kill:all,step=200                   SIGKILL the launcher, and with it everything
 *     stop:rank=2,step=30                 SIGSTOP: alive, but silent
 *     slow:rank=2,step=30,ms=500          that step takes half a second longer
 *     slow:rank=2,step=30,ms=500,steps=9  and the eight behind it too
 *     disk-full:rank=2,step=32            from its snapshot of that step on, for a second
 *                                         (or ms=N), what the worker writes finds no space
 *     flip:rank=2,step=30                 a bit of its weights changes, as in bad memory
 *     flip:rank=2,step=30,at=reduce       a bit of a first moment that it holds does
 *     flip:rank=2,step=30,at=commit       a bit of the loss that it has for that step does
 *     sick:rank=2,step=30                 a bit is wrong in all that its board gives
 *     hang:rank=2,step=30                 no command of its board comes back
 *     hang:rank=2,step=32,at=capture      the next copy from its board does not
 *     wipe:node=2,step=30                 what that node has of snapshot.local goes, and
 *                                         the node is killed
 *
 * keel/fault.h has the grammar. A drill fires once in the life of a run directory: before it fires, a line in
 * DIR/drills.jsonl is made durable, so that a resumed run does not die again of the same drill. */
#ifndef KEEL_DRILL_H
#define KEEL_DRILL_H

#include <keel/fault.h>
#include <keel/status.h>
#include <stdbool.h>
#include <stdint.h>

enum { KEEL_DRILLS_MAX = 64, KEEL_DRILL_TEXT_BYTES = 96 };

enum keel_drill_action {
    KEEL_DRILL_KILL,
    KEEL_DRILL_STOP,
    KEEL_DRILL_SLOW,
    KEEL_DRILL_DISK_FULL,
    KEEL_DRILL_FLIP,
    KEEL_DRILL_SICK,
    KEEL_DRILL_HANG,
    KEEL_DRILL_WIPE,
    KEEL_DRILL_ACTION_COUNT
};
enum keel_drill_target { KEEL_DRILL_RANK, KEEL_DRILL_NODE, KEEL_DRILL_ALL };
enum keel_drill_phase {
    KEEL_AT_FORWARD,
    KEEL_AT_GATHER, /* weights that segments read are under way */
    KEEL_AT_REDUCE,
    KEEL_AT_COMMIT,
    KEEL_AT_SPREAD, /* behind an update of pieces, before the weights go out */
    KEEL_AT_EVAL,   /* in the middle of an evaluation of the step that was just done */
    KEEL_AT_SNAPSHOT,
    KEEL_AT_CAPTURE,
    KEEL_AT_TEXT, /* while text is generated, behind the last step */
    KEEL_AT_COUNT
};

struct keel_drill {
    struct keel_fault_head head;      /* enum keel_drill_action, enum keel_drill_target */
    char text[KEEL_DRILL_TEXT_BYTES]; /* as given: its name */
    uint32_t phase;                   /* enum keel_drill_phase */
    uint64_t number;                  /* rank or node */
    uint64_t step;
    uint64_t step_count; /* slow: of so many steps each */
    uint64_t ms;         /* slow, disk-full */
};

/* INVALID says what is wrong and shows an example. */
enum keel_status keel_drill_parse(const char *text, struct keel_drill *out);

struct keel_drill_plan {
    struct keel_drill drills[KEEL_DRILLS_MAX];
    uint32_t count;
    const char *directory;  /* of the run; borrowed */
    _Atomic uint64_t begun; /* bit per drill that this process fired: a slow one goes on */
    /* Flip a bit of this process's weights, or at KEEL_AT_COMMIT of its loss. Borrowed, as its context is. */
    void (*flip)(void *context, enum keel_drill_phase phase);
    void (*spoil)(void *context, const char *faults); /* its device has these from now on (keel/health.h) */
    void (*wipe)(void *context);                      /* what this node keeps by itself is gone */
    void *context;
};

/* Who and where the calling worker is. */
struct keel_drill_place {
    uint64_t step;
    enum keel_drill_phase phase;
    uint32_t rank, node;
    bool leader; /* fires drills for `all` */
};

/* Once, before the process opens a file that a disk-full drill of the plan is to fail. */
void keel_drill_prepare(const struct keel_drill_plan *plan);

/* Fire what is due here; does not return when it kills this process. Any thread, one at a time for each
 * phase. */
void keel_drill_fire(struct keel_drill_plan *plan, const struct keel_drill_place *place);

/* Before a run with drills starts: mends a torn last line of drills.jsonl. CORRUPT where another line is none
 * of ours: a drill could fire twice. Not while the run goes on. */
enum keel_status keel_drill_check_log(const char *directory);

/* When the newest drill of the directory that takes a rank from the run (kill, stop, sick, hang) fired
 * (monotonic ns, this boot), 0 for never: the beginning of the incident that it caused. */
uint64_t keel_drill_last_ns(const char *directory);

#endif
