/* canon_wide.h - the words of canon_math.h for sixteen floats at a time (OpenCL C only), and what
 * every .cl file needs before its first line. canon_scalar.h says how the two widths fit together. */
#pragma OPENCL FP_CONTRACT OFF
#ifndef KEEL_BY_LANE
#define KEEL_BY_LANE 0 /* a tunable: tunables.c says what it is for */
#endif
#ifndef KEEL_ROW_ITEMS
#define KEEL_ROW_ITEMS 1 /* a tunable: canon_row.h */
#endif
#if KEEL_BY_LANE >= 2
#define CANON_PASS_OVER /* canon_lane.h has these functions */
#endif
#define canon_inline       static inline __attribute__((overloadable))
#define canon_real         float16
#define canon_word         uint
#define canon_bits         uint16
#define canon_to_real(x)   convert_float16(x)
#define canon_as_real(x)   as_float16(x)
#define canon_as_bits(x)   as_uint16(x)
#define canon_fma(a, b, c) fma((float16)(a), (float16)(b), (float16)(c))
#define canon_mul_hi(a, b) canon_mul_hi_x16(a, b)

/* Upper halves of a * b: two lanes lie in each ulong and are multiplied in turn, which compilers turn into
 * one instruction each; mul_hi of sixteen they often take apart. Either byte order gives the same. */
static inline uint16 canon_mul_hi_x16(uint a, uint16 b)
{
    const ulong8 pairs = as_ulong8(b), factor = (ulong8)(a);
    const ulong8 lower = (pairs & 0xffffffffUL) * factor, upper = (pairs >> 32) * factor;
    return as_uint16((lower >> 32) | (upper & 0xffffffff00000000UL));
}
