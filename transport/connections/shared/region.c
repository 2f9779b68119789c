/* region.c - the list of regions, and loans. */
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <keel/memory.h>
#include <keel/thread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct region {
    uint8_t *base;
    uint64_t bytes, number;
    int fd;
};

/* All by the lock but the atomics. */
static struct {
    struct keel_mutex lock;
    struct region regions[KEEL_REGIONS_MAX]; /* ascending by base */
    uint64_t last_number;
    _Atomic uint32_t count;
    _Atomic uint64_t generation;
} list = {.lock = {PTHREAD_MUTEX_INITIALIZER}};

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

/* ---- the list ------------------------------------------------------------------------------------------ */

/* The first region that begins above it. */
static uint32_t above(const uint8_t *at)
{
    uint32_t low = 0, high = atomic_load(&list.count);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (list.regions[middle].base > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static const struct region *by_number(uint64_t number)
{
    for (uint32_t k = 0; k < atomic_load(&list.count); k++)
        if (list.regions[k].number == number)
            return &list.regions[k];
    return NULL;
}

static enum keel_status enlist(struct region region)
{
    enum keel_status status = KEEL_OK;
    keel_mutex_lock(&list.lock);
    uint32_t count = atomic_load(&list.count), at = above(region.base);
    if (count == KEEL_REGIONS_MAX) {
        status =
            keel_fail(KEEL_LIMIT, "transport memory: there are %d regions already; ask for fewer, larger",
                      KEEL_REGIONS_MAX);
    } else {
        region.number = ++list.last_number;
        memmove(&list.regions[at + 1], &list.regions[at], (count - at) * sizeof region);
        list.regions[at] = region;
        atomic_store(&list.count, count + 1);
    }
    keel_mutex_unlock(&list.lock);
    return status;
}

static struct region delist(uint8_t *base)
{
    keel_mutex_lock(&list.lock);
    uint32_t count = atomic_load(&list.count), at = above(base);
    KEEL_ASSERT(at > 0 && list.regions[at - 1].base == base);
    struct region region = list.regions[at - 1];
    memmove(&list.regions[at - 1], &list.regions[at], (count - at) * sizeof region);
    atomic_store(&list.count, count - 1);
    atomic_fetch_add(&list.generation, 1);
    keel_mutex_unlock(&list.lock);
    return region;
}

enum keel_status keel_transport_alloc(uint64_t bytes, void *out_pointer_address)
{
    struct region region = {.bytes = keel_round_up(bytes > 0 ? bytes : 1, KEEL_PAGE_BYTES)};
    if (bytes > PTRDIFF_MAX / 2)
        return keel_fail(KEEL_LIMIT, "transport memory: %llu bytes cannot be", (unsigned long long)bytes);
    region.fd = memfd_create("keel-region", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (region.fd < 0)
        return keel_fail_errno(errno, "transport memory: making a region");
    void *base = MAP_FAILED;
    if (ftruncate(region.fd, (off_t)region.bytes) == 0 && fcntl(region.fd, F_ADD_SEALS, SEALS) == 0)
        base = mmap(NULL, keel_size(region.bytes), PROT_READ | PROT_WRITE, MAP_SHARED, region.fd, 0);
    enum keel_status status = KEEL_OK;
    if (base == MAP_FAILED)
        status = keel_fail_errno(errno, "transport memory: %llu bytes", (unsigned long long)bytes);
    region.base = base;
    if (status == KEEL_OK)
        status = enlist(region);
    if (status != KEEL_OK) {
        if (base != MAP_FAILED)
            munmap(base, keel_size(region.bytes));
        close(region.fd);
        return status;
    }
    memcpy(out_pointer_address, &base, sizeof base);
    return KEEL_OK;
}

void keel_transport_free(void *memory)
{
    if (memory == NULL)
        return;
    struct region region = delist(memory);
    munmap(region.base, keel_size(region.bytes));
    close(region.fd);
}

bool keel_region_find(const void *data, uint64_t bytes, struct keel_region_place *out)
{
    const uint8_t *at = data;
    bool found = false;
    if (atomic_load(&list.count) == 0)
        return false;
    keel_mutex_lock(&list.lock);
    uint32_t next = above(at);
    if (next > 0) {
        const struct region *region = &list.regions[next - 1];
        uint64_t offset = (uint64_t)(at - region->base);
        found = offset < region->bytes && bytes <= region->bytes - offset;
        if (found)
            *out = (struct keel_region_place){.region = region->number, .offset = offset};
    }
    keel_mutex_unlock(&list.lock);
    return found;
}

int keel_region_descriptor(uint64_t region, uint64_t *out_bytes)
{
    char path[32];
    int fd = -1;
    keel_mutex_lock(&list.lock);
    const struct region *found = by_number(region);
    if (found != NULL) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", found->fd);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        *out_bytes = found->bytes;
    }
    keel_mutex_unlock(&list.lock);
    return fd;
}

bool keel_region_exists(uint64_t region)
{
    keel_mutex_lock(&list.lock);
    bool exists = by_number(region) != NULL;
    keel_mutex_unlock(&list.lock);
    return exists;
}

uint64_t keel_region_generation(void)
{
    return atomic_load_explicit(&list.generation, memory_order_relaxed);
}

/* ---- loans --------------------------------------------------------------------------------------------- */

enum keel_status keel_loan_map(struct keel_loan *loan, int fd, uint64_t region, uint64_t bytes)
{
    struct stat stat;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &stat) != 0 || bytes == 0 ||
        bytes > PTRDIFF_MAX || stat.st_size < 0 || (uint64_t)stat.st_size != bytes)
        return keel_fail(KEEL_CORRUPT, "transport memory: what the peer lent is no sealed memory");
    void *base = mmap(NULL, keel_size(bytes), PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return keel_fail_errno(errno, "transport memory: mapping a peer's %llu bytes",
                               (unsigned long long)bytes);
    *loan = (struct keel_loan){.region = region, .bytes = bytes, .base = base};
    return KEEL_OK;
}

void keel_loan_unmap(struct keel_loan *loan)
{
    void *base;
    memcpy(&base, &loan->base, sizeof base); /* munmap knows no const */
    munmap(base, keel_size(loan->bytes));
    *loan = (struct keel_loan){0};
}
