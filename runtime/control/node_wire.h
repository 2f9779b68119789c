/* node_wire.h - control messages between nodes, as structs and as bytes.
 *
 * Owns the layout (little-endian, explicit, versioned by its magic) and the check that a message is well
 * formed; every number that is used as an index is within its limit after a decode. Leaves to others who
 * may say what (membership) and who is speaking (the agent's authenticated sockets). */
#ifndef KEEL_NODE_WIRE_H
#define KEEL_NODE_WIRE_H

#include "register.h"

/* A test of parts is built with small ones. */
#ifndef KEEL_LIMIT_PART
#define KEEL_LIMIT_PART 15360
#define KEEL_LIMIT_VIEW 8000
#endif

enum {
    KEEL_WIRE_DETAIL_BYTES = KEEL_DETAIL_BYTES, /* text of a failure, whole: the next move comes last in it */
    KEEL_WIRE_NOTE_BYTES = 1024,
    KEEL_WIRE_PART_BYTES = KEEL_LIMIT_PART, /* of a view, or of the register's value: the last has the rest */
    KEEL_WIRE_PARTS_MAX = (KEEL_VIEW_BYTES_MAX + KEEL_WIRE_PART_BYTES - 1) / KEEL_WIRE_PART_BYTES,
    KEEL_WIRE_VIEW_BYTES = KEEL_LIMIT_VIEW, /* a view, or what is other in it, that is told at once */
    /* Of a node, in a status: out of reach by counting restarts, and its successor can still be started. */
    KEEL_WIRE_INCARNATION_MAX = 1 << 23
};

enum keel_wire_kind {
    KEEL_WIRE_STATUS = 1, /* node to leader: all that it knows of its workers, and of the run */
    KEEL_WIRE_LEADER,     /* leader to node: where the run stands */
    KEEL_WIRE_STEP,       /* agent to leader: a step record */
    KEEL_WIRE_SHARD,      /* agent to leader: a shard of a snapshot is durable; until acknowledged */
    KEEL_WIRE_SHARD_ACK,  /* leader to agent */
    KEEL_WIRE_NOTE,       /* agent to leader: text for events.jsonl; until LEADER has its number */
    KEEL_WIRE_BEAT,       /* agent to its successor in the ring: I live */
    KEEL_WIRE_REGISTER,   /* between proposer and holders: struct keel_register_message, or a part of it */
    KEEL_WIRE_VIEW,       /* from who has a view: here it is, or what is other in it, or ask for its parts */
    KEEL_WIRE_PULL,       /* to who has a view: send these parts of it */
    KEEL_WIRE_PART,       /* a part of a view */
    KEEL_WIRE_PAST,       /* leader to holders: what the next one must know */
    KEEL_WIRE_AWAY,       /* leader and agent: which nodes are to be away, to who has an older version */
    KEEL_WIRE_KIND_COUNT
};

enum keel_worker_state {
    KEEL_WORKER_OFF,      /* no process; it will be started (again) */
    KEEL_WORKER_STARTING, /* process runs, not ready */
    KEEL_WORKER_READY,
    KEEL_WORKER_DONE,   /* all its steps done, all its shards and notes known to the launcher */
    KEEL_WORKER_FAILED, /* gave up with a status that a restart does not cure */
    KEEL_WORKER_GONE,   /* ended and will not be started again */
    KEEL_WORKER_STATE_COUNT
};

struct keel_wire_worker {
    uint32_t incarnation;
    enum keel_worker_state state;
    enum keel_cause cause;    /* why it is OFF or GONE */
    enum keel_status failure; /* when FAILED */
    uint64_t sent_epoch;      /* newest view it was handed; 0: none, it is fresh */
    uint64_t progress;
    uint64_t accused_epoch; /* 0: it accuses nobody */
    uint16_t accused_rank;
    struct keel_address address;
};

struct keel_wire_status {
    struct keel_ballot term; /* the highest that it knows */
    uint64_t next_step;      /* that the leader of it wants: those before are delivered */
    bool stopping;           /* the user asked for the end */
    uint64_t away;           /* version of the nodes that are to be away; 0: none ever was */
    uint32_t incarnation;    /* of the node */
    uint64_t sequence;       /* grows within the incarnation; older ones are dropped */
    bool ended;              /* its workers are gone, it ends */
    uint32_t disk;           /* by which it would hold the register; KEEL_DISK_NONE: it cannot */
    uint16_t silent_node;    /* predecessor in the ring that is silent; KEEL_RANK_NONE: none */
    uint64_t first_record;   /* lowest step record held that the launcher lacks; UINT64_MAX: none */
    bool has_newest;
    struct keel_step_record newest; /* newest step record, to compare the bits of all nodes */
    uint8_t worker_count;
    struct keel_wire_worker workers[KEEL_WORKERS_PER_NODE];
    char detail[KEEL_WIRE_DETAIL_BYTES]; /* of the first worker that FAILED, else of the newest that was lost
                                          */
};

struct keel_wire_leader {
    struct keel_ballot term; /* by which it leads */
    uint64_t first_step;     /* of this life of the run */
    uint64_t next_step;      /* wanted next */
    uint64_t lacks_to;       /* records from next_step on are missing up to this one; UINT64_MAX: all are */
    bool missing;            /* send those at once */
    bool stop;               /* orderly end: workers finish the step */
    bool end;                /* the run is over: `status`, `detail` */
    bool leave;              /* this node alone leaves: its agent ends */
    uint64_t note;           /* number of the newest note that came from this agent; 0: none */
    uint64_t away;           /* version of the nodes that are to be away; 0: none ever was */
    enum keel_status status;
    char detail[KEEL_WIRE_DETAIL_BYTES];
};

struct keel_wire_shard { /* SHARD; an acknowledgement has no summary */
    uint8_t local;
    uint64_t step, attempt;
    struct keel_shard_summary summary;
};

struct keel_wire_note {
    uint64_t number; /* of its agent, ascending: (incarnation of the node << 32) + how many it made */
    uint8_t local;
    uint16_t bytes;
    uint8_t data[KEEL_WIRE_NOTE_BYTES];
};

struct keel_wire_register {
    struct keel_register_head head;
    uint32_t value_bytes; /* of the whole value */
    uint8_t part;         /* which of its parts `data` is */
    uint8_t data[KEEL_WIRE_PART_BYTES];
};

/* A view, told from every other by epoch and digest of its bytes. */
struct keel_wire_view_name {
    uint64_t epoch, digest;
    uint32_t bytes;
};

struct keel_wire_view {
    struct keel_wire_view_name name;
    uint16_t source;     /* who has its parts */
    uint64_t base;       /* `data` is what is other than in the view of this epoch; 0: the view whole */
    uint16_t data_bytes; /* 0: ask for its parts */
    /* To whom the receiver hands it on: have_count nodes that have the view `base`, then lack_count others.
     */
    uint16_t have_count, lack_count;
    uint8_t data[KEEL_WIRE_VIEW_BYTES];
    uint16_t nodes[KEEL_NODES_MAX];
};

struct keel_wire_pull {
    struct keel_wire_view_name name;
    uint8_t first;  /* the lowest part that is wanted; */
    uint64_t parts; /* bit i: part first + i is */
};

struct keel_wire_part {
    struct keel_wire_view_name name;
    uint8_t part;
    uint8_t data[KEEL_WIRE_PART_BYTES];
};

struct keel_wire_past {
    uint64_t step; /* as of this one */
    uint16_t bytes;
    uint8_t data[KEEL_PAST_BYTES_MAX];
};

struct keel_wire_away {
    uint64_t version;
    uint16_t count;
    uint16_t nodes[KEEL_NODES_MAX]; /* from 1 on, ascending */
};

struct keel_wire_message {
    enum keel_wire_kind kind;
    uint64_t epoch; /* of the newest view that the sender knows */
    union {
        struct keel_wire_status status;
        struct keel_wire_leader leader;
        struct keel_step_record step;
        struct keel_wire_shard shard;
        struct keel_wire_note note;
        struct keel_wire_register reg;
        struct keel_wire_view view;
        struct keel_wire_pull pull;
        struct keel_wire_part part;
        struct keel_wire_past past;
        struct keel_wire_away away;
    } as;
};

/* How many parts so many bytes have, and how long one of them is. */
uint32_t keel_wire_parts(uint32_t bytes);
uint32_t keel_wire_part_bytes(uint32_t bytes, uint32_t part);

/* An empty message of this kind: all zero, but for long arrays, which are as they were until they are filled
 * in. */
void keel_wire_clear(struct keel_wire_message *message, enum keel_wire_kind kind);

/* `out` holds KEEL_MESSAGE_BYTES; returns the bytes written. */
uint32_t keel_wire_encode(const struct keel_wire_message *message, uint8_t *out);
/* False for anything but a well-formed message, whose every byte was used; *out is undefined then. */
bool keel_wire_decode(const uint8_t *data, uint32_t bytes, struct keel_wire_message *out);

#endif
