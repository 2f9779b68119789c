/* worker_link.h - what an agent and its worker say to each other.
 *
 * A SOCK_SEQPACKET pair, descriptor 3 of the worker; one struct keel_link_message per packet. Both ends
 * are the same binary on the same machine, so plain structs do; the socket is inherited, never named, so
 * nobody else can speak on it. The agent never blocks on it; a worker that finds it closed ends at once.
 *
 * A view goes as a file without a name, of its bytes (view.h), which the workers of an agent share: of
 * thousands of members no socket takes one at once, and each packet would need room for it. */
#ifndef KEEL_WORKER_LINK_H
#define KEEL_WORKER_LINK_H

#include "view.h"

enum { KEEL_LINK_FD = 3, KEEL_LINK_TEXT_BYTES = 1024 };
/* Words of options that `keel run` hands to workers through launcher and agents, names and values: those of
 * its user, and behind them what the launcher adds, --resume and --hosts with their values. */
enum { KEEL_PASSED_BY_USER_MAX = 160, KEEL_PASSED_ON_MAX = KEEL_PASSED_BY_USER_MAX + 4 };

/* Incarnation of a worker that was never started again, on a node that was not either. */
enum { KEEL_WORKER_FIRST_INCARNATION = 1 << 8 };

enum keel_link_kind {
    /* worker to agent */
    KEEL_LINK_READY = 1, /* address */
    KEEL_LINK_BEAT,      /* value: progress counter (microbatches, messages, anything that moves) */
    KEEL_LINK_STEP,      /* record */
    KEEL_LINK_SHARD,     /* value: step, attempt, summary */
    KEEL_LINK_ACCUSE,    /* rank, value: epoch, cause */
    KEEL_LINK_NOTE,      /* text: a JSON object for events.jsonl */
    KEEL_LINK_FAILED,    /* value: enum keel_status, text: detail; the process exits next */
    KEEL_LINK_DONE,      /* all steps done, snapshots finished; the process exits 0 next */
    /* agent to worker */
    KEEL_LINK_VIEW = 64, /* view_file */
    KEEL_LINK_STOP       /* orderly end: finish the step, then DONE */
};

struct keel_link_message {
    uint32_t kind;
    uint16_t rank;
    uint16_t cause;
    uint64_t value, attempt;
    union {
        struct keel_address address;
        struct keel_step_record record;
        struct keel_shard_summary summary;
        int view_file; /* sent, it stays the caller's; received, it is the receiver's */
        char text[KEEL_LINK_TEXT_BYTES];
    } as;
};

/* Agents and workers call this first, before they have threads: SIGINT, SIGTERM and SIGHUP are ignored from
 * then on, whatever a library installs for them later. On a terminal or under a service manager they reach
 * all processes of a run at once; the launcher turns them into an orderly end. SIGPIPE too: a reader of the
 * log that goes away ends nobody. And SIGXFSZ: a file beyond `ulimit -f` is an error of the write. */
void keel_link_ignore_signals(void);

/* A connected pair with buffers for many views; both close-on-exec, the caller's to close. */
enum keel_status keel_link_pair(int out[2]);

/* Blocking up to the deadline, 0 never blocks; any thread (one packet is atomic). TIMEOUT, PEER_LOST when
 * the other end is gone, CORRUPT for a packet that is none. On a text, what follows its NUL is not sent. */
enum keel_status keel_link_send(int fd, const struct keel_link_message *message, uint64_t deadline_ns);
enum keel_status keel_link_receive(int fd, struct keel_link_message *out, uint64_t deadline_ns);

/* A view as a file, the caller's to close; and back, which closes it. IO, NO_MEMORY, LIMIT (descriptors);
 * CORRUPT. */
enum keel_status keel_link_view_file(const struct keel_view *view, int *out_file);
enum keel_status keel_link_take_view(int file, struct keel_view *out);

#endif
