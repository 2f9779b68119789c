/* save_rate.c - moving averages, and the one decision that is made by them. */
#include "save_rate.h"
#include <keel/clock.h>
#include <stdatomic.h>

enum { MIB = 1 << 20, WEIGHT = 8 };

/* Longer than this for a MiB is this: the products below stay within 64 bits. */
static const uint64_t slowest_ns = UINT64_C(1) << 40;

keel_rate *keel_rate_of(struct keel_save_rates *rates, bool delta, uint32_t element_bytes)
{
    uint32_t width = element_bytes == 8 ? 3 : element_bytes / 2;
    return &rates->encode[delta ? 1 : 0][width];
}

static uint64_t bounded(uint64_t ns)
{
    return ns < slowest_ns ? ns : slowest_ns;
}

void keel_rate_add(keel_rate *rate, uint64_t bytes, uint64_t spent_ns)
{
    if (bytes == 0)
        return;
    uint64_t one = bounded(bounded(spent_ns) * MIB / bytes);
    uint64_t old = atomic_load_explicit(rate, memory_order_relaxed);
    uint64_t fresh = old == 0 ? one : old - old / WEIGHT + one / WEIGHT;
    atomic_store_explicit(rate, fresh > 0 ? fresh : 1, memory_order_relaxed);
}

uint64_t keel_rate_write_ns(const struct keel_save_rates *rates, uint64_t cap_bytes_s)
{
    uint64_t measured = atomic_load_explicit(&rates->write, memory_order_relaxed);
    uint64_t allowed = cap_bytes_s > 0 ? bounded(MIB * KEEL_NS_PER_S / cap_bytes_s) : 0;
    return measured > allowed ? measured : allowed;
}

bool keel_rate_pays(uint64_t encode_ns_mib, uint64_t raw_bytes, uint64_t write_ns_mib, uint64_t queued_bytes)
{
    return bounded(encode_ns_mib) * (raw_bytes / 4096 + 1) <= bounded(write_ns_mib) * (queued_bytes / 4096);
}
