/* node_wire.h - control messages between nodes, as structs and as bytes.
 *
 * Owns the layout (little-endian, explicit, versioned by its magic) and the check that a message is well
 * formed; every number that is used as an index is within its limit after a decode. Leaves to others who
 * may say what (membership) and who is speaking (the agent's authenticated sockets). */
#ifndef KEEL_NODE_WIRE_H
#define KEEL_NODE_WIRE_H

#include "register.h"

enum {
    KEEL_WIRE_DETAIL_BYTES = KEEL_DETAIL_BYTES, /* text of a failure, whole: the next move comes last in it */
    KEEL_WIRE_NOTE_BYTES = 1024,
    /* Of a node, in a status: out of reach by counting restarts, and its successor can still be started. */
    KEEL_WIRE_INCARNATION_MAX = 1 << 23
};

enum keel_wire_kind {
    KEEL_WIRE_STATUS = 1, /* agent to launcher: all that it knows of its workers */
    KEEL_WIRE_LEADER,     /* launcher to agent: where the run stands, and the view when it is news */
    KEEL_WIRE_STEP,       /* agent to launcher: a step record */
    KEEL_WIRE_SHARD,      /* agent to launcher: a shard of a snapshot is durable; until acknowledged */
    KEEL_WIRE_SHARD_ACK,  /* launcher to agent */
    KEEL_WIRE_NOTE,       /* agent to launcher: text for events.jsonl; until LEADER has its number */
    KEEL_WIRE_BEAT,       /* agent to its successor in the ring: I live */
    KEEL_WIRE_REGISTER,   /* between proposer and holders: struct keel_register_message */
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
    uint32_t incarnation;  /* of the node */
    uint64_t sequence;     /* grows within the incarnation; older ones are dropped */
    bool ended;            /* its workers are gone, it ends */
    uint16_t silent_node;  /* predecessor in the ring that is silent; KEEL_RANK_NONE: none */
    uint64_t first_record; /* lowest step record held that the launcher lacks; UINT64_MAX: none */
    bool has_newest;
    struct keel_step_record newest; /* newest step record, to compare the bits of all nodes */
    uint8_t worker_count;
    struct keel_wire_worker workers[KEEL_WORKERS_PER_NODE];
    char detail[KEEL_WIRE_DETAIL_BYTES]; /* of the first worker that FAILED, else of the newest that was lost
                                          */
};

struct keel_wire_leader {
    uint64_t next_step; /* wanted next */
    bool missing;       /* records from next_step on are missing: send them at once */
    bool stop;          /* orderly end: workers finish the step */
    bool end;           /* the run is over: `status`, `detail` */
    bool has_view;
    uint64_t note; /* number of the newest note that came from this agent; 0: none */
    enum keel_status status;
    char detail[KEEL_WIRE_DETAIL_BYTES];
    struct keel_view view;
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

struct keel_wire_message {
    enum keel_wire_kind kind;
    uint64_t epoch; /* of the newest view that the sender knows */
    union {
        struct keel_wire_status status;
        struct keel_wire_leader leader;
        struct keel_step_record step;
        struct keel_wire_shard shard;
        struct keel_wire_note note;
        struct keel_register_message reg;
    } as;
};

/* An empty message of this kind: all zero, but for a view and a register's value, which are as they were
 * until they are filled in. */
void keel_wire_clear(struct keel_wire_message *message, enum keel_wire_kind kind);

/* `out` holds KEEL_MESSAGE_BYTES; returns the bytes written. */
uint32_t keel_wire_encode(const struct keel_wire_message *message, uint8_t *out);
/* False for anything but a well-formed message, whose every byte was used; *out is undefined then. */
bool keel_wire_decode(const uint8_t *data, uint32_t bytes, struct keel_wire_message *out);

#endif
