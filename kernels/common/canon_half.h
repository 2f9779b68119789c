/* canon_half.h - the two 16-bit formats as patterns, to nearest, ties to even, in C and in OpenCL C.
 *
 * Integer operations only, so a device needs neither half support nor a rounding mode. Denormals are
 * converted like all others. Overflow gives infinity; NaN stays NaN, made quiet. bf16 to float is a shift
 * by 16. Numbers of types are those of enum keel_dtype. */
enum { CANON_F32, CANON_BF16, CANON_F16 };

static inline canon_word canon_to_bf16(canon_word u)
{
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (u >> 16) | 0x40u;
    return (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
}

static inline canon_word canon_to_f16(canon_word u)
{
    const canon_word a = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
    if (a > 0x7f800000u)
        return sign | 0x7e00u | ((a >> 13) & 0x3ffu);
    if (a >= 0x477ff000u)
        return sign | 0x7c00u;
    if (a >= 0x38800000u)
        return sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13);
    const canon_word shift = 126u - (a >> 23) < 31u ? 126u - (a >> 23) : 31u;
    const canon_word mantissa = (a & 0x7fffffu) | 0x800000u;
    return sign | ((mantissa + (1u << (shift - 1u)) - 1u + ((mantissa >> shift) & 1u)) >> shift);
}

static inline canon_word canon_from_f16(canon_word h)
{
    const canon_word a = h & 0x7fffu, sign = (h & 0x8000u) << 16;
    if (a < 0x400u)
        return sign | canon_as_bits((float)a * 0x1p-24f);
    if (a < 0x7c00u)
        return sign | ((a << 13) + 0x38000000u);
    return sign | ((a << 13) + 0x70000000u) | (a > 0x7c00u ? 0x400000u : 0u);
}

/* The pattern of a float in a type of 16 bits, and the float of a pattern. */
static inline canon_word canon_narrow(float x, canon_word type)
{
    return type == CANON_BF16 ? canon_to_bf16(canon_as_bits(x)) : canon_to_f16(canon_as_bits(x));
}
static inline float canon_widen(canon_word h, canon_word type)
{
    return canon_as_real(type == CANON_BF16 ? h << 16 : canon_from_f16(h));
}

#ifdef __OPENCL_C_VERSION__
static inline uint16 canon_to_bf16_x16(uint16 u)
{
    uint16 r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : r;
}

static inline uint16 canon_to_f16_x16(uint16 u)
{
    const uint16 a = u & 0x7fffffffu;
    uint16 normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    /* Below 2^-14: the mantissa moves right until its unit is 2^-24. */
    const uint16 shift = min((uint16)(126u) - min(a >> 23, (uint16)(112u)), (uint16)(31u));
    const uint16 mantissa = (a & 0x7fffffu) | 0x800000u;
    uint16 small = (mantissa + ((uint16)(1u) << (shift - 1u)) - 1u + ((mantissa >> shift) & 1u)) >> shift;
    uint16 r = a < 0x38800000u ? small : normal;
    r = a >= 0x477ff000u ? (uint16)(0x7c00u) : r;
    r = a > 0x7f800000u ? ((a >> 13) & 0x3ffu) | 0x7e00u : r;
    return r | ((u >> 16) & 0x8000u);
}

static inline uint16 canon_from_f16_x16(uint16 h)
{
    const uint16 a = h & 0x7fffu;
    uint16 r = (a << 13) + 0x38000000u;
    r = a >= 0x7c00u ? r + 0x38000000u : r;
    r = a > 0x7c00u ? r | 0x400000u : r;
    r = a < 0x400u ? as_uint16(convert_float16(a) * 0x1p-24f) : r;
    return r | ((h & 0x8000u) << 16);
}

/* Sixteen words at x of which n are there. */
static inline uint16 canon_load_words(__global const uint *x, uint n)
{
    return as_uint16(canon_load((__global const float *)x, n));
}
static inline uint16 canon_load_halves(__global const ushort *x, uint n)
{
    if (n >= 16)
        return convert_uint16(vload16(0, x));
    uint lanes[16];
    for (uint l = 0; l < 16; l++)
        lanes[l] = l < n ? x[l] : 0u;
    return vload16(0, lanes);
}
static inline void canon_store_halves(uint16 v, __global ushort *y, uint n)
{
    if (n >= 16) {
        vstore16(convert_ushort16(v), 0, y);
        return;
    }
    uint lanes[16];
    vstore16(v, 0, lanes);
    for (uint l = 0; l < n; l++)
        y[l] = (ushort)lanes[l];
}

/* Element `at` of an array of `type`, as floats: one, or sixteen that are all there. To store rounds to
 * nearest even; the pattern that was stored comes back. */
static inline float canon_get(__global const void *x, ulong at, uint type)
{
    return type == CANON_F32 ? ((__global const float *)x)[at]
                             : canon_widen(((__global const ushort *)x)[at], type);
}
static inline uint canon_put(float v, __global void *y, ulong at, uint type)
{
    if (type == CANON_F32) {
        ((__global float *)y)[at] = v;
        return as_uint(v);
    }
    const uint h = canon_narrow(v, type);
    ((__global ushort *)y)[at] = (ushort)h;
    return h;
}
static inline float16 canon_widen_x16(uint16 h, uint type)
{
    return as_float16(type == CANON_BF16 ? h << 16 : canon_from_f16_x16(h));
}
static inline float16 canon_get_x16(__global const void *x, ulong at, uint type)
{
    if (type == CANON_F32)
        return vload16(0, (__global const float *)x + at);
    return canon_widen_x16(convert_uint16(vload16(0, (__global const ushort *)x + at)), type);
}
static inline uint16 canon_put_x16(float16 v, __global void *y, ulong at, uint type)
{
    const uint16 u = as_uint16(v);
    if (type == CANON_F32) {
        vstore16(v, 0, (__global float *)y + at);
        return u;
    }
    const uint16 h = type == CANON_BF16 ? canon_to_bf16_x16(u) : canon_to_f16_x16(u);
    vstore16(convert_ushort16(h), 0, (__global ushort *)y + at);
    return h;
}
#endif
