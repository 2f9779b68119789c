/* planes_cut.h - operands to digits, or to bf16 (OpenCL C only, before planes.cl).
 *
 * A group has 16 lines and a block of k: in an exact class it finds the largest pattern of each line, then
 * its exponent, then its digits. Element (p, line) of op(X) lies at p * row + line (across), or at line * row
 * + p (down). */

struct cut_source {
    __global const void *x;
    ulong at;
    uint row, type, lines; /* of the 16, those that there are */
    bool down, unit;
};

CANON_INLINE uint cut_bits(const struct cut_source *s, uint line, uint p)
{
    return line < s->lines
               ? as_uint(canon_get(
                     s->x, s->at + (s->down ? (ulong)line * s->row + p : (ulong)p * s->row + line), s->type))
               : 0;
}

#if DIGITS == 1
/* Of two k of one line. */
CANON_INLINE uint cut_pair(const struct cut_source *s, uint line, uint p, uint length)
{
    return bf16_bits(cut_bits(s, line, p)) | (p + 1 < length ? bf16_bits(cut_bits(s, line, p + 1)) << 16 : 0);
}

#if ITEMS == 1
/* Sixteen lines side by side. */
CANON_INLINE void cut_across(const struct cut_source *s, uint length, __global uint *to)
{
    for (uint p = 0; p < length; p += 2, to += PLANES_LINES) {
        const ulong at = s->at + (ulong)p * s->row;
        uint16 pair = bf16_bits_x16(as_uint16(canon_get_x16(s->x, at, s->type)));
        if (p + 1 < length)
            pair |= bf16_bits_x16(as_uint16(canon_get_x16(s->x, at + s->row, s->type))) << 16;
        vstore16(pair, 0, to);
    }
}

/* One line, sixteen k at a time while there are, where it lies so. */
CANON_INLINE void cut_line(const struct cut_source *s, uint line, uint length, __global uint *to)
{
    const ulong at = s->at + (ulong)line * s->row;
    uint p = 0;
    for (; s->down && line < s->lines && p + 16 <= length; p += 16) {
        uint words[8];
        vstore8(as_uint8(convert_ushort16(bf16_bits_x16(as_uint16(canon_get_x16(s->x, at + p, s->type))))), 0,
                words);
        for (uint w = 0; w < 8; w++)
            to[(p / 2 + w) * PLANES_LINES] = words[w];
    }
    for (; p < length; p += 2)
        to[p / 2 * PLANES_LINES] = cut_pair(s, line, p, length);
}
#endif

CANON_INLINE void cut_lines(const struct cut_source *s, uint length, __global int *exponents,
                            __global uint *to, ulong step, __local uint *most)
{
#if ITEMS == 1
    if (!s->down && s->lines == PLANES_LINES)
        cut_across(s, length, to);
    else
        for (uint line = 0; line < PLANES_LINES; line++)
            cut_line(s, line, length, to + line);
#else
    const uint id = get_local_id(0), across = ITEMS / PLANES_LINES;
    const uint line = s->down ? id / across : id % PLANES_LINES,
               t = s->down ? id % across : id / PLANES_LINES;
    for (uint p = 2 * t; p < length; p += 2 * across)
        to[(ulong)(p / 2) * PLANES_LINES + line] = cut_pair(s, line, p, length);
#endif
}
#else
/* Words of 4 k of one line, one for each digit, of which digit d goes to to[d * step]. */
CANON_INLINE void cut_word(const struct cut_source *s, uint line, uint p, uint length, int e,
                           __global uint *to, ulong step)
{
    uint words[DIGITS] = {0};
    for (uint c = 0; c < 4; c++) {
        int q = p + c < length ? exact8_integer(cut_bits(s, line, p + c), e, DIGITS) : 0;
        for (uint d = DIGITS; d-- > 1;)
            words[d] |= ((uint)exact8_digit(&q) & 255u) << 8 * c;
        words[0] |= ((uint)q & 255u) << 8 * c;
    }
    for (uint d = 0; d < DIGITS; d++)
        to[d * step] = words[d];
}

#if ITEMS == 1
/* Sixteen lines side by side: 16 whole lines of floats across. */
CANON_INLINE void cut_across(const struct cut_source *s, uint length, __global int *exponents,
                             __global uint *to, ulong step)
{
    uint16 most = (uint16)(0);
    for (uint p = 0; p < length; p++) {
        const uint16 bits = as_uint16(canon_get_x16(s->x, s->at + (ulong)p * s->row, s->type)) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    int16 e = as_int16(((most + 0x20000u) >> 23) - 126u);
    e = most >= 0x7f800000u ? (int16)(EXACT8_NOT_FINITE) : e;
    e = most < 0x00800000u ? (int16)(0) : e;
    if (s->unit)
        e = most < EXACT8_UNIT ? (int16)(0) : (int16)(EXACT8_NOT_FINITE);
    vstore16(e, 0, exponents);
    const uint words = planes_words(length, PER_WORD);
    for (uint w = 0; w < words; w++, to += PLANES_LINES) {
        uint16 digits[DIGITS];
        for (uint d = 0; d < DIGITS; d++)
            digits[d] = (uint16)(0);
        for (uint c = 0; c < 4 && 4 * w + c < length; c++) {
            const uint16 bits = as_uint16(canon_get_x16(s->x, s->at + (ulong)(4 * w + c) * s->row, s->type));
            int16 q = exact8_integer_x16(bits, e, DIGITS);
            for (uint d = DIGITS; d-- > 1;)
                digits[d] |= as_uint16(exact8_digit_x16(&q) & 255) << 8 * c;
            digits[0] |= as_uint16(q & 255) << 8 * c;
        }
        for (uint d = 0; d < DIGITS; d++)
            vstore16(digits[d], 0, to + d * step);
    }
}

/* One line, sixteen k at a time while there are, where it lies so. */
CANON_INLINE void cut_line(const struct cut_source *s, uint line, uint length, __global int *exponent,
                           __global uint *to, ulong step)
{
    const ulong at = s->at + (ulong)line * s->row;
    const bool whole = s->down && line < s->lines;
    uint most = 0, p = 0;
    uint16 wide = (uint16)(0);
    for (; whole && p + 16 <= length; p += 16) {
        const uint16 bits = as_uint16(canon_get_x16(s->x, at + p, s->type)) & 0x7fffffffu;
        wide = bits > wide ? bits : wide;
    }
    uint lanes[16];
    vstore16(wide, 0, lanes);
    for (uint l = 0; l < 16; l++)
        most = max(most, lanes[l]);
    for (; p < length; p++)
        most = max(most, cut_bits(s, line, p) & 0x7fffffffu);
    const int e = exact8_exponent_of(most, s->unit);
    *exponent = e;
    const uint words = planes_words(length, PER_WORD);
    uint w = 0;
    for (; whole && 4 * w + 16 <= length; w += 4) {
        int16 q = exact8_integer_x16(as_uint16(canon_get_x16(s->x, at + 4 * w, s->type)), (int16)(e), DIGITS);
        for (uint d = DIGITS; d-- > 0;) {
            const int16 digit = d > 0 ? exact8_digit_x16(&q) : q;
            const uint4 packed = as_uint4(convert_uchar16(digit & 255));
            __global uint *word = to + d * step + w * PLANES_LINES;
            word[0] = packed.x;
            word[PLANES_LINES] = packed.y;
            word[2 * PLANES_LINES] = packed.z;
            word[3 * PLANES_LINES] = packed.w;
        }
    }
    for (; w < words; w++)
        cut_word(s, line, 4 * w, length, e, to + w * PLANES_LINES, step);
}
#endif

CANON_INLINE void cut_lines(const struct cut_source *s, uint length, __global int *exponents,
                            __global uint *to, ulong step, __local uint *most)
{
#if ITEMS == 1
    if (!s->down && s->lines == PLANES_LINES)
        cut_across(s, length, exponents, to, step);
    else
        for (uint line = 0; line < PLANES_LINES; line++)
            cut_line(s, line, length, exponents + line, to + line, step);
#else
    /* Neighbours take neighbours in memory: k by k of a line, or line by line. */
    const uint id = get_local_id(0), across = ITEMS / PLANES_LINES;
    const uint line = s->down ? id / across : id % PLANES_LINES,
               t = s->down ? id % across : id / PLANES_LINES;
    if (id < PLANES_LINES)
        most[id] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    uint own = 0;
    for (uint p = t; p < length; p += across)
        own = max(own, cut_bits(s, line, p) & 0x7fffffffu);
    atomic_max(&most[line], own);
    barrier(CLK_LOCAL_MEM_FENCE);
    const int e = exact8_exponent_of(most[line], s->unit);
    if (t == 0)
        exponents[line] = e;
    const uint words = planes_words(length, PER_WORD);
    for (uint w = t; w < words; w += across)
        cut_word(s, line, 4 * w, length, e, to + (ulong)w * PLANES_LINES + line, step);
#endif
}
#endif
