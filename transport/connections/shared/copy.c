/* copy.c - copies past the caches, where the processor has stores for it (x86-64: SSE2). */
#include "copy.h"

#include <keel/memory.h>

#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

enum { VECTOR = 16, LINE = 64 };

void keel_copy_away(void *out, const void *in, uint64_t bytes)
{
    uint8_t *to = out;
    const uint8_t *from = in;
    uint64_t head = (0 - (uintptr_t)to) % LINE;
    if (head > bytes)
        head = bytes;
    memcpy(to, from, head);
    to += head;
    from += head;
    bytes -= head;
    for (; bytes >= LINE; bytes -= LINE, to += LINE, from += LINE) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + VECTOR));
        __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 2 * VECTOR));
        __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 3 * VECTOR));
        _mm_stream_si128((__m128i *)(void *)to, a);
        _mm_stream_si128((__m128i *)(void *)(to + VECTOR), b);
        _mm_stream_si128((__m128i *)(void *)(to + 2 * VECTOR), c);
        _mm_stream_si128((__m128i *)(void *)(to + 3 * VECTOR), d);
    }
    _mm_sfence();
    memcpy(to, from, bytes);
}
#else
void keel_copy_away(void *out, const void *in, uint64_t bytes)
{
    memcpy(out, in, keel_size(bytes));
}
#endif
