/* canon_math.h - elementary functions with the same bits on every device.
 *
 * Made of + - * fma, comparison and integer operations only; no built-in function of a device, no
 * division, no contraction. The same text is C and OpenCL C, for one float or for sixteen
 * (canon_scalar.h says how), so it has no include guard, no branch and no table.
 *
 * Denormals: a denormal argument counts as zero of its sign, and a result below FLT_MIN becomes zero
 * of its sign, both by bit operations; nothing in between is denormal where it matters. So a device
 * that flushes and one that does not agree. NaN in gives the quiet NaN 0x7fc00000 or another NaN.
 *
 * Largest error against the true value, in units of the last place (tests/kernels/canon_test.c):
 *     divide, sqrt  0.5 (correctly rounded, where the result is normal)
 *     rsqrt 0.51   reciprocal 0.51   exp 1.01   log 1   tanh 2   cos 1.5   erf 2.5   ln(1 + x) 1.2 */
#ifndef CANON_PASS_OVER

/* Zero of the same sign for a denormal. */
canon_inline canon_real canon_flush(canon_real x)
{
    canon_bits b = canon_as_bits(x);
    return canon_as_real((b & 0x7f800000u) == 0u ? b & 0x80000000u : b);
}

/* x + 0: a zero loses its sign. Compilers that do not care for signs of zero drop the sum, so it is done by
 * bits. */
canon_inline canon_real canon_plus_zero(canon_real x)
{
    canon_bits b = canon_as_bits(x);
    return canon_as_real(b == 0x80000000u ? (canon_bits)(0u) : b);
}

/* 1 / d for |d| in [2^-125, 2^125]: within 1 ulp. NaN stays NaN. The seed is within 12.2%; each line
 * of three cubes the error (1 / (1 - e) = 1 + e + e^2 + ...). */
canon_inline canon_real canon_reciprocal(canon_real d)
{
    canon_real r = canon_as_real((canon_bits)(0x7ef311c7u) - canon_as_bits(d));
    canon_real e = canon_fma(-d, r, 1.0f);
    r = canon_fma(r, canon_fma(e, e, e), r);
    e = canon_fma(-d, r, 1.0f);
    r = canon_fma(r, canon_fma(e, e, e), r);
    return r;
}

/* a / b, correctly rounded: the mantissas are divided in [1, 2) with a final correction by the exact
 * remainder (Markstein 1990), then the exponent is added by integers. */
canon_inline canon_real canon_divide(canon_real a, canon_real b)
{
    canon_bits ua = canon_as_bits(a), ub = canon_as_bits(b);
    canon_bits sign = (ua ^ ub) & 0x80000000u;
    canon_bits ea = (ua >> 23) & 255u, eb = (ub >> 23) & 255u;
    canon_real ma = canon_as_real((ua & 0x007fffffu) | 0x3f800000u);
    canon_real mb = canon_as_real((ub & 0x007fffffu) | 0x3f800000u);
    canon_real r = canon_reciprocal(mb);
    r = canon_fma(canon_fma(-mb, r, 1.0f), r, r);
    canon_real q = ma * r;
    q = canon_fma(canon_fma(-mb, q, ma), r, q);
    canon_bits uq = canon_as_bits(q);
    canon_bits e = (uq >> 23) + ea + 512u - eb; /* biased by 512 to stay unsigned */
    canon_bits u = (uq & 0x007fffffu) | ((e - 512u) << 23);
    u = e < 513u ? (canon_bits)(0u) : u;
    u = e > 766u ? (canon_bits)(0x7f800000u) : u;
    u = ((ea == 0u) | (eb == 255u)) ? (canon_bits)(0u) : u;
    u = ((eb == 0u) | (ea == 255u)) ? (canon_bits)(0x7f800000u) : u;
    u |= sign;
    u = (((ea == 0u) & (eb == 0u)) | ((ea == 255u) & (eb == 255u))) ? (canon_bits)(0x7fc00000u) : u;
    u = ((a != a) | (b != b)) ? (canon_bits)(0x7fc00000u) : u;
    return canon_as_real(u);
}

/* 1 / sqrt(m) for normal m > 0, within a few units in 2^-24; the seed is within 3.5%. */
canon_inline canon_real canon_rsqrt_seeded(canon_real m)
{
    canon_real y = canon_as_real((canon_bits)(0x5f3759dfu) - (canon_as_bits(m) >> 1));
    canon_real e = canon_fma(-(m * y), y, 1.0f);
    y = canon_fma(y, canon_fma(e, 0.375f, 0.5f) * e, y);
    e = canon_fma(-(m * y), y, 1.0f);
    return canon_fma(y, canon_fma(e, 0.375f, 0.5f) * e, y);
}

/* sqrt(x), correctly rounded: one correction by the exact remainder, on a mantissa in [1, 4). */
canon_inline canon_real canon_sqrt(canon_real x)
{
    canon_bits u = canon_as_bits(x);
    canon_bits e = u >> 23;         /* 1..254 for what is finite, normal and positive */
    canon_bits odd = (e + 1u) & 1u; /* 1 where e - 127 is odd */
    canon_real m = canon_as_real((u & 0x007fffffu) | ((odd + 127u) << 23));
    canon_real y = canon_rsqrt_seeded(m);
    canon_real s = m * y;
    s = canon_fma(canon_fma(-s, s, m), 0.5f * y, s);
    canon_bits r = canon_as_bits(s) + (((e - odd + 129u) >> 1) << 23) - (128u << 23);
    r = (e & 255u) == 0u ? u & 0x80000000u : r;
    r = ((u > 0x80000000u) & (e != 256u)) ? (canon_bits)(0x7fc00000u) : r;
    r = u == 0x7f800000u ? u : r;
    r = x != x ? (canon_bits)(0x7fc00000u) : r;
    return canon_as_real(r);
}

/* 1 / sqrt(x): the same mantissa, corrected with the rounding error of m * y taken along. */
canon_inline canon_real canon_rsqrt(canon_real x)
{
    canon_bits u = canon_as_bits(x);
    canon_bits e = u >> 23;
    canon_bits odd = (e + 1u) & 1u;
    canon_real m = canon_as_real((u & 0x007fffffu) | ((odd + 127u) << 23));
    canon_real y = canon_rsqrt_seeded(m);
    canon_real h = m * y;
    canon_real residue = canon_fma(-canon_fma(m, y, -h), y, canon_fma(-h, y, 1.0f));
    y = canon_fma(0.5f * residue, y, y);
    canon_bits r = canon_as_bits(y) + (128u << 23) - (((e - odd + 129u) >> 1) << 23);
    r = (e & 255u) == 0u ? (u & 0x80000000u) | 0x7f800000u : r;
    r = ((u > 0x80000000u) & (e != 256u)) ? (canon_bits)(0x7fc00000u) : r;
    r = u == 0x7f800000u ? (canon_bits)(0u) : r;
    r = x != x ? (canon_bits)(0x7fc00000u) : r;
    return canon_as_real(r);
}

/* e^x = 2^k e^r, |r| <= ln(2) / 2; k is rounded by adding 1.5 * 2^23, whose low bits then are k. For x in
 * [-87, 88]; anything for others and for NaN. */
canon_inline canon_real canon_exp_within(canon_real x)
{
    canon_real t = canon_fma(x, 0x1.715476p+0f, 0x1.8p+23f);
    canon_real k = t - 0x1.8p+23f;
    canon_real r = canon_fma(-k, 0x1.62e430p-1f, x);
    r = canon_fma(k, 0x1.05c610p-29f, r);
    canon_real p = canon_fma(r, 0x1.6a2430p-10f, 0x1.1239e2p-7f);
    p = canon_fma(p, r, 0x1.5558f2p-5f);
    p = canon_fma(p, r, 0x1.555492p-3f);
    p = canon_fma(p, r, 0x1.fffffcp-2f);
    p = canon_fma(p * r, r, r) + 1.0f;
    return canon_as_real(canon_as_bits(p) + (canon_as_bits(t) << 23));
}

/* e^x where x is at most 88 or NaN, as of what the largest was taken from. */
canon_inline canon_real canon_exp_below(canon_real x)
{
    canon_bits u = canon_as_bits(canon_exp_within(x));
    u = x < -0x1.5d589ep+6f ? (canon_bits)(0u) : u; /* below FLT_MIN */
    u = x != x ? (canon_bits)(0x7fc00000u) : u;
    return canon_as_real(u);
}

canon_inline canon_real canon_exp(canon_real x)
{
    canon_bits u = canon_as_bits(canon_exp_below(x));
    return canon_as_real(x > 0x1.62e42ep+6f ? (canon_bits)(0x7f800000u) : u);
}

/* ln(x) = e ln(2) + ln(1 + f), 1 + f in [0.7071, 1.4142). */
canon_inline canon_real canon_log(canon_real x)
{
    canon_bits u = canon_as_bits(x);
    canon_bits shifted = u - 0x3f3504f3u;  /* so that the exponent steps at sqrt(1/2) */
    canon_bits e = (shifted >> 23) & 511u; /* exponent modulo 512: negative ones are >= 256 */
    canon_real f = canon_as_real((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    canon_real n = canon_as_real(((e ^ 256u) & 511u) | 0x4b000000u) - 8388864.0f;
    canon_real p = canon_fma(f, -0x1.38a8bcp-4f, 0x1.055e04p-3f);
    p = canon_fma(p, f, -0x1.0d88b8p-3f);
    p = canon_fma(p, f, 0x1.22da00p-3f);
    p = canon_fma(p, f, -0x1.5471eep-3f);
    p = canon_fma(p, f, 0x1.99a006p-3f);
    p = canon_fma(p, f, -0x1.000228p-2f);
    p = canon_fma(p, f, 0x1.555554p-2f);
    canon_real square = f * f;
    canon_real low = canon_fma(n, -0x1.05c610p-29f, canon_fma(p * square, f, -0.5f * square));
    canon_real y = canon_fma(n, 0x1.62e430p-1f, low + f);
    canon_bits r = canon_as_bits(y);
    r = u > 0x80000000u ? (canon_bits)(0x7fc00000u) : r;
    r = (u & 0x7f800000u) == 0u ? (canon_bits)(0xff800000u) : r;
    r = u == 0x7f800000u ? u : r;
    r = x != x ? (canon_bits)(0x7fc00000u) : r;
    return canon_as_real(r);
}

/* a^b. Whole b up to 64 in size go by products, square by square, so that what is exact is right, and a may
 * be below 0; where that leaves the range, and for other b, it is e^(b ln |a|), with a's sign for an odd b.
 * Of a below 0 and a b that is not whole no number; a^0 is 1. Error of results in
 * range, b up to 64 in size: below 1e-5 of them (8.7e-6 seen in two million). */
canon_inline canon_real canon_power(canon_real a, canon_real b)
{
    canon_bits ua = canon_as_bits(a);
    canon_real size = canon_as_real(canon_as_bits(b) & 0x7fffffffu), middle = 0.5f * size;
    canon_real left = size, base = a, product = canon_as_real((canon_bits)(0x3f800000u));
    for (int i = 0; i < 7; i++) {
        canon_real most = 0.5f * left, next = (most + 0x1p+23f) - 0x1p+23f;
        next = next > most ? next - 1.0f : next;
        product = left - 2.0f * next != 0.0f ? canon_flush(product * base) : product;
        base = canon_flush(base * base);
        left = next;
    }
    canon_bits e = (canon_as_bits(product) >> 23) & 255u;
    canon_bits by_products = canon_as_bits(b < 0.0f ? canon_divide(1.0f, product) : product);
    canon_bits u = canon_as_bits(canon_exp(b * canon_log(canon_as_real(ua & 0x7fffffffu))));
    u |= ((size < 0x1p+24f) & ((middle + 0x1p+23f) - 0x1p+23f != middle) &
          ((size >= 0x1p+23f) | ((size + 0x1p+23f) - 0x1p+23f == size)))
             ? ua & 0x80000000u
             : (canon_bits)(0u);
    u = ((a < 0.0f) & (size < 0x1p+23f) & ((size + 0x1p+23f) - 0x1p+23f != size)) ? (canon_bits)(0x7fc00000u)
                                                                                  : u;
    u = ((a != a) | (b != b)) ? (canon_bits)(0x7fc00000u) : u;
    u = ((size <= 64.0f) & ((size + 0x1p+23f) - 0x1p+23f == size) & (e - 1u < 254u)) ? by_products : u;
    return canon_as_real(u);
}

/* dy times the slope of a^b along b: at a = 0 it is 0, below it no number. */
canon_inline canon_real canon_power_slope(canon_real a, canon_real b, canon_real dy)
{
    canon_bits u = canon_as_bits(dy * (canon_log(a) * canon_power(a, b)));
    u = a == 0.0f ? (canon_bits)(0u) : u;
    u = a < 0.0f ? (canon_bits)(0x7fc00000u) : u;
    return canon_as_real(u);
}

/* tanh(x): x + x^3 P(x^2) below 0.6, else 1 - 2 / (e^2|x| + 1), 1 above 9.1. */
canon_inline canon_real canon_tanh(canon_real x)
{
    canon_bits sign = canon_as_bits(x) & 0x80000000u;
    canon_real a = canon_as_real(canon_as_bits(x) & 0x7fffffffu);
    canon_real s = a * a;
    canon_real p = canon_fma(s, -0x1.7d5c00p-8f, 0x1.53b7d8p-6f);
    p = canon_fma(p, s, -0x1.b875aap-5f);
    p = canon_fma(p, s, 0x1.1108bep-3f);
    p = canon_fma(p, s, -0x1.55553ap-2f);
    canon_real small = canon_flush(canon_fma(p * s, a, a));
    canon_real big = a > 9.1f ? (canon_real)(9.1f) : a;
    big = canon_fma(-2.0f, canon_reciprocal(canon_exp_within(big + big) + 1.0f), 1.0f);
    big = a > 9.1f ? (canon_real)(1.0f) : big;
    canon_bits r = canon_as_bits(a < 0.6f ? small : big) | sign;
    r = x != x ? (canon_bits)(0x7fc00000u) : r;
    return canon_as_real(r);
}

/* ln(1 + x) for x in [0, 1]: 2 atanh(s), s = x / (2 + x), as 2 s + s^3 P(s^2), where 2 s = x - s x. */
canon_inline canon_real canon_log_1p(canon_real x)
{
    canon_real s = x * canon_reciprocal(x + 2.0f);
    canon_real square = s * s;
    canon_real p = canon_fma(square, 0x1.f59dc6p-3f, 0x1.b5b71ep-3f);
    p = canon_fma(p, square, 0x1.251842p-2f);
    p = canon_fma(p, square, 0x1.999600p-2f);
    p = canon_fma(p, square, 0x1.55555ap-1f);
    return canon_fma(s, canon_fma(p, square, -x), x);
}

/* erf(x): x P(x^2) below 0.92, else 1 - e^-Q(|x|), Q a fit of -ln(1 - erf); 1 from 4 on. */
canon_inline canon_real canon_erf(canon_real x)
{
    canon_bits sign = canon_as_bits(x) & 0x80000000u;
    canon_real a = canon_as_real(canon_as_bits(x) & 0x7fffffffu);
    canon_real s = a * a;
    canon_real p = canon_fma(s, 0x1.58945ep-14f, -0x1.a8fc66p-11f);
    p = canon_fma(p, s, 0x1.54a490p-8f);
    p = canon_fma(p, s, -0x1.b80b0ep-6f);
    p = canon_fma(p, s, 0x1.ce2de2p-4f);
    p = canon_fma(p, s, -0x1.812742p-2f);
    p = canon_fma(p, s, 0x1.20dd76p+0f);
    canon_real small = canon_flush(p * a);
    canon_real t = a > 4.0f ? (canon_real)(4.0f) : a;
    canon_real q = canon_fma(t, 0x1.8bdd96p-21f, 0x1.7b9732p-17f);
    q = canon_fma(q, t, -0x1.8d42bcp-12f);
    q = canon_fma(q, t, 0x1.05c24ep-8f);
    q = canon_fma(q, t, -0x1.95e808p-6f);
    q = canon_fma(q, t, 0x1.b9c998p-4f);
    q = canon_fma(q, t, 0x1.446f84p-1f);
    q = canon_fma(q, t, 0x1.211f2ap+0f);
    q = canon_fma(q, t, -0x1.3bddd0p-13f);
    canon_real big = 1.0f - canon_exp_within(-q);
    canon_bits r = canon_as_bits(a < 0.92f ? small : big) | sign;
    r = x != x ? (canon_bits)(0x7fc00000u) : r;
    return canon_as_real(r);
}

/* cos(x) for x in [0, pi]: by the cosine within pi/4 of either end, as sin(pi/2 - x) between. */
canon_inline canon_real canon_cos(canon_real x)
{
    canon_real y = (0x1.921fb6p+0f - x) - 0x1.777a5cp-25f;
    canon_real s = y * y;
    canon_real p = canon_fma(s, -0x1.9a6782p-26f, 0x1.717074p-19f);
    p = canon_fma(p, s, -0x1.a017dap-13f);
    p = canon_fma(p, s, 0x1.11110cp-7f);
    p = canon_fma(p, s, -0x1.555556p-3f);
    canon_real middle = canon_fma(p * s, y, y);
    canon_real rest = (0x1.921fb6p+1f - x) - 0x1.777a5cp-24f;
    canon_real t = x < 1.5f ? x : rest;
    s = t * t;
    p = canon_fma(s, 0x1.9930aep-16f, -0x1.6c0870p-10f);
    p = canon_fma(p, s, 0x1.55553ep-5f);
    p = canon_fma(p, s, -0.5f);
    canon_real end = canon_fma(p, s, 1.0f);
    end = x < 1.5f ? end : -end;
    return ((x < 0.785f) | (x > 2.356f)) ? end : middle;
}

/* e^-w where 1 + e^-w is wanted, which is 1 beyond 80. Anything for w below -80 and for NaN. */
canon_inline canon_real canon_exp_down(canon_real w)
{
    return canon_exp_within(-(w > 87.0f ? (canon_real)(87.0f) : w));
}

/* 1 / (1 + e^-w): 0 below -80 and 1 far above; anything for NaN, which who multiplies by w needs not have. */
canon_inline canon_real canon_sigmoid_finite(canon_real w)
{
    canon_real r = canon_reciprocal(canon_exp_down(w) + 1.0f);
    return w < -80.0f ? (canon_real)(0.0f) : r;
}

/* The same, and NaN stays NaN. */
canon_inline canon_real canon_sigmoid(canon_real w)
{
    return w != w ? w : canon_sigmoid_finite(w);
}

/* ---- what rows of keel/activation_table.h say in more than an expression: g(x, dy) = dy f'(x) ---- */

/* GELU, tanh form: 0.5 x (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3). */
canon_inline canon_real canon_gelu(canon_real x)
{
    canon_real w = x * canon_fma(x * x, 0x1.2444f2p-4f, 0x1.988454p+0f);
    return x * canon_sigmoid_finite(w);
}

/* Its slope: s + x s (1 - s) w', w' = 2 u'. Outside |w| <= 80 it is 0 or 1. */
canon_inline canon_real canon_gelu_grad(canon_real x, canon_real dy)
{
    canon_real square = x * x;
    canon_real w = x * canon_fma(square, 0x1.2444f2p-4f, 0x1.988454p+0f);
    canon_real e = canon_exp_down(w);
    canon_real s = canon_reciprocal(e + 1.0f);
    canon_real slope = canon_fma(square, 0x1.b6676cp-3f, 0x1.988454p+0f);
    canon_real r = canon_fma(x * ((e * s) * s), slope, s); /* 1 - s = e s, without cancellation */
    r = w > 80.0f ? (canon_real)(1.0f) : r;
    r = w < -80.0f ? (canon_real)(0.0f) : r;
    return dy * r;
}

/* Slopes: of tanh, 1 - t^2; of the sigmoid, s (1 - s) with 1 - s = e s, without cancellation. */
canon_inline canon_real canon_tanh_grad(canon_real x, canon_real dy)
{
    canon_real t = canon_tanh(x);
    return dy * canon_fma(-t, t, 1.0f);
}

canon_inline canon_real canon_sigmoid_grad(canon_real w, canon_real dy)
{
    canon_real e = canon_exp(-w);
    canon_real s = canon_reciprocal(e + 1.0f);
    return dy * (w < -80.0f ? (canon_real)(0.0f) : (e * s) * s);
}

/* SiLU (Elfwing et al. 2018), x s(x); its slope, s + x s (1 - s), is 0 or 1 outside |x| <= 80. */
canon_inline canon_real canon_silu(canon_real x)
{
    return x * canon_sigmoid_finite(x);
}

canon_inline canon_real canon_silu_grad(canon_real x, canon_real dy)
{
    canon_real e = canon_exp_down(x);
    canon_real s = canon_reciprocal(e + 1.0f);
    canon_real r = canon_fma(x, (e * s) * s, s);
    r = x > 80.0f ? (canon_real)(1.0f) : r;
    r = x < -80.0f ? (canon_real)(0.0f) : r;
    return dy * r;
}
#endif
