/* region.h - memory that ranks of one host may read where it lies: what keel_transport_alloc gives.
 *
 * Owns the process's list of regions (each a memfd, sealed against shrinking) and the mapping of those that a
 * peer lent. A peer gets a descriptor that can only be read. Any thread; loans by one thread at a time. */
#ifndef KEEL_TRANSPORT_REGION_H
#define KEEL_TRANSPORT_REGION_H

#include <keel/status.h>
#include <keel/transport.h>
#include <stdbool.h>
#include <stdint.h>

enum { KEEL_REGIONS_MAX = 1024 };

struct keel_region_place {
    uint64_t region; /* never used again in this process */
    uint64_t offset;
};
/* Where [data, data + bytes) lies; false when not wholly in one region. */
bool keel_region_find(const void *data, uint64_t bytes, struct keel_region_place *out);
/* A descriptor to give away, for reading; the caller closes it. -1 when there is none. */
int keel_region_descriptor(uint64_t region, uint64_t *out_bytes);
bool keel_region_exists(uint64_t region);
/* Changes whenever a region was freed. */
uint64_t keel_region_generation(void);

/* A peer's region, mapped here. */
struct keel_loan {
    uint64_t region, bytes;
    const uint8_t *base;
};
/* CORRUPT when it is no sealed memory of that size. The descriptor stays the caller's. */
enum keel_status keel_loan_map(struct keel_loan *loan, int fd, uint64_t region, uint64_t bytes);
void keel_loan_unmap(struct keel_loan *loan);

#endif
