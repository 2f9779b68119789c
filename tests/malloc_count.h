/* malloc_count.h - every call of the C library's allocator in this program, and who called.
 *
 * Included once in a test program, it stands in front of malloc and its like. Between malloc_count_begin and
 * malloc_count_end the calls of this thread are counted, but those that a driver makes (a library that is not
 * the C library): what drivers do is theirs. Under a sanitizer, which has its own allocator, nothing is
 * counted. */
#ifndef KEEL_TESTS_MALLOC_COUNT_H
#define KEEL_TESTS_MALLOC_COUNT_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* volatile: the compiler believes that malloc looks at nothing of ours */
static _Thread_local volatile bool malloc_counting;
static _Thread_local volatile uint64_t malloc_ours;

static void malloc_count_begin(void)
{
    malloc_ours = 0;
    malloc_counting = true;
}

static uint64_t malloc_count_end(void)
{
    malloc_counting = false;
    return malloc_ours;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern char __executable_start[];

static void malloc_note(void *caller)
{
    if (!malloc_counting)
        return;
    malloc_counting = false; /* dladdr may allocate */
    Dl_info place;
    bool known = dladdr(caller, &place) != 0 && place.dli_fname != NULL;
    bool ours = !known || place.dli_fbase == (void *)__executable_start ||
                strstr(place.dli_fname, "/libc.so") != NULL;
    malloc_ours += ours;
    malloc_counting = true;
}

void *malloc(size_t bytes)
{
    malloc_note(__builtin_return_address(0));
    return __libc_malloc(bytes);
}
void *calloc(size_t count, size_t bytes)
{
    malloc_note(__builtin_return_address(0));
    return __libc_calloc(count, bytes);
}
void *realloc(void *old, size_t bytes)
{
    malloc_note(__builtin_return_address(0));
    return __libc_realloc(old, bytes);
}
int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    malloc_note(__builtin_return_address(0));
    void *memory = __libc_memalign(alignment, bytes);
    if (memory != NULL)
        *out = memory;
    return memory != NULL ? 0 : 12 /* ENOMEM */;
}

#endif
#endif
