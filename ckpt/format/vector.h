/* vector.h - plain loops, compiled twice: for every processor, and for those with AVX2.
 *
 * No intrinsics: the compiler vectorises a body that is written once (KEEL_VECTOR_BODY, inlined), the results
 * are the same, and the processor is asked at run time. */
#ifndef KEEL_CKPT_VECTOR_H
#define KEEL_CKPT_VECTOR_H

#include <stdbool.h>

#define KEEL_VECTOR_BODY static inline __attribute__((always_inline))

#if defined(__x86_64__)
#define KEEL_VECTOR_AVX2 __attribute__((target("avx2,bmi,bmi2")))
static inline bool keel_vector_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
}
#else
#define KEEL_VECTOR_AVX2
static inline bool keel_vector_avx2(void)
{
    return false;
}
#endif

#endif
