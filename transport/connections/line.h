/* line.h - lines: connections that carry messages, and the carriers that make them.
 *
 * Owns the one interface between those who talk (session.c, engine) and what carries: `fabric` or `rdm`
 * (libfabric, any host) and `shared` (memory shared by ranks of one host). An endpoint has one `struct
 * keel_lines`: all its carriers. All calls but open and close come from whoever owns the endpoint's progress,
 * one at a time. Promises: messages of a line arrive whole, once, in order, or the line breaks; a peer that
 * is killed breaks its lines within milliseconds; after keel_line_close nothing reads or writes memory lent
 * to keel_line_send. Leaves to session.c who may speak. */
#ifndef KEEL_TRANSPORT_LINE_H
#define KEEL_TRANSPORT_LINE_H

#include "cipher.h"

#include <poll.h>
#include <stdatomic.h>

struct keel_carrier;

enum keel_line_state { KEEL_LINE_OPENING, KEEL_LINE_OPEN, KEEL_LINE_CLOSED };

/* What all lines have; a carrier's own fields follow behind it. */
struct keel_line {
    struct keel_carrier *carrier;
    struct keel_line *next, *previous; /* among the carrier's lines, or in its graveyard */
    void *owner;                       /* the session; set by whoever dials or accepts */
    enum keel_line_state state;
    uint32_t bulk_in_flight;             /* sends that lend memory now */
    bool damaged;                        /* what came was not what was sent: why it broke */
    struct keel_cipher *sealer, *opener; /* of what goes and comes; NULL: a checksum if exposed */
};

/* What a carrier tells its user, from keel_lines_progress. A callee may close any line. */
struct keel_line_calls {
    /* Somebody connects; true takes the line (opened or broke will follow). */
    bool (*asked)(void *context, struct keel_line *line);
    void (*opened)(void *context, struct keel_line *line);
    /* payload is valid during the call. It may lie in memory that the peer can write: a hostile peer may
     * change it meanwhile, so decide nothing by reading it twice. The message is a copy. */
    void (*arrived)(void *context, struct keel_line *line, const struct keel_message *message,
                    const uint8_t *payload);
    /* Memory lent to this owner is free again (owner), or there is room where there was none (NULL). */
    void (*sent)(void *context, struct keel_line *line, void *owner);
    /* The line is gone: the callee closes it. Called once. */
    void (*broke)(void *context, struct keel_line *line, const char *why);
};

enum keel_send {
    KEEL_SEND_OK,    /* on its way; if the payload was lent, sent(owner) follows */
    KEEL_SEND_DONE,  /* on its way and copied: nothing is lent, sent(owner) does not follow */
    KEEL_SEND_LATER, /* no room: sent() will come, or *out_retry is set (try again after KEEL_RETRY_NS) */
    KEEL_SEND_BROKEN
};
/* Send header and payload (the magic is filled in). With `lent` false the payload is copied (at most
 * KEEL_EAGER_BYTES); with `lent` true (at most KEEL_CHUNK_BYTES) it may be lent until sent(owner) or
 * keel_line_close. */
enum keel_send keel_line_send(struct keel_line *line, struct keel_message *message, const void *payload,
                              bool lent, void *owner, bool *out_retry);
/* From now on what goes (or comes, not `outgoing`) is sealed. Takes the cipher. */
void keel_line_seal(struct keel_line *line, bool outgoing, struct keel_cipher *cipher);
/* Others than the two processes and their kernel could read or change what goes over it. */
bool keel_line_is_exposed(const struct keel_line *line);
/* To be asked in `arrived` after the payload was read and before anything is done with it: false when it may
 * have been memory that the peer takes back at this moment. Then the line is broken. */
bool keel_line_intact(const struct keel_line *line);
/* In `arrived`: the payload may be read where it lies after the call too, until it is released. What is kept
 * keeps its sender waiting: not for long. 0: it cannot be kept. Outside of
 * `arrived` nothing can: what is taken there was stored elsewhere. */
uint64_t keel_line_keep(struct keel_line *line);
/* Once, while the line is open. False as for intact: nothing that was read counts. */
bool keel_line_release(struct keel_line *line, uint64_t kept);
/* So much came behind what is kept that it keeps its sender from sending more. */
bool keel_line_is_crowded(const struct keel_line *line);
/* Give it up: nothing is delivered for it any more. Twice is fine within one progress. */
void keel_line_close(struct keel_line *line);

/* ---- addresses ----------------------------------------------------------------------------------------- */

/* What the opaque bytes of an address hold. */
struct keel_address_parts {
    uint8_t fabric[32]; /* as libfabric names it */
    uint8_t host[16];   /* hash of what makes a host: boot, network namespace, user; zero: no shared memory */
    uint8_t socket[16]; /* random: the name of a Unix socket in the abstract namespace */
};
static_assert(sizeof(struct keel_address_parts) == KEEL_ADDRESS_BYTES, "an address is a place");

struct keel_address_parts keel_place_of(const struct keel_address *address);
enum { KEEL_ADDRESS_TEXT_BYTES = 64 };
/* For messages: where the fabric finds it, "10.0.0.1:4000". */
void keel_address_text(const struct keel_address *address, char out[KEEL_ADDRESS_TEXT_BYTES]);

/* ---- the carriers of an endpoint ----------------------------------------------------------------------- */

enum { KEEL_CARRIERS_MAX = 2, KEEL_LINES_DESCRIPTORS_MAX = 4 };

struct keel_lines {
    struct keel_carrier *carriers[KEEL_CARRIERS_MAX]; /* in the order in which they are asked to dial */
    uint32_t carrier_count;
    uint32_t passes; /* of progress since the fabric was looked at */
};

/* Open all carriers that the configuration asks for, and listen. UNSUPPORTED, IO. The fabric is driven as its
 * provider wants it (provider.h). Shared memory that the
 * system refuses is done without. */
enum keel_status keel_lines_open(struct keel_lines *lines, const struct keel_endpoint_config *config,
                                 const struct keel_line_calls *calls, void *context);
void keel_lines_close(struct keel_lines *lines); /* closes what lines are left */
enum keel_status keel_lines_address(const struct keel_lines *lines, struct keel_address *out);

/* Begin to connect, over the first carrier that can reach the address. PEER_LOST when refused at once. */
enum keel_status keel_lines_dial(struct keel_lines *lines, const struct keel_address *address, void *owner,
                                 struct keel_line **out);
/* Deliver all that has happened. */
void keel_lines_progress(struct keel_lines *lines);
/* The same but for connections that come about, where a stranger could hold up whoever looks after them. */
void keel_lines_progress_data(struct keel_lines *lines);
/* May connections want attention? Cheap, and wrong now and then: data that comes may look the same. */
bool keel_lines_asked(const struct keel_lines *lines);
/* Before a sleep, each time: from now on peers ring. False when progress must run first. */
bool keel_lines_may_sleep(struct keel_lines *lines);
/* Where to sleep: fills `out` for poll(2), returns how many. They do not change. */
uint32_t keel_lines_descriptors(const struct keel_lines *lines,
                                struct pollfd out[KEEL_LINES_DESCRIPTORS_MAX]);
/* An epoch is over: lines that are left are its last words, or callers of a later one. What their carrier
 * needed for the epoch goes with the last of them. */
void keel_lines_renew(struct keel_lines *lines);
/* Adds the bytes and messages of all carriers. Any thread. */
void keel_lines_count(const struct keel_lines *lines, struct keel_transport_stats *stats);

/* ---- for carriers -------------------------------------------------------------------------------------- */

struct keel_carrier_ops {
    void (*close)(struct keel_carrier *carrier);
    /* NOT_FOUND: this carrier cannot reach that address, another may. */
    enum keel_status (*dial)(struct keel_carrier *carrier, const struct keel_address *address, void *owner,
                             struct keel_line **out);
    enum keel_send (*send)(struct keel_line *line, struct keel_message *message, const void *payload,
                           bool lent, void *owner, bool *out_retry);
    bool (*intact)(const struct keel_line *line); /* NULL: always */
    uint64_t (*keep)(struct keel_line *line);     /* NULL: never */
    bool (*release)(struct keel_line *line, uint64_t kept);
    bool (*crowded)(const struct keel_line *line); /* NULL: never */
    void (*hang_up)(struct keel_line *line); /* release what it holds; the line itself stays until buried */
    void (*progress)(struct keel_carrier *carrier);
    void (*progress_data)(struct keel_carrier *carrier); /* NULL: progress never waits for a stranger */
    bool (*asked)(const struct keel_carrier *carrier);   /* NULL likewise */
    bool (*may_sleep)(struct keel_carrier *carrier);
    uint32_t (*descriptors)(const struct keel_carrier *carrier, struct pollfd *out);
    enum keel_status (*place)(const struct keel_carrier *carrier, struct keel_address_parts *in_out);
    void (*renew)(struct keel_carrier *carrier); /* NULL: nothing is of an epoch */
    bool exposed; /* see keel_line_is_exposed: such a carrier seals and opens */
};

struct keel_carrier {
    const struct keel_carrier_ops *ops;
    const struct keel_line_calls *calls;
    void *context;
    struct keel_line *lines; /* open or opening */
    struct keel_line *dying; /* closed, still named by what the carrier has not delivered */
    uint32_t line_count;     /* of `lines` */
    _Atomic uint64_t bytes_sent, bytes_received, messages_sent, messages_received;
    _Atomic uint64_t forged; /* messages that did not open */
};

/* Connections of a carrier at once: a group's, as many of an older epoch that linger, as many that are early
 * for the next, and callers that are strangers or refused. */
enum { KEEL_LINES_MAX = 4 * KEEL_CONNECTIONS_MAX + 2 * KEEL_PENDING_MAX };

void keel_carrier_adopt(struct keel_carrier *carrier, struct keel_line *line);
/* Count a message: one writer, so no more than a load and a store. */
void keel_carrier_sent(struct keel_carrier *carrier, uint32_t payload_bytes);
void keel_carrier_received(struct keel_carrier *carrier, uint32_t payload_bytes);
/* Exposed carriers: put what vouches for header and payload into memory, and unless it is `lent` the payload
 * behind it. Sealed if the line is; `whole`: the payload is encrypted too, so it is not lent. Returns the
 * bytes before the payload. */
uint32_t keel_line_fold(struct keel_line *line, uint8_t *memory, const struct keel_message *message,
                        const void *payload, bool lent, bool whole);
/* The payload of what came, and its header copied; NULL: it is no message, and why; or the line is `damaged`.
 * `whole`: payloads have to be encrypted if the line is sealed. */
const uint8_t *keel_line_unfold(struct keel_line *line, uint8_t *memory, size_t bytes, bool whole,
                                struct keel_message *out, const char **out_why);
/* Takes the first line off a list; NULL when it is empty. */
struct keel_line *keel_line_take(struct keel_line **list);
/* Tell the user that it broke, unless it is closed; the user closes it. */
void keel_line_broke(struct keel_line *line, const char *why);

#endif
