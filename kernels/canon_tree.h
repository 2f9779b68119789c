/* canon_tree.h - the one shape of every sum that is not strictly ascending, in C and in OpenCL C.
 *
 * A run of n values is summed in 16 lanes: lane l starts at +0 and adds x_l, x_(l+16), x_(l+32) ...
 * in this order (a missing value adds nothing, which is the same as adding +0). Then the lanes are
 * folded: l with l+8, l with l+4, l with l+2, l with l+1. A whole tensor is cut in blocks of 4096
 * elements; the block sums are again a run that is cut in blocks, until one value is left. The shape
 * depends on n alone. Maxima use the same shape, though any would do. */
#ifdef __OPENCL_C_VERSION__
static inline float canon_fold(float16 v)
{
    float8 a = v.lo + v.hi;
    float4 b = a.lo + a.hi;
    float2 c = b.lo + b.hi;
    return c.lo + c.hi;
}
/* x[0..n) in a vector with +0 for what is missing, n in 1..15. */
static inline float16 canon_load_tail(__global const float *x, uint n)
{
    float lanes[16];
    for (uint l = 0; l < 16; l++)
        lanes[l] = l < n ? x[l] : 0.0f;
    return vload16(0, lanes);
}
#else
static inline float canon_fold(const float lanes[16])
{
    float v[16];
    memcpy(v, lanes, sizeof v);
    for (int half = 8; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            v[l] = v[l] + v[l + half];
    return v[0];
}
#endif
