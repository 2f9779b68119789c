/* control.h - the real world around keel_node_step: what an agent and the launcher share.
 *
 * Owns the environment's clock, randomness, timer, durable state and outgoing messages. A step of the node
 * runs to its end before anything that it sent leaves, and nothing leaves when its state could not be made
 * durable: that is what makes the register's promises true. Workers and agents, the effects that differ,
 * are the owner's. One thread; blocks only while state is written to the disk. */
#ifndef KEEL_CONTROL_H
#define KEEL_CONTROL_H

#include "mailbox.h"
#include "seldom.h"
#include <keel/file.h>
#include <keel/job.h>
#include <keel/node.h>

struct keel_leading;

struct keel_control_plane {
    void *owner;                  /* for the owner's effects: the context of all effects is the control */
    struct keel_leading *leading; /* for those of who leads (leading.h); NULL: this node never does */
    uint16_t self;                /* this node */
    struct keel_node *node;
    struct keel_mailbox *mailbox; /* borrowed */
    struct keel_env env;
    uint64_t timer_ns;
    char state_path[KEEL_PATH_BYTES]; /* "": holds no state */
    uint8_t *outbox;                  /* what this step sends; heap */
    uint32_t outbox_bytes, outbox_capacity;
    struct keel_seldom lost; /* that a message found no room */
    uint8_t *inbox; /* of that, what this node told itself: its agent tells the leader on it, and that one it;
                       heap */
    uint32_t inbox_bytes, inbox_capacity;
    bool undurable; /* a persist of this step failed */
    bool unstored;  /* the newest persist found no room (`detail` says where); it is tried again */
    bool finished;
    enum keel_status status;        /* once finished */
    char detail[KEEL_DETAIL_BYTES]; /* of the end, or of what could not be stored */
};

struct keel_control_config {
    const struct keel_node_config *node;
    struct keel_leading *leading; /* of a node that may lead; borrowed until fini */
    struct keel_mailbox *mailbox; /* borrowed until fini */
    const char *state_path;       /* where persist writes; NULL for a node that does not hold the register */
    /* The owner's: tell_*, worker_*, node_start, snapshot_commit, step_commit, mismatch, view_change,
     * shortage, note, lead_place; the rest is filled here. */
    const struct keel_env *effects;
    void *owner;
};

/* What the node's configuration is for one node of a job (0 is the launcher, then the job's nodes, then
 * the spares, one worker each). LIMIT, INVALID. */
enum keel_status keel_control_layout(const struct keel_job *job, uint16_t node, uint32_t incarnation,
                                     struct keel_node_config *out);

enum keel_status keel_control_init(struct keel_control_plane *control,
                                   const struct keel_control_config *config);
void keel_control_fini(struct keel_control_plane *control);

/* Hand over START with the durable state, if any. CORRUPT or IO when that cannot be read. */
enum keel_status keel_control_start(struct keel_control_plane *control);

/* Hand over one event, then do what it sent. A failure to persist that more room does not cure ends the node:
 * `finished`, with why. */
void keel_control_step(struct keel_control_plane *control, const struct keel_node_event *event);

/* Hand over the messages that wait (a bounded number), then a TICK when it is due: in this order, so that
 * an owner that was held up hears what came before it counts silence. */
void keel_control_turn(struct keel_control_plane *control);

#endif
