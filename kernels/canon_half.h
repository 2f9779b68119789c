/* canon_half.h - the two 16-bit formats as patterns, to nearest, ties to even, in C and in OpenCL C.
 *
 * Integer operations only, so a device needs neither half support nor a rounding mode. Denormals are
 * converted like all others. Overflow gives infinity; NaN stays NaN, made quiet. bf16 to float is a shift
 * by 16. */
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
#else
static inline uint32_t canon_to_bf16(uint32_t u)
{
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (u >> 16) | 0x40u;
    return (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
}

static inline uint32_t canon_to_f16(uint32_t u)
{
    const uint32_t a = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
    if (a > 0x7f800000u)
        return sign | 0x7e00u | ((a >> 13) & 0x3ffu);
    if (a >= 0x477ff000u)
        return sign | 0x7c00u;
    if (a >= 0x38800000u)
        return sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13);
    const uint32_t shift = 126u - (a >> 23) < 31u ? 126u - (a >> 23) : 31u;
    const uint32_t mantissa = (a & 0x7fffffu) | 0x800000u;
    return sign | ((mantissa + (1u << (shift - 1u)) - 1u + ((mantissa >> shift) & 1u)) >> shift);
}

static inline uint32_t canon_from_f16(uint32_t h)
{
    const uint32_t a = h & 0x7fffu, sign = (h & 0x8000u) << 16;
    if (a < 0x400u)
        return sign | canon_as_bits((float)a * 0x1p-24f);
    if (a < 0x7c00u)
        return sign | ((a << 13) + 0x38000000u);
    return sign | ((a << 13) + 0x70000000u) | (a > 0x7c00u ? 0x400000u : 0u);
}
#endif
