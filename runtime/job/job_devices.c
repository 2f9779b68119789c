/* job_devices.c - cluster.device: which device or board each worker of a job has. */
#include "job_internal.h"
#include <keel/node.h>
#include <stdlib.h>
#include <string.h>

/* An entry of cluster.device: NAME, or COUNT*NAME for so many workers. */
struct device_entry {
    const char *name; /* within cluster.device, `length` bytes without the blanks around */
    size_t length;
    uint32_t count; /* 0: a count that cannot be */
};

/* Reads the entry at `at`; where the next one begins, NULL behind the last. */
static const char *read_device(const char *at, struct device_entry *out)
{
    at += strspn(at, " ");
    size_t digits = strspn(at, "0123456789");
    out->count = 1;
    if (digits > 0 && at[digits] == '*') {
        uint64_t count = strtoull(at, NULL, 10);
        out->count = count <= KEEL_MEMBERS_MAX ? (uint32_t)count : 0;
        at += digits + 1;
        at += strspn(at, " ");
    }
    size_t length = strcspn(at, ",");
    const char *next = at[length] == ',' ? at + length + 1 : NULL;
    while (length > 0 && at[length - 1] == ' ')
        length--;
    out->name = at;
    out->length = length;
    return next;
}

static uint32_t count_devices(const struct keel_job *job)
{
    struct device_entry entry;
    uint32_t count = 0;
    KEEL_ASSERT(job != NULL);
    for (const char *at = job->device; at != NULL; count += entry.count)
        at = read_device(at, &entry);
    return count;
}

enum keel_status keel_job_check_devices(const struct keel_job *job)
{
    struct device_entry entry;
    KEEL_ASSERT(job != NULL);
    uint32_t count = count_devices(job), number = 0;
    for (const char *at = job->device; at != NULL;) {
        at = read_device(at, &entry);
        number++;
        if (entry.count == 0)
            return keel_fail(KEEL_INVALID,
                             "cluster.device = %.200s: entry %u: a count is 1 to %d, as in 4*host",
                             job->device, number, KEEL_MEMBERS_MAX);
        if (entry.length == 0 || entry.length >= KEEL_SELECTOR_BYTES)
            return keel_fail(KEEL_INVALID,
                             "cluster.device = %.200s: device %u has no name, or one of more than %d bytes",
                             job->device, number, KEEL_SELECTOR_BYTES - 1);
    }
    if (count != 1 && count != job->ranks && count != job->ranks + job->spares)
        return keel_fail(KEEL_INVALID,
                         "cluster.device = %.200s: %u devices for %u ranks and %u spares; name one for all, "
                         "or one for each rank (4*host is four), and then one for each spare if you like",
                         job->device, count, job->ranks, job->spares);
    return KEEL_OK;
}

void keel_job_device(const struct keel_job *job, uint32_t node, uint32_t local, char out[KEEL_SELECTOR_BYTES])
{
    uint32_t nodes = job->nodes != 0 ? job->nodes : job->ranks;
    uint32_t worker =
        node <= nodes ? (node - 1) * (job->ranks / nodes) + local : job->ranks + (node - nodes - 1);
    const uint32_t count = count_devices(job);
    KEEL_ASSERT(count > 0); /* keel_job_check_devices */
    uint32_t left = worker % count;
    struct device_entry entry;
    const char *at = read_device(job->device, &entry);
    for (; left >= entry.count; at = read_device(at, &entry))
        left -= entry.count;
    KEEL_ASSERT(entry.length < KEEL_SELECTOR_BYTES);
    memcpy(out, entry.name, entry.length);
    out[entry.length] = '\0';
}
