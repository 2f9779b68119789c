/* recorder.h - the flight recorder: what an endpoint is doing, in a file that outlives it.
 *
 * Owns the format of a recording (below; the prose is in README.md), its writer, and the bound on old ones. A
 * recording is a mapped file of fixed size: the groups, every operation in flight with whom it waits for, and
 * a ring of the newest events. It can be read while the owner runs, is stopped, hangs, or is dead; it needs
 * no debugger's rights, no help of the owner, and costs no system call per operation. An orderly close
 * removes it.
 *
 * Threads. What is told of operations is told by whoever holds progress; groups come and go under the
 * endpoint's lock. Readers take no lock: see recording.h. Time is given by the caller, who has just read the
 * clock anyway. Leaves judging to hang_analysis.h. */
#ifndef KEEL_TRANSPORT_RECORDER_H
#define KEEL_TRANSPORT_RECORDER_H

#include <assert.h>
#include <keel/transport.h>
#include <stdatomic.h>

enum {
    KEEL_RECORD_VERSION = 1,
    KEEL_RECORD_GROUPS = 64,
    KEEL_RECORD_OPERATIONS = 512,
    KEEL_RECORD_EVENTS = 4096, /* a power of two */
    KEEL_RECORD_AWAITED = 16, /* ranks that an operation waits for, by number; the count says how many more */
    KEEL_RECORD_HOST_BYTES = 64,
    KEEL_RECORD_OLD_MAX = 16, /* recordings that dead processes of this user left behind, per directory */
    KEEL_RECORD_NONE = 0xffff /* no place: what is told about it is dropped */
};
#define KEEL_RECORD_MAGIC UINT64_C(0x31544c464c45454b) /* "KEELFLT1" */

/* Why an operation waits. */
enum keel_record_want {
    KEEL_RECORD_WANT_NOTHING, /* it does not: it computes or sends */
    KEEL_RECORD_WANT_FIRST,   /* a peer has not said that it began */
    KEEL_RECORD_WANT_DATA,    /* data of the segment */
    KEEL_RECORD_WANT_ROOM,    /* a grant: the peer's memory is full */
    KEEL_RECORD_WANT_SENT,    /* the connection backend has not taken what is to be sent */
    KEEL_RECORD_WANT_COUNT
};
enum keel_record_what {
    KEEL_RECORD_BEGAN = 1,
    KEEL_RECORD_FIRST,   /* first message of a peer */
    KEEL_RECORD_SEGMENT, /* all segments below this one are done; peer: who completed it */
    KEEL_RECORD_ENDED
};
enum keel_record_state { KEEL_RECORD_FREE, KEEL_RECORD_LIVE, KEEL_RECORD_OVER };

/* ---- the file: header, groups, operations, events; little-endian, each part 64-byte aligned ------------ */

struct keel_record_header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_bytes, group_bytes, group_count, operation_bytes, operation_count, event_bytes,
        event_count;
    uint32_t pid, number;    /* the owner; its how many-th recording */
    uint64_t start_ticks;    /* of the owner, as in /proc/PID/stat: a pid is used again, this pair is not */
    uint64_t opened_ns;      /* monotonic, as all times here */
    uint64_t opened_wall_ns; /* the same moment for people */
    _Atomic uint64_t event_total; /* events written since; the newest is at (event_total - 1) % event_count */
    _Atomic uint64_t progress_ns; /* last time that progress ran */
    char host[KEEL_RECORD_HOST_BYTES];
    uint8_t unused[104];
};
static_assert(sizeof(struct keel_record_header) == 256, "the header has a fixed size");

struct keel_record_group {
    uint64_t identity; /* the same on all ranks of the group, and of no other group */
    uint64_t epoch;
    _Atomic uint32_t state; /* enum keel_record_state */
    uint32_t rank, rank_count;
    uint32_t unused;
    uint64_t opened_ns, closed_ns;
    uint8_t unused_too[16];
};
static_assert(sizeof(struct keel_record_group) == 64, "a group has a fixed size");

struct keel_record_operation {
    _Atomic uint32_t turn; /* odd while it is being changed */
    uint32_t state;        /* enum keel_record_state */
    uint64_t sequence, bytes;
    uint64_t begun_ns, changed_ns; /* changed: began, heard a first message, finished a segment, ended */
    uint64_t ended_ns;
    uint16_t group; /* index */
    uint8_t kind, element, reduction, algorithm;
    uint16_t status;            /* over: enum keel_status */
    uint32_t root;              /* or the peer of send and receive */
    uint32_t segment, segments; /* lowest unfinished; how many (0: no data) */
    uint32_t first_count;       /* peers that have begun, as far as is known here */
    uint16_t want;              /* enum keel_record_want */
    uint16_t awaited_count;     /* how many ranks are awaited, of which the table names the first */
    uint16_t awaited[KEEL_RECORD_AWAITED];
    uint8_t unused[20];
};
static_assert(sizeof(struct keel_record_operation) == 128, "an operation has a fixed size");

struct keel_record_event {
    uint64_t at_ns, sequence;
    uint32_t segment;
    uint16_t group, peer; /* peer: KEEL_RECORD_NONE where there is none */
    uint16_t status;
    uint8_t what, kind; /* enum keel_record_what, enum keel_collective_kind */
    uint32_t unused;
};
static_assert(sizeof(struct keel_record_event) == 32, "an event has a fixed size");

struct keel_record {
    struct keel_record_header header;
    struct keel_record_group groups[KEEL_RECORD_GROUPS];
    struct keel_record_operation operations[KEEL_RECORD_OPERATIONS];
    struct keel_record_event events[KEEL_RECORD_EVENTS];
};

/* ---- the writer ---------------------------------------------------------------------------------------- */

struct keel_recorder;

/* Where recordings lie: $KEEL_NET_DIR, else $XDG_RUNTIME_DIR/keel, else /dev/shm/keel-UID, else
 * /tmp/keel-UID; `number` counts these from 0. False when there is no such. */
bool keel_recorder_directory(uint32_t number, char *out, size_t out_bytes);

/* Start a recording in `directory` (NULL: the first of the above where it can be). A recorder whose file
 * cannot be made records in its own memory, for describe, and says so in the log: evidence is no reason not
 * to work. NO_MEMORY. */
enum keel_status keel_recorder_open(const char *directory, struct keel_recorder **out);
void keel_recorder_close(struct keel_recorder *recorder); /* removes the file; NULL is fine */

/* What names a group on all its ranks: a hash over the ranks' addresses and the epoch. For a child, `parent`
 * is the parent's identity, addresses are NULL, and `epoch` is a number that its ranks agree on. */
uint64_t keel_recorder_identity(uint64_t parent, const struct keel_address *addresses, uint32_t rank_count,
                                uint64_t epoch);
/* A group's index is used again when it is closed; what was recorded before it opened was of the one before.
 * The index of the group for the calls below; KEEL_RECORD_NONE when the table is full of open ones. */
uint16_t keel_recorder_group_opened(struct keel_recorder *recorder, uint64_t identity, uint64_t epoch,
                                    uint32_t rank, uint32_t rank_count);
void keel_recorder_group_closed(struct keel_recorder *recorder, uint16_t group);

/* An operation begins: of `bytes` (of one rank's result, or parts where it has no result) in `segments`.
 * Returns its place for the calls below; ended gives the place back. KEEL_RECORD_NONE is accepted everywhere.
 */
uint16_t keel_recorder_began(struct keel_recorder *recorder, uint16_t group,
                             const struct keel_collective *collective, uint64_t bytes, uint32_t segments,
                             uint64_t now_ns);
void keel_recorder_first(struct keel_recorder *recorder, uint16_t place, uint32_t peer, uint64_t now_ns);
/* All segments below `segment` are done; `peer` said the last word (KEEL_RECORD_NONE: nobody). */
void keel_recorder_segment(struct keel_recorder *recorder, uint16_t place, uint32_t segment, uint32_t peer,
                           uint64_t now_ns);
/* Progress found nothing more to do for the operation, and is about to sleep: what it wants, and of whom
 * (`count` ranks, of which `ranks` holds the first KEEL_RECORD_AWAITED). Not in the ring: it says what is. */
void keel_recorder_waits(struct keel_recorder *recorder, uint16_t place, enum keel_record_want want,
                         const uint16_t *ranks, uint32_t count);
void keel_recorder_ended(struct keel_recorder *recorder, uint16_t place, enum keel_status status,
                         uint64_t now_ns);
/* Progress ran: once before it sleeps and once after it woke is enough. */
void keel_recorder_progress(struct keel_recorder *recorder, uint64_t now_ns);

/* The group's own view, for a status detail: "all-reduce 17 (1.0 MiB of f32) at segment 3 of 16 wants data of
 * ranks 2 and 5; begun 2.1 s ago, nothing moved for 2.0 s". Writes "" when the place is none. The caller
 * holds progress, or nobody else does. */
void keel_recorder_describe(const struct keel_recorder *recorder, uint16_t place, uint64_t now_ns, char *out,
                            size_t out_bytes);
const char *keel_record_want_text(uint32_t want); /* "its first message", ... */

#endif
