/* memory.c - counted host memory. Sizes come from the allocator, so no header is put before blocks and
 * aligned blocks are freed like all others. */
#include <keel/memory.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_uint_fast64_t allocations, live_blocks, live_bytes, peak_bytes;

static void count_in(void *pointer)
{
    atomic_fetch_add(&allocations, 1);
    atomic_fetch_add(&live_blocks, 1);
    uint64_t bytes = malloc_usable_size(pointer);
    uint64_t live = atomic_fetch_add(&live_bytes, bytes) + bytes;
    uint64_t peak = atomic_load(&peak_bytes);
    while (live > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, live)) {
    }
}

static enum keel_status no_memory(uint64_t count, uint64_t item_bytes)
{
    (void)keel_fail(KEEL_NO_MEMORY,
                    "cannot allocate %llu x %llu bytes of host memory; close other programs or ask for less",
                    (unsigned long long)count, (unsigned long long)item_bytes);
    return KEEL_NO_MEMORY; /* said plainly for static analysis */
}

static void store(void *pointer_address, void *pointer)
{
    memcpy(pointer_address, &pointer, sizeof pointer);
}

enum keel_status keel_alloc(uint64_t count, uint64_t item_bytes, void *out_pointer_address)
{
    void *pointer = NULL;
    if (count <= SIZE_MAX && item_bytes <= SIZE_MAX)
        pointer = calloc(count > 0 ? (size_t)count : 1, item_bytes > 0 ? (size_t)item_bytes : 1);
    if (pointer == NULL)
        return no_memory(count, item_bytes);
    count_in(pointer);
    store(out_pointer_address, pointer);
    return KEEL_OK;
}

enum keel_status keel_alloc_aligned(size_t alignment, uint64_t bytes, void *out_pointer_address)
{
    KEEL_ASSERT(alignment > 0 && (alignment & (alignment - 1)) == 0);
    void *pointer = NULL;
    if (alignment < sizeof(void *))
        alignment = sizeof(void *);
    if (bytes > SIZE_MAX || posix_memalign(&pointer, alignment, bytes > 0 ? (size_t)bytes : 1) != 0)
        return no_memory(1, bytes);
    memset(pointer, 0, (size_t)bytes);
    count_in(pointer);
    store(out_pointer_address, pointer);
    return KEEL_OK;
}

enum keel_status keel_realloc(void *pointer_address, uint64_t old_count, uint64_t new_count,
                              uint64_t item_bytes)
{
    void *old;
    memcpy(&old, pointer_address, sizeof old);
    void *fresh = NULL;
    KEEL_TRY(keel_alloc(new_count, item_bytes, &fresh));
    uint64_t kept = old_count < new_count ? old_count : new_count;
    if (old != NULL && kept > 0)
        memcpy(fresh, old, keel_size(kept * item_bytes));
    keel_free(old);
    store(pointer_address, fresh);
    return KEEL_OK;
}

enum keel_status keel_grow(void *pointer_address, size_t *capacity, size_t wanted, size_t item_bytes)
{
    size_t larger = *capacity > 0 ? *capacity : 64;
    if (wanted <= *capacity)
        return KEEL_OK;
    while (larger < wanted)
        larger *= 2;
    KEEL_TRY(keel_realloc(pointer_address, *capacity, larger, item_bytes));
    *capacity = larger;
    return KEEL_OK;
}

void keel_free(void *pointer)
{
    if (pointer == NULL)
        return;
    atomic_fetch_sub(&live_blocks, 1);
    atomic_fetch_sub(&live_bytes, malloc_usable_size(pointer));
    free(pointer);
}

enum keel_status keel_strdup(const char *text, char **out)
{
    size_t bytes = strlen(text) + 1;
    char *copy = NULL;
    KEEL_TRY(keel_alloc(1, bytes, &copy));
    memcpy(copy, text, bytes);
    *out = copy;
    return KEEL_OK;
}

struct keel_memory_stats keel_memory_stats(void)
{
    return (struct keel_memory_stats){.allocations = atomic_load(&allocations),
                                      .live_blocks = atomic_load(&live_blocks),
                                      .live_bytes = atomic_load(&live_bytes),
                                      .peak_bytes = atomic_load(&peak_bytes)};
}
