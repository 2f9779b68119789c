/* engine_profile.c - where a step's time goes, by kernel and its first sizes (KEEL_PROFILE=1).
 *
 * Finishes the queue after each launch, so the total is larger than that of a normal step, by a few
 * microseconds a launch. Printed on stderr when the engine ends. */
#include "engine_internal.h"

#include <keel/clock.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 256, SIZES = 3, LABEL_BYTES = 64 };

struct row {
    const char *kernel; /* owned by the kernel object */
    uint32_t sizes[SIZES];
    uint64_t launches, ns;
};

struct keel_profile {
    struct row rows[ROWS_MAX]; /* kernels beyond that share the last */
    uint32_t count;
};

enum keel_status keel_profile_create(struct keel_profile **out)
{
    return keel_alloc(1, sizeof(struct keel_profile), (void *)out);
}

/* The first u32 arguments of a launch: m, n, k of a product, rows and width of a norm. */
static void read_sizes(const struct keel_launch *launch, uint32_t sizes[SIZES])
{
    uint32_t count = 0;
    memset(sizes, 0, SIZES * sizeof *sizes);
    for (uint32_t i = 0; i < launch->arg_count && count < SIZES; i++)
        if (launch->args[i].kind == KEEL_ARG_U32)
            sizes[count++] = launch->args[i].as.u32;
}

static struct row *find_row(struct keel_profile *profile, const struct keel_launch *launch)
{
    struct row wanted = {.kernel = keel_kernel_name(launch->kernel)};
    read_sizes(launch, wanted.sizes);
    for (uint32_t i = 0; i < profile->count; i++)
        if (strcmp(profile->rows[i].kernel, wanted.kernel) == 0 &&
            memcmp(profile->rows[i].sizes, wanted.sizes, sizeof wanted.sizes) == 0)
            return &profile->rows[i];
    if (profile->count < ROWS_MAX)
        profile->rows[profile->count++] = wanted;
    return &profile->rows[profile->count - 1];
}

enum keel_status keel_profile_run(struct keel_profile *profile, const struct keel_launch_list *list,
                                  struct keel_queue *queue)
{
    uint64_t deadline_ns = keel_deadline_after_ns(600 * KEEL_NS_PER_S);
    KEEL_TRY(keel_queue_finish(queue, deadline_ns));
    for (uint32_t i = 0; i < list->count; i++) {
        const struct keel_launch *launch = &list->items[i];
        uint64_t since = keel_now_ns();
        KEEL_TRY(keel_queue_launch(queue, launch->kernel, launch->args, launch->arg_count, &launch->range,
                                   NULL, NULL));
        KEEL_TRY(keel_queue_finish(queue, deadline_ns));
        struct row *row = find_row(profile, launch);
        row->launches++;
        row->ns += keel_now_ns() - since;
    }
    return KEEL_OK;
}

static int compare_rows(const void *a, const void *b)
{
    const struct row *x = a;
    const struct row *y = b;
    return x->ns > y->ns ? -1 : x->ns < y->ns;
}

void keel_profile_print(const struct keel_profile *profile)
{
    struct keel_profile sorted = *profile;
    qsort(sorted.rows, sorted.count, sizeof *sorted.rows, compare_rows);
    uint64_t total_ns = 1;
    for (uint32_t i = 0; i < sorted.count; i++)
        total_ns += sorted.rows[i].ns;
    fprintf(stderr, "%-48s %10s %12s %10s %7s\n", "kernel and sizes", "launches", "ms", "us each", "share");
    for (uint32_t i = 0; i < sorted.count; i++) {
        const struct row *row = &sorted.rows[i];
        char label[LABEL_BYTES];
        snprintf(label, sizeof label, "%s %u %u %u", row->kernel, row->sizes[0], row->sizes[1],
                 row->sizes[2]);
        fprintf(stderr, "%-48s %10llu %12.3f %10.1f %6.1f%%\n", label, (unsigned long long)row->launches,
                (double)row->ns / 1e6, (double)row->ns / 1e3 / (double)row->launches,
                100.0 * (double)row->ns / (double)total_ns);
    }
}
