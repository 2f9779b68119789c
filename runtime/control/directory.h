/* directory.h - where the processes of a run are, known whole to each of them, and told as what is new.
 *
 * Who leads keeps it: the launcher at first. The keeper learns a node's place from what proved itself, and
 * counts changes: a version. It tells each node what changed since the version that it was told last; to
 * hundreds of nodes it lets changes gather, so that the joins of n nodes cost about n^2 entries and not one
 * message each to all. Each datagram of a node says which version it has whole; to who lacks something that
 * was sent, it is sent again. Another keeper counts on behind a gap, and behind each version that it hears
 * of, so that what one before it told a few alone is not taken for its own. Pure: sockets and seals are the
 * mailbox's, and so are the clock and chance. One owner. */
#ifndef KEEL_DIRECTORY_H
#define KEEL_DIRECTORY_H

#include "net_place.h"
#include <keel/limits.h>

enum { KEEL_DIRECTORY_LOG = 8192 }; /* changes that are found without a look at all nodes */

struct keel_directory_node {
    struct keel_net_place place; /* port 0: not known */
    uint32_t tag;                /* of the process there */
    uint32_t version;            /* that came with it, or an earlier one */
};

/* What a node was told. */
struct keel_directory_told {
    uint32_t version;
    uint64_t ns;
};

struct keel_directory {
    uint16_t self;    /* this node */
    uint32_t version; /* keeper: the newest; others: the one that they have whole */
    struct keel_directory_node nodes[KEEL_NODES_MAX]; /* [0]: the owner's */
    uint16_t node_end, known_count;                   /* nodes from node_end on are not known */
    /* keeper */
    bool behind; /* some were not told of all changes: they are, from due_ns on */
    uint64_t due_ns;
    struct keel_directory_told told[KEEL_NODES_MAX];
    uint32_t log_begin;                   /* changes from this version on are in: */
    uint16_t changed[KEEL_DIRECTORY_LOG]; /* by version, around: whose place it was */
    /* others: what comes in pages, by bits, from one version to another */
    uint32_t coming_base, coming_version;
    uint64_t coming_pages;
};

/* Send a message of at most KEEL_MESSAGE_BYTES, with the directory's version, to a node; it may be lost. */
typedef void keel_directory_send(void *context, uint16_t node, const void *data, uint32_t bytes);

/* *directory is zeroed. `version`: launcher: what an earlier one of this run did not come to; else 0. */
void keel_directory_init(struct keel_directory *directory, uint16_t self, uint32_t version);
/* This node keeps it from now on, in another's place; its own process is at `here`, and has `tag`. `gap`: by
 * chance, and more than one keeper counts before the next begins. */
void keel_directory_keep(struct keel_directory *directory, const struct keel_net_place *here, uint32_t tag,
                         uint32_t gap);

/* Where a node is, as its own word has it: of who let this one in, before any directory came. */
void keel_directory_know(struct keel_directory *directory, uint16_t node, const struct keel_net_place *place,
                         uint32_t tag);

/* Keeper: for each datagram that proved itself: `node` is at `place`, its process has `tag`, and it has
 * `version` whole. */
void keel_directory_hear(struct keel_directory *directory, uint16_t node, const struct keel_net_place *place,
                         uint32_t tag, uint32_t version, uint64_t now_ns, keel_directory_send *send,
                         void *context);

/* Others: a message of the keeper's, of `version`. What is malformed, or older than what is here, changes
 * nothing. */
void keel_directory_take(struct keel_directory *directory, const uint8_t *data, uint32_t bytes,
                         uint32_t version);

#endif
