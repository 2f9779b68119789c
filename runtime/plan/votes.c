/* votes.c - see votes.h. */
#include "votes.h"

#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

void keel_votes_sort(uint64_t *values, uint32_t count)
{
    qsort(values, count, sizeof *values, compare);
}

/* The first that is not below `value`, or is above it. */
static uint32_t find(const uint64_t *sorted, uint32_t count, uint64_t value, int above)
{
    uint32_t from = 0, to = count;
    while (from < to) {
        const uint32_t at = from + (to - from) / 2;
        if (sorted[at] < value || (above && sorted[at] == value))
            from = at + 1;
        else
            to = at;
    }
    return from;
}

uint32_t keel_votes_for(const uint64_t *sorted, uint32_t count, uint64_t value)
{
    return find(sorted, count, value, 1) - find(sorted, count, value, 0);
}

uint32_t keel_votes_most(const uint64_t *sorted, uint32_t count)
{
    uint32_t most = 0, same = 0;
    for (uint32_t i = 0; i < count; i++) {
        same = i > 0 && sorted[i] == sorted[i - 1] ? same + 1 : 1;
        most = same > most ? same : most;
    }
    return most;
}
