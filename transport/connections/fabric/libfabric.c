/* libfabric.c - dlopen, once. */
#include "libfabric.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "libfabric.so.1"

struct entries {
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
    struct fi_info *(*dupinfo)(const struct fi_info *);
    void (*freeinfo)(struct fi_info *);
    int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
    const char *(*strerror)(int);
};

static struct entries entries;
static char missing[256]; /* what stands in the way, after the attempt */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A function's address fits a pointer to data (POSIX, dlsym). False: there is none. */
static bool find(void *library, const char *name, void *out)
{
    void *address = dlsym(library, name);
    memcpy(out, &address, sizeof address);
    return address != NULL;
}

static void open_library(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL || !find(library, "fi_getinfo", &entries.getinfo) ||
        !find(library, "fi_dupinfo", &entries.dupinfo) || !find(library, "fi_freeinfo", &entries.freeinfo) ||
        !find(library, "fi_fabric", &entries.fabric) || !find(library, "fi_strerror", &entries.strerror))
        snprintf(missing, sizeof missing, "%s", dlerror());
}

enum keel_status keel_libfabric_open(void)
{
    pthread_once(&once, open_library);
    if (missing[0] != '\0')
        return keel_fail(KEEL_UNSUPPORTED,
                         "fabric: ranks talk over libfabric, which cannot be opened (%s): install it "
                         "(Debian: libfabric1)",
                         missing);
    return KEEL_OK;
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
