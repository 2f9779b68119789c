/* node_records.c - see node_records.h. */
#include "node_records.h"

enum keel_record_fate keel_records_put(struct keel_records *records, const struct keel_step_record *record,
                                       uint64_t now_ns)
{
    struct keel_record_slot *slot = &records->slots[record->step % KEEL_RECORDS_MAX];
    if (slot->used && slot->record.step > record->step)
        return KEEL_RECORD_OLD;
    if (!slot->used || slot->record.step < record->step) {
        *slot = (struct keel_record_slot){.used = true, .since_ns = now_ns, .record = *record};
        const struct keel_step_record *newest = keel_records_newest(records);
        if (newest == NULL || newest->step <= record->step)
            records->newest = (uint32_t)(record->step % KEEL_RECORDS_MAX) + 1;
        KEEL_ASSERT(keel_records_get(records, record->step) == slot);
        return KEEL_RECORD_NEW;
    }
    KEEL_ASSERT(slot->record.step == record->step);
    bool same = slot->record.loss_bits == record->loss_bits && slot->record.digest == record->digest;
    if (same || slot->disputed)
        return KEEL_RECORD_SAME;
    slot->disputed = true;
    return KEEL_RECORD_DIFFERENT;
}

const struct keel_record_slot *keel_records_get(const struct keel_records *records, uint64_t step)
{
    const struct keel_record_slot *slot = &records->slots[step % KEEL_RECORDS_MAX];
    KEEL_ASSERT(!slot->used || slot->record.step % KEEL_RECORDS_MAX == step % KEEL_RECORDS_MAX);
    return slot->used && slot->record.step == step ? slot : NULL;
}

uint64_t keel_records_first(const struct keel_records *records, uint64_t step)
{
    const struct keel_step_record *newest = keel_records_newest(records);
    uint64_t first = UINT64_MAX;
    if (newest == NULL || newest->step < step) /* in a steady run at each beat */
        return first;
    for (uint32_t i = 0; i < KEEL_RECORDS_MAX; i++) {
        const struct keel_record_slot *slot = &records->slots[i];
        if (slot->used && slot->record.step >= step && slot->record.step < first)
            first = slot->record.step;
    }
    return first;
}

const struct keel_step_record *keel_records_newest(const struct keel_records *records)
{
    return records->newest == 0 ? NULL : &records->slots[records->newest - 1].record;
}
