/* dial.h - an agent that dials in: from places of a run and the job key to a node of it.
 *
 * Finds who leads, the launcher or another node where one may (it asks all places, and who does not lead says
 * where to ask), proves the key and has it proven (handover.h), waits until a node is wanted, and takes what
 * makes one: the job, the run's number, its own number. Then makes the directory that agent and workers read,
 * which is this host's own, and tries whether datagrams as long as this run's get through to who let it in
 * and back. Blocks, and ends early when the process is interrupted (keel_process_hold_interrupts). Who asks
 * something of the run (keel job) finds who leads in the same way. */
#ifndef KEEL_DIAL_H
#define KEEL_DIAL_H

#include "handover.h"
#include "mailbox.h"
#include "net_place.h"
#include <keel/file.h>

enum { KEEL_DIAL_PLACE_BYTES = 320 }; /* a name's 253 letters, and a port */

struct keel_dial_config {
    const char *places; /* HOST:PORT,...: of the launcher, and of nodes that may lead */
    const char *known;  /* more of them, as an earlier life as a node knew them; "" */
    const char *store;  /* a directory of snapshots that says who leads (remote_leader.h); NULL */
    const char
        *address; /* of this host, to be reached at, maybe with a port; NULL: as the way there has it */
    const struct keel_secret *secret;
    const char *release;
    uint16_t node;     /* 0: any */
    uint64_t instance; /* of this process */
    uint64_t patience_ns;
    const struct keel_handover_ask *ask; /* this is asked, and no node wanted; NULL: be an agent */
};

/* "The launcher" is who let this agent in. */
struct keel_dialed {
    int fd; /* readable when the launcher's process is gone */
    struct keel_handover handover;
    struct keel_net_place here, launcher; /* this host, port 0 if the kernel is to choose; the launcher */
    char place[KEEL_DIAL_PLACE_BYTES];    /* of the launcher, as it was dialed */
    char elsewhere[KEEL_PLACE_BYTES];     /* who leads, as one who does not said; "" */
    bool refused;                         /* who proved itself said not to come again */
    bool asks;                            /* it asks something, and is no agent */
    struct keel_handed_job job;           /* texts lie in `frame` */
    uint8_t *frame;                       /* heap */
};

/* What --join and --address may say, before anybody is asked: INVALID names the argument, the value and the
 * next move. address: may be NULL. */
enum keel_status keel_dial_check(const char *places, const char *address);
/* Of this host it is none that serves: INVALID. */
enum keel_status keel_dial_refuse_address(const char *address, const char *why);
/* The next of a list HOST:PORT,...; false behind the last. */
bool keel_dial_next_place(const char **list, char out[KEEL_DIAL_PLACE_BYTES]);

/* TIMEOUT: nobody who leads answered for patience_ns. VERSION names both releases; AUTH: another key is there
 * (of several places: at all of them). Why who leads does not want us comes with its status. INTERRUPTED.
 * INVALID: no place, no address of this host. */
enum keel_status keel_dial(const struct keel_dial_config *config, struct keel_dialed *out);
void keel_dialed_close(struct keel_dialed *dialed);

/* Ask all places once, `ask` of who leads. OK: it was heard. PEER_LOST, TIMEOUT or NOT_FOUND: nobody who
 * leads answered, each place with why; there may be one later. Else what is wrong, or why it is refused. */
enum keel_status keel_dial_ask(const struct keel_dial_config *config, struct keel_dialed *out);
/* Wait until what was asked for has come to be: `out` says how the run ended, if that was to. `stays` (NULL:
 * nobody asks) is told why it has not yet, as often as there is another reason. PEER_LOST: who heard it is
 * gone, or leads no more: ask again. TIMEOUT. */
enum keel_status keel_dialed_await(struct keel_dialed *dialed, uint64_t deadline_ns,
                                   void (*stays)(void *context, const char *why), void *context,
                                   struct keel_handover_reason *out);

/* Write what agent and workers read into `directory`: job.conf, identity, job.key. */
enum keel_status keel_dialed_settle(const struct keel_dialed *dialed, const struct keel_secret *secret,
                                    const char *directory);
/* Is `store` the directory that the launcher commits snapshots in? NOT_FOUND says where it was looked for;
 * MISMATCH: it is another run's. */
enum keel_status keel_store_check(const char *store, uint64_t run);
/* Launcher: make it known as that. */
enum keel_status keel_store_mark(const char *store, uint64_t run);

/* Whether datagrams of `bytes` get through. UNSUPPORTED says which do not, and by which network; as
 * keel_dialed_hear, where who let this agent in is gone by then. */
enum keel_status keel_dialed_probe(struct keel_dialed *dialed, struct keel_mailbox *mailbox, uint32_t bytes);
/* What the launcher says now that the connection is readable: PEER_LOST, its process is gone; else its last
 * word, behind which there is no reason to dial again. */
enum keel_status keel_dialed_hear(struct keel_dialed *dialed);
/* Tell the launcher that this node ends as it was told to, or (not OK) why it cannot begin. */
void keel_dialed_leave(struct keel_dialed *dialed, enum keel_status status, const char *text);

#endif
