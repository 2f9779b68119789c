/* memory.h - host memory: counted allocation.
 *
 * Every heap allocation of Keel goes through here, so that "no allocation after step 1" and
 * "planned peak equals observed peak" are counted facts. Any thread. */
#ifndef KEEL_MEMORY_H
#define KEEL_MEMORY_H

#include <keel/api.h>
#include <keel/status.h>
#include <stddef.h>
#include <stdint.h>

KEEL_API_BEGIN

enum { KEEL_PAGE_BYTES = 4096, KEEL_CACHE_LINE_BYTES = 64 };

/* `count` zeroed items of `item_bytes`; overflow-safe; *out unchanged on failure. NO_MEMORY: FIX.
 * Counts and sizes have 64 bits on every machine, so that a request above what 32-bit pointers reach is
 * refused here and not cut short on its way. The caller owns the memory and gives it back with keel_free.
 * Zero items give a valid pointer. */
enum keel_status keel_alloc(uint64_t count, uint64_t item_bytes, void *out_pointer_address);

/* The same, aligned to `alignment` (a power of two; KEEL_PAGE_BYTES for pinned or direct I/O). */
enum keel_status keel_alloc_aligned(size_t alignment, uint64_t bytes, void *out_pointer_address);

/* Grow or shrink, keeping the contents (not for aligned memory); new bytes are zero. *pointer is
 * updated only on success. old_count and new_count in items. */
enum keel_status keel_realloc(void *pointer_address, uint64_t old_count, uint64_t new_count,
                              uint64_t item_bytes);

/* Room for `wanted` items in the array at `pointer_address`, which has *capacity: at least doubled when it is
 * too small. NO_MEMORY. */
enum keel_status keel_grow(void *pointer_address, size_t *capacity, size_t wanted, size_t item_bytes);

/* NULL is accepted. */
void keel_free(void *pointer);

/* A heap copy of a string; free with keel_free. */
enum keel_status keel_strdup(const char *text, char **out);

struct keel_memory_stats {
    uint64_t allocations; /* calls since the process began */
    uint64_t live_blocks; /* allocated and not yet freed: exact */
    uint64_t live_bytes;  /* their sizes as the C library rounded them, which differs from call to call */
    uint64_t peak_bytes;  /* highest live_bytes */
};
struct keel_memory_stats keel_memory_stats(void);

/* What this process may have at most: the machine's memory, or less by its limit of address space (ulimit -v)
 * or that of its control group (version 2). Not what is free. */
uint64_t keel_memory_limit_bytes(void);

/* The size of something that lies in this process's memory, as the C library takes it. Asserts that it fits:
 * on a 32-bit machine a larger one was refused when the memory was asked for. */
static inline size_t keel_size(uint64_t bytes)
{
    KEEL_ASSERT(bytes <= SIZE_MAX);
    return (size_t)bytes;
}

/* a rounded up to a multiple of b (a power of two). */
static inline uint64_t keel_round_up(uint64_t a, uint64_t b)
{
    return (a + b - 1) & ~(b - 1);
}

KEEL_API_END

#endif
