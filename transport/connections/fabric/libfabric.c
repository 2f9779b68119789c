/* libfabric.c - see libfabric.h. */
#include "libfabric.h"

#include <keel/library.h>

static struct entries {
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
    struct fi_info *(*dupinfo)(const struct fi_info *);
    void (*freeinfo)(struct fi_info *);
    int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
    const char *(*strerror)(int);
} entries;

static const struct keel_library_entry functions[] = {{"fi_getinfo", (void *)&entries.getinfo},
                                                      {"fi_dupinfo", (void *)&entries.dupinfo},
                                                      {"fi_freeinfo", (void *)&entries.freeinfo},
                                                      {"fi_fabric", (void *)&entries.fabric},
                                                      {"fi_strerror", (void *)&entries.strerror}};
static struct keel_library library = {
    .file = "libfabric.so.1", .entries = functions, .entry_count = sizeof functions / sizeof functions[0]};

enum keel_status keel_libfabric_open(void)
{
    const char *missing = keel_library_open(&library);
    if (missing == NULL)
        return KEEL_OK;
    return keel_fail(KEEL_UNSUPPORTED,
                     "fabric: ranks talk over libfabric, which cannot be opened (%s): install it "
                     "(Debian: libfabric1)",
                     missing);
}

int keel_fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                    const struct fi_info *hints, struct fi_info **out)
{
    return entries.getinfo(version, node, service, flags, hints, out);
}

struct fi_info *keel_fi_allocinfo(void)
{
    return entries.dupinfo(NULL);
}

void keel_fi_freeinfo(struct fi_info *info)
{
    entries.freeinfo(info);
}

int keel_fi_fabric(struct fi_fabric_attr *attributes, struct fid_fabric **out, void *context)
{
    return entries.fabric(attributes, out, context);
}

const char *keel_fi_strerror(int number)
{
    return entries.strerror(number);
}
