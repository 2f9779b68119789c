/* alibi.h - slopes of attention with linear biases (Press, Smith, Lewis 2022), one text for C and OpenCL C.
 *
 * Of n heads, n a power of two, head h has 2^(-8 (h + 1) / n). Of others the first p heads, p the power of
 * two below n, have those of p heads, the rest every second of those of 2 p, as the authors' program does. */
static inline float alibi_slope(unsigned head, unsigned heads)
{
    unsigned p = 1;
    while (p <= heads / 2)
        p *= 2;
    /* 8 times a fraction of p or 2 p, in units of 2^-16: exact for heads below 2^15 */
    const unsigned units = head < p ? (head + 1) * (8 * 65536 / p) : (2 * (head - p) + 1) * (4 * 65536 / p);
    const float power = canon_exp((float)(units & 65535) * (-0x1.62e43p-1f * 0x1p-16f));
    return power * canon_as_real((127 - (units >> 16)) << 23);
}
