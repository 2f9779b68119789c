/* canon_lane.h - the functions for sixteen floats by those for one, lane after lane (OpenCL C only, where
 * KEEL_BY_LANE is 2): the same bits from a sixteenth of the code, for devices whose compilers take vectors
 * apart and put a function of their own in the place of each fma. Those that only CANON_ELEMENTS calls need
 * none: there it goes element by element. */
#if KEEL_BY_LANE >= 2
#define CANON_LANES_1(name, from, to)                                                                        \
    canon_inline to##16 name(from##16 v)                                                                     \
    {                                                                                                        \
        from x[16];                                                                                          \
        to y[16];                                                                                            \
        vstore16(v, 0, x);                                                                                   \
        for (int l = 0; l < 16; l++)                                                                         \
            y[l] = name(x[l]);                                                                               \
        return vload16(0, y);                                                                                \
    }
#define CANON_LANES_2(name, from, to)                                                                        \
    canon_inline to##16 name(from##16 v, from##16 w)                                                         \
    {                                                                                                        \
        from x[16], z[16];                                                                                   \
        to y[16];                                                                                            \
        vstore16(v, 0, x);                                                                                   \
        vstore16(w, 0, z);                                                                                   \
        for (int l = 0; l < 16; l++)                                                                         \
            y[l] = name(x[l], z[l]);                                                                         \
        return vload16(0, y);                                                                                \
    }
CANON_LANES_1(canon_flush, float, float)
CANON_LANES_1(canon_plus_zero, float, float)
CANON_LANES_1(canon_sqrt, float, float)
CANON_LANES_1(canon_rsqrt, float, float)
CANON_LANES_1(canon_reciprocal, float, float)
CANON_LANES_1(canon_exp, float, float)
CANON_LANES_1(canon_exp_below, float, float)
CANON_LANES_1(canon_log, float, float)
CANON_LANES_1(canon_sigmoid, float, float)
CANON_LANES_1(canon_gelu, float, float)
CANON_LANES_1(canon_uniform, uint, float)
CANON_LANES_2(canon_divide, float, float)
CANON_LANES_2(canon_normal, uint, float)

canon_inline void canon_philox(uint16 c[4], uint key0, uint key1)
{
    uint words[4 * 16];
    for (int w = 0; w < 4; w++)
        vstore16(c[w], w, words);
    for (int l = 0; l < 16; l++) {
        uint lane[4] = {words[l], words[16 + l], words[32 + l], words[48 + l]};
        canon_philox(lane, key0, key1);
        for (int w = 0; w < 4; w++)
            words[16 * w + l] = lane[w];
    }
    for (int w = 0; w < 4; w++)
        c[w] = vload16(w, words);
}

/* For the inner loops of products, where one call stands for all and lanes would be sixteen loops' turns. */
static inline float16 canon_wide_fma(float16 a, float16 b, float16 c)
{
    return fma(a, b, c);
}
static inline float __attribute__((overloadable)) canon_lane_fma(float a, float b, float c)
{
    return fma(a, b, c);
}
static inline float4 __attribute__((overloadable)) canon_lane_fma(float4 a, float4 b, float4 c)
{
    return (float4)(fma(a.x, b.x, c.x), fma(a.y, b.y, c.y), fma(a.z, b.z, c.z), fma(a.w, b.w, c.w));
}
static inline float16 __attribute__((overloadable)) canon_lane_fma(float16 a, float16 b, float16 c)
{
    float x[16], y[16], z[16];
    vstore16(a, 0, x);
    vstore16(b, 0, y);
    vstore16(c, 0, z);
    for (int l = 0; l < 16; l++)
        z[l] = fma(x[l], y[l], z[l]);
    return vload16(0, z);
}
#undef fma /* of some drivers a macro */
#define fma canon_lane_fma
#endif
