/* cast.cl - conversion between float32 and the two 16-bit formats, to nearest, ties to even.
 *
 *     keel_to_bf16, keel_to_f16       y = 16-bit pattern of x
 *     keel_from_bf16, keel_from_f16   y = x exactly
 *
 * Shapes: flat arrays of `count`; 16-bit patterns are ushort. The rules are those of canon_half.h. Tunable: block, elements per work-item, changes no bit. */

__kernel void keel_to_bf16(__global const uint *x, __global ushort *y, ulong count, uint block)
{
    ulong i = (ulong)get_global_id(0) * block;
    for (const ulong end = min(i + block, count); i < end; i += 16)
        canon_store_halves(canon_to_bf16_x16(canon_load_words(x + i, (uint)min(end - i, (ulong)16))), y + i,
                     (uint)min(end - i, (ulong)16));
}

__kernel void keel_to_f16(__global const uint *x, __global ushort *y, ulong count, uint block)
{
    ulong i = (ulong)get_global_id(0) * block;
    for (const ulong end = min(i + block, count); i < end; i += 16)
        canon_store_halves(canon_to_f16_x16(canon_load_words(x + i, (uint)min(end - i, (ulong)16))), y + i,
                     (uint)min(end - i, (ulong)16));
}

__kernel void keel_from_bf16(__global const ushort *x, __global float *y, ulong count, uint block)
{
    ulong i = (ulong)get_global_id(0) * block;
    for (const ulong end = min(i + block, count); i < end; i += 16) {
        const uint n = (uint)min(end - i, (ulong)16);
        canon_store(as_float16(canon_load_halves(x + i, n) << 16), y + i, n);
    }
}

__kernel void keel_from_f16(__global const ushort *x, __global float *y, ulong count, uint block)
{
    ulong i = (ulong)get_global_id(0) * block;
    for (const ulong end = min(i + block, count); i < end; i += 16) {
        const uint n = (uint)min(end - i, (ulong)16);
        canon_store(as_float16(canon_from_f16_x16(canon_load_halves(x + i, n))), y + i, n);
    }
}
