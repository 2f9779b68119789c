/* rotary.cl - rotary position embedding (Su et al. 2021) of queries and keys, and its gradient.
 *
 * Elements 2i and 2i + 1 of each head of q and k of token t turn by the angle t * base^(-2i / head_width):
 *
 *     y_2i     = fma(x_2i+1, -s, x_2i * c)        c = cos, s = sin of the angle; the gradient turns back,
 *     y_2i+1   = fma(x_2i,    s, x_2i+1 * c)      by -s
 *
 * v is copied. Shapes: x and y [batch, tokens, heads of q, k, v, head_width], or the same buffer: `turned`
 * heads, then `copied`. Or tokens is 1, and sequence b has token positions[b] (`given`).
 *
 * Angles are whole numbers, in parts of 2^-64 of a turn, so that they are the same on every device and do not
 * lose digits as t grows: step_0 = 2^64 / (2 pi), step_i+1 = the upper half of step_i * ratio, ratio = 2^64
 * base^(-2 / head_width) (rotary.c), angle = t * step_i, what exceeds a turn drops out by itself. The nearest
 * quarter of a turn is taken off, and a polynomial takes the rest, in [-pi / 4, pi / 4].
 *
 * keel_rotary_share is behind attention whose heads share keys and values: heads h of one h / group have a gradient
 * of key j and one of value j each, shares [batch, tokens, 2, heads, head_width], which are added, from +0, those of
 * one h / 8 ascending, the last such eight first, h counted from `first_head` on, to y [batch, tokens, front + 2
 * kv_heads, head_width], behind the front. With `turns` those of keys are turned back before, and so is the front where it lies.
 *
 * With scaling (rotary_scale) the angle is t times a smaller step; the next step follows from the one before that.
 *
 * Error of c and s: below 1e-7, against double, for t up to 2^20. A work-item is alone in its group and turns
 * token t of all sequences, or the token of one. Tunables: KEEL_BY_LANE. Tolerance against the host: none, equal bits. */

enum { WIDTH_MAX = 256 };

/* The upper half of a * b. */
static ulong multiply_high(ulong a, ulong b)
{
    const ulong mask = 0xffffffffUL, a0 = a & mask, a1 = a >> 32, b0 = b & mask, b1 = b >> 32;
    const ulong middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (middle & mask);
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

/* The step of a pair, slowed down: shares are in parts of 2^64, turns in a context in parts of 2^32. */
static ulong rotary_scale(ulong step, ulong slow, uint context, ulong low, ulong span, ulong inverse)
{
    const ulong turns = multiply_high(step, (ulong)context << 32);
    if (slow == 0 || (context > 0 && turns >= low + span))
        return step;
    if (context == 0 || turns <= low)
        return multiply_high(step, slow);
    return multiply_high(step, slow + multiply_high((turns - low) * inverse, 0UL - slow));
}

/* (cos, sin) of an angle in parts of 2^-64 of a turn. */
static float2 rotary_turn(ulong angle)
{
    const uint quarter = (uint)((angle + (1UL << 61)) >> 62);
    const int rest = (int)(uint)((angle - ((ulong)quarter << 62)) >> 32);
    const float x = (float)rest * 0x1.921fb6p-30f; /* 2 pi / 2^32 */
    const float square = x * x;
    float p = fma(square, -0x1.9a6782p-26f, 0x1.717074p-19f);
    p = fma(p, square, -0x1.a017dap-13f);
    p = fma(p, square, 0x1.11110cp-7f);
    p = fma(p, square, -0x1.555556p-3f);
    const float s = fma(p * square, x, x);
    p = fma(square, 0x1.9930aep-16f, -0x1.6c0870p-10f);
    p = fma(p, square, 0x1.55553ep-5f);
    p = fma(p, square, -0.5f);
    const float c = fma(p, square, 1.0f);
    const float2 even = (float2)(quarter == 2 ? -c : c, quarter == 2 ? -s : s);
    const float2 odd = (float2)(quarter == 3 ? s : -s, quarter == 3 ? -c : c);
    return quarter & 1 ? odd : even;
}

/* Each even element changes places with the odd one behind it. Element by element: of a shuffle that takes
 * lane 11 Oclgrind 21.10 loses sight, and the compiler makes one of these where it may. */
static inline float16 rotary_swap(float16 v)
{
    return (float16)(v.s1, v.s0, v.s3, v.s2, v.s5, v.s4, v.s7, v.s6, v.s9, v.s8, v.sb, v.sa, v.sd, v.sc, v.sf,
                     v.se);
}

#define ROTARY_ANGLES ulong ratio, ulong slow, uint context, ulong low, ulong span, ulong inverse

/* Of all pairs of a head of token `token`; direction 1, or -1 to turn back. */
CANON_INLINE void rotary_angles(uint token, uint width, float direction, ROTARY_ANGLES, __local float *cosines,
                                __local float *sines)
{
    ulong step = 0x28be60db9391054aUL;
    for (uint d = 0; d < width; d += 2) {
        const float2 turn = rotary_turn(token * rotary_scale(step, slow, context, low, span, inverse));
        cosines[d] = turn.x;
        cosines[d + 1] = turn.x;
        sines[d] = -direction * turn.y;
        sines[d + 1] = direction * turn.y;
        step = multiply_high(step, ratio);
    }
    for (uint d = width; d < WIDTH_MAX && (d & 15) != 0; d++) {
        cosines[d] = 0.0f;
        sines[d] = 0.0f;
    }
}
CANON_INLINE float16 rotary_turned(float16 v, __local const float *cosines, __local const float *sines)
{
    const float16 cosine = vload16(0, cosines), sine = vload16(0, sines);
    return fma(rotary_swap(v), sine, v * cosine);
}
CANON_INLINE void rotary_heads(__global const float *x, __global float *y, uint heads, uint width,
                               __local const float *cosines, __local const float *sines)
{
    for (uint h = 0; h < heads; h++, x += width, y += width)
        for (uint d = 0; d < width; d += 16)
            canon_store(rotary_turned(canon_load(x + d, width - d), cosines + d, sines + d), y + d, width - d);
}

__kernel void keel_rotary(__global const float *x, __global float *y, __global const int *positions, uint given,
                          uint batch, uint tokens, uint turned, uint copied, uint width, float direction,
                          ROTARY_ANGLES)
{
    __local float cosines[WIDTH_MAX];
    __local float sines[WIDTH_MAX];
    const uint item = get_global_id(0);
    if (item >= (given ? batch : tokens))
        return;
    const uint token = given ? (uint)positions[item] : item, end = given ? item + 1 : batch;
    rotary_angles(token, width, direction, ratio, slow, context, low, span, inverse, cosines, sines);
    for (uint b = given ? item : 0; b < end; b++) {
        const ulong row = ((ulong)b * tokens + (given ? 0 : token)) * (turned + copied) * width;
        rotary_heads(x + row, y + row, turned, width, cosines, sines);
        if (x != y)
            for (uint d = 0, rest = copied * width; d < rest; d += 16) {
                const ulong at = row + turned * width + d;
                canon_store(canon_load(x + at, rest - d), y + at, rest - d);
            }
    }
}

/* Sixteen elements of the sum over heads number `first` to `end` - 1, whose rows lie side by side, the first at x. */
CANON_INLINE float16 share_sum(__global const float *x, uint first, uint end, uint width, uint left, uint turns,
                               __local const float *cosines, __local const float *sines)
{
    float16 sum = (float16)(0.0f);
    for (uint eight = (end + 7) / 8 * 8; eight > first; eight -= 8)
        for (uint h = max(first, eight - 8); h < min(end, eight); h++) {
            const float16 v = canon_load(x + (h - first) * width, left);
            sum = sum + (turns ? rotary_turned(v, cosines, sines) : v);
        }
    return sum;
}

__kernel void keel_rotary_share(__global const float *shares, __global float *y, uint batch, uint tokens, uint heads,
                                uint kv_heads, uint width, uint front, uint first_head, ulong shares_at, uint turns,
                                ROTARY_ANGLES)
{
    __local float cosines[WIDTH_MAX];
    __local float sines[WIDTH_MAX];
    const uint token = get_global_id(0), group = heads / kv_heads;
    if (token >= tokens)
        return;
    if (turns)
        rotary_angles(token, width, -1.0f, ratio, slow, context, low, span, inverse, cosines, sines);
    for (uint b = 0; b < batch; b++) {
        const ulong row = (ulong)b * tokens + token;
        __global const float *x = shares + shares_at + row * 2 * heads * width;
        __global float *to = y + row * (front + 2 * kv_heads) * width;
        if (turns)
            rotary_heads(to, to, front, width, cosines, sines);
        to += front * width;
        for (uint part = 0; part < 2; part++, x += heads * width)
            for (uint h = 0; h < kv_heads; h++, to += width)
                for (uint d = 0, number = first_head + h * group; d < width; d += 16)
                    canon_store(share_sum(x + h * group * width + d, number, number + group, width, width - d,
                                          turns && part == 0, cosines + d, sines + d),
                                to + d, width - d);
    }
}
