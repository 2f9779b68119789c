/* starters.h - what starts agents on other hosts (ssh, srun), by who leads: the launcher, or an agent.
 *
 * Owns these processes, one a node, and when they are started again: a host that is away is tried ever more
 * seldom; what stays although its agent is gone is ended first. They outlive who started them where another
 * may lead. Private to node/; one owner, one thread; never blocks. */
#ifndef KEEL_STARTERS_H
#define KEEL_STARTERS_H

#include "hosts.h"
#include "secret.h"

struct keel_starters_config {
    const struct keel_job *job;       /* borrowed, as all but the secret */
    const struct keel_hosts *hosts;   /* where nodes are */
    const struct keel_secret *secret; /* copied */
    const char *program;              /* of this host, where the job gives no cluster.command */
    const char *place;                /* where agents dial in */
    uint16_t node_count;
    void *context;
    /* What started the agent of a node ended, or could not be started (UNSUPPORTED: the host cannot run it):
     * true, if it is to be started again. */
    bool (*lost)(void *context, uint16_t node, enum keel_status status, const char *why);
};

struct keel_starters;

enum keel_status keel_starters_open(const struct keel_starters_config *config, struct keel_starters **out);
void keel_starters_close(struct keel_starters *starters); /* NULL, too; what runs is left alone */

/* An agent of this node is wanted. What was started there before may still run: its agent dials again, or it
 * is ended after a grace. */
void keel_starters_start(struct keel_starters *starters, uint16_t node);
/* It has come. */
void keel_starters_came(struct keel_starters *starters, uint16_t node);
/* Do what is there to be done. */
void keel_starters_turn(struct keel_starters *starters);
int keel_starters_fd(const struct keel_starters *starters); /* turn when it is readable */
uint64_t keel_starters_deadline_ns(const struct keel_starters *starters);
/* At the end: none is started again. Does one run yet? */
bool keel_starters_rest(struct keel_starters *starters);
void keel_starters_kill(struct keel_starters *starters);

#endif
