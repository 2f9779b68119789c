/* canon_tree.h - the one shape of every sum that is not strictly ascending, in C and in OpenCL C.
 *
 * A run of n values is summed in 16 lanes: lane l starts at +0 and adds x_l, x_(l+16), x_(l+32) ...
 * in this order (a missing value adds nothing, which is the same as adding +0). Then the lanes are
 * folded: l with l+8, l with l+4, l with l+2, l with l+1. A whole tensor is cut in blocks of 4096
 * elements; the block sums are again a run that is cut in blocks, until one value is left. The shape
 * depends on n alone. Maxima use the same shape, though any would do. */

/* The tree over slices of a dimension (keel/kernels.h) adds pairs of neighbours, and again; who has no
 * partner goes up as it is. Slices are given in order: sums of nodes whose right neighbours are still to come
 * wait, as many as there are ones in the number of slices given. */
struct canon_waiting {
    float sums[7]; /* of 64 slices at most */
    unsigned given, count;
};
static inline void canon_give(struct canon_waiting *w, float sum)
{
    for (unsigned level = 0; w->given >> level & 1; level++)
        sum = w->sums[--w->count] + sum;
    w->sums[w->count++] = sum;
    w->given++;
}
static inline float canon_take(struct canon_waiting *w)
{
    float sum = w->sums[--w->count];
    while (w->count > 0)
        sum = w->sums[--w->count] + sum;
    return sum;
}

/* The power of two at or below x > 0. */
static inline float canon_power_of_two(float x)
{
#ifdef __OPENCL_C_VERSION__
    return as_float(as_uint(x) & 0x7f800000u);
#else
    return canon_as_real(canon_as_bits(x) & 0x7f800000u);
#endif
}

#ifdef __OPENCL_C_VERSION__
/* Slices as a kernel is given them: first << 16 | of << 8 | count, or 0 for none; units and unit. The element
 * at which slice i of those begins, counted from the first; i may be their count. */
static inline uint canon_slice_begin(uint slices, uint units, uint unit, uint i)
{
    const uint first = slices >> 16, of = slices >> 8 & 255;
    return (uint)((ulong)units * (first + i) / of - (ulong)units * first / of) * unit;
}

static inline float canon_fold(float16 v)
{
#if KEEL_BY_LANE >= 1
    float lanes[16];
    vstore16(v, 0, lanes);
    for (int span = 8; span > 0; span /= 2)
        for (int l = 0; l < span; l++)
            lanes[l] = lanes[l] + lanes[l + span];
    return lanes[0];
#else
    float8 a = v.lo + v.hi;
    float4 b = a.lo + a.hi;
    float2 c = b.lo + b.hi;
    return c.lo + c.hi;
#endif
}
/* The largest of sixteen, of which all are NaN or none. */
static inline float canon_fold_max(float16 v)
{
#if KEEL_BY_LANE >= 1
    float lanes[16];
    vstore16(v, 0, lanes);
    float r = lanes[0];
    for (int l = 1; l < 16; l++)
        r = lanes[l] > r ? lanes[l] : r;
    return r;
#else
    float8 a = v.lo > v.hi ? v.lo : v.hi;
    float4 b = a.lo > a.hi ? a.lo : a.hi;
    float2 c = b.lo > b.hi ? b.lo : b.hi;
    return c.lo > c.hi ? c.lo : c.hi;
#endif
}
/* Sixteen values at x, of which n are there; +0 for the others. n may be more than 16. */
static inline float16 canon_load(__global const float *x, uint n)
{
    if (n >= 16)
        return vload16(0, x);
    float lanes[16];
    for (uint l = 0; l < 16; l++)
        lanes[l] = l < n ? x[l] : 0.0f;
    return vload16(0, lanes);
}
static inline void canon_store(float16 v, __global float *y, uint n)
{
    if (n >= 16) {
        vstore16(v, 0, y);
        return;
    }
    float lanes[16];
    vstore16(v, 0, lanes);
    for (uint l = 0; l < n; l++)
        y[l] = lanes[l];
}
/* v where the lane is below n, else w; or else +0. */
static inline float16 canon_first(float16 v, float16 w, uint n)
{
    const uint16 lane = (uint16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return lane < (uint16)(n) ? v : w;
}
static inline float16 canon_mask(float16 v, uint n)
{
    return canon_first(v, (float16)(0.0f), n);
}
/* The sum of one run of at most 4096 values, or of one row of any length. */
static inline float canon_sum_run(__global const float *x, uint n)
{
    float16 s = (float16)(0.0f);
    uint i = 0;
    for (; i + 16 <= n; i += 16)
        s += vload16(0, x + i);
    if (i < n)
        s += canon_load(x + i, n - i);
    return canon_fold(s);
}
#else
static inline uint32_t canon_slice_begin(uint32_t slices, uint32_t units, uint32_t unit, uint32_t i)
{
    const uint32_t first = slices >> 16, of = slices >> 8 & 255;
    return (uint32_t)((uint64_t)units * (first + i) / of - (uint64_t)units * first / of) * unit;
}

static inline float canon_fold(const float lanes[16])
{
    float v[16];
    memcpy(v, lanes, sizeof v);
    for (int half = 8; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            v[l] = v[l] + v[l + half];
    return v[0];
}
static inline float canon_sum_run(const float *x, uint32_t n)
{
    float lanes[16] = {0};
    for (uint32_t i = 0; i < n; i++)
        lanes[i % 16] += x[i];
    return canon_fold(lanes);
}
#endif
