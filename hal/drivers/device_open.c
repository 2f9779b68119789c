/* device_open.c - the devices of all drivers: discovery, and opening one.
 *
 * The one file that knows which drivers there are; the choice by selector is in device_select.c. */
#include "device_backend.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* In order of preference; host is last, so it is last in every list. */
static const struct keel_backend *const backends[] = {&keel_opencl_backend, &keel_host_backend};
enum { BACKEND_COUNT = sizeof backends / sizeof backends[0] };

/* How long nothing may come back before a device counts as hung, unless the caller says. */
#define HUNG_AFTER_NS KEEL_NS_PER_S

/* Backends of one device, which its name alone opens: no other driver is loaded for it, for those of CPUs
 * take 65 MB. "null" is never chosen and never listed. */
static const struct {
    const char *selector;
    const struct keel_backend *backend;
} named[] = {{"host", &keel_host_backend}, {"null", &keel_null_backend}};

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

static enum keel_status discover_for(const char *selector, struct keel_candidate **out, uint32_t *out_count)
{
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++)
        if (strcasecmp(selector, named[i].selector) == 0)
            return discover(&named[i].backend, 1, out, out_count);
    return discover(backends, BACKEND_COUNT, out, out_count);
}

/* The candidates, which the caller frees, and which of them is meant. */
static enum keel_status find(const char *selector, const struct keel_device_options *options,
                             struct keel_candidate **out_candidates, uint32_t *out_index)
{
    struct keel_candidate *candidates = NULL;
    uint32_t count = 0;
    if (selector == NULL)
        selector = "auto";
    apply_threads(options->threads);
    KEEL_TRY(discover_for(selector, &candidates, &count));
    enum keel_status status =
        keel_candidate_pick(candidates, count, selector, options->code != NULL, out_index);
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
    KEEL_ASSERT(device != NULL && device->ops != NULL && device->info.memory_banks > 0);
    apply_options(options, device);
    status = keel_device_inject(device, getenv("KEEL_DEVICE_FAULTS"));
    if (status != KEEL_OK) {
        keel_device_close(device);
        return status;
    }
    *out = device;
    return KEEL_OK;
}
