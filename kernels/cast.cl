/* cast.cl - conversion between float32 and the two 16-bit formats, to nearest, ties to even.
 *
 *     keel_to_bf16, keel_to_f16       y = 16-bit pattern of x
 *     keel_from_bf16, keel_from_f16   y = x exactly
 *
 * Shapes: flat arrays of `count`; 16-bit patterns are ushort. Integer operations only, so a device needs
 * neither half support nor a rounding mode. Denormals are converted like all others. Overflow gives
 * infinity; NaN stays NaN, made quiet. Tunable: block, elements per work-item, changes no bit. */

static inline uint16 to_bf16(uint16 u)
{
    uint16 r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : r;
}

static inline uint16 to_f16(uint16 u)
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

static inline uint16 from_f16(uint16 h)
{
    const uint16 a = h & 0x7fffu;
    uint16 r = (a << 13) + 0x38000000u;
    r = a >= 0x7c00u ? r + 0x38000000u : r;
    r = a > 0x7c00u ? r | 0x400000u : r;
    r = a < 0x400u ? as_uint16(convert_float16(a) * 0x1p-24f) : r;
    return r | ((h & 0x8000u) << 16);
}

/* Sixteen words at x of which n are there. */
static inline uint16 load_words(__global const uint *x, uint n)
{
    return as_uint16(canon_load((__global const float *)x, n));
}
static inline uint16 load_halves(__global const ushort *x, uint n)
{
    if (n >= 16)
        return convert_uint16(vload16(0, x));
    uint lanes[16];
    for (uint l = 0; l < 16; l++)
        lanes[l] = l < n ? x[l] : 0u;
    return vload16(0, lanes);
}
static inline void store_halves(uint16 v, __global ushort *y, uint n)
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

__kernel void keel_to_bf16(__global const uint *x, __global ushort *y, ulong count, uint block)
{
    ulong i = (ulong)get_global_id(0) * block;
    for (const ulong end = min(i + block, count); i < end; i += 16)
        store_halves(to_bf16(load_words(x + i, (uint)min(end - i, (ulong)16))), y + i,
                     (uint)min(end - i, (ulong)16));
}

__kernel void keel_to_f16(__global const uint *x, __global ushort *y, ulong count, uint block)
{
    ulong i = (ulong)get_global_id(0) * block;
    for (const ulong end = min(i + block, count); i < end; i += 16)
        store_halves(to_f16(load_words(x + i, (uint)min(end - i, (ulong)16))), y + i,
                     (uint)min(end - i, (ulong)16));
}

__kernel void keel_from_bf16(__global const ushort *x, __global float *y, ulong count, uint block)
{
    ulong i = (ulong)get_global_id(0) * block;
    for (const ulong end = min(i + block, count); i < end; i += 16) {
        const uint n = (uint)min(end - i, (ulong)16);
        canon_store(as_float16(load_halves(x + i, n) << 16), y + i, n);
    }
}

__kernel void keel_from_f16(__global const ushort *x, __global float *y, ulong count, uint block)
{
    ulong i = (ulong)get_global_id(0) * block;
    for (const ulong end = min(i + block, count); i < end; i += 16) {
        const uint n = (uint)min(end - i, (ulong)16);
        canon_store(as_float16(from_f16(load_halves(x + i, n))), y + i, n);
    }
}
