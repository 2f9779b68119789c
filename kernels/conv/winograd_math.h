/* winograd_math.h - the transforms of Winograd's F(4 x 4, 3 x 3) along one axis (Lavin and Gray 2016, points
 * 0, 1, -1, 2, -2 and infinity). One text for 16 lanes (winograd.cl) and for one (winograd_host.c):
 * WINOGRAD_REAL is the type, WINOGRAD_FMA its fma by a constant. */

#ifndef WINOGRAD_REAL
#define WINOGRAD_REAL         float16
#define WINOGRAD_FMA(k, a, b) fma((float16)(k), a, b)
#endif

/* t = B' d */
static inline void winograd_in(const WINOGRAD_REAL *d, WINOGRAD_REAL *t)
{
    const WINOGRAD_REAL even = WINOGRAD_FMA(-4.0f, d[2], d[4]), odd = WINOGRAD_FMA(-4.0f, d[1], d[3]);
    const WINOGRAD_REAL near = d[4] - d[2], far = 2.0f * (d[3] - d[1]);
    t[0] = WINOGRAD_FMA(4.0f, d[0], WINOGRAD_FMA(-5.0f, d[2], d[4]));
    t[1] = even + odd;
    t[2] = even - odd;
    t[3] = near + far;
    t[4] = near - far;
    t[5] = WINOGRAD_FMA(4.0f, d[1], WINOGRAD_FMA(-5.0f, d[3], d[5]));
}

/* t = G g */
static inline void winograd_weights(const WINOGRAD_REAL *g, WINOGRAD_REAL *t)
{
    const WINOGRAD_REAL even = -0x1.555556p-3f * (g[0] + g[2]), odd = -0x1.555556p-3f * g[1];
    const WINOGRAD_REAL near = WINOGRAD_FMA(0x1.555556p-3f, g[2], 0x1.555556p-5f * g[0]);
    const WINOGRAD_REAL far = 0x1.555556p-4f * g[1];
    t[0] = 0.25f * g[0];
    t[1] = even + odd;
    t[2] = even - odd;
    t[3] = near + far;
    t[4] = near - far;
    t[5] = g[2];
}

/* y = A' m */
static inline void winograd_out(const WINOGRAD_REAL *m, WINOGRAD_REAL *y)
{
    const WINOGRAD_REAL sum_1 = m[1] + m[2], apart_1 = m[1] - m[2];
    const WINOGRAD_REAL sum_2 = m[3] + m[4], apart_2 = m[3] - m[4];
    y[0] = m[0] + sum_1 + sum_2;
    y[1] = WINOGRAD_FMA(2.0f, apart_2, apart_1);
    y[2] = WINOGRAD_FMA(4.0f, sum_2, sum_1);
    y[3] = WINOGRAD_FMA(8.0f, apart_2, apart_1) + m[5];
}
