/* save_rate.h - how fast chunks are encoded and written, and whether encoding pays. Integers only; any
 * thread: an average that two threads change at once loses one of the two measurements, which does no harm.
 */
#ifndef KEEL_CKPT_SAVE_RATE_H
#define KEEL_CKPT_SAVE_RATE_H

#include <stdbool.h>
#include <stdint.h>

/* Moving averages in nanoseconds a MiB, 0 while nothing is known. */
typedef _Atomic uint64_t keel_rate;

struct keel_save_rates {
    keel_rate encode[2][4]; /* planes, deltas; elements of 1, 2, 4, 8 bytes; per MiB raw */
    keel_rate write;        /* per MiB stored */
};

/* The average of encoding elements of 1, 2, 4 or 8 bytes. */
keel_rate *keel_rate_of(struct keel_save_rates *rates, bool delta, uint32_t element_bytes);

/* `bytes` took `spent_ns`: a new measurement moves the average by an eighth of the difference. */
void keel_rate_add(keel_rate *rate, uint64_t bytes, uint64_t spent_ns);

/* The time of writing a MiB, under a cap (0: none). */
uint64_t keel_rate_write_ns(const struct keel_save_rates *rates, uint64_t cap_bytes_s);

/* Encode a chunk of `raw_bytes`, while the writer has `queued_bytes` to do? Yes when it is busy for as long
 * as that takes: then the drain takes no longer, and less is to be written; or when nothing is known of it.
 */
bool keel_rate_pays(uint64_t encode_ns_mib, uint64_t raw_bytes, uint64_t write_ns_mib, uint64_t queued_bytes);

#endif
