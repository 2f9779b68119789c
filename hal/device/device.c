/* device.c - an open device: its facts, closing it, and its buffers.
 *
 * Owns the checks of buffers that are the same on each backend, and the count of device memory. Discovery and
 * opening are in device_open.c, commands and events in device_queue.c, command lists in device_commands.c,
 * programs in device_program.c. */
#include "device_backend.h"
#include <inttypes.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

/* Memory of a device that does not answer is kept by who cannot know whether it is still written to. */
static bool may_keep_memory(struct keel_device *device)
{
    struct keel_health_report report;
    keel_device_health(device, &report);
    return report.health >= KEEL_HEALTH_HUNG;
}

void keel_device_close(struct keel_device *device)
{
    if (device == NULL)
        return;
    bool empty = atomic_load(&device->live_bytes) == 0;
    KEEL_ASSERT(empty || may_keep_memory(device)); /* children go before parents */
    if (!empty || atomic_load(&device->left_behind))
        return; /* the driver may still call back into it, or write there */
    keel_device_trace_stop(device);
    device->ops->close(device);
}

const char *keel_device_kind_name(enum keel_device_kind kind)
{
    static const char *const names[] = {[KEEL_DEVICE_HOST] = "host",
                                        [KEEL_DEVICE_CPU] = "cpu",
                                        [KEEL_DEVICE_GPU] = "gpu",
                                        [KEEL_DEVICE_ACCELERATOR] = "accelerator"};
    return names[kind];
}

const struct keel_device_info *keel_device_info(const struct keel_device *device)
{
    return &device->info;
}

struct keel_device_stats keel_device_stats(const struct keel_device *device)
{
    return (struct keel_device_stats){.live_bytes = atomic_load(&device->live_bytes),
                                      .peak_bytes = atomic_load(&device->peak_bytes),
                                      .allocations = atomic_load(&device->allocations)};
}

static void count_in(struct keel_device *device, uint64_t live)
{
    atomic_fetch_add(&device->allocations, 1);
    uint64_t peak = atomic_load(&device->peak_bytes);
    while (live > peak && !atomic_compare_exchange_weak(&device->peak_bytes, &peak, live)) {
    }
}

static void introduce(struct keel_device *device, struct keel_buffer *parent, uint64_t bytes,
                      struct keel_buffer *buffer)
{
    buffer->device = device;
    buffer->parent = parent;
    buffer->bytes = bytes;
    buffer->id = atomic_fetch_add(&device->next_buffer_id, 1) + 1;
}

static enum keel_status check_buffer_options(const struct keel_device_info *info,
                                             const struct keel_buffer_options *options)
{
    if (options->bytes == 0)
        return keel_fail(KEEL_INVALID, "%s: a buffer of 0 bytes; ask for at least 1", info->selector);
    if (options->bytes > info->max_buffer_bytes || options->bytes > SIZE_MAX)
        return keel_fail(KEEL_NO_MEMORY,
                         "%s: a buffer of %" PRIu64 " bytes; the device's limit for one is %" PRIu64,
                         info->selector, options->bytes, info->max_buffer_bytes);
    if (options->bank >= info->memory_banks)
        return keel_fail(KEEL_INVALID, "%s: a buffer in memory bank %" PRIu32 "; it has %" PRIu32,
                         info->selector, options->bank, info->memory_banks);
    if (options->memory == KEEL_MEMORY_SHARED && !info->unified_memory)
        return keel_fail(KEEL_UNSUPPORTED,
                         "%s: a buffer that host and device share; the device has memory of its own: use "
                         "pinned memory and copies",
                         info->selector);
    return KEEL_OK;
}

enum keel_status keel_buffer_create_in(struct keel_device *device, const struct keel_buffer_options *options,
                                       struct keel_buffer **out)
{
    const struct keel_device_info *info = &device->info;
    uint64_t bytes = options->bytes;
    KEEL_TRY(keel_device_check_usable(device));
    KEEL_TRY(check_buffer_options(info, options));
    uint64_t live = atomic_fetch_add(&device->live_bytes, bytes) + bytes;
    enum keel_status status = KEEL_OK;
    if (live > info->memory_bytes)
        status = keel_fail(KEEL_NO_MEMORY,
                           "%s: a buffer of %" PRIu64 " bytes on top of %" PRIu64 "; the device has %" PRIu64,
                           info->selector, bytes, live - bytes, info->memory_bytes);
    struct keel_buffer *buffer = NULL;
    if (status == KEEL_OK)
        status = device->ops->buffer_create(device, options, &buffer);
    if (status != KEEL_OK) {
        atomic_fetch_sub(&device->live_bytes, bytes);
        return status;
    }
    KEEL_ASSERT(buffer != NULL);
    count_in(device, live);
    introduce(device, NULL, bytes, buffer);
    *out = buffer;
    return KEEL_OK;
}

enum keel_status keel_buffer_create(struct keel_device *device, uint64_t bytes, struct keel_buffer **out)
{
    return keel_buffer_create_in(device, &(struct keel_buffer_options){.bytes = bytes}, out);
}

enum keel_status keel_buffer_wrap(struct keel_device *device, void *memory, uint64_t bytes,
                                  struct keel_buffer **out)
{
    const struct keel_device_info *info = &device->info;
    if (!info->unified_memory)
        return keel_fail(KEEL_UNSUPPORTED,
                         "%s: a buffer in host memory; the device has its own: use keel_buffer_create",
                         info->selector);
    if (bytes == 0 || bytes > info->max_buffer_bytes || (uintptr_t)memory % KEEL_PAGE_BYTES != 0)
        return keel_fail(KEEL_INVALID,
                         "%s: a buffer in %" PRIu64 " bytes of host memory; give it 1 to %" PRIu64
                         " at the start of a page",
                         info->selector, bytes, info->max_buffer_bytes);
    KEEL_TRY(keel_device_check_usable(device));
    struct keel_buffer *buffer = NULL;
    KEEL_TRY(device->ops->buffer_wrap(device, memory, bytes, &buffer));
    introduce(device, NULL, bytes, buffer);
    buffer->wrapped = memory;
    *out = buffer;
    return KEEL_OK;
}

enum keel_status keel_buffer_slice(struct keel_buffer *buffer, uint64_t offset_bytes, uint64_t bytes,
                                   struct keel_buffer **out)
{
    struct keel_device *device = buffer->device;
    if (buffer->parent != NULL)
        return keel_fail(KEEL_INVALID, "a slice of a slice; cut it from the buffer");
    if (bytes == 0 || offset_bytes > buffer->bytes || bytes > buffer->bytes - offset_bytes)
        return keel_fail(KEEL_INVALID, "slice of %" PRIu64 " bytes at %" PRIu64 " of a buffer of %" PRIu64,
                         bytes, offset_bytes, buffer->bytes);
    if (offset_bytes % device->info.base_align_bytes != 0)
        return keel_fail(KEEL_INVALID, "slice at %" PRIu64 ": %s wants a multiple of %" PRIu32, offset_bytes,
                         device->info.selector, device->info.base_align_bytes);
    struct keel_buffer *slice = NULL;
    KEEL_TRY(device->ops->buffer_slice(buffer, offset_bytes, bytes, &slice));
    KEEL_ASSERT(slice != NULL);
    atomic_fetch_add(&buffer->slices, 1);
    introduce(device, buffer, bytes, slice);
    slice->from_bytes = offset_bytes;
    *out = slice;
    return KEEL_OK;
}

/* Where a buffer begins: within the memory of the host if that was wrapped, else within its whole buffer. */
struct memory_place {
    const struct keel_buffer *whole; /* NULL: the host's */
    uint64_t at;
};

static struct memory_place place_of(const struct keel_buffer *buffer)
{
    const struct keel_buffer *whole = buffer->parent != NULL ? buffer->parent : buffer;
    if (whole->wrapped != NULL)
        return (struct memory_place){NULL, (uintptr_t)whole->wrapped + buffer->from_bytes};
    return (struct memory_place){whole, buffer->from_bytes};
}

bool keel_buffer_ranges_overlap(const struct keel_buffer *a, uint64_t a_offset_bytes, uint64_t a_bytes,
                                const struct keel_buffer *b, uint64_t b_offset_bytes, uint64_t b_bytes)
{
    const struct memory_place a_place = place_of(a), b_place = place_of(b);
    const uint64_t a_at = a_place.at + a_offset_bytes, b_at = b_place.at + b_offset_bytes;
    return a_place.whole == b_place.whole && a_bytes > 0 && b_bytes > 0 && a_at < b_at + b_bytes &&
           b_at < a_at + a_bytes;
}

bool keel_buffer_overlaps(const struct keel_buffer *a, const struct keel_buffer *b)
{
    return keel_buffer_ranges_overlap(a, 0, a->bytes, b, 0, b->bytes);
}

bool keel_buffer_begins_at(const struct keel_buffer *a, const struct keel_buffer *b)
{
    const struct memory_place a_place = place_of(a), b_place = place_of(b);
    return a_place.whole == b_place.whole && a_place.at == b_place.at;
}

void keel_buffer_destroy(struct keel_buffer *buffer)
{
    if (buffer == NULL)
        return;
    KEEL_ASSERT(atomic_load(&buffer->slices) == 0); /* slices go before their buffer */
    struct keel_device *device = buffer->device;
    if (buffer->parent != NULL) {
        KEEL_ASSERT(atomic_load(&buffer->parent->slices) > 0);
        atomic_fetch_sub(&buffer->parent->slices, 1);
    } else if (!buffer->wrapped) {
        KEEL_ASSERT(atomic_load(&device->live_bytes) >= buffer->bytes);
        atomic_fetch_sub(&device->live_bytes, buffer->bytes);
    }
    device->ops->buffer_destroy(buffer);
}

uint64_t keel_buffer_bytes(const struct keel_buffer *buffer)
{
    return buffer->bytes;
}
