/* http_library.c - dlopen, once. */
#include "http_library.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "libmicrohttpd.so.12"

static struct keel_microhttpd functions;
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
    bool found = library != NULL;
#define FIND(name) found = found && find(library, "MHD_" #name, &functions.name);
    KEEL_MICROHTTPD(FIND)
    if (!found)
        snprintf(missing, sizeof missing, "%s", dlerror());
}

enum keel_status keel_microhttpd_open(const struct keel_microhttpd **out)
{
    pthread_once(&once, open_library);
    if (missing[0] != '\0')
        return keel_fail(KEEL_UNSUPPORTED,
                         "keel serve speaks HTTP by libmicrohttpd, which cannot be opened (%s): install it "
                         "(Debian: libmicrohttpd12)",
                         missing);
    *out = &functions;
    return KEEL_OK;
}
