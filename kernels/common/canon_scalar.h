/* canon_scalar.h - the words that canon_math.h is written in, for one float at a time, in C and in
 * OpenCL C.
 *
 * canon_math.h is one text read at two widths. In a .cl file the Makefile puts before the kernels:
 *     canon_wide.h    canon_math.h  canon_random.h    the text for float16; behind the first canon_vector.h:
 *                                                     how they are loaded and stored
 *     canon_scalar.h  canon_math.h  canon_random.h    the text for float
 *     canon_lane.h                                    or the first by the second, where vectors are costly
 *     canon_tree.h                                    the shape of sums
 * The compiler takes the width that the arguments have: the functions are overloaded. A C file includes
 * canon.h, which reads the text for float alone. */
#undef canon_real
#undef canon_bits
#undef canon_as_real
#undef canon_as_bits
#undef canon_fma
#undef canon_mul_hi
#undef canon_to_real
#define canon_real float
#ifdef __OPENCL_C_VERSION__
#undef CANON_PASS_OVER
#define canon_bits         uint
#define canon_to_real(x)   convert_float(x)
#define canon_as_real(x)   as_float(x)
#define canon_as_bits(x)   as_uint(x)
#define canon_fma(a, b, c) fma((float)(a), (float)(b), (float)(c))
#define canon_mul_hi(a, b) mul_hi((uint)(a), (uint)(b))
#else
#include <math.h>
#include <stdint.h>
#include <string.h>
#define canon_inline       static inline
#define canon_word         uint32_t
#define canon_bits         uint32_t
#define canon_to_real(x)   ((float)(x))
#define canon_fma(a, b, c) fmaf((a), (b), (c))
static inline float canon_as_real(uint32_t x)
{
    float y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline uint32_t canon_as_bits(float x)
{
    uint32_t y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline uint32_t canon_mul_hi(uint32_t a, uint32_t b)
{
    return (uint32_t)(((uint64_t)a * b) >> 32);
}
#endif
