/* cast.cl - conversion between float32 and the two 16-bit formats, to nearest, ties to even.
 *
 *     keel_to_bf16, keel_to_f16       y = 16-bit pattern of x
 *     keel_from_bf16, keel_from_f16   y = x exactly
 *
 * Shapes: flat arrays of `count`; 16-bit patterns are ushort. The rules are those of canon_half.h. Tunable:
 * block, elements per work-item, changes no bit. */

__kernel void keel_to_bf16(__global const uint *x, __global ushort *y, ulong count, uint block)
{
    CANON_ELEMENTS(elements_store(convert_ushort16(canon_to_bf16_x16(elements_load(x + i))), y + i),
                   y[i] = (ushort)canon_to_bf16(x[i]))
}

__kernel void keel_to_f16(__global const uint *x, __global ushort *y, ulong count, uint block)
{
    CANON_ELEMENTS(elements_store(convert_ushort16(canon_to_f16_x16(elements_load(x + i))), y + i),
                   y[i] = (ushort)canon_to_f16(x[i]))
}

__kernel void keel_from_bf16(__global const ushort *x, __global uint *y, ulong count, uint block)
{
    CANON_ELEMENTS(elements_store(convert_uint16(elements_load(x + i)) << 16, y + i), y[i] = (uint)x[i] << 16)
}

__kernel void keel_from_f16(__global const ushort *x, __global uint *y, ulong count, uint block)
{
    CANON_ELEMENTS(elements_store(canon_from_f16_x16(convert_uint16(elements_load(x + i))), y + i),
                   y[i] = canon_from_f16(x[i]))
}
