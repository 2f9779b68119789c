/* planes_part.h - what the ways of planes.cl share: arguments, and the arithmetic at the widths of devices
 * (OpenCL C only, behind exact8_math.h and bf16_math.h). */

#ifndef KEEL_PLANES_DIGITS
#define KEEL_PLANES_DIGITS 2 /* of the class; 1: bf16 */
#endif
#ifndef KEEL_PLANES_DOT
#define KEEL_PLANES_DOT 0 /* the bit of enum keel_dots that is taken; 0: plain C */
#endif
#ifndef KEEL_PLANES_ITEMS
#define KEEL_PLANES_ITEMS 1
#endif
#define KEEL_DOT_VNNI 1
#define KEEL_DOT_KHR  2
#define KEEL_DOT_DP4A 4
#define KEEL_DOT_MMA  8
#define KEEL_DOT_BF16 16
#if (KEEL_PLANES_DOT == KEEL_DOT_VNNI || KEEL_PLANES_DOT == KEEL_DOT_BF16) &&                                \
    !defined(__x86_64__) /* a simulator, or code that is made on the way */
#undef KEEL_PLANES_DOT
#define KEEL_PLANES_DOT 0
#endif
#define DIGITS     KEEL_PLANES_DIGITS
#define ITEMS      KEEL_PLANES_ITEMS
#define GROUP_SIZE __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
enum { CHECKSUM = 32, CHAIN = 64, C_TYPE_AT = 12, TYPE_MASK = 3 };
enum { PLANES_DOWN = 1, PLANES_TYPE_AT = 1, PLANES_TYPE_MASK = 3, PLANES_UNIT = 8 };
/* Processors get loops: their compilers take long for what is unrolled of a work-item of many. */
#if defined(__x86_64__) || defined(__aarch64__) || defined(__arm__)
#define UNROLL _Pragma("nounroll")
#else
#define UNROLL _Pragma("unroll")
#endif

#define LARGER(a, b) ((a) > (b) ? (a) : (b))

#define PRODUCT_PARAMETERS                                                                                   \
    __global const uint *planes, __global void *c, __global const float *bias, __global void *pre,           \
        __global uint *checksums, uint m, uint n, uint k, uint ldc, uint flags, ulong stride_c, uint slices, \
        uint units, uint unit, uint blocks, uint words, uint digits, uint row_block, uint strips
#define PRODUCT_ARGUMENTS                                                                                    \
    planes, c, bias, pre, checksums, m, n, k, ldc, flags, stride_c, slices, units, unit, blocks, words,      \
        digits, row_block, strips

#if KEEL_BY_LANE >= 2
#define WIDE_FMA(a, b, c) canon_wide_fma(a, b, c)
#else
#define WIDE_FMA(a, b, c) fma(a, b, c)
#endif
#define PER_WORD          planes_per_word(DIGITS)
#define ALWAYS(condition) (condition)
BF16_MATH(float, uint, as_uint, as_float, fma, ALWAYS, canon_to_bf16, )
BF16_MATH(float16, uint16, as_uint16, as_float16, WIDE_FMA, any, canon_to_bf16_x16, _x16)
EXACT8_DIGITS(uint, int, as_uint, as_int, )
EXACT8_DIGITS(uint16, int16, as_uint16, as_int16, _x16)
EXACT8_VALUE(float, uint, int, as_uint, as_uint, as_int, as_float, convert_float, fma, )
EXACT8_VALUE(float16, uint16, int16, as_uint16, as_uint16, as_int16, as_float16, convert_float16, WIDE_FMA,
             _x16)

#if ITEMS == 1
enum { VECTORS = 3 /* of 16 columns */ };

/* What a tile has of the planes: `a` its rows, of the first digit; `b` three blocks of 16 columns, b_block
 * apart. Where there are less, the first is read again. */
struct strip {
    __global const uint *a, *b[VECTORS];
    __global const int *a_exponents, *b_exponents[VECTORS];
    ulong a_step, b_step;
    uint a_lines, b_lines;
};
#endif
