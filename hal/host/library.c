/* library.c - see keel/library.h. */
#include <dlfcn.h>
#include <keel/library.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of every library's state and reason */

static void open_now(struct keel_library *library)
{
    void *handle = dlopen(library->file, RTLD_NOW | RTLD_LOCAL);
    library->state = handle != NULL ? KEEL_LIBRARY_OPEN : KEEL_LIBRARY_MISSING;
    for (size_t i = 0; i < library->entry_count && library->state == KEEL_LIBRARY_OPEN; i++) {
        /* A function's address fits a pointer to data (POSIX, dlsym). */
        void *address = dlsym(handle, library->entries[i].name);
        memcpy(library->entries[i].out, &address, sizeof address);
        if (address == NULL)
            library->state = KEEL_LIBRARY_MISSING;
    }
    const char *said = library->state == KEEL_LIBRARY_MISSING ? dlerror() : NULL;
    if (said != NULL)
        snprintf(library->missing, sizeof library->missing, "%s", said);
}

const char *keel_library_open(struct keel_library *library)
{
    pthread_mutex_lock(&lock);
    if (library->state == KEEL_LIBRARY_NEW)
        open_now(library);
    const char *missing = library->state == KEEL_LIBRARY_OPEN ? NULL : library->missing;
    pthread_mutex_unlock(&lock);
    return missing;
}
