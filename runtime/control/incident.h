/* incident.h - what a loss of ranks costs: from the last commit before it to the first commit after it.
 *
 * Owns the accounting of one incident at a time, on the launcher's monotonic clock. The parts are consecutive
 * pieces of the lost time, so they add up to it exactly, whoever caused the loss. What happens between the
 * view and the next commit is split by what the rank that reported that commit measured itself.
 *
 * Leaves to others: the files and the words (run_output.c). Takes times as arguments, so that it replays. */
#ifndef KEEL_INCIDENT_H
#define KEEL_INCIDENT_H

#include <keel/node.h>

enum { KEEL_INCIDENT_LOST_MAX = 512 }; /* that are named: a rack of 64 nodes with 8 each */

/* Parts in the order of time; the text is the field of events.jsonl. */
#define KEEL_INCIDENT_PART_TABLE(X)                                                                          \
    X(BEFORE, "before_s")           /* last commit to the last sign of life: the interrupted step */         \
    X(DETECT, "detect_s")           /* last sign of life to the first evidence */                            \
    X(RECONFIGURE, "reconfigure_s") /* first evidence to the view that lasted */                             \
    X(RESTORE, "restore_s")         /* view to the state of a snapshot, where nobody alive had any */        \
    X(AGAIN, "again_s")             /* then the steps that were committed before, run again */               \
    X(SYNC, "sync_s")               /* ranks connect and agree where to go on */                             \
    X(HEAL, "heal_s")               /* state copied from a live rank */                                      \
    X(REDO, "redo_s")               /* computing what is missing of the step */                              \
    X(WAIT, "wait_s")               /* waiting for the gradients of the others */                            \
    X(OTHER, "other_s")             /* update, evaluation, messages on their way */
enum keel_incident_part {
#define KEEL_INCIDENT_ENUM(name, text) KEEL_INCIDENT_##name,
    KEEL_INCIDENT_PART_TABLE(KEEL_INCIDENT_ENUM)
#undef KEEL_INCIDENT_ENUM
        KEEL_INCIDENT_PART_COUNT
};
const char *keel_incident_part_name(enum keel_incident_part part);

struct keel_incident {
    bool open;
    enum keel_cause cause; /* of the newest view change that lost a rank */
    bool injected;         /* failure_ns is a drill's own time */
    uint64_t commit_ns;    /* last commit before */
    uint64_t failure_ns;   /* a drill's time; else the last sign of life */
    uint64_t evidence_ns;  /* the first */
    uint64_t view_ns, epoch;
    uint64_t resumed_ns, resumed_step; /* a snapshot was restored since; 0: none */
    struct keel_member lost[KEEL_INCIDENT_LOST_MAX];
    uint32_t lost_count; /* of all; of more than KEEL_INCIDENT_LOST_MAX those are in `lost` that came first */
};

/* What a view change lost. */
struct keel_incident_loss {
    const struct keel_view *old_view, *new_view;
    enum keel_cause cause;
    uint64_t commit_ns;             /* last commit so far; 0: none in this life */
    uint64_t drill_ns;              /* when a drill injected it; 0: none did */
    uint64_t alive_ns, evidence_ns; /* as in keel_env.view_change */
    uint64_t silence_ns;            /* timeout of the run: silence of that length evicts */
    uint64_t now_ns;
};

/* How many active members of the old view are not in the new one; they are appended to `out` (NULL: counted
 * only), which has room for KEEL_INCIDENT_LOST_MAX and holds as many of *out_count as fit. */
uint32_t keel_incident_find_lost(const struct keel_view *old_view, const struct keel_view *new_view,
                                 struct keel_member *out, uint32_t *out_count);

/* A view change lost active ranks: open the incident, or take them into the one that is open. */
void keel_incident_begin(struct keel_incident *incident, const struct keel_incident_loss *loss);

/* A newer view, whatever it is for: commits of older ones do not close the incident. */
void keel_incident_view(struct keel_incident *incident, uint64_t epoch, uint64_t now_ns);

/* A snapshot of `step` was restored. */
void keel_incident_resumed(struct keel_incident *incident, uint64_t step, uint64_t now_ns);

/* A step was committed. True: the incident is over, and `out` holds its parts, which add up to *out_total_ns.
 */
bool keel_incident_commit(struct keel_incident *incident, const struct keel_step_record *record,
                          uint64_t now_ns, uint64_t out_ns[KEEL_INCIDENT_PART_COUNT], uint64_t *out_total_ns);

#endif
