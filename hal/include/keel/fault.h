/* fault.h - the one language of injected faults: drills of runs, faults of devices, defects of emulated
 * drivers.
 *
 *     PLAN   = FAULT, or several with `;` between them, and blanks behind it
 *     FAULT  = KIND:KEY=VALUE[,KEY=VALUE]...      a key that takes no value stands alone: kill:all,step=3
 *     WHEN   = N (the Nth time, from 1), N+ (that and all after it), N/M (that, and after it every Mth),
 *              * (all)
 *
 * A language is two tables: its kinds, and its keys with what they take and of which kinds they are. The
 * first keys are targets, what a fault is put on: a fault has exactly one, and each other key once at most.
 * The reader fills in structs of the language's owner and knows no more; what a fault does is its owner's
 * business. */
#ifndef KEEL_FAULT_H
#define KEEL_FAULT_H

#include <keel/api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KEEL_API_BEGIN

enum { KEEL_FAULT_WHY_BYTES = 192 };

/* When a fault is due. */
struct keel_fault_when {
    uint64_t first, every; /* at time `first`, and after it at every `every`th; 0: never again */
    uint64_t seen;         /* how often it has been asked */
};
/* Count one time; true when the fault is due at it. */
bool keel_fault_is_due(struct keel_fault_when *when);

enum keel_fault_type {
    KEEL_FAULT_ALONE,  /* no value: the target that is there says all */
    KEEL_FAULT_NUMBER, /* uint64_t, least to most: 5, 0x5, -5 (two's complement), 8k, 16m, 1g */
    KEEL_FAULT_WHEN,   /* struct keel_fault_when */
    KEEL_FAULT_NAME,   /* uint32_t: which one of `most` names; NULL where a number has none */
    KEEL_FAULT_TEXT    /* char[most]: not empty */
};

/* A row of a table of keys. Of kinds and targets there is a bit for each. */
struct keel_fault_key {
    const char *name; /* may stand in several rows, for different kinds */
    enum keel_fault_type type;
    size_t offset;          /* of the value, in the owner's struct */
    uint64_t kinds, needed; /* which have it, which cannot do without */
    uint64_t targets;       /* with which it goes; 0: with all */
    uint64_t least, most;
    const char *const *names;
};
#define KEEL_FAULT_ALL UINT64_MAX

/* The owner's struct begins with this. */
struct keel_fault_head {
    uint32_t kind, target; /* by the tables */
};

struct keel_fault_language {
    const char *const *kinds;
    const struct keel_fault_key *keys;
    uint32_t kind_count, key_count, target_count; /* 64 at most */
    const void *blank;                            /* the owner's struct before it is filled in, */
    size_t fault_bytes;                           /* and its size */
};

/* Read a plan into `out`, which has room for `most` faults. "" is a plan of none. False: `why` has the word
 * that is wrong and what is wanted, and `out` holds nothing of worth. Any thread; needs nothing else of Keel.
 */
bool keel_faults_read(const struct keel_fault_language *language, const char *text, void *out, uint32_t most,
                      uint32_t *out_count, char why[KEEL_FAULT_WHY_BYTES]);

KEEL_API_END

#endif
