/* step_ranges.c - see step_ranges.h. */
#include "step_ranges.h"

#include <inttypes.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

enum { NAMED_MAX = 8 };

void keel_step_ranges_free(struct keel_step_ranges *ranges)
{
    keel_free(ranges->at);
    *ranges = (struct keel_step_ranges){.at = NULL};
}

static enum keel_status make_room(struct keel_step_ranges *ranges)
{
    if (ranges->count < ranges->capacity)
        return KEEL_OK;
    const uint64_t more = ranges->capacity * 2 + 8;
    KEEL_TRY(keel_realloc(&ranges->at, ranges->capacity, more, sizeof *ranges->at));
    ranges->capacity = more;
    return KEEL_OK;
}

/* `removed` of them, from that one on, are gone, and `range`, where there is one, stands there. */
static void replace(struct keel_step_ranges *ranges, uint64_t at, uint64_t removed,
                    const struct keel_step_range *range)
{
    const uint64_t added = range != NULL ? 1 : 0;
    memmove(ranges->at + at + added, ranges->at + at + removed,
            keel_size(ranges->count - at - removed) * sizeof *ranges->at);
    ranges->count = ranges->count + added - removed;
    if (range != NULL)
        ranges->at[at] = *range;
}

enum keel_status keel_step_ranges_add(struct keel_step_ranges *ranges, uint64_t first, uint64_t last)
{
    struct keel_step_range whole = {first, last};
    KEEL_TRY(make_room(ranges));
    uint64_t at = ranges->count;
    while (at > 0 && ranges->at[at - 1].last + 1 >= first) /* most come behind all others */
        at--;
    uint64_t behind = at;
    for (; behind < ranges->count && ranges->at[behind].first <= last + 1; behind++) {
        whole.first = ranges->at[behind].first < whole.first ? ranges->at[behind].first : whole.first;
        whole.last = ranges->at[behind].last > whole.last ? ranges->at[behind].last : whole.last;
    }
    replace(ranges, at, behind - at, &whole);
    return KEEL_OK;
}

enum keel_status keel_step_ranges_remove(struct keel_step_ranges *ranges, uint64_t first, uint64_t last)
{
    KEEL_TRY(make_room(ranges));
    for (uint64_t at = ranges->count; at > 0 && ranges->at[at - 1].last >= first; at--) {
        struct keel_step_range *range = &ranges->at[at - 1];
        const struct keel_step_range whole = *range, behind = {last + 1, whole.last};
        if (whole.first > last)
            continue;
        if (whole.last > last && whole.first < first)
            replace(ranges, at, 0, &behind);
        if (whole.first < first)
            range->last = first - 1;
        else if (whole.last > last)
            range->first = last + 1;
        else
            replace(ranges, at - 1, 1, NULL);
    }
    return KEEL_OK;
}

enum keel_status keel_step_ranges_copy(const struct keel_step_ranges *from, struct keel_step_ranges *to)
{
    if (from->count == 0)
        return KEEL_OK;
    KEEL_TRY(keel_alloc(keel_size(from->count), sizeof *to->at, &to->at));
    memcpy(to->at, from->at, keel_size(from->count) * sizeof *to->at);
    to->count = to->capacity = from->count;
    return KEEL_OK;
}

enum keel_status keel_step_ranges_subtract(struct keel_step_ranges *ranges,
                                           const struct keel_step_ranges *others)
{
    for (uint64_t i = 0; i < others->count; i++)
        KEEL_TRY(keel_step_ranges_remove(ranges, others->at[i].first, others->at[i].last));
    return KEEL_OK;
}

uint64_t keel_step_ranges_total(const struct keel_step_ranges *ranges)
{
    uint64_t steps = 0;
    for (uint64_t i = 0; i < ranges->count; i++)
        steps += ranges->at[i].last - ranges->at[i].first + 1;
    return steps;
}

void keel_step_ranges_text(const struct keel_step_ranges *ranges, char out[KEEL_STEP_RANGES_TEXT])
{
    const uint64_t steps = keel_step_ranges_total(ranges);
    int used = snprintf(out, KEEL_STEP_RANGES_TEXT, "%" PRIu64 " %s (", steps, steps == 1 ? "step" : "steps");
    for (uint64_t i = 0; i < ranges->count && i < NAMED_MAX; i++) {
        const struct keel_step_range *range = &ranges->at[i];
        used += snprintf(out + used, (size_t)(KEEL_STEP_RANGES_TEXT - used), "%s%" PRIu64, i > 0 ? ", " : "",
                         range->first);
        if (range->last > range->first)
            used += snprintf(out + used, (size_t)(KEEL_STEP_RANGES_TEXT - used), " to %" PRIu64, range->last);
    }
    if (ranges->count > NAMED_MAX)
        used += snprintf(out + used, (size_t)(KEEL_STEP_RANGES_TEXT - used), ", and %" PRIu64 " more holes",
                         ranges->count - NAMED_MAX);
    (void)snprintf(out + used, (size_t)(KEEL_STEP_RANGES_TEXT - used), ")");
}
