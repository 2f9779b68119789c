/* canon_vector.h - sixteen floats, or words, of memory as one instruction (OpenCL C only).
 *
 * A driver's own vload16 and vstore16 may be made of four of four, which compilers put together again for
 * some loads and no stores (PoCL 3.1): four entries in the queue of stores for one line. A pointer to a
 * vector that is aligned like its element says the same as vload16, and comes out as one access. */
#if KEEL_BY_LANE == 0
#define CANON_VECTOR_LOAD(space, type)                                                                       \
    static inline type##16 __attribute__((overloadable)) canon_vector_load(space const type *p)              \
    {                                                                                                        \
        return *(space const canon_##type##_vector *)p;                                                      \
    }
#define CANON_VECTOR(space, type)                                                                            \
    CANON_VECTOR_LOAD(space, type)                                                                           \
    static inline void __attribute__((overloadable)) canon_vector_store(type##16 v, space type *p)           \
    {                                                                                                        \
        *(space canon_##type##_vector *)p = v;                                                               \
    }
#define CANON_VECTOR_OF(type)                                                                                \
    typedef type##16 canon_##type##_vector __attribute__((aligned(sizeof(type))));                           \
    CANON_VECTOR_LOAD(__constant, type)                                                                      \
    CANON_VECTOR(__global, type)                                                                             \
    CANON_VECTOR(__local, type)                                                                              \
    CANON_VECTOR(__private, type)
CANON_VECTOR_OF(float)
CANON_VECTOR_OF(int)
CANON_VECTOR_OF(uint)
CANON_VECTOR_OF(ushort)
#undef vload16
#undef vstore16
#define vload16(i, p)     canon_vector_load((p) + 16 * (i))
#define vstore16(v, i, p) canon_vector_store((v), (p) + 16 * (i))
#endif

/* Whether all sixteen are true, that is -1: a driver's own all() may ask one after the other. */
static inline bool canon_all(int16 v)
{
#if KEEL_BY_LANE == 0
    const int8 a = v.lo & v.hi;
    const int4 b = a.lo & a.hi;
    const int2 c = b.lo & b.hi;
    return (c.x & c.y) != 0;
#else
    return all(v);
#endif
}

/* A function that is part of its caller: what the caller knows of its arguments is known within. Each
 * function that takes a pointer to local memory is one (`make layers` looks): PoCL 3.1 hands every group its
 * own copy of a kernel's local arrays, but replaces only those uses that stand in the kernel itself. LLVM
 * puts the array into a function that is always called with the same one, and when that function is not
 * inlined it reads memory that nobody wrote and that all threads share (local_memory_test). */
#define CANON_INLINE static inline __attribute__((always_inline))

/* Asks for the line of memory at p, for who reads it soon, where a processor can be asked. A row that comes
 * next is asked for while this one is computed. */
#if KEEL_BY_LANE == 0 && (defined(__x86_64__) || defined(__aarch64__))
#define CANON_FETCH(p) __builtin_prefetch((__global const void *)(p), 0, 2)
#else
#define CANON_FETCH(p) (void)(p)
#endif

/* Sixteen elements of a work-item, of kernels that go by elements: they lie together; or, where neighbours
 * are to read neighbours (KEEL_ROW_ITEMS), they are four times four, from p on, as many fours apart as a
 * group has work-items. What is loaded so is stored so. */
#if KEEL_ROW_ITEMS == 1
#define elements_load(p)     vload16(0, p)
#define elements_store(v, p) vstore16(v, 0, p)
#else
#define ELEMENTS_OF(type)                                                                                    \
    static inline type##16 __attribute__((overloadable)) elements_load(__global const type *p)               \
    {                                                                                                        \
        type lanes[16];                                                                                      \
        _Pragma("unroll") for (uint q = 0; q < 4; q++)                                                       \
            vstore4(((__global const type##4 *)p)[q * get_local_size(0)], q, lanes);                         \
        return vload16(0, lanes);                                                                            \
    }                                                                                                        \
    static inline void __attribute__((overloadable)) elements_store(type##16 v, __global type *p)            \
    {                                                                                                        \
        type lanes[16];                                                                                      \
        vstore16(v, 0, lanes);                                                                               \
        _Pragma("unroll") for (uint q = 0; q < 4; q++)((__global type##4 *)p)[q * get_local_size(0)] =       \
            vload4(q, lanes);                                                                                \
    }
ELEMENTS_OF(float)
ELEMENTS_OF(uint)
ELEMENTS_OF(ushort)
#endif

/* Processors get loops: their compilers take a minute for what is unrolled, where every work-item's registers
 * are memory. */
#if defined(__x86_64__) || defined(__aarch64__) || defined(__arm__)
#define CANON_UNROLL _Pragma("nounroll")
#else
#define CANON_UNROLL _Pragma("unroll")
#endif

/* The body of a kernel over `count` elements of which a work-item takes `block`, a multiple of 16: `wide` at
 * i, i + 16 ... while sixteen are left, then `one`; by elements_load and elements_store. Sixty-four to a turn
 * where there are: of a long chain of arithmetic a processor sees more at once. Where vectors are costly,
 * `one` alone. Needs count and block; nothing that overlaps but i with i. With KEEL_ROW_ITEMS a group takes
 * its elements together. */
#if KEEL_ROW_ITEMS > 1
#define CANON_ELEMENTS(wide, one)                                                                            \
    const uint id = get_local_id(0), size = get_local_size(0);                                               \
    ulong at = (ulong)get_group_id(0) * size * block;                                                        \
    const ulong end = min(at + (ulong)size * block, count);                                                  \
    CANON_ELEMENTS_WIDE(wide)                                                                                \
    for (ulong i = at + id; i < end; i += size)                                                              \
        one;
#if KEEL_BY_LANE >= 2
#define CANON_ELEMENTS_WIDE(wide)
#else
#define CANON_ELEMENTS_WIDE(wide)                                                                            \
    for (; at + 16 * size <= end; at += 16 * size) {                                                         \
        const ulong i = at + 4 * id;                                                                         \
        wide;                                                                                                \
    }
#endif
#elif KEEL_BY_LANE >= 2
#define CANON_ELEMENTS(wide, one)                                                                            \
    for (ulong i = (ulong)get_global_id(0) * block, end = min(i + block, count); i < end; i++)               \
        one;
#else
#define CANON_ELEMENTS(wide, one)                                                                            \
    ulong i = (ulong)get_global_id(0) * block;                                                               \
    const ulong end = min(i + block, count);                                                                 \
    while (i + CANON_TURN <= end) {                                                                          \
        _Pragma("unroll") for (uint turn = 0; turn < CANON_TURN; turn += 16, i += 16) wide;                  \
    }                                                                                                        \
    for (; i + 16 <= end; i += 16)                                                                           \
        wide;                                                                                                \
    for (; i < end; i++)                                                                                     \
        one;
#endif
#define CANON_TURN (KEEL_BY_LANE == 0 ? 64 : 16)
