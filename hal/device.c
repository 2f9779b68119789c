/* device.c - the front of the device door: discovery over all backends, opening, buffers.
 *
 * Owns the checks that are the same on each backend and the count of device memory. Commands and
 * events are in device_queue.c, command lists in device_commands.c, programs in device_program.c, the choice
 * by selector is in device_select.c. */
#include "device_backend.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In order of preference; host is last, so it is last in every list. */
static const struct keel_backend *const backends[] = {&keel_opencl_backend, &keel_host_backend};
enum { BACKEND_COUNT = sizeof backends / sizeof backends[0] };

/* How long nothing may come back before a device counts as hung, unless the caller says. */
#define HUNG_AFTER_NS KEEL_NS_PER_S

/* Never chosen, never listed: only who says "null" gets it. */
static const struct keel_backend *const null_backend[] = {&keel_null_backend};

/* All candidates of some backends, usable ones first; the caller frees *out. */
static enum keel_status discover(const struct keel_backend *const *from, uint32_t from_count,
                                 struct keel_candidate **out, uint32_t *out_count)
{
    struct keel_candidate *found = NULL, *sorted = NULL;
    KEEL_TRY(keel_alloc(KEEL_DEVICE_LIST_MAX, sizeof *found, &found));
    enum keel_status status = keel_alloc(KEEL_DEVICE_LIST_MAX, sizeof *sorted, &sorted);
    if (status != KEEL_OK) {
        keel_free(found);
        return status;
    }
    uint32_t count = 0;
    for (uint32_t b = 0; b < from_count; b++) {
        uint32_t reserved = from_count - 1 - b; /* each later backend gets one place at least */
        uint32_t first = count;
        from[b]->discover(found, KEEL_DEVICE_LIST_MAX - reserved, &count);
        for (uint32_t i = first; i < count; i++)
            found[i].backend = from[b];
    }
    uint32_t placed = 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < count; i++)
            if ((found[i].info.passed_over[0] != '\0') == (pass == 1))
                sorted[placed++] = found[i];
    keel_free(found);
    *out = sorted;
    *out_count = count;
    return KEEL_OK;
}

enum keel_status keel_device_list(struct keel_device_info *out, uint32_t capacity, uint32_t *out_count,
                                  char loader[KEEL_DEVICE_NAME_BYTES])
{
    struct keel_candidate *candidates = NULL;
    uint32_t count = 0;
    KEEL_TRY(discover(backends, BACKEND_COUNT, &candidates, &count));
    if (count > capacity)
        count = capacity;
    for (uint32_t i = 0; i < count; i++)
        out[i] = candidates[i].info;
    keel_free(candidates);
    *out_count = count;
    if (loader != NULL)
        keel_opencl_loader(loader);
    return KEEL_OK;
}

static const struct keel_device_options no_options;

/* Drivers read their environment at the first OpenCL call, so this comes before discovery. */
static void apply_threads(uint32_t threads)
{
    if (threads == 0)
        return;
    char text[16];
    snprintf(text, sizeof text, "%" PRIu32, threads);
    setenv("POCL_MAX_PTHREAD_COUNT", text, 0);
}

static enum keel_status check_options(const struct keel_device_options *options,
                                      const struct keel_device_info *info)
{
    if (options->image_limit > KEEL_IMAGE_MAX || options->memory_banks > KEEL_BANK_MAX)
        return keel_fail(KEEL_LIMIT, "%s: %" PRIu32 " images, %" PRIu32 " memory banks; at most %d and %d",
                         info->selector, options->image_limit, options->memory_banks, (int)KEEL_IMAGE_MAX,
                         (int)KEEL_BANK_MAX);
    if (options->memory_banks > 1 && options->bank_style == KEEL_BANKS_NONE)
        return keel_fail(KEEL_INVALID,
                         "%s: %" PRIu32 " memory banks and no way to name one; set the bank style",
                         info->selector, options->memory_banks);
    if (info->kind == KEEL_DEVICE_HOST && (options->image_limit > 0 || options->memory_banks > 1))
        return keel_fail(KEEL_INVALID, "%s: images and memory banks are of boards; leave them out",
                         info->selector);
    return KEEL_OK;
}

static void apply_options(const struct keel_device_options *options, struct keel_device *device)
{
    device->info.image_limit = options->image_limit;
    if (options->memory_banks > 1)
        device->info.memory_banks = options->memory_banks;
    device->bank_style = options->bank_style;
    if (options->code != NULL)
        keel_device_use_code(device, options->code);
    keel_watch_init(&device->watch, options->hung_after_ns > 0 ? options->hung_after_ns : HUNG_AFTER_NS);
}

/* The candidates, which the caller frees, and which of them is meant. */
static enum keel_status find(const char *selector, const struct keel_device_options *options,
                             struct keel_candidate **out_candidates, uint32_t *out_index)
{
    struct keel_candidate *candidates = NULL;
    uint32_t count = 0;
    bool null = selector != NULL && strcmp(selector, "null") == 0;
    apply_threads(options->threads);
    KEEL_TRY(discover(null ? null_backend : backends, null ? 1 : BACKEND_COUNT, &candidates, &count));
    enum keel_status status = keel_candidate_pick(candidates, count, selector != NULL ? selector : "auto",
                                                  options->code != NULL, out_index);
    if (status != KEEL_OK)
        keel_free(candidates);
    else
        *out_candidates = candidates;
    return status;
}

enum keel_status keel_device_select(const char *selector, const struct keel_device_options *options,
                                    struct keel_device_info *out)
{
    struct keel_candidate *candidates;
    uint32_t index;
    KEEL_TRY(find(selector, options != NULL ? options : &no_options, &candidates, &index));
    *out = candidates[index].info;
    keel_free(candidates);
    return KEEL_OK;
}

enum keel_status keel_device_open(const char *selector, const struct keel_device_options *options,
                                  struct keel_device **out)
{
    struct keel_candidate *candidates;
    struct keel_device *device = NULL;
    uint32_t index;
    if (options == NULL)
        options = &no_options;
    KEEL_TRY(find(selector, options, &candidates, &index));
    enum keel_status status = check_options(options, &candidates[index].info);
    if (status == KEEL_OK)
        status = candidates[index].backend->open(&candidates[index], &device);
    keel_free(candidates);
    KEEL_TRY(status);
    apply_options(options, device);
    status = keel_device_inject(device, getenv("KEEL_DEVICE_FAULTS"));
    if (status != KEEL_OK) {
        keel_device_close(device);
        return status;
    }
    *out = device;
    return KEEL_OK;
}

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
    buffer->wrapped = true;
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
    atomic_fetch_add(&buffer->slices, 1);
    introduce(device, buffer, bytes, slice);
    slice->from_bytes = offset_bytes;
    *out = slice;
    return KEEL_OK;
}

bool keel_buffer_overlaps(const struct keel_buffer *a, const struct keel_buffer *b)
{
    const struct keel_buffer *a_whole = a->parent != NULL ? a->parent : a;
    const struct keel_buffer *b_whole = b->parent != NULL ? b->parent : b;
    return a_whole == b_whole && a->from_bytes < b->from_bytes + b->bytes &&
           b->from_bytes < a->from_bytes + a->bytes;
}

void keel_buffer_destroy(struct keel_buffer *buffer)
{
    if (buffer == NULL)
        return;
    KEEL_ASSERT(atomic_load(&buffer->slices) == 0); /* slices go before their buffer */
    struct keel_device *device = buffer->device;
    if (buffer->parent != NULL)
        atomic_fetch_sub(&buffer->parent->slices, 1);
    else if (!buffer->wrapped)
        atomic_fetch_sub(&device->live_bytes, buffer->bytes);
    device->ops->buffer_destroy(buffer);
}

uint64_t keel_buffer_bytes(const struct keel_buffer *buffer)
{
    return buffer->bytes;
}
