/* leading.h - what only a node that leads does: it has steps, views and notes told, and snapshots committed.
 *
 * The launcher leads, and where the leader moves (cluster.holders) an agent may: both fill their effects from
 * here. Found by the control plane's `leading`. Private to node/. */
#ifndef KEEL_LEADING_H
#define KEEL_LEADING_H

#include "committer.h"
#include "control.h"
#include "launcher.h"

struct keel_leading {
    const struct keel_launch_report *report; /* NULL: nobody is told */
    struct keel_committer *committer;        /* NULL: nothing is committed */
    bool began;                              /* there was a view */
    /* Called before each effect: it opens what is wanted only by who leads. False: that cannot be had. NULL:
     * all is there. */
    bool (*open)(struct keel_leading *leading);
};

/* node_start is not among them. */
void keel_leading_fill(struct keel_env *effects);
/* Results of snapshots that wait are told. */
void keel_leading_report_snapshots(struct keel_leading *leading);
/* At the end: the last snapshots are committed and told. False: the disk hangs, and committer and store stay
 * its thread's until the process ends; the caller forgets the store. Blocks until the deadline at most, which
 * is KEEL_LEADING_DRAIN_S from the end on, for all that may hang there. */
enum { KEEL_LEADING_DRAIN_S = 60 };
bool keel_leading_drain(struct keel_leading *leading, uint64_t deadline_ns);

#endif
