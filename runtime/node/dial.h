/* dial.h - an agent that dials in: from the launcher's place and the job key to a node of its run.
 *
 * Finds the launcher, proves the key and has it proven (handover.h), waits until the launcher wants a node,
 * and takes what makes one: the job, the run's number, its own number. Then makes the directory that agent
 * and workers read, which is this host's own, and tries whether datagrams as long as this run's get through
 * to the launcher and back. Blocks, and ends early when the process is interrupted
 * (keel_process_hold_interrupts). */
#ifndef KEEL_DIAL_H
#define KEEL_DIAL_H

#include "handover.h"
#include "mailbox.h"
#include "net_place.h"
#include <keel/file.h>

struct keel_dial_config {
    const char *place;   /* HOST:PORT of the launcher */
    const char *address; /* of this host, to be reached at; NULL: as the way to the launcher has it */
    const struct keel_secret *secret;
    const char *release;
    uint16_t node;     /* 0: any */
    uint64_t instance; /* of this process */
    uint64_t patience_ns;
};

struct keel_dialed {
    int fd; /* readable when the launcher's process is gone */
    struct keel_handover handover;
    struct keel_net_place here, launcher; /* this host, port 0; the launcher */
    struct keel_handed_job job;           /* texts lie in `frame` */
    uint8_t *frame;                       /* heap */
};

/* TIMEOUT: nobody answered for patience_ns. VERSION names both releases; AUTH: the launcher has another key.
 * Why the launcher does not want us comes with its status. INTERRUPTED. INVALID: no place, no address of this
 * host. */
enum keel_status keel_dial(const struct keel_dial_config *config, struct keel_dialed *out);
void keel_dialed_close(struct keel_dialed *dialed);

/* Write what agent and workers read into `directory`: job.conf, identity, job.key. */
enum keel_status keel_dialed_settle(const struct keel_dialed *dialed, const struct keel_secret *secret,
                                    const char *directory);
/* Is `store` the directory that the launcher commits snapshots in? NOT_FOUND says where it was looked for;
 * MISMATCH: it is another run's. */
enum keel_status keel_store_check(const char *store, uint64_t run);
/* Launcher: make it known as that. */
enum keel_status keel_store_mark(const char *store, uint64_t run);

/* Whether datagrams of `bytes` get through. UNSUPPORTED says which do not, and by which network. */
enum keel_status keel_dialed_probe(const struct keel_dialed *dialed, struct keel_mailbox *mailbox,
                                   uint32_t bytes);
/* What the launcher says now that the connection is readable: PEER_LOST, its process is gone; else its last
 * word, behind which there is no reason to dial again. */
enum keel_status keel_dialed_hear(const struct keel_dial_config *config, struct keel_dialed *dialed);
/* Tell the launcher that this node ends as it was told to, or (not OK) why it cannot begin. */
void keel_dialed_leave(struct keel_dialed *dialed, enum keel_status status, const char *text);

#endif
