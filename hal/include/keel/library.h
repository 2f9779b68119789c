/* library.h - a shared library that is opened when it is needed first: nothing of Keel is linked to it, so
 * nobody who does not use it maps it, nor what it is linked to, and a program runs where it is not installed.
 */
#ifndef KEEL_LIBRARY_H
#define KEEL_LIBRARY_H

#include <keel/api.h>
#include <stddef.h>

KEEL_API_BEGIN

/* A function of it: the name, and the pointer to a function that it is put into. */
struct keel_library_entry {
    const char *name;
    void *out;
};
struct keel_library {
    const char *file; /* as the dynamic linker finds it: libfabric.so.1 */
    const struct keel_library_entry *entries;
    size_t entry_count;
    enum keel_library_state {
        KEEL_LIBRARY_NEW,
        KEEL_LIBRARY_OPEN,
        KEEL_LIBRARY_MISSING
    } state; /* keel's own */
    char missing[256];
};
/* NULL: all entries are there. Else what stands in the way, in the dynamic linker's words. The library stays
 * open, and is tried once. Any thread. */
const char *keel_library_open(struct keel_library *library);

KEEL_API_END

#endif
