/* copy.h - copying what this processor will not look at again soon.
 *
 * A store that goes past the caches spares the memory a read (of the connection that is about to be
 * overwritten) and the caches what nobody asks for. As memcpy in everything else. Pure. */
#ifndef KEEL_TRANSPORT_COPY_H
#define KEEL_TRANSPORT_COPY_H

#include <stdint.h>

enum {
    KEEL_COPY_AWAY_BYTES = 8 * 1024 * 1024
}; /* of a whole vector: shorter ones are better kept in caches */

void keel_copy_away(void *out, const void *in, uint64_t bytes);

#endif
