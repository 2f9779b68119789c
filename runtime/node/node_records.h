/* node_records.h - the last KEEL_RECORDS_MAX step records, by step.
 *
 * Agents keep them until the launcher has them; the launcher keeps them to deliver them in order, each
 * once, and to compare the bits of every further copy. Owns no time and sends nothing. */
#ifndef KEEL_NODE_RECORDS_H
#define KEEL_NODE_RECORDS_H

#include <keel/node.h>

struct keel_record_slot {
    bool used, disputed; /* disputed: a copy with other bits was reported */
    uint64_t since_ns;
    struct keel_step_record record;
};
struct keel_records {
    struct keel_record_slot slots[KEEL_RECORDS_MAX]; /* slot of a step: step % KEEL_RECORDS_MAX */
    uint32_t newest;                                 /* one more than the slot of the highest step; 0: none */
};

enum keel_record_fate {
    KEEL_RECORD_NEW,
    KEEL_RECORD_SAME,      /* another copy, equal bits */
    KEEL_RECORD_DIFFERENT, /* another copy, other bits, first time for this step: see keel_records_get */
    KEEL_RECORD_OLD        /* nothing to compare it with any more */
};
enum keel_record_fate keel_records_put(struct keel_records *records, const struct keel_step_record *record,
                                       uint64_t now_ns);

/* The record of `step`, or NULL. Valid until the next put. */
const struct keel_record_slot *keel_records_get(const struct keel_records *records, uint64_t step);
/* Lowest step >= `step` that is held; UINT64_MAX: none. */
uint64_t keel_records_first(const struct keel_records *records, uint64_t step);
/* The record with the highest step, or NULL. */
const struct keel_step_record *keel_records_newest(const struct keel_records *records);

#endif
