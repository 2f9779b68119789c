/* plan_words.c - what a table of plans says to people; apart from what makes one, which needs the engine. */
#include "plan_table.h"
#include <inttypes.h>
#include <stdio.h>

void keel_plan_table_describe(const struct keel_plan_table *table, char *out, size_t bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t n = 1; n <= table->ranks && used + 1 < bytes; n++) {
        const uint32_t first = n;
        if (table->numbers[n] == 0)
            continue;
        while (n < table->ranks && table->numbers[n + 1] != 0)
            n++;
        used +=
            (size_t)snprintf(out + used, bytes - used, n > first ? "%s%" PRIu32 " to %" PRIu32 : "%s%" PRIu32,
                             used == 0 ? "" : ", ", first, n);
    }
}
