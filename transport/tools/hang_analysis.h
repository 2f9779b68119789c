/* hang_analysis.h - whom everybody waits for: judged from recordings.
 *
 * Pure: recordings in, a verdict out. A rank that waits points at the ranks it waits for; what a stopped or
 * dead rank last waited for does not matter any more, and one that has not begun waits for nobody. So the
 * pointers end at those to blame: whoever is reached from the most ranks is named first. Pointers that end
 * nowhere are a circle, and that is said. */
#ifndef KEEL_TRANSPORT_WHO_H
#define KEEL_TRANSPORT_WHO_H

#include "recording.h"

enum { KEEL_HANG_ANALYSIS_CULPRITS_MAX = 8 };

/* Where a rank is in the operation. The order is that of blame among those equally waited for. */
enum keel_hang_analysis_state {
    KEEL_HANG_ANALYSIS_DEAD,
    KEEL_HANG_ANALYSIS_STOPPED,
    KEEL_HANG_ANALYSIS_NOT_BEGUN,
    KEEL_HANG_ANALYSIS_UNSEEN, /* no recording of it was given */
    KEEL_HANG_ANALYSIS_FAILED, /* ended the operation with a status that is not OK */
    KEEL_HANG_ANALYSIS_LEFT,   /* closed the group */
    KEEL_HANG_ANALYSIS_WORKING,
    KEEL_HANG_ANALYSIS_WAITING,
    KEEL_HANG_ANALYSIS_DONE,
    KEEL_HANG_ANALYSIS_STATE_COUNT
};
const char *keel_hang_analysis_state_text(enum keel_hang_analysis_state state);

struct keel_hang_analysis_rank {
    enum keel_hang_analysis_state state;
    const struct keel_recording *recording;        /* NULL: unseen */
    const struct keel_record_operation *operation; /* NULL: unseen, not begun, or forgotten */
    const struct keel_record_event *last;          /* newest event of the group; NULL: none */
    uint32_t waited_by;                            /* ranks that wait for it, directly or through others */
};

struct keel_hang_analysis_group {
    uint64_t identity, epoch;
    uint32_t rank_count;
    struct keel_hang_analysis_rank *ranks; /* rank_count; heap */
    const struct keel_record_operation
        *operation;         /* the oldest that is not over; NULL: nothing is in flight */
    uint32_t owner;         /* the rank of which `operation` is */
    uint32_t in_flight;     /* operations that somebody has begun and not ended */
    uint32_t waiting_count; /* ranks that wait in `operation` */
    uint32_t segment;       /* lowest that a living rank has not finished */
    bool living;            /* of some rank that is not dead there is a recording */
    bool moves;             /* somebody got on between the two looks */
    uint32_t culprits[KEEL_HANG_ANALYSIS_CULPRITS_MAX]; /* ranks, most waited for first */
    uint32_t culprit_count;                             /* 0 while ranks wait: they wait for each other */
};

struct keel_hang_analysis {
    struct keel_hang_analysis_group
        *groups; /* owned; a run whose ranks share slices has two a data position */
    size_t group_count, group_capacity;
};

/* Judge all groups that are open in a recording. The recordings stay in use by *out. NO_MEMORY. */
enum keel_status keel_hang_analysis_judge(const struct keel_recordings *recordings,
                                          struct keel_hang_analysis *out);
void keel_hang_analysis_free(struct keel_hang_analysis *who);

/* "rank 2 (process 4711 on host a) is stopped; 3 ranks wait for it in all-reduce 17 (...), segment 3 of 16"
 */
void keel_hang_analysis_culprit_text(const struct keel_hang_analysis_group *group, uint32_t rank, char *out,
                                     size_t out_bytes);
/* How long ago that moment of the recording was, also of another machine's. */
uint64_t keel_hang_analysis_age_ns(const struct keel_recording *recording, uint64_t at_ns);

#endif
